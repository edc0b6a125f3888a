/* See chain.h.  Steps are named after the module and its place among its kind: dense.0, dense.1,
 * layer_norm.0. */
#include "models/chain.h"

#include "pool/error.h"

#include <inttypes.h>
#include <stdio.h>

#define NORMALIZE_EPS  1e-12f /* torch.nn.functional.normalize */
#define LAYER_NORM_EPS 1e-5f  /* torch.nn.LayerNorm */

/* Where the chain stands. */
struct position {
    rp_value x;
    uint64_t width;
    size_t n_dense, n_norms;
};

static rp_status add_pooling(struct rp_build *build, const struct rp_module *m, struct position *at,
                             rp_error *err)
{
    rp_value rows[RP_FOLDER_MAX_MODES];
    if (m->width != 0 && (uint64_t)m->width != at->width)
        return rp_fail(err, RP_ERR_SHAPE,
                       "%s: it pools rows of %" PRId64 ", but the model's have %" PRIu64, m->folder,
                       m->width, at->width);
    for (size_t i = 0; i < m->n_modes; i++) {
        char name[64];
        snprintf(name, sizeof name, "pool.%s", rp_folder_pooling_name(m->modes[i]));
        rows[i] = rp_graph_pool(build->graph, name, at->x, m->modes[i]);
    }
    at->x =
        m->n_modes == 1 ? rows[0] : rp_graph_concat(build->graph, "pool.concat", m->n_modes, rows);
    at->width *= m->n_modes;
    return RP_OK;
}

/* act(W x + b) + x, where x goes through a matrix of its own when the widths differ. */
static rp_status add_dense(struct rp_build *build, const struct rp_module *m, struct position *at,
                           rp_error *err)
{
    char step[32], name[64];
    rp_value residual = -1;
    const uint64_t in = at->width, out = (uint64_t)m->out;
    if ((uint64_t)m->in != in)
        return rp_fail(err, RP_ERR_SHAPE,
                       "%s: in_features is %" PRId64 ", but its input has %" PRIu64, m->folder,
                       m->in, in);
    snprintf(step, sizeof step, "dense.%zu", at->n_dense++);
    if (m->residual && in == out) {
        residual = at->x;
    } else if (m->residual) {
        snprintf(name, sizeof name, "%s.residual.weight", step);
        const rp_weight w = rp_build_matrix(build, name, "residual.weight", out, in);
        snprintf(name, sizeof name, "%s.residual", step);
        residual = rp_graph_gemm(build->graph, name, at->x, w, -1, RP_ACT_NONE, -1);
    }
    at->x = rp_build_linear_opt(build, step, "linear", at->x, in, out, m->bias, m->activation,
                                residual);
    at->width = out;
    return RP_OK;
}

static rp_status add_layer_norm(struct rp_build *build, const struct rp_module *m,
                                struct position *at, rp_error *err)
{
    char step[32];
    if ((uint64_t)m->width != at->width)
        return rp_fail(err, RP_ERR_SHAPE,
                       "%s: dimension is %" PRId64 ", but its input has %" PRIu64, m->folder,
                       m->width, at->width);
    snprintf(step, sizeof step, "layer_norm.%zu", at->n_norms++);
    at->x = rp_build_norm(build, step, "norm", at->x, at->width, LAYER_NORM_EPS);
    return RP_OK;
}

static rp_status add_module(struct rp_build *build, const struct rp_module *m, struct position *at,
                            rp_error *err)
{
    switch (m->kind) {
    case RP_MODULE_POOLING: return add_pooling(build, m, at, err);
    case RP_MODULE_DENSE: return add_dense(build, m, at, err);
    case RP_MODULE_LAYER_NORM: return add_layer_norm(build, m, at, err);
    case RP_MODULE_NORMALIZE:
        at->x = rp_graph_l2_norm(build->graph, "normalize", at->x, NORMALIZE_EPS);
        return RP_OK;
    default: return RP_OK;
    }
}

rp_status rp_chain_build(struct rp_build *build, const struct rp_folder *folder, uint64_t width,
                         rp_value last, struct rp_notes *notes, struct rp_chain *chain,
                         rp_value *out, rp_error *err)
{
    struct rp_tensors *body = build->tensors;
    const char *prefix = build->prefix;
    struct position at = {.x = last, .width = width};
    rp_status s = RP_OK;
    for (size_t i = 0; i < folder->n_modules && s == RP_OK; i++) {
        const struct rp_module *m = &folder->modules[i];
        if (m->kind == RP_MODULE_DENSE || m->kind == RP_MODULE_LAYER_NORM)
            s = rp_tensors_open(m->folder, notes, &chain->files[i], err);
        if (s != RP_OK)
            break;
        if (chain->files[i]) {
            build->tensors = chain->files[i];
            build->prefix = "";
        }
        s = add_module(build, m, &at, err);
        if (s == RP_OK && chain->files[i])
            s = rp_build_note_unused(chain->files[i], notes, err);
        chain->normalized =
            m->kind == RP_MODULE_NORMALIZE || (chain->normalized && m->kind == RP_MODULE_DROPOUT);
        chain->scores = chain->scores || m->to_scores;
    }
    build->tensors = body;
    build->prefix = prefix;
    chain->width = at.width;
    *out = at.x;
    return s;
}

void rp_chain_close(struct rp_chain *chain)
{
    for (size_t i = 0; i < RP_FOLDER_MAX_MODULES; i++) {
        rp_tensors_close(chain->files[i]);
        chain->files[i] = NULL;
    }
}
