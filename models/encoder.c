/* See encoder.h. */
#include "models/encoder.h"

#include "pool/error.h"

#include <inttypes.h>
#include <stdio.h>

#define NAME_BYTES 160

/* T5's buckets as MPNet uses them: the distance from which all keys share the last bucket. */
#define REL_MAX_DISTANCE 128

const struct rp_encoder_names rp_encoder_bert_names = {
    .word = "embeddings.word_embeddings.weight",
    .position = "embeddings.position_embeddings.weight",
    .type = "embeddings.token_type_embeddings.weight",
    .norm = "embeddings.LayerNorm",
    .project = "embeddings_project",
    .layer = "encoder.layer.",
    .q = "attention.self.query",
    .k = "attention.self.key",
    .v = "attention.self.value",
    .out = "attention.output.dense",
    .attn_norm = "attention.output.LayerNorm",
    .up = "intermediate.dense",
    .down = "output.dense",
    .ffn_norm = "output.LayerNorm",
};

/* ---- configuration ----------------------------------------------------------------------------
 */

rp_status rp_encoder_split_heads(const struct rp_config *config, const char *hidden_key,
                                 const char *heads_key, struct rp_encoder *e, rp_error *err)
{
    e->head_dim = 0;
    RP_TRY(rp_config_size(config, "head_dim", RP_JSON_OPTIONAL, &e->head_dim, err));
    if (e->head_dim == 0 && e->hidden % e->heads != 0)
        return rp_fail(err, RP_ERR_FORMAT,
                       "%s: key \"%s\" is %" PRId64 ", which %s %" PRId64
                       " does not divide, and there is no head_dim",
                       config->path, hidden_key, e->hidden, heads_key, e->heads);
    if (e->head_dim == 0)
        e->head_dim = e->hidden / e->heads;
    /* Both are below 2^31, so the product fits in 62 bits; a plan counts the width of q, k and v
     * in 31. */
    if (e->heads * e->head_dim > INT32_MAX / 3)
        return rp_fail(err, RP_ERR_LIMIT,
                       "%s: %s %" PRId64 " with a head_dim of %" PRId64 " are too wide",
                       config->path, heads_key, e->heads, e->head_dim);
    return RP_OK;
}

rp_status rp_encoder_configure(const struct rp_config *config, struct rp_encoder *e, rp_error *err)
{
    const struct {
        const char *key;
        int64_t *value;
    } sizes[] = {
        {"vocab_size", &e->vocab},
        {"hidden_size", &e->hidden},
        {"num_hidden_layers", &e->layers},
        {"num_attention_heads", &e->heads},
        {"intermediate_size", &e->intermediate},
        {"max_position_embeddings", &e->positions},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        RP_TRY(rp_config_size(config, sizes[i].key, RP_JSON_REQUIRED, sizes[i].value, err));
    e->embedding = e->hidden;
    e->activation = RP_ACT_GELU;
    e->eps = 1e-12f;
    RP_TRY(rp_encoder_split_heads(config, "hidden_size", "num_attention_heads", e, err));
    int64_t kv_heads = e->heads;
    RP_TRY(rp_config_size(config, "num_key_value_heads", RP_JSON_OPTIONAL, &kv_heads, err));
    if (kv_heads != e->heads)
        return rp_fail(err, RP_ERR_UNSUPPORTED,
                       "%s: key \"num_key_value_heads\" is %" PRId64
                       ", but this family has as many as heads, %" PRId64,
                       config->path, kv_heads, e->heads);
    RP_TRY(rp_config_epsilon(config, "layer_norm_eps", &e->eps, err));
    return rp_config_activation(config, "hidden_act", &e->activation, err);
}

rp_status rp_encoder_pad(const struct rp_config *config, int64_t absent, bool needed,
                         struct rp_encoder *e, rp_error *err)
{
    const json_t *value = json_object_get(config->json.object, "pad_token_id");
    e->pad = value ? -1 : absent; /* null is no pad; no key is the family's default */
    RP_TRY(rp_json_whole(&config->json, "pad_token_id", RP_JSON_OPTIONAL, 0, e->vocab - 1, &e->pad,
                         err));
    if (needed && e->pad < 0)
        return rp_fail(err, RP_ERR_FORMAT,
                       "%s: key \"pad_token_id\" is null, but positions are counted from it",
                       config->path);
    return RP_OK;
}

/* ---- the graph --------------------------------------------------------------------------------
 */

void rp_encoder_hidden_name(const struct rp_encoder *e, size_t layer, char name[RP_STEP_NAME_BYTES])
{
    if (layer == 0)
        snprintf(name, RP_STEP_NAME_BYTES, "%s",
                 e->embedding == e->hidden ? "embeddings.norm" : "embeddings.project");
    else
        snprintf(name, RP_STEP_NAME_BYTES, "layers.%zu.ffn.norm", layer - 1);
}

static rp_value build_embeddings(struct rp_build *build, const struct rp_encoder *e,
                                 const struct rp_encoder_names *names)
{
    rp_embed_table tables[3];
    size_t n = 0;
    const uint64_t width = (uint64_t)e->embedding;
    /* In the order in which the reference adds them. */
    tables[n++] = (rp_embed_table){
        rp_build_matrix(build, "embeddings.word", names->word, (uint64_t)e->vocab, width),
        RP_INDEX_IDS, 0};
    if (e->types > 0)
        tables[n++] = (rp_embed_table){
            rp_build_matrix(build, "embeddings.type", names->type, (uint64_t)e->types, width),
            RP_INDEX_TYPES, 0};
    tables[n++] =
        (rp_embed_table){rp_build_matrix(build, "embeddings.position", names->position,
                                         (uint64_t)e->positions, width),
                         e->first_position > 0 ? RP_INDEX_POSITION_NONPAD : RP_INDEX_POSITION,
                         e->first_position > 0 ? (int32_t)(e->first_position - 1) : 0};
    rp_value x = rp_graph_embed(build->graph, "embeddings.sum", n, tables);
    x = rp_build_norm(build, "embeddings.norm", names->norm, x, width, e->eps);
    if (e->embedding != e->hidden)
        x = rp_build_linear(build, "embeddings.project", names->project, x, width,
                            (uint64_t)e->hidden, RP_ACT_NONE, -1);
    return x;
}

/* "layers.3.attn.qkv" and "encoder.layer.3.attention.self.query". */
struct layer_names {
    const struct rp_encoder_names *names;
    int64_t layer;
    char step[NAME_BYTES], tensor[NAME_BYTES];
};

static const char *step_name(struct layer_names *l, const char *what)
{
    snprintf(l->step, sizeof l->step, "layers.%" PRId64 ".%s", l->layer, what);
    return l->step;
}

static const char *tensor_name(struct layer_names *l, const char *what)
{
    snprintf(l->tensor, sizeof l->tensor, "%s%" PRId64 ".%s", l->names->layer, l->layer, what);
    return l->tensor;
}

static rp_value build_qkv(struct rp_build *build, struct layer_names *l, rp_value x, uint64_t in,
                          uint64_t width)
{
    static const char *const kinds[2] = {"weight", "bias"};
    const char *const which[3] = {l->names->q, l->names->k, l->names->v};
    char tensors[3][NAME_BYTES], name[NAME_BYTES];
    const char *const list[3] = {tensors[0], tensors[1], tensors[2]};
    rp_weight made[2];
    for (int kind = 0; kind < 2; kind++) {
        for (int i = 0; i < 3; i++)
            snprintf(tensors[i], NAME_BYTES, "%s%" PRId64 ".%s.%s", l->names->layer, l->layer,
                     which[i], kinds[kind]);
        snprintf(name, sizeof name, "layers.%" PRId64 ".attn.qkv.%s", l->layer, kinds[kind]);
        made[kind] = kind == 0 ? rp_build_matrices(build, name, 3, list, width, in)
                               : rp_build_vectors(build, name, 3, list, width);
    }
    return rp_graph_gemm(build->graph, step_name(l, "attn.qkv"), x, made[0], made[1], RP_ACT_NONE,
                         -1);
}

static rp_value build_layer(struct rp_build *build, const struct rp_encoder *e,
                            struct layer_names *l, rp_weight rel_bias, rp_value x)
{
    const struct rp_encoder_names *names = l->names;
    const uint64_t hidden = (uint64_t)e->hidden, ffn = (uint64_t)e->intermediate;
    const uint64_t width = (uint64_t)(e->heads * e->head_dim);
    const rp_attention attention = {.n_heads = (int32_t)e->heads,
                                    .head_dim = (int32_t)e->head_dim,
                                    .rel_bias = rel_bias,
                                    .rel_max_distance = rel_bias >= 0 ? REL_MAX_DISTANCE : 0};
    const rp_value qkv = build_qkv(build, l, x, hidden, width);
    rp_value a = rp_graph_attention(build->graph, step_name(l, "attn.core"), qkv, &attention);
    a = rp_build_linear(build, step_name(l, "attn.out"), tensor_name(l, names->out), a, width,
                        hidden, RP_ACT_NONE, x);
    a = rp_build_norm(build, step_name(l, "attn.norm"), tensor_name(l, names->attn_norm), a, hidden,
                      e->eps);
    rp_value f = rp_build_linear(build, step_name(l, "ffn.up"), tensor_name(l, names->up), a,
                                 hidden, ffn, e->activation, -1);
    f = rp_build_linear(build, step_name(l, "ffn.down"), tensor_name(l, names->down), f, ffn,
                        hidden, RP_ACT_NONE, a);
    return rp_build_norm(build, step_name(l, "ffn.norm"), tensor_name(l, names->ffn_norm), f,
                         hidden, e->eps);
}

/* A layer needs a dozen tensors and more, so a checkpoint with fewer tensors than layers is refused
 * before any loop runs over them. */
static bool has_layers(struct rp_build *build, const struct rp_encoder *e)
{
    if ((uint64_t)e->layers <= build->tensors->n)
        return true;
    rp_error err;
    rp_build_fail(build,
                  rp_fail(&err, RP_ERR_SHAPE,
                          "%s: config.json has %" PRId64 " layers, but there are only %zu tensors",
                          build->tensors->source, e->layers, build->tensors->n),
                  &err);
    return false;
}

/* More than anybody reads; what is left of a large number of layers adds nothing. */
#define ENOUGH_MISSING 1000

rp_value rp_encoder_build(struct rp_build *build, const struct rp_encoder *e,
                          const struct rp_encoder_names *names)
{
    if (!has_layers(build, e))
        return -1;
    rp_value x = build_embeddings(build, e, names);
    rp_weight rel_bias = -1;
    if (e->rel_buckets > 0)
        rel_bias = rp_build_matrix(build, "attn.rel_bias", names->rel_bias,
                                   (uint64_t)e->rel_buckets, (uint64_t)e->heads);
    for (int64_t i = 0; i < e->layers && build->missing.n < ENOUGH_MISSING; i++) {
        struct layer_names l = {.names = names, .layer = i};
        x = build_layer(build, e, &l, rel_bias, x);
    }
    return x;
}

/* ---- heads ------------------------------------------------------------------------------------
 */

rp_value rp_encoder_head(struct rp_build *build, const struct rp_encoder *e,
                         const struct rp_head *head, rp_value last, size_t n_labels,
                         rp_value *pooled)
{
    const uint64_t hidden = (uint64_t)e->hidden;
    rp_value x = rp_graph_pool(build->graph, "first", last, RP_POOL_CLS);
    x = rp_build_linear(build, head->first_step, head->first_tensor, x, hidden, hidden,
                        head->activation, -1);
    if (pooled)
        *pooled = x;
    return rp_build_linear(build, head->last_step, head->last_tensor, x, hidden, n_labels,
                           RP_ACT_NONE, -1);
}

rp_value rp_encoder_pooler(struct rp_build *build, const struct rp_encoder *e, rp_value last)
{
    if (!rp_build_has(build, "pooler.dense.weight"))
        return -1;
    const uint64_t hidden = (uint64_t)e->hidden;
    const rp_value x = rp_graph_pool(build->graph, "first", last, RP_POOL_CLS);
    return rp_build_linear(build, "pooler", "pooler.dense", x, hidden, hidden, RP_ACT_TANH, -1);
}
