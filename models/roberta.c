/* RoBERTa and XLM-R: BERT's encoder with positions that count from pad + 1 and leave pads at pad,
 * so the table has pad + 1 rows more than a text may have tokens.  The classifier has a dense layer
 * of its own. */
#include "models/family.h"

#include "pool/error.h"

const struct rp_head rp_head_tanh = {.first_step = "classifier.dense",
                                     .first_tensor = "classifier.dense",
                                     .activation = RP_ACT_TANH,
                                     .last_step = "classifier",
                                     .last_tensor = "classifier.out_proj"};

static rp_status configure(const struct rp_config *config, union rp_any_body *any, rp_error *err)
{
    struct rp_encoder *e = &any->encoder;
    RP_TRY(rp_encoder_configure(config, e, err));
    e->body.types = 2;
    RP_TRY(rp_json_whole(&config->json, "type_vocab_size", RP_JSON_OPTIONAL, 0, INT32_MAX,
                         &e->body.types, err));
    RP_TRY(rp_body_pad(config, 1, true, &e->body, err));
    e->body.first_position = e->body.pad + 1;
    return RP_OK;
}

const struct rp_family rp_family_roberta = {.model_type = "roberta",
                                            .prefix = "roberta.",
                                            .kind = &rp_post_norm,
                                            .names = &rp_encoder_bert_names,
                                            .classifier = &rp_head_tanh,
                                            .has_pooler = true,
                                            .configure = configure};

/* The same prefix: XLM-R's classes derive from RoBERTa's. */
const struct rp_family rp_family_xlm_roberta = {.model_type = "xlm-roberta",
                                                .prefix = "roberta.",
                                                .kind = &rp_post_norm,
                                                .names = &rp_encoder_bert_names,
                                                .classifier = &rp_head_tanh,
                                                .has_pooler = true,
                                                .configure = configure};
