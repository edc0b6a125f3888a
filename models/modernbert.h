/* ModernBERT: a pre-norm encoder with rotary positions, gated feed-forward layers, and attention
 * that in most layers sees only a window.
 *
 *     x = norm(tok[id])                                       embeddings.tok, embeddings.norm
 *     for each layer:
 *         h = norm(x), x itself in layer 0                    layers.N.attn.norm
 *         q,k,v = h Wqkv^T, q and k turned                    layers.N.attn.qkv, .rope
 *         x = x + attention(q, k, v) Wo^T                     layers.N.attn.core, .out
 *         a,b = norm(x) Wi^T                                  layers.N.ffn.norm, .up
 *         x = x + (act(a) b) Wo^T                             layers.N.ffn.glu, .down
 *     x = norm(x)                                             final_norm
 *
 * Layers are "full_attention" or "sliding_attention"; the latter see local_attention / 2 tokens to
 * either side and have a base of rotary positions of their own.
 */
#ifndef RP_MODELS_MODERNBERT_H
#define RP_MODELS_MODERNBERT_H

#include "models/body.h"
#include "models/rope.h"

enum rp_modernbert_layer { RP_MODERNBERT_FULL, RP_MODERNBERT_SLIDING };

struct rp_modernbert {
    struct rp_body body;
    bool norm_bias, attention_bias, mlp_bias;
    const json_t *layer_types;     /* the list of config.json; NULL: by full_every */
    int64_t full_every;            /* layers 0, n, 2n, ... are full */
    int32_t window;                /* of the others, to either side */
    struct rp_rope_config rope[2]; /* by enum rp_modernbert_layer */
    /* Of ModernBertForSequenceClassification. */
    rp_pooling classifier_pooling;
    rp_activation classifier_activation;
    bool classifier_bias;
};

/* A tensor of every body, for rp_build_use_prefix. */
#define RP_MODERNBERT_TENSOR "embeddings.tok_embeddings.weight"

/* The keys that rp_config_refuse is to leave to rp_modernbert_configure. */
extern const char *const rp_modernbert_reads[];

/* Reads config.json, in the spelling of transformers 4 (global_attn_every_n_layers,
 * global_rope_theta, local_rope_theta) or 5 (layer_types, rope_parameters).  Lists are borrowed
 * from the configuration, which has to outlive the building.  RP_ERR_FORMAT, RP_ERR_MISSING,
 * RP_ERR_UNSUPPORTED, RP_ERR_LIMIT name the key. */
RP_CHECKED rp_status rp_modernbert_configure(const struct rp_config *config,
                                             struct rp_modernbert *m, rp_error *err);

/* Appends the body and returns its last hidden state, after the final norm.  Failures go to the
 * build. */
rp_value rp_modernbert_build(struct rp_build *build, const struct rp_modernbert *m);

/* One layer on x, or its feed-forward half alone; `names` has the layer's number. */
rp_value rp_modernbert_layer(struct rp_build *build, const struct rp_modernbert *m,
                             struct rp_layer_names *names, rp_value x);
rp_value rp_modernbert_ffn(struct rp_build *build, const struct rp_modernbert *m,
                           struct rp_layer_names *names, rp_value x);

/* The step whose result is hidden state `layer`; the last one is that of the final norm. */
void rp_modernbert_hidden_name(const struct rp_modernbert *m, size_t layer,
                               char name[RP_STEP_NAME_BYTES]);

enum rp_modernbert_layer rp_modernbert_layer_type(const struct rp_modernbert *m, int64_t layer);

#endif
