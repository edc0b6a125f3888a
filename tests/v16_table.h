/* Every operation of pool/v16.h and pool/vmath.h of one instruction set, as functions over arrays,
 * so that one test can hold them against each other.
 *
 * A v16 is a type of one translation unit, so tests/v16_<isa>.c each make a table from
 * tests/v16_table_tmpl.h.  They are compiled with the flags of every other test file: the
 * instruction set comes from a pragma.
 */
#ifndef RP_TESTS_V16_TABLE_H
#define RP_TESTS_V16_TABLE_H

#include <stddef.h>
#include <stdint.h>

#define V16_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define V16_TARGET_BEGIN(set)                                                                      \
    V16_PRAGMA(clang attribute push(__attribute__((target(set))), apply_to = function))
#define V16_TARGET_END V16_PRAGMA(clang attribute pop)
#else
#define V16_TARGET_BEGIN(set) V16_PRAGMA(GCC push_options) V16_PRAGMA(GCC target(set))
#define V16_TARGET_END        V16_PRAGMA(GCC pop_options)
#endif

/* y from up to four operands; y[0] alone counts for `sum` and `hmax`. */
typedef void v16_case_fn(const float a[16], const float b[16], const float c[16], const float d[16],
                         float y[16]);

struct v16_case {
    const char *name;
    v16_case_fn *run;
};

struct v16_table {
    const char *name;
    uint32_t isa;
    const struct v16_case *operations, *functions;          /* ended by a NULL name */
    void (*copy_n)(const float *from, float *to, size_t n); /* v_load_n, v_store_n */
    void (*load_n)(const float *from, float y[16], size_t n);
    void (*load_f16)(const uint16_t *from, float y[16], size_t n);
    void (*load_bf16)(const uint16_t *from, float y[16], size_t n);
};

/* The tables that this machine can run, the scalar one first. */
size_t v16_tables(const struct v16_table *tables[4]);

/* The function `name` of a table; fails the test when there is none. */
v16_case_fn *v16_function(const struct v16_table *table, const char *name);

#endif
