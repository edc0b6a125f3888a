/* The ids of single tokens in a folder's tokenizer.json: for language models that answer with one.
 */
#ifndef RP_MODELS_VOCABULARY_H
#define RP_MODELS_VOCABULARY_H

#include <rankplan/status.h>

#include <stddef.h>
#include <stdint.h>

/* Looks the n words up: among the added tokens, then in the model's vocabulary (a map of tokens to
 * ids, or a list of pairs whose places are the ids).  RP_ERR_MISSING names the word that is not
 * there; RP_ERR_FORMAT, RP_ERR_LIMIT, RP_ERR_IO, RP_ERR_NOMEM. */
RP_CHECKED rp_status rp_vocabulary_find(const char *folder, size_t n, const char *const *words,
                                        int64_t *ids, rp_error *err);

#endif
