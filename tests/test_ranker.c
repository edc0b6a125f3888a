/* Rankers: text in, score out, equal to the ids' score; nothing depends on batches, threads or
 * neighbours. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <rankplan/rankplan.h>

#include "text/similarity.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL RP_MODELS_DIR "/apt-bert-tiny"

static const char *const documents[] = {
    "This package contains a screen magnifier for low-vision users.",
    "A small and fast HTTP server written in C, with TLS and virtual hosts.",
    "",
    "Fonts for the Thai script.",
    "日本語のテキスト and e\xCC\x81migr\xC3\xA9 👩‍👩‍👧",
    "web server web server web server",
    "Fonts for the Thai script.",
};
#define N (sizeof documents / sizeof *documents)

struct fixture {
    rp_model *model;
    rp_tokenizer *tokenizer;
    rp_text_ref texts[N];
};

static rp_text_ref ref(const char *s)
{
    return (rp_text_ref){.data = s, .length = strlen(s)};
}

static int make(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    rp_error err;
    assert_non_null(f);
    if (rp_model_load(MODEL, NULL, &f->model, &err) != RP_OK)
        fail_msg("%s", err.message);
    if (rp_tokenizer_available())
        assert_int_equal(rp_tokenizer_load(MODEL "/tokenizer.json", &f->tokenizer, &err), RP_OK);
    for (size_t i = 0; i < N; i++)
        f->texts[i] = ref(documents[i]);
    *state = f;
    return 0;
}

static int unmake(void **state)
{
    struct fixture *f = *state;
    rp_tokenizer_free(f->tokenizer);
    rp_model_destroy(f->model);
    free(f);
    return 0;
}

static rp_ranker *make_ranker(struct fixture *f, rp_pool *pool, size_t max_length, size_t budget)
{
    rp_ranker_options o;
    rp_ranker *r;
    rp_error err;
    if (!f->tokenizer)
        skip();
    rp_ranker_options_init(&o);
    o.pool = pool;
    o.max_length = max_length;
    o.max_batch_tokens = budget;
    if (rp_ranker_create(f->model, f->tokenizer, &o, &r, &err) != RP_OK)
        fail_msg("%s", err.message);
    return r;
}

static void scores_are_those_of_the_ids(void **state)
{
    struct fixture *f = *state;
    rp_ranker *r = make_ranker(f, NULL, 0, 4096);
    const rp_text_ref query = ref("web server");
    float scores[N];
    rp_text_info infos[N];
    assert_int_equal(rp_ranker_score(r, query, N, f->texts, scores, infos, NULL), RP_OK);
    rp_session *s;
    assert_int_equal(
        rp_session_create(rp_model_graph(f->model), rp_model_weights(f->model), NULL, &s, NULL),
        RP_OK);
    for (size_t i = 0; i < N; i++) {
        rp_encode_options o;
        rp_encoding e = {0};
        rp_batch b;
        rp_view v;
        rp_encode_options_init(&o);
        o.max_length = 192;
        assert_int_equal(rp_tokenizer_encode_pair(f->tokenizer, query.data, query.length,
                                                  f->texts[i].data, f->texts[i].length, &o, &e,
                                                  NULL),
                         RP_OK);
        const int32_t cu[] = {0, (int32_t)e.n};
        rp_batch_init(&b);
        b.n_seqs = 1;
        b.ids = e.ids;
        b.type_ids = e.type_ids;
        b.cu = cu;
        assert_int_equal(rp_session_run(s, &b, NULL), RP_OK);
        assert_int_equal(rp_session_output(s, "scores", &v, NULL), RP_OK);
        assert_memory_equal(v.data, &scores[i], sizeof(float));
        assert_int_equal(infos[i].tokens, e.n);
        assert_int_equal(infos[i].full_tokens, e.n);
        assert_false(infos[i].truncated);
        rp_encoding_free(&e);
    }
    assert_true(scores[1] > scores[0] && scores[1] > scores[3]);
    assert_memory_equal(&scores[3], &scores[6], sizeof(float));
    rp_session_destroy(s);
    rp_ranker_destroy(r);
}

static void scores_do_not_depend_on_batches_or_threads(void **state)
{
    struct fixture *f = *state;
    float want[N], got[N];
    rp_pool_options o;
    rp_pool *pool;
    rp_ranker *r = make_ranker(f, NULL, 0, 4096);
    assert_int_equal(rp_ranker_score(r, ref("fonts"), N, f->texts, want, NULL, NULL), RP_OK);
    rp_ranker_destroy(r);
    rp_pool_options_init(&o);
    o.n_threads = 3;
    assert_int_equal(rp_pool_create(&o, &pool, NULL), RP_OK);
    const size_t budgets[] = {1, 8, 30, 64, 100000};
    for (size_t b = 0; b < sizeof budgets / sizeof *budgets; b++) {
        r = make_ranker(f, pool, 0, budgets[b]);
        assert_int_equal(rp_ranker_score(r, ref("fonts"), N, f->texts, got, NULL, NULL), RP_OK);
        assert_memory_equal(got, want, sizeof want);
        rp_ranker_destroy(r);
    }
    rp_pool_destroy(pool);
}

static void truncation_is_told(void **state)
{
    struct fixture *f = *state;
    rp_ranker *r = make_ranker(f, NULL, 12, 4096);
    float scores[N];
    rp_text_info infos[N];
    assert_int_equal(rp_ranker_max_length(r), 12);
    assert_int_equal(rp_ranker_score(r, ref("web server"), N, f->texts, scores, infos, NULL),
                     RP_OK);
    assert_true(infos[0].truncated);
    assert_int_equal(infos[0].tokens, 12);
    assert_true(infos[0].full_tokens > 12);
    assert_false(infos[2].truncated);
    rp_ranker_destroy(r);
}

static void what_cannot_be_is_refused(void **state)
{
    struct fixture *f = *state;
    rp_ranker *r = make_ranker(f, NULL, 0, 4096);
    float out[N * 128];
    rp_error err;
    assert_int_equal(rp_ranker_embed(r, NULL, N, f->texts, out, NULL, &err), RP_ERR_UNSUPPORTED);
    assert_string_equal(err.message,
                        "BertForSequenceClassification is a classifier and has no embeddings");
    f->texts[4] = ref("bad \xff bytes");
    assert_int_equal(rp_ranker_score(r, ref("q"), N, f->texts, out, NULL, &err), RP_ERR_INVALID);
    assert_non_null(strstr(err.message, "text 4: "));
    f->texts[4] = ref(documents[4]);
    assert_int_equal(rp_ranker_score(r, ref("\xff"), N, f->texts, out, NULL, &err), RP_ERR_INVALID);
    assert_non_null(strstr(err.message, "the query: "));
    assert_int_equal(rp_ranker_score(r, ref("q"), 0, NULL, out, NULL, NULL), RP_OK);
    assert_int_equal(rp_ranker_score(r, ref("q"), N, f->texts, out, NULL, NULL), RP_OK);
    rp_ranker_destroy(r);

    rp_ranker_options o;
    rp_ranker_options_init(&o);
    o.max_length = 193;
    r = NULL;
    assert_int_equal(rp_ranker_create(f->model, f->tokenizer, &o, &r, &err), RP_ERR_INVALID);
    assert_null(r);
    assert_non_null(strstr(err.message, "max_length 193 is above the model's 192"));
    o.max_length = 0;
    o.max_batch_tokens = 0;
    assert_int_equal(rp_ranker_create(f->model, f->tokenizer, &o, &r, &err), RP_ERR_INVALID);
}

static void cancel_after_two(void *context, size_t done, size_t total)
{
    (void)total;
    if (done == 2)
        rp_cancel_set(context);
}

static void cancelled_between_batches(void **state)
{
    struct fixture *f = *state;
    rp_ranker_options o;
    rp_cancel *cancel;
    rp_ranker *r;
    rp_error err;
    float want[N], got[N];
    r = make_ranker(f, NULL, 0, 4096);
    assert_int_equal(rp_ranker_score(r, ref("fonts"), N, f->texts, want, NULL, NULL), RP_OK);
    rp_ranker_destroy(r);
    assert_int_equal(rp_cancel_create(&cancel, NULL), RP_OK);
    rp_ranker_options_init(&o);
    o.max_batch_tokens = 1; /* each text alone */
    o.progress = cancel_after_two;
    o.progress_context = cancel;
    assert_int_equal(rp_ranker_create(f->model, f->tokenizer, &o, &r, NULL), RP_OK);
    rp_session_set_cancel(rp_ranker_session(r), cancel);
    assert_int_equal(rp_ranker_score(r, ref("fonts"), N, f->texts, got, NULL, &err),
                     RP_ERR_CANCELLED);
    assert_string_equal(err.message, "texts 2 to 2: cancelled, nothing was run");
    assert_int_equal(rp_ranker_score(r, ref("fonts"), N, f->texts, got, NULL, &err),
                     RP_ERR_CANCELLED);
    assert_string_equal(err.message, "cancelled, nothing was run");
    rp_session_set_cancel(rp_ranker_session(r), NULL);
    assert_int_equal(rp_ranker_score(r, ref("fonts"), N, f->texts, got, NULL, NULL), RP_OK);
    assert_memory_equal(got, want, sizeof want);
    rp_ranker_destroy(r);
    rp_cancel_destroy(cancel);
}

/* The deadline holds for the whole request: it may pass while texts are tokenised, too. */
static void a_deadline_for_a_request(void **state)
{
    struct fixture *f = *state;
    enum { MANY = 400 };
    static char long_text[20000];
    static rp_text_ref many[MANY];
    static float scores[MANY];
    rp_error err;
    rp_ranker *r = make_ranker(f, NULL, 0, 4096);
    memset(long_text, 'a', sizeof long_text);
    for (size_t i = 0; i < sizeof long_text; i += 5)
        long_text[i] = ' ';
    for (size_t i = 0; i < MANY; i++)
        many[i] = (rp_text_ref){.data = long_text, .length = sizeof long_text};
    rp_session_set_deadline(rp_ranker_session(r), rp_now_ns());
    assert_int_equal(rp_ranker_score(r, ref("fonts"), MANY, many, scores, NULL, &err),
                     RP_ERR_DEADLINE);
    assert_string_equal(err.message, "the deadline has passed, nothing was run");
    /* Tokenising 8 MB takes far longer than 50 ms, and starting to does not. */
    rp_session_set_deadline(rp_ranker_session(r), rp_now_ns() + 50000000);
    assert_int_equal(rp_ranker_score(r, ref("fonts"), MANY, many, scores, NULL, &err),
                     RP_ERR_DEADLINE);
    assert_string_equal(err.message, "the deadline has passed, while the texts were tokenised");
    rp_session_set_deadline(rp_ranker_session(r), RP_NO_DEADLINE);
    assert_int_equal(rp_ranker_score(r, ref("fonts"), 1, many, scores, NULL, NULL), RP_OK);
    rp_ranker_destroy(r);
}

static void ranks_are_stable(void **state)
{
    (void)state;
    const float scores[] = {1, 3, 2, 3, 1, -INFINITY, 3, 2};
    const size_t want[] = {1, 3, 6, 2, 7, 0, 4, 5};
    size_t order[8];
    rp_rank(scores, 8, order);
    assert_memory_equal(order, want, sizeof want);
    rp_rank(scores, 0, order);
    rp_rank(scores, 1, order);
    assert_int_equal(order[0], 0);
}

static void ranks_of_many(void **state)
{
    (void)state;
    enum { MANY = 5000 };
    static float scores[MANY];
    static size_t order[MANY];
    static unsigned char seen[MANY];
    uint32_t x = 12345;
    for (size_t i = 0; i < MANY; i++) {
        x = x * 1664525u + 1013904223u;
        scores[i] = (float)(x >> 22); /* many ties */
    }
    rp_rank(scores, MANY, order);
    for (size_t i = 0; i < MANY; i++) {
        assert_false(seen[order[i]]);
        seen[order[i]] = 1;
        if (i && scores[order[i - 1]] == scores[order[i]])
            assert_true(order[i - 1] < order[i]);
        else if (i)
            assert_true(scores[order[i - 1]] > scores[order[i]]);
    }
}

static void similarities(void **state)
{
    (void)state;
    const float a[] = {3, 4, 0}, b[] = {0, 4, 3}, zero[] = {0, 0, 0};
    assert_true(rp_similarity_of(RP_SIM_DOT, a, b, 3) == 16);
    assert_true(fabsf(rp_similarity_of(RP_SIM_COSINE, a, b, 3) - 0.64f) < 1e-7f);
    assert_true(rp_similarity_of(RP_SIM_COSINE, a, a, 3) == 1);
    assert_true(rp_similarity_of(RP_SIM_COSINE, a, zero, 3) == 0);
    assert_true(fabsf(rp_similarity_of(RP_SIM_EUCLIDEAN, a, b, 3) + sqrtf(18)) < 1e-6f);
    assert_true(rp_similarity_of(RP_SIM_MANHATTAN, a, b, 3) == -6);
    float wide[40], ones[40];
    for (int i = 0; i < 40; i++) {
        wide[i] = (float)i;
        ones[i] = 1;
    }
    assert_true(rp_similarity_of(RP_SIM_DOT, wide, ones, 40) == 780);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make, unmake)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(scores_are_those_of_the_ids),  TEST(scores_do_not_depend_on_batches_or_threads),
        TEST(truncation_is_told),           TEST(what_cannot_be_is_refused),
        TEST(cancelled_between_batches),    TEST(a_deadline_for_a_request),
        cmocka_unit_test(ranks_are_stable), cmocka_unit_test(ranks_of_many),
        cmocka_unit_test(similarities),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
