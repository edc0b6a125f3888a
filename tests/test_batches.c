/* Batches of a request: cut by the budget, with what the texts begin with run once, and results
 * that do not depend on either. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/toy.h"
#include "text/batches.h"
#include "text/prefix.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 32, VOCABULARY = 50, POSITIONS = 256, MAX_TEXTS = 64, MAX_TOKENS = 8192 };

/* ---- texts ---- */

struct texts {
    rp_batch batch;
    int32_t ids[MAX_TOKENS], types[MAX_TOKENS], cu[MAX_TEXTS + 1];
};

static void begin(struct texts *t)
{
    memset(t, 0, sizeof *t);
    rp_batch_init(&t->batch);
    t->batch.ids = t->ids;
    t->batch.cu = t->cu;
}

/* A text of `shared` tokens that every text begins with, and own ones from the seed. */
static void add(struct texts *t, size_t shared, size_t own, uint64_t seed)
{
    int32_t at = t->cu[t->batch.n_seqs];
    for (size_t i = 0; i < shared; i++)
        t->ids[at++] = (int32_t)(i * i % VOCABULARY);
    for (size_t i = 0; i < own; i++)
        t->ids[at++] = (int32_t)(toy_random(&seed) % VOCABULARY);
    t->cu[++t->batch.n_seqs] = at;
}

static void add_many(struct texts *t, size_t shared, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        add(t, shared, 1 + toy_random(&seed) % 90, seed + i);
}

/* ---- what is shared ---- */

static void the_prefix_is_what_all_begin_with(void **state)
{
    (void)state;
    static struct texts t;
    begin(&t);
    add(&t, 40, 5, 1);
    assert_int_equal(rp_prefix_shared(&t.batch), 0); /* one text shares with nobody */
    add(&t, 40, 9, 2);
    t.ids[40] = 1;
    t.ids[t.cu[1] + 40] = 2;
    assert_int_equal(rp_prefix_shared(&t.batch), 40);
    add(&t, 30, 3, 3);
    t.ids[t.cu[2] + 30] = 49; /* 30 * 30 mod 50 is 0 */
    assert_int_equal(rp_prefix_shared(&t.batch), 30);
    t.ids[t.cu[1] + 20] = 49;
    assert_int_equal(rp_prefix_shared(&t.batch), 20);
    t.ids[t.cu[1] + RP_PREFIX_MIN] = 49;
    assert_int_equal(rp_prefix_shared(&t.batch), RP_PREFIX_MIN);
    t.ids[t.cu[1] + RP_PREFIX_MIN - 1] = 49;
    assert_int_equal(rp_prefix_shared(&t.batch), 0);
}

static void every_text_keeps_a_token(void **state)
{
    (void)state;
    static struct texts t;
    begin(&t);
    add(&t, 40, 0, 1);
    add(&t, 40, 0, 1);
    assert_int_equal(rp_prefix_shared(&t.batch), 39);
    add(&t, 25, 0, 1); /* the beginning of the others */
    assert_int_equal(rp_prefix_shared(&t.batch), 24);
    add(&t, 0, 0, 1);
    assert_int_equal(rp_prefix_shared(&t.batch), 0);
    begin(&t);
    add(&t, 0, 0, 1);
    add(&t, 40, 0, 1);
    assert_int_equal(rp_prefix_shared(&t.batch), 0);
}

static void segments_are_shared_too(void **state)
{
    (void)state;
    static struct texts t;
    begin(&t);
    add(&t, 40, 5, 1);
    add(&t, 40, 5, 1);
    t.batch.type_ids = t.types;
    assert_int_equal(rp_prefix_shared(&t.batch), 44);
    t.types[t.cu[1] + 33] = 1;
    assert_int_equal(rp_prefix_shared(&t.batch), 33);
}

static void a_batch_has_the_prefix_once(void **state)
{
    (void)state;
    static struct texts t;
    struct rp_prefix_room room = {0};
    rp_batch b;
    begin(&t);
    add(&t, 20, 9, 9);
    add(&t, 20, 2, 1);
    add(&t, 20, 1, 2);
    add(&t, 20, 3, 3);
    t.batch.type_ids = t.types;
    for (size_t i = 0; i < (size_t)t.cu[4]; i++)
        t.types[i] = (int32_t)i;
    assert_int_equal(rp_prefix_reserve(&t.batch, &room, NULL), RP_OK);
    rp_prefix_split(&t.batch, 20, 1, 4, &room, &b);
    const int32_t cu[] = {0, 20, 22, 23, 26}, parents[] = {-1, 0, 0, 0};
    assert_int_equal(b.n_seqs, 4);
    assert_memory_equal(b.cu, cu, sizeof cu);
    assert_memory_equal(b.parents, parents, sizeof parents);
    assert_memory_equal(b.ids, t.ids + t.cu[1], 22 * sizeof *b.ids);
    assert_int_equal(b.ids[22], t.ids[t.cu[2] + 20]);
    assert_memory_equal(b.ids + 23, t.ids + t.cu[3] + 20, 3 * sizeof *b.ids);
    assert_int_equal(b.type_ids[0], t.cu[1]);
    assert_int_equal(b.type_ids[22], t.cu[2] + 20);
    assert_int_equal(b.type_ids[25], t.cu[3] + 22);
    t.batch.type_ids = NULL;
    rp_prefix_split(&t.batch, 20, 0, 2, &room, &b);
    assert_null(b.type_ids);
    rp_prefix_free(&room);
}

static void the_budget_counts_the_prefix_once(void **state)
{
    (void)state;
    static struct texts t;
    begin(&t);
    for (size_t i = 0; i < 10; i++)
        add(&t, 20, 10, i);
    assert_int_equal(rp_prefix_end(&t.batch, 20, 0, 50), 3); /* 20 + 3 * 10 */
    assert_int_equal(rp_prefix_end(&t.batch, 20, 0, 49), 2);
    assert_int_equal(rp_prefix_end(&t.batch, 20, 0, 39), 1);
    assert_int_equal(rp_prefix_end(&t.batch, 20, 0, 1), 1);
    assert_int_equal(rp_prefix_end(&t.batch, 20, 8, 50), 10);
    begin(&t);
    for (size_t i = 0; i < 40; i++)
        add(&t, 20, 1, i);
    assert_int_equal(rp_prefix_end(&t.batch, 20, 0, 40), 19); /* and the prefix: half of 40 */
}

/* ---- running ---- */

struct model {
    rp_graph *graph;
    rp_weights *weights;
    float numbers[1 << 15];
    size_t used;
};

static rp_weight add_weight(struct model *m, const char *name, size_t rows, size_t cols)
{
    const rp_weight_part part = {.rows = rows, .data = m->numbers + m->used};
    rp_weight w;
    m->used += rows * cols;
    assert_true(m->used <= sizeof m->numbers / sizeof *m->numbers);
    assert_int_equal(rp_weights_add(m->weights, name, cols, 1, &part, &w, NULL), RP_OK);
    return w;
}

static void begin_model(struct model *m)
{
    uint64_t seed = 4;
    m->used = 0;
    for (size_t i = 0; i < sizeof m->numbers / sizeof *m->numbers; i++)
        m->numbers[i] = toy_uniform(&seed);
    assert_int_equal(rp_graph_create(&m->graph, NULL), RP_OK);
    assert_int_equal(rp_weights_create(&m->weights, NULL), RP_OK);
}

static void end_model(struct model *m, rp_value x)
{
    x = rp_graph_pool(m->graph, "last", x, RP_POOL_LAST);
    rp_graph_output(m->graph, "row", x, RP_ROWS_SEQS, WIDTH);
    assert_true(rp_graph_is_causal(m->graph));
}

/* No attention: a token's row, with that of its position, is the text's result when it is the last.
 * The table of ids is the first of the numbers. */
static void make_plain(struct model *m)
{
    begin_model(m);
    const rp_embed_table tables[] = {
        {.table = add_weight(m, "ids", VOCABULARY, WIDTH), .index = RP_INDEX_IDS},
        {.table = add_weight(m, "positions", POSITIONS, WIDTH), .index = RP_INDEX_POSITION}};
    const rp_value x = rp_graph_embed(m->graph, "embed", 2, tables);
    end_model(
        m, rp_graph_gemm(m->graph, "up", x, add_weight(m, "w", WIDTH, WIDTH), -1, RP_ACT_GELU, -1));
}

/* Two heads over one of keys, turned by position. */
static rp_value add_attention(struct model *m, rp_value x, bool causal)
{
    const rp_rope rope = {.n_heads = 3, .head_dim = 16, .theta = 10000};
    const rp_attention attention = {
        .n_heads = 2, .n_kv_heads = 1, .head_dim = 16, .rel_bias = -1, .causal = causal};
    rp_value h =
        rp_graph_gemm(m->graph, "qkv", x, add_weight(m, "qkv", 64, WIDTH), -1, RP_ACT_NONE, -1);
    h = rp_graph_rope(m->graph, "rope", h, &rope);
    h = rp_graph_attention(m->graph, "attention", h, &attention);
    return rp_graph_gemm(m->graph, "out", h, add_weight(m, "out", WIDTH, WIDTH), -1, RP_ACT_NONE,
                         x);
}

/* A convolution, then the delta rule with one head of keys and two of values. */
static rp_value add_delta(struct model *m, rp_value x)
{
    const rp_gdn_gates gates = {.n_heads = 2,
                                .b_column = 2,
                                .a_log = add_weight(m, "a_log", 1, 2),
                                .dt_bias = add_weight(m, "dt_bias", 1, 2)};
    const rp_conv conv = {.w = add_weight(m, "conv", 64, 4), .b = -1, .activation = RP_ACT_SILU};
    const rp_gdn gdn = {.n_key_heads = 1,
                        .n_value_heads = 2,
                        .key_dim = 16,
                        .value_dim = 16,
                        .norm = RP_GDN_NORM_ROOT,
                        .eps = 1e-6f};
    rp_value h =
        rp_graph_gemm(m->graph, "in", x, add_weight(m, "in", 64, WIDTH), -1, RP_ACT_NONE, -1);
    h = rp_graph_conv(m->graph, "conv", h, &conv);
    rp_value g =
        rp_graph_gemm(m->graph, "ab", x, add_weight(m, "ab", 4, WIDTH), -1, RP_ACT_NONE, -1);
    g = rp_graph_gdn_gates(m->graph, "gates", g, &gates);
    h = rp_graph_gdn(m->graph, "core", h, g, &gdn);
    return rp_graph_gemm(m->graph, "down", h, add_weight(m, "down", WIDTH, WIDTH), -1, RP_ACT_NONE,
                         x);
}

/* Both kinds of layers, each kind twice. */
static void make_hybrid(struct model *m)
{
    begin_model(m);
    const rp_embed_table table = {.table = add_weight(m, "ids", VOCABULARY, WIDTH),
                                  .index = RP_INDEX_IDS};
    const rp_weight norm = add_weight(m, "norm", 1, WIDTH);
    const rp_rms_norm rms = {.w = norm, .offset = true, .eps = 1e-6f};
    rp_value x = rp_graph_embed(m->graph, "embed", 1, &table);
    for (int layer = 0; layer < 4; layer++) {
        x = layer % 2 ? add_attention(m, x, true) : add_delta(m, x);
        x = rp_graph_rms_norm(m->graph, "norm", x, &rms);
    }
    end_model(m, x);
}

static void free_model(struct model *m)
{
    rp_graph_destroy(m->graph);
    rp_weights_destroy(m->weights);
}

static rp_session *open_session(const struct model *m, rp_pool *pool)
{
    rp_session_options o;
    rp_session *s;
    rp_error err;
    rp_session_options_init(&o);
    o.pool = pool;
    o.poison = true;
    o.max_tokens = MAX_TOKENS;
    if (rp_session_create(m->graph, m->weights, &o, &s, &err) != RP_OK)
        fail_msg("%s", err.message);
    return s;
}

struct seen {
    size_t batches, sequences, tokens;
    size_t done;
};

static bool see(void *context, const rp_step_info *step)
{
    struct seen *seen = context;
    seen->batches += step->index == 0;
    return step->index == 0;
}

static rp_status count(void *context, const rp_step_info *step, const rp_view *result)
{
    (void)step;
    struct seen *seen = context;
    seen->tokens += result->rows;
    return RP_OK;
}

static void progress(void *context, size_t done, size_t total)
{
    struct seen *seen = context;
    assert_true(done > seen->done && done <= total);
    seen->done = done;
}

/* The rows of all texts, with `seen` filled. */
static void run(rp_session *s, const struct texts *t, bool reuse, size_t max_tokens,
                struct seen *seen, float *out)
{
    rp_error err;
    *seen = (struct seen){0};
    const rp_observer observer = {
        .struct_size = sizeof observer, .want = see, .show = count, .context = seen};
    const struct rp_batches how = {.session = s,
                                   .max_tokens = max_tokens,
                                   .reuse = reuse,
                                   .progress = progress,
                                   .progress_context = seen};
    rp_session_observe(s, &observer);
    if (rp_batches_run(&how, &t->batch, "row", WIDTH, out, &err) != RP_OK)
        fail_msg("%s", err.message);
    assert_int_equal(seen->done, t->batch.n_seqs);
}

static void compare(const struct model *m, int n_threads)
{
    static struct texts t;
    static float want[MAX_TEXTS * WIDTH], got[MAX_TEXTS * WIDTH];
    const size_t budgets[] = {1, 30, 64, 150, 400, MAX_TOKENS};
    rp_pool *pool = toy_pool(n_threads);
    rp_session *s = open_session(m, pool);
    for (size_t shared = 0; shared <= 140; shared += 20) {
        struct seen seen;
        begin(&t);
        add_many(&t, shared, 20, shared);
        add(&t, shared, 1, 3);
        add(&t, shared, 1, 3);
        const size_t n = t.batch.n_seqs;
        run(s, &t, false, MAX_TOKENS, &seen, want);
        assert_int_equal(seen.tokens, t.cu[n]);
        for (size_t b = 0; b < sizeof budgets / sizeof *budgets; b++) {
            memset(got, 0xff, sizeof got);
            run(s, &t, true, budgets[b], &seen, got);
            assert_memory_equal(got, want, n * WIDTH * sizeof *got);
        }
        assert_int_equal(seen.batches, 1);
        assert_int_equal(seen.tokens, (size_t)t.cu[n] - (n - 1) * shared);
    }
    rp_session_destroy(s);
    rp_pool_destroy(pool);
}

static void reuse_changes_no_bit(void **state)
{
    (void)state;
    static struct model m;
    for (int n_threads = 1; n_threads <= 2; n_threads++) {
        make_plain(&m);
        compare(&m, n_threads);
        free_model(&m);
        make_hybrid(&m);
        compare(&m, n_threads);
        free_model(&m);
    }
}

/* Models of the families with causal attention and delta rules, in either precision. */
static void reuse_changes_no_bit_of_a_model(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen3_embedding", "qwen3_reranker", "qwen3_next",
                                        "qwen3_5", "olmo_hybrid"};
    static struct texts t;
    enum { WIDEST = 256 };
    static float want[MAX_TEXTS * WIDEST], got[MAX_TEXTS * WIDEST];
    begin(&t);
    add_many(&t, 70, 12, 1);
    add(&t, 70, 0, 1); /* the beginning of all others */
    add(&t, 70, 5, 8);
    add(&t, 70, 5, 8);
    const size_t n = t.batch.n_seqs;
    for (size_t i = 0; i < 2 * sizeof names / sizeof *names; i++) {
        char path[512];
        rp_model_options options;
        rp_model_info info = {.struct_size = sizeof info};
        rp_model *model;
        rp_session *s;
        rp_error err;
        rp_pool *pool = toy_pool(2);
        snprintf(path, sizeof path, RP_TEST_DATA "/oracles/%s", names[i / 2]);
        rp_model_options_init(&options);
        options.precision = i % 2 ? RP_PRECISION_INT8 : RP_PRECISION_FP32;
        if (rp_model_load(path, &options, &model, &err) != RP_OK)
            fail_msg("%s", err.message);
        rp_model_get_info(model, &info);
        assert_true(rp_graph_is_causal(rp_model_graph(model)));
        const bool embeds = info.task == RP_TASK_EMBED;
        const size_t width = embeds ? info.dimension : info.n_labels;
        const char *output = embeds ? "embedding" : "logits";
        assert_true(width <= WIDEST);
        rp_session_options o;
        rp_session_options_init(&o);
        o.pool = pool;
        o.poison = true;
        assert_int_equal(
            rp_session_create(rp_model_graph(model), rp_model_weights(model), &o, &s, NULL), RP_OK);
        for (size_t max_tokens = 250; max_tokens < 5000; max_tokens *= 4) {
            struct rp_batches how = {.session = s, .max_tokens = max_tokens};
            assert_int_equal(rp_batches_run(&how, &t.batch, output, width, want, NULL), RP_OK);
            how.reuse = true;
            memset(got, 0xff, sizeof got);
            assert_int_equal(rp_batches_run(&how, &t.batch, output, width, got, NULL), RP_OK);
            if (memcmp(got, want, n * width * sizeof *got) != 0)
                fail_msg("%s, precision %d, budget %zu", names[i / 2], (int)options.precision,
                         max_tokens);
        }
        rp_session_destroy(s);
        rp_model_destroy(model);
        rp_pool_destroy(pool);
    }
}

static void causal_graphs(void **state)
{
    (void)state;
    static struct model m;
    for (int causal = 0; causal < 2; causal++) {
        begin_model(&m);
        const rp_embed_table table = {.table = add_weight(&m, "ids", VOCABULARY, WIDTH),
                                      .index = RP_INDEX_IDS};
        const rp_value x = add_attention(&m, rp_graph_embed(m.graph, "embed", 1, &table), causal);
        assert_int_equal(rp_graph_is_causal(m.graph), causal);
        rp_graph_pool(m.graph, "last", x, RP_POOL_LAST);
        assert_int_equal(rp_graph_is_causal(m.graph), causal);
        rp_graph_pool(m.graph, "mean", x, RP_POOL_MEAN);
        assert_false(rp_graph_is_causal(m.graph));
        free_model(&m);
    }
}

/* What the prefix alone computes is nobody's result, whatever it is; and a text's own failure has
 * the words that it has without reuse. */
static void a_bad_row_of_the_prefix_is_no_failure(void **state)
{
    (void)state;
    enum { BAD = VOCABULARY - 1, N = 4 };
    static struct texts t;
    static struct model m;
    static float want[N * WIDTH], got[N * WIDTH];
    struct seen seen;
    rp_error errs[2];
    make_plain(&m);
    for (size_t j = 0; j < WIDTH; j++)
        m.numbers[BAD * WIDTH + j] = 3e38f; /* its product overflows */
    begin(&t);
    for (size_t i = 0; i < N; i++) {
        add(&t, 20, 5, i);
        t.ids[t.cu[i] + 19] = BAD; /* the prefix's last */
        t.ids[t.cu[i] + 20] = (int32_t)i;
        t.ids[t.cu[i] + 24] = 7;
    }
    assert_int_equal(rp_prefix_shared(&t.batch), 20);
    rp_session *s = open_session(&m, NULL);
    run(s, &t, false, 60, &seen, want);
    run(s, &t, true, 60, &seen, got);
    assert_memory_equal(got, want, sizeof want);
    t.ids[t.cu[2] + 24] = BAD;
    for (int reuse = 0; reuse < 2; reuse++) {
        const struct rp_batches how = {.session = s, .max_tokens = MAX_TOKENS, .reuse = reuse};
        assert_int_equal(rp_batches_run(&how, &t.batch, "row", WIDTH, got, &errs[reuse]),
                         RP_ERR_NONFINITE);
    }
    assert_string_equal(errs[1].message, errs[0].message);
    assert_non_null(strstr(errs[0].message, "texts 0 to 3: output row, row 2 (of seqs)"));
    rp_session_destroy(s);
    free_model(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_prefix_is_what_all_begin_with),
        cmocka_unit_test(every_text_keeps_a_token),
        cmocka_unit_test(segments_are_shared_too),
        cmocka_unit_test(a_batch_has_the_prefix_once),
        cmocka_unit_test(the_budget_counts_the_prefix_once),
        cmocka_unit_test(reuse_changes_no_bit),
        cmocka_unit_test(reuse_changes_no_bit_of_a_model),
        cmocka_unit_test(causal_graphs),
        cmocka_unit_test(a_bad_row_of_the_prefix_is_no_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
