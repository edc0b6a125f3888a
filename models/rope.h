/* Rotary positions as config.json describes them.
 *
 * A type ("default", "linear", "llama3", "yarn", "longrope", "proportional") and its keys come to
 * inverse frequencies and a scale of the cosines and sines, once for all lengths.  What depends on
 * the length of a text ("dynamic", and "longrope" where longer texts have other frequencies) is
 * refused: the same text would have other vectors beside a longer one.  So is any key that the type
 * does not have.
 */
#ifndef RP_MODELS_ROPE_H
#define RP_MODELS_ROPE_H

#include "models/build.h"
#include "models/json.h"

enum rp_rope_type {
    RP_ROPE_DEFAULT,
    RP_ROPE_LINEAR,
    RP_ROPE_LLAMA3,
    RP_ROPE_YARN,
    RP_ROPE_LONGROPE,
    RP_ROPE_PROPORTIONAL
};

struct rp_rope_config {
    enum rp_rope_type type;
    double theta;
    double factor;
    double original;             /* original_max_position_embeddings */
    double scale;                /* of cosines and sines */
    double low_freq, high_freq;  /* llama3 */
    double beta_fast, beta_slow; /* yarn */
    double proportion;           /* proportional: of the pairs that are turned */
    int64_t n_rotated;           /* the dims of a head that have frequencies; 0: all of them */
    const json_t *short_factor;  /* longrope: a list of head_dim / 2 numbers of config.json */
};

/* Plain rotary positions: theta^(-2i/head_dim). */
struct rp_rope_config rp_rope_plain(double theta);

/* A base: at least 1 and finite.  Left as it is when the key is absent. */
RP_CHECKED rp_status rp_rope_read_theta(const struct rp_json *json, const char *key,
                                        enum rp_json_need need, double *theta, rp_error *err);

/* Reads the object json.  With theta 0 it must hold "rope_theta", else it must not.  `positions` is
 * max_position_embeddings, which stands for an original length that is not given.  Lists are
 * borrowed from the object.  RP_ERR_UNSUPPORTED for types and keys that are not known,
 * RP_ERR_FORMAT and RP_ERR_MISSING for values. */
RP_CHECKED rp_status rp_rope_read(const struct rp_json *json, double theta, int64_t positions,
                                  int64_t head_dim, struct rp_rope_config *out, rp_error *err);

/* The frequencies of the pairs of head_dim dims. */
void rp_rope_frequencies(const struct rp_rope_config *rope, int64_t head_dim, double *inv_freq);

/* Appends the step that turns the first n_heads heads of x.  Failures go to the build. */
rp_value rp_rope_build(struct rp_build *build, const char *step, rp_value x,
                       const struct rp_rope_config *rope, int64_t n_heads, int64_t head_dim);

#endif
