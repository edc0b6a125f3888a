/* v16 as one zmm register.  Needs AVX-512 F, BW, DQ and VL. */
#ifndef RP_POOL_V16_AVX512_H
#define RP_POOL_V16_AVX512_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

typedef __m512 v16;
typedef __m512i v16i;

RP_V16_FN __mmask16 v16_mask(size_t n)
{
    return (__mmask16)((1u << n) - 1u);
}

RP_V16_FN v16 v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

RP_V16_FN void v_store(float *p, v16 v)
{
    _mm512_storeu_ps(p, v);
}

/* Masked moves neither touch nor fault on the lanes that are masked off. */
RP_V16_FN v16 v_load_n(const float *p, size_t n)
{
    return _mm512_maskz_loadu_ps(v16_mask(n), p);
}

RP_V16_FN void v_store_n(float *p, v16 v, size_t n)
{
    _mm512_mask_storeu_ps(p, v16_mask(n), v);
}

RP_V16_FN v16 v_set1(float x)
{
    return _mm512_set1_ps(x);
}

RP_V16_FN v16 v_zero(void)
{
    return _mm512_setzero_ps();
}

/* VCVTPH2PS takes no notice of MXCSR.DAZ, and no result of it is denormal. */
RP_V16_FN v16 v_load_f16(const uint16_t *p, size_t n)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(v16_mask(n), p));
}

RP_V16_FN v16 v_load_bf16(const uint16_t *p, size_t n)
{
    __m512i h = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(v16_mask(n), p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(h, 16));
}

RP_V16_FN v16 v_add(v16 a, v16 b)
{
    return _mm512_add_ps(a, b);
}

RP_V16_FN v16 v_sub(v16 a, v16 b)
{
    return _mm512_sub_ps(a, b);
}

RP_V16_FN v16 v_mul(v16 a, v16 b)
{
    return _mm512_mul_ps(a, b);
}

RP_V16_FN v16 v_div(v16 a, v16 b)
{
    return _mm512_div_ps(a, b);
}

RP_V16_FN v16 v_sqrt(v16 a)
{
    return _mm512_sqrt_ps(a);
}

RP_V16_FN v16 v_fma(v16 a, v16 b, v16 c)
{
    return _mm512_fmadd_ps(a, b, c);
}

RP_V16_FN v16 v_fnma(v16 a, v16 b, v16 c)
{
    return _mm512_fnmadd_ps(a, b, c);
}

RP_V16_FN v16 v_max(v16 a, v16 b)
{
    return _mm512_max_ps(a, b);
}

RP_V16_FN v16 v_min(v16 a, v16 b)
{
    return _mm512_min_ps(a, b);
}

RP_V16_FN v16 v_sel_lt(v16 a, v16 b, v16 x, v16 y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}

RP_V16_FN v16 v_sel_le(v16 a, v16 b, v16 x, v16 y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LE_OQ), y, x);
}

RP_V16_FN v16 v_sel_nan(v16 a, v16 x, v16 y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), y, x);
}

RP_V16_FN v16i v_bits(v16 v)
{
    return _mm512_castps_si512(v);
}

RP_V16_FN v16 v_from_bits(v16i i)
{
    return _mm512_castsi512_ps(i);
}

RP_V16_FN v16i vi_set1(int32_t x)
{
    return _mm512_set1_epi32(x);
}

RP_V16_FN v16i vi_add(v16i a, v16i b)
{
    return _mm512_add_epi32(a, b);
}

RP_V16_FN v16i vi_sub(v16i a, v16i b)
{
    return _mm512_sub_epi32(a, b);
}

RP_V16_FN v16i vi_mul(v16i a, v16i b)
{
    return _mm512_mullo_epi32(a, b);
}

RP_V16_FN v16i vi_and(v16i a, v16i b)
{
    return _mm512_and_si512(a, b);
}

RP_V16_FN v16i vi_or(v16i a, v16i b)
{
    return _mm512_or_si512(a, b);
}

RP_V16_FN v16i vi_xor(v16i a, v16i b)
{
    return _mm512_xor_si512(a, b);
}

#define vi_shl(a, c) _mm512_slli_epi32((a), (c))
#define vi_shr(a, c) _mm512_srli_epi32((a), (c))
#define vi_sar(a, c) _mm512_srai_epi32((a), (c))

RP_V16_FN v16i v_to_i(v16 v)
{
    return _mm512_cvttps_epi32(v);
}

RP_V16_FN v16 vi_to_f(v16i i)
{
    return _mm512_cvtepi32_ps(i);
}

RP_V16_FN void vi_store_u8(uint8_t *p, v16i i)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(i));
}

RP_V16_FN float v_sum(v16 v)
{
    __m256 t8 = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 t4 = _mm_add_ps(_mm256_castps256_ps128(t8), _mm256_extractf128_ps(t8, 1));
    __m128 t2 = _mm_add_ps(t4, _mm_movehl_ps(t4, t4));
    return _mm_cvtss_f32(_mm_add_ss(t2, _mm_movehdup_ps(t2)));
}

RP_V16_FN v16 v_swap_pairs(v16 a)
{
    return _mm512_permute_ps(a, 0xb1);
}

RP_V16_FN float v_hmax(v16 v)
{
    __m256 t8 = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 t4 = _mm_max_ps(_mm256_castps256_ps128(t8), _mm256_extractf128_ps(t8, 1));
    __m128 t2 = _mm_max_ps(t4, _mm_movehl_ps(t4, t4));
    return _mm_cvtss_f32(_mm_max_ss(t2, _mm_movehdup_ps(t2)));
}

#endif
