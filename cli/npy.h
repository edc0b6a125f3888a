/* NumPy files as dumps have them: version 1.0, little-endian f32, C order, rows x width.  They are
 * untrusted: whatever stands in one, reading it ends in values or in a message. */
#ifndef RP_CLI_NPY_H
#define RP_CLI_NPY_H

#include <rankplan/status.h>

#include <stddef.h>
#include <stdint.h>

struct cli_npy_header {
    uint64_t rows, width;
    size_t data; /* where the values start */
};

/* Reads the header in the first n bytes of a file of file_bytes, and checks that exactly the values
 * that it announces follow.  Messages begin "path: ".  RP_ERR_FORMAT. */
RP_CHECKED rp_status cli_npy_parse(const char *path, const unsigned char *bytes, size_t n,
                                   uint64_t file_bytes, struct cli_npy_header *out, rp_error *err);

/* Most bytes that a header with everything before it can have. */
#define CLI_NPY_HEADER_BYTES (10 + 65535)

/* Reads a file of rows x width values; anything else is refused.  *out is for free().  RP_ERR_IO,
 * RP_ERR_FORMAT, RP_ERR_SHAPE, RP_ERR_NOMEM. */
RP_CHECKED rp_status cli_npy_read(const char *path, size_t rows, size_t width, float **out,
                                  rp_error *err);

#endif
