/* NEON without dot products.  q - 128 is signed, and pair-bounded weights keep the sum of two of
 * its products within 128 * 128: smull, then addp in i16, then sadalp into i32.
 *
 * A tile of 4 rows and one panel is 16 accumulators, 4 registers for a line, one for an element of
 * Q and two products: 23 of 32.
 */
#define RP_V16_NEON
#define RP_QGEMM_MR         4
#define RP_QGEMM_ROWS(X, j) X(0, j) X(1, j) X(2, j) X(3, j)
#define RP_QGEMM_BASES(X)   X(0) X(1)
#define RP_QGEMM_WIDTH(h)   ((h) < 2 ? 4 : (h) < 3 ? 2 : 1)
#define RP_QGEMM_TILES(X)   X(1, 1) X(1, 4) X(2, 1) X(2, 2) X(3, 1) X(4, 1)
#define RP_QGEMM_STEP       1
#define RP_QGEMM_SHIFT      128
#define RP_QGEMM_PANELS_APART
#include "qgemm/dot_neon.h"

typedef struct line qgemm_lines;
typedef int8x16_t qgemm_element;

RP_V16_FN qgemm_lines qgemm_load(const uint8_t *p)
{
    return load_line(p);
}

/* Four bytes of a row, less 128 each, in every lane. */
RP_V16_FN qgemm_element qgemm_broadcast(const uint8_t *q)
{
    uint32_t x;
    memcpy(&x, q, sizeof x);
    return vreinterpretq_s8_u32(veorq_u32(vdupq_n_u32(x), vdupq_n_u32(0x80808080u)));
}

/* The chain is written as the instruction, so that no compiler adds up lines before it. */
RP_V16_FN int32x4_t dot4(int32x4_t acc, int8x16_t x, int8x16_t w)
{
    const int16x8_t lo = vmull_s8(vget_low_s8(x), vget_low_s8(w)), hi = vmull_high_s8(x, w);
    __asm__("sadalp %0.4s, %1.8h" : "+w"(acc) : "w"(vpaddq_s16(lo, hi)));
    return acc;
}

RP_V16_FN v16i qgemm_dot(v16i acc, qgemm_element x, qgemm_lines l)
{
    return (v16i){dot4(acc.a, x, l.a), dot4(acc.b, x, l.b), dot4(acc.c, x, l.c),
                  dot4(acc.d, x, l.d)};
}

RP_V16_FN void qgemm_hide(qgemm_element *x)
{
    __asm__ volatile("" : "+w"(*x));
}

#define RP_QGEMM_NAME rp_qgemm_u8_4x16__neon
#include "qgemm/qgemm_tmpl.h"
