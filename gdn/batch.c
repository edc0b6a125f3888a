/* What all runs over slots share (see batch.h). */
#include "gdn/batch.h"

#include "pool/error.h"
#include "pool/memory.h"

#include <math.h>

#define PIECE 256 /* floats on the stack at a time */

rp_status rp_gdn_check_rows(const struct rp_gdn_named *in, size_t n, rp_error *err)
{
    const size_t ld = in->rows.ld;
    const char *what = in->rows.dtype == RP_DTYPE_F32 ? "floats" : "halves";
    size_t last, numbers;
    if (!in->rows.data)
        return rp_fail(err, RP_ERR_INVALID, "%s has no data", in->name);
    if (n > 1 && ld < in->width)
        return rp_fail(err, RP_ERR_INVALID,
                       "%s: rows of %zu %s overlap each other, being %zu apart", in->name,
                       in->width, what, ld);
    if (!rp_mul_ok(n - 1, ld, &last) || !rp_add_ok(last, in->width, &numbers) ||
        numbers > PTRDIFF_MAX / rp_gdn_number_bytes(in->rows.dtype))
        return rp_fail(err, RP_ERR_LIMIT,
                       "%s elements: %zu rows, %zu %s apart, are past what memory can hold",
                       in->name, n, ld, what);
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

static bool bad_floats(const rp_gdn_states *s, const float *x, size_t n, bool log, size_t *column)
{
    size_t where;
    if (!s->ops->nonfinite(x, n, &where))
        return false;
    for (size_t c = where; c < n; c++) {
        if (isfinite(x[c]) || (log && x[c] < 0))
            continue;
        *column = c;
        return true;
    }
    return false;
}

static bool bad_row(const rp_gdn_states *s, const struct rp_gdn_named *in, size_t row,
                    size_t *column)
{
    float x[PIECE];
    if (in->rows.dtype == RP_DTYPE_F32)
        return bad_floats(s, (const float *)in->rows.data + row * in->rows.ld, in->width, in->log,
                          column);
    for (size_t c = 0, n; c < in->width; c += n) {
        n = in->width - c < PIECE ? in->width - c : PIECE;
        rp_gdn_read(s, &in->rows, row, c, x, n);
        if (bad_floats(s, x, n, in->log, column)) {
            *column += c;
            return true;
        }
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

rp_status rp_gdn_fail_bad(const rp_gdn_states *s, const struct rp_gdn_place *p, rp_error *err)
{
    float x;
    rp_gdn_read(s, &p->input->rows, p->row, p->column, &x, 1);
    return rp_fail(err, RP_ERR_NONFINITE, "%s, row %zu, column %zu is %s", p->input->name, p->row,
                   p->column, isnan(x) ? "NaN" : "infinite");
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

void rp_gdn_begin_kept(rp_gdn_states *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct rp_gdn_seq *seq = &s->seqs[i];
        seq->kept_from = rp_blocks_read(&s->conv, seq->slot);
        seq->kept_to = rp_blocks_begin(&s->conv, seq->slot, true);
    }
}

void rp_gdn_end(rp_gdn_states *s, struct rp_blocks *blocks, size_t n, bool keep)
{
    for (size_t i = 0; i < n; i++)
        rp_blocks_end(blocks, s->seqs[i].slot, keep);
}
