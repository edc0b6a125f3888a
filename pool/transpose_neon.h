/* A 4 x 4 transpose in q registers. */
#ifndef RP_POOL_TRANSPOSE_NEON_H
#define RP_POOL_TRANSPOSE_NEON_H

#include <arm_neon.h>
#include <stddef.h>

/* to[16 c + r] = from[ld r + c] for r, c < 4. */
static inline __attribute__((always_inline)) void transpose_block(float *to, const float *from,
                                                                  size_t ld)
{
    const float32x4_t a = vld1q_f32(from), b = vld1q_f32(from + ld), c = vld1q_f32(from + 2 * ld),
                      d = vld1q_f32(from + 3 * ld);
    const float32x4_t ac = vzip1q_f32(a, c), bd = vzip1q_f32(b, d);
    const float32x4_t ac2 = vzip2q_f32(a, c), bd2 = vzip2q_f32(b, d);
    vst1q_f32(to, vzip1q_f32(ac, bd));
    vst1q_f32(to + 16, vzip2q_f32(ac, bd));
    vst1q_f32(to + 32, vzip1q_f32(ac2, bd2));
    vst1q_f32(to + 48, vzip2q_f32(ac2, bd2));
}

#endif
