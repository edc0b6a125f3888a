/* The INT8 product, written once over v16 and compiled once per instruction set.
 *
 * A file that includes this has chosen its v16 (RP_V16_...) and says
 *
 *     RP_QGEMM_NAME         the kernel's name; its entry is NAME_run
 *     RP_QGEMM_MR           rows of the register tile
 *     RP_QGEMM_ROWS(X, j)   X(0, j) X(1, j) ... X(MR - 1, j)
 *     RP_QGEMM_BASES(X)     X(0) X(1) ...: one for every three rows
 *     RP_QGEMM_WIDTH(h)     panels side by side in a tile of h rows, 1, 2 or 4, never more for more
 *                           rows
 *     RP_QGEMM_TILES(X)     X(h, 1) and X(h, RP_QGEMM_WIDTH(h)) for each h in 1..MR, none twice
 *     RP_QGEMM_STEP         lines of a panel that are taken at once, 1, 2 or 4
 *     RP_QGEMM_PANELS_APART defined when registers hold the lines of one panel at a time
 *     RP_QGEMM_SHIFT        what qgemm_dot takes off each q: 0, or 128 where q has to be signed
 *     qgemm_lines           the type of a step's lines in registers
 *     qgemm_load(p)         loads them
 *     qgemm_element         the type of a step's 4 * STEP bytes of a row in registers
 *     qgemm_broadcast(q)    loads them
 *     qgemm_dot(acc, e, l)  adds each column's products
 *     qgemm_hide(&e)        has the compiler forget what e is, at no cost
 *     RP_QGEMM_TWOS(h)      whether tiles of h rows, then of one panel, take lines two by two, in
 *                           the panel's order
 *     qgemm_dot_two(acc, e, l, e2, l2)  adds the products of two lines that fit (qgemm.h)
 *
 * The loops, from the outside in:
 *
 *     for each block of rows          the block's rows of Q stay in L2
 *       for each group of panels      RP_QGEMM_WIDTH of them side by side; they stay in L1, or pass
 *                                     through it from L2 at a line for every row tile's step
 *         for each tile of rows       accumulators stay in registers from first line to last
 *
 * There are no blocks of k: a panel is a quarter of what it is in FP32.
 */
#include "pool/memory.h"
#include "pool/split.h"
#include "qgemm/block.h"
#include "qgemm/finish.h"
#include "qgemm/kernels.h"

#include <stdbool.h>

#define PASTE_(a, b) a##b
#define PASTE(a, b)  PASTE_(a, b)
#define RUN          PASTE(RP_QGEMM_NAME, _run)
#define PEAK         PASTE(RP_QGEMM_NAME, _peak)
#define NR           RP_QGEMM_NR
#define LINE_BYTES   (4 * NR)
#define UNROLL       4 /* lines; there are always whole sixteens of them */
#define WIDTH_MAX    4
_Static_assert(UNROLL % RP_QGEMM_STEP == 0, "whole steps");
_Static_assert(RP_QGEMM_WIDTH(1) <= WIDTH_MAX, "as many as a tile is written for");

/* Sums that wait to be finished: 4 KiB, of several tiles, since what is set up for it costs about
 * as much as a row. */
#define SUMS 1024
_Static_assert(RP_QGEMM_MR *RP_QGEMM_WIDTH(RP_QGEMM_MR / 2) * NR <= SUMS, "at least a tile");

/* ---- the register tile ---------------------------------------------------------------------- */

/* What the tiles of a group of panels have in common. */
struct tile {
    size_t row_bytes;
    size_t panel_bytes;
    size_t n_lines;
    uintptr_t next; /* memory to fetch meanwhile, next_step bytes further every UNROLL lines */
    size_t next_step;
    bool dense; /* that is more than a cache line */
};

/* h x w*16 sums over all lines from b on, stored to sums, rows w*16 apart. */
typedef void tile_fn(const struct tile *t, const uint8_t *q, const uint8_t *b, float *sums,
                     size_t ld_sums);

/* Accumulators are addressed by constants alone, so that they live in registers at any level of
 * optimisation that has registers; h and w are constants where this is inlined.  Arrays of plain C
 * live in memory anyway: there, loops spare code and compile time. */
#ifdef RP_V16_SCALAR
#define EACH_ROW(X, j)                                                                             \
    for (unsigned i_ = 0; i_ < RP_QGEMM_MR; i_++) {                                                \
        X(i_, j)                                                                                   \
    }
#define EACH_PANEL(X, i)                                                                           \
    for (unsigned j_ = 0; j_ < WIDTH_MAX; j_++) {                                                  \
        X(i, j_)                                                                                   \
    }
#else
#define EACH_ROW         RP_QGEMM_ROWS
#define EACH_PANEL(X, i) X(i, 0) X(i, 1) X(i, 2) X(i, 3)
#endif
#define EACH_BASE RP_QGEMM_BASES
#define ZERO(i, j)                                                                                 \
    if (i < h && j < w)                                                                            \
        acc[i][j] = vi_set1(0);
#define STORE(i, j)                                                                                \
    if (i < h && j < w)                                                                            \
        v_store(sums + i * ld_sums + j * NR, v_from_bits(acc[i][j]));
#define ZERO_ROW(i, unused)  EACH_PANEL(ZERO, i)
#define STORE_ROW(i, unused) EACH_PANEL(STORE, i)

/* Rows 3g, 3g+1 and 3g+2 are read as base, base + row_bytes and base + 2 row_bytes, each one
 * address of an x86 load.  The compiler must not know that the bases belong together: it would
 * compute each address from the one before. */
#define BASE_START(g)                                                                              \
    if (3 * g < h) {                                                                               \
        row[g] = q + 3 * g * row_bytes;                                                            \
        __asm__("" : "+r"(row[g]));                                                                \
    }
#define BASE_ADVANCE(g)                                                                            \
    if (3 * g < h)                                                                                 \
        row[g] += UNROLL * 4;

#ifdef RP_QGEMM_PANELS_APART
/* Panel by panel: its lines in registers, elements of Q read again for each panel (the barrier has
 * them read again). */
#define STEP_ROW(i, j)                                                                             \
    if (i < h)                                                                                     \
        acc[i][j] = qgemm_dot(acc[i][j], qgemm_broadcast(ELEMENT_AT(i)), lines);
#define STEP_PANEL(j)                                                                              \
    if (j < w) {                                                                                   \
        const qgemm_lines lines = qgemm_load(b + j * panel_bytes + u * LINE_BYTES);                \
        EACH_ROW(STEP_ROW, j)                                                                      \
        __asm__ volatile("" ::: "memory");                                                         \
    }
#define STEP_ALL() STEP_PANEL(0) STEP_PANEL(1) STEP_PANEL(2) STEP_PANEL(3)
#else
/* Row by row: the lines of all panels in registers, each element of Q read once. */
#define STEP_LOAD(i, j)                                                                            \
    if (j < w)                                                                                     \
        lines[j] = qgemm_load(b + j * panel_bytes + u * LINE_BYTES);
#define STEP_DOT(i, j)                                                                             \
    if (j < w)                                                                                     \
        acc[i][j] = qgemm_dot(acc[i][j], element, lines[j]);
#define STEP_ROW(i, unused)                                                                        \
    if (i < h) {                                                                                   \
        const qgemm_element element = qgemm_broadcast(ELEMENT_AT(i));                              \
        EACH_PANEL(STEP_DOT, i)                                                                    \
    }
#define STEP_ALL()                                                                                 \
    qgemm_lines lines[WIDTH_MAX];                                                                  \
    EACH_PANEL(STEP_LOAD, 0)                                                                       \
    EACH_ROW(STEP_ROW, 0)
#endif
#define ELEMENT_AT(i) (row[i / 3] + i % 3 * row_bytes + u * 4)
#define STEP(n)                                                                                    \
    if (n % RP_QGEMM_STEP == 0) {                                                                  \
        enum { u = n };                                                                            \
        STEP_ALL()                                                                                 \
    }

/* Four lines, and the fetching of others into L2 meanwhile: one cache line, or, where few tiles
 * share the work, as many as are used up. */
#define FETCH(n)  __builtin_prefetch((const void *)(next + (n)*RP_CACHE_LINE), 0, 2);
#define FETCH_ALL FETCH(0) FETCH(1) FETCH(2) FETCH(3)
#define FETCH_ONE FETCH(0)
#define UNROLLED(fetch)                                                                            \
    for (size_t left = t->n_lines; left > 0; left -= UNROLL) {                                     \
        fetch next += next_step;                                                                   \
        STEP(0)                                                                                    \
        STEP(1)                                                                                    \
        STEP(2)                                                                                    \
        STEP(3)                                                                                    \
        EACH_BASE(BASE_ADVANCE)                                                                    \
        b += UNROLL * LINE_BYTES;                                                                  \
    }

#ifdef RP_QGEMM_TWOS
#define TWO_START(i, unused)                                                                       \
    if (i < h) {                                                                                   \
        at[i] = q + i * t->row_bytes;                                                              \
        __asm__("" : "+r"(at[i]));                                                                 \
    }
/* clang would load the elements of all rows first, and spill accumulators for them. */
#ifdef __clang__
#define ROWS_APART __asm__ volatile("" ::: "memory");
#else
#define ROWS_APART
#endif
#define LINES_AT(offset) qgemm_load(b + (offset) * (LINE_BYTES / 4))
#define TWO_ROW(i, unused)                                                                         \
    if (i < h) {                                                                                   \
        acc[i][0] = qgemm_dot_two(acc[i][0], qgemm_broadcast(at[i] + x), lines,                    \
                                  qgemm_broadcast(at[i] + y), others);                             \
        ROWS_APART                                                                                 \
    }
#define TWO(n)                                                                                     \
    {                                                                                              \
        const size_t x = line[n], y = line[n + 1];                                                 \
        const qgemm_lines lines = LINES_AT(x), others = LINES_AT(y);                               \
        EACH_ROW(TWO_ROW, 0)                                                                       \
    }
#define TWOS(fetch)                                                                                \
    for (; line < alone; line += UNROLL) {                                                         \
        fetch next += next_step;                                                                   \
        TWO(0)                                                                                     \
        TWO(2)                                                                                     \
    }
#define ONE_ROW(i, unused)                                                                         \
    if (i < h)                                                                                     \
        acc[i][0] = qgemm_dot(acc[i][0], qgemm_broadcast(at[i] + x), lines);
#define ONE(n)                                                                                     \
    {                                                                                              \
        const size_t x = line[n];                                                                  \
        const qgemm_lines lines = LINES_AT(x);                                                     \
        EACH_ROW(ONE_ROW, 0)                                                                       \
    }
/* As all lines are, those that are joined are whole fours, and so are the others. */
#define ONES(fetch)                                                                                \
    for (; line < end; line += UNROLL) {                                                           \
        fetch next += next_step;                                                                   \
        ONE(0)                                                                                     \
        ONE(1)                                                                                     \
        ONE(2)                                                                                     \
        ONE(3)                                                                                     \
    }

/* All lines of one panel, in its order.  Panels side by side each have their own. */
static inline __attribute__((always_inline)) void add_twos(const unsigned h, const struct tile *t,
                                                           const uint8_t *q, const uint8_t *b,
                                                           v16i (*acc)[WIDTH_MAX])
{
    const struct rp_qgemm_panel_order *order =
        (const void *)(b + rp_qgemm_order_at(4 * t->n_lines));
    const uint16_t *line = order->lines, *const end = line + t->n_lines,
                   *const alone = line + order->n_joined;
    const uint8_t *at[RP_QGEMM_MR];
    uintptr_t next = t->next;
    const size_t next_step = t->next_step;
    EACH_ROW(TWO_START, 0)
    if (t->dense) {
        TWOS(FETCH_ALL)
        ONES(FETCH_ALL)
    } else {
        TWOS(FETCH_ONE)
        ONES(FETCH_ONE)
    }
}
#endif

static inline __attribute__((always_inline)) void run_tile(const unsigned h, const unsigned w,
                                                           const struct tile *t, const uint8_t *q,
                                                           const uint8_t *b, float *sums,
                                                           size_t ld_sums)
{
    v16i acc[RP_QGEMM_MR][WIDTH_MAX];
    EACH_ROW(ZERO_ROW, 0)
#ifdef RP_QGEMM_TWOS
    if (RP_QGEMM_TWOS(h)) {
        add_twos(h, t, q, b, acc);
        EACH_ROW(STORE_ROW, 0)
        return;
    }
#endif
    const uint8_t *row[(RP_QGEMM_MR + 2) / 3];
    const size_t row_bytes = t->row_bytes, panel_bytes = t->panel_bytes;
    EACH_BASE(BASE_START)
    uintptr_t next = t->next;
    const size_t next_step = t->next_step;
    if (t->dense) {
        UNROLLED(FETCH_ALL)
    } else {
        UNROLLED(FETCH_ONE)
    }
    EACH_ROW(STORE_ROW, 0)
}

#define TILE_DEFINE(h, w)                                                                          \
    static void tile_##h##x##w(const struct tile *t, const uint8_t *q, const uint8_t *b,           \
                               float *sums, size_t ld_sums)                                        \
    {                                                                                              \
        run_tile(h, w, t, q, b, sums, ld_sums);                                                    \
    }
#define TILE_ENTRY(h, w) [h][w > 1] = tile_##h##x##w,

RP_QGEMM_TILES(TILE_DEFINE)

/* By height, and by whether one panel or RP_QGEMM_WIDTH(height). */
static tile_fn *const tiles[RP_QGEMM_MR + 1][2] = {RP_QGEMM_TILES(TILE_ENTRY)};

/* h rows of a group of panels. */
static inline void run_tiles(const struct tile *t, size_t h, size_t n_panels, const uint8_t *q,
                             const uint8_t *b, float *sums)
{
    const size_t wide = RP_QGEMM_WIDTH(h), ld_sums = n_panels * NR;
    for (size_t w; n_panels > 0; n_panels -= w) {
        w = n_panels < wide ? 1 : wide;
        tiles[h][w > 1](t, q, b, sums, ld_sums);
        b += w * t->panel_bytes;
        sums += w * NR;
    }
}

/* ---- the drivers ---------------------------------------------------------------------------- */

/* Has the tiles fetch the panels that come next, each tile its share: what a panel's way from L3 or
 * memory would cost the first tile then hides behind all of them.  A single tile has nothing to
 * hide it behind and leaves it to the hardware, which sees one stream: it fetches what it has
 * already. */
static void aim_ahead(struct tile *t, size_t n_tiles, const uint8_t *here, const uint8_t *next)
{
    t->next = (uintptr_t)(n_tiles > 1 ? next : here);
    t->next_step = n_tiles > 1 ? (UNROLL * LINE_BYTES + n_tiles - 1) / n_tiles : 0;
    t->dense = t->next_step > RP_CACHE_LINE;
}

/* Panels [p, p + n_panels), at most WIDTH_MAX, for the rows from i on that `rows` cuts into tiles.
 */
static void run_group(const struct rp_qgemm_args *args, const struct rp_split *rows, size_t i,
                      size_t p, size_t n_panels)
{
    _Alignas(64) float sums[SUMS];
    const size_t ld_sums = n_panels * NR;
    size_t held = 0; /* rows of them, ending before i */
    struct tile t = {
        .row_bytes = rp_qgemm_row_bytes(args->k),
        .panel_bytes = rp_qgemm_panel_bytes(args->k),
        .n_lines = rp_qgemm_padded(args->k) / 4,
    };
    const uint8_t *b = (const uint8_t *)args->packed + p * t.panel_bytes;
    aim_ahead(&t, rows->n_parts, b, b + n_panels * t.panel_bytes);
    for (size_t part = 0; part < rows->n_parts; part++) {
        const size_t h = rp_split_part(rows, part);
        if (rows->n_parts > 1)
            fetch_rows(args, i, h, p, n_panels);
        run_tiles(&t, h, n_panels, args->q + i * t.row_bytes, b, sums + held * ld_sums);
        held += h;
        i += h;
        if (part + 1 == rows->n_parts || (held + h) * ld_sums > SUMS) {
            finish_tile(args, i - held, held, p, n_panels, sums, ld_sums);
            held = 0;
        }
        t.next += t.n_lines / UNROLL * t.next_step;
    }
}

void RUN(const struct rp_qgemm_args *args, size_t m0, size_t m1, size_t p0, size_t p1)
{
    const struct rp_split blocks = rp_split(m1 - m0, rp_qgemm_block_rows(RP_QGEMM_MR, args->k));
    for (size_t part = 0; part < blocks.n_parts; part++) {
        const size_t n = rp_split_part(&blocks, part);
        const struct rp_split rows = rp_split(n, RP_QGEMM_MR);
        const size_t width = RP_QGEMM_WIDTH(rows.base); /* as many as its lowest tile wants */
        for (size_t p = p0; p < p1; p += width)
            run_group(args, &rows, m0, p, p1 - p < width ? p1 - p : width);
        m0 += n;
    }
}

/* ---- the ceiling ---------------------------------------------------------------------------- */

#ifdef RP_QGEMM_TWOS
_Static_assert(RP_QGEMM_TWOS(RP_QGEMM_MR), "the inner product of the highest tile is the ceiling");
#define PEAK_LINES     2
#define PEAK_STEP(acc) qgemm_dot_two(acc, element, lines, element, others)
#else
#define PEAK_LINES     1
#define PEAK_STEP(acc) qgemm_dot(acc, element, lines)
#endif
#define PEAK_DOT(i, j)                                                                             \
    if (j < w) {                                                                                   \
        qgemm_hide(&element);                                                                      \
        acc[i][j] = PEAK_STEP(acc[i][j]);                                                          \
    }
#define PEAK_SUM(i, j)                                                                             \
    if (j < w)                                                                                     \
        sum = vi_add(sum, acc[i][j]);
#define PEAK_ROW(i, unused)     EACH_PANEL(PEAK_DOT, i)
#define PEAK_SUM_ROW(i, unused) EACH_PANEL(PEAK_SUM, i)

/* The tile's inner product alone, over and over the same operands. */
size_t PEAK(size_t rounds, void *sink)
{
    enum { h = RP_QGEMM_MR, w = RP_QGEMM_WIDTH(RP_QGEMM_MR) };
    v16i acc[h][WIDTH_MAX], sum = vi_set1(0);
    qgemm_element element = qgemm_broadcast(sink);
    const qgemm_lines lines = qgemm_load(sink);
#ifdef RP_QGEMM_TWOS
    const qgemm_lines others = qgemm_load((const uint8_t *)sink + LINE_BYTES);
#endif
    EACH_ROW(ZERO_ROW, 0)
    for (size_t r = 0; r < rounds; r++) {
        EACH_ROW(PEAK_ROW, 0)
    }
    EACH_ROW(PEAK_SUM_ROW, 0)
    v_store(sink, v_from_bits(sum));
    return rounds * h * w * RP_QGEMM_STEP * PEAK_LINES * LINE_BYTES;
}
