/* See difference.h. */
#include "cli/difference.h"

#include <rankplan/rankplan.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TOP 5

/* ---- values -------------------------------------------------------------------------------------
 */

static double error_of(float a, float b)
{
    if (isnan(a) || isnan(b))
        return isnan(a) && isnan(b) ? 0 : INFINITY;
    return a == b ? 0 : fabs((double)a - (double)b);
}

/* Floats in their order as whole numbers, -0 and 0 as one. */
static int64_t rank_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits >> 31 ? -(int64_t)(bits & 0x7fffffff) : (int64_t)bits;
}

static uint32_t ulps_between(float a, float b)
{
    if (isnan(a) || isnan(b))
        return isnan(a) && isnan(b) ? 0 : UINT32_MAX;
    const int64_t d = rank_of(a) - rank_of(b);
    return (uint32_t)(d < 0 ? -d : d); /* below 2^32: both are within 2^31 of 0 */
}

static const struct {
    double from;
    const char *name;
} bins[CLI_ERROR_BINS] = {
    {0, "0"},         {0, "< 1e-12"}, {1e-12, "1e-12"}, {1e-11, "1e-11"},
    {1e-10, "1e-10"}, {1e-9, "1e-9"}, {1e-8, "1e-8"},   {1e-7, "1e-7"},
    {1e-6, "1e-6"},   {1e-5, "1e-5"}, {1e-4, "1e-4"},   {1e-3, "1e-3"},
    {1e-2, "1e-2"},   {1e-1, "1e-1"}, {1, "1"},         {10, ">= 10"},
};

const char *cli_error_bin_name(size_t i)
{
    return bins[i].name;
}

static size_t bin_of(double error)
{
    size_t i = CLI_ERROR_BINS - 1;
    if (error == 0)
        return 0;
    while (i > 1 && error < bins[i].from)
        i--;
    return i;
}

/* Sums that the loop over the values keeps. */
struct sums {
    double abs, aa, ab, bb, noise, largest;
    size_t n;
};

static void add_value(struct cli_difference *d, struct sums *s, float a, float b, size_t i,
                      double tol)
{
    const double error = error_of(a, b), size = fabs((double)b);
    if (error > d->max_abs) {
        d->max_abs = error;
        d->worst = i;
    }
    d->bins[bin_of(error)]++;
    if (isnan(a) != isnan(b))
        d->n_nan++;
    if (isinf(error)) { /* no tolerance, however large: inf <= tol * inf says nothing */
        d->n_over++;
        d->min_tol = INFINITY;
        d->max_rel = INFINITY;
        return;
    }
    if (error > 0) {
        d->n_over += !(error <= tol + tol * size);
        d->min_tol = fmax(d->min_tol, error / (1 + size));
        d->max_rel = fmax(d->max_rel, error / fmax(size, fabs((double)a)));
    }
    if (!isfinite(a) || !isfinite(b))
        return;
    s->largest = fmax(s->largest, size);
    s->abs += error;
    s->aa += (double)a * (double)a;
    s->ab += (double)a * (double)b;
    s->bb += (double)b * (double)b;
    s->noise += error * error;
    s->n++;
}

/* ---- ULP percentiles ----------------------------------------------------------------------------
 */

/* The k-th smallest (from 0): first its upper half, then its lower half, by counting. */
static uint32_t kth(const uint32_t *x, size_t n, size_t k, size_t *counts)
{
    uint32_t upper = 0, lower = 0;
    memset(counts, 0, 65536 * sizeof *counts);
    for (size_t i = 0; i < n; i++)
        counts[x[i] >> 16]++;
    while (k >= counts[upper])
        k -= counts[upper++];
    memset(counts, 0, 65536 * sizeof *counts);
    for (size_t i = 0; i < n; i++)
        if (x[i] >> 16 == upper)
            counts[x[i] & 0xffff]++;
    while (k >= counts[lower])
        k -= counts[lower++];
    return upper << 16 | lower;
}

static bool take_ulps(const float *a, const float *b, size_t n, uint32_t out[3])
{
    uint32_t *x = malloc(n * sizeof *x);
    size_t *counts = malloc(65536 * sizeof *counts);
    const bool ok = x && counts;
    if (ok) {
        for (size_t i = 0; i < n; i++)
            x[i] = ulps_between(a[i], b[i]);
        /* The smallest value that no fewer than that share of all are at most. */
        out[0] = kth(x, n, (n + 1) / 2 - 1, counts);
        out[1] = kth(x, n, n - n / 100 - 1, counts);
        out[2] = kth(x, n, n - 1, counts);
    }
    free(x);
    free(counts);
    return ok;
}

bool cli_difference_take(const float *a, const float *b, size_t n, double tol,
                         struct cli_difference *out)
{
    struct sums s = {0};
    *out = (struct cli_difference){.n = n, .cosine = 1, .snr_db = INFINITY};
    out->same_bits = n == 0 || memcmp(a, b, n * sizeof *a) == 0;
    for (size_t i = 0; i < n; i++)
        add_value(out, &s, a[i], b[i], i, tol);
    out->mean_abs = s.n ? s.abs / (double)s.n : 0;
    out->scaled = out->max_abs == 0 ? 0 : s.largest > 0 ? out->max_abs / s.largest : INFINITY;
    if (s.noise > 0) {
        out->cosine = s.aa > 0 && s.bb > 0 ? s.ab / (sqrt(s.aa) * sqrt(s.bb)) : 0;
        out->snr_db = s.bb > 0 ? 10 * log10(s.bb / s.noise) : -INFINITY;
    }
    return out->max_abs == 0 || take_ulps(a, b, n, out->ulp);
}

/* ---- rankings -----------------------------------------------------------------------------------
 */

static int order_of(float x, float y)
{
    return (x > y) - (x < y);
}

static double kendall(const float *a, const float *b, size_t n)
{
    double agree = 0, in_a = 0, in_b = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t j = i + 1; j < n; j++) {
            const int p = order_of(a[i], a[j]), q = order_of(b[i], b[j]);
            agree += p * q;
            in_a += p != 0;
            in_b += q != 0;
        }
    if (in_a == 0 || in_b == 0) /* all tied on one side */
        return in_a == in_b ? 1 : 0;
    return agree / (sqrt(in_a) * sqrt(in_b));
}

bool cli_agreement_take(const float *a, const float *b, size_t n, struct cli_agreement *out)
{
    for (size_t i = 0; i < n; i++)
        if (isnan(a[i]) || isnan(b[i]))
            return false;
    size_t *order = malloc((n ? 2 * n : 1) * sizeof *order);
    if (!order)
        return false;
    rp_rank(a, n, order);
    rp_rank(b, n, order + n);
    *out = (struct cli_agreement){.n = n, .tau = kendall(a, b, n), .top = n < TOP ? n : TOP};
    out->same_first = n == 0 || order[0] == order[n];
    for (size_t i = 0; i < out->top; i++)
        for (size_t j = 0; j < out->top; j++)
            out->common += order[i] == order[n + j];
    free(order);
    return true;
}

static double dot(const float *x, const float *y, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)y[i];
    return sum;
}

void cli_cosines_to_first(const float *x, size_t rows, size_t width, float *out)
{
    const double first = sqrt(dot(x, x, width));
    for (size_t r = 1; r < rows; r++) {
        const float *row = x + r * width;
        const double norm = first * sqrt(dot(row, row, width));
        out[r - 1] = norm > 0 ? (float)(dot(x, row, width) / norm) : 0;
    }
}
