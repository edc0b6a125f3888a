/* DistilBERT: BERT without segments and pooler, with other names for everything, an epsilon that is
 * not configured, and a ReLU before the classifier. */
#include "models/family.h"

#include "pool/error.h"

static const struct rp_encoder_names names = {
    .word = "embeddings.word_embeddings.weight",
    .position = "embeddings.position_embeddings.weight",
    .norm = "embeddings.LayerNorm",
    .layer = "transformer.layer.",
    .q = "attention.q_lin",
    .k = "attention.k_lin",
    .v = "attention.v_lin",
    .out = "attention.out_lin",
    .attn_norm = "sa_layer_norm",
    .up = "ffn.lin1",
    .down = "ffn.lin2",
    .ffn_norm = "output_layer_norm",
};

static rp_status configure(const struct rp_config *config, union rp_any_body *any, rp_error *err)
{
    struct rp_encoder *e = &any->encoder;
    const struct {
        const char *key;
        int64_t *value;
    } sizes[] = {
        {"vocab_size", &e->body.vocab},        {"dim", &e->body.hidden},
        {"n_layers", &e->body.layers},         {"n_heads", &e->body.heads},
        {"hidden_dim", &e->body.intermediate}, {"max_position_embeddings", &e->body.positions},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        RP_TRY(rp_config_size(config, sizes[i].key, RP_JSON_REQUIRED, sizes[i].value, err));
    e->embedding = e->body.hidden;
    e->body.eps = 1e-12f;
    e->body.activation = RP_ACT_GELU;
    RP_TRY(rp_body_split_heads(config, "dim", "n_heads", &e->body, err));
    RP_TRY(rp_config_activation(config, "activation", &e->body.activation, err));
    return rp_body_pad(config, 0, false, &e->body, err);
}

static const struct rp_head classifier = {.first_step = "classifier.dense",
                                          .first_tensor = "pre_classifier",
                                          .activation = RP_ACT_RELU,
                                          .last_step = "classifier",
                                          .last_tensor = "classifier"};

const struct rp_family rp_family_distilbert = {.model_type = "distilbert",
                                               .prefix = "distilbert.",
                                               .kind = &rp_post_norm,
                                               .names = &names,
                                               .classifier = &classifier,
                                               .configure = configure};
