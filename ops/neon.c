/* The row-wise operations for AArch64. */
#define RP_V16_NEON
#define RP_OPS_TABLE rp_ops__neon
#define RP_OPS_NAME  "neon"
#define RP_OPS_ISA   RP_ISA_NEON
#include "ops/ops_tmpl.h"
