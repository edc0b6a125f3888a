/* What all runs over slots share: which sequences there are, what is refused, what is begun. */
#ifndef RP_GDN_BATCH_H
#define RP_GDN_BATCH_H

#include "gdn/state.h"

/* An input of a batch: a name for complaints, and rows of `width` numbers. */
struct rp_gdn_named {
    const char *name;
    rp_gdn_projection rows;
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

static inline rp_gdn_projection rp_gdn_floats(rp_gdn_input x)
{
    return (rp_gdn_projection){.data = x.data, .ld = x.ld, .dtype = RP_DTYPE_F32};
}

/* n of a row's numbers from a column on, as floats. */
static inline void rp_gdn_read(const rp_gdn_states *s, const rp_gdn_projection *rows, size_t row,
                               size_t column, float *to, size_t n)
{
    const size_t at = (row * rows->ld + column) * rp_gdn_number_bytes(rows->dtype);
    s->ops->widen(rows->dtype, (const char *)rows->data + at, to, n);
}

/* n rows (at least 1) that are apart from each other and that memory can hold. */
RP_CHECKED rp_status rp_gdn_check_rows(const struct rp_gdn_named *in, size_t n, rp_error *err);

/* A convolution's weights of n channels, [n][kernel] as callers have them, to [kernel][n] as the
 * kernel of ops/ takes them. */
void rp_gdn_turn(const float *w, size_t kernel, size_t n, float *to);

/* True when a number of rows [r0, r1) of the inputs is none, and which is the first. */
bool rp_gdn_find_bad(const rp_gdn_states *s, const struct rp_gdn_named *inputs, size_t n_inputs,
                     size_t r0, size_t r1, struct rp_gdn_place *where);
RP_CHECKED rp_status rp_gdn_fail_bad(const rp_gdn_states *s, const struct rp_gdn_place *where,
                                     rp_error *err);

/* The sequences that have rows go to s->seqs with what their blocks hold and what they are written
 * to; returns how many.  With `keep` that is what the slots hold from now on. */
size_t rp_gdn_begin(rp_gdn_states *s, struct rp_blocks *blocks, bool over, size_t n_seqs,
                    const int32_t *slots, const int32_t *cu);

/* The same for what the n sequences of s->seqs keep of the convolution, beside their states. */
void rp_gdn_begin_kept(rp_gdn_states *s, size_t n);

void rp_gdn_end(rp_gdn_states *s, struct rp_blocks *blocks, size_t n, bool keep);

#endif
