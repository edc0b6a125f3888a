/* Tables of cosines and sines for rotary positions.
 *
 * Computed in double by code of this library, because the last bits of a C library's sin, cos and
 * pow are its own; then rounded once to f32.  The angle is never formed: position and frequency
 * give quarter turns as a sum of two doubles, whose whole part drops out exactly, so a large
 * position costs no accuracy.
 */
#ifndef RP_OPS_ROPE_H
#define RP_OPS_ROPE_H

#include "ops/ops.h"

#include <stdbool.h>

/* Frequencies and scales up to this (either way) are good; positions are below 2^31. */
#define RP_ROPE_MOST 0x1p20

/* ln x for x >= 1, to a few units in the last place. */
double rp_rope_log(double x);

/* theta^(-2i/n_rotated) for theta >= 1, within 2^-48 of itself. */
double rp_rope_inv_freq(double theta, size_t i, size_t n_rotated);

/* Floats of a position's row.  In halves: the cosines, then the sines, n_rotated/2 each.
 * Interleaved: n_rotated cosines, each twice, then the sines, each as -sin and sin. */
static inline size_t rp_rope_row_floats(size_t n_rotated, bool interleaved)
{
    return interleaved ? 2 * n_rotated : n_rotated;
}

/* Fills in the columns of pair i at positions [0, n), scale times cosine and sine, for the rope's
 * table `to` (its own table is not looked at). */
void rp_rope_fill(const struct rp_ops_rope *rope, size_t i, double inv_freq, double scale, size_t n,
                  float *to);

/* Marker i of k > i: with x = i / (k - 1), rounded to double, or 0 where k is 1, the numbers x,
 * x^2, sin(pi x) and cos(pi x), each rounded once to f32. */
#define RP_ORDINAL_FEATURES 4
void rp_rope_ordinal(size_t i, size_t k, float to[RP_ORDINAL_FEATURES]);

static inline const float *rp_rope_row(const struct rp_ops_rope *rope, size_t position)
{
    return rope->table + position * rp_rope_row_floats(rope->n_rotated, rope->interleaved);
}

#endif
