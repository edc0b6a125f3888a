/* Blocks of memory behind slots (see blocks.h). */
#include "gdn/blocks.h"

#include "pool/error.h"
#include "pool/memory.h"

#include <assert.h>
#include <string.h>

static rp_status take_tables(struct rp_blocks *b, size_t n_slots, size_t n_blocks)
{
    /* Slots are at most INT32_MAX, blocks twice that: these fit. */
    b->refs = rp_aligned_alloc_zero(n_blocks * sizeof *b->refs);
    b->free = rp_aligned_alloc(n_blocks * sizeof *b->free);
    b->of_slot = rp_aligned_alloc(n_slots * sizeof *b->of_slot);
    b->next = rp_aligned_alloc(n_slots * sizeof *b->next);
    if (!b->refs || !b->free || !b->of_slot || !b->next)
        return RP_ERR_NOMEM;
    memset(b->of_slot, 0xff, n_slots * sizeof *b->of_slot);
    for (size_t i = 0; i < n_blocks; i++)
        b->free[i] = (int32_t)(n_blocks - 1 - i); /* the first block is taken first */
    b->n_blocks = b->n_free = n_blocks;
    return RP_OK;
}

rp_status rp_blocks_init(struct rp_blocks *b, const char *what, size_t n_slots, size_t n_blocks,
                         size_t bytes, rp_error *err)
{
    size_t total;
    *b = (struct rp_blocks){.bytes = bytes};
    if (bytes == 0)
        return RP_OK;
    if (bytes > PTRDIFF_MAX - RP_BLOCK_ALIGN)
        return rp_fail(err, RP_ERR_LIMIT, "a %s of %zu bytes is past what memory can hold", what,
                       bytes);
    b->stride = rp_round_up(bytes, RP_BLOCK_ALIGN);
    if (!rp_mul_ok(b->stride, n_blocks, &total) || !rp_add_ok(total, RP_BLOCK_ALIGN, &total) ||
        total > PTRDIFF_MAX)
        return rp_fail(err, RP_ERR_LIMIT,
                       "%zu blocks of a %s of %zu bytes are past what memory can "
                       "hold",
                       n_blocks, what, bytes);
    b->memory_bytes = total;
    b->memory = rp_aligned_alloc(total);
    if (!b->memory || take_tables(b, n_slots, n_blocks) != RP_OK)
        return rp_fail(err, RP_ERR_NOMEM, "no memory for %zu blocks of a %s of %zu bytes", n_blocks,
                       what, bytes);
    b->first =
        b->memory + (RP_BLOCK_ALIGN - (uintptr_t)b->memory % RP_BLOCK_ALIGN) % RP_BLOCK_ALIGN;
    return RP_OK;
}

void rp_blocks_fini(struct rp_blocks *b)
{
    rp_aligned_free(b->memory);
    rp_aligned_free(b->refs);
    rp_aligned_free(b->free);
    rp_aligned_free(b->of_slot);
    rp_aligned_free(b->next);
    *b = (struct rp_blocks){0};
}

static void *block(const struct rp_blocks *b, int32_t i)
{
    return i < 0 ? NULL : b->first + (size_t)i * b->stride;
}

static int32_t take(struct rp_blocks *b)
{
    assert(b->n_free > 0);
    const int32_t i = b->free[--b->n_free];
    b->refs[i] = 1;
    return i;
}

static void drop(struct rp_blocks *b, int32_t i)
{
    if (i >= 0 && --b->refs[i] == 0)
        b->free[b->n_free++] = i;
}

const void *rp_blocks_read(const struct rp_blocks *b, size_t slot)
{
    return b->bytes ? block(b, b->of_slot[slot]) : NULL;
}

void rp_blocks_reset(struct rp_blocks *b, size_t slot)
{
    if (!b->bytes)
        return;
    drop(b, b->of_slot[slot]);
    b->of_slot[slot] = -1;
}

void rp_blocks_fork(struct rp_blocks *b, size_t from, size_t to)
{
    if (!b->bytes || from == to)
        return;
    drop(b, b->of_slot[to]);
    b->of_slot[to] = b->of_slot[from];
    if (b->of_slot[to] >= 0)
        b->refs[b->of_slot[to]]++;
}

void *rp_blocks_begin(struct rp_blocks *b, size_t slot, bool over)
{
    if (!b->bytes)
        return NULL;
    const int32_t now = b->of_slot[slot];
    b->next[slot] = over && now >= 0 && b->refs[now] == 1 ? now : take(b);
    return block(b, b->next[slot]);
}

void rp_blocks_end(struct rp_blocks *b, size_t slot, bool keep)
{
    if (!b->bytes || b->next[slot] == b->of_slot[slot])
        return;
    drop(b, keep ? b->of_slot[slot] : b->next[slot]);
    if (keep)
        b->of_slot[slot] = b->next[slot];
}

void *rp_blocks_own(struct rp_blocks *b, size_t slot)
{
    if (!b->bytes)
        return NULL;
    const void *now = rp_blocks_read(b, slot);
    void *own = rp_blocks_begin(b, slot, true);
    if (!now)
        memset(own, 0, b->bytes);
    else if (now != own)
        memcpy(own, now, b->bytes);
    rp_blocks_end(b, slot, true);
    return own;
}

size_t rp_blocks_used_bytes(const struct rp_blocks *b)
{
    return (b->n_blocks - b->n_free) * b->bytes;
}
