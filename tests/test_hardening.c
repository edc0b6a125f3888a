/* The library in a host that is not kind to it: files that are cut or change while they are read,
 * another floating-point environment, signals all the time, threads with little stack.  Each time
 * there is an error with a message, or exactly the bits of a quiet host. */
#define _DEFAULT_SOURCE 1
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <rankplan/rankplan.h>

#include "tests/model_maker.h"
#include "tests/toy.h"

#include <fcntl.h>
#include <fenv.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#define MAX_STEPS   256
#define MEMORY_ROWS 3

/* ---- one run, as a number ----------------------------------------------------------------------
 */

static rp_status digest_part(const rp_model *model, rp_part part, rp_pool *pool, uint64_t *whole,
                             rp_error *err)
{
    static const int32_t ids[] = {2, 17, 5, 3, 2, 44, 45, 46, 47, 3}, cu[] = {0, 4, 10};
    static const float kept[MEMORY_ROWS * 256];
    const rp_memory memories[] = {{kept, MEMORY_ROWS}, {kept, MEMORY_ROWS - 1}};
    uint64_t hashes[MAX_STEPS];
    rp_digest d = {.struct_size = sizeof d, .capacity = MAX_STEPS, .hashes = hashes};
    rp_session_options o;
    rp_session *s;
    rp_batch b;
    rp_session_options_init(&o);
    o.pool = pool;
    o.max_tokens = 64;
    rp_status status =
        rp_session_create(rp_model_part(model, part), rp_model_weights(model), &o, &s, err);
    if (status != RP_OK)
        return status;
    rp_batch_init(&b);
    b.n_seqs = 2;
    b.ids = ids;
    b.cu = cu;
    if (rp_model_part(model, RP_PART_STATE))
        b.memories = memories;
    status = rp_session_digest(s, &b, &d, err);
    *whole = d.whole;
    rp_session_destroy(s);
    return status;
}

/* Of a split encoder both towers. */
static rp_status digest_of(const rp_model *model, rp_pool *pool, uint64_t *whole, rp_error *err)
{
    uint64_t states = 0;
    rp_status status = RP_OK;
    if (rp_model_part(model, RP_PART_STATE))
        status = digest_part(model, RP_PART_STATE, pool, &states, err);
    if (status == RP_OK)
        status = digest_part(model, RP_PART_MAIN, pool, whole, err);
    *whole ^= states;
    return status;
}

static rp_status load_and_digest(const char *folder, rp_pool *pool, uint64_t *whole, rp_error *err)
{
    rp_model_options o;
    rp_model *model;
    rp_model_options_init(&o);
    o.pool = pool;
    rp_status status = rp_model_load(folder, &o, &model, err);
    if (status != RP_OK)
        return status;
    status = digest_of(model, pool, whole, err);
    rp_model_destroy(model);
    return status;
}

static uint64_t quiet_digest(const char *folder)
{
    uint64_t whole = 0;
    rp_error err;
    if (load_and_digest(folder, NULL, &whole, &err) != RP_OK)
        fail_msg("%s", err.message);
    return whole;
}

/* ---- files that are cut -------------------------------------------------------------------------
 */

static char *read_whole(const char *path, size_t *n)
{
    struct stat st;
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fstat(fileno(f), &st), 0);
    *n = (size_t)st.st_size;
    char *bytes = malloc(*n + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *n, f), *n);
    fclose(f);
    bytes[*n] = 0;
    return bytes;
}

static void copy_model(const struct maker_dir *dir, const char *from)
{
    static const char *const names[] = {"config.json", "model.safetensors"};
    for (size_t i = 0; i < 2; i++) {
        char path[400];
        snprintf(path, sizeof path, "%s/%s", from, names[i]);
        maker_copy_file(path, maker_path(dir, names[i]));
    }
}

static void every_beginning_of_a_config_is_refused(void **state)
{
    (void)state;
    struct maker_dir dir;
    size_t n;
    maker_dir_create(&dir);
    copy_model(&dir, RP_TEST_DATA "/oracles/bert");
    char *json = read_whole(RP_TEST_DATA "/oracles/bert/config.json", &n);
    while (n > 0 && json[n - 1] != '}')
        n--;
    for (size_t cut = 0; cut < n; cut++) {
        rp_model *model = NULL;
        rp_error err = {0};
        maker_write(&dir, "config.json", json, cut);
        if (rp_model_load(dir.path, NULL, &model, &err) != RP_ERR_FORMAT)
            fail_msg("%zu bytes: %s", cut, err.message);
        assert_null(model);
        assert_non_null(strstr(err.message, "config.json"));
    }
    maker_write(&dir, "config.json", json, n);
    assert_int_equal(quiet_digest(dir.path), quiet_digest(RP_TEST_DATA "/oracles/bert"));
    free(json);
    maker_dir_remove(&dir);
}

/* A hundred beginnings of a real file: the crate's parser says no, nothing ends the process. */
static void beginnings_of_a_tokenizer_are_refused(void **state)
{
    (void)state;
    size_t n;
    if (!rp_tokenizer_available())
        skip();
    char *json = read_whole(RP_MODELS_DIR "/apt-bert-tiny/tokenizer.json", &n);
    while (n > 0 && json[n - 1] != '}')
        n--;
    for (size_t i = 0; i < 100; i++) {
        rp_tokenizer *tokenizer = NULL;
        rp_error err = {0};
        assert_int_equal(rp_tokenizer_parse(json, n * i / 100, &tokenizer, &err), RP_ERR_FORMAT);
        assert_null(tokenizer);
        assert_true(err.message[0]);
    }
    free(json);
}

static void the_empty_name_is_no_folder(void **state)
{
    (void)state;
    rp_model *model = NULL;
    rp_error err;
    /* From inside of a model's folder, where "" + "config.json" would be one. */
    const int here = open(".", O_RDONLY | O_DIRECTORY);
    assert_true(here >= 0 && chdir(RP_TEST_DATA "/oracles/bert") == 0);
    const rp_status empty = rp_model_load("", NULL, &model, &err);
    const rp_status dot = rp_model_load(".", NULL, &model, NULL);
    assert_true(fchdir(here) == 0);
    close(here);
    assert_int_equal(empty, RP_ERR_INVALID);
    assert_non_null(strstr(err.message, "empty"));
    assert_int_equal(dot, RP_OK);
    rp_model_destroy(model);
}

/* ---- files that change
 * ---------------------------------------------------------------------------
 */

struct changer {
    char path[400];
    char *bytes;
    size_t n;
    atomic_bool stop;
    uint64_t state;
};

/* Cuts the file and writes it anew, over and over; now and then a few bytes of it are others. */
static void *change_file(void *arg)
{
    struct changer *c = arg;
    const int fd = open(c->path, O_RDWR);
    while (fd >= 0 && !atomic_load(&c->stop)) {
        const uint64_t r = maker_random(&c->state);
        const off_t at = (off_t)(maker_random(&c->state) % c->n);
        if (r % 4 == 0) {
            if (pwrite(fd, &r, sizeof r, at) < 0)
                break;
        } else if (ftruncate(fd, r % 4 == 1 ? at % 64 : at) != 0) {
            break;
        }
        if (r % 32 < 16)
            usleep((useconds_t)(r >> 8) % 500);
        if (pwrite(fd, c->bytes, c->n, 0) < 0)
            break;
        usleep((useconds_t)(r >> 32) % 300);
    }
    if (fd >= 0)
        close(fd);
    return NULL;
}

static void a_file_that_changes_while_it_is_loaded(void **state)
{
    (void)state;
    struct maker_dir dir;
    struct changer c = {.state = 7};
    pthread_t thread;
    size_t loaded = 0, refused = 0;
    maker_dir_create(&dir);
    copy_model(&dir, RP_TEST_DATA "/oracles/bert");
    snprintf(c.path, sizeof c.path, "%s/model.safetensors", dir.path);
    c.bytes = read_whole(c.path, &c.n);
    rp_pool *pool = toy_pool(2);
    assert_int_equal(pthread_create(&thread, NULL, change_file, &c), 0);
    for (int i = 0; i < 400; i++) {
        uint64_t whole;
        rp_error err = {0};
        const rp_status s = load_and_digest(dir.path, i % 2 ? pool : NULL, &whole, &err);
        if (s != RP_OK && s != RP_ERR_IO && s != RP_ERR_FORMAT && s != RP_ERR_NONFINITE &&
            s != RP_ERR_LIMIT && s != RP_ERR_MISSING && s != RP_ERR_SHAPE)
            fail_msg("%s: %s", rp_status_name(s), err.message);
        assert_true(s == RP_OK || err.message[0]);
        loaded += s == RP_OK;
        refused += s != RP_OK;
    }
    atomic_store(&c.stop, true);
    pthread_join(thread, NULL);
    print_message("%zu loads went through, %zu were refused\n", loaded, refused);
    assert_true(refused > 0);
    rp_pool_destroy(pool);
    free(c.bytes);
    maker_dir_remove(&dir);
}

static void a_loaded_model_needs_no_file(void **state)
{
    (void)state;
    struct maker_dir dir;
    rp_model *model;
    rp_error err;
    uint64_t whole = 0;
    maker_dir_create(&dir);
    copy_model(&dir, RP_TEST_DATA "/oracles/bert");
    assert_int_equal(rp_model_load(dir.path, NULL, &model, NULL), RP_OK);
    assert_int_equal(truncate(maker_path(&dir, "model.safetensors"), 0), 0);
    maker_write_text(&dir, "config.json", "gone");
    if (digest_of(model, NULL, &whole, &err) != RP_OK)
        fail_msg("%s", err.message);
    assert_int_equal(whole, quiet_digest(RP_TEST_DATA "/oracles/bert"));
    rp_model_destroy(model);
    maker_dir_remove(&dir);
}

/* ---- the host's floating-point environment
 * -------------------------------------------------------
 */

#if defined(__x86_64__)
/* What a host may have set: flushing, roundings, traps that are armed. */
static const unsigned modes[] = {
    0x9fc0, /* flush to zero, denormals are zero */
    0x3f80, /* down */
    0x5f80, /* up */
    0xffc0, /* towards zero, and flushing */
    0x1900, /* traps: invalid, division by zero, overflow */
    0x0000, /* all traps */
    0xe040, /* everything at once */
};
static const int roundings[] = {FE_TONEAREST, FE_DOWNWARD,  FE_UPWARD,    FE_TOWARDZERO,
                                FE_TONEAREST, FE_TONEAREST, FE_TOWARDZERO};
#define N_MODES (sizeof modes / sizeof *modes)

static void enter_mode(size_t i)
{
    fesetround(roundings[i]); /* the C library asks the other unit, the x87, how to round */
    _mm_setcsr(modes[i]);
}

/* True when the mode is still as it was entered; it is left. */
static bool leave_mode(size_t i)
{
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(0x1f80);
    const bool kept = fegetround() == roundings[i] && (mode & 0xffc0) == modes[i];
    fesetround(FE_TONEAREST);
    _mm_setcsr(0x1f80);
    return kept;
}
#else
static const int modes[] = {FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO};
#define N_MODES (sizeof modes / sizeof *modes)

static void enter_mode(size_t i)
{
    fesetround(modes[i]);
}

static bool leave_mode(size_t i)
{
    const bool kept = fegetround() == modes[i];
    fesetround(FE_TONEAREST);
    return kept;
}
#endif

static void bits_in_any_environment(void **state)
{
    (void)state;
    static const char *const folders[] = {
        RP_TEST_DATA "/oracles/bert", RP_TEST_DATA "/oracles/mpnet",
        RP_TEST_DATA "/oracles/bert_f16", RP_TEST_DATA "/oracles/bert_head32"};
    rp_pool *pool = toy_pool(3);
    for (size_t f = 0; f < 4; f++) {
        const uint64_t quiet = quiet_digest(folders[f]);
        for (size_t i = 0; i < 2 * N_MODES; i++) {
            uint64_t whole = 0;
            rp_error err = {0};
            enter_mode(i / 2);
            const rp_status s = load_and_digest(folders[f], i % 2 ? pool : NULL, &whole, &err);
            const bool kept = leave_mode(i / 2);
            if (s != RP_OK)
                fail_msg("mode %zu: %s", i / 2, err.message);
            if (whole != quiet)
                fail_msg("%s: other bits in mode %zu", folders[f], i / 2);
            assert_true(kept);
        }
    }
    rp_pool_destroy(pool);
}

/* 1/sqrt(64) is exact; these are not, and a layer norm's eps may be anything. */
static void odd_numbers_in_any_environment(void **state)
{
    (void)state;
    struct maker_dir dir;
    maker_dir_create(&dir);
    for (int hidden = 36; hidden <= 60; hidden += 12) {
        struct maker_model m = maker_model_default("bert");
        m.hidden = hidden;
        m.heads = 4;
        m.vocab = 60;
        m.eps = hidden * 0.7123456789e-3;
        maker_model_fill(&m);
        maker_model_write(&m, &dir, &(struct maker_write_options){0});
        maker_model_free(&m);
        const uint64_t quiet = quiet_digest(dir.path);
        for (size_t i = 0; i < N_MODES; i++) {
            uint64_t whole = 0;
            enter_mode(i);
            const rp_status s = load_and_digest(dir.path, NULL, &whole, NULL);
            const bool kept = leave_mode(i);
            assert_int_equal(s, RP_OK);
            if (whole != quiet)
                fail_msg("width %d: other bits in mode %zu", hidden, i);
            assert_true(kept);
        }
    }
    maker_dir_remove(&dir);
}

/* ---- similarities
 * ---------------------------------------------------------------------------------
 */

static const char word_tokenizer[] =
    "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[],"
    "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"Whitespace\"},\"post_processor\":null,"
    "\"decoder\":null,\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"[UNK]\":0,\"a\":1,\"b\":2,"
    "\"c\":3,\"d\":4},\"unk_token\":\"[UNK]\"}}";

/* Scores of three texts against "a b" by the folder's similarity; NaNs where it fails. */
static rp_status score_texts(const char *folder, float scores[3], rp_error *err)
{
    const rp_text_ref query = {"a b", 3}, texts[] = {{"a b c", 5}, {"c d", 3}, {"d", 1}};
    rp_model *model;
    rp_tokenizer *tokenizer = NULL;
    rp_ranker *ranker = NULL;
    memset(scores, 0xff, 3 * sizeof *scores);
    rp_status s = rp_model_load(folder, NULL, &model, err);
    if (s != RP_OK)
        return s;
    s = rp_tokenizer_parse(word_tokenizer, sizeof word_tokenizer - 1, &tokenizer, err);
    if (s == RP_OK)
        s = rp_ranker_create(model, tokenizer, NULL, &ranker, err);
    if (s == RP_OK)
        s = rp_ranker_score(ranker, query, 3, texts, scores, NULL, err);
    rp_ranker_destroy(ranker);
    rp_tokenizer_free(tokenizer);
    rp_model_destroy(model);
    return s;
}

/* An embedder whose vectors are that large. */
static void make_embedder(const struct maker_dir *dir, const char *similarity, float scale)
{
    char text[100];
    struct maker_model m = maker_model_default("bert");
    maker_model_fill(&m);
    struct maker_tensor *norm =
        maker_model_find(&m, "encoder.layer.%d.output.LayerNorm.weight", m.layers - 1);
    for (size_t i = 0; i < norm->n; i++)
        norm->data[i] *= scale;
    maker_model_write(&m, dir, &(struct maker_write_options){0});
    maker_model_free(&m);
    snprintf(text, sizeof text, "{\"similarity_fn_name\":\"%s\"}", similarity);
    maker_write_text(dir, "config_sentence_transformers.json", text);
}

static const char *const similarities[] = {"cosine", "dot", "euclidean", "manhattan"};

static void similarities_in_any_environment(void **state)
{
    (void)state;
    struct maker_dir dir;
    if (!rp_tokenizer_available())
        skip();
    maker_dir_create(&dir);
    for (size_t k = 0; k < 4; k++) {
        float quiet[3], scores[3];
        rp_error err;
        make_embedder(&dir, similarities[k], 1);
        if (score_texts(dir.path, quiet, &err) != RP_OK)
            fail_msg("%s: %s", similarities[k], err.message);
        for (size_t i = 0; i < N_MODES; i++) {
            enter_mode(i);
            const rp_status s = score_texts(dir.path, scores, &err);
            const bool kept = leave_mode(i);
            assert_int_equal(s, RP_OK);
            if (memcmp(scores, quiet, sizeof quiet) != 0)
                fail_msg("%s: other bits in mode %zu", similarities[k], i);
            assert_true(kept);
        }
    }
    maker_dir_remove(&dir);
}

static void a_similarity_that_overflows_is_no_score(void **state)
{
    (void)state;
    struct maker_dir dir;
    if (!rp_tokenizer_available())
        skip();
    maker_dir_create(&dir);
    for (size_t k = 0; k < 4; k++) {
        float scores[3];
        rp_error err = {0};
        make_embedder(&dir, similarities[k], 1e30f);
        const rp_status s = score_texts(dir.path, scores, &err);
        if (s == RP_OK) /* the sum of distances may just fit */
            assert_true(isfinite(scores[0]) && isfinite(scores[1]) && isfinite(scores[2]));
        else
            assert_int_equal(s, RP_ERR_NONFINITE);
        if (k < 3) {
            assert_int_equal(s, RP_ERR_NONFINITE);
            assert_non_null(strstr(err.message, "document 0"));
        }
    }
    maker_dir_remove(&dir);
}

/* ---- threads and signals
 * ---------------------------------------------------------------------------
 */

struct guest {
    const char *folder;
    rp_pool *pool;
    uint64_t whole;
    rp_status status;
    rp_error err;
};

static void *guest_main(void *arg)
{
    struct guest *g = arg;
    g->status = load_and_digest(g->folder, g->pool, &g->whole, &g->err);
    return NULL;
}

/* A host may call from threads of 64 KiB: loading, compiling and running fit. */
static void callers_with_little_stack(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* their frames are several times larger */
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    skip();
#endif
#endif
    static const char *const folders[] = {
        RP_TEST_DATA "/oracles/mpnet", RP_TEST_DATA "/oracles/qwen3_next",
        RP_TEST_DATA "/oracles/olmo_hybrid", RP_TEST_DATA "/kime"};
    rp_pool *pool = toy_pool(3);
    pthread_attr_t attr;
    const long least = sysconf(_SC_THREAD_STACK_MIN); /* 128 KiB on Arm */
    const size_t bytes = least > 64 << 10 ? (size_t)least : (size_t)64 << 10;
    pthread_attr_init(&attr);
    assert_int_equal(pthread_attr_setstacksize(&attr, bytes), 0);
    for (size_t i = 0; i < 2 * sizeof folders / sizeof *folders; i++) {
        struct guest g = {.folder = folders[i / 2], .pool = i % 2 ? pool : NULL};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, &attr, guest_main, &g), 0);
        pthread_join(thread, NULL);
        if (g.status != RP_OK)
            fail_msg("%s: %s", g.folder, g.err.message);
        assert_int_equal(g.whole, quiet_digest(g.folder));
    }
    pthread_attr_destroy(&attr);
    rp_pool_destroy(pool);
}

static atomic_ulong n_alarms;

static void on_alarm(int signal)
{
    (void)signal;
    atomic_fetch_add(&n_alarms, 1);
}

/* A handler without SA_RESTART that interrupts every call, and after that a host that blocks all
 * signals. */
static void hosts_with_signals(void **state)
{
    (void)state;
    const uint64_t quiet = quiet_digest(RP_TEST_DATA "/oracles/bert");
    struct sigaction action = {.sa_handler = on_alarm}, before;
    struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
    sigaction(SIGALRM, &action, &before);
    setitimer(ITIMER_REAL, &often, NULL);
    for (int i = 0; i < 60; i++) {
        uint64_t whole = 0;
        rp_error err;
        rp_pool *pool = toy_pool(1 + i % 3);
        if (load_and_digest(RP_TEST_DATA "/oracles/bert", pool, &whole, &err) != RP_OK)
            fail_msg("%s", err.message);
        assert_int_equal(whole, quiet);
        rp_pool_destroy(pool);
    }
    setitimer(ITIMER_REAL, &never, NULL);
    sigaction(SIGALRM, &before, NULL);
    print_message("%lu alarms\n", (unsigned long)atomic_load(&n_alarms));
    assert_true(atomic_load(&n_alarms) > 0);

    sigset_t all, mask, after;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &mask);
    rp_pool *pool = toy_pool(2);
    uint64_t whole = 0;
    const rp_status s = load_and_digest(RP_TEST_DATA "/oracles/bert", pool, &whole, NULL);
    rp_pool_destroy(pool);
    pthread_sigmask(SIG_SETMASK, &mask, &after);
    assert_int_equal(s, RP_OK);
    assert_int_equal(whole, quiet);
    assert_int_equal(sigismember(&after, SIGTERM), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_beginning_of_a_config_is_refused),
        cmocka_unit_test(beginnings_of_a_tokenizer_are_refused),
        cmocka_unit_test(the_empty_name_is_no_folder),
        cmocka_unit_test(a_file_that_changes_while_it_is_loaded),
        cmocka_unit_test(a_loaded_model_needs_no_file),
        cmocka_unit_test(bits_in_any_environment),
        cmocka_unit_test(odd_numbers_in_any_environment),
        cmocka_unit_test(similarities_in_any_environment),
        cmocka_unit_test(a_similarity_that_overflows_is_no_score),
        cmocka_unit_test(callers_with_little_stack),
        cmocka_unit_test(hosts_with_signals),
    };
    return cmocka_run_group_tests_name("hardening", tests, NULL, NULL);
}
