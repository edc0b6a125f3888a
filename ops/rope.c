/* Cosines, sines and powers in double, from additions, products, fma and divisions alone: the same
 * bits everywhere. */
#include "ops/rope.h"

#include <math.h>

#define LN2_HI 0x1.62e42fefa39efp-1
#define LN2_LO 0x1.abc9e3b39803fp-56
/* 2/pi in two doubles. */
#define QUARTERS_HI 0x1.45f306dc9c883p-1
#define QUARTERS_LO -0x1.6b01ec5417056p-55
#define HALF_PI     0x1.921fb54442d18p+0

/* ln x for x >= 1: with x = m 2^e and s = (m-1)/(m+1), ln m = 2 (s + s^3/3 + s^5/5 + ...), where
 * s is at most 0.172 and the terms left out come to less than 2^-60 of the sum. */
double rp_rope_log(double x)
{
    int e;
    double m = frexp(x, &e);
    if (m < 0x1.6a09e667f3bcdp-1) {
        m *= 2;
        e--;
    }
    const double s = (m - 1) / (m + 1), z = s * s;
    double sum = 0;
    for (int k = 25; k >= 1; k -= 2)
        sum = fma(sum, z, 1.0 / k);
    return fma((double)e, LN2_HI, fma((double)e, LN2_LO, 2 * s * sum));
}

/* e^x: x = n ln 2 + r, the series up to r^15 with |r| <= 0.35. */
static double exponential(double x)
{
    const double n = rint(x / LN2_HI);
    const double r = fma(-n, LN2_LO, fma(-n, LN2_HI, x));
    double sum = 1;
    for (int k = 15; k >= 1; k--)
        sum = 1 + sum * r / k;
    return ldexp(sum, (int)n);
}

double rp_rope_inv_freq(double theta, size_t i, size_t n_rotated)
{
    return exponential(-(2 * (double)i / (double)n_rotated) * rp_rope_log(theta));
}

/* sin x and cos x for |x| <= 0.79 by their series, to less than 2^-58. */
static double small_sine(double x)
{
    const double z = x * x;
    double sum = 1;
    for (int k = 18; k >= 2; k -= 2)
        sum = 1 - sum * z / (k * (k + 1));
    return sum * x;
}

static double small_cosine(double x)
{
    const double z = x * x;
    double sum = 1;
    for (int k = 17; k >= 1; k -= 2)
        sum = 1 - sum * z / (k * (k + 1));
    return sum;
}

/* Cosine and sine of `position` times a frequency that is hi + lo quarter turns. */
static void turn(double position, double hi, double lo, double *cosine, double *sine)
{
    const double whole = position * hi, rest = fma(position, hi, -whole) + position * lo;
    const double n = rint(whole), x = ((whole - n) + rest) * HALF_PI;
    const double c = small_cosine(x), s = small_sine(x);
    switch ((int64_t)n & 3) {
    case 0: *cosine = c, *sine = s; break;
    case 1: *cosine = -s, *sine = c; break;
    case 2: *cosine = -c, *sine = -s; break;
    default: *cosine = s, *sine = -c; break;
    }
}

void rp_rope_fill(const struct rp_ops_rope *rope, size_t i, double inv_freq, double scale, size_t n,
                  float *to)
{
    const double hi = inv_freq * QUARTERS_HI;
    const double lo = fma(inv_freq, QUARTERS_HI, -hi) + inv_freq * QUARTERS_LO;
    const size_t ld = rp_rope_row_floats(rope->n_rotated, rope->interleaved);
    for (size_t p = 0; p < n; p++, to += ld) {
        double cosine, sine;
        turn((double)p, hi, lo, &cosine, &sine);
        const float c = (float)(cosine * scale), s = (float)(sine * scale);
        if (rope->interleaved) {
            to[2 * i] = to[2 * i + 1] = c;
            to[rope->n_rotated + 2 * i] = -s;
            to[rope->n_rotated + 2 * i + 1] = s;
        } else {
            to[i] = c;
            to[rope->n_rotated / 2 + i] = s;
        }
    }
}

/* pi x is 2x quarter turns, which is exact. */
void rp_rope_ordinal(size_t i, size_t k, float to[RP_ORDINAL_FEATURES])
{
    const double x = k > 1 ? (double)i / (double)(k - 1) : 0;
    double cosine, sine;
    turn(x, 2, 0, &cosine, &sine);
    to[0] = (float)x;
    to[1] = (float)(x * x);
    to[2] = (float)sine;
    to[3] = (float)cosine;
}
