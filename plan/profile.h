/* Profiles: what each worker spent on each step, kept apart by worker so that nobody waits to
 * count.
 *
 * Off, a run pays one test of a pointer per task.  On, the clock is read once at each border
 * between steps: the end of one is the start of the next.
 */
#ifndef RP_PLAN_PROFILE_H
#define RP_PLAN_PROFILE_H

#include "plan/plan.h"

struct rp_run;

/* What one worker saw; each has cache lines of its own. */
struct rp_profile_lane {
    _Alignas(64) rp_profile_step *steps; /* n_steps */
    rp_profile_event *events;
    size_t n_events;
    uint64_t wait_ns;
    uint64_t mark; /* the last time that was read */
};

struct rp_profiling {
    size_t n_steps, n_lanes, max_events; /* events: of each lane */
    struct rp_profile_lane *lanes;
    rp_profile_step *sums;    /* of all lanes, for reading */
    rp_profile_event *merged; /* likewise */
    uint64_t start_ns, runs, wall_ns;
};

RP_CHECKED rp_status rp_profiling_create(size_t n_steps, size_t n_lanes, size_t max_events,
                                         struct rp_profiling **out, rp_error *err);
void rp_profiling_destroy(struct rp_profiling *p);

/* The worker has just finished `step` on rows [r0, r1) and the share of columns, having started at
 * lane->mark. */
void rp_profile_rows(struct rp_profiling *p, size_t lane, size_t step, const struct rp_step *s,
                     size_t rows, double share);
/* The same for a task of a step that does not work by row, with its work said. */
void rp_profile_task(struct rp_profiling *p, size_t lane, size_t step, uint64_t flops,
                     uint64_t bytes, size_t rows);
/* The worker starts to work, or has waited for the others since lane->mark. */
void rp_profile_mark(struct rp_profiling *p, size_t lane);
void rp_profile_waited(struct rp_profiling *p, size_t lane);

/* Adds up what the lanes saw. */
void rp_profiling_read(struct rp_profiling *p, rp_profile *out);

#endif
