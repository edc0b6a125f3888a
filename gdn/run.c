/* The delta rule over rows that the caller has made: q, k, v, decays, betas.
 *
 * Chunk by chunk, a task's key head's part of the rows is packed (which serves any strides and both
 * maps of heads with one kernel), run, and its outputs are spread again.
 */
#include "gdn/task.h"

#include "pool/error.h"
#include "pool/memory.h"

#include <string.h>

enum { Q, K, V, DECAY, BETA, N_INPUTS };

struct rule {
    const rp_gdn_batch *batch;
    struct rp_gdn_named inputs[N_INPUTS];
};

void rp_gdn_batch_init(rp_gdn_batch *batch)
{
    *batch = (rp_gdn_batch){.struct_size = sizeof *batch};
}

/* ---- what is refused ---------------------------------------------------------------------------
 */

static rp_status check_steps(const struct rp_gdn_run *run, const rp_gdn_batch *b, rp_error *err)
{
    size_t floats;
    if (b->steps_layout != RP_GDN_KEY_VALUE && b->steps_layout != RP_GDN_VALUE_KEY)
        return rp_fail(err, RP_ERR_INVALID, "steps_layout is %d, which is none",
                       (int)b->steps_layout);
    if (b->steps && (!rp_mul_ok(run->n_rows, run->states->floats, &floats) ||
                     floats > PTRDIFF_MAX / sizeof(float)))
        return rp_fail(err, RP_ERR_LIMIT,
                       "steps elements: %zu states of %zu floats are past what memory can hold",
                       run->n_rows, run->states->floats);
    return RP_OK;
}

static void name_inputs(struct rule *rule, const rp_gdn_states *s)
{
    const rp_gdn_batch *b = rule->batch;
    const size_t keys = s->n_key_heads * s->key_dim, values = s->n_value_heads * s->value_dim;
    rule->inputs[Q] = (struct rp_gdn_named){"q", rp_gdn_floats(b->q), keys, false};
    rule->inputs[K] = (struct rp_gdn_named){"k", rp_gdn_floats(b->k), keys, false};
    rule->inputs[V] = (struct rp_gdn_named){"v", rp_gdn_floats(b->v), values, false};
    rule->inputs[DECAY] = (struct rp_gdn_named){"decay", rp_gdn_floats(b->decay), s->n_value_heads,
                                                !s->options.linear_decay};
    rule->inputs[BETA] =
        (struct rp_gdn_named){"beta", rp_gdn_floats(b->beta), s->n_value_heads, false};
}

/* All but the numbers themselves. */
static rp_status check_batch(struct rp_gdn_run *run, struct rule *rule, rp_error *err)
{
    rp_gdn_states *s = run->states;
    const rp_gdn_batch *b = rule->batch;
    if (!b)
        return rp_fail(err, RP_ERR_INVALID, "batch is NULL");
    if (b->struct_size != sizeof *b)
        return rp_fail(err, RP_ERR_INVALID, "rp_gdn_batch has struct_size %zu, expected %zu",
                       b->struct_size, sizeof *b);
    RP_TRY(rp_gdn_check_seqs(s, b->n_seqs, b->slots, b->cu, &run->n_rows, err));
    if (run->n_rows == 0)
        return RP_OK;
    name_inputs(rule, s);
    for (int i = 0; i < N_INPUTS; i++)
        RP_TRY(rp_gdn_check_rows(&rule->inputs[i], run->n_rows, err));
    run->out = (struct rp_gdn_named){"out", rp_gdn_floats((rp_gdn_input){b->out, b->ld_out}),
                                     rule->inputs[V].width, false};
    RP_TRY(rp_gdn_check_rows(&run->out, run->n_rows, err));
    return check_steps(run, b, err);
}

/* ---- a task ------------------------------------------------------------------------------------
 */

static const struct rule *rule_of(const struct rp_gdn_task *t)
{
    return t->run->user;
}

static void each_span(struct rp_gdn_task *t, rp_gdn_span_fn *fn)
{
    rp_gdn_each_span(t->s->key_dim, t->s->value_dim, t->c0, t->c1, fn, t);
}

static void start_step(void *context, size_t at, size_t n)
{
    struct rp_gdn_task *t = context;
    memcpy(t->step + at, t->state + at, n * sizeof *t->step);
}

static void keep_step(void *context, size_t at, size_t n)
{
    struct rp_gdn_task *t = context;
    memcpy(t->state + at, t->step + at, n * sizeof *t->step);
}

/* A span of the state after a row, rounded as the slot would hold it, to the caller's steps. */
static void show_step(void *context, size_t at, size_t n)
{
    struct rp_gdn_task *t = context;
    const rp_gdn_batch *b = rule_of(t)->batch;
    const rp_gdn_states *s = t->s;
    const size_t head = s->key_dim * s->value_dim;
    float *to = b->steps + t->row * s->floats + rp_gdn_head_of(s, t->key_head, at / head) * head;
    float *x = t->step + at;
    t->bad_state |= rp_gdn_round(s, x, n);
    at %= head;
    if (b->steps_layout == RP_GDN_KEY_VALUE) {
        memcpy(to + at, x, n * sizeof *x);
        return;
    }
    for (size_t i = 0; i < n; i++, at++)
        to[at % s->value_dim * s->key_dim + at / s->value_dim] = x[i];
}

static const float *input_row(const struct rp_gdn_task *t, int which, size_t row)
{
    const rp_gdn_projection *in = &rule_of(t)->inputs[which].rows;
    return (const float *)in->data + row * in->ld;
}

/* Rows [row, row + n) of the key head: q, k, the v of its value heads; their decays, their betas.
 */
static void pack(const struct rp_gdn_task *t, size_t row, size_t n)
{
    const rp_gdn_states *s = t->s;
    const size_t keys = s->key_dim, values = s->value_dim;
    for (size_t r = 0; r < n; r++) {
        float *x = t->qkv + r * s->args.ld, *gates = t->gates + r * s->args.ld_gates;
        memcpy(x, input_row(t, Q, row + r) + t->key_head * keys, keys * sizeof *x);
        memcpy(x + keys, input_row(t, K, row + r) + t->key_head * keys, keys * sizeof *x);
        x += 2 * keys;
        for (size_t i = 0; i < s->per_key; i++, x += values) {
            const size_t head = rp_gdn_head_of(s, t->key_head, i);
            memcpy(x, input_row(t, V, row + r) + head * values, values * sizeof *x);
            gates[i] = input_row(t, DECAY, row + r)[head];
            gates[s->per_key + i] = input_row(t, BETA, row + r)[head];
        }
    }
}

/* The task's columns of the chunk's outputs to where the caller wants them. */
static void spread(struct rp_gdn_task *t, size_t row, size_t n)
{
    const rp_gdn_batch *b = rule_of(t)->batch;
    const size_t width = t->s->value_dim;
    size_t where;
    for (size_t r = 0; r < n; r++) {
        const float *x = t->out + r * t->s->args.ld_out;
        float *out = b->out + (row + r) * b->ld_out;
        for (size_t c = t->c0, end; c < t->c1; c = end) {
            const size_t i = c / width, head = rp_gdn_head_of(t->s, t->key_head, i);
            end = (i + 1) * width < t->c1 ? (i + 1) * width : t->c1;
            memcpy(out + head * width + c % width, x + c, (end - c) * sizeof *x);
        }
        t->bad_out |= t->s->ops->nonfinite(x + t->c0, t->c1 - t->c0, &where);
    }
}

/* The chunk's rows with the state after each: that which it would leave if it ended there, so the
 * chunk is begun anew for each of them. */
static void run_steps(struct rp_gdn_task *t, size_t n)
{
    for (size_t r = 0; r < n; r++, t->row++) {
        const struct rp_gdn_rows pieces[] = {{0, r, true}, {r, 1, false}};
        each_span(t, start_step);
        rp_gdn_run_pieces(t, pieces + (r == 0), 1 + (r > 0), t->step);
        if (r == n - 1)
            each_span(t, keep_step);
        each_span(t, show_step);
    }
}

static void run_rows(struct rp_gdn_task *t)
{
    const struct rp_gdn_seq *seq = t->seq;
    for (size_t done = 0, n; done < seq->n; done += n) {
        n = seq->n - done < RP_GDN_CHUNK ? seq->n - done : RP_GDN_CHUNK;
        pack(t, seq->row0 + done, n);
        t->row = seq->row0 + done;
        if (rule_of(t)->batch->steps)
            run_steps(t, n);
        else
            rp_gdn_run_pieces(t, &(struct rp_gdn_rows){0, n, false}, 1, t->state);
        spread(t, seq->row0 + done, n);
    }
}

rp_status rp_gdn_run(rp_gdn_states *states, const rp_gdn_batch *batch, rp_error *err)
{
    struct rule rule = {.batch = batch};
    struct rp_gdn_run run;
    rp_gdn_run_init(&run, states);
    run.user = &rule;
    run.inputs = rule.inputs;
    run.n_inputs = N_INPUTS;
    run.rows = run_rows;
    RP_TRY(check_batch(&run, &rule, err));
    if (run.n_rows == 0)
        return RP_OK;
    return rp_gdn_execute(&run, batch->n_seqs, batch->slots, batch->cu, err);
}
