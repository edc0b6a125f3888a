/* How far two tensors, and two rankings, are apart. */
#ifndef RP_CLI_DIFFERENCE_H
#define RP_CLI_DIFFERENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CLI_ERROR_BINS 16

/* Of a against the reference b, all in double and in the order of the values.  The error of a value
 * is |a - b|; 0 where both are the same or both are NaN; infinite where only one is a NaN.  Values
 * with an infinite error are left out of mean_abs, cosine and snr_db. */
struct cli_difference {
    size_t n;
    bool same_bits;
    double max_abs;
    size_t worst;   /* where max_abs is */
    double max_rel; /* error over the larger of |a| and |b| */
    double scaled;  /* max_abs over the largest |b|: comparable from step to step */
    double mean_abs;
    double cosine;   /* 1 when both are 0, 0 when one is */
    double snr_db;   /* 10 log10(sum b^2 / sum (a-b)^2); infinite without an error */
    uint32_t ulp[3]; /* steps from one float to the other: half of the values are no further apart,
                        99 % of them, all; UINT32_MAX for a NaN on one side */
    size_t n_over;   /* values with an error above tol + tol |b| */
    size_t n_nan;    /* a NaN on one side only: always over */
    double min_tol;  /* the least tol with which n_over is 0; infinite when there is none */
    /* 0; below 1e-12; from 1e-12, 1e-11, ... 1; 10 and more, or infinite */
    size_t bins[CLI_ERROR_BINS];
};

/* False when memory is short. */
bool cli_difference_take(const float *a, const float *b, size_t n, double tol,
                         struct cli_difference *out);

/* What bin i holds: "0", "< 1e-12", "1e-12", ... */
const char *cli_error_bin_name(size_t i);

/* Two orders of the same n candidates by score, best first. */
struct cli_agreement {
    size_t n;
    double tau; /* Kendall's tau-b: 1 the same order, -1 the reverse; ties on both sides agree */
    bool same_first;
    size_t top, common; /* of the best `top` (5, or all), how many both have */
};

/* False when memory is short, or a score is a NaN. */
bool cli_agreement_take(const float *a, const float *b, size_t n, struct cli_agreement *out);

/* Scores of rows 1 to n-1 by their cosine to row 0. */
void cli_cosines_to_first(const float *x, size_t rows, size_t width, float *out);

#endif
