/* A cases.safetensors as the command reads it (cli/cases.c is compiled in): refused with a message,
 * or sequences whose batches are in order and inside what was read. */
#include "cli/cli.h"
#include "tests/fuzz/fuzz.h"
#include "tests/model_maker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct maker_dir dir;

static void remove_dir(void)
{
    maker_dir_remove(&dir);
}

/* The rest of the command, of which cli/cases.c only needs names: no ranker is opened here. */
rp_status cli_open_model(struct cli *cli, unsigned flags, struct cli_model *out)
{
    (void)cli;
    (void)flags;
    (void)out;
    return RP_ERR_UNSUPPORTED;
}

rp_status cli_open_ranker(struct cli *cli, struct cli_model *out)
{
    return cli_open_model(cli, 0, out);
}

void cli_close_model(struct cli_model *model)
{
    (void)model;
}

rp_status cli_read_lines(struct cli *cli, struct cli_lines *out)
{
    (void)cli;
    (void)out;
    return RP_ERR_UNSUPPORTED;
}

void cli_free_lines(struct cli_lines *lines)
{
    (void)lines;
}

/* Every element of a batch is touched, so that a sanitizer sees what it points to. */
static int64_t sum_of_batch(const rp_batch *batch)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < batch->cu[batch->n_seqs]; i++)
        sum += batch->ids[i] + (batch->type_ids ? batch->type_ids[i] : 0);
    for (size_t m = 0; m < cli_n_markers(batch); m++)
        sum += batch->markers[m];
    for (size_t s = 0; batch->qtypes && s < batch->n_seqs; s++)
        sum += batch->qtypes[s];
    return sum;
}

static void check_cases(const struct cli_cases *c)
{
    int64_t parts = 0;
    int32_t cu[3], mcu[3];
    FUZZ_CHECK(c->n_seqs >= 1 && c->cu[0] == 0 && (size_t)c->cu[c->n_seqs] == c->n_tokens);
    for (size_t s = 0; s < c->n_seqs; s++) {
        const size_t end = s + 2 <= c->n_seqs ? s + 2 : c->n_seqs;
        const rp_batch one = cli_cases_batch(c, s, s + 1, cu, mcu);
        FUZZ_CHECK(one.n_seqs == 1 && cu[0] == 0 && cu[1] > 0);
        parts += sum_of_batch(&one);
        const rp_batch two = cli_cases_batch(c, s, end, cu, mcu);
        FUZZ_CHECK(two.n_seqs == end - s && cu[0] == 0 && cu[1] > 0);
        (void)sum_of_batch(&two);
    }
    rp_batch all = {.n_seqs = c->n_seqs,
                    .ids = c->ids,
                    .cu = c->cu,
                    .type_ids = c->type_ids,
                    .markers = c->markers,
                    .mcu = c->mcu,
                    .qtypes = c->qtypes};
    FUZZ_CHECK(sum_of_batch(&all) == parts);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct cli cli = {0};
    struct cli_cases cases;
    if (!dir.path[0]) {
        maker_dir_create(&dir);
        atexit(remove_dir);
    }
    maker_write(&dir, "cases.safetensors", data, size);
    cli.model = dir.path;
    if (cli_open_cases(&cli, &cases) != RP_OK) {
        FUZZ_CHECK(cli.err.message[0]);
        return 0;
    }
    check_cases(&cases);
    cli_close_cases(&cases);
    return 0;
}
