/* AMX: tdpbusd multiplies a tile of 16 rows x 64 bytes of Q by one of 16 lines of a panel, which
 * the packed layout is made for, and adds to a tile of 16 x 16 i32.
 *
 *     17 to 32 rows      C in tiles 0 1    Q in 4    two panels in 6 7
 *                                   2 3         5
 *     up to 16 rows      C in tiles 0 1 2 3   Q in 4   four panels through 5 6 7
 *
 * Rows of tiles are part of the configuration, which is costly to change: so all tiles of rows of a
 * call have the same height, and one that would be lower starts a row earlier.  The sums of that
 * row are thrown away; it is one of the call's own, as only the first tile of a call has none
 * before it.
 *
 * The instructions are written out: gcc 12's intrinsics do not say which memory they read.
 */
#ifndef RP_QGEMM_AMX_PLAIN /* tests bring tiles of plain C, and a name */
#define RP_V16_AVX512
#define RP_QGEMM_NAME rp_qgemm_u8_32x32__amx
/* clang-format off */
#define AMX_CONFIGURE(config) __asm__ volatile("ldtilecfg %0" : : "m"(*(config)))
#define AMX_RELEASE()         __asm__ volatile("tilerelease" : : : "memory")
#define AMX_ZERO(t)           __asm__ volatile("tilezero %%tmm" #t : : )
#define AMX_LOAD(t, p, stride)                                                                     \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t : : "r"(p), "r"(stride) : "memory")
#define AMX_STORE(t, p, stride)                                                                    \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" : : "r"(p), "r"(stride) : "memory")
/* C += A (unsigned) B (signed) */
#define AMX_DOT(c, a, b)                                                                           \
    __asm__ volatile("tdpbusd %%tmm" #b ", %%tmm" #a ", %%tmm" #c : : )
/* clang-format on */
#endif

#define RP_QGEMM_SHIFT 0
#include "pool/memory.h"
#include "pool/split.h"
#include "qgemm/block.h"
#include "qgemm/finish.h"
#include "qgemm/kernels.h"

#define PASTE_(a, b) a##b
#define PASTE(a, b)  PASTE_(a, b)
#define RUN          PASTE(RP_QGEMM_NAME, _run)
#define PEAK         PASTE(RP_QGEMM_NAME, _peak)
#define NR           RP_QGEMM_NR
#define TILE_ROWS    16
#define TILE_BYTES   1024 /* of a panel: 16 lines */
#define MR           ((size_t)2 * TILE_ROWS)
#define SUMS         (MR * 2 * NR) /* 32 rows of two panels, or 16 of four */

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t n_rows[16];
};

/* Eight tiles for n_rows rows of C, 1..32. */
static struct tile_config configuration(size_t n_rows)
{
    const uint8_t upper = (uint8_t)(n_rows > TILE_ROWS ? (n_rows + 1) / 2 : n_rows);
    const uint8_t lower = (uint8_t)(n_rows - upper);
    struct tile_config config = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        config.row_bytes[t] = 64;
        if (lower)
            config.n_rows[t] = t >= 6 ? TILE_ROWS : t == 4 || t < 2 ? upper : lower;
        else
            config.n_rows[t] = t >= 5 ? TILE_ROWS : upper;
    }
    return config;
}

/* What the tiles of a group of panels have in common. */
struct group {
    size_t row_bytes, panel_bytes;
    size_t steps;        /* of 64 bytes along k */
    size_t lower;        /* bytes from the upper tile's rows to the lower's; 0: there is none */
    const uint8_t *next; /* memory to fetch meanwhile, next_step bytes further every step */
    size_t next_step;
};

static inline void fetch(const uint8_t *next, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += RP_CACHE_LINE)
        __builtin_prefetch(next + i, 0, 2);
}

/* 17 to 32 rows by two panels; sums have two panels side by side. */
static void tall_by_two(const struct group *g, const uint8_t *q, const uint8_t *b, float *sums)
{
    const size_t stride = g->row_bytes, line = 64, ld = 2 * NR * sizeof(float);
    const size_t upper = g->lower / g->row_bytes;
    AMX_ZERO(0);
    AMX_ZERO(1);
    AMX_ZERO(2);
    AMX_ZERO(3);
    for (size_t s = 0; s < g->steps; s++) {
        fetch(g->next + s * g->next_step, g->next_step);
        AMX_LOAD(6, b, line);
        AMX_LOAD(4, q, stride);
        AMX_DOT(0, 4, 6);
        AMX_LOAD(7, b + g->panel_bytes, line);
        AMX_DOT(1, 4, 7);
        AMX_LOAD(5, q + g->lower, stride);
        AMX_DOT(2, 5, 6);
        AMX_DOT(3, 5, 7);
        q += 64;
        b += TILE_BYTES;
    }
    AMX_STORE(0, sums, ld);
    AMX_STORE(1, sums + NR, ld);
    AMX_STORE(2, sums + upper * 2 * NR, ld);
    AMX_STORE(3, sums + upper * 2 * NR + NR, ld);
}

static void tall_by_one(const struct group *g, const uint8_t *q, const uint8_t *b, float *sums)
{
    const size_t stride = g->row_bytes, line = 64, ld = NR * sizeof(float);
    AMX_ZERO(0);
    AMX_ZERO(2);
    for (size_t s = 0; s < g->steps; s++) {
        AMX_LOAD(6, b, line);
        AMX_LOAD(4, q, stride);
        AMX_DOT(0, 4, 6);
        AMX_LOAD(5, q + g->lower, stride);
        AMX_DOT(2, 5, 6);
        q += 64;
        b += TILE_BYTES;
    }
    AMX_STORE(0, sums, ld);
    AMX_STORE(2, sums + g->lower / g->row_bytes * NR, ld);
}

/* Up to 16 rows by four panels. */
static void low_by_four(const struct group *g, const uint8_t *q, const uint8_t *b, float *sums)
{
    const size_t stride = g->row_bytes, line = 64, ld = 4 * NR * sizeof(float);
    AMX_ZERO(0);
    AMX_ZERO(1);
    AMX_ZERO(2);
    AMX_ZERO(3);
    for (size_t s = 0; s < g->steps; s++) {
        fetch(g->next + s * g->next_step, g->next_step);
        AMX_LOAD(4, q, stride);
        AMX_LOAD(5, b, line);
        AMX_DOT(0, 4, 5);
        AMX_LOAD(6, b + g->panel_bytes, line);
        AMX_DOT(1, 4, 6);
        AMX_LOAD(7, b + 2 * g->panel_bytes, line);
        AMX_DOT(2, 4, 7);
        AMX_LOAD(5, b + 3 * g->panel_bytes, line);
        AMX_DOT(3, 4, 5);
        q += 64;
        b += TILE_BYTES;
    }
    AMX_STORE(0, sums, ld);
    AMX_STORE(1, sums + NR, ld);
    AMX_STORE(2, sums + 2 * NR, ld);
    AMX_STORE(3, sums + 3 * NR, ld);
}

static void low_by_one(const struct group *g, const uint8_t *q, const uint8_t *b, float *sums)
{
    const size_t stride = g->row_bytes, line = 64, ld = NR * sizeof(float);
    AMX_ZERO(0);
    for (size_t s = 0; s < g->steps; s++) {
        AMX_LOAD(4, q, stride);
        AMX_LOAD(5, b, line);
        AMX_DOT(0, 4, 5);
        q += 64;
        b += TILE_BYTES;
    }
    AMX_STORE(0, sums, ld);
}

/* Panels that come next are fetched ahead whatever their size: with weights of 160 MB in turn, as a
 * large model has them, products of 128 rows come 12 to 18 % sooner for it (k of 384 to 1536), and
 * whole models 3 to 10 %.  Lines of C are fetched when the call's rows of it take most of the
 * second-level cache: 25 % there, -10 % where they do not.
 */
#define FETCH_C_BYTES ((size_t)1024 * 1024)

/* Has the tiles fetch the panels that come next, each tile its share; a single one leaves it to the
 * hardware (qgemm_tmpl.h). */
static void aim_ahead(struct group *g, size_t n_tiles, const uint8_t *here, size_t n_panels)
{
    const bool fetches = n_tiles > 1;
    g->next = fetches ? here + n_panels * g->panel_bytes : here;
    g->next_step = fetches ? n_panels * TILE_BYTES / n_tiles : 0;
}

/* Panels [p, p + n_panels) for the rows from i on that `rows` cuts into tiles.  The width is what
 * the configuration is for, or 1. */
static void run_group(const struct rp_qgemm_args *args, const struct rp_split *rows, size_t height,
                      size_t i, size_t p, size_t n_panels)
{
    _Alignas(64) float sums[SUMS];
    const size_t upper = height > TILE_ROWS ? (height + 1) / 2 : 0;
    struct group g = {
        .row_bytes = rp_qgemm_row_bytes(args->k),
        .panel_bytes = rp_qgemm_panel_bytes(args->k),
        .steps = rp_qgemm_padded(args->k) / 64,
    };
    g.lower = upper * g.row_bytes;
    const uint8_t *b = (const uint8_t *)args->packed + p * g.panel_bytes;
    aim_ahead(&g, rows->n_parts, b, n_panels);
    for (size_t part = 0; part < rows->n_parts; part++) {
        const size_t h = rp_split_part(rows, part), skipped = height - h;
        const uint8_t *q = args->q + (i - skipped) * g.row_bytes;
        if (rows->n_parts * height * args->ldc * sizeof(float) > FETCH_C_BYTES)
            fetch_rows(args, i, h, p, n_panels);
        if (upper)
            (n_panels > 1 ? tall_by_two : tall_by_one)(&g, q, b, sums);
        else
            (n_panels > 1 ? low_by_four : low_by_one)(&g, q, b, sums);
        finish_tile(args, i, h, p, n_panels, sums + skipped * n_panels * NR, n_panels * NR);
        g.next += g.steps * g.next_step;
        i += h;
    }
}

/* The rows of a block start where its first tile has as many rows as the call's highest, or behind
 * other rows of the call. */
void RUN(const struct rp_qgemm_args *args, size_t m0, size_t m1, size_t p0, size_t p1)
{
    const struct rp_split blocks = rp_split(m1 - m0, rp_qgemm_block_rows(MR, args->k));
    if (blocks.n_parts == 0)
        return;
    const struct rp_split first = rp_split(rp_split_part(&blocks, 0), MR);
    const size_t height = rp_split_part(&first, 0), width = height > TILE_ROWS ? 2 : 4;
    const struct tile_config config = configuration(height);
    AMX_CONFIGURE(&config);
    for (size_t part = 0; part < blocks.n_parts; part++) {
        const size_t n = rp_split_part(&blocks, part);
        const struct rp_split rows = rp_split(n, height);
        size_t p = p0;
        for (; p + width <= p1; p += width)
            run_group(args, &rows, height, m0, p, width);
        for (; p < p1; p++)
            run_group(args, &rows, height, m0, p, 1);
        m0 += n;
    }
    AMX_RELEASE();
}

/* ---- the ceiling ---------------------------------------------------------------------------- */

size_t PEAK(size_t rounds, void *sink)
{
    const struct tile_config config = configuration(MR);
    const size_t same = 0;
    AMX_CONFIGURE(&config);
    AMX_LOAD(4, sink, same);
    AMX_LOAD(5, sink, same);
    AMX_LOAD(6, sink, same);
    AMX_LOAD(7, sink, same);
    AMX_ZERO(0);
    AMX_ZERO(1);
    AMX_ZERO(2);
    AMX_ZERO(3);
    for (size_t r = 0; r < rounds; r++) {
        AMX_DOT(0, 4, 6);
        AMX_DOT(1, 4, 7);
        AMX_DOT(2, 5, 6);
        AMX_DOT(3, 5, 7);
    }
    AMX_STORE(0, sink, same);
    AMX_RELEASE();
    return rounds * 4 * TILE_ROWS * NR * 64;
}
