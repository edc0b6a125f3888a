/* Running a plan: one parallel region for the whole batch.
 *
 * A run is in one of two modes (plan/plan.h).  Its steps are cut into phases, after each of which
 * the workers meet:
 *
 *     by chunk   a segment of tokens: tasks are blocks of rows, each taken through all its steps
 *     by step    a step, and one that joins it: tasks are blocks of rows x groups of columns; a
 *                segment too small to share is one task of all its rows
 *     both       attention, pooling: tasks are (queries, head) or sequences
 *
 * Then every worker walks the phases, claiming tasks.  What a task computes does not depend on who
 * claims it or on how rows and columns were cut, so neither do the bits.
 *
 * Stopping.  Any worker may find that the run is to end, the observer's thread too.  The first one
 * to do so writes down the number of the meeting that comes next for it; all stop working, go on to
 * that meeting, and leave after it.  Meetings are numbered, 2p after the work of phase p and 2p + 1
 * after it was shown, because a worker that comes late out of a meeting may already see what a
 * faster one wrote in the next phase: it must still go to the next meeting, where that one waits.
 */
#include "plan/run.h"

#include "pool/error.h"

/* A segment this small is not worth sharing: about 20 us of one core. */
#define SMALL_FLOPS ((uint64_t)1 << 20)
/* By chunk, each worker needs this many rows to make good use of a weight panel while it is in the
 * cache. */
#define LEAST_CHUNK_ROWS 24
/* By step: rows of a task, so that its part of A stays in the second-level cache. */
#define STEP_ROWS 96
/* By step: tasks for each worker, so that a slow one does not hold up the others. */
#define TASKS_PER_WORKER 4

/* Least rows of a task of a convolution. */
#define LEAST_CONV_ROWS 16
/* Columns of a gated delta net are cut in units of a vector. */
#define GDN_UNIT 16

static size_t ceil_div(size_t a, size_t b)
{
    return (a + b - 1) / b;
}

static size_t at_least_one(size_t n)
{
    return n ? n : 1;
}

static void add_phase(struct rp_run *run, size_t first, size_t end, size_t rows, size_t task_rows)
{
    run->phases[run->n_phases++] = (struct rp_phase){
        .first = first, .end = end, .n_tasks = ceil_div(rows, task_rows), .rows = task_rows};
}

/* As many tasks for each worker as for the next, all of one size. */
static void phase_by_chunk(struct rp_run *run, const struct rp_segment *seg, size_t rows,
                           size_t workers)
{
    const size_t n = ceil_div(ceil_div(at_least_one(rows), seg->chunk_rows), workers) * workers;
    add_phase(run, seg->first, seg->end, rows, ceil_div(at_least_one(rows), n));
}

/* Whether step s and the one after it run as one, in a phase that ends before step `end`. */
static bool joined(const rp_plan *plan, size_t s, size_t end)
{
    return s + 1 < end && plan->steps[s + 1].joins;
}

/* Units of a task: as many as make about so many groups, and fewer where those could not be shared
 * out evenly. */
static size_t group_of_units(size_t units, size_t groups, size_t workers)
{
    size_t group = at_least_one(units / groups);
    while (group > 1 && ceil_div(units, group) % workers != 0)
        group--;
    return group;
}

/* Steps [s, end): one, or two of which the second joins the first. */
static void phase_by_step(struct rp_run *run, size_t s, size_t end, size_t rows, size_t workers)
{
    const struct rp_step *step = &run->plan->steps[s];
    const size_t wanted = workers > 1 ? workers * TASKS_PER_WORKER : 1;
    if (!rp_op_multiplies(step->op)) {
        add_phase(run, s, end, rows, at_least_one(ceil_div(rows, wanted)));
        return;
    }
    const size_t task_rows = rows < STEP_ROWS ? at_least_one(rows) : STEP_ROWS;
    const size_t panels = rp_step_panels(&run->plan->steps[end - 1]);
    const size_t unit = end - s > 1 ? rp_join_unit(&step[1]) : 1;
    const size_t groups = ceil_div(wanted, at_least_one(ceil_div(rows, task_rows)));
    add_phase(run, s, end, rows, task_rows);
    struct rp_phase *phase = &run->phases[run->n_phases - 1];
    phase->panel_group = at_least_one(panels / groups);
    if (unit > 1)
        phase->panel_group = group_of_units(panels / unit, groups, workers) * unit;
    phase->n_tasks *= ceil_div(panels, phase->panel_group);
}

static bool any_wanted(const struct rp_run *run, size_t first, size_t end)
{
    for (size_t s = first; s < end; s++)
        if (run->wanted[s])
            return true;
    return false;
}

static void phase_segment(struct rp_run *run, const struct rp_segment *seg, size_t workers)
{
    const size_t rows = rp_bucket_rows(&run->live, seg->rows);
    const bool small = seg->flops_per_row * rows < SMALL_FLOPS;
    if (run->mode == RP_BY_CHUNK && seg->chunked) {
        phase_by_chunk(run, seg, rows, small ? 1 : workers);
        return;
    }
    if (small && !any_wanted(run, seg->first, seg->end)) {
        add_phase(run, seg->first, seg->end, rows, at_least_one(rows));
        return;
    }
    for (size_t s = seg->first, next; s < seg->end; s = next) {
        next = joined(run->plan, s, seg->end) && !any_wanted(run, s, s + 2) ? s + 2 : s + 1;
        phase_by_step(run, s, next, rows, workers);
    }
}

/* A query of one head is little work: tasks take all heads of a sequence, or as many as still leave
 * every worker some. */
static size_t heads_of_task(const struct rp_run *run, const struct rp_step *step, size_t workers)
{
    const size_t heads = step->p.attention.n_kv_heads;
    const size_t wanted = workers > 1 ? ceil_div(workers * TASKS_PER_WORKER, run->live.seqs) : 1;
    return ceil_div(heads, wanted < heads ? wanted : heads);
}

/* Blocks of rows, long enough that reading the rows before a block again costs little. */
static size_t conv_rows_of_task(const struct rp_run *run, size_t workers)
{
    const size_t wanted = workers > 1 ? workers * TASKS_PER_WORKER : 1;
    const size_t rows = ceil_div(run->live.tokens, wanted);
    return rows < LEAST_CONV_ROWS ? LEAST_CONV_ROWS : rows;
}

static void phase_tasks(struct rp_run *run, size_t s, size_t workers)
{
    const struct rp_step *step = &run->plan->steps[s];
    struct rp_phase phase = {
        .first = s, .end = s + 1, .n_tasks = rp_bucket_rows(&run->live, step->rows)};
    if (step->op == RP_OP_ATTENTION && step->read == RP_READ_ALL) {
        phase.n_tasks = run->n_blocks * step->p.attention.n_kv_heads;
    } else if (step->op == RP_OP_ATTENTION) {
        phase.heads = heads_of_task(run, step, workers);
        phase.n_tasks = run->live.seqs * ceil_div(step->p.attention.n_kv_heads, phase.heads);
    }
    if (step->op == RP_OP_CONV) {
        phase.conv_rows = conv_rows_of_task(run, workers);
        phase.n_tasks = ceil_div(run->live.tokens, phase.conv_rows);
    }
    if (step->op == RP_OP_GDN) {
        const size_t columns = rp_gdn_columns(&step->p.gdn);
        const size_t units = run->n_roots * step->p.gdn.n_key_heads;
        phase.columns = rp_gdn_columns_of_task(columns, GDN_UNIT, at_least_one(units), workers);
        phase.n_tasks = units * ceil_div(columns, phase.columns);
    }
    if (step->op == RP_OP_CROSS_ATTENTION)
        rp_phase_cross(step, run, workers, &phase);
    run->phases[run->n_phases++] = phase;
}

/* By chunk when each worker gets a good block of rows; by step when someone is looking, or when few
 * rows have to be spread over several workers. */
static enum rp_mode choose_mode(const struct rp_run *run, size_t workers)
{
    if (any_wanted(run, 0, run->plan->n_steps))
        return RP_BY_STEP;
    return workers == 1 || run->live.tokens >= workers * LEAST_CHUNK_ROWS ? RP_BY_CHUNK
                                                                          : RP_BY_STEP;
}

static void make_phases(struct rp_run *run, size_t workers)
{
    run->n_phases = 0;
    run->mode = choose_mode(run, workers);
    for (size_t g = 0; g < run->plan->n_segments; g++) {
        const struct rp_segment *seg = &run->plan->segments[g];
        if (seg->by_row)
            phase_segment(run, seg, workers);
        else
            phase_tasks(run, seg->first, workers);
    }
    for (size_t p = 0; p < run->n_phases; p++)
        atomic_store_explicit(&run->counters[p].next, 0, memory_order_relaxed);
}

/* Ends the run at a meeting that has not taken place.  The first one to say so is heard. */
static void stop(struct rp_run *run, size_t meeting, rp_status status, size_t step)
{
    size_t none = RP_RUN_GOES_ON;
    if (!atomic_compare_exchange_strong_explicit(&run->leave_at, &none, meeting,
                                                 memory_order_relaxed, memory_order_relaxed))
        return;
    run->stop_status = status;
    run->stop_step = step;
}

/* Whether to do nothing more, asked before a step of phase p. */
static inline bool stopping(struct rp_run *run, size_t p, size_t step)
{
    if (!run->may_stop)
        return false;
    if (atomic_load_explicit(&run->leave_at, memory_order_relaxed) != RP_RUN_GOES_ON)
        return true;
    const rp_status status = rp_stop_check(run->stop);
    if (status == RP_OK)
        return false;
    stop(run, 2 * p, status, step);
    return true;
}

/* Columns of panels [p0, p1) of a step, or of two of which the second joins the first. */
static void run_panels(struct rp_run *run, struct rp_frame *frame, size_t s, bool two, size_t r0,
                       size_t r1, size_t p0, size_t p1)
{
    const struct rp_step *step = &run->plan->steps[s];
    if (two)
        rp_step_rows_joined(step, frame, r0, r1, p0, p1);
    else
        rp_step_rows(step, frame, r0, r1, p0, p1);
    if (!run->profile)
        return;
    const size_t all = rp_step_panels(&step[two]);
    const double share = all ? (double)(p1 - p0) / (double)all : 1;
    rp_profile_rows(run->profile, frame->worker, s, step, r1 - r0, share);
    if (two) /* the time of both counts for the first */
        rp_profile_rows(run->profile, frame->worker, s + 1, step + 1, r1 - r0, share);
}

/* A task of rows: all steps of the phase, one after the other. */
static void run_rows(struct rp_run *run, size_t phase_index, struct rp_frame *frame, size_t t)
{
    const struct rp_phase *phase = &run->phases[phase_index];
    const rp_plan *plan = run->plan;
    const size_t rows = rp_bucket_rows(&run->live, plan->steps[phase->first].rows);
    const size_t panels = rp_step_panels(&plan->steps[phase->end - 1]);
    const size_t groups = phase->panel_group ? ceil_div(panels, phase->panel_group) : 1;
    const size_t r0 = t / groups * phase->rows;
    const size_t r1 = r0 + phase->rows < rows ? r0 + phase->rows : rows;
    frame->chunk_row0 = r0;
    for (size_t s = phase->first; s < phase->end && !stopping(run, phase_index, s); s++) {
        const bool two = joined(plan, s, phase->end);
        const size_t p0 = t % groups * phase->panel_group;
        const size_t all = rp_step_panels(&plan->steps[s + two]);
        const size_t p1 =
            phase->panel_group && p0 + phase->panel_group < all ? p0 + phase->panel_group : all;
        run_panels(run, frame, s, two, r0, r1, p0, p1);
        s += two;
    }
}

/* Bytes of `rows` query rows with their results and of `keys` keys and values, of some heads of
 * keys. */
static uint64_t attention_bytes(const struct rp_step *step, uint64_t rows, uint64_t keys,
                                size_t kv_heads)
{
    const size_t shared = step->p.attention.n_heads / step->p.attention.n_kv_heads;
    return 2 * (rows * shared + keys) * kv_heads * step->p.attention.head_dim * sizeof(float);
}

/* Attention of a block of queries: them, and the keys and values that one of them sees. */
static void profile_block(const struct rp_phase *phase, const struct rp_frame *frame, size_t t)
{
    const struct rp_run *run = frame->run;
    const struct rp_step *step = &run->plan->steps[phase->first];
    const size_t kv_heads = step->p.attention.n_kv_heads;
    const struct rp_query_block *b = &run->blocks[t / kv_heads];
    const size_t q0 = (size_t)b->q0, q1 = (size_t)b->q1;
    const uint64_t pairs = rp_step_pairs(step, run->batch, (size_t)b->seq, q0, q1);
    const uint64_t keys = rp_step_keys(step, run->batch, (size_t)b->seq, q0, q1);
    rp_profile_task(run->profile, frame->worker, phase->first,
                    step->flops_per_row / kv_heads * pairs, attention_bytes(step, q1 - q0, keys, 1),
                    q1 - q0);
}

/* Attention of a sequence's rows that are read, for some heads of keys. */
static void profile_reads(const struct rp_phase *phase, const struct rp_frame *frame, size_t t)
{
    const struct rp_run *run = frame->run;
    const struct rp_step *step = &run->plan->steps[phase->first];
    const size_t all = step->p.attention.n_kv_heads, groups = ceil_div(all, phase->heads);
    const size_t h = t % groups * phase->heads, seq = t / groups;
    const size_t heads = phase->heads < all - h ? phase->heads : all - h;
    const uint64_t pairs = rp_step_read_pairs(step, run->batch, seq);
    size_t first, end;
    rp_step_read_rows(step, run->batch, seq, &first, &end);
    const uint64_t keys = rp_step_read_keys(step, run->batch, seq);
    rp_profile_task(run->profile, frame->worker, phase->first,
                    step->flops_per_row / all * heads * pairs,
                    attention_bytes(step, end - first, keys, heads), end - first);
}

static void profile_conv(const struct rp_phase *phase, const struct rp_frame *frame, size_t t)
{
    const struct rp_run *run = frame->run;
    const struct rp_step *step = &run->plan->steps[phase->first];
    const size_t left = run->live.tokens - t * phase->conv_rows;
    const size_t rows = left < phase->conv_rows ? left : phase->conv_rows;
    rp_profile_task(run->profile, frame->worker, phase->first, step->flops_per_row * rows,
                    2 * step->width * sizeof(float) * rows, rows);
}

/* Queries and keys of the head, the task's columns of values in and out, decays and rates; states
 * stay near the core. */
static void profile_gdn(const struct rp_phase *phase, const struct rp_frame *frame, size_t t)
{
    const struct rp_run *run = frame->run;
    const struct rp_step *step = &run->plan->steps[phase->first];
    const struct rp_gdn_args *p = &step->p.gdn;
    const struct rp_gdn_part part = rp_step_gdn_part(step, run, t, phase->columns);
    const size_t floats = 2 * (p->key_dim + part.c1 - part.c0 + p->n_value_heads / p->n_key_heads);
    uint64_t flops;
    size_t rows;
    rp_step_gdn_work(step, run, &part, &flops, &rows);
    rp_profile_task(run->profile, frame->worker, phase->first, flops, floats * sizeof(float) * rows,
                    rows);
}

/* Cross attention of some rows: them with their results, and a head's keys and values. */
static void profile_cross(const struct rp_phase *phase, const struct rp_frame *frame, size_t t)
{
    const struct rp_run *run = frame->run;
    const struct rp_step *step = &run->plan->steps[phase->first];
    const struct rp_cross_part part = rp_step_cross_part(step, run, t, phase);
    const uint64_t rows = part.r0 < part.r1 ? part.r1 - part.r0 : 0, keys = part.memory->rows;
    const size_t heads = step->p.cross.n_kv_heads, width = step->width / heads;
    const uint64_t floats = rows ? 2 * (rows * width + keys * step->p.cross.head_dim) : 0;
    rp_profile_task(run->profile, frame->worker, phase->first,
                    step->flops_per_row / heads * rows * keys, floats * sizeof(float), rows);
}

/* A task of a step that does not work by row. */
static void run_task(const struct rp_phase *phase, const struct rp_frame *frame, size_t t)
{
    const struct rp_run *run = frame->run;
    const struct rp_step *step = &run->plan->steps[phase->first];
    rp_step_task(step, frame, t, phase);
    if (!run->profile)
        return;
    if (step->op == RP_OP_ATTENTION) {
        if (step->read == RP_READ_ALL)
            profile_block(phase, frame, t);
        else
            profile_reads(phase, frame, t);
        return;
    }
    if (step->op == RP_OP_CONV) {
        profile_conv(phase, frame, t);
        return;
    }
    if (step->op == RP_OP_GDN) {
        profile_gdn(phase, frame, t);
        return;
    }
    if (step->op == RP_OP_CROSS_ATTENTION) {
        profile_cross(phase, frame, t);
        return;
    }
    size_t read = 1;
    if (step->op == RP_OP_POOL)
        read = (size_t)(run->batch->cu[t + 1] - run->batch->cu[t]);
    rp_profile_task(run->profile, frame->worker, phase->first, 0,
                    (1 + read) * step->width * sizeof(float), 1);
}

/* Shows the phase's step to the observer; what it says may stop the run. */
static void show(struct rp_run *run, size_t p)
{
    const rp_plan *plan = run->plan;
    const size_t s = run->phases[p].first;
    const struct rp_slot *slot = &plan->slots[plan->steps[s].out];
    rp_step_info info;
    const rp_view view = {.data =
                              (const float *)(const void *)(run->arena + slot->offset[RP_BY_STEP]),
                          .rows = rp_bucket_rows(&run->live, slot->rows),
                          .width = slot->width,
                          .kind = slot->rows};
    if (rp_plan_step(plan, s, &info) != RP_OK)
        return;
    run->observer_status = run->observer->show(run->observer->context, &info, &view);
    if (run->observer_status != RP_OK)
        stop(run, 2 * p + 1, RP_ERR_STOPPED, s);
}

/* The workers meet; what they waited shows in the profile.  False: all of them leave. */
static bool meet(struct rp_run *run, struct rp_worker *worker, size_t meeting)
{
    rp_worker_barrier(worker);
    if (run->profile)
        rp_profile_waited(run->profile, (size_t)worker->index);
    return atomic_load_explicit(&run->leave_at, memory_order_relaxed) > meeting;
}

/* All tasks of a phase that this worker gets. */
static void work_on(struct rp_run *run, size_t p, struct rp_frame *frame)
{
    const struct rp_phase *phase = &run->phases[p];
    size_t t;
    while ((t = rp_claim(&run->counters[p])) < phase->n_tasks) {
        if (phase->rows)
            run_rows(run, p, frame, t);
        else if (!stopping(run, p, phase->first))
            run_task(phase, frame, t);
    }
}

static void work(void *arg, struct rp_worker *worker)
{
    struct rp_run *run = arg;
    if (run->profile)
        rp_profile_mark(run->profile, (size_t)worker->index);
    struct rp_frame frame = {.run = run,
                             .worker = (size_t)worker->index,
                             .scratch = run->scratch + (size_t)worker->index * run->scratch_stride};
    for (size_t p = 0; p < run->n_phases; p++) {
        const bool wanted = run->wanted[run->phases[p].first];
        work_on(run, p, &frame);
        if ((p + 1 < run->n_phases || wanted || run->profile) && !meet(run, worker, 2 * p))
            return;
        if (!wanted)
            continue;
        if (worker->index == 0)
            show(run, p);
        if (!meet(run, worker, 2 * p + 1))
            return;
    }
}

static rp_status fail_stopped(const struct rp_run *run, rp_error *err)
{
    const size_t s = run->stop_step;
    const char *name = run->plan->steps[s].name;
    if (run->stop_status == RP_ERR_STOPPED)
        return rp_fail(err, RP_ERR_STOPPED, "the observer stopped the run (%s) at step %zu (%s)",
                       rp_status_name(run->observer_status), s, name);
    return rp_fail(err, run->stop_status, "%s, before step %zu (%s) of %zu",
                   rp_stop_reason(run->stop_status), s, name, run->plan->n_steps);
}

rp_status rp_run_execute(struct rp_run *run, rp_error *err)
{
    const rp_plan *plan = run->plan;
    for (size_t s = 0; s < plan->n_steps; s++) {
        rp_step_info info;
        run->wanted[s] = run->observer && rp_plan_step(plan, s, &info) == RP_OK &&
                         run->observer->want(run->observer->context, &info);
    }
    run->may_stop = rp_stop_possible(run->stop);
    atomic_store_explicit(&run->leave_at, RP_RUN_GOES_ON, memory_order_relaxed);
    make_phases(run, (size_t)rp_pool_threads(run->pool));
    const uint64_t start = run->profile ? rp_now_ns() : 0;
    RP_TRY(rp_pool_region(run->pool, 0, work, run, err));
    if (run->profile) {
        run->profile->wall_ns += rp_now_ns() - start;
        run->profile->runs++;
    }
    const bool left = atomic_load_explicit(&run->leave_at, memory_order_relaxed) != RP_RUN_GOES_ON;
    return left ? fail_stopped(run, err) : RP_OK;
}
