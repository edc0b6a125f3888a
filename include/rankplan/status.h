/* Statuses and error messages.
 *
 * Every function that can fail returns an rp_status, and takes an optional
 * rp_error in which the reason stands in words: it names the thing that is
 * wrong (a file, a tensor, an op with its index) and the numbers that were
 * found and expected.  A function that fails leaves its outputs untouched.
 */
#ifndef RANKPLAN_STATUS_H
#define RANKPLAN_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

/* RP_API marks what the shared library exports; RP_CHECKED results must be looked at. */
#if defined(__GNUC__)
#define RP_API               __attribute__((visibility("default")))
#define RP_CHECKED           __attribute__((warn_unused_result))
#define RP_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define RP_API
#define RP_CHECKED
#define RP_PRINTF(fmt, args)
#endif

typedef enum rp_status {
    RP_OK = 0,
    RP_ERR_INVALID = 1,     /* an argument of the call is wrong */
    RP_ERR_NOMEM = 2,       /* memory could not be had */
    RP_ERR_IO = 3,          /* a file could not be opened, read or written */
    RP_ERR_FORMAT = 4,      /* a file is not what it says it is */
    RP_ERR_SHAPE = 5,       /* shapes, widths or row kinds do not fit together */
    RP_ERR_UNSUPPORTED = 6, /* well-formed, but not something this build can run */
    RP_ERR_MISSING = 7,     /* a tensor, key, file or output that is needed is absent */
    RP_ERR_BUCKET = 8,      /* the batch does not fit the bucket */
    RP_ERR_LIMIT = 9,       /* over a stated limit (length, size, count) */
    RP_ERR_NONFINITE = 10,  /* a NaN or an infinity where a result was due */
    RP_ERR_SYSTEM = 11,     /* the operating system refused (threads, affinity) */
    RP_ERR_STOPPED = 12,    /* stopped by the caller's observer */
    RP_ERR_DEADLINE = 13,   /* the caller's deadline has passed */
    RP_ERR_CANCELLED = 14   /* the caller has cancelled it */
} rp_status;

/* The size of the message with its terminating 0; longer messages are cut. */
#define RP_ERROR_MESSAGE_BYTES 512

/* A status with its reason.  Lives wherever the caller puts it (the stack is
 * fine); never needs to be freed.  Wherever a function takes an `rp_error *err`,
 * NULL is allowed.  It is written only on failure. */
typedef struct rp_error {
    rp_status status;
    char message[RP_ERROR_MESSAGE_BYTES];
} rp_error;

/* "RP_ERR_SHAPE" for RP_ERR_SHAPE; "RP_ERR_UNKNOWN" for a number that is none.
 * The string is static.  Any thread.  Does not allocate. */
RP_API const char *rp_status_name(rp_status status);

#ifdef __cplusplus
}
#endif
#endif
