/* Making the N-th allocation or thread start fail, so that tests can walk through every failure.
 *
 * Always built: the library that is tested is the one that ships, and an unarmed hook costs one
 * relaxed load beside a malloc or a thread start.  Whoever allocates by other means than
 * rp_aligned_alloc can join by one line: `p = rp_fault_hit(RP_FAULT_ALLOC) ? NULL : malloc(n);`.
 *
 *     for (n = 1;; n++) {
 *         rp_fault_arm(RP_FAULT_ALLOC, n);
 *         status = work();
 *         if (!rp_fault_disarm(RP_FAULT_ALLOC)) break;     work() has fewer than n allocations
 *         assert(status == RP_ERR_NOMEM);
 *     }
 */
#ifndef RP_POOL_FAULT_H
#define RP_POOL_FAULT_H

#include <stdbool.h>

enum rp_fault { RP_FAULT_ALLOC, RP_FAULT_THREAD, RP_N_FAULTS };

/* From now on the n-th call (1 = the next) of this kind in the process fails, once. */
void rp_fault_arm(enum rp_fault kind, long n);

/* Takes the hook away; true when the failure has happened. */
bool rp_fault_disarm(enum rp_fault kind);

/* True when the call that is about to be made has to fail.  Any thread. */
bool rp_fault_hit(enum rp_fault kind);

#endif
