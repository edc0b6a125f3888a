/* Calibrating: how large the columns are that products multiply, in a run of the model.
 *
 * An observer adds up the |cubes| of what chosen products read.  What an expert's `down` multiplies
 * is no step's result: a batch's rows and logits are kept, and the experts run once more behind it
 * (plan/experts.c).
 */
#include "plan/quantize.h"

#include "plan/run.h"
#include "pool/error.h"
#include "pool/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Random ids, when there are no texts: sequences x length. */
#define CALIBRATION_SEQS   32
#define CALIBRATION_LENGTH 32
#define CALIBRATION_SEED   UINT64_C(0x72616e6b706c616e)

/* The first weight that multiplies a step's first operand. */
static rp_weight weight_of(const struct rp_quantizing *q, const struct rp_step *step)
{
    return rp_node_weight(&q->graph->nodes[step->node], 0);
}

static bool is_chosen(const struct rp_quantizing *q, const struct rp_step *step)
{
    return (step->op == RP_OP_GEMM || step->op == RP_OP_EXPERTS) &&
           q->choices[weight_of(q, step)].chosen;
}

/* Whether the step's result is the first operand of a chosen product; the weights of them in turn.
 */
static rp_weight next_reader(const struct rp_quantizing *q, size_t index, size_t *from)
{
    const int32_t slot = q->plan->steps[index].out;
    for (size_t s = *from; s < q->plan->n_steps; s++) {
        const struct rp_step *step = &q->plan->steps[s];
        if (!is_chosen(q, step) || step->in[0] != slot)
            continue;
        *from = s + 1;
        return weight_of(q, step);
    }
    return -1;
}

static bool want(void *context, const rp_step_info *info)
{
    const struct rp_quantizing *q = context;
    size_t from = 0;
    return q->kept[q->plan->steps[info->index].out] || next_reader(q, info->index, &from) >= 0;
}

void rp_cubes_add(struct rp_cubes *cubes, const float *x, size_t rows, size_t width)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t j = 0; j < width; j++) {
            const double a = fabs((double)x[r * width + j]);
            cubes->columns[j] += a * a * a;
        }
    cubes->rows += rows;
}

static rp_status show(void *context, const rp_step_info *info, const rp_view *view)
{
    struct rp_quantizing *q = context;
    float *kept = q->kept[q->plan->steps[info->index].out];
    rp_weight w;
    for (size_t from = 0; (w = next_reader(q, info->index, &from)) >= 0;)
        rp_cubes_add(&q->cubes[w], view->data, view->rows, view->width);
    if (kept)
        memcpy(kept, view->data, view->rows * view->width * sizeof *kept);
    return RP_OK;
}

static rp_status make_cubes(struct rp_quantizing *q, rp_error *err)
{
    for (size_t w = 0; w < q->n_weights; w++) {
        if (!rp_quantizing_leads(q, w))
            continue;
        const size_t cols = rp_weights_entry(q->weights, (rp_weight)w)->cols;
        q->cubes[w].columns = calloc(cols, sizeof *q->cubes[w].columns);
        if (!q->cubes[w].columns)
            return rp_fail(err, RP_ERR_NOMEM, "no memory for the ranges of %zu columns", cols);
    }
    return RP_OK;
}

/* Room for what chosen experts read: rows and logits. */
static rp_status make_room(struct rp_quantizing *q, size_t rows, rp_error *err)
{
    for (size_t s = 0; s < q->plan->n_steps; s++) {
        const struct rp_step *step = &q->plan->steps[s];
        for (size_t k = 0; step->op == RP_OP_EXPERTS && is_chosen(q, step) && k < 2; k++) {
            float **kept = &q->kept[step->in[k]];
            if (!*kept)
                *kept = calloc(rows + 1, q->plan->slots[step->in[k]].width * sizeof **kept);
            if (!*kept)
                return rp_fail(err, RP_ERR_NOMEM, "no memory to calibrate with %zu tokens", rows);
        }
    }
    return RP_OK;
}

static void free_room(struct rp_quantizing *q)
{
    for (size_t i = 0; i < q->plan->n_slots; i++) {
        free(q->kept[i]);
        q->kept[i] = NULL;
    }
}

/* The cubes of what experts' `down` multiplied in the batch that ran. */
static rp_status add_inner_cubes(struct rp_quantizing *q, size_t rows, rp_error *err)
{
    for (size_t s = 0; s < q->plan->n_steps; s++) {
        const struct rp_step *step = &q->plan->steps[s];
        if (step->op != RP_OP_EXPERTS || !is_chosen(q, step))
            continue;
        const rp_weight *weights = q->graph->nodes[step->node].p.experts.weights;
        RP_TRY(rp_experts_add_cubes(step, q->plan, q->kept[step->in[0]], q->kept[step->in[1]], rows,
                                    q->options->pool, weights + step->p.experts.n_experts, q->cubes,
                                    err));
    }
    return RP_OK;
}

static rp_status observe_batch(struct rp_quantizing *q, const rp_batch *batch, rp_error *err)
{
    rp_session_options options;
    rp_session *session;
    const rp_observer observer = {
        .struct_size = sizeof observer, .want = want, .show = show, .context = q};
    const size_t tokens = (size_t)batch->cu[batch->n_seqs];
    const rp_bucket bucket = {.tokens = tokens ? tokens : 1, /* no bucket is empty */
                              .seqs = batch->n_seqs,
                              .markers = batch->markers ? (size_t)batch->mcu[batch->n_seqs] : 0};
    rp_session_options_init(&options);
    options.pool = q->options->pool;
    options.no_prune = true; /* as the plan that it is observed by */
    options.buckets = &bucket;
    options.n_buckets = 1;
    RP_TRY(rp_session_create(q->graph, q->weights, &options, &session, err));
    rp_session_observe(session, &observer);
    const rp_status status = rp_session_run(session, batch, err);
    rp_session_destroy(session);
    return status;
}

static rp_status run_batch(struct rp_quantizing *q, const rp_batch *batch, rp_error *err)
{
    RP_TRY(rp_batch_check(batch, err));
    const size_t rows = (size_t)batch->cu[batch->n_seqs];
    rp_status status = make_room(q, rows, err);
    if (status == RP_OK)
        status = observe_batch(q, batch, err);
    if (status == RP_OK)
        status = add_inner_cubes(q, rows, err);
    free_room(q);
    return status;
}

/* How many ids the graph has, and how long a sequence may be, by its tables. */
static void find_limits(const struct rp_quantizing *q, size_t *ids, size_t *length)
{
    *ids = SIZE_MAX;
    *length = CALIBRATION_LENGTH;
    for (size_t i = 0; i < q->graph->n_nodes; i++) {
        const struct rp_node *node = &q->graph->nodes[i];
        for (size_t t = 0; node->op == RP_OP_EMBED && t < node->p.embed.n; t++) {
            const rp_embed_table *table = &node->p.embed.tables[t];
            const size_t rows = rp_weights_entry(q->weights, table->table)->rows;
            size_t room = rows;
            if (table->index == RP_INDEX_POSITION_NONPAD)
                room =
                    rows > (size_t)table->parameter + 1 ? rows - (size_t)table->parameter - 1 : 1;
            if (table->index == RP_INDEX_IDS)
                *ids = rows < *ids ? rows : *ids;
            else if (table->index == RP_INDEX_POSITION || table->index == RP_INDEX_POSITION_NONPAD)
                *length = room < *length ? room : *length;
        }
    }
}

/* Random ids stand for a text; nothing stands for what the caller would bring along. */
static rp_status check_random(const struct rp_quantizing *q, rp_error *err)
{
    for (size_t s = 0; s < q->plan->n_steps; s++) {
        const struct rp_step *step = &q->plan->steps[s];
        if (step->op == RP_OP_INPUT || step->op == RP_OP_CROSS_ATTENTION)
            return rp_fail(err, RP_ERR_INVALID,
                           "op %zu (%s): calibration needs batches with %s, and was given none",
                           step->node, step->name, step->op == RP_OP_INPUT ? "input" : "memories");
    }
    return RP_OK;
}

static rp_status run_random(struct rp_quantizing *q, rp_error *err)
{
    int32_t ids[CALIBRATION_SEQS * CALIBRATION_LENGTH], cu[CALIBRATION_SEQS + 1];
    size_t n_ids, length;
    uint64_t state = CALIBRATION_SEED;
    rp_batch batch;
    find_limits(q, &n_ids, &length);
    for (size_t s = 0; s <= CALIBRATION_SEQS; s++)
        cu[s] = (int32_t)(s * length);
    for (size_t i = 0; i < CALIBRATION_SEQS * length; i++)
        ids[i] = (int32_t)(rp_random_next(&state) % n_ids);
    rp_batch_init(&batch);
    batch.n_seqs = CALIBRATION_SEQS;
    batch.ids = ids;
    batch.cu = cu;
    return run_batch(q, &batch, err);
}

rp_status rp_calibrate(struct rp_quantizing *q, rp_error *err)
{
    RP_TRY(make_cubes(q, err));
    if (q->options->n_batches == 0) {
        RP_TRY(check_random(q, err));
        return run_random(q, err);
    }
    for (size_t b = 0; b < q->options->n_batches; b++) {
        const rp_status s = run_batch(q, &q->options->batches[b], err);
        if (s != RP_OK)
            return rp_fail_within(err, s, "calibration batch %zu", b);
    }
    return RP_OK;
}
