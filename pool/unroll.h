/* UNROLL before a loop of known length around registers, which must be gone before registers are
 * given out.  Plain C has none to give out and instrumented code does not keep to them: both would
 * only grow, so there it says nothing and PLAIN_LOOPS is 1.  For kernel templates, whose files have
 * chosen a v16. */
#ifndef RP_POOL_UNROLL_H
#define RP_POOL_UNROLL_H

#if defined(RP_V16_SCALAR) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PLAIN_LOOPS 1
#else
#define PLAIN_LOOPS 0
#endif
#if PLAIN_LOOPS
#define UNROLL
#elif defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#endif
