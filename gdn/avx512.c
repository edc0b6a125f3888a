/* The gated delta rule with AVX-512: 16 of 32 registers accumulate, two panels wide, so that a
 * broadcast serves two products; a panel of 16 tokens or keys is two tiles. */
#define RP_V16_AVX512

#include "pool/transpose_avx2.h"

#define GDN_KERNEL rp_gdn_avx512
#define GDN_NAME   "rp_gdn_f32_8x32__avx512"
#define GDN_ISA    RP_ISA_AVX512
#define GDN_ROWS   8
#define GDN_VECS   2
#define GDN_BLOCK  8

#include "gdn/gdn_tmpl.h"
