/* Parallel regions, as the folders of the library see them.
 *
 * A region is one function that runs on every worker of the pool at once.  Inside it, workers share
 * work by claiming task numbers from counters and meet at barriers; a whole model runs inside a
 * single region, so that the price of waking threads is paid once a run and not once a step.
 *
 *     caller:   rp_pool_region(pool, body, arg)        worker 0 is the caller itself
 *     body:     while ((t = rp_claim(&counter)) < n) ...work...;  rp_worker_barrier(w);  ...
 *
 * Nothing here allocates once the pool exists.
 */
#ifndef RP_POOL_POOL_H
#define RP_POOL_POOL_H

#include <rankplan/machine.h>

#include <stdatomic.h>
#include <stddef.h>

/* One of the threads in a region. */
struct rp_worker {
    int index;     /* 0 .. n-1; 0 is the calling thread */
    int n;         /* workers in this region */
    rp_pool *pool; /* NULL when the region runs on the caller alone without a pool */
};

typedef void rp_region_fn(void *arg, struct rp_worker *worker);

/* Runs body on min(max_workers, threads of the pool) workers and returns when all are done.
 * max_workers 0 means all.  pool NULL: on the caller alone.  Another thread's region on the same
 * pool is waited for; a region inside a region of the same pool is refused (RP_ERR_INVALID).
 * In the child of a fork the first region starts threads, which can fail (RP_ERR_SYSTEM,
 * RP_ERR_NOMEM); the pool stays good and the next region tries again.
 * Sets the floating-point environment of the contract (round to nearest, no flush to zero, no
 * denormals-are-zero, exceptions masked) on every worker and gives the caller its own back. */
RP_CHECKED rp_status rp_pool_region(rp_pool *pool, int max_workers, rp_region_fn *body, void *arg,
                                    rp_error *err);

/* Waits until every worker of the region has come here.  What was written before is seen after. */
void rp_worker_barrier(struct rp_worker *worker);

/* A task counter on a cache line of its own.  Set to 0 before the region (or before a barrier). */
struct rp_counter {
    _Alignas(64) atomic_size_t next;
};

static inline size_t rp_claim(struct rp_counter *counter)
{
    return atomic_fetch_add_explicit(&counter->next, 1, memory_order_relaxed);
}

/* Runs task(arg, i, worker index) for each i < n, spread over the pool. For set-up work. */
typedef void rp_task_fn(void *arg, size_t i, int worker);
RP_CHECKED rp_status rp_pool_for(rp_pool *pool, size_t n, rp_task_fn *task, void *arg,
                                 rp_error *err);

#endif
