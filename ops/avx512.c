/* The row-wise operations for AVX-512. */
#define RP_V16_AVX512
#define RP_OPS_TABLE rp_ops__avx512
#define RP_OPS_NAME  "avx512"
#define RP_OPS_ISA   RP_ISA_AVX512
#include "ops/ops_tmpl.h"
