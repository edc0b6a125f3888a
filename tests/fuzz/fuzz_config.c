/* A config.json over checkpoints that stay the same, that of the family it speaks of and a BERT's
 * elsewhere: refused with a message, or a model that runs. */
#include "tests/fuzz/fuzz.h"
#include "tests/model_maker.h"

#include <rankplan/model.h>
#include <rankplan/plan.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const families[] = {"bert",         "modernbert", "qwen3",      "qwen3_next",
                                       "qwen3_5_text", "qwen3_5",    "olmo_hybrid"};
#define N_FAMILIES (sizeof families / sizeof *families)

static struct maker_dir dirs[N_FAMILIES];

static void remove_dirs(void)
{
    for (size_t i = 0; i < N_FAMILIES; i++)
        maker_dir_remove(&dirs[i]);
}

static void make_checkpoint(const char *family, struct maker_dir *dir)
{
    struct maker_model m = maker_model_default(family);
    m.vocab = 8;
    m.hidden = 4;
    m.intermediate = 4;
    m.positions = 8;
    m.layers = maker_is_decoder(&m) ? 2 : 1;
    m.labels = 1;
    m.decoder.text_part = strcmp(family, "qwen3_5") == 0;
    if (maker_is_decoder(&m))
        m.decoder.types = strcmp(family, "qwen3") == 0 ? "ff" : "lf";
    maker_dir_create(dir);
    maker_model_fill(&m);
    maker_model_write(&m, dir, &(struct maker_write_options){.prefix = true});
    maker_model_free(&m);
}

static void run(const rp_model *model)
{
    static const int32_t ids[] = {1, 2, 3}, cu[] = {0, 3};
    rp_session *session;
    rp_batch batch;
    rp_batch_init(&batch);
    batch.n_seqs = 1;
    batch.ids = ids;
    batch.cu = cu;
    FUZZ_CHECK(rp_session_create(rp_model_graph(model), rp_model_weights(model), NULL, &session,
                                 NULL) == RP_OK);
    FUZZ_CHECK(rp_session_run(session, &batch, NULL) == RP_OK);
    rp_session_destroy(session);
}

static bool speaks_of(const uint8_t *data, size_t size, const char *word)
{
    const size_t n = strlen(word);
    for (size_t i = 0; i + n <= size; i++)
        if (memcmp(data + i, word, n) == 0)
            return true;
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    rp_model *model;
    rp_error err;
    if (!dirs[0].path[0]) {
        for (size_t i = 0; i < N_FAMILIES; i++)
            make_checkpoint(families[i], &dirs[i]);
        atexit(remove_dirs);
    }
    size_t which = 0;
    for (size_t i = 1; i < N_FAMILIES; i++) {
        char quoted[32];
        snprintf(quoted, sizeof quoted, "\"%s\"", families[i]);
        which = speaks_of(data, size, quoted) ? i : which;
    }
    maker_write(&dirs[which], "config.json", data, size);
    if (rp_model_load(dirs[which].path, NULL, &model, &err) != RP_OK) {
        FUZZ_CHECK(strlen(err.message) > 0);
        return 0;
    }
    rp_model_info info = {.struct_size = sizeof info};
    rp_model_get_info(model, &info);
    FUZZ_CHECK(info.max_length >= 1 && info.vocab_size == 8);
    /* The BERT has a table of positions. */
    FUZZ_CHECK(which > 0 || info.max_length <= 8);
    if (info.max_length >= 4)
        run(model);
    rp_model_destroy(model);
    return 0;
}
