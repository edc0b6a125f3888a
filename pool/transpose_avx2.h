/* An 8 x 8 transpose in ymm registers, for AVX2 and AVX-512. */
#ifndef RP_POOL_TRANSPOSE_AVX2_H
#define RP_POOL_TRANSPOSE_AVX2_H

#include <immintrin.h>
#include <stddef.h>

/* to[16 c + r] = from[ld r + c] for r, c < 8.  The loads of half rows do the exchange of halves, so
 * that the shuffles stay within them. */
static inline __attribute__((always_inline)) void transpose_block(float *to, const float *from,
                                                                  size_t ld)
{
    __m256 r[8], t[8];

    for (int i = 0; i < 4; i++) { /* rows i and i+4: columns 0-3, then columns 4-7 */
        const float *a = from + (size_t)i * ld, *b = from + (size_t)(i + 4) * ld;
        r[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(a)), _mm_loadu_ps(b), 1);
        r[i + 4] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(a + 4)),
                                        _mm_loadu_ps(b + 4), 1);
    }

    for (int h = 0; h < 8; h += 4) {
        t[h] = _mm256_unpacklo_ps(r[h], r[h + 1]);
        t[h + 1] = _mm256_unpackhi_ps(r[h], r[h + 1]);
        t[h + 2] = _mm256_unpacklo_ps(r[h + 2], r[h + 3]);
        t[h + 3] = _mm256_unpackhi_ps(r[h + 2], r[h + 3]);
        float *c = to + 16 * h;
        _mm256_storeu_ps(c, _mm256_shuffle_ps(t[h], t[h + 2], 0x44));
        _mm256_storeu_ps(c + 16, _mm256_shuffle_ps(t[h], t[h + 2], 0xee));
        _mm256_storeu_ps(c + 32, _mm256_shuffle_ps(t[h + 1], t[h + 3], 0x44));
        _mm256_storeu_ps(c + 48, _mm256_shuffle_ps(t[h + 1], t[h + 3], 0xee));
    }
}

#endif
