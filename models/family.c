/* The table of families, and the two kinds that most of them are of. */
#include "models/family.h"

#include "pool/error.h"

#include <string.h>

static const struct rp_family *const families[] = {
    &rp_family_bert,       &rp_family_roberta, &rp_family_xlm_roberta,  &rp_family_distilbert,
    &rp_family_mpnet,      &rp_family_electra, &rp_family_modernbert,   &rp_family_qwen3,
    &rp_family_qwen3_next, &rp_family_qwen3_5, &rp_family_qwen3_5_text, &rp_family_olmo_hybrid,
};

rp_status rp_family_find(const struct rp_config *config, const struct rp_family **out,
                         rp_error *err)
{
    struct rp_name_list names = {0};
    char shown[RP_SHOWN_BYTES];
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        if (strcmp(families[i]->model_type, config->model_type) == 0) {
            *out = families[i];
            return RP_OK;
        }
        rp_name_list_add(&names, families[i]->model_type);
    }
    return rp_fail(err, RP_ERR_UNSUPPORTED, "%s: model_type \"%s\" is none of %s", config->path,
                   rp_show(config->model_type, shown), rp_name_list_text(&names));
}

/* ---- post-norm encoders -----------------------------------------------------------------------
 */

static rp_value build(struct rp_build *build, const struct rp_family *family,
                      const union rp_any_body *any)
{
    rp_build_use_prefix(build, family->prefix, family->names->word);
    return rp_encoder_build(build, &any->encoder, family->names);
}

static rp_value classify(struct rp_build *build, const struct rp_family *family,
                         const union rp_any_body *any, rp_value last, size_t n_labels,
                         rp_value *pooled)
{
    return rp_encoder_head(build, &any->encoder, family->classifier, last, n_labels, pooled);
}

static void hidden_name(const union rp_any_body *any, size_t layer, char name[RP_STEP_NAME_BYTES])
{
    rp_encoder_hidden_name(&any->encoder, layer, name);
}

const struct rp_body_kind rp_post_norm = {
    .build = build, .classify = classify, .hidden_name = hidden_name, .pooling = RP_POOL_MEAN};

/* ---- decoders ---------------------------------------------------------------------------------
 */

/* A model that also sees pictures says model.language_model., or language_model. without a head. */
static rp_value build_causal(struct rp_build *build, const struct rp_family *family,
                             const union rp_any_body *any)
{
    static const char *const others[] = {"model.", "language_model."};
    rp_build_use_prefix(build, family->prefix, RP_DECODER_TENSOR);
    for (size_t i = 0; i < 2 && !build->prefix[0]; i++)
        rp_build_use_prefix(build, others[i], RP_DECODER_TENSOR);
    return rp_decoder_build(build, &any->decoder);
}

/* score, without a bias, of the last token. */
static rp_value classify_causal(struct rp_build *build, const struct rp_family *family,
                                const union rp_any_body *any, rp_value last, size_t n_labels,
                                rp_value *pooled)
{
    (void)family;
    (void)pooled;
    const rp_value x = rp_graph_pool(build->graph, "pool.last", last, RP_POOL_LAST);
    return rp_build_linear_opt(build, "score", "score", x, (uint64_t)any->body.hidden, n_labels,
                               false, RP_ACT_NONE, -1);
}

static rp_value predict_causal(struct rp_build *build, const union rp_any_body *any, rp_value last,
                               int64_t yes, int64_t no)
{
    return rp_decoder_logits(build, &any->decoder, last, yes, no);
}

static void hidden_name_causal(const union rp_any_body *any, size_t layer,
                               char name[RP_STEP_NAME_BYTES])
{
    rp_decoder_hidden_name(&any->decoder, layer, name);
}

const struct rp_body_kind rp_causal = {.build = build_causal,
                                       .classify = classify_causal,
                                       .predict = predict_causal,
                                       .hidden_name = hidden_name_causal,
                                       .pooling = RP_POOL_LAST};
