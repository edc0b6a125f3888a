/* Counters of the calls that are left until the one that fails; 0 when there is none to fail. */
#include "pool/fault.h"

#include <stdatomic.h>

/* Written by the test that arms and disarms, and counted down by every thread in rp_fault_hit.
 * Nothing is published through them, so all accesses are relaxed. */
static atomic_long calls_left[RP_N_FAULTS];

void rp_fault_arm(enum rp_fault kind, long n)
{
    atomic_store_explicit(&calls_left[kind], n, memory_order_relaxed);
}

bool rp_fault_disarm(enum rp_fault kind)
{
    return atomic_exchange_explicit(&calls_left[kind], 0, memory_order_relaxed) == 0;
}

bool rp_fault_hit(enum rp_fault kind)
{
    long left = atomic_load_explicit(&calls_left[kind], memory_order_relaxed);
    while (left > 0)
        if (atomic_compare_exchange_weak_explicit(&calls_left[kind], &left, left - 1,
                                                  memory_order_relaxed, memory_order_relaxed))
            return left == 1;
    return false;
}
