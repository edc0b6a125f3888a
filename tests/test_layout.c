/* The layout is a pure function: offsets worked by hand, and properties over random live ranges. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "plan/layout.h"
#include "tests/toy.h"

#include <stdio.h>
#include <stdlib.h>

static uint64_t lay(struct rp_layout_record *r, size_t n)
{
    int32_t scratch[256];
    uint64_t bytes;
    assert_true(2 * n <= 256);
    assert_true(rp_layout(r, n, scratch, &bytes));
    return bytes;
}

/* A chain of norms: each reads the one before it. */
static void chain_needs_two_buffers(void **state)
{
    (void)state;
    struct rp_layout_record r[20];
    for (size_t n = 2; n <= 20; n++) {
        for (size_t i = 0; i < n; i++)
            r[i] =
                (struct rp_layout_record){.first = i, .last = i + 1, .bytes = 1000, .alias_of = -1};
        assert_int_equal(lay(r, n), 2048);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(r[i].offset, i % 2 ? 1024 : 0);
    }
}

static void offsets_by_hand(void **state)
{
    (void)state;
    struct rp_layout_record r[] = {
        {.first = 0, .last = 2, .bytes = 100, .alias_of = -1}, /* 128 */
        {.first = 1, .last = 3, .bytes = 300, .alias_of = -1}, /* 320, placed first: 0 */
        {.first = 2, .last = 4, .bytes = 64, .alias_of = -1},  /* 64 */
        {.first = 4, .last = 5, .bytes = 200, .alias_of = -1}, /* 256: over 1, which is dead */
        {.first = 5, .last = 6, .bytes = 0, .alias_of = -1},
    };
    assert_int_equal(lay(r, 5), 512);
    assert_int_equal(r[1].offset, 0);
    assert_int_equal(r[3].offset, 0);
    assert_int_equal(r[0].offset, 320);
    assert_int_equal(r[2].offset, 448);
    assert_int_equal(r[4].offset, 0);
}

static void alias_takes_over_memory(void **state)
{
    (void)state;
    struct rp_layout_record r[] = {
        {.first = 0, .last = 2, .bytes = 64, .alias_of = -1},
        {.first = 1, .last = 2, .bytes = 128, .alias_of = -1},
        {.first = 2, .last = 5, .bytes = 64, .alias_of = 0},
        {.first = 4, .last = 5, .bytes = 128, .alias_of = -1},
    };
    lay(r, 4);
    assert_int_equal(r[2].offset, r[0].offset);
    assert_int_not_equal(r[3].offset, r[2].offset);
}

static void too_large_is_refused(void **state)
{
    (void)state;
    struct rp_layout_record r[] = {
        {.first = 0, .last = 1, .bytes = (uint64_t)1 << 62, .alias_of = -1},
        {.first = 0, .last = 1, .bytes = (uint64_t)1 << 62, .alias_of = -1},
    };
    int32_t scratch[4];
    uint64_t bytes;
    assert_false(rp_layout(r, 2, scratch, &bytes));
}

/* Values alive together never overlap; offsets are aligned; the arena is no larger than all of them
 * side by side. */
static void random_ranges_never_overlap(void **state)
{
    (void)state;
    uint64_t seed = 20261129;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int round = 0; round < 2000; round++) {
        struct rp_layout_record r[60];
        const size_t n = 1 + toy_random(&seed) % 60;
        uint64_t sum = 0;
        for (size_t i = 0; i < n; i++) {
            r[i].first = toy_random(&seed) % 40;
            r[i].last = r[i].first + toy_random(&seed) % 12;
            r[i].bytes = toy_random(&seed) % 5000;
            r[i].alias_of = -1;
            sum += (r[i].bytes + 63) / 64 * 64;
        }
        const uint64_t bytes = lay(r, n);
        assert_true(bytes <= sum);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(r[i].offset % 64, 0);
            assert_true(r[i].offset + r[i].bytes <= bytes);
            for (size_t j = 0; j < i; j++) {
                const bool together = r[i].first <= r[j].last && r[j].first <= r[i].last;
                const bool overlap = r[i].offset < r[j].offset + r[j].bytes &&
                                     r[j].offset < r[i].offset + r[i].bytes;
                assert_false(together && overlap);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chain_needs_two_buffers),     cmocka_unit_test(offsets_by_hand),
        cmocka_unit_test(alias_takes_over_memory),     cmocka_unit_test(too_large_is_refused),
        cmocka_unit_test(random_ranges_never_overlap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
