/* Lines of JSON that the user wrote: each is read by itself, and every complaint names it. */
#ifndef RP_CLI_JSON_LINE_H
#define RP_CLI_JSON_LINE_H

#include "cli/cli.h"

#include <jansson.h>

struct cli_line {
    struct cli *cli;
    struct cli_model *model;
    size_t number; /* from 1 on */
};

/* "FILE, line N: ..."; returns the status. */
rp_status cli_line_complain(const struct cli_line *line, rp_status status, const char *fmt, ...)
    RP_PRINTF(3, 4);

/* The object in a line, with none but the n keys; to be given back by json_decref. */
RP_CHECKED rp_status cli_line_parse(const struct cli_line *line, const rp_text_ref *text, size_t n,
                                    const char *const *keys, json_t **out);

/* A question's type, by name or number. */
RP_CHECKED rp_status cli_line_type(const struct cli_line *line, const json_t *type, int32_t *out);

/* Loads the folder's tokenizer, or Laya's below it, unless it is there. */
RP_CHECKED rp_status cli_line_tokenizer(const struct cli_line *line);

#endif
