/* Feeds files, or all files of folders, to a fuzz target: the corpus as a test, with any compiler.
 */
#include "tests/fuzz/fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t n_files;

static void replay_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    char *bytes = malloc(1 << 20);
    if (!f || !bytes) {
        fprintf(stderr, "%s cannot be read\n", path);
        exit(1);
    }
    const size_t n = fread(bytes, 1, 1 << 20, f);
    fclose(f);
    /* A copy of its own size, so that a sanitizer sees a read past it. */
    uint8_t *exact = malloc(n ? n : 1);
    if (!exact)
        exit(1);
    memcpy(exact, bytes, n);
    LLVMFuzzerTestOneInput(exact, n);
    free(exact);
    free(bytes);
    n_files++;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        DIR *d = opendir(argv[i]);
        if (!d) {
            replay_file(argv[i]);
            continue;
        }
        for (struct dirent *e; (e = readdir(d));) {
            char path[1024];
            if (e->d_name[0] == '.')
                continue;
            snprintf(path, sizeof path, "%s/%s", argv[i], e->d_name);
            replay_file(path);
        }
        closedir(d);
    }
    printf("%zu inputs\n", n_files);
    return n_files > 0 ? 0 : 1;
}
