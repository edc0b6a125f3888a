/* Counting allocations: every malloc, calloc, realloc, posix_memalign and aligned_alloc of the
 * process. */
#ifndef RP_TESTS_ALLOC_COUNT_H
#define RP_TESTS_ALLOC_COUNT_H

#include <stdbool.h>
#include <stddef.h>

/* False where a sanitizer owns the allocator; the counting tests then skip. */
bool alloc_count_available(void);

/* Calls so far, of all threads. */
size_t alloc_count(void);

#endif
