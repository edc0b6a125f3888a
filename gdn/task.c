/* Running rows through the states of slots (see task.h). */
#include "gdn/task.h"

#include "pool/error.h"
#include "pool/fpenv.h"
#include "pool/memory.h"

/* Rows of inputs that are checked at a time. */
#define CHECK_ROWS 32

/* Multiply-adds that are worth waking a thread. */
#define MIN_WORK 100000

void rp_gdn_run_init(struct rp_gdn_run *run, rp_gdn_states *states)
{
    *run = (struct rp_gdn_run){.states = states,
                               .args = states->args,
                               .column_step = 16,
                               .bad_state = SIZE_MAX,
                               .bad_conv = SIZE_MAX};
}

/* ---- numbers that are none ---------------------------------------------------------------------
 */

static void check_numbers(struct rp_gdn_run *run)
{
    const size_t n = (run->n_rows + CHECK_ROWS - 1) / CHECK_ROWS;
    for (size_t i; (i = rp_claim(&run->checks)) < n;) {
        const size_t r0 = i * CHECK_ROWS;
        const size_t r1 = run->n_rows - r0 < CHECK_ROWS ? run->n_rows : r0 + CHECK_ROWS;
        struct rp_gdn_place where;
        if (rp_gdn_find_bad(run->states, run->inputs, run->n_inputs, r0, r1, &where))
            atomic_store_explicit(&run->bad_input, true, memory_order_relaxed);
    }
}

static rp_status fail_by(const struct rp_gdn_run *run, const struct rp_gdn_named *inputs, size_t n,
                         rp_error *err)
{
    struct rp_gdn_place where;
    if (!rp_gdn_find_bad(run->states, inputs, n, 0, run->n_rows, &where))
        return rp_fail(err, RP_ERR_NONFINITE, "a number changed while it was looked at");
    return rp_gdn_fail_bad(run->states, &where, err);
}

/* What the region has found, if anything. */
static rp_status verdict(const struct rp_gdn_run *run, rp_error *err)
{
    const size_t channels = run->states->options.conv_channels;
    const rp_fpenv callers = rp_fpenv_enter();
    rp_status status = RP_OK;
    if (run->bad_input)
        status = fail_by(run, run->inputs, run->n_inputs, err);
    else if (run->bad_conv != SIZE_MAX)
        status = rp_fail(err, RP_ERR_NONFINITE, "the convolution's row %zu, channel %zu is none",
                         run->bad_conv / channels, run->bad_conv % channels);
    else if (run->bad_out)
        status = fail_by(run, &run->out, 1, err);
    else if (run->bad_state != SIZE_MAX)
        status = rp_fail(err, RP_ERR_NONFINITE,
                         "the state of slot %zu has grown past the largest number of its type",
                         run->states->seqs[run->bad_state].slot);
    rp_fpenv_leave(callers);
    return status;
}

static bool went_well(const struct rp_gdn_run *run)
{
    return !atomic_load_explicit(&run->bad_out, memory_order_relaxed) &&
           atomic_load_explicit(&run->bad_state, memory_order_relaxed) == SIZE_MAX &&
           atomic_load_explicit(&run->bad_conv, memory_order_relaxed) == SIZE_MAX;
}

static void lower_to(atomic_size_t *least, size_t x)
{
    size_t now = atomic_load_explicit(least, memory_order_relaxed);
    while (x < now && !atomic_compare_exchange_weak_explicit(least, &now, x, memory_order_relaxed,
                                                             memory_order_relaxed))
        ;
}

/* ---- a task ------------------------------------------------------------------------------------
 */

static void each_span(struct rp_gdn_task *t, rp_gdn_span_fn *fn)
{
    rp_gdn_each_span(t->s->key_dim, t->s->value_dim, t->c0, t->c1, fn, t);
}

static void load_span(void *context, size_t at, size_t n)
{
    struct rp_gdn_task *t = context;
    rp_gdn_load(t->s, t->from, at, t->state + at, n);
}

static void store_span(void *context, size_t at, size_t n)
{
    struct rp_gdn_task *t = context;
    size_t where;
    if (t->state == t->to)
        t->bad_state |= t->s->ops->nonfinite(t->state + at, n, &where);
    else
        t->bad_state |= rp_gdn_store(t->s, t->to, at, t->state + at, n);
}

void rp_gdn_run_pieces(const struct rp_gdn_task *t, const struct rp_gdn_rows *pieces, size_t n,
                       float *state)
{
    struct rp_gdn_args args = t->run->args;
    args.qkv = t->qkv;
    args.gates = t->gates;
    args.out = t->out;
    t->s->kernel->run(&args, pieces, n, 0, t->c0, t->c1, state, t->scratch + t->s->at.kernel);
}

static void run_task(struct rp_gdn_run *run, size_t number, unsigned char *scratch)
{
    const rp_gdn_states *s = run->states;
    const size_t unit = number / run->n_parts, part = number % run->n_parts;
    const size_t values = s->per_key * s->value_dim;
    struct rp_gdn_task t = {.run = run,
                            .s = s,
                            .seq = &s->seqs[unit / s->n_key_heads],
                            .key_head = unit % s->n_key_heads,
                            .c0 = part * run->part_columns,
                            .scratch = scratch,
                            .bad_conv = SIZE_MAX};
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
    run->rows(&t);
    each_span(&t, store_span);
    if (t.bad_state)
        lower_to(&run->bad_state, unit / s->n_key_heads);
    lower_to(&run->bad_conv, t.bad_conv);
    if (t.bad_out)
        atomic_store_explicit(&run->bad_out, true, memory_order_relaxed);
}

/* ---- a run -------------------------------------------------------------------------------------
 */

static void region(void *arg, struct rp_worker *worker)
{
    struct rp_gdn_run *run = arg;
    const rp_gdn_states *s = run->states;
    const size_t n_tasks = run->n_seqs * s->n_key_heads * run->n_parts;
    check_numbers(run);
    rp_worker_barrier(worker);
    if (atomic_load_explicit(&run->bad_input, memory_order_relaxed))
        return;
    for (size_t i; (i = rp_claim(&run->tasks)) < n_tasks;)
        run_task(run, i, s->scratch + (size_t)worker->index * s->at.bytes);
    if (!run->keep)
        return;
    rp_worker_barrier(worker);
    if (!went_well(run))
        return;
    for (size_t i; (i = rp_claim(&run->kept)) < run->n_seqs;)
        run->keep(run, &s->seqs[i]);
}

/* Of few rows, few workers are worth waking. */
static int split(struct rp_gdn_run *run)
{
    const rp_gdn_states *s = run->states;
    const size_t values = s->per_key * s->value_dim, units = run->n_seqs * s->n_key_heads;
    const double work = 3.0 * (double)run->n_rows * (double)s->floats / MIN_WORK;
    size_t workers = (size_t)rp_pool_threads(s->options.pool);
    workers = work < 1 ? 1 : work < (double)workers ? (size_t)work : workers;
    run->part_columns = rp_gdn_columns_of_task(values, run->column_step, units, workers);
    run->n_parts = (values + run->part_columns - 1) / run->part_columns;
    return (int)workers;
}

rp_status rp_gdn_execute(struct rp_gdn_run *run, size_t n_seqs, const int32_t *slots,
                         const int32_t *cu, rp_error *err)
{
    rp_gdn_states *s = run->states;
    run->n_seqs = rp_gdn_begin(s, &s->state, s->options.in_place, n_seqs, slots, cu);
    if (run->keep)
        rp_gdn_begin_kept(s, run->n_seqs);
    rp_status status = rp_pool_region(s->options.pool, split(run), region, run, err);
    if (status == RP_OK)
        status = verdict(run, err);
    rp_gdn_end(s, &s->state, run->n_seqs, status == RP_OK);
    if (run->keep)
        rp_gdn_end(s, &s->conv, run->n_seqs, status == RP_OK);
    return status;
}
