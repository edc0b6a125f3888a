/* Prototypes of all kernels of the list. */
#ifndef RP_QGEMM_KERNELS_H
#define RP_QGEMM_KERNELS_H

#include "qgemm/qgemm.h"

#define RP_QGEMM_KERNEL(isa, name, mr, nr)                                                         \
    rp_qgemm_run_fn name##_run;                                                                    \
    rp_qgemm_peak_fn name##_peak;
#include "qgemm/kernels.inc"
#undef RP_QGEMM_KERNEL

#endif
