/* Attention, written once against v16 and compiled once per instruction set.
 *
 * One task is one key head of one sequence and a range of its query rows.  With a window it is done
 * in parts of a few hundred rows, and a part packs only the keys that one of its rows sees:
 *
 *     pack the keys into panels of 16 keys      [head_dim][16], transposed
 *     pack the values into panels of 16 columns [keys][16]
 *     for each query head and each block of query rows:
 *         scale them
 *         scores   = queries x keys             a chain over head_dim each
 *         softmax  : bias, maximum, exponentials in place, sums
 *         products = exponentials x values      a chain over the keys each
 *         divide by the sums
 *
 * What a row sees begins and ends somewhere within the keys of its block: a window does so on both
 * sides, causal attention, which sees [0, i], on one.  Scores are computed for whole panels, and
 * those of keys that a row does not see become minus infinities: they leave its maximum alone, and
 * their exponentials, zeros, its sums.  A chain over values leaves such keys out altogether, since
 * not even 0 * NaN may come in: a tile of rows takes one by one the keys at both ends that only
 * some of its rows see, and in between those that all of them see.
 *
 * Rows and keys count from the first row of the prefix, if there is one.  Only packing knows that
 * they then lie in two places.
 *
 * The keys that the rows of a question's header or of one of its options see are packed side by
 * side, so that these rows see all that is packed: the header's and the markers' once, behind them
 * those of one option after the other.  Those of a memory are too, and its queries are any rows.
 *
 * Both products are the same thing, rows of A against panels of 16 columns of B, so there is one
 * register tile; keys and output columns lie across lanes, and the chain of the contract runs along
 * the loop.  Shapes of tiles and blocks therefore move time alone.
 *
 * A file that includes this has chosen its v16 and says:
 *
 *     ATT_KERNEL         the name of its struct rp_attention_kernel
 *     ATT_NAME, ATT_ISA  what stands in it
 *     ATT_ROWS, ATT_VECS the register tile: rows x v16, accumulators that the registers hold
 *     ATT_BLOCK          transpose_block() turns ATT_BLOCK rows x ATT_BLOCK columns at once
 */
#ifndef RP_ATTENTION_ATTENTION_TMPL_H
#define RP_ATTENTION_ATTENTION_TMPL_H

#include "attention/internal.h"
#include "pool/unroll.h"
#include "pool/v16.h"
#include "pool/vmath.h"

#include <math.h>
#include <string.h>

/* The keys of a chain over the values that are done before the next tile begins: 16 KiB of a panel,
 * which the tiles of a block then share from the nearest cache. */
#define VALUES_CHUNK 256

/* ---- the product ------------------------------------------------------------------------ */

/* c[i][16n + lane] = chain over t of a[i][t] b[n][t][lane], from 0 or from what c holds. */
RP_V16_FN void tile(const size_t m, const size_t n_vecs, size_t k, const float *a, size_t lda,
                    const float *b, size_t panel_stride, float *c, size_t ldc, bool resume)
{
    v16 acc[ATT_ROWS * ATT_VECS];
    UNROLL
    for (size_t i = 0; i < m; i++) {
        UNROLL
        for (size_t n = 0; n < n_vecs; n++)
            acc[i * n_vecs + n] = resume ? v_load(c + i * ldc + 16 * n) : v_zero();
    }
    for (size_t t = 0; t < k; t++) {
        v16 w[ATT_VECS];
        UNROLL
        for (size_t n = 0; n < n_vecs; n++)
            w[n] = v_load(b + n * panel_stride + 16 * t);
        UNROLL
        for (size_t i = 0; i < m; i++) {
            const v16 x = v_set1(a[i * lda + t]);
            UNROLL
            for (size_t n = 0; n < n_vecs; n++)
                acc[i * n_vecs + n] = v_fma(x, w[n], acc[i * n_vecs + n]);
        }
    }
    UNROLL
    for (size_t i = 0; i < m; i++) {
        UNROLL
        for (size_t n = 0; n < n_vecs; n++)
            v_store(c + i * ldc + 16 * n, acc[i * n_vecs + n]);
    }
}

#define TILE_CASE(height)                                                                          \
    case height: tile(height, n_vecs, k, a, lda, b, panel_stride, c, ldc, resume); break

/* A tile of any height that there is: the constants make each a loop of its own. */
RP_V16_FN void tile_of_height(size_t m, const size_t n_vecs, size_t k, const float *a, size_t lda,
                              const float *b, size_t panel_stride, float *c, size_t ldc,
                              bool resume)
{
#if PLAIN_LOOPS
    tile(m, n_vecs, k, a, lda, b, panel_stride, c, ldc, resume);
#else
    switch (m) {
        TILE_CASE(1);
        TILE_CASE(2);
        TILE_CASE(3);
        TILE_CASE(4);
        TILE_CASE(5);
        TILE_CASE(6);
#if ATT_ROWS > 6
        TILE_CASE(7);
        TILE_CASE(8);
        TILE_CASE(9);
        TILE_CASE(10);
        TILE_CASE(11);
        TILE_CASE(12);
#endif
    }
#endif
}

#undef TILE_CASE

/* m rows of a against one to ATT_VECS panels.  The rows are shared out evenly: 8 rows are two tiles
 * of 4 and not one of 6 and one of 2, which would have too few chains to hide the latency of an
 * fma. */
RP_V16_FN void panels_product(size_t m, const size_t n_vecs, size_t k, const float *a, size_t lda,
                              const float *b, size_t panel_stride, float *c, size_t ldc,
                              bool resume)
{
    for (size_t tiles = (m + ATT_ROWS - 1) / ATT_ROWS; tiles > 0; tiles--) {
        const size_t height = (m + tiles - 1) / tiles;
        tile_of_height(height, n_vecs, k, a, lda, b, panel_stride, c, ldc, resume);
        a += height * lda;
        c += height * ldc;
        m -= height;
    }
}

/* c[m][16 n_panels], whole panels: a panel stays in the nearest cache for all rows. */
static void product(size_t m, size_t n_panels, size_t k, const float *a, size_t lda, const float *b,
                    size_t panel_stride, float *c, size_t ldc, bool resume)
{
    size_t p = 0;
    for (; p + ATT_VECS <= n_panels; p += ATT_VECS)
        panels_product(m, ATT_VECS, k, a, lda, b + p * panel_stride, panel_stride, c + 16 * p, ldc,
                       resume);
#if ATT_VECS > 1
    for (; p < n_panels; p++)
        panels_product(m, 1, k, a, lda, b + p * panel_stride, panel_stride, c + 16 * p, ldc,
                       resume);
#endif
}

/* ---- the product of what each row sees ---------------------------------------------------- */

/* Which keys a row sees: keys [key0, ...) are columns [0, ...) of the scores and rows of b. */
struct view {
    size_t len;           /* of the sequence */
    size_t before, after; /* keys that there may be on a row's sides; len or more: all of them */
    size_t key0;
};

static size_t first_seen(const struct view *see, size_t row)
{
    return row > see->before ? row - see->before : 0;
}

static size_t end_seen(const struct view *see, size_t row)
{
    return see->after < see->len - row ? row + see->after + 1 : see->len;
}

static size_t within(size_t x, size_t least, size_t most)
{
    return x < least ? least : x > most ? most : x;
}

/* Columns [t, end) into the chains of those rows i that see them: first <= t - i <= first + width,
 * in unsigned arithmetic. */
RP_V16_FN void edge(const size_t m, const size_t n_vecs, v16 *acc, const float *a, size_t lda,
                    const float *b, size_t panel_stride, size_t t, size_t end, size_t first,
                    size_t width)
{
    for (; t < end; t++) {
        v16 w[ATT_VECS];
        UNROLL
        for (size_t n = 0; n < n_vecs; n++)
            w[n] = v_load(b + n * panel_stride + 16 * t);
        UNROLL
        for (size_t i = 0; i < m; i++) {
            if (t - i - first <= width) {
                const v16 x = v_set1(a[i * lda + t]);
                UNROLL
                for (size_t n = 0; n < n_vecs; n++)
                    acc[i * n_vecs + n] = v_fma(x, w[n], acc[i * n_vecs + n]);
            }
        }
    }
}

/* As tile(), for query rows row, row + 1, ... of which each takes those of the columns [from, to)
 * that it sees. */
RP_V16_FN void band_tile(const struct view *see, size_t row, size_t from, size_t to, const size_t m,
                         const size_t n_vecs, const float *a, size_t lda, const float *b,
                         size_t panel_stride, float *c, size_t ldc)
{
    const size_t some_from = within(first_seen(see, row) - see->key0, from, to);
    const size_t all_from = within(first_seen(see, row + m - 1) - see->key0, from, to);
    /* none, in a narrow window */
    const size_t all_to = within(end_seen(see, row) - see->key0, all_from, to);
    const size_t some_to = within(end_seen(see, row + m - 1) - see->key0, from, to);
    const size_t first = row - see->before - see->key0, width = see->before + see->after;
    v16 acc[ATT_ROWS * ATT_VECS];
    UNROLL
    for (size_t i = 0; i < m; i++) {
        UNROLL
        for (size_t n = 0; n < n_vecs; n++)
            acc[i * n_vecs + n] = from > 0 ? v_load(c + i * ldc + 16 * n) : v_zero();
    }
    edge(m, n_vecs, acc, a, lda, b, panel_stride, some_from, all_from, first, width);
    for (size_t t = all_from; t < all_to; t++) {
        v16 w[ATT_VECS];
        UNROLL
        for (size_t n = 0; n < n_vecs; n++)
            w[n] = v_load(b + n * panel_stride + 16 * t);
        UNROLL
        for (size_t i = 0; i < m; i++) {
            const v16 x = v_set1(a[i * lda + t]);
            UNROLL
            for (size_t n = 0; n < n_vecs; n++)
                acc[i * n_vecs + n] = v_fma(x, w[n], acc[i * n_vecs + n]);
        }
    }
    edge(m, n_vecs, acc, a, lda, b, panel_stride, all_to, some_to, first, width);
    UNROLL
    for (size_t i = 0; i < m; i++) {
        UNROLL
        for (size_t n = 0; n < n_vecs; n++)
            v_store(c + i * ldc + 16 * n, acc[i * n_vecs + n]);
    }
}

#define TILE_CASE(height)                                                                          \
    case height:                                                                                   \
        band_tile(see, row, from, to, height, n_vecs, a, lda, b, panel_stride, c, ldc);            \
        break

RP_V16_FN void band_tile_of_height(const struct view *see, size_t row, size_t from, size_t to,
                                   size_t m, const size_t n_vecs, const float *a, size_t lda,
                                   const float *b, size_t panel_stride, float *c, size_t ldc)
{
#if PLAIN_LOOPS
    band_tile(see, row, from, to, m, n_vecs, a, lda, b, panel_stride, c, ldc);
#else
    switch (m) {
        TILE_CASE(1);
        TILE_CASE(2);
        TILE_CASE(3);
        TILE_CASE(4);
        TILE_CASE(5);
        TILE_CASE(6);
#if ATT_ROWS > 6
        TILE_CASE(7);
        TILE_CASE(8);
        TILE_CASE(9);
        TILE_CASE(10);
        TILE_CASE(11);
        TILE_CASE(12);
#endif
    }
#endif
}

#undef TILE_CASE

RP_V16_FN void band_panels(const struct view *see, size_t row, size_t from, size_t to, size_t m,
                           const size_t n_vecs, const float *a, size_t lda, const float *b,
                           size_t panel_stride, float *c, size_t ldc)
{
    for (size_t tiles = (m + ATT_ROWS - 1) / ATT_ROWS; tiles > 0; tiles--) {
        const size_t height = (m + tiles - 1) / tiles;
        band_tile_of_height(see, row, from, to, height, n_vecs, a, lda, b, panel_stride, c, ldc);
        row += height;
        a += height * lda;
        c += height * ldc;
        m -= height;
    }
}

static void band_product(const struct view *see, size_t row, size_t from, size_t to, size_t m,
                         size_t n_panels, const float *a, size_t lda, const float *b,
                         size_t panel_stride, float *c, size_t ldc)
{
    size_t p = 0;
    for (; p + ATT_VECS <= n_panels; p += ATT_VECS)
        band_panels(see, row, from, to, m, ATT_VECS, a, lda, b + p * panel_stride, panel_stride,
                    c + 16 * p, ldc);
#if ATT_VECS > 1
    for (; p < n_panels; p++)
        band_panels(see, row, from, to, m, 1, a, lda, b + p * panel_stride, panel_stride,
                    c + 16 * p, ldc);
#endif
}

/* ---- packing ---------------------------------------------------------------------------- */

/* The rows of a sequence, of the columns of one head's keys or values. */
struct rows {
    const float *own,
        *prefix; /* the row of key first_key, and of key 0 where that is another one */
    size_t first_key, ld;
};

static const float *row_of(const struct rows *from, size_t j)
{
    return j < from->first_key ? from->prefix + j * from->ld
                               : from->own + (j - from->first_key) * from->ld;
}

/* Rows of n columns, transposed into columns [r, end) of panel[n][16]. */
static void pack_key_rows(float *panel, size_t r, size_t end, const float *k, size_t ld, size_t n)
{
    for (; r + ATT_BLOCK <= end; r += ATT_BLOCK, k += ATT_BLOCK * ld) {
        size_t c = 0;
        for (; c + ATT_BLOCK <= n; c += ATT_BLOCK)
            transpose_block(panel + 16 * c + r, k + c, ld);
        for (; c < n; c++) {
            for (size_t i = 0; i < ATT_BLOCK; i++)
                panel[16 * c + r + i] = k[i * ld + c];
        }
    }
    for (; r < end; r++, k += ld) {
        for (size_t c = 0; c < n; c++)
            panel[16 * c + r] = k[c];
    }
}

/* Keys [j, end) into panels of which the first begins with key key0. */
static void pack_keys(float *panels, const struct rows *from, size_t key0, size_t j, size_t end,
                      size_t head_dim)
{
    while (j < end) {
        float *const panel = panels + ((j - key0) & ~(size_t)15) * head_dim;
        const size_t lane = (j - key0) % 16, border = j < from->first_key ? from->first_key : end;
        size_t next = j - lane + 16 < end ? j - lane + 16 : end;
        next = next < border ? next : border;
        pack_key_rows(panel, lane, lane + (next - j), row_of(from, j), from->ld, head_dim);
        j = next;
    }
}

/* The lanes of the last panel that hold none of n keys become zeros. */
static void pad_keys(float *panels, size_t n, size_t head_dim)
{
    float *const panel = panels + (n & ~(size_t)15) * head_dim;
    for (size_t r = n % 16; r > 0 && r < 16; r++) {
        for (size_t c = 0; c < head_dim; c++)
            panel[16 * c + r] = 0.0f;
    }
}

/* Values [j, end) into panels of which each begins with key key0. */
static void pack_values(float *panels, const struct rows *from, size_t key0, size_t j, size_t end,
                        size_t panel_stride, size_t head_dim)
{
    for (panels += 16 * (j - key0); j < end; j++, panels += 16) {
        const float *const v = row_of(from, j);
        float *to = panels;
        size_t c = 0;
        for (; c + 16 <= head_dim; c += 16, to += panel_stride)
            v_store(to, v_load(v + c));
        if (c < head_dim)
            v_store(to, v_load_n(v + c, head_dim - c));
    }
}

/* to[rows][n] = from * scale */
static void scale_queries(float *to, const float *from, size_t ld, size_t rows, size_t n,
                          float scale)
{
    const v16 by = v_set1(scale);
    for (size_t i = 0; i < rows; i++, from += ld, to += n) {
        size_t c = 0;
        for (; c + 16 <= n; c += 16)
            v_store(to + c, v_mul(v_load(from + c), by));
        if (c < n)
            v_store_n(to + c, v_mul(v_load_n(from + c, n - c), by), n - c);
    }
}

/* ---- softmax ---------------------------------------------------------------------------- */

static void add_bias(float *s, size_t padded_len, const float *bias)
{
    for (size_t j = 0; j < padded_len; j += 16)
        v_store(s + j, v_add(v_load(s + j), v_load(bias + j)));
}

/* The largest of s[first, len).  The other lanes up to padded_len become minus infinities: they
 * leave the maximum alone, and their exponential, zero, leaves the sums alone. */
static float row_max(float *s, size_t first, size_t len, size_t padded_len)
{
    for (size_t j = 0; j < first; j++)
        s[j] = -INFINITY;
    for (size_t j = len; j < padded_len; j++)
        s[j] = -INFINITY;
    v16 most = v_load(s);
    for (size_t j = 16; j < padded_len; j += 16)
        most = v_max(v_load(s + j), most);
    return v_hmax(most);
}

/* s becomes exp(s - most), and the sum of its 16 partial sums is returned.  A NaN may or may not
 * have become the maximum, but it is its own exponential, so the sum is NaN and with it the whole
 * row; so too for +inf, which is inf - inf, and for a row of -inf. */
static float row_exp(float *s, size_t padded_len, float most)
{
    const v16 by = v_set1(most);
    v16 sums = v_zero();
    for (size_t j = 0; j < padded_len; j += 16) {
        const v16 p = v_exp_neg(v_sub(v_load(s + j), by));
        v_store(s + j, p);
        sums = v_add(sums, p);
    }
    return v_sum(sums);
}

/* row[t] = the bias of distance first + t, for t < n; the lanes past the last key find zeros. */
static void expand_bias(float *row, size_t n, int64_t first, const float *table, size_t span)
{
    const int64_t end = (int64_t)span;
    for (size_t t = 0; t < n; t++) {
        const int64_t distance = first + (int64_t)t;
        row[t] = table[end + (distance < -end ? -end : distance > end ? end : distance)];
    }
    memset(row + n, 0, 16 * sizeof *row);
}

/* The columns of a row's scores that hold a key which it sees: from a multiple of 16 on, since
 * lane j mod 16 of the sums belongs to key j. */
struct stretch {
    size_t at, first, len, padded_len; /* all but `at` counted from there */
};

static struct stretch stretch_of(const struct view *see, size_t row)
{
    const size_t begin = first_seen(see, row) - see->key0, end = end_seen(see, row) - see->key0;
    const size_t at = begin & ~(size_t)15;
    return (struct stretch){at, begin - at, end - at, (end - at + 15) & ~(size_t)15};
}

/* All rows of a block: first the maxima, so that no row waits for the end of its own tree.  bias is
 * that of the first column for the first row; a row further down, it is one further away. */
static void softmax(float *scores, size_t ld, const struct view *see, size_t row, size_t rows,
                    const float *bias, float *sums)
{
    for (size_t r = 0; r < rows; r++) {
        const struct stretch in = stretch_of(see, row + r);
        float *s = scores + r * ld + in.at;
        if (bias)
            add_bias(s, in.padded_len, bias + in.at - r);
        sums[r] = row_max(s, in.first, in.len, in.padded_len);
    }
    for (size_t r = 0; r < rows; r++) {
        const struct stretch in = stretch_of(see, row + r);
        sums[r] = row_exp(scores + r * ld + in.at, in.padded_len, sums[r]);
    }
}

/* ---- a task ----------------------------------------------------------------------------- */

/* to[rows][n] = o / sum, sums one a row. */
static void divide_rows(float *to, size_t ld, const float *o, size_t ldo, const float *sums,
                        size_t rows, size_t n)
{
    for (size_t i = 0; i < rows; i++, to += ld, o += ldo) {
        const v16 by = v_set1(sums[i]);
        size_t c = 0;
        for (; c + 16 <= n; c += 16)
            v_store(to + c, v_div(v_load(o + c), by));
        if (c < n)
            v_store_n(to + c, v_div(v_load(o + c), by), n - c);
    }
}

/* The exponentials of a block times its n_keys values from key see->key0 on, a chain a row. */
static void add_up(const struct view *see, const struct rp_attention_layout *at, size_t row,
                   size_t rows, size_t n_keys, const float *scores, const float *values,
                   size_t value_stride, float *products)
{
    const size_t n_panels = at->padded_dim / 16;
    const bool band = see->after < see->len;
    for (size_t j = 0, end; j < n_keys; j = end) {
        end = n_keys - j < VALUES_CHUNK ? n_keys : j + VALUES_CHUNK;
        if (band)
            band_product(see, row, j, end, rows, n_panels, scores, at->ld_scores, values,
                         value_stride, products, at->ld_products);
        else
            product(rows, n_panels, end - j, scores + j, at->ld_scores, values + 16 * j,
                    value_stride, products, at->ld_products, j > 0);
    }
}

/* A part of a task: query rows [q0, q1), as few as the layout has room for, and the keys [key0,
 * end) that they see.  All count from the prefix's first row. */
struct part {
    const struct rp_attention_args *args;
    const struct rp_attention_layout *at;
    size_t row0, kv_head;
    size_t q0, q1, key0, end;
    size_t value_stride; /* from panel to panel */
    float *base;
};

static struct rows rows_of(const struct part *part, size_t column)
{
    const struct rp_attention_args *const args = part->args;
    return (struct rows){.prefix = args->qkv + args->prefix_row0 * args->ld + column,
                         .own = args->qkv + part->row0 * args->ld + column,
                         .first_key = args->n_prefix,
                         .ld = args->ld};
}

static size_t key_heads_of(const struct rp_attention_args *args)
{
    return args->n_kv_heads ? args->n_kv_heads : args->n_heads;
}

/* Keys and values [first, end) of the part. */
static void pack(const struct part *part, const struct rows *keys, const struct rows *values,
                 size_t first, size_t end)
{
    const size_t d = part->args->head_dim;
    pack_keys(part->base + part->at->keys, keys, part->key0, first, end, d);
    pack_values(part->base + part->at->values, values, part->key0, first, end, part->value_stride,
                d);
}

static void pack_part(const struct part *part)
{
    const struct rp_attention_args *const args = part->args;
    const size_t d = args->head_dim,
                 first = args->n_packed > part->key0 ? args->n_packed : part->key0;
    const struct rows keys = rows_of(part, (args->n_heads + part->kv_head) * d);
    const struct rows values =
        rows_of(part, (args->n_heads + key_heads_of(args) + part->kv_head) * d);
    if (first >= part->end)
        return;
    pack(part, &keys, &values, first, part->end);
    pad_keys(part->base + part->at->keys, part->end - part->key0, d);
}

/* The part's rows of one query head. */
static void run_head(const struct part *part, struct view see, size_t head)
{
    const struct rp_attention_args *const args = part->args;
    const struct rp_attention_layout *const at = part->at;
    const size_t d = args->head_dim, q0 = part->q0, q1 = part->q1;
    float *const base = part->base, *const out = args->out + head * d;
    const float *const q = args->qkv + head * d;
    uint64_t *const ns = args->stage_ns;
    uint64_t began = rp_attention_lap(ns, RP_ATTENTION_N_STAGES, 0);
    if (args->rel)
        expand_bias(base + at->rel, part->end - part->key0 + (q1 - q0) - 1,
                    (int64_t)part->key0 - (int64_t)(q1 - 1),
                    args->rel + head * (2 * args->rel_span + 1), args->rel_span);
    began = rp_attention_lap(ns, RP_ATTENTION_STAGE_PACK, began);

    float sums[RP_ATTENTION_MAX_BLOCK];
    for (size_t i = q0; i < q1; i += at->block) {
        const size_t rows = q1 - i < at->block ? q1 - i : at->block;
        const size_t row = part->row0 + i - args->n_prefix; /* of the batch */
        see.key0 = first_seen(&see, i) & ~(size_t)15;
        const size_t n_keys = end_seen(&see, i + rows - 1) - see.key0;
        const size_t skipped = see.key0 - part->key0; /* of the part's keys, a multiple of 16 */
        scale_queries(base + at->queries, q + row * args->ld, args->ld, rows, d, args->scale);
        product(rows, (n_keys + 15) / 16, d, base + at->queries, d, base + at->keys + skipped * d,
                16 * d, base + at->scores, at->ld_scores, 0);
        began = rp_attention_lap(ns, RP_ATTENTION_STAGE_SCORES, began);
        softmax(base + at->scores, at->ld_scores, &see, i, rows,
                args->rel ? base + at->rel + (q1 - 1 - i) + skipped : NULL, sums);
        began = rp_attention_lap(ns, RP_ATTENTION_STAGE_SOFTMAX, began);
        add_up(&see, at, i, rows, n_keys, base + at->scores, base + at->values + 16 * skipped,
               part->value_stride, base + at->products);
        divide_rows(out + (row - args->out_row0) * args->ld_out, args->ld_out, base + at->products,
                    at->ld_products, sums, rows, d);
        began = rp_attention_lap(ns, RP_ATTENTION_STAGE_VALUES, began);
    }
}

static void run_heads(const struct part *part, const struct view *see)
{
    const size_t group = part->args->n_heads / key_heads_of(part->args);
    for (size_t h = 0; h < group; h++)
        run_head(part, *see, part->kv_head * group + h);
}

static void run_part(struct part *part, const struct view *see)
{
    const struct rp_attention_args *const args = part->args;
    const uint64_t began = rp_attention_lap(args->stage_ns, RP_ATTENTION_N_STAGES, 0);
    part->key0 = first_seen(see, part->q0) & ~(size_t)15;
    part->end = end_seen(see, part->q1 - 1);
    part->value_stride = 16 * (part->at->windowed ? part->end - part->key0 : see->len);
    pack_part(part);
    rp_attention_lap(args->stage_ns, RP_ATTENTION_STAGE_PACK, began);
    run_heads(part, see);
}

/* All of a part's n keys, whichever the row. */
static struct view view_of_all(size_t n)
{
    return (struct view){.len = n, .before = SIZE_MAX, .after = SIZE_MAX};
}

/* Query rows [q0, q1) behind batch row row0, and the keys of a memory. */
static void run_memory(struct part *part)
{
    const struct rp_attention_args *const args = part->args;
    const uint64_t began = rp_attention_lap(args->stage_ns, RP_ATTENTION_N_STAGES, 0);
    const size_t at_head = part->kv_head * args->head_dim;
    const struct rows keys = {.own = args->memory + args->key_column + at_head,
                              .ld = args->ld_memory};
    const struct rows values = {.own = args->memory + args->value_column + at_head,
                                .ld = args->ld_memory};
    const struct view see = view_of_all(args->n_memory);
    part->end = args->n_memory;
    part->value_stride = 16 * part->end;
    if (args->n_packed < part->end) {
        pack(part, &keys, &values, args->n_packed, part->end);
        pad_keys(part->base + part->at->keys, part->end, args->head_dim);
    }
    rp_attention_lap(args->stage_ns, RP_ATTENTION_STAGE_PACK, began);
    run_heads(part, &see);
}

/* n rows of the sequence from `row` on, as keys [key, key + n). */
static void pack_run(const struct part *part, size_t row, size_t key, size_t n)
{
    const struct rp_attention_args *const args = part->args;
    const size_t d = args->head_dim, at_key = (args->n_heads + part->kv_head) * d;
    const float *const from = args->qkv + (part->row0 + row) * args->ld + at_key;
    const struct rows keys = {.own = from, .first_key = key, .ld = args->ld};
    const struct rows values = {
        .own = from + key_heads_of(args) * d, .first_key = key, .ld = args->ld};
    pack(part, &keys, &values, key, key + n);
}

/* Those of query rows [q0, q1) that are in one group of a question, when the keys that all groups
 * see are packed. */
static void run_group(struct part *part, const struct rp_attention_group *group, size_t shared,
                      size_t q0, size_t q1)
{
    uint64_t *const ns = part->args->stage_ns;
    const uint64_t began = rp_attention_lap(ns, RP_ATTENTION_N_STAGES, 0);
    const struct view see = view_of_all(group->keys);
    part->q0 = within(q0, group->first, group->end);
    part->q1 = within(q1, group->first, group->end);
    part->end = group->keys;
    if (part->q0 == part->q1)
        return;
    if (part->end > shared) /* an option, and more of it than its marker */
        pack_run(part, group->first + 1, shared, part->end - shared);
    pad_keys(part->base + part->at->keys, part->end, part->args->head_dim);
    rp_attention_lap(ns, RP_ATTENTION_STAGE_PACK, began);
    run_heads(part, &see);
}

static void run_options(struct part *part, size_t len, size_t q0, size_t q1)
{
    const struct rp_attention_args *const args = part->args;
    const uint64_t began = rp_attention_lap(args->stage_ns, RP_ATTENTION_N_STAGES, 0);
    struct rp_attention_group group = rp_attention_group(args->markers, args->n_markers, len, 0);
    const size_t shared = group.keys, header = group.end;
    part->value_stride = 16 * len;
    if (args->n_packed < shared) {
        pack_run(part, 0, 0, header);
        for (size_t i = 0; i < args->n_markers; i++)
            pack_run(part, (size_t)args->markers[i], header + i, 1);
    }
    rp_attention_lap(args->stage_ns, RP_ATTENTION_STAGE_PACK, began);
    for (size_t g = 0; g <= args->n_markers; g++) {
        group = rp_attention_group(args->markers, args->n_markers, len, g);
        run_group(part, &group, shared, q0, q1);
    }
}

static void run(const struct rp_attention_args *args, size_t row0, size_t len, size_t kv_head,
                size_t q0, size_t q1, void *scratch)
{
    struct rp_attention_layout at;
    const size_t before = args->n_prefix, keys = args->memory ? args->n_memory : before + len;
    if (q0 >= q1 || !rp_attention_lay_out(keys, args->window, args->causal, args->head_dim,
                                          args->rel != NULL, &at))
        return; /* sizes that do not fit were refused when the scratch was sized */
    const struct view see = {.len = before + len, .before = at.before, .after = at.after};
    struct part part = {.args = args,
                        .at = &at,
                        .row0 = row0,
                        .kv_head = kv_head,
                        .q0 = q0,
                        .q1 = q1,
                        .base = scratch};
    if (args->memory) {
        run_memory(&part);
        return;
    }
    if (args->options) {
        run_options(&part, len, q0, q1);
        return;
    }
    for (size_t i = q0; i < q1; i += at.rows) {
        part.q0 = before + i;
        part.q1 = before + (q1 - i < at.rows ? q1 : i + at.rows);
        run_part(&part, &see);
    }
}

const struct rp_attention_kernel ATT_KERNEL = {ATT_NAME, ATT_ISA, run};

#endif
