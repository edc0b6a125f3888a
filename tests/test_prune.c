/* Rows that nobody reads: the same bits with them and without, whatever the graph, the batch, the
 * precision and the way of running; and what is not computed does not show in the work either. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/alloc_count.h"
#include "tests/model_maker.h"
#include "tests/toy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* ---- graphs -------------------------------------------------------------------------------------
 */

#define VOCABULARY  40
#define MAX_OUTPUTS 6

struct made {
    rp_graph *graph;
    rp_weights *weights;
    float **arrays;
    size_t n_arrays;
    uint64_t state;
    char outputs[MAX_OUTPUTS][16];
    size_t n_outputs;
};

static void make(struct made *m, uint64_t seed)
{
    memset(m, 0, sizeof *m);
    m->state = seed;
    assert_int_equal(rp_graph_create(&m->graph, NULL), RP_OK);
    assert_int_equal(rp_weights_create(&m->weights, NULL), RP_OK);
}

static void unmake(struct made *m)
{
    for (size_t i = 0; i < m->n_arrays; i++)
        free(m->arrays[i]);
    free(m->arrays);
    rp_graph_destroy(m->graph);
    rp_weights_destroy(m->weights);
}

static size_t below(struct made *m, size_t n)
{
    return toy_random(&m->state) % n;
}

static rp_weight weight(struct made *m, size_t rows, size_t cols, float scale, float offset)
{
    char name[24];
    float *data = malloc(rows * cols * sizeof *data);
    float **arrays = realloc(m->arrays, (m->n_arrays + 1) * sizeof *arrays);
    assert_true(data && arrays);
    m->arrays = arrays;
    for (size_t i = 0; i < rows * cols; i++)
        data[i] = toy_uniform(&m->state) * scale + offset;
    snprintf(name, sizeof name, "w%zu", m->n_arrays);
    arrays[m->n_arrays++] = data;
    const rp_weight_part part = {.rows = rows, .data = data};
    rp_weight w;
    assert_int_equal(rp_weights_add(m->weights, name, cols, 1, &part, &w, NULL), RP_OK);
    return w;
}

static rp_value linear(struct made *m, const char *name, rp_value x, size_t n, size_t k,
                       rp_activation act, rp_value residual)
{
    const rp_weight w = weight(m, n, k, 0.3f, 0), b = weight(m, 1, n, 0.5f, 0);
    return rp_graph_gemm(m->graph, name, x, w, b, act, residual);
}

static rp_value norm(struct made *m, const char *name, rp_value x, size_t width)
{
    const rp_weight w = weight(m, 1, width, 0.2f, 1), b = weight(m, 1, width, 0.5f, 0);
    return rp_graph_layer_norm(m->graph, name, x, w, b, 1e-5f);
}

static rp_value embed(struct made *m, size_t width)
{
    const rp_embed_table tables[] = {{weight(m, VOCABULARY, width, 1, 0), RP_INDEX_IDS, 0},
                                     {weight(m, 300, width, 0.5f, 0), RP_INDEX_POSITION, 0}};
    return rp_graph_embed(m->graph, "embed", 2, tables);
}

static void output(struct made *m, rp_value x, rp_rows rows, size_t width)
{
    snprintf(m->outputs[m->n_outputs], sizeof *m->outputs, "out%zu", m->n_outputs);
    rp_graph_output(m->graph, m->outputs[m->n_outputs++], x, rows, width);
}

/* An encoder layer as MiniLM has it, with steps named after it. */
#define HEADS 3
#define DIM   8
#define WIDTH ((size_t)(HEADS * DIM))
#define FFN   ((size_t)40)

static rp_value layer(struct made *m, char which, rp_value x, rp_weight rel)
{
    const rp_attention attention = {
        .n_heads = HEADS, .head_dim = DIM, .rel_bias = rel, .rel_max_distance = 128};
    char name[6][8];
    static const char *const parts[6] = {"qkv", "core", "out", "norm", "up", "down"};
    for (size_t i = 0; i < 6; i++)
        snprintf(name[i], sizeof name[i], "%c.%s", which, parts[i]);
    rp_value y = linear(m, name[0], x, 3 * WIDTH, WIDTH, RP_ACT_NONE, -1);
    y = rp_graph_attention(m->graph, name[1], y, &attention);
    x = norm(m, name[3], linear(m, name[2], y, WIDTH, WIDTH, RP_ACT_NONE, x), WIDTH);
    y = linear(m, name[4], x, FFN, WIDTH, RP_ACT_GELU, -1);
    return linear(m, name[5], y, WIDTH, FFN, RP_ACT_NONE, x);
}

static rp_value encoder(struct made *m)
{
    rp_value x = norm(m, "embed.norm", embed(m, WIDTH), WIDTH);
    x = layer(m, 'a', x, -1);
    return layer(m, 'b', x, -1);
}

/* ---- running ------------------------------------------------------------------------------------
 */

struct way {
    rp_pool *pool;
    bool no_fuse, no_prune, observed;
};

static rp_session *open_session(const struct made *m, struct way way)
{
    rp_session_options o;
    rp_session *s;
    rp_error err = {0};
    rp_session_options_init(&o);
    o.pool = way.pool;
    o.no_fuse = way.no_fuse;
    o.no_prune = way.no_prune;
    o.poison = true;
    if (rp_session_create(m->graph, m->weights, &o, &s, &err) != RP_OK)
        fail_msg("%s", err.message);
    return s;
}

static bool want_all(void *context, const rp_step_info *step)
{
    (void)context;
    (void)step;
    return true;
}

static rp_status look(void *context, const rp_step_info *step, const rp_view *view)
{
    (void)context;
    assert_int_equal(view->kind, step->rows);
    return RP_OK;
}

/* All outputs one after the other, and the work of the plan that made them. */
static float *outputs_of(const struct made *m, const rp_batch *batch, struct way way, size_t *n,
                         uint64_t *flops)
{
    const rp_observer observer = {.struct_size = sizeof observer, .want = want_all, .show = look};
    rp_session *s = open_session(m, way);
    const rp_plan *plan;
    float *all = NULL;
    if (way.observed)
        rp_session_observe(s, &observer);
    toy_run_ok(s, batch);
    *n = 0;
    for (size_t i = 0; i < m->n_outputs; i++) {
        rp_view v;
        assert_int_equal(rp_session_output(s, m->outputs[i], &v, NULL), RP_OK);
        all = realloc(all, (*n + v.rows * v.width + 1) * sizeof *all);
        assert_non_null(all);
        if (v.rows)
            memcpy(all + *n, v.data, v.rows * v.width * sizeof *all);
        *n += v.rows * v.width;
    }
    const size_t markers = (size_t)batch->mcu[batch->n_seqs];
    assert_int_equal(
        rp_session_plan(s, (size_t)batch->cu[batch->n_seqs], batch->n_seqs, markers, &plan, NULL),
        RP_OK);
    *flops = rp_plan_flops(plan, batch);
    rp_session_destroy(s);
    return all;
}

/* Pruned, in every way of running, gives the bits of what is not.  True when there was less work.
 */
static bool check_same(const struct made *m, const rp_batch *batch, rp_pool *pool)
{
    size_t n, n_other;
    uint64_t whole, flops = 0;
    float *want = outputs_of(m, batch, (struct way){.no_prune = true}, &n, &whole);
    for (int i = 0; i < 8; i++) {
        const struct way way = {
            .pool = i & 1 ? pool : NULL, .no_fuse = i & 2, .observed = (i & 4) != 0};
        float *got = outputs_of(m, batch, way, &n_other, &flops);
        assert_int_equal(n_other, n);
        if (n)
            assert_memory_equal(got, want, n * sizeof *got);
        free(got);
    }
    free(want);
    return flops < whole;
}

static void to_int8(struct made *m)
{
    rp_error err = {0};
    if (rp_weights_quantize(m->weights, m->graph, NULL, &err) != RP_OK)
        fail_msg("%s", err.message);
}

/* Sequences of 0, 1 and more tokens.  Every third has two markers, and those are long ones. */
static const size_t mixed[] = {7, 0, 33, 1, 18, 64, 0, 2, 40};

static struct toy_batch make_batch(uint64_t seed)
{
    struct toy_batch b;
    toy_batch_make(&b, mixed, COUNT(mixed), VOCABULARY, seed);
    return b;
}

/* ---- the same bits ------------------------------------------------------------------------------
 */

/* Ops of hybrid models, one after the other: a row of each comes from the same row of its inputs.
 */
static rp_value hybrid(struct made *m, rp_value x, rp_value any, size_t width, const char *name)
{
    static const char *const parts[] = {"norm", "gate", "gated", "gates", "logits", "experts"};
    char names[6][32];
    rp_weight up[4], down[4];
    for (size_t i = 0; i < 6; i++)
        snprintf(names[i], sizeof names[i], "%s.%s", name, parts[i]);
    for (size_t e = 0; e < 4; e++) {
        up[e] = weight(m, 2 * 3, width, 1, 0);
        down[e] = weight(m, width, 3, 1, 0);
    }
    x = rp_graph_rms_norm(
        m->graph, names[0], x,
        &(rp_rms_norm){.w = weight(m, 1, width, 1, 0), .offset = true, .eps = 1e-6f});
    x = rp_graph_gate(m->graph, names[1], x, any,
                      &(rp_gate){.activation = RP_ACT_SIGMOID, .one = below(m, 2)});
    x = rp_graph_gated_norm(m->graph, names[2], x, any,
                            &(rp_gated_norm){.w = weight(m, 1, width, 1, 0),
                                             .eps = 1e-6f,
                                             .head_dim = (int32_t)width,
                                             .activation = RP_ACT_SILU});
    const rp_gdn_gates gates = {
        .n_heads = 1, .a_log = weight(m, 1, 1, 1, 0), .dt_bias = weight(m, 1, 1, 1, 0)};
    const rp_value two = rp_graph_gdn_gates(m->graph, names[3], any, &gates);
    const rp_value logits = linear(m, names[4], two, 4, 2, RP_ACT_NONE, -1);
    const rp_experts experts = {.n_experts = 4,
                                .n_used = 2,
                                .normalize = below(m, 2),
                                .activation = RP_ACT_SILU,
                                .up = up,
                                .down = down};
    return rp_graph_experts(m->graph, names[5], x, logits, &experts, below(m, 2) ? any : -1);
}

/* A random op over the values so far, of which x is the last; all have the same width. */
static rp_value random_op(struct made *m, const rp_value *values, size_t n, size_t width, size_t i)
{
    static const int dims[] = {1, 5, 8};
    const int dim = dims[below(m, 3)];
    const rp_weight rel = below(m, 3) ? -1 : weight(m, 32, 2, 1, 0);
    const rp_attention attention = {.n_heads = 2,
                                    .head_dim = dim,
                                    .rel_bias = rel,
                                    .rel_max_distance = 128,
                                    .window = below(m, 2) ? 0 : 1 + (int32_t)below(m, 9),
                                    .n_kv_heads = rel == -1 && below(m, 2) ? 1 : 0,
                                    .causal = rel == -1 && below(m, 2)};
    const rp_value x = values[n - 1], any = values[below(m, n)];
    char name[24], more[24];
    snprintf(name, sizeof name, "n%zu", i);
    snprintf(more, sizeof more, "n%zu.x", i);
    rp_value y;
    switch (below(m, 11)) {
    case 10: return hybrid(m, x, any, width, name);
    case 0: return norm(m, name, x, width);
    case 1: return rp_graph_activation(m->graph, name, x, (rp_activation)below(m, 7));
    case 2: return rp_graph_add(m->graph, name, x, any);
    case 3: return rp_graph_l2_norm(m->graph, name, x, 1e-12f);
    case 4:
        y = rp_graph_concat(m->graph, name, 2, (rp_value[]){any, x});
        return linear(m, more, y, width, 2 * width, RP_ACT_NONE, -1);
    case 5:
    case 6:
        y = linear(m, name, x, 6 * (size_t)dim, width, RP_ACT_NONE, -1);
        y = rp_graph_attention(m->graph, more, y, &attention);
        snprintf(more, sizeof more, "n%zu.y", i);
        return linear(m, more, y, width, 2 * (size_t)dim, (rp_activation)below(m, 7),
                      below(m, 3) ? any : -1);
    case 7:
        y = linear(m, name, x, 2 * width, width, RP_ACT_NONE, -1);
        return rp_graph_glu(m->graph, more, y, RP_ACT_GELU);
    case 8: /* a row knows its place here, so reads do not pass */
        if (width < 2)
            return norm(m, name, x, width);
        return rp_graph_rope(m->graph, name, x,
                             &(rp_rope){.n_heads = 1, .head_dim = 2, .theta = 100});
    default:
        return linear(m, name, x, width, width, (rp_activation)below(m, 7), below(m, 2) ? any : -1);
    }
}

/* Something that reads a value of tokens, and a head on it. */
static void random_reader(struct made *m, rp_value x, size_t width, size_t i)
{
    char name[24];
    snprintf(name, sizeof name, "read%zu", i);
    switch (below(m, 8)) {
    case 0: output(m, x, RP_ROWS_TOKENS, width); return;
    case 1:
    case 2:
        x = rp_graph_gather_markers(m->graph, name, x);
        output(m, linear(m, "marked", x, 3, width, RP_ACT_NONE, -1), RP_ROWS_MARKERS, 3);
        return;
    case 3: x = rp_graph_pool(m->graph, name, x, (rp_pooling)below(m, 6)); break;
    case 4: x = rp_graph_pool(m->graph, name, x, RP_POOL_LAST); break;
    default: x = rp_graph_pool(m->graph, name, x, RP_POOL_CLS); break;
    }
    output(m, x, RP_ROWS_SEQS, width);
    if (below(m, 2))
        output(m, linear(m, "head", x, 2, width, RP_ACT_TANH, -1), RP_ROWS_SEQS, 2);
}

static void random_graph(struct made *m, uint64_t seed)
{
    rp_value values[12];
    size_t n = 1;
    make(m, seed);
    const size_t width = 1 + below(m, 40);
    values[0] = norm(m, "embed.norm", embed(m, width), width);
    for (const size_t ops = 1 + below(m, 11); n < ops; n++)
        values[n] = random_op(m, values, n, width, n);
    const size_t readers = 1 + below(m, 3);
    for (size_t i = 0; i < readers; i++)
        random_reader(m, values[below(m, 3) ? n - 1 : below(m, n)], width, i);
}

static void random_graphs_keep_their_bits(void **state)
{
    (void)state;
    const uint64_t seed = 20260;
    size_t pruned = 0;
    rp_pool *pool = toy_pool(3);
    struct toy_batch b = make_batch(3);
    print_message("seed %llu\n", (unsigned long long)seed);
    for (uint64_t round = 0; round < 120; round++) {
        struct made m;
        random_graph(&m, seed + round);
        if (round % 3 == 2)
            to_int8(&m);
        pruned += check_same(&m, &b.batch, pool);
        unmake(&m);
    }
    print_message("%zu of 120 graphs had rows that nobody reads\n", pruned);
    assert_in_range(pruned, 40, 119);
    toy_batch_free(&b);
    rp_pool_destroy(pool);
}

/* Each way of reading, and two of them together; with a bias by distance, whose rows are the
 * queries' own; in both precisions. */
static void every_read_keeps_its_bits(void **state)
{
    (void)state;
    rp_pool *pool = toy_pool(2);
    struct toy_batch b = make_batch(4);
    for (unsigned reads = 1; reads < 8; reads++)
        for (int int8 = 0; int8 < 2; int8++) {
            struct made m;
            make(&m, 77 + reads);
            const rp_weight rel = weight(&m, 32, HEADS, 1, 0);
            rp_value x = layer(&m, 'a', embed(&m, WIDTH), rel);
            x = norm(&m, "top", layer(&m, 'b', x, rel), WIDTH);
            if (reads & 1)
                output(&m, rp_graph_pool(m.graph, "cls", x, RP_POOL_CLS), RP_ROWS_SEQS, WIDTH);
            if (reads & 2)
                output(&m, rp_graph_pool(m.graph, "last", x, RP_POOL_LAST), RP_ROWS_SEQS, WIDTH);
            if (reads & 4)
                output(&m, rp_graph_gather_markers(m.graph, "mark", x), RP_ROWS_MARKERS, WIDTH);
            if (int8)
                to_int8(&m);
            assert_true(check_same(&m, &b.batch, pool));
            unmake(&m);
        }
    toy_batch_free(&b);
    rp_pool_destroy(pool);
}

/* Pooling gives zeros for a sequence without tokens; the norm and the bias that are now behind the
 * gather would not. */
static void empty_sequences_stay_zeros(void **state)
{
    (void)state;
    static const rp_pooling modes[] = {RP_POOL_CLS, RP_POOL_LAST};
    struct toy_batch b = make_batch(5);
    for (size_t i = 0; i < COUNT(modes); i++) {
        struct made m;
        size_t n;
        uint64_t flops;
        make(&m, 9);
        const rp_value x = norm(&m, "top", encoder(&m), WIDTH);
        output(&m, rp_graph_pool(m.graph, "pool", x, modes[i]), RP_ROWS_SEQS, WIDTH);
        float *got = outputs_of(&m, &b.batch, (struct way){.observed = true}, &n, &flops);
        assert_int_equal(n, COUNT(mixed) * WIDTH);
        for (size_t k = 0; k < n; k++)
            if (mixed[k / WIDTH] == 0)
                assert_true(got[k] == 0);
        free(got);
        unmake(&m);
    }
    toy_batch_free(&b);
}

/* A batch of nothing but empty sequences, and one without markers. */
static void nothing_to_read(void **state)
{
    (void)state;
    const size_t none[] = {0, 0}, one[] = {5};
    rp_pool *pool = toy_pool(2);
    for (int i = 0; i < 2; i++) {
        struct made m;
        struct toy_batch b;
        make(&m, 21);
        const rp_value x = encoder(&m);
        output(&m, rp_graph_pool(m.graph, "cls", x, RP_POOL_CLS), RP_ROWS_SEQS, WIDTH);
        output(&m, rp_graph_gather_markers(m.graph, "mark", x), RP_ROWS_MARKERS, WIDTH);
        toy_batch_make(&b, i ? one : none, i ? COUNT(one) : COUNT(none), VOCABULARY, 1);
        (void)check_same(&m, &b.batch, pool);
        b.batch.markers = NULL; /* and no count of them */
        rp_session *s = open_session(&m, (struct way){.pool = pool});
        b.batch.mcu = NULL;
        toy_run_ok(s, &b.batch);
        rp_session_destroy(s);
        toy_batch_free(&b);
        unmake(&m);
    }
    rp_pool_destroy(pool);
}

/* ---- what is computed ---------------------------------------------------------------------------
 */

struct rows_of_steps {
    char text[2000];
};

static rp_status note_rows(void *context, const rp_step_info *step, const rp_view *view)
{
    struct rows_of_steps *r = context;
    const size_t n = strlen(r->text);
    snprintf(r->text + n, sizeof r->text - n, "%s %s %zu %s\n", step->kind, step->name, view->rows,
             step->tokens ? step->tokens : "-");
    return RP_OK;
}

static void check_steps(const struct made *m, bool no_prune, const char *want)
{
    static const size_t lengths[] = {9, 4}; /* the second has one marker */
    struct rows_of_steps r = {""};
    struct toy_batch b;
    toy_batch_make(&b, lengths, 2, VOCABULARY, 1);
    const rp_observer observer = {
        .struct_size = sizeof observer, .want = want_all, .show = note_rows, .context = &r};
    rp_session *s = open_session(m, (struct way){.no_prune = no_prune});
    rp_session_observe(s, &observer);
    toy_run_ok(s, &b.batch);
    assert_string_equal(r.text, want);
    rp_session_destroy(s);
    toy_batch_free(&b);
}

#define BEFORE                                                                                     \
    "embed embed 13 -\nlayer_norm embed.norm 13 -\n"                                               \
    "gemm a.qkv 13 -\nattention a.core 13 -\ngemm a.out 13 -\nlayer_norm a.norm 13 -\n"            \
    "gemm a.up 13 -\ngemm a.down 13 -\n"
#define WHOLE                                                                                      \
    "gemm b.qkv 13 -\nattention b.core 13 -\ngemm b.out 13 -\nlayer_norm b.norm 13 -\n"            \
    "gemm b.up 13 -\ngemm b.down 13 -\n"

static void steps_say_which_rows_they_have(void **state)
{
    (void)state;
    struct made m;
    make(&m, 1);
    rp_value x = encoder(&m);
    x = rp_graph_pool(m.graph, "cls", x, RP_POOL_CLS);
    output(&m, linear(&m, "head", x, 1, WIDTH, RP_ACT_NONE, -1), RP_ROWS_SEQS, 1);
    check_steps(&m, true, BEFORE WHOLE "pool cls 2 -\ngemm head 2 -\n");
    check_steps(&m, false,
                BEFORE "gemm b.qkv 13 -\nattention b.core 2 first\ngather a.down.first 2 first\n"
                       "gemm b.out 2 first\nlayer_norm b.norm 2 first\ngemm b.up 2 first\n"
                       "gemm b.down 2 first\ngather cls 2 -\ngemm head 2 -\n");
    unmake(&m);
}

/* Two reads: the rows of each, one after the other, under names of their own. */
static void two_reads_are_computed_twice(void **state)
{
    (void)state;
    struct made m;
    make(&m, 1);
    const rp_value x = encoder(&m);
    output(&m, rp_graph_gather_markers(m.graph, "mark", x), RP_ROWS_MARKERS, WIDTH);
    output(&m, rp_graph_pool(m.graph, "last", x, RP_POOL_LAST), RP_ROWS_SEQS, WIDTH);
    check_steps(&m, false,
                BEFORE "gemm b.qkv 13 -\n"
                       "attention b.core.marked 1 marked\ngather a.down.marked 1 marked\n"
                       "gemm b.out.marked 1 marked\nlayer_norm b.norm.marked 1 marked\n"
                       "gemm b.up.marked 1 marked\ngemm b.down.marked 1 marked\ngather mark 1 -\n"
                       "attention b.core.last 2 last\ngather a.down.last 2 last\n"
                       "gemm b.out.last 2 last\nlayer_norm b.norm.last 2 last\n"
                       "gemm b.up.last 2 last\ngemm b.down.last 2 last\ngather last 2 -\n");
    unmake(&m);
}

/* What is also read whole stays whole: by an output, by the mean, by another layer. */
static void what_is_read_whole_stays(void **state)
{
    (void)state;
    for (int by = 0; by < 3; by++) {
        struct made m;
        make(&m, 1);
        rp_value x = encoder(&m);
        output(&m, rp_graph_pool(m.graph, "cls", x, RP_POOL_CLS), RP_ROWS_SEQS, WIDTH);
        if (by == 0)
            output(&m, x, RP_ROWS_TOKENS, WIDTH);
        if (by == 1)
            output(&m, rp_graph_pool(m.graph, "mean", x, RP_POOL_MEAN), RP_ROWS_SEQS, WIDTH);
        if (by == 2) {
            x = layer(&m, 'c', x, -1);
            output(&m, rp_graph_pool(m.graph, "mean", x, RP_POOL_MAX), RP_ROWS_SEQS, WIDTH);
        }
        check_steps(&m, false,
                    by == 0   ? BEFORE WHOLE "pool cls 2 -\n"
                    : by == 1 ? BEFORE WHOLE "pool cls 2 -\npool mean 2 -\n"
                              : BEFORE WHOLE
                        "pool cls 2 -\ngemm c.qkv 13 -\nattention c.core 13 -\n"
                        "gemm c.out 13 -\nlayer_norm c.norm 13 -\ngemm c.up 13 -\n"
                        "gemm c.down 13 -\npool mean 2 -\n");
        unmake(&m);
    }
}

/* By hand, and by what a profile counted. */
static void only_what_is_read_is_work(void **state)
{
    (void)state;
    struct toy_batch b = make_batch(8);
    const uint64_t h = WIDTH, per_row = 2 * (h * h + 2 * h * FFN), qkv = 2 * 3 * h * h;
    uint64_t tokens = 0, pairs = 0, marked_pairs = 0;
    for (size_t s = 0; s < COUNT(mixed); s++) {
        tokens += mixed[s];
        pairs += mixed[s] * mixed[s];
        marked_pairs += mixed[s] * (uint64_t)(b.mcu[s + 1] - b.mcu[s]);
    }
    const uint64_t seqs = COUNT(mixed), markers = (uint64_t)b.mcu[COUNT(mixed)];
    const uint64_t first_layer = tokens * (qkv + per_row) + 4 * h * pairs;
    const struct {
        bool marked;
        uint64_t flops;
    } cases[] = {{false, first_layer + tokens * qkv + 4 * h * tokens + seqs * per_row},
                 {true, first_layer + tokens * qkv + 4 * h * marked_pairs + markers * per_row}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct made m;
        const rp_plan *plan;
        rp_profile profile = {.struct_size = sizeof profile};
        make(&m, 1);
        const rp_value x = encoder(&m);
        if (cases[i].marked)
            output(&m, rp_graph_gather_markers(m.graph, "mark", x), RP_ROWS_MARKERS, h);
        else
            output(&m, rp_graph_pool(m.graph, "last", x, RP_POOL_LAST), RP_ROWS_SEQS, h);
        rp_session *s = open_session(&m, (struct way){0});
        assert_int_equal(rp_session_plan(s, tokens, seqs, markers, &plan, NULL), RP_OK);
        assert_int_equal(rp_plan_flops(plan, &b.batch), cases[i].flops);
        assert_int_equal(rp_session_profile_start(s, 0, NULL), RP_OK);
        toy_run_ok(s, &b.batch);
        assert_int_equal(rp_session_plan(s, tokens, seqs, markers, &plan, NULL), RP_OK);
        assert_int_equal(rp_session_profile(s, &profile, NULL), RP_OK);
        uint64_t counted = 0;
        for (size_t k = 0; k < profile.n_steps; k++) {
            rp_step_info info;
            assert_int_equal(rp_plan_step(plan, k, &info), RP_OK);
            if (strcmp(info.kind, "gemm") == 0 || strcmp(info.kind, "attention") == 0)
                counted += profile.steps[k].flops;
        }
        assert_int_equal(counted, cases[i].flops);
        rp_session_destroy(s);
        unmake(&m);
    }
    toy_batch_free(&b);
}

/* Whether a product is INT8 is its weight's affair, decided on the graph as it was made. */
static void moved_products_stay_int8(void **state)
{
    (void)state;
    struct made m;
    const rp_bucket bucket = {.tokens = 64, .seqs = 4, .markers = 4};
    rp_plan *plan;
    size_t found[2] = {0, 0};
    make(&m, 1);
    const rp_value x = rp_graph_pool(m.graph, "cls", encoder(&m), RP_POOL_CLS);
    output(&m, linear(&m, "head", x, 1, WIDTH, RP_ACT_NONE, -1), RP_ROWS_SEQS, 1);
    to_int8(&m);
    assert_int_equal(rp_plan_compile(m.graph, m.weights, &bucket, NULL, &plan, NULL), RP_OK);
    for (size_t i = 0; i < rp_plan_n_steps(plan); i++) {
        rp_step_info info;
        assert_int_equal(rp_plan_step(plan, i, &info), RP_OK);
        if (strcmp(info.kind, "qgemm") == 0 && info.rows == RP_ROWS_SEQS)
            found[0]++;
        if (strcmp(info.kind, "gemm") == 0) {
            assert_string_equal(info.name, "head");
            found[1]++;
        }
    }
    assert_int_equal(found[0], 3);
    assert_int_equal(found[1], 1);
    rp_plan_destroy(plan);
    unmake(&m);
}

static void plans_show_it(void **state)
{
    (void)state;
    struct made m;
    const rp_bucket bucket = {.tokens = 64, .seqs = 4, .markers = 4};
    rp_plan_options o;
    rp_plan *plan;
    make(&m, 1);
    output(&m, rp_graph_pool(m.graph, "cls", encoder(&m), RP_POOL_CLS), RP_ROWS_SEQS, WIDTH);
    rp_plan_options_init(&o);
    for (int no_prune = 0; no_prune < 2; no_prune++) {
        char text[8000];
        o.no_prune = no_prune;
        assert_int_equal(rp_plan_compile(m.graph, m.weights, &bucket, &o, &plan, NULL), RP_OK);
        assert_true(rp_plan_text(plan, text, sizeof text) < sizeof text);
        assert_int_equal(strstr(text, " queries=first") == NULL, no_prune);
        assert_int_equal(strstr(text, " tokens=first") == NULL, no_prune);
        rp_plan_destroy(plan);
    }
    unmake(&m);
}

/* One sequence is enough tokens for the workers to take them in blocks of rows, but one row at the
 * top: its products are shared out by columns. */
static void one_row_is_work_for_all(void **state)
{
    (void)state;
    const size_t length = 120, width = 256;
    rp_pool *pool = toy_pool(4);
    struct toy_batch b;
    struct made m;
    const rp_plan *plan;
    rp_profile profile = {.struct_size = sizeof profile};
    toy_batch_make(&b, &length, 1, VOCABULARY, 1);
    make(&m, 1);
    rp_value x = linear(&m, "qkv", embed(&m, width), 3 * width, width, RP_ACT_NONE, -1);
    x = rp_graph_attention(
        m.graph, "core", x,
        &(rp_attention){.n_heads = 4, .head_dim = (int32_t)width / 4, .rel_bias = -1});
    x = linear(&m, "up", x, 4 * width, width, RP_ACT_GELU, -1);
    x = linear(&m, "down", x, width, 4 * width, RP_ACT_NONE, -1);
    output(&m, rp_graph_pool(m.graph, "cls", x, RP_POOL_CLS), RP_ROWS_SEQS, width);
    assert_true(check_same(&m, &b.batch, pool));
    rp_session *s = open_session(&m, (struct way){.pool = pool});
    assert_int_equal(rp_session_profile_start(s, 0, NULL), RP_OK);
    toy_run_ok(s, &b.batch);
    assert_int_equal(rp_session_profile(s, &profile, NULL), RP_OK);
    assert_int_equal(rp_session_plan(s, length, 1, 0, &plan, NULL), RP_OK);
    for (size_t i = 0; i < profile.n_steps; i++) {
        rp_step_info info;
        assert_int_equal(rp_plan_step(plan, i, &info), RP_OK);
        if (strcmp(info.name, "up") == 0 || strcmp(info.name, "down") == 0)
            assert_in_range(profile.steps[i].calls, 4, 64);
        if (strcmp(info.name, "core") == 0)
            assert_int_equal(profile.steps[i].calls, 4);
        if (strcmp(info.name, "qkv") == 0) /* in blocks of rows: by chunk */
            assert_int_equal(profile.steps[i].calls, 4);
    }
    rp_session_destroy(s);
    rp_pool_destroy(pool);
    toy_batch_free(&b);
    unmake(&m);
}

static void a_warm_run_allocates_nothing(void **state)
{
    (void)state;
    if (!alloc_count_available())
        skip();
    struct made m;
    struct toy_batch b = make_batch(2);
    rp_pool *pool = toy_pool(2);
    make(&m, 1);
    const rp_value x = encoder(&m);
    output(&m, rp_graph_pool(m.graph, "cls", x, RP_POOL_CLS), RP_ROWS_SEQS, WIDTH);
    output(&m, rp_graph_gather_markers(m.graph, "mark", x), RP_ROWS_MARKERS, WIDTH);
    rp_session *s = open_session(&m, (struct way){.pool = pool});
    toy_run_ok(s, &b.batch);
    const size_t before = alloc_count();
    toy_run_ok(s, &b.batch);
    assert_int_equal(alloc_count(), before);
    rp_session_destroy(s);
    rp_pool_destroy(pool);
    toy_batch_free(&b);
    unmake(&m);
}

/* ---- families -----------------------------------------------------------------------------------
 */

/* The model's own outputs with and without, as a classifier or as an embedder that pools so. */
static void check_model(const struct maker_dir *dir, const char *output_name,
                        rp_precision precision, bool less)
{
    const size_t lengths[] = {5, 12, 1, 20};
    uint64_t flops[2];
    float *rows[2];
    size_t n[2];
    struct toy_batch b;
    rp_model_options o;
    rp_model *model;
    rp_error err = {0};
    toy_batch_make(&b, lengths, COUNT(lengths), 30, 1);
    rp_model_options_init(&o);
    o.precision = precision;
    if (rp_model_load(dir->path, &o, &model, &err) != RP_OK)
        fail_msg("%s", err.message);
    struct made m = {.graph = (rp_graph *)(uintptr_t)rp_model_graph(model),
                     .weights = rp_model_weights(model),
                     .n_outputs = 1};
    snprintf(m.outputs[0], sizeof m.outputs[0], "%s", output_name);
    for (int no_prune = 0; no_prune < 2; no_prune++)
        rows[no_prune] = outputs_of(&m, &b.batch, (struct way){.no_prune = no_prune}, &n[no_prune],
                                    &flops[no_prune]);
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(rows[0], rows[1], n[0] * sizeof(float));
    assert_int_equal(flops[0] < flops[1], less);
    free(rows[0]);
    free(rows[1]);
    rp_model_destroy(model);
    toy_batch_free(&b);
}

static void write_pooling(const struct maker_dir *dir, const char *mode)
{
    char text[200];
    maker_write_text(dir, "modules.json",
                     "[{\"idx\":0,\"name\":\"0\",\"path\":\"\",\"type\":"
                     "\"sentence_transformers.models.Transformer\"},{\"idx\":1,\"name\":\"1\","
                     "\"path\":\"1_Pooling\",\"type\":\"sentence_transformers.models.Pooling\"}]");
    maker_mkdir(dir, "1_Pooling");
    snprintf(text, sizeof text, "{\"word_embedding_dimension\":%d,\"pooling_mode_%s\":true}", 32,
             mode);
    maker_write_text(dir, "1_Pooling/config.json", text);
}

static void every_family(void **state)
{
    (void)state;
    static const char *const families[] = {"bert",    "roberta",    "xlm-roberta",
                                           "electra", "distilbert", "mpnet"};
    static const char *const modes[] = {"cls_token", "lasttoken", "mean_tokens"};
    for (size_t f = 0; f < COUNT(families); f++)
        for (size_t i = 0; i < 1 + COUNT(modes); i++) {
            struct maker_dir dir;
            struct maker_model m = maker_model_default(families[f]);
            const struct maker_write_options write = {.prefix = i == 0};
            m.hidden = 32;
            m.vocab = 64;
            m.labels = i == 0 ? 2 : 0;
            maker_model_fill(&m);
            maker_dir_create(&dir);
            maker_model_write(&m, &dir, &write);
            if (i)
                write_pooling(&dir, modes[i - 1]);
            for (int int8 = 0; int8 < 2; int8++)
                check_model(&dir, i ? "embedding" : "logits",
                            int8 ? RP_PRECISION_INT8 : RP_PRECISION_FP32, i < 3);
            maker_dir_remove(&dir);
            maker_model_free(&m);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_graphs_keep_their_bits),
        cmocka_unit_test(every_read_keeps_its_bits),
        cmocka_unit_test(empty_sequences_stay_zeros),
        cmocka_unit_test(nothing_to_read),
        cmocka_unit_test(steps_say_which_rows_they_have),
        cmocka_unit_test(two_reads_are_computed_twice),
        cmocka_unit_test(what_is_read_whole_stays),
        cmocka_unit_test(only_what_is_read_is_work),
        cmocka_unit_test(moved_products_stay_int8),
        cmocka_unit_test(plans_show_it),
        cmocka_unit_test(one_row_is_work_for_all),
        cmocka_unit_test(a_warm_run_allocates_nothing),
        cmocka_unit_test(every_family),
    };
    return cmocka_run_group_tests_name("prune", tests, NULL, NULL);
}
