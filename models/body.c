/* See body.h. */
#include "models/body.h"

#include "pool/error.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- configuration ----------------------------------------------------------------------------
 */

rp_status rp_body_split_heads(const struct rp_config *config, const char *hidden_key,
                              const char *heads_key, struct rp_body *body, rp_error *err)
{
    body->head_dim = 0;
    RP_TRY(rp_config_size(config, "head_dim", RP_JSON_OPTIONAL, &body->head_dim, err));
    if (body->head_dim == 0 && body->hidden % body->heads != 0)
        return rp_fail(err, RP_ERR_FORMAT,
                       "%s: key \"%s\" is %" PRId64 ", which %s %" PRId64
                       " does not divide, and there is no head_dim",
                       config->path, hidden_key, body->hidden, heads_key, body->heads);
    if (body->head_dim == 0)
        body->head_dim = body->hidden / body->heads;
    /* Both are below 2^31, so the product fits in 62 bits; a plan counts the width of q, k and v
     * in 31. */
    if (body->heads * body->head_dim > INT32_MAX / 3)
        return rp_fail(err, RP_ERR_LIMIT,
                       "%s: %s %" PRId64 " with a head_dim of %" PRId64 " are too wide",
                       config->path, heads_key, body->heads, body->head_dim);
    return RP_OK;
}

rp_status rp_body_sizes(const struct rp_config *config, struct rp_body *body, rp_error *err)
{
    const struct {
        const char *key;
        int64_t *value;
    } sizes[] = {
        {"vocab_size", &body->vocab},
        {"hidden_size", &body->hidden},
        {"num_hidden_layers", &body->layers},
        {"num_attention_heads", &body->heads},
        {"intermediate_size", &body->intermediate},
        {"max_position_embeddings", &body->positions},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        RP_TRY(rp_config_size(config, sizes[i].key, RP_JSON_REQUIRED, sizes[i].value, err));
    return RP_OK;
}

rp_status rp_body_configure(const struct rp_config *config, struct rp_body *body, rp_error *err)
{
    RP_TRY(rp_body_sizes(config, body, err));
    RP_TRY(rp_body_split_heads(config, "hidden_size", "num_attention_heads", body, err));
    int64_t kv_heads = body->heads;
    RP_TRY(rp_config_size(config, "num_key_value_heads", RP_JSON_OPTIONAL, &kv_heads, err));
    if (kv_heads != body->heads)
        return rp_fail(err, RP_ERR_UNSUPPORTED,
                       "%s: key \"num_key_value_heads\" is %" PRId64
                       ", but this family has as many as heads, %" PRId64,
                       config->path, kv_heads, body->heads);
    return RP_OK;
}

rp_status rp_body_pad(const struct rp_config *config, int64_t absent, bool needed,
                      struct rp_body *body, rp_error *err)
{
    const json_t *value = json_object_get(config->json.object, "pad_token_id");
    body->pad = value ? -1 : absent; /* null is no pad; no key is the family's default */
    RP_TRY(rp_json_whole(&config->json, "pad_token_id", RP_JSON_OPTIONAL, 0, body->vocab - 1,
                         &body->pad, err));
    if (needed && body->pad < 0)
        return rp_fail(err, RP_ERR_FORMAT,
                       "%s: key \"pad_token_id\" is null, but positions are counted from it",
                       config->path);
    return RP_OK;
}

/* ---- layers -----------------------------------------------------------------------------------
 */

bool rp_body_has_layers(struct rp_build *build, const struct rp_body *body)
{
    if ((uint64_t)body->layers <= build->tensors->n)
        return true;
    rp_error err;
    rp_build_fail(build,
                  rp_fail(&err, RP_ERR_SHAPE,
                          "%s: %s has %" PRId64 " layers, but there are only %zu tensors",
                          build->tensors->source, build->config, body->layers, build->tensors->n),
                  &err);
    return false;
}

/* More than anybody reads. */
#define ENOUGH_MISSING 1000

bool rp_body_lacks_enough(const struct rp_build *build)
{
    return build->missing.n >= ENOUGH_MISSING;
}

const char *rp_layer_step(struct rp_layer_names *names, const char *what)
{
    snprintf(names->step, sizeof names->step, "%slayers.%" PRId64 ".%s",
             names->steps ? names->steps : "", names->layer, what);
    return names->step;
}

const char *rp_layer_tensor(struct rp_layer_names *names, const char *what)
{
    snprintf(names->tensor, sizeof names->tensor, "%s%" PRId64 ".%s", names->tensors, names->layer,
             what);
    return names->tensor;
}
