/* Qwen3: full attention, or in its last layers a window; norms' weights as they are. */
#include "models/family.h"

static const struct rp_decoder_style style = {.sliding = true, .head_dim = 128, .kv_heads = 32};

static rp_status configure(const struct rp_config *config, union rp_any_body *any, rp_error *err)
{
    return rp_decoder_configure(config, &style, &any->decoder, err);
}

const struct rp_family rp_family_qwen3 = {.model_type = "qwen3",
                                          .prefix = "model.",
                                          .kind = &rp_causal,
                                          .reads = rp_decoder_reads,
                                          .configure = configure};
