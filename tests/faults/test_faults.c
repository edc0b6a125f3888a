/* A whole life of the library with a call that fails: pool, model, session, run, digest, profile,
 * all destroyed again, with the N-th call of a kind failing, for each N until nothing is left to
 * fail. Every time there is an error with a message or the bits of an undisturbed life; nothing
 * leaks.
 *
 *     test_faults         every 7th allocation, every N of the other kinds
 *     test_faults --all   every N
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <rankplan/rankplan.h>

#include "tests/faults/faults.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_STEPS 64

static bool every_n;

struct life {
    const char *folder; /* NULL: a graph built here, */
    bool int8;          /* in INT8 */
    rp_graph *graph;
    rp_weights *weights;
    rp_pool *pool;
    rp_model *model;
    rp_session *session;
    rp_plan *plan;
    uint64_t whole;
};

static rp_status run_session(struct life *l, rp_error *err)
{
    static const int32_t ids[] = {2, 17, 5, 3, 2, 44, 45, 46, 47, 3}, cu[] = {0, 4, 10};
    uint64_t hashes[MAX_STEPS];
    rp_digest d = {.struct_size = sizeof d, .capacity = MAX_STEPS, .hashes = hashes};
    rp_profile profile = {.struct_size = sizeof profile};
    rp_batch b;
    rp_batch_init(&b);
    b.n_seqs = 2;
    b.ids = ids;
    b.cu = cu;
    rp_status s = rp_session_run(l->session, &b, err);
    if (s == RP_OK)
        s = rp_session_digest(l->session, &b, &d, err);
    l->whole = d.whole;
    if (s == RP_OK)
        s = rp_session_profile_start(l->session, 100, err);
    if (s == RP_OK)
        s = rp_session_run(l->session, &b, err);
    if (s == RP_OK)
        s = rp_session_profile(l->session, &profile, err);
    return s == RP_OK ? rp_session_reserve(l->session, 40, 20, 0, err) : s;
}

/* Experts of four columns, on halves of themselves as logits. */
static rp_status add_experts(struct life *l, rp_value *x, rp_error *err)
{
    static const float numbers[4 * 4] = {0.5f, -0.25f, 1};
    const rp_weight_part part = {.rows = 4, .data = numbers};
    rp_weight up[2], down[2];
    rp_status s = RP_OK;
    for (int e = 0; e < 2 && s == RP_OK; e++) {
        s = rp_weights_add(l->weights, "up", 4, 1, &part, &up[e], err);
        if (s == RP_OK)
            s = rp_weights_add(l->weights, "down", 2, 1, &part, &down[e], err);
    }
    if (s != RP_OK)
        return s;
    const rp_experts experts = {.n_experts = 2, .n_used = 1, .up = up, .down = down};
    const rp_value logits = rp_graph_glu(l->graph, "logits", *x, RP_ACT_NONE);
    *x = rp_graph_experts(l->graph, "experts", *x, logits, &experts, *x);
    return RP_OK;
}

/* What no folder's model has: rotary positions of both kinds, a gate, a window and experts. */
static rp_status build_graph(struct life *l, rp_error *err)
{
    static const float numbers[50 * 24] = {0.5f, -0.25f, 1};
    static const double given[] = {1, 0.25};
    const rp_weight_part part = {.rows = 50, .data = numbers};
    const rp_rope first = {.n_heads = 4, .head_dim = 4, .theta = 10000};
    const rp_rope second = {.n_heads = 2, .head_dim = 4, .inv_freq = given};
    const rp_attention near = {.n_heads = 2, .head_dim = 4, .rel_bias = -1, .window = 1};
    rp_embed_table word = {.index = RP_INDEX_IDS};
    rp_status s = rp_graph_create(&l->graph, err);
    if (s == RP_OK)
        s = rp_weights_create(&l->weights, err);
    if (s == RP_OK)
        s = rp_weights_add(l->weights, "word", 24, 1, &part, &word.table, err);
    if (s != RP_OK)
        return s;
    rp_value x = rp_graph_embed(l->graph, "embed", 1, &word);
    x = rp_graph_rope(l->graph, "first", x, &first);
    x = rp_graph_rope(l->graph, "second", x, &second);
    x = rp_graph_attention(l->graph, "near", x, &near);
    x = rp_graph_glu(l->graph, "gate", x, RP_ACT_GELU);
    s = add_experts(l, &x, err);
    rp_graph_output(l->graph, "y", x, RP_ROWS_TOKENS, 4);
    return s;
}

static rp_status live_with_graph(struct life *l, rp_error *err)
{
    const rp_bucket bucket = {.tokens = 8, .seqs = 1};
    rp_session_options so;
    rp_session_options_init(&so);
    rp_status s = build_graph(l, err);
    if (s == RP_OK && l->int8)
        s = rp_weights_quantize(l->weights, l->graph, NULL, err);
    if (s == RP_OK)
        s = rp_session_create(l->graph, l->weights, &so, &l->session, err);
    if (s == RP_OK)
        s = run_session(l, err);
    if (s == RP_OK)
        s = rp_plan_compile(l->graph, l->weights, &bucket, NULL, &l->plan, err);
    return s;
}

static rp_status live_once(struct life *l, rp_error *err)
{
    if (!l->folder)
        return live_with_graph(l, err);
    const rp_bucket bucket = {.tokens = 8, .seqs = 1};
    rp_pool_options po;
    rp_model_options mo;
    rp_session_options so;
    rp_pool_options_init(&po);
    rp_model_options_init(&mo);
    rp_session_options_init(&so);
    po.n_threads = 3;
    mo.flags = RP_MODEL_ALL_OUTPUTS;
    rp_status s = rp_pool_create(&po, &l->pool, err);
    mo.pool = so.pool = l->pool;
    if (s == RP_OK)
        s = rp_model_load(l->folder, &mo, &l->model, err);
    if (s == RP_OK)
        s = rp_session_create(rp_model_graph(l->model), rp_model_weights(l->model), &so,
                              &l->session, err);
    if (s == RP_OK)
        s = run_session(l, err);
    if (s == RP_OK)
        s = rp_plan_compile(rp_model_graph(l->model), rp_model_weights(l->model), &bucket, NULL,
                            &l->plan, err);
    return s;
}

static void end(struct life *l)
{
    rp_plan_destroy(l->plan);
    rp_session_destroy(l->session);
    rp_model_destroy(l->model);
    rp_graph_destroy(l->graph);
    rp_weights_destroy(l->weights);
    rp_pool_destroy(l->pool);
}

static bool fits(enum faults_kind kind, rp_status s)
{
    switch (kind) {
    case FAULTS_ALLOC: return s == RP_ERR_NOMEM || faults_in_jansson();
    case FAULTS_THREAD: return s == RP_ERR_SYSTEM;
    case FAULTS_OPEN:
    case FAULTS_READ: return s == RP_ERR_IO;
    default: return s == RP_ERR_NOMEM || s == RP_ERR_SYSTEM;
    }
}

/* How many lives like that one, which went well, had a failure in them. */
static long live_with_failures(const struct life *like, enum faults_kind kind, long step)
{
    const char *folder = like->folder ? like->folder : like->int8 ? "a graph, int8" : "a graph";
    long refused = 0, unharmed = 0;
    for (long n = 1;; n += step) {
        struct life l = {.folder = like->folder, .int8 = like->int8};
        rp_error err = {0};
        const long before = faults_live();
        faults_arm(kind, n);
        const rp_status s = live_once(&l, &err);
        const bool hit = faults_disarm();
        end(&l);
        if (faults_live() != before)
            fail_msg("call %ld: %ld blocks are lost", n, faults_live() - before);
        if (s == RP_OK)
            assert_int_equal(l.whole, like->whole);
        else if (!fits(kind, s) || err.status != s || !err.message[0])
            fail_msg("call %ld: %s: %s", n, rp_status_name(s), err.message);
        if (!hit) {
            assert_int_equal(s, RP_OK);
            break;
        }
        refused += s != RP_OK;
        unharmed += s == RP_OK;
    }
    print_message("%s: %ld failures refused, %ld without effect\n", folder, refused, unharmed);
    return refused + unharmed;
}

static void each_call_fails(void **state)
{
    (void)state;
    static const char *const folders[] = {"bert", "mpnet", "modernbert_reranker_mean",
                                          "electra_cross_encoder", "decision"};
    if (!faults_available())
        skip();
    for (size_t f = 0; f < (every_n ? 5 : 3); f++) {
        char path[400];
        struct life l = {.folder = path};
        rp_error err;
        snprintf(path, sizeof path, "%s/oracles/%s", RP_TEST_DATA, folders[f]);
        /* What is made once and kept is made now. */
        if (live_once(&l, &err) != RP_OK)
            fail_msg("%s", err.message);
        end(&l);
        const long step = every_n ? 1 : 7;
        assert_true(live_with_failures(&l, FAULTS_ALLOC, step) > 500 / step);
        assert_true(live_with_failures(&l, FAULTS_THREAD, 1) >= 2);
        assert_true(live_with_failures(&l, FAULTS_OPEN, 1) >= 2);
        assert_true(live_with_failures(&l, FAULTS_READ, 1) >= 20);
        (void)live_with_failures(&l, FAULTS_MMAP, 1);
    }
}

static void each_call_fails_around_a_graph(void **state)
{
    (void)state;
    if (!faults_available())
        skip();
    for (int int8 = 0; int8 < 2; int8++) {
        struct life l = {.int8 = int8};
        rp_error err;
        if (live_once(&l, &err) != RP_OK)
            fail_msg("%s", err.message);
        end(&l);
        assert_true(live_with_failures(&l, FAULTS_ALLOC, 1) > 50);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_call_fails),
                                       cmocka_unit_test(each_call_fails_around_a_graph)};
    every_n = argc > 1 && strcmp(argv[1], "--all") == 0;
    return cmocka_run_group_tests_name("faults", tests, NULL, NULL);
}
