/* The FP32 product, written once over v16 and compiled once per instruction set.
 *
 * A file that includes this has chosen its v16 (RP_V16_...) and says
 *
 *     RP_GEMM_NAME          the kernel's name; its entry is NAME_run
 *     RP_GEMM_MR            rows of the register tile, a multiple of 3
 *     RP_GEMM_ROWS(X, j)    X(0, j) X(1, j) ... X(MR - 1, j)
 *     RP_GEMM_TRIPLES(X)    X(0) X(1) ... X(MR / 3 - 1)
 *     RP_GEMM_WIDTH(h)      panels side by side in a tile of h rows, 1, 2 or 4, never more for more
 *                           rows: its chains should hide the latency of an fma
 *     RP_GEMM_TILES(X)      X(h, 1) and X(h, RP_GEMM_WIDTH(h)) for each h in 1..MR, none twice
 *     RP_GEMM_LINES         lines of a group of panels that stay in L1
 *     RP_GEMM_FMA(a, b, c)  optional: c + a * b, rounded once, for a float a
 *     RP_GEMM_PANELS_APART  defined when registers hold the lines of one panel at a time
 *
 * The loops, from the outside in:
 *
 *     for each block of rows            the block's rows of A stay in L2
 *       for each group of panels        RP_GEMM_WIDTH of them side by side
 *         for each block of k           the group's lines of it stay in L1
 *           for each tile of rows       accumulators stay in registers from first line to last
 *
 * No loop changes a bit: accumulators that leave the registers at the end of a block of k are
 * stored whole and loaded again.  They wait in a buffer of their own, not in C, since C may be the
 * residual.
 */
#include "gemm/block.h"
#include "gemm/gemm.h"
#include "gemm/kernels.h"
#include "pool/epilogue.h"
#include "pool/memory.h"
#include "pool/split.h"
#include "pool/v16.h"
#include "pool/vmath.h"

#include <assert.h>
#include <stdbool.h>

#define PASTE_(a, b) a##b
#define PASTE(a, b)  PASTE_(a, b)
#define RUN          PASTE(RP_GEMM_NAME, _run)
#define NR           RP_GEMM_NR
#define UNROLL       4
#define WIDTH_MAX    4
/* The widest group of a block of several tiles; those have at least MR/2 rows each. */
#define WIDTH_MAX_TALL 2
_Static_assert(RP_GEMM_MR % 3 == 0, "rows in triples");
_Static_assert(RP_GEMM_WIDTH(1) <= WIDTH_MAX, "bias and tile buffers");
_Static_assert(RP_GEMM_WIDTH(RP_GEMM_MR / 2) <= WIDTH_MAX_TALL, "the buffer of partial sums");

#ifndef RP_GEMM_FMA
#define RP_GEMM_FMA(a, b, c) v_fma(v_set1(a), b, c)
#endif

/* ---- the register tile ---------------------------------------------------------------------- */

/* What the tiles of a group of panels have in common.  What differs travels in registers: a tile is
 * a few hundred cycles, and a struct copied just after it was written would stall each. */
struct tile {
    size_t lda;
    size_t b_stride; /* from a panel to the next */
    size_t k;
    size_t ld_init, ld_out;
    uintptr_t next; /* memory to fetch meanwhile, next_step bytes further every UNROLL lines */
    size_t next_step;
    bool dense; /* that is more than a cache line */
};

/* h x w*16 chains over the k lines from b on, starting from what init holds (NULL: zero), bias
 * added if there is one, stored to out. */
typedef void tile_fn(const struct tile *t, const float *a, const float *b, const float *init,
                     const float *bias, float *out);

/* Accumulators are addressed by constants alone, so that they live in registers at any level of
 * optimisation that has registers; h and w are constants where this is inlined.  Arrays of floats
 * live in memory anyway: there, loops spare a megabyte of code and a minute of the compiler. */
#ifdef RP_V16_SCALAR
#define EACH_ROW(X, j)                                                                             \
    for (unsigned i_ = 0; i_ < RP_GEMM_MR; i_++) {                                                 \
        X(i_, j)                                                                                   \
    }
#define EACH_TRIPLE(X)                                                                             \
    for (unsigned g_ = 0; g_ < RP_GEMM_MR / 3; g_++) {                                             \
        X(g_)                                                                                      \
    }
#define EACH_PANEL(X, i)                                                                           \
    for (unsigned j_ = 0; j_ < WIDTH_MAX; j_++) {                                                  \
        X(i, j_)                                                                                   \
    }
#else
#define EACH_ROW         RP_GEMM_ROWS
#define EACH_TRIPLE      RP_GEMM_TRIPLES
#define EACH_PANEL(X, i) X(i, 0) X(i, 1) X(i, 2) X(i, 3)
#endif
#define ZERO(i, j)                                                                                 \
    if (i < h && j < w)                                                                            \
        acc[i][j] = v_zero();
#define INIT(i, j)                                                                                 \
    if (i < h && j < w)                                                                            \
        acc[i][j] = v_load(init + i * t->ld_init + j * NR);
#define BIAS(i, j)                                                                                 \
    if (i < h && j < w)                                                                            \
        acc[i][j] = v_add(acc[i][j], v_load(bias + j * NR));
#define STORE(i, j)                                                                                \
    if (i < h && j < w)                                                                            \
        v_store(out + i * t->ld_out + j * NR, acc[i][j]);
#define ZERO_ROW(i, unused)  EACH_PANEL(ZERO, i)
#define INIT_ROW(i, unused)  EACH_PANEL(INIT, i)
#define BIAS_ROW(i, unused)  EACH_PANEL(BIAS, i)
#define STORE_ROW(i, unused) EACH_PANEL(STORE, i)

/* Rows 3g, 3g+1 and 3g+2 are read as base, base + lda and base + 2 lda, each one address of an x86
 * load.  The compiler must not know that the bases belong together: it would compute each address
 * from the one before, a chain of additions longer than the fmas beside it. */
#define TRIPLE_BASE(g)                                                                             \
    if (3 * g < h) {                                                                               \
        row[g] = a + 3 * g * lda;                                                                  \
        __asm__("" : "+r"(row[g]));                                                                \
    }
#define TRIPLE_ADVANCE(g)                                                                          \
    if (3 * g < h)                                                                                 \
        row[g] += UNROLL;
#define TRIPLE_NEXT(g)                                                                             \
    if (3 * g < h)                                                                                 \
        row[g]++;

#ifdef RP_GEMM_PANELS_APART
/* Panel by panel: one line at a time in registers, elements of A read again for each panel (the
 * barrier has them read again). */
#define LINE_ROW(i, j)                                                                             \
    if (i < h)                                                                                     \
        acc[i][j] = RP_GEMM_FMA(row[i / 3][i % 3 * lda + u], line, acc[i][j]);
#define LINE_PANEL(j)                                                                              \
    if (j < w) {                                                                                   \
        const v16 line = v_load(b + j * b_stride + u * NR);                                        \
        EACH_ROW(LINE_ROW, j)                                                                      \
        __asm__ volatile("" ::: "memory");                                                         \
    }
#define LINE_ALL() LINE_PANEL(0) LINE_PANEL(1) LINE_PANEL(2) LINE_PANEL(3)
#else
/* Row by row: the lines of all panels in registers, each element of A read once. */
#define LINE_LOAD(i, j)                                                                            \
    if (j < w)                                                                                     \
        line[j] = v_load(b + j * b_stride + u * NR);
#define LINE_FMA(i, j)                                                                             \
    if (j < w)                                                                                     \
        acc[i][j] = RP_GEMM_FMA(x, line[j], acc[i][j]);
#define LINE_ROW(i, unused)                                                                        \
    if (i < h) {                                                                                   \
        const float x = row[i / 3][i % 3 * lda + u];                                               \
        EACH_PANEL(LINE_FMA, i)                                                                    \
    }
#define LINE_ALL()                                                                                 \
    v16 line[WIDTH_MAX];                                                                           \
    EACH_PANEL(LINE_LOAD, 0)                                                                       \
    EACH_ROW(LINE_ROW, 0)
#endif
#define LINE(n)                                                                                    \
    {                                                                                              \
        enum { u = n };                                                                            \
        LINE_ALL()                                                                                 \
    }

/* Four lines, and the fetching of others into L2 meanwhile: one cache line, or, where few tiles
 * share the work, up to as many as are used up. */
#define FETCH(n)  __builtin_prefetch((const void *)(next + (n)*RP_CACHE_LINE), 0, 2);
#define FETCH_ALL FETCH(0) FETCH(1) FETCH(2) FETCH(3)
#define FETCH_ONE FETCH(0)
#define UNROLLED(fetch)                                                                            \
    for (; k >= UNROLL; k -= UNROLL) {                                                             \
        fetch next += next_step;                                                                   \
        LINE(0)                                                                                    \
        LINE(1)                                                                                    \
        LINE(2)                                                                                    \
        LINE(3)                                                                                    \
        EACH_TRIPLE(TRIPLE_ADVANCE)                                                                \
        b += UNROLL * NR;                                                                          \
    }

static inline __attribute__((always_inline)) void run_tile(const unsigned h, const unsigned w,
                                                           const struct tile *t, const float *a,
                                                           const float *b, const float *init,
                                                           const float *bias, float *out)
{
    v16 acc[RP_GEMM_MR][WIDTH_MAX];
    if (init) {
        EACH_ROW(INIT_ROW, 0)
    } else {
        EACH_ROW(ZERO_ROW, 0)
    }

    const float *row[RP_GEMM_MR / 3];
    const size_t lda = t->lda;
    EACH_TRIPLE(TRIPLE_BASE)
    const size_t b_stride = t->b_stride;
    size_t k = t->k;
    uintptr_t next = t->next;
    const size_t next_step = t->next_step;
    if (t->dense) {
        UNROLLED(FETCH_ALL)
    } else {
        UNROLLED(FETCH_ONE)
    }
    for (; k > 0; k--) {
        LINE(0)
        EACH_TRIPLE(TRIPLE_NEXT)
        b += NR;
    }

    if (bias) {
        EACH_ROW(BIAS_ROW, 0)
    }
    EACH_ROW(STORE_ROW, 0)
}

#define TILE_DEFINE(h, w)                                                                          \
    static void tile_##h##x##w(const struct tile *t, const float *a, const float *b,               \
                               const float *init, const float *bias, float *out)                   \
    {                                                                                              \
        run_tile(h, w, t, a, b, init, bias, out);                                                  \
    }
#define TILE_ENTRY(h, w) [h][w > 1] = tile_##h##x##w,

RP_GEMM_TILES(TILE_DEFINE)

/* By height, and by whether one panel or RP_GEMM_WIDTH(height). */
static tile_fn *const tiles[RP_GEMM_MR + 1][2] = {RP_GEMM_TILES(TILE_ENTRY)};

/* h rows of a group of panels. */
static inline void run_tiles(const struct tile *t, size_t h, size_t n_panels, const float *a,
                             const float *b, const float *init, const float *bias, float *out)
{
    const size_t wide = RP_GEMM_WIDTH(h);
    for (size_t w; n_panels > 0; n_panels -= w) {
        w = n_panels < wide ? 1 : wide;
        tiles[h][w > 1](t, a, b, init, bias, out);
        b += w * t->b_stride;
        out += w * NR;
        if (init)
            init += w * NR;
        if (bias)
            bias += w * NR;
    }
}

/* How k is cut: not at all when a panel's lines are used once only, since then L1 cannot help. */
static struct rp_split split_k(const struct rp_split *rows, size_t k, size_t width)
{
    return rp_split(k, rows->n_parts > 1 ? RP_GEMM_LINES / width : k + !k);
}

/* ---- what follows the chains ---------------------------------------------------------------- */

/* One 16-column strip of C: rows that have their bias get activation and residual. */
struct strip {
    const float *from;
    size_t ld_from;
    struct rp_result to;
};

/* Rows [i, i + count); they have their bias. */
RP_V16_FN void take_rows(const struct strip *s, size_t i, const size_t count, v16 *x)
{
    V_EACH (j, count)
        x[j] = v_load(s->from + (i + j) * s->ld_from);
}

RP_FINISHES

/* Rows [i, i + h) of C from `sums`, which has the group's panels side by side. */
static void finish_tile(const struct rp_gemm_args *g, size_t i, size_t h, size_t p, size_t n_panels,
                        const float *sums, size_t ld_sums)
{
    for (size_t q = 0; q < n_panels; q++) {
        const size_t col = (p + q) * NR;
        const struct strip strip = {
            .from = sums + q * NR,
            .ld_from = ld_sums,
            .to =
                {
                    .c = g->c + i * g->ldc + col,
                    .ldc = g->ldc,
                    .residual = g->residual ? g->residual + i * g->ld_residual + col : NULL,
                    .ld_residual = g->ld_residual,
                    .multiply = g->multiply,
                    .n_rows = h,
                    .n_cols = g->n - col < NR ? g->n - col : NR,
                },
        };
        finishes[g->activation](&strip);
    }
}

/* ---- the drivers ---------------------------------------------------------------------------- */

/* A group of panels [p, p + n_panels) for the rows [i0, i0 + n) that `rows` cuts into tiles. */
struct group {
    const struct rp_gemm_args *args;
    const struct rp_split *rows;
    size_t i0, p, n_panels;
    const float *bias; /* padded to whole panels, or NULL */
    bool direct;       /* tiles are stored to C as they are */
    float *partial;    /* rows x n_panels * NR */
};

/* Has the tiles fetch the panels that come next, each tile its share: what a panel's way from L3 or
 * memory would cost the first tile then hides behind all of them.  A single tile has nothing to
 * hide it behind and leaves it to the hardware, which sees one stream: it fetches what it has
 * already. */
static void aim_ahead(struct tile *t, size_t n_tiles, const float *here, const float *next)
{
    t->next = (uintptr_t)(n_tiles > 1 ? next : here);
    t->next_step = n_tiles > 1 ? (UNROLL * NR * sizeof(float) + n_tiles - 1) / n_tiles : 0;
    t->dense = t->next_step > RP_CACHE_LINE;
}

/* The lines of C that a tile is about to be stored to: a few to a page, so that no hardware stream
 * brings them. */
static void fetch_rows(const float *c, size_t ldc, size_t h, size_t n_panels)
{
    for (size_t i = 0; i < h; i++)
        for (size_t q = 0; q < n_panels; q++)
            __builtin_prefetch(c + i * ldc + q * NR, 1, 3);
}

/* Lines [k0, k0 + k) of the group, all its tiles. */
static void run_lines(const struct group *g, size_t k0, size_t k)
{
    _Alignas(64) float sums[RP_GEMM_MR * WIDTH_MAX * NR];
    const struct rp_gemm_args *args = g->args;
    const size_t ld = g->n_panels * NR;
    const bool last = k0 + k == args->k;
    const bool direct = last && g->direct;
    struct tile t = {
        .lda = args->lda,
        .b_stride = args->k * NR,
        .k = k,
        .ld_init = ld,
        .ld_out = direct ? args->ldc : ld,
    };
    const float *b = args->packed + (g->p * args->k + k0) * NR;
    const float *a = args->a + g->i0 * args->lda + k0;
    float *partial = g->partial;
    aim_ahead(&t, g->rows->n_parts, b, last ? b + g->n_panels * t.b_stride - k0 * NR : b + k * NR);
    for (size_t part = 0, i = g->i0; part < g->rows->n_parts; part++) {
        const size_t h = rp_split_part(g->rows, part);
        float *c = args->c + i * args->ldc + g->p * NR;
        float *out = direct ? c : last ? sums : partial;
        if (last && g->rows->n_parts > 1)
            fetch_rows(c, args->ldc, h, g->n_panels);
        run_tiles(&t, h, g->n_panels, a, b, k0 ? partial : NULL, last ? g->bias : NULL, out);
        if (last && !direct)
            finish_tile(args, i, h, g->p, g->n_panels, sums, ld);
        a += h * args->lda;
        t.next += k / UNROLL * t.next_step;
        partial += h * ld;
        i += h;
    }
}

/* Panels [p0, p1) for the rows [i0, i0 + n), a block. */
static void run_block(const struct rp_gemm_args *args, size_t i0, size_t n, size_t p0, size_t p1)
{
    _Alignas(64) float partial[RP_GEMM_ROWS_MAX * WIDTH_MAX_TALL * NR];
    _Alignas(64) float bias[WIDTH_MAX * NR];
    const struct rp_split rows = rp_split(n, RP_GEMM_MR);
    const size_t width = RP_GEMM_WIDTH(rows.base); /* as many as its lowest tile wants */
    assert(rows.n_parts == 1 || width <= WIDTH_MAX_TALL);
    const struct rp_split ks = split_k(&rows, args->k, width);
    const bool plain = args->activation == RP_ACT_NONE && !args->residual;

    struct group g = {.args = args, .rows = &rows, .i0 = i0, .partial = partial};
    for (g.p = p0; g.p < p1; g.p += g.n_panels) {
        g.n_panels = p1 - g.p < width ? p1 - g.p : width;
        g.direct = plain && (g.p + g.n_panels) * NR <= args->n;
        for (size_t q = 0; args->bias && q < g.n_panels; q++) {
            const size_t left = args->n - (g.p + q) * NR;
            v_store(bias + q * NR, v_load_n(args->bias + (g.p + q) * NR, left < NR ? left : NR));
        }
        g.bias = args->bias ? bias : NULL;
        for (size_t part = 0, k0 = 0; part < ks.n_parts || part == 0; part++) {
            run_lines(&g, k0, rp_split_part(&ks, part));
            k0 += rp_split_part(&ks, part);
        }
    }
}

void RUN(const struct rp_gemm_args *args, size_t m0, size_t m1, size_t p0, size_t p1)
{
    const struct rp_split blocks = rp_split(m1 - m0, rp_gemm_block_rows(RP_GEMM_MR, args->k));
    for (size_t part = 0; part < blocks.n_parts; part++) {
        const size_t n = rp_split_part(&blocks, part);
        run_block(args, m0, n, p0, p1);
        m0 += n;
    }
}
