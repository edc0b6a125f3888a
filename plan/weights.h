/* Weights: where numbers come from, and the forms in which steps use them.
 *
 * A weight is described when it is added and read when a graph that uses it is prepared, straight
 * into the form that its use needs; there is never a whole row-major f32 copy of a matrix:
 *
 *     used as            form                                      read by
 *     GEMM's w           packed panels of 16 rows (gemm/gemm.h)    gemm
 *     INT8 GEMM's w      the same in INT8 (qgemm/qgemm.h)          qgemm
 *     embedding table    the file's own type, row-major            embed, which widens rows
 *     vector, rel. bias  f32, row-major                            norms, epilogues
 *     convolution's w    f32, column by column                     conv
 *
 * One lock guards the forms.  A plan takes plain pointers to forms, which never move once made.
 */
#ifndef RP_PLAN_WEIGHTS_H
#define RP_PLAN_WEIGHTS_H

#include "qgemm/qgemm.h"

#include <rankplan/graph.h>
#include <rankplan/machine.h>

enum rp_weight_form {
    RP_FORM_PACKED,
    RP_FORM_INT8,
    RP_FORM_TABLE,
    RP_FORM_VECTOR,
    RP_FORM_COLUMNS,
    RP_FORM_COUNT
};

struct rp_weight_entry {
    char *name;
    size_t rows, cols;
    size_t n_parts;
    rp_weight_part *parts;
    rp_dtype table_dtype;      /* of the table form: the parts' own when they agree, else f32 */
    void *form[RP_FORM_COUNT]; /* NULL until made */
    uint64_t bytes[RP_FORM_COUNT];
    bool int8;     /* products use its INT8 form */
    float *smooth; /* INT8: cols factors of its columns, then their inverses; NULL for all 1 */
    bool shares;   /* smooth is that of another weight */
};

/* NULL when there is no such weight. */
const struct rp_weight_entry *rp_weights_entry(const rp_weights *weights, rp_weight w);

/* Every plan compiled from now on uses the weight's INT8 form.  smooth: cols factors that columns
 * are multiplied by and rows of the other operand divided, or NULL.  An INT8 form that was there is
 * freed.  Plans that use the weight must be gone.  RP_ERR_NOMEM. */
RP_CHECKED rp_status rp_weights_use_int8(rp_weights *weights, rp_weight w, const float *smooth,
                                         rp_error *err);

/* The same, with the factors of a weight that uses its INT8 form already and has as many columns.
 * When that one goes back to FP32 or gets other factors, so must this one, in any order, before it
 * is used again. */
void rp_weights_share_int8(rp_weights *weights, rp_weight w, rp_weight owner);

/* Takes either back. */
void rp_weights_use_fp32(rp_weights *weights, rp_weight w);

/* Frees a form; plans that use it must be gone. */
void rp_weights_drop(rp_weights *weights, rp_weight w, enum rp_weight_form form);

/* How many weights there are. */
size_t rp_weights_count(const rp_weights *weights);

/* Bytes of a form, made or not. */
RP_CHECKED rp_status rp_weights_form_bytes(const struct rp_weight_entry *entry,
                                           enum rp_weight_form form, size_t *out, rp_error *err);

/* Makes a form of a weight unless it is there.  Thread-safe.  RP_ERR_NOMEM, and what reading fails
 * with. */
RP_CHECKED rp_status rp_weights_make(rp_weights *weights, rp_weight w, enum rp_weight_form form,
                                     rp_pool *pool, rp_error *err);

#endif
