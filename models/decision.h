/* The decision scorer: a question with options in one text, a logit for each option, and whether to
 * act on the answer.
 *
 *     h      = ModernBERT(ids)                                layers.N.*, final_norm
 *     pooled = mean of h                                      pooled
 *     h      = h + type_emb[question type]                    types
 *     for each head layer (as torch's TransformerEncoderLayer, norm first, heads of 64):
 *         h  = h + attention(norm(h))                         head.N.attn.norm, .qkv, .core, .out
 *         h  = h + W2 relu(W1 norm(h))                        head.N.ffn.norm, .up, .down
 *     logits = w gelu(W norm(h[marker]))                      markers, scorer.norm, .dense, logits
 *     act    = W2 gelu(W1 [h of the first token, features])   act.features, .dense, act
 *
 * Two layouts are read: one folder with a config.json (architecture DecisionModel, or the tensors
 * of one), and Laya's, where rl_agent_config.json says what the head is and encoder/config.json
 * what the body is.
 */
#ifndef RP_MODELS_DECISION_H
#define RP_MODELS_DECISION_H

#include "models/folder.h"
#include "models/modernbert.h"

#define RP_DECISION_AGENT "rl_agent_config.json"
#define RP_DECISION_TYPES 3 /* that have names: choice, score, noul */
extern const char *const rp_decision_type_names[RP_DECISION_TYPES];

struct rp_decision {
    struct rp_json agent; /* Laya's file; object NULL: there is none */
    char *agent_path;
    char *encoder; /* the folder of the body's config.json, when it is not the model's */
    int64_t types, layers;
    float *temperatures; /* of each type */
    /* Of a type and a number of options: 2 or fewer, 3 to 5, 6 to 10, more.  0: the type's own. */
    float by_options[RP_DECISION_TYPES][4];
};

/* Opens Laya's file if the folder has one, and takes its max_len as the folder's. */
RP_CHECKED rp_status rp_decision_open(struct rp_folder *folder, struct rp_decision *d,
                                      rp_error *err);
void rp_decision_close(struct rp_decision *d);

/* Whether the model is one: its files say so, or it has the tensors. */
bool rp_decision_is(const struct rp_decision *d, const struct rp_config *config,
                    const struct rp_tensors *tensors);

/* Reads how many types and layers there are, and the temperatures.  RP_ERR_UNSUPPORTED: a body that
 * no scorer has. */
RP_CHECKED rp_status rp_decision_configure(struct rp_decision *d, const struct rp_config *config,
                                           const struct rp_tensors *tensors,
                                           const struct rp_body *body, rp_error *err);

struct rp_decision_values {
    rp_value last, pooled, logits, features, act;
};

/* Appends body and head.  Failures go to the build. */
void rp_decision_build(struct rp_build *build, const struct rp_decision *d,
                       const struct rp_modernbert *m, struct rp_decision_values *out);

/* Refuses a checkpoint with tensors that nothing used: a head layer too many would otherwise go
 * unnoticed.  RP_ERR_FORMAT. */
RP_CHECKED rp_status rp_decision_refuse_extra(const struct rp_tensors *tensors, rp_error *err);

/* The temperature of a question; 1 for a type that there is none of. */
float rp_decision_temperature(const struct rp_decision *d, size_t type, size_t n_options);

#endif
