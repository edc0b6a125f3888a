/* Which table of row-wise operations is used. */
#include "ops/ops.h"

#define RP_OPS_TABLE(table) extern const struct rp_ops table;
#include "ops/kernels.inc"
#undef RP_OPS_TABLE

#define RP_OPS_TABLE(table) &table,
static const struct rp_ops *const tables[] = {
#include "ops/kernels.inc"
};
#undef RP_OPS_TABLE

#define N_TABLES (sizeof tables / sizeof *tables)

const struct rp_ops *rp_ops_select(uint32_t isa)
{
    size_t i = N_TABLES - 1;
    while (tables[i]->isa & ~isa)
        i--; /* ends at the scalar table, which needs nothing */
    return tables[i];
}

const struct rp_ops *const *rp_ops_all(size_t *n)
{
    *n = N_TABLES;
    return tables;
}
