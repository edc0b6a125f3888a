/* A request's sequences, cut into batches, run one after the other, results in the request's order.
 */
#ifndef RP_TEXT_BATCHES_H
#define RP_TEXT_BATCHES_H

#include <rankplan/plan.h>

struct rp_batches {
    rp_session *session;
    size_t max_tokens; /* of a batch; a longer sequence gets one of its own */
    bool reuse;        /* the sequences may have a parent (rp_graph_is_causal) */
    void (*progress)(void *context, size_t done, size_t total); /* may be NULL */
    void *progress_context;
};

/* Runs all sequences and copies the rows of the output: width floats for each.  With `reuse`, what
 * all of them begin with is run once in each batch (text/prefix.h); the results are the same.  The
 * message of a failure names the sequences of its batch.  Allocates.  RP_ERR_NOMEM, and what
 * rp_session_run fails with. */
RP_CHECKED rp_status rp_batches_run(const struct rp_batches *how, const rp_batch *all,
                                    const char *output, size_t width, float *out, rp_error *err);

#endif
