/* The allocator's functions, taken over for the tests that link this file: counted, then passed on.
 */
#include "tests/alloc_count.h"

#include <stdatomic.h>

static atomic_size_t calls;

size_t alloc_count(void)
{
    return atomic_load(&calls);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAVE_COUNT 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HAVE_COUNT 0
#else
#define HAVE_COUNT 1
#endif
#else
#define HAVE_COUNT 1
#endif

bool alloc_count_available(void)
{
    return HAVE_COUNT;
}

#if HAVE_COUNT
/* glibc's own names behind the public ones. */
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void *malloc(size_t);
void *calloc(size_t, size_t);
void *realloc(void *, size_t);
void *aligned_alloc(size_t, size_t);
int posix_memalign(void **, size_t, size_t);

void *malloc(size_t n)
{
    atomic_fetch_add(&calls, 1);
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    atomic_fetch_add(&calls, 1);
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    atomic_fetch_add(&calls, 1);
    return __libc_realloc(p, n);
}

void *aligned_alloc(size_t alignment, size_t n)
{
    atomic_fetch_add(&calls, 1);
    return __libc_memalign(alignment, n);
}

int posix_memalign(void **p, size_t alignment, size_t n)
{
    atomic_fetch_add(&calls, 1);
    *p = __libc_memalign(alignment, n);
    return *p ? 0 : 12; /* ENOMEM */
}
#endif
