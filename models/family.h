/* The families that can be loaded: one file each, one row here.
 *
 * A family reads its keys of config.json into a body of its kind; the kind appends that body to the
 * graph and puts a classifier on it.  Everything around that (folder, pooling, activation of
 * scores) is shared and knows of a body only its sizes.
 */
#ifndef RP_MODELS_FAMILY_H
#define RP_MODELS_FAMILY_H

#include "models/build.h"
#include "models/config.h"
#include "models/decoder.h"
#include "models/encoder.h"
#include "models/modernbert.h"

/* What config.json comes to.  Each kind's struct begins with the sizes. */
union rp_any_body {
    struct rp_body body;
    struct rp_encoder encoder;
    struct rp_modernbert modernbert;
    struct rp_decoder decoder;
};

struct rp_family;

/* How bodies of a kind become ops.  Failures go to the build. */
struct rp_body_kind {
    /* Finds out whether the checkpoint has the family's prefix, appends the body and returns its
     * last hidden state. */
    rp_value (*build)(struct rp_build *build, const struct rp_family *family,
                      const union rp_any_body *any);

    /* Appends the classifier and returns its logits.  `pooled` receives the row that it works on
     * when that is the body's pooler. */
    rp_value (*classify)(struct rp_build *build, const struct rp_family *family,
                         const union rp_any_body *any, rp_value last, size_t n_labels,
                         rp_value *pooled);

    /* Of language models, else NULL: appends their head as rp_decoder_logits does. */
    rp_value (*predict)(struct rp_build *build, const union rp_any_body *any, rp_value last,
                        int64_t yes, int64_t no);

    /* The step whose result is hidden state `layer`. */
    void (*hidden_name)(const union rp_any_body *any, size_t layer, char name[RP_STEP_NAME_BYTES]);

    /* How rows are pooled when the folder does not say. */
    rp_pooling pooling;
};

extern const struct rp_body_kind rp_post_norm; /* encoder.h */
extern const struct rp_body_kind rp_causal;    /* decoder.h */

struct rp_family {
    const char *model_type; /* of config.json */
    const char *prefix;     /* of the body's tensors in checkpoints with a head */
    const struct rp_body_kind *kind;
    const char *const *reads; /* keys that others refuse and this family reads; see config.h */
    rp_status (*configure)(const struct rp_config *config, union rp_any_body *any, rp_error *err);
    /* Of post-norm encoders. */
    const struct rp_encoder_names *names;
    const struct rp_head *classifier; /* of FamilyForSequenceClassification */
    bool pooled_head;                 /* the classifier's first layer is the body's pooler */
    bool has_pooler;                  /* the bare model may have a pooler */
};

extern const struct rp_family rp_family_bert, rp_family_roberta, rp_family_xlm_roberta,
    rp_family_distilbert, rp_family_mpnet, rp_family_electra, rp_family_modernbert, rp_family_qwen3,
    rp_family_qwen3_next, rp_family_qwen3_5, rp_family_qwen3_5_text, rp_family_olmo_hybrid;

/* The family of a model_type; the error lists those that there are. */
RP_CHECKED rp_status rp_family_find(const struct rp_config *config, const struct rp_family **out,
                                    rp_error *err);

/* Heads of more than one family: dense with tanh, then out_proj. */
extern const struct rp_head rp_head_tanh;

#endif
