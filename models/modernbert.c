/* See modernbert.h. */
#include "models/family.h"

#include "pool/error.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const layer_names[] = {"full_attention", "sliding_attention"};
static const double default_thetas[] = {160000, 10000};

#define DEFAULT_PAD 50283

/* ---- layers -----------------------------------------------------------------------------------
 */

const char *const rp_modernbert_reads[] = {"attention_bias",
                                           "hidden_activation",
                                           "layer_types",
                                           "local_attention",
                                           "mlp_bias",
                                           "rope_parameters",
                                           "rope_scaling",
                                           "rope_theta",
                                           "sliding_window",
                                           "position_embedding_type",
                                           NULL};

enum rp_modernbert_layer rp_modernbert_layer_type(const struct rp_modernbert *m, int64_t layer)
{
    if (m->layer_types) {
        const char *name = json_string_value(json_array_get(m->layer_types, (size_t)layer));
        return strcmp(name, layer_names[RP_MODERNBERT_FULL]) == 0 ? RP_MODERNBERT_FULL
                                                                  : RP_MODERNBERT_SLIDING;
    }
    return layer % m->full_every == 0 ? RP_MODERNBERT_FULL : RP_MODERNBERT_SLIDING;
}

/* layer_types says it for each layer; global_attn_every_n_layers, which may still stand beside it,
 * then says nothing, as in the reference. */
static rp_status read_layer_types(const struct rp_config *config, struct rp_modernbert *m,
                                  rp_error *err)
{
    m->full_every = 3;
    RP_TRY(rp_config_size(config, "global_attn_every_n_layers", RP_JSON_OPTIONAL, &m->full_every,
                          err));
    m->layer_types = rp_json_get(&config->json, "layer_types");
    if (!m->layer_types)
        return RP_OK;
    const size_t n = json_is_array(m->layer_types) ? json_array_size(m->layer_types) : 0;
    if (n != (uint64_t)m->body.layers)
        return rp_fail(err, RP_ERR_FORMAT,
                       "%s: key \"layer_types\" is not a list of num_hidden_layers, %" PRId64
                       ", types",
                       config->path, m->body.layers);
    for (size_t i = 0; i < n; i++) {
        const json_t *type = json_array_get(m->layer_types, i);
        char shown[RP_JSON_SHOWN_BYTES];
        const char *name = json_is_string(type) ? json_string_value(type) : "";
        if (strcmp(name, layer_names[0]) != 0 && strcmp(name, layer_names[1]) != 0)
            return rp_fail(err, RP_ERR_UNSUPPORTED,
                           "%s: key \"layer_types\" has %s, which is neither full_attention nor "
                           "sliding_attention",
                           config->path, rp_json_show(type, shown));
    }
    return RP_OK;
}

static bool has_layer_of(const struct rp_modernbert *m, enum rp_modernbert_layer type)
{
    if (!m->layer_types)
        return type == RP_MODERNBERT_FULL || (m->full_every > 1 && m->body.layers > 1);
    for (int64_t i = 0; i < m->body.layers; i++)
        if (rp_modernbert_layer_type(m, i) == type)
            return true;
    return false;
}

/* ---- rotary positions -------------------------------------------------------------------------
 */

/* global_rope_theta and local_rope_theta: both, or neither for the defaults.  null for the local
 * one is the global one. */
static rp_status read_thetas(const struct rp_config *config, double theta[2], bool *given,
                             rp_error *err)
{
    static const char *const keys[] = {"global_rope_theta", "local_rope_theta"};
    const bool has[2] = {json_object_get(config->json.object, keys[0]) != NULL,
                         json_object_get(config->json.object, keys[1]) != NULL};
    memcpy(theta, default_thetas, sizeof default_thetas);
    *given = has[0];
    if (has[0] != has[1])
        return rp_fail(err, RP_ERR_MISSING, "%s: key \"%s\" is missing, but there is \"%s\"",
                       config->path, keys[has[0]], keys[!has[0]]);
    if (!*given)
        return RP_OK;
    RP_TRY(rp_rope_read_theta(&config->json, keys[0], RP_JSON_REQUIRED, &theta[0], err));
    theta[1] = theta[0];
    return rp_rope_read_theta(&config->json, keys[1], RP_JSON_OPTIONAL, &theta[1], err);
}

/* Spellings that other families have, and that the reference passes over. */
static rp_status refuse_other_spellings(const struct rp_config *config, rp_error *err)
{
    static const char *const keys[] = {"rope_theta", "partial_rotary_factor", "sliding_window"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (rp_json_get(&config->json, keys[i]))
            return rp_fail(err, RP_ERR_UNSUPPORTED,
                           "%s: key \"%s\" is not how this family says it: it has local_attention "
                           "and, for each type of layer, rope_parameters",
                           config->path, keys[i]);
    return RP_OK;
}

static rp_status read_scaling(const struct rp_config *config, const json_t *scaling,
                              const double theta[2], struct rp_modernbert *m, rp_error *err)
{
    char where[RP_ERROR_MESSAGE_BYTES];
    snprintf(where, sizeof where, "%s: rope_scaling", config->path);
    const struct rp_json json = {.file = where, .object = (json_t *)(uintptr_t)scaling};
    for (int i = 0; i < 2; i++)
        RP_TRY(
            rp_rope_read(&json, theta[i], m->body.positions, m->body.head_dim, &m->rope[i], err));
    return RP_OK;
}

/* rope_parameters: an object for each type of layer that there is. */
static rp_status read_parameters(const struct rp_config *config, const json_t *parameters,
                                 const double theta[2], bool given, struct rp_modernbert *m,
                                 rp_error *err)
{
    const char *key;
    json_t *value;
    char where[RP_ERROR_MESSAGE_BYTES], shown[RP_SHOWN_BYTES];
    json_object_foreach((json_t *)(uintptr_t)parameters, key, value)
    {
        if (strcmp(key, layer_names[0]) != 0 && strcmp(key, layer_names[1]) != 0)
            return rp_fail(err, RP_ERR_UNSUPPORTED,
                           "%s: key \"rope_parameters\" has \"%s\", but it is by type of layer: "
                           "full_attention and sliding_attention",
                           config->path, rp_show(key, shown));
    }
    for (int i = 0; i < 2; i++) {
        snprintf(where, sizeof where, "%s: rope_parameters.%s", config->path, layer_names[i]);
        const struct rp_json json = {.file = where,
                                     .object = json_object_get(parameters, layer_names[i])};
        if (!json_is_object(json.object) && has_layer_of(m, (enum rp_modernbert_layer)i))
            return rp_fail(err, json.object ? RP_ERR_FORMAT : RP_ERR_MISSING,
                           "%s: key \"rope_parameters\" has no object for %s, which there are "
                           "layers of",
                           config->path, layer_names[i]);
        if (!json_is_object(json.object))
            continue;
        RP_TRY(rp_rope_read(&json, 0, m->body.positions, m->body.head_dim, &m->rope[i], err));
        if (given && m->rope[i].theta != theta[i])
            return rp_fail(err, RP_ERR_FORMAT,
                           "%s: key \"rope_theta\" is not what the older key beside "
                           "rope_parameters says",
                           where);
    }
    return RP_OK;
}

static rp_status read_rope(const struct rp_config *config, struct rp_modernbert *m, rp_error *err)
{
    const json_t *parameters = rp_json_get(&config->json, "rope_parameters");
    const json_t *scaling = rp_json_get(&config->json, "rope_scaling");
    double theta[2];
    bool given;
    RP_TRY(refuse_other_spellings(config, err));
    RP_TRY(read_thetas(config, theta, &given, err));
    for (int i = 0; i < 2; i++)
        m->rope[i] = rp_rope_plain(theta[i]);
    if ((parameters && !json_is_object(parameters)) || (scaling && !json_is_object(scaling)))
        return rp_fail(err, RP_ERR_FORMAT, "%s: key \"%s\" is not an object", config->path,
                       parameters && !json_is_object(parameters) ? "rope_parameters"
                                                                 : "rope_scaling");
    if (json_object_size(scaling) > 0 && parameters)
        return rp_fail(err, RP_ERR_UNSUPPORTED,
                       "%s: keys \"rope_scaling\" and \"rope_parameters\" are two spellings of one "
                       "thing",
                       config->path);
    if (json_object_size(scaling) > 0)
        return read_scaling(config, scaling, theta, m, err);
    return parameters ? read_parameters(config, parameters, theta, given, m, err) : RP_OK;
}

/* ---- configuration ----------------------------------------------------------------------------
 */

/* Heads are what hidden_size divided by their number says, and have pairs. */
static rp_status check_heads(const struct rp_config *config, const struct rp_body *body,
                             rp_error *err)
{
    if (body->head_dim * body->heads != body->hidden)
        return rp_fail(err, RP_ERR_UNSUPPORTED,
                       "%s: key \"head_dim\" is %" PRId64
                       ", but this family divides hidden_size, %" PRId64
                       ", by num_attention_heads, %" PRId64,
                       config->path, body->head_dim, body->hidden, body->heads);
    if (body->head_dim % 2 != 0)
        return rp_fail(err, RP_ERR_FORMAT,
                       "%s: key \"num_attention_heads\" is %" PRId64
                       ", which makes heads of %" PRId64 "; rotary positions turn pairs",
                       config->path, body->heads, body->head_dim);
    return RP_OK;
}

/* local_attention is the whole window; an odd one is rounded down, as in the reference.  With 0 or
 * 1 a token would see only itself, and with less nothing: no model is meant so. */
static rp_status read_window(const struct rp_config *config, struct rp_modernbert *m, rp_error *err)
{
    int64_t whole = 128;
    RP_TRY(rp_json_whole(&config->json, "local_attention", RP_JSON_OPTIONAL, 2, INT32_MAX, &whole,
                         err));
    m->window = (int32_t)(whole / 2);
    return RP_OK;
}

static rp_status read_pooling(const struct rp_config *config, struct rp_modernbert *m,
                              rp_error *err)
{
    const char *name = "cls";
    char shown[RP_SHOWN_BYTES];
    RP_TRY(rp_json_string(&config->json, "classifier_pooling", RP_JSON_OPTIONAL, &name, err));
    m->classifier_pooling = RP_POOL_CLS;
    if (strcmp(name, "cls") == 0)
        return RP_OK;
    m->classifier_pooling = RP_POOL_MEAN;
    if (strcmp(name, "mean") == 0)
        return RP_OK;
    return rp_fail(err, RP_ERR_UNSUPPORTED,
                   "%s: key \"classifier_pooling\" is \"%s\", which is neither cls nor mean",
                   config->path, rp_show(name, shown));
}

static rp_status read_biases(const struct rp_config *config, struct rp_modernbert *m, rp_error *err)
{
    const struct {
        const char *key;
        bool *value;
    } biases[] = {
        {"norm_bias", &m->norm_bias},
        {"attention_bias", &m->attention_bias},
        {"mlp_bias", &m->mlp_bias},
        {"classifier_bias", &m->classifier_bias},
    };
    for (size_t i = 0; i < sizeof biases / sizeof *biases; i++) {
        *biases[i].value = false;
        RP_TRY(rp_json_bool(&config->json, biases[i].key, RP_JSON_OPTIONAL, biases[i].value, err));
    }
    return RP_OK;
}

/* Published files still have the keys of BERT beside this family's; alone they would mean something
 * that the reference does not read. */
static rp_status check_other_key(const struct rp_config *config, const char *other, const char *own,
                                 rp_error *err)
{
    if (rp_json_get(&config->json, other) && !rp_json_get(&config->json, own))
        return rp_fail(err, RP_ERR_UNSUPPORTED,
                       "%s: key \"%s\" is there without \"%s\", which is what this family reads",
                       config->path, other, own);
    return RP_OK;
}

/* There is no table of positions, which some checkpoints say ("sans_pos") and some do not. */
static rp_status check_positions(const struct rp_config *config, rp_error *err)
{
    static const char key[] = "position_embedding_type";
    const char *type = "sans_pos";
    RP_TRY(rp_json_string(&config->json, key, RP_JSON_OPTIONAL, &type, err));
    if (strcmp(type, "sans_pos") != 0 && strcmp(type, "absolute") != 0)
        return rp_fail(err, RP_ERR_UNSUPPORTED, "%s: key \"%s\" is neither sans_pos nor absolute",
                       config->path, key);
    return RP_OK;
}

rp_status rp_modernbert_configure(const struct rp_config *config, struct rp_modernbert *m,
                                  rp_error *err)
{
    struct rp_body *body = &m->body;
    RP_TRY(rp_body_configure(config, body, err));
    RP_TRY(check_heads(config, body, err));
    RP_TRY(check_positions(config, err));
    body->first_position = 0;
    body->types = 0;
    RP_TRY(rp_body_pad(config, DEFAULT_PAD < body->vocab ? DEFAULT_PAD : -1, false, body, err));
    body->eps = 1e-5f;
    RP_TRY(check_other_key(config, "layer_norm_eps", "norm_eps", err));
    RP_TRY(rp_config_epsilon(config, "norm_eps", &body->eps, err));
    body->activation = RP_ACT_GELU;
    RP_TRY(check_other_key(config, "hidden_act", "hidden_activation", err));
    RP_TRY(rp_config_activation(config, "hidden_activation", &body->activation, err));
    m->classifier_activation = RP_ACT_GELU;
    RP_TRY(rp_config_activation(config, "classifier_activation", &m->classifier_activation, err));
    RP_TRY(read_biases(config, m, err));
    RP_TRY(read_pooling(config, m, err));
    RP_TRY(read_window(config, m, err));
    RP_TRY(read_layer_types(config, m, err));
    return read_rope(config, m, err);
}

/* ---- the graph --------------------------------------------------------------------------------
 */

void rp_modernbert_hidden_name(const struct rp_modernbert *m, size_t layer,
                               char name[RP_STEP_NAME_BYTES])
{
    if (layer == 0)
        snprintf(name, RP_STEP_NAME_BYTES, "embeddings.norm");
    else if (layer == (size_t)m->body.layers)
        snprintf(name, RP_STEP_NAME_BYTES, "final_norm");
    else
        snprintf(name, RP_STEP_NAME_BYTES, "layers.%zu.ffn.down", layer - 1);
}

static rp_value build_norm(struct rp_build *build, const struct rp_modernbert *m, const char *step,
                           const char *tensor, rp_value x)
{
    return rp_build_norm_opt(build, step, tensor, x, (uint64_t)m->body.hidden, m->norm_bias,
                             m->body.eps);
}

static rp_value build_attention(struct rp_build *build, const struct rp_modernbert *m,
                                struct rp_layer_names *l, rp_value x)
{
    const struct rp_body *body = &m->body;
    const uint64_t hidden = (uint64_t)body->hidden;
    const enum rp_modernbert_layer type = rp_modernbert_layer_type(m, l->layer);
    const rp_attention attention = {.n_heads = (int32_t)body->heads,
                                    .head_dim = (int32_t)body->head_dim,
                                    .rel_bias = -1,
                                    .window = type == RP_MODERNBERT_SLIDING ? m->window : 0};
    rp_value a = x;
    if (l->layer > 0)
        a = build_norm(build, m, rp_layer_step(l, "attn.norm"), rp_layer_tensor(l, "attn_norm"), a);
    a = rp_build_linear_opt(build, rp_layer_step(l, "attn.qkv"), rp_layer_tensor(l, "attn.Wqkv"), a,
                            hidden, 3 * hidden, m->attention_bias, RP_ACT_NONE, -1);
    a = rp_rope_build(build, rp_layer_step(l, "attn.rope"), a, &m->rope[type], 2 * body->heads,
                      body->head_dim);
    a = rp_graph_attention(build->graph, rp_layer_step(l, "attn.core"), a, &attention);
    return rp_build_linear_opt(build, rp_layer_step(l, "attn.out"), rp_layer_tensor(l, "attn.Wo"),
                               a, hidden, hidden, m->attention_bias, RP_ACT_NONE, x);
}

rp_value rp_modernbert_ffn(struct rp_build *build, const struct rp_modernbert *m,
                           struct rp_layer_names *l, rp_value x)
{
    const uint64_t hidden = (uint64_t)m->body.hidden, ffn = (uint64_t)m->body.intermediate;
    rp_value f =
        build_norm(build, m, rp_layer_step(l, "ffn.norm"), rp_layer_tensor(l, "mlp_norm"), x);
    f = rp_build_linear_opt(build, rp_layer_step(l, "ffn.up"), rp_layer_tensor(l, "mlp.Wi"), f,
                            hidden, 2 * ffn, m->mlp_bias, RP_ACT_NONE, -1);
    f = rp_graph_glu(build->graph, rp_layer_step(l, "ffn.glu"), f, m->body.activation);
    return rp_build_linear_opt(build, rp_layer_step(l, "ffn.down"), rp_layer_tensor(l, "mlp.Wo"), f,
                               ffn, hidden, m->mlp_bias, RP_ACT_NONE, x);
}

rp_value rp_modernbert_layer(struct rp_build *build, const struct rp_modernbert *m,
                             struct rp_layer_names *l, rp_value x)
{
    return rp_modernbert_ffn(build, m, l, build_attention(build, m, l, x));
}

rp_value rp_modernbert_build(struct rp_build *build, const struct rp_modernbert *m)
{
    if (!rp_body_has_layers(build, &m->body))
        return -1;
    const rp_embed_table table = {rp_build_matrix(build, "embeddings.tok.weight",
                                                  RP_MODERNBERT_TENSOR, (uint64_t)m->body.vocab,
                                                  (uint64_t)m->body.hidden),
                                  RP_INDEX_IDS, 0};
    rp_value x = rp_graph_embed(build->graph, "embeddings.tok", 1, &table);
    x = build_norm(build, m, "embeddings.norm", "embeddings.norm", x);
    for (int64_t i = 0; i < m->body.layers && !rp_body_lacks_enough(build); i++) {
        struct rp_layer_names l = {.tensors = "layers.", .layer = i};
        x = rp_modernbert_layer(build, m, &l, x);
    }
    return build_norm(build, m, "final_norm", "final_norm", x);
}

/* ---- the family -------------------------------------------------------------------------------
 */

static rp_status configure(const struct rp_config *config, union rp_any_body *any, rp_error *err)
{
    return rp_modernbert_configure(config, &any->modernbert, err);
}

static rp_value build(struct rp_build *build, const struct rp_family *family,
                      const union rp_any_body *any)
{
    rp_build_use_prefix(build, family->prefix, RP_MODERNBERT_TENSOR);
    return rp_modernbert_build(build, &any->modernbert);
}

/* norm(act(W x)) of the first row, or of the mean of all rows; then the labels. */
static rp_value classify(struct rp_build *build, const struct rp_family *family,
                         const union rp_any_body *any, rp_value last, size_t n_labels,
                         rp_value *pooled)
{
    (void)family;
    (void)pooled;
    const struct rp_modernbert *m = &any->modernbert;
    const uint64_t hidden = (uint64_t)m->body.hidden;
    rp_value x =
        rp_graph_pool(build->graph, m->classifier_pooling == RP_POOL_CLS ? "first" : "pool.mean",
                      last, m->classifier_pooling);
    x = rp_build_linear_opt(build, "head.dense", "head.dense", x, hidden, hidden,
                            m->classifier_bias, m->classifier_activation, -1);
    x = build_norm(build, m, "head.norm", "head.norm", x);
    return rp_build_linear(build, "classifier", "classifier", x, hidden, n_labels, RP_ACT_NONE, -1);
}

static void hidden_name(const union rp_any_body *any, size_t layer, char name[RP_STEP_NAME_BYTES])
{
    rp_modernbert_hidden_name(&any->modernbert, layer, name);
}

static const struct rp_body_kind kind = {
    .build = build, .classify = classify, .hidden_name = hidden_name, .pooling = RP_POOL_MEAN};

const struct rp_family rp_family_modernbert = {.model_type = "modernbert",
                                               .prefix = "model.",
                                               .kind = &kind,
                                               .reads = rp_modernbert_reads,
                                               .configure = configure};
