/* The attention kernels of this build, and the choice of one. */
#include "attention/internal.h"

static const struct rp_attention_kernel *const kernels[] = {
    &rp_attention_scalar,
#if RP_HAVE_AVX2
    &rp_attention_avx2,
#endif
#if RP_HAVE_AVX512
    &rp_attention_avx512,
#endif
#if RP_HAVE_NEON
    &rp_attention_neon,
#endif
};

const struct rp_attention_kernel *const *rp_attention_all(size_t *n)
{
    *n = sizeof kernels / sizeof *kernels;
    return kernels;
}

const struct rp_attention_kernel *rp_attention_select(uint32_t isa)
{
    const struct rp_attention_kernel *best = &rp_attention_scalar;
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        if ((kernels[i]->isa & ~isa) == 0)
            best = kernels[i];
    }
    return best;
}
