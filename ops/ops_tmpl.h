/* The row-wise operations, written once over v16; ops/<isa>.c includes this once with its names.
 *
 * Every function walks a row in blocks of sixteen columns and then handles the rest with masked
 * loads and stores, so nothing outside a row is read or written.  Sums over a row keep column i in
 * lane i mod 16 and end in v_sum's tree.  Sums over rows (pooling) are one chain per column, first
 * row first.
 */
#include "ops/ops.h"
#include "ops/rope.h"
#include "pool/vmath.h"
#include "qgemm/qgemm.h"

#include <rankplan/machine.h>

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

/* What is made over for each kind of norm and count of rows, so that loops keep to registers. Plain
 * C has no registers to keep to, and compilers take minutes over it all in one function. */
#if defined(RP_V16_SCALAR)
#define OPS_FN static __attribute__((noinline))
#else
#define OPS_FN RP_V16_FN
#endif

/* ---- embedding --------------------------------------------------------------------------------
 */

RP_V16_FN v16 load_halves(const uint16_t *p, rp_dtype dtype, size_t n)
{
    return dtype == RP_DTYPE_F16 ? v_load_f16(p, n) : v_load_bf16(p, n);
}

RP_V16_FN v16 load_dtype(const void *row, rp_dtype dtype, size_t column, size_t n)
{
    if (dtype != RP_DTYPE_F32)
        return load_halves((const uint16_t *)row + column, dtype, n);
    const float *p = (const float *)row + column;
    return v_load_some(p, n);
}

/* y = row, or y += row; dtype and add are constants where this is inlined. */
RP_V16_FN void take_row(const void *row, rp_dtype dtype, bool add, size_t width, float *y)
{
    size_t c = 0;
    for (; c + 16 <= width; c += 16) {
        v16 v = load_dtype(row, dtype, c, 16);
        v_store(y + c, add ? v_add(v_load(y + c), v) : v);
    }
    if (c < width) {
        v16 v = load_dtype(row, dtype, c, width - c);
        v_store_n(y + c, add ? v_add(v_load_n(y + c, width - c), v) : v, width - c);
    }
}

static void take_any_row(const void *row, rp_dtype dtype, bool add, size_t width, float *y)
{
    switch (dtype) {
    case RP_DTYPE_F32:
        if (add)
            take_row(row, RP_DTYPE_F32, true, width, y);
        else
            memcpy(y, row, width * sizeof *y);
        break;
    case RP_DTYPE_F16: take_row(row, RP_DTYPE_F16, add, width, y); break;
    case RP_DTYPE_BF16: take_row(row, RP_DTYPE_BF16, add, width, y); break;
    }
}

static const void *table_row(const struct rp_ops_table *table, size_t width, size_t r)
{
    size_t element = table->dtype == RP_DTYPE_F32 ? sizeof(float) : sizeof(uint16_t);
    assert(table->index[r] >= 0);
    return (const char *)table->rows + (size_t)table->index[r] * width * element;
}

/* Table after table into the same row of y, which stays in the first-level cache: the order of the
 * sum is that of the tables. */
static void embed(const struct rp_ops_table *tables, size_t n_tables, size_t width, float *y,
                  size_t ldy, size_t r0, size_t r1)
{
    for (size_t r = r0; r < r1; r++) {
        for (size_t t = 0; t < n_tables; t++)
            take_any_row(table_row(&tables[t], width, r), tables[t].dtype, t > 0, width,
                         y + r * ldy);
    }
}

/* ---- norms ------------------------------------------------------------------------------------
 */

/* v with zeros from lane n on. */
RP_V16_FN v16 first_lanes(v16 v, size_t n)
{
    float lanes[16];
    if (n == 16)
        return v;
    v_store(lanes, v);
    return v_load_n(lanes, n);
}

/* What a norm does to every row. */
struct norm {
    const float *w, *b; /* b NULL: none */
    float eps;
    size_t width;
};

/* A layer norm, or an RMS norm by its factor; constant where loops are made of it. */
enum norm_kind { LAYER, RMS, RMS_OFFSET, RMS_ALONE };

struct moments {
    float mean, scale; /* 1 / sqrt(variance + eps); of an RMS norm 1 / sqrt(mean square + eps) */
};

/* The sum of a row is one chain of additions a lane, and so are its squares: the chains of several
 * rows side by side hide their latency. */
#define NORM_ROWS   4
#define EACH_ROW(X) X(0) X(1) X(2) X(3)
#define ROW_CLEAR(i)                                                                               \
    if (i < n)                                                                                     \
        sum[i] = v_zero();
#define ROW_SUM(i)                                                                                 \
    if (i < n)                                                                                     \
        sum[i] = v_add(sum[i], v_load_some(x + i * ldx + c, some));
#define ROW_MEAN(i)                                                                                \
    if (i < n) {                                                                                   \
        m[i].mean = v_sum(sum[i]) / (float)g->width;                                               \
        mean[i] = v_set1(m[i].mean);                                                               \
    }
#define ROW_SQUARE(i)                                                                              \
    if (i < n) {                                                                                   \
        const v16 d = v_sub(v_load_some(x + i * ldx + c, some), first_lanes(mean[i], some));       \
        sum[i] = v_fma(d, d, sum[i]);                                                              \
    }
#define ROW_MOMENTS(i)                                                                             \
    if (i < n) {                                                                                   \
        const float variance = v_sum(sum[i]) / (float)g->width;                                    \
        m[i].scale = 1.0f / sqrtf(variance + g->eps);                                              \
    }
/* statement for each sixteen columns of a row. */
#define EACH_COLUMN(statement)                                                                     \
    {                                                                                              \
        size_t c = 0;                                                                              \
        for (; c + 16 <= g->width; c += 16) {                                                      \
            enum { some = 16 };                                                                    \
            statement                                                                              \
        }                                                                                          \
        if (c < g->width) {                                                                        \
            const size_t some = g->width - c;                                                      \
            statement                                                                              \
        }                                                                                          \
    }

OPS_FN void moments_of(const struct norm *g, const float *x, size_t ldx, const unsigned n,
                       struct moments *m)
{
    v16 sum[NORM_ROWS], mean[NORM_ROWS];
    EACH_ROW(ROW_CLEAR)
    EACH_COLUMN(EACH_ROW(ROW_SUM))
    EACH_ROW(ROW_MEAN)
    EACH_ROW(ROW_CLEAR)
    EACH_COLUMN(EACH_ROW(ROW_SQUARE))
    EACH_ROW(ROW_MOMENTS)
}

#define ROW_RAW_SQUARE(i)                                                                          \
    if (i < n) {                                                                                   \
        const v16 v = v_load_some(x + i * ldx + c, some);                                          \
        sum[i] = v_fma(v, v, sum[i]);                                                              \
    }

OPS_FN void mean_squares_of(const struct norm *g, const float *x, size_t ldx, const unsigned n,
                            struct moments *m)
{
    v16 sum[NORM_ROWS];
    EACH_ROW(ROW_CLEAR)
    EACH_COLUMN(EACH_ROW(ROW_RAW_SQUARE))
    EACH_ROW(ROW_MOMENTS)
}

OPS_FN void any_moments(const struct norm *g, enum norm_kind kind, const float *x, size_t ldx,
                        const unsigned n, struct moments *m)
{
    if (kind == LAYER)
        moments_of(g, x, ldx, n, m);
    else
        mean_squares_of(g, x, ldx, n, m);
}

/* As many rows at once as there are, of up to `rows`; how many those were. */
OPS_FN size_t next_moments(const struct norm *g, enum norm_kind kind, const float *x, size_t ldx,
                           size_t rows, struct moments *m)
{
    if (rows < NORM_ROWS) {
        any_moments(g, kind, x, ldx, 1, m);
        return 1;
    }
    any_moments(g, kind, x, ldx, NORM_ROWS, m);
    return NORM_ROWS;
}

/* Columns [c, c + n) of the result. */
RP_V16_FN v16 normed(const struct norm *g, enum norm_kind kind, const float *x, struct moments m,
                     size_t c, size_t n)
{
    v16 v = v_load_some(x + c, n);
    if (kind == LAYER)
        v = v_sub(v, v_set1(m.mean));
    v = v_mul(v, v_set1(m.scale));
    if (kind == RMS_ALONE)
        return v;
    v16 w = v_load_some(g->w + c, n);
    if (kind == RMS_OFFSET)
        w = v_add(v_set1(1.0f), w);
    return kind == LAYER && g->b ? v_fma(v, w, v_load_some(g->b + c, n)) : v_mul(v, w);
}

/* Rows that lie ldx apart.  Each lies in the first-level cache when it is normed. */
OPS_FN void norm_rows(const struct norm *g, enum norm_kind kind, const float *x, size_t ldx,
                      float *y, size_t ldy, size_t rows)
{
    struct moments m[NORM_ROWS];
    for (size_t r = 0, n; r < rows; r += n) {
        n = next_moments(g, kind, x + r * ldx, ldx, rows - r, m);
        for (size_t i = 0; i < n; i++) {
            const float *from = x + (r + i) * ldx;
            float *to = y + (r + i) * ldy;
            EACH_COLUMN(v_store_some(to + c, normed(g, kind, from, m[i], c, some), some);)
        }
    }
}

static void layer_norm(const float *x, size_t ldx, const float *w, const float *b, float eps,
                       size_t width, float *y, size_t ldy, size_t rows)
{
    const struct norm g = {.w = w, .b = b, .eps = eps, .width = width};
    norm_rows(&g, LAYER, x, ldx, y, ldy, rows);
}

static void rms_lines(const struct norm *g, enum norm_kind kind, const float *x, size_t ldx,
                      float *y, size_t ldy, size_t lines)
{
    switch (kind) {
    case RMS_OFFSET: norm_rows(g, RMS_OFFSET, x, ldx, y, ldy, lines); break;
    case RMS_ALONE: norm_rows(g, RMS_ALONE, x, ldx, y, ldy, lines); break;
    default: norm_rows(g, RMS, x, ldx, y, ldy, lines); break;
    }
}

/* Columns [from, to) as they are. */
static void keep_columns(const float *x, float *y, size_t from, size_t to)
{
    if (x != y && from < to)
        memcpy(y + from, x + from, (to - from) * sizeof *y);
}

/* The lines are rows, or the heads of one row after the other: either way several are summed side
 * by side. */
static void rms_norm(const struct rp_ops_rms_norm *norm, const float *x, size_t ldx, size_t width,
                     float *y, size_t ldy, size_t rows)
{
    const struct norm g = {.w = norm->w, .eps = norm->eps, .width = norm->head_dim};
    const enum norm_kind kind = !norm->w ? RMS_ALONE : norm->offset ? RMS_OFFSET : RMS;
    const size_t first = norm->first_column, dim = norm->head_dim;
    if (norm->n_heads == 1 && dim == width) {
        rms_lines(&g, kind, x, ldx, y, ldy, rows);
        return;
    }
    for (size_t r = 0; r < rows; r++, x += ldx, y += ldy) {
        keep_columns(x, y, 0, first);
        rms_lines(&g, kind, x + first, dim, y + first, dim, norm->n_heads);
        keep_columns(x, y, first + norm->n_heads * dim, width);
    }
}

/* The comparison is written so that a NaN stays; a row of zeros is divided by 1 when eps is 0. */
static float l2_divisor(const float *x, float eps, size_t width)
{
    v16 squares = v_zero();
    size_t c = 0;
    for (; c + 16 <= width; c += 16) {
        v16 v = v_load(x + c);
        squares = v_fma(v, v, squares);
    }
    if (c < width) {
        v16 v = v_load_n(x + c, width - c);
        squares = v_fma(v, v, squares);
    }
    float norm = sqrtf(v_sum(squares));
    if (norm < eps)
        norm = eps;
    return norm == 0.0f ? 1.0f : norm;
}

static void l2_norm(const float *x, size_t ldx, float eps, size_t width, float *y, size_t ldy,
                    size_t rows)
{
    for (size_t r = 0; r < rows; r++, x += ldx, y += ldy) {
        v16 divisor = v_set1(l2_divisor(x, eps, width));
        size_t c = 0;
        for (; c + 16 <= width; c += 16)
            v_store(y + c, v_div(v_load(x + c), divisor));
        if (c < width)
            v_store_n(y + c, v_div(v_load_n(x + c, width - c), divisor), width - c);
    }
}

/* ---- activations and sums ---------------------------------------------------------------------
 */

/* A loop of its own for each function, so that the choice is made once a call. */
#define MAP_ROWS(f)                                                                                \
    for (size_t r = 0; r < rows; r++, x += ldx, y += ldy) {                                        \
        size_t c = 0;                                                                              \
        for (; c + 16 <= width; c += 16)                                                           \
            v_store(y + c, f(v_load(x + c)));                                                      \
        if (c < width)                                                                             \
            v_store_n(y + c, f(v_load_n(x + c, width - c)), width - c);                            \
    }                                                                                              \
    break

RP_V16_FN v16 same(v16 x)
{
    return x;
}

/* The functions of activations, in plain C one of each. */
#define ACTIVATION_FN(name)                                                                        \
    OPS_FN v16 act_##name(v16 x)                                                                   \
    {                                                                                              \
        return v_##name(x);                                                                        \
    }
ACTIVATION_FN(gelu)
ACTIVATION_FN(gelu_tanh)
ACTIVATION_FN(relu)
ACTIVATION_FN(silu)
ACTIVATION_FN(tanh)
ACTIVATION_FN(sigmoid)

static void activation(rp_activation which, const float *x, size_t ldx, size_t width, float *y,
                       size_t ldy, size_t rows)
{
    switch (which) {
    case RP_ACT_NONE: MAP_ROWS(same);
    case RP_ACT_GELU: MAP_ROWS(act_gelu);
    case RP_ACT_GELU_TANH: MAP_ROWS(act_gelu_tanh);
    case RP_ACT_RELU: MAP_ROWS(act_relu);
    case RP_ACT_SILU: MAP_ROWS(act_silu);
    case RP_ACT_TANH: MAP_ROWS(act_tanh);
    case RP_ACT_SIGMOID: MAP_ROWS(act_sigmoid);
    }
}

static void add(const float *a, size_t lda, const float *b, size_t ldb, size_t width, float *y,
                size_t ldy, size_t rows)
{
    for (size_t r = 0; r < rows; r++, a += lda, b += ldb, y += ldy) {
        size_t c = 0;
        for (; c + 16 <= width; c += 16)
            v_store(y + c, v_add(v_load(a + c), v_load(b + c)));
        if (c < width) {
            size_t rest = width - c;
            v_store_n(y + c, v_add(v_load_n(a + c, rest), v_load_n(b + c, rest)), rest);
        }
    }
}

static void add_scaled(float scale, const float *x, size_t width, float *y)
{
    const v16 by = v_set1(scale);
    for (size_t c = 0; c < width; c += 16) {
        const size_t n = width - c < 16 ? width - c : 16;
        v_store_some(y + c, v_fma(v_load_some(x + c, n), by, v_load_some(y + c, n)), n);
    }
}

/* ---- gates ------------------------------------------------------------------------------------
 */

#define GATE_ROWS(f)                                                                               \
    for (size_t r = 0; r < rows; r++, x += ldx, gate += ldg, y += ldy) {                           \
        size_t c = 0;                                                                              \
        for (; c + 16 <= width; c += 16)                                                           \
            v_store(y + c, v_mul(f(v_load(gate + c)), v_load(x + c)));                             \
        if (c < width) {                                                                           \
            const size_t n = width - c;                                                            \
            v_store_n(y + c, v_mul(f(v_load_n(gate + c, n)), v_load_n(x + c, n)), n);              \
        }                                                                                          \
    }                                                                                              \
    break

static void gate_by_column(rp_activation which, const float *gate, size_t ldg, const float *x,
                           size_t ldx, size_t width, float *y, size_t ldy, size_t rows)
{
    switch (which) {
    case RP_ACT_NONE: GATE_ROWS(same);
    case RP_ACT_GELU: GATE_ROWS(act_gelu);
    case RP_ACT_GELU_TANH: GATE_ROWS(act_gelu_tanh);
    case RP_ACT_RELU: GATE_ROWS(act_relu);
    case RP_ACT_SILU: GATE_ROWS(act_silu);
    case RP_ACT_TANH: GATE_ROWS(act_tanh);
    case RP_ACT_SIGMOID: GATE_ROWS(act_sigmoid);
    }
}

static void glu(rp_activation which, const float *x, size_t ldx, size_t width, float *y, size_t ldy,
                size_t rows)
{
    gate_by_column(which, x, ldx, x + width, ldx, width, y, ldy, rows);
}

OPS_FN v16 activate_one(rp_activation which, float x)
{
    return v_activate(which, v_set1(x));
}

static void gate_by_one(rp_activation which, const float *gate, size_t ldg, const float *x,
                        size_t ldx, size_t width, float *y, size_t ldy, size_t rows)
{
    for (size_t r = 0; r < rows; r++, x += ldx, y += ldy) {
        const v16 by = activate_one(which, gate[r * ldg]);
        for (size_t c = 0; c < width; c += 16) {
            const size_t n = width - c < 16 ? width - c : 16;
            v_store_some(y + c, v_mul(by, v_load_some(x + c, n)), n);
        }
    }
}

static void gate(rp_activation which, const float *gate, size_t ldg, bool one, const float *x,
                 size_t ldx, size_t width, float *y, size_t ldy, size_t rows)
{
    if (one)
        gate_by_one(which, gate, ldg, x, ldx, width, y, ldy, rows);
    else
        gate_by_column(which, gate, ldg, x, ldx, width, y, ldy, rows);
}

/* A row's norm is still in the first-level cache when it is gated. */
static void gated_norm(const struct rp_ops_rms_norm *norm, rp_activation which, const float *gate,
                       size_t ldg, const float *x, size_t ldx, size_t width, float *y, size_t ldy,
                       size_t rows)
{
    for (size_t r = 0; r < rows; r++, x += ldx, gate += ldg, y += ldy) {
        rms_norm(norm, x, ldx, width, y, ldy, 1);
        gate_by_column(which, gate, ldg, y, ldy, width, y, ldy, 1);
    }
}

/* Within the finite floats; a NaN stays. */
RP_V16_FN v16 finite(v16 x)
{
    return v_min(v_set1(FLT_MAX), v_max(v_set1(-FLT_MAX), x));
}

OPS_FN v16 softplus(v16 x)
{
    return v_softplus(x);
}

/* Heads [h, h + n) of all rows: what depends on the head alone is computed once. */
OPS_FN void gate_heads(const struct rp_ops_gdn_gates *g, size_t h, size_t n, const float *x,
                       size_t ldx, float *y, size_t ldy, size_t rows)
{
    const v16 a_log = v_load_some(g->a_log + h, n);
    const v16 rate = finite(g->linear_rate ? a_log : v_neg(v_exp(a_log)));
    const v16 bias = g->dt_bias ? v_load_some(g->dt_bias + h, n) : v_zero();
    const v16 beta_scale = v_set1(g->beta_scale);
    for (size_t r = 0; r < rows; r++, x += ldx, y += ldy) {
        const v16 a = v_load_some(x + g->a_column + h, n), b = v_load_some(x + g->b_column + h, n);
        const v16 s = finite(softplus(g->dt_bias ? v_add(a, bias) : a));
        v_store_some(y + h, finite(v_mul(rate, s)), n);
        v_store_some(y + g->n_heads + h, v_mul(beta_scale, act_sigmoid(b)), n);
    }
}

static void gdn_gates(const struct rp_ops_gdn_gates *g, const float *x, size_t ldx, float *y,
                      size_t ldy, size_t rows)
{
    for (size_t h = 0; h < g->n_heads; h += 16)
        gate_heads(g, h, g->n_heads - h < 16 ? g->n_heads - h : 16, x, ldx, y, ldy, rows);
}

/* ---- rotary positions -------------------------------------------------------------------------
 */

/* Pairs (i, i + half) of a head, n of them from i on.  x and y may be the same: both parts are read
 * before one is written. */
RP_V16_FN void turn_halves(const float *x, const float *table, size_t half, size_t i, size_t n,
                           float *y)
{
    const v16 a = v_load_some(x + i, n);
    const v16 b = v_load_some(x + half + i, n);
    const v16 c = v_load_some(table + i, n);
    const v16 s = v_load_some(table + half + i, n);
    const v16 p = v_fma(a, c, v_neg(v_mul(b, s))), q = v_fma(b, c, v_mul(a, s));
    v_store_some(y + i, p, n);
    v_store_some(y + half + i, q, n);
}

/* Columns [c, c + n) of a head whose pairs lie side by side: the table has each cosine twice, and
 * the sine's sign turned for the first of a pair. */
RP_V16_FN void turn_pairs(const float *x, const float *table, size_t rotated, size_t c, size_t n,
                          float *y)
{
    const v16 a = v_load_some(x + c, n);
    const v16 cosines = v_load_some(table + c, n);
    const v16 sines = v_load_some(table + rotated + c, n);
    const v16 p = v_fma(a, cosines, v_mul(v_swap_pairs(a), sines));
    v_store_some(y + c, p, n);
}

static void turn_head(const struct rp_ops_rope *rope, const float *table, const float *x, float *y)
{
    const size_t n = rope->interleaved ? rope->n_rotated : rope->n_rotated / 2;
    for (size_t i = 0; i < n; i += 16) {
        const size_t some = n - i < 16 ? n - i : 16;
        if (rope->interleaved)
            turn_pairs(x, table, n, i, some, y);
        else
            turn_halves(x, table, n, i, some, y);
    }
    if (x != y && rope->n_rotated < rope->head_dim)
        memcpy(y + rope->n_rotated, x + rope->n_rotated,
               (rope->head_dim - rope->n_rotated) * sizeof *y);
}

static void rope(const struct rp_ops_rope *rope, const int32_t *positions, const float *x,
                 size_t ldx, size_t width, float *y, size_t ldy, size_t rows)
{
    const size_t turned = rope->n_heads * rope->head_dim;
    for (size_t r = 0; r < rows; r++, x += ldx, y += ldy) {
        const float *table = rp_rope_row(rope, (size_t)positions[r]);
        for (size_t c = 0; c < turned; c += rope->head_dim)
            turn_head(rope, table, x + c, y + c);
        if (x != y && turned < width)
            memcpy(y + turned, x + turned, (width - turned) * sizeof *y);
    }
}

static void add_table(const struct rp_ops_table *table, const float *x, size_t ldx, size_t width,
                      float *y, size_t ldy, size_t rows)
{
    for (size_t r = 0; r < rows; r++, x += ldx, y += ldy) {
        if (x != y)
            memcpy(y, x, width * sizeof *y);
        take_any_row(table_row(table, width, r), table->dtype, true, width, y);
    }
}

/* ---- softmax of logits -------------------------------------------------------------------------
 */

/* exp(l / temperature - top) of up to sixteen logits; 0 in the lanes past them. */
RP_V16_FN v16 softmax_terms(const float *logits, size_t n, float temperature, v16 top)
{
    float some[16];
    for (size_t i = 0; i < 16; i++)
        some[i] = i < n ? logits[i] / temperature : -INFINITY;
    return v_exp_neg(v_sub(v_load(some), top));
}

static float softmax_sum(const float *logits, size_t n, float temperature, v16 top)
{
    v16 sum = v_zero();
    for (size_t i = 0; i < n; i += 16)
        sum = v_add(sum, softmax_terms(logits + i, n - i < 16 ? n - i : 16, temperature, top));
    return v_sum(sum);
}

static void softmax(const float *x, size_t n, float temperature, float *y)
{
    float first = -INFINITY;
    for (size_t i = 0; i < n; i++)
        first = x[i] / temperature > first ? x[i] / temperature : first;
    const v16 top = v_set1(first);
    const v16 sum = v_set1(softmax_sum(x, n, temperature, top));
    for (size_t i = 0; i < n; i += 16) {
        const size_t some = n - i < 16 ? n - i : 16;
        v_store_n(y + i, v_div(softmax_terms(x + i, some, temperature, top), sum), some);
    }
}

static float log_of(float x)
{
    float y[16];
    v_store(y, v_log(v_set1(x)));
    return y[0];
}

/* A NaN among the logits is in the sum and so in all numbers but the last; infinite ones end as
 * inf - inf. */
static void softmax_numbers(const float *logits, size_t n, float log_k, float out[3])
{
    float first = -INFINITY, second = -INFINITY, rest[16];
    for (size_t i = 0; i < n; i++) {
        const float lower = logits[i] > first ? first : logits[i];
        first = logits[i] > first ? logits[i] : first;
        second = lower > second ? lower : second;
    }
    const v16 top = v_set1(first);
    const float s = softmax_sum(logits, n, 1, top);
    v16 entropy = v_zero();
    for (size_t i = 0; i < n; i += 16) {
        const v16 e = softmax_terms(logits + i, n - i < 16 ? n - i : 16, 1, top);
        const v16 p = v_div(e, v_set1(s));
        entropy = v_fma(p, v_log(v_max(v_set1(1e-9f), p)), entropy);
    }
    v_store(rest, softmax_terms(&second, 1, 1, top));
    out[0] = 1 / s;
    out[1] = 1 / s - rest[0] / s;
    out[2] = -v_sum(entropy) / log_k;
}

static void act_features(const float *x, size_t width, const float *logits, size_t n, float *y)
{
    const float k = (float)(n > 2 ? n : 2);
    if (x)
        memcpy(y, x, width * sizeof *y);
    else
        memset(y, 0, width * sizeof *y);
    memset(y + width, 0, 3 * sizeof *y);
    if (n)
        softmax_numbers(logits, n, log_of(k), y + width);
    y[width + 3] = k / 255;
}

/* ---- pooling ----------------------------------------------------------------------------------
 */

/* Row r (from 1 on) taken into what the rows before it gave.  For the maximum: a NaN in the row
 * wins, and one that is already there stays, because v_max gives its second operand then. */
RP_V16_FN v16 pool_step(rp_pooling pooling, v16 so_far, v16 x, size_t r)
{
    if (pooling == RP_POOL_MAX)
        return v_sel_nan(x, x, v_max(x, so_far));
    if (pooling == RP_POOL_WEIGHTED_MEAN)
        return v_fma(v_set1((float)(r + 1)), x, so_far);
    return v_add(so_far, x);
}

/* Four blocks of columns at a time: a row gives four cache lines that lie side by side, and four
 * chains hide the latency of the additions. */
RP_V16_FN void pool_columns(rp_pooling pooling, const float *x, size_t ldx, size_t n, size_t width,
                            v16 divisor, float *y)
{
    size_t c = 0;
    for (; c + 64 <= width; c += 64) {
        v16 s0 = v_load(x + c), s1 = v_load(x + c + 16);
        v16 s2 = v_load(x + c + 32), s3 = v_load(x + c + 48);
        for (size_t r = 1; r < n; r++) {
            const float *row = x + r * ldx + c;
            s0 = pool_step(pooling, s0, v_load(row), r);
            s1 = pool_step(pooling, s1, v_load(row + 16), r);
            s2 = pool_step(pooling, s2, v_load(row + 32), r);
            s3 = pool_step(pooling, s3, v_load(row + 48), r);
        }
        v_store(y + c, v_div(s0, divisor));
        v_store(y + c + 16, v_div(s1, divisor));
        v_store(y + c + 32, v_div(s2, divisor));
        v_store(y + c + 48, v_div(s3, divisor));
    }
    for (; c < width; c += 16) {
        size_t some = width - c < 16 ? width - c : 16;
        v16 s = v_load_n(x + c, some);
        for (size_t r = 1; r < n; r++)
            s = pool_step(pooling, s, v_load_n(x + r * ldx + c, some), r);
        v_store_n(y + c, v_div(s, divisor), some);
    }
}

static void pool(rp_pooling pooling, const float *x, size_t ldx, size_t n, size_t width, float *y)
{
    if (n == 0) {
        memset(y, 0, width * sizeof *y);
        return;
    }
    float count = (float)n;
    switch (pooling) {
    case RP_POOL_CLS: memcpy(y, x, width * sizeof *y); break;
    case RP_POOL_LAST: memcpy(y, x + (n - 1) * ldx, width * sizeof *y); break;
    case RP_POOL_MEAN: pool_columns(RP_POOL_MEAN, x, ldx, n, width, v_set1(count), y); break;
    case RP_POOL_MEAN_SQRT_LEN:
        pool_columns(RP_POOL_MEAN, x, ldx, n, width, v_set1(sqrtf(count)), y);
        break;
    case RP_POOL_MAX: pool_columns(RP_POOL_MAX, x, ldx, n, width, v_set1(1.0f), y); break;
    case RP_POOL_WEIGHTED_MEAN: {
        double weights = (double)n * (double)(n + 1) / 2; /* exact up to n = 2^26 */
        pool_columns(RP_POOL_WEIGHTED_MEAN, x, ldx, n, width, v_set1((float)weights), y);
        break;
    }
    }
}

/* ---- checks and conversion --------------------------------------------------------------------
 */

static bool is_finite_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (bits & 0x7f800000u) != 0x7f800000u;
}

/* x * 0 is a zero when x is finite and a NaN when it is not, and a NaN stays in a sum: one fma a
 * block finds a chunk that holds one, and only then is the place looked for. */
static bool nonfinite(const float *x, size_t n, size_t *where)
{
    enum { chunk = 1024 };
    const v16 zero = v_zero();
    for (size_t at = 0; at < n; at += chunk) {
        size_t end = n - at < chunk ? n : at + chunk, i = at;
        v16 s0 = zero, s1 = zero;
        for (; i + 32 <= end; i += 32) {
            s0 = v_fma(v_load(x + i), zero, s0);
            s1 = v_fma(v_load(x + i + 16), zero, s1);
        }
        for (; i < end; i += 16)
            s0 = v_fma(v_load_n(x + i, end - i < 16 ? end - i : 16), zero, s0);
        if (v_sum(v_add(s0, s1)) == 0.0f)
            continue;
        for (i = at; is_finite_bits(x[i]);)
            i++;
        *where = i;
        return true;
    }
    return false;
}

/* n halves from an even address; dtype is a constant where this is inlined. */
RP_V16_FN void widen_halves(rp_dtype dtype, const uint16_t *x, float *y, size_t n)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        v_store(y + i, load_halves(x + i, dtype, 16));
    if (i < n)
        v_store_n(y + i, load_halves(x + i, dtype, n - i), n - i);
}

static void widen_aligned(rp_dtype dtype, const uint16_t *x, float *y, size_t n)
{
    if (dtype == RP_DTYPE_F16)
        widen_halves(RP_DTYPE_F16, x, y, n);
    else
        widen_halves(RP_DTYPE_BF16, x, y, n);
}

/* The halves of a file may lie at odd addresses: those go through a buffer. */
static void widen(rp_dtype dtype, const void *x, float *y, size_t n)
{
    if (dtype == RP_DTYPE_F32) {
        memcpy(y, x, n * sizeof *y);
    } else if ((uintptr_t)x % _Alignof(uint16_t) == 0) {
        widen_aligned(dtype, x, y, n);
    } else {
        uint16_t block[512];
        const char *bytes = x;
        for (size_t i = 0, some; i < n; i += some) {
            some = n - i < 512 ? n - i : 512;
            memcpy(block, bytes + i * sizeof *block, some * sizeof *block);
            widen_aligned(dtype, block, y + i, some);
        }
    }
}

/* The bits of the nearest bf16, in the lower halves of the lanes: half of the last place that stays
 * is added, and a tie's excess is less than that when the last place is even. */
RP_V16_FN v16i bf16_of(v16 x)
{
    const v16i u = v_bits(x), odd = vi_and(vi_shr(u, 16), vi_set1(1));
    const v16i y = vi_shr(vi_add(vi_add(u, vi_set1(0x7fff)), odd), 16);
    return v_bits(v_sel_nan(x, v_from_bits(vi_set1(0x7fc0)), v_from_bits(y)));
}

/* The same for f16.  Below 2^-14 its numbers are 2^-24 apart, as floats from 1/2 on are: the adder
 * rounds. */
RP_V16_FN v16i f16_of(v16 x)
{
    const v16 a = v_abs(x), half = v_set1(0.5f);
    const v16i sign = vi_and(vi_shr(v_bits(x), 16), vi_set1(0x8000));
    const v16i u = v_bits(a), odd = vi_and(vi_shr(u, 13), vi_set1(1));
    const v16i bias = vi_set1(0xfff - ((127 - 15) << 23));
    const v16 normal = v_from_bits(vi_shr(vi_add(vi_add(u, bias), odd), 13));
    const v16 small = v_from_bits(vi_add(v_bits(v_add(a, half)), vi_set1(-0x3f000000)));
    v16 y = v_sel_lt(a, v_set1(0x1p-14f), small, normal);
    y = v_sel_lt(a, v_set1(65520.0f), y, v_from_bits(vi_set1(0x7c00)));
    y = v_sel_nan(a, v_from_bits(vi_set1(0x7e00)), y);
    return vi_or(v_bits(y), sign);
}

/* Sixteen floats as halves. */
RP_V16_FN void store_halves(rp_dtype dtype, v16 v, uint16_t *halves)
{
    float lanes[16];
    uint32_t bits[16];
    v_store(lanes, v_from_bits(dtype == RP_DTYPE_F16 ? f16_of(v) : bf16_of(v)));
    memcpy(bits, lanes, sizeof bits);
    for (size_t i = 0; i < 16; i++)
        halves[i] = (uint16_t)bits[i];
}

RP_V16_FN void narrow_to(rp_dtype dtype, const float *x, uint16_t *y, size_t n)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        store_halves(dtype, v_load(x + i), y + i);
    if (i < n) {
        uint16_t some[16];
        store_halves(dtype, v_load_n(x + i, n - i), some);
        memcpy(y + i, some, (n - i) * sizeof *y);
    }
}

static void narrow(rp_dtype dtype, const float *x, void *y, size_t n)
{
    if (dtype == RP_DTYPE_F32)
        memcpy(y, x, n * sizeof *x);
    else if (dtype == RP_DTYPE_F16)
        narrow_to(RP_DTYPE_F16, x, y, n);
    else
        narrow_to(RP_DTYPE_BF16, x, y, n);
}

/* ---- rows for INT8 products -------------------------------------------------------------------
 */

/* The range of a row's columns, lane by lane. */
struct range {
    v16 lo, hi, not_finite;
};

RP_V16_FN struct range range_of_none(void)
{
    return (struct range){v_zero(), v_zero(), v_zero()};
}

RP_V16_FN void take(struct range *range, v16 y)
{
    range->lo = v_min(y, range->lo);
    range->hi = v_max(y, range->hi);
    range->not_finite = v_fma(y, v_zero(), range->not_finite); /* NaN from then on */
}

/* Scale and zero point of a row. */
RP_V16_FN struct rp_qgemm_row_tail tail_of(const struct range *range)
{
    const float least = -v_hmax(v_neg(range->lo));
    float scale = v_hmax(range->hi) / 255 - least / 255;
    scale = scale > 0x1p-126f ? scale : 0x1p-126f;
    const float zero = rintf(-least * (1 / scale));
    return (struct rp_qgemm_row_tail){.scale = scale + v_sum(range->not_finite),
                                      .zero = zero < 255 ? (int32_t)zero : 255};
}

/* Columns [c, c + n) of a row, smoothed. */
RP_V16_FN v16 smoothed(const float *x, const float *factors, size_t c, size_t n)
{
    const v16 v = v_load_some(x + c, n);
    return factors ? v_mul(v, v_load_some(factors + c, n)) : v;
}

/* The bytes of a row whose range is known, and its tail. */
RP_V16_FN void round_row(const float *x, const float *factors, size_t width,
                         struct rp_qgemm_row_tail tail, uint8_t *q)
{
    const v16 inverse = v_set1(1 / tail.scale), zero = v_set1((float)tail.zero);
    size_t c = 0;
    for (; c + 64 <= width; c += 64)
        v_store_u8(q + c, v_fma(smoothed(x, factors, c, 16), inverse, zero),
                   v_fma(smoothed(x, factors, c + 16, 16), inverse, zero),
                   v_fma(smoothed(x, factors, c + 32, 16), inverse, zero),
                   v_fma(smoothed(x, factors, c + 48, 16), inverse, zero));
    if (c < width) {
        v16 last[4];
        for (size_t i = 0; i < 4; i++) {
            const size_t at = c + 16 * i, n = at >= width ? 0 : width - at < 16 ? width - at : 16;
            last[i] = v_fma(n ? smoothed(x, factors, at, n) : v_zero(), inverse, zero);
        }
        v_store_u8(q + c, last[0], last[1], last[2], last[3]);
        c += 64;
    }
    memset(q + c, 0, rp_qgemm_row_bytes(width) - c);
    memcpy(q + c, &tail, sizeof tail);
}

/* Two rows side by side, x and the one after it: each hides the latency of the other's range. */
RP_V16_FN void quantize_two(const float *x, size_t ldx, const float *factors, size_t width,
                            uint8_t *q)
{
    struct range first = range_of_none(), second = first;
    size_t c = 0;
    for (; c + 16 <= width; c += 16) {
        take(&first, smoothed(x, factors, c, 16));
        take(&second, smoothed(x + ldx, factors, c, 16));
    }
    if (c < width) {
        take(&first, smoothed(x, factors, c, width - c));
        take(&second, smoothed(x + ldx, factors, c, width - c));
    }
    const struct rp_qgemm_row_tail first_tail = tail_of(&first), second_tail = tail_of(&second);
    round_row(x, factors, width, first_tail, q);
    round_row(x + ldx, factors, width, second_tail, q + rp_qgemm_row_bytes(width));
}

RP_V16_FN void quantize_one(const float *x, const float *factors, size_t width, uint8_t *q)
{
    struct range range = range_of_none();
    for (size_t c = 0; c < width; c += 16)
        take(&range, smoothed(x, factors, c, width - c < 16 ? width - c : 16));
    round_row(x, factors, width, tail_of(&range), q);
}

RP_V16_FN void quantize_rows(const float *x, size_t ldx, const float *factors, size_t width,
                             uint8_t *q, size_t rows)
{
    size_t r = 0;
    for (; r + 2 <= rows; r += 2)
        quantize_two(x + r * ldx, ldx, factors, width, q + r * rp_qgemm_row_bytes(width));
    if (r < rows)
        quantize_one(x + r * ldx, factors, width, q + r * rp_qgemm_row_bytes(width));
}

static void quantize(const float *x, size_t ldx, const float *factors, size_t width, uint8_t *q,
                     size_t rows)
{
    if (factors)
        quantize_rows(x, ldx, factors, width, q, rows);
    else
        quantize_rows(x, ldx, NULL, width, q, rows);
}

/* A row normed, its range taken on the way. */
OPS_FN struct rp_qgemm_row_tail norm_tail(const struct norm *g, enum norm_kind kind, const float *x,
                                          struct moments m, const float *factors, float *y)
{
    struct range range = range_of_none();
    size_t c = 0;
    for (; c + 16 <= g->width; c += 16) {
        const v16 v = normed(g, kind, x, m, c, 16);
        v_store(y + c, v);
        take(&range, factors ? v_mul(v, v_load(factors + c)) : v);
    }
    if (c < g->width) {
        const size_t n = g->width - c;
        v_store_n(y + c, normed(g, kind, x, m, c, n), n);
        take(&range, smoothed(y, factors, c, n)); /* lanes past the row are zeros only now */
    }
    return tail_of(&range);
}

/* n rows whose moments are known: ranges first, so that a row's tail is made while the next one is
 * normed; then all of them are rounded, from the first-level cache. */
OPS_FN void norm_and_round(const struct norm *g, enum norm_kind kind, const float *x, size_t ldx,
                           const struct moments *m, size_t n, float *y, size_t ldy,
                           const float *factors, uint8_t *q)
{
    struct rp_qgemm_row_tail tails[NORM_ROWS];
    for (size_t i = 0; i < n; i++)
        tails[i] = norm_tail(g, kind, x + i * ldx, m[i], factors, y + i * ldy);
    for (size_t i = 0; i < n; i++)
        round_row(y + i * ldy, factors, g->width, tails[i], q + i * rp_qgemm_row_bytes(g->width));
}

OPS_FN void norm_quantize(const struct norm *g, enum norm_kind kind, const float *x, size_t ldx,
                          float *y, size_t ldy, bool keep, const float *factors, uint8_t *q,
                          size_t rows)
{
    struct moments m[NORM_ROWS];
    for (size_t r = 0, n; r < rows; r += n) {
        n = next_moments(g, kind, x + r * ldx, ldx, rows - r, m);
        float *to = keep ? y + r * ldy : y;
        uint8_t *bytes = q + r * rp_qgemm_row_bytes(g->width);
        if (factors)
            norm_and_round(g, kind, x + r * ldx, ldx, m, n, to, ldy, factors, bytes);
        else
            norm_and_round(g, kind, x + r * ldx, ldx, m, n, to, ldy, NULL, bytes);
    }
}

static void layer_norm_quantize(const float *x, size_t ldx, const float *w, const float *b,
                                float eps, size_t width, float *y, size_t ldy, bool keep,
                                const float *factors, uint8_t *q, size_t rows)
{
    const struct norm g = {.w = w, .b = b, .eps = eps, .width = width};
    norm_quantize(&g, LAYER, x, ldx, y, ldy, keep, factors, q, rows);
}

static void rms_norm_quantize(const struct rp_ops_rms_norm *norm, const float *x, size_t ldx,
                              float *y, size_t ldy, bool keep, const float *factors, uint8_t *q,
                              size_t rows)
{
    const struct norm g = {.w = norm->w, .eps = norm->eps, .width = norm->head_dim};
    if (norm->offset)
        norm_quantize(&g, RMS_OFFSET, x, ldx, y, ldy, keep, factors, q, rows);
    else
        norm_quantize(&g, RMS, x, ldx, y, ldy, keep, factors, q, rows);
}

/* ---- convolution ------------------------------------------------------------------------------
 */

/* Rows whose chains run side by side: a row of x is read from memory once for all of them. */
#define CONV_ROWS 4
/* Columns that go through the activation while they are in the first-level cache. */
#define CONV_COLUMNS 512

RP_V16_FN v16 load_or_zero(const float *row, size_t c, size_t n)
{
    return row ? v_load_some(row + c, n) : v_zero();
}

/* Columns [c, c + some) of n rows, CONV_ROWS or 1; row r of them reads x[r] to x[r + kernel - 1].
 */
OPS_FN void conv_columns(const struct rp_ops_conv *p, const float *const *x, const unsigned n,
                         size_t c, const size_t some, float *y, size_t ldy)
{
    v16 s0 = v_zero(), s1 = s0, s2 = s0, s3 = s0;
    for (size_t i = 0; i < p->kernel; i++) {
        const v16 w = v_load_some(p->w + i * p->width + c, some);
        s0 = v_fma(w, load_or_zero(x[i], c, some), s0);
        if (n == 1)
            continue;
        s1 = v_fma(w, load_or_zero(x[i + 1], c, some), s1);
        s2 = v_fma(w, load_or_zero(x[i + 2], c, some), s2);
        s3 = v_fma(w, load_or_zero(x[i + 3], c, some), s3);
    }
    const v16 b = p->b ? v_load_some(p->b + c, some) : v_zero();
    v_store_some(y + c, p->b ? v_add(s0, b) : s0, some);
    if (n == 1)
        return;
    v_store_some(y + ldy + c, p->b ? v_add(s1, b) : s1, some);
    v_store_some(y + 2 * ldy + c, p->b ? v_add(s2, b) : s2, some);
    v_store_some(y + 3 * ldy + c, p->b ? v_add(s3, b) : s3, some);
}

OPS_FN void conv_rows(const struct rp_ops_conv *p, const float *const *x, const unsigned n,
                      float *y, size_t ldy)
{
    for (size_t c0 = 0; c0 < p->width; c0 += CONV_COLUMNS) {
        const size_t c1 = p->width - c0 < CONV_COLUMNS ? p->width : c0 + CONV_COLUMNS;
        size_t c = c0;
        for (; c + 16 <= c1; c += 16)
            conv_columns(p, x, n, c, 16, y, ldy);
        if (c < c1)
            conv_columns(p, x, n, c, c1 - c, y, ldy);
        if (p->activation != RP_ACT_NONE)
            activation(p->activation, y + c0, ldy, c1 - c0, y + c0, ldy, n);
    }
}

/* Row r - (kernel - 1) + j, counted from x's first. */
static const float *conv_source(const struct rp_ops_conv *p, const float *const *before,
                                const float *x, size_t ldx, size_t r, size_t j)
{
    const size_t at = r + j;
    return at < p->kernel - 1 ? before[at] : x + (at - (p->kernel - 1)) * ldx;
}

static void conv(const struct rp_ops_conv *p, const float *const *before, const float *x,
                 size_t ldx, float *y, size_t ldy, size_t rows)
{
    const float *sources[RP_CONV_MAX_KERNEL + CONV_ROWS - 1];
    for (size_t r = 0, n; r < rows; r += n) {
        n = rows - r < CONV_ROWS ? 1 : CONV_ROWS;
        for (size_t j = 0; j < p->kernel + n - 1; j++)
            sources[j] = conv_source(p, before, x, ldx, r, j);
        if (n == 1)
            conv_rows(p, sources, 1, y + r * ldy, ldy);
        else
            conv_rows(p, sources, CONV_ROWS, y + r * ldy, ldy);
    }
}

extern const struct rp_ops RP_OPS_TABLE;
const struct rp_ops RP_OPS_TABLE = {
    .name = RP_OPS_NAME,
    .isa = RP_OPS_ISA,
    .embed = embed,
    .layer_norm = layer_norm,
    .l2_norm = l2_norm,
    .activation = activation,
    .add = add,
    .rope = rope,
    .glu = glu,
    .add_table = add_table,
    .conv = conv,
    .softmax = softmax,
    .act_features = act_features,
    .pool = pool,
    .nonfinite = nonfinite,
    .quantize = quantize,
    .layer_norm_quantize = layer_norm_quantize,
    .rms_norm = rms_norm,
    .rms_norm_quantize = rms_norm_quantize,
    .gate = gate,
    .gated_norm = gated_norm,
    .gdn_gates = gdn_gates,
    .add_scaled = add_scaled,
    .widen = widen,
    .narrow = narrow,
};
