/* ELECTRA (the discriminator): BERT with embeddings that may be narrower than the layers and are
 * then projected, no pooler, and a classifier with a GELU. */
#include "models/family.h"

#include "pool/error.h"

static rp_status configure(const struct rp_config *config, union rp_any_body *any, rp_error *err)
{
    struct rp_encoder *e = &any->encoder;
    RP_TRY(rp_encoder_configure(config, e, err));
    e->body.types = 2;
    RP_TRY(rp_json_whole(&config->json, "type_vocab_size", RP_JSON_OPTIONAL, 0, INT32_MAX,
                         &e->body.types, err));
    RP_TRY(rp_config_size(config, "embedding_size", RP_JSON_REQUIRED, &e->embedding, err));
    return rp_body_pad(config, 0, false, &e->body, err);
}

static const struct rp_head classifier = {.first_step = "classifier.dense",
                                          .first_tensor = "classifier.dense",
                                          .activation = RP_ACT_GELU,
                                          .last_step = "classifier",
                                          .last_tensor = "classifier.out_proj"};

const struct rp_family rp_family_electra = {.model_type = "electra",
                                            .prefix = "electra.",
                                            .kind = &rp_post_norm,
                                            .names = &rp_encoder_bert_names,
                                            .classifier = &classifier,
                                            .configure = configure};
