/* A graph that the bytes build through the public interface: ops, shapes, weights, row kinds and
 * outputs.  Most of the time shapes are made to fit, so that graphs compile; the rest is as wrong
 * as it comes.  Text of any buffer size is the beginning of the same text; a dry run says what
 * compiling says; a plan that compiles runs, and fused or not, poisoned or not, with or without the
 * rows that nobody reads, it gives the same bits. */
#include "tests/fuzz/fuzz.h"

#include <rankplan/rankplan.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_OPS     24
#define MAX_OUTPUTS 4
#define MAX_WEIGHTS 64
#define MAX_WIDTH   60
#define NUMBERS     (4 * MAX_WIDTH * MAX_WIDTH)

/* ---- bytes ------------------------------------------------------------------------------------
 */

struct bytes {
    const uint8_t *p, *end;
};

static unsigned next(struct bytes *b, unsigned below)
{
    return b->p < b->end ? *b->p++ % below : 0;
}

/* True once in about n calls; never when the bytes are over. */
static bool rarely(struct bytes *b, unsigned n)
{
    return next(b, n) == n - 1;
}

/* ---- what is built ----------------------------------------------------------------------------
 */

struct shape {
    rp_rows rows;
    size_t width;
};

struct build {
    struct bytes bytes;
    rp_graph *graph;
    rp_weights *weights;
    struct shape shapes[2 * MAX_OPS]; /* as they are if nothing was wrong */
    int n_values;
    size_t n_weights;
    size_t vocabulary; /* the least table: ids below it are in all of them */
    bool reads_fail;
    char outputs[MAX_OUTPUTS][16];
    size_t n_outputs;
};

/* What all weights are read from; half-precision ones take the same bytes for other numbers. */
static float numbers[NUMBERS];

static void make_numbers(void)
{
    uint64_t state = 1;
    for (size_t i = 0; i < NUMBERS; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        numbers[i] = (float)((int)(state >> 41) - (1 << 22)) * 0x1p-22f;
        /* The lower half is a bf16 and an f16 of order one too. */
        uint32_t bits;
        memcpy(&bits, &numbers[i], sizeof bits);
        bits = (bits & 0xffff0000u) | (0x3800u + (bits >> 20) % 0x400u);
        memcpy(&numbers[i], &bits, sizeof bits);
    }
}

static rp_status read_numbers(void *context, uint64_t offset, void *dst, size_t n, rp_error *err)
{
    const struct build *b = context;
    FUZZ_CHECK(offset <= sizeof numbers && n <= sizeof numbers - offset);
    if (b->reads_fail) {
        if (err) {
            err->status = RP_ERR_IO;
            snprintf(err->message, sizeof err->message, "as the fuzzer wants it");
        }
        return RP_ERR_IO;
    }
    memcpy(dst, (const char *)numbers + offset, n);
    return RP_OK;
}

static rp_weight add_weight(struct build *b, size_t rows, size_t cols)
{
    static const char *const names[] = {"w", "layers.0.w", "%s%n", "\xff\xfe", ""};
    struct bytes *in = &b->bytes;
    rp_weight_part parts[3];
    rp_weight w = -1;
    rp_error err = {0};
    size_t n = rows > 1 && rarely(in, 4) ? 2 : 1;
    memset(parts, 0, sizeof parts);
    for (size_t i = 0; i < n; i++) {
        parts[i].rows = n == 1 ? rows : i == 0 ? rows / 2 : rows - rows / 2;
        parts[i].dtype = (rp_dtype)(rarely(in, 3) ? next(in, 4) : 0);
        parts[i].data = rarely(in, 4) ? NULL : numbers + next(in, 8);
        parts[i].read = rarely(in, 16) ? NULL : read_numbers;
        parts[i].context = b;
    }
    if (rarely(in, 32))
        n = 0;
    if (rarely(in, 32))
        parts[0].rows = next(in, 2) ? SIZE_MAX : 0;
    const rp_status s = rp_weights_add(b->weights, names[next(in, 5)], cols, n, parts, &w, &err);
    FUZZ_CHECK(s == RP_OK ? w == (rp_weight)b->n_weights : w == -1 && err.message[0]);
    b->n_weights += s == RP_OK;
    return w;
}

/* A weight of that shape, or now and then another one, or none at all. */
static rp_weight weight(struct build *b, size_t rows, size_t cols)
{
    struct bytes *in = &b->bytes;
    if (b->n_weights >= MAX_WEIGHTS || rarely(in, 24))
        return (rp_weight)next(in, MAX_WEIGHTS + 2) - 2;
    if (rarely(in, 24))
        rows = next(in, MAX_WIDTH + 1);
    if (rarely(in, 24))
        cols = next(in, MAX_WIDTH + 1);
    if (rows == 0 || rows > MAX_WIDTH || cols > MAX_WIDTH)
        rows = 1, cols = 1;
    return add_weight(b, rows, cols);
}

static rp_weight weight_or_none(struct build *b, size_t rows, size_t cols)
{
    return next(&b->bytes, 2) ? weight(b, rows, cols) : -1;
}

/* A value, from the latest back; now and then one that is none. */
static rp_value value(struct build *b)
{
    struct bytes *in = &b->bytes;
    if (b->n_values == 0 || rarely(in, 48))
        return (rp_value)next(in, MAX_OPS + 4) - 2;
    return b->n_values - 1 - (rp_value)next(in, b->n_values < 4 ? (unsigned)b->n_values : 4);
}

/* A value that is shaped alike, the same one if there is no other. */
static rp_value value_like(struct build *b, struct shape s, rp_value otherwise)
{
    if (rarely(&b->bytes, 32))
        return value(b);
    unsigned skip = next(&b->bytes, 3);
    for (rp_value v = b->n_values - 1; v >= 0; v--)
        if (b->shapes[v].rows == s.rows && b->shapes[v].width == s.width && skip-- == 0)
            return v;
    return otherwise;
}

static struct shape shape_of(const struct build *b, rp_value v)
{
    const struct shape none = {RP_ROWS_TOKENS, 1};
    return v >= 0 && v < b->n_values ? b->shapes[v] : none;
}

static rp_activation activation(struct build *b)
{
    return (rp_activation)(rarely(&b->bytes, 32) ? (int)next(&b->bytes, 32) - 8
                                                 : (int)next(&b->bytes, 7));
}

static float epsilon(struct build *b)
{
    static const float some[] = {1e-12f, 1e-5f, 1, 0, -1, NAN, INFINITY};
    return some[rarely(&b->bytes, 24) ? next(&b->bytes, 7) : next(&b->bytes, 3)];
}

/* ---- ops --------------------------------------------------------------------------------------
 */

static rp_value op_embed(struct build *b, const char *name, struct shape *s)
{
    struct bytes *in = &b->bytes;
    rp_embed_table tables[6];
    const size_t n = rarely(in, 32) ? next(in, 7) : 1 + next(in, 3);
    *s = (struct shape){RP_ROWS_TOKENS, 1 + next(in, MAX_WIDTH)};
    for (size_t i = 0; i < n && i < 6; i++) {
        const size_t rows = 4 + next(in, 20);
        if (rows < b->vocabulary)
            b->vocabulary = rows;
        tables[i] = (rp_embed_table){.table = weight(b, rows, s->width),
                                     .index = (rp_index)(rarely(in, 48) ? 9 : next(in, 4)),
                                     .parameter = rarely(in, 16) ? (int)next(in, 256) - 128 : 1};
    }
    return rp_graph_embed(b->graph, name, n, tables);
}

static rp_value op_gemm(struct build *b, const char *name, struct shape *s)
{
    const rp_value a = value(b);
    *s = shape_of(b, a);
    const size_t k = s->width;
    if (next(&b->bytes, 2))
        s->width = 1 + next(&b->bytes, MAX_WIDTH);
    const rp_weight w = weight(b, s->width, k);
    const rp_weight bias = weight_or_none(b, 1, s->width);
    const rp_activation act = activation(b);
    const rp_value residual = next(&b->bytes, 2) ? value_like(b, *s, -1) : -1;
    return rp_graph_gemm(b->graph, name, a, w, bias, act, residual);
}

/* Tries to find a value that splits into three times some heads; a GEMM makes one otherwise. */
static rp_value op_attention(struct build *b, const char *name, bool windowed, bool causal,
                             bool of_options, struct shape *s)
{
    /* The largest that is allowed has a table of 8 MiB a head: too slow for here. */
    static const int32_t distances[] = {-1, 0, 1, 9, 4000, INT32_MAX};
    struct bytes *in = &b->bytes;
    const rp_value x = value(b);
    const size_t third = shape_of(b, x).width / 3;
    const size_t heads = third % 4 == 0 && next(in, 2) ? 4 : third % 2 == 0 && next(in, 2) ? 2 : 1;
    rp_attention options = {.n_heads = (int32_t)heads,
                            .head_dim = (int32_t)(third / heads),
                            .scale = rarely(in, 8) ? epsilon(b) : 0,
                            .rel_bias = -1,
                            .rel_max_distance = 128,
                            .causal = causal,
                            .options = of_options};
    if (rarely(in, of_options ? 16 : 3)) {
        options.rel_bias = weight(b, 4 + 2 * next(in, 16), heads);
        options.rel_max_distance = rarely(in, 6) ? distances[next(in, 6)] : 64;
    }
    if (rarely(in, 32))
        options.n_heads = (int32_t)next(in, 256) << 23;
    if (rarely(in, 32))
        options.head_dim = (int32_t)next(in, 256) << 23;
    if (windowed)
        options.window = rarely(in, 16) ? (int32_t)(next(in, 256) << 24) : 1 + (int32_t)next(in, 6);
    *s = (struct shape){RP_ROWS_TOKENS, third};
    return rp_graph_attention(b->graph, name, x, &options);
}

/* Heads that fit what there is, most of the time. */
static rp_value op_rope(struct build *b, const char *name, bool of_options, struct shape *s)
{
    static const double frequencies[MAX_WIDTH] = {1, 0.5, -0.25, 1e-5, NAN, INFINITY, 0};
    static const double thetas[] = {10000, 160000, 1, 1e300, 0.5, -1, NAN, INFINITY};
    struct bytes *in = &b->bytes;
    const rp_value x = value(b);
    *s = shape_of(b, x);
    const size_t width = s->width < MAX_WIDTH ? s->width : MAX_WIDTH;
    const size_t heads = 1 + next(in, 4), dim = width / heads / 2 * 2;
    rp_rope options = {.n_heads = (int32_t)heads,
                       .head_dim = (int32_t)dim,
                       .n_rotated =
                           next(in, 2) ? 0 : (int32_t)(next(in, MAX_WIDTH) % (dim + 1)) & ~1,
                       .interleaved = next(in, 2),
                       .theta = thetas[rarely(in, 24) ? next(in, 8) : next(in, 3)],
                       .scale = rarely(in, 8) ? (double)epsilon(b) : 0,
                       .options = of_options};
    if (rarely(in, 4)) {
        options.inv_freq = frequencies + (rarely(in, 24) ? 2 : 0);
        if (!options.n_rotated)
            options.n_rotated = options.head_dim < 8 ? options.head_dim : 8;
    }
    if (rarely(in, 32))
        options.n_heads = (int32_t)next(in, 256) << 23;
    if (rarely(in, 32) && !options.inv_freq)
        options.head_dim = (int32_t)next(in, 256) << 23;
    if (rarely(in, 32) && !options.inv_freq)
        options.n_rotated = (int32_t)next(in, 256) - 128;
    return rp_graph_rope(b->graph, name, x, &options);
}

static rp_value op_glu(struct build *b, const char *name, struct shape *s)
{
    const rp_value x = value(b);
    *s = shape_of(b, x);
    s->width /= 2;
    return rp_graph_glu(b->graph, name, x, activation(b));
}

static rp_value op_concat(struct build *b, const char *name, struct shape *s)
{
    rp_value values[12];
    const size_t n = rarely(&b->bytes, 24) ? next(&b->bytes, 13) : 1 + next(&b->bytes, 3);
    const rp_value first = value(b);
    *s = (struct shape){shape_of(b, first).rows, 0};
    for (size_t i = 0; i < n && i < 12; i++) {
        rp_value v = i ? value(b) : first;
        if (shape_of(b, v).rows != s->rows && !rarely(&b->bytes, 24))
            v = first;
        values[i] = v;
        s->width += shape_of(b, v).width;
    }
    return rp_graph_concat(b->graph, name, n, values);
}

static rp_value op_simple(struct build *b, const char *name, unsigned op, struct shape *s)
{
    const rp_value x = value(b);
    *s = shape_of(b, x);
    switch (op) {
    case 0: {
        const rp_weight w = weight(b, 1, s->width), bias = weight_or_none(b, 1, s->width);
        return rp_graph_layer_norm(b->graph, name, x, w, bias, epsilon(b));
    }
    case 1:
        s->rows = RP_ROWS_SEQS;
        return rp_graph_pool(b->graph, name, x, (rp_pooling)next(&b->bytes, 7));
    case 2: return rp_graph_l2_norm(b->graph, name, x, epsilon(b));
    case 3: return rp_graph_activation(b->graph, name, x, activation(b));
    case 4: return rp_graph_add(b->graph, name, x, value_like(b, *s, x));
    default: s->rows = RP_ROWS_MARKERS; return rp_graph_gather_markers(b->graph, name, x);
    }
}

static rp_value op_decision(struct build *b, const char *name, bool features, struct shape *s)
{
    const rp_value x = value(b);
    *s = shape_of(b, x);
    if (!features) {
        const size_t types = 1 + next(&b->bytes, 4);
        return rp_graph_add_types(b->graph, name, x, weight(b, types, s->width));
    }
    const rp_value logits = value_like(b, (struct shape){RP_ROWS_MARKERS, 1}, x);
    rp_value first = x;
    if (s->rows == RP_ROWS_TOKENS) {
        first = rp_graph_pool(b->graph, name, x, RP_POOL_CLS);
        b->shapes[b->n_values++] = (struct shape){RP_ROWS_SEQS, s->width};
    }
    *s = (struct shape){RP_ROWS_SEQS, s->width + 4};
    return rp_graph_act_features(b->graph, name, first, logits);
}

static rp_value op_rms_norm(struct build *b, const char *name, struct shape *s)
{
    struct bytes *in = &b->bytes;
    const rp_value x = value(b);
    *s = shape_of(b, x);
    rp_rms_norm options = {.offset = next(in, 2), .eps = epsilon(b)};
    size_t dim = s->width;
    if (next(in, 2)) {
        options.n_heads = 1 + (int32_t)next(in, 3);
        options.first_column = (int32_t)next(in, 3);
        if (s->width > (size_t)options.first_column)
            dim = (s->width - (size_t)options.first_column) / (size_t)options.n_heads;
        options.head_dim = (int32_t)(dim < MAX_WIDTH ? dim : MAX_WIDTH);
    }
    options.w = options.offset ? weight(b, 1, dim) : weight_or_none(b, 1, dim);
    if (rarely(in, 32))
        options.n_heads = (int32_t)next(in, 256) << 23;
    if (rarely(in, 32))
        options.head_dim = (int32_t)next(in, 256) << 23;
    if (rarely(in, 32))
        options.first_column = (int32_t)next(in, 256) << 23;
    return rp_graph_rms_norm(b->graph, name, x, &options);
}

/* As many columns of something with the same rows. */
static rp_value op_gate(struct build *b, const char *name, bool normed, struct shape *s)
{
    struct bytes *in = &b->bytes;
    const rp_value x = value(b);
    *s = shape_of(b, x);
    const rp_value gate = value_like(b, *s, x);
    const int32_t first = rarely(in, 16) ? (int32_t)next(in, 256) << 23 : 0;
    if (!normed) {
        const bool one = next(in, 2);
        const rp_gate options = {activation(b), one ? first + (int32_t)next(in, 3) : first, one};
        return rp_graph_gate(b->graph, name, x, gate, &options);
    }
    const size_t heads = s->width % 2 ? 1 : 2, dim = s->width / heads;
    const rp_gated_norm options = {.w = weight(b, 1, dim),
                                   .eps = epsilon(b),
                                   .head_dim =
                                       rarely(in, 32) ? (int32_t)next(in, 256) << 23 : (int32_t)dim,
                                   .activation = activation(b),
                                   .first_column = first};
    return rp_graph_gated_norm(b->graph, name, x, gate, &options);
}

static rp_value op_gdn_gates(struct build *b, const char *name, struct shape *s)
{
    struct bytes *in = &b->bytes;
    const rp_value x = value(b);
    *s = shape_of(b, x);
    const size_t heads = 1 + next(in, s->width < 8 ? (unsigned)s->width + !s->width : 8);
    rp_gdn_gates options = {.n_heads = (int32_t)heads,
                            .a_column = s->width > heads ? (int32_t)(s->width - heads) : 0,
                            .a_log = weight(b, 1, heads),
                            .dt_bias = weight_or_none(b, 1, heads),
                            .linear_rate = next(in, 2),
                            .beta_scale = rarely(in, 8) ? epsilon(b) : 0};
    if (rarely(in, 32))
        options.n_heads = (int32_t)next(in, 256) << 23;
    if (rarely(in, 32))
        options.b_column = (int32_t)next(in, 256) << 23;
    s->width = 2 * heads;
    return rp_graph_gdn_gates(b->graph, name, x, &options);
}

/* One pair of weights for all experts: there is room for few. */
static rp_value op_experts(struct build *b, const char *name, struct shape *s)
{
    struct bytes *in = &b->bytes;
    const rp_value x = value(b), logits = value(b);
    const size_t n = shape_of(b, logits).width, inner = 1 + next(in, MAX_WIDTH / 2);
    rp_weight up[RP_EXPERTS_MAX], down[RP_EXPERTS_MAX];
    *s = shape_of(b, x);
    const rp_weight first_up = weight(b, 2 * inner, s->width);
    const rp_weight first_down = weight(b, s->width, inner);
    for (size_t e = 0; e < RP_EXPERTS_MAX; e++) {
        up[e] = first_up;
        down[e] = first_down;
    }
    rp_experts options = {.n_experts = n < INT32_MAX ? (int32_t)n : 1,
                          .n_used = 1 + (int32_t)next(in, n < 4 ? (unsigned)n + !n : 4),
                          .normalize = next(in, 2),
                          .activation = activation(b),
                          .up = up,
                          .down = rarely(in, 32) ? NULL : down};
    if (rarely(in, 32))
        options.n_experts = (int32_t)next(in, 256) << 23;
    if (rarely(in, 32))
        options.n_used = (int32_t)next(in, 256) << 23;
    return rp_graph_experts(b->graph, name, x, logits, &options,
                            next(in, 2) ? value_like(b, *s, -1) : -1);
}

static rp_value op_by_row(struct build *b, const char *name, struct shape *s)
{
    switch (next(&b->bytes, 5)) {
    case 0: return op_rms_norm(b, name, s);
    case 1: return op_gate(b, name, false, s);
    case 2: return op_gate(b, name, true, s);
    case 3: return op_gdn_gates(b, name, s);
    default: return op_experts(b, name, s);
    }
}

static rp_value op_conv(struct build *b, const char *name, struct shape *s)
{
    struct bytes *in = &b->bytes;
    const rp_value x = value(b);
    *s = shape_of(b, x);
    s->width -= s->width > 1 ? next(in, s->width < 4 ? 2 : 4) : 0;
    const size_t kernel = rarely(in, 32) ? next(in, 12) : 1 + next(in, 8);
    const rp_weight w = weight(b, s->width, kernel);
    const rp_conv options = {w, weight_or_none(b, 1, s->width), activation(b)};
    return rp_graph_conv(b->graph, name, x, &options);
}

/* Values take what the keys leave of the columns; gates are a product, since few values fit. */
static rp_value op_gdn(struct build *b, const char *name, struct shape *s)
{
    struct bytes *in = &b->bytes;
    const rp_value x = value(b);
    *s = shape_of(b, x);
    const size_t key_heads = 1 + next(in, 2), heads = key_heads * (1 + next(in, 2));
    const size_t key_dim = 1 + next(in, 5), keys = 2 * key_heads * key_dim;
    const size_t left = s->width > keys ? s->width - keys : 0;
    rp_gdn options = {.n_key_heads = (int32_t)key_heads,
                      .n_value_heads = (int32_t)heads,
                      .key_dim = (int32_t)key_dim,
                      .value_dim = (int32_t)(left / heads),
                      .map = (rp_gdn_map)(rarely(in, 32) ? next(in, 256) : next(in, 2)),
                      .norm = (rp_gdn_norm)(rarely(in, 32) ? next(in, 256) : next(in, 3)),
                      .eps = epsilon(b),
                      .scale = rarely(in, 8) ? epsilon(b) : 0};
    rp_value gates = value_like(b, (struct shape){RP_ROWS_TOKENS, 2 * heads}, -1);
    if (gates == -1) {
        const rp_weight w = weight(b, 2 * heads, s->width);
        gates = rp_graph_gemm(b->graph, "gates", x, w, -1, RP_ACT_NONE, -1);
        b->shapes[b->n_values++] = (struct shape){s->rows, 2 * heads};
    }
    if (rarely(in, 32))
        options.n_key_heads = (int32_t)next(in, 256) << 23;
    if (rarely(in, 32))
        options.n_value_heads = (int32_t)next(in, 256) << 23;
    if (rarely(in, 32))
        options.key_dim = (int32_t)next(in, 256) << 23;
    if (rarely(in, 32))
        options.value_dim = (int32_t)next(in, 256) << 23;
    *s = (struct shape){RP_ROWS_TOKENS, heads * (left / heads)};
    return rp_graph_gdn(b->graph, name, x, gates, &options);
}

/* What runs along a sequence and can take a parent's rows. */
static rp_value op_along(struct build *b, const char *name, struct shape *s)
{
    switch (next(&b->bytes, 4)) {
    case 0: return op_conv(b, name, s);
    case 1: return op_attention(b, name, false, true, false, s);
    case 2: return op_attention(b, name, true, true, false, s);
    default: return op_gdn(b, name, s);
    }
}

/* What batches of the runs below bring along. */
#define INPUT_WIDTH  ((size_t)24)
#define MEMORY_WIDTH ((size_t)60)
#define MEMORY_ROWS  ((size_t)9)

static rp_value op_input(struct build *b, const char *name, struct shape *s)
{
    s->width = rarely(&b->bytes, 24) ? next(&b->bytes, 256) : INPUT_WIDTH;
    return rp_graph_input(b->graph, name, s->width);
}

/* Heads that fit what there is, most of the time. */
static rp_value op_cross_attention(struct build *b, const char *name, struct shape *s)
{
    struct bytes *in = &b->bytes;
    const rp_value x = value(b);
    *s = shape_of(b, x);
    const size_t heads = s->width % 4 == 0 && next(in, 2)   ? 4
                         : s->width % 2 == 0 && next(in, 2) ? 2
                                                            : 1;
    const size_t kv_heads = heads > 1 && next(in, 2) ? heads / 2 : heads, dim = s->width / heads;
    const size_t columns = kv_heads * dim,
                 left = columns < MEMORY_WIDTH ? MEMORY_WIDTH - columns : 0;
    rp_cross_attention options = {.n_heads = (int32_t)heads,
                                  .head_dim = (int32_t)dim,
                                  .n_kv_heads = (int32_t)kv_heads,
                                  .scale = rarely(in, 8) ? epsilon(b) : 0,
                                  .memory_width = (int32_t)MEMORY_WIDTH,
                                  .key_column = (int32_t)next(in, (unsigned)left + 1),
                                  .value_column = (int32_t)next(in, (unsigned)left + 1),
                                  .max_memory = (int32_t)MEMORY_ROWS};
    if (rarely(in, 32))
        options.n_heads = (int32_t)next(in, 256) << 23;
    if (rarely(in, 32))
        options.n_kv_heads = (int32_t)next(in, 256) << 23;
    if (rarely(in, 32))
        options.value_column = (int32_t)next(in, 256) << 23;
    if (rarely(in, 32))
        options.memory_width = (int32_t)next(in, 256) << 23;
    if (rarely(in, 32))
        options.max_memory = (int32_t)next(in, 256) << 23;
    return rp_graph_cross_attention(b->graph, name, x, &options);
}

/* What split encoders are made of. */
static rp_value op_split(struct build *b, const char *name, struct shape *s)
{
    switch (next(&b->bytes, 5)) {
    case 0: return op_input(b, name, s);
    case 1: return op_cross_attention(b, name, s);
    case 2: return op_attention(b, name, false, false, true, s);
    case 3: return op_rope(b, name, true, s);
    default:
        *s = (struct shape){RP_ROWS_MARKERS, 4};
        return rp_graph_ordinal_features(b->graph, name, (int32_t)next(&b->bytes, 4) - 1);
    }
}

static void add_op(struct build *b)
{
    static char long_name[1500];
    static const char *const names[] = {"embeddings", "layers.3.attn.qkv", "", "%s %n", "\xc3",
                                        long_name};
    struct shape s = {RP_ROWS_TOKENS, 1};
    if (!long_name[0])
        memset(long_name, 'x', sizeof long_name - 1);
    const char *name = names[rarely(&b->bytes, 16) ? 5 : next(&b->bytes, 5)];
    /* The last sixteen of a byte's values are the ops that came later: the corpus keeps its
     * meaning. */
    const unsigned byte = b->n_values == 0 && !rarely(&b->bytes, 32) ? 6 : next(&b->bytes, 256);
    const unsigned op = byte == 249   ? 22
                        : byte == 250 ? 20
                        : byte == 251 ? 21
                        : byte < 240  ? byte % 12
                        : byte < 252  ? 12 + byte % 3
                                      : 15 + byte % 2;
    rp_value v;
    if (op <= 5)
        v = op_simple(b, name, op, &s);
    else if (op == 6)
        v = op_embed(b, name, &s);
    else if (op == 7)
        v = op_concat(b, name, &s);
    else if (op <= 9 || op == 14)
        v = op_attention(b, name, op == 14, false, false, &s);
    else if (op == 12)
        v = op_glu(b, name, &s);
    else if (op == 13)
        v = op_rope(b, name, false, &s);
    else if (op == 20)
        v = op_by_row(b, name, &s);
    else if (op == 21)
        v = op_along(b, name, &s);
    else if (op == 22)
        v = op_split(b, name, &s);
    else if (op >= 15)
        v = op_decision(b, name, op == 16, &s);
    else
        v = op_gemm(b, name, &s);
    FUZZ_CHECK(v == b->n_values);
    b->shapes[b->n_values++] = s;
}

static void add_output(struct build *b)
{
    const rp_value v = value(b);
    struct shape s = shape_of(b, v);
    char *name = b->outputs[b->n_outputs];
    if (rarely(&b->bytes, 24))
        s.width = next(&b->bytes, 256);
    if (rarely(&b->bytes, 24))
        s.rows = (rp_rows)next(&b->bytes, 5);
    snprintf(name, sizeof b->outputs[0], "out%u", next(&b->bytes, 32));
    rp_graph_output(b->graph, name, v, s.rows, s.width);
    b->n_outputs++;
}

static void build(struct build *b, const uint8_t *data, size_t size)
{
    memset(b, 0, sizeof *b);
    b->bytes = (struct bytes){data, data + size};
    b->vocabulary = 24;
    FUZZ_CHECK(rp_graph_create(&b->graph, NULL) == RP_OK);
    FUZZ_CHECK(rp_weights_create(&b->weights, NULL) == RP_OK);
    b->reads_fail = rarely(&b->bytes, 32);
    while (b->n_values < MAX_OPS && (b->bytes.p < b->bytes.end || b->n_values == 0)) {
        add_op(b);
        if (b->n_outputs < MAX_OUTPUTS && rarely(&b->bytes, 6))
            add_output(b);
    }
    if (b->n_outputs == 0)
        add_output(b);
    FUZZ_CHECK(rp_graph_n_ops(b->graph) == (size_t)b->n_values);
}

/* ---- what has to hold -------------------------------------------------------------------------
 */

static void check_graph_text(const struct build *b)
{
    const size_t n = rp_graph_text(b->graph, b->weights, NULL, 0);
    char *whole = malloc(n + 1);
    FUZZ_CHECK(whole && n > 0);
    FUZZ_CHECK(rp_graph_text(b->graph, b->weights, whole, n + 1) == n && strlen(whole) == n);
    const size_t sizes[] = {1, 2, n / 2 + 1, n};
    for (size_t i = 0; i < 4; i++) {
        char *exact = malloc(sizes[i]);
        FUZZ_CHECK(exact && rp_graph_text(b->graph, b->weights, exact, sizes[i]) == n);
        FUZZ_CHECK(strlen(exact) == sizes[i] - 1 && memcmp(exact, whole, sizes[i] - 1) == 0);
        free(exact);
    }
    free(whole);
}

static void check_plan(const rp_plan *plan, const rp_plan_sizes *measured)
{
    rp_plan_sizes sizes;
    rp_step_info step;
    char small[7];
    rp_plan_get_sizes(plan, &sizes);
    FUZZ_CHECK(sizes.arena_bytes == measured->arena_bytes);
    FUZZ_CHECK(sizes.scratch_bytes_per_thread == measured->scratch_bytes_per_thread);
    FUZZ_CHECK(rp_plan_n_steps(plan) > 0);
    FUZZ_CHECK(rp_plan_step(plan, rp_plan_n_steps(plan), &step) == RP_ERR_INVALID);
    for (size_t i = 0; i < rp_plan_n_steps(plan); i++)
        FUZZ_CHECK(rp_plan_step(plan, i, &step) == RP_OK && step.index == i && step.kernel[0]);
    const size_t n = rp_plan_text(plan, small, sizeof small);
    char *text = malloc(n + 1);
    FUZZ_CHECK(text && rp_plan_text(plan, text, n + 1) == n && strlen(text) == n);
    FUZZ_CHECK(memcmp(small, text, sizeof small - 1) == 0 && small[sizeof small - 1] == 0);
    free(text);
}

/* Compiles for a bucket; the dry run has to say the same. */
static rp_status compile(const struct build *b, const rp_bucket *bucket, bool no_fuse,
                         bool no_prune)
{
    rp_plan *plan = NULL;
    rp_plan_sizes measured = {0};
    rp_plan_options options;
    rp_error dry = {0}, err = {0};
    rp_plan_options_init(&options);
    options.no_fuse = no_fuse;
    options.no_prune = no_prune;
    const rp_status m = rp_plan_measure(b->graph, b->weights, bucket, &options, &measured, &dry);
    const rp_status s = rp_plan_compile(b->graph, b->weights, bucket, &options, &plan, &err);
    FUZZ_CHECK(m == RP_OK || (m == s && dry.status == m && strcmp(dry.message, err.message) == 0));
    FUZZ_CHECK(s == RP_OK || (!plan && err.status == s && err.message[0]));
    FUZZ_CHECK(s == RP_OK || m != RP_OK || s == RP_ERR_IO || s == RP_ERR_NOMEM);
    if (s == RP_OK)
        check_plan(plan, &measured);
    rp_plan_destroy(plan);
    return s;
}

struct result {
    rp_status status;
    rp_error err;
    float *outputs[MAX_OUTPUTS];
    size_t n[MAX_OUTPUTS], width[MAX_OUTPUTS];
    rp_rows kind[MAX_OUTPUTS];
};

static void run(const struct build *b, const rp_batch *batch, bool no_fuse, bool poison,
                bool no_prune, struct result *r)
{
    rp_session *session;
    rp_session_options options;
    rp_session_options_init(&options);
    options.max_tokens = 64;
    options.no_fuse = no_fuse;
    options.no_prune = no_prune;
    options.poison = poison;
    memset(r, 0, sizeof *r);
    FUZZ_CHECK(rp_session_create(b->graph, b->weights, &options, &session, NULL) == RP_OK);
    r->status = rp_session_run(session, batch, &r->err);
    FUZZ_CHECK(r->status == RP_OK || r->err.message[0]);
    for (size_t i = 0; r->status == RP_OK && i < b->n_outputs; i++) {
        rp_view view;
        FUZZ_CHECK(rp_session_output(session, b->outputs[i], &view, NULL) == RP_OK);
        r->n[i] = view.rows * view.width;
        r->width[i] = view.width;
        r->kind[i] = view.kind;
        r->outputs[i] = malloc(r->n[i] * sizeof(float) + 1);
        FUZZ_CHECK(r->outputs[i]);
        if (r->n[i])
            memcpy(r->outputs[i], view.data, r->n[i] * sizeof(float));
    }
    rp_session_destroy(session);
}

static void free_result(struct result *r)
{
    for (size_t i = 0; i < MAX_OUTPUTS; i++)
        free(r->outputs[i]);
}

/* A sequence with a parent has the rows that the two have in one piece. */
static void check_child(const struct build *b, const rp_batch *batch, size_t s,
                        const struct result *cut)
{
    const size_t parent = (size_t)batch->parents[s], from = (size_t)batch->cu[parent];
    const size_t before = (size_t)batch->cu[parent + 1] - from, first = (size_t)batch->cu[s];
    const size_t own = (size_t)batch->cu[s + 1] - first, marker = (size_t)batch->mcu[s];
    const size_t n_markers = (size_t)batch->mcu[s + 1] - marker;
    int32_t ids[128], types[128], markers[16];
    const int32_t cu[2] = {0, (int32_t)(before + own)}, mcu[2] = {0, (int32_t)n_markers};
    for (size_t t = 0; t < before + own; t++) {
        ids[t] = batch->ids[t < before ? from + t : first + t - before];
        types[t] =
            batch->type_ids ? batch->type_ids[t < before ? from + t : first + t - before] : 0;
    }
    for (size_t m = 0; m < n_markers; m++)
        markers[m] = batch->markers[marker + m] + (int32_t)before;
    rp_batch whole;
    struct result r;
    rp_batch_init(&whole);
    whole.n_seqs = 1;
    whole.ids = ids;
    whole.cu = cu;
    whole.type_ids = types;
    whole.markers = markers;
    whole.mcu = mcu;
    run(b, &whole, false, true, false, &r);
    FUZZ_CHECK(r.status == RP_OK);
    for (size_t k = 0; k < b->n_outputs; k++) {
        const rp_rows kind = cut->kind[k];
        const size_t at = kind == RP_ROWS_TOKENS ? first : kind == RP_ROWS_SEQS ? s : marker;
        const size_t n = kind == RP_ROWS_TOKENS ? own : kind == RP_ROWS_SEQS ? 1 : n_markers;
        const size_t whole_at = kind == RP_ROWS_TOKENS ? before : 0, width = cut->width[k];
        FUZZ_CHECK(memcmp(cut->outputs[k] + at * width, r.outputs[k] + whole_at * width,
                          n * width * sizeof(float)) == 0);
    }
    free_result(&r);
}

/* A prefix and two sequences that go on from it; not of the bytes, which are mostly used up by now.
 */
static void check_family(const struct build *b, int32_t prefix, int32_t own)
{
    static const int32_t mcu[] = {0, 0, 1, 1}, parents[] = {-1, 0, 0};
    const int32_t cu[] = {0, prefix, prefix + own, prefix + own + 2}, marker = own - 1;
    int32_t ids[64];
    struct result cut;
    rp_batch batch;
    for (unsigned i = 0; i < 64; i++)
        ids[i] = (int32_t)(i * 7 % (b->vocabulary ? b->vocabulary : 1));
    rp_batch_init(&batch);
    batch.n_seqs = 3;
    batch.ids = ids;
    batch.cu = cu;
    batch.markers = &marker;
    batch.mcu = mcu;
    batch.parents = parents;
    run(b, &batch, false, true, false, &cut);
    for (size_t s = 1; s < 3 && cut.status == RP_OK; s++)
        check_child(b, &batch, s, &cut);
    free_result(&cut);
}

/* Every other sequence is a question of a header and two options, where it is long enough. */
static void mark_options(rp_batch *batch, int32_t *markers, int32_t *mcu)
{
    for (size_t s = 0; s < batch->n_seqs; s++) {
        const int32_t len = batch->cu[s + 1] - batch->cu[s];
        mcu[s + 1] = mcu[s];
        for (int32_t at = len > 2; s % 2 == 0 && at < len && mcu[s + 1] - mcu[s] < 2; at++)
            markers[mcu[s + 1]++] = at;
    }
}

static void check_same(const struct build *b, const rp_batch *batch, bool no_fuse, bool poison,
                       bool no_prune, const struct result *plain)
{
    struct result other;
    run(b, batch, no_fuse, poison, no_prune, &other);
    FUZZ_CHECK(other.status == plain->status);
    for (size_t k = 0; k < b->n_outputs && plain->status == RP_OK; k++)
        FUZZ_CHECK(other.n[k] == plain->n[k] &&
                   memcmp(other.outputs[k], plain->outputs[k], plain->n[k] * sizeof(float)) == 0);
    free_result(&other);
}

static void check_runs(struct build *b)
{
    int32_t ids[64], types[64], markers[16], cu[6] = {0}, mcu[6] = {0}, qtypes[6] = {0};
    struct bytes *in = &b->bytes;
    rp_batch batch;
    rp_memory memories[6];
    struct result plain;
    rp_batch_init(&batch);
    /* The bytes are mostly used up by now: what is left of them, then the same batch for all. */
    batch.n_seqs = 1 + (size_t)next(in, 4);
    for (size_t s = 0; s < batch.n_seqs; s++) {
        cu[s + 1] = cu[s] + (int32_t)(s % 2 ? 1 + next(in, 4) : 3);
        mcu[s + 1] = mcu[s] + (int32_t)(s % 2);
    }
    for (int32_t i = 0; i < cu[batch.n_seqs]; i++) {
        ids[i] = (int32_t)((unsigned)i % (b->vocabulary ? b->vocabulary : 1));
        types[i] = i % 2;
    }
    memset(markers, 0, sizeof markers);
    batch.ids = ids;
    batch.cu = cu;
    batch.type_ids = next(in, 2) ? types : NULL;
    batch.markers = markers;
    batch.mcu = mcu;
    batch.qtypes = next(in, 2) ? qtypes : NULL;
    for (size_t s = 0; s < batch.n_seqs; s++)
        memories[s] =
            (rp_memory){s % 3 == 2 ? NULL : numbers + s / 2, s % 3 == 2 ? 0 : MEMORY_ROWS};
    batch.memories = memories;
    batch.input = numbers;
    if (rarely(in, 8))
        ids[0] = (int32_t)next(in, 256) - 128;
    if (rarely(in, 4))
        qtypes[batch.n_seqs - 1] = (int32_t)next(in, 8) - 1;
    run(b, &batch, false, false, false, &plain);
    for (int i = 1; i < 8; i++)
        check_same(b, &batch, i & 1, i & 2, i & 4, &plain);
    free_result(&plain);
    mark_options(&batch, markers, mcu);
    run(b, &batch, false, true, false, &plain);
    check_same(b, &batch, true, true, true, &plain);
    free_result(&plain);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const rp_bucket buckets[] = {
        {64, 8, 8}, {1, 1, 0}, {0, 0, 0}, {(size_t)1 << 40, (size_t)1 << 39, 0}, {SIZE_MAX, 1, 1}};
    struct build b;
    if (numbers[0] == 0)
        make_numbers();
    build(&b, data, size);
    check_graph_text(&b);
    const rp_status s = compile(&b, &buckets[0], false, false);
    for (int i = 1; i < 4; i++)
        FUZZ_CHECK(compile(&b, &buckets[0], i & 1, i & 2) == s);
    (void)compile(&b, &buckets[1 + next(&b.bytes, 2)], false, false);
    rp_plan_sizes sizes;
    rp_error err = {0};
    for (size_t i = 3; i < 5; i++)
        if (rp_plan_measure(b.graph, b.weights, &buckets[i], NULL, &sizes, &err) != RP_OK)
            FUZZ_CHECK(err.message[0]);
    if (s == RP_OK) {
        check_runs(&b);
        check_family(&b, 2, 1);   /* within the shortest table of positions */
        check_family(&b, 35, 20); /* longer than a chunk */
    }
    rp_graph_destroy(b.graph);
    rp_weights_destroy(b.weights);
    return 0;
}
