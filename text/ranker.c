/* Rankers: tokenise, cut into batches, run, put results back in the order of the request.
 *
 *     texts --(pool, one task a text)--> parts --(join with the query's part)--> one batch of ids
 *           --(stretches of up to max_batch_tokens)--> session --> rows of the output
 *
 * Tokenising can cost more than running a small model, so it is spread over the pool like
 * everything else.
 */
#include <rankplan/ranker.h>

#include "plan/stop.h"
#include "pool/error.h"
#include "pool/fpenv.h"
#include "pool/pool.h"
#include "text/batches.h"
#include "text/prompt.h"
#include "text/similarity.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct rp_ranker {
    const rp_model *model;
    const rp_tokenizer *tokenizer;
    rp_ranker_options options;
    rp_model_info info;
    rp_session *session;
    struct rp_prompt_ids prompt;
    bool reuse; /* of what the texts of a request begin with */
    /* The last request's tokens, kept for the next one to reuse. */
    int32_t *ids, *type_ids, *cu;
    size_t cap_tokens, cap_seqs;
};

void rp_ranker_options_init(rp_ranker_options *options)
{
    *options = (rp_ranker_options){
        .struct_size = sizeof *options, .isa = RP_ISA_DEFAULT, .max_batch_tokens = 4096};
}

static rp_status check_options(const rp_ranker *r, rp_error *err)
{
    const rp_ranker_options *o = &r->options;
    if (o->struct_size != sizeof *o)
        return rp_fail(err, RP_ERR_INVALID, "rp_ranker_options has struct_size %zu, expected %zu",
                       o->struct_size, sizeof *o);
    if (r->info.task == RP_TASK_DECIDE)
        return rp_fail(err, RP_ERR_UNSUPPORTED,
                       "a decision scorer ranks no texts: it scores the options of a question");
    if (o->max_length > r->info.max_length)
        return rp_fail(err, RP_ERR_INVALID, "max_length %zu is above the model's %zu (%s)",
                       o->max_length, r->info.max_length, r->info.max_length_source);
    if (o->max_batch_tokens == 0)
        return rp_fail(err, RP_ERR_INVALID, "max_batch_tokens 0 leaves no room for any text");
    if (rp_tokenizer_id_limit(r->tokenizer) > r->info.vocab_size)
        return rp_fail(err, RP_ERR_SHAPE,
                       "the tokenizer has ids up to %zu, and the model's table has %zu rows",
                       rp_tokenizer_id_limit(r->tokenizer) - 1, r->info.vocab_size);
    return RP_OK;
}

static rp_status make_session(rp_ranker *r, rp_error *err)
{
    rp_session_options o;
    rp_session_options_init(&o);
    o.pool = r->options.pool;
    o.isa = r->options.isa;
    o.max_tokens = r->options.max_batch_tokens > r->options.max_length ? r->options.max_batch_tokens
                                                                       : r->options.max_length;
    return rp_session_create(rp_model_graph(r->model), rp_model_weights(r->model), &o, &r->session,
                             err);
}

rp_status rp_ranker_create(const rp_model *model, const rp_tokenizer *tokenizer,
                           const rp_ranker_options *options, rp_ranker **out, rp_error *err)
{
    rp_ranker *r = calloc(1, sizeof *r);
    if (!r)
        return rp_fail(err, RP_ERR_NOMEM, "no memory for a ranker");
    r->model = model;
    r->tokenizer = tokenizer;
    r->info.struct_size = sizeof r->info;
    rp_model_get_info(model, &r->info);
    rp_ranker_options_init(&r->options);
    if (options)
        r->options = *options;
    rp_status status = check_options(r, err);
    if (r->options.max_length == 0)
        r->options.max_length = r->info.max_length;
    if (status == RP_OK)
        status = rp_prompt_prepare(model, tokenizer, r->options.instruction, &r->prompt, err);
    r->reuse = !r->options.no_prefix_reuse && rp_graph_is_causal(rp_model_graph(model));
    if (status == RP_OK)
        status = make_session(r, err);
    if (status != RP_OK) {
        rp_ranker_destroy(r);
        return status;
    }
    *out = r;
    return RP_OK;
}

void rp_ranker_destroy(rp_ranker *r)
{
    if (!r)
        return;
    rp_session_destroy(r->session);
    rp_prompt_free(&r->prompt);
    free(r->ids);
    free(r->type_ids);
    free(r->cu);
    free(r);
}

rp_session *rp_ranker_session(rp_ranker *r)
{
    return r->session;
}

size_t rp_ranker_max_length(const rp_ranker *r)
{
    return r->options.max_length;
}

/* ---- tokenising --------------------------------------------------------------------------------
 */

struct tokenizing {
    rp_ranker *ranker;
    rp_encode_options options;
    rp_text_ref prompt; /* before each text; "" for none */
    rp_text_part *query;
    char *head; /* memory of the prompt, when it was made here */
    const rp_text_ref *texts;
    rp_encoding *encodings;
    const struct rp_stop *stop;
    atomic_int stopped;   /* an rp_status: why the rest was left */
    pthread_mutex_t lock; /* guards first and first_text */
    rp_error first;
    size_t first_text;
};

/* The text with its prompt before it; the text itself when there is none. */
static rp_status with_prompt(rp_text_ref prompt, rp_text_ref text, char **made, rp_text_ref *out,
                             rp_error *err)
{
    const size_t n = prompt.length;
    *made = NULL;
    *out = text;
    if (n == 0)
        return RP_OK;
    if (text.length > RP_TEXT_MAX_BYTES)
        return rp_fail(err, RP_ERR_LIMIT, "a text of %zu bytes, the limit is %zu", text.length,
                       RP_TEXT_MAX_BYTES);
    char *p = malloc(n + text.length + 1);
    if (!p)
        return rp_fail(err, RP_ERR_NOMEM, "no memory for a text of %zu bytes", n + text.length);
    memcpy(p, prompt.data, n);
    if (text.length)
        memcpy(p + n, text.data, text.length);
    *made = p;
    *out = (rp_text_ref){.data = p, .length = n + text.length};
    return RP_OK;
}

/* A text that fails behind a prompt is to be told of by its own bytes. */
static rp_status tell_of_text(const struct tokenizing *job, size_t i, rp_status status,
                              rp_error *err)
{
    rp_encoding alone = {0};
    rp_error own = {RP_OK, ""};
    const rp_text_ref text = job->texts[i];
    if (job->prompt.length > 0 &&
        rp_tokenizer_encode(job->ranker->tokenizer, text.data, text.length, &job->options, &alone,
                            &own) != RP_OK) {
        *err = own;
        status = own.status;
    }
    rp_encoding_free(&alone);
    return status;
}

static rp_status tokenize_one(const struct tokenizing *job, size_t i, rp_error *err)
{
    const rp_tokenizer *tokenizer = job->ranker->tokenizer;
    char *made;
    rp_text_ref text;
    RP_TRY(with_prompt(job->prompt, job->texts[i], &made, &text, err));
    rp_status status;
    if (job->query) {
        rp_text_part *part = NULL;
        status = rp_tokenizer_part(tokenizer, text.data, text.length, &job->options, &part, err);
        if (status == RP_OK)
            status = rp_tokenizer_join(tokenizer, job->query, part, &job->options,
                                       &job->encodings[i], err);
        rp_text_part_free(part);
    } else {
        status = rp_tokenizer_encode(tokenizer, text.data, text.length, &job->options,
                                     &job->encodings[i], err);
    }
    free(made);
    return status == RP_OK ? RP_OK : tell_of_text(job, i, status, err);
}

/* Of several texts that fail, the first one of the request is reported whatever the threads did. */
static void tokenize_task(void *arg, size_t i, int worker)
{
    (void)worker;
    struct tokenizing *job = arg;
    rp_error err = {RP_OK, ""};
    const rp_status stop = rp_stop_check(job->stop);
    if (stop != RP_OK)
        atomic_store_explicit(&job->stopped, (int)stop, memory_order_relaxed);
    if (atomic_load_explicit(&job->stopped, memory_order_relaxed) != RP_OK)
        return;
    if (tokenize_one(job, i, &err) == RP_OK)
        return;
    pthread_mutex_lock(&job->lock);
    if (job->first.status == RP_OK || i < job->first_text) {
        job->first = err;
        job->first_text = i;
    }
    pthread_mutex_unlock(&job->lock);
}

static rp_status tokenize_all(struct tokenizing *job, size_t n, rp_error *err)
{
    if (pthread_mutex_init(&job->lock, NULL) != 0)
        return rp_fail(err, RP_ERR_SYSTEM, "a lock could not be made");
    const rp_status status = rp_pool_for(job->ranker->options.pool, n, tokenize_task, job, err);
    pthread_mutex_destroy(&job->lock);
    RP_TRY(status);
    const rp_status stop = (rp_status)atomic_load_explicit(&job->stopped, memory_order_relaxed);
    if (stop != RP_OK)
        return rp_fail(err, stop, "%s, while the texts were tokenised", rp_stop_reason(stop));
    if (job->first.status != RP_OK)
        return rp_fail(err, job->first.status, "text %zu: %s", job->first_text, job->first.message);
    return RP_OK;
}

static rp_status grow(int32_t **array, size_t n, rp_error *err)
{
    int32_t *p = realloc(*array, (n ? n : 1) * sizeof **array);
    if (!p)
        return rp_fail(err, RP_ERR_NOMEM, "no memory for %zu tokens", n);
    *array = p;
    return RP_OK;
}

static rp_status make_room(rp_ranker *r, size_t tokens, size_t seqs, rp_error *err)
{
    if (tokens > INT32_MAX || seqs >= INT32_MAX)
        return rp_fail(err, RP_ERR_LIMIT, "%zu texts with %zu tokens in one request", seqs, tokens);
    if (tokens > r->cap_tokens) {
        RP_TRY(grow(&r->ids, tokens, err));
        RP_TRY(grow(&r->type_ids, tokens, err));
        r->cap_tokens = tokens;
    }
    if (seqs + 1 > r->cap_seqs) {
        RP_TRY(grow(&r->cu, seqs + 1, err));
        r->cap_seqs = seqs + 1;
    }
    return RP_OK;
}

static int32_t put(rp_ranker *r, int32_t at, const rp_encoding *e)
{
    if (e->n) {
        memcpy(r->ids + at, e->ids, e->n * sizeof *r->ids);
        memcpy(r->type_ids + at, e->type_ids, e->n * sizeof *r->type_ids);
    }
    return at + (int32_t)e->n;
}

/* The encodings, one after the other, as a batch in the ranker's arrays; each between the two ends
 * of a prompt. */
static rp_status gather(rp_ranker *r, const rp_encoding *encodings, size_t n,
                        const struct rp_prompt_ids *prompt, rp_batch *out, rp_text_info *infos,
                        rp_error *err)
{
    const size_t n_around = rp_prompt_n_around(prompt);
    size_t tokens = 0;
    for (size_t i = 0; i < n; i++)
        tokens += n_around + encodings[i].n;
    RP_TRY(make_room(r, tokens, n, err));
    r->cu[0] = 0;
    for (size_t i = 0; i < n; i++) {
        const rp_encoding *e = &encodings[i];
        r->cu[i + 1] = put(r, put(r, put(r, r->cu[i], &prompt->before), e), &prompt->after);
        if (infos)
            infos[i] = (rp_text_info){.tokens = n_around + e->n,
                                      .full_tokens = n_around + e->full_n,
                                      .truncated = e->truncated};
    }
    rp_batch_init(out);
    out->n_seqs = n;
    out->ids = r->ids;
    out->cu = r->cu;
    out->type_ids = r->info.n_type_ids > 1 ? r->type_ids : NULL;
    return RP_OK;
}

/* A generative reranker's texts begin with the query.  What is too long for the model is taken from
 * the document, which stands last; a query that leaves nothing of it is refused. */
static rp_status prompt_query(struct tokenizing *job, rp_text_ref query, rp_error *err)
{
    const rp_ranker *r = job->ranker;
    rp_text_part *part;
    RP_TRY(rp_prompt_head(&r->prompt, query, &job->head, &job->prompt, err));
    RP_TRY(rp_tokenizer_part(r->tokenizer, job->prompt.data, job->prompt.length, &job->options,
                             &part, err));
    const size_t n_around = rp_prompt_n_around(&r->prompt);
    const size_t n =
        n_around + rp_text_part_length(part) + rp_tokenizer_n_special(r->tokenizer, false);
    rp_text_part_free(part);
    if (n >= job->options.max_length)
        return rp_fail(err, RP_ERR_LIMIT,
                       "with the model's prompt it has %zu tokens, and texts are cut to %zu: "
                       "nothing is left for a document",
                       n, job->options.max_length);
    job->options.max_length -= n_around;
    return RP_OK;
}

static rp_status take_query(struct tokenizing *job, rp_text_ref query, rp_error *err)
{
    const rp_ranker *r = job->ranker;
    rp_status status =
        rp_tokenizer_part(r->tokenizer, query.data, query.length, &job->options, &job->query, err);
    if (status == RP_OK && r->prompt.form) {
        rp_text_part_free(job->query); /* it was looked at for the message alone */
        job->query = NULL;
        status = prompt_query(job, query, err);
    }
    return status == RP_OK ? RP_OK : rp_fail_within(err, status, "the query");
}

static rp_status tokenize_texts(struct tokenizing *job, size_t n, bool in_prompt, rp_batch *out,
                                rp_text_info *infos, rp_error *err)
{
    static const struct rp_prompt_ids no_prompt;
    rp_ranker *r = job->ranker;
    job->encodings = calloc(n ? n : 1, sizeof *job->encodings);
    if (!job->encodings)
        return rp_fail(err, RP_ERR_NOMEM, "no memory for %zu texts", n);
    rp_status status = tokenize_all(job, n, err);
    if (status == RP_OK)
        status = gather(r, job->encodings, n, in_prompt ? &r->prompt : &no_prompt, out, infos, err);
    for (size_t i = 0; i < n; i++)
        rp_encoding_free(&job->encodings[i]);
    free(job->encodings);
    return status;
}

static rp_status tokenize(rp_ranker *r, const char *prompt, const rp_text_ref *query, size_t n,
                          const rp_text_ref *texts, rp_batch *out, rp_text_info *infos,
                          rp_error *err)
{
    struct tokenizing job = {.ranker = r, .texts = texts, .stop = rp_session_stop(r->session)};
    rp_status status = RP_OK;
    RP_TRY(rp_stop_refuse(job.stop, err));
    rp_encode_options_init(&job.options);
    job.options.max_length = r->options.max_length;
    job.options.special_as_text = r->options.special_as_text;
    if (prompt)
        job.prompt = (rp_text_ref){.data = prompt, .length = strlen(prompt)};
    if (query)
        status = take_query(&job, *query, err);
    if (status == RP_OK)
        status = tokenize_texts(&job, n, query && r->prompt.form, out, infos, err);
    rp_text_part_free(job.query);
    free(job.head);
    return status;
}

/* Before a text that stands alone.  A generative reranker's prompt is for pairs. */
static const char *own_prompt(const rp_ranker *r)
{
    return r->prompt.form ? NULL : rp_model_prompt(r->model, NULL);
}

rp_status rp_ranker_tokenize(rp_ranker *r, const rp_text_ref *query, size_t n,
                             const rp_text_ref *texts, rp_batch *out, rp_text_info *infos,
                             rp_error *err)
{
    return tokenize(r, query ? NULL : own_prompt(r), query, n, texts, out, infos, err);
}

/* ---- running -----------------------------------------------------------------------------------
 */

static rp_status run_all(rp_ranker *r, const rp_batch *all, const char *output, size_t width,
                         float *out, rp_error *err)
{
    const struct rp_batches how = {.session = r->session,
                                   .max_tokens = r->options.max_batch_tokens,
                                   .reuse = r->reuse,
                                   .progress = r->options.progress,
                                   .progress_context = r->options.progress_context};
    return rp_batches_run(&how, all, output, width, out, err);
}

rp_status rp_ranker_embed(rp_ranker *r, const char *prompt, size_t n, const rp_text_ref *texts,
                          float *out, rp_text_info *infos, rp_error *err)
{
    rp_batch all;
    if (r->info.task != RP_TASK_EMBED)
        return rp_fail(err, RP_ERR_UNSUPPORTED, "%s is a classifier and has no embeddings",
                       r->info.architecture);
    if (n == 0)
        return RP_OK;
    RP_TRY(tokenize(r, prompt ? prompt : rp_model_prompt(r->model, NULL), NULL, n, texts, &all,
                    infos, err));
    return run_all(r, &all, "embedding", r->info.dimension, out, err);
}

/* sentence-transformers' names for the side of a retrieval, the first that the model has. */
static const char *prompt_of(const rp_model *model, const char *const *names)
{
    for (; *names; names++)
        if (rp_model_prompt(model, *names))
            return rp_model_prompt(model, *names);
    return rp_model_prompt(model, NULL);
}

/* The scores of n vectors that lie behind the one that they are compared with.  Finite vectors may
 * be too far apart, or too long, for their similarity to be a number. */
static rp_status compare_with(rp_similarity kind, const float *vectors, size_t n, size_t dim,
                              float *scores, rp_error *err)
{
    size_t bad = n;
    const rp_fpenv callers = rp_fpenv_enter();
    for (size_t i = 0; i < n; i++) {
        scores[i] = rp_similarity_of(kind, vectors, vectors + (i + 1) * dim, dim);
        if (bad == n && !isfinite(scores[i]))
            bad = i;
    }
    rp_fpenv_leave(callers);
    if (bad == n)
        return RP_OK;
    return rp_fail(err, RP_ERR_NONFINITE,
                   "document %zu: its similarity to the query is no finite number", bad);
}

static rp_status score_by_similarity(rp_ranker *r, rp_text_ref query, size_t n,
                                     const rp_text_ref *documents, float *scores,
                                     rp_text_info *infos, rp_error *err)
{
    static const char *const query_names[] = {"query", NULL};
    static const char *const document_names[] = {"document", "passage", "corpus", NULL};
    const size_t dim = r->info.dimension;
    float *vectors = calloc(n + 1, dim * sizeof *vectors);
    if (!vectors)
        return rp_fail(err, RP_ERR_NOMEM, "no memory for %zu vectors of %zu", n + 1, dim);
    rp_status status =
        rp_ranker_embed(r, prompt_of(r->model, query_names), 1, &query, vectors, NULL, err);
    if (status != RP_OK)
        status = rp_fail_within(err, status, "the query");
    if (status == RP_OK)
        status = rp_ranker_embed(r, prompt_of(r->model, document_names), n, documents,
                                 vectors + dim, infos, err);
    if (status == RP_OK)
        status = compare_with(r->info.similarity, vectors, n, dim, scores, err);
    free(vectors);
    return status;
}

rp_status rp_ranker_score(rp_ranker *r, rp_text_ref query, size_t n, const rp_text_ref *documents,
                          float *scores, rp_text_info *infos, rp_error *err)
{
    rp_batch all;
    if (n == 0)
        return RP_OK;
    if (r->info.task == RP_TASK_EMBED)
        return score_by_similarity(r, query, n, documents, scores, infos, err);
    if (r->info.n_labels != 1)
        return rp_fail(err, RP_ERR_UNSUPPORTED,
                       "%s has %zu labels; a ranking needs a model with one score",
                       r->info.architecture, r->info.n_labels);
    RP_TRY(tokenize(r, NULL, &query, n, documents, &all, infos, err));
    return run_all(r, &all, "scores", 1, scores, err);
}

/* Whether score a stands before score b: higher first, and of equals the earlier. */
static bool before(const float *scores, size_t a, size_t b)
{
    return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
}

/* Heap sort: needs no memory, and with the index as tie-break its result is the stable one. */
static void sift_down(const float *scores, size_t *heap, size_t root, size_t n)
{
    for (size_t child; (child = 2 * root + 1) < n; root = child) {
        if (child + 1 < n && before(scores, heap[child], heap[child + 1]))
            child++;
        if (!before(scores, heap[root], heap[child]))
            return;
        const size_t t = heap[root];
        heap[root] = heap[child];
        heap[child] = t;
    }
}

void rp_rank(const float *scores, size_t n, size_t *order)
{
    const rp_fpenv callers = rp_fpenv_enter(); /* two denormal scores are not equal */
    for (size_t i = 0; i < n; i++)
        order[i] = i;
    for (size_t i = n / 2; i-- > 0;)
        sift_down(scores, order, i, n);
    for (size_t end = n; end > 1; end--) {
        const size_t last = order[0];
        order[0] = order[end - 1];
        order[end - 1] = last;
        sift_down(scores, order, 0, end - 1);
    }
    rp_fpenv_leave(callers);
}
