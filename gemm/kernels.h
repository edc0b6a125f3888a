/* Prototypes of all kernels of the list. */
#ifndef RP_GEMM_KERNELS_H
#define RP_GEMM_KERNELS_H

#include "gemm/gemm.h"

#define RP_GEMM_KERNEL(isa, name, mr, nr) rp_gemm_run_fn name##_run;
#include "gemm/kernels.inc"
#undef RP_GEMM_KERNEL

#endif
