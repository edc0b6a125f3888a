/* BERT: segments, positions from 0, and a classifier on the pooler: W tanh(P h0 + p) + b. */
#include "models/family.h"

#include "pool/error.h"

#include <inttypes.h>

static rp_status configure(const struct rp_config *config, union rp_any_body *any, rp_error *err)
{
    struct rp_encoder *e = &any->encoder;
    RP_TRY(rp_encoder_configure(config, e, err));
    e->body.types = 2;
    RP_TRY(rp_json_whole(&config->json, "type_vocab_size", RP_JSON_OPTIONAL, 0, INT32_MAX,
                         &e->body.types, err));
    /* ELECTRA has narrower embeddings; a BERT that says so is something else. */
    RP_TRY(rp_config_size(config, "embedding_size", RP_JSON_OPTIONAL, &e->embedding, err));
    if (e->embedding != e->body.hidden)
        return rp_fail(err, RP_ERR_UNSUPPORTED,
                       "%s: key \"embedding_size\" is %" PRId64
                       ", but this family has hidden_size, %" PRId64,
                       config->path, e->embedding, e->body.hidden);
    return rp_body_pad(config, 0, false, &e->body, err);
}

static const struct rp_head classifier = {.first_step = "pooler",
                                          .first_tensor = "pooler.dense",
                                          .activation = RP_ACT_TANH,
                                          .last_step = "classifier",
                                          .last_tensor = "classifier"};

const struct rp_family rp_family_bert = {.model_type = "bert",
                                         .prefix = "bert.",
                                         .kind = &rp_post_norm,
                                         .names = &rp_encoder_bert_names,
                                         .classifier = &classifier,
                                         .pooled_head = true,
                                         .has_pooler = true,
                                         .configure = configure};
