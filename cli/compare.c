/* rankplan compare: the step where two runs begin to differ.
 *
 * Three answers, for three questions.  The first step whose bits differ: two runs of rankplan
 * should have none.  The first step over the tolerance: where it begins to matter.  The first step
 * whose error is far larger than that of what it reads: where it comes from, when everything
 * differs a little, as against another implementation.
 */
#include "cli/compare.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_TOL 1e-5
#define JUMP        10

/* ---- one step -----------------------------------------------------------------------------------
 */

/* Leaves in *x and *y the rows that both have, when one has only those that are read. */
static rp_status pick_rows(const struct cli_comparison *c, struct cli_pair *p, float **x, float **y,
                           rp_error *err)
{
    const struct cli_run_step *a = &c->a->steps[p->a], *b = &c->b->steps[p->b];
    const struct cli_run_step *whole = a->tokens ? b : a, *read = a->tokens ? a : b;
    const struct cli_run *run = a->tokens ? c->a : c->b;
    float **replaced = a->tokens ? y : x, *kept = a->tokens ? *x : *y;
    size_t *tokens = calloc(read->rows + 1, sizeof *tokens);
    float *picked = malloc((read->rows * read->width + 1) * sizeof *picked);
    rp_status status = RP_OK;
    if (!tokens || !picked)
        status = cli_err(err, RP_ERR_NOMEM, "no memory to compare %s", a->name);
    else if (!cli_rows_known(run, read->tokens, read->rows, whole->rows, tokens))
        status = cli_err(err, RP_ERR_FORMAT,
                         "%s: step %s: its %zu rows are not those of the %s tokens of a batch with "
                         "%zu tokens",
                         run->path, read->name, read->rows, read->tokens, whole->rows);
    if (status == RP_OK) {
        p->tokens = read->tokens;
        p->rows = cli_rows_pick(tokens, read->rows, read->width, *replaced, kept, picked);
        free(*replaced);
        *replaced = picked;
    } else {
        free(picked);
    }
    free(tokens);
    return status;
}

/* One has all rows, and the other only those that are read. */
static bool other_rows(const struct cli_run_step *a, const struct cli_run_step *b)
{
    return (a->tokens != NULL) != (b->tokens != NULL);
}

static rp_status measure(const struct cli_comparison *c, struct cli_pair *p, rp_error *err)
{
    const struct cli_run_step *a = &c->a->steps[p->a], *b = &c->b->steps[p->b];
    float *x = NULL, *y = NULL;
    rp_status status = cli_run_read(c->a, a, &x, err);
    if (status != RP_OK)
        return status;
    status = cli_run_read(c->b, b, &y, err);
    if (status != RP_OK) {
        free(x);
        return status;
    }
    if (other_rows(a, b))
        status = pick_rows(c, p, &x, &y, err);
    if (status == RP_OK && !cli_difference_take(x, y, p->rows * a->width, c->tol, &p->d))
        status = cli_err(err, RP_ERR_NOMEM, "no memory to compare %s", a->name);
    if (status == RP_OK) {
        p->measured = true;
        p->verdict = p->d.same_bits ? CLI_SAME : p->d.n_over ? CLI_OVER : CLI_WITHIN;
    }
    free(y);
    free(x);
    return status;
}

static rp_status judge(const struct cli_comparison *c, struct cli_pair *p, rp_error *err)
{
    const struct cli_run_step *a = &c->a->steps[p->a], *b = &c->b->steps[p->b];
    const bool other = other_rows(a, b);
    p->rows = a->rows;
    if ((a->rows != b->rows && !other) || a->width != b->width) {
        p->verdict = CLI_OTHER_SHAPE;
        return RP_OK;
    }
    if (a->file && b->file)
        return measure(c, p, err);
    if (other) {
        p->verdict = CLI_OTHER_ROWS;
        p->tokens = a->tokens ? a->tokens : b->tokens;
        return RP_OK;
    }
    if (!a->has_hash || !b->has_hash)
        return cli_err(err, RP_ERR_INVALID,
                       "%s: there is nothing to compare: %s has neither its values nor a hash",
                       a->name, a->has_hash || a->file ? c->b->path : c->a->path);
    p->verdict = a->hash == b->hash ? CLI_SAME : CLI_OVER;
    return RP_OK;
}

/* ---- where an error comes from ------------------------------------------------------------------
 */

/* The error of step i's inputs, given those of all steps before it; of all of them when it is not
 * known what it reads. */
static double error_of_inputs(const struct cli_run *run, size_t i, const double *errors,
                              double largest)
{
    const json_t *name;
    size_t k;
    double most = 0;
    if (!run->steps[i].inputs)
        return largest;
    json_array_foreach(run->steps[i].inputs, k, name)
    {
        const size_t at = cli_run_find(run, json_string_value(name));
        if (at >= i) /* it was not dumped */
            return largest;
        if (errors[at] > most)
            most = errors[at];
    }
    return most;
}

static bool knows_inputs(const struct cli_run *run)
{
    for (size_t i = 0; i < run->n_steps; i++)
        if (run->steps[i].inputs)
            return true;
    return false;
}

/* Fills in each pair's `input`.  A step without a counterpart hands on the errors that it reads. */
static rp_status follow_errors(struct cli_comparison *c, rp_error *err)
{
    const bool by_b = !knows_inputs(c->a) && knows_inputs(c->b);
    const struct cli_run *run = by_b ? c->b : c->a;
    double *errors = calloc(run->n_steps + 1, sizeof *errors), largest = 0;
    struct cli_pair **pair_of = calloc(run->n_steps + 1, sizeof *pair_of);
    if (!errors || !pair_of) {
        free(errors);
        free(pair_of);
        return cli_err(err, RP_ERR_NOMEM, "no memory for %zu errors", run->n_steps);
    }
    for (size_t i = 0; i < c->n_pairs; i++)
        pair_of[by_b ? c->pairs[i].b : c->pairs[i].a] = &c->pairs[i];
    for (size_t i = 0; i < run->n_steps; i++) {
        struct cli_pair *p = pair_of[i];
        const double input = error_of_inputs(run, i, errors, largest);
        if (p)
            p->input = input;
        errors[i] = p && p->measured ? p->d.scaled : input;
        if (errors[i] > largest)
            largest = errors[i];
    }
    free(errors);
    free(pair_of);
    return RP_OK;
}

/* Rounding alone gives any step an error of about FLT_EPSILON, so less than that is no base to jump
 * from. */
static bool jumps(const struct cli_pair *p)
{
    return p->measured && p->d.scaled > JUMP * (p->input > FLT_EPSILON ? p->input : FLT_EPSILON);
}

/* ---- all of them --------------------------------------------------------------------------------
 */

static void find_firsts(struct cli_comparison *c, bool partial)
{
    c->first_different = c->first_over = c->first_jump = CLI_NONE;
    for (size_t i = c->n_pairs; i-- > 0;) {
        const struct cli_pair *p = &c->pairs[i];
        if (p->verdict > CLI_OTHER_ROWS)
            c->first_different = i;
        if (p->verdict >= CLI_OVER)
            c->first_over = i;
        if (jumps(p))
            c->first_jump = i;
        if (p->measured && p->d.min_tol > c->min_tol)
            c->min_tol = p->d.min_tol;
        if (!p->measured && p->verdict > CLI_OTHER_ROWS) {
            c->min_tol = HUGE_VAL;
            c->by_hash = c->by_hash || p->verdict == CLI_OVER;
        }
    }
    /* What one side left out on purpose is no difference; what it should have is one. */
    c->equal = c->first_over == CLI_NONE && (partial || ((c->n_missing[0] == 0 || c->b->partial) &&
                                                         (c->n_missing[1] == 0 || c->a->partial)));
}

static rp_status judge_all(struct cli_comparison *c, rp_error *err)
{
    for (size_t i = 0; i < c->n_pairs; i++) {
        const rp_status status = judge(c, &c->pairs[i], err);
        if (status != RP_OK)
            return status;
    }
    return follow_errors(c, err);
}

/* ---- rankings -----------------------------------------------------------------------------------
 */

/* The scores that rows x width stand for: themselves, or how near each is to the first. */
static float *scores_of(float *x, size_t rows, size_t width)
{
    if (width == 1)
        return x;
    float *scores = malloc(rows * sizeof *scores);
    if (scores)
        cli_cosines_to_first(x, rows, width, scores);
    free(x);
    return scores;
}

static rp_status rank_pair(struct cli_comparison *c, const struct cli_pair *p, rp_error *err)
{
    const struct cli_run_step *a = &c->a->steps[p->a];
    float *x = NULL, *y = NULL;
    rp_status status = cli_run_read(c->a, a, &x, err);
    if (status == RP_OK)
        status = cli_run_read(c->b, &c->b->steps[p->b], &y, err);
    if (status != RP_OK) {
        free(x);
        return status;
    }
    x = scores_of(x, a->rows, a->width);
    y = scores_of(y, a->rows, a->width);
    c->ranked =
        x && y && cli_agreement_take(x, y, a->width == 1 ? a->rows : a->rows - 1, &c->ranks);
    free(x);
    free(y);
    return RP_OK;
}

/* Of the last step that both have with a row for each sequence, when there is anything to rank. */
static rp_status rank_last(struct cli_comparison *c, rp_error *err)
{
    for (size_t i = c->n_pairs; i-- > 0;) {
        const struct cli_run_step *a = &c->a->steps[c->pairs[i].a];
        if (!a->per_seq || a->tokens || !c->pairs[i].measured)
            continue;
        c->ranks_of = i;
        return a->rows >= (a->width == 1 ? 2 : 3) ? rank_pair(c, &c->pairs[i], err) : RP_OK;
    }
    return RP_OK;
}

/* ---- the command --------------------------------------------------------------------------------
 */

static rp_status open_map(struct cli *cli, json_t **out)
{
    json_error_t json;
    if (!cli->o.map)
        return RP_OK;
    *out = json_load_file(cli->o.map, JSON_REJECT_DUPLICATES, &json);
    if (!*out && json_error_code(&json) == json_error_cannot_open_file)
        return cli_err(&cli->err, RP_ERR_IO, "%s: it cannot be read", cli->o.map);
    if (!*out)
        return cli_err(&cli->err, RP_ERR_FORMAT, "%s: line %d: %s", cli->o.map, json.line,
                       json.text);
    return json_is_object(*out)
               ? RP_OK
               : cli_err(&cli->err, RP_ERR_FORMAT, "%s: it is no JSON object", cli->o.map);
}

static rp_status compare(struct cli *cli, struct cli_comparison *c)
{
    json_t *map = NULL;
    rp_status status = open_map(cli, &map);
    if (status == RP_OK)
        status = cli_run_same_batch(c->a, c->b, &cli->err);
    if (status == RP_OK)
        status = cli_match(c, map, &cli->err);
    json_decref(map);
    if (status == RP_OK)
        status = judge_all(c, &cli->err);
    if (status == RP_OK)
        status = rank_last(c, &cli->err);
    return status;
}

int cli_compare(struct cli *cli)
{
    struct cli_run a, b;
    struct cli_comparison c = {.a = &a, .b = &b};
    c.tol = cli->o.tol < 0 ? DEFAULT_TOL : cli->o.tol;
    rp_status status = cli_run_open(cli, cli->paths[0], &a);
    if (status != RP_OK)
        return cli_fail(cli, status);
    status = cli_run_open(cli, cli->paths[1], &b);
    if (status != RP_OK) {
        cli_run_close(&a);
        return cli_fail(cli, status);
    }
    status = compare(cli, &c);
    if (status == RP_OK) {
        find_firsts(&c, cli->o.partial);
        if (cli->o.min_tol)
            cli_print_min_tol(c.min_tol);
        else if (cli->o.json)
            cli_print_comparison_json(&c);
        else
            cli_print_comparison(&c);
    }
    free(c.pairs);
    free(c.missing[0]);
    free(c.missing[1]);
    cli_run_close(&a);
    cli_run_close(&b);
    if (status != RP_OK)
        return cli_fail(cli, status);
    return c.equal ? CLI_OK : CLI_DIFFERS;
}
