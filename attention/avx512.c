/* Attention with AVX-512: 24 of 32 registers accumulate, two panels wide, so that a broadcast
 * serves two products. */
#define RP_V16_AVX512

#include "pool/transpose_avx2.h"

#define ATT_KERNEL rp_attention_avx512
#define ATT_NAME   "rp_attention_f32_12x32__avx512"
#define ATT_ISA    RP_ISA_AVX512
#define ATT_ROWS   12
#define ATT_VECS   2
#define ATT_BLOCK  8

#include "attention/attention_tmpl.h"
