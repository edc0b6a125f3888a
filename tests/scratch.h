/* A folder for all tests of a program: made before the first of them, gone after the last. */
#ifndef RP_TESTS_SCRATCH_H
#define RP_TESTS_SCRATCH_H

#include "tests/model_maker.h"

extern struct maker_dir dir;

/* The set-up and tear-down of a group of tests. */
int scratch_make(void **state);
int scratch_remove(void **state);

#endif
