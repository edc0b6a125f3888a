/* Options as the caller gave them, read once per call; shared by the build with the tokenizer and
 * the one without. */
#ifndef RP_TEXT_OPTIONS_H
#define RP_TEXT_OPTIONS_H

#include <rankplan/tokenizer.h>

/* Copies the options, or the defaults for NULL, into *out and checks each. */
rp_status rp_encode_options_read(const rp_encode_options *options, rp_encode_options *out,
                                 rp_error *err);

#endif
