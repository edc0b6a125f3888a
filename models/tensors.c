/* One file or several.  The index is a list of promises; each is checked against the shard it
 * names. */
#include "models/tensors.h"

#include "models/file.h"
#include "models/json.h"
#include "pool/error.h"

#include <stdlib.h>
#include <string.h>

#define SINGLE "model.safetensors"
#define INDEX  "model.safetensors.index.json"

static rp_status open_single(struct rp_tensors *t, rp_error *err)
{
    RP_TRY(rp_st_open(t->source, &t->files[0], err));
    t->n_files = 1;
    const struct rp_st_file *file = t->files[0];
    t->entries = calloc(file->n ? file->n : 1, sizeof *t->entries);
    if (!t->entries)
        return rp_fail(err, RP_ERR_NOMEM, "%s: no memory for %zu tensors", t->source, file->n);
    for (size_t i = 0; i < file->n; i++)
        t->entries[i].tensor = file->by_name[i];
    t->n = file->n;
    return RP_OK;
}

/* The shard at that path, opened at its first mention. */
static rp_status open_shard(struct rp_tensors *t, const char *path, const struct rp_st_file **out,
                            rp_error *err)
{
    for (size_t i = 0; i < t->n_files; i++)
        if (strcmp(t->files[i]->path, path) == 0) {
            *out = t->files[i];
            return RP_OK;
        }
    if (t->n_files == RP_TENSORS_MAX_SHARDS)
        return rp_fail(err, RP_ERR_LIMIT, "more than %d shards", RP_TENSORS_MAX_SHARDS);
    RP_TRY(rp_st_open(path, &t->files[t->n_files], err));
    *out = t->files[t->n_files++];
    return RP_OK;
}

static rp_status find_shard(struct rp_tensors *t, const char *folder, const char *name,
                            const struct rp_st_file **out, rp_error *err)
{
    char shown[RP_SHOWN_BYTES];
    if (!*name || strcmp(name, ".") == 0 || !rp_path_stays(name, false))
        return rp_fail(err, RP_ERR_FORMAT,
                       "%s: shard \"%s\" is not the name of a file in the folder", t->source,
                       rp_show(name, shown));
    char *path = rp_path_join(folder, name);
    if (!path)
        return rp_fail(err, RP_ERR_NOMEM, "%s: no memory", t->source);
    rp_status s = open_shard(t, path, out, err);
    if (s != RP_OK)
        s = rp_fail_within(err, s, "%s: shard \"%s\"", t->source, rp_show(name, shown));
    free(path);
    return s;
}

static rp_status add_mapped(struct rp_tensors *t, const char *folder, const char *name,
                            const json_t *shard, rp_error *err)
{
    char shown[RP_SHOWN_BYTES], shown_shard[RP_SHOWN_BYTES];
    const struct rp_st_file *file = NULL;
    if (!json_is_string(shard))
        return rp_fail(err, RP_ERR_FORMAT, "%s: weight_map \"%s\" does not name a shard", t->source,
                       rp_show(name, shown));
    RP_TRY(find_shard(t, folder, json_string_value(shard), &file, err));
    const struct rp_st_tensor *tensor = rp_st_find(file, name);
    if (!tensor)
        return rp_fail(
            err, RP_ERR_MISSING, "%s: tensor \"%s\" is not in shard \"%s\", where the index has it",
            t->source, rp_show(name, shown), rp_show(json_string_value(shard), shown_shard));
    t->entries[t->n++].tensor = tensor;
    return RP_OK;
}

static int compare_entries(const void *a, const void *b)
{
    const struct rp_tensor_entry *x = a, *y = b;
    return strcmp(x->tensor->name, y->tensor->name);
}

/* Tensors that lie in a shard but not in the index: nothing can use them. */
static rp_status note_unmapped(const struct rp_tensors *t, struct rp_notes *notes, rp_error *err)
{
    struct rp_name_list names = {0};
    for (size_t f = 0; f < t->n_files; f++)
        for (size_t i = 0; i < t->files[f]->n; i++) {
            const struct rp_st_tensor *tensor = &t->files[f]->tensors[i];
            const struct rp_tensor_entry *e = rp_tensors_find(t, tensor->name);
            if (!e || e->tensor != tensor)
                rp_name_list_add(&names, tensor->name);
        }
    if (names.n == 0)
        return RP_OK;
    return rp_notes_add(notes, err, "%s does not name %zu tensors that its shards hold: %s", INDEX,
                        names.n, rp_name_list_text(&names));
}

static rp_status read_index(struct rp_tensors *t, const char *folder, const struct rp_json *index,
                            rp_error *err)
{
    json_t *map = json_object_get(index->object, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0)
        return rp_fail(err, RP_ERR_FORMAT, "%s: it has no weight_map {tensor: shard}", t->source);
    t->entries = calloc(json_object_size(map), sizeof *t->entries);
    if (!t->entries)
        return rp_fail(err, RP_ERR_NOMEM, "%s: no memory for %zu tensors", t->source,
                       json_object_size(map));
    const char *name;
    json_t *shard;
    json_object_foreach(map, name, shard)
    {
        RP_TRY(add_mapped(t, folder, name, shard, err));
    }
    qsort(t->entries, t->n, sizeof *t->entries, compare_entries);
    return RP_OK;
}

static rp_status open_shards(struct rp_tensors *t, const char *folder, struct rp_notes *notes,
                             rp_error *err)
{
    struct rp_json index;
    RP_TRY(rp_json_open(t->source, 0, &index, err));
    const rp_status s = read_index(t, folder, &index, err);
    rp_json_close(&index);
    return s == RP_OK ? note_unmapped(t, notes, err) : s;
}

/* What to say when there is neither file nor index. */
static rp_status nothing_there(const char *folder, rp_error *err)
{
    static const char *const pickles[] = {"pytorch_model.bin", "pytorch_model.bin.index.json",
                                          "model.pt", "model.pth"};
    for (size_t i = 0; i < sizeof pickles / sizeof *pickles; i++) {
        bool there;
        RP_TRY(rp_file_exists(folder, pickles[i], &there, err));
        if (there)
            return rp_fail(err, RP_ERR_UNSUPPORTED,
                           "%s holds %s but no " SINGLE ": pickled weights run code when they are "
                           "read and are never opened; convert them with "
                           "model.save_pretrained(folder, safe_serialization=True)",
                           folder, pickles[i]);
    }
    return rp_fail(err, RP_ERR_MISSING, "%s holds neither " SINGLE " nor " INDEX, folder);
}

rp_status rp_tensors_open(const char *folder, struct rp_notes *notes, struct rp_tensors **out,
                          rp_error *err)
{
    bool sharded, single;
    RP_TRY(rp_file_exists(folder, INDEX, &sharded, err));
    RP_TRY(rp_file_exists(folder, SINGLE, &single, err));
    if (!sharded && !single)
        return nothing_there(folder, err);
    struct rp_tensors *t = calloc(1, sizeof *t);
    if (!t)
        return rp_fail(err, RP_ERR_NOMEM, "%s: no memory", folder);
    t->source = rp_path_join(folder, sharded ? INDEX : SINGLE);
    rp_status s;
    if (!t->source)
        s = rp_fail(err, RP_ERR_NOMEM, "%s: no memory", folder);
    else
        s = sharded ? open_shards(t, folder, notes, err) : open_single(t, err);
    if (s != RP_OK) {
        rp_tensors_close(t);
        return s;
    }
    *out = t;
    return RP_OK;
}

void rp_tensors_close(struct rp_tensors *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->n_files; i++)
        rp_st_close(t->files[i]);
    free(t->entries);
    free(t->source);
    free(t);
}

struct rp_tensor_entry *rp_tensors_find(const struct rp_tensors *tensors, const char *name)
{
    size_t low = 0, high = tensors->n;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        const int order = strcmp(name, tensors->entries[mid].tensor->name);
        if (order == 0)
            return &tensors->entries[mid];
        if (order < 0)
            high = mid;
        else
            low = mid + 1;
    }
    return NULL;
}
