/* Attention with AVX2 and FMA: 12 of 16 registers accumulate, two hold the line of B. */
#define RP_V16_AVX2

#include "pool/transpose_avx2.h"

#define ATT_KERNEL rp_attention_avx2
#define ATT_NAME   "rp_attention_f32_6x16__avx2"
#define ATT_ISA    RP_ISA_AVX2
#define ATT_ROWS   6
#define ATT_VECS   1
#define ATT_BLOCK  8

#include "attention/attention_tmpl.h"
