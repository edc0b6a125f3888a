/* Plans and sessions: a graph lowered for a bucket, and the object that runs it.
 *
 * A bucket is a capacity (tokens, sequences, markers).  A plan is a graph lowered for a bucket: a
 * flat list of steps over one arena, immutable, to be looked at and run by any number of sessions.
 * A session is what one thread of requests has for itself: its arena, its scratch, and the few
 * plans that it uses. Weights are shared by all of them.
 *
 * A batch runs on the rows that it has, never on padding, and the bits of a sequence's result do
 * not depend on the bucket, the batch mates, their order, the threads or the machine.
 */
#ifndef RANKPLAN_PLAN_H
#define RANKPLAN_PLAN_H

#include <rankplan/graph.h>
#include <rankplan/machine.h>
#include <rankplan/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- plans ------------------------------------------------------------------------------------
 */

typedef struct rp_plan rp_plan;

typedef struct rp_bucket {
    size_t tokens, seqs, markers;
} rp_bucket;

#define RP_ISA_DEFAULT UINT32_MAX /* whatever rp_isa_default() says */

typedef struct rp_plan_options {
    size_t struct_size; /* sizeof(rp_plan_options) */
    uint32_t isa;       /* mask of what may be used; default RP_ISA_DEFAULT */
    /* Every activation and residual as a step of its own, and no two steps run together: slower,
     * same bits. */
    bool no_fuse;
    bool no_prune; /* also the rows of tokens that nothing reads: slower, same bits */
    /* Converts weights in parallel, borrowed for the call; NULL: the caller alone. */
    rp_pool *pool;
    /* Rows that a memory has at most, if fewer than its op says: scratch is for so many, and more
     * are RP_ERR_LIMIT.  0 (default): as the ops say. */
    size_t max_memory;
} rp_plan_options;

RP_API void rp_plan_options_init(rp_plan_options *options);

/* Lowers a graph for a bucket.  Checks every shape and weight; the first thing that does not match
 * is named with its op ("op 7 (layers.0.attn.qkv): gemm weight layers.0.attn.qkv.weight is [384,
 * 384], expected [1152, 384]").  Converts the weights that no plan used before.  The graph may go
 * afterwards; the weights must stay.  options may be NULL.  Allocates.  Plans of one rp_weights may
 * be compiled from several threads. RP_ERR_SHAPE, RP_ERR_INVALID, RP_ERR_MISSING (no outputs),
 * RP_ERR_LIMIT (sizes beyond 2^48 bytes, with the bytes needed), RP_ERR_NOMEM, and what reading
 * weights fails with. */
RP_API RP_CHECKED rp_status rp_plan_compile(const rp_graph *graph, rp_weights *weights,
                                            const rp_bucket *bucket, const rp_plan_options *options,
                                            rp_plan **out, rp_error *err);

/* NULL does nothing. */
RP_API void rp_plan_destroy(rp_plan *plan);

/* Memory that running needs, known before any of it is taken. */
typedef struct rp_plan_sizes {
    uint64_t arena_bytes;              /* once per session */
    uint64_t scratch_bytes_per_thread; /* once per session and thread of its pool */
    uint64_t plan_bytes;               /* the plan itself */
} rp_plan_sizes;

RP_API void rp_plan_get_sizes(const rp_plan *plan, rp_plan_sizes *out);

/* The same sizes without converting a weight or allocating an arena: a dry run with all the checks
 * of rp_plan_compile. */
RP_API RP_CHECKED rp_status rp_plan_measure(const rp_graph *graph, const rp_weights *weights,
                                            const rp_bucket *bucket, const rp_plan_options *options,
                                            rp_plan_sizes *out, rp_error *err);

/* The plan as text, a line a step: index, kind, name, arena offset, rows x width, kernel, flops and
 * bytes of a row.  Stable and diffable.  As snprintf: writes at most size bytes, returns the whole
 * length. */
RP_API size_t rp_plan_text(const rp_plan *plan, char *buffer, size_t size);

/* One step of a plan.  Strings belong to the plan. */
typedef struct rp_step_info {
    size_t index;
    const char *name;   /* of the op in the graph */
    const char *kind;   /* "gemm", "attention", "layer_norm", ... */
    const char *kernel; /* "rp_gemm_f32_6x16__avx2" */
    rp_rows rows;
    size_t width;
    /* NULL: the step has all rows of what it computes.  "first", "last", "marked": it has only
     * those of the first or the last token of each sequence, or of the tokens that markers point to
     * (its `rows` are then sequences or markers), because nothing reads the others. */
    const char *tokens;
} rp_step_info;

RP_API size_t rp_plan_n_steps(const rp_plan *plan);
/* RP_ERR_INVALID when there is no such step. */
RP_API RP_CHECKED rp_status rp_plan_step(const rp_plan *plan, size_t index, rp_step_info *out);

/* Which steps made the values that a step reads: indices in the order of the op's arguments, at
 * most `capacity` of them written.  Returns how many there are: 0 for a step that reads the batch
 * alone, and where there is no such step.  `inputs` may be NULL with capacity 0.  Any thread; does
 * not allocate. */
RP_API size_t rp_plan_step_inputs(const rp_plan *plan, size_t index, size_t *inputs,
                                  size_t capacity);

/* ---- batches ----------------------------------------------------------------------------------
 */

/* What cross attention reads: rows x memory_width (rp_cross_attention), row-major.  data may be
 * NULL when there are no rows. */
typedef struct rp_memory {
    const float *data;
    size_t rows;
} rp_memory;

/* Sequences one after the other, nothing between them.  All arrays are borrowed for the call. */
typedef struct rp_batch {
    size_t struct_size; /* sizeof(rp_batch) */
    size_t n_seqs;
    const int32_t *ids;      /* token ids of all sequences: cu[n_seqs] of them */
    const int32_t *cu;       /* n_seqs + 1 ascending: sequence s is ids[cu[s]] .. ids[cu[s+1]-1] */
    const int32_t *type_ids; /* segment of each token, or NULL for all 0 */
    const int32_t *markers;  /* positions within their own sequence, or NULL when there are none */
    const int32_t *mcu; /* n_seqs + 1: which markers belong to which sequence; NULL with markers */
    const int32_t *qtypes; /* question type of each sequence, or NULL for all 0 */
    /* n_seqs: the sequence whose tokens come before this one's own, or -1; NULL: none.  A parent
     * comes earlier in the batch and has no parent itself; it may be that of any number.  The
     * sequence then computes what it would compute as parent's tokens + own tokens, to the bit, and
     * only its own rows are there, at least one; positions count on from the parent's, markers
     * point to its own rows.  A parent without tokens changes nothing.  Graphs with attention that
     * is not causal or has a relative bias, with pooling other than RP_POOL_LAST, rope.options,
     * input or cross attention cannot take parents.  Where rows that a child sees depend on the
     * question type (a table by RP_INDEX_QTYPES or add_types, and then attention, a convolution or
     * a delta rule), the two have the same type. */
    const int32_t *parents;
    /* n_seqs: what the cross attention of each sequence reads; NULL: none, which a graph with cross
     * attention refuses.  Of sequences one after the other that name the same data and as many rows
     * the keys are packed together: once for each head, or for each share of the rows where heads
     * are fewer than workers.  A sequence's result does not depend on who else has its memory. */
    const rp_memory *memories;
    /* cu[n_seqs] rows x width of rp_graph_input(), row-major; NULL: none, which a graph with such
     * an op refuses.  ids may be NULL where no table of the graph is indexed by them (RP_INDEX_IDS,
     * RP_INDEX_POSITION_NONPAD). */
    const float *input;
} rp_batch;

RP_API void rp_batch_init(rp_batch *batch);

/* Whether batches of the graph may have parents: no row of a sequence depends on the rows after it,
 * nor on what the batch brings along, and a sequence's result is that of its last row.  Any thread;
 * does not allocate. */
RP_API bool rp_graph_is_causal(const rp_graph *graph);

/* Floating-point operations of a batch: two for each multiply-add of its products, attention,
 * convolutions and delta rules, over the rows that the plan computes of it.  The batch's cu (and
 * mcu) must be in order, and its parents such as a run takes. */
RP_API uint64_t rp_plan_flops(const rp_plan *plan, const rp_batch *batch);

/* ---- sessions ---------------------------------------------------------------------------------
 */

typedef struct rp_session rp_session;

typedef struct rp_session_options {
    size_t struct_size; /* sizeof(rp_session_options) */
    rp_pool *pool;      /* borrowed; NULL (default): the calling thread alone */
    uint32_t isa;       /* default RP_ISA_DEFAULT */
    bool no_fuse, no_prune;
    const rp_bucket *buckets; /* what plans are made for; NULL: see rp_bucket_default(). Copied. */
    size_t n_buckets;
    size_t max_plans;  /* plans kept at a time, the least recently used goes first; default 8 */
    size_t max_tokens; /* of the default buckets; default 16384 */
    bool poison; /* fill arena and scratch with NaNs before each run: slow, and shows anything that
                    reads what it should not */
    size_t max_memory; /* see rp_plan_options; default 0 */
} rp_session_options;

RP_API void rp_session_options_init(rp_session_options *options);

/* The i-th of the default buckets up to max_tokens: 16, 32, 64, ... tokens (and max_tokens itself),
 * each with as many sequences as half its tokens and as many markers as tokens.  False when there
 * is no i-th. */
RP_API bool rp_bucket_default(size_t i, size_t max_tokens, rp_bucket *out);

/* The smallest bucket of the table that holds the batch sizes (least tokens, then sequences, then
 * markers); n when none does. */
RP_API size_t rp_bucket_pick(const rp_bucket *table, size_t n, size_t tokens, size_t seqs,
                             size_t markers);

/* A session over a graph and its weights, both borrowed until the session is destroyed.  Plans are
 * compiled at the first batch that needs them, arena and scratch grow to the largest bucket used so
 * far. One thread at a time may use a session; any number of sessions may share graph, weights and
 * pool. */
RP_API RP_CHECKED rp_status rp_session_create(const rp_graph *graph, rp_weights *weights,
                                              const rp_session_options *options, rp_session **out,
                                              rp_error *err);
RP_API void rp_session_destroy(rp_session *session);

/* The memory of a session, in bytes asked of the allocator. */
typedef struct rp_session_sizes {
    size_t struct_size;     /* sizeof(rp_session_sizes), set by the caller */
    uint64_t session_bytes; /* the most that a session ever holds: the sum of the next four */
    uint64_t arena_bytes;   /* the values of a batch */
    uint64_t scratch_bytes; /* of all threads of its pool together */
    uint64_t plan_bytes;    /* of the plans kept, and what making one of them takes */
    uint64_t table_bytes;   /* ids, positions and tasks of a batch */
    uint64_t weights_bytes; /* once for all sessions: the weights in the forms that the graph uses,
                               whether they are converted yet or not */
} rp_session_sizes;

/* The most memory that a session with these options takes, whatever batches it gets (all of its
 * buckets are tried), before any of it is taken and without converting a weight.  A profile comes
 * on top of it, and threads are the pool's.  Allocates for the length of the call.  Fails as
 * rp_session_create and rp_plan_measure do. */
RP_API RP_CHECKED rp_status rp_session_measure(const rp_graph *graph, const rp_weights *weights,
                                               const rp_session_options *options,
                                               rp_session_sizes *out, rp_error *err);

/* Makes everything ready that a batch of these sizes needs (plan, arena, scratch), so that running
 * it allocates nothing. */
RP_API RP_CHECKED rp_status rp_session_reserve(rp_session *session, size_t tokens, size_t seqs,
                                               size_t markers, rp_error *err);

/* The plan that a batch of these sizes runs with (compiled if need be).  Belongs to the session;
 * valid until its next call. */
RP_API RP_CHECKED rp_status rp_session_plan(rp_session *session, size_t tokens, size_t seqs,
                                            size_t markers, const rp_plan **out, rp_error *err);

/* Runs a batch.  Allocates nothing when a batch of that bucket ran (or was reserved) before.
 * RP_ERR_INVALID (cu not ascending, an id outside its table, naming the sequence and token; a
 * parent that cannot be one, or is of another question type; no memories or input for an op that
 * needs them, a memory of NULL, markers of options that do not ascend), RP_ERR_UNSUPPORTED
 * (parents, and an op that cannot take them: named), RP_ERR_LIMIT (a memory of more rows than its
 * op takes, naming the sequence), RP_ERR_BUCKET (no bucket holds it), RP_ERR_NONFINITE (a NaN or an
 * infinity in an output, naming output and row; outputs can still be read), RP_ERR_STOPPED (by the
 * observer), RP_ERR_DEADLINE, RP_ERR_CANCELLED (see below), and what compiling fails with. */
RP_API RP_CHECKED rp_status rp_session_run(rp_session *session, const rp_batch *batch,
                                           rp_error *err);

/* An output of the last run: rows x width, row-major, in the session's arena until its next call.
 */
typedef struct rp_view {
    const float *data;
    size_t rows, width;
    rp_rows kind;
} rp_view;

/* RP_ERR_MISSING: no output of that name (the message lists them), nothing ran yet, or the last run
 * was stopped. */
RP_API RP_CHECKED rp_status rp_session_output(const rp_session *session, const char *name,
                                              rp_view *out, rp_error *err);

/* ---- precision --------------------------------------------------------------------------------
 */

typedef struct rp_quantize_options {
    size_t struct_size;     /* sizeof(rp_quantize_options) */
    rp_precision precision; /* default RP_PRECISION_INT8 */
    const char *keep; /* names of ops whose products stay in FP32: patterns with * and ?, separated
                         by commas; NULL: none */
    /* Smoothing: columns of the first operand that are large on average are made smaller and the
     * weight's larger by a factor, which costs nothing and makes both easier to round (SmoothQuant,
     * alpha 0.5: https://arxiv.org/abs/2211.10438).  How large they are is found by running
     * `batches` in FP32 (products whose weights were turned before, for another graph, stay in
     * INT8); with none, 32 sequences of random ids from a fixed seed, which graphs with input or
     * cross attention cannot be given (RP_ERR_INVALID).  Batches run one by one, each needs the
     * memory of a session of its size, and for each op with experts 4 bytes x its tokens x (the
     * op's width + experts) on top, of all these ops at once: many small batches take less. */
    const rp_batch *batches;
    size_t n_batches;
    /* Gives the factors of a weight instead (n = its columns, all positive and finite), e.g. from a
     * file; NULL (default): they are found as above.  The `up` weights of experts of an op have one
     * vector, that of the first of them. */
    rp_status (*factors)(void *context, const char *weight, size_t n, float *out, rp_error *err);
    void *factors_context;
    bool no_smoothing; /* all factors are 1, and nothing is run */
    rp_pool *pool;     /* borrowed for the call; NULL: the caller alone */
} rp_quantize_options;

RP_API void rp_quantize_options_init(rp_quantize_options *options);

/* Turns the weights of the graph's products of token rows to INT8, those of experts among them:
 * plans compiled from now on use them so.  Products of sequences and markers (heads), those that
 * choose experts, also through other ops, those kept by name, those over more than 65536 columns
 * and those whose weight is also used elsewhere stay in FP32; experts of an op all together, and so
 * they do where one of their weights was turned before, for another graph.  The FP32 form of what
 * was turned is freed, so no plan or session of these weights may exist.  options may be NULL.
 * Allocates; takes a run of the batches.  RP_ERR_INVALID (options; factors that are no factors),
 * RP_ERR_NOMEM, and what compiling and running fail with; on an error the weights are as before. */
RP_API RP_CHECKED rp_status rp_weights_quantize(rp_weights *weights, const rp_graph *graph,
                                                const rp_quantize_options *options, rp_error *err);

/* The i-th weight that is in INT8, in the order of the weights: its name, columns and smoothing
 * factors (NULL: all 1), which belong to the weights.  Of the `up` weights of an op's experts,
 * which share their factors, only the first counts.  False when there is no i-th. */
RP_API bool rp_weights_int8(const rp_weights *weights, size_t i, const char **name, size_t *n,
                            const float **factors);
/* ---- stopping ---------------------------------------------------------------------------------
 *
 * A service stops work that nobody waits for any more: at the request's deadline, or when its
 * client has gone.
 *
 *     rp_session_set_deadline(session, rp_now_ns() + 50 * 1000000);
 *     rp_session_set_cancel(session, request->cancel);
 *     status = rp_session_run(session, &batch, &err);
 *
 * This one has 50 ms from now, and any other thread may call rp_cancel_set(request->cancel).
 *
 * Both are looked at before anything runs, and then by every worker before each step of its block
 * of rows (a few milliseconds of work at most for models of MiniLM's size), never inside of one.  A
 * stopped run ends with RP_ERR_DEADLINE or RP_ERR_CANCELLED; all workers have left it by then, its
 * outputs cannot be read, and the session runs the next batch as if nothing had happened.  A run
 * whose last steps have begun already ends as if it had not been stopped.  Nothing is allocated.
 * Two waits are not cut short: for a pool that another session is using, and for a plan that is
 * being compiled (rp_session_reserve does that ahead of time).
 *
 * Without a deadline and a flag, a run pays one test per piece of work; with a flag one load of it
 * too, and with a deadline one reading of the clock.
 */

#define RP_NO_DEADLINE UINT64_MAX

/* The deadline of all later runs, on the clock of rp_now_ns(): it stays until it is set anew, and
 * while it lies in the past every run is refused with RP_ERR_DEADLINE.  RP_NO_DEADLINE (default)
 * takes it away.  To be called by the thread that uses the session. */
RP_API void rp_session_set_deadline(rp_session *session, uint64_t deadline_ns);

/* A flag that cancels the runs of the sessions that it was given to: of one, or of many. */
typedef struct rp_cancel rp_cancel;

/* A flag that is not set.  Allocates.  RP_ERR_NOMEM. */
RP_API RP_CHECKED rp_status rp_cancel_create(rp_cancel **out, rp_error *err);

/* NULL does nothing.  No session may have it any more. */
RP_API void rp_cancel_destroy(rp_cancel *cancel);

/* Sets the flag, which stays set: runs under way stop soon, later ones are refused.  Returns at
 * once, before they have stopped.  Any thread, at any time, also a signal handler. */
RP_API void rp_cancel_set(rp_cancel *cancel);

/* Takes it back, for the next use of the flag.  A run under way may or may not have seen it. */
RP_API void rp_cancel_clear(rp_cancel *cancel);

RP_API bool rp_cancel_is_set(const rp_cancel *cancel);

/* The flag of all later runs, borrowed until another one is given; NULL (default) takes it away. To
 * be called by the thread that uses the session. */
RP_API void rp_session_set_cancel(rp_session *session, const rp_cancel *cancel);

/* ---- hooks ------------------------------------------------------------------------------------
 */

/* Asked first, shown after: `want` says whether a step's result is to be shown (it costs nothing
 * else), `show` then sees it right after the step, before its memory is used again.  A status other
 * than RP_OK from show stops the run with RP_ERR_STOPPED.  Called on the thread that runs the
 * session.
 *
 * The result of a step of kind "quantize" is rows of bytes for an INT8 product, in the room of
 * `width` floats: 4 * width - 64 values q, then f32 scale and i32 zero; each stands for
 * scale * (q - zero), those past the columns of what was rounded for 0. */
typedef struct rp_observer {
    size_t struct_size; /* sizeof(rp_observer) */
    bool (*want)(void *context, const rp_step_info *step);
    rp_status (*show)(void *context, const rp_step_info *step, const rp_view *result);
    void *context;
} rp_observer;

/* Sets the observer of all later runs (copied); NULL takes it away. */
RP_API void rp_session_observe(rp_session *session, const rp_observer *observer);

/* The digest of a step: XXH3 (64 bit) of its live rows, as little-endian f32.  Of a run: XXH3 of
 * the steps' hashes in order, as little-endian u64. */
typedef struct rp_digest {
    size_t struct_size; /* sizeof(rp_digest) */
    size_t n_steps;     /* out: steps of the plan; hashes beyond capacity are not written */
    size_t capacity;    /* in: room in hashes and rows */
    uint64_t *hashes;   /* one per step */
    size_t *rows;       /* live rows of each step; may be NULL */
    uint64_t whole;
} rp_digest;

/* Runs a batch as rp_session_run does, and takes the digest of every step. */
RP_API RP_CHECKED rp_status rp_session_digest(rp_session *session, const rp_batch *batch,
                                              rp_digest *digest, rp_error *err);

/* What a step cost, added up over runs and workers.  Bytes are those that it must touch: its rows
 * in and out, and its weights once per piece of work. */
typedef struct rp_profile_step {
    uint64_t calls; /* pieces of work: blocks of rows, heads, sequences */
    uint64_t ns;    /* of all workers together */
    uint64_t flops, bytes;
} rp_profile_step;

/* One piece of work, for timelines.  Times count from the start of the profile. */
typedef struct rp_profile_event {
    uint64_t start_ns, end_ns, flops;
    uint32_t step, worker, rows;
} rp_profile_event;

typedef struct rp_profile {
    size_t struct_size;           /* sizeof(rp_profile), set by the caller */
    size_t n_steps;               /* as in any plan of the session */
    const rp_profile_step *steps; /* the arrays are the session's, until its next call */
    size_t n_workers;
    uint64_t runs;
    uint64_t wall_ns; /* of the runs, on the calling thread */
    uint64_t wait_ns; /* that workers waited for each other, of all of them together */
    const rp_profile_event *events;
    size_t n_events;
} rp_profile;

/* Starts a profile of all later runs, from zero.  max_events: how many pieces of work are kept one
 * by one (the first ones; 0: none).  The clock is read once for each piece of work.  Allocates; the
 * runs do not. */
RP_API RP_CHECKED rp_status rp_session_profile_start(rp_session *session, size_t max_events,
                                                     rp_error *err);
/* Ends it and frees what it took.  Does nothing when there is none. */
RP_API void rp_session_profile_stop(rp_session *session);

/* The profile so far.  RP_ERR_INVALID: none was started. */
RP_API RP_CHECKED rp_status rp_session_profile(const rp_session *session, rp_profile *out,
                                               rp_error *err);

#ifdef __cplusplus
}
#endif
#endif
