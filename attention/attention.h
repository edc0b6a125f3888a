/* Attention within the sequences of a ragged batch, looking both ways or only back.
 *
 * The contract (docs/numerics.md), for one query row i of one head of one sequence of L rows:
 *     q' = q * scale (one rounding each);   s[j] = chain over d of fma(q'[d], k[j][d], acc) from 0
 *     s[j] += rel[j - i]  (if there is a relative bias)
 *     m = max over j;   p[j] = exp(s[j] - m);   sum = the 16 partial sums of p, one tree
 *     o[c] = chain over j of fma(p[j], v[j][c], acc) from 0;   out[c] = o[c] / sum
 * With a window w, j runs over the keys from i - w to i + w that there are; causal attention ends
 * at i.  Nothing of the other keys comes in, not even a NaN.
 *
 * A sequence may go on from a prefix, rows that lie elsewhere in the batch: i and j then count from
 * the prefix's first row, and the result is that of the same rows in one piece.
 *
 * j counts from the start of the sequence, so neither the place in the batch nor the neighbours
 * move a bit. The whole row of scores is kept (scratch: a few rows x L, or x the window), so
 * there is no block size in the contract.
 *
 * In a question with options a row of the header (the rows before the first marker) sees the header
 * and the markers, a row of an option these and its option.  j then counts the keys that the row
 * sees, in this order: the header's, the markers', the others of its option.
 *
 * Keys and values may be those of a memory that lies elsewhere (cross attention): every row sees
 * all of them, and j counts its rows.
 *
 * Query heads may share key heads: of H query heads and G key heads (H a multiple of G), query head
 * h uses key head h / (H / G).
 *
 * A score that is NaN or +inf makes its whole output row NaN, and so does a row of scores that are
 * all -inf: what went wrong shows, and is never averaged away.  Single scores of -inf weigh
 * nothing. (Which NaN it is, its sign and payload, is the processor's affair and outside the
 * contract.)
 *
 * A task is one key head of one sequence or memory, the query heads that use it, and a range of
 * query rows;
 * K and V are packed once for them into panels in the worker's scratch.
 */
#ifndef RP_ATTENTION_ATTENTION_H
#define RP_ATTENTION_ATTENTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where the time of a task goes. */
enum rp_attention_stage {
    RP_ATTENTION_STAGE_PACK,    /* keys, values, the bias by distance */
    RP_ATTENTION_STAGE_SCORES,  /* queries x keys */
    RP_ATTENTION_STAGE_SOFTMAX, /* bias, maximum, exponentials, sums */
    RP_ATTENTION_STAGE_VALUES,  /* exponentials x values, and the division */
    RP_ATTENTION_N_STAGES
};

struct rp_attention_args {
    const float *qkv; /* row 0 of the batch; q of query head h at column h*d, k and v of key head g
                         at columns (H+g)*d and (H+G+g)*d */
    size_t ld;
    float *out; /* columns h*d; apart from qkv */
    size_t ld_out;
    size_t out_row0; /* the batch row whose result is out's first row; 0: out has them all */
    size_t n_heads, head_dim;
    size_t n_kv_heads; /* 0: n_heads */
    float scale;
    size_t window; /* keys at most this far to either side of a row; 0: all */
    bool causal;   /* no keys after a row */
    /* Batch rows [prefix_row0, prefix_row0 + n_prefix) come before the sequence's own. */
    size_t prefix_row0, n_prefix;
    const float *
        rel; /* NULL, or [n_heads][2*rel_span+1]: bias of distance clamp(j-i, -span, span) + span */
    size_t rel_span;
    /* A question: where its markers are, ascending rows of the sequence; nothing of window, causal,
     * prefix and rel goes with it. */
    bool options;
    const int32_t *markers;
    size_t n_markers;
    /* NULL, or row 0 of a memory, of which there are 1 or more rows; nothing of the above goes with
     * it.  qkv then has queries alone.  Key head g's keys and values are at columns key_column +
     * g*d and value_column + g*d. */
    const float *memory;
    size_t ld_memory, n_memory, key_column, value_column;
    /* The scratch is as the last call left it, and that was for the same sequence and key head: so
     * many of its keys and values, the prefix's among them, are there already.  0 with a window. */
    size_t n_packed;
    uint64_t *stage_ns; /* NULL, or RP_ATTENTION_N_STAGES counters to which nanoseconds are added
                           (for benchmarks: the clock is read a few times every block of rows) */
};

struct rp_attention_kernel {
    const char *name; /* e.g. rp_attention_f32_6x16__avx2 */
    uint32_t isa;
    /* Query rows [q0, q1) of the sequence that lies at batch rows [row0, row0+len), for key head
     * `kv_head` and the query heads that use it; q1 <= len.  Any split of the rows gives the same
     * bits.  Reads the heads' columns of the rows of the sequence and of its prefix (with a memory
     * of the queries and of the memory, for queries of any sequences that lie together) and nothing
     * else, writes the query heads' columns of rows [row0+q0, row0+q1), counted from out_row0, and
     * nothing else.  Afterwards rp_attention_packed() keys and values are in the scratch.
     * scratch: aligned to 64, rp_attention_scratch_bytes() for a max_len >= n_prefix + len (with a
     * memory >= n_memory); what it holds does not matter unless n_packed says so.  Does not
     * allocate; needs less than 8 KiB of stack. */
    void (*run)(const struct rp_attention_args *args, size_t row0, size_t len, size_t kv_head,
                size_t q0, size_t q1, void *scratch);
};

const struct rp_attention_kernel *rp_attention_select(uint32_t isa);

/* All kernels of this build, slowest first, whether this machine can run them or not. */
const struct rp_attention_kernel *const *rp_attention_all(size_t *n);

/* Bytes of scratch that a worker needs for sequences up to max_len, prefixes included (a multiple
 * of 64), of the order of the window where there is one; false when the size does not fit 64 bits.
 * Covers every ISA. */
bool rp_attention_scratch_bytes(size_t max_len, size_t window, bool causal, size_t head_dim,
                                bool has_rel, size_t *out);

/* Pairs of a query row in [q0, q1) and a key that it sees, of a sequence of len rows, all counted
 * from its prefix's first row. */
uint64_t rp_attention_pairs(size_t len, size_t window, bool causal, size_t q0, size_t q1);

/* Keys that some query row in [q0, q1) sees, of such a sequence. */
size_t rp_attention_keys(size_t len, size_t window, bool causal, size_t q0, size_t q1);

/* The rows of a question that see the same keys: group 0 is the header, group g its option g - 1.
 */
struct rp_attention_group {
    size_t first, end;
    size_t keys;
};

static inline struct rp_attention_group rp_attention_group(const int32_t *markers, size_t n_markers,
                                                           size_t len, size_t g)
{
    const size_t header = n_markers ? (size_t)markers[0] : len;
    const size_t first = g ? (size_t)markers[g - 1] : 0;
    const size_t end = g < n_markers ? (size_t)markers[g] : len;
    /* An option's own marker is among the markers already. */
    const size_t own = g ? end - first - 1 : 0;
    return (struct rp_attention_group){first, end, header + n_markers + own};
}

/* rp_attention_pairs() and rp_attention_keys() of a question. */
uint64_t rp_attention_option_pairs(const int32_t *markers, size_t n_markers, size_t len, size_t q0,
                                   size_t q1);
size_t rp_attention_option_keys(const int32_t *markers, size_t n_markers, size_t len, size_t q0,
                                size_t q1);

/* What n_packed may be for the next call, after one for query rows up to q1 of a sequence of len
 * rows of its own. */
size_t rp_attention_packed(const struct rp_attention_args *args, size_t len, size_t q1);

/* How many query rows a task should have when there are `pairs` (sequence, head) pairs and n
 * workers: all of len when there are pairs enough. */
size_t rp_attention_query_rows(size_t len, size_t pairs, size_t workers);

/* T5's bidirectional bucket of a distance (key position - query position): n_buckets in all, half
 * of them for each sign, the last one from max_distance on. */
int32_t rp_attention_rel_bucket(int64_t distance, int32_t n_buckets, int32_t max_distance);

#endif
