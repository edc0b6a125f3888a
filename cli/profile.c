/* rankplan profile: where the milliseconds go, as a table, JSON, CSV or a timeline. */
#include "cli/cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MIN_RUNS   20
#define MAX_EVENTS ((size_t)1 << 20)

/* A line of the report: a step, or all steps of a kind. */
struct line {
    const char *name, *kind, *kernel;
    rp_profile_step sum;
};

struct report {
    struct line *lines;
    size_t n;
    rp_profile profile;
    double peak;   /* GFLOP/s of all threads */
    double memory; /* GB/s that all threads read from memory */
};

static int by_time(const void *a, const void *b)
{
    const struct line *x = a, *y = b;
    if (x->sum.ns != y->sum.ns)
        return x->sum.ns < y->sum.ns ? 1 : -1;
    return strcmp(x->name, y->name);
}

static void add(rp_profile_step *to, const rp_profile_step *from)
{
    to->calls += from->calls;
    to->ns += from->ns;
    to->flops += from->flops;
    to->bytes += from->bytes;
}

/* Lines by kind stand after those by step in the same array. */
static size_t add_kinds(struct line *kinds, const struct line *steps, size_t n)
{
    size_t n_kinds = 0;
    for (size_t i = 0; i < n; i++) {
        size_t k = 0;
        while (k < n_kinds && strcmp(kinds[k].kind, steps[i].kind) != 0)
            k++;
        if (k == n_kinds)
            kinds[n_kinds++] = (struct line){steps[i].kind, steps[i].kind, "", {0}};
        add(&kinds[k].sum, &steps[i].sum);
    }
    return n_kinds;
}

/* ---- printing -----------------------------------------------------------------------------------
 */

static double ratio(uint64_t a, uint64_t b)
{
    return b ? (double)a / (double)b : 0;
}

/* The numbers of a line, in the order of the columns. */
#define COLUMNS 9
static const char *const column_names[COLUMNS] = {"us_per_run",    "share",         "calls_per_run",
                                                  "gflops",        "peak_share",    "gbytes_per_s",
                                                  "flops_per_run", "bytes_per_run", "memory_share"};

static void numbers_of(const struct report *r, const rp_profile_step *s, double *out)
{
    const uint64_t all = r->profile.wall_ns * r->profile.n_workers;
    const double peak = r->peak / (double)r->profile.n_workers;
    const double memory = r->memory / (double)r->profile.n_workers;
    out[0] = ratio(s->ns, r->profile.runs) / 1e3;
    out[1] = ratio(s->ns, all);
    out[2] = ratio(s->calls, r->profile.runs);
    out[3] = ratio(s->flops, s->ns);
    out[4] = peak > 0 ? ratio(s->flops, s->ns) / peak : 0;
    out[5] = ratio(s->bytes, s->ns);
    out[6] = ratio(s->flops, r->profile.runs);
    out[7] = ratio(s->bytes, r->profile.runs);
    out[8] = memory > 0 ? ratio(s->bytes, s->ns) / memory : 0;
}

static void print_table(const struct report *r, const struct line *lines, size_t n)
{
    printf("%-28s %-12s %10s %7s %9s %6s %7s %6s  %s\n", "step", "kind", "us/run", "share",
           "GFLOP/s", "peak", "GB/s", "memory", "kernel");
    for (size_t i = 0; i < n; i++) {
        double x[COLUMNS];
        numbers_of(r, &lines[i].sum, x);
        printf("%-28s %-12s %10.1f %6.1f%% %9.1f %5.0f%% %7.1f %5.0f%%  %s\n", lines[i].name,
               lines[i].kind, x[0], 100 * x[1], x[3], 100 * x[4], x[5], 100 * x[8],
               lines[i].kernel);
    }
}

static void print_json_line(const struct report *r, const struct line *line)
{
    double x[COLUMNS];
    numbers_of(r, &line->sum, x);
    fputs("{\"name\":", stdout);
    cli_put_json_string(stdout, line->name, strlen(line->name));
    printf(",\"kind\":\"%s\",\"kernel\":\"%s\"", line->kind, line->kernel);
    for (int c = 0; c < COLUMNS; c++) {
        printf(",\"%s\":", column_names[c]);
        cli_put_double(stdout, x[c], 6);
    }
    putchar('}');
}

static void print_json(const struct report *r, size_t n_kinds)
{
    printf("{\"runs\":%llu,\"workers\":%zu,\"us_per_run\":", (unsigned long long)r->profile.runs,
           r->profile.n_workers);
    cli_put_double(stdout, ratio(r->profile.wall_ns, r->profile.runs) / 1e3, 6);
    fputs(",\"waiting_share\":", stdout);
    cli_put_double(stdout, ratio(r->profile.wait_ns, r->profile.wall_ns * r->profile.n_workers), 6);
    fputs(",\"peak_gflops\":", stdout);
    cli_put_double(stdout, r->peak, 6);
    fputs(",\"memory_gbytes_per_s\":", stdout);
    cli_put_double(stdout, r->memory, 6);
    const size_t starts[] = {0, r->n}, counts[] = {r->n, n_kinds};
    const char *const keys[] = {"steps", "kinds"};
    for (int part = 0; part < 2; part++) {
        printf(",\"%s\":[", keys[part]);
        for (size_t i = 0; i < counts[part]; i++) {
            if (i)
                putchar(',');
            print_json_line(r, &r->lines[starts[part] + i]);
        }
        putchar(']');
    }
    puts("}");
}

static void print_csv(const struct report *r)
{
    fputs("name,kind,kernel", stdout);
    for (int c = 0; c < COLUMNS; c++)
        printf(",%s", column_names[c]);
    putchar('\n');
    for (size_t i = 0; i < r->n; i++) {
        double x[COLUMNS];
        numbers_of(r, &r->lines[i].sum, x);
        printf("%s,%s,%s", r->lines[i].name, r->lines[i].kind, r->lines[i].kernel);
        for (int c = 0; c < COLUMNS; c++) {
            putchar(',');
            cli_put_double(stdout, x[c], 6);
        }
        putchar('\n');
    }
}

/* ---- timeline -----------------------------------------------------------------------------------
 */

/* Chrome's trace events, which Perfetto and chrome://tracing open: a track per worker. */
static bool write_trace(const struct report *r, const rp_plan *plan, FILE *f)
{
    fputs("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n", f);
    for (size_t w = 0; w < r->profile.n_workers; w++)
        fprintf(f,
                "%s{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,\"tid\":%zu,"
                "\"args\":{\"name\":\"worker %zu\"}}",
                w ? ",\n" : "", w, w);
    for (size_t i = 0; i < r->profile.n_events; i++) {
        const rp_profile_event *e = &r->profile.events[i];
        const uint64_t ns = e->end_ns - e->start_ns;
        rp_step_info step;
        if (rp_plan_step(plan, e->step, &step) != RP_OK)
            continue;
        fputs(",\n{\"name\":", f);
        cli_put_json_string(f, step.name, strlen(step.name));
        fprintf(f, ",\"cat\":\"%s\",\"ph\":\"X\",\"ts\":", step.kind);
        cli_put_double(f, (double)e->start_ns / 1e3, 12);
        fputs(",\"dur\":", f);
        cli_put_double(f, (double)ns / 1e3, 12);
        fprintf(f,
                ",\"pid\":1,\"tid\":%u,\"args\":{\"step\":%u,\"rows\":%u,\"width\":%zu,"
                "\"kernel\":\"%s\",\"flops\":%llu,\"gflops\":",
                e->worker, e->step, e->rows, step.width, step.kernel, (unsigned long long)e->flops);
        cli_put_double(f, ratio(e->flops, ns), 5);
        fputs("}}", f);
    }
    fputs("\n]}\n", f);
    return fflush(f) == 0 && !ferror(f);
}

static int save_trace(const struct cli *cli, const struct report *r, const rp_plan *plan)
{
    FILE *f = fopen(cli->o.trace, "wb");
    const bool written = f && write_trace(r, plan, f);
    const int reason = errno;
    if ((f && fclose(f) != 0) || !written)
        return cli_complain(CLI_SYSTEM, "%s: %s\n  next: choose another file for --trace",
                            cli->o.trace, strerror(reason));
    return CLI_OK;
}

/* ---- measuring ----------------------------------------------------------------------------------
 */

/* All lines of text as one batch, over and over, after one run that warms everything up. */
static rp_status run_batches(struct cli *cli, rp_session *session, const rp_batch *batch,
                             struct report *r)
{
    rp_status status = rp_session_run(session, batch, &cli->err);
    if (status == RP_OK)
        status = rp_session_profile_start(session, cli->o.trace ? MAX_EVENTS : 0, &cli->err);
    for (int i = 0; i < MIN_RUNS && status == RP_OK; i++)
        status = rp_session_run(session, batch, &cli->err);
    r->profile.struct_size = sizeof r->profile;
    if (status == RP_OK)
        status = rp_session_profile(session, &r->profile, &cli->err);
    return status;
}

static rp_status make_lines(struct cli *cli, struct report *r, const rp_plan *plan)
{
    r->n = r->profile.n_steps;
    r->lines = calloc(2 * r->n, sizeof *r->lines);
    if (!r->lines) {
        snprintf(cli->err.message, sizeof cli->err.message, "no memory for %zu lines", r->n);
        return RP_ERR_NOMEM;
    }
    for (size_t i = 0; i < r->n; i++) {
        rp_step_info step;
        if (rp_plan_step(plan, i, &step) == RP_OK)
            r->lines[i] = (struct line){step.name, step.kind, step.kernel, r->profile.steps[i]};
    }
    return RP_OK;
}

static int report(struct cli *cli, struct report *r, const rp_plan *plan)
{
    int code = cli->o.trace ? save_trace(cli, r, plan) : CLI_OK;
    const size_t n_kinds = add_kinds(r->lines + r->n, r->lines, r->n);
    qsort(r->lines, r->n, sizeof *r->lines, by_time);
    qsort(r->lines + r->n, n_kinds, sizeof *r->lines, by_time);
    if (cli->o.json) {
        print_json(r, n_kinds);
    } else if (cli->o.csv) {
        print_csv(r);
    } else {
        print_table(r, r->lines, r->n);
        putchar('\n');
        print_table(r, r->lines + r->n, n_kinds);
        printf("\n%llu runs of %.1f us on %zu threads; %.1f%% of the threads' time waiting for "
               "each other\n"
               "peak: %.1f GFLOP/s; memory: %.1f GB/s (a step whose rows and weights come from "
               "caches passes it)\n",
               (unsigned long long)r->profile.runs,
               ratio(r->profile.wall_ns, r->profile.runs) / 1e3, r->profile.n_workers,
               100 * ratio(r->profile.wait_ns, r->profile.wall_ns * r->profile.n_workers), r->peak,
               r->memory);
    }
    return code;
}

static rp_status profile_batch(struct cli *cli, const struct cli_model *model,
                               const rp_batch *batch, int *code)
{
    struct report r = {0};
    const rp_plan *plan = NULL;
    rp_session *session = NULL;
    const size_t tokens = (size_t)batch->cu[batch->n_seqs];
    rp_status status = cli_open_session(cli, model, 2 * tokens + 16, &session);
    if (status == RP_OK)
        status =
            rp_session_plan(session, tokens, batch->n_seqs, cli_n_markers(batch), &plan, &cli->err);
    if (status == RP_OK)
        status = run_batches(cli, session, batch, &r);
    if (status == RP_OK)
        status = make_lines(cli, &r, plan);
    if (status == RP_OK) {
        r.peak = rp_machine_peak_gflops(cli->isa, rp_pool_threads(cli->pool));
        r.memory = rp_machine_peak_gbytes(rp_pool_threads(cli->pool));
        *code = report(cli, &r, plan);
    }
    free(r.lines);
    rp_session_destroy(session);
    return status;
}

int cli_profile(struct cli *cli)
{
    int code = CLI_OK;
    const rp_status status = cli_with_batch(cli, profile_batch, &code);
    return status == RP_OK ? code : cli_fail(cli, status);
}
