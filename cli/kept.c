/* See kept.h. */
#include "cli/kept.h"

#include <stdlib.h>

void cli_keep_begin(struct cli_keep *keep)
{
    keep->now++;
}

static void take_out(struct cli_keep *keep, struct cli_kept *e)
{
    *(e->newer ? &e->newer->older : &keep->newest) = e->older;
    *(e->older ? &e->older->newer : &keep->oldest) = e->newer;
    e->newer = e->older = NULL;
}

static void put_first(struct cli_keep *keep, struct cli_kept *e)
{
    e->older = keep->newest;
    *(keep->newest ? &keep->newest->newer : &keep->oldest) = e;
    keep->newest = e;
    e->used = keep->now;
}

static void drop(struct cli_keep *keep, struct cli_kept *e)
{
    take_out(keep, e);
    keep->bytes -= e->bytes;
    free(e->data);
    e->data = NULL;
}

void cli_kept_touch(struct cli_keep *keep, struct cli_kept *entry)
{
    take_out(keep, entry);
    put_first(keep, entry);
}

bool cli_kept_make(struct cli_keep *keep, struct cli_kept *entry, size_t n)
{
    const uint64_t bytes = (uint64_t)n * sizeof *entry->data;
    while (keep->oldest && keep->oldest->used != keep->now && keep->bytes + bytes > keep->limit)
        drop(keep, keep->oldest);
    entry->data = malloc(n ? (size_t)bytes : 1);
    if (!entry->data)
        return false;
    entry->bytes = bytes;
    keep->bytes += bytes;
    put_first(keep, entry);
    return true;
}

void cli_keep_clear(struct cli_keep *keep)
{
    while (keep->oldest)
        drop(keep, keep->oldest);
}
