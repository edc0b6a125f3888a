/* The convolution before the delta rule, over sequences in slots: each keeps the last kernel - 1
 * rows of what came in.
 *
 * Rows do not depend on each other, so a task is a block of rows of one sequence, and a sequence
 * cut into calls has the same bits as whole.  What slots keep is written last, when nothing can
 * fail any more.
 */
#include "gdn/batch.h"

#include "pool/error.h"
#include "pool/fpenv.h"
#include "pool/pool.h"

#include <stdatomic.h>
#include <string.h>

/* Channels whose weights are turned at a time, on the stack. */
#define TURN_CHANNELS 128

/* Rows of a task: enough that the kernel - 1 rows that it reads from before are few. */
#define BLOCK_ROWS 32

/* Multiply-adds that are worth waking a thread. */
#define MIN_WORK 50000

struct conv {
    rp_gdn_states *states;
    const rp_gdn_conv_batch *batch;
    struct rp_ops_conv kernel; /* w and b: not used, see run_rows() */
    struct rp_gdn_named x, out;
    size_t n_rows, n_seqs;
    struct rp_counter blocks, kept;
    atomic_bool bad_x, bad_out;
};

void rp_gdn_conv_batch_init(rp_gdn_conv_batch *batch)
{
    *batch = (rp_gdn_conv_batch){.struct_size = sizeof *batch, .activation = RP_ACT_SILU};
}

static rp_status check_batch(struct conv *c, rp_error *err)
{
    const rp_gdn_states_options *o = &c->states->options;
    const rp_gdn_conv_batch *b = c->batch;
    if (!b)
        return rp_fail(err, RP_ERR_INVALID, "batch is NULL");
    if (b->struct_size != sizeof *b)
        return rp_fail(err, RP_ERR_INVALID, "rp_gdn_conv_batch has struct_size %zu, expected %zu",
                       b->struct_size, sizeof *b);
    RP_TRY(rp_gdn_check_conv(c->states, err));
    if (!b->w)
        return rp_fail(err, RP_ERR_INVALID, "w has no data");
    if ((unsigned)b->activation > RP_ACT_SIGMOID)
        return rp_fail(err, RP_ERR_INVALID, "activation is %d, which is none", (int)b->activation);
    RP_TRY(rp_gdn_check_seqs(c->states, b->n_seqs, b->slots, b->cu, &c->n_rows, err));
    if (c->n_rows == 0)
        return RP_OK;
    c->x = (struct rp_gdn_named){"x", rp_gdn_floats(b->x), o->conv_channels, false};
    c->out = (struct rp_gdn_named){"out", rp_gdn_floats((rp_gdn_input){b->out, b->ld_out}),
                                   o->conv_channels, false};
    c->kernel = (struct rp_ops_conv){
        .kernel = o->conv_kernel, .width = o->conv_channels, .activation = b->activation};
    RP_TRY(rp_gdn_check_rows(&c->x, c->n_rows, err));
    return rp_gdn_check_rows(&c->out, c->n_rows, err);
}

/* Row t of what its slot keeps with the sequence behind it; NULL: zeros. */
static const float *source(const struct conv *c, const struct rp_gdn_seq *seq, size_t t)
{
    const size_t kept = c->kernel.kernel - 1;
    if (t >= kept)
        return c->batch->x.data + (seq->row0 + t - kept) * c->batch->x.ld;
    return seq->from ? (const float *)seq->from + t * c->kernel.width : NULL;
}

static inline void turn_by(const float *restrict w, size_t kernel, size_t n, float *restrict to)
{
    for (size_t c = 0; c < n; c++) {
        for (size_t i = 0; i < kernel; i++)
            to[i * n + c] = w[c * kernel + i];
    }
}

/* Numbers that the compiler knows make this twice as fast: 4 is what models have. */
void rp_gdn_turn(const float *w, size_t kernel, size_t n, float *to)
{
    if (kernel == 4 && n == TURN_CHANNELS)
        turn_by(w, 4, TURN_CHANNELS, to);
    else
        turn_by(w, kernel, n, to);
}

/* n rows from r0 of the batch on, some channels at a time. */
static void run_rows(const struct conv *c, const float *const *before, size_t r0, size_t n)
{
    const rp_gdn_conv_batch *b = c->batch;
    const size_t all = c->kernel.width, kernel = c->kernel.kernel;
    float w[RP_CONV_MAX_KERNEL * TURN_CHANNELS];
    const float *some_before[RP_CONV_MAX_KERNEL];
    struct rp_ops_conv some = c->kernel;
    some.w = w;
    for (size_t c0 = 0; c0 < all; c0 += some.width) {
        some.width = all - c0 < TURN_CHANNELS ? all - c0 : TURN_CHANNELS;
        some.b = b->b ? b->b + c0 : NULL;
        rp_gdn_turn(b->w + c0 * kernel, kernel, some.width, w);
        for (size_t i = 0; i + 1 < kernel; i++)
            some_before[i] = before[i] ? before[i] + c0 : NULL;
        c->states->ops->conv(&some, some_before, b->x.data + r0 * b->x.ld + c0, b->x.ld,
                             b->out + r0 * b->ld_out + c0, b->ld_out, n);
    }
}

/* Rows [t0, t0 + n) of a sequence. */
static void run_block(struct conv *c, const struct rp_gdn_seq *seq, size_t t0, size_t n)
{
    const rp_gdn_states *s = c->states;
    const size_t kept = c->kernel.kernel - 1, r0 = seq->row0 + t0;
    const float *before[RP_CONV_MAX_KERNEL];
    struct rp_gdn_place where;
    if (rp_gdn_find_bad(s, &c->x, 1, r0, r0 + n, &where))
        atomic_store_explicit(&c->bad_x, true, memory_order_relaxed);
    for (size_t i = 0; i < kept; i++)
        before[i] = source(c, seq, t0 + i);
    run_rows(c, before, r0, n);
    if (rp_gdn_find_bad(s, &c->out, 1, r0, r0 + n, &where))
        atomic_store_explicit(&c->bad_out, true, memory_order_relaxed);
}

/* The slot keeps the last rows of what it kept and of the sequence.  Oldest first, so that it may
 * be written over itself. */
static void keep_rows(const struct conv *c, const struct rp_gdn_seq *seq)
{
    const size_t kept = c->kernel.kernel - 1, width = c->kernel.width;
    float *to = seq->to;
    for (size_t i = 0; i < kept; i++, to += width) {
        const float *from = source(c, seq, seq->n + i);
        if (from)
            memmove(to, from, width * sizeof *to);
        else
            memset(to, 0, width * sizeof *to);
    }
}

/* Blocks are numbered through all sequences; `first` and `at` are where a worker has come to. */
static bool find_block(const struct conv *c, size_t number, size_t *at, size_t *first)
{
    for (; *at < c->n_seqs; (*at)++) {
        const size_t n = (c->states->seqs[*at].n + BLOCK_ROWS - 1) / BLOCK_ROWS;
        if (number - *first < n)
            return true;
        *first += n;
    }
    return false;
}

static void region(void *arg, struct rp_worker *worker)
{
    struct conv *c = arg;
    const struct rp_gdn_seq *seqs = c->states->seqs;
    size_t at = 0, first = 0;
    for (size_t i; i = rp_claim(&c->blocks), find_block(c, i, &at, &first);) {
        const size_t t0 = (i - first) * BLOCK_ROWS, left = seqs[at].n - t0;
        run_block(c, &seqs[at], t0, left < BLOCK_ROWS ? left : BLOCK_ROWS);
    }
    rp_worker_barrier(worker);
    if (c->kernel.kernel == 1 || atomic_load_explicit(&c->bad_x, memory_order_relaxed) ||
        atomic_load_explicit(&c->bad_out, memory_order_relaxed))
        return;
    for (size_t i; (i = rp_claim(&c->kept)) < c->n_seqs;)
        keep_rows(c, &seqs[i]);
}

static rp_status verdict(const struct conv *c, rp_error *err)
{
    struct rp_gdn_place where;
    rp_status status = RP_OK;
    const rp_fpenv callers = rp_fpenv_enter();
    if ((c->bad_x && rp_gdn_find_bad(c->states, &c->x, 1, 0, c->n_rows, &where)) ||
        (c->bad_out && rp_gdn_find_bad(c->states, &c->out, 1, 0, c->n_rows, &where)))
        status = rp_gdn_fail_bad(c->states, &where, err);
    else if (c->bad_x || c->bad_out)
        status = rp_fail(err, RP_ERR_NONFINITE, "a number changed while it was looked at");
    rp_fpenv_leave(callers);
    return status;
}

rp_status rp_gdn_conv(rp_gdn_states *states, const rp_gdn_conv_batch *batch, rp_error *err)
{
    struct conv c = {.states = states, .batch = batch};
    RP_TRY(check_batch(&c, err));
    if (c.n_rows == 0)
        return RP_OK;
    const double work = (double)c.n_rows * (double)c.kernel.width * (double)c.kernel.kernel;
    const int threads = rp_pool_threads(states->options.pool);
    const int workers = work / MIN_WORK < threads ? (int)(work / MIN_WORK) + 1 : threads;
    c.n_seqs = rp_gdn_begin(states, &states->conv, true, batch->n_seqs, batch->slots, batch->cu);
    rp_status status = rp_pool_region(states->options.pool, workers, region, &c, err);
    if (status == RP_OK)
        status = verdict(&c, err);
    rp_gdn_end(states, &states->conv, c.n_seqs, status == RP_OK);
    return status;
}
