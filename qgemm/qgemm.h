/* INT8 products with packed weights: C[m, n] = epilogue(Q[m, k] W[n, k]^T), exact in between.
 *
 * A row of Q is a row of floats divided by the smoothing factors of its columns and rounded to u8
 * with a scale and a zero point of its own (ops->quantize); a row of W is multiplied by the same
 * factors and rounded to s8 with a scale of its own.  The contract (docs/numerics.md):
 *
 *     sum  = sum over k of q[i] w[i], exact
 *     acc  = sum - zero * colsum              exact in i32 (k <= RP_QGEMM_K_MAX)
 *     y    = fma((float)acc, row_scale * column_scale, bias); without bias, the product
 *     y    = activation(y) + residual; or times it
 *
 * Sums of integers do not care for their order, so tiles, threads and instructions move no bit.  No
 * path may saturate on the way: vpmaddubsw adds two products in i16, so packing keeps
 * |w[2j] + w[2j+1]| <= 128 (255 * 128 < 2^15): *pair-bounded*, docs/decisions/0005.
 *
 * W is packed into panels of 16 output columns, the same layout for every ISA:
 *
 *     panel p:  k_padded/4 lines of 64 bytes: line l holds, for each of the 16 columns in turn,
 *               w[l*4] .. w[l*4+3]          (what vpdpbusd, tdpbusd and usdot read)
 *               16 x f32 column_scale
 *               16 x i32 colsum
 *               u16 n_joined, u16 lines[k_padded/4], padded to whole lines of 64 bytes
 *     k_padded is k rounded up to 64; columns past n and lines past k are zeros.
 *
 * `lines` are all lines, by four times their number, in an order in which the first n_joined of
 * them fit together two by two: in each column, bytes 0 and 1 of both stay within 128 to either
 * side, and so do bytes 2 and 3.  Of those two results of vpmaddubsw can be added in i16 before
 * they are widened, which spares a quarter of the multiplications and moves no bit.
 *
 * A row of Q is k_padded bytes (those past k are never multiplied by anything but 0, but are
 * initialised) and then a line of 64 bytes that begins with
 *
 *     f32 row_scale, i32 zero
 *
 * so rows are multiples of 64 bytes.
 */
#ifndef RP_QGEMM_QGEMM_H
#define RP_QGEMM_QGEMM_H

#include <rankplan/graph.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RP_QGEMM_NR    16
#define RP_QGEMM_K_MAX ((size_t)1 << 16) /* 2^16 * 255 * 127 < 2^31 */

static inline size_t rp_qgemm_padded(size_t k)
{
    return (k + 63) / 64 * 64;
}

/* Bytes of a quantised row, and of a packed panel. */
static inline size_t rp_qgemm_row_bytes(size_t k)
{
    return rp_qgemm_padded(k) + 64;
}

static inline size_t rp_qgemm_panel_bytes(size_t k)
{
    const size_t lines = rp_qgemm_padded(k) / 4;
    return lines * 64 + 128 + (2 + 2 * lines + 63) / 64 * 64;
}

/* The line after a row's bytes. */
struct rp_qgemm_row_tail {
    float scale;
    int32_t zero;
};

/* The two lines after a panel's. */
struct rp_qgemm_panel_tail {
    float scale[RP_QGEMM_NR];
    int32_t colsum[RP_QGEMM_NR];
};

/* What follows those, up to the panel's end. */
struct rp_qgemm_panel_order {
    uint16_t n_joined; /* a multiple of four */
    uint16_t lines[];  /* k_padded/4, each 4 times its number: where it begins in a row of Q */
};

/* Where a panel's order begins, and the order of the panel that begins at `panel`. */
static inline size_t rp_qgemm_order_at(size_t k)
{
    return rp_qgemm_padded(k) * RP_QGEMM_NR + sizeof(struct rp_qgemm_panel_tail);
}

static inline struct rp_qgemm_panel_order *rp_qgemm_order(void *panel, size_t k)
{
    return (void *)((unsigned char *)panel + rp_qgemm_order_at(k));
}

/* One product.  The residual may be C itself (in place). */
struct rp_qgemm_args {
    const uint8_t *q; /* rows rp_qgemm_row_bytes(k) apart, 64-byte aligned */
    const void *packed;
    size_t n, k;
    float *c;
    size_t ldc;
    const float *bias; /* n floats or NULL */
    rp_activation activation;
    const float *residual; /* or NULL */
    size_t ld_residual;
    bool multiply; /* by the residual, instead of adding it: how a gate ends */
};

/* Rows [m0, m1) x panels [p0, p1) of C.  Any split over rows and panels gives the same bits. */
typedef void rp_qgemm_run_fn(const struct rp_qgemm_args *args, size_t m0, size_t m1, size_t p0,
                             size_t p1);

/* Runs `rounds` rounds of the kernel's own inner product on registers alone, as the ceiling of what
 * it can reach; returns how many multiply-adds that was.  sink: 256 bytes, 64-byte aligned,
 * initialised; overwritten. */
typedef size_t rp_qgemm_peak_fn(size_t rounds, void *sink);

/* The kernels of one ISA. */
struct rp_qgemm_kernel {
    const char *name; /* e.g. rp_qgemm_u8_4x16__avx2 */
    uint32_t isa;     /* every bit needed to run it */
    uint8_t mr, nr;   /* register tile */
    rp_qgemm_run_fn *run;
    rp_qgemm_peak_fn *peak;
};

/* The table, slowest first, and its length. */
const struct rp_qgemm_kernel *rp_qgemm_kernels(size_t *n);

/* The fastest kernel that needs no more than the mask. */
const struct rp_qgemm_kernel *rp_qgemm_select(uint32_t isa);

/* Bytes of n x k packed (a multiple of 64); false when it wraps or k > RP_QGEMM_K_MAX. */
bool rp_qgemm_packed_bytes(size_t n, size_t k, size_t *out);

/* Packs rows [0, n_rows) (1..16) of w[., k], leading dimension ldw, into one panel, pair-bounded.
 * smooth: k factors that columns are multiplied by, or NULL.  A row with a NaN or an infinity, or a
 * pair whose sum is one, gets a scale of NaN, so that nothing made of it looks like a number. */
void rp_qgemm_pack_panel(void *panel, const float *w, size_t ldw, size_t n_rows, size_t k,
                         const float *smooth);

/* Writes the order of a panel's lines behind them.  Part of rp_qgemm_pack_panel. */
void rp_qgemm_order_lines(void *panel, size_t k);

#endif
