/* What runs along a sequence (convolutions, delta rules) and sequences that begin where a parent
 * ends: a child's rows have the bits of the same rows of the sequence that was never cut, whatever
 * the batch, the threads, the bucket and who looks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/alloc_count.h"
#include "tests/toy.h"

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

/* Every row of x, and the last ones of what another product makes of it, which are read alone. */
static void outputs(struct net *n, rp_value x, size_t width)
{
    rp_graph_output(n->graph, "rows", x, RP_ROWS_TOKENS, width);
    const rp_value head = product(n, "head", x, width, 9);
    rp_graph_output(n->graph, "last", rp_graph_pool(n->graph, "pool", head, RP_POOL_LAST),
                    RP_ROWS_SEQS, 9);
    const rp_value marked = rp_graph_gather_markers(n->graph, "marked", x);
    rp_graph_output(n->graph, "marked", marked, RP_ROWS_MARKERS, width);
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
    assert_rows(ran, "rows", (size_t)f->cu[s], alone, before, own);
    assert_rows(ran, "last", s, alone, 0, 1);
    if (own)
        assert_rows(ran, "marked", (size_t)f->mcu[s], alone, 0, 1);
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
        for (size_t i = 0; i < f.batch.n_seqs; i++)
            check_sequence(s, alone, &f, i);
        rp_session_destroy(s);
        rp_session_destroy(alone);
        rp_pool_destroy(pool);
    }
    net_free(&n);
}

static void plain_children(void **state)
{
    (void)state;
    children_are_as_if_uncut(make_plain);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_children),
        cmocka_unit_test(parents_that_are_none),
        cmocka_unit_test(ops_that_take_no_parents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
