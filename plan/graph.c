/* Building a graph: nodes are appended, nothing is judged yet.
 *
 * A builder call that runs out of memory leaves its reason in graph->failed and returns -1, and so
 * does every later one; rp_plan_compile() reports it.  So building code needs no error paths of its
 * own.
 */
#include "plan/graph.h"

#include "plan/text.h"
#include "plan/weights.h"
#include "pool/error.h"

#include <stdlib.h>
#include <string.h>

rp_status rp_graph_create(rp_graph **out, rp_error *err)
{
    rp_graph *graph = calloc(1, sizeof *graph);
    if (!graph)
        return rp_fail(err, RP_ERR_NOMEM, "no memory for a graph");
    *out = graph;
    return RP_OK;
}

void rp_graph_destroy(rp_graph *graph)
{
    if (!graph)
        return;
    for (size_t i = 0; i < graph->n_nodes; i++) {
        if (graph->nodes[i].op == RP_OP_ROPE)
            free(graph->nodes[i].p.rope.inv_freq);
        if (graph->nodes[i].op == RP_OP_EXPERTS)
            free(graph->nodes[i].p.experts.weights);
        free(graph->nodes[i].name);
    }
    for (size_t i = 0; i < graph->n_outputs; i++)
        free(graph->outputs[i].name);
    free(graph->nodes);
    free(graph->outputs);
    free(graph);
}

size_t rp_graph_n_ops(const rp_graph *graph)
{
    return graph->n_nodes;
}

/* Room for one more element; the old array stays when there is no memory. */
static void *grow(void *array, size_t n, size_t *cap, size_t size)
{
    if (n < *cap)
        return array;
    const size_t want = *cap ? *cap * 2 : 16;
    void *p = realloc(array, want * size);
    if (p)
        *cap = want;
    return p;
}

/* Appends a node with its name; NULL after any failure. */
static struct rp_node *append(rp_graph *graph, enum rp_op op, const char *name)
{
    if (graph->failed.status != RP_OK)
        return NULL;
    struct rp_node *nodes =
        grow(graph->nodes, graph->n_nodes, &graph->cap_nodes, sizeof *graph->nodes);
    char *copy = strdup(name ? name : rp_op_name(op));
    if (nodes)
        graph->nodes = nodes;
    if (!nodes || !copy) {
        free(copy);
        (void)rp_fail(&graph->failed, RP_ERR_NOMEM, "op %zu (%s): no memory", graph->n_nodes,
                      name ? name : rp_op_name(op));
        return NULL;
    }
    struct rp_node *node = &graph->nodes[graph->n_nodes++];
    memset(node, 0, sizeof *node);
    node->op = op;
    node->name = copy;
    node->weight[0] = node->weight[1] = -1;
    for (size_t i = 0; i < RP_NODE_MAX_INPUTS; i++)
        node->in[i] = -1;
    return node;
}

static rp_value value_of(const rp_graph *graph, const struct rp_node *node)
{
    return node ? (rp_value)(node - graph->nodes) : -1;
}

/* A node has no memory for what it copies. */
static rp_value fail_copy(rp_graph *graph, const struct rp_node *node)
{
    (void)rp_fail(&graph->failed, RP_ERR_NOMEM, "op %d (%s): no memory", value_of(graph, node),
                  node->name);
    return -1;
}

/* A node with one input, which most of them are. */
static struct rp_node *append_unary(rp_graph *graph, enum rp_op op, const char *name, rp_value x)
{
    struct rp_node *node = append(graph, op, name);
    if (node) {
        node->in[0] = x;
        node->n_in = 1;
    }
    return node;
}

rp_value rp_graph_embed(rp_graph *graph, const char *name, size_t n_tables,
                        const rp_embed_table *tables)
{
    struct rp_node *node = append(graph, RP_OP_EMBED, name);
    if (!node)
        return -1;
    node->p.embed.n = n_tables; /* a count over the maximum is refused when compiled */
    for (size_t i = 0; i < n_tables && i < RP_EMBED_MAX_TABLES; i++)
        node->p.embed.tables[i] = tables[i];
    return value_of(graph, node);
}

rp_value rp_graph_layer_norm(rp_graph *graph, const char *name, rp_value x, rp_weight w,
                             rp_weight b, float eps)
{
    struct rp_node *node = append_unary(graph, RP_OP_LAYER_NORM, name, x);
    if (node) {
        node->weight[0] = w;
        node->weight[1] = b;
        node->p.eps = eps;
    }
    return value_of(graph, node);
}

rp_value rp_graph_gemm(rp_graph *graph, const char *name, rp_value a, rp_weight w, rp_weight b,
                       rp_activation activation, rp_value residual)
{
    struct rp_node *node = append_unary(graph, RP_OP_GEMM, name, a);
    if (node) {
        node->weight[0] = w;
        node->weight[1] = b;
        node->p.activation = activation;
        if (residual != -1) {
            node->in[1] = residual;
            node->n_in = 2;
        }
    }
    return value_of(graph, node);
}

rp_value rp_graph_attention(rp_graph *graph, const char *name, rp_value qkv,
                            const rp_attention *options)
{
    struct rp_node *node = append_unary(graph, RP_OP_ATTENTION, name, qkv);
    if (node) {
        node->p.attention = *options;
        node->weight[0] = options->rel_bias;
    }
    return value_of(graph, node);
}

rp_value rp_graph_rope(rp_graph *graph, const char *name, rp_value x, const rp_rope *options)
{
    struct rp_node *node = append_unary(graph, RP_OP_ROPE, name, x);
    if (!node)
        return -1;
    const int32_t rotated = options->n_rotated ? options->n_rotated : options->head_dim;
    const size_t n = rotated > 0 ? (size_t)rotated / 2 : 0; /* numbers below 0 are refused later */
    node->p.rope.options = *options;
    node->p.rope.options.inv_freq = NULL;
    if (options->inv_freq && n) {
        node->p.rope.inv_freq = malloc(n * sizeof *node->p.rope.inv_freq);
        if (!node->p.rope.inv_freq)
            return fail_copy(graph, node);
        memcpy(node->p.rope.inv_freq, options->inv_freq, n * sizeof *node->p.rope.inv_freq);
        node->p.rope.options.inv_freq = node->p.rope.inv_freq;
    }
    return value_of(graph, node);
}

rp_value rp_graph_glu(rp_graph *graph, const char *name, rp_value x, rp_activation activation)
{
    struct rp_node *node = append_unary(graph, RP_OP_GLU, name, x);
    if (node)
        node->p.activation = activation;
    return value_of(graph, node);
}

rp_value rp_graph_pool(rp_graph *graph, const char *name, rp_value x, rp_pooling pooling)
{
    struct rp_node *node = append_unary(graph, RP_OP_POOL, name, x);
    if (node)
        node->p.pooling = pooling;
    return value_of(graph, node);
}

rp_value rp_graph_l2_norm(rp_graph *graph, const char *name, rp_value x, float eps)
{
    struct rp_node *node = append_unary(graph, RP_OP_L2_NORM, name, x);
    if (node)
        node->p.eps = eps;
    return value_of(graph, node);
}

rp_value rp_graph_activation(rp_graph *graph, const char *name, rp_value x,
                             rp_activation activation)
{
    struct rp_node *node = append_unary(graph, RP_OP_ACTIVATION, name, x);
    if (node)
        node->p.activation = activation;
    return value_of(graph, node);
}

rp_value rp_graph_add(rp_graph *graph, const char *name, rp_value a, rp_value b)
{
    struct rp_node *node = append_unary(graph, RP_OP_ADD, name, a);
    if (node) {
        node->in[1] = b;
        node->n_in = 2;
    }
    return value_of(graph, node);
}

rp_value rp_graph_concat(rp_graph *graph, const char *name, size_t n, const rp_value *values)
{
    struct rp_node *node = append(graph, RP_OP_CONCAT, name);
    if (!node)
        return -1;
    node->n_in = n; /* a count over the maximum is refused when compiled */
    for (size_t i = 0; i < n && i < RP_NODE_MAX_INPUTS; i++)
        node->in[i] = values[i];
    return value_of(graph, node);
}

rp_value rp_graph_gather_markers(rp_graph *graph, const char *name, rp_value x)
{
    return value_of(graph, append_unary(graph, RP_OP_GATHER_MARKERS, name, x));
}

rp_value rp_graph_add_types(rp_graph *graph, const char *name, rp_value x, rp_weight table)
{
    struct rp_node *node = append_unary(graph, RP_OP_ADD_TYPES, name, x);
    if (node)
        node->weight[0] = table;
    return value_of(graph, node);
}

rp_value rp_graph_act_features(rp_graph *graph, const char *name, rp_value first, rp_value logits)
{
    struct rp_node *node = append_unary(graph, RP_OP_ACT_FEATURES, name, first);
    if (node) {
        node->in[1] = logits;
        node->n_in = 2;
    }
    return value_of(graph, node);
}

rp_value rp_graph_rms_norm(rp_graph *graph, const char *name, rp_value x,
                           const rp_rms_norm *options)
{
    struct rp_node *node = append_unary(graph, RP_OP_RMS_NORM, name, x);
    if (node) {
        node->weight[0] = options->w;
        node->p.rms_norm = *options;
    }
    return value_of(graph, node);
}

/* A node whose second input is a gate. */
static struct rp_node *append_gated(rp_graph *graph, enum rp_op op, const char *name, rp_value x,
                                    rp_value gate)
{
    struct rp_node *node = append_unary(graph, op, name, x);
    if (node) {
        node->in[1] = gate;
        node->n_in = 2;
    }
    return node;
}

rp_value rp_graph_gate(rp_graph *graph, const char *name, rp_value x, rp_value gate,
                       const rp_gate *options)
{
    struct rp_node *node = append_gated(graph, RP_OP_GATE, name, x, gate);
    if (node)
        node->p.gate = *options;
    return value_of(graph, node);
}

rp_value rp_graph_gated_norm(rp_graph *graph, const char *name, rp_value x, rp_value gate,
                             const rp_gated_norm *options)
{
    struct rp_node *node = append_gated(graph, RP_OP_GATED_NORM, name, x, gate);
    if (node) {
        node->weight[0] = options->w;
        node->p.gated_norm = *options;
    }
    return value_of(graph, node);
}

rp_value rp_graph_gdn_gates(rp_graph *graph, const char *name, rp_value x,
                            const rp_gdn_gates *options)
{
    struct rp_node *node = append_unary(graph, RP_OP_GDN_GATES, name, x);
    if (node) {
        node->weight[0] = options->a_log;
        node->weight[1] = options->dt_bias;
        node->p.gdn_gates = *options;
    }
    return value_of(graph, node);
}

rp_value rp_graph_experts(rp_graph *graph, const char *name, rp_value x, rp_value logits,
                          const rp_experts *options, rp_value residual)
{
    struct rp_node *node = append_gated(graph, RP_OP_EXPERTS, name, x, logits);
    if (!node)
        return -1;
    if (residual != -1)
        node->in[node->n_in++] = residual;
    rp_experts *kept = &node->p.experts.options;
    *kept = *options;
    kept->up = kept->down = NULL; /* without a copy refused later, as is a count out of range */
    if (!options->up || !options->down || options->n_experts < 1 ||
        options->n_experts > RP_EXPERTS_MAX)
        return value_of(graph, node);
    const size_t n = (size_t)options->n_experts;
    rp_weight *copy = malloc(2 * n * sizeof *copy);
    if (!copy)
        return fail_copy(graph, node);
    memcpy(copy, options->up, n * sizeof *copy);
    memcpy(copy + n, options->down, n * sizeof *copy);
    node->p.experts.weights = copy;
    kept->up = copy;
    kept->down = copy + n;
    return value_of(graph, node);
}

rp_value rp_graph_conv(rp_graph *graph, const char *name, rp_value x, const rp_conv *options)
{
    struct rp_node *node = append_unary(graph, RP_OP_CONV, name, x);
    if (node) {
        node->weight[0] = options->w;
        node->weight[1] = options->b;
        node->p.activation = options->activation;
    }
    return value_of(graph, node);
}

rp_value rp_graph_gdn(rp_graph *graph, const char *name, rp_value qkv, rp_value gates,
                      const rp_gdn *options)
{
    struct rp_node *node = append_unary(graph, RP_OP_GDN, name, qkv);
    if (node) {
        node->in[1] = gates;
        node->n_in = 2;
        node->p.gdn = *options;
    }
    return value_of(graph, node);
}

rp_value rp_graph_input(rp_graph *graph, const char *name, size_t width)
{
    struct rp_node *node = append(graph, RP_OP_INPUT, name);
    if (node)
        node->p.width = width;
    return value_of(graph, node);
}

rp_value rp_graph_cross_attention(rp_graph *graph, const char *name, rp_value q,
                                  const rp_cross_attention *options)
{
    struct rp_node *node = append_unary(graph, RP_OP_CROSS_ATTENTION, name, q);
    if (node)
        node->p.cross = *options;
    return value_of(graph, node);
}

rp_value rp_graph_ordinal_features(rp_graph *graph, const char *name, int32_t qtype)
{
    struct rp_node *node = append(graph, RP_OP_ORDINAL_FEATURES, name);
    if (node)
        node->p.qtype = qtype;
    return value_of(graph, node);
}

void rp_graph_output(rp_graph *graph, const char *name, rp_value x, rp_rows rows, size_t width)
{
    if (graph->failed.status != RP_OK)
        return;
    struct rp_graph_output *outputs =
        grow(graph->outputs, graph->n_outputs, &graph->cap_outputs, sizeof *graph->outputs);
    char *copy = strdup(name);
    if (outputs)
        graph->outputs = outputs;
    if (!outputs || !copy) {
        free(copy);
        (void)rp_fail(&graph->failed, RP_ERR_NOMEM, "output %s: no memory", name);
        return;
    }
    graph->outputs[graph->n_outputs++] =
        (struct rp_graph_output){.name = copy, .value = x, .rows = rows, .width = width};
}

/* ---- text -------------------------------------------------------------------------------------
 */

static const char *index_name(rp_index index)
{
    switch (index) {
    case RP_INDEX_IDS: return "ids";
    case RP_INDEX_POSITION: return "position";
    case RP_INDEX_POSITION_NONPAD: return "position_nonpad";
    case RP_INDEX_TYPES: return "types";
    case RP_INDEX_QTYPES: return "qtypes";
    }
    return "?";
}

static void text_weight(struct rp_text *t, const rp_weights *weights, const char *label,
                        rp_weight w)
{
    const struct rp_weight_entry *e = rp_weights_entry(weights, w);
    if (e)
        rp_text_add(t, " %s=%s[%zu,%zu]", label, e->name, e->rows, e->cols);
    else if (w != -1)
        rp_text_add(t, " %s=weight %d", label, w);
}

/* Given inverse frequencies show as how many there are, the first and the last. */
static void text_rope(struct rp_text *t, const rp_rope *o)
{
    const int32_t rotated = o->n_rotated ? o->n_rotated : o->head_dim;
    rp_text_add(t, " heads=%dx%d rotated=%d%s", o->n_heads, o->head_dim, rotated,
                o->interleaved ? " interleaved" : "");
    if (o->inv_freq) {
        rp_text_add(t, " inv_freq[%d]=", rotated / 2);
        rp_text_double(t, o->inv_freq[0]);
        rp_text_add(t, "..");
        rp_text_double(t, o->inv_freq[rotated / 2 - 1]);
    } else {
        rp_text_add(t, " theta=");
        rp_text_double(t, o->theta);
    }
    if (o->scale != 0) {
        rp_text_add(t, " scale=");
        rp_text_double(t, o->scale);
    }
    if (o->options)
        rp_text_add(t, " options");
}

static void text_attention(struct rp_text *t, const rp_attention *o)
{
    rp_text_add(t, " heads=%dx%d scale=", o->n_heads, o->head_dim);
    rp_text_float(t, o->scale);
    if (o->window)
        rp_text_add(t, " window=%d", o->window);
    if (o->n_kv_heads)
        rp_text_add(t, " kv_heads=%d", o->n_kv_heads);
    if (o->causal)
        rp_text_add(t, " causal");
    if (o->options)
        rp_text_add(t, " options");
}

static void text_cross_attention(struct rp_text *t, const rp_cross_attention *o)
{
    rp_text_add(t, " heads=%dx%d scale=", o->n_heads, o->head_dim);
    rp_text_float(t, o->scale);
    if (o->n_kv_heads)
        rp_text_add(t, " kv_heads=%d", o->n_kv_heads);
    rp_text_add(t, " memory=%dx%d k=%d v=%d", o->max_memory, o->memory_width, o->key_column,
                o->value_column);
}

static void text_eps(struct rp_text *t, float eps)
{
    rp_text_add(t, " eps=");
    rp_text_float(t, eps);
}

static void text_rms_norm(struct rp_text *t, const rp_rms_norm *o)
{
    if (o->n_heads)
        rp_text_add(t, " heads=%dx%d first=%d", o->n_heads, o->head_dim, o->first_column);
    text_eps(t, o->eps);
    if (o->offset)
        rp_text_add(t, " offset=1");
}

static void text_gdn_gates(struct rp_text *t, const rp_gdn_gates *o)
{
    rp_text_add(t, " heads=%d a=%d b=%d%s", o->n_heads, o->a_column, o->b_column,
                o->linear_rate ? " linear_rate" : "");
    if (o->beta_scale != 0) {
        rp_text_add(t, " beta_scale=");
        rp_text_float(t, o->beta_scale);
    }
}

/* Of the experts' weights the first one's; the others are of the same shapes. */
static void text_experts(struct rp_text *t, const rp_weights *weights, const rp_experts *o)
{
    rp_text_add(t, " experts=%d used=%d%s act=%s", o->n_experts, o->n_used,
                o->normalize ? " normalize" : "", rp_activation_name(o->activation));
    if (!o->up)
        return;
    text_weight(t, weights, "up", o->up[0]);
    text_weight(t, weights, "down", o->down[0]);
}

static void text_gdn(struct rp_text *t, const rp_gdn *o)
{
    static const char *const norms[] = {"none", "root", "max"};
    rp_text_add(t, " keys=%dx%d values=%dx%d", o->n_key_heads, o->key_dim, o->n_value_heads,
                o->value_dim);
    rp_text_add(t, " map=%s", o->map == RP_GDN_TILED ? "tiled" : "grouped");
    if ((int)o->norm >= RP_GDN_NORM_NONE && o->norm <= RP_GDN_NORM_MAX)
        rp_text_add(t, " norm=%s eps=", norms[o->norm]);
    else
        rp_text_add(t, " norm=? eps=");
    rp_text_float(t, o->eps);
    rp_text_add(t, " scale=");
    rp_text_float(t, o->scale);
}

static const char *weight_label(enum rp_op op, int i)
{
    if (op == RP_OP_GDN_GATES)
        return i ? "dt_bias" : "a_log";
    if (op == RP_OP_ATTENTION && i == 0)
        return "rel";
    return i ? "b" : "w";
}

static void text_node(struct rp_text *t, const rp_weights *weights, const struct rp_node *node)
{
    for (size_t i = 0; i < node->n_in && i < RP_NODE_MAX_INPUTS; i++)
        rp_text_add(t, " %%%d", node->in[i]);
    switch (node->op) {
    case RP_OP_EMBED:
        for (size_t i = 0; i < node->p.embed.n && i < RP_EMBED_MAX_TABLES; i++) {
            const rp_embed_table *table = &node->p.embed.tables[i];
            text_weight(t, weights, index_name(table->index), table->table);
            if (table->index == RP_INDEX_POSITION_NONPAD)
                rp_text_add(t, " pad=%d", table->parameter);
        }
        break;
    case RP_OP_LAYER_NORM:
    case RP_OP_L2_NORM: text_eps(t, node->p.eps); break;
    case RP_OP_GEMM:
    case RP_OP_GLU:
    case RP_OP_CONV:
    case RP_OP_ACTIVATION: rp_text_add(t, " act=%s", rp_activation_name(node->p.activation)); break;
    case RP_OP_POOL: rp_text_add(t, " mode=%s", rp_pooling_name(node->p.pooling)); break;
    case RP_OP_ATTENTION: text_attention(t, &node->p.attention); break;
    case RP_OP_CROSS_ATTENTION: text_cross_attention(t, &node->p.cross); break;
    case RP_OP_INPUT: rp_text_add(t, " width=%zu", node->p.width); break;
    case RP_OP_ORDINAL_FEATURES: rp_text_add(t, " qtype=%d", node->p.qtype); break;
    case RP_OP_GDN: text_gdn(t, &node->p.gdn); break;
    case RP_OP_ROPE: text_rope(t, &node->p.rope.options); break;
    case RP_OP_RMS_NORM: text_rms_norm(t, &node->p.rms_norm); break;
    case RP_OP_GATE:
        rp_text_add(t, " act=%s first=%d%s", rp_activation_name(node->p.gate.activation),
                    node->p.gate.first_column, node->p.gate.one ? " one" : "");
        break;
    case RP_OP_GATED_NORM:
        rp_text_add(t, " head_dim=%d act=%s first=%d", node->p.gated_norm.head_dim,
                    rp_activation_name(node->p.gated_norm.activation),
                    node->p.gated_norm.first_column);
        text_eps(t, node->p.gated_norm.eps);
        break;
    case RP_OP_GDN_GATES: text_gdn_gates(t, &node->p.gdn_gates); break;
    case RP_OP_EXPERTS: text_experts(t, weights, &node->p.experts.options); break;
    default: break;
    }
    text_weight(t, weights, weight_label(node->op, 0), node->weight[0]);
    text_weight(t, weights, weight_label(node->op, 1), node->weight[1]);
}

size_t rp_graph_text(const rp_graph *graph, const rp_weights *weights, char *buffer, size_t size)
{
    struct rp_text t = rp_text_init(buffer, size);
    for (size_t i = 0; i < graph->n_nodes; i++) {
        const struct rp_node *node = &graph->nodes[i];
        rp_text_add(&t, "%%%zu = %s \"%s\"", i, rp_op_name(node->op), node->name);
        text_node(&t, weights, node);
        rp_text_add(&t, "\n");
    }
    for (size_t i = 0; i < graph->n_outputs; i++) {
        const struct rp_graph_output *o = &graph->outputs[i];
        rp_text_add(&t, "output \"%s\" %%%d %s x %zu\n", o->name, o->value, rp_rows_name(o->rows),
                    o->width);
    }
    return t.length;
}
