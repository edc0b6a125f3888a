/* Truncation and templates: from the ids of one or two texts to what a model reads.  Pure functions
 * on arrays; no tokenizer needed. */
#ifndef RP_TEXT_JOIN_H
#define RP_TEXT_JOIN_H

#include "text/crate.h"

#include <rankplan/tokenizer.h>

struct rp_join_ids {
    const int32_t *ids;
    size_t n;
};

struct rp_join_template {
    const struct rp_crate_piece *pieces;
    size_t n_pieces;
    size_t n_special;
    bool pair;
};

/* How many tokens of each text stay.  `special` is what the template adds.  Follows the reference's
 * rules; refuses what the reference would leave uncut without a word (max_length < n_special). */
rp_status rp_join_kept(size_t n_first, size_t n_second, bool pair, size_t n_special,
                       const rp_encode_options *options, size_t *kept_first, size_t *kept_second,
                       rp_error *err);

/* Cuts, then fills *out from the template.  A single text's `second` has n = 0. */
rp_status rp_join(struct rp_join_ids first, struct rp_join_ids second,
                  const struct rp_join_template *form, const rp_encode_options *options,
                  rp_encoding *out, rp_error *err);

#endif
