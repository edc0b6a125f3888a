/* Similarity of two vectors, in the order of the numeric contract (16 partial sums, one tree). */
#ifndef RP_TEXT_SIMILARITY_H
#define RP_TEXT_SIMILARITY_H

#include <rankplan/model.h>

/* Higher is more alike: cosine, dot product, negated Euclidean or Manhattan distance.  The cosine
 * with a vector of zeros is 0. */
float rp_similarity_of(rp_similarity kind, const float *a, const float *b, size_t n);

#endif
