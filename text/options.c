/* Options and results: the parts of the tokenizer's interface that need no tokenizer. */
#include "text/options.h"

#include "pool/error.h"

#include <stdlib.h>

void rp_encode_options_init(rp_encode_options *options)
{
    *options = (rp_encode_options){
        .struct_size = sizeof(*options),
        .max_length = 0,
        .truncation = RP_TRUNCATE_LONGEST_FIRST,
        .side = RP_TRUNCATE_RIGHT,
        .add_special = true,
        .special_as_text = false,
    };
}

rp_status rp_encode_options_read(const rp_encode_options *options, rp_encode_options *out,
                                 rp_error *err)
{
    if (!options) {
        rp_encode_options_init(out);
        return RP_OK;
    }
    if (options->struct_size != sizeof(*options))
        return rp_fail(err, RP_ERR_INVALID,
                       "rp_encode_options.struct_size is %zu, this library's is %zu: was it filled "
                       "by rp_encode_options_init?",
                       options->struct_size, sizeof(*options));
    if ((unsigned)options->truncation > RP_TRUNCATE_ONLY_SECOND)
        return rp_fail(err, RP_ERR_INVALID, "truncation %d is none of the strategies 0 to 2",
                       (int)options->truncation);
    if ((unsigned)options->side > RP_TRUNCATE_LEFT)
        return rp_fail(err, RP_ERR_INVALID, "truncation side %d is neither 0 (right) nor 1 (left)",
                       (int)options->side);
    *out = *options;
    return RP_OK;
}

void rp_encoding_free(rp_encoding *encoding)
{
    if (!encoding)
        return;
    free(encoding->ids);
    free(encoding->type_ids);
    *encoding = (rp_encoding){0};
}
