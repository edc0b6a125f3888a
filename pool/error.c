/* Error messages: formatted into the caller's struct, cut at its size, never allocated. */
#include "pool/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *rp_status_name(rp_status status)
{
    switch (status) {
    case RP_OK: return "RP_OK";
    case RP_ERR_INVALID: return "RP_ERR_INVALID";
    case RP_ERR_NOMEM: return "RP_ERR_NOMEM";
    case RP_ERR_IO: return "RP_ERR_IO";
    case RP_ERR_FORMAT: return "RP_ERR_FORMAT";
    case RP_ERR_SHAPE: return "RP_ERR_SHAPE";
    case RP_ERR_UNSUPPORTED: return "RP_ERR_UNSUPPORTED";
    case RP_ERR_MISSING: return "RP_ERR_MISSING";
    case RP_ERR_BUCKET: return "RP_ERR_BUCKET";
    case RP_ERR_LIMIT: return "RP_ERR_LIMIT";
    case RP_ERR_NONFINITE: return "RP_ERR_NONFINITE";
    case RP_ERR_SYSTEM: return "RP_ERR_SYSTEM";
    case RP_ERR_STOPPED: return "RP_ERR_STOPPED";
    case RP_ERR_DEADLINE: return "RP_ERR_DEADLINE";
    case RP_ERR_CANCELLED: return "RP_ERR_CANCELLED";
    }
    return "RP_ERR_UNKNOWN";
}

rp_status rp_fail(rp_error *err, rp_status status, const char *fmt, ...)
{
    if (err) {
        va_list args;
        va_start(args, fmt);
        err->status = status;
        vsnprintf(err->message, sizeof err->message, fmt, args);
        va_end(args);
    }
    return status;
}

rp_status rp_fail_within(rp_error *err, rp_status status, const char *fmt, ...)
{
    if (err) {
        char inner[RP_ERROR_MESSAGE_BYTES];
        memcpy(inner, err->message, sizeof inner);
        va_list args;
        va_start(args, fmt);
        vsnprintf(err->message, sizeof err->message, fmt, args);
        va_end(args);
        err->status = status;
        const char *const pieces[] = {": ", inner};
        size_t at = strlen(err->message);
        for (size_t i = 0; i < 2; i++)
            for (const char *p = pieces[i]; *p && at + 1 < sizeof err->message; p++)
                err->message[at++] = *p;
        err->message[at] = 0;
    }
    return status;
}
