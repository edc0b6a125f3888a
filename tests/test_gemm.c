/* Every FP32 kernel that this machine can run, bit for bit against three plain loops of fmaf().
 *
 * Besides the kernels of the table there is one of the tests' own: the wide register tile of
 * AVX-512 on plain arrays, so that its indexing is tested on machines without AVX-512.
 *
 * RP_TEST_SEED=<n> repeats a run of the random shapes.
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gemm/gemm.h"

rp_gemm_run_fn test_gemm_f32_12x32__plain_run;

#define RP_V16_SCALAR
#define RP_GEMM_NAME test_gemm_f32_12x32__plain
#include "gemm/avx512.c"
#include "ops/ops.h"

#include <rankplan/machine.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifndef XXH_INLINE_ALL
#define XXH_INLINE_ALL
#endif
#include <xxhash.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))
#define MARGIN   0x7fc0abcdu /* a NaN that no operation makes */

/* ---- numbers -------------------------------------------------------------------------------- */

static uint64_t random_state = 1;

static uint64_t random_u64(void)
{
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static size_t random_below(size_t n)
{
    return (size_t)(random_u64() % n);
}

/* In [-1, 1), the same on every machine. */
static float random_float(void)
{
    return (float)((int32_t)(uint32_t)random_u64() >> 8) * 0x1p-23f;
}

/* Mostly what goes wrong: denormals, infinities, NaNs, both zeros, the ends of the range. */
static float hostile_float(void)
{
    static const float values[] = {
        0.0f,      -0.0f,    0x1p-149f, -0x1p-149f,       0x1p-126f, -0x1.8p-130f,     INFINITY,
        -INFINITY, 0x1p-75f, -0x1p-75f, 0x1.fffffep+127f, 1.0f,      -0x1.fffffep+127f};
    const size_t i = random_below(4 * COUNT(values));
    return i < COUNT(values) ? values[i] : random_float() * 0x1p-70f;
}

static uint32_t bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static bool same(float x, float y)
{
    return bits(x) == bits(y) || (isnan(x) && isnan(y));
}

static void fill(float *x, size_t n, float (*number)(void))
{
    for (size_t i = 0; i < n; i++)
        x[i] = number();
}

static float *floats(size_t n)
{
    float *p = malloc((n + !n) * sizeof *p);
    assert_non_null(p);
    return p;
}

static void fill_margin(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = from_bits(MARGIN);
}

/* ---- a product, and what it must be ------------------------------------------------------------
 */

struct problem {
    size_t m, n, k;
    size_t lda, ldc, ld_residual;
    float *a, *w, *packed, *bias, *residual; /* bias and residual may be NULL */
    bool multiply;                           /* by the residual */
    rp_activation activation;
    float *expected; /* m x n */
    float *c;        /* (m + 2) x ldc: a row of margin before and after */
};

static float activated(rp_activation activation, float x)
{
    if (activation == RP_ACT_NONE)
        return x;
    if (activation == RP_ACT_RELU)
        return x < 0 ? 0.0f : x;
    float y;
    rp_ops_select(RP_ISA_SCALAR)->activation(activation, &x, 1, 1, &y, 1, 1);
    return y;
}

static void expect_chains(struct problem *p)
{
    for (size_t i = 0; i < p->m; i++) {
        for (size_t j = 0; j < p->n; j++) {
            float acc = 0.0f;
            for (size_t l = 0; l < p->k; l++)
                acc = fmaf(p->a[i * p->lda + l], p->w[j * p->k + l], acc);
            if (p->bias)
                acc += p->bias[j];
            acc = activated(p->activation, acc);
            if (p->residual) {
                const float r = p->residual[i * p->ld_residual + j];
                acc = p->multiply ? acc * r : acc + r;
            }
            p->expected[i * p->n + j] = acc;
        }
    }
}

static float *pack(const float *w, size_t n, size_t k)
{
    size_t size;
    assert_true(rp_gemm_packed_floats(n, k, &size));
    float *packed = aligned_alloc(64, (size * sizeof(float) + 64) & ~(size_t)63);
    assert_non_null(packed);
    for (size_t j = 0; j < n; j += RP_GEMM_NR)
        rp_gemm_pack_panel(packed + j * k, w + j * k, k, n - j < RP_GEMM_NR ? n - j : RP_GEMM_NR,
                           k);
    return packed;
}

enum { WITH_BIAS = 1, WITH_RESIDUAL = 2, WITH_FACTOR = 4 }; /* a factor is a residual, too */

static struct problem make_problem(size_t m, size_t n, size_t k, rp_activation activation,
                                   unsigned with, float (*number)(void))
{
    struct problem p = {.m = m, .n = n, .k = k, .activation = activation};
    p.multiply = with & WITH_FACTOR;
    p.lda = k + random_below(4);
    p.ldc = n + random_below(20);
    p.ld_residual = n + random_below(4);
    p.a = floats(m * p.lda);
    fill(p.a, m * p.lda, number);
    p.w = floats(n * k);
    fill(p.w, n * k, number);
    p.packed = pack(p.w, n, k);
    if (with & WITH_BIAS) {
        p.bias = floats(n);
        fill(p.bias, n, number);
    }
    if (with & WITH_RESIDUAL) {
        p.residual = floats(m * p.ld_residual);
        fill(p.residual, m * p.ld_residual, number);
    }
    p.expected = floats(m * n);
    expect_chains(&p);
    p.c = floats((m + 2) * p.ldc);
    fill_margin(p.c, (m + 2) * p.ldc);
    return p;
}

static void free_problem(struct problem *p)
{
    free(p->a);
    free(p->w);
    free(p->packed);
    free(p->bias);
    free(p->residual);
    free(p->expected);
    free(p->c);
}

static struct rp_gemm_args args_of(const struct problem *p)
{
    return (struct rp_gemm_args){
        .a = p->a,
        .lda = p->lda,
        .packed = p->packed,
        .n = p->n,
        .k = p->k,
        .c = p->c + p->ldc,
        .ldc = p->ldc,
        .bias = p->bias,
        .activation = p->activation,
        .residual = p->residual,
        .ld_residual = p->ld_residual,
        .multiply = p->multiply,
    };
}

static size_t panels_of(const struct problem *p)
{
    return (p->n + RP_GEMM_NR - 1) / RP_GEMM_NR;
}

/* C's first m rows are as expected, and nothing else of its buffer was touched. */
static void check_rows(const struct problem *p, size_t m, const char *kernel)
{
    for (size_t i = 0; i < p->m + 2; i++) {
        for (size_t j = 0; j < p->ldc; j++) {
            const float got = p->c[i * p->ldc + j];
            const bool inside = i >= 1 && i <= m && j < p->n;
            const float want = inside ? p->expected[(i - 1) * p->n + j] : from_bits(MARGIN);
            if (inside ? !same(got, want) : bits(got) != MARGIN)
                fail_msg("%s m=%zu n=%zu k=%zu act=%d bias=%d residual=%d lda=%zu ldc=%zu: "
                         "C[%td][%zu] is %a (%08x), not %a (%08x)",
                         kernel, m, p->n, p->k, p->activation, p->bias != NULL, p->residual != NULL,
                         p->lda, p->ldc, (ptrdiff_t)i - 1, j, (double)got, bits(got), (double)want,
                         bits(want));
        }
    }
}

static void run_and_check(const struct rp_gemm_kernel *kernel, struct problem *p, size_t m)
{
    const struct rp_gemm_args args = args_of(p);
    fill_margin(p->c, (p->m + 2) * p->ldc);
    kernel->run(&args, 0, m, 0, panels_of(p));
    check_rows(p, m, kernel->name);
}

static void solve(const struct rp_gemm_kernel *kernel, size_t m, size_t n, size_t k,
                  rp_activation activation, unsigned with, float (*number)(void))
{
    struct problem p = make_problem(m, n, k, activation, with, number);
    run_and_check(kernel, &p, m);
    free_problem(&p);
}

/* ---- one test for each of these and each kernel --------------------------------------------- */

static void test_shapes(const struct rp_gemm_kernel *kernel)
{
    static const size_t ns[] = {1, 15, 16, 17, 31, 33, 48};
    static const size_t ks[] = {0, 1, 3, 64, 97, 300, 1100};
    for (size_t in = 0; in < COUNT(ns); in++) {
        for (size_t ik = 0; ik < COUNT(ks); ik++) {
            struct problem p =
                make_problem(40, ns[in], ks[ik], RP_ACT_NONE, WITH_BIAS, random_float);
            for (size_t m = 0; m <= kernel->mr + 1u; m++)
                run_and_check(kernel, &p, m);
            run_and_check(kernel, &p, 2u * kernel->mr + 1);
            run_and_check(kernel, &p, 40);
            free_problem(&p);
        }
    }
}

/* C is full of NaNs before; every kind of epilogue meets every shape of tail. */
static void test_stale_output(const struct rp_gemm_kernel *kernel)
{
    static const size_t sizes[] = {1, 2, 3, 5, 6, 7, 8, 9, 15, 16, 17, 31, 33};
    unsigned kind = 0;
    for (size_t m = 0; m < COUNT(sizes); m++) {
        for (size_t n = 0; n < COUNT(sizes); n++) {
            for (size_t k = 0; k <= COUNT(sizes); k++, kind++)
                solve(kernel, sizes[m], sizes[n], k ? sizes[k - 1] : 0, (rp_activation)(kind % 7),
                      kind / 7 % 4, random_float);
        }
    }
}

static void test_activations(const struct rp_gemm_kernel *kernel)
{
    static const size_t ks[] = {0, 5, 800};
    for (size_t ik = 0; ik < COUNT(ks); ik++) {
        for (int activation = RP_ACT_NONE; activation <= RP_ACT_SIGMOID; activation++) {
            for (unsigned with = 0; with < 4; with++)
                solve(kernel, 2u * kernel->mr + 1, 37, ks[ik], (rp_activation)activation, with,
                      random_float);
        }
    }
}

/* The residual is C itself, added or multiplied with; k runs over one and several blocks. */
static void test_residual_in_place(const struct rp_gemm_kernel *kernel)
{
    static const size_t ks[] = {0, 7, 384, 385, 1000};
    for (size_t ik = 0; ik < COUNT(ks); ik++) {
        for (size_t m = 1; m <= 3u * kernel->mr; m += 4) {
            const unsigned with = WITH_BIAS | WITH_RESIDUAL | (m % 8 == 1 ? 0 : WITH_FACTOR);
            struct problem p = make_problem(m, 41, ks[ik], RP_ACT_SILU, with, random_float);
            struct rp_gemm_args args = args_of(&p);
            for (size_t i = 0; i < m; i++)
                memcpy(args.c + i * p.ldc, p.residual + i * p.ld_residual, p.n * sizeof(float));
            args.residual = args.c;
            args.ld_residual = args.ldc;
            kernel->run(&args, 0, m, 0, panels_of(&p));
            check_rows(&p, m, kernel->name);
            free_problem(&p);
        }
    }
}

static void test_hostile_values(const struct rp_gemm_kernel *kernel)
{
    for (size_t k = 1; k < 40; k++) {
        solve(kernel, 2u * kernel->mr - 1, 19, k,
              (rp_activation)(k % 2 ? RP_ACT_NONE : RP_ACT_RELU), k / 2 % 4, hostile_float);
    }
}

/* A chain that ends in -0 stays -0 when there is no bias to add. */
static void test_negative_zero(const struct rp_gemm_kernel *kernel)
{
    struct problem p = make_problem(3, 17, 1, RP_ACT_NONE, 0, random_float);
    for (size_t i = 0; i < 3; i++)
        p.a[i * p.lda] = 0x1p-100f;
    for (size_t j = 0; j < 17; j++)
        p.packed[j / 16 * 16 + j % 16] = p.w[j] = -0x1p-100f;
    expect_chains(&p);
    assert_int_equal(bits(p.expected[0]), 0x80000000u);
    run_and_check(kernel, &p, 3);
    free_problem(&p);
}

/* Cut into any rows and panels, in any order, the bits are the same. */
static void test_splits(const struct rp_gemm_kernel *kernel)
{
    for (int round = 0; round < 20; round++) {
        struct problem p =
            make_problem(1 + random_below(60), 1 + random_below(120), random_below(900),
                         RP_ACT_GELU, (unsigned)random_below(4), random_float);
        const struct rp_gemm_args args = args_of(&p);
        const size_t rows = 1 + random_below(p.m), panels = 1 + random_below(panels_of(&p));
        for (size_t m1 = p.m; m1 > 0;) {
            const size_t m0 = m1 > rows ? m1 - rows : 0;
            for (size_t p0 = 0; p0 < panels_of(&p); p0 += panels)
                kernel->run(&args, m0, m1, p0,
                            p0 + panels < panels_of(&p) ? p0 + panels : panels_of(&p));
            m1 = m0;
        }
        check_rows(&p, p.m, kernel->name);
        free_problem(&p);
    }
}

/* More rows than a block has, so that all the loops turn. */
static void test_row_blocks(const struct rp_gemm_kernel *kernel)
{
    solve(kernel, RP_GEMM_ROWS_MAX + 9, 40, 50, RP_ACT_NONE, WITH_BIAS, random_float);
    solve(kernel, rp_gemm_block_rows(kernel->mr, 2000) + 5, 33, 2000, RP_ACT_TANH, WITH_RESIDUAL,
          random_float);
}

static void test_random_shapes(const struct rp_gemm_kernel *kernel)
{
    const char *given = getenv("RP_TEST_SEED");
    const uint64_t seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    print_message("    RP_TEST_SEED=%llu\n", (unsigned long long)seed);
    random_state = seed;
    for (int round = 0; round < 150; round++)
        solve(kernel, random_below(70), random_below(100), random_below(round % 10 ? 120 : 1300),
              (rp_activation)random_below(7), (unsigned)random_below(4), random_float);
}

/* Pages of memory between two that must not be touched. */
struct fenced {
    unsigned char *base;
    size_t bytes, page;
};

static struct fenced make_fenced(size_t bytes)
{
    struct fenced f = {.page = (size_t)sysconf(_SC_PAGESIZE)};
    f.bytes = (bytes + f.page - 1) / f.page * f.page + f.page;
    f.base = mmap(NULL, f.bytes + 2 * f.page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                  -1, 0);
    assert_true(f.base != MAP_FAILED);
    assert_int_equal(mprotect(f.base, f.page, PROT_NONE), 0);
    assert_int_equal(mprotect(f.base + f.page + f.bytes, f.page, PROT_NONE), 0);
    return f;
}

/* n floats right before the fence, or right behind it. */
static float *place(const struct fenced *f, const float *from, size_t n, bool at_end)
{
    float *to = (float *)(void *)(f->base + f->page + (at_end ? f->bytes - n * sizeof(float) : 0));
    if (n)
        memcpy(to, from, n * sizeof(float));
    return to;
}

static void run_fenced(const struct rp_gemm_kernel *kernel, struct problem *p, bool at_end)
{
    const size_t m = p->m, n = p->n, k = p->k;
    const size_t sizes[] = {(m - 1) * p->lda + k, panels_of(p) * 16 * k, n,
                            (m - 1) * p->ld_residual + n, (m - 1) * p->ldc + n};
    struct fenced f[5];
    for (size_t i = 0; i < 5; i++)
        f[i] = make_fenced(sizes[i] * sizeof(float));
    struct rp_gemm_args args = args_of(p);
    float *c = args.c;
    args.a = place(&f[0], p->a, sizes[0], at_end);
    args.packed = place(&f[1], p->packed, sizes[1], at_end);
    args.bias = p->bias ? place(&f[2], p->bias, sizes[2], at_end) : NULL;
    args.residual = p->residual ? place(&f[3], p->residual, sizes[3], at_end) : NULL;
    args.c = place(&f[4], c, sizes[4], at_end);
    kernel->run(&args, 0, m, 0, panels_of(p));
    memcpy(c, args.c, sizes[4] * sizeof(float));
    check_rows(p, m, kernel->name);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(munmap(f[i].base, f[i].bytes + 2 * f[i].page), 0);
}

static void test_fences(const struct rp_gemm_kernel *kernel)
{
    static const size_t ns[] = {1, 16, 17, 47, 64}, ks[] = {1, 2, 5, 64, 403};
    const size_t ms[] = {1, 2, 3, kernel->mr, kernel->mr + 1u, 2u * kernel->mr + 1};
    for (size_t i = 0; i < COUNT(ms) * COUNT(ns) * COUNT(ks) * 2; i++) {
        const size_t m = ms[i / 2 % COUNT(ms)], n = ns[i / 2 / COUNT(ms) % COUNT(ns)];
        struct problem p = make_problem(m, n, ks[i / 2 / COUNT(ms) / COUNT(ns)],
                                        i % 3 ? RP_ACT_NONE : RP_ACT_SIGMOID,
                                        (unsigned)random_below(4), random_float);
        run_fenced(kernel, &p, i % 2);
        free_problem(&p);
    }
}

/* The same bits on every machine: XXH3 of C.  Made by the scalar kernel. */
static void test_golden(const struct rp_gemm_kernel *kernel)
{
    static const struct {
        size_t m, n, k;
        rp_activation activation;
        unsigned with;
        uint64_t xxh3;
    } golden[] = {
        {1, 384, 384, RP_ACT_NONE, WITH_BIAS, 0xbd6f7902d9fb0fbdu},
        {7, 100, 33, RP_ACT_NONE, 0, 0xa657baf617aa590bu},
        {16, 96, 384, RP_ACT_RELU, WITH_BIAS, 0x2956f69cae9187e5u},
        {50, 64, 1536, RP_ACT_NONE, WITH_BIAS | WITH_RESIDUAL, 0x781087f8f1391d7eu},
        {128, 48, 768, RP_ACT_NONE, WITH_BIAS, 0xf1cfa53fddb8fde6u},
    };
    for (size_t g = 0; g < COUNT(golden); g++) {
        random_state = 1000 + g;
        struct problem p = make_problem(golden[g].m, golden[g].n, golden[g].k, golden[g].activation,
                                        golden[g].with, random_float);
        struct rp_gemm_args args = args_of(&p);
        float *c = floats(p.m * p.n);
        args.c = c;
        args.ldc = p.n;
        kernel->run(&args, 0, p.m, 0, panels_of(&p));
        const uint64_t got = XXH3_64bits(c, p.m * p.n * sizeof(float));
        if (got != golden[g].xxh3)
            fail_msg("%s m=%zu n=%zu k=%zu: XXH3 is 0x%016llx, not 0x%016llx", kernel->name, p.m,
                     p.n, p.k, (unsigned long long)got, (unsigned long long)golden[g].xxh3);
        free(c);
        free_problem(&p);
    }
}

/* ---- packing and choosing ------------------------------------------------------------------- */

static void test_packing(void **state)
{
    (void)state;
    const size_t n_rows = 11, k = 37, ldw = 41;
    float *w = floats(n_rows * ldw), panel[37 * 16];
    fill(w, n_rows * ldw, random_float);
    fill_margin(panel, COUNT(panel));
    rp_gemm_pack_panel(panel, w, ldw, n_rows, k);
    for (size_t i = 0; i < k; i++) {
        for (size_t r = 0; r < 16; r++) {
            const float want = r < n_rows ? w[r * ldw + i] : 0.0f;
            assert_int_equal(bits(panel[i * 16 + r]), bits(want));
        }
    }
    free(w);
}

static void test_packed_floats(void **state)
{
    (void)state;
    size_t size = 7;
    assert_true(rp_gemm_packed_floats(17, 3, &size));
    assert_int_equal(size, 96);
    assert_true(rp_gemm_packed_floats(0, 3, &size));
    assert_int_equal(size, 0);
    size = 7;
    assert_false(rp_gemm_packed_floats(SIZE_MAX, 1, &size));
    assert_false(rp_gemm_packed_floats((size_t)1 << 33, (size_t)1 << 33, &size));
    assert_false(rp_gemm_packed_floats(16, SIZE_MAX / 32, &size)); /* floats fit, bytes do not */
    assert_int_equal(size, 7);
}

/* Taking instruction sets away leads from each kernel to a slower one, down to the scalar. */
static void test_selection(void **state)
{
    (void)state;
    size_t n;
    const struct rp_gemm_kernel *kernels = rp_gemm_kernels(&n);
    assert_ptr_equal(rp_gemm_select(RP_ISA_SCALAR), &kernels[0]);
    assert_int_equal(kernels[0].isa, RP_ISA_SCALAR);
    for (size_t i = 0; i < n; i++)
        assert_ptr_equal(rp_gemm_select(kernels[i].isa), &kernels[i]);
    for (uint32_t mask = rp_isa_detected(); mask; mask &= mask - 1)
        assert_int_equal(rp_gemm_select(mask)->isa & ~mask, 0);
    assert_ptr_equal(rp_gemm_select(UINT32_MAX), &kernels[n - 1]);
}

static void test_row_block_size(void **state)
{
    (void)state;
    size_t n;
    const struct rp_gemm_kernel *kernels = rp_gemm_kernels(&n);
    static const size_t ks[] = {0, 1, 384, 768, 1536, 3072, 1000000, SIZE_MAX};
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < COUNT(ks); k++) {
            const size_t rows = rp_gemm_block_rows(kernels[i].mr, ks[k]);
            assert_true(rows > 0 && rows <= RP_GEMM_ROWS_MAX);
            assert_int_equal(rows % kernels[i].mr, 0);
        }
    }
}

/* Tiles are as equal as can be. */
static void test_row_split(void **state)
{
    (void)state;
    for (size_t most = 1; most <= 14; most++) {
        for (size_t n = 0; n <= 100; n++) {
            const struct rp_split split = rp_split(n, most);
            size_t sum = 0;
            for (size_t i = 0; i < split.n_parts; i++) {
                const size_t part = rp_split_part(&split, i);
                assert_true(part <= most && part + 1 >= rp_split_part(&split, 0) && part > 0);
                sum += part;
            }
            assert_int_equal(sum, n);
            assert_int_equal(split.n_parts, (n + most - 1) / most);
        }
    }
}

/* ---- all of them ------------------------------------------------------------------------------
 */

typedef void check_fn(const struct rp_gemm_kernel *kernel);

struct check {
    const char *name;
    check_fn *run;
};

struct kernel_test {
    const struct rp_gemm_kernel *kernel;
    check_fn *run;
    char name[96];
};

static void run_kernel_test(void **state)
{
    const struct kernel_test *t = *state;
    random_state = 1;
    t->run(t->kernel);
}

#define CHECK(name)                                                                                \
    {                                                                                              \
#name, test_##name                                                                         \
    }

int main(void)
{
    static const struct check checks[] = {
        CHECK(shapes),         CHECK(stale_output),  CHECK(activations), CHECK(residual_in_place),
        CHECK(hostile_values), CHECK(negative_zero), CHECK(splits),      CHECK(row_blocks),
        CHECK(random_shapes),  CHECK(fences),        CHECK(golden),
    };
    static const struct CMUnitTest others[] = {
        cmocka_unit_test(test_packing),   cmocka_unit_test(test_packed_floats),
        cmocka_unit_test(test_selection), cmocka_unit_test(test_row_block_size),
        cmocka_unit_test(test_row_split),
    };
    static const struct rp_gemm_kernel plain = {"gemm_f32_12x32__plain", RP_ISA_SCALAR, 12, 32,
                                                test_gemm_f32_12x32__plain_run};
    enum { KERNELS_MAX = 8, TESTS_MAX = KERNELS_MAX * COUNT(checks) + COUNT(others) };
    static struct kernel_test tests[TESTS_MAX];
    static struct CMUnitTest group[TESTS_MAX];
    size_t n_kernels, n = 0;
    const struct rp_gemm_kernel *kernels = rp_gemm_kernels(&n_kernels);

    for (size_t i = 0; i <= n_kernels && i < KERNELS_MAX; i++) {
        const struct rp_gemm_kernel *kernel = i < n_kernels ? &kernels[i] : &plain;
        if (kernel->isa & ~rp_isa_detected()) {
            print_message("%s: not on this machine\n", kernel->name);
            continue;
        }
        for (size_t c = 0; c < COUNT(checks); c++, n++) {
            tests[n] = (struct kernel_test){.kernel = kernel, .run = checks[c].run};
            snprintf(tests[n].name, sizeof tests[n].name, "%s %s", kernel->name, checks[c].name);
            group[n] = (struct CMUnitTest){
                .name = tests[n].name, .test_func = run_kernel_test, .initial_state = &tests[n]};
        }
    }
    for (size_t i = 0; i < COUNT(others); i++)
        group[n++] = others[i];
    return _cmocka_run_group_tests("gemm", group, n, NULL, NULL);
}
