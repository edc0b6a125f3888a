/* Steps that run along a sequence: convolutions and gated delta nets.
 *
 * Both begin where the sequence's parent ends, if it has one.  A convolution reads the parent's
 * last rows, so its tasks are blocks of rows, whatever sequences those belong to.  A delta net has
 * a state that every row changes, so a task is a family: a root (a sequence without a parent), then
 * its children, for one key head and some columns of its values.
 *
 * Where chunks begin decides the bits, and they are counted from the root's first row.  So the
 * state is kept where the root's last whole chunk ends, and each child starts there, with the
 * root's rows that are left as the beginning of its first chunk:
 *
 *     root      |  chunk  |  chunk  |  chunk  |rest|
 *                                        kept ^
 *     child                                   |rest own|  chunk  |own|
 */
#include "plan/run.h"

#include "pool/memory.h"

#include <string.h>

/* ---- convolutions ------------------------------------------------------------------------------
 */

/* The row that lies `back` rows before `row` in its sequence or at the end of the parent; NULL
 * where both are over. */
static const float *row_back(const struct rp_step *step, const struct rp_frame *f, size_t seq,
                             size_t row, size_t back)
{
    const rp_batch *batch = f->run->batch;
    const size_t own = row - (size_t)batch->cu[seq];
    if (back <= own)
        return rp_frame_row(f, step->in[0], row - back);
    if (back - own > rp_batch_rows_before(batch, seq))
        return NULL;
    const size_t parent_end = (size_t)batch->cu[rp_batch_parent(batch, seq) + 1];
    return rp_frame_row(f, step->in[0], parent_end - (back - own));
}

void rp_step_convolve(const struct rp_step *step, const struct rp_frame *f, size_t r0, size_t r1)
{
    const rp_batch *batch = f->run->batch;
    const struct rp_ops_conv *conv = &step->p.conv;
    const size_t ldx = f->run->plan->slots[step->in[0]].width;
    const float *before[RP_CONV_MAX_KERNEL - 1];
    for (size_t seq, end; r0 < r1; r0 = end) {
        seq = rp_range_of(batch->cu, batch->n_seqs, r0);
        end = (size_t)batch->cu[seq + 1] < r1 ? (size_t)batch->cu[seq + 1] : r1;
        for (size_t i = 0; i + 1 < conv->kernel; i++)
            before[i] = row_back(step, f, seq, r0, conv->kernel - 1 - i);
        f->run->plan->ops->conv(conv, before, rp_frame_row(f, step->in[0], r0), ldx,
                                rp_frame_row(f, step->out, r0), step->width, end - r0);
    }
}

/* ---- gated delta nets --------------------------------------------------------------------------
 */

size_t rp_gdn_columns(const struct rp_gdn_args *shape)
{
    return shape->n_value_heads / shape->n_key_heads * shape->value_dim;
}

/* Floats of the state of a key head's value heads. */
static bool state_floats(const struct rp_gdn_args *shape, size_t *out)
{
    return rp_mul_ok(rp_gdn_columns(shape), shape->key_dim, out);
}

/* Rows of a state that begin on a cache line. */
static bool state_bytes(const struct rp_gdn_args *shape, size_t *out)
{
    if (!state_floats(shape, out) || !rp_mul_ok(*out, sizeof(float), out) ||
        *out > SIZE_MAX - RP_CACHE_LINE)
        return false;
    *out = rp_round_up(*out, RP_CACHE_LINE);
    return true;
}

bool rp_gdn_step_scratch(const struct rp_gdn_args *shape, size_t *out)
{
    size_t kernel, state;
    return rp_gdn_scratch_bytes(shape, &kernel) && state_bytes(shape, &state) &&
           rp_add_ok(kernel, state, out) && rp_add_ok(*out, state, out);
}

/* What a task works with. */
struct gdn_task {
    struct rp_gdn_args args;
    const struct rp_gdn_kernel *kernel;
    size_t key_head, c0, c1;
    float *state, *kept; /* the second as the root's last whole chunk leaves it */
    void *scratch;
};

static void run_pieces(const struct gdn_task *t, const struct rp_gdn_rows *pieces, size_t n)
{
    t->kernel->run(&t->args, pieces, n, t->key_head, t->c0, t->c1, t->state, t->scratch);
}

static void clear_span(void *context, size_t at, size_t n)
{
    const struct gdn_task *t = context;
    memset(t->state + at, 0, n * sizeof *t->state);
}

static void keep_span(void *context, size_t at, size_t n)
{
    const struct gdn_task *t = context;
    memcpy(t->kept + at, t->state + at, n * sizeof *t->state);
}

static void go_back_span(void *context, size_t at, size_t n)
{
    const struct gdn_task *t = context;
    memcpy(t->state + at, t->kept + at, n * sizeof *t->state);
}

/* Of the task's columns: those of a state that it never touches may hold anything. */
static void each_span(struct gdn_task *t, rp_gdn_span_fn *fn)
{
    rp_gdn_each_span(t->args.key_dim, t->args.value_dim, t->c0, t->c1, fn, t);
}

static void run_root(struct gdn_task *t, size_t row0, size_t n, bool has_children)
{
    const size_t whole = has_children ? n / RP_GDN_CHUNK * RP_GDN_CHUNK : n;
    const struct rp_gdn_rows rows = {.row0 = row0, .n = whole};
    const struct rp_gdn_rows rest = {.row0 = row0 + whole, .n = n - whole};
    each_span(t, clear_span);
    if (rows.n)
        run_pieces(t, &rows, 1);
    if (has_children)
        each_span(t, keep_span);
    if (rest.n)
        run_pieces(t, &rest, 1);
}

static void run_child(struct gdn_task *t, const rp_batch *batch, size_t seq)
{
    const size_t parent_end = (size_t)batch->cu[rp_batch_parent(batch, seq) + 1];
    const size_t rest = rp_batch_rows_before(batch, seq) % RP_GDN_CHUNK;
    const size_t row0 = (size_t)batch->cu[seq], n = (size_t)batch->cu[seq + 1] - row0;
    const struct rp_gdn_rows pieces[] = {{.row0 = parent_end - rest, .n = rest, .silent = true},
                                         {.row0 = row0, .n = n}};
    each_span(t, go_back_span);
    run_pieces(t, rest ? pieces : pieces + 1, rest ? 2 : 1);
}

struct rp_gdn_part rp_step_gdn_part(const struct rp_step *step, const struct rp_run *run, size_t t,
                                    size_t columns)
{
    const size_t all = rp_gdn_columns(&step->p.gdn), groups = (all + columns - 1) / columns;
    const size_t c0 = t % groups * columns;
    t /= groups;
    return (struct rp_gdn_part){.root = (size_t)run->roots[t / step->p.gdn.n_key_heads],
                                .key_head = t % step->p.gdn.n_key_heads,
                                .c0 = c0,
                                .c1 = c0 + columns < all ? c0 + columns : all};
}

void rp_step_gdn(const struct rp_step *step, const struct rp_frame *f, size_t task, size_t columns)
{
    const struct rp_run *run = f->run;
    const rp_batch *batch = run->batch;
    const struct rp_gdn_part part = rp_step_gdn_part(step, run, task, columns);
    const size_t row0 = (size_t)batch->cu[part.root];
    size_t bytes = 0;
    (void)state_bytes(&step->p.gdn, &bytes); /* the scratch has room, so it does not wrap */
    struct gdn_task t = {.args = step->p.gdn,
                         .kernel = run->plan->gdn,
                         .key_head = part.key_head,
                         .c0 = part.c0,
                         .c1 = part.c1,
                         .state = (float *)(void *)f->scratch,
                         .kept = (float *)(void *)(f->scratch + bytes),
                         .scratch = f->scratch + 2 * bytes};
    t.args.qkv = rp_frame_row(f, step->in[0], 0);
    t.args.ld = run->plan->slots[step->in[0]].width;
    t.args.gates = rp_frame_row(f, step->in[1], 0);
    t.args.ld_gates = run->plan->slots[step->in[1]].width;
    t.args.out = rp_frame_row(f, step->out, 0);
    t.args.ld_out = step->width;
    run_root(&t, row0, (size_t)batch->cu[part.root + 1] - row0, run->next[part.root] >= 0);
    for (int32_t child = run->next[part.root]; child >= 0; child = run->next[child])
        run_child(&t, batch, (size_t)child);
}

/* ---- counting ----------------------------------------------------------------------------------
 */

/* Multiply-adds of one chunk of n rows, of which the first `silent` have no output. */
struct madds {
    uint64_t keys;   /* products of keys with keys and queries, of a key head */
    uint64_t column; /* of a column of values */
};

static void add_chunk(struct madds *m, size_t key_dim, uint64_t silent, uint64_t n)
{
    const uint64_t below = n * (n - 1) / 2, shown = (n * (n + 1) - silent * (silent + 1)) / 2;
    m->keys += (below + shown) * key_dim;
    m->column += (2 * n + (n - silent)) * key_dim + below + shown;
}

static struct madds madds_of_rows(const struct rp_gdn_args *shape, size_t from, size_t end)
{
    struct madds m = {0, 0};
    for (size_t r = from, next; r < end; r = next) {
        next = (r / RP_GDN_CHUNK + 1) * RP_GDN_CHUNK;
        next = next < end ? next : end;
        add_chunk(&m, shape->key_dim, r % RP_GDN_CHUNK, next - r / RP_GDN_CHUNK * RP_GDN_CHUNK);
    }
    return m;
}

uint64_t rp_gdn_flops(const struct rp_gdn_args *shape, size_t from, size_t end)
{
    const struct madds m = madds_of_rows(shape, from, end);
    return 2 * shape->n_key_heads * (m.keys + m.column * rp_gdn_columns(shape));
}

uint64_t rp_step_gdn_seq_flops(const struct rp_step *step, const rp_batch *batch, size_t seq)
{
    const size_t before = rp_batch_rows_before(batch, seq);
    return rp_gdn_flops(&step->p.gdn, before,
                        before + (size_t)(batch->cu[seq + 1] - batch->cu[seq]));
}

void rp_step_gdn_work(const struct rp_step *step, const struct rp_run *run,
                      const struct rp_gdn_part *part, uint64_t *flops, size_t *rows)
{
    const rp_batch *batch = run->batch;
    *flops = 0;
    *rows = 0;
    for (int32_t seq = (int32_t)part->root; seq >= 0; seq = run->next[seq]) {
        const size_t n = (size_t)(batch->cu[seq + 1] - batch->cu[seq]);
        const size_t before = rp_batch_rows_before(batch, (size_t)seq);
        const struct madds m = madds_of_rows(&step->p.gdn, before, before + n);
        *flops += 2 * (m.column * (part->c1 - part->c0) + m.keys);
        *rows += n;
    }
}
