/* Work cut into equal parts. */
#ifndef RP_POOL_SPLIT_H
#define RP_POOL_SPLIT_H

#include <stddef.h>

/* n things cut into the fewest parts of at most `most`, as equal as can be: 16 rows in tiles of at
 * most 6 are 6+5+5 and not 6+6+4, because a short tile has too few chains to hide the latency of an
 * fma.  The first `n_long` parts have base + 1, the others base. */
struct rp_split {
    size_t n_parts, base, n_long;
};

static inline struct rp_split rp_split(size_t n, size_t most)
{
    const size_t n_parts = n / most + (n % most != 0);
    if (n_parts == 0)
        return (struct rp_split){0, 0, 0};
    return (struct rp_split){n_parts, n / n_parts, n % n_parts};
}

static inline size_t rp_split_part(const struct rp_split *split, size_t index)
{
    return split->base + (index < split->n_long);
}

#endif
