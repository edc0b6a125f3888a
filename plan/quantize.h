/* What choosing, calibrating and turning weights to INT8 share: plan/quantize.c, plan/calibrate.c.
 */
#ifndef RP_PLAN_QUANTIZE_H
#define RP_PLAN_QUANTIZE_H

#include "plan/plan.h"

struct rp_choice {
    size_t uses;             /* by the graph's ops */
    bool chosen;             /* it becomes INT8 */
    const rp_weight *shared; /* with the factors of the first of these; NULL: its own */
    size_t n_shared;
    bool is_down; /* of an expert: its rows may be few */
};

struct rp_quantizing {
    rp_weights *weights;
    const rp_graph *graph;
    const rp_quantize_options *options;
    struct rp_choice *choices; /* of each weight, */
    struct rp_cubes *cubes;    /* and of what those with factors of their own multiply */
    size_t n_weights;
    bool *may;           /* nodes whose products can be INT8 */
    bool *routes;        /* nodes whose results decide which experts run */
    const rp_plan *plan; /* of the calibration */
    float **kept;        /* by slot: what chosen experts read in a batch; else NULL */
};

/* Weight k of a node; -1: it has no such one. */
rp_weight rp_node_weight(const struct rp_node *node, size_t k);

/* Whether a weight is turned with factors of its own. */
bool rp_quantizing_leads(const struct rp_quantizing *q, size_t w);

/* plan/calibrate.c: fills in the cubes by running the batches, or random ids where there are none.
 * RP_ERR_INVALID, RP_ERR_NOMEM, and what compiling and running fail with. */
RP_CHECKED rp_status rp_calibrate(struct rp_quantizing *q, rp_error *err);

#endif
