/* Running a step: one switch and one call of a kernel. */
#include "plan/run.h"

#include "ops/rope.h"

#include <assert.h>
#include <string.h>

float *rp_frame_row(const struct rp_frame *frame, int32_t slot_number, size_t row)
{
    const struct rp_slot *slot = &frame->run->plan->slots[slot_number];
    unsigned char *base = frame->run->arena;
    const enum rp_mode mode = frame->run->mode;
    if (mode == RP_BY_CHUNK && slot->in_chunk) {
        base = frame->scratch;
        row -= frame->chunk_row0;
    }
    return (float *)(void *)(base + slot->offset[mode]) + row * slot->width;
}

static size_t width_of(const struct rp_frame *frame, int32_t slot)
{
    return frame->run->plan->slots[slot].width;
}

static struct rp_ops_table table_of(const struct rp_step *step, const struct rp_frame *f, size_t t,
                                    size_t r0)
{
    return (struct rp_ops_table){.rows = step->p.embed.rows[t],
                                 .index = f->run->index[step->p.embed.index[t]] + r0,
                                 .dtype = step->p.embed.dtype[t]};
}

static void embed(const struct rp_step *step, const struct rp_frame *f, float *y, size_t r0,
                  size_t r1)
{
    struct rp_ops_table tables[RP_EMBED_MAX_TABLES];
    for (size_t t = 0; t < step->p.embed.n; t++)
        tables[t] = table_of(step, f, t, r0);
    f->run->plan->ops->embed(tables, step->p.embed.n, step->width, y, step->width, 0, r1 - r0);
}

static void gemm(const rp_plan *plan, const struct rp_operands *from, const struct rp_product *to,
                 size_t rows, size_t p0, size_t p1)
{
    const size_t column = to->first_panel * RP_GEMM_NR;
    const struct rp_gemm_args args = {
        .a = from->rows,
        .lda = from->k,
        .packed = (const float *)from->packed + column * from->k,
        .n = to->n,
        .k = from->k,
        .c = to->c,
        .ldc = to->ldc,
        .bias = from->bias ? from->bias + column : NULL,
        .activation = to->activation,
        .residual = to->residual,
        .ld_residual = to->ldc,
        .multiply = to->multiply,
    };
    plan->gemm->run(&args, 0, rows, p0, p1);
}

static void qgemm(const rp_plan *plan, const struct rp_operands *from, const struct rp_product *to,
                  size_t rows, size_t p0, size_t p1)
{
    const size_t column = to->first_panel * RP_QGEMM_NR;
    const struct rp_qgemm_args args = {
        .q = from->rows,
        .packed = (const char *)from->packed + to->first_panel * rp_qgemm_panel_bytes(from->k),
        .n = to->n,
        .k = from->k,
        .c = to->c,
        .ldc = to->ldc,
        .bias = from->bias ? from->bias + column : NULL,
        .activation = to->activation,
        .residual = to->residual,
        .ld_residual = to->ldc,
        .multiply = to->multiply,
    };
    plan->qgemm->run(&args, 0, rows, p0, p1);
}

void rp_multiply(const rp_plan *plan, const struct rp_operands *from, const struct rp_product *to,
                 size_t rows, size_t p0, size_t p1)
{
    (from->int8 ? qgemm : gemm)(plan, from, to, rows, p0, p1);
}

void rp_step_multiply(const struct rp_step *step, const struct rp_frame *f,
                      const struct rp_product *product, size_t r0, size_t r1, size_t p0, size_t p1)
{
    const struct rp_operands from = {.rows = rp_frame_row(f, step->in[0], r0),
                                     .packed = step->p.gemm.packed,
                                     .bias = step->p.gemm.bias,
                                     .k = step->p.gemm.k,
                                     .int8 = step->op == RP_OP_QGEMM};
    rp_multiply(f->run->plan, &from, product, r1 - r0, p0, p1);
}

/* A product as its step says. */
static void multiply(const struct rp_step *step, const struct rp_frame *f, float *y, size_t r0,
                     size_t r1, size_t p0, size_t p1)
{
    const struct rp_product product = {
        .c = y,
        .n = step->width,
        .ldc = step->width,
        .activation = step->p.gemm.activation,
        .residual = step->n_in == 2 ? rp_frame_row(f, step->in[1], r0) : NULL,
    };
    rp_step_multiply(step, f, &product, r0, r1, p0, p1);
}

static void concat(const struct rp_step *step, const struct rp_frame *f, float *y, size_t rows,
                   size_t r0)
{
    size_t column = 0;
    for (size_t k = 0; k < step->n_in; k++) {
        const size_t width = width_of(f, step->in[k]);
        const float *x = rp_frame_row(f, step->in[k], r0);
        for (size_t r = 0; r < rows; r++)
            memcpy(y + r * step->width + column, x + r * width, width * sizeof *y);
        column += width;
    }
}

size_t rp_range_of(const int32_t *starts, size_t n, size_t i)
{
    size_t low = 0, high = n - 1;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if ((size_t)starts[middle + 1] > i)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* The token that a row stands for; false when its sequence has none. */
static bool find_token(const rp_batch *batch, enum rp_read read, size_t row, size_t *token)
{
    const size_t seq = read == RP_READ_MARKED ? rp_range_of(batch->mcu, batch->n_seqs, row) : row;
    const size_t first = (size_t)batch->cu[seq], end = (size_t)batch->cu[seq + 1];
    *token = first;
    if (read == RP_READ_LAST)
        *token = end - 1;
    else if (read == RP_READ_MARKED)
        *token += (size_t)batch->markers[row];
    return first < end;
}

static void add_types(const struct rp_step *step, const struct rp_frame *f, const float *x,
                      float *y, size_t r0, size_t r1)
{
    const struct rp_ops_table table = table_of(step, f, 0, r0);
    f->run->plan->ops->add_table(&table, x, step->width, step->width, y, step->width, r1 - r0);
}

/* Rows of markers have the type of the token that they point to. */
static void add_types_to_markers(const struct rp_step *step, const struct rp_frame *f,
                                 const float *x, float *y, size_t r0, size_t r1)
{
    const size_t width = step->width;
    for (size_t r = r0, token; r < r1; r++, x += width, y += width) {
        (void)find_token(f->run->batch, RP_READ_MARKED, r, &token); /* a marker has one */
        const struct rp_ops_table table = table_of(step, f, 0, token);
        f->run->plan->ops->add_table(&table, x, width, width, y, width, 1);
    }
}

static void ordinal_features(const struct rp_step *step, const struct rp_frame *f, float *y,
                             size_t r0, size_t r1)
{
    const rp_batch *b = f->run->batch;
    for (size_t r = r0; r < r1; r++, y += RP_ORDINAL_FEATURES) {
        const size_t seq = rp_range_of(b->mcu, b->n_seqs, r), first = (size_t)b->mcu[seq];
        if ((b->qtypes ? b->qtypes[seq] : 0) == step->p.qtype)
            rp_rope_ordinal(r - first, (size_t)b->mcu[seq + 1] - first, y);
        else
            memset(y, 0, RP_ORDINAL_FEATURES * sizeof *y);
    }
}

static void gather(const struct rp_step *step, const struct rp_frame *f, float *y, size_t r0,
                   size_t r1)
{
    const bool is_there = f->run->plan->slots[step->in[0]].rows == step->rows;
    for (size_t r = r0, token; r < r1; r++, y += step->width) {
        const bool any = find_token(f->run->batch, step->p.gather, r, &token);
        const float *from = any ? rp_frame_row(f, step->in[0], is_there ? r : token) : NULL;
        if (!any)
            memset(y, 0, step->width * sizeof *y);
        else if (from != y)
            memcpy(y, from, step->width * sizeof *y);
    }
}

/* The columns of the gate that a step reads, from its row r0 on. */
static const float *gate_rows(const struct rp_step *step, const struct rp_frame *f, size_t r0)
{
    return rp_frame_row(f, step->in[1], r0) + step->p.gate.first_column;
}

void rp_step_rows(const struct rp_step *step, const struct rp_frame *f, size_t r0, size_t r1,
                  size_t p0, size_t p1)
{
    const struct rp_ops *ops = f->run->plan->ops;
    const size_t rows = r1 - r0, w = step->width;
    float *y = rp_frame_row(f, step->out, r0);
    const float *x =
        step->n_in && step->op != RP_OP_GATHER ? rp_frame_row(f, step->in[0], r0) : NULL;
    switch (step->op) {
    case RP_OP_EMBED: embed(step, f, y, r0, r1); return;
    case RP_OP_LAYER_NORM:
        ops->layer_norm(x, w, step->p.norm.w, step->p.norm.b, step->p.norm.eps, w, y, w, rows);
        return;
    case RP_OP_GEMM:
    case RP_OP_QGEMM: multiply(step, f, y, r0, r1, p0, p1); return;
    case RP_OP_QUANTIZE:
        ops->quantize(x, step->p.quantize.k, step->p.quantize.factors, step->p.quantize.k,
                      (uint8_t *)y, rows);
        return;
    case RP_OP_L2_NORM: ops->l2_norm(x, w, step->p.norm.eps, w, y, w, rows); return;
    case RP_OP_ACTIVATION: ops->activation(step->p.activation, x, w, w, y, w, rows); return;
    case RP_OP_ADD: ops->add(x, w, rp_frame_row(f, step->in[1], r0), w, w, y, w, rows); return;
    case RP_OP_ROPE:
        ops->rope(&step->p.rope.turn, f->run->index[step->p.rope.index] + r0, x, w, w, y, w, rows);
        return;
    case RP_OP_GLU: ops->glu(step->p.activation, x, 2 * w, w, y, w, rows); return;
    case RP_OP_CONCAT: concat(step, f, y, rows, r0); return;
    case RP_OP_GATHER: gather(step, f, y, r0, r1); return;
    case RP_OP_ADD_TYPES:
        if (step->rows == RP_ROWS_MARKERS)
            add_types_to_markers(step, f, x, y, r0, r1);
        else
            add_types(step, f, x, y, r0, r1);
        return;
    case RP_OP_RMS_NORM: ops->rms_norm(&step->p.rms_norm, x, w, w, y, w, rows); return;
    case RP_OP_GATE:
        ops->gate(step->p.gate.activation, gate_rows(step, f, r0), width_of(f, step->in[1]),
                  step->p.gate.one, x, w, w, y, w, rows);
        return;
    case RP_OP_GATED_NORM:
        ops->gated_norm(&step->p.gate.norm, step->p.gate.activation, gate_rows(step, f, r0),
                        width_of(f, step->in[1]), x, w, w, y, w, rows);
        return;
    case RP_OP_GDN_GATES:
        ops->gdn_gates(&step->p.gdn_gates, x, width_of(f, step->in[0]), y, w, rows);
        return;
    case RP_OP_EXPERTS: rp_step_experts(step, f, r0, r1); return;
    case RP_OP_INPUT: memcpy(y, f->run->batch->input + r0 * w, rows * w * sizeof *y); return;
    case RP_OP_ORDINAL_FEATURES: ordinal_features(step, f, y, r0, r1); return;
    default: assert(0 && "a step that does not work by row"); return;
    }
}

/* The markers of a sequence; NULL when the batch has none. */
static const int32_t *markers_of(const rp_batch *batch, size_t seq, size_t *n)
{
    *n = batch->markers ? (size_t)(batch->mcu[seq + 1] - batch->mcu[seq]) : 0;
    return batch->markers ? batch->markers + batch->mcu[seq] : NULL;
}

static struct rp_attention_args attention_args(const struct rp_step *step, const struct rp_frame *f,
                                               size_t seq)
{
    const rp_batch *batch = f->run->batch;
    const int32_t parent = rp_batch_parent(batch, seq);
    size_t n_markers;
    const int32_t *const markers = markers_of(batch, seq, &n_markers);
    return (struct rp_attention_args){
        .qkv = rp_frame_row(f, step->in[0], 0),
        .ld = width_of(f, step->in[0]),
        .out = rp_frame_row(f, step->out, 0),
        .ld_out = step->width,
        .n_heads = step->p.attention.n_heads,
        .n_kv_heads = step->p.attention.n_kv_heads,
        .head_dim = step->p.attention.head_dim,
        .scale = step->p.attention.scale,
        .window = step->p.attention.window,
        .causal = step->p.attention.causal,
        .prefix_row0 = parent < 0 ? 0 : (size_t)batch->cu[parent],
        .n_prefix = rp_batch_rows_before(batch, seq),
        .rel = step->p.attention.rel,
        .rel_span = step->p.attention.rel_span,
        .options = step->p.attention.options,
        .markers = markers,
        .n_markers = n_markers,
    };
}

/* The queries of one sequence's rows that are read, of the heads that use one head of keys; their
 * results lie together. */
static void attend_read_rows(const struct rp_step *step, const struct rp_frame *f, size_t seq,
                             size_t kv_head)
{
    const size_t width = step->width / step->p.attention.n_kv_heads;
    const rp_batch *batch = f->run->batch;
    const size_t row0 = (size_t)batch->cu[seq], len = (size_t)batch->cu[seq + 1] - row0;
    struct rp_attention_args args = attention_args(step, f, seq);
    size_t first, end;
    rp_step_read_rows(step, batch, seq, &first, &end);
    for (size_t r = first, token; r < end; r++) {
        args.out = rp_frame_row(f, step->out, r);
        if (find_token(batch, step->read, r, &token)) {
            args.out_row0 = token;
            f->run->plan->attention->run(&args, row0, len, kv_head, token - row0, token - row0 + 1,
                                         f->scratch);
            args.n_packed = rp_attention_packed(&args, len, token - row0 + 1);
        } else {
            memset(args.out + kv_head * width, 0, width * sizeof *args.out);
        }
    }
}

void rp_step_read_rows(const struct rp_step *step, const rp_batch *batch, size_t seq, size_t *first,
                       size_t *end)
{
    *first = seq;
    *end = seq + 1;
    if (step->read != RP_READ_MARKED)
        return;
    *first = batch->markers ? (size_t)batch->mcu[seq] : 0;
    *end = batch->markers ? (size_t)batch->mcu[seq + 1] : 0;
}

/* Task t of attention for the rows that are read: a sequence and some heads of keys. */
static void attend_reads(const struct rp_step *step, const struct rp_frame *f, size_t t,
                         size_t heads)
{
    const size_t all = step->p.attention.n_kv_heads, groups = (all + heads - 1) / heads;
    const size_t first = t % groups * heads, end = first + heads < all ? first + heads : all;
    for (size_t h = first; h < end; h++)
        attend_read_rows(step, f, t / groups, h);
}

uint64_t rp_step_pairs(const struct rp_step *step, const rp_batch *batch, size_t seq, size_t q0,
                       size_t q1)
{
    const size_t before = rp_batch_rows_before(batch, seq);
    const size_t len = before + (size_t)(batch->cu[seq + 1] - batch->cu[seq]);
    if (step->p.attention.options) {
        size_t n;
        const int32_t *const markers = markers_of(batch, seq, &n);
        return rp_attention_option_pairs(markers, n, len, q0, q1);
    }
    return rp_attention_pairs(len, step->p.attention.window, step->p.attention.causal, before + q0,
                              before + q1);
}

uint64_t rp_step_read_pairs(const struct rp_step *step, const rp_batch *batch, size_t seq)
{
    const size_t row0 = (size_t)batch->cu[seq];
    size_t first, end;
    uint64_t pairs = 0;
    rp_step_read_rows(step, batch, seq, &first, &end);
    for (size_t r = first, token; r < end; r++)
        if (find_token(batch, step->read, r, &token))
            pairs += rp_step_pairs(step, batch, seq, token - row0, token - row0 + 1);
    return pairs;
}

uint64_t rp_step_keys(const struct rp_step *step, const rp_batch *batch, size_t seq, size_t q0,
                      size_t q1)
{
    const size_t before = rp_batch_rows_before(batch, seq);
    const size_t len = before + (size_t)(batch->cu[seq + 1] - batch->cu[seq]);
    if (step->p.attention.options) {
        size_t n;
        const int32_t *const markers = markers_of(batch, seq, &n);
        return rp_attention_option_keys(markers, n, len, q0, q1);
    }
    return rp_attention_keys(len, step->p.attention.window, step->p.attention.causal, before + q0,
                             before + q1);
}

/* Of rows of different options: what they all see once, and what each sees beside that. */
static uint64_t read_option_keys(const struct rp_step *step, const rp_batch *batch, size_t seq,
                                 size_t rows)
{
    const size_t len = (size_t)(batch->cu[seq + 1] - batch->cu[seq]);
    size_t n;
    const int32_t *const markers = markers_of(batch, seq, &n);
    const uint64_t shared = rp_attention_group(markers, n, len, 0).keys;
    return len && rows ? rp_step_read_pairs(step, batch, seq) - (rows - 1) * shared : 0;
}

/* Those of a window are packed for each row, all others once. */
uint64_t rp_step_read_keys(const struct rp_step *step, const rp_batch *batch, size_t seq)
{
    const size_t row0 = (size_t)batch->cu[seq];
    size_t first, end;
    uint64_t most = 0;
    if (step->p.attention.window)
        return rp_step_read_pairs(step, batch, seq);
    rp_step_read_rows(step, batch, seq, &first, &end);
    if (step->p.attention.options)
        return read_option_keys(step, batch, seq, end - first);
    for (size_t r = first, token; r < end; r++) {
        if (!find_token(batch, step->read, r, &token))
            continue;
        const uint64_t keys = rp_step_keys(step, batch, seq, token - row0, token - row0 + 1);
        most = keys > most ? keys : most;
    }
    return most;
}

static void attend_block(const struct rp_step *step, const struct rp_frame *f, size_t t)
{
    const struct rp_run *run = f->run;
    const size_t heads = step->p.attention.n_kv_heads;
    const struct rp_query_block *block = &run->blocks[t / heads];
    const int32_t *cu = run->batch->cu;
    const struct rp_attention_args args = attention_args(step, f, (size_t)block->seq);
    run->plan->attention->run(&args, (size_t)cu[block->seq],
                              (size_t)(cu[block->seq + 1] - cu[block->seq]), t % heads,
                              (size_t)block->q0, (size_t)block->q1, f->scratch);
}

static void gather_marker(const struct rp_step *step, const struct rp_frame *f, size_t marker)
{
    size_t token;
    if (find_token(f->run->batch, RP_READ_MARKED, marker, &token))
        memcpy(rp_frame_row(f, step->out, marker), rp_frame_row(f, step->in[0], token),
               step->width * sizeof(float));
}

/* A batch without markers has no logits to point at. */
static void act_features(const struct rp_step *step, const struct rp_frame *f, size_t seq)
{
    const rp_batch *batch = f->run->batch;
    const bool has_tokens = batch->cu[seq + 1] > batch->cu[seq];
    const size_t first = batch->markers ? (size_t)batch->mcu[seq] : 0;
    const size_t n = batch->markers ? (size_t)batch->mcu[seq + 1] - first : 0;
    f->run->plan->ops->act_features(
        has_tokens ? rp_frame_row(f, step->in[0], seq) : NULL, width_of(f, step->in[0]),
        n ? rp_frame_row(f, step->in[1], first) : NULL, n, rp_frame_row(f, step->out, seq));
}

/* Task t of a convolution. */
static void convolve(const struct rp_step *step, const struct rp_frame *f, size_t t, size_t rows)
{
    const size_t end = (t + 1) * rows, all = f->run->live.tokens;
    rp_step_convolve(step, f, t * rows, end < all ? end : all);
}

void rp_step_task(const struct rp_step *step, const struct rp_frame *f, size_t t,
                  const struct rp_phase *phase)
{
    const int32_t *cu = f->run->batch->cu;
    switch (step->op) {
    case RP_OP_ATTENTION:
        if (step->read == RP_READ_ALL)
            attend_block(step, f, t);
        else
            attend_reads(step, f, t, phase->heads);
        return;
    case RP_OP_POOL:
        f->run->plan->ops->pool(step->p.pooling, rp_frame_row(f, step->in[0], (size_t)cu[t]),
                                step->width, (size_t)(cu[t + 1] - cu[t]), step->width,
                                rp_frame_row(f, step->out, t));
        return;
    case RP_OP_GATHER_MARKERS: gather_marker(step, f, t); return;
    case RP_OP_ACT_FEATURES: act_features(step, f, t); return;
    case RP_OP_CONV: convolve(step, f, t, phase->conv_rows); return;
    case RP_OP_GDN: rp_step_gdn(step, f, t, phase->columns); return;
    case RP_OP_CROSS_ATTENTION: rp_step_cross(step, f, t, phase); return;
    default: assert(0 && "a step that works by row"); return;
    }
}
