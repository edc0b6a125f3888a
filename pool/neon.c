/* The multiply-add ceiling with NEON: 6 v16 are 24 of 32 registers. */
#define RP_V16_NEON
#define RP_PEAK_NAME      rp_peak__neon
#define RP_PEAK_CHAINS(X) X(0) X(1) X(2) X(3) X(4) X(5)
#include "pool/peak_tmpl.h"
