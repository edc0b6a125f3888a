/* A config.json over a checkpoint that stays the same: refused with a message, or a model that
 * runs. */
#include "tests/fuzz/fuzz.h"
#include "tests/model_maker.h"

#include <rankplan/model.h>
#include <rankplan/plan.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct maker_dir dir;

static void remove_dir(void)
{
    maker_dir_remove(&dir);
}

static void make_checkpoint(void)
{
    struct maker_model m = maker_model_default("bert");
    m.vocab = 8;
    m.hidden = 4;
    m.intermediate = 4;
    m.positions = 8;
    m.layers = 1;
    m.labels = 1;
    maker_dir_create(&dir);
    atexit(remove_dir);
    maker_model_fill(&m);
    maker_model_write(&m, &dir, &(struct maker_write_options){.prefix = true});
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    rp_model *model;
    rp_error err;
    if (!dir.path[0])
        make_checkpoint();
    maker_write(&dir, "config.json", data, size);
    if (rp_model_load(dir.path, NULL, &model, &err) != RP_OK) {
        FUZZ_CHECK(strlen(err.message) > 0);
        return 0;
    }
    rp_model_info info = {.struct_size = sizeof info};
    rp_model_get_info(model, &info);
    FUZZ_CHECK(info.max_length >= 1 && info.max_length <= 8 && info.vocab_size == 8);
    if (info.max_length >= 4)
        run(model);
    rp_model_destroy(model);
    return 0;
}
