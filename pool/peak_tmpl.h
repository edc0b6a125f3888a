/* Chains of multiply-adds over v16.  A file that includes this has chosen its v16 and says
 *
 *     RP_PEAK_NAME           the function
 *     RP_PEAK_CHAINS(X)      X(0) X(1) ...: as many v16 as fill the registers, which is more chains
 * than units x latency on every core so far
 */
#include "pool/peak.h"
#include "pool/v16.h"

/* Every lane of every chain starts from another number, so that none can be left out as a copy of
 * another. */
size_t RP_PEAK_NAME(size_t rounds, float *sink)
{
    const v16 a = v_set1(0.999f), b = v_set1(sink[0]);
    const v16 start = v_load(sink);
    size_t chains = 0;
    /* clang-format off */
#define START(i) v16 c##i = v_mul(start, v_set1((float)(i) + 0.5f)); chains++;
#define STEP(i)  c##i = v_fma(c##i, a, b);
#define END(i)   sum = v_add(sum, c##i);
    /* clang-format on */
    RP_PEAK_CHAINS(START)
    for (size_t r = 0; r < rounds; r++) {
        RP_PEAK_CHAINS(STEP)
        RP_PEAK_CHAINS(STEP)
    }
    v16 sum = v_zero();
    RP_PEAK_CHAINS(END)
    v_store(sink, sum);
    return rounds * chains * 2 * 16;
}
