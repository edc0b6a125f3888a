/* The ops: what each one is called, what it checks, and the steps it becomes.
 *
 * A new op is a row of the table below with its two functions, and a step function in plan/steps.c.
 */
#include "plan/plan.h"

#include "ops/rope.h"
#include "pool/error.h"
#include "pool/memory.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every complaint about a node begins the same way. */
#define FAIL_NODE(err, status, l, i, ...)                                                          \
    fail_node(err, status, (l)->graph->nodes[i].name, i, __VA_ARGS__)

static RP_PRINTF(5, 6) rp_status
    fail_node(rp_error *err, rp_status status, const char *name, size_t i, const char *fmt, ...)
{
    char what[RP_ERROR_MESSAGE_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    return rp_fail(err, status, "op %zu (%s): %s", i, name, what);
}

/* ---- checks shared by ops ----------------------------------------------------------------------
 */

/* The weight is there and is [rows, cols]. */
static rp_status check_weight(const struct rp_lowering *l, size_t i, const char *what, rp_weight w,
                              size_t rows, size_t cols, rp_error *err)
{
    const struct rp_weight_entry *e = rp_weights_entry(l->weights, w);
    if (!e)
        return FAIL_NODE(err, RP_ERR_INVALID, l, i, "there is no weight %d for %s", w, what);
    if (e->rows != rows || e->cols != cols)
        return FAIL_NODE(err, RP_ERR_SHAPE, l, i, "%s %s is [%zu, %zu], expected [%zu, %zu]", what,
                         e->name, e->rows, e->cols, rows, cols);
    return RP_OK;
}

static rp_status check_vector(const struct rp_lowering *l, size_t i, const char *what, rp_weight w,
                              size_t width, rp_error *err)
{
    return w == -1 ? RP_OK : check_weight(l, i, what, w, 1, width, err);
}

static rp_status check_rows(const struct rp_lowering *l, size_t i, struct rp_shape found,
                            rp_rows wanted, rp_error *err)
{
    if (found.rows != wanted)
        return FAIL_NODE(err, RP_ERR_SHAPE, l, i, "its input has a row per %s, expected %s",
                         rp_rows_name(found.rows), rp_rows_name(wanted));
    return RP_OK;
}

static rp_status check_activation(const struct rp_lowering *l, size_t i, rp_activation a,
                                  rp_error *err)
{
    if ((int)a < RP_ACT_NONE || a > RP_ACT_SIGMOID)
        return FAIL_NODE(err, RP_ERR_INVALID, l, i, "there is no activation %d", (int)a);
    return RP_OK;
}

static rp_status check_eps(const struct rp_lowering *l, size_t i, float eps, rp_error *err)
{
    if (!(eps >= 0) || isinf(eps))
        return FAIL_NODE(err, RP_ERR_INVALID, l, i, "eps must be finite and not negative");
    return RP_OK;
}

static struct rp_shape input(const struct rp_lowering *l, size_t i, size_t k)
{
    return l->shapes[l->graph->nodes[i].in[k]];
}

/* ---- check functions, one per op ---------------------------------------------------------------
 */

static rp_status check_embed(struct rp_lowering *l, size_t i, rp_error *err)
{
    const struct rp_node *node = &l->graph->nodes[i];
    if (node->p.embed.n == 0 || node->p.embed.n > RP_EMBED_MAX_TABLES)
        return FAIL_NODE(err, RP_ERR_INVALID, l, i, "%zu tables, expected 1 to %d", node->p.embed.n,
                         RP_EMBED_MAX_TABLES);
    size_t width = 0;
    for (size_t t = 0; t < node->p.embed.n; t++) {
        const rp_embed_table *table = &node->p.embed.tables[t];
        const struct rp_weight_entry *e = rp_weights_entry(l->weights, table->table);
        if (!e)
            return FAIL_NODE(err, RP_ERR_INVALID, l, i, "there is no weight %d for table %zu",
                             table->table, t);
        if ((int)table->index < RP_INDEX_IDS || table->index > RP_INDEX_QTYPES)
            return FAIL_NODE(err, RP_ERR_INVALID, l, i, "table %s has no known index (%d)", e->name,
                             (int)table->index);
        if (t && e->cols != width)
            return FAIL_NODE(err, RP_ERR_SHAPE, l, i, "table %s is [%zu, %zu], expected width %zu",
                             e->name, e->rows, e->cols, width);
        width = e->cols;
    }
    l->shapes[i] = (struct rp_shape){RP_ROWS_TOKENS, width};
    return RP_OK;
}

static rp_status check_layer_norm(struct rp_lowering *l, size_t i, rp_error *err)
{
    const struct rp_node *node = &l->graph->nodes[i];
    l->shapes[i] = input(l, i, 0);
    RP_TRY(check_eps(l, i, node->p.eps, err));
    RP_TRY(check_weight(l, i, "layer_norm weight", node->weight[0], 1, l->shapes[i].width, err));
    return check_vector(l, i, "layer_norm bias", node->weight[1], l->shapes[i].width, err);
}

static rp_status check_gemm(struct rp_lowering *l, size_t i, rp_error *err)
{
    const struct rp_node *node = &l->graph->nodes[i];
    const struct rp_shape a = input(l, i, 0);
    RP_TRY(check_activation(l, i, node->p.activation, err));
    const struct rp_weight_entry *e = rp_weights_entry(l->weights, node->weight[0]);
    if (!e)
        return FAIL_NODE(err, RP_ERR_INVALID, l, i, "there is no weight %d for gemm weight",
                         node->weight[0]);
    if (e->cols != a.width)
        return FAIL_NODE(err, RP_ERR_SHAPE, l, i,
                         "gemm weight %s is [%zu, %zu], expected [%zu, %zu]", e->name, e->rows,
                         e->cols, e->rows, a.width);
    RP_TRY(check_vector(l, i, "gemm bias", node->weight[1], e->rows, err));
    l->shapes[i] = (struct rp_shape){a.rows, e->rows};
    if (node->n_in == 2) {
        const struct rp_shape r = input(l, i, 1);
        if (r.rows != a.rows || r.width != e->rows)
            return FAIL_NODE(err, RP_ERR_SHAPE, l, i, "residual is %s x %zu, expected %s x %zu",
                             rp_rows_name(r.rows), r.width, rp_rows_name(a.rows), e->rows);
    }
    return RP_OK;
}

static int32_t attention_kv_heads(const rp_attention *p)
{
    return p->n_kv_heads ? p->n_kv_heads : p->n_heads;
}

/* Heads of queries, of keys and of values side by side; in the attention of decoders other things
 * may come behind them (a gate). */
static rp_status check_attention_heads(const struct rp_lowering *l, size_t i, const rp_attention *p,
                                       size_t qkv_width, rp_error *err)
{
    const int32_t kv_heads = attention_kv_heads(p);
    if (kv_heads < 0 || p->n_heads % kv_heads)
        return FAIL_NODE(err, RP_ERR_INVALID, l, i,
                         "%d heads of queries cannot share %d heads of keys evenly", p->n_heads,
                         kv_heads);
    const uint64_t width = ((uint64_t)p->n_heads + 2 * (uint64_t)kv_heads) * (uint64_t)p->head_dim;
    if (!p->causal && !p->n_kv_heads && qkv_width != width)
        return FAIL_NODE(err, RP_ERR_SHAPE, l, i,
                         "qkv has width %zu, expected %llu (3 x %d heads of %d)", qkv_width,
                         (unsigned long long)width, p->n_heads, p->head_dim);
    if (qkv_width < width)
        return FAIL_NODE(err, RP_ERR_SHAPE, l, i,
                         "qkv has width %zu, expected at least %llu (%d + 2 x %d heads of %d)",
                         qkv_width, (unsigned long long)width, p->n_heads, kv_heads, p->head_dim);
    return RP_OK;
}

static rp_status check_attention(struct rp_lowering *l, size_t i, rp_error *err)
{
    const rp_attention *p = &l->graph->nodes[i].p.attention;
    const struct rp_shape qkv = input(l, i, 0);
    RP_TRY(check_rows(l, i, qkv, RP_ROWS_TOKENS, err));
    if (p->n_heads <= 0 || p->head_dim <= 0)
        return FAIL_NODE(err, RP_ERR_INVALID, l, i, "%d heads of %d, expected at least 1 of 1",
                         p->n_heads, p->head_dim);
    RP_TRY(check_attention_heads(l, i, p, qkv.width, err));
    if (isnan(p->scale) || isinf(p->scale) || p->scale < 0)
        return FAIL_NODE(err, RP_ERR_INVALID, l, i, "scale must be finite and not negative");
    if (p->window < 0)
        return FAIL_NODE(err, RP_ERR_INVALID, l, i, "window is %d, expected 0 (none) or more",
                         p->window);
    if (p->options && (p->window || p->causal || p->rel_bias != -1))
        return FAIL_NODE(err, RP_ERR_UNSUPPORTED, l, i, "options with %s is not built",
                         p->window   ? "a window"
                         : p->causal ? "causal attention"
                                     : "a relative bias");
    if (p->rel_bias != -1 && (p->causal || attention_kv_heads(p) != p->n_heads))
        return FAIL_NODE(err, RP_ERR_UNSUPPORTED, l, i, "a relative bias with %s is not built",
                         p->causal ? "causal attention" : "shared heads of keys");
    if (p->rel_bias != -1) {
        const struct rp_weight_entry *e = rp_weights_entry(l->weights, p->rel_bias);
        if (!e || e->cols != (size_t)p->n_heads)
            return FAIL_NODE(err, e ? RP_ERR_SHAPE : RP_ERR_INVALID, l, i,
                             "relative bias %s is [%zu, %zu], expected [buckets, %d]",
                             e ? e->name : "(no such weight)", e ? e->rows : 0, e ? e->cols : 0,
                             p->n_heads);
        if (e->rows % 2 || e->rows < 4 || e->rows > 4096 ||
            p->rel_max_distance <= (int32_t)(e->rows / 4) || p->rel_max_distance > 1 << 20)
            return FAIL_NODE(err, RP_ERR_INVALID, l, i,
                             "relative bias with %zu buckets and maximum distance %d is none",
                             e->rows, p->rel_max_distance);
    }
    l->shapes[i] = (struct rp_shape){RP_ROWS_TOKENS, (size_t)p->n_heads * (size_t)p->head_dim};
    return RP_OK;
}

static rp_status check_pool(struct rp_lowering *l, size_t i, rp_error *err)
{
    const rp_pooling mode = l->graph->nodes[i].p.pooling;
    RP_TRY(check_rows(l, i, input(l, i, 0), RP_ROWS_TOKENS, err));
    if ((int)mode < RP_POOL_CLS || mode > RP_POOL_LAST)
        return FAIL_NODE(err, RP_ERR_INVALID, l, i, "there is no pooling mode %d", (int)mode);
    l->shapes[i] = (struct rp_shape){RP_ROWS_SEQS, input(l, i, 0).width};
    return RP_OK;
}

static rp_status check_l2_norm(struct rp_lowering *l, size_t i, rp_error *err)
{
    l->shapes[i] = input(l, i, 0);
    return check_eps(l, i, l->graph->nodes[i].p.eps, err);
}

static rp_status check_activation_op(struct rp_lowering *l, size_t i, rp_error *err)
{
    l->shapes[i] = input(l, i, 0);
    return check_activation(l, i, l->graph->nodes[i].p.activation, err);
}

static rp_status check_add(struct rp_lowering *l, size_t i, rp_error *err)
{
    const struct rp_shape a = input(l, i, 0), b = input(l, i, 1);
    if (a.rows != b.rows || a.width != b.width)
        return FAIL_NODE(err, RP_ERR_SHAPE, l, i, "adds %s x %zu to %s x %zu", rp_rows_name(b.rows),
                         b.width, rp_rows_name(a.rows), a.width);
    l->shapes[i] = a;
    return RP_OK;
}

static rp_status check_concat(struct rp_lowering *l, size_t i, rp_error *err)
{
    const struct rp_node *node = &l->graph->nodes[i];
    l->shapes[i] = (struct rp_shape){input(l, i, 0).rows, 0};
    for (size_t k = 0; k < node->n_in; k++) {
        const struct rp_shape s = input(l, i, k);
        if (s.rows != l->shapes[i].rows)
            return FAIL_NODE(err, RP_ERR_SHAPE, l, i, "input %zu has a row per %s, expected %s", k,
                             rp_rows_name(s.rows), rp_rows_name(l->shapes[i].rows));
        if (!rp_add_ok(l->shapes[i].width, s.width, &l->shapes[i].width))
            return FAIL_NODE(err, RP_ERR_LIMIT, l, i, "its width wraps");
    }
    return RP_OK;
}

static rp_status check_gather_markers(struct rp_lowering *l, size_t i, rp_error *err)
{
    RP_TRY(check_rows(l, i, input(l, i, 0), RP_ROWS_TOKENS, err));
    l->shapes[i] = (struct rp_shape){RP_ROWS_MARKERS, input(l, i, 0).width};
    return RP_OK;
}

/* What 0 stands for in the options of a rope. */
static size_t rope_rotated(const rp_rope *p)
{
    return (size_t)(p->n_rotated ? p->n_rotated : p->head_dim);
}

static double rope_scale(const rp_rope *p)
{
    return p->scale != 0 ? p->scale : 1;
}

static rp_status check_rope(struct rp_lowering *l, size_t i, rp_error *err)
{
    const rp_rope *p = &l->graph->nodes[i].p.rope.options;
    const struct rp_shape x = input(l, i, 0);
    RP_TRY(check_rows(l, i, x, RP_ROWS_TOKENS, err));
    if (p->n_heads <= 0 || p->head_dim <= 0)
        return FAIL_NODE(err, RP_ERR_INVALID, l, i, "%d heads of %d, expected at least 1 of 1",
                         p->n_heads, p->head_dim);
    if ((uint64_t)p->n_heads * (uint64_t)p->head_dim > x.width)
        return FAIL_NODE(err, RP_ERR_SHAPE, l, i,
                         "its input has width %zu, expected at least %llu (%d heads of %d)",
                         x.width, (unsigned long long)p->n_heads * (unsigned)p->head_dim,
                         p->n_heads, p->head_dim);
    if (p->n_rotated < 0 || p->n_rotated > p->head_dim || rope_rotated(p) % 2)
        return FAIL_NODE(err, RP_ERR_INVALID, l, i,
                         "%d dims of a head of %d are turned, expected an even number up to that",
                         p->n_rotated ? p->n_rotated : p->head_dim, p->head_dim);
    if (!p->inv_freq && (!(p->theta >= 1) || isinf(p->theta)))
        return FAIL_NODE(err, RP_ERR_INVALID, l, i, "theta must be finite and at least 1");
    for (size_t k = 0; p->inv_freq && k < rope_rotated(p) / 2; k++)
        if (!(fabs(p->inv_freq[k]) <= RP_ROPE_MOST))
            return FAIL_NODE(err, RP_ERR_INVALID, l, i,
                             "inverse frequency %zu must be within -2^20 and 2^20", k);
    if (!(p->scale >= 0 && p->scale <= RP_ROPE_MOST))
        return FAIL_NODE(err, RP_ERR_INVALID, l, i, "scale must be within 0 and 2^20");
    l->shapes[i] = x;
    return RP_OK;
}

static rp_status check_glu(struct rp_lowering *l, size_t i, rp_error *err)
{
    const struct rp_shape x = input(l, i, 0);
    RP_TRY(check_activation(l, i, l->graph->nodes[i].p.activation, err));
    if (x.width % 2)
        return FAIL_NODE(err, RP_ERR_SHAPE, l, i, "its input has width %zu, expected two halves",
                         x.width);
    l->shapes[i] = (struct rp_shape){x.rows, x.width / 2};
    return RP_OK;
}

static rp_status check_add_types(struct rp_lowering *l, size_t i, rp_error *err)
{
    const rp_weight table = l->graph->nodes[i].weight[0];
    const struct rp_weight_entry *e = rp_weights_entry(l->weights, table);
    l->shapes[i] = input(l, i, 0);
    if (l->shapes[i].rows == RP_ROWS_SEQS)
        return FAIL_NODE(err, RP_ERR_SHAPE, l, i,
                         "its input has a row per seqs, expected tokens or markers");
    if (!e)
        return FAIL_NODE(err, RP_ERR_INVALID, l, i, "there is no weight %d for type table", table);
    return check_weight(l, i, "type table", table, e->rows, l->shapes[i].width, err);
}

#define ACT_NUMBERS 4 /* top1, top1 - top2, entropy, count */

static rp_status check_act_features(struct rp_lowering *l, size_t i, rp_error *err)
{
    const struct rp_shape logits = input(l, i, 1);
    RP_TRY(check_rows(l, i, input(l, i, 0), RP_ROWS_SEQS, err));
    if (logits.rows != RP_ROWS_MARKERS || logits.width != 1)
        return FAIL_NODE(err, RP_ERR_SHAPE, l, i, "logits are %s x %zu, expected markers x 1",
                         rp_rows_name(logits.rows), logits.width);
    l->shapes[i] = (struct rp_shape){RP_ROWS_SEQS, 0};
    if (!rp_add_ok(input(l, i, 0).width, ACT_NUMBERS, &l->shapes[i].width))
        return FAIL_NODE(err, RP_ERR_LIMIT, l, i, "its width wraps");
    return RP_OK;
}

/* first..first + n lie within the columns of `what`. */
static rp_status check_columns(const struct rp_lowering *l, size_t i, const char *what,
                               size_t width, int32_t first, uint64_t n, rp_error *err)
{
    if (first < 0 || (uint64_t)first + n > width)
        return FAIL_NODE(err, RP_ERR_SHAPE, l, i,
                         "%s has width %zu, expected at least %llu columns from %d on", what, width,
                         (unsigned long long)n, first);
    return RP_OK;
}

static rp_status check_rms_norm(struct rp_lowering *l, size_t i, rp_error *err)
{
    const rp_rms_norm *p = &l->graph->nodes[i].p.rms_norm;
    const struct rp_shape x = input(l, i, 0);
    size_t dim = x.width;
    l->shapes[i] = x;
    RP_TRY(check_eps(l, i, p->eps, err));
    if (p->n_heads == 0 && (p->head_dim != 0 || p->first_column != 0))
        return FAIL_NODE(err, RP_ERR_INVALID, l, i,
                         "heads of %d from column %d on, but none of them; 0, 0 for whole rows",
                         p->head_dim, p->first_column);
    if (p->n_heads != 0) {
        if (p->n_heads < 0 || p->head_dim <= 0)
            return FAIL_NODE(err, RP_ERR_INVALID, l, i, "%d heads of %d, expected at least 1 of 1",
                             p->n_heads, p->head_dim);
        RP_TRY(check_columns(l, i, "its input", x.width, p->first_column,
                             (uint64_t)p->n_heads * (uint64_t)p->head_dim, err));
        dim = (size_t)p->head_dim;
    }
    if (p->w == -1 && p->offset)
        return FAIL_NODE(err, RP_ERR_INVALID, l, i, "an offset, but no weight");
    return check_vector(l, i, "rms_norm weight", p->w, dim, err);
}

/* The second input: as many columns from first_column on. */
static rp_status check_gate_input(const struct rp_lowering *l, size_t i, int32_t first, size_t n,
                                  rp_error *err)
{
    const struct rp_shape x = input(l, i, 0), gate = input(l, i, 1);
    if (gate.rows != x.rows)
        return FAIL_NODE(err, RP_ERR_SHAPE, l, i, "its gate has a row per %s, expected %s",
                         rp_rows_name(gate.rows), rp_rows_name(x.rows));
    return check_columns(l, i, "its gate", gate.width, first, n, err);
}

static rp_status check_gate(struct rp_lowering *l, size_t i, rp_error *err)
{
    const rp_gate *p = &l->graph->nodes[i].p.gate;
    l->shapes[i] = input(l, i, 0);
    RP_TRY(check_activation(l, i, p->activation, err));
    return check_gate_input(l, i, p->first_column, p->one ? 1 : l->shapes[i].width, err);
}

static rp_status check_gated_norm(struct rp_lowering *l, size_t i, rp_error *err)
{
    const rp_gated_norm *p = &l->graph->nodes[i].p.gated_norm;
    const struct rp_shape x = input(l, i, 0);
    l->shapes[i] = x;
    RP_TRY(check_eps(l, i, p->eps, err));
    RP_TRY(check_activation(l, i, p->activation, err));
    if (p->head_dim <= 0 || x.width % (size_t)p->head_dim)
        return FAIL_NODE(err, RP_ERR_SHAPE, l, i,
                         "its input has width %zu, which is no heads of %d", x.width, p->head_dim);
    RP_TRY(check_weight(l, i, "gated_norm weight", p->w, 1, (size_t)p->head_dim, err));
    return check_gate_input(l, i, p->first_column, x.width, err);
}

static rp_status check_gdn_gates(struct rp_lowering *l, size_t i, rp_error *err)
{
    const rp_gdn_gates *p = &l->graph->nodes[i].p.gdn_gates;
    const struct rp_shape x = input(l, i, 0);
    if (p->n_heads <= 0)
        return FAIL_NODE(err, RP_ERR_INVALID, l, i, "%d heads, expected at least 1", p->n_heads);
    const size_t heads = (size_t)p->n_heads;
    RP_TRY(check_columns(l, i, "its input (a)", x.width, p->a_column, heads, err));
    RP_TRY(check_columns(l, i, "its input (b)", x.width, p->b_column, heads, err));
    RP_TRY(check_weight(l, i, "a_log", p->a_log, 1, heads, err));
    RP_TRY(check_vector(l, i, "dt_bias", p->dt_bias, heads, err));
    if (!(p->beta_scale >= 0) || isinf(p->beta_scale))
        return FAIL_NODE(err, RP_ERR_INVALID, l, i, "beta_scale must be finite and not negative");
    l->shapes[i] = (struct rp_shape){x.rows, 2 * heads};
    return RP_OK;
}

/* Expert e's two weights; inner is what the first expert's are made for. */
static rp_status check_expert(const struct rp_lowering *l, size_t i, size_t e, size_t inner,
                              rp_error *err)
{
    const rp_experts *p = &l->graph->nodes[i].p.experts.options;
    const size_t width = input(l, i, 0).width;
    char what[48];
    snprintf(what, sizeof what, "expert %zu's down", e);
    RP_TRY(check_weight(l, i, what, p->down[e], width, inner, err));
    snprintf(what, sizeof what, "expert %zu's up", e);
    return check_weight(l, i, what, p->up[e], 2 * inner, width, err);
}

static rp_status check_experts(struct rp_lowering *l, size_t i, rp_error *err)
{
    const struct rp_node *node = &l->graph->nodes[i];
    const rp_experts *p = &node->p.experts.options;
    const struct rp_shape x = input(l, i, 0), logits = input(l, i, 1);
    l->shapes[i] = x;
    if (p->n_experts < 1 || p->n_experts > RP_EXPERTS_MAX || p->n_used < 1 ||
        p->n_used > p->n_experts)
        return FAIL_NODE(err, RP_ERR_INVALID, l, i,
                         "%d of %d experts, expected 1 or more of at most %d", p->n_used,
                         p->n_experts, RP_EXPERTS_MAX);
    if (!p->up)
        return FAIL_NODE(err, RP_ERR_INVALID, l, i, "its experts have no weights");
    RP_TRY(check_activation(l, i, p->activation, err));
    if (logits.rows != x.rows || logits.width != (size_t)p->n_experts)
        return FAIL_NODE(err, RP_ERR_SHAPE, l, i, "logits are %s x %zu, expected %s x %d",
                         rp_rows_name(logits.rows), logits.width, rp_rows_name(x.rows),
                         p->n_experts);
    if (node->n_in == 3 && (input(l, i, 2).rows != x.rows || input(l, i, 2).width != x.width))
        return FAIL_NODE(err, RP_ERR_SHAPE, l, i, "residual is %s x %zu, expected %s x %zu",
                         rp_rows_name(input(l, i, 2).rows), input(l, i, 2).width,
                         rp_rows_name(x.rows), x.width);
    const struct rp_weight_entry *down = rp_weights_entry(l->weights, p->down[0]);
    for (size_t e = 0; e < (size_t)p->n_experts; e++)
        RP_TRY(check_expert(l, i, e, down ? down->cols : 0, err));
    return RP_OK;
}

static rp_status check_conv(struct rp_lowering *l, size_t i, rp_error *err)
{
    const struct rp_node *node = &l->graph->nodes[i];
    const struct rp_shape x = input(l, i, 0);
    const struct rp_weight_entry *e = rp_weights_entry(l->weights, node->weight[0]);
    RP_TRY(check_rows(l, i, x, RP_ROWS_TOKENS, err));
    RP_TRY(check_activation(l, i, node->p.activation, err));
    if (!e)
        return FAIL_NODE(err, RP_ERR_INVALID, l, i, "there is no weight %d for conv weight",
                         node->weight[0]);
    if (e->cols < 1 || e->cols > RP_CONV_MAX_KERNEL)
        return FAIL_NODE(err, RP_ERR_SHAPE, l, i,
                         "conv weight %s is [%zu, %zu], expected a kernel of 1 to %d", e->name,
                         e->rows, e->cols, RP_CONV_MAX_KERNEL);
    if (e->rows > x.width)
        return FAIL_NODE(err, RP_ERR_SHAPE, l, i,
                         "its input has width %zu, expected at least %zu, the channels of %s",
                         x.width, e->rows, e->name);
    l->shapes[i] = (struct rp_shape){RP_ROWS_TOKENS, e->rows};
    return check_vector(l, i, "conv bias", node->weight[1], e->rows, err);
}

static rp_status check_gdn_options(const struct rp_lowering *l, size_t i, rp_error *err)
{
    const rp_gdn *p = &l->graph->nodes[i].p.gdn;
    if (p->n_key_heads <= 0 || p->key_dim <= 0 || p->n_value_heads <= 0 || p->value_dim <= 0)
        return FAIL_NODE(err, RP_ERR_INVALID, l, i,
                         "%d key heads of %d, %d value heads of %d, expected at least 1 of 1",
                         p->n_key_heads, p->key_dim, p->n_value_heads, p->value_dim);
    if (p->n_value_heads % p->n_key_heads)
        return FAIL_NODE(err, RP_ERR_INVALID, l, i,
                         "%d value heads are no multiple of %d key heads", p->n_value_heads,
                         p->n_key_heads);
    if (p->map != RP_GDN_GROUPED && p->map != RP_GDN_TILED)
        return FAIL_NODE(err, RP_ERR_INVALID, l, i, "there is no map %d of heads", (int)p->map);
    if ((int)p->norm < RP_GDN_NORM_NONE || p->norm > RP_GDN_NORM_MAX)
        return FAIL_NODE(err, RP_ERR_INVALID, l, i, "there is no norm %d of queries and keys",
                         (int)p->norm);
    if (!(p->scale >= 0) || isinf(p->scale))
        return FAIL_NODE(err, RP_ERR_INVALID, l, i, "scale must be finite and not negative");
    RP_TRY(check_eps(l, i, p->eps, err));
    if (!rp_gdn_eps_fits(p))
        return FAIL_NODE(err, RP_ERR_INVALID, l, i,
                         "its norm needs an eps that is not denormal nor too small for the scale");
    return RP_OK;
}

static rp_status check_gdn(struct rp_lowering *l, size_t i, rp_error *err)
{
    const rp_gdn *p = &l->graph->nodes[i].p.gdn;
    const struct rp_shape qkv = input(l, i, 0), gates = input(l, i, 1);
    RP_TRY(check_rows(l, i, qkv, RP_ROWS_TOKENS, err));
    RP_TRY(check_gdn_options(l, i, err));
    const uint64_t keys = (uint64_t)p->n_key_heads * (uint64_t)p->key_dim;
    const uint64_t values = (uint64_t)p->n_value_heads * (uint64_t)p->value_dim;
    if (qkv.width < 2 * keys + values)
        return FAIL_NODE(err, RP_ERR_SHAPE, l, i,
                         "qkv has width %zu, expected at least %llu (2 x %d heads of %d, %d of %d)",
                         qkv.width, (unsigned long long)(2 * keys + values), p->n_key_heads,
                         p->key_dim, p->n_value_heads, p->value_dim);
    if (gates.rows != RP_ROWS_TOKENS || gates.width != 2 * (size_t)p->n_value_heads)
        return FAIL_NODE(err, RP_ERR_SHAPE, l, i, "gates are %s x %zu, expected tokens x %zu",
                         rp_rows_name(gates.rows), gates.width, 2 * (size_t)p->n_value_heads);
    l->shapes[i] = (struct rp_shape){RP_ROWS_TOKENS, (size_t)values};
    return RP_OK;
}

/* What a batch brings along is the same for all ops that read it: the width that the first such op
 * asks for, i's own when it is the first. */
static size_t brought_width(const struct rp_lowering *l, size_t i, enum rp_op op, size_t own)
{
    for (size_t k = 0; k < i; k++) {
        const struct rp_node *node = &l->graph->nodes[k];
        if (node->op == op)
            return op == RP_OP_INPUT ? node->p.width : (size_t)node->p.cross.memory_width;
    }
    return own;
}

static rp_status check_input(struct rp_lowering *l, size_t i, rp_error *err)
{
    const size_t width = l->graph->nodes[i].p.width;
    const size_t first = brought_width(l, i, RP_OP_INPUT, width);
    if (width == 0 || width > INT32_MAX)
        return FAIL_NODE(err, RP_ERR_INVALID, l, i, "input rows of width %zu", width);
    if (width != first)
        return FAIL_NODE(err, RP_ERR_SHAPE, l, i,
                         "input rows of width %zu, and of width %zu in an op before", width, first);
    l->shapes[i] = (struct rp_shape){RP_ROWS_TOKENS, width};
    return RP_OK;
}

static int32_t cross_kv_heads(const rp_cross_attention *p)
{
    return p->n_kv_heads ? p->n_kv_heads : p->n_heads;
}

/* Where its heads lie in a row of the memory, and how many rows there are. */
static rp_status check_memory(const struct rp_lowering *l, size_t i, rp_error *err)
{
    const rp_cross_attention *p = &l->graph->nodes[i].p.cross;
    const uint64_t columns = (uint64_t)cross_kv_heads(p) * (uint64_t)p->head_dim;
    const size_t width = p->memory_width > 0 ? (size_t)p->memory_width : 0;
    const size_t first = brought_width(l, i, RP_OP_CROSS_ATTENTION, width);
    if (p->max_memory <= 0)
        return FAIL_NODE(err, RP_ERR_INVALID, l, i,
                         "memories of at most %d rows, expected 1 or more", p->max_memory);
    if (width != first)
        return FAIL_NODE(err, RP_ERR_SHAPE, l, i,
                         "memory rows of width %zu, and of width %zu in an op before", width,
                         first);
    RP_TRY(check_columns(l, i, "its memory (keys)", width, p->key_column, columns, err));
    return check_columns(l, i, "its memory (values)", width, p->value_column, columns, err);
}

static rp_status check_cross_attention(struct rp_lowering *l, size_t i, rp_error *err)
{
    const rp_cross_attention *p = &l->graph->nodes[i].p.cross;
    const struct rp_shape q = input(l, i, 0);
    RP_TRY(check_rows(l, i, q, RP_ROWS_TOKENS, err));
    if (p->n_heads <= 0 || p->head_dim <= 0)
        return FAIL_NODE(err, RP_ERR_INVALID, l, i, "%d heads of %d, expected at least 1 of 1",
                         p->n_heads, p->head_dim);
    if (p->n_kv_heads < 0 || p->n_heads % cross_kv_heads(p))
        return FAIL_NODE(err, RP_ERR_INVALID, l, i,
                         "%d heads of queries cannot share %d heads of keys evenly", p->n_heads,
                         p->n_kv_heads);
    if (q.width != (uint64_t)p->n_heads * (uint64_t)p->head_dim)
        return FAIL_NODE(err, RP_ERR_SHAPE, l, i, "q has width %zu, expected %llu (%d heads of %d)",
                         q.width, (unsigned long long)p->n_heads * (unsigned)p->head_dim,
                         p->n_heads, p->head_dim);
    if (!(p->scale >= 0) || isinf(p->scale))
        return FAIL_NODE(err, RP_ERR_INVALID, l, i, "scale must be finite and not negative");
    RP_TRY(check_memory(l, i, err));
    l->shapes[i] = q;
    return RP_OK;
}

static rp_status check_ordinal_features(struct rp_lowering *l, size_t i, rp_error *err)
{
    const int32_t qtype = l->graph->nodes[i].p.qtype;
    if (qtype < 0)
        return FAIL_NODE(err, RP_ERR_INVALID, l, i, "there is no question type %d", qtype);
    l->shapes[i] = (struct rp_shape){RP_ROWS_MARKERS, RP_ORDINAL_FEATURES};
    return RP_OK;
}

/* ---- lowering ----------------------------------------------------------------------------------
 */

static const char *keep_name(struct rp_lowering *l, const char *name, const char *dot,
                             const char *read, const char *suffix)
{
    char *to = l->plan->names + l->names_used;
    const int n =
        snprintf(to, l->plan->names_bytes - l->names_used, "%s%s%s%s", name, dot, read, suffix);
    l->names_used += (size_t)n + 1;
    return to;
}

/* A node's steps begin with its name; where it is computed twice, for rows that are read in two
 * ways, and where rows of it are gathered, "first", "last" or "marked" tells them apart. */
static const char *name_step(struct rp_lowering *l, enum rp_op op, size_t node, const char *suffix)
{
    const char *name = l->graph->nodes[node].name;
    const bool once = (l->reads[node] & (l->reads[node] - 1)) == 0;
    if (l->read == RP_READ_ALL || (once && op != RP_OP_GATHER))
        return keep_name(l, name, "", "", suffix);
    return keep_name(l, name, ".", rp_read_name(l->read), suffix);
}

/* A step with a slot of its own for its result. */
static struct rp_step *append_step(struct rp_lowering *l, enum rp_op op, size_t node,
                                   const char *suffix, struct rp_shape shape)
{
    rp_plan *plan = l->plan;
    struct rp_step *step = &plan->steps[plan->n_steps++];
    memset(step, 0, sizeof *step);
    step->op = op;
    step->node = node;
    step->name = name_step(l, op, node, suffix);
    step->read = l->read;
    step->kernel = plan->ops->name;
    step->rows = shape.rows;
    step->width = shape.width;
    step->out = (int32_t)plan->n_slots;
    plan->slots[plan->n_slots++] = (struct rp_slot){.rows = shape.rows, .width = shape.width};
    step->bytes_per_row = shape.width * sizeof(float);
    return step;
}

static void add_input(struct rp_lowering *l, struct rp_step *step, int32_t slot)
{
    step->in[step->n_in++] = slot;
    step->bytes_per_row += l->plan->slots[slot].width * sizeof(float);
}

static int32_t slot_of_input(const struct rp_lowering *l, size_t i, size_t k)
{
    return l->slot_of[l->graph->nodes[i].in[k]];
}

/* Adds a form of a weight to the plan's, once. */
static rp_status count(struct rp_lowering *l, rp_weight w, enum rp_weight_form form, rp_error *err)
{
    bool *counted = &l->counted[(size_t)w * RP_FORM_COUNT + form];
    size_t bytes;
    if (*counted)
        return RP_OK;
    RP_TRY(rp_weights_form_bytes(rp_weights_entry(l->weights, w), form, &bytes, err));
    *counted = true;
    l->plan->weights_bytes += bytes;
    return RP_OK;
}

/* The form of a weight, converted now unless this is a dry run (then NULL). */
static rp_status need(struct rp_lowering *l, size_t i, rp_weight w, enum rp_weight_form form,
                      const void **out, rp_error *err)
{
    *out = NULL;
    if (w == -1)
        return RP_OK;
    rp_status status = count(l, w, form, err);
    if (status == RP_OK && !l->make)
        return RP_OK;
    if (status == RP_OK)
        status = rp_weights_make(l->make, w, form, l->pool, err);
    if (status != RP_OK)
        return rp_fail_within(err, status, "op %zu (%s)", i, l->graph->nodes[i].name);
    *out = rp_weights_entry(l->weights, w)->form[form];
    return RP_OK;
}

static rp_status need_vector(struct rp_lowering *l, size_t i, rp_weight w, const float **out,
                             rp_error *err)
{
    const void *p;
    RP_TRY(need(l, i, w, RP_FORM_VECTOR, &p, err));
    *out = p;
    return RP_OK;
}

/* The number of the index array of a kind, made when it is new.  It indexes the table `name` of so
 * many entries. */
static rp_status index_number(struct rp_lowering *l, size_t i, rp_index kind, int32_t parameter,
                              const char *name, size_t entries, size_t *out, rp_error *err)
{
    rp_plan *plan = l->plan;
    size_t k = 0;
    while (k < plan->n_indices &&
           (plan->indices[k].kind != kind || plan->indices[k].parameter != parameter))
        k++;
    if (k == RP_PLAN_MAX_INDICES)
        return FAIL_NODE(err, RP_ERR_LIMIT, l, i, "more than %d kinds of index",
                         RP_PLAN_MAX_INDICES);
    if (k == plan->n_indices)
        plan->indices[plan->n_indices++] =
            (struct rp_plan_index){.kind = kind, .parameter = parameter};
    if (!plan->indices[k].least_entries || entries < plan->indices[k].least_entries) {
        plan->indices[k].least_entries = entries;
        plan->indices[k].table_name = keep_name(l, name, "", "", "");
    }
    *out = k;
    return RP_OK;
}

/* Table t of a step: its rows, and the index array that picks among them. */
static rp_status need_table(struct rp_lowering *l, size_t i, struct rp_step *step, size_t t,
                            const rp_embed_table *table, rp_error *err)
{
    const struct rp_weight_entry *e = rp_weights_entry(l->weights, table->table);
    const int32_t parameter = table->index == RP_INDEX_POSITION_NONPAD ? table->parameter : 0;
    step->p.embed.n = t + 1;
    RP_TRY(index_number(l, i, table->index, parameter, e->name, e->rows, &step->p.embed.index[t],
                        err));
    RP_TRY(need(l, i, table->table, RP_FORM_TABLE, &step->p.embed.rows[t], err));
    step->p.embed.dtype[t] = e->table_dtype;
    step->bytes_per_row += step->width * (step->p.embed.dtype[t] == RP_DTYPE_F32 ? 4 : 2);
    return RP_OK;
}

static rp_status lower_embed(struct rp_lowering *l, size_t i, rp_error *err)
{
    const struct rp_node *node = &l->graph->nodes[i];
    struct rp_step *step = append_step(l, RP_OP_EMBED, i, "", l->shapes[i]);
    for (size_t t = 0; t < node->p.embed.n; t++) {
        RP_TRY(need_table(l, i, step, t, &node->p.embed.tables[t], err));
        step->flops_per_row += t ? step->width : 0;
    }
    l->slot_of[i] = step->out;
    return RP_OK;
}

static rp_status lower_layer_norm(struct rp_lowering *l, size_t i, rp_error *err)
{
    const struct rp_node *node = &l->graph->nodes[i];
    struct rp_step *step = append_step(l, RP_OP_LAYER_NORM, i, "", l->shapes[i]);
    add_input(l, step, slot_of_input(l, i, 0));
    step->p.norm.eps = node->p.eps;
    RP_TRY(need_vector(l, i, node->weight[0], &step->p.norm.w, err));
    RP_TRY(need_vector(l, i, node->weight[1], &step->p.norm.b, err));
    step->flops_per_row = 8 * step->width;
    l->slot_of[i] = step->out;
    return RP_OK;
}

static void lower_activation_step(struct rp_lowering *l, size_t i, const char *suffix,
                                  rp_activation activation, int32_t slot)
{
    struct rp_step *step = append_step(l, RP_OP_ACTIVATION, i, suffix, l->shapes[i]);
    add_input(l, step, slot);
    step->p.activation = activation;
    l->slot_of[i] = step->out;
}

static void lower_add_step(struct rp_lowering *l, size_t i, const char *suffix, int32_t a,
                           int32_t b)
{
    struct rp_step *step = append_step(l, RP_OP_ADD, i, suffix, l->shapes[i]);
    add_input(l, step, a);
    add_input(l, step, b);
    step->flops_per_row = step->width;
    l->slot_of[i] = step->out;
}

/* The rows of a GEMM's first operand for an INT8 product, as a step of their own: rounded once,
 * whoever then multiplies which columns. */
static int32_t lower_quantize(struct rp_lowering *l, size_t i, const struct rp_weight_entry *w)
{
    const size_t k = input(l, i, 0).width;
    const struct rp_shape shape = {l->shapes[i].rows, rp_qgemm_row_bytes(k) / sizeof(float)};
    struct rp_step *step = append_step(l, RP_OP_QUANTIZE, i, ".q8", shape);
    add_input(l, step, slot_of_input(l, i, 0));
    step->p.quantize.k = k;
    step->p.quantize.factors = w->smooth ? w->smooth + k : NULL;
    step->flops_per_row = 4 * k;
    return step->out;
}

/* The product alone, in FP32 or, where the weight says so, in INT8. */
static rp_status lower_product(struct rp_lowering *l, size_t i, struct rp_step **out, rp_error *err)
{
    const struct rp_node *node = &l->graph->nodes[i];
    const struct rp_weight_entry *w = rp_weights_entry(l->weights, node->weight[0]);
    const int32_t rows = w->int8 ? lower_quantize(l, i, w) : slot_of_input(l, i, 0);
    struct rp_step *step = append_step(l, w->int8 ? RP_OP_QGEMM : RP_OP_GEMM, i, "", l->shapes[i]);
    add_input(l, step, rows);
    step->p.gemm.k = input(l, i, 0).width;
    step->flops_per_row = 2 * (uint64_t)step->width * step->p.gemm.k;
    step->bytes_fixed = (uint64_t)step->width * step->p.gemm.k * (w->int8 ? 1 : sizeof(float));
    step->kernel = w->int8 ? l->plan->qgemm->name : l->plan->gemm->name;
    RP_TRY(need(l, i, node->weight[0], w->int8 ? RP_FORM_INT8 : RP_FORM_PACKED,
                &step->p.gemm.packed, err));
    *out = step;
    return need_vector(l, i, node->weight[1], &step->p.gemm.bias, err);
}

static rp_status lower_gemm(struct rp_lowering *l, size_t i, rp_error *err)
{
    const struct rp_node *node = &l->graph->nodes[i];
    const bool has_residual = node->n_in == 2;
    struct rp_step *step;
    RP_TRY(lower_product(l, i, &step, err));
    l->slot_of[i] = step->out;
    if (!l->no_fuse) {
        step->p.gemm.activation = node->p.activation;
        if (has_residual)
            add_input(l, step, slot_of_input(l, i, 1));
        return RP_OK;
    }
    if (node->p.activation != RP_ACT_NONE)
        lower_activation_step(l, i, ".act", node->p.activation, l->slot_of[i]);
    if (has_residual)
        lower_add_step(l, i, ".add", l->slot_of[i], slot_of_input(l, i, 1));
    return RP_OK;
}

/* MPNet's bias as a table over distances, so that a step looks it up without the buckets'
 * logarithm. */
static rp_status expand_rel_bias(struct rp_lowering *l, size_t i, struct rp_step *step,
                                 rp_error *err)
{
    const rp_attention *p = &l->graph->nodes[i].p.attention;
    const struct rp_weight_entry *e = rp_weights_entry(l->weights, p->rel_bias);
    const float *bias;
    step->p.attention.rel_span = (size_t)p->rel_max_distance;
    RP_TRY(need_vector(l, i, p->rel_bias, &bias, err));
    const size_t entries = 2 * step->p.attention.rel_span + 1;
    size_t bytes;
    const bool ok = rp_mul_ok(entries * sizeof(float), step->p.attention.n_heads, &bytes);
    if (ok)
        l->plan->own_bytes += bytes;
    if (!bias)
        return RP_OK;
    if (ok)
        step->p.attention.rel = rp_aligned_alloc(bytes);
    if (!step->p.attention.rel)
        return FAIL_NODE(err, RP_ERR_NOMEM, l, i, "no memory for the relative bias");
    for (size_t d = 0; d < entries; d++) {
        const int32_t bucket =
            rp_attention_rel_bucket((int64_t)d - (int64_t)step->p.attention.rel_span,
                                    (int32_t)e->rows, p->rel_max_distance);
        for (size_t h = 0; h < step->p.attention.n_heads; h++)
            step->p.attention.rel[h * entries + d] = bias[(size_t)bucket * e->cols + h];
    }
    return RP_OK;
}

static float attention_scale(float scale, int32_t head_dim)
{
    return scale > 0 ? scale : (float)(1.0 / sqrt((double)head_dim));
}

static rp_status lower_attention(struct rp_lowering *l, size_t i, rp_error *err)
{
    const rp_attention *p = &l->graph->nodes[i].p.attention;
    struct rp_step *step = append_step(l, RP_OP_ATTENTION, i, "", l->shapes[i]);
    add_input(l, step, l->slots[l->graph->nodes[i].in[0]]); /* whole, whichever queries */
    step->kernel = l->plan->attention->name;
    step->p.attention.n_heads = (size_t)p->n_heads;
    step->p.attention.n_kv_heads = (size_t)attention_kv_heads(p);
    step->p.attention.causal = p->causal;
    step->p.attention.head_dim = (size_t)p->head_dim;
    step->p.attention.options = p->options;
    step->p.attention.scale = attention_scale(p->scale, p->head_dim);
    step->p.attention.window = (size_t)p->window;
    step->flops_per_row = 4 * (uint64_t)step->width;
    if (p->rel_bias != -1)
        RP_TRY(expand_rel_bias(l, i, step, err));
    l->slot_of[i] = step->out;
    return RP_OK;
}

/* A gather of token rows that are all that there is of the node's input: their place stays. */
static void lower_moved_gather(struct rp_lowering *l, size_t i)
{
    const enum rp_read read = rp_node_read(&l->graph->nodes[i]);
    const size_t from = (size_t)l->graph->nodes[i].in[0];
    struct rp_step *step = append_step(l, RP_OP_GATHER, i, "", l->shapes[i]);
    add_input(l, step, l->slots[read * l->graph->n_nodes + from]);
    step->p.gather = read;
    l->slot_of[i] = step->out;
}

/* The rows of a whole value that are read; once for all that read them so. */
static void lower_gather(struct rp_lowering *l, size_t from)
{
    const struct rp_shape shape = {rp_read_rows(l->read), l->shapes[from].width};
    struct rp_step *step = append_step(l, RP_OP_GATHER, from, "", shape);
    add_input(l, step, l->slots[from]);
    step->p.gather = l->read;
    l->slot_of[from] = step->out;
}

static rp_status lower_pool(struct rp_lowering *l, size_t i, rp_error *err)
{
    (void)err;
    if (rp_pruned(l, (size_t)l->graph->nodes[i].in[0])) {
        lower_moved_gather(l, i);
        return RP_OK;
    }
    struct rp_step *step = append_step(l, RP_OP_POOL, i, "", l->shapes[i]);
    add_input(l, step, slot_of_input(l, i, 0));
    step->p.pooling = l->graph->nodes[i].p.pooling;
    l->slot_of[i] = step->out;
    return RP_OK;
}

static rp_status lower_l2_norm(struct rp_lowering *l, size_t i, rp_error *err)
{
    (void)err;
    struct rp_step *step = append_step(l, RP_OP_L2_NORM, i, "", l->shapes[i]);
    add_input(l, step, slot_of_input(l, i, 0));
    step->p.norm.eps = l->graph->nodes[i].p.eps;
    step->flops_per_row = 3 * step->width;
    l->slot_of[i] = step->out;
    return RP_OK;
}

static rp_status lower_activation_op(struct rp_lowering *l, size_t i, rp_error *err)
{
    (void)err;
    lower_activation_step(l, i, "", l->graph->nodes[i].p.activation, slot_of_input(l, i, 0));
    return RP_OK;
}

static rp_status lower_add(struct rp_lowering *l, size_t i, rp_error *err)
{
    (void)err;
    lower_add_step(l, i, "", slot_of_input(l, i, 0), slot_of_input(l, i, 1));
    return RP_OK;
}

static rp_status lower_concat(struct rp_lowering *l, size_t i, rp_error *err)
{
    (void)err;
    struct rp_step *step = append_step(l, RP_OP_CONCAT, i, "", l->shapes[i]);
    for (size_t k = 0; k < l->graph->nodes[i].n_in; k++)
        add_input(l, step, slot_of_input(l, i, k));
    l->slot_of[i] = step->out;
    return RP_OK;
}

static rp_status lower_gather_markers(struct rp_lowering *l, size_t i, rp_error *err)
{
    (void)err;
    if (rp_pruned(l, (size_t)l->graph->nodes[i].in[0])) {
        lower_moved_gather(l, i);
        return RP_OK;
    }
    struct rp_step *step = append_step(l, RP_OP_GATHER_MARKERS, i, "", l->shapes[i]);
    add_input(l, step, slot_of_input(l, i, 0));
    l->slot_of[i] = step->out;
    return RP_OK;
}

static bool same_rope_table(const rp_rope *a, const rp_rope *b)
{
    const size_t half = rope_rotated(a) / 2;
    if (rope_rotated(b) / 2 != half || a->interleaved != b->interleaved ||
        rope_scale(a) != rope_scale(b) || !a->inv_freq != !b->inv_freq)
        return false;
    return a->inv_freq ? memcmp(a->inv_freq, b->inv_freq, half * sizeof *a->inv_freq) == 0
                       : a->theta == b->theta;
}

/* The table for positions of the bucket, made when there is none like it yet (in a dry run only
 * counted). */
static rp_status rope_table(struct rp_lowering *l, size_t i, struct rp_ops_rope *turn,
                            rp_error *err)
{
    rp_plan *plan = l->plan;
    const rp_rope *p = &l->graph->nodes[i].p.rope.options;
    const size_t positions = plan->bucket.tokens, half = turn->n_rotated / 2;
    size_t bytes, k = 0;
    while (k < plan->n_ropes &&
           !same_rope_table(p, &l->graph->nodes[plan->ropes[k].node].p.rope.options))
        k++;
    turn->table = plan->ropes[k].table;
    if (k < plan->n_ropes)
        return RP_OK;
    if (!rp_mul_ok(positions,
                   rp_rope_row_floats(turn->n_rotated, turn->interleaved) * sizeof(float),
                   &bytes) ||
        bytes > (size_t)1 << 48)
        return FAIL_NODE(err, RP_ERR_LIMIT, l, i,
                         "a table of %zu positions x %zu dims is too large", positions,
                         turn->n_rotated);
    plan->ropes[plan->n_ropes++].node = i;
    plan->own_bytes += bytes;
    if (!l->make)
        return RP_OK;
    float *table = rp_aligned_alloc(bytes);
    if (!table)
        return FAIL_NODE(err, RP_ERR_NOMEM, l, i, "no memory for %zu bytes of cosines and sines",
                         bytes);
    for (size_t f = 0; f < half; f++)
        rp_rope_fill(turn, f,
                     p->inv_freq ? p->inv_freq[f] : rp_rope_inv_freq(p->theta, f, 2 * half),
                     rope_scale(p), positions, table);
    turn->table = plan->ropes[k].table = table;
    return RP_OK;
}

static rp_status lower_rope(struct rp_lowering *l, size_t i, rp_error *err)
{
    const rp_rope *p = &l->graph->nodes[i].p.rope.options;
    struct rp_step *step = append_step(l, RP_OP_ROPE, i, "", l->shapes[i]);
    add_input(l, step, slot_of_input(l, i, 0));
    step->p.rope.turn = (struct rp_ops_rope){.n_heads = (size_t)p->n_heads,
                                             .head_dim = (size_t)p->head_dim,
                                             .n_rotated = rope_rotated(p),
                                             .interleaved = p->interleaved};
    step->p.rope.theta = p->inv_freq ? 0 : p->theta;
    step->flops_per_row = 3 * step->p.rope.turn.n_heads * step->p.rope.turn.n_rotated;
    RP_TRY(rope_table(l, i, &step->p.rope.turn, err));
    l->slot_of[i] = step->out;
    /* A batch has no position past the bucket, so this refuses none. */
    return index_number(l, i, RP_INDEX_POSITION, p->options ? RP_POSITION_IN_OPTION : 0, step->name,
                        l->plan->bucket.tokens, &step->p.rope.index, err);
}

static rp_status lower_glu(struct rp_lowering *l, size_t i, rp_error *err)
{
    (void)err;
    struct rp_step *step = append_step(l, RP_OP_GLU, i, "", l->shapes[i]);
    add_input(l, step, slot_of_input(l, i, 0));
    step->p.activation = l->graph->nodes[i].p.activation;
    step->flops_per_row = step->width;
    l->slot_of[i] = step->out;
    return RP_OK;
}

static rp_status lower_add_types(struct rp_lowering *l, size_t i, rp_error *err)
{
    const rp_embed_table table = {l->graph->nodes[i].weight[0], RP_INDEX_QTYPES, 0};
    struct rp_step *step = append_step(l, RP_OP_ADD_TYPES, i, "", l->shapes[i]);
    add_input(l, step, slot_of_input(l, i, 0));
    step->flops_per_row = step->width;
    l->slot_of[i] = step->out;
    return need_table(l, i, step, 0, &table, err);
}

static rp_status lower_act_features(struct rp_lowering *l, size_t i, rp_error *err)
{
    (void)err;
    struct rp_step *step = append_step(l, RP_OP_ACT_FEATURES, i, "", l->shapes[i]);
    add_input(l, step, slot_of_input(l, i, 0));
    add_input(l, step, slot_of_input(l, i, 1));
    l->slot_of[i] = step->out;
    return RP_OK;
}

static rp_status lower_rms_norm(struct rp_lowering *l, size_t i, rp_error *err)
{
    const rp_rms_norm *p = &l->graph->nodes[i].p.rms_norm;
    struct rp_step *step = append_step(l, RP_OP_RMS_NORM, i, "", l->shapes[i]);
    struct rp_ops_rms_norm *norm = &step->p.rms_norm;
    step->weighted = p->w != -1;
    add_input(l, step, slot_of_input(l, i, 0));
    *norm = (struct rp_ops_rms_norm){.offset = p->offset,
                                     .eps = p->eps,
                                     .n_heads = p->n_heads ? (size_t)p->n_heads : 1,
                                     .head_dim = p->n_heads ? (size_t)p->head_dim : step->width,
                                     .first_column = (size_t)p->first_column};
    step->flops_per_row = 4 * norm->n_heads * norm->head_dim;
    l->slot_of[i] = step->out;
    return need_vector(l, i, p->w, &norm->w, err);
}

/* A step that reads so many columns of its gate. */
static struct rp_step *append_gated(struct rp_lowering *l, enum rp_op op, size_t i,
                                    rp_activation activation, int32_t first, size_t n)
{
    struct rp_step *step = append_step(l, op, i, "", l->shapes[i]);
    add_input(l, step, slot_of_input(l, i, 0));
    step->in[step->n_in++] = slot_of_input(l, i, 1);
    step->bytes_per_row += n * sizeof(float);
    step->p.gate.activation = activation;
    step->p.gate.first_column = (size_t)first;
    step->flops_per_row = step->width;
    l->slot_of[i] = step->out;
    return step;
}

static rp_status lower_gate(struct rp_lowering *l, size_t i, rp_error *err)
{
    const rp_gate *p = &l->graph->nodes[i].p.gate;
    (void)err;
    append_gated(l, RP_OP_GATE, i, p->activation, p->first_column, p->one ? 1 : l->shapes[i].width)
        ->p.gate.one = p->one;
    return RP_OK;
}

static rp_status lower_gated_norm(struct rp_lowering *l, size_t i, rp_error *err)
{
    const rp_gated_norm *p = &l->graph->nodes[i].p.gated_norm;
    struct rp_step *step =
        append_gated(l, RP_OP_GATED_NORM, i, p->activation, p->first_column, l->shapes[i].width);
    const size_t dim = (size_t)p->head_dim;
    step->p.gate.norm = (struct rp_ops_rms_norm){
        .eps = p->eps, .n_heads = step->width / dim, .head_dim = dim, .first_column = 0};
    step->flops_per_row += 4 * step->width;
    return need_vector(l, i, p->w, &step->p.gate.norm.w, err);
}

static rp_status lower_gdn_gates(struct rp_lowering *l, size_t i, rp_error *err)
{
    const rp_gdn_gates *p = &l->graph->nodes[i].p.gdn_gates;
    struct rp_step *step = append_step(l, RP_OP_GDN_GATES, i, "", l->shapes[i]);
    struct rp_ops_gdn_gates *gates = &step->p.gdn_gates;
    step->in[step->n_in++] = slot_of_input(l, i, 0);
    step->bytes_per_row *= 2; /* of its input as many columns as it has itself */
    *gates = (struct rp_ops_gdn_gates){.n_heads = (size_t)p->n_heads,
                                       .a_column = (size_t)p->a_column,
                                       .b_column = (size_t)p->b_column,
                                       .linear_rate = p->linear_rate,
                                       .beta_scale = p->beta_scale > 0 ? p->beta_scale : 1};
    step->flops_per_row = 3 * gates->n_heads;
    l->slot_of[i] = step->out;
    RP_TRY(need_vector(l, i, p->a_log, &gates->a_log, err));
    return need_vector(l, i, p->dt_bias, &gates->dt_bias, err);
}

/* Whether all experts are in INT8, and one rounding of a row does for all of them. */
static bool experts_are_int8(const struct rp_lowering *l, const rp_experts *p)
{
    const struct rp_weight_entry *first = rp_weights_entry(l->weights, p->up[0]);
    for (size_t e = 0; e < (size_t)p->n_experts; e++) {
        const struct rp_weight_entry *up = rp_weights_entry(l->weights, p->up[e]);
        if (!up->int8 || up->smooth != first->smooth ||
            !rp_weights_entry(l->weights, p->down[e])->int8)
            return false;
    }
    return true;
}

/* The panels of expert e; a dry run only counts them. */
static rp_status need_expert(struct rp_lowering *l, size_t i, struct rp_step *step, size_t e,
                             rp_error *err)
{
    const rp_experts *p = &l->graph->nodes[i].p.experts.options;
    const enum rp_weight_form form = step->p.experts.int8 ? RP_FORM_INT8 : RP_FORM_PACKED;
    const float *smooth = rp_weights_entry(l->weights, p->down[e])->smooth;
    struct rp_expert expert = {0};
    RP_TRY(need(l, i, p->up[e], form, &expert.up, err));
    RP_TRY(need(l, i, p->down[e], form, &expert.down, err));
    if (step->p.experts.int8 && smooth)
        expert.factors = smooth + step->p.experts.inner;
    if (l->make)
        step->p.experts.each[e] = expert;
    return RP_OK;
}

static rp_status need_experts(struct rp_lowering *l, size_t i, struct rp_step *step, rp_error *err)
{
    const size_t n = step->p.experts.n_experts;
    l->plan->own_bytes += n * sizeof *step->p.experts.each;
    if (l->make) {
        step->p.experts.each = calloc(n, sizeof *step->p.experts.each);
        if (!step->p.experts.each)
            return FAIL_NODE(err, RP_ERR_NOMEM, l, i, "no memory for its experts");
    }
    for (size_t e = 0; e < n; e++)
        RP_TRY(need_expert(l, i, step, e, err));
    return RP_OK;
}

static rp_status lower_experts(struct rp_lowering *l, size_t i, rp_error *err)
{
    const struct rp_node *node = &l->graph->nodes[i];
    const rp_experts *p = &node->p.experts.options;
    const bool int8 = experts_are_int8(l, p);
    const int32_t x = int8 ? lower_quantize(l, i, rp_weights_entry(l->weights, p->up[0]))
                           : slot_of_input(l, i, 0);
    struct rp_step *step = append_step(l, RP_OP_EXPERTS, i, "", l->shapes[i]);
    add_input(l, step, x);
    add_input(l, step, slot_of_input(l, i, 1));
    if (node->n_in == 3 && !l->no_fuse)
        add_input(l, step, slot_of_input(l, i, 2));
    const size_t inner = rp_weights_entry(l->weights, p->down[0])->cols;
    const uint64_t numbers = 3 * (uint64_t)inner * step->width; /* of an expert's weights */
    step->p.experts.n_experts = (size_t)p->n_experts;
    step->p.experts.n_used = (size_t)p->n_used;
    step->p.experts.inner = inner;
    step->p.experts.normalize = p->normalize;
    step->p.experts.int8 = int8;
    step->p.experts.activation = p->activation;
    step->kernel = int8 ? l->plan->qgemm->name : l->plan->gemm->name;
    step->flops_per_row = 2 * numbers * (uint64_t)p->n_used;
    step->bytes_fixed = numbers * (int8 ? 1 : sizeof(float)) * (uint64_t)p->n_experts;
    RP_TRY(need_experts(l, i, step, err));
    l->slot_of[i] = step->out;
    if (node->n_in == 3 && l->no_fuse)
        lower_add_step(l, i, ".add", l->slot_of[i], slot_of_input(l, i, 2));
    return RP_OK;
}

static rp_status lower_conv(struct rp_lowering *l, size_t i, rp_error *err)
{
    const struct rp_node *node = &l->graph->nodes[i];
    struct rp_step *step = append_step(l, RP_OP_CONV, i, "", l->shapes[i]);
    const void *w;
    add_input(l, step, slot_of_input(l, i, 0));
    step->p.conv.kernel = rp_weights_entry(l->weights, node->weight[0])->cols;
    step->p.conv.width = step->width;
    step->p.conv.activation = node->p.activation;
    step->flops_per_row = 2 * (uint64_t)step->width * step->p.conv.kernel;
    RP_TRY(need(l, i, node->weight[0], RP_FORM_COLUMNS, &w, err));
    RP_TRY(need_vector(l, i, node->weight[1], &step->p.conv.b, err));
    step->p.conv.w = w;
    l->slot_of[i] = step->out;
    return RP_OK;
}

static rp_status lower_gdn(struct rp_lowering *l, size_t i, rp_error *err)
{
    const rp_gdn *p = &l->graph->nodes[i].p.gdn;
    struct rp_step *step = append_step(l, RP_OP_GDN, i, "", l->shapes[i]);
    (void)err;
    add_input(l, step, slot_of_input(l, i, 0));
    add_input(l, step, slot_of_input(l, i, 1));
    step->kernel = l->plan->gdn->name;
    step->p.gdn = (struct rp_gdn_args){.n_key_heads = (size_t)p->n_key_heads,
                                       .n_value_heads = (size_t)p->n_value_heads,
                                       .key_dim = (size_t)p->key_dim,
                                       .value_dim = (size_t)p->value_dim,
                                       .map = p->map,
                                       .norm = p->norm,
                                       .eps = p->eps,
                                       .scale = p->scale};
    step->flops_per_row = rp_gdn_flops(&step->p.gdn, 0, RP_GDN_CHUNK) / RP_GDN_CHUNK;
    l->slot_of[i] = step->out;
    return RP_OK;
}

static rp_status lower_cross_attention(struct rp_lowering *l, size_t i, rp_error *err)
{
    const rp_cross_attention *p = &l->graph->nodes[i].p.cross;
    struct rp_step *step = append_step(l, RP_OP_CROSS_ATTENTION, i, "", l->shapes[i]);
    (void)err;
    add_input(l, step, slot_of_input(l, i, 0));
    step->kernel = l->plan->attention->name;
    step->p.cross.n_heads = (size_t)p->n_heads;
    step->p.cross.n_kv_heads = (size_t)cross_kv_heads(p);
    step->p.cross.head_dim = (size_t)p->head_dim;
    step->p.cross.scale = attention_scale(p->scale, p->head_dim);
    step->p.cross.memory_width = (size_t)p->memory_width;
    step->p.cross.key_column = (size_t)p->key_column;
    step->p.cross.value_column = (size_t)p->value_column;
    step->p.cross.max_memory = (size_t)p->max_memory;
    if (l->max_memory > 0 && l->max_memory < step->p.cross.max_memory)
        step->p.cross.max_memory = l->max_memory;
    step->flops_per_row = 4 * (uint64_t)step->width;
    l->slot_of[i] = step->out;
    return RP_OK;
}

static rp_status lower_input(struct rp_lowering *l, size_t i, rp_error *err)
{
    struct rp_step *step = append_step(l, RP_OP_INPUT, i, "", l->shapes[i]);
    (void)err;
    step->bytes_per_row *= 2; /* read and written */
    l->slot_of[i] = step->out;
    return RP_OK;
}

static rp_status lower_ordinal_features(struct rp_lowering *l, size_t i, rp_error *err)
{
    struct rp_step *step = append_step(l, RP_OP_ORDINAL_FEATURES, i, "", l->shapes[i]);
    (void)err;
    step->p.qtype = l->graph->nodes[i].p.qtype;
    l->slot_of[i] = step->out;
    return RP_OK;
}

/* ---- the table ---------------------------------------------------------------------------------
 */

static const struct op_row {
    const char *name;
    size_t min_inputs, max_inputs;
    bool by_row;
    rp_status (*check)(struct rp_lowering *l, size_t i, rp_error *err);
    rp_status (*lower)(struct rp_lowering *l, size_t i, rp_error *err);
} ops[RP_OP_COUNT] = {
    [RP_OP_EMBED] = {"embed", 0, 0, true, check_embed, lower_embed},
    [RP_OP_LAYER_NORM] = {"layer_norm", 1, 1, true, check_layer_norm, lower_layer_norm},
    [RP_OP_GEMM] = {"gemm", 1, 2, true, check_gemm, lower_gemm},
    [RP_OP_ATTENTION] = {"attention", 1, 1, false, check_attention, lower_attention},
    [RP_OP_POOL] = {"pool", 1, 1, false, check_pool, lower_pool},
    [RP_OP_L2_NORM] = {"l2_norm", 1, 1, true, check_l2_norm, lower_l2_norm},
    [RP_OP_ACTIVATION] = {"activation", 1, 1, true, check_activation_op, lower_activation_op},
    [RP_OP_ADD] = {"add", 2, 2, true, check_add, lower_add},
    [RP_OP_CONCAT] = {"concat", 1, RP_NODE_MAX_INPUTS, true, check_concat, lower_concat},
    [RP_OP_GATHER_MARKERS] = {"gather_markers", 1, 1, false, check_gather_markers,
                              lower_gather_markers},
    [RP_OP_ROPE] = {"rope", 1, 1, true, check_rope, lower_rope},
    [RP_OP_GLU] = {"glu", 1, 1, true, check_glu, lower_glu},
    [RP_OP_ADD_TYPES] = {"add_types", 1, 1, true, check_add_types, lower_add_types},
    [RP_OP_ACT_FEATURES] = {"act_features", 2, 2, false, check_act_features, lower_act_features},
    [RP_OP_RMS_NORM] = {"rms_norm", 1, 1, true, check_rms_norm, lower_rms_norm},
    [RP_OP_GATE] = {"gate", 2, 2, true, check_gate, lower_gate},
    [RP_OP_GATED_NORM] = {"gated_norm", 2, 2, true, check_gated_norm, lower_gated_norm},
    [RP_OP_GDN_GATES] = {"gdn_gates", 1, 1, true, check_gdn_gates, lower_gdn_gates},
    [RP_OP_EXPERTS] = {"experts", 2, 3, true, check_experts, lower_experts},
    [RP_OP_CONV] = {"conv", 1, 1, false, check_conv, lower_conv},
    [RP_OP_GDN] = {"gdn", 2, 2, false, check_gdn, lower_gdn},
    [RP_OP_INPUT] = {"input", 0, 0, true, check_input, lower_input},
    [RP_OP_CROSS_ATTENTION] = {"cross_attention", 1, 1, false, check_cross_attention,
                               lower_cross_attention},
    [RP_OP_ORDINAL_FEATURES] = {"ordinal_features", 0, 0, true, check_ordinal_features,
                                lower_ordinal_features},
    [RP_OP_QUANTIZE] = {"quantize", 1, 1, true, NULL, NULL},
    [RP_OP_QGEMM] = {"qgemm", 1, 2, true, NULL, NULL},
    [RP_OP_GATHER] = {"gather", 1, 1, true, NULL, NULL},
};

const char *rp_op_name(enum rp_op op)
{
    return ops[op].name;
}

bool rp_op_by_row(enum rp_op op)
{
    return ops[op].by_row;
}

rp_status rp_op_check(struct rp_lowering *l, size_t i, rp_error *err)
{
    const struct rp_node *node = &l->graph->nodes[i];
    const struct op_row *row = &ops[node->op];
    if (node->n_in < row->min_inputs || node->n_in > row->max_inputs)
        return FAIL_NODE(err, RP_ERR_INVALID, l, i, "%s has %zu inputs, expected %zu to %zu",
                         row->name, node->n_in, row->min_inputs, row->max_inputs);
    for (size_t k = 0; k < node->n_in; k++)
        if (node->in[k] < 0 || (size_t)node->in[k] >= i)
            return FAIL_NODE(err, RP_ERR_INVALID, l, i,
                             "input %zu is value %d, expected one made before it", k, node->in[k]);
    return row->check(l, i, err);
}

rp_status rp_op_lower(struct rp_lowering *l, size_t i, rp_error *err)
{
    const struct rp_node *node = &l->graph->nodes[i];
    const bool by_read = l->read != RP_READ_ALL && node->op != RP_OP_ATTENTION;
    for (size_t k = 0; by_read && k < node->n_in; k++)
        if (l->slot_of[node->in[k]] < 0)
            lower_gather(l, (size_t)node->in[k]);
    return ops[l->graph->nodes[i].op].lower(l, i, err);
}

/* ---- names -------------------------------------------------------------------------------------
 */

const char *rp_rows_name(rp_rows rows)
{
    switch (rows) {
    case RP_ROWS_TOKENS: return "tokens";
    case RP_ROWS_SEQS: return "seqs";
    case RP_ROWS_MARKERS: return "markers";
    }
    return "?";
}

const char *rp_activation_name(rp_activation activation)
{
    switch (activation) {
    case RP_ACT_NONE: return "none";
    case RP_ACT_GELU: return "gelu";
    case RP_ACT_GELU_TANH: return "gelu_tanh";
    case RP_ACT_RELU: return "relu";
    case RP_ACT_SILU: return "silu";
    case RP_ACT_TANH: return "tanh";
    case RP_ACT_SIGMOID: return "sigmoid";
    }
    return "?";
}

const char *rp_pooling_name(rp_pooling pooling)
{
    switch (pooling) {
    case RP_POOL_CLS: return "cls";
    case RP_POOL_MEAN: return "mean";
    case RP_POOL_MAX: return "max";
    case RP_POOL_MEAN_SQRT_LEN: return "mean_sqrt_len";
    case RP_POOL_WEIGHTED_MEAN: return "weighted_mean";
    case RP_POOL_LAST: return "last";
    }
    return "?";
}
