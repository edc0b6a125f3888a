/* Similarities.  Too little work to be worth an instruction set: one portable loop over 16 lanes.
 */
#include "text/similarity.h"

#include <math.h>

#define LANES 16

/* The contract's tree: lane j meets lane j + 8, then + 4, + 2, + 1. */
static float sum_lanes(float *lane)
{
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++)
            lane[j] += lane[j + half];
    return lane[0];
}

static float dot(const float *a, const float *b, size_t n)
{
    float lane[LANES] = {0};
    for (size_t i = 0; i < n; i++)
        lane[i % LANES] = fmaf(a[i], b[i], lane[i % LANES]);
    return sum_lanes(lane);
}

static float distance(const float *a, const float *b, size_t n, int squared)
{
    float lane[LANES] = {0};
    for (size_t i = 0; i < n; i++) {
        const float d = a[i] - b[i];
        lane[i % LANES] = squared ? fmaf(d, d, lane[i % LANES]) : lane[i % LANES] + fabsf(d);
    }
    return sum_lanes(lane);
}

float rp_similarity_of(rp_similarity kind, const float *a, const float *b, size_t n)
{
    switch (kind) {
    case RP_SIM_DOT: return dot(a, b, n);
    case RP_SIM_EUCLIDEAN: return -sqrtf(distance(a, b, n, 1));
    case RP_SIM_MANHATTAN: return -distance(a, b, n, 0);
    case RP_SIM_COSINE: break;
    }
    const float norms = sqrtf(dot(a, a, n)) * sqrtf(dot(b, b, n));
    return norms > 0 ? dot(a, b, n) / norms : 0;
}
