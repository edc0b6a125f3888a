/* Building a graph from named tensors: every family's way to its weights.
 *
 * A request names a tensor and the shape that config.json implies.  What is missing is collected,
 * so that one error lists it all; a wrong shape or type is kept as the first failure.  Either way
 * the request returns -1 and the family's code goes on: it has no error paths, and rp_build_finish
 * reports.
 *
 *     rp_weight w = rp_build_matrix(b, "pooler.weight", "pooler.dense.weight", hidden, hidden);
 *
 * A tensor is looked for with the family's prefix ("bert.") when the checkpoint has it, and under
 * its old name (LayerNorm.gamma for LayerNorm.weight).
 */
#ifndef RP_MODELS_BUILD_H
#define RP_MODELS_BUILD_H

#include "models/notes.h"
#include "models/tensors.h"

#include <rankplan/graph.h>

struct rp_build_part; /* stretches of tensors read as one run of bytes */

struct rp_build {
    rp_graph *graph;
    rp_weights *weights;
    struct rp_tensors *tensors;  /* where requests look; may be changed between them */
    const char *prefix;          /* put before names of the body; "" for none */
    const char *config;          /* which file says what there has to be, for messages */
    bool shares;                 /* several graphs: a weight of a name that is there is that one */
    struct rp_build_part *parts; /* owned; read by the weights until they are prepared */
    struct rp_name_list missing;
    struct rp_name_list misshapen; /* of another shape than is due */
    struct rp_name_list mistyped;  /* of a type that weights cannot have */
    const char *missing_from;      /* source of the first missing one */
    uint64_t n_parameters;         /* elements of the tensors used */
    rp_error first;                /* the first failure; RP_OK: none */
    bool first_is_listed;          /* it is about a tensor of one of the lists */
};

/* `graph` and `weights` are borrowed. */
struct rp_build rp_build_init(rp_graph *graph, rp_weights *weights, struct rp_tensors *tensors);
void rp_build_fini(struct rp_build *build);

/* Keeps the first failure. */
void rp_build_fail(struct rp_build *build, rp_status status, const rp_error *why);

/* Uses the prefix if the checkpoint has the tensor PREFIX NAME. */
void rp_build_use_prefix(struct rp_build *build, const char *prefix, const char *name);

/* True when the checkpoint has the tensor, under the names that a request would try. */
bool rp_build_has(const struct rp_build *build, const char *name);

/* The tensor as a weight [rows, cols], or [1, n]; -1 when it cannot be had.  `name` is the weight's
 * in plans. */
rp_weight rp_build_matrix(struct rp_build *build, const char *name, const char *tensor,
                          uint64_t rows, uint64_t cols);
rp_weight rp_build_vector(struct rp_build *build, const char *name, const char *tensor, uint64_t n);

/* Several matrices [rows, cols] under each other; several vectors [n] one after the other.  Lists
 * of that length lie on the stack, of which a host may have little. */
#define RP_BUILD_MAX_JOINED 8
rp_weight rp_build_matrices(struct rp_build *build, const char *name, size_t count,
                            const char *const *tensors, uint64_t rows, uint64_t cols);
rp_weight rp_build_vectors(struct rp_build *build, const char *name, size_t count,
                           const char *const *tensors, uint64_t n);

/* Rows of a tensor [rows, cols], or of a tensor [rows, inner, cols] whose first two dimensions then
 * count as one.  n of them from `first` on, again from first + step on, and so `times` times: heads
 * that lie between others' are brought together without a copy of the tensor.  n 0: all rows. */
struct rp_build_rows {
    const char *tensor;
    uint64_t rows, inner;           /* inner 0: the tensor has two dimensions */
    uint64_t first, n, step, times; /* times 0: once */
};

/* Rows of any number of tensors under each other. */
rp_weight rp_build_stack(struct rp_build *build, const char *name, size_t count,
                         const struct rp_build_rows *rows, uint64_t cols);

/* Elements of up to RP_BUILD_MAX_JOINED vectors one after the other; a "row" is an element, and
 * inner is 0. */
rp_weight rp_build_row(struct rp_build *build, const char *name, size_t count,
                       const struct rp_build_rows *elements);

/* [n, 1]: a vector of n elements as rows of one. */
rp_weight rp_build_column(struct rp_build *build, const char *name, const char *tensor, uint64_t n);

/* [1, cols]: row `plus` of a tensor [rows, cols] less row `minus`, one subtraction in f32 an
 * element; minus -1: row `plus` alone. */
rp_weight rp_build_difference(struct rp_build *build, const char *name, const char *tensor,
                              uint64_t rows, uint64_t cols, int64_t plus, int64_t minus);

/* A linear layer: weights STEP.weight and STEP.bias from TENSOR.weight and TENSOR.bias, and its
 * GEMM. */
rp_value rp_build_linear(struct rp_build *build, const char *step, const char *tensor, rp_value x,
                         uint64_t in, uint64_t out, rp_activation activation, rp_value residual);

/* A layer norm: weights STEP.weight and STEP.bias from TENSOR.weight and TENSOR.bias. */
rp_value rp_build_norm(struct rp_build *build, const char *step, const char *tensor, rp_value x,
                       uint64_t width, float eps);

/* The same where config.json says whether there is a bias. */
rp_value rp_build_linear_opt(struct rp_build *build, const char *step, const char *tensor,
                             rp_value x, uint64_t in, uint64_t out, bool bias,
                             rp_activation activation, rp_value residual);
rp_value rp_build_norm_opt(struct rp_build *build, const char *step, const char *tensor, rp_value x,
                           uint64_t width, bool bias, float eps);

/* True as long as nothing has failed and nothing is missing: the sizes in config.json are then
 * those of tensors that are there. */
bool rp_build_is_whole(const struct rp_build *build);

/* The status of everything so far. */
RP_CHECKED rp_status rp_build_finish(struct rp_build *build, rp_error *err);

/* Notes the tensors that nothing used: those that are known to belong to heads and buffers, and the
 * rest. */
RP_CHECKED rp_status rp_build_note_unused(const struct rp_tensors *tensors, struct rp_notes *notes,
                                          rp_error *err);

#endif
