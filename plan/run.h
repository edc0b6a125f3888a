/* A run: one batch through one plan, on the workers of a pool, in memory that the session owns. */
#ifndef RP_PLAN_RUN_H
#define RP_PLAN_RUN_H

#include "plan/plan.h"
#include "plan/profile.h"
#include "plan/stop.h"
#include "pool/pool.h"

/* Query rows [q0, q1) of one sequence: the unit that attention's tasks are made of, for each head.
 */
struct rp_query_block {
    int32_t seq, q0, q1;
};

/* A stretch of steps after which the workers meet. */
struct rp_phase {
    size_t first, end; /* steps */
    size_t n_tasks;
    size_t rows;        /* rows of a task; 0: a task is a sequence, or queries of a head */
    size_t heads;       /* of a task, for attention of a sequence's rows that are read */
    size_t panel_group; /* column panels of a task, for a product alone; 0: all of them */
    size_t conv_rows;   /* rows of a task of a convolution */
    size_t columns;     /* of a key head's values that a task of a gated delta net takes */
    size_t cross_rows;  /* most rows of a task of cross attention, */
    size_t cross_parts; /* and how many tasks a head of the memory with the most rows has */
};

struct rp_run {
    const rp_plan *plan;
    const rp_batch *batch;
    enum rp_mode mode; /* of the whole run: both modes have their own places for slots */
    rp_bucket live;    /* the rows that the batch has */
    unsigned char *arena;
    unsigned char *scratch; /* plan->scratch_bytes for each worker */
    size_t scratch_stride;
    const int32_t *index[RP_PLAN_MAX_INDICES];
    int32_t *index_memory; /* room for the indices that are computed, bucket.tokens each */
    struct rp_query_block *blocks;
    size_t n_blocks;
    int32_t *roots; /* sequences without a parent, in order */
    size_t n_roots;
    int32_t *next;     /* of a root its first child, of a child the next one; -1 for none */
    int32_t *memories; /* n_memories + 1: where sequences begin that read one memory together */
    size_t n_memories;
    struct rp_phase *phases; /* one per step at the most */
    size_t n_phases;
    struct rp_counter *counters; /* one per phase */
    bool *wanted;                /* steps that the observer asked for */
    const rp_observer *observer;
    struct rp_profiling *profile; /* NULL: off */
    rp_pool *pool;
    const struct rp_stop *stop;
    bool may_stop; /* there is something to look at between steps */
    /* The meeting at which the workers leave, RP_RUN_GOES_ON for none.  Set once a run, by the
     * worker that writes the next three fields. */
    atomic_size_t leave_at;
    rp_status stop_status;
    rp_status observer_status; /* with RP_ERR_STOPPED */
    size_t stop_step;          /* which was not run any more; shown, with RP_ERR_STOPPED */
};

#define RP_RUN_GOES_ON SIZE_MAX

/* The sequence whose rows come before the first of `seq`, or -1. */
static inline int32_t rp_batch_parent(const rp_batch *batch, size_t seq)
{
    return batch->parents ? batch->parents[seq] : -1;
}

/* How many rows come before the first of `seq`: its parent's. */
static inline size_t rp_batch_rows_before(const rp_batch *batch, size_t seq)
{
    const int32_t parent = rp_batch_parent(batch, seq);
    return parent < 0 ? 0 : (size_t)(batch->cu[parent + 1] - batch->cu[parent]);
}

/* What a step is, when its sequences cannot have parents; else NULL.  plan/parents.c */
const char *rp_step_refuses_parents(const rp_plan *plan, const struct rp_step *step);

/* Where a slot's rows are for one worker at one time. */
struct rp_frame {
    const struct rp_run *run;
    size_t worker;
    unsigned char *scratch;
    size_t chunk_row0; /* by chunk: the row that the scratch starts with */
};

/* plan/steps.c */
float *rp_frame_row(const struct rp_frame *frame, int32_t slot, size_t row);

/* Rows [r0, r1) of a step that works by row; products only columns of panels [p0, p1). */
void rp_step_rows(const struct rp_step *step, const struct rp_frame *frame, size_t r0, size_t r1,
                  size_t p0, size_t p1);

/* What a product reads: rows of k numbers, or of bytes that stand for them, and packed panels. */
struct rp_operands {
    const void *rows;
    const void *packed;
    const float *bias; /* or NULL */
    size_t k;
    bool int8;
};

/* Where the columns of a product go, and how it ends. */
struct rp_product {
    float *c;
    size_t n, ldc;      /* columns of C, and from row to row of it and of the residual */
    size_t first_panel; /* of the weight, for C's first columns */
    rp_activation activation;
    const float *residual; /* or NULL */
    bool multiply;         /* by the residual */
};

/* Rows [0, rows) of it, columns of panels [p0, p1). */
void rp_multiply(const rp_plan *plan, const struct rp_operands *from, const struct rp_product *to,
                 size_t rows, size_t p0, size_t p1);

void rp_step_multiply(const struct rp_step *step, const struct rp_frame *frame,
                      const struct rp_product *product, size_t r0, size_t r1, size_t p0, size_t p1);

/* plan/joins.c: rows [r0, r1) of a step and of the one after it, which joins it; where it joins a
 * product only columns of panels [p0, p1) of its own. */
void rp_step_rows_joined(const struct rp_step *step, const struct rp_frame *frame, size_t r0,
                         size_t r1, size_t p0, size_t p1);

/* plan/experts.c: rows [r0, r1) of a mixture of experts. */
void rp_step_experts(const struct rp_step *step, const struct rp_frame *frame, size_t r0,
                     size_t r1);

/* plan/cross.c: a task of cross attention, rows [r0, r1) of the step, which read one memory, with a
 * head of its keys. */
struct rp_cross_part {
    const rp_memory *memory;
    size_t kv_head, r0, r1; /* r0 >= r1: none are left */
};

struct rp_cross_part rp_step_cross_part(const struct rp_step *step, const struct rp_run *run,
                                        size_t t, const struct rp_phase *phase);
void rp_step_cross(const struct rp_step *step, const struct rp_frame *frame, size_t t,
                   const struct rp_phase *phase);

/* Fills in the tasks of a phase of cross attention. */
void rp_phase_cross(const struct rp_step *step, const struct rp_run *run, size_t workers,
                    struct rp_phase *phase);

/* Pairs of a row of the step and a row of its memory. */
uint64_t rp_step_cross_pairs(const struct rp_step *step, const rp_batch *batch);

/* Finds the memories that sequences one after the other share. */
void rp_run_find_memories(struct rp_run *run);

/* Task t of a step that does not work by row; phase: its own. */
void rp_step_task(const struct rp_step *step, const struct rp_frame *frame, size_t t,
                  const struct rp_phase *phase);

/* The range that i is in: ranges [starts[k], starts[k + 1]) lie one after the other, n of them, and
 * i is in one. */
size_t rp_range_of(const int32_t *starts, size_t n, size_t i);

/* The rows [*first, *end) that a step has of one sequence, when it has only those that are read. */
void rp_step_read_rows(const struct rp_step *step, const rp_batch *batch, size_t seq, size_t *first,
                       size_t *end);

/* plan/recurrence.c: rows [r0, r1) of a convolution, of any sequences. */
void rp_step_convolve(const struct rp_step *step, const struct rp_frame *frame, size_t r0,
                      size_t r1);

/* A task of a gated delta net: a root and its children, a key head, columns [c0, c1) of its values.
 */
struct rp_gdn_part {
    size_t root, key_head, c0, c1;
};

struct rp_gdn_part rp_step_gdn_part(const struct rp_step *step, const struct rp_run *run, size_t t,
                                    size_t columns);
void rp_step_gdn(const struct rp_step *step, const struct rp_frame *frame, size_t t,
                 size_t columns);

/* What a task of it does: operations, and rows that it makes. */
void rp_step_gdn_work(const struct rp_step *step, const struct rp_run *run,
                      const struct rp_gdn_part *part, uint64_t *flops, size_t *rows);

/* Operations of one sequence, all heads and columns together. */
uint64_t rp_step_gdn_seq_flops(const struct rp_step *step, const rp_batch *batch, size_t seq);

/* plan/prepare.c: whether the sizes of a batch can be read.  RP_ERR_INVALID. */
RP_CHECKED rp_status rp_batch_check(const rp_batch *batch, rp_error *err);

/* Checks the batch and fills in everything that a run looks up. */
RP_CHECKED rp_status rp_run_prepare(struct rp_run *run, rp_error *err);

/* plan/run.c: runs what was prepared. */
RP_CHECKED rp_status rp_run_execute(struct rp_run *run, rp_error *err);

/* How many query blocks a batch can have at the most. */
size_t rp_run_max_blocks(const rp_plan *plan);

/* Pairs of a query and a key that it sees, of an attention step: of rows [q0, q1) of a sequence, */
uint64_t rp_step_pairs(const struct rp_step *step, const rp_batch *batch, size_t seq, size_t q0,
                       size_t q1);

/* and of the rows of rp_step_read_rows(). */
uint64_t rp_step_read_pairs(const struct rp_step *step, const rp_batch *batch, size_t seq);

/* Keys that a head packs: for rows [q0, q1) of a sequence, and for the rows that are read. */
uint64_t rp_step_keys(const struct rp_step *step, const rp_batch *batch, size_t seq, size_t q0,
                      size_t q1);
uint64_t rp_step_read_keys(const struct rp_step *step, const rp_batch *batch, size_t seq);

static inline size_t rp_step_panels(const struct rp_step *step)
{
    return (step->width + RP_GEMM_NR - 1) / RP_GEMM_NR;
}

#endif
