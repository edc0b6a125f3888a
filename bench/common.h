/* What the benchmarks of products share: the clock, medians, pools, shape files. */
#ifndef RP_BENCH_COMMON_H
#define RP_BENCH_COMMON_H

#include "pool/memory.h"
#include "pool/pool.h"

#include <rankplan/machine.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static inline double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts x, too. */
static inline double median(double *x, size_t n)
{
    qsort(x, n, sizeof *x, ascending);
    return x[n / 2];
}

/* n floats in [-1/2, 1/2), aligned, or NULL. */
static inline float *numbers(size_t n)
{
    uint32_t x = 1;
    float *p = rp_aligned_alloc(rp_round_up((n + 1) * sizeof(float), (size_t)2 << 20));
    for (size_t i = 0; p && i < n; i++) {
        x = x * 1664525u + 1013904223u;
        p[i] = (float)(x >> 8) * 0x1p-24f - 0.5f;
    }
    return p;
}

/* The bitwise sum of whole lines of 128 bytes, eight chains at a time. */
static inline uint32_t add_up(const void *from, size_t bytes)
{
    typedef uint32_t vector __attribute__((vector_size(16), may_alias));
    const vector *p = from, *end = p + bytes / sizeof *p;
    vector a = {0}, b = a, c = a, d = a, e = a, f = a, g = a, h = a;
    for (; p + 8 <= end; p += 8) {
        a ^= p[0];
        b ^= p[1];
        c ^= p[2];
        d ^= p[3];
        e ^= p[4];
        f ^= p[5];
        g ^= p[6];
        h ^= p[7];
    }
    a ^= b ^ c ^ d ^ e ^ f ^ g ^ h;
    return a[0] ^ a[1] ^ a[2] ^ a[3];
}

static inline bool make_pool(int threads, rp_pool **pool)
{
    rp_pool_options options;
    rp_pool_options_init(&options);
    options.n_threads = threads;
    return rp_pool_create(&options, pool, NULL) == RP_OK;
}

/* Calls one(m, n, k, arg) for each line "M N K" of a file; false when it cannot be read or a call
 * says so. */
static inline bool each_shape(const char *path,
                              bool (*one)(size_t m, size_t n, size_t k, void *arg), void *arg)
{
    char line[256];
    size_t m, n, k;
    FILE *file = fopen(path, "r");
    bool ok = file != NULL;
    while (ok && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%zu %zu %zu", &m, &n, &k) == 3)
            ok = one(m, n, k, arg);
    }
    if (file)
        fclose(file);
    return ok;
}

#endif
