/* Errors of pool/vmath.h over every float: ulp [function [low high]].
 *
 * Walks all 2^32 patterns (or those between low and high) of one function or of all, on AVX2 or
 * NEON, against libm in double precision, and prints the worst error in ULP of the exact result and
 * in absolute terms with the places.  The ULP of a result below 2^-126 is 2^-149.  Exits with 1
 * when a NaN or an infinity is not where it belongs.
 */
#include "tests/v16_table.h"

#include <rankplan/machine.h>

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_THREADS 64

/* A walk takes minutes with vectors and hours without: this file has no flags of its own, so the
 * set comes from a pragma, and main() asks whether the machine has it. */
#if RP_HAVE_AVX2
#define RP_V16_AVX2
#define NEEDS RP_ISA_AVX2
V16_TARGET_BEGIN("avx2,fma,f16c")
#elif RP_HAVE_NEON
#define RP_V16_NEON
#define NEEDS RP_ISA_NEON
#else
#define RP_V16_SCALAR
#define NEEDS RP_ISA_SCALAR
#endif
#include "pool/vmath.h"

typedef void map_fn(const float x[16], float y[16]);

#define MAP(name)                                                                                  \
    static void map_##name(const float x[16], float y[16])                                         \
    {                                                                                              \
        v_store(y, v_##name(v_load(x)));                                                           \
    }
MAP(exp)
MAP(exp_neg)
MAP(erf)
MAP(tanh)
MAP(sigmoid)
MAP(gelu)
MAP(gelu_tanh)
MAP(silu)
MAP(softplus)

/* Of the normal numbers; every other pattern counts as the nearest of them. */
static void map_log(const float x[16], float y[16])
{
    const v16 least = v_set1(0x1p-126f), most = v_set1(0x1.fffffep+127f);
    v_store(y, v_log(v_max(least, v_min(most, v_abs(v_load(x))))));
}

/* Of the finite numbers that are not negative; every other pattern counts as the nearest of them.
 */
static void map_log1p(const float x[16], float y[16])
{
    v_store(y, v_log1p(v_min(v_set1(0x1.fffffep+127f), v_abs(v_load(x)))));
}

#if RP_HAVE_AVX2
V16_TARGET_END
#endif

static double ref_exp_neg(double x)
{
    return x < -0x1.5d589ep+6 ? 0.0 : exp(x);
}

static double ref_log(double x)
{
    return isnan(x) ? x : log(fmin(fmax(fabs(x), 0x1p-126), 0x1.fffffep+127));
}

static double ref_log1p(double x)
{
    return isnan(x) ? x : log1p(fmin(fabs(x), 0x1.fffffep+127));
}

static double ref_softplus(double x)
{
    return fmax(x, 0) + (isnan(x) ? x : log1p(exp(-fabs(x))));
}

static double ref_sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

/* x times a weight that vanishes faster than x grows. */
static double gated(double x, double weight)
{
    return weight == 0.0 ? 0.0 : x * weight;
}

static double ref_gelu(double x)
{
    return gated(x, 0.5 * erfc(-x * 0.70710678118654752440));
}

static double ref_gelu_tanh(double x)
{
    double y = 1.59576912160573071176 * (x + 0.044715 * x * x * x);
    return gated(x, ref_sigmoid(y));
}

static double ref_silu(double x)
{
    return gated(x, ref_sigmoid(x));
}

static const struct function {
    const char *name;
    map_fn *map;
    double (*exact)(double);
    float high; /* the end of its domain */
} functions[] = {
    {"exp", map_exp, exp, INFINITY},
    {"exp_neg", map_exp_neg, ref_exp_neg, 0.0f},
    {"log", map_log, ref_log, INFINITY},
    {"erf", map_erf, erf, INFINITY},
    {"tanh", map_tanh, tanh, INFINITY},
    {"sigmoid", map_sigmoid, ref_sigmoid, INFINITY},
    {"gelu", map_gelu, ref_gelu, INFINITY},
    {"gelu_tanh", map_gelu_tanh, ref_gelu_tanh, INFINITY},
    {"silu", map_silu, ref_silu, INFINITY},
    {"log1p", map_log1p, ref_log1p, INFINITY},
    {"softplus", map_softplus, ref_softplus, INFINITY},
};

struct worst {
    double error;
    float x, got;
    double exact;
};

struct job {
    const struct function *function;
    float low, high;
    uint64_t first, last;
    uint64_t wrong; /* NaNs and infinities out of place */
    float wrong_at;
    struct worst ulp, abs;
};

/* 2^(exponent of the result - 23), by the bits: this runs four billion times. */
static double ulp_of(double exact)
{
    uint64_t bits;
    memcpy(&bits, &exact, sizeof bits);
    uint64_t exponent = bits >> 52 & 0x7ff;
    bits = ((exponent < 1023 - 126 ? 1023 - 126 : exponent) - 23) << 52;
    double ulp;
    memcpy(&ulp, &bits, sizeof ulp);
    return ulp;
}

static void keep(struct worst *worst, double error, float x, float got, double exact)
{
    if (error > worst->error)
        *worst = (struct worst){error, x, got, exact};
}

static void judge(struct job *job, float x, float got)
{
    double exact = job->function->exact(x);
    if (isnan(exact) || isinf((float)exact)) {
        bool right = isnan(exact) ? isnan(got) : got == (float)exact;
        if (!right && job->wrong++ == 0)
            job->wrong_at = x;
        return;
    }
    if (!isfinite(got)) {
        if (job->wrong++ == 0)
            job->wrong_at = x;
        return;
    }
    double error = fabs(got - exact);
    keep(&job->abs, error, x, got, exact);
    double ulp = ulp_of(exact);
    if (error > job->ulp.error * ulp)
        keep(&job->ulp, error / ulp, x, got, exact);
}

static void *walk(void *arg)
{
    struct job *job = arg;
    for (uint64_t at = job->first; at < job->last; at += 16) {
        float x[16], y[16];
        for (uint32_t l = 0; l < 16; l++) {
            uint32_t bits = (uint32_t)at + l;
            memcpy(&x[l], &bits, sizeof bits);
        }
        job->function->map(x, y);
        for (int l = 0; l < 16; l++) {
            if (!(x[l] < job->low) && !(x[l] > job->high))
                judge(job, x[l], y[l]);
        }
    }
    return NULL;
}

static void merge(struct job *into, const struct job *from)
{
    if (into->wrong == 0)
        into->wrong_at = from->wrong_at;
    into->wrong += from->wrong;
    if (from->ulp.error > into->ulp.error)
        into->ulp = from->ulp;
    if (from->abs.error > into->abs.error)
        into->abs = from->abs;
}

static void print(const struct job *job)
{
    printf("%-10s %8.3f ULP  at %-14.9g (%a -> %.9g, exact %.9g)\n", job->function->name,
           job->ulp.error, job->ulp.x, job->ulp.x, job->ulp.got, job->ulp.exact);
    printf("%-10s %8.2e abs  at %-14.9g (%a -> %.9g, exact %.9g)\n", "", job->abs.error, job->abs.x,
           job->abs.x, job->abs.got, job->abs.exact);
    if (job->wrong)
        printf("%-10s %llu results that are or should be NaN or infinite, first at %.9g\n", "",
               (unsigned long long)job->wrong, job->wrong_at);
    fflush(stdout);
}

/* Splits the patterns among the threads; false when one could not be started or a result was wrong.
 */
static bool measure(const struct function *function, float low, float high, int n_threads)
{
    struct job jobs[MAX_THREADS];
    pthread_t threads[MAX_THREADS];
    const uint64_t patterns = UINT64_C(1) << 32;
    int started = 0;
    for (; started < n_threads; started++) {
        struct job *job = &jobs[started];
        *job = (struct job){.function = function, .low = low, .high = fminf(high, function->high)};
        job->first = patterns / 16 * (uint64_t)started / (uint64_t)n_threads * 16;
        job->last = patterns / 16 * ((uint64_t)started + 1) / (uint64_t)n_threads * 16;
        if (pthread_create(&threads[started], NULL, walk, job) != 0)
            break;
    }
    for (int i = 0; i < started; i++) {
        pthread_join(threads[i], NULL);
        if (i > 0)
            merge(&jobs[0], &jobs[i]);
    }
    if (started < n_threads) {
        fprintf(stderr, "could not start thread %d of %d\n", started + 1, n_threads);
        return false;
    }
    print(&jobs[0]);
    return jobs[0].wrong == 0;
}

int main(int argc, char **argv)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    int n_threads = n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : (int)n;
    float low = argc == 4 ? strtof(argv[2], NULL) : -INFINITY;
    float high = argc == 4 ? strtof(argv[3], NULL) : INFINITY;
    bool found = false, right = true;
    if (NEEDS & ~rp_isa_detected()) {
        fprintf(stderr, "this machine lacks the instructions that the program was built for\n");
        return 1;
    }
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        if (argc > 1 && strcmp(argv[1], functions[i].name) != 0)
            continue;
        found = true;
        right &= measure(&functions[i], low, high, n_threads);
    }
    if (!found)
        fprintf(stderr, "usage: %s [function [low high]]\n", argv[0]);
    return found && right ? 0 : 1;
}
