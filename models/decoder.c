/* What config.json says of a decoder; see decoder.h.  Defaults are those of the reference's
 * configuration classes. */
#include "models/decoder.h"

#include "pool/error.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *const rp_decoder_reads[] = {"attention_bias",
                                        "is_causal",
                                        "is_decoder",
                                        "layer_types",
                                        "mlp_bias",
                                        "rope_parameters",
                                        "rope_scaling",
                                        "rope_theta",
                                        "sliding_window",
                                        "use_bidirectional_attention",
                                        NULL};

static rp_status refuse(const struct rp_config *config, const char *key, const char *why,
                        rp_error *err)
{
    char shown[RP_JSON_SHOWN_BYTES];
    return rp_fail(err, RP_ERR_UNSUPPORTED, "%s: key \"%s\" is %s: %s", config->path, key,
                   rp_json_show(rp_json_get(&config->json, key), shown), why);
}

/* A flag that may only say what is done anyway. */
static rp_status only(const struct rp_config *config, const char *key, bool due, const char *why,
                      rp_error *err)
{
    bool said = due;
    RP_TRY(rp_json_bool(&config->json, key, RP_JSON_OPTIONAL, &said, err));
    return said == due ? RP_OK : refuse(config, key, why, err);
}

rp_status rp_decoder_check_causal(const struct rp_config *config, rp_error *err)
{
    static const char why[] = "rows are run as seeing only what stands before them";
    RP_TRY(only(config, "is_causal", true, why, err));
    return only(config, "use_bidirectional_attention", false, why, err);
}

/* ---- layers -----------------------------------------------------------------------------------
 */

static const char *const layer_names[] = {"full_attention", "sliding_attention",
                                          "linear_attention"};

/* RP_DECODER_LINEAR + 1 for a name that there is none of. */
static int find_layer(const char *name)
{
    int i = 0;
    while (i <= RP_DECODER_LINEAR && strcmp(layer_names[i], name) != 0)
        i++;
    return i;
}

enum rp_decoder_layer rp_decoder_layer_type(const struct rp_decoder *d, int64_t layer)
{
    if (d->layer_types)
        return (enum rp_decoder_layer)find_layer(
            json_string_value(json_array_get(d->layer_types, (size_t)layer)));
    if (d->full_every > 0)
        return (layer + 1) % d->full_every == 0 ? RP_DECODER_FULL : RP_DECODER_LINEAR;
    return layer >= d->first_sliding ? RP_DECODER_SLIDING : RP_DECODER_FULL;
}

static bool there_may_be(const struct rp_decoder *d, int type)
{
    switch (type) {
    case RP_DECODER_FULL: return true;
    case RP_DECODER_SLIDING: return d->style->sliding;
    case RP_DECODER_LINEAR: return d->style->linear;
    default: return false;
    }
}

static rp_status check_layer_types(const struct rp_config *config, const struct rp_decoder *d,
                                   rp_error *err)
{
    const size_t n = json_is_array(d->layer_types) ? json_array_size(d->layer_types) : 0;
    if (n != (uint64_t)d->body.layers)
        return rp_fail(err, RP_ERR_FORMAT,
                       "%s: key \"layer_types\" is not a list of num_hidden_layers, %" PRId64
                       ", types",
                       config->path, d->body.layers);
    for (size_t i = 0; i < n; i++) {
        const json_t *type = json_array_get(d->layer_types, i);
        char shown[RP_JSON_SHOWN_BYTES];
        const int found = json_is_string(type) ? find_layer(json_string_value(type)) : -1;
        if (!there_may_be(d, found))
            return rp_fail(err, RP_ERR_UNSUPPORTED,
                           "%s: key \"layer_types\" has %s, which is no type of layer that this "
                           "family has",
                           config->path, rp_json_show(type, shown));
        if (found == RP_DECODER_SLIDING && d->window == 0)
            return rp_fail(err, RP_ERR_UNSUPPORTED,
                           "%s: key \"layer_types\" has sliding_attention, but use_sliding_window "
                           "and sliding_window do not say how far it reaches",
                           config->path);
    }
    return RP_OK;
}

/* The reference's window counts the row itself.  A window of 1 would be a row that sees only
 * itself, which no model is meant so. */
static rp_status read_window(const struct rp_config *config, struct rp_decoder *d, rp_error *err)
{
    int64_t window = 4096, first = 28;
    bool slides = false;
    d->first_sliding = INT64_MAX;
    RP_TRY(rp_json_bool(&config->json, "use_sliding_window", RP_JSON_OPTIONAL, &slides, err));
    if (!d->style->sliding && slides)
        return refuse(config, "use_sliding_window", "attention is over the whole text", err);
    if (!slides) {
        rp_json_get(&config->json, "sliding_window");
        rp_json_get(&config->json, "max_window_layers");
        return RP_OK;
    }
    if (json_object_get(config->json.object, "sliding_window") &&
        !rp_json_get(&config->json, "sliding_window"))
        return rp_fail(err, RP_ERR_FORMAT,
                       "%s: key \"sliding_window\" is null, but use_sliding_window is true",
                       config->path);
    RP_TRY(rp_json_whole(&config->json, "sliding_window", RP_JSON_OPTIONAL, 2, INT32_MAX, &window,
                         err));
    RP_TRY(rp_json_whole(&config->json, "max_window_layers", RP_JSON_OPTIONAL, 0, INT32_MAX, &first,
                         err));
    d->window = (int32_t)(window - 1);
    d->first_sliding = first;
    return RP_OK;
}

static rp_status read_layer_types(const struct rp_config *config, struct rp_decoder *d,
                                  rp_error *err)
{
    RP_TRY(read_window(config, d, err));
    if (d->style->linear) {
        d->full_every = 4;
        if (!d->style->last_full)
            RP_TRY(rp_config_size(config, "full_attention_interval", RP_JSON_OPTIONAL,
                                  &d->full_every, err));
        else if (d->body.layers < d->full_every)
            d->full_every = d->body.layers;
    }
    d->layer_types = rp_json_get(&config->json, "layer_types");
    return d->layer_types ? check_layer_types(config, d, err) : RP_OK;
}

/* ---- heads ------------------------------------------------------------------------------------
 */

static rp_status read_heads(const struct rp_config *config, struct rp_decoder *d, rp_error *err)
{
    struct rp_body *body = &d->body;
    const int64_t usual = d->style->head_dim;
    if (usual > 0 && !rp_json_get(&config->json, "head_dim"))
        body->head_dim = usual;
    else
        RP_TRY(rp_body_split_heads(config, "hidden_size", "num_attention_heads", body, err));
    d->kv_heads = body->heads;
    if (d->style->kv_heads > 0 && !json_object_get(config->json.object, "num_key_value_heads"))
        d->kv_heads = d->style->kv_heads;
    RP_TRY(rp_config_size(config, "num_key_value_heads", RP_JSON_OPTIONAL, &d->kv_heads, err));
    if (body->heads % d->kv_heads != 0)
        return rp_fail(err, RP_ERR_FORMAT,
                       "%s: key \"num_key_value_heads\" is %" PRId64
                       ", which does not divide num_attention_heads, %" PRId64,
                       config->path, d->kv_heads, body->heads);
    /* q, k, v and a gate of q's width; each factor is below 2^31. */
    if (body->heads > INT32_MAX / 4 / body->head_dim)
        return rp_fail(err, RP_ERR_LIMIT,
                       "%s: key \"num_attention_heads\" is %" PRId64
                       ", which with a head_dim of %" PRId64 " is too wide",
                       config->path, body->heads, body->head_dim);
    RP_TRY(only(config, "attn_output_gate", d->style->output_gate,
                "this family's attention is the other way", err));
    return rp_json_bool(&config->json, "attention_bias", RP_JSON_OPTIONAL, &d->attention_bias, err);
}

static rp_status read_linear(const struct rp_config *config, struct rp_decoder *d, rp_error *err)
{
    const struct rp_decoder_style *style = d->style;
    bool twice = style->twice_beta;
    d->key_heads = style->linear_heads ? style->linear_heads / 2 : d->body.heads;
    d->value_heads = style->linear_heads ? style->linear_heads : d->body.heads;
    RP_TRY(rp_config_size(config, "linear_num_key_heads", RP_JSON_OPTIONAL, &d->key_heads, err));
    RP_TRY(
        rp_config_size(config, "linear_num_value_heads", RP_JSON_OPTIONAL, &d->value_heads, err));
    d->key_dim = 128;
    if (!style->linear_heads) /* OLMo's: three quarters of the width */
        d->key_dim = 3 * d->body.hidden / (4 * d->key_heads);
    RP_TRY(rp_config_size(config, "linear_key_head_dim", RP_JSON_OPTIONAL, &d->key_dim, err));
    d->value_dim = style->linear_heads ? 128 : 2 * d->key_dim;
    RP_TRY(rp_config_size(config, "linear_value_head_dim", RP_JSON_OPTIONAL, &d->value_dim, err));
    d->kernel = 4;
    RP_TRY(rp_json_whole(&config->json, "linear_conv_kernel_dim", RP_JSON_OPTIONAL, 1, 8,
                         &d->kernel, err));
    if (style->twice_beta)
        RP_TRY(
            rp_json_bool(&config->json, "linear_allow_neg_eigval", RP_JSON_OPTIONAL, &twice, err));
    d->beta_scale = twice ? 2.0f : 1.0f;
    if (d->value_heads % d->key_heads != 0)
        return rp_fail(err, RP_ERR_FORMAT,
                       "%s: key \"linear_num_value_heads\" is %" PRId64
                       ", which is no multiple of linear_num_key_heads, %" PRId64,
                       config->path, d->value_heads, d->key_heads);
    /* q and k, no wider than v's heads are many; v and z; b and a. */
    if (d->key_dim < 1 || d->value_heads > INT32_MAX / 8 / d->key_dim ||
        d->value_heads > INT32_MAX / 8 / d->value_dim)
        return rp_fail(err, RP_ERR_LIMIT,
                       "%s: key \"linear_num_value_heads\" is %" PRId64 ", with heads of %" PRId64
                       " and %" PRId64 " numbers: out of range",
                       config->path, d->value_heads, d->key_dim, d->value_dim);
    if (d->body.activation != RP_ACT_SILU)
        return refuse(config, "hidden_act", "linear layers are run with silu", err);
    return RP_OK;
}

/* ---- experts ----------------------------------------------------------------------------------
 */

bool rp_decoder_is_sparse(const struct rp_decoder *d, int64_t layer)
{
    for (size_t i = 0; i < json_array_size(d->dense_layers); i++)
        if (json_integer_value(json_array_get(d->dense_layers, i)) == layer)
            return false;
    return d->n_experts > 0 && (layer + 1) % d->sparse_every == 0;
}

static rp_status read_dense_layers(const struct rp_config *config, struct rp_decoder *d,
                                   rp_error *err)
{
    d->dense_layers = rp_json_get(&config->json, "mlp_only_layers");
    bool good = !d->dense_layers || json_is_array(d->dense_layers);
    for (size_t i = 0; good && i < json_array_size(d->dense_layers); i++)
        good = json_is_integer(json_array_get(d->dense_layers, i));
    if (!good)
        return rp_fail(err, RP_ERR_FORMAT,
                       "%s: key \"mlp_only_layers\" is not a list of whole numbers", config->path);
    /* It is searched for each layer. */
    return json_array_size(d->dense_layers) <= (uint64_t)d->body.layers
               ? RP_OK
               : rp_fail(err, RP_ERR_LIMIT,
                         "%s: key \"mlp_only_layers\" has %zu numbers, more than there are layers",
                         config->path, json_array_size(d->dense_layers));
}

static rp_status read_experts(const struct rp_config *config, struct rp_decoder *d, rp_error *err)
{
    d->n_experts = 512;
    d->n_used = 10;
    d->expert_inner = d->shared_inner = 512;
    d->sparse_every = 1;
    d->normalize = true;
    RP_TRY(rp_json_whole(&config->json, "num_experts", RP_JSON_OPTIONAL, 0, INT32_MAX,
                         &d->n_experts, err));
    if (d->n_experts > RP_EXPERTS_MAX)
        return rp_fail(err, RP_ERR_LIMIT,
                       "%s: key \"num_experts\" is %" PRId64 ", more than %d are not run",
                       config->path, d->n_experts, RP_EXPERTS_MAX);
    RP_TRY(rp_config_size(config, "num_experts_per_tok", RP_JSON_OPTIONAL, &d->n_used, err));
    RP_TRY(
        rp_config_size(config, "moe_intermediate_size", RP_JSON_OPTIONAL, &d->expert_inner, err));
    RP_TRY(rp_config_size(config, "shared_expert_intermediate_size", RP_JSON_OPTIONAL,
                          &d->shared_inner, err));
    RP_TRY(rp_config_size(config, "decoder_sparse_step", RP_JSON_OPTIONAL, &d->sparse_every, err));
    RP_TRY(rp_json_bool(&config->json, "norm_topk_prob", RP_JSON_OPTIONAL, &d->normalize, err));
    RP_TRY(read_dense_layers(config, d, err));
    if (d->n_experts > 0 && d->n_used > d->n_experts)
        return rp_fail(err, RP_ERR_FORMAT,
                       "%s: key \"num_experts_per_tok\" is %" PRId64
                       ", but there are num_experts, %" PRId64,
                       config->path, d->n_used, d->n_experts);
    if (d->expert_inner > INT32_MAX / 2 || d->shared_inner > INT32_MAX / 2)
        return rp_fail(err, RP_ERR_LIMIT,
                       "%s: key \"moe_intermediate_size\" or \"shared_expert_intermediate_size\" "
                       "is too wide",
                       config->path);
    return RP_OK;
}

/* A family without experts whose file speaks of some is another model. */
static rp_status refuse_experts(const struct rp_config *config, struct rp_decoder *d, rp_error *err)
{
    int64_t n = 0;
    RP_TRY(read_dense_layers(config, d, err));
    d->dense_layers = NULL;
    RP_TRY(rp_json_whole(&config->json, "num_experts", RP_JSON_OPTIONAL, 0, INT32_MAX, &n, err));
    return n == 0 ? RP_OK : refuse(config, "num_experts", "this family has no experts", err);
}

/* ---- rotary positions -------------------------------------------------------------------------
 */

/* The base where OLMo's hybrid says none. */
#define USUAL_THETA 10000

/* What describes them, in one of two spellings; NULL: nothing does. */
struct rope_object {
    const json_t *object;
    const char *name;
};

static rp_status find_rope_object(const struct rp_config *config, struct rope_object *out,
                                  rp_error *err)
{
    static const char *const names[] = {"rope_parameters", "rope_scaling"};
    *out = (struct rope_object){0};
    for (size_t i = 0; i < 2; i++) {
        const json_t *object = rp_json_get(&config->json, names[i]);
        if (object && !json_is_object(object))
            return rp_fail(err, RP_ERR_FORMAT, "%s: key \"%s\" is not an object", config->path,
                           names[i]);
        if (json_object_size(object) == 0)
            continue;
        if (out->object)
            return rp_fail(err, RP_ERR_UNSUPPORTED,
                           "%s: keys \"rope_scaling\" and \"rope_parameters\" are two spellings of "
                           "one thing",
                           config->path);
        *out = (struct rope_object){object, names[i]};
    }
    return RP_OK;
}

/* The part of a head that is turned: said beside the other keys, inside the object, or both. */
static rp_status read_part(const struct rp_config *config, const struct rope_object *rope,
                           const struct rp_decoder *d, double *part, rp_error *err)
{
    static const char key[] = "partial_rotary_factor";
    const struct rp_json inner = {.file = config->path,
                                  .object = (json_t *)(uintptr_t)rope->object};
    double outside = -1, inside = -1;
    RP_TRY(rp_json_real(&config->json, key, RP_JSON_OPTIONAL, &outside, err));
    if (rope->object)
        RP_TRY(rp_json_real(&inner, key, RP_JSON_OPTIONAL, &inside, err));
    if (outside >= 0 && inside >= 0 && outside != inside)
        return rp_fail(err, RP_ERR_FORMAT, "%s: key \"%s\" is not what %s says of it", config->path,
                       key, rope->name);
    *part = inside >= 0 ? inside : outside >= 0 ? outside : d->style->partial_rope ? 0.25 : 1;
    if (!(*part > 0 && *part <= 1))
        return rp_fail(err, RP_ERR_FORMAT, "%s: key \"%s\" is not above 0 and at most 1",
                       config->path, key);
    return RP_OK;
}

/* Numbers of a head that are turned.  As the reference, which truncates. */
static int64_t turned_of(const struct rp_decoder *d, double part)
{
    const int64_t dim = d->body.head_dim;
    return d->style->partial_rope ? (int64_t)((double)dim * part) : dim;
}

/* The object, with the part where the family leaves its meaning to the type and without what the
 * family reads itself.  Positions of pictures and of time are those of the text where there is only
 * text. */
static rp_status read_description(const struct rp_config *config, const struct rope_object *rope,
                                  double theta, double part, struct rp_decoder *d, rp_error *err)
{
    static const char key[] = "partial_rotary_factor";
    static const char *const texts_own[] = {"mrope_section", "mrope_interleaved"};
    char where[RP_ERROR_MESSAGE_BYTES];
    json_t *copy = json_copy((json_t *)(uintptr_t)rope->object);
    if (!copy || json_object_set_new(copy, key, json_real(part)) != 0) {
        json_decref(copy);
        return rp_fail(err, RP_ERR_NOMEM, "%s: no memory", config->path);
    }
    snprintf(where, sizeof where, "%s: %s", config->path, rope->name);
    if (d->style->partial_rope) {
        json_object_del(copy, key);
        for (size_t i = 0; i < 2; i++)
            json_object_del(copy, texts_own[i]);
    }
    const struct rp_json json = {.file = where, .object = copy};
    const rp_status s =
        rp_rope_read(&json, theta, d->body.positions, turned_of(d, part), &d->rope, err);
    json_decref(copy);
    if (s == RP_OK && d->style->partial_rope && d->rope.type == RP_ROPE_PROPORTIONAL)
        return rp_fail(err, RP_ERR_UNSUPPORTED,
                       "%s: key \"rope_type\" is \"proportional\", which this family's "
                       "partial_rotary_factor has another meaning in",
                       where);
    return s;
}

/* The base stands inside the object or beside it, where inside comes first.  Null is a word of its
 * own in a family that may lack rotary positions; what is said beside it is checked all the same.
 */
static rp_status read_bases(const struct rp_config *config, const struct rope_object *rope,
                            double part, struct rp_decoder *d, rp_error *err)
{
    static const char key[] = "rope_theta";
    const json_t *inside = json_object_get(rope->object, key);
    const json_t *said = inside ? inside : json_object_get(config->json.object, key);
    double outside = 0;
    RP_TRY(rp_rope_read_theta(&config->json, key, RP_JSON_OPTIONAL, &outside, err));
    double theta = outside;
    if (theta == 0 && d->style->may_lack_rope)
        theta = USUAL_THETA;
    d->has_rope = !(d->style->may_lack_rope && json_is_null(said));
    if (inside && !json_is_null(inside))
        theta = 0; /* the object's */
    else if (theta == 0 && !rope->object)
        return rp_fail(err, RP_ERR_MISSING,
                       "%s: key \"rope_theta\" is missing, and rope_parameters too", config->path);
    if (rope->object)
        RP_TRY(read_description(config, rope, theta, part, d, err));
    else
        d->rope = rp_rope_plain(theta);
    return outside == 0 || (d->has_rope && d->rope.theta == outside)
               ? RP_OK
               : rp_fail(err, RP_ERR_FORMAT, "%s: key \"%s\" is not what %s says of it",
                         config->path, key, rope->name);
}

static rp_status read_rope(const struct rp_config *config, struct rp_decoder *d, rp_error *err)
{
    struct rope_object rope;
    double part = 1;
    RP_TRY(find_rope_object(config, &rope, err));
    RP_TRY(read_part(config, &rope, d, &part, err));
    RP_TRY(read_bases(config, &rope, part, d, err));
    if (!d->style->partial_rope && d->rope.type != RP_ROPE_PROPORTIONAL && part != 1)
        return refuse(config, "partial_rotary_factor", "this family turns whole heads", err);
    const int64_t turned = turned_of(d, part), dim = d->body.head_dim;
    if (d->has_rope && (turned < 2 || turned % 2 != 0))
        return rp_fail(err, RP_ERR_FORMAT,
                       "%s: key \"head_dim\" is %" PRId64 ", of which %" PRId64
                       " are turned; rotary positions turn pairs",
                       config->path, dim, turned);
    d->rope.n_rotated = turned == dim ? 0 : turned;
    return RP_OK;
}

/* ---- all of it --------------------------------------------------------------------------------
 */

/* Of no effect on what is computed. */
static void note_harmless(const struct rp_config *config)
{
    static const char *const keys[] = {"is_decoder",
                                       "output_router_logits",
                                       "router_aux_loss_coef",
                                       "linear_a_log_min",
                                       "linear_a_log_max",
                                       "linear_dt_min",
                                       "linear_dt_max",
                                       "linear_dt_init_floor",
                                       "mamba_ssm_dtype",
                                       "mtp_num_hidden_layers",
                                       "mtp_use_dedicated_embeddings"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        rp_json_get(&config->json, keys[i]);
}

rp_status rp_decoder_configure(const struct rp_config *config, const struct rp_decoder_style *style,
                               struct rp_decoder *d, rp_error *err)
{
    struct rp_body *body = &d->body;
    d->style = style;
    RP_TRY(rp_decoder_check_causal(config, err));
    RP_TRY(rp_body_sizes(config, body, err));
    if (body->intermediate > INT32_MAX / 2)
        return rp_fail(err, RP_ERR_LIMIT,
                       "%s: key \"intermediate_size\" is %" PRId64 ", which is too wide",
                       config->path, body->intermediate);
    RP_TRY(read_heads(config, d, err));
    body->first_position = 0;
    body->types = 0;
    RP_TRY(rp_body_pad(config, -1, false, body, err));
    body->eps = 1e-6f;
    RP_TRY(rp_config_epsilon(config, "rms_norm_eps", &body->eps, err));
    body->activation = RP_ACT_SILU;
    RP_TRY(rp_config_activation(config, "hidden_act", &body->activation, err));
    RP_TRY(
        only(config, "mlp_bias", false, "feed-forward layers have no biases in this family", err));
    RP_TRY(rp_json_bool(&config->json, "tie_word_embeddings", RP_JSON_OPTIONAL, &d->tied, err));
    RP_TRY(read_layer_types(config, d, err));
    if (style->linear)
        RP_TRY(read_linear(config, d, err));
    RP_TRY(style->experts ? read_experts(config, d, err) : refuse_experts(config, d, err));
    note_harmless(config);
    return read_rope(config, d, err);
}
