/* ops: every table against the scalar one bit for bit, over widths and special values, with rows
 * that end at a guard page and gaps between rows that must stay; a digest that holds machines
 * together; errors against double precision; the cases that people reported. */
#include "ops/ops.h"
#include "ops/rope.h"
#include "qgemm/qgemm.h"
#include "tests/floats.h"
#include "tests/ops_tables.h"

#include <rankplan/machine.h>

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SEED          UINT64_C(0x6f707301)
#define ROWS          3
#define MANY          6 /* rows, four of which are normed side by side */
#define GAP           3 /* floats between rows: no row but the first is aligned */
#define CANARY        0x7fabcdefu
#define N_ACTIVATIONS 7
#define N_POOLINGS    6

/* ---- one kernel call, by number ---------------------------------------------------------------
 */

enum kernel {
    EMBED,
    LAYER_NORM,
    LAYER_NORM_NO_BIAS,
    L2_NORM,
    ADD,
    ACTIVATION,
    POOL = ACTIVATION + N_ACTIVATIONS,
    WIDEN = POOL + N_POOLINGS,
    N_KERNELS = WIDEN + 3
};

/* Operands of one width; everything ends at a guard page. */
struct operands {
    size_t width, ld, floats; /* of x and y: ROWS rows, the last without its gap */
    float *x, *other, *w, *b;
    uint16_t *halves; /* ROWS x width */
};

static void operands_init(struct operands *o, size_t width, bool special, uint64_t *random)
{
    *o = (struct operands){.width = width, .ld = width + GAP};
    o->floats = (ROWS - 1) * o->ld + width;
    o->x = guard_alloc(o->floats * sizeof(float));
    o->other = guard_alloc(o->floats * sizeof(float));
    o->w = guard_alloc(width * sizeof(float));
    o->b = guard_alloc(width * sizeof(float));
    o->halves = guard_alloc(ROWS * width * sizeof(uint16_t));
    for (size_t i = 0; i < o->floats; i++) {
        o->x[i] = special ? random_special(random) : random_float(random, 6);
        o->other[i] = special ? random_special(random) : random_float(random, 6);
    }
    for (size_t i = 0; i < width; i++) {
        o->w[i] = random_float(random, 2);
        o->b[i] = random_float(random, 2);
    }
    for (size_t i = 0; i < ROWS * width; i++)
        o->halves[i] = (uint16_t)random_next(random);
}

static void operands_fini(struct operands *o)
{
    guard_free(o->x, o->floats * sizeof(float));
    guard_free(o->other, o->floats * sizeof(float));
    guard_free(o->w, o->width * sizeof(float));
    guard_free(o->b, o->width * sizeof(float));
    guard_free(o->halves, ROWS * o->width * sizeof(uint16_t));
}

static void run_embed(const struct rp_ops *ops, const struct operands *o, float *y)
{
    static const int32_t index[3][ROWS] = {{0, 0, 0}, {2, 0, 1}, {1, 1, 2}};
    const struct rp_ops_table from[3] = {
        {o->x, index[0], RP_DTYPE_F32}, /* row 0 alone: a table's rows have no gaps */
        {o->halves, index[1], RP_DTYPE_F16},
        {o->halves, index[2], RP_DTYPE_BF16},
    };
    ops->embed(from, 3, o->width, y, o->ld, 0, 1);
    ops->embed(from, 3, o->width, y, o->ld, 1, ROWS);
}

/* Rows of y that the kernel writes. */
static size_t rows_written(int kernel)
{
    return kernel >= POOL ? 1 : ROWS;
}

static void run_kernel(const struct rp_ops *ops, int kernel, const struct operands *o, float *y)
{
    size_t width = o->width, ld = o->ld;
    if (kernel == EMBED)
        run_embed(ops, o, y);
    else if (kernel == LAYER_NORM)
        ops->layer_norm(o->x, ld, o->w, o->b, 1e-5f, width, y, ld, ROWS);
    else if (kernel == LAYER_NORM_NO_BIAS)
        ops->layer_norm(o->x, ld, o->w, NULL, 1e-12f, width, y, ld, ROWS);
    else if (kernel == L2_NORM)
        ops->l2_norm(o->x, ld, 1e-12f, width, y, ld, ROWS);
    else if (kernel == ADD)
        ops->add(o->x, ld, o->other, ld, width, y, ld, ROWS);
    else if (kernel < POOL)
        ops->activation((rp_activation)(kernel - ACTIVATION), o->x, ld, width, y, ld, ROWS);
    else if (kernel < WIDEN)
        ops->pool((rp_pooling)(kernel - POOL), o->x, ld, ROWS, width, y);
    else if (kernel == WIDEN + RP_DTYPE_F32)
        ops->widen(RP_DTYPE_F32, o->x, y, width);
    else
        ops->widen((rp_dtype)(kernel - WIDEN), o->halves, y, width);
}

/* ---- the same bits, and nothing outside -------------------------------------------------------
 */

static bool within_row(const struct operands *o, int kernel, size_t i)
{
    return i % o->ld < o->width && i / o->ld < rows_written(kernel);
}

static void check_kernel(const struct operands *o, int kernel, float *want, float *got,
                         uint64_t *digest)
{
    for (size_t t = 0; t < n_tables; t++) {
        float *y = t == 0 ? want : got;
        for (size_t i = 0; i < o->floats; i++)
            y[i] = float_of(CANARY);
        run_kernel(tables[t], kernel, o, y);
        for (size_t i = 0; i < o->floats; i++) {
            if (within_row(o, kernel, i) ? float_same(want[i], y[i]) : float_bits(y[i]) == CANARY)
                continue;
            fail_msg("%s kernel %d width %zu seed %llu, row %zu column %zu: %a, not %a",
                     tables[t]->name, kernel, o->width, (unsigned long long)SEED, i / o->ld,
                     i % o->ld, y[i], within_row(o, kernel, i) ? want[i] : float_of(CANARY));
        }
    }
    for (size_t r = 0; r < rows_written(kernel); r++)
        *digest = float_digest(want + r * o->ld, o->width, *digest);
}

static void check_width(size_t width, bool special, uint64_t *random, uint64_t *digest)
{
    struct operands o;
    operands_init(&o, width, special, random);
    float *want = guard_alloc(o.floats * sizeof(float));
    float *got = guard_alloc(o.floats * sizeof(float));
    for (int kernel = 0; kernel < N_KERNELS; kernel++)
        check_kernel(&o, kernel, want, got, digest);
    guard_free(want, o.floats * sizeof(float));
    guard_free(got, o.floats * sizeof(float));
    operands_fini(&o);
}

/* The digest is the scalar results', to which all others were equal: every machine has to find
 * this. */
static void all_tables_give_the_same_bits(void **state)
{
    (void)state;
    const uint64_t golden = UINT64_C(0x57103946391e1b40);
    uint64_t random = SEED, digest = 0;
    for (int special = 0; special < 2; special++) {
        for (size_t width = 1; width <= 70; width++)
            check_width(width, special, &random, &digest);
        check_width(384, special, &random, &digest);
        check_width(768, special, &random, &digest);
        check_width(1023, special, &random, &digest);
    }
    if (digest != golden)
        fail_msg("digest of all results %#llx, not %#llx", (unsigned long long)digest,
                 (unsigned long long)golden);
}

/* The row itself as the place of the result. */
static void in_place(void **state)
{
    (void)state;
    uint64_t random = SEED;
    static const size_t widths[] = {1, 17, 70, 384};
    for (size_t k = 0; k < sizeof widths / sizeof *widths; k++) {
        for (int kernel = LAYER_NORM; kernel < POOL; kernel++) {
            for (size_t t = 0; t < n_tables; t++) {
                struct operands o;
                operands_init(&o, widths[k], false, &random);
                float *want = calloc(o.floats, sizeof(float));
                assert_non_null(want);
                run_kernel(tables[t], kernel, &o, want);
                run_kernel(tables[t], kernel, &o, o.x);
                for (size_t r = 0; r < ROWS; r++)
                    assert_memory_equal(want + r * o.ld, o.x + r * o.ld, o.width * sizeof(float));
                free(want);
                operands_fini(&o);
            }
        }
    }
}

/* ---- against double precision -----------------------------------------------------------------
 */

static void layer_norm_in_double(const float *x, const float *w, const float *b, double eps,
                                 size_t width, double *y)
{
    double mean = 0, variance = 0;
    for (size_t i = 0; i < width; i++)
        mean += x[i];
    mean /= (double)width;
    for (size_t i = 0; i < width; i++)
        variance += (x[i] - mean) * (x[i] - mean);
    variance /= (double)width;
    for (size_t i = 0; i < width; i++)
        y[i] = (x[i] - mean) / sqrt(variance + eps) * w[i] + b[i];
}

/* Measured: 2.7e-7 and 2.3e-5.  With the offset the sums reach 76,800, where an addition rounds by
 * up to 2^-8; a few of those in 768 move the mean by 1e-5, and dividing by the deviation of 0.58
 * doubles it. */
static void layer_norm_is_accurate(void **state)
{
    (void)state;
    enum { width = 768 };
    static float x[width], w[width], b[width], y[width];
    static double exact[width];
    uint64_t random = SEED;
    for (int round = 0; round < 100; round++) {
        bool offset = round % 2;
        for (int i = 0; i < width; i++) {
            x[i] = random_float(&random, 1) + (offset ? 100.0f : 0.0f);
            w[i] = random_float(&random, 1);
            b[i] = random_float(&random, 1);
        }
        layer_norm_in_double(x, w, b, 1e-12, width, exact);
        for (size_t t = 0; t < n_tables; t++) {
            tables[t]->layer_norm(x, width, w, b, 1e-12f, width, y, width, 1);
            for (int i = 0; i < width; i++)
                assert_true(fabs(y[i] - exact[i]) <= (offset ? 4e-5 : 4e-7));
        }
    }
}

static void l2_norm_is_accurate(void **state)
{
    (void)state;
    uint64_t random = SEED;
    for (size_t width = 1; width < 900; width += 37) {
        static float x[900], y[900];
        double squares = 0;
        for (size_t i = 0; i < width; i++) {
            x[i] = random_float(&random, 3);
            squares += (double)x[i] * x[i];
        }
        for (size_t t = 0; t < n_tables; t++) {
            tables[t]->l2_norm(x, width, 1e-12f, width, y, width, 1);
            for (size_t i = 0; i < width; i++) {
                double exact = x[i] / sqrt(squares);
                assert_true(fabs(y[i] - exact) <= 4e-7 * fabs(exact));
            }
        }
    }
}

/* Zeros stay zeros with any eps; a row too small to be squared is no division by zero; a NaN is not
 * covered by eps. */
static void l2_norm_of_extremes(void **state)
{
    (void)state;
    for (size_t t = 0; t < n_tables; t++) {
        float y[3];
        tables[t]->l2_norm((float[]){0, 0, 0}, 3, 1e-12f, 3, y, 3, 1);
        assert_true(y[0] == 0 && y[1] == 0 && y[2] == 0);
        tables[t]->l2_norm((float[]){0, -0.0f, 0}, 3, 0, 3, y, 3, 1);
        assert_true(y[0] == 0 && y[1] == 0 && y[2] == 0);
        tables[t]->l2_norm((float[]){1e-30f, 0, 0}, 3, 0, 3, y, 3, 1);
        assert_true(y[0] == 1e-30f);
        tables[t]->l2_norm((float[]){1, NAN, 0}, 3, 1e-12f, 3, y, 3, 1);
        assert_true(isnan(y[0]) && isnan(y[1]) && isnan(y[2]));
        tables[t]->l2_norm((float[]){3, 4, 12}, 3, 1e-12f, 2, y, 3, 1); /* cut, then normalised */
        assert_true(y[0] == 0.6f && y[1] == 0.8f);
    }
}

static void a_nan_spoils_its_own_row_only(void **state)
{
    (void)state;
    enum { width = 19 };
    for (size_t t = 0; t < n_tables; t++) {
        for (int column = 0; column < width; column++) {
            float x[2 * width], w[width], y[2 * width];
            for (int i = 0; i < 2 * width; i++)
                x[i] = (float)(i % 5);
            for (int i = 0; i < width; i++)
                w[i] = 1;
            x[column] = NAN;
            tables[t]->layer_norm(x, width, w, w, 1e-5f, width, y, width, 2);
            for (int i = 0; i < 2 * width; i++)
                assert_true(!isnan(y[i]) == (i >= width));
            for (int a = 0; a < N_ACTIVATIONS; a++) {
                tables[t]->activation((rp_activation)a, x, width, width, y, width, 2);
                for (int i = 0; i < 2 * width; i++)
                    assert_true(!isnan(y[i]) == (i != column));
            }
        }
    }
}

/* ---- embedding --------------------------------------------------------------------------------
 */

/* (big + small) - big: the order given, and no other, gives 0 for a small that is rounded away. */
static void embed_sums_in_the_order_given(void **state)
{
    (void)state;
    const float big[4] = {1, 2, 0x1p30f, 0x1p30f}, small[2] = {1, 1};
    const uint16_t minus[2] = {0xce80, 0xce80}; /* bf16 -2^30 */
    const int32_t one[1] = {1}, zero[1] = {0};
    const struct rp_ops_table from[3] = {
        {big, one, RP_DTYPE_F32}, {small, zero, RP_DTYPE_F32}, {minus, zero, RP_DTYPE_BF16}};
    for (size_t t = 0; t < n_tables; t++) {
        float y[2];
        tables[t]->embed(from, 3, 2, y, 2, 0, 1);
        assert_true(y[0] == 0 && y[1] == 0);
        tables[t]->embed(from, 1, 2, y, 2, 0, 1);
        assert_true(y[0] == 0x1p30f && y[1] == 0x1p30f);
    }
}

/* ---- pooling ----------------------------------------------------------------------------------
 */

/* A third row lies behind the two of the sequence, as padding would: it must not count. */
static void pooling_of_the_report(void **state)
{
    (void)state;
    const float x[6] = {1, 2, 3, 4, 100, 100};
    static const float want[N_POOLINGS][2] = {
        [RP_POOL_CLS] = {1, 2},
        [RP_POOL_MEAN] = {2, 3},
        [RP_POOL_MAX] = {3, 4},
        [RP_POOL_MEAN_SQRT_LEN] = {2.828427f, 4.242641f},
        [RP_POOL_WEIGHTED_MEAN] = {2.333333f, 3.333333f},
        [RP_POOL_LAST] = {3, 4},
    };
    for (size_t t = 0; t < n_tables; t++) {
        for (int p = 0; p < N_POOLINGS; p++) {
            float y[2];
            tables[t]->pool((rp_pooling)p, x, 2, 2, 2, y);
            assert_true(fabsf(y[0] - want[p][0]) < 1e-6f && fabsf(y[1] - want[p][1]) < 1e-6f);
            tables[t]->pool((rp_pooling)p, x, 2, 0, 2, y);
            assert_true(float_bits(y[0]) == 0 && float_bits(y[1]) == 0);
        }
    }
}

static double pooled_in_double(rp_pooling pooling, const float *x, size_t ld, size_t n)
{
    double sum = 0, weights = 0, most = -INFINITY;
    for (size_t r = 0; r < n; r++) {
        double v = x[r * ld];
        double weight = pooling == RP_POOL_WEIGHTED_MEAN ? (double)(r + 1) : 1;
        sum += weight * v;
        weights += weight;
        most = v > most ? v : most;
    }
    switch (pooling) {
    case RP_POOL_CLS: return x[0];
    case RP_POOL_LAST: return x[(n - 1) * ld];
    case RP_POOL_MAX: return most;
    case RP_POOL_MEAN_SQRT_LEN: return sum / sqrt((double)n);
    case RP_POOL_MEAN:
    case RP_POOL_WEIGHTED_MEAN: break;
    }
    return sum / weights;
}

/* A chain of n additions of numbers below 1: n * 2^-24 of the largest sum at worst, its root in
 * practice. */
static void pooling_is_accurate(void **state)
{
    (void)state;
    enum { width = 83, max_n = 512 };
    static float x[width * max_n], y[width];
    uint64_t random = SEED;
    for (size_t i = 0; i < width * max_n; i++)
        x[i] = random_float(&random, 1);
    for (size_t n = 1; n <= max_n; n += n < 5 ? 1 : 169) {
        for (int p = 0; p < N_POOLINGS; p++) {
            double bound = p == RP_POOL_MEAN_SQRT_LEN ? 4e-6 : 4e-7;
            for (size_t t = 0; t < n_tables; t++) {
                tables[t]->pool((rp_pooling)p, x, width, n, width, y);
                for (size_t c = 0; c < width; c++)
                    assert_true(fabs(y[c] - pooled_in_double((rp_pooling)p, x + c, width, n)) <
                                bound);
            }
        }
    }
}

/* In any row that the mode reads, at the first, a middle and the last place, and in no other
 * column. */
static void pooling_shows_a_nan(void **state)
{
    (void)state;
    enum { width = 70, n = 5 };
    for (size_t t = 0; t < n_tables; t++) {
        for (size_t place = 0; place < n; place += 2) {
            float x[width * n], y[width];
            for (size_t i = 0; i < width * n; i++)
                x[i] = (float)(i % 7);
            x[place * width + 3] = NAN;
            x[place * width + 69] = NAN;
            for (int p = 0; p < N_POOLINGS; p++) {
                bool reads = p == RP_POOL_CLS    ? place == 0
                             : p == RP_POOL_LAST ? place == n - 1
                                                 : true;
                tables[t]->pool((rp_pooling)p, x, width, n, width, y);
                for (size_t c = 0; c < width; c++)
                    assert_true(isnan(y[c]) == (reads && (c == 3 || c == 69)));
            }
        }
    }
}

/* ---- checks and conversion --------------------------------------------------------------------
 */

static void nonfinite_finds_the_first(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 15, 16, 17, 33, 1023, 1024, 1025, 2500};
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t t = 0; t < n_tables; t++) {
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            size_t n = sizes[s], where = 12345;
            float *x = guard_alloc(n * sizeof *x);
            for (size_t i = 0; i < n; i++)
                x[i] = i % 2 ? FLT_MAX : -0x1p-149f;
            assert_false(tables[t]->nonfinite(x, n, &where));
            assert_int_equal(where, 12345);
            for (size_t i = 0; i < n; i += 1 + i / 9) {
                float kept = x[i], last = x[n - 1];
                x[n - 1] = NAN;
                x[i] = bad[i % 3];
                assert_true(tables[t]->nonfinite(x, n, &where));
                assert_int_equal(where, i);
                x[n - 1] = last;
                x[i] = kept;
            }
            guard_free(x, n * sizeof *x);
        }
    }
}

/* All halves, at an odd address as a file may have them. */
static void widen_takes_any_address(void **state)
{
    (void)state;
    static unsigned char bytes[2 * 65536 + 1];
    static float y[65536], want[65536];
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t half = (uint16_t)i;
        memcpy(bytes + 1 + 2 * i, &half, sizeof half);
    }
    for (int dtype = RP_DTYPE_F16; dtype <= RP_DTYPE_BF16; dtype++) {
        tables[0]->widen((rp_dtype)dtype, bytes + 1, want, 65536);
        assert_true(want[dtype == RP_DTYPE_F16 ? 0x3c00 : 0x3f80] == 1);
        for (size_t t = 1; t < n_tables; t++) {
            tables[t]->widen((rp_dtype)dtype, bytes + 1, y, 65536);
            for (size_t i = 0; i < 65536; i++)
                assert_true(float_same(y[i], want[i]));
        }
    }
}

/* ---- rows for INT8 products -------------------------------------------------------------------
 */

static struct rp_qgemm_row_tail tail_of(const uint8_t *row, size_t width)
{
    struct rp_qgemm_row_tail tail;
    memcpy(&tail, row + rp_qgemm_padded(width), sizeof tail);
    return tail;
}

/* The contract, column by column. */
static void quantize_plainly(const float *x, const float *factors, size_t width, uint8_t *q)
{
    float lo = 0, hi = 0;
    bool finite = true;
    for (size_t c = 0; c < width; c++) {
        const float y = factors ? x[c] * factors[c] : x[c];
        lo = y < lo ? y : lo;
        hi = y > hi ? y : hi;
        finite = finite && isfinite(y);
    }
    float scale = hi / 255 - lo / 255;
    scale = scale < 0x1p-126f ? 0x1p-126f : scale;
    const float zero = fminf(rintf(-lo * (1 / scale)), 255);
    memset(q, 0, rp_qgemm_row_bytes(width));
    for (size_t c = 0; c < rp_qgemm_padded(width); c++) {
        const float y = c >= width ? 0 : factors ? x[c] * factors[c] : x[c];
        q[c] = (uint8_t)rintf(fminf(fmaxf(fmaf(y, 1 / scale, zero), 0), 255));
    }
    const struct rp_qgemm_row_tail tail = {finite ? scale : NAN, (int32_t)zero};
    memcpy(q + rp_qgemm_padded(width), &tail, sizeof tail);
}

static void quantized_rows_are_the_contract(void **state)
{
    (void)state;
    static const size_t widths[] = {1, 3, 15, 16, 17, 31, 63, 64, 65, 127, 200, 384, 1537};
    uint64_t rng = 3;
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        const size_t width = widths[w], ld = width + GAP, bytes = rp_qgemm_row_bytes(width);
        const size_t floats = (ROWS - 1) * ld + width;
        float *x = guard_alloc(floats * sizeof *x), *factors = guard_alloc(width * sizeof *x);
        uint8_t *q = guard_alloc(ROWS * bytes), *want = malloc(ROWS * bytes);
        assert_non_null(want);
        for (int round = 0; round < 20; round++) {
            for (size_t i = 0; i < floats; i++) {
                rng = rng * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
                x[i] = ldexpf((float)(int32_t)(rng >> 32), (int)(rng >> 8 & 7) - 34) +
                       (round % 3 == 1 ? 1 : 0);
                factors[i % width] = ldexpf(1.0f + (float)(rng >> 40 & 255) / 256, round % 5 - 2);
            }
            const float *f = round % 2 ? factors : NULL;
            for (size_t r = 0; r < ROWS; r++)
                quantize_plainly(x + r * ld, f, width, want + r * bytes);
            for (size_t t = 0; t < n_tables; t++) {
                memset(q, 0xa5, ROWS * bytes);
                tables[t]->quantize(x, ld, f, width, q, ROWS);
                assert_memory_equal(q, want, ROWS * bytes);
            }
        }
        free(want);
        guard_free(x, floats * sizeof *x);
        guard_free(factors, width * sizeof *x);
        guard_free(q, ROWS * bytes);
    }
}

/* Rows normed side by side are what each is alone; norm and rounding in one give what the two give
 * apart, with and without a bias, factors and a y that is kept. */
static void normed_and_quantized_at_once(void **state)
{
    (void)state;
    static const size_t widths[] = {1, 15, 16, 17, 31, 32, 33, 48, 64, 65, 127, 384, 769};
    uint64_t rng = 5;
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        const size_t width = widths[w], ld = width + GAP, bytes = rp_qgemm_row_bytes(width);
        const size_t floats = (MANY - 1) * ld + width;
        float *x = guard_alloc(floats * sizeof *x), *y = guard_alloc(floats * sizeof *x);
        float *vectors = guard_alloc(3 * width * sizeof *x), *want = malloc(floats * sizeof *x);
        uint8_t *q = guard_alloc(MANY * bytes), *want_q = malloc(MANY * bytes);
        assert_true(want && want_q);
        for (int round = 0; round < 32; round++) {
            for (size_t i = 0; i < floats; i++)
                x[i] = y[i] = want[i] = random_float(&rng, round % 5 == 4 ? 1e-20f : 8);
            if (round % 5 == 3) /* no variance: with eps 0 the scale is infinite */
                for (size_t c = 0; c < width; c++)
                    x[c] = 3;
            for (size_t i = 0; i < 3 * width; i++)
                vectors[i] = random_float(&rng, 2);
            const float *b = round & 1 ? vectors + width : NULL;
            const float *factors = round & 2 ? vectors + 2 * width : NULL;
            const float eps = round & 4 ? 1e-12f : 0;
            const bool keep = round & 8;
            for (size_t t = 0; t < n_tables; t++) {
                for (size_t r = 0; r < MANY; r++)
                    tables[0]->layer_norm(x + r * ld, ld, vectors, b, eps, width, want + r * ld, ld,
                                          1);
                tables[t]->layer_norm(x, ld, vectors, b, eps, width, y, ld, MANY);
                for (size_t i = 0; i < floats; i++)
                    assert_true(float_same(y[i], want[i]));
                tables[0]->quantize(want, ld, factors, width, want_q, MANY);
                memset(q, 0xa5, MANY * bytes);
                memcpy(y, x, floats * sizeof *y);
                tables[t]->layer_norm_quantize(x, ld, vectors, b, eps, width, y, ld, keep, factors,
                                               q, MANY);
                for (size_t r = 0; r < MANY; r++) {
                    const float scale = tail_of(want_q + r * bytes, width).scale;
                    const float got = tail_of(q + r * bytes, width).scale;
                    assert_true(float_same(got, scale));
                    assert_memory_equal(q + r * bytes, want_q + r * bytes, rp_qgemm_padded(width));
                }
                for (size_t i = 0; keep && i < floats; i++)
                    assert_true(float_same(y[i], want[i]));
            }
        }
        free(want);
        free(want_q);
        guard_free(x, floats * sizeof *x);
        guard_free(y, floats * sizeof *x);
        guard_free(vectors, 3 * width * sizeof *x);
        guard_free(q, MANY * bytes);
    }
}

/* A row of zeros, one with a subnormal, one with 1e38, one-sided ones, and ones that are no
 * numbers; a column's error is at most half a step. */
static void quantized_rows_of_extremes(void **state)
{
    (void)state;
    static const float rows[][4] = {
        {0, 0, 0, 0},     {0, 1e-42f, 0, 0}, {1e38f, 1, -1, 0},     {1, 2, 3, 4},
        {-1, -2, -3, -4}, {-0.0f, 0, 0, 0},  {3e38f, -3e38f, 0, 1}, {0.9f, -0.4f, 0.25f, 0.1f}};
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t t = 0; t < n_tables; t++) {
        uint8_t q[128];
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            tables[t]->quantize(rows[r], 4, NULL, 4, q, 1);
            const struct rp_qgemm_row_tail tail = tail_of(q, 4);
            assert_true(isfinite(tail.scale) && tail.scale >= 0x1p-126f);
            assert_true(tail.zero >= 0 && tail.zero <= 255);
            for (size_t c = 0; c < 4; c++) {
                const double value = (double)(q[c] - tail.zero) * (double)tail.scale;
                assert_true(fabs(value - (double)rows[r][c]) <= 0.5001 * (double)tail.scale);
            }
            if (rows[r][0] == 0 && rows[r][1] == 0)
                for (size_t c = 0; c < 64; c++)
                    assert_int_equal(q[c], 0);
        }
        for (size_t b = 0; b < 3; b++) {
            const float x[8] = {1, 2, 3, bad[b], 5, 6, 7, 8};
            uint8_t both[256];
            tables[t]->quantize(x, 4, NULL, 4, both, 2);
            assert_true(isnan(tail_of(both, 4).scale));
            assert_true(isfinite(tail_of(both + 128, 4).scale));
        }
    }
}

/* ---- rotary positions and gates ---------------------------------------------------------------
 */

/* A kernel's call over rows with gaps, out of place or in place, compared with `want`. */
struct gapped {
    size_t width_in, width_out, ld_in, ld_out;
    float *x, *want;
};

static size_t floats_of(size_t ld, size_t width)
{
    return (ROWS - 1) * ld + width;
}

static struct gapped gapped_make(size_t width_in, size_t width_out, bool special, uint64_t *random)
{
    struct gapped g = {width_in, width_out, width_in + GAP, width_out + GAP, NULL, NULL};
    g.x = guard_alloc(floats_of(g.ld_in, width_in) * sizeof(float));
    g.want = calloc(floats_of(g.ld_out, width_out), sizeof(float));
    assert_non_null(g.want);
    for (size_t i = 0; i < floats_of(g.ld_in, width_in); i++)
        g.x[i] = special ? random_special(random) : random_float(random, 6);
    return g;
}

static void gapped_free(struct gapped *g)
{
    guard_free(g->x, floats_of(g->ld_in, g->width_in) * sizeof(float));
    free(g->want);
}

static void compare_rows(const struct gapped *g, const float *y, const char *what)
{
    for (size_t i = 0; i < floats_of(g->ld_out, g->width_out); i++) {
        const bool inside = i % g->ld_out < g->width_out;
        if (!(inside ? float_same(g->want[i], y[i]) : float_bits(y[i]) == CANARY))
            fail_msg("%s, width %zu, row %zu column %zu: %a, not %a", what, g->width_out,
                     i / g->ld_out, i % g->ld_out, y[i], g->want[i]);
    }
}

static float *canaries(size_t n)
{
    float *y = guard_alloc(n * sizeof *y);
    for (size_t i = 0; i < n; i++)
        y[i] = float_of(CANARY);
    return y;
}

static uint64_t digest_rows(const struct gapped *g, uint64_t digest)
{
    for (size_t r = 0; r < ROWS; r++)
        digest = float_digest(g->want + r * g->ld_out, g->width_out, digest);
    return digest;
}

/* The contract, pair by pair, from a table whose layout is taken apart here. */
static void rope_plainly(const struct rp_ops_rope *rope, const int32_t *positions,
                         const struct gapped *g)
{
    const size_t n = rope->n_rotated, half = n / 2;
    for (size_t r = 0; r < ROWS; r++) {
        const float *x = g->x + r * g->ld_in;
        float *y = g->want + r * g->ld_out;
        const float *row = rope->table + (size_t)positions[r] * n * (rope->interleaved ? 2 : 1);
        memcpy(y, x, g->width_out * sizeof *y);
        for (size_t h = 0; h < rope->n_heads; h++) {
            for (size_t i = 0; i < half; i++) {
                const size_t a = h * rope->head_dim + (rope->interleaved ? 2 * i : i);
                const size_t b = rope->interleaved ? a + 1 : a + half;
                const float c = rope->interleaved ? row[2 * i] : row[i];
                const float s = rope->interleaved ? row[n + 2 * i + 1] : row[half + i];
                y[a] = fmaf(x[a], c, -(x[b] * s));
                y[b] = fmaf(x[b], c, x[a] * s);
            }
        }
    }
}

#define POSITIONS 9

static void check_rope(size_t heads, size_t dim, size_t rotated, bool interleaved, size_t extra,
                       uint64_t *random, uint64_t *digest)
{
    const int32_t positions[ROWS] = {3, 0, POSITIONS - 1};
    const size_t width = heads * dim + extra;
    const size_t floats = POSITIONS * rp_rope_row_floats(rotated, interleaved);
    float *table = guard_alloc(floats * sizeof *table);
    struct rp_ops_rope rope = {table, heads, dim, rotated, interleaved};
    for (size_t i = 0; i < rotated / 2; i++)
        rp_rope_fill(&rope, i, rp_rope_inv_freq(10000, i, rotated), 1, POSITIONS, table);
    for (int special = 0; special < 2; special++) {
        struct gapped g = gapped_make(width, width, special, random);
        rope_plainly(&rope, positions, &g);
        *digest = digest_rows(&g, *digest);
        for (size_t t = 0; t < n_tables; t++) {
            const size_t n = floats_of(g.ld_out, width);
            float *y = canaries(n);
            tables[t]->rope(&rope, positions, g.x, g.ld_in, width, y, g.ld_out, ROWS);
            compare_rows(&g, y, tables[t]->name);
            for (size_t i = 0; i < n; i++)
                y[i] = i % g.ld_out < width ? g.x[i] : float_of(CANARY);
            tables[t]->rope(&rope, positions, y, g.ld_out, width, y, g.ld_out, ROWS);
            compare_rows(&g, y, tables[t]->name);
            guard_free(y, n * sizeof *y);
        }
        gapped_free(&g);
    }
    guard_free(table, floats * sizeof *table);
}

static void ropes_are_the_contract(void **state)
{
    (void)state;
    static const size_t dims[][2] = {{2, 2},   {4, 2},   {16, 16},  {30, 30}, {32, 32},
                                     {34, 34}, {64, 64}, {64, 32},  {70, 38}, {80, 20},
                                     {96, 96}, {5, 4},   {128, 128}};
    const uint64_t golden = UINT64_C(0x59e2e044ca029a98);
    uint64_t random = SEED, digest = 0;
    for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
        for (int i = 0; i < 4; i++)
            check_rope(1 + d % 3, dims[d][0], dims[d][1], i % 2, i / 2 * (1 + 7 * d), &random,
                       &digest);
    if (digest != golden)
        fail_msg("digest of all results %#llx, not %#llx", (unsigned long long)digest,
                 (unsigned long long)golden);
}

/* Against long double, at positions up to 2^20.  Half an ULP of a number below 1 is 2^-25 at most;
 * what comes on top is the frequency's error, 2^-48 of an angle of up to 2^20. */
static void cosines_and_sines_are_accurate(void **state)
{
    (void)state;
    enum { n = (1 << 20) + 1 };
    static const double thetas[] = {10000, 160000, 500000, 1e6};
    static float table[2 * n];
    const struct rp_ops_rope pair = {.n_rotated = 2};
    double worst = 0;
    for (size_t k = 0; k < 4; k++) {
        for (size_t i = 0; i < 32; i += 1 + 5 * k) {
            const long double exact = powl(thetas[k], -(long double)i / 32);
            const double f = rp_rope_inv_freq(thetas[k], i, 64);
            assert_true(fabsl(f - exact) <= 0x1p-48L * exact);
            rp_rope_fill(&pair, 0, f, 1, n, table);
            assert_true(table[0] == 1 && table[1] == 0);
            for (size_t p = 1; p < n; p = p < 300 ? p + 1 : p + 1013 < n - 1 ? p + 1013 : p + 1) {
                if (p + 1013 >= n - 1 && p < n - 4)
                    p = n - 4;
                const long double a = (long double)p * exact;
                const double c = (double)fabsl(table[2 * p] - cosl(a));
                const double s = (double)fabsl(table[2 * p + 1] - sinl(a));
                worst = fmax(worst, fmax(c, s));
            }
        }
    }
    /* A frequency at the limit: an angle of 2^31 rounded to a double is off by 2^-22. */
    const double fast = 0x1p20 - 0.3;
    rp_rope_fill(&pair, 0, fast, 1, 2048, table);
    for (size_t p = 0; p < 2048; p++) {
        const long double a = (long double)p * fast;
        worst = fmax(worst, (double)fabsl(table[2 * p] - cosl(a)));
        worst = fmax(worst, (double)fabsl(table[2 * p + 1] - sinl(a)));
    }
    print_message("worst error of a cosine or sine: 2^%.4f\n", log2(worst));
    assert_true(worst <= 0x1p-25 + 0x1p-28);
    assert_true(fabs(rp_rope_inv_freq(160000, 1, 4) / 0.0025 - 1) < 0x1p-50);
    assert_true(fabs(rp_rope_inv_freq(10000, 1, 4) / 0.01 - 1) < 0x1p-50);
}

/* The bits of the tables, and what scale, layout and given frequencies do to them. */
static void rope_tables_have_these_bits(void **state)
{
    (void)state;
    enum { positions = 200, rotated = 24 };
    static float halves[positions * rotated], pairs[positions * 2 * rotated];
    const uint64_t golden = UINT64_C(0xe4c33bc8d7654e3e);
    const struct rp_ops_rope a = {.n_rotated = rotated},
                             b = {.n_rotated = rotated, .interleaved = true};
    for (size_t i = 0; i < rotated / 2; i++) {
        const double f = i == 3 ? -0.75 : rp_rope_inv_freq(1e5, i, rotated);
        rp_rope_fill(&a, i, f, 1.25, positions, halves);
        rp_rope_fill(&b, i, f, 1.25, positions, pairs);
    }
    for (size_t p = 0; p < positions; p++) {
        const float *h = halves + p * rotated, *q = pairs + p * 2 * rotated;
        for (size_t i = 0; i < rotated / 2; i++) {
            assert_true(q[2 * i] == h[i] && q[2 * i + 1] == h[i]);
            assert_true(q[rotated + 2 * i] == -h[rotated / 2 + i]);
            assert_true(q[rotated + 2 * i + 1] == h[rotated / 2 + i]);
        }
        assert_true(fabs(h[rotated / 2 + 3] - 1.25 * sin(-0.75 * (double)p)) < 1e-7);
    }
    const uint64_t digest = float_digest(halves, positions * rotated, 0);
    if (digest != golden)
        fail_msg("digest of the table %#llx, not %#llx", (unsigned long long)digest,
                 (unsigned long long)golden);
}

/* The activation and the product, each rounded once. */
static void gates_are_the_contract(void **state)
{
    (void)state;
    static const size_t widths[] = {1, 2, 15, 16, 17, 31, 33, 48, 70, 1152};
    const uint64_t golden = UINT64_C(0x2c287aba082f5a74);
    uint64_t random = SEED, digest = 0;
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        const size_t width = widths[w];
        for (int k = 0; k < 2 * N_ACTIVATIONS; k++) {
            const rp_activation act = (rp_activation)(k / 2);
            struct gapped g = gapped_make(2 * width, width, k % 2, &random);
            tables[0]->activation(act, g.x, g.ld_in, width, g.want, g.ld_out, ROWS);
            for (size_t r = 0; r < ROWS; r++)
                for (size_t c = 0; c < width; c++)
                    g.want[r * g.ld_out + c] *= g.x[r * g.ld_in + width + c];
            digest = digest_rows(&g, digest);
            for (size_t t = 0; t < n_tables; t++) {
                const size_t n = floats_of(g.ld_out, width);
                float *y = canaries(n);
                tables[t]->glu(act, g.x, g.ld_in, width, y, g.ld_out, ROWS);
                compare_rows(&g, y, tables[t]->name);
                guard_free(y, n * sizeof *y);
            }
            gapped_free(&g);
        }
    }
    if (digest != golden)
        fail_msg("digest of all results %#llx, not %#llx", (unsigned long long)digest,
                 (unsigned long long)golden);
}

static void geglu_is_accurate(void **state)
{
    (void)state;
    enum { width = 200 };
    static float x[2 * width], y[width];
    uint64_t random = SEED;
    for (size_t i = 0; i < 2 * width; i++)
        x[i] = random_float(&random, 4);
    for (size_t t = 0; t < n_tables; t++) {
        tables[t]->glu(RP_ACT_GELU, x, 2 * width, width, y, width, 1);
        for (size_t c = 0; c < width; c++) {
            const double exact = x[c] * 0.5 * erfc(-x[c] * 0.70710678118654752440) * x[width + c];
            assert_true(fabs(y[c] - exact) <= 1.5e-6);
        }
    }
}

static void selection(void **state)
{
    (void)state;
    assert_string_equal(rp_ops_select(RP_ISA_SCALAR)->name, "scalar");
    for (size_t t = 0; t < n_tables; t++)
        assert_ptr_equal(rp_ops_select(tables[t]->isa), tables[t]);
    assert_ptr_equal(rp_ops_select(rp_isa_detected()), tables[n_tables - 1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_tables_give_the_same_bits),
        cmocka_unit_test(in_place),
        cmocka_unit_test(layer_norm_is_accurate),
        cmocka_unit_test(l2_norm_is_accurate),
        cmocka_unit_test(l2_norm_of_extremes),
        cmocka_unit_test(a_nan_spoils_its_own_row_only),
        cmocka_unit_test(embed_sums_in_the_order_given),
        cmocka_unit_test(pooling_of_the_report),
        cmocka_unit_test(pooling_is_accurate),
        cmocka_unit_test(pooling_shows_a_nan),
        cmocka_unit_test(nonfinite_finds_the_first),
        cmocka_unit_test(widen_takes_any_address),
        cmocka_unit_test(quantized_rows_are_the_contract),
        cmocka_unit_test(normed_and_quantized_at_once),
        cmocka_unit_test(quantized_rows_of_extremes),
        cmocka_unit_test(ropes_are_the_contract),
        cmocka_unit_test(cosines_and_sines_are_accurate),
        cmocka_unit_test(rope_tables_have_these_bits),
        cmocka_unit_test(gates_are_the_contract),
        cmocka_unit_test(geglu_is_accurate),
        cmocka_unit_test(selection),
    };
    return cmocka_run_group_tests(tests, find_tables, NULL);
}
