/* The graph of a decoder; see decoder.h.
 *
 * Rows of weights are named by the tensors that hold them: a struct rp_build_rows for each run of
 * heads, so that what a checkpoint interleaves by head is in order before any step runs.
 */
#include "models/decoder.h"

#include "pool/error.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define NAME_BYTES   160
#define MAX_GATHERED 6 /* in_proj_qkvz in four pieces and in_proj_ba in two */

/* Rows of tensors of one layer, and the names that they borrow. */
struct gathered {
    struct rp_layer_names *names;
    struct rp_build_rows rows[MAX_GATHERED];
    char tensors[MAX_GATHERED][NAME_BYTES];
    size_t n;
};

static struct rp_build_rows *gather(struct gathered *g, const char *tensor, const char *kind,
                                    int64_t rows)
{
    char *name = g->tensors[g->n];
    snprintf(name, NAME_BYTES, "%s%" PRId64 ".%s.%s", g->names->tensors, g->names->layer, tensor,
             kind);
    g->rows[g->n] = (struct rp_build_rows){.tensor = name, .rows = (uint64_t)rows};
    return &g->rows[g->n++];
}

/* n rows out of every group of `step`, from row `first` of the group on. */
static void gather_heads(struct gathered *g, const char *tensor, const char *kind, int64_t first,
                         int64_t n, int64_t step, int64_t groups)
{
    struct rp_build_rows *r = gather(g, tensor, kind, step * groups);
    r->first = (uint64_t)first;
    r->n = (uint64_t)n;
    r->step = (uint64_t)step;
    r->times = (uint64_t)groups;
}

static rp_value gathered_linear(struct rp_build *build, struct rp_layer_names *l, const char *what,
                                rp_value x, const struct gathered *weights, int64_t in,
                                const struct gathered *bias)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s.weight", rp_layer_step(l, what));
    const rp_weight w = rp_build_stack(build, name, weights->n, weights->rows, (uint64_t)in);
    rp_weight b = -1;
    if (bias) {
        snprintf(name, sizeof name, "%s.bias", rp_layer_step(l, what));
        b = rp_build_row(build, name, bias->n, bias->rows);
    }
    return rp_graph_gemm(build->graph, rp_layer_step(l, what), x, w, b, RP_ACT_NONE, -1);
}

/* Whole matrices [rows, in] of the layer under each other. */
static rp_value joined_linear(struct rp_build *build, struct rp_layer_names *l, const char *what,
                              rp_value x, int64_t in, int64_t rows, size_t n,
                              const char *const *tensors)
{
    struct gathered g = {.names = l};
    for (size_t i = 0; i < n; i++)
        gather(&g, tensors[i], "weight", rows);
    return gathered_linear(build, l, what, x, &g, in, NULL);
}

static rp_value plain_linear(struct rp_build *build, struct rp_layer_names *l, const char *what,
                             const char *tensor, rp_value x, int64_t in, int64_t out, bool bias,
                             rp_value residual)
{
    return rp_build_linear_opt(build, rp_layer_step(l, what), rp_layer_tensor(l, tensor), x,
                               (uint64_t)in, (uint64_t)out, bias, RP_ACT_NONE, residual);
}

/* ---- norms ------------------------------------------------------------------------------------
 */

/* A vector of the layer, named after the step that uses it. */
static rp_weight layer_vector(struct rp_build *build, struct rp_layer_names *l, const char *what,
                              const char *kind, const char *tensor, int64_t n)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s.%s", rp_layer_step(l, what), kind);
    return rp_build_vector(build, name, rp_layer_tensor(l, tensor), (uint64_t)n);
}

static rp_value build_norm(struct rp_build *build, const struct rp_decoder *d,
                           struct rp_layer_names *l, const char *what, const char *tensor,
                           rp_value x)
{
    const rp_rms_norm norm = {.w = layer_vector(build, l, what, "weight", tensor, d->body.hidden),
                              .offset = d->style->offset,
                              .eps = d->body.eps};
    return rp_graph_rms_norm(build->graph, rp_layer_step(l, what), x, &norm);
}

/* The norm of n heads that begin at a column: each by itself, or all as one row. */
static rp_value build_head_norm(struct rp_build *build, const struct rp_decoder *d,
                                struct rp_layer_names *l, const char *what, const char *tensor,
                                rp_value x, int64_t n, int64_t first_column)
{
    const int64_t dim = d->style->wide_qk_norm ? n * d->body.head_dim : d->body.head_dim;
    const rp_rms_norm norm = {.w = layer_vector(build, l, what, "weight", tensor, dim),
                              .offset = d->style->offset,
                              .eps = d->body.eps,
                              .n_heads = d->style->wide_qk_norm ? 1 : (int32_t)n,
                              .head_dim = (int32_t)dim,
                              .first_column = (int32_t)first_column};
    return rp_graph_rms_norm(build->graph, rp_layer_step(l, what), x, &norm);
}

/* ---- full and sliding layers ------------------------------------------------------------------
 */

static void gather_qkv(const struct rp_decoder *d, struct gathered *g, const char *kind)
{
    const int64_t dim = d->body.head_dim, heads = d->body.heads, kv = d->kv_heads * dim;
    if (d->style->output_gate)
        gather_heads(g, "self_attn.q_proj", kind, 0, dim, 2 * dim, heads);
    else
        gather(g, "self_attn.q_proj", kind, heads * dim);
    gather(g, "self_attn.k_proj", kind, kv);
    gather(g, "self_attn.v_proj", kind, kv);
    if (d->style->output_gate)
        gather_heads(g, "self_attn.q_proj", kind, dim, dim, 2 * dim, heads);
}

static rp_value build_qkv(struct rp_build *build, const struct rp_decoder *d,
                          struct rp_layer_names *l, rp_value x)
{
    struct gathered weights = {.names = l}, biases = {.names = l};
    const int64_t heads = d->body.heads, kv = d->kv_heads, dim = d->body.head_dim;
    gather_qkv(d, &weights, "weight");
    gather_qkv(d, &biases, "bias");
    x = gathered_linear(build, l, "attn.qkv", x, &weights, d->body.hidden,
                        d->attention_bias ? &biases : NULL);
    x = build_head_norm(build, d, l, "attn.q_norm", "self_attn.q_norm.weight", x, heads, 0);
    x = build_head_norm(build, d, l, "attn.k_norm", "self_attn.k_norm.weight", x, kv, heads * dim);
    if (d->has_rope)
        x = rp_rope_build(build, rp_layer_step(l, "attn.rope"), x, &d->rope, heads + kv, dim);
    return x;
}

static rp_value build_attention(struct rp_build *build, const struct rp_decoder *d,
                                struct rp_layer_names *l, rp_value x, rp_value residual)
{
    const int64_t heads = d->body.heads, kv = d->kv_heads, dim = d->body.head_dim;
    const bool slides = rp_decoder_layer_type(d, l->layer) == RP_DECODER_SLIDING;
    const rp_attention attention = {.n_heads = (int32_t)heads,
                                    .head_dim = (int32_t)dim,
                                    .rel_bias = -1,
                                    .window = slides ? d->window : 0,
                                    .n_kv_heads = (int32_t)kv,
                                    .causal = true};
    const rp_gate gate = {.activation = RP_ACT_SIGMOID,
                          .first_column = (int32_t)((heads + 2 * kv) * dim)};
    const rp_value qkv = build_qkv(build, d, l, x);
    rp_value a = rp_graph_attention(build->graph, rp_layer_step(l, "attn.core"), qkv, &attention);
    if (d->style->output_gate)
        a = rp_graph_gate(build->graph, rp_layer_step(l, "attn.gate"), a, qkv, &gate);
    return plain_linear(build, l, "attn.out", "self_attn.o_proj", a, heads * dim, d->body.hidden,
                        d->attention_bias, residual);
}

/* ---- linear layers ----------------------------------------------------------------------------
 */

/* q, k, v, z, b, a, in this order. */
static void gather_linear(const struct rp_decoder *d, struct gathered *g)
{
    const int64_t per_key = d->value_heads / d->key_heads, groups = d->key_heads;
    const int64_t q = d->key_dim, v = per_key * d->value_dim, group = 2 * q + 2 * v;
    switch (d->style->packing) {
    case RP_LINEAR_FUSED:
        gather_heads(g, "linear_attn.in_proj_qkvz", "weight", 0, q, group, groups);
        gather_heads(g, "linear_attn.in_proj_qkvz", "weight", q, q, group, groups);
        gather_heads(g, "linear_attn.in_proj_qkvz", "weight", 2 * q, v, group, groups);
        gather_heads(g, "linear_attn.in_proj_qkvz", "weight", 2 * q + v, v, group, groups);
        gather_heads(g, "linear_attn.in_proj_ba", "weight", 0, per_key, 2 * per_key, groups);
        gather_heads(g, "linear_attn.in_proj_ba", "weight", per_key, per_key, 2 * per_key, groups);
        break;
    case RP_LINEAR_SPLIT:
        gather(g, "linear_attn.in_proj_qkv", "weight", groups * (2 * q + v));
        gather(g, "linear_attn.in_proj_z", "weight", groups * v);
        gather(g, "linear_attn.in_proj_b", "weight", d->value_heads);
        gather(g, "linear_attn.in_proj_a", "weight", d->value_heads);
        break;
    case RP_LINEAR_SEPARATE:
        gather(g, "linear_attn.q_proj", "weight", groups * q);
        gather(g, "linear_attn.k_proj", "weight", groups * q);
        gather(g, "linear_attn.v_proj", "weight", groups * v);
        gather(g, "linear_attn.g_proj", "weight", groups * v);
        gather(g, "linear_attn.b_proj", "weight", d->value_heads);
        gather(g, "linear_attn.a_proj", "weight", d->value_heads);
        break;
    }
}

/* One convolution, or (OLMo as it was published) one for each of q, k and v. */
static rp_weight build_conv_weight(struct rp_build *build, const struct rp_decoder *d,
                                   struct rp_layer_names *l)
{
    struct gathered g = {.names = l};
    char name[NAME_BYTES];
    const int64_t q = d->key_heads * d->key_dim, v = d->value_heads * d->value_dim;
    if (d->style->packing == RP_LINEAR_SEPARATE &&
        rp_build_has(build, rp_layer_tensor(l, "linear_attn.q_conv1d.weight"))) {
        gather(&g, "linear_attn.q_conv1d", "weight", q)->inner = 1;
        gather(&g, "linear_attn.k_conv1d", "weight", q)->inner = 1;
        gather(&g, "linear_attn.v_conv1d", "weight", v)->inner = 1;
    } else {
        gather(&g, "linear_attn.conv1d", "weight", 2 * q + v)->inner = 1;
    }
    snprintf(name, sizeof name, "%s.weight", rp_layer_step(l, "gdn.conv"));
    return rp_build_stack(build, name, g.n, g.rows, (uint64_t)d->kernel);
}

/* The first columns are q, k and v; then z, b and a. */
static rp_value build_gates(struct rp_build *build, const struct rp_decoder *d,
                            struct rp_layer_names *l, rp_value in)
{
    const int64_t n = d->value_heads;
    const int64_t b = 2 * d->key_heads * d->key_dim + 2 * n * d->value_dim;
    const rp_gdn_gates gates = {
        .n_heads = (int32_t)n,
        .a_column = (int32_t)(b + n),
        .b_column = (int32_t)b,
        .a_log = layer_vector(build, l, "gdn.gates", "a_log", "linear_attn.A_log", n),
        .dt_bias = layer_vector(build, l, "gdn.gates", "dt_bias", "linear_attn.dt_bias", n),
        .beta_scale = d->beta_scale};
    return rp_graph_gdn_gates(build->graph, rp_layer_step(l, "gdn.gates"), in, &gates);
}

/* The reference adds this to the sum of squares of q and of k. */
#define QK_EPS 1e-6f

static rp_value build_linear(struct rp_build *build, const struct rp_decoder *d,
                             struct rp_layer_names *l, rp_value x, rp_value residual)
{
    const int64_t channels = 2 * d->key_heads * d->key_dim + d->value_heads * d->value_dim;
    const bool split = d->style->packing != RP_LINEAR_SEPARATE;
    struct gathered weights = {.names = l};
    gather_linear(d, &weights);
    const rp_value in = gathered_linear(build, l, "gdn.in", x, &weights, d->body.hidden, NULL);
    const rp_conv conv = {
        .w = build_conv_weight(build, d, l), .b = -1, .activation = d->body.activation};
    const rp_gdn gdn = {.n_key_heads = (int32_t)d->key_heads,
                        .n_value_heads = (int32_t)d->value_heads,
                        .key_dim = (int32_t)d->key_dim,
                        .value_dim = (int32_t)d->value_dim,
                        .map = RP_GDN_GROUPED,
                        .norm = RP_GDN_NORM_ROOT,
                        .eps = QK_EPS};
    const rp_value qkv = rp_graph_conv(build->graph, rp_layer_step(l, "gdn.conv"), in, &conv);
    const rp_value gates = build_gates(build, d, l, in);
    rp_value o = rp_graph_gdn(build->graph, rp_layer_step(l, "gdn.core"), qkv, gates, &gdn);
    const rp_gated_norm norm = {
        .w = layer_vector(build, l, "gdn.norm", "weight",
                          split ? "linear_attn.norm.weight" : "linear_attn.o_norm.weight",
                          d->value_dim),
        .eps = d->style->gated_eps > 0 ? d->style->gated_eps : d->body.eps,
        .head_dim = (int32_t)d->value_dim,
        .activation = RP_ACT_SILU,
        .first_column = (int32_t)channels};
    o = rp_graph_gated_norm(build->graph, rp_layer_step(l, "gdn.norm"), o, in, &norm);
    return plain_linear(build, l, "gdn.out", split ? "linear_attn.out_proj" : "linear_attn.o_proj",
                        o, d->value_heads * d->value_dim, d->body.hidden, false, residual);
}

/* ---- feed-forward layers ----------------------------------------------------------------------
 */

static rp_value build_mlp(struct rp_build *build, const struct rp_decoder *d,
                          struct rp_layer_names *l, rp_value x, rp_value residual)
{
    static const char *const up[] = {"mlp.gate_proj", "mlp.up_proj"};
    const int64_t hidden = d->body.hidden, inner = d->body.intermediate;
    rp_value f = joined_linear(build, l, "ffn.up", x, hidden, inner, 2, up);
    f = rp_graph_glu(build->graph, rp_layer_step(l, "ffn.glu"), f, d->body.activation);
    return plain_linear(build, l, "ffn.down", "mlp.down_proj", f, inner, hidden, false, residual);
}

/* h + sigmoid(x w^T) * shared expert(x) */
static rp_value build_shared(struct rp_build *build, const struct rp_decoder *d,
                             struct rp_layer_names *l, rp_value x, rp_value h)
{
    static const char *const up[] = {"mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"};
    const rp_gate gate = {.activation = RP_ACT_SIGMOID, .one = true};
    const int64_t hidden = d->body.hidden, inner = d->shared_inner;
    rp_value s = joined_linear(build, l, "ffn.shared.up", x, hidden, inner, 2, up);
    s = rp_graph_glu(build->graph, rp_layer_step(l, "ffn.shared.glu"), s, d->body.activation);
    s = plain_linear(build, l, "ffn.shared.down", "mlp.shared_expert.down_proj", s, inner, hidden,
                     false, -1);
    const rp_value g = plain_linear(build, l, "ffn.shared.gate", "mlp.shared_expert_gate", x,
                                    hidden, 1, false, -1);
    s = rp_graph_gate(build->graph, rp_layer_step(l, "ffn.shared.gated"), s, g, &gate);
    return rp_graph_add(build->graph, rp_layer_step(l, "ffn.shared.sum"), h, s);
}

/* One expert's two matrices, from tensors of its own or out of those of all experts. */
static void build_expert(struct rp_build *build, const struct rp_decoder *d,
                         struct rp_layer_names *l, int64_t e, bool stacked, rp_weight *up,
                         rp_weight *down)
{
    const uint64_t hidden = (uint64_t)d->body.hidden, inner = (uint64_t)d->expert_inner;
    const uint64_t experts = (uint64_t)d->n_experts, at = (uint64_t)e;
    char gate_name[NAME_BYTES], up_name[NAME_BYTES], down_name[NAME_BYTES], name[NAME_BYTES];
    struct rp_build_rows ups[2], downs;
    snprintf(gate_name, NAME_BYTES, "%s%" PRId64 ".mlp.experts.%" PRId64 ".gate_proj.weight",
             l->tensors, l->layer, e);
    snprintf(up_name, NAME_BYTES, "%s%" PRId64 ".mlp.experts.%" PRId64 ".up_proj.weight",
             l->tensors, l->layer, e);
    snprintf(down_name, NAME_BYTES, "%s%" PRId64 ".mlp.experts.%" PRId64 ".down_proj.weight",
             l->tensors, l->layer, e);
    ups[0] = (struct rp_build_rows){.tensor = gate_name, .rows = inner};
    ups[1] = (struct rp_build_rows){.tensor = up_name, .rows = inner};
    downs = (struct rp_build_rows){.tensor = down_name, .rows = hidden};
    if (stacked) {
        snprintf(up_name, NAME_BYTES, "%s%" PRId64 ".mlp.experts.gate_up_proj", l->tensors,
                 l->layer);
        snprintf(down_name, NAME_BYTES, "%s%" PRId64 ".mlp.experts.down_proj", l->tensors,
                 l->layer);
        ups[0] =
            (struct rp_build_rows){up_name, experts, 2 * inner, at * 2 * inner, 2 * inner, 0, 0};
        downs = (struct rp_build_rows){down_name, experts, hidden, at * hidden, hidden, 0, 0};
    }
    snprintf(name, sizeof name, "layers.%" PRId64 ".ffn.experts.%" PRId64 ".up", l->layer, e);
    *up = rp_build_stack(build, name, stacked ? 1 : 2, ups, hidden);
    snprintf(name, sizeof name, "layers.%" PRId64 ".ffn.experts.%" PRId64 ".down", l->layer, e);
    *down = rp_build_stack(build, name, 1, &downs, inner);
}

static rp_value build_sparse(struct rp_build *build, const struct rp_decoder *d,
                             struct rp_layer_names *l, rp_value x, rp_value h)
{
    const rp_value residual = build_shared(build, d, l, x, h);
    const rp_value logits = plain_linear(build, l, "ffn.router", "mlp.gate", x, d->body.hidden,
                                         d->n_experts, false, -1);
    const bool stacked = rp_build_has(build, rp_layer_tensor(l, "mlp.experts.gate_up_proj"));
    /* The router's rows have shown that there are so many experts, or nothing of their number is
     * made. */
    if (!rp_build_is_whole(build))
        return -1;
    rp_weight *made = calloc(2 * (size_t)d->n_experts, sizeof *made);
    rp_error err;
    if (!made) {
        rp_build_fail(build, rp_fail(&err, RP_ERR_NOMEM, "no memory for the experts"), &err);
        return -1;
    }
    rp_weight *up = made, *down = made + d->n_experts;
    for (int64_t e = 0; e < d->n_experts && !rp_body_lacks_enough(build); e++)
        build_expert(build, d, l, e, stacked, &up[e], &down[e]);
    const rp_experts experts = {.n_experts = (int32_t)d->n_experts,
                                .n_used = (int32_t)d->n_used,
                                .normalize = d->normalize,
                                .activation = d->body.activation,
                                .up = up,
                                .down = down};
    const rp_value out = rp_graph_experts(build->graph, rp_layer_step(l, "ffn.experts"), x, logits,
                                          &experts, residual);
    free(made);
    return out;
}

/* ---- layers -----------------------------------------------------------------------------------
 */

static bool is_post_norm(const struct rp_decoder *d, int64_t layer)
{
    return d->style->post_norm && rp_decoder_layer_type(d, layer) != RP_DECODER_LINEAR;
}

void rp_decoder_hidden_name(const struct rp_decoder *d, size_t layer, char name[RP_STEP_NAME_BYTES])
{
    if (layer == 0)
        snprintf(name, RP_STEP_NAME_BYTES, "embed");
    else if (layer == (size_t)d->body.layers)
        snprintf(name, RP_STEP_NAME_BYTES, "final_norm");
    else
        snprintf(name, RP_STEP_NAME_BYTES, "layers.%zu.ffn.%s", layer - 1,
                 rp_decoder_is_sparse(d, (int64_t)layer - 1) ? "experts"
                 : is_post_norm(d, (int64_t)layer - 1)       ? "sum"
                                                             : "down");
}

static rp_value build_post_norm(struct rp_build *build, const struct rp_decoder *d,
                                struct rp_layer_names *l, rp_value h)
{
    rp_value a = build_attention(build, d, l, h, -1);
    a = build_norm(build, d, l, "attn.norm", "post_attention_layernorm.weight", a);
    h = rp_graph_add(build->graph, rp_layer_step(l, "attn.sum"), h, a);
    rp_value f = build_mlp(build, d, l, h, -1);
    f = build_norm(build, d, l, "ffn.norm", "post_feedforward_layernorm.weight", f);
    return rp_graph_add(build->graph, rp_layer_step(l, "ffn.sum"), h, f);
}

/* OLMo's linear layers, as published, call their norms otherwise. */
static const char *norm_name(struct rp_build *build, const struct rp_decoder *d,
                             struct rp_layer_names *l, const char *name, const char *published)
{
    return d->style->packing == RP_LINEAR_SEPARATE &&
                   rp_build_has(build, rp_layer_tensor(l, published))
               ? published
               : name;
}

static rp_value build_layer(struct rp_build *build, const struct rp_decoder *d,
                            struct rp_layer_names *l, rp_value h)
{
    if (is_post_norm(d, l->layer))
        return build_post_norm(build, d, l, h);
    const bool linear = rp_decoder_layer_type(d, l->layer) == RP_DECODER_LINEAR;
    rp_value n = build_norm(
        build, d, l, linear ? "gdn.norm_in" : "attn.norm",
        norm_name(build, d, l, "input_layernorm.weight", "attention_layer_norm.weight"), h);
    h = linear ? build_linear(build, d, l, n, h) : build_attention(build, d, l, n, h);
    n = build_norm(
        build, d, l, "ffn.norm",
        norm_name(build, d, l, "post_attention_layernorm.weight", "feedforward_layer_norm.weight"),
        h);
    return rp_decoder_is_sparse(d, l->layer) ? build_sparse(build, d, l, n, h)
                                             : build_mlp(build, d, l, n, h);
}

rp_value rp_decoder_build(struct rp_build *build, const struct rp_decoder *d)
{
    if (!rp_body_has_layers(build, &d->body))
        return -1;
    const rp_embed_table table = {rp_build_matrix(build, "embed.weight", RP_DECODER_TENSOR,
                                                  (uint64_t)d->body.vocab,
                                                  (uint64_t)d->body.hidden),
                                  RP_INDEX_IDS, 0};
    rp_value h = rp_graph_embed(build->graph, "embed", 1, &table);
    for (int64_t i = 0; i < d->body.layers && !rp_body_lacks_enough(build); i++) {
        struct rp_layer_names l = {.tensors = "layers.", .layer = i};
        h = build_layer(build, d, &l, h);
    }
    const rp_rms_norm norm = {
        .w = rp_build_vector(build, "final_norm.weight", "norm.weight", (uint64_t)d->body.hidden),
        .offset = d->style->offset,
        .eps = d->body.eps};
    return rp_graph_rms_norm(build->graph, "final_norm", h, &norm);
}

rp_value rp_decoder_logits(struct rp_build *build, const struct rp_decoder *d, rp_value last,
                           int64_t yes, int64_t no)
{
    static const char head[] = "lm_head.weight";
    /* As the reference: a head that is there counts, whatever config.json says. */
    const char *tensor = d->tied && !rp_build_has(build, head) ? RP_DECODER_TENSOR : head;
    const uint64_t vocab = (uint64_t)d->body.vocab, hidden = (uint64_t)d->body.hidden;
    const rp_value x = rp_graph_pool(build->graph, "pool.last", last, RP_POOL_LAST);
    const rp_weight w = yes >= 0 ? rp_build_difference(build, head, tensor, vocab, hidden, yes, no)
                                 : rp_build_matrix(build, head, tensor, vocab, hidden);
    return rp_graph_gemm(build->graph, "lm_head", x, w, -1, RP_ACT_NONE, -1);
}
