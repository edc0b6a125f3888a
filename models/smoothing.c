/* Reading smoothing factors. */
#include "models/smoothing.h"

#include "models/file.h"
#include "pool/error.h"

#include <stdlib.h>
#include <string.h>

static rp_status check_header(struct rp_smoothing *s, rp_error *err)
{
    const char *format = NULL;
    int64_t version = 0;
    RP_TRY(rp_json_string(&s->file, "format", RP_JSON_REQUIRED, &format, err));
    RP_TRY(rp_json_whole(&s->file, "version", RP_JSON_REQUIRED, 0, INT32_MAX, &version, err));
    RP_TRY(rp_json_string(&s->file, "source", RP_JSON_REQUIRED, &s->source, err));
    if (strcmp(format, "rankplan-int8") != 0 || version != 1)
        return rp_fail(err, RP_ERR_FORMAT, "%s: format \"%s\" %d, expected \"rankplan-int8\" 1",
                       s->path, format, (int)version);
    json_t *weights = json_object_get(s->file.object, "weights");
    if (!json_is_object(weights))
        return rp_fail(err, RP_ERR_FORMAT, "%s: key \"weights\" is not an object", s->path);
    s->weights = (struct rp_json){.file = s->path, .object = weights};
    return RP_OK;
}

rp_status rp_smoothing_open(const char *folder, const char *path, struct rp_smoothing *out,
                            bool *found, rp_error *err)
{
    memset(out, 0, sizeof *out);
    *found = true;
    if (!path)
        RP_TRY(rp_file_exists(folder, RP_SMOOTHING_FILE, found, err));
    if (!*found)
        return RP_OK;
    out->path = path ? strdup(path) : rp_path_join(folder, RP_SMOOTHING_FILE);
    if (!out->path)
        return rp_fail(err, RP_ERR_NOMEM, "no memory for a path");
    rp_status status = rp_json_open(out->path, 0, &out->file, err);
    if (status == RP_OK)
        status = check_header(out, err);
    if (status != RP_OK)
        rp_smoothing_close(out);
    return status;
}

void rp_smoothing_close(struct rp_smoothing *s)
{
    rp_json_close(&s->file);
    free(s->path);
    memset(s, 0, sizeof *s);
}

rp_status rp_smoothing_factors(void *context, const char *weight, size_t n, float *out,
                               rp_error *err)
{
    const struct rp_smoothing *s = context;
    const json_t *list = rp_json_get(&s->weights, weight);
    if (!list)
        return rp_fail(err, RP_ERR_MISSING, "%s: weight %s has no smoothing factors there", s->path,
                       weight);
    if (!json_is_array(list) || json_array_size(list) != n)
        return rp_fail(err, RP_ERR_SHAPE, "%s: weight %s has %zu smoothing factors, expected %zu",
                       s->path, weight, json_array_size(list), n);
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_array_get(list, i);
        if (!json_is_number(value))
            return rp_fail(err, RP_ERR_FORMAT, "%s: smoothing factor %zu of weight %s is no number",
                           s->path, i, weight);
        out[i] = (float)json_number_value(value);
    }
    return RP_OK;
}
