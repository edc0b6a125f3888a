/* The pool of threads.
 *
 * The thread that asks for a region is its worker 0; the others are kept between regions.  All
 * meeting goes through flags (pool/wait.h), each on a cache line of its own:
 *
 *     ticket      raised by the caller, waited for by all threads: a region begins.  Its aux is the
 *                 number of workers, so a thread that is not needed never looks at the job.
 *     done[i]     raised by worker i, waited for by the caller: worker i has left the body.
 *     round[i][r] a barrier is a dissemination barrier: in round r worker i raises the flag of
 *                 worker i + 2^r and waits for its own, which i - 2^r raises.  After ceil(log2 n)
 *                 rounds everyone has heard of everyone.  Two workers thus swap one cache line
 *                 each, at once; n workers never queue up for one counter.
 *
 * A region ends only when each of its workers has left the body, so that a flag never has two
 * threads raising it, even when the next region is of another size.  Barriers are numbered through
 * all regions; the caller, who takes part in every one, hands the number on.
 *
 * In the child of a fork the threads are gone.  The generation in pool/wait.h tells, and the first
 * region there begins by starting new ones.
 */
#define _GNU_SOURCE 1
#include "pool/pool.h"

#include "pool/cpus.h"
#include "pool/error.h"
#include "pool/fault.h"
#include "pool/fpenv.h"
#include "pool/memory.h"
#include "pool/wait.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define MAX_THREADS 2048
#define MAX_ROUNDS  11 /* 2^11 = MAX_THREADS */

/* Kernels keep their scratch in the arena; what is left are call frames and the host's TLS. */
#define STACK_BYTES ((size_t)256 << 10)

_Static_assert(MAX_THREADS == 1 << MAX_ROUNDS && MAX_THREADS <= RP_FLAG_AUX_MAX, "flag widths");

/* The regions that the current thread is inside of, innermost first.  A thread of a pool continues
 * the chain of the caller whose region it works for. */
struct frame {
    const rp_pool *pool;
    const struct frame *outer;
};

static _Thread_local const struct frame *innermost;

struct job {
    rp_region_fn *body;
    void *arg;
    int n;
    const struct frame *frame;
    uint64_t barriers; /* passed in earlier regions */
};

/* One worker.  The flags are written by other threads or polled by them, the rest of it only by the
 * worker itself while a region runs. */
struct slot {
    struct rp_flag done; /* raised by this worker, in work(); waited for in dispatch() */
    struct rp_flag round[MAX_ROUNDS]; /* raised by worker index - 2^r, in rp_worker_barrier() */
    _Alignas(RP_CACHE_LINE) uint64_t barriers; /* passed so far */
    rp_pool *pool;
    int index;
    int cpu; /* to stay on; -1: float */
    pthread_t thread;
};

struct rp_pool {
    struct rp_flag
        ticket;          /* raised in dispatch() and stop_threads(), waited for in thread_main() */
    struct rp_lock lock; /* held for the length of a region */
    /* Written by the holder of the lock before it raises the ticket, read by workers after. */
    _Alignas(RP_CACHE_LINE) struct job job;
    uint64_t regions;    /* dispatched; the phase of the ticket */
    unsigned generation; /* of the process that started the threads */
    bool started;        /* there are threads, if generation is ours */
    int n_threads;
    bool pin;
    uint64_t spin_ns;
    uint64_t option_spin_ns;
    struct slot slots[]; /* n_threads */
};

/* ---- the inside of a region ------------------------------------------------------------------ */

static void run_body(rp_pool *pool, const struct job *job, int index)
{
    struct rp_worker worker = {.index = index, .n = job->n, .pool = pool};
    const struct frame *outer = innermost;
    innermost = job->frame;
    const rp_fpenv callers = rp_fpenv_enter();
    job->body(job->arg, &worker);
    rp_fpenv_leave(callers);
    innermost = outer;
}

/* A body that forks goes on in the child too, where its fellow workers are not.  It must not wait
 * for them there. */
static bool forked_inside(const rp_pool *pool)
{
    return pool->generation != rp_generation();
}

void rp_worker_barrier(struct rp_worker *worker)
{
    const int n = worker->n;
    if (n == 1)
        return;
    rp_pool *pool = worker->pool;
    if (forked_inside(pool))
        return;
    struct slot *me = &pool->slots[worker->index];
    const uint64_t barrier = ++me->barriers;
    int round = 0;
    for (int distance = 1; distance < n; distance *= 2, round++) {
        const int to = worker->index + distance;
        rp_flag_raise(&pool->slots[to < n ? to : to - n].round[round], barrier, 0);
        rp_flag_wait(&me->round[round], barrier, pool->spin_ns);
    }
}

static void work(rp_pool *pool, struct slot *me, uint64_t region)
{
    me->barriers = pool->job.barriers;
    run_body(pool, &pool->job, me->index);
    rp_flag_raise(&me->done, region, 0);
}

/* ---- threads --------------------------------------------------------------------------------- */

#define STOP 0 /* in place of the number of workers */

static void *thread_main(void *arg)
{
    struct slot *me = arg;
    rp_pool *pool = me->pool;
    char name[16];
    snprintf(name, sizeof name, "rankplan-%d", me->index);
    pthread_setname_np(pthread_self(), name);
    /* A system that refuses is no reason to fail: only time depends on it. */
    if (me->cpu >= 0)
        (void)rp_cpu_pin_self(me->cpu);
    for (uint64_t region = 0;;) {
        const uint64_t word = rp_flag_wait(&pool->ticket, region + 1, pool->spin_ns);
        const int n = (int)rp_flag_aux(word);
        region = rp_flag_phase(word);
        if (n == STOP)
            return NULL;
        if (me->index < n)
            work(pool, me, region);
    }
}

static void stop_threads(rp_pool *pool, int n)
{
    rp_flag_raise(&pool->ticket, ++pool->regions, STOP);
    for (int i = 1; i < n; i++)
        pthread_join(pool->slots[i].thread, NULL);
    pool->started = false;
}

/* Signals are the host's: they go to the host's threads, except those that a thread's own fault
 * raises, and that of profilers. */
static void block_signals(sigset_t *callers)
{
    static const int ours[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS, SIGPROF};
    sigset_t blocked;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
        sigdelset(&blocked, ours[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, callers);
}

static int start_thread(struct slot *slot)
{
    pthread_attr_t attr;
    if (rp_fault_hit(RP_FAULT_THREAD))
        return EAGAIN;
    int error = pthread_attr_init(&attr);
    if (error)
        return error;
    error = pthread_attr_setstacksize(&attr, STACK_BYTES);
    if (!error)
        error = pthread_create(&slot->thread, &attr, thread_main, slot);
    pthread_attr_destroy(&attr);
    return error;
}

/* Says which processor each worker stays on and how long waiting is worth spinning.  Where threads
 * outnumber processors nobody is pinned, and a spinning thread would only keep the one that it
 * waits for from running. */
static rp_status place(rp_pool *pool, rp_error *err)
{
    struct rp_cpu_set allowed;
    const int n = pool->n_threads;
    rp_cpu_set_allowed(&allowed);
    const int n_allowed = rp_cpu_set_count(&allowed);
    for (int i = 0; i < n; i++)
        pool->slots[i].cpu = -1;
    const int quota = rp_cpu_quota("");
    pool->spin_ns = n <= n_allowed && n <= quota ? pool->option_spin_ns : 0;
    if (!pool->pin || n == 1 || n > n_allowed)
        return RP_OK;

    int *order = rp_aligned_alloc((size_t)n * sizeof *order);
    if (!order)
        return rp_fail(err, RP_ERR_NOMEM, "pool of %d threads: no memory for their places", n);
    /* The caller's processor of this moment is the one that no worker is given. */
    rp_cpu_order(&allowed, rp_cpu_current(), "", order, n);
    for (int i = 1; i < n; i++)
        pool->slots[i].cpu = order[i];
    rp_aligned_free(order);
    return RP_OK;
}

/* Starts the threads of this process on a pool that has none here. */
static rp_status start_threads(rp_pool *pool, unsigned generation, rp_error *err)
{
    const int n = pool->n_threads;
    RP_TRY(place(pool, err));
    pool->generation = generation;
    pool->started = false;
    pool->regions = 0;
    rp_flag_reset(&pool->ticket);
    for (int i = 0; i < n; i++) {
        struct slot *slot = &pool->slots[i];
        rp_flag_reset(&slot->done);
        for (int r = 0; r < MAX_ROUNDS; r++)
            rp_flag_reset(&slot->round[r]);
        slot->barriers = 0;
        slot->pool = pool;
        slot->index = i;
    }

    sigset_t callers;
    int error = 0;
    int started = 1;
    block_signals(&callers);
    while (started < n && (error = start_thread(&pool->slots[started])) == 0)
        started++;
    pthread_sigmask(SIG_SETMASK, &callers, NULL);
    if (error) {
        char text[64];
        stop_threads(pool, started);
        return rp_fail(err, RP_ERR_SYSTEM,
                       "pool of %d threads: thread %d of the %d to start could not be started: %s",
                       n, started, n - 1, strerror_r(error, text, sizeof text));
    }
    pool->started = true;
    return RP_OK;
}

/* ---- regions --------------------------------------------------------------------------------- */

static bool inside_region_of(const rp_pool *pool)
{
    for (const struct frame *f = innermost; f; f = f->outer)
        if (f->pool == pool)
            return true;
    return false;
}

/* Runs the job on n > 1 workers.  The caller holds the lock. */
static rp_status dispatch(rp_pool *pool, const struct job *job, rp_error *err)
{
    const uint64_t region = ++pool->regions;
    pool->job = *job;
    pool->job.barriers = pool->slots[0].barriers;
    rp_flag_raise(&pool->ticket, region, (unsigned)job->n);
    run_body(pool, &pool->job, 0);
    if (forked_inside(pool))
        return rp_fail(err, RP_ERR_SYSTEM,
                       "region: the process forked inside it, the work of %d threads is lost",
                       job->n - 1);
    for (int i = 1; i < job->n; i++)
        rp_flag_wait(&pool->slots[i].done, region, pool->spin_ns);
    return RP_OK;
}

rp_status rp_pool_region(rp_pool *pool, int max_workers, rp_region_fn *body, void *arg,
                         rp_error *err)
{
    if (!body || max_workers < 0)
        return rp_fail(err, RP_ERR_INVALID, "region: %s",
                       body ? "the number of workers is negative" : "there is no body");
    struct job job = {.body = body, .arg = arg, .n = 1, .frame = innermost};
    if (!pool) {
        run_body(NULL, &job, 0);
        return RP_OK;
    }
    if (inside_region_of(pool))
        return rp_fail(err, RP_ERR_INVALID,
                       "region: the calling thread is inside a region of this pool already");

    const struct frame frame = {pool, innermost};
    const unsigned generation = rp_generation();
    rp_status status = RP_OK;
    job.frame = &frame;
    job.n = max_workers && max_workers < pool->n_threads ? max_workers : pool->n_threads;
    rp_lock_acquire(&pool->lock, generation);
    if (job.n == 1) {
        run_body(pool, &job, 0);
    } else {
        if (!pool->started || pool->generation != generation)
            status = start_threads(pool, generation, err);
        if (status == RP_OK)
            status = dispatch(pool, &job, err);
    }
    rp_lock_release(&pool->lock, generation);
    return status;
}

struct for_job {
    struct rp_counter counter;
    size_t n;
    rp_task_fn *task;
    void *arg;
};

static void for_body(void *arg, struct rp_worker *worker)
{
    struct for_job *job = arg;
    size_t i;
    while ((i = rp_claim(&job->counter)) < job->n)
        job->task(job->arg, i, worker->index);
}

rp_status rp_pool_for(rp_pool *pool, size_t n, rp_task_fn *task, void *arg, rp_error *err)
{
    if (!task)
        return rp_fail(err, RP_ERR_INVALID, "parallel for: there is no task");
    if (n == 0)
        return RP_OK;
    struct for_job job = {.n = n, .task = task, .arg = arg};
    const int max_workers = n < MAX_THREADS ? (int)n : 0;
    return rp_pool_region(pool, max_workers, for_body, &job, err);
}

/* ---- making and ending ----------------------------------------------------------------------- */

void rp_pool_options_init(rp_pool_options *options)
{
    *options =
        (rp_pool_options){.struct_size = sizeof *options, .n_threads = 0, .pin = 1, .spin_us = 50};
}

static rp_status read_options(const rp_pool_options *given, rp_pool_options *out, rp_error *err)
{
    rp_pool_options_init(out);
    if (given) {
        if (given->struct_size != sizeof *given)
            return rp_fail(err, RP_ERR_INVALID, "pool options: struct_size is %zu, expected %zu",
                           given->struct_size, sizeof *given);
        *out = *given;
    }
    if (out->n_threads < 0 || out->n_threads > MAX_THREADS)
        return rp_fail(err, RP_ERR_INVALID, "pool of %d threads: expected 0 (all) to %d",
                       out->n_threads, MAX_THREADS);
    if (out->n_threads == 0) {
        const int n = rp_cpu_count();
        out->n_threads = n < MAX_THREADS ? n : MAX_THREADS;
    }
    return RP_OK;
}

rp_status rp_pool_create(const rp_pool_options *options, rp_pool **out, rp_error *err)
{
    rp_pool_options o;
    if (!out)
        return rp_fail(err, RP_ERR_INVALID, "pool: there is no place for the result");
    RP_TRY(read_options(options, &o, err));
    /* The permission to use tiles has to be there before the threads are. */
    (void)rp_isa_detected();

    const size_t bytes = sizeof(rp_pool) + (size_t)o.n_threads * sizeof(struct slot);
    rp_pool *pool = rp_generation_init() ? NULL : rp_aligned_alloc_zero(bytes);
    if (!pool)
        return rp_fail(err, RP_ERR_NOMEM, "pool of %d threads: no memory for %zu bytes",
                       o.n_threads, bytes);
    pool->n_threads = o.n_threads;
    pool->pin = o.pin != 0;
    pool->option_spin_ns = (uint64_t)o.spin_us * 1000;
    const rp_status status = start_threads(pool, rp_generation(), err);
    if (status != RP_OK) {
        rp_aligned_free(pool);
        return status;
    }
    *out = pool;
    return RP_OK;
}

void rp_pool_destroy(rp_pool *pool)
{
    if (!pool)
        return;
    assert(!inside_region_of(pool));
    if (pool->started && pool->generation == rp_generation())
        stop_threads(pool, pool->n_threads);
    rp_aligned_free(pool);
}

int rp_pool_threads(const rp_pool *pool)
{
    return pool ? pool->n_threads : 1;
}
