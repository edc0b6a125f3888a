/* Results that are kept for later, within a bound: what was used longest ago goes first. */
#ifndef RP_CLI_KEPT_H
#define RP_CLI_KEPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cli_kept {
    float *data; /* NULL: not there */
    uint64_t bytes;
    uint64_t used; /* when */
    struct cli_kept *newer, *older;
};

/* Starts as zeros, but for the limit.  Its entries are the caller's; data that is still there when
 * it ends is freed by cli_kept_clear. */
struct cli_keep {
    uint64_t limit, bytes, now;
    struct cli_kept *newest, *oldest;
};

/* From here on what is used stays until the next call of this. */
void cli_keep_begin(struct cli_keep *keep);

/* Uses an entry that is there. */
void cli_kept_touch(struct cli_keep *keep, struct cli_kept *entry);

/* Makes room in an entry for n floats, uses it, and frees others until the limit is met or all that
 * is left is in use.  False: no memory. */
bool cli_kept_make(struct cli_keep *keep, struct cli_kept *entry, size_t n);

void cli_keep_clear(struct cli_keep *keep);

#endif
