/* OLMo hybrid: gated delta nets with the norms before them, and full attention with the norms
 * behind it, q and k normed as wholes, and rotary positions unless rope_theta is null. */
#include "models/family.h"

static const struct rp_decoder_style style = {.linear = true,
                                              .wide_qk_norm = true,
                                              .post_norm = true,
                                              .last_full = true,
                                              .may_lack_rope = true,
                                              .twice_beta = true,
                                              .gated_eps = 1e-5f, /* fixed in the reference */
                                              .packing = RP_LINEAR_SEPARATE};

static rp_status configure(const struct rp_config *config, union rp_any_body *any, rp_error *err)
{
    return rp_decoder_configure(config, &style, &any->decoder, err);
}

const struct rp_family rp_family_olmo_hybrid = {.model_type = "olmo_hybrid",
                                                .prefix = "model.",
                                                .kind = &rp_causal,
                                                .reads = rp_decoder_reads,
                                                .configure = configure};
