/* What all runs over slots share (see batch.h). */
#include "gdn/batch.h"

#include "pool/error.h"
#include "pool/memory.h"

#include <math.h>

rp_status rp_gdn_check_rows(const char *name, const void *data, size_t ld, size_t n, size_t width,
                            rp_error *err)
{
    size_t last, floats;
    if (!data)
        return rp_fail(err, RP_ERR_INVALID, "%s has no data", name);
    if (n > 1 && ld < width)
        return rp_fail(err, RP_ERR_INVALID,
                       "%s: rows of %zu floats overlap each other, being %zu apart", name, width,
                       ld);
    if (!rp_mul_ok(n - 1, ld, &last) || !rp_add_ok(last, width, &floats) ||
        floats > PTRDIFF_MAX / sizeof(float))
        return rp_fail(err, RP_ERR_LIMIT,
                       "%s elements: %zu rows, %zu floats apart, are past what memory can hold",
                       name, n, ld);
    return RP_OK;
}

static rp_status check_cu(size_t n_seqs, const int32_t *cu, size_t *n_rows, rp_error *err)
{
    *n_rows = n_seqs;
    if (!cu)
        return RP_OK;
    if (cu[0] != 0)
        return rp_fail(err, RP_ERR_INVALID, "cu begins with %d, expected 0", cu[0]);
    for (size_t i = 0; i < n_seqs; i++) {
        if (cu[i + 1] < cu[i])
            return rp_fail(err, RP_ERR_INVALID, "cu goes from %d down to %d at sequence %zu", cu[i],
                           cu[i + 1], i);
    }
    *n_rows = (size_t)cu[n_seqs];
    return RP_OK;
}

static rp_status check_slots(rp_gdn_states *s, size_t n_seqs, const int32_t *slots, rp_error *err)
{
    rp_status status = RP_OK;
    size_t i = 0;
    for (; i < n_seqs; i++) {
        status = rp_gdn_check_slot(s, slots[i], err);
        if (status == RP_OK && s->named[slots[i]])
            status = rp_fail(err, RP_ERR_INVALID, "slot %d is named twice", slots[i]);
        if (status != RP_OK)
            break;
        s->named[slots[i]] = true;
    }
    while (i-- > 0)
        s->named[slots[i]] = false;
    return status;
}

rp_status rp_gdn_check_seqs(rp_gdn_states *s, size_t n_seqs, const int32_t *slots,
                            const int32_t *cu, size_t *n_rows, rp_error *err)
{
    if (n_seqs && !slots)
        return rp_fail(err, RP_ERR_INVALID, "the batch has %zu sequences and no slots", n_seqs);
    RP_TRY(check_cu(n_seqs, cu, n_rows, err));
    return check_slots(s, n_seqs, slots, err);
}

/* ---- numbers that are none ---------------------------------------------------------------------
 */

static bool bad_row(const rp_gdn_states *s, const struct rp_gdn_named *in, size_t row,
                    size_t *column)
{
    const float *x = in->rows.data + row * in->rows.ld;
    size_t where;
    if (!s->ops->nonfinite(x, in->width, &where))
        return false;
    for (size_t c = where; c < in->width; c++) {
        if (isfinite(x[c]) || (in->log && x[c] < 0))
            continue;
        *column = c;
        return true;
    }
    return false;
}

bool rp_gdn_find_bad(const rp_gdn_states *s, const struct rp_gdn_named *inputs, size_t n_inputs,
                     size_t r0, size_t r1, struct rp_gdn_place *where)
{
    for (where->row = r0; where->row < r1; where->row++) {
        for (size_t i = 0; i < n_inputs; i++) {
            where->input = &inputs[i];
            if (bad_row(s, &inputs[i], where->row, &where->column))
                return true;
        }
    }
    return false;
}

rp_status rp_gdn_fail_bad(const struct rp_gdn_place *p, rp_error *err)
{
    const rp_gdn_input *rows = &p->input->rows;
    return rp_fail(err, RP_ERR_NONFINITE, "%s, row %zu, column %zu is %s", p->input->name, p->row,
                   p->column,
                   isnan(rows->data[p->row * rows->ld + p->column]) ? "NaN" : "infinite");
}

/* ---- slots -------------------------------------------------------------------------------------
 */

size_t rp_gdn_begin(rp_gdn_states *s, struct rp_blocks *blocks, bool over, size_t n_seqs,
                    const int32_t *slots, const int32_t *cu)
{
    size_t n = 0;
    for (size_t i = 0; i < n_seqs; i++) {
        struct rp_gdn_seq seq = {.slot = (size_t)slots[i], .row0 = i, .n = 1};
        if (cu) {
            seq.row0 = (size_t)cu[i];
            seq.n = (size_t)(cu[i + 1] - cu[i]);
        }
        if (seq.n == 0)
            continue;
        seq.from = rp_blocks_read(blocks, seq.slot);
        seq.to = rp_blocks_begin(blocks, seq.slot, over);
        s->seqs[n++] = seq;
    }
    return n;
}

void rp_gdn_end(rp_gdn_states *s, struct rp_blocks *blocks, size_t n, bool keep)
{
    for (size_t i = 0; i < n; i++)
        rp_blocks_end(blocks, s->seqs[i].slot, keep);
}
