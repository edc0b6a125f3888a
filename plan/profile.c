/* Profiles: counting where the time goes, and adding it up. */
#include "plan/profile.h"

#include "pool/error.h"
#include "pool/memory.h"

#include <stdlib.h>
#include <string.h>

static rp_status make_lanes(struct rp_profiling *p, rp_error *err)
{
    size_t bytes;
    if (rp_mul_ok(p->n_lanes, sizeof *p->lanes, &bytes))
        p->lanes = rp_aligned_alloc_zero(bytes);
    p->sums = calloc(p->n_steps, sizeof *p->sums);
    bool ok = p->lanes && p->sums;
    for (size_t i = 0; ok && i < p->n_lanes; i++) {
        p->lanes[i].steps = calloc(p->n_steps, sizeof *p->lanes[i].steps);
        ok = p->lanes[i].steps != NULL;
        if (ok && p->max_events) {
            p->lanes[i].events = calloc(p->max_events, sizeof *p->lanes[i].events);
            ok = p->lanes[i].events != NULL;
        }
    }
    if (ok && p->max_events) {
        p->merged = calloc(p->n_lanes, p->max_events * sizeof *p->merged);
        ok = p->merged != NULL;
    }
    return ok ? RP_OK
              : rp_fail(err, RP_ERR_NOMEM, "no memory for a profile of %zu steps", p->n_steps);
}

rp_status rp_profiling_create(size_t n_steps, size_t n_lanes, size_t max_events,
                              struct rp_profiling **out, rp_error *err)
{
    if (max_events > SIZE_MAX / sizeof(rp_profile_event) / n_lanes)
        return rp_fail(err, RP_ERR_LIMIT, "a profile of %zu events is too large", max_events);
    struct rp_profiling *p = calloc(1, sizeof *p);
    if (!p)
        return rp_fail(err, RP_ERR_NOMEM, "no memory for a profile");
    p->n_steps = n_steps;
    p->n_lanes = n_lanes;
    p->max_events = max_events / n_lanes;
    const rp_status status = make_lanes(p, err);
    if (status != RP_OK) {
        rp_profiling_destroy(p);
        return status;
    }
    p->start_ns = rp_now_ns();
    *out = p;
    return RP_OK;
}

void rp_profiling_destroy(struct rp_profiling *p)
{
    if (!p)
        return;
    for (size_t i = 0; p->lanes && i < p->n_lanes; i++) {
        free(p->lanes[i].steps);
        free(p->lanes[i].events);
    }
    rp_aligned_free(p->lanes);
    free(p->sums);
    free(p->merged);
    free(p);
}

void rp_profile_mark(struct rp_profiling *p, size_t lane)
{
    p->lanes[lane].mark = rp_now_ns();
}

void rp_profile_waited(struct rp_profiling *p, size_t lane)
{
    struct rp_profile_lane *l = &p->lanes[lane];
    const uint64_t now = rp_now_ns();
    l->wait_ns += now - l->mark;
    l->mark = now;
}

void rp_profile_task(struct rp_profiling *p, size_t lane, size_t step, uint64_t flops,
                     uint64_t bytes, size_t rows)
{
    struct rp_profile_lane *l = &p->lanes[lane];
    const uint64_t now = rp_now_ns();
    rp_profile_step *s = &l->steps[step];
    s->calls++;
    s->ns += now - l->mark;
    s->flops += flops;
    s->bytes += bytes;
    if (l->n_events < p->max_events)
        l->events[l->n_events++] = (rp_profile_event){.start_ns = l->mark - p->start_ns,
                                                      .end_ns = now - p->start_ns,
                                                      .step = (uint32_t)step,
                                                      .worker = (uint32_t)lane,
                                                      .rows = (uint32_t)rows,
                                                      .flops = flops};
    l->mark = now;
}

/* Of a step's weights those that so many rows can need: experts nobody chose are not read. */
static double fixed_bytes(const struct rp_step *s, size_t rows)
{
    const double all = (double)s->bytes_fixed;
    if (s->op != RP_OP_EXPERTS || rows * s->p.experts.n_used >= s->p.experts.n_experts)
        return all;
    return all * (double)(rows * s->p.experts.n_used) / (double)s->p.experts.n_experts;
}

void rp_profile_rows(struct rp_profiling *p, size_t lane, size_t step, const struct rp_step *s,
                     size_t rows, double share)
{
    const double row_share = share * (double)rows;
    rp_profile_task(p, lane, step, (uint64_t)((double)s->flops_per_row * row_share),
                    (uint64_t)((double)s->bytes_per_row * row_share + fixed_bytes(s, rows) * share),
                    rows);
}

void rp_profiling_read(struct rp_profiling *p, rp_profile *out)
{
    size_t n_events = 0;
    uint64_t wait = 0;
    memset(p->sums, 0, p->n_steps * sizeof *p->sums);
    for (size_t i = 0; i < p->n_lanes; i++) {
        const struct rp_profile_lane *l = &p->lanes[i];
        for (size_t s = 0; s < p->n_steps; s++) {
            p->sums[s].calls += l->steps[s].calls;
            p->sums[s].ns += l->steps[s].ns;
            p->sums[s].flops += l->steps[s].flops;
            p->sums[s].bytes += l->steps[s].bytes;
        }
        wait += l->wait_ns;
        if (l->n_events)
            memcpy(p->merged + n_events, l->events, l->n_events * sizeof *l->events);
        n_events += l->n_events;
    }
    out->n_steps = p->n_steps;
    out->steps = p->sums;
    out->n_workers = p->n_lanes;
    out->runs = p->runs;
    out->wall_ns = p->wall_ns;
    out->wait_ns = wait;
    out->events = p->merged;
    out->n_events = n_events;
}
