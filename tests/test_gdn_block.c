/* A whole block of Qwen3-Next made of the calls for gated delta nets: projections, convolution,
 * gates, delta rule, gated norm and output projection, against what transformers computed; all in
 * one call, or cut in two.
 *
 * Convolution and rule by themselves, with the rest in double; then all between the projections by
 * rp_gdn_run_block; then as a graph, where the block is the library's from end to end, and gives
 * that call's bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/toy.h"

#include <rankplan/rankplan.h>

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROWS = 145,
    WIDTH = 64,
    KEY_HEADS = 4,
    VALUE_HEADS = 8,
    PER_KEY = VALUE_HEADS / KEY_HEADS,
    DIM = 32,
    KEYS = KEY_HEADS * DIM,
    VALUES = VALUE_HEADS * DIM,
    CHANNELS = 2 * KEYS + VALUES,
    KERNEL = 4,
    STATE = VALUE_HEADS * DIM * DIM,
    PROJECTED = CHANNELS + VALUES + 2 * VALUE_HEADS
};

static void must(rp_status status, const rp_error *err)
{
    if (status != RP_OK)
        fail_msg("%s: %s", rp_status_name(status), err->message);
}

#define MUST(call)                                                                                 \
    do {                                                                                           \
        rp_error must_err_ = {RP_OK, ""};                                                          \
        const rp_status must_status_ = (call);                                                     \
        must(must_status_, &must_err_);                                                            \
    } while (0)
#define ERR (&must_err_)

/* The block's numbers, and what one way of running it makes. */
struct block {
    float a_log[VALUE_HEADS], dt_bias[VALUE_HEADS], norm[DIM];
    float conv[CHANNELS * KERNEL]; /* [channel][kernel] */
    float ba[2 * VALUE_HEADS * WIDTH], qkvz[(CHANNELS + VALUES) * WIDTH], out[WIDTH * VALUES];
    float x[ROWS * WIDTH], y[ROWS * WIDTH];
};

static struct block block;

/* The value head that the k-th of a key head is called, in the block and as `map` has it. */
static size_t head_of(rp_gdn_map map, size_t key_head, size_t k)
{
    return map == RP_GDN_TILED ? key_head + k * KEY_HEADS : key_head * PER_KEY + k;
}

struct way {
    rp_gdn_map map;
    bool linear_decay;
    float w[CHANNELS * KERNEL]; /* of the convolution */
    /* Rows as the calls take them: q, k, v in columns; decay, beta. */
    float mixed[ROWS * CHANNELS], convolved[ROWS * CHANNELS];
    float decay[ROWS * VALUE_HEADS], beta[ROWS * VALUE_HEADS];
    float z[ROWS * VALUES]; /* heads as the block has them */
    float core[ROWS * VALUES];
};

static double dot(const float *a, const float *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

/* qkvz is packed key head by key head: q, k, the v of its value heads, their z. */
static void project_qkvz(struct way *way, size_t t)
{
    const float *x = block.x + t * WIDTH, *w = block.qkvz;
    float *row = way->mixed + t * CHANNELS;
    for (size_t h = 0; h < KEY_HEADS; h++) {
        for (size_t i = 0; i < DIM; i++, w += WIDTH)
            row[h * DIM + i] = (float)dot(w, x, WIDTH);
        for (size_t i = 0; i < DIM; i++, w += WIDTH)
            row[KEYS + h * DIM + i] = (float)dot(w, x, WIDTH);
        for (size_t k = 0; k < PER_KEY; k++) {
            for (size_t i = 0; i < DIM; i++, w += WIDTH)
                row[2 * KEYS + head_of(way->map, h, k) * DIM + i] = (float)dot(w, x, WIDTH);
        }
        for (size_t i = 0; i < PER_KEY * DIM; i++, w += WIDTH)
            way->z[t * VALUES + h * PER_KEY * DIM + i] = (float)dot(w, x, WIDTH);
    }
}

/* ba the same: the b of a key head's value heads, their a. */
static void project_gates(struct way *way, size_t t)
{
    const float *x = block.x + t * WIDTH;
    for (size_t h = 0; h < KEY_HEADS; h++) {
        const float *w = block.ba + h * 2 * PER_KEY * WIDTH;
        for (size_t k = 0; k < PER_KEY; k++) {
            const size_t head = h * PER_KEY + k, to = t * VALUE_HEADS + head_of(way->map, h, k);
            const double b = dot(w + k * WIDTH, x, WIDTH);
            const double a = dot(w + (PER_KEY + k) * WIDTH, x, WIDTH) + (double)block.dt_bias[head];
            const double g = -exp((double)block.a_log[head]) * log1p(exp(a));
            way->decay[to] = (float)(way->linear_decay ? exp(g) : g);
            way->beta[to] = (float)(1 / (1 + exp(-b)));
        }
    }
}

/* The convolution's channels of v follow the value heads. */
static void order_conv(struct way *way)
{
    for (size_t c = 0; c < CHANNELS; c++) {
        size_t from = c;
        for (size_t h = 0; c >= 2 * KEYS && h < VALUE_HEADS; h++) {
            if (head_of(way->map, h / PER_KEY, h % PER_KEY) == (c - 2 * KEYS) / DIM)
                from = 2 * KEYS + h * DIM + (c - 2 * KEYS) % DIM;
        }
        for (size_t i = 0; i < KERNEL; i++)
            way->w[c * KERNEL + i] = block.conv[from * KERNEL + i];
    }
}

static void run_part(rp_gdn_states *s, struct way *way, int32_t slot, size_t row, size_t n)
{
    const int32_t cu[] = {0, (int32_t)n};
    const float *x = way->convolved + row * CHANNELS;
    rp_gdn_conv_batch conv;
    rp_gdn_conv_batch_init(&conv);
    conv.n_seqs = 1;
    conv.slots = &slot;
    conv.cu = cu;
    conv.x = (rp_gdn_input){way->mixed + row * CHANNELS, CHANNELS};
    conv.w = way->w;
    conv.out = way->convolved + row * CHANNELS;
    conv.ld_out = CHANNELS;
    MUST(rp_gdn_conv(s, &conv, ERR));
    rp_gdn_batch b;
    rp_gdn_batch_init(&b);
    b.n_seqs = 1;
    b.slots = &slot;
    b.cu = cu;
    b.q = (rp_gdn_input){x, CHANNELS};
    b.k = (rp_gdn_input){x + KEYS, CHANNELS};
    b.v = (rp_gdn_input){x + 2 * KEYS, CHANNELS};
    b.decay = (rp_gdn_input){way->decay + row * VALUE_HEADS, VALUE_HEADS};
    b.beta = (rp_gdn_input){way->beta + row * VALUE_HEADS, VALUE_HEADS};
    b.out = way->core + row * VALUES;
    b.ld_out = VALUES;
    MUST(rp_gdn_run(s, &b, ERR));
}

/* norm(out) * w * silu(z), head by head, and the last projection: row t's largest difference. */
static double finish_row(const struct way *way, size_t t)
{
    float row[VALUES];
    double worst = 0;
    for (size_t h = 0; h < VALUE_HEADS; h++) {
        const float *o = way->core + t * VALUES + head_of(way->map, h / PER_KEY, h % PER_KEY) * DIM;
        const float *z = way->z + t * VALUES + h * DIM;
        const double root = sqrt(dot(o, o, DIM) / DIM + 1e-6);
        for (size_t i = 0; i < DIM; i++)
            row[h * DIM + i] = (float)((double)o[i] / root * (double)block.norm[i] * (double)z[i] /
                                       (1 + exp(-(double)z[i])));
    }
    for (size_t c = 0; c < WIDTH; c++)
        worst = fmax(
            worst, fabs(dot(block.out + c * VALUES, row, VALUES) - (double)block.y[t * WIDTH + c]));
    return worst;
}

static void read_block(void)
{
    rp_tensor_file *model, *cases;
    MUST(rp_tensor_file_open(RP_TEST_DATA "/gdn/block/model.safetensors", &model, ERR));
    MUST(rp_tensor_file_open(RP_TEST_DATA "/gdn/block/cases.safetensors", &cases, ERR));
#define READ(file, name, to)                                                                       \
    MUST(rp_tensor_file_read_f32(file, name, to, sizeof(to) / sizeof *(to), ERR))
    READ(model, "A_log", block.a_log);
    READ(model, "dt_bias", block.dt_bias);
    READ(model, "norm.weight", block.norm);
    READ(model, "conv1d.weight", block.conv);
    READ(model, "in_proj_ba.weight", block.ba);
    READ(model, "in_proj_qkvz.weight", block.qkvz);
    READ(model, "out_proj.weight", block.out);
    READ(cases, "x", block.x);
    READ(cases, "y", block.y);
#undef READ
    rp_tensor_file_close(model);
    rp_tensor_file_close(cases);
}

static double largest(const float *x, size_t n)
{
    double most = 0;
    for (size_t i = 0; i < n; i++)
        if (fabs((double)x[i]) > most)
            most = fabs((double)x[i]);
    return most;
}

/* Infinite where one of both is a NaN. */
static double difference(const float *a, const float *b, size_t n)
{
    double most = 0;
    for (size_t i = 0; i < n; i++) {
        const double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= most))
            most = isnan(d) ? INFINITY : d;
    }
    return most;
}

/* Rows [0, n) in one call each, then the same cut at `cut` in another slot. */
static void check_cut(rp_gdn_states *s, struct way *way, size_t n, size_t cut)
{
    static float whole[ROWS * VALUES], a[STATE], b[STATE];
    float kept[2][(KERNEL - 1) * CHANNELS];
    rp_gdn_memory memory;
    MUST(rp_gdn_states_reset(s, 0, ERR));
    MUST(rp_gdn_states_reset(s, 1, ERR));
    /* 16 numbers behind what the slot keeps of the convolution are nobody's. */
    MUST(rp_gdn_states_memory(s, 1, &memory, ERR));
    float *behind = (float *)memory.conv + (KERNEL - 1) * CHANNELS;
    for (int i = 0; i < 16; i++)
        behind[i] = 4711;
    run_part(s, way, 0, 0, n);
    memcpy(whole, way->core, sizeof whole);
    for (size_t t = 0; t < n; t++) {
        if (finish_row(way, t) > 2e-5 * largest(block.y, ROWS * WIDTH))
            fail_msg("row %zu is %g off", t, finish_row(way, t));
    }
    run_part(s, way, 1, 0, cut);
    run_part(s, way, 1, cut, n - cut);
    assert_true(difference(whole, way->core, n * VALUES) <= 1e-5 * largest(whole, n * VALUES));
    MUST(rp_gdn_states_get(s, 0, RP_GDN_KEY_VALUE, a, ERR));
    MUST(rp_gdn_states_get(s, 1, RP_GDN_KEY_VALUE, b, ERR));
    assert_true(difference(a, b, STATE) <= 1e-5 * largest(a, STATE));
    for (int32_t slot = 0; slot < 2; slot++)
        MUST(rp_gdn_states_get_conv(s, slot, kept[slot], ERR));
    assert_memory_equal(kept[0], kept[1], sizeof kept[0]);
    for (int i = 0; i < 16; i++)
        assert_true(behind[i] == 4711);
}

static void check_way(rp_gdn_map map, bool linear_decay, int threads)
{
    static struct way way;
    rp_pool *pool = toy_pool(threads);
    memset(&way, 0, sizeof way);
    way.map = map;
    way.linear_decay = linear_decay;
    for (size_t t = 0; t < ROWS; t++) {
        project_qkvz(&way, t);
        project_gates(&way, t);
    }
    order_conv(&way);
    rp_gdn_states_options o;
    rp_gdn_states *s = NULL;
    rp_gdn_states_options_init(&o);
    o.gdn = (rp_gdn){.n_key_heads = KEY_HEADS,
                     .n_value_heads = VALUE_HEADS,
                     .key_dim = DIM,
                     .value_dim = DIM,
                     .map = map,
                     .norm = RP_GDN_NORM_ROOT,
                     .eps = 1e-6f};
    o.linear_decay = linear_decay;
    o.n_slots = 2;
    o.conv_channels = CHANNELS;
    o.conv_kernel = KERNEL;
    o.pool = pool;
    MUST(rp_gdn_states_create(&o, &s, ERR));
    check_cut(s, &way, 4, 3);
    check_cut(s, &way, ROWS, 73);
    check_cut(s, &way, ROWS, 1);
    rp_gdn_states_destroy(s);
    rp_pool_destroy(pool);
}

static void test_block(void **state)
{
    (void)state;
    read_block();
    check_way(RP_GDN_GROUPED, false, 1);
    check_way(RP_GDN_GROUPED, true, 3);
    check_way(RP_GDN_TILED, false, 2);
    check_way(RP_GDN_TILED, true, 1);
}

/* ---- in one call ------------------------------------------------------------------------------
 */

/* Value heads as `map` numbers them: what the call takes of the block. */
struct ordered_heads {
    float a_log[VALUE_HEADS], dt_bias[VALUE_HEADS];
};

static void order_heads(struct ordered_heads *o, rp_gdn_map map)
{
    for (size_t h = 0; h < VALUE_HEADS; h++) {
        o->a_log[head_of(map, h / PER_KEY, h % PER_KEY)] = block.a_log[h];
        o->dt_bias[head_of(map, h / PER_KEY, h % PER_KEY)] = block.dt_bias[h];
    }
}

/* A projection of the block's input, in double. */
static void project(const float *w, size_t n, float *to)
{
    for (size_t t = 0; t < ROWS; t++) {
        for (size_t c = 0; c < n; c++)
            to[t * n + c] = (float)dot(w + c * WIDTH, block.x + t * WIDTH, WIDTH);
    }
}

static rp_gdn_states *states_of(rp_gdn_map map)
{
    rp_gdn_states_options o;
    rp_gdn_states *s = NULL;
    rp_gdn_states_options_init(&o);
    o.gdn = (rp_gdn){.n_key_heads = KEY_HEADS,
                     .n_value_heads = VALUE_HEADS,
                     .key_dim = DIM,
                     .value_dim = DIM,
                     .map = map,
                     .norm = RP_GDN_NORM_ROOT,
                     .eps = 1e-6f};
    o.n_slots = 2;
    o.conv_channels = CHANNELS;
    o.conv_kernel = KERNEL;
    MUST(rp_gdn_states_create(&o, &s, ERR));
    return s;
}

/* The largest difference from what transformers has behind the last projection, whose columns
 * follow the block's own order of value heads. */
static double behind_projection(const float *rows, rp_gdn_map map)
{
    double worst = 0;
    for (size_t t = 0; t < ROWS; t++) {
        float row[VALUES];
        for (size_t h = 0; h < VALUE_HEADS; h++)
            memcpy(row + h * DIM, rows + t * VALUES + head_of(map, h / PER_KEY, h % PER_KEY) * DIM,
                   DIM * sizeof *row);
        for (size_t c = 0; c < WIDTH; c++)
            worst = fmax(worst, fabs(dot(block.out + c * VALUES, row, VALUES) -
                                     (double)block.y[t * WIDTH + c]));
    }
    return worst;
}

/* The block's own packed projections, in one call or cut in two: what transformers has. */
static void check_call(rp_gdn_map map, size_t cut)
{
    static struct way way;
    static struct ordered_heads heads;
    static float qkvz[ROWS * (CHANNELS + VALUES)], ba[ROWS * 2 * VALUE_HEADS], out[ROWS * VALUES];
    const size_t starts[] = {0, cut, ROWS};
    rp_gdn_states *s = states_of(map);
    way.map = map;
    order_conv(&way);
    order_heads(&heads, map);
    project(block.qkvz, CHANNELS + VALUES, qkvz);
    project(block.ba, (size_t)2 * VALUE_HEADS, ba);
    rp_gdn_block weights;
    rp_gdn_block_init(&weights);
    weights.conv_w = way.w;
    weights.a_log = heads.a_log;
    weights.dt_bias = heads.dt_bias;
    weights.norm_w = block.norm;
    for (int i = 0; i < 2; i++) {
        const int32_t slot = 1, cu[] = {0, (int32_t)(starts[i + 1] - starts[i])};
        rp_gdn_block_batch b;
        rp_gdn_block_batch_init(&b);
        b.n_seqs = 1;
        b.slots = &slot;
        b.cu = cu;
        b.qkvz.data = qkvz + starts[i] * (CHANNELS + VALUES);
        b.qkvz.ld = CHANNELS + VALUES;
        b.ba.data = ba + starts[i] * 2 * VALUE_HEADS;
        b.ba.ld = (size_t)2 * VALUE_HEADS;
        b.out = out + starts[i] * VALUES;
        b.ld_out = VALUES;
        MUST(rp_gdn_run_block(s, &weights, &b, ERR));
    }
    const double off = behind_projection(out, map) / largest(block.y, ROWS * WIDTH);
    if (!(off <= 2e-5))
        fail_msg("map %d, cut at %zu: %g of the largest", (int)map, cut, off);
    rp_gdn_states_destroy(s);
}

static void test_block_in_one_call(void **state)
{
    (void)state;
    read_block();
    check_call(RP_GDN_GROUPED, 0);
    check_call(RP_GDN_GROUPED, 73);
    check_call(RP_GDN_TILED, 0);
    check_call(RP_GDN_TILED, 3);
}

/* ---- as a graph -------------------------------------------------------------------------------
 */

/* The block's weights with value heads in the order of a map; rows of the projection are q, k, v,
 * z, b, a. */
struct ordered {
    float projection[PROJECTED * WIDTH], out[WIDTH * VALUES];
    float conv[CHANNELS * KERNEL], rate[VALUE_HEADS], dt_bias[VALUE_HEADS];
};

static void copy_rows(float *to, size_t to_row, const float *from, size_t from_row, size_t n)
{
    memcpy(to + to_row * WIDTH, from + from_row * WIDTH, n * WIDTH * sizeof *to);
}

static void order_head(struct ordered *o, rp_gdn_map map, bool linear_rate, size_t key_head,
                       size_t k)
{
    const size_t h = head_of(map, key_head, k), was = key_head * PER_KEY + k;
    const size_t packed = key_head * (2 + 2 * PER_KEY) * DIM; /* of qkvz */
    const size_t gates = CHANNELS + VALUES, ba = key_head * 2 * PER_KEY;
    copy_rows(o->projection, 2 * KEYS + h * DIM, block.qkvz, packed + (2 + k) * DIM, DIM);
    copy_rows(o->projection, CHANNELS + h * DIM, block.qkvz, packed + (2 + PER_KEY + k) * DIM, DIM);
    copy_rows(o->projection, gates + h, block.ba, ba + k, 1);
    copy_rows(o->projection, gates + VALUE_HEADS + h, block.ba, ba + PER_KEY + k, 1);
    memcpy(o->conv + (2 * KEYS + h * DIM) * KERNEL, block.conv + (2 * KEYS + was * DIM) * KERNEL,
           DIM * KERNEL * sizeof(float));
    for (size_t c = 0; c < WIDTH; c++)
        memcpy(o->out + c * VALUES + h * DIM, block.out + c * VALUES + was * DIM,
               DIM * sizeof(float));
    o->rate[h] = linear_rate ? (float)-exp((double)block.a_log[was]) : block.a_log[was];
    o->dt_bias[h] = block.dt_bias[was];
}

static void order_weights(struct ordered *o, rp_gdn_map map, bool linear_rate)
{
    memcpy(o->conv, block.conv, 2 * KEYS * KERNEL * sizeof(float));
    for (size_t h = 0; h < KEY_HEADS; h++) {
        const size_t packed = h * (2 + 2 * PER_KEY) * DIM;
        copy_rows(o->projection, h * DIM, block.qkvz, packed, DIM);
        copy_rows(o->projection, KEYS + h * DIM, block.qkvz, packed + DIM, DIM);
        for (size_t k = 0; k < PER_KEY; k++)
            order_head(o, map, linear_rate, h, k);
    }
}

static rp_weight add(rp_weights *weights, const char *name, const float *data, size_t rows,
                     size_t cols)
{
    const rp_weight_part part = {.rows = rows, .dtype = RP_DTYPE_F32, .data = data};
    rp_weight w = -1;
    MUST(rp_weights_add(weights, name, cols, 1, &part, &w, ERR));
    return w;
}

/* The input's rows are those of an embedding table. */
static void build_block(rp_graph *g, rp_weights *w, const struct ordered *o, rp_gdn_map map,
                        bool linear_rate)
{
    const rp_embed_table table = {add(w, "x", block.x, ROWS, WIDTH), RP_INDEX_IDS, 0};
    const rp_conv conv = {add(w, "conv", o->conv, CHANNELS, KERNEL), -1, RP_ACT_SILU};
    const rp_gdn_gates gates = {.n_heads = VALUE_HEADS,
                                .b_column = CHANNELS + VALUES,
                                .a_column = CHANNELS + VALUES + VALUE_HEADS,
                                .a_log = add(w, "rate", o->rate, 1, VALUE_HEADS),
                                .dt_bias = add(w, "dt_bias", o->dt_bias, 1, VALUE_HEADS),
                                .linear_rate = linear_rate};
    const rp_gdn rule = {.n_key_heads = KEY_HEADS,
                         .n_value_heads = VALUE_HEADS,
                         .key_dim = DIM,
                         .value_dim = DIM,
                         .map = map,
                         .norm = RP_GDN_NORM_ROOT,
                         .eps = 1e-6f};
    const rp_gated_norm norm = {.w = add(w, "norm", block.norm, 1, DIM),
                                .eps = 1e-6f,
                                .head_dim = DIM,
                                .activation = RP_ACT_SILU,
                                .first_column = CHANNELS};
    const rp_weight in = add(w, "in", o->projection, PROJECTED, WIDTH);
    const rp_weight out = add(w, "out", o->out, WIDTH, VALUES);
    const rp_value x = rp_graph_embed(g, "x", 1, &table);
    const rp_value p = rp_graph_gemm(g, "in", x, in, -1, RP_ACT_NONE, -1);
    const rp_value mixed = rp_graph_conv(g, "conv", p, &conv);
    const rp_value decays = rp_graph_gdn_gates(g, "gates", p, &gates);
    rp_value y = rp_graph_gdn(g, "core", mixed, decays, &rule);
    y = rp_graph_gated_norm(g, "norm", y, p, &norm);
    rp_graph_output(g, "projected", p, RP_ROWS_TOKENS, PROJECTED);
    rp_graph_output(g, "normed", y, RP_ROWS_TOKENS, VALUES);
    y = rp_graph_gemm(g, "out", y, out, -1, RP_ACT_NONE, -1);
    rp_graph_output(g, "y", y, RP_ROWS_TOKENS, WIDTH);
}

/* n rows, the first `cut` of them as the parent of the others, or in one piece with 0. */
static void run_graph(rp_session *session, size_t n, size_t cut, float *y)
{
    int32_t ids[ROWS];
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)i;
    const int32_t pieces[] = {0, (int32_t)cut, (int32_t)n}, whole[] = {0, (int32_t)n};
    static const int32_t parents[] = {-1, 0};
    rp_batch batch;
    rp_view view;
    rp_batch_init(&batch);
    batch.ids = ids;
    batch.n_seqs = cut ? 2 : 1;
    batch.cu = cut ? pieces : whole;
    batch.parents = cut ? parents : NULL;
    MUST(rp_session_run(session, &batch, ERR));
    MUST(rp_session_output(session, "y", &view, ERR));
    memcpy(y, view.data, n * WIDTH * sizeof *y);
}

/* The graph's projections through the call, as columns of one row: the graph's bits. */
static void check_bits(rp_session *session, const struct ordered *o, rp_gdn_map map,
                       bool linear_rate, size_t n)
{
    static float out[ROWS * VALUES];
    rp_view projected, normed;
    MUST(rp_session_output(session, "projected", &projected, ERR));
    MUST(rp_session_output(session, "normed", &normed, ERR));
    const float *p = projected.data;
    rp_gdn_states *s = states_of(map);
    rp_gdn_block weights;
    rp_gdn_block_init(&weights);
    weights.conv_w = o->conv;
    weights.a_log = o->rate;
    weights.dt_bias = o->dt_bias;
    weights.linear_rate = linear_rate;
    weights.norm_w = block.norm;
    const int32_t slot = 0, cu[] = {0, (int32_t)n};
    rp_gdn_block_batch b;
    rp_gdn_block_batch_init(&b);
    b.n_seqs = 1;
    b.slots = &slot;
    b.cu = cu;
    b.q.data = p;
    b.k.data = p + KEYS;
    b.v.data = p + 2 * KEYS;
    b.z.data = p + CHANNELS;
    b.b.data = p + CHANNELS + VALUES;
    b.a.data = p + CHANNELS + VALUES + VALUE_HEADS;
    b.q.ld = b.k.ld = b.v.ld = b.z.ld = b.b.ld = b.a.ld = projected.width;
    b.out = out;
    b.ld_out = VALUES;
    MUST(rp_gdn_run_block(s, &weights, &b, ERR));
    for (size_t t = 0; t < n; t++)
        assert_memory_equal(out + t * VALUES, (const float *)normed.data + t * normed.width,
                            VALUES * sizeof *out);
    rp_gdn_states_destroy(s);
}

static void check_graph(rp_gdn_map map, bool linear_rate)
{
    static const size_t cuts[][2] = {{4, 3}, {ROWS, 73}, {ROWS, 72}, {ROWS, 64}, {ROWS, 1}};
    static struct ordered ordered;
    static float y[ROWS * WIDTH], again[ROWS * WIDTH];
    rp_graph *graph = NULL;
    rp_weights *weights = NULL;
    rp_session *session = NULL;
    order_weights(&ordered, map, linear_rate);
    MUST(rp_graph_create(&graph, ERR));
    MUST(rp_weights_create(&weights, ERR));
    build_block(graph, weights, &ordered, map, linear_rate);
    MUST(rp_session_create(graph, weights, NULL, &session, ERR));
    run_graph(session, ROWS, 0, y);
    const double off = difference(y, block.y, ROWS * WIDTH) / largest(block.y, ROWS * WIDTH);
    print_message("    map %d, %s rate: %.2g of the largest\n", (int)map,
                  linear_rate ? "linear" : "log", off);
    assert_true(off <= 2e-5);
    check_bits(session, &ordered, map, linear_rate, ROWS);
    const size_t n_cuts =
        linear_rate ? 2 : sizeof cuts / sizeof *cuts; /* no cut depends on the rate */
    for (size_t i = 0; i < n_cuts; i++) {
        run_graph(session, cuts[i][0], cuts[i][1], again);
        assert_memory_equal(again, y, cuts[i][0] * WIDTH * sizeof *y);
    }
    rp_session_destroy(session);
    rp_graph_destroy(graph);
    rp_weights_destroy(weights);
}

static void test_block_as_a_graph(void **state)
{
    (void)state;
    read_block();
    check_graph(RP_GDN_GROUPED, false);
    check_graph(RP_GDN_GROUPED, true);
    check_graph(RP_GDN_TILED, false);
    check_graph(RP_GDN_TILED, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_block),
                                       cmocka_unit_test(test_block_in_one_call),
                                       cmocka_unit_test(test_block_as_a_graph)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
