/* The allocator's functions, taken over for the tests that link this file: counted, then passed on.
 */
#include "tests/alloc_count.h"

#include <malloc.h>
#include <stdatomic.h>
#include <stdint.h>

static atomic_size_t calls, live, peak;

size_t alloc_count(void)
{
    return atomic_load(&calls);
}

size_t alloc_bytes(void)
{
    return atomic_load(&live);
}

size_t alloc_peak(void)
{
    return atomic_load(&peak);
}

void alloc_peak_reset(void)
{
    atomic_store(&peak, atomic_load(&live));
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
void __libc_free(void *);
/* Visible, so that what a shared library allocates and another frees is counted at both ends. */
#define HOOK __attribute__((visibility("default")))
HOOK void *malloc(size_t);
HOOK void *calloc(size_t, size_t);
HOOK void *realloc(void *, size_t);
HOOK void *aligned_alloc(size_t, size_t);
HOOK int posix_memalign(void **, size_t, size_t);
HOOK void free(void *);

/* Blocks that begin on a huge page, with the sizes that were asked for: the allocator finds such a
 * place by taking up to a huge page too much, of which it keeps some as usable, and nobody touches.
 */
#define HUGE_PAGE ((uintptr_t)2 << 20)
static struct {
    _Atomic(void *) p;
    size_t bytes;
} huge[1024];

static void note_huge(void *p, size_t bytes)
{
    for (size_t i = 0; p && i < sizeof huge / sizeof *huge; i++) {
        void *none = NULL;
        if (!atomic_compare_exchange_strong(&huge[i].p, &none, p))
            continue;
        huge[i].bytes = bytes;
        return;
    }
}

/* What a block counts for; `ends`: it is about to be freed. */
static size_t bytes_of(void *p, bool ends)
{
    if (p && (uintptr_t)p % HUGE_PAGE == 0)
        for (size_t i = 0; i < sizeof huge / sizeof *huge; i++)
            if (atomic_load(&huge[i].p) == p) {
                const size_t bytes = huge[i].bytes;
                if (ends)
                    atomic_store(&huge[i].p, NULL);
                return bytes;
            }
    return malloc_usable_size(p);
}

static void *counted(void *p)
{
    atomic_fetch_add(&calls, 1);
    const size_t bytes = bytes_of(p, false);
    const size_t now = atomic_fetch_add(&live, bytes) + bytes;
    size_t most = atomic_load(&peak);
    while (now > most && !atomic_compare_exchange_weak(&peak, &most, now))
        ;
    return p;
}

void *malloc(size_t n)
{
    return counted(__libc_malloc(n));
}

void *calloc(size_t n, size_t size)
{
    return counted(__libc_calloc(n, size));
}

void *realloc(void *p, size_t n)
{
    const size_t old = bytes_of(p, true);
    void *q = __libc_realloc(p, n);
    if (q || n == 0)
        atomic_fetch_sub(&live, old);
    return counted(q);
}

void *aligned_alloc(size_t alignment, size_t n)
{
    return counted(__libc_memalign(alignment, n));
}

int posix_memalign(void **p, size_t alignment, size_t n)
{
    *p = __libc_memalign(alignment, n);
    if (alignment >= HUGE_PAGE)
        note_huge(*p, n);
    counted(*p);
    return *p ? 0 : 12; /* ENOMEM */
}

void free(void *p)
{
    atomic_fetch_sub(&live, bytes_of(p, true));
    __libc_free(p);
}
#endif
