/* pool/v16.h: every operation of every instruction set against the scalar one, bit for bit; what
 * the scalar one means against plain C; partial loads and stores at guard pages; the 65,536 halves
 * of each type. */
#include "tests/floats.h"
#include "tests/v16_table.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#define SEED UINT64_C(0x76313601)

static const struct v16_table *tables[4];
static size_t n_tables;

static int find_tables(void **state)
{
    (void)state;
    n_tables = v16_tables(tables);
    return 0;
}

static const struct v16_case *operation(const struct v16_table *table, const char *name)
{
    const struct v16_case *o = table->operations;
    while (o->name && strcmp(o->name, name) != 0)
        o++;
    assert_non_null(o->name);
    return o;
}

static void compare_case(const struct v16_table *table, size_t index)
{
    const struct v16_case *want = &tables[0]->operations[index], *got = &table->operations[index];
    assert_string_equal(want->name, got->name);
    bool first_only = strcmp(got->name, "sum") == 0 || strcmp(got->name, "hmax") == 0;
    uint64_t state = SEED + index;
    for (int round = 0; round < 20000; round++) {
        float x[4][16], y0[16], y1[16];
        for (int i = 0; i < 64; i++)
            x[i / 16][i % 16] = round % 2 ? random_special(&state) : random_float(&state, 8);
        want->run(x[0], x[1], x[2], x[3], y0);
        got->run(x[0], x[1], x[2], x[3], y1);
        for (int l = 0; l < (first_only ? 1 : 16); l++) {
            if (!float_same(y0[l], y1[l]))
                fail_msg("%s %s, seed %llu, round %d, lane %d: (%a, %a, %a, %a) gives %a, not %a",
                         table->name, got->name, (unsigned long long)SEED, round, l, x[0][l],
                         x[1][l], x[2][l], x[3][l], y1[l], y0[l]);
        }
    }
}

static void all_sets_equal_scalar(void **state)
{
    (void)state;
    for (size_t t = 1; t < n_tables; t++) {
        for (size_t i = 0; tables[t]->operations[i].name; i++)
            compare_case(tables[t], i);
    }
}

/* What v16.h says in words, on values where the near misses differ. */
static void meaning(void **state)
{
    (void)state;
    const float nan = NAN, tiny = 0x1p-24f;
    for (size_t t = 0; t < n_tables; t++) {
        const struct v16_table *v = tables[t];
        float a[16] = {1, nan, 0.0f, -0.0f, 1 + tiny * 2, 3}, y[16];
        float b[16] = {nan, 1, -0.0f, 0.0f, 1 + tiny * 2, 2};
        float c[16] = {0, 0, 0, 0, -(1 + tiny * 4), 1}, d[16] = {5, 5, 5, 5, 5, 5};
        operation(v, "max")->run(a, b, c, d, y);
        assert_true(isnan(y[0]) && y[1] == 1 && signbit(y[2]) && !signbit(y[3]) && y[5] == 3);
        operation(v, "min")->run(a, b, c, d, y);
        assert_true(isnan(y[0]) && y[1] == 1 && signbit(y[2]) && !signbit(y[3]) && y[5] == 2);
        operation(v, "fma")->run(a, b, c, d, y);
        assert_true(y[4] == 0x1p-46f && y[5] == 7); /* a product that is rounded first gives 0 */
        operation(v, "fnma")->run(a, b, c, d, y);
        assert_true(y[5] == -5);
        operation(v, "sel_lt")->run(a, b, c, d, y);
        assert_true(y[0] == 5 && y[1] == 5 && y[2] == 5 && y[4] == 5 && y[5] == 5);
        operation(v, "sel_le")->run(a, b, c, d, y);
        assert_true(y[0] == 5 && y[1] == 5 && y[2] == 0 && y[4] == c[4] && y[5] == 5);
        operation(v, "sel_nan")->run(a, b, c, d, y);
        assert_true(y[0] == 5 && y[1] == 0 && y[5] == 5);
        operation(v, "swap_pairs")->run(b, b, b, b, y);
        assert_true(y[0] == 1 && isnan(y[1]) && y[4] == 2 && y[5] == b[4] && y[14] == 0);
    }
}

/* Lane j takes part as 2^24 or as 1, so that each association gives another sum. */
static void sum_is_the_tree(void **state)
{
    (void)state;
    uint64_t random = SEED;
    for (int round = 0; round < 1000; round++) {
        float x[16], tree[16], y[16];
        for (int l = 0; l < 16; l++)
            x[l] = tree[l] = random_float(&random, l % 3 ? 1.0f : 0x1p12f);
        for (int half = 8; half; half /= 2) {
            for (int l = 0; l < half; l++)
                tree[l] += tree[l + half];
        }
        for (size_t t = 0; t < n_tables; t++) {
            operation(tables[t], "sum")->run(x, x, x, x, y);
            assert_true(y[0] == tree[0]);
        }
    }
}

static void partial_moves_stay_inside(void **state)
{
    (void)state;
    for (size_t t = 0; t < n_tables; t++) {
        for (size_t n = 0; n <= 16; n++) {
            size_t bytes = n * sizeof(float), half_bytes = n * sizeof(uint16_t);
            float *from = guard_alloc(bytes), *to = guard_alloc(bytes), y[16];
            uint16_t *halves = guard_alloc(half_bytes);
            float margin[24];
            for (size_t i = 0; i < n; i++) {
                from[i] = (float)i + 1;
                halves[i] = (uint16_t)(0x3c00 + i);
            }
            tables[t]->copy_n(from, to, n);
            if (n)
                assert_memory_equal(from, to, bytes);
            tables[t]->load_n(from, y, n);
            for (size_t i = 0; i < 16; i++)
                assert_true(float_bits(y[i]) == (i < n ? float_bits(from[i]) : 0));
            tables[t]->load_f16(halves, y, n);
            for (size_t i = 0; i < 16; i++)
                assert_true(y[i] == (i < n ? 1 + (float)i * 0x1p-10f : 0));
            tables[t]->load_bf16(halves, y, n);
            for (size_t i = 0; i < 16; i++)
                assert_true(float_bits(y[i]) == (i < n ? (uint32_t)halves[i] << 16 : 0));
            memset(margin, 0x5a, sizeof margin);
            tables[t]->copy_n(from, margin + 4, n);
            for (size_t i = 0; i < 24; i++) {
                if (i < 4 || i >= 4 + n)
                    assert_int_equal(float_bits(margin[i]), 0x5a5a5a5a);
            }
            guard_free(from, bytes);
            guard_free(to, bytes);
            guard_free(halves, half_bytes);
        }
    }
}

/* The value of a half by its definition. */
static float half_value(uint16_t h)
{
    int exponent = h >> 10 & 31, m = h & 1023;
    double x = exponent == 0    ? ldexp(m, -24)
               : exponent == 31 ? (m ? NAN : INFINITY)
                                : ldexp(1024 + m, exponent - 25);
    return (float)(h & 0x8000 ? -x : x);
}

/* Makes the thread flush denormals, as a host may have it; gives back what to restore. */
static uint64_t flush_denormals(void)
{
#if defined(__x86_64__)
    uint32_t old = _mm_getcsr();
    _mm_setcsr(old | 0x8040);
    return old;
#elif defined(__aarch64__)
    uint64_t old;
    __asm__ volatile("mrs %0, fpcr" : "=r"(old));
    __asm__ volatile("msr fpcr, %0" : : "r"(old | UINT64_C(1) << 24 | UINT64_C(1) << 19));
    return old;
#else
    return 0;
#endif
}

static void restore_denormals(uint64_t old)
{
#if defined(__x86_64__)
    _mm_setcsr((uint32_t)old);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(old));
#else
    (void)old;
#endif
}

static void check_halves(const struct v16_table *table, bool flush)
{
    static uint16_t halves[65536];
    static float f16[65536], bf16[65536];
    for (uint32_t i = 0; i < 65536; i++)
        halves[i] = (uint16_t)i;
    uint64_t old = flush ? flush_denormals() : 0;
    for (uint32_t i = 0; i < 65536; i += 16) {
        table->load_f16(halves + i, f16 + i, 16);
        table->load_bf16(halves + i, bf16 + i, 16);
    }
    if (flush)
        restore_denormals(old);
    for (uint32_t i = 0; i < 65536; i++) {
        float want = half_value((uint16_t)i);
        if (!float_same(f16[i], want) || float_bits(f16[i]) >> 31 != i >> 15)
            fail_msg("%s f16 %#x, flush %d: %a, not %a", table->name, i, flush, f16[i], want);
        assert_int_equal(float_bits(bf16[i]), i << 16);
    }
}

static void halves_are_exact(void **state)
{
    (void)state;
    for (size_t t = 0; t < n_tables; t++) {
        check_halves(tables[t], false);
        check_halves(tables[t], true);
    }
}

static void halves_of_the_report(void **state)
{
    (void)state;
    static const uint16_t f16[16] = {0x0001, 0x03ff, 0x0400, 0x8001,
                                     0x7bff, 0x7c00, 0xfc00, 0x7e01};
    static const float f16_values[7] = {5.960464477539063e-08f,
                                        6.097555160522461e-05f,
                                        6.103515625e-05f,
                                        -5.960464477539063e-08f,
                                        65504,
                                        INFINITY,
                                        -INFINITY};
    static const uint16_t bf16[16] = {0x0001, 0x007f, 0x0080, 0x7f80, 0xff7f};
    static const float bf16_values[5] = {9.183549615799121e-41f, 1.1663108012064884e-38f,
                                         1.1754943508222875e-38f, INFINITY,
                                         -3.3895313892515355e+38f};
    for (size_t t = 0; t < n_tables; t++) {
        float y[16];
        tables[t]->load_f16(f16, y, 16);
        assert_memory_equal(y, f16_values, sizeof f16_values);
        assert_true(isnan(y[7]));
        tables[t]->load_bf16(bf16, y, 16);
        assert_memory_equal(y, bf16_values, sizeof bf16_values);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_sets_equal_scalar), cmocka_unit_test(meaning),
        cmocka_unit_test(sum_is_the_tree),       cmocka_unit_test(partial_moves_stay_inside),
        cmocka_unit_test(halves_are_exact),      cmocka_unit_test(halves_of_the_report),
    };
    return cmocka_run_group_tests(tests, find_tables, NULL);
}
