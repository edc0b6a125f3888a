/* Row-wise operations: bench_ops [rows [width]].
 *
 * For each table that this machine can run: nanoseconds per element and the bytes that the
 * operation has to move (operands read once, results written once) per second, best of several
 * runs.  The default of 64 rows of 768 stays in the second-level cache, as a tile of tokens does
 * between two GEMMs; bench_ops 20000 768 measures memory.
 */
#include "ops/ops.h"
#include "qgemm/qgemm.h"

#include <rankplan/machine.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct data {
    size_t rows, width;
    float *x, *y, *w;
    uint16_t *halves;
    uint8_t *q;
    int32_t *index;
};

typedef void bench_fn(const struct rp_ops *ops, const struct data *d);

#define ACTIVATION(name, which)                                                                    \
    static void run_##name(const struct rp_ops *ops, const struct data *d)                         \
    {                                                                                              \
        ops->activation(which, d->x, d->width, d->width, d->y, d->width, d->rows);                 \
    }
ACTIVATION(gelu, RP_ACT_GELU)
ACTIVATION(gelu_tanh, RP_ACT_GELU_TANH)
ACTIVATION(silu, RP_ACT_SILU)
ACTIVATION(tanh, RP_ACT_TANH)
ACTIVATION(sigmoid, RP_ACT_SIGMOID)
ACTIVATION(relu, RP_ACT_RELU)

static void run_layer_norm(const struct rp_ops *ops, const struct data *d)
{
    ops->layer_norm(d->x, d->width, d->w, d->w, 1e-12f, d->width, d->y, d->width, d->rows);
}

static void run_quantize(const struct rp_ops *ops, const struct data *d)
{
    ops->quantize(d->x, d->width, d->w, d->width, d->q, d->rows);
}

static void run_norm_quantize(const struct rp_ops *ops, const struct data *d)
{
    ops->layer_norm_quantize(d->x, d->width, d->w, d->w, 1e-12f, d->width, d->y, d->width, true,
                             d->w, d->q, d->rows);
}

static void run_l2_norm(const struct rp_ops *ops, const struct data *d)
{
    ops->l2_norm(d->x, d->width, 1e-12f, d->width, d->y, d->width, d->rows);
}

static void run_add(const struct rp_ops *ops, const struct data *d)
{
    ops->add(d->x, d->width, d->y, d->width, d->width, d->y, d->width, d->rows);
}

static void run_pool_mean(const struct rp_ops *ops, const struct data *d)
{
    ops->pool(RP_POOL_MEAN, d->x, d->width, d->rows, d->width, d->y);
}

static void run_pool_max(const struct rp_ops *ops, const struct data *d)
{
    ops->pool(RP_POOL_MAX, d->x, d->width, d->rows, d->width, d->y);
}

static void run_embed_f32(const struct rp_ops *ops, const struct data *d)
{
    const struct rp_ops_table tables[2] = {{d->x, d->index, RP_DTYPE_F32},
                                           {d->x, d->index + d->rows, RP_DTYPE_F32}};
    ops->embed(tables, 2, d->width, d->y, d->width, 0, d->rows);
}

static void run_embed_f16(const struct rp_ops *ops, const struct data *d)
{
    const struct rp_ops_table tables[2] = {{d->halves, d->index, RP_DTYPE_F16},
                                           {d->halves, d->index + d->rows, RP_DTYPE_F16}};
    ops->embed(tables, 2, d->width, d->y, d->width, 0, d->rows);
}

static void run_widen_f16(const struct rp_ops *ops, const struct data *d)
{
    ops->widen(RP_DTYPE_F16, d->halves, d->y, d->rows * d->width);
}

static void run_nonfinite(const struct rp_ops *ops, const struct data *d)
{
    size_t where;
    if (ops->nonfinite(d->x, d->rows * d->width, &where))
        abort();
}

static const struct bench {
    const char *name;
    bench_fn *run;
    double bytes; /* per element */
} benches[] = {
    {"gelu", run_gelu, 8},
    {"gelu_tanh", run_gelu_tanh, 8},
    {"silu", run_silu, 8},
    {"tanh", run_tanh, 8},
    {"sigmoid", run_sigmoid, 8},
    {"relu", run_relu, 8},
    {"layer_norm", run_layer_norm, 8},
    {"quantize", run_quantize, 5},
    {"norm + quantize", run_norm_quantize, 9},
    {"l2_norm", run_l2_norm, 8},
    {"add", run_add, 12},
    {"pool mean", run_pool_mean, 4},
    {"pool max", run_pool_max, 4},
    {"embed 2 x f32", run_embed_f32, 12},
    {"embed 2 x f16", run_embed_f16, 8},
    {"widen f16", run_widen_f16, 6},
    {"nonfinite", run_nonfinite, 4},
};

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The best of 15 runs of at least 2 ms each, in seconds per call. */
static double measure(const struct rp_ops *ops, const struct bench *bench, const struct data *d)
{
    double best = 1e9;
    for (int run = 0; run < 15; run++) {
        double start = seconds(), now;
        long calls = 0;
        do {
            bench->run(ops, d);
            calls++;
            now = seconds();
        } while (now - start < 2e-3);
        if ((now - start) / (double)calls < best)
            best = (now - start) / (double)calls;
    }
    return best;
}

static int fill(struct data *d)
{
    size_t n = d->rows * d->width;
    d->x = malloc(n * sizeof *d->x);
    d->y = calloc(n, sizeof *d->y);
    d->w = malloc(d->width * sizeof *d->w);
    d->halves = malloc(n * sizeof *d->halves);
    d->q = malloc(d->rows * rp_qgemm_row_bytes(d->width));
    d->index = malloc(2 * d->rows * sizeof *d->index);
    if (!d->x || !d->y || !d->w || !d->halves || !d->q || !d->index)
        return 0;
    uint32_t random = 1;
    for (size_t i = 0; i < n; i++) {
        random = random * 1664525u + 1013904223u;
        d->x[i] = (float)(random >> 8) * 0x1p-22f - 2.0f;
        d->halves[i] = (uint16_t)(0x3c00 + (random >> 24));
    }
    for (size_t i = 0; i < d->width; i++)
        d->w[i] = 1.0f;
    for (size_t i = 0; i < 2 * d->rows; i++)
        d->index[i] = (int32_t)(i * 7919 % d->rows);
    return 1;
}

int main(int argc, char **argv)
{
    struct data d = {.rows = 64, .width = 768};
    if (argc > 1)
        d.rows = strtoul(argv[1], NULL, 10);
    if (argc > 2)
        d.width = strtoul(argv[2], NULL, 10);
    if (d.rows == 0 || d.width == 0 || !fill(&d)) {
        fprintf(stderr, "usage: %s [rows [width]]\n", argv[0]);
        return 1;
    }
    size_t n;
    const struct rp_ops *const *all = rp_ops_all(&n);
    for (size_t t = 0; t < n; t++) {
        if (all[t]->isa & ~rp_isa_detected())
            continue;
        for (size_t i = 0; i < sizeof benches / sizeof *benches; i++) {
            double s = measure(all[t], &benches[i], &d), elements = (double)(d.rows * d.width);
            printf("%-7s %-15s %8.3f ns/element %8.2f GB/s\n", all[t]->name, benches[i].name,
                   1e9 * s / elements, 1e-9 * elements * benches[i].bytes / s);
        }
    }
    free(d.x);
    free(d.y);
    free(d.w);
    free(d.halves);
    free(d.q);
    free(d.index);
    return 0;
}
