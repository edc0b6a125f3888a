/* The tokenizer: text to token ids, as the model's own tokenizer.json says, equal to Hugging Face
 * `tokenizers` to the token.
 *
 *     rp_tokenizer *tok;
 *     rp_encoding pair = {0};
 *     rp_encode_options options;
 *
 *     rp_encode_options_init(&options);
 *     options.max_length = 512;
 *     rp_tokenizer_load("model/tokenizer.json", &tok, &err);
 *     rp_tokenizer_encode_pair(tok, query, n_query, document, n_document, &options, &pair, &err);
 *
 * A ranking has one query and many documents: tokenise the query once with rp_tokenizer_part and
 * combine it with each document by rp_tokenizer_join, which copies ids and does nothing else.  Both
 * ways give the same ids.
 *
 * Texts are UTF-8 with a length in bytes; a 0 byte is a character like any other.  They need no
 * terminating 0, and NULL is allowed with length 0.  A cut is never silent: see `truncated`.
 *
 * A build without the tokenizer (-DRANKPLAN_TOKENIZER=OFF) has these functions too; the fallible
 * ones then fail with RP_ERR_UNSUPPORTED.  Running a model never needs them: it takes ids.
 */
#ifndef RANKPLAN_TOKENIZER_H
#define RANKPLAN_TOKENIZER_H

#include <rankplan/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Longest text of one call.  Far above what a model reads; it bounds the memory that the
 * tokenizer's normalisers need, about 100 bytes per byte of text. */
#define RP_TEXT_MAX_BYTES ((size_t)16 << 20)

/* Longest tokenizer.json that is read. */
#define RP_TOKENIZER_MAX_BYTES ((size_t)512 << 20)

/* Whether this build has the tokenizer. */
RP_API bool rp_tokenizer_available(void);

/* A loaded tokenizer.  Immutable: any number of threads may use one handle at once. */
typedef struct rp_tokenizer rp_tokenizer;

/* A text's tokens before special tokens and truncation.  Immutable, any thread; it does not depend
 * on the tokenizer's handle staying alive, but may be joined only by the handle that made it. */
typedef struct rp_text_part rp_text_part;

/* Which text loses tokens when a pair is too long. */
typedef enum rp_truncation {
    RP_TRUNCATE_LONGEST_FIRST = 0, /* the longer one, then both alike; the odd token goes to the
                                      longer one, to the second when both are of one length */
    RP_TRUNCATE_ONLY_FIRST = 1,    /* fails with RP_ERR_LIMIT if that text cannot give enough; */
    RP_TRUNCATE_ONLY_SECOND = 2    /* one token of it must stay, as in the reference */
} rp_truncation;

/* Which end of a text is cut off. */
typedef enum rp_truncation_side { RP_TRUNCATE_RIGHT = 0, RP_TRUNCATE_LEFT = 1 } rp_truncation_side;

typedef struct rp_encode_options {
    size_t struct_size;       /* sizeof(rp_encode_options) */
    size_t max_length;        /* of the result, special tokens included; default 0: no limit */
    rp_truncation truncation; /* default RP_TRUNCATE_LONGEST_FIRST */
    rp_truncation_side side;  /* default RP_TRUNCATE_RIGHT */
    bool add_special;         /* default true: add the special tokens of the file's template */
    bool special_as_text; /* default false: "[SEP]" inside a text becomes the special token, as in
                             the reference.  true: such spellings are read as plain text, so that a
                             text cannot forge a special token (other than the unknown token). Added
                             tokens that the file does not call special are not concerned. */
} rp_encode_options;

/* Fills in the defaults above. */
RP_API void rp_encode_options_init(rp_encode_options *options);

/* A result.  Starts as all zeros, may be used for call after call (the arrays grow when they must
 * and are kept), ends with rp_encoding_free.  A call that fails leaves it as it was. */
typedef struct rp_encoding {
    int32_t *ids;
    int32_t *type_ids; /* segment of each token, as the template says */
    size_t n;          /* tokens in ids and type_ids */
    size_t full_n;     /* tokens there would be without max_length */
    size_t n_first;    /* tokens kept of the first text */
    size_t n_second;   /* tokens kept of the second text; 0 for a single text */
    bool truncated;    /* n < full_n */
    size_t capacity;   /* of both arrays; not for callers */
} rp_encoding;

/* Frees the arrays and zeroes the struct, which may then be used again.  NULL does nothing. */
RP_API void rp_encoding_free(rp_encoding *encoding);

/* Reads a tokenizer.json.  `truncation` and `padding` found in it are dropped: lengths belong to
 * the caller.  *out is to be freed by rp_tokenizer_free.  Allocates.  Fails with RP_ERR_MISSING
 * (not there), RP_ERR_IO (cannot be read, no regular file), RP_ERR_LIMIT (over
 * RP_TOKENIZER_MAX_BYTES), RP_ERR_FORMAT (not a tokenizer.json; the message gives line and column),
 * RP_ERR_UNSUPPORTED (random dropout, a template that does not use each text once), RP_ERR_NOMEM.
 * Memory that the crate behind it cannot get ends the process: see docs/architecture.md. */
RP_API RP_CHECKED rp_status rp_tokenizer_load(const char *path, rp_tokenizer **out, rp_error *err);

/* The same, from memory; keeps no pointer to json. */
RP_API RP_CHECKED rp_status rp_tokenizer_parse(const char *json, size_t n, rp_tokenizer **out,
                                               rp_error *err);

/* NULL does nothing.  No call on the handle may be under way. */
RP_API void rp_tokenizer_free(rp_tokenizer *tokenizer);

/* Tokenises one text.  options may be NULL.  Any thread.  Allocates.  Fails with RP_ERR_INVALID
 * (invalid UTF-8, with the byte's offset; a max_length below the number of special tokens; an
 * option out of range; RP_TRUNCATE_ONLY_SECOND with no second text), RP_ERR_LIMIT (a text over
 * RP_TEXT_MAX_BYTES; see rp_truncation), RP_ERR_FORMAT (the tokenizer itself failed on this text),
 * RP_ERR_NOMEM. */
RP_API RP_CHECKED rp_status rp_tokenizer_encode(const rp_tokenizer *tokenizer, const char *text,
                                                size_t n_text, const rp_encode_options *options,
                                                rp_encoding *out, rp_error *err);

/* Tokenises two texts into one sequence by the file's pair template.  Fails as rp_tokenizer_encode
 * does, and with RP_ERR_UNSUPPORTED when the file's template cannot take a pair. */
RP_API RP_CHECKED rp_status rp_tokenizer_encode_pair(const rp_tokenizer *tokenizer,
                                                     const char *first, size_t n_first,
                                                     const char *second, size_t n_second,
                                                     const rp_encode_options *options,
                                                     rp_encoding *out, rp_error *err);

/* Tokenises one text for rp_tokenizer_join.  Of the options (NULL allowed) only special_as_text
 * matters.  *out is to be freed by rp_text_part_free.  Any thread.  Allocates.  Fails as
 * rp_tokenizer_encode does. */
RP_API RP_CHECKED rp_status rp_tokenizer_part(const rp_tokenizer *tokenizer, const char *text,
                                              size_t n_text, const rp_encode_options *options,
                                              rp_text_part **out, rp_error *err);

/* NULL does nothing. */
RP_API void rp_text_part_free(rp_text_part *part);

/* Tokens of the text; NULL has none. */
RP_API size_t rp_text_part_length(const rp_text_part *part);

/* Puts parts together: truncation, then the template.  second is NULL for a single text.  The
 * result equals rp_tokenizer_encode (rp_tokenizer_encode_pair) on the texts.  Any thread. Allocates
 * only to grow *out.  Fails as they do, and with RP_ERR_INVALID for a part of another tokenizer. */
RP_API RP_CHECKED rp_status rp_tokenizer_join(const rp_tokenizer *tokenizer,
                                              const rp_text_part *first, const rp_text_part *second,
                                              const rp_encode_options *options, rp_encoding *out,
                                              rp_error *err);

/* The id of a token as it is spelled in the vocabulary ("[SEP]", "##ing", "yes").
 * RP_ERR_MISSING: there is none.  Any thread. */
RP_API RP_CHECKED rp_status rp_tokenizer_token_to_id(const rp_tokenizer *tokenizer,
                                                     const char *token, int32_t *out,
                                                     rp_error *err);

/* Text of ids, special tokens left out if asked.  *out ends with a 0 that *n_out (NULL allowed)
 * does not count, and is freed by the caller with free().  Any thread.  Allocates. RP_ERR_INVALID:
 * an id that is not in the vocabulary, named with its position. */
RP_API RP_CHECKED rp_status rp_tokenizer_decode(const rp_tokenizer *tokenizer, const int32_t *ids,
                                                size_t n, bool skip_special, char **out,
                                                size_t *n_out, rp_error *err);

/* Number of tokens, added ones included.  NULL has none. */
RP_API size_t rp_tokenizer_vocab_size(const rp_tokenizer *tokenizer);

/* One more than the largest id: what a model's embedding table must have rows for.  It is above
 * rp_tokenizer_vocab_size when ids have gaps.  NULL has none. */
RP_API size_t rp_tokenizer_id_limit(const rp_tokenizer *tokenizer);

/* How many special tokens the template adds to a single text or a pair; 0 for a pair template that
 * is not supported. */
RP_API size_t rp_tokenizer_n_special(const rp_tokenizer *tokenizer, bool pair);

#ifdef __cplusplus
}
#endif
#endif
