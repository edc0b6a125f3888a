/* Attention on one thread: GFLOP/s, the share of this core's measured FMA peak, and where the time
 * goes.
 *
 *     bench_attention [--isa LEVEL] [--window W] [--causal] [--kv-heads N] [HEADS LEN HEAD_DIM]...
 *
 * Counted are the 4 d operations a pair of the two products of a head, L^2 pairs when every row
 * sees all; packing, softmax and division take their time and count nothing.  The peak is measured
 * beside each shape, on the registers of the kernel's own instruction set.  The split of time is
 * taken in a run of its own, which looks at the clock.
 */
#include "attention/attention.h"
#include "pool/memory.h"

#include <rankplan/machine.h>

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Peak and kernel take turns, and the best turn of each counts: on a machine with neighbours, one
 * long measurement of each compares two different machines. */
#define TURNS            12
#define SECONDS_PER_TURN 0.05

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- the kernels ------------------------------------------------------------------------ */

struct shape {
    size_t heads, len, dim;
};

/* What goes for all shapes. */
struct options {
    uint32_t isa;
    size_t window, kv_heads; /* 0: none; as many as heads */
    bool causal;
};

struct job {
    struct rp_attention_args args;
    const struct rp_attention_kernel *kernel;
    size_t len;
    void *scratch;
};

static void run_heads(const struct job *job)
{
    for (size_t h = 0; h < job->args.n_kv_heads; h++)
        job->kernel->run(&job->args, 0, job->len, h, 0, job->len, job->scratch);
}

/* Seconds of the best run, of as many as fit. */
static double best_run(const struct job *job)
{
    double best = INFINITY;
    const double end = now() + SECONDS_PER_TURN;
    do {
        const double began = now();
        run_heads(job);
        best = fmin(best, now() - began);
    } while (now() < end);
    return best;
}

static void *need(void *p)
{
    if (!p) {
        fprintf(stderr, "bench_attention: out of memory\n");
        exit(1);
    }
    return p;
}

static void bench(const struct rp_attention_kernel *kernel, const struct shape *s,
                  const struct options *o)
{
    const size_t kv_heads = o->kv_heads ? o->kv_heads : s->heads;
    const size_t width = s->heads * s->dim, ld = width + 2 * kv_heads * s->dim;
    size_t bytes;
    if (s->heads % kv_heads) {
        fprintf(stderr, "bench_attention: %zu heads cannot share %zu\n", s->heads, kv_heads);
        exit(2);
    }
    if (!rp_attention_scratch_bytes(s->len, o->window, o->causal, s->dim, 0, &bytes)) {
        fprintf(stderr, "bench_attention: length %zu, head_dim %zu: too large\n", s->len, s->dim);
        exit(2);
    }
    float *const qkv = need(rp_aligned_alloc(s->len * ld * sizeof *qkv));
    float *const out = need(rp_aligned_alloc(s->len * width * sizeof *out));
    void *const scratch = need(rp_aligned_alloc(bytes));
    uint32_t state = 1;
    for (size_t i = 0; i < s->len * ld; i++) {
        state = state * 1664525u + 1013904223u;
        qkv[i] = (float)(state >> 8) * 0x1p-23f - 1.0f;
    }
    struct job job = {{.qkv = qkv,
                       .ld = ld,
                       .out = out,
                       .ld_out = width,
                       .n_heads = s->heads,
                       .n_kv_heads = kv_heads,
                       .head_dim = s->dim,
                       .scale = 1.0f / sqrtf((float)s->dim),
                       .window = o->window,
                       .causal = o->causal},
                      kernel,
                      s->len,
                      scratch};
    double top = 0, seconds = INFINITY;
    for (int i = 0; i < TURNS; i++) {
        top = fmax(top, rp_machine_peak_gflops(kernel->isa, 1));
        seconds = fmin(seconds, best_run(&job));
    }
    const double pairs = (double)rp_attention_pairs(s->len, o->window, o->causal, 0, s->len);
    const double gflops = 4.0 * pairs * (double)width / seconds * 1e-9;

    uint64_t ns[RP_ATTENTION_N_STAGES] = {0}, all = 0;
    job.args.stage_ns = ns;
    best_run(&job);
    for (int i = 0; i < RP_ATTENTION_N_STAGES; i++)
        all += ns[i];
    printf("%-31s %2zu x %5zu x %3zu %9.1f us %7.1f GFLOP/s", kernel->name, s->heads, s->len,
           s->dim, seconds * 1e6, gflops);
    if (top > 0)
        printf(" %5.1f %% of %6.1f", 100.0 * gflops / top, top);
    printf("   pack %4.1f  scores %4.1f  softmax %4.1f  values %4.1f %%\n",
           100.0 * (double)ns[RP_ATTENTION_STAGE_PACK] / (double)all,
           100.0 * (double)ns[RP_ATTENTION_STAGE_SCORES] / (double)all,
           100.0 * (double)ns[RP_ATTENTION_STAGE_SOFTMAX] / (double)all,
           100.0 * (double)ns[RP_ATTENTION_STAGE_VALUES] / (double)all);
    fflush(stdout);
    rp_aligned_free(scratch);
    rp_aligned_free(out);
    rp_aligned_free(qkv);
}

static int usage(const char *why)
{
    fprintf(stderr,
            "bench_attention: %s\nusage: bench_attention [--isa LEVEL] [--window W] [--causal] "
            "[--kv-heads N] "
            "[HEADS LEN HEAD_DIM]...\n",
            why);
    return 2;
}

static bool set_option(struct options *o, const char *name, const char *value)
{
    if (!strcmp(name, "--isa"))
        return rp_isa_parse(value, &o->isa, NULL) == RP_OK;
    if (strcmp(name, "--window") != 0 && strcmp(name, "--kv-heads") != 0)
        return false;
    *(name[2] == 'w' ? &o->window : &o->kv_heads) = strtoull(value, NULL, 10);
    return true;
}

int main(int argc, char **argv)
{
    static const struct shape usual[] = {{12, 16, 32},  {12, 128, 32}, {12, 512, 32},
                                         {12, 128, 64}, {12, 512, 64}, {12, 2048, 64}};
    enum { MAX_SHAPES = 64 };
    struct shape asked[MAX_SHAPES];
    size_t n_asked = 0;
    struct options o = {.isa = rp_isa_detected()};
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        if (!strcmp(argv[i], "--causal"))
            o.causal = true;
        else if (i + 1 == argc || !set_option(&o, argv[i], argv[i + 1]))
            return usage("an option that is none");
        else
            i++;
    }
    for (; i + 2 < argc && n_asked < MAX_SHAPES; i += 3) {
        struct shape *s = &asked[n_asked++];
        s->heads = strtoull(argv[i], NULL, 10);
        s->len = strtoull(argv[i + 1], NULL, 10);
        s->dim = strtoull(argv[i + 2], NULL, 10);
        if (s->heads - 1 >= 4096 || s->len - 1 >= 1u << 20 || s->dim - 1 >= 1u << 16)
            return usage("a shape is three numbers from 1 on");
    }
    if (i < argc)
        return usage("what is left over is no shape");
    const struct rp_attention_kernel *const kernel = rp_attention_select(o.isa);
    const size_t n = n_asked ? n_asked : sizeof usual / sizeof *usual;
    for (size_t s = 0; s < n; s++)
        bench(kernel, n_asked ? &asked[s] : &usual[s], &o);
    return 0;
}
