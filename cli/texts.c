/* rankplan embed and rerank: texts in, vectors or an order out. */
#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>

/* ---- embed -------------------------------------------------------------------------------------
 */

static void print_vector(const float *v, size_t n, size_t index, const rp_text_info *info)
{
    printf("{\"index\":%zu,\"tokens\":%zu,\"truncated\":%s,\"embedding\":[", index, info->tokens,
           info->truncated ? "true" : "false");
    for (size_t i = 0; i < n; i++) {
        if (i)
            putchar(',');
        cli_put_float(stdout, v[i]);
    }
    puts("]}");
}

static void print_vectors(const struct cli *cli, const float *vectors, const rp_text_info *infos,
                          size_t n, size_t dim)
{
    if (cli->o.format && strcmp(cli->o.format, "npy") == 0) {
        cli_put_npy_header(stdout, n, dim);
        fwrite(vectors, sizeof *vectors, n * dim, stdout);
        return;
    }
    for (size_t i = 0; i < n; i++)
        print_vector(vectors + i * dim, dim, i, &infos[i]);
}

static int embed_lines(struct cli *cli, struct cli_model *m, const struct cli_lines *lines)
{
    const size_t dim = m->info.dimension;
    const char *prompt = NULL;
    if (cli->o.prompt) {
        prompt = rp_model_prompt(m->model, cli->o.prompt);
        if (!prompt)
            return cli_complain(CLI_USAGE, "--prompt %s: %s has no prompt of that name",
                                cli->o.prompt, cli->model);
    }
    float *vectors = calloc(lines->n ? lines->n : 1, (dim ? dim : 1) * sizeof *vectors);
    rp_text_info *infos = calloc(lines->n ? lines->n : 1, sizeof *infos);
    int code;
    if (!vectors || !infos) {
        code = cli_complain(CLI_SYSTEM, "no memory for %zu vectors of %zu", lines->n, dim);
    } else {
        const rp_status status =
            rp_ranker_embed(m->ranker, prompt, lines->n, lines->lines, vectors, infos, &cli->err);
        code = status == RP_OK ? CLI_OK : cli_fail(cli, status);
    }
    if (code == CLI_OK) {
        print_vectors(cli, vectors, infos, lines->n, dim);
        cli_note_truncated(cli, infos, lines->n, rp_ranker_max_length(m->ranker));
    }
    free(vectors);
    free(infos);
    return code;
}

/* ---- rerank ------------------------------------------------------------------------------------
 */

static void print_ranked(const struct cli_lines *lines, const float *scores,
                         const rp_text_info *infos, size_t i)
{
    printf("{\"index\":%zu,\"score\":", i);
    cli_put_float(stdout, scores[i]);
    printf(",\"truncated\":%s,\"text\":", infos[i].truncated ? "true" : "false");
    cli_put_json_string(stdout, lines->lines[i].data, lines->lines[i].length);
    puts("}");
}

static int rank_lines(struct cli *cli, struct cli_model *m, const struct cli_lines *lines)
{
    const size_t n = lines->n;
    const rp_text_ref query = {.data = cli->o.query, .length = strlen(cli->o.query)};
    float *scores = calloc(n ? n : 1, sizeof *scores);
    size_t *order = calloc(n ? n : 1, sizeof *order);
    rp_text_info *infos = calloc(n ? n : 1, sizeof *infos);
    int code = CLI_OK;
    if (!scores || !order || !infos) {
        code = cli_complain(CLI_SYSTEM, "no memory for %zu documents", n);
    } else {
        const rp_status status =
            rp_ranker_score(m->ranker, query, n, lines->lines, scores, infos, &cli->err);
        if (status != RP_OK)
            code = cli_fail(cli, status);
    }
    if (code == CLI_OK) {
        rp_rank(scores, n, order);
        for (size_t i = 0; i < n && i < cli->o.top_n; i++)
            print_ranked(lines, scores, infos, order[i]);
        cli_note_truncated(cli, infos, n, rp_ranker_max_length(m->ranker));
    }
    free(scores);
    free(order);
    free(infos);
    return code;
}

/* ---- both --------------------------------------------------------------------------------------
 */

static int with_lines(struct cli *cli,
                      int (*run)(struct cli *, struct cli_model *, const struct cli_lines *))
{
    struct cli_model model;
    struct cli_lines lines;
    rp_status status = cli_open_ranker(cli, &model);
    if (status != RP_OK)
        return cli_fail(cli, status);
    int code;
    status = cli_read_lines(cli, &lines);
    if (status != RP_OK) {
        code = cli_fail(cli, status);
    } else {
        code = run(cli, &model, &lines);
        cli_free_lines(&lines);
    }
    cli_close_model(&model);
    return code;
}

int cli_embed(struct cli *cli)
{
    return with_lines(cli, embed_lines);
}

int cli_rerank(struct cli *cli)
{
    if (!cli->o.query)
        return cli_complain(CLI_USAGE, "rerank needs --query; see rankplan rerank --help");
    return with_lines(cli, rank_lines);
}
