/* What ends a run early: a flag of the caller's, and a point in time.
 *
 * Both are only looked at, and whoever finds that it is time has to see to it that the others leave
 * too (plan/run.c does for the workers of a run).
 */
#ifndef RP_PLAN_STOP_H
#define RP_PLAN_STOP_H

#include <rankplan/plan.h>

#include <stdatomic.h>

struct rp_cancel {
    atomic_bool set; /* by rp_cancel_set(); carries no data, so relaxed is enough */
};

struct rp_stop {
    const rp_cancel *cancel; /* NULL: none */
    uint64_t deadline_ns;    /* RP_NO_DEADLINE: none */
};

/* Whether it has to be looked at at all. */
static inline bool rp_stop_possible(const struct rp_stop *stop)
{
    return stop->cancel || stop->deadline_ns != RP_NO_DEADLINE;
}

/* RP_OK to go on, RP_ERR_CANCELLED or RP_ERR_DEADLINE.  Reads the clock only for a deadline. */
static inline rp_status rp_stop_check(const struct rp_stop *stop)
{
    if (stop->cancel && atomic_load_explicit(&stop->cancel->set, memory_order_relaxed))
        return RP_ERR_CANCELLED;
    if (stop->deadline_ns != RP_NO_DEADLINE && rp_now_ns() >= stop->deadline_ns)
        return RP_ERR_DEADLINE;
    return RP_OK;
}

/* Fails when it is time to stop before anything has begun. */
RP_CHECKED rp_status rp_stop_refuse(const struct rp_stop *stop, rp_error *err);

/* "cancelled" or "the deadline has passed", for messages. */
const char *rp_stop_reason(rp_status status);

/* What ends the runs of a session (plan/session.c). */
const struct rp_stop *rp_session_stop(const rp_session *session);

#endif
