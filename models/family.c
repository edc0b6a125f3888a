/* The table of families, and the kind that most of them are of. */
#include "models/family.h"

#include "pool/error.h"

#include <string.h>

static const struct rp_family *const families[] = {
    &rp_family_bert,  &rp_family_roberta, &rp_family_xlm_roberta, &rp_family_distilbert,
    &rp_family_mpnet, &rp_family_electra, &rp_family_modernbert,
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
    .build = build, .classify = classify, .hidden_name = hidden_name};
