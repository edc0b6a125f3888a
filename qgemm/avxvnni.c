/* AVX-VNNI: vpdpbusd on ymm.  A tile of 6 rows and one panel is 12 accumulators, 2 registers for a
 * line and one for an element of Q: 15 of 16.  Two of them a cycle of latency 5 need 10 chains.
 */
#define RP_V16_AVX2
#define RP_QGEMM_MR         6
#define RP_QGEMM_ROWS(X, j) X(0, j) X(1, j) X(2, j) X(3, j) X(4, j) X(5, j)
#define RP_QGEMM_BASES(X)   X(0) X(1)
#define RP_QGEMM_WIDTH(h)   ((h) < 2 ? 4 : (h) < 4 ? 2 : 1)
#define RP_QGEMM_TILES(X)   X(1, 1) X(1, 4) X(2, 1) X(2, 2) X(3, 1) X(3, 2) X(4, 1) X(5, 1) X(6, 1)
#define RP_QGEMM_STEP       1
#define RP_QGEMM_SHIFT      0
#define RP_QGEMM_PANELS_APART
#include "qgemm/dot_avx2.h"

typedef v16i qgemm_lines;
typedef __m256i qgemm_element;

RP_V16_FN qgemm_lines qgemm_load(const uint8_t *p)
{
    return load_line(p);
}

RP_V16_FN qgemm_element qgemm_broadcast(const uint8_t *q)
{
    return broadcast4(q);
}

/* Written as the instruction: given the intrinsic, gcc 12 moves and spills accumulators.  {vex} is
 * AVX-VNNI's encoding; the assembler's first choice is that of AVX-512. */
RP_V16_FN v16i qgemm_dot(v16i acc, qgemm_element x, qgemm_lines line)
{
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(acc.lo) : "x"(x), "x"(line.lo));
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(acc.hi) : "x"(x), "x"(line.hi));
    return acc;
}

RP_V16_FN void qgemm_hide(qgemm_element *x)
{
    __asm__ volatile("" : "+x"(*x));
}

#define RP_QGEMM_NAME rp_qgemm_u8_6x16__avxvnni
#include "qgemm/qgemm_tmpl.h"
