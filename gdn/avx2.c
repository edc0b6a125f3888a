/* The gated delta rule with AVX2 and FMA: 12 of 16 registers accumulate, two hold the line. */
#define RP_V16_AVX2

#include "pool/transpose_avx2.h"

#define GDN_KERNEL rp_gdn_avx2
#define GDN_NAME   "rp_gdn_f32_6x16__avx2"
#define GDN_ISA    RP_ISA_AVX2
#define GDN_ROWS   6
#define GDN_VECS   1
#define GDN_BLOCK  8

#include "gdn/gdn_tmpl.h"
