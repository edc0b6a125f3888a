/* The gated delta rule, the part without instructions of its own: sizes, and columns of states. */
#include "gdn/internal.h"
#include "pool/memory.h"

#include <float.h>
#include <math.h>

#define PANELS_OF_TOKENS ((RP_GDN_CHUNK + 15) / 16)
/* The panels of columns of the widest tile. */
#define GROUP_MAX 2

/* Tasks for each worker, before columns are no longer cut: each cut makes the products of keys once
 * more. */
#define TASKS_PER_WORKER 2
/* Columns that are worth a task: what each does again for its key head is then small beside what it
 * does alone. */
#define LEAST_COLUMNS 32

/* The next part, lines of 16 floats, behind what is there already. */
static bool place(size_t lines, size_t *offset, size_t *total)
{
    size_t floats;
    *offset = *total;
    return rp_mul_ok(lines, 16, &floats) && rp_add_ok(*total, floats, total);
}

bool rp_gdn_lay_out(const struct rp_gdn_args *shape, struct rp_gdn_scratch_layout *out)
{
    struct rp_gdn_scratch_layout at = {0};
    const size_t dim = shape->key_dim, heads = shape->n_key_heads;
    if (!dim || !shape->value_dim || !heads || !shape->n_value_heads ||
        shape->n_value_heads % heads)
        return false;
    const size_t key_panels = dim / 16 + (dim % 16 != 0);
    const size_t value_panels = shape->value_dim / 16 + (shape->value_dim % 16 != 0);
    const size_t square = PANELS_OF_TOKENS * RP_GDN_CHUNK;
    size_t rows, panels, lines, states;
    if (!rp_mul_ok(key_panels, 16, &at.padded_dim) || !rp_mul_ok(key_panels, RP_GDN_CHUNK, &rows) ||
        !rp_mul_ok(at.padded_dim, PANELS_OF_TOKENS, &panels) ||
        !rp_mul_ok(value_panels, dim, &lines) || !rp_mul_ok(lines, 16, &at.head_state) ||
        !rp_mul_ok(lines, shape->n_value_heads / heads, &states))
        return false;
    if (!place(rows, &at.k_rows, &at.total) || !place(at.padded_dim, &at.q_rows, &at.total) ||
        !place(panels, &at.keys, &at.total) || !place(panels, &at.queries, &at.total) ||
        !place(square, &at.kk, &at.total) || !place(square, &at.qk, &at.total) ||
        !place(square, &at.ratio, &at.total) || !place(square, &at.weights_k, &at.total) ||
        !place(square, &at.weights_q, &at.total) || !place(rows, &at.updates, &at.total) ||
        !place(GROUP_MAX * RP_GDN_CHUNK, &at.deltas, &at.total) ||
        !place(states, &at.state, &at.total))
        return false;
    *out = at;
    return true;
}

bool rp_gdn_eps_fits(const rp_gdn *g)
{
    if (g->norm == RP_GDN_NORM_NONE)
        return true;
    if (!(g->eps >= FLT_MIN) || isinf(g->eps))
        return false;
    const float n = g->norm == RP_GDN_NORM_ROOT ? sqrtf(g->eps) : g->eps;
    return isfinite(fmaxf(g->scale, 1.0f) / n);
}

bool rp_gdn_scratch_bytes(const struct rp_gdn_args *shape, size_t *out)
{
    struct rp_gdn_scratch_layout at;
    size_t bytes;
    if (!rp_gdn_lay_out(shape, &at) || !rp_mul_ok(at.total, sizeof(float), &bytes))
        return false;
    *out = bytes;
    return true;
}

void rp_gdn_each_span(size_t key_dim, size_t value_dim, size_t c0, size_t c1, rp_gdn_span_fn *fn,
                      void *context)
{
    const size_t head = key_dim * value_dim;
    for (size_t i = c0 / value_dim; i * value_dim < c1; i++) {
        const size_t a = c0 > i * value_dim ? c0 - i * value_dim : 0;
        const size_t b = c1 - i * value_dim < value_dim ? c1 - i * value_dim : value_dim;
        if (b - a == value_dim) {
            fn(context, i * head, head);
        } else {
            for (size_t k = 0; k < key_dim; k++)
                fn(context, i * head + k * value_dim + a, b - a);
        }
    }
}

static size_t ceil_div(size_t a, size_t b)
{
    return a / b + (a % b != 0);
}

size_t rp_gdn_columns_of_task(size_t columns, size_t step, size_t units, size_t workers)
{
    const size_t wanted = workers > 1 ? TASKS_PER_WORKER * workers : 1;
    const size_t least = ceil_div(columns, ceil_div(wanted, units));
    return ceil_div(least < LEAST_COLUMNS ? LEAST_COLUMNS : least, step) * step;
}
