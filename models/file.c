/* Opening, measuring and reading; the rest of models/ makes no system calls. */
#include "models/file.h"

#include "pool/error.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

rp_status rp_file_open(const char *path, int *fd, uint64_t *size, rp_error *err)
{
    /* Without O_NONBLOCK the open of a pipe would wait for a writer that never comes. */
    const int f = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f < 0)
        return rp_fail(err, errno == ENOENT || errno == ENOTDIR ? RP_ERR_MISSING : RP_ERR_IO,
                       "%s: %s", path, strerror(errno));
    struct stat st;
    if (fstat(f, &st) != 0) {
        const rp_status s = rp_fail(err, RP_ERR_IO, "%s: %s", path, strerror(errno));
        close(f);
        return s;
    }
    if (!S_ISREG(st.st_mode)) {
        close(f);
        return rp_fail(err, RP_ERR_IO, "%s: it is not a regular file", path);
    }
    *fd = f;
    *size = (uint64_t)st.st_size;
    return RP_OK;
}

rp_status rp_file_read(int fd, const char *path, uint64_t offset, void *dst, size_t n,
                       rp_error *err)
{
    size_t done = 0;
    if (offset > INT64_MAX || n > (uint64_t)INT64_MAX - offset)
        return rp_fail(err, RP_ERR_LIMIT, "%s: there is no offset %llu", path,
                       (unsigned long long)offset);
    while (done < n) {
        const ssize_t got = pread(fd, (char *)dst + done, n - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return rp_fail(err, RP_ERR_IO, "%s: reading at %llu: %s", path,
                           (unsigned long long)(offset + done), strerror(errno));
        if (got == 0)
            return rp_fail(err, RP_ERR_IO,
                           "%s: it ends at byte %llu, %zu bytes before the end of "
                           "what is being read (was it cut short while open?)",
                           path, (unsigned long long)(offset + done), n - done);
        done += (size_t)got;
    }
    return RP_OK;
}

void rp_file_close(int fd)
{
    if (fd >= 0)
        close(fd);
}

rp_status rp_file_exists(const char *folder, const char *name, bool *out, rp_error *err)
{
    struct stat st;
    char *path = rp_path_join(folder, name);
    if (!path)
        return rp_fail(err, RP_ERR_NOMEM, "%s: no memory for a path", folder);
    rp_status s = RP_OK;
    *out = lstat(path, &st) == 0;
    if (!*out && errno != ENOENT && errno != ENOTDIR)
        s = rp_fail(err, RP_ERR_IO, "%s: %s", path, strerror(errno));
    free(path);
    return s;
}

char *rp_path_join(const char *folder, const char *name)
{
    const size_t a = strlen(folder), b = strlen(name);
    const bool slash = a > 0 && b > 0 && folder[a - 1] != '/';
    char *path = malloc(a + b + 2);
    if (!path)
        return NULL;
    memcpy(path, folder, a);
    if (slash)
        path[a] = '/';
    memcpy(path + a + slash, name, b + 1);
    return path;
}

bool rp_path_stays(const char *name, bool deep)
{
    if (name[0] == '/' || strchr(name, '\\') || (!deep && strchr(name, '/')))
        return false;
    for (const char *part = name; *part;) {
        const size_t n = strcspn(part, "/");
        if (n == 2 && part[0] == '.' && part[1] == '.')
            return false;
        part += n + (part[n] == '/');
    }
    return true;
}
