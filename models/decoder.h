/* Decoders: bodies whose rows see only what stands before them.  Every layer is of one of three
 * types, and the families differ in what stands around them.
 *
 *     h = embed[id]                                               embed
 *     full and sliding layers, n = norm(h):                       layers.N.attn.norm
 *         q,k,v(,gate) = n W^T, q and k normed, then turned       layers.N.attn.qkv, .q_norm,
 * .k_norm, .rope a = attention(q, k, v) (* sigmoid(gate))                layers.N.attn.core, .gate
 *         h = h + a Wo^T                                          layers.N.attn.out
 *     linear layers (gated delta nets), n = norm(h):              layers.N.gdn.norm_in
 *         q,k,v,z,b,a = n W^T; q,k,v = act(conv(q,k,v))           layers.N.gdn.in, .conv
 *         g, beta = gates(a, b)                                   layers.N.gdn.gates
 *         o = norm(delta(q, k, v, g, beta)) * w * silu(z)         layers.N.gdn.core, .norm
 *         h = h + o Wo^T                                          layers.N.gdn.out
 *     then, n = norm(h):                                          layers.N.ffn.norm
 *         u,v = n W^T; h = h + (act(u) v) Wd^T                    layers.N.ffn.up, .glu, .down
 *       or the experts that a router picks, with a shared one:
 *         s = (act(u) v) Ws^T * sigmoid(n ws^T)                   layers.N.ffn.shared.up to .gated
 *         h = h + s + experts(n, n Wr^T)                          layers.N.ffn.router, .experts
 *     h = norm(h)                                                 final_norm
 *
 * With post_norm, full layers have their norms behind: h = h + norm(attention(h)),
 * h = h + norm(ffn(h)).
 *
 * Projections that read the same rows are one product: the checkpoint's rows are brought into the
 * order above when they are read, however its tensors pack them.
 */
#ifndef RP_MODELS_DECODER_H
#define RP_MODELS_DECODER_H

#include "models/body.h"
#include "models/rope.h"

enum rp_decoder_layer { RP_DECODER_FULL, RP_DECODER_SLIDING, RP_DECODER_LINEAR };

/* How a checkpoint packs the projections of a linear layer. */
enum rp_linear_packing {
    RP_LINEAR_FUSED, /* qkvz and ba, by key head: q, k, then v and z (b and a) of its value heads */
    RP_LINEAR_SPLIT, /* qkv, z, b, a */
    RP_LINEAR_SEPARATE /* q, k, v, z, b, a */
};

/* What tells the families apart. */
struct rp_decoder_style {
    bool sliding, linear; /* types of layers that there may be beside full ones */
    bool experts;
    bool offset;        /* the factor of norms is 1 + w, but for the gated one */
    bool output_gate;   /* q_proj makes [q, gate] of each head */
    bool wide_qk_norm;  /* q and k are normed over all heads at once */
    bool post_norm;     /* of full layers */
    bool last_full;     /* every fourth layer is full whatever full_attention_interval says, and the
                           last one when there are too few for another */
    bool partial_rope;  /* there is a partial_rotary_factor, 0.25 if it is not said */
    bool may_lack_rope; /* a rope_theta of null is none; one that is not said is 10000 */
    bool twice_beta;    /* there is linear_allow_neg_eigval, true if it is not said */
    int64_t head_dim;   /* if it is not said; 0: hidden_size / num_attention_heads */
    int64_t kv_heads;   /* if it is not said; 0 (and where it is null): as attention */
    int64_t
        linear_heads; /* value heads if it is not said, half as many key heads; 0: as attention */
    float gated_eps;  /* of the gated norm; 0: as the others */
    enum rp_linear_packing packing;
};

struct rp_decoder {
    struct rp_body body;
    const struct rp_decoder_style *style;
    int64_t kv_heads;
    bool attention_bias, tied; /* tied: without lm_head.weight the table of ids is the head */
    const json_t *layer_types; /* the list of config.json; NULL: by full_every */
    int64_t full_every;        /* with linear layers: n - 1, 2n - 1, ... are full; 0: all are */
    int64_t first_sliding;     /* without a list: layers from here on slide; INT64_MAX: none */
    int32_t window;            /* of sliding layers: tokens back */
    bool has_rope;
    struct rp_rope_config rope;
    /* Linear layers. */
    int64_t key_heads, value_heads, key_dim, value_dim, kernel;
    float beta_scale;
    /* Experts. */
    int64_t n_experts, n_used, expert_inner, shared_inner, sparse_every;
    bool normalize;
    const json_t *dense_layers; /* mlp_only_layers; NULL: none */
};

/* The keys that rp_config_refuse is to leave to rp_decoder_configure. */
extern const char *const rp_decoder_reads[];

/* Reads config.json (or its text_config), in the spelling of transformers 4 (rope_theta,
 * rope_scaling, full_attention_interval, max_window_layers) or 5 (rope_parameters, layer_types).
 * Lists are borrowed from the configuration.  RP_ERR_FORMAT, RP_ERR_MISSING, RP_ERR_UNSUPPORTED,
 * RP_ERR_LIMIT name the key. */
RP_CHECKED rp_status rp_decoder_configure(const struct rp_config *config,
                                          const struct rp_decoder_style *style,
                                          struct rp_decoder *d, rp_error *err);

/* Refuses attention that looks both ways; also for what stands around a text_config. */
RP_CHECKED rp_status rp_decoder_check_causal(const struct rp_config *config, rp_error *err);

enum rp_decoder_layer rp_decoder_layer_type(const struct rp_decoder *d, int64_t layer);
bool rp_decoder_is_sparse(const struct rp_decoder *d, int64_t layer);

/* Appends the body and returns its last hidden state, after the final norm.  Failures go to the
 * build. */
rp_value rp_decoder_build(struct rp_build *build, const struct rp_decoder *d);

/* The step whose result is hidden state `layer`; the last one is that of the final norm. */
void rp_decoder_hidden_name(const struct rp_decoder *d, size_t layer,
                            char name[RP_STEP_NAME_BYTES]);

/* The language model's logits at the last token.  With `yes` 0 or more: one, that of token yes less
 * that of token no (no -1: nothing is taken off); else those of the whole vocabulary. */
rp_value rp_decoder_logits(struct rp_build *build, const struct rp_decoder *d, rp_value last,
                           int64_t yes, int64_t no);

/* A tensor of every body, for rp_build_use_prefix. */
#define RP_DECODER_TENSOR "embed_tokens.weight"

#endif
