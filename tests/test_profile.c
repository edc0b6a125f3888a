/* Profiles: times add up, work is counted as it is, and looking changes nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/alloc_count.h"
#include "tests/toy.h"

#include <stdlib.h>
#include <string.h>

static struct toy toy;
static struct toy_batch batch;
static const size_t lengths[] = {17, 1, 3, 128, 2, 64, 5, 33, 200, 16};
#define N (sizeof lengths / sizeof *lengths)

static int make(void **state)
{
    (void)state;
    struct toy_options o;
    toy_options_init(&o);
    o.heads = 4;
    o.head_dim = 32;
    o.intermediate = 256;
    toy_make(&toy, &o);
    toy_batch_make(&batch, lengths, N, toy.vocabulary, 5);
    return 0;
}

static int unmake(void **state)
{
    (void)state;
    toy_batch_free(&batch);
    toy_free(&toy);
    return 0;
}

static rp_session *session_on(rp_pool *pool)
{
    rp_session_options o;
    rp_session *s;
    rp_session_options_init(&o);
    o.pool = pool;
    assert_int_equal(rp_session_create(toy.graph, toy.weights, &o, &s, NULL), RP_OK);
    return s;
}

static rp_profile read_profile(rp_session *s)
{
    rp_profile p = {.struct_size = sizeof p};
    assert_int_equal(rp_session_profile(s, &p, NULL), RP_OK);
    return p;
}

static uint64_t sum_of_steps(const rp_profile *p)
{
    uint64_t ns = 0;
    for (size_t i = 0; i < p->n_steps; i++)
        ns += p->steps[i].ns;
    return ns;
}

/* Steps and waiting are all there is: on every worker they fill the time of the runs. */
static void times_add_up(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        rp_pool *pool = toy_pool(threads);
        rp_session *s = session_on(pool);
        assert_int_equal(rp_session_run(s, &batch.batch, NULL), RP_OK);
        assert_int_equal(rp_session_profile_start(s, 0, NULL), RP_OK);
        for (int i = 0; i < 5; i++)
            assert_int_equal(rp_session_run(s, &batch.batch, NULL), RP_OK);
        const rp_profile p = read_profile(s);
        const uint64_t seen = sum_of_steps(&p) + p.wait_ns;
        assert_int_equal(p.runs, 5);
        assert_int_equal(p.n_workers, threads);
        assert_true(seen <= p.wall_ns * (uint64_t)threads);
        /* One worker has nobody to be woken, so nothing but the steps remains. */
        if (threads == 1)
            assert_true((double)seen >= 0.97 * (double)p.wall_ns);
        rp_session_destroy(s);
        rp_pool_destroy(pool);
    }
}

/* Operations are those of the plan, however rows and columns were cut. */
static void work_is_counted(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 7; threads += 3) {
        rp_pool *pool = toy_pool(threads);
        rp_session *s = session_on(pool);
        const rp_plan *plan;
        const size_t small[] = {9, 4};
        struct toy_batch few;
        toy_batch_make(&few, small, 2, toy.vocabulary, 5);
        for (int which = 0; which < 2; which++) {
            const rp_batch *b = which ? &few.batch : &batch.batch;
            assert_int_equal(rp_session_profile_start(s, 0, NULL), RP_OK);
            assert_int_equal(rp_session_run(s, b, NULL), RP_OK);
            const rp_profile p = read_profile(s);
            uint64_t products = 0;
            assert_int_equal(rp_session_plan(s, (size_t)b->cu[b->n_seqs], b->n_seqs,
                                             (size_t)b->mcu[b->n_seqs], &plan, NULL),
                             RP_OK);
            const rp_profile again = read_profile(s);
            for (size_t i = 0; i < p.n_steps; i++) {
                rp_step_info info;
                assert_int_equal(rp_plan_step(plan, i, &info), RP_OK);
                assert_true(again.steps[i].calls > 0 || info.rows == RP_ROWS_MARKERS);
                if (strcmp(info.kind, "gemm") == 0 || strcmp(info.kind, "attention") == 0)
                    products += again.steps[i].flops;
            }
            const double want = (double)rp_plan_flops(plan, b);
            assert_true((double)products > 0.9999 * want && (double)products < 1.0001 * want);
        }
        toy_batch_free(&few);
        rp_session_destroy(s);
        rp_pool_destroy(pool);
    }
}

/* Events of one worker follow each other, none overlaps the next, and there are no more than were
 * asked for. */
static void events_nest(void **state)
{
    (void)state;
    rp_pool *pool = toy_pool(2);
    rp_session *s = session_on(pool);
    assert_int_equal(rp_session_profile_start(s, 100, NULL), RP_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(rp_session_run(s, &batch.batch, NULL), RP_OK);
    const rp_profile p = read_profile(s);
    uint64_t last[2] = {0, 0};
    assert_true(p.n_events > 50 && p.n_events <= 100);
    for (size_t i = 0; i < p.n_events; i++) {
        const rp_profile_event *e = &p.events[i];
        assert_true(e->worker < 2 && e->step < p.n_steps);
        assert_true(e->start_ns >= last[e->worker] && e->end_ns >= e->start_ns);
        last[e->worker] = e->end_ns;
    }
    rp_session_destroy(s);
    rp_pool_destroy(pool);
}

static void profiling_changes_nothing(void **state)
{
    (void)state;
    rp_session *s = session_on(NULL);
    rp_view v;
    rp_profile p = {.struct_size = sizeof p};
    rp_error err;
    assert_int_equal(rp_session_profile(s, &p, &err), RP_ERR_INVALID);
    assert_string_equal(err.message, "no profile was started");
    assert_int_equal(rp_session_run(s, &batch.batch, NULL), RP_OK);
    assert_int_equal(rp_session_output(s, "last", &v, NULL), RP_OK);
    float *copy = malloc(v.rows * v.width * sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, v.data, v.rows * v.width * sizeof *copy);
    assert_int_equal(rp_session_profile_start(s, 10, NULL), RP_OK);
    const size_t before = alloc_count();
    assert_int_equal(rp_session_run(s, &batch.batch, NULL), RP_OK);
    if (alloc_count_available())
        assert_int_equal(alloc_count(), before);
    assert_int_equal(rp_session_output(s, "last", &v, NULL), RP_OK);
    assert_memory_equal(v.data, copy, v.rows * v.width * sizeof *copy);
    rp_session_profile_stop(s);
    assert_int_equal(rp_session_run(s, &batch.batch, NULL), RP_OK);
    assert_int_equal(rp_session_profile(s, &p, NULL), RP_ERR_INVALID);
    free(copy);
    rp_session_destroy(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(times_add_up),
        cmocka_unit_test(work_is_counted),
        cmocka_unit_test(events_nest),
        cmocka_unit_test(profiling_changes_nothing),
    };
    return cmocka_run_group_tests(tests, make, unmake);
}
