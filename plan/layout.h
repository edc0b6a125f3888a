/* Layout: where values lie in an arena.  A pure function from live ranges to offsets.
 *
 * Greedy interval colouring: the largest record first, at the lowest offset where it overlaps no
 * record that is placed already and alive at the same time.  A chain of n norms so needs two
 * buffers:
 *
 *     step      0   1   2   3
 *     v0       [----]              offset 0
 *     v1           [----]          offset b
 *     v2               [----]      offset 0
 */
#ifndef RP_PLAN_LAYOUT_H
#define RP_PLAN_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RP_LAYOUT_ALIGN 64

struct rp_layout_record {
    size_t first, last; /* steps during which the value is alive, both included */
    uint64_t bytes;     /* 0: takes no room */
    int32_t
        alias_of; /* an earlier record whose memory this one takes over (an in-place op), or -1 */
    uint64_t offset; /* out: a multiple of RP_LAYOUT_ALIGN */
};

/* Fills in the offsets and the size of the arena.  scratch holds 2n int32.  False when sizes pass
 * 2^63. */
bool rp_layout(struct rp_layout_record *records, size_t n, int32_t *scratch, uint64_t *arena_bytes);

#endif
