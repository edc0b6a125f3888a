/* Running rows through the states of slots.
 *
 * A task is one sequence, one key head with its value heads, and a range of their value columns. It
 * takes the state's columns from where the slot has them to where it is about to have them, then
 * goes chunk by chunk: the head's part of the rows is packed (which serves any strides and both
 * maps of heads with one kernel), run, and its outputs are spread again.
 *
 * New states become the slots' only when all tasks have ended well.
 */
#include "gdn/batch.h"

#include "pool/error.h"
#include "pool/fpenv.h"
#include "pool/memory.h"
#include "pool/pool.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

/* Rows of inputs that are checked at a time. */
#define CHECK_ROWS 32

/* Columns that are worth a task of their own: what every part does again for its key head is then
 * small beside what it does alone. */
#define MIN_COLUMNS 32

/* Multiply-adds that are worth waking a thread. */
#define MIN_WORK 100000

enum { Q, K, V, DECAY, BETA, N_INPUTS };

struct run {
    rp_gdn_states *states;
    const rp_gdn_batch *batch;
    struct rp_gdn_named inputs[N_INPUTS];
    size_t n_rows, n_seqs; /* sequences that have rows */
    size_t n_parts, part_columns;
    struct rp_counter checks, tasks;
    atomic_bool bad_input, bad_out;
    atomic_size_t bad_state; /* the first sequence whose state is none; SIZE_MAX: none is */
};

void rp_gdn_batch_init(rp_gdn_batch *batch)
{
    *batch = (rp_gdn_batch){.struct_size = sizeof *batch};
}

/* ---- what is refused ---------------------------------------------------------------------------
 */

static rp_status check_steps(const struct run *run, rp_error *err)
{
    size_t floats;
    if (run->batch->steps_layout != RP_GDN_KEY_VALUE &&
        run->batch->steps_layout != RP_GDN_VALUE_KEY)
        return rp_fail(err, RP_ERR_INVALID, "steps_layout is %d, which is none",
                       (int)run->batch->steps_layout);
    if (run->batch->steps && (!rp_mul_ok(run->n_rows, run->states->floats, &floats) ||
                              floats > PTRDIFF_MAX / sizeof(float)))
        return rp_fail(err, RP_ERR_LIMIT,
                       "steps elements: %zu states of %zu floats are past what memory can hold",
                       run->n_rows, run->states->floats);
    return RP_OK;
}

static void name_inputs(struct run *run)
{
    const rp_gdn_states *s = run->states;
    const rp_gdn_batch *b = run->batch;
    const size_t keys = s->n_key_heads * s->key_dim, values = s->n_value_heads * s->value_dim;
    run->inputs[Q] = (struct rp_gdn_named){"q", b->q, keys, false};
    run->inputs[K] = (struct rp_gdn_named){"k", b->k, keys, false};
    run->inputs[V] = (struct rp_gdn_named){"v", b->v, values, false};
    run->inputs[DECAY] =
        (struct rp_gdn_named){"decay", b->decay, s->n_value_heads, !s->options.linear_decay};
    run->inputs[BETA] = (struct rp_gdn_named){"beta", b->beta, s->n_value_heads, false};
}

/* All but the numbers themselves. */
static rp_status check_batch(struct run *run, rp_error *err)
{
    rp_gdn_states *s = run->states;
    const rp_gdn_batch *b = run->batch;
    if (!b)
        return rp_fail(err, RP_ERR_INVALID, "batch is NULL");
    if (b->struct_size != sizeof *b)
        return rp_fail(err, RP_ERR_INVALID, "rp_gdn_batch has struct_size %zu, expected %zu",
                       b->struct_size, sizeof *b);
    RP_TRY(rp_gdn_check_seqs(s, b->n_seqs, b->slots, b->cu, &run->n_rows, err));
    if (run->n_rows == 0)
        return RP_OK;
    name_inputs(run);
    for (int i = 0; i < N_INPUTS; i++) {
        const struct rp_gdn_named *in = &run->inputs[i];
        RP_TRY(
            rp_gdn_check_rows(in->name, in->rows.data, in->rows.ld, run->n_rows, in->width, err));
    }
    RP_TRY(rp_gdn_check_rows("out", b->out, b->ld_out, run->n_rows, run->inputs[V].width, err));
    return check_steps(run, err);
}

/* ---- numbers that are none ---------------------------------------------------------------------
 */

static void check_numbers(struct run *run)
{
    const size_t n = (run->n_rows + CHECK_ROWS - 1) / CHECK_ROWS;
    for (size_t i; (i = rp_claim(&run->checks)) < n;) {
        const size_t r0 = i * CHECK_ROWS;
        const size_t r1 = run->n_rows - r0 < CHECK_ROWS ? run->n_rows : r0 + CHECK_ROWS;
        struct rp_gdn_place where;
        if (rp_gdn_find_bad(run->states, run->inputs, N_INPUTS, r0, r1, &where))
            atomic_store_explicit(&run->bad_input, true, memory_order_relaxed);
    }
}

static rp_status fail_by(const struct run *run, const struct rp_gdn_named *inputs, size_t n,
                         rp_error *err)
{
    struct rp_gdn_place where;
    if (!rp_gdn_find_bad(run->states, inputs, n, 0, run->n_rows, &where))
        return rp_fail(err, RP_ERR_NONFINITE, "a number changed while it was looked at");
    return rp_gdn_fail_bad(&where, err);
}

/* ---- a task ------------------------------------------------------------------------------------
 */

struct task {
    const struct run *run;
    const rp_gdn_states *s;
    const struct rp_gdn_seq *seq;
    size_t key_head, c0, c1;
    /* The key head's part of the slot, as it was and as it will be. */
    const void *from;
    void *to;
    float *state; /* the state that the kernel works on: `to` itself when that is f32 */
    float *step, *qkv, *gates, *out;
    void *kernel;
    size_t row; /* of the batch: the state's step to write */
    bool bad_state, bad_out;
};

static void each_span(struct task *t, rp_gdn_span_fn *fn)
{
    rp_gdn_each_span(t->s->key_dim, t->s->value_dim, t->c0, t->c1, fn, t);
}

static void load_span(void *context, size_t at, size_t n)
{
    struct task *t = context;
    rp_gdn_load(t->s, t->from, at, t->state + at, n);
}

static void store_span(void *context, size_t at, size_t n)
{
    struct task *t = context;
    size_t where;
    if (t->state == t->to)
        t->bad_state |= t->s->ops->nonfinite(t->state + at, n, &where);
    else
        t->bad_state |= rp_gdn_store(t->s, t->to, at, t->state + at, n);
}

static void start_step(void *context, size_t at, size_t n)
{
    struct task *t = context;
    memcpy(t->step + at, t->state + at, n * sizeof *t->step);
}

static void keep_step(void *context, size_t at, size_t n)
{
    struct task *t = context;
    memcpy(t->state + at, t->step + at, n * sizeof *t->step);
}

/* A span of the state after a row, rounded as the slot would hold it, to the caller's steps. */
static void show_step(void *context, size_t at, size_t n)
{
    struct task *t = context;
    const rp_gdn_states *s = t->s;
    const size_t head = s->key_dim * s->value_dim;
    float *to = t->run->batch->steps + t->row * s->floats +
                rp_gdn_head_of(s, t->key_head, at / head) * head;
    float *x = t->step + at;
    t->bad_state |= rp_gdn_round(s, x, n);
    at %= head;
    if (t->run->batch->steps_layout == RP_GDN_KEY_VALUE) {
        memcpy(to + at, x, n * sizeof *x);
        return;
    }
    for (size_t i = 0; i < n; i++, at++)
        to[at % s->value_dim * s->key_dim + at / s->value_dim] = x[i];
}

static const float *input_row(const struct task *t, int which, size_t row)
{
    const rp_gdn_input *in = &t->run->inputs[which].rows;
    return in->data + row * in->ld;
}

/* Rows [row, row + n) of the key head: q, k, the v of its value heads; their decays, their betas.
 */
static void pack(const struct task *t, size_t row, size_t n)
{
    const rp_gdn_states *s = t->s;
    const size_t keys = s->key_dim, values = s->value_dim;
    for (size_t r = 0; r < n; r++) {
        float *x = t->qkv + r * s->args.ld, *gates = t->gates + r * s->args.ld_gates;
        memcpy(x, input_row(t, Q, row + r) + t->key_head * keys, keys * sizeof *x);
        memcpy(x + keys, input_row(t, K, row + r) + t->key_head * keys, keys * sizeof *x);
        x += 2 * keys;
        for (size_t i = 0; i < s->per_key; i++, x += values) {
            const size_t head = rp_gdn_head_of(s, t->key_head, i);
            memcpy(x, input_row(t, V, row + r) + head * values, values * sizeof *x);
            gates[i] = input_row(t, DECAY, row + r)[head];
            gates[s->per_key + i] = input_row(t, BETA, row + r)[head];
        }
    }
}

/* The task's columns of the chunk's outputs to where the caller wants them. */
static void spread(struct task *t, size_t row, size_t n)
{
    const rp_gdn_batch *b = t->run->batch;
    const size_t width = t->s->value_dim;
    size_t where;
    for (size_t r = 0; r < n; r++) {
        const float *x = t->out + r * t->s->args.ld_out;
        float *out = b->out + (row + r) * b->ld_out;
        for (size_t c = t->c0, end; c < t->c1; c = end) {
            const size_t i = c / width, head = rp_gdn_head_of(t->s, t->key_head, i);
            end = (i + 1) * width < t->c1 ? (i + 1) * width : t->c1;
            memcpy(out + head * width + c % width, x + c, (end - c) * sizeof *x);
        }
        t->bad_out |= t->s->ops->nonfinite(x + t->c0, t->c1 - t->c0, &where);
    }
}

static void run_pieces(const struct task *t, const struct rp_gdn_rows *pieces, size_t n,
                       float *state)
{
    struct rp_gdn_args args = t->s->args;
    args.qkv = t->qkv;
    args.gates = t->gates;
    args.out = t->out;
    t->s->kernel->run(&args, pieces, n, 0, t->c0, t->c1, state, t->kernel);
}

/* The chunk's rows with the state after each: that which it would leave if it ended there, so the
 * chunk is begun anew for each of them. */
static void run_steps(struct task *t, size_t n)
{
    for (size_t r = 0; r < n; r++, t->row++) {
        const struct rp_gdn_rows pieces[] = {{0, r, true}, {r, 1, false}};
        each_span(t, start_step);
        run_pieces(t, pieces + (r == 0), 1 + (r > 0), t->step);
        if (r == n - 1)
            each_span(t, keep_step);
        each_span(t, show_step);
    }
}

static void run_rows(struct task *t)
{
    const struct rp_gdn_seq *seq = t->seq;
    for (size_t done = 0, n; done < seq->n; done += n) {
        n = seq->n - done < RP_GDN_CHUNK ? seq->n - done : RP_GDN_CHUNK;
        pack(t, seq->row0 + done, n);
        t->row = seq->row0 + done;
        if (t->run->batch->steps)
            run_steps(t, n);
        else
            run_pieces(t, &(struct rp_gdn_rows){0, n, false}, 1, t->state);
        spread(t, seq->row0 + done, n);
    }
}

static void lower_to(atomic_size_t *least, size_t x)
{
    size_t now = atomic_load_explicit(least, memory_order_relaxed);
    while (x < now && !atomic_compare_exchange_weak_explicit(least, &now, x, memory_order_relaxed,
                                                             memory_order_relaxed))
        ;
}

static void run_task(struct run *run, size_t number, unsigned char *scratch)
{
    const rp_gdn_states *s = run->states;
    const size_t unit = number / run->n_parts, part = number % run->n_parts;
    const size_t values = s->per_key * s->value_dim;
    struct task t = {.run = run,
                     .s = s,
                     .seq = &s->seqs[unit / s->n_key_heads],
                     .key_head = unit % s->n_key_heads,
                     .c0 = part * run->part_columns,
                     .kernel = scratch + s->at.kernel};
    const size_t part_of_slot = t.key_head * (s->state.bytes / s->n_key_heads);
    t.c1 = values - t.c0 < run->part_columns ? values : t.c0 + run->part_columns;
    t.from = t.seq->from ? (const char *)t.seq->from + part_of_slot : NULL;
    t.to = (char *)t.seq->to + part_of_slot;
    t.qkv = (float *)(void *)(scratch + s->at.qkv);
    t.gates = (float *)(void *)(scratch + s->at.gates);
    t.out = (float *)(void *)(scratch + s->at.out);
    t.step = (float *)(void *)(scratch + s->at.step);
    t.state = s->options.dtype == RP_DTYPE_F32 ? t.to : (float *)(void *)(scratch + s->at.state);
    if (t.state != t.from)
        each_span(&t, load_span);
    run_rows(&t);
    each_span(&t, store_span);
    if (t.bad_state)
        lower_to(&run->bad_state, unit / s->n_key_heads);
    if (t.bad_out)
        atomic_store_explicit(&run->bad_out, true, memory_order_relaxed);
}

/* ---- a run -------------------------------------------------------------------------------------
 */

static void region(void *arg, struct rp_worker *worker)
{
    struct run *run = arg;
    const rp_gdn_states *s = run->states;
    const size_t n_tasks = run->n_seqs * s->n_key_heads * run->n_parts;
    check_numbers(run);
    rp_worker_barrier(worker);
    if (atomic_load_explicit(&run->bad_input, memory_order_relaxed))
        return;
    for (size_t i; (i = rp_claim(&run->tasks)) < n_tasks;)
        run_task(run, i, s->scratch + (size_t)worker->index * s->at.bytes);
}

/* Columns are shared out only where sequences and key heads alone leave threads idle. */
static int split(struct run *run)
{
    const rp_gdn_states *s = run->states;
    const size_t values = s->per_key * s->value_dim, units = run->n_seqs * s->n_key_heads;
    const double work = 3.0 * (double)run->n_rows * (double)s->floats / MIN_WORK;
    size_t workers = (size_t)rp_pool_threads(s->options.pool), parts = 1;
    workers = work < 1 ? 1 : work < (double)workers ? (size_t)work : workers;
    if (workers > 1 && units < 2 * workers)
        parts = (2 * workers + units - 1) / units;
    run->part_columns = rp_round_up((values + parts - 1) / parts, 16);
    if (run->part_columns < MIN_COLUMNS)
        run->part_columns = MIN_COLUMNS;
    run->n_parts = (values + run->part_columns - 1) / run->part_columns;
    return (int)workers;
}

/* What the region has found, if anything. */
static rp_status verdict(const struct run *run, rp_error *err)
{
    const rp_gdn_batch *b = run->batch;
    const struct rp_gdn_named out = {"out", {b->out, b->ld_out}, run->inputs[V].width, false};
    const rp_fpenv callers = rp_fpenv_enter();
    rp_status status = RP_OK;
    if (run->bad_input)
        status = fail_by(run, run->inputs, N_INPUTS, err);
    else if (run->bad_out)
        status = fail_by(run, &out, 1, err);
    else if (run->bad_state != SIZE_MAX)
        status = rp_fail(err, RP_ERR_NONFINITE,
                         "the state of slot %zu has grown past the largest number of its type",
                         run->states->seqs[run->bad_state].slot);
    rp_fpenv_leave(callers);
    return status;
}

rp_status rp_gdn_run(rp_gdn_states *states, const rp_gdn_batch *batch, rp_error *err)
{
    struct run run = {.states = states, .batch = batch, .bad_state = SIZE_MAX};
    RP_TRY(check_batch(&run, err));
    if (run.n_rows == 0)
        return RP_OK;
    run.n_seqs = rp_gdn_begin(states, &states->state, states->options.in_place, batch->n_seqs,
                              batch->slots, batch->cu);
    rp_status status = rp_pool_region(states->options.pool, split(&run), region, &run, err);
    if (status == RP_OK)
        status = verdict(&run, err);
    rp_gdn_end(states, &states->state, run.n_seqs, status == RP_OK);
    return status;
}
