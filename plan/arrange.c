/* Arranging a plan: live ranges, segments, and where every slot lies in each of the two modes. */
#include "plan/plan.h"

#include "plan/layout.h"
#include "pool/error.h"
#include "pool/memory.h"

#include <stdlib.h>

/* A chunk's values should stay near its core, and its rows should be many enough that the weights,
 * which every chunk streams anew, cost little.  Measured on a core with 512 KiB of second-level
 * cache, MiniLM at (1,128) and (1,512): 192 KiB is 1.5 times as slow as 1 MiB, 384 KiB 1.05
 * times, 2.4 MiB the same. */
#define CHUNK_BYTES    ((size_t)1024 * 1024)
#define CHUNK_ROWS_MIN 48
#define CHUNK_ROWS_MAX 192
/* Least query rows of an attention task: below this, packing keys and values again costs too much.
 */
#define ATTENTION_QUERY_ROWS 24

static void find_live_ranges(rp_plan *plan)
{
    for (size_t s = 0; s < plan->n_steps; s++) {
        const struct rp_step *step = &plan->steps[s];
        plan->slots[step->out].first = plan->slots[step->out].last = s;
        for (size_t k = 0; k < step->n_in; k++)
            plan->slots[step->in[k]].last = s;
    }
    for (size_t i = 0; i < plan->n_slots; i++)
        if (plan->slots[i].is_output)
            plan->slots[i].last = plan->n_steps; /* past the last step: nothing follows it */
}

static void find_segments(rp_plan *plan)
{
    struct rp_segment *seg = NULL;
    for (size_t s = 0; s < plan->n_steps; s++) {
        const struct rp_step *step = &plan->steps[s];
        const bool by_row = rp_op_by_row(step->op);
        if (!seg || !by_row || !seg->by_row || seg->rows != step->rows) {
            seg = &plan->segments[plan->n_segments++];
            *seg = (struct rp_segment){.first = s, .rows = step->rows, .by_row = by_row};
        }
        seg->end = s + 1;
        seg->chunked = by_row && seg->rows == RP_ROWS_TOKENS;
        seg->flops_per_row += step->flops_per_row;
    }
}

static const struct rp_segment *segment_of(const rp_plan *plan, size_t step)
{
    size_t i = 0;
    while (i + 1 < plan->n_segments && plan->segments[i].end <= step)
        i++;
    return &plan->segments[i];
}

/* By chunk: slots that never leave their segment go to the worker's scratch. */
static void find_chunk_slots(rp_plan *plan)
{
    for (size_t i = 0; i < plan->n_slots; i++) {
        struct rp_slot *slot = &plan->slots[i];
        const struct rp_segment *seg = segment_of(plan, slot->first);
        slot->in_chunk = seg->chunked && !slot->is_output && slot->last < seg->end;
    }
}

/* The slot whose memory step s may take over for its result: an operand that it reads element by
 * element where it writes, and that nobody reads later. */
static int32_t in_place_slot(const rp_plan *plan, size_t s, enum rp_mode mode)
{
    const struct rp_step *step = &plan->steps[s];
    int32_t from = -1;
    if (step->op == RP_OP_ACTIVATION || step->op == RP_OP_ADD || step->op == RP_OP_ROPE ||
        step->op == RP_OP_ADD_TYPES ||
        (step->op == RP_OP_GATHER && plan->slots[step->in[0]].rows == step->rows) ||
        (step->op == RP_OP_RMS_NORM && step->p.rms_norm.head_dim < step->width) ||
        ((step->op == RP_OP_GATE || step->op == RP_OP_GATED_NORM) && step->in[0] != step->in[1]))
        from = step->in[0];
    else if (rp_op_multiplies(step->op) && step->n_in == 2 && step->in[0] != step->in[1])
        from = step->in[1];
    if (from < 0 || plan->slots[from].last != s)
        return -1;
    if (mode == RP_BY_CHUNK && plan->slots[from].in_chunk != plan->slots[step->out].in_chunk)
        return -1;
    return from;
}

/* The first step during which a slot's memory is in use: a step that joins the one before it writes
 * while that one still reads. */
static size_t first_use(const rp_plan *plan, const struct rp_slot *slot)
{
    return slot->first - plan->steps[slot->first].joins;
}

/* Records of one mode and one space (the arena, or the chunk's scratch): what does not live there
 * has no bytes.  By chunk, slots in the arena are alive throughout every segment that they touch
 * and that runs so. */
static rp_status fill_records(const rp_plan *plan, enum rp_mode mode, bool chunk_space,
                              size_t chunk_rows, struct rp_layout_record *records, rp_error *err)
{
    for (size_t i = 0; i < plan->n_slots; i++) {
        const struct rp_slot *slot = &plan->slots[i];
        const bool here = mode == RP_BY_STEP ||
                          (slot->in_chunk == chunk_space && !rp_slot_is_passed_by(plan, slot));
        const size_t rows = chunk_space ? chunk_rows : rp_bucket_rows(&plan->bucket, slot->rows);
        size_t elements, bytes;
        if (!rp_mul_ok(rows, slot->width, &elements) || !rp_mul_ok(elements, 4, &bytes) ||
            bytes > (size_t)1 << 48)
            return rp_fail(err, RP_ERR_LIMIT,
                           "a value of %zu rows x %zu is too large (step %zu, %s)", rows,
                           slot->width, slot->first, plan->steps[slot->first].name);
        records[i] = (struct rp_layout_record){
            .first = first_use(plan, slot),
            .last = slot->last,
            .bytes = here ? bytes : 0,
            .alias_of = here ? in_place_slot(plan, slot->first, mode) : -1};
        const struct rp_segment *made = segment_of(plan, slot->first);
        const struct rp_segment *used = segment_of(plan, slot->last);
        if (mode == RP_BY_CHUNK && !chunk_space && made->chunked)
            records[i].first = made->first;
        if (mode == RP_BY_CHUNK && !chunk_space && used->chunked && slot->last < plan->n_steps)
            records[i].last = used->end - 1;
    }
    return RP_OK;
}

#define LAYOUT_INTS 2 /* of rp_layout()'s scratch, for each record */

size_t rp_plan_arrange_bytes(const rp_plan *plan)
{
    return plan->n_slots * (sizeof(struct rp_layout_record) + LAYOUT_INTS * sizeof(int32_t));
}

static rp_status lay_out(rp_plan *plan, enum rp_mode mode, bool chunk_space, size_t chunk_rows,
                         uint64_t *bytes, rp_error *err)
{
    struct rp_layout_record *records = calloc(plan->n_slots, sizeof *records);
    int32_t *scratch = calloc(LAYOUT_INTS * plan->n_slots, sizeof *scratch);
    rp_status status;
    if (!records || !scratch)
        status = rp_fail(err, RP_ERR_NOMEM, "no memory for the layout");
    else
        status = fill_records(plan, mode, chunk_space, chunk_rows, records, err);
    if (status == RP_OK &&
        (!rp_layout(records, plan->n_slots, scratch, bytes) || *bytes > (uint64_t)1 << 48))
        status = rp_fail(err, RP_ERR_LIMIT, "the arena of bucket %zu,%zu,%zu needs %llu bytes",
                         plan->bucket.tokens, plan->bucket.seqs, plan->bucket.markers,
                         (unsigned long long)*bytes);
    for (size_t i = 0; status == RP_OK && i < plan->n_slots; i++)
        if (mode == RP_BY_STEP || plan->slots[i].in_chunk == chunk_space)
            plan->slots[i].offset[mode] = records[i].offset;
    free(records);
    free(scratch);
    return status;
}

/* How many rows of a segment's values, those of its scratch and those that it reads and writes, fit
 * the cache; even numbers of register tiles. */
static size_t rows_that_fit(const rp_plan *plan, const struct rp_segment *seg)
{
    size_t widest = 0;
    for (size_t s = seg->first; s < seg->end; s++) {
        const struct rp_slot *out = &plan->slots[plan->steps[s].out];
        if (rp_slot_is_passed_by(plan, out))
            out = &plan->slots[plan->steps[s + 1].out];
        size_t width = out->width;
        for (size_t k = 0; k < plan->steps[s].n_in; k++)
            if (!rp_slot_is_passed_by(plan, &plan->slots[plan->steps[s].in[k]]))
                width += plan->slots[plan->steps[s].in[k]].width;
        widest = width > widest ? width : widest;
    }
    size_t rows = CHUNK_BYTES / (widest * sizeof(float));
    rows = rows < CHUNK_ROWS_MIN ? CHUNK_ROWS_MIN : rows;
    rows = rows > CHUNK_ROWS_MAX ? CHUNK_ROWS_MAX : rows;
    return rows / 12 * 12;
}

/* More than any machine has. */
#define SCRATCH_MOST ((size_t)1 << 48)

static rp_status fail_scratch(const rp_plan *plan, const struct rp_step *step, rp_error *err)
{
    if (rp_op_attends(step->op))
        return rp_fail(err, RP_ERR_LIMIT,
                       "op %zu (%s): attention over %zu %s needs too much scratch", step->node,
                       step->name,
                       step->op == RP_OP_ATTENTION ? plan->bucket.tokens : step->p.cross.max_memory,
                       step->op == RP_OP_ATTENTION ? "tokens" : "rows");
    return rp_fail(err, RP_ERR_LIMIT, "op %zu (%s): its %s need too much scratch", step->node,
                   step->name, step->op == RP_OP_EXPERTS ? "experts" : "states");
}

/* Experts work by row, so theirs lies behind the values of a chunk; tasks have it all. */
static rp_status size_step_scratch(rp_plan *plan, const struct rp_step *step, rp_error *err)
{
    uint64_t before = 0;
    size_t bytes;
    bool fits;
    switch (step->op) {
    case RP_OP_EXPERTS:
        before = plan->step_scratch;
        fits = rp_experts_scratch_bytes(step, rp_bucket_rows(&plan->bucket, step->rows), &bytes);
        break;
    case RP_OP_ATTENTION:
        fits = rp_attention_scratch_bytes(plan->bucket.tokens, step->p.attention.window,
                                          step->p.attention.causal, step->p.attention.head_dim,
                                          step->p.attention.rel_span != 0, &bytes);
        break;
    case RP_OP_CROSS_ATTENTION:
        fits = rp_attention_scratch_bytes(step->p.cross.max_memory, 0, false,
                                          step->p.cross.head_dim, false, &bytes);
        break;
    case RP_OP_GDN: fits = rp_gdn_step_scratch(&step->p.gdn, &bytes); break;
    default: return RP_OK;
    }
    if (!fits || bytes > SCRATCH_MOST)
        return fail_scratch(plan, step, err);
    if (before + bytes > plan->scratch_bytes)
        plan->scratch_bytes = before + bytes;
    return RP_OK;
}

static rp_status size_scratch(rp_plan *plan, uint64_t chunk_bytes, rp_error *err)
{
    plan->scratch_bytes = chunk_bytes;
    plan->step_scratch = rp_round_up(chunk_bytes, RP_CACHE_LINE);
    for (size_t s = 0; s < plan->n_steps; s++)
        RP_TRY(size_step_scratch(plan, &plan->steps[s], err));
    plan->scratch_bytes = rp_round_up(plan->scratch_bytes, RP_CACHE_LINE); /* of every worker */
    return RP_OK;
}

rp_status rp_plan_arrange(rp_plan *plan, bool no_fuse, rp_error *err)
{
    uint64_t by_step, by_chunk, chunk;
    size_t most_rows = 0;
    find_live_ranges(plan);
    rp_plan_find_typed(plan);
    if (!no_fuse)
        rp_plan_find_joins(plan);
    find_segments(plan);
    find_chunk_slots(plan);
    for (size_t i = 0; i < plan->n_segments; i++) {
        plan->segments[i].chunk_rows = rows_that_fit(plan, &plan->segments[i]);
        if (plan->segments[i].chunk_rows > most_rows)
            most_rows = plan->segments[i].chunk_rows;
    }
    RP_TRY(lay_out(plan, RP_BY_STEP, false, 0, &by_step, err));
    RP_TRY(lay_out(plan, RP_BY_CHUNK, false, 0, &by_chunk, err));
    RP_TRY(lay_out(plan, RP_BY_CHUNK, true, most_rows, &chunk, err));
    plan->arena_bytes = by_step > by_chunk ? by_step : by_chunk;
    plan->attention_query_rows = ATTENTION_QUERY_ROWS;
    return size_scratch(plan, chunk, err);
}
