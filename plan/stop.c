/* Cancellation flags. */
#include "plan/stop.h"

#include "pool/error.h"

#include <stdlib.h>

/* A signal handler may only touch atomics that need no lock. */
_Static_assert(ATOMIC_BOOL_LOCK_FREE == 2, "rp_cancel_set() in a signal handler");

rp_status rp_cancel_create(rp_cancel **out, rp_error *err)
{
    rp_cancel *cancel = malloc(sizeof *cancel);
    if (!cancel)
        return rp_fail(err, RP_ERR_NOMEM, "no memory for a cancellation flag");
    atomic_init(&cancel->set, false);
    *out = cancel;
    return RP_OK;
}

void rp_cancel_destroy(rp_cancel *cancel)
{
    free(cancel);
}

void rp_cancel_set(rp_cancel *cancel)
{
    atomic_store_explicit(&cancel->set, true, memory_order_relaxed);
}

void rp_cancel_clear(rp_cancel *cancel)
{
    atomic_store_explicit(&cancel->set, false, memory_order_relaxed);
}

bool rp_cancel_is_set(const rp_cancel *cancel)
{
    return atomic_load_explicit(&cancel->set, memory_order_relaxed);
}

const char *rp_stop_reason(rp_status status)
{
    return status == RP_ERR_CANCELLED ? "cancelled" : "the deadline has passed";
}

rp_status rp_stop_refuse(const struct rp_stop *stop, rp_error *err)
{
    const rp_status status = rp_stop_check(stop);
    if (status == RP_OK)
        return RP_OK;
    return rp_fail(err, status, "%s, nothing was run", rp_stop_reason(status));
}
