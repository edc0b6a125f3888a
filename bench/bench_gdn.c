/* The gated delta rule on one thread: tokens/s, GFLOP/s, the share of this core's measured FMA
 * peak; for one token the bandwidth of the states.
 *
 *     bench_gdn [--isa LEVEL] [--steps] [--peer PROGRAM] [KEY_HEADS VALUE_HEADS DIM TOKENS]...
 *
 * --steps does the tokens one by one, as a model does that writes.  --peer runs a program when all
 * is done and shows what it prints: another implementation's numbers from the same minutes.
 *
 * Counted are the operations of the recurrence, 7 dim^2 a token and value head (decay 1, what the
 * state answers 2, its update 2, the output 2), however they are done; GFLOP/s of chunks and steps
 * compare.  `done` counts what the chunk's products do: 6 dim^2, and in a chunk of n rows the
 * triangles.
 */
#include "bench/common.h"
#include "gdn/gdn.h"

#include <math.h>
#include <string.h>

/* Peak and kernel take turns, and the best turn of each counts: on a machine with neighbours, one
 * long measurement of each compares two different machines. */
#define TURNS            8
#define SECONDS_PER_TURN 0.06

struct shape {
    size_t n_key, n_value, dim, tokens;
};

struct job {
    struct rp_gdn_args args;
    const struct rp_gdn_kernel *kernel;
    size_t tokens;
    bool steps;
    float *state;
    void *scratch;
};

static void run_tokens(const struct job *job, size_t first, size_t n)
{
    const struct rp_gdn_rows rows = {.row0 = first, .n = n};
    const size_t columns = job->args.n_value_heads / job->args.n_key_heads * job->args.value_dim;
    for (size_t h = 0; h < job->args.n_key_heads; h++)
        job->kernel->run(&job->args, &rows, 1, h, 0, columns,
                         job->state + h * columns * job->args.key_dim, job->scratch);
}

static void run_all(const struct job *job)
{
    for (size_t t = 0; t < job->tokens && job->steps; t++)
        run_tokens(job, t, 1);
    if (!job->steps)
        run_tokens(job, 0, job->tokens);
}

/* Seconds of the best run, of as many as fit. */
static double best_run(const struct job *job)
{
    double best = INFINITY;
    const double end = now() + SECONDS_PER_TURN;
    do {
        const double began = now();
        run_all(job);
        best = fmin(best, now() - began);
    } while (now() < end);
    return best;
}

static void *need(void *p)
{
    if (!p) {
        fprintf(stderr, "bench_gdn: out of memory\n");
        exit(1);
    }
    return p;
}

/* Operations of the products as they are done in chunks; G and H once a key head. */
static double chunk_flops(const struct shape *s)
{
    double flops = 0;
    const double d = (double)s->dim, keys = (double)s->n_key, values = (double)s->n_value;
    for (size_t t = 0; t < s->tokens; t++) {
        const double before = (double)(t % RP_GDN_CHUNK);
        flops += values * (6 * d * d + 2 * (2 * before + 1) * d) + keys * 2 * (2 * before + 1) * d;
    }
    return flops;
}

/* Gates of a model that remembers some ten tokens. */
static void fill_gates(float *gates, const struct shape *s)
{
    for (size_t t = 0; t < s->tokens; t++) {
        for (size_t h = 0; h < s->n_value; h++) {
            float *g = gates + t * 2 * s->n_value + h;
            g[0] = -0.1f * (g[0] + 0.6f);
            g[s->n_value] += 0.5f;
        }
    }
}

static void bench(const struct rp_gdn_kernel *kernel, const struct shape *s, bool steps)
{
    const size_t width = (2 * s->n_key + s->n_value) * s->dim,
                 states = s->n_value * s->dim * s->dim;
    struct job job = {{.ld = width,
                       .ld_gates = 2 * s->n_value,
                       .ld_out = s->n_value * s->dim,
                       .n_key_heads = s->n_key,
                       .n_value_heads = s->n_value,
                       .key_dim = s->dim,
                       .value_dim = s->dim,
                       .norm = RP_GDN_NORM_ROOT,
                       .eps = 1e-6f},
                      kernel,
                      s->tokens,
                      steps,
                      need(numbers(states)),
                      NULL};
    size_t bytes;
    if (!rp_gdn_scratch_bytes(&job.args, &bytes)) {
        fprintf(stderr, "bench_gdn: heads do not divide, or dims are too large\n");
        exit(2);
    }
    float *const qkv = need(numbers(s->tokens * width));
    float *const gates = need(numbers(s->tokens * 2 * s->n_value));
    float *const out = need(numbers(s->tokens * s->n_value * s->dim));
    fill_gates(gates, s);
    job.args.qkv = qkv;
    job.args.gates = gates;
    job.args.out = out;
    job.scratch = need(rp_aligned_alloc(bytes));
    double top = 0, seconds = INFINITY;
    for (int i = 0; i < TURNS; i++) {
        top = fmax(top, rp_machine_peak_gflops(kernel->isa, 1));
        seconds = fmin(seconds, best_run(&job));
    }
    const double tokens = (double)s->tokens, dims = (double)s->dim * (double)s->dim;
    printf("%-24s %3zu/%-3zu x %3zu, %4zu tokens%s %10.1f us %9.0f tokens/s %6.1f GFLOP/s",
           kernel->name, s->n_key, s->n_value, s->dim, s->tokens, steps ? " one by one" : "",
           seconds * 1e6, tokens / seconds,
           7.0 * dims * tokens * (double)s->n_value / seconds * 1e-9);
    if (steps || s->tokens == 1)
        printf(", states %5.1f GB/s", 8.0 * (double)states * tokens / seconds * 1e-9);
    else
        printf(", done %6.1f = %4.1f %% of %6.1f", chunk_flops(s) / seconds * 1e-9,
               top > 0 ? 100.0 * chunk_flops(s) / seconds * 1e-9 / top : 0.0, top);
    printf("\n");
    fflush(stdout);
    rp_aligned_free(job.scratch);
    rp_aligned_free(out);
    rp_aligned_free(gates);
    rp_aligned_free(qkv);
    rp_aligned_free(job.state);
}

static int usage(const char *why)
{
    fprintf(stderr,
            "bench_gdn: %s\nusage: bench_gdn [--isa LEVEL] [--steps] [--peer PROGRAM] [KEY_HEADS "
            "VALUE_HEADS DIM TOKENS]...\n",
            why);
    return 2;
}

/* One more number of a shape; false unless it is from 1 on and of a sensible size. */
static bool read_number(const char *text, size_t *n)
{
    char *end;
    *n = strtoull(text, &end, 10);
    return *end == 0 && *n - 1 < (size_t)1 << 20;
}

int main(int argc, char **argv)
{
    static const struct shape usual[] = {{16, 32, 128, 1},   {16, 32, 128, 32},  {16, 32, 128, 128},
                                         {16, 32, 128, 512}, {16, 16, 128, 1},   {16, 16, 128, 32},
                                         {16, 16, 128, 128}, {16, 16, 128, 512}, {4, 48, 128, 128},
                                         {4, 8, 128, 128},   {8, 8, 96, 128},    {2, 4, 64, 128}};
    enum { MAX_SHAPES = 64 };
    struct shape asked[MAX_SHAPES];
    size_t n_asked = 0;
    uint32_t isa = rp_isa_detected();
    bool steps = false;
    const char *peer = NULL;
    rp_error err;
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        if (!strcmp(argv[i], "--steps")) {
            steps = true;
        } else if (!strcmp(argv[i], "--peer") && i + 1 < argc) {
            peer = argv[++i];
        } else if (!strcmp(argv[i], "--isa") && i + 1 < argc) {
            if (rp_isa_parse(argv[++i], &isa, &err) != RP_OK)
                return usage(err.message);
        } else {
            return usage("there is no such option");
        }
    }
    for (; i + 3 < argc && n_asked < MAX_SHAPES; i += 4) {
        struct shape *s = &asked[n_asked++];
        if (!read_number(argv[i], &s->n_key) || !read_number(argv[i + 1], &s->n_value) ||
            !read_number(argv[i + 2], &s->dim) || !read_number(argv[i + 3], &s->tokens))
            return usage("a shape is four numbers from 1 on");
    }
    if (i < argc)
        return usage("what is left over is no shape");
    const size_t n = n_asked ? n_asked : sizeof usual / sizeof *usual;
    for (size_t s = 0; s < n; s++)
        bench(rp_gdn_select(isa), n_asked ? &asked[s] : &usual[s], steps);
    return peer ? system(peer) : 0;
}
