/* rankplan dump: what every step computed, a .npy file each, and an index with statistics.
 *
 * The session's observer is shown each step right after it ran, so the run is the run: the same
 * steps, the same bits, and memory that is used again later has been looked at before.
 */
#include "cli/dump.h"
#include "cli/cli.h"

#include <xxhash.h>

#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files hold f32 as it lies in memory");

struct dumped {
    rp_step_info step; /* name NULL: not dumped */
    size_t rows;
    uint64_t hash;
    struct cli_stats stats;
};

struct dump {
    struct cli *cli;
    const struct cli_model *model;
    const rp_batch *batch;
    const rp_plan *plan;
    struct dumped *steps; /* of the plan */
    size_t n_steps;
    struct cli_dump_folder folder;
    rp_error err; /* why the run was stopped */
};

static bool is_wanted(const struct cli *cli, const char *name)
{
    return !cli->o.filter || fnmatch(cli->o.filter, name, 0) == 0;
}

/* ---- a step -------------------------------------------------------------------------------------
 */

static bool want_step(void *context, const rp_step_info *step)
{
    const struct dump *d = context;
    return is_wanted(d->cli, step->name);
}

/* What rows of bytes stand for, for free(); see rp_observer. */
static float *values_of_bytes(const rp_view *view, size_t values)
{
    float *out = malloc((view->rows * values + 1) * sizeof *out);
    for (size_t r = 0; out && r < view->rows; r++) {
        const unsigned char *row = (const unsigned char *)(view->data + r * view->width);
        float scale;
        int32_t zero;
        memcpy(&scale, row + values, sizeof scale);
        memcpy(&zero, row + values + sizeof scale, sizeof zero);
        for (size_t i = 0; i < values; i++)
            out[r * values + i] = scale * (float)(row[i] - zero);
    }
    return out;
}

static rp_status write_values(struct dump *d, const rp_step_info *step, const rp_view *view)
{
    char name[CLI_DUMP_NAME_BYTES];
    cli_dump_file_name(step->index, step->name, name);
    FILE *f = cli_dump_file_begin(&d->folder, name, &d->err);
    if (!f)
        return d->err.status;
    cli_put_npy_header(f, view->rows, view->width);
    fwrite(view->data, sizeof *view->data, view->rows * view->width, f);
    return cli_dump_file_done(&d->folder, name, f, &d->err);
}

static rp_status show_step(void *context, const rp_step_info *step, const rp_view *view)
{
    struct dump *d = context;
    struct dumped *out = &d->steps[step->index];
    float *made = NULL;
    rp_view shown = *view;
    shown.width = cli_step_values(step);
    if (cli_step_is_bytes(step)) {
        shown.data = made = values_of_bytes(view, shown.width);
        if (!made)
            return cli_err(&d->err, RP_ERR_NOMEM, "no memory for the values of %s", step->name);
    }
    const rp_status status = d->cli->o.stats_only ? RP_OK : write_values(d, step, &shown);
    if (status == RP_OK) {
        *out = (struct dumped){
            .step = *step,
            .rows = view->rows,
            .hash = XXH3_64bits(view->data, view->rows * view->width * sizeof(float))};
        cli_stats_take(shown.data, shown.rows * shown.width, &out->stats);
    }
    free(made);
    return status;
}

/* ---- the index ----------------------------------------------------------------------------------
 */

static void put_ints(FILE *f, const char *key, const int32_t *p, size_t n)
{
    fprintf(f, ",\n  \"%s\": ", key);
    if (!p) {
        fputs("null", f);
        return;
    }
    for (size_t i = 0; i < n; i++)
        fprintf(f, "%s%d", i ? "," : "[", p[i]);
    fputs(n ? "]" : "[]", f);
}

static void put_name(FILE *f, const char *s)
{
    (void)cli_put_json_string(f, s, strlen(s));
}

static void put_stats(FILE *f, const struct cli_stats *s)
{
    const struct {
        const char *key;
        double value;
    } list[] = {
        {"min", s->min}, {"max", s->max}, {"mean", s->mean}, {"std", s->std}, {"absmax", s->absmax},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        fprintf(f, ", \"%s\": ", list[i].key);
        if (s->n_finite)
            cli_put_double(f, list[i].value, 17);
        else
            fputs("null", f);
    }
    fprintf(f, ", \"nan\": %zu, \"inf\": %zu", s->n_nan, s->n_inf);
}

static void put_inputs(FILE *f, const rp_plan *plan, size_t index)
{
    size_t inputs[16];
    const size_t room = sizeof inputs / sizeof *inputs;
    size_t n = rp_plan_step_inputs(plan, index, inputs, room);
    fputs(", \"inputs\": [", f);
    for (size_t i = 0; i < n && i < room; i++) {
        rp_step_info step;
        if (i)
            putc(',', f);
        if (rp_plan_step(plan, inputs[i], &step) == RP_OK)
            put_name(f, step.name);
    }
    putc(']', f);
}

static const char *rows_name(rp_rows rows)
{
    static const char *const names[] = {"tokens", "seqs", "markers"};
    return names[rows];
}

static void put_step(FILE *f, const struct dump *d, const struct dumped *s)
{
    char file[CLI_DUMP_NAME_BYTES];
    fprintf(f, "\n    {\"step\": %zu, \"op\": ", s->step.index);
    put_name(f, s->step.kind);
    fputs(", \"kernel\": ", f);
    put_name(f, s->step.kernel);
    fputs(", \"tensor\": ", f);
    put_name(f, s->step.name);
    fputs(", \"file\": ", f);
    cli_dump_file_name(s->step.index, s->step.name, file);
    if (d->cli->o.stats_only)
        fputs("null", f);
    else
        put_name(f, file);
    fprintf(f, ", \"rows\": \"%s\", \"shape\": [%zu, %zu], \"dtype\": \"%s\"",
            rows_name(s->step.rows), s->rows, cli_step_values(&s->step),
            cli_step_is_bytes(&s->step) ? "q8" : "f32");
    if (s->step.tokens)
        fprintf(f, ", \"tokens\": \"%s\"", s->step.tokens);
    put_inputs(f, d->plan, s->step.index);
    fprintf(f, ", \"xxh3\": \"%016llx\"", (unsigned long long)s->hash);
    put_stats(f, &s->stats);
    putc('}', f);
}

static void put_head(FILE *f, const struct dump *d)
{
    const size_t n_tokens = (size_t)d->batch->cu[d->batch->n_seqs];
    const int32_t *mcu = d->batch->markers ? d->batch->mcu : NULL;
    fprintf(f, "{\n  \"format\": \"" CLI_DUMP_FORMAT "\", \"version\": %d, \"rankplan\": ",
            CLI_DUMP_VERSION);
    put_name(f, rp_version());
    fputs(",\n  \"family\": ", f);
    put_name(f, d->model->info.family);
    fprintf(f, ", \"precision\": \"%s\", \"fused\": %s, \"pruned\": %s, \"partial\": %s",
            cli_precision_name(d->model->info.precision), d->cli->o.no_fuse ? "false" : "true",
            d->cli->o.no_prune ? "false" : "true", d->cli->o.filter ? "true" : "false");
    put_ints(f, "cu", d->batch->cu, d->batch->n_seqs + 1);
    put_ints(f, "ids", d->batch->ids, n_tokens);
    put_ints(f, "type_ids", d->batch->type_ids, n_tokens);
    put_ints(f, "qtypes", d->batch->qtypes, d->batch->n_seqs);
    if (mcu) {
        put_ints(f, "mcu", mcu, d->batch->n_seqs + 1);
        put_ints(f, "markers", d->batch->markers, (size_t)mcu[d->batch->n_seqs]);
    }
    fputs(",\n  \"plan\": [", f);
    for (size_t i = 0; i < d->n_steps; i++) {
        rp_step_info step;
        if (i)
            putc(',', f);
        if (rp_plan_step(d->plan, i, &step) == RP_OK)
            put_name(f, step.name);
    }
    putc(']', f);
}

static rp_status write_index(struct dump *d)
{
    bool first = true;
    FILE *f = cli_dump_file_begin(&d->folder, "index.json", &d->err);
    if (!f)
        return d->err.status;
    put_head(f, d);
    fputs(",\n  \"steps\": [", f);
    for (size_t i = 0; i < d->n_steps; i++) {
        if (!d->steps[i].step.name)
            continue;
        if (!first)
            putc(',', f);
        put_step(f, d, &d->steps[i]);
        first = false;
    }
    fputs("\n  ]\n}\n", f);
    return cli_dump_file_done(&d->folder, "index.json", f, &d->err);
}

/* ---- the run ------------------------------------------------------------------------------------
 */

/* Runs and writes.  A result that is not finite is what a dump is made for: the index is written
 * all the same, and the run's complaint passed on. */
static rp_status run(struct dump *d, rp_session *session, int *code)
{
    const rp_observer observer = {
        .struct_size = sizeof observer, .want = want_step, .show = show_step, .context = d};
    rp_session_observe(session, &observer);
    rp_status written = RP_OK;
    const rp_status status = rp_session_run(session, d->batch, &d->cli->err);
    if (status == RP_OK || status == RP_ERR_NONFINITE)
        written = write_index(d);
    const bool keep = written == RP_OK && (status == RP_OK || status == RP_ERR_NONFINITE);
    cli_dump_folder_close(&d->folder, keep);
    if (status != RP_ERR_STOPPED && written == RP_OK)
        return status;
    *code = cli_complain(CLI_SYSTEM, "%s", d->err.message);
    return RP_OK;
}

static bool any_wanted(const struct dump *d)
{
    rp_step_info step;
    for (size_t i = 0; i < d->n_steps; i++)
        if (rp_plan_step(d->plan, i, &step) == RP_OK && is_wanted(d->cli, step.name))
            return true;
    return false;
}

static rp_status dump_session(struct dump *d, rp_session *session, int *code)
{
    const size_t n_tokens = (size_t)d->batch->cu[d->batch->n_seqs];
    const rp_status status = rp_session_plan(session, n_tokens, d->batch->n_seqs,
                                             cli_n_markers(d->batch), &d->plan, &d->cli->err);
    if (status != RP_OK)
        return status;
    d->n_steps = rp_plan_n_steps(d->plan);
    if (!any_wanted(d)) {
        *code = cli_complain(CLI_USAGE,
                             "--filter '%s' fits none of the %zu steps; rankplan plan lists them",
                             d->cli->o.filter, d->n_steps);
        return RP_OK;
    }
    d->steps = calloc(d->n_steps, sizeof *d->steps);
    if (!d->steps) {
        snprintf(d->cli->err.message, sizeof d->cli->err.message, "no memory for %zu steps",
                 d->n_steps);
        return RP_ERR_NOMEM;
    }
    if (cli_dump_folder_open(d->cli->o.output, &d->folder, &d->err) != RP_OK) {
        *code = cli_complain(CLI_SYSTEM, "%s", d->err.message);
        return RP_OK;
    }
    return run(d, session, code);
}

static rp_status dump_batch(struct cli *cli, const struct cli_model *model, const rp_batch *batch,
                            int *code)
{
    struct dump d = {.cli = cli, .model = model, .batch = batch, .folder = {.fd = -1}};
    rp_session *session;
    rp_status status =
        cli_open_session(cli, model, 2 * (size_t)batch->cu[batch->n_seqs] + 16, &session);
    if (status != RP_OK)
        return status;
    status = dump_session(&d, session, code);
    free(d.steps);
    rp_session_destroy(session);
    return status;
}

int cli_dump(struct cli *cli)
{
    int code = CLI_OK;
    if (!cli->o.output)
        return cli_complain(CLI_USAGE, "dump needs --output; see rankplan dump --help");
    const rp_status status = cli_with_batch(cli, dump_batch, &code);
    return status == RP_OK ? code : cli_fail(cli, status);
}
