/* rankplan score: typed questions in, a logit and a probability for each option out. */
#include "cli/questions.h"
#include "cli/split.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BATCH_TOKENS 4096

struct score {
    struct cli *cli;
    struct cli_model model;
    struct cli_questions questions;
    unsigned outputs; /* RP_MODEL_... */
    rp_session *session;
    int32_t *cu, *mcu, *types; /* of the batch under way */
    float *probabilities;      /* of one question */
};

/* ---- printing -----------------------------------------------------------------------------------
 */

/* Of one question, in s->probabilities.  A temperature below 1 can take a logit out of range. */
static rp_status find_probabilities(struct score *s, size_t index, const float *logits)
{
    const struct cli_question *q = &s->questions.q[index];
    const float temperature = rp_model_temperature(s->model.model, (size_t)q->type, q->n_markers);
    rp_softmax(logits, q->n_markers, temperature, s->probabilities);
    for (size_t i = 0; i < q->n_markers; i++)
        if (!isfinite(s->probabilities[i]))
            return cli_err(&s->cli->err, RP_ERR_NONFINITE,
                           "question %zu: the probability of option %zu is no number", index, i);
    return RP_OK;
}

static void print_logits(const struct score *s, const struct cli_question *q, const float *logits)
{
    cli_put_floats("logits", logits, q->n_markers);
    cli_put_floats("probabilities", s->probabilities, q->n_markers);
}

static void print_act(const float act[2])
{
    float p[2];
    rp_softmax(act, 2, 1, p);
    cli_put_floats("act", act, 2);
    fputs(",\"act_probability\":", stdout);
    cli_put_float(stdout, p[0]);
}

static void print_head(const struct score *s, size_t index)
{
    const struct cli_question *q = &s->questions.q[index];
    const char *name = rp_model_question_type(s->model.model, (size_t)q->type);
    printf("{\"index\":%zu,\"type\":", index);
    if (name)
        cli_put_json_string(stdout, name, strlen(name));
    else
        printf("%d", q->type);
    printf(",\"tokens\":%zu,\"truncated\":%s", q->n_tokens, q->truncated ? "true" : "false");
}

/* The results of questions [first, end), which ran as one batch. */
static rp_status print_batch(struct score *s, size_t first, size_t end)
{
    static const struct {
        unsigned flag;
        const char *name;
    } outputs[] = {{RP_MODEL_LOGITS, "logits"}, {RP_MODEL_ACT, "act"}, {RP_MODEL_POOLED, "pooled"}};
    rp_view v[3] = {{0}};
    for (size_t i = 0; i < 3; i++) {
        if (!(s->outputs & outputs[i].flag))
            continue;
        const rp_status status =
            rp_session_output(s->session, outputs[i].name, &v[i], &s->cli->err);
        if (status != RP_OK)
            return status;
    }
    for (size_t i = first; i < end; i++) {
        if (s->outputs & RP_MODEL_LOGITS) {
            const rp_status status = find_probabilities(s, i, v[0].data + s->mcu[i - first]);
            if (status != RP_OK)
                return status;
        }
        print_head(s, i);
        if (s->outputs & RP_MODEL_LOGITS)
            print_logits(s, &s->questions.q[i], v[0].data + s->mcu[i - first]);
        if (s->outputs & RP_MODEL_ACT)
            print_act(v[1].data + 2 * (i - first));
        if (s->outputs & RP_MODEL_POOLED)
            cli_put_floats("pooled", v[2].data + (i - first) * v[2].width, v[2].width);
        puts("}");
    }
    return RP_OK;
}

/* ---- running ------------------------------------------------------------------------------------
 */

static size_t batch_end(const struct cli_questions *q, size_t first)
{
    size_t end = first, tokens = 0;
    while (end < q->n && end - first < BATCH_TOKENS / 2 &&
           (end == first || tokens + q->q[end].n_tokens <= BATCH_TOKENS))
        tokens += q->q[end++].n_tokens;
    return end;
}

static rp_status run_batch(struct score *s, size_t first, size_t end)
{
    const struct cli_question *q = s->questions.q;
    rp_batch batch;
    rp_batch_init(&batch);
    for (size_t i = first; i < end; i++) {
        s->types[i - first] = q[i].type;
        s->cu[i - first + 1] = (int32_t)(q[i].first_token + q[i].n_tokens - q[first].first_token);
        s->mcu[i - first + 1] =
            (int32_t)(q[i].first_marker + q[i].n_markers - q[first].first_marker);
    }
    batch.n_seqs = end - first;
    batch.cu = s->cu;
    batch.qtypes = s->types;
    if (s->questions.ids)
        batch.ids = s->questions.ids + q[first].first_token;
    if (s->questions.markers) {
        batch.markers = s->questions.markers + q[first].first_marker;
        batch.mcu = s->mcu;
    }
    const rp_status status = rp_session_run(s->session, &batch, &s->cli->err);
    return status == RP_OK ? print_batch(s, first, end) : status;
}

static rp_status run(struct score *s)
{
    size_t longest = BATCH_TOKENS, most = 1;
    for (size_t i = 0; i < s->questions.n; i++) {
        const struct cli_question *q = &s->questions.q[i];
        longest = q->n_tokens > longest ? q->n_tokens : longest;
        most = q->n_markers > most ? q->n_markers : most;
    }
    s->cu = calloc(BATCH_TOKENS / 2 + 1, sizeof *s->cu);
    s->mcu = calloc(BATCH_TOKENS / 2 + 1, sizeof *s->mcu);
    s->types = calloc(BATCH_TOKENS / 2, sizeof *s->types);
    s->probabilities = calloc(most, sizeof *s->probabilities);
    if (!s->cu || !s->mcu || !s->types || !s->probabilities)
        return cli_err(&s->cli->err, RP_ERR_NOMEM, "no memory for a batch");
    rp_status status = cli_open_session(s->cli, &s->model, longest, &s->session);
    for (size_t first = 0, end; status == RP_OK && first < s->questions.n; first = end) {
        end = batch_end(&s->questions, first);
        status = run_batch(s, first, end);
    }
    return status;
}

static void note_cuts(const struct score *s)
{
    size_t cut = 0;
    for (size_t i = 0; i < s->questions.n; i++)
        cut += s->questions.q[i].truncated;
    if (cut)
        cli_note(s->cli, "%zu of %zu texts were cut (each line says which)", cut, s->questions.n);
}

/* "logits,act,pooled" in any order and number; 0 for anything else. */
static unsigned parse_outputs(const char *list)
{
    static const char *const names[] = {"logits", "act", "pooled"};
    static const unsigned flags[] = {RP_MODEL_LOGITS, RP_MODEL_ACT, RP_MODEL_POOLED};
    unsigned out = 0;
    for (const char *p = list;; p++) {
        const size_t n = strcspn(p, ",");
        size_t i = 0;
        while (i < 3 && (strlen(names[i]) != n || strncmp(p, names[i], n) != 0))
            i++;
        if (i == 3)
            return 0;
        out |= flags[i];
        p += n;
        if (!*p)
            return out;
    }
}

/* Questions that are about nothing but what stands in their own line. */
static rp_status score_lines(struct score *s)
{
    rp_status status = cli_read_questions(s->cli, &s->model, &s->questions);
    if (status == RP_OK)
        status = run(s);
    if (status == RP_OK)
        note_cuts(s);
    return status;
}

/* The model, with the outputs that were asked for, or those that a model of its kind has.  Outputs
 * are always named, for then another kind of model is refused before its weights are read; and a
 * split encoder, which has logits alone, as soon as its kime.json is. */
static rp_status open_scorer(struct score *s)
{
    struct cli *cli = s->cli;
    rp_status status = cli_open_model(cli, s->outputs, &s->model);
    if (status == RP_ERR_INVALID && !cli->o.outputs)
        status = cli_open_model(cli, RP_MODEL_LOGITS, &s->model);
    if (status == RP_OK && cli->o.has_cache && !cli->split)
        return cli_err(&cli->err, RP_ERR_INVALID,
                       "--cache is only for a split encoder: nothing of a question is kept here");
    return status;
}

int cli_score(struct cli *cli)
{
    struct score s = {.cli = cli, .outputs = RP_MODEL_LOGITS | RP_MODEL_ACT};
    rp_split_info split = {.struct_size = sizeof split};
    if (cli->o.outputs)
        s.outputs = parse_outputs(cli->o.outputs);
    if (s.outputs == 0)
        return cli_complain(CLI_USAGE, "--outputs %s: expected some of logits,act,pooled",
                            cli->o.outputs);
    rp_status status = open_scorer(&s);
    if (status == RP_OK)
        status = rp_model_get_split(s.model.model, &split) ? cli_score_split(cli, &s.model, &split)
                                                           : score_lines(&s);
    const int code = status == RP_OK ? CLI_OK : cli_fail(cli, status);
    rp_session_destroy(s.session);
    cli_free_questions(&s.questions);
    cli_close_model(&s.model);
    free(s.cu);
    free(s.mcu);
    free(s.types);
    free(s.probabilities);
    return code;
}
