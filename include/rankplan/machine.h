/* The machine: instruction sets that may be used, processors that may be used, and the thread pool.
 *
 * The result of a run never depends on anything in this header: every level of instructions and
 * every number of threads gives the same bits.  These choices only move time.
 */
#ifndef RANKPLAN_MACHINE_H
#define RANKPLAN_MACHINE_H

#include <rankplan/status.h>

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Instruction sets, as bits of a mask.  A kernel needs every bit of its own mask.  A bit is only
 * ever set when the processor has the instructions *and* the operating system saves their registers
 * (CPUID and XCR0); RP_ISA_AMX_INT8 only after the system granted tile permission. */
#define RP_ISA_SCALAR      0x000u
#define RP_ISA_AVX2        0x001u /* AVX2, FMA and F16C together */
#define RP_ISA_AVX512      0x002u /* AVX-512 F, BW, DQ and VL together */
#define RP_ISA_AVX_VNNI    0x004u
#define RP_ISA_AVX512_VNNI 0x008u
#define RP_ISA_AMX_INT8    0x010u
#define RP_ISA_NEON        0x100u
#define RP_ISA_DOTPROD     0x200u
#define RP_ISA_I8MM        0x400u

/* What this machine has, found once and kept.  Any thread.  Does not allocate. */
RP_API uint32_t rp_isa_detected(void);

/* What is used unless an option says otherwise: rp_isa_detected(), reduced to the level that the
 * environment variable RANKPLAN_ISA names.  A name that is unknown or above what the machine has
 * fails with RP_ERR_INVALID or RP_ERR_UNSUPPORTED and says which levels there are; it is never
 * silently replaced.  Any thread.  Does not allocate. */
RP_API RP_CHECKED rp_status rp_isa_default(uint32_t *out, rp_error *err);

/* The mask of a level by name: "scalar", "avx2", "avx-vnni", "avx512", "avx512-vnni", "amx",
 * "neon", "dotprod", "i8mm" or "max".  A level holds everything below it that the machine has.
 * RP_ERR_INVALID: no such name.  RP_ERR_UNSUPPORTED: this machine does not have it; the message
 * says why (no such instructions, not enabled by the system, tile permission refused). */
RP_API RP_CHECKED rp_status rp_isa_parse(const char *level, uint32_t *out, rp_error *err);

/* The name of the highest level in the mask, e.g. "avx2".  Static string. */
RP_API const char *rp_isa_name(uint32_t mask);

/* How many processors this process may use: the least of its affinity mask and the CPU quotas of
 * its cgroup and all of that group's ancestors (v1 and v2), rounded down, at least 1. */
RP_API int rp_cpu_count(void);

/* Nanoseconds on the clock that deadlines count on (CLOCK_MONOTONIC: never set back, zero at some
 * point in the past).  Any thread.  Does not allocate. */
RP_API uint64_t rp_now_ns(void);

/* A pool of threads.  One region runs on it at a time; a second caller waits. */
typedef struct rp_pool rp_pool;

typedef struct rp_pool_options {
    size_t struct_size; /* sizeof(rp_pool_options) */
    int n_threads;      /* with the caller; 0 = rp_cpu_count() */
    int pin;            /* 1 (default): each thread stays on one processor of the process's own set;
                           0, or more threads than processors: they float.  The calling thread
                           is never pinned. */
    /* How long an idle thread spins before it sleeps; default 50, 0 = sleep at once. */
    unsigned spin_us;
} rp_pool_options;

/* Fills in the defaults above. */
RP_API void rp_pool_options_init(rp_pool_options *options);

/* Makes a pool.  options may be NULL.  The calling thread of a run is one of the n_threads, so
 * n_threads - 1 threads are started; with 1 there are none.  Allocates.
 * Fails with RP_ERR_INVALID (a negative or absurd count), RP_ERR_NOMEM, RP_ERR_SYSTEM (threads).
 * A child process of fork() may use the pool: it starts threads of its own at its first run there.
 */
RP_API RP_CHECKED rp_status rp_pool_create(const rp_pool_options *options, rp_pool **out,
                                           rp_error *err);

/* Ends the threads and frees the pool.  NULL does nothing.  No run may be under way on it. */
RP_API void rp_pool_destroy(rp_pool *pool);

/* Number of threads, the caller included.  NULL counts as 1. */
RP_API int rp_pool_threads(const rp_pool *pool);

/* What this machine's multiply-adds reach at best: independent chains in registers, on n_threads
 * threads at once, with the instructions of the mask; GFLOP/s, two per multiply-add.  Takes about a
 * tenth of a second, and reads low on a busy machine.  0 when the threads could not be started. */
RP_API double rp_machine_peak_gflops(uint32_t isa, int n_threads);

/* What n_threads threads at once read from memory at best, in GB/s (1e9 bytes): sums over 256 MiB,
 * which are allocated for the call.  Takes about a tenth of a second, and reads low on a busy
 * machine; where a last-level cache holds much of that, it reads high.  0 when memory or threads
 * were not to be had. */
RP_API double rp_machine_peak_gbytes(int n_threads);

#ifdef __cplusplus
}
#endif
#endif
