/* The tokenizer's interface in a build without it: the same symbols, so that a program links either
 * way and learns at run time, in words, what is missing. */
#include <rankplan/tokenizer.h>

#include "pool/error.h"

static rp_status fail_none(rp_error *err)
{
    return rp_fail(err, RP_ERR_UNSUPPORTED,
                   "this build of rankplan has no tokenizer: configure it with "
                   "-DRANKPLAN_TOKENIZER=ON (needs cargo 1.85 or newer), or pass token ids");
}

bool rp_tokenizer_available(void)
{
    return false;
}

rp_status rp_tokenizer_load(const char *path, rp_tokenizer **out, rp_error *err)
{
    (void)path, (void)out;
    return fail_none(err);
}

rp_status rp_tokenizer_parse(const char *json, size_t n, rp_tokenizer **out, rp_error *err)
{
    (void)json, (void)n, (void)out;
    return fail_none(err);
}

void rp_tokenizer_free(rp_tokenizer *tokenizer)
{
    (void)tokenizer;
}

rp_status rp_tokenizer_encode(const rp_tokenizer *tokenizer, const char *text, size_t n_text,
                              const rp_encode_options *options, rp_encoding *out, rp_error *err)
{
    (void)tokenizer, (void)text, (void)n_text, (void)options, (void)out;
    return fail_none(err);
}

rp_status rp_tokenizer_encode_pair(const rp_tokenizer *tokenizer, const char *first, size_t n_first,
                                   const char *second, size_t n_second,
                                   const rp_encode_options *options, rp_encoding *out,
                                   rp_error *err)
{
    (void)tokenizer, (void)first, (void)n_first, (void)second, (void)n_second, (void)options;
    (void)out;
    return fail_none(err);
}

rp_status rp_tokenizer_part(const rp_tokenizer *tokenizer, const char *text, size_t n_text,
                            const rp_encode_options *options, rp_text_part **out, rp_error *err)
{
    (void)tokenizer, (void)text, (void)n_text, (void)options, (void)out;
    return fail_none(err);
}

void rp_text_part_free(rp_text_part *part)
{
    (void)part;
}

size_t rp_text_part_length(const rp_text_part *part)
{
    (void)part;
    return 0;
}

rp_status rp_tokenizer_join(const rp_tokenizer *tokenizer, const rp_text_part *first,
                            const rp_text_part *second, const rp_encode_options *options,
                            rp_encoding *out, rp_error *err)
{
    (void)tokenizer, (void)first, (void)second, (void)options, (void)out;
    return fail_none(err);
}

rp_status rp_tokenizer_token_to_id(const rp_tokenizer *tokenizer, const char *token, int32_t *out,
                                   rp_error *err)
{
    (void)tokenizer, (void)token, (void)out;
    return fail_none(err);
}

rp_status rp_tokenizer_decode(const rp_tokenizer *tokenizer, const int32_t *ids, size_t n,
                              bool skip_special, char **out, size_t *n_out, rp_error *err)
{
    (void)tokenizer, (void)ids, (void)n, (void)skip_special, (void)out, (void)n_out;
    return fail_none(err);
}

size_t rp_tokenizer_vocab_size(const rp_tokenizer *tokenizer)
{
    (void)tokenizer;
    return 0;
}

size_t rp_tokenizer_id_limit(const rp_tokenizer *tokenizer)
{
    (void)tokenizer;
    return 0;
}

size_t rp_tokenizer_n_special(const rp_tokenizer *tokenizer, bool pair)
{
    (void)tokenizer, (void)pair;
    return 0;
}
