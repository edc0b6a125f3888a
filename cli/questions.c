/* Reading questions: a line is an object with
 *
 *     "type"     "choice", "score", "noul", or a number
 *     "text"     options marked by the tokenizer's mask token before each, or
 *     "ids"      token ids, special ones included, and "markers", where each option is marked
 *
 * Lines are untrusted, so each number is checked here, where its line can be named.
 */
#include "cli/questions.h"

#include "cli/json_line.h"

#include <stdlib.h>
#include <string.h>

/* What one line is read with. */
struct reader {
    struct cli_line at;
    struct cli_questions *to;
    struct cli_question *q;
    size_t max_length;
    rp_encoding encoding;
    const char *mark; /* the token before an option, with its id */
    int32_t mark_id;
};

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
        return cli_line_complain(&r->at, RP_ERR_NOMEM, "no memory for its tokens");
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
        return cli_line_complain(&r->at, RP_ERR_INVALID, "key \"%s\" is not a list of numbers",
                                 key);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *value = json_array_get(list, i);
        const json_int_t number = json_integer_value(value);
        if (!json_is_integer(value) || number < 0 || (uint64_t)number >= end)
            return cli_line_complain(
                &r->at, RP_ERR_INVALID,
                "key \"%s\": number %zu of the list is none from 0 to below %zu, %s", key, i, end,
                what);
        const rp_status status = add(r, (int32_t)number);
        if (status != RP_OK)
            return status;
    }
    return RP_OK;
}

static rp_status read_ids(struct reader *r, const json_t *ids, const json_t *markers)
{
    rp_status status =
        read_list(r, ids, "ids", r->at.model->info.vocab_size, "the vocabulary", add_token);
    if (status == RP_OK && r->q->n_tokens > r->max_length)
        status = cli_line_complain(&r->at, RP_ERR_LIMIT, "%zu ids, and the model takes %zu",
                                   r->q->n_tokens, r->max_length);
    if (status == RP_OK && markers)
        status = read_list(r, markers, "markers", r->q->n_tokens, "its ids", add_marker);
    if (status == RP_OK && r->q->n_markers > r->q->n_tokens)
        status = cli_line_complain(&r->at, RP_ERR_LIMIT, "%zu markers for %zu ids", r->q->n_markers,
                                   r->q->n_tokens);
    return status;
}

/* ---- texts --------------------------------------------------------------------------------------
 */

/* --marker, or the spellings of BERT's kin and RoBERTa's. */
static rp_status find_mark(struct reader *r)
{
    static const char *const usual[] = {"[MASK]", "<mask>"};
    const rp_tokenizer *tokenizer = r->at.model->tokenizer;
    r->mark = r->at.cli->o.marker;
    if (r->mark && rp_tokenizer_token_to_id(tokenizer, r->mark, &r->mark_id, NULL) != RP_OK)
        return cli_err(&r->at.cli->err, RP_ERR_INVALID,
                       "--marker %s: the tokenizer has no such token", r->mark);
    if (r->mark)
        return RP_OK;
    for (size_t i = 0; i < 2; i++) {
        r->mark = usual[i];
        if (rp_tokenizer_token_to_id(tokenizer, r->mark, &r->mark_id, NULL) == RP_OK)
            return RP_OK;
    }
    return cli_err(&r->at.cli->err, RP_ERR_INVALID,
                   "%s: the tokenizer has neither %s nor %s; --marker says what marks an option",
                   r->at.cli->model, usual[0], usual[1]);
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
    rp_status status = rp_tokenizer_encode(r->at.model->tokenizer, text, n_text, &options,
                                           &r->encoding, &r->at.cli->err);
    const size_t options_there = status == RP_OK ? count_marks(r) : 0;
    if (status == RP_OK && r->encoding.n > r->max_length) {
        options.max_length = r->max_length;
        status = rp_tokenizer_encode(r->at.model->tokenizer, text, n_text, &options, &r->encoding,
                                     &r->at.cli->err);
    }
    if (status != RP_OK) {
        const rp_error why = r->at.cli->err;
        return cli_line_complain(&r->at, status, "%s", why.message);
    }
    if (count_marks(r) < options_there)
        return cli_line_complain(
            &r->at, RP_ERR_LIMIT,
            "cut to %zu tokens, it has lost options: %zu of %zu are left; put them first",
            r->max_length, count_marks(r), options_there);
    return RP_OK;
}

static rp_status read_text(struct reader *r, const json_t *text)
{
    if (!json_is_string(text))
        return cli_line_complain(&r->at, RP_ERR_INVALID, "key \"text\" is not a string");
    rp_status status = cli_line_tokenizer(&r->at);
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

static rp_status read_object(struct reader *r, const json_t *line)
{
    const json_t *text = json_object_get(line, "text"), *ids = json_object_get(line, "ids");
    const json_t *markers = json_object_get(line, "markers");
    const rp_status status = cli_line_type(&r->at, json_object_get(line, "type"), &r->q->type);
    if (status != RP_OK)
        return status;
    if (!text == !ids)
        return cli_line_complain(&r->at, RP_ERR_INVALID, "it needs either \"text\" or \"ids\"");
    if (text && markers)
        return cli_line_complain(&r->at, RP_ERR_INVALID,
                                 "\"markers\" go with \"ids\"; a text has its marks in it");
    return text ? read_text(r, text) : read_ids(r, ids, markers);
}

static rp_status read_line(struct reader *r, const rp_text_ref *line)
{
    static const char *const keys[] = {"type", "text", "ids", "markers"};
    json_t *value;
    rp_status status = cli_line_parse(&r->at, line, 4, keys, &value);
    if (status != RP_OK)
        return status;
    *r->q = (struct cli_question){.first_token = r->to->n_ids, .first_marker = r->to->n_markers};
    status = read_object(r, value);
    json_decref(value);
    return status;
}

rp_status cli_read_questions(struct cli *cli, struct cli_model *model, struct cli_questions *out)
{
    struct cli_lines lines;
    struct reader r = {.at = {cli, model, 0}, .to = out, .max_length = model->info.max_length};
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
        r.at.number = i + 1;
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
