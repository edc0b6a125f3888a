/* What the files of this folder share: the kernels, and how a task's scratch is divided. */
#ifndef RP_ATTENTION_INTERNAL_H
#define RP_ATTENTION_INTERNAL_H

#include "attention/attention.h"

#include <rankplan/machine.h>

extern const struct rp_attention_kernel rp_attention_scalar;
#if RP_HAVE_AVX2
extern const struct rp_attention_kernel rp_attention_avx2;
#endif
#if RP_HAVE_AVX512
extern const struct rp_attention_kernel rp_attention_avx512;
#endif
#if RP_HAVE_NEON
extern const struct rp_attention_kernel rp_attention_neon;
#endif

/* The most query rows that are worked on at once, and the fewest that a block is shrunk to so that
 * its scores stay near.  Multiples of every tile height or divisors of one; they move time, never a
 * bit. */
#define RP_ATTENTION_MAX_BLOCK 24
#define RP_ATTENTION_MIN_BLOCK 6
/* With a window or causal: fewer rows at once, since each of them adds a key to the block's scores
 * that the others do not see.  With a window: the most rows of a part, which packs the keys that
 * its rows see.  Packing a key costs about as much as six pairs of a row and a key, so with 192
 * rows the window's overlap with the next part costs 3 %. */
#define RP_ATTENTION_WINDOW_BLOCK 12
#define RP_ATTENTION_WINDOW_ROWS  192

/* All in floats; each offset is a multiple of 16, so that every part begins on a line of its own.
 * n is how many keys a part of the query rows sees: len without a window.
 *
 *     keys      ceil(n/16) panels [head_dim][16], rows past n zero
 *     values    ceil(head_dim/16) panels [n][16], columns past head_dim zero
 *     queries   [block][head_dim], scaled
 *     scores    [block][ld_scores]: the scores of the keys that a block sees, then their
 *               exponentials
 *     products  [block][ld_products]: before they are divided by the sum
 *     rel       n + rows - 1 biases, distance by distance, then 16 zeros
 *
 * Without a window the values' panels lie as far apart for a part as for the whole sequence, so
 * that what is packed stays good for other query rows.
 */
struct rp_attention_layout {
    size_t keys, values, queries, scores, products, rel;
    size_t total;
    size_t block;         /* query rows at once */
    size_t rows;          /* query rows of a part */
    size_t before, after; /* keys that a row sees to its sides; max_len for all of a side */
    bool windowed;        /* a part packs the keys that it sees, and not those from the first on */
    size_t ld_scores, ld_products;
    size_t padded_dim; /* to 16 */
};

/* The layout for sequences of up to max_len rows: offsets grow with max_len, and the parts of a
 * shorter sequence fit.  False when a size does not fit in size_t. */
bool rp_attention_lay_out(size_t max_len, size_t window, bool causal, size_t head_dim, bool has_rel,
                          struct rp_attention_layout *out);

/* The clock of stage_ns: adds the time since `began` to a stage's counter (none for
 * RP_ATTENTION_N_STAGES) and returns the time now; without counters it does not look at the clock.
 */
uint64_t rp_attention_lap(uint64_t *stage_ns, enum rp_attention_stage stage, uint64_t began);

#endif
