/* The NEON table. */
#include "tests/v16_table.h"

#if RP_HAVE_NEON
#define RP_V16_NEON
#define V16_NAME neon
#define V16_ISA  RP_ISA_NEON
#include "tests/v16_table_tmpl.h"
#endif
