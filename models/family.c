/* The table of families. */
#include "models/family.h"

#include "pool/error.h"

#include <string.h>

static const struct rp_family *const families[] = {
    &rp_family_bert,       &rp_family_roberta, &rp_family_xlm_roberta,
    &rp_family_distilbert, &rp_family_mpnet,   &rp_family_electra,
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
