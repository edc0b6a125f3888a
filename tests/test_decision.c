/* What a decision scorer needs beside an encoder: the table of question types, the act head's
 * features, and both as steps of a plan. */
#include "ops/ops.h"
#include "plan/plan.h"
#include "tests/alloc_count.h"
#include "tests/floats.h"
#include "tests/ops_tables.h"
#include "tests/toy.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SEED     UINT64_C(0x64656369)
#define COUNT(a) (sizeof(a) / sizeof *(a))

/* ---- kernels ------------------------------------------------------------------------------------
 */

/* All tables give what the first one does, and read no logit past the last, behind which no memory
 * is. */
static uint64_t check_features(size_t width, size_t n, bool special, uint64_t *random,
                               uint64_t digest)
{
    float *x = guard_alloc(width * sizeof *x), *logits = guard_alloc(n * sizeof *logits);
    float *want = guard_alloc((width + 4) * sizeof *want),
          *y = guard_alloc((width + 4) * sizeof *y);
    for (size_t i = 0; i < width; i++)
        x[i] = random_float(random, 3);
    for (size_t i = 0; i < n; i++)
        logits[i] = special ? random_special(random) : random_float(random, 8);
    for (size_t t = 0; t < n_tables; t++) {
        tables[t]->act_features(x, width, logits, n, t ? y : want);
        for (size_t i = 0; t && i < width + 4; i++)
            if (!float_same(y[i], want[i]))
                fail_msg("%s, %zu logits, column %zu: %a, not %a", tables[t]->name, n, i, y[i],
                         want[i]);
    }
    digest = float_digest(want, width + 4, digest);
    guard_free(x, width * sizeof *x);
    guard_free(logits, n * sizeof *logits);
    guard_free(want, (width + 4) * sizeof *want);
    guard_free(y, (width + 4) * sizeof *y);
    return digest;
}

static void features_have_the_same_bits_everywhere(void **state)
{
    (void)state;
    const uint64_t golden = UINT64_C(0xae7f1b7281f96b9f);
    uint64_t random = SEED, digest = 0;
    for (int special = 0; special < 2; special++)
        for (size_t n = 1; n <= 70; n++)
            digest = check_features(1 + n % 19, n, special, &random, digest);
    digest = check_features(128, 255, false, &random, digest);
    if (digest != golden)
        fail_msg("digest of all results %#llx, not %#llx", (unsigned long long)digest,
                 (unsigned long long)golden);
}

/* The formula of the header, in double precision. */
static void features_in_double(const float *logits, size_t n, double out[4])
{
    const double k = n > 2 ? (double)n : 2;
    double first = -INFINITY, second = 0, sum = 0, top = -INFINITY, entropy = 0;
    for (size_t i = 0; i < n; i++)
        top = fmax(top, logits[i]);
    for (size_t i = 0; i < n; i++)
        sum += exp(logits[i] - top);
    for (size_t i = 0; i < n; i++) {
        const double p = exp(logits[i] - top) / sum;
        entropy += p * log(fmax(p, 1e-9));
        second = p > first ? fmax(first, 0) : fmax(second, p);
        first = fmax(first, p);
    }
    out[0] = first;
    out[1] = first - second;
    out[2] = -entropy / log(k);
    out[3] = k / 255;
}

static void features_are_accurate(void **state)
{
    (void)state;
    uint64_t random = SEED;
    for (size_t n = 1; n <= 255; n++) {
        float logits[255], y[5];
        const float one = 1;
        double exact[4];
        for (size_t i = 0; i < n; i++)
            logits[i] = random_float(&random, n % 3 ? 4 : 40); /* also p below the clamp */
        features_in_double(logits, n, exact);
        for (size_t t = 0; t < n_tables; t++) {
            tables[t]->act_features(&one, 1, logits, n, y);
            assert_true(y[0] == 1);
            for (int i = 0; i < 4; i++)
                if (!(fabs(y[1 + i] - exact[i]) <= 5e-7))
                    fail_msg("%s, %zu logits, number %d: %.9g, not %.9g", tables[t]->name, n, i,
                             (double)y[1 + i], exact[i]);
        }
    }
}

/* Probabilities at a temperature: the formula, no lane past the last, and x as the place of y. */
static void softmax_is_accurate(void **state)
{
    (void)state;
    uint64_t random = SEED;
    for (size_t n = 1; n <= 70; n++) {
        const float temperature = 0.5f + 0.1f * (float)n;
        float *x = guard_alloc(n * sizeof *x), want[70];
        double exact[70], sum = 0, top = -INFINITY;
        for (size_t i = 0; i < n; i++) {
            x[i] = random_float(&random, 10);
            top = fmax(top, (double)x[i] / (double)temperature);
        }
        for (size_t i = 0; i < n; i++)
            sum += exact[i] = exp((double)x[i] / (double)temperature - top);
        for (size_t t = 0; t < n_tables; t++) {
            float y[71];
            y[n] = 7;
            tables[t]->softmax(x, n, temperature, y);
            assert_true(y[n] == 7);
            if (t == 0)
                memcpy(want, y, n * sizeof *y);
            assert_memory_equal(y, want, n * sizeof *y);
            for (size_t i = 0; i < n; i++)
                assert_true(fabs(y[i] - exact[i] / sum) <= 1e-6);
        }
        tables[n_tables - 1]->softmax(x, n, temperature, x);
        assert_memory_equal(x, want, n * sizeof *x);
        guard_free(x, n * sizeof *x);
    }
}

static void expect_features(const float *logits, size_t n, float top1, float margin, float entropy,
                            float count)
{
    const float want[4] = {top1, margin, entropy, count};
    for (size_t t = 0; t < n_tables; t++) {
        float y[6];
        tables[t]->act_features(NULL, 2, logits, n, y);
        assert_true(y[0] == 0 && y[1] == 0);
        for (int i = 0; i < 4; i++)
            if (!(fabsf(y[2 + i] - want[i]) <= 1e-6f))
                fail_msg("%s, number %d: %.9g, not %.9g", tables[t]->name, i, (double)y[2 + i],
                         (double)want[i]);
    }
}

static void edge_cases_of_features(void **state)
{
    (void)state;
    const float some[] = {1, 1, -1000, 0};
    expect_features(NULL, 0, 0, 0, 0, 2.0f / 255);     /* no markers: the count alone */
    expect_features(some, 1, 1, 1, 0, 2.0f / 255);     /* one: top2 is 0, k is 2 */
    expect_features(some, 2, 0.5f, 0, 1, 2.0f / 255);  /* a tie */
    expect_features(some + 2, 2, 1, 1, 0, 2.0f / 255); /* one that the softmax does not see */
    float many[255] = {0};
    expect_features(many, 255, 1.0f / 255, 0, 1, 1);
    /* p is at least 1e-9 where its logarithm is taken: -p log(1e-9), and not -p log(p). */
    const float far[] = {0, -25};
    const double clamped = -exp(-25.0) * log(1e-9) / log(2);
    for (size_t t = 0; t < n_tables; t++) {
        float y[4];
        tables[t]->act_features(NULL, 0, far, 2, y);
        assert_true(fabs(y[2] - clamped) <= 1e-5 * clamped);
    }
    /* What is no number is in the result, so that a run reports it. */
    const float bad[][2] = {{0, NAN}, {NAN, 0}, {INFINITY, 0}, {-INFINITY, -INFINITY}};
    for (size_t i = 0; i < COUNT(bad); i++)
        for (size_t t = 0; t < n_tables; t++) {
            float y[4];
            tables[t]->act_features(NULL, 0, bad[i], 2, y);
            assert_true(isnan(y[0]) && isnan(y[1]) && isnan(y[2]) && y[3] == 2.0f / 255);
        }
}

/* One row of the table, of any type, to each row; in place or not. */
static void a_table_is_added(void **state)
{
    (void)state;
    static const uint32_t wide[] = {0x3f800000, 0xc0200000, 0x3e000000};
    static const int32_t index[] = {2, 0, 2};
    const size_t widths[] = {1, 15, 16, 40};
    uint64_t random = SEED;
    for (size_t k = 0; k < COUNT(widths); k++) {
        const size_t width = widths[k];
        float table32[3 * 40], x[3 * 41], y[3 * 41];
        uint16_t table16[3 * 40];
        for (size_t i = 0; i < 3 * width; i++) { /* numbers that both types hold */
            table32[i] = float_of(wide[random_next(&random) % 3]);
            table16[i] = (uint16_t)(float_bits(table32[i]) >> 16);
        }
        for (size_t i = 0; i < 3 * 41; i++)
            x[i] = random_float(&random, 2);
        for (size_t t = 0; t < n_tables; t++)
            for (int half = 0; half < 2; half++) {
                const struct rp_ops_table table = {half ? (const void *)table16 : table32, index,
                                                   half ? RP_DTYPE_BF16 : RP_DTYPE_F32};
                float in_place[3 * 41];
                memcpy(in_place, x, sizeof x);
                memset(y, 0x55, sizeof y);
                tables[t]->add_table(&table, x, 41, width, y, 41, 3);
                tables[t]->add_table(&table, in_place, 41, width, in_place, 41, 3);
                for (size_t r = 0; r < 3; r++)
                    for (size_t c = 0; c < 41; c++) {
                        const size_t at = r * 41 + c;
                        const bool inside = c < width;
                        const float sum =
                            inside ? x[at] + table32[(size_t)index[r] * width + c] : x[at];
                        assert_true(in_place[at] == sum);
                        assert_true(inside ? y[at] == sum : float_bits(y[at]) == 0x55555555);
                    }
            }
    }
}

/* ---- in a graph ---------------------------------------------------------------------------------
 */

/* tokens x 8 with two layers between, so that steps form segments; type table of 3. */
struct scorer {
    struct toy t; /* graph and weights alone */
    float word[10 * 8], types[3 * 8], w[2][64], out[8];
    rp_value x;
};

static rp_weight weight(struct scorer *s, const char *name, size_t rows, size_t cols, float *data)
{
    const rp_weight_part part = {.rows = rows, .dtype = RP_DTYPE_F32, .data = data};
    rp_weight w;
    for (size_t i = 0; i < rows * cols; i++)
        data[i] = toy_uniform(&s->t.state);
    assert_int_equal(rp_weights_add(s->t.weights, name, cols, 1, &part, &w, NULL), RP_OK);
    return w;
}

/* Outputs: "x" after the types (when wanted), "logits", "features". */
static void scorer_make(struct scorer *s, bool show_x)
{
    memset(s, 0, sizeof *s);
    s->t.state = SEED;
    assert_int_equal(rp_graph_create(&s->t.graph, NULL), RP_OK);
    assert_int_equal(rp_weights_create(&s->t.weights, NULL), RP_OK);
    rp_graph *g = s->t.graph;
    const rp_embed_table table = {weight(s, "word", 10, 8, s->word), RP_INDEX_IDS, 0};
    rp_value x = rp_graph_embed(g, "embed", 1, &table);
    x = rp_graph_gemm(g, "up", x, weight(s, "w0", 8, 8, s->w[0]), -1, RP_ACT_TANH, -1);
    x = rp_graph_add_types(g, "types", x, weight(s, "type_emb", 3, 8, s->types));
    s->x = x;
    if (show_x)
        rp_graph_output(g, "x", x, RP_ROWS_TOKENS, 8);
    x = rp_graph_gemm(g, "down", x, weight(s, "w1", 8, 8, s->w[1]), -1, RP_ACT_NONE, x);
    const rp_value m = rp_graph_gather_markers(g, "markers", x);
    const rp_value logits =
        rp_graph_gemm(g, "logits", m, weight(s, "out", 1, 8, s->out), -1, RP_ACT_NONE, -1);
    rp_graph_output(g, "logits", logits, RP_ROWS_MARKERS, 1);
    const rp_value first = rp_graph_pool(g, "first", x, RP_POOL_CLS);
    rp_graph_output(g, "features", rp_graph_act_features(g, "features", first, logits),
                    RP_ROWS_SEQS, 12);
}

static void scorer_free(struct scorer *s)
{
    rp_graph_destroy(s->t.graph);
    rp_weights_destroy(s->t.weights);
}

static rp_session *open_session(const struct scorer *s, rp_pool *pool, bool no_fuse)
{
    rp_session_options o;
    rp_session *session;
    rp_session_options_init(&o);
    o.pool = pool;
    o.no_fuse = no_fuse;
    o.poison = true;
    assert_int_equal(rp_session_create(s->t.graph, s->t.weights, &o, &session, NULL), RP_OK);
    return session;
}

static rp_view output(const rp_session *session, const char *name)
{
    rp_view v;
    assert_int_equal(rp_session_output(session, name, &v, NULL), RP_OK);
    return v;
}

/* Five sequences: markers and none, one of them without tokens. */
static const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2};
static const int32_t cu[] = {0, 4, 4, 9, 11, 12};
static const int32_t markers[] = {0, 3, 2, 4, 4, 0};
static const int32_t mcu[] = {0, 2, 2, 5, 6, 6};
static const int32_t qtypes[] = {2, 0, 1, 0, 2};

static rp_batch five(void)
{
    rp_batch b;
    rp_batch_init(&b);
    b.n_seqs = 5;
    b.ids = ids;
    b.cu = cu;
    b.markers = markers;
    b.mcu = mcu;
    b.qtypes = qtypes;
    return b;
}

/* The rows that come out are those without types, plus a row of the table. */
static void types_follow_their_sequence(void **state)
{
    (void)state;
    struct scorer s;
    scorer_make(&s, true);
    rp_session *session = open_session(&s, NULL, false);
    rp_batch b = five();
    float plain[12 * 8];
    b.qtypes = NULL;
    toy_run_ok(session, &b);
    memcpy(plain, output(session, "x").data, sizeof plain); /* type 0 */
    b.qtypes = qtypes;
    toy_run_ok(session, &b);
    const rp_view x = output(session, "x");
    assert_int_equal(x.rows, 12);
    for (size_t seq = 0; seq < 5; seq++)
        for (int32_t t = cu[seq]; t < cu[seq + 1]; t++)
            for (size_t c = 0; c < 8; c++) {
                const float *of_type = s.types + (size_t)qtypes[seq] * 8;
                const float want = plain[(size_t)t * 8 + c] - s.types[c] + of_type[c];
                assert_true(fabsf(x.data[(size_t)t * 8 + c] - want) < 1e-6f);
            }
    rp_session_destroy(session);
    scorer_free(&s);
}

/* Features of the plan: first row and numbers of the very logits that it gives out. */
static void features_follow_their_sequence(void **state)
{
    (void)state;
    struct scorer s;
    scorer_make(&s, false);
    rp_session *session = open_session(&s, NULL, false);
    const rp_batch b = five();
    toy_run_ok(session, &b);
    const rp_view features = output(session, "features"), logits = output(session, "logits");
    assert_int_equal(features.rows, 5);
    assert_int_equal(logits.rows, 6);
    for (size_t seq = 0; seq < 5; seq++) {
        float want[12];
        const size_t n = (size_t)(mcu[seq + 1] - mcu[seq]);
        tables[0]->act_features(NULL, 8, logits.data + mcu[seq], n, want);
        assert_memory_equal(features.data + seq * 12 + 8, want + 8, 4 * sizeof *want);
        for (size_t c = 0; c < 8; c++)
            assert_true((features.data[seq * 12 + c] != 0) == (cu[seq + 1] > cu[seq]));
    }
    rp_session_destroy(session);
    scorer_free(&s);
}

/* A batch of texts without options, as for pooled vectors: nothing of the last batch's markers. */
static void a_batch_without_markers(void **state)
{
    (void)state;
    struct scorer s;
    scorer_make(&s, false);
    rp_session *session = open_session(&s, NULL, false);
    rp_batch b = five();
    toy_run_ok(session, &b);
    b.markers = b.mcu = NULL;
    toy_run_ok(session, &b);
    const rp_view features = output(session, "features");
    assert_int_equal(output(session, "logits").rows, 0);
    for (size_t seq = 0; seq < 5; seq++) {
        const float *numbers = features.data + seq * 12 + 8;
        assert_true(numbers[0] == 0 && numbers[1] == 0 && numbers[2] == 0);
        assert_true(numbers[3] == 2.0f / 255);
    }
    rp_session_destroy(session);
    scorer_free(&s);
}

/* By chunk and by step, fused or not, on any threads; each sequence alone as with the others. */
static void same_bits_in_every_way(void **state)
{
    (void)state;
    struct scorer s;
    scorer_make(&s, false);
    const rp_batch b = five();
    float want[5 * 12];
    for (int threads = 1; threads <= 4; threads++)
        for (int no_fuse = 0; no_fuse < 2; no_fuse++) {
            rp_pool *pool = toy_pool(threads);
            rp_session *session = open_session(&s, pool, no_fuse);
            toy_run_ok(session, &b);
            const rp_view v = output(session, "features");
            if (threads == 1 && !no_fuse)
                memcpy(want, v.data, sizeof want);
            assert_memory_equal(v.data, want, sizeof want);
            rp_session_destroy(session);
            rp_pool_destroy(pool);
        }
    rp_session *session = open_session(&s, NULL, false);
    for (size_t seq = 0; seq < 5; seq++) {
        const int32_t alone_cu[] = {0, cu[seq + 1] - cu[seq]};
        const int32_t alone_mcu[] = {0, mcu[seq + 1] - mcu[seq]};
        rp_batch alone = five();
        alone.n_seqs = 1;
        alone.ids = ids + cu[seq];
        alone.cu = alone_cu;
        alone.markers = markers + mcu[seq];
        alone.mcu = alone_mcu;
        alone.qtypes = qtypes + seq;
        toy_run_ok(session, &alone);
        assert_memory_equal(output(session, "features").data, want + seq * 12, 12 * sizeof *want);
    }
    rp_session_destroy(session);
    scorer_free(&s);
}

/* The types are added where the rows lie, unless somebody else still reads them or they are given
 * out. */
static void types_are_added_in_place(void **state)
{
    (void)state;
    for (int kept = 0; kept < 2; kept++) {
        struct scorer s;
        const rp_bucket bucket = {64, 4, 4};
        rp_plan *plan;
        scorer_make(&s, false);
        if (kept)
            rp_graph_output(s.t.graph, "before", s.x - 1, RP_ROWS_TOKENS, 8);
        assert_int_equal(rp_plan_compile(s.t.graph, s.t.weights, &bucket, NULL, &plan, NULL),
                         RP_OK);
        for (size_t i = 0; i < plan->n_steps; i++) {
            const struct rp_step *step = &plan->steps[i];
            if (step->op != RP_OP_ADD_TYPES)
                continue;
            const struct rp_slot *from = &plan->slots[step->in[0]], *to = &plan->slots[step->out];
            assert_int_equal(from->offset[RP_BY_STEP] == to->offset[RP_BY_STEP], !kept);
        }
        rp_plan_destroy(plan);
        scorer_free(&s);
    }
}

static void wrong_types_are_named(void **state)
{
    (void)state;
    struct scorer s;
    rp_error err;
    scorer_make(&s, false);
    rp_session *session = open_session(&s, NULL, false);
    int32_t wrong[] = {2, 0, 3, 0, 2};
    rp_batch b = five();
    b.qtypes = wrong;
    assert_int_equal(rp_session_run(session, &b, &err), RP_ERR_INVALID);
    assert_string_equal(err.message, "sequence 2: question type 3 is outside the table type_emb, "
                                     "which has 3 rows");
    wrong[2] = 1;
    wrong[1] = -1; /* also of a sequence without tokens */
    assert_int_equal(rp_session_run(session, &b, &err), RP_ERR_INVALID);
    assert_string_equal(err.message, "sequence 1: question type -1 is outside the table type_emb, "
                                     "which has 3 rows");
    wrong[1] = 0;
    toy_run_ok(session, &b);
    rp_session_destroy(session);
    scorer_free(&s);
}

static void a_warm_run_allocates_nothing(void **state)
{
    (void)state;
    if (!alloc_count_available())
        skip();
    struct scorer s;
    scorer_make(&s, true);
    rp_pool *pool = toy_pool(2);
    rp_session *session = open_session(&s, pool, false);
    const rp_batch b = five();
    toy_run_ok(session, &b);
    const size_t before = alloc_count();
    assert_true(before > 0);
    toy_run_ok(session, &b);
    assert_int_equal(alloc_count(), before);
    rp_session_destroy(session);
    rp_pool_destroy(pool);
    scorer_free(&s);
}

/* What a plan takes is said before it is made, and is what it then takes. */
static void sizes_are_told_beforehand(void **state)
{
    (void)state;
    struct scorer s;
    const rp_bucket bucket = {64, 4, 4};
    rp_plan_sizes before, after;
    rp_plan *plan;
    scorer_make(&s, false);
    assert_int_equal(rp_plan_measure(s.t.graph, s.t.weights, &bucket, NULL, &before, NULL), RP_OK);
    assert_int_equal(rp_weights_bytes(s.t.weights), 0);
    assert_int_equal(rp_plan_compile(s.t.graph, s.t.weights, &bucket, NULL, &plan, NULL), RP_OK);
    rp_plan_get_sizes(plan, &after);
    assert_memory_equal(&before, &after, sizeof before);
    assert_true(rp_weights_bytes(s.t.weights) >= sizeof s.word + sizeof s.types + sizeof s.w);
    rp_plan_destroy(plan);
    scorer_free(&s);
}

/* ---- refusals -----------------------------------------------------------------------------------
 */

static void refuses(struct scorer *s, rp_status status, const char *message)
{
    const rp_bucket bucket = {32, 4, 4};
    rp_error err = {RP_OK, ""};
    rp_plan *plan;
    assert_int_equal(rp_plan_compile(s->t.graph, s->t.weights, &bucket, NULL, &plan, &err), status);
    assert_string_equal(err.message, message);
    scorer_free(s);
}

static void complaints_name_the_op(void **state)
{
    (void)state;
    struct scorer s;
    float data[64];
    scorer_make(&s, false);
    rp_graph_add_types(s.t.graph, "t", s.x, weight(&s, "bad", 3, 9, data));
    refuses(&s, RP_ERR_SHAPE, "op 8 (t): type table bad is [3, 9], expected [3, 8]");
    scorer_make(&s, false);
    rp_graph_add_types(s.t.graph, "t", s.x, 55);
    refuses(&s, RP_ERR_INVALID, "op 8 (t): there is no weight 55 for type table");
    scorer_make(&s, false);
    rp_graph_add_types(s.t.graph, "t", rp_graph_pool(s.t.graph, "p", s.x, RP_POOL_CLS), 0);
    refuses(&s, RP_ERR_SHAPE, "op 9 (t): its input has a row per seqs, expected tokens or markers");
    scorer_make(&s, false);
    rp_graph_act_features(s.t.graph, "f", rp_graph_pool(s.t.graph, "p", s.x, RP_POOL_CLS), s.x);
    refuses(&s, RP_ERR_SHAPE, "op 9 (f): logits are tokens x 8, expected markers x 1");
    scorer_make(&s, false);
    rp_graph_act_features(s.t.graph, "f", s.x, 5);
    refuses(&s, RP_ERR_SHAPE, "op 8 (f): its input has a row per tokens, expected seqs");
    scorer_make(&s, false);
    rp_graph_act_features(s.t.graph, "f", s.x, -1);
    refuses(&s, RP_ERR_INVALID, "op 8 (f): input 1 is value -1, expected one made before it");
}

static void text_of_the_ops(void **state)
{
    (void)state;
    struct scorer s;
    char text[2048];
    scorer_make(&s, false);
    (void)rp_graph_text(s.t.graph, s.t.weights, text, sizeof text);
    assert_non_null(strstr(text, "%2 = add_types \"types\" %1 w=type_emb[3,8]\n"));
    assert_non_null(strstr(text, "%7 = act_features \"features\" %6 %5\n"));
    scorer_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(features_have_the_same_bits_everywhere),
        cmocka_unit_test(features_are_accurate),
        cmocka_unit_test(softmax_is_accurate),
        cmocka_unit_test(edge_cases_of_features),
        cmocka_unit_test(a_table_is_added),
        cmocka_unit_test(types_follow_their_sequence),
        cmocka_unit_test(features_follow_their_sequence),
        cmocka_unit_test(a_batch_without_markers),
        cmocka_unit_test(same_bits_in_every_way),
        cmocka_unit_test(types_are_added_in_place),
        cmocka_unit_test(wrong_types_are_named),
        cmocka_unit_test(a_warm_run_allocates_nothing),
        cmocka_unit_test(sizes_are_told_beforehand),
        cmocka_unit_test(complaints_name_the_op),
        cmocka_unit_test(text_of_the_ops),
    };
    return cmocka_run_group_tests(tests, find_tables, NULL);
}
