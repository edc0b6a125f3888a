/* A step of which one run has only the rows that are read, and the other all of them.
 *
 * Without --no-prune a step near the end of a model has a row for each sequence (its first or its
 * last token's) or for each marker; with it, or in another program's dump, one for each token.  The
 * batch says which token a row stands for, so those that both have can be compared.  It comes from
 * an index, so nothing in it is believed.
 */
#include "cli/compare.h"

#include <stdlib.h>
#include <string.h>

static const char *const marks[] = {"first", "last", "marked"};
#define N_MARKS (sizeof marks / sizeof *marks)

bool cli_is_mark(const char *mark)
{
    for (size_t i = 0; i < N_MARKS; i++)
        if (strcmp(mark, marks[i]) == 0)
            return true;
    return false;
}

bool cli_name_without_mark(const struct cli_run_step *step, char *out, size_t size)
{
    char part[16];
    if (!step->tokens || strlen(step->name) >= size)
        return false;
    const int n = snprintf(part, sizeof part, ".%s", step->tokens);
    for (const char *at = step->name; n > 0 && (at = strstr(at, part)); at++) {
        if (at[n] && at[n] != '.')
            continue;
        const size_t before = (size_t)(at - step->name);
        memcpy(out, step->name, before);
        strcpy(out + before, at + n);
        return true;
    }
    return false;
}

/* ---- which token a row stands for ---------------------------------------------------------------
 */

/* An array of the index that counts up from 0 to at most `most`: n + 1 of them, or NULL. */
static const json_t *starts_of(const struct cli_run *run, const char *key, size_t most)
{
    const json_t *list = json_object_get(run->index, key), *value;
    json_int_t before = 0;
    size_t i;
    json_array_foreach(list, i, value)
    {
        if (!json_is_integer(value) || json_integer_value(value) < before ||
            (i == 0 && json_integer_value(value) != 0) ||
            (uint64_t)json_integer_value(value) > most)
            return NULL;
        before = json_integer_value(value);
    }
    return json_array_size(list) > 1 && (size_t)before == most ? list : NULL;
}

static size_t number(const json_t *list, size_t i)
{
    return (size_t)json_integer_value(json_array_get(list, i));
}

#define NO_TOKEN SIZE_MAX

/* The first or last token of each sequence; NO_TOKEN for one that has none. */
static bool ends_of_sequences(const json_t *cu, bool last, size_t n_rows, size_t *tokens)
{
    if (n_rows != json_array_size(cu) - 1)
        return false;
    for (size_t s = 0; s < n_rows; s++) {
        const size_t first = number(cu, s), end = number(cu, s + 1);
        tokens[s] = first == end ? NO_TOKEN : last ? end - 1 : first;
    }
    return true;
}

static bool marked_tokens(const struct cli_run *run, const json_t *cu, size_t n_rows,
                          size_t *tokens)
{
    const json_t *mcu = starts_of(run, "mcu", n_rows);
    const json_t *list = json_object_get(run->index, "markers");
    if (!mcu || json_array_size(mcu) != json_array_size(cu) || json_array_size(list) != n_rows)
        return false;
    for (size_t s = 0; s + 1 < json_array_size(mcu); s++)
        for (size_t m = number(mcu, s); m < number(mcu, s + 1); m++) {
            const json_t *at = json_array_get(list, m);
            const size_t len = number(cu, s + 1) - number(cu, s);
            if (!json_is_integer(at) || json_integer_value(at) < 0 ||
                (uint64_t)json_integer_value(at) >= len)
                return false;
            tokens[m] = number(cu, s) + (size_t)json_integer_value(at);
        }
    return true;
}

/* ---- those rows ---------------------------------------------------------------------------------
 */

bool cli_rows_known(const struct cli_run *run, const char *tokens, size_t n_rows, size_t n_tokens,
                    size_t *out)
{
    const json_t *cu = starts_of(run, "cu", n_tokens);
    if (!cu)
        return false;
    return strcmp(tokens, "marked") == 0
               ? marked_tokens(run, cu, n_rows, out)
               : ends_of_sequences(cu, strcmp(tokens, "last") == 0, n_rows, out);
}

size_t cli_rows_pick(const size_t *tokens, size_t n_rows, size_t width, const float *whole,
                     float *read, float *picked)
{
    size_t n = 0;
    for (size_t r = 0; r < n_rows; r++) {
        if (tokens[r] == NO_TOKEN)
            continue;
        memmove(read + n * width, read + r * width, width * sizeof *read);
        memcpy(picked + n * width, whole + tokens[r] * width, width * sizeof *picked);
        n++;
    }
    return n;
}
