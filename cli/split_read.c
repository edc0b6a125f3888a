/* Reading questions for a split encoder: a line is an object with
 *
 *     "type"      "choice", "score", "noul", or a number
 *     "state"     what the question is about, or
 *     "segments"  the same in pieces, each of which is read once
 *     "header"    the question
 *     "options"   its answers, one after the other
 *
 * Each of them is a text or a list of token ids.  Texts get the special tokens around them that the
 * model was trained with; ids are taken as they are.
 *
 * Lines are untrusted, so each number is checked here, where its line can be named.
 */
#include "cli/json_line.h"
#include "cli/split.h"

#include <stdlib.h>
#include <string.h>

/* As the published reader does: a longer segment is several. */
#define SEGMENT_TOKENS 1024

struct reader {
    struct cli_line at;
    const rp_split_info *split;
    struct cli_split_file *to;
    struct cli_split_question *q;
    rp_encoding encoding;
};

/* ---- tokens -------------------------------------------------------------------------------------
 */

static rp_status no_memory(const struct reader *r)
{
    return cli_line_complain(&r->at, RP_ERR_NOMEM, "no memory for its tokens");
}

/* Where tokens go: to a state's text, or to the question. */
typedef rp_status add_fn(struct reader *, int32_t);

static rp_status add_to_text(struct reader *r, int32_t id)
{
    return cli_sequences_add(&r->to->texts, id) ? RP_OK : no_memory(r);
}

static rp_status add_to_question(struct reader *r, int32_t id)
{
    struct cli_split_file *to = r->to;
    int32_t *p = cli_grow(to->ids, to->n_ids, 1, sizeof *p, &to->cap_ids);
    if (!p)
        return no_memory(r);
    to->ids = p;
    to->ids[to->n_ids++] = id;
    r->q->n_tokens++;
    return RP_OK;
}

/* The next token is an option's first. */
static rp_status add_marker(struct reader *r)
{
    struct cli_split_file *to = r->to;
    int32_t *p = cli_grow(to->markers, to->n_markers, 1, sizeof *p, &to->cap_markers);
    if (!p)
        return no_memory(r);
    to->markers = p;
    to->markers[to->n_markers++] = (int32_t)r->q->n_tokens;
    r->q->n_markers++;
    return RP_OK;
}

static rp_status add_ids(struct reader *r, const json_t *list, const char *what, add_fn *add)
{
    const size_t end = r->at.model->info.vocab_size;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *value = json_array_get(list, i);
        const json_int_t id = json_integer_value(value);
        if (!json_is_integer(value) || id < 0 || (uint64_t)id >= end)
            return cli_line_complain(&r->at, RP_ERR_INVALID,
                                     "%s: number %zu of the list is none from 0 to below %zu, the "
                                     "vocabulary",
                                     what, i, end);
        const rp_status status = add(r, (int32_t)id);
        if (status != RP_OK)
            return status;
    }
    return RP_OK;
}

/* A tokenizer leaves alone what it calls special; but a vocabulary may spell a token that only
 * kime.json knows to be one. */
static rp_status refuse_forged(const struct reader *r, const char *what)
{
    const rp_split_info *split = r->split;
    const struct {
        const char *name;
        int32_t id;
    } specials[] = {{"sep", split->sep_id}, {"opt", split->opt_id},     {"no", split->no_id},
                    {"yes", split->yes_id}, {"cls_s", split->cls_s_id}, {"cls_q", split->cls_q_id}};
    for (size_t i = 0; i < r->encoding.n; i++)
        for (size_t k = 0; k < sizeof specials / sizeof *specials; k++)
            if (r->encoding.ids[i] == specials[k].id)
                return cli_line_complain(
                    &r->at, RP_ERR_INVALID,
                    "%s: its text spells token %d, kime.json's \"%s\", which a "
                    "text may not (tokenizer.json does not call it special)",
                    what, specials[k].id, specials[k].name);
    return RP_OK;
}

/* The tokens of a text into r->encoding, without any special one: what a text spells does not
 * become one either. */
static rp_status encode(struct reader *r, const json_t *text, const char *what)
{
    rp_encode_options options;
    rp_status status = cli_line_tokenizer(&r->at);
    if (status != RP_OK)
        return status;
    rp_encode_options_init(&options);
    options.add_special = false;
    options.special_as_text = true;
    status = rp_tokenizer_encode(r->at.model->tokenizer, json_string_value(text),
                                 json_string_length(text), &options, &r->encoding, &r->at.cli->err);
    if (status == RP_OK)
        return refuse_forged(r, what);
    const rp_error why = r->at.cli->err;
    return cli_line_complain(&r->at, status, "%s: %s", what, why.message);
}

/* Ids as they are, or `before`, a text, [SEP]. */
static rp_status add_value(struct reader *r, const json_t *value, const char *what, int32_t before,
                           add_fn *add)
{
    if (json_is_array(value))
        return add_ids(r, value, what, add);
    if (!json_is_string(value))
        return cli_line_complain(&r->at, RP_ERR_INVALID, "%s is neither a text nor a list of ids",
                                 what);
    rp_status status = encode(r, value, what);
    if (status == RP_OK)
        status = add(r, before);
    for (size_t i = 0; status == RP_OK && i < r->encoding.n; i++)
        status = add(r, r->encoding.ids[i]);
    return status == RP_OK ? add(r, r->split->sep_id) : status;
}

/* ---- states -------------------------------------------------------------------------------------
 */

static rp_status end_text(struct reader *r, size_t first)
{
    size_t index;
    r->q->state_tokens += r->to->texts.n_data - first;
    if (!cli_sequences_end(&r->to->texts, first, &index))
        return no_memory(r);
    if (index > INT32_MAX)
        return cli_line_complain(&r->at, RP_ERR_LIMIT, "the file has too many states");
    return cli_sequences_add(&r->to->states, (int32_t)index) ? RP_OK : no_memory(r);
}

static rp_status read_whole(struct reader *r, const json_t *state)
{
    const size_t first = r->to->texts.n_data;
    if (!cli_sequences_add(&r->to->states, CLI_STATE_WHOLE))
        return no_memory(r);
    const rp_status status = add_value(r, state, "key \"state\"", r->split->cls_s_id, add_to_text);
    return status == RP_OK ? end_text(r, first) : status;
}

static rp_status add_special_segment(struct reader *r, int32_t id)
{
    const size_t first = r->to->texts.n_data;
    const rp_status status = add_to_text(r, id);
    return status == RP_OK ? end_text(r, first) : status;
}

/* A text without tokens is no segment, and a long one is several. */
static rp_status add_text_segment(struct reader *r, const json_t *text)
{
    rp_status status = encode(r, text, "key \"segments\"");
    size_t first = r->to->texts.n_data;
    for (size_t i = 0; status == RP_OK && i < r->encoding.n; i++) {
        status = add_to_text(r, r->encoding.ids[i]);
        if (status == RP_OK && ((i + 1) % SEGMENT_TOKENS == 0 || i + 1 == r->encoding.n)) {
            status = end_text(r, first);
            first = r->to->texts.n_data;
        }
    }
    return status;
}

static rp_status add_id_segment(struct reader *r, const json_t *ids)
{
    const size_t first = r->to->texts.n_data;
    if (json_array_size(ids) == 0)
        return cli_line_complain(&r->at, RP_ERR_INVALID, "key \"segments\": one has no tokens");
    const rp_status status = add_ids(r, ids, "key \"segments\"", add_to_text);
    return status == RP_OK ? end_text(r, first) : status;
}

static rp_status read_segments(struct reader *r, const json_t *segments)
{
    const bool texts = json_is_string(json_array_get(segments, 0));
    rp_status status = RP_OK;
    if (!json_is_array(segments) || json_array_size(segments) == 0)
        return cli_line_complain(&r->at, RP_ERR_INVALID,
                                 "key \"segments\" is not a list of texts or of lists of ids");
    if (!cli_sequences_add(&r->to->states, CLI_STATE_SEGMENTS))
        return no_memory(r);
    if (texts)
        status = add_special_segment(r, r->split->cls_s_id);
    for (size_t i = 0; status == RP_OK && i < json_array_size(segments); i++) {
        const json_t *segment = json_array_get(segments, i);
        if (texts ? !json_is_string(segment) : !json_is_array(segment))
            return cli_line_complain(&r->at, RP_ERR_INVALID,
                                     "key \"segments\": they are not all texts, nor all lists of "
                                     "ids");
        status = texts ? add_text_segment(r, segment) : add_id_segment(r, segment);
    }
    return status == RP_OK && texts ? add_special_segment(r, r->split->sep_id) : status;
}

static rp_status read_state(struct reader *r, const json_t *state, const json_t *segments)
{
    const size_t first = r->to->states.n_data;
    if (!state == !segments)
        return cli_line_complain(&r->at, RP_ERR_INVALID,
                                 "it needs either \"state\" or \"segments\"");
    const rp_status status = state ? read_whole(r, state) : read_segments(r, segments);
    if (status != RP_OK)
        return status;
    if (r->q->state_tokens == 0)
        return cli_line_complain(&r->at, RP_ERR_INVALID, "the state has no tokens");
    if (r->q->state_tokens > r->split->max_state_tokens)
        return cli_line_complain(&r->at, RP_ERR_LIMIT,
                                 "a state of %zu tokens, and the model takes %zu",
                                 r->q->state_tokens, r->split->max_state_tokens);
    return cli_sequences_end(&r->to->states, first, &r->q->state) ? RP_OK : no_memory(r);
}

/* ---- questions ----------------------------------------------------------------------------------
 */

#define NOUL 2

static rp_status read_options(struct reader *r, const json_t *options)
{
    const size_t n = json_array_size(options);
    if (!json_is_array(options) || n == 0)
        return cli_line_complain(&r->at, RP_ERR_INVALID,
                                 "key \"options\" is not a list with an option in it");
    if (n > r->split->max_options)
        return cli_line_complain(&r->at, RP_ERR_LIMIT, "%zu options, and the model takes %zu", n,
                                 r->split->max_options);
    for (size_t i = 0; i < n; i++) {
        const json_t *option = json_array_get(options, i);
        const size_t before = r->q->n_tokens;
        const bool noul = r->q->type == NOUL;
        if (noul && json_is_string(option) && n != 2)
            return cli_line_complain(&r->at, RP_ERR_INVALID,
                                     "a noul has two options, what no and what yes would mean");
        const int32_t mark = !noul ? r->split->opt_id : i == 0 ? r->split->no_id : r->split->yes_id;
        rp_status status = add_marker(r);
        if (status == RP_OK)
            status = add_value(r, option, "key \"options\"", mark, add_to_question);
        if (status == RP_OK && r->q->n_tokens == before)
            status = cli_line_complain(&r->at, RP_ERR_INVALID,
                                       "key \"options\": number %zu has no tokens", i);
        if (status != RP_OK)
            return status;
    }
    return RP_OK;
}

static rp_status read_question(struct reader *r, const json_t *header, const json_t *options)
{
    if (!header)
        return cli_line_complain(&r->at, RP_ERR_INVALID, "key \"header\" is missing");
    rp_status status = add_value(r, header, "key \"header\"", r->split->cls_q_id, add_to_question);
    if (status == RP_OK)
        status = read_options(r, options);
    if (status == RP_OK && r->q->n_tokens > r->split->max_question_tokens)
        status = cli_line_complain(&r->at, RP_ERR_LIMIT,
                                   "a question of %zu tokens, and the model takes %zu",
                                   r->q->n_tokens, r->split->max_question_tokens);
    return status;
}

static rp_status read_line(struct reader *r, const rp_text_ref *line)
{
    static const char *const keys[] = {"type", "state", "segments", "header", "options"};
    json_t *o;
    rp_status status = cli_line_parse(&r->at, line, 5, keys, &o);
    if (status != RP_OK)
        return status;
    *r->q =
        (struct cli_split_question){.first_token = r->to->n_ids, .first_marker = r->to->n_markers};
    status = cli_line_type(&r->at, json_object_get(o, "type"), &r->q->type);
    if (status == RP_OK)
        status = read_state(r, json_object_get(o, "state"), json_object_get(o, "segments"));
    if (status == RP_OK)
        status = read_question(r, json_object_get(o, "header"), json_object_get(o, "options"));
    json_decref(o);
    return status;
}

rp_status cli_read_split(struct cli *cli, struct cli_model *model, const rp_split_info *split,
                         struct cli_split_file *out)
{
    struct cli_lines lines;
    struct reader r = {.at = {cli, model, 0}, .split = split, .to = out};
    memset(out, 0, sizeof *out);
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

void cli_free_split(struct cli_split_file *file)
{
    cli_sequences_free(&file->texts);
    cli_sequences_free(&file->states);
    free(file->q);
    free(file->ids);
    free(file->markers);
    memset(file, 0, sizeof *file);
}
