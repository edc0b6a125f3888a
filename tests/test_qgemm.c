/* Every INT8 kernel that this machine can run, bit for bit against three plain loops over i64 and
 * fmaf(); and packing, against what qgemm.h promises of every packed channel.
 *
 * Besides the kernels of the table there are two of the tests' own: the wide register tile of
 * AVX-512 and the tiles of AMX (tests/qgemm_tiles.c) on plain arrays, so that their indexing is
 * tested on machines that have neither.
 *
 * RP_TEST_SEED=<n> repeats a run of the random parts.
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "qgemm/qgemm.h"

rp_qgemm_run_fn test_qgemm_u8_12x32__plain_run, test_qgemm_u8_32x32__tiles_run;
rp_qgemm_peak_fn test_qgemm_u8_12x32__plain_peak, test_qgemm_u8_32x32__tiles_peak;

#define RP_V16_SCALAR
#define RP_QGEMM_NAME test_qgemm_u8_12x32__plain
#include "ops/ops.h"
#include "qgemm/avx512vnni.c"

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

static void random_start(void)
{
    const char *given = getenv("RP_TEST_SEED");
    random_state = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    print_message("    RP_TEST_SEED=%llu\n", (unsigned long long)random_state);
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

static void *allocate(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 64) / 64 * 64);
    assert_non_null(p);
    return p;
}

static float *floats(size_t n)
{
    return allocate(n * sizeof(float));
}

static float *random_floats(size_t n)
{
    float *x = floats(n);
    for (size_t i = 0; i < n; i++)
        x[i] = random_float();
    return x;
}

static void fill_margin(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = from_bits(MARGIN);
}

/* ---- operands ------------------------------------------------------------------------------- */

/* How extreme the operands are. */
enum operands {
    OP_RANDOM,   /* anything that is allowed */
    OP_WORST,    /* q = 255, pairs of weights exactly at the bound and of one sign */
    OP_TURNS,    /* q = 255 or 0, pairs of +127 and -127: sums of pairs 0, terms large */
    OP_ONE_HOT,  /* one q is not 0 */
    OP_ZERO_Q,   /* q = 0: what takes 128 off each has its worst case here */
    OP_ZERO_W,   /* w = 0 */
    OP_NEGATIVE, /* q = 0 or 255, pairs at the bound and negative */
    OP_TWOS,     /* q = 255 or less, half of the lines heavy, and two by two at the bound */
    OP_LIGHT,    /* any q, weights so small that all lines fit */
    N_OPERANDS
};

/* Magnitudes of one sign: they add up to 128 (to less, if `loose`), none above 127. */
static void random_magnitudes(int *out, bool loose)
{
    int left = loose ? (int)random_below(129) : 128;
    out[0] = out[1] = 0;
    while (left > 0) {
        const int part = 1 + (int)random_below((size_t)left), j = (int)random_below(2);
        const int taken = out[j] + part > 127 ? 127 - out[j] : part;
        out[j] += taken;
        left -= taken;
    }
}

static void random_pair(int *out, enum operands op)
{
    out[0] = out[1] = 0;
    if (op == OP_ZERO_W)
        return;
    random_magnitudes(out, op == OP_RANDOM);
    if (op == OP_LIGHT)
        for (size_t j = 0; j < 2; j++)
            out[j] = (int)random_below(33);
    if (op == OP_TURNS) {
        out[0] = 127;
        out[1] = -127;
    }
    if (op == OP_RANDOM && random_below(2)) { /* of opposite signs, anything is allowed */
        out[0] = (int)random_below(128);
        out[1] = -(int)random_below(128);
    }
    if (op == OP_NEGATIVE || (op != OP_WORST && random_below(2)))
        for (size_t j = 0; j < 2; j++)
            out[j] = -out[j];
}

/* The pair at i for OP_TWOS: four lines with sums of 100 and -100 by turns, then four with 28 and
 * -28. */
static void pair_of_twos(int *out, size_t i)
{
    const bool heavy = i / 16 % 2 == 0, down = i / 2 % 2;
    out[0] = heavy ? 60 : 13;
    out[1] = heavy ? 40 : 15;
    for (size_t j = 0; j < 2 && down; j++)
        out[j] = -out[j];
}

/* A row of weights, k_padded long; those past k are 0. */
static void random_weights(int8_t *w, size_t k, enum operands op)
{
    for (size_t i = 0; i < rp_qgemm_padded(k); i += 2) {
        int pair[2];
        if (op == OP_TWOS)
            pair_of_twos(pair, i);
        else
            random_pair(pair, op);
        w[i] = (int8_t)(i < k ? pair[0] : 0);
        w[i + 1] = (int8_t)(i + 1 < k ? pair[1] : 0);
    }
}

static uint8_t random_q(enum operands op)
{
    switch (op) {
    case OP_WORST: return 255;
    case OP_TWOS: return random_below(3) ? 255 : (uint8_t)random_below(256);
    case OP_TURNS:
    case OP_ONE_HOT:
    case OP_ZERO_Q: return 0;
    case OP_NEGATIVE: return random_below(2) ? 255 : 0;
    default: return (uint8_t)random_below(256);
    }
}

/* A quantised row.  What lies past k is anything. */
static void random_row(uint8_t *row, size_t k, enum operands op)
{
    const struct rp_qgemm_row_tail tail = {(random_float() + 1.5f) * 0x1p-7f,
                                           (int32_t)random_below(256)};
    for (size_t i = 0; i < rp_qgemm_row_bytes(k); i++)
        row[i] = i < k ? random_q(op) : (uint8_t)random_below(256);
    if (op == OP_ONE_HOT)
        row[random_below(k)] = 255;
    memcpy(row + rp_qgemm_padded(k), &tail, sizeof tail);
}

/* ---- a product, and what it must be ------------------------------------------------------------
 */

struct problem {
    size_t m, n, k;
    size_t ldc, ld_residual;
    uint8_t *q, *packed;
    int8_t *w; /* n rows of k_padded */
    float *scale, *bias, *residual;
    bool multiply; /* by the residual */
    rp_activation activation;
    float *expected; /* m x n */
    float *c;        /* (m + 2) x ldc: a row of margin before and after */
};

static float activated(rp_activation activation, float x)
{
    float y;
    if (activation == RP_ACT_NONE)
        return x;
    rp_ops_select(RP_ISA_SCALAR)->activation(activation, &x, 1, 1, &y, 1, 1);
    return y;
}

static int64_t colsum(const struct problem *p, size_t j)
{
    int64_t sum = 0;
    for (size_t l = 0; l < p->k; l++)
        sum += p->w[j * rp_qgemm_padded(p->k) + l];
    return sum;
}

static float expect_one(const struct problem *p, size_t i, size_t j)
{
    const uint8_t *q = p->q + i * rp_qgemm_row_bytes(p->k);
    const int8_t *w = p->w + j * rp_qgemm_padded(p->k);
    struct rp_qgemm_row_tail tail;
    memcpy(&tail, q + rp_qgemm_padded(p->k), sizeof tail);
    int64_t sum = 0;
    for (size_t l = 0; l < p->k; l++)
        sum += (int64_t)q[l] * w[l];
    const float acc = (float)(int32_t)(sum - tail.zero * colsum(p, j));
    const float scale = tail.scale * p->scale[j];
    const float y = activated(p->activation, p->bias ? fmaf(acc, scale, p->bias[j]) : acc * scale);
    if (!p->residual)
        return y;
    const float r = p->residual[i * p->ld_residual + j];
    return p->multiply ? y * r : y + r;
}

static void expect(struct problem *p)
{
    for (size_t i = 0; i < p->m; i++)
        for (size_t j = 0; j < p->n; j++)
            p->expected[i * p->n + j] = expect_one(p, i, j);
}

static size_t panels_of(const struct problem *p)
{
    return (p->n + RP_QGEMM_NR - 1) / RP_QGEMM_NR;
}

/* The layout of qgemm.h, written down once more. */
static void pack(struct problem *p)
{
    const size_t padded = rp_qgemm_padded(p->k), bytes = rp_qgemm_panel_bytes(p->k);
    p->packed = allocate(panels_of(p) * bytes);
    memset(p->packed, 0, panels_of(p) * bytes);
    for (size_t j = 0; j < p->n; j++) {
        uint8_t *panel = p->packed + j / 16 * bytes;
        const int32_t sum = (int32_t)colsum(p, j);
        for (size_t l = 0; l < padded; l++)
            panel[l / 4 * 64 + j % 16 * 4 + l % 4] = (uint8_t)p->w[j * padded + l];
        memcpy(panel + padded * 16 + j % 16 * 4, &p->scale[j], 4);
        memcpy(panel + padded * 16 + 64 + j % 16 * 4, &sum, 4);
    }
    for (size_t i = 0; i < panels_of(p); i++)
        rp_qgemm_order_lines(p->packed + i * bytes, p->k);
}

enum { WITH_BIAS = 1, WITH_RESIDUAL = 2, WITH_FACTOR = 4 }; /* a factor is a residual, too */

struct kind {
    enum operands operands;
    rp_activation activation;
    unsigned with;
};

static struct problem make_problem(size_t m, size_t n, size_t k, struct kind kind)
{
    struct problem p = {.m = m, .n = n, .k = k, .activation = kind.activation};
    p.multiply = kind.with & WITH_FACTOR;
    p.ldc = n + random_below(20);
    p.ld_residual = n + random_below(4);
    p.q = allocate(m * rp_qgemm_row_bytes(k));
    for (size_t i = 0; i < m; i++)
        random_row(p.q + i * rp_qgemm_row_bytes(k), k, kind.operands);
    p.w = allocate(n * rp_qgemm_padded(k));
    p.scale = floats(n);
    for (size_t j = 0; j < n; j++) {
        random_weights(p.w + j * rp_qgemm_padded(k), k, kind.operands);
        p.scale[j] = (random_float() + 1.5f) * 0x1p-8f;
    }
    pack(&p);
    p.bias = kind.with & WITH_BIAS ? random_floats(n) : NULL;
    p.residual = kind.with & WITH_RESIDUAL ? random_floats(m * p.ld_residual) : NULL;
    p.expected = floats(m * n);
    expect(&p);
    p.c = floats((m + 2) * p.ldc);
    fill_margin(p.c, (m + 2) * p.ldc);
    return p;
}

static void free_problem(struct problem *p)
{
    free(p->q);
    free(p->w);
    free(p->scale);
    free(p->packed);
    free(p->bias);
    free(p->residual);
    free(p->expected);
    free(p->c);
}

static struct rp_qgemm_args args_of(const struct problem *p)
{
    return (struct rp_qgemm_args){
        .q = p->q,
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

/* C's first m rows are as expected, and nothing else of its buffer was touched. */
static void check_rows(const struct problem *p, size_t m, const char *kernel)
{
    for (size_t i = 0; i < p->m + 2; i++) {
        for (size_t j = 0; j < p->ldc; j++) {
            const float got = p->c[i * p->ldc + j];
            const bool inside = i >= 1 && i <= m && j < p->n;
            const float want = inside ? p->expected[(i - 1) * p->n + j] : from_bits(MARGIN);
            if (inside ? !same(got, want) : bits(got) != MARGIN)
                fail_msg("%s m=%zu n=%zu k=%zu act=%d bias=%d residual=%d ldc=%zu: "
                         "C[%td][%zu] is %a (%08x), not %a (%08x)",
                         kernel, m, p->n, p->k, p->activation, p->bias != NULL, p->residual != NULL,
                         p->ldc, (ptrdiff_t)i - 1, j, (double)got, bits(got), (double)want,
                         bits(want));
        }
    }
}

static void run_and_check(const struct rp_qgemm_kernel *kernel, struct problem *p, size_t m)
{
    const struct rp_qgemm_args args = args_of(p);
    fill_margin(p->c, (p->m + 2) * p->ldc);
    kernel->run(&args, 0, m, 0, panels_of(p));
    check_rows(p, m, kernel->name);
}

static void solve(const struct rp_qgemm_kernel *kernel, size_t m, size_t n, size_t k,
                  struct kind kind)
{
    struct problem p = make_problem(m, n, k, kind);
    run_and_check(kernel, &p, m);
    free_problem(&p);
}

/* ---- one test for each of these and each kernel --------------------------------------------- */

static void test_shapes(const struct rp_qgemm_kernel *kernel)
{
    static const size_t ns[] = {1, 15, 16, 17, 33, 63, 80};
    static const size_t ks[] = {1, 2, 3, 5, 63, 64, 65, 127, 200, 384};
    const struct kind kind = {OP_RANDOM, RP_ACT_NONE, WITH_BIAS};
    for (size_t in = 0; in < COUNT(ns); in++) {
        for (size_t ik = 0; ik < COUNT(ks); ik++) {
            struct problem p = make_problem(40, ns[in], ks[ik], kind);
            for (size_t m = 0; m <= 40; m++)
                run_and_check(kernel, &p, m);
            free_problem(&p);
        }
    }
}

static void test_every_k(const struct rp_qgemm_kernel *kernel)
{
    for (size_t k = 1; k <= 200; k++)
        solve(kernel, 1 + k % 7, 17, k, (struct kind){OP_RANDOM, RP_ACT_NONE, 0});
}

static void test_long_sums(const struct rp_qgemm_kernel *kernel)
{
    static const size_t ks[] = {1536, 4096, RP_QGEMM_K_MAX - 1, RP_QGEMM_K_MAX};
    for (size_t ik = 0; ik < COUNT(ks); ik++) {
        for (enum operands op = 0; op < N_OPERANDS; op++)
            solve(kernel, 1 + 2 * (ik % 2), ks[ik] > 4096 ? 2 : 35, ks[ik],
                  (struct kind){op, RP_ACT_NONE, 0});
    }
}

static void test_operands(const struct rp_qgemm_kernel *kernel)
{
    static const size_t ks[] = {1, 7, 64, 200};
    for (enum operands op = 0; op < N_OPERANDS; op++) {
        for (size_t ik = 0; ik < COUNT(ks); ik++)
            for (size_t m = 1; m <= 2u * kernel->mr + 1; m += 1 + m / 4)
                solve(kernel, m, 51, ks[ik], (struct kind){op, RP_ACT_NONE, WITH_BIAS});
    }
}

/* C is full of NaNs before; every kind of epilogue meets every shape of tail. */
static void test_stale_output(const struct rp_qgemm_kernel *kernel)
{
    static const size_t sizes[] = {1, 2, 3, 5, 6, 7, 8, 9, 15, 16, 17, 31, 33};
    unsigned i = 0;
    for (size_t m = 0; m < COUNT(sizes); m++) {
        for (size_t n = 0; n < COUNT(sizes); n++) {
            for (size_t k = 1; k < 4; k++, i++)
                solve(kernel, sizes[m], sizes[n], 60 * k,
                      (struct kind){OP_RANDOM, (rp_activation)(i % 7), i / 7 % 4});
        }
    }
}

static void test_activations(const struct rp_qgemm_kernel *kernel)
{
    for (int activation = RP_ACT_NONE; activation <= RP_ACT_SIGMOID; activation++) {
        for (unsigned with = 0; with < 4; with++)
            solve(kernel, 2u * kernel->mr + 1, 37, 130,
                  (struct kind){OP_RANDOM, (rp_activation)activation, with});
    }
}

/* The residual is C itself, added or multiplied with. */
static void test_residual_in_place(const struct rp_qgemm_kernel *kernel)
{
    bool factor = false;
    for (size_t m = 1; m <= 3u * kernel->mr; m += 1 + kernel->mr / 8u, factor = !factor) {
        const unsigned with = WITH_BIAS | WITH_RESIDUAL | (factor ? WITH_FACTOR : 0);
        const struct kind kind = {OP_RANDOM, RP_ACT_SILU, with};
        struct problem p = make_problem(m, 41, 100, kind);
        struct rp_qgemm_args args = args_of(&p);
        for (size_t i = 0; i < m; i++)
            memcpy(args.c + i * p.ldc, p.residual + i * p.ld_residual, p.n * sizeof(float));
        args.residual = args.c;
        args.ld_residual = args.ldc;
        kernel->run(&args, 0, m, 0, panels_of(&p));
        check_rows(&p, m, kernel->name);
        free_problem(&p);
    }
}

/* A row of zeros is the bias, and a scale of NaN makes its own row NaN and no other. */
static void test_odd_rows(const struct rp_qgemm_kernel *kernel)
{
    const struct kind kind = {OP_RANDOM, RP_ACT_NONE, WITH_BIAS};
    const size_t m = 2u * kernel->mr + 3, stride = rp_qgemm_row_bytes(90);
    struct problem p = make_problem(m, 35, 90, kind);
    for (size_t i = 0; i < m; i++) {
        uint8_t *row = p.q + i * stride;
        struct rp_qgemm_row_tail tail = {i % 3 ? 0.0f : NAN, 0};
        if (i % 3 == 2)
            continue;
        memset(row, 0, rp_qgemm_padded(90));
        memcpy(row + rp_qgemm_padded(90), &tail, sizeof tail);
    }
    expect(&p);
    run_and_check(kernel, &p, m);
    for (size_t i = 0; i < m; i++) {
        for (size_t j = 0; j < p.n; j++) {
            const float got = p.c[(i + 1) * p.ldc + j];
            assert_true(i % 3 == 0 ? isnan(got) : !isnan(got));
            assert_true(i % 3 != 1 || bits(got) == bits(p.bias[j]));
        }
    }
    free_problem(&p);
}

/* A negative sum times a scale of 0 stays -0 when there is no bias to add. */
static void test_negative_zero(const struct rp_qgemm_kernel *kernel)
{
    struct problem p = make_problem(3, 17, 5, (struct kind){OP_NEGATIVE, 0, 0});
    const struct rp_qgemm_row_tail tail = {0.0f, 0};
    for (size_t i = 0; i < 3; i++) {
        memset(p.q + i * rp_qgemm_row_bytes(5), 255, 5);
        memcpy(p.q + i * rp_qgemm_row_bytes(5) + 64, &tail, sizeof tail);
    }
    expect(&p);
    assert_int_equal(bits(p.expected[0]), 0x80000000u);
    run_and_check(kernel, &p, 3);
    free_problem(&p);
}

/* Cut into any rows and panels, in any order, the bits are the same. */
static void test_splits(const struct rp_qgemm_kernel *kernel)
{
    for (int round = 0; round < 20; round++) {
        struct problem p =
            make_problem(1 + random_below(90), 1 + random_below(120), 1 + random_below(300),
                         (struct kind){OP_RANDOM, RP_ACT_GELU, (unsigned)random_below(4)});
        const struct rp_qgemm_args args = args_of(&p);
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
static void test_row_blocks(const struct rp_qgemm_kernel *kernel)
{
    const struct kind kind = {OP_RANDOM, RP_ACT_TANH, WITH_RESIDUAL};
    solve(kernel, rp_qgemm_block_rows(kernel->mr, 2000) + 5, 20, 2000, kind);
    solve(kernel, 2 * rp_qgemm_block_rows(kernel->mr, 500) + 1, 35, 500, kind);
}

static void test_random_shapes(const struct rp_qgemm_kernel *kernel)
{
    random_start();
    for (int round = 0; round < 150; round++)
        solve(kernel, 1 + random_below(70), 1 + random_below(100), 1 + random_below(260),
              (struct kind){(enum operands)random_below(N_OPERANDS), (rp_activation)random_below(7),
                            (unsigned)random_below(4)});
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

/* Bytes [first, first + n) of `from` right before the fence, or right behind it; where byte 0 would
 * then be. */
static void *place(const struct fenced *f, const void *from, size_t first, size_t n, bool at_end)
{
    unsigned char *to = f->base + f->page + (at_end ? f->bytes - n : 0);
    memcpy(to, (const unsigned char *)from + first, n);
    return (void *)((uintptr_t)to - first);
}

/* Rows from m0 on and panels from p0 on, with no memory for anything else. */
static void run_fenced(const struct rp_qgemm_kernel *kernel, struct problem *p, size_t m0,
                       size_t p0, bool at_end)
{
    const size_t m = p->m, n = p->n, row = rp_qgemm_row_bytes(p->k), f4 = sizeof(float);
    const size_t panel = rp_qgemm_panel_bytes(p->k), col = p0 * RP_QGEMM_NR;
    const size_t first[] = {m0 * row, p0 * panel, col * f4, (m0 * p->ld_residual + col) * f4,
                            (m0 * p->ldc + col) * f4};
    const size_t end[] = {m * row, panels_of(p) * panel, n * f4,
                          ((m - 1) * p->ld_residual + n) * f4, ((m - 1) * p->ldc + n) * f4};
    struct rp_qgemm_args args = args_of(p);
    const void *from[] = {args.q, args.packed, args.bias, args.residual, args.c};
    void *at[5];
    struct fenced f[5];
    fill_margin(p->c, (m + 2) * p->ldc);
    for (size_t i = 0; i < 5; i++) {
        f[i] = make_fenced(end[i] - first[i]);
        at[i] = from[i] ? place(&f[i], from[i], first[i], end[i] - first[i], at_end) : NULL;
    }
    float *c = args.c;
    args.q = at[0];
    args.packed = at[1];
    args.bias = at[2];
    args.residual = at[3];
    args.c = at[4];
    kernel->run(&args, m0, m, p0, panels_of(p));
    memcpy((char *)c + first[4], (const char *)at[4] + first[4], end[4] - first[4]);
    for (size_t i = 0; i < m; i++) /* what was left out stands for itself */
        for (size_t j = 0; j < n; j++)
            if (i < m0 || j < col) {
                assert_int_equal(bits(c[i * p->ldc + j]), MARGIN);
                c[i * p->ldc + j] = p->expected[i * n + j];
            }
    check_rows(p, m, kernel->name);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(munmap(f[i].base, f[i].bytes + 2 * f[i].page), 0);
}

static void test_fences(const struct rp_qgemm_kernel *kernel)
{
    static const size_t ns[] = {1, 16, 17, 47, 64, 130}, ks[] = {1, 64, 200};
    const size_t ms[] = {1, 2, 3, kernel->mr, kernel->mr + 1u, 2u * kernel->mr + 1};
    for (size_t i = 0; i < COUNT(ms) * COUNT(ns) * COUNT(ks) * 2; i++) {
        const size_t m = ms[i / 2 % COUNT(ms)], n = ns[i / 2 / COUNT(ms) % COUNT(ns)];
        struct problem p =
            make_problem(m, n, ks[i / 2 / COUNT(ms) / COUNT(ns)],
                         (struct kind){OP_RANDOM, i % 3 ? RP_ACT_NONE : RP_ACT_SIGMOID,
                                       (unsigned)random_below(4)});
        run_fenced(kernel, &p, 0, 0, i % 2);
        run_fenced(kernel, &p, m / 3, n / 48, i % 2);
        free_problem(&p);
    }
}

/* The same bits on every machine: XXH3 of C, made by the scalar kernel. */
static void test_golden(const struct rp_qgemm_kernel *kernel)
{
    static const struct {
        size_t m, n, k;
        rp_activation activation;
        unsigned with;
        uint64_t xxh3;
    } golden[] = {
        {1, 384, 384, RP_ACT_NONE, WITH_BIAS, 0x3589203765d84d5cu},
        {7, 100, 33, RP_ACT_NONE, 0, 0xbabfcedbe225cdc8u},
        {16, 96, 384, RP_ACT_GELU, WITH_BIAS, 0x7b749ff9037746a4u},
        {50, 64, 1536, RP_ACT_NONE, WITH_BIAS | WITH_RESIDUAL, 0x839c68235693f74au},
        {128, 48, 768, RP_ACT_SILU, WITH_BIAS, 0x3ba419e1f0de9fe0u},
    };
    for (size_t g = 0; g < COUNT(golden); g++) {
        random_state = 1000 + g;
        struct problem p =
            make_problem(golden[g].m, golden[g].n, golden[g].k,
                         (struct kind){OP_RANDOM, golden[g].activation, golden[g].with});
        struct rp_qgemm_args args = args_of(&p);
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

/* The ceiling counts what it does: twice the rounds, twice the products. */
static void test_peak(const struct rp_qgemm_kernel *kernel)
{
    _Alignas(64) unsigned char sink[256] = {1, 2, 3};
    const size_t one = kernel->peak(10, sink);
    assert_true(one >= 10 * 64);
    assert_int_equal(kernel->peak(20, sink), 2 * one);
}

/* ---- packing -------------------------------------------------------------------------------- */

/* One weight of a row, by what kind of row it is. */
static float random_weight(size_t kind, size_t i)
{
    switch (kind) {
    case 0: return random_float();
    case 1: return random_float() * random_float() * random_float() * random_float();
    case 2: return random_below(20) ? 0.0f : random_float();
    case 3: return i % 2 ? 1.0f : -1.0f; /* every pair as large as can be */
    case 4: return random_float() * 0x1p-140f;
    case 5: return random_float() * 0x1p100f;
    case 6: return i % 8 < 2 ? 127.0f : 0.5f; /* halves: rounding lifts what it can */
    default: return random_below(3) ? 0.49f : 63.5f;
    }
}

/* What qgemm.h says of a packed channel, from the floats that it was made of. */
static void check_channel(const int8_t *q, float scale, int32_t sum, const float *w,
                          const float *smooth, size_t k)
{
    int64_t want_sum = 0;
    float largest = 0;
    for (size_t l = 0; l < k; l++) {
        const float x = fabsf(smooth ? w[l] * smooth[l] : w[l]);
        largest = x > largest ? x : largest;
    }
    if (largest == 0)
        assert_true(scale == 0);
    else
        assert_true(scale > 0 && isfinite(scale) && largest <= 127.51f * scale);
    for (size_t i = 0; i < rp_qgemm_padded(k); i += 2) {
        for (size_t l = i; l < i + 2; l++) {
            const float x = l < k ? (smooth ? w[l] * smooth[l] : w[l]) : 0;
            const double error = scale > 0 ? fabs((double)x / (double)scale - q[l]) : 0;
            assert_true(q[l] >= -127);
            assert_true(l < k || q[l] == 0);
            assert_true(error <= 0.5001);
            want_sum += q[l];
        }
        assert_true(abs(q[i] + q[i + 1]) <= 128);
    }
    assert_int_equal(sum, want_sum);
}

/* Whether two lines fit in all columns: what each pair of either adds up to, to either side. */
static bool lines_fit(const int8_t *a, const int8_t *b)
{
    bool fit = true;
    for (size_t j = 0; j < 64; j += 2) {
        int up = 0, down = 0;
        for (size_t i = j; i < j + 2; i++) {
            up += (a[i] > 0 ? a[i] : 0) + (b[i] > 0 ? b[i] : 0);
            down -= (a[i] < 0 ? a[i] : 0) + (b[i] < 0 ? b[i] : 0);
        }
        fit = fit && up <= 128 && down <= 128;
    }
    return fit;
}

/* Every line is there once, and those that are joined fit. */
static void check_order(void *panel, size_t k)
{
    const struct rp_qgemm_panel_order *order = rp_qgemm_order(panel, k);
    const size_t n = rp_qgemm_padded(k) / 4;
    bool *seen = calloc(n, sizeof *seen);
    assert_non_null(seen);
    assert_true(order->n_joined <= n && order->n_joined % 4 == 0);
    for (size_t i = 0; i < n; i++) {
        const size_t line = order->lines[i] / 4u;
        assert_true(order->lines[i] % 4 == 0 && line < n && !seen[line]);
        seen[line] = true;
    }
    for (size_t i = 0; i < order->n_joined; i += 2)
        assert_true(lines_fit((int8_t *)panel + order->lines[i] * 16,
                              (int8_t *)panel + order->lines[i + 1] * 16));
    free(seen);
}

static void check_packed(size_t n_rows, size_t k, bool with_smooth)
{
    const size_t ldw = k + random_below(5), padded = rp_qgemm_padded(k);
    float *w = floats(n_rows * ldw), *smooth = with_smooth ? floats(k) : NULL;
    for (size_t r = 0; r < n_rows; r++) {
        const size_t kind = random_below(9);
        for (size_t i = 0; i < ldw; i++)
            w[r * ldw + i] = kind == 8 ? 0.0f : random_weight(kind, i);
    }
    for (size_t i = 0; i < k && smooth; i++)
        smooth[i] = random_float() + 1.5f;
    int8_t *panel = allocate(rp_qgemm_panel_bytes(k)), *row = allocate(padded);
    memset(panel, 0x55, rp_qgemm_panel_bytes(k));
    rp_qgemm_pack_panel(panel, w, ldw, n_rows, k, smooth);
    struct rp_qgemm_panel_tail tail;
    memcpy(&tail, panel + padded * RP_QGEMM_NR, sizeof tail);
    for (size_t r = 0; r < RP_QGEMM_NR; r++) {
        for (size_t l = 0; l < padded; l++)
            row[l] = panel[l / 4 * 64 + r * 4 + l % 4];
        if (r < n_rows)
            check_channel(row, tail.scale[r], tail.colsum[r], w + r * ldw, smooth, k);
        for (size_t l = 0; r >= n_rows && l < padded; l++)
            assert_int_equal(row[l], 0);
        assert_true(r < n_rows || (bits(tail.scale[r]) == 0 && tail.colsum[r] == 0));
    }
    check_order(panel, k);
    free(w);
    free(smooth);
    free(panel);
    free(row);
}

static void test_packing(void **state)
{
    (void)state;
    random_start();
    for (int round = 0; round < 400; round++)
        check_packed(1 + random_below(16), 1 + random_below(round % 20 ? 200 : 3000),
                     random_below(2));
    check_packed(16, RP_QGEMM_K_MAX, true);
    check_packed(16, RP_QGEMM_K_MAX, false);
}

/* How many lines of a panel of k columns find a partner. */
static size_t joined(size_t k, float (*weight)(size_t i))
{
    float *w = floats(16 * k);
    for (size_t i = 0; i < 16 * k; i++)
        w[i] = weight(i);
    uint8_t *panel = allocate(rp_qgemm_panel_bytes(k));
    rp_qgemm_pack_panel(panel, w, k, 16, k, NULL);
    check_order(panel, k);
    const size_t n = rp_qgemm_order(panel, k)->n_joined;
    free(w);
    free(panel);
    return n;
}

/* Near enough to a normal distribution, which is what weights of models have. */
static float normal(size_t i)
{
    float sum = 0;
    (void)i;
    for (size_t j = 0; j < 6; j++)
        sum += random_float();
    return sum;
}

static float heavy(size_t i)
{
    (void)i;
    return 1;
}

/* Lines at the bound, lines of seven tenths of it, and lines of a quarter: the second kind fits
 * only the third, which fits itself as well. */
static float heavy_and_light(size_t i)
{
    static const float kinds[] = {1, 0.7f, 0.25f, 1};
    return kinds[i / 4 % 4];
}

static void test_joining(void **state)
{
    (void)state;
    size_t few = 0, many = 0;
    random_state = 1; /* how many fit is a matter of luck: the same luck each time */
    assert_int_equal(joined(512, heavy), 0);
    assert_int_equal(joined(512, heavy_and_light), 64);
    for (int panel = 0; panel < 8; panel++) {
        few += joined(384, normal);
        many += joined(1536, normal);
    }
    assert_in_range(few, 8 * 96 * 85 / 100, 8 * 96);
    assert_in_range(many, 8 * 384 * 97 / 100, 8 * 384);
}

/* 63.5 and the float after 64.5 add up to 128 in floats, and both round up: the one that was lifted
 * more is lowered again. */
static void test_packing_lowers(void **state)
{
    (void)state;
    const float more = 63.5f, less = 64.5f + 0x1p-17f;
    /* The last pair is of opposite signs, which never add up: nothing is lowered. */
    const float w[5][2] = {{more, less}, {less, more}, {-more, -less}, {-less, -more}, {-127, 127}};
    static const int want[5][2] = {{63, 65}, {65, 63}, {-63, -65}, {-65, -63}, {-127, 127}};
    _Alignas(64) int8_t panel[64 * RP_QGEMM_NR + 128 + 64];
    assert_int_equal(sizeof panel, rp_qgemm_panel_bytes(2));
    struct rp_qgemm_panel_tail tail;
    rp_qgemm_pack_panel(panel, w[0], 2, COUNT(w), 2, NULL);
    memcpy(&tail, panel + 64 * RP_QGEMM_NR, sizeof tail);
    for (size_t r = 0; r < COUNT(w); r++) {
        assert_true(tail.scale[r] == 1);
        assert_int_equal(panel[4 * r], want[r][0]);
        assert_int_equal(panel[4 * r + 1], want[r][1]);
        assert_int_equal(tail.colsum[r], want[r][0] + want[r][1]);
    }
}

/* The scale of a row that is not all numbers is none, the others are not touched by it. */
static void test_packing_nonfinite(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < 2 * COUNT(bad); i++) {
        float w[3][70];
        _Alignas(64) unsigned char panel[128 * RP_QGEMM_NR + 128 + 128];
        assert_int_equal(sizeof panel, rp_qgemm_panel_bytes(70));
        struct rp_qgemm_panel_tail tail;
        for (size_t j = 0; j < COUNT(w) * COUNT(w[0]); j++)
            w[j / 70][j % 70] = random_float();
        w[1][i % 2 ? 69 : 0] = bad[i / 2];
        rp_qgemm_pack_panel(panel, w[0], 70, 3, 70, NULL);
        memcpy(&tail, panel + 128 * RP_QGEMM_NR, sizeof tail);
        assert_true(isnan(tail.scale[1]));
        assert_true(tail.scale[0] > 0 && tail.scale[2] > 0);
        assert_int_equal(tail.colsum[1], 0);
    }
}

static void test_packed_bytes(void **state)
{
    (void)state;
    size_t size = 7;
    assert_true(rp_qgemm_packed_bytes(17, 3, &size));
    assert_int_equal(size, 2 * (64 * 16 + 128 + 64));
    assert_true(rp_qgemm_packed_bytes(0, 3, &size));
    assert_int_equal(size, 0);
    size = 7;
    assert_false(rp_qgemm_packed_bytes(SIZE_MAX, 1, &size));
    assert_false(rp_qgemm_packed_bytes(SIZE_MAX / 64, 64, &size));
    assert_false(rp_qgemm_packed_bytes(1, RP_QGEMM_K_MAX + 1, &size));
    assert_int_equal(size, 7);
}

/* ---- choosing ------------------------------------------------------------------------------- */

/* Each kernel is chosen for what it needs and no more. */
static void test_selection(void **state)
{
    (void)state;
    size_t n;
    const struct rp_qgemm_kernel *kernels = rp_qgemm_kernels(&n);
    assert_ptr_equal(rp_qgemm_select(RP_ISA_SCALAR), &kernels[0]);
    assert_int_equal(kernels[0].isa, RP_ISA_SCALAR);
    for (uint32_t mask = rp_isa_detected(); mask; mask &= mask - 1)
        assert_int_equal(rp_qgemm_select(mask)->isa & ~mask, 0);
    for (size_t i = 0; i < n; i++)
        assert_ptr_equal(rp_qgemm_select(kernels[i].isa), &kernels[i]);
    assert_ptr_equal(rp_qgemm_select(UINT32_MAX), &kernels[n - 1]);
}

/* No level that the processor offers goes without a kernel of its own that ran here, except for
 * AVX-512 without VNNI, which the AVX2 kernels serve. */
static void test_levels(void **state)
{
    (void)state;
    size_t n;
    uint32_t served = RP_ISA_AVX512;
    const struct rp_qgemm_kernel *kernels = rp_qgemm_kernels(&n);
    for (size_t i = 0; i < n; i++)
        if ((kernels[i].isa & ~rp_isa_detected()) == 0)
            served |= kernels[i].isa;
    assert_int_equal(rp_isa_detected() & ~served, 0);
}

static void test_row_block_size(void **state)
{
    (void)state;
    size_t n;
    const struct rp_qgemm_kernel *kernels = rp_qgemm_kernels(&n);
    static const size_t ks[] = {1, 384, 768, 1536, 3072, RP_QGEMM_K_MAX};
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < COUNT(ks); k++) {
            const size_t rows = rp_qgemm_block_rows(kernels[i].mr, ks[k]);
            assert_true(rows > 0);
            assert_int_equal(rows % kernels[i].mr, 0);
        }
    }
}

/* ---- all of them ------------------------------------------------------------------------------
 */

typedef void check_fn(const struct rp_qgemm_kernel *kernel);

struct check {
    const char *name;
    check_fn *run;
};

struct kernel_test {
    const struct rp_qgemm_kernel *kernel;
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
        CHECK(shapes),
        CHECK(every_k),
        CHECK(long_sums),
        CHECK(operands),
        CHECK(stale_output),
        CHECK(activations),
        CHECK(residual_in_place),
        CHECK(odd_rows),
        CHECK(negative_zero),
        CHECK(splits),
        CHECK(row_blocks),
        CHECK(random_shapes),
        CHECK(fences),
        CHECK(golden),
        CHECK(peak),
    };
    static const struct CMUnitTest others[] = {
        cmocka_unit_test(test_packing),        cmocka_unit_test(test_joining),
        cmocka_unit_test(test_packing_lowers), cmocka_unit_test(test_packing_nonfinite),
        cmocka_unit_test(test_packed_bytes),   cmocka_unit_test(test_selection),
        cmocka_unit_test(test_levels),         cmocka_unit_test(test_row_block_size),
    };
    static const struct rp_qgemm_kernel plain[] = {
        {"qgemm_u8_12x32__plain", RP_ISA_SCALAR, 12, 32, test_qgemm_u8_12x32__plain_run,
         test_qgemm_u8_12x32__plain_peak},
        {"qgemm_u8_32x32__tiles", RP_ISA_SCALAR, 32, 32, test_qgemm_u8_32x32__tiles_run,
         test_qgemm_u8_32x32__tiles_peak},
    };
    enum { KERNELS_MAX = 12, TESTS_MAX = KERNELS_MAX * COUNT(checks) + COUNT(others) };
    static struct kernel_test tests[TESTS_MAX];
    static struct CMUnitTest group[TESTS_MAX];
    size_t n_kernels, n = 0;
    const struct rp_qgemm_kernel *kernels = rp_qgemm_kernels(&n_kernels);

    for (size_t i = 0; i < n_kernels + COUNT(plain) && i < KERNELS_MAX; i++) {
        const struct rp_qgemm_kernel *kernel = i < n_kernels ? &kernels[i] : &plain[i - n_kernels];
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
    return _cmocka_run_group_tests("qgemm", group, n, NULL, NULL);
}
