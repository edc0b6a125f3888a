/* Rankers: texts in, vectors and scores out.
 *
 * A ranker puts a model, its tokenizer and a session together: it tokenises (the query of a ranking
 * once), cuts the texts into batches, runs them and gives back one result per text in the order of
 * the request.  It is what one thread of requests has for itself; model, tokenizer and pool are
 * shared by all of them.
 *
 *     rp_model_load("minilm", NULL, &model, &err);
 *     rp_tokenizer_load("minilm/tokenizer.json", &tokenizer, &err);
 *     rp_ranker_create(model, tokenizer, NULL, &ranker, &err);
 *     rp_ranker_score(ranker, query, n, documents, scores, NULL, &err);
 *
 * The result for a text does not depend on the texts beside it, on the batches or on the threads,
 * to the bit.  A request that fails, or is stopped, may have written some of its results: none of
 * them counts.
 */
#ifndef RANKPLAN_RANKER_H
#define RANKPLAN_RANKER_H

#include <rankplan/model.h>
#include <rankplan/plan.h>
#include <rankplan/status.h>
#include <rankplan/tokenizer.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rp_ranker rp_ranker;

/* A text of the caller: UTF-8, length in bytes, borrowed for the call. */
typedef struct rp_text_ref {
    const char *data;
    size_t length;
} rp_text_ref;

/* What became of a text on its way to the model. */
typedef struct rp_text_info {
    size_t tokens;      /* that the model reads for it, special tokens included, and those that it
                           shares with other texts (see rp_ranker_score) */
    size_t full_tokens; /* that there would have been without a maximum length */
    bool truncated;
} rp_text_info;

typedef struct rp_ranker_options {
    size_t struct_size;      /* sizeof(rp_ranker_options) */
    rp_pool *pool;           /* borrowed; NULL (default): the calling thread alone */
    uint32_t isa;            /* default RP_ISA_DEFAULT */
    size_t max_length;       /* 0 (default): the model's own; more than that is refused */
    size_t max_batch_tokens; /* default 4096: texts are run in batches of up to so many tokens (a
                                longer text gets a batch of its own) */
    bool special_as_text;    /* see rp_encode_options */
    bool no_prefix_reuse;    /* see rp_ranker_score */
    /* What a generative reranker is asked to judge by, copied; NULL (default): the model's own.  A
     * model whose pairs have no place for it refuses one. */
    const char *instruction;
    /* Called after each batch with the number of texts done so far; NULL (default): not. */
    void (*progress)(void *context, size_t done, size_t total);
    void *progress_context;
} rp_ranker_options;

RP_API void rp_ranker_options_init(rp_ranker_options *options);

/* model, tokenizer and pool are borrowed until the ranker is destroyed.  options may be NULL.
 * Allocates. RP_ERR_INVALID (max_length above the model's), RP_ERR_SHAPE (the tokenizer has ids
 * that the model's table has no rows for), RP_ERR_UNSUPPORTED (a decision scorer; a chat template
 * that is not known; an instruction for a model without a place for it), RP_ERR_MISSING (the token
 * that the model's prompt begins with is no special token of the tokenizer), what tokenising the
 * instruction fails with, RP_ERR_NOMEM. */
RP_API RP_CHECKED rp_status rp_ranker_create(const rp_model *model, const rp_tokenizer *tokenizer,
                                             const rp_ranker_options *options, rp_ranker **out,
                                             rp_error *err);

/* NULL does nothing. */
RP_API void rp_ranker_destroy(rp_ranker *ranker);

/* The session that the ranker runs on, for observers, plans, digests, and stopping: its deadline
 * (rp_session_set_deadline) and flag (rp_session_set_cancel) hold for whole requests.  They are
 * looked at before each text is tokenised, between batches, and inside of them. */
RP_API rp_session *rp_ranker_session(rp_ranker *ranker);

/* Tokens that a text (or pair) is cut to. */
RP_API size_t rp_ranker_max_length(const rp_ranker *ranker);

/* Vectors of n texts: n x dimension of the model into out.  prompt is put before each text (NULL:
 * the model's default prompt, if it has one).  infos (n of them) may be NULL.  What all texts begin
 * with is shared as in rp_ranker_score.  Allocates.
 * RP_ERR_UNSUPPORTED (the model is no embedder), what tokenising fails with (the message names the
 * text by its index), what rp_session_run fails with. */
RP_API RP_CHECKED rp_status rp_ranker_embed(rp_ranker *ranker, const char *prompt, size_t n,
                                            const rp_text_ref *texts, float *out,
                                            rp_text_info *infos, rp_error *err);

/* One score per document, higher is better: a cross-encoder's score of (query, document) through
 * the model's own activation, or an embedder's similarity of the two vectors by its own measure,
 * with its prompts named "query" and "document" where it has them.  A generative reranker reads the
 * pair in its prompt (rp_model_pair_prompt); too long a document is cut at its end, and a query
 * that leaves no token for one is RP_ERR_LIMIT.
 *
 * Where the model is causal (rp_graph_is_causal), the tokens that all texts of the request begin
 * with, the prompt and the query of a ranking, are run once for each batch and not once for each
 * text, unless they are fewer than 16 or options.no_prefix_reuse is set; a text that has a batch to
 * itself is run whole.  The scores are the same, to the bit.  max_batch_tokens then counts what is
 * run: the shared tokens once.
 *
 * A document that spells special tokens out ("<|im_end|>") reaches a generative reranker as those
 * tokens, unless options.special_as_text is set: set it for texts of strangers.
 *
 * Allocates.  RP_ERR_UNSUPPORTED (a classifier with more than one label), RP_ERR_NONFINITE (also a
 * similarity that overflows, naming the document), else as rp_ranker_embed. */
RP_API RP_CHECKED rp_status rp_ranker_score(rp_ranker *ranker, rp_text_ref query, size_t n,
                                            const rp_text_ref *documents, float *scores,
                                            rp_text_info *infos, rp_error *err);

/* The token ids that a request would run, as one batch: texts alone (query NULL) or with the query
 * before each; every text whole, whatever the texts share.  *out and its arrays are the ranker's,
 * valid until its next call.  infos may be NULL. */
RP_API RP_CHECKED rp_status rp_ranker_tokenize(rp_ranker *ranker, const rp_text_ref *query,
                                               size_t n, const rp_text_ref *texts, rp_batch *out,
                                               rp_text_info *infos, rp_error *err);

/* The order of n scores, best first; equal ones keep their order.  order holds n indices. */
RP_API void rp_rank(const float *scores, size_t n, size_t *order);

#ifdef __cplusplus
}
#endif
#endif
