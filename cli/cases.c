/* Test cases: token ids and reference outputs in a safetensors file. */
#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>

static rp_status fail(struct cli *cli, rp_status status, const char *path, const char *what)
{
    cli->err.status = status;
    snprintf(cli->err.message, sizeof cli->err.message, "%s: %s", path, what);
    return status;
}

static rp_status read_ints(struct cli *cli, struct cli_cases *c, const char *name, size_t *n,
                           int32_t **out)
{
    rp_tensor tensor;
    rp_status status = rp_tensor_file_find(c->file, name, &tensor, &cli->err);
    if (status != RP_OK)
        return status;
    *n = (size_t)tensor.n_elements;
    *out = calloc(*n ? *n : 1, sizeof **out);
    if (!*out)
        return fail(cli, RP_ERR_NOMEM, c->path, "no memory for its ids");
    return rp_tensor_file_read_i32(c->file, name, *out, *n, &cli->err);
}

/* mcu rises from 0 to the number of markers; positions and types are for the session to check. */
static rp_status read_questions(struct cli *cli, struct cli_cases *c)
{
    size_t n_mcu, n_types;
    rp_tensor tensor;
    if (rp_tensor_file_find(c->file, "markers", &tensor, NULL) != RP_OK)
        return RP_OK;
    rp_status status = read_ints(cli, c, "markers", &c->n_markers, &c->markers);
    if (status == RP_OK)
        status = read_ints(cli, c, "mcu", &n_mcu, &c->mcu);
    if (status == RP_OK)
        status = read_ints(cli, c, "qtype", &n_types, &c->qtypes);
    if (status != RP_OK)
        return status;
    if (n_mcu != c->n_seqs + 1 || n_types != c->n_seqs || c->mcu[0] != 0 ||
        c->mcu[c->n_seqs] != (int32_t)c->n_markers)
        return fail(cli, RP_ERR_SHAPE, c->path, "mcu or qtype do not go with cu and markers");
    for (size_t i = 0; i < c->n_seqs; i++)
        if (c->mcu[i + 1] < c->mcu[i])
            return fail(cli, RP_ERR_SHAPE, c->path, "mcu falls");
    return RP_OK;
}

static rp_status read_all(struct cli *cli, struct cli_cases *c)
{
    size_t n_cu = 0, n_types = 0;
    rp_tensor tensor;
    rp_status status = read_ints(cli, c, "ids", &c->n_tokens, &c->ids);
    if (status == RP_OK)
        status = read_ints(cli, c, "cu", &n_cu, &c->cu);
    if (status == RP_OK && rp_tensor_file_find(c->file, "type_ids", &tensor, NULL) == RP_OK) {
        status = read_ints(cli, c, "type_ids", &n_types, &c->type_ids);
        if (status == RP_OK && n_types != c->n_tokens)
            status = fail(cli, RP_ERR_SHAPE, c->path, "type_ids and ids have different lengths");
    }
    if (status != RP_OK)
        return status;
    if (n_cu < 2 || c->cu[0] != 0 || c->cu[n_cu - 1] != (int32_t)c->n_tokens)
        return fail(cli, RP_ERR_SHAPE, c->path, "cu does not run from 0 to the number of ids");
    c->n_seqs = n_cu - 1;
    for (size_t i = 0; i < c->n_seqs; i++)
        if (c->cu[i + 1] <= c->cu[i])
            return fail(cli, RP_ERR_SHAPE, c->path, "cu does not rise");
    return read_questions(cli, c);
}

rp_status cli_open_cases(struct cli *cli, struct cli_cases *out)
{
    memset(out, 0, sizeof *out);
    const size_t n = strlen(cli->model) + sizeof "/cases.safetensors";
    out->path_memory = malloc(n);
    if (!out->path_memory)
        return fail(cli, RP_ERR_NOMEM, cli->model, "no memory");
    snprintf(out->path_memory, n, "%s/cases.safetensors", cli->model);
    out->path = cli->o.cases ? cli->o.cases : out->path_memory;
    rp_status status = rp_tensor_file_open(out->path, &out->file, &cli->err);
    if (status == RP_OK)
        status = read_all(cli, out);
    if (status != RP_OK)
        cli_close_cases(out);
    return status;
}

void cli_close_cases(struct cli_cases *c)
{
    rp_tensor_file_close(c->file);
    free(c->path_memory);
    free(c->ids);
    free(c->cu);
    free(c->type_ids);
    free(c->markers);
    free(c->mcu);
    free(c->qtypes);
    memset(c, 0, sizeof *c);
}

rp_batch cli_cases_batch(const struct cli_cases *c, size_t first, size_t end, int32_t *cu,
                         int32_t *mcu)
{
    rp_batch batch;
    for (size_t i = first; i <= end; i++) {
        cu[i - first] = c->cu[i] - c->cu[first];
        mcu[i - first] = c->mcu ? c->mcu[i] - c->mcu[first] : 0;
    }
    rp_batch_init(&batch);
    batch.n_seqs = end - first;
    batch.cu = cu;
    batch.ids = c->ids + c->cu[first];
    batch.type_ids = c->type_ids ? c->type_ids + c->cu[first] : NULL;
    batch.markers = c->markers ? c->markers + c->mcu[first] : NULL;
    batch.mcu = c->markers ? mcu : NULL;
    batch.qtypes = c->qtypes ? c->qtypes + first : NULL;
    return batch;
}

size_t cli_n_markers(const rp_batch *batch)
{
    return batch->mcu ? (size_t)batch->mcu[batch->n_seqs] : 0;
}

/* ---- one batch of everything --------------------------------------------------------------------
 */

static rp_status with_cases(struct cli *cli, cli_batch_fn *use, int *code)
{
    struct cli_model model;
    struct cli_cases cases;
    rp_status status = cli_open_model(cli, 0, &model);
    if (status != RP_OK)
        return status;
    status = cli_open_cases(cli, &cases);
    if (status == RP_OK) {
        rp_batch batch;
        rp_batch_init(&batch);
        batch.n_seqs = cases.n_seqs;
        batch.cu = cases.cu;
        batch.ids = cases.ids;
        batch.type_ids = cases.type_ids;
        batch.markers = cases.markers;
        batch.mcu = cases.mcu;
        batch.qtypes = cases.qtypes;
        status = use(cli, &model, &batch, code);
        cli_close_cases(&cases);
    }
    cli_close_model(&model);
    return status;
}

static rp_status with_texts(struct cli *cli, cli_batch_fn *use, int *code)
{
    struct cli_model model;
    struct cli_lines lines;
    rp_batch batch;
    rp_status status = cli_open_ranker(cli, &model);
    if (status != RP_OK)
        return status;
    status = cli_read_lines(cli, &lines);
    if (status == RP_OK && lines.n == 0)
        status = fail(cli, RP_ERR_INVALID, cli->file ? cli->file : "standard input", "no lines");
    if (status == RP_OK) {
        const rp_text_ref query = {.data = cli->o.query,
                                   .length = cli->o.query ? strlen(cli->o.query) : 0};
        status = rp_ranker_tokenize(model.ranker, cli->o.query ? &query : NULL, lines.n,
                                    lines.lines, &batch, NULL, &cli->err);
        if (status == RP_OK)
            status = use(cli, &model, &batch, code);
    }
    cli_free_lines(&lines);
    cli_close_model(&model);
    return status;
}

rp_status cli_with_batch(struct cli *cli, cli_batch_fn *use, int *code)
{
    return cli->o.cases ? with_cases(cli, use, code) : with_texts(cli, use, code);
}
