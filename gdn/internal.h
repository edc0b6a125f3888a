/* The kernels of the gated delta rule, and how their scratch is laid out. */
#ifndef RP_GDN_INTERNAL_H
#define RP_GDN_INTERNAL_H

#include "gdn/gdn.h"

#include <rankplan/machine.h>

extern const struct rp_gdn_kernel rp_gdn_scalar;
#if RP_HAVE_AVX2
extern const struct rp_gdn_kernel rp_gdn_avx2;
#endif
#if RP_HAVE_AVX512
extern const struct rp_gdn_kernel rp_gdn_avx512;
#endif
#if RP_HAVE_NEON
extern const struct rp_gdn_kernel rp_gdn_neon;
#endif

/* All in floats; each offset is a multiple of 16, so that every part begins on a line of its own.
 * C is RP_GDN_CHUNK.  Tokens, keys and value columns come in panels of 16; what a panel has of
 * tokens or columns that are not there is zeros, or of no account.
 *
 *     once a key head and chunk:
 *       k_rows, q_rows  [C][padded_dim], [16][padded_dim]: normed, rows of 16 queries at a time
 *       keys, queries   a panel of tokens each: [padded_dim][16]
 *       kk, qk          a panel of tokens t each: [C][16], u downwards: G[t][u] and H[t][u]
 *     for one value head at a time:
 *       ratio           as kk: R[t][u]
 *       weights_k, _q   as kk: R G and R H
 *       updates         a panel of keys i each: [C][16], t downwards: R[last][t] k_t[i]
 *       deltas          a panel of columns each, as many as a tile is wide: [C][16]
 *     all along, for each value head:
 *       state           a panel of columns each: [key_dim][16]
 */
struct rp_gdn_scratch_layout {
    size_t k_rows, q_rows, keys, queries, kk, qk, ratio, weights_k, weights_q, updates, deltas,
        state;
    size_t total;
    size_t padded_dim; /* key_dim to 16 */
    size_t head_state; /* from a value head's state to the next one's */
};

/* False when a number is 0, heads do not divide, or a size does not fit in size_t. */
bool rp_gdn_lay_out(const struct rp_gdn_args *shape, struct rp_gdn_scratch_layout *out);

#endif
