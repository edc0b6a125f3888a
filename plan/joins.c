/* Steps that run together with the one before them.
 *
 * Both stay steps of the plan, and run apart for an observer that wants to see either.  Where
 * nobody looks, a block of rows goes through both at once, while what the first one makes is in the
 * nearest cache, and with the same bits:
 *
 *     layer_norm, quantize    row by row; rows that nobody else reads are not even kept
 *     rms_norm, quantize      likewise, of whole rows with a weight
 *     product, glu            a few panels of the first half of the columns, activated, into the
 *                             gate's rows; the same panels of the second half, times those
 *     product, rope           a few heads, then turned where they lie
 *
 * With a product the value between them is never made as a whole, and by chunk it has no room.
 */
#include "plan/run.h"

#include "pool/split.h"

#include <assert.h>

/* Panels that a product makes before the step that joins it has its turn: so many that starting the
 * product anew is nothing beside them, so few that their columns (64 KiB) stay in the caches. */
#define PANELS_AT_ONCE 8
#define LINES_AT_ONCE  1024 /* rows x panels; of few rows, more panels */

/* ---- which ------------------------------------------------------------------------------------
 */

/* Nobody but step s reads the value. */
static bool only_reader(const rp_plan *plan, size_t s, int32_t slot)
{
    return !plan->slots[slot].is_output && plan->slots[slot].last == s;
}

static bool can_join(const rp_plan *plan, size_t s)
{
    const struct rp_step *step = &plan->steps[s], *before = step - 1;
    if (step->n_in == 0 || step->in[0] != before->out || step->rows != before->rows)
        return false;
    if (step->op == RP_OP_QUANTIZE)
        return before->op == RP_OP_LAYER_NORM ||
               (before->op == RP_OP_RMS_NORM && before->weighted &&
                before->p.rms_norm.head_dim == before->width);
    if (!rp_op_multiplies(before->op) || before->n_in != 1 || !only_reader(plan, s, before->out))
        return false;
    if (step->op == RP_OP_GLU)
        return before->p.gemm.activation == RP_ACT_NONE && step->width % RP_GEMM_NR == 0;
    return step->op == RP_OP_ROPE && step->p.rope.turn.head_dim % RP_GEMM_NR == 0 &&
           step->width % step->p.rope.turn.head_dim == 0;
}

void rp_plan_find_joins(rp_plan *plan)
{
    for (size_t s = 1; s < plan->n_steps; s++)
        plan->steps[s].joins = !plan->steps[s - 1].joins && can_join(plan, s);
}

bool rp_slot_is_passed_by(const rp_plan *plan, const struct rp_slot *slot)
{
    return rp_op_multiplies(plan->steps[slot->first].op) && slot->first + 1 < plan->n_steps &&
           plan->steps[slot->first + 1].joins;
}

size_t rp_join_unit(const struct rp_step *step)
{
    return step->op == RP_OP_ROPE ? step->p.rope.turn.head_dim / RP_GEMM_NR : 1;
}

/* ---- how --------------------------------------------------------------------------------------
 */

static void norm_and_quantize(const struct rp_step *norm, const struct rp_frame *f, size_t r0,
                              size_t r1)
{
    const struct rp_plan *plan = f->run->plan;
    const struct rp_step *rounded = norm + 1;
    const bool keep = !only_reader(plan, plan->slots[rounded->out].first, norm->out);
    const float *x = rp_frame_row(f, norm->in[0], r0), *factors = rounded->p.quantize.factors;
    const size_t w = norm->width, rows = r1 - r0;
    float *y = rp_frame_row(f, norm->out, r0);
    uint8_t *q = (uint8_t *)rp_frame_row(f, rounded->out, r0);
    if (norm->op == RP_OP_RMS_NORM)
        plan->ops->rms_norm_quantize(&norm->p.rms_norm, x, w, y, w, keep, factors, q, rows);
    else
        plan->ops->layer_norm_quantize(x, w, norm->p.norm.w, norm->p.norm.b, norm->p.norm.eps, w, y,
                                       w, keep, factors, q, rows);
}

static void multiply_and_gate(const struct rp_step *product, const struct rp_frame *f, size_t r0,
                              size_t r1, size_t p0, size_t p1)
{
    const struct rp_step *gate = product + 1;
    float *y = rp_frame_row(f, gate->out, r0);
    const struct rp_product first = {
        .c = y, .n = gate->width, .ldc = gate->width, .activation = gate->p.activation};
    const struct rp_product second = {.c = y,
                                      .n = gate->width,
                                      .ldc = gate->width,
                                      .first_panel = gate->width / RP_GEMM_NR,
                                      .residual = y,
                                      .multiply = true};
    rp_step_multiply(product, f, &first, r0, r1, p0, p1);
    rp_step_multiply(product, f, &second, r0, r1, p0, p1);
}

static void multiply_and_turn(const struct rp_step *product, const struct rp_frame *f, size_t r0,
                              size_t r1, size_t p0, size_t p1)
{
    const struct rp_step *rope = product + 1;
    const size_t width = rope->width, head_dim = rope->p.rope.turn.head_dim;
    const size_t c0 = p0 * RP_GEMM_NR, c1 = p1 * RP_GEMM_NR;
    float *y = rp_frame_row(f, rope->out, r0);
    const struct rp_product all = {
        .c = y, .n = width, .ldc = width, .activation = product->p.gemm.activation};
    rp_step_multiply(product, f, &all, r0, r1, p0, p1);
    struct rp_ops_rope turn = rope->p.rope.turn;
    const size_t turned = turn.n_heads * head_dim, end = c1 < turned ? c1 : turned;
    if (end <= c0)
        return;
    turn.n_heads = (end - c0) / head_dim;
    f->run->plan->ops->rope(&turn, f->run->index[rope->p.rope.index] + r0, y + c0, width, end - c0,
                            y + c0, width, r1 - r0);
}

void rp_step_rows_joined(const struct rp_step *step, const struct rp_frame *f, size_t r0, size_t r1,
                         size_t p0, size_t p1)
{
    const enum rp_op op = step[1].op;
    if (op == RP_OP_QUANTIZE) {
        norm_and_quantize(step, f, r0, r1);
        return;
    }
    const size_t unit = rp_join_unit(&step[1]), fit = LINES_AT_ONCE / (r1 - r0 + 1);
    const size_t most = (fit > PANELS_AT_ONCE ? fit : PANELS_AT_ONCE) / unit;
    const struct rp_split groups = rp_split((p1 - p0) / unit, most ? most : 1);
    assert(p0 % unit == 0 && p1 % unit == 0 && (op == RP_OP_GLU || op == RP_OP_ROPE));
    for (size_t part = 0, p = p0, end; part < groups.n_parts; part++, p = end) {
        end = p + rp_split_part(&groups, part) * unit;
        if (op == RP_OP_GLU)
            multiply_and_gate(step, f, r0, r1, p, end);
        else
            multiply_and_turn(step, f, r0, r1, p, end);
    }
}
