/* Prefix reuse: one query and N documents of random ids through a causal model, with what they
 * begin with run once and with it run for each.
 *
 *     bench_prefix MODEL [DOCUMENTS [PREFIX [LEAST [MOST [THREADS [BATCH_TOKENS]]]]]]
 *     bench_prefix MODEL 32 100 20 120 1 4096
 *
 * Prints the tokens that are run, the medians of both, taken by turns, and their ratio; fails when
 * a score differs. */
#include "bench/common.h"
#include "text/batches.h"
#include "text/prefix.h"

#include <rankplan/rankplan.h>

#include <string.h>

enum { RUNS = 15, WARM = 2 };

struct texts {
    rp_batch batch;
    int32_t *ids, *cu;
};

/* Documents of `least` to `most` tokens behind the same `prefix` ones. */
static bool make_texts(struct texts *t, size_t n, size_t prefix, size_t least, size_t most,
                       size_t vocabulary)
{
    uint32_t x = 1;
    t->ids = calloc(n * (prefix + most), sizeof *t->ids);
    t->cu = calloc(n + 1, sizeof *t->cu);
    if (!t->ids || !t->cu)
        return false;
    for (size_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        const size_t length = prefix + least + (x >> 8) % (most - least + 1);
        int32_t *ids = t->ids + t->cu[i];
        for (size_t k = 0; k < length; k++) {
            x = x * 1664525u + 1013904223u;
            ids[k] = k < prefix && i ? t->ids[k] : (int32_t)((x >> 8) % vocabulary);
        }
        ids[prefix] = (int32_t)(i % vocabulary); /* no more than the prefix is shared */
        t->cu[i + 1] = t->cu[i] + (int32_t)length;
    }
    rp_batch_init(&t->batch);
    t->batch.n_seqs = n;
    t->batch.ids = t->ids;
    t->batch.cu = t->cu;
    return true;
}

static double seconds(const struct rp_batches *how, const rp_batch *all, float *out)
{
    rp_error err;
    const double start = now();
    if (rp_batches_run(how, all, "scores", 1, out, &err) != RP_OK) {
        fprintf(stderr, "%s\n", err.message);
        exit(1);
    }
    return now() - start;
}

static bool compare(rp_session *session, const struct texts *t, size_t max_tokens)
{
    const size_t n = t->batch.n_seqs, shared = rp_prefix_shared(&t->batch);
    double times[2][RUNS];
    float *scores[2] = {numbers(n), numbers(n)};
    if (!scores[0] || !scores[1])
        return false;
    for (int i = -WARM; i < RUNS; i++)
        for (int reuse = 0; reuse < 2; reuse++) {
            const struct rp_batches how = {
                .session = session, .max_tokens = max_tokens, .reuse = reuse};
            const double s = seconds(&how, &t->batch, scores[reuse]);
            if (i >= 0)
                times[reuse][i] = s;
        }
    size_t batches = 0, run = (size_t)t->cu[n] - n * shared;
    for (size_t first = 0; first < n; batches++)
        first = rp_prefix_end(&t->batch, shared, first, max_tokens);
    run += batches * shared;
    const double without = median(times[0], RUNS), with = median(times[1], RUNS);
    printf("%zu documents, %zu tokens shared\n", n, shared);
    printf("without reuse %8d tokens  %9.3f ms\n", t->cu[n], without * 1e3);
    printf("with reuse    %8zu tokens  %9.3f ms in %zu batches\n", run, with * 1e3, batches);
    printf("ratio         %8.2f         %9.2f\n", (double)t->cu[n] / (double)run, without / with);
    const bool same = memcmp(scores[0], scores[1], n * sizeof(float)) == 0;
    printf("scores        %s\n", same ? "the same to the bit" : "DIFFER");
    rp_aligned_free(scores[0]);
    rp_aligned_free(scores[1]);
    return same;
}

static bool run(const char *folder, const size_t *p)
{
    rp_model *model;
    rp_error err;
    rp_pool_options pool_options;
    rp_session_options options;
    rp_session *session;
    rp_pool *pool;
    struct texts texts;
    rp_model_info info = {.struct_size = sizeof info};
    rp_pool_options_init(&pool_options);
    rp_session_options_init(&options);
    pool_options.n_threads = (int)p[4];
    if (rp_model_load(folder, NULL, &model, &err) != RP_OK ||
        rp_pool_create(&pool_options, &pool, &err) != RP_OK) {
        fprintf(stderr, "%s\n", err.message);
        return false;
    }
    rp_model_get_info(model, &info);
    options.pool = pool;
    if (info.n_labels != 1 || !rp_graph_is_causal(rp_model_graph(model))) {
        fprintf(stderr, "%s: no causal model with one score\n", folder);
        return false;
    }
    if (rp_session_create(rp_model_graph(model), rp_model_weights(model), &options, &session,
                          &err) != RP_OK) {
        fprintf(stderr, "%s\n", err.message);
        return false;
    }
    const bool good = make_texts(&texts, p[0], p[1], p[2], p[3], info.vocab_size) &&
                      compare(session, &texts, p[5]);
    free(texts.ids);
    free(texts.cu);
    rp_session_destroy(session);
    rp_pool_destroy(pool);
    rp_model_destroy(model);
    return good;
}

int main(int argc, char **argv)
{
    size_t p[] = {32, 100, 20, 120, 1, 4096};
    bool good = argc >= 2 && argc <= 8;
    for (int i = 2; i < argc && good; i++) {
        p[i - 2] = strtoul(argv[i], NULL, 10);
        good = p[i - 2] > 0;
    }
    if (!good || p[3] < p[2]) {
        fprintf(
            stderr,
            "bench_prefix MODEL [DOCUMENTS [PREFIX [LEAST [MOST [THREADS [BATCH_TOKENS]]]]]]\n");
        return 2;
    }
    return run(argv[1], p) ? 0 : 1;
}
