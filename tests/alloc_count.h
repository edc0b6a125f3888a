/* Counting allocations: every malloc, calloc, realloc, posix_memalign, aligned_alloc and free of
 * the process. */
#ifndef RP_TESTS_ALLOC_COUNT_H
#define RP_TESTS_ALLOC_COUNT_H

#include <stdbool.h>
#include <stddef.h>

/* False where a sanitizer owns the allocator; the counting tests then skip. */
bool alloc_count_available(void);

/* Calls that allocate so far, of all threads. */
size_t alloc_count(void);

/* Bytes that are allocated now, as the allocator rounds them up, and the most that there were since
 * alloc_peak_reset(). */
size_t alloc_bytes(void);
size_t alloc_peak(void);
void alloc_peak_reset(void);

#endif
