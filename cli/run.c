/* Reading the two kinds of things that compare takes.  Both are untrusted: names, sizes and paths
 * are checked here, the values in cli/npy.c. */
#include "cli/compare.h"
#include "cli/dump.h"
#include "cli/npy.h"

#include <xxhash.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

size_t cli_run_find(const struct cli_run *run, const char *name)
{
    const json_t *at = json_object_get(run->by_name, name);
    return at ? (size_t)json_integer_value(at) : CLI_NONE;
}

static rp_status no_memory(const struct cli_run *run, rp_error *err)
{
    return cli_err(err, RP_ERR_NOMEM, "%s: no memory for its steps", run->path);
}

static rp_status make_steps(struct cli_run *run, size_t n, rp_error *err)
{
    run->steps = calloc(n ? n : 1, sizeof *run->steps);
    run->by_name = json_object();
    run->plan = json_object();
    return run->steps && run->by_name && run->plan ? RP_OK : no_memory(run, err);
}

/* Appends steps[n_steps], which is filled in. */
static rp_status add_step(struct cli_run *run, rp_error *err)
{
    const char *name = run->steps[run->n_steps].name;
    if (cli_run_find(run, name) != CLI_NONE)
        return cli_err(err, RP_ERR_FORMAT, "%s: it has the step %s twice", run->path, name);
    if (json_object_set_new(run->by_name, name, json_integer((json_int_t)run->n_steps)) != 0 ||
        json_object_set_new(run->plan, name, json_true()) != 0)
        return cli_err(err, RP_ERR_FORMAT, "%s: step %zu: its name is not UTF-8", run->path,
                       run->n_steps);
    run->n_steps++;
    return RP_OK;
}

/* Whether rows x width floats can be in memory at all. */
static bool fits(uint64_t rows, uint64_t width)
{
    uint64_t n;
    return !__builtin_mul_overflow(rows, width, &n) && n <= PTRDIFF_MAX / sizeof(float);
}

static bool parse_hash(const char *s, size_t n, uint64_t *out)
{
    *out = 0;
    for (size_t i = 0; i < n; i++) {
        const char *digits = "0123456789abcdef", *at = s[i] ? strchr(digits, s[i]) : NULL;
        if (!at)
            return false;
        *out = *out << 4 | (uint64_t)(at - digits);
    }
    return n == 16;
}

/* ---- a dump's index -----------------------------------------------------------------------------
 */

/* A name in the folder itself. */
static bool is_plain_name(const char *s)
{
    return *s && !strchr(s, '/') && strcmp(s, ".") != 0 && strcmp(s, "..") != 0;
}

static bool read_shape(const json_t *shape, struct cli_run_step *out)
{
    const json_t *rows = json_array_get(shape, 0), *width = json_array_get(shape, 1);
    if (json_array_size(shape) != 2 || !json_is_integer(rows) || !json_is_integer(width) ||
        json_integer_value(rows) < 0 || json_integer_value(width) < 0 ||
        !fits((uint64_t)json_integer_value(rows), (uint64_t)json_integer_value(width)))
        return false;
    out->rows = (size_t)json_integer_value(rows);
    out->width = (size_t)json_integer_value(width);
    return true;
}

static bool read_inputs(json_t *inputs, struct cli_run_step *out)
{
    const json_t *name;
    size_t i;
    if (!inputs || json_is_null(inputs))
        return true;
    json_array_foreach(inputs, i, name) if (!json_is_string(name)) return false;
    out->inputs = inputs;
    return json_is_array(inputs);
}

/* The key that is wrong, or NULL. */
static const char *read_index_step(const json_t *step, struct cli_run_step *out)
{
    const json_t *file = json_object_get(step, "file"), *hash = json_object_get(step, "xxh3");
    const char *rows = json_string_value(json_object_get(step, "rows"));
    const char *dtype = json_string_value(json_object_get(step, "dtype"));
    const char *op = json_string_value(json_object_get(step, "op"));
    const json_t *tokens = json_object_get(step, "tokens");
    out->tokens = json_string_value(tokens);
    if (tokens && !json_is_null(tokens) && !(out->tokens && cli_is_mark(out->tokens)))
        return "tokens";
    out->name = json_string_value(json_object_get(step, "tensor"));
    out->op = op ? op : "?";
    out->file = json_string_value(file);
    out->per_seq = rows && strcmp(rows, "seqs") == 0;
    out->has_hash = json_is_string(hash);
    if (!out->name || !*out->name)
        return "tensor";
    if (!read_shape(json_object_get(step, "shape"), out))
        return "shape";
    out->hash_of_bytes = dtype && strcmp(dtype, "q8") == 0;
    if (!dtype || (strcmp(dtype, "f32") != 0 && !out->hash_of_bytes))
        return "dtype";
    if ((file && !json_is_null(file) && !out->file) || (out->file && !is_plain_name(out->file)))
        return "file";
    if (hash && !json_is_null(hash) && !out->has_hash)
        return "xxh3";
    if (out->has_hash && !parse_hash(json_string_value(hash), json_string_length(hash), &out->hash))
        return "xxh3";
    return read_inputs(json_object_get(step, "inputs"), out) ? NULL : "inputs";
}

static rp_status read_plan(struct cli_run *run, rp_error *err)
{
    const json_t *name;
    size_t i;
    json_array_foreach(
        json_object_get(run->index, "plan"), i,
        name) if (!json_is_string(name) ||
                  json_object_set_new(run->plan, json_string_value(name), json_true()) !=
                      0) return cli_err(err, RP_ERR_FORMAT, "%s: key \"plan\" is no list of names",
                                        run->path);
    return RP_OK;
}

static rp_status check_format(const struct cli_run *run, rp_error *err)
{
    const char *format = json_string_value(json_object_get(run->index, "format"));
    const json_t *version = json_object_get(run->index, "version");
    if (!format || strcmp(format, CLI_DUMP_FORMAT) != 0 || !json_is_integer(version))
        return cli_err(err, RP_ERR_FORMAT, "%s: it is not the index of a dump", run->path);
    if (json_integer_value(version) != CLI_DUMP_VERSION)
        return cli_err(err, RP_ERR_FORMAT,
                       "%s: a dump of version %lld, and this is a reader of version %d", run->path,
                       (long long)json_integer_value(version), CLI_DUMP_VERSION);
    if (!json_is_array(json_object_get(run->index, "steps")))
        return cli_err(err, RP_ERR_FORMAT, "%s: key \"steps\" is no list", run->path);
    return RP_OK;
}

static rp_status read_steps(struct cli_run *run, rp_error *err)
{
    const json_t *steps = json_object_get(run->index, "steps"), *step;
    size_t i;
    rp_status status = make_steps(run, json_array_size(steps), err);
    if (status == RP_OK)
        status = read_plan(run, err);
    json_array_foreach(steps, i, step)
    {
        if (status != RP_OK)
            break;
        const char *wrong = read_index_step(step, &run->steps[i]);
        status = wrong ? cli_err(err, RP_ERR_FORMAT,
                                 "%s: step %zu: key \"%s\" is absent or not what it should be",
                                 run->path, i, wrong)
                       : add_step(run, err);
    }
    return status;
}

static rp_status open_dump(struct cli_run *run, const char *index_path, rp_error *err)
{
    json_error_t json;
    run->index = json_load_file(index_path, JSON_REJECT_DUPLICATES, &json);
    if (!run->index && json_error_code(&json) == json_error_cannot_open_file)
        return cli_err(err, RP_ERR_FORMAT,
                       "%s: there is no index.json: it holds no dump, or one that was not finished",
                       run->path);
    if (!run->index)
        return cli_err(err, RP_ERR_FORMAT, "%s: line %d: %s", index_path, json.line, json.text);
    rp_status status = check_format(run, err);
    run->partial = json_is_true(json_object_get(run->index, "partial"));
    return status == RP_OK ? read_steps(run, err) : status;
}

/* ---- a digest -----------------------------------------------------------------------------------
 */

/* The next word of a line, ended in place; NULL when there is none. */
static char *next_word(char **p)
{
    char *word = *p, *space = strchr(word, ' ');
    if (!*word)
        return NULL;
    *p = space ? space + 1 : word + strlen(word);
    if (space)
        *space = 0;
    return word;
}

static bool parse_size(const char *s, const char *end, uint64_t *out)
{
    *out = 0;
    for (const char *p = s; p < end; p++) {
        if (*p < '0' || *p > '9' || *out > (UINT32_MAX - 9) / 10)
            return false;
        *out = *out * 10 + (uint64_t)(*p - '0');
    }
    return s < end;
}

/* "12 layers.1.attn.out gemm 113x64 0123456789abcdef", or with " first" behind it */
static bool read_digest_line(char *line, size_t index, struct cli_run_step *out)
{
    char *words[5];
    uint64_t number, rows, width;
    for (int i = 0; i < 5; i++)
        if (!(words[i] = next_word(&line)))
            return false;
    const char *x = strchr(words[3], 'x');
    *out = (struct cli_run_step){
        .name = words[1], .op = words[2], .tokens = next_word(&line), .has_hash = true};
    if (*line || (out->tokens && !cli_is_mark(out->tokens)) || !*words[1] || !x ||
        !parse_size(words[0], words[0] + strlen(words[0]), &number) || number != index ||
        !parse_size(words[3], x, &rows) || !parse_size(x + 1, x + strlen(x), &width) ||
        !fits(rows, width))
        return false;
    out->rows = (size_t)rows;
    out->width = (size_t)width;
    return parse_hash(words[4], strlen(words[4]), &out->hash);
}

/* The last line: a hash of all hashes, so that a digest that was cut or edited is seen. */
static bool check_whole(const struct cli_run *run, const char *line)
{
    XXH3_state_t *state = XXH3_createState();
    uint64_t hash, want = 0;
    if (!state)
        return false;
    XXH3_64bits_reset(state);
    for (size_t i = 0; i < run->n_steps; i++)
        XXH3_64bits_update(state, &run->steps[i].hash, sizeof run->steps[i].hash);
    hash = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return strncmp(line, "whole ", 6) == 0 && parse_hash(line + 6, strlen(line + 6), &want) &&
           hash == want;
}

static rp_status open_digest(struct cli *cli, struct cli_run *run)
{
    cli->file = run->path;
    rp_status status = cli_read_lines(cli, &run->lines);
    if (status == RP_OK && run->lines.n == 0)
        status = cli_err(&cli->err, RP_ERR_FORMAT, "%s: it is empty", run->path);
    if (status == RP_OK)
        status = make_steps(run, run->lines.n, &cli->err);
    for (size_t i = 0; status == RP_OK && i < run->lines.n; i++) {
        char *line = run->lines.memory + (run->lines.lines[i].data - run->lines.memory);
        const bool last = i + 1 == run->lines.n;
        const size_t n = run->lines.lines[i].length;
        if (memchr(line, 0, n))
            return cli_err(&cli->err, RP_ERR_FORMAT, "%s: line %zu: not a line of a digest",
                           run->path, i + 1);
        line[n] = 0;
        if (last && !check_whole(run, line))
            return cli_err(
                &cli->err, RP_ERR_FORMAT,
                "%s: it is no digest, or a part of one: the hash of the whole at its end "
                "is wrong or missing",
                run->path);
        if (!last && !read_digest_line(line, i, &run->steps[i]))
            return cli_err(&cli->err, RP_ERR_FORMAT, "%s: line %zu: not a line of a digest",
                           run->path, i + 1);
        if (!last)
            status = add_step(run, &cli->err);
    }
    return status;
}

/* ---- either -------------------------------------------------------------------------------------
 */

/* A copy of the folder that a file is in. */
static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return strdup(".");
    return strndup(path, slash > path ? (size_t)(slash - path) : 1);
}

static rp_status open_folder(struct cli_run *run, rp_error *err)
{
    const size_t n = strlen(run->path) + sizeof "/index.json";
    char *index_path = malloc(n);
    run->folder = strdup(run->path);
    if (!index_path || !run->folder) {
        free(index_path);
        return no_memory(run, err);
    }
    snprintf(index_path, n, "%s/index.json", run->path);
    const rp_status status = open_dump(run, index_path, err);
    free(index_path);
    return status;
}

/* Whether a file begins as JSON does, which a digest never does. */
static bool is_json(const char *path)
{
    FILE *f = fopen(path, "rb");
    const int first = f ? getc(f) : EOF;
    if (f)
        fclose(f);
    return first == '{';
}

static rp_status open_run(struct cli *cli, struct cli_run *run)
{
    struct stat st;
    if (stat(run->path, &st) != 0)
        return cli_err(&cli->err, RP_ERR_IO, "%s: %s", run->path, strerror(errno));
    if (S_ISDIR(st.st_mode))
        return open_folder(run, &cli->err);
    if (!S_ISREG(st.st_mode) || !is_json(run->path)) /* a pipe can be read only once */
        return open_digest(cli, run);
    run->folder = folder_of(run->path);
    return run->folder ? open_dump(run, run->path, &cli->err) : no_memory(run, &cli->err);
}

rp_status cli_run_open(struct cli *cli, const char *path, struct cli_run *out)
{
    *out = (struct cli_run){.path = path};
    const rp_status status = open_run(cli, out);
    if (status != RP_OK)
        cli_run_close(out);
    return status;
}

void cli_run_close(struct cli_run *run)
{
    cli_free_lines(&run->lines);
    json_decref(run->index);
    json_decref(run->by_name);
    json_decref(run->plan);
    free(run->steps);
    free(run->folder);
    memset(run, 0, sizeof *run);
}

rp_status cli_run_read(const struct cli_run *run, const struct cli_run_step *step, float **out,
                       rp_error *err)
{
    const size_t n = strlen(run->folder) + strlen(step->file) + 2;
    char *path = malloc(n);
    if (!path)
        return no_memory(run, err);
    snprintf(path, n, "%s/%s", run->folder, step->file);
    rp_status status = cli_npy_read(path, step->rows, step->width, out, err);
    if (status == RP_OK && step->has_hash && !step->hash_of_bytes &&
        XXH3_64bits(*out, step->rows * step->width * sizeof **out) != step->hash) {
        status = cli_err(err, RP_ERR_FORMAT,
                         "%s: its values are not those that the index has the hash of", path);
        free(*out);
    }
    free(path);
    return status;
}

rp_status cli_run_same_batch(const struct cli_run *a, const struct cli_run *b, rp_error *err)
{
    static const char *const keys[] = {"cu", "ids", "type_ids", "qtypes", "markers", "mcu"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *x = json_object_get(a->index, keys[i]);
        const json_t *y = json_object_get(b->index, keys[i]);
        if (json_is_array(x) && json_is_array(y) && !json_equal(x, y))
            return cli_err(err, RP_ERR_INVALID,
                           "%s and %s ran different inputs: key \"%s\" is not the same", a->path,
                           b->path, keys[i]);
    }
    return RP_OK;
}
