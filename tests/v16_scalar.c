/* The scalar table, and which tables this machine can run. */
#define RP_V16_SCALAR
#define V16_NAME scalar
#define V16_ISA  RP_ISA_SCALAR
#include "tests/v16_table_tmpl.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

extern const struct v16_table v16_table__avx2, v16_table__avx512, v16_table__neon;

size_t v16_tables(const struct v16_table *tables[4])
{
    static const struct v16_table *const all[] = {
        &v16_table__scalar,
#if RP_HAVE_NEON
        &v16_table__neon,
#endif
#if RP_HAVE_AVX2
        &v16_table__avx2,
#endif
#if RP_HAVE_AVX512
        &v16_table__avx512,
#endif
    };
    size_t n = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if ((all[i]->isa & ~rp_isa_detected()) == 0)
            tables[n++] = all[i];
    }
    return n;
}

v16_case_fn *v16_function(const struct v16_table *table, const char *name)
{
    const struct v16_case *f = table->functions;
    while (f->name && strcmp(f->name, name) != 0)
        f++;
    assert_non_null(f->name);
    return f->run;
}
