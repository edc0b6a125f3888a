/* The tokenizer's interface over the `tokenizers` crate.
 *
 *     text --crate--> ids of the text --join.c--> truncated, in the template: rp_encoding
 *                     (rp_text_part)
 *
 * A text's ids do not depend on its partner, nor on max_length, so a part is all that there is to
 * keep of a query.  The crate's handle is only read; its word caches have their own locks and
 * change no result.
 */
#include "text/crate.h"
#include "text/join.h"
#include "text/options.h"

#include "models/file.h"
#include "pool/error.h"
#include "pool/fpenv.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct rp_tokenizer {
    struct rp_crate *crate;
    uint64_t serial; /* tells the parts of one tokenizer from another's */
};

struct rp_text_part {
    struct rp_crate_ids ids; /* memory of the crate */
    uint64_t serial;
};

/* What the crate says about a failure, long enough for the error it will become. */
struct reply {
    char text[RP_ERROR_MESSAGE_BYTES];
};

static struct rp_crate_message message_of(struct reply *reply)
{
    reply->text[0] = 0;
    return (struct rp_crate_message){reply->text, sizeof(reply->text)};
}

/* The crate's code as a status.  `internal` is what a failure inside the crate means at this call.
 */
static rp_status fail_crate(int32_t code, rp_status internal, const char *what,
                            const struct reply *reply, rp_error *err)
{
    rp_status status = internal;

    switch (code) {
    case RP_CRATE_INVALID: status = RP_ERR_INVALID; break;
    case RP_CRATE_FORMAT: status = RP_ERR_FORMAT; break;
    case RP_CRATE_UNSUPPORTED: status = RP_ERR_UNSUPPORTED; break;
    default: break;
    }
    return rp_fail(err, status, "%s: %s", what, reply->text);
}

bool rp_tokenizer_available(void)
{
    return true;
}

/* ---- loading ---- */

/* A regular file: the open of a pipe in its place would wait for a writer that never comes. */
static rp_status read_file(const char *path, char **out, size_t *out_n, rp_error *err)
{
    int fd;
    uint64_t size;
    RP_TRY(rp_file_open(path, &fd, &size, err));
    rp_status status = RP_OK;
    char *bytes = NULL;
    if (size > RP_TOKENIZER_MAX_BYTES)
        status = rp_fail(err, RP_ERR_LIMIT, "%s: over %zu bytes, the most that is read", path,
                         RP_TOKENIZER_MAX_BYTES);
    if (status == RP_OK && !(bytes = malloc(size ? (size_t)size : 1)))
        status = rp_fail(err, RP_ERR_NOMEM, "%s: no memory for %zu bytes", path, (size_t)size);
    if (status == RP_OK)
        status = rp_file_read(fd, path, 0, bytes, (size_t)size, err);
    rp_file_close(fd);
    if (status != RP_OK) {
        free(bytes);
        return status;
    }
    *out = bytes;
    *out_n = (size_t)size;
    return RP_OK;
}

static rp_status parse(const char *what, const char *json, size_t n, rp_tokenizer **out,
                       rp_error *err)
{
    static atomic_uint_fast64_t n_loaded; /* only ever increased: relaxed is enough */
    struct reply reply;

    rp_tokenizer *const tokenizer = calloc(1, sizeof(*tokenizer));
    if (!tokenizer)
        return rp_fail(err, RP_ERR_NOMEM, "%s: no memory for a tokenizer", what);
    const rp_fpenv callers = rp_fpenv_enter(); /* vocabularies may hold weights */
    const int32_t code = rp_crate_load(json, n, &tokenizer->crate, message_of(&reply));
    rp_fpenv_leave(callers);
    if (code != RP_CRATE_OK) {
        free(tokenizer);
        return fail_crate(code, RP_ERR_FORMAT, what, &reply, err);
    }
    tokenizer->serial = atomic_fetch_add_explicit(&n_loaded, 1, memory_order_relaxed);
    *out = tokenizer;
    return RP_OK;
}

rp_status rp_tokenizer_load(const char *path, rp_tokenizer **out, rp_error *err)
{
    char *json = NULL;
    size_t n = 0;

    if (!path || !out)
        return rp_fail(err, RP_ERR_INVALID, "rp_tokenizer_load: %s is NULL", path ? "out" : "path");
    RP_TRY(read_file(path, &json, &n, err));
    const rp_status status = parse(path, json, n, out, err);
    free(json);
    return status;
}

rp_status rp_tokenizer_parse(const char *json, size_t n, rp_tokenizer **out, rp_error *err)
{
    if (!json || !out)
        return rp_fail(err, RP_ERR_INVALID, "rp_tokenizer_parse: %s is NULL",
                       json ? "out" : "json");
    if (n > RP_TOKENIZER_MAX_BYTES)
        return rp_fail(err, RP_ERR_LIMIT, "tokenizer.json: %zu bytes, at most %zu are read", n,
                       RP_TOKENIZER_MAX_BYTES);
    return parse("tokenizer.json", json, n, out, err);
}

void rp_tokenizer_free(rp_tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    rp_crate_free(tokenizer->crate);
    free(tokenizer);
}

/* ---- encoding ---- */

/* The ids of one text; on success to be freed by rp_crate_ids_free. */
static rp_status text_ids(const rp_tokenizer *tokenizer, const char *name, const char *text,
                          size_t n, bool special_as_text, struct rp_crate_ids *out, rp_error *err)
{
    struct reply reply;

    if (!text && n > 0)
        return rp_fail(err, RP_ERR_INVALID, "%s is NULL with a length of %zu", name, n);
    if (n > RP_TEXT_MAX_BYTES)
        return rp_fail(err, RP_ERR_LIMIT, "%s: %zu bytes, at most %zu are tokenised", name, n,
                       RP_TEXT_MAX_BYTES);
    const rp_fpenv callers = rp_fpenv_enter();
    const int32_t code =
        rp_crate_encode(tokenizer->crate, text, n, special_as_text, out, message_of(&reply));
    rp_fpenv_leave(callers);
    if (code != RP_CRATE_OK)
        return fail_crate(code, RP_ERR_FORMAT, name, &reply, err);
    return RP_OK;
}

static size_t count_special(const struct rp_crate_piece *pieces, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += pieces[i].id >= 0;
    return count;
}

static rp_status find_template(const rp_tokenizer *tokenizer, bool pair, bool special,
                               struct rp_join_template *out, rp_error *err)
{
    struct reply reply;
    const int32_t code = rp_crate_template(tokenizer->crate, pair, special, &out->pieces,
                                           &out->n_pieces, message_of(&reply));
    if (code != RP_CRATE_OK)
        return fail_crate(code, RP_ERR_UNSUPPORTED, "pair", &reply, err);
    out->pair = pair;
    out->n_special = count_special(out->pieces, out->n_pieces);
    return RP_OK;
}

static rp_status join(const rp_tokenizer *tokenizer, const struct rp_crate_ids *first,
                      const struct rp_crate_ids *second, const rp_encode_options *options,
                      rp_encoding *out, rp_error *err)
{
    const struct rp_join_ids a = {first->items, first->n};
    const struct rp_join_ids b =
        second ? (struct rp_join_ids){second->items, second->n} : (struct rp_join_ids){NULL, 0};
    struct rp_join_template form = {0};

    RP_TRY(find_template(tokenizer, second != NULL, options->add_special, &form, err));
    return rp_join(a, b, &form, options, out, err);
}

static rp_status check_call(const rp_tokenizer *tokenizer, const void *out,
                            const rp_encode_options *given, rp_encode_options *options,
                            const char *function, rp_error *err)
{
    if (!tokenizer || !out)
        return rp_fail(err, RP_ERR_INVALID, "%s: %s is NULL", function,
                       tokenizer ? "out" : "tokenizer");
    return rp_encode_options_read(given, options, err);
}

rp_status rp_tokenizer_encode(const rp_tokenizer *tokenizer, const char *text, size_t n_text,
                              const rp_encode_options *options, rp_encoding *out, rp_error *err)
{
    rp_encode_options used = {0};
    struct rp_crate_ids ids = {0};

    RP_TRY(check_call(tokenizer, out, options, &used, __func__, err));
    RP_TRY(text_ids(tokenizer, "text", text, n_text, used.special_as_text, &ids, err));
    const rp_status status = join(tokenizer, &ids, NULL, &used, out, err);
    rp_crate_ids_free(ids);
    return status;
}

rp_status rp_tokenizer_encode_pair(const rp_tokenizer *tokenizer, const char *first, size_t n_first,
                                   const char *second, size_t n_second,
                                   const rp_encode_options *options, rp_encoding *out,
                                   rp_error *err)
{
    rp_encode_options used = {0};
    struct rp_crate_ids a = {0}, b = {0};

    RP_TRY(check_call(tokenizer, out, options, &used, __func__, err));
    RP_TRY(text_ids(tokenizer, "first text", first, n_first, used.special_as_text, &a, err));
    rp_status status =
        text_ids(tokenizer, "second text", second, n_second, used.special_as_text, &b, err);
    if (status == RP_OK) {
        status = join(tokenizer, &a, &b, &used, out, err);
        rp_crate_ids_free(b);
    }
    rp_crate_ids_free(a);
    return status;
}

rp_status rp_tokenizer_part(const rp_tokenizer *tokenizer, const char *text, size_t n_text,
                            const rp_encode_options *options, rp_text_part **out, rp_error *err)
{
    rp_encode_options used = {0};

    RP_TRY(check_call(tokenizer, out, options, &used, __func__, err));
    rp_text_part *const part = malloc(sizeof(*part));
    if (!part)
        return rp_fail(err, RP_ERR_NOMEM, "no memory for the part of a text");
    part->serial = tokenizer->serial;
    const rp_status status =
        text_ids(tokenizer, "text", text, n_text, used.special_as_text, &part->ids, err);
    if (status != RP_OK) {
        free(part);
        return status;
    }
    *out = part;
    return RP_OK;
}

void rp_text_part_free(rp_text_part *part)
{
    if (!part)
        return;
    rp_crate_ids_free(part->ids);
    free(part);
}

size_t rp_text_part_length(const rp_text_part *part)
{
    return part ? part->ids.n : 0;
}

rp_status rp_tokenizer_join(const rp_tokenizer *tokenizer, const rp_text_part *first,
                            const rp_text_part *second, const rp_encode_options *options,
                            rp_encoding *out, rp_error *err)
{
    rp_encode_options used = {0};

    RP_TRY(check_call(tokenizer, out, options, &used, __func__, err));
    if (!first)
        return rp_fail(err, RP_ERR_INVALID, "rp_tokenizer_join: first is NULL");
    if (first->serial != tokenizer->serial || (second && second->serial != tokenizer->serial))
        return rp_fail(err, RP_ERR_INVALID, "the %s part was made by another tokenizer",
                       first->serial != tokenizer->serial ? "first" : "second");
    return join(tokenizer, &first->ids, second ? &second->ids : NULL, &used, out, err);
}

/* ---- looking up ---- */

rp_status rp_tokenizer_token_to_id(const rp_tokenizer *tokenizer, const char *token, int32_t *out,
                                   rp_error *err)
{
    if (!tokenizer || !token || !out)
        return rp_fail(err, RP_ERR_INVALID, "rp_tokenizer_token_to_id: %s is NULL",
                       !tokenizer ? "tokenizer"
                       : !token   ? "token"
                                  : "out");
    const int32_t id = rp_crate_token_to_id(tokenizer->crate, token, strlen(token));
    if (id < 0)
        return rp_fail(err, RP_ERR_MISSING, "the vocabulary has no token \"%s\"", token);
    *out = id;
    return RP_OK;
}

rp_status rp_tokenizer_decode(const rp_tokenizer *tokenizer, const int32_t *ids, size_t n,
                              bool skip_special, char **out, size_t *n_out, rp_error *err)
{
    struct reply reply;
    struct rp_crate_bytes bytes = {0};

    if (!tokenizer || !out || (!ids && n > 0))
        return rp_fail(err, RP_ERR_INVALID, "rp_tokenizer_decode: %s is NULL",
                       !tokenizer ? "tokenizer"
                       : !out     ? "out"
                                  : "ids");
    const int32_t code =
        rp_crate_decode(tokenizer->crate, ids, n, skip_special, &bytes, message_of(&reply));
    if (code != RP_CRATE_OK)
        return fail_crate(code, RP_ERR_FORMAT, "decode", &reply, err);

    char *const text = malloc(bytes.n + 1);
    if (text) {
        memcpy(text, bytes.items, bytes.n);
        text[bytes.n] = 0;
        *out = text;
        if (n_out)
            *n_out = bytes.n;
    }
    const size_t n_bytes = bytes.n;
    rp_crate_bytes_free(bytes);
    return text ? RP_OK : rp_fail(err, RP_ERR_NOMEM, "no memory for %zu bytes of text", n_bytes);
}

size_t rp_tokenizer_vocab_size(const rp_tokenizer *tokenizer)
{
    return tokenizer ? rp_crate_vocab_size(tokenizer->crate) : 0;
}

size_t rp_tokenizer_id_limit(const rp_tokenizer *tokenizer)
{
    return tokenizer ? rp_crate_id_limit(tokenizer->crate) : 0;
}

size_t rp_tokenizer_n_special(const rp_tokenizer *tokenizer, bool pair)
{
    struct rp_join_template form = {0};

    if (!tokenizer || find_template(tokenizer, pair, true, &form, NULL) != RP_OK)
        return 0;
    return form.n_special;
}
