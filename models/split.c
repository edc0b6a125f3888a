/* See split.h. */
#include "models/split.h"

#include "models/decision.h"
#include "models/file.h"
#include "plan/text.h"
#include "pool/error.h"

#include <rankplan/model.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEAD_DIM   64
#define POOLED_EPS 1e-12f    /* below it the mean of a state counts as 0 */
#define SCORE      1         /* the question type whose options are levels */
#define MAX_STATE  (1 << 20) /* tokens: questions need scratch for as many rows of a memory */
#define FEATURES   4         /* of where a level stands */

/* Names of wrong tensors, of each kind: all kinds have place in one message. */
#define NAMES_BYTES 110

/* ---- kime.json --------------------------------------------------------------------------------
 */

rp_status rp_split_open(const char *folder, struct rp_split *split, rp_error *err)
{
    bool found, laya;
    RP_TRY(rp_file_exists(folder, RP_DECISION_AGENT, &laya, err));
    RP_TRY(rp_file_exists(folder, RP_SPLIT_FILE, &found, err));
    if (!found || laya)
        return RP_OK;
    split->path = rp_path_join(folder, RP_SPLIT_FILE);
    if (!split->path)
        return rp_fail(err, RP_ERR_NOMEM, "no memory for a path");
    return rp_json_open(split->path, 0, &split->json, err);
}

void rp_split_close(struct rp_split *split)
{
    rp_json_close(&split->json);
    free(split->path);
    memset(split, 0, sizeof *split);
}

/* An object within another, with a record of the keys that were read. */
struct section {
    struct rp_json json;
    char where[RP_ERROR_MESSAGE_BYTES];
};

static rp_status open_section(const struct rp_json *in, const char *key, struct section *out,
                              rp_error *err)
{
    const json_t *value = rp_json_get(in, key);
    if (!value)
        return rp_fail(err, RP_ERR_MISSING, "%s: key \"%s\" is missing", in->file, key);
    if (!json_is_object(value))
        return rp_fail(err, RP_ERR_FORMAT, "%s: key \"%s\" is not an object", in->file, key);
    snprintf(out->where, sizeof out->where, "%s: %s", in->file, key);
    out->json = (struct rp_json){
        .file = out->where, .object = (json_t *)(uintptr_t)value, .seen = json_object()};
    return out->json.seen ? RP_OK : rp_fail(err, RP_ERR_NOMEM, "%s: no memory", out->where);
}

/* Ends the record; a key that nobody read might change what the model computes. */
static rp_status close_section(struct section *s, rp_status status, rp_error *err)
{
    char shown[RP_SHOWN_BYTES];
    const char *key;
    json_t *value;
    if (status == RP_OK)
        json_object_foreach(s->json.object, key, value)
        {
            if (!json_object_get(s->json.seen, key)) {
                status = rp_fail(err, RP_ERR_UNSUPPORTED, "%s: key \"%s\" is not known",
                                 s->json.file, rp_show(key, shown));
                break;
            }
        }
    json_decref(s->json.seen);
    return status;
}

/* Whole numbers of a section, all of them required. */
struct number {
    const char *key;
    int64_t min, max;
    int64_t *value;
};

static rp_status read_numbers(const struct rp_json *json, size_t n, const struct number *numbers,
                              rp_error *err)
{
    for (size_t i = 0; i < n; i++)
        RP_TRY(rp_json_whole(json, numbers[i].key, RP_JSON_REQUIRED, numbers[i].min, numbers[i].max,
                             numbers[i].value, err));
    return RP_OK;
}

#define COUNT(a) (sizeof(a) / sizeof *(a))

static rp_status read_dims(struct rp_split *split, const struct rp_json *json, rp_error *err)
{
    struct rp_body *b = &split->towers.body;
    const struct number numbers[] = {{"d", 1, INT32_MAX, &b->hidden},
                                     {"heads", 1, INT32_MAX / 3 / HEAD_DIM, &b->heads},
                                     {"head_dim", 1, INT32_MAX, &b->head_dim},
                                     {"inter", 1, INT32_MAX / 2, &b->intermediate},
                                     {"vocab", 1, INT32_MAX, &b->vocab}};
    RP_TRY(read_numbers(json, COUNT(numbers), numbers, err));
    if (b->head_dim != HEAD_DIM || b->hidden != b->heads * HEAD_DIM)
        return rp_fail(err, RP_ERR_FORMAT,
                       "%s: key \"d\" is %" PRId64 ", which is not %" PRId64
                       " heads of %d (\"head_dim\" is %" PRId64 ")",
                       json->file, b->hidden, b->heads, HEAD_DIM, b->head_dim);
    return RP_OK;
}

/* The number of a token that has to be in the vocabulary. */
static rp_status read_token(const struct rp_split *split, const struct rp_json *json,
                            const char *key, int32_t *id, rp_error *err)
{
    int64_t x = 0;
    RP_TRY(rp_json_whole(json, key, RP_JSON_REQUIRED, 0, INT32_MAX, &x, err));
    if (x >= split->towers.body.vocab)
        return rp_fail(err, RP_ERR_FORMAT,
                       "%s: key \"%s\" is %" PRId64 ", but the vocabulary has %" PRId64 " tokens",
                       json->file, key, x, split->towers.body.vocab);
    *id = (int32_t)x;
    return RP_OK;
}

static rp_status read_specials(struct rp_split *split, const struct rp_json *json, rp_error *err)
{
    rp_split_info *info = &split->info;
    RP_TRY(read_token(split, json, "opt", &info->opt_id, err));
    RP_TRY(read_token(split, json, "no", &info->no_id, err));
    RP_TRY(read_token(split, json, "yes", &info->yes_id, err));
    RP_TRY(read_token(split, json, "cls_s", &info->cls_s_id, err));
    return read_token(split, json, "cls_q", &info->cls_q_id, err);
}

static rp_status read_tokenizer(struct rp_split *split, const struct rp_json *json, rp_error *err)
{
    struct section specials;
    int32_t cls = 0, pad = 0;
    const char *kind = NULL; /* the tokenizer's own file says what it is */
    RP_TRY(rp_json_string(json, "kind", RP_JSON_OPTIONAL, &kind, err));
    RP_TRY(read_token(split, json, "cls", &cls, err));
    RP_TRY(read_token(split, json, "sep", &split->info.sep_id, err));
    RP_TRY(read_token(split, json, "pad", &pad, err));
    split->towers.body.pad = pad;
    RP_TRY(open_section(json, "specials", &specials, err));
    return close_section(&specials, read_specials(split, &specials.json, err), err);
}

static rp_status read_state_tower(struct rp_split *split, const struct rp_json *json, rp_error *err)
{
    struct rp_modernbert *m = &split->towers;
    double theta[2] = {0, 0};
    int64_t window = 0, top = 0, max_tokens = 0, max_segments = 0;
    const struct number numbers[] = {
        {"layers", 1, INT32_MAX, &m->body.layers}, {"global_every", 0, INT32_MAX, &m->full_every},
        {"window", 0, INT32_MAX, &window},         {"segment_top_layers", 0, INT32_MAX, &top},
        {"max_tokens", 1, MAX_STATE, &max_tokens}, {"max_segments", 1, INT32_MAX, &max_segments}};
    RP_TRY(read_numbers(json, COUNT(numbers), numbers, err));
    RP_TRY(rp_rope_read_theta(json, "rope_theta_global", RP_JSON_REQUIRED, &theta[0], err));
    RP_TRY(rp_rope_read_theta(json, "rope_theta_local", RP_JSON_REQUIRED, &theta[1], err));
    m->full_every = m->full_every > 0 ? m->full_every : 1;
    if (window < 2 && m->full_every > 1 && m->body.layers > 1)
        return rp_fail(err, RP_ERR_UNSUPPORTED,
                       "%s: key \"window\" is %" PRId64 ": a token would see itself alone",
                       json->file, window);
    if (top > m->body.layers)
        return rp_fail(err, RP_ERR_FORMAT,
                       "%s: key \"segment_top_layers\" is %" PRId64 ", of %" PRId64 " layers",
                       json->file, top, m->body.layers);
    m->window = (int32_t)(window / 2);
    m->rope[RP_MODERNBERT_FULL] = rp_rope_plain(theta[0]);
    m->rope[RP_MODERNBERT_SLIDING] = rp_rope_plain(theta[1]);
    split->info.n_state_layers = (size_t)m->body.layers;
    split->info.n_top_layers = (size_t)top;
    split->info.max_state_tokens = (size_t)max_tokens;
    split->info.max_segments = (size_t)max_segments;
    return RP_OK;
}

static rp_status read_question_tower(struct rp_split *split, const struct rp_json *json,
                                     rp_error *err)
{
    const int64_t heads = split->towers.body.heads;
    int64_t max_options = 0, max_tokens = 0;
    const struct number numbers[] = {{"layers", 1, RP_SPLIT_MAX_LAYERS, &split->question_layers},
                                     {"kv_heads", 1, INT32_MAX, &split->kv_heads},
                                     {"max_options_per_chunk", 1, INT32_MAX, &max_options},
                                     {"max_tokens", 1, INT32_MAX, &max_tokens}};
    RP_TRY(read_numbers(json, COUNT(numbers), numbers, err));
    if (heads % split->kv_heads != 0)
        return rp_fail(err, RP_ERR_FORMAT,
                       "%s: key \"kv_heads\" is %" PRId64 ", which does not divide %" PRId64
                       " heads",
                       json->file, split->kv_heads, heads);
    if (2 * split->question_layers * split->kv_heads > INT32_MAX / HEAD_DIM)
        return rp_fail(err, RP_ERR_LIMIT,
                       "%s: %" PRId64 " layers with \"kv_heads\" %" PRId64
                       " make a memory that is too wide",
                       json->file, split->question_layers, split->kv_heads);
    split->info.n_question_layers = (size_t)split->question_layers;
    split->info.memory_width = (size_t)(2 * split->question_layers * split->kv_heads * HEAD_DIM);
    split->info.max_options = (size_t)max_options;
    split->info.max_question_tokens = (size_t)max_tokens;
    split->towers.body.positions = max_tokens;
    return RP_OK;
}

static rp_status check_kind(struct rp_split *split, const struct rp_json *json, rp_error *err)
{
    const struct {
        const char *key, *due;
        enum rp_json_need need;
    } words[] = {{"family", RP_SPLIT_FAMILY, RP_JSON_REQUIRED},
                 {"format", "kime/1", RP_JSON_OPTIONAL},
                 {"gelu", "erf", RP_JSON_OPTIONAL}};
    char shown[RP_SHOWN_BYTES];
    const char *version = NULL; /* of the checkpoint, for people */
    for (size_t i = 0; i < COUNT(words); i++) {
        const char *said = words[i].due;
        RP_TRY(rp_json_string(json, words[i].key, words[i].need, &said, err));
        if (strcmp(said, words[i].due) != 0)
            return rp_fail(err, RP_ERR_UNSUPPORTED, "%s: key \"%s\" is \"%s\", and not \"%s\"",
                           json->file, words[i].key, rp_show(said, shown), words[i].due);
    }
    RP_TRY(rp_json_string(json, "version", RP_JSON_OPTIONAL, &version, err));
    return rp_json_string(json, "id", RP_JSON_REQUIRED, &split->id, err);
}

static rp_status read_epsilon(struct rp_split *split, const struct rp_json *json, rp_error *err)
{
    double eps = 1e-5;
    RP_TRY(rp_json_real(json, "norm_eps", RP_JSON_OPTIONAL, &eps, err));
    split->towers.body.eps = (float)eps;
    if (!(split->towers.body.eps > 0 && eps < 1))
        return rp_fail(err, RP_ERR_FORMAT, "%s: key \"norm_eps\" is not above 0 and below 1",
                       json->file);
    return RP_OK;
}

static rp_status read_all(struct rp_split *split, const struct rp_json *json, rp_error *err)
{
    /* The vocabulary bounds the tokens, and the heads those of the memory: dims first. */
    static const struct {
        const char *key;
        rp_status (*read)(struct rp_split *, const struct rp_json *, rp_error *);
    } sections[] = {{"dims", read_dims},
                    {"tokenizer", read_tokenizer},
                    {"state_tower", read_state_tower},
                    {"question_tower", read_question_tower}};
    RP_TRY(check_kind(split, json, err));
    RP_TRY(read_epsilon(split, json, err));
    for (size_t i = 0; i < COUNT(sections); i++) {
        struct section s;
        RP_TRY(open_section(json, sections[i].key, &s, err));
        RP_TRY(close_section(&s, sections[i].read(split, &s.json, err), err));
    }
    return RP_OK;
}

rp_status rp_split_configure(struct rp_split *split, rp_error *err)
{
    struct section root = {
        .json = {.file = split->path, .object = split->json.object, .seen = json_object()}};
    split->towers.body.activation = RP_ACT_GELU;
    split->info.struct_size = sizeof split->info;
    if (!root.json.seen)
        return rp_fail(err, RP_ERR_NOMEM, "%s: no memory", split->path);
    return close_section(&root, read_all(split, &root.json, err), err);
}

/* ---- parts of the graphs ----------------------------------------------------------------------
 */

static uint64_t width_of(const struct rp_split *split)
{
    return (uint64_t)split->towers.body.hidden;
}

/* What more than one graph uses, asked for once so that what is missing is told once. */
struct shared {
    rp_weight tok, norm, segments;
    bool all; /* outputs */
};

static struct shared find_shared(struct rp_build *build, const struct rp_split *split, bool all)
{
    const uint64_t width = width_of(split);
    return (struct shared){
        .tok = rp_build_matrix(build, "embeddings.tok.weight",
                               "state.embeddings.tok_embeddings.weight",
                               (uint64_t)split->towers.body.vocab, width),
        .norm =
            rp_build_vector(build, "embeddings.norm.weight", "state.embeddings.norm.weight", width),
        .segments = rp_build_matrix(build, "state.segment_emb.weight", "state.segment_emb.weight",
                                    split->info.max_segments, width),
        .all = all};
}

static rp_value build_embeddings(struct rp_build *build, const struct rp_split *split,
                                 const struct shared *shared, const char *tower)
{
    const rp_embed_table table = {shared->tok, RP_INDEX_IDS, 0};
    char step[64];
    snprintf(step, sizeof step, "%s.embeddings.tok", tower);
    const rp_value x = rp_graph_embed(build->graph, step, 1, &table);
    snprintf(step, sizeof step, "%s.embeddings.norm", tower);
    return rp_graph_layer_norm(build->graph, step, x, shared->norm, -1, split->towers.body.eps);
}

static rp_value build_norm(struct rp_build *build, const struct rp_split *split, const char *step,
                           const char *tensor, rp_value x)
{
    return rp_build_norm_opt(build, step, tensor, x, width_of(split), false,
                             split->towers.body.eps);
}

/* ---- states -----------------------------------------------------------------------------------
 */

/* State layers first to end - 1. */
static rp_value build_layers(struct rp_build *build, const struct rp_split *split, size_t first,
                             size_t end, rp_value x)
{
    for (size_t i = first; i < end && !rp_body_lacks_enough(build); i++) {
        struct rp_layer_names l = {
            .tensors = "state.layers.", .steps = "state.", .layer = (int64_t)i};
        x = rp_modernbert_layer(build, &split->towers, &l, x);
    }
    return x;
}

/* Too many for a stack. */
struct memory_rows {
    struct rp_build_rows rows[2 * RP_SPLIT_MAX_LAYERS];
    char names[2 * RP_SPLIT_MAX_LAYERS][64];
};

/* Keys and values of all question layers as one product. */
static rp_weight memory_weight(struct rp_build *build, const struct rp_split *split)
{
    static const char *const which[] = {"Wk", "Wv"};
    const size_t n = 2 * (size_t)split->question_layers;
    struct memory_rows *m = calloc(1, sizeof *m);
    rp_error err;
    if (!m) {
        rp_build_fail(build, rp_fail(&err, RP_ERR_NOMEM, "no memory for names of tensors"), &err);
        return -1;
    }
    for (size_t i = 0; i < n; i++) {
        snprintf(m->names[i], sizeof m->names[i], "question.layers.%zu.cross.%s.weight", i / 2,
                 which[i % 2]);
        m->rows[i] = (struct rp_build_rows){.tensor = m->names[i],
                                            .rows = (uint64_t)split->kv_heads * HEAD_DIM};
    }
    const rp_weight w = rp_build_stack(build, "memory.weight", n, m->rows, width_of(split));
    free(m);
    return w;
}

/* What questions read of a state after its last layer. */
static void build_memory(struct rp_build *build, const struct rp_split *split,
                         const struct shared *shared, rp_value x)
{
    rp_graph *graph = build->graph;
    x = build_norm(build, split, "state.final_norm", "state.final_norm", x);
    const rp_value memory =
        rp_graph_gemm(graph, "memory", x, memory_weight(build, split), -1, RP_ACT_NONE, -1);
    rp_value pooled = rp_graph_pool(graph, "pooled.mean", x, RP_POOL_MEAN);
    pooled = rp_graph_l2_norm(graph, "pooled", pooled, POOLED_EPS);
    if (shared->all)
        rp_graph_output(graph, "last", x, RP_ROWS_TOKENS, width_of(split));
    rp_graph_output(graph, "memory", memory, RP_ROWS_TOKENS, split->info.memory_width);
    rp_graph_output(graph, "pooled", pooled, RP_ROWS_SEQS, width_of(split));
}

static void build_state(struct rp_build *build, const struct rp_split *split,
                        const struct shared *shared)
{
    const rp_value x = build_embeddings(build, split, shared, "state");
    build_memory(build, split, shared,
                 build_layers(build, split, 0, split->info.n_state_layers, x));
}

static size_t low_layers(const struct rp_split *split)
{
    return split->info.n_state_layers - split->info.n_top_layers;
}

static void build_segment(struct rp_build *build, const struct rp_split *split,
                          const struct shared *shared)
{
    rp_value x = build_embeddings(build, split, shared, "state");
    x = build_layers(build, split, 0, low_layers(split), x);
    rp_graph_output(build->graph, "low", x, RP_ROWS_TOKENS, width_of(split));
}

static void build_segments(struct rp_build *build, const struct rp_split *split,
                           const struct shared *shared)
{
    const rp_embed_table table = {shared->segments, RP_INDEX_TYPES, 0};
    const rp_value low = rp_graph_input(build->graph, "state.low", width_of(split));
    const rp_value numbers = rp_graph_embed(build->graph, "state.segment_emb", 1, &table);
    rp_value x = rp_graph_add(build->graph, "state.segments", low, numbers);
    x = build_layers(build, split, low_layers(split), split->info.n_state_layers, x);
    build_memory(build, split, shared, x);
}

/* ---- questions --------------------------------------------------------------------------------
 */

static rp_value build_attention(struct rp_build *build, const struct rp_split *split,
                                struct rp_layer_names *l, rp_value x)
{
    const struct rp_body *body = &split->towers.body;
    const uint64_t width = width_of(split);
    const rp_rope rope = {.n_heads = (int32_t)(2 * body->heads),
                          .head_dim = HEAD_DIM,
                          .theta = split->towers.rope[RP_MODERNBERT_FULL].theta,
                          .options = true};
    const rp_attention attention = {
        .n_heads = (int32_t)body->heads, .head_dim = HEAD_DIM, .rel_bias = -1, .options = true};
    rp_value a =
        build_norm(build, split, rp_layer_step(l, "attn.norm"), rp_layer_tensor(l, "attn_norm"), x);
    a = rp_build_linear_opt(build, rp_layer_step(l, "attn.qkv"), rp_layer_tensor(l, "attn.Wqkv"), a,
                            width, 3 * width, false, RP_ACT_NONE, -1);
    a = rp_graph_rope(build->graph, rp_layer_step(l, "attn.rope"), a, &rope);
    a = rp_graph_attention(build->graph, rp_layer_step(l, "attn.core"), a, &attention);
    return rp_build_linear_opt(build, rp_layer_step(l, "attn.out"), rp_layer_tensor(l, "attn.Wo"),
                               a, width, width, false, RP_ACT_NONE, x);
}

static rp_value build_cross(struct rp_build *build, const struct rp_split *split,
                            struct rp_layer_names *l, rp_value x)
{
    const uint64_t width = width_of(split);
    const int32_t kv = (int32_t)split->kv_heads * HEAD_DIM;
    const rp_cross_attention cross = {.n_heads = (int32_t)split->towers.body.heads,
                                      .head_dim = HEAD_DIM,
                                      .n_kv_heads = (int32_t)split->kv_heads,
                                      .memory_width = (int32_t)split->info.memory_width,
                                      .key_column = (int32_t)(2 * l->layer) * kv,
                                      .value_column = (int32_t)(2 * l->layer + 1) * kv,
                                      .max_memory = (int32_t)split->info.max_state_tokens};
    rp_value a = build_norm(build, split, rp_layer_step(l, "cross.norm"),
                            rp_layer_tensor(l, "cross_norm"), x);
    a = rp_build_linear_opt(build, rp_layer_step(l, "cross.q"), rp_layer_tensor(l, "cross.Wq"), a,
                            width, width, false, RP_ACT_NONE, -1);
    a = rp_graph_cross_attention(build->graph, rp_layer_step(l, "cross.core"), a, &cross);
    return rp_build_linear_opt(build, rp_layer_step(l, "cross.out"), rp_layer_tensor(l, "cross.Wo"),
                               a, width, width, false, RP_ACT_NONE, x);
}

/* A score's options are levels: which one an option is goes with its marker's row. */
static rp_value build_ordinal(struct rp_build *build, const struct rp_split *split, rp_value m)
{
    const rp_value features = rp_graph_ordinal_features(build->graph, "ordinal.features", SCORE);
    const rp_weight w =
        rp_build_matrix(build, "ordinal.weight", "ord_emb.weight", width_of(split), FEATURES);
    return rp_graph_gemm(build->graph, "ordinal", features, w, -1, RP_ACT_NONE, m);
}

static void build_scorer(struct rp_build *build, const struct rp_split *split, rp_value q)
{
    const uint64_t width = width_of(split);
    rp_value m = rp_graph_gather_markers(build->graph, "markers", q);
    m = build_ordinal(build, split, m);
    m = build_norm(build, split, "scorer.norm", "scorer.norm", m);
    m = rp_build_linear_opt(build, "scorer.dense", "scorer.Wa", m, width, width, false, RP_ACT_GELU,
                            -1);
    m = rp_build_linear_opt(build, "scorer.out", "scorer.Wb", m, width, 1, false, RP_ACT_NONE, -1);
    const rp_weight bias =
        rp_build_column(build, "logits.weight", "scorer.type_bias", RP_DECISION_TYPES);
    m = rp_graph_add_types(build->graph, "logits", m, bias);
    rp_graph_output(build->graph, "logits", m, RP_ROWS_MARKERS, 1);
}

static void build_question(struct rp_build *build, const struct rp_split *split,
                           const struct shared *shared)
{
    const uint64_t width = width_of(split);
    const rp_value x = build_embeddings(build, split, shared, "question");
    const rp_weight types =
        rp_build_matrix(build, "types.weight", "type_emb.weight", RP_DECISION_TYPES, width);
    rp_value q = rp_graph_add_types(build->graph, "types", x, types);
    for (int64_t i = 0; i < split->question_layers; i++) {
        struct rp_layer_names l = {.tensors = "question.layers.", .steps = "question.", .layer = i};
        q = build_attention(build, split, &l, q);
        q = build_cross(build, split, &l, q);
        q = rp_modernbert_ffn(build, &split->towers, &l, q);
    }
    q = build_norm(build, split, "question.final_norm", "question.final_norm", q);
    if (shared->all)
        rp_graph_output(build->graph, "last", q, RP_ROWS_TOKENS, width);
    build_scorer(build, split, q);
}

/* The graphs of states and questions ask for every tensor; those of segments use some of them
 * again, and are not begun when one is wrong. */
void rp_split_build(struct rp_build *build, const struct rp_split *split,
                    rp_graph *const graphs[RP_SPLIT_N_PARTS], bool all)
{
    build->shares = true;
    build->config = RP_SPLIT_FILE;
    build->missing.room = build->misshapen.room = build->mistyped.room = NAMES_BYTES;
    if (!rp_body_has_layers(build, &split->towers.body))
        return;
    const struct shared shared = find_shared(build, split, all);
    build->graph = graphs[RP_PART_STATE];
    build_state(build, split, &shared);
    build->graph = graphs[RP_PART_MAIN];
    build_question(build, split, &shared);
    if (!rp_build_is_whole(build))
        return;
    build->graph = graphs[RP_PART_SEGMENT];
    build_segment(build, split, &shared);
    build->graph = graphs[RP_PART_SEGMENTS];
    build_segments(build, split, &shared);
}

/* ---- tensors ----------------------------------------------------------------------------------
 */

/* What may be wrong with tensors, the worst first. */
struct wrong {
    rp_status status;
    const char *counted, *named;
    struct rp_name_list *list;
};

static void tell_wrong(struct rp_text *text, size_t n, const struct wrong *kinds)
{
    const char *before = "";
    for (size_t i = 0; i < n; i++)
        if (kinds[i].list->n > 0) {
            rp_text_add(text, "%s %zu %s", before, kinds[i].list->n, kinds[i].counted);
            before = ",";
        }
    for (size_t i = 0; i < n; i++)
        if (kinds[i].list->n > 0)
            rp_text_add(text, "; %s: %s", kinds[i].named, rp_name_list_text(kinds[i].list));
}

static rp_status fail_wrong(const struct rp_build *build, size_t n, const struct wrong *kinds,
                            rp_error *err)
{
    char told[RP_ERROR_MESSAGE_BYTES];
    struct rp_text text = rp_text_init(told, sizeof told);
    size_t worst = 0;
    while (kinds[worst].list->n == 0)
        worst++;
    tell_wrong(&text, n, kinds);
    return rp_fail(err, kinds[worst].status, "%s: tensors are wrong:%s", build->tensors->source,
                   told);
}

rp_status rp_split_check_tensors(struct rp_build *build, rp_error *err)
{
    struct rp_name_list extra = {.room = NAMES_BYTES};
    const struct wrong kinds[] = {
        {RP_ERR_MISSING, "missing", "missing", &build->missing},
        {RP_ERR_SHAPE, "of another shape than " RP_SPLIT_FILE " makes them", "of another shape",
         &build->misshapen},
        {RP_ERR_UNSUPPORTED, "neither F32, F16 nor BF16", "of another type", &build->mistyped},
        {RP_ERR_FORMAT, "that this model does not have", "not of this model", &extra}};
    size_t n = 0;
    if (build->first.status != RP_OK && !build->first_is_listed)
        return rp_build_finish(build, err); /* before tensors were looked for, or no memory */
    for (size_t i = 0; i < build->tensors->n; i++)
        if (!build->tensors->entries[i].used)
            rp_name_list_add(&extra, build->tensors->entries[i].tensor->name);
    for (size_t i = 0; i < COUNT(kinds); i++)
        n += kinds[i].list->n;
    if (n == 0 || (n == 1 && build->first_is_listed))
        return rp_build_finish(build, err); /* which knows the shapes and the type */
    return fail_wrong(build, COUNT(kinds), kinds, err);
}
