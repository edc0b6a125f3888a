/* rankplan check: the model's outputs against those of a reference.
 *
 * The sequences of the file run in batches; rows of every tensor that the file has are compared as
 * they come.  hidden.N is seen through the observer by the name of its step; last, pooler and
 * logits are outputs, and so are act, the last columns of features, and hidden.head (last, after
 * the head) of a decision scorer, whose logits have a row per marker.
 */
#include "cli/cli.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BATCH_TOKENS 4096
#define DEFAULT_TOL  2e-5

/* One tensor of the file and what was found of it so far. */
struct compared {
    char name[64];
    const char *step;   /* of the observer; NULL: an output of the graph */
    bool apart;         /* the step's residual is added by a step of its own (--no-fuse) */
    const char *output; /* its name there */
    rp_rows kind;
    bool tail; /* its last columns alone */
    float *want;
    float *got; /* logits only, for the rankings */
    size_t rows, width;
    double max_abs, largest;
    size_t seen; /* rows compared */
};

struct check {
    struct cli *cli;
    struct cli_model model;
    struct cli_cases cases;
    struct compared *tensors;
    size_t n;
    size_t first[RP_ROWS_MARKERS + 1]; /* where the running batch starts, by kind of rows */
};

static void compare_rows(struct compared *t, size_t row0, const rp_view *view)
{
    for (size_t i = 0; i < view->rows * t->width; i++) {
        const float *row = view->data + (i / t->width + 1) * view->width - t->width;
        const double want = (double)t->want[row0 * t->width + i];
        const double error = fabs((double)row[i % t->width] - want);
        /* A NaN on either side is an infinite error, never a small one. */
        if (!(error <= t->max_abs))
            t->max_abs = isnan(error) ? INFINITY : error;
        if (fabs(want) > t->largest)
            t->largest = fabs(want);
    }
    if (t->got)
        memcpy(t->got + row0 * t->width, view->data, view->rows * view->width * sizeof *t->got);
    t->seen += view->rows;
}

/* Whether the step is the "X.add" that t's step X has in a plan that is not fused, with t's value.
 */
static bool is_sum_of(const struct compared *t, const char *step)
{
    const size_t n = strlen(t->step);
    return strncmp(t->step, step, n) == 0 && strcmp(step + n, ".add") == 0;
}

/* Asked about all steps before the first one runs. */
static bool want_step(void *context, const rp_step_info *step)
{
    const struct check *c = context;
    for (size_t i = 0; i < c->n; i++) {
        struct compared *t = &c->tensors[i];
        if (!t->step)
            continue;
        t->apart = t->apart || is_sum_of(t, step->name);
        if (is_sum_of(t, step->name) || strcmp(t->step, step->name) == 0)
            return true;
    }
    return false;
}

static rp_status show_step(void *context, const rp_step_info *step, const rp_view *view)
{
    struct check *c = context;
    for (size_t i = 0; i < c->n; i++) {
        struct compared *t = &c->tensors[i];
        if (t->step && t->width == view->width &&
            (t->apart ? is_sum_of(t, step->name) : strcmp(t->step, step->name) == 0))
            compare_rows(t, c->first[RP_ROWS_TOKENS], view);
    }
    return RP_OK;
}

/* ---- which tensors ------------------------------------------------------------------------------
 */

/* Tensors that are outputs of the graph.  Those of the second part are a decision scorer's. */
static const struct place {
    const char *tensor, *output;
    rp_rows kind;
    bool decides, tail;
} places[] = {
    {"last", "last", RP_ROWS_TOKENS, false, false},
    {"pooler", "pooler", RP_ROWS_SEQS, false, false},
    {"logits", "logits", RP_ROWS_SEQS, false, false},
    {"hidden.head", "last", RP_ROWS_TOKENS, true, false},
    {"logits", "logits", RP_ROWS_MARKERS, true, false},
    {"act", "act", RP_ROWS_SEQS, true, false},
    {"features", "features", RP_ROWS_SEQS, true, true},
    {"pooled", "pooled", RP_ROWS_SEQS, true, false},
};

static const struct place *find_place(const struct check *c, const char *tensor)
{
    const bool decides = c->model.info.task == RP_TASK_DECIDE;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (places[i].decides == decides && strcmp(places[i].tensor, tensor) == 0)
            return &places[i];
    return NULL;
}

/* Whether the file's tensor is one that a model of ours has, and where to find it there.  Of rank 1
 * are the logits of markers. */
static bool place(const struct check *c, const rp_tensor *tensor, struct compared *out)
{
    const struct place *p = find_place(c, tensor->name);
    memset(out, 0, sizeof *out);
    if (tensor->rank < 1 || tensor->rank > 2 || strlen(tensor->name) >= sizeof out->name)
        return false;
    strcpy(out->name, tensor->name);
    out->rows = (size_t)tensor->dims[0];
    out->width = tensor->rank == 2 ? (size_t)tensor->dims[1] : 1;
    if (p) {
        out->output = p->output;
        out->kind = p->kind;
        out->tail = p->tail;
        return tensor->rank == 2 || p->kind == RP_ROWS_MARKERS;
    }
    if (strncmp(tensor->name, "hidden.", 7) == 0 && tensor->rank == 2) {
        char *end;
        const unsigned long layer = strtoul(tensor->name + 7, &end, 10);
        out->step = *end ? NULL : rp_model_hidden_name(c->model.model, layer);
        out->kind = RP_ROWS_TOKENS;
    }
    return out->step != NULL;
}

static size_t rows_of(const struct cli_cases *cases, rp_rows kind)
{
    switch (kind) {
    case RP_ROWS_TOKENS: return cases->n_tokens;
    case RP_ROWS_SEQS: return cases->n_seqs;
    case RP_ROWS_MARKERS: return cases->n_markers;
    }
    return 0;
}

static rp_status load_tensor(struct check *c, struct compared *t)
{
    const size_t want_rows = rows_of(&c->cases, t->kind);
    rp_error *err = &c->cli->err;
    if (t->rows != want_rows) {
        snprintf(err->message, sizeof err->message, "%s: %s has %zu rows, expected %zu",
                 c->cases.path, t->name, t->rows, want_rows);
        return RP_ERR_SHAPE;
    }
    const size_t n = t->rows * t->width;
    t->want = calloc(n ? n : 1, sizeof *t->want);
    if (strcmp(t->name, "logits") == 0)
        t->got = calloc(n ? n : 1, sizeof *t->got);
    if (!t->want || (strcmp(t->name, "logits") == 0 && !t->got)) {
        snprintf(err->message, sizeof err->message, "%s: no memory for %s", c->cases.path, t->name);
        return RP_ERR_NOMEM;
    }
    return rp_tensor_file_read_f32(c->cases.file, t->name, t->want, n, err);
}

static rp_status load_tensors(struct check *c)
{
    const size_t n = rp_tensor_file_count(c->cases.file);
    c->tensors = calloc(n ? n : 1, sizeof *c->tensors);
    if (!c->tensors)
        return RP_ERR_NOMEM;
    for (size_t i = 0; i < n; i++) {
        rp_tensor tensor;
        if (rp_tensor_file_get(c->cases.file, i, &tensor) != RP_OK ||
            !place(c, &tensor, &c->tensors[c->n]))
            continue;
        const rp_status status = load_tensor(c, &c->tensors[c->n++]);
        if (status != RP_OK)
            return status;
    }
    if (c->n == 0) {
        snprintf(c->cli->err.message, sizeof c->cli->err.message,
                 "%s: it has none of the tensors that are compared for this model", c->cases.path);
        return RP_ERR_MISSING;
    }
    return RP_OK;
}

/* ---- running ------------------------------------------------------------------------------------
 */

static rp_status compare_outputs(struct check *c, rp_session *session)
{
    for (size_t i = 0; i < c->n; i++) {
        struct compared *t = &c->tensors[i];
        rp_view view;
        if (t->step)
            continue;
        const rp_status status = rp_session_output(session, t->output, &view, &c->cli->err);
        if (status != RP_OK)
            return status;
        if (t->tail ? view.width < t->width : view.width != t->width) {
            snprintf(c->cli->err.message, sizeof c->cli->err.message,
                     "%s: %s is %zu wide, and the model's is %zu", c->cases.path, t->name, t->width,
                     view.width);
            return RP_ERR_SHAPE;
        }
        compare_rows(t, c->first[view.kind], &view);
    }
    return RP_OK;
}

static rp_status run_cases(struct check *c, rp_session *session)
{
    int32_t *cu = calloc(2 * c->cases.n_seqs + 2, sizeof *cu);
    rp_status status = cu ? RP_OK : RP_ERR_NOMEM;
    const rp_observer observer = {
        .struct_size = sizeof observer, .want = want_step, .show = show_step, .context = c};
    rp_session_observe(session, &observer);
    for (size_t first = 0, end; status == RP_OK && first < c->cases.n_seqs; first = end) {
        for (end = first + 1; end < c->cases.n_seqs && end - first < BATCH_TOKENS / 2 &&
                              c->cases.cu[end + 1] - c->cases.cu[first] <= BATCH_TOKENS;)
            end++;
        const rp_batch batch = cli_cases_batch(&c->cases, first, end, cu, cu + c->cases.n_seqs + 1);
        c->first[RP_ROWS_TOKENS] = (size_t)c->cases.cu[first];
        c->first[RP_ROWS_SEQS] = first;
        c->first[RP_ROWS_MARKERS] = c->cases.mcu ? (size_t)c->cases.mcu[first] : 0;
        status = rp_session_run(session, &batch, &c->cli->err);
        if (status == RP_OK)
            status = compare_outputs(c, session);
    }
    free(cu);
    return status;
}

/* ---- rankings -----------------------------------------------------------------------------------
 */

/* The first candidate of each ranking is the right one. */
struct ranking {
    size_t groups, same_order, first;
    double reciprocal;
};

static void rank_group(struct ranking *r, const float *got, const float *want, size_t n,
                       size_t *order, size_t *other)
{
    rp_rank(got, n, order);
    rp_rank(want, n, other);
    r->groups++;
    r->same_order += memcmp(order, other, n * sizeof *order) == 0;
    for (size_t i = 0; i < n; i++)
        if (order[i] == 0) {
            r->first += i == 0;
            r->reciprocal += 1 / (double)(i + 1);
        }
}

static void print_ranking(const char *who, const struct ranking *r)
{
    printf("%-10s recall@1 ", who);
    cli_put_double(stdout, (double)r->first / (double)r->groups, 4);
    printf(" MRR ");
    cli_put_double(stdout, r->reciprocal / (double)r->groups, 4);
    putchar('\n');
}

/* `group` holds the number of sequences of each ranking, in order. */
static rp_status rank_groups(struct check *c, const struct compared *logits, const int32_t *sizes,
                             size_t n_groups)
{
    const size_t n = c->cases.n_seqs;
    struct ranking ours = {0}, reference = {0};
    size_t *order = calloc(2 * n, sizeof *order);
    if (!order)
        return RP_ERR_NOMEM;
    size_t first = 0;
    for (size_t g = 0; g < n_groups && sizes[g] > 0 && (size_t)sizes[g] <= n - first; g++) {
        const float *got = logits->got + first, *want = logits->want + first;
        rank_group(&ours, got, want, (size_t)sizes[g], order, order + n);
        rank_group(&reference, want, want, (size_t)sizes[g], order, order + n);
        first += (size_t)sizes[g];
    }
    free(order);
    if (ours.groups != n_groups || first != n) {
        snprintf(c->cli->err.message, sizeof c->cli->err.message,
                 "%s: the sizes in group do not add up to its %zu sequences", c->cases.path, n);
        return RP_ERR_SHAPE;
    }
    printf("rankings   %zu, in the reference's order %zu\n", ours.groups, ours.same_order);
    print_ranking("rankplan", &ours);
    print_ranking("reference", &reference);
    return RP_OK;
}

static rp_status check_rankings(struct check *c)
{
    const struct compared *logits = NULL;
    rp_tensor tensor;
    for (size_t i = 0; i < c->n; i++)
        if (strcmp(c->tensors[i].name, "logits") == 0 && c->tensors[i].width == 1 &&
            c->tensors[i].kind == RP_ROWS_SEQS)
            logits = &c->tensors[i];
    if (!logits || rp_tensor_file_find(c->cases.file, "group", &tensor, NULL) != RP_OK)
        return RP_OK;
    const size_t n = (size_t)tensor.n_elements;
    int32_t *sizes = calloc(n ? n : 1, sizeof *sizes);
    rp_status status = RP_ERR_NOMEM;
    if (sizes)
        status = rp_tensor_file_read_i32(c->cases.file, "group", sizes, n, &c->cli->err);
    if (status == RP_OK)
        status = rank_groups(c, logits, sizes, n);
    free(sizes);
    return status;
}

/* ---- verdict ------------------------------------------------------------------------------------
 */

static int print_verdict(const struct check *c)
{
    int code = CLI_OK;
    const double tol = c->cli->o.tol < 0 ? DEFAULT_TOL : c->cli->o.tol;
    for (size_t i = 0; i < c->n; i++) {
        const struct compared *t = &c->tensors[i];
        const double relative = t->max_abs == 0 ? 0 : t->max_abs / t->largest;
        const bool passes = t->seen == t->rows && relative <= tol;
        printf("%-10s max_abs ", t->name);
        cli_put_double(stdout, t->max_abs, 3);
        printf(" relative ");
        cli_put_double(stdout, relative, 3);
        if (t->seen != t->rows)
            printf(" %zu of %zu rows", t->seen, t->rows);
        puts(passes ? " ok" : " FAILS");
        if (!passes)
            code = CLI_DIFFERS;
    }
    return code;
}

static rp_status check(struct check *c)
{
    rp_session *session = NULL;
    size_t longest = BATCH_TOKENS;
    for (size_t i = 0; i < c->cases.n_seqs; i++)
        if ((size_t)(c->cases.cu[i + 1] - c->cases.cu[i]) > longest)
            longest = (size_t)(c->cases.cu[i + 1] - c->cases.cu[i]);
    rp_status status = load_tensors(c);
    if (status == RP_OK)
        status = cli_open_session(c->cli, &c->model, longest, &session);
    if (status == RP_OK)
        status = run_cases(c, session);
    rp_session_destroy(session);
    return status == RP_OK ? check_rankings(c) : status;
}

int cli_check(struct cli *cli)
{
    struct check c = {.cli = cli};
    snprintf(cli->err.message, sizeof cli->err.message, "no memory");
    rp_status status = cli_open_model(cli, RP_MODEL_ALL_OUTPUTS, &c.model);
    if (status != RP_OK)
        return cli_fail(cli, status);
    status = cli_open_cases(cli, &c.cases);
    if (status == RP_OK)
        status = check(&c);
    const int code = status == RP_OK ? print_verdict(&c) : cli_fail(cli, status);
    for (size_t i = 0; i < c.n; i++) {
        free(c.tensors[i].want);
        free(c.tensors[i].got);
    }
    free(c.tensors);
    cli_close_cases(&c.cases);
    cli_close_model(&c.model);
    return code;
}
