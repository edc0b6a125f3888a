/* See json_line.h. */
#include "cli/json_line.h"

#include <stdarg.h>
#include <string.h>

rp_status cli_line_complain(const struct cli_line *line, rp_status status, const char *fmt, ...)
{
    const struct cli *cli = line->cli;
    const char *file = cli->file && strcmp(cli->file, "-") != 0 ? cli->file : "standard input";
    char what[RP_ERROR_MESSAGE_BYTES / 2];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    for (char *p = what; *p; p++) /* what a line holds must not steer a terminal */
        if ((unsigned char)*p < ' ' || *p == 127)
            *p = '?';
    return cli_err(&line->cli->err, status, "%s, line %zu: %s", file, line->number, what);
}

/* "type, text, ids". */
static void list_keys(size_t n, const char *const *keys, char text[128])
{
    size_t length = 0;
    text[0] = 0;
    for (size_t i = 0; i < n && length < 128; i++)
        length += (size_t)snprintf(text + length, 128 - length, "%s%s", i > 0 ? ", " : "", keys[i]);
}

static rp_status check_keys(const struct cli_line *line, json_t *object, size_t n,
                            const char *const *keys)
{
    char known[128];
    const char *key;
    json_t *value;
    if (!json_is_object(object))
        return cli_line_complain(line, RP_ERR_INVALID, "not an object");
    list_keys(n, keys, known);
    json_object_foreach(object, key, value)
    {
        size_t i = 0;
        while (i < n && strcmp(key, keys[i]) != 0)
            i++;
        if (i == n)
            return cli_line_complain(line, RP_ERR_INVALID, "key \"%.40s\" is none of %s", key,
                                     known);
    }
    return RP_OK;
}

rp_status cli_line_parse(const struct cli_line *line, const rp_text_ref *text, size_t n,
                         const char *const *keys, json_t **out)
{
    json_error_t why;
    json_t *object =
        json_loadb(text->data, text->length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (!object)
        return cli_line_complain(line, RP_ERR_INVALID, "%s (column %d)", why.text, why.column);
    const rp_status status = check_keys(line, object, n, keys);
    if (status != RP_OK) {
        json_decref(object);
        return status;
    }
    *out = object;
    return RP_OK;
}

rp_status cli_line_type(const struct cli_line *line, const json_t *type, int32_t *out)
{
    const rp_model *model = line->model->model;
    const size_t n = line->model->info.n_question_types;
    const char *name = json_string_value(type);
    if (!type)
        return cli_line_complain(line, RP_ERR_INVALID, "key \"type\" is missing");
    for (size_t i = 0; i < n; i++) {
        const char *known = rp_model_question_type(model, i);
        if (json_is_integer(type) ? json_integer_value(type) == (json_int_t)i
                                  : name && known && json_string_length(type) == strlen(known) &&
                                        strcmp(name, known) == 0) {
            *out = (int32_t)i;
            return RP_OK;
        }
    }
    if (rp_model_question_type(model, 0))
        return cli_line_complain(
            line, RP_ERR_INVALID,
            "key \"type\" is none of \"choice\", \"score\", \"noul\", 0, 1, 2");
    return cli_line_complain(line, RP_ERR_INVALID, "key \"type\" is no number from 0 to %zu",
                             n - 1);
}

static rp_status load_from(const struct cli_line *line, const char *name)
{
    struct cli *cli = line->cli;
    char path[4096];
    const int n = snprintf(path, sizeof path, "%s/%s", cli->model, name);
    if (n < 0 || (size_t)n >= sizeof path)
        return cli_err(&cli->err, RP_ERR_LIMIT, "%s: the path is too long", cli->model);
    return rp_tokenizer_load(path, &line->model->tokenizer, &cli->err);
}

rp_status cli_line_tokenizer(const struct cli_line *line)
{
    struct cli *cli = line->cli;
    const struct cli_model *model = line->model;
    if (model->tokenizer)
        return RP_OK;
    const char *name = "tokenizer.json";
    rp_status status = load_from(line, name);
    const rp_error first = cli->err;
    if (status == RP_ERR_MISSING) {
        name = "tokenizer/tokenizer.json";
        status = load_from(line, name);
        if (status == RP_ERR_MISSING)
            cli->err = first;
    }
    if (status != RP_OK)
        return status;
    if (rp_tokenizer_id_limit(model->tokenizer) > model->info.vocab_size)
        return cli_err(&cli->err, RP_ERR_SHAPE,
                       "%s/%s: the tokenizer has ids up to %zu, and the model's table has %zu rows",
                       cli->model, name, rp_tokenizer_id_limit(model->tokenizer) - 1,
                       model->info.vocab_size);
    return RP_OK;
}
