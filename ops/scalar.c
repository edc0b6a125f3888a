/* The row-wise operations for any machine. */
#define RP_V16_SCALAR
#define RP_OPS_TABLE rp_ops__scalar
#define RP_OPS_NAME  "scalar"
#define RP_OPS_ISA   RP_ISA_SCALAR
#include "ops/ops_tmpl.h"
