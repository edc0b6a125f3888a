/* Errors that the command makes itself, in the library's form. */
#include "cli/cli.h"

#include <stdarg.h>

rp_status cli_err(rp_error *err, rp_status status, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    err->status = status;
    vsnprintf(err->message, sizeof err->message, fmt, args);
    va_end(args);
    return status;
}
