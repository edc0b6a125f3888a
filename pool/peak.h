/* The ceiling: how many multiply-adds this machine does when nothing but registers is involved. */
#ifndef RP_POOL_PEAK_H
#define RP_POOL_PEAK_H

#include <rankplan/machine.h>

#include <stddef.h>

/* Runs `rounds` rounds of independent chains of fused multiply-adds; returns how many multiply-adds
 * that was, lane by lane.  sink holds 16 different floats, and then the chains' sum, which keeps
 * the compiler from leaving them out. */
typedef size_t rp_peak_fn(size_t rounds, float *sink);

rp_peak_fn rp_peak__scalar, rp_peak__avx2, rp_peak__avx512, rp_peak__neon;

#endif
