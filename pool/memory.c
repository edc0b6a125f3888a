/* Aligned memory.
 *
 * Large blocks begin on a huge page and ask for huge pages, but only for those that lie wholly
 * inside: a block of 2 MiB + 64 bytes takes one huge page and one small one, not two huge ones.
 */
#define _GNU_SOURCE 1
#include "pool/memory.h"

#include "pool/fault.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE ((size_t)2 << 20)

void *rp_aligned_alloc(size_t bytes)
{
    const bool large = bytes >= HUGE_PAGE;
    void *p = NULL;
    /* The headroom keeps the rounding in the allocator from wrapping. */
    if (bytes == 0 || bytes > (size_t)PTRDIFF_MAX - 2 * HUGE_PAGE || rp_fault_hit(RP_FAULT_ALLOC))
        return NULL;
    /* The exact size, so that address checkers see the first byte behind it. */
    if (posix_memalign(&p, large ? HUGE_PAGE : RP_CACHE_LINE, bytes))
        return NULL;
#if defined(MADV_HUGEPAGE)
    /* Advice: a system without huge pages refuses it, and nothing but time depends on it. */
    if (large)
        (void)madvise(p, bytes & ~(HUGE_PAGE - 1), MADV_HUGEPAGE);
#endif
    return p;
}

void *rp_aligned_alloc_zero(size_t bytes)
{
    void *p = rp_aligned_alloc(bytes);
    if (p)
        memset(p, 0, bytes);
    return p;
}

void rp_aligned_free(void *p)
{
    free(p);
}
