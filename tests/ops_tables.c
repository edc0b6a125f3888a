/* See ops_tables.h. */
#include "tests/ops_tables.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <rankplan/machine.h>

const struct rp_ops *tables[8];
size_t n_tables;

int find_tables(void **state)
{
    (void)state;
    size_t n;
    const struct rp_ops *const *all = rp_ops_all(&n);
    for (size_t i = 0; i < n; i++) {
        if ((all[i]->isa & ~rp_isa_detected()) == 0)
            tables[n_tables++] = all[i];
    }
    assert_string_equal(tables[0]->name, "scalar");
    return 0;
}
