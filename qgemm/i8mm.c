/* NEON with dot products of mixed signs: sudot multiplies four signed weights by four unsigned
 * bytes, which are a lane of their register, and adds them to an i32.
 *
 * A tile of 6 rows and one panel is 24 accumulators, 4 registers for a line and one for an element
 * of Q: 29 of 32.
 */
#define RP_V16_NEON
#define RP_QGEMM_MR         6
#define RP_QGEMM_ROWS(X, j) X(0, j) X(1, j) X(2, j) X(3, j) X(4, j) X(5, j)
#define RP_QGEMM_BASES(X)   X(0) X(1)
#define RP_QGEMM_WIDTH(h)   ((h) < 2 ? 4 : (h) < 4 ? 2 : 1)
#define RP_QGEMM_TILES(X)   X(1, 1) X(1, 4) X(2, 1) X(2, 2) X(3, 1) X(3, 2) X(4, 1) X(5, 1) X(6, 1)
#define RP_QGEMM_STEP       1
#define RP_QGEMM_SHIFT      0
#define RP_QGEMM_PANELS_APART
#include "qgemm/dot_neon.h"

typedef struct line qgemm_lines;
typedef float qgemm_element; /* four bytes in a vector register, which costs a load and no more */

RP_V16_FN qgemm_lines qgemm_load(const uint8_t *p)
{
    return load_line(p);
}

RP_V16_FN qgemm_element qgemm_broadcast(const uint8_t *q)
{
    float x;
    memcpy(&x, q, sizeof x);
    return x;
}

/* Written as the instruction, which takes the element as a lane of a register. */
RP_V16_FN int32x4_t dot4(int32x4_t acc, qgemm_element x, int8x16_t w)
{
    __asm__("sudot %0.4s, %1.16b, %2.4b[0]" : "+w"(acc) : "w"(w), "w"(x));
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

#define RP_QGEMM_NAME rp_qgemm_u8_6x16__i8mm
#include "qgemm/qgemm_tmpl.h"
