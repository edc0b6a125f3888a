/* A small encoder with random weights, built through the public interface: what plans are tested
 * on. */
#ifndef RP_TESTS_TOY_H
#define RP_TESTS_TOY_H

#include <rankplan/rankplan.h>

struct toy_options {
    size_t layers, heads, head_dim, intermediate, vocabulary, positions;
    uint64_t seed;
    rp_activation activation;
    bool pre_norm;      /* a chain of its own kind: norm before each half, no bias */
    size_t rel_buckets; /* MPNet's bias; 0: none */
    size_t window;      /* of layers 1, 2, 4, 5, ...; 0: none */
    bool gated;         /* ModernBERT: q and k turned, with two bases by turns; a gated ffn */
};

struct toy {
    rp_graph *graph;
    rp_weights *weights;
    size_t width, vocabulary;
    float **arrays; /* the weights' numbers */
    size_t n_arrays, cap_arrays;
    uint64_t state;
};

void toy_options_init(struct toy_options *options);

/* Outputs: "embedding" (seqs, mean pooled and normalised), "last" (tokens), "marked" (markers, a
 * projection). */
void toy_make(struct toy *toy, const struct toy_options *options);
void toy_free(struct toy *toy);

/* A batch of random ids with those lengths; its arrays are the toy batch's own. */
struct toy_batch {
    rp_batch batch;
    int32_t *ids, *cu, *types, *markers, *mcu;
};
void toy_batch_make(struct toy_batch *b, const size_t *lengths, size_t n, size_t vocabulary,
                    uint64_t seed);
void toy_batch_free(struct toy_batch *b);

/* A pool of so many threads, else as it is by default. */
rp_pool *toy_pool(int n_threads);

/* A session with poisoned memory. */
rp_session *toy_session(const struct toy *toy, rp_pool *pool, uint32_t isa, bool no_fuse);

/* Runs a batch; what it fails with, if it does, is the test's failure. */
void toy_run_ok(rp_session *session, const rp_batch *batch);

/* One hash over all outputs of the session's last run. */
uint64_t toy_hash_outputs(rp_session *session);

/* splitmix64. */
uint64_t toy_random(uint64_t *state);
/* Uniform in (-1, 1), from integers, so the same everywhere. */
float toy_uniform(uint64_t *state);

#endif
