/* Everything row-wise that is not a product: embedding sums, norms, activations, pooling.
 *
 * One table per ISA, made from one template (ops/ops_tmpl.h) over v16; all of them give the same
 * bits.  Widths are any number from 1 on; rows lie ld floats apart; x and y may be the same rows
 * unless said.
 */
#ifndef RP_OPS_OPS_H
#define RP_OPS_OPS_H

#include <rankplan/graph.h>

#include <stddef.h>
#include <stdint.h>

/* A table to look rows up in. */
struct rp_ops_table {
    const void *rows;     /* [entries, width] of dtype */
    const int32_t *index; /* one entry per output row, checked by the caller */
    rp_dtype dtype;
};

/* Heads to turn, and by what (ops/rope.h makes the table). */
struct rp_ops_rope {
    const float *table; /* rp_rope_row_floats() for each position */
    size_t n_heads, head_dim, n_rotated;
    _Bool interleaved;
};

/* An RMS norm of heads that lie side by side. */
struct rp_ops_rms_norm {
    const float *w; /* head_dim; NULL: none */
    _Bool offset;   /* the factor is 1 + w */
    float eps;
    size_t n_heads, head_dim, first_column; /* of whole rows: 1, the width, 0 */
};

/* What the gates of a gated delta net are made of. */
struct rp_ops_gdn_gates {
    size_t n_heads, a_column, b_column;
    const float *a_log, *dt_bias; /* n_heads; dt_bias NULL: none */
    _Bool linear_rate;
    float beta_scale;
};

/* A causal convolution of each column by itself. */
struct rp_ops_conv {
    const float *w; /* kernel rows of width: the oldest row that is read comes first */
    const float *b; /* width, or NULL */
    size_t kernel;  /* 1 to RP_CONV_MAX_KERNEL */
    size_t width;
    rp_activation activation;
};

struct rp_ops {
    const char *name; /* "avx2" */
    uint32_t isa;

    /* y[r] = t0[index0[r]] + t1[index1[r]] + ... in this order, rows r0 <= r < r1. */
    void (*embed)(const struct rp_ops_table *tables, size_t n_tables, size_t width, float *y,
                  size_t ldy, size_t r0, size_t r1);

    /* mean = sum16(x)/width, d = x - mean, var = sum16(d*d)/width, y = fma(d * (1/sqrt(var+eps)),
     * w, b); without b: the product.  sum16 keeps column i in partial sum i mod 16 and adds those
     * by v_sum's tree; squares go into it by fma. */
    void (*layer_norm)(const float *x, size_t ldx, const float *w, const float *b, float eps,
                       size_t width, float *y, size_t ldy, size_t rows);

    /* y = x / max(sqrt(sum16(x*x)), eps); a row of zeros stays zeros, also with eps 0. */
    void (*l2_norm)(const float *x, size_t ldx, float eps, size_t width, float *y, size_t ldy,
                    size_t rows);

    void (*activation)(rp_activation activation, const float *x, size_t ldx, size_t width, float *y,
                       size_t ldy, size_t rows);

    void (*add)(const float *a, size_t lda, const float *b, size_t ldb, size_t width, float *y,
                size_t ldy, size_t rows);

    /* The first n_heads * head_dim columns turned head by head, the other columns as they are.  A
     * pair (x, y) of the first n_rotated dims of a head, (i, i + n_rotated/2) or (2i, 2i+1), with
     * the cosine and sine that the table has for it at positions[r], becomes
     *
     *     (fma(x, cos, -(y * sin)), fma(y, cos, x * sin)) */
    void (*rope)(const struct rp_ops_rope *rope, const int32_t *positions, const float *x,
                 size_t ldx, size_t width, float *y, size_t ldy, size_t rows);

    /* y = activation(x[c]) * x[width + c] for c < width; x and y are apart. */
    void (*glu)(rp_activation activation, const float *x, size_t ldx, size_t width, float *y,
                size_t ldy, size_t rows);

    /* Each head: y = (x * r) * w with r = 1 / sqrt(sum16(x*x) / head_dim + eps), sum16 by fma as in
     * layer_norm; with offset times (1 + w), that sum rounded once; without w: x * r.  Other
     * columns as they are. */
    void (*rms_norm)(const struct rp_ops_rms_norm *norm, const float *x, size_t ldx, size_t width,
                     float *y, size_t ldy, size_t rows);

    /* y = x * activation(gate), of a row's first `width` numbers of gate, or of its first alone
     * (one).  gate may not be y unless it is also x. */
    void (*gate)(rp_activation activation, const float *gate, size_t ldg, _Bool one, const float *x,
                 size_t ldx, size_t width, float *y, size_t ldy, size_t rows);

    /* rms_norm, then gate of its result.  gate is apart from y. */
    void (*gated_norm)(const struct rp_ops_rms_norm *norm, rp_activation activation,
                       const float *gate, size_t ldg, const float *x, size_t ldx, size_t width,
                       float *y, size_t ldy, size_t rows);

    /* Column h of y is the log of head h's decay, column n_heads + h its beta:
     *
     *     rate = -exp(a_log[h]), with linear_rate a_log[h]
     *     s    = softplus(x[a_column + h] + dt_bias[h])
     *     g    = rate * s
     *     beta = beta_scale * sigmoid(x[b_column + h])
     *
     * with rate, s and the product kept within -FLT_MAX and FLT_MAX, so that none of them is
     * infinite and inf * 0 never is computed.  A NaN stays one.  x and y are apart. */
    void (*gdn_gates)(const struct rp_ops_gdn_gates *gates, const float *x, size_t ldx, float *y,
                      size_t ldy, size_t rows);

    /* y = fma(x, scale, y): one row. */
    void (*add_scaled)(float scale, const float *x, size_t width, float *y);

    /* y = x + table[index]: one row of the table for each row. */
    void (*add_table)(const struct rp_ops_table *table, const float *x, size_t ldx, size_t width,
                      float *y, size_t ldy, size_t rows);

    /* y[r] = activation(chain over i ascending of fma(w[i], x[r - kernel + 1 + i], .) from 0, + b),
     * column by column.  before has the kernel - 1 rows that come before x's first, the oldest
     * first; NULL is a row of zeros.  y is apart from all of them. */
    void (*conv)(const struct rp_ops_conv *conv, const float *const *before, const float *x,
                 size_t ldx, float *y, size_t ldy, size_t rows);

    /* y_i = e_i / sum16(e) with z_i = x_i / temperature and e_i = exp(z_i - max z).  x may be y. */
    void (*softmax)(const float *x, size_t n, float temperature, float *y);

    /* One row of width + 4: x (zeros when NULL), then four numbers about the softmax of n logits.
     * With l1, l2 the two largest logits (l2 = -inf when n is 1), e_i = exp(l_i - l1), s =
     * sum16(e), p_i = e_i / s and k = max(n, 2):
     *
     *     1/s,  1/s - exp(l2 - l1)/s,  -sum16(p_i log(max(p_i, 1e-9))) / log(k),  k/255
     *
     * and 0, 0, 0, k/255 when n is 0.  y is apart from x and the logits. */
    void (*act_features)(const float *x, size_t width, const float *logits, size_t n, float *y);

    /* One output row from the n rows of a sequence; n 0 gives zeros.  x and y are apart.  Sums are
     * one chain per column, first row first, divided once.  A NaN in any row that the mode reads
     * shows in the result (also for max). */
    void (*pool)(rp_pooling pooling, const float *x, size_t ldx, size_t n, size_t width, float *y);

    /* True when any of n floats is a NaN or an infinity; *where is the first. */
    _Bool (*nonfinite)(const float *x, size_t n, size_t *where);

    /* Rows for an INT8 product (qgemm/qgemm.h), rp_qgemm_row_bytes(width) apart.  With y = x *
     * factor (y = x when factors is NULL), lo = min(0, y), hi = max(0, y) of the row:
     *
     *     scale = max(hi/255 - lo/255, 2^-126)
     *     zero  = min(rint(-lo * (1/scale)), 255)
     *     q     = rint(min(max(fma(y, 1/scale, zero), 0), 255))
     *
     * rint to even.  A row of zeros is all 0 with zero point 0.  A row with a NaN or an infinity
     * gets a scale of NaN.  Bytes past the width are the zero point's. */
    void (*quantize)(const float *x, size_t ldx, const float *factors, size_t width, uint8_t *q,
                     size_t rows);

    /* layer_norm and then quantize of its result, row by row.  y and x are apart.  Without
     * keep, for a y that nobody else reads, rows of y take each other's place while they are in the
     * first-level cache, and what is left in y is of no use. */
    void (*layer_norm_quantize)(const float *x, size_t ldx, const float *w, const float *b,
                                float eps, size_t width, float *y, size_t ldy, _Bool keep,
                                const float *factors, uint8_t *q, size_t rows);

    /* rms_norm of whole rows and then quantize, as layer_norm_quantize.  norm has a w. */
    void (*rms_norm_quantize)(const struct rp_ops_rms_norm *norm, const float *x, size_t ldx,
                              float *y, size_t ldy, _Bool keep, const float *factors, uint8_t *q,
                              size_t rows);

    /* f16/bf16/f32 to f32, exact; for weights while they are packed. */
    void (*widen)(rp_dtype dtype, const void *x, float *y, size_t n);

    /* And back, to nearest even; past the largest it is infinite, a NaN stays one. */
    void (*narrow)(rp_dtype dtype, const float *x, void *y, size_t n);
};

/* The table of the fastest ISA within the mask; all tables for tests. */
const struct rp_ops *rp_ops_select(uint32_t isa);
const struct rp_ops *const *rp_ops_all(size_t *n);

#endif
