/* MPNet: BERT without segments, with a bias on the attention scores that depends on the distance of
 * two tokens and is shared by all layers.  Positions count from 2 whatever pad_token_id says: the
 * reference fixes the pad that they are counted from at 1. */
#include "models/family.h"

#include "pool/error.h"

#include <inttypes.h>

#define PAD 1

static const struct rp_encoder_names names = {
    .word = "embeddings.word_embeddings.weight",
    .position = "embeddings.position_embeddings.weight",
    .norm = "embeddings.LayerNorm",
    .layer = "encoder.layer.",
    .q = "attention.attn.q",
    .k = "attention.attn.k",
    .v = "attention.attn.v",
    .out = "attention.attn.o",
    .attn_norm = "attention.LayerNorm",
    .up = "intermediate.dense",
    .down = "output.dense",
    .ffn_norm = "output.LayerNorm",
    .rel_bias = "encoder.relative_attention_bias.weight",
};

static rp_status configure(const struct rp_config *config, union rp_any_body *any, rp_error *err)
{
    struct rp_encoder *e = &any->encoder;
    RP_TRY(rp_encoder_configure(config, e, err));
    e->rel_buckets = 32;
    RP_TRY(rp_json_whole(&config->json, "relative_attention_num_buckets", RP_JSON_OPTIONAL, 4, 256,
                         &e->rel_buckets, err));
    if (e->rel_buckets % 2 != 0)
        return rp_fail(err, RP_ERR_FORMAT,
                       "%s: key \"relative_attention_num_buckets\" is %" PRId64
                       ", but half of the buckets are for each side",
                       config->path, e->rel_buckets);
    RP_TRY(rp_body_pad(config, PAD, false, &e->body, err));
    e->body.first_position = PAD + 1;
    return RP_OK;
}

const struct rp_family rp_family_mpnet = {.model_type = "mpnet",
                                          .prefix = "mpnet.",
                                          .kind = &rp_post_norm,
                                          .names = &names,
                                          .classifier = &rp_head_tanh,
                                          .has_pooler = true,
                                          .configure = configure};
