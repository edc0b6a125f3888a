/* Turning weights to INT8: which ones, and by which smoothing factors.
 *
 * The factor of column j of a product is sqrt(a / w), a being the cubic mean of the column's
 * |activations| over a calibration run and w the largest |weight|; scaled by a power of two so that
 * their geometric mean is near 1.  (On MiniLM the cubic mean does a little better than the
 * quadratic one and than the largest activation; searching for exponents by the error of each
 * product did not.)  Sums in one order, square roots, divisions and powers of two alone: the
 * factors, like everything that follows from them, have the same bits on every machine.
 */
#include "plan/plan.h"

#include "pool/error.h"
#include "pool/fpenv.h"
#include "pool/memory.h"

#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Random ids, when there are no texts: sequences x length. */
#define CALIBRATION_SEQS   32
#define CALIBRATION_LENGTH 32
#define CALIBRATION_SEED   UINT64_C(0x72616e6b706c616e)

/* No factor is further than this from their mean: a column that the calibration hardly saw must not
 * blow up what a text puts there. */
#define FACTOR_MAX 64.0f

void rp_quantize_options_init(rp_quantize_options *options)
{
    *options =
        (rp_quantize_options){.struct_size = sizeof *options, .precision = RP_PRECISION_INT8};
}

struct quantizing {
    rp_weights *weights;
    const rp_graph *graph;
    const rp_quantize_options *options;
    bool *chosen;   /* weights that become INT8, by index */
    double **cubes; /* of chosen weights: sums of the first operand's |cubes| by column, or NULL */
    size_t n_weights;
    const rp_plan *plan; /* of the calibration */
};

/* ---- choosing ----------------------------------------------------------------------------------
 */

/* Whether a name matches one of the patterns of a list "a*,b?". */
static bool matches(const char *patterns, const char *name)
{
    char pattern[256];
    for (const char *p = patterns; p && *p;) {
        const size_t n = strcspn(p, ",");
        if (n < sizeof pattern) {
            memcpy(pattern, p, n);
            pattern[n] = 0;
            if (fnmatch(pattern, name, 0) == 0)
                return true;
        }
        p += n + (p[n] == ',');
    }
    return false;
}

static bool may_be_int8(const struct quantizing *q, const struct rp_step *step)
{
    return step->op == RP_OP_GEMM && step->rows == RP_ROWS_TOKENS &&
           step->p.gemm.k <= RP_QGEMM_K_MAX && !matches(q->options->keep, step->name);
}

static rp_weight weight_of(const struct quantizing *q, const struct rp_step *step)
{
    return q->graph->nodes[step->node].weight[0];
}

/* A weight is chosen when every use of it can be INT8. */
static void choose(struct quantizing *q)
{
    for (size_t s = 0; s < q->plan->n_steps; s++)
        if (may_be_int8(q, &q->plan->steps[s]))
            q->chosen[weight_of(q, &q->plan->steps[s])] = true;
    for (size_t i = 0; i < q->graph->n_nodes; i++) {
        const struct rp_node *node = &q->graph->nodes[i];
        bool used = false;
        for (size_t s = 0; s < q->plan->n_steps; s++)
            used = used || (q->plan->steps[s].node == i && may_be_int8(q, &q->plan->steps[s]));
        if (used)
            continue;
        for (int32_t w = 0; node->op == RP_OP_EXPERTS && w < 2 * node->p.experts.options.n_experts;
             w++)
            q->chosen[node->p.experts.weights[w]] = false;
        for (size_t w = 0; w < 2; w++)
            if (node->op != RP_OP_EMBED && node->weight[w] >= 0)
                q->chosen[node->weight[w]] = false;
        for (size_t t = 0; node->op == RP_OP_EMBED && t < node->p.embed.n; t++)
            q->chosen[node->p.embed.tables[t].table] = false;
    }
}

/* ---- calibrating -------------------------------------------------------------------------------
 */

/* Whether the step's result is the first operand of a chosen product; *weights of them in turn. */
static rp_weight next_reader(const struct quantizing *q, size_t index, size_t *from)
{
    const int32_t slot = q->plan->steps[index].out;
    for (size_t s = *from; s < q->plan->n_steps; s++) {
        const struct rp_step *step = &q->plan->steps[s];
        if (step->op != RP_OP_GEMM || step->in[0] != slot || !q->chosen[weight_of(q, step)])
            continue;
        *from = s + 1;
        return weight_of(q, step);
    }
    return -1;
}

static bool want(void *context, const rp_step_info *info)
{
    size_t from = 0;
    return next_reader(context, info->index, &from) >= 0;
}

static rp_status add_cubes(void *context, const rp_step_info *info, const rp_view *view)
{
    struct quantizing *q = context;
    rp_weight w;
    for (size_t from = 0; (w = next_reader(q, info->index, &from)) >= 0;)
        for (size_t r = 0; r < view->rows; r++)
            for (size_t j = 0; j < view->width; j++) {
                const double x = fabs((double)view->data[r * view->width + j]);
                q->cubes[w][j] += x * x * x;
            }
    return RP_OK;
}

static rp_status make_cubes(struct quantizing *q, rp_error *err)
{
    for (size_t w = 0; w < q->n_weights; w++) {
        if (!q->chosen[w])
            continue;
        const size_t cols = rp_weights_entry(q->weights, (rp_weight)w)->cols;
        q->cubes[w] = calloc(cols, sizeof **q->cubes);
        if (!q->cubes[w])
            return rp_fail(err, RP_ERR_NOMEM, "no memory for the ranges of %zu columns", cols);
    }
    return RP_OK;
}

static rp_status run_batch(struct quantizing *q, const rp_batch *batch, rp_error *err)
{
    rp_session_options options;
    rp_session *session;
    const rp_observer observer = {
        .struct_size = sizeof observer, .want = want, .show = add_cubes, .context = q};
    const rp_bucket bucket = {.tokens = (size_t)batch->cu[batch->n_seqs],
                              .seqs = batch->n_seqs,
                              .markers = batch->mcu ? (size_t)batch->mcu[batch->n_seqs] : 0};
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

/* splitmix64: a fixed seed gives the same ids everywhere. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* How many ids the graph has, and how long a sequence may be, by its tables. */
static void find_limits(const struct quantizing *q, size_t *ids, size_t *length)
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
static rp_status check_random(const struct quantizing *q, rp_error *err)
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

static rp_status run_random(struct quantizing *q, rp_error *err)
{
    int32_t ids[CALIBRATION_SEQS * CALIBRATION_LENGTH], cu[CALIBRATION_SEQS + 1];
    size_t n_ids, length;
    uint64_t state = CALIBRATION_SEED;
    rp_batch batch;
    find_limits(q, &n_ids, &length);
    for (size_t s = 0; s <= CALIBRATION_SEQS; s++)
        cu[s] = (int32_t)(s * length);
    for (size_t i = 0; i < CALIBRATION_SEQS * length; i++)
        ids[i] = (int32_t)(next_random(&state) % n_ids);
    rp_batch_init(&batch);
    batch.n_seqs = CALIBRATION_SEQS;
    batch.ids = ids;
    batch.cu = cu;
    return run_batch(q, &batch, err);
}

static rp_status calibrate(struct quantizing *q, rp_error *err)
{
    if (q->options->no_smoothing || q->options->factors)
        return RP_OK;
    RP_TRY(make_cubes(q, err));
    if (q->options->n_batches == 0) {
        RP_TRY(check_random(q, err));
        return run_random(q, err);
    }
    for (size_t b = 0; b < q->options->n_batches; b++)
        RP_TRY(run_batch(q, &q->options->batches[b], err));
    return RP_OK;
}

/* ---- factors -----------------------------------------------------------------------------------
 */

/* Largest |weight| of each column, from the packed panels. */
static void column_ranges(const struct rp_weight_entry *e, float *out)
{
    const float *packed = e->form[RP_FORM_PACKED];
    const size_t panels = (e->rows + RP_GEMM_NR - 1) / RP_GEMM_NR;
    memset(out, 0, e->cols * sizeof *out);
    for (size_t p = 0; p < panels; p++)
        for (size_t j = 0; j < e->cols; j++)
            for (size_t r = 0; r < RP_GEMM_NR; r++) {
                const float x = fabsf(packed[(p * e->cols + j) * RP_GEMM_NR + r]);
                out[j] = x > out[j] ? x : out[j];
            }
}

/* By Newton's method from a power of two, always as many steps: unlike cbrt, the same bits with
 * every C library. */
static double cube_root(double x)
{
    int e;
    if (!(x > 0) || isinf(x))
        return x;
    const double m = frexp(x, &e); /* 1/2 to 1 */
    const int third = e / 3, rest = e - 3 * third;
    const double scaled = ldexp(m, rest); /* 1/8 to 4 */
    double y = 1;
    for (int i = 0; i < 10; i++)
        y = (2 * y + scaled / (y * y)) / 3;
    return ldexp(y, third);
}

/* sqrt(a / w) in out, which holds w, but for a factor that all columns share; columns that are not
 * both there and finite get 0 for now. */
static void balance(const double *cubes, float *out, size_t n)
{
    for (size_t j = 0; j < n; j++) {
        const float ratio = (float)cube_root(cubes[j]) / out[j];
        out[j] = ratio > 0 && isfinite(ratio) ? sqrtf(ratio) : 0;
    }
}

/* Divides by the power of two that is nearest to their geometric mean, and bounds them. */
static void centre(float *factors, size_t n)
{
    int64_t exponents = 0, counted = 0;
    for (size_t j = 0; j < n; j++) {
        int e;
        if (factors[j] > 0) {
            (void)frexpf(factors[j] * factors[j], &e); /* twice the exponent: rounds better */
            exponents += e;
            counted++;
        }
    }
    const int mean = counted ? (int)(exponents / (2 * counted)) : 0;
    for (size_t j = 0; j < n; j++) {
        float f = factors[j] > 0 ? ldexpf(factors[j], -mean) : 1;
        f = f > FACTOR_MAX ? FACTOR_MAX : f;
        factors[j] = f < 1 / FACTOR_MAX ? 1 / FACTOR_MAX : f;
    }
}

static rp_status given_factors(const struct quantizing *q, const struct rp_weight_entry *e,
                               float *out, rp_error *err)
{
    RP_TRY(q->options->factors(q->options->factors_context, e->name, e->cols, out, err));
    for (size_t j = 0; j < e->cols; j++)
        if (!(out[j] >= 0x1p-60f && out[j] <= 0x1p60f))
            return rp_fail(err, RP_ERR_INVALID,
                           "weight %s: the smoothing factor of column %zu is none", e->name, j);
    return RP_OK;
}

static rp_status find_factors(const struct quantizing *q, rp_weight w, float *out, rp_error *err)
{
    const struct rp_weight_entry *e = rp_weights_entry(q->weights, w);
    if (q->options->factors)
        return given_factors(q, e, out, err);
    column_ranges(e, out);
    balance(q->cubes[w], out, e->cols);
    centre(out, e->cols);
    return RP_OK;
}

static rp_status turn(const struct quantizing *q, rp_weight w, rp_error *err)
{
    const struct rp_weight_entry *e = rp_weights_entry(q->weights, w);
    float *factors = NULL;
    rp_status status = RP_OK;
    if (!q->options->no_smoothing) {
        factors = calloc(e->cols, sizeof *factors);
        if (!factors)
            return rp_fail(err, RP_ERR_NOMEM, "weight %s: no memory for its factors", e->name);
        status = find_factors(q, w, factors, err);
    }
    if (status == RP_OK)
        status = rp_weights_use_int8(q->weights, w, factors, err);
    if (status == RP_OK)
        status = rp_weights_make(q->weights, w, RP_FORM_INT8, q->options->pool, err);
    free(factors);
    return status;
}

/* All or nothing: the FP32 forms go only when every INT8 form is there. */
static rp_status turn_all(const struct quantizing *q, rp_error *err)
{
    rp_status status = RP_OK;
    for (size_t w = 0; w < q->n_weights && status == RP_OK; w++)
        if (q->chosen[w])
            status = turn(q, (rp_weight)w, err);
    for (size_t w = 0; w < q->n_weights; w++) {
        if (!q->chosen[w])
            continue;
        if (status == RP_OK)
            rp_weights_drop(q->weights, (rp_weight)w, RP_FORM_PACKED);
        else
            rp_weights_use_fp32(q->weights, (rp_weight)w);
    }
    return status;
}

/* ---- all of it ---------------------------------------------------------------------------------
 */

static rp_status check_options(const rp_quantize_options *o, rp_error *err)
{
    if (o->struct_size != sizeof *o)
        return rp_fail(err, RP_ERR_INVALID, "rp_quantize_options has struct_size %zu, expected %zu",
                       o->struct_size, sizeof *o);
    if (o->precision != RP_PRECISION_INT8)
        return rp_fail(err, RP_ERR_INVALID, "there is no precision %d to turn weights to",
                       (int)o->precision);
    return RP_OK;
}

static rp_status quantize(struct quantizing *q, rp_error *err)
{
    if (!q->chosen || !q->cubes)
        return rp_fail(err, RP_ERR_NOMEM, "no memory to quantise %zu weights", q->n_weights);
    choose(q);
    RP_TRY(calibrate(q, err));
    return turn_all(q, err);
}

static rp_status quantize_graph(rp_weights *weights, const rp_graph *graph,
                                const rp_quantize_options *options, rp_error *err)
{
    rp_quantize_options defaults;
    rp_quantize_options_init(&defaults);
    if (!options)
        options = &defaults;
    RP_TRY(check_options(options, err));
    const rp_bucket bucket = {.tokens = 16, .seqs = 1};
    rp_plan_options plan_options;
    rp_plan *plan;
    rp_plan_options_init(&plan_options);
    plan_options.pool = options->pool;
    /* Which products are of tokens does not depend on who reads them. */
    plan_options.no_prune = true;
    RP_TRY(rp_plan_compile(graph, weights, &bucket, &plan_options, &plan, err));
    struct quantizing q = {.weights = weights,
                           .graph = graph,
                           .options = options,
                           .n_weights = rp_weights_count(weights),
                           .plan = plan};
    q.chosen = calloc(q.n_weights + 1, sizeof *q.chosen);
    q.cubes = calloc(q.n_weights + 1, sizeof *q.cubes);
    const rp_status status = quantize(&q, err);
    for (size_t w = 0; q.cubes && w < q.n_weights; w++)
        free(q.cubes[w]);
    free(q.cubes);
    free(q.chosen);
    rp_plan_destroy(plan);
    return status;
}

rp_status rp_weights_quantize(rp_weights *weights, const rp_graph *graph,
                              const rp_quantize_options *options, rp_error *err)
{
    const rp_fpenv callers = rp_fpenv_enter();
    const rp_status status = quantize_graph(weights, graph, options, err);
    rp_fpenv_leave(callers);
    return status;
}
