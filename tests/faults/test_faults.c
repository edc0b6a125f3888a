/* A whole life of the library with a call that fails: pool, model, session, run, digest, profile,
 * all destroyed again, with the N-th call of a kind failing, for each N until nothing is left to
 * fail. Every time there is an error with a message or the bits of an undisturbed life; nothing
 * leaks.
 *
 *     test_faults         every 7th allocation, every N of the other kinds
 *     test_faults --all   every N
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <rankplan/rankplan.h>

#include "tests/faults/faults.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_STEPS 64

static bool every_n;

struct life {
    const char *folder;
    rp_pool *pool;
    rp_model *model;
    rp_session *session;
    rp_plan *plan;
    uint64_t whole;
};

static rp_status run_session(struct life *l, rp_error *err)
{
    static const int32_t ids[] = {2, 17, 5, 3, 2, 44, 45, 46, 47, 3}, cu[] = {0, 4, 10};
    uint64_t hashes[MAX_STEPS];
    rp_digest d = {.struct_size = sizeof d, .capacity = MAX_STEPS, .hashes = hashes};
    rp_profile profile = {.struct_size = sizeof profile};
    rp_batch b;
    rp_batch_init(&b);
    b.n_seqs = 2;
    b.ids = ids;
    b.cu = cu;
    rp_status s = rp_session_run(l->session, &b, err);
    if (s == RP_OK)
        s = rp_session_digest(l->session, &b, &d, err);
    l->whole = d.whole;
    if (s == RP_OK)
        s = rp_session_profile_start(l->session, 100, err);
    if (s == RP_OK)
        s = rp_session_run(l->session, &b, err);
    if (s == RP_OK)
        s = rp_session_profile(l->session, &profile, err);
    return s == RP_OK ? rp_session_reserve(l->session, 40, 20, 0, err) : s;
}

static rp_status live_once(struct life *l, rp_error *err)
{
    const rp_bucket bucket = {.tokens = 8, .seqs = 1};
    rp_pool_options po;
    rp_model_options mo;
    rp_session_options so;
    rp_pool_options_init(&po);
    rp_model_options_init(&mo);
    rp_session_options_init(&so);
    po.n_threads = 3;
    mo.flags = RP_MODEL_ALL_OUTPUTS;
    rp_status s = rp_pool_create(&po, &l->pool, err);
    mo.pool = so.pool = l->pool;
    if (s == RP_OK)
        s = rp_model_load(l->folder, &mo, &l->model, err);
    if (s == RP_OK)
        s = rp_session_create(rp_model_graph(l->model), rp_model_weights(l->model), &so,
                              &l->session, err);
    if (s == RP_OK)
        s = run_session(l, err);
    if (s == RP_OK)
        s = rp_plan_compile(rp_model_graph(l->model), rp_model_weights(l->model), &bucket, NULL,
                            &l->plan, err);
    return s;
}

static void end(struct life *l)
{
    rp_plan_destroy(l->plan);
    rp_session_destroy(l->session);
    rp_model_destroy(l->model);
    rp_pool_destroy(l->pool);
}

static bool fits(enum faults_kind kind, rp_status s)
{
    switch (kind) {
    case FAULTS_ALLOC: return s == RP_ERR_NOMEM || faults_in_jansson();
    case FAULTS_THREAD: return s == RP_ERR_SYSTEM;
    case FAULTS_OPEN:
    case FAULTS_READ: return s == RP_ERR_IO;
    default: return s == RP_ERR_NOMEM || s == RP_ERR_SYSTEM;
    }
}

/* How many lives had a failure in them. */
static long live_with_failures(const char *folder, enum faults_kind kind, long step, uint64_t whole)
{
    long refused = 0, unharmed = 0;
    for (long n = 1;; n += step) {
        struct life l = {.folder = folder};
        rp_error err = {0};
        const long before = faults_live();
        faults_arm(kind, n);
        const rp_status s = live_once(&l, &err);
        const bool hit = faults_disarm();
        end(&l);
        if (faults_live() != before)
            fail_msg("call %ld: %ld blocks are lost", n, faults_live() - before);
        if (s == RP_OK)
            assert_int_equal(l.whole, whole);
        else if (!fits(kind, s) || err.status != s || !err.message[0])
            fail_msg("call %ld: %s: %s", n, rp_status_name(s), err.message);
        if (!hit) {
            assert_int_equal(s, RP_OK);
            break;
        }
        refused += s != RP_OK;
        unharmed += s == RP_OK;
    }
    print_message("%s: %ld failures refused, %ld without effect\n", folder, refused, unharmed);
    return refused + unharmed;
}

static void each_call_fails(void **state)
{
    (void)state;
    static const char *const folders[] = {"bert", "mpnet", "electra_cross_encoder"};
    if (!faults_available())
        skip();
    for (size_t f = 0; f < (every_n ? 3 : 2); f++) {
        char path[400];
        struct life l = {.folder = path};
        rp_error err;
        snprintf(path, sizeof path, "%s/oracles/%s", RP_TEST_DATA, folders[f]);
        /* What is made once and kept is made now. */
        if (live_once(&l, &err) != RP_OK)
            fail_msg("%s", err.message);
        end(&l);
        const long step = every_n ? 1 : 7;
        assert_true(live_with_failures(path, FAULTS_ALLOC, step, l.whole) > 500 / step);
        assert_true(live_with_failures(path, FAULTS_THREAD, 1, l.whole) >= 2);
        assert_true(live_with_failures(path, FAULTS_OPEN, 1, l.whole) >= 2);
        assert_true(live_with_failures(path, FAULTS_READ, 1, l.whole) >= 20);
        (void)live_with_failures(path, FAULTS_MMAP, 1, l.whole);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_call_fails)};
    every_n = argc > 1 && strcmp(argv[1], "--all") == 0;
    return cmocka_run_group_tests_name("faults", tests, NULL, NULL);
}
