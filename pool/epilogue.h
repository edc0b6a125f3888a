/* How a product ends, the same for FP32 and INT8: a tile's sums through the activation, the
 * residual added (or multiplied with) last, stored to as many columns as there are. */
#ifndef RP_POOL_EPILOGUE_H
#define RP_POOL_EPILOGUE_H

#include "pool/v16.h"
#include "pool/vmath.h"

#include <stdbool.h>

/* X(which) for each RP_ACT_which.  A kernel makes a function for each of them, and no one function
 * with them all: that one takes compilers long. */
#define RP_EACH_ACTIVATION(X) X(NONE) X(GELU) X(GELU_TANH) X(RELU) X(SILU) X(TANH) X(SIGMOID)

/* x + residual, or times it, to the first n columns (1..16) of c.  The residual may be NULL and may
 * be c. */
RP_V16_FN void v_store_result(float *c, v16 x, const float *residual, bool multiply, size_t n)
{
    if (residual) {
        const v16 r = v_load_some(residual, n);
        x = multiply ? v_mul(x, r) : v_add(x, r);
    }
    v_store_some(c, x, n);
}

/* Where a strip of 1..16 columns of results goes. */
struct rp_result {
    float *c;
    size_t ldc;
    const float *residual; /* as of v_store_result */
    size_t ld_residual;
    bool multiply;
    size_t n_rows, n_cols;
};

/* Rows [i, i + count) of it, from what x has before the activation. */
RP_V16_FN void v_store_results(const struct rp_result *to, rp_activation activation, v16 *x,
                               size_t i, const size_t count)
{
    v_activate_each(activation, x, count);
    V_EACH (j, count)
        v_store_result(to->c + (i + j) * to->ldc, x[j],
                       to->residual ? to->residual + (i + j) * to->ld_residual : NULL, to->multiply,
                       to->n_cols);
}

/* Defines finishes[], a function of each activation that finishes a struct strip.  That has a
 * struct rp_result `to`, and take_rows(strip, i, count, x) gives rows [i, i + count) of its sums.
 */
#define RP_FINISH(which)                                                                           \
    static __attribute__((noinline)) void finish_##which(const struct strip *strip)                \
    {                                                                                              \
        const struct strip s = *strip; /* no store to C can change this one */                     \
        v16 x[V_GROUP_MAX];                                                                        \
        size_t i = 0;                                                                              \
        for (; i + V_GROUP <= s.to.n_rows; i += V_GROUP) {                                         \
            take_rows(&s, i, V_GROUP, x);                                                          \
            v_store_results(&s.to, RP_ACT_##which, x, i, V_GROUP);                                 \
        }                                                                                          \
        for (; i < s.to.n_rows; i++) {                                                             \
            take_rows(&s, i, 1, x);                                                                \
            v_store_results(&s.to, RP_ACT_##which, x, i, 1);                                       \
        }                                                                                          \
    }
#define RP_FINISH_ENTRY(which) [RP_ACT_##which] = finish_##which,
#define RP_FINISHES                                                                                \
    RP_EACH_ACTIVATION(RP_FINISH)                                                                  \
    static void (*const finishes[])(const struct strip *) = {RP_EACH_ACTIVATION(RP_FINISH_ENTRY)};

#endif
