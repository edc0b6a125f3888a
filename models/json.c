/* See json.h. */
#include "models/json.h"

#include "models/file.h"
#include "models/notes.h"
#include "pool/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Counts brackets and commas outside strings.  What it lets through may still be no JSON at all. */
static rp_status check_size(const char *where, const char *text, size_t n, rp_error *err)
{
    size_t depth = 0, values = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        const char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
            continue;
        }
        in_string = c == '"';
        if (c == '[' || c == '{') {
            values++;
            if (++depth > RP_JSON_MAX_DEPTH)
                return rp_fail(err, RP_ERR_LIMIT, "%s: nested more than %d deep at byte %zu", where,
                               RP_JSON_MAX_DEPTH, i);
        } else if ((c == ']' || c == '}') && depth > 0) {
            depth--;
        } else if (c == ',') {
            values++;
        }
        if (values > RP_JSON_MAX_VALUES)
            return rp_fail(err, RP_ERR_LIMIT, "%s: more than %d values", where, RP_JSON_MAX_VALUES);
    }
    return RP_OK;
}

rp_status rp_json_parse(const char *where, const char *text, size_t n, unsigned flags, json_t **out,
                        rp_error *err)
{
    RP_TRY(check_size(where, text, n, err));
    size_t how = JSON_REJECT_DUPLICATES | JSON_DECODE_ANY;
    if (flags & RP_JSON_AS_REAL)
        how |= JSON_DECODE_INT_AS_REAL;
    json_error_t e;
    json_t *root = json_loadb(text, n, how, &e);
    if (!root) {
        char shown[RP_SHOWN_BYTES];
        /* jansson has words for everything but an allocation that failed. */
        if (!e.text[0] || json_error_code(&e) == json_error_out_of_memory)
            return rp_fail(err, RP_ERR_NOMEM, "%s: no memory to parse %zu bytes", where, n);
        return rp_fail(err, RP_ERR_FORMAT, "%s: line %d, column %d: %s", where, e.line, e.column,
                       rp_show(e.text, shown));
    }
    *out = root;
    return RP_OK;
}

rp_status rp_json_read(const char *path, unsigned flags, json_t **out, rp_error *err)
{
    int fd;
    uint64_t size;
    RP_TRY(rp_file_open(path, &fd, &size, err));
    rp_status s;
    char *text = NULL;
    if (size > RP_JSON_MAX_BYTES)
        s = rp_fail(err, RP_ERR_LIMIT, "%s: %llu bytes, more than the %zu that are read", path,
                    (unsigned long long)size, RP_JSON_MAX_BYTES);
    else if (!(text = malloc(size ? size : 1)))
        s = rp_fail(err, RP_ERR_NOMEM, "%s: no memory for %llu bytes", path,
                    (unsigned long long)size);
    else
        s = rp_file_read(fd, path, 0, text, size, err);
    rp_file_close(fd);
    if (s == RP_OK)
        s = rp_json_parse(path, text, size, flags, out, err);
    free(text);
    return s;
}

rp_status rp_json_open(const char *path, unsigned flags, struct rp_json *out, rp_error *err)
{
    json_t *root;
    RP_TRY(rp_json_read(path, flags, &root, err));
    if (!json_is_object(root)) {
        char shown[RP_JSON_SHOWN_BYTES];
        const rp_status s = rp_fail(err, RP_ERR_FORMAT, "%s: an object is due, not %s", path,
                                    rp_json_show(root, shown));
        json_decref(root);
        return s;
    }
    json_t *seen = json_object();
    if (!seen) {
        json_decref(root);
        return rp_fail(err, RP_ERR_NOMEM, "%s: no memory", path);
    }
    *out = (struct rp_json){.file = path, .object = root, .seen = seen};
    return RP_OK;
}

void rp_json_close(struct rp_json *json)
{
    json_decref(json->object);
    json_decref(json->seen);
    *json = (struct rp_json){0};
}

const json_t *rp_json_get(const struct rp_json *json, const char *key)
{
    const json_t *value = json_object_get(json->object, key);
    /* Without memory for the record the key is reported as not known: a wrong note, no wrong
     * result. */
    if (value && json->seen)
        (void)json_object_set_new(json->seen, key, json_true());
    return json_is_null(value) ? NULL : value;
}

const char *rp_json_show(const json_t *value, char buffer[RP_JSON_SHOWN_BYTES])
{
    char shown[RP_SHOWN_BYTES];
    switch (value ? json_typeof(value) : JSON_NULL) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "a list";
    case JSON_STRING:
        snprintf(buffer, RP_JSON_SHOWN_BYTES, "\"%s\"", rp_show(json_string_value(value), shown));
        return buffer;
    case JSON_INTEGER:
        snprintf(buffer, RP_JSON_SHOWN_BYTES, "%lld", (long long)json_integer_value(value));
        return buffer;
    case JSON_REAL: {
        /* jansson writes a point in every locale. */
        char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
        snprintf(buffer, RP_JSON_SHOWN_BYTES, "%s", text ? text : "a number");
        free(text);
        return buffer;
    }
    case JSON_TRUE: return "true";
    case JSON_FALSE: return "false";
    case JSON_NULL: break;
    }
    return "null";
}

static rp_status absent(const struct rp_json *json, const char *key, enum rp_json_need need,
                        rp_error *err)
{
    if (need == RP_JSON_OPTIONAL)
        return RP_OK;
    return rp_fail(err, RP_ERR_MISSING, "%s: key \"%s\" is missing", json->file, key);
}

static rp_status wrong(const struct rp_json *json, const char *key, const json_t *value,
                       const char *due, rp_error *err)
{
    char shown[RP_JSON_SHOWN_BYTES];
    return rp_fail(err, RP_ERR_FORMAT, "%s: key \"%s\" is %s, but %s is due", json->file, key,
                   rp_json_show(value, shown), due);
}

rp_status rp_json_whole(const struct rp_json *json, const char *key, enum rp_json_need need,
                        int64_t min, int64_t max, int64_t *value, rp_error *err)
{
    const json_t *v = rp_json_get(json, key);
    if (!v)
        return absent(json, key, need, err);
    if (!json_is_integer(v))
        return wrong(json, key, v, "a whole number", err);
    const int64_t x = (int64_t)json_integer_value(v);
    if (x < min || x > max)
        return rp_fail(err, RP_ERR_FORMAT, "%s: key \"%s\" is %lld, outside %lld to %lld",
                       json->file, key, (long long)x, (long long)min, (long long)max);
    *value = x;
    return RP_OK;
}

rp_status rp_json_real(const struct rp_json *json, const char *key, enum rp_json_need need,
                       double *value, rp_error *err)
{
    const json_t *v = rp_json_get(json, key);
    if (!v)
        return absent(json, key, need, err);
    if (!json_is_number(v))
        return wrong(json, key, v, "a number", err);
    *value = json_number_value(v);
    return RP_OK;
}

rp_status rp_json_bool(const struct rp_json *json, const char *key, enum rp_json_need need,
                       bool *value, rp_error *err)
{
    const json_t *v = rp_json_get(json, key);
    if (!v)
        return absent(json, key, need, err);
    if (!json_is_boolean(v))
        return wrong(json, key, v, "true or false", err);
    *value = json_is_true(v);
    return RP_OK;
}

rp_status rp_json_string(const struct rp_json *json, const char *key, enum rp_json_need need,
                         const char **value, rp_error *err)
{
    const json_t *v = rp_json_get(json, key);
    if (!v)
        return absent(json, key, need, err);
    if (!json_is_string(v))
        return wrong(json, key, v, "a string", err);
    *value = json_string_value(v);
    return RP_OK;
}
