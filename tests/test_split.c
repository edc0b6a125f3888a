/* What a split encoder needs beside other encoders: rows that the caller brings along, cross
 * attention to memories, the attention and the positions of questions with options, and features of
 * where a marker stands; each against plain loops in double, and the same bits however it is run.
 */
#include "ops/rope.h"
#include "tests/alloc_count.h"
#include "tests/floats.h"
#include "tests/toy.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SEED     UINT64_C(0x73706c69)
#define COUNT(a) (sizeof(a) / sizeof *(a))

/* ---- graphs -------------------------------------------------------------------------------------
 */

#define MAX_WEIGHTS 24

struct made {
    rp_graph *graph;
    rp_weights *weights;
    float *data[MAX_WEIGHTS];
    size_t n_weights;
    uint64_t state;
};

static void make(struct made *m)
{
    memset(m, 0, sizeof *m);
    m->state = SEED;
    assert_int_equal(rp_graph_create(&m->graph, NULL), RP_OK);
    assert_int_equal(rp_weights_create(&m->weights, NULL), RP_OK);
}

static void unmake(struct made *m)
{
    for (size_t i = 0; i < m->n_weights; i++)
        free(m->data[i]);
    rp_graph_destroy(m->graph);
    rp_weights_destroy(m->weights);
}

static rp_weight weight(struct made *m, size_t rows, size_t cols, float scale)
{
    char name[24];
    float *data = malloc(rows * cols * sizeof *data);
    assert_true(data && m->n_weights < MAX_WEIGHTS);
    for (size_t i = 0; i < rows * cols; i++)
        data[i] = toy_uniform(&m->state) * scale;
    snprintf(name, sizeof name, "w%zu", m->n_weights);
    m->data[m->n_weights++] = data;
    const rp_weight_part part = {.rows = rows, .data = data};
    rp_weight w;
    assert_int_equal(rp_weights_add(m->weights, name, cols, 1, &part, &w, NULL), RP_OK);
    return w;
}

static rp_session *open_session(const struct made *m, rp_pool *pool, uint32_t isa)
{
    rp_session_options o;
    rp_session *session;
    rp_error err = {0};
    rp_session_options_init(&o);
    o.pool = pool;
    o.isa = isa;
    o.poison = true;
    if (rp_session_create(m->graph, m->weights, &o, &session, &err) != RP_OK)
        fail_msg("%s", err.message);
    return session;
}

static rp_view output(const rp_session *session, const char *name)
{
    rp_view v;
    assert_int_equal(rp_session_output(session, name, &v, NULL), RP_OK);
    return v;
}

static void run_refuses(const struct made *m, const rp_batch *batch, rp_status status,
                        const char *message)
{
    rp_error err = {0};
    rp_session *session = open_session(m, NULL, RP_ISA_DEFAULT);
    assert_int_equal(rp_session_run(session, batch, &err), status);
    assert_string_equal(err.message, message);
    rp_session_destroy(session);
}

/* Compiling fails so; the graph and its weights are gone afterwards. */
static void refuses(struct made *m, rp_status status, const char *message)
{
    const rp_bucket bucket = {.tokens = 16, .seqs = 4, .markers = 8};
    rp_plan *plan;
    rp_error err = {0};
    assert_int_equal(rp_plan_compile(m->graph, m->weights, &bucket, NULL, &plan, &err), status);
    assert_string_equal(err.message, message);
    unmake(m);
}

/* Five sequences: one without tokens, one without markers. */
static const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2};
static const int32_t cu[] = {0, 4, 4, 9, 11, 12};
static const int32_t markers[] = {0, 3, 2, 3, 4, 0};
static const int32_t mcu[] = {0, 2, 2, 5, 5, 6};
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

/* ---- rows that the caller brings along ----------------------------------------------------------
 */

#define WIDTH ((size_t)24)

/* Outputs: "in", the input as it is; "y", of a product and a sum behind it. */
static void make_input(struct made *m)
{
    make(m);
    const rp_value x = rp_graph_input(m->graph, "in", WIDTH);
    const rp_embed_table table = {weight(m, 3, WIDTH, 1), RP_INDEX_TYPES, 0};
    const rp_value types = rp_graph_embed(m->graph, "segments", 1, &table);
    const rp_value y = rp_graph_gemm(m->graph, "up", rp_graph_add(m->graph, "sum", x, types),
                                     weight(m, 8, WIDTH, 1), -1, RP_ACT_NONE, -1);
    rp_graph_output(m->graph, "in", x, RP_ROWS_TOKENS, WIDTH);
    rp_graph_output(m->graph, "y", y, RP_ROWS_TOKENS, 8);
}

static void input_comes_as_it_is(void **state)
{
    (void)state;
    static const int32_t types[] = {0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2};
    struct made m;
    float rows[12 * WIDTH];
    make_input(&m);
    for (size_t i = 0; i < COUNT(rows); i++)
        rows[i] = toy_uniform(&m.state);
    rp_session *session = open_session(&m, NULL, RP_ISA_DEFAULT);
    rp_batch b = five();
    b.ids = NULL; /* nothing is indexed by them */
    b.type_ids = types;
    b.input = rows;
    toy_run_ok(session, &b);
    const rp_view in = output(session, "in"), y = output(session, "y");
    assert_int_equal(in.rows, 12);
    assert_memory_equal(in.data, rows, sizeof rows);
    for (size_t r = 0; r < 12; r++)
        for (size_t c = 0; c < 8; c++) {
            double sum = 0;
            for (size_t k = 0; k < WIDTH; k++)
                sum += ((double)rows[r * WIDTH + k] +
                        (double)m.data[0][(size_t)types[r] * WIDTH + k]) *
                       (double)m.data[1][c * WIDTH + k];
            assert_true(fabs(y.data[r * 8 + c] - sum) < 1e-5);
        }
    rp_session_destroy(session);
    unmake(&m);
}

static void input_is_checked(void **state)
{
    (void)state;
    struct made m;
    rp_batch b = five();
    make_input(&m);
    run_refuses(&m, &b, RP_ERR_INVALID, "op 0 (in): the batch has 12 tokens and no input rows");
    unmake(&m);

    float rows[12 * WIDTH] = {0};
    static const int32_t parents[] = {-1, -1, 0, -1, -1};
    make_input(&m);
    b.input = rows;
    b.parents = parents;
    run_refuses(&m, &b, RP_ERR_UNSUPPORTED,
                "op 0 (in): sequences have parents, and input cannot take their rows");
    assert_false(rp_graph_is_causal(m.graph));
    b.parents = NULL;
    rows[5 * WIDTH] = NAN;
    run_refuses(&m, &b, RP_ERR_NONFINITE, "output in, row 5 (of tokens), column 0 is NaN");
    unmake(&m);

    make_input(&m);
    rp_graph_input(m.graph, "other", 8);
    refuses(&m, RP_ERR_SHAPE,
            "op 4 (other): input rows of width 8, and of width 24 in an op before");
    make(&m);
    rp_graph_input(m.graph, "none", 0);
    refuses(&m, RP_ERR_INVALID, "op 0 (none): input rows of width 0");
}

/* Tables by ids still need them; INT8 needs batches to look at. */
static void what_is_missing_is_named(void **state)
{
    (void)state;
    struct made m;
    rp_error err = {0};
    make(&m);
    const rp_embed_table table = {weight(&m, 10, WIDTH, 1), RP_INDEX_IDS, 0};
    rp_graph_output(m.graph, "x", rp_graph_embed(m.graph, "embed", 1, &table), RP_ROWS_TOKENS,
                    WIDTH);
    rp_batch b = five();
    b.ids = NULL;
    run_refuses(&m, &b, RP_ERR_INVALID, "the batch has 12 tokens and no ids");
    unmake(&m);

    make_input(&m);
    assert_int_equal(rp_weights_quantize(m.weights, m.graph, NULL, &err), RP_ERR_INVALID);
    assert_string_equal(err.message,
                        "op 0 (in): calibration needs batches with input, and was given none");
    float rows[12 * WIDTH];
    for (size_t i = 0; i < COUNT(rows); i++)
        rows[i] = toy_uniform(&m.state);
    rp_quantize_options o;
    rp_quantize_options_init(&o);
    b.input = rows;
    o.batches = &b;
    o.n_batches = 1;
    assert_int_equal(rp_weights_quantize(m.weights, m.graph, &o, &err), RP_OK);
    rp_session *session = open_session(&m, NULL, RP_ISA_DEFAULT);
    toy_run_ok(session, &b);
    rp_session_destroy(session);
    unmake(&m);
}

/* ---- markers ------------------------------------------------------------------------------------
 */

/* Outputs: "ordinal", of question type 2; "typed", the markers' rows and a row of their type. */
static void make_markers(struct made *m)
{
    make(m);
    const rp_embed_table table = {weight(m, 10, WIDTH, 1), RP_INDEX_IDS, 0};
    const rp_value x = rp_graph_embed(m->graph, "embed", 1, &table);
    const rp_value marked = rp_graph_gather_markers(m->graph, "marked", x);
    rp_graph_output(m->graph, "typed",
                    rp_graph_add_types(m->graph, "types", marked, weight(m, 3, WIDTH, 1)),
                    RP_ROWS_MARKERS, WIDTH);
    rp_graph_output(m->graph, "ordinal", rp_graph_ordinal_features(m->graph, "ordinal", 2),
                    RP_ROWS_MARKERS, 4);
}

static void markers_have_types(void **state)
{
    (void)state;
    struct made m;
    make_markers(&m);
    rp_session *session = open_session(&m, NULL, RP_ISA_DEFAULT);
    rp_batch b = five();
    for (int typed = 0; typed < 2; typed++) {
        b.qtypes = typed ? qtypes : NULL;
        toy_run_ok(session, &b);
        const rp_view y = output(session, "typed");
        assert_int_equal(y.rows, 6);
        for (size_t s = 0; s < 5; s++)
            for (size_t i = (size_t)mcu[s]; i < (size_t)mcu[s + 1]; i++)
                for (size_t c = 0; c < WIDTH; c++) {
                    const size_t id = (size_t)ids[cu[s] + markers[i]];
                    const size_t type = typed ? (size_t)qtypes[s] : 0;
                    assert_true(y.data[i * WIDTH + c] ==
                                m.data[0][id * WIDTH + c] + m.data[1][type * WIDTH + c]);
                }
    }
    static const int32_t bad[] = {2, 0, 3, 0, 2};
    b.qtypes = bad;
    run_refuses(&m, &b, RP_ERR_INVALID,
                "sequence 2: question type 3 is outside the table w1, which has 3 rows");
    rp_session_destroy(session);
    unmake(&m);
}

static void expect_ordinal(const float *y, double x)
{
    const double pi = acos(-1);
    const double want[4] = {x, x * x, sin(pi * x), cos(pi * x)};
    for (size_t c = 0; c < 4; c++)
        if (!(fabs(y[c] - want[c]) <= 0x1p-25 + 1e-15))
            fail_msg("x %g, column %zu: %.9g, not %.9g", x, c, (double)y[c], want[c]);
}

/* Half an ULP of a number just below 1, for all scales; and the same bits on every machine. */
static void places_of_markers_are_exact(void **state)
{
    (void)state;
    const uint64_t golden = UINT64_C(0xaeb09a774047153f);
    uint64_t digest = 0;
    float y[RP_ORDINAL_FEATURES];
    for (size_t k = 1; k <= 255; k++)
        for (size_t i = 0; i < k; i++) {
            rp_rope_ordinal(i, k, y);
            expect_ordinal(y, k > 1 ? (double)i / (double)(k - 1) : 0);
            digest = float_digest(y, RP_ORDINAL_FEATURES, digest);
        }
    rp_rope_ordinal(254, 255, y);
    assert_true(y[0] == 1 && y[1] == 1 && y[2] == 0 && y[3] == -1);
    if (digest != golden)
        fail_msg("digest %#llx, not %#llx", (unsigned long long)digest, (unsigned long long)golden);
}

static void only_one_type_has_places(void **state)
{
    (void)state;
    struct made m;
    make_markers(&m);
    rp_session *session = open_session(&m, NULL, RP_ISA_DEFAULT);
    rp_batch b = five();
    toy_run_ok(session, &b);
    rp_view y = output(session, "ordinal");
    assert_int_equal(y.rows, 6);
    expect_ordinal(y.data, 0);
    expect_ordinal(y.data + 4, 1);
    for (size_t i = 8; i < 20; i++) /* of another type */
        assert_true(y.data[i] == 0);
    expect_ordinal(y.data + 20, 0); /* the only one of its sequence */
    assert_true(y.data[23] == 1);
    b.qtypes = NULL; /* all of type 0 */
    toy_run_ok(session, &b);
    y = output(session, "ordinal");
    for (size_t i = 0; i < 24; i++)
        assert_true(y.data[i] == 0);
    b.markers = b.mcu = NULL;
    toy_run_ok(session, &b);
    assert_int_equal(output(session, "ordinal").rows, 0);
    rp_session_destroy(session);
    unmake(&m);

    make(&m);
    rp_graph_output(m.graph, "y", rp_graph_ordinal_features(m.graph, "y", -1), RP_ROWS_MARKERS, 4);
    refuses(&m, RP_ERR_INVALID, "op 0 (y): there is no question type -1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(input_comes_as_it_is),        cmocka_unit_test(input_is_checked),
        cmocka_unit_test(what_is_missing_is_named),    cmocka_unit_test(markers_have_types),
        cmocka_unit_test(places_of_markers_are_exact), cmocka_unit_test(only_one_type_has_places),
    };
    return cmocka_run_group_tests_name("split", tests, NULL, NULL);
}
