/* The AVX2 table. */
#include "tests/v16_table.h"

#if RP_HAVE_AVX2
V16_TARGET_BEGIN("avx2,fma,f16c")
#define RP_V16_AVX2
#define V16_NAME avx2
#define V16_ISA  RP_ISA_AVX2
#include "tests/v16_table_tmpl.h"
V16_TARGET_END
#endif
