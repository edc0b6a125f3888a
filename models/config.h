/* config.json: what a family asks of it, what it must not say, and what it may say without effect.
 *
 * Families read the keys that they use.  Beside that, rp_config_refuse refuses keys that the family
 * does not read and whose value would change the computation into one that is not done here
 * (position_embedding_type "alibi", is_decoder true, rope_theta for a BERT, ...), and
 * rp_config_note_unknown reports the keys that nobody read and that are not on the list of harmless
 * ones.
 */
#ifndef RP_MODELS_CONFIG_H
#define RP_MODELS_CONFIG_H

#include "models/json.h"
#include "models/notes.h"

#include <rankplan/graph.h>

struct rp_config {
    struct rp_json json;
    char *path;               /* of the file; json.file points here */
    const char *model_type;   /* belongs to json, as all strings here */
    const char *architecture; /* architectures[0]; "" when absent */
    struct rp_json text;      /* text_config, where it is an object; else its object is NULL */
    char *text_path;          /* "PATH: text_config", of its messages */
};

/* Reads FOLDER/config.json. */
RP_CHECKED rp_status rp_config_open(const char *folder, struct rp_config *out, rp_error *err);
void rp_config_close(struct rp_config *config);

/* Refuses what is on the list of refusals, leaving out the keys in `read`, which the family reads
 * itself (a list that ends with NULL; NULL for none).  RP_ERR_UNSUPPORTED. */
RP_CHECKED rp_status rp_config_refuse(const struct rp_config *config, const char *const *read,
                                      rp_error *err);

/* A size: a whole number from 1 to 2^31-1. */
RP_CHECKED rp_status rp_config_size(const struct rp_config *config, const char *key,
                                    enum rp_json_need need, int64_t *value, rp_error *err);

/* The epsilon of a norm: above 0 as a float, below 1. */
RP_CHECKED rp_status rp_config_epsilon(const struct rp_config *config, const char *key,
                                       float *value, rp_error *err);

/* An activation by Hugging Face's name; the key may be absent. */
RP_CHECKED rp_status rp_config_activation(const struct rp_config *config, const char *key,
                                          rp_activation *value, rp_error *err);

/* The labels of a classifier: id2label, else num_labels (or 2) of them without names.  Both must
 * agree.
 * (*names)[i] is NULL for a label without a name; the array is to be freed, the names belong to
 * json. */
#define RP_CONFIG_MAX_LABELS 65536
RP_CHECKED rp_status rp_config_labels(const struct rp_config *config, size_t *n,
                                      const char ***names, rp_error *err);

/* An activation by the name of its torch class, "torch.nn.modules.activation.Sigmoid".  Only names
 * on a list are known; nothing is ever imported.  `file` and `key` are for messages. */
RP_CHECKED rp_status rp_torch_activation(const char *file, const char *key, const char *name,
                                         rp_activation *out, rp_error *err);

/* Adds a note with the keys that nobody knows. */
RP_CHECKED rp_status rp_config_note_unknown(const struct rp_config *config, struct rp_notes *notes,
                                            rp_error *err);

#endif
