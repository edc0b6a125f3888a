/* The multiply-add ceiling with AVX2: 6 v16 are 12 of 16 registers. */
#define RP_V16_AVX2
#define RP_PEAK_NAME      rp_peak__avx2
#define RP_PEAK_CHAINS(X) X(0) X(1) X(2) X(3) X(4) X(5)
#include "pool/peak_tmpl.h"
