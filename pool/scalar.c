/* The multiply-add ceiling without vectors. */
#define RP_V16_SCALAR
#define RP_PEAK_NAME      rp_peak__scalar
#define RP_PEAK_CHAINS(X) X(0)
#include "pool/peak_tmpl.h"
