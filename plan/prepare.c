/* Before a run: the batch is checked, and what steps look up is filled in (indices, attention's
 * query blocks).  Everything lies in memory that the session took before, so nothing allocates. */
#include "plan/run.h"

#include "pool/error.h"

rp_status rp_batch_check(const rp_batch *b, rp_error *err)
{
    if (b->struct_size != sizeof *b)
        return rp_fail(err, RP_ERR_INVALID, "rp_batch has struct_size %zu, expected %zu",
                       b->struct_size, sizeof *b);
    if (b->n_seqs == 0 || !b->cu)
        return rp_fail(err, RP_ERR_INVALID, "the batch has no sequences");
    if (b->cu[b->n_seqs] < 0)
        return rp_fail(err, RP_ERR_INVALID, "the batch has %d tokens", b->cu[b->n_seqs]);
    if (b->markers && (!b->mcu || b->mcu[b->n_seqs] < 0))
        return rp_fail(err, RP_ERR_INVALID, "the batch has markers but no mcu that counts them");
    return RP_OK;
}

static rp_status check_starts(const char *what, const int32_t *cu, size_t n_seqs, rp_error *err)
{
    if (cu[0] != 0)
        return rp_fail(err, RP_ERR_INVALID, "%s[0] is %d, expected 0", what, cu[0]);
    for (size_t s = 0; s < n_seqs; s++)
        if (cu[s + 1] < cu[s])
            return rp_fail(err, RP_ERR_INVALID, "%s[%zu] is %d, less than %s[%zu], which is %d",
                           what, s + 1, cu[s + 1], what, s, cu[s]);
    return RP_OK;
}

static rp_status check_markers(const rp_batch *b, rp_error *err)
{
    for (size_t s = 0; s < b->n_seqs; s++)
        for (int32_t m = b->mcu[s]; m < b->mcu[s + 1]; m++)
            if (b->markers[m] < 0 || b->markers[m] >= b->cu[s + 1] - b->cu[s])
                return rp_fail(err, RP_ERR_INVALID,
                               "marker %d is at position %d of sequence %zu, which has %d tokens",
                               m, b->markers[m], s, b->cu[s + 1] - b->cu[s]);
    return RP_OK;
}

/* A parent comes before its children and is nobody's child, so that a step finds all rows that come
 * before a sequence's own in one place. */
static rp_status check_parent(const rp_batch *b, size_t s, rp_error *err)
{
    const int32_t parent = b->parents[s];
    if (parent == -1)
        return RP_OK;
    if (parent < -1 || (size_t)parent >= b->n_seqs)
        return rp_fail(err, RP_ERR_INVALID,
                       "sequence %zu: there is no sequence %d to be its parent, of %zu", s, parent,
                       b->n_seqs);
    if ((size_t)parent >= s)
        return rp_fail(err, RP_ERR_INVALID, "sequence %zu: its parent %d does not come before it",
                       s, parent);
    if (b->parents[parent] != -1)
        return rp_fail(err, RP_ERR_INVALID, "sequence %zu: its parent %d has a parent itself, %d",
                       s, parent, b->parents[parent]);
    if (b->cu[s + 1] == b->cu[s])
        return rp_fail(err, RP_ERR_INVALID,
                       "sequence %zu has a parent, %d, and no tokens of its own", s, parent);
    return RP_OK;
}

/* The parent's rows were made with its own type, and the child would have made them with its. */
static rp_status check_parents_type(const struct rp_run *run, size_t s, rp_error *err)
{
    const rp_batch *b = run->batch;
    const int32_t parent = b->parents[s];
    if (!run->plan->sees_typed || !b->qtypes || rp_batch_rows_before(b, s) == 0 ||
        b->qtypes[s] == b->qtypes[parent])
        return RP_OK;
    return rp_fail(err, RP_ERR_INVALID,
                   "sequence %zu is of question type %d, and its parent %d of type %d: rows of "
                   "tokens depend on it",
                   s, b->qtypes[s], parent, b->qtypes[parent]);
}

static rp_status check_parents(const struct rp_run *run, rp_error *err)
{
    const rp_batch *b = run->batch;
    bool any = false;
    for (size_t s = 0; b->parents && s < b->n_seqs; s++) {
        RP_TRY(check_parent(b, s, err));
        RP_TRY(check_parents_type(run, s, err));
        any |= b->parents[s] != -1;
    }
    for (size_t s = 0; any && s < run->plan->n_steps; s++) {
        const struct rp_step *step = &run->plan->steps[s];
        const char *what = rp_step_refuses_parents(run->plan, step);
        if (what)
            return rp_fail(err, RP_ERR_UNSUPPORTED,
                           "op %zu (%s): sequences have parents, and %s "
                           "cannot take their rows",
                           step->node, step->name, what);
    }
    return RP_OK;
}

static rp_status fail_index(const struct rp_run *run, size_t index, size_t token, int32_t value,
                            rp_error *err)
{
    static const char *const what[] = {"id", "position", "position", "segment id", "question type"};
    const struct rp_plan_index *x = &run->plan->indices[index];
    size_t seq = 0;
    while ((size_t)run->batch->cu[seq + 1] <= token)
        seq++;
    return rp_fail(err, RP_ERR_INVALID,
                   "sequence %zu, token %zu: %s %d is outside the table %s, which has %zu rows",
                   seq, token - (size_t)run->batch->cu[seq], what[x->kind], value, x->table_name,
                   x->least_entries);
}

static rp_status check_memories(const struct rp_run *run, const struct rp_step *step, rp_error *err)
{
    const rp_memory *m = run->batch->memories;
    if (!m)
        return rp_fail(err, RP_ERR_INVALID, "op %zu (%s): the batch has no memories", step->node,
                       step->name);
    for (size_t s = 0; s < run->batch->n_seqs; s++) {
        if (m[s].rows > step->p.cross.max_memory)
            return rp_fail(err, RP_ERR_LIMIT,
                           "op %zu (%s): the memory of sequence %zu has %zu rows, at most %zu are "
                           "taken",
                           step->node, step->name, s, m[s].rows, step->p.cross.max_memory);
        if (m[s].rows > 0 && !m[s].data)
            return rp_fail(err, RP_ERR_INVALID,
                           "op %zu (%s): the memory of sequence %zu has %zu rows and no data",
                           step->node, step->name, s, m[s].rows);
    }
    return RP_OK;
}

/* An option is at least its marker. */
static rp_status check_options(const struct rp_run *run, const struct rp_step *step, rp_error *err)
{
    const rp_batch *b = run->batch;
    for (size_t s = 0; b->markers && s < b->n_seqs; s++)
        for (int32_t m = b->mcu[s] + 1; m < b->mcu[s + 1]; m++)
            if (b->markers[m] <= b->markers[m - 1])
                return rp_fail(err, RP_ERR_INVALID,
                               "op %zu (%s): marker %d is at position %d of sequence %zu, and the "
                               "one before it at %d: options need markers that ascend",
                               step->node, step->name, m, b->markers[m], s, b->markers[m - 1]);
    return RP_OK;
}

static rp_status check_input(const struct rp_run *run, const struct rp_step *step, rp_error *err)
{
    if (run->live.tokens > 0 && !run->batch->input)
        return rp_fail(err, RP_ERR_INVALID,
                       "op %zu (%s): the batch has %zu tokens and no input rows", step->node,
                       step->name, run->live.tokens);
    return RP_OK;
}

static bool has_options(const rp_plan *plan, const struct rp_step *step)
{
    return step->op == RP_OP_ATTENTION ? step->p.attention.options
                                       : step->op == RP_OP_ROPE && rp_rope_has_options(plan, step);
}

/* What the plan's steps read of a batch beside its sequences is there. */
static rp_status check_what_is_read(const struct rp_run *run, rp_error *err)
{
    const rp_plan *plan = run->plan;
    for (size_t i = 0; i < plan->n_indices && run->live.tokens > 0 && !run->batch->ids; i++)
        if (plan->indices[i].kind == RP_INDEX_IDS ||
            plan->indices[i].kind == RP_INDEX_POSITION_NONPAD)
            return rp_fail(err, RP_ERR_INVALID, "the batch has %zu tokens and no ids",
                           run->live.tokens);
    for (size_t s = 0; s < plan->n_steps; s++) {
        const struct rp_step *step = &plan->steps[s];
        if (step->op == RP_OP_INPUT)
            RP_TRY(check_input(run, step, err));
        if (step->op == RP_OP_CROSS_ATTENTION)
            RP_TRY(check_memories(run, step, err));
        if (has_options(plan, step))
            RP_TRY(check_options(run, step, err));
    }
    return RP_OK;
}

static bool is_pad(const rp_batch *b, const struct rp_plan_index *x, int32_t token)
{
    return x->kind == RP_INDEX_POSITION_NONPAD && b->ids[token] == x->parameter;
}

/* How many tokens of a sequence have a position of their own. */
static int32_t count_positions(const rp_batch *b, const struct rp_plan_index *x, int32_t s)
{
    int32_t n = b->cu[s + 1] - b->cu[s];
    for (int32_t t = b->cu[s]; x->kind == RP_INDEX_POSITION_NONPAD && t < b->cu[s + 1]; t++)
        n -= is_pad(b, x, t);
    return n;
}

/* Positions count from 0 in each sequence, and on from its parent's; RoBERTa's count tokens that
 * are not the pad, from pad + 1. */
static void fill_positions(const struct rp_run *run, const struct rp_plan_index *x, int32_t *to)
{
    const rp_batch *b = run->batch;
    const int32_t first = x->kind == RP_INDEX_POSITION ? 0 : x->parameter + 1;
    int32_t counted = -1, before = 0; /* tokens of the last parent: its children mostly follow */
    for (size_t s = 0; s < b->n_seqs; s++) {
        const int32_t parent = rp_batch_parent(b, s);
        if (parent >= 0 && parent != counted) {
            before = count_positions(b, x, parent);
            counted = parent;
        }
        int32_t next = first + (parent >= 0 ? before : 0);
        for (int32_t t = b->cu[s]; t < b->cu[s + 1]; t++) {
            to[t] = is_pad(b, x, t) ? x->parameter : next++;
        }
    }
}

/* In a question, positions count on from the header's end in each option. */
static void fill_option_positions(const struct rp_run *run, int32_t *to)
{
    const rp_batch *b = run->batch;
    for (size_t s = 0; s < b->n_seqs; s++) {
        const int32_t end = b->markers ? b->mcu[s + 1] : 0;
        int32_t m = b->markers ? b->mcu[s] : 0, next = 0;
        const int32_t header = m < end ? b->markers[m] : 0;
        for (int32_t t = b->cu[s]; t < b->cu[s + 1]; t++) {
            if (m < end && t - b->cu[s] == b->markers[m]) {
                next = header;
                m++;
            }
            to[t] = next++;
        }
    }
}

/* The question type of each sequence, checked where it stands in the batch, then for each token. */
static rp_status fill_qtypes(const struct rp_run *run, const struct rp_plan_index *x, int32_t *to,
                             rp_error *err)
{
    const rp_batch *b = run->batch;
    for (size_t s = 0; s < b->n_seqs; s++) {
        const int32_t type = b->qtypes ? b->qtypes[s] : 0;
        if (type < 0 || (size_t)type >= x->least_entries)
            return rp_fail(err, RP_ERR_INVALID,
                           "sequence %zu: question type %d is outside the table %s, which has %zu "
                           "rows",
                           s, type, x->table_name, x->least_entries);
        for (int32_t t = b->cu[s]; t < b->cu[s + 1]; t++)
            to[t] = type;
    }
    return RP_OK;
}

static rp_status fill_index(struct rp_run *run, size_t i, int32_t *memory, rp_error *err)
{
    const struct rp_plan_index *x = &run->plan->indices[i];
    const size_t n = run->live.tokens;
    const int32_t *values = memory;
    if (x->kind == RP_INDEX_IDS)
        values = run->batch->ids;
    else if (x->kind == RP_INDEX_TYPES && run->batch->type_ids && x->least_entries > 1)
        values = run->batch->type_ids;
    else if (x->kind == RP_INDEX_TYPES)
        for (size_t t = 0; t < n; t++)
            memory[t] = 0;
    else if (x->kind == RP_INDEX_POSITION && x->parameter == RP_POSITION_IN_OPTION)
        fill_option_positions(run, memory);
    else if (x->kind == RP_INDEX_QTYPES)
        RP_TRY(fill_qtypes(run, x, memory, err));
    else
        fill_positions(run, x, memory);
    for (size_t t = 0; t < n; t++)
        if (values[t] < 0 || (size_t)values[t] >= x->least_entries)
            return fail_index(run, i, t, values[t], err);
    run->index[i] = values;
    return RP_OK;
}

/* Attention's query rows per task: whole sequences when there are enough of them for the workers.
 */
static void fill_blocks(struct rp_run *run)
{
    const rp_plan *plan = run->plan;
    const rp_batch *b = run->batch;
    const size_t workers = (size_t)rp_pool_threads(run->pool);
    size_t heads = 0;
    for (size_t s = 0; s < plan->n_steps && !heads; s++)
        if (plan->steps[s].op == RP_OP_ATTENTION)
            heads = plan->steps[s].p.attention.n_kv_heads;
    run->n_blocks = 0;
    for (size_t s = 0; heads && s < b->n_seqs; s++) {
        const size_t len = (size_t)(b->cu[s + 1] - b->cu[s]);
        size_t rows = rp_attention_query_rows(len, heads * b->n_seqs, workers);
        if (rows < plan->attention_query_rows)
            rows = plan->attention_query_rows;
        for (size_t q = 0; q < len; q += rows)
            run->blocks[run->n_blocks++] = (struct rp_query_block){
                (int32_t)s, (int32_t)q, (int32_t)(q + rows < len ? q + rows : len)};
    }
}

/* Roots, and their children as lists: walked from the last sequence back, so that each child comes
 * before those that were put in front of the list before it. */
static void fill_families(struct rp_run *run)
{
    const rp_batch *b = run->batch;
    run->n_roots = 0;
    for (size_t s = 0; s < b->n_seqs; s++) {
        run->next[s] = -1;
        if (rp_batch_parent(b, s) < 0)
            run->roots[run->n_roots++] = (int32_t)s;
    }
    for (size_t s = b->n_seqs; s-- > 0;) {
        const int32_t parent = rp_batch_parent(b, s);
        if (parent < 0)
            continue;
        run->next[s] = run->next[parent];
        run->next[parent] = (int32_t)s;
    }
}

size_t rp_run_max_blocks(const rp_plan *plan)
{
    return plan->bucket.seqs + plan->bucket.tokens / plan->attention_query_rows;
}

rp_status rp_run_prepare(struct rp_run *run, rp_error *err)
{
    RP_TRY(check_starts("cu", run->batch->cu, run->batch->n_seqs, err));
    if (run->batch->markers) { /* also when there are none: steps read each sequence's share */
        RP_TRY(check_starts("mcu", run->batch->mcu, run->batch->n_seqs, err));
        RP_TRY(check_markers(run->batch, err));
    }
    RP_TRY(check_parents(run, err));
    RP_TRY(check_what_is_read(run, err));
    for (size_t i = 0; i < run->plan->n_indices; i++)
        RP_TRY(fill_index(run, i, run->index_memory + i * run->plan->bucket.tokens, err));
    fill_blocks(run);
    fill_families(run);
    rp_run_find_memories(run);
    return RP_OK;
}
