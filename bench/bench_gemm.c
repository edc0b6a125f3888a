/* FP32 products: bench_gemm [-i LEVEL] [-t THREADS] [-r ROUNDS] [-c MIB] SHAPES...
 *
 * SHAPES are files of lines "M N K" (bench/shapes).  For each shape and the kernel of the level
 * (the best of this machine), on one thread and on THREADS, the columns are:
 *
 *   - GF/s: with the bias, median of ROUNDS;
 *   - peak: its share of what multiply-adds in registers reach, median and best; both are measured
 *     right after each other in every round, so that a clock that changes hardly shows;
 *   - +gelu: the share with bias and GELU;
 *   - GB/s: packed weights read, and as a share of what a loop that only reads them reaches.
 *
 * -c spreads the runs over copies of the weights of so many MiB in all: more than the last cache
 * holds shows how weights stream from memory.
 */
#include "bench/common.h"
#include "gemm/gemm.h"
#include "pool/peak.h"

#include <string.h>
#include <unistd.h>

#define ROUNDS_MAX  101
#define ROUND_FLOPS 3e8 /* a few milliseconds */

/* One shape, and what its rounds found. */
struct shape {
    size_t m, n, k, panels;
    size_t weights, n_copies, copy_floats; /* floats read by a run; copies, floats apart */
    float *a, *packed, *c, *bias;
    const struct rp_gemm_kernel *kernel;
    rp_peak_fn *peak;
    size_t peak_rounds, reps, rounds;
    double gflops[ROUNDS_MAX], peaks[ROUNDS_MAX], share[ROUNDS_MAX], gelu_share[ROUNDS_MAX];
    double gbps[ROUNDS_MAX], read_share[ROUNDS_MAX];
    float sink;
};

static void multiply(const struct shape *s, const struct rp_worker *w, size_t rep,
                     rp_activation activation)
{
    const size_t index = (size_t)w->index, n = (size_t)w->n;
    const struct rp_gemm_args args = {
        .a = s->a,
        .lda = s->k,
        .packed = s->packed + rep % s->n_copies * s->copy_floats,
        .n = s->n,
        .k = s->k,
        .c = s->c,
        .ldc = s->n,
        .bias = s->bias,
        .activation = activation,
    };
    s->kernel->run(&args, 0, s->m, s->panels * index / n, s->panels * (index + 1) / n);
}

/* The bitwise sum of this worker's share of the weights. */
static float read_weights(const struct shape *s, const struct rp_worker *w, size_t rep)
{
    const size_t panel = s->k * RP_GEMM_NR, index = (size_t)w->index, n = (size_t)w->n;
    const float *from = s->packed + rep % s->n_copies * s->copy_floats;
    const size_t p0 = s->panels * index / n, p1 = s->panels * (index + 1) / n;
    return (float)add_up(from + p0 * panel, (p1 - p0) * panel * sizeof(float));
}

enum phase { PHASE_PEAK, PHASE_PLAIN, PHASE_GELU, PHASE_READ, N_PHASES };

static void work(struct shape *s, struct rp_worker *w, enum phase phase, float *sink)
{
    if (phase == PHASE_PEAK) {
        s->peak(s->peak_rounds, sink);
        return;
    }
    for (size_t rep = 0; rep < s->reps; rep++) {
        if (phase == PHASE_READ)
            sink[0] += read_weights(s, w, rep);
        else
            multiply(s, w, rep, phase == PHASE_GELU ? RP_ACT_GELU : RP_ACT_NONE);
    }
}

static void run_rounds(void *arg, struct rp_worker *w)
{
    struct shape *s = arg;
    float sink[16];
    for (int i = 0; i < 16; i++)
        sink[i] = 1.0f + (float)i;
    const double lanes = (double)s->peak(1, sink) * w->n; /* multiply-adds of a round */
    const double flops = 2.0 * (double)s->m * (double)s->n * (double)s->k * (double)s->reps;
    const double bytes = (double)s->weights * sizeof(float) * (double)s->reps;
    for (size_t r = 0; r < s->rounds; r++) {
        double seconds[N_PHASES];
        for (enum phase phase = 0; phase < N_PHASES; phase++) {
            rp_worker_barrier(w);
            const double start = now();
            work(s, w, phase, sink);
            rp_worker_barrier(w);
            seconds[phase] = now() - start;
        }
        if (w->index != 0)
            continue;
        const double peak = 2 * lanes * (double)s->peak_rounds / seconds[PHASE_PEAK];
        s->peaks[r] = peak * 1e-9;
        s->gflops[r] = flops / seconds[PHASE_PLAIN] * 1e-9;
        s->share[r] = flops / seconds[PHASE_PLAIN] / peak;
        s->gelu_share[r] = flops / seconds[PHASE_GELU] / peak;
        s->gbps[r] = bytes / seconds[PHASE_PLAIN] * 1e-9;
        s->read_share[r] = seconds[PHASE_READ] / seconds[PHASE_PLAIN];
    }
    if (w->index == 0)
        s->sink = sink[0];
}

static void report(struct shape *s, int threads)
{
    const double gflops = median(s->gflops, s->rounds), share = median(s->share, s->rounds);
    const double gelu = median(s->gelu_share, s->rounds), gbps = median(s->gbps, s->rounds);
    const double read = median(s->read_share, s->rounds);
    (void)median(s->peaks, s->rounds); /* sorts them */
    const double best = s->gflops[s->rounds - 1] / s->peaks[s->rounds - 1];
    printf("%5zu %5zu %5zu %2d %8.1f  %5.1f%% %5.1f%%  %5.1f%%  %6.1f %5.1f%%\n", s->m, s->n, s->k,
           threads, gflops, 100 * share, 100 * best, 100 * gelu, gbps, 100 * read);
    fflush(stdout);
}

static rp_peak_fn *peak_of(uint32_t isa)
{
    switch (isa) {
#if RP_HAVE_AVX512
    case RP_ISA_AVX512: return rp_peak__avx512;
#endif
#if RP_HAVE_AVX2
    case RP_ISA_AVX2: return rp_peak__avx2;
#endif
#if RP_HAVE_NEON
    case RP_ISA_NEON: return rp_peak__neon;
#endif
    default: return rp_peak__scalar;
    }
}

/* A number of rounds of the loop that takes about two milliseconds. */
static size_t calibrate(rp_peak_fn *peak)
{
    float sink[16] = {1, 2, 3, 4};
    size_t rounds = 64;
    for (double seconds = 0; seconds < 1e-3;) {
        rounds *= 2;
        const double start = now();
        peak(rounds, sink);
        seconds = now() - start;
    }
    return 2 * rounds;
}

/* What every shape of the files is run with. */
struct bench {
    struct shape *shape;
    size_t cold_bytes, n_pools;
    rp_pool *pools[2];
};

static bool bench_shape(size_t m, size_t n, size_t k, void *arg)
{
    const struct bench *bench = arg;
    struct shape *s = bench->shape;
    size_t floats;
    s->m = m;
    s->n = n;
    s->k = k;
    if (!rp_gemm_packed_floats(s->n, s->k, &floats) || floats == 0 || s->m == 0)
        return false;
    const double flops = 2.0 * (double)s->m * (double)s->n * (double)s->k;
    s->panels = (s->n + RP_GEMM_NR - 1) / RP_GEMM_NR;
    s->weights = s->copy_floats = floats;
    s->n_copies = 1 + bench->cold_bytes / (floats * sizeof(float));
    s->reps = 1 + (size_t)((s->kernel->isa ? ROUND_FLOPS : ROUND_FLOPS / 100) / flops);
    s->a = numbers(s->m * s->k);
    s->packed = numbers(floats * s->n_copies);
    s->c = numbers(s->m * s->n);
    s->bias = numbers(s->n);
    bool ok = s->a && s->packed && s->c && s->bias;
    for (size_t i = 0; ok && i < bench->n_pools; i++) {
        ok = rp_pool_region(bench->pools[i], 0, run_rounds, s, NULL) == RP_OK;
        if (ok)
            report(s, rp_pool_threads(bench->pools[i]));
    }
    rp_aligned_free(s->a);
    rp_aligned_free(s->packed);
    rp_aligned_free(s->c);
    rp_aligned_free(s->bias);
    return ok;
}

static int usage(void)
{
    fputs("usage: bench_gemm [-i LEVEL] [-t THREADS] [-r ROUNDS] [-c MIB] SHAPES...\n", stderr);
    return 2;
}

int main(int argc, char **argv)
{
    static struct shape shape;
    struct bench bench = {.shape = &shape};
    uint32_t isa = rp_isa_detected();
    int threads = rp_cpu_count(), option;
    shape.rounds = 21;
    while ((option = getopt(argc, argv, "i:t:r:c:")) != -1) {
        rp_error err;
        switch (option) {
        case 'i':
            if (rp_isa_parse(optarg, &isa, &err) != RP_OK) {
                fprintf(stderr, "%s\n", err.message);
                return 2;
            }
            break;
        case 't': threads = atoi(optarg); break;
        case 'r': shape.rounds = (size_t)atoi(optarg); break;
        case 'c': bench.cold_bytes = (size_t)atoi(optarg) << 20; break;
        default: return usage();
        }
    }
    if (optind == argc || threads < 1 || shape.rounds < 1 || shape.rounds > ROUNDS_MAX)
        return usage();

    bench.n_pools = threads > 1 ? 2 : 1;
    bool ok = make_pool(1, &bench.pools[0]) &&
              (bench.n_pools == 1 || make_pool(threads, &bench.pools[1]));
    shape.kernel = rp_gemm_select(isa);
    shape.peak = peak_of(shape.kernel->isa);
    shape.peak_rounds = calibrate(shape.peak);
    printf("%s\n    M     N     K  t     GF/s    peak   best   +gelu    GB/s  read\n",
           shape.kernel->name);
    for (int i = optind; ok && i < argc; i++) {
        ok = each_shape(argv[i], bench_shape, &bench);
        if (!ok)
            fprintf(stderr, "%s: could not be read or run\n", argv[i]);
    }
    rp_pool_destroy(bench.pools[0]);
    rp_pool_destroy(bench.pools[1]);
    return ok ? 0 : 1;
}
