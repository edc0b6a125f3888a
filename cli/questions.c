/* Reading questions: a line is an object with
 *
 *     "type"     "choice", "score", "noul", or a number
 *     "text"     options marked by the tokenizer's mask token before each, or
 *     "ids"      token ids, special ones included, and "markers", where each option is marked
 *
 * Lines are untrusted, so each number is checked here, where its line can be named.
 */
#include "cli/questions.h"

#include <jansson.h>

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* What one line is read with. */
struct reader {
    struct cli *cli;
    struct cli_model *model;
    struct cli_questions *to;
    struct cli_question *q;
    size_t line; /* from 1 on */
    size_t max_length;
    rp_encoding encoding;
    const char *mark; /* the token before an option, with its id */
    int32_t mark_id;
};

static RP_PRINTF(3, 4) rp_status
    complain(const struct reader *r, rp_status status, const char *fmt, ...)
{
    const char *file =
        r->cli->file && strcmp(r->cli->file, "-") != 0 ? r->cli->file : "standard input";
    char what[RP_ERROR_MESSAGE_BYTES / 2];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    for (char *p = what; *p; p++) /* what a line holds must not steer a terminal */
        if ((unsigned char)*p < ' ' || *p == 127)
            *p = '?';
    return cli_err(&r->cli->err, status, "%s, line %zu: %s", file, r->line, what);
}

/* ---- numbers ------------------------------------------------------------------------------------
 */

/* Room for n more. */
static rp_status grow(const struct reader *r, int32_t **array, size_t used, size_t n, size_t *cap)
{
    if (n <= *cap - used)
        return RP_OK;
    const size_t want = 2 * (used + n);
    int32_t *p = want < SIZE_MAX / 2 / sizeof *p ? realloc(*array, want * sizeof *p) : NULL;
    if (!p)
        return complain(r, RP_ERR_NOMEM, "no memory for its tokens");
    *array = p;
    *cap = want;
    return RP_OK;
}

static rp_status add_token(struct reader *r, int32_t id)
{
    struct cli_questions *to = r->to;
    const rp_status status = grow(r, &to->ids, to->n_ids, 1, &to->cap_ids);
    if (status != RP_OK)
        return status;
    to->ids[to->n_ids++] = id;
    r->q->n_tokens++;
    return RP_OK;
}

static rp_status add_marker(struct reader *r, int32_t position)
{
    struct cli_questions *to = r->to;
    const rp_status status = grow(r, &to->markers, to->n_markers, 1, &to->cap_markers);
    if (status != RP_OK)
        return status;
    to->markers[to->n_markers++] = position;
    r->q->n_markers++;
    return RP_OK;
}

/* A list of whole numbers from 0 to below `end`; `what` says what end is. */
static rp_status read_list(struct reader *r, const json_t *list, const char *key, size_t end,
                           const char *what, rp_status (*add)(struct reader *, int32_t))
{
    if (!json_is_array(list))
        return complain(r, RP_ERR_INVALID, "key \"%s\" is not a list of numbers", key);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *value = json_array_get(list, i);
        const json_int_t number = json_integer_value(value);
        if (!json_is_integer(value) || number < 0 || (uint64_t)number >= end)
            return complain(r, RP_ERR_INVALID,
                            "key \"%s\": number %zu of the list is none from 0 to below %zu, %s",
                            key, i, end, what);
        const rp_status status = add(r, (int32_t)number);
        if (status != RP_OK)
            return status;
    }
    return RP_OK;
}

static rp_status read_ids(struct reader *r, const json_t *ids, const json_t *markers)
{
    rp_status status =
        read_list(r, ids, "ids", r->model->info.vocab_size, "the vocabulary", add_token);
    if (status == RP_OK && r->q->n_tokens > r->max_length)
        status = complain(r, RP_ERR_LIMIT, "%zu ids, and the model takes %zu", r->q->n_tokens,
                          r->max_length);
    if (status == RP_OK && markers)
        status = read_list(r, markers, "markers", r->q->n_tokens, "its ids", add_marker);
    if (status == RP_OK && r->q->n_markers > r->q->n_tokens)
        status =
            complain(r, RP_ERR_LIMIT, "%zu markers for %zu ids", r->q->n_markers, r->q->n_tokens);
    return status;
}

/* ---- texts --------------------------------------------------------------------------------------
 */

static rp_status load_from(struct reader *r, const char *name)
{
    char path[4096];
    const int n = snprintf(path, sizeof path, "%s/%s", r->cli->model, name);
    if (n < 0 || (size_t)n >= sizeof path)
        return cli_err(&r->cli->err, RP_ERR_LIMIT, "%s: the path is too long", r->cli->model);
    return rp_tokenizer_load(path, &r->model->tokenizer, &r->cli->err);
}

/* Of the model's folder, or of Laya's below it. */
static rp_status load_tokenizer(struct reader *r)
{
    rp_status status = load_from(r, "tokenizer.json");
    const rp_error first = r->cli->err;
    if (status == RP_ERR_MISSING) {
        status = load_from(r, "tokenizer/tokenizer.json");
        if (status == RP_ERR_MISSING)
            r->cli->err = first;
    }
    if (status != RP_OK)
        return status;
    if (rp_tokenizer_id_limit(r->model->tokenizer) > r->model->info.vocab_size)
        return cli_err(&r->cli->err, RP_ERR_SHAPE,
                       "the tokenizer has ids up to %zu, and the model's table has %zu rows",
                       rp_tokenizer_id_limit(r->model->tokenizer) - 1, r->model->info.vocab_size);
    return RP_OK;
}

/* --marker, or the spellings of BERT's kin and RoBERTa's. */
static rp_status find_mark(struct reader *r)
{
    static const char *const usual[] = {"[MASK]", "<mask>"};
    const rp_tokenizer *tokenizer = r->model->tokenizer;
    r->mark = r->cli->o.marker;
    if (r->mark && rp_tokenizer_token_to_id(tokenizer, r->mark, &r->mark_id, NULL) != RP_OK)
        return cli_err(&r->cli->err, RP_ERR_INVALID, "--marker %s: the tokenizer has no such token",
                       r->mark);
    if (r->mark)
        return RP_OK;
    for (size_t i = 0; i < 2; i++) {
        r->mark = usual[i];
        if (rp_tokenizer_token_to_id(tokenizer, r->mark, &r->mark_id, NULL) == RP_OK)
            return RP_OK;
    }
    return cli_err(&r->cli->err, RP_ERR_INVALID,
                   "%s: the tokenizer has neither %s nor %s; --marker says what marks an option",
                   r->cli->model, usual[0], usual[1]);
}

static size_t count_marks(const struct reader *r)
{
    size_t n = 0;
    for (size_t i = 0; i < r->encoding.n; i++)
        n += r->encoding.ids[i] == r->mark_id;
    return n;
}

/* The text with max_length; an option may not be lost by it. */
static rp_status encode(struct reader *r, const char *text, size_t n_text)
{
    rp_encode_options options;
    rp_encode_options_init(&options);
    rp_status status = rp_tokenizer_encode(r->model->tokenizer, text, n_text, &options,
                                           &r->encoding, &r->cli->err);
    const size_t options_there = status == RP_OK ? count_marks(r) : 0;
    if (status == RP_OK && r->encoding.n > r->max_length) {
        options.max_length = r->max_length;
        status = rp_tokenizer_encode(r->model->tokenizer, text, n_text, &options, &r->encoding,
                                     &r->cli->err);
    }
    if (status != RP_OK) {
        const rp_error why = r->cli->err;
        return complain(r, status, "%s", why.message);
    }
    if (count_marks(r) < options_there)
        return complain(
            r, RP_ERR_LIMIT,
            "cut to %zu tokens, it has lost options: %zu of %zu are left; put them first",
            r->max_length, count_marks(r), options_there);
    return RP_OK;
}

static rp_status read_text(struct reader *r, const json_t *text)
{
    rp_status status = RP_OK;
    if (!json_is_string(text))
        return complain(r, RP_ERR_INVALID, "key \"text\" is not a string");
    if (!r->model->tokenizer)
        status = load_tokenizer(r);
    if (status == RP_OK && !r->mark)
        status = find_mark(r);
    if (status == RP_OK)
        status = encode(r, json_string_value(text), json_string_length(text));
    for (size_t i = 0; status == RP_OK && i < r->encoding.n; i++) {
        status = add_token(r, r->encoding.ids[i]);
        if (status == RP_OK && r->encoding.ids[i] == r->mark_id)
            status = add_marker(r, (int32_t)i);
    }
    r->q->truncated = r->encoding.truncated;
    return status;
}

/* ---- a line -------------------------------------------------------------------------------------
 */

static rp_status read_type(struct reader *r, const json_t *type)
{
    const size_t n = r->model->info.n_question_types;
    const char *name = json_string_value(type);
    if (!type)
        return complain(r, RP_ERR_INVALID, "key \"type\" is missing");
    for (size_t i = 0; i < n; i++) {
        const char *known = rp_model_question_type(r->model->model, i);
        if (json_is_integer(type) ? json_integer_value(type) == (json_int_t)i
                                  : name && known && json_string_length(type) == strlen(known) &&
                                        strcmp(name, known) == 0) {
            r->q->type = (int32_t)i;
            return RP_OK;
        }
    }
    if (rp_model_question_type(r->model->model, 0))
        return complain(r, RP_ERR_INVALID,
                        "key \"type\" is none of \"choice\", \"score\", \"noul\", 0, 1, 2");
    return complain(r, RP_ERR_INVALID, "key \"type\" is no number from 0 to %zu", n - 1);
}

static rp_status read_object(struct reader *r, json_t *line)
{
    static const char *const keys[] = {"type", "text", "ids", "markers"};
    const json_t *text = json_object_get(line, "text"), *ids = json_object_get(line, "ids");
    const json_t *markers = json_object_get(line, "markers");
    const char *key;
    json_t *value;
    if (!json_is_object(line))
        return complain(r, RP_ERR_INVALID, "not an object");
    json_object_foreach(line, key, value)
    {
        size_t i = 0;
        while (i < 4 && strcmp(key, keys[i]) != 0)
            i++;
        if (i == 4)
            return complain(r, RP_ERR_INVALID, "key \"%.40s\" is none of type, text, ids, markers",
                            key);
    }
    const rp_status status = read_type(r, json_object_get(line, "type"));
    if (status != RP_OK)
        return status;
    if (!text == !ids)
        return complain(r, RP_ERR_INVALID, "it needs either \"text\" or \"ids\"");
    if (text && markers)
        return complain(r, RP_ERR_INVALID,
                        "\"markers\" go with \"ids\"; a text has its marks in it");
    return text ? read_text(r, text) : read_ids(r, ids, markers);
}

static rp_status read_line(struct reader *r, const rp_text_ref *line)
{
    json_error_t why;
    json_t *value =
        json_loadb(line->data, line->length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (!value)
        return complain(r, RP_ERR_INVALID, "%s (column %d)", why.text, why.column);
    *r->q = (struct cli_question){.first_token = r->to->n_ids, .first_marker = r->to->n_markers};
    const rp_status status = read_object(r, value);
    json_decref(value);
    return status;
}

rp_status cli_read_questions(struct cli *cli, struct cli_model *model, struct cli_questions *out)
{
    struct cli_lines lines;
    struct reader r = {.cli = cli, .model = model, .to = out, .max_length = model->info.max_length};
    memset(out, 0, sizeof *out);
    if (cli->o.max_length > r.max_length)
        return cli_err(&cli->err, RP_ERR_INVALID, "--max-length %zu is above the model's %zu (%s)",
                       cli->o.max_length, r.max_length, model->info.max_length_source);
    if (cli->o.max_length)
        r.max_length = cli->o.max_length;
    rp_status status = cli_read_lines(cli, &lines);
    if (status != RP_OK)
        return status;
    out->q = calloc(lines.n ? lines.n : 1, sizeof *out->q);
    if (!out->q)
        status = cli_err(&cli->err, RP_ERR_NOMEM, "no memory for %zu questions", lines.n);
    for (size_t i = 0; status == RP_OK && i < lines.n; i++) {
        r.line = i + 1;
        r.q = &out->q[out->n++];
        status = read_line(&r, &lines.lines[i]);
    }
    rp_encoding_free(&r.encoding);
    cli_free_lines(&lines);
    return status;
}

void cli_free_questions(struct cli_questions *q)
{
    free(q->q);
    free(q->ids);
    free(q->markers);
    memset(q, 0, sizeof *q);
}
