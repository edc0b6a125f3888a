/* Floats for tests: bits, seeded numbers, special values, memory that ends at a page which may not
 * be touched. */
#ifndef RP_TESTS_FLOATS_H
#define RP_TESTS_FLOATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

uint32_t float_bits(float x);
float float_of(uint32_t bits);

/* Equal bits, or both NaN: the contract says nothing of a NaN's sign and payload. */
bool float_same(float a, float b);

/* SplitMix64. */
uint64_t random_next(uint64_t *state);

/* Uniform in (-scale, scale). */
float random_float(uint64_t *state, float scale);

/* A special value (zeros, denormals, powers of two, huge, infinities, NaN) one time in four, else
 * any pattern. */
float random_special(uint64_t *state);

/* `bytes` of memory that end right before a page without any access and begin right after one when
 * bytes is a multiple of the page size; guard_free takes the same number. */
void *guard_alloc(size_t bytes);
void guard_free(void *memory, size_t bytes);

/* XXH3 of n floats, all NaNs counted as one, chained by `seed`. */
uint64_t float_digest(const float *x, size_t n, uint64_t seed);

#endif
