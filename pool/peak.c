/* Measuring the ceiling: every thread runs the same loop at the same time, several times; the best
 * time counts, since what is asked is what the machine can do, and everything that disturbs it only
 * takes away. */
#include "pool/peak.h"

#include "pool/pool.h"

#include <time.h>

#define TIMES    15
#define ROUND_NS 5000000.0 /* of one measurement */

static rp_peak_fn *choose(uint32_t isa)
{
#if RP_HAVE_AVX512
    if (isa & RP_ISA_AVX512)
        return rp_peak__avx512;
#endif
#if RP_HAVE_AVX2
    if (isa & RP_ISA_AVX2)
        return rp_peak__avx2;
#endif
#if RP_HAVE_NEON
    if (isa & RP_ISA_NEON)
        return rp_peak__neon;
#endif
    (void)isa;
    return rp_peak__scalar;
}

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void fill(float *sink)
{
    for (int i = 0; i < 16; i++)
        sink[i] = 1.0f + (float)i * 0.01f;
}

struct measurement {
    rp_peak_fn *loop;
    size_t rounds;
    double best; /* multiply-adds of all threads a nanosecond; worker 0 writes it */
};

static void measure(void *arg, struct rp_worker *worker)
{
    struct measurement *m = arg;
    float sink[16];
    fill(sink);
    for (int i = 0; i < TIMES; i++) {
        rp_worker_barrier(worker);
        const double start = now_ns();
        const size_t done = m->loop(m->rounds, sink);
        rp_worker_barrier(worker);
        const double rate = (double)done * worker->n / (now_ns() - start);
        if (worker->index == 0 && rate > m->best)
            m->best = rate;
    }
}

double rp_machine_peak_gflops(uint32_t isa, int n_threads)
{
    rp_pool_options options;
    rp_pool *pool;
    struct measurement m = {.loop = choose(isa & rp_isa_detected()), .rounds = 1000};
    float sink[16];
    fill(sink);
    rp_pool_options_init(&options);
    options.n_threads = n_threads;
    if (rp_pool_create(&options, &pool, NULL) != RP_OK)
        return 0;
    /* Long enough that the clock and the barriers do not show. */
    double ns = 0;
    while (ns < ROUND_NS / 4) {
        m.rounds *= 2;
        const double start = now_ns();
        m.loop(m.rounds, sink);
        ns = now_ns() - start;
    }
    m.rounds = (size_t)((double)m.rounds * ROUND_NS / ns);
    const rp_status status = rp_pool_region(pool, 0, measure, &m, NULL);
    rp_pool_destroy(pool);
    return status == RP_OK ? 2 * m.best : 0;
}
