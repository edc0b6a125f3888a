/* FP32 products with packed weights: C[m, n] = epilogue(A[m, k] W[n, k]^T).
 *
 * The contract (docs/numerics.md): each output is one chain acc = fma(a[i], w[i], acc) over
 * ascending i from acc = +0, then + bias (if any), then the activation, then + residual (if any;
 * or times it).
 * Tile shapes, blocking of k (acc is stored and reloaded whole) and threads change no bit.
 *
 * W is packed into panels of RP_GEMM_NR = 16 output columns, the same layout for every ISA:
 *
 *     panel p:   w[16p+0][0] w[16p+1][0] ... w[16p+15][0]    <- 64 bytes, 64-byte aligned
 *                w[16p+0][1] ...                                k lines; rows past n are zeros
 *
 * A is read where it lies (row-major, leading dimension lda, any alignment of 4 bytes).  Nothing is
 * read past row m or column k of A, nor past a panel; nothing is written outside C's m x n; C is
 * not read when it is only written.
 */
#ifndef RP_GEMM_GEMM_H
#define RP_GEMM_GEMM_H

#include <rankplan/graph.h>

#include <stddef.h>
#include <stdint.h>

#define RP_GEMM_NR 16

/* One product.  The residual may be C itself (in place). */
struct rp_gemm_args {
    const float *a;
    size_t lda;
    const float *packed; /* ceil(n/16) panels of k*16 floats */
    size_t n, k;
    float *c;
    size_t ldc;
    const float *bias; /* n floats or NULL */
    rp_activation activation;
    const float *residual; /* or NULL */
    size_t ld_residual;
    _Bool multiply; /* by the residual, instead of adding it: how a gate ends */
};

/* Rows [m0, m1) x panels [p0, p1) of C.  Any split over rows and panels gives the same bits. */
typedef void rp_gemm_run_fn(const struct rp_gemm_args *args, size_t m0, size_t m1, size_t p0,
                            size_t p1);

/* The kernels of one ISA. */
struct rp_gemm_kernel {
    const char *name; /* e.g. rp_gemm_f32_6x16__avx2 */
    uint32_t isa;     /* every bit needed to run it */
    uint8_t mr, nr;   /* register tile */
    rp_gemm_run_fn *run;
};

/* The table, slowest first, and its length. */
const struct rp_gemm_kernel *rp_gemm_kernels(size_t *n);

/* The fastest kernel that needs no more than the mask; the scalar one needs nothing. */
const struct rp_gemm_kernel *rp_gemm_select(uint32_t isa);

/* Floats of n x k packed (a multiple of 16); false when it wraps. */
_Bool rp_gemm_packed_floats(size_t n, size_t k, size_t *out);

/* Packs rows [0, n_rows) (1..16) of w[., k], leading dimension ldw, into one panel of k*16 floats.
 */
void rp_gemm_pack_panel(float *panel, const float *w, size_t ldw, size_t n_rows, size_t k);

#endif
