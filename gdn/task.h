/* Running rows through the states of slots: what rp_gdn_run and rp_gdn_run_block have in common.
 *
 * A task is one sequence, one key head with its value heads, and a range of their value columns.
 * It takes the state's columns from where the slot has them to where it is about to have them, has
 * the caller take all rows through them, and stores them.  New states become the slots' only when
 * all tasks have ended well.
 */
#ifndef RP_GDN_TASK_H
#define RP_GDN_TASK_H

#include "gdn/batch.h"
#include "pool/pool.h"

#include <stdatomic.h>

struct rp_gdn_task {
    const struct rp_gdn_run *run;
    const rp_gdn_states *s;
    const struct rp_gdn_seq *seq;
    size_t key_head, c0, c1;
    /* The key head's part of the slot, as it was and as it will be. */
    const void *from;
    void *to;
    float *state; /* the state that the kernel works on: `to` itself when that is f32 */
    float *step, *qkv, *gates, *out;
    unsigned char *scratch; /* laid out as struct rp_gdn_scratch says */
    size_t row;             /* of the batch: the state's step to write */
    bool bad_state, bad_out;
    size_t bad_conv; /* row * channels + channel of the first; SIZE_MAX: none */
};

struct rp_gdn_run {
    rp_gdn_states *states;
    const void *user;                  /* the caller's, for the two functions */
    const struct rp_gdn_named *inputs; /* looked through before anything is written */
    size_t n_inputs;
    struct rp_gdn_named out;
    struct rp_gdn_args args; /* of the states, but for what the caller changes */
    size_t n_rows;
    size_t column_step; /* tasks begin at multiples of it */
    /* Takes all rows of the task's sequence through its columns of t->state. */
    void (*rows)(struct rp_gdn_task *t);
    /* NULL, or writes what the sequence's slot keeps of the convolution, when nothing can fail any
     * more. */
    void (*keep)(const struct rp_gdn_run *run, const struct rp_gdn_seq *seq);

    /* For gdn/task.c alone. */
    size_t n_seqs; /* sequences that have rows */
    size_t n_parts, part_columns;
    struct rp_counter checks, tasks, kept;
    atomic_bool bad_input, bad_out;
    atomic_size_t bad_state; /* the first sequence whose state is none; SIZE_MAX: none is */
    atomic_size_t bad_conv;  /* as of the tasks */
};

/* What follows from the states alone; the rest is zeros. */
void rp_gdn_run_init(struct rp_gdn_run *run, rp_gdn_states *states);

/* The kernel on rows of t->qkv and t->gates, for the task's columns of `state`. */
void rp_gdn_run_pieces(const struct rp_gdn_task *t, const struct rp_gdn_rows *pieces, size_t n,
                       float *state);

/* All of it, once the batch is known to be good but for its numbers. */
RP_CHECKED rp_status rp_gdn_execute(struct rp_gdn_run *run, size_t n_seqs, const int32_t *slots,
                                    const int32_t *cu, rp_error *err);

#endif
