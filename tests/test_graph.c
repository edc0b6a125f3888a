/* Lowering's checks: each complaint, word for word, with the op's index and the numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "plan/graph.h"
#include "tests/toy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const float numbers[64 * 64];

struct fixture {
    rp_graph *graph;
    rp_weights *weights;
};

static rp_weight add(struct fixture *f, const char *name, size_t rows, size_t cols)
{
    const rp_weight_part part = {.rows = rows, .dtype = RP_DTYPE_F32, .data = numbers};
    rp_weight w;
    assert_int_equal(rp_weights_add(f->weights, name, cols, 1, &part, &w, NULL), RP_OK);
    return w;
}

static int make(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    assert_int_equal(rp_graph_create(&f->graph, NULL), RP_OK);
    assert_int_equal(rp_weights_create(&f->weights, NULL), RP_OK);
    *state = f;
    return 0;
}

static int unmake(void **state)
{
    struct fixture *f = *state;
    rp_graph_destroy(f->graph);
    rp_weights_destroy(f->weights);
    free(f);
    return 0;
}

/* tokens x width */
static rp_value tokens(struct fixture *f, size_t width)
{
    const rp_embed_table table = {add(f, "word", 10, width), RP_INDEX_IDS, 0};
    return rp_graph_embed(f->graph, "embed", 1, &table);
}

/* Both ways of lowering refuse with the same words, and leave *out alone. */
static void refuses(struct fixture *f, rp_status status, const char *message)
{
    const rp_bucket bucket = {32, 4, 4};
    rp_error err = {RP_OK, ""};
    rp_plan *plan = (rp_plan *)f;
    rp_plan_sizes sizes;
    assert_int_equal(rp_plan_compile(f->graph, f->weights, &bucket, NULL, &plan, &err), status);
    assert_string_equal(err.message, message);
    assert_int_equal(err.status, status);
    assert_ptr_equal(plan, f);
    assert_int_equal(rp_plan_measure(f->graph, f->weights, &bucket, NULL, &sizes, &err), status);
    assert_string_equal(err.message, message);
    assert_int_equal(rp_plan_compile(f->graph, f->weights, &bucket, NULL, &plan, NULL), status);
}

static void gemm_weight_shape(void **state)
{
    struct fixture *f = *state;
    const rp_value x = tokens(f, 8);
    rp_graph_gemm(f->graph, "layers.0.attn.qkv", x, add(f, "qkv.weight", 24, 9), -1, RP_ACT_NONE,
                  -1);
    refuses(f, RP_ERR_SHAPE,
            "op 1 (layers.0.attn.qkv): gemm weight qkv.weight is [24, 9], expected [24, 8]");
}

static void gemm_bias_shape(void **state)
{
    struct fixture *f = *state;
    const rp_value x = tokens(f, 8);
    rp_graph_gemm(f->graph, "g", x, add(f, "w", 24, 8), add(f, "b", 1, 23), RP_ACT_NONE, -1);
    refuses(f, RP_ERR_SHAPE, "op 1 (g): gemm bias b is [1, 23], expected [1, 24]");
}

static void gemm_residual_shape(void **state)
{
    struct fixture *f = *state;
    const rp_value x = tokens(f, 8);
    rp_graph_gemm(f->graph, "g", x, add(f, "w", 24, 8), -1, RP_ACT_NONE, x);
    refuses(f, RP_ERR_SHAPE, "op 1 (g): residual is tokens x 8, expected tokens x 24");
}

static void unknown_weight(void **state)
{
    struct fixture *f = *state;
    rp_graph_gemm(f->graph, "g", tokens(f, 8), 77, -1, RP_ACT_NONE, -1);
    refuses(f, RP_ERR_INVALID, "op 1 (g): there is no weight 77 for gemm weight");
}

static void unknown_norm_weight(void **state)
{
    struct fixture *f = *state;
    rp_graph_layer_norm(f->graph, "n", tokens(f, 8), -1, -1, 1e-5f);
    refuses(f, RP_ERR_INVALID, "op 1 (n): there is no weight -1 for layer_norm weight");
}

static void norm_shape(void **state)
{
    struct fixture *f = *state;
    rp_graph_layer_norm(f->graph, "n", tokens(f, 8), add(f, "w", 1, 7), -1, 1e-5f);
    refuses(f, RP_ERR_SHAPE, "op 1 (n): layer_norm weight w is [1, 7], expected [1, 8]");
}

static void norm_eps(void **state)
{
    struct fixture *f = *state;
    rp_graph_layer_norm(f->graph, "n", tokens(f, 8), add(f, "w", 1, 8), -1, -1.0f);
    refuses(f, RP_ERR_INVALID, "op 1 (n): eps must be finite and not negative");
}

static void value_from_later(void **state)
{
    struct fixture *f = *state;
    tokens(f, 8);
    rp_graph_layer_norm(f->graph, "n", 1, add(f, "w", 1, 8), -1, 1e-5f);
    refuses(f, RP_ERR_INVALID, "op 1 (n): input 0 is value 1, expected one made before it");
}

static void embed_widths(void **state)
{
    struct fixture *f = *state;
    const rp_embed_table tables[] = {{add(f, "word", 10, 8), RP_INDEX_IDS, 0},
                                     {add(f, "pos", 10, 9), RP_INDEX_POSITION, 0}};
    rp_graph_embed(f->graph, "e", 2, tables);
    refuses(f, RP_ERR_SHAPE, "op 0 (e): table pos is [10, 9], expected width 8");
}

static void embed_counts(void **state)
{
    struct fixture *f = *state;
    const rp_embed_table tables[5] = {{0, RP_INDEX_IDS, 0}};
    rp_graph_embed(f->graph, "e", 5, tables);
    refuses(f, RP_ERR_INVALID, "op 0 (e): 5 tables, expected 1 to 4");
}

static void attention_width(void **state)
{
    struct fixture *f = *state;
    const rp_attention a = {.n_heads = 2, .head_dim = 4, .rel_bias = -1};
    rp_graph_attention(f->graph, "a", tokens(f, 23), &a);
    refuses(f, RP_ERR_SHAPE, "op 1 (a): qkv has width 23, expected 24 (3 x 2 heads of 4)");
}

static void attention_heads(void **state)
{
    struct fixture *f = *state;
    const rp_attention a = {.n_heads = 0, .head_dim = 4, .rel_bias = -1};
    rp_graph_attention(f->graph, "a", tokens(f, 24), &a);
    refuses(f, RP_ERR_INVALID, "op 1 (a): 0 heads of 4, expected at least 1 of 1");
}

static void attention_rows(void **state)
{
    struct fixture *f = *state;
    const rp_attention a = {.n_heads = 1, .head_dim = 8, .rel_bias = -1};
    const rp_value p = rp_graph_pool(f->graph, "p", tokens(f, 24), RP_POOL_CLS);
    rp_graph_attention(f->graph, "a", p, &a);
    refuses(f, RP_ERR_SHAPE, "op 2 (a): its input has a row per seqs, expected tokens");
}

static void attention_window(void **state)
{
    struct fixture *f = *state;
    const rp_attention a = {.n_heads = 2, .head_dim = 4, .rel_bias = -1, .window = -1};
    rp_graph_attention(f->graph, "a", tokens(f, 24), &a);
    refuses(f, RP_ERR_INVALID, "op 1 (a): window is -1, expected 0 (none) or more");
}

static rp_plan *plan_with_window(int32_t window, size_t tokens_of_bucket)
{
    struct fixture *f;
    void *state;
    rp_plan *plan;
    assert_int_equal(make(&state), 0);
    f = state;
    const rp_attention a = {.n_heads = 2, .head_dim = 4, .rel_bias = -1, .window = window};
    rp_graph_output(f->graph, "y", rp_graph_attention(f->graph, "a", tokens(f, 24), &a),
                    RP_ROWS_TOKENS, 8);
    const rp_bucket bucket = {tokens_of_bucket, 4, 0};
    assert_int_equal(rp_plan_compile(f->graph, f->weights, &bucket, NULL, &plan, NULL), RP_OK);
    unmake(&state);
    return plan;
}

/* What a window costs: operations of the keys that are seen, scratch that does not know the
 * length. */
static void a_window_is_counted(void **state)
{
    (void)state;
    static const int32_t ids[20] = {0}, cu[] = {0, 6, 6, 7, 20};
    rp_batch b;
    rp_batch_init(&b);
    b.n_seqs = 4;
    b.ids = ids;
    b.cu = cu;
    rp_plan *full = plan_with_window(0, 20), *narrow = plan_with_window(2, 20);
    rp_plan *longer = plan_with_window(2, 4000), *longest = plan_with_window(2, 8000);
    assert_int_equal(rp_plan_flops(full, &b), 4 * 8 * (36 + 0 + 1 + 169));
    assert_int_equal(rp_plan_flops(narrow, &b), 4 * 8 * (24 + 0 + 1 + 59));
    rp_plan_sizes a, c;
    rp_plan_get_sizes(longer, &a);
    rp_plan_get_sizes(longest, &c);
    assert_int_equal(a.scratch_bytes_per_thread, c.scratch_bytes_per_thread);
    char text[1024];
    rp_plan_text(narrow, text, sizeof text);
    assert_non_null(strstr(text, " window=2 "));
    rp_plan_text(full, text, sizeof text);
    assert_null(strstr(text, "window"));
    rp_plan_destroy(full);
    rp_plan_destroy(narrow);
    rp_plan_destroy(longer);
    rp_plan_destroy(longest);
}

static void attention_shared_heads(void **state)
{
    static const struct {
        int32_t n_heads, n_kv_heads;
        bool causal;
        size_t width;
        rp_status status;
        const char *words;
    } cases[] = {
        {8, 3, false, 56, RP_ERR_INVALID,
         "op 1 (a): 8 heads of queries cannot share 3 heads of keys evenly"},
        {4, 8, true, 80, RP_ERR_INVALID,
         "op 1 (a): 4 heads of queries cannot share 8 heads of keys evenly"},
        {4, -2, true, 80, RP_ERR_INVALID,
         "op 1 (a): 4 heads of queries cannot share -2 heads of keys evenly"},
        {4, 2, false, 31, RP_ERR_SHAPE,
         "op 1 (a): qkv has width 31, expected at least 32 (4 + 2 x 2 heads of 4)"},
        {2, 0, true, 23, RP_ERR_SHAPE,
         "op 1 (a): qkv has width 23, expected at least 24 (2 + 2 x 2 heads of 4)"},
        {2, 0, false, 25, RP_ERR_SHAPE,
         "op 1 (a): qkv has width 25, expected 24 (3 x 2 heads of 4)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fixture *f = *state;
        const rp_attention a = {.n_heads = cases[i].n_heads,
                                .head_dim = 4,
                                .rel_bias = -1,
                                .n_kv_heads = cases[i].n_kv_heads,
                                .causal = cases[i].causal};
        rp_graph_attention(f->graph, "a", tokens(f, cases[i].width), &a);
        refuses(f, cases[i].status, cases[i].words);
        unmake(state);
        make(state);
    }
}

static void relative_bias_of_decoders(void **state)
{
    for (int i = 0; i < 2; i++) {
        struct fixture *f = *state;
        const rp_attention a = {.n_heads = 2,
                                .head_dim = 4,
                                .rel_bias = add(f, "rel", 32, 2),
                                .rel_max_distance = 128,
                                .n_kv_heads = i ? 1 : 0,
                                .causal = i == 0};
        rp_graph_attention(f->graph, "a", tokens(f, 24), &a);
        refuses(f, RP_ERR_UNSUPPORTED,
                i ? "op 1 (a): a relative bias with shared heads of keys is not built"
                  : "op 1 (a): a relative bias with causal attention is not built");
        unmake(state);
        make(state);
    }
}

/* What causal attention costs: operations of the keys that are seen, those of a parent among them;
 * for the rows that are read alone just as well. */
static void causal_pairs_are_counted(void **state)
{
    (void)state;
    static const int32_t ids[20] = {0}, cu[] = {0, 6, 6, 7, 20}, parents[] = {-1, -1, 0, 0};
    for (int32_t window = 0; window < 3; window += 2)
        for (int last = 0; last < 2; last++) {
            struct fixture *f;
            void *fixture;
            rp_plan *plan;
            rp_batch b;
            assert_int_equal(make(&fixture), 0);
            f = fixture;
            const rp_attention a = {.n_heads = 4,
                                    .head_dim = 2,
                                    .rel_bias = -1,
                                    .window = window,
                                    .n_kv_heads = 2,
                                    .causal = true};
            rp_value y = rp_graph_attention(f->graph, "a", tokens(f, 19), &a);
            if (last)
                y = rp_graph_pool(f->graph, "pool", y, RP_POOL_LAST);
            rp_graph_output(f->graph, "y", y, last ? RP_ROWS_SEQS : RP_ROWS_TOKENS, 8);
            const rp_bucket bucket = {20, 4, 0};
            assert_int_equal(rp_plan_compile(f->graph, f->weights, &bucket, NULL, &plan, NULL),
                             RP_OK);
            rp_batch_init(&b);
            b.n_seqs = 4;
            b.ids = ids;
            b.cu = cu;
            if (last)
                assert_int_equal(rp_plan_flops(plan, &b),
                                 4 * 8 * (window ? 3 + 0 + 1 + 3 : 6 + 0 + 1 + 13));
            else
                assert_int_equal(rp_plan_flops(plan, &b),
                                 4 * 8 * (window ? 15 + 0 + 1 + 36 : 21 + 0 + 1 + 91));
            b.parents = parents;
            if (last)
                assert_int_equal(rp_plan_flops(plan, &b),
                                 4 * 8 * (window ? 3 + 0 + 3 + 3 : 6 + 0 + 7 + 19));
            else
                assert_int_equal(rp_plan_flops(plan, &b),
                                 4 * 8 * (window ? 15 + 0 + 3 + 39 : 21 + 0 + 7 + 169));
            char text[1024];
            rp_plan_text(plan, text, sizeof text);
            assert_non_null(
                strstr(text, window ? " window=2 kv_heads=2 causal" : " kv_heads=2 causal"));
            rp_graph_text(f->graph, f->weights, text, sizeof text);
            assert_non_null(strstr(text, " kv_heads=2 causal"));
            rp_plan_destroy(plan);
            unmake(&fixture);
        }
}

static void relative_bias_shape(void **state)
{
    struct fixture *f = *state;
    const rp_attention a = {
        .n_heads = 2, .head_dim = 4, .rel_bias = add(f, "rel", 32, 3), .rel_max_distance = 128};
    rp_graph_attention(f->graph, "a", tokens(f, 24), &a);
    refuses(f, RP_ERR_SHAPE, "op 1 (a): relative bias rel is [32, 3], expected [buckets, 2]");
}

static const rp_rope turn = {.n_heads = 2, .head_dim = 4, .theta = 10000};

/* A rope of x with one option changed refuses with that message. */
static void rope_refuses(struct fixture *f, rp_value x, rp_rope options, rp_status status,
                         const char *message)
{
    rp_graph_rope(f->graph, "r", x, &options);
    refuses(f, status, message);
}

static void rope_heads(void **state)
{
    rp_rope o = turn;
    o.n_heads = 0;
    rope_refuses(*state, tokens(*state, 24), o, RP_ERR_INVALID,
                 "op 1 (r): 0 heads of 4, expected at least 1 of 1");
}

static void rope_width(void **state)
{
    rp_rope o = turn;
    o.n_heads = 7;
    rope_refuses(*state, tokens(*state, 24), o, RP_ERR_SHAPE,
                 "op 1 (r): its input has width 24, expected at least 28 (7 heads of 4)");
}

static void rope_rows(void **state)
{
    struct fixture *f = *state;
    rope_refuses(f, rp_graph_pool(f->graph, "p", tokens(f, 24), RP_POOL_CLS), turn, RP_ERR_SHAPE,
                 "op 2 (r): its input has a row per seqs, expected tokens");
}

static void rope_odd(void **state)
{
    rp_rope o = turn;
    o.n_rotated = 3;
    rope_refuses(*state, tokens(*state, 24), o, RP_ERR_INVALID,
                 "op 1 (r): 3 dims of a head of 4 are turned, expected an even number up to that");
}

static void rope_too_many(void **state)
{
    rp_rope o = turn;
    o.n_rotated = 6;
    rope_refuses(*state, tokens(*state, 24), o, RP_ERR_INVALID,
                 "op 1 (r): 6 dims of a head of 4 are turned, expected an even number up to that");
}

static void rope_odd_head(void **state)
{
    const rp_rope o = {.n_heads = 2, .head_dim = 5, .theta = 10000};
    rope_refuses(*state, tokens(*state, 24), o, RP_ERR_INVALID,
                 "op 1 (r): 5 dims of a head of 5 are turned, expected an even number up to that");
}

static void rope_theta(void **state)
{
    rp_rope o = turn;
    o.theta = 0;
    rope_refuses(*state, tokens(*state, 24), o, RP_ERR_INVALID,
                 "op 1 (r): theta must be finite and at least 1");
}

static void rope_theta_infinite(void **state)
{
    rp_rope o = turn;
    o.theta = (double)INFINITY;
    rope_refuses(*state, tokens(*state, 24), o, RP_ERR_INVALID,
                 "op 1 (r): theta must be finite and at least 1");
}

static void rope_frequency(void **state)
{
    static const double frequencies[] = {1, (double)NAN};
    rp_rope o = turn;
    o.inv_freq = frequencies;
    rope_refuses(*state, tokens(*state, 24), o, RP_ERR_INVALID,
                 "op 1 (r): inverse frequency 1 must be within -2^20 and 2^20");
}

static void rope_scale(void **state)
{
    rp_rope o = turn;
    o.scale = -1;
    rope_refuses(*state, tokens(*state, 24), o, RP_ERR_INVALID,
                 "op 1 (r): scale must be within 0 and 2^20");
}

/* Ropes of equal options share a table, those of others have their own; a dry run counts what is
 * made. */
static void rope_tables_are_shared(void **state)
{
    struct fixture *f = *state;
    const double given[] = {1, 0.01}, others[] = {1, 0.02};
    const rp_bucket bucket = {1000, 4, 0};
    const size_t table = 1000 * 4 * sizeof(float);
    rp_rope o = turn;
    rp_value x = tokens(f, 24);
    uint64_t bytes = 0;
    for (int i = 0; i < 10; i++) {
        static const size_t more[10] = {1, 0, 1, 1, 0, 1, 1, 1, 2, 0};
        if (i == 2)
            o.theta = 160000;
        o.inv_freq = i == 3 || i == 4 ? given : i == 5 ? others : NULL;
        o.n_rotated = i == 6 ? 2 : i == 9 ? 4 : 0;
        o.scale = i == 7 ? 1.5 : i == 9 ? 1 : 0;
        o.interleaved = i >= 8;
        x = rp_graph_rope(f->graph, "r", x, &o);
        rp_graph_output(f->graph, "y", x, RP_ROWS_TOKENS, 24);
        rp_plan_sizes dry, made;
        rp_plan *plan;
        assert_int_equal(rp_plan_measure(f->graph, f->weights, &bucket, NULL, &dry, NULL), RP_OK);
        assert_int_equal(rp_plan_compile(f->graph, f->weights, &bucket, NULL, &plan, NULL), RP_OK);
        rp_plan_get_sizes(plan, &made);
        assert_int_equal(dry.plan_bytes, made.plan_bytes);
        /* Steps, names and outputs take less than a table does. */
        const uint64_t grown = made.plan_bytes - bytes;
        const size_t want = more[i] * (i == 6 ? table / 2 : table);
        assert_true(grown >= want && grown < want + table / 3);
        bytes = made.plan_bytes;
        rp_plan_destroy(plan);
    }
}

static void rope_table_too_large(void **state)
{
    struct fixture *f = *state;
    const rp_bucket bucket = {INT32_MAX, 1, 0};
    rp_value x = tokens(f, 64);
    for (int i = 0; i < 4; i++) {
        const rp_value eight[8] = {x, x, x, x, x, x, x, x};
        x = rp_graph_concat(f->graph, "wide", 8, eight);
    }
    const rp_rope o = {.n_heads = 1, .head_dim = 64 << 12, .theta = 10000};
    rp_graph_output(f->graph, "y", rp_graph_rope(f->graph, "r", x, &o), RP_ROWS_TOKENS, 64 << 12);
    rp_plan_sizes sizes;
    rp_error err;
    assert_int_equal(rp_plan_measure(f->graph, f->weights, &bucket, NULL, &sizes, &err),
                     RP_ERR_LIMIT);
    assert_string_equal(err.message,
                        "op 5 (r): a table of 2147483647 positions x 262144 dims is too large");
}

static void glu_width(void **state)
{
    struct fixture *f = *state;
    rp_graph_glu(f->graph, "g", tokens(f, 7), RP_ACT_GELU);
    refuses(f, RP_ERR_SHAPE, "op 1 (g): its input has width 7, expected two halves");
}

static void glu_activation(void **state)
{
    struct fixture *f = *state;
    rp_graph_glu(f->graph, "g", tokens(f, 8), (rp_activation)7);
    refuses(f, RP_ERR_INVALID, "op 1 (g): there is no activation 7");
}

static void pool_mode(void **state)
{
    struct fixture *f = *state;
    rp_graph_pool(f->graph, "p", tokens(f, 8), (rp_pooling)6);
    refuses(f, RP_ERR_INVALID, "op 1 (p): there is no pooling mode 6");
}

static void unknown_activation(void **state)
{
    struct fixture *f = *state;
    rp_graph_activation(f->graph, "act", tokens(f, 8), (rp_activation)99);
    refuses(f, RP_ERR_INVALID, "op 1 (act): there is no activation 99");
}

static void add_shapes(void **state)
{
    struct fixture *f = *state;
    const rp_value x = tokens(f, 8);
    rp_graph_add(f->graph, "sum", x, rp_graph_pool(f->graph, "p", x, RP_POOL_MEAN));
    refuses(f, RP_ERR_SHAPE, "op 2 (sum): adds seqs x 8 to tokens x 8");
}

static void concat_counts(void **state)
{
    struct fixture *f = *state;
    const rp_value x = tokens(f, 8);
    const rp_value many[9] = {x, x, x, x, x, x, x, x, x};
    rp_graph_concat(f->graph, "c", 9, many);
    refuses(f, RP_ERR_INVALID, "op 1 (c): concat has 9 inputs, expected 1 to 8");
}

static void no_outputs(void **state)
{
    struct fixture *f = *state;
    tokens(f, 8);
    refuses(f, RP_ERR_MISSING, "the graph has no outputs");
}

static void output_width(void **state)
{
    struct fixture *f = *state;
    rp_graph_output(f->graph, "y", tokens(f, 8), RP_ROWS_TOKENS, 9);
    refuses(f, RP_ERR_SHAPE, "output y: op 0 (embed) is tokens x 8, expected tokens x 9");
}

static void output_rows(void **state)
{
    struct fixture *f = *state;
    rp_graph_output(f->graph, "y", tokens(f, 8), RP_ROWS_SEQS, 8);
    refuses(f, RP_ERR_SHAPE, "output y: op 0 (embed) is tokens x 8, expected seqs x 8");
}

static void output_value(void **state)
{
    struct fixture *f = *state;
    tokens(f, 8);
    rp_graph_output(f->graph, "y", 5, RP_ROWS_SEQS, 8);
    refuses(f, RP_ERR_INVALID, "output y: there is no value 5");
}

static void bad_buckets(void **state)
{
    struct fixture *f = *state;
    rp_graph_output(f->graph, "y", tokens(f, 8), RP_ROWS_TOKENS, 8);
    const rp_bucket buckets[] = {{0, 1, 0}, {1, 0, 0}, {(size_t)1 << 40, 1, 0}};
    const rp_status want[] = {RP_ERR_INVALID, RP_ERR_INVALID, RP_ERR_LIMIT};
    for (size_t i = 0; i < 3; i++) {
        rp_plan *plan;
        rp_error err;
        assert_int_equal(rp_plan_compile(f->graph, f->weights, &buckets[i], NULL, &plan, &err),
                         want[i]);
    }
}

/* Sizes are computed before anything is taken: 64 x 4096 tokens of 12 heads pass 2^31 bytes and are
 * only told. */
static void a_dry_run_tells_sizes(void **state)
{
    struct fixture *f = *state;
    const rp_attention a = {.n_heads = 12, .head_dim = 32, .rel_bias = -1};
    rp_value x = tokens(f, 64);
    x = rp_graph_gemm(f->graph, "qkv", x, add(f, "w", 1152, 64), -1, RP_ACT_NONE, -1);
    x = rp_graph_attention(f->graph, "a", x, &a);
    rp_graph_output(f->graph, "y", x, RP_ROWS_TOKENS, 384);
    const rp_bucket bucket = {64 * 4096, 64, 0};
    rp_plan_sizes sizes;
    assert_int_equal(rp_plan_measure(f->graph, f->weights, &bucket, NULL, &sizes, NULL), RP_OK);
    assert_true(sizes.arena_bytes > (uint64_t)1 << 30);
    assert_int_equal(rp_weights_bytes(f->weights), 0);
}

static void a_value_too_large_is_refused(void **state)
{
    struct fixture *f = *state;
    rp_value x = tokens(f, 64);
    for (int i = 0; i < 8; i++) {
        const rp_value two[8] = {x, x, x, x, x, x, x, x};
        x = rp_graph_concat(f->graph, "wide", 8, two);
    }
    rp_graph_output(f->graph, "y", x, RP_ROWS_TOKENS, (size_t)64 << 24);
    const rp_bucket bucket = {1 << 20, 1, 0};
    rp_plan_sizes sizes;
    rp_error err;
    assert_int_equal(rp_plan_measure(f->graph, f->weights, &bucket, NULL, &sizes, &err),
                     RP_ERR_LIMIT);
    assert_non_null(strstr(err.message, "too large"));
}

/* Who made what a step reads, fused and not: the residual is an argument of the product, or of the
 * addition after it. */
static void steps_know_their_inputs(void **state)
{
    struct fixture *f = *state;
    const rp_value x = tokens(f, 8);
    const rp_value n = rp_graph_layer_norm(f->graph, "n", x, add(f, "w", 1, 8), -1, 1e-5f);
    const rp_value y = rp_graph_gemm(f->graph, "g", n, add(f, "gw", 8, 8), -1, RP_ACT_RELU, x);
    const rp_value c = rp_graph_concat(f->graph, "c", 2, (rp_value[]){y, n});
    rp_graph_output(f->graph, "y", c, RP_ROWS_TOKENS, 16);
    /* embed 0, n 1, g 2, c 3; or embed 0, n 1, g 2, g.act 3, g.add 4, c 5 */
    static const struct {
        size_t n_in[6], in[6][2];
    } want[2] = {
        {{0, 1, 2, 2}, {{0}, {0}, {1, 0}, {2, 1}}},
        {{0, 1, 1, 1, 2, 2}, {{0}, {0}, {1}, {2}, {3, 0}, {4, 1}}},
    };
    for (int no_fuse = 0; no_fuse < 2; no_fuse++) {
        const rp_bucket bucket = {32, 4, 4};
        rp_plan_options options;
        rp_plan *plan;
        rp_plan_options_init(&options);
        options.no_fuse = no_fuse;
        assert_int_equal(rp_plan_compile(f->graph, f->weights, &bucket, &options, &plan, NULL),
                         RP_OK);
        assert_int_equal(rp_plan_n_steps(plan), no_fuse ? 6 : 4);
        for (size_t i = 0; i < rp_plan_n_steps(plan); i++) {
            size_t in[2] = {99, 99};
            assert_int_equal(rp_plan_step_inputs(plan, i, in, 2), want[no_fuse].n_in[i]);
            for (size_t k = 0; k < want[no_fuse].n_in[i]; k++)
                assert_int_equal(in[k], want[no_fuse].in[i][k]);
        }
        size_t first[2] = {99, 99};
        assert_int_equal(rp_plan_step_inputs(plan, no_fuse ? 4 : 2, first, 1), 2);
        assert_int_equal(first[1], 99);
        assert_int_equal(rp_plan_step_inputs(plan, 3, NULL, 0), want[no_fuse].n_in[3]);
        assert_int_equal(rp_plan_step_inputs(plan, 6, first, 2), 0);
        rp_plan_destroy(plan);
    }
}

static void weights_are_checked(void **state)
{
    struct fixture *f = *state;
    rp_weight w = 123;
    rp_error err;
    const rp_weight_part none = {.rows = 3, .dtype = RP_DTYPE_F32};
    assert_int_equal(rp_weights_add(f->weights, "a", 4, 1, &none, &w, &err), RP_ERR_INVALID);
    assert_string_equal(err.message, "weight a: part 0 has 3 rows and no source");
    const rp_weight_part huge[] = {
        {.rows = SIZE_MAX / 2, .dtype = RP_DTYPE_F32, .data = numbers},
        {.rows = SIZE_MAX / 2 + 2, .dtype = RP_DTYPE_F32, .data = numbers}};
    assert_int_equal(rp_weights_add(f->weights, "a", 4, 2, huge, &w, &err), RP_ERR_LIMIT);
    assert_int_equal(rp_weights_add(f->weights, "a", 4, 1, huge, &w, &err), RP_ERR_LIMIT);
    assert_int_equal(rp_weights_add(f->weights, "a", 0, 1, huge, &w, &err), RP_ERR_INVALID);
    const rp_weight_part odd = {.rows = 3, .dtype = (rp_dtype)9, .data = numbers};
    assert_int_equal(rp_weights_add(f->weights, "a", 4, 1, &odd, &w, &err), RP_ERR_INVALID);
    assert_int_equal(w, 123);
}

static rp_status failing_read(void *context, uint64_t offset, void *dst, size_t n, rp_error *err)
{
    (void)context;
    (void)offset;
    (void)dst;
    (void)n;
    if (err) {
        err->status = RP_ERR_IO;
        strcpy(err->message, "the disk is gone");
    }
    return RP_ERR_IO;
}

/* A source that fails fails the plan, by name; the weights stay usable. */
static void a_failing_read_is_named(void **state)
{
    struct fixture *f = *state;
    const rp_weight_part part = {.rows = 40, .dtype = RP_DTYPE_F32, .read = failing_read};
    rp_weight w;
    assert_int_equal(rp_weights_add(f->weights, "w", 8, 1, &part, &w, NULL), RP_OK);
    rp_graph_output(f->graph, "y",
                    rp_graph_gemm(f->graph, "g", tokens(f, 8), w, -1, RP_ACT_NONE, -1),
                    RP_ROWS_TOKENS, 40);
    const rp_bucket bucket = {32, 4, 4};
    rp_plan *plan;
    rp_error err;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(rp_plan_compile(f->graph, f->weights, &bucket, NULL, &plan, &err),
                         RP_ERR_IO);
        assert_string_equal(err.message, "op 1 (g): weight w: the disk is gone");
    }
}

/* What no output needs is checked but not run, and its weights are not read. */
static void unneeded_ops_are_left_out(void **state)
{
    struct fixture *f = *state;
    const rp_weight_part part = {.rows = 40, .dtype = RP_DTYPE_F32, .read = failing_read};
    rp_weight w;
    assert_int_equal(rp_weights_add(f->weights, "w", 8, 1, &part, &w, NULL), RP_OK);
    const rp_value x = tokens(f, 8);
    rp_graph_gemm(f->graph, "unread", x, w, -1, RP_ACT_NONE, -1);
    rp_graph_output(f->graph, "y", x, RP_ROWS_TOKENS, 8);
    const rp_bucket bucket = {32, 4, 4};
    rp_plan *plan;
    assert_int_equal(rp_plan_compile(f->graph, f->weights, &bucket, NULL, &plan, NULL), RP_OK);
    assert_int_equal(rp_plan_n_steps(plan), 1);
    rp_plan_destroy(plan);
}

/* The text forms are stable: these are goldens. */
static void text_of_a_graph(void **state)
{
    struct fixture *f = *state;
    rp_value x = tokens(f, 8);
    x = rp_graph_layer_norm(f->graph, "norm", x, add(f, "nw", 1, 8), -1, 1e-12f);
    rp_value y =
        rp_graph_gemm(f->graph, "up", x, add(f, "w", 24, 8), add(f, "b", 1, 24), RP_ACT_GELU, -1);
    const rp_attention a = {.n_heads = 2, .head_dim = 4, .rel_bias = -1, .scale = 0.5f};
    y = rp_graph_attention(f->graph, "core", y, &a);
    rp_graph_output(f->graph, "vector", rp_graph_pool(f->graph, "pool", y, RP_POOL_MEAN),
                    RP_ROWS_SEQS, 8);
    const char *want = "%0 = embed \"embed\" ids=word[10,8]\n"
                       "%1 = layer_norm \"norm\" %0 eps=9.99999996e-13 w=nw[1,8]\n"
                       "%2 = gemm \"up\" %1 act=gelu w=w[24,8] b=b[1,24]\n"
                       "%3 = attention \"core\" %2 heads=2x4 scale=0.5\n"
                       "%4 = pool \"pool\" %3 mode=mean\n"
                       "output \"vector\" %4 seqs x 8\n";
    char text[1024];
    assert_int_equal(rp_graph_text(f->graph, f->weights, text, sizeof text), strlen(want));
    assert_string_equal(text, want);
    char cut[20];
    assert_int_equal(rp_graph_text(f->graph, f->weights, cut, sizeof cut), strlen(want));
    assert_memory_equal(cut, want, 19);
    assert_int_equal(cut[19], 0);
    assert_int_equal(rp_graph_text(f->graph, f->weights, NULL, 0), strlen(want));
}

/* What tells layers apart: bases, frequencies, gates; in the graph and in the plan. */
static void text_of_ropes_and_gates(void **state)
{
    struct fixture *f = *state;
    static const double given[] = {1, 0.25};
    const rp_rope second = {.n_heads = 1,
                            .head_dim = 6,
                            .n_rotated = 4,
                            .interleaved = true,
                            .inv_freq = given,
                            .scale = 0.5};
    rp_value x = rp_graph_rope(f->graph, "turn", tokens(f, 8), &turn);
    x = rp_graph_rope(f->graph, "again", x, &second);
    x = rp_graph_glu(f->graph, "gate", x, RP_ACT_SILU);
    const rp_attention a = {.n_heads = 1, .head_dim = 1, .rel_bias = -1, .window = 64, .scale = 1};
    rp_graph_attention(f->graph, "near", tokens(f, 3), &a);
    rp_graph_output(f->graph, "y", x, RP_ROWS_TOKENS, 4);
    char text[2048];
    rp_graph_text(f->graph, f->weights, text, sizeof text);
    assert_string_equal(text, "%0 = embed \"embed\" ids=word[10,8]\n"
                              "%1 = rope \"turn\" %0 heads=2x4 rotated=4 theta=10000\n"
                              "%2 = rope \"again\" %1 heads=1x6 rotated=4 interleaved "
                              "inv_freq[2]=1..0.25 scale=0.5\n"
                              "%3 = glu \"gate\" %2 act=silu\n"
                              "%4 = embed \"embed\" ids=word[10,3]\n"
                              "%5 = attention \"near\" %4 heads=1x1 scale=1 window=64\n"
                              "output \"y\" %3 tokens x 4\n");
    const rp_bucket bucket = {32, 4, 0};
    rp_plan_options options;
    rp_plan_options_init(&options);
    options.isa = RP_ISA_SCALAR;
    rp_plan *plan;
    assert_int_equal(rp_plan_compile(f->graph, f->weights, &bucket, &options, &plan, NULL), RP_OK);
    rp_plan_text(plan, text, sizeof text);
    /* A rope that is the last to read its input turns it where it lies. */
    assert_non_null(strstr(text, "   0 embed          embed                        @0 "));
    assert_non_null(strstr(text, "   1 rope           turn                         @0          "
                                 "tokens x 8      theta=10000 scalar"));
    assert_non_null(strstr(text, "   2 rope           again                        @0          "
                                 "tokens x 8      inv_freq[2] scalar"));
    assert_non_null(strstr(text, "   3 glu            gate                         @1024       "
                                 "tokens x 4      act=silu scalar"));
    rp_plan_destroy(plan);
}

static void text_of_a_plan(void **state)
{
    struct fixture *f = *state;
    rp_value x = tokens(f, 8);
    for (int i = 0; i < 3; i++)
        x = rp_graph_layer_norm(f->graph, "norm", x, add(f, "nw", 1, 8), -1, 1e-12f);
    rp_graph_output(f->graph, "y", x, RP_ROWS_TOKENS, 8);
    const rp_bucket bucket = {32, 4, 0};
    rp_plan_options options;
    rp_plan_options_init(&options);
    options.isa = RP_ISA_SCALAR;
    rp_plan *plan;
    assert_int_equal(rp_plan_compile(f->graph, f->weights, &bucket, &options, &plan, NULL), RP_OK);
    char text[2048];
    rp_plan_text(plan, text, sizeof text);
    /* By step, a chain of norms lives in two buffers. */
    assert_non_null(strstr(text, "   0 embed          embed                        @0 "));
    assert_non_null(strstr(text, "   1 layer_norm     norm                         @1024 "));
    assert_non_null(strstr(text, "   2 layer_norm     norm                         @0 "));
    assert_non_null(strstr(text, "   3 layer_norm     norm                         @1024 "));
    assert_non_null(strstr(text, "output y: step 3\n"));
    rp_plan_destroy(plan);
}

static void names_of_the_ir(void **state)
{
    (void)state;
    for (int op = 0; op < RP_OP_COUNT; op++)
        assert_non_null(rp_op_name((enum rp_op)op));
    assert_string_equal(rp_op_name(RP_OP_GATHER_MARKERS), "gather_markers");
    assert_string_equal(rp_op_name(RP_OP_ADD_TYPES), "add_types");
    assert_string_equal(rp_op_name(RP_OP_ACT_FEATURES), "act_features");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make, unmake)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(gemm_weight_shape),
        TEST(gemm_bias_shape),
        TEST(gemm_residual_shape),
        TEST(unknown_weight),
        TEST(unknown_norm_weight),
        TEST(norm_shape),
        TEST(norm_eps),
        TEST(value_from_later),
        TEST(embed_widths),
        TEST(embed_counts),
        TEST(attention_width),
        TEST(attention_heads),
        TEST(attention_rows),
        TEST(attention_window),
        TEST(attention_shared_heads),
        TEST(relative_bias_of_decoders),
        TEST(causal_pairs_are_counted),
        TEST(a_window_is_counted),
        TEST(relative_bias_shape),
        TEST(rope_heads),
        TEST(rope_width),
        TEST(rope_rows),
        TEST(rope_odd),
        TEST(rope_too_many),
        TEST(rope_odd_head),
        TEST(rope_theta),
        TEST(rope_theta_infinite),
        TEST(rope_frequency),
        TEST(rope_scale),
        TEST(rope_tables_are_shared),
        TEST(rope_table_too_large),
        TEST(glu_width),
        TEST(glu_activation),
        TEST(pool_mode),
        TEST(unknown_activation),
        TEST(add_shapes),
        TEST(concat_counts),
        TEST(no_outputs),
        TEST(output_width),
        TEST(output_rows),
        TEST(output_value),
        TEST(bad_buckets),
        TEST(a_dry_run_tells_sizes),
        TEST(a_value_too_large_is_refused),
        TEST(steps_know_their_inputs),
        TEST(weights_are_checked),
        TEST(a_failing_read_is_named),
        TEST(unneeded_ops_are_left_out),
        TEST(text_of_a_graph),
        TEST(text_of_a_plan),
        TEST(text_of_ropes_and_gates),
        TEST(names_of_the_ir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
