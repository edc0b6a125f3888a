/* Spinning by the clock, sleeping on futexes, and counting forks. */
#define _GNU_SOURCE 1
#include "pool/wait.h"

#include <rankplan/machine.h>

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

_Static_assert(sizeof(atomic_uint) == 4 && ATOMIC_INT_LOCK_FREE == 2, "futex words");
_Static_assert(sizeof(_Atomic uint64_t) == 8 && ATOMIC_LLONG_LOCK_FREE == 2, "flag words");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the lower half of a flag comes first");

/* ---- the operating system -------------------------------------------------------------------- */

/* Sleeps while *word is `seen`.  May return for no reason (a signal): callers look again. */
static void futex_sleep(const void *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake(const void *word, int n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

/* Tells the core that this is a spin loop.  isb and not yield, which most Arm cores ignore. */
static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

/* ---- flags ----------------------------------------------------------------------------------- */

/* The clock is read once in so many polls: a pause takes 15 to 45 ns, a reading 20 to 40. */
#define POLLS_PER_READING 32

void rp_flag_reset(struct rp_flag *flag)
{
    atomic_store_explicit(&flag->word, 0, memory_order_relaxed);
}

void rp_flag_raise(struct rp_flag *flag, uint64_t phase, unsigned aux)
{
    const uint64_t word = (uint64_t)aux << RP_FLAG_AUX_SHIFT | phase << 1;
    /* Release: pairs with the acquire loads in rp_flag_wait and sleep_until. */
    if (atomic_exchange_explicit(&flag->word, word, memory_order_release) & RP_FLAG_ASLEEP)
        futex_wake(&flag->word, INT_MAX);
}

static uint64_t sleep_until(struct rp_flag *flag, uint64_t phase)
{
    /* Acquire, in the loads and the compare-and-swap: pairs with the exchange in rp_flag_raise.
     * The mark is added by a read-modify-write, so waiters after it still see what was released. */
    uint64_t word = atomic_load_explicit(&flag->word, memory_order_acquire);
    while (rp_flag_phase(word) < phase) {
        if (!(word & RP_FLAG_ASLEEP) &&
            !atomic_compare_exchange_weak_explicit(&flag->word, &word, word | RP_FLAG_ASLEEP,
                                                   memory_order_acquire, memory_order_acquire))
            continue;
        futex_sleep(&flag->word, (uint32_t)(word | RP_FLAG_ASLEEP));
        word = atomic_load_explicit(&flag->word, memory_order_acquire);
    }
    return word;
}

uint64_t rp_flag_wait(struct rp_flag *flag, uint64_t phase, uint64_t spin_ns)
{
    uint64_t deadline = 0; /* set at the first reading: short waits never look at the clock */
    for (unsigned polls = 1;; polls++) {
        /* Pairs with the exchange in rp_flag_raise. */
        const uint64_t word = atomic_load_explicit(&flag->word, memory_order_acquire);
        if (rp_flag_phase(word) >= phase)
            return word;
        if (spin_ns == 0)
            return sleep_until(flag, phase);
        if (polls % POLLS_PER_READING == 0) {
            const uint64_t now = rp_now_ns();
            if (deadline == 0)
                deadline = now + spin_ns;
            else if (now >= deadline)
                return sleep_until(flag, phase);
        }
        relax();
    }
}

/* ---- the lock -------------------------------------------------------------------------------- */

enum { FREE = 0, HELD = 1, CONTENDED = 2 /* held, and someone sleeps for it */ };

void rp_lock_acquire(struct rp_lock *lock, unsigned generation)
{
    const unsigned base = generation << 2;
    unsigned mine = base | HELD;
    unsigned word = atomic_load_explicit(&lock->word, memory_order_relaxed);
    for (;;) {
        if (word >> 2 != generation || (word & 3) == FREE) {
            /* Acquire: pairs with the exchange in rp_lock_release. */
            if (atomic_compare_exchange_weak_explicit(&lock->word, &word, mine,
                                                      memory_order_acquire, memory_order_relaxed))
                return;
            continue;
        }
        if ((word & 3) == HELD &&
            !atomic_compare_exchange_weak_explicit(&lock->word, &word, base | CONTENDED,
                                                   memory_order_relaxed, memory_order_relaxed))
            continue;
        futex_sleep(&lock->word, base | CONTENDED);
        /* Others may sleep still, and only the word can tell the one who releases. */
        mine = base | CONTENDED;
        word = atomic_load_explicit(&lock->word, memory_order_relaxed);
    }
}

void rp_lock_release(struct rp_lock *lock, unsigned generation)
{
    /* Release: pairs with the acquiring compare-and-swap in rp_lock_acquire. */
    const unsigned word =
        atomic_exchange_explicit(&lock->word, generation << 2 | FREE, memory_order_release);
    if ((word & 3) == CONTENDED)
        futex_wake(&lock->word, 1);
}

/* ---- forks ----------------------------------------------------------------------------------- */

/* Written by after_fork, in a child that has one thread yet; read by rp_generation.  Relaxed: the
 * threads that could read it are started later, which orders them. */
static atomic_uint generation;
static int init_error; /* written once, by init_once */

static void after_fork(void)
{
    atomic_fetch_add_explicit(&generation, 1, memory_order_relaxed);
}

static void init_once(void)
{
    init_error = pthread_atfork(NULL, NULL, after_fork);
}

int rp_generation_init(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, init_once);
    return init_error;
}

unsigned rp_generation(void)
{
    return atomic_load_explicit(&generation, memory_order_relaxed) & 0x3fffffffu;
}
