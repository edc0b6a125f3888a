/* Questions for a split encoder, read from lines of JSON; the states that they are about are read
 * once each. */
#ifndef RP_CLI_SPLIT_H
#define RP_CLI_SPLIT_H

#include "cli/cli.h"
#include "cli/sequences.h"

/* A state: sequence number `index` of states, whose numbers are 0 and the one text's number, or 1
 * and its segments' numbers. */
#define CLI_STATE_WHOLE    0
#define CLI_STATE_SEGMENTS 1

struct cli_split_question {
    size_t state, state_tokens;
    size_t first_token, n_tokens, first_marker, n_markers; /* of ids and markers */
    int32_t type;
};

struct cli_split_file {
    struct cli_sequences texts;  /* tokens of states and of segments */
    struct cli_sequences states; /* numbers of texts */
    struct cli_split_question *q;
    size_t n;
    int32_t *ids, *markers; /* of all questions, one after the other */
    size_t n_ids, n_markers, cap_ids, cap_markers;
};

/* A line each, checked against the model; every complaint about a line begins "FILE, line N: ".
 * The tokenizer is loaded when the first text needs it.  To be freed, also after a failure. */
RP_CHECKED rp_status cli_read_split(struct cli *cli, struct cli_model *model,
                                    const rp_split_info *split, struct cli_split_file *out);
void cli_free_split(struct cli_split_file *file);

/* rankplan score on a split encoder: answers on standard output. */
RP_CHECKED rp_status cli_score_split(struct cli *cli, struct cli_model *model,
                                     const rp_split_info *split);

#endif
