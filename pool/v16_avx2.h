/* v16 as two ymm registers: lanes 0-7 in lo, 8-15 in hi.  Needs AVX2, FMA and F16C. */
#ifndef RP_POOL_V16_AVX2_H
#define RP_POOL_V16_AVX2_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    __m256 lo, hi;
} v16;

typedef struct {
    __m256i lo, hi;
} v16i;

#define RP_V16_MAP1(type, f, a)       ((type){f((a).lo), f((a).hi)})
#define RP_V16_MAP2(type, f, a, b)    ((type){f((a).lo, (b).lo), f((a).hi, (b).hi)})
#define RP_V16_MAP3(type, f, a, b, c) ((type){f((a).lo, (b).lo, (c).lo), f((a).hi, (b).hi, (c).hi)})

RP_V16_FN v16 v_load(const float *p)
{
    return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

RP_V16_FN void v_store(float *p, v16 v)
{
    _mm256_storeu_ps(p, v.lo);
    _mm256_storeu_ps(p + 8, v.hi);
}

/* All ones in the first n lanes: a window into sixteen -1 followed by sixteen 0. */
RP_V16_FN v16i v16_mask(size_t n)
{
    static const int32_t window[32] = {-1, -1, -1, -1, -1, -1, -1, -1,
                                       -1, -1, -1, -1, -1, -1, -1, -1};
    const int32_t *w = window + 16 - n;
    return (v16i){_mm256_loadu_si256((const __m256i *)w),
                  _mm256_loadu_si256((const __m256i *)(w + 8))};
}

/* Masked moves neither touch nor fault on the lanes that are masked off.  The upper half is
 * addressed only when it has lanes, so that no pointer past the end of an array is made. */
RP_V16_FN v16 v_load_n(const float *p, size_t n)
{
    v16i m = v16_mask(n);
    return (v16){_mm256_maskload_ps(p, m.lo),
                 n > 8 ? _mm256_maskload_ps(p + 8, m.hi) : _mm256_setzero_ps()};
}

RP_V16_FN void v_store_n(float *p, v16 v, size_t n)
{
    v16i m = v16_mask(n);
    _mm256_maskstore_ps(p, m.lo, v.lo);
    if (n > 8)
        _mm256_maskstore_ps(p + 8, m.hi, v.hi);
}

RP_V16_FN v16 v_set1(float x)
{
    return (v16){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}

RP_V16_FN v16 v_zero(void)
{
    return (v16){_mm256_setzero_ps(), _mm256_setzero_ps()};
}

/* n halves in a register, the rest zero. */
RP_V16_FN __m256i v16_halves(const uint16_t *p, size_t n)
{
    if (n == 16)
        return _mm256_loadu_si256((const __m256i *)p);
    uint16_t part[16] = {0};
    memcpy(part, p, n * sizeof *p);
    return _mm256_loadu_si256((const __m256i *)part);
}

/* VCVTPH2PS takes no notice of MXCSR.DAZ, and no result of it is denormal. */
RP_V16_FN v16 v_load_f16(const uint16_t *p, size_t n)
{
    __m256i h = v16_halves(p, n);
    return (v16){_mm256_cvtph_ps(_mm256_castsi256_si128(h)),
                 _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
}

RP_V16_FN v16 v_load_bf16(const uint16_t *p, size_t n)
{
    __m256i h = v16_halves(p, n);
    __m256i lo = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(h));
    __m256i hi = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(h, 1));
    return (v16){_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)),
                 _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
}

RP_V16_FN v16 v_add(v16 a, v16 b)
{
    return RP_V16_MAP2(v16, _mm256_add_ps, a, b);
}

RP_V16_FN v16 v_sub(v16 a, v16 b)
{
    return RP_V16_MAP2(v16, _mm256_sub_ps, a, b);
}

RP_V16_FN v16 v_mul(v16 a, v16 b)
{
    return RP_V16_MAP2(v16, _mm256_mul_ps, a, b);
}

RP_V16_FN v16 v_div(v16 a, v16 b)
{
    return RP_V16_MAP2(v16, _mm256_div_ps, a, b);
}

RP_V16_FN v16 v_sqrt(v16 a)
{
    return RP_V16_MAP1(v16, _mm256_sqrt_ps, a);
}

RP_V16_FN v16 v_fma(v16 a, v16 b, v16 c)
{
    return RP_V16_MAP3(v16, _mm256_fmadd_ps, a, b, c);
}

RP_V16_FN v16 v_fnma(v16 a, v16 b, v16 c)
{
    return RP_V16_MAP3(v16, _mm256_fnmadd_ps, a, b, c);
}

RP_V16_FN v16 v_max(v16 a, v16 b)
{
    return RP_V16_MAP2(v16, _mm256_max_ps, a, b);
}

RP_V16_FN v16 v_min(v16 a, v16 b)
{
    return RP_V16_MAP2(v16, _mm256_min_ps, a, b);
}

RP_V16_FN v16 v_sel_lt(v16 a, v16 b, v16 x, v16 y)
{
    return (v16){_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
                 _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}

RP_V16_FN v16 v_sel_le(v16 a, v16 b, v16 x, v16 y)
{
    return (v16){_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LE_OQ)),
                 _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LE_OQ))};
}

RP_V16_FN v16 v_sel_nan(v16 a, v16 x, v16 y)
{
    return (v16){_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q)),
                 _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q))};
}

RP_V16_FN v16i v_bits(v16 v)
{
    return RP_V16_MAP1(v16i, _mm256_castps_si256, v);
}

RP_V16_FN v16 v_from_bits(v16i i)
{
    return RP_V16_MAP1(v16, _mm256_castsi256_ps, i);
}

RP_V16_FN v16i vi_set1(int32_t x)
{
    return (v16i){_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}

RP_V16_FN v16i vi_add(v16i a, v16i b)
{
    return RP_V16_MAP2(v16i, _mm256_add_epi32, a, b);
}

RP_V16_FN v16i vi_sub(v16i a, v16i b)
{
    return RP_V16_MAP2(v16i, _mm256_sub_epi32, a, b);
}

RP_V16_FN v16i vi_mul(v16i a, v16i b)
{
    return RP_V16_MAP2(v16i, _mm256_mullo_epi32, a, b);
}

RP_V16_FN v16i vi_and(v16i a, v16i b)
{
    return RP_V16_MAP2(v16i, _mm256_and_si256, a, b);
}

RP_V16_FN v16i vi_or(v16i a, v16i b)
{
    return RP_V16_MAP2(v16i, _mm256_or_si256, a, b);
}

RP_V16_FN v16i vi_xor(v16i a, v16i b)
{
    return RP_V16_MAP2(v16i, _mm256_xor_si256, a, b);
}

#define vi_shl(a, c) ((v16i){_mm256_slli_epi32((a).lo, (c)), _mm256_slli_epi32((a).hi, (c))})
#define vi_shr(a, c) ((v16i){_mm256_srli_epi32((a).lo, (c)), _mm256_srli_epi32((a).hi, (c))})
#define vi_sar(a, c) ((v16i){_mm256_srai_epi32((a).lo, (c)), _mm256_srai_epi32((a).hi, (c))})

RP_V16_FN v16i v_to_i(v16 v)
{
    return RP_V16_MAP1(v16i, _mm256_cvttps_epi32, v);
}

RP_V16_FN v16 vi_to_f(v16i i)
{
    return RP_V16_MAP1(v16, _mm256_cvtepi32_ps, i);
}

RP_V16_FN void vi_store_u8(uint8_t *p, v16i i)
{
    /* Packing works within halves of 128 bits: dwords of words come out as lo0 hi0 lo1 hi1. */
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(i.lo, i.hi), 0xd8);
    _mm_storeu_si128((__m128i *)(void *)p, _mm_packus_epi16(_mm256_castsi256_si128(words),
                                                            _mm256_extracti128_si256(words, 1)));
}

RP_V16_FN float v_sum(v16 v)
{
    __m256 t8 = _mm256_add_ps(v.lo, v.hi);
    __m128 t4 = _mm_add_ps(_mm256_castps256_ps128(t8), _mm256_extractf128_ps(t8, 1));
    __m128 t2 = _mm_add_ps(t4, _mm_movehl_ps(t4, t4));
    return _mm_cvtss_f32(_mm_add_ss(t2, _mm_movehdup_ps(t2)));
}

RP_V16_FN v16 v_swap_pairs(v16 a)
{
    return (v16){_mm256_permute_ps(a.lo, 0xb1), _mm256_permute_ps(a.hi, 0xb1)};
}

RP_V16_FN float v_hmax(v16 v)
{
    __m256 t8 = _mm256_max_ps(v.lo, v.hi);
    __m128 t4 = _mm_max_ps(_mm256_castps256_ps128(t8), _mm256_extractf128_ps(t8, 1));
    __m128 t2 = _mm_max_ps(t4, _mm_movehl_ps(t4, t4));
    return _mm_cvtss_f32(_mm_max_ss(t2, _mm_movehdup_ps(t2)));
}

#undef RP_V16_MAP1
#undef RP_V16_MAP2
#undef RP_V16_MAP3

#endif
