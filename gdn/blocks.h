/* Blocks of memory behind slots, shared by those that are copies of each other.
 *
 *     slot     0    1    2    3          of_slot    0    0    -    2
 *               \  /          |          refs       2    -    1
 *     block      0       1    2
 *
 * A slot without a block is all zeros, so resetting costs nothing, and so does forking: one more
 * reference.  Writing is in two steps, so that it can be taken back: rp_blocks_begin() gives the
 * memory to write into, the slot's own or a spare block's, and rp_blocks_end() makes that the
 * slot's or forgets it.  Between the two all slots are what they were.
 *
 * With n_slots * 2 blocks each of them can be written at once beside what they hold.  Where slots
 * write over blocks that they hold alone, those that share need spare ones, and there are the most
 * of them when pairs share: a half as many blocks as slots.
 */
#ifndef RP_GDN_BLOCKS_H
#define RP_GDN_BLOCKS_H

#include <rankplan/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Blocks begin at multiples of this: whole pages where a page has 4 or 16 KiB. */
#define RP_BLOCK_ALIGN ((size_t)16384)

struct rp_blocks {
    unsigned char *memory, *first; /* as allocated; aligned */
    size_t bytes;  /* of what a block holds; 0: there are none, and no call does anything */
    size_t stride; /* from a block to the next */
    size_t memory_bytes;
    size_t n_blocks, n_free;
    uint32_t *refs;   /* of each block */
    int32_t *free;    /* a stack of blocks without any */
    int32_t *of_slot; /* -1: zeros */
    int32_t *next;    /* between begin and end: what the slot is about to become */
};

/* All slots zeros.  Memory is taken, and only touched when it is used.  RP_ERR_LIMIT, RP_ERR_NOMEM
 * name `what`.  rp_blocks_fini() frees what there is, also after a failure; zeroed is fine. */
RP_CHECKED rp_status rp_blocks_init(struct rp_blocks *b, const char *what, size_t n_slots,
                                    size_t n_blocks, size_t bytes, rp_error *err);
void rp_blocks_fini(struct rp_blocks *b);

/* NULL: zeros. */
const void *rp_blocks_read(const struct rp_blocks *b, size_t slot);

void rp_blocks_reset(struct rp_blocks *b, size_t slot);
void rp_blocks_fork(struct rp_blocks *b, size_t from, size_t to);

/* Memory to write the slot's next content into: with `over` its own where nobody shares it (then it
 * is what rp_blocks_read() gives), else a spare block with anything in it. */
void *rp_blocks_begin(struct rp_blocks *b, size_t slot, bool over);
void rp_blocks_end(struct rp_blocks *b, size_t slot, bool keep);

/* The slot's content in memory of its own, copied or zeroed if need be. */
void *rp_blocks_own(struct rp_blocks *b, size_t slot);

size_t rp_blocks_used_bytes(const struct rp_blocks *b);

#endif
