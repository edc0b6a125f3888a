/* The table of kernels, and packing. */
#include "gemm/gemm.h"
#include "gemm/kernels.h"
#include "pool/memory.h"

#include <rankplan/machine.h>

#define RP_GEMM_KERNEL(isa, name, mr, nr) {#name, isa, mr, nr, name##_run},
static const struct rp_gemm_kernel kernels[] = {
#include "gemm/kernels.inc"
};
#undef RP_GEMM_KERNEL

enum { N_KERNELS = sizeof kernels / sizeof *kernels };

const struct rp_gemm_kernel *rp_gemm_kernels(size_t *n)
{
    *n = N_KERNELS;
    return kernels;
}

const struct rp_gemm_kernel *rp_gemm_select(uint32_t isa)
{
    size_t i = N_KERNELS - 1;
    while (i > 0 && (kernels[i].isa & ~isa) != 0)
        i--;
    return &kernels[i];
}

_Bool rp_gemm_packed_floats(size_t n, size_t k, size_t *out)
{
    size_t padded, floats, bytes;
    if (!rp_add_ok(n, RP_GEMM_NR - 1, &padded) ||
        !rp_mul_ok(padded / RP_GEMM_NR * RP_GEMM_NR, k, &floats) ||
        !rp_mul_ok(floats, sizeof(float), &bytes))
        return false;
    *out = floats;
    return true;
}

/* 16 x 16 at a time: the sixteen rows are then read a cache line each, and written as sixteen
 * lines. */
void rp_gemm_pack_panel(float *panel, const float *w, size_t ldw, size_t n_rows, size_t k)
{
    for (size_t k0 = 0; k0 < k; k0 += RP_GEMM_NR) {
        const size_t k1 = k - k0 < RP_GEMM_NR ? k : k0 + RP_GEMM_NR;
        for (size_t r = 0; r < RP_GEMM_NR; r++) {
            for (size_t i = k0; i < k1; i++)
                panel[i * RP_GEMM_NR + r] = r < n_rows ? w[r * ldw + i] : 0.0f;
        }
    }
}
