/* Running a loaded model in a test: all of its hidden states and outputs, against numbers in
 * double.
 */
#ifndef RP_TESTS_MODEL_RUN_H
#define RP_TESTS_MODEL_RUN_H

#include <rankplan/model.h>
#include <rankplan/plan.h>

#include <stddef.h>
#include <stdint.h>

/* Hidden states as an observer sees them. */
struct capture {
    const rp_model *model;
    size_t n_states;
    float *states[16];
};

struct run {
    rp_session *session;
    struct capture capture;
};

/* The test fails when it cannot be loaded. */
rp_model *run_load(const char *folder, unsigned flags);
rp_model_info run_info(const rp_model *model);

/* One batch, without pruning.  The run is to be ended in any case. */
rp_status run_try(struct run *r, const rp_model *model, const int32_t *ids, const int32_t *types,
                  const int32_t *cu, size_t n_seqs, rp_error *err);
struct run run_model(const rp_model *model, const int32_t *ids, const int32_t *types,
                     const int32_t *cu, size_t n_seqs);
void run_end(struct run *r);
rp_view run_output(const struct run *r, const char *name);

/* Within the tolerance (2e-5, if nobody has set another) of the largest value due; the worst of all
 * calls is kept. */
extern double run_tolerance, run_worst;
void run_compare(const char *what, const float *found, const double *due, size_t n);

/* Of two vectors. */
double run_cosine(const float *found, const double *due, size_t n);

#endif
