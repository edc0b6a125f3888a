/* JSON from untrusted files: jansson behind limits, and getters whose errors name file and key.
 *
 * A file is refused before jansson sees it when it is too long, nested too deep or holds too many
 * values: jansson recurses, and a two-byte "[]" costs it a hundred bytes.  A key that stands twice
 * in an object is refused: readers differ on which of the two they take.
 *
 * Getters treat null as absent, as Hugging Face's configuration does.  An object may keep a record
 * of the keys that were asked for, so that the rest can be reported.
 *
 * Numbers do not depend on the locale: jansson puts the locale's decimal point in place before
 * strtod.
 */
#ifndef RP_MODELS_JSON_H
#define RP_MODELS_JSON_H

#include <rankplan/status.h>

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RP_JSON_MAX_DEPTH  64
#define RP_JSON_MAX_VALUES 4000000
#define RP_JSON_MAX_BYTES  ((size_t)64 << 20) /* of a configuration file */

/* An object in a file. */
struct rp_json {
    const char *file; /* for messages; borrowed */
    json_t *object;
    json_t *seen; /* keys asked for so far, as an object; NULL: not recorded */
};

/* Whole numbers become doubles: for files with numbers beyond 64 bits (model_max_length 1e30). */
#define RP_JSON_AS_REAL 1u

/* Parses text into *out.  `where` is for messages.  RP_ERR_FORMAT, RP_ERR_LIMIT, RP_ERR_NOMEM. */
RP_CHECKED rp_status rp_json_parse(const char *where, const char *text, size_t n, unsigned flags,
                                   json_t **out, rp_error *err);

/* Reads a file that holds one value.  RP_ERR_MISSING when it is not there, RP_ERR_IO, and as above.
 */
RP_CHECKED rp_status rp_json_read(const char *path, unsigned flags, json_t **out, rp_error *err);

/* Reads a file that holds an object; `path` is borrowed.  To be ended with rp_json_close. */
RP_CHECKED rp_status rp_json_open(const char *path, unsigned flags, struct rp_json *out,
                                  rp_error *err);
void rp_json_close(struct rp_json *json);

/* The value of a key; NULL when absent or null.  Records the key as seen. */
const json_t *rp_json_get(const struct rp_json *json, const char *key);

/* Each of these leaves *value as it is when the key is absent, or fails with RP_ERR_MISSING when it
 * is `required`.  A value of another type or out of range is RP_ERR_FORMAT. */
enum rp_json_need { RP_JSON_OPTIONAL, RP_JSON_REQUIRED };

RP_CHECKED rp_status rp_json_whole(const struct rp_json *json, const char *key,
                                   enum rp_json_need need, int64_t min, int64_t max, int64_t *value,
                                   rp_error *err);
RP_CHECKED rp_status rp_json_real(const struct rp_json *json, const char *key,
                                  enum rp_json_need need, double *value, rp_error *err);
RP_CHECKED rp_status rp_json_bool(const struct rp_json *json, const char *key,
                                  enum rp_json_need need, bool *value, rp_error *err);
/* The string belongs to the file. */
RP_CHECKED rp_status rp_json_string(const struct rp_json *json, const char *key,
                                    enum rp_json_need need, const char **value, rp_error *err);

/* What a value looks like, for messages: 12.5, "text", a list. */
#define RP_JSON_SHOWN_BYTES 160
const char *rp_json_show(const json_t *value, char buffer[RP_JSON_SHOWN_BYTES]);

#endif
