/* Questions for a decision scorer, read from lines of JSON. */
#ifndef RP_CLI_QUESTIONS_H
#define RP_CLI_QUESTIONS_H

#include "cli/cli.h"

/* Tokens and markers of all questions lie one after the other. */
struct cli_question {
    size_t first_token, n_tokens, first_marker, n_markers;
    int32_t type;
    bool truncated;
};

struct cli_questions {
    struct cli_question *q;
    size_t n;
    int32_t *ids, *markers;
    size_t n_ids, n_markers, cap_ids, cap_markers;
};

/* A line each, checked against the model; every complaint about a line begins "FILE, line
 * N: ".  The tokenizer
 * is loaded when the first text needs it.  To be freed, also after a failure. */
RP_CHECKED rp_status cli_read_questions(struct cli *cli, struct cli_model *model,
                                        struct cli_questions *out);
void cli_free_questions(struct cli_questions *questions);

#endif
