/* Statistics of a step's values, in double and in the order of the values, so that they are the
 * same wherever they are taken. */
#include "cli/dump.h"

#include <math.h>
#include <string.h>

static void add_value(struct cli_stats *s, double x)
{
    if (s->n_finite == 0 || x < s->min)
        s->min = x;
    if (s->n_finite == 0 || x > s->max)
        s->max = x;
    if (fabs(x) > s->absmax)
        s->absmax = fabs(x);
    s->mean += x; /* the sum, until all are in */
    s->n_finite++;
}

void cli_stats_take(const float *x, size_t n, struct cli_stats *out)
{
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < n; i++) {
        if (isnan(x[i]))
            out->n_nan++;
        else if (isinf(x[i]))
            out->n_inf++;
        else
            add_value(out, (double)x[i]);
    }
    if (out->n_finite == 0)
        return;
    out->mean /= (double)out->n_finite;
    /* A second pass: differences from the mean do not cancel as squares would. */
    for (size_t i = 0; i < n; i++)
        if (isfinite(x[i]))
            out->std += ((double)x[i] - out->mean) * ((double)x[i] - out->mean);
    out->std = sqrt(out->std / (double)out->n_finite);
}
