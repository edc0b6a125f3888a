/* The index of a dump or a digest: refused with a message, or steps that can be looked up and whose
 * files lie in the folder. */
#include "cli/compare.h"
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

static void check_step(const struct cli_run *run, size_t i)
{
    const struct cli_run_step *step = &run->steps[i];
    float *values;
    rp_error err;
    FUZZ_CHECK(cli_run_find(run, step->name) == i);
    FUZZ_CHECK(step->width == 0 || step->rows <= PTRDIFF_MAX / 4 / step->width);
    if (!step->file)
        return;
    FUZZ_CHECK(!strchr(step->file, '/') && strcmp(step->file, "..") != 0);
    if (cli_run_read(run, step, &values, &err) == RP_OK)
        free(values);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct cli cli = {0};
    struct cli_run run;
    char path[sizeof dir.path + 16];
    if (!dir.path[0]) {
        maker_dir_create(&dir);
        atexit(remove_dir);
    }
    maker_write(&dir, "run", data, size);
    snprintf(path, sizeof path, "%s/run", dir.path);
    if (cli_run_open(&cli, path, &run) != RP_OK) {
        FUZZ_CHECK(strlen(cli.err.message) > 0);
        return 0;
    }
    for (size_t i = 0; i < run.n_steps; i++)
        check_step(&run, i);
    cli_run_close(&run);
    return 0;
}
