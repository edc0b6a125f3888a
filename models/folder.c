/* See folder.h. */
#include "models/folder.h"

#include "models/file.h"
#include "models/json.h"
#include "models/module.h"
#include "pool/error.h"

#include <stdlib.h>
#include <string.h>

/* A copy of a string in a file; RP_OK with NULL for NULL. */
static rp_status copy(const char *text, char **out, rp_error *err)
{
    free(*out);
    *out = NULL;
    if (text && !(*out = strdup(text)))
        return rp_fail(err, RP_ERR_NOMEM, "no memory for a string");
    return RP_OK;
}

/* ---- modules.json -----------------------------------------------------------------------------
 */

/* The class is the last part of its path: sentence_transformers.models.Pooling before version 6,
 * sentence_transformers.sentence_transformer.modules.pooling.Pooling from then on. */
static rp_status module_kind(const char *file, const char *type, enum rp_module_kind *out,
                             rp_error *err)
{
    static const struct {
        const char *name;
        enum rp_module_kind kind;
    } kinds[] = {
        {"Transformer", RP_MODULE_TRANSFORMER},
        {"Pooling", RP_MODULE_POOLING},
        {"Dense", RP_MODULE_DENSE},
        {"LayerNorm", RP_MODULE_LAYER_NORM},
        {"Normalize", RP_MODULE_NORMALIZE},
        {"Dropout", RP_MODULE_DROPOUT},
        {"LogitScore", RP_MODULE_LOGIT_SCORE},
        {"CausalScoreHead", RP_MODULE_LOGIT_SCORE}, /* its name before */
    };
    char shown[RP_SHOWN_BYTES];
    const char *dot = strrchr(type, '.');
    const bool theirs = strncmp(type, "sentence_transformers.", 22) == 0;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (theirs && strcmp(dot + 1, kinds[i].name) == 0) {
            *out = kinds[i].kind;
            return RP_OK;
        }
    return rp_fail(err, RP_ERR_UNSUPPORTED,
                   "%s: module type \"%s\" is none of sentence_transformers' Transformer, Pooling, "
                   "Dense, LayerNorm, Normalize, Dropout, LogitScore",
                   file, rp_show(type, shown));
}

static rp_status add_module(struct rp_folder *f, const char *file, size_t i, json_t *entry,
                            struct rp_notes *notes, rp_error *err)
{
    const struct rp_json json = {.file = file, .object = entry};
    const char *path = "", *type;
    char shown[RP_SHOWN_BYTES];
    struct rp_module m = {.bias = true, .include_prompt = true};
    if (!json_is_object(entry))
        return rp_fail(err, RP_ERR_FORMAT, "%s: entry %zu is not an object", file, i);
    RP_TRY(rp_json_string(&json, "type", RP_JSON_REQUIRED, &type, err));
    RP_TRY(rp_json_string(&json, "path", RP_JSON_OPTIONAL, &path, err));
    RP_TRY(module_kind(file, type, &m.kind, err));
    if (!rp_path_stays(path, true))
        return rp_fail(err, RP_ERR_FORMAT, "%s: path \"%s\" of module %zu leads out of the folder",
                       file, rp_show(path, shown), i);
    if ((i == 0) != (m.kind == RP_MODULE_TRANSFORMER))
        return rp_fail(err, RP_ERR_UNSUPPORTED,
                       "%s: module %zu is a %s; the first must be the one "
                       "Transformer",
                       file, i, strrchr(type, '.') + 1);
    if (!(m.folder = rp_path_join(f->root, path)))
        return rp_fail(err, RP_ERR_NOMEM, "%s: no memory", file);
    if (i == 0) {
        f->transformer = m.folder;
        return RP_OK;
    }
    struct rp_module *slot = &f->modules[f->n_modules++];
    *slot = m;
    return rp_module_configure(slot, notes, err);
}

/* Pooling first, once; what works on the pooled row after it; scores last.  A language model's
 * answer is read without any of them. */
static rp_status check_order(const struct rp_folder *f, const char *file, rp_error *err)
{
    bool pooled = false;
    for (size_t i = 0; i < f->n_modules; i++)
        if (f->modules[i].kind == RP_MODULE_LOGIT_SCORE)
            return f->n_modules == 1
                       ? RP_OK
                       : rp_fail(err, RP_ERR_UNSUPPORTED,
                                 "%s: module %zu is a LogitScore, but not the only one", file,
                                 i + 1);
    for (size_t i = 0; i < f->n_modules; i++) {
        const struct rp_module *m = &f->modules[i];
        if (m->kind == RP_MODULE_DROPOUT)
            continue;
        if (pooled == (m->kind == RP_MODULE_POOLING))
            return rp_fail(err, RP_ERR_UNSUPPORTED, "%s: module %zu %s", file, i + 1,
                           pooled ? "is a second Pooling" : "comes before the Pooling");
        pooled = true;
        if (m->to_scores && i + 1 < f->n_modules)
            return rp_fail(err, RP_ERR_UNSUPPORTED,
                           "%s: module %zu makes scores, but is not the last", file, i + 1);
    }
    return RP_OK;
}

static rp_status read_modules(struct rp_folder *f, const char *file, const json_t *root,
                              struct rp_notes *notes, rp_error *err)
{
    if (!json_is_array(root) || json_array_size(root) == 0)
        return rp_fail(err, RP_ERR_FORMAT, "%s: a list of modules is due", file);
    if (json_array_size(root) > RP_FOLDER_MAX_MODULES)
        return rp_fail(err, RP_ERR_LIMIT, "%s: %zu modules, more than %d", file,
                       json_array_size(root), RP_FOLDER_MAX_MODULES);
    size_t i;
    json_t *entry;
    json_array_foreach(root, i, entry)
    {
        RP_TRY(add_module(f, file, i, entry, notes, err));
    }
    return check_order(f, file, err);
}

static rp_status open_modules(struct rp_folder *f, struct rp_notes *notes, rp_error *err)
{
    RP_TRY(rp_file_exists(f->root, "modules.json", &f->has_modules, err));
    if (!f->has_modules)
        return copy(f->root, &f->transformer, err);
    char *path = rp_path_join(f->root, "modules.json");
    json_t *root = NULL;
    rp_status s = path ? rp_json_read(path, 0, &root, err)
                       : rp_fail(err, RP_ERR_NOMEM, "%s: no memory", f->root);
    if (s == RP_OK)
        s = read_modules(f, path, root, notes, err);
    json_decref(root);
    free(path);
    return s;
}

/* ---- config_sentence_transformers.json --------------------------------------------------------
 */

static rp_status read_prompts(struct rp_folder *f, const struct rp_json *json, rp_error *err)
{
    json_t *prompts = json_object_get(json->object, "prompts");
    const char *name, *chosen = NULL;
    json_t *text;
    RP_TRY(rp_json_string(json, "default_prompt_name", RP_JSON_OPTIONAL, &chosen, err));
    if (prompts && !json_is_object(prompts) && !json_is_null(prompts))
        return rp_fail(err, RP_ERR_FORMAT, "%s: key \"prompts\" is not a map of names to texts",
                       json->file);
    const size_t n = json_object_size(prompts);
    f->prompt_names = calloc(n ? n : 1, sizeof *f->prompt_names);
    f->prompt_texts = calloc(n ? n : 1, sizeof *f->prompt_texts);
    if (!f->prompt_names || !f->prompt_texts)
        return rp_fail(err, RP_ERR_NOMEM, "%s: no memory for %zu prompts", json->file, n);
    json_object_foreach(prompts, name, text)
    {
        char shown[RP_SHOWN_BYTES];
        if (!json_is_string(text))
            return rp_fail(err, RP_ERR_FORMAT, "%s: prompt \"%s\" is not a text", json->file,
                           rp_show(name, shown));
        const size_t i = f->n_prompts++;
        RP_TRY(copy(name, &f->prompt_names[i], err));
        RP_TRY(copy(json_string_value(text), &f->prompt_texts[i], err));
    }
    if (chosen && !json_object_get(prompts, chosen)) {
        char shown[RP_SHOWN_BYTES];
        return rp_fail(err, RP_ERR_FORMAT, "%s: default_prompt_name \"%s\" is none of the prompts",
                       json->file, rp_show(chosen, shown));
    }
    return copy(chosen, &f->default_prompt, err);
}

static rp_status read_similarity(struct rp_folder *f, const struct rp_json *json, rp_error *err)
{
    static const struct {
        const char *name;
        rp_similarity similarity;
    } known[] = {{"cosine", RP_SIM_COSINE},
                 {"dot", RP_SIM_DOT},
                 {"euclidean", RP_SIM_EUCLIDEAN},
                 {"manhattan", RP_SIM_MANHATTAN}};
    const char *name = "cosine";
    char shown[RP_SHOWN_BYTES];
    RP_TRY(rp_json_string(json, "similarity_fn_name", RP_JSON_OPTIONAL, &name, err));
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(name, known[i].name) == 0) {
            f->similarity = known[i].similarity;
            return RP_OK;
        }
    return rp_fail(err, RP_ERR_UNSUPPORTED,
                   "%s: similarity_fn_name \"%s\" is none of cosine, dot, euclidean, manhattan",
                   json->file, rp_show(name, shown));
}

static rp_status open_settings(struct rp_folder *f, rp_error *err)
{
    static const char name[] = "config_sentence_transformers.json";
    bool there;
    RP_TRY(rp_file_exists(f->root, name, &there, err));
    if (!there)
        return RP_OK;
    char *path = rp_path_join(f->root, name);
    if (!path)
        return rp_fail(err, RP_ERR_NOMEM, "%s: no memory", f->root);
    struct rp_json json;
    rp_status s = rp_json_open(path, 0, &json, err);
    if (s == RP_OK) {
        const char *activation = NULL;
        s = read_prompts(f, &json, err);
        if (s == RP_OK)
            s = read_similarity(f, &json, err);
        if (s == RP_OK)
            s = rp_json_string(&json, "activation_fn", RP_JSON_OPTIONAL, &activation, err);
        if (s == RP_OK)
            s = copy(activation, &f->activation_fn, err);
        rp_json_close(&json);
    }
    free(path);
    return s;
}

/* ---- the transformer's own settings -----------------------------------------------------------
 */

static rp_status read_task(struct rp_folder *f, const struct rp_json *json, rp_error *err)
{
    const char *task = NULL;
    char shown[RP_SHOWN_BYTES];
    RP_TRY(rp_json_string(json, "transformer_task", RP_JSON_OPTIONAL, &task, err));
    if (!task)
        return RP_OK;
    if (strcmp(task, "feature-extraction") == 0)
        f->task = RP_FOLDER_EMBEDS;
    else if (strcmp(task, "sequence-classification") == 0)
        f->task = RP_FOLDER_CLASSIFIES;
    else if (strcmp(task, "text-generation") == 0)
        f->task = RP_FOLDER_GENERATES;
    else
        return rp_fail(err, RP_ERR_UNSUPPORTED,
                       "%s: transformer_task \"%s\" is none of feature-extraction, "
                       "sequence-classification, text-generation",
                       json->file, rp_show(task, shown));
    return RP_OK;
}

static rp_status read_transformer(struct rp_folder *f, const struct rp_json *json,
                                  const char *source, struct rp_notes *notes, rp_error *err)
{
    bool lower = false;
    RP_TRY(
        rp_json_whole(json, "max_seq_length", RP_JSON_OPTIONAL, 1, INT32_MAX, &f->max_length, err));
    if (f->max_length > 0)
        f->max_length_source = source;
    RP_TRY(rp_json_bool(json, "do_lower_case", RP_JSON_OPTIONAL, &lower, err));
    if (lower)
        RP_TRY(rp_notes_add(notes, err,
                            "%s: do_lower_case: texts are to be put in lower case before "
                            "they are tokenised",
                            json->file));
    return read_task(f, json, err);
}

/* The name says which class wrote it; the reference tries them in this order. */
static const struct {
    const char *file, *source;
} transformer_files[] = {
    {"sentence_bert_config.json", "sentence_bert_config.json:max_seq_length"},
    {"sentence_roberta_config.json", "sentence_roberta_config.json:max_seq_length"},
    {"sentence_distilbert_config.json", "sentence_distilbert_config.json:max_seq_length"},
    {"sentence_camembert_config.json", "sentence_camembert_config.json:max_seq_length"},
    {"sentence_albert_config.json", "sentence_albert_config.json:max_seq_length"},
    {"sentence_xlm-roberta_config.json", "sentence_xlm-roberta_config.json:max_seq_length"},
    {"sentence_xlnet_config.json", "sentence_xlnet_config.json:max_seq_length"},
};

static rp_status open_transformer(struct rp_folder *f, struct rp_notes *notes, rp_error *err)
{
    size_t i = 0;
    bool there = false;
    for (; i < sizeof transformer_files / sizeof *transformer_files; i++) {
        RP_TRY(rp_file_exists(f->transformer, transformer_files[i].file, &there, err));
        if (there)
            break;
    }
    if (!there)
        return RP_OK;
    char *path = rp_path_join(f->transformer, transformer_files[i].file);
    if (!path)
        return rp_fail(err, RP_ERR_NOMEM, "%s: no memory", f->transformer);
    struct rp_json json;
    rp_status s = rp_json_open(path, 0, &json, err);
    if (s == RP_OK) {
        s = read_transformer(f, &json, transformer_files[i].source, notes, err);
        rp_json_close(&json);
    }
    free(path);
    return s;
}

/* tokenizer_config.json says a length of 1e30 when it knows none, as a whole number of 31 digits.
 */
static rp_status open_tokenizer_config(struct rp_folder *f, rp_error *err)
{
    static const char name[] = "tokenizer_config.json";
    bool there;
    if (f->max_length > 0)
        return RP_OK;
    RP_TRY(rp_file_exists(f->transformer, name, &there, err));
    if (!there)
        return RP_OK;
    char *path = rp_path_join(f->transformer, name);
    if (!path)
        return rp_fail(err, RP_ERR_NOMEM, "%s: no memory", f->transformer);
    struct rp_json json;
    double length = 0;
    rp_status s = rp_json_open(path, RP_JSON_AS_REAL, &json, err);
    if (s == RP_OK) {
        s = rp_json_real(&json, "model_max_length", RP_JSON_OPTIONAL, &length, err);
        rp_json_close(&json);
    }
    if (s == RP_OK && length != 0 && length <= 1e9) {
        f->max_length = length >= 1 ? (int64_t)length : 0;
        f->max_length_source = "tokenizer_config.json:model_max_length";
        if ((double)f->max_length != length)
            s = rp_fail(err, RP_ERR_FORMAT,
                        "%s: key \"model_max_length\" is not a whole number from 1 on", path);
    }
    free(path);
    return s;
}

/* ---- all of it --------------------------------------------------------------------------------
 */

rp_status rp_folder_open(const char *path, struct rp_notes *notes, struct rp_folder *out,
                         rp_error *err)
{
    struct rp_folder f = {.max_length_source = ""};
    rp_status s = copy(path, &f.root, err);
    if (s == RP_OK)
        s = open_modules(&f, notes, err);
    if (s == RP_OK)
        s = open_settings(&f, err);
    if (s == RP_OK)
        s = open_transformer(&f, notes, err);
    if (s == RP_OK)
        s = open_tokenizer_config(&f, err);
    for (size_t i = 0; i < f.n_modules && s == RP_OK; i++)
        if (!f.modules[i].include_prompt && f.n_prompts > 0)
            s = rp_fail(err, RP_ERR_UNSUPPORTED,
                        "%s: include_prompt false: leaving a prompt's tokens out "
                        "of the pooling is not done",
                        f.modules[i].folder);
    if (s != RP_OK) {
        rp_folder_close(&f);
        return s;
    }
    *out = f;
    return RP_OK;
}

void rp_folder_close(struct rp_folder *folder)
{
    for (size_t i = 0; i < folder->n_modules; i++)
        free(folder->modules[i].folder);
    for (size_t i = 0; i < folder->n_prompts; i++) {
        free(folder->prompt_names[i]);
        free(folder->prompt_texts[i]);
    }
    free(folder->prompt_names);
    free(folder->prompt_texts);
    free(folder->default_prompt);
    free(folder->activation_fn);
    free(folder->transformer);
    free(folder->root);
    *folder = (struct rp_folder){0};
}
