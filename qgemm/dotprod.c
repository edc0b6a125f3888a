/* NEON with dot products: sdot multiplies four signed bytes by four and adds them to an i32, with
 * the four of a row as a lane of their register.  q - 128 is signed; what that takes off comes back
 * with the zero point.
 *
 * Two lines at a time, so that taking off 128 is one instruction for eight sdot.  A tile of 4 rows
 * and one panel is 16 accumulators, 8 registers for the lines, one for an element of Q and one for
 * the 128: 26 of 32.  Sixteen chains cover four a cycle of latency 3 or 4.
 */
#define RP_V16_NEON
#define RP_QGEMM_MR         4
#define RP_QGEMM_ROWS(X, j) X(0, j) X(1, j) X(2, j) X(3, j)
#define RP_QGEMM_BASES(X)   X(0) X(1)
#define RP_QGEMM_WIDTH(h)   ((h) < 2 ? 4 : (h) < 3 ? 2 : 1)
#define RP_QGEMM_TILES(X)   X(1, 1) X(1, 4) X(2, 1) X(2, 2) X(3, 1) X(4, 1)
#define RP_QGEMM_STEP       2
#define RP_QGEMM_SHIFT      128
#define RP_QGEMM_PANELS_APART
#include "qgemm/dot_neon.h"

typedef struct {
    struct line first, second;
} qgemm_lines;
typedef int8x8_t qgemm_element;

RP_V16_FN qgemm_lines qgemm_load(const uint8_t *p)
{
    return (qgemm_lines){load_line(p), load_line(p + 64)};
}

RP_V16_FN qgemm_element qgemm_broadcast(const uint8_t *q)
{
    return vreinterpret_s8_u8(veor_u8(vld1_u8(q), vdup_n_u8(128)));
}

#define DOT(part) vdotq_lane_s32(vdotq_lane_s32(acc.part, l.first.part, x, 0), l.second.part, x, 1)
RP_V16_FN v16i qgemm_dot(v16i acc, qgemm_element x, qgemm_lines l)
{
    return (v16i){DOT(a), DOT(b), DOT(c), DOT(d)};
}

RP_V16_FN void qgemm_hide(qgemm_element *x)
{
    __asm__ volatile("" : "+w"(*x));
}

#define RP_QGEMM_NAME rp_qgemm_u8_4x16__dotprod
#include "qgemm/qgemm_tmpl.h"
