/* Prefix reuse: texts that begin with the same tokens, run as one sequence with those and one each
 * with the rest, which names the first as its parent (rp_batch.parents). */
#ifndef RP_TEXT_PREFIX_H
#define RP_TEXT_PREFIX_H

#include <rankplan/plan.h>

/* Fewer tokens than these are not shared.  Every batch runs them once, so already the second text
 * of a batch gains, but a text in two pieces costs attention another stretch of keys. */
#define RP_PREFIX_MIN 16

/* How many tokens all sequences begin with, segments included, but fewer than the shortest of them
 * has: each keeps a row of its own.  0 when they are fewer than RP_PREFIX_MIN, or there is but one
 * sequence. */
size_t rp_prefix_shared(const rp_batch *all);

/* Sequences [first, end) of `all` that make the next batch, as many as max_tokens holds with the
 * prefix once, and max_tokens / 2 sequences with it; at least one. */
size_t rp_prefix_end(const rp_batch *all, size_t shared, size_t first, size_t max_tokens);

/* Room for the batches of a request; all NULL before the first. */
struct rp_prefix_room {
    int32_t *ids, *type_ids, *cu, *parents;
};

/* Room for any batch of `all`.  RP_ERR_NOMEM; to be freed whatever it returns. */
RP_CHECKED rp_status rp_prefix_reserve(const rp_batch *all, struct rp_prefix_room *room,
                                       rp_error *err);
void rp_prefix_free(struct rp_prefix_room *room);

/* Sequences [first, end), at least two, as a batch of end - first + 1: the prefix, then the rest of
 * each.  Its arrays are the room's. */
void rp_prefix_split(const rp_batch *all, size_t shared, size_t first, size_t end,
                     struct rp_prefix_room *room, rp_batch *out);

#endif
