/* What the NEON kernels load. */
#ifndef RP_QGEMM_DOT_NEON_H
#define RP_QGEMM_DOT_NEON_H

#include "pool/v16.h"

/* Four weights of columns 0-3, 4-7, 8-11, 12-15. */
struct line {
    int8x16_t a, b, c, d;
};

RP_V16_FN struct line load_line(const uint8_t *p)
{
    const int8_t *line = (const int8_t *)p;
    return (struct line){vld1q_s8(line), vld1q_s8(line + 16), vld1q_s8(line + 32),
                         vld1q_s8(line + 48)};
}

#endif
