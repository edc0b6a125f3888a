/* The toy encoder. */
#include "tests/toy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef XXH_INLINE_ALL
#define XXH_INLINE_ALL
#endif
#include <xxhash.h>

uint64_t toy_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

float toy_uniform(uint64_t *state)
{
    return (float)((int64_t)(toy_random(state) >> 40) - (1 << 23)) * 0x1p-23f;
}

void toy_options_init(struct toy_options *o)
{
    *o = (struct toy_options){.layers = 2,
                              .heads = 3,
                              .head_dim = 16,
                              .intermediate = 100,
                              .vocabulary = 50,
                              .positions = 600,
                              .seed = 1,
                              .activation = RP_ACT_GELU};
}

static rp_weight weight(struct toy *t, const char *name, size_t rows, size_t cols, float scale,
                        float offset)
{
    float *data = malloc(rows * cols * sizeof *data);
    assert_non_null(data);
    for (size_t i = 0; i < rows * cols; i++)
        data[i] = toy_uniform(&t->state) * scale + offset;
    if (t->n_arrays == t->cap_arrays) {
        t->cap_arrays = t->cap_arrays ? 2 * t->cap_arrays : 64;
        t->arrays = realloc(t->arrays, t->cap_arrays * sizeof *t->arrays);
        assert_non_null(t->arrays);
    }
    t->arrays[t->n_arrays++] = data;
    const rp_weight_part part = {.rows = rows, .dtype = RP_DTYPE_F32, .data = data};
    rp_weight w;
    assert_int_equal(rp_weights_add(t->weights, name, cols, 1, &part, &w, NULL), RP_OK);
    return w;
}

static const char *join(char *to, size_t layer, const char *name)
{
    snprintf(to, 64, "layers.%zu.%s", layer, name);
    return to;
}

static rp_value norm(struct toy *t, const char *name, rp_value x, size_t width, bool bias)
{
    char w[80], b[80];
    snprintf(w, sizeof w, "%s.w", name);
    snprintf(b, sizeof b, "%s.b", name);
    /* One after the other: the order in which arguments are evaluated is the compiler's. */
    const rp_weight scale = weight(t, w, 1, width, 0.2f, 1);
    const rp_weight shift = bias ? weight(t, b, 1, width, 0.1f, 0) : -1;
    return rp_graph_layer_norm(t->graph, name, x, scale, shift, 1e-5f);
}

static rp_value linear(struct toy *t, const char *name, rp_value x, size_t n, size_t k,
                       rp_activation act, rp_value residual, bool bias)
{
    char w[80], b[80];
    snprintf(w, sizeof w, "%s.w", name);
    snprintf(b, sizeof b, "%s.b", name);
    const rp_weight weights = weight(t, w, n, k, 0.3f, 0);
    const rp_weight shift = bias ? weight(t, b, 1, n, 0.1f, 0) : -1;
    return rp_graph_gemm(t->graph, name, x, weights, shift, act, residual);
}

/* q and k, turned by positions: bases and layouts by turns, so that a plan has several tables. */
static rp_value turned(struct toy *t, const struct toy_options *o, rp_value qkv, size_t l)
{
    static const double given[] = {1, 0.5, 0.25, 0.125};
    char name[64];
    rp_rope rope = {.n_heads = 2 * (int32_t)o->heads,
                    .head_dim = (int32_t)o->head_dim,
                    .n_rotated = (int32_t)(o->head_dim / 2 * 2),
                    .interleaved = l % 2,
                    .theta = l % 3 ? 100 : 10000};
    if (o->head_dim < 2)
        return qkv;
    if (l % 3 == 2 && o->head_dim >= 8) {
        rope.n_rotated = 8;
        rope.inv_freq = given;
        rope.scale = 1.25;
    }
    return rp_graph_rope(t->graph, join(name, l, "attn.rope"), qkv, &rope);
}

/* The half of the ffn that widens; its value has `intermediate` columns. */
static rp_value widened(struct toy *t, const struct toy_options *o, rp_value y, size_t l, bool bias)
{
    char name[64];
    if (!o->gated)
        return linear(t, join(name, l, "ffn.up"), y, o->intermediate, t->width, o->activation, -1,
                      bias);
    y = linear(t, join(name, l, "ffn.up"), y, 2 * o->intermediate, t->width, RP_ACT_NONE, -1, bias);
    return rp_graph_glu(t->graph, join(name, l, "ffn.gate"), y, o->activation);
}

static rp_value layer(struct toy *t, const struct toy_options *o, rp_value x, size_t l,
                      rp_weight rel)
{
    char name[64];
    const size_t h = t->width;
    const bool post = !o->pre_norm;
    const rp_attention attention = {.n_heads = (int32_t)o->heads,
                                    .head_dim = (int32_t)o->head_dim,
                                    .rel_bias = rel,
                                    .rel_max_distance = 128,
                                    .window = l % 3 ? (int32_t)o->window : 0};
    rp_value y = post ? x : norm(t, join(name, l, "attn.norm"), x, h, false);
    y = linear(t, join(name, l, "attn.qkv"), y, 3 * h, h, RP_ACT_NONE, -1, post);
    if (o->gated)
        y = turned(t, o, y, l);
    y = rp_graph_attention(t->graph, join(name, l, "attn.core"), y, &attention);
    x = linear(t, join(name, l, "attn.out"), y, h, h, RP_ACT_NONE, x, post);
    if (post)
        x = norm(t, join(name, l, "attn.norm"), x, h, true);
    y = post ? x : norm(t, join(name, l, "ffn.norm"), x, h, false);
    y = widened(t, o, y, l, post);
    x = linear(t, join(name, l, "ffn.down"), y, h, o->intermediate, RP_ACT_NONE, x, post);
    return post ? norm(t, join(name, l, "ffn.norm"), x, h, true) : x;
}

void toy_make(struct toy *t, const struct toy_options *o)
{
    memset(t, 0, sizeof *t);
    t->state = o->seed;
    t->width = o->heads * o->head_dim;
    t->vocabulary = o->vocabulary;
    assert_int_equal(rp_graph_create(&t->graph, NULL), RP_OK);
    assert_int_equal(rp_weights_create(&t->weights, NULL), RP_OK);
    const rp_weight word = weight(t, "word", o->vocabulary, t->width, 1, 0);
    const rp_weight position = weight(t, "position", o->positions, t->width, 0.5f, 0);
    const rp_weight segment = weight(t, "segment", 2, t->width, 0.5f, 0);
    const rp_embed_table tables[] = {
        {word, RP_INDEX_IDS, 0}, {position, RP_INDEX_POSITION, 0}, {segment, RP_INDEX_TYPES, 0}};
    const rp_weight rel =
        o->rel_buckets ? weight(t, "rel", o->rel_buckets, o->heads, 1, 0) : (rp_weight)-1;
    rp_value x = rp_graph_embed(t->graph, "embeddings.sum", 3, tables);
    x = norm(t, "embeddings.norm", x, t->width, true);
    for (size_t l = 0; l < o->layers; l++)
        x = layer(t, o, x, l, rel);
    rp_graph_output(t->graph, "last", x, RP_ROWS_TOKENS, t->width);
    rp_value e = rp_graph_pool(t->graph, "pool", x, RP_POOL_MEAN);
    e = rp_graph_l2_norm(t->graph, "normalize", e, 1e-12f);
    rp_graph_output(t->graph, "embedding", e, RP_ROWS_SEQS, t->width);
    rp_value m = rp_graph_gather_markers(t->graph, "markers", x);
    m = linear(t, "marked", m, 5, t->width, RP_ACT_TANH, -1, true);
    rp_graph_output(t->graph, "marked", m, RP_ROWS_MARKERS, 5);
}

void toy_free(struct toy *t)
{
    for (size_t i = 0; i < t->n_arrays; i++)
        free(t->arrays[i]);
    free(t->arrays);
    rp_graph_destroy(t->graph);
    rp_weights_destroy(t->weights);
    memset(t, 0, sizeof *t);
}

void toy_batch_make(struct toy_batch *b, const size_t *lengths, size_t n, size_t vocabulary,
                    uint64_t seed)
{
    size_t tokens = 0, markers = 0;
    for (size_t i = 0; i < n; i++)
        tokens += lengths[i];
    memset(b, 0, sizeof *b);
    b->ids = calloc(tokens + 1, sizeof *b->ids);
    b->types = calloc(tokens + 1, sizeof *b->types);
    b->cu = calloc(n + 1, sizeof *b->cu);
    b->mcu = calloc(n + 1, sizeof *b->mcu);
    b->markers = calloc(2 * n + 1, sizeof *b->markers);
    assert_true(b->ids && b->types && b->cu && b->mcu && b->markers);
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        /* A sequence's ids depend on its length and the seed alone, so the same text can stand in
         * other batches. */
        uint64_t state = seed + 1000 * lengths[i];
        for (size_t t = 0; t < lengths[i]; t++, at++) {
            b->ids[at] = (int32_t)(toy_random(&state) % vocabulary);
            b->types[at] = t > lengths[i] / 2;
        }
        b->cu[i + 1] = (int32_t)at;
        for (size_t m = 0; lengths[i] && m < i % 3; m++)
            b->markers[markers++] = (int32_t)(toy_random(&state) % lengths[i]);
        b->mcu[i + 1] = (int32_t)markers;
    }
    rp_batch_init(&b->batch);
    b->batch.n_seqs = n;
    b->batch.ids = b->ids;
    b->batch.cu = b->cu;
    b->batch.type_ids = b->types;
    b->batch.markers = b->markers;
    b->batch.mcu = b->mcu;
}

void toy_batch_free(struct toy_batch *b)
{
    free(b->ids);
    free(b->types);
    free(b->cu);
    free(b->mcu);
    free(b->markers);
    memset(b, 0, sizeof *b);
}

rp_pool *toy_pool(int n_threads)
{
    rp_pool_options o;
    rp_pool *pool;
    rp_pool_options_init(&o);
    o.n_threads = n_threads;
    assert_int_equal(rp_pool_create(&o, &pool, NULL), RP_OK);
    return pool;
}

uint64_t toy_hash_outputs(rp_session *session)
{
    static const char *const names[] = {"embedding", "last", "marked"};
    XXH3_state_t h;
    XXH3_64bits_reset(&h);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        rp_view v;
        assert_int_equal(rp_session_output(session, names[i], &v, NULL), RP_OK);
        XXH3_64bits_update(&h, v.data, v.rows * v.width * sizeof(float));
    }
    return XXH3_64bits_digest(&h);
}

rp_session *toy_session(const struct toy *toy, rp_pool *pool, uint32_t isa, bool no_fuse)
{
    rp_session_options o;
    rp_session *s;
    rp_session_options_init(&o);
    o.pool = pool;
    o.isa = isa;
    o.no_fuse = no_fuse;
    o.poison = true;
    assert_int_equal(rp_session_create(toy->graph, toy->weights, &o, &s, NULL), RP_OK);
    return s;
}

void toy_run_ok(rp_session *session, const rp_batch *batch)
{
    rp_error err = {RP_OK, ""};
    if (rp_session_run(session, batch, &err) != RP_OK)
        fail_msg("%s", err.message);
}
