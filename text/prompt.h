/* The prompt of a generative reranker, in tokens: what stands before and after each pair, and the
 * text in the middle. */
#ifndef RP_TEXT_PROMPT_H
#define RP_TEXT_PROMPT_H

#include <rankplan/ranker.h>

struct rp_prompt_ids {
    const rp_pair_prompt *form; /* the model's; NULL: there is no prompt, and nothing else is set */
    char *instruction;
    rp_encoding before, after;
};

/* instruction NULL: the model's own.  RP_ERR_UNSUPPORTED (an instruction, and no prompt to put it
 * in), RP_ERR_MISSING (the token that the prompt begins with is no special
 * token of the tokenizer), what tokenising the instruction fails with, RP_ERR_NOMEM. */
RP_CHECKED rp_status rp_prompt_prepare(const rp_model *model, const rp_tokenizer *tokenizer,
                                       const char *instruction, struct rp_prompt_ids *out,
                                       rp_error *err);
void rp_prompt_free(struct rp_prompt_ids *prompt);

/* Tokens that stand around the middle. */
size_t rp_prompt_n_around(const struct rp_prompt_ids *prompt);

/* The middle up to the document: to be freed.  RP_ERR_LIMIT, RP_ERR_NOMEM. */
RP_CHECKED rp_status rp_prompt_head(const struct rp_prompt_ids *prompt, rp_text_ref query,
                                    char **made, rp_text_ref *out, rp_error *err);

#endif
