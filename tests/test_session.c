/* Sessions: the same bits whatever the threads, batch, bucket, fusion and instructions; live rows
 * only; nothing allocated on a warm run; errors that name what is wrong and leave the session
 * usable. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/alloc_count.h"
#include "tests/toy.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

static struct toy toy;

static int make_toy(void **state)
{
    (void)state;
    struct toy_options o;
    toy_options_init(&o);
    toy_make(&toy, &o);
    return 0;
}

static int free_toy(void **state)
{
    (void)state;
    toy_free(&toy);
    return 0;
}

/* A session in its strictest form: everything that is not written holds NaNs. */
static rp_session *make_session(const struct toy *t, rp_pool *pool, const rp_session_options *base)
{
    rp_session_options o;
    rp_session *s;
    rp_session_options_init(&o);
    if (base)
        o = *base;
    o.pool = pool;
    o.poison = true;
    assert_int_equal(rp_session_create(t->graph, t->weights, &o, &s, NULL), RP_OK);
    return s;
}

/* Copy of an output; *n floats. */
static float *copy_output(rp_session *s, const char *name, size_t *n)
{
    rp_view v;
    assert_int_equal(rp_session_output(s, name, &v, NULL), RP_OK);
    *n = v.rows * v.width;
    float *p = malloc((*n + 1) * sizeof *p);
    assert_non_null(p);
    if (*n)
        memcpy(p, v.data, *n * sizeof *p);
    return p;
}

static const size_t mixed[] = {17, 1, 3, 128, 2, 64, 5, 33, 200, 16};

/* ---- the same bits ------------------------------------------------------------------------------
 */

/* The bits of the toy, on every machine: scalar, AVX2, AVX-512, NEON, any compiler. */
#define TOY_GOLDEN 0xb683f56e137d59e6u

static void same_bits_for_every_thread_count(void **state)
{
    (void)state;
    struct toy_batch b;
    uint64_t first = 0;
    const int threads[] = {1, 2, 3, 7};
    toy_batch_make(&b, mixed, COUNT(mixed), toy.vocabulary, 5);
    for (size_t i = 0; i < COUNT(threads); i++) {
        rp_pool *pool = toy_pool(threads[i]);
        rp_session *s = make_session(&toy, pool, NULL);
        for (int again = 0; again < 3; again++) {
            toy_run_ok(s, &b.batch);
            const uint64_t h = toy_hash_outputs(s);
            if (!first)
                first = h;
            assert_int_equal(h, first);
        }
        rp_session_destroy(s);
        rp_pool_destroy(pool);
    }
    toy_batch_free(&b);
}

/* Few tokens on many threads run by step, many by chunk, observed ones by step: all the same. */
static void same_bits_in_both_modes(void **state)
{
    (void)state;
    const size_t lengths[] = {9, 4};
    struct toy_batch b;
    toy_batch_make(&b, lengths, 2, toy.vocabulary, 6);
    rp_session *alone = make_session(&toy, NULL, NULL);
    toy_run_ok(alone, &b.batch);
    const uint64_t want = toy_hash_outputs(alone);
    rp_pool *pool = toy_pool(4);
    rp_session *shared = make_session(&toy, pool, NULL);
    toy_run_ok(shared, &b.batch);
    assert_int_equal(toy_hash_outputs(shared), want);
    uint64_t hashes[64];
    rp_digest digest = {.struct_size = sizeof digest, .capacity = 64, .hashes = hashes};
    assert_int_equal(rp_session_digest(alone, &b.batch, &digest, NULL), RP_OK);
    assert_int_equal(toy_hash_outputs(alone), want);
    rp_session_destroy(alone);
    rp_session_destroy(shared);
    rp_pool_destroy(pool);
    toy_batch_free(&b);
}

static void same_bits_for_every_isa(void **state)
{
    (void)state;
    const uint32_t levels[] = {RP_ISA_SCALAR, RP_ISA_AVX2, RP_ISA_AVX2 | RP_ISA_AVX512,
                               RP_ISA_NEON};
    struct toy_batch b;
    uint64_t want = 0;
    size_t ran = 0;
    toy_batch_make(&b, mixed, COUNT(mixed), toy.vocabulary, 5);
    for (size_t i = 0; i < COUNT(levels); i++) {
        if ((levels[i] & rp_isa_detected()) != levels[i]) {
            print_message("level %s is not on this machine: not run\n", rp_isa_name(levels[i]));
            continue;
        }
        rp_session_options o;
        rp_session_options_init(&o);
        o.isa = levels[i];
        rp_session *s = make_session(&toy, NULL, &o);
        toy_run_ok(s, &b.batch);
        if (!want)
            want = toy_hash_outputs(s);
        assert_int_equal(toy_hash_outputs(s), want);
        rp_session_destroy(s);
        ran++;
    }
    assert_true(ran >= 1);
    if (want != TOY_GOLDEN)
        fail_msg("outputs hash to %#llx, and the golden is %#llx", (unsigned long long)want,
                 (unsigned long long)TOY_GOLDEN);
    toy_batch_free(&b);
}

static void same_bits_without_fusion(void **state)
{
    (void)state;
    struct toy_batch b;
    toy_batch_make(&b, mixed, COUNT(mixed), toy.vocabulary, 5);
    rp_session_options o;
    rp_session_options_init(&o);
    rp_session *fused = make_session(&toy, NULL, &o);
    o.no_fuse = true;
    rp_session *plain = make_session(&toy, NULL, &o);
    toy_run_ok(fused, &b.batch);
    toy_run_ok(plain, &b.batch);
    assert_int_equal(toy_hash_outputs(fused), toy_hash_outputs(plain));
    rp_session_destroy(fused);
    rp_session_destroy(plain);
    toy_batch_free(&b);
}

/* Rotary positions, gates and windows: tables, in-place steps and positions that begin anew in each
 * sequence, with any threads, instructions, fusion, and each step looked at. */
#define GATED_GOLDEN 0x9ec25fbb6c9106eu

static uint64_t hash_of_a_run(const struct toy *t, rp_pool *pool, uint32_t isa, bool no_fuse,
                              const rp_batch *batch, uint64_t *digest_of_steps)
{
    uint64_t hashes[96];
    rp_digest digest = {.struct_size = sizeof digest, .capacity = 96, .hashes = hashes};
    rp_session_options o;
    rp_session_options_init(&o);
    o.isa = isa;
    o.no_fuse = no_fuse;
    rp_session *s = make_session(t, pool, &o);
    toy_run_ok(s, batch);
    const uint64_t hash = toy_hash_outputs(s);
    assert_int_equal(rp_session_digest(s, batch, &digest, NULL), RP_OK);
    assert_int_equal(toy_hash_outputs(s), hash);
    *digest_of_steps = digest.whole;
    rp_session_destroy(s);
    return hash;
}

static void gated_models_give_the_same_bits(void **state)
{
    (void)state;
    const uint32_t levels[] = {RP_ISA_SCALAR, RP_ISA_AVX2, RP_ISA_AVX2 | RP_ISA_AVX512,
                               RP_ISA_NEON};
    struct toy_options o;
    toy_options_init(&o);
    o.layers = 4;
    o.pre_norm = true;
    o.gated = true;
    o.window = 20;
    struct toy t;
    struct toy_batch many, few;
    toy_make(&t, &o);
    toy_batch_make(&many, mixed, COUNT(mixed), t.vocabulary, 5);
    toy_batch_make(&few, mixed, 3, t.vocabulary, 5);
    rp_pool *pool = toy_pool(3);
    uint64_t steps = 0, first = 0, unused;
    for (size_t i = 0; i < COUNT(levels); i++) {
        if ((levels[i] & rp_isa_detected()) != levels[i])
            continue;
        for (int shared = 0; shared < 2; shared++) {
            rp_pool *p = shared ? pool : NULL;
            if (hash_of_a_run(&t, p, levels[i], false, &many.batch, &steps) != GATED_GOLDEN)
                fail_msg(
                    "outputs hash to %#llx, and the golden is %#llx",
                    (unsigned long long)hash_of_a_run(&t, p, levels[i], false, &many.batch, &steps),
                    (unsigned long long)GATED_GOLDEN);
            first = first ? first : steps;
            assert_int_equal(steps, first);
            assert_int_equal(hash_of_a_run(&t, p, levels[i], true, &many.batch, &unused),
                             GATED_GOLDEN);
            /* Few rows: by step and by chunk, as there are several workers or one. */
            assert_int_equal(hash_of_a_run(&t, p, levels[i], false, &few.batch, &steps),
                             hash_of_a_run(&t, NULL, levels[i], true, &few.batch, &unused));
        }
    }
    rp_pool_destroy(pool);
    toy_batch_free(&many);
    toy_batch_free(&few);
    toy_free(&t);
}

/* The step in place of its input, and the one that must leave it to another reader: both show and
 * give their own values. */
static void a_rope_in_place_and_out_of_place(void **state)
{
    (void)state;
    const rp_rope turn = {.n_heads = 1, .head_dim = 4, .theta = 100};
    static const float table[] = {1, 2, 3, 4, 5, -6, 7, 8, 9, 10, 11, 12};
    static const int32_t ids[] = {1, 0, 1, 1, 0}, cu[] = {0, 2, 5};
    const rp_weight_part part = {.rows = 2, .data = table};
    for (int kept = 0; kept < 2; kept++) {
        struct toy t = {0};
        rp_embed_table embed = {.index = RP_INDEX_IDS};
        rp_view turned, plain;
        rp_batch b;
        assert_int_equal(rp_graph_create(&t.graph, NULL), RP_OK);
        assert_int_equal(rp_weights_create(&t.weights, NULL), RP_OK);
        assert_int_equal(rp_weights_add(t.weights, "t", 6, 1, &part, &embed.table, NULL), RP_OK);
        const rp_value x = rp_graph_embed(t.graph, "e", 1, &embed);
        rp_graph_output(t.graph, "turned", rp_graph_rope(t.graph, "r", x, &turn), RP_ROWS_TOKENS,
                        6);
        if (kept)
            rp_graph_output(t.graph, "plain", x, RP_ROWS_TOKENS, 6);
        rp_session *s = make_session(&t, NULL, NULL);
        rp_batch_init(&b);
        b.n_seqs = 2;
        b.ids = ids;
        b.cu = cu;
        toy_run_ok(s, &b);
        assert_int_equal(rp_session_output(s, "turned", &turned, NULL), RP_OK);
        for (size_t r = 0; r < 5; r++) {
            const double position = r < 2 ? (double)r : (double)(r - 2);
            const float *from = table + 6 * b.ids[r], *y = turned.data + 6 * r;
            for (size_t i = 0; i < 2; i++) {
                const double a = position * (i ? 0.1 : 1);
                assert_true(fabs(y[i] - (from[i] * cos(a) - from[i + 2] * sin(a))) < 1e-6);
                assert_true(fabs(y[i + 2] - (from[i + 2] * cos(a) + from[i] * sin(a))) < 1e-6);
                assert_true(y[4 + i] == from[4 + i]);
            }
        }
        if (kept) {
            assert_int_equal(rp_session_output(s, "plain", &plain, NULL), RP_OK);
            for (size_t r = 0; r < 5; r++)
                assert_memory_equal(plain.data + 6 * r, table + 6 * b.ids[r], 6 * sizeof(float));
        }
        rp_session_destroy(s);
        rp_graph_destroy(t.graph);
        rp_weights_destroy(t.weights);
    }
}

/* A text's row, alone and in random company, order and bucket. */
static void same_bits_in_any_batch(void **state)
{
    (void)state;
    const size_t pool_of_lengths[] = {1, 2, 3, 7, 16, 17, 31, 64, 100, 128};
    float *alone[COUNT(pool_of_lengths)];
    uint64_t seed = 77;
    size_t n;
    rp_pool *pool = toy_pool(2);
    rp_session *s = make_session(&toy, pool, NULL);
    print_message("seed %llu\n", (unsigned long long)seed);
    for (size_t i = 0; i < COUNT(pool_of_lengths); i++) {
        struct toy_batch b;
        toy_batch_make(&b, &pool_of_lengths[i], 1, toy.vocabulary, 9);
        toy_run_ok(s, &b.batch);
        alone[i] = copy_output(s, "embedding", &n);
        toy_batch_free(&b);
    }
    for (int round = 0; round < 40; round++) {
        size_t which[12], lengths[12];
        const size_t count = 1 + toy_random(&seed) % 12;
        for (size_t i = 0; i < count; i++) {
            which[i] = toy_random(&seed) % COUNT(pool_of_lengths);
            lengths[i] = pool_of_lengths[which[i]];
        }
        struct toy_batch b;
        rp_view v;
        toy_batch_make(&b, lengths, count, toy.vocabulary, 9);
        toy_run_ok(s, &b.batch);
        assert_int_equal(rp_session_output(s, "embedding", &v, NULL), RP_OK);
        for (size_t i = 0; i < count; i++)
            assert_memory_equal(v.data + i * v.width, alone[which[i]], v.width * sizeof(float));
        toy_batch_free(&b);
    }
    for (size_t i = 0; i < COUNT(pool_of_lengths); i++)
        free(alone[i]);
    rp_session_destroy(s);
    rp_pool_destroy(pool);
}

/* Buckets of another shape one after the other on one session equal fresh sessions. */
static void nothing_stale_between_buckets(void **state)
{
    (void)state;
    const struct {
        size_t n, length;
    } runs[] = {{4, 200}, {1, 3}, {4, 200}, {200, 4}, {1, 3}, {1, 590}, {2, 9}};
    struct toy_options o;
    toy_options_init(&o);
    o.rel_buckets = 32;
    struct toy rel;
    toy_make(&rel, &o);
    rp_session *kept = make_session(&rel, NULL, NULL);
    for (size_t r = 0; r < COUNT(runs); r++) {
        size_t lengths[200];
        struct toy_batch b;
        for (size_t i = 0; i < runs[r].n; i++)
            lengths[i] = runs[r].length;
        toy_batch_make(&b, lengths, runs[r].n, rel.vocabulary, r);
        rp_session *fresh = make_session(&rel, NULL, NULL);
        toy_run_ok(kept, &b.batch);
        toy_run_ok(fresh, &b.batch);
        assert_int_equal(toy_hash_outputs(kept), toy_hash_outputs(fresh));
        rp_session_destroy(fresh);
        toy_batch_free(&b);
    }
    rp_session_destroy(kept);
    toy_free(&rel);
}

/* Random graphs, where layout and in-place steps have the most to get wrong. */
static void random_models_agree_in_all_modes(void **state)
{
    (void)state;
    uint64_t seed = 4242;
    print_message("seed %llu\n", (unsigned long long)seed);
    rp_pool *pool = toy_pool(3);
    for (int round = 0; round < 12; round++) {
        struct toy_options o;
        toy_options_init(&o);
        o.seed = toy_random(&seed);
        o.layers = 1 + toy_random(&seed) % 3;
        o.heads = 1 + toy_random(&seed) % 4;
        o.head_dim = 1 + toy_random(&seed) % 40;
        o.intermediate = 1 + toy_random(&seed) % 90;
        o.activation = (rp_activation)(toy_random(&seed) % 7);
        o.pre_norm = toy_random(&seed) % 2;
        o.rel_buckets = toy_random(&seed) % 2 ? 32 : 0;
        o.gated = toy_random(&seed) % 2;
        o.window = toy_random(&seed) % 2 ? 1 + toy_random(&seed) % 30 : 0;
        struct toy t;
        toy_make(&t, &o);
        size_t lengths[20];
        const size_t n = 1 + toy_random(&seed) % 20;
        for (size_t i = 0; i < n; i++)
            lengths[i] = toy_random(&seed) % 60;
        struct toy_batch b;
        toy_batch_make(&b, lengths, n, t.vocabulary, 3);
        rp_session_options so;
        rp_session_options_init(&so);
        rp_session *alone = make_session(&t, NULL, &so), *shared = make_session(&t, pool, &so);
        so.no_fuse = true;
        rp_session *plain = make_session(&t, pool, &so);
        toy_run_ok(alone, &b.batch);
        toy_run_ok(shared, &b.batch);
        toy_run_ok(plain, &b.batch);
        assert_int_equal(toy_hash_outputs(alone), toy_hash_outputs(shared));
        assert_int_equal(toy_hash_outputs(alone), toy_hash_outputs(plain));
        rp_session_destroy(alone);
        rp_session_destroy(shared);
        rp_session_destroy(plain);
        toy_batch_free(&b);
        toy_free(&t);
    }
    rp_pool_destroy(pool);
}

/* ---- rows ---------------------------------------------------------------------------------------
 */

static void empty_sequences_give_zero_rows(void **state)
{
    (void)state;
    const size_t lengths[] = {0, 5, 0};
    struct toy_batch b;
    rp_view v;
    toy_batch_make(&b, lengths, 3, toy.vocabulary, 1);
    rp_session *s = make_session(&toy, NULL, NULL);
    toy_run_ok(s, &b.batch);
    assert_int_equal(rp_session_output(s, "embedding", &v, NULL), RP_OK);
    assert_int_equal(v.rows, 3);
    for (size_t c = 0; c < v.width; c++) {
        assert_true(v.data[c] == 0);
        assert_true(v.data[2 * v.width + c] == 0);
    }
    toy_batch_free(&b);
    rp_session_destroy(s);
}

/* A graph that only looks rows up needs no scratch; UBSan sees whether a run counts from nothing.
 */
static void a_run_without_scratch(void **state)
{
    (void)state;
    static const float table[] = {1, 2, 3, 4, 5, 6};
    static const int32_t ids[] = {2, 0}, cu[] = {0, 2};
    const rp_weight_part part = {.rows = 3, .data = table};
    struct toy t = {0};
    rp_embed_table embed = {.index = RP_INDEX_IDS};
    rp_plan_sizes sizes;
    const rp_plan *plan;
    rp_view view;
    rp_batch b;
    assert_int_equal(rp_graph_create(&t.graph, NULL), RP_OK);
    assert_int_equal(rp_weights_create(&t.weights, NULL), RP_OK);
    assert_int_equal(rp_weights_add(t.weights, "t", 2, 1, &part, &embed.table, NULL), RP_OK);
    rp_graph_output(t.graph, "x", rp_graph_embed(t.graph, "e", 1, &embed), RP_ROWS_TOKENS, 2);
    rp_session *s = make_session(&t, NULL, NULL);
    assert_int_equal(rp_session_plan(s, 2, 1, 0, &plan, NULL), RP_OK);
    rp_plan_get_sizes(plan, &sizes);
    assert_int_equal(sizes.scratch_bytes_per_thread, 0);
    rp_batch_init(&b);
    b.n_seqs = 1;
    b.ids = ids;
    b.cu = cu;
    toy_run_ok(s, &b);
    assert_int_equal(rp_session_output(s, "x", &view, NULL), RP_OK);
    assert_memory_equal(view.data, ((const float[]){5, 6, 1, 2}), 4 * sizeof(float));
    rp_session_destroy(s);
    rp_graph_destroy(t.graph);
    rp_weights_destroy(t.weights);
}

static void outputs_have_the_rows_of_the_batch(void **state)
{
    (void)state;
    const size_t lengths[] = {4, 9, 2};
    struct toy_batch b;
    rp_view v;
    rp_error err;
    toy_batch_make(&b, lengths, 3, toy.vocabulary, 1);
    rp_session *s = make_session(&toy, NULL, NULL);
    assert_int_equal(rp_session_output(s, "last", &v, &err), RP_ERR_MISSING);
    assert_string_equal(err.message, "output last: nothing has run");
    toy_run_ok(s, &b.batch);
    assert_int_equal(rp_session_output(s, "last", &v, NULL), RP_OK);
    assert_int_equal(v.rows, 15);
    assert_int_equal(v.kind, RP_ROWS_TOKENS);
    assert_int_equal(rp_session_output(s, "marked", &v, NULL), RP_OK);
    assert_int_equal(v.rows, 3);
    assert_int_equal(v.width, 5);
    assert_int_equal(rp_session_output(s, "nothing", &v, &err), RP_ERR_MISSING);
    assert_string_equal(err.message,
                        "there is no output nothing; there are: last embedding marked");
    toy_batch_free(&b);
    rp_session_destroy(s);
}

/* ---- allocation ---------------------------------------------------------------------------------
 */

static void a_warm_run_allocates_nothing(void **state)
{
    (void)state;
    if (!alloc_count_available())
        skip();
    struct toy_batch b;
    toy_batch_make(&b, mixed, COUNT(mixed), toy.vocabulary, 5);
    rp_pool *pool = toy_pool(3);
    rp_session *s = make_session(&toy, pool, NULL);
    uint64_t hashes[64];
    rp_digest digest = {.struct_size = sizeof digest, .capacity = 64, .hashes = hashes};
    toy_run_ok(s, &b.batch);
    const size_t before = alloc_count();
    assert_true(before > 0);
    for (int i = 0; i < 3; i++)
        toy_run_ok(s, &b.batch);
    assert_int_equal(rp_session_digest(s, &b.batch, &digest, NULL), RP_OK);
    assert_int_equal(alloc_count(), before);
    rp_session_destroy(s);
    rp_pool_destroy(pool);
    toy_batch_free(&b);
}

static void a_reserved_run_allocates_nothing(void **state)
{
    (void)state;
    if (!alloc_count_available())
        skip();
    struct toy_batch b;
    toy_batch_make(&b, mixed, COUNT(mixed), toy.vocabulary, 5);
    rp_session *s = make_session(&toy, NULL, NULL);
    assert_int_equal(rp_session_reserve(s, (size_t)b.cu[COUNT(mixed)], COUNT(mixed),
                                        (size_t)b.mcu[COUNT(mixed)], NULL),
                     RP_OK);
    const size_t before = alloc_count();
    toy_run_ok(s, &b.batch);
    assert_int_equal(alloc_count(), before);
    rp_session_destroy(s);
    toy_batch_free(&b);
}

/* The most bytes that a session held which ran the batches, one for each of its buckets. */
static size_t peak_of_a_session(const struct toy *t, const rp_session_options *o,
                                const struct toy_batch *batches, size_t n)
{
    rp_session *s;
    const size_t before = alloc_bytes();
    alloc_peak_reset();
    assert_int_equal(rp_session_create(t->graph, t->weights, o, &s, NULL), RP_OK);
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < n; i++)
            toy_run_ok(s, &batches[i].batch);
    const size_t peak = alloc_peak() - before;
    rp_session_destroy(s);
    assert_int_equal(alloc_bytes(), before);
    return peak;
}

static void expect_stated_memory(const struct toy *t, const rp_session_options *o)
{
    enum { MOST = 16 };
    size_t lengths[256], n = 0;
    struct toy_batch batches[MOST];
    rp_bucket b;
    rp_session_sizes sizes = {.struct_size = sizeof sizes};
    const size_t converted = rp_weights_bytes(t->weights);
    assert_int_equal(rp_session_measure(t->graph, t->weights, o, &sizes, NULL), RP_OK);
    assert_int_equal(rp_weights_bytes(t->weights), converted);
    assert_int_equal(sizes.session_bytes, sizes.arena_bytes + sizes.scratch_bytes +
                                              sizes.plan_bytes + sizes.table_bytes);
    for (size_t i = 0; i < COUNT(lengths); i++)
        lengths[i] = 8;
    for (; rp_bucket_default(n, o->max_tokens, &b); n++)
        toy_batch_make(&batches[n], lengths, b.tokens / 8, t->vocabulary, 1);
    rp_session *converts = make_session(t, NULL, NULL);
    assert_int_equal(rp_session_reserve(converts, 1, 1, 0, NULL), RP_OK);
    rp_session_destroy(converts);
    assert_int_equal(sizes.weights_bytes, rp_weights_bytes(t->weights));
    const size_t peak = peak_of_a_session(t, o, batches, n);
    /* The allocator rounds each of some hundred blocks up. */
    if (peak > sizes.session_bytes + 4096)
        fail_msg("%zu bytes were held, %llu were stated", peak,
                 (unsigned long long)sizes.session_bytes);
    if (sizes.session_bytes > peak + peak / 10)
        fail_msg("%llu bytes were stated, %zu were held", (unsigned long long)sizes.session_bytes,
                 peak);
    for (size_t i = 0; i < n; i++)
        toy_batch_free(&batches[i]);
}

/* What a session will take is known before it takes it, and it is no guess. */
static void memory_is_stated_before_it_is_taken(void **state)
{
    (void)state;
    if (!alloc_count_available())
        skip();
    rp_pool *pool = toy_pool(3);
    for (int variant = 0; variant < 16; variant++) {
        struct toy_options to;
        struct toy t;
        rp_session_options o;
        toy_options_init(&to);
        to.gated = variant & 8; /* plans with tables of rotary positions, as long as the bucket */
        to.rel_buckets = variant & 1 ? 32 : 0;
        toy_make(&t, &to);
        rp_session_options_init(&o);
        o.pool = variant & 2 ? pool : NULL;
        o.no_fuse = variant & 1;
        o.max_tokens = variant & 4 ? 2048 : 200;
        o.max_plans = variant & 2 ? 2 : 8;
        expect_stated_memory(&t, &o);
        toy_free(&t);
    }
    rp_session_options o;
    rp_session_options_init(&o);
    rp_session_sizes sizes = {.struct_size = 1};
    rp_error err;
    assert_int_equal(rp_session_measure(toy.graph, toy.weights, &o, &sizes, &err), RP_ERR_INVALID);
    sizes.struct_size = sizeof sizes;
    o.max_plans = 0;
    assert_int_equal(rp_session_measure(toy.graph, toy.weights, &o, &sizes, &err), RP_ERR_INVALID);
    rp_pool_destroy(pool);
}

/* ---- buckets ------------------------------------------------------------------------------------
 */

static void the_smallest_bucket_is_picked(void **state)
{
    (void)state;
    const rp_bucket table[] = {{64, 4, 0}, {32, 4, 0}, {32, 2, 0}, {32, 4, 9}, {128, 64, 64}};
    assert_int_equal(rp_bucket_pick(table, 5, 32, 2, 0), 2);
    assert_int_equal(rp_bucket_pick(table, 5, 32, 3, 0), 1);
    assert_int_equal(rp_bucket_pick(table, 5, 1, 1, 1), 3);
    assert_int_equal(rp_bucket_pick(table, 5, 33, 1, 0), 0);
    assert_int_equal(rp_bucket_pick(table, 5, 65, 1, 0), 4);
    assert_int_equal(rp_bucket_pick(table, 5, 129, 1, 0), 5);
    rp_bucket b;
    assert_true(rp_bucket_default(0, 100, &b));
    assert_int_equal(b.tokens, 16);
    assert_true(rp_bucket_default(3, 100, &b));
    assert_int_equal(b.tokens, 100);
    assert_false(rp_bucket_default(4, 100, &b));
    assert_true(rp_bucket_default(0, 5, &b));
    assert_int_equal(b.tokens, 5);
    assert_false(rp_bucket_default(0, 0, &b));
}

static void a_batch_too_large_names_the_bucket(void **state)
{
    (void)state;
    const rp_bucket buckets[] = {{16, 2, 0}, {64, 4, 8}};
    const size_t lengths[] = {40, 30};
    struct toy_batch b;
    rp_error err;
    rp_session_options o;
    rp_session_options_init(&o);
    o.buckets = buckets;
    o.n_buckets = 2;
    rp_session *s = make_session(&toy, NULL, &o);
    toy_batch_make(&b, lengths, 2, toy.vocabulary, 1);
    assert_int_equal(rp_session_run(s, &b.batch, &err), RP_ERR_BUCKET);
    assert_string_equal(err.message,
                        "a batch of 70 tokens, 2 seqs, 1 markers does not fit the largest "
                        "bucket 64,4,8");
    toy_batch_free(&b);
    toy_batch_make(&b, lengths, 1, toy.vocabulary, 1);
    toy_run_ok(s, &b.batch);
    toy_batch_free(&b);
    rp_session_destroy(s);
}

/* More buckets than the cache keeps: plans come and go, results do not. */
static void the_plan_cache_is_bounded(void **state)
{
    (void)state;
    rp_session_options o;
    rp_session_options_init(&o);
    o.max_plans = 2;
    rp_session *s = make_session(&toy, NULL, &o);
    uint64_t want[5] = {0};
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < 5; i++) {
            const size_t length = (size_t)10 << i;
            struct toy_batch b;
            toy_batch_make(&b, &length, 1, toy.vocabulary, 1);
            toy_run_ok(s, &b.batch);
            if (!round)
                want[i] = toy_hash_outputs(s);
            assert_int_equal(toy_hash_outputs(s), want[i]);
            toy_batch_free(&b);
        }
    rp_session_destroy(s);
}

/* ---- wrong batches ------------------------------------------------------------------------------
 */

static void wrong_batches_are_named(void **state)
{
    (void)state;
    const size_t lengths[] = {4, 6};
    struct toy_batch b;
    rp_error err;
    toy_batch_make(&b, lengths, 2, toy.vocabulary, 1);
    rp_session *s = make_session(&toy, NULL, NULL);
    rp_batch good = b.batch;

    b.ids[6] = 50;
    assert_int_equal(rp_session_run(s, &good, &err), RP_ERR_INVALID);
    assert_string_equal(err.message,
                        "sequence 1, token 2: id 50 is outside the table word, which has 50 rows");
    b.ids[6] = -1;
    assert_int_equal(rp_session_run(s, &good, &err), RP_ERR_INVALID);
    b.ids[6] = 1;
    b.types[1] = 2;
    assert_int_equal(rp_session_run(s, &good, &err), RP_ERR_INVALID);
    assert_string_equal(err.message,
                        "sequence 0, token 1: segment id 2 is outside the table segment, "
                        "which has 2 rows");
    b.types[1] = 0;
    b.cu[1] = 11;
    assert_int_equal(rp_session_run(s, &good, &err), RP_ERR_INVALID);
    assert_string_equal(err.message, "cu[2] is 10, less than cu[1], which is 11");
    b.cu[1] = 4;
    b.cu[0] = 1;
    assert_int_equal(rp_session_run(s, &good, &err), RP_ERR_INVALID);
    assert_string_equal(err.message, "cu[0] is 1, expected 0");
    b.cu[0] = 0;
    b.markers[0] = 6;
    assert_int_equal(rp_session_run(s, &good, &err), RP_ERR_INVALID);
    assert_string_equal(err.message, "marker 0 is at position 6 of sequence 1, which has 6 tokens");
    b.markers[0] = 0;
    const int32_t falling[] = {0, 1000000, 0}; /* no markers in all, and yet a sequence with some */
    good.mcu = falling;
    assert_int_equal(rp_session_run(s, &good, &err), RP_ERR_INVALID);
    assert_string_equal(err.message, "mcu[2] is 0, less than mcu[1], which is 1000000");
    good.mcu = b.mcu;
    rp_batch none = good;
    none.n_seqs = 0;
    assert_int_equal(rp_session_run(s, &none, &err), RP_ERR_INVALID);
    none = good;
    none.struct_size = 1;
    assert_int_equal(rp_session_run(s, &none, &err), RP_ERR_INVALID);
    none = good;
    none.mcu = NULL;
    assert_int_equal(rp_session_run(s, &none, &err), RP_ERR_INVALID);
    toy_run_ok(s, &good); /* none of it hurt the session */
    toy_batch_free(&b);
    rp_session_destroy(s);
}

static void a_position_past_the_table_is_refused(void **state)
{
    (void)state;
    struct toy_batch b;
    rp_error err;
    rp_session *s = make_session(&toy, NULL, NULL);
    for (size_t length = 599; length <= 601; length++) {
        toy_batch_make(&b, &length, 1, toy.vocabulary, 1);
        const rp_status status = rp_session_run(s, &b.batch, &err);
        assert_int_equal(status, length <= 600 ? RP_OK : RP_ERR_INVALID);
        if (status != RP_OK)
            assert_string_equal(err.message,
                                "sequence 0, token 600: position 600 is outside the table "
                                "position, which has 600 rows");
        toy_batch_free(&b);
    }
    rp_session_destroy(s);
}

/* RoBERTa's positions: pads stay at the pad's row, others count on from it. */
static void positions_skip_pads(void **state)
{
    (void)state;
    static float table[8 * 1];
    for (int i = 0; i < 8; i++)
        table[i] = (float)i;
    const struct {
        int32_t pad, ids[5];
        float want[5];
    } cases[] = {{1, {0, 5, 2, 1, 1}, {2, 3, 4, 1, 1}},
                 {3, {0, 5, 2, 3, 3}, {4, 5, 6, 3, 3}},
                 {3, {3, 3, 0, 5, 2}, {3, 3, 4, 5, 6}}};
    for (size_t c = 0; c < COUNT(cases); c++) {
        rp_graph *graph;
        rp_weights *weights;
        rp_weight w;
        rp_session *s;
        rp_view v;
        const rp_weight_part part = {.rows = 8, .dtype = RP_DTYPE_F32, .data = table};
        assert_int_equal(rp_graph_create(&graph, NULL), RP_OK);
        assert_int_equal(rp_weights_create(&weights, NULL), RP_OK);
        assert_int_equal(rp_weights_add(weights, "positions", 1, 1, &part, &w, NULL), RP_OK);
        const rp_embed_table t = {w, RP_INDEX_POSITION_NONPAD, cases[c].pad};
        rp_graph_output(graph, "p", rp_graph_embed(graph, "e", 1, &t), RP_ROWS_TOKENS, 1);
        assert_int_equal(rp_session_create(graph, weights, NULL, &s, NULL), RP_OK);
        const int32_t cu[] = {0, 5};
        rp_batch b;
        rp_batch_init(&b);
        b.n_seqs = 1;
        b.ids = cases[c].ids;
        b.cu = cu;
        toy_run_ok(s, &b);
        assert_int_equal(rp_session_output(s, "p", &v, NULL), RP_OK);
        assert_memory_equal(v.data, cases[c].want, sizeof cases[c].want);
        rp_session_destroy(s);
        rp_graph_destroy(graph);
        rp_weights_destroy(weights);
    }
}

/* RoBERTa's table of one segment: whatever a tokenizer says, there is only that one. */
static void a_table_of_one_segment_ignores_segments(void **state)
{
    (void)state;
    static const float row[] = {1.5f};
    static const int32_t ids[] = {0, 0, 0}, types[] = {0, 1, 7}, cu[] = {0, 3};
    rp_graph *graph;
    rp_weights *weights;
    rp_weight w;
    rp_session *s;
    rp_view v;
    rp_batch b;
    const rp_weight_part part = {.rows = 1, .dtype = RP_DTYPE_F32, .data = row};
    assert_int_equal(rp_graph_create(&graph, NULL), RP_OK);
    assert_int_equal(rp_weights_create(&weights, NULL), RP_OK);
    assert_int_equal(rp_weights_add(weights, "segments", 1, 1, &part, &w, NULL), RP_OK);
    const rp_embed_table t = {w, RP_INDEX_TYPES, 0};
    rp_graph_output(graph, "y", rp_graph_embed(graph, "e", 1, &t), RP_ROWS_TOKENS, 1);
    assert_int_equal(rp_session_create(graph, weights, NULL, &s, NULL), RP_OK);
    rp_batch_init(&b);
    b.n_seqs = 1;
    b.ids = ids;
    b.cu = cu;
    b.type_ids = types;
    toy_run_ok(s, &b);
    assert_int_equal(rp_session_output(s, "y", &v, NULL), RP_OK);
    for (int i = 0; i < 3; i++)
        assert_true(v.data[i] == 1.5f);
    rp_session_destroy(s);
    rp_graph_destroy(graph);
    rp_weights_destroy(weights);
}

/* ---- results that are none ----------------------------------------------------------------------
 */

static void a_nan_never_leaves_in_silence(void **state)
{
    (void)state;
    struct toy_options o;
    toy_options_init(&o);
    struct toy t;
    toy_make(&t, &o);
    t.arrays[0][7 * t.width + 3] = NAN; /* token 7's row of the word table */
    const size_t lengths[] = {3, 3, 3};
    struct toy_batch b;
    rp_error err;
    rp_view v;
    toy_batch_make(&b, lengths, 3, t.vocabulary, 1);
    for (int i = 0; i < 9; i++)
        b.ids[i] = i == 4 ? 7 : 1;
    rp_session *s = make_session(&t, NULL, NULL);
    assert_int_equal(rp_session_run(s, &b.batch, &err), RP_ERR_NONFINITE);
    assert_string_equal(err.message, "output last, row 3 (of tokens), column 0 is NaN");
    /* Only the sequence that holds the token is hurt. */
    assert_int_equal(rp_session_output(s, "embedding", &v, NULL), RP_OK);
    for (size_t c = 0; c < v.width; c++) {
        assert_true(isfinite(v.data[c]));
        assert_true(isnan(v.data[v.width + c]));
        assert_true(isfinite(v.data[2 * v.width + c]));
    }
    toy_batch_free(&b);
    rp_session_destroy(s);
    toy_free(&t);
}

/* ---- hooks --------------------------------------------------------------------------------------
 */

struct seen {
    size_t asked, shown;
    const char *only;
    float *copy;
    size_t n;
    rp_status answer;
};

static bool want_named(void *context, const rp_step_info *step)
{
    struct seen *s = context;
    s->asked++;
    return strcmp(step->name, s->only) == 0;
}

static rp_status show_named(void *context, const rp_step_info *step, const rp_view *view)
{
    struct seen *s = context;
    s->shown++;
    assert_string_equal(step->name, s->only);
    assert_int_equal(step->width, view->width);
    s->n = view->rows * view->width;
    free(s->copy);
    s->copy = malloc(s->n * sizeof(float));
    assert_non_null(s->copy);
    memcpy(s->copy, view->data, s->n * sizeof(float));
    return s->answer;
}

static void an_observer_is_asked_then_shown(void **state)
{
    (void)state;
    struct toy_batch b;
    size_t n;
    toy_batch_make(&b, mixed, COUNT(mixed), toy.vocabulary, 5);
    rp_pool *pool = toy_pool(2);
    rp_session *s = make_session(&toy, pool, NULL);
    toy_run_ok(s, &b.batch);
    const uint64_t want = toy_hash_outputs(s);
    struct seen seen = {.only = "layers.1.ffn.norm"};
    const rp_observer observer = {
        .struct_size = sizeof observer, .want = want_named, .show = show_named, .context = &seen};
    rp_session_observe(s, &observer);
    toy_run_ok(s, &b.batch);
    assert_int_equal(seen.shown, 1);
    assert_true(seen.asked > 10);
    assert_int_equal(toy_hash_outputs(s), want); /* looking changes nothing */
    float *last = copy_output(s, "last", &n);
    assert_int_equal(n, seen.n);
    assert_memory_equal(last, seen.copy, n * sizeof(float));
    free(last);

    rp_error err;
    seen.answer = RP_ERR_INVALID;
    seen.only = "layers.0.attn.core";
    assert_int_equal(rp_session_run(s, &b.batch, &err), RP_ERR_STOPPED);
    rp_session_observe(s, NULL);
    toy_run_ok(s, &b.batch);
    assert_int_equal(toy_hash_outputs(s), want);
    free(seen.copy);
    rp_session_destroy(s);
    rp_pool_destroy(pool);
    toy_batch_free(&b);
}

static void a_digest_is_of_live_rows(void **state)
{
    (void)state;
    const size_t lengths[] = {5};
    uint64_t small[64], large[64];
    size_t rows[64];
    const rp_bucket one[] = {{5, 1, 2}}, other[] = {{1000, 100, 100}};
    struct toy_batch b;
    toy_batch_make(&b, lengths, 1, toy.vocabulary, 5);
    rp_session_options o;
    rp_session_options_init(&o);
    o.buckets = one;
    o.n_buckets = 1;
    rp_session *s = make_session(&toy, NULL, &o);
    rp_digest d = {.struct_size = sizeof d, .capacity = 64, .hashes = small, .rows = rows};
    assert_int_equal(rp_session_digest(s, &b.batch, &d, NULL), RP_OK);
    rp_session_destroy(s);
    o.buckets = other;
    s = make_session(&toy, NULL, &o);
    rp_digest e = {.struct_size = sizeof e, .capacity = 64, .hashes = large};
    assert_int_equal(rp_session_digest(s, &b.batch, &e, NULL), RP_OK);
    rp_session_destroy(s);
    assert_int_equal(d.n_steps, e.n_steps);
    assert_int_equal(d.whole, e.whole);
    assert_memory_equal(small, large, d.n_steps * sizeof *small);
    assert_int_equal(rows[0], 5);
    assert_int_equal(rows[d.n_steps - 1], 0); /* no markers in this batch */
    /* One id more or less in any place shows. */
    b.ids[3] = (b.ids[3] + 1) % 50;
    s = make_session(&toy, NULL, &o);
    assert_int_equal(rp_session_digest(s, &b.batch, &e, NULL), RP_OK);
    assert_int_not_equal(d.whole, e.whole);
    rp_session_destroy(s);
    toy_batch_free(&b);
}

/* ---- threads of the caller ----------------------------------------------------------------------
 */

struct client {
    rp_pool *pool;
    uint64_t want;
    int wrong;
};

static void *client(void *arg)
{
    struct client *c = arg;
    struct toy_batch b;
    toy_batch_make(&b, mixed, COUNT(mixed), toy.vocabulary, 5);
    rp_session *s = make_session(&toy, c->pool, NULL);
    for (int i = 0; i < 20; i++) {
        toy_run_ok(s, &b.batch);
        c->wrong += toy_hash_outputs(s) != c->want;
    }
    rp_session_destroy(s);
    toy_batch_free(&b);
    return NULL;
}

/* Sessions of several threads share graph, weights and pool. */
static void sessions_share_weights_and_pool(void **state)
{
    (void)state;
    struct toy_batch b;
    toy_batch_make(&b, mixed, COUNT(mixed), toy.vocabulary, 5);
    rp_session *s = make_session(&toy, NULL, NULL);
    toy_run_ok(s, &b.batch);
    rp_pool *pool = toy_pool(2);
    struct client clients[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        clients[i] = (struct client){.pool = i % 2 ? pool : NULL, .want = toy_hash_outputs(s)};
        assert_int_equal(pthread_create(&threads[i], NULL, client, &clients[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(clients[i].wrong, 0);
    }
    rp_session_destroy(s);
    rp_pool_destroy(pool);
    toy_batch_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_for_every_thread_count),
        cmocka_unit_test(same_bits_in_both_modes),
        cmocka_unit_test(same_bits_for_every_isa),
        cmocka_unit_test(same_bits_without_fusion),
        cmocka_unit_test(gated_models_give_the_same_bits),
        cmocka_unit_test(a_rope_in_place_and_out_of_place),
        cmocka_unit_test(same_bits_in_any_batch),
        cmocka_unit_test(nothing_stale_between_buckets),
        cmocka_unit_test(random_models_agree_in_all_modes),
        cmocka_unit_test(empty_sequences_give_zero_rows),
        cmocka_unit_test(a_run_without_scratch),
        cmocka_unit_test(outputs_have_the_rows_of_the_batch),
        cmocka_unit_test(a_warm_run_allocates_nothing),
        cmocka_unit_test(a_reserved_run_allocates_nothing),
        cmocka_unit_test(memory_is_stated_before_it_is_taken),
        cmocka_unit_test(the_smallest_bucket_is_picked),
        cmocka_unit_test(a_batch_too_large_names_the_bucket),
        cmocka_unit_test(the_plan_cache_is_bounded),
        cmocka_unit_test(wrong_batches_are_named),
        cmocka_unit_test(a_position_past_the_table_is_refused),
        cmocka_unit_test(positions_skip_pads),
        cmocka_unit_test(a_table_of_one_segment_ignores_segments),
        cmocka_unit_test(a_nan_never_leaves_in_silence),
        cmocka_unit_test(an_observer_is_asked_then_shown),
        cmocka_unit_test(a_digest_is_of_live_rows),
        cmocka_unit_test(sessions_share_weights_and_pool),
    };
    return cmocka_run_group_tests(tests, make_toy, free_toy);
}
