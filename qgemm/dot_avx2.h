/* What the kernels on ymm load. */
#ifndef RP_QGEMM_DOT_AVX2_H
#define RP_QGEMM_DOT_AVX2_H

#include "pool/v16.h"

RP_V16_FN v16i load_line(const uint8_t *p)
{
    const __m256i *line = (const __m256i *)(const void *)p;
    return (v16i){_mm256_load_si256(line), _mm256_load_si256(line + 1)};
}

/* Four bytes of a row, in every lane. */
RP_V16_FN __m256i broadcast4(const uint8_t *q)
{
    int32_t x;
    memcpy(&x, q, sizeof x);
    return _mm256_set1_epi32(x);
}

#endif
