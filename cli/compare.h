/* Comparing two runs: reading them, matching their steps, judging, printing. */
#ifndef RP_CLI_COMPARE_H
#define RP_CLI_COMPARE_H

#include "cli/cli.h"
#include "cli/difference.h"

#include <jansson.h>

#define CLI_NONE SIZE_MAX

/* ---- runs: cli/run.c ----------------------------------------------------------------------------
 */

/* A step of a run.  Strings belong to the run. */
struct cli_run_step {
    const char *name, *op;
    const char *file; /* plain name in the run's folder; NULL: no values */
    size_t rows, width;
    bool per_seq;       /* its rows are the sequences; false also when that is not known */
    const char *tokens; /* "first", "last" or "marked": it has only those tokens' rows; or NULL */
    bool has_hash;
    bool hash_of_bytes; /* of the rows of bytes that the values stand for, not of the values */
    uint64_t hash;
    json_t *inputs; /* names of the steps that it reads; NULL when that is not known */
};

/* What one side of the comparison holds: a folder of dump (or its index.json), or what digest
 * printed. */
struct cli_run {
    const char *path;
    char *folder; /* with the values; NULL for a digest */
    struct cli_run_step *steps;
    size_t n_steps;
    json_t *by_name;        /* name: index in steps */
    json_t *plan;           /* every name of the plan, dumped or not */
    json_t *index;          /* of a dump, NULL for a digest */
    struct cli_lines lines; /* of a digest */
    bool partial;           /* steps were left out on purpose */
};

/* RP_ERR_IO, RP_ERR_FORMAT, RP_ERR_NOMEM: the message names the file and the
 * step or line. */
RP_CHECKED rp_status cli_run_open(struct cli *cli, const char *path, struct cli_run *out);
void cli_run_close(struct cli_run *run);

/* The step of that name, or CLI_NONE. */
size_t cli_run_find(const struct cli_run *run, const char *name);

/* The values of a step that has a file, for free(); checked against its hash when it has one. */
RP_CHECKED rp_status cli_run_read(const struct cli_run *run, const struct cli_run_step *step,
                                  float **out, rp_error *err);

/* RP_ERR_INVALID when both say what ids they ran and that differs. */
RP_CHECKED rp_status cli_run_same_batch(const struct cli_run *a, const struct cli_run *b,
                                        rp_error *err);

/* ---- rows that only one side has all of: cli/rows.c
 * ------------------------------------------------
 */

/* Whether it is a value of cli_run_step's tokens. */
bool cli_is_mark(const char *mark);

/* The step's name without the mark that tells its rows: "layers.0.ffn.norm.first" is of
 * "layers.0.ffn.norm".  False when it has none, or is longer than size - 1. */
bool cli_name_without_mark(const struct cli_run_step *step, char *out, size_t size);

/* Which of the run's n_tokens each of the n_rows of a step with such `tokens` stands for, to be
 * given to cli_rows_pick.  False when the run's index does not say, or says something else. */
bool cli_rows_known(const struct cli_run *run, const char *tokens, size_t n_rows, size_t n_tokens,
                    size_t *out);

/* Puts the rows of `whole` that stand for the tokens into picked[n_rows], and moves those of `read`
 * that have no token out of the way; returns how many rows both are. */
size_t cli_rows_pick(const size_t *tokens, size_t n_rows, size_t width, const float *whole,
                     float *read, float *picked);

/* ---- steps of both: cli/match.c -----------------------------------------------------------------
 */

enum cli_verdict {
    CLI_SAME,       /* bit for bit */
    CLI_OTHER_ROWS, /* one has only the rows that are read, and there are but hashes */
    CLI_WITHIN,     /* the tolerance */
    CLI_OVER,       /* the tolerance, or hashes that differ where there is nothing else */
    CLI_OTHER_SHAPE
};

struct cli_pair {
    size_t a, b; /* steps */
    enum cli_verdict verdict;
    bool measured;      /* d is there: both have values */
    size_t rows;        /* that were compared: those that both have */
    const char *tokens; /* which those are, when only one side has all; or NULL */
    struct cli_difference d;
    double input; /* largest d.scaled of what it reads */
};

struct cli_comparison {
    struct cli_run *a, *b;
    struct cli_pair *pairs; /* in the order of a's steps */
    size_t n_pairs;
    size_t *missing[2]; /* steps that the other side lacks: [0] of a, [1] of b */
    size_t n_missing[2];
    double tol;
    /* Judged.  Indices of pairs, or CLI_NONE. */
    size_t first_different, first_over, first_jump;
    bool equal;
    bool by_hash; /* hashes differ somewhere, and by how much is not known */
    double min_tol;
    bool ranked;     /* the last results of both are scores or vectors */
    size_t ranks_of; /* the pair they come from */
    struct cli_agreement ranks;
};

/* Matches steps by name; `map` (NULL: none) says what a name of a is called in b.  Where one run is
 * fused and the other is not, a fused step is matched with the last of its parts. */
RP_CHECKED rp_status cli_match(struct cli_comparison *c, const json_t *map, rp_error *err);

/* ---- printing: cli/compare_print.c --------------------------------------------------------------
 */
void cli_print_comparison(const struct cli_comparison *c);
void cli_print_comparison_json(const struct cli_comparison *c);
void cli_print_min_tol(double min_tol);

#endif
