/* What all runs over slots share: which sequences there are, what is refused, what is begun. */
#ifndef RP_GDN_BATCH_H
#define RP_GDN_BATCH_H

#include "gdn/state.h"

/* An input of a batch: a name for complaints, and rows of `width` floats. */
struct rp_gdn_named {
    const char *name;
    rp_gdn_input rows;
    size_t width;
    bool log; /* logarithms: -inf is one of 0 */
};

/* A number of an input. */
struct rp_gdn_place {
    const struct rp_gdn_named *input;
    size_t row, column;
};

/* Slots that there are, each named once; cu ascending.  *n_rows: of all sequences. */
RP_CHECKED rp_status rp_gdn_check_seqs(rp_gdn_states *s, size_t n_seqs, const int32_t *slots,
                                       const int32_t *cu, size_t *n_rows, rp_error *err);

/* n rows (at least 1) of `width` floats that are apart from each other and that memory can hold. */
RP_CHECKED rp_status rp_gdn_check_rows(const char *name, const void *data, size_t ld, size_t n,
                                       size_t width, rp_error *err);

/* True when a number of rows [r0, r1) of the inputs is none, and which is the first. */
bool rp_gdn_find_bad(const rp_gdn_states *s, const struct rp_gdn_named *inputs, size_t n_inputs,
                     size_t r0, size_t r1, struct rp_gdn_place *where);
RP_CHECKED rp_status rp_gdn_fail_bad(const struct rp_gdn_place *where, rp_error *err);

/* The sequences that have rows go to s->seqs with what their blocks hold and what they are written
 * to; returns how many.  With `keep` that is what the slots hold from now on. */
size_t rp_gdn_begin(rp_gdn_states *s, struct rp_blocks *blocks, bool over, size_t n_seqs,
                    const int32_t *slots, const int32_t *cu);
void rp_gdn_end(rp_gdn_states *s, struct rp_blocks *blocks, size_t n, bool keep);

#endif
