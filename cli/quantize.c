/* rankplan quantize: the smoothing factors that a user's own texts give, as a file beside the
 * model. */
#include "cli/cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Texts are run in batches of about so many tokens. */
#define BATCH_TOKENS 2048

/* The ids of all texts, and the batches that they are cut into. */
struct calibration {
    int32_t *ids, *types, *cu; /* cu: of each batch in turn, from 0 */
    rp_batch *batches;
    size_t n_batches;
};

static void free_calibration(struct calibration *c)
{
    free(c->ids);
    free(c->types);
    free(c->cu);
    free(c->batches);
}

/* Cuts one long batch, which is the ranker's, into batches of our own. */
static bool cut(struct calibration *c, const rp_batch *all)
{
    const size_t tokens = (size_t)all->cu[all->n_seqs];
    size_t used = 0;
    c->ids = calloc(tokens + 1, sizeof *c->ids);
    c->types = calloc(tokens + 1, sizeof *c->types);
    c->cu = calloc(2 * all->n_seqs + 2, sizeof *c->cu);
    c->batches = calloc(all->n_seqs + 1, sizeof *c->batches);
    if (!c->ids || !c->types || !c->cu || !c->batches)
        return false;
    memcpy(c->ids, all->ids, tokens * sizeof *c->ids);
    if (all->type_ids)
        memcpy(c->types, all->type_ids, tokens * sizeof *c->types);
    for (size_t s = 0; s < all->n_seqs;) {
        rp_batch *b = &c->batches[c->n_batches++];
        const int32_t first = all->cu[s];
        rp_batch_init(b);
        b->ids = c->ids + first;
        b->type_ids = c->types + first;
        b->cu = c->cu + used;
        do {
            c->cu[++used] = all->cu[++s] - first;
            b->n_seqs++;
        } while (s < all->n_seqs && all->cu[s + 1] - first <= BATCH_TOKENS);
        used++; /* the next batch counts from 0 */
    }
    return true;
}

static rp_status read_texts(struct cli *cli, struct cli_model *m, struct calibration *c, size_t *n)
{
    struct cli_lines lines;
    rp_batch all;
    const rp_text_ref query = {.data = cli->o.query,
                               .length = cli->o.query ? strlen(cli->o.query) : 0};
    cli->file = cli->o.calibrate;
    rp_status status = cli_read_lines(cli, &lines);
    if (status != RP_OK)
        return status;
    *n = lines.n;
    if (lines.n == 0)
        status = cli_err(&cli->err, RP_ERR_INVALID, "%s holds no text to calibrate on",
                         cli->o.calibrate);
    if (status == RP_OK)
        status = rp_ranker_tokenize(m->ranker, cli->o.query ? &query : NULL, lines.n, lines.lines,
                                    &all, NULL, &cli->err);
    if (status == RP_OK && !cut(c, &all))
        status = cli_err(&cli->err, RP_ERR_NOMEM, "no memory for %zu texts", lines.n);
    cli_free_lines(&lines);
    return status;
}

static void put_weight(FILE *f, const char *name, size_t n, const float *factors)
{
    cli_put_json_string(f, name, strlen(name));
    fputs(":[", f);
    for (size_t i = 0; i < n; i++) {
        if (i)
            putc(',', f);
        cli_put_float(f, factors[i]);
    }
    putc(']', f);
}

static void put_factors(FILE *f, const struct cli *cli, const rp_weights *weights, size_t n_texts)
{
    const char *name, *slash = strrchr(cli->o.calibrate, '/');
    const float *factors;
    char source[512];
    size_t n;
    snprintf(source, sizeof source, "%zu texts of %s", n_texts,
             slash ? slash + 1 : cli->o.calibrate);
    fputs("{\"format\":\"rankplan-int8\",\"version\":1,\"source\":", f);
    cli_put_json_string(f, source, strlen(source));
    fputs(",\"weights\":{", f);
    for (size_t i = 0; rp_weights_int8(weights, i, &name, &n, &factors); i++) {
        fputs(i ? ",\n" : "\n", f);
        put_weight(f, name, n, factors);
    }
    fputs("\n}}\n", f);
}

/* Written beside its name and renamed, so that no half of a file is ever taken for one. */
static int save(const struct cli *cli, const rp_weights *weights, size_t n_texts)
{
    char temporary[4096];
    const int length = snprintf(temporary, sizeof temporary, "%s.part", cli->o.output);
    FILE *f = length > 0 && (size_t)length < sizeof temporary ? fopen(temporary, "wb") : NULL;
    if (f)
        put_factors(f, cli, weights, n_texts);
    const bool written = f && fflush(f) == 0 && !ferror(f);
    const int reason = errno;
    if (f && (fclose(f) != 0 || !written || rename(temporary, cli->o.output) != 0)) {
        unlink(temporary);
        f = NULL;
    }
    if (!f)
        return cli_complain(CLI_SYSTEM, "%s: %s\n  next: choose another file for --output",
                            cli->o.output, strerror(reason ? reason : errno));
    return CLI_OK;
}

int cli_quantize(struct cli *cli)
{
    struct cli_model m;
    struct calibration c = {0};
    rp_quantize_options options;
    size_t n_texts = 0;
    if (!cli->o.calibrate || !cli->o.output)
        return cli_complain(CLI_USAGE, "quantize needs --calibrate FILE and --output FILE; see "
                                       "rankplan quantize --help");
    rp_quantize_options_init(&options);
    options.keep = cli->o.keep_fp32;
    options.pool = cli->pool;
    cli->o.precision = RP_PRECISION_FP32; /* it is loaded as it is, and turned here */
    rp_status status = cli_open_ranker(cli, &m);
    if (status != RP_OK)
        return cli_fail(cli, status);
    status = read_texts(cli, &m, &c, &n_texts);
    rp_ranker_destroy(m.ranker); /* no session may look on */
    m.ranker = NULL;
    options.batches = c.batches;
    options.n_batches = c.n_batches;
    if (status == RP_OK)
        status = rp_weights_quantize(rp_model_weights(m.model), rp_model_graph(m.model), &options,
                                     &cli->err);
    const int code =
        status == RP_OK ? save(cli, rp_model_weights(m.model), n_texts) : cli_fail(cli, status);
    free_calibration(&c);
    cli_close_model(&m);
    return code;
}
