/* AVX2 and FMA.  A tile of 6 rows and one panel is 12 accumulators, 2 registers for a line and one
 * for an element of A: 15 of 16.  Its 12 chains cover two fmas a cycle of latency 4 or 5 (that
 * takes 8 to 10), and its 8 loads a line stay below the 12 that fit beside 12 fmas.
 *
 * 384 lines of a panel are 24 KiB of a 32 KiB L1: the rows of A beside them are read once for each
 * panel and may come from L2.  192 and 256 lines were slower by 2 to 4 % at k = 384.
 */
#define RP_V16_AVX2
#define RP_GEMM_MR         6
#define RP_GEMM_ROWS(X, j) X(0, j) X(1, j) X(2, j) X(3, j) X(4, j) X(5, j)
#define RP_GEMM_TRIPLES(X) X(0) X(1)
#define RP_GEMM_WIDTH(h)   ((h) < 2 ? 4 : (h) < 4 ? 2 : 1)
#define RP_GEMM_TILES(X)   X(1, 1) X(1, 4) X(2, 1) X(2, 2) X(3, 1) X(3, 2) X(4, 1) X(5, 1) X(6, 1)
#define RP_GEMM_LINES      384
#define RP_GEMM_PANELS_APART
#include "pool/v16.h"

/* Written as the instruction: given the intrinsic, gcc 12 often picks the form of it that
 * overwrites a factor, and then pays with moves and spills for an accumulator in the wrong place.
 */
static inline __attribute__((always_inline)) v16 fma_line(float a, v16 b, v16 c)
{
    const __m256 x = _mm256_set1_ps(a);
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(c.lo) : "x"(x), "x"(b.lo));
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(c.hi) : "x"(x), "x"(b.hi));
    return c;
}
#define RP_GEMM_FMA fma_line

#define RP_GEMM_NAME rp_gemm_f32_6x16__avx2
#include "gemm/gemm_tmpl.h"
