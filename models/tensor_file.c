/* rp_tensor_file: a safetensors file for callers that want numbers rather than a model.
 *
 * Values are converted only where that is exact: a half becomes the float it is, an integer becomes
 * a float when one stands for it, a float becomes an integer when it is one.  Everything else is
 * refused by element.  Bits are moved with integer operations or exact ones, so that a calling
 * thread that flushes denormals reads the same values.
 */
#include "models/safetensors.h"
#include "ops/ops.h"
#include "pool/error.h"

#include <rankplan/machine.h>
#include <rankplan/model.h>

#include <limits.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof((rp_tensor *)0)->dims / sizeof(uint64_t) == RP_ST_MAX_RANK, "ranks agree");

struct rp_tensor_file {
    struct rp_st_file *st;
};

rp_status rp_tensor_file_open(const char *path, rp_tensor_file **out, rp_error *err)
{
    if (!path || !out)
        return rp_fail(err, RP_ERR_INVALID,
                       "rp_tensor_file_open needs a path and a place for the file");
    rp_tensor_file *file = calloc(1, sizeof *file);
    if (!file)
        return rp_fail(err, RP_ERR_NOMEM, "%s: no memory", path);
    const rp_status s = rp_st_open(path, &file->st, err);
    if (s != RP_OK) {
        free(file);
        return s;
    }
    *out = file;
    return RP_OK;
}

void rp_tensor_file_close(rp_tensor_file *file)
{
    if (!file)
        return;
    rp_st_close(file->st);
    free(file);
}

size_t rp_tensor_file_count(const rp_tensor_file *file)
{
    return file->st->n;
}

static void describe(const struct rp_st_tensor *t, rp_tensor *out)
{
    *out = (rp_tensor){.name = t->name,
                       .dtype = rp_st_type_name(t->type),
                       .rank = t->rank,
                       .n_elements = t->n_elements};
    memcpy(out->dims, t->dims, sizeof t->dims);
}

rp_status rp_tensor_file_get(const rp_tensor_file *file, size_t i, rp_tensor *out)
{
    if (i >= file->st->n)
        return RP_ERR_INVALID;
    describe(&file->st->tensors[i], out);
    return RP_OK;
}

static rp_status find(const rp_tensor_file *file, const char *name, const struct rp_st_tensor **out,
                      rp_error *err)
{
    *out = rp_st_find(file->st, name);
    if (!*out)
        return rp_fail(err, RP_ERR_MISSING, "%s: there is no tensor \"%s\"", file->st->path, name);
    return RP_OK;
}

rp_status rp_tensor_file_find(const rp_tensor_file *file, const char *name, rp_tensor *out,
                              rp_error *err)
{
    const struct rp_st_tensor *t;
    RP_TRY(find(file, name, &t, err));
    describe(t, out);
    return RP_OK;
}

/* ---- elements ---------------------------------------------------------------------------------
 */

static bool is_float(enum rp_st_type type)
{
    return type == RP_ST_F32 || type == RP_ST_F16 || type == RP_ST_BF16;
}

static float load_float(enum rp_st_type type, const unsigned char *p)
{
    const rp_dtype dtype = type == RP_ST_F32   ? RP_DTYPE_F32
                           : type == RP_ST_F16 ? RP_DTYPE_F16
                                               : RP_DTYPE_BF16;
    float x;
    rp_ops_select(RP_ISA_SCALAR)->widen(dtype, p, &x, 1);
    return x;
}

#define LOAD(type)                                                                                 \
    {                                                                                              \
        type x;                                                                                    \
        memcpy(&x, p, sizeof x);                                                                   \
        *out = (int64_t)x;                                                                         \
        return true;                                                                               \
    }

/* False for a type that holds no integers, or a value beyond int64. */
static bool load_integer(enum rp_st_type type, const unsigned char *p, int64_t *out)
{
    switch (type) {
    case RP_ST_BOOL: *out = *p != 0; return true;
    case RP_ST_U8: LOAD(uint8_t)
    case RP_ST_I8: LOAD(int8_t)
    case RP_ST_U16: LOAD(uint16_t)
    case RP_ST_I16: LOAD(int16_t)
    case RP_ST_U32: LOAD(uint32_t)
    case RP_ST_I32: LOAD(int32_t)
    case RP_ST_I64: LOAD(int64_t)
    case RP_ST_U64: {
        uint64_t x;
        memcpy(&x, p, sizeof x);
        *out = (int64_t)x;
        return x <= INT64_MAX;
    }
    default: return false;
    }
}

/* Exact or false.  2^63 is the first float beyond int64.  Bits are compared, and not values: to a
 * thread that flushes denormals, 1e-40 equals 0. */
static bool float_to_integer(float x, int64_t *out)
{
    if (!(x >= -0x1p63f && x < 0x1p63f))
        return false;
    *out = (int64_t)x;
    const float back = (float)*out;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return *out == 0 ? bits << 1 == 0 : memcmp(&back, &x, sizeof x) == 0;
}

static bool to_f32(enum rp_st_type type, const unsigned char *p, float *out)
{
    int64_t x, back = 0;
    if (is_float(type)) {
        *out = load_float(type, p);
        return true;
    }
    if (!load_integer(type, p, &x))
        return false;
    *out = (float)x;
    return float_to_integer(*out, &back) && back == x;
}

static bool to_i32(enum rp_st_type type, const unsigned char *p, int32_t *out)
{
    int64_t x;
    if (is_float(type) ? !float_to_integer(load_float(type, p), &x) : !load_integer(type, p, &x))
        return false;
    *out = (int32_t)x;
    return x >= INT32_MIN && x <= INT32_MAX;
}

/* Calls `convert` for each element, a block of bytes at a time. */
static rp_status read_all(const rp_tensor_file *file, const char *name, size_t n, const char *as,
                          bool (*convert)(enum rp_st_type, const unsigned char *, size_t, void *),
                          void *out, rp_error *err)
{
    const struct rp_st_tensor *t;
    unsigned char block[4096];
    RP_TRY(find(file, name, &t, err));
    if (n != t->n_elements)
        return rp_fail(err, RP_ERR_SHAPE, "%s: tensor \"%s\" has %llu elements, not %zu",
                       file->st->path, name, (unsigned long long)t->n_elements, n);
    const size_t bytes = rp_st_type_bits(t->type) / 8;
    if (t->type >= RP_ST_C64 || t->type == RP_ST_F64)
        return rp_fail(err, RP_ERR_UNSUPPORTED, "%s: tensor \"%s\" is %s, which is not read as %s",
                       file->st->path, name, rp_st_type_name(t->type), as);
    for (size_t i = 0; i < n;) {
        const size_t left = n - i, room = sizeof block / bytes, count = left < room ? left : room;
        RP_TRY(rp_st_read(t, (uint64_t)i * bytes, block, count * bytes, err));
        for (size_t j = 0; j < count; j++, i++)
            if (!convert(t->type, block + j * bytes, i, out))
                return rp_fail(err, RP_ERR_FORMAT,
                               "%s: tensor \"%s\": element %zu is not exactly %s", file->st->path,
                               name, i, as);
    }
    return RP_OK;
}

static bool convert_f32(enum rp_st_type type, const unsigned char *p, size_t i, void *out)
{
    return to_f32(type, p, (float *)out + i);
}

static bool convert_i32(enum rp_st_type type, const unsigned char *p, size_t i, void *out)
{
    return to_i32(type, p, (int32_t *)out + i);
}

rp_status rp_tensor_file_read_f32(const rp_tensor_file *file, const char *name, float *out,
                                  size_t n, rp_error *err)
{
    return read_all(file, name, n, "a 32-bit float", convert_f32, out, err);
}

rp_status rp_tensor_file_read_i32(const rp_tensor_file *file, const char *name, int32_t *out,
                                  size_t n, rp_error *err)
{
    return read_all(file, name, n, "a 32-bit integer", convert_i32, out, err);
}
