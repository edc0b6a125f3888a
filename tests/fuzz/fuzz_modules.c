/* The JSON files of a sentence-transformers folder around a small model, one after the other with a
 * 0 byte between them: modules.json, the configuration of module 1 and of module 2,
 * config_sentence_transformers.json, sentence_bert_config.json, tokenizer_config.json.  Refused
 * with a message, or a model whose parts agree. */
#include "tests/fuzz/fuzz.h"
#include "tests/model_maker.h"

#include <rankplan/model.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct maker_dir dir;

static void remove_dir(void)
{
    maker_dir_remove(&dir);
}

static void make_folder(void)
{
    static const char header[] =
        "{\"linear.weight\":{\"dtype\":\"F32\",\"shape\":[4,4],\"data_offsets\":[0,64]},"
        "\"linear.bias\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[64,80]},"
        "\"norm.weight\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[80,96]},"
        "\"norm.bias\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[96,112]}}";
    static const char zeros[112];
    struct maker_model m = maker_model_default("bert");
    m.vocab = 8;
    m.hidden = 4;
    m.intermediate = 4;
    m.positions = 8;
    m.layers = 1;
    maker_dir_create(&dir);
    atexit(remove_dir);
    maker_model_fill(&m);
    maker_model_write(&m, &dir, &(struct maker_write_options){0});
    maker_model_free(&m);
    maker_mkdir(&dir, "1");
    maker_mkdir(&dir, "2");
    maker_write_st(&dir, "2/model.safetensors", sizeof header - 1, header, zeros, sizeof zeros);
}

static void write_files(const uint8_t *data, size_t size)
{
    static const char *const files[] = {"modules.json",
                                        "1/config.json",
                                        "2/config.json",
                                        "config_sentence_transformers.json",
                                        "sentence_bert_config.json",
                                        "tokenizer_config.json"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const uint8_t *end = size ? memchr(data, 0, size) : NULL;
        const size_t n = end ? (size_t)(end - data) : size;
        remove(maker_path(&dir, files[i]));
        if (n > 0)
            maker_write(&dir, files[i], data, n);
        data += end ? n + 1 : n;
        size -= end ? n + 1 : n;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    rp_model *model;
    rp_error err;
    if (!dir.path[0])
        make_folder();
    write_files(data, size);
    if (rp_model_load(dir.path, NULL, &model, &err) != RP_OK) {
        FUZZ_CHECK(strlen(err.message) > 0);
        return 0;
    }
    rp_model_info info = {.struct_size = sizeof info};
    rp_model_get_info(model, &info);
    FUZZ_CHECK(info.max_length >= 1 && info.max_length <= 8);
    FUZZ_CHECK(info.task == RP_TASK_EMBED ? info.dimension > 0 : info.n_labels > 0);
    for (size_t i = 0; i < info.n_notes; i++)
        FUZZ_CHECK(rp_model_note(model, i));
    rp_model_destroy(model);
    return 0;
}
