/* See sequences.h. */
#include "cli/sequences.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

void *cli_grow(void *p, size_t used, size_t n, size_t size, size_t *cap)
{
    if (p && n <= *cap - used)
        return p;
    const size_t want = 2 * (used + n);
    void *q = want < SIZE_MAX / 2 / size ? realloc(p, want * size) : NULL;
    if (q)
        *cap = want;
    return q;
}

bool cli_sequences_add(struct cli_sequences *s, int32_t x)
{
    int32_t *p = cli_grow(s->data, s->n_data, 1, sizeof *p, &s->cap_data);
    if (!p)
        return false;
    s->data = p;
    s->data[s->n_data++] = x;
    return true;
}

/* Its slot, or the free one that it is to have; there always is a free one. */
static size_t find_slot(const struct cli_sequences *s, uint64_t hash, size_t first, size_t n)
{
    size_t slot = (size_t)hash & (s->n_slots - 1);
    for (; s->slots[slot]; slot = (slot + 1) & (s->n_slots - 1)) {
        const struct cli_sequence *item = &s->items[s->slots[slot] - 1];
        if (item->hash == hash && item->n == n &&
            (n == 0 || memcmp(s->data + item->first, s->data + first, n * sizeof *s->data) == 0))
            break;
    }
    return slot;
}

/* Twice as many slots, half of them free. */
static bool widen(struct cli_sequences *s)
{
    const size_t n_slots = s->n_slots ? 2 * s->n_slots : 64;
    size_t *slots = calloc(n_slots, sizeof *slots);
    if (!slots)
        return false;
    free(s->slots);
    s->slots = slots;
    s->n_slots = n_slots;
    for (size_t i = 0; i < s->n; i++)
        s->slots[find_slot(s, s->items[i].hash, s->items[i].first, s->items[i].n)] = i + 1;
    return true;
}

bool cli_sequences_end(struct cli_sequences *s, size_t first, size_t *index)
{
    const size_t n = s->n_data - first;
    const uint64_t hash =
        XXH3_64bits(n ? (const void *)(s->data + first) : "", n * sizeof *s->data);
    struct cli_sequence *items = cli_grow(s->items, s->n, 1, sizeof *items, &s->cap);
    if (items)
        s->items = items;
    if (!items || (2 * (s->n + 1) > s->n_slots && !widen(s)))
        return false;
    const size_t slot = find_slot(s, hash, first, n);
    if (s->slots[slot]) {
        s->n_data = first;
    } else {
        s->items[s->n++] = (struct cli_sequence){hash, first, n};
        s->slots[slot] = s->n;
    }
    *index = s->slots[slot] - 1;
    return true;
}

void cli_sequences_free(struct cli_sequences *s)
{
    free(s->data);
    free(s->items);
    free(s->slots);
    memset(s, 0, sizeof *s);
}
