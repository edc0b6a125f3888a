/* Plain C: fmaf() on arrays.  The same loops as everywhere; where fmaf() is a call, nothing else
 * about them matters, and where it is an instruction, a compiler can put the arrays into registers.
 */
#define RP_V16_SCALAR
#define RP_GEMM_MR         3
#define RP_GEMM_ROWS(X, j) X(0, j) X(1, j) X(2, j)
#define RP_GEMM_TRIPLES(X) X(0)
#define RP_GEMM_WIDTH(h)   1
#define RP_GEMM_TILES(X)   X(1, 1) X(2, 1) X(3, 1)
#define RP_GEMM_LINES      384

#define RP_GEMM_NAME rp_gemm_f32_3x16__scalar
#include "gemm/gemm_tmpl.h"
