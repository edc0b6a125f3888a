/* Files of a model folder: opened, measured and read; never mapped.
 *
 * A mapped file that somebody cuts short kills the process at the next touch (SIGBUS).  A read that
 * comes back short is an error with a name.  So every byte of a model comes through rp_file_read.
 */
#ifndef RP_MODELS_FILE_H
#define RP_MODELS_FILE_H

#include <rankplan/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Opens a regular file (symbolic links are followed: caches are full of them) and takes its size
 * once. A device, a pipe or a folder is refused.  RP_ERR_MISSING when it is not there, RP_ERR_IO
 * otherwise. */
RP_CHECKED rp_status rp_file_open(const char *path, int *fd, uint64_t *size, rp_error *err);

/* Reads exactly n bytes at `offset`.  Any thread.  RP_ERR_IO; a file that ends too early says by
 * how much. */
RP_CHECKED rp_status rp_file_read(int fd, const char *path, uint64_t offset, void *dst, size_t n,
                                  rp_error *err);

void rp_file_close(int fd);

/* Whether there is anything under that name.  What cannot be told is an error and not "no": a
 * folder whose modules.json cannot be looked at must not be read as one without.  RP_ERR_IO,
 * RP_ERR_NOMEM. */
RP_CHECKED rp_status rp_file_exists(const char *folder, const char *name, bool *out, rp_error *err);

/* "folder/name", to be freed; the folder alone for an empty name.  NULL: no memory. */
char *rp_path_join(const char *folder, const char *name);

/* True for a name that cannot lead out of its folder: relative, no "..", no backslash.  Slashes are
 * allowed only with `deep`. */
bool rp_path_stays(const char *name, bool deep);

#endif
