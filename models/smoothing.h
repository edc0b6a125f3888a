/* A model's smoothing factors from a file, as `rankplan quantize` writes them:
 *
 *     {"format": "rankplan-int8", "version": 1, "source": "200 texts of queries.txt",
 *      "weights": {"encoder.layer.0....weight": [1.25, 0.5, ...], ...}}
 *
 * The factors of a weight are as many as it has columns.
 */
#ifndef RP_MODELS_SMOOTHING_H
#define RP_MODELS_SMOOTHING_H

#include "models/json.h"

#define RP_SMOOTHING_FILE "rankplan-int8.json"

struct rp_smoothing {
    struct rp_json file, weights;
    char *path;
    const char *source; /* belongs to the file */
};

/* Opens `path`, or, when that is NULL, the file of the usual name in the folder.  *found says
 * whether there was one; only a path that was asked for must be there.  RP_ERR_MISSING, RP_ERR_IO,
 * RP_ERR_FORMAT, RP_ERR_NOMEM. */
RP_CHECKED rp_status rp_smoothing_open(const char *folder, const char *path,
                                       struct rp_smoothing *out, bool *found, rp_error *err);
/* Also of one that was not found. */
void rp_smoothing_close(struct rp_smoothing *smoothing);

/* For rp_quantize_options.factors; the context is a struct rp_smoothing. */
rp_status rp_smoothing_factors(void *context, const char *weight, size_t n, float *out,
                               rp_error *err);

#endif
