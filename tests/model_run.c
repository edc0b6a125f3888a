/* See model_run.h. */
#include "tests/model_run.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

double run_tolerance = 2e-5;

rp_model *run_load(const char *folder, unsigned flags)
{
    rp_model_options options;
    rp_model *model = NULL;
    rp_error err;
    rp_model_options_init(&options);
    options.flags = flags;
    if (rp_model_load(folder, &options, &model, &err) != RP_OK)
        fail_msg("%s: %s", folder, err.message);
    return model;
}

rp_model_info run_info(const rp_model *model)
{
    rp_model_info info = {.struct_size = sizeof info};
    rp_model_get_info(model, &info);
    return info;
}

/* ---- running ----------------------------------------------------------------------------------
 */

static bool want_step(void *context, const rp_step_info *step)
{
    const struct capture *c = context;
    for (size_t i = 0; i < c->n_states; i++)
        if (strcmp(rp_model_hidden_name(c->model, i), step->name) == 0)
            return true;
    return false;
}

static rp_status show_step(void *context, const rp_step_info *step, const rp_view *view)
{
    struct capture *c = context;
    for (size_t i = 0; i < c->n_states; i++)
        if (strcmp(rp_model_hidden_name(c->model, i), step->name) == 0) {
            const size_t bytes = view->rows * view->width * sizeof(float);
            assert_null(c->states[i]);
            c->states[i] = malloc(bytes);
            assert_non_null(c->states[i]);
            memcpy(c->states[i], view->data, bytes);
        }
    return RP_OK;
}

rp_status run_try(struct run *r, const rp_model *model, const int32_t *ids, const int32_t *types,
                  const int32_t *cu, size_t n_seqs, rp_error *err)
{
    rp_batch batch;
    const rp_observer observer = {sizeof observer, want_step, show_step, &r->capture};
    rp_session_options options;
    rp_session_options_init(&options);
    options.no_prune =
        true; /* hidden states of all tokens, also where a head reads only the first */
    *r = (struct run){.capture = {.model = model}};
    while (rp_model_hidden_name(model, r->capture.n_states))
        r->capture.n_states++;
    assert_true(r->capture.n_states <= 16);
    assert_int_equal(rp_session_create(rp_model_graph(model), rp_model_weights(model), &options,
                                       &r->session, err),
                     RP_OK);
    rp_session_observe(r->session, &observer);
    rp_batch_init(&batch);
    batch.n_seqs = n_seqs;
    batch.ids = ids;
    batch.cu = cu;
    batch.type_ids = types;
    return rp_session_run(r->session, &batch, err);
}

struct run run_model(const rp_model *model, const int32_t *ids, const int32_t *types,
                     const int32_t *cu, size_t n_seqs)
{
    struct run r;
    rp_error err;
    if (run_try(&r, model, ids, types, cu, n_seqs, &err) != RP_OK)
        fail_msg("%s", err.message);
    return r;
}

void run_end(struct run *r)
{
    for (size_t i = 0; i < r->capture.n_states; i++)
        free(r->capture.states[i]);
    rp_session_destroy(r->session);
}

rp_view run_output(const struct run *r, const char *name)
{
    rp_view v;
    rp_error err;
    if (rp_session_output(r->session, name, &v, &err) != RP_OK)
        fail_msg("%s", err.message);
    return v;
}

double run_worst;

void run_compare(const char *what, const float *found, const double *due, size_t n)
{
    double top = 0, worst = 0;
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        const double gap = fabs(found[i] - due[i]);
        top = fmax(top, fabs(due[i]));
        if (!(gap <= worst)) { /* a NaN counts as worst */
            worst = gap;
            at = i;
        }
    }
    if (!(worst <= run_tolerance * top))
        fail_msg("%s: element %zu of %zu is %.9g, expected %.9g (largest %.3g)", what, at, n,
                 (double)found[at], due[at], top);
    run_worst = fmax(run_worst, top > 0 ? worst / top : 0);
}

double run_cosine(const float *found, const double *due, size_t n)
{
    double dot = 0, a = 0, b = 0;
    for (size_t i = 0; i < n; i++) {
        dot += found[i] * due[i];
        a += (double)found[i] * found[i];
        b += due[i] * due[i];
    }
    return dot / sqrt(a * b);
}
