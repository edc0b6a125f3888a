/* What runs along a sequence (convolutions, delta rules) and sequences that begin where a parent
 * ends: a child's rows have the bits of the same rows of the sequence that was never cut, whatever
 * the batch, the threads, the bucket and who looks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ops/ops.h"
#include "tests/alloc_count.h"
#include "tests/toy.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a)   (sizeof(a) / sizeof *(a))
#define VOCABULARY 40

/* ---- graphs ------------------------------------------------------------------------------------
 */

struct net {
    rp_graph *graph;
    rp_weights *weights;
    float *arrays[64];
    size_t n_arrays;
    uint64_t state;
};

static void net_begin(struct net *n, uint64_t seed)
{
    memset(n, 0, sizeof *n);
    n->state = seed;
    assert_int_equal(rp_graph_create(&n->graph, NULL), RP_OK);
    assert_int_equal(rp_weights_create(&n->weights, NULL), RP_OK);
}

static void net_free(struct net *n)
{
    for (size_t i = 0; i < n->n_arrays; i++)
        free(n->arrays[i]);
    rp_graph_destroy(n->graph);
    rp_weights_destroy(n->weights);
}

static rp_weight weight(struct net *n, size_t rows, size_t cols, float scale)
{
    float *data = malloc(rows * cols * sizeof *data);
    rp_weight w;
    assert_non_null(data);
    assert_true(n->n_arrays < COUNT(n->arrays));
    for (size_t i = 0; i < rows * cols; i++)
        data[i] = toy_uniform(&n->state) * scale;
    n->arrays[n->n_arrays++] = data;
    const rp_weight_part part = {.rows = rows, .dtype = RP_DTYPE_F32, .data = data};
    assert_int_equal(rp_weights_add(n->weights, "w", cols, 1, &part, &w, NULL), RP_OK);
    return w;
}

static rp_value embedding(struct net *n, size_t width)
{
    const rp_embed_table tables[] = {
        {weight(n, VOCABULARY, width, 1), RP_INDEX_IDS, 0},
        {weight(n, 1024, width, 0.5f), RP_INDEX_POSITION, 0},
        {weight(n, 1024, width, 0.5f), RP_INDEX_POSITION_NONPAD, 1},
    };
    return rp_graph_embed(n->graph, "embeddings", COUNT(tables), tables);
}

static rp_value product(struct net *n, const char *name, rp_value x, size_t from, size_t to)
{
    return rp_graph_gemm(n->graph, name, x, weight(n, to, from, 0.3f), -1, RP_ACT_NONE, -1);
}

/* Rows that are read alone: the last ones of what another product makes of x, and marked ones. */
static void few_outputs(struct net *n, rp_value x, size_t width)
{
    const rp_value head = product(n, "head", x, width, 9);
    rp_graph_output(n->graph, "last", rp_graph_pool(n->graph, "pool", head, RP_POOL_LAST),
                    RP_ROWS_SEQS, 9);
    const rp_value marked = rp_graph_gather_markers(n->graph, "marked", x);
    rp_graph_output(n->graph, "marked", marked, RP_ROWS_MARKERS, width);
}

/* And every row of x. */
static void outputs(struct net *n, rp_value x, size_t width)
{
    rp_graph_output(n->graph, "rows", x, RP_ROWS_TOKENS, width);
    few_outputs(n, x, width);
}

/* Row by row, but for positions. */
static void make_plain(struct net *n)
{
    net_begin(n, 3);
    rp_value x = embedding(n, 24);
    const rp_rope rope = {.n_heads = 2, .head_dim = 8, .theta = 100};
    x = rp_graph_rope(n->graph, "rope", product(n, "up", x, 24, 48), &rope);
    outputs(n, rp_graph_glu(n->graph, "glu", x, RP_ACT_SILU), 24);
}

/* A layer as decoders have it: heads of keys shared and turned with those of the queries, and
 * columns behind them that attention does not read. */
static rp_value decoder_layer(struct net *n, rp_value x, int32_t window)
{
    enum { HEADS = 4, KV_HEADS = 2, DIM = 8, MORE = 5 };
    const rp_rope rope = {.n_heads = HEADS + KV_HEADS, .head_dim = DIM, .theta = 100};
    const rp_attention attention = {.n_heads = HEADS,
                                    .head_dim = DIM,
                                    .rel_bias = -1,
                                    .window = window,
                                    .n_kv_heads = KV_HEADS,
                                    .causal = true};
    rp_value y = product(n, "qkv", x, 24, (HEADS + 2 * KV_HEADS) * DIM + MORE);
    y = rp_graph_attention(n->graph, "core", rp_graph_rope(n->graph, "rope", y, &rope), &attention);
    return rp_graph_gemm(n->graph, "out", y, weight(n, 24, HEADS * DIM, 0.3f), -1, RP_ACT_NONE, x);
}

/* The second layer's rows are read whole, or only the last and the marked. */
static void make_decoder(struct net *n, bool whole, int32_t window)
{
    net_begin(n, 5);
    rp_value x = decoder_layer(n, embedding(n, 24), window);
    if (whole)
        x = decoder_layer(n, x, 0);
    rp_graph_output(n->graph, "rows", x, RP_ROWS_TOKENS, 24);
    if (!whole)
        x = decoder_layer(n, x, 0);
    const rp_value last =
        rp_graph_pool(n->graph, "pool", product(n, "head", x, 24, 9), RP_POOL_LAST);
    rp_graph_output(n->graph, "last", last, RP_ROWS_SEQS, 9);
    rp_graph_output(n->graph, "marked", rp_graph_gather_markers(n->graph, "marked", x),
                    RP_ROWS_MARKERS, 24);
}

static void make_whole_decoder(struct net *n)
{
    make_decoder(n, true, 20);
}

static void make_pruned_decoder(struct net *n)
{
    make_decoder(n, false, 0);
}

static void make_pruned_window_decoder(struct net *n)
{
    make_decoder(n, false, 3);
}

/* Decays below 1 and rates from 0 on, for n_heads heads: the numbers before are not negative. */
static rp_value gates_of(struct net *n, rp_value x, size_t width, size_t n_heads)
{
    const rp_weight w = weight(n, 2 * n_heads, width, 0.1f);
    float *numbers = n->arrays[n->n_arrays - 1];
    for (size_t i = 0; i < 2 * n_heads * width; i++)
        numbers[i] = i < n_heads * width ? -fabsf(numbers[i]) : fabsf(numbers[i]);
    x = rp_graph_activation(n->graph, "relu", x, RP_ACT_RELU);
    return rp_graph_gemm(n->graph, "gates", x, w, -1, RP_ACT_NONE, -1);
}

/* A layer of a hybrid model: convolution, delta rule, and back to the width that came. */
static rp_value hybrid_layer(struct net *n, rp_value x, size_t width, const rp_gdn *gdn)
{
    const size_t keys = (size_t)(gdn->n_key_heads * gdn->key_dim);
    const size_t values = (size_t)(gdn->n_value_heads * gdn->value_dim), qkv = 2 * keys + values;
    const rp_value all = product(n, "qkvz", x, width, qkv + 5);
    const rp_conv conv = {.w = weight(n, qkv + 1, 4, 0.7f),
                          .b = weight(n, 1, qkv + 1, 0.2f),
                          .activation = RP_ACT_SILU};
    const rp_value mixed = rp_graph_conv(n->graph, "conv", all, &conv);
    const rp_value gates = gates_of(n, x, width, (size_t)gdn->n_value_heads);
    const rp_value core = rp_graph_gdn(n->graph, "core", mixed, gates, gdn);
    return rp_graph_gemm(n->graph, "out", core, weight(n, width, values, 0.3f), -1, RP_ACT_NONE, x);
}

static void make_stack(struct net *n, const rp_gdn *gdn, size_t layers)
{
    net_begin(n, 7);
    rp_value x = embedding(n, 24);
    for (size_t l = 0; l < layers; l++)
        x = hybrid_layer(n, x, 24, gdn);
    outputs(n, x, 24);
}

static void make_hybrid(struct net *n)
{
    static const rp_gdn gdn = {.n_key_heads = 2,
                               .n_value_heads = 4,
                               .key_dim = 9,
                               .value_dim = 20,
                               .norm = RP_GDN_NORM_ROOT,
                               .eps = 1e-6f};
    make_stack(n, &gdn, 2);
}

/* One key head of many columns: what is cut into columns when workers are many. */
static void make_one_head(struct net *n)
{
    static const rp_gdn gdn = {.n_key_heads = 1,
                               .n_value_heads = 3,
                               .key_dim = 16,
                               .value_dim = 33,
                               .map = RP_GDN_TILED,
                               .norm = RP_GDN_NORM_MAX,
                               .eps = 1e-6f,
                               .scale = 0.5f};
    make_stack(n, &gdn, 1);
}

/* Causal attention with rotary positions, heads that share keys, and a window by turns. */
static rp_value attention_layer(struct net *n, rp_value x, size_t width, int32_t window)
{
    const rp_rope rope = {.n_heads = 6, .head_dim = 8, .n_rotated = 4, .theta = 100};
    const rp_attention attention = {.n_heads = 4,
                                    .head_dim = 8,
                                    .n_kv_heads = 2,
                                    .rel_bias = -1,
                                    .causal = true,
                                    .window = window};
    rp_value y = product(n, "qkv", x, width, 64);
    y = rp_graph_rope(n->graph, "rope", y, &rope);
    y = rp_graph_attention(n->graph, "attn", y, &attention);
    return rp_graph_gemm(n->graph, "o", y, weight(n, width, 32, 0.3f), -1, RP_ACT_NONE, x);
}

/* All kinds of layers, and of the last, attention, only the rows that are read. */
static void make_mixed(struct net *n)
{
    static const rp_gdn gdn = {.n_key_heads = 2,
                               .n_value_heads = 2,
                               .key_dim = 8,
                               .value_dim = 16,
                               .norm = RP_GDN_NORM_ROOT,
                               .eps = 1e-6f};
    net_begin(n, 5);
    rp_value x = attention_layer(n, embedding(n, 24), 24, 20);
    x = hybrid_layer(n, x, 24, &gdn);
    few_outputs(n, attention_layer(n, x, 24, 0), 24);
}

/* The two ops by themselves, of what tables give. */
static void make_conv(struct net *n)
{
    net_begin(n, 8);
    const rp_conv conv = {weight(n, 19, 8, 0.5f), -1, RP_ACT_NONE};
    outputs(n, rp_graph_conv(n->graph, "conv", embedding(n, 24), &conv), 19);
}

static void make_gdn(struct net *n)
{
    static const rp_gdn gdn = {
        .n_key_heads = 2, .n_value_heads = 2, .key_dim = 4, .value_dim = 5, .scale = 1};
    net_begin(n, 9);
    const rp_value x = rp_graph_l2_norm(n->graph, "norm", embedding(n, 26), 1e-6f);
    outputs(n, rp_graph_gdn(n->graph, "core", x, gates_of(n, x, 26, 2), &gdn), 10);
}

/* ---- batches -----------------------------------------------------------------------------------
 */

/* Sequences of random ids, some of which have parents. */
struct family {
    rp_batch batch;
    int32_t ids[4096], cu[64], parents[64], markers[64], mcu[64];
};

static void family_begin(struct family *f)
{
    memset(f, 0, sizeof *f);
    rp_batch_init(&f->batch);
    f->batch.ids = f->ids;
    f->batch.cu = f->cu;
    f->batch.parents = f->parents;
    f->batch.markers = f->markers;
    f->batch.mcu = f->mcu;
}

/* Its number.  Its one marker is at its last row; a sequence without rows has none. */
static int32_t family_add(struct family *f, const int32_t *ids, size_t n, int32_t parent)
{
    const size_t s = f->batch.n_seqs++;
    assert_true(s + 1 < COUNT(f->cu) && (size_t)f->cu[s] + n <= COUNT(f->ids));
    if (n)
        memcpy(f->ids + f->cu[s], ids, n * sizeof *ids);
    f->cu[s + 1] = f->cu[s] + (int32_t)n;
    f->mcu[s + 1] = f->mcu[s] + (n > 0);
    if (n)
        f->markers[f->mcu[s]] = (int32_t)n - 1;
    f->parents[s] = parent;
    return (int32_t)s;
}

static void random_ids(uint64_t *state, int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)(toy_random(state) % VOCABULARY);
}

/* A session in its strictest form: what is not written holds NaNs. */
static rp_session *make_session(const struct net *n, rp_pool *pool, bool no_prune)
{
    static const rp_bucket buckets[] = {{64, 8, 8}, {4096, 64, 64}};
    rp_session_options o;
    rp_session *s;
    rp_error err = {RP_OK, ""};
    rp_session_options_init(&o);
    o.pool = pool;
    o.buckets = buckets;
    o.n_buckets = COUNT(buckets);
    o.no_prune = no_prune;
    o.poison = true;
    if (rp_session_create(n->graph, n->weights, &o, &s, &err) != RP_OK)
        fail_msg("%s", err.message);
    return s;
}

static rp_view view_of(rp_session *s, const char *name)
{
    rp_view v;
    assert_int_equal(rp_session_output(s, name, &v, NULL), RP_OK);
    return v;
}

static void assert_rows(rp_session *s, const char *name, size_t row, rp_session *whole,
                        size_t whole_row, size_t n)
{
    const rp_view a = view_of(s, name), b = view_of(whole, name);
    assert_true(row + n <= a.rows && whole_row + n <= b.rows && a.width == b.width);
    for (size_t r = 0; r < n; r++)
        if (memcmp(a.data + (row + r) * a.width, b.data + (whole_row + r) * b.width,
                   a.width * sizeof(float)) != 0)
            fail_msg("%s: row %zu is not row %zu of the whole sequence", name, row + r,
                     whole_row + r);
}

/* Sequence s of a run against itself, uncut and alone. */
static void check_sequence(rp_session *ran, rp_session *alone, const struct family *f, size_t s)
{
    static struct family one;
    const int32_t parent = f->parents[s];
    int32_t ids[2048];
    size_t before = 0, own = (size_t)(f->cu[s + 1] - f->cu[s]);
    if (parent >= 0) {
        before = (size_t)(f->cu[parent + 1] - f->cu[parent]);
        memcpy(ids, f->ids + f->cu[parent], before * sizeof *ids);
    }
    memcpy(ids + before, f->ids + f->cu[s], own * sizeof *ids);
    family_begin(&one);
    family_add(&one, ids, before + own, -1);
    one.batch.parents = NULL;
    toy_run_ok(alone, &one.batch);
    rp_view rows;
    if (rp_session_output(ran, "rows", &rows, NULL) == RP_OK)
        assert_rows(ran, "rows", (size_t)f->cu[s], alone, before, own);
    assert_rows(ran, "last", s, alone, 0, 1);
    if (own)
        assert_rows(ran, "marked", (size_t)f->mcu[s], alone, 0, 1);
}

/* All sequences of a run, each against itself. */
static void check_sequences(rp_session *ran, rp_session *alone, const struct family *f)
{
    for (size_t i = 0; i < f->batch.n_seqs; i++)
        check_sequence(ran, alone, f, i);
}

/* Prefixes of all lengths that matter to chunks of 32 or 64 rows and to convolutions, each with a
 * few children, which do not follow it at once; and sequences of nobody's family. */
static void make_families(struct family *f, uint64_t seed)
{
    static const size_t prefixes[] = {0, 1, 31, 32, 33, 63, 64, 65, 131, 100};
    static const size_t children[] = {1, 40, 3, 70, 64, 2};
    uint64_t state = seed;
    int32_t ids[256], parent[COUNT(prefixes)];
    family_begin(f);
    for (size_t i = 0; i < COUNT(prefixes); i++) {
        random_ids(&state, ids, prefixes[i]);
        parent[i] = family_add(f, ids, prefixes[i], -1);
        for (size_t c = 0; c < 4; c++) {
            const size_t n = children[toy_random(&state) % COUNT(children)];
            const size_t of = toy_random(&state) % (i + 1);
            random_ids(&state, ids, n);
            family_add(f, ids, n, toy_random(&state) % 8 ? parent[of] : -1);
        }
    }
}

static void children_are_as_if_uncut(void (*make)(struct net *))
{
    static struct family f;
    struct net n;
    make(&n);
    for (int threads = 1; threads <= 3; threads++) {
        rp_pool *pool = toy_pool(threads);
        make_families(&f, 10 + (uint64_t)threads);
        rp_session *s = make_session(&n, pool, threads == 2),
                   *alone = make_session(&n, NULL, false);
        toy_run_ok(s, &f.batch);
        check_sequences(s, alone, &f);
        rp_session_destroy(s);
        rp_session_destroy(alone);
        rp_pool_destroy(pool);
    }
    net_free(&n);
}

static void children_of_rows(void **state)
{
    (void)state;
    children_are_as_if_uncut(make_plain);
}

static void children_of_decoders(void **state)
{
    (void)state;
    children_are_as_if_uncut(make_whole_decoder);
    children_are_as_if_uncut(make_pruned_decoder);
    children_are_as_if_uncut(make_pruned_window_decoder);
}

static void children_of_convolutions(void **state)
{
    (void)state;
    children_are_as_if_uncut(make_conv);
}

static void children_of_delta_rules(void **state)
{
    (void)state;
    children_are_as_if_uncut(make_gdn);
    children_are_as_if_uncut(make_one_head);
}

static void children_of_hybrids(void **state)
{
    (void)state;
    children_are_as_if_uncut(make_hybrid);
    children_are_as_if_uncut(make_mixed);
}

/* ---- convolutions ------------------------------------------------------------------------------
 */

#define CONV_WIDTH 600
#define CONV_LD    (CONV_WIDTH + 3)

static double conv_at(const struct rp_ops_conv *p, const float *const *before, const float *x,
                      size_t r, size_t c, double *size)
{
    double sum = 0;
    *size = 0;
    for (size_t i = 0; i < p->kernel; i++) {
        const size_t at = r + i;
        const float *row = at + 1 < p->kernel ? before[at] : x + (at + 1 - p->kernel) * CONV_LD;
        const double term = row ? (double)p->w[i * p->width + c] * (double)row[c] : 0;
        sum += term;
        *size += fabs(term);
    }
    if (p->b)
        sum += (double)p->b[c];
    return p->activation == RP_ACT_SILU ? sum / (1 + exp(-sum)) : sum;
}

/* One shape on every table of this machine: the numbers of float64, and all bits alike.  What lies
 * beside the rows stays as it was. */
static void check_conv(const struct rp_ops_conv *p, const float *const *before, const float *x,
                       size_t rows)
{
    static float y[11 * CONV_LD], first[11 * CONV_LD];
    size_t n;
    const struct rp_ops *const *tables = rp_ops_all(&n);
    for (size_t t = 0; t < n; t++) {
        if (tables[t]->isa & ~rp_isa_detected())
            continue;
        memset(y, 0xff, sizeof y);
        tables[t]->conv(p, before, x, CONV_LD, y, CONV_LD, rows);
        for (size_t i = 0; i < COUNT(y); i++)
            if (i / CONV_LD >= rows || i % CONV_LD >= p->width)
                assert_true(isnan(y[i]));
        if (t == 0)
            memcpy(first, y, sizeof y);
        assert_memory_equal(first, y, sizeof y);
    }
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < p->width; c++) {
            double size, want = conv_at(p, before, x, r, c, &size);
            const double off = fabs((double)first[r * CONV_LD + c] - want);
            if (!(off <= 1e-6 * (size + 1)))
                fail_msg("kernel %zu, row %zu, column %zu: %g, expected %g", p->kernel, r, c,
                         (double)first[r * CONV_LD + c], want);
        }
}

static void convolution_kernels(void **state)
{
    (void)state;
    static const size_t widths[] = {1, 15, 16, 17, 33, 511, 513, CONV_WIDTH};
    static float x[11 * CONV_LD], w[8 * CONV_WIDTH], b[CONV_WIDTH], past[7 * CONV_WIDTH];
    uint64_t seed = 4;
    for (size_t i = 0; i < COUNT(x); i++)
        x[i] = toy_uniform(&seed);
    for (size_t i = 0; i < COUNT(w); i++)
        w[i] = toy_uniform(&seed);
    for (size_t i = 0; i < COUNT(b); i++)
        b[i] = toy_uniform(&seed);
    for (size_t i = 0; i < COUNT(past); i++)
        past[i] = toy_uniform(&seed);
    for (size_t kernel = 1; kernel <= RP_CONV_MAX_KERNEL; kernel++)
        for (size_t i = 0; i < COUNT(widths); i++)
            for (size_t rows = 0; rows <= 11; rows += rows < 5 ? 1 : 3) {
                const float *before[7];
                const size_t n_past = toy_random(&seed) % kernel;
                for (size_t j = 0; j + 1 < kernel; j++)
                    before[j] = j < kernel - 1 - n_past ? NULL : past + j * CONV_WIDTH;
                const struct rp_ops_conv conv = {.w = w,
                                                 .b = rows % 2 ? b : NULL,
                                                 .kernel = kernel,
                                                 .width = widths[i],
                                                 .activation = i % 2 ? RP_ACT_SILU : RP_ACT_NONE};
                check_conv(&conv, before, x, rows);
            }
}

/* A kernel's rows that are not there are zeros, and so is a state of zeros: the same bits, also
 * with weights whose products with zeros have a sign. */
static void rows_that_are_not_there_are_zeros(void **state)
{
    (void)state;
    static const float zeros[20], w[4 * 20] = {-1, -0.0f, 1, -2}, x[20] = {-0.0f, 1};
    static const float *const none[3], *const given[3] = {zeros, zeros, zeros};
    const struct rp_ops_conv conv = {.w = w, .kernel = 4, .width = 20};
    float y[2][20];
    rp_ops_select(rp_isa_detected())->conv(&conv, none, x, 20, y[0], 20, 1);
    rp_ops_select(rp_isa_detected())->conv(&conv, given, x, 20, y[1], 20, 1);
    assert_memory_equal(y[0], y[1], sizeof y[0]);
}

/* The op in a graph: channels fewer than columns, weights as files have them, sequences shorter
 * than the kernel. */
static void convolution_op(void **state)
{
    (void)state;
    static const size_t lengths[] = {1, 2, 0, 7, 3, 40};
    enum { width = 21, channels = 18 };
    for (size_t kernel = 1; kernel <= RP_CONV_MAX_KERNEL; kernel++) {
        struct net n;
        struct family f;
        uint64_t seed = kernel;
        int32_t ids[64];
        net_begin(&n, 20 + kernel);
        const rp_embed_table table = {weight(&n, VOCABULARY, width, 1), RP_INDEX_IDS, 0};
        const float *x = n.arrays[0];
        const rp_value in = rp_graph_embed(n.graph, "in", 1, &table);
        const rp_conv conv = {weight(&n, channels, kernel, 1), weight(&n, 1, channels, 1),
                              RP_ACT_RELU};
        const float *w = n.arrays[1], *b = n.arrays[2];
        rp_graph_output(n.graph, "out", rp_graph_conv(n.graph, "conv", in, &conv), RP_ROWS_TOKENS,
                        channels);
        family_begin(&f);
        f.batch.parents = NULL;
        for (size_t s = 0; s < COUNT(lengths); s++) {
            random_ids(&seed, ids, lengths[s]);
            family_add(&f, ids, lengths[s], -1);
        }
        rp_session *s = make_session(&n, NULL, false);
        toy_run_ok(s, &f.batch);
        const rp_view out = view_of(s, "out");
        for (size_t seq = 0; seq < COUNT(lengths); seq++)
            for (size_t t = 0; t < lengths[seq]; t++)
                for (size_t c = 0; c < channels; c++) {
                    double sum = (double)b[c];
                    for (size_t i = 0; i < kernel; i++)
                        if (t + i + 1 >= kernel)
                            sum += (double)w[c * kernel + i] *
                                   (double)x[(size_t)f.ids[(size_t)f.cu[seq] + t + i + 1 - kernel] *
                                                 width +
                                             c];
                    sum = sum > 0 ? sum : 0;
                    const float got = out.data[((size_t)f.cu[seq] + t) * channels + c];
                    assert_true(fabs((double)got - sum) <= 1e-5);
                }
        rp_session_destroy(s);
        net_free(&n);
    }
}

/* ---- delta rules -------------------------------------------------------------------------------
 */

static double norm_of(const rp_gdn *p, const float *x)
{
    double sum = 0;
    for (int32_t i = 0; i < p->key_dim; i++)
        sum += (double)x[i] * (double)x[i];
    if (p->norm == RP_GDN_NORM_ROOT)
        return sqrt(sum + (double)p->eps);
    return p->norm == RP_GDN_NORM_MAX ? fmax(sqrt(sum), (double)p->eps) : 1;
}

/* One value head's row of a sequence, token by token; s is its state. */
static void delta_token(const rp_gdn *p, const float *q, const float *k, const float *v, double g,
                        double beta, double *s, double *out)
{
    const double scale = p->scale > 0 ? (double)p->scale : 1 / sqrt((double)p->key_dim);
    const double by_k = norm_of(p, k), by_q = norm_of(p, q) / scale;
    const int32_t m = p->value_dim;
    for (int32_t j = 0; j < m; j++) {
        double seen = 0;
        for (int32_t i = 0; i < p->key_dim; i++) {
            s[i * m + j] *= exp(g);
            seen += s[i * m + j] * (double)k[i] / by_k;
        }
        const double d = beta * ((double)v[j] - seen);
        out[j] = 0;
        for (int32_t i = 0; i < p->key_dim; i++) {
            s[i * m + j] += d * (double)k[i] / by_k;
            out[j] += s[i * m + j] * (double)q[i] / by_q;
        }
    }
}

/* The op over what two tables give, against the recurrence in float64. */
static void check_gdn(const rp_gdn *p, size_t spare, const size_t *lengths, size_t n_lengths)
{
    const size_t keys = (size_t)(p->n_key_heads * p->key_dim), heads = (size_t)p->n_value_heads;
    const size_t dim = (size_t)p->value_dim, width = 2 * keys + heads * dim + spare;
    const size_t ratio = heads / (size_t)p->n_key_heads;
    struct net n;
    struct family f;
    uint64_t seed = keys;
    int32_t ids[600];
    net_begin(&n, 30);
    const rp_embed_table tables[] = {
        {weight(&n, VOCABULARY, width, 1), RP_INDEX_IDS, 0},
        {weight(&n, VOCABULARY, 2 * heads, 1), RP_INDEX_IDS, 0},
    };
    float *gates = n.arrays[1];
    for (size_t i = 0; i < VOCABULARY * 2 * heads; i++)
        gates[i] = i % (2 * heads) < heads ? -2 * gates[i] * gates[i] : fabsf(gates[i]);
    const rp_value x = rp_graph_embed(n.graph, "x", 1, tables);
    const rp_value g = rp_graph_embed(n.graph, "gates", 1, tables + 1);
    rp_graph_output(n.graph, "out", rp_graph_gdn(n.graph, "core", x, g, p), RP_ROWS_TOKENS,
                    heads * dim);
    family_begin(&f);
    f.batch.parents = NULL;
    for (size_t s = 0; s < n_lengths; s++) {
        random_ids(&seed, ids, lengths[s]);
        family_add(&f, ids, lengths[s], -1);
    }
    rp_session *session = make_session(&n, NULL, false);
    toy_run_ok(session, &f.batch);
    const rp_view out = view_of(session, "out");
    double *s = malloc((size_t)p->key_dim * dim * sizeof *s), *y = malloc(dim * sizeof *y);
    double most = 0, worst = 0;
    assert_true(s && y);
    for (size_t seq = 0; seq < n_lengths; seq++)
        for (size_t h = 0; h < heads; h++) {
            const size_t key_head = p->map == RP_GDN_TILED ? h % (size_t)p->n_key_heads : h / ratio;
            memset(s, 0, (size_t)p->key_dim * dim * sizeof *s);
            for (size_t t = (size_t)f.cu[seq]; t < (size_t)f.cu[seq + 1]; t++) {
                const float *row = n.arrays[0] + (size_t)f.ids[t] * width;
                const float *gate = gates + (size_t)f.ids[t] * 2 * heads;
                delta_token(p, row + key_head * (size_t)p->key_dim,
                            row + keys + key_head * (size_t)p->key_dim, row + 2 * keys + h * dim,
                            (double)gate[h], (double)gate[heads + h], s, y);
                for (size_t j = 0; j < dim; j++) {
                    const double off = fabs((double)out.data[t * heads * dim + h * dim + j] - y[j]);
                    worst = off <= worst ? worst : off;
                    most = fmax(most, fabs(y[j]));
                }
            }
        }
    if (!(worst <= 2e-5 * most) || most == 0)
        fail_msg("off by %g, of %g at the most", worst, most);
    free(s);
    free(y);
    rp_session_destroy(session);
    net_free(&n);
}

static void delta_rule_op(void **state)
{
    (void)state;
    static const size_t lengths[] = {1, 3, 0, 31, 64, 65, 145, 257};
    static const rp_gdn cases[] = {
        {1, 1, 1, 1, RP_GDN_GROUPED, RP_GDN_NORM_ROOT, 1e-6f, 0},
        {2, 4, 7, 5, RP_GDN_GROUPED, RP_GDN_NORM_ROOT, 1e-6f, 0},
        {2, 4, 7, 5, RP_GDN_TILED, RP_GDN_NORM_MAX, 1e-3f, 0.7f},
        {3, 3, 16, 33, RP_GDN_TILED, RP_GDN_NORM_MAX, 1e-6f, 0},
        {1, 2, 48, 40, RP_GDN_GROUPED, RP_GDN_NORM_ROOT, 1e-6f, 1},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        check_gdn(&cases[i], i % 2 * 3, lengths, COUNT(lengths));
}

/* ---- the same bits -----------------------------------------------------------------------------
 */

/* Solo and in a batch of any order, whatever the threads, the bucket and who looks; what is not
 * written holds NaNs, so nothing leaks from past a sequence's end. */
static void same_bits(void (*make)(struct net *))
{
    static const size_t lengths[] = {3, 40, 1, 0, 130, 2, 33, 257};
    static struct family f;
    struct net n;
    make(&n);
    for (int threads = 1; threads <= 3; threads++)
        for (size_t turn = 0; turn < COUNT(lengths); turn += 5) {
            rp_pool *pool = toy_pool(threads);
            uint64_t hashes[128];
            rp_digest digest = {.struct_size = sizeof digest, .capacity = 128, .hashes = hashes};
            family_begin(&f);
            f.batch.parents = NULL;
            for (size_t s = 0; s < COUNT(lengths); s++) {
                const size_t len = lengths[(s + turn) % COUNT(lengths)];
                uint64_t seed = len;
                int32_t ids[257];
                random_ids(&seed, ids, len);
                family_add(&f, ids, len, -1);
            }
            rp_session *s = make_session(&n, pool, false), *alone = make_session(&n, NULL, false);
            toy_run_ok(s, &f.batch);
            check_sequences(s, alone, &f);
            assert_int_equal(rp_session_digest(s, &f.batch, &digest, NULL), RP_OK);
            check_sequences(s, alone, &f);
            rp_session_destroy(s);
            rp_session_destroy(alone);
            rp_pool_destroy(pool);
        }
    net_free(&n);
}

static void same_bits_in_any_batch(void **state)
{
    (void)state;
    same_bits(make_hybrid);
    same_bits(make_one_head);
    same_bits(make_mixed);
    same_bits(make_whole_decoder);
    same_bits(make_pruned_decoder);
}

/* Every step of a batch with parents, by the digest of all of them. */
static void same_digest(void (*make)(struct net *))
{
    const uint32_t levels[] = {RP_ISA_SCALAR, RP_ISA_AVX2, RP_ISA_AVX2 | RP_ISA_AVX512,
                               RP_ISA_NEON};
    static struct family f;
    struct net n;
    uint64_t want = 0;
    make(&n);
    make_families(&f, 5);
    for (size_t i = 0; i < COUNT(levels); i++) {
        if ((levels[i] & rp_isa_detected()) != levels[i])
            continue;
        rp_digest digest = {.struct_size = sizeof digest};
        rp_session_options o;
        rp_session *s;
        rp_session_options_init(&o);
        o.isa = levels[i];
        assert_int_equal(rp_session_create(n.graph, n.weights, &o, &s, NULL), RP_OK);
        assert_int_equal(rp_session_digest(s, &f.batch, &digest, NULL), RP_OK);
        want = want ? want : digest.whole;
        assert_int_equal(digest.whole, want);
        rp_session_destroy(s);
    }
    assert_int_not_equal(want, 0);
    net_free(&n);
}

static void same_bits_for_every_isa(void **state)
{
    (void)state;
    same_digest(make_hybrid);
    same_digest(make_whole_decoder);
    same_digest(make_pruned_window_decoder);
}

/* The state after the last row does not know what else is in the bucket: three tokens in a bucket
 * of sixty-four, and beside a text of forty. */
static void nothing_leaks_from_padding(void **state)
{
    (void)state;
    static struct family f;
    const int32_t ids[43] = {1, 2, 3, 4, 5};
    struct net n;
    make_hybrid(&n);
    rp_session *two = make_session(&n, NULL, false), *one = make_session(&n, NULL, false);
    family_begin(&f);
    family_add(&f, ids, 3, -1);
    family_add(&f, ids + 3, 40, -1);
    toy_run_ok(two, &f.batch);
    check_sequence(two, one, &f, 0);
    check_sequence(two, one, &f, 1);
    const rp_plan *plan;
    assert_int_equal(rp_session_plan(one, 3, 1, 1, &plan, NULL), RP_OK);
    rp_plan_sizes small, large;
    rp_plan_get_sizes(plan, &small);
    assert_int_equal(rp_session_plan(one, 65, 1, 1, &plan, NULL), RP_OK);
    rp_plan_get_sizes(plan, &large);
    assert_true(small.arena_bytes < large.arena_bytes); /* so it was the bucket of 64 */
    rp_session_destroy(two);
    rp_session_destroy(one);
    net_free(&n);
}

static void warm_runs_allocate_nothing(void **state)
{
    (void)state;
    static struct family f;
    struct net n;
    make_hybrid(&n);
    make_families(&f, 6);
    rp_pool *pool = toy_pool(2);
    rp_session *s = make_session(&n, pool, false);
    assert_int_equal(
        rp_session_reserve(s, (size_t)f.cu[f.batch.n_seqs], f.batch.n_seqs, f.batch.n_seqs, NULL),
        RP_OK);
    toy_run_ok(s, &f.batch);
    if (!alloc_count_available())
        skip();
    const size_t before = alloc_count();
    toy_run_ok(s, &f.batch);
    assert_int_equal(alloc_count(), before);
    rp_session_destroy(s);
    rp_pool_destroy(pool);
    net_free(&n);
}

/* ---- counting and texts ------------------------------------------------------------------------
 */

/* What the profile of one worker counts is what the plan says of the batch. */
static void profile_counts(void (*make)(struct net *))
{
    static struct family f;
    struct net n;
    make(&n);
    make_families(&f, 7);
    rp_session *s = make_session(&n, NULL, false);
    assert_int_equal(rp_session_profile_start(s, 0, NULL), RP_OK);
    toy_run_ok(s, &f.batch);
    rp_profile profile = {.struct_size = sizeof profile};
    const rp_plan *plan;
    assert_int_equal(rp_session_profile(s, &profile, NULL), RP_OK);
    assert_int_equal(rp_session_plan(s, (size_t)f.cu[f.batch.n_seqs], f.batch.n_seqs,
                                     f.batch.n_seqs, &plan, NULL),
                     RP_OK);
    uint64_t counted = 0;
    for (size_t i = 0; i < profile.n_steps; i++) {
        rp_step_info info;
        assert_int_equal(rp_plan_step(plan, i, &info), RP_OK);
        const bool counts = strcmp(info.kind, "gemm") == 0 || strcmp(info.kind, "conv") == 0 ||
                            strcmp(info.kind, "gdn") == 0 || strcmp(info.kind, "attention") == 0;
        counted += counts ? profile.steps[i].flops : 0;
        if (strcmp(info.kind, "conv") == 0) /* 117 channels, kernel 4 */
            assert_int_equal(profile.steps[i].flops, 2 * 4 * 117 * (uint64_t)f.cu[f.batch.n_seqs]);
    }
    assert_int_equal(counted, rp_plan_flops(plan, &f.batch));
    rp_session_destroy(s);
    net_free(&n);
}

static void profiles_count_what_runs(void **state)
{
    (void)state;
    profile_counts(make_hybrid);
    profile_counts(make_whole_decoder);
    profile_counts(make_pruned_decoder);
    profile_counts(make_pruned_window_decoder);
}

/* A row alone: q k^T and k S, q S, then the state and the output. */
static void flops_of_a_row(void **state)
{
    (void)state;
    struct net n;
    struct family f;
    const int32_t id = 1;
    const rp_plan *plan;
    make_gdn(&n);
    rp_session *s = make_session(&n, NULL, false);
    assert_int_equal(rp_session_plan(s, 1, 1, 1, &plan, NULL), RP_OK);
    family_begin(&f);
    family_add(&f, &id, 1, -1);
    const uint64_t gates = 2 * 26 * 4, head = 2 * 10 * 9;
    assert_int_equal(rp_plan_flops(plan, &f.batch), gates + head + 2 * (2 * 4 + 10 * (3 * 4 + 1)));
    rp_session_destroy(s);
    net_free(&n);
}

static void texts_name_the_options(void **state)
{
    (void)state;
    static const char *const of_graph[] = {"= conv \"conv\" %0 act=none w=w[19,8]",
                                           "= conv \"conv\" %1 act=silu w=w[",
                                           ("= gdn \"core\" %2 %4 keys=1x16 values=3x33 map=tiled "
                                            "norm=max eps=9.99999997e-07 scale=0.5")};
    static const char *const of_plan[] = {" kernel=8 act=none ", " kernel=4 act=silu ",
                                          " keys=1x16 values=3x33 "};
    static char text[8192];
    for (int i = 0; i < 3; i++) {
        struct net n;
        rp_plan *plan;
        const rp_bucket bucket = {16, 2, 2};
        if (i)
            make_one_head(&n);
        else
            make_conv(&n);
        assert_true(rp_graph_text(n.graph, n.weights, text, sizeof text) < sizeof text);
        if (!strstr(text, of_graph[i]))
            fail_msg("no %s in %s", of_graph[i], text);
        assert_int_equal(rp_plan_compile(n.graph, n.weights, &bucket, NULL, &plan, NULL), RP_OK);
        assert_true(rp_plan_text(plan, text, sizeof text) < sizeof text);
        if (!strstr(text, of_plan[i]))
            fail_msg("no %s in %s", of_plan[i], text);
        rp_plan_destroy(plan);
        net_free(&n);
    }
}

/* ---- refusals ----------------------------------------------------------------------------------
 */

static void refuse(const struct net *n, const rp_batch *batch, rp_status status, const char *words)
{
    rp_error err = {RP_OK, ""};
    rp_session *s = make_session(n, NULL, false);
    assert_int_equal(rp_session_run(s, batch, &err), status);
    if (strcmp(err.message, words) != 0)
        fail_msg("\"%s\", expected \"%s\"", err.message, words);
    rp_session_destroy(s);
}

static void parents_that_are_none(void **state)
{
    (void)state;
    static const struct {
        int32_t parents[4];
        const char *words;
    } cases[] = {
        {{-1, 0, 4, -1}, "sequence 2: there is no sequence 4 to be its parent, of 4"},
        {{-2, 0, 0, -1}, "sequence 0: there is no sequence -2 to be its parent, of 4"},
        {{0, -1, -1, -1}, "sequence 0: its parent 0 does not come before it"},
        {{-1, 2, -1, -1}, "sequence 1: its parent 2 does not come before it"},
        {{-1, 0, 1, -1}, "sequence 2: its parent 1 has a parent itself, 0"},
        {{-1, -1, -1, 0}, "sequence 3 has a parent, 0, and no tokens of its own"},
    };
    const int32_t ids[] = {1, 2, 3};
    struct family f;
    struct net n;
    make_plain(&n);
    for (size_t i = 0; i < COUNT(cases); i++) {
        family_begin(&f);
        for (size_t s = 0; s < 4; s++)
            family_add(&f, ids, 3 - s, cases[i].parents[s]);
        refuse(&n, &f.batch, RP_ERR_INVALID, cases[i].words);
    }
    net_free(&n);
}

/* The pooling of first rows is a gather, the rest of what leads to it being pruned. */
static void ops_that_take_no_parents(void **state)
{
    (void)state;
    const int32_t ids[] = {1, 2, 3};
    for (int op = 0; op < 3; op++) {
        struct family f;
        struct net n;
        net_begin(&n, 1);
        rp_value x = product(&n, "up", embedding(&n, 24), 24, 24);
        const rp_attention attention = {.n_heads = 2, .head_dim = 4, .rel_bias = -1};
        if (op == 0)
            x = rp_graph_attention(n.graph, "attn", x, &attention);
        const rp_pooling pooling = op == 0 ? RP_POOL_LAST : op == 1 ? RP_POOL_CLS : RP_POOL_MEAN;
        x = rp_graph_pool(n.graph, "pool", x, pooling);
        rp_graph_output(n.graph, "out", x, RP_ROWS_SEQS, op ? 24 : 8);
        family_begin(&f);
        family_add(&f, ids, 3, -1);
        family_add(&f, ids, 3, 0);
        static const char *const words[] = {
            "op 2 (attn): sequences have parents, and attention that is not causal cannot take "
            "their rows",
            "op 2 (pool): sequences have parents, and pooling of the first row cannot take their "
            "rows",
            "op 2 (pool): sequences have parents, and pooling of other rows than the last cannot "
            "take their rows"};
        refuse(&n, &f.batch, RP_ERR_UNSUPPORTED, words[op]);
        f.parents[1] = -1; /* nobody has one */
        rp_session *s = make_session(&n, NULL, false);
        toy_run_ok(s, &f.batch);
        rp_session_destroy(s);
        net_free(&n);
    }
}

/* Two sequences, the second of another type and with the first as its parent, in a graph that adds
 * types to rows of tokens before or behind attention. */
static void parents_of_another_type(void **state)
{
    (void)state;
    enum { BEFORE, BY_TABLE, BEHIND, NOWHERE, CASES };
    const int32_t ids[] = {1, 2, 3}, types[] = {1, 0}, equal[] = {1, 1};
    for (int which = 0; which < CASES; which++) {
        struct family f;
        struct net n;
        rp_error err = {RP_OK, ""};
        net_begin(&n, 1);
        rp_value x = embedding(&n, 24);
        const rp_weight table = weight(&n, 2, 24, 1);
        if (which == BY_TABLE) {
            const rp_embed_table by_type = {table, RP_INDEX_QTYPES, 0};
            x = rp_graph_add(n.graph, "sum", x, rp_graph_embed(n.graph, "types", 1, &by_type));
        }
        if (which == BEFORE)
            x = rp_graph_add_types(n.graph, "types", x, table);
        x = decoder_layer(&n, x, 0);
        if (which == BEHIND)
            x = rp_graph_add_types(n.graph, "types", x, table);
        outputs(&n, x, 24);
        family_begin(&f);
        family_add(&f, ids, 3, -1);
        family_add(&f, ids, 3, 0);
        for (int no_prune = 0; no_prune < 2; no_prune++) {
            rp_session_options o;
            rp_session *s;
            rp_session_options_init(&o);
            o.no_prune = no_prune;
            assert_int_equal(rp_session_create(n.graph, n.weights, &o, &s, NULL), RP_OK);
            f.batch.qtypes = types;
            assert_int_equal(rp_session_run(s, &f.batch, &err),
                             which < BEHIND ? RP_ERR_INVALID : RP_OK);
            if (which < BEHIND)
                assert_string_equal(err.message,
                                    "sequence 1 is of question type 0, and its parent 0 of type 1: "
                                    "rows of tokens depend on it");
            f.batch.qtypes = equal;
            toy_run_ok(s, &f.batch);
            rp_session_destroy(s);
        }
        net_free(&n);
    }
}

/* What compiling a graph of one op says. */
static void refuse_graph(struct net *n, rp_value v, rp_status status, const char *words)
{
    const rp_bucket bucket = {16, 2, 2};
    rp_error err = {RP_OK, ""};
    rp_plan *plan;
    rp_graph_output(n->graph, "out", v, RP_ROWS_TOKENS, 8);
    assert_int_equal(rp_plan_compile(n->graph, n->weights, &bucket, NULL, &plan, &err), status);
    if (strcmp(err.message, words) != 0)
        fail_msg("\"%s\", expected \"%s\"", err.message, words);
    net_free(n);
}

static void convolutions_that_are_none(void **state)
{
    (void)state;
    static const struct {
        size_t rows, cols, bias;
        rp_activation activation;
        rp_status status;
        const char *words;
    } cases[] = {
        {8, 9, 8, RP_ACT_NONE, RP_ERR_SHAPE,
         "op 1 (conv): conv weight w is [8, 9], expected a kernel of 1 to 8"},
        {13, 4, 13, RP_ACT_NONE, RP_ERR_SHAPE,
         "op 1 (conv): its input has width 12, expected at least 13, the channels of w"},
        {8, 4, 9, RP_ACT_NONE, RP_ERR_SHAPE, "op 1 (conv): conv bias w is [1, 9], expected [1, 8]"},
        {8, 4, 8, (rp_activation)77, RP_ERR_INVALID, "op 1 (conv): there is no activation 77"},
    };
    for (size_t i = 0; i <= COUNT(cases) + 1; i++) {
        const size_t k = i < COUNT(cases) ? i : 0;
        struct net n;
        net_begin(&n, 1);
        rp_value x = embedding(&n, 12);
        rp_conv conv = {weight(&n, cases[k].rows, cases[k].cols, 1),
                        weight(&n, 1, cases[k].bias, 1), cases[k].activation};
        if (i == COUNT(cases))
            conv.w = 99;
        if (i > COUNT(cases))
            x = rp_graph_pool(n.graph, "pool", x, RP_POOL_LAST);
        refuse_graph(&n, rp_graph_conv(n.graph, "conv", x, &conv),
                     i == COUNT(cases)  ? RP_ERR_INVALID
                     : i > COUNT(cases) ? RP_ERR_SHAPE
                                        : cases[k].status,
                     i == COUNT(cases) ? "op 1 (conv): there is no weight 99 for conv weight"
                     : i > COUNT(cases)
                         ? "op 2 (conv): its input has a row per seqs, expected tokens"
                         : cases[k].words);
    }
}

static void delta_rules_that_are_none(void **state)
{
    (void)state;
    static const struct {
        rp_gdn gdn;
        size_t gates;
        rp_status status;
        const char *words;
    } cases[] = {
        {{2, 3, 2, 2, 0, 0, 0, 0},
         6,
         RP_ERR_INVALID,
         "op 2 (core): 3 value heads are no multiple of 2 key heads"},
        {{0, 3, 2, 2, 0, 0, 0, 0},
         6,
         RP_ERR_INVALID,
         "op 2 (core): 0 key heads of 2, 3 value heads of 2, expected at least 1 of 1"},
        {{1, 2, -1, 2, 0, 0, 0, 0},
         4,
         RP_ERR_INVALID,
         "op 2 (core): 1 key heads of -1, 2 value heads of 2, expected at least 1 of 1"},
        {{1, 2, 2, 2, (rp_gdn_map)2, 0, 0, 0},
         4,
         RP_ERR_INVALID,
         "op 2 (core): there is no map 2 of heads"},
        {{1, 2, 2, 2, 0, (rp_gdn_norm)3, 0, 0},
         4,
         RP_ERR_INVALID,
         "op 2 (core): there is no norm 3 of queries and keys"},
        {{1, 2, 2, 2, 0, 0, -1, 0},
         4,
         RP_ERR_INVALID,
         "op 2 (core): eps must be finite and not negative"},
        {{1, 2, 2, 2, 0, RP_GDN_NORM_MAX, 0, 0},
         4,
         RP_ERR_INVALID,
         "op 2 (core): its norm needs an eps that is not denormal nor too small for the scale"},
        {{1, 2, 2, 2, 0, RP_GDN_NORM_MAX, 1e-20f, 1e20f},
         4,
         RP_ERR_INVALID,
         "op 2 (core): its norm needs an eps that is not denormal nor too small for the scale"},
        {{1, 2, 2, 2, 0, 0, 0, INFINITY},
         4,
         RP_ERR_INVALID,
         "op 2 (core): scale must be finite and not negative"},
        {{2, 2, 2, 3, 0, 0, 0, 0},
         4,
         RP_ERR_SHAPE,
         "op 2 (core): qkv has width 12, expected at least 14 (2 x 2 heads of 2, 2 of 3)"},
        {{2, 2, 2, 2, 0, 0, 0, 0},
         5,
         RP_ERR_SHAPE,
         "op 2 (core): gates are tokens x 5, expected tokens x 4"},
        {{1 << 16, 1 << 16, 1 << 16, 1 << 16, 0, 0, 0, 0},
         4,
         RP_ERR_SHAPE,
         "op 2 (core): qkv has width 12, expected at least 12884901888 (2 x 65536 heads of 65536, "
         "65536 of 65536)"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct net n;
        net_begin(&n, 1);
        const rp_value x = embedding(&n, 12), gates = embedding(&n, cases[i].gates);
        refuse_graph(&n, rp_graph_gdn(n.graph, "core", x, gates, &cases[i].gdn), cases[i].status,
                     cases[i].words);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(children_of_rows),
        cmocka_unit_test(children_of_decoders),
        cmocka_unit_test(children_of_convolutions),
        cmocka_unit_test(children_of_delta_rules),
        cmocka_unit_test(children_of_hybrids),
        cmocka_unit_test(convolution_kernels),
        cmocka_unit_test(rows_that_are_not_there_are_zeros),
        cmocka_unit_test(convolution_op),
        cmocka_unit_test(delta_rule_op),
        cmocka_unit_test(same_bits_in_any_batch),
        cmocka_unit_test(same_bits_for_every_isa),
        cmocka_unit_test(nothing_leaks_from_padding),
        cmocka_unit_test(warm_runs_allocate_nothing),
        cmocka_unit_test(profiles_count_what_runs),
        cmocka_unit_test(flops_of_a_row),
        cmocka_unit_test(texts_name_the_options),
        cmocka_unit_test(convolutions_that_are_none),
        cmocka_unit_test(delta_rules_that_are_none),
        cmocka_unit_test(parents_that_are_none),
        cmocka_unit_test(ops_that_take_no_parents),
        cmocka_unit_test(parents_of_another_type),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
