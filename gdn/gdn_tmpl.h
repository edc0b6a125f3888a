/* The gated delta rule, written once against v16 and compiled once per instruction set.
 *
 * A call is some rows of one key head:
 *
 *     bring the states of its value heads into panels of 16 columns       [key_dim][16]
 *     for each chunk of rows:
 *         norm keys and queries, turn them into panels of 16 tokens       [key_dim][16]
 *         G = keys x keys, H = queries x keys                             once for all value heads
 *         for each value head:
 *             ratios of its decays; R G, R H and R[last] k                the factors of the sums
 *             for each panel of columns, which stays in the nearest cache:
 *                 deltas  = beta (v - (A keys x S + R G x deltas))        a block of rows at a time
 *                 outputs = A queries x S + R H x deltas
 *                 S       = A S + (R[last] k) x deltas
 *     bring the states back
 *
 * All five products are the same thing: a register tile of up to GDN_ROWS rows of a panel of 16,
 * [steps][16], against lines of 16 columns, [steps][16].  In the triangular ones a tile takes the
 * deltas above its own rows as a product, and the few between its own rows one by one, while they
 * are in registers; so the products of a row of the state and of the triangle are one chain in one
 * register from the first key to the last delta, and tiles move time alone.
 *
 * A single row is done where the state lies.
 *
 * A file that includes this has chosen its v16 and says:
 *
 *     GDN_KERNEL         the name of its struct rp_gdn_kernel
 *     GDN_NAME, GDN_ISA  what stands in it
 *     GDN_ROWS, GDN_VECS the register tile: rows x v16, accumulators that the registers hold
 *     GDN_BLOCK          transpose_block() turns GDN_BLOCK rows x GDN_BLOCK columns at once
 */
#ifndef RP_GDN_GDN_TMPL_H
#define RP_GDN_GDN_TMPL_H

#include "gdn/internal.h"
#include "pool/unroll.h"
#include "pool/v16.h"
#include "pool/vmath.h"

#include <math.h>
#include <string.h>

#define CHUNK RP_GDN_CHUNK
_Static_assert(CHUNK % 16 == 0, "panels of tokens");
_Static_assert(GDN_ROWS <= 8, "heights of tiles");

/* ---- register tiles --------------------------------------------------------------------- */

/* acc[i][n] goes on as the chain over t of a[t][i] b[n][t], a and b lines of 16. */
RP_V16_FN void chains(const size_t m, const size_t n_vecs, size_t k, const float *a, const float *b,
                      size_t b_stride, v16 *acc)
{
    for (size_t t = 0; t < k; t++, a += 16, b += 16) {
        v16 line[GDN_VECS];
        UNROLL
        for (size_t n = 0; n < n_vecs; n++)
            line[n] = v_load(b + n * b_stride);
        UNROLL
        for (size_t i = 0; i < m; i++) {
            const v16 x = v_set1(a[i]);
            UNROLL
            for (size_t n = 0; n < n_vecs; n++)
                acc[i * n_vecs + n] = v_fma(x, line[n], acc[i * n_vecs + n]);
        }
    }
}

/* Calls tile(height, ...) with a constant height, which makes each a loop of its own. */
#if PLAIN_LOOPS
#define WITH_HEIGHT(height, tile, ...) tile(height, __VA_ARGS__)
#else
#define HEIGHT_CASE(h, tile, ...)                                                                  \
    case h:                                                                                        \
        tile(h, __VA_ARGS__);                                                                      \
        break;
#if GDN_ROWS > 6
#define HEIGHTS_ABOVE_6(tile, ...)                                                                 \
    HEIGHT_CASE(7, tile, __VA_ARGS__)                                                              \
    HEIGHT_CASE(8, tile, __VA_ARGS__)
#else
#define HEIGHTS_ABOVE_6(tile, ...)
#endif
#define WITH_HEIGHT(height, tile, ...)                                                             \
    do {                                                                                           \
        switch (height) {                                                                          \
            HEIGHT_CASE(1, tile, __VA_ARGS__)                                                      \
            HEIGHT_CASE(2, tile, __VA_ARGS__)                                                      \
            HEIGHT_CASE(3, tile, __VA_ARGS__)                                                      \
            HEIGHT_CASE(4, tile, __VA_ARGS__)                                                      \
            HEIGHT_CASE(5, tile, __VA_ARGS__)                                                      \
            HEIGHT_CASE(6, tile, __VA_ARGS__)                                                      \
            HEIGHTS_ABOVE_6(tile, __VA_ARGS__)                                                     \
        }                                                                                          \
    } while (0)
#endif

/* The rows of the next tile when m <= 16 are to do: 16 are 6 + 5 + 5 and not 6 + 6 + 4, which would
 * have too few chains to hide the latency of an fma.  (Dividing by a number of tiles would take a
 * tenth of a tile's time.) */
static inline size_t tile_rows(size_t m)
{
    return m <= GDN_ROWS       ? m
           : m <= 2 * GDN_ROWS ? (m + 1) / 2
           : m <= 3 * GDN_ROWS ? (m + 2) / 3
                               : GDN_ROWS;
}

/* c[n][i] = the chain over t of a[t][i] b[n][t]. */
RP_V16_FN void plain_tile(const size_t m, const size_t n_vecs, size_t k, const float *a,
                          const float *b, size_t b_stride, float *c, size_t c_stride)
{
    v16 acc[GDN_ROWS * GDN_VECS];
    UNROLL
    for (size_t i = 0; i < m * n_vecs; i++)
        acc[i] = v_zero();
    chains(m, n_vecs, k, a, b, b_stride, acc);
    UNROLL
    for (size_t i = 0; i < m; i++) {
        UNROLL
        for (size_t n = 0; n < n_vecs; n++)
            v_store(c + n * c_stride + 16 * i, acc[i * n_vecs + n]);
    }
}

/* A row of the batch or of the state beside those before it in memory is a page away: its lines are
 * asked for before a tile's chains and needed after them. */
RP_V16_FN void fetch_line(const float *p)
{
    __builtin_prefetch(p, 0, 3);
}

RP_V16_FN void fetch_line_to_write(const float *p)
{
    __builtin_prefetch(p, 1, 3);
}

/* How many of n columns are in the panel that is number i of them. */
RP_V16_FN size_t lanes_of(size_t n, size_t i)
{
    return n - 16 * i < 16 ? n - 16 * i : 16;
}

/* A group of panels of a state, and where it goes. */
struct states {
    size_t dim;
    float *panels; /* [dim][16] each */
    /* Rows ld apart: where the state goes, with `width` columns; NULL: back to the panels. */
    float *to;
    size_t ld, width;
    const float *next; /* what is brought in next, from the same rows; NULL: nothing */
};

/* Rows [row, row + m) of a state go on: s = decay s, and then a chain as above. */
RP_V16_FN void state_tile(const size_t m, const size_t n_vecs, const struct states *s, size_t row,
                          float decay, size_t k, const float *a, const float *b, size_t b_stride)
{
    const v16 by = v_set1(decay);
    float *const in = s->panels + 16 * row;
    v16 acc[GDN_ROWS * GDN_VECS];
    UNROLL
    for (size_t i = 0; i < m; i++) {
        UNROLL
        for (size_t n = 0; n < n_vecs; n++)
            acc[i * n_vecs + n] = v_mul(by, v_load(in + n * 16 * s->dim + 16 * i));
        if (s->next) {
            for (size_t n = 0; n < n_vecs; n++)
                fetch_line(s->next + (row + i) * s->ld + 16 * n);
        }
    }
    chains(m, n_vecs, k, a, b, b_stride, acc);
    UNROLL
    for (size_t i = 0; i < m; i++) {
        UNROLL
        for (size_t n = 0; n < n_vecs; n++) {
            if (s->to)
                v_store_some(s->to + (row + i) * s->ld + 16 * n, acc[i * n_vecs + n],
                             lanes_of(s->width, n));
            else
                v_store(in + n * 16 * s->dim + 16 * i, acc[i * n_vecs + n]);
        }
    }
}

/* A panel of up to 16 tokens against a group of panels of columns. */
struct tokens {
    size_t first;    /* the token of lane 0 */
    size_t dim;      /* of keys */
    const float *in; /* keys or queries, [dim][16] */
    const float *w;  /* R G or R H, [CHUNK][16] */
    const float *decay, *beta;
    const float *state; /* from a panel to the next: state_stride */
    size_t state_stride;
    float *deltas;  /* [CHUNK][16] a panel */
    size_t columns; /* that there are from the first panel's on */
    size_t column;  /* the first panel's, of: */
    const float *const *values;
    float *const *outputs; /* NULL for a token without one */
};

/* Lanes [lane, lane + m): what the state and the tokens before them make of keys or queries. */
RP_V16_FN void sum_up(const size_t m, const size_t n_vecs, const struct tokens *t, size_t lane,
                      v16 *acc)
{
    UNROLL
    for (size_t i = 0; i < m * n_vecs; i++)
        acc[i] = v_zero();
    chains(m, n_vecs, t->dim, t->in + lane, t->state, t->state_stride, acc);
    UNROLL
    for (size_t i = 0; i < m; i++) {
        const v16 by = v_set1(t->decay[lane + i]);
        UNROLL
        for (size_t n = 0; n < n_vecs; n++)
            acc[i * n_vecs + n] = v_mul(by, acc[i * n_vecs + n]);
    }
    chains(m, n_vecs, t->first + lane, t->w + lane, t->deltas, 16 * CHUNK, acc);
}

/* The deltas of lanes [lane, lane + m), each at once part of those below it. */
RP_V16_FN void delta_tile(const size_t m, const size_t n_vecs, const struct tokens *t, size_t lane)
{
    v16 acc[GDN_ROWS * GDN_VECS];
    for (size_t i = 0; i < m; i++) {
        for (size_t n = 0; n < n_vecs; n++)
            fetch_line(t->values[lane + i] + t->column + 16 * n);
    }
    sum_up(m, n_vecs, t, lane, acc);
    float *d = t->deltas + 16 * (t->first + lane);
    const float *w = t->w + 16 * (t->first + lane) + lane;
    UNROLL
    for (size_t u = 0; u < m; u++, d += 16, w += 16) {
        const v16 beta = v_set1(t->beta[lane + u]);
        const float *const v = t->values[lane + u] + t->column;
        v16 line[GDN_VECS];
        UNROLL
        for (size_t n = 0; n < n_vecs; n++) {
            line[n] = v_load_some(v + 16 * n, lanes_of(t->columns, n));
            line[n] = v_mul(beta, v_sub(line[n], acc[u * n_vecs + n]));
            v_store(d + n * 16 * CHUNK, line[n]);
        }
        UNROLL
        for (size_t i = u + 1; i < m; i++) {
            const v16 x = v_set1(w[i]);
            UNROLL
            for (size_t n = 0; n < n_vecs; n++)
                acc[i * n_vecs + n] = v_fma(x, line[n], acc[i * n_vecs + n]);
        }
    }
}

/* The output of lanes [lane, lane + m), whose deltas there are. */
RP_V16_FN void output_tile(const size_t m, const size_t n_vecs, const struct tokens *t, size_t lane)
{
    v16 acc[GDN_ROWS * GDN_VECS];
    for (size_t i = 0; i < m; i++) {
        for (size_t n = 0; n < n_vecs && t->outputs[lane + i]; n++)
            fetch_line_to_write(t->outputs[lane + i] + t->column + 16 * n);
    }
    sum_up(m, n_vecs, t, lane, acc);
    const float *d = t->deltas + 16 * (t->first + lane);
    const float *w = t->w + 16 * (t->first + lane) + lane;
    UNROLL
    for (size_t u = 0; u < m; u++, d += 16, w += 16) {
        v16 line[GDN_VECS];
        UNROLL
        for (size_t n = 0; n < n_vecs; n++)
            line[n] = v_load(d + n * 16 * CHUNK);
        UNROLL
        for (size_t i = u; i < m; i++) {
            const v16 x = v_set1(w[i]);
            UNROLL
            for (size_t n = 0; n < n_vecs; n++)
                acc[i * n_vecs + n] = v_fma(x, line[n], acc[i * n_vecs + n]);
        }
    }
    UNROLL
    for (size_t u = 0; u < m; u++) {
        float *const out = t->outputs[lane + u];
        UNROLL
        for (size_t n = 0; n < n_vecs; n++) {
            if (out)
                v_store_some(out + t->column + 16 * n, acc[u * n_vecs + n],
                             lanes_of(t->columns, n));
        }
    }
}

/* ---- panels ----------------------------------------------------------------------------- */

/* m <= 16 rows u of a panel of keys against a panel of tokens t: G, and H if `queries`.  The
 * panels of keys and queries, and the two results, lie as far apart as the strides say. */
static void gram_panel(size_t m, size_t dim, const float *a, const float *b, size_t b_stride,
                       bool queries, float *c, size_t c_stride)
{
    const size_t n = queries ? 2 : 1;
    for (size_t i = 0, height; i < m; i += height) {
        size_t v = 0;
        height = tile_rows(m - i);
        for (; v + GDN_VECS <= n; v += GDN_VECS)
            WITH_HEIGHT(height, plain_tile, GDN_VECS, dim, a + i, b + v * b_stride, b_stride,
                        c + v * c_stride + 16 * i, c_stride);
#if GDN_VECS > 1
        for (; v < n; v++)
            WITH_HEIGHT(height, plain_tile, 1, dim, a + i, b + v * b_stride, b_stride,
                        c + v * c_stride + 16 * i, c_stride);
#endif
    }
}

/* m <= 16 tokens: deltas, or outputs. */
RP_V16_FN void token_panel(size_t m, const size_t n_vecs, const struct tokens *t,
                           const bool outputs)
{
    for (size_t lane = 0, height; lane < m; lane += height) {
        height = tile_rows(m - lane);
        if (outputs)
            WITH_HEIGHT(height, output_tile, n_vecs, t, lane);
        else
            WITH_HEIGHT(height, delta_tile, n_vecs, t, lane);
    }
}

/* Brings a group of panels in. */
static void load_panels(size_t n_vecs, const struct states *s, const float *from)
{
    for (size_t i = 0; i < s->dim; i++, from += s->ld) {
        for (size_t n = 0; n < n_vecs; n++)
            v_store(s->panels + 16 * (n * s->dim + i),
                    v_load_some(from + 16 * n, lanes_of(s->width, n)));
    }
}

/* All rows of a group of panels; `updates` has n tokens. */
RP_V16_FN void state_panels(const size_t n_vecs, const struct states *s, float decay, size_t n,
                            const float *updates, const float *deltas)
{
    for (size_t i0 = 0; i0 < s->dim; i0 += 16, updates += 16 * CHUNK) {
        const size_t m = lanes_of(s->dim - i0, 0);
        for (size_t i = 0, height; i < m; i += height) {
            height = tile_rows(m - i);
            WITH_HEIGHT(height, state_tile, n_vecs, s, i0 + i, decay, n, updates + i, deltas,
                        16 * CHUNK);
        }
    }
}

/* ---- a call and its chunks -------------------------------------------------------------- */

/* One value head, and which of its columns are done. */
struct head {
    size_t number;    /* of all value heads */
    size_t l0, width; /* columns [l0, l0 + width) */
    float *state;     /* the caller's, column l0 */
    float *panels;    /* the same in scratch */
};

struct call {
    const struct rp_gdn_args *args;
    struct rp_gdn_scratch_layout at;
    float *base; /* of the scratch */
    size_t key_head;
    size_t n; /* rows of the chunk */
    size_t row[CHUNK];
    bool silent[CHUNK];
    bool first, last; /* of the call's chunks */
    /* Of one value head: */
    const float *values[CHUNK];
    float *outputs[CHUNK];
    float decay[CHUNK]; /* A_t */
    float beta[CHUNK];
    float to_end[CHUNK]; /* R[n - 1][t] */
};

/* Value head number r of the key head, as far as [c0, c1) reaches into it. */
static struct head head_of(const struct call *c, size_t r, size_t c0, size_t c1, float *state)
{
    const size_t dv = c->args->value_dim, begin = r * dv, end = begin + dv;
    const size_t from = c0 > begin ? c0 : begin, to = c1 < end ? c1 : end;
    return (struct head){
        .number = rp_gdn_value_head(c->args, c->key_head, r),
        .l0 = from - begin,
        .width = to > from ? to - from : 0,
        .state = state + begin * c->args->key_dim + (from - begin),
        .panels = c->base + c->at.state + r * c->at.head_state,
    };
}

/* to[n] = x * (scale / what the norm divides by), and zeros up to whole lines. */
static void norm_row(const struct rp_gdn_args *args, const float *x, float scale, float *to)
{
    const size_t n = args->key_dim, tail = n % 16;
    v16 squares = v_zero();
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const v16 v = v_load(x + i);
        squares = v_fma(v, v, squares);
    }
    if (tail) {
        const v16 v = v_load_n(x + i, tail);
        squares = v_fma(v, v, squares);
    }
    if (args->norm == RP_GDN_NORM_ROOT) {
        scale = scale / sqrtf(v_sum(squares) + args->eps);
    } else if (args->norm == RP_GDN_NORM_MAX) {
        const float norm = sqrtf(v_sum(squares));
        scale = scale / (norm < args->eps ? args->eps : norm); /* a NaN stays */
    }
    const v16 by = v_set1(scale);
    for (i = 0; i + 16 <= n; i += 16)
        v_store(to + i, v_mul(v_load(x + i), by));
    if (tail)
        v_store(to + i, v_mul(v_load_n(x + i, tail), by));
}

static float query_scale(const struct rp_gdn_args *args)
{
    return args->scale != 0.0f ? args->scale : 1.0f / sqrtf((float)args->key_dim);
}

static const float *query_of(const struct call *c, size_t t)
{
    return c->args->qkv + c->row[t] * c->args->ld + c->key_head * c->args->key_dim;
}

static const float *key_of(const struct call *c, size_t t)
{
    return query_of(c, t) + c->args->n_key_heads * c->args->key_dim;
}

/* Keys and queries of a row that is worked on a few rows later. */
static void fetch_tokens(const struct call *c, size_t t)
{
    for (size_t i = 0; t < c->n && i < c->args->key_dim; i += 16) {
        fetch_line(key_of(c, t) + i);
        fetch_line(query_of(c, t) + i);
    }
}

/* 16 rows into a panel [n][16]. */
static void turn(float *panel, const float *rows, size_t n)
{
    for (size_t r = 0; r < 16; r += GDN_BLOCK)
        for (size_t i = 0; i < n; i += GDN_BLOCK)
            transpose_block(panel + 16 * i + r, rows + r * n + i, n);
}

/* Keys and queries of the chunk, as rows and as panels. */
static void pack_tokens(const struct call *c)
{
    const size_t padded = c->at.padded_dim;
    const float scale = query_scale(c->args);
    for (size_t first = 0; first < c->n; first += 16) {
        float *const k = c->base + c->at.k_rows + first * padded, *const q = c->base + c->at.q_rows;
        const size_t m = c->n - first < 16 ? c->n - first : 16;
        for (size_t i = 0; i < m; i++) {
            fetch_tokens(c, first + i + 4);
            norm_row(c->args, key_of(c, first + i), 1.0f, k + i * padded);
            norm_row(c->args, query_of(c, first + i), scale, q + i * padded);
        }
        memset(k + m * padded, 0, (16 - m) * padded * sizeof *k);
        memset(q + m * padded, 0, (16 - m) * padded * sizeof *q);
        turn(c->base + c->at.keys + first * padded, k, padded);
        turn(c->base + c->at.queries + first * padded, q, padded);
    }
}

static size_t panel_rows(const struct call *c, size_t first)
{
    return c->n - first < 16 ? c->n - first : 16;
}

/* Whether one of the tokens [first, first + 16) has an output. */
static bool panel_speaks(const struct call *c, size_t first)
{
    for (size_t i = 0; i < panel_rows(c, first); i++)
        if (!c->silent[first + i])
            return true;
    return false;
}

/* G and H, for each panel of tokens t the tokens u up to its last. */
static void multiply_tokens(const struct call *c)
{
    const size_t padded = c->at.padded_dim;
    const float *const keys = c->base + c->at.keys;
    for (size_t first = 0; first < c->n; first += 16) {
        for (size_t u = 0; u <= first; u += 16)
            gram_panel(panel_rows(c, u), c->args->key_dim, keys + u * padded, keys + first * padded,
                       c->at.queries - c->at.keys, panel_speaks(c, first),
                       c->base + c->at.kk + first * CHUNK + 16 * u, c->at.qk - c->at.kk);
    }
}

/* Gates of a value head, their products from the chunk's start and to its end, and, token by token
 * in lanes, R. */
static void follow_decays(struct call *c, size_t head)
{
    _Alignas(64) float a[CHUNK] = {0};
    const struct rp_gdn_args *args = c->args;
    for (size_t t = 0; t < c->n; t++) {
        const float *gates = args->gates + c->row[t] * args->ld_gates + head;
        a[t] = gates[0];
        c->beta[t] = gates[args->n_value_heads];
    }
    for (size_t t = 0; t < c->n && !args->linear_decay; t += 16)
        v_store(a + t, v_exp(v_load(a + t)));
    float all = 1.0f;
    for (size_t t = 0; t < c->n; t++) {
        float *const lanes = c->base + c->at.ratio + t / 16 * 16 * CHUNK + t % 16;
        for (size_t u = 0; u < t; u++)
            lanes[16 * u] = c->to_end[u] *= a[t];
        lanes[16 * t] = c->to_end[t] = 1.0f;
        c->decay[t] = all *= a[t];
    }
}

/* R G and R H: of each panel of tokens the lines up to its last token. */
static void weigh_tokens(const struct call *c)
{
    for (size_t first = 0; first < c->n; first += 16) {
        const size_t at = first * CHUNK, end = at + 16 * (first + panel_rows(c, first));
        for (size_t i = at; i < end; i += 16) {
            const v16 r = v_load(c->base + c->at.ratio + i);
            v_store(c->base + c->at.weights_k + i, v_mul(r, v_load(c->base + c->at.kk + i)));
            v_store(c->base + c->at.weights_q + i, v_mul(r, v_load(c->base + c->at.qk + i)));
        }
    }
}

/* What each token's deltas come into the state with, R[last][t] k_t. */
static void weigh_keys(const struct call *c)
{
    const size_t padded = c->at.padded_dim;
    float *const to = c->base + c->at.updates;
    for (size_t t = 0; t < c->n; t++) {
        const v16 by = v_set1(c->to_end[t]);
        const float *k = c->base + c->at.k_rows + t * padded;
        for (size_t i = 0; i < padded; i += 16)
            v_store(to + i * CHUNK + 16 * t, v_mul(by, v_load(k + i)));
    }
}

/* Where the chunk's values are and its outputs go. */
static void find_rows(struct call *c, const struct head *h)
{
    const struct rp_gdn_args *args = c->args;
    const size_t column = h->number * args->value_dim + h->l0;
    const float *const values = args->qkv + 2 * args->n_key_heads * args->key_dim + column;
    for (size_t t = 0; t < c->n; t++) {
        c->values[t] = values + c->row[t] * args->ld;
        c->outputs[t] = c->silent[t] ? NULL : args->out + c->row[t] * args->ld_out + column;
    }
}

/* A group of panels of columns through the chunk. */
RP_V16_FN void run_panels(const struct call *c, const size_t n_vecs, size_t column,
                          const struct states *s)
{
    const size_t padded = c->at.padded_dim;
    float *const deltas = c->base + c->at.deltas;
    for (int outputs = 0; outputs < 2; outputs++) {
        for (size_t first = 0; first < c->n; first += 16) {
            const struct tokens t = {
                .first = first,
                .dim = s->dim,
                .in = c->base + (outputs ? c->at.queries : c->at.keys) + first * padded,
                .w = c->base + (outputs ? c->at.weights_q : c->at.weights_k) + first * CHUNK,
                .decay = c->decay + first,
                .beta = c->beta + first,
                .state = s->panels,
                .state_stride = 16 * s->dim,
                .deltas = deltas,
                .columns = s->width,
                .column = column,
                .values = c->values + first,
                .outputs = c->outputs + first,
            };
            if (!outputs)
                token_panel(panel_rows(c, first), n_vecs, &t, false);
            else if (panel_speaks(c, first))
                token_panel(panel_rows(c, first), n_vecs, &t, true);
        }
    }
    state_panels(n_vecs, s, c->decay[c->n - 1], c->n, c->base + c->at.updates, deltas);
}

/* The chunk for one value head.  The first chunk brings its state in, panel by panel, and has the
 * next one fetched meanwhile; the last chunk brings it back.  `next`: the state of the next head.
 */
static void run_head(struct call *c, const struct head *h, const float *next)
{
    const size_t dim = c->args->key_dim;
    follow_decays(c, h->number);
    weigh_tokens(c);
    weigh_keys(c);
    find_rows(c, h);
    for (size_t column = 0, n_vecs; column < h->width; column += 16 * n_vecs) {
        float *const state = h->state + column;
        n_vecs = h->width - column > 16 * (GDN_VECS - 1) ? GDN_VECS : 1;
        struct states s = {
            .dim = dim,
            .panels = h->panels + column * dim,
            .to = c->last ? state : NULL,
            .ld = c->args->value_dim,
            .width = h->width - column,
        };
        if (c->first) {
            load_panels(n_vecs, &s, state);
            s.next = s.width > 16 * n_vecs ? state + 16 * n_vecs : next;
        }
        if (n_vecs == GDN_VECS)
            run_panels(c, GDN_VECS, column, &s);
#if GDN_VECS > 1
        else
            run_panels(c, 1, column, &s);
#endif
    }
}

/* ---- one row ---------------------------------------------------------------------------- */

/* H of the row with itself. */
static float query_times_key(const float *q, const float *k, size_t n)
{
    v16 sum = v_zero();
    for (size_t i = 0; i < n; i++)
        sum = v_fma(v_set1(q[i]), v_set1(k[i]), sum);
    _Alignas(64) float lanes[16];
    v_store(lanes, sum);
    return lanes[0];
}

/* What a single row does to up to 32 columns. */
struct step {
    const float *k, *q, *v;
    float qk;
    float *state, *out;
    const float *next; /* what is worked on next; NULL: nothing */
};

/* A state is read twice and written once.  The second time begins with the rows that the first had
 * last, which are still near, and has the next columns fetched. */
RP_V16_FN void step_columns(const struct call *c, const size_t n_vecs, const size_t columns,
                            const struct step *s)
{
    const size_t dim = c->args->key_dim, ld = c->args->value_dim;
    const v16 decay = v_set1(c->decay[0]), beta = v_set1(c->beta[0]);
    v16 p[2], o[2];
    UNROLL
    for (size_t j = 0; j < n_vecs; j++)
        p[j] = o[j] = v_zero();
    for (size_t i = 0; i < dim; i++) {
        const v16 ki = v_set1(s->k[i]), qi = v_set1(s->q[i]);
        UNROLL
        for (size_t j = 0; j < n_vecs; j++) {
            const v16 x = v_load_some(s->state + i * ld + 16 * j, lanes_of(columns, j));
            p[j] = v_fma(ki, x, p[j]);
            o[j] = v_fma(qi, x, o[j]);
        }
    }
    UNROLL
    for (size_t j = 0; j < n_vecs; j++) {
        const size_t lanes = lanes_of(columns, j);
        p[j] = v_mul(beta, v_sub(v_load_some(s->v + 16 * j, lanes), v_mul(decay, p[j])));
        if (!c->silent[0])
            v_store_some(s->out + 16 * j, v_fma(v_set1(s->qk), p[j], v_mul(decay, o[j])), lanes);
    }
    for (size_t i = dim; i-- > 0;) {
        const v16 ki = v_set1(s->k[i]);
        UNROLL
        for (size_t j = 0; j < n_vecs; j++) {
            const size_t lanes = lanes_of(columns, j);
            float *const at = s->state + i * ld + 16 * j;
            v_store_some(at, v_fma(ki, p[j], v_mul(decay, v_load_some(at, lanes))), lanes);
            if (s->next)
                fetch_line(s->next + i * ld + 16 * j);
        }
    }
}

static void step_head(struct call *c, const struct head *h, float qk, const float *next)
{
    follow_decays(c, h->number);
    find_rows(c, h);
    for (size_t column = 0; column < h->width; column += 32) {
        const size_t left = h->width - column;
        const struct step s = {
            .k = c->base + c->at.k_rows,
            .q = c->base + c->at.q_rows,
            .v = c->values[0] + column,
            .qk = qk,
            .state = h->state + column,
            .out = c->silent[0] ? NULL : c->outputs[0] + column,
            .next = left > 32 ? h->state + column + 32 : next,
        };
        if (left >= 32)
            step_columns(c, 2, 32, &s);
        else if (left > 16)
            step_columns(c, 2, left, &s);
        else
            step_columns(c, 1, left, &s);
    }
}

/* A call with one row. */
static void step_heads(struct call *c, size_t first, size_t end, size_t c0, size_t c1, float *state)
{
    float *const k = c->base + c->at.k_rows, *const q = c->base + c->at.q_rows;
    norm_row(c->args, key_of(c, 0), 1.0f, k);
    norm_row(c->args, query_of(c, 0), query_scale(c->args), q);
    const float qk = query_times_key(q, k, c->args->key_dim);
    for (size_t r = first; r < end; r++) {
        const struct head h = head_of(c, r, c0, c1, state);
        step_head(c, &h, qk, r + 1 < end ? head_of(c, r + 1, c0, c1, state).state : NULL);
    }
}

/* ---- the kernel ------------------------------------------------------------------------- */

/* Where in the pieces a call is. */
struct place {
    const struct rp_gdn_rows *pieces;
    size_t n_pieces, done; /* rows of the first piece */
};

/* The rows of the next chunk; their number. */
static size_t next_chunk(struct call *c, struct place *at)
{
    for (c->n = 0; c->n < CHUNK && at->n_pieces > 0;) {
        if (at->done == at->pieces->n) {
            at->pieces++;
            at->n_pieces--;
            at->done = 0;
            continue;
        }
        c->row[c->n] = at->pieces->row0 + at->done++;
        c->silent[c->n++] = at->pieces->silent;
    }
    return c->n;
}

static size_t count_rows(const struct rp_gdn_rows *pieces, size_t n_pieces)
{
    size_t n = 0;
    for (size_t i = 0; i < n_pieces; i++)
        n += pieces[i].n;
    return n;
}

static void run(const struct rp_gdn_args *args, const struct rp_gdn_rows *pieces, size_t n_pieces,
                size_t key_head, size_t c0, size_t c1, float *state, void *scratch)
{
    struct call c = {.args = args, .base = scratch, .key_head = key_head};
    struct place place = {pieces, n_pieces, 0};
    const size_t n = count_rows(pieces, n_pieces);
    if (n == 0 || c0 >= c1 || !rp_gdn_lay_out(args, &c.at))
        return; /* sizes that do not fit were refused when the scratch was sized */
    const size_t first = c0 / args->value_dim, end = (c1 - 1) / args->value_dim + 1;
    if (n == 1) {
        next_chunk(&c, &place);
        step_heads(&c, first, end, c0, c1, state);
        return;
    }
    for (size_t left = n; next_chunk(&c, &place) > 0; left -= c.n) {
        c.first = left == n;
        c.last = left == c.n;
        pack_tokens(&c);
        multiply_tokens(&c);
        for (size_t r = first; r < end; r++) {
            const struct head h = head_of(&c, r, c0, c1, state);
            run_head(&c, &h, r + 1 < end ? head_of(&c, r + 1, c0, c1, state).state : NULL);
        }
    }
}

const struct rp_gdn_kernel GDN_KERNEL = {GDN_NAME, GDN_ISA, run};

#endif
