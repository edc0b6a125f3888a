/* v16 as a plain array: the reference that the other instruction sets are held to. */
#ifndef RP_POOL_V16_SCALAR_H
#define RP_POOL_V16_SCALAR_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    float f[16];
} v16;

typedef struct {
    int32_t i[16];
} v16i;

/* One statement for each lane l of the result r. */
#define RP_V16_LANES(type, statement)                                                              \
    type r;                                                                                        \
    for (int l = 0; l < 16; l++)                                                                   \
        statement;                                                                                 \
    return r

static inline uint32_t v16_bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float v16_float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Two's complement wrap-around, as the vector instructions do it. */
static inline int32_t v16_wrap(uint32_t u)
{
    int32_t i;
    memcpy(&i, &u, sizeof i);
    return i;
}

RP_V16_FN v16 v_load(const float *p)
{
    v16 r;
    memcpy(r.f, p, sizeof r.f);
    return r;
}

RP_V16_FN void v_store(float *p, v16 v)
{
    memcpy(p, v.f, sizeof v.f);
}

RP_V16_FN v16 v_load_n(const float *p, size_t n)
{
    v16 r = {{0}};
    for (size_t l = 0; l < n; l++)
        r.f[l] = p[l];
    return r;
}

RP_V16_FN void v_store_n(float *p, v16 v, size_t n)
{
    for (size_t l = 0; l < n; l++)
        p[l] = v.f[l];
}

RP_V16_FN v16 v_set1(float x)
{
    RP_V16_LANES(v16, r.f[l] = x);
}

RP_V16_FN v16 v_zero(void)
{
    return v_set1(0.0f);
}

/* Integer code only, so that neither flush-to-zero nor denormals-are-zero can reach it.  A denormal
 * m * 2^-24 is shifted up until its leading one is where a normal number has it.  A signalling NaN
 * comes out quiet, as from the conversion instructions. */
static inline float v16_widen_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 0x1fu;
    uint32_t m = h & 0x3ffu;
    if (exponent == 31)
        return v16_float_of(sign | 0x7f800000u | m << 13 | (m ? 0x00400000u : 0u));
    if (exponent == 0) {
        if (m == 0)
            return v16_float_of(sign);
        for (exponent = 1; !(m & 0x400u); exponent--)
            m <<= 1;
        m &= 0x3ffu;
    }
    return v16_float_of(sign | (exponent + 112u) << 23 | m << 13);
}

RP_V16_FN v16 v_load_f16(const uint16_t *p, size_t n)
{
    v16 r = {{0}};
    for (size_t l = 0; l < n; l++)
        r.f[l] = v16_widen_f16(p[l]);
    return r;
}

RP_V16_FN v16 v_load_bf16(const uint16_t *p, size_t n)
{
    v16 r = {{0}};
    for (size_t l = 0; l < n; l++)
        r.f[l] = v16_float_of((uint32_t)p[l] << 16);
    return r;
}

RP_V16_FN v16 v_add(v16 a, v16 b)
{
    RP_V16_LANES(v16, r.f[l] = a.f[l] + b.f[l]);
}

RP_V16_FN v16 v_sub(v16 a, v16 b)
{
    RP_V16_LANES(v16, r.f[l] = a.f[l] - b.f[l]);
}

RP_V16_FN v16 v_mul(v16 a, v16 b)
{
    RP_V16_LANES(v16, r.f[l] = a.f[l] * b.f[l]);
}

RP_V16_FN v16 v_div(v16 a, v16 b)
{
    RP_V16_LANES(v16, r.f[l] = a.f[l] / b.f[l]);
}

RP_V16_FN v16 v_sqrt(v16 a)
{
    RP_V16_LANES(v16, r.f[l] = sqrtf(a.f[l]));
}

RP_V16_FN v16 v_fma(v16 a, v16 b, v16 c)
{
    RP_V16_LANES(v16, r.f[l] = fmaf(a.f[l], b.f[l], c.f[l]));
}

RP_V16_FN v16 v_fnma(v16 a, v16 b, v16 c)
{
    RP_V16_LANES(v16, r.f[l] = fmaf(-a.f[l], b.f[l], c.f[l]));
}

RP_V16_FN v16 v_max(v16 a, v16 b)
{
    RP_V16_LANES(v16, r.f[l] = a.f[l] > b.f[l] ? a.f[l] : b.f[l]);
}

RP_V16_FN v16 v_min(v16 a, v16 b)
{
    RP_V16_LANES(v16, r.f[l] = a.f[l] < b.f[l] ? a.f[l] : b.f[l]);
}

RP_V16_FN v16 v_sel_lt(v16 a, v16 b, v16 x, v16 y)
{
    RP_V16_LANES(v16, r.f[l] = a.f[l] < b.f[l] ? x.f[l] : y.f[l]);
}

RP_V16_FN v16 v_sel_le(v16 a, v16 b, v16 x, v16 y)
{
    RP_V16_LANES(v16, r.f[l] = a.f[l] <= b.f[l] ? x.f[l] : y.f[l]);
}

RP_V16_FN v16 v_sel_nan(v16 a, v16 x, v16 y)
{
    RP_V16_LANES(v16, r.f[l] = a.f[l] != a.f[l] ? x.f[l] : y.f[l]);
}

RP_V16_FN v16i v_bits(v16 v)
{
    v16i r;
    memcpy(r.i, v.f, sizeof r.i);
    return r;
}

RP_V16_FN v16 v_from_bits(v16i i)
{
    v16 r;
    memcpy(r.f, i.i, sizeof r.f);
    return r;
}

RP_V16_FN v16i vi_set1(int32_t x)
{
    RP_V16_LANES(v16i, r.i[l] = x);
}

RP_V16_FN v16i vi_add(v16i a, v16i b)
{
    RP_V16_LANES(v16i, r.i[l] = v16_wrap((uint32_t)a.i[l] + (uint32_t)b.i[l]));
}

RP_V16_FN v16i vi_sub(v16i a, v16i b)
{
    RP_V16_LANES(v16i, r.i[l] = v16_wrap((uint32_t)a.i[l] - (uint32_t)b.i[l]));
}

RP_V16_FN v16i vi_mul(v16i a, v16i b)
{
    RP_V16_LANES(v16i, r.i[l] = v16_wrap((uint32_t)a.i[l] * (uint32_t)b.i[l]));
}

RP_V16_FN v16i vi_and(v16i a, v16i b)
{
    RP_V16_LANES(v16i, r.i[l] = a.i[l] & b.i[l]);
}

RP_V16_FN v16i vi_or(v16i a, v16i b)
{
    RP_V16_LANES(v16i, r.i[l] = a.i[l] | b.i[l]);
}

RP_V16_FN v16i vi_xor(v16i a, v16i b)
{
    RP_V16_LANES(v16i, r.i[l] = a.i[l] ^ b.i[l]);
}

RP_V16_FN v16i vi_shl(v16i a, int c)
{
    RP_V16_LANES(v16i, r.i[l] = v16_wrap((uint32_t)a.i[l] << c));
}

RP_V16_FN v16i vi_shr(v16i a, int c)
{
    RP_V16_LANES(v16i, r.i[l] = v16_wrap((uint32_t)a.i[l] >> c));
}

/* >> of a negative number is arithmetic in every compiler that this builds with. */
RP_V16_FN v16i vi_sar(v16i a, int c)
{
    RP_V16_LANES(v16i, r.i[l] = a.i[l] >> c);
}

RP_V16_FN v16i v_to_i(v16 v)
{
    RP_V16_LANES(v16i, r.i[l] = (int32_t)v.f[l]);
}

RP_V16_FN v16 vi_to_f(v16i i)
{
    RP_V16_LANES(v16, r.f[l] = (float)i.i[l]);
}

RP_V16_FN void vi_store_u8(uint8_t *p, v16i i)
{
    for (int l = 0; l < 16; l++)
        p[l] = (uint8_t)i.i[l];
}

RP_V16_FN float v_sum(v16 v)
{
    for (int half = 8; half; half /= 2) {
        for (int l = 0; l < half; l++)
            v.f[l] = v.f[l] + v.f[l + half];
    }
    return v.f[0];
}

RP_V16_FN v16 v_swap_pairs(v16 a)
{
    RP_V16_LANES(v16, r.f[l] = a.f[l ^ 1]);
}

RP_V16_FN float v_hmax(v16 v)
{
    for (int half = 8; half; half /= 2) {
        for (int l = 0; l < half; l++)
            v.f[l] = v.f[l] > v.f[l + half] ? v.f[l] : v.f[l + half];
    }
    return v.f[0];
}

#undef RP_V16_LANES

#endif
