/* Failing with a message.  The one way that errors are made in the library. */
#ifndef RP_POOL_ERROR_H
#define RP_POOL_ERROR_H

#include <rankplan/status.h>

/* Fills *err (when not NULL) with the status and the formatted message, and returns the status,
 * so that a failure is one line: `return rp_fail(err, RP_ERR_SHAPE, "op %d: ...", i);`. */
rp_status rp_fail(rp_error *err, rp_status status, const char *fmt, ...) RP_PRINTF(3, 4);

/* Puts "prefix: " before the message of a failure that a callee reported; returns its status. */
rp_status rp_fail_within(rp_error *err, rp_status status, const char *fmt, ...) RP_PRINTF(3, 4);

/* Returns from the calling function when the expression fails. */
#define RP_TRY(expr)                                                                               \
    do {                                                                                           \
        const rp_status rp_try_status_ = (expr);                                                   \
        if (rp_try_status_ != RP_OK)                                                               \
            return rp_try_status_;                                                                 \
    } while (0)

#endif
