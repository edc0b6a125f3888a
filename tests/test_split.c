/* What a split encoder needs beside other encoders: rows that the caller brings along, cross
 * attention to memories, the attention and the positions of questions with options, and features of
 * where a marker stands; each against plain loops in double, and the same bits however it is run.
 */
#include "attention/attention.h"
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
    static const int32_t other[] = {0, 0, 2, 0, 1};
    b.qtypes = other;
    toy_run_ok(session, &b);
    y = output(session, "ordinal");
    for (size_t i = 0; i < 24; i++)
        assert_true((i >= 8 && i < 20) || y.data[i] == 0);
    expect_ordinal(y.data + 8, 0);
    expect_ordinal(y.data + 12, 0.5);
    expect_ordinal(y.data + 16, 1);
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

/* ---- attention ----------------------------------------------------------------------------------
 */

/* Heads of queries and of keys, and their width; of a memory's rows also where the heads lie. */
struct shape {
    size_t heads, kv_heads, dim, memory_width, key_column, value_column;
};

static const struct shape shapes[] = {
    {4, 4, 8, 64, 0, 32}, {6, 2, 16, 80, 45, 3}, {3, 1, 20, 40, 20, 0}, {2, 1, 64, 200, 1, 99}};

static float *random_floats(uint64_t *state, size_t n)
{
    float *x = malloc((n + 1) * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = toy_uniform(state) * 2;
    return x;
}

/* One head's row: softmax of q times the keys, times the values; all keys there are. */
static void attend(const float *q, size_t n, const float *const *keys, const float *const *values,
                   size_t dim, double *out)
{
    double scores[600], sum = 0, top = -INFINITY;
    assert_true(n <= COUNT(scores));
    for (size_t j = 0; j < n; j++) {
        scores[j] = 0;
        for (size_t d = 0; d < dim; d++)
            scores[j] += (double)q[d] * (double)keys[j][d];
        scores[j] /= sqrt((double)dim);
        top = fmax(top, scores[j]);
    }
    for (size_t j = 0; j < n; j++)
        sum += scores[j] = exp(scores[j] - top);
    for (size_t d = 0; d < dim; d++) {
        out[d] = 0;
        for (size_t j = 0; j < n; j++)
            out[d] += scores[j] / sum * (double)values[j][d];
    }
}

static void expect_head(const float *got, const double *want, size_t dim, size_t row, size_t head)
{
    for (size_t d = 0; d < dim; d++)
        if (!(fabs(got[d] - want[d]) <= 2e-6))
            fail_msg("row %zu, head %zu, column %zu: %.9g, not %.9g", row, head, d, (double)got[d],
                     want[d]);
}

/* ---- cross attention ----------------------------------------------------------------------------
 */

#define MAX_MEMORY 64

/* Output "y": the input's attention to the memories. */
static void make_cross(struct made *m, const struct shape *shape)
{
    const rp_cross_attention options = {.n_heads = (int32_t)shape->heads,
                                        .head_dim = (int32_t)shape->dim,
                                        .n_kv_heads = (int32_t)shape->kv_heads,
                                        .memory_width = (int32_t)shape->memory_width,
                                        .key_column = (int32_t)shape->key_column,
                                        .value_column = (int32_t)shape->value_column,
                                        .max_memory = MAX_MEMORY};
    const size_t width = shape->heads * shape->dim;
    make(m);
    const rp_value q = rp_graph_input(m->graph, "q", width);
    rp_graph_output(m->graph, "y", rp_graph_cross_attention(m->graph, "cross", q, &options),
                    RP_ROWS_TOKENS, width);
}

static void expect_cross(const struct shape *shape, const float *q, const rp_memory *memory,
                         size_t row, const float *y)
{
    const float *keys[MAX_MEMORY], *values[MAX_MEMORY];
    const size_t width = shape->heads * shape->dim;
    double want[64];
    for (size_t h = 0; h < shape->heads; h++) {
        const size_t kv = h / (shape->heads / shape->kv_heads) * shape->dim;
        for (size_t j = 0; j < memory->rows; j++) {
            keys[j] = memory->data + j * shape->memory_width + shape->key_column + kv;
            values[j] = memory->data + j * shape->memory_width + shape->value_column + kv;
        }
        attend(q + row * width + h * shape->dim, memory->rows, keys, values, shape->dim, want);
        expect_head(y + row * width + h * shape->dim, want, shape->dim, row, h);
    }
}

/* Memories of 0 and more rows, some shared by sequences beside each other, some by others, one read
 * by one sequence in part; nothing past their last number is there to be read. */
static void rows_attend_to_memories(void **state)
{
    (void)state;
    static const size_t rows_of[] = {17, 17, 17, 0, 1, 40, 9, 17, MAX_MEMORY};
    static const size_t which[] = {0, 0, 0, 1, 2, 3, 3, 0, 4};
    static const int32_t starts[] = {0, 3, 3, 34, 36, 37, 90, 91, 94, 101};
    for (size_t k = 0; k < COUNT(shapes); k++) {
        const struct shape *shape = &shapes[k];
        struct made m;
        rp_memory memories[9];
        float *data[5] = {NULL};
        make_cross(&m, shape);
        for (size_t s = 0; s < 9; s++) {
            const size_t n = rows_of[s] * shape->memory_width;
            if (!data[which[s]] && n) {
                data[which[s]] = guard_alloc(n * sizeof(float));
                for (size_t i = 0; i < n; i++)
                    data[which[s]][i] = toy_uniform(&m.state) * 2;
            }
            memories[s] = (rp_memory){data[which[s]], rows_of[s]};
        }
        float *q = random_floats(&m.state, 101 * shape->heads * shape->dim);
        rp_session *session = open_session(&m, NULL, RP_ISA_DEFAULT);
        rp_batch b;
        rp_batch_init(&b);
        b.n_seqs = 9;
        b.cu = starts;
        b.input = q;
        b.memories = memories;
        toy_run_ok(session, &b);
        const rp_view y = output(session, "y");
        assert_int_equal(y.rows, 101);
        for (size_t s = 0; s < 9; s++)
            for (size_t r = (size_t)starts[s]; r < (size_t)starts[s + 1]; r++)
                if (memories[s].rows)
                    expect_cross(shape, q, &memories[s], r, y.data);
                else
                    for (size_t c = 0; c < y.width; c++)
                        assert_true(y.data[r * y.width + c] == 0);
        for (size_t s = 0; s < 9; s++)
            if (data[which[s]]) {
                guard_free(data[which[s]], rows_of[s] * shape->memory_width * sizeof(float));
                data[which[s]] = NULL;
            }
        rp_session_destroy(session);
        free(q);
        unmake(&m);
    }
}

/* Attention to the keys and values of a sequence's own rows is attention: to the bit. */
static void a_sequence_is_its_own_memory(void **state)
{
    (void)state;
    static const int32_t starts[] = {0, 61};
    for (size_t k = 0; k < COUNT(shapes); k++) {
        const size_t heads = shapes[k].heads, kv_heads = shapes[k].kv_heads, dim = shapes[k].dim;
        const size_t width = heads * dim, all = (heads + 2 * kv_heads) * dim;
        const struct shape shape = {heads, kv_heads, dim, all, width, width + kv_heads * dim};
        const rp_attention options = {.n_heads = (int32_t)heads,
                                      .head_dim = (int32_t)dim,
                                      .n_kv_heads = (int32_t)kv_heads,
                                      .rel_bias = -1};
        struct made plain, cross;
        make(&plain);
        const rp_value qkv = rp_graph_input(plain.graph, "qkv", all);
        rp_graph_output(plain.graph, "y", rp_graph_attention(plain.graph, "core", qkv, &options),
                        RP_ROWS_TOKENS, width);
        make_cross(&cross, &shape);
        float *x = random_floats(&plain.state, 61 * all),
              *q = random_floats(&plain.state, 61 * all);
        for (size_t r = 0; r < 61; r++)
            memcpy(q + r * width, x + r * all, width * sizeof *q);
        const rp_memory memory = {x, 61};
        rp_session *a = open_session(&plain, NULL, RP_ISA_DEFAULT);
        rp_session *b = open_session(&cross, NULL, RP_ISA_DEFAULT);
        rp_batch batch;
        rp_batch_init(&batch);
        batch.n_seqs = 1;
        batch.cu = starts;
        batch.input = x;
        toy_run_ok(a, &batch);
        batch.input = q;
        batch.memories = &memory;
        toy_run_ok(b, &batch);
        assert_memory_equal(output(b, "y").data, output(a, "y").data, 61 * width * sizeof *x);
        rp_session_destroy(a);
        rp_session_destroy(b);
        free(x);
        free(q);
        unmake(&plain);
        unmake(&cross);
    }
}

static void memories_are_checked(void **state)
{
    (void)state;
    static const int32_t parents[] = {-1, -1, 0, -1, -1};
    struct made m;
    rp_batch b = five();
    float q[12 * 32] = {0}, data[3 * 64] = {0};
    rp_memory memories[5] = {{data, 3}, {NULL, 0}, {data, 3}, {data, 3}, {data, 3}};
    make_cross(&m, &shapes[0]);
    b.input = q;
    run_refuses(&m, &b, RP_ERR_INVALID, "op 1 (cross): the batch has no memories");
    b.memories = memories;
    memories[3].rows = MAX_MEMORY + 1;
    run_refuses(&m, &b, RP_ERR_LIMIT,
                "op 1 (cross): the memory of sequence 3 has 65 rows, at most 64 are taken");
    memories[3] = (rp_memory){NULL, 2};
    run_refuses(&m, &b, RP_ERR_INVALID,
                "op 1 (cross): the memory of sequence 3 has 2 rows and no data");
    memories[3] = (rp_memory){data, 3};
    data[64] = NAN; /* a key of head 0 */
    run_refuses(&m, &b, RP_ERR_NONFINITE, "output y, row 0 (of tokens), column 0 is NaN");
    b.parents = parents;
    run_refuses(&m, &b, RP_ERR_UNSUPPORTED,
                "op 0 (q): sequences have parents, and input cannot take their rows");
    unmake(&m);
}

static void refuses_cross(rp_cross_attention options, rp_status status, const char *message)
{
    struct made m;
    make_cross(&m, &shapes[0]);
    rp_graph_cross_attention(m.graph, "c", 0, &options);
    refuses(&m, status, message);
}

static void cross_attention_is_checked(void **state)
{
    (void)state;
    const rp_cross_attention good = {
        .n_heads = 4, .head_dim = 8, .memory_width = 64, .value_column = 32, .max_memory = 8};
    rp_cross_attention o = good;
    o.n_heads = 0;
    refuses_cross(o, RP_ERR_INVALID, "op 2 (c): 0 heads of 8, expected at least 1 of 1");
    o = good;
    o.n_kv_heads = 3;
    refuses_cross(o, RP_ERR_INVALID,
                  "op 2 (c): 4 heads of queries cannot share 3 heads of keys evenly");
    o = good;
    o.head_dim = 9;
    refuses_cross(o, RP_ERR_SHAPE, "op 2 (c): q has width 32, expected 36 (4 heads of 9)");
    o = good;
    o.scale = -1;
    refuses_cross(o, RP_ERR_INVALID, "op 2 (c): scale must be finite and not negative");
    o = good;
    o.max_memory = 0;
    refuses_cross(o, RP_ERR_INVALID, "op 2 (c): memories of at most 0 rows, expected 1 or more");
    o = good;
    o.memory_width = 65;
    refuses_cross(o, RP_ERR_SHAPE,
                  "op 2 (c): memory rows of width 65, and of width 64 in an op before");
    o = good;
    o.value_column = 33;
    refuses_cross(
        o, RP_ERR_SHAPE,
        "op 2 (c): its memory (values) has width 64, expected at least 32 columns from 33 "
        "on");
    o = good;
    o.key_column = -1;
    refuses_cross(
        o, RP_ERR_SHAPE,
        "op 2 (c): its memory (keys) has width 64, expected at least 32 columns from -1 on");
    o = good;
    o.max_memory = INT32_MAX;
    o.head_dim = 1 << 20;
    o.n_heads = 1;
    o.memory_width = INT32_MAX;
    struct made m;
    make(&m);
    const rp_value q = rp_graph_input(m.graph, "q", 1 << 20);
    rp_graph_output(m.graph, "y", rp_graph_cross_attention(m.graph, "c", q, &o), RP_ROWS_TOKENS,
                    1 << 20);
    refuses(&m, RP_ERR_LIMIT, "op 1 (c): attention over 2147483647 rows needs too much scratch");
}

/* ---- questions with options ---------------------------------------------------------------------
 */

/* Header and options of each sequence: one without markers, one that begins with one, options of a
 * row, many options, none at all. */
struct question {
    size_t len, n_markers;
    int32_t markers[24];
};

static const struct question questions[] = {
    {30, 0, {0}},
    {19, 2, {0, 7}},
    {21, 1, {20}},
    {0, 0, {0}},
    {90, 20, {25, 26, 27, 30, 33, 34, 38, 39, 40, 44, 47, 50, 53, 55, 60, 61, 66, 70, 80, 89}},
    {1, 1, {0}},
    {130, 3, {60, 80, 90}},
    {70, 7, {3, 13, 23, 33, 43, 53, 63}}};

#define QUESTIONS COUNT(questions)

struct asked {
    rp_batch batch;
    int32_t cu[QUESTIONS + 1], mcu[QUESTIONS + 1], markers[24 * QUESTIONS], types[QUESTIONS];
    int32_t ids[1536];
    rp_memory memories[QUESTIONS];
};

/* The questions of `order`, n of them. */
static void ask(struct asked *a, const size_t *order, size_t n)
{
    memset(a, 0, sizeof *a);
    for (size_t i = 0; i < n; i++) {
        const struct question *q = &questions[order[i]];
        a->cu[i + 1] = a->cu[i] + (int32_t)q->len;
        a->mcu[i + 1] = a->mcu[i] + (int32_t)q->n_markers;
        a->types[i] = (int32_t)(order[i] % 3);
        for (size_t k = 0; k < q->n_markers; k++)
            a->markers[(size_t)a->mcu[i] + k] = q->markers[k];
        uint64_t state = order[i];
        for (size_t t = 0; t < q->len; t++)
            a->ids[(size_t)a->cu[i] + t] = (int32_t)(toy_random(&state) % 40);
    }
    rp_batch_init(&a->batch);
    a->batch.n_seqs = n;
    a->batch.ids = a->ids;
    a->batch.cu = a->cu;
    a->batch.markers = a->markers;
    a->batch.mcu = a->mcu;
    a->batch.qtypes = a->types;
}

static const size_t in_order[] = {0, 1, 2, 3, 4, 5, 6, 7};

/* The rows that row t of a question sees, in the order of the contract. */
static size_t seen_by(const struct question *q, size_t t, size_t *rows)
{
    const size_t header = q->n_markers ? (size_t)q->markers[0] : q->len;
    size_t n = 0, option = 0;
    for (size_t r = 0; r < header; r++)
        rows[n++] = r;
    for (size_t i = 0; i < q->n_markers; i++)
        rows[n++] = (size_t)q->markers[i];
    if (t < header)
        return n;
    while (option + 1 < q->n_markers && (size_t)q->markers[option + 1] <= t)
        option++;
    const size_t end = option + 1 < q->n_markers ? (size_t)q->markers[option + 1] : q->len;
    for (size_t r = (size_t)q->markers[option] + 1; r < end; r++)
        rows[n++] = r;
    return n;
}

/* Output "y": attention over the input. */
static void make_options(struct made *m, const struct shape *shape, bool options)
{
    const size_t all = (shape->heads + 2 * shape->kv_heads) * shape->dim;
    const rp_attention attention = {.n_heads = (int32_t)shape->heads,
                                    .head_dim = (int32_t)shape->dim,
                                    .n_kv_heads = (int32_t)shape->kv_heads,
                                    .rel_bias = -1,
                                    .options = options};
    make(m);
    const rp_value qkv = rp_graph_input(m->graph, "qkv", all);
    rp_graph_output(m->graph, "y", rp_graph_attention(m->graph, "core", qkv, &attention),
                    RP_ROWS_TOKENS, shape->heads * shape->dim);
}

static void rows_see_their_option(void **state)
{
    (void)state;
    for (size_t k = 0; k < COUNT(shapes); k++) {
        const struct shape *s = &shapes[k];
        const size_t all = (s->heads + 2 * s->kv_heads) * s->dim, width = s->heads * s->dim;
        struct made m;
        struct asked a;
        make_options(&m, s, true);
        ask(&a, in_order, QUESTIONS);
        float *x = random_floats(&m.state, (size_t)a.cu[QUESTIONS] * all);
        a.batch.input = x;
        rp_session *session = open_session(&m, NULL, RP_ISA_DEFAULT);
        toy_run_ok(session, &a.batch);
        const rp_view y = output(session, "y");
        for (size_t i = 0; i < QUESTIONS; i++)
            for (size_t t = 0; t < questions[i].len; t++) {
                const float *keys[512], *values[512], *own = x + (size_t)a.cu[i] * all;
                size_t rows[512];
                const size_t n = seen_by(&questions[i], t, rows), row = (size_t)a.cu[i] + t;
                for (size_t h = 0; h < s->heads; h++) {
                    const size_t kv = h / (s->heads / s->kv_heads);
                    double want[64];
                    for (size_t j = 0; j < n; j++) {
                        keys[j] = own + rows[j] * all + (s->heads + kv) * s->dim;
                        values[j] = keys[j] + s->kv_heads * s->dim;
                    }
                    attend(x + row * all + h * s->dim, n, keys, values, s->dim, want);
                    expect_head(y.data + row * width + h * s->dim, want, s->dim, row, h);
                }
            }
        rp_session_destroy(session);
        free(x);
        unmake(&m);
    }
}

/* The contract: a row's bits are those of plain attention over the rows that it sees, header first,
 * then markers, then its option.  So nothing of other options comes in, not even a NaN. */
static void a_row_sees_nothing_else(void **state)
{
    (void)state;
    const struct shape *s = &shapes[1];
    const size_t all = (s->heads + 2 * s->kv_heads) * s->dim, width = s->heads * s->dim;
    const struct question *q = &questions[4];
    struct made with, without;
    struct asked a;
    const size_t which = 4;
    ask(&a, &which, 1);
    make_options(&with, s, true);
    make_options(&without, s, false);
    float *x = random_floats(&with.state, q->len * all), *seen = malloc(q->len * all * sizeof *x);
    rp_session *session = open_session(&with, NULL, RP_ISA_DEFAULT);
    rp_session *plain = open_session(&without, NULL, RP_ISA_DEFAULT);
    a.batch.input = x;
    toy_run_ok(session, &a.batch);
    float *y = malloc(q->len * width * sizeof *y);
    assert_true(seen && y);
    memcpy(y, output(session, "y").data, q->len * width * sizeof *y);
    for (size_t t = 0; t < q->len; t++) {
        size_t rows[512], at = SIZE_MAX;
        const size_t n = seen_by(q, t, rows);
        const int32_t starts[] = {0, (int32_t)n};
        rp_batch b;
        rp_batch_init(&b);
        b.n_seqs = 1;
        b.cu = starts;
        b.input = seen;
        for (size_t j = 0; j < n; j++) {
            memcpy(seen + j * all, x + rows[j] * all, all * sizeof *x);
            at = rows[j] == t ? j : at;
        }
        assert_true(at < n); /* a row sees itself */
        toy_run_ok(plain, &b);
        assert_memory_equal(output(plain, "y").data + at * width, y + t * width, width * sizeof *y);
    }
    /* A row in the middle of option 3 is broken: options 0 to 2 and the header do not notice. */
    x[31 * all + s->heads * s->dim] = NAN;
    rp_error err;
    assert_int_equal(rp_session_run(session, &a.batch, &err), RP_ERR_NONFINITE);
    const float *broken = output(session, "y").data;
    assert_memory_equal(broken, y, 30 * width * sizeof *y);
    assert_true(isnan(broken[30 * width]) && isnan(broken[32 * width]));
    assert_memory_equal(broken + 33 * width, y + 33 * width, (q->len - 33) * width * sizeof *y);
    rp_session_destroy(session);
    rp_session_destroy(plain);
    free(x);
    free(y);
    free(seen);
    unmake(&with);
    unmake(&without);
}

static void options_are_checked(void **state)
{
    (void)state;
    static const int32_t equal[] = {0, 3, 2, 2, 4, 0}, parents[] = {-1, -1, 0, -1, -1};
    struct made m;
    rp_batch b = five();
    float x[12 * 96] = {0};
    b.input = x;
    b.markers = equal;
    make_options(&m, &shapes[0], true);
    run_refuses(&m, &b, RP_ERR_INVALID,
                "op 1 (core): marker 3 is at position 2 of sequence 2, and the one before it at 2: "
                "options need markers that ascend");
    unmake(&m);

    make(&m);
    const rp_embed_table table = {weight(&m, 10, WIDTH, 1), RP_INDEX_IDS, 0};
    const rp_value embed = rp_graph_embed(m.graph, "embed", 1, &table);
    const rp_rope rope = {.n_heads = 1, .head_dim = 24, .theta = 10000, .options = true};
    rp_graph_output(m.graph, "y", rp_graph_rope(m.graph, "rope", embed, &rope), RP_ROWS_TOKENS,
                    WIDTH);
    run_refuses(&m, &b, RP_ERR_INVALID,
                "op 1 (rope): marker 3 is at position 2 of sequence 2, and the one before it at 2: "
                "options need markers that ascend");
    b.markers = markers;
    b.parents = parents;
    run_refuses(&m, &b, RP_ERR_UNSUPPORTED,
                "op 1 (rope): sequences have parents, and positions of options cannot take their "
                "rows");
    assert_false(rp_graph_is_causal(m.graph));
    unmake(&m);

    static const char *const with[] = {"a window", "causal attention", "a relative bias"};
    for (int i = 0; i < 3; i++) {
        char message[80];
        make(&m);
        const rp_attention o = {.n_heads = 4,
                                .head_dim = 8,
                                .window = i == 0,
                                .causal = i == 1,
                                .rel_bias = i == 2 ? weight(&m, 32, 4, 1) : -1,
                                .rel_max_distance = 128,
                                .options = true};
        rp_graph_attention(m.graph, "a", rp_graph_input(m.graph, "qkv", 96), &o);
        snprintf(message, sizeof message, "op 1 (a): options with %s is not built", with[i]);
        refuses(&m, RP_ERR_UNSUPPORTED, message);
    }
}

/* Positions in double: the header's, then in each option on from the header's end. */
static void options_begin_at_one_position(void **state)
{
    (void)state;
    const size_t dim = 24, half = 12;
    const rp_rope rope = {.n_heads = 1, .head_dim = 24, .theta = 160000, .options = true};
    struct made m;
    struct asked a;
    make(&m);
    ask(&a, in_order, QUESTIONS);
    rp_graph_output(m.graph, "y",
                    rp_graph_rope(m.graph, "rope", rp_graph_input(m.graph, "x", dim), &rope),
                    RP_ROWS_TOKENS, dim);
    float *x = random_floats(&m.state, (size_t)a.cu[QUESTIONS] * dim);
    a.batch.input = x;
    rp_session *session = open_session(&m, NULL, RP_ISA_DEFAULT);
    toy_run_ok(session, &a.batch);
    const rp_view y = output(session, "y");
    for (size_t i = 0; i < QUESTIONS; i++)
        for (size_t t = 0; t < questions[i].len; t++) {
            const struct question *q = &questions[i];
            size_t position = t;
            for (size_t k = 0; k < q->n_markers && (size_t)q->markers[k] <= t; k++)
                position = (size_t)q->markers[0] + t - (size_t)q->markers[k];
            const float *from = x + ((size_t)a.cu[i] + t) * dim;
            const float *to = y.data + ((size_t)a.cu[i] + t) * dim;
            for (size_t f = 0; f < half; f++) {
                const double angle = (double)position * pow(160000, -(double)f / (double)half);
                assert_true(fabs(to[f] - (from[f] * cos(angle) - from[half + f] * sin(angle))) <
                            1e-6);
                assert_true(fabs(to[half + f] -
                                 (from[half + f] * cos(angle) + from[f] * sin(angle))) < 1e-6);
            }
        }
    a.batch.markers = NULL; /* then nothing but header */
    a.batch.mcu = NULL;
    toy_run_ok(session, &a.batch);
    rp_session_destroy(session);
    free(x);
    unmake(&m);
}

/* ---- a whole question tower ---------------------------------------------------------------------
 */

#define HEADS    2
#define KV_HEADS 1
#define DIM      16
#define TOWER    ((size_t)(HEADS * DIM))
#define FFN      ((size_t)48)
#define MEMORY   ((size_t)(2 * LAYERS * KV_HEADS * DIM))
#define LAYERS   2
#define SCORE    2 /* the question type that has places */

static rp_value linear(struct made *m, const char *name, rp_value x, size_t n, size_t k,
                       rp_activation act, rp_value residual)
{
    return rp_graph_gemm(m->graph, name, x, weight(m, n, k, 0.25f), -1, act, residual);
}

static rp_value tower_layer(struct made *m, size_t layer, rp_value x)
{
    const rp_rope rope = {.n_heads = 2 * HEADS, .head_dim = DIM, .theta = 10000, .options = true};
    const rp_attention attention = {
        .n_heads = HEADS, .head_dim = DIM, .rel_bias = -1, .options = true};
    const size_t column = layer * 2 * KV_HEADS * DIM;
    const rp_cross_attention cross = {.n_heads = HEADS,
                                      .head_dim = DIM,
                                      .n_kv_heads = KV_HEADS,
                                      .memory_width = (int32_t)MEMORY,
                                      .key_column = (int32_t)column,
                                      .value_column = (int32_t)(column + KV_HEADS * DIM),
                                      .max_memory = MAX_MEMORY};
    rp_graph *g = m->graph;
    rp_value y = linear(m, "qkv", x, 3 * TOWER, TOWER, RP_ACT_NONE, -1);
    y = rp_graph_attention(g, "core", rp_graph_rope(g, "rope", y, &rope), &attention);
    x = linear(m, "out", y, TOWER, TOWER, RP_ACT_NONE, x);
    y = rp_graph_layer_norm(g, "cross.norm", x, weight(m, 1, TOWER, 1), -1, 1e-5f);
    y = rp_graph_cross_attention(g, "cross.core",
                                 linear(m, "cross.q", y, TOWER, TOWER, RP_ACT_NONE, -1), &cross);
    x = linear(m, "cross.out", y, TOWER, TOWER, RP_ACT_NONE, x);
    y = rp_graph_glu(g, "glu", linear(m, "up", x, 2 * FFN, TOWER, RP_ACT_NONE, -1), RP_ACT_GELU);
    return linear(m, "down", y, TOWER, FFN, RP_ACT_NONE, x);
}

/* Outputs "logits" (markers) and "first" (seqs): nothing reads the last layer whole. */
static void make_tower(struct made *m)
{
    make(m);
    const rp_embed_table table = {weight(m, 40, TOWER, 1), RP_INDEX_IDS, 0};
    rp_graph *g = m->graph;
    rp_value x = rp_graph_embed(g, "embed", 1, &table);
    const rp_weight types = weight(m, 3, TOWER, 1);
    x = rp_graph_add_types(g, "types", x, types);
    for (size_t i = 0; i < LAYERS; i++)
        x = tower_layer(m, i, x);
    rp_value marked = rp_graph_gather_markers(g, "marked", x);
    marked = linear(m, "ordinal", rp_graph_ordinal_features(g, "places", SCORE), TOWER, 4,
                    RP_ACT_NONE, marked);
    marked = rp_graph_add_types(g, "marked.types", marked, types);
    rp_graph_output(g, "logits", linear(m, "logits", marked, 1, TOWER, RP_ACT_NONE, -1),
                    RP_ROWS_MARKERS, 1);
    rp_graph_output(g, "first", rp_graph_pool(g, "first", x, RP_POOL_CLS), RP_ROWS_SEQS, TOWER);
}

/* What each question sees of memories: 5 and 6 the same, 3 none. */
static const size_t memory_rows[QUESTIONS] = {40, 40, 7, 0, MAX_MEMORY, 16, 16, 1};
static const size_t memory_first[QUESTIONS] = {0, 0, 40, 0, 47, 3, 3, 60};

static void remember(struct asked *a, const size_t *order, size_t n, const float *data)
{
    for (size_t i = 0; i < n; i++)
        a->memories[i] = (rp_memory){data + memory_first[order[i]] * MEMORY, memory_rows[order[i]]};
    a->batch.memories = a->memories;
}

static float *make_memories(void)
{
    uint64_t state = SEED + 1;
    return random_floats(&state, (47 + MAX_MEMORY) * MEMORY);
}

/* The outputs of each question by itself, whatever its place: [QUESTIONS][24 + TOWER]. */
#define RESULT ((size_t)24 + TOWER)

static void take_results(const rp_session *session, const struct asked *a, const size_t *order,
                         size_t n, float *to)
{
    const rp_view logits = output(session, "logits"), first = output(session, "first");
    for (size_t i = 0; i < n; i++) {
        const size_t k = questions[order[i]].n_markers;
        float *result = to + order[i] * RESULT;
        memset(result, 0, RESULT * sizeof *result);
        if (k)
            memcpy(result, logits.data + a->mcu[i], k * sizeof *result);
        memcpy(result + 24, first.data + i * TOWER, TOWER * sizeof *result);
    }
}

static void expect_results(const float *got, const float *want, const size_t *order, size_t n,
                           const char *how)
{
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < RESULT; c++)
            if (float_bits(got[order[i] * RESULT + c]) != float_bits(want[order[i] * RESULT + c]))
                fail_msg("%s: question %zu, number %zu: %a, not %a", how, order[i], c,
                         (double)got[order[i] * RESULT + c], (double)want[order[i] * RESULT + c]);
}

struct way {
    rp_pool *pool;
    uint32_t isa;
    bool no_fuse, no_prune;
};

static void run_tower(const struct made *m, struct way way, const size_t *order, size_t n,
                      const float *memories, float *to)
{
    struct asked a;
    rp_session_options o;
    rp_session *session;
    rp_session_options_init(&o);
    o.pool = way.pool;
    o.isa = way.isa;
    o.no_fuse = way.no_fuse;
    o.no_prune = way.no_prune;
    o.poison = true;
    assert_int_equal(rp_session_create(m->graph, m->weights, &o, &session, NULL), RP_OK);
    ask(&a, order, n);
    remember(&a, order, n, memories);
    toy_run_ok(session, &a.batch);
    take_results(session, &a, order, n, to);
    rp_session_destroy(session);
}

static const struct way as_ever = {.isa = RP_ISA_DEFAULT};

/* In FP32 and INT8. */
static void tower_to_int8(struct made *m, const float *memories)
{
    struct asked a;
    rp_error err = {0};
    rp_quantize_options o;
    ask(&a, in_order, QUESTIONS);
    remember(&a, in_order, QUESTIONS, memories);
    rp_quantize_options_init(&o);
    assert_int_equal(rp_weights_quantize(m->weights, m->graph, &o, &err), RP_ERR_INVALID);
    assert_string_equal(
        err.message,
        "op 8 (cross.core): calibration needs batches with memories, and was given none");
    o.batches = &a.batch;
    o.n_batches = 1;
    if (rp_weights_quantize(m->weights, m->graph, &o, &err) != RP_OK)
        fail_msg("%s", err.message);
}

static void the_tower_has_one_result(void **state)
{
    (void)state;
    static const uint32_t levels[] = {RP_ISA_SCALAR, RP_ISA_AVX2, RP_ISA_AVX2 | RP_ISA_AVX512,
                                      RP_ISA_NEON};
    static const size_t backwards[] = {7, 6, 5, 4, 3, 2, 1, 0}, some[] = {6, 4, 4, 2, 6};
    float *memories = make_memories();
    float want[QUESTIONS * RESULT], got[QUESTIONS * RESULT];
    for (int int8 = 0; int8 < 2; int8++) {
        struct made m;
        make_tower(&m);
        if (int8)
            tower_to_int8(&m, memories);
        run_tower(&m, as_ever, in_order, QUESTIONS, memories, want);
        for (size_t i = 0; i < COUNT(levels); i++)
            if ((levels[i] & rp_isa_detected()) == levels[i]) {
                run_tower(&m, (struct way){.isa = levels[i]}, in_order, QUESTIONS, memories, got);
                expect_results(got, want, in_order, QUESTIONS, rp_isa_name(levels[i]));
            }
        for (int threads = 1; threads <= 7; threads = 2 * threads + 1) {
            struct way way = {.pool = toy_pool(threads), .isa = RP_ISA_DEFAULT};
            for (int i = 0; i < 4; i++) {
                way.no_fuse = i & 1;
                way.no_prune = i & 2;
                run_tower(&m, way, in_order, QUESTIONS, memories, got);
                expect_results(got, want, in_order, QUESTIONS, "threads");
            }
            run_tower(&m, way, backwards, QUESTIONS, memories, got);
            expect_results(got, want, backwards, QUESTIONS, "backwards");
            run_tower(&m, way, some, COUNT(some), memories, got);
            expect_results(got, want, some, COUNT(some), "some");
            for (size_t q = 0; q < QUESTIONS; q++) {
                run_tower(&m, way, &in_order[q], 1, memories, got);
                expect_results(got, want, &in_order[q], 1, "alone");
            }
            rp_pool_destroy(way.pool);
        }
        unmake(&m);
    }
    free(memories);
}

/* The same numbers in other places of memory: nothing is shared then, and no bit is other. */
static void shared_memories_are_as_good(void **state)
{
    (void)state;
    static const size_t same[] = {6, 6, 6, 6};
    float *memories = make_memories();
    struct made m;
    struct asked a;
    float want[QUESTIONS * RESULT], got[QUESTIONS * RESULT], *copies[4];
    make_tower(&m);
    run_tower(&m, as_ever, same, 4, memories, want);
    ask(&a, same, 4);
    remember(&a, same, 4, memories);
    for (size_t i = 0; i < 4; i++) {
        const size_t bytes = a.memories[i].rows * MEMORY * sizeof(float);
        copies[i] = malloc(bytes);
        assert_non_null(copies[i]);
        memcpy(copies[i], a.memories[i].data, bytes);
        a.memories[i].data = copies[i];
    }
    rp_session *session = open_session(&m, NULL, RP_ISA_DEFAULT);
    toy_run_ok(session, &a.batch);
    take_results(session, &a, same, 4, got);
    expect_results(got, want, same, 4, "copies");
    rp_session_destroy(session);
    for (size_t i = 0; i < 4; i++)
        free(copies[i]);
    free(memories);
    unmake(&m);
}

/* With the last layer's rows that nothing reads left out: attention and cross attention have the
 * rows of markers, and of first tokens. */
static void plans_leave_out_what_nothing_reads(void **state)
{
    (void)state;
    struct made m;
    const rp_plan *plan;
    static char text[32768];
    make_tower(&m);
    rp_session *session = open_session(&m, NULL, RP_ISA_DEFAULT);
    assert_int_equal(rp_session_plan(session, 361, QUESTIONS, 34, &plan, NULL), RP_OK);
    assert_true(rp_plan_text(plan, text, sizeof text) < sizeof text);
    assert_non_null(strstr(text, "kv_heads=1 memory=64x64 tokens=marked"));
    assert_non_null(strstr(text, "kv_heads=1 memory=64x64 tokens=first"));
    assert_non_null(strstr(text, " options queries=marked"));
    assert_non_null(strstr(text, " qtype=2"));
    size_t with = 0;
    for (const char *at = text; (at = strstr(at, "cross.core")) != NULL; at++)
        with++;
    assert_int_equal(with, 3); /* of the first layer all rows, of the last one's two kinds */
    rp_session_destroy(session);
    assert_true(rp_graph_text(m.graph, m.weights, text, sizeof text) < sizeof text);
    assert_non_null(strstr(text, "cross_attention \"cross.core\""));
    assert_non_null(strstr(text, "heads=2x16 scale=0 kv_heads=1 memory=64x64 k=32 v=48"));
    assert_non_null(strstr(text, "theta=10000 options"));
    assert_non_null(strstr(text, "heads=2x16 scale=0 options"));
    assert_non_null(strstr(text, "ordinal_features \"places\" qtype=2"));
    assert_false(rp_graph_is_causal(m.graph));
    unmake(&m);
}

/* Scratch is taken for the longest memory there may be, however few tokens a bucket has. */
static void scratch_holds_a_memory(void **state)
{
    (void)state;
    const rp_bucket bucket = {.tokens = 1, .seqs = 1};
    struct made m;
    rp_plan_sizes sizes;
    size_t bytes;
    make_cross(&m, &shapes[3]);
    assert_int_equal(rp_plan_measure(m.graph, m.weights, &bucket, NULL, &sizes, NULL), RP_OK);
    assert_true(rp_attention_scratch_bytes(MAX_MEMORY, 0, false, shapes[3].dim, false, &bytes));
    assert_true(sizes.scratch_bytes_per_thread >= bytes);
    unmake(&m);
}

/* A session whose memories are known to be shorter takes less, and no longer ones. */
static void scratch_is_for_what_is_asked(void **state)
{
    (void)state;
    const rp_bucket bucket = {.tokens = 12, .seqs = 5, .markers = 6};
    const size_t most[] = {0, MAX_MEMORY, 2 * MAX_MEMORY, 5};
    struct made m;
    rp_plan_sizes sizes[COUNT(most)];
    rp_plan_options o;
    make_cross(&m, &shapes[3]);
    rp_plan_options_init(&o);
    assert_int_equal(o.max_memory, 0);
    for (size_t i = 0; i < COUNT(most); i++) {
        o.max_memory = most[i];
        assert_int_equal(rp_plan_measure(m.graph, m.weights, &bucket, &o, &sizes[i], NULL), RP_OK);
    }
    assert_int_equal(sizes[1].scratch_bytes_per_thread, sizes[0].scratch_bytes_per_thread);
    assert_int_equal(sizes[2].scratch_bytes_per_thread, sizes[0].scratch_bytes_per_thread);
    assert_true(sizes[3].scratch_bytes_per_thread < sizes[0].scratch_bytes_per_thread);

    static const float rows[6 * 200];
    rp_memory memories[5] = {{rows, 5}, {rows, 5}, {rows, 0}, {rows, 4}, {rows, 6}};
    rp_session_options options;
    rp_session *session;
    rp_error err;
    float input[12 * 128] = {0};
    rp_session_options_init(&options);
    options.max_memory = 5;
    assert_int_equal(rp_session_create(m.graph, m.weights, &options, &session, &err), RP_OK);
    rp_batch b = five();
    b.input = input;
    b.memories = memories;
    assert_int_equal(rp_session_run(session, &b, &err), RP_ERR_LIMIT);
    assert_non_null(strstr(err.message, "of sequence 4 has 6 rows, at most 5 are taken"));
    memories[4].rows = 5;
    toy_run_ok(session, &b);
    rp_session_destroy(session);
    unmake(&m);
}

/* A second run allocates nothing; the profile counts what the plan says. */
static void runs_are_counted(void **state)
{
    (void)state;
    float *memories = make_memories();
    for (int threads = 1; threads <= 3; threads += 2)
        for (int whole = 0; whole < 2; whole++) {
            struct made m;
            struct asked a;
            rp_session_options o;
            rp_session *session;
            rp_pool *pool = toy_pool(threads);
            make_tower(&m);
            const rp_bucket bucket = {361, QUESTIONS, 34}; /* that the batch fills */
            rp_session_options_init(&o);
            o.pool = pool;
            o.no_prune = whole;
            o.buckets = &bucket;
            o.n_buckets = 1;
            assert_int_equal(rp_session_create(m.graph, m.weights, &o, &session, NULL), RP_OK);
            ask(&a, in_order, QUESTIONS);
            remember(&a, in_order, QUESTIONS, memories);
            toy_run_ok(session, &a.batch);
            const size_t before = alloc_count();
            toy_run_ok(session, &a.batch);
            if (alloc_count_available())
                assert_int_equal(alloc_count(), before);
            assert_int_equal(rp_session_profile_start(session, 0, NULL), RP_OK);
            toy_run_ok(session, &a.batch);
            rp_profile p = {.struct_size = sizeof p};
            const rp_plan *plan;
            assert_int_equal(rp_session_plan(session, (size_t)a.cu[QUESTIONS], QUESTIONS,
                                             (size_t)a.mcu[QUESTIONS], &plan, NULL),
                             RP_OK);
            assert_int_equal(rp_session_profile(session, &p, NULL), RP_OK);
            uint64_t flops = 0, cross = 0, cross_bytes = 0;
            for (size_t i = 0; i < p.n_steps; i++) {
                rp_step_info info;
                assert_int_equal(rp_plan_step(plan, i, &info), RP_OK);
                const bool is_cross = strcmp(info.kind, "cross_attention") == 0;
                if (is_cross || strcmp(info.kind, "gemm") == 0 ||
                    strcmp(info.kind, "attention") == 0)
                    flops += p.steps[i].flops;
                cross += is_cross ? p.steps[i].flops : 0;
                cross_bytes += is_cross ? p.steps[i].bytes : 0;
            }
            /* Counted here again: pairs of rows and memories' rows. */
            uint64_t pairs = 0;
            for (size_t i = 0; i < QUESTIONS; i++) {
                const size_t last = whole ? questions[i].len : questions[i].n_markers + 1;
                pairs += (questions[i].len + last) * memory_rows[i];
            }
            assert_int_equal(cross, 4 * TOWER * pairs);
            assert_true(cross_bytes > 0);
            const double want = (double)rp_plan_flops(plan, &a.batch);
            assert_true((double)flops > 0.9999 * want && (double)flops < 1.0001 * want);
            rp_session_destroy(session);
            rp_pool_destroy(pool);
            unmake(&m);
        }
    free(memories);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(input_comes_as_it_is),
        cmocka_unit_test(input_is_checked),
        cmocka_unit_test(what_is_missing_is_named),
        cmocka_unit_test(markers_have_types),
        cmocka_unit_test(places_of_markers_are_exact),
        cmocka_unit_test(only_one_type_has_places),
        cmocka_unit_test(rows_attend_to_memories),
        cmocka_unit_test(a_sequence_is_its_own_memory),
        cmocka_unit_test(memories_are_checked),
        cmocka_unit_test(cross_attention_is_checked),
        cmocka_unit_test(rows_see_their_option),
        cmocka_unit_test(a_row_sees_nothing_else),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(options_begin_at_one_position),
        cmocka_unit_test(the_tower_has_one_result),
        cmocka_unit_test(shared_memories_are_as_good),
        cmocka_unit_test(plans_leave_out_what_nothing_reads),
        cmocka_unit_test(scratch_holds_a_memory),
        cmocka_unit_test(scratch_is_for_what_is_asked),
        cmocka_unit_test(runs_are_counted),
    };
    return cmocka_run_group_tests_name("split", tests, NULL, NULL);
}
