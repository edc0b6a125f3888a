/* The post-norm encoder that BERT and its kin share: sizes, tensor names, and the graph built from
 * them.
 *
 *     x = norm(word[id] + type[segment] + position[p])            embeddings.sum, embeddings.norm
 *     x = x W^T + b, when embeddings are narrower (ELECTRA)       embeddings.project
 *     for each layer:
 *         q,k,v = x Wqkv^T + b                                    layers.N.attn.qkv
 *         a     = attention(q, k, v)                              layers.N.attn.core
 *         x     = norm(x + a Wo^T + b)                            layers.N.attn.out, .norm
 *         x     = norm(x + act(x Wup^T + b) Wdown^T + b)          layers.N.ffn.up, .down, .norm
 */
#ifndef RP_MODELS_ENCODER_H
#define RP_MODELS_ENCODER_H

#include "models/body.h"

struct rp_encoder {
    struct rp_body body;
    int64_t embedding;   /* width of the embedding tables; hidden unless they are projected */
    int64_t rel_buckets; /* MPNet's relative bias; 0: none */
};

/* Names within the checkpoint, without the model's prefix.  Those of a layer follow `layer` and its
 * number. */
struct rp_encoder_names {
    const char *word, *position, *type, *norm, *project;
    const char *layer; /* "encoder.layer." */
    const char *q, *k, *v, *out, *attn_norm;
    const char *up, *down, *ffn_norm;
    const char *rel_bias;
};

extern const struct rp_encoder_names rp_encoder_bert_names; /* BERT, RoBERTa, ELECTRA */

/* Reads the keys that BERT, RoBERTa, MPNet and ELECTRA share: those of rp_body_configure,
 * layer_norm_eps and hidden_act. */
RP_CHECKED rp_status rp_encoder_configure(const struct rp_config *config, struct rp_encoder *e,
                                          rp_error *err);

/* Appends the encoder and returns its last hidden state.  Failures go to the build. */
rp_value rp_encoder_build(struct rp_build *build, const struct rp_encoder *e,
                          const struct rp_encoder_names *names);

/* The step whose result is hidden state `layer`. */
void rp_encoder_hidden_name(const struct rp_encoder *e, size_t layer,
                            char name[RP_STEP_NAME_BYTES]);

/* Heads on the first row of a sequence: activation(W1 x + b1), then W2 x + b2.  Step names are
 * those given; `pooled` (NULL allowed) receives the value between. */
struct rp_head {
    const char *first_step, *first_tensor;
    rp_activation activation;
    const char *last_step, *last_tensor;
};
rp_value rp_encoder_head(struct rp_build *build, const struct rp_encoder *e,
                         const struct rp_head *head, rp_value last, size_t n_labels,
                         rp_value *pooled);

/* BERT's pooler as an output of its own: tanh(W x + b) of the first row; -1 when the checkpoint has
 * none. */
rp_value rp_encoder_pooler(struct rp_build *build, const struct rp_encoder *e, rp_value last);

#endif
