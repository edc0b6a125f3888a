/* The tables of row-wise operations that this machine can run, scalar's first. */
#ifndef RP_TESTS_OPS_TABLES_H
#define RP_TESTS_OPS_TABLES_H

#include "ops/ops.h"

extern const struct rp_ops *tables[8];
extern size_t n_tables;

/* Fills them; the set-up of a group of tests. */
int find_tables(void **state);

#endif
