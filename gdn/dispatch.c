/* The kernels of the gated delta rule in this build, and the choice of one. */
#include "gdn/internal.h"

static const struct rp_gdn_kernel *const kernels[] = {
    &rp_gdn_scalar,
#if RP_HAVE_AVX2
    &rp_gdn_avx2,
#endif
#if RP_HAVE_AVX512
    &rp_gdn_avx512,
#endif
#if RP_HAVE_NEON
    &rp_gdn_neon,
#endif
};

const struct rp_gdn_kernel *const *rp_gdn_all(size_t *n)
{
    *n = sizeof kernels / sizeof *kernels;
    return kernels;
}

const struct rp_gdn_kernel *rp_gdn_select(uint32_t isa)
{
    const struct rp_gdn_kernel *best = &rp_gdn_scalar;
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        if ((kernels[i]->isa & ~isa) == 0)
            best = kernels[i];
    }
    return best;
}
