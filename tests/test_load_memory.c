/* Loading a model with memory that ends: the N-th allocation fails, for each N until loading needs
 * no more.  Every time there is an error of that name or a model, nothing leaks and nothing
 * crashes. */
#include <rankplan/model.h>

#include <errno.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAVE_HOOK 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HAVE_HOOK 0
#else
#define HAVE_HOOK 1
#endif
#elif defined(__GLIBC__)
#define HAVE_HOOK 1
#else
#define HAVE_HOOK 0
#endif

/* Allocations left until one fails; 0: none fails.  live: blocks that were not freed.  Volatile,
 * since a compiler knows of malloc that it changes no variable. */
static volatile long countdown, failed, live;

#if HAVE_HOOK
static bool fails(void)
{
    if (countdown == 0 || --countdown > 0)
        return false;
    failed++;
    errno = ENOMEM;
    return true;
}

/* glibc's own names behind the public ones. */
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);
/* Visible, or the shared libraries go on with those of libc. */
#define HOOK __attribute__((visibility("default")))
HOOK void *malloc(size_t);
HOOK void *calloc(size_t, size_t);
HOOK void *realloc(void *, size_t);
HOOK void *aligned_alloc(size_t, size_t);
HOOK int posix_memalign(void **, size_t, size_t);
HOOK void free(void *);

static void *counted(void *p)
{
    live += p != NULL;
    return p;
}

void *malloc(size_t n)
{
    return fails() ? NULL : counted(__libc_malloc(n));
}

void *calloc(size_t n, size_t size)
{
    return fails() ? NULL : counted(__libc_calloc(n, size));
}

void *realloc(void *p, size_t n)
{
    if (fails())
        return NULL;
    void *q = __libc_realloc(p, n);
    live += !p && q;
    return q;
}

void *aligned_alloc(size_t alignment, size_t n)
{
    return fails() ? NULL : counted(__libc_memalign(alignment, n));
}

int posix_memalign(void **out, size_t alignment, size_t n)
{
    void *p = aligned_alloc(alignment, n);
    if (!p)
        return ENOMEM;
    *out = p;
    return 0;
}

void free(void *p)
{
    live -= p != NULL;
    __libc_free(p);
}
#endif

/* jansson does not always notice: its lexer goes on without the character that it had no room for,
 * and its parser then finds a comma where a key was due.  So when it was the one without memory,
 * any refusal will do. */
static bool failed_in_jansson;

/* And when it is the buffer of a token that cannot grow (16 bytes, doubled), its lexer runs past
 * the end of it: that allocation is spared. */
static void *jansson_malloc(size_t n)
{
    const long before = failed, left = countdown;
    const bool spared = n > 16 && (n & (n - 1)) == 0;
    if (spared)
        countdown = 0;
    void *p = malloc(n);
    if (spared)
        countdown = left;
    failed_in_jansson |= failed != before;
    return p;
}

static void load_with_each_failure(const char *folder)
{
    long refused = 0, unharmed = 0;
    for (long n = 1;; n++) {
        rp_model *model = NULL;
        rp_error err = {0};
        const long before = live;
        failed = 0;
        failed_in_jansson = false;
        countdown = n;
        const rp_status s = rp_model_load(folder, NULL, &model, &err);
        countdown = 0;
        const long hit = failed;
        if (s != RP_OK && s != RP_ERR_NOMEM && !failed_in_jansson)
            fail_msg("allocation %ld: %s: %s", n, rp_status_name(s), err.message);
        assert_true(s == RP_OK || err.message[0]);
        if (s == RP_OK)
            assert_non_null(model);
        else
            assert_null(model);
        rp_model_destroy(model);
        if (live != before)
            print_error("allocation %ld: %ld blocks are lost\n", n, live - before);
        assert_int_equal(live, before);
        refused += s != RP_OK;
        if (hit == 0) {
            assert_int_equal(s, RP_OK);
            break;
        }
        unharmed += s == RP_OK;
    }
    print_message("%s: %ld failures refused, %ld without effect\n", folder, refused, unharmed);
    assert_true(refused > 100);
}

static void test_each_allocation_fails(void **state)
{
    (void)state;
    if (!HAVE_HOOK)
        skip();
    static const char *const folders[] = {"oracles/bert", "oracles/electra_cross_encoder"};
    for (size_t i = 0; i < 2; i++) {
        char path[400];
        snprintf(path, sizeof path, "%s/%s", RP_TEST_DATA, folders[i]);
        json_set_alloc_funcs(jansson_malloc, free);
        /* What is made once and kept (tables of kernels, of the processor) is made now. */
        rp_model *model;
        assert_int_equal(rp_model_load(path, NULL, &model, NULL), RP_OK);
        rp_model_destroy(model);
        load_with_each_failure(path);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_allocation_fails)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
