/* Which steps of two runs show the same value.
 *
 * The same name, or what --map says.  One thing differs between a fused plan and one that is not:
 * the product "ffn.up" with its activation in it is there "ffn.up" and "ffn.up.act", and one with a
 * residual "attn.out" and "attn.out.add".  So where only one side has the parts, its last part is
 * what the other calls by the product's own name, and the parts before it have no counterpart,
 * which is no difference.
 *
 * Where one run has only the rows that are read, a step that gathers them ("ffn.norm.first"), or
 * that is there once for each of two kinds of rows ("attn.out.first", "attn.out.marked"), has no
 * counterpart either.
 */
#include "cli/compare.h"

#include <stdlib.h>
#include <string.h>

/* The longest name that anything here looks at; longer ones have no parts. */
#define NAME_BYTES 512

static const char *const parts[] = {".add", ".act"}; /* the last one first */
#define N_PARTS (sizeof parts / sizeof *parts)

static bool has(const struct cli_run *run, const char *name)
{
    return json_object_get(run->plan, name) != NULL;
}

/* What the run calls the whole of `base`: its last part, or base itself.  False when it has no
 * parts of it. */
static bool last_part(const struct cli_run *run, const char *base, char out[NAME_BYTES])
{
    for (size_t i = 0; i < N_PARTS; i++) {
        const int n = snprintf(out, NAME_BYTES, "%s%s", base, parts[i]);
        if (n > 0 && n < NAME_BYTES && has(run, out))
            return true;
    }
    snprintf(out, NAME_BYTES, "%s", base);
    return false;
}

/* The product that a name is a part of: itself, or without ".act" or ".add". */
static void base_of(const struct cli_run *run, const char *name, char out[NAME_BYTES])
{
    const size_t n = strlen(name);
    snprintf(out, NAME_BYTES, "%s", name);
    for (size_t i = 0; i < N_PARTS; i++) {
        const size_t tail = strlen(parts[i]);
        if (n > tail && n < NAME_BYTES && strcmp(name + n - tail, parts[i]) == 0) {
            out[n - tail] = 0;
            if (has(run, out))
                return;
            snprintf(out, NAME_BYTES, "%s", name);
        }
    }
}

enum kind { WHOLE, PART, NOTHING };

/* What `other` calls the value of a step of `run`.  PART: one that the other has only inside a
 * fused step. */
static enum kind counterpart(const struct cli_run *run, const char *name,
                             const struct cli_run *other, char out[NAME_BYTES])
{
    char base[NAME_BYTES], here[NAME_BYTES], there[NAME_BYTES];
    base_of(run, name, base);
    const bool parts_here = last_part(run, base, here);
    const bool parts_there = last_part(other, base, there);
    snprintf(out, NAME_BYTES, "%s", name);
    if (parts_here && !parts_there && has(other, base)) {
        snprintf(out, NAME_BYTES, "%s", base);
        return strcmp(name, here) == 0 ? WHOLE : PART;
    }
    if (!parts_here && parts_there)
        snprintf(out, NAME_BYTES, "%s", there);
    return has(other, out) ? WHOLE : NOTHING;
}

/* Whether a step without a counterpart is one of rows that are read, and the other run has the
 * value whole. */
static bool of_read_rows(const struct cli_run_step *step, const struct cli_run *other)
{
    char whole[NAME_BYTES];
    if (!cli_name_without_mark(step, whole, sizeof whole))
        return false;
    for (size_t i = 0; i < N_PARTS && !has(other, whole); i++) {
        const size_t n = strlen(whole), tail = strlen(parts[i]);
        if (n > tail && strcmp(whole + n - tail, parts[i]) == 0)
            whole[n - tail] = 0; /* of a product that the other has fused */
    }
    return has(other, whole);
}

/* The other way about: whether the other run has the value, but in rows that are read. */
static bool in_read_rows(const struct cli_run_step *step, const struct cli_run *run,
                         const struct cli_run *other)
{
    char whole[NAME_BYTES], base[NAME_BYTES], ours[NAME_BYTES];
    base_of(run, step->name, ours);
    for (size_t i = 0; !step->tokens && i < other->n_steps; i++) {
        if (!cli_name_without_mark(&other->steps[i], whole, sizeof whole))
            continue;
        base_of(run, whole, base);
        if (strcmp(base, ours) == 0)
            return true;
    }
    return false;
}

static bool is_no_difference(const struct cli_run_step *step, const struct cli_run *run,
                             const struct cli_run *other)
{
    return of_read_rows(step, other) || in_read_rows(step, run, other);
}

static size_t find_pair(const struct cli_comparison *c, size_t i, const json_t *map, bool *is_part)
{
    char name[NAME_BYTES];
    const char *ours = c->a->steps[i].name;
    const char *mapped = json_string_value(json_object_get(map, ours));
    *is_part = false;
    if (mapped)
        return cli_run_find(c->b, mapped);
    *is_part = counterpart(c->a, ours, c->b, name) == PART;
    return *is_part ? CLI_NONE : cli_run_find(c->b, name);
}

static rp_status match_all(struct cli_comparison *c, const json_t *map, bool *taken, rp_error *err)
{
    char name[NAME_BYTES];
    for (size_t i = 0; i < c->a->n_steps; i++) {
        bool is_part;
        const size_t other = find_pair(c, i, map, &is_part);
        if (other != CLI_NONE && taken[other])
            return cli_err(err, RP_ERR_INVALID, "two steps of %s are matched with %s of %s",
                           c->a->path, c->b->steps[other].name, c->b->path);
        if (other != CLI_NONE) {
            taken[other] = true;
            c->pairs[c->n_pairs++] = (struct cli_pair){.a = i, .b = other};
        } else if (!is_part && !is_no_difference(&c->a->steps[i], c->a, c->b)) {
            c->missing[0][c->n_missing[0]++] = i;
        }
    }
    for (size_t i = 0; i < c->b->n_steps; i++)
        if (!taken[i] && counterpart(c->b, c->b->steps[i].name, c->a, name) != PART &&
            !is_no_difference(&c->b->steps[i], c->b, c->a))
            c->missing[1][c->n_missing[1]++] = i;
    return RP_OK;
}

/* A map is for steps that are there. */
static rp_status check_map(const struct cli_comparison *c, const json_t *map, rp_error *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)map, key, value)
    {
        if (!json_is_string(value))
            return cli_err(err, RP_ERR_FORMAT, "--map: \"%s\" is not mapped to a name", key);
        if (cli_run_find(c->a, key) == CLI_NONE)
            return cli_err(err, RP_ERR_INVALID, "--map: %s has no step %s", c->a->path, key);
        if (cli_run_find(c->b, json_string_value(value)) == CLI_NONE)
            return cli_err(err, RP_ERR_INVALID, "--map: %s has no step %s", c->b->path,
                           json_string_value(value));
    }
    return RP_OK;
}

rp_status cli_match(struct cli_comparison *c, const json_t *map, rp_error *err)
{
    const rp_status status = check_map(c, map, err);
    if (status != RP_OK)
        return status;
    c->pairs = calloc(c->a->n_steps + 1, sizeof *c->pairs);
    c->missing[0] = calloc(c->a->n_steps + 1, sizeof *c->missing[0]);
    c->missing[1] = calloc(c->b->n_steps + 1, sizeof *c->missing[1]);
    bool *taken = calloc(c->b->n_steps + 1, sizeof *taken);
    rp_status matched = RP_ERR_NOMEM;
    if (c->pairs && c->missing[0] && c->missing[1] && taken)
        matched = match_all(c, map, taken, err);
    else
        (void)cli_err(err, RP_ERR_NOMEM, "no memory for %zu steps", c->a->n_steps + c->b->n_steps);
    free(taken);
    if (matched == RP_OK && c->n_pairs == 0)
        return cli_err(err, RP_ERR_INVALID, "%s and %s have no step in common", c->a->path,
                       c->b->path);
    return matched;
}
