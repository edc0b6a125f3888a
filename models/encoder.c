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

rp_status rp_encoder_configure(const struct rp_config *config, struct rp_encoder *e, rp_error *err)
{
    RP_TRY(rp_body_configure(config, &e->body, err));
    e->embedding = e->body.hidden;
    e->body.activation = RP_ACT_GELU;
    e->body.eps = 1e-12f;
    RP_TRY(rp_config_epsilon(config, "layer_norm_eps", &e->body.eps, err));
    return rp_config_activation(config, "hidden_act", &e->body.activation, err);
}

/* ---- the graph --------------------------------------------------------------------------------
 */

void rp_encoder_hidden_name(const struct rp_encoder *e, size_t layer, char name[RP_STEP_NAME_BYTES])
{
    if (layer == 0)
        snprintf(name, RP_STEP_NAME_BYTES, "%s",
                 e->embedding == e->body.hidden ? "embeddings.norm" : "embeddings.project");
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
        rp_build_matrix(build, "embeddings.word", names->word, (uint64_t)e->body.vocab, width),
        RP_INDEX_IDS, 0};
    if (e->body.types > 0)
        tables[n++] = (rp_embed_table){
            rp_build_matrix(build, "embeddings.type", names->type, (uint64_t)e->body.types, width),
            RP_INDEX_TYPES, 0};
    tables[n++] =
        (rp_embed_table){rp_build_matrix(build, "embeddings.position", names->position,
                                         (uint64_t)e->body.positions, width),
                         e->body.first_position > 0 ? RP_INDEX_POSITION_NONPAD : RP_INDEX_POSITION,
                         e->body.first_position > 0 ? (int32_t)(e->body.first_position - 1) : 0};
    rp_value x = rp_graph_embed(build->graph, "embeddings.sum", n, tables);
    x = rp_build_norm(build, "embeddings.norm", names->norm, x, width, e->body.eps);
    if (e->embedding != e->body.hidden)
        x = rp_build_linear(build, "embeddings.project", names->project, x, width,
                            (uint64_t)e->body.hidden, RP_ACT_NONE, -1);
    return x;
}

static rp_value build_qkv(struct rp_build *build, struct rp_layer_names *l,
                          const struct rp_encoder_names *names, rp_value x, uint64_t in,
                          uint64_t width)
{
    static const char *const kinds[2] = {"weight", "bias"};
    const char *const which[3] = {names->q, names->k, names->v};
    char tensors[3][NAME_BYTES], name[NAME_BYTES];
    const char *const list[3] = {tensors[0], tensors[1], tensors[2]};
    rp_weight made[2];
    for (int kind = 0; kind < 2; kind++) {
        for (int i = 0; i < 3; i++)
            snprintf(tensors[i], NAME_BYTES, "%s%" PRId64 ".%s.%s", names->layer, l->layer,
                     which[i], kinds[kind]);
        snprintf(name, sizeof name, "layers.%" PRId64 ".attn.qkv.%s", l->layer, kinds[kind]);
        made[kind] = kind == 0 ? rp_build_matrices(build, name, 3, list, width, in)
                               : rp_build_vectors(build, name, 3, list, width);
    }
    return rp_graph_gemm(build->graph, rp_layer_step(l, "attn.qkv"), x, made[0], made[1],
                         RP_ACT_NONE, -1);
}

static rp_value build_layer(struct rp_build *build, const struct rp_encoder *e,
                            struct rp_layer_names *l, const struct rp_encoder_names *names,
                            rp_weight rel_bias, rp_value x)
{
    const uint64_t hidden = (uint64_t)e->body.hidden, ffn = (uint64_t)e->body.intermediate;
    const uint64_t width = (uint64_t)(e->body.heads * e->body.head_dim);
    const rp_attention attention = {.n_heads = (int32_t)e->body.heads,
                                    .head_dim = (int32_t)e->body.head_dim,
                                    .rel_bias = rel_bias,
                                    .rel_max_distance = rel_bias >= 0 ? REL_MAX_DISTANCE : 0};
    const rp_value qkv = build_qkv(build, l, names, x, hidden, width);
    rp_value a = rp_graph_attention(build->graph, rp_layer_step(l, "attn.core"), qkv, &attention);
    a = rp_build_linear(build, rp_layer_step(l, "attn.out"), rp_layer_tensor(l, names->out), a,
                        width, hidden, RP_ACT_NONE, x);
    a = rp_build_norm(build, rp_layer_step(l, "attn.norm"), rp_layer_tensor(l, names->attn_norm), a,
                      hidden, e->body.eps);
    rp_value f = rp_build_linear(build, rp_layer_step(l, "ffn.up"), rp_layer_tensor(l, names->up),
                                 a, hidden, ffn, e->body.activation, -1);
    f = rp_build_linear(build, rp_layer_step(l, "ffn.down"), rp_layer_tensor(l, names->down), f,
                        ffn, hidden, RP_ACT_NONE, a);
    return rp_build_norm(build, rp_layer_step(l, "ffn.norm"), rp_layer_tensor(l, names->ffn_norm),
                         f, hidden, e->body.eps);
}

rp_value rp_encoder_build(struct rp_build *build, const struct rp_encoder *e,
                          const struct rp_encoder_names *names)
{
    if (!rp_body_has_layers(build, &e->body))
        return -1;
    rp_value x = build_embeddings(build, e, names);
    rp_weight rel_bias = -1;
    if (e->rel_buckets > 0)
        rel_bias = rp_build_matrix(build, "attn.rel_bias", names->rel_bias,
                                   (uint64_t)e->rel_buckets, (uint64_t)e->body.heads);
    for (int64_t i = 0; i < e->body.layers && !rp_body_lacks_enough(build); i++) {
        struct rp_layer_names l = {.tensors = names->layer, .layer = i};
        x = build_layer(build, e, &l, names, rel_bias, x);
    }
    return x;
}

/* ---- heads ------------------------------------------------------------------------------------
 */

rp_value rp_encoder_head(struct rp_build *build, const struct rp_encoder *e,
                         const struct rp_head *head, rp_value last, size_t n_labels,
                         rp_value *pooled)
{
    const uint64_t hidden = (uint64_t)e->body.hidden;
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
    const uint64_t hidden = (uint64_t)e->body.hidden;
    const rp_value x = rp_graph_pool(build->graph, "first", last, RP_POOL_CLS);
    return rp_build_linear(build, "pooler", "pooler.dense", x, hidden, hidden, RP_ACT_TANH, -1);
}
