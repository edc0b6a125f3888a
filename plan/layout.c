/* Greedy interval colouring over live ranges; see layout.h for the picture.
 *
 * Records that alias each other form one group that is placed as one: its range is the union of
 * theirs, its size the largest of theirs.  Quadratic in the number of values, which is a few
 * hundred.
 */
#include "plan/layout.h"

static uint64_t align_up(uint64_t bytes)
{
    return (bytes + RP_LAYOUT_ALIGN - 1) & ~(uint64_t)(RP_LAYOUT_ALIGN - 1);
}

static int32_t root_of(const struct rp_layout_record *records, int32_t i)
{
    while (records[i].alias_of >= 0)
        i = records[i].alias_of;
    return i;
}

/* Every root takes on the range and size of the records that alias it. */
static void merge_aliases(struct rp_layout_record *records, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (records[i].alias_of < 0)
            continue;
        struct rp_layout_record *root = &records[root_of(records, (int32_t)i)];
        if (records[i].first < root->first)
            root->first = records[i].first;
        if (records[i].last > root->last)
            root->last = records[i].last;
        if (records[i].bytes > root->bytes)
            root->bytes = records[i].bytes;
    }
}

static bool alive_together(const struct rp_layout_record *a, const struct rp_layout_record *b)
{
    return a->first <= b->last && b->first <= a->last;
}

/* The lowest offset for `record` among the n placed ones, which are sorted by offset. */
static uint64_t lowest_fit(const struct rp_layout_record *records,
                           const struct rp_layout_record *record, const int32_t *placed, size_t n)
{
    uint64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        const struct rp_layout_record *p = &records[placed[i]];
        if (!alive_together(record, p))
            continue;
        if (at + align_up(record->bytes) <= p->offset)
            break;
        const uint64_t end = p->offset + align_up(p->bytes);
        if (end > at)
            at = end;
    }
    return at;
}

bool rp_layout(struct rp_layout_record *records, size_t n, int32_t *scratch, uint64_t *arena_bytes)
{
    int32_t *order = scratch, *placed = scratch + n;
    size_t n_roots = 0, n_placed = 0;
    uint64_t total = 0;
    merge_aliases(records, n);
    for (size_t i = 0; i < n; i++) {
        if (records[i].alias_of >= 0 || records[i].bytes == 0) {
            records[i].offset = 0;
            continue;
        }
        if (records[i].bytes > (uint64_t)INT64_MAX - RP_LAYOUT_ALIGN - total)
            return false;
        total += align_up(records[i].bytes);
        /* Insertion keeps the largest first, and the earlier of two equals. */
        size_t at = n_roots++;
        for (; at > 0 && records[order[at - 1]].bytes < records[i].bytes; at--)
            order[at] = order[at - 1];
        order[at] = (int32_t)i;
    }
    *arena_bytes = 0;
    for (size_t k = 0; k < n_roots; k++) {
        struct rp_layout_record *r = &records[order[k]];
        r->offset = lowest_fit(records, r, placed, n_placed);
        size_t at = n_placed++;
        for (; at > 0 && records[placed[at - 1]].offset > r->offset; at--)
            placed[at] = placed[at - 1];
        placed[at] = order[k];
        if (r->offset + align_up(r->bytes) > *arena_bytes)
            *arena_bytes = r->offset + align_up(r->bytes);
    }
    for (size_t i = 0; i < n; i++)
        if (records[i].alias_of >= 0)
            records[i].offset = records[root_of(records, (int32_t)i)].offset;
    return true;
}
