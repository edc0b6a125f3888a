/* The table of kernels. */
#include "qgemm/qgemm.h"
#include "qgemm/kernels.h"

#include <rankplan/machine.h>

#define RP_QGEMM_KERNEL(isa, name, mr, nr) {#name, isa, mr, nr, name##_run, name##_peak},
static const struct rp_qgemm_kernel kernels[] = {
#include "qgemm/kernels.inc"
};
#undef RP_QGEMM_KERNEL

enum { N_KERNELS = sizeof kernels / sizeof *kernels };

const struct rp_qgemm_kernel *rp_qgemm_kernels(size_t *n)
{
    *n = N_KERNELS;
    return kernels;
}

const struct rp_qgemm_kernel *rp_qgemm_select(uint32_t isa)
{
    size_t i = N_KERNELS - 1;
    while (i > 0 && (kernels[i].isa & ~isa) != 0)
        i--;
    return &kernels[i];
}
