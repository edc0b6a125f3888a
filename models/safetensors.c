/* Reading and checking the header.
 *
 * The checks, in order: the file holds eight bytes and the header they announce; the header is at
 * most the format's 100,000,000 bytes and begins with '{'; it is JSON without double keys
 * (models/json.h);
 * __metadata__ maps strings to strings; every other key is a tensor whose dtype is known, whose
 * shape is a list of whole numbers >= 0, whose bits fit in 64 bits and are whole bytes, and whose
 * data_offsets are exactly that many bytes of the data.  Then, sorted by offset, each tensor begins
 * where the last one ended, the first at 0, the last ends with the file: no holes, no overlaps, no
 * tail.
 */
#include "models/safetensors.h"

#include "models/file.h"
#include "models/json.h"
#include "models/notes.h"
#include "pool/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "safetensors is little-endian; a big-endian machine would need to swap");

static const struct {
    const char *name;
    unsigned bits;
} types[RP_ST_TYPES] = {
    [RP_ST_F32] = {"F32", 32},
    [RP_ST_F16] = {"F16", 16},
    [RP_ST_BF16] = {"BF16", 16},
    [RP_ST_F64] = {"F64", 64},
    [RP_ST_BOOL] = {"BOOL", 8},
    [RP_ST_I8] = {"I8", 8},
    [RP_ST_U8] = {"U8", 8},
    [RP_ST_I16] = {"I16", 16},
    [RP_ST_U16] = {"U16", 16},
    [RP_ST_I32] = {"I32", 32},
    [RP_ST_U32] = {"U32", 32},
    [RP_ST_I64] = {"I64", 64},
    [RP_ST_U64] = {"U64", 64},
    [RP_ST_C64] = {"C64", 64},
    [RP_ST_F8_E5M2] = {"F8_E5M2", 8},
    [RP_ST_F8_E4M3] = {"F8_E4M3", 8},
    [RP_ST_F8_E8M0] = {"F8_E8M0", 8},
    [RP_ST_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8},
    [RP_ST_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8},
    [RP_ST_F6_E2M3] = {"F6_E2M3", 6},
    [RP_ST_F6_E3M2] = {"F6_E3M2", 6},
    [RP_ST_F4] = {"F4", 4},
};

const char *rp_st_type_name(enum rp_st_type type)
{
    return types[type].name;
}

unsigned rp_st_type_bits(enum rp_st_type type)
{
    return types[type].bits;
}

const char *rp_st_shape(size_t rank, const uint64_t *dims, char buffer[RP_ST_SHAPE_BYTES])
{
    size_t n = 0;
    buffer[n++] = '[';
    for (size_t i = 0; i < rank; i++)
        n += (size_t)snprintf(buffer + n, RP_ST_SHAPE_BYTES - n, "%s%llu", i ? ", " : "",
                              (unsigned long long)dims[i]);
    strcpy(buffer + n, "]");
    return buffer;
}

/* ---- one tensor -------------------------------------------------------------------------------
 */

/* Every complaint about a tensor begins alike. */
#define BAD_TENSOR(file, name, status, ...)                                                        \
    bad_tensor(err, (file)->path, name, rp_fail(err, status, __VA_ARGS__))

static rp_status bad_tensor(rp_error *err, const char *path, const char *name, rp_status status)
{
    char shown[RP_SHOWN_BYTES];
    return rp_fail_within(err, status, "%s: tensor \"%s\"", path, rp_show(name, shown));
}

static rp_status parse_dtype(const struct rp_st_file *file, struct rp_st_tensor *t,
                             const json_t *info, rp_error *err)
{
    const json_t *dtype = json_object_get(info, "dtype");
    char shown[RP_JSON_SHOWN_BYTES];
    if (!json_is_string(dtype))
        return BAD_TENSOR(file, t->name, RP_ERR_FORMAT, "it has no dtype");
    for (int i = 0; i < RP_ST_TYPES; i++)
        if (strcmp(types[i].name, json_string_value(dtype)) == 0) {
            t->type = (enum rp_st_type)i;
            return RP_OK;
        }
    return BAD_TENSOR(file, t->name, RP_ERR_FORMAT, "dtype %s is not one of the format's",
                      rp_json_show(dtype, shown));
}

static rp_status parse_shape(const struct rp_st_file *file, struct rp_st_tensor *t,
                             const json_t *info, rp_error *err)
{
    const json_t *shape = json_object_get(info, "shape");
    if (!json_is_array(shape))
        return BAD_TENSOR(file, t->name, RP_ERR_FORMAT, "it has no shape");
    t->rank = json_array_size(shape);
    if (t->rank > RP_ST_MAX_RANK)
        return BAD_TENSOR(file, t->name, RP_ERR_LIMIT, "it has %zu dimensions, more than %d",
                          t->rank, RP_ST_MAX_RANK);
    t->n_elements = 1;
    for (size_t i = 0; i < t->rank; i++) {
        const json_t *dim = json_array_get(shape, i);
        char shown[RP_JSON_SHOWN_BYTES];
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return BAD_TENSOR(file, t->name, RP_ERR_FORMAT,
                              "dimension %zu is %s, not a whole number from 0 on", i,
                              rp_json_show(dim, shown));
        t->dims[i] = (uint64_t)json_integer_value(dim);
        if (__builtin_mul_overflow(t->n_elements, t->dims[i], &t->n_elements))
            return BAD_TENSOR(file, t->name, RP_ERR_FORMAT,
                              "its shape has more elements than 64 bits can count");
    }
    return RP_OK;
}

static rp_status parse_offsets(const struct rp_st_file *file, struct rp_st_tensor *t,
                               const json_t *info, rp_error *err)
{
    const json_t *range = json_object_get(info, "data_offsets");
    uint64_t offset[2];
    if (!json_is_array(range) || json_array_size(range) != 2)
        return BAD_TENSOR(file, t->name, RP_ERR_FORMAT, "it has no data_offsets [begin, end]");
    for (size_t i = 0; i < 2; i++) {
        const json_t *x = json_array_get(range, i);
        char shown[RP_JSON_SHOWN_BYTES];
        if (!json_is_integer(x) || json_integer_value(x) < 0)
            return BAD_TENSOR(file, t->name, RP_ERR_FORMAT,
                              "data_offsets hold %s, not a whole number from 0 on",
                              rp_json_show(x, shown));
        offset[i] = (uint64_t)json_integer_value(x);
    }
    if (offset[0] > offset[1])
        return BAD_TENSOR(file, t->name, RP_ERR_FORMAT, "data_offsets [%llu, %llu] run backwards",
                          (unsigned long long)offset[0], (unsigned long long)offset[1]);
    if (offset[1] > file->data_bytes)
        return BAD_TENSOR(
            file, t->name, RP_ERR_FORMAT,
            "data_offsets [%llu, %llu] end %llu bytes past the file's %llu bytes of data",
            (unsigned long long)offset[0], (unsigned long long)offset[1],
            (unsigned long long)(offset[1] - file->data_bytes),
            (unsigned long long)file->data_bytes);
    t->begin = offset[0];
    t->end = offset[1];
    return RP_OK;
}

static rp_status check_bytes(const struct rp_st_file *file, const struct rp_st_tensor *t,
                             rp_error *err)
{
    char shape[RP_ST_SHAPE_BYTES];
    uint64_t bits;
    if (__builtin_mul_overflow(t->n_elements, (uint64_t)types[t->type].bits, &bits))
        return BAD_TENSOR(file, t->name, RP_ERR_FORMAT,
                          "%s %s has more bits than 64 bits can count", types[t->type].name,
                          rp_st_shape(t->rank, t->dims, shape));
    if (bits % 8 != 0)
        return BAD_TENSOR(file, t->name, RP_ERR_FORMAT, "%s %s is not a whole number of bytes",
                          types[t->type].name, rp_st_shape(t->rank, t->dims, shape));
    if (bits / 8 != t->end - t->begin)
        return BAD_TENSOR(file, t->name, RP_ERR_FORMAT,
                          "%s %s takes %llu bytes, but data_offsets hold %llu", types[t->type].name,
                          rp_st_shape(t->rank, t->dims, shape), (unsigned long long)(bits / 8),
                          (unsigned long long)(t->end - t->begin));
    return RP_OK;
}

static rp_status parse_tensor(const struct rp_st_file *file, struct rp_st_tensor *t,
                              const char *name, const json_t *info, rp_error *err)
{
    t->file = file;
    t->name = strdup(name);
    if (!t->name)
        return rp_fail(err, RP_ERR_NOMEM, "%s: no memory for a name", file->path);
    if (!json_is_object(info))
        return BAD_TENSOR(file, name, RP_ERR_FORMAT, "it is not described by an object");
    RP_TRY(parse_dtype(file, t, info, err));
    RP_TRY(parse_shape(file, t, info, err));
    RP_TRY(parse_offsets(file, t, info, err));
    return check_bytes(file, t, err);
}

/* ---- all tensors ------------------------------------------------------------------------------
 */

static rp_status check_metadata(const struct rp_st_file *file, json_t *metadata, rp_error *err)
{
    if (!json_is_object(metadata))
        return rp_fail(err, RP_ERR_FORMAT, "%s: __metadata__ is not an object", file->path);
    const char *key;
    json_t *value;
    json_object_foreach(metadata, key, value)
    {
        char shown[RP_SHOWN_BYTES];
        if (!json_is_string(value))
            return rp_fail(err, RP_ERR_FORMAT, "%s: __metadata__ \"%s\" is not a string",
                           file->path, rp_show(key, shown));
    }
    return RP_OK;
}

/* By offset; a tensor without bytes comes before the one that begins at the same place. */
static int compare_offset(const void *a, const void *b)
{
    const struct rp_st_tensor *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int compare_name(const void *a, const void *b)
{
    const struct rp_st_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static rp_status check_cover(const struct rp_st_file *file, rp_error *err)
{
    uint64_t at = 0;
    for (size_t i = 0; i < file->n; i++) {
        const struct rp_st_tensor *t = &file->tensors[i];
        char shown[RP_SHOWN_BYTES];
        if (t->begin < at)
            return BAD_TENSOR(file, t->name, RP_ERR_FORMAT,
                              "it begins at byte %llu, inside tensor \"%s\" which ends at %llu",
                              (unsigned long long)t->begin,
                              rp_show(file->tensors[i - 1].name, shown), (unsigned long long)at);
        if (t->begin > at)
            return BAD_TENSOR(file, t->name, RP_ERR_FORMAT,
                              "it begins at byte %llu, but the tensors before it end at %llu",
                              (unsigned long long)t->begin, (unsigned long long)at);
        at = t->end;
    }
    if (at == file->data_bytes)
        return RP_OK;
    const uint64_t tail = file->data_bytes - at;
    if (file->n == 0)
        return rp_fail(err, RP_ERR_FORMAT, "%s: %llu bytes of data, but no tensor", file->path,
                       (unsigned long long)tail);
    return BAD_TENSOR(file, file->tensors[file->n - 1].name, RP_ERR_FORMAT,
                      "it is the last, and %llu bytes after it belong to no tensor",
                      (unsigned long long)tail);
}

static rp_status parse_header(struct rp_st_file *file, json_t *root, rp_error *err)
{
    const size_t room = json_object_size(root);
    file->tensors = calloc(room ? room : 1, sizeof *file->tensors);
    file->by_name = calloc(room ? room : 1, sizeof *file->by_name);
    if (!file->tensors || !file->by_name)
        return rp_fail(err, RP_ERR_NOMEM, "%s: no memory for %zu tensors", file->path, room);
    const char *name;
    json_t *info;
    json_object_foreach(root, name, info)
    {
        if (strcmp(name, "__metadata__") == 0)
            RP_TRY(check_metadata(file, info, err));
        else
            RP_TRY(parse_tensor(file, &file->tensors[file->n++], name, info, err));
    }
    qsort(file->tensors, file->n, sizeof *file->tensors, compare_offset);
    for (size_t i = 0; i < file->n; i++)
        file->by_name[i] = &file->tensors[i];
    qsort(file->by_name, file->n, sizeof *file->by_name, compare_name);
    return check_cover(file, err);
}

/* ---- the file ---------------------------------------------------------------------------------
 */

/* Reads the header of a file of `size` bytes into *root. */
static rp_status read_header(struct rp_st_file *file, uint64_t size, json_t **root, rp_error *err)
{
    uint64_t n;
    if (size < sizeof n)
        return rp_fail(err, RP_ERR_FORMAT, "%s: %llu bytes are too few for a safetensors file",
                       file->path, (unsigned long long)size);
    RP_TRY(rp_file_read(file->fd, file->path, 0, &n, sizeof n, err));
    if (n > RP_ST_MAX_HEADER)
        return rp_fail(err, RP_ERR_LIMIT,
                       "%s: it announces a header of %llu bytes; the limit is %llu", file->path,
                       (unsigned long long)n, (unsigned long long)RP_ST_MAX_HEADER);
    if (n > size - sizeof n)
        return rp_fail(err, RP_ERR_FORMAT,
                       "%s: it announces a header of %llu bytes, but has only %llu", file->path,
                       (unsigned long long)n, (unsigned long long)(size - sizeof n));
    char *text = malloc(n ? n : 1);
    if (!text)
        return rp_fail(err, RP_ERR_NOMEM, "%s: no memory for its header", file->path);
    rp_status s = rp_file_read(file->fd, file->path, sizeof n, text, n, err);
    if (s == RP_OK && (n == 0 || text[0] != '{'))
        s = rp_fail(err, RP_ERR_FORMAT, "%s: its header does not begin with '{'", file->path);
    if (s == RP_OK)
        s = rp_json_parse(file->path, text, n, 0, root, err);
    free(text);
    file->data_start = sizeof n + n;
    file->data_bytes = size - sizeof n - n;
    return s;
}

rp_status rp_st_open(const char *path, struct rp_st_file **out, rp_error *err)
{
    struct rp_st_file *file = calloc(1, sizeof *file);
    if (!file)
        return rp_fail(err, RP_ERR_NOMEM, "%s: no memory", path);
    uint64_t size = 0;
    json_t *root = NULL;
    file->fd = -1;
    file->path = strdup(path);
    rp_status s = file->path ? rp_file_open(path, &file->fd, &size, err)
                             : rp_fail(err, RP_ERR_NOMEM, "%s: no memory", path);
    if (s == RP_OK)
        s = read_header(file, size, &root, err);
    if (s == RP_OK)
        s = parse_header(file, root, err);
    json_decref(root);
    if (s != RP_OK) {
        rp_st_close(file);
        return s;
    }
    *out = file;
    return RP_OK;
}

void rp_st_close(struct rp_st_file *file)
{
    if (!file)
        return;
    for (size_t i = 0; i < file->n; i++)
        free(file->tensors[i].name);
    free(file->tensors);
    free(file->by_name);
    free(file->path);
    rp_file_close(file->fd);
    free(file);
}

const struct rp_st_tensor *rp_st_find(const struct rp_st_file *file, const char *name)
{
    size_t low = 0, high = file->n;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        const int order = strcmp(name, file->by_name[mid]->name);
        if (order == 0)
            return file->by_name[mid];
        if (order < 0)
            high = mid;
        else
            low = mid + 1;
    }
    return NULL;
}

rp_status rp_st_read(const struct rp_st_tensor *tensor, uint64_t offset, void *dst, size_t n,
                     rp_error *err)
{
    const struct rp_st_file *file = tensor->file;
    const uint64_t bytes = tensor->end - tensor->begin;
    if (offset > bytes || n > bytes - offset)
        return BAD_TENSOR(file, tensor->name, RP_ERR_INVALID,
                          "%zu bytes at %llu are outside its %llu", n, (unsigned long long)offset,
                          (unsigned long long)bytes);
    const rp_status s =
        rp_file_read(file->fd, file->path, file->data_start + tensor->begin + offset, dst, n, err);
    if (s != RP_OK) {
        char shown[RP_SHOWN_BYTES];
        return rp_fail_within(err, s, "tensor \"%s\"", rp_show(tensor->name, shown));
    }
    return RP_OK;
}
