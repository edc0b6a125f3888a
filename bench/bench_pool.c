/* What meeting costs: ns per barrier and ns per region, for a pool that spins and one that sleeps.
 *
 *     bench_pool [THREADS [SPIN_US]]      default: all processors, 50
 *
 * Prints the median and the best of several rounds; a round is long against the clock and short
 * against a time slice, so the median tells of a quiet machine. */
#define _GNU_SOURCE 1
#include "pool/pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define ROUNDS 41

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const char *what, int n, double *ns)
{
    qsort(ns, ROUNDS, sizeof *ns, by_value);
    printf("%-28s %3d threads  median %9.1f ns  best %9.1f ns\n", what, n, ns[ROUNDS / 2], ns[0]);
}

struct barriers {
    int n;
    double ns;
};

static void barrier_body(void *arg, struct rp_worker *worker)
{
    struct barriers *job = arg;
    rp_worker_barrier(worker);
    const double begin = (double)rp_now_ns();
    for (int i = 0; i < job->n; i++)
        rp_worker_barrier(worker);
    if (worker->index == 0)
        job->ns = ((double)rp_now_ns() - begin) / job->n;
}

static void empty_body(void *arg, struct rp_worker *worker)
{
    (void)arg;
    (void)worker;
}

static void check(rp_status status, const rp_error *err)
{
    if (status == RP_OK)
        return;
    fprintf(stderr, "bench_pool: %s: %s\n", rp_status_name(status), err->message);
    exit(1);
}

static void bench_barriers(rp_pool *pool, int n)
{
    double ns[ROUNDS];
    rp_error err;
    for (int r = 0; r < ROUNDS; r++) {
        struct barriers job = {.n = n};
        check(rp_pool_region(pool, 0, barrier_body, &job, &err), &err);
        ns[r] = job.ns;
    }
    report("barrier", rp_pool_threads(pool), ns);
}

/* Regions one after the other (the threads still spin), or each after a pause (they sleep). */
static void bench_regions(rp_pool *pool, int n, long pause_us)
{
    double ns[ROUNDS];
    rp_error err;
    for (int r = 0; r < ROUNDS; r++) {
        double sum = 0;
        for (int i = 0; i < n; i++) {
            if (pause_us)
                nanosleep(&(struct timespec){.tv_nsec = pause_us * 1000}, NULL);
            const double begin = (double)rp_now_ns();
            check(rp_pool_region(pool, 0, empty_body, NULL, &err), &err);
            sum += (double)rp_now_ns() - begin;
        }
        ns[r] = sum / n;
    }
    report(pause_us ? "region, threads asleep" : "region, threads spinning", rp_pool_threads(pool),
           ns);
}

int main(int argc, char **argv)
{
    rp_pool_options options;
    rp_pool *pool;
    rp_error err;
    rp_pool_options_init(&options);
    if (argc > 1)
        options.n_threads = atoi(argv[1]);
    if (argc > 2)
        options.spin_us = (unsigned)atoi(argv[2]);
    check(rp_pool_create(&options, &pool, &err), &err);
    bench_barriers(pool, options.spin_us && rp_pool_threads(pool) <= rp_cpu_count() ? 2000 : 200);
    bench_regions(pool, 500, 0);
    bench_regions(pool, 5, 500);
    rp_pool_destroy(pool);
    return 0;
}
