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

/* Of an op that refuses parents, what is it that does. */
static const char *refusal(enum rp_op op)
{
    switch (op) {
    case RP_OP_ATTENTION: return "attention that is not causal";
    case RP_OP_POOL: return "pooling of other rows than the last";
    case RP_OP_ROPE: return "positions of options";
    case RP_OP_INPUT: return "input";
    default: return "cross attention";
    }
}

static bool step_refuses(const rp_plan *plan, const struct rp_step *step)
{
    switch (step->op) {
    case RP_OP_ATTENTION: return !step->p.attention.causal;
    case RP_OP_POOL: return step->p.pooling != RP_POOL_LAST;
    case RP_OP_ROPE: return rp_rope_has_options(plan, step);
    case RP_OP_INPUT:
    case RP_OP_CROSS_ATTENTION: return true;
    default: return false;
    }
}

static bool node_refuses(const struct rp_node *node)
{
    switch (node->op) {
    case RP_OP_ATTENTION: return !node->p.attention.causal;
    case RP_OP_POOL: return node->p.pooling != RP_POOL_LAST;
    case RP_OP_ROPE: return node->p.rope.options.options;
    case RP_OP_INPUT:
    case RP_OP_CROSS_ATTENTION: return true;
    default: return false;
    }
}

const char *rp_step_refuses_parents(const rp_plan *plan, const struct rp_step *step)
{
    /* Of the gathers that lead to the pooling of first rows, the last is the pooling itself. */
    if (step->op == RP_OP_GATHER && step->p.gather == RP_READ_FIRST &&
        plan->slots[step->in[0]].rows == step->rows)
        return "pooling of the first row";
    return step_refuses(plan, step) ? refusal(step->op) : NULL;
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
    for (size_t i = 0; i < graph->n_nodes; i++)
        if (node_refuses(&graph->nodes[i]))
            return false;
    return graph->failed.status == RP_OK;
}
