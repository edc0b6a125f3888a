/* The functions, taken over.
 *
 * Preloaded, a process is told by its environment:
 *
 *     RP_FAULT=alloc RP_FAULT_NTH=12   which call is to fail
 *     RP_FAULT_HIT=FILE                made when it has happened
 *     RP_FAULT_SKIP=FILE               ranges of the program's code whose calls do not count: "from
 * to" in hexadecimal, from the program's first byte on, ascending
 *
 * Nothing here allocates, and the real functions are those behind glibc's own names where malloc is
 * concerned (dlsym itself allocates), else what dlsym(RTLD_NEXT) finds.
 */
#define _GNU_SOURCE 1
#include "tests/faults/faults.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAVE_HOOKS 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HAVE_HOOKS 0
#else
#define HAVE_HOOKS 1
#endif
#elif defined(__GLIBC__)
#define HAVE_HOOKS 1
#else
#define HAVE_HOOKS 0
#endif

static atomic_long countdown, live;
static atomic_int armed = FAULTS_KINDS;
static atomic_bool happened, in_jansson;

bool faults_available(void)
{
    return HAVE_HOOKS;
}

void faults_arm(enum faults_kind kind, long n)
{
    atomic_store(&happened, false);
    atomic_store(&in_jansson, false);
    atomic_store(&countdown, n);
    atomic_store(&armed, (int)kind);
}

bool faults_disarm(void)
{
    atomic_store(&armed, FAULTS_KINDS);
    return atomic_load(&happened);
}

bool faults_in_jansson(void)
{
    return atomic_load(&in_jansson);
}

long faults_live(void)
{
    return atomic_load(&live);
}

#if HAVE_HOOKS
static const char *hit_file;
/* Visible, or the shared libraries go on with those of libc. */
#define HOOK   __attribute__((visibility("default")))
#define CALLER ((uintptr_t)__builtin_return_address(0))

/* ---- calls that do not count --------------------------------------------------------------------
 */

#define MAX_RANGES 16384

static struct range {
    uint32_t from, to;
} ranges[MAX_RANGES];
static size_t n_ranges;
static uintptr_t program;
/* The call that is being made; volatile, since a compiler knows of malloc that it reads no
 * variable. */
static _Thread_local volatile bool spared;

static bool left_out(uintptr_t caller)
{
    size_t low = 0, high = n_ranges;
    if (caller - program > UINT32_MAX)
        return false;
    const uint32_t at = (uint32_t)(caller - program);
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        if (at < ranges[mid].from)
            high = mid;
        else if (at > ranges[mid].to)
            low = mid + 1;
        else
            return true;
    }
    return false;
}

static bool fails(enum faults_kind kind, uintptr_t caller)
{
    if (spared || atomic_load_explicit(&armed, memory_order_relaxed) != (int)kind ||
        left_out(caller) || atomic_fetch_sub(&countdown, 1) != 1)
        return false;
    atomic_store(&happened, true);
    if (hit_file)
        close((int)syscall(SYS_openat, AT_FDCWD, hit_file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    return true;
}

/* The function that would have been called. */
static void *real(const char *name, void *_Atomic *kept)
{
    void *p = atomic_load(kept);
    if (!p) {
        p = dlsym(RTLD_NEXT, name);
        if (!p)
            abort();
        atomic_store(kept, p);
    }
    return p;
}

/* ISO C has no cast from an object pointer to a function's. */
#define FIND_REAL(function, name)                                                                  \
    do {                                                                                           \
        static void *_Atomic kept;                                                                 \
        void *const found = real(name, &kept);                                                     \
        memcpy(&(function), &found, sizeof(function));                                             \
    } while (0)

/* ---- memory -------------------------------------------------------------------------------------
 */

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);
HOOK void *malloc(size_t);
HOOK void *calloc(size_t, size_t);
HOOK void *realloc(void *, size_t);
HOOK void *aligned_alloc(size_t, size_t);
HOOK int posix_memalign(void **, size_t, size_t);
HOOK void free(void *);

static void *no_memory(void)
{
    errno = ENOMEM;
    return NULL;
}

static void *counted(void *p)
{
    if (p)
        atomic_fetch_add_explicit(&live, 1, memory_order_relaxed);
    return p;
}

void *malloc(size_t n)
{
    return fails(FAULTS_ALLOC, CALLER) ? no_memory() : counted(__libc_malloc(n));
}

void *calloc(size_t n, size_t size)
{
    return fails(FAULTS_ALLOC, CALLER) ? no_memory() : counted(__libc_calloc(n, size));
}

void *realloc(void *p, size_t n)
{
    if (fails(FAULTS_ALLOC, CALLER))
        return no_memory();
    void *q = __libc_realloc(p, n);
    if (!p)
        counted(q);
    return q;
}

void *aligned_alloc(size_t alignment, size_t n)
{
    return fails(FAULTS_ALLOC, CALLER) ? no_memory() : counted(__libc_memalign(alignment, n));
}

int posix_memalign(void **out, size_t alignment, size_t n)
{
    void *p = fails(FAULTS_ALLOC, CALLER) ? NULL : counted(__libc_memalign(alignment, n));
    if (!p)
        return ENOMEM;
    *out = p;
    return 0;
}

void free(void *p)
{
    if (p)
        atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
    __libc_free(p);
}

/* ---- the system ---------------------------------------------------------------------------------
 */

HOOK int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *),
                        void *arg)
{
    if (fails(FAULTS_THREAD, CALLER))
        return EAGAIN;
    int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    FIND_REAL(create, "pthread_create");
    return create(thread, attr, start, arg);
}

HOOK int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    const int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, int) : 0;
    va_end(args);
    if (fails(FAULTS_OPEN, CALLER)) {
        errno = EMFILE;
        return -1;
    }
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

HOOK FILE *fopen(const char *path, const char *mode)
{
    if (fails(FAULTS_OPEN, CALLER)) {
        errno = EMFILE;
        return NULL;
    }
    FILE *(*open_file)(const char *, const char *);
    FIND_REAL(open_file, "fopen");
    return open_file(path, mode);
}

HOOK ssize_t pread(int fd, void *to, size_t n, off_t at)
{
    if (fails(FAULTS_READ, CALLER)) {
        errno = EIO;
        return -1;
    }
    return syscall(SYS_pread64, fd, to, n, at);
}

HOOK ssize_t read(int fd, void *to, size_t n)
{
    if (fails(FAULTS_READ, CALLER)) {
        errno = EIO;
        return -1;
    }
    return syscall(SYS_read, fd, to, n);
}

HOOK void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset)
{
    if (fails(FAULTS_MMAP, CALLER)) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    void *(*map)(void *, size_t, int, int, int, off_t);
    FIND_REAL(map, "mmap");
    return map(at, n, protection, flags, fd, offset);
}

/* ---- jansson ------------------------------------------------------------------------------------
 */

/* A token's buffer begins with 16 bytes and is doubled; see faults.h. */
static void *jansson_malloc(size_t n)
{
    const bool before = atomic_load(&happened);
    spared = n > 16 && (n & (n - 1)) == 0;
    void *p = malloc(n);
    spared = false;
    if (!p && !before)
        atomic_store(&in_jansson, true);
    return p;
}

static void take_jansson(void)
{
    void (*set)(void *(*)(size_t), void (*)(void *));
    void *const found = dlsym(RTLD_DEFAULT, "json_set_alloc_funcs");
    if (!found)
        return;
    memcpy(&set, &found, sizeof set);
    set(jansson_malloc, free);
}

/* ---- the environment ----------------------------------------------------------------------------
 */

static int find_program(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size;
    (void)arg;
    program = info->dlpi_addr;
    return 1; /* the first is the program */
}

static void read_ranges(const char *path)
{
    unsigned from, to;
    FILE *f = fopen(path, "r");
    dl_iterate_phdr(find_program, NULL);
    while (f && n_ranges < MAX_RANGES && fscanf(f, "%x %x", &from, &to) == 2)
        ranges[n_ranges++] = (struct range){from, to};
    if (!f || n_ranges == 0 || n_ranges == MAX_RANGES) {
        fprintf(stderr, "%s: no ranges, or too many\n", path);
        _exit(99);
    }
    fclose(f);
}

__attribute__((constructor)) static void read_environment(void)
{
    take_jansson();
    static const char *const names[FAULTS_KINDS] = {"alloc", "thread", "open", "read", "mmap"};
    const char *kind = getenv("RP_FAULT"), *nth = getenv("RP_FAULT_NTH");
    hit_file = getenv("RP_FAULT_HIT");
    if (!kind || !nth)
        return;
    if (getenv("RP_FAULT_SKIP"))
        read_ranges(getenv("RP_FAULT_SKIP"));
    for (int k = 0; k < FAULTS_KINDS; k++)
        if (strcmp(kind, names[k]) == 0)
            faults_arm((enum faults_kind)k, strtol(nth, NULL, 10));
}
#endif
