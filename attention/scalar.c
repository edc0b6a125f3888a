/* Attention in plain C: the reference, and the kernel of machines without vectors. */
#define RP_V16_SCALAR

#include <stddef.h>

#define ATT_KERNEL rp_attention_scalar
#define ATT_NAME   "rp_attention_f32_2x16__scalar"
#define ATT_ISA    RP_ISA_SCALAR
#define ATT_ROWS   2
#define ATT_VECS   1
#define ATT_BLOCK  1

static inline void transpose_block(float *to, const float *from, size_t ld)
{
    (void)ld;
    *to = *from;
}

#include "attention/attention_tmpl.h"
