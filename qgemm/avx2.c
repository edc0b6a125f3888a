/* AVX2 on pair-bounded weights: vpmaddubsw adds two products in i16, exactly, vpmaddwd by ones adds
 * two of those in i32.  Each takes one of two pipes on Zen, so a row's 32 weights take a cycle.
 *
 * A tile of 4 rows and one panel is 8 accumulators, 2 registers for a line, the ones, an element of
 * Q and two products: 14 of 16.  Its chains are additions of one cycle, so even one row keeps the
 * multipliers busy; more panels side by side are for the streams that they make.
 */
#define RP_V16_AVX2
#define RP_QGEMM_MR         4
#define RP_QGEMM_ROWS(X, j) X(0, j) X(1, j) X(2, j) X(3, j)
#define RP_QGEMM_BASES(X)   X(0) X(1)
#define RP_QGEMM_WIDTH(h)   ((h) < 2 ? 4 : (h) < 3 ? 2 : 1)
#define RP_QGEMM_TILES(X)   X(1, 1) X(1, 4) X(2, 1) X(2, 2) X(3, 1) X(4, 1)
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

/* acc + x.  Written as the instruction: gcc 12 would otherwise first add up the products of several
 * lines, and spill accumulators meanwhile. */
RP_V16_FN __m256i accumulate(__m256i acc, __m256i x)
{
    __asm__("vpaddd %1, %0, %0" : "+x"(acc) : "x"(x));
    return acc;
}

RP_V16_FN v16i qgemm_dot(v16i acc, qgemm_element x, qgemm_lines line)
{
    const __m256i ones = _mm256_set1_epi16(1);
    const __m256i lo = _mm256_madd_epi16(_mm256_maddubs_epi16(x, line.lo), ones);
    const __m256i hi = _mm256_madd_epi16(_mm256_maddubs_epi16(x, line.hi), ones);
    return (v16i){accumulate(acc.lo, lo), accumulate(acc.hi, hi)};
}

/* Results of two lines that fit add up in i16, and share what follows.  One or two rows wait for
 * memory, and are better off with lines as they lie. */
#define RP_QGEMM_TWOS(h) ((h) >= 3)
_Static_assert(RP_QGEMM_WIDTH(3) == 1, "panels have an order each");
RP_V16_FN v16i qgemm_dot_two(v16i acc, qgemm_element x, v16i line, qgemm_element y, v16i other)
{
    const __m256i ones = _mm256_set1_epi16(1);
    const __m256i lo =
        _mm256_add_epi16(_mm256_maddubs_epi16(x, line.lo), _mm256_maddubs_epi16(y, other.lo));
    const __m256i hi =
        _mm256_add_epi16(_mm256_maddubs_epi16(x, line.hi), _mm256_maddubs_epi16(y, other.hi));
    return (v16i){accumulate(acc.lo, _mm256_madd_epi16(lo, ones)),
                  accumulate(acc.hi, _mm256_madd_epi16(hi, ones))};
}

RP_V16_FN void qgemm_hide(qgemm_element *x)
{
    __asm__ volatile("" : "+x"(*x));
}

#define RP_QGEMM_NAME rp_qgemm_u8_4x16__avx2
#include "qgemm/qgemm_tmpl.h"
