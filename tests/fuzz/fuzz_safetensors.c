/* A whole safetensors file.  What opens must hold together: tensors in order, side by side,
 * readable to the last byte, found by name. */
#include "models/safetensors.h"
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

static void check_tensors(const struct rp_st_file *file)
{
    unsigned char *bytes = malloc(file->data_bytes + 1);
    uint64_t at = 0;
    FUZZ_CHECK(bytes);
    for (size_t i = 0; i < file->n; i++) {
        const struct rp_st_tensor *t = &file->tensors[i];
        FUZZ_CHECK(t->begin == at && t->end >= t->begin && t->end <= file->data_bytes);
        FUZZ_CHECK(rp_st_read(t, 0, bytes, (size_t)(t->end - t->begin), NULL) == RP_OK);
        FUZZ_CHECK(rp_st_read(t, t->end - t->begin, bytes, 1, NULL) == RP_ERR_INVALID);
        FUZZ_CHECK(rp_st_find(file, t->name) == t);
        at = t->end;
    }
    FUZZ_CHECK(at == file->data_bytes);
    free(bytes);
}

/* The public reader on the same file: converted or refused. */
static void check_values(const char *path)
{
    rp_tensor_file *file;
    rp_tensor t;
    if (rp_tensor_file_open(path, &file, NULL) != RP_OK)
        return;
    for (size_t i = 0; i < rp_tensor_file_count(file); i++) {
        FUZZ_CHECK(rp_tensor_file_get(file, i, &t) == RP_OK);
        if (t.n_elements > 4096)
            continue;
        int32_t ints[4096];
        float floats[4096];
        const size_t n = (size_t)t.n_elements;
        const rp_status a = rp_tensor_file_read_f32(file, t.name, floats, n, NULL);
        const rp_status b = rp_tensor_file_read_i32(file, t.name, ints, n, NULL);
        for (size_t k = 0; k < n && a == RP_OK && b == RP_OK; k++)
            FUZZ_CHECK((double)floats[k] == (double)ints[k]);
    }
    rp_tensor_file_close(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct rp_st_file *file;
    rp_error err;
    if (!dir.path[0]) {
        maker_dir_create(&dir);
        atexit(remove_dir);
    }
    maker_write(&dir, "f", data, size);
    if (rp_st_open(maker_path(&dir, "f"), &file, &err) != RP_OK) {
        FUZZ_CHECK(strlen(err.message) > 0);
        return 0;
    }
    check_tensors(file);
    rp_st_close(file);
    check_values(maker_path(&dir, "f"));
    return 0;
}
