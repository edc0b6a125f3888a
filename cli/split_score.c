/* rankplan score on a split encoder: questions in batches, after the states that they need.
 *
 * Of a state the memory is kept that its questions read, and of a segment the rows that the layers
 * above it read: both for the questions to come, as long as they fit into --cache.  What is needed
 * in a batch stays for that long in any case.
 */
#include "cli/kept.h"
#include "cli/split.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BATCH_TOKENS ((size_t)4096)
#define BATCH_SEQS   (BATCH_TOKENS / 2)

struct score {
    struct cli *cli;
    struct cli_model *model;
    const rp_split_info *split;
    struct cli_split_file file;
    rp_session *sessions[RP_PART_SEGMENTS + 1]; /* opened when they are needed */
    size_t longest[RP_PART_SEGMENTS + 1];       /* tokens of a sequence */
    struct cli_keep memories, lows;
    struct cli_kept *memory, *low; /* of each state, of each text */
    size_t *wanted;                /* as many as there are states or texts, whichever are more */
    size_t *seen_by;               /* of each state: the batch's first question, + 1 */
    size_t order[BATCH_SEQS];      /* of questions within a batch */
    rp_memory of_question[BATCH_SEQS];
    int32_t cu[BATCH_SEQS + 1], mcu[BATCH_SEQS + 1], types[BATCH_SEQS];
    int32_t *ids, *numbers; /* of the batch under way */
    size_t cap_ids, cap_numbers;
    float *input, *probabilities;
    size_t cap_input;
};

static rp_status no_memory(struct score *s)
{
    return cli_err(&s->cli->err, RP_ERR_NOMEM, "no memory for a batch");
}

static rp_status run_part(struct score *s, rp_part part, const rp_batch *batch)
{
    if (!s->sessions[part]) {
        const size_t longest = s->longest[part];
        const rp_status status =
            cli_open_part(s->cli, s->model, part, longest > BATCH_TOKENS ? longest : BATCH_TOKENS,
                          s->longest[RP_PART_SEGMENTS], &s->sessions[part]);
        if (status != RP_OK)
            return status;
    }
    return rp_session_run(s->sessions[part], batch, &s->cli->err);
}

/* ---- what states are made of --------------------------------------------------------------------
 */

static const int32_t *state_texts(const struct score *s, size_t state, bool *segments, size_t *n)
{
    const struct cli_sequence *item = &s->file.states.items[state];
    const int32_t *numbers = s->file.states.data + item->first;
    *segments = numbers[0] == CLI_STATE_SEGMENTS;
    *n = item->n - 1;
    return numbers + 1;
}

static size_t state_tokens(const struct score *s, size_t state)
{
    bool segments;
    size_t n, sum = 0;
    const int32_t *texts = state_texts(s, state, &segments, &n);
    for (size_t i = 0; i < n; i++)
        sum += s->file.texts.items[texts[i]].n;
    return sum;
}

/* Keeps rows [first, first + n) of an output. */
static rp_status keep_rows(struct score *s, rp_part part, const char *name, struct cli_keep *keep,
                           struct cli_kept *entry, size_t first, size_t n)
{
    rp_view v;
    const rp_status status = rp_session_output(s->sessions[part], name, &v, &s->cli->err);
    if (status != RP_OK)
        return status;
    if (!cli_kept_make(keep, entry, n * v.width))
        return no_memory(s);
    memcpy(entry->data, v.data + first * v.width, n * v.width * sizeof *v.data);
    return RP_OK;
}

/* ---- texts: whole states and segments
 * ------------------------------------------------------------
 */

static rp_status add_text(struct score *s, size_t text, size_t n_seqs)
{
    const struct cli_sequence *item = &s->file.texts.items[text];
    const size_t used = (size_t)s->cu[n_seqs];
    int32_t *ids = cli_grow(s->ids, used, item->n, sizeof *ids, &s->cap_ids);
    if (!ids)
        return no_memory(s);
    s->ids = ids;
    memcpy(s->ids + used, s->file.texts.data + item->first, item->n * sizeof *s->ids);
    s->cu[n_seqs + 1] = (int32_t)(used + item->n);
    return RP_OK;
}

/* What a graph of ids makes of texts, kept of each: entries[i] for texts[i]. */
struct to_keep {
    rp_part part;
    const char *output;
    struct cli_keep *keep;
    struct cli_kept **entries;
    const size_t *texts;
};

static rp_status run_some(struct score *s, const struct to_keep *k, size_t n)
{
    rp_batch batch;
    rp_status status = RP_OK;
    for (size_t i = 0; status == RP_OK && i < n; i++)
        status = add_text(s, k->texts[i], i);
    if (status != RP_OK)
        return status;
    rp_batch_init(&batch);
    batch.n_seqs = n;
    batch.ids = s->ids;
    batch.cu = s->cu;
    status = run_part(s, k->part, &batch);
    for (size_t i = 0; status == RP_OK && i < n; i++)
        status = keep_rows(s, k->part, k->output, k->keep, k->entries[i], (size_t)s->cu[i],
                           (size_t)(s->cu[i + 1] - s->cu[i]));
    return status;
}

static rp_status run_texts(struct score *s, struct to_keep k, size_t n)
{
    rp_status status = RP_OK;
    while (status == RP_OK && n > 0) {
        size_t some = 0, tokens = 0;
        while (some < n && some < BATCH_SEQS) {
            tokens += s->file.texts.items[k.texts[some]].n;
            if (some > 0 && tokens > BATCH_TOKENS)
                break;
            some++;
        }
        status = run_some(s, &k, some);
        k.entries += some;
        k.texts += some;
        n -= some;
    }
    return status;
}

/* ---- states of segments
 * --------------------------------------------------------------------------
 */

/* The low rows of a state's segments; those that are there are not run again. */
static rp_status find_segments(struct score *s, const int32_t *texts, size_t n)
{
    struct cli_kept **entries = malloc(n * sizeof(struct cli_kept *));
    size_t missing = 0;
    cli_keep_begin(&s->lows);
    if (!entries)
        return no_memory(s);
    for (size_t i = 0; i < n; i++)
        if (s->low[texts[i]].data)
            cli_kept_touch(&s->lows, &s->low[texts[i]]);
    for (size_t i = 0; i < n; i++) {
        struct cli_kept *entry = &s->low[texts[i]];
        if (entry->data || entry->used == s->lows.now)
            continue; /* the same segment twice is run once */
        entry->used = s->lows.now;
        entries[missing] = entry;
        s->wanted[missing++] = (size_t)texts[i];
    }
    const struct to_keep k = {RP_PART_SEGMENT, "low", &s->lows, entries, s->wanted};
    const rp_status status = run_texts(s, k, missing);
    free(entries);
    return status;
}

/* Low rows and numbers of all segments, one after the other. */
static rp_status gather_segments(struct score *s, const int32_t *texts, size_t n, size_t tokens)
{
    const size_t width = s->model->info.hidden, last = s->split->max_segments - 1;
    float *input = cli_grow(s->input, 0, tokens * width, sizeof *input, &s->cap_input);
    if (input)
        s->input = input;
    int32_t *numbers = cli_grow(s->numbers, 0, tokens, sizeof *numbers, &s->cap_numbers);
    if (numbers)
        s->numbers = numbers;
    if (!input || !numbers)
        return no_memory(s);
    for (size_t i = 0, at = 0; i < n; i++) {
        const size_t rows = s->file.texts.items[texts[i]].n;
        memcpy(input + at * width, s->low[texts[i]].data, rows * width * sizeof *input);
        for (size_t r = 0; r < rows; r++)
            numbers[at++] = (int32_t)(i < last ? i : last);
    }
    return RP_OK;
}

static rp_status run_segments(struct score *s, size_t state)
{
    const size_t tokens = state_tokens(s, state);
    bool segments;
    size_t n;
    const int32_t *texts = state_texts(s, state, &segments, &n);
    rp_status status = find_segments(s, texts, n);
    if (status == RP_OK)
        status = gather_segments(s, texts, n, tokens);
    if (status != RP_OK)
        return status;
    const int32_t cu[] = {0, (int32_t)tokens};
    rp_batch batch;
    rp_batch_init(&batch);
    batch.n_seqs = 1;
    batch.cu = cu;
    batch.input = s->input;
    batch.type_ids = s->numbers;
    status = run_part(s, RP_PART_SEGMENTS, &batch);
    return status == RP_OK ? keep_rows(s, RP_PART_SEGMENTS, "memory", &s->memories,
                                       &s->memory[state], 0, tokens)
                           : status;
}

/* ---- states of a batch
 * ---------------------------------------------------------------------------
 */

/* The whole states among those of the batch's questions that are not there, run together. */
static rp_status run_whole_states(struct score *s, const size_t *states, size_t n)
{
    struct cli_kept *entries[BATCH_SEQS];
    size_t missing = 0;
    for (size_t i = 0; i < n; i++) {
        bool segments;
        size_t n_texts;
        const int32_t *texts = state_texts(s, states[i], &segments, &n_texts);
        if (segments)
            continue;
        entries[missing] = &s->memory[states[i]];
        s->wanted[missing++] = (size_t)texts[0];
    }
    const struct to_keep k = {RP_PART_STATE, "memory", &s->memories, entries, s->wanted};
    return run_texts(s, k, missing);
}

/* Memories of the states of questions [first, end). */
static rp_status find_states(struct score *s, size_t first, size_t end)
{
    size_t missing[BATCH_SEQS], n = 0;
    cli_keep_begin(&s->memories);
    for (size_t i = first; i < end; i++)
        if (s->memory[s->file.q[i].state].data)
            cli_kept_touch(&s->memories, &s->memory[s->file.q[i].state]);
    for (size_t i = first; i < end; i++) {
        struct cli_kept *entry = &s->memory[s->file.q[i].state];
        if (entry->data || entry->used == s->memories.now)
            continue;
        entry->used = s->memories.now;
        missing[n++] = s->file.q[i].state;
    }
    rp_status status = run_whole_states(s, missing, n);
    for (size_t i = 0; status == RP_OK && i < n; i++)
        if (!s->memory[missing[i]].data)
            status = run_segments(s, missing[i]);
    return status;
}

/* ---- questions
 * -----------------------------------------------------------------------------------
 */

/* So many that their tokens fill a batch, and that the memories of their states fit. */
static size_t batch_end(struct score *s, size_t first)
{
    size_t end = first, tokens = 0;
    uint64_t bytes = 0;
    for (; end < s->file.n && end - first < BATCH_SEQS; end++) {
        const struct cli_split_question *q = &s->file.q[end];
        const bool another = s->seen_by[q->state] != first + 1;
        tokens += q->n_tokens;
        if (another)
            bytes += (uint64_t)q->state_tokens * s->split->memory_width * sizeof(float);
        if (end > first && (tokens > BATCH_TOKENS || (another && bytes > s->memories.limit)))
            break;
        s->seen_by[q->state] = first + 1;
    }
    return end;
}

/* Questions on the same state one after the other, so that its keys are packed once: by the place
 * of the state in the file, then by their own. */
static int compare(const void *a, const void *b)
{
    const struct cli_split_question *p = *(const struct cli_split_question *const *)a;
    const struct cli_split_question *q = *(const struct cli_split_question *const *)b;
    return p->state != q->state ? (p->state < q->state ? -1 : 1) : (p > q) - (p < q);
}

static void fill_batch(struct score *s, size_t first, size_t n, int32_t *ids, int32_t *markers)
{
    const struct cli_split_question *sorted[BATCH_SEQS];
    for (size_t i = 0; i < n; i++)
        sorted[i] = &s->file.q[first + i];
    qsort(sorted, n, sizeof *sorted, compare);
    for (size_t i = 0; i < n; i++) {
        const struct cli_split_question *q = sorted[i];
        s->order[(size_t)(q - s->file.q) - first] = i;
        memcpy(ids + s->cu[i], s->file.ids + q->first_token, q->n_tokens * sizeof *ids);
        memcpy(markers + s->mcu[i], s->file.markers + q->first_marker,
               q->n_markers * sizeof *markers);
        s->cu[i + 1] = s->cu[i] + (int32_t)q->n_tokens;
        s->mcu[i + 1] = s->mcu[i] + (int32_t)q->n_markers;
        s->types[i] = q->type;
        s->of_question[i] = (rp_memory){s->memory[q->state].data, q->state_tokens};
    }
}

static void print_answer(struct score *s, size_t index, const float *logits)
{
    const struct cli_split_question *q = &s->file.q[index];
    const rp_model *model = s->model->model;
    const char *name = rp_model_question_type(model, (size_t)q->type);
    rp_softmax(logits, q->n_markers, rp_model_temperature(model, (size_t)q->type, q->n_markers),
               s->probabilities);
    printf("{\"index\":%zu,\"type\":", index);
    cli_put_json_string(stdout, name, strlen(name));
    printf(",\"state_tokens\":%zu,\"tokens\":%zu", q->state_tokens, q->n_tokens);
    cli_put_floats("logits", logits, q->n_markers);
    cli_put_floats("probabilities", s->probabilities, q->n_markers);
    puts("}");
}

static rp_status run_questions(struct score *s, size_t first, size_t end)
{
    const struct cli_split_question *last = &s->file.q[end - 1], *q = &s->file.q[first];
    const size_t tokens = last->first_token + last->n_tokens - q->first_token;
    const size_t n_markers = last->first_marker + last->n_markers - q->first_marker;
    int32_t *ids = cli_grow(s->ids, 0, tokens, sizeof *ids, &s->cap_ids);
    if (ids)
        s->ids = ids;
    int32_t *markers = cli_grow(s->numbers, 0, n_markers, sizeof *markers, &s->cap_numbers);
    if (markers)
        s->numbers = markers;
    if (!ids || !markers)
        return no_memory(s);
    rp_batch batch;
    rp_view v;
    rp_batch_init(&batch);
    batch.n_seqs = end - first;
    fill_batch(s, first, end - first, ids, markers);
    batch.ids = ids;
    batch.cu = s->cu;
    batch.markers = markers;
    batch.mcu = s->mcu;
    batch.qtypes = s->types;
    batch.memories = s->of_question;
    rp_status status = run_part(s, RP_PART_MAIN, &batch);
    if (status == RP_OK)
        status = rp_session_output(s->sessions[RP_PART_MAIN], "logits", &v, &s->cli->err);
    for (size_t i = first; status == RP_OK && i < end; i++)
        print_answer(s, i, v.data + s->mcu[s->order[i - first]]);
    return status;
}

/* ---- the file
 * ------------------------------------------------------------------------------------
 */

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* What a sequence of each graph may have to hold, and the most options of a question.  That of
 * RP_PART_SEGMENTS is the longest state of either kind, so no memory has more rows. */
static size_t measure(struct score *s)
{
    size_t most = 1;
    for (size_t i = 0; i < s->file.texts.n; i++) {
        const size_t n = s->file.texts.items[i].n;
        s->longest[RP_PART_STATE] = s->longest[RP_PART_SEGMENT] =
            larger(s->longest[RP_PART_STATE], n);
    }
    for (size_t i = 0; i < s->file.n; i++) {
        const struct cli_split_question *q = &s->file.q[i];
        s->longest[RP_PART_MAIN] = larger(s->longest[RP_PART_MAIN], q->n_tokens);
        s->longest[RP_PART_SEGMENTS] = larger(s->longest[RP_PART_SEGMENTS], q->state_tokens);
        most = larger(most, q->n_markers);
    }
    return most;
}

static rp_status run(struct score *s)
{
    const size_t most = measure(s), n_states = s->file.states.n, n_texts = s->file.texts.n;
    s->memory = calloc(n_states + 1, sizeof *s->memory);
    s->low = calloc(n_texts + 1, sizeof *s->low);
    s->wanted = calloc(larger(n_states, n_texts) + 1, sizeof *s->wanted);
    s->seen_by = calloc(n_states + 1, sizeof *s->seen_by);
    s->probabilities = calloc(most, sizeof *s->probabilities);
    if (!s->memory || !s->low || !s->wanted || !s->seen_by || !s->probabilities)
        return no_memory(s);
    rp_status status = RP_OK;
    for (size_t first = 0, end; status == RP_OK && first < s->file.n; first = end) {
        end = batch_end(s, first);
        status = find_states(s, first, end);
        if (status == RP_OK)
            status = run_questions(s, first, end);
    }
    return status;
}

static void free_score(struct score *s)
{
    for (size_t i = 0; i <= RP_PART_SEGMENTS; i++)
        rp_session_destroy(s->sessions[i]);
    cli_keep_clear(&s->memories);
    cli_keep_clear(&s->lows);
    cli_free_split(&s->file);
    free(s->memory);
    free(s->low);
    free(s->wanted);
    free(s->seen_by);
    free(s->ids);
    free(s->numbers);
    free(s->input);
    free(s->probabilities);
    free(s);
}

rp_status cli_score_split(struct cli *cli, struct cli_model *model, const rp_split_info *split)
{
    if (cli->o.max_length || cli->o.marker)
        return cli_err(
            &cli->err, RP_ERR_INVALID,
            "--%s is not for a split encoder: nothing is cut, and an option begins where "
            "its own text does",
            cli->o.marker ? "marker" : "max-length");
    struct score *s = calloc(1, sizeof *s);
    if (!s)
        return cli_err(&cli->err, RP_ERR_NOMEM, "no memory for a batch");
    s->cli = cli;
    s->model = model;
    s->split = split;
    s->memories.limit = s->lows.limit = (uint64_t)cli->o.cache_mib << 20;
    rp_status status = cli_read_split(cli, model, split, &s->file);
    if (status == RP_OK)
        status = run(s);
    free_score(s);
    return status;
}
