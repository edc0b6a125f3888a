/* The layout is a pure function: offsets worked by hand, and properties over random live ranges. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "plan/layout.h"
#include "plan/plan.h"
#include "tests/toy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* ---- of plans -----------------------------------------------------------------------------------
 */

/* A graph of random ops over tokens, sequences and markers; some values are outputs. */
struct random_graph {
    rp_graph *graph;
    rp_weights *weights;
    struct {
        rp_rows rows;
        size_t width;
    } shapes[40];
    size_t n;
    uint64_t seed;
};

static const float numbers[64 * 64];

static rp_weight add_weight(struct random_graph *g, size_t rows, size_t cols)
{
    const rp_weight_part part = {.rows = rows, .dtype = RP_DTYPE_F32, .data = numbers};
    rp_weight w;
    assert_int_equal(rp_weights_add(g->weights, "w", cols, 1, &part, &w, NULL), RP_OK);
    return w;
}

static size_t pick(struct random_graph *g, size_t n)
{
    return (size_t)(toy_random(&g->seed) % n);
}

/* A value of the same rows and width as x, which may be x. */
static rp_value like(struct random_graph *g, size_t x)
{
    const size_t start = pick(g, g->n);
    for (size_t i = 0; i < g->n; i++) {
        const size_t v = (start + i) % g->n;
        if (g->shapes[v].rows == g->shapes[x].rows && g->shapes[v].width == g->shapes[x].width)
            return (rp_value)v;
    }
    return (rp_value)x;
}

static void add_op(struct random_graph *g)
{
    size_t x = pick(g, g->n);
    rp_rows rows = g->shapes[x].rows;
    size_t width = g->shapes[x].width;
    const rp_value v = (rp_value)x;
    const bool tokens = rows == RP_ROWS_TOKENS;
    switch (pick(g, tokens ? 8 : 5)) {
    case 0: rp_graph_layer_norm(g->graph, "norm", v, add_weight(g, 1, width), -1, 1); break;
    case 1: rp_graph_activation(g->graph, "act", v, RP_ACT_TANH); break;
    case 2: rp_graph_add(g->graph, "add", v, like(g, x)); break;
    case 3: {
        const size_t n = 1 + pick(g, 24);
        rp_graph_gemm(g->graph, "gemm", v, add_weight(g, n, width), -1, RP_ACT_RELU, -1);
        width = n;
        break;
    }
    case 4:
        rp_graph_gemm(g->graph, "residual", v, add_weight(g, width, width), -1, RP_ACT_NONE,
                      like(g, x));
        break;
    case 5:
        rp_graph_pool(g->graph, "pool", v, RP_POOL_MEAN);
        rows = RP_ROWS_SEQS;
        break;
    case 6:
        rp_graph_gather_markers(g->graph, "markers", v);
        rows = RP_ROWS_MARKERS;
        break;
    default: rp_graph_add_types(g->graph, "types", v, add_weight(g, 3, width)); break;
    }
    g->shapes[g->n].rows = rows;
    g->shapes[g->n++].width = width;
}

static rp_plan *random_plan(uint64_t seed, bool no_fuse)
{
    struct random_graph g = {.seed = seed};
    assert_int_equal(rp_graph_create(&g.graph, NULL), RP_OK);
    assert_int_equal(rp_weights_create(&g.weights, NULL), RP_OK);
    const rp_embed_table table = {add_weight(&g, 10, 16), RP_INDEX_IDS, 0};
    rp_graph_embed(g.graph, "embed", 1, &table);
    g.shapes[g.n++].width = 16;
    for (size_t n = 5 + pick(&g, 30); g.n < n;)
        add_op(&g);
    for (size_t i = 0; i < 3; i++) {
        const size_t v = i ? pick(&g, g.n) : g.n - 1;
        rp_graph_output(g.graph,
                        i == 0   ? "a"
                        : i == 1 ? "b"
                                 : "c",
                        (rp_value)v, g.shapes[v].rows, g.shapes[v].width);
    }
    const rp_bucket bucket = {37, 5, 9};
    rp_plan_options options;
    rp_plan *plan;
    rp_error err;
    rp_plan_options_init(&options);
    options.no_fuse = no_fuse;
    if (rp_plan_compile(g.graph, g.weights, &bucket, &options, &plan, &err) != RP_OK)
        fail_msg("seed %llu: %s", (unsigned long long)seed, err.message);
    rp_graph_destroy(g.graph);
    rp_weights_destroy(g.weights);
    return plan;
}

/* When a slot's memory is in use, by the plan's steps alone: from the step that makes it to the
 * last that reads it, or past the end. */
static void range_of(const rp_plan *plan, int32_t slot, size_t *first, size_t *last)
{
    for (size_t s = 0; s < plan->n_steps; s++) {
        if (plan->steps[s].out == slot)
            *first = *last = s;
        for (size_t k = 0; k < plan->steps[s].n_in; k++)
            if (plan->steps[s].in[k] == slot)
                *last = s;
    }
    for (size_t i = 0; i < plan->n_outputs; i++)
        if (plan->outputs[i].slot == slot)
            *last = plan->n_steps;
}

/* Slots of the arena that are in use at one time lie apart, each within the arena; the one
 * exception is a step that works in place, on an operand that it reads as the last one. */
static size_t check_apart(const rp_plan *plan, uint64_t seed)
{
    size_t in_place = 0;
    for (size_t i = 0; i < plan->n_slots; i++) {
        const struct rp_slot *a = &plan->slots[i];
        const uint64_t a_bytes = rp_bucket_rows(&plan->bucket, a->rows) * a->width * 4;
        size_t a0 = 0, a1 = 0;
        range_of(plan, (int32_t)i, &a0, &a1);
        assert_int_equal(a->offset[RP_BY_STEP] % 64, 0);
        assert_true(a->offset[RP_BY_STEP] + a_bytes <= plan->arena_bytes);
        for (size_t j = 0; j < i; j++) {
            const struct rp_slot *b = &plan->slots[j];
            const uint64_t b_bytes = rp_bucket_rows(&plan->bucket, b->rows) * b->width * 4;
            size_t b0 = 0, b1 = 0;
            range_of(plan, (int32_t)j, &b0, &b1);
            const bool overlap = a->offset[RP_BY_STEP] < b->offset[RP_BY_STEP] + b_bytes &&
                                 b->offset[RP_BY_STEP] < a->offset[RP_BY_STEP] + a_bytes;
            if (a0 > b1 || b0 > a1 || !overlap)
                continue;
            if (a0 != b1 || a->offset[RP_BY_STEP] != b->offset[RP_BY_STEP])
                fail_msg("seed %llu: slots %zu and %zu overlap", (unsigned long long)seed, i, j);
            in_place++;
        }
    }
    return in_place;
}

static void slots_of_random_plans_never_overlap(void **state)
{
    (void)state;
    size_t in_place = 0;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        rp_plan *plan = random_plan(seed, seed % 2);
        in_place += check_apart(plan, seed);
        rp_plan_destroy(plan);
    }
    assert_true(in_place > 100); /* the exception does occur */
}

/* Norms after each other take two buffers, whatever their number. */
static void a_chain_of_norms_takes_two_buffers(void **state)
{
    (void)state;
    for (size_t n = 1; n <= 12; n++) {
        struct random_graph g = {.seed = 1};
        assert_int_equal(rp_graph_create(&g.graph, NULL), RP_OK);
        assert_int_equal(rp_weights_create(&g.weights, NULL), RP_OK);
        const rp_embed_table table = {add_weight(&g, 10, 16), RP_INDEX_IDS, 0};
        rp_value x = rp_graph_embed(g.graph, "embed", 1, &table);
        for (size_t i = 0; i < n; i++)
            x = rp_graph_layer_norm(g.graph, "norm", x, add_weight(&g, 1, 16), -1, 1);
        rp_graph_output(g.graph, "y", x, RP_ROWS_TOKENS, 16);
        const rp_bucket bucket = {100, 2, 0};
        rp_plan_sizes sizes;
        assert_int_equal(rp_plan_measure(g.graph, g.weights, &bucket, NULL, &sizes, NULL), RP_OK);
        assert_int_equal(sizes.arena_bytes, 2 * 100 * 16 * 4);
        rp_graph_destroy(g.graph);
        rp_weights_destroy(g.weights);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chain_needs_two_buffers),
        cmocka_unit_test(offsets_by_hand),
        cmocka_unit_test(alias_takes_over_memory),
        cmocka_unit_test(too_large_is_refused),
        cmocka_unit_test(random_ranges_never_overlap),
        cmocka_unit_test(slots_of_random_plans_never_overlap),
        cmocka_unit_test(a_chain_of_norms_takes_two_buffers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
