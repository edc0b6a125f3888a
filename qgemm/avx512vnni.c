/* AVX-512 VNNI: vpdpbusd multiplies four bytes of a row by four weights and adds them to an i32.  A
 * tile of 12 rows and two panels is 24 accumulators, 2 registers for the lines and one for an
 * element of Q: 27 of 32.  Two of them a cycle of latency 5 need 10 chains; fewer are left only
 * where panels run out.
 */
#ifndef RP_V16_SCALAR /* tests build this shape on plain arrays, under a name of their own */
#define RP_V16_AVX512
#define RP_QGEMM_NAME rp_qgemm_u8_12x32__avx512vnni
#endif
#include "pool/v16.h"

#include <string.h>

/* The formatter moves these lists a little further at each run. */
/* clang-format off */
#define RP_QGEMM_MR 12
#define RP_QGEMM_ROWS(X, j)                                                                        \
    X(0, j) X(1, j) X(2, j) X(3, j) X(4, j) X(5, j) X(6, j) X(7, j) X(8, j) X(9, j) X(10, j)       \
    X(11, j)
#define RP_QGEMM_BASES(X) X(0) X(1) X(2) X(3)
#define RP_QGEMM_WIDTH(h) ((h) < 4 ? 4 : 2)
#define RP_QGEMM_TILES(X)                                                                          \
    X(1, 1) X(1, 4) X(2, 1) X(2, 4) X(3, 1) X(3, 4) X(4, 1) X(4, 2) X(5, 1) X(5, 2) X(6, 1)        \
    X(6, 2) X(7, 1) X(7, 2) X(8, 1) X(8, 2) X(9, 1) X(9, 2) X(10, 1) X(10, 2) X(11, 1) X(11, 2)    \
    X(12, 1) X(12, 2)
/* clang-format on */
#define RP_QGEMM_STEP  1
#define RP_QGEMM_SHIFT 0

typedef v16i qgemm_lines;

#ifdef RP_V16_SCALAR
typedef struct {
    uint8_t q[4];
} qgemm_element;

RP_V16_FN qgemm_lines qgemm_load(const uint8_t *p)
{
    qgemm_lines line;
    memcpy(&line, p, sizeof line);
    return line;
}

RP_V16_FN qgemm_element qgemm_broadcast(const uint8_t *q)
{
    qgemm_element x;
    memcpy(&x, q, sizeof x);
    return x;
}

RP_V16_FN v16i qgemm_dot(v16i acc, qgemm_element x, qgemm_lines line)
{
    int8_t w[64];
    memcpy(w, &line, sizeof w);
    for (int i = 0; i < 64; i++)
        acc.i[i / 4] += x.q[i % 4] * w[i];
    return acc;
}

RP_V16_FN void qgemm_hide(qgemm_element *x)
{
    __asm__ volatile("" : "+m"(*x));
}
#else
typedef __m512i qgemm_element;

RP_V16_FN qgemm_lines qgemm_load(const uint8_t *p)
{
    return _mm512_load_si512(p);
}

RP_V16_FN qgemm_element qgemm_broadcast(const uint8_t *q)
{
    int32_t x;
    memcpy(&x, q, sizeof x);
    return _mm512_set1_epi32(x);
}

/* Written as the instruction: given the intrinsic, gcc 12 moves and spills accumulators. */
RP_V16_FN v16i qgemm_dot(v16i acc, qgemm_element x, qgemm_lines line)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(x), "v"(line));
    return acc;
}

RP_V16_FN void qgemm_hide(qgemm_element *x)
{
    __asm__ volatile("" : "+v"(*x));
}
#endif

#include "qgemm/qgemm_tmpl.h"
