/* v16: sixteen f32 lanes, the unit in which the numeric contract is written.
 *
 * Every kernel outside the GEMM register tiles is written once against this type and compiled once
 * per instruction set: a plain array (scalar), two ymm (AVX2), one zmm (AVX-512), four q registers
 * (NEON).  Lane i of a result depends on lane i of the operands by one IEEE operation, the same in
 * all of them, and sums across lanes go through one fixed tree; so equal bits on every machine are
 * a property of the source, not of luck.
 *
 * A translation unit says which one it is before it includes this file, with one of
 * RP_V16_SCALAR, RP_V16_AVX2, RP_V16_AVX512, RP_V16_NEON.
 *
 * The operations (all static inline; v = v16, i = v16i, sixteen i32):
 *
 *   load, store  v_load(p), v_store(p, v);  v_load_n(p, n), v_store_n(p, v, n): only the first n
 *                lanes are touched in memory, 0 <= n <= 16, the others load as 0;
 *                v_load_f16(p, n), v_load_bf16(p, n): n halves (uint16_t), widened exactly;
 *                v_set1(x), v_zero()
 *
 *   arithmetic   v_add, v_sub, v_mul, v_div, v_sqrt;
 *                v_fma(a, b, c) = a*b + c and v_fnma(a, b, c) = c - a*b, rounded once
 *
 *   choice       v_max(a, b) = a > b ? a : b and v_min(a, b) = a < b ? a : b, so b when either is
 *                NaN;  v_sel_lt(a, b, x, y) = a < b ? x : y, v_sel_le likewise (false on NaN);
 *                v_sel_nan(a, x, y) = a is NaN ? x : y
 *
 *   bits         v_bits(v) -> i, v_from_bits(i);  v_abs, v_neg, v_xor_sign(a, s);
 *                vi_set1, vi_add, vi_sub, vi_mul (the low 32 bits), vi_and, vi_or, vi_xor;
 *                vi_shl(i, c), vi_sar(i, c), vi_shr(i, c) with constant counts 1..31;
 *                v_to_i(v): v holds integers of magnitude < 2^31;  vi_to_f(i), to nearest even;
 *                v_store_u8(p, a, b, c, d): 64 bytes, each lane rounded to the nearest integer (to
 *                even) and kept within 0..255; NaN gives 0; magnitudes < 2^31
 *
 *   order        v_swap_pairs(v): lanes 2i and 2i+1 change places
 *
 *   across       v_sum(v): t[j] = v[j] + v[j+8], then +4, +2, +1;  v_hmax(v): the same with v_max
 *
 * The loops that reduce a row keep lane i mod 16 in lane i: the tail is loaded with v_load_n, whose
 * zeros do not move a sum.
 */
#ifndef RP_POOL_V16_H
#define RP_POOL_V16_H

/* Inlined also without optimisation: a v16 must not travel through memory. */
#define RP_V16_FN static inline __attribute__((always_inline))

#if defined(RP_V16_SCALAR)
#include "pool/v16_scalar.h"
#elif defined(RP_V16_AVX2)
#include "pool/v16_avx2.h"
#elif defined(RP_V16_AVX512)
#include "pool/v16_avx512.h"
#elif defined(RP_V16_NEON)
#include "pool/v16_neon.h"
#else
#error "define RP_V16_SCALAR, RP_V16_AVX2, RP_V16_AVX512 or RP_V16_NEON before including pool/v16.h"
#endif

/* How many values V_GROUP (how many to interleave, for speed) is at most. */
#define V_GROUP_MAX 4

/* What is made of the operations above, the same for all. */

/* The first n lanes in memory, 0 <= n <= 16, without a mask where all are there. */
RP_V16_FN v16 v_load_some(const float *p, size_t n)
{
    return n == 16 ? v_load(p) : v_load_n(p, n);
}

RP_V16_FN void v_store_some(float *p, v16 v, size_t n)
{
    if (n == 16)
        v_store(p, v);
    else
        v_store_n(p, v, n);
}

RP_V16_FN v16 v_abs(v16 a)
{
    return v_from_bits(vi_and(v_bits(a), vi_set1(INT32_MAX)));
}

RP_V16_FN v16 v_neg(v16 a)
{
    return v_from_bits(vi_xor(v_bits(a), vi_set1(INT32_MIN)));
}

/* a, its sign turned where s is negative (-0 and NaNs with the sign bit included). */
RP_V16_FN v16 v_xor_sign(v16 a, v16 s)
{
    return v_from_bits(vi_xor(v_bits(a), vi_and(v_bits(s), vi_set1(INT32_MIN))));
}

#endif
