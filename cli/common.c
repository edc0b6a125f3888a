/* What the sub-commands share: failing, opening models, reading lines. */
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- failing -----------------------------------------------------------------------------------
 */

static const char *advice(const struct cli *cli, rp_status status)
{
    switch (status) {
    case RP_ERR_IO: return "check that the path exists and can be read";
    case RP_ERR_MISSING: return "check that the folder is complete, or download it again";
    case RP_ERR_FORMAT: return "the file is damaged or not of this kind: get it again";
    case RP_ERR_UNSUPPORTED: return "see docs/models.md for what is supported";
    case RP_ERR_BUCKET:
    case RP_ERR_LIMIT: return "use shorter or fewer inputs";
    case RP_ERR_SHAPE:
        return "check that the folder's files are of one model, or download all of them again";
    case RP_ERR_NONFINITE:
        if (cli->split)
            return "check the checkpoint's tensors for a NaN, an infinity or values out of range";
        return "run `rankplan dump --stats-only` to find the step, and check the weights";
    case RP_ERR_NOMEM: return "free some memory, or run smaller batches";
    case RP_ERR_SYSTEM: return "try fewer --threads";
    case RP_ERR_INVALID: return "see `rankplan COMMAND --help`";
    default: return NULL;
    }
}

static int exit_code(rp_status status)
{
    switch (status) {
    case RP_OK: return CLI_OK;
    case RP_ERR_NOMEM:
    case RP_ERR_SYSTEM:
    case RP_ERR_STOPPED:
    case RP_ERR_DEADLINE:
    case RP_ERR_CANCELLED: return CLI_SYSTEM;
    default: return CLI_INPUT;
    }
}

int cli_fail(struct cli *cli, rp_status status)
{
    fprintf(stderr, "rankplan: %s\n", cli->err.message);
    const char *next = advice(cli, status);
    if (next)
        fprintf(stderr, "  next: %s\n", next);
    return exit_code(status);
}

int cli_complain(int code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fputs("rankplan: ", stderr);
    vfprintf(stderr, fmt, args);
    putc('\n', stderr);
    va_end(args);
    return code;
}

void cli_note(const struct cli *cli, const char *fmt, ...)
{
    if (cli->o.quiet)
        return;
    va_list args;
    va_start(args, fmt);
    fputs("rankplan: ", stderr);
    vfprintf(stderr, fmt, args);
    putc('\n', stderr);
    va_end(args);
}

void cli_note_truncated(const struct cli *cli, const rp_text_info *infos, size_t n,
                        size_t max_length)
{
    size_t cut = 0;
    for (size_t i = 0; i < n; i++)
        cut += infos[i].truncated;
    if (cut)
        cli_note(cli, "%zu of %zu texts were cut to %zu tokens (each line says which)", cut, n,
                 max_length);
}

void cli_guard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
            /* The least free number is fd itself, since those below it are taken. */
            (void)open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

const char *cli_precision_name(rp_precision precision)
{
    switch (precision) {
    case RP_PRECISION_FP32: return "fp32";
    case RP_PRECISION_INT8: return "int8";
    }
    return NULL;
}

bool cli_step_is_bytes(const rp_step_info *step)
{
    return strcmp(step->kind, "quantize") == 0;
}

size_t cli_step_values(const rp_step_info *step)
{
    return cli_step_is_bytes(step) ? step->width * sizeof(float) - 64 : step->width;
}

int cli_finish_output(void)
{
    if (fflush(stdout) != 0 || ferror(stdout))
        return cli_complain(CLI_SYSTEM,
                            "the output could not be written: %s\n"
                            "  next: check the disk, or the program that reads it",
                            strerror(errno));
    return CLI_OK;
}

/* ---- opening -----------------------------------------------------------------------------------
 */

rp_status cli_open_machine(struct cli *cli)
{
    rp_pool_options options;
    rp_pool_options_init(&options);
    options.n_threads = cli->o.threads;
    rp_status status = cli->o.isa ? rp_isa_parse(cli->o.isa, &cli->isa, &cli->err)
                                  : rp_isa_default(&cli->isa, &cli->err);
    if (status == RP_OK)
        status = rp_pool_create(&options, &cli->pool, &cli->err);
    return status;
}

void cli_close_machine(struct cli *cli)
{
    rp_pool_destroy(cli->pool);
    cli->pool = NULL;
}

rp_status cli_open_model(struct cli *cli, unsigned flags, struct cli_model *out)
{
    rp_model_options options;
    rp_model_options_init(&options);
    options.flags = flags;
    options.pool = cli->pool;
    options.precision = cli->o.precision;
    options.keep_fp32 = cli->o.keep_fp32;
    options.smoothing = cli->o.smoothing;
    memset(out, 0, sizeof *out);
    const rp_status status = rp_model_load(cli->model, &options, &out->model, &cli->err);
    if (status != RP_OK)
        return status;
    out->info.struct_size = sizeof out->info;
    rp_model_get_info(out->model, &out->info);
    cli->split = rp_model_part(out->model, RP_PART_STATE) != NULL;
    return RP_OK;
}

rp_status cli_open_session(struct cli *cli, const struct cli_model *model, size_t max_tokens,
                           rp_session **out)
{
    if (cli->split)
        return cli_err(&cli->err, RP_ERR_UNSUPPORTED,
                       "%s: a split encoder's questions read what was kept of states, which only "
                       "`rankplan score` has",
                       cli->model);
    return cli_open_part(cli, model, RP_PART_MAIN, max_tokens, 0, out);
}

rp_status cli_open_part(struct cli *cli, const struct cli_model *model, rp_part part,
                        size_t max_tokens, size_t max_memory, rp_session **out)
{
    rp_session_options options;
    rp_session_options_init(&options);
    options.pool = cli->pool;
    options.isa = cli->isa;
    options.no_fuse = cli->o.no_fuse;
    options.no_prune = cli->o.no_prune;
    options.max_tokens = max_tokens;
    options.max_memory = max_memory;
    return rp_session_create(rp_model_part(model->model, part), rp_model_weights(model->model),
                             &options, out, &cli->err);
}

static void show_progress(void *context, size_t done, size_t total)
{
    (void)context;
    fprintf(stderr, "\r%zu of %zu texts", done, total);
    if (done == total)
        fputs("\r\033[K", stderr);
    fflush(stderr);
}

/* The tokenizer's file, loaded beside the model: each takes about half of the time to the first
 * result. */
struct tokenizer_load {
    char path[4096];
    rp_tokenizer *tokenizer;
    rp_status status;
    rp_error err;
};

static void *load_tokenizer(void *arg)
{
    struct tokenizer_load *load = arg;
    load->status = rp_tokenizer_load(load->path, &load->tokenizer, &load->err);
    return NULL;
}

static rp_status open_both(struct cli *cli, struct cli_model *out)
{
    struct tokenizer_load load = {.status = RP_OK};
    pthread_t thread;
    memset(out, 0, sizeof *out); /* whatever fails first, the caller closes it */
    const int n = snprintf(load.path, sizeof load.path, "%s/tokenizer.json", cli->model);
    if (n < 0 || (size_t)n >= sizeof load.path)
        return cli_err(&cli->err, RP_ERR_LIMIT, "%s: the path is too long", cli->model);
    const bool beside = pthread_create(&thread, NULL, load_tokenizer, &load) == 0;
    rp_status status = cli_open_model(cli, 0, out);
    if (beside)
        pthread_join(thread, NULL);
    else
        load_tokenizer(&load);
    out->tokenizer = load.tokenizer;
    if (status == RP_OK && cli->split)
        return cli_err(&cli->err, RP_ERR_UNSUPPORTED,
                       "%s: this is a split encoder, which has no vectors and ranks no texts: "
                       "`rankplan score` asks it questions about states",
                       cli->model);
    if (status == RP_OK && load.status != RP_OK) {
        cli->err = load.err;
        status = load.status;
    }
    return status;
}

rp_status cli_open_ranker(struct cli *cli, struct cli_model *out)
{
    rp_status status = open_both(cli, out);
    rp_ranker_options options;
    rp_ranker_options_init(&options);
    options.pool = cli->pool;
    options.isa = cli->isa;
    options.max_length = cli->o.max_length;
    options.instruction = cli->o.instruction;
    options.no_prefix_reuse = cli->o.no_prefix_reuse;
    if (!cli->o.quiet && isatty(STDERR_FILENO))
        options.progress = show_progress;
    if (status == RP_OK)
        status = rp_ranker_create(out->model, out->tokenizer, &options, &out->ranker, &cli->err);
    if (status != RP_OK)
        cli_close_model(out);
    return status;
}

void cli_close_model(struct cli_model *model)
{
    rp_ranker_destroy(model->ranker);
    rp_tokenizer_free(model->tokenizer);
    rp_model_destroy(model->model);
    memset(model, 0, sizeof *model);
}

/* ---- reading -----------------------------------------------------------------------------------
 */

/* All of a stream with a 0 behind it; NULL with errno on failure. */
static char *read_all(FILE *f, size_t *n)
{
    size_t cap = 1 << 16;
    char *p = malloc(cap);
    *n = 0;
    while (p) {
        const size_t got = fread(p + *n, 1, cap - *n, f);
        *n += got;
        if (got == 0)
            break;
        if (*n == cap) {
            char *q = cap <= SIZE_MAX / 2 ? realloc(p, cap * 2) : NULL;
            if (!q) {
                free(p);
                errno = ENOMEM;
                return NULL;
            }
            p = q;
            cap *= 2;
        }
    }
    if (p && ferror(f)) {
        free(p);
        return NULL;
    }
    if (p)
        p[*n] = 0; /* there is room: it grows as soon as it is full */
    return p;
}

static size_t count_lines(const char *p, size_t n)
{
    size_t lines = 0;
    for (size_t i = 0; i < n; i++)
        lines += p[i] == '\n' || i + 1 == n;
    return lines;
}

static rp_status split_lines(struct cli *cli, struct cli_lines *out, size_t n)
{
    out->n = count_lines(out->memory, n);
    out->lines = calloc(out->n ? out->n : 1, sizeof *out->lines);
    if (!out->lines)
        return cli_err(&cli->err, RP_ERR_NOMEM, "no memory for %zu lines", out->n);
    const char *p = out->memory, *end = out->memory + n;
    for (size_t i = 0; i < out->n; i++) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        const char *next = stop ? stop + 1 : end;
        if (!stop)
            stop = end;
        if (stop > p && stop[-1] == '\r')
            stop--;
        out->lines[i] = (rp_text_ref){.data = p, .length = (size_t)(stop - p)};
        p = next;
    }
    return RP_OK;
}

rp_status cli_read_lines(struct cli *cli, struct cli_lines *out)
{
    const bool from_stdin = !cli->file || strcmp(cli->file, "-") == 0;
    const char *name = from_stdin ? "standard input" : cli->file;
    size_t n = 0;
    memset(out, 0, sizeof *out);
    FILE *f = from_stdin ? stdin : fopen(cli->file, "rb");
    if (!f)
        return cli_err(&cli->err, RP_ERR_IO, "%s: %s", name, strerror(errno));
    out->memory = read_all(f, &n);
    const int reason = errno;
    if (!from_stdin)
        fclose(f);
    if (!out->memory)
        return cli_err(&cli->err, reason == ENOMEM ? RP_ERR_NOMEM : RP_ERR_IO, "%s: %s", name,
                       strerror(reason));
    const rp_status status = split_lines(cli, out, n);
    if (status != RP_OK)
        cli_free_lines(out);
    return status;
}

void cli_free_lines(struct cli_lines *lines)
{
    free(lines->lines);
    free(lines->memory);
    memset(lines, 0, sizeof *lines);
}
