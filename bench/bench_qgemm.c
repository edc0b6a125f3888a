/* INT8 products: bench_qgemm [-i LEVEL] [-a] [-t THREADS] [-r ROUNDS] [-c MIB] SHAPES...
 *
 * SHAPES are files of lines "M N K" (bench/shapes).  For each shape and the level's kernel (-a:
 * every kernel of this machine), on one thread and on THREADS, the columns are:
 *
 *   - GOP/s: with the bias, two operations to a multiply-add, median of ROUNDS;
 *   - peak: its share of what the kernel's own inner product reaches in registers, median and best;
 *   - +gelu: the share with bias and GELU;
 *   - GB/s: packed weights read, and as a share of what a loop that only reads them reaches;
 *   - fp32: the FP32 kernel's GFLOP/s, and how many times as fast INT8 is (quantising left out).
 *
 * All are measured right after each other in every round, so that a clock that changes hardly
 * shows.
 *
 * -c spreads the runs over copies of the weights of so many MiB in all: more than the last cache
 * holds shows how weights stream from memory.
 */
#include "bench/common.h"
#include "gemm/gemm.h"
#include "qgemm/qgemm.h"

#include <string.h>
#include <unistd.h>

#define ROUNDS_MAX 101
#define ROUND_OPS  6e8 /* a few milliseconds */

/* One shape, and what its rounds found. */
struct shape {
    size_t m, n, k, panels, row_bytes, panel_bytes;
    size_t weights, n_copies; /* bytes of packed weights; copies of them, apart by as many */
    uint8_t *q, *packed;
    float *a, *packed_floats, *c, *bias;
    const struct rp_qgemm_kernel *kernel;
    const struct rp_gemm_kernel *floats;
    size_t peak_rounds, reps, rounds;
    double gops[ROUNDS_MAX], peaks[ROUNDS_MAX], share[ROUNDS_MAX], gelu_share[ROUNDS_MAX];
    double gbps[ROUNDS_MAX], read_share[ROUNDS_MAX], gflops[ROUNDS_MAX], ratio[ROUNDS_MAX];
    uint32_t sink;
};

static void multiply(const struct shape *s, size_t p0, size_t p1, size_t rep,
                     rp_activation activation)
{
    const struct rp_qgemm_args args = {
        .q = s->q,
        .packed = s->packed + rep % s->n_copies * s->weights,
        .n = s->n,
        .k = s->k,
        .c = s->c,
        .ldc = s->n,
        .bias = s->bias,
        .activation = activation,
    };
    s->kernel->run(&args, 0, s->m, p0, p1);
}

static void multiply_floats(const struct shape *s, size_t p0, size_t p1)
{
    const struct rp_gemm_args args = {
        .a = s->a,
        .lda = s->k,
        .packed = s->packed_floats,
        .n = s->n,
        .k = s->k,
        .c = s->c,
        .ldc = s->n,
        .bias = s->bias,
    };
    s->floats->run(&args, 0, s->m, p0, p1);
}

enum phase { PHASE_PEAK, PHASE_PLAIN, PHASE_GELU, PHASE_READ, PHASE_FLOATS, N_PHASES };

static void work(const struct shape *s, const struct rp_worker *w, enum phase phase,
                 unsigned char *sink)
{
    const size_t index = (size_t)w->index, n = (size_t)w->n;
    const size_t p0 = s->panels * index / n, p1 = s->panels * (index + 1) / n;
    if (phase == PHASE_PEAK) {
        s->kernel->peak(s->peak_rounds, sink);
        return;
    }
    for (size_t rep = 0; rep < s->reps; rep++) {
        const uint8_t *weights = s->packed + rep % s->n_copies * s->weights;
        if (phase == PHASE_READ)
            sink[0] ^=
                (unsigned char)add_up(weights + p0 * s->panel_bytes, (p1 - p0) * s->panel_bytes);
        else if (phase == PHASE_FLOATS)
            multiply_floats(s, p0, p1);
        else
            multiply(s, p0, p1, rep, phase == PHASE_GELU ? RP_ACT_GELU : RP_ACT_NONE);
    }
}

static void note_round(struct shape *s, size_t r, double peak_ops, const double *seconds)
{
    const double ops = 2.0 * (double)s->m * (double)s->n * (double)s->k * (double)s->reps;
    const double peak = peak_ops / seconds[PHASE_PEAK];
    s->peaks[r] = peak * 1e-9;
    s->gops[r] = ops / seconds[PHASE_PLAIN] * 1e-9;
    s->share[r] = ops / seconds[PHASE_PLAIN] / peak;
    s->gelu_share[r] = ops / seconds[PHASE_GELU] / peak;
    s->gbps[r] = (double)s->weights * (double)s->reps / seconds[PHASE_PLAIN] * 1e-9;
    s->read_share[r] = seconds[PHASE_READ] / seconds[PHASE_PLAIN];
    s->gflops[r] = ops / seconds[PHASE_FLOATS] * 1e-9;
    s->ratio[r] = seconds[PHASE_FLOATS] / seconds[PHASE_PLAIN];
}

static void run_rounds(void *arg, struct rp_worker *w)
{
    struct shape *s = arg;
    _Alignas(64) unsigned char sink[256] = {1, 2, 3, 4};
    const double ops = 2.0 * (double)s->kernel->peak(1, sink) * w->n; /* of a round */
    for (size_t r = 0; r < s->rounds; r++) {
        double seconds[N_PHASES];
        for (enum phase phase = 0; phase < N_PHASES; phase++) {
            rp_worker_barrier(w);
            const double start = now();
            work(s, w, phase, sink);
            rp_worker_barrier(w);
            seconds[phase] = now() - start;
        }
        if (w->index == 0)
            note_round(s, r, ops * (double)s->peak_rounds, seconds);
    }
    if (w->index == 0)
        s->sink ^= sink[0];
}

static void report(struct shape *s, int threads)
{
    const size_t n = s->rounds;
    (void)median(s->peaks, n); /* sorts them */
    printf("%5zu %5zu %5zu %2d %8.1f", s->m, s->n, s->k, threads, median(s->gops, n));
    printf("  %5.1f%% %5.1f%%  %5.1f%%", 100 * median(s->share, n),
           100 * s->gops[n - 1] / s->peaks[n - 1], 100 * median(s->gelu_share, n));
    printf("  %6.1f %5.1f%%  %6.1f %5.2fx\n", median(s->gbps, n), 100 * median(s->read_share, n),
           median(s->gflops, n), median(s->ratio, n));
    fflush(stdout);
}

/* A number of rounds of the loop that takes about two milliseconds. */
static size_t calibrate(rp_qgemm_peak_fn *peak)
{
    _Alignas(64) unsigned char sink[256] = {1, 2, 3, 4};
    size_t rounds = 64;
    for (double seconds = 0; seconds < 1e-3;) {
        rounds *= 2;
        const double start = now();
        peak(rounds, sink);
        seconds = now() - start;
    }
    return 2 * rounds;
}

/* Rows of any bytes, with a scale and a zero point. */
static void fill_rows(struct shape *s)
{
    const struct rp_qgemm_row_tail tail = {0x1p-7f, 128};
    for (size_t i = 0; i < s->m; i++) {
        uint8_t *row = s->q + i * s->row_bytes;
        for (size_t j = 0; j < s->row_bytes; j++)
            row[j] = (uint8_t)((i * 31 + j * 17) >> 1);
        memcpy(row + rp_qgemm_padded(s->k), &tail, sizeof tail);
    }
}

/* Near enough to normally distributed, as the weights of models are: how many lines fit together
 * (qgemm/pack.c) depends on it. */
static float *model_weights(size_t n)
{
    float *const w = rp_aligned_alloc(n * sizeof *w);
    uint64_t state = 1;
    for (size_t i = 0; w && i < n; i++) {
        w[i] = 0;
        for (int j = 0; j < 6; j++) {
            state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            w[i] += (float)(int32_t)(state >> 32) * 0x1p-32f;
        }
    }
    return w;
}

/* Packs the weights once for each kind of product, and copies the packed ones. */
static void fill_weights(struct shape *s, const float *w)
{
    for (size_t p = 0; p < s->panels; p++) {
        const size_t j = p * RP_QGEMM_NR, n = s->n - j < RP_QGEMM_NR ? s->n - j : RP_QGEMM_NR;
        rp_qgemm_pack_panel(s->packed + p * s->panel_bytes, w + j * s->k, s->k, n, s->k, NULL);
        rp_gemm_pack_panel(s->packed_floats + j * s->k, w + j * s->k, s->k, n, s->k);
    }
    for (size_t copy = 1; copy < s->n_copies; copy++)
        memcpy(s->packed + copy * s->weights, s->packed, s->weights);
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
    if (m == 0 || !rp_qgemm_packed_bytes(n, k, &s->weights) || s->weights == 0 ||
        !rp_gemm_packed_floats(n, k, &floats) || floats == 0)
        return false;
    const double ops = 2.0 * (double)m * (double)n * (double)k;
    s->m = m;
    s->n = n;
    s->k = k;
    s->panels = (n + RP_QGEMM_NR - 1) / RP_QGEMM_NR;
    s->row_bytes = rp_qgemm_row_bytes(k);
    s->panel_bytes = rp_qgemm_panel_bytes(k);
    s->n_copies = 1 + bench->cold_bytes / s->weights;
    s->reps = 1 + (size_t)((s->kernel->isa ? ROUND_OPS : ROUND_OPS / 100) / ops);
    float *w = model_weights(n * k);
    s->q = rp_aligned_alloc(m * s->row_bytes);
    s->packed = rp_aligned_alloc(rp_round_up(s->weights * s->n_copies, (size_t)2 << 20));
    s->packed_floats = numbers(floats);
    s->a = numbers(m * k);
    s->c = numbers(m * n);
    s->bias = numbers(n);
    bool ok = w && s->q && s->packed && s->packed_floats && s->a && s->c && s->bias;
    if (ok) {
        fill_rows(s);
        fill_weights(s, w);
    }
    for (size_t i = 0; ok && i < bench->n_pools; i++) {
        ok = rp_pool_region(bench->pools[i], 0, run_rounds, s, NULL) == RP_OK;
        if (ok)
            report(s, rp_pool_threads(bench->pools[i]));
    }
    rp_aligned_free(w);
    rp_aligned_free(s->q);
    rp_aligned_free(s->packed);
    rp_aligned_free(s->packed_floats);
    rp_aligned_free(s->a);
    rp_aligned_free(s->c);
    rp_aligned_free(s->bias);
    return ok;
}

static bool bench_kernel(const struct rp_qgemm_kernel *kernel, struct bench *bench, char **files)
{
    struct shape *s = bench->shape;
    s->kernel = kernel;
    s->peak_rounds = calibrate(kernel->peak);
    printf("%s, fp32: %s\n    M     N     K  t    GOP/s    peak   best   +gelu    GB/s   read    "
           "fp32 ratio\n",
           kernel->name, s->floats->name);
    for (bool ok = true; *files; files++) {
        ok = each_shape(*files, bench_shape, bench);
        if (!ok) {
            fprintf(stderr, "%s: could not be read or run\n", *files);
            return false;
        }
    }
    return true;
}

static int usage(void)
{
    fputs("usage: bench_qgemm [-i LEVEL] [-a] [-t THREADS] [-r ROUNDS] [-c MIB] SHAPES...\n",
          stderr);
    return 2;
}

/* The level's kernel, or all that it can run. */
static bool bench_all(uint32_t isa, bool all, struct bench *bench, char **files)
{
    size_t n;
    bool ok = true;
    const struct rp_qgemm_kernel *kernels = rp_qgemm_kernels(&n);
    const struct rp_qgemm_kernel *fastest = rp_qgemm_select(isa);
    for (size_t i = 0; ok && i < n; i++) {
        const struct rp_qgemm_kernel *kernel = &kernels[i];
        if (all ? (kernel->isa & ~isa) == 0 : kernel == fastest)
            ok = bench_kernel(kernel, bench, files);
    }
    return ok;
}

int main(int argc, char **argv)
{
    static struct shape shape;
    struct bench bench = {.shape = &shape};
    uint32_t isa = rp_isa_detected();
    int threads = rp_cpu_count(), option;
    bool all = false;
    shape.rounds = 21;
    while ((option = getopt(argc, argv, "i:at:r:c:")) != -1) {
        rp_error err;
        switch (option) {
        case 'i':
            if (rp_isa_parse(optarg, &isa, &err) != RP_OK) {
                fprintf(stderr, "%s\n", err.message);
                return 2;
            }
            break;
        case 'a': all = true; break;
        case 't': threads = atoi(optarg); break;
        case 'r': shape.rounds = (size_t)atoi(optarg); break;
        case 'c': bench.cold_bytes = (size_t)atoi(optarg) << 20; break;
        default: return usage();
        }
    }
    if (optind == argc || threads < 1 || shape.rounds < 1 || shape.rounds > ROUNDS_MAX)
        return usage();
    shape.floats = rp_gemm_select(isa);
    bench.n_pools = threads > 1 ? 2 : 1;
    bool ok = make_pool(1, &bench.pools[0]) &&
              (bench.n_pools == 1 || make_pool(threads, &bench.pools[1]));
    ok = ok && bench_all(isa, all, &bench, argv + optind);
    rp_pool_destroy(bench.pools[0]);
    rp_pool_destroy(bench.pools[1]);
    return ok ? 0 : 1;
}
