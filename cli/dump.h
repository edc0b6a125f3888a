/* A folder of dumped steps: what `dump` writes and `compare` reads.
 *
 *     0000_embeddings.sum.npy     one file a step: f32, C order, the rows that the batch has
 *     0001_embeddings.norm.npy
 *     ...
 *     index.json                  written last: a folder without it holds no dump
 */
#ifndef RP_CLI_DUMP_H
#define RP_CLI_DUMP_H

#include <rankplan/rankplan.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#define CLI_DUMP_FORMAT  "rankplan dump"
#define CLI_DUMP_VERSION 1

/* "0007_" and the step's name with everything but letters, digits, '.', '-' and '_' as '_', cut to
 * what a file's name may be long. */
#define CLI_DUMP_NAME_BYTES 160
void cli_dump_file_name(size_t step, const char *name, char out[CLI_DUMP_NAME_BYTES]);

/* ---- statistics: cli/stats.c --------------------------------------------------------------------
 */

/* Over the finite values; of none, n_finite is 0 and the rest is 0. */
struct cli_stats {
    double min, max, mean, std, absmax; /* std: of the values themselves, not an estimate */
    size_t n_finite, n_nan, n_inf;
};
void cli_stats_take(const float *x, size_t n, struct cli_stats *out);

/* ---- the folder: cli/dump_folder.c --------------------------------------------------------------
 */

/* A folder that is being written.  Files appear under their names when they are whole. */
struct cli_dump_folder {
    const char *path;
    int fd;         /* of the folder; -1: none */
    bool made;      /* it was not there before */
    char **written; /* names of this run's files */
    size_t n_written, capacity;
    char temporary[CLI_DUMP_NAME_BYTES + 8]; /* the file that is being written; "" for none */
};

/* Makes the folder, or takes one that is empty or holds an older dump, whose index and steps are
 * removed; anything else is left alone and refused.  RP_ERR_IO, RP_ERR_INVALID, RP_ERR_NOMEM: the
 * message names the folder. */
RP_CHECKED rp_status cli_dump_folder_open(const char *path, struct cli_dump_folder *out,
                                          rp_error *err);

/* A file under a temporary name, and its end: cli_dump_file_done closes it in any case. */
RP_CHECKED FILE *cli_dump_file_begin(struct cli_dump_folder *folder, const char *name,
                                     rp_error *err);
RP_CHECKED rp_status cli_dump_file_done(struct cli_dump_folder *folder, const char *name, FILE *f,
                                        rp_error *err);

/* Closes the folder; `keep` false: removes this run's files first, and the folder if it was made.
 */
void cli_dump_folder_close(struct cli_dump_folder *folder, bool keep);

#endif
