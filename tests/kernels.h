/* The kernels that a test goes through: its own, then those of a table that this machine can run,
 * the fastest last.  Tables differ in their type alone, so this is made for each of them. */
#ifndef RP_TESTS_KERNELS_H
#define RP_TESTS_KERNELS_H

#include <rankplan/machine.h>

#include <stddef.h>

#define MAX_KERNELS 8

/* size_t usable(const type **list): fills the list of MAX_KERNELS and returns how many they are. */
#define DEFINE_USABLE(type, own, table)                                                            \
    static size_t usable(const type **list)                                                        \
    {                                                                                              \
        size_t n, kept = 0;                                                                        \
        const type *const *all = table(&n);                                                        \
        assert_in_range(n, 1, MAX_KERNELS - 1);                                                    \
        list[kept++] = own;                                                                        \
        for (size_t i = 0; i < n; i++) {                                                           \
            if ((all[i]->isa & ~rp_isa_detected()) == 0)                                           \
                list[kept++] = all[i];                                                             \
        }                                                                                          \
        return kept;                                                                               \
    }

#endif
