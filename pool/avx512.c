/* The multiply-add ceiling with AVX-512: 12 of 32 registers. */
#define RP_V16_AVX512
#define RP_PEAK_NAME      rp_peak__avx512
#define RP_PEAK_CHAINS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#include "pool/peak_tmpl.h"
