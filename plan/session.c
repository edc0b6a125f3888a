/* Sessions: a bounded cache of plans, and the memory that their runs share. */
#include "plan/run.h"

#include "pool/error.h"
#include "pool/fpenv.h"
#include "pool/memory.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Memory that only ever grows, so that a bucket that ran once runs again without allocating. */
struct buffer {
    void *p;
    size_t bytes;
};

/* The first two are what a batch's size decides most of; the others are tables. */
enum { ARENA, SCRATCH, INDEX, BLOCKS, FAMILIES, PHASES, COUNTERS, WANTED, BUFFERS };
static const char *const buffer_names[BUFFERS] = {"arena",           "scratch",  "index tables",
                                                  "attention tasks", "families", "phases",
                                                  "counters",        "steps"};

struct cached_plan {
    rp_plan *plan;
    size_t bucket;     /* number in the table */
    uint64_t last_use; /* of the session's clock */
};

struct rp_session {
    const rp_graph *graph;
    rp_weights *weights;
    rp_session_options options;
    rp_bucket *buckets;
    struct cached_plan *plans;
    size_t n_plans;
    uint64_t clock;
    struct buffer buffers[BUFFERS];
    rp_observer observer;
    bool has_observer;
    struct rp_stop stop;
    bool stopped; /* the last run was, so there are no outputs */
    struct rp_profiling *profile;
    struct rp_run run;   /* of the last batch; run.plan is NULL before the first */
    const rp_plan *last; /* the plan whose outputs lie in the arena, or NULL */
};

void rp_batch_init(rp_batch *batch)
{
    *batch = (rp_batch){.struct_size = sizeof *batch};
}

void rp_session_options_init(rp_session_options *options)
{
    *options = (rp_session_options){
        .struct_size = sizeof *options, .isa = RP_ISA_DEFAULT, .max_plans = 8, .max_tokens = 16384};
}

/* ---- making ------------------------------------------------------------------------------------
 */

static rp_status copy_buckets(rp_session *s, rp_error *err)
{
    size_t n = s->options.n_buckets;
    rp_bucket b;
    if (!s->options.buckets)
        for (n = 0; rp_bucket_default(n, s->options.max_tokens, &b); n++)
            ;
    if (n == 0)
        return rp_fail(err, RP_ERR_INVALID, "a session needs at least one bucket");
    s->buckets = calloc(n, sizeof *s->buckets);
    if (!s->buckets)
        return rp_fail(err, RP_ERR_NOMEM, "no memory for %zu buckets", n);
    for (size_t i = 0; i < n; i++) {
        if (s->options.buckets)
            s->buckets[i] = s->options.buckets[i];
        else
            (void)rp_bucket_default(i, s->options.max_tokens, &s->buckets[i]);
    }
    s->options.buckets = s->buckets;
    s->options.n_buckets = n;
    return RP_OK;
}

rp_status rp_session_create(const rp_graph *graph, rp_weights *weights,
                            const rp_session_options *options, rp_session **out, rp_error *err)
{
    rp_session_options defaults;
    rp_session_options_init(&defaults);
    if (!options)
        options = &defaults;
    if (options->struct_size != sizeof *options)
        return rp_fail(err, RP_ERR_INVALID, "rp_session_options has struct_size %zu, expected %zu",
                       options->struct_size, sizeof *options);
    if (options->max_plans == 0)
        return rp_fail(err, RP_ERR_INVALID, "a session with max_plans 0 can run nothing");
    rp_session *s = calloc(1, sizeof *s);
    if (!s)
        return rp_fail(err, RP_ERR_NOMEM, "no memory for a session");
    s->graph = graph;
    s->weights = weights;
    s->options = *options;
    s->stop.deadline_ns = RP_NO_DEADLINE;
    s->plans = calloc(options->max_plans, sizeof *s->plans);
    rp_status status = RP_OK;
    if (!s->plans)
        status = rp_fail(err, RP_ERR_NOMEM, "no memory for %zu plans", options->max_plans);
    if (status == RP_OK && s->options.isa == RP_ISA_DEFAULT)
        status = rp_isa_default(&s->options.isa, err);
    if (status == RP_OK)
        status = copy_buckets(s, err);
    if (status != RP_OK) {
        rp_session_destroy(s);
        return status;
    }
    *out = s;
    return RP_OK;
}

void rp_session_destroy(rp_session *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < BUFFERS; i++)
        rp_aligned_free(s->buffers[i].p);
    for (size_t i = 0; s->plans && i < s->n_plans; i++)
        rp_plan_destroy(s->plans[i].plan);
    rp_profiling_destroy(s->profile);
    free(s->plans);
    free(s->buckets);
    free(s);
}

void rp_session_observe(rp_session *s, const rp_observer *observer)
{
    s->has_observer = observer != NULL;
    if (observer)
        s->observer = *observer;
}

void rp_session_set_deadline(rp_session *s, uint64_t deadline_ns)
{
    s->stop.deadline_ns = deadline_ns;
}

void rp_session_set_cancel(rp_session *s, const rp_cancel *cancel)
{
    s->stop.cancel = cancel;
}

const struct rp_stop *rp_session_stop(const rp_session *s)
{
    return &s->stop;
}

/* ---- plans -------------------------------------------------------------------------------------
 */

static rp_status no_bucket(const rp_session *s, size_t tokens, size_t seqs, size_t markers,
                           rp_error *err)
{
    const rp_bucket *largest = &s->buckets[0];
    for (size_t i = 1; i < s->options.n_buckets; i++)
        if (s->buckets[i].tokens >= largest->tokens)
            largest = &s->buckets[i];
    return rp_fail(err, RP_ERR_BUCKET,
                   "a batch of %zu tokens, %zu seqs, %zu markers does not fit the largest bucket "
                   "%zu,%zu,%zu",
                   tokens, seqs, markers, largest->tokens, largest->seqs, largest->markers);
}

/* Room for another plan in the cache.  The one unused for longest goes before the new one is made,
 * so that there are never more of them than was said. */
static void make_room(rp_session *s)
{
    if (s->n_plans < s->options.max_plans)
        return;
    struct cached_plan *oldest = &s->plans[0];
    for (size_t i = 1; i < s->n_plans; i++)
        if (s->plans[i].last_use < oldest->last_use)
            oldest = &s->plans[i];
    if (oldest->plan == s->last)
        s->last = NULL; /* its outputs can no longer be named */
    rp_plan_destroy(oldest->plan);
    *oldest = s->plans[--s->n_plans];
}

static void plan_options(const rp_session *s, rp_plan_options *options)
{
    rp_plan_options_init(options);
    options->isa = s->options.isa;
    options->no_fuse = s->options.no_fuse;
    options->no_prune = s->options.no_prune;
    options->pool = s->options.pool;
    options->max_memory = s->options.max_memory;
}

static rp_status find_plan(rp_session *s, size_t tokens, size_t seqs, size_t markers, rp_plan **out,
                           rp_error *err)
{
    const size_t b = rp_bucket_pick(s->buckets, s->options.n_buckets, tokens, seqs, markers);
    if (b == s->options.n_buckets)
        return no_bucket(s, tokens, seqs, markers, err);
    s->clock++;
    for (size_t i = 0; i < s->n_plans; i++) {
        if (s->plans[i].bucket == b) {
            s->plans[i].last_use = s->clock;
            *out = s->plans[i].plan;
            return RP_OK;
        }
    }
    rp_plan_options options;
    plan_options(s, &options);
    rp_plan *plan = NULL;
    make_room(s);
    RP_TRY(rp_plan_compile(s->graph, s->weights, &s->buckets[b], &options, &plan, err));
    s->plans[s->n_plans++] = (struct cached_plan){.plan = plan, .bucket = b, .last_use = s->clock};
    *out = plan;
    return RP_OK;
}

rp_status rp_session_plan(rp_session *s, size_t tokens, size_t seqs, size_t markers,
                          const rp_plan **out, rp_error *err)
{
    rp_plan *plan = NULL;
    RP_TRY(find_plan(s, tokens, seqs, markers, &plan, err));
    *out = plan;
    return RP_OK;
}

/* ---- memory ------------------------------------------------------------------------------------
 */

/* What a plan needs of each buffer. */
static rp_status buffer_bytes(const rp_plan *plan, size_t workers, size_t bytes[BUFFERS],
                              rp_error *err)
{
    const struct {
        size_t n, size;
    } needs[BUFFERS] = {[ARENA] = {plan->arena_bytes, 1},
                        [SCRATCH] = {plan->scratch_bytes, workers},
                        [INDEX] = {plan->bucket.tokens * plan->n_indices, sizeof(int32_t)},
                        [BLOCKS] = {rp_run_max_blocks(plan), sizeof(struct rp_query_block)},
                        [FAMILIES] = {3 * plan->bucket.seqs + 1, sizeof(int32_t)},
                        [PHASES] = {plan->n_steps, sizeof(struct rp_phase)},
                        [COUNTERS] = {plan->n_steps, sizeof(struct rp_counter)},
                        [WANTED] = {plan->n_steps, sizeof(bool)}};
    for (size_t i = 0; i < BUFFERS; i++) {
        if (!rp_mul_ok(needs[i].n, needs[i].size, &bytes[i]))
            return rp_fail(err, RP_ERR_LIMIT, "%s: %zu x %zu bytes wrap", buffer_names[i],
                           needs[i].n, needs[i].size);
        if (bytes[i] == 0)
            bytes[i] =
                1; /* a run counts from every buffer, also from one that it needs nothing of */
    }
    return RP_OK;
}

/* The old memory goes first: nothing in it outlives a run but outputs, and so there are never both.
 */
static rp_status grow(struct buffer *b, const char *what, size_t bytes, rp_error *err)
{
    if (bytes <= b->bytes)
        return RP_OK;
    rp_aligned_free(b->p);
    *b = (struct buffer){.p = rp_aligned_alloc(bytes)};
    if (!b->p)
        return rp_fail(err, RP_ERR_NOMEM, "%s: no memory for %zu bytes", what, bytes);
    b->bytes = bytes;
    return RP_OK;
}

static rp_status reserve_for(rp_session *s, const rp_plan *plan, rp_error *err)
{
    size_t bytes[BUFFERS];
    RP_TRY(buffer_bytes(plan, (size_t)rp_pool_threads(s->options.pool), bytes, err));
    if (bytes[ARENA] > s->buffers[ARENA].bytes)
        s->last = NULL; /* the outputs of the last run go with the old arena */
    for (size_t i = 0; i < BUFFERS; i++)
        RP_TRY(grow(&s->buffers[i], buffer_names[i], bytes[i], err));
    return RP_OK;
}

rp_status rp_session_reserve(rp_session *s, size_t tokens, size_t seqs, size_t markers,
                             rp_error *err)
{
    rp_plan *plan = NULL;
    RP_TRY(find_plan(s, tokens, seqs, markers, &plan, err));
    return reserve_for(s, plan, err);
}

/* The largest of what the plans of all buckets need; the last two are the same for each. */
struct needs {
    size_t buffers[BUFFERS];
    uint64_t *plans; /* of as many as are kept, the largest first */
    size_t n_plans;
    uint64_t making, weights;
};

static void keep_largest(struct needs *needs, uint64_t bytes)
{
    for (size_t i = 0; i < needs->n_plans; i++) {
        const uint64_t smaller = bytes < needs->plans[i] ? bytes : needs->plans[i];
        needs->plans[i] += bytes - smaller;
        bytes = smaller;
    }
}

static rp_status measure_plan(const rp_session *s, const rp_plan *plan, struct needs *needs,
                              rp_error *err)
{
    size_t bytes[BUFFERS];
    RP_TRY(buffer_bytes(plan, (size_t)rp_pool_threads(s->options.pool), bytes, err));
    for (size_t i = 0; i < BUFFERS; i++)
        needs->buffers[i] = bytes[i] > needs->buffers[i] ? bytes[i] : needs->buffers[i];
    keep_largest(needs, plan->own_bytes);
    needs->making = plan->making_bytes;
    needs->weights = plan->weights_bytes;
    return RP_OK;
}

static rp_status measure(const rp_session *s, struct needs *needs, rp_error *err)
{
    rp_plan_options options;
    plan_options(s, &options);
    for (size_t b = 0; b < s->options.n_buckets; b++) {
        rp_plan *plan;
        RP_TRY(rp_plan_dry_run(s->graph, s->weights, &s->buckets[b], &options, &plan, err));
        const rp_status status = measure_plan(s, plan, needs, err);
        rp_plan_destroy(plan);
        RP_TRY(status);
    }
    return RP_OK;
}

static void add_up(const rp_session *s, const struct needs *needs, rp_session_sizes *out)
{
    const rp_session_options *o = &s->options;
    out->weights_bytes = needs->weights;
    out->arena_bytes = needs->buffers[ARENA];
    out->scratch_bytes = needs->buffers[SCRATCH];
    out->plan_bytes = needs->making;
    for (size_t i = 0; i < needs->n_plans; i++)
        out->plan_bytes += needs->plans[i];
    out->table_bytes =
        sizeof *s + o->max_plans * sizeof *s->plans + o->n_buckets * sizeof *s->buckets;
    for (size_t i = SCRATCH + 1; i < BUFFERS; i++)
        out->table_bytes += needs->buffers[i];
    out->session_bytes = out->arena_bytes + out->scratch_bytes + out->plan_bytes + out->table_bytes;
}

rp_status rp_session_measure(const rp_graph *graph, const rp_weights *weights,
                             const rp_session_options *options, rp_session_sizes *out,
                             rp_error *err)
{
    rp_session *s;
    if (out->struct_size != sizeof *out)
        return rp_fail(err, RP_ERR_INVALID, "rp_session_sizes has struct_size %zu, expected %zu",
                       out->struct_size, sizeof *out);
    /* A session that never runs changes no weight. */
    RP_TRY(rp_session_create(graph, (rp_weights *)weights, options, &s, err));
    const rp_session_options *o = &s->options;
    struct needs needs = {.n_plans = o->max_plans < o->n_buckets ? o->max_plans : o->n_buckets};
    needs.plans = calloc(needs.n_plans + 1, sizeof *needs.plans);
    rp_status status = needs.plans ? measure(s, &needs, err)
                                   : rp_fail(err, RP_ERR_NOMEM, "no memory to measure a session");
    if (status == RP_OK)
        add_up(s, &needs, out);
    free(needs.plans);
    rp_session_destroy(s);
    return status;
}

/* ---- running -----------------------------------------------------------------------------------
 */

/* A NaN or an infinity never leaves as a result without an error. */
static rp_status check_outputs(const rp_session *s, rp_error *err)
{
    for (size_t i = 0; i < s->last->n_outputs; i++) {
        rp_view view;
        size_t where;
        RP_TRY(rp_session_output(s, s->last->outputs[i].name, &view, err));
        if (s->last->ops->nonfinite(view.data, view.rows * view.width, &where))
            return rp_fail(err, RP_ERR_NONFINITE, "output %s, row %zu (of %s), column %zu is %s",
                           s->last->outputs[i].name, where / view.width, rp_rows_name(view.kind),
                           where % view.width, isnan(view.data[where]) ? "NaN" : "infinite");
    }
    return RP_OK;
}

/* Whatever a stopped run leaves in the arena is no result, and that of the run before is not this
 * one's. */
static rp_status note_stop(rp_session *s, rp_status status)
{
    s->stopped =
        status == RP_ERR_STOPPED || status == RP_ERR_DEADLINE || status == RP_ERR_CANCELLED;
    if (s->stopped)
        s->last = NULL;
    return status;
}

static rp_status run(rp_session *s, const rp_batch *batch, const rp_observer *observer,
                     rp_error *err)
{
    rp_plan *plan = NULL;
    RP_TRY(rp_batch_check(batch, err));
    RP_TRY(note_stop(s, rp_stop_refuse(&s->stop, err)));
    const rp_bucket live = {.tokens = (size_t)batch->cu[batch->n_seqs],
                            .seqs = batch->n_seqs,
                            .markers = batch->markers ? (size_t)batch->mcu[batch->n_seqs] : 0};
    RP_TRY(find_plan(s, live.tokens, live.seqs, live.markers, &plan, err));
    RP_TRY(reserve_for(s, plan, err));
    s->last = NULL;
    s->run = (struct rp_run){.plan = plan,
                             .batch = batch,
                             .live = live,
                             .arena = s->buffers[ARENA].p,
                             .scratch = s->buffers[SCRATCH].p,
                             .scratch_stride = plan->scratch_bytes,
                             .index_memory = s->buffers[INDEX].p,
                             .blocks = s->buffers[BLOCKS].p,
                             .roots = s->buffers[FAMILIES].p,
                             .next = (int32_t *)s->buffers[FAMILIES].p + plan->bucket.seqs,
                             .memories = (int32_t *)s->buffers[FAMILIES].p + 2 * plan->bucket.seqs,
                             .phases = s->buffers[PHASES].p,
                             .counters = s->buffers[COUNTERS].p,
                             .wanted = s->buffers[WANTED].p,
                             .observer = observer,
                             .profile = s->profile,
                             .stop = &s->stop,
                             .pool = s->options.pool};
    if (s->options.poison) {
        memset(s->buffers[ARENA].p, 0xff, s->buffers[ARENA].bytes);
        memset(s->buffers[SCRATCH].p, 0xff, s->buffers[SCRATCH].bytes);
    }
    RP_TRY(rp_run_prepare(&s->run, err));
    RP_TRY(note_stop(s, rp_run_execute(&s->run, err)));
    s->last = plan;
    const rp_fpenv callers = rp_fpenv_enter(); /* where traps are armed, looking at a NaN is one */
    const rp_status status = check_outputs(s, err);
    rp_fpenv_leave(callers);
    return status;
}

rp_status rp_session_run(rp_session *s, const rp_batch *batch, rp_error *err)
{
    return run(s, batch, s->has_observer ? &s->observer : NULL, err);
}

rp_status rp_session_output(const rp_session *s, const char *name, rp_view *out, rp_error *err)
{
    if (!s->last)
        return rp_fail(err, RP_ERR_MISSING, "output %s: %s", name,
                       s->stopped ? "the last run was stopped" : "nothing has run");
    char names[RP_ERROR_MESSAGE_BYTES / 2] = "";
    for (size_t i = 0; i < s->last->n_outputs; i++) {
        const struct rp_plan_output *o = &s->last->outputs[i];
        if (strcmp(o->name, name) == 0) {
            const struct rp_slot *slot = &s->last->slots[o->slot];
            const unsigned char *at = s->run.arena + slot->offset[s->run.mode];
            *out = (rp_view){.data = (const float *)(const void *)at,
                             .rows = rp_bucket_rows(&s->run.live, slot->rows),
                             .width = slot->width,
                             .kind = slot->rows};
            return RP_OK;
        }
        const size_t used = strlen(names);
        if (used + strlen(o->name) + 2 < sizeof names) {
            strcat(names, " ");
            strcat(names, o->name);
        }
    }
    return rp_fail(err, RP_ERR_MISSING, "there is no output %s; there are:%s", name, names);
}

/* ---- profile -----------------------------------------------------------------------------------
 */

rp_status rp_session_profile_start(rp_session *s, size_t max_events, rp_error *err)
{
    rp_plan *plan = NULL;
    struct rp_profiling *profile = NULL;
    RP_TRY(find_plan(s, 1, 1, 0, &plan, err)); /* plans of all buckets have the same steps */
    RP_TRY(rp_profiling_create(plan->n_steps, (size_t)rp_pool_threads(s->options.pool), max_events,
                               &profile, err));
    rp_profiling_destroy(s->profile);
    s->profile = profile;
    return RP_OK;
}

void rp_session_profile_stop(rp_session *s)
{
    rp_profiling_destroy(s->profile);
    s->profile = NULL;
}

rp_status rp_session_profile(const rp_session *s, rp_profile *out, rp_error *err)
{
    if (out->struct_size != sizeof *out)
        return rp_fail(err, RP_ERR_INVALID, "rp_profile has struct_size %zu, expected %zu",
                       out->struct_size, sizeof *out);
    if (!s->profile)
        return rp_fail(err, RP_ERR_INVALID, "no profile was started");
    rp_profiling_read(s->profile, out);
    return RP_OK;
}

/* ---- digest ------------------------------------------------------------------------------------
 */

struct digesting {
    rp_digest *digest;
    const rp_observer *observer; /* the session's own, which sees what it asked for as ever */
    XXH3_state_t whole;
};

static bool want_all(void *context, const rp_step_info *step)
{
    (void)context;
    (void)step;
    return true;
}

static rp_status take_hash(void *context, const rp_step_info *step, const rp_view *view)
{
    struct digesting *d = context;
    const uint64_t hash = XXH3_64bits(view->data, view->rows * view->width * sizeof(float));
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(hash >> (8 * i));
    /* gcc 12 warns about xxhash's branches for longer inputs when it sees that there are 8 bytes.
     */
    const void *opaque = bytes;
    __asm__("" : "+r"(opaque) : : "memory");
    XXH3_64bits_update(&d->whole, opaque, sizeof bytes);
    if (step->index < d->digest->capacity) {
        d->digest->hashes[step->index] = hash;
        if (d->digest->rows)
            d->digest->rows[step->index] = view->rows;
    }
    d->digest->n_steps = step->index + 1;
    if (d->observer && d->observer->want(d->observer->context, step))
        return d->observer->show(d->observer->context, step, view);
    return RP_OK;
}

rp_status rp_session_digest(rp_session *s, const rp_batch *batch, rp_digest *digest, rp_error *err)
{
    if (digest->struct_size != sizeof *digest)
        return rp_fail(err, RP_ERR_INVALID, "rp_digest has struct_size %zu, expected %zu",
                       digest->struct_size, sizeof *digest);
    struct digesting d = {.digest = digest, .observer = s->has_observer ? &s->observer : NULL};
    XXH3_64bits_reset(&d.whole);
    digest->n_steps = 0;
    const rp_observer observer = {
        .struct_size = sizeof observer, .want = want_all, .show = take_hash, .context = &d};
    const rp_status status = run(s, batch, &observer, err);
    digest->whole = XXH3_64bits_digest(&d.whole);
    return status;
}
