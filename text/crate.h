/* The C side of text/crate/src/lib.rs: what the Rust static library exports.  Keep the two in step.
 * Nothing here outlives the handle but what has a free function of its own. */
#ifndef RP_TEXT_CRATE_H
#define RP_TEXT_CRATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rp_crate;

enum rp_crate_code {
    RP_CRATE_OK = 0,
    RP_CRATE_INVALID = 1,
    RP_CRATE_FORMAT = 2,
    RP_CRATE_UNSUPPORTED = 3,
    RP_CRATE_INTERNAL = 4
};

/* Where a failure's message goes. */
struct rp_crate_message {
    char *bytes;
    size_t size;
};

/* Piece of a template: a token's id, or one of the two markers. */
struct rp_crate_piece {
    int32_t id;
    int32_t type_id;
};
#define RP_CRATE_FIRST  (-1)
#define RP_CRATE_SECOND (-2)

struct rp_crate_ids {
    int32_t *items;
    size_t n;
};

struct rp_crate_bytes {
    char *items;
    size_t n;
};

int32_t rp_crate_load(const char *json, size_t n, struct rp_crate **out,
                      struct rp_crate_message message);
void rp_crate_free(struct rp_crate *crate);

int32_t rp_crate_encode(const struct rp_crate *crate, const char *text, size_t n, bool literal,
                        struct rp_crate_ids *out, struct rp_crate_message message);
void rp_crate_ids_free(struct rp_crate_ids ids);

int32_t rp_crate_template(const struct rp_crate *crate, bool pair, bool special,
                          const struct rp_crate_piece **pieces, size_t *n,
                          struct rp_crate_message message);

int32_t rp_crate_token_to_id(const struct rp_crate *crate, const char *token, size_t n);

int32_t rp_crate_decode(const struct rp_crate *crate, const int32_t *ids, size_t n,
                        bool skip_special, struct rp_crate_bytes *out,
                        struct rp_crate_message message);
void rp_crate_bytes_free(struct rp_crate_bytes bytes);

size_t rp_crate_vocab_size(const struct rp_crate *crate);
size_t rp_crate_id_limit(const struct rp_crate *crate);

#endif
