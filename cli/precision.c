/* rankplan compare-precision: what INT8 costs on the user's own texts. */
#include "cli/cli.h"
#include "cli/difference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Texts whose steps are compared: all values of all steps are held at once. */
#define STEP_TOKENS 512
#define WORST_STEPS 12

/* A step's result in FP32, and how far INT8 is from it. */
struct step {
    char *name;
    float *values;
    size_t rows, width;
    double error; /* root mean square of the difference over that of the values; -1: not compared */
    double added; /* of it, by this step: sqrt(error^2 - that of the step before^2) */
};

struct study {
    struct cli *cli;
    struct cli_model models[2]; /* FP32, INT8 */
    struct cli_lines lines;
    float *results[2]; /* vectors, or scores */
    size_t dim;        /* 1 for scores */
    struct step *steps;
    size_t n_steps, capacity;
};

/* ---- steps -------------------------------------------------------------------------------------
 */

static bool want_all(void *context, const rp_step_info *info)
{
    (void)context;
    return strcmp(info->kind, "quantize") != 0; /* rows of bytes, which FP32 has not */
}

static rp_status keep_step(void *context, const rp_step_info *info, const rp_view *view)
{
    struct study *s = context;
    if (s->n_steps == s->capacity) {
        const size_t capacity = s->capacity ? 2 * s->capacity : 64;
        struct step *more = realloc(s->steps, capacity * sizeof *more);
        if (!more)
            return RP_ERR_NOMEM;
        s->steps = more;
        s->capacity = capacity;
    }
    const size_t n = view->rows * view->width;
    struct step *step = &s->steps[s->n_steps++];
    *step = (struct step){.name = strdup(info->name),
                          .values = malloc((n ? n : 1) * sizeof(float)),
                          .rows = view->rows,
                          .width = view->width,
                          .error = -1};
    if (!step->name || !step->values)
        return RP_ERR_NOMEM;
    memcpy(step->values, view->data, n * sizeof(float));
    return RP_OK;
}

static rp_status compare_step(void *context, const rp_step_info *info, const rp_view *view)
{
    struct study *s = context;
    size_t i = 0;
    while (i < s->n_steps && strcmp(s->steps[i].name, info->name) != 0)
        i++;
    if (i == s->n_steps || s->steps[i].rows != view->rows || s->steps[i].width != view->width)
        return RP_OK;
    double off = 0, all = 0;
    for (size_t k = 0; k < view->rows * view->width; k++) {
        const double a = (double)s->steps[i].values[k], d = (double)view->data[k] - a;
        off += d * d;
        all += a * a;
    }
    s->steps[i].error = all > 0 ? sqrt(off / all) : 0;
    return RP_OK;
}

/* The first texts, as many as fit, as one batch; at least one. */
static rp_status run_steps(struct study *s, int which)
{
    const rp_text_ref query = {.data = s->cli->o.query,
                               .length = s->cli->o.query ? strlen(s->cli->o.query) : 0};
    rp_observer observer = {.struct_size = sizeof observer,
                            .want = want_all,
                            .show = which ? compare_step : keep_step,
                            .context = s};
    rp_batch batch;
    rp_ranker *ranker = s->models[which].ranker;
    rp_status status = rp_ranker_tokenize(ranker, s->cli->o.query ? &query : NULL, s->lines.n,
                                          s->lines.lines, &batch, NULL, &s->cli->err);
    if (status != RP_OK)
        return status;
    size_t n = 1;
    while (n < batch.n_seqs && batch.cu[n + 1] <= STEP_TOKENS)
        n++;
    batch.n_seqs = n;
    rp_session_observe(rp_ranker_session(ranker), &observer);
    status = rp_session_run(rp_ranker_session(ranker), &batch, &s->cli->err);
    rp_session_observe(rp_ranker_session(ranker), NULL);
    return status;
}

static void find_added(struct study *s)
{
    double before = 0;
    for (size_t i = 0; i < s->n_steps; i++) {
        struct step *step = &s->steps[i];
        if (step->error < 0)
            continue;
        step->added = step->error > before ? sqrt(step->error * step->error - before * before) : 0;
        before = step->error;
    }
}

/* ---- results -----------------------------------------------------------------------------------
 */

static rp_status run_results(struct study *s, int which)
{
    struct cli *cli = s->cli;
    const rp_text_ref query = {.data = cli->o.query,
                               .length = cli->o.query ? strlen(cli->o.query) : 0};
    s->dim = cli->o.query ? 1 : s->models[which].info.dimension;
    s->results[which] = calloc(s->lines.n * s->dim + 1, sizeof(float));
    if (!s->results[which])
        return cli_err(&cli->err, RP_ERR_NOMEM, "no memory for %zu results", s->lines.n);
    if (cli->o.query)
        return rp_ranker_score(s->models[which].ranker, query, s->lines.n, s->lines.lines,
                               s->results[which], NULL, &cli->err);
    return rp_ranker_embed(s->models[which].ranker, NULL, s->lines.n, s->lines.lines,
                           s->results[which], NULL, &cli->err);
}

struct summary {
    double cosine_mean, cosine_min; /* of vectors */
    double change_max;              /* of a score, or of the cosine of two texts */
    size_t rankings, same_first;    /* each text as query for the others, or the one query */
    double tau_mean, common_mean;
};

static void add_agreement(struct summary *out, const struct cli_agreement *a)
{
    out->rankings++;
    out->same_first += a->same_first;
    out->tau_mean += a->tau;
    out->common_mean += a->top ? (double)a->common / (double)a->top : 1;
}

static double cosine(const float *a, const float *b, size_t n)
{
    double ab = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < n; i++) {
        ab += (double)a[i] * (double)b[i];
        aa += (double)a[i] * (double)a[i];
        bb += (double)b[i] * (double)b[i];
    }
    return aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : 1;
}

/* Text q as the query: similarities to all others, both ways. */
static bool rank_by(const struct study *s, size_t q, float *scores, struct summary *out)
{
    const size_t n = s->lines.n, d = s->dim;
    struct cli_agreement agreement;
    for (int which = 0; which < 2; which++) {
        float *to = scores + (size_t)which * n;
        for (size_t i = 0; i < n; i++)
            if (i != q)
                *to++ = (float)cosine(s->results[which] + q * d, s->results[which] + i * d, d);
    }
    for (size_t i = 0; i + 1 < n; i++) {
        const double change = fabs((double)scores[i] - (double)scores[n + i]);
        out->change_max = change > out->change_max ? change : out->change_max;
    }
    if (!cli_agreement_take(scores + n, scores, n - 1, &agreement))
        return false;
    add_agreement(out, &agreement);
    return true;
}

static bool summarize_vectors(const struct study *s, struct summary *out)
{
    const size_t n = s->lines.n, d = s->dim;
    float *scores = calloc(2 * n, sizeof *scores);
    bool ok = scores != NULL;
    out->cosine_min = 1;
    for (size_t i = 0; i < n; i++) {
        const double c = cosine(s->results[0] + i * d, s->results[1] + i * d, d);
        out->cosine_mean += c / (double)n;
        out->cosine_min = c < out->cosine_min ? c : out->cosine_min;
    }
    for (size_t q = 0; ok && n > 2 && q < n; q++)
        ok = rank_by(s, q, scores, out);
    free(scores);
    return ok;
}

static bool summarize_scores(const struct study *s, struct summary *out)
{
    struct cli_agreement agreement;
    for (size_t i = 0; i < s->lines.n; i++) {
        const double change = fabs((double)s->results[0][i] - (double)s->results[1][i]);
        out->change_max = change > out->change_max ? change : out->change_max;
    }
    if (!cli_agreement_take(s->results[1], s->results[0], s->lines.n, &agreement))
        return false;
    add_agreement(out, &agreement);
    return true;
}

static rp_status summarize(const struct study *s, struct summary *out)
{
    memset(out, 0, sizeof *out);
    if (!(s->cli->o.query ? summarize_scores(s, out) : summarize_vectors(s, out)))
        return cli_err(&s->cli->err, RP_ERR_NOMEM, "no memory to rank %zu texts", s->lines.n);
    if (out->rankings) {
        out->tau_mean /= (double)out->rankings;
        out->common_mean /= (double)out->rankings;
    }
    return RP_OK;
}

/* ---- printing ----------------------------------------------------------------------------------
 */

static int by_added(const void *a, const void *b)
{
    const struct step *x = a, *y = b;
    return (x->added < y->added) - (x->added > y->added);
}

static void print_text(struct study *s, const struct summary *sum)
{
    printf("texts        %zu\n", s->lines.n);
    if (!s->cli->o.query)
        printf("cosine       mean %.6f, min %.6f\n", sum->cosine_mean, sum->cosine_min);
    printf("%s  largest change %.6f\n", s->cli->o.query ? "scores     " : "similarities",
           sum->change_max);
    printf("rankings     %zu: same first %zu, best 5 in common %.1f%%, Kendall tau %.4f\n",
           sum->rankings, sum->same_first, 100 * sum->common_mean, sum->tau_mean);
    printf("weights      %llu bytes, fp32 %llu\n\n",
           (unsigned long long)rp_weights_bytes(rp_model_weights(s->models[1].model)),
           (unsigned long long)rp_weights_bytes(rp_model_weights(s->models[0].model)));
    printf("%-28s %14s %14s\n", "steps that lose most", "relative error", "of it added");
    qsort(s->steps, s->n_steps, sizeof *s->steps, by_added);
    for (size_t i = 0; i < s->n_steps && i < WORST_STEPS && s->steps[i].added > 0; i++)
        printf("%-28s %14.6f %14.6f\n", s->steps[i].name, s->steps[i].error, s->steps[i].added);
}

static void put_member(const char *name, double x)
{
    printf("\"%s\":", name);
    cli_put_double(stdout, x, 9);
}

static void print_json(const struct study *s, const struct summary *sum)
{
    printf("{\"texts\":%zu,", s->lines.n);
    if (!s->cli->o.query) {
        put_member("cosine_mean", sum->cosine_mean);
        putchar(',');
        put_member("cosine_min", sum->cosine_min);
        putchar(',');
    }
    put_member("change_max", sum->change_max);
    printf(",\"rankings\":%zu,\"same_first\":%zu,", sum->rankings, sum->same_first);
    put_member("best5_common", sum->common_mean);
    putchar(',');
    put_member("kendall_tau", sum->tau_mean);
    fputs(",\"steps\":[", stdout);
    for (size_t i = 0, any = 0; i < s->n_steps; i++) {
        if (s->steps[i].error < 0)
            continue;
        fputs(any++ ? ",{\"name\":" : "{\"name\":", stdout);
        cli_put_json_string(stdout, s->steps[i].name, strlen(s->steps[i].name));
        putchar(',');
        put_member("error", s->steps[i].error);
        putchar(',');
        put_member("added", s->steps[i].added);
        putchar('}');
    }
    puts("]}");
}

/* ---- all of it ---------------------------------------------------------------------------------
 */

static rp_status study(struct study *s)
{
    struct cli *cli = s->cli;
    rp_status status = RP_OK;
    for (int which = 0; which < 2 && status == RP_OK; which++) {
        cli->o.precision = which ? RP_PRECISION_INT8 : RP_PRECISION_FP32;
        status = cli_open_ranker(cli, &s->models[which]);
        if (status == RP_OK)
            status = run_results(s, which);
        if (status == RP_OK)
            status = run_steps(s, which);
    }
    if (status == RP_OK)
        find_added(s);
    return status;
}

static void free_study(struct study *s)
{
    for (int which = 0; which < 2; which++) {
        cli_close_model(&s->models[which]);
        free(s->results[which]);
    }
    for (size_t i = 0; i < s->n_steps; i++) {
        free(s->steps[i].name);
        free(s->steps[i].values);
    }
    free(s->steps);
    cli_free_lines(&s->lines);
}

int cli_compare_precision(struct cli *cli)
{
    struct study s = {.cli = cli};
    struct summary sum;
    rp_status status = cli_read_lines(cli, &s.lines);
    if (status == RP_OK && s.lines.n == 0)
        status = cli_err(&cli->err, RP_ERR_INVALID, "there is no text to compare on");
    if (status == RP_OK)
        status = study(&s);
    if (status == RP_OK)
        status = summarize(&s, &sum);
    if (status == RP_OK && cli->o.json)
        print_json(&s, &sum);
    else if (status == RP_OK)
        print_text(&s, &sum);
    free_study(&s);
    return status == RP_OK ? CLI_OK : cli_fail(cli, status);
}
