/* The floating-point environment of the contract: round to nearest even, no flush to zero, no
 * denormals-are-zero, no exception traps.  Every worker enters it for a region, and so does every
 * public function that computes or reads a number outside of one.  A host that runs with other
 * settings (audio and game engines flush denormals, -ffast-math start-up code does too) must
 * neither change our bits nor find its own settings changed.  The exception flags raised in between
 * are not handed on.
 */
#ifndef RP_POOL_FPENV_H
#define RP_POOL_FPENV_H

#include <stdint.h>

#if defined(__x86_64__)
#include <xmmintrin.h>

/* The x87 computes nothing here, but the C library asks it how to round when it reads a number. */
typedef struct rp_fpenv {
    uint32_t mxcsr;
    uint16_t x87;
} rp_fpenv;

#define RP_MXCSR_CONTRACT 0x1f80u /* all six exceptions masked, everything else 0 */
#define RP_X87_CONTRACT   0x037fu /* the same, with the full precision */

static inline rp_fpenv rp_fpenv_enter(void)
{
    const uint16_t contract = RP_X87_CONTRACT;
    rp_fpenv callers;
    callers.mxcsr = _mm_getcsr();
    __asm__ volatile("fnstcw %0" : "=m"(callers.x87));
    __asm__ volatile("fldcw %0" : : "m"(contract));
    _mm_setcsr(RP_MXCSR_CONTRACT);
    return callers;
}

static inline void rp_fpenv_leave(rp_fpenv callers)
{
    _mm_setcsr(callers.mxcsr);
    __asm__ volatile("fldcw %0" : : "m"(callers.x87));
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
