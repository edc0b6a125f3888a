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
        const v16 r = n == 16 ? v_load(residual) : v_load_n(residual, n);
        x = multiply ? v_mul(x, r) : v_add(x, r);
    }
    if (n == 16)
        v_store(c, x);
    else
        v_store_n(c, x, n);
}

#endif
