/* v16 as four q registers: lanes 0-3 in a, 4-7 in b, 8-11 in c, 12-15 in d.  AArch64. */
#ifndef RP_POOL_V16_NEON_H
#define RP_POOL_V16_NEON_H

#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    float32x4_t a, b, c, d;
} v16;

typedef struct {
    int32x4_t a, b, c, d;
} v16i;

#define RP_V16_MAP1(type, f, x) ((type){f((x).a), f((x).b), f((x).c), f((x).d)})
#define RP_V16_MAP2(type, f, x, y)                                                                 \
    ((type){f((x).a, (y).a), f((x).b, (y).b), f((x).c, (y).c), f((x).d, (y).d)})
#define RP_V16_MAP3(type, f, x, y, z)                                                              \
    ((type){f((x).a, (y).a, (z).a), f((x).b, (y).b, (z).b), f((x).c, (y).c, (z).c),                \
            f((x).d, (y).d, (z).d)})

RP_V16_FN v16 v_load(const float *p)
{
    return (v16){vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)};
}

RP_V16_FN void v_store(float *p, v16 v)
{
    vst1q_f32(p, v.a);
    vst1q_f32(p + 4, v.b);
    vst1q_f32(p + 8, v.c);
    vst1q_f32(p + 12, v.d);
}

RP_V16_FN v16 v_load_n(const float *p, size_t n)
{
    if (n == 16)
        return v_load(p);
    float part[16] = {0};
    memcpy(part, p, n * sizeof *p);
    return v_load(part);
}

RP_V16_FN void v_store_n(float *p, v16 v, size_t n)
{
    float part[16];
    v_store(part, v);
    memcpy(p, part, n * sizeof *p);
}

RP_V16_FN v16 v_set1(float x)
{
    float32x4_t v = vdupq_n_f32(x);
    return (v16){v, v, v, v};
}

RP_V16_FN v16 v_zero(void)
{
    return v_set1(0.0f);
}

/* Conversions to single precision take no notice of FPCR.FZ16, and no result of them is denormal.
 */
RP_V16_FN v16 v_load_f16(const uint16_t *p, size_t n)
{
    uint16_t part[16] = {0};
    if (n < 16) {
        memcpy(part, p, n * sizeof *p);
        p = part;
    }
    float16x8_t lo = vreinterpretq_f16_u16(vld1q_u16(p));
    float16x8_t hi = vreinterpretq_f16_u16(vld1q_u16(p + 8));
    return (v16){vcvt_f32_f16(vget_low_f16(lo)), vcvt_high_f32_f16(lo),
                 vcvt_f32_f16(vget_low_f16(hi)), vcvt_high_f32_f16(hi)};
}

RP_V16_FN v16 v_load_bf16(const uint16_t *p, size_t n)
{
    uint16_t part[16] = {0};
    if (n < 16) {
        memcpy(part, p, n * sizeof *p);
        p = part;
    }
    uint16x8_t lo = vld1q_u16(p), hi = vld1q_u16(p + 8);
    return (v16){vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(lo), 16)),
                 vreinterpretq_f32_u32(vshll_high_n_u16(lo, 16)),
                 vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(hi), 16)),
                 vreinterpretq_f32_u32(vshll_high_n_u16(hi, 16))};
}

RP_V16_FN v16 v_add(v16 x, v16 y)
{
    return RP_V16_MAP2(v16, vaddq_f32, x, y);
}

RP_V16_FN v16 v_sub(v16 x, v16 y)
{
    return RP_V16_MAP2(v16, vsubq_f32, x, y);
}

RP_V16_FN v16 v_mul(v16 x, v16 y)
{
    return RP_V16_MAP2(v16, vmulq_f32, x, y);
}

RP_V16_FN v16 v_div(v16 x, v16 y)
{
    return RP_V16_MAP2(v16, vdivq_f32, x, y);
}

RP_V16_FN v16 v_sqrt(v16 x)
{
    return RP_V16_MAP1(v16, vsqrtq_f32, x);
}

/* The instruction has the addend first. */
RP_V16_FN v16 v_fma(v16 x, v16 y, v16 z)
{
    return RP_V16_MAP3(v16, vfmaq_f32, z, x, y);
}

RP_V16_FN v16 v_fnma(v16 x, v16 y, v16 z)
{
    return RP_V16_MAP3(v16, vfmsq_f32, z, x, y);
}

/* FMAX would return the NaN, and +0 for the larger of -0 and +0: compare and select instead. */
RP_V16_FN float32x4_t v16_max4(float32x4_t x, float32x4_t y)
{
    return vbslq_f32(vcgtq_f32(x, y), x, y);
}

RP_V16_FN float32x4_t v16_min4(float32x4_t x, float32x4_t y)
{
    return vbslq_f32(vcltq_f32(x, y), x, y);
}

RP_V16_FN v16 v_max(v16 x, v16 y)
{
    return RP_V16_MAP2(v16, v16_max4, x, y);
}

RP_V16_FN v16 v_min(v16 x, v16 y)
{
    return RP_V16_MAP2(v16, v16_min4, x, y);
}

#define RP_V16_SELECT(compare, p, q, x, y)                                                         \
    ((v16){vbslq_f32(compare((p).a, (q).a), (x).a, (y).a),                                         \
           vbslq_f32(compare((p).b, (q).b), (x).b, (y).b),                                         \
           vbslq_f32(compare((p).c, (q).c), (x).c, (y).c),                                         \
           vbslq_f32(compare((p).d, (q).d), (x).d, (y).d)})

RP_V16_FN v16 v_sel_lt(v16 p, v16 q, v16 x, v16 y)
{
    return RP_V16_SELECT(vcltq_f32, p, q, x, y);
}

RP_V16_FN v16 v_sel_le(v16 p, v16 q, v16 x, v16 y)
{
    return RP_V16_SELECT(vcleq_f32, p, q, x, y);
}

/* A NaN is what does not equal itself. */
RP_V16_FN v16 v_sel_nan(v16 p, v16 x, v16 y)
{
    return RP_V16_SELECT(vceqq_f32, p, p, y, x);
}

RP_V16_FN v16i v_bits(v16 x)
{
    return RP_V16_MAP1(v16i, vreinterpretq_s32_f32, x);
}

RP_V16_FN v16 v_from_bits(v16i x)
{
    return RP_V16_MAP1(v16, vreinterpretq_f32_s32, x);
}

RP_V16_FN v16i vi_set1(int32_t x)
{
    int32x4_t v = vdupq_n_s32(x);
    return (v16i){v, v, v, v};
}

RP_V16_FN v16i vi_add(v16i x, v16i y)
{
    return RP_V16_MAP2(v16i, vaddq_s32, x, y);
}

RP_V16_FN v16i vi_sub(v16i x, v16i y)
{
    return RP_V16_MAP2(v16i, vsubq_s32, x, y);
}

RP_V16_FN v16i vi_mul(v16i x, v16i y)
{
    return RP_V16_MAP2(v16i, vmulq_s32, x, y);
}

RP_V16_FN v16i vi_and(v16i x, v16i y)
{
    return RP_V16_MAP2(v16i, vandq_s32, x, y);
}

RP_V16_FN v16i vi_or(v16i x, v16i y)
{
    return RP_V16_MAP2(v16i, vorrq_s32, x, y);
}

RP_V16_FN v16i vi_xor(v16i x, v16i y)
{
    return RP_V16_MAP2(v16i, veorq_s32, x, y);
}

#define RP_V16_SHR4(x, n) vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(x), (n)))
#define vi_shl(x, n)                                                                               \
    ((v16i){vshlq_n_s32((x).a, (n)), vshlq_n_s32((x).b, (n)), vshlq_n_s32((x).c, (n)),             \
            vshlq_n_s32((x).d, (n))})
#define vi_shr(x, n)                                                                               \
    ((v16i){RP_V16_SHR4((x).a, n), RP_V16_SHR4((x).b, n), RP_V16_SHR4((x).c, n),                   \
            RP_V16_SHR4((x).d, n)})
#define vi_sar(x, n)                                                                               \
    ((v16i){vshrq_n_s32((x).a, (n)), vshrq_n_s32((x).b, (n)), vshrq_n_s32((x).c, (n)),             \
            vshrq_n_s32((x).d, (n))})

RP_V16_FN v16i v_to_i(v16 x)
{
    return RP_V16_MAP1(v16i, vcvtq_s32_f32, x);
}

RP_V16_FN v16 vi_to_f(v16i x)
{
    return RP_V16_MAP1(v16, vcvtq_f32_s32, x);
}

RP_V16_FN void vi_store_u8(uint8_t *p, v16i i)
{
    const uint16x8_t low =
        vcombine_u16(vmovn_u32(vreinterpretq_u32_s32(i.a)), vmovn_u32(vreinterpretq_u32_s32(i.b)));
    const uint16x8_t high =
        vcombine_u16(vmovn_u32(vreinterpretq_u32_s32(i.c)), vmovn_u32(vreinterpretq_u32_s32(i.d)));
    vst1q_u8(p, vcombine_u8(vmovn_u16(low), vmovn_u16(high)));
}

RP_V16_FN float v_sum(v16 v)
{
    float32x4_t t4 = vaddq_f32(vaddq_f32(v.a, v.c), vaddq_f32(v.b, v.d));
    float32x2_t t2 = vadd_f32(vget_low_f32(t4), vget_high_f32(t4));
    return vget_lane_f32(t2, 0) + vget_lane_f32(t2, 1);
}

RP_V16_FN v16 v_swap_pairs(v16 x)
{
    return RP_V16_MAP1(v16, vrev64q_f32, x);
}

RP_V16_FN float v_hmax(v16 v)
{
    float32x4_t t4 = v16_max4(v16_max4(v.a, v.c), v16_max4(v.b, v.d));
    float32x4_t t2 = v16_max4(t4, vextq_f32(t4, t4, 2));
    float x = vgetq_lane_f32(t2, 0), y = vgetq_lane_f32(t2, 1);
    return x > y ? x : y;
}

#undef RP_V16_MAP1
#undef RP_V16_MAP2
#undef RP_V16_MAP3
#undef RP_V16_SELECT

#endif
