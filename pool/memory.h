/* Aligned memory, and sizes that cannot wrap. */
#ifndef RP_POOL_MEMORY_H
#define RP_POOL_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

#define RP_CACHE_LINE 64

/* `bytes` of memory aligned to 64, or to a huge page when large (and then advised to be one).  Not
 * zeroed.  NULL when there is none or bytes is 0 or absurd.  Freed by rp_aligned_free(p), NULL
 * allowed. */
void *rp_aligned_alloc(size_t bytes);
void *rp_aligned_alloc_zero(size_t bytes);
void rp_aligned_free(void *p);

/* *out = a * b (a + b); false when it does not fit in size_t. */
static inline bool rp_mul_ok(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static inline bool rp_add_ok(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

/* n rounded up to a multiple of a (a power of two); the caller knows that it fits. */
static inline size_t rp_round_up(size_t n, size_t a)
{
    return (n + a - 1) & ~(a - 1);
}

#endif
