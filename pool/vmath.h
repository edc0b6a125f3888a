/* Elementary functions over v16, the same bits on every instruction set.
 *
 * Only v_fma and its like are used, in one written order, so a result is a property of this source.
 * The polynomials are minimax fits made by tests/tools/fit_vmath.py.  The errors beside the
 * functions are the worst that bench/ulp.c found against libm in double precision; ULP are those of
 * the exact result.  tests/test_vmath.c holds the bounds and a digest of the bits.
 *
 *     exp      x = n ln 2 + r, |r| <= ln 2 / 2:   e^x = 2^n p(r)
 *     gelu     relu(x) - a h(a),  a = |x|,  h(a) = Phi(-a) = 2^-(1 + a Q(a))
 *
 * The second line is why gelu needs neither a division nor a branch: the logarithm of the normal
 * distribution's tail is nearly a parabola, so one polynomial holds on the whole axis and the
 * negative tail keeps its relative accuracy; x/2 (1 + erf) would lose it to cancellation.
 *
 * Integers come out of the rounding: adding 1.5 * 2^23 + b to a number of small magnitude leaves
 * the nearest integer plus b in the low bits of the sum; shifted left by 23 these are the exponent
 * of a power of two.
 *
 * A NaN gives a NaN.  Rounding is to nearest and denormals are kept, as the contract has it.
 */
#ifndef RP_POOL_VMATH_H
#define RP_POOL_VMATH_H

#include "pool/v16.h"

#include <rankplan/graph.h>

/* e^r for |r| <= ln 2 / 2, relative error 3e-9 before rounding. */
RP_V16_FN v16 v_exp_poly(v16 r)
{
    v16 p = v_set1(0x1.6a3fb8p-10f);
    p = v_fma(p, r, v_set1(0x1.1239ep-7f));
    p = v_fma(p, r, v_set1(0x1.5558bep-5f));
    p = v_fma(p, r, v_set1(0x1.555492p-3f));
    p = v_fma(p, r, v_set1(0x1.fffffcp-2f));
    p = v_fma(p, r, v_set1(1.0f));
    return v_fma(p, r, v_set1(1.0f));
}

/* x - n ln 2 with ln 2 in two parts; the first product is exact inside the fma. */
RP_V16_FN v16 v_exp_reduce(v16 x, v16 n)
{
    v16 r = v_fnma(n, v_set1(0x1.62e43p-1f), x);
    return v_fnma(n, v_set1(-0x1.05c61p-29f), r);
}

/* e^x for -87.33 <= x <= 88: one power of two does.  Elsewhere the result is of no use (but a NaN
 * stays). */
RP_V16_FN v16 v_exp_mid(v16 x)
{
    const v16 magic = v_set1(0x1.8p23f + 127.0f);
    v16 t = v_fma(x, v_set1(0x1.715476p+0f), magic);
    v16 r = v_exp_reduce(x, v_sub(t, magic));
    return v_mul(v_exp_poly(r), v_from_bits(vi_shl(v_bits(t), 23)));
}

/* e^x for x <= 0, for softmax: the same bits as v_exp where e^x >= 2^-126, and +0 below that (so
 * also at -inf).  exp(0) = 1 exactly.  For x > 0 it is v_exp_mid. */
RP_V16_FN v16 v_exp_neg(v16 x)
{
    return v_sel_lt(x, v_set1(-0x1.5d589ep+6f), v_zero(), v_exp_mid(x));
}

/* e^x, 0.891 ULP: +inf from 88.73 on, denormal results rounded once, +0 below -103.98.
 * The power of two is applied in two halves, so that neither leaves the range. */
RP_V16_FN v16 v_exp(v16 x)
{
    const v16 magic = v_set1(0x1.8p23f + 254.0f);
    x = v_min(v_set1(89.0f), v_max(v_set1(-104.0f), x));
    v16 t = v_fma(x, v_set1(0x1.715476p+0f), magic);
    v16 p = v_exp_poly(v_exp_reduce(x, v_sub(t, magic)));
    v16i half = vi_shr(v_bits(t), 1);
    v16i rest = vi_sub(v_bits(t), half);
    p = v_mul(p, v_from_bits(vi_shl(half, 23)));
    return v_mul(p, v_from_bits(vi_shl(rest, 23)));
}

/* ln x for 2^-126 <= x < inf, 0.81 ULP.  Elsewhere the result is of no use (but a NaN stays).
 * x = 2^e m with sqrt(1/2) <= m < sqrt(2):  e ln 2 + ln m, with ln 2 in two parts of which e times
 * the first is exact. */
RP_V16_FN v16 v_log(v16 x)
{
    v16i e = vi_sar(vi_sub(v_bits(x), vi_set1(0x3f3504f3)), 23);
    v16 f = v_sub(v_from_bits(vi_sub(v_bits(x), vi_shl(e, 23))), v_set1(1.0f));
    v16 n = vi_to_f(e), square = v_mul(f, f);
    v16 p = v_set1(0x1.145ba8p-4f);
    p = v_fma(p, f, v_set1(-0x1.ddf756p-4f));
    p = v_fma(p, f, v_set1(0x1.e6c386p-4f));
    p = v_fma(p, f, v_set1(-0x1.fc2a7p-4f));
    p = v_fma(p, f, v_set1(0x1.233b92p-3f));
    p = v_fma(p, f, v_set1(-0x1.555c3cp-3f));
    p = v_fma(p, f, v_set1(0x1.99a476p-3f));
    p = v_fma(p, f, v_set1(-0x1.000006p-2f));
    p = v_fma(p, f, v_set1(0x1.555548p-2f));
    v16 rest = v_fma(n, v_set1(-0x1.bd0106p-13f), v_mul(v_mul(square, f), p));
    rest = v_add(f, v_fma(square, v_set1(-0.5f), rest));
    return v_sel_nan(x, x, v_fma(n, v_set1(0x1.63p-1f), rest));
}

/* ln(1 + x) for 0 <= x < inf, 1.24 ULP.  Elsewhere the result is of no use (but a NaN stays).  What
 * 1 + x loses when it is rounded comes back as a correction, so small x keep their accuracy. */
RP_V16_FN v16 v_log1p(v16 x)
{
    const v16 u = v_add(v_set1(1.0f), x);
    const v16 lost = v_sub(x, v_sub(u, v_set1(1.0f)));
    return v_add(v_log(u), v_div(lost, u));
}

/* ln(1 + e^x), 2.2 ULP: x itself from about 17 on, e^x from about -17 down, 0 where that is. */
RP_V16_FN v16 v_softplus(v16 x)
{
    const v16 below = v_log1p(v_exp(v_neg(v_abs(x))));
    return v_add(v_max(v_zero(), x), below);
}

/* Several values side by side.  A polynomial is one long chain of latencies, and a scheduler holds
 * only so many operations that wait: with their chains interleaved, a group of V_GROUP takes
 * little longer than one.  Elements never mix, so n moves no bit. */
#if defined(__clang__)
#define V_EACH(i, n) _Pragma("clang loop unroll(full)") for (size_t i = 0; i < (n); i++)
#else
#define V_EACH(i, n) _Pragma("GCC unroll 16") for (size_t i = 0; i < (n); i++)
#endif

/* 2^(a n - 1) for -126.5 < a n <= 0, and +0 where a n rounds to -126: the tail probabilities of
 * gelu and erf.  The exponent is never formed: its rest a n - round(a n) is one fma, rounded once.
 * n is overwritten with the result. */
RP_V16_FN void v_half_exp2_each(const v16 *a, v16 *n, const size_t count)
{
    static const float c[] = {0x1.3ce984p-7f, 0x1.c6b6d8p-5f, 0x1.ebf9cp-3f, 0x1.62e42ap-1f, 1.0f};
    const v16 magic = v_set1(0x1.8p23f + 126.0f);
    v16 t[V_GROUP_MAX], p[V_GROUP_MAX];
    V_EACH (i, count)
        t[i] = v_fma(a[i], n[i], magic);
    V_EACH (i, count)
        n[i] = v_fma(a[i], n[i], v_sub(magic, t[i]));
    V_EACH (i, count)
        p[i] = v_set1(0x1.5bdb78p-10f);
    V_EACH (k, sizeof c / sizeof *c)
        V_EACH (i, count)
            p[i] = v_fma(p[i], n[i], v_set1(c[k]));
    V_EACH (i, count)
        n[i] = v_mul(p[i], v_from_bits(vi_shl(v_bits(t[i]), 23)));
}

RP_V16_FN v16 v_half_exp2(v16 a, v16 n)
{
    v_half_exp2_each(&a, &n, 1);
    return n;
}

/* max(x, 0): relu(-0) = -0, and a NaN stays, which the other order of v_max would lose. */
RP_V16_FN v16 v_relu(v16 x)
{
    return v_max(v_zero(), x);
}

/* x/2 (1 + erf(x/sqrt 2)); gelu(-inf) = +0, gelu(-0) = -0.  1.2 ULP from 1 on, 3.7 between 0 and
 * 1, 5.8 between -1 and 0, 10.2 down to -3; below that the absolute error counts, which is at
 * most 3.5e-9 there and 8.5e-8 max(1, x) anywhere.  +0 from about -12.97 down. */
RP_V16_FN void v_gelu_each(v16 *x, const size_t count)
{
    static const float c[] = {0x1.3b2158p-22f,  -0x1.4cfe6ep-18f, 0x1.60d9ap-15f,
                              -0x1.56b936p-13f, -0x1.f2149cp-13f, 0x1.da226ap-8f,
                              -0x1.af2fdap-5f,  -0x1.d62d7cp-2f,  -0x1.26af38p+0f};
    v16 a[V_GROUP_MAX], n[V_GROUP_MAX];
    V_EACH (i, count)
        a[i] = v_min(v_set1(13.0f), v_abs(x[i]));
    V_EACH (i, count)
        n[i] = v_set1(-0x1.da7406p-28f);
    V_EACH (k, sizeof c / sizeof *c)
        V_EACH (i, count)
            n[i] = v_fma(n[i], a[i], v_set1(c[k]));
    v_half_exp2_each(a, n, count);
    V_EACH (i, count)
        x[i] = v_fnma(a[i], n[i], v_relu(x[i]));
}

RP_V16_FN v16 v_gelu(v16 x)
{
    v_gelu_each(&x, 1);
    return x;
}

/* 1.13 ULP.  erf below 1 by its series' minimax, beyond by its tail: 1 - 2^(a n). */
RP_V16_FN v16 v_erf(v16 x)
{
    v16 a = v_min(v_set1(4.0f), v_abs(x));
    v16 u = v_mul(a, a);
    v16 s = v_set1(0x1.4771fep-14f);
    s = v_fma(s, u, v_set1(-0x1.a3515ep-11f));
    s = v_fma(s, u, v_set1(0x1.53f224p-8f));
    s = v_fma(s, u, v_set1(-0x1.b7f71ap-6f));
    s = v_fma(s, u, v_set1(0x1.ce2ce6p-4f));
    s = v_fma(s, u, v_set1(-0x1.81273ep-2f));
    s = v_fma(s, u, v_set1(0x1.06eba8p-3f));
    s = v_fma(s, a, a);
    v16 n = v_set1(-0x1.5b297ap-19f);
    n = v_fma(n, a, v_set1(0x1.6d2c9ep-17f));
    n = v_fma(n, a, v_set1(0x1.6e74fep-12f));
    n = v_fma(n, a, v_set1(-0x1.47285ep-8f));
    n = v_fma(n, a, v_set1(0x1.161802p-5f));
    n = v_fma(n, a, v_set1(-0x1.3969dcp-3f));
    n = v_fma(n, a, v_set1(-0x1.d5337p-1f));
    n = v_fma(n, a, v_set1(-0x1.a0d772p+0f));
    v16 tail = v_fnma(v_set1(2.0f), v_half_exp2(a, n), v_set1(1.0f));
    return v_xor_sign(v_sel_lt(a, v_set1(1.0f), s, tail), x);
}

/* 1.36 ULP.  tanh below 5/8 by its series' minimax, beyond as 1 - 2/(e^2a + 1). */
RP_V16_FN v16 v_tanh(v16 x)
{
    v16 a = v_min(v_set1(10.0f), v_abs(x));
    v16 u = v_mul(a, a);
    v16 s = v_set1(-0x1.732bcep-8f);
    s = v_fma(s, u, v_set1(0x1.51904p-6f));
    s = v_fma(s, u, v_set1(-0x1.b82628p-5f));
    s = v_fma(s, u, v_set1(0x1.110684p-3f));
    s = v_fma(s, u, v_set1(-0x1.55553p-2f));
    s = v_fma(v_mul(s, u), a, a);
    v16 e = v_exp_mid(v_add(a, a));
    v16 tail = v_sub(v_set1(1.0f), v_div(v_set1(2.0f), v_add(e, v_set1(1.0f))));
    return v_xor_sign(v_sel_lt(a, v_set1(0.625f), s, tail), x);
}

/* 1/(1 + e^-x), from e^-|x| on both sides so that nothing overflows; 0 below
 * -87.33.  1.5 ULP on [-1, 1]. */
RP_V16_FN v16 v_sigmoid(v16 x)
{
    v16 e = v_exp_neg(v_neg(v_abs(x)));
    v16 top = v_sel_lt(x, v_zero(), e, v_set1(1.0f));
    return v_div(top, v_add(v_set1(1.0f), e));
}

/* relu(x) - a sigmoid(-y): x sigmoid(y) for an odd y(x) with y = y(a) of a = |x|. */
RP_V16_FN v16 v_gate(v16 x, v16 a, v16 y)
{
    v16 e = v_exp_neg(v_neg(y));
    v16 tail = v_div(e, v_add(v_set1(1.0f), e));
    return v_fnma(a, tail, v_relu(x));
}

/* x sigmoid(x); silu(-inf) = +0.  1.8 ULP above 0, 3.2 down to -5. */
RP_V16_FN v16 v_silu(v16 x)
{
    v16 a = v_min(v_set1(88.0f), v_abs(x));
    return v_gate(x, a, a);
}

/* x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) = x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3));
 * gelu_tanh(-inf) = +0.  1.9 ULP above 0, 13.5 down to -3. */
RP_V16_FN v16 v_gelu_tanh(v16 x)
{
    v16 a = v_min(v_set1(16.0f), v_abs(x));
    v16 c = v_fma(v_mul(a, a), v_set1(0x1.2444f2p-4f), v_set1(0x1.988454p+0f));
    return v_gate(x, a, v_mul(a, c));
}

/* The activation; a constant one costs no choice. */
RP_V16_FN v16 v_activate(rp_activation activation, v16 x)
{
    switch (activation) {
    case RP_ACT_NONE: break;
    case RP_ACT_GELU: return v_gelu(x);
    case RP_ACT_GELU_TANH: return v_gelu_tanh(x);
    case RP_ACT_RELU: return v_relu(x);
    case RP_ACT_SILU: return v_silu(x);
    case RP_ACT_TANH: return v_tanh(x);
    case RP_ACT_SIGMOID: return v_sigmoid(x);
    }
    return x;
}

/* The activation of `count` values, at most V_GROUP_MAX. */
RP_V16_FN void v_activate_each(rp_activation activation, v16 *x, const size_t count)
{
    if (activation == RP_ACT_GELU) {
        v_gelu_each(x, count);
        return;
    }
    V_EACH (i, count)
        x[i] = v_activate(activation, x[i]);
}

#endif
