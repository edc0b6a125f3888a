/* Numbers that look random and are the same everywhere: what calibrations run on when nobody gives
 * them texts. */
#ifndef RP_POOL_RANDOM_H
#define RP_POOL_RANDOM_H

#include <stdint.h>

/* splitmix64 (https://prng.di.unimi.it/splitmix64.c): the state is any number, the seed. */
static inline uint64_t rp_random_next(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

#endif
