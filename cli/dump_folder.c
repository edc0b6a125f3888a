/* The folder of a dump.
 *
 * Every file is written under a temporary name beside its own and renamed when it is whole; the
 * index comes last.  So a folder with an index holds all that the index lists, whatever happened on
 * the way.  The folder is held open: what is written goes where it was opened, even when somebody
 * moves the path meanwhile.
 */
#include "cli/cli.h"
#include "cli/dump.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define INDEX_NAME "index.json"

void cli_dump_file_name(size_t step, const char *name, char out[CLI_DUMP_NAME_BYTES])
{
    int n = snprintf(out, CLI_DUMP_NAME_BYTES, "%04zu_", step);
    const size_t room = CLI_DUMP_NAME_BYTES - sizeof ".npy";
    for (; *name && (size_t)n < room; name++)
        out[n++] =
            strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_", *name)
                ? *name
                : '_';
    strcpy(out + n, ".npy");
}

/* ---- an older dump ------------------------------------------------------------------------------
 */

/* What a dump calls its steps' files: four digits or more, '_', a plain name, ".npy". */
static bool is_step_file(const char *name)
{
    const size_t digits = strspn(name, "0123456789"), n = strlen(name);
    return digits >= 4 && name[digits] == '_' && !strchr(name, '/') && n > digits + 5 &&
           n < CLI_DUMP_NAME_BYTES && strcmp(name + n - 4, ".npy") == 0;
}

static bool is_empty(int fd)
{
    const int copy = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = copy >= 0 ? fdopendir(copy) : NULL;
    bool empty = dir != NULL;
    if (!dir) {
        if (copy >= 0)
            close(copy);
        return false;
    }
    for (const struct dirent *e; empty && (e = readdir(dir));)
        empty = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
    closedir(dir);
    return empty;
}

/* The index of the dump in the folder, or NULL when it has none that is one. */
static json_t *read_index(int fd)
{
    const int file = openat(fd, INDEX_NAME, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    json_t *index = file >= 0 ? json_loadfd(file, 0, NULL) : NULL;
    const char *format = json_string_value(json_object_get(index, "format"));
    if (file >= 0)
        close(file);
    if (format && strcmp(format, CLI_DUMP_FORMAT) == 0)
        return index;
    json_decref(index);
    return NULL;
}

/* The index goes first: from then on the folder holds no dump.  Of what it lists only files with a
 * step's name are removed, whatever else it may say. */
static rp_status remove_old(struct cli_dump_folder *folder, rp_error *err)
{
    json_t *index = read_index(folder->fd);
    const json_t *steps = json_object_get(index, "steps"), *step;
    size_t i;
    if (!index)
        return cli_err(err, RP_ERR_INVALID,
                       "%s: it holds files that are no dump\n"
                       "  next: name an empty or a new folder, or one with an older dump",
                       folder->path);
    rp_status status = RP_OK;
    if (unlinkat(folder->fd, INDEX_NAME, 0) != 0)
        status = cli_err(err, RP_ERR_IO,
                         "%s/" INDEX_NAME ": the older dump cannot be removed: %s\n"
                         "  next: name another folder",
                         folder->path, strerror(errno));
    json_array_foreach(steps, i, step)
    {
        const char *name = json_string_value(json_object_get(step, "file"));
        if (status == RP_OK && name && is_step_file(name))
            (void)unlinkat(folder->fd, name, 0); /* gone already, or a folder that stays */
    }
    json_decref(index);
    return status;
}

rp_status cli_dump_folder_open(const char *path, struct cli_dump_folder *out, rp_error *err)
{
    *out = (struct cli_dump_folder){.path = path, .fd = -1};
    out->made = mkdir(path, 0777) == 0;
    if (!out->made && errno != EEXIST)
        return cli_err(err, RP_ERR_IO,
                       "%s: the folder cannot be made: %s\n"
                       "  next: name a folder in one that exists and can be written",
                       path, strerror(errno));
    out->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (out->fd < 0)
        return cli_err(err, RP_ERR_IO, "%s: %s\n  next: name a folder for --output", path,
                       strerror(errno));
    if (out->made || is_empty(out->fd))
        return RP_OK;
    const rp_status status = remove_old(out, err);
    if (status != RP_OK)
        cli_dump_folder_close(out, true);
    return status;
}

/* ---- files --------------------------------------------------------------------------------------
 */

static rp_status cannot_write(const struct cli_dump_folder *folder, const char *name, int reason,
                              rp_error *err)
{
    return cli_err(err, RP_ERR_IO,
                   "%s/%s: it cannot be written: %s\n"
                   "  next: make room, choose fewer steps with --filter, or name another folder",
                   folder->path, name, strerror(reason));
}

/* Remembers a file of this run, so that it can be taken back. */
static bool remember(struct cli_dump_folder *folder, const char *name)
{
    if (folder->n_written == folder->capacity) {
        const size_t more = folder->capacity ? 2 * folder->capacity : 64;
        char **grown = realloc(folder->written, more * sizeof *grown);
        if (!grown)
            return false;
        folder->written = grown;
        folder->capacity = more;
    }
    folder->written[folder->n_written] = strdup(name);
    return folder->written[folder->n_written] && ++folder->n_written;
}

FILE *cli_dump_file_begin(struct cli_dump_folder *folder, const char *name, rp_error *err)
{
    snprintf(folder->temporary, sizeof folder->temporary, ".%s.tmp", name);
    (void)unlinkat(folder->fd, folder->temporary, 0); /* of a run that was killed */
    const int fd =
        openat(folder->fd, folder->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    FILE *f = fd >= 0 ? fdopen(fd, "wb") : NULL;
    if (!f) {
        const int reason = errno;
        if (fd >= 0)
            close(fd);
        else
            folder->temporary[0] = 0;
        (void)cannot_write(folder, name, reason, err);
    }
    return f;
}

rp_status cli_dump_file_done(struct cli_dump_folder *folder, const char *name, FILE *f,
                             rp_error *err)
{
    bool whole = fflush(f) == 0 && !ferror(f);
    int reason = errno;
    if (fclose(f) != 0 && whole) {
        whole = false;
        reason = errno;
    }
    if (!whole)
        return cannot_write(folder, name, reason, err);
    if (renameat(folder->fd, folder->temporary, folder->fd, name) != 0)
        return cannot_write(folder, name, errno, err);
    folder->temporary[0] = 0;
    if (!remember(folder, name)) {
        (void)unlinkat(folder->fd, name, 0);
        return cli_err(err, RP_ERR_NOMEM, "%s: no memory for a list of its files", folder->path);
    }
    return RP_OK;
}

void cli_dump_folder_close(struct cli_dump_folder *folder, bool keep)
{
    if (folder->fd >= 0 && folder->temporary[0])
        (void)unlinkat(folder->fd, folder->temporary, 0);
    for (size_t i = 0; i < folder->n_written; i++) {
        if (!keep)
            (void)unlinkat(folder->fd, folder->written[i], 0);
        free(folder->written[i]);
    }
    free(folder->written);
    if (folder->fd >= 0)
        close(folder->fd);
    if (!keep && folder->made)
        (void)rmdir(folder->path); /* stays when somebody put something there */
    *folder = (struct cli_dump_folder){.fd = -1};
}
