/* The encoders of models/ once more, in double and in plain loops, from the formulas of the papers
 * and the names of the checkpoints: what a loaded model is held against. */
#ifndef RP_TESTS_REF_ENCODER_H
#define RP_TESTS_REF_ENCODER_H

#include "tests/model_maker.h"

struct ref_result {
    size_t n, hidden, layers, labels;
    double *states; /* [layers + 1][n][hidden] */
    double *pooler; /* [hidden]; of BERT and bare models with a pooler, else zeros */
    double *logits; /* [labels] */
};

/* One sequence of n tokens.  types may be NULL. */
struct ref_result ref_encode(const struct maker_model *m, const int32_t *ids, const int32_t *types,
                             size_t n);
void ref_free(struct ref_result *r);

double ref_activation(const char *name, double x);

#endif
