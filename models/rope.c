/* See rope.h.  The formulas are those of the papers as transformers applies them (5.17); logarithms
 * and powers are this library's, so that the bits are the same everywhere. */
#include "models/rope.h"

#include "ops/rope.h"
#include "pool/error.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TWO_PI 0x1.921fb54442d18p+2

/* ---- reading ----------------------------------------------------------------------------------
 */

#define MAX_KEYS 8

/* What a type may say beside its name and theta. */
static const struct rope_type {
    const char *name;
    enum rp_rope_type type;
    const char *keys[MAX_KEYS];
} types[] = {
    {"default", RP_ROPE_DEFAULT, {NULL}},
    {"linear", RP_ROPE_LINEAR, {"factor"}},
    {"llama3",
     RP_ROPE_LLAMA3,
     {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}},
    {"yarn",
     RP_ROPE_YARN,
     {"factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow",
      "mscale", "mscale_all_dim", "truncate"}},
    {"longrope",
     RP_ROPE_LONGROPE,
     {"factor", "original_max_position_embeddings", "attention_factor", "short_factor",
      "long_factor"}},
    {"proportional", RP_ROPE_PROPORTIONAL, {"factor"}},
};

static rp_status find_type(const struct rp_json *json, const struct rope_type **out, rp_error *err)
{
    static const char *const spellings[] = {"rope_type", "type"};
    const char *name = NULL, *key = spellings[0];
    char shown[RP_SHOWN_BYTES];
    for (size_t i = 0; i < 2 && !name; i++) {
        key = spellings[i];
        RP_TRY(rp_json_string(json, key, RP_JSON_OPTIONAL, &name, err));
    }
    *out = &types[0];
    if (!name)
        return RP_OK;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].name, name) == 0) {
            *out = &types[i];
            return RP_OK;
        }
    if (strcmp(name, "dynamic") == 0)
        return rp_fail(err, RP_ERR_UNSUPPORTED,
                       "%s: key \"%s\" is \"dynamic\": frequencies that depend on the length of "
                       "the texts are not run",
                       json->file, key);
    return rp_fail(err, RP_ERR_UNSUPPORTED,
                   "%s: key \"%s\" is \"%s\", which is none of default, linear, llama3, yarn, "
                   "longrope, proportional",
                   json->file, key, rp_show(name, shown));
}

static bool is_key_of(const struct rope_type *type, const char *key)
{
    static const char *const always[] = {"rope_type", "type", "rope_theta",
                                         "partial_rotary_factor"};
    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        if (strcmp(always[i], key) == 0)
            return true;
    for (size_t i = 0; i < MAX_KEYS && type->keys[i]; i++)
        if (strcmp(type->keys[i], key) == 0)
            return true;
    return false;
}

static rp_status refuse_unknown(const struct rp_json *json, const struct rope_type *type,
                                rp_error *err)
{
    const char *key;
    json_t *value;
    char shown[RP_SHOWN_BYTES];
    json_object_foreach(json->object, key, value)
    {
        if (!json_is_null(value) && !is_key_of(type, key))
            return rp_fail(err, RP_ERR_UNSUPPORTED,
                           "%s: key \"%s\" is not one that rotary positions of type \"%s\" have",
                           json->file, rp_show(key, shown), type->name);
    }
    return RP_OK;
}

/* A number from min to 2^20. */
static rp_status number(const struct rp_json *json, const char *key, enum rp_json_need need,
                        double min, double *value, rp_error *err)
{
    double x = *value;
    char shown[RP_JSON_SHOWN_BYTES];
    RP_TRY(rp_json_real(json, key, need, &x, err));
    const json_t *v = rp_json_get(json, key);
    if (v && !(x >= min && x <= RP_ROPE_MOST))
        return rp_fail(err, RP_ERR_FORMAT, "%s: key \"%s\" is %s, out of range", json->file, key,
                       rp_json_show(v, shown));
    *value = x;
    return RP_OK;
}

#define SMALLEST (1 / RP_ROPE_MOST)

rp_status rp_rope_read_theta(const struct rp_json *json, const char *key, enum rp_json_need need,
                             double *theta, rp_error *err)
{
    double x = *theta;
    char shown[RP_JSON_SHOWN_BYTES];
    RP_TRY(rp_json_real(json, key, need, &x, err));
    const json_t *v = rp_json_get(json, key);
    if (v && !(x >= 1 && isfinite(x)))
        return rp_fail(err, RP_ERR_FORMAT,
                       "%s: key \"%s\" is %s, but the base of rotary positions is at least 1",
                       json->file, key, rp_json_show(v, shown));
    *theta = x;
    return RP_OK;
}

/* The length that the model was trained for before its frequencies were scaled. */
static rp_status read_original(const struct rp_json *json, int64_t positions, double *out,
                               rp_error *err)
{
    int64_t original = positions;
    RP_TRY(rp_json_whole(json, "original_max_position_embeddings", RP_JSON_OPTIONAL, 2, INT32_MAX,
                         &original, err));
    *out = (double)original;
    return RP_OK;
}

static double natural_log(double x)
{
    return x >= 1 ? rp_rope_log(x) : -rp_rope_log(1 / x);
}

static rp_status read_llama3(const struct rp_json *json, int64_t positions,
                             struct rp_rope_config *rope, rp_error *err)
{
    RP_TRY(number(json, "factor", RP_JSON_REQUIRED, SMALLEST, &rope->factor, err));
    RP_TRY(number(json, "low_freq_factor", RP_JSON_REQUIRED, SMALLEST, &rope->low_freq, err));
    RP_TRY(number(json, "high_freq_factor", RP_JSON_REQUIRED, SMALLEST, &rope->high_freq, err));
    if (!(rope->low_freq < rope->high_freq))
        return rp_fail(err, RP_ERR_FORMAT,
                       "%s: key \"high_freq_factor\" is not above low_freq_factor", json->file);
    return read_original(json, positions, &rope->original, err);
}

/* 1 for a scale up to 1, else grows with its logarithm. */
static double magnitude(double scale, double by)
{
    return scale <= 1 ? 1 : 0.1 * by * natural_log(scale) + 1;
}

static rp_status read_yarn(const struct rp_json *json, int64_t positions,
                           struct rp_rope_config *rope, rp_error *err)
{
    double mscale = 0, mscale_all = 0, scale = 0;
    bool truncate = true;
    RP_TRY(read_original(json, positions, &rope->original, err));
    rope->factor = (double)positions / rope->original;
    /* null is the ratio of the lengths; no key at all is half a description. */
    RP_TRY(number(json, "factor",
                  json_object_get(json->object, "factor") ? RP_JSON_OPTIONAL : RP_JSON_REQUIRED,
                  SMALLEST, &rope->factor, err));
    rope->beta_fast = 32;
    rope->beta_slow = 1;
    RP_TRY(number(json, "beta_fast", RP_JSON_OPTIONAL, SMALLEST, &rope->beta_fast, err));
    RP_TRY(number(json, "beta_slow", RP_JSON_OPTIONAL, SMALLEST, &rope->beta_slow, err));
    RP_TRY(number(json, "mscale", RP_JSON_OPTIONAL, 0, &mscale, err));
    RP_TRY(number(json, "mscale_all_dim", RP_JSON_OPTIONAL, 0, &mscale_all, err));
    RP_TRY(number(json, "attention_factor", RP_JSON_OPTIONAL, SMALLEST, &scale, err));
    RP_TRY(rp_json_bool(json, "truncate", RP_JSON_OPTIONAL, &truncate, err));
    if (!truncate)
        return rp_fail(err, RP_ERR_UNSUPPORTED,
                       "%s: key \"truncate\" is false, but bounds between pairs are not run",
                       json->file);
    if (rope->theta <= 1)
        return rp_fail(err, RP_ERR_FORMAT, "%s: key \"rope_theta\" is 1, but yarn asks for more",
                       json->file);
    if (scale == 0)
        scale = mscale > 0 && mscale_all > 0
                    ? magnitude(rope->factor, mscale) / magnitude(rope->factor, mscale_all)
                    : magnitude(rope->factor, 1);
    rope->scale = scale;
    return RP_OK;
}

static rp_status read_list(const struct rp_json *json, const char *key, int64_t n,
                           const json_t **out, rp_error *err)
{
    const json_t *list = rp_json_get(json, key);
    bool good = json_is_array(list) && json_array_size(list) == (size_t)n;
    for (size_t i = 0; good && i < (size_t)n; i++) {
        const json_t *x = json_array_get(list, i);
        good = json_is_number(x) && json_number_value(x) >= SMALLEST &&
               json_number_value(x) <= RP_ROPE_MOST;
    }
    if (!good)
        return rp_fail(err, list ? RP_ERR_FORMAT : RP_ERR_MISSING,
                       "%s: key \"%s\" is not a list of %" PRId64 " factors", json->file, key, n);
    *out = list;
    return RP_OK;
}

static rp_status read_longrope(const struct rp_json *json, int64_t positions, int64_t head_dim,
                               struct rp_rope_config *rope, rp_error *err)
{
    const json_t *longer;
    double scale = 0;
    RP_TRY(read_original(json, positions, &rope->original, err));
    RP_TRY(read_list(json, "short_factor", head_dim / 2, &rope->short_factor, err));
    RP_TRY(read_list(json, "long_factor", head_dim / 2, &longer, err));
    if ((double)positions > rope->original)
        return rp_fail(
            err, RP_ERR_UNSUPPORTED,
            "%s: key \"rope_type\" is \"longrope\" and max_position_embeddings is %" PRId64
            ": texts of more than original_max_position_embeddings have other "
            "frequencies, which is not run",
            json->file, positions);
    rope->factor = (double)positions / rope->original;
    RP_TRY(number(json, "factor", RP_JSON_OPTIONAL, SMALLEST, &rope->factor, err));
    RP_TRY(number(json, "attention_factor", RP_JSON_OPTIONAL, SMALLEST, &scale, err));
    if (scale == 0)
        scale = rope->factor <= 1
                    ? 1
                    : sqrt(1 + natural_log(rope->factor) / natural_log(rope->original));
    rope->scale = scale;
    return RP_OK;
}

/* What part of a head is turned.  Only "proportional" has one below 1: with the others the
 * reference turns whole heads. */
static rp_status read_proportion(const struct rp_json *json, struct rp_rope_config *rope,
                                 rp_error *err)
{
    rope->proportion = 1;
    RP_TRY(number(json, "partial_rotary_factor", RP_JSON_OPTIONAL, 0, &rope->proportion, err));
    if (rope->proportion > 1 || (rope->proportion < 1 && rope->type != RP_ROPE_PROPORTIONAL))
        return rp_fail(err, RP_ERR_UNSUPPORTED,
                       "%s: key \"partial_rotary_factor\" is not 1: heads are turned whole",
                       json->file);
    return RP_OK;
}

struct rp_rope_config rp_rope_plain(double theta)
{
    return (struct rp_rope_config){
        .type = RP_ROPE_DEFAULT, .theta = theta, .factor = 1, .scale = 1, .proportion = 1};
}

rp_status rp_rope_read(const struct rp_json *json, double theta, int64_t positions,
                       int64_t head_dim, struct rp_rope_config *out, rp_error *err)
{
    const struct rope_type *type;
    struct rp_rope_config rope = rp_rope_plain(theta);
    RP_TRY(find_type(json, &type, err));
    RP_TRY(refuse_unknown(json, type, err));
    rope.type = type->type;
    if (theta == 0)
        RP_TRY(rp_rope_read_theta(json, "rope_theta", RP_JSON_REQUIRED, &rope.theta, err));
    else if (rp_json_get(json, "rope_theta"))
        return rp_fail(err, RP_ERR_UNSUPPORTED,
                       "%s: key \"rope_theta\" stands beside another spelling of it", json->file);
    RP_TRY(read_proportion(json, &rope, err));
    switch (rope.type) {
    case RP_ROPE_DEFAULT: break;
    case RP_ROPE_LINEAR:
        RP_TRY(number(json, "factor", RP_JSON_REQUIRED, SMALLEST, &rope.factor, err));
        break;
    case RP_ROPE_PROPORTIONAL:
        RP_TRY(number(json, "factor", RP_JSON_OPTIONAL, SMALLEST, &rope.factor, err));
        break;
    case RP_ROPE_LLAMA3: RP_TRY(read_llama3(json, positions, &rope, err)); break;
    case RP_ROPE_YARN: RP_TRY(read_yarn(json, positions, &rope, err)); break;
    case RP_ROPE_LONGROPE: RP_TRY(read_longrope(json, positions, head_dim, &rope, err)); break;
    }
    *out = rope;
    return RP_OK;
}

/* ---- frequencies ------------------------------------------------------------------------------
 */

/* Wave lengths above original/low_freq are stretched by the factor, those below original/high_freq
 * stay, and what lies between goes from one to the other. */
static double llama3(const struct rp_rope_config *rope, double f)
{
    const double length = TWO_PI / f;
    if (length > rope->original / rope->low_freq)
        return f / rope->factor;
    if (length < rope->original / rope->high_freq)
        return f;
    const double part =
        (rope->original / length - rope->low_freq) / (rope->high_freq - rope->low_freq);
    return (1 - part) * f / rope->factor + part * f;
}

/* The pair, as a real number, that turns `rotations` times within the original length. */
static double yarn_pair(const struct rp_rope_config *rope, double head_dim, double rotations)
{
    return head_dim * natural_log(rope->original / (rotations * TWO_PI)) /
           (2 * natural_log(rope->theta));
}

/* Pairs up to `low` keep their frequency, those from `high` on are divided by the factor, and what
 * lies between goes from one to the other. */
static void yarn(const struct rp_rope_config *rope, int64_t head_dim, double *inv_freq)
{
    const double d = (double)head_dim;
    const double low = fmax(floor(yarn_pair(rope, d, rope->beta_fast)), 0);
    double high = fmin(ceil(yarn_pair(rope, d, rope->beta_slow)), d - 1);
    if (low == high)
        high += 0.001;
    for (int64_t i = 0; i < head_dim / 2; i++) {
        const double part = fmin(fmax(((double)i - low) / (high - low), 0), 1);
        inv_freq[i] = inv_freq[i] / rope->factor * part + inv_freq[i] * (1 - part);
    }
}

static double scaled(const struct rp_rope_config *rope, int64_t head_dim, int64_t i, double f)
{
    switch (rope->type) {
    case RP_ROPE_DEFAULT:
    case RP_ROPE_YARN: break;
    case RP_ROPE_LINEAR: return f / rope->factor;
    case RP_ROPE_LLAMA3: return llama3(rope, f);
    case RP_ROPE_LONGROPE:
        return f / json_number_value(json_array_get(rope->short_factor, (size_t)i));
    case RP_ROPE_PROPORTIONAL:
        return (double)i < floor(rope->proportion * (double)head_dim / 2) ? f / rope->factor : 0;
    }
    return f;
}

void rp_rope_frequencies(const struct rp_rope_config *rope, int64_t head_dim, double *inv_freq)
{
    for (int64_t i = 0; i < head_dim / 2; i++)
        inv_freq[i] =
            scaled(rope, head_dim, i, rp_rope_inv_freq(rope->theta, (size_t)i, (size_t)head_dim));
    if (rope->type == RP_ROPE_YARN)
        yarn(rope, head_dim, inv_freq);
}

rp_value rp_rope_build(struct rp_build *build, const char *step, rp_value x,
                       const struct rp_rope_config *rope, int64_t n_heads, int64_t head_dim)
{
    const int64_t turned_dims = rope->n_rotated > 0 ? rope->n_rotated : head_dim;
    rp_rope options = {.n_heads = (int32_t)n_heads,
                       .head_dim = (int32_t)head_dim,
                       .n_rotated = (int32_t)rope->n_rotated,
                       .theta = rope->theta,
                       .scale = rope->scale == 1 ? 0 : rope->scale};
    rp_error err;
    if (rope->type == RP_ROPE_DEFAULT)
        return rp_graph_rope(build->graph, step, x, &options);
    /* As long as no tensor has shown that there is a head of this size, nothing of its size is
     * made. */
    if (!rp_build_is_whole(build))
        return -1;
    double *inv_freq = malloc((size_t)(turned_dims / 2) * sizeof *inv_freq);
    if (!inv_freq) {
        rp_build_fail(build, rp_fail(&err, RP_ERR_NOMEM, "%s: no memory", step), &err);
        return -1;
    }
    rp_rope_frequencies(rope, turned_dims, inv_freq);
    options.inv_freq = inv_freq;
    const rp_value turned = rp_graph_rope(build->graph, step, x, &options);
    free(inv_freq);
    return turned;
}
