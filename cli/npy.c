/* See npy.h.  The header is a Python dictionary:
 *
 *     \x93NUMPY 1 0 <length: u16> {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }   \n
 */
#include "cli/npy.h"

#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files hold f32 as it lies in memory");

#define PREFIX_BYTES 10

/* What is left of the dictionary. */
struct text {
    const char *p, *end;
};

static void skip_spaces(struct text *t)
{
    while (t->p < t->end && *t->p == ' ')
        t->p++;
}

static bool take(struct text *t, const char *word)
{
    const size_t n = strlen(word);
    skip_spaces(t);
    if ((size_t)(t->end - t->p) < n || memcmp(t->p, word, n) != 0)
        return false;
    t->p += n;
    return true;
}

/* A string of a few plain characters in single or double quotes. */
static bool take_string(struct text *t, char *out, size_t size)
{
    size_t n = 0;
    skip_spaces(t);
    if (t->p == t->end || (*t->p != '\'' && *t->p != '"'))
        return false;
    const char quote = *t->p++;
    for (; t->p < t->end && *t->p != quote; t->p++) {
        if (n + 1 == size || *t->p < ' ' || *t->p > '~' || *t->p == '\\')
            return false;
        out[n++] = *t->p;
    }
    out[n] = 0;
    return t->p < t->end && t->p++;
}

static bool take_count(struct text *t, uint64_t *out)
{
    skip_spaces(t);
    const char *start = t->p;
    *out = 0;
    for (; t->p < t->end && *t->p >= '0' && *t->p <= '9'; t->p++) {
        const unsigned digit = (unsigned)(*t->p - '0');
        if (*out > (UINT64_MAX - digit) / 10)
            return false;
        *out = *out * 10 + digit;
    }
    return t->p > start;
}

struct dictionary {
    char descr[16];
    bool fortran;
    uint64_t dims[2];
    size_t rank;  /* dims beyond two are counted, not kept */
    unsigned has; /* a bit for each key */
};

static bool take_shape(struct text *t, struct dictionary *d)
{
    if (!take(t, "("))
        return false;
    for (d->rank = 0; !take(t, ")"); d->rank++) {
        uint64_t dim;
        if (!take_count(t, &dim))
            return false;
        if (d->rank < 2)
            d->dims[d->rank] = dim;
        if (!take(t, ",") && (t->p == t->end || *t->p != ')'))
            return false;
    }
    return true;
}

static bool take_entry(struct text *t, struct dictionary *d)
{
    static const char *const keys[] = {"descr", "fortran_order", "shape"};
    char key[16];
    unsigned k = 0;
    if (!take_string(t, key, sizeof key) || !take(t, ":"))
        return false;
    while (k < 3 && strcmp(key, keys[k]) != 0)
        k++;
    if (k == 3 || (d->has & 1u << k))
        return false;
    d->has |= 1u << k;
    if (k == 0)
        return take_string(t, d->descr, sizeof d->descr);
    if (k == 2)
        return take_shape(t, d);
    d->fortran = take(t, "True");
    return d->fortran || take(t, "False");
}

static bool read_dictionary(struct text t, struct dictionary *d)
{
    memset(d, 0, sizeof *d);
    if (!take(&t, "{"))
        return false;
    while (!take(&t, "}")) {
        if (!take_entry(&t, d))
            return false;
        if (!take(&t, ",") && (t.p == t.end || *t.p != '}'))
            return false;
    }
    return d->has == 7 && take(&t, "\n") && t.p == t.end;
}

static rp_status check_dictionary(const char *path, const struct dictionary *d, rp_error *err)
{
    if (strcmp(d->descr, "<f4") != 0)
        return cli_err(err, RP_ERR_FORMAT, "%s: its values are '%s', expected '<f4'", path,
                       d->descr);
    if (d->fortran)
        return cli_err(err, RP_ERR_FORMAT,
                       "%s: it is in Fortran's order, expected C's (fortran_order False)", path);
    if (d->rank != 2)
        return cli_err(err, RP_ERR_FORMAT,
                       "%s: its shape has %zu dimensions, expected rows and width", path, d->rank);
    return RP_OK;
}

rp_status cli_npy_parse(const char *path, const unsigned char *bytes, size_t n, uint64_t file_bytes,
                        struct cli_npy_header *out, rp_error *err)
{
    struct dictionary d;
    uint64_t count, wanted;
    if (n < PREFIX_BYTES || memcmp(bytes, "\x93NUMPY", 6) != 0)
        return cli_err(err, RP_ERR_FORMAT, "%s: it is not a .npy file", path);
    if (bytes[6] != 1 || bytes[7] != 0)
        return cli_err(err, RP_ERR_FORMAT, "%s: .npy version %d.%d, expected 1.0", path, bytes[6],
                       bytes[7]);
    const size_t length = bytes[8] | (size_t)bytes[9] << 8;
    if (length > n - PREFIX_BYTES)
        return cli_err(err, RP_ERR_FORMAT,
                       "%s: its header is %zu bytes long, and %zu bytes are there", path, length,
                       n - PREFIX_BYTES);
    const char *text = (const char *)bytes + PREFIX_BYTES;
    if (!read_dictionary((struct text){text, text + length}, &d))
        return cli_err(err, RP_ERR_FORMAT, "%s: its header is not that of a .npy file", path);
    const rp_status status = check_dictionary(path, &d, err);
    if (status != RP_OK)
        return status;
    if (__builtin_mul_overflow(d.dims[0], d.dims[1], &count) ||
        __builtin_mul_overflow(count, (uint64_t)sizeof(float), &wanted))
        return cli_err(err, RP_ERR_FORMAT, "%s: its shape, %" PRIu64 " x %" PRIu64 ", is absurd",
                       path, d.dims[0], d.dims[1]);
    const uint64_t there = file_bytes - PREFIX_BYTES - length;
    if (wanted != there)
        return cli_err(err, RP_ERR_FORMAT,
                       "%s: %" PRIu64 " bytes of values, expected %" PRIu64 " for %" PRIu64
                       " x %" PRIu64,
                       path, there, wanted, d.dims[0], d.dims[1]);
    *out = (struct cli_npy_header){d.dims[0], d.dims[1], PREFIX_BYTES + length};
    return RP_OK;
}

/* ---- files --------------------------------------------------------------------------------------
 */

/* Reads n bytes; fewer where the file ends. */
static ssize_t read_fully(int fd, void *to, size_t n)
{
    size_t done = 0;
    while (done < n) {
        const ssize_t got = read(fd, (char *)to + done, n - done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        done += (size_t)got;
    }
    return (ssize_t)done;
}

static rp_status read_header(const char *path, int fd, struct cli_npy_header *out, rp_error *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return cli_err(err, RP_ERR_IO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return cli_err(err, RP_ERR_FORMAT, "%s: it is not a file", path);
    unsigned char *bytes = malloc(CLI_NPY_HEADER_BYTES);
    if (!bytes)
        return cli_err(err, RP_ERR_NOMEM, "%s: no memory for its header", path);
    const ssize_t n = read_fully(fd, bytes, CLI_NPY_HEADER_BYTES);
    const rp_status status =
        n < 0 ? cli_err(err, RP_ERR_IO, "%s: %s", path, strerror(errno))
              : cli_npy_parse(path, bytes, (size_t)n, (uint64_t)st.st_size, out, err);
    free(bytes);
    return status;
}

static rp_status read_values(const char *path, int fd, size_t data, size_t bytes, float **out,
                             rp_error *err)
{
    float *values = malloc(bytes ? bytes : 1);
    if (!values)
        return cli_err(err, RP_ERR_NOMEM, "%s: no memory for %zu bytes", path, bytes);
    const ssize_t got = lseek(fd, (off_t)data, SEEK_SET) < 0 ? -1 : read_fully(fd, values, bytes);
    if (got == (ssize_t)bytes) {
        *out = values;
        return RP_OK;
    }
    free(values);
    return cli_err(err, RP_ERR_IO, "%s: %s", path,
                   got < 0 ? strerror(errno) : "it was cut while it was read");
}

rp_status cli_npy_read(const char *path, size_t rows, size_t width, float **out, rp_error *err)
{
    struct cli_npy_header header;
    /* O_NONBLOCK: a pipe of that name must not hang. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return cli_err(err, RP_ERR_IO, "%s: %s", path, strerror(errno));
    rp_status status = read_header(path, fd, &header, err);
    if (status == RP_OK && (header.rows != rows || header.width != width))
        status = cli_err(err, RP_ERR_SHAPE,
                         "%s: it is %" PRIu64 " x %" PRIu64 ", and the index says %zu x %zu", path,
                         header.rows, header.width, rows, width);
    if (status == RP_OK)
        status = read_values(path, fd, header.data, rows * width * sizeof(float), out, err);
    close(fd);
    return status;
}
