/* Cross attention: rows of the batch against memories that it brings along.
 *
 * Sequences one after the other that name one memory are one family of rows to it: its keys and
 * values are packed once for a task, whichever of these rows the task has.  So the many questions
 * about one text share what their attention to it costs beside the products.
 *
 *     sequences   0 1 2 | 3 4 | 5        memories  A A A B B A
 *     families    A       B     A
 *     tasks       (family, rows of it, head of keys)
 *
 * A step may have all rows of its sequences or those that are read alone (plan/prune.c); either
 * way the rows of a family lie together.
 */
#include "plan/run.h"

#include <string.h>

/* The first row that the step has of a sequence, or, for n_seqs, the end of all rows. */
static size_t row_of_seq(const struct rp_step *step, const rp_batch *batch, size_t seq)
{
    switch (step->rows) {
    case RP_ROWS_TOKENS: return (size_t)batch->cu[seq];
    case RP_ROWS_SEQS: return seq;
    case RP_ROWS_MARKERS: return batch->markers ? (size_t)batch->mcu[seq] : 0;
    }
    return 0;
}

void rp_run_find_memories(struct rp_run *run)
{
    const rp_memory *m = run->batch->memories;
    run->n_memories = 0;
    if (!m)
        return;
    for (size_t s = 0; s < run->batch->n_seqs; s++)
        if (s == 0 || m[s].data != m[s - 1].data || m[s].rows != m[s - 1].rows)
            run->memories[run->n_memories++] = (int32_t)s;
    run->memories[run->n_memories] = (int32_t)run->batch->n_seqs;
}

static size_t family_row(const struct rp_step *step, const struct rp_run *run, size_t family)
{
    return row_of_seq(step, run->batch, (size_t)run->memories[family]);
}

void rp_phase_cross(const struct rp_step *step, const struct rp_run *run, size_t workers,
                    struct rp_phase *phase)
{
    const size_t heads = step->p.cross.n_kv_heads;
    size_t most = 0;
    for (size_t k = 0; k < run->n_memories; k++) {
        const size_t rows = family_row(step, run, k + 1) - family_row(step, run, k);
        most = rows > most ? rows : most;
    }
    phase->cross_rows = rp_attention_query_rows(most, run->n_memories * heads, workers);
    phase->cross_parts = most ? (most + phase->cross_rows - 1) / phase->cross_rows : 0;
    phase->n_tasks = run->n_memories * heads * phase->cross_parts;
}

struct rp_cross_part rp_step_cross_part(const struct rp_step *step, const struct rp_run *run,
                                        size_t t, const struct rp_phase *phase)
{
    const size_t heads = step->p.cross.n_kv_heads, part = t / heads % phase->cross_parts;
    const size_t family = t / heads / phase->cross_parts;
    const size_t end = family_row(step, run, family + 1);
    const size_t r0 = family_row(step, run, family) + part * phase->cross_rows;
    const size_t r1 = r0 + phase->cross_rows;
    return (struct rp_cross_part){.memory = &run->batch->memories[run->memories[family]],
                                  .kv_head = t % heads,
                                  .r0 = r0,
                                  .r1 = r1 < end ? r1 : end};
}

/* Attention to nothing. */
static void clear_heads(const struct rp_step *step, float *y, size_t kv_head, size_t rows)
{
    const size_t width = step->width / step->p.cross.n_kv_heads;
    for (size_t r = 0; r < rows; r++)
        memset(y + r * step->width + kv_head * width, 0, width * sizeof *y);
}

void rp_step_cross(const struct rp_step *step, const struct rp_frame *f, size_t t,
                   const struct rp_phase *phase)
{
    const struct rp_cross_part part = rp_step_cross_part(step, f->run, t, phase);
    if (part.r0 >= part.r1)
        return;
    const size_t rows = part.r1 - part.r0;
    const struct rp_attention_args args = {
        .qkv = rp_frame_row(f, step->in[0], 0),
        .ld = step->width,
        .out = rp_frame_row(f, step->out, 0),
        .ld_out = step->width,
        .n_heads = step->p.cross.n_heads,
        .n_kv_heads = step->p.cross.n_kv_heads,
        .head_dim = step->p.cross.head_dim,
        .scale = step->p.cross.scale,
        .memory = part.memory->data,
        .ld_memory = step->p.cross.memory_width,
        .n_memory = part.memory->rows,
        .key_column = step->p.cross.key_column,
        .value_column = step->p.cross.value_column,
    };
    if (part.memory->rows)
        f->run->plan->attention->run(&args, part.r0, rows, part.kv_head, 0, rows, f->scratch);
    else
        clear_heads(step, rp_frame_row(f, step->out, part.r0), part.kv_head, rows);
}

uint64_t rp_step_cross_pairs(const struct rp_step *step, const rp_batch *batch)
{
    uint64_t pairs = 0;
    for (size_t s = 0; batch->memories && s < batch->n_seqs; s++)
        pairs += (uint64_t)(row_of_seq(step, batch, s + 1) - row_of_seq(step, batch, s)) *
                 batch->memories[s].rows;
    return pairs;
}
