/* The decoders of models/ once more, in double, token by token and in plain loops: what a loaded
 * model is held against.  Knows the checkpoints' layouts on its own. */
#ifndef RP_TESTS_REF_DECODER_H
#define RP_TESTS_REF_DECODER_H

#include "tests/ref_encoder.h"

/* One sequence of n tokens.  Logits are those of the classifier, or of the vocabulary at the last
 * token for a language model. */
struct ref_result ref_decode(const struct maker_model *m, const int32_t *ids, size_t n);

#endif
