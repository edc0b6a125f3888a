/* Qwen3-Next: three layers of four are gated delta nets, experts feed forward, and the weights of
 * norms (but for the gated one) are offsets from one. */
#include "models/family.h"

static const struct rp_decoder_style style = {.linear = true,
                                              .experts = true,
                                              .offset = true,
                                              .output_gate = true,
                                              .partial_rope = true,
                                              .head_dim = 256,
                                              .kv_heads = 2,
                                              .linear_heads = 32,
                                              .packing = RP_LINEAR_FUSED};

static rp_status configure(const struct rp_config *config, union rp_any_body *any, rp_error *err)
{
    return rp_decoder_configure(config, &style, &any->decoder, err);
}

const struct rp_family rp_family_qwen3_next = {.model_type = "qwen3_next",
                                               .prefix = "model.",
                                               .kind = &rp_causal,
                                               .reads = rp_decoder_reads,
                                               .configure = configure};
