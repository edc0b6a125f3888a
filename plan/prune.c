/* Rows that nobody reads are not computed.
 *
 * A cross-encoder reads the first row of its last layer and no other; so do embedders that pool by
 * the first or the last row, and scorers, which read the rows of their markers.  This pass moves
 * those reads up: a value of tokens that is only read so needs only these rows, and when its op
 * makes a row of the same row of its inputs alone, so do they.  It ends at attention, which
 * computes the queries of the rows that are read but looks at the keys and values of all, and at
 * any other op that it cannot pass:
 *
 *     tokens:  ... ffn.norm qkv | attention | out norm up down norm | first (pool) | dense ...
 *     now:     ... ffn.norm qkv | attention | gather out norm up down norm first   | dense ...
 *              rows: tokens       seqs: queries of the first rows alone
 *
 * A value that is also read whole (by an output, by the mean, by another layer) stays whole.  One
 * that is read in two ways (the first row and the markers) is computed once for each.
 *
 * No bit changes, because no row depends on how many rows are beside it.  The one thing to see to
 * is a sequence without tokens: pooling gives zeros, and a bias or a norm would make something else
 * of them on the way.  So the pool stays, as a gather that leaves rows where they are and puts
 * zeros where there is no token.
 */
#include "plan/plan.h"

#include <string.h>

/* Ops whose row comes from the same row of each input, wherever it is in its sequence.  Rotary
 * positions are none: they would have to know which token a row is. */
static const bool moves[RP_OP_NODE_COUNT] = {
    [RP_OP_LAYER_NORM] = true,
    [RP_OP_GEMM] = true,
    [RP_OP_L2_NORM] = true,
    [RP_OP_ACTIVATION] = true,
    [RP_OP_ADD] = true,
    [RP_OP_CONCAT] = true,
    [RP_OP_GLU] = true,
    [RP_OP_RMS_NORM] = true,
    [RP_OP_GATE] = true,
    [RP_OP_GATED_NORM] = true,
    [RP_OP_GDN_GATES] = true,
    [RP_OP_EXPERTS] = true,
    [RP_OP_CROSS_ATTENTION] = true, /* the memory is the sequence's, whichever of its rows */
};

enum rp_read rp_node_read(const struct rp_node *node)
{
    if (node->op == RP_OP_GATHER_MARKERS)
        return RP_READ_MARKED;
    if (node->op == RP_OP_POOL && node->p.pooling == RP_POOL_CLS)
        return RP_READ_FIRST;
    if (node->op == RP_OP_POOL && node->p.pooling == RP_POOL_LAST)
        return RP_READ_LAST;
    return RP_READ_ALL;
}

rp_rows rp_read_rows(enum rp_read read)
{
    switch (read) {
    case RP_READ_ALL: return RP_ROWS_TOKENS;
    case RP_READ_MARKED: return RP_ROWS_MARKERS;
    default: return RP_ROWS_SEQS;
    }
}

const char *rp_read_name(enum rp_read read)
{
    static const char *const names[RP_READS] = {NULL, "first", "last", "marked"};
    return names[read];
}

/* What a node's inputs have to be computed for, when the node itself is computed for `reads`. */
static unsigned reads_of_inputs(const struct rp_node *node, unsigned reads)
{
    if (node->op == RP_OP_ATTENTION)
        return RP_READ_BIT(RP_READ_ALL); /* every key and value */
    return moves[node->op] ? reads : RP_READ_BIT(rp_node_read(node));
}

void rp_prune(struct rp_lowering *l)
{
    const rp_graph *graph = l->graph;
    memset(l->reads, 0, graph->n_nodes);
    for (size_t i = 0; i < graph->n_outputs; i++)
        l->reads[graph->outputs[i].value] = RP_READ_BIT(RP_READ_ALL);
    for (size_t i = graph->n_nodes; i-- > 0;) {
        const struct rp_node *node = &graph->nodes[i];
        const bool can = l->shapes[i].rows == RP_ROWS_TOKENS &&
                         (moves[node->op] || node->op == RP_OP_ATTENTION) && !l->no_prune;
        if (!l->needed[i])
            continue;
        if (!can || !rp_pruned(l, i))
            l->reads[i] = RP_READ_BIT(RP_READ_ALL);
        else
            l->prunes = true;
        for (size_t k = 0; k < node->n_in; k++)
            l->reads[node->in[k]] |= (unsigned char)reads_of_inputs(node, l->reads[i]);
    }
}
