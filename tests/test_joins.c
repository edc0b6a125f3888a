/* Steps that run together (plan/joins.c): the same bits as apart, in FP32 and INT8, on every
 * instruction set, for any number of threads and any batch; and which steps do, in which order they
 * are shown, and what they leave out of memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "plan/plan.h"
#include "tests/toy.h"

#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

static const int threads[] = {1, 2, 3, 7};
static rp_pool *pools[COUNT(threads)];

static int make_pools(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(threads); i++)
        pools[i] = toy_pool(threads[i]);
    return 0;
}

static int free_pools(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(threads); i++)
        rp_pool_destroy(pools[i]);
    return 0;
}

static void quantize(const struct toy *toy)
{
    rp_error err = {RP_OK, ""};
    if (rp_weights_quantize(toy->weights, toy->graph, NULL, &err) != RP_OK)
        fail_msg("%s", err.message);
}

/* ---- the same bits ------------------------------------------------------------------------------
 */

static uint64_t hash_run(const struct toy *toy, rp_pool *pool, uint32_t isa, bool no_fuse,
                         const rp_batch *batch)
{
    rp_session *s = toy_session(toy, pool, isa, no_fuse);
    toy_run_ok(s, batch);
    const uint64_t h = toy_hash_outputs(s);
    rp_session_destroy(s);
    return h;
}

static void expect_one_result(const struct toy *toy, const rp_batch *batch)
{
    static const uint32_t levels[] = {RP_ISA_SCALAR, RP_ISA_AVX2, RP_ISA_AVX2 | RP_ISA_AVX512,
                                      RP_ISA_NEON, RP_ISA_DEFAULT};
    const uint64_t want = hash_run(toy, NULL, RP_ISA_SCALAR, true, batch);
    for (size_t i = 0; i < COUNT(levels); i++)
        if (levels[i] == RP_ISA_DEFAULT || (levels[i] & rp_isa_detected()) == levels[i])
            assert_int_equal(hash_run(toy, NULL, levels[i], false, batch), want);
    for (size_t i = 0; i < COUNT(threads); i++) {
        assert_int_equal(hash_run(toy, pools[i], RP_ISA_DEFAULT, false, batch), want);
        assert_int_equal(hash_run(toy, pools[i], RP_ISA_DEFAULT, true, batch), want);
    }
}

/* Widths that join and widths that do not, norms before and after, so that a norm's rows are read
 * by its rounding alone or by others too; few rows and many. */
static void same_bits_as_apart(void **state)
{
    (void)state;
    static const size_t head_dims[] = {16, 32, 48, 20}, intermediates[] = {16, 96, 176, 50, 33};
    uint64_t seed = 1357;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int round = 0; round < 24; round++) {
        struct toy_options o;
        struct toy toy;
        struct toy_batch b;
        size_t lengths[12];
        toy_options_init(&o);
        o.seed = toy_random(&seed);
        o.layers = 1 + toy_random(&seed) % 3;
        o.heads = 1 + toy_random(&seed) % 3;
        o.head_dim = head_dims[toy_random(&seed) % COUNT(head_dims)];
        o.intermediate = intermediates[toy_random(&seed) % COUNT(intermediates)];
        o.activation = (rp_activation)(toy_random(&seed) % 7);
        o.pre_norm = round / 2 % 2;
        o.gated = round % 4 != 3;
        toy_make(&toy, &o);
        if (round % 2)
            quantize(&toy);
        const size_t n = 1 + toy_random(&seed) % 12;
        for (size_t i = 0; i < n; i++)
            lengths[i] = toy_random(&seed) % (round % 3 ? 60 : 5);
        toy_batch_make(&b, lengths, n, toy.vocabulary, 3);
        expect_one_result(&toy, &b.batch);
        toy_batch_free(&b);
        toy_free(&toy);
    }
}

static rp_weight add_weight(struct toy *toy, const char *name, size_t rows, size_t cols,
                            const float *data)
{
    const rp_weight_part part = {.rows = rows, .dtype = RP_DTYPE_F32, .data = data};
    rp_weight w;
    assert_int_equal(rp_weights_add(toy->weights, name, cols, 1, &part, &w, NULL), RP_OK);
    return w;
}

/* One head is turned, and a rest that is no whole head goes with it. */
static void columns_beside_the_heads(void **state)
{
    (void)state;
    enum { VOCABULARY = 10, IN = 24, HEAD = 64, OUT = 80 };
    static float word[VOCABULARY * IN], w[OUT * IN];
    const size_t lengths[] = {30, 1, 40};
    struct toy toy = {0};
    struct toy_batch b;
    uint64_t seed = 5;
    for (size_t i = 0; i < COUNT(word); i++)
        word[i] = toy_uniform(&seed);
    for (size_t i = 0; i < COUNT(w); i++)
        w[i] = toy_uniform(&seed);
    assert_int_equal(rp_graph_create(&toy.graph, NULL), RP_OK);
    assert_int_equal(rp_weights_create(&toy.weights, NULL), RP_OK);
    const rp_embed_table table = {add_weight(&toy, "word", VOCABULARY, IN, word), RP_INDEX_IDS, 0};
    const rp_rope rope = {.n_heads = 1, .head_dim = HEAD, .theta = 1e4};
    rp_value x = rp_graph_embed(toy.graph, "embed", 1, &table);
    x = rp_graph_gemm(toy.graph, "qk", x, add_weight(&toy, "w", OUT, IN, w), -1, RP_ACT_NONE, -1);
    x = rp_graph_rope(toy.graph, "rope", x, &rope);
    rp_graph_output(toy.graph, "x", x, RP_ROWS_TOKENS, OUT);
    toy_batch_make(&b, lengths, COUNT(lengths), VOCABULARY, 1);
    rp_session *apart = toy_session(&toy, NULL, RP_ISA_DEFAULT, true);
    rp_view want, got;
    toy_run_ok(apart, &b.batch);
    assert_int_equal(rp_session_output(apart, "x", &want, NULL), RP_OK);
    for (size_t i = 0; i < COUNT(threads); i++) {
        rp_session *s = toy_session(&toy, pools[i], RP_ISA_DEFAULT, false);
        toy_run_ok(s, &b.batch);
        assert_int_equal(rp_session_output(s, "x", &got, NULL), RP_OK);
        assert_int_equal(got.rows, 71);
        assert_memory_equal(got.data, want.data, 71 * OUT * sizeof *got.data);
        rp_session_destroy(s);
    }
    rp_session_destroy(apart);
    toy_batch_free(&b);
    rp_graph_destroy(toy.graph);
    rp_weights_destroy(toy.weights);
}

/* ---- for whoever looks --------------------------------------------------------------------------
 */

/* A ModernBERT-like toy whose rope, gate and norms join. */
static void make_joining(struct toy *toy, bool int8)
{
    struct toy_options o;
    toy_options_init(&o);
    o.gated = true;
    o.pre_norm = true;
    o.intermediate = 96;
    toy_make(toy, &o);
    if (int8)
        quantize(toy);
}

/* What an observer saw of the steps whose names end in `suffix`. */
struct looking {
    const char *suffix;
    size_t seen;
    uint64_t hash;
};

static bool want_suffix(void *context, const rp_step_info *step)
{
    const struct looking *l = context;
    const size_t n = strlen(step->name), m = strlen(l->suffix);
    return n >= m && strcmp(step->name + n - m, l->suffix) == 0;
}

static rp_status look(void *context, const rp_step_info *step, const rp_view *view)
{
    struct looking *l = context;
    const unsigned char *bytes = (const unsigned char *)view->data;
    (void)step;
    l->seen++;
    for (size_t i = 0; i < view->rows * view->width * sizeof(float); i++)
        l->hash = (l->hash ^ bytes[i]) * UINT64_C(1099511628211);
    return RP_OK;
}

static struct looking look_at(const struct toy *toy, const char *suffix, bool no_fuse,
                              const rp_batch *batch, uint64_t outputs)
{
    struct looking seen = {.suffix = suffix, .hash = 1};
    const rp_observer observer = {
        .struct_size = sizeof observer, .want = want_suffix, .show = look, .context = &seen};
    rp_session *s = toy_session(toy, pools[1], RP_ISA_DEFAULT, no_fuse);
    rp_session_observe(s, &observer);
    toy_run_ok(s, batch);
    assert_int_equal(toy_hash_outputs(s), outputs);
    rp_session_destroy(s);
    return seen;
}

/* The first of two, the second, all steps, and one that has nothing to do with it: each is seen as
 * it is without fusion, and the outputs stay. */
static void shown_apart(void **state)
{
    (void)state;
    static const char *const suffixes[] = {"attn.qkv", "attn.rope", "ffn.up", "ffn.gate",
                                           "norm",     "core",      ""};
    static const size_t lengths[] = {17, 1, 30, 2};
    for (int int8 = 0; int8 < 2; int8++) {
        struct toy toy;
        struct toy_batch b;
        make_joining(&toy, int8);
        toy_batch_make(&b, lengths, COUNT(lengths), toy.vocabulary, 3);
        const uint64_t outputs = hash_run(&toy, NULL, RP_ISA_DEFAULT, false, &b.batch);
        for (size_t i = 0; i < COUNT(suffixes); i++) {
            const struct looking one = look_at(&toy, suffixes[i], false, &b.batch, outputs);
            const struct looking other = look_at(&toy, suffixes[i], true, &b.batch, outputs);
            assert_true(one.seen > 0);
            if (*suffixes[i] == 0)
                continue; /* residuals have steps of their own without fusion */
            assert_int_equal(one.seen, other.seen);
            assert_int_equal(one.hash, other.hash);
        }
        if (int8) {
            const struct looking one = look_at(&toy, ".q8", false, &b.batch, outputs);
            assert_int_equal(one.hash, look_at(&toy, ".q8", true, &b.batch, outputs).hash);
            assert_int_equal(one.seen, 8);
        }
        toy_batch_free(&b);
        toy_free(&toy);
    }
}

/* ---- which --------------------------------------------------------------------------------------
 */

static size_t count_joins(const rp_plan *plan, enum rp_op op)
{
    size_t n = 0;
    for (size_t s = 0; s < plan->n_steps; s++)
        n += plan->steps[s].joins && plan->steps[s].op == op;
    return n;
}

static void expect_joins(const struct toy *toy, bool no_fuse, size_t norms, size_t gates,
                         size_t ropes)
{
    const rp_bucket bucket = {64, 4, 4};
    rp_plan_options o;
    rp_plan *plan;
    static char text[1 << 16];
    size_t said = 0;
    rp_plan_options_init(&o);
    o.no_fuse = no_fuse;
    assert_int_equal(rp_plan_compile(toy->graph, toy->weights, &bucket, &o, &plan, NULL), RP_OK);
    assert_int_equal(count_joins(plan, RP_OP_QUANTIZE), norms);
    assert_int_equal(count_joins(plan, RP_OP_GLU), gates);
    assert_int_equal(count_joins(plan, RP_OP_ROPE), ropes);
    assert_true(rp_plan_text(plan, text, sizeof text) < sizeof text);
    for (const char *p = text; (p = strstr(p, " joined ")) != NULL; p++)
        said++;
    assert_int_equal(said, norms + gates + ropes);
    rp_plan_destroy(plan);
}

static void which_steps_join(void **state)
{
    (void)state;
    struct toy toy;
    make_joining(&toy, false);
    expect_joins(&toy, false, 0, 2, 2);
    expect_joins(&toy, true, 0, 0, 0);
    quantize(&toy);
    expect_joins(&toy, false, 4, 2, 2);
    expect_joins(&toy, true, 0, 0, 0);
    toy_free(&toy);

    struct toy_options o;
    toy_options_init(&o);
    o.gated = true;
    o.head_dim = 20; /* heads and halves that end inside of a panel */
    o.intermediate = 50;
    toy_make(&toy, &o);
    expect_joins(&toy, false, 0, 0, 0);
    toy_free(&toy);
}

/* embed, product, gate; the product's value read by the gate alone, by an output too, or with an
 * activation or a residual of its own, which comes first. */
static void a_product_that_others_see_stays_whole(void **state)
{
    (void)state;
    static float numbers[64 * 32];
    const rp_weight_part words = {.rows = 10, .dtype = RP_DTYPE_F32, .data = numbers};
    const rp_weight_part rows = {.rows = 64, .dtype = RP_DTYPE_F32, .data = numbers};
    for (int variant = 0; variant < 5; variant++) {
        struct toy t = {0};
        rp_weight word, wide, w;
        assert_int_equal(rp_graph_create(&t.graph, NULL), RP_OK);
        assert_int_equal(rp_weights_create(&t.weights, NULL), RP_OK);
        assert_int_equal(rp_weights_add(t.weights, "word", 32, 1, &words, &word, NULL), RP_OK);
        assert_int_equal(rp_weights_add(t.weights, "wide", 64, 1, &words, &wide, NULL), RP_OK);
        assert_int_equal(rp_weights_add(t.weights, "w", 32, 1, &rows, &w, NULL), RP_OK);
        const rp_embed_table table = {word, RP_INDEX_IDS, 0}, two = {wide, RP_INDEX_IDS, 0};
        const rp_value x = rp_graph_embed(t.graph, "x", 1, &table);
        const rp_value r = variant == 3 ? rp_graph_embed(t.graph, "r", 1, &two) : -1;
        const rp_activation act = variant == 2 ? RP_ACT_GELU : RP_ACT_NONE;
        const rp_value y = rp_graph_gemm(t.graph, "y", x, w, -1, act, r);
        const rp_value z = rp_graph_glu(t.graph, "z", y, RP_ACT_GELU);
        rp_graph_output(t.graph, "z", z, RP_ROWS_TOKENS, 32);
        if (variant == 1)
            rp_graph_output(t.graph, "y", y, RP_ROWS_TOKENS, 64);
        if (variant == 4) { /* a later step reads it */
            const rp_value c = rp_graph_concat(t.graph, "c", 2, (rp_value[]){z, y});
            rp_graph_output(t.graph, "c", c, RP_ROWS_TOKENS, 96);
        }
        expect_joins(&t, false, 0, variant == 0, 0);
        rp_graph_destroy(t.graph);
        rp_weights_destroy(t.weights);
    }
}

/* By chunk, the value between a product and its gate has no room anywhere. */
static void what_is_passed_by_takes_no_room(void **state)
{
    (void)state;
    const rp_bucket bucket = {512, 4, 4};
    struct toy toy;
    struct toy_options o;
    uint64_t scratch[2];
    toy_options_init(&o);
    o.gated = true;
    o.intermediate = 512;
    toy_make(&toy, &o);
    for (int no_fuse = 0; no_fuse < 2; no_fuse++) {
        rp_plan_options options;
        rp_plan *plan;
        rp_plan_options_init(&options);
        options.no_fuse = no_fuse;
        assert_int_equal(rp_plan_compile(toy.graph, toy.weights, &bucket, &options, &plan, NULL),
                         RP_OK);
        scratch[no_fuse] = plan->scratch_bytes;
        rp_plan_destroy(plan);
    }
    print_message("    scratch: %llu bytes, apart %llu\n", (unsigned long long)scratch[0],
                  (unsigned long long)scratch[1]);
    assert_true(scratch[0] < scratch[1] / 2);
    toy_free(&toy);
}

/* A dry run has no weights, and still knows which norms have one: x, the norm and the rounded rows
 * live at once where the norm and the rounding run together. */
static void a_dry_run_joins_as_the_plan_does(void **state)
{
    (void)state;
    static float numbers[64 * 10];
    const rp_bucket bucket = {512, 4, 4};
    const rp_weight_part words = {.rows = 10, .dtype = RP_DTYPE_F32, .data = numbers};
    const rp_weight_part one = {.rows = 1, .dtype = RP_DTYPE_F32, .data = numbers};
    for (int weighted = 0; weighted < 2; weighted++) {
        struct toy t = {0};
        rp_weight word, norm, w;
        assert_int_equal(rp_graph_create(&t.graph, NULL), RP_OK);
        assert_int_equal(rp_weights_create(&t.weights, NULL), RP_OK);
        assert_int_equal(rp_weights_add(t.weights, "word", 64, 1, &words, &word, NULL), RP_OK);
        assert_int_equal(rp_weights_add(t.weights, "norm", 64, 1, &one, &norm, NULL), RP_OK);
        assert_int_equal(rp_weights_add(t.weights, "w", 64, 1, &one, &w, NULL), RP_OK);
        const rp_embed_table table = {word, RP_INDEX_IDS, 0};
        const rp_rms_norm options = {.w = weighted ? norm : -1, .eps = 1e-6f};
        rp_value x = rp_graph_embed(t.graph, "x", 1, &table);
        x = rp_graph_rms_norm(t.graph, "n", x, &options);
        x = rp_graph_gemm(t.graph, "y", x, w, -1, RP_ACT_NONE, -1);
        rp_graph_output(t.graph, "y", x, RP_ROWS_TOKENS, 1);
        quantize(&t);
        rp_plan_sizes dry, made;
        rp_plan *plan;
        assert_int_equal(rp_plan_measure(t.graph, t.weights, &bucket, NULL, &dry, NULL), RP_OK);
        assert_int_equal(rp_plan_compile(t.graph, t.weights, &bucket, NULL, &plan, NULL), RP_OK);
        rp_plan_get_sizes(plan, &made);
        assert_int_equal(plan->steps[2].joins, weighted);
        assert_int_equal(dry.arena_bytes, made.arena_bytes);
        rp_plan_destroy(plan);
        rp_graph_destroy(t.graph);
        rp_weights_destroy(t.weights);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_as_apart),
        cmocka_unit_test(columns_beside_the_heads),
        cmocka_unit_test(shown_apart),
        cmocka_unit_test(which_steps_join),
        cmocka_unit_test(a_product_that_others_see_stays_whole),
        cmocka_unit_test(what_is_passed_by_takes_no_room),
        cmocka_unit_test(a_dry_run_joins_as_the_plan_does),
    };
    return cmocka_run_group_tests_name("joins", tests, make_pools, free_pools);
}
