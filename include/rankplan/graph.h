/* Graphs: what a model computes, free of batch sizes, buckets and machines.
 *
 * A graph is a list of ops over values.  A value is rows x width of f32; its rows are the tokens of
 * the batch, its sequences, or its markers, so a graph never knows how large a batch is.  Weights
 * live in an rp_weights beside it and are named by index.
 *
 * Building never fails half way: each function appends an op and returns the value it makes, or -1
 * after the first failure (out of memory), which rp_plan_compile() then reports.  Shapes, weights
 * and row kinds are checked when the graph is compiled, and every complaint begins "op N (name):
 * ...".
 *
 *     const rp_embed_table tables[] = {{word, RP_INDEX_IDS, 0}, {pos, RP_INDEX_POSITION, 0}};
 *     rp_value x = rp_graph_embed(g, "embeddings.sum", 2, tables);
 *     x = rp_graph_layer_norm(g, "embeddings.norm", x, ln_w, ln_b, 1e-12f);
 *     rp_value h = rp_graph_gemm(g, "ffn.up", x, w1, b1, RP_ACT_GELU, -1);
 *     rp_graph_output(g, "hidden", h, RP_ROWS_TOKENS, 1536);
 */
#ifndef RANKPLAN_GRAPH_H
#define RANKPLAN_GRAPH_H

#include <rankplan/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rp_graph rp_graph;
typedef struct rp_weights rp_weights;

typedef int32_t rp_value;  /* a value of a graph; -1 = none */
typedef int32_t rp_weight; /* a weight of an rp_weights; -1 = none */

typedef enum rp_rows { RP_ROWS_TOKENS = 0, RP_ROWS_SEQS = 1, RP_ROWS_MARKERS = 2 } rp_rows;

typedef enum rp_activation {
    RP_ACT_NONE = 0,
    RP_ACT_GELU = 1,      /* x/2 (1 + erf(x/sqrt 2)) */
    RP_ACT_GELU_TANH = 2, /* x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) */
    RP_ACT_RELU = 3,
    RP_ACT_SILU = 4, /* x sigmoid(x) */
    RP_ACT_TANH = 5,
    RP_ACT_SIGMOID = 6
} rp_activation;

typedef enum rp_pooling {
    RP_POOL_CLS = 0,           /* the first row */
    RP_POOL_MEAN = 1,          /* sum / n */
    RP_POOL_MAX = 2,           /* column by column */
    RP_POOL_MEAN_SQRT_LEN = 3, /* sum / sqrt(n) */
    RP_POOL_WEIGHTED_MEAN = 4, /* sum of (i+1) x_i / sum of (i+1) */
    RP_POOL_LAST = 5           /* the last row */
} rp_pooling;

typedef enum rp_dtype { RP_DTYPE_F32 = 0, RP_DTYPE_F16 = 1, RP_DTYPE_BF16 = 2 } rp_dtype;

/* How products of token rows are computed.  INT8 (docs/numerics.md): each row of the first operand
 * is rounded to u8 with a scale and a zero point of its own, each row of the weight to s8, and the
 * sums are exact, so the bits are the same on every machine here too. */
typedef enum rp_precision { RP_PRECISION_FP32 = 0, RP_PRECISION_INT8 = 1 } rp_precision;

/* ---- weights ----------------------------------------------------------------------------------
 */

/* Where a weight's numbers come from: memory of the caller, or a function that reads them. */
typedef struct rp_weight_part {
    size_t rows; /* rows of this part; the parts of a weight lie under each other */
    rp_dtype dtype;
    const void *data; /* row-major, any alignment, borrowed until prepared; NULL: use read */
    /* Reads n_bytes at byte `offset` of the part into dst.  Called while weights are prepared, from
     * several threads at once.  The context is borrowed until then. */
    rp_status (*read)(void *context, uint64_t offset, void *dst, size_t n_bytes, rp_error *err);
    void *context;
} rp_weight_part;

/* An empty set of weights.  Allocates.  RP_ERR_NOMEM. */
RP_API RP_CHECKED rp_status rp_weights_create(rp_weights **out, rp_error *err);

/* Frees it.  NULL does nothing.  Plans made with it must be gone. */
RP_API void rp_weights_destroy(rp_weights *weights);

/* Adds the weight `name`, [sum of rows, cols] (a vector has one row), made of n_parts parts, and
 * returns its index in *out.  Nothing is read yet: a weight is converted once, in the form in which
 * a graph uses it (packed panels for a GEMM, its own type for an embedding table, f32 for a
 * vector), when that graph is first compiled, and then shared by all plans.  The name is copied.
 * RP_ERR_INVALID, RP_ERR_LIMIT (a size that wraps), RP_ERR_NOMEM.  Not thread-safe. */
RP_API RP_CHECKED rp_status rp_weights_add(rp_weights *weights, const char *name, size_t cols,
                                           size_t n_parts, const rp_weight_part *parts,
                                           rp_weight *out, rp_error *err);

/* Bytes that the converted weights take. */
RP_API uint64_t rp_weights_bytes(const rp_weights *weights);

/* ---- graph ------------------------------------------------------------------------------------
 */

/* What an embedding table is indexed with. */
typedef enum rp_index {
    RP_INDEX_IDS = 0,      /* the token id */
    RP_INDEX_POSITION = 1, /* 0, 1, 2, ... within the sequence, on from its parent's (rp_batch) */
    /* RoBERTa: parameter = pad id; a token that is not the pad counts up from pad + 1, a pad token
     * stays at pad. */
    RP_INDEX_POSITION_NONPAD = 2,
    /* The token's segment id; 0 when the batch has none or the table has one row. */
    RP_INDEX_TYPES = 3,
    RP_INDEX_QTYPES = 4 /* the question type of the token's sequence; 0 when the batch has none */
} rp_index;

typedef struct rp_embed_table {
    rp_weight table; /* [entries, width] */
    rp_index index;
    int32_t parameter; /* see rp_index; 0 otherwise */
} rp_embed_table;

#define RP_EMBED_MAX_TABLES 4

RP_API RP_CHECKED rp_status rp_graph_create(rp_graph **out, rp_error *err);
RP_API void rp_graph_destroy(rp_graph *graph);

/* Every op: `name` says which part of the model it is ("layers.3.attn.qkv"); it is copied, and is
 * what plans, digests, dumps and profiles show.  The comment gives the result's rows x width. */

/* tokens x width: the sum, in the order given, of one row of each table. */
RP_API rp_value rp_graph_embed(rp_graph *graph, const char *name, size_t n_tables,
                               const rp_embed_table *tables);

/* As x: (x - mean) / sqrt(var + eps) * w + b, row by row.  w is [1, width]; b is -1 for none. */
RP_API rp_value rp_graph_layer_norm(rp_graph *graph, const char *name, rp_value x, rp_weight w,
                                    rp_weight b, float eps);

/* rows of a x n: activation(a w^T + b) + residual.  w is [n, width of a]; b is [1, n] or -1;
 * residual is a value of the same rows and width n, or -1. */
RP_API rp_value rp_graph_gemm(rp_graph *graph, const char *name, rp_value a, rp_weight w,
                              rp_weight b, rp_activation activation, rp_value residual);

/* Attention within each sequence, every row seeing every row, or those around it or before it. */
typedef struct rp_attention {
    int32_t n_heads;
    int32_t head_dim;
    float scale; /* of the scores; 0 = 1/sqrt(head_dim) */
    /* MPNet: [buckets, n_heads] added to the scaled scores by T5's bidirectional buckets of key
     * position - query position; -1 = none. */
    rp_weight rel_bias;
    int32_t rel_max_distance; /* with rel_bias: the distance of the last bucket (128) */
    /* Keys at most this far to either side of a row; 0: all of them.  Time is then linear in the
     * length. */
    int32_t window;
    /* Heads of k and v, of which n_heads is a multiple: query head h uses head h / (n_heads /
     * n_kv_heads) of them.  0: n_heads. */
    int32_t n_kv_heads;
    bool causal; /* a row sees itself and the rows before it (with a window: that far back only) */
    /* The sequence is a question: its header, which is the rows before its first marker, then its
     * options, each from its marker up to the next one.  A row of the header sees the header and
     * every marker; a row of an option sees the header, every marker and its own option.  Without
     * markers all rows are header.  A sequence's markers must ascend (RP_ERR_INVALID, of a run).
     * Not with window, causal or rel_bias (RP_ERR_UNSUPPORTED), nor with rp_batch.parents. */
    bool options;
} rp_attention;

/* tokens x n_heads*head_dim.  qkv is tokens x (n_heads + 2*n_kv_heads)*head_dim: all heads of q,
 * then of k, then of v; with causal or n_kv_heads set it may be wider, and columns past those are
 * not read.  A relative bias goes with neither (RP_ERR_UNSUPPORTED). */
RP_API rp_value rp_graph_attention(rp_graph *graph, const char *name, rp_value qkv,
                                   const rp_attention *options);

/* Rotary position embedding of the heads of a row.  The pair (x, y) number i of a head becomes
 * (x cos a - y sin a, y cos a + x sin a), a = position * inverse frequency i; the position counts
 * from 0 in each sequence. */
typedef struct rp_rope {
    int32_t n_heads; /* the first heads of a row are turned (of q and k: 2 x heads), the rest of
                        the row is left as it is */
    int32_t head_dim;
    int32_t n_rotated; /* the first dims of a head, an even number; 0: all of them */
    bool interleaved;  /* pairs (2i, 2i+1) and not (i, i + n_rotated/2) */
    double theta;      /* inverse frequency i is theta^(-2i/n_rotated); at least 1 */
    /* Or given: n_rotated/2 of them, copied, at most 2^20 either way; theta then says nothing.
     * NULL: from theta. */
    const double *inv_freq;
    double scale; /* of cosines and sines (yarn's attention factor), at most 2^20; 0 = 1 */
    /* As in rp_attention: positions count on from the header's length in each option, so that the
     * order of options says nothing.  A sequence's markers must ascend (RP_ERR_INVALID, of a run).
     * Not with rp_batch.parents. */
    bool options;
} rp_rope;

/* As x, which has a row per token.  A plan has the cosines and sines of the positions of its bucket
 * as a table, one for all ropes of equal options. */
RP_API rp_value rp_graph_rope(rp_graph *graph, const char *name, rp_value x,
                              const rp_rope *options);

/* rows x width/2: activation(first half of the row) * second half (GeGLU, SwiGLU). */
RP_API rp_value rp_graph_glu(rp_graph *graph, const char *name, rp_value x,
                             rp_activation activation);

/* seqs x width: one row for each sequence.  A sequence without tokens gives a row of zeros. */
RP_API rp_value rp_graph_pool(rp_graph *graph, const char *name, rp_value x, rp_pooling pooling);

/* As x: x / max(|x|, eps) row by row; a row of zeros stays zeros. */
RP_API rp_value rp_graph_l2_norm(rp_graph *graph, const char *name, rp_value x, float eps);

/* As x: the activation alone. */
RP_API rp_value rp_graph_activation(rp_graph *graph, const char *name, rp_value x,
                                    rp_activation activation);

/* As a: a + b; both of the same rows and width. */
RP_API rp_value rp_graph_add(rp_graph *graph, const char *name, rp_value a, rp_value b);

/* rows x sum of widths: the values side by side. */
RP_API rp_value rp_graph_concat(rp_graph *graph, const char *name, size_t n,
                                const rp_value *values);

/* markers x width: the token row that each marker points to. */
RP_API rp_value rp_graph_gather_markers(rp_graph *graph, const char *name, rp_value x);

/* As x, which has a row per token or per marker: to each row the row of the table [types, width of
 * x] that the question type of its sequence picks (rp_batch.qtypes). */
RP_API rp_value rp_graph_add_types(rp_graph *graph, const char *name, rp_value x, rp_weight table);

/* seqs x width of first + 4, the input of a decision scorer's act head: the first row of the
 * sequence, then top1, top1 - top2, entropy / ln k and k / 255 over p, the softmax of the
 * sequence's logits. k is their number and at least 2; with one marker top2 is 0; in the logarithm
 * p is at least 1e-9. A sequence without markers has 0, 0, 0 and k / 255, one without tokens a
 * first row of zeros. first is seqs x width (rp_graph_pool with RP_POOL_CLS); logits are markers
 * x 1. */
RP_API rp_value rp_graph_act_features(rp_graph *graph, const char *name, rp_value first,
                                      rp_value logits);

/* RMS norm of whole rows, or of some heads of a row: x / sqrt(sum(x^2) / n + eps) * w.  Columns
 * that belong to none of the heads are as they are in x. */
typedef struct rp_rms_norm {
    rp_weight w;          /* [1, head_dim], of whole rows [1, width]; -1: none */
    bool offset;          /* the factor is 1 + w, one addition in f32 */
    float eps;            /* inside the root, beside the mean square */
    int32_t n_heads;      /* 0: the whole row is one */
    int32_t head_dim;     /* with n_heads */
    int32_t first_column; /* of the first head, with n_heads */
} rp_rms_norm;

/* As x. */
RP_API rp_value rp_graph_rms_norm(rp_graph *graph, const char *name, rp_value x,
                                  const rp_rms_norm *options);

typedef struct rp_gate {
    rp_activation activation;
    int32_t first_column; /* of gate */
    bool one;             /* one number for the whole row, not one for each column */
} rp_gate;

/* As x: x * activation(gate), of gate the columns from first_column on, as many as x has, or one.
 * gate has the same rows as x. */
RP_API rp_value rp_graph_gate(rp_graph *graph, const char *name, rp_value x, rp_value gate,
                              const rp_gate *options);

typedef struct rp_gated_norm {
    rp_weight w; /* [1, head_dim], as it is (no offset) */
    float eps;
    int32_t head_dim; /* x's width is a multiple of it */
    rp_activation activation;
    int32_t first_column; /* of gate */
} rp_gated_norm;

/* As x: each head's RMS norm, times w, then times activation(gate), of gate the columns from
 * first_column on, as many as x has. */
RP_API rp_value rp_graph_gated_norm(rp_graph *graph, const char *name, rp_value x, rp_value gate,
                                    const rp_gated_norm *options);

/* The gates of a gated delta net, from the columns a_column.. and b_column.. of x, n_heads of each:
 *
 *     g    = -exp(a_log) softplus(a + dt_bias)   the log of the decay, at most 0
 *     beta = beta_scale sigmoid(b)
 *
 * exp(a_log), softplus and g are kept within the finite floats, so exp(a_log) = inf times softplus
 * = 0 gives 0 (a decay of 1), and what is too large gives a decay of 0; never NaN unless one was
 * read. */
typedef struct rp_gdn_gates {
    int32_t n_heads, a_column, b_column;
    rp_weight a_log;   /* [1, n_heads] */
    rp_weight dt_bias; /* [1, n_heads]; -1: none */
    bool linear_rate;  /* g = a_log softplus(a + dt_bias): a_log is the factor itself */
    float beta_scale;  /* 0 = 1 */
} rp_gdn_gates;

/* rows of x x 2*n_heads: g of each head, then beta of each. */
RP_API rp_value rp_graph_gdn_gates(rp_graph *graph, const char *name, rp_value x,
                                   const rp_gdn_gates *options);

#define RP_EXPERTS_MAX 4096

/* A mixture of experts. */
typedef struct rp_experts {
    int32_t n_experts; /* at most RP_EXPERTS_MAX; of another count the arrays are not read */
    int32_t n_used;    /* of each row, 1 to n_experts */
    bool normalize;    /* the chosen ones' shares are divided by their sum */
    rp_activation activation;
    const rp_weight *up;   /* n_experts of [2*inner, width]: gate rows, then up rows; copied */
    const rp_weight *down; /* n_experts of [width, inner]; copied */
} rp_experts;

/* As x: p = softmax of the row's logits (n_experts wide); of the n_used largest p (of equal ones
 * those with the lower index) the sum, in ascending order of index, of p_e times
 *
 *     down_e (activation(first half of up_e x) * second half)
 *
 * and then + residual, a value as x, or -1.  A row's bits do not depend on the rows beside it.
 * In INT8 x is rounded once for all experts, what an expert's gate makes of it once more; products
 * that the logits come from stay FP32. */
RP_API rp_value rp_graph_experts(rp_graph *graph, const char *name, rp_value x, rp_value logits,
                                 const rp_experts *options, rp_value residual);

/* Which key head a value head of a gated delta net belongs to. */
typedef enum rp_gdn_map {
    RP_GDN_GROUPED = 0, /* value head / (value heads / key heads) */
    RP_GDN_TILED = 1    /* value head mod key heads */
} rp_gdn_map;

/* How its queries and keys are normalised, head by head.  A head whose squares sum past FLT_MAX
 * becomes zeros (1 / inf). */
typedef enum rp_gdn_norm {
    RP_GDN_NORM_NONE = 0,
    RP_GDN_NORM_ROOT = 1, /* x / sqrt(sum of squares + eps) */
    RP_GDN_NORM_MAX = 2   /* x / max(sqrt(sum of squares), eps) */
} rp_gdn_norm;

/* Causal convolution of each column by itself, along each sequence. */
#define RP_CONV_MAX_KERNEL 8
typedef struct rp_conv {
    rp_weight w; /* [channels, kernel], the last column for the row itself; kernel from 1 on */
    rp_weight b; /* [1, channels]; -1: none */
    rp_activation activation;
} rp_conv;

/* tokens x channels of the first `channels` columns of x, which has a row per token: activation(b +
 * sum over i of w[c][i] * x[t - kernel + 1 + i][c]).  Rows before the sequence are those of its
 * parent (rp_batch.parents), and before those they are 0. */
RP_API rp_value rp_graph_conv(rp_graph *graph, const char *name, rp_value x,
                              const rp_conv *options);

/* The gated delta rule along each sequence (https://arxiv.org/abs/2412.06464).  A value head has a
 * state S, key_dim x value_dim, zeros before the sequence; a token with the key k, query q, value
 * v, log decay g and rate beta does  S *= exp(g);  S += k (beta (v - S^T k))^T;  out = S^T q. */
typedef struct rp_gdn {
    int32_t n_key_heads, n_value_heads; /* the second a multiple of the first */
    int32_t key_dim, value_dim;
    rp_gdn_map map;
    rp_gdn_norm norm; /* of q and k */
    float eps;        /* of the norm: finite, not denormal, and so large that scale / eps (1 and
                         scale over the root of it) is finite, so that a head of zeros stays one */
    float scale;      /* of q after the norm; 0: 1/sqrt(key_dim).  Finite and not negative */
} rp_gdn;

/* tokens x n_value_heads*value_dim.  qkv is tokens x 2*n_key_heads*key_dim +
 * n_value_heads*value_dim: all heads of q, then k, then v; columns past those are not read.  gates
 * is tokens x 2*n_value_heads: the log decay of each value head, then the beta of each.  A sequence
 * with a parent goes on from the state that the parent's last token leaves. */
RP_API rp_value rp_graph_gdn(rp_graph *graph, const char *name, rp_value qkv, rp_value gates,
                             const rp_gdn *options);

/* tokens x width: rows that the caller brings along (rp_batch.input), as they are.  All such ops of
 * a graph have the same rows, and so need the same width (RP_ERR_SHAPE).  Not with
 * rp_batch.parents.
 */
RP_API rp_value rp_graph_input(rp_graph *graph, const char *name, size_t width);

/* Attention of rows to the rows of a memory, keys and values that another graph has made of another
 * text and that the batch brings along (rp_batch.memories).  Every row of a sequence sees every row
 * of the sequence's memory. */
typedef struct rp_cross_attention {
    int32_t n_heads, head_dim; /* of the queries */
    int32_t n_kv_heads;        /* as in rp_attention; 0: n_heads */
    float scale;               /* of the scores; 0 = 1/sqrt(head_dim) */
    int32_t memory_width;      /* of a row of the memory; the same for all such ops of a graph */
    /* Where in a row of the memory the first head of keys and the first of values begin; the others
     * follow. */
    int32_t key_column, value_column;
    /* Rows that a memory has at the most: scratch is taken for so many.  One with more is
     * RP_ERR_LIMIT, of a run. */
    int32_t max_memory;
} rp_cross_attention;

/* tokens x n_heads*head_dim, as q is: all heads of the queries.  A memory without rows gives rows
 * of zeros.  Not with rp_batch.parents. */
RP_API rp_value rp_graph_cross_attention(rp_graph *graph, const char *name, rp_value q,
                                         const rp_cross_attention *options);

/* markers x 4: where a marker stands among the k of its sequence, for scales (bad, fair, good).
 * With x = i / (k - 1) for marker i, 0 where k is 1:  x, x^2, sin(pi x), cos(pi x).  Zeros in
 * sequences of another question type than qtype (rp_batch.qtypes). */
RP_API rp_value rp_graph_ordinal_features(rp_graph *graph, const char *name, int32_t qtype);

/* Names a result.  Its row kind and width are said here so that a graph that computes something
 * else is refused.  A graph needs at least one output. */
RP_API void rp_graph_output(rp_graph *graph, const char *name, rp_value x, rp_rows rows,
                            size_t width);

RP_API size_t rp_graph_n_ops(const rp_graph *graph);

/* The text form: a line an op, stable from version to version, for eyes and for diff.  Writes at
 * most `size` bytes with the final 0 and returns the length that the whole text has (as snprintf
 * does). */
RP_API size_t rp_graph_text(const rp_graph *graph, const rp_weights *weights, char *buffer,
                            size_t size);

#ifdef __cplusplus
}
#endif
#endif
