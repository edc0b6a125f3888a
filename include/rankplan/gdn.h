/* Gated delta nets outside of a graph: token by token or in chunks, with states that live across
 * calls.
 *
 * A layer keeps for each sequence and each of its value heads a matrix S, key_dim x value_dim.  A
 * row (token) has q, k, v, a decay and a beta per head, and does to it
 *
 *     S *= decay;   S += k (beta (v - S^T k))^T;   out = S^T q       (Yang et al. 2024,
 *                                                                     "Gated Delta Networks")
 *
 * An rp_gdn_states holds the states of many sequences in slots, numbered by the caller.  A run
 * takes any number of rows for any of its slots: one row each is decoding, many are a prompt.
 *
 *     rp_gdn_states_create(&options, &states, &err);     all slots begin as zeros
 *     rp_gdn_run_block(states, &block, &batch, &err);    the rows of some slots, whole block
 *     rp_gdn_run(states, &batch, &err);                  the same, the rule alone
 *     rp_gdn_states_fork(states, from, to, &err);        shares memory until one of both is run
 *     rp_gdn_states_reset(states, slot, &err);           zeros again, the memory is free again
 *
 * The bits of a result depend on the sequence's state and rows alone: not on threads, batch mates,
 * slots, or what ran before.  How a sequence is cut into calls does move last bits, since rows are
 * computed in chunks that are counted from a call's first row (docs/numerics.md).
 *
 * A call that fails leaves every state as it was, but with in_place when finite inputs overflow.
 * rp_gdn_run_block is one call for what the convolution keeps and the state of the rule.  Where
 * both are called by themselves, each is for itself: if rp_gdn_run fails behind an rp_gdn_conv that
 * did not, the rows that the convolution keeps have moved on.  Then call rp_gdn_run again, alone;
 * or fork the slot before both.
 */
#ifndef RANKPLAN_GDN_H
#define RANKPLAN_GDN_H

#include <rankplan/graph.h>
#include <rankplan/machine.h>
#include <rankplan/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- states -----------------------------------------------------------------------------------
 */

typedef struct rp_gdn_states rp_gdn_states;

typedef struct rp_gdn_states_options {
    size_t struct_size; /* sizeof(rp_gdn_states_options) */
    rp_gdn gdn;         /* heads, dims and conventions (graph.h) */
    /* False (default): rows bring the decay's logarithm, -inf for a factor of 0.  True: the factor
     * itself.  (rp_gdn_run_block makes the decays and does not look at this.) */
    bool linear_decay;
    size_t n_slots; /* at most 2^30.  Layers of equal shape can share one object: a slot for
                       each layer of each sequence */
    /* How states are stored: RP_DTYPE_F32 (default), or half of that in RP_DTYPE_BF16 or
     * RP_DTYPE_F16.  Halves are widened when a run begins and rounded, to nearest even, when it
     * ends; in between all is f32. */
    rp_dtype dtype;
    /* The convolution before the rule: each slot then also keeps the last conv_kernel - 1 rows of
     * what went into it (rp_gdn_conv).  0 channels (default): none.  conv_kernel is 1 to 8.
     * rp_gdn_run_block needs as many channels as q, k and v have numbers. */
    size_t conv_channels, conv_kernel;
    /* False (default): a run writes new states beside the old ones and takes them over at its end,
     * so that no failure can change one.  True: it writes over them, which spares a third of the
     * memory traffic (runs of one row took 60 % of the time); inputs are checked before as ever,
     * but when finite inputs overflow, what the slots of that batch hold is of no use. */
    bool in_place;
    rp_pool *pool; /* borrowed, and outlives the object; NULL (default): the calling thread alone */
    uint32_t isa;  /* mask of what may be used, of what there is; default RP_ISA_DEFAULT */
} rp_gdn_states_options;

/* Fills in the defaults above; gdn and n_slots are the caller's to set. */
RP_API void rp_gdn_states_options_init(rp_gdn_states_options *options);

/* States of n_slots sequences, all zeros.  Allocates all that it and its runs will ever need:
 * memory for twice n_slots states (in_place: one and a half times), of which what was never used is
 * never touched, and scratch for each thread of the pool.  One thread at a time may use the object;
 * any number of objects may share a pool.
 * RP_ERR_INVALID (an option out of range, heads that do not divide, or what RANKPLAN_ISA names is
 * unknown), RP_ERR_UNSUPPORTED (it names what the machine has not), RP_ERR_LIMIT (a size past 2^63
 * bytes, by name), RP_ERR_NOMEM. */
RP_API RP_CHECKED rp_status rp_gdn_states_create(const rp_gdn_states_options *options,
                                                 rp_gdn_states **out, rp_error *err);

/* Frees it.  NULL does nothing. */
RP_API void rp_gdn_states_destroy(rp_gdn_states *states);

/* None of the following allocates.  All fail with RP_ERR_INVALID for a slot that there is not, and
 * where a pointer to numbers is NULL. */

/* The state of a new sequence: zeros.  The slot's memory is free for others. */
RP_API RP_CHECKED rp_status rp_gdn_states_reset(rp_gdn_states *states, int32_t slot, rp_error *err);

/* Slot `to` becomes what `from` is, whatever it was.  Costs nothing: both share memory until one of
 * them is written.  A slot forked to itself stays as it is. */
RP_API RP_CHECKED rp_status rp_gdn_states_fork(rp_gdn_states *states, int32_t from, int32_t to,
                                               rp_error *err);

/* How a caller lays out a state, head after head. */
typedef enum rp_gdn_layout {
    RP_GDN_KEY_VALUE = 0, /* [value head][key][value] */
    RP_GDN_VALUE_KEY = 1  /* [value head][value][key] */
} rp_gdn_layout;

/* The state of a slot, n_value_heads * key_dim * value_dim floats, out of and into the caller's
 * memory.  Setting rounds to the dtype of the states; RP_ERR_NONFINITE (and the slot stays as it
 * was) when a number is NaN or infinite, before or after rounding. */
RP_API RP_CHECKED rp_status rp_gdn_states_get(const rp_gdn_states *states, int32_t slot,
                                              rp_gdn_layout layout, float *out, rp_error *err);
RP_API RP_CHECKED rp_status rp_gdn_states_set(rp_gdn_states *states, int32_t slot,
                                              rp_gdn_layout layout, const float *in, rp_error *err);

/* The rows that the convolution keeps, [conv_kernel - 1][conv_channels], the oldest first.
 * RP_ERR_INVALID for states without a convolution; RP_ERR_NONFINITE (and the slot stays as it was)
 * when a number is NaN or infinite. */
RP_API RP_CHECKED rp_status rp_gdn_states_get_conv(const rp_gdn_states *states, int32_t slot,
                                                   float *out, rp_error *err);
RP_API RP_CHECKED rp_status rp_gdn_states_set_conv(rp_gdn_states *states, int32_t slot,
                                                   const float *in, rp_error *err);

/* Where a slot's numbers lie, for a device that reads or writes them: at a multiple of 16 KiB, as
 * is the end of what belongs to them alone.  (Those are whole pages where a page has 4 or 16 KiB.)
 */
typedef struct rp_gdn_memory {
    void *state; /* of the dtype: [key head][its value heads, ascending][key][value] */
    size_t state_bytes;
    void *conv; /* f32, [conv_kernel - 1][conv_channels]; NULL without */
    size_t conv_bytes;
} rp_gdn_memory;

/* The slot's memory, to itself from now on (what it shared with a fork is copied, zeros are
 * written), so ask again after a fork.  Valid until the slot is run, forked from or to, reset or
 * set: every run but one in_place moves its state, every rp_gdn_conv counts as a run. */
RP_API RP_CHECKED rp_status rp_gdn_states_memory(rp_gdn_states *states, int32_t slot,
                                                 rp_gdn_memory *out, rp_error *err);

/* Bytes asked of the allocator, and bytes of states that slots hold now (forks that share count
 * once, zeros not at all). */
RP_API uint64_t rp_gdn_states_bytes(const rp_gdn_states *states);
RP_API uint64_t rp_gdn_states_used_bytes(const rp_gdn_states *states);

/* ---- runs -------------------------------------------------------------------------------------
 */

/* Rows of floats in the caller's memory: row r of the batch begins at data + r * ld. */
typedef struct rp_gdn_input {
    const float *data;
    size_t ld;
} rp_gdn_input;

typedef struct rp_gdn_batch {
    size_t struct_size; /* sizeof(rp_gdn_batch) */
    size_t n_seqs;
    const int32_t *slots; /* n_seqs, all different */
    const int32_t *cu;    /* n_seqs + 1 ascending from 0: the rows of sequence s are cu[s] up to
                             cu[s+1]; a sequence without rows keeps its state.  NULL: one row
                             each */
    rp_gdn_input q, k;    /* n_key_heads * key_dim */
    rp_gdn_input v;       /* n_value_heads * value_dim */
    rp_gdn_input decay;   /* n_value_heads; see linear_decay */
    rp_gdn_input beta;    /* n_value_heads */
    float *out;           /* n_value_heads * value_dim a row; apart from all inputs */
    size_t ld_out;
    /* NULL, or the state after each row: rows x n_value_heads * key_dim * value_dim.  To the bit
     * what the slot would hold had its sequence ended there; out has the same bits as without.
     * Apart from out and all inputs.  Costs as much as running each beginning of each chunk: meant
     * for a few rows, as when drafted tokens are tried and the last one accepted is where to go on
     * from. */
    float *steps;
    rp_gdn_layout steps_layout;
} rp_gdn_batch;

RP_API void rp_gdn_batch_init(rp_gdn_batch *batch);

/* Runs the rows of the batch through the delta rule and puts its slots forward.  Sequences, heads
 * and, when those are few, value columns are shared over the pool.  Does not allocate.
 * RP_ERR_INVALID (a slot out of range or named twice, cu not ascending, no data, rows that overlap
 * each other), RP_ERR_LIMIT (rows that reach past 2^63 bytes, by name), RP_ERR_NONFINITE (a NaN or
 * an infinity in an input, naming input, row and column, or in what came out of finite ones, naming
 * row and column of out, or else the slot whose state it is: of several the first in the batch),
 * RP_ERR_SYSTEM and RP_ERR_NOMEM (the pool's threads in the child of a fork).  When it fails, out
 * and steps may have been written, states not (but see in_place). */
RP_API RP_CHECKED rp_status rp_gdn_run(rp_gdn_states *states, const rp_gdn_batch *batch,
                                       rp_error *err);

/* The causal convolution of each channel by itself that comes before the rule:
 *
 *     out[t][c] = activation(b[c] + sum over i of w[c][i] * x[t - conv_kernel + 1 + i][c])
 *
 * where rows before the first are what the slot keeps. */
typedef struct rp_gdn_conv_batch {
    size_t struct_size; /* sizeof(rp_gdn_conv_batch) */
    size_t n_seqs;
    const int32_t *slots, *cu; /* as of rp_gdn_batch */
    rp_gdn_input x;            /* conv_channels */
    const float *w; /* [conv_channels][conv_kernel], the last column for the row itself, as in
                       checkpoints and rp_graph_conv */
    const float *b; /* conv_channels, or NULL */
    rp_activation activation; /* default RP_ACT_SILU */
    float *out;               /* conv_channels a row; apart from x */
    size_t ld_out;
} rp_gdn_conv_batch;

RP_API void rp_gdn_conv_batch_init(rp_gdn_conv_batch *batch);

/* Runs the rows of the batch through the convolution; its slots then keep the last rows of x.  A
 * row's bits are the same wherever its sequence is cut into calls.  Does not allocate.  Fails as
 * rp_gdn_run, and then all that slots keep is as it was, in_place or not; RP_ERR_INVALID also for
 * states without a convolution. */
RP_API RP_CHECKED rp_status rp_gdn_conv(rp_gdn_states *states, const rp_gdn_conv_batch *batch,
                                        rp_error *err);

/* ---- the whole block ---------------------------------------------------------------------------
 */

/* What is between a layer's first projections and its last one, in one call:
 *
 *     q, k, v = conv_activation(conv(q, k, v))             as rp_gdn_conv
 *     decay   = exp(-exp(a_log) softplus(a + dt_bias)),  beta = beta_scale sigmoid(b)
 *     o       = the delta rule                             as rp_gdn_run
 *     out     = o / sqrt(sum(o^2) / value_dim + norm_eps) * norm_w * gate_activation(z)
 *
 * with the sum over a value head.  To the bit what rp_gdn_conv, gates, rp_gdn_run and a gated norm
 * give one after the other, and what rp_graph_conv, _gdn_gates, _gdn and _gated_norm do.
 *
 * The numbers of the block, borrowed for the call.  Heads are numbered as everywhere here: where
 * v, z, a, b have value head h, and out too, a_log and dt_bias have it. */
typedef struct rp_gdn_block {
    size_t struct_size;   /* sizeof(rp_gdn_block) */
    const float *conv_w;  /* [channels][conv_kernel], the last column for the row itself; channels
                             are those of all q, then all k, then all v */
    const float *conv_b;  /* channels, or NULL (default) */
    const float *a_log;   /* n_value_heads */
    const float *dt_bias; /* n_value_heads, or NULL (default) */
    const float *norm_w;  /* value_dim, or NULL (default): all 1 */
    float norm_eps;       /* finite, not negative; default 1e-6.  With 0 a head whose o is all zeros
                             gives NaN, and so RP_ERR_NONFINITE */
    float beta_scale;     /* finite, not negative; 0: 1 (default) */
    bool linear_rate;     /* a_log is the factor -exp(a_log) itself */
    rp_activation conv_activation, gate_activation; /* default RP_ACT_SILU */
} rp_gdn_block;

RP_API void rp_gdn_block_init(rp_gdn_block *block);

/* Rows that a projection gave: row r of the batch begins ld * r numbers behind data. */
typedef struct rp_gdn_projection {
    const void *data; /* aligned as its numbers */
    size_t ld;        /* numbers, not bytes */
    rp_dtype dtype;   /* halves are widened when they are read, and all is f32 from there on */
} rp_gdn_projection;

typedef struct rp_gdn_block_batch {
    size_t struct_size; /* sizeof(rp_gdn_block_batch) */
    size_t n_seqs;
    const int32_t *slots, *cu; /* as of rp_gdn_batch */

    /* Either packed by key head, as Qwen3-Next's fused projections have it.  A row of qkvz is, for
     * each key head: its q, its k, the v of its value heads, their z.  A row of ba: the b of its
     * value heads, their a.  A key head's value heads come in ascending order. */
    rp_gdn_projection qkvz; /* 2 * n_key_heads * key_dim + 2 * n_value_heads * value_dim */
    rp_gdn_projection ba;   /* 2 * n_value_heads */

    /* Or by themselves, in place of qkvz and of ba; columns of one wide row if they share data's
     * row and ld. */
    rp_gdn_projection q, k; /* n_key_heads * key_dim */
    rp_gdn_projection v, z; /* n_value_heads * value_dim */
    rp_gdn_projection b, a; /* n_value_heads */

    /* n_value_heads * value_dim a row, apart from all inputs and weights.  f32, whatever the inputs
     * are: whose next product takes halves rounds them on the way there. */
    float *out;
    size_t ld_out;
} rp_gdn_block_batch;

RP_API void rp_gdn_block_batch_init(rp_gdn_block_batch *batch);

/* Runs the rows of the batch through the block, and puts forward what its slots keep of the
 * convolution and their state.  Sequences, key heads and, when those are few, value heads are
 * shared over the pool.  Does not allocate.
 * RP_ERR_INVALID as rp_gdn_run, and for states whose convolution has other channels, a weight that
 * is missing, a projection that is given twice or not at all; RP_ERR_LIMIT as rp_gdn_run;
 * RP_ERR_NONFINITE as rp_gdn_run, or naming row and channel where the convolution of finite inputs
 * is none; RP_ERR_SYSTEM and RP_ERR_NOMEM (the pool's threads in the child of a fork).
 * When it fails, out may have been written, and the slots hold what they held: what they keep of
 * the convolution always, their states too, but with in_place when finite inputs overflow or a
 * weight is no number. */
RP_API RP_CHECKED rp_status rp_gdn_run_block(rp_gdn_states *states, const rp_gdn_block *block,
                                             const rp_gdn_block_batch *batch, rp_error *err);

#ifdef __cplusplus
}
#endif
#endif
