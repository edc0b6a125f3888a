/* A body: the part of a model below its head.  Its sizes, which every family has, and the checks of
 * them that families share.
 */
#ifndef RP_MODELS_BODY_H
#define RP_MODELS_BODY_H

#include "models/build.h"
#include "models/config.h"

struct rp_body {
    int64_t vocab, hidden, layers, heads, head_dim, intermediate, positions;
    int64_t first_position; /* 0, or pad + 1 where positions skip pads (RoBERTa) */
    int64_t types;          /* rows of the segment table; 0: there is none */
    int64_t pad;            /* -1: none */
    float eps;              /* of its norms */
    rp_activation activation;
};

/* Reads the keys that most families share and checks them against each other: vocab_size,
 * hidden_size, num_hidden_layers, num_attention_heads, num_key_value_heads (as many as heads),
 * head_dim, intermediate_size, max_position_embeddings. */
RP_CHECKED rp_status rp_body_configure(const struct rp_config *config, struct rp_body *body,
                                       rp_error *err);

/* Reads vocab_size, hidden_size, num_hidden_layers, num_attention_heads, intermediate_size and
 * max_position_embeddings alone. */
RP_CHECKED rp_status rp_body_sizes(const struct rp_config *config, struct rp_body *body,
                                   rp_error *err);

/* heads divides hidden, or config.json states head_dim. */
RP_CHECKED rp_status rp_body_split_heads(const struct rp_config *config, const char *hidden_key,
                                         const char *heads_key, struct rp_body *body,
                                         rp_error *err);

/* pad_token_id: a row of the vocabulary, or null.  RoBERTa counts positions from it, so there null
 * is refused. */
RP_CHECKED rp_status rp_body_pad(const struct rp_config *config, int64_t absent, bool needed,
                                 struct rp_body *body, rp_error *err);

/* A layer needs several tensors, so a checkpoint with fewer tensors than layers is refused before
 * any loop runs over them. */
bool rp_body_has_layers(struct rp_build *build, const struct rp_body *body);

/* True when so many tensors are missing that the rest of the layers adds nothing to the message. */
bool rp_body_lacks_enough(const struct rp_build *build);

/* Names of one layer: "layers.3.attn.qkv" of steps and "encoder.layer.3.attention.self.query" of
 * tensors.  Each name is good until the next of its kind. */
#define RP_LAYER_NAME_BYTES 160
struct rp_layer_names {
    const char *tensors; /* "encoder.layer." */
    const char *steps;   /* put before the names of steps; NULL: nothing */
    int64_t layer;
    char step[RP_LAYER_NAME_BYTES], tensor[RP_LAYER_NAME_BYTES];
};
const char *rp_layer_step(struct rp_layer_names *names, const char *what);
const char *rp_layer_tensor(struct rp_layer_names *names, const char *what);

/* Bytes of a step's name that rp_model_hidden_name may give. */
#define RP_STEP_NAME_BYTES 64

#endif
