/* See split_int8.h.
 *
 * Questions read memories, so a calibration of theirs begins with states: random ids are run
 * through the state's graph in FP32, before any weight is turned, and each state is asked one
 * question of a header and a few options.
 */
#include "models/split_int8.h"

#include "models/decision.h"
#include "pool/error.h"
#include "pool/random.h"

#include <stdlib.h>
#include <string.h>

#define STATES       32
#define STATE_TOKENS 32
#define HEADER       12
#define OPTIONS      3
#define OPTION       5
#define QUESTION     (HEADER + OPTIONS * OPTION)
#define SEED         UINT64_C(0x6b696d652d763121)

struct calibration {
    size_t state_tokens; /* of each: STATE_TOKENS, or as many as a state may have */
    int32_t state_ids[STATES * STATE_TOKENS], state_cu[STATES + 1];
    int32_t ids[STATES * QUESTION], cu[STATES + 1];
    int32_t markers[STATES * OPTIONS], mcu[STATES + 1], types[STATES];
    rp_memory memories[STATES];
    float *rows;
};

/* first, random ids, [SEP]; of one token the first. */
static void fill_text(const struct rp_split *split, uint64_t *random, int32_t first, int32_t *ids,
                      size_t n)
{
    const uint64_t vocab = (uint64_t)split->towers.body.vocab;
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)(rp_random_next(random) % vocab);
    ids[n - 1] = split->info.sep_id;
    ids[0] = first;
}

static void fill(const struct rp_split *split, struct calibration *c)
{
    uint64_t random = SEED;
    const size_t most = split->info.max_state_tokens;
    c->state_tokens = most < STATE_TOKENS ? most : STATE_TOKENS;
    for (size_t s = 0; s < STATES; s++) {
        int32_t *ids = c->ids + s * QUESTION;
        fill_text(split, &random, split->info.cls_s_id, c->state_ids + s * c->state_tokens,
                  c->state_tokens);
        fill_text(split, &random, split->info.cls_q_id, ids, HEADER);
        for (size_t k = 0; k < OPTIONS; k++) {
            const size_t at = HEADER + k * OPTION;
            fill_text(split, &random, split->info.opt_id, ids + at, OPTION);
            c->markers[s * OPTIONS + k] = (int32_t)at;
        }
        c->types[s] = (int32_t)(s % RP_DECISION_TYPES);
        c->state_cu[s + 1] = (int32_t)((s + 1) * c->state_tokens);
        c->cu[s + 1] = (int32_t)((s + 1) * QUESTION);
        c->mcu[s + 1] = (int32_t)((s + 1) * OPTIONS);
    }
}

/* Memories of the states, in FP32. */
static rp_status run_states(struct calibration *c, const struct rp_split *split,
                            const rp_graph *graph, rp_weights *weights, rp_pool *pool,
                            rp_error *err)
{
    const size_t n = STATES * c->state_tokens * split->info.memory_width;
    const rp_bucket bucket = {.tokens = STATES * c->state_tokens, .seqs = STATES};
    rp_session_options options;
    rp_session *session;
    rp_batch batch;
    rp_view memory;
    rp_session_options_init(&options);
    options.pool = pool;
    options.buckets = &bucket;
    options.n_buckets = 1;
    rp_batch_init(&batch);
    batch.n_seqs = STATES;
    batch.ids = c->state_ids;
    batch.cu = c->state_cu;
    c->rows = malloc(n * sizeof *c->rows);
    if (!c->rows)
        return rp_fail(err, RP_ERR_NOMEM, "no memory for the memories of %d states", STATES);
    RP_TRY(rp_session_create(graph, weights, &options, &session, err));
    rp_status s = rp_session_run(session, &batch, err);
    if (s == RP_OK)
        s = rp_session_output(session, "memory", &memory, err);
    if (s == RP_OK)
        memcpy(c->rows, memory.data, n * sizeof *c->rows);
    rp_session_destroy(session);
    for (size_t i = 0; i < STATES; i++)
        c->memories[i] =
            (rp_memory){c->rows + i * c->state_tokens * split->info.memory_width, c->state_tokens};
    return s;
}

static rp_status quantize(struct calibration *c, const struct rp_split *split,
                          rp_graph *const graphs[RP_SPLIT_N_PARTS], rp_weights *weights,
                          const rp_quantize_options *options, rp_error *err)
{
    rp_quantize_options o = *options;
    rp_batch batch;
    fill(split, c);
    if (!o.factors)
        RP_TRY(run_states(c, split, graphs[RP_PART_STATE], weights, o.pool, err));
    rp_batch_init(&batch);
    batch.n_seqs = STATES;
    batch.ids = c->ids;
    batch.cu = c->cu;
    batch.markers = c->markers;
    batch.mcu = c->mcu;
    batch.qtypes = c->types;
    batch.memories = c->memories;
    o.n_batches = 0;
    RP_TRY(rp_weights_quantize(weights, graphs[RP_PART_STATE], &o, err));
    o.batches = &batch;
    o.n_batches = 1;
    return rp_weights_quantize(weights, graphs[RP_PART_MAIN], &o, err);
}

rp_status rp_split_quantize(const struct rp_split *split, rp_graph *const graphs[RP_SPLIT_N_PARTS],
                            rp_weights *weights, const rp_quantize_options *options, rp_error *err)
{
    struct calibration *c = calloc(1, sizeof *c);
    if (!c)
        return rp_fail(err, RP_ERR_NOMEM, "no memory for a calibration");
    const rp_status s = quantize(c, split, graphs, weights, options, err);
    free(c->rows);
    free(c);
    return s;
}
