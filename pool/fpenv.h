/* The floating-point environment of the contract: round to nearest even, no flush to zero, no
 * denormals-are-zero, no exception traps.  A host that runs with other settings (audio and game
 * engines flush denormals, -ffast-math start-up code does too) must neither change our bits nor
 * find its own settings changed.  The exception flags raised in between are not handed on.
 */
#ifndef RP_POOL_FPENV_H
#define RP_POOL_FPENV_H

#include <stdint.h>

#if defined(__x86_64__)
#include <xmmintrin.h>

typedef uint32_t rp_fpenv;

#define RP_MXCSR_CONTRACT 0x1f80u /* all six exceptions masked, everything else 0 */

static inline rp_fpenv rp_fpenv_enter(void)
{
    const rp_fpenv callers = _mm_getcsr();
    _mm_setcsr(RP_MXCSR_CONTRACT);
    return callers;
}

static inline void rp_fpenv_leave(rp_fpenv callers)
{
    _mm_setcsr(callers);
}

#elif defined(__aarch64__)

typedef struct rp_fpenv {
    uint64_t fpcr, fpsr;
} rp_fpenv;

static inline rp_fpenv rp_fpenv_enter(void)
{
    rp_fpenv callers;
    __asm__ volatile("mrs %0, fpcr" : "=r"(callers.fpcr));
    __asm__ volatile("mrs %0, fpsr" : "=r"(callers.fpsr));
    __asm__ volatile("msr fpcr, %0" : : "r"(UINT64_C(0)) : "memory");
    return callers;
}

static inline void rp_fpenv_leave(rp_fpenv callers)
{
    __asm__ volatile("msr fpsr, %0" : : "r"(callers.fpsr) : "memory");
    __asm__ volatile("msr fpcr, %0" : : "r"(callers.fpcr) : "memory");
}

#else
#include <fenv.h>

typedef fenv_t rp_fpenv;

static inline rp_fpenv rp_fpenv_enter(void)
{
    rp_fpenv callers;
    fegetenv(&callers);
    fesetenv(FE_DFL_ENV);
    return callers;
}

static inline void rp_fpenv_leave(rp_fpenv callers)
{
    fesetenv(&callers);
}

#endif
#endif
