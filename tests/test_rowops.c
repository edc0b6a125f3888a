/* The ops that hybrid models are made of and that work row by row: what they refuse and in which
 * words; experts against plain loops bit for bit, in INT8 too; a graph of all of them against
 * double precision; the same bits in every way of running, batch and precision; nothing allocated
 * in a run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ops/ops.h"
#include "plan/plan.h"
#include "pool/error.h"
#include "tests/alloc_count.h"
#include "tests/floats.h"
#include "tests/toy.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a)   (sizeof(a) / sizeof *(a))
#define VOCABULARY 40

/* A graph, the numbers of its weights, and random ones for them. */
struct made {
    struct toy toy;
    float *arrays[2200];
    size_t n_arrays;
    uint64_t state;
};

static void make(struct made *m, uint64_t seed)
{
    memset(m, 0, sizeof *m);
    m->state = seed;
    assert_int_equal(rp_graph_create(&m->toy.graph, NULL), RP_OK);
    assert_int_equal(rp_weights_create(&m->toy.weights, NULL), RP_OK);
}

static void unmake(struct made *m)
{
    for (size_t i = 0; i < m->n_arrays; i++)
        free(m->arrays[i]);
    rp_graph_destroy(m->toy.graph);
    rp_weights_destroy(m->toy.weights);
}

/* A weight of numbers within offset +- scale. */
static rp_weight weight(struct made *m, const char *name, size_t rows, size_t cols, float scale,
                        float offset)
{
    float *data = malloc(rows * cols * sizeof *data);
    assert_true(data && m->n_arrays < COUNT(m->arrays));
    for (size_t i = 0; i < rows * cols; i++)
        data[i] = toy_uniform(&m->state) * scale + offset;
    m->arrays[m->n_arrays++] = data;
    const rp_weight_part part = {.rows = rows, .data = data};
    rp_weight w;
    assert_int_equal(rp_weights_add(m->toy.weights, name, cols, 1, &part, &w, NULL), RP_OK);
    return w;
}

static float *numbers(const struct made *m, rp_weight w)
{
    return m->arrays[w];
}

static rp_value embed(struct made *m, const char *name, size_t width, float scale)
{
    const rp_embed_table table = {weight(m, name, VOCABULARY, width, scale, 0), RP_INDEX_IDS, 0};
    return rp_graph_embed(m->toy.graph, name, 1, &table);
}

static void output(struct made *m, const char *name, rp_value x, size_t width)
{
    rp_graph_output(m->toy.graph, name, x, RP_ROWS_TOKENS, width);
}

/* ---- refusals -----------------------------------------------------------------------------------
 */

static void refuses(struct made *m, rp_status status, const char *message)
{
    const rp_bucket bucket = {32, 4, 4};
    rp_error err = {RP_OK, ""};
    rp_plan *plan = NULL;
    rp_plan_sizes sizes;
    assert_int_equal(rp_plan_compile(m->toy.graph, m->toy.weights, &bucket, NULL, &plan, &err),
                     status);
    assert_string_equal(err.message, message);
    assert_null(plan);
    assert_int_equal(rp_plan_measure(m->toy.graph, m->toy.weights, &bucket, NULL, &sizes, &err),
                     status);
    assert_string_equal(err.message, message);
    unmake(m);
}

static void refuses_rms_norm(rp_rms_norm options, size_t cols, rp_status status,
                             const char *message)
{
    struct made m;
    make(&m, 1);
    const rp_value x = embed(&m, "word", 12, 1);
    if (cols)
        options.w = weight(&m, "w", 1, cols, 1, 0);
    output(&m, "y", rp_graph_rms_norm(m.toy.graph, "n", x, &options), 12);
    refuses(&m, status, message);
}

static void rms_norms_refused(void **state)
{
    (void)state;
    refuses_rms_norm((rp_rms_norm){0}, 11, RP_ERR_SHAPE,
                     "op 1 (n): rms_norm weight w is [1, 11], expected [1, 12]");
    refuses_rms_norm((rp_rms_norm){.n_heads = 2, .head_dim = 4}, 12, RP_ERR_SHAPE,
                     "op 1 (n): rms_norm weight w is [1, 12], expected [1, 4]");
    refuses_rms_norm((rp_rms_norm){.w = 9}, 0, RP_ERR_INVALID,
                     "op 1 (n): there is no weight 9 for rms_norm weight");
    refuses_rms_norm((rp_rms_norm){.w = -1, .offset = true}, 0, RP_ERR_INVALID,
                     "op 1 (n): an offset, but no weight");
    refuses_rms_norm((rp_rms_norm){.w = -1, .eps = NAN}, 0, RP_ERR_INVALID,
                     "op 1 (n): eps must be finite and not negative");
    refuses_rms_norm(
        (rp_rms_norm){.w = -1, .head_dim = 4}, 0, RP_ERR_INVALID,
        "op 1 (n): heads of 4 from column 0 on, but none of them; 0, 0 for whole rows");
    refuses_rms_norm((rp_rms_norm){.w = -1, .n_heads = -1, .head_dim = 4}, 0, RP_ERR_INVALID,
                     "op 1 (n): -1 heads of 4, expected at least 1 of 1");
    refuses_rms_norm((rp_rms_norm){.w = -1, .n_heads = 3, .head_dim = 4, .first_column = 1}, 0,
                     RP_ERR_SHAPE,
                     "op 1 (n): its input has width 12, expected at least 12 columns from 1 on");
    refuses_rms_norm((rp_rms_norm){.w = -1, .n_heads = 1, .head_dim = 4, .first_column = -1}, 0,
                     RP_ERR_SHAPE,
                     "op 1 (n): its input has width 12, expected at least 4 columns from -1 on");
    refuses_rms_norm((rp_rms_norm){.w = -1, .n_heads = INT32_MAX, .head_dim = INT32_MAX}, 0,
                     RP_ERR_SHAPE,
                     "op 1 (n): its input has width 12, expected at least 4611686014132420609 "
                     "columns from 0 on");
}

static void refuses_gate(rp_gate options, bool seqs, rp_status status, const char *message)
{
    struct made m;
    make(&m, 1);
    const rp_value x = embed(&m, "word", 12, 1), gate = embed(&m, "gate", 14, 1);
    const rp_value rows = rp_graph_pool(m.toy.graph, "pool", gate, RP_POOL_CLS);
    output(&m, "y", rp_graph_gate(m.toy.graph, "g", x, seqs ? rows : gate, &options), 12);
    refuses(&m, status, message);
}

static void refuses_gated_norm(rp_gated_norm options, size_t cols, rp_status status,
                               const char *message)
{
    struct made m;
    make(&m, 1);
    const rp_value x = embed(&m, "word", 12, 1), gate = embed(&m, "gate", 14, 1);
    if (cols)
        options.w = weight(&m, "w", 1, cols, 1, 0);
    output(&m, "y", rp_graph_gated_norm(m.toy.graph, "g", x, gate, &options), 12);
    refuses(&m, status, message);
}

static void gates_refused(void **state)
{
    (void)state;
    refuses_gate((rp_gate){.activation = (rp_activation)7}, false, RP_ERR_INVALID,
                 "op 3 (g): there is no activation 7");
    refuses_gate((rp_gate){.first_column = 3}, false, RP_ERR_SHAPE,
                 "op 3 (g): its gate has width 14, expected at least 12 columns from 3 on");
    refuses_gate((rp_gate){.first_column = 14, .one = true}, false, RP_ERR_SHAPE,
                 "op 3 (g): its gate has width 14, expected at least 1 columns from 14 on");
    refuses_gate((rp_gate){0}, true, RP_ERR_SHAPE,
                 "op 3 (g): its gate has a row per seqs, expected tokens");
    refuses_gated_norm((rp_gated_norm){.head_dim = 5}, 5, RP_ERR_SHAPE,
                       "op 2 (g): its input has width 12, which is no heads of 5");
    refuses_gated_norm((rp_gated_norm){.head_dim = 0}, 5, RP_ERR_SHAPE,
                       "op 2 (g): its input has width 12, which is no heads of 0");
    refuses_gated_norm((rp_gated_norm){.head_dim = 4}, 5, RP_ERR_SHAPE,
                       "op 2 (g): gated_norm weight w is [1, 5], expected [1, 4]");
    refuses_gated_norm((rp_gated_norm){.head_dim = 4, .w = -1}, 0, RP_ERR_INVALID,
                       "op 2 (g): there is no weight -1 for gated_norm weight");
    refuses_gated_norm((rp_gated_norm){.head_dim = 4, .eps = -1}, 4, RP_ERR_INVALID,
                       "op 2 (g): eps must be finite and not negative");
    refuses_gated_norm((rp_gated_norm){.head_dim = 4, .first_column = 3}, 4, RP_ERR_SHAPE,
                       "op 2 (g): its gate has width 14, expected at least 12 columns from 3 on");
}

static void refuses_gdn_gates(rp_gdn_gates options, size_t cols, rp_status status,
                              const char *message)
{
    struct made m;
    make(&m, 1);
    const rp_value x = embed(&m, "word", 12, 1);
    if (cols)
        options.a_log = weight(&m, "a", 1, cols, 1, 0);
    output(&m, "y", rp_graph_gdn_gates(m.toy.graph, "g", x, &options), 8);
    refuses(&m, status, message);
}

static void delta_net_gates_refused(void **state)
{
    (void)state;
    refuses_gdn_gates((rp_gdn_gates){.dt_bias = -1}, 4, RP_ERR_INVALID,
                      "op 1 (g): 0 heads, expected at least 1");
    refuses_gdn_gates(
        (rp_gdn_gates){.n_heads = 4, .a_column = 9, .dt_bias = -1}, 4, RP_ERR_SHAPE,
        "op 1 (g): its input (a) has width 12, expected at least 4 columns from 9 on");
    refuses_gdn_gates(
        (rp_gdn_gates){.n_heads = 4, .b_column = -4, .dt_bias = -1}, 4, RP_ERR_SHAPE,
        "op 1 (g): its input (b) has width 12, expected at least 4 columns from -4 on");
    refuses_gdn_gates((rp_gdn_gates){.n_heads = 4, .dt_bias = -1}, 3, RP_ERR_SHAPE,
                      "op 1 (g): a_log a is [1, 3], expected [1, 4]");
    refuses_gdn_gates((rp_gdn_gates){.n_heads = 4, .a_log = -1, .dt_bias = -1}, 0, RP_ERR_INVALID,
                      "op 1 (g): there is no weight -1 for a_log");
    refuses_gdn_gates((rp_gdn_gates){.n_heads = 4, .dt_bias = 0}, 4, RP_ERR_SHAPE,
                      "op 1 (g): dt_bias word is [40, 12], expected [1, 4]");
    refuses_gdn_gates((rp_gdn_gates){.n_heads = 4, .dt_bias = -1, .beta_scale = INFINITY}, 4,
                      RP_ERR_INVALID, "op 1 (g): beta_scale must be finite and not negative");
}

/* ---- experts ------------------------------------------------------------------------------------
 */

/* x, logits and residual are tables, so a test says what they are row by row. */
struct mixture {
    size_t width, inner, n;
    rp_experts options;
    rp_weight up[RP_EXPERTS_MAX], down[RP_EXPERTS_MAX];
    bool residual;
};

enum { X, LOGITS, RESIDUAL, FIRST_EXPERT }; /* numbers of the tables */

static void make_mixture(struct made *m, struct mixture *s)
{
    char name[32];
    const rp_value x = embed(m, "x", s->width, 1), logits = embed(m, "logits", s->n, 3);
    const rp_value residual = embed(m, "residual", s->width, 1);
    for (size_t e = 0; e < s->n; e++) {
        snprintf(name, sizeof name, "e%zu.up", e);
        s->up[e] = weight(m, name, 2 * s->inner, s->width, 1, 0);
        snprintf(name, sizeof name, "e%zu.down", e);
        s->down[e] = weight(m, name, s->width, s->inner, 1, 0);
    }
    s->options.n_experts = (int32_t)s->n;
    s->options.up = s->up;
    s->options.down = s->down;
    const rp_value y = rp_graph_experts(m->toy.graph, "experts", x, logits, &s->options,
                                        s->residual ? residual : -1);
    memset(s->up, 0xff, sizeof s->up); /* the graph has a copy */
    output(m, "y", y, s->width);
}

static float chain(const float *a, const float *w, size_t k)
{
    float acc = 0;
    for (size_t i = 0; i < k; i++)
        acc = fmaf(a[i], w[i], acc);
    return acc;
}

/* The same of INT8, as docs/numerics.md has it: the row rounded, the weight's row rounded and
 * bounded, the sum exact.  f: factors, or NULL. */
static float chain_in_int8(const float *a, const float *w, const float *f, size_t k)
{
    float y[128], u[128] = {0}, lo = 0, hi = 0, most = 0, scale;
    int32_t v[128], acc = 0;
    assert_true(k < COUNT(y));
    for (size_t i = 0; i < k; i++) {
        y[i] = f ? a[i] * (1 / f[i]) : a[i];
        lo = fminf(lo, y[i]);
        hi = fmaxf(hi, y[i]);
        u[i] = f ? w[i] * f[i] : w[i];
    }
    for (size_t i = 0; i < k; i++) {
        most = fmaxf(most, fabsf(u[i]) / 127);
        most = i % 2 ? most : fmaxf(most, fabsf(u[i] + u[i + 1]) / 128);
    }
    most = most > 0 ? fmaxf(most, 0x1p-126f) : 1;
    for (size_t i = 0; i < k; i++)
        v[i] = (int32_t)fmaxf(fminf(rintf(u[i] / most), 127), -127);
    for (size_t i = 0; i + 1 < k; i += 2)
        if (abs(v[i] + v[i + 1]) > 128) {
            const float over = (float)abs(v[i]) - fabsf(u[i] / most);
            const size_t one = i + ((float)abs(v[i + 1]) - fabsf(u[i + 1] / most) > over);
            v[one] -= v[one] > 0 ? 1 : -1;
        }
    scale = fmaxf(hi / 255 - lo / 255, 0x1p-126f);
    const float zero = fminf(rintf(-lo * (1 / scale)), 255);
    for (size_t i = 0; i < k; i++) {
        const float q = rintf(fminf(fmaxf(fmaf(y[i], 1 / scale, zero), 0), 255));
        acc += ((int32_t)q - (int32_t)zero) * v[i];
    }
    return (float)acc * (scale * most);
}

/* One number of a row times weight w. */
static float product(const struct made *m, rp_weight w, size_t row, const float *a, size_t k)
{
    const struct rp_weight_entry *e = rp_weights_entry(m->toy.weights, w);
    const float *numbers_of_row = numbers(m, w) + row * k;
    assert_int_equal(e->cols, k);
    return e->int8 ? chain_in_int8(a, numbers_of_row, e->smooth, k) : chain(a, numbers_of_row, k);
}

/* Tables are read anew. */
static void drop_tables(const struct made *m)
{
    for (rp_weight w = X; w < FIRST_EXPERT; w++)
        rp_weights_drop(m->toy.weights, w, RP_FORM_TABLE);
}

static void to_int8(const struct made *m, const rp_quantize_options *options)
{
    rp_error err = {RP_OK, ""};
    if (rp_weights_quantize(m->toy.weights, m->toy.graph, options, &err) != RP_OK)
        fail_msg("%s", err.message);
}

/* Whether e is among the chosen: fewer than n_used are before it. */
static bool is_chosen(const float *p, size_t n, size_t e, size_t n_used)
{
    size_t before = 0;
    for (size_t k = 0; k < n; k++)
        before += p[k] > p[e] || (p[k] == p[e] && k < e);
    return before < n_used;
}

/* What the contract says of the row of token id. */
static void mixture_plainly(const struct made *m, const struct mixture *s, size_t id, float *y)
{
    const struct rp_ops *ops = rp_ops_select(RP_ISA_SCALAR);
    const float *x = m->arrays[X] + id * s->width;
    float *p = malloc(s->n * sizeof *p), *h = malloc(s->inner * sizeof *h), sum = 0;
    assert_true(p && h);
    ops->softmax(m->arrays[LOGITS] + id * s->n, s->n, 1, p);
    for (size_t e = 0; e < s->n; e++)
        sum += is_chosen(p, s->n, e, (size_t)s->options.n_used) ? p[e] : 0;
    memset(y, 0, s->width * sizeof *y);
    for (size_t e = 0; e < s->n; e++) {
        if (!is_chosen(p, s->n, e, (size_t)s->options.n_used))
            continue;
        const rp_weight up = (rp_weight)(FIRST_EXPERT + 2 * e), down = up + 1;
        const float share = s->options.normalize ? p[e] / sum : p[e];
        for (size_t i = 0; i < s->inner; i++) {
            float gate = product(m, up, i, x, s->width);
            ops->activation(s->options.activation, &gate, 1, 1, &gate, 1, 1);
            h[i] = gate * product(m, up, s->inner + i, x, s->width);
        }
        for (size_t c = 0; c < s->width; c++)
            y[c] = fmaf(product(m, down, c, h, s->inner), share, y[c]);
    }
    for (size_t c = 0; s->residual && c < s->width; c++)
        y[c] += m->arrays[RESIDUAL][id * s->width + c];
    free(p);
    free(h);
}

/* Rows of all ids. */
static float *all_plainly(const struct made *m, const struct mixture *s)
{
    float *want = malloc(VOCABULARY * s->width * sizeof *want);
    assert_non_null(want);
    for (size_t id = 0; id < VOCABULARY; id++)
        mixture_plainly(m, s, id, want + id * s->width);
    return want;
}

static void check_mixture(const struct mixture *s, const float *want, rp_session *session,
                          const rp_batch *batch)
{
    rp_view v;
    toy_run_ok(session, batch);
    assert_int_equal(rp_session_output(session, "y", &v, NULL), RP_OK);
    assert_int_equal(v.rows, batch->cu[batch->n_seqs]);
    for (size_t r = 0; r < v.rows; r++)
        assert_memory_equal(v.data + r * s->width, want + (size_t)batch->ids[r] * s->width,
                            s->width * sizeof *want);
}

static const uint32_t levels[] = {RP_ISA_SCALAR,
                                  RP_ISA_AVX2,
                                  RP_ISA_AVX2 | RP_ISA_AVX_VNNI,
                                  RP_ISA_AVX2 | RP_ISA_AVX512,
                                  RP_ISA_AVX2 | RP_ISA_AVX512 | RP_ISA_AVX512_VNNI,
                                  RP_ISA_AVX2 | RP_ISA_AVX512 | RP_ISA_AVX512_VNNI |
                                      RP_ISA_AMX_INT8,
                                  RP_ISA_NEON,
                                  RP_ISA_NEON | RP_ISA_DOTPROD,
                                  RP_ISA_NEON | RP_ISA_DOTPROD | RP_ISA_I8MM,
                                  RP_ISA_DEFAULT};

/* More rows than a block has, in one task and in many; few experts and very many; in FP32, in INT8
 * and in INT8 without factors. */
static void experts_are_the_contract(void **state)
{
    (void)state;
    static const size_t lengths[] = {7, 0, 1, 400, 33};
    static const struct {
        size_t width, inner, n;
        int32_t used;
    } shapes[] = {{1, 1, 1, 1},   {3, 5, 4, 2},   {16, 16, 8, 8},
                  {33, 17, 6, 1}, {80, 48, 5, 3}, {7, 5, 512, 10}};
    rp_pool *pool = toy_pool(3);
    struct toy_batch b;
    static struct mixture s;
    toy_batch_make(&b, lengths, COUNT(lengths), VOCABULARY, 9);
    for (size_t k = 0; k < 4 * COUNT(shapes); k++) {
        static struct made m;
        rp_quantize_options o;
        make(&m, 100 + k);
        s = (struct mixture){.width = shapes[k / 4].width,
                             .inner = shapes[k / 4].inner,
                             .n = shapes[k / 4].n,
                             .residual = k % 2};
        s.options.n_used = shapes[k / 4].used;
        s.options.normalize = k % 2;
        s.options.activation = k % 3 ? RP_ACT_SILU : RP_ACT_GELU;
        make_mixture(&m, &s);
        rp_quantize_options_init(&o);
        o.no_smoothing = k % 4 == 3;
        if (k % 4 >= 2)
            to_int8(&m, &o);
        assert_int_equal(rp_weights_entry(m.toy.weights, FIRST_EXPERT)->int8, k % 4 >= 2);
        float *want = all_plainly(&m, &s);
        for (size_t i = 0; i < 2 * COUNT(levels) + 1; i++) {
            const uint32_t isa = levels[i / 2 % COUNT(levels)];
            if (isa != RP_ISA_DEFAULT && (isa & rp_isa_detected()) != isa)
                continue;
            rp_session *session =
                toy_session(&m.toy, i == 2 * COUNT(levels) ? pool : NULL, isa, i % 2);
            check_mixture(&s, want, session, &b.batch);
            rp_session_destroy(session);
        }
        free(want);
        unmake(&m);
    }
    toy_batch_free(&b);
    rp_pool_destroy(pool);
}

/* Equal logits choose the first experts, and what nobody chose may be NaN. */
static void ties_go_to_the_first(void **state)
{
    (void)state;
    static const size_t lengths[] = {1, 3};
    for (int int8 = 0; int8 < 2; int8++) {
        static struct made m;
        static struct mixture s;
        struct toy_batch b;
        make(&m, 5);
        s = (struct mixture){.width = 6, .inner = 4, .n = 20, .options = {.n_used = 3}};
        make_mixture(&m, &s);
        for (size_t i = 0; i < VOCABULARY * s.n; i++)
            m.arrays[LOGITS][i] = 0.25f + (i % s.n == 17 ? 1 : 0);
        for (size_t e = 2; e < s.n; e++)
            for (size_t i = 0; e != 17 && i < 2 * s.inner * s.width; i++)
                m.arrays[FIRST_EXPERT + 2 * e][i] = NAN;
        if (int8)
            to_int8(&m, NULL);
        toy_batch_make(&b, lengths, COUNT(lengths), VOCABULARY, 9);
        rp_session *session = toy_session(&m.toy, NULL, RP_ISA_DEFAULT, false);
        float *want = all_plainly(&m, &s);
        check_mixture(&s, want, session, &b.batch);
        free(want);
        rp_session_destroy(session);
        toy_batch_free(&b);
        unmake(&m);
    }
}

/* A NaN or an infinity among a row's logits makes that row NaN, and no other. */
static void logits_that_are_none(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY};
    for (size_t k = 0; k < 4 * COUNT(bad); k++) {
        static struct made m;
        static struct mixture s;
        const int32_t ids[] = {3, 4, 5}, cu[] = {0, 1, 3};
        rp_batch batch;
        rp_view v;
        rp_error err = {RP_OK, ""};
        float want[6];
        make(&m, 6);
        s = (struct mixture){
            .width = 6, .inner = 4, .n = 9, .options = {.n_used = 3, .normalize = k % 2}};
        make_mixture(&m, &s);
        if (k % 4 > 1)
            to_int8(&m, NULL);
        drop_tables(&m); /* what calibrating read was whole */
        m.arrays[LOGITS][4 * s.n + 8] = bad[k / 4];
        rp_batch_init(&batch);
        batch.n_seqs = 2;
        batch.ids = ids;
        batch.cu = cu;
        rp_session *session = toy_session(&m.toy, NULL, RP_ISA_DEFAULT, false);
        assert_int_equal(rp_session_run(session, &batch, &err), RP_ERR_NONFINITE);
        assert_string_equal(err.message, "output y, row 1 (of tokens), column 0 is NaN");
        assert_int_equal(rp_session_output(session, "y", &v, NULL), RP_OK);
        for (size_t c = 0; c < s.width; c++)
            assert_true(isnan(v.data[s.width + c]));
        for (size_t r = 0; r < 3; r += 2) {
            mixture_plainly(&m, &s, (size_t)ids[r], want);
            assert_memory_equal(v.data + r * s.width, want, sizeof want);
        }
        rp_session_destroy(session);
        unmake(&m);
    }
}

static void refuses_experts(int32_t n, int32_t used, int which, rp_status status,
                            const char *message)
{
    struct made m;
    rp_weight up[3], down[3];
    make(&m, 1);
    const rp_value x = embed(&m, "x", 12, 1), logits = embed(&m, "logits", 3, 1);
    const rp_value other = embed(&m, "other", 13, 1);
    for (size_t e = 0; e < 3; e++) {
        up[e] = weight(&m, "up", which == 1 && e == 2 ? 9 : 10, 12, 1, 0);
        down[e] = weight(&m, "down", 12, which == 2 && e == 1 ? 6 : 5, 1, 0);
    }
    if (which == 3)
        down[0] = 99;
    const rp_experts o = {.n_experts = n,
                          .n_used = used,
                          .activation = which == 4 ? (rp_activation)-1 : RP_ACT_SILU,
                          .up = which == 5 ? NULL : up,
                          .down = down};
    output(&m, "y",
           rp_graph_experts(m.toy.graph, "e", x, which == 6 ? other : logits, &o,
                            which == 7 ? other : -1),
           12);
    refuses(&m, status, message);
}

static void experts_refused(void **state)
{
    (void)state;
    refuses_experts(0, 1, 0, RP_ERR_INVALID,
                    "op 3 (e): 1 of 0 experts, expected 1 or more of at most 4096");
    refuses_experts(-5, 1, 0, RP_ERR_INVALID,
                    "op 3 (e): 1 of -5 experts, expected 1 or more of at most 4096");
    refuses_experts(INT32_MAX, 1, 0, RP_ERR_INVALID,
                    "op 3 (e): 1 of 2147483647 experts, expected 1 or more of at most 4096");
    refuses_experts(3, 4, 0, RP_ERR_INVALID,
                    "op 3 (e): 4 of 3 experts, expected 1 or more of at most 4096");
    refuses_experts(3, 0, 0, RP_ERR_INVALID,
                    "op 3 (e): 0 of 3 experts, expected 1 or more of at most 4096");
    refuses_experts(3, 1, 1, RP_ERR_SHAPE,
                    "op 3 (e): expert 2's up up is [9, 12], expected [10, 12]");
    refuses_experts(3, 1, 2, RP_ERR_SHAPE,
                    "op 3 (e): expert 1's down down is [12, 6], expected [12, 5]");
    refuses_experts(3, 1, 3, RP_ERR_INVALID, "op 3 (e): there is no weight 99 for expert 0's down");
    refuses_experts(3, 1, 4, RP_ERR_INVALID, "op 3 (e): there is no activation -1");
    refuses_experts(3, 1, 5, RP_ERR_INVALID, "op 3 (e): its experts have no weights");
    refuses_experts(3, 1, 6, RP_ERR_SHAPE, "op 3 (e): logits are tokens x 13, expected tokens x 3");
    refuses_experts(2, 1, 0, RP_ERR_SHAPE, "op 3 (e): logits are tokens x 3, expected tokens x 2");
    refuses_experts(3, 1, 7, RP_ERR_SHAPE,
                    "op 3 (e): residual is tokens x 13, expected tokens x 12");
}

/* ---- all of them --------------------------------------------------------------------------------
 */

enum {
    W = 48, /* 3 heads of 16 */
    HEAD = 16,
    GATES = 4, /* heads of the delta net's gates */
    A = 2 * W, /* columns of the projection: values, gate, a, b, one number */
    B = A + GATES,
    ONE = B + GATES,
    P = ONE + 1,
    INNER = 20,
    EXPERTS = 6,
    USED = 2
};

struct model {
    rp_weight norm, proj, head_norm, back, gated, a_log, dt_bias, mix, router, up[EXPERTS],
        down[EXPERTS];
};

/* A layer as hybrid models have it, without what looks at other rows. */
static rp_value make_model(struct made *m, struct model *w)
{
    rp_graph *g = m->toy.graph;
    const rp_value x = embed(m, "x", W, 1);
    *w = (struct model){.norm = weight(m, "norm", 1, W, 0.3f, 0),
                        .proj = weight(m, "proj", P, W, 0.3f, 0),
                        .head_norm = weight(m, "head_norm", 1, HEAD, 0.3f, 1),
                        .back = weight(m, "back", W, P, 0.2f, 0),
                        .gated = weight(m, "gated", 1, HEAD, 0.3f, 1),
                        .a_log = weight(m, "a_log", 1, GATES, 2, 0),
                        .dt_bias = weight(m, "dt_bias", 1, GATES, 1, 0),
                        .mix = weight(m, "mix", W, W + 2 * GATES, 0.2f, 0),
                        .router = weight(m, "router", EXPERTS, W, 1, 0)};
    for (size_t e = 0; e < EXPERTS; e++) {
        w->up[e] = weight(m, "up", 2 * INNER, W, 0.3f, 0);
        w->down[e] = weight(m, "down", W, INNER, 0.3f, 0);
    }
    rp_value y =
        rp_graph_rms_norm(g, "norm", x, &(rp_rms_norm){.w = w->norm, .offset = true, .eps = 1e-6f});
    const rp_value p = rp_graph_gemm(g, "proj", y, w->proj, -1, RP_ACT_NONE, -1);
    y = rp_graph_rms_norm(
        g, "head_norm", p,
        &(rp_rms_norm){
            .w = w->head_norm, .eps = 1e-6f, .n_heads = 2, .head_dim = HEAD, .first_column = HEAD});
    y = rp_graph_gemm(g, "back", y, w->back, -1, RP_ACT_NONE, -1);
    y = rp_graph_gated_norm(g, "gated", y, p,
                            &(rp_gated_norm){.w = w->gated,
                                             .eps = 1e-6f,
                                             .head_dim = HEAD,
                                             .activation = RP_ACT_SILU,
                                             .first_column = W});
    y = rp_graph_gate(g, "gate", y, p, &(rp_gate){RP_ACT_SIGMOID, ONE, true});
    const rp_value gates = rp_graph_gdn_gates(g, "gates", p,
                                              &(rp_gdn_gates){.n_heads = GATES,
                                                              .a_column = A,
                                                              .b_column = B,
                                                              .a_log = w->a_log,
                                                              .dt_bias = w->dt_bias,
                                                              .beta_scale = 2});
    y = rp_graph_concat(g, "both", 2, (rp_value[]){y, gates});
    const rp_value h = rp_graph_gemm(g, "mix", y, w->mix, -1, RP_ACT_NONE, x);
    const rp_value logits = rp_graph_gemm(g, "router", h, w->router, -1, RP_ACT_NONE, -1);
    const rp_experts experts = {.n_experts = EXPERTS,
                                .n_used = USED,
                                .normalize = true,
                                .activation = RP_ACT_SILU,
                                .up = w->up,
                                .down = w->down};
    return rp_graph_experts(g, "experts", h, logits, &experts, h);
}

static void product_in_double(const struct made *m, rp_weight w, size_t n, size_t k,
                              const double *x, double *y)
{
    for (size_t i = 0; i < n; i++) {
        y[i] = 0;
        for (size_t c = 0; c < k; c++)
            y[i] += x[c] * numbers(m, w)[i * k + c];
    }
}

static void norm_in_double(const float *w, double offset, size_t n, double *x)
{
    double squares = 0;
    for (size_t i = 0; i < n; i++)
        squares += x[i] * x[i];
    for (size_t i = 0; i < n; i++)
        x[i] = x[i] / sqrt(squares / (double)n + (double)1e-6f) * (offset + w[i]);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* h + the two best experts; they must be so far before the others that rounding chooses no other.
 */
static void experts_in_double(const struct made *m, const struct model *w, const double *h,
                              double *y)
{
    double logits[EXPERTS], wide[2 * INNER], inner[INNER], out[W], sum = 0;
    size_t best[USED] = {0, 0};
    product_in_double(m, w->router, EXPERTS, W, h, logits);
    for (size_t e = 1; e < EXPERTS; e++)
        best[0] = logits[e] > logits[best[0]] ? e : best[0];
    best[1] = best[0] == 0;
    for (size_t e = 0; e < EXPERTS; e++)
        best[1] = e != best[0] && logits[e] > logits[best[1]] ? e : best[1];
    for (size_t e = 0; e < EXPERTS; e++)
        assert_true(e == best[0] || e == best[1] || logits[e] < logits[best[1]] - 1e-4);
    for (size_t k = 0; k < USED; k++)
        sum += exp(logits[best[k]]);
    memcpy(y, h, W * sizeof *y);
    for (size_t k = 0; k < USED; k++) {
        product_in_double(m, w->up[best[k]], 2 * INNER, W, h, wide);
        for (size_t i = 0; i < INNER; i++)
            inner[i] = wide[i] * sigmoid(wide[i]) * wide[INNER + i];
        product_in_double(m, w->down[best[k]], W, INNER, inner, out);
        for (size_t c = 0; c < W; c++)
            y[c] += exp(logits[best[k]]) / sum * out[c];
    }
}

static void model_in_double(const struct made *m, const struct model *w, size_t id, double *y)
{
    double x[W], n[W], p[P], v[P], both[W + 2 * GATES], h[W];
    for (size_t c = 0; c < W; c++)
        x[c] = n[c] = m->arrays[X][id * W + c];
    norm_in_double(numbers(m, w->norm), 1, W, n);
    product_in_double(m, w->proj, P, W, n, p);
    memcpy(v, p, sizeof v);
    norm_in_double(numbers(m, w->head_norm), 0, HEAD, v + HEAD);
    norm_in_double(numbers(m, w->head_norm), 0, HEAD, v + 2 * HEAD);
    product_in_double(m, w->back, W, P, v, both);
    for (size_t c = 0; c < W; c += HEAD)
        norm_in_double(numbers(m, w->gated), 0, HEAD, both + c);
    for (size_t c = 0; c < W; c++)
        both[c] *= p[W + c] * sigmoid(p[W + c]) * sigmoid(p[ONE]);
    for (size_t g = 0; g < GATES; g++) {
        const double a = p[A + g] + numbers(m, w->dt_bias)[g];
        both[W + g] = -exp((double)numbers(m, w->a_log)[g]) * log1p(exp(a));
        both[W + GATES + g] = 2 * sigmoid(p[B + g]);
    }
    product_in_double(m, w->mix, W, W + 2 * GATES, both, h);
    for (size_t c = 0; c < W; c++)
        h[c] += x[c];
    experts_in_double(m, w, h, y);
}

/* Measured: 1.1e-6 of the largest. */
static void a_model_is_accurate(void **state)
{
    (void)state;
    static const size_t lengths[] = {60, 1, 30};
    struct made m;
    struct model w;
    struct toy_batch b;
    rp_view v;
    double want[W], worst = 0;
    make(&m, 8);
    output(&m, "y", make_model(&m, &w), W);
    toy_batch_make(&b, lengths, COUNT(lengths), VOCABULARY, 2);
    rp_session *s = toy_session(&m.toy, NULL, RP_ISA_DEFAULT, false);
    toy_run_ok(s, &b.batch);
    assert_int_equal(rp_session_output(s, "y", &v, NULL), RP_OK);
    for (size_t r = 0; r < v.rows; r++) {
        model_in_double(&m, &w, (size_t)b.batch.ids[r], want);
        double most = 0, off = 0;
        for (size_t c = 0; c < W; c++) {
            const double d = fabs(v.data[r * W + c] - want[c]);
            most = fabs(want[c]) > most ? fabs(want[c]) : most;
            off = d <= off ? off : d; /* a NaN stays in sight */
        }
        worst = off / most <= worst ? worst : off / most;
    }
    print_message("largest error %.3g of the largest number of a row\n", worst);
    assert_true(worst <= 5e-6);
    rp_session_destroy(s);
    toy_batch_free(&b);
    unmake(&m);
}

/* One hash over "y" and "cls". */
static uint64_t hash_run(const struct made *m, rp_pool *pool, uint32_t isa, bool no_fuse,
                         const rp_batch *batch)
{
    static const char *const names[] = {"y", "cls"};
    uint64_t h = 0;
    rp_view v;
    rp_session *s = toy_session(&m->toy, pool, isa, no_fuse);
    toy_run_ok(s, batch);
    for (size_t i = 0; i < COUNT(names); i++) {
        assert_int_equal(rp_session_output(s, names[i], &v, NULL), RP_OK);
        h = float_digest(v.data, v.rows * v.width, h);
    }
    rp_session_destroy(s);
    return h;
}

/* Threads, instruction sets, fused and not, in memory that is all NaN before; FP32 and INT8. */
static void same_bits_in_every_way(void **state)
{
    (void)state;
    static const size_t lengths[] = {60, 0, 1, 130, 30};
    struct toy_batch b;
    rp_pool *pools[] = {NULL, toy_pool(2), toy_pool(3), toy_pool(7)};
    toy_batch_make(&b, lengths, COUNT(lengths), VOCABULARY, 2);
    for (int int8 = 0; int8 < 2; int8++) {
        struct made m;
        struct model w;
        make(&m, 8);
        const rp_value y = make_model(&m, &w);
        output(&m, "y", y, W);
        rp_graph_output(m.toy.graph, "cls", rp_graph_pool(m.toy.graph, "cls", y, RP_POOL_CLS),
                        RP_ROWS_SEQS, W);
        if (int8)
            to_int8(&m, NULL);
        const uint64_t want = hash_run(&m, NULL, RP_ISA_SCALAR, true, &b.batch);
        for (size_t i = 0; i < COUNT(levels); i++)
            if (levels[i] == RP_ISA_DEFAULT || (levels[i] & rp_isa_detected()) == levels[i])
                assert_int_equal(hash_run(&m, NULL, levels[i], false, &b.batch), want);
        for (size_t i = 0; i < COUNT(pools); i++)
            for (int no_fuse = 0; no_fuse < 2; no_fuse++)
                assert_int_equal(hash_run(&m, pools[i], RP_ISA_DEFAULT, no_fuse, &b.batch), want);
        unmake(&m);
    }
    toy_batch_free(&b);
    for (size_t i = 0; i < COUNT(pools); i++)
        rp_pool_destroy(pools[i]);
}

/* A value that gates itself: it may not be overwritten before it is read as the gate. */
static void gated_by_itself(void **state)
{
    (void)state;
    static const size_t lengths[] = {30, 5};
    struct made m;
    struct toy_batch b;
    rp_view once, twice;
    make(&m, 3);
    rp_graph *g = m.toy.graph;
    const rp_gated_norm gated = {
        .w = weight(&m, "w", 1, 8, 1, 1), .eps = 1e-6f, .head_dim = 8, .activation = RP_ACT_SILU};
    const rp_gate one = {.activation = RP_ACT_SIGMOID, .first_column = 15, .one = true};
    const rp_value x = embed(&m, "x", 16, 2);
    for (int i = 0; i < 2; i++) {
        const rp_value a = rp_graph_activation(g, "a", x, RP_ACT_NONE);
        const rp_value gate = i ? rp_graph_activation(g, "b", x, RP_ACT_NONE) : a;
        const rp_value y = rp_graph_gated_norm(g, "gated", a, gate, &gated);
        const rp_value copy = i ? rp_graph_activation(g, "c", y, RP_ACT_NONE) : y;
        output(&m, i ? "twice" : "once", rp_graph_gate(g, "gate", y, copy, &one), 16);
    }
    toy_batch_make(&b, lengths, COUNT(lengths), 1, 2);
    for (int no_fuse = 0; no_fuse < 2; no_fuse++) {
        rp_session *s = toy_session(&m.toy, NULL, RP_ISA_DEFAULT, no_fuse);
        toy_run_ok(s, &b.batch);
        assert_int_equal(rp_session_output(s, "once", &once, NULL), RP_OK);
        assert_int_equal(rp_session_output(s, "twice", &twice, NULL), RP_OK);
        assert_memory_equal(once.data, twice.data, once.rows * once.width * sizeof(float));
        rp_session_destroy(s);
    }
    toy_batch_free(&b);
    unmake(&m);
}

/* A sequence alone gives the rows that it has among others. */
static void rows_do_not_see_each_other(void **state)
{
    (void)state;
    static const size_t lengths[] = {60, 1, 130, 30};
    for (int int8 = 0; int8 < 2; int8++) {
        struct made m;
        struct model w;
        struct toy_batch all;
        rp_view v, one;
        make(&m, 8);
        output(&m, "y", make_model(&m, &w), W);
        if (int8)
            to_int8(&m, NULL);
        toy_batch_make(&all, lengths, COUNT(lengths), VOCABULARY, 2);
        rp_session *s = toy_session(&m.toy, NULL, RP_ISA_DEFAULT, false);
        rp_session *alone = toy_session(&m.toy, NULL, RP_ISA_DEFAULT, false);
        toy_run_ok(s, &all.batch);
        assert_int_equal(rp_session_output(s, "y", &v, NULL), RP_OK);
        for (size_t k = 0; k < COUNT(lengths); k++) {
            const int32_t cu[] = {0, all.cu[k + 1] - all.cu[k]};
            rp_batch batch;
            rp_batch_init(&batch);
            batch.n_seqs = 1;
            batch.ids = all.ids + all.cu[k];
            batch.cu = cu;
            toy_run_ok(alone, &batch);
            assert_int_equal(rp_session_output(alone, "y", &one, NULL), RP_OK);
            assert_int_equal(one.rows, lengths[k]);
            assert_memory_equal(one.data, v.data + (size_t)all.cu[k] * W,
                                lengths[k] * W * sizeof(float));
        }
        rp_session_destroy(s);
        rp_session_destroy(alone);
        toy_batch_free(&all);
        unmake(&m);
    }
}

static void a_run_does_not_allocate(void **state)
{
    (void)state;
    static const size_t lengths[] = {60, 1, 130, 30};
    if (!alloc_count_available())
        skip();
    for (int int8 = 0; int8 < 2; int8++) {
        struct made m;
        struct model w;
        struct toy_batch b;
        make(&m, 8);
        output(&m, "y", make_model(&m, &w), W);
        if (int8)
            to_int8(&m, NULL);
        toy_batch_make(&b, lengths, COUNT(lengths), VOCABULARY, 2);
        rp_pool *pool = toy_pool(2);
        rp_session *s = toy_session(&m.toy, pool, RP_ISA_DEFAULT, false);
        toy_run_ok(s, &b.batch);
        const size_t before = alloc_count();
        toy_run_ok(s, &b.batch);
        assert_int_equal(alloc_count(), before);
        rp_session_destroy(s);
        rp_pool_destroy(pool);
        toy_batch_free(&b);
        unmake(&m);
    }
}

/* ---- how they look ------------------------------------------------------------------------------
 */

static void graphs_say_it(void **state)
{
    (void)state;
    struct made m;
    struct model w;
    char text[4000];
    make(&m, 8);
    output(&m, "y", make_model(&m, &w), W);
    assert_in_range(rp_graph_text(m.toy.graph, m.toy.weights, text, sizeof text), 1,
                    sizeof text - 1);
    static const char *const lines[] = {
        "%1 = rms_norm \"norm\" %0 eps=9.99999997e-07 offset=1 w=norm[1,48]\n",
        "%3 = rms_norm \"head_norm\" %2 heads=2x16 first=16 eps=9.99999997e-07 w=head_norm[1,16]\n",
        "%5 = gated_norm \"gated\" %4 %2 head_dim=16 act=silu first=48 eps=9.99999997e-07 "
        "w=gated[1,16]\n",
        "%6 = gate \"gate\" %5 %2 act=sigmoid first=104 one\n",
        "%7 = gdn_gates \"gates\" %2 heads=4 a=96 b=100 beta_scale=2 a_log=a_log[1,4] "
        "dt_bias=dt_bias[1,4]\n",
        "%11 = experts \"experts\" %9 %10 %9 experts=6 used=2 normalize act=silu up=up[40,48] "
        "down=down[48,20]\n"};
    for (size_t i = 0; i < COUNT(lines); i++)
        if (!strstr(text, lines[i]))
            fail_msg("there is no line %sin\n%s", lines[i], text);
    unmake(&m);
}

/* ---- INT8 ---------------------------------------------------------------------------------------
 */

/* The plan's step of that name; it lives as long as the session. */
static const struct rp_step *step_of(rp_session *s, const char *name)
{
    const rp_plan *plan;
    assert_int_equal(rp_session_plan(s, 50, 2, 0, &plan, NULL), RP_OK);
    for (size_t k = 0; k < plan->n_steps; k++)
        if (strcmp(plan->steps[k].name, name) == 0)
            return &plan->steps[k];
    return NULL;
}

/* Products of token rows become INT8, and the norm before one is joined by the rounding; so do
 * experts, but not what chooses them. */
static void precision_of_experts(void **state)
{
    (void)state;
    struct made m;
    struct model w;
    const rp_plan *plan;
    char text[8000];
    make(&m, 8);
    output(&m, "y", make_model(&m, &w), W);
    to_int8(&m, NULL);
    for (size_t e = 0; e < EXPERTS; e++) {
        assert_true(rp_weights_entry(m.toy.weights, w.up[e])->int8);
        assert_true(rp_weights_entry(m.toy.weights, w.down[e])->int8);
        assert_null(rp_weights_entry(m.toy.weights, w.up[e])->form[RP_FORM_PACKED]);
    }
    assert_true(rp_weights_entry(m.toy.weights, w.proj)->int8);
    assert_false(rp_weights_entry(m.toy.weights, w.router)->int8);
    rp_session *s = toy_session(&m.toy, NULL, RP_ISA_DEFAULT, false);
    assert_int_equal(rp_session_plan(s, 50, 2, 0, &plan, NULL), RP_OK);
    for (size_t k = 0; k < plan->n_steps; k++) {
        const struct rp_step *step = &plan->steps[k];
        assert_int_equal(step->joins, step->op == RP_OP_QUANTIZE && step[-1].op == RP_OP_RMS_NORM &&
                                          strcmp(step[-1].name, "norm") == 0);
    }
    assert_int_equal(step_of(s, "router")->op, RP_OP_GEMM);
    assert_int_equal(step_of(s, "mix")->op, RP_OP_QGEMM);
    assert_int_equal(step_of(s, "experts.q8")->op, RP_OP_QUANTIZE);
    assert_string_equal(step_of(s, "experts")->kernel, plan->qgemm->name);
    assert_in_range(rp_plan_text(plan, text, sizeof text), 1, sizeof text - 1);
    assert_non_null(strstr(text, " +residual experts=6 used=2 act=silu rp_qgemm_u8_"));
    assert_non_null(strstr(text, " heads=2x16@16 "));
    assert_non_null(strstr(text, "flops/row=11520 "));
    assert_non_null(strstr(text, "weight_bytes=17280\n")); /* 6 x 3 x 20 x 48 */
    rp_session_destroy(s);
    unmake(&m);
}

/* Experts stay in FP32 by name, and where one of their weights is used elsewhere or twice; then all
 * of them do, and so does what uses it. */
static void experts_that_stay(void **state)
{
    (void)state;
    enum { BY_NAME, IN_A_PRODUCT, IN_OTHER_EXPERTS, TWICE, CASES };
    for (int which = 0; which < CASES; which++) {
        struct made m;
        struct model w;
        const rp_plan *plan;
        rp_quantize_options o;
        rp_quantize_options_init(&o);
        o.keep = which == BY_NAME ? "nothing,exp*" : NULL;
        make(&m, 8);
        rp_value y = make_model(&m, &w);
        size_t width = W;
        if (which == IN_A_PRODUCT) {
            y = rp_graph_gemm(m.toy.graph, "again", y, w.up[1], -1, RP_ACT_NONE, -1);
            width = 2 * INNER;
        }
        if (which == IN_OTHER_EXPERTS || which == TWICE) {
            const rp_value logits = rp_graph_gemm(
                m.toy.graph, "router2", y, weight(&m, "r2", 2, W, 1, 0), -1, RP_ACT_NONE, -1);
            rp_weight up[2], down[2];
            for (size_t e = 0; e < 2; e++) {
                up[e] = weight(&m, "up2", 2 * INNER, W, 1, 0);
                down[e] = weight(&m, "down2", W, INNER, 1, 0);
            }
            down[1] = which == TWICE ? down[0] : w.down[EXPERTS - 1];
            const rp_experts again = {.n_experts = 2, .n_used = 1, .up = up, .down = down};
            y = rp_graph_experts(m.toy.graph, "again", y, logits, &again, -1);
        }
        output(&m, "y", y, width);
        to_int8(&m, &o);
        assert_true(rp_weights_entry(m.toy.weights, w.proj)->int8);
        for (size_t e = 0; e < EXPERTS; e++) {
            assert_int_equal(rp_weights_entry(m.toy.weights, w.up[e])->int8, which == TWICE);
            assert_int_equal(rp_weights_entry(m.toy.weights, w.down[e])->int8, which == TWICE);
        }
        rp_session *s = toy_session(&m.toy, NULL, RP_ISA_DEFAULT, false);
        assert_int_equal(rp_session_plan(s, 50, 2, 0, &plan, NULL), RP_OK);
        const struct rp_step *experts = step_of(s, "experts"), *again = step_of(s, "again");
        assert_string_equal(experts->kernel, which == TWICE ? plan->qgemm->name : plan->gemm->name);
        assert_int_equal(step_of(s, "experts.q8") != NULL, which == TWICE);
        assert_int_equal(again != NULL, which != BY_NAME);
        if (again)
            assert_string_equal(again->kernel, plan->gemm->name);
        rp_session_destroy(s);
        unmake(&m);
    }
}

/* Another graph over weights that one graph turned: experts whose `up` share their factors are in
 * INT8 there too; those of two ops, which no one rounding of a row suits, are in FP32. */
static void experts_of_another_graph(void **state)
{
    (void)state;
    const rp_bucket bucket = {32, 4, 4};
    struct made m;
    rp_weight up[4], down[4];
    rp_experts o = {.n_experts = 2, .n_used = 1};
    make(&m, 3);
    const rp_value x = embed(&m, "x", 12, 1), logits = embed(&m, "logits", 2, 1);
    for (size_t e = 0; e < 4; e++) {
        up[e] = weight(&m, "up", 10, 12, 1, 0);
        down[e] = weight(&m, "down", 12, 5, 1, 0);
    }
    for (size_t k = 0; k < 4; k += 2) {
        o.up = up + k;
        o.down = down + k;
        output(&m, k ? "second" : "first",
               rp_graph_experts(m.toy.graph, k ? "b" : "a", x, logits, &o, -1), 12);
    }
    to_int8(&m, NULL);
    for (int mixed = 0; mixed < 2; mixed++) {
        const rp_embed_table tables[] = {{0, RP_INDEX_IDS, 0}, {1, RP_INDEX_IDS, 0}};
        rp_graph *g;
        rp_plan *plan;
        rp_error err;
        o.up = (const rp_weight[]){up[1], up[mixed ? 2 : 0]};
        o.down = down + 1;
        assert_int_equal(rp_graph_create(&g, NULL), RP_OK);
        const rp_value rows = rp_graph_embed(g, "x", 1, &tables[0]);
        const rp_value shares = rp_graph_embed(g, "logits", 1, &tables[1]);
        rp_graph_output(g, "y", rp_graph_experts(g, "c", rows, shares, &o, -1), RP_ROWS_TOKENS, 12);
        if (rp_plan_compile(g, m.toy.weights, &bucket, NULL, &plan, &err) != RP_OK)
            fail_msg("%s", err.message);
        assert_string_equal(plan->steps[plan->n_steps - 1].kernel,
                            mixed ? plan->gemm->name : plan->qgemm->name);
        rp_plan_destroy(plan);
        rp_graph_destroy(g);
    }
    unmake(&m);
}

/* A graph of experts, of rows and logits from tables 0 and 1. */
static rp_graph *graph_of_experts(const rp_experts *o)
{
    const rp_embed_table tables[] = {{0, RP_INDEX_IDS, 0}, {1, RP_INDEX_IDS, 0}};
    rp_graph *g;
    assert_int_equal(rp_graph_create(&g, NULL), RP_OK);
    const rp_value rows = rp_graph_embed(g, "x", 1, &tables[0]);
    const rp_value logits = rp_graph_embed(g, "logits", 1, &tables[1]);
    rp_graph_output(g, "y", rp_graph_experts(g, "e", rows, logits, o, -1), RP_ROWS_TOKENS, 12);
    return g;
}

static rp_status fail_factors(void *context, const char *weight, size_t n, float *out,
                              rp_error *err)
{
    (void)weight;
    for (size_t i = 0; i < n; i++)
        out[i] = 1;
    return (*(int *)context)-- > 0 ? RP_OK : rp_fail(err, RP_ERR_MISSING, "no factors");
}

/* Two graphs over one rp_weights, both turned, whose experts have some `up` in common: what the
 * first turned keeps its factors and its results, also when the second fails, and the second's
 * experts stay in FP32. */
static void experts_shared_by_two_graphs(void **state)
{
    (void)state;
    static const size_t lengths[] = {30, 5};
    struct made m;
    struct toy_batch b;
    rp_weight up[3], down[4];
    rp_experts o = {.n_experts = 2, .n_used = 1};
    uint64_t want = 0;
    make(&m, 3);
    (void)embed(&m, "x", 12, 1);
    (void)embed(&m, "logits", 2, 1);
    for (size_t e = 0; e < 3; e++)
        up[e] = weight(&m, "up", 10, 12, 1, 0);
    for (size_t e = 0; e < 4; e++)
        down[e] = weight(&m, "down", 12, 5, 1, 0);
    toy_batch_make(&b, lengths, COUNT(lengths), VOCABULARY, 9);
    rp_graph_destroy(m.toy.graph);
    o.up = up;
    o.down = down;
    rp_graph *first = graph_of_experts(&o);
    o.up = (const rp_weight[]){up[0], up[2]}; /* up[0] owns the factors, up[1] shares them */
    o.down = down + 2;
    rp_graph *second = graph_of_experts(&o);
    for (int turned = 0; turned < 3; turned++) {
        rp_view v;
        int good = 1;
        rp_quantize_options options;
        rp_quantize_options_init(&options);
        if (turned == 1) {
            options.factors = fail_factors;
            options.factors_context = &good;
        }
        m.toy.graph = turned ? second : first;
        assert_int_equal(rp_weights_quantize(m.toy.weights, m.toy.graph, &options, NULL), RP_OK);
        for (size_t e = 0; e < 3; e++) {
            const struct rp_weight_entry *entry = rp_weights_entry(m.toy.weights, up[e]);
            assert_int_equal(entry->int8, e < 2);
            assert_ptr_equal(entry->smooth,
                             e < 2 ? rp_weights_entry(m.toy.weights, up[0])->smooth : NULL);
        }
        for (int which = 0; which < 2; which++) {
            m.toy.graph = which ? second : first;
            rp_session *s = toy_session(&m.toy, NULL, RP_ISA_DEFAULT, false);
            toy_run_ok(s, &b.batch);
            assert_int_equal(rp_session_output(s, "y", &v, NULL), RP_OK);
            const uint64_t h = float_digest(v.data, v.rows * v.width, 0);
            want = turned || which ? want : h;
            assert_int_equal(h == want, which == 0);
            rp_session_destroy(s);
        }
    }
    toy_batch_free(&b);
    rp_graph_destroy(first);
    m.toy.graph = second;
    unmake(&m);
}

/* A product stays in FP32 that chooses experts through other ops; those before it, which make the
 * row that it reads, do not. */
static void routers_behind_other_ops(void **state)
{
    (void)state;
    enum { ACTIVATION, SUM, ADDED, CASES };
    for (int which = 0; which < CASES; which++) {
        struct made m;
        rp_weight up[3], down[3];
        make(&m, 3);
        rp_graph *g = m.toy.graph;
        const rp_value x = embed(&m, "x", 12, 1);
        const rp_weight proj = weight(&m, "proj", 12, 12, 1, 0),
                        router = weight(&m, "router", 3, 12, 1, 0),
                        second = weight(&m, "second", 3, 12, 1, 0);
        for (size_t e = 0; e < 3; e++) {
            up[e] = weight(&m, "up", 10, 12, 1, 0);
            down[e] = weight(&m, "down", 12, 5, 1, 0);
        }
        const rp_experts o = {.n_experts = 3, .n_used = 1, .up = up, .down = down};
        const rp_value h = rp_graph_gemm(g, "proj", x, proj, -1, RP_ACT_NONE, -1);
        rp_value logits = rp_graph_gemm(g, "router", h, router, -1, RP_ACT_NONE, -1);
        if (which == ACTIVATION)
            logits = rp_graph_activation(g, "act", logits, RP_ACT_SIGMOID);
        if (which == SUM)
            logits = rp_graph_add(
                g, "sum", rp_graph_gemm(g, "second", h, second, -1, RP_ACT_NONE, -1), logits);
        if (which == ADDED)
            logits = rp_graph_gemm(g, "second", h, second, -1, RP_ACT_NONE, logits);
        output(&m, "y", rp_graph_experts(g, "e", h, logits, &o, -1), 12);
        to_int8(&m, NULL);
        assert_true(rp_weights_entry(m.toy.weights, proj)->int8);
        assert_true(rp_weights_entry(m.toy.weights, up[0])->int8);
        assert_false(rp_weights_entry(m.toy.weights, router)->int8);
        assert_false(rp_weights_entry(m.toy.weights, second)->int8);
        unmake(&m);
    }
}

/* A product's weight that a norm has too, or a bias of attention: both read its FP32 form. */
static void weights_that_other_ops_read(void **state)
{
    (void)state;
    enum { NONE, NORM, GATED_NORM, BIAS, CASES };
    for (int which = 0; which < CASES; which++) {
        struct made m;
        make(&m, 3);
        rp_graph *g = m.toy.graph;
        rp_value x = embed(&m, "x", 12, 1);
        const rp_weight w = weight(&m, "w", which == BIAS ? 32 : 1, which == BIAS ? 2 : 12, 1, 0);
        if (which == NORM)
            x = rp_graph_rms_norm(g, "norm", x, &(rp_rms_norm){.w = w});
        if (which == GATED_NORM)
            x = rp_graph_gated_norm(g, "norm", x, x, &(rp_gated_norm){.w = w, .head_dim = 12});
        if (which == BIAS) {
            const rp_attention attention = {
                .n_heads = 2, .head_dim = 2, .rel_bias = w, .rel_max_distance = 128};
            x = rp_graph_attention(g, "attn", x, &attention);
            x = rp_graph_gemm(g, "two", x, weight(&m, "two", 2, 4, 1, 0), -1, RP_ACT_NONE, -1);
        }
        output(&m, "y", rp_graph_gemm(g, "p", x, w, -1, RP_ACT_NONE, -1), which == BIAS ? 32 : 1);
        to_int8(&m, NULL);
        assert_int_equal(rp_weights_entry(m.toy.weights, w)->int8, which == NONE);
        unmake(&m);
    }
}

/* What the contract says of a weight's factors; cubes and the largest |weights| of its columns. */
static void check_factors(const double *cubes, const float *largest, size_t n, const float *found)
{
    double f[128];
    int64_t exponents = 0, counted = 0;
    int e;
    assert_true(n <= COUNT(f));
    for (size_t j = 0; j < n; j++) {
        const double r = cbrt(cubes[j]) / (double)largest[j];
        f[j] = r > 0 && isfinite(r) ? sqrt(r) : 0;
        (void)frexp(f[j] * f[j], &e);
        exponents += f[j] > 0 ? e : 0;
        counted += f[j] > 0;
    }
    for (size_t j = 0; j < n; j++) {
        const double centred =
            f[j] > 0 ? ldexp(f[j], -(int)(counted ? exponents / (2 * counted) : 0)) : 1;
        const double due = fmax(fmin(centred, 64), 1.0 / 64);
        if (!(fabs((double)found[j] - due) <= 1e-6 * due))
            fail_msg("factor %zu is %.9g, expected %.9g", j, (double)found[j], due);
    }
}

static void add_cube(double *cubes, const float *x, size_t n)
{
    for (size_t j = 0; j < n; j++)
        cubes[j] += fabs((double)x[j]) * (double)x[j] * (double)x[j];
}

static void widen_range(const struct made *m, rp_weight w, float *largest)
{
    const struct rp_weight_entry *e = rp_weights_entry(m->toy.weights, w);
    for (size_t i = 0; i < e->rows * e->cols; i++)
        largest[i % e->cols] = fmaxf(largest[i % e->cols], fabsf(numbers(m, w)[i]));
}

enum { N_MIXED = 5, WIDE_MIXED = 24, INNER_MIXED = 20 };

/* The cubes of every expert's inner rows of a batch; rows: how many each had. */
static void add_inner_rows(const struct made *m, const struct mixture *s, const rp_batch *b,
                           double cubes[N_MIXED][INNER_MIXED], double *rows)
{
    const struct rp_ops *ops = rp_ops_select(RP_ISA_SCALAR);
    float p[N_MIXED], h[INNER_MIXED];
    for (int32_t r = 0; r < b->cu[b->n_seqs]; r++) {
        const float *x = m->arrays[X] + (size_t)b->ids[r] * WIDE_MIXED;
        ops->softmax(m->arrays[LOGITS] + (size_t)b->ids[r] * N_MIXED, N_MIXED, 1, p);
        for (size_t e = 0; e < N_MIXED; e++) {
            const float *up = m->arrays[FIRST_EXPERT + 2 * e];
            if (!is_chosen(p, N_MIXED, e, (size_t)s->options.n_used))
                continue;
            for (size_t i = 0; i < INNER_MIXED; i++) {
                float gate = chain(x, up + i * WIDE_MIXED, WIDE_MIXED);
                ops->activation(s->options.activation, &gate, 1, 1, &gate, 1, 1);
                h[i] = gate * chain(x, up + (INNER_MIXED + i) * WIDE_MIXED, WIDE_MIXED);
            }
            add_cube(cubes[e], h, INNER_MIXED);
            rows[e]++;
        }
    }
}

/* One vector for all experts' `up`, from all rows; one for each `down`, from the rows that chose
 * it and 8 even ones.  The last expert is never chosen; a column is always 0. */
static void factors_of_experts(void **state)
{
    (void)state;
    static const size_t lengths[] = {60, 0, 4500}, more[] = {7};
    rp_pool *pool = toy_pool(3);
    struct toy_batch b[2];
    static float first[N_MIXED][INNER_MIXED];
    toy_batch_make(&b[0], lengths, COUNT(lengths), VOCABULARY, 3);
    toy_batch_make(&b[1], more, COUNT(more), VOCABULARY, 4);
    const rp_batch batches[] = {b[0].batch, b[1].batch};
    for (int threads = 0; threads < 2; threads++) {
        static struct made m;
        static struct mixture s;
        double outer[WIDE_MIXED] = {0}, inner[N_MIXED][INNER_MIXED] = {{0}}, rows[N_MIXED] = {0};
        float widest[WIDE_MIXED] = {0};
        const char *name;
        const float *factors;
        size_t n;
        make(&m, 21);
        s = (struct mixture){.width = WIDE_MIXED,
                             .inner = INNER_MIXED,
                             .n = N_MIXED,
                             .options = {.n_used = 2, .activation = RP_ACT_SILU}};
        make_mixture(&m, &s);
        for (size_t id = 0; id < VOCABULARY; id++) {
            m.arrays[LOGITS][id * N_MIXED + N_MIXED - 1] = -100;
            m.arrays[X][id * WIDE_MIXED + 2] = 0;
        }
        rp_quantize_options o;
        rp_quantize_options_init(&o);
        o.batches = batches;
        o.n_batches = 2;
        o.pool = threads ? pool : NULL;
        to_int8(&m, &o);
        for (size_t k = 0; k < 2; k++) {
            for (int32_t r = 0; r < batches[k].cu[batches[k].n_seqs]; r++)
                add_cube(outer, m.arrays[X] + (size_t)batches[k].ids[r] * WIDE_MIXED, WIDE_MIXED);
            add_inner_rows(&m, &s, &batches[k], inner, rows);
        }
        assert_true(rows[N_MIXED - 1] == 0);
        for (size_t e = 0; e < N_MIXED; e++)
            widen_range(&m, (rp_weight)(FIRST_EXPERT + 2 * e), widest);
        assert_true(rp_weights_int8(m.toy.weights, 0, &name, &n, &factors));
        assert_string_equal(name, "e0.up");
        assert_int_equal(n, WIDE_MIXED);
        check_factors(outer, widest, n, factors);
        for (size_t e = 0; e < N_MIXED; e++) {
            char due[32];
            float largest[INNER_MIXED] = {0};
            double sum = 0;
            snprintf(due, sizeof due, "e%zu.down", e);
            assert_true(rp_weights_int8(m.toy.weights, 1 + e, &name, &n, &factors));
            assert_string_equal(name, due);
            assert_int_equal(n, INNER_MIXED);
            for (size_t j = 0; j < n; j++)
                sum += inner[e][j];
            for (size_t j = 0; rows[e] > 0 && j < n; j++)
                inner[e][j] += 8 / rows[e] * (sum / (double)n);
            widen_range(&m, (rp_weight)(FIRST_EXPERT + 2 * e + 1), largest);
            check_factors(inner[e], largest, n, factors);
            if (threads) /* the same bits */
                assert_memory_equal(factors, first[e], sizeof first[e]);
            memcpy(first[e], factors, sizeof first[e]);
        }
        assert_false(rp_weights_int8(m.toy.weights, 1 + N_MIXED, &name, &n, &factors));
        unmake(&m);
    }
    toy_batch_free(&b[0]);
    toy_batch_free(&b[1]);
    rp_pool_destroy(pool);
}

struct given {
    size_t calls, fail_at;
};

static rp_status give(void *context, const char *weight, size_t n, float *out, rp_error *err)
{
    struct given *g = context;
    char due[32];
    if (g->calls == 0)
        snprintf(due, sizeof due, "e0.up");
    else
        snprintf(due, sizeof due, "e%zu.down", g->calls - 1);
    assert_string_equal(weight, due);
    for (size_t j = 0; j < n; j++)
        out[j] = ldexpf(1.25f, (int)(j % 3));
    if (g->calls++ == g->fail_at) {
        err->status = RP_ERR_MISSING;
        strcpy(err->message, "gone");
        return RP_ERR_MISSING;
    }
    return RP_OK;
}

/* Factors of a file are asked for once for all `up`; a failure at any of them leaves all experts as
 * they were; and what was given is what rows and weights are rounded by. */
static void factors_of_experts_given(void **state)
{
    (void)state;
    static const size_t lengths[] = {40, 3};
    static struct made m;
    static struct mixture s;
    struct toy_batch b;
    rp_quantize_options o;
    rp_error err;
    struct given g = {0};
    rp_quantize_options_init(&o);
    o.factors = give;
    o.factors_context = &g;
    make(&m, 5);
    s = (struct mixture){
        .width = 24, .inner = 20, .n = 4, .options = {.n_used = 2}, .residual = true};
    make_mixture(&m, &s);
    toy_batch_make(&b, lengths, COUNT(lengths), VOCABULARY, 9);
    for (size_t fail = 0; fail <= 5; fail++) {
        g = (struct given){.fail_at = fail};
        const rp_status status = rp_weights_quantize(m.toy.weights, m.toy.graph, &o, &err);
        assert_int_equal(status, fail < 5 ? RP_ERR_MISSING : RP_OK);
        assert_int_equal(g.calls, fail < 5 ? fail + 1 : 5);
        assert_int_equal(rp_weights_entry(m.toy.weights, FIRST_EXPERT + 2)->int8, fail == 5);
        float *want = all_plainly(&m, &s);
        rp_session *session = toy_session(&m.toy, NULL, RP_ISA_DEFAULT, false);
        check_mixture(&s, want, session, &b.batch);
        rp_session_destroy(session);
        free(want);
    }
    for (size_t e = 0; e < 4; e++) {
        const rp_weight up = (rp_weight)(FIRST_EXPERT + 2 * e);
        assert_true(rp_weights_entry(m.toy.weights, up)->smooth[1] == 2.5f);
        assert_true(rp_weights_entry(m.toy.weights, up + 1)->smooth[2] == 5);
    }
    toy_batch_free(&b);
    unmake(&m);
}

/* A profile counts the weights of no more experts than rows can have chosen, and in INT8 a byte for
 * each number; what the weights take is known before a session is there. */
static void work_of_experts(void **state)
{
    (void)state;
    static const size_t lengths[] = {1, 100};
    for (size_t i = 0; i < 2 * COUNT(lengths); i++) {
        const bool int8 = i >= COUNT(lengths);
        const size_t rows = lengths[i % 2], numbers_of_expert = 3 * INNER * W;
        const uint64_t row_bytes =
            (2 * W + EXPERTS) * sizeof(float) + (int8 ? rp_qgemm_row_bytes(W) : W * sizeof(float));
        struct made m;
        struct model w;
        struct toy_batch b;
        const rp_plan *plan;
        rp_profile profile = {.struct_size = sizeof profile};
        rp_session_sizes sizes = {.struct_size = sizeof sizes};
        make(&m, 8);
        output(&m, "y", make_model(&m, &w), W);
        if (int8)
            to_int8(&m, NULL);
        assert_int_equal(rp_session_measure(m.toy.graph, m.toy.weights, NULL, &sizes, NULL), RP_OK);
        toy_batch_make(&b, &lengths[i % 2], 1, VOCABULARY, 2);
        rp_session *s = toy_session(&m.toy, NULL, RP_ISA_DEFAULT, false);
        assert_int_equal(rp_session_profile_start(s, 0, NULL), RP_OK);
        toy_run_ok(s, &b.batch);
        assert_int_equal(rp_weights_bytes(m.toy.weights), sizes.weights_bytes);
        assert_int_equal(rp_session_profile(s, &profile, NULL), RP_OK);
        assert_int_equal(rp_session_plan(s, rows, 1, 0, &plan, NULL), RP_OK);
        const size_t last = plan->n_steps - 1;
        assert_int_equal(plan->steps[last].op, RP_OP_EXPERTS);
        assert_int_equal(profile.steps[last].flops, rows * USED * 2 * numbers_of_expert);
        assert_int_equal(profile.steps[last].bytes,
                         rows * row_bytes + (rows > 1 ? EXPERTS : USED) * numbers_of_expert *
                                                (int8 ? 1 : sizeof(float)));
        rp_session_destroy(s);
        toy_batch_free(&b);
        unmake(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rms_norms_refused),
        cmocka_unit_test(gates_refused),
        cmocka_unit_test(delta_net_gates_refused),
        cmocka_unit_test(experts_are_the_contract),
        cmocka_unit_test(ties_go_to_the_first),
        cmocka_unit_test(logits_that_are_none),
        cmocka_unit_test(experts_refused),
        cmocka_unit_test(a_model_is_accurate),
        cmocka_unit_test(same_bits_in_every_way),
        cmocka_unit_test(gated_by_itself),
        cmocka_unit_test(rows_do_not_see_each_other),
        cmocka_unit_test(a_run_does_not_allocate),
        cmocka_unit_test(graphs_say_it),
        cmocka_unit_test(precision_of_experts),
        cmocka_unit_test(experts_that_stay),
        cmocka_unit_test(experts_of_another_graph),
        cmocka_unit_test(experts_shared_by_two_graphs),
        cmocka_unit_test(routers_behind_other_ops),
        cmocka_unit_test(weights_that_other_ops_read),
        cmocka_unit_test(factors_of_experts),
        cmocka_unit_test(factors_of_experts_given),
        cmocka_unit_test(work_of_experts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
