/* NEON.  A tile of 6 rows and one panel is 24 accumulators, 4 registers for a line and one for an
 * element of A: 29 of 32.  The element is used as a lane of its register, so that it costs a load
 * and no broadcast.
 */
#define RP_V16_NEON
#define RP_GEMM_MR         6
#define RP_GEMM_ROWS(X, j) X(0, j) X(1, j) X(2, j) X(3, j) X(4, j) X(5, j)
#define RP_GEMM_TRIPLES(X) X(0) X(1)
#define RP_GEMM_WIDTH(h)   ((h) < 2 ? 4 : (h) < 4 ? 2 : 1)
#define RP_GEMM_TILES(X)   X(1, 1) X(1, 4) X(2, 1) X(2, 2) X(3, 1) X(3, 2) X(4, 1) X(5, 1) X(6, 1)
#define RP_GEMM_LINES      512
#define RP_GEMM_PANELS_APART
#include "pool/v16.h"

/* Written as the instruction, as in avx2.c: gcc 12 otherwise broadcasts some elements after all,
 * and loads so many ahead that accumulators are spilled. */
static inline __attribute__((always_inline)) v16 fma_line(float a, v16 b, v16 c)
{
    __asm__("fmla %0.4s, %1.4s, %2.s[0]" : "+w"(c.a) : "w"(b.a), "w"(a));
    __asm__("fmla %0.4s, %1.4s, %2.s[0]" : "+w"(c.b) : "w"(b.b), "w"(a));
    __asm__("fmla %0.4s, %1.4s, %2.s[0]" : "+w"(c.c) : "w"(b.c), "w"(a));
    __asm__("fmla %0.4s, %1.4s, %2.s[0]" : "+w"(c.d) : "w"(b.d), "w"(a));
    return c;
}
#define RP_GEMM_FMA fma_line

#define RP_GEMM_NAME rp_gemm_f32_6x16__neon
#include "gemm/gemm_tmpl.h"
