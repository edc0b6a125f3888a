/* Qwen3.5: Qwen3-Next's layers with dense feed-forward layers and projections of their own.  The
 * text part of a model that also sees pictures has its configuration in text_config and its tensors
 * under model.language_model.; the rest of such a model is not run. */
#include "models/family.h"

#include "pool/error.h"

#include <string.h>

static const char text_type[] = "qwen3_5_text";

static const struct rp_decoder_style style = {.linear = true,
                                              .offset = true,
                                              .output_gate = true,
                                              .partial_rope = true,
                                              .head_dim = 256,
                                              .kv_heads = 4,
                                              .linear_heads = 32,
                                              .packing = RP_LINEAR_SPLIT};

static rp_status configure(const struct rp_config *config, union rp_any_body *any, rp_error *err)
{
    return rp_decoder_configure(config, &style, &any->decoder, err);
}

/* Whether the language model's head is the table of ids may stand outside or inside. */
static rp_status read_tied(const struct rp_config *config, const struct rp_config *text,
                           struct rp_decoder *d, rp_error *err)
{
    static const char key[] = "tie_word_embeddings";
    const bool inside = rp_json_get(&text->json, key) != NULL;
    bool tied = d->tied;
    RP_TRY(rp_json_bool(&config->json, key, RP_JSON_OPTIONAL, &tied, err));
    if (inside && tied != d->tied)
        return rp_fail(err, RP_ERR_FORMAT, "%s: key \"%s\" is not what text_config says of it",
                       config->path, key);
    d->tied = tied;
    return RP_OK;
}

static rp_status configure_text(const struct rp_config *config, union rp_any_body *any,
                                rp_error *err)
{
    static const char *const of_pictures[] = {"vision_config", "image_token_id", "video_token_id",
                                              "vision_start_token_id", "vision_end_token_id"};
    const char *type = text_type;
    char shown[RP_SHOWN_BYTES];
    struct rp_config text = *config;
    for (size_t i = 0; i < sizeof of_pictures / sizeof *of_pictures; i++)
        rp_json_get(&config->json, of_pictures[i]);
    if (!rp_json_get(&config->json, "text_config"))
        return configure(config, any, err);
    if (!config->text.object)
        return rp_fail(err, RP_ERR_FORMAT, "%s: key \"text_config\" is not an object",
                       config->path);
    text.json = config->text;
    text.path = config->text_path;
    RP_TRY(rp_json_string(&text.json, "model_type", RP_JSON_OPTIONAL, &type, err));
    if (strcmp(type, text_type) != 0)
        return rp_fail(err, RP_ERR_UNSUPPORTED, "%s: key \"model_type\" is \"%s\", not \"%s\"",
                       text.path, rp_show(type, shown), text_type);
    RP_TRY(rp_decoder_check_causal(config, err));
    RP_TRY(rp_config_refuse(&text, rp_decoder_reads, err));
    RP_TRY(configure(&text, any, err));
    return read_tied(config, &text, &any->decoder, err);
}

const struct rp_family rp_family_qwen3_5_text = {.model_type = text_type,
                                                 .prefix = "model.",
                                                 .kind = &rp_causal,
                                                 .reads = rp_decoder_reads,
                                                 .configure = configure};

const struct rp_family rp_family_qwen3_5 = {.model_type = "qwen3_5",
                                            .prefix = "model.language_model.",
                                            .kind = &rp_causal,
                                            .reads = rp_decoder_reads,
                                            .configure = configure_text};
