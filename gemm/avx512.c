/* AVX-512.  A tile of 12 rows and two panels is 24 accumulators, 2 registers for the lines and one
 * for an element of A: 27 of 32.  Fewer than 8 chains (two fmas a cycle, latency 4) are left only
 * where panels run out.
 *
 * 384 lines shared by two panels are 24 KiB, for an L1 of 32 KiB (Zen 4) or 48 KiB (Ice Lake on).
 */
#ifndef RP_V16_SCALAR /* tests build this shape on plain arrays, under a name of their own */
#define RP_V16_AVX512
#define RP_GEMM_NAME rp_gemm_f32_12x32__avx512
#endif
/* The formatter moves these lists a little further at each run. */
/* clang-format off */
#define RP_GEMM_MR 12
#define RP_GEMM_ROWS(X, j)                                                                         \
    X(0, j) X(1, j) X(2, j) X(3, j) X(4, j) X(5, j) X(6, j) X(7, j) X(8, j) X(9, j) X(10, j)       \
    X(11, j)
#define RP_GEMM_TRIPLES(X) X(0) X(1) X(2) X(3)
#define RP_GEMM_WIDTH(h)   ((h) < 4 ? 4 : 2)
#define RP_GEMM_TILES(X)                                                                           \
    X(1, 1) X(1, 4) X(2, 1) X(2, 4) X(3, 1) X(3, 4) X(4, 1) X(4, 2) X(5, 1) X(5, 2) X(6, 1)        \
    X(6, 2) X(7, 1) X(7, 2) X(8, 1) X(8, 2) X(9, 1) X(9, 2) X(10, 1) X(10, 2) X(11, 1) X(11, 2)    \
    X(12, 1) X(12, 2)
/* clang-format on */
#define RP_GEMM_LINES 384

#ifdef RP_V16_AVX512
#include "pool/v16.h"

/* Written as the instruction, as in avx2.c. */
static inline __attribute__((always_inline)) v16 fma_line(float a, v16 b, v16 c)
{
    __asm__("vfmadd231ps %2, %1, %0" : "+v"(c) : "v"(v_set1(a)), "v"(b));
    return c;
}
#define RP_GEMM_FMA fma_line
#endif

#include "gemm/gemm_tmpl.h"
