/* Loading: folder, configuration, tensors, graph, weights, in this order.
 *
 * A struct load holds what lives only while loading (open files, parsed configuration); the model
 * holds what outlives it.  The graph is built whole, then one small plan is compiled: that reads
 * and converts every weight, after which the files are closed.
 */
#include <rankplan/model.h>
#include <rankplan/plan.h>

#include "models/chain.h"
#include "models/config.h"
#include "models/decision.h"
#include "models/family.h"
#include "models/file.h"
#include "models/folder.h"
#include "models/prompt.h"
#include "models/smoothing.h"
#include "models/split.h"
#include "models/split_int8.h"
#include "models/vocabulary.h"
#include "pool/error.h"
#include "pool/fpenv.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct rp_model {
    rp_model_info info;
    rp_graph *graph;                   /* parts[RP_PART_MAIN] */
    rp_graph *parts[RP_SPLIT_N_PARTS]; /* the others only of a split encoder */
    rp_weights *weights;
    struct rp_folder folder; /* prompts, and the strings of info */
    struct rp_decision decision;
    struct rp_split split;
    struct rp_notes notes;
    struct rp_prompt prompt;
    char *family, *architecture, *smoothing;
    char pooling[RP_POOLING_TEXT_BYTES];
    char **labels;
    char (*hidden_names)[RP_STEP_NAME_BYTES];
    size_t n_hidden;
};

struct load {
    rp_model *model;
    const rp_model_options *options;
    unsigned flags;
    rp_pool *pool;
    struct rp_config config;
    struct rp_tensors *tensors;
    struct rp_build build;
    struct rp_chain chain;
    const struct rp_family *family;
    union rp_any_body any;
    rp_value last;
    bool predicts; /* a language model's head is run */
};

void rp_model_options_init(rp_model_options *options)
{
    *options = (rp_model_options){.struct_size = sizeof *options};
}

/* ---- configuration ----------------------------------------------------------------------------
 */

static rp_status copy(const char *text, char **out, rp_error *err)
{
    *out = strdup(text);
    return *out ? RP_OK : rp_fail(err, RP_ERR_NOMEM, "no memory for a string");
}

static bool ends_with(const char *name, const char *suffix)
{
    const size_t n = strlen(name), tail = strlen(suffix);
    return n >= tail && strcmp(name + n - tail, suffix) == 0;
}

/* The module that reads a language model's answer; NULL: none. */
static const struct rp_module *logit_score(const struct rp_folder *folder)
{
    return folder->n_modules == 1 && folder->modules[0].kind == RP_MODULE_LOGIT_SCORE
               ? &folder->modules[0]
               : NULL;
}

/* What follows the transformer must be able to read what transformer_task makes of it. */
static rp_status check_task(const struct rp_folder *folder, rp_error *err)
{
    const bool answers = logit_score(folder) != NULL;
    if (folder->n_modules == 0 || folder->task == RP_FOLDER_UNSAID ||
        folder->task == (answers ? RP_FOLDER_GENERATES : RP_FOLDER_EMBEDS))
        return RP_OK;
    return rp_fail(err, RP_ERR_UNSUPPORTED,
                   "%s: transformer_task is not %s, which the modules after it ask for",
                   folder->transformer, answers ? "text-generation" : "feature-extraction");
}

/* A classifier or a language model, unless the folder pools its rows into a vector. */
static rp_status choose_task(struct load *l, rp_error *err)
{
    const struct rp_folder *folder = &l->model->folder;
    const char *name = l->config.architecture;
    const bool generates = logit_score(folder) || folder->task == RP_FOLDER_GENERATES;
    const bool unsaid = folder->n_modules == 0 && folder->task == RP_FOLDER_UNSAID;
    RP_TRY(check_task(folder, err));
    l->model->info.task = RP_TASK_EMBED;
    if (generates && !l->family->kind->predict)
        return rp_fail(err, RP_ERR_UNSUPPORTED,
                       "%s: the folder reads the answer of a language model, which a %s is not",
                       l->config.path, l->family->model_type);
    l->predicts = logit_score(folder) || (folder->n_modules == 0 && generates) ||
                  (unsaid && !folder->has_modules && l->family->kind->predict &&
                   (ends_with(name, "ForCausalLM") || ends_with(name, "ForConditionalGeneration")));
    if (l->predicts || (folder->n_modules == 0 && folder->task == RP_FOLDER_CLASSIFIES) ||
        (unsaid && ends_with(name, "ForSequenceClassification")))
        l->model->info.task = RP_TASK_CLASSIFY;
    return RP_OK;
}

/* The table of positions limits every other statement about the length. */
static rp_status set_max_length(struct load *l, rp_error *err)
{
    rp_model_info *info = &l->model->info;
    const struct rp_folder *folder = &l->model->folder;
    const int64_t limit = l->any.body.positions - l->any.body.first_position;
    if (limit < 1)
        return rp_fail(err, RP_ERR_FORMAT,
                       "%s: max_position_embeddings is %" PRId64
                       ", but positions begin at %" PRId64,
                       l->config.path, l->any.body.positions, l->any.body.first_position);
    const bool said = folder->max_length > 0 && folder->max_length <= limit;
    info->max_length = (size_t)(said ? folder->max_length : limit);
    info->max_length_source =
        said ? folder->max_length_source : "config.json:max_position_embeddings";
    if (folder->max_length > limit)
        return rp_notes_add(&l->model->notes, err,
                            "%s is %" PRId64 ", more than the %" PRId64
                            " that config.json's positions allow",
                            folder->max_length_source, folder->max_length, limit);
    return RP_OK;
}

static rp_status describe_body(struct load *l, rp_error *err)
{
    rp_model *model = l->model;
    const struct rp_body *e = &l->any.body;
    RP_TRY(copy(l->config.model_type, &model->family, err));
    RP_TRY(copy(l->config.architecture, &model->architecture, err));
    model->info.family = model->family;
    model->info.architecture = model->architecture;
    model->info.n_layers = (size_t)e->layers;
    model->info.hidden = (size_t)e->hidden;
    model->info.n_heads = (size_t)e->heads;
    model->info.head_dim = (size_t)e->head_dim;
    model->info.intermediate = (size_t)e->intermediate;
    model->info.vocab_size = (size_t)e->vocab;
    model->info.n_type_ids = (size_t)e->types;
    model->info.pad_id = (int32_t)e->pad;
    model->info.similarity = model->folder.similarity;
    model->info.pooling = model->pooling;
    return RP_OK;
}

static rp_status configure(struct load *l, rp_error *err)
{
    const struct rp_model *model = l->model;
    RP_TRY(rp_config_open(model->decision.encoder ? model->decision.encoder
                                                  : model->folder.transformer,
                          &l->config, err));
    RP_TRY(rp_family_find(&l->config, &l->family, err));
    RP_TRY(rp_config_refuse(&l->config, l->family->reads, err));
    RP_TRY(l->family->configure(&l->config, &l->any, err));
    RP_TRY(choose_task(l, err));
    RP_TRY(describe_body(l, err));
    return set_max_length(l, err);
}

/* ---- the body ----------------------------------------------------------------------------------
 */

/* Only after the tensors have shown that there are so many layers. */
static rp_status name_hidden_states(struct load *l, rp_error *err)
{
    rp_model *model = l->model;
    const size_t n = (size_t)l->any.body.layers + 1;
    model->hidden_names = calloc(n, sizeof *model->hidden_names);
    if (!model->hidden_names)
        return rp_fail(err, RP_ERR_NOMEM, "no memory for %zu names", n);
    model->n_hidden = n;
    for (size_t i = 0; i < n; i++)
        l->family->kind->hidden_name(&l->any, i, model->hidden_names[i]);
    return RP_OK;
}

static rp_status open_tensors(struct load *l, rp_error *err)
{
    rp_model *model = l->model;
    RP_TRY(rp_tensors_open(model->folder.transformer, &model->notes, &l->tensors, err));
    RP_TRY(rp_graph_create(&model->parts[RP_PART_MAIN], err));
    model->graph = model->parts[RP_PART_MAIN];
    RP_TRY(rp_weights_create(&model->weights, err));
    l->build = rp_build_init(model->graph, model->weights, l->tensors);
    return RP_OK;
}

static void build_body(struct load *l)
{
    l->last = l->family->kind->build(&l->build, l->family, &l->any);
    if (l->flags & RP_MODEL_ALL_OUTPUTS)
        rp_graph_output(l->model->graph, "last", l->last, RP_ROWS_TOKENS,
                        (size_t)l->any.body.hidden);
}

/* ---- classifiers ------------------------------------------------------------------------------
 */

/* config_sentence_transformers.json, else config.json's sentence_transformers, else its older key,
 * else Sigmoid for one label and nothing for several: as sentence-transformers 6 does.  A softmax
 * over the labels is not an activation of one number and is refused by its name; callers have the
 * logits. */
static rp_status choose_activation(struct load *l, rp_error *err)
{
    static const char new_key[] = "sentence_transformers", fn[] = "activation_fn";
    static const char old_key[] = "sbert_ce_default_activation_function";
    rp_model_info *info = &l->model->info;
    const char *said = NULL;
    const json_t *section = rp_json_get(&l->config.json, new_key);
    if (l->model->folder.activation_fn)
        return rp_torch_activation("config_sentence_transformers.json", fn,
                                   l->model->folder.activation_fn, &info->score_activation, err);
    if (section && !json_is_object(section))
        return rp_fail(err, RP_ERR_FORMAT, "%s: key \"%s\" is not an object", l->config.path,
                       new_key);
    if (section) {
        const struct rp_json inner = {.file = l->config.path,
                                      .object = (json_t *)(uintptr_t)section};
        RP_TRY(rp_json_string(&inner, fn, RP_JSON_OPTIONAL, &said, err));
    }
    if (said)
        return rp_torch_activation(l->config.path, fn, said, &info->score_activation, err);
    RP_TRY(rp_json_string(&l->config.json, old_key, RP_JSON_OPTIONAL, &said, err));
    if (said)
        return rp_torch_activation(l->config.path, old_key, said, &info->score_activation, err);
    info->score_activation = info->n_labels == 1 ? RP_ACT_SIGMOID : RP_ACT_NONE;
    return RP_OK;
}

static rp_status read_labels(struct load *l, rp_error *err)
{
    rp_model *model = l->model;
    const char **names;
    size_t n;
    RP_TRY(rp_config_labels(&l->config, &n, &names, err));
    rp_status s = RP_OK;
    model->labels = calloc(n, sizeof *model->labels);
    if (!model->labels)
        s = rp_fail(err, RP_ERR_NOMEM, "no memory for %zu labels", n);
    else
        model->info.n_labels = n;
    for (size_t i = 0; i < n && s == RP_OK; i++)
        if (names[i])
            s = copy(names[i], &model->labels[i], err);
    free(names);
    return s;
}

static rp_status add_scores(struct load *l, rp_value logits, rp_error *err)
{
    rp_graph *graph = l->model->graph;
    rp_model_info *info = &l->model->info;
    RP_TRY(choose_activation(l, err));
    rp_value scores = logits;
    if (info->score_activation != RP_ACT_NONE)
        scores = rp_graph_activation(graph, "scores", logits, info->score_activation);
    rp_graph_output(graph, "logits", logits, RP_ROWS_SEQS, info->n_labels);
    rp_graph_output(graph, "scores", scores, RP_ROWS_SEQS, info->n_labels);
    return RP_OK;
}

static rp_status build_classifier(struct load *l, rp_error *err)
{
    rp_value pooled = -1;
    RP_TRY(read_labels(l, err));
    const rp_value logits = l->family->kind->classify(&l->build, l->family, &l->any, l->last,
                                                      l->model->info.n_labels, &pooled);
    if ((l->flags & RP_MODEL_ALL_OUTPUTS) && l->family->pooled_head)
        rp_graph_output(l->model->graph, "pooler", pooled, RP_ROWS_SEQS,
                        (size_t)l->any.body.hidden);
    return add_scores(l, logits, err);
}

/* ---- language models --------------------------------------------------------------------------
 */

/* The two answers: those of the LogitScore module, else "yes" and "no".  Without a tokenizer there
 * are no words, and all of the vocabulary is given. */
static rp_status find_answers(struct load *l, int64_t ids[2], rp_error *err)
{
    static const char *const words[] = {"yes", "no"};
    const struct rp_folder *folder = &l->model->folder;
    const struct rp_module *module = logit_score(folder);
    bool there;
    if (module) {
        ids[0] = module->yes;
        ids[1] = module->no;
        return RP_OK;
    }
    RP_TRY(rp_file_exists(folder->transformer, "tokenizer.json", &there, err));
    if (!there)
        return rp_notes_add(&l->model->notes, err,
                            "the folder has no tokenizer.json: the logits are those of the whole "
                            "vocabulary at the last token");
    RP_TRY(rp_vocabulary_find(folder->transformer, 2, words, ids, err));
    return rp_notes_add(&l->model->notes, err,
                        "the score is the logit of \"yes\" less that of \"no\" at the last token");
}

static rp_status build_language_model(struct load *l, rp_error *err)
{
    int64_t ids[2] = {-1, -1};
    const int64_t vocab = l->any.body.vocab;
    RP_TRY(find_answers(l, ids, err));
    if (ids[0] >= vocab || ids[1] >= vocab)
        return rp_fail(err, RP_ERR_FORMAT,
                       "%s: vocab_size is %" PRId64 ", but the answers are tokens %" PRId64
                       " and %" PRId64,
                       l->config.path, vocab, ids[0], ids[1]);
    l->model->info.n_labels = ids[0] >= 0 ? 1 : (size_t)vocab;
    return add_scores(l, l->family->kind->predict(&l->build, &l->any, l->last, ids[0], ids[1]),
                      err);
}

/* ---- embedders --------------------------------------------------------------------------------
 */

/* What a folder without modules is read as. */
static rp_status default_pooling(struct load *l, rp_error *err)
{
    struct rp_folder *folder = &l->model->folder;
    if (folder->n_modules > 0)
        return RP_OK;
    const rp_pooling mode = l->family->kind->pooling;
    folder->modules[0] = (struct rp_module){
        .kind = RP_MODULE_POOLING, .modes = {mode}, .n_modes = 1, .include_prompt = true};
    folder->n_modules = 1;
    return rp_notes_add(&l->model->notes, err,
                        "the folder does not say how to pool: the %s "
                        "taken, without normalisation",
                        mode == RP_POOL_MEAN ? "mean of all tokens is" : "last token's row is");
}

static rp_status build_embedder(struct load *l, rp_error *err)
{
    rp_model *model = l->model;
    rp_model_info *info = &model->info;
    rp_value x = -1;
    RP_TRY(default_pooling(l, err));
    if ((l->flags & RP_MODEL_ALL_OUTPUTS) && l->family->has_pooler) {
        const rp_value pooler = rp_encoder_pooler(&l->build, &l->any.encoder, l->last);
        if (pooler >= 0)
            rp_graph_output(model->graph, "pooler", pooler, RP_ROWS_SEQS,
                            (size_t)l->any.body.hidden);
    }
    RP_TRY(rp_chain_build(&l->build, &model->folder, (uint64_t)l->any.body.hidden, l->last,
                          &model->notes, &l->chain, &x, err));
    for (size_t i = 0; i < model->folder.n_modules; i++)
        if (model->folder.modules[i].kind == RP_MODULE_POOLING)
            rp_folder_pooling_text(&model->folder.modules[i], model->pooling);
    if (l->chain.scores) {
        info->task = RP_TASK_CLASSIFY;
        info->n_labels = (size_t)l->chain.width;
        return add_scores(l, x, err);
    }
    info->dimension = (size_t)l->chain.width;
    info->normalized = l->chain.normalized;
    rp_graph_output(model->graph, "embedding", x, RP_ROWS_SEQS, (size_t)l->chain.width);
    return RP_OK;
}

/* ---- decision scorers -------------------------------------------------------------------------
 */

#define DECISION_OUTPUTS (RP_MODEL_LOGITS | RP_MODEL_ACT | RP_MODEL_POOLED)

/* A folder of modules pools its rows, whatever tensors it has. */
static rp_status recognise_decision(struct load *l, rp_error *err)
{
    rp_model *model = l->model;
    if (model->folder.n_modules == 0 && rp_decision_is(&model->decision, &l->config, l->tensors)) {
        model->info.task = RP_TASK_DECIDE;
        return rp_decision_configure(&model->decision, &l->config, l->tensors, &l->any.body, err);
    }
    if (l->flags & DECISION_OUTPUTS)
        return rp_fail(err, RP_ERR_INVALID,
                       "%s: this is no decision scorer, and only one has the outputs asked for "
                       "(flags 0x%x)",
                       l->config.path, l->flags);
    return RP_OK;
}

static rp_status build_decision(struct load *l, rp_error *err)
{
    rp_model *model = l->model;
    const size_t hidden = (size_t)l->any.body.hidden;
    const bool all = l->flags & RP_MODEL_ALL_OUTPUTS;
    const unsigned flags = all                           ? DECISION_OUTPUTS
                           : l->flags & DECISION_OUTPUTS ? l->flags
                                                         : RP_MODEL_LOGITS | RP_MODEL_ACT;
    struct rp_decision_values v;
    rp_decision_build(&l->build, &model->decision, &l->any.modernbert, &v);
    if (all)
        rp_graph_output(model->graph, "last", v.last, RP_ROWS_TOKENS, hidden);
    if (flags & RP_MODEL_LOGITS)
        rp_graph_output(model->graph, "logits", v.logits, RP_ROWS_MARKERS, 1);
    if (all)
        rp_graph_output(model->graph, "features", v.features, RP_ROWS_SEQS, hidden + 4);
    if (flags & RP_MODEL_ACT)
        rp_graph_output(model->graph, "act", v.act, RP_ROWS_SEQS, 2);
    if (flags & RP_MODEL_POOLED)
        rp_graph_output(model->graph, "pooled", v.pooled, RP_ROWS_SEQS, hidden);
    model->info.n_question_types = (size_t)model->decision.types;
    model->info.dimension = flags & RP_MODEL_POOLED ? hidden : 0;
    RP_TRY(rp_build_finish(&l->build, err));
    return rp_decision_refuse_extra(l->tensors, err);
}

/* ---- split encoders ---------------------------------------------------------------------------
 */

static rp_status describe_split(struct load *l, rp_error *err)
{
    rp_model *model = l->model;
    const struct rp_split *split = &model->split;
    l->any.modernbert = split->towers;
    l->config.model_type = RP_SPLIT_FAMILY;
    l->config.architecture = split->id;
    RP_TRY(describe_body(l, err));
    model->info.task = RP_TASK_DECIDE;
    model->info.n_question_types = RP_DECISION_TYPES;
    model->info.max_length = split->info.max_question_tokens;
    model->info.max_length_source = RP_SPLIT_FILE ":question_tower.max_tokens";
    return RP_OK;
}

static rp_status check_split_flags(const struct load *l, rp_error *err)
{
    const unsigned others = l->flags & (RP_MODEL_ACT | RP_MODEL_POOLED);
    if (!others)
        return RP_OK;
    return rp_fail(err, RP_ERR_INVALID, "%s: a split encoder has logits only, and %s",
                   l->model->split.path,
                   others & RP_MODEL_ACT ? "no act head" : "no pooled vector of a question");
}

static rp_status load_split(struct load *l, const char *path, rp_error *err)
{
    rp_model *model = l->model;
    RP_TRY(check_split_flags(l, err));
    RP_TRY(copy(path, &model->folder.transformer, err));
    RP_TRY(rp_split_configure(&model->split, err));
    RP_TRY(describe_split(l, err));
    RP_TRY(open_tensors(l, err));
    for (int i = RP_PART_MAIN + 1; i < RP_SPLIT_N_PARTS; i++)
        RP_TRY(rp_graph_create(&model->parts[i], err));
    rp_split_build(&l->build, &model->split, model->parts, l->flags & RP_MODEL_ALL_OUTPUTS);
    return rp_split_check_tensors(&l->build, err);
}

/* ---- loading ----------------------------------------------------------------------------------
 */

/* Compiling a plan checks every shape again and converts every weight that the graph uses. */
static rp_status prepare_graph(struct load *l, const rp_graph *graph, rp_error *err)
{
    const rp_bucket bucket = {.tokens = 16, .seqs = 1};
    rp_plan_options options;
    rp_plan *plan;
    rp_plan_options_init(&options);
    options.pool = l->pool;
    RP_TRY(rp_plan_compile(graph, l->model->weights, &bucket, &options, &plan, err));
    rp_plan_destroy(plan);
    return RP_OK;
}

static rp_status prepare(struct load *l, rp_error *err)
{
    for (size_t i = 0; i < RP_SPLIT_N_PARTS; i++)
        if (l->model->parts[i])
            RP_TRY(prepare_graph(l, l->model->parts[i], err));
    return RP_OK;
}

static rp_status quantize_graphs(struct load *l, const rp_quantize_options *options, rp_error *err)
{
    rp_model *model = l->model;
    return model->parts[RP_PART_STATE]
               ? rp_split_quantize(&model->split, model->parts, model->weights, options, err)
               : rp_weights_quantize(model->weights, model->graph, options, err);
}

static rp_status quantize(struct load *l, const char *folder, rp_error *err)
{
    rp_quantize_options options;
    struct rp_smoothing smoothing;
    bool from_file;
    rp_quantize_options_init(&options);
    options.precision = l->options->precision;
    options.keep = l->options->keep_fp32;
    options.pool = l->pool;
    RP_TRY(rp_smoothing_open(folder, l->options->smoothing, &smoothing, &from_file, err));
    if (from_file) {
        options.factors = rp_smoothing_factors;
        options.factors_context = &smoothing;
    }
    rp_status s =
        copy(from_file ? smoothing.source : "a run of random ids", &l->model->smoothing, err);
    if (s == RP_OK)
        s = quantize_graphs(l, &options, err);
    rp_smoothing_close(&smoothing);
    return s;
}

static rp_status build(struct load *l, rp_error *err)
{
    if (l->model->info.task == RP_TASK_DECIDE)
        return build_decision(l, err);
    build_body(l);
    if (l->predicts)
        return build_language_model(l, err);
    return l->model->info.task == RP_TASK_CLASSIFY ? build_classifier(l, err)
                                                   : build_embedder(l, err);
}

/* Only what has one score ranks pairs. */
static rp_status find_prompt(struct load *l, rp_error *err)
{
    rp_model *model = l->model;
    if (model->info.task != RP_TASK_CLASSIFY || model->info.n_labels != 1)
        return RP_OK;
    return rp_prompt_find(&model->folder, model->family, l->predicts, &model->prompt, &model->notes,
                          err);
}

static rp_status load_other(struct load *l, const char *path, rp_error *err)
{
    rp_model *model = l->model;
    RP_TRY(rp_folder_open(path, &model->notes, &model->folder, err));
    RP_TRY(rp_decision_open(&model->folder, &model->decision, err));
    RP_TRY(configure(l, err));
    RP_TRY(open_tensors(l, err));
    RP_TRY(recognise_decision(l, err));
    RP_TRY(rp_config_note_unknown(&l->config, &model->notes, err));
    RP_TRY(build(l, err));
    RP_TRY(rp_build_finish(&l->build, err));
    RP_TRY(name_hidden_states(l, err));
    RP_TRY(rp_build_note_unused(l->tensors, &model->notes, err));
    return find_prompt(l, err);
}

static rp_status load_folder(struct load *l, const char *path, rp_error *err)
{
    rp_model *model = l->model;
    RP_TRY(rp_split_open(path, &model->split, err));
    RP_TRY(model->split.json.object ? load_split(l, path, err) : load_other(l, path, err));
    RP_TRY(prepare(l, err));
    if (l->options->precision != RP_PRECISION_FP32)
        RP_TRY(quantize(l, path, err));
    model->info.precision = l->options->precision;
    model->info.smoothing = model->smoothing ? model->smoothing : "";
    model->info.n_parameters = l->build.n_parameters;
    model->info.n_notes = model->notes.n;
    return RP_OK;
}

static void unload(struct load *l)
{
    rp_build_fini(&l->build);
    rp_chain_close(&l->chain);
    rp_tensors_close(l->tensors);
    rp_config_close(&l->config);
}

rp_status rp_model_load(const char *folder, const rp_model_options *options, rp_model **out,
                        rp_error *err)
{
    rp_model_options o;
    rp_model_options_init(&o);
    if (!folder || !out)
        return rp_fail(err, RP_ERR_INVALID,
                       "rp_model_load needs a folder and a place for the model");
    /* "" + "config.json" would be the host's current folder: an unset variable, not a wish. */
    if (!folder[0])
        return rp_fail(err, RP_ERR_INVALID, "the name of the model folder is empty");
    if (options)
        memcpy(&o, options, options->struct_size < sizeof o ? options->struct_size : sizeof o);
    if (o.flags & ~(RP_MODEL_ALL_OUTPUTS | DECISION_OUTPUTS))
        return rp_fail(err, RP_ERR_INVALID, "rp_model_load: flags 0x%x hold bits that mean nothing",
                       o.flags);
    if ((int)o.precision < RP_PRECISION_FP32 || o.precision > RP_PRECISION_INT8)
        return rp_fail(err, RP_ERR_INVALID, "rp_model_load: there is no precision %d",
                       (int)o.precision);
    rp_model *model = calloc(1, sizeof *model);
    if (!model)
        return rp_fail(err, RP_ERR_NOMEM, "%s: no memory", folder);
    struct load l = {.model = model, .options = &o, .flags = o.flags, .pool = o.pool, .last = -1};
    const rp_fpenv callers = rp_fpenv_enter(); /* configurations hold numbers */
    const rp_status s = load_folder(&l, folder, err);
    rp_fpenv_leave(callers);
    unload(&l);
    if (s != RP_OK) {
        rp_model_destroy(model);
        return s;
    }
    *out = model;
    return RP_OK;
}

void rp_model_destroy(rp_model *model)
{
    if (!model)
        return;
    for (size_t i = 0; model->labels && i < model->info.n_labels; i++)
        free(model->labels[i]);
    free(model->labels);
    free(model->hidden_names);
    free(model->family);
    free(model->architecture);
    free(model->smoothing);
    for (size_t i = 0; i < RP_SPLIT_N_PARTS; i++)
        rp_graph_destroy(model->parts[i]);
    rp_weights_destroy(model->weights);
    rp_notes_fini(&model->notes);
    rp_decision_close(&model->decision);
    rp_split_close(&model->split);
    rp_folder_close(&model->folder);
    free(model);
}

/* ---- looking at a model -----------------------------------------------------------------------
 */

void rp_model_get_info(const rp_model *model, rp_model_info *out)
{
    const size_t size = out->struct_size < sizeof *out ? out->struct_size : sizeof *out;
    const size_t said = out->struct_size;
    memcpy(out, &model->info, size);
    out->struct_size = said;
}

const char *rp_model_note(const rp_model *model, size_t i)
{
    return i < model->notes.n ? model->notes.text[i] : NULL;
}

const char *rp_model_label(const rp_model *model, size_t i)
{
    return model->labels && i < model->info.n_labels ? model->labels[i] : NULL;
}

const char *rp_model_question_type(const rp_model *model, size_t i)
{
    return model->info.n_question_types == RP_DECISION_TYPES && i < RP_DECISION_TYPES
               ? rp_decision_type_names[i]
               : NULL;
}

float rp_model_temperature(const rp_model *model, size_t question_type, size_t n_options)
{
    return rp_decision_temperature(&model->decision, question_type, n_options);
}

const char *rp_model_prompt(const rp_model *model, const char *name)
{
    const struct rp_folder *f = &model->folder;
    const char *wanted = name ? name : f->default_prompt;
    for (size_t i = 0; wanted && i < f->n_prompts; i++)
        if (strcmp(f->prompt_names[i], wanted) == 0)
            return f->prompt_texts[i];
    return NULL;
}

rp_status rp_model_pair_prompt(const rp_model *model, const rp_pair_prompt **out, rp_error *err)
{
    if (model->prompt.foreign)
        return rp_fail(err, RP_ERR_UNSUPPORTED,
                       "%s: the folder's chat template is not Qwen3-Reranker's, the one prompt of "
                       "generative rerankers that is known",
                       model->architecture);
    *out = model->prompt.there ? &model->prompt.pair : NULL;
    return RP_OK;
}

const rp_graph *rp_model_graph(const rp_model *model)
{
    return model->graph;
}

const rp_graph *rp_model_part(const rp_model *model, rp_part part)
{
    return (unsigned)part < RP_SPLIT_N_PARTS ? model->parts[part] : NULL;
}

bool rp_model_get_split(const rp_model *model, rp_split_info *out)
{
    const rp_split_info *info = &model->split.info;
    const size_t said = out->struct_size;
    if (!model->split.json.object)
        return false;
    memcpy(out, info, said < sizeof *info ? said : sizeof *info);
    out->struct_size = said;
    return true;
}

rp_weights *rp_model_weights(const rp_model *model)
{
    return model->weights;
}

const char *rp_model_hidden_name(const rp_model *model, size_t layer)
{
    return layer < model->n_hidden ? model->hidden_names[layer] : NULL;
}
