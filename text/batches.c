/* Batches with a prefix and batches without.
 *
 * A batch that shares its prefix has one row more than its texts, the prefix's own.  That row is no
 * result, but the session would refuse the batch when it is not finite; so where a number is not,
 * the texts are run again as they are.  They then fail, or not, with the words of a run that never
 * shared anything.
 */
#include "text/batches.h"

#include "pool/error.h"
#include "text/prefix.h"

#include <stdlib.h>
#include <string.h>

struct running {
    const struct rp_batches *how;
    const rp_batch *all;
    const char *output;
    size_t width;
    float *out;
    size_t shared; /* tokens of the prefix; 0: none */
    struct rp_prefix_room room;
    int32_t *cu; /* of a batch without it */
};

/* Runs a batch for sequences [first, end), whose rows come after `before` others. */
static rp_status run_batch(const struct running *run, const rp_batch *batch, size_t before,
                           size_t first, size_t end, rp_error *err)
{
    rp_session *session = run->how->session;
    rp_view view;
    const rp_status status = rp_session_run(session, batch, err);
    if (status != RP_OK)
        return rp_fail_within(err, status, "texts %zu to %zu", first, end - 1);
    RP_TRY(rp_session_output(session, run->output, &view, err));
    memcpy(run->out + first * run->width, (const float *)view.data + before * run->width,
           (end - first) * run->width * sizeof *run->out);
    return RP_OK;
}

/* Sequences [first, limit) that make the next batch: as many as the budget holds, at least one. The
 * bucket's count of sequences (half its tokens) holds them too, since none is shorter than two
 * tokens; when one is, the batch ends early. */
static size_t batch_end(const struct running *run, size_t first, size_t limit)
{
    const size_t max_tokens = run->how->max_tokens;
    const int32_t *cu = run->all->cu;
    size_t end = first + 1;
    while (end < limit && (size_t)(cu[end + 1] - cu[first]) <= max_tokens &&
           end - first < max_tokens / 2)
        end++;
    return end;
}

static void report(const struct running *run, size_t done)
{
    if (run->how->progress)
        run->how->progress(run->how->progress_context, done, run->all->n_seqs);
}

static rp_status run_whole(const struct running *run, size_t first, size_t limit, rp_error *err)
{
    const rp_batch *all = run->all;
    for (size_t end; first < limit; first = end) {
        end = batch_end(run, first, limit);
        for (size_t i = first; i <= end; i++)
            run->cu[i - first] = all->cu[i] - all->cu[first];
        rp_batch batch;
        rp_batch_init(&batch);
        batch.n_seqs = end - first;
        batch.cu = run->cu;
        batch.ids = all->ids + all->cu[first];
        batch.type_ids = all->type_ids ? all->type_ids + all->cu[first] : NULL;
        RP_TRY(run_batch(run, &batch, 0, first, end, err));
        report(run, end);
    }
    return RP_OK;
}

static rp_status run_shared(struct running *run, size_t first, size_t end, rp_error *err)
{
    rp_batch batch;
    rp_prefix_split(run->all, run->shared, first, end, &run->room, &batch);
    rp_error shared = {RP_OK, ""};
    const rp_status status = run_batch(run, &batch, 1, first, end, &shared);
    if (status == RP_ERR_NONFINITE) {
        run->shared = 0; /* the prefix is the same in every batch */
        return run_whole(run, first, end, err);
    }
    if (status != RP_OK)
        return rp_fail(err, status, "%s", shared.message);
    report(run, end);
    return RP_OK;
}

static rp_status run_all(struct running *run, rp_error *err)
{
    const rp_batch *all = run->all;
    size_t first = 0;
    for (size_t end; run->shared > 0 && first < all->n_seqs; first = end) {
        end = rp_prefix_end(all, run->shared, first, run->how->max_tokens);
        RP_TRY(end - first > 1 ? run_shared(run, first, end, err)
                               : run_whole(run, first, end, err));
    }
    return run_whole(run, first, all->n_seqs, err);
}

rp_status rp_batches_run(const struct rp_batches *how, const rp_batch *all, const char *output,
                         size_t width, float *out, rp_error *err)
{
    struct running run = {.how = how, .all = all, .output = output, .width = width, .out = out};
    rp_status status = RP_OK;
    run.shared = how->reuse ? rp_prefix_shared(all) : 0;
    run.cu = calloc(all->n_seqs + 1, sizeof *run.cu);
    if (!run.cu)
        status = rp_fail(err, RP_ERR_NOMEM, "no memory for %zu texts", all->n_seqs);
    if (status == RP_OK && run.shared)
        status = rp_prefix_reserve(all, &run.room, err);
    if (status == RP_OK)
        status = run_all(&run, err);
    rp_prefix_free(&run.room);
    free(run.cu);
    return status;
}
