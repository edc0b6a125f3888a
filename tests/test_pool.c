/* The pool: regions, barriers, sleeping, forks, places, failures, and aligned memory. */
#define _GNU_SOURCE 1
#include "pool/pool.h"

#include "pool/cpus.h"
#include "pool/error.h"
#include "pool/fault.h"
#include "pool/memory.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <cmocka.h>

#define MAX_WORKERS 16

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#elif __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif

/* Neither the thread sanitizer ("dup thread with used id") nor qemu's user emulation (it fails an
 * assertion of its own) knows threads that are started in the child of a process with threads.
 * Whoever tests under an emulator sets RANKPLAN_TEST_EMULATED. */
static void skip_where_forks_lose_threads(void)
{
#if defined(__SANITIZE_THREAD__)
    skip();
#endif
    if (getenv("RANKPLAN_TEST_EMULATED"))
        skip();
}

static rp_pool *make_pool(int n_threads, int pin, unsigned spin_us)
{
    rp_pool_options options;
    rp_pool *pool = NULL;
    rp_error err;
    rp_pool_options_init(&options);
    options.n_threads = n_threads;
    options.pin = pin;
    options.spin_us = spin_us;
    if (rp_pool_create(&options, &pool, &err) != RP_OK)
        fail_msg("%s", err.message);
    assert_int_equal(rp_pool_threads(pool), n_threads);
    return pool;
}

static double seconds(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static int n_threads_at_start; /* 1, or more where a sanitizer has its own */

static int count_threads(void)
{
    int n = 0;
    DIR *dir = opendir("/proc/self/task");
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));)
        n += e->d_name[0] != '.';
    closedir(dir);
    return n;
}

/* A thread that was joined can be listed for a moment still, so the count is given time. */
static bool threads_become(int n)
{
    for (int i = 0; i < 2000 && count_threads() != n; i++)
        sleep_ms(1);
    return count_threads() == n;
}

/* ---- regions and barriers -------------------------------------------------------------------- */

/* Every worker writes its cell, meets the others, reads all cells and meets them again.  The cells
 * are plain memory: what orders them is the barrier alone. */
struct phases {
    int n_expected, n_phases;
    int cells[MAX_WORKERS][16];
    atomic_int wrong, visits;
    int slow; /* this worker comes so late to each phase that the others go to sleep; -1: none */
};

static void phases_body(void *arg, struct rp_worker *w)
{
    struct phases *p = arg;
    int wrong = w->n != p->n_expected || w->index < 0 || w->index >= w->n;
    atomic_fetch_add(&p->visits, 1);
    for (int phase = 1; !wrong && phase <= p->n_phases; phase++) {
        if (w->index == p->slow)
            sleep_ms(1);
        p->cells[w->index][0] = phase;
        rp_worker_barrier(w);
        for (int i = 0; i < w->n; i++)
            wrong += p->cells[i][0] != phase;
        rp_worker_barrier(w);
    }
    atomic_fetch_add(&p->wrong, wrong);
}

static void run_phases(rp_pool *pool, int max_workers, int n_expected, int n_phases, int slow)
{
    struct phases p = {.n_expected = n_expected, .n_phases = n_phases, .slow = slow};
    rp_error err;
    if (rp_pool_region(pool, max_workers, phases_body, &p, &err) != RP_OK)
        fail_msg("%s", err.message);
    assert_int_equal(atomic_load(&p.visits), n_expected);
    assert_int_equal(atomic_load(&p.wrong), 0);
}

static void barriers_of_every_size(void **state)
{
    (void)state;
    for (int n = 1; n <= 9; n++) {
        for (unsigned spin = 0; spin <= 50; spin += 50) {
            rp_pool *pool = make_pool(n, 1, spin);
            run_phases(pool, 0, n, 200, -1);
            for (int max = 1; max <= n + 1; max++)
                run_phases(pool, max, max < n ? max : n, 20, -1);
            rp_pool_destroy(pool);
        }
    }
}

/* Regions of changing sizes one right after the other: threads that were not needed in one, or are
 * late out of it, must find their way into the next. */
static void regions_of_changing_size(void **state)
{
    (void)state;
    unsigned seed = (unsigned)time(NULL);
    print_message("seed %u\n", seed);
    for (int n = 2; n <= 8; n += 3) {
        rp_pool *pool = make_pool(n, 1, 20);
        for (int i = 0; i < 3000; i++) {
            const int max = 1 + rand_r(&seed) % n;
            run_phases(pool, max, max, rand_r(&seed) % 4, -1);
        }
        rp_pool_destroy(pool);
    }
}

static void sleepers_are_woken(void **state)
{
    (void)state;
    for (unsigned spin = 0; spin <= 50; spin += 50) {
        rp_pool *pool = make_pool(4, 1, spin);
        for (int slow = 0; slow < 4; slow++)
            run_phases(pool, 0, 4, 10, slow);
        for (int i = 0; i < 20; i++) {
            sleep_ms(1);
            run_phases(pool, 0, 4, 1, -1);
        }
        rp_pool_destroy(pool);
    }
}

static void more_threads_than_processors(void **state)
{
    (void)state;
    rp_pool *pool = make_pool(7, 1, 50);
    const double begin = seconds(CLOCK_MONOTONIC);
    run_phases(pool, 0, 7, 5000, -1);
    const double took = seconds(CLOCK_MONOTONIC) - begin;
    print_message("7 threads, 10000 barriers: %.2f s\n", took);
    assert_true(took < 20);
    rp_pool_destroy(pool);
}

static void without_a_pool(void **state)
{
    (void)state;
    run_phases(NULL, 0, 1, 3, -1);
    run_phases(NULL, 5, 1, 3, -1);
    assert_int_equal(rp_pool_threads(NULL), 1);
    rp_pool_destroy(NULL);
    assert_true(threads_become(n_threads_at_start));
    rp_pool *pool = make_pool(1, 1, 50);
    assert_int_equal(count_threads(), n_threads_at_start);
    run_phases(pool, 0, 1, 3, -1);
    rp_pool_destroy(pool);
}

struct tally {
    int n;
    unsigned char *seen; /* plain bytes: each is one worker's */
    int per_worker[MAX_WORKERS][16];
};

static void count_task(void *arg, size_t i, int worker)
{
    struct tally *t = arg;
    t->seen[i]++;
    t->per_worker[worker][0]++;
}

static void parallel_for(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 2, 3, 4, 5, 1000, 5000};
    unsigned char seen[5001];
    rp_error err;
    rp_pool *pool = make_pool(4, 1, 50);
    for (int with_pool = 0; with_pool < 2; with_pool++) {
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            struct tally t = {.seen = seen};
            memset(seen, 0, sizeof seen);
            assert_int_equal(rp_pool_for(with_pool ? pool : NULL, sizes[s], count_task, &t, &err),
                             RP_OK);
            int sum = 0;
            for (int i = 0; i < MAX_WORKERS; i++)
                sum += t.per_worker[i][0];
            assert_int_equal(sum, sizes[s]);
            for (size_t i = 0; i < sizeof seen; i++)
                assert_int_equal(seen[i], i < sizes[s]);
        }
    }
    assert_int_equal(rp_pool_for(pool, 3, NULL, NULL, &err), RP_ERR_INVALID);
    rp_pool_destroy(pool);
}

/* ---- who may ask for regions ----------------------------------------------------------------- */

struct nesting {
    rp_pool *pools[2];
    int depth; /* of regions on the other pool between the outer and the refused one */
    atomic_int refused, ran;
};

static void touch_body(void *arg, struct rp_worker *w)
{
    (void)w;
    atomic_fetch_add((atomic_int *)arg, 1);
}

static void nested_body(void *arg, struct rp_worker *w)
{
    struct nesting *nest = arg;
    rp_error err;
    (void)w;
    if (nest->depth > 0) {
        struct nesting inner = {.pools = {nest->pools[0], nest->pools[1]}};
        if (rp_pool_region(nest->pools[1], 0, nested_body, &inner, &err) != RP_OK)
            abort();
        atomic_fetch_add(&nest->refused, atomic_load(&inner.refused));
        return;
    }
    if (rp_pool_region(nest->pools[0], 0, touch_body, &nest->ran, &err) == RP_ERR_INVALID &&
        strstr(err.message, "inside a region"))
        atomic_fetch_add(&nest->refused, 1);
}

static void nested_regions_are_refused(void **state)
{
    (void)state;
    for (int n = 1; n <= 3; n++) {
        struct nesting nest = {.pools = {make_pool(n, 0, 50), make_pool(2, 0, 50)}};
        rp_error err;
        assert_int_equal(rp_pool_region(nest.pools[0], 0, nested_body, &nest, &err), RP_OK);
        assert_int_equal(atomic_load(&nest.refused), n);
        assert_int_equal(atomic_load(&nest.ran), 0);
        /* Through another pool it is still nested, for both workers of that one. */
        atomic_store(&nest.refused, 0);
        nest.depth = 1;
        assert_int_equal(rp_pool_region(nest.pools[0], 1, nested_body, &nest, &err), RP_OK);
        assert_int_equal(atomic_load(&nest.refused), 2);
        /* And none of it lasts. */
        assert_int_equal(rp_pool_region(nest.pools[0], 0, touch_body, &nest.ran, &err), RP_OK);
        assert_int_equal(atomic_load(&nest.ran), n);
        rp_pool_destroy(nest.pools[0]);
        rp_pool_destroy(nest.pools[1]);
    }
}

struct callers {
    rp_pool *pool;
    int plain, inside; /* no two regions at once: no atomics needed */
    atomic_int wrong;
};

static void caller_body(void *arg, struct rp_worker *w)
{
    struct callers *c = arg;
    if (w->index != 0)
        return;
    c->plain++;
    if (++c->inside != 1)
        atomic_fetch_add(&c->wrong, 1);
    sched_yield();
    c->inside--;
}

static void *caller_main(void *arg)
{
    struct callers *c = arg;
    for (int i = 0; i < 1000; i++)
        if (rp_pool_region(c->pool, i % 4, caller_body, c, NULL) != RP_OK)
            atomic_fetch_add(&c->wrong, 1);
    return NULL;
}

static void callers_take_turns(void **state)
{
    (void)state;
    for (int n = 1; n <= 3; n += 2) {
        struct callers c = {.pool = make_pool(n, 1, 20)};
        pthread_t threads[4];
        for (int i = 0; i < 4; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, caller_main, &c), 0);
        for (int i = 0; i < 4; i++)
            pthread_join(threads[i], NULL);
        assert_int_equal(c.plain, 4000);
        assert_int_equal(atomic_load(&c.wrong), 0);
        rp_pool_destroy(c.pool);
    }
}

static void wrong_arguments(void **state)
{
    (void)state;
    rp_pool_options options;
    rp_pool *pool = (rp_pool *)&options;
    rp_error err;
    rp_pool_options_init(&options);
    assert_int_equal(options.pin, 1);
    assert_int_equal(options.spin_us, 50);
    assert_int_equal(options.n_threads, 0);
    assert_int_equal(rp_pool_create(&options, NULL, &err), RP_ERR_INVALID);
    static const int counts[] = {-1, 2049, 1 << 30, -2147483647 - 1};
    for (size_t i = 0; i < 4; i++) {
        options.n_threads = counts[i];
        assert_int_equal(rp_pool_create(&options, &pool, &err), RP_ERR_INVALID);
        char number[16];
        snprintf(number, sizeof number, "%d", counts[i]);
        assert_non_null(strstr(err.message, number));
    }
    options.n_threads = 2;
    options.struct_size = 8;
    assert_int_equal(rp_pool_create(&options, &pool, NULL), RP_ERR_INVALID);
    options.struct_size = sizeof options + 8;
    assert_int_equal(rp_pool_create(&options, &pool, NULL), RP_ERR_INVALID);
    assert_ptr_equal(pool, &options);

    assert_int_equal(rp_pool_create(NULL, &pool, &err), RP_OK);
    assert_int_equal(rp_pool_threads(pool), rp_cpu_count());
    assert_int_equal(rp_pool_region(pool, 0, NULL, NULL, &err), RP_ERR_INVALID);
    assert_int_equal(rp_pool_region(pool, -1, touch_body, NULL, &err), RP_ERR_INVALID);
    rp_pool_destroy(pool);
}

/* ---- what the threads are like --------------------------------------------------------------- */

struct traits {
    struct rp_cpu_set cpus[MAX_WORKERS];
    size_t stack[MAX_WORKERS];
    int blocked[MAX_WORKERS]; /* SIGTERM blocked, and SIGSEGV not */
};

static void traits_body(void *arg, struct rp_worker *w)
{
    struct traits *t = arg;
    pthread_attr_t attr;
    sigset_t mask;
    rp_cpu_set_allowed(&t->cpus[w->index]);
    if (pthread_getattr_np(pthread_self(), &attr) == 0) {
        pthread_attr_getstacksize(&attr, &t->stack[w->index]);
        pthread_attr_destroy(&attr);
    }
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    t->blocked[w->index] = sigismember(&mask, SIGTERM) == 1 && sigismember(&mask, SIGSEGV) == 0;
}

static void each_thread_has_its_processor(void **state)
{
    (void)state;
    static struct traits t;
    struct rp_cpu_set allowed, taken = {{0}};
    rp_error err;
    rp_cpu_set_allowed(&allowed);
    const int n_cpus = rp_cpu_set_count(&allowed);
    const int n = n_cpus < MAX_WORKERS ? n_cpus : MAX_WORKERS;
    const int here = rp_cpu_current();
    rp_pool *pool = make_pool(n, 1, 50);
    if (rp_cpu_current() == here) /* the caller's place is left to the caller */
        rp_cpu_set_add(&taken, here);
    assert_int_equal(rp_pool_region(pool, 0, traits_body, &t, &err), RP_OK);
    assert_memory_equal(&t.cpus[0], &allowed, sizeof allowed);
    for (int i = 1; i < n; i++) {
        assert_int_equal(rp_cpu_set_count(&t.cpus[i]), 1);
        for (int cpu = 0; cpu < RP_CPU_MAX; cpu++) {
            if (!rp_cpu_set_has(&t.cpus[i], cpu))
                continue;
            assert_true(rp_cpu_set_has(&allowed, cpu));
            assert_false(rp_cpu_set_has(&taken, cpu));
            rp_cpu_set_add(&taken, cpu);
        }
    }
    rp_pool_destroy(pool);

    /* Unpinned, or more than there are processors: they float where the caller may be. */
    for (int pin = 0; pin < 2; pin++) {
        const int many = pin ? n_cpus + 1 : 2;
        if (many > MAX_WORKERS)
            continue;
        pool = make_pool(many, pin, 50);
        assert_int_equal(rp_pool_region(pool, 0, traits_body, &t, &err), RP_OK);
        for (int i = 0; i < many; i++)
            assert_memory_equal(&t.cpus[i], &allowed, sizeof allowed);
        rp_pool_destroy(pool);
    }
}

static void stacks_are_small_and_signals_blocked(void **state)
{
    (void)state;
    static struct traits t;
    sigset_t before, after;
    rp_error err;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    rp_pool *pool = make_pool(3, 1, 50);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    assert_int_equal(sigismember(&before, SIGTERM), sigismember(&after, SIGTERM));
    assert_int_equal(rp_pool_region(pool, 0, traits_body, &t, &err), RP_OK);
    for (int i = 1; i < 3; i++) {
        assert_true(t.blocked[i]);
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
        assert_true(t.stack[i] <= 512 << 10);
#endif
    }
    rp_pool_destroy(pool);
}

#if defined(__x86_64__)
#define FLUSHING 0xffc0u /* flush to zero, denormals are zero, round towards zero */

static unsigned read_mode(void)
{
    return _mm_getcsr() & FLUSHING;
}

static void set_mode(int flush)
{
    _mm_setcsr(flush ? 0xffc0u : 0x1f80u);
}

#define MODE_CONTRACT 0x1f80u
#define MODE_FLUSH    0xffc0u
#elif defined(__aarch64__)
static unsigned read_mode(void)
{
    uint64_t fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    return (unsigned)fpcr;
}

#define MODE_CONTRACT 0u
#define MODE_FLUSH    (1u << 24 | 3u << 22) /* flush to zero, round towards zero */

static void set_mode(int flush)
{
    const uint64_t fpcr = flush ? MODE_FLUSH : MODE_CONTRACT;
    __asm__ volatile("msr fpcr, %0" : : "r"(fpcr));
}
#endif

struct modes {
    unsigned mode[MAX_WORKERS];
    float half_of_least[MAX_WORKERS];
};

static void modes_body(void *arg, struct rp_worker *w)
{
    struct modes *m = arg;
    volatile float least = 1.17549435e-38f;
    m->mode[w->index] = read_mode();
    m->half_of_least[w->index] = least * 0.5f;
    set_mode(1); /* as a badly behaved observer would leave it */
}

static void floating_point_environment(void **state)
{
    (void)state;
    rp_error err;
    rp_pool *pool = make_pool(4, 1, 50);
    for (int round = 0; round < 6; round++) {
        struct modes m;
        memset(&m, 0, sizeof m);
        const int with_pool = round % 3 != 2;
        set_mode(round % 2);
        const rp_status status =
            rp_pool_region(with_pool ? pool : NULL, round % 3, modes_body, &m, &err);
        const unsigned after = read_mode();
        set_mode(0);
        assert_int_equal(status, RP_OK);
        assert_int_equal(after, round % 2 ? MODE_FLUSH : MODE_CONTRACT);
        for (int i = 0; i < (with_pool ? round % 3 ? 1 : 4 : 1); i++) {
            assert_int_equal(m.mode[i], MODE_CONTRACT);
            assert_true(m.half_of_least[i] > 0);
        }
    }
    rp_pool_destroy(pool);
}

/* ---- idle ------------------------------------------------------------------------------------ */

static void nothing_is_burnt_when_idle(void **state)
{
    (void)state;
    rp_pool *pool = make_pool(rp_cpu_count() < 2 ? 2 : rp_cpu_count(), 1, 50);
    run_phases(pool, 0, rp_pool_threads(pool), 10, -1);
    double cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
    sleep_ms(2000);
    cpu = seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    print_message("idle for 2 s: %.3f ms of processor time\n", cpu * 1e3);
    assert_true(cpu < 0.02);

    /* A request every 100 ms: each wakes every thread, which may spin for 50 us and then has to
     * stop.  Waking and falling asleep cost 100 to 150 us a thread on a large virtual machine,
     * spinning on would cost 100 ms. */
    cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
    for (int i = 0; i < 20; i++) {
        run_phases(pool, 0, rp_pool_threads(pool), 1, -1);
        sleep_ms(100);
    }
    cpu = seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    print_message("a region every 100 ms for 2 s: %.3f ms of processor time\n", cpu * 1e3);
    assert_true(cpu < 0.01 * rp_pool_threads(pool));
    rp_pool_destroy(pool);
}

/* ---- forks ----------------------------------------------------------------------------------- */

/* 0 when the child's work returned true; a child that hangs is killed by its alarm. */
static int in_child(bool (*work)(rp_pool *), rp_pool *pool)
{
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        _exit(work(pool) ? 0 : 1);
    }
    int status = -1;
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static bool phases_pass(rp_pool *pool)
{
    const int n = rp_pool_threads(pool);
    struct phases p = {.n_expected = n, .n_phases = 50, .slow = -1};
    return rp_pool_region(pool, 0, phases_body, &p, NULL) == RP_OK && p.visits == n && !p.wrong;
}

static bool use_pool(rp_pool *pool)
{
    return phases_pass(pool) && phases_pass(pool);
}

static bool use_in_grandchild(rp_pool *pool)
{
    return in_child(use_pool, pool) == 0 && use_pool(pool) && in_child(use_pool, pool) == 0;
}

static bool destroy_unused(rp_pool *pool)
{
    rp_pool_destroy(pool);
    return true;
}

static bool use_and_destroy(rp_pool *pool)
{
    const bool ok = use_pool(pool) && threads_become(rp_pool_threads(pool));
    rp_pool_destroy(pool);
    return ok;
}

static bool fail_then_use(rp_pool *pool)
{
    rp_error err;
    struct phases p = {.slow = -1};
    rp_fault_arm(RP_FAULT_THREAD, 2);
    const bool failed =
        rp_pool_region(pool, 0, phases_body, &p, &err) == RP_ERR_SYSTEM && p.visits == 0;
    rp_fault_disarm(RP_FAULT_THREAD);
    return failed && threads_become(1) && use_pool(pool);
}

static void children_start_threads_of_their_own(void **state)
{
    (void)state;
    skip_where_forks_lose_threads();
    static bool (*const works[])(rp_pool *) = {use_pool, use_in_grandchild, destroy_unused,
                                               use_and_destroy, fail_then_use};
    for (int used_before = 0; used_before < 2; used_before++) {
        rp_pool *pool = make_pool(3, 1, 50);
        if (used_before)
            assert_true(use_pool(pool));
        for (size_t i = 0; i < sizeof works / sizeof works[0]; i++) {
            assert_int_equal(in_child(works[i], pool), 0);
            assert_true(use_pool(pool)); /* the parent has not noticed */
        }
        rp_pool_destroy(pool);
    }
}

/* Forks while another thread is inside a region: the child inherits a lock that is held, flags in
 * mid-flight, and marks of sleepers that it does not have. */
struct busy {
    rp_pool *pool;
    atomic_int stop, wrong, regions;
};

static void *busy_main(void *arg)
{
    struct busy *b = arg;
    while (!atomic_load(&b->stop)) {
        atomic_fetch_add(&b->wrong, !phases_pass(b->pool));
        atomic_fetch_add(&b->regions, 1);
    }
    return NULL;
}

static void forks_during_regions(void **state)
{
    (void)state;
    skip_where_forks_lose_threads();
    for (unsigned spin = 0; spin <= 50; spin += 50) {
        struct busy b = {.pool = make_pool(3, 1, spin)};
        pthread_t threads[2];
        for (int i = 0; i < 2; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, busy_main, &b), 0);
        while (atomic_load(&b.regions) < 2)
            sleep_ms(1);
        int failed = 0;
        for (int i = 0; i < 20; i++)
            failed += in_child(use_pool, b.pool) != 0;
        atomic_store(&b.stop, 1);
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        assert_int_equal(failed, 0);
        assert_int_equal(atomic_load(&b.wrong), 0);
        rp_pool_destroy(b.pool);
    }
}

/* The child of a body that forks has lost its fellow workers: its region says so. */
static void forking_body(void *arg, struct rp_worker *w)
{
    rp_worker_barrier(w);
    if (w->index == 0) {
        *(pid_t *)arg = fork();
        if (*(pid_t *)arg == 0)
            alarm(60);
    }
    rp_worker_barrier(w);
}

static void fork_inside_a_region(void **state)
{
    (void)state;
    skip_where_forks_lose_threads();
    rp_pool *pool = make_pool(3, 1, 50);
    rp_error err;
    pid_t pid = -1;
    fflush(stdout);
    const rp_status status = rp_pool_region(pool, 0, forking_body, &pid, &err);
    if (pid == 0)
        _exit(status == RP_ERR_SYSTEM && strstr(err.message, "forked") && use_pool(pool) ? 0 : 1);
    assert_int_equal(status, RP_OK);
    int child = -1;
    assert_int_equal(waitpid(pid, &child, 0), pid);
    assert_true(WIFEXITED(child) && WEXITSTATUS(child) == 0);
    assert_true(use_pool(pool));
    rp_pool_destroy(pool);
}

/* ---- failures -------------------------------------------------------------------------------- */

static void every_thread_can_fail(void **state)
{
    (void)state;
    const int n = 5;
    rp_pool_options options;
    rp_pool_options_init(&options);
    options.n_threads = n;
    for (int nth = 1;; nth++) {
        rp_pool *pool = NULL;
        rp_error err;
        rp_fault_arm(RP_FAULT_THREAD, nth);
        const rp_status status = rp_pool_create(&options, &pool, &err);
        if (!rp_fault_disarm(RP_FAULT_THREAD)) {
            assert_int_equal(nth, n);
            assert_int_equal(status, RP_OK);
            rp_pool_destroy(pool);
            break;
        }
        char expected[80];
        snprintf(expected, sizeof expected, "pool of 5 threads: thread %d of the 4 to start", nth);
        assert_int_equal(status, RP_ERR_SYSTEM);
        assert_non_null(strstr(err.message, expected));
        assert_null(pool);
        assert_true(threads_become(n_threads_at_start));
    }
}

static void every_allocation_can_fail(void **state)
{
    (void)state;
    rp_pool_options options;
    rp_pool_options_init(&options);
    options.n_threads = 2;
    int nth = 1;
    for (;; nth++) {
        rp_pool *pool = NULL;
        rp_error err;
        rp_fault_arm(RP_FAULT_ALLOC, nth);
        const rp_status status = rp_pool_create(&options, &pool, &err);
        const bool happened = rp_fault_disarm(RP_FAULT_ALLOC);
        if (!happened) {
            assert_int_equal(status, RP_OK);
            rp_pool_destroy(pool);
            break;
        }
        assert_int_equal(status, RP_ERR_NOMEM);
        assert_non_null(strstr(err.message, "pool of 2 threads: no memory"));
        assert_null(pool);
    }
    assert_true(nth >= 2);
}

/* Regions allocate nothing: with the very next allocation armed to fail they all pass. */
static void regions_do_not_allocate(void **state)
{
    (void)state;
    rp_pool *pool = make_pool(3, 1, 50);
    rp_fault_arm(RP_FAULT_ALLOC, 1);
    assert_true(use_pool(pool));
    assert_false(rp_fault_disarm(RP_FAULT_ALLOC));
    rp_pool_destroy(pool);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void aligned_memory(void **state)
{
    (void)state;
    const size_t huge = (size_t)2 << 20;
    const size_t sizes[] = {1, 63, 64, 65, 4096, huge - 1, huge, huge + 1, 3 * huge + 100};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        unsigned char *p = rp_aligned_alloc(sizes[i]);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % (sizes[i] >= huge ? huge : 64), 0);
        memset(p, 0xff, sizes[i]);
        rp_aligned_free(p);
        p = rp_aligned_alloc_zero(sizes[i]);
        assert_non_null(p);
        for (size_t k = 0; k < sizes[i]; k++)
            if (p[k])
                fail_msg("byte %zu of %zu is not zero", k, sizes[i]);
        rp_aligned_free(p);
    }
    rp_aligned_free(NULL);
    static const size_t absurd[] = {0, SIZE_MAX, SIZE_MAX - 63, SIZE_MAX / 2, (size_t)1 << 63};
    for (size_t i = 0; i < sizeof absurd / sizeof absurd[0]; i++)
        assert_null(rp_aligned_alloc_zero(absurd[i]));
    rp_fault_arm(RP_FAULT_ALLOC, 2);
    void *first = rp_aligned_alloc(8);
    assert_non_null(first);
    assert_null(rp_aligned_alloc(8));
    void *third = rp_aligned_alloc(8);
    assert_non_null(third);
    assert_true(rp_fault_disarm(RP_FAULT_ALLOC));
    rp_aligned_free(first);
    rp_aligned_free(third);
}

static void sizes_do_not_wrap(void **state)
{
    (void)state;
    size_t out = 0;
    assert_true(rp_mul_ok((size_t)1 << 32, ((size_t)1 << 32) - 1, &out));
    assert_int_equal(out, ((size_t)1 << 32) * (((size_t)1 << 32) - 1));
    assert_false(rp_mul_ok((size_t)1 << 32, (size_t)1 << 32, &out));
    assert_true(rp_add_ok(SIZE_MAX - 1, 1, &out));
    assert_int_equal(out, SIZE_MAX);
    assert_false(rp_add_ok(SIZE_MAX, 1, &out));
    assert_int_equal(rp_round_up(0, 64), 0);
    assert_int_equal(rp_round_up(1, 64), 64);
    assert_int_equal(rp_round_up(64, 64), 64);
}

static int count_at_start(void **state)
{
    (void)state;
    rp_pool_destroy(make_pool(2, 1, 50)); /* a sanitizer starts its own thread with our first */
    sleep_ms(100);
    n_threads_at_start = count_threads();
    return 0;
}

/* Bounds that any machine keeps, and none of which a wrong unit or an empty loop would. */
static void ceilings_are_measured(void **state)
{
    (void)state;
    const double flops = rp_machine_peak_gflops(RP_ISA_SCALAR, 1);
    assert_true(flops > 0.02 && flops < 500);
    const double bytes = rp_machine_peak_gbytes(1);
    assert_true(bytes > 0.05 && bytes < 500);
    assert_true(rp_machine_peak_gbytes(-1) == 0 && rp_machine_peak_gflops(RP_ISA_SCALAR, -1) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(barriers_of_every_size),
        cmocka_unit_test(regions_of_changing_size),
        cmocka_unit_test(sleepers_are_woken),
        cmocka_unit_test(more_threads_than_processors),
        cmocka_unit_test(without_a_pool),
        cmocka_unit_test(parallel_for),
        cmocka_unit_test(nested_regions_are_refused),
        cmocka_unit_test(callers_take_turns),
        cmocka_unit_test(wrong_arguments),
        cmocka_unit_test(each_thread_has_its_processor),
        cmocka_unit_test(stacks_are_small_and_signals_blocked),
        cmocka_unit_test(floating_point_environment),
        cmocka_unit_test(nothing_is_burnt_when_idle),
        cmocka_unit_test(children_start_threads_of_their_own),
        cmocka_unit_test(forks_during_regions),
        cmocka_unit_test(fork_inside_a_region),
        cmocka_unit_test(every_thread_can_fail),
        cmocka_unit_test(every_allocation_can_fail),
        cmocka_unit_test(regions_do_not_allocate),
        cmocka_unit_test(aligned_memory),
        cmocka_unit_test(sizes_do_not_wrap),
        cmocka_unit_test(ceilings_are_measured),
    };
    return cmocka_run_group_tests_name("pool", tests, count_at_start, NULL);
}
