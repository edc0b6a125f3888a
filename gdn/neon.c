/* The gated delta rule with NEON: 24 of 32 registers accumulate, four hold the line. */
#define RP_V16_NEON

#include "pool/transpose_neon.h"

#define GDN_KERNEL rp_gdn_neon
#define GDN_NAME   "rp_gdn_f32_6x16__neon"
#define GDN_ISA    RP_ISA_NEON
#define GDN_ROWS   6
#define GDN_VECS   1
#define GDN_BLOCK  4

#include "gdn/gdn_tmpl.h"
