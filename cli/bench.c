/* rankplan bench: the time of a batch of random ids. */
#include "cli/cli.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SEQS  65536
#define MIN_RUNS  5
#define MAX_RUNS  200
#define BUDGET_NS ((uint64_t)2 * 1000 * 1000 * 1000)

struct shape {
    size_t n_seqs, n_tokens;
    int32_t *cu, *ids;
};

/* splitmix64: a fixed seed gives the same ids everywhere. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* ---- shapes ------------------------------------------------------------------------------------
 */

static bool number(const char **p, char stop, size_t *out)
{
    size_t n = 0;
    const char *s = *p;
    for (; *s >= '0' && *s <= '9' && n < 1000000; s++)
        n = n * 10 + (size_t)(*s - '0');
    if (s == *p || *s != stop || n == 0)
        return false;
    *p = *s ? s + 1 : s;
    *out = n;
    return true;
}

static bool append(struct shape *s, size_t length)
{
    if (s->n_seqs == MAX_SEQS || s->n_tokens + length > INT32_MAX / 2)
        return false;
    s->n_tokens += length;
    s->cu[++s->n_seqs] = (int32_t)s->n_tokens;
    return true;
}

static bool parse_lengths(const char *p, struct shape *s)
{
    size_t length;
    while (strchr(p, ','))
        if (!number(&p, ',', &length) || !append(s, length))
            return false;
    return number(&p, 0, &length) && append(s, length);
}

static bool parse_shape(const char *text, struct shape *s)
{
    size_t n, lo, hi;
    uint64_t seed = 7;
    const char *p = text;
    if (strncmp(p, "lens:", 5) == 0)
        return parse_lengths(p + 5, s);
    if (strncmp(p, "ragged:", 7) == 0) {
        p += 7;
        if (!number(&p, ':', &n) || !number(&p, ':', &lo) || !number(&p, 0, &hi) || hi < lo)
            return false;
        for (size_t i = 0; i < n; i++)
            if (!append(s, lo + next_random(&seed) % (hi - lo + 1)))
                return false;
        return true;
    }
    if (!number(&p, 'x', &n) || !number(&p, 0, &lo))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!append(s, lo))
            return false;
    return true;
}

static bool fill_ids(struct shape *s, size_t vocabulary)
{
    uint64_t seed = 1;
    s->ids = calloc(s->n_tokens, sizeof *s->ids);
    for (size_t i = 0; s->ids && i < s->n_tokens; i++)
        s->ids[i] = (int32_t)(next_random(&seed) % vocabulary);
    return s->ids != NULL;
}

/* ---- measuring ---------------------------------------------------------------------------------
 */

static int compare_times(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

struct result {
    double median_ms, min_ms, gflops, peak;
    size_t runs;
};

static rp_status measure(struct cli *cli, rp_session *session, const rp_batch *batch,
                         struct result *out)
{
    uint64_t times[MAX_RUNS];
    const rp_plan *plan;
    rp_status status = rp_session_run(session, batch, &cli->err);
    const uint64_t start = rp_now_ns();
    for (out->runs = 0; status == RP_OK && out->runs < MAX_RUNS &&
                        (out->runs < MIN_RUNS || rp_now_ns() - start < BUDGET_NS);
         out->runs++) {
        const uint64_t t = rp_now_ns();
        status = rp_session_run(session, batch, &cli->err);
        times[out->runs] = rp_now_ns() - t;
    }
    if (status == RP_OK)
        status = rp_session_plan(session, (size_t)batch->cu[batch->n_seqs], batch->n_seqs, 0, &plan,
                                 &cli->err);
    if (status != RP_OK)
        return status;
    qsort(times, out->runs, sizeof *times, compare_times);
    out->median_ms = (double)times[out->runs / 2] / 1e6;
    out->min_ms = (double)times[0] / 1e6;
    out->gflops = (double)rp_plan_flops(plan, batch) / (out->median_ms * 1e6);
    out->peak = rp_machine_peak_gflops(cli->isa, rp_pool_threads(cli->pool));
    return RP_OK;
}

static void print_result(const struct cli *cli, const struct shape *s, const struct result *r)
{
    const struct {
        const char *json, *text, *unit;
        double value;
    } rows[] = {{"median_ms", "median", " ms", r->median_ms},
                {"min_ms", "least", " ms", r->min_ms},
                {"texts_per_s", "texts/s", "", (double)s->n_seqs / r->median_ms * 1e3},
                {"gflops", "speed", " GFLOP/s", r->gflops},
                {"peak_gflops", "peak", " GFLOP/s (measured just now)", r->peak},
                {"peak_share", "share of peak", "", r->peak > 0 ? r->gflops / r->peak : 0}};
    if (cli->o.json) {
        fputs("{\"shape\":", stdout);
        cli_put_json_string(stdout, cli->o.shape, strlen(cli->o.shape));
        printf(",\"texts\":%zu,\"tokens\":%zu,\"threads\":%d,\"isa\":\"%s\",\"runs\":%zu",
               s->n_seqs, s->n_tokens, rp_pool_threads(cli->pool), rp_isa_name(cli->isa), r->runs);
    } else {
        printf("%-14s %s: %zu texts, %zu tokens; %d threads, %s; %zu runs\n", "shape", cli->o.shape,
               s->n_seqs, s->n_tokens, rp_pool_threads(cli->pool), rp_isa_name(cli->isa), r->runs);
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        printf(cli->o.json ? ",\"%s\":" : "%-14s ", cli->o.json ? rows[i].json : rows[i].text);
        cli_put_double(stdout, rows[i].value, 5);
        if (!cli->o.json)
            printf("%s\n", rows[i].unit);
    }
    if (cli->o.json)
        puts("}");
}

static int bench_model(struct cli *cli, struct shape *s)
{
    struct cli_model model;
    struct result result;
    rp_session *session = NULL;
    rp_status status = cli_open_model(cli, 0, &model);
    if (status != RP_OK)
        return cli_fail(cli, status);
    if (!fill_ids(s, model.info.vocab_size)) {
        cli_close_model(&model);
        return cli_complain(CLI_SYSTEM, "no memory for %zu ids", s->n_tokens);
    }
    rp_batch batch;
    rp_batch_init(&batch);
    batch.n_seqs = s->n_seqs;
    batch.cu = s->cu;
    batch.ids = s->ids;
    const size_t max_tokens = s->n_tokens > 2 * s->n_seqs ? s->n_tokens : 2 * s->n_seqs;
    const bool split = rp_model_part(model.model, RP_PART_STATE) != NULL;
    if (split)
        cli_note(cli, "of a split encoder the states are measured, not the questions");
    status =
        cli_open_part(cli, &model, split ? RP_PART_STATE : RP_PART_MAIN, max_tokens, 0, &session);
    if (status == RP_OK)
        status = measure(cli, session, &batch, &result);
    if (status == RP_OK)
        print_result(cli, s, &result);
    rp_session_destroy(session);
    cli_close_model(&model);
    return status == RP_OK ? CLI_OK : cli_fail(cli, status);
}

int cli_bench(struct cli *cli)
{
    struct shape s = {.cu = calloc(MAX_SEQS + 1, sizeof *s.cu)};
    int code;
    if (!cli->o.shape)
        code = cli_complain(CLI_USAGE, "bench needs --shape; see rankplan bench --help");
    else if (!s.cu)
        code = cli_complain(CLI_SYSTEM, "no memory");
    else if (!parse_shape(cli->o.shape, &s))
        code = cli_complain(CLI_USAGE, "--shape %s: expected BxS, ragged:N:LO:HI or lens:A,B,...",
                            cli->o.shape);
    else
        code = bench_model(cli, &s);
    free(s.cu);
    free(s.ids);
    return code;
}
