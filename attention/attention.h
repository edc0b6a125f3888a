/* Bidirectional attention within the sequences of a ragged batch.
 *
 * The contract (docs/numerics.md), for one query row i of one head of one sequence of L rows:
 *     q' = q * scale (one rounding each);   s[j] = chain over d of fma(q'[d], k[j][d], acc) from 0
 *     s[j] += rel[j - i]  (if there is a relative bias)
 *     m = max over j;   p[j] = exp(s[j] - m);   sum = the 16 partial sums of p, one tree
 *     o[c] = chain over j of fma(p[j], v[j][c], acc) from 0;   out[c] = o[c] / sum
 * j counts from the start of the sequence, so neither the place in the batch nor the neighbours move a bit.
 * The whole row of scores is kept (scratch: a few rows x L), so there is no block size in the contract.
 *
 * A task is one head of one sequence and a range of its query rows; K and V are packed per head into
 * panels in the worker's scratch.
 */
#ifndef RP_ATTENTION_ATTENTION_H
#define RP_ATTENTION_ATTENTION_H

#include "gemm/gemm.h"
#include "ops/ops.h"

struct rp_attention_args {
    const float *qkv; /* row 0 of the batch; q, k, v of head h at columns h*d, (H+h)*d, (2H+h)*d */
    size_t ld;
    float *out; /* columns h*d */
    size_t ld_out;
    size_t n_heads, head_dim;
    float scale;
    const float *rel; /* NULL, or [n_heads][2*rel_span+1]: bias of distance clamp(j-i, -span, span) + span */
    size_t rel_span;
};

struct rp_attention_kernel {
    const char *name; /* e.g. rp_attention_f32__avx2 */
    uint32_t isa;
    /* Query rows [q0, q1) of the sequence that lies at batch rows [row0, row0+len), head `head`. */
    void (*run)(const struct rp_attention_args *args, const struct rp_gemm_kernel *gemm, size_t row0,
                size_t len, size_t head, size_t q0, size_t q1, void *scratch);
};

const struct rp_attention_kernel *rp_attention_select(uint32_t isa);
const struct rp_attention_kernel *const *rp_attention_all(size_t *n);

/* Bytes of scratch that a worker needs for sequences up to max_len (a multiple of 64); false when the size
 * does not fit 64 bits.  Covers every ISA. */
_Bool rp_attention_scratch_bytes(size_t max_len, size_t head_dim, _Bool has_rel, size_t *out);

/* How many query rows a task should have when there are `heads_times_seqs` (sequence, head) pairs and n
 * workers: all of len when there are pairs enough. */
size_t rp_attention_query_rows(size_t len, size_t pairs, size_t workers);

/* T5's bidirectional bucket of a distance (key position - query position): n_buckets in all, half of them for
 * each sign, the last one from max_distance on. */
int32_t rp_attention_rel_bucket(int64_t distance, int32_t n_buckets, int32_t max_distance);

#endif
