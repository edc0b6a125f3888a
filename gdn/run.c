/* Running rows through the states of slots.
 *
 * A task is one sequence, one key head with its value heads, and a range of their value columns. It
 * takes the state's columns from where the slot has them to where it is about to have them, then
 * goes chunk by chunk: the head's part of the rows is packed (which serves any strides and both
 * maps of heads with one kernel), run, and its outputs are spread again.
 *
 * New states become the slots' only when all tasks have ended well.
 */
#include "gdn/state.h"

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

struct input {
    const char *name;
    rp_gdn_input rows;
    size_t width;
};

enum { Q, K, V, DECAY, BETA, N_INPUTS };

struct run {
    rp_gdn_states *states;
    const rp_gdn_batch *batch;
    struct input inputs[N_INPUTS];
    size_t n_rows, n_seqs; /* sequences that have rows */
    size_t n_parts, part_columns;
    struct rp_counter checks, tasks;
    atomic_bool bad_input, bad_state, bad_out;
};

void rp_gdn_batch_init(rp_gdn_batch *batch)
{
    *batch = (rp_gdn_batch){.struct_size = sizeof *batch};
}

/* ---- what is refused ---------------------------------------------------------------------------
 */

/* Rows of `width` floats in memory that can be. */
static rp_status check_rows(const char *name, const void *data, size_t ld, size_t n, size_t width,
                            rp_error *err)
{
    size_t last, floats;
    if (!data)
        return rp_fail(err, RP_ERR_INVALID, "%s has no data", name);
    if (n > 1 && ld < width)
        return rp_fail(err, RP_ERR_INVALID,
                       "%s: rows of %zu floats overlap each other, being %zu apart", name, width,
                       ld);
    if (!rp_mul_ok(n - 1, ld, &last) || !rp_add_ok(last, width, &floats) ||
        floats > PTRDIFF_MAX / sizeof(float))
        return rp_fail(err, RP_ERR_LIMIT,
                       "%s elements: %zu rows, %zu floats apart, are past what memory can hold",
                       name, n, ld);
    return RP_OK;
}

static rp_status check_cu(const rp_gdn_batch *b, size_t *n_rows, rp_error *err)
{
    *n_rows = b->n_seqs;
    if (!b->cu)
        return RP_OK;
    if (b->cu[0] != 0)
        return rp_fail(err, RP_ERR_INVALID, "cu begins with %d, expected 0", b->cu[0]);
    for (size_t i = 0; i < b->n_seqs; i++) {
        if (b->cu[i + 1] < b->cu[i])
            return rp_fail(err, RP_ERR_INVALID, "cu goes from %d down to %d at sequence %zu",
                           b->cu[i], b->cu[i + 1], i);
    }
    *n_rows = (size_t)b->cu[b->n_seqs];
    return RP_OK;
}

static rp_status check_slots(rp_gdn_states *s, const rp_gdn_batch *b, rp_error *err)
{
    rp_status status = RP_OK;
    size_t i = 0;
    for (; i < b->n_seqs; i++) {
        status = rp_gdn_check_slot(s, b->slots[i], err);
        if (status == RP_OK && s->named[b->slots[i]])
            status = rp_fail(err, RP_ERR_INVALID, "slot %d is named twice", b->slots[i]);
        if (status != RP_OK)
            break;
        s->named[b->slots[i]] = true;
    }
    while (i-- > 0)
        s->named[b->slots[i]] = false;
    return status;
}

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
    run->inputs[Q] = (struct input){"q", b->q, keys};
    run->inputs[K] = (struct input){"k", b->k, keys};
    run->inputs[V] = (struct input){"v", b->v, values};
    run->inputs[DECAY] = (struct input){"decay", b->decay, s->n_value_heads};
    run->inputs[BETA] = (struct input){"beta", b->beta, s->n_value_heads};
}

/* All but the numbers themselves. */
static rp_status check_batch(struct run *run, rp_error *err)
{
    rp_gdn_states *s = run->states;
    const rp_gdn_batch *b = run->batch;
    if (b->struct_size != sizeof *b)
        return rp_fail(err, RP_ERR_INVALID, "rp_gdn_batch has struct_size %zu, expected %zu",
                       b->struct_size, sizeof *b);
    if (b->n_seqs && !b->slots)
        return rp_fail(err, RP_ERR_INVALID, "the batch has %zu sequences and no slots", b->n_seqs);
    RP_TRY(check_cu(b, &run->n_rows, err));
    RP_TRY(check_slots(s, b, err));
    if (run->n_rows == 0)
        return RP_OK;
    name_inputs(run);
    for (int i = 0; i < N_INPUTS; i++) {
        const struct input *in = &run->inputs[i];
        RP_TRY(check_rows(in->name, in->rows.data, in->rows.ld, run->n_rows, in->width, err));
    }
    RP_TRY(check_rows("out", b->out, b->ld_out, run->n_rows, run->inputs[V].width, err));
    return check_steps(run, err);
}

/* ---- numbers that are none ---------------------------------------------------------------------
 */

/* A log decay may be -inf: a factor of 0. */
static bool bad_row(const struct run *run, int i, size_t row, size_t *column)
{
    const struct input *in = &run->inputs[i];
    const float *x = in->rows.data + row * in->rows.ld;
    size_t c = 0, where;
    if (!run->states->ops->nonfinite(x, in->width, &where))
        return false;
    for (c = where; c < in->width; c++) {
        if (isfinite(x[c]) || (i == DECAY && !run->states->options.linear_decay && x[c] < 0))
            continue;
        *column = c;
        return true;
    }
    return false;
}

/* The first bad number of rows [r0, r1): its input, row and column. */
struct place {
    const struct input *in;
    size_t row, column;
};

static bool bad_rows(const struct run *run, size_t r0, size_t r1, struct place *where)
{
    for (where->row = r0; where->row < r1; where->row++) {
        for (int i = 0; i < N_INPUTS; i++) {
            where->in = &run->inputs[i];
            if (bad_row(run, i, where->row, &where->column))
                return true;
        }
    }
    return false;
}

static void check_numbers(struct run *run)
{
    const size_t n = (run->n_rows + CHECK_ROWS - 1) / CHECK_ROWS;
    for (size_t i; (i = rp_claim(&run->checks)) < n;) {
        const size_t r0 = i * CHECK_ROWS;
        const size_t r1 = run->n_rows - r0 < CHECK_ROWS ? run->n_rows : r0 + CHECK_ROWS;
        struct place where;
        if (bad_rows(run, r0, r1, &where))
            atomic_store_explicit(&run->bad_input, true, memory_order_relaxed);
    }
}

static rp_status fail_by_number(const char *name, size_t row, size_t column, float x, rp_error *err)
{
    return rp_fail(err, RP_ERR_NONFINITE, "%s, row %zu, column %zu is %s", name, row, column,
                   isnan(x) ? "NaN" : "infinite");
}

static rp_status fail_by_input(const struct run *run, rp_error *err)
{
    struct place p;
    if (!bad_rows(run, 0, run->n_rows, &p))
        return rp_fail(err, RP_ERR_NONFINITE, "inputs changed while they were looked at");
    return fail_by_number(p.in->name, p.row, p.column,
                          p.in->rows.data[p.row * p.in->rows.ld + p.column], err);
}

static rp_status fail_by_out(const struct run *run, rp_error *err)
{
    const rp_gdn_states *s = run->states;
    const rp_gdn_batch *b = run->batch;
    const size_t width = s->n_value_heads * s->value_dim;
    for (size_t r = 0, c; r < run->n_rows; r++) {
        if (s->ops->nonfinite(b->out + r * b->ld_out, width, &c))
            return fail_by_number("out", r, c, b->out[r * b->ld_out + c], err);
    }
    return rp_fail(err, RP_ERR_NONFINITE, "out changed while it was looked at");
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

/* The task's columns of the state as runs of n floats from number `at` on; whole heads are one. */
typedef void span_fn(struct task *t, size_t at, size_t n);

static void each_span(struct task *t, span_fn *fn)
{
    const size_t width = t->s->value_dim, head = t->s->key_dim * width;
    for (size_t i = t->c0 / width; i * width < t->c1; i++) {
        const size_t a = t->c0 > i * width ? t->c0 - i * width : 0;
        const size_t b = t->c1 - i * width < width ? t->c1 - i * width : width;
        if (b - a == width) {
            fn(t, i * head, head);
        } else {
            for (size_t k = 0; k < t->s->key_dim; k++)
                fn(t, i * head + k * width + a, b - a);
        }
    }
}

static void load_span(struct task *t, size_t at, size_t n)
{
    rp_gdn_load(t->s, t->from, at, t->state + at, n);
}

static void store_span(struct task *t, size_t at, size_t n)
{
    t->bad_state |= rp_gdn_round(t->s, t->state + at, n);
    if (t->state != t->to)
        rp_gdn_store(t->s, t->to, at, t->state + at, n);
}

static void start_step(struct task *t, size_t at, size_t n)
{
    memcpy(t->step + at, t->state + at, n * sizeof *t->step);
}

static void keep_step(struct task *t, size_t at, size_t n)
{
    memcpy(t->state + at, t->step + at, n * sizeof *t->step);
}

/* A span of the state after a row, rounded as the slot would hold it, to the caller's steps. */
static void show_step(struct task *t, size_t at, size_t n)
{
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
        atomic_store_explicit(&run->bad_state, true, memory_order_relaxed);
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

static void begin(struct run *run)
{
    rp_gdn_states *s = run->states;
    const rp_gdn_batch *b = run->batch;
    for (size_t i = 0; i < b->n_seqs; i++) {
        struct rp_gdn_seq seq = {.slot = (size_t)b->slots[i], .row0 = i, .n = 1};
        if (b->cu) {
            seq.row0 = (size_t)b->cu[i];
            seq.n = (size_t)(b->cu[i + 1] - b->cu[i]);
        }
        if (seq.n == 0)
            continue;
        seq.from = rp_blocks_read(&s->state, seq.slot);
        seq.to = rp_blocks_begin(&s->state, seq.slot, s->options.in_place);
        s->seqs[run->n_seqs++] = seq;
    }
}

/* What the region has found, if anything. */
static rp_status verdict(const struct run *run, rp_error *err)
{
    const rp_fpenv callers = rp_fpenv_enter();
    rp_status status = RP_OK;
    if (run->bad_input)
        status = fail_by_input(run, err);
    else if (run->bad_out)
        status = fail_by_out(run, err);
    else if (run->bad_state)
        status =
            rp_fail(err, RP_ERR_NONFINITE, "a state has grown past the largest number of its type");
    rp_fpenv_leave(callers);
    return status;
}

rp_status rp_gdn_run(rp_gdn_states *states, const rp_gdn_batch *batch, rp_error *err)
{
    struct run run = {.states = states, .batch = batch};
    RP_TRY(check_batch(&run, err));
    if (run.n_rows == 0)
        return RP_OK;
    begin(&run);
    rp_status status = rp_pool_region(states->options.pool, split(&run), region, &run, err);
    if (status == RP_OK)
        status = verdict(&run, err);
    for (size_t i = 0; i < run.n_seqs; i++)
        rp_blocks_end(&states->state, states->seqs[i].slot, status == RP_OK);
    return status;
}
