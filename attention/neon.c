/* Attention with NEON: 24 of 32 registers accumulate, four hold the line of B. */
#define RP_V16_NEON

#include "pool/transpose_neon.h"

#define ATT_KERNEL rp_attention_neon
#define ATT_NAME   "rp_attention_f32_6x16__neon"
#define ATT_ISA    RP_ISA_NEON
#define ATT_ROWS   6
#define ATT_VECS   1
#define ATT_BLOCK  4

#include "attention/attention_tmpl.h"
