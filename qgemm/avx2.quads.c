/* AVX2 on quad-bounded weights: the results of two vpmaddubsw are still added in i16, and one
 * vpmaddwd serves both.  A row's 64 weights take a cycle and a half.
 *
 * A tile of 4 rows and one panel: 8 accumulators, 4 registers for two lines, of which one is read
 * from memory again where registers run out.
 */
#define RP_V16_AVX2
#define RP_QGEMM_MR         4
#define RP_QGEMM_ROWS(X, j) X(0, j) X(1, j) X(2, j) X(3, j)
#define RP_QGEMM_BASES(X)   X(0) X(1)
#define RP_QGEMM_WIDTH(h)   ((h) < 2 ? 4 : (h) < 3 ? 2 : 1)
#define RP_QGEMM_TILES(X)   X(1, 1) X(1, 4) X(2, 1) X(2, 2) X(3, 1) X(4, 1)
#define RP_QGEMM_STEP       2
#define RP_QGEMM_SHIFT      0
#define RP_QGEMM_PANELS_APART
#include "qgemm/dot_avx2.h"

typedef struct {
    v16i a, b;
} qgemm_lines;
typedef struct {
    __m256i a, b;
} qgemm_element;

RP_V16_FN qgemm_lines qgemm_load(const uint8_t *p)
{
    return (qgemm_lines){load_line(p), load_line(p + 64)};
}

RP_V16_FN qgemm_element qgemm_broadcast(const uint8_t *q)
{
    return (qgemm_element){broadcast4(q), broadcast4(q + 4)};
}

RP_V16_FN __m256i quads(qgemm_element x, __m256i a, __m256i b)
{
    const __m256i sum =
        _mm256_add_epi16(_mm256_maddubs_epi16(x.a, a), _mm256_maddubs_epi16(x.b, b));
    return _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
}

RP_V16_FN v16i qgemm_dot(v16i acc, qgemm_element x, qgemm_lines l)
{
    return (v16i){accumulate(acc.lo, quads(x, l.a.lo, l.b.lo)),
                  accumulate(acc.hi, quads(x, l.a.hi, l.b.hi))};
}

RP_V16_FN void qgemm_hide(qgemm_element *x)
{
    __asm__ volatile("" : "+x"(x->a), "+x"(x->b));
}

#define RP_QGEMM_NAME rp_qgemm_u8_4x16q__avx2
#include "qgemm/qgemm_tmpl.h"
