/* The command: what its sub-commands share.  It uses the public headers alone, as any other program
 * would. */
#ifndef RP_CLI_CLI_H
#define RP_CLI_CLI_H

#include <rankplan/rankplan.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Exit codes, as documented in `rankplan --help`. */
enum cli_exit {
    CLI_OK = 0,
    CLI_DIFFERS = 1, /* check, compare: over the tolerance */
    CLI_USAGE = 2,   /* the command line */
    CLI_INPUT = 3,   /* a model, file or text is wrong */
    CLI_SYSTEM = 4   /* memory, threads, output that cannot be written */
};

/* Every option of every command; a command says which it takes. */
struct cli_options {
    int threads; /* 0: all that may be used */
    const char *isa;
    size_t max_length;
    bool quiet;
    const char *format;
    const char *query;
    const char *instruction;
    bool no_prefix_reuse;
    size_t top_n; /* SIZE_MAX: all */
    rp_bucket bucket;
    bool has_bucket;
    const char *cases;
    double tol; /* negative: the command's own */
    const char *shape;
    bool json;
    const char *prompt;
    rp_precision precision;
    const char *keep_fp32;
    const char *smoothing;
    const char *calibrate;
    bool no_fuse, no_prune;
    bool csv;
    const char *trace;
    const char *output;
    const char *filter;
    bool stats_only;
    const char *map;
    bool min_tol;
    bool partial;
    const char *outputs;
    const char *marker;
    size_t cache_mib; /* for states and as much for segments */
    bool has_cache;
    rp_part part;
};

struct cli {
    struct cli_options o;
    const char *command;
    const char *model;    /* the folder */
    const char *file;     /* "-" or NULL: standard input */
    const char *paths[2]; /* of a command that takes two instead */
    uint32_t isa;
    rp_pool *pool;
    bool split; /* the model is a split encoder, once it is open */
    rp_error err;
};

/* What stands on the command line beside options. */
enum cli_takes { CLI_TAKES_MODEL, CLI_TAKES_MODEL_AND_FILE, CLI_TAKES_TWO_PATHS };

struct cli_command {
    const char *name, *arguments, *summary;
    const char *options; /* long names, separated by spaces, beside the common ones */
    const char *help;    /* what it prints, with examples */
    enum cli_takes takes;
    int (*run)(struct cli *cli);
};

extern const struct cli_command cli_commands[];
extern const size_t cli_n_commands;

int cli_info(struct cli *cli);
int cli_embed(struct cli *cli);
int cli_rerank(struct cli *cli);
int cli_score(struct cli *cli);
int cli_plan(struct cli *cli);
int cli_check(struct cli *cli);
int cli_digest(struct cli *cli);
int cli_bench(struct cli *cli);
int cli_profile(struct cli *cli);
int cli_dump(struct cli *cli);
int cli_compare(struct cli *cli);
int cli_quantize(struct cli *cli);
int cli_compare_precision(struct cli *cli);

/* cli/options.c: fills in *cli from argv.  CLI_OK, or CLI_USAGE after a message; *command is NULL
 * when help or version was printed instead. */
int cli_parse(int argc, char **argv, struct cli *cli, const struct cli_command **command);

/* "fp32", "int8"; NULL: there is none of that number. */
const char *cli_precision_name(rp_precision precision);

/* cli/error.c: writes an error and returns its status. */
rp_status cli_err(rp_error *err, rp_status status, const char *fmt, ...) RP_PRINTF(3, 4);

/* cli/common.c */

/* Prints "rankplan: message" with what to do next, and returns the exit code for the status. */
int cli_fail(struct cli *cli, rp_status status);
int cli_complain(int code, const char *fmt, ...) RP_PRINTF(2, 3);

/* The pool and the instruction sets that the options ask for. */
RP_CHECKED rp_status cli_open_machine(struct cli *cli);
void cli_close_machine(struct cli *cli);

/* A model with its tokenizer and ranker. */
struct cli_model {
    rp_model *model;
    rp_tokenizer *tokenizer;
    rp_ranker *ranker;
    rp_model_info info;
};
/* Not of a split encoder, which ranks no texts: RP_ERR_UNSUPPORTED. */
RP_CHECKED rp_status cli_open_ranker(struct cli *cli, struct cli_model *out);
RP_CHECKED rp_status cli_open_model(struct cli *cli, unsigned flags, struct cli_model *out);
/* Not of a split encoder, whose main graph needs memories: RP_ERR_UNSUPPORTED. */
RP_CHECKED rp_status cli_open_session(struct cli *cli, const struct cli_model *model,
                                      size_t max_tokens, rp_session **out);
/* Of any graph of the model; max_memory: rows of the longest memory, 0 for any. */
RP_CHECKED rp_status cli_open_part(struct cli *cli, const struct cli_model *model, rp_part part,
                                   size_t max_tokens, size_t max_memory, rp_session **out);
void cli_close_model(struct cli_model *model);

/* The lines of the input, without their ends.  A last line without an end counts; an empty file has
 * none.  Behind each line there is a byte, of its end or a 0. */
struct cli_lines {
    char *memory;
    rp_text_ref *lines;
    size_t n;
};
RP_CHECKED rp_status cli_read_lines(struct cli *cli, struct cli_lines *out);
void cli_free_lines(struct cli_lines *lines);

/* A note on standard error, unless --quiet. */
void cli_note(const struct cli *cli, const char *fmt, ...) RP_PRINTF(2, 3);

/* Says how many texts were cut, unless none was or --quiet. */
void cli_note_truncated(const struct cli *cli, const rp_text_info *infos, size_t n,
                        size_t max_length);

/* Takes the places of standard streams that are closed, so that no file that is opened later gets
 * their numbers: output would be written into it.  What is put there fails when it is used. */
void cli_guard_streams(void);

/* Whether a step's rows are bytes for an INT8 product, and how many values a row stands for (see
 * rp_observer). */
bool cli_step_is_bytes(const rp_step_info *step);
size_t cli_step_values(const rp_step_info *step);

/* Flushes standard output; CLI_SYSTEM when anything could not be written. */
int cli_finish_output(void);

/* cli/output.c: numbers and strings that do not follow the locale. */
void cli_put_float(FILE *f, float x);
void cli_put_double(FILE *f, double x, int digits);
#define CLI_NUMBER_BYTES 48
void cli_format_double(char out[CLI_NUMBER_BYTES], double x, int digits);
/* ,"key":[x, ...] on standard output. */
void cli_put_floats(const char *key, const float *x, size_t n);
/* s is UTF-8, or what the user wrote, as it is.  Needs no memory, so that it cannot fail half way
 * through a line. */
void cli_put_json_string(FILE *f, const char *s, size_t n);
/* Header of a .npy file of little-endian f32, rows x columns, C order. */
void cli_put_npy_header(FILE *f, size_t rows, size_t columns);

/* cli/cases.c: the ids of a cases.safetensors as a batch that is owned. */
struct cli_cases {
    rp_tensor_file *file;
    const char *path;
    char *path_memory;
    size_t n_seqs, n_tokens;
    int32_t *ids, *cu, *type_ids; /* type_ids NULL where the file has none */
    size_t n_markers;
    int32_t *markers, *mcu, *qtypes; /* of a decision scorer's questions; else NULL */
};
RP_CHECKED rp_status cli_open_cases(struct cli *cli, struct cli_cases *out);
void cli_close_cases(struct cli_cases *cases);
/* Sequences [first, end) as a batch; cu and mcu have room for end - first + 1. */
rp_batch cli_cases_batch(const struct cli_cases *cases, size_t first, size_t end, int32_t *cu,
                         int32_t *mcu);
/* How many markers a batch has. */
size_t cli_n_markers(const rp_batch *batch);

/* Opens the model, makes one batch of all lines of the input (or of --cases) and hands both to
 * `use`. */
typedef rp_status cli_batch_fn(struct cli *cli, const struct cli_model *model,
                               const rp_batch *batch, int *code);
RP_CHECKED rp_status cli_with_batch(struct cli *cli, cli_batch_fn *use, int *code);

#endif
