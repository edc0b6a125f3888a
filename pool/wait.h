/* Waiting: one word that one thread raises and others wait for, first awake and then asleep.
 *
 * Everything in which threads of a pool meet (the start of a region, its end, a barrier) is built
 * of rp_flag, and everything that the operating system does for waiting is behind this header.
 *
 *      63      52 51                                  1 0
 *     +----------+------------------------------------+-+
 *     |   aux    |               phase                |a|     a: someone sleeps until this changes
 *     +----------+------------------------------------+-+
 *
 * The phase only grows, and 2^51 of them outlast the machine.  A waiter that is tired of spinning
 * sets bit a by compare-and-swap and sleeps on the lower half of the word (a futex); the exchange
 * that raises the phase takes the bit away and hands it to the raiser, who then wakes.  As mark and
 * phase share a word, neither can miss the other, and a raise that nobody sleeps for costs no
 * system call.
 */
#ifndef RP_POOL_WAIT_H
#define RP_POOL_WAIT_H

#include <stdatomic.h>
#include <stdint.h>

#define RP_FLAG_ASLEEP    UINT64_C(1)
#define RP_FLAG_AUX_SHIFT 52
#define RP_FLAG_AUX_MAX   0xfffu

struct rp_flag {
    _Alignas(64) _Atomic uint64_t word;
};

static inline uint64_t rp_flag_phase(uint64_t word)
{
    return (word & ((UINT64_C(1) << RP_FLAG_AUX_SHIFT) - 1)) >> 1;
}

static inline unsigned rp_flag_aux(uint64_t word)
{
    return (unsigned)(word >> RP_FLAG_AUX_SHIFT);
}

/* Back to phase 0.  Only while no other thread uses the flag. */
void rp_flag_reset(struct rp_flag *flag);

/* Raises the flag to a phase above all earlier ones, and wakes who sleeps for it.  One thread at a
 * time raises a flag.  What it wrote before is seen by whoever sees the phase. */
void rp_flag_raise(struct rp_flag *flag, uint64_t phase, unsigned aux);

/* Returns the word once its phase is `phase` or above.  Spins for spin_ns, then sleeps. */
uint64_t rp_flag_wait(struct rp_flag *flag, uint64_t phase, uint64_t spin_ns);

/* A lock that sleeps, and that a fork cannot leave locked for ever: the word carries the generation
 * of the process, and a lock that is held in the name of an older one (by a thread that stayed in
 * the parent) counts as free.
 *
 *     word = generation << 2 | state */
struct rp_lock {
    /* Written by rp_lock_acquire and rp_lock_release of any thread; the acquiring compare-and-swap
     * pairs with the exchange in rp_lock_release. */
    _Alignas(64) atomic_uint word;
};

void rp_lock_acquire(struct rp_lock *lock, unsigned generation);
void rp_lock_release(struct rp_lock *lock, unsigned generation);

/* How often this process is a fork of one that called rp_generation_init (mod 2^30). */
unsigned rp_generation(void);

/* Starts the counting; 0, or the error number of a system that is out of memory. */
int rp_generation_init(void);

#endif
