/* The families that can be loaded: one file each, one row here.
 *
 * A family reads its keys of config.json into an rp_encoder, appends its encoder to the graph, and
 * knows what its classifier looks like.  Everything around that (folder, pooling, activation of
 * scores) is shared.
 */
#ifndef RP_MODELS_FAMILY_H
#define RP_MODELS_FAMILY_H

#include "models/build.h"
#include "models/config.h"
#include "models/encoder.h"

struct rp_family {
    const char *model_type; /* of config.json */
    const char *prefix;     /* of the body's tensors in checkpoints with a head */
    const struct rp_encoder_names *names;
    const struct rp_head *classifier; /* of FamilyForSequenceClassification */
    bool pooled_head;                 /* the classifier's first layer is the body's pooler */
    bool has_pooler;                  /* the bare model may have a pooler */
    rp_status (*configure)(const struct rp_config *config, struct rp_encoder *e, rp_error *err);
};

extern const struct rp_family rp_family_bert, rp_family_roberta, rp_family_xlm_roberta,
    rp_family_distilbert, rp_family_mpnet, rp_family_electra;

/* The family of a model_type; the error lists those that there are. */
RP_CHECKED rp_status rp_family_find(const struct rp_config *config, const struct rp_family **out,
                                    rp_error *err);

/* Heads of more than one family: dense with tanh, then out_proj. */
extern const struct rp_head rp_head_tanh;

#endif
