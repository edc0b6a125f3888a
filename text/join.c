/* Truncation and templates.
 *
 * A template is a list of pieces, for BERT pairs
 *
 *     [CLS]:0  FIRST:0  [SEP]:0  SECOND:1  [SEP]:1
 *
 * Special tokens are counted first and never cut: with room = max_length - n_special left for the
 * texts, `longest_first` keeps
 *
 *     shorter   min(shorter, room / 2)
 *     longer    room - shorter kept
 *
 * when the two do not fit, where "shorter" is the first text if both are of one length.  That is
 * the closed form of the loop that takes a token from the longer text until all fits.
 */
#include "text/join.h"

#include "pool/error.h"
#include "pool/memory.h"

#include <stdlib.h>
#include <string.h>

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

static void keep_longest_first(size_t room, size_t *first, size_t *second)
{
    size_t *const shorter = *first <= *second ? first : second;
    size_t *const longer = shorter == first ? second : first;

    *shorter = min_size(*shorter, room / 2);
    *longer = room - *shorter;
}

/* One text gives everything that is too much.  The reference keeps at least one token of it. */
static rp_status keep_other(size_t excess, size_t *target, const char *name,
                            const rp_encode_options *options, rp_error *err)
{
    if (*target <= excess)
        return rp_fail(
            err, RP_ERR_LIMIT,
            "max_length %zu: %zu tokens must go, but the %s text, the only one that may be "
            "cut, has %zu",
            options->max_length, excess, name, *target);
    *target -= excess;
    return RP_OK;
}

rp_status rp_join_kept(size_t n_first, size_t n_second, bool pair, size_t n_special,
                       const rp_encode_options *options, size_t *kept_first, size_t *kept_second,
                       rp_error *err)
{
    size_t first = n_first, second = n_second;

    if (options->max_length > 0) {
        if (options->max_length < n_special)
            return rp_fail(err, RP_ERR_INVALID,
                           "max_length %zu is below the %zu special tokens of the %s template",
                           options->max_length, n_special, pair ? "pair" : "single");
        const size_t room = options->max_length - n_special;
        /* Both lengths are below 2^32 (RP_TEXT_MAX_BYTES), so the sum does not wrap. */
        const size_t total = first + second;
        if (total <= room) {
            /* all fits */
        } else if (room == 0) {
            first = second = 0; /* whatever the strategy, as in the reference */
        } else if (options->truncation == RP_TRUNCATE_ONLY_FIRST) {
            RP_TRY(keep_other(total - room, &first, "first", options, err));
        } else if (options->truncation == RP_TRUNCATE_ONLY_SECOND) {
            if (!pair)
                return rp_fail(err, RP_ERR_INVALID,
                               "truncation only_second with a single text of %zu tokens", n_first);
            RP_TRY(keep_other(total - room, &second, "second", options, err));
        } else if (pair) {
            keep_longest_first(room, &first, &second);
        } else {
            first = room;
        }
    }
    *kept_first = first;
    *kept_second = second;
    return RP_OK;
}

/* Room for n tokens in both arrays.  A failure leaves *out as it was. */
static rp_status reserve(rp_encoding *out, size_t n, rp_error *err)
{
    if (n <= out->capacity)
        return RP_OK;

    size_t bytes;
    if (!rp_mul_ok(n, sizeof(int32_t), &bytes))
        return rp_fail(err, RP_ERR_NOMEM, "no memory for %zu token ids", n);
    int32_t *const ids = malloc(bytes);
    int32_t *const type_ids = malloc(bytes);
    if (!ids || !type_ids) {
        free(ids);
        free(type_ids);
        return rp_fail(err, RP_ERR_NOMEM, "no memory for %zu token ids", n);
    }
    free(out->ids);
    free(out->type_ids);
    out->ids = ids;
    out->type_ids = type_ids;
    out->capacity = n;
    return RP_OK;
}

/* The part of a text that stays. */
static struct rp_join_ids cut(struct rp_join_ids text, size_t kept, rp_truncation_side side)
{
    if (side == RP_TRUNCATE_LEFT && kept > 0)
        text.ids += text.n - kept;
    text.n = kept;
    return text;
}

static void append(rp_encoding *out, struct rp_join_ids text, int32_t type_id)
{
    if (text.n > 0)
        memcpy(out->ids + out->n, text.ids, text.n * sizeof(*text.ids));
    for (size_t i = 0; i < text.n; i++)
        out->type_ids[out->n + i] = type_id;
    out->n += text.n;
}

rp_status rp_join(struct rp_join_ids first, struct rp_join_ids second,
                  const struct rp_join_template *form, const rp_encode_options *options,
                  rp_encoding *out, rp_error *err)
{
    const size_t full_n = first.n + second.n + form->n_special;
    size_t kept_first = 0, kept_second = 0;

    RP_TRY(rp_join_kept(first.n, second.n, form->pair, form->n_special, options, &kept_first,
                        &kept_second, err));
    RP_TRY(reserve(out, kept_first + kept_second + form->n_special, err));

    first = cut(first, kept_first, options->side);
    second = cut(second, kept_second, options->side);
    out->n = 0;
    for (size_t i = 0; i < form->n_pieces; i++) {
        const struct rp_crate_piece *const piece = &form->pieces[i];
        if (piece->id == RP_CRATE_FIRST)
            append(out, first, piece->type_id);
        else if (piece->id == RP_CRATE_SECOND)
            append(out, second, piece->type_id);
        else
            append(out, (struct rp_join_ids){&piece->id, 1}, piece->type_id);
    }
    out->n_first = kept_first;
    out->n_second = kept_second;
    out->full_n = full_n;
    out->truncated = out->n < full_n;
    return RP_OK;
}
