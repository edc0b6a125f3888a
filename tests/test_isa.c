/* The detector of instruction sets, shown machines that it must not trust (field case C4). */
#define _GNU_SOURCE 1
#include "pool/isa.h"

#include "pool/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ALL_X86                                                                                    \
    (RP_ISA_AVX2 | RP_ISA_AVX_VNNI | RP_ISA_AVX512 | RP_ISA_AVX512_VNNI | RP_ISA_AMX_INT8)

/* A server of the Sapphire Rapids kind that has, saves and grants everything. */
static const struct rp_isa_x86_words full = {
    .max_leaf = 0x20,
    .leaf1_ecx = 1u << 27 | 1u << 28 | 1u << 12 | 1u << 29,
    .max_subleaf7 = 2,
    .leaf7_ebx = 1u << 5 | 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31,
    .leaf7_ecx = 1u << 11,
    .leaf7_edx = 1u << 24 | 1u << 25,
    .leaf7_1_eax = 1u << 4,
    .leaf1d_eax = 1,
    .palette1_eax = 8192 | 1024u << 16,
    .palette1_ebx = 64 | 8u << 16,
    .palette1_ecx = 16,
    .xcr0 = 0x602e7,
};

static int n_requests;

static bool grant(void)
{
    n_requests++;
    return true;
}

static bool deny(void)
{
    n_requests++;
    return false;
}

static struct rp_isa_found detect(const struct rp_isa_x86_words *words, bool (*request)(void))
{
    struct rp_isa_found found;
    memset(&found, 0xa5, sizeof found);
    n_requests = 0;
    rp_isa_detect_x86(words, request, &found);
    return found;
}

static void assert_refused(const struct rp_isa_found *found, const char *level, const char *reason)
{
    rp_error err;
    uint32_t mask = 0xdead;
    memset(&err, 0, sizeof err);
    assert_int_equal(rp_isa_parse_on(found, level, &mask, &err), RP_ERR_UNSUPPORTED);
    assert_int_equal(err.status, RP_ERR_UNSUPPORTED);
    if (!strstr(err.message, reason) || !strstr(err.message, level))
        fail_msg("\"%s\" does not say \"%s\"", err.message, reason);
    assert_int_equal(mask, 0xdead);
}

static uint32_t parse(const struct rp_isa_found *found, const char *level)
{
    rp_error err;
    uint32_t mask = 0xdead;
    if (rp_isa_parse_on(found, level, &mask, &err) != RP_OK)
        fail_msg("%s", err.message);
    return mask;
}

static void everything_is_found(void **state)
{
    (void)state;
    const struct rp_isa_found found = detect(&full, grant);
    assert_int_equal(found.mask, ALL_X86);
    assert_int_equal(n_requests, 1);
    assert_string_equal(rp_isa_name(found.mask), "amx");
    assert_refused(&found, "neon", "another architecture");
}

static void a_level_holds_what_is_below(void **state)
{
    (void)state;
    const struct rp_isa_found found = detect(&full, grant);
    assert_int_equal(parse(&found, "scalar"), RP_ISA_SCALAR);
    assert_int_equal(parse(&found, "avx2"), RP_ISA_AVX2);
    assert_int_equal(parse(&found, "avx-vnni"), RP_ISA_AVX2 | RP_ISA_AVX_VNNI);
    assert_int_equal(parse(&found, "avx512"), RP_ISA_AVX2 | RP_ISA_AVX_VNNI | RP_ISA_AVX512);
    assert_int_equal(parse(&found, "avx512-vnni"), ALL_X86 & ~RP_ISA_AMX_INT8);
    assert_int_equal(parse(&found, "amx"), ALL_X86);
    assert_int_equal(parse(&found, "max"), ALL_X86);
}

static void avx512_with_registers_unsaved(void **state)
{
    (void)state;
    /* Each of bits 5 to 7 alone is enough to lose it. */
    static const uint64_t missing[] = {1u << 5, 1u << 6, 1u << 7, 0xe0};
    for (size_t i = 0; i < sizeof missing / sizeof missing[0]; i++) {
        struct rp_isa_x86_words words = full;
        words.xcr0 &= ~missing[i];
        const struct rp_isa_found found = detect(&words, grant);
        assert_int_equal(found.mask, RP_ISA_AVX2 | RP_ISA_AVX_VNNI);
        assert_int_equal(n_requests, 0);
        assert_string_equal(rp_isa_name(found.mask), "avx-vnni");
        assert_refused(&found, "avx512", "does not save its registers (XCR0 is 0x60");
        assert_refused(&found, "avx512-vnni", "does not save its registers");
        assert_refused(&found, "amx", "it needs avx512");
    }
}

static void tiles_unsaved(void **state)
{
    (void)state;
    for (int bit = 17; bit <= 18; bit++) {
        struct rp_isa_x86_words words = full;
        words.xcr0 &= ~(UINT64_C(1) << bit);
        const struct rp_isa_found found = detect(&words, grant);
        assert_int_equal(found.mask, ALL_X86 & ~RP_ISA_AMX_INT8);
        assert_int_equal(n_requests, 0);
        assert_refused(&found, "amx", "does not save its registers");
    }
}

static void amx_without_its_palette(void **state)
{
    (void)state;
    struct rp_isa_x86_words words[6];
    for (size_t i = 0; i < 6; i++)
        words[i] = full;
    words[0].leaf1d_eax = 0;               /* no palette */
    words[1].max_leaf = 0x1c;              /* no leaf that could list it */
    words[2].palette1_ebx = 32 | 8u << 16; /* rows of 32 bytes */
    words[3].palette1_ebx = 64 | 4u << 16; /* four tiles */
    words[4].palette1_ecx = 8;             /* eight rows */
    words[5].palette1_eax = 8192 | 512u << 16;
    for (size_t i = 0; i < 6; i++) {
        const struct rp_isa_found found = detect(&words[i], grant);
        assert_int_equal(found.mask, ALL_X86 & ~RP_ISA_AMX_INT8);
        assert_int_equal(n_requests, 0);
        assert_string_equal(rp_isa_name(found.mask), "avx512-vnni");
        assert_refused(&found, "amx", "palette");
    }
}

static void permission_refused(void **state)
{
    (void)state;
    const struct rp_isa_found denied = detect(&full, deny);
    assert_int_equal(denied.mask, ALL_X86 & ~RP_ISA_AMX_INT8);
    assert_int_equal(n_requests, 1);
    assert_refused(&denied, "amx", "refused the permission");
    const struct rp_isa_found nobody_asked = detect(&full, NULL);
    assert_int_equal(nobody_asked.mask, ALL_X86 & ~RP_ISA_AMX_INT8);
}

static void osxsave_missing(void **state)
{
    (void)state;
    struct rp_isa_x86_words words = full;
    words.leaf1_ecx &= ~(1u << 27);
    const struct rp_isa_found found = detect(&words, grant);
    assert_int_equal(found.mask, RP_ISA_SCALAR);
    assert_int_equal(found.xcr0, 0);
    assert_int_equal(n_requests, 0);
    assert_string_equal(rp_isa_name(found.mask), "scalar");
    assert_refused(&found, "avx2", "no OSXSAVE");
    assert_refused(&found, "avx512", "no OSXSAVE");
    assert_int_equal(parse(&found, "max"), RP_ISA_SCALAR);
}

static void ymm_unsaved(void **state)
{
    (void)state;
    struct rp_isa_x86_words words = full;
    words.xcr0 = 3;
    const struct rp_isa_found found = detect(&words, grant);
    assert_int_equal(found.mask, RP_ISA_SCALAR);
    assert_refused(&found, "avx2", "XCR0 is 0x3");
}

/* Every bit that a level is made of is really looked at. */
static void each_bit_counts(void **state)
{
    (void)state;
    static const struct {
        size_t word;
        uint32_t bit, left;
    } rows[] = {
        {offsetof(struct rp_isa_x86_words, leaf1_ecx), 1u << 28, 0}, /* AVX */
        {offsetof(struct rp_isa_x86_words, leaf1_ecx), 1u << 12, 0}, /* FMA */
        {offsetof(struct rp_isa_x86_words, leaf1_ecx), 1u << 29, 0}, /* F16C */
        {offsetof(struct rp_isa_x86_words, leaf7_ebx), 1u << 5, 0},  /* AVX2 */
        {offsetof(struct rp_isa_x86_words, leaf7_1_eax), 1u << 4, ALL_X86 & ~RP_ISA_AVX_VNNI},
        {offsetof(struct rp_isa_x86_words, leaf7_ebx), 1u << 16, RP_ISA_AVX2 | RP_ISA_AVX_VNNI},
        {offsetof(struct rp_isa_x86_words, leaf7_ebx), 1u << 17, RP_ISA_AVX2 | RP_ISA_AVX_VNNI},
        {offsetof(struct rp_isa_x86_words, leaf7_ebx), 1u << 30, RP_ISA_AVX2 | RP_ISA_AVX_VNNI},
        {offsetof(struct rp_isa_x86_words, leaf7_ebx), 1u << 31, RP_ISA_AVX2 | RP_ISA_AVX_VNNI},
        {offsetof(struct rp_isa_x86_words, leaf7_ecx), 1u << 11, ALL_X86 & ~RP_ISA_AVX512_VNNI},
        {offsetof(struct rp_isa_x86_words, leaf7_edx), 1u << 24, ALL_X86 & ~RP_ISA_AMX_INT8},
        {offsetof(struct rp_isa_x86_words, leaf7_edx), 1u << 25, ALL_X86 & ~RP_ISA_AMX_INT8},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct rp_isa_x86_words words = full;
        uint32_t word;
        memcpy(&word, (char *)&words + rows[i].word, sizeof word);
        word &= ~rows[i].bit;
        memcpy((char *)&words + rows[i].word, &word, sizeof word);
        const struct rp_isa_found found = detect(&words, grant);
        if (found.mask != rows[i].left)
            fail_msg("row %zu: mask 0x%x, expected 0x%x", i, found.mask, rows[i].left);
    }
}

static void leaves_that_are_not_there(void **state)
{
    (void)state;
    struct rp_isa_x86_words words = full;
    words.max_subleaf7 = 0;
    assert_int_equal(detect(&words, grant).mask, ALL_X86 & ~RP_ISA_AVX_VNNI);
    words = full;
    words.max_leaf = 6;
    assert_int_equal(detect(&words, grant).mask, RP_ISA_SCALAR);
    words.max_leaf = 0;
    assert_int_equal(detect(&words, grant).mask, RP_ISA_SCALAR);
}

static void arm_levels(void **state)
{
    (void)state;
    static const struct {
        uint64_t hwcap, hwcap2;
        uint32_t mask;
    } rows[] = {
        {1 << 1 | 1 << 20, 1 << 13, RP_ISA_NEON | RP_ISA_DOTPROD | RP_ISA_I8MM},
        {1 << 1 | 1 << 20, 0, RP_ISA_NEON | RP_ISA_DOTPROD},
        {1 << 1, 0, RP_ISA_NEON},
        {1 << 1, 1 << 13, RP_ISA_NEON},
        {1 << 20, 1 << 13, RP_ISA_SCALAR},
        {0, 0, RP_ISA_SCALAR},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct rp_isa_found found;
        rp_isa_detect_arm(rows[i].hwcap, rows[i].hwcap2, &found);
        assert_int_equal(found.mask, rows[i].mask);
        assert_int_equal(parse(&found, "max"), rows[i].mask);
        assert_refused(&found, "avx2", "another architecture");
    }
    struct rp_isa_found found;
    rp_isa_detect_arm(1 << 1, 1 << 13, &found);
    assert_refused(&found, "i8mm", "it needs dotprod");
    assert_refused(&found, "dotprod", "does not have the instructions");
}

static void names(void **state)
{
    (void)state;
    rp_error err;
    uint32_t mask = 7;
    const struct rp_isa_found found = detect(&full, deny);
    assert_int_equal(rp_isa_parse_on(&found, "AVX2", &mask, &err), RP_ERR_INVALID);
    assert_non_null(strstr(err.message,
                           "\"AVX2\" is unknown; usable: scalar, avx2, avx-vnni, avx512, "
                           "avx512-vnni, max"));
    assert_int_equal(rp_isa_parse_on(&found, "", &mask, &err), RP_ERR_INVALID);
    assert_int_equal(rp_isa_parse_on(&found, NULL, &mask, &err), RP_ERR_INVALID);
    assert_int_equal(rp_isa_parse_on(&found, "avx2", NULL, NULL), RP_ERR_INVALID);
    assert_int_equal(mask, 7);
    /* A name of any length is quoted in part. */
    char longest[2000];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    assert_int_equal(rp_isa_parse_on(&found, longest, &mask, &err), RP_ERR_INVALID);
    assert_non_null(strstr(err.message, "usable: scalar"));

    assert_string_equal(rp_isa_name(0), "scalar");
    assert_string_equal(rp_isa_name(RP_ISA_AVX2 | RP_ISA_AVX512), "avx512");
    assert_string_equal(rp_isa_name(RP_ISA_NEON | RP_ISA_DOTPROD), "dotprod");
}

/* What the machine at hand says must hold together; which it is, nobody knows. */
static void this_machine(void **state)
{
    (void)state;
    rp_error err;
    uint32_t mask = 0;
    const uint32_t detected = rp_isa_detected();
    assert_int_equal(rp_isa_detected(), detected);
    assert_int_equal(rp_isa_parse("max", &mask, &err), RP_OK);
    assert_int_equal(mask, detected);
    assert_int_equal(rp_isa_parse(rp_isa_name(detected), &mask, &err), RP_OK);
    assert_int_equal(mask, detected);
#if defined(__x86_64__)
    assert_int_equal((detected & RP_ISA_AVX2) != 0,
                     __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
    assert_int_equal((detected & RP_ISA_AVX512) != 0,
                     __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"));
#elif defined(__aarch64__)
    assert_true(detected & RP_ISA_NEON);
#endif
}

static void environment(void **state)
{
    (void)state;
    rp_error err;
    uint32_t mask = 7;
    unsetenv("RANKPLAN_ISA");
    assert_int_equal(rp_isa_default(&mask, &err), RP_OK);
    assert_int_equal(mask, rp_isa_detected());
    setenv("RANKPLAN_ISA", "", 1);
    assert_int_equal(rp_isa_default(&mask, &err), RP_OK);
    assert_int_equal(mask, rp_isa_detected());
    setenv("RANKPLAN_ISA", "scalar", 1);
    assert_int_equal(rp_isa_default(&mask, &err), RP_OK);
    assert_int_equal(mask, RP_ISA_SCALAR);
    mask = 7;
    setenv("RANKPLAN_ISA", "fastest", 1);
    assert_int_equal(rp_isa_default(&mask, &err), RP_ERR_INVALID);
    assert_non_null(strstr(err.message, "RANKPLAN_ISA: "));
    assert_non_null(strstr(err.message, "\"fastest\" is unknown"));
#if defined(__x86_64__)
    setenv("RANKPLAN_ISA", "i8mm", 1);
#else
    setenv("RANKPLAN_ISA", "amx", 1);
#endif
    assert_int_equal(rp_isa_default(&mask, &err), RP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "another architecture"));
    assert_int_equal(rp_isa_default(&mask, NULL), RP_ERR_UNSUPPORTED);
    assert_int_equal(mask, 7);
    unsetenv("RANKPLAN_ISA");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_is_found),
        cmocka_unit_test(a_level_holds_what_is_below),
        cmocka_unit_test(avx512_with_registers_unsaved),
        cmocka_unit_test(tiles_unsaved),
        cmocka_unit_test(amx_without_its_palette),
        cmocka_unit_test(permission_refused),
        cmocka_unit_test(osxsave_missing),
        cmocka_unit_test(ymm_unsaved),
        cmocka_unit_test(each_bit_counts),
        cmocka_unit_test(leaves_that_are_not_there),
        cmocka_unit_test(arm_levels),
        cmocka_unit_test(names),
        cmocka_unit_test(this_machine),
        cmocka_unit_test(environment),
    };
    return cmocka_run_group_tests_name("isa", tests, NULL, NULL);
}
