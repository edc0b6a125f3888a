/* One safetensors file: `u64 header length | header, JSON | data`, all of it distrusted.
 *
 * After rp_st_open every tensor's bytes are known to lie inside the file, to be as many as its
 * shape asks for, and to belong to it alone; together the tensors cover the data without holes.
 * Reading keeps no state and may be done from any number of threads.
 */
#ifndef RP_MODELS_SAFETENSORS_H
#define RP_MODELS_SAFETENSORS_H

#include <rankplan/status.h>

#include <stddef.h>
#include <stdint.h>

#define RP_ST_MAX_HEADER ((uint64_t)100000000) /* the format's own limit */
#define RP_ST_MAX_RANK   8

/* The element types of the format.  The order is that of the table in safetensors.c. */
enum rp_st_type {
    RP_ST_F32,
    RP_ST_F16,
    RP_ST_BF16,
    RP_ST_F64,
    RP_ST_BOOL,
    RP_ST_I8,
    RP_ST_U8,
    RP_ST_I16,
    RP_ST_U16,
    RP_ST_I32,
    RP_ST_U32,
    RP_ST_I64,
    RP_ST_U64,
    RP_ST_C64,
    RP_ST_F8_E5M2,
    RP_ST_F8_E4M3,
    RP_ST_F8_E8M0,
    RP_ST_F8_E4M3FNUZ,
    RP_ST_F8_E5M2FNUZ,
    RP_ST_F6_E2M3,
    RP_ST_F6_E3M2,
    RP_ST_F4,
    RP_ST_TYPES
};

struct rp_st_file;

struct rp_st_tensor {
    const struct rp_st_file *file;
    char *name;
    enum rp_st_type type;
    size_t rank;
    uint64_t dims[RP_ST_MAX_RANK];
    uint64_t n_elements;
    uint64_t begin, end; /* bytes, from the start of the data */
};

struct rp_st_file {
    char *path;
    int fd;
    uint64_t data_start, data_bytes;
    size_t n;
    struct rp_st_tensor *tensors;        /* by offset */
    const struct rp_st_tensor **by_name; /* by strcmp */
};

/* RP_ERR_MISSING (no such file), RP_ERR_IO, RP_ERR_FORMAT (the message names the tensor),
 * RP_ERR_LIMIT (header or rank beyond a limit), RP_ERR_NOMEM. */
RP_CHECKED rp_status rp_st_open(const char *path, struct rp_st_file **out, rp_error *err);
void rp_st_close(struct rp_st_file *file);

/* NULL when there is none. */
const struct rp_st_tensor *rp_st_find(const struct rp_st_file *file, const char *name);

/* Reads n bytes at byte `offset` of a tensor.  Any thread. */
RP_CHECKED rp_status rp_st_read(const struct rp_st_tensor *tensor, uint64_t offset, void *dst,
                                size_t n, rp_error *err);

const char *rp_st_type_name(enum rp_st_type type);
unsigned rp_st_type_bits(enum rp_st_type type);

/* "[2, 3]" for messages. */
#define RP_ST_SHAPE_BYTES (RP_ST_MAX_RANK * 22 + 3)
const char *rp_st_shape(size_t rank, const uint64_t *dims, char buffer[RP_ST_SHAPE_BYTES]);

#endif
