/* A mixture of experts: rows choose experts, and are multiplied together with the other rows that
 * chose the same one.
 *
 *     choose    every row of a block: softmax of its logits, its n_used largest shares
 *     gather    expert by expert, in ascending order: the rows that chose it, side by side
 *     compute   the expert's two products and the gate between them, on these rows
 *     scatter   result += share * what the expert made, row by row
 *
 * A row takes its experts in ascending order whichever rows are beside it, and a product's rows do
 * not depend on each other, so neither do a row's bits.  An expert that no row of the block chose
 * is not touched.
 *
 * In INT8 the rows come rounded: once, whichever experts then multiply them.  What an expert's gate
 * makes of a row is rounded here, between its two products, by factors of its own.
 */
#include "plan/run.h"

#include "pool/error.h"
#include "pool/memory.h"

#include <stdlib.h>
#include <string.h>

/* What a block of rows needs beside its result; all elements have four bytes. */
enum part {
    PART_X,       /* rows of an expert, as they come in, */
    PART_WIDE,    /* behind its first product, */
    PART_GATED,   /* behind its gate, */
    PART_ROUNDED, /* these in INT8, */
    PART_Y,       /* and behind its second product */
    PART_SHARES,  /* of all experts, of one row */
    PART_CHOSEN,  /* of each row its experts, ascending, */
    PART_SHARE,   /* and their shares */
    PART_ORDER,   /* places in the two before, expert by expert */
    PART_FIRST,   /* each expert's first in PART_ORDER */
    N_PARTS
};

/* Of a row that a product over k columns reads. */
static size_t operand_floats(const struct rp_step *step, size_t k)
{
    return step->p.experts.int8 ? rp_qgemm_row_bytes(k) / sizeof(float) : k;
}

static bool count_of(const struct rp_step *step, enum part part, size_t rows, size_t *out)
{
    const size_t inner = step->p.experts.inner;
    switch (part) {
    case PART_X: return rp_mul_ok(rows, operand_floats(step, step->width), out);
    case PART_WIDE: return rp_mul_ok(2 * rows, inner, out);
    case PART_GATED: return rp_mul_ok(rows, inner, out);
    case PART_ROUNDED:
        return rp_mul_ok(rows, step->p.experts.int8 ? operand_floats(step, inner) : 0, out);
    case PART_Y: return rp_mul_ok(rows, step->width, out);
    case PART_SHARES: *out = step->p.experts.n_experts; return true;
    case PART_FIRST: *out = step->p.experts.n_experts + 1; return true;
    default: *out = rows * step->p.experts.n_used; return true; /* both are bounded */
    }
}

/* Where the parts begin, in bytes; their end.  False when that wraps. */
static bool place(const struct rp_step *step, size_t rows, size_t at[N_PARTS], size_t *end)
{
    size_t count, bytes;
    *end = 0;
    for (int part = 0; part < N_PARTS; part++) {
        at[part] = *end;
        if (!count_of(step, (enum part)part, rows, &count) || !rp_mul_ok(count, 4, &bytes) ||
            bytes > SIZE_MAX / 4 || !rp_add_ok(*end, rp_round_up(bytes, RP_CACHE_LINE), end))
            return false;
    }
    return true;
}

static size_t block_rows(size_t rows)
{
    return rows < RP_EXPERTS_ROWS ? rows : RP_EXPERTS_ROWS;
}

static void find_parts(const struct rp_step *step, size_t rows, unsigned char *scratch,
                       float *part[N_PARTS])
{
    size_t at[N_PARTS], end;
    (void)place(step, rows, at, &end); /* it did when the plan was made */
    for (int i = 0; i < N_PARTS; i++)
        part[i] = (float *)(void *)(scratch + at[i]);
}

bool rp_experts_scratch_bytes(const struct rp_step *step, size_t rows, size_t *out)
{
    size_t at[N_PARTS];
    return place(step, block_rows(rows), at, out);
}

/* ---- choosing ----------------------------------------------------------------------------------
 */

/* Expert e takes its place among the n that are chosen so far, the largest share first; of equal
 * ones the lower index, which came earlier, stays in front. */
static void insert(uint32_t e, const float *shares, uint32_t *chosen, size_t n)
{
    for (; n > 0 && shares[e] > shares[chosen[n - 1]]; n--)
        chosen[n] = chosen[n - 1];
    chosen[n] = e;
}

static void sort_by_index(uint32_t *chosen, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        const uint32_t e = chosen[i];
        size_t k = i;
        for (; k > 0 && chosen[k - 1] > e; k--)
            chosen[k] = chosen[k - 1];
        chosen[k] = e;
    }
}

/* A row's experts and their shares.  Where all shares are NaN the first experts are chosen, and
 * spoil the row. */
static void choose(const struct rp_step *step, const float *shares, uint32_t *chosen, float *share)
{
    const size_t n = step->p.experts.n_experts, used = step->p.experts.n_used;
    float sum = 0;
    for (size_t e = 0; e < used; e++)
        insert((uint32_t)e, shares, chosen, e);
    for (size_t e = used; e < n; e++)
        if (shares[e] > shares[chosen[used - 1]])
            insert((uint32_t)e, shares, chosen, used - 1);
    sort_by_index(chosen, used);
    for (size_t k = 0; k < used; k++)
        sum += share[k] = shares[chosen[k]];
    for (size_t k = 0; step->p.experts.normalize && k < used; k++)
        share[k] /= sum;
}

/* Places of the chosen experts, expert by expert and row by row. */
static void group(const uint32_t *chosen, size_t n, size_t n_experts, uint32_t *first,
                  uint32_t *order)
{
    memset(first, 0, (n_experts + 1) * sizeof *first);
    for (size_t i = 0; i < n; i++)
        first[chosen[i] + 1]++;
    for (size_t e = 0; e < n_experts; e++)
        first[e + 1] += first[e];
    for (size_t i = 0; i < n; i++)
        order[first[chosen[i]]++] = (uint32_t)i;
    for (size_t e = n_experts; e > 0;
         e--) /* each is at its end now, which is the next one's start */
        first[e] = first[e - 1];
    first[0] = 0;
}

/* ---- computing ---------------------------------------------------------------------------------
 */

/* An expert's rows, side by side in PART_X; x has rows of `floats`. */
static void gather(const struct rp_step *step, const float *x, size_t floats, const uint32_t *mine,
                   size_t rows, float *to)
{
    for (size_t i = 0; i < rows; i++)
        memcpy(to + i * floats, x + mine[i] / step->p.experts.n_used * floats, floats * sizeof *x);
}

static void multiply(const struct rp_step *step, const struct rp_plan *plan, const void *packed,
                     const float *rows, size_t n_rows, size_t k, float *c, size_t n)
{
    const struct rp_operands from = {
        .rows = rows, .packed = packed, .k = k, .int8 = step->p.experts.int8};
    const struct rp_product to = {.c = c, .n = n, .ldc = n};
    rp_multiply(plan, &from, &to, n_rows, 0, (n + RP_GEMM_NR - 1) / RP_GEMM_NR);
}

/* What an expert's second product multiplies, of the rows in PART_X, into PART_GATED. */
static void run_up(const struct rp_step *step, const struct rp_plan *plan,
                   const struct rp_expert *expert, size_t rows, float *const *part)
{
    const size_t inner = step->p.experts.inner;
    multiply(step, plan, expert->up, part[PART_X], rows, step->width, part[PART_WIDE], 2 * inner);
    plan->ops->glu(step->p.experts.activation, part[PART_WIDE], 2 * inner, inner, part[PART_GATED],
                   inner, rows);
}

/* And what that makes of them, into PART_Y. */
static void run_down(const struct rp_step *step, const struct rp_plan *plan,
                     const struct rp_expert *expert, size_t rows, float *const *part)
{
    const size_t inner = step->p.experts.inner;
    const float *operand = part[PART_GATED];
    if (step->p.experts.int8) {
        operand = part[PART_ROUNDED];
        plan->ops->quantize(part[PART_GATED], inner, expert->factors, inner,
                            (uint8_t *)part[PART_ROUNDED], rows);
    }
    multiply(step, plan, expert->down, operand, rows, inner, part[PART_Y], step->width);
}

static void run_block(const struct rp_step *step, const struct rp_plan *plan, const float *x,
                      const float *logits, const float *residual, float *y, size_t rows,
                      unsigned char *scratch)
{
    const size_t w = step->width, n = step->p.experts.n_experts, used = step->p.experts.n_used;
    const size_t x_floats = operand_floats(step, w);
    float *part[N_PARTS];
    find_parts(step, rows, scratch, part);
    uint32_t *chosen = (uint32_t *)(void *)part[PART_CHOSEN];
    uint32_t *order = (uint32_t *)(void *)part[PART_ORDER];
    uint32_t *first = (uint32_t *)(void *)part[PART_FIRST];
    for (size_t r = 0; r < rows; r++) {
        plan->ops->softmax(logits + r * n, n, 1, part[PART_SHARES]);
        choose(step, part[PART_SHARES], chosen + r * used, part[PART_SHARE] + r * used);
    }
    group(chosen, rows * used, n, first, order);
    memset(y, 0, rows * w * sizeof *y);
    for (size_t e = 0; e < n; e++) {
        const uint32_t *mine = order + first[e];
        const size_t n_rows = first[e + 1] - first[e];
        if (n_rows == 0)
            continue;
        gather(step, x, x_floats, mine, n_rows, part[PART_X]);
        run_up(step, plan, &step->p.experts.each[e], n_rows, part);
        run_down(step, plan, &step->p.experts.each[e], n_rows, part);
        for (size_t i = 0; i < n_rows; i++)
            plan->ops->add_scaled(part[PART_SHARE][mine[i]], part[PART_Y] + i * w, w,
                                  y + mine[i] / used * w);
    }
    if (residual)
        plan->ops->add(y, w, residual, w, w, y, w, rows);
}

void rp_step_experts(const struct rp_step *step, const struct rp_frame *f, size_t r0, size_t r1)
{
    const struct rp_plan *plan = f->run->plan;
    for (size_t r = r0, n; r < r1; r += n) {
        n = block_rows(r1 - r);
        run_block(step, plan, rp_frame_row(f, step->in[0], r), rp_frame_row(f, step->in[1], r),
                  step->n_in == 3 ? rp_frame_row(f, step->in[2], r) : NULL,
                  rp_frame_row(f, step->out, r), n, f->scratch + plan->step_scratch);
    }
}

/* ---- calibrating -------------------------------------------------------------------------------
 *
 * What an expert's `down` multiplies is no step's result, so nobody can observe it: it is computed
 * once more from what the step read, expert by expert, each by one worker, so that sums have one
 * order.
 */

/* So many rows choose at once: then an expert's weights are read for many of them. */
#define CHOOSING_ROWS ((size_t)4096)

struct calibration {
    const struct rp_step *step;
    const struct rp_plan *plan;
    const float *x;
    uint32_t *chosen, *order, *first; /* as the parts of a block */
    float *share;                     /* of one row; */
    float *shares;                    /* of all experts */
    unsigned char *scratch;           /* of each worker, for a block of rows */
    size_t scratch_bytes;
    const rp_weight *down;
    struct rp_cubes *cubes;
};

static void calibrate_expert(void *arg, size_t e, int worker)
{
    const struct calibration *c = arg;
    const struct rp_step *step = c->step;
    float *part[N_PARTS];
    find_parts(step, RP_EXPERTS_ROWS, c->scratch + (size_t)worker * c->scratch_bytes, part);
    for (size_t i = c->first[e], rows; i < c->first[e + 1]; i += rows) {
        rows = block_rows(c->first[e + 1] - i);
        gather(step, c->x, step->width, c->order + i, rows, part[PART_X]);
        run_up(step, c->plan, &step->p.experts.each[e], rows, part);
        rp_cubes_add(&c->cubes[c->down[e]], part[PART_GATED], rows, step->p.experts.inner);
    }
}

static rp_status calibrate(struct calibration *c, const float *logits, size_t rows, rp_pool *pool,
                           rp_error *err)
{
    const size_t n = c->step->p.experts.n_experts, used = c->step->p.experts.n_used;
    const float *all = c->x;
    for (size_t r = 0, some; r < rows; r += some) {
        some = rows - r < CHOOSING_ROWS ? rows - r : CHOOSING_ROWS;
        for (size_t i = 0; i < some; i++) {
            c->plan->ops->softmax(logits + (r + i) * n, n, 1, c->shares);
            choose(c->step, c->shares, c->chosen + i * used, c->share);
        }
        group(c->chosen, some * used, n, c->first, c->order);
        c->x = all + r * c->step->width;
        RP_TRY(rp_pool_for(pool, n, calibrate_expert, c, err));
    }
    return RP_OK;
}

rp_status rp_experts_add_cubes(const struct rp_step *step, const rp_plan *plan, const float *x,
                               const float *logits, size_t rows, rp_pool *pool,
                               const rp_weight *down, struct rp_cubes *cubes, rp_error *err)
{
    const size_t n = step->p.experts.n_experts, used = step->p.experts.n_used;
    const size_t places = (rows < CHOOSING_ROWS ? rows : CHOOSING_ROWS) * used + 1;
    struct calibration c = {.step = step, .plan = plan, .x = x, .down = down, .cubes = cubes};
    size_t bytes;
    bool ok = rp_experts_scratch_bytes(step, RP_EXPERTS_ROWS, &c.scratch_bytes) &&
              rp_mul_ok(c.scratch_bytes, (size_t)rp_pool_threads(pool), &bytes);
    c.scratch = ok ? rp_aligned_alloc(bytes) : NULL;
    c.chosen = calloc(places, sizeof *c.chosen);
    c.order = calloc(places, sizeof *c.order);
    c.first = calloc(n + 1, sizeof *c.first);
    c.shares = calloc(n, sizeof *c.shares);
    c.share = calloc(used, sizeof *c.share);
    ok = c.scratch && c.chosen && c.order && c.first && c.shares && c.share;
    const rp_status status =
        ok ? calibrate(&c, logits, rows, pool, err)
           : rp_fail(err, RP_ERR_NOMEM, "no memory to calibrate %zu experts", n);
    rp_aligned_free(c.scratch);
    free(c.chosen);
    free(c.order);
    free(c.first);
    free(c.shares);
    free(c.share);
    return status;
}
