/* Pooling, Dense, LayerNorm and LogitScore, each as its config.json says, in the old spelling and
 * the new one.
 */
#include "models/module.h"

#include "models/config.h"
#include "models/file.h"
#include "models/json.h"
#include "pool/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In the order in which the old spelling's results stand side by side. */
static const struct {
    const char *flag, *name, *shown;
    rp_pooling mode;
} modes[RP_FOLDER_MAX_MODES] = {
    {"pooling_mode_cls_token", "cls", "cls", RP_POOL_CLS},
    {"pooling_mode_max_tokens", "max", "max", RP_POOL_MAX},
    {"pooling_mode_mean_tokens", "mean", "mean", RP_POOL_MEAN},
    {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", "mean_sqrt_len",
     RP_POOL_MEAN_SQRT_LEN},
    {"pooling_mode_weightedmean_tokens", "weightedmean", "weighted_mean", RP_POOL_WEIGHTED_MEAN},
    {"pooling_mode_lasttoken", "lasttoken", "last", RP_POOL_LAST},
};

const char *rp_folder_pooling_name(rp_pooling mode)
{
    for (size_t i = 0; i < RP_FOLDER_MAX_MODES; i++)
        if (modes[i].mode == mode)
            return modes[i].shown;
    return "";
}

void rp_folder_pooling_text(const struct rp_module *pooling, char text[RP_POOLING_TEXT_BYTES])
{
    size_t n = 0;
    text[0] = '\0';
    for (size_t i = 0; i < pooling->n_modes; i++)
        n += (size_t)snprintf(text + n, RP_POOLING_TEXT_BYTES - n, "%s%s", i ? "+" : "",
                              rp_folder_pooling_name(pooling->modes[i]));
}

/* ---- Pooling ----------------------------------------------------------------------------------
 */

static rp_status add_mode(const struct rp_json *json, struct rp_module *m, const json_t *value,
                          rp_error *err)
{
    char shown[RP_JSON_SHOWN_BYTES];
    for (size_t i = 0; i < RP_FOLDER_MAX_MODES; i++) {
        if (!json_is_string(value) || strcmp(json_string_value(value), modes[i].name) != 0)
            continue;
        for (size_t k = 0; k < m->n_modes; k++)
            if (m->modes[k] == modes[i].mode)
                return rp_fail(err, RP_ERR_UNSUPPORTED, "%s: pooling_mode lists \"%s\" twice",
                               json->file, modes[i].name);
        m->modes[m->n_modes++] = modes[i].mode;
        return RP_OK;
    }
    return rp_fail(
        err, RP_ERR_UNSUPPORTED,
        "%s: pooling_mode %s is none of cls, max, mean, mean_sqrt_len_tokens, weightedmean, "
        "lasttoken",
        json->file, rp_json_show(value, shown));
}

/* The new spelling: one name, or a list whose order is that of the results. */
static rp_status read_mode_names(const struct rp_json *json, struct rp_module *m,
                                 const json_t *value, rp_error *err)
{
    if (!json_is_array(value))
        return add_mode(json, m, value, err);
    size_t i;
    json_t *name;
    json_array_foreach(value, i, name)
    {
        RP_TRY(add_mode(json, m, name, err));
    }
    return RP_OK;
}

/* The old spelling: a flag each, in the fixed order.  One that is set and not known is refused. */
static rp_status read_mode_flags(const struct rp_json *json, struct rp_module *m, rp_error *err)
{
    for (size_t i = 0; i < RP_FOLDER_MAX_MODES; i++) {
        bool set = false;
        RP_TRY(rp_json_bool(json, modes[i].flag, RP_JSON_OPTIONAL, &set, err));
        if (set)
            m->modes[m->n_modes++] = modes[i].mode;
    }
    const char *key;
    json_t *value;
    json_object_foreach(json->object, key, value)
    {
        char shown[RP_SHOWN_BYTES];
        if (strncmp(key, "pooling_mode_", 13) == 0 && !json_is_false(value) &&
            !json_object_get(json->seen, key))
            return rp_fail(err, RP_ERR_UNSUPPORTED, "%s: \"%s\" is not a known way to pool",
                           json->file, rp_show(key, shown));
    }
    return RP_OK;
}

static rp_status read_pooling(const struct rp_json *json, struct rp_module *m,
                              struct rp_notes *notes, rp_error *err)
{
    RP_TRY(rp_json_whole(json, "word_embedding_dimension", RP_JSON_OPTIONAL, 1, INT32_MAX,
                         &m->width, err));
    RP_TRY(
        rp_json_whole(json, "embedding_dimension", RP_JSON_OPTIONAL, 1, INT32_MAX, &m->width, err));
    RP_TRY(rp_json_bool(json, "include_prompt", RP_JSON_OPTIONAL, &m->include_prompt, err));
    const json_t *names = rp_json_get(json, "pooling_mode");
    if (names)
        RP_TRY(read_mode_names(json, m, names, err));
    else
        RP_TRY(read_mode_flags(json, m, err));
    if (m->n_modes > 0)
        return RP_OK;
    m->modes[m->n_modes++] = RP_POOL_MEAN;
    return rp_notes_add(notes, err, "the Pooling module names no way to pool: the mean is taken");
}

/* ---- Dense, LayerNorm, LogitScore
 * -------------------------------------------------------------------------
 */

static rp_status read_dense(const struct rp_json *json, struct rp_module *m, rp_error *err)
{
    /* The reference's default, for the files that leave it out. */
    const char *activation = "torch.nn.modules.activation.Tanh";
    const char *input = "sentence_embedding", *output = NULL;
    char shown[RP_SHOWN_BYTES];
    RP_TRY(rp_json_whole(json, "in_features", RP_JSON_REQUIRED, 1, INT32_MAX, &m->in, err));
    RP_TRY(rp_json_whole(json, "out_features", RP_JSON_REQUIRED, 1, INT32_MAX, &m->out, err));
    RP_TRY(rp_json_bool(json, "bias", RP_JSON_OPTIONAL, &m->bias, err));
    RP_TRY(rp_json_bool(json, "use_residual", RP_JSON_OPTIONAL, &m->residual, err));
    RP_TRY(rp_json_string(json, "activation_function", RP_JSON_OPTIONAL, &activation, err));
    RP_TRY(rp_torch_activation(json->file, "activation_function", activation, &m->activation, err));
    RP_TRY(rp_json_string(json, "module_input_name", RP_JSON_OPTIONAL, &input, err));
    RP_TRY(rp_json_string(json, "module_output_name", RP_JSON_OPTIONAL, &output, err));
    if (strcmp(input, "sentence_embedding") != 0)
        return rp_fail(err, RP_ERR_UNSUPPORTED,
                       "%s: module_input_name \"%s\" is not \"sentence_embedding\"", json->file,
                       rp_show(input, shown));
    m->to_scores = output && strcmp(output, "scores") == 0;
    if (output && !m->to_scores && strcmp(output, "sentence_embedding") != 0)
        return rp_fail(
            err, RP_ERR_UNSUPPORTED,
            "%s: module_output_name \"%s\" is neither \"sentence_embedding\" nor \"scores\"",
            json->file, rp_show(output, shown));
    return RP_OK;
}

static rp_status read_logit_score(const struct rp_json *json, struct rp_module *m, rp_error *err)
{
    static const char due[] = "causal_logits";
    const char *input = due;
    char shown[RP_SHOWN_BYTES];
    m->no = -1;
    RP_TRY(rp_json_whole(json, "true_token_id", RP_JSON_REQUIRED, 0, INT32_MAX, &m->yes, err));
    RP_TRY(rp_json_whole(json, "false_token_id", RP_JSON_OPTIONAL, 0, INT32_MAX, &m->no, err));
    RP_TRY(rp_json_string(json, "module_input_name", RP_JSON_OPTIONAL, &input, err));
    return strcmp(input, due) == 0
               ? RP_OK
               : rp_fail(err, RP_ERR_UNSUPPORTED, "%s: module_input_name \"%s\" is not \"%s\"",
                         json->file, rp_show(input, shown), due);
}

static rp_status read_keys(const struct rp_json *json, struct rp_module *m, struct rp_notes *notes,
                           rp_error *err)
{
    switch (m->kind) {
    case RP_MODULE_POOLING: return read_pooling(json, m, notes, err);
    case RP_MODULE_DENSE: return read_dense(json, m, err);
    case RP_MODULE_LOGIT_SCORE: return read_logit_score(json, m, err);
    case RP_MODULE_LAYER_NORM:
        return rp_json_whole(json, "dimension", RP_JSON_REQUIRED, 1, INT32_MAX, &m->width, err);
    default: return RP_OK;
    }
}

static rp_status note_unknown(const struct rp_json *json, struct rp_notes *notes, rp_error *err)
{
    struct rp_name_list names = {0};
    const char *key;
    json_t *value;
    json_object_foreach(json->object, key, value)
    {
        if (!json_object_get(json->seen, key) && strncmp(key, "pooling_mode_", 13) != 0)
            rp_name_list_add(&names, key);
    }
    if (names.n == 0)
        return RP_OK;
    return rp_notes_add(notes, err, "%s: keys that are not known and were ignored: %s", json->file,
                        rp_name_list_text(&names));
}

rp_status rp_module_configure(struct rp_module *module, struct rp_notes *notes, rp_error *err)
{
    if (module->kind == RP_MODULE_NORMALIZE || module->kind == RP_MODULE_DROPOUT)
        return RP_OK;
    char *path = rp_path_join(module->folder, "config.json");
    if (!path)
        return rp_fail(err, RP_ERR_NOMEM, "%s: no memory", module->folder);
    struct rp_json json;
    rp_status s = rp_json_open(path, 0, &json, err);
    if (s == RP_OK) {
        s = read_keys(&json, module, notes, err);
        if (s == RP_OK)
            s = note_unknown(&json, notes, err);
        rp_json_close(&json);
    }
    free(path);
    return s;
}
