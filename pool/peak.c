/* Measuring the ceilings: every thread runs the same loop at the same time, several times; the best
 * time counts, since what is asked is what the machine can do, and everything that disturbs it only
 * takes away. */
#include "pool/peak.h"

#include "pool/memory.h"
#include "pool/pool.h"

#include <string.h>

#define TIMES    15
#define ROUND_NS 5000000.0 /* of one measurement */

/* Bytes read from memory: more than last-level caches keep of it, shared out among the threads. */
#define READ_BYTES ((size_t)256 << 20)
#define READ_TIMES 5

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

static void fill(float *sink)
{
    for (int i = 0; i < 16; i++)
        sink[i] = 1.0f + (float)i * 0.01f;
}

/* Work that all threads do at once, and the best rate that was seen. */
struct measurement {
    rp_peak_fn *loop; /* multiply-adds; NULL: reading */
    size_t rounds;
    uint64_t *words; /* what is read, shared out among the threads */
    size_t n_words;
    int times;
    double best; /* multiply-adds or bytes of all threads a nanosecond; worker 0 writes it */
};

/* Eight sums, so that loads do not wait for each other; folded into one word that is kept. */
static uint64_t read_words(const uint64_t *words, size_t n)
{
    uint64_t sums[8] = {0};
    for (size_t i = 0; i + 8 <= n; i += 8)
        for (size_t j = 0; j < 8; j++)
            sums[j] += words[i + j];
    uint64_t sum = 0;
    for (size_t j = 0; j < 8; j++)
        sum += sums[j];
    return sum;
}

/* Runs the worker's share once; how much that was. */
static size_t run_once(const struct measurement *m, const struct rp_worker *worker, float *sink)
{
    if (m->loop)
        return m->loop(m->rounds, sink);
    const size_t n = m->n_words / (size_t)worker->n;
    const uint64_t sum = read_words(m->words + n * (size_t)worker->index, n);
    __asm__ volatile("" : : "r"(sum)); /* or the loop would be for nothing */
    return n * sizeof *m->words;
}

static void measure(void *arg, struct rp_worker *worker)
{
    struct measurement *m = arg;
    float sink[16];
    fill(sink);
    if (m->words) { /* a page belongs to the memory of the processor that touches it first */
        const size_t n = m->n_words / (size_t)worker->n;
        memset(m->words + n * (size_t)worker->index, 1, n * sizeof *m->words);
    }
    for (int i = 0; i < m->times; i++) {
        rp_worker_barrier(worker);
        const uint64_t start = rp_now_ns();
        const size_t done = run_once(m, worker, sink);
        rp_worker_barrier(worker);
        const double rate = (double)done * worker->n / (double)(rp_now_ns() - start);
        if (worker->index == 0 && rate > m->best)
            m->best = rate;
    }
}

/* The best rate on a pool of its own; 0 when its threads could not be started. */
static double best_rate(struct measurement *m, int n_threads)
{
    rp_pool_options options;
    rp_pool *pool;
    rp_pool_options_init(&options);
    options.n_threads = n_threads;
    if (rp_pool_create(&options, &pool, NULL) != RP_OK)
        return 0;
    const rp_status status = rp_pool_region(pool, 0, measure, m, NULL);
    rp_pool_destroy(pool);
    return status == RP_OK ? m->best : 0;
}

double rp_machine_peak_gflops(uint32_t isa, int n_threads)
{
    struct measurement m = {
        .loop = choose(isa & rp_isa_detected()), .rounds = 1000, .times = TIMES};
    float sink[16];
    fill(sink);
    /* Long enough that the clock and the barriers do not show. */
    double ns = 0;
    while (ns < ROUND_NS / 4) {
        m.rounds *= 2;
        const uint64_t start = rp_now_ns();
        m.loop(m.rounds, sink);
        ns = (double)(rp_now_ns() - start);
    }
    m.rounds = (size_t)((double)m.rounds * ROUND_NS / ns);
    return 2 * best_rate(&m, n_threads);
}

double rp_machine_peak_gbytes(int n_threads)
{
    struct measurement m = {.n_words = READ_BYTES / sizeof(uint64_t), .times = READ_TIMES};
    m.words = rp_aligned_alloc(READ_BYTES);
    if (!m.words)
        return 0;
    const double rate = best_rate(&m, n_threads);
    rp_aligned_free(m.words);
    return rate;
}
