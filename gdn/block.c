/* The whole block: convolution, gates, delta rule, gated norm, for one key head of one sequence at
 * a time.
 *
 * None of them looks across key heads: a convolution has each channel by itself, gates and norms
 * are of a value head.  So a task takes a chunk of rows from the projections to the caller's rows
 * in its own scratch, whatever the length of the sequence, and nothing between is ever whole:
 *
 *     conv_rows   kernel - 1 rows of the chunk before, then the chunk's q, k, v, widened
 *        -> qkv   convolved                    gate_rows -> gates
 *        -> out   of the rule                  z
 *        -> the caller's rows
 *
 * Columns of a task are whole value heads, for the norm's sake.
 */
#include "gdn/task.h"

#include "pool/error.h"

#include <math.h>
#include <string.h>

#define MAX_INPUTS 6

/* What a key head has of a row, each at one place of it: the key head's own q and k; v, z, b, a of
 * its value head number i. */
enum part { PART_Q, PART_K, PART_V, PART_Z, PART_B, PART_A };

struct block {
    const rp_gdn_states *s;
    const rp_gdn_block *weights;
    const rp_gdn_block_batch *batch;
    struct rp_gdn_named inputs[MAX_INPUTS];
    size_t n_inputs;
};

void rp_gdn_block_init(rp_gdn_block *block)
{
    *block = (rp_gdn_block){.struct_size = sizeof *block,
                            .norm_eps = 1e-6f,
                            .conv_activation = RP_ACT_SILU,
                            .gate_activation = RP_ACT_SILU};
}

void rp_gdn_block_batch_init(rp_gdn_block_batch *batch)
{
    *batch = (rp_gdn_block_batch){.struct_size = sizeof *batch};
}

/* ---- what is refused ---------------------------------------------------------------------------
 */

static rp_status check_activation(const char *name, rp_activation activation, rp_error *err)
{
    if ((unsigned)activation > RP_ACT_SIGMOID)
        return rp_fail(err, RP_ERR_INVALID, "%s is %d, which is none", name, (int)activation);
    return RP_OK;
}

static rp_status check_weights(const rp_gdn_states *s, const rp_gdn_block *w, rp_error *err)
{
    if (!w)
        return rp_fail(err, RP_ERR_INVALID, "block is NULL");
    if (w->struct_size != sizeof *w)
        return rp_fail(err, RP_ERR_INVALID, "rp_gdn_block has struct_size %zu, expected %zu",
                       w->struct_size, sizeof *w);
    RP_TRY(rp_gdn_check_conv(s, err));
    if (!rp_gdn_conv_feeds_rule(s))
        return rp_fail(err, RP_ERR_INVALID,
                       "conv_channels is %zu, expected all numbers of q, k and v",
                       s->options.conv_channels);
    if (!w->conv_w || !w->a_log)
        return rp_fail(err, RP_ERR_INVALID, "%s has no data", w->conv_w ? "a_log" : "conv_w");
    RP_TRY(check_activation("conv_activation", w->conv_activation, err));
    RP_TRY(check_activation("gate_activation", w->gate_activation, err));
    if (!(w->norm_eps >= 0) || isinf(w->norm_eps))
        return rp_fail(err, RP_ERR_INVALID, "norm_eps must be finite and not negative");
    if (!(w->beta_scale >= 0) || isinf(w->beta_scale))
        return rp_fail(err, RP_ERR_INVALID, "beta_scale must be finite and not negative");
    return RP_OK;
}

/* Either `packed` or the n others. */
static rp_status choose(struct block *b, const struct rp_gdn_named *packed,
                        const struct rp_gdn_named *apart, size_t n, rp_error *err)
{
    for (size_t i = 0; i < n; i++) {
        if (packed->rows.data && apart[i].rows.data)
            return rp_fail(err, RP_ERR_INVALID, "%s and %s both have data", packed->name,
                           apart[i].name);
        if (!packed->rows.data)
            b->inputs[b->n_inputs++] = apart[i];
    }
    if (packed->rows.data)
        b->inputs[b->n_inputs++] = *packed;
    return RP_OK;
}

static rp_status name_inputs(struct block *b, rp_error *err)
{
    const rp_gdn_states *s = b->s;
    const rp_gdn_block_batch *in = b->batch;
    const size_t keys = s->n_key_heads * s->key_dim, values = s->n_value_heads * s->value_dim;
    const struct rp_gdn_named qkvz = {"qkvz", in->qkvz, 2 * keys + 2 * values, false};
    const struct rp_gdn_named ba = {"ba", in->ba, 2 * s->n_value_heads, false};
    const struct rp_gdn_named apart[] = {{"q", in->q, keys, false},
                                         {"k", in->k, keys, false},
                                         {"v", in->v, values, false},
                                         {"z", in->z, values, false},
                                         {"b", in->b, s->n_value_heads, false},
                                         {"a", in->a, s->n_value_heads, false}};
    RP_TRY(choose(b, &qkvz, &apart[PART_Q], 4, err));
    return choose(b, &ba, &apart[PART_B], 2, err);
}

static rp_status check_batch(struct rp_gdn_run *run, struct block *b, rp_error *err)
{
    const rp_gdn_block_batch *in = b->batch;
    if (!in)
        return rp_fail(err, RP_ERR_INVALID, "batch is NULL");
    if (in->struct_size != sizeof *in)
        return rp_fail(err, RP_ERR_INVALID, "rp_gdn_block_batch has struct_size %zu, expected %zu",
                       in->struct_size, sizeof *in);
    RP_TRY(rp_gdn_check_seqs(run->states, in->n_seqs, in->slots, in->cu, &run->n_rows, err));
    if (run->n_rows == 0)
        return RP_OK;
    RP_TRY(name_inputs(b, err));
    for (size_t i = 0; i < b->n_inputs; i++) {
        const struct rp_gdn_named *x = &b->inputs[i];
        if ((unsigned)x->rows.dtype > RP_DTYPE_BF16)
            return rp_fail(err, RP_ERR_INVALID, "the dtype of %s is %d, which is none", x->name,
                           (int)x->rows.dtype);
        RP_TRY(rp_gdn_check_rows(x, run->n_rows, err));
    }
    run->out = (struct rp_gdn_named){"out", rp_gdn_floats((rp_gdn_input){in->out, in->ld_out}),
                                     b->s->n_value_heads * b->s->value_dim, false};
    return rp_gdn_check_rows(&run->out, run->n_rows, err);
}

/* ---- rows of the projections -------------------------------------------------------------------
 */

/* The column of a packed row. */
static size_t packed_column(const rp_gdn_states *s, enum part part, size_t key_head, size_t i)
{
    const size_t values = s->per_key * s->value_dim;
    const size_t qkvz = key_head * 2 * (s->key_dim + values), ba = key_head * 2 * s->per_key;
    switch (part) {
    case PART_Q: return qkvz;
    case PART_K: return qkvz + s->key_dim;
    case PART_V: return qkvz + 2 * s->key_dim + i * s->value_dim;
    case PART_Z: return qkvz + 2 * s->key_dim + values + i * s->value_dim;
    case PART_B: return ba + i;
    default: return ba + s->per_key + i;
    }
}

static size_t width_of(const rp_gdn_states *s, enum part part)
{
    return part <= PART_K ? s->key_dim : part <= PART_Z ? s->value_dim : 1;
}

static void read_part(const struct block *b, enum part part, size_t key_head, size_t i, size_t row,
                      float *to)
{
    const rp_gdn_states *s = b->s;
    const rp_gdn_block_batch *in = b->batch;
    const rp_gdn_projection *const apart[] = {&in->q, &in->k, &in->v, &in->z, &in->b, &in->a};
    const rp_gdn_projection *const packed = part <= PART_Z ? &in->qkvz : &in->ba;
    const size_t n = width_of(s, part);
    const size_t head = part <= PART_K ? key_head : rp_gdn_head_of(s, key_head, i);
    if (packed->data)
        rp_gdn_read(s, packed, row, packed_column(s, part, key_head, i), to, n);
    else
        rp_gdn_read(s, apart[part], row, head * n, to, n);
}

/* ---- a task ------------------------------------------------------------------------------------
 */

struct work {
    struct rp_gdn_task *t;
    const struct block *b;
    size_t key_head, head0, head1; /* value heads of the key head */
    float *rows, *w, *gate_rows, *z;
};

/* q, k, or the v of a value head: columns of the key head's rows, channels of the convolution. */
struct segment {
    enum part part;
    size_t i, column, channel, n;
};

static size_t count_segments(const struct work *w)
{
    return 2 + w->head1 - w->head0;
}

static struct segment segment_of(const struct work *w, size_t number)
{
    const rp_gdn_states *s = w->b->s;
    const size_t keys = s->n_key_heads * s->key_dim;
    if (number < 2)
        return (struct segment){.part = number == 0 ? PART_Q : PART_K,
                                .column = number * s->key_dim,
                                .channel = number * keys + w->key_head * s->key_dim,
                                .n = s->key_dim};
    const size_t i = w->head0 + number - 2;
    return (struct segment){.part = PART_V,
                            .i = i,
                            .column = 2 * s->key_dim + i * s->value_dim,
                            .channel = 2 * keys + rp_gdn_head_of(s, w->key_head, i) * s->value_dim,
                            .n = s->value_dim};
}

/* Weights as the kernels take them. */
static void start(const struct work *w)
{
    const rp_gdn_states *s = w->b->s;
    const rp_gdn_block *weights = w->b->weights;
    const size_t kernel = s->options.conv_kernel;
    for (size_t j = 0; j < count_segments(w); j++) {
        const struct segment g = segment_of(w, j);
        rp_gdn_turn(weights->conv_w + g.channel * kernel, kernel, g.n, w->w + g.column * kernel);
    }
    for (size_t i = 0; i < s->per_key; i++) {
        const size_t head = rp_gdn_head_of(s, w->key_head, i);
        w->gate_rows[i] = weights->a_log[head];
        w->gate_rows[s->per_key + i] = weights->dt_bias ? weights->dt_bias[head] : 0;
    }
}

/* The rows that the next chunk's convolution has to know of this one, which is a whole one. */
static void go_on(const struct work *w)
{
    const size_t ld = w->b->s->args.ld, kept = w->b->s->options.conv_kernel - 1;
    memcpy(w->rows, w->rows + RP_GDN_CHUNK * ld, kept * ld * sizeof *w->rows);
}

/* Row i of those before the chunk: the slot's, or of the chunk before. */
static const float *row_before(const struct work *w, const struct segment *g, bool first, size_t i)
{
    const rp_gdn_states *s = w->b->s;
    const float *kept = w->t->seq->kept_from;
    if (!first)
        return w->rows + i * s->args.ld + g->column;
    return kept ? kept + i * s->options.conv_channels + g->channel : NULL;
}

static void note_bad_conv(struct work *w, const struct segment *g, size_t row, size_t n)
{
    const rp_gdn_states *s = w->b->s;
    for (size_t r = 0, where; r < n; r++) {
        if (!s->ops->nonfinite(w->t->qkv + r * s->args.ld + g->column, g->n, &where))
            continue;
        const size_t at = (row + r) * s->options.conv_channels + g->channel + where;
        w->t->bad_conv = at < w->t->bad_conv ? at : w->t->bad_conv;
    }
}

static void convolve(struct work *w, size_t row, size_t n, bool first)
{
    const rp_gdn_states *s = w->b->s;
    const rp_gdn_block *weights = w->b->weights;
    const size_t ld = s->args.ld, kernel = s->options.conv_kernel;
    for (size_t j = 0; j < count_segments(w); j++) {
        const struct segment g = segment_of(w, j);
        const struct rp_ops_conv conv = {.w = w->w + g.column * kernel,
                                         .b = weights->conv_b ? weights->conv_b + g.channel : NULL,
                                         .kernel = kernel,
                                         .width = g.n,
                                         .activation = weights->conv_activation};
        const float *before[RP_CONV_MAX_KERNEL];
        float *now = w->rows + (kernel - 1) * ld + g.column;
        for (size_t i = 0; i + 1 < kernel; i++)
            before[i] = row_before(w, &g, first, i);
        for (size_t r = 0; r < n; r++)
            read_part(w->b, g.part, w->key_head, g.i, row + r, now + r * ld);
        s->ops->conv(&conv, before, now, ld, w->t->qkv + g.column, ld, n);
        note_bad_conv(w, &g, row, n);
    }
}

static void make_gates(const struct work *w, size_t row, size_t n)
{
    const rp_gdn_states *s = w->b->s;
    const rp_gdn_block *weights = w->b->weights;
    const size_t heads = s->per_key, ld = 2 * heads;
    float *const rows = w->gate_rows + ld;
    const struct rp_ops_gdn_gates gates = {
        .n_heads = heads,
        .a_column = heads,
        .a_log = w->gate_rows,
        .dt_bias = weights->dt_bias ? w->gate_rows + heads : NULL,
        .linear_rate = weights->linear_rate,
        .beta_scale = weights->beta_scale > 0 ? weights->beta_scale : 1};
    for (size_t r = 0; r < n; r++) {
        for (size_t i = 0; i < heads; i++) {
            read_part(w->b, PART_B, w->key_head, i, row + r, rows + r * ld + i);
            read_part(w->b, PART_A, w->key_head, i, row + r, rows + r * ld + heads + i);
        }
    }
    s->ops->gdn_gates(&gates, rows, ld, w->t->gates, s->args.ld_gates, n);
}

/* The rule's rows, normed and gated, to where the caller wants them. */
static void finish(const struct work *w, size_t row, size_t n)
{
    const rp_gdn_states *s = w->b->s;
    const rp_gdn_block *weights = w->b->weights;
    const size_t dim = s->value_dim, ld = w->b->batch->ld_out;
    const struct rp_ops_rms_norm norm = {
        .w = weights->norm_w, .eps = weights->norm_eps, .n_heads = 1, .head_dim = dim};
    for (size_t i = w->head0; i < w->head1; i++) {
        float *out = w->b->batch->out + row * ld + rp_gdn_head_of(s, w->key_head, i) * dim;
        for (size_t r = 0; r < n; r++)
            read_part(w->b, PART_Z, w->key_head, i, row + r, w->z + r * dim);
        s->ops->gated_norm(&norm, weights->gate_activation, w->z, dim, w->t->out + i * dim,
                           s->args.ld_out, dim, out, ld, n);
        for (size_t r = 0, where; r < n; r++)
            w->t->bad_out |= s->ops->nonfinite(out + r * ld, dim, &where);
    }
}

static float *part_of_scratch(const struct rp_gdn_task *t, size_t at)
{
    return (float *)(void *)(t->scratch + at);
}

static void run_rows(struct rp_gdn_task *t)
{
    const rp_gdn_states *s = t->s;
    struct work w = {.t = t,
                     .b = t->run->user,
                     .key_head = t->key_head,
                     .head0 = t->c0 / s->value_dim,
                     .head1 = t->c1 / s->value_dim,
                     .rows = part_of_scratch(t, s->at.conv_rows),
                     .w = part_of_scratch(t, s->at.conv_w),
                     .gate_rows = part_of_scratch(t, s->at.gate_rows),
                     .z = part_of_scratch(t, s->at.z)};
    start(&w);
    for (size_t done = 0, n; done < t->seq->n; done += n) {
        const size_t row = t->seq->row0 + done;
        n = t->seq->n - done < RP_GDN_CHUNK ? t->seq->n - done : RP_GDN_CHUNK;
        convolve(&w, row, n, done == 0);
        make_gates(&w, row, n);
        rp_gdn_run_pieces(t, &(struct rp_gdn_rows){0, n, false}, 1, t->state);
        finish(&w, row, n);
        if (done + n < t->seq->n)
            go_on(&w);
    }
}

/* ---- what slots keep ---------------------------------------------------------------------------
 */

/* A row of the batch as the convolution has its channels. */
static void keep_row(const struct block *b, size_t row, float *to)
{
    struct work w = {.b = b, .head1 = b->s->per_key};
    for (; w.key_head < b->s->n_key_heads; w.key_head++) {
        for (size_t j = 0; j < count_segments(&w); j++) {
            const struct segment g = segment_of(&w, j);
            read_part(b, g.part, w.key_head, g.i, row, to + g.channel);
        }
    }
}

/* The last rows of what the slot kept and of the sequence.  Oldest first, so that they may be
 * written over themselves. */
static void keep(const struct rp_gdn_run *run, const struct rp_gdn_seq *seq)
{
    const struct block *b = run->user;
    const size_t kept = b->s->options.conv_kernel - 1, width = b->s->options.conv_channels;
    for (size_t i = 0; i < kept; i++) {
        float *to = seq->kept_to + i * width;
        if (seq->n + i >= kept)
            keep_row(b, seq->row0 + seq->n + i - kept, to);
        else if (seq->kept_from)
            memmove(to, seq->kept_from + (seq->n + i) * width, width * sizeof *to);
        else
            memset(to, 0, width * sizeof *to);
    }
}

/* The fewest whole value heads whose columns end where a kernel can begin, or all of a key head. */
static size_t head_step(const rp_gdn_states *s)
{
    size_t heads = 1;
    while (heads < s->per_key && heads * s->value_dim % 16)
        heads++;
    return heads * s->value_dim;
}

rp_status rp_gdn_run_block(rp_gdn_states *states, const rp_gdn_block *block,
                           const rp_gdn_block_batch *batch, rp_error *err)
{
    struct block b = {.s = states, .weights = block, .batch = batch};
    struct rp_gdn_run run;
    rp_gdn_run_init(&run, states);
    RP_TRY(check_weights(states, block, err));
    RP_TRY(check_batch(&run, &b, err));
    if (run.n_rows == 0)
        return RP_OK;
    run.user = &b;
    run.inputs = b.inputs;
    run.n_inputs = b.n_inputs;
    run.args.linear_decay = false;
    run.rows = run_rows;
    run.keep = keep;
    run.column_step = head_step(states);
    return rp_gdn_execute(&run, batch->n_seqs, batch->slots, batch->cu, err);
}
