/* Turning weights to INT8: which ones, and by which smoothing factors.
 *
 * The factor of column j of a product is sqrt(a / w), a being the cubic mean of the column's
 * |activations| over a calibration run and w the largest |weight|; scaled by a power of two so that
 * their geometric mean is near 1.  (On MiniLM the cubic mean does a little better than the
 * quadratic one and than the largest activation; searching for exponents by the error of each
 * product did not.)  Sums in one order, square roots, divisions and powers of two alone: the
 * factors, like everything that follows from them, have the same bits on every machine.
 *
 * A row that several experts multiply is rounded once, so their `up` weights share one vector of
 * factors, w being the largest of all of them; each `down` has its own, from the rows that chose
 * its expert.  The products that choose experts stay in FP32: to choose another one is the
 * largest error that there is.
 */
#include "plan/quantize.h"

#include "pool/error.h"
#include "pool/fpenv.h"

#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* No factor is further than this from their mean: a column that the calibration hardly saw must not
 * blow up what a text puts there. */
#define FACTOR_MAX 64.0f

/* Behind each expert's rows so many in which all columns are as large: without them, factors from
 * a few rows do harm (512 experts of 48 columns, normal weights, 2 rows for each: an error of 2.8 %
 * instead of 1.7 %); with more, columns that are large in every row are smoothed less. */
#define EVEN_ROWS 8

void rp_quantize_options_init(rp_quantize_options *options)
{
    *options =
        (rp_quantize_options){.struct_size = sizeof *options, .precision = RP_PRECISION_INT8};
}

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

static size_t count_weights(const struct rp_node *node)
{
    switch (node->op) {
    case RP_OP_EMBED: return node->p.embed.n;
    case RP_OP_EXPERTS: return 2 * (size_t)node->p.experts.options.n_experts;
    default: return 2;
    }
}

rp_weight rp_node_weight(const struct rp_node *node, size_t k)
{
    switch (node->op) {
    case RP_OP_EMBED: return node->p.embed.tables[k].table;
    case RP_OP_EXPERTS: return node->p.experts.weights[k];
    default: return node->weight[k];
    }
}

/* Finds the products whose results decide which experts run, also through other ops: an addition
 * too that is a product's residual.  What such a product multiplies does not decide any more, it is
 * any row.  Values come before those who read them, so one pass back is enough. */
static void find_routes(struct rp_quantizing *q)
{
    for (size_t i = q->graph->n_nodes; i-- > 0;) {
        const struct rp_node *node = &q->graph->nodes[i];
        if (node->op == RP_OP_EXPERTS)
            q->routes[node->in[1]] = true;
        const size_t operands = node->op == RP_OP_GEMM ? 1 : node->op == RP_OP_EXPERTS ? 2 : 0;
        for (size_t k = operands; q->routes[i] && k < node->n_in; k++)
            if (node->in[k] >= 0)
                q->routes[node->in[k]] = true;
    }
}

/* Whether nothing else uses the experts' weights, none of them is used twice, and none was turned
 * for another graph, with factors that others share. */
static bool are_its_own(const struct rp_quantizing *q, const struct rp_node *node)
{
    for (size_t k = 0; k < count_weights(node); k++) {
        const rp_weight w = rp_node_weight(node, k);
        if (q->choices[w].uses != 1 || rp_weights_entry(q->weights, w)->int8)
            return false;
    }
    return true;
}

static bool may_be_int8(const struct rp_quantizing *q, const struct rp_step *step)
{
    if (step->rows != RP_ROWS_TOKENS || q->routes[step->node] ||
        matches(q->options->keep, step->name))
        return false;
    if (step->op == RP_OP_GEMM)
        return step->p.gemm.k <= RP_QGEMM_K_MAX;
    return step->op == RP_OP_EXPERTS && step->width <= RP_QGEMM_K_MAX &&
           step->p.experts.inner <= RP_QGEMM_K_MAX && are_its_own(q, &q->graph->nodes[step->node]);
}

static void count_uses(struct rp_quantizing *q)
{
    for (size_t i = 0; i < q->graph->n_nodes; i++)
        for (size_t k = 0; k < count_weights(&q->graph->nodes[i]); k++) {
            const rp_weight w = rp_node_weight(&q->graph->nodes[i], k);
            if (w >= 0)
                q->choices[w].uses++;
        }
}

/* A node's products, if nothing else speaks against it. */
static void choose_node(struct rp_quantizing *q, const struct rp_node *node)
{
    if (node->op == RP_OP_GEMM) {
        q->choices[rp_node_weight(node, 0)].chosen = true;
        return;
    }
    const size_t n = (size_t)node->p.experts.options.n_experts;
    const rp_weight *up = node->p.experts.weights, *down = up + n;
    for (size_t e = 0; e < n; e++) {
        q->choices[up[e]].chosen = q->choices[down[e]].chosen = true;
        q->choices[up[e]].shared = up;
        q->choices[up[e]].n_shared = n;
        q->choices[down[e]].is_down = true;
    }
}

/* A weight is chosen when every use of it can be INT8, and the weights of experts all together. */
static void choose(struct rp_quantizing *q)
{
    const struct rp_node *nodes = q->graph->nodes;
    count_uses(q);
    find_routes(q);
    for (size_t s = 0; s < q->plan->n_steps; s++) {
        const struct rp_step *step = &q->plan->steps[s];
        if (!may_be_int8(q, step))
            continue;
        q->may[step->node] = true;
        choose_node(q, &nodes[step->node]);
    }
    for (size_t i = 0; i < q->graph->n_nodes; i++)
        for (size_t k = 0; !q->may[i] && k < count_weights(&nodes[i]); k++)
            if (rp_node_weight(&nodes[i], k) >= 0)
                q->choices[rp_node_weight(&nodes[i], k)].chosen = false;
}

bool rp_quantizing_leads(const struct rp_quantizing *q, size_t w)
{
    const struct rp_choice *c = &q->choices[w];
    return c->chosen && (!c->shared || c->shared[0] == (rp_weight)w);
}

/* ---- factors -----------------------------------------------------------------------------------
 */

/* Largest |weight| of each column, from the packed panels, or what out has where that is more. */
static void add_ranges(const struct rp_weight_entry *e, float *out)
{
    const float *packed = e->form[RP_FORM_PACKED];
    const size_t panels = (e->rows + RP_GEMM_NR - 1) / RP_GEMM_NR;
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

/* Of n columns. */
static void add_even_rows(struct rp_cubes *cubes, size_t n)
{
    double sum = 0;
    for (size_t j = 0; j < n; j++)
        sum += cubes->columns[j];
    const double even = sum > 0 ? EVEN_ROWS / (double)cubes->rows * (sum / (double)n) : 0;
    for (size_t j = 0; j < n; j++)
        cubes->columns[j] += even;
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

static rp_status given_factors(const struct rp_quantizing *q, const struct rp_weight_entry *e,
                               float *out, rp_error *err)
{
    RP_TRY(q->options->factors(q->options->factors_context, e->name, e->cols, out, err));
    for (size_t j = 0; j < e->cols; j++)
        if (!(out[j] >= 0x1p-60f && out[j] <= 0x1p60f))
            return rp_fail(err, RP_ERR_INVALID,
                           "weight %s: the smoothing factor of column %zu is none", e->name, j);
    return RP_OK;
}

/* The weights that have the factors of w, itself the first. */
static const rp_weight *sharing(const struct rp_quantizing *q, const rp_weight *w, size_t *n)
{
    const struct rp_choice *c = &q->choices[*w];
    *n = c->shared ? c->n_shared : 1;
    return c->shared ? c->shared : w;
}

/* out: zeros. */
static rp_status find_factors(const struct rp_quantizing *q, rp_weight w, float *out, rp_error *err)
{
    const struct rp_weight_entry *e = rp_weights_entry(q->weights, w);
    size_t n;
    const rp_weight *all = sharing(q, &w, &n);
    if (q->options->factors)
        return given_factors(q, e, out, err);
    for (size_t i = 0; i < n; i++)
        add_ranges(rp_weights_entry(q->weights, all[i]), out);
    if (q->choices[w].is_down)
        add_even_rows(&q->cubes[w], e->cols);
    balance(q->cubes[w].columns, out, e->cols);
    centre(out, e->cols);
    return RP_OK;
}

static rp_status turn_with(const struct rp_quantizing *q, rp_weight w, const float *factors,
                           rp_error *err)
{
    size_t n;
    const rp_weight *all = sharing(q, &w, &n);
    RP_TRY(rp_weights_use_int8(q->weights, w, factors, err));
    for (size_t i = 1; i < n; i++)
        rp_weights_share_int8(q->weights, all[i], w);
    for (size_t i = 0; i < n; i++)
        RP_TRY(rp_weights_make(q->weights, all[i], RP_FORM_INT8, q->options->pool, err));
    return RP_OK;
}

/* A weight, and those that share its factors. */
static rp_status turn(const struct rp_quantizing *q, rp_weight w, rp_error *err)
{
    const struct rp_weight_entry *e = rp_weights_entry(q->weights, w);
    if (q->options->no_smoothing)
        return turn_with(q, w, NULL, err);
    float *factors = calloc(e->cols, sizeof *factors);
    if (!factors)
        return rp_fail(err, RP_ERR_NOMEM, "weight %s: no memory for its factors", e->name);
    rp_status status = find_factors(q, w, factors, err);
    if (status == RP_OK)
        status = turn_with(q, w, factors, err);
    free(factors);
    return status;
}

/* All or nothing: the FP32 forms go only when every INT8 form is there. */
static rp_status turn_all(const struct rp_quantizing *q, rp_error *err)
{
    rp_status status = RP_OK;
    for (size_t w = 0; w < q->n_weights && status == RP_OK; w++)
        if (rp_quantizing_leads(q, w))
            status = turn(q, (rp_weight)w, err);
    for (size_t w = 0; w < q->n_weights; w++) {
        if (!q->choices[w].chosen)
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

static rp_status quantize(struct rp_quantizing *q, rp_error *err)
{
    if (!q->choices || !q->cubes || !q->may || !q->routes || !q->kept)
        return rp_fail(err, RP_ERR_NOMEM, "no memory to quantise %zu weights", q->n_weights);
    choose(q);
    if (!q->options->no_smoothing && !q->options->factors)
        RP_TRY(rp_calibrate(q, err));
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
    struct rp_quantizing q = {.weights = weights,
                              .graph = graph,
                              .options = options,
                              .n_weights = rp_weights_count(weights),
                              .plan = plan};
    q.choices = calloc(q.n_weights + 1, sizeof *q.choices);
    q.may = calloc(graph->n_nodes, sizeof *q.may);
    q.routes = calloc(graph->n_nodes, sizeof *q.routes);
    q.kept = calloc(plan->n_slots, sizeof *q.kept);
    q.cubes = calloc(q.n_weights + 1, sizeof *q.cubes);
    const rp_status status = quantize(&q, err);
    for (size_t w = 0; q.cubes && w < q.n_weights; w++)
        free(q.cubes[w].columns);
    free(q.cubes);
    free(q.choices);
    free(q.may);
    free(q.routes);
    free(q.kept);
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
