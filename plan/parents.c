/* What cannot work on sequences that begin where a parent ends, said once for graphs, which can be
 * asked before anything is compiled, and for the steps of a plan, which a batch is checked against.
 *
 * A child's rows follow rows that lie in another place of the batch, and were computed without it:
 * they must not depend on it.  Rows and memories that the batch brings along, and the places of
 * options, are those of whole sequences.  And its result must be its own last row's, since a mean,
 * a maximum or the first row needs the parent's too.
 *
 * Nor may the parent's rows depend on a question type that is not the child's.
 */
#include "plan/graph.h"
#include "plan/run.h"

static const char *refusal(enum rp_op op, bool causal, bool options, rp_pooling pooling)
{
    if (op == RP_OP_ATTENTION && !causal)
        return "attention that is not causal";
    if (op == RP_OP_POOL && pooling != RP_POOL_LAST)
        return "pooling of other rows than the last";
    if (op == RP_OP_ROPE && options)
        return "positions of options";
    if (op == RP_OP_INPUT)
        return "input";
    if (op == RP_OP_CROSS_ATTENTION)
        return "cross attention";
    return NULL;
}

const char *rp_step_refuses_parents(const rp_plan *plan, const struct rp_step *step)
{
    const bool attends = step->op == RP_OP_ATTENTION, pools = step->op == RP_OP_POOL;
    const bool options = step->op == RP_OP_ROPE && rp_rope_has_options(plan, step);
    /* Of the gathers that lead to the pooling of first rows, the last is the pooling itself. */
    if (step->op == RP_OP_GATHER && step->p.gather == RP_READ_FIRST &&
        plan->slots[step->in[0]].rows == step->rows)
        return "pooling of the first row";
    return refusal(step->op, attends && step->p.attention.causal, options,
                   pools ? step->p.pooling : RP_POOL_LAST);
}

/* Tables that are indexed by the question type. */
static bool reads_types(const rp_plan *plan, const struct rp_step *step)
{
    if (step->op != RP_OP_EMBED && step->op != RP_OP_ADD_TYPES)
        return false;
    const size_t n = step->op == RP_OP_EMBED ? step->p.embed.n : 1;
    for (size_t t = 0; t < n; t++)
        if (plan->indices[step->p.embed.index[t]].kind == RP_INDEX_QTYPES)
            return true;
    return false;
}

static bool sees_rows_before(enum rp_op op)
{
    return op == RP_OP_ATTENTION || op == RP_OP_CONV || op == RP_OP_GDN;
}

/* Steps come in the order in which values are made, so one pass is enough. */
void rp_plan_find_typed(rp_plan *plan)
{
    for (size_t s = 0; s < plan->n_steps; s++) {
        const struct rp_step *step = &plan->steps[s];
        bool typed = step->rows == RP_ROWS_TOKENS && reads_types(plan, step);
        for (size_t k = 0; k < step->n_in; k++) {
            const bool reads_typed = plan->slots[step->in[k]].typed;
            typed |= reads_typed;
            plan->sees_typed |= reads_typed && sees_rows_before(step->op);
        }
        plan->slots[step->out].typed |= typed && step->rows == RP_ROWS_TOKENS;
    }
}

bool rp_graph_is_causal(const rp_graph *graph)
{
    for (size_t i = 0; i < graph->n_nodes; i++) {
        const struct rp_node *node = &graph->nodes[i];
        const bool attends = node->op == RP_OP_ATTENTION, pools = node->op == RP_OP_POOL;
        const bool options = node->op == RP_OP_ROPE && node->p.rope.options.options;
        if (refusal(node->op, attends && node->p.attention.causal, options,
                    pools ? node->p.pooling : RP_POOL_LAST))
            return false;
    }
    return graph->failed.status == RP_OK;
}
