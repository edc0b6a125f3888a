/* INT8 in whole models: the same bits in every way of running, close to FP32, and what stays FP32.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/alloc_count.h"
#include "tests/toy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

static const size_t mixed[] = {17, 1, 3, 128, 2, 64, 5, 33, 200, 16};
static struct toy_batch batch;

/* The toy with an intermediate width that is no multiple of anything. */
static void make_toy(struct toy *toy)
{
    struct toy_options o;
    toy_options_init(&o);
    o.intermediate = 149;
    toy_make(toy, &o);
}

static int make_batch(void **state)
{
    (void)state;
    struct toy toy;
    make_toy(&toy);
    toy_batch_make(&batch, mixed, COUNT(mixed), toy.vocabulary, 5);
    toy_free(&toy);
    return 0;
}

static int free_batch(void **state)
{
    (void)state;
    toy_batch_free(&batch);
    return 0;
}

static void quantize(struct toy *toy, const char *keep)
{
    rp_quantize_options o;
    rp_error err = {RP_OK, ""};
    rp_quantize_options_init(&o);
    o.keep = keep;
    if (rp_weights_quantize(toy->weights, toy->graph, &o, &err) != RP_OK)
        fail_msg("%s", err.message);
}

static rp_view output(rp_session *s, const char *name)
{
    rp_view v;
    assert_int_equal(rp_session_output(s, name, &v, NULL), RP_OK);
    return v;
}

static uint64_t hash_run(const struct toy *toy, rp_pool *pool, uint32_t isa, bool no_fuse)
{
    rp_session *s = toy_session(toy, pool, isa, no_fuse);
    toy_run_ok(s, &batch.batch);
    const uint64_t h = toy_hash_outputs(s);
    rp_session_destroy(s);
    return h;
}

/* ---- the same bits ------------------------------------------------------------------------------
 */

/* Made by the plain C kernel; calibration, packing and products are all in them. */
static const uint64_t golden = 0xf8447cbdc704964au;

static void same_bits_on_every_machine(void **state)
{
    (void)state;
    static const uint32_t levels[] = {RP_ISA_SCALAR,
                                      RP_ISA_AVX2,
                                      RP_ISA_AVX2 | RP_ISA_AVX_VNNI,
                                      RP_ISA_AVX2 | RP_ISA_AVX512,
                                      RP_ISA_AVX2 | RP_ISA_AVX512 | RP_ISA_AVX512_VNNI,
                                      RP_ISA_AVX2 | RP_ISA_AVX512 | RP_ISA_AVX512_VNNI |
                                          RP_ISA_AMX_INT8,
                                      RP_ISA_NEON,
                                      RP_ISA_NEON | RP_ISA_DOTPROD,
                                      RP_ISA_NEON | RP_ISA_DOTPROD | RP_ISA_I8MM};
    struct toy toy;
    make_toy(&toy);
    quantize(&toy, NULL);
    for (size_t i = 0; i < COUNT(levels); i++) {
        if ((levels[i] & rp_isa_detected()) != levels[i])
            continue;
        const uint64_t h = hash_run(&toy, NULL, levels[i], false);
        if (h != golden)
            fail_msg("level %s: outputs hash to %#llx, and the golden is %#llx",
                     rp_isa_name(levels[i]), (unsigned long long)h, (unsigned long long)golden);
    }
    toy_free(&toy);
}

static void same_bits_for_threads_modes_and_fusion(void **state)
{
    (void)state;
    static const int threads[] = {1, 2, 3, 7};
    struct toy toy;
    uint64_t hashes[128];
    rp_digest digest = {.struct_size = sizeof digest, .capacity = COUNT(hashes), .hashes = hashes};
    make_toy(&toy);
    quantize(&toy, NULL);
    for (size_t i = 0; i < COUNT(threads); i++) {
        rp_pool *pool = toy_pool(threads[i]);
        assert_int_equal(hash_run(&toy, pool, RP_ISA_DEFAULT, false), golden);
        assert_int_equal(hash_run(&toy, pool, RP_ISA_DEFAULT, true), golden);
        rp_session *watched = toy_session(&toy, pool, RP_ISA_DEFAULT, false); /* by step */
        assert_int_equal(rp_session_digest(watched, &batch.batch, &digest, NULL), RP_OK);
        assert_int_equal(toy_hash_outputs(watched), golden);
        rp_session_destroy(watched);
        rp_pool_destroy(pool);
    }
    toy_free(&toy);
}

/* A scale for each row: the vector of a text alone is its vector in any batch. */
static void same_bits_in_any_batch(void **state)
{
    (void)state;
    struct toy toy;
    make_toy(&toy);
    quantize(&toy, NULL);
    rp_session *together = toy_session(&toy, NULL, RP_ISA_DEFAULT, false);
    rp_session *alone = toy_session(&toy, NULL, RP_ISA_DEFAULT, false);
    toy_run_ok(together, &batch.batch);
    const rp_view all = output(together, "embedding");
    for (size_t i = 0; i < COUNT(mixed); i++) {
        const int32_t cu[] = {0, (int32_t)mixed[i]};
        rp_batch one;
        rp_batch_init(&one);
        one.n_seqs = 1;
        one.ids = batch.ids + batch.cu[i];
        one.type_ids = batch.types + batch.cu[i];
        one.cu = cu;
        toy_run_ok(alone, &one);
        assert_memory_equal(output(alone, "embedding").data, all.data + i * all.width,
                            all.width * sizeof(float));
    }
    rp_session_destroy(together);
    rp_session_destroy(alone);
    toy_free(&toy);
}

/* ---- close to FP32 ------------------------------------------------------------------------------
 */

static double cosine(const float *a, const float *b, size_t n)
{
    double ab = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < n; i++) {
        ab += (double)a[i] * (double)b[i];
        aa += (double)a[i] * (double)a[i];
        bb += (double)b[i] * (double)b[i];
    }
    return ab / sqrt(aa * bb);
}

static double least_cosine(const char *keep)
{
    struct toy exact, rounded;
    make_toy(&exact);
    make_toy(&rounded);
    quantize(&rounded, keep);
    rp_session *a = toy_session(&exact, NULL, RP_ISA_DEFAULT, false);
    rp_session *b = toy_session(&rounded, NULL, RP_ISA_DEFAULT, false);
    toy_run_ok(a, &batch.batch);
    toy_run_ok(b, &batch.batch);
    const rp_view x = output(a, "embedding"), y = output(b, "embedding");
    double least = 1;
    for (size_t r = 0; r < x.rows; r++)
        least = fmin(least, cosine(x.data + r * x.width, y.data + r * x.width, x.width));
    rp_session_destroy(a);
    rp_session_destroy(b);
    toy_free(&exact);
    toy_free(&rounded);
    return least;
}

static void close_to_fp32(void **state)
{
    (void)state;
    const double least = least_cosine(NULL);
    print_message("    least cosine to FP32: %.6f\n", least);
    assert_true(least > 0.9995 && least < 1);
    assert_true(least_cosine("*") == 1); /* nothing was turned */
}

/* ---- what stays FP32 ----------------------------------------------------------------------------
 */

/* The kind of the step of that name; NULL: there is none. */
static const char *kind_of(const struct toy *toy, const char *name)
{
    rp_session *s = toy_session(toy, NULL, RP_ISA_DEFAULT, false);
    const rp_plan *plan;
    const char *kind = NULL;
    assert_int_equal(rp_session_plan(s, 16, 1, 4, &plan, NULL), RP_OK);
    for (size_t i = 0; i < rp_plan_n_steps(plan); i++) {
        rp_step_info step;
        assert_int_equal(rp_plan_step(plan, i, &step), RP_OK);
        if (strcmp(step.name, name) == 0)
            kind = step.kind; /* a static string */
    }
    rp_session_destroy(s);
    return kind;
}

static void heads_and_kept_products_stay(void **state)
{
    (void)state;
    struct toy toy;
    make_toy(&toy);
    quantize(&toy, "nothing,layers.0.*.down,?ayers.1.attn.out");
    assert_string_equal(kind_of(&toy, "layers.0.ffn.up"), "qgemm");
    assert_string_equal(kind_of(&toy, "layers.0.ffn.up.q8"), "quantize");
    assert_string_equal(kind_of(&toy, "layers.0.ffn.down"), "gemm");
    assert_null(kind_of(&toy, "layers.0.ffn.down.q8"));
    assert_string_equal(kind_of(&toy, "layers.0.attn.out"), "qgemm");
    assert_string_equal(kind_of(&toy, "layers.1.attn.out"), "gemm");
    assert_string_equal(kind_of(&toy, "marked"), "gemm"); /* a row per marker */
    toy_free(&toy);
}

static void fp32_forms_are_freed(void **state)
{
    (void)state;
    struct toy toy;
    make_toy(&toy);
    quantize(&toy, "*");
    const uint64_t before = rp_weights_bytes(toy.weights);
    quantize(&toy, NULL);
    const uint64_t after = rp_weights_bytes(toy.weights);
    print_message("    weights: %llu bytes, then %llu\n", (unsigned long long)before,
                  (unsigned long long)after);
    assert_true(after < before);
    const char *name;
    const float *factors;
    size_t n, found = 0;
    while (rp_weights_int8(toy.weights, found, &name, &n, &factors)) {
        assert_non_null(factors);
        for (size_t j = 0; j < n; j++)
            assert_true(factors[j] > 0 && isfinite(factors[j]));
        found++;
    }
    assert_int_equal(found, 8); /* four products in each of two layers */
    toy_free(&toy);
}

/* ---- factors and failures -----------------------------------------------------------------------
 */

struct given {
    size_t calls, fail_at;
    float value;
};

static rp_status give(void *context, const char *weight, size_t n, float *out, rp_error *err)
{
    struct given *g = context;
    assert_non_null(weight);
    if (g->calls++ == g->fail_at) {
        err->status = RP_ERR_MISSING;
        strcpy(err->message, "gone");
        return RP_ERR_MISSING;
    }
    for (size_t i = 0; i < n; i++)
        out[i] = g->value;
    return RP_OK;
}

static rp_status quantize_given(const struct toy *toy, struct given *g, rp_error *err)
{
    rp_quantize_options o;
    rp_quantize_options_init(&o);
    o.factors = give;
    o.factors_context = g;
    return rp_weights_quantize(toy->weights, toy->graph, &o, err);
}

/* Powers of two as factors cancel exactly: the same bits as without smoothing. */
static void factors_can_be_given(void **state)
{
    (void)state;
    struct toy a, b;
    rp_quantize_options o;
    struct given g = {.fail_at = SIZE_MAX, .value = 4};
    make_toy(&a);
    make_toy(&b);
    rp_quantize_options_init(&o);
    o.no_smoothing = true;
    assert_int_equal(rp_weights_quantize(a.weights, a.graph, &o, NULL), RP_OK);
    assert_int_equal(quantize_given(&b, &g, NULL), RP_OK);
    assert_int_equal(g.calls, 8);
    const uint64_t h = hash_run(&a, NULL, RP_ISA_DEFAULT, false);
    assert_int_equal(h, hash_run(&b, NULL, RP_ISA_DEFAULT, false));
    assert_true(h != golden);
    toy_free(&a);
    toy_free(&b);
}

static void a_failure_leaves_the_weights_as_they_were(void **state)
{
    (void)state;
    static const float none[] = {0, -1, NAN, INFINITY};
    struct toy toy;
    rp_error err;
    make_toy(&toy);
    const uint64_t want = hash_run(&toy, NULL, RP_ISA_DEFAULT, false);
    for (size_t i = 0; i < 8; i++) {
        struct given g = {.fail_at = i, .value = 1};
        assert_int_equal(quantize_given(&toy, &g, &err), RP_ERR_MISSING);
        assert_int_equal(hash_run(&toy, NULL, RP_ISA_DEFAULT, false), want);
    }
    for (size_t i = 0; i < COUNT(none); i++) {
        struct given g = {.fail_at = SIZE_MAX, .value = none[i]};
        assert_int_equal(quantize_given(&toy, &g, &err), RP_ERR_INVALID);
        assert_non_null(strstr(err.message, "smoothing factor of column 0"));
        assert_int_equal(hash_run(&toy, NULL, RP_ISA_DEFAULT, false), want);
    }
    rp_quantize_options o;
    rp_quantize_options_init(&o);
    o.precision = RP_PRECISION_FP32;
    assert_int_equal(rp_weights_quantize(toy.weights, toy.graph, &o, &err), RP_ERR_INVALID);
    rp_quantize_options_init(&o);
    o.struct_size = 3;
    assert_int_equal(rp_weights_quantize(toy.weights, toy.graph, &o, &err), RP_ERR_INVALID);
    toy_free(&toy);
}

/* Texts of the user calibrate too, and give other factors than random ids. */
static void batches_calibrate(void **state)
{
    (void)state;
    struct toy toy;
    rp_quantize_options o;
    make_toy(&toy);
    rp_quantize_options_init(&o);
    o.batches = &batch.batch;
    o.n_batches = 1;
    assert_int_equal(rp_weights_quantize(toy.weights, toy.graph, &o, NULL), RP_OK);
    assert_true(hash_run(&toy, NULL, RP_ISA_DEFAULT, false) != golden);
    toy_free(&toy);
}

/* Batches are checked before they are read, and those without tokens say nothing. */
static void batches_that_cannot_calibrate(void **state)
{
    (void)state;
    enum { NO_CU, SIZE, NO_MCU, NEGATIVE, NO_SEQS, CASES };
    static const char *const words[CASES] = {
        "calibration batch 1: the batch has no sequences", NULL,
        "calibration batch 1: the batch has markers but no mcu that counts them",
        "calibration batch 1: the batch has -1 tokens",
        "calibration batch 1: the batch has no sequences"};
    static const int32_t negative[] = {0, -1};
    struct toy toy;
    make_toy(&toy);
    const uint64_t want = hash_run(&toy, NULL, RP_ISA_DEFAULT, false);
    for (int which = 0; which < CASES; which++) {
        rp_batch two[] = {batch.batch, batch.batch};
        rp_quantize_options o;
        rp_error err = {RP_OK, ""};
        rp_quantize_options_init(&o);
        o.batches = two;
        o.n_batches = COUNT(two);
        two[1].cu = which == NO_CU ? NULL : which == NEGATIVE ? negative : two[1].cu;
        two[1].struct_size -= which == SIZE;
        two[1].mcu = which == NO_MCU ? NULL : two[1].mcu;
        two[1].n_seqs = which == NO_SEQS ? 0 : which == NEGATIVE ? 1 : two[1].n_seqs;
        assert_int_equal(rp_weights_quantize(toy.weights, toy.graph, &o, &err), RP_ERR_INVALID);
        if (words[which])
            assert_string_equal(err.message, words[which]);
        else
            assert_non_null(strstr(err.message, "calibration batch 1: rp_batch has struct_size"));
        assert_int_equal(hash_run(&toy, NULL, RP_ISA_DEFAULT, false), want);
    }
    toy_free(&toy);
}

/* The hash of the toy, calibrated with these batches. */
static uint64_t hash_calibrated(const rp_batch *batches, size_t n)
{
    struct toy toy;
    rp_quantize_options o;
    rp_error err;
    make_toy(&toy);
    rp_quantize_options_init(&o);
    o.batches = batches;
    o.n_batches = n;
    if (rp_weights_quantize(toy.weights, toy.graph, &o, &err) != RP_OK)
        fail_msg("%s", err.message);
    const uint64_t h = hash_run(&toy, NULL, RP_ISA_DEFAULT, false);
    toy_free(&toy);
    return h;
}

/* A batch without tokens, and one without markers that still has the places of some. */
static void batches_that_say_nothing_more(void **state)
{
    (void)state;
    static const int32_t none[] = {0, 0, 0};
    static const int32_t stale[] = {77, -5, 9};
    rp_batch all[] = {batch.batch, {.struct_size = sizeof *all, .n_seqs = 2, .cu = none}};
    assert_true(hash_calibrated(all, 2) == hash_calibrated(all, 1));
    all[0].markers = NULL;
    all[0].mcu = NULL;
    const uint64_t without = hash_calibrated(all, 1);
    all[1].mcu = stale;
    all[0].mcu = batch.batch.mcu;
    assert_true(hash_calibrated(all, 2) == without);
}

/* ---- running ------------------------------------------------------------------------------------
 */

static void a_warm_run_allocates_nothing(void **state)
{
    (void)state;
    if (!alloc_count_available())
        skip();
    struct toy toy;
    make_toy(&toy);
    quantize(&toy, NULL);
    rp_pool *pool = toy_pool(2);
    rp_session *s = toy_session(&toy, pool, RP_ISA_DEFAULT, false);
    toy_run_ok(s, &batch.batch);
    const size_t before = alloc_count();
    for (int i = 0; i < 3; i++)
        toy_run_ok(s, &batch.batch);
    assert_int_equal(alloc_count(), before);
    rp_session_destroy(s);
    rp_pool_destroy(pool);
    toy_free(&toy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_on_every_machine),
        cmocka_unit_test(same_bits_for_threads_modes_and_fusion),
        cmocka_unit_test(same_bits_in_any_batch),
        cmocka_unit_test(close_to_fp32),
        cmocka_unit_test(heads_and_kept_products_stay),
        cmocka_unit_test(fp32_forms_are_freed),
        cmocka_unit_test(factors_can_be_given),
        cmocka_unit_test(a_failure_leaves_the_weights_as_they_were),
        cmocka_unit_test(batches_calibrate),
        cmocka_unit_test(batches_that_cannot_calibrate),
        cmocka_unit_test(batches_that_say_nothing_more),
        cmocka_unit_test(a_warm_run_allocates_nothing),
    };
    return cmocka_run_group_tests_name("int8", tests, make_batch, free_batch);
}
