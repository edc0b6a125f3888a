/* rankplan plan and digest: looking at the steps, and at what each of them computed. */
#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>

int cli_plan(struct cli *cli)
{
    if (!cli->o.has_bucket)
        return cli_complain(CLI_USAGE, "plan needs --bucket; see rankplan plan --help");
    struct cli_model model;
    rp_status status = cli_open_model(cli, 0, &model);
    if (status != RP_OK)
        return cli_fail(cli, status);
    const rp_graph *graph = rp_model_part(model.model, cli->o.part);
    if (!graph) {
        cli_close_model(&model);
        return cli_complain(CLI_USAGE,
                            "%s: only a split encoder has a --part beside main\n"
                            "  next: leave --part out",
                            cli->model);
    }
    rp_plan_options options;
    rp_plan_options_init(&options);
    options.isa = cli->isa;
    options.no_fuse = cli->o.no_fuse;
    options.no_prune = cli->o.no_prune;
    options.pool = cli->pool;
    rp_plan *plan = NULL;
    int code = CLI_OK;
    status = rp_plan_compile(graph, rp_model_weights(model.model), &cli->o.bucket, &options, &plan,
                             &cli->err);
    if (status != RP_OK) {
        code = cli_fail(cli, status);
    } else {
        const size_t n = rp_plan_text(plan, NULL, 0);
        char *text = malloc(n + 1);
        if (text) {
            rp_plan_text(plan, text, n + 1);
            fputs(text, stdout);
        } else {
            code = cli_complain(CLI_SYSTEM, "no memory for a plan of %zu characters", n);
        }
        free(text);
    }
    rp_plan_destroy(plan);
    cli_close_model(&model);
    return code;
}

/* ---- digest ------------------------------------------------------------------------------------
 */

static rp_status hash_steps(struct cli *cli, rp_session *session, const rp_batch *batch,
                            const rp_plan *plan, rp_digest *digest)
{
    digest->capacity = rp_plan_n_steps(plan);
    digest->hashes = calloc(digest->capacity, sizeof *digest->hashes);
    digest->rows = calloc(digest->capacity, sizeof *digest->rows);
    if (!digest->hashes || !digest->rows) {
        snprintf(cli->err.message, sizeof cli->err.message, "no memory for %zu hashes",
                 digest->capacity);
        return RP_ERR_NOMEM;
    }
    return rp_session_digest(session, batch, digest, &cli->err);
}

static rp_status print_digest(struct cli *cli, rp_session *session, const rp_batch *batch)
{
    rp_digest digest = {.struct_size = sizeof digest};
    const rp_plan *plan;
    rp_status status = rp_session_plan(session, (size_t)batch->cu[batch->n_seqs], batch->n_seqs,
                                       cli_n_markers(batch), &plan, &cli->err);
    if (status == RP_OK)
        status = hash_steps(cli, session, batch, plan, &digest);
    for (size_t i = 0; i < digest.n_steps && digest.hashes; i++) {
        rp_step_info step;
        if (rp_plan_step(plan, i, &step) == RP_OK)
            printf("%zu %s %s %zux%zu %016llx%s%s\n", i, step.name, step.kind, digest.rows[i],
                   cli_step_values(&step), (unsigned long long)digest.hashes[i],
                   step.tokens ? " " : "", step.tokens ? step.tokens : "");
    }
    if (status == RP_OK)
        printf("whole %016llx\n", (unsigned long long)digest.whole);
    free(digest.hashes);
    free(digest.rows);
    return status;
}

static rp_status digest_batch(struct cli *cli, const struct cli_model *model, const rp_batch *batch,
                              int *code)
{
    rp_session *session;
    (void)code;
    /* One batch of everything: the largest bucket is made for it, sequences of one token included.
     */
    rp_status status =
        cli_open_session(cli, model, 2 * (size_t)batch->cu[batch->n_seqs] + 16, &session);
    if (status != RP_OK)
        return status;
    status = print_digest(cli, session, batch);
    rp_session_destroy(session);
    return status;
}

int cli_digest(struct cli *cli)
{
    int code = CLI_OK;
    const rp_status status = cli_with_batch(cli, digest_batch, &code);
    return status == RP_OK ? code : cli_fail(cli, status);
}
