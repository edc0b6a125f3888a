/* The row-wise operations for AVX2, FMA and F16C. */
#define RP_V16_AVX2
#define RP_OPS_TABLE rp_ops__avx2
#define RP_OPS_NAME  "avx2"
#define RP_OPS_ISA   RP_ISA_AVX2
#include "ops/ops_tmpl.h"
