/* The AVX-512 table. */
#include "tests/v16_table.h"

#if RP_HAVE_AVX512
V16_TARGET_BEGIN("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")
#define RP_V16_AVX512
#define V16_NAME avx512
#define V16_ISA  RP_ISA_AVX512
#include "tests/v16_table_tmpl.h"
V16_TARGET_END
#endif
