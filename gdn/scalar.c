/* The gated delta rule in plain C: the reference, and the kernel of machines without vectors. */
#define RP_V16_SCALAR

#include <stddef.h>

#define GDN_KERNEL rp_gdn_scalar
#define GDN_NAME   "rp_gdn_f32_2x16__scalar"
#define GDN_ISA    RP_ISA_SCALAR
#define GDN_ROWS   2
#define GDN_VECS   1
#define GDN_BLOCK  1

static inline void transpose_block(float *to, const float *from, size_t ld)
{
    (void)ld;
    *to = *from;
}

#include "gdn/gdn_tmpl.h"
