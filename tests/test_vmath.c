/* pool/vmath.h: the same bits on every instruction set (held by a digest, so that machines can be
 * compared without each other), errors against libm in double precision, special values. */
#include "tests/floats.h"
#include "tests/v16_table.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

static const struct v16_table *tables[4];
static size_t n_tables;

static int find_tables(void **state)
{
    (void)state;
    n_tables = v16_tables(tables);
    return 0;
}

/* One function of one table at one place. */
static float at(const struct v16_table *table, const char *name, float x)
{
    float a[16], y[16];
    for (int l = 0; l < 16; l++)
        a[l] = x;
    v16_function(table, name)(a, a, a, a, y);
    for (int l = 1; l < 16; l++)
        assert_true(float_same(y[0], y[l]));
    return y[0];
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double silu(double x)
{
    return x == -INFINITY ? 0 : x * sigmoid(x);
}

static double relu(double x)
{
    return x > 0 ? x : 0;
}

static double gelu(double x)
{
    return x == -INFINITY ? 0 : x * 0.5 * erfc(-x * 0.70710678118654752440);
}

static double gelu_tanh(double x)
{
    double y = 1.59576912160573071176 * (x + 0.044715 * x * x * x);
    return x == -INFINITY ? 0 : x * sigmoid(y);
}

static double exp_neg(double x)
{
    double e = exp(x < 0 ? x : 0);
    return e < 0x1p-126 ? 0 : e;
}

/* Of the normal numbers: those below and the infinite one count as the nearest. */
static double log_normal(double x)
{
    return log(fmin(fmax(fabs(x), 0x1p-126), FLT_MAX));
}

static double log1p_finite(double x)
{
    return log1p(fmin(fabs(x), FLT_MAX));
}

static double softplus(double x)
{
    return relu(x) + log1p(exp(-fabs(x)));
}

/* The bounds are those that bench/ulp.c measured over all floats, rounded up.  `relative` counts
 * ULP and holds for low <= x <= high; `absolute` is a multiple of max(1, |result|) and holds
 * everywhere. */
static const struct bound {
    const char *name;
    double (*exact)(double);
    double ulp, low, high, absolute;
    uint64_t digest; /* of the sweep below */
} bounds[] = {
    {"exp", exp, 0.9, -INFINITY, INFINITY, 1e-7, UINT64_C(0x4240cce4b12f3960)},
    {"exp_neg", exp_neg, 0.9, -87.3, INFINITY, 6e-8, UINT64_C(0xca7391497535e14d)},
    {"log", log_normal, 1.0, -INFINITY, INFINITY, 1e-7, UINT64_C(0x68f3b8153b23dfe6)},
    {"log1p", log1p_finite, 1.3, -INFINITY, INFINITY, 1.3e-7, UINT64_C(0x443debdbf6dae2de)},
    {"softplus", softplus, 2.5, -INFINITY, INFINITY, 1.3e-7, UINT64_C(0x8f3ffca069777a8e)},
    {"erf", erf, 1.2, -INFINITY, INFINITY, 8e-8, UINT64_C(0x31941b27615dff5e)},
    {"tanh", tanh, 1.4, -INFINITY, INFINITY, 9e-8, UINT64_C(0x7ebfcb99d7661b75)},
    {"sigmoid", sigmoid, 2.5, -87.3, INFINITY, 9e-8, UINT64_C(0x71cf50b8ee9c5273)},
    {"relu", relu, 0, -INFINITY, INFINITY, 0, UINT64_C(0xa6bd0bd397aca2b6)},
    {"gelu", gelu, 11, -3, INFINITY, 9e-8, UINT64_C(0xf125836e97499f79)},
    {"gelu_tanh", gelu_tanh, 14, -3, INFINITY, 9e-8, UINT64_C(0x8e55450c84d491f6)},
    {"silu", silu, 4, -5, INFINITY, 9e-8, UINT64_C(0xc88d00b128777f0e)},
};
#define N_BOUNDS (sizeof bounds / sizeof *bounds)

static double ulp_of(double exact)
{
    int exponent;
    frexp(exact, &exponent);
    return ldexp(1, (exponent < -125 ? -125 : exponent) - 24);
}

static void check_value(const struct v16_table *table, const struct bound *bound, float x, float y)
{
    double exact = bound->exact(x);
    if (isnan(x)) {
        if (!isnan(y))
            fail_msg("%s %s(NaN) = %a", table->name, bound->name, y);
        return;
    }
    if (isinf((float)exact)) {
        if (y != (float)exact)
            fail_msg("%s %s(%a) = %a, not %g", table->name, bound->name, x, y, exact);
        return;
    }
    double error = fabs(y - exact);
    double scale = fabs(exact) > 1 ? fabs(exact) : 1;
    bool far = !(error <= bound->absolute * scale);
    if (x >= bound->low && x <= bound->high)
        far |= !(error <= bound->ulp * ulp_of(exact));
    if (far)
        fail_msg("%s %s(%a) = %a, not %g: off by %.3g, %.3g ULP", table->name, bound->name, x, y,
                 exact, error, error / ulp_of(exact));
}

/* Every 6151st pattern, so that all exponents and both signs take part. */
static uint64_t sweep(const struct v16_table *table, const struct bound *bound, bool check)
{
    v16_case_fn *run = v16_function(table, bound->name);
    uint64_t digest = 0, bits = 0;
    while (bits < UINT64_C(1) << 32) {
        float x[16], y[16];
        for (int l = 0; l < 16; l++, bits += 6151)
            x[l] = float_of((uint32_t)(bits < UINT64_C(1) << 32 ? bits : UINT32_MAX));
        run(x, x, x, x, y);
        digest = float_digest(y, 16, digest);
        for (int l = 0; check && l < 16; l++)
            check_value(table, bound, x[l], y[l]);
    }
    return digest;
}

static void errors_are_bounded(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_BOUNDS; i++)
        (void)sweep(tables[n_tables - 1], &bounds[i], true);
}

static void bits_are_the_same_everywhere(void **state)
{
    (void)state;
    bool same = true;
    for (size_t t = 0; t < n_tables; t++) {
        for (size_t i = 0; i < N_BOUNDS; i++) {
            uint64_t digest = sweep(tables[t], &bounds[i], false);
            if (digest == bounds[i].digest)
                continue;
            print_error("%s %s: digest %#llx, not %#llx\n", tables[t]->name, bounds[i].name,
                        (unsigned long long)digest, (unsigned long long)bounds[i].digest);
            same = false;
        }
    }
    assert_true(same);
}

/* The values of a report about the tanh form in the place of the exact one, and the bound it names.
 */
static void gelu_is_the_exact_one(void **state)
{
    (void)state;
    for (size_t t = 0; t < n_tables; t++) {
        assert_true(fabs(at(tables[t], "gelu", -2.7f) - -0.00936082926820982) < 1e-8);
        assert_true(fabs(at(tables[t], "gelu_tanh", -2.7f) - -0.008887594639467884) < 1e-8);
        for (int i = -10000; i <= 10000; i += 16) {
            float x[16], y[16];
            for (int l = 0; l < 16; l++)
                x[l] = (float)((i + l) * 1e-3);
            v16_function(tables[t], "gelu")(x, x, x, x, y);
            for (int l = 0; l < 16; l++)
                assert_true(fabs(y[l] - gelu(x[l])) <= 1e-6);
        }
    }
}

static void expect(const struct v16_table *table, const char *name, float x, float want)
{
    float got = at(table, name, x);
    if (!float_same(got, want))
        fail_msg("%s %s(%a) = %a, not %a", table->name, name, x, got, want);
}

static void special_values(void **state)
{
    (void)state;
    for (size_t t = 0; t < n_tables; t++) {
        const struct v16_table *v = tables[t];
        for (size_t i = 0; i < N_BOUNDS; i++) {
            expect(v, bounds[i].name, NAN, NAN);
            expect(v, bounds[i].name, float_of(0xffffffff), NAN);
            expect(v, bounds[i].name, float_of(0x7f800001), NAN);
        }
        expect(v, "exp", 0, 1);
        expect(v, "exp", -0.0f, 1);
        expect(v, "exp", INFINITY, INFINITY);
        expect(v, "exp", -INFINITY, 0);
        expect(v, "exp", 0x1.62e430p+6f, INFINITY);
        expect(v, "exp", -0x1.9fe368p+6f, 0x1p-149f); /* the last that is not 0 */
        expect(v, "exp", -0x1.9fe36ap+6f, 0);
        expect(v, "exp_neg", 0, 1);
        expect(v, "exp_neg", -0.0f, 1);
        expect(v, "exp_neg", -INFINITY, 0);
        expect(v, "exp_neg", -FLT_MAX, 0);
        expect(v, "exp_neg", -87.5f, 0);
        expect(v, "log", 1, 0);
        expect(v, "log", 2, 0x1.62e43p-1f);
        expect(v, "log", 0x1p-126f, -0x1.5d58ap+6f);
        expect(v, "log1p", 0, 0);
        expect(v, "log1p", 1, 0x1.62e43p-1f);
        expect(v, "log1p", 0x1p-149f, 0x1p-149f);
        expect(v, "softplus", 0, 0x1.62e43p-1f);
        expect(v, "softplus", 200, 200);
        expect(v, "softplus", -200, 0);
        expect(v, "softplus", FLT_MAX, FLT_MAX);
        expect(v, "softplus", INFINITY, INFINITY);
        expect(v, "softplus", -INFINITY, 0);
        expect(v, "erf", INFINITY, 1);
        expect(v, "erf", -INFINITY, -1);
        expect(v, "erf", -0.0f, -0.0f);
        expect(v, "tanh", INFINITY, 1);
        expect(v, "tanh", -INFINITY, -1);
        expect(v, "tanh", -0.0f, -0.0f);
        expect(v, "tanh", 0x1p-149f, 0x1p-149f);
        expect(v, "sigmoid", 0, 0.5f);
        expect(v, "sigmoid", INFINITY, 1);
        expect(v, "sigmoid", -INFINITY, 0);
        expect(v, "relu", -0.0f, -0.0f);
        expect(v, "relu", -INFINITY, 0);
        static const char *const gated[] = {"gelu", "gelu_tanh", "silu"};
        for (int i = 0; i < 3; i++) {
            expect(v, gated[i], INFINITY, INFINITY);
            expect(v, gated[i], FLT_MAX, FLT_MAX);
            expect(v, gated[i], -INFINITY, 0);
            expect(v, gated[i], -FLT_MAX, 0);
            expect(v, gated[i], 0, 0);
            expect(v, gated[i], -0.0f, -0.0f);
        }
    }
}

/* exp_neg is exp wherever exp is not denormal. */
static void exp_neg_is_exp(void **state)
{
    (void)state;
    for (size_t t = 0; t < n_tables; t++) {
        for (float x = -87.3f; x < 0; x += 0.00713f)
            assert_true(at(tables[t], "exp", x) == at(tables[t], "exp_neg", x));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_are_bounded),    cmocka_unit_test(bits_are_the_same_everywhere),
        cmocka_unit_test(gelu_is_the_exact_one), cmocka_unit_test(special_values),
        cmocka_unit_test(exp_neg_is_exp),
    };
    return cmocka_run_group_tests(tests, find_tables, NULL);
}
