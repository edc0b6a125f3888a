/* A ranking service inside one process: clients send a query with some documents, workers answer
 * with scores.  docs/service.md explains the choices; this is the program.
 *
 *     client --tokenise--> queue (bounded) --token budget--> worker: its own session --> client
 *     client /                              \--------------> worker: its own session
 *                                                 one model, shared by all
 *
 *     ranking_service [MODEL] [--clients 64] [--requests 2000] [--workers 2] [--latency]
 *                     [--budget 512] [--queue 256] [--deadline 10000] [--growth 8]
 *
 * The clients are threads here, and their requests are made up from a fixed seed.  It serves them
 * by one worker and then by several (--latency: by one worker with a pool of several threads),
 * compares every score to the one that the pair has when it is run alone, and prints speed,
 * latencies and memory.  Exit code 1: a score differs, or memory grew by more than --growth MiB
 * once warm. Ctrl-C stops accepting requests and answers those that were accepted; a second one
 * drops these.
 */
#define _POSIX_C_SOURCE 200809L
#include <rankplan/rankplan.h>

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define QUERIES   8
#define DOCUMENTS 24
#define MOST_DOCS 8 /* of one request */

struct options {
    const char *model;
    long clients, requests, workers, latency, budget, queue, deadline, growth;
};

/* One pair on its way: a part of a request, and of a batch with those of other requests. */
struct item {
    const int32_t *ids, *types;
    size_t n;
    float score;
    struct request *request;
};

struct request {
    pthread_mutex_t lock; /* guards the next two */
    size_t open;          /* items without an answer */
    rp_status status;     /* the first failure of an item */
    pthread_cond_t done;
    uint64_t deadline_ns;
    struct item items[MOST_DOCS];
    rp_encoding encodings[MOST_DOCS]; /* kept from request to request */
};

struct queue {
    struct item **slots;
    size_t capacity, first, n;
    bool closed;
    pthread_mutex_t lock;
    pthread_cond_t room, work;
};

struct service {
    struct options o;
    rp_model *model;
    rp_tokenizer *tokenizer; /* NULL in a build without: pairs are random ids then */
    size_t max_length, max_tokens;
    rp_text_part *documents[DOCUMENTS]; /* known to the service, so tokenised once */
    int32_t *random_ids, *zeros;
    float alone[QUERIES][DOCUMENTS]; /* the scores of each pair, run alone */
    struct queue queue;
    atomic_size_t next_request, answered, texts, late, refused, wrong;
    uint64_t *latencies;
    double cpu_seconds; /* of the whole process, while it served */
};

/* What a worker has for itself. */
struct worker {
    struct service *service;
    rp_session *session;
    struct item **items;
    int32_t *ids, *types, *cu;
};

static atomic_bool closing;
static rp_cancel *drop; /* given to every session; ends what is running */

static void on_interrupt(int number)
{
    (void)number;
    if (atomic_exchange(&closing, true))
        /* One store of an atomic without a lock, which tidy cannot see. */
        rp_cancel_set(drop); /* NOLINT(bugprone-signal-handler) */
}

/* ---- small things ---- */

static void must(rp_status status, const rp_error *err)
{
    if (status == RP_OK)
        return;
    fprintf(stderr, "ranking_service: %s: %s\n", rp_status_name(status), err->message);
    exit(1);
}

static void *take(size_t n, size_t size)
{
    void *p = calloc(n, size);
    if (p)
        return p;
    fprintf(stderr, "ranking_service: no memory for %zu x %zu bytes\n", n, size);
    exit(1);
}

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* A condition that waits by the clock of rp_now_ns(). */
static void make_condition(pthread_cond_t *condition)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

static double resident_mib(void)
{
    char line[128] = "";
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || !fgets(line, sizeof line, file))
        line[0] = 0;
    if (file)
        fclose(file);
    const char *pages = strchr(line, ' '); /* the second number */
    return pages ? (double)strtoul(pages, NULL, 10) * (double)sysconf(_SC_PAGESIZE) / 1048576 : 0;
}

/* ---- the queue ---- */

/* Waits for room, but not longer than the item's request is worth: a full queue slows clients down,
 * and never grows. */
static rp_status queue_push(struct queue *q, struct item *item)
{
    const uint64_t deadline = item->request->deadline_ns;
    const struct timespec until = {.tv_sec = (time_t)(deadline / 1000000000),
                                   .tv_nsec = (long)(deadline % 1000000000)};
    pthread_mutex_lock(&q->lock);
    int timed_out = 0;
    while (q->n == q->capacity && !q->closed && !timed_out)
        timed_out = pthread_cond_timedwait(&q->room, &q->lock, &until) != 0;
    const bool full = q->n == q->capacity, closed = q->closed;
    if (!full && !closed) {
        q->slots[(q->first + q->n++) % q->capacity] = item;
        pthread_cond_signal(&q->work);
    }
    pthread_mutex_unlock(&q->lock);
    return closed ? RP_ERR_CANCELLED : full ? RP_ERR_DEADLINE : RP_OK;
}

/* The next batch, in the order of arrival: as many items as the budget of tokens holds.  The first
 * is taken whatever its length, so that no item can block the queue.  Rows are never padded, so
 * there is nothing to win by sorting lengths.  0: closed, and all was answered. */
static size_t queue_take(struct queue *q, size_t budget, struct item **items)
{
    size_t n = 0, tokens = 0;
    pthread_mutex_lock(&q->lock);
    while (q->n == 0 && !q->closed)
        pthread_cond_wait(&q->work, &q->lock);
    while (q->n > 0) {
        struct item *item = q->slots[q->first];
        if (n > 0 && (tokens + item->n > budget || n >= budget / 2))
            break;
        items[n++] = item;
        tokens += item->n;
        q->first = (q->first + 1) % q->capacity;
        q->n--;
    }
    pthread_cond_broadcast(&q->room);
    pthread_mutex_unlock(&q->lock);
    return n;
}

/* From now on pushing fails; what is in the queue is still taken. */
static void queue_close(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->closed = true;
    pthread_cond_broadcast(&q->work);
    pthread_cond_broadcast(&q->room);
    pthread_mutex_unlock(&q->lock);
}

/* ---- workers ---- */

static void answer(struct item *item, rp_status status)
{
    struct request *r = item->request;
    pthread_mutex_lock(&r->lock);
    if (r->status == RP_OK)
        r->status = status;
    if (--r->open == 0)
        pthread_cond_signal(&r->done);
    pthread_mutex_unlock(&r->lock);
}

/* Answers the items that nobody waits for any more; how many are left. */
static size_t drop_late(struct item **items, size_t n)
{
    const uint64_t now = rp_now_ns();
    size_t left = 0;
    for (size_t i = 0; i < n; i++) {
        if (items[i]->request->deadline_ns > now)
            items[left++] = items[i];
        else
            answer(items[i], RP_ERR_DEADLINE);
    }
    return left;
}

/* Lays the items one after the other.  Returns the last of their deadlines: the batch is worth
 * running as long as one of them is. */
static uint64_t fill_batch(struct worker *w, size_t n, rp_batch *batch)
{
    uint64_t last = 0;
    rp_batch_init(batch);
    batch->n_seqs = n;
    batch->ids = w->ids;
    batch->type_ids = w->types;
    batch->cu = w->cu;
    for (size_t i = 0; i < n; i++) {
        const struct item *item = w->items[i];
        memcpy(w->ids + w->cu[i], item->ids, item->n * sizeof *item->ids);
        memcpy(w->types + w->cu[i], item->types, item->n * sizeof *item->types);
        w->cu[i + 1] = w->cu[i] + (int32_t)item->n;
        last = item->request->deadline_ns > last ? item->request->deadline_ns : last;
    }
    return last;
}

static void run_batch(struct worker *w, size_t n)
{
    rp_batch batch;
    rp_view scores;
    rp_session_set_deadline(w->session, fill_batch(w, n, &batch));
    rp_status status = rp_session_run(w->session, &batch, NULL);
    /* A score that is no number is the failure of its own item, not of those beside it. */
    if (status == RP_ERR_NONFINITE)
        status = RP_OK;
    if (status == RP_OK)
        status = rp_session_output(w->session, "scores", &scores, NULL);
    for (size_t i = 0; i < n; i++) {
        if (status == RP_OK)
            w->items[i]->score = scores.data[i];
        const bool finite = status != RP_OK || isfinite(scores.data[i]);
        answer(w->items[i], finite ? status : RP_ERR_NONFINITE);
    }
}

static void *work(void *arg)
{
    struct worker *w = arg;
    struct service *s = w->service;
    size_t n;
    while ((n = queue_take(&s->queue, (size_t)s->o.budget, w->items)) > 0) {
        n = drop_late(w->items, n);
        if (n > 0)
            run_batch(w, n);
    }
    return NULL;
}

static void session_options(const struct service *s, rp_pool *pool, rp_session_options *o)
{
    rp_session_options_init(o);
    o->pool = pool;
    o->max_tokens = s->max_tokens;
}

/* Plans, arena and scratch are made here, so that serving allocates nothing. */
static void make_worker(struct service *s, rp_pool *pool, struct worker *w)
{
    rp_session_options o;
    rp_bucket bucket;
    rp_error err;
    session_options(s, pool, &o);
    *w = (struct worker){.service = s};
    must(rp_session_create(rp_model_graph(s->model), rp_model_weights(s->model), &o, &w->session,
                           &err),
         &err);
    for (size_t i = 0; rp_bucket_default(i, s->max_tokens, &bucket); i++)
        must(rp_session_reserve(w->session, bucket.tokens, bucket.seqs, 0, &err), &err);
    rp_session_set_cancel(w->session, drop);
    w->items = take(s->max_tokens, sizeof *w->items);
    w->ids = take(s->max_tokens, sizeof *w->ids);
    w->types = take(s->max_tokens, sizeof *w->types);
    w->cu = take(s->max_tokens + 1, sizeof *w->cu);
}

static void free_worker(struct worker *w)
{
    rp_session_destroy(w->session);
    free(w->items);
    free(w->ids);
    free(w->types);
    free(w->cu);
}

/* ---- texts ---- */

/* A text of random words: most are short, some are longer than the model reads. */
static size_t make_text(uint64_t seed, size_t most_words, char *text, size_t size)
{
    static const char *const words[] = {
        "server", "a",     "library", "for",   "fonts",   "the",     "audio", "editor",
        "of",     "fast",  "files",   "and",   "network", "package", "tool",  "compress",
        "web",    "image", "viewer",  "small", "desktop", "with",    "time",  "documentation"};
    const uint64_t span = next_random(&seed) % most_words + 1;
    const size_t n = 1 + (size_t)(next_random(&seed) % span);
    size_t used = 0;
    for (size_t i = 0; i < n; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", i ? " " : "",
                                 words[next_random(&seed) % (sizeof words / sizeof *words)]);
    return used;
}

static void encode_options(const struct service *s, rp_encode_options *o)
{
    rp_encode_options_init(o);
    o->max_length = s->max_length;
}

/* The query as the client sent it. */
static rp_text_part *tokenize_query(const struct service *s, size_t query)
{
    char text[4096];
    rp_text_part *part = NULL;
    rp_error err;
    const size_t n = make_text(1000 + query, 6, text, sizeof text);
    if (s->tokenizer)
        must(rp_tokenizer_part(s->tokenizer, text, n, NULL, &part, &err), &err);
    return part;
}

/* The ids of a pair.  Without a tokenizer they are some of the random ones. */
static void fill_item(const struct service *s, const rp_text_part *query_part, size_t query,
                      size_t document, rp_encoding *encoding, struct item *item)
{
    if (s->tokenizer) {
        rp_encode_options o;
        rp_error err;
        encode_options(s, &o);
        must(
            rp_tokenizer_join(s->tokenizer, query_part, s->documents[document], &o, encoding, &err),
            &err);
        *item = (struct item){.ids = encoding->ids, .types = encoding->type_ids, .n = encoding->n};
        return;
    }
    uint64_t seed = query * DOCUMENTS + document;
    const size_t most = s->max_length < 64 ? s->max_length : 64;
    const size_t n = 1 + (size_t)(next_random(&seed) % most);
    *item = (struct item){
        .ids = s->random_ids + query * DOCUMENTS + document, .types = s->zeros, .n = n};
}

static void make_documents(struct service *s, size_t vocabulary)
{
    uint64_t seed = 1;
    char text[4096];
    rp_error err;
    s->zeros = take(s->max_length, sizeof *s->zeros);
    s->random_ids = take(s->max_length + QUERIES * DOCUMENTS, sizeof *s->random_ids);
    for (size_t i = 0; i < s->max_length + QUERIES * DOCUMENTS; i++)
        s->random_ids[i] = (int32_t)(next_random(&seed) % vocabulary);
    for (size_t d = 0; s->tokenizer && d < DOCUMENTS; d++) {
        const size_t n = make_text(d, 160, text, sizeof text);
        must(rp_tokenizer_part(s->tokenizer, text, n, NULL, &s->documents[d], &err), &err);
    }
}

/* What every answer is compared to: each pair alone, one after the other. */
static void score_alone(struct service *s)
{
    struct worker w;
    make_worker(s, NULL, &w);
    for (size_t q = 0; q < QUERIES; q++) {
        rp_text_part *part = tokenize_query(s, q);
        for (size_t d = 0; d < DOCUMENTS; d++) {
            struct request r = {.deadline_ns = RP_NO_DEADLINE};
            struct item item;
            rp_encoding encoding = {0};
            rp_batch batch;
            rp_view scores;
            rp_error err;
            fill_item(s, part, q, d, &encoding, &item);
            item.request = &r;
            w.items[0] = &item;
            rp_session_set_deadline(w.session, fill_batch(&w, 1, &batch));
            must(rp_session_run(w.session, &batch, &err), &err);
            must(rp_session_output(w.session, "scores", &scores, &err), &err);
            s->alone[q][d] = scores.data[0];
            rp_encoding_free(&encoding);
        }
        rp_text_part_free(part);
    }
    free_worker(&w);
}

/* ---- clients ---- */

/* Sends one request and waits for its answer.  The deadline counts from now, tokenising included.
 */
static rp_status send_request(struct service *s, struct request *r, size_t query,
                              const size_t *documents, size_t n)
{
    r->deadline_ns = rp_now_ns() + (uint64_t)s->o.deadline * 1000000;
    r->open = n;
    r->status = RP_OK;
    rp_text_part *part = tokenize_query(s, query);
    for (size_t i = 0; i < n; i++) {
        fill_item(s, part, query, documents[i], &r->encodings[i], &r->items[i]);
        r->items[i].request = r;
    }
    rp_text_part_free(part);
    for (size_t i = 0; i < n; i++) {
        const rp_status status = queue_push(&s->queue, &r->items[i]);
        if (status != RP_OK)
            answer(&r->items[i], status);
    }
    /* Even a request that has failed has items under way, until the last one is answered. */
    pthread_mutex_lock(&r->lock);
    while (r->open > 0)
        pthread_cond_wait(&r->done, &r->lock);
    const rp_status status = r->status;
    pthread_mutex_unlock(&r->lock);
    return status;
}

static void check_answer(struct service *s, const struct request *r, size_t query,
                         const size_t *documents, size_t n)
{
    for (size_t i = 0; i < n; i++)
        s->wrong += memcmp(&r->items[i].score, &s->alone[query][documents[i]], sizeof(float)) != 0;
    s->texts += n;
}

static void *client(void *arg)
{
    struct service *s = arg;
    struct request r = {.open = 0};
    size_t number;
    pthread_mutex_init(&r.lock, NULL);
    make_condition(&r.done);
    while (!closing && (number = s->next_request++) < (size_t)s->o.requests) {
        uint64_t seed = number;
        size_t documents[MOST_DOCS];
        const size_t query = next_random(&seed) % QUERIES;
        const size_t n = 1 + next_random(&seed) % MOST_DOCS;
        for (size_t i = 0; i < n; i++)
            documents[i] = next_random(&seed) % DOCUMENTS;
        const uint64_t start = rp_now_ns();
        const rp_status status = send_request(s, &r, query, documents, n);
        if (status == RP_OK) {
            s->latencies[s->answered++] = rp_now_ns() - start;
            check_answer(s, &r, query, documents, n);
        }
        s->late += status == RP_ERR_DEADLINE;
        s->refused += status != RP_OK && status != RP_ERR_DEADLINE;
    }
    for (size_t i = 0; i < MOST_DOCS; i++)
        rp_encoding_free(&r.encodings[i]);
    pthread_cond_destroy(&r.done);
    pthread_mutex_destroy(&r.lock);
    return NULL;
}

/* ---- serving ---- */

static void start_thread(pthread_t *thread, void *(*body)(void *), void *arg)
{
    if (pthread_create(thread, NULL, body, arg) == 0)
        return;
    fprintf(stderr, "ranking_service: a thread could not be started\n");
    exit(1);
}

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void report(struct service *s, const char *what, double texts_per_second)
{
    const size_t n = s->answered;
    qsort(s->latencies, n, sizeof *s->latencies, by_value);
    printf("%s: %.0f texts/s, %.0f per second of processor time; %zu requests answered, %zu late, "
           "%zu refused, %zu scores wrong",
           what, texts_per_second, (double)s->texts / s->cpu_seconds, n, (size_t)s->late,
           (size_t)s->refused, (size_t)s->wrong);
    if (n)
        printf("; ms p50 %.2f, p95 %.2f, p99 %.2f, max %.2f", (double)s->latencies[n / 2] * 1e-6,
               (double)s->latencies[n * 95 / 100] * 1e-6, (double)s->latencies[n * 99 / 100] * 1e-6,
               (double)s->latencies[n - 1] * 1e-6);
    printf("\n");
}

/* Serves all requests by these workers, and drains: clients end, the queue closes, workers end when
 * it is empty.  Texts per second. */
static double serve(struct service *s, struct worker *workers, size_t n_workers)
{
    pthread_t *threads = take((size_t)s->o.clients + n_workers, sizeof *threads);
    s->queue.closed = false;
    s->next_request = s->answered = s->texts = s->late = s->refused = 0;
    const uint64_t start = rp_now_ns();
    const clock_t cpu = clock();
    for (size_t i = 0; i < n_workers; i++)
        start_thread(&threads[i], work, &workers[i]);
    for (size_t i = 0; i < (size_t)s->o.clients; i++)
        start_thread(&threads[n_workers + i], client, s);
    for (size_t i = 0; i < (size_t)s->o.clients; i++)
        pthread_join(threads[n_workers + i], NULL);
    const double seconds = (double)(rp_now_ns() - start) * 1e-9;
    s->cpu_seconds = (double)(clock() - cpu) / CLOCKS_PER_SEC;
    queue_close(&s->queue);
    for (size_t i = 0; i < n_workers; i++)
        pthread_join(threads[i], NULL);
    free(threads);
    return (double)s->texts / seconds;
}

static void state_memory(const struct service *s, rp_pool *pool, size_t n_sessions)
{
    rp_session_options o;
    rp_session_sizes sizes = {.struct_size = sizeof sizes};
    rp_error err;
    session_options(s, pool, &o);
    must(rp_session_measure(rp_model_graph(s->model), rp_model_weights(s->model), &o, &sizes, &err),
         &err);
    printf("memory: weights %.1f MiB, and %zu sessions of at most %.1f MiB\n",
           (double)sizes.weights_bytes / 1048576, n_sessions,
           (double)sizes.session_bytes / 1048576);
}

static void load(struct service *s)
{
    char path[4096];
    rp_model_info info = {.struct_size = sizeof info};
    rp_error err;
    must(rp_model_load(s->o.model, NULL, &s->model, &err), &err);
    rp_model_get_info(s->model, &info);
    if (info.task != RP_TASK_CLASSIFY || info.n_labels != 1) {
        fprintf(stderr, "ranking_service: %s has no single score per pair\n", s->o.model);
        exit(1);
    }
    snprintf(path, sizeof path, "%s/tokenizer.json", s->o.model);
    if (rp_tokenizer_available())
        must(rp_tokenizer_load(path, &s->tokenizer, &err), &err);
    else
        printf("no tokenizer in this build: pairs are random ids\n");
    s->max_length = info.max_length;
    /* A pair longer than the budget is run alone, so there must be a bucket for it. */
    s->max_tokens = (size_t)s->o.budget > s->max_length ? (size_t)s->o.budget : s->max_length;
    make_documents(s, info.vocab_size);
}

static void unload(struct service *s)
{
    for (size_t d = 0; d < DOCUMENTS; d++)
        rp_text_part_free(s->documents[d]);
    free(s->random_ids);
    free(s->zeros);
    free(s->latencies);
    free(s->queue.slots);
    rp_tokenizer_free(s->tokenizer);
    rp_model_destroy(s->model);
}

/* Once to warm up, once by one worker, once by all of them. */
static int serve_and_compare(struct service *s, struct worker *one, struct worker *all, size_t n)
{
    const long requests = s->o.requests;
    s->o.requests = requests < 4 * s->o.clients ? requests : 4 * s->o.clients;
    serve(s, one, 1);
    serve(s, all, n);
    s->o.requests = requests;
    const double before = resident_mib();
    const double slow = serve(s, one, 1);
    report(s, "1 worker of 1 thread", slow);
    if (closing)
        return s->wrong ? 1 : 0;
    const double fast = serve(s, all, n);
    char what[64];
    snprintf(what, sizeof what,
             s->o.latency ? "1 worker of %ld threads" : "%ld workers of 1 thread", s->o.workers);
    report(s, what, fast);
    const double growth = resident_mib() - before;
    printf("ratio %.2f; resident %.1f MiB when warm, %.1f MiB at the end\n", fast / slow, before,
           before + growth);
    if (growth > (double)s->o.growth)
        printf("memory grew by more than %ld MiB\n", s->o.growth);
    return s->wrong || growth > (double)s->o.growth || !s->answered ? 1 : 0;
}

/* ---- options ---- */

static int usage(void)
{
    fprintf(stderr, "usage: ranking_service [MODEL] [--clients N] [--requests N] [--workers N]\n"
                    "           [--latency] [--budget TOKENS] [--queue PAIRS] [--deadline MS]"
                    " [--growth MIB]\n");
    return 2;
}

static bool parse(int argc, char **argv, struct options *o)
{
    const struct {
        const char *name;
        long *value;
    } numbers[] = {{"--clients", &o->clients}, {"--requests", &o->requests},
                   {"--workers", &o->workers}, {"--budget", &o->budget},
                   {"--queue", &o->queue},     {"--deadline", &o->deadline},
                   {"--growth", &o->growth}};
    for (int i = 1; i < argc; i++) {
        long *value = NULL;
        char *end = argv[i];
        for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
            if (strcmp(argv[i], numbers[k].name) == 0)
                value = numbers[k].value;
        if (strcmp(argv[i], "--latency") == 0)
            o->latency = 1;
        else if (value && i + 1 < argc)
            *value = strtol(argv[++i], &end, 10);
        else if (!value && argv[i][0] != '-')
            o->model = argv[i];
        else
            return false;
        if (value && (*end || *value < 1 || *value > 10000000))
            return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    struct service s = {.o = {.model = "examples/models/apt-bert-tiny",
                              .clients = 64,
                              .requests = 2000,
                              .workers = 2,
                              .budget = 512,
                              .queue = 256,
                              .deadline = 10000,
                              .growth = 8}};
    rp_pool *pool = NULL;
    rp_pool_options pool_options;
    rp_error err;
    if (!parse(argc, argv, &s.o))
        return usage();
    must(rp_cancel_create(&drop, &err), &err);
    signal(SIGINT, on_interrupt);
    load(&s);
    rp_pool_options_init(&pool_options);
    pool_options.n_threads = (int)s.o.workers;
    if (s.o.latency)
        must(rp_pool_create(&pool_options, &pool, &err), &err);
    const size_t n = s.o.latency ? 1 : (size_t)s.o.workers;
    state_memory(&s, pool, n);

    struct worker one, *all = take(n, sizeof *all);
    for (size_t i = 0; i < n; i++)
        make_worker(&s, pool, &all[i]);
    make_worker(&s, NULL, &one);
    score_alone(&s);
    s.latencies = take((size_t)s.o.requests, sizeof *s.latencies);
    s.queue.capacity = (size_t)s.o.queue;
    s.queue.slots = take(s.queue.capacity, sizeof *s.queue.slots);
    pthread_mutex_init(&s.queue.lock, NULL);
    make_condition(&s.queue.room);
    make_condition(&s.queue.work);
    const int code = serve_and_compare(&s, &one, all, n);

    for (size_t i = 0; i < n; i++)
        free_worker(&all[i]);
    free(all);
    free_worker(&one);
    rp_pool_destroy(pool);
    rp_cancel_destroy(drop);
    unload(&s);
    return code;
}
