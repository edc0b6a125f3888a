/* See config.h.  The two tables below are the policy; the rest applies them. */
#include "models/config.h"

#include "models/file.h"
#include "pool/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what is refused --------------------------------------------------------------------------
 */

/* What a key may say.  Absent and null are always fine. */
enum allowed {
    ALLOW_FALSE,   /* false only */
    ALLOW_TRUE,    /* true only */
    ALLOW_TEXT,    /* the one string of the row */
    ALLOW_EMPTY,   /* an empty list or object, or false */
    ALLOW_NOTHING, /* not at all */
};

static const struct refusal {
    const char *key;
    enum allowed allowed;
    const char *text, *why;
} refusals[] = {
    {"is_decoder", ALLOW_FALSE, NULL, "causal attention is not what encoders of this family do"},
    {"add_cross_attention", ALLOW_FALSE, NULL, "there is no second sequence to attend to"},
    {"is_encoder_decoder", ALLOW_FALSE, NULL, "only encoders are run"},
    {"position_embedding_type", ALLOW_TEXT, "absolute", "only absolute positions are run"},
    {"directionality", ALLOW_TEXT, "bidi", "attention looks both ways"},
    {"is_causal", ALLOW_FALSE, NULL, "attention looks both ways"},
    {"use_bidirectional_attention", ALLOW_TRUE, NULL, "attention looks both ways"},
    {"feed_forward_type", ALLOW_TEXT, "original",
     "gated feed-forward layers are not of this family"},
    {"pruned_heads", ALLOW_EMPTY, NULL, "layers with heads taken out have other shapes"},
    {"quantization_config", ALLOW_EMPTY, NULL, "quantised checkpoints are not read"},
    {"auto_map", ALLOW_EMPTY, NULL, "the model brings code of its own, which is never run"},
    {"adapters", ALLOW_EMPTY, NULL, "adapters are not applied"},
    {"rope_theta", ALLOW_NOTHING, NULL, "rotary positions are not of this family"},
    {"rope_scaling", ALLOW_EMPTY, NULL, "rotary positions are not of this family"},
    {"rope_parameters", ALLOW_EMPTY, NULL, "rotary positions are not of this family"},
    {"rotary_emb_base", ALLOW_NOTHING, NULL, "rotary positions are not of this family"},
    {"rotary_value", ALLOW_EMPTY, NULL, "rotary positions are not of this family"},
    {"use_rotary_embeddings", ALLOW_FALSE, NULL, "rotary positions are not of this family"},
    {"sliding_window", ALLOW_NOTHING, NULL, "attention is over the whole text"},
    {"local_attention", ALLOW_NOTHING, NULL, "attention is over the whole text"},
    {"layer_types", ALLOW_EMPTY, NULL, "all layers are of one type"},
    {"attention_bias", ALLOW_TRUE, NULL, "attention has biases in this family"},
    {"mlp_bias", ALLOW_TRUE, NULL, "feed-forward layers have biases in this family"},
    {"hidden_activation", ALLOW_NOTHING, NULL, "this family's key for it is another"},
    {"activation_function", ALLOW_NOTHING, NULL, "this family's key for it is another"},
};

static bool permits(const struct refusal *r, const json_t *value)
{
    switch (r->allowed) {
    case ALLOW_FALSE: return json_is_false(value);
    case ALLOW_TRUE: return json_is_true(value);
    case ALLOW_TEXT: return json_is_string(value) && strcmp(json_string_value(value), r->text) == 0;
    case ALLOW_EMPTY:
        return json_is_false(value) || (json_is_array(value) && json_array_size(value) == 0) ||
               (json_is_object(value) && json_object_size(value) == 0);
    case ALLOW_NOTHING: break;
    }
    return false;
}

static bool is_one_of(const char *key, const char *const *keys)
{
    for (; keys && *keys; keys++)
        if (strcmp(key, *keys) == 0)
            return true;
    return false;
}

rp_status rp_config_refuse(const struct rp_config *config, const char *const *read, rp_error *err)
{
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const struct refusal *r = &refusals[i];
        char shown[RP_JSON_SHOWN_BYTES];
        if (is_one_of(r->key, read))
            continue;
        const json_t *value = rp_json_get(&config->json, r->key);
        if (value && !permits(r, value))
            return rp_fail(err, RP_ERR_UNSUPPORTED, "%s: key \"%s\" is %s: %s", config->path,
                           r->key, rp_json_show(value, shown), r->why);
    }
    return RP_OK;
}

/* ---- what is harmless -------------------------------------------------------------------------
 */

static const char *const harmless[] = {
    /* Where the file comes from, and with which version it was written. */
    "_name_or_path",
    "_commit_hash",
    "transformers_version",
    "torch_dtype",
    "dtype",
    "adapter_transformers",
    "adapter_transformers_version",
    /* Training: drawn once, or only then. */
    "hidden_dropout_prob",
    "embedding_dropout",
    "mlp_dropout",
    "attention_probs_dropout_prob",
    "classifier_dropout",
    "hidden_dropout",
    "dropout",
    "attention_dropout",
    "qa_dropout",
    "seq_classif_dropout",
    "summary_last_dropout",
    "initializer_range",
    "initializer_factor",
    "initializer_cutoff_factor",
    "sparse_pred_ignore_index",
    "gradient_checkpointing",
    "finetuning_task",
    "problem_type",
    "task_specific_params",
    "language",
    /* How the library returns results, or splits the work; not what they are. */
    "return_dict",
    "output_hidden_states",
    "output_attentions",
    "use_cache",
    "torchscript",
    "chunk_size_feed_forward",
    "output_past",
    "use_bfloat16",
    "attn_implementation",
    "deterministic_flash_attn",
    "reference_compile",
    "repad_logits_with_grad",
    "_attn_implementation_autoset",
    /* Text: the tokenizer's files say it, and the core takes ids. */
    "bos_token_id",
    "eos_token_id",
    "sep_token_id",
    "cls_token_id",
    "mask_token_id",
    "unk_token_id",
    "tokenizer_class",
    "prefix",
    "model_max_length",
    "do_lower_case",
    /* Generation and other heads, which are not run. */
    "decoder_start_token_id",
    "tie_word_embeddings",
    "tie_weights_",
    "tie_encoder_decoder",
    "cross_attention_hidden_size",
    "summary_type",
    "summary_use_proj",
    "summary_activation",
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
    "generator_size",
    "decoder_bias",
    "sparse_prediction",
    "label2id",
    /* How the position table was first filled: it is in the file. */
    "sinusoidal_pos_embds",
    /* Read where a classifier is built, and of no effect elsewhere. */
    "id2label",
    "num_labels",
    "_num_labels",
    "sentence_transformers",
    "sbert_ce_default_activation_function",
    "pad_token_id",
};

static rp_status note_unknown(const struct rp_json *json, const char *where, struct rp_notes *notes,
                              rp_error *err)
{
    struct rp_name_list names = {0};
    const char *key;
    json_t *value;
    json_object_foreach(json->object, key, value)
    {
        bool known = json_object_get(json->seen, key) != NULL;
        for (size_t i = 0; i < sizeof harmless / sizeof *harmless && !known; i++)
            known = strcmp(harmless[i], key) == 0;
        if (!known)
            rp_name_list_add(&names, key);
    }
    if (names.n == 0)
        return RP_OK;
    return rp_notes_add(notes, err, "%s: keys that are not known and were ignored: %s", where,
                        rp_name_list_text(&names));
}

rp_status rp_config_note_unknown(const struct rp_config *config, struct rp_notes *notes,
                                 rp_error *err)
{
    RP_TRY(note_unknown(&config->json, "config.json", notes, err));
    /* Of a family that does not read it, text_config is itself a key that is not known. */
    return json_object_size(config->text.seen) == 0
               ? RP_OK
               : note_unknown(&config->text, "config.json: text_config", notes, err);
}

/* ---- the file ---------------------------------------------------------------------------------
 */

static rp_status read_architecture(struct rp_config *config, rp_error *err)
{
    const json_t *list = rp_json_get(&config->json, "architectures");
    config->architecture = "";
    if (!list)
        return RP_OK;
    const json_t *first = json_array_get(list, 0);
    if (!json_is_array(list) || (json_array_size(list) > 0 && !json_is_string(first)))
        return rp_fail(err, RP_ERR_FORMAT, "%s: key \"architectures\" is not a list of names",
                       config->path);
    if (json_array_size(list) > 0)
        config->architecture = json_string_value(first);
    return RP_OK;
}

static rp_status open_text(struct rp_config *config, rp_error *err)
{
    static const char key[] = "text_config";
    json_t *text = json_object_get(config->json.object, key);
    if (!json_is_object(text))
        return RP_OK;
    const size_t bytes = strlen(config->path) + sizeof ": " + sizeof key;
    config->text_path = malloc(bytes);
    config->text.seen = json_object();
    if (!config->text_path || !config->text.seen)
        return rp_fail(err, RP_ERR_NOMEM, "%s: no memory", config->path);
    snprintf(config->text_path, bytes, "%s: %s", config->path, key);
    config->text.file = config->text_path;
    config->text.object = text;
    return RP_OK;
}

rp_status rp_config_open(const char *folder, struct rp_config *out, rp_error *err)
{
    struct rp_config config = {.path = rp_path_join(folder, "config.json")};
    if (!config.path)
        return rp_fail(err, RP_ERR_NOMEM, "%s: no memory", folder);
    rp_status s = rp_json_open(config.path, 0, &config.json, err);
    if (s == RP_OK)
        s = rp_json_string(&config.json, "model_type", RP_JSON_REQUIRED, &config.model_type, err);
    if (s == RP_OK)
        s = read_architecture(&config, err);
    if (s == RP_OK)
        s = open_text(&config, err);
    if (s != RP_OK) {
        rp_config_close(&config);
        return s;
    }
    *out = config;
    return RP_OK;
}

void rp_config_close(struct rp_config *config)
{
    json_decref(config->text.seen);
    free(config->text_path);
    rp_json_close(&config->json);
    free(config->path);
    *config = (struct rp_config){0};
}

/* ---- values -----------------------------------------------------------------------------------
 */

rp_status rp_config_size(const struct rp_config *config, const char *key, enum rp_json_need need,
                         int64_t *value, rp_error *err)
{
    return rp_json_whole(&config->json, key, need, 1, INT32_MAX, value, err);
}

rp_status rp_config_epsilon(const struct rp_config *config, const char *key, float *value,
                            rp_error *err)
{
    double x = *value;
    RP_TRY(rp_json_real(&config->json, key, RP_JSON_OPTIONAL, &x, err));
    if (!(x < 1.0 && (float)x > 0.0f)) {
        char shown[RP_JSON_SHOWN_BYTES];
        return rp_fail(err, RP_ERR_FORMAT, "%s: key \"%s\" is %s, outside 0 to 1", config->path,
                       key, rp_json_show(rp_json_get(&config->json, key), shown));
    }
    *value = (float)x;
    return RP_OK;
}

/* Several of the library's names are one function: gelu_fast and gelu_accurate write the constants
 * of the tanh form with other digits, which are the same floats. */
static const struct {
    const char *name;
    rp_activation activation;
} activations[] = {
    {"gelu", RP_ACT_GELU},           {"gelu_python", RP_ACT_GELU},
    {"gelu_new", RP_ACT_GELU_TANH},  {"gelu_pytorch_tanh", RP_ACT_GELU_TANH},
    {"gelu_fast", RP_ACT_GELU_TANH}, {"gelu_accurate", RP_ACT_GELU_TANH},
    {"relu", RP_ACT_RELU},           {"silu", RP_ACT_SILU},
    {"swish", RP_ACT_SILU},          {"tanh", RP_ACT_TANH},
    {"sigmoid", RP_ACT_SIGMOID},     {"linear", RP_ACT_NONE},
};

rp_status rp_config_activation(const struct rp_config *config, const char *key,
                               rp_activation *value, rp_error *err)
{
    const char *name = NULL;
    char shown[RP_SHOWN_BYTES];
    RP_TRY(rp_json_string(&config->json, key, RP_JSON_OPTIONAL, &name, err));
    if (!name)
        return RP_OK;
    for (size_t i = 0; i < sizeof activations / sizeof *activations; i++)
        if (strcmp(activations[i].name, name) == 0) {
            *value = activations[i].activation;
            return RP_OK;
        }
    return rp_fail(
        err, RP_ERR_UNSUPPORTED,
        "%s: key \"%s\" is \"%s\", which is none of gelu, gelu_new, gelu_pytorch_tanh, "
        "gelu_fast, gelu_accurate, gelu_python, relu, silu, swish, tanh, sigmoid, linear",
        config->path, key, rp_show(name, shown));
}

/* The library writes torch.nn.modules.activation.Tanh; people write torch.nn.Tanh. */
static const struct {
    const char *folder, *name;
    rp_activation activation;
} torch_activations[] = {
    {"linear", "Identity", RP_ACT_NONE},       {"activation", "Tanh", RP_ACT_TANH},
    {"activation", "ReLU", RP_ACT_RELU},       {"activation", "GELU", RP_ACT_GELU},
    {"activation", "Sigmoid", RP_ACT_SIGMOID}, {"activation", "SiLU", RP_ACT_SILU},
};

rp_status rp_torch_activation(const char *file, const char *key, const char *name,
                              rp_activation *out, rp_error *err)
{
    static const char short_form[] = "torch.nn.", long_form[] = "torch.nn.modules.";
    const char *rest = NULL;
    if (strncmp(name, long_form, sizeof long_form - 1) == 0)
        rest = name + sizeof long_form - 1;
    for (size_t i = 0; i < sizeof torch_activations / sizeof *torch_activations; i++) {
        const size_t n = strlen(torch_activations[i].folder);
        const bool as_long = rest && strncmp(rest, torch_activations[i].folder, n) == 0 &&
                             rest[n] == '.' && strcmp(rest + n + 1, torch_activations[i].name) == 0;
        const bool as_short = strncmp(name, short_form, sizeof short_form - 1) == 0 &&
                              strcmp(name + sizeof short_form - 1, torch_activations[i].name) == 0;
        if (as_long || as_short) {
            *out = torch_activations[i].activation;
            return RP_OK;
        }
    }
    char shown[RP_SHOWN_BYTES];
    return rp_fail(
        err, RP_ERR_UNSUPPORTED,
        "%s: key \"%s\" is \"%s\"; of torch.nn only Identity, Tanh, ReLU, GELU, Sigmoid and "
        "SiLU are known, and nothing is imported",
        file, key, rp_show(name, shown));
}

/* ---- labels -----------------------------------------------------------------------------------
 */

/* A key of id2label as a number; n (out of range) for anything else, also for "01". */
static size_t label_index(const char *key, size_t n)
{
    size_t x = 0;
    if (!*key || (key[0] == '0' && key[1]))
        return n;
    for (; *key; key++) {
        if (*key < '0' || *key > '9' || x > RP_CONFIG_MAX_LABELS)
            return n;
        x = x * 10 + (size_t)(*key - '0');
    }
    return x < n ? x : n;
}

static rp_status read_id2label(const struct rp_config *config, json_t *map, const char **names,
                               size_t n, rp_error *err)
{
    const char *key;
    json_t *value;
    /* n keys, each another number below n: so all of them are there. */
    json_object_foreach(map, key, value)
    {
        const size_t i = label_index(key, n);
        char shown[RP_SHOWN_BYTES];
        if (i == n || !json_is_string(value))
            return rp_fail(err, RP_ERR_FORMAT,
                           "%s: id2label has %zu entries, so \"%s\" must be a "
                           "number below %zu and its value a name",
                           config->path, n, rp_show(key, shown), n);
        names[i] = json_string_value(value);
    }
    return RP_OK;
}

rp_status rp_config_labels(const struct rp_config *config, size_t *n, const char ***names,
                           rp_error *err)
{
    json_t *map = json_object_get(config->json.object, "id2label");
    int64_t said = -1;
    RP_TRY(rp_json_whole(&config->json, "num_labels", RP_JSON_OPTIONAL, 1, RP_CONFIG_MAX_LABELS,
                         &said, err));
    int64_t count = said < 0 ? 2 : said;
    if (map && !json_is_null(map)) {
        if (!json_is_object(map) || json_object_size(map) == 0 ||
            json_object_size(map) > RP_CONFIG_MAX_LABELS)
            return rp_fail(err, RP_ERR_FORMAT, "%s: id2label is not a map of 1 to %d names",
                           config->path, RP_CONFIG_MAX_LABELS);
        count = (int64_t)json_object_size(map);
        if (said >= 0 && said != count)
            return rp_fail(err, RP_ERR_FORMAT,
                           "%s: num_labels is %lld, but id2label has %lld names", config->path,
                           (long long)said, (long long)count);
    } else {
        map = NULL;
    }
    const char **list = calloc((size_t)count, sizeof *list);
    if (!list)
        return rp_fail(err, RP_ERR_NOMEM, "%s: no memory for %lld labels", config->path,
                       (long long)count);
    if (map) {
        const rp_status s = read_id2label(config, map, list, (size_t)count, err);
        if (s != RP_OK) {
            free(list);
            return s;
        }
    }
    *n = (size_t)count;
    *names = list;
    return RP_OK;
}
