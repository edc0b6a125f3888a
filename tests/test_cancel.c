/* Stopping: by a flag and by a deadline, before a run, within it and from other threads.  A stopped
 * run says why, leaves no worker behind and nothing to read, allocates nothing, and the next run
 * has the bits that it always had.  And many sessions on one pool, where nobody is stopped or mixed
 * up.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/alloc_count.h"
#include "tests/toy.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* A sanitizer makes everything many times slower, and so does an emulator of many threads. */
#if defined(__aarch64__)
#define ROUNDS 3
#define RUNS   4
#elif defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define ROUNDS 10
#define RUNS   40
#else
#define ROUNDS 120
#define RUNS   200
#endif

/* By chunk on up to 7 threads, and by step. */
static const size_t large[] = {17, 1, 3, 128, 2, 64, 5, 33, 200, 16};
static const size_t small[] = {9, 4};

static struct toy toy;

static int make_toy(void **state)
{
    (void)state;
    struct toy_options o;
    toy_options_init(&o);
    toy_make(&toy, &o);
    return 0;
}

static int free_toy(void **state)
{
    (void)state;
    toy_free(&toy);
    return 0;
}

/* A session with its pool, a flag, a batch, and the bits that the batch has. */
struct stage {
    rp_pool *pool;
    rp_session *session;
    rp_cancel *cancel;
    struct toy_batch b;
    uint64_t want;
};

static void run_ok(const struct stage *t)
{
    rp_error err = {RP_OK, ""};
    if (rp_session_run(t->session, &t->b.batch, &err) != RP_OK)
        fail_msg("%s", err.message);
    assert_int_equal(toy_hash_outputs(t->session), t->want);
}

static rp_session *make_session(rp_pool *pool)
{
    rp_session_options o;
    rp_session *s;
    rp_session_options_init(&o);
    o.pool = pool;
    o.poison = true;
    assert_int_equal(rp_session_create(toy.graph, toy.weights, &o, &s, NULL), RP_OK);
    return s;
}

static void open_stage(struct stage *t, int threads, const size_t *lengths, size_t n)
{
    memset(t, 0, sizeof *t);
    toy_batch_make(&t->b, lengths, n, toy.vocabulary, 5);
    t->session = make_session(NULL);
    assert_int_equal(rp_session_run(t->session, &t->b.batch, NULL), RP_OK);
    t->want = toy_hash_outputs(t->session);
    rp_session_destroy(t->session);
    t->pool = toy_pool(threads);
    t->session = make_session(t->pool);
    assert_int_equal(rp_cancel_create(&t->cancel, NULL), RP_OK);
}

static void close_stage(struct stage *t)
{
    rp_session_destroy(t->session);
    rp_pool_destroy(t->pool);
    rp_cancel_destroy(t->cancel);
    toy_batch_free(&t->b);
}

static void expect_nothing_to_read(const struct stage *t)
{
    rp_view v;
    rp_error err;
    assert_int_equal(rp_session_output(t->session, "last", &v, &err), RP_ERR_MISSING);
    assert_string_equal(err.message, "output last: the last run was stopped");
}

static void expect_stop(const struct stage *t, rp_status status, const char *message)
{
    rp_error err = {RP_OK, ""};
    assert_int_equal(rp_session_run(t->session, &t->b.batch, &err), status);
    assert_int_equal(err.status, status);
    assert_string_equal(err.message, message);
    expect_nothing_to_read(t);
}

/* ---- before a run -------------------------------------------------------------------------------
 */

static void a_flag_that_is_set_refuses_runs(void **state)
{
    (void)state;
    struct stage t;
    open_stage(&t, 2, large, COUNT(large));
    rp_session_set_cancel(t.session, t.cancel);
    assert_false(rp_cancel_is_set(t.cancel));
    run_ok(&t);
    rp_cancel_set(t.cancel);
    assert_true(rp_cancel_is_set(t.cancel));
    for (int again = 0; again < 2; again++)
        expect_stop(&t, RP_ERR_CANCELLED, "cancelled, nothing was run");
    rp_cancel_clear(t.cancel);
    run_ok(&t);
    rp_cancel_set(t.cancel);
    rp_session_set_cancel(t.session, NULL);
    run_ok(&t);
    close_stage(&t);
}

static void a_deadline_in_the_past_refuses_runs(void **state)
{
    (void)state;
    struct stage t;
    open_stage(&t, 2, large, COUNT(large));
    /* A session that never ran: not even a plan is made. */
    const size_t before = alloc_count();
    rp_session_set_deadline(t.session, rp_now_ns());
    for (int again = 0; again < 2; again++)
        expect_stop(&t, RP_ERR_DEADLINE, "the deadline has passed, nothing was run");
    rp_session_set_deadline(t.session, 0);
    expect_stop(&t, RP_ERR_DEADLINE, "the deadline has passed, nothing was run");
    assert_int_equal(alloc_count(), before);
    rp_session_set_deadline(t.session, RP_NO_DEADLINE);
    run_ok(&t);
    rp_session_set_deadline(t.session, rp_now_ns() + (uint64_t)3600 * 1000000000);
    run_ok(&t);
    close_stage(&t);
}

/* What is wrong with a batch is said even when it would not have been run. */
static void wrong_batches_are_named_first(void **state)
{
    (void)state;
    struct stage t;
    open_stage(&t, 1, small, COUNT(small));
    rp_batch none = t.b.batch;
    none.n_seqs = 0;
    rp_session_set_deadline(t.session, 0);
    assert_int_equal(rp_session_run(t.session, &none, NULL), RP_ERR_INVALID);
    close_stage(&t);
}

/* ---- within a run -------------------------------------------------------------------------------
 */

/* An observer that, shown the step of a name, does what it was told to. */
struct trigger {
    const char *at;
    size_t shown;
    rp_cancel *set;      /* NULL: none */
    uint64_t wait_until; /* 0: none */
    int signal;          /* 0: none */
};

static bool want_all(void *context, const rp_step_info *step)
{
    (void)context;
    (void)step;
    return true;
}

static rp_status pull(void *context, const rp_step_info *step, const rp_view *view)
{
    struct trigger *trigger = context;
    (void)view;
    trigger->shown++;
    if (strcmp(step->name, trigger->at) != 0)
        return RP_OK;
    if (trigger->set)
        rp_cancel_set(trigger->set);
    if (trigger->signal)
        raise(trigger->signal);
    while (rp_now_ns() < trigger->wait_until)
        sched_yield();
    return RP_OK;
}

static void observe(const struct stage *t, struct trigger *trigger)
{
    const rp_observer observer = {
        .struct_size = sizeof observer, .want = want_all, .show = pull, .context = trigger};
    rp_session_observe(t->session, &observer);
}

static void the_observer_may_set_the_flag(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        struct stage t;
        open_stage(&t, threads, large, COUNT(large));
        struct trigger trigger = {.at = "layers.0.attn.core", .set = t.cancel};
        rp_session_set_cancel(t.session, t.cancel);
        observe(&t, &trigger);
        expect_stop(&t, RP_ERR_CANCELLED, "cancelled, before step 4 (layers.0.attn.out) of 20");
        assert_int_equal(trigger.shown, 4); /* and none after it */
        rp_cancel_clear(t.cancel);
        rp_session_observe(t.session, NULL);
        run_ok(&t);
        /* After the last step there is nothing left to stop. */
        trigger = (struct trigger){.at = "marked", .set = t.cancel};
        observe(&t, &trigger);
        run_ok(&t);
        expect_stop(&t, RP_ERR_CANCELLED, "cancelled, nothing was run");
        close_stage(&t);
    }
}

/* The deadline passes while a step is shown.  A machine that is kept from working may be late for
 * that step already; it then gets four times as long. */
static void expect_late(struct stage *t, uint64_t ms)
{
    static const char want[] = "the deadline has passed, before step 10 (layers.1.attn.core) of 20";
    const uint64_t deadline = rp_now_ns() + ms * 1000000;
    struct trigger trigger = {.at = "layers.1.attn.qkv", .wait_until = deadline};
    rp_error err = {RP_OK, ""};
    rp_session_set_deadline(t->session, deadline);
    observe(t, &trigger);
    assert_int_equal(rp_session_run(t->session, &t->b.batch, &err), RP_ERR_DEADLINE);
    expect_nothing_to_read(t);
    if (strcmp(err.message, want) != 0 && ms < 20000)
        expect_late(t, 4 * ms);
    else
        assert_string_equal(err.message, want);
}

static void a_deadline_may_pass_within_a_run(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        struct stage t;
        open_stage(&t, threads, large, COUNT(large));
        run_ok(&t);
        expect_late(&t, 400);
        rp_session_observe(t.session, NULL);
        rp_session_set_deadline(t.session, RP_NO_DEADLINE);
        run_ok(&t);
        close_stage(&t);
    }
}

static rp_cancel *of_handler;

static void on_signal(int number)
{
    (void)number;
    rp_cancel_set(of_handler);
}

static void a_signal_handler_may_set_the_flag(void **state)
{
    (void)state;
    struct stage t;
    open_stage(&t, 2, large, COUNT(large));
    struct trigger trigger = {.at = "embeddings.sum", .signal = SIGUSR1};
    of_handler = t.cancel;
    assert_true(signal(SIGUSR1, on_signal) != SIG_ERR);
    rp_session_set_cancel(t.session, t.cancel);
    observe(&t, &trigger);
    expect_stop(&t, RP_ERR_CANCELLED, "cancelled, before step 1 (embeddings.norm) of 20");
    signal(SIGUSR1, SIG_DFL);
    close_stage(&t);
}

/* A digest is a run as well. */
static void a_digest_can_be_stopped(void **state)
{
    (void)state;
    struct stage t;
    uint64_t hashes[64];
    rp_digest digest = {.struct_size = sizeof digest, .capacity = 64, .hashes = hashes};
    open_stage(&t, 2, large, COUNT(large));
    struct trigger trigger = {.at = "layers.1.ffn.up", .set = t.cancel};
    rp_session_set_cancel(t.session, t.cancel);
    observe(&t, &trigger);
    assert_int_equal(rp_session_digest(t.session, &t.b.batch, &digest, NULL), RP_ERR_CANCELLED);
    expect_nothing_to_read(&t);
    close_stage(&t);
}

/* ---- from another thread ------------------------------------------------------------------------
 */

/* A thread that sets the flag some time after each start of a run. */
struct canceller {
    rp_cancel *cancel;
    uint64_t seed, longest_ns;
    atomic_int round; /* counted by the runner; -1 ends the thread */
};

static void *cancel_at_random(void *arg)
{
    struct canceller *c = arg;
    for (int round = 1;; round++) {
        int now;
        while ((now = atomic_load(&c->round)) != round && now != -1)
            sched_yield();
        if (now == -1)
            return NULL;
        const uint64_t at = rp_now_ns() + toy_random(&c->seed) % c->longest_ns;
        while (rp_now_ns() < at)
            sched_yield();
        rp_cancel_set(c->cancel);
    }
}

/* How long a run takes when nobody is in its way. */
static uint64_t shortest_run(const struct stage *t)
{
    uint64_t shortest = UINT64_MAX;
    for (int i = 0; i < 8; i++) {
        const uint64_t start = rp_now_ns();
        run_ok(t);
        const uint64_t took = rp_now_ns() - start;
        shortest = took < shortest ? took : shortest;
    }
    return shortest;
}

/* Runs, one after the other, until one is cancelled.  Whether that one had begun. */
static bool run_until_cancelled(const struct stage *t)
{
    rp_error err;
    rp_status status;
    while ((status = rp_session_run(t->session, &t->b.batch, &err)) == RP_OK)
        assert_int_equal(toy_hash_outputs(t->session), t->want);
    assert_int_equal(status, RP_ERR_CANCELLED);
    expect_nothing_to_read(t);
    return strstr(err.message, "before step") != NULL;
}

/* Runs that are cancelled at random points, each followed by one that is not.  How many had begun.
 */
static size_t cancel_many(struct stage *t, uint64_t seed)
{
    struct canceller c = {.cancel = t->cancel, .seed = seed};
    pthread_t thread;
    size_t within = 0;
    run_ok(t);
    c.longest_ns = 2 * shortest_run(t);
    assert_int_equal(pthread_create(&thread, NULL, cancel_at_random, &c), 0);
    const size_t before = alloc_count();
    for (int round = 1; round <= ROUNDS; round++) {
        rp_session_set_cancel(t->session, t->cancel);
        atomic_store(&c.round, round);
        within += run_until_cancelled(t);
        rp_cancel_clear(t->cancel);
        if (round % 2)
            rp_session_set_cancel(t->session, NULL);
        run_ok(t);
    }
    assert_int_equal(alloc_count(), before);
    atomic_store(&c.round, -1);
    pthread_join(thread, NULL);
    return within;
}

static void cancelled_anywhere_by_another_thread(void **state)
{
    (void)state;
    const int threads[] = {1, 2, 3, 7};
    const uint64_t seed = 20240607;
    size_t all_within = 0;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (size_t i = 0; i < COUNT(threads); i++)
        for (int mode = 0; mode < 3; mode++) { /* by chunk, by step, and observed */
            struct stage t;
            open_stage(&t, threads[i], mode == 1 ? small : large,
                       mode == 1 ? COUNT(small) : COUNT(large));
            struct trigger nothing = {.at = ""};
            if (mode == 2)
                observe(&t, &nothing);
            const size_t within = cancel_many(&t, seed + i);
            print_message("%d threads, mode %d: %zu of %d were cancelled after they had begun\n",
                          threads[i], mode, within, ROUNDS);
            all_within += within;
            close_stage(&t);
        }
    assert_true(all_within > 0);
}

/* Deadlines at random points, on every number of threads. */
static void deadlines_anywhere(void **state)
{
    (void)state;
    const int threads[] = {1, 2, 3, 7};
    uint64_t seed = 99;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (size_t i = 0; i < COUNT(threads); i++) {
        struct stage t;
        size_t passed = 0;
        open_stage(&t, threads[i], large, COUNT(large));
        const uint64_t took = shortest_run(&t);
        for (int round = 0; round < ROUNDS; round++) {
            rp_session_set_deadline(t.session, rp_now_ns() + toy_random(&seed) % took);
            const rp_status status = rp_session_run(t.session, &t.b.batch, NULL);
            if (status == RP_OK)
                assert_int_equal(toy_hash_outputs(t.session), t.want);
            assert_true(status == RP_OK || status == RP_ERR_DEADLINE);
            passed += status == RP_ERR_DEADLINE;
        }
        print_message("%d threads: %zu of %d deadlines passed\n", threads[i], passed, ROUNDS);
        assert_true(passed > 0);
        rp_session_set_deadline(t.session, RP_NO_DEADLINE);
        run_ok(&t);
        close_stage(&t);
    }
}

/* ---- many clients -------------------------------------------------------------------------------
 */

#define CLIENTS 32
#define TEXTS   50

struct crowd {
    rp_pool *pool;
    size_t lengths[TEXTS];
    float *vectors[TEXTS]; /* each text's, from a run of its own */
    size_t width;
};

struct client {
    const struct crowd *crowd;
    uint64_t seed;
    size_t wrong;
};

/* Texts are known by their lengths here, so these all differ. */
static void make_vectors(struct crowd *c)
{
    rp_session *s = make_session(NULL);
    for (size_t i = 0; i < TEXTS; i++) {
        struct toy_batch b;
        rp_view v;
        c->lengths[i] = 1 + 2 * i;
        toy_batch_make(&b, &c->lengths[i], 1, toy.vocabulary, 9);
        assert_int_equal(rp_session_run(s, &b.batch, NULL), RP_OK);
        assert_int_equal(rp_session_output(s, "embedding", &v, NULL), RP_OK);
        c->width = v.width;
        c->vectors[i] = malloc(v.width * sizeof(float));
        assert_non_null(c->vectors[i]);
        memcpy(c->vectors[i], v.data, v.width * sizeof(float));
        toy_batch_free(&b);
    }
    rp_session_destroy(s);
}

static void run_some_texts(struct client *c, rp_session *s)
{
    size_t which[3], lengths[3];
    const size_t n = 1 + toy_random(&c->seed) % 3;
    for (size_t i = 0; i < n; i++) {
        which[i] = toy_random(&c->seed) % TEXTS;
        lengths[i] = c->crowd->lengths[which[i]];
    }
    struct toy_batch b;
    rp_view v = {0};
    toy_batch_make(&b, lengths, n, toy.vocabulary, 9);
    const bool ok = rp_session_run(s, &b.batch, NULL) == RP_OK &&
                    rp_session_output(s, "embedding", &v, NULL) == RP_OK;
    for (size_t i = 0; ok && i < n; i++)
        c->wrong +=
            memcmp(v.data + i * v.width, c->crowd->vectors[which[i]], v.width * sizeof(float)) != 0;
    c->wrong += !ok;
    toy_batch_free(&b);
}

static void *client(void *arg)
{
    struct client *c = arg;
    rp_session *s = make_session(c->crowd->pool);
    for (int i = 0; i < RUNS; i++)
        run_some_texts(c, s);
    rp_session_destroy(s);
    return NULL;
}

/* Every vector is the one that the text has alone, whoever else is running. */
static void many_sessions_share_one_pool(void **state)
{
    (void)state;
    struct crowd crowd = {0};
    struct client clients[CLIENTS];
    pthread_t threads[CLIENTS];
    crowd.pool = toy_pool(2);
    make_vectors(&crowd);
    for (size_t i = 0; i < CLIENTS; i++) {
        clients[i] = (struct client){.crowd = &crowd, .seed = i};
        assert_int_equal(pthread_create(&threads[i], NULL, client, &clients[i]), 0);
    }
    for (size_t i = 0; i < CLIENTS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(clients[i].wrong, 0);
    }
    for (size_t i = 0; i < TEXTS; i++)
        free(crowd.vectors[i]);
    rp_pool_destroy(crowd.pool);
}

/* One flag ends the runs of all who have it: a service that shuts down. */
static void one_flag_for_many_sessions(void **state)
{
    (void)state;
    struct stage a, b;
    open_stage(&a, 2, large, COUNT(large));
    open_stage(&b, 1, small, COUNT(small));
    rp_session_set_cancel(a.session, a.cancel);
    rp_session_set_cancel(b.session, a.cancel);
    run_ok(&a);
    run_ok(&b);
    rp_cancel_set(a.cancel);
    expect_stop(&a, RP_ERR_CANCELLED, "cancelled, nothing was run");
    expect_stop(&b, RP_ERR_CANCELLED, "cancelled, nothing was run");
    rp_session_set_cancel(b.session, NULL);
    close_stage(&a);
    run_ok(&b);
    close_stage(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_flag_that_is_set_refuses_runs),
        cmocka_unit_test(a_deadline_in_the_past_refuses_runs),
        cmocka_unit_test(wrong_batches_are_named_first),
        cmocka_unit_test(the_observer_may_set_the_flag),
        cmocka_unit_test(a_deadline_may_pass_within_a_run),
        cmocka_unit_test(a_signal_handler_may_set_the_flag),
        cmocka_unit_test(a_digest_can_be_stopped),
        cmocka_unit_test(cancelled_anywhere_by_another_thread),
        cmocka_unit_test(deadlines_anywhere),
        cmocka_unit_test(many_sessions_share_one_pool),
        cmocka_unit_test(one_flag_for_many_sessions),
    };
    return cmocka_run_group_tests(tests, make_toy, free_toy);
}
