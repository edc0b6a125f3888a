/* Of the texts
 *
 *     P P P a a        P P P b        P P P c c c
 *
 * the batch is
 *
 *     P P P   a a   b   c c c        cu 0 3 5 6 9, parents -1 0 0 0
 *
 * whose rows 1, 2 and 3 are the texts' own.  Row 0 is the prefix's, which nobody asked for. */
#include "text/prefix.h"

#include "pool/error.h"

#include <stdlib.h>
#include <string.h>

static size_t length(const rp_batch *all, size_t i)
{
    return (size_t)(all->cu[i + 1] - all->cu[i]);
}

static bool same(const rp_batch *all, size_t a, size_t b)
{
    return all->ids[a] == all->ids[b] && (!all->type_ids || all->type_ids[a] == all->type_ids[b]);
}

size_t rp_prefix_shared(const rp_batch *all)
{
    if (all->n_seqs < 2 || length(all, 0) == 0)
        return 0;
    size_t n = length(all, 0) - 1;
    for (size_t i = 1; i < all->n_seqs && n >= RP_PREFIX_MIN; i++) {
        const size_t most = length(all, i) ? length(all, i) - 1 : 0;
        size_t k = 0;
        if (n > most)
            n = most;
        while (k < n && same(all, (size_t)all->cu[0] + k, (size_t)all->cu[i] + k))
            k++;
        n = k;
    }
    return n >= RP_PREFIX_MIN ? n : 0;
}

size_t rp_prefix_end(const rp_batch *all, size_t shared, size_t first, size_t max_tokens)
{
    size_t end = first + 1, tokens = length(all, first);
    while (end < all->n_seqs && tokens + length(all, end) - shared <= max_tokens &&
           end - first + 2 <= max_tokens / 2)
        tokens += length(all, end++) - shared;
    return end;
}

rp_status rp_prefix_reserve(const rp_batch *all, struct rp_prefix_room *room, rp_error *err)
{
    /* Of two texts or more, a batch has fewer tokens than they have apart. */
    const size_t tokens = (size_t)all->cu[all->n_seqs], seqs = all->n_seqs + 1;
    room->ids = malloc(tokens * sizeof *room->ids);
    room->type_ids = malloc(tokens * sizeof *room->type_ids);
    room->cu = malloc((seqs + 1) * sizeof *room->cu);
    room->parents = malloc(seqs * sizeof *room->parents);
    if (!room->ids || !room->type_ids || !room->cu || !room->parents)
        return rp_fail(err, RP_ERR_NOMEM, "no memory for %zu texts", all->n_seqs);
    return RP_OK;
}

void rp_prefix_free(struct rp_prefix_room *room)
{
    free(room->ids);
    free(room->type_ids);
    free(room->cu);
    free(room->parents);
    *room = (struct rp_prefix_room){0};
}

/* Tokens [from, end) of the whole as the next sequence. */
static void add(const rp_batch *all, size_t from, size_t end, int32_t parent,
                struct rp_prefix_room *room, rp_batch *out)
{
    const size_t at = (size_t)room->cu[out->n_seqs], n = end - from;
    memcpy(room->ids + at, all->ids + from, n * sizeof *room->ids);
    if (all->type_ids)
        memcpy(room->type_ids + at, all->type_ids + from, n * sizeof *room->type_ids);
    room->parents[out->n_seqs] = parent;
    room->cu[++out->n_seqs] = (int32_t)(at + n);
}

void rp_prefix_split(const rp_batch *all, size_t shared, size_t first, size_t end,
                     struct rp_prefix_room *room, rp_batch *out)
{
    rp_batch_init(out);
    room->cu[0] = 0;
    add(all, (size_t)all->cu[first], (size_t)all->cu[first] + shared, -1, room, out);
    for (size_t i = first; i < end; i++)
        add(all, (size_t)all->cu[i] + shared, (size_t)all->cu[i + 1], 0, room, out);
    out->ids = room->ids;
    out->type_ids = all->type_ids ? room->type_ids : NULL;
    out->cu = room->cu;
    out->parents = room->parents;
}
