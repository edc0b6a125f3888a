/* What dump and compare compute and read: statistics, differences worked out by hand, rankings, and
 * .npy headers rule by rule. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/cli.h"
#include "cli/difference.h"
#include "cli/dump.h"
#include "cli/npy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

static float from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void assert_near(double x, double want)
{
    if (!(fabs(x - want) <= 1e-14 * fabs(want)))
        fail_msg("%.17g, expected %.17g", x, want);
}

/* ---- statistics ---------------------------------------------------------------------------------
 */

static void stats_by_hand(void **state)
{
    (void)state;
    const float x[] = {1, NAN, -5, INFINITY, 3, -INFINITY, 1};
    struct cli_stats s;
    cli_stats_take(x, COUNT(x), &s);
    assert_int_equal(s.n_finite, 4);
    assert_int_equal(s.n_nan, 1);
    assert_int_equal(s.n_inf, 2);
    assert_true(s.min == -5 && s.max == 3 && s.absmax == 5 && s.mean == 0);
    assert_near(s.std, 3); /* (1 + 25 + 9 + 1) / 4 */
    cli_stats_take(x + 1, 1, &s);
    assert_true(s.n_finite == 0 && s.n_nan == 1 && s.min == 0 && s.std == 0);
    cli_stats_take(x, 0, &s);
    assert_true(s.n_finite == 0 && s.n_nan == 0);
}

/* Large values with little between them: squares would cancel, in f32 even the sum would. */
static void stats_do_not_cancel(void **state)
{
    (void)state;
    static float x[100000];
    struct cli_stats s;
    for (size_t i = 0; i < COUNT(x); i++)
        x[i] = i % 2 ? 16777214.0f : 16777216.0f;
    cli_stats_take(x, COUNT(x), &s);
    assert_true(s.mean == 16777215 && s.std == 1);
}

/* ---- differences --------------------------------------------------------------------------------
 */

static void differences_by_hand(void **state)
{
    (void)state;
    const float a[] = {1, 2, 3, 4.5f}, b[] = {1, 2, 3.5f, 4};
    struct cli_difference d;
    assert_true(cli_difference_take(a, b, 4, 0.1, &d));
    assert_false(d.same_bits);
    assert_true(d.max_abs == 0.5 && d.worst == 2);
    assert_near(d.max_rel, 0.5 / 3.5);
    assert_near(d.scaled, 0.5 / 4);
    assert_near(d.mean_abs, 0.25);
    assert_near(d.cosine, (1 + 4 + 10.5 + 18) / (sqrt(34.25) * sqrt(33.25)));
    assert_near(d.snr_db, 10 * log10(33.25 / 0.5));
    /* 3 to 3.5 is 2^21 steps of 2^-22, 4 to 4.5 is 2^20 of 2^-21 */
    assert_int_equal(d.ulp[0], 0);
    assert_int_equal(d.ulp[1], 1 << 21);
    assert_int_equal(d.ulp[2], 1 << 21);
    /* 0.1 + 0.1 |b| is 0.45 and 0.5: what just meets the tolerance passes */
    assert_int_equal(d.n_over, 1);
    assert_near(d.min_tol, 0.5 / 4.5);
    assert_int_equal(d.bins[0], 2);
    assert_int_equal(d.bins[13], 2);
    assert_string_equal(cli_error_bin_name(13), "1e-1");
    assert_true(cli_difference_take(a, b, 4, d.min_tol * 1.0001, &d));
    assert_int_equal(d.n_over, 0);
}

static void equal_is_equal(void **state)
{
    (void)state;
    const float a[] = {1, -INFINITY, NAN, 0}, b[] = {1, -INFINITY, NAN, -0.0f};
    struct cli_difference d;
    assert_true(cli_difference_take(a, a, 4, 0, &d));
    assert_true(d.same_bits && d.max_abs == 0 && d.n_over == 0 && d.min_tol == 0);
    assert_true(d.cosine == 1 && isinf(d.snr_db) && d.ulp[2] == 0);
    assert_true(cli_difference_take(a, b, 4, 0, &d)); /* the zeros have other bits, and no error */
    assert_true(!d.same_bits && d.max_abs == 0 && d.n_over == 0);
    assert_true(cli_difference_take(NULL, NULL, 0, 0, &d));
    assert_true(d.same_bits && d.n == 0);
}

/* No tolerance lets a NaN or an infinity of one side pass, not even against an infinite |b|. */
static void one_sided_is_never_equal(void **state)
{
    (void)state;
    const float finite[] = {2, 1}, bad[][2] = {{2, NAN}, {2, INFINITY}, {2, -INFINITY}};
    for (size_t i = 0; i < 3; i++) {
        for (int swap = 0; swap < 2; swap++) {
            struct cli_difference d;
            assert_true(
                cli_difference_take(swap ? bad[i] : finite, swap ? finite : bad[i], 2, 1e30, &d));
            assert_int_equal(d.n_over, 1);
            assert_int_equal(d.n_nan, i == 0);
            assert_true(isinf(d.max_abs) && d.worst == 1 && isinf(d.min_tol));
            assert_true(d.bins[15] == 1 && d.bins[0] == 1);
            assert_true(d.mean_abs == 0 && d.cosine == 1);
        }
    }
    struct cli_difference d;
    assert_true(cli_difference_take(bad[1], bad[2], 2, 1e30, &d));
    assert_int_equal(d.n_over, 1);
}

/* Percentiles against a sort, over distances of every size. */
static int by_value(const void *x, const void *y)
{
    const uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;
    return (a > b) - (a < b);
}

static void ulps_are_exact(void **state)
{
    (void)state;
    enum { N = 1003 };
    static float a[N], b[N];
    static uint32_t want[N];
    uint64_t seed = 1;
    for (size_t i = 0; i < N; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const uint32_t base = (uint32_t)(seed >> 33) % 0x7f000000u;
        want[i] = (uint32_t)(seed >> 11) % (1u << (seed % 23));
        a[i] = from_bits(base | (uint32_t)(i % 2) << 31);
        b[i] = from_bits((base + want[i]) | (uint32_t)(i % 2) << 31);
    }
    a[0] = from_bits(0x80000005); /* across zero: -5 and 7 steps from it */
    b[0] = from_bits(7);
    want[0] = 12;
    struct cli_difference d;
    assert_true(cli_difference_take(a, b, N, 0, &d));
    qsort(want, N, sizeof *want, by_value);
    assert_int_equal(d.ulp[0], want[501]); /* the 502nd of 1003 */
    assert_int_equal(d.ulp[1], want[992]); /* 993 are 99 % */
    assert_int_equal(d.ulp[2], want[1002]);
    a[5] = NAN;
    assert_true(cli_difference_take(a, b, N, 0, &d));
    assert_int_equal(d.ulp[2], UINT32_MAX);
    const float low = -INFINITY, high = INFINITY;
    assert_true(cli_difference_take(&low, &high, 1, 0, &d));
    assert_int_equal(d.ulp[2], 2 * 0x7f800000u);
}

static void errors_fall_into_bins(void **state)
{
    (void)state;
    const float b[5] = {0}, a[] = {1e-13f, 2e-12f, 0.02f, 1, 10};
    struct cli_difference d;
    assert_true(cli_difference_take(a, b, 5, 0, &d));
    static const size_t bins[] = {1, 2, 12, 14, 15};
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(d.bins[bins[i]], 1);
}

/* ---- rankings -----------------------------------------------------------------------------------
 */

static void rankings_by_hand(void **state)
{
    (void)state;
    const float a[] = {9, 8, 7, 6, 5, 4, 3}, swapped[] = {8, 9, 7, 6, 5, 4, 3},
                reverse[] = {3, 4, 5, 6, 7, 8, 9}, tied[] = {1, 1, 1, 1, 1, 1, 1},
                half[] = {2, 2, 2, 1, 1, 1, 1};
    struct cli_agreement g;
    assert_true(cli_agreement_take(a, a, 7, &g));
    assert_true(g.tau == 1 && g.same_first && g.top == 5 && g.common == 5);
    assert_true(cli_agreement_take(a, swapped, 7, &g));
    assert_near(g.tau, 19.0 / 21); /* one of 21 pairs the other way */
    assert_true(!g.same_first && g.common == 5);
    assert_true(cli_agreement_take(a, reverse, 7, &g));
    assert_true(g.tau == -1 && !g.same_first && g.common == 3);
    assert_true(cli_agreement_take(tied, tied, 7, &g));
    assert_true(g.tau == 1);
    assert_true(cli_agreement_take(a, tied, 7, &g));
    assert_true(g.tau == 0);
    assert_true(cli_agreement_take(a, half, 7, &g));
    assert_near(g.tau, 12 / sqrt(21.0 * 12)); /* tau-b: 12 pairs differ in half */
    assert_true(cli_agreement_take(a, reverse, 2, &g));
    assert_true(g.top == 2 && g.common == 2);
    const float bad[] = {1, NAN};
    assert_false(cli_agreement_take(a, bad, 2, &g));
}

static void cosines_by_hand(void **state)
{
    (void)state;
    const float x[] = {3, 4, 6, 8, -4, 3, 0, 0, 1, 0};
    float out[4];
    cli_cosines_to_first(x, 5, 2, out);
    assert_true(out[0] == 1 && out[1] == 0 && out[2] == 0 && out[3] == 0.6f);
}

/* ---- .npy ---------------------------------------------------------------------------------------
 */

/* A file with this dictionary, and that many bytes after the header. */
static rp_status parse(const char *dict, size_t values, struct cli_npy_header *out, rp_error *err)
{
    unsigned char bytes[512] = "\x93NUMPY\x01";
    const size_t n = strlen(dict);
    bytes[8] = (unsigned char)(n & 0xff);
    bytes[9] = (unsigned char)(n >> 8);
    memcpy(bytes + 10, dict, n);
    return cli_npy_parse("x.npy", bytes, 10 + n, 10 + n + values, out, err);
}

static void good_headers(void **state)
{
    (void)state;
    static const char *const good[] = {
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }          \n",
        "{'shape':(2,3),'fortran_order':False,'descr':'<f4'}\n",
        "{ \"descr\" : \"<f4\" , \"shape\" : ( 2 , 3 , ) , \"fortran_order\" : False }\n",
    };
    for (size_t i = 0; i < COUNT(good); i++) {
        struct cli_npy_header h = {0};
        rp_error err;
        assert_int_equal(parse(good[i], 24, &h, &err), RP_OK);
        assert_true(h.rows == 2 && h.width == 3 && h.data == 10 + strlen(good[i]));
    }
}

static void bad_headers(void **state)
{
    (void)state;
    static const struct {
        const char *dict, *message;
    } bad[] = {
        {"{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }\n",
         "its values are '<f8', expected '<f4'"},
        {"{'descr': '>f4', 'fortran_order': False, 'shape': (2, 3), }\n", "'>f4'"},
        {"{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }\n", "Fortran's order"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (6,), }\n", "1 dimensions"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (), }\n", "0 dimensions"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2, 3), }\n", "3 dimensions"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 4), }\n",
         "24 bytes of values, expected 32 for 2 x 4"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }\n", "24 bytes of values"},
        /* 2^33 x 2^33 wraps to 4 x 2^64, 2^62 x 4 x 4 to 0, 2^61 x 2 x 4 to 0 */
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (8589934592, 8589934592), }\n",
         "absurd"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4), }\n",
         "absurd"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2305843009213693952, 2), }\n",
         "absurd"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (18446744073709551616, 0), }\n",
         "not that of"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-2, 3), }\n", "not that of"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2 3), }\n", "not that of"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3}\n", "not that of"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", "not that of"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }x\n", "not that of"},
        {"{'descr': '<f4', 'fortran_order': False, }\n", "not that of"},
        {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n",
         "not that of"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), 'x': False}\n", "not that of"},
        {"{'descr': '<f4', 'fortran_order': 0, 'shape': (2, 3), }\n", "not that of"},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2, 3), }\n", "not that of"},
        {"{'descr': '<f4xxxxxxxxxxxxxxxxxxxxxxxxxx', 'fortran_order': False, 'shape': (2, 3)}\n",
         "not that of"},
        {"{'descr': '<f4", "not that of"},
        {"", "not that of"},
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct cli_npy_header h = {7, 7, 7};
        rp_error err;
        assert_int_equal(parse(bad[i].dict, 24, &h, &err), RP_ERR_FORMAT);
        if (!strstr(err.message, bad[i].message))
            fail_msg("%s: %s", bad[i].dict, err.message);
        assert_int_equal(strncmp(err.message, "x.npy: ", 7), 0);
        assert_true(h.rows == 7 && h.width == 7);
    }
}

/* Every beginning of a file is refused, whatever it announces, and every changed byte is refused or
 * means the same sizes or others that fit. */
static void cut_and_changed(void **state)
{
    (void)state;
    static const char dict[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n";
    enum { DICT = sizeof dict - 1, ALL = 10 + DICT + 24 };
    struct cli_npy_header h;
    rp_error err;
    unsigned char whole[ALL] = "\x93NUMPY\x01";
    whole[8] = DICT;
    memcpy(whole + 10, dict, DICT);
    for (size_t n = 0; n < ALL; n++) {
        unsigned char *exact = malloc(n ? n : 1);
        memcpy(exact, whole, n);
        assert_int_equal(cli_npy_parse("x", exact, n, n, &h, &err), RP_ERR_FORMAT);
        free(exact);
    }
    for (size_t i = 0; i < 10 + DICT; i++)
        for (int value = 0; value < 256; value++) {
            unsigned char changed[ALL];
            memcpy(changed, whole, ALL);
            changed[i] = (unsigned char)value;
            if (cli_npy_parse("x", changed, ALL, ALL, &h, &err) == RP_OK)
                assert_true(h.rows * h.width == 6 && h.data + 24 == ALL);
        }
}

/* What the command writes is what it reads. */
static void written_and_read(void **state)
{
    (void)state;
    char path[] = "/tmp/rankplan-npy-XXXXXX";
    const float x[6] = {1, -2, 3.5f, 4, NAN, 6};
    const int fd = mkstemp(path);
    FILE *f = fd >= 0 ? fdopen(fd, "wb") : NULL;
    assert_non_null(f);
    cli_put_npy_header(f, 2, 3);
    assert_int_equal(fwrite(x, sizeof *x, 6, f), 6);
    assert_int_equal(fclose(f), 0);
    float *back = NULL;
    rp_error err;
    assert_int_equal(cli_npy_read(path, 2, 3, &back, &err), RP_OK);
    assert_memory_equal(back, x, sizeof x);
    free(back);
    back = NULL;
    assert_int_equal(cli_npy_read(path, 3, 2, &back, &err), RP_ERR_SHAPE);
    assert_non_null(strstr(err.message, "it is 2 x 3, and the index says 3 x 2"));
    assert_int_equal(truncate(path, 64 + 23), 0);
    assert_int_equal(cli_npy_read(path, 2, 3, &back, &err), RP_ERR_FORMAT);
    unlink(path);
    assert_int_equal(cli_npy_read(path, 2, 3, &back, &err), RP_ERR_IO);
    assert_int_equal(cli_npy_read("/tmp", 2, 3, &back, &err), RP_ERR_FORMAT);
    assert_null(back);
}

/* A folder that goes away under the run: the next file says so, and nothing comes back to life. */
static void a_vanished_folder(void **state)
{
    (void)state;
    char parent[] = "/tmp/rankplan-dump-XXXXXX", path[64], moved[64];
    struct cli_dump_folder folder;
    rp_error err;
    assert_non_null(mkdtemp(parent));
    snprintf(path, sizeof path, "%s/a", parent);
    snprintf(moved, sizeof moved, "%s/b", parent);
    assert_int_equal(cli_dump_folder_open(path, &folder, &err), RP_OK);
    assert_int_equal(rmdir(path), 0);
    assert_null(cli_dump_file_begin(&folder, "0000_x.npy", &err));
    assert_int_equal(err.status, RP_ERR_IO);
    assert_non_null(strstr(err.message, "/a/0000_x.npy: it cannot be written: No such file"));
    assert_non_null(strstr(err.message, "next:"));
    cli_dump_folder_close(&folder, false);
    assert_int_equal(access(path, F_OK), -1);

    /* Moved away: the files go with it, and so does taking them back. */
    assert_int_equal(cli_dump_folder_open(path, &folder, &err), RP_OK);
    FILE *f = cli_dump_file_begin(&folder, "0000_x.npy", &err);
    assert_non_null(f);
    assert_int_equal(cli_dump_file_done(&folder, "0000_x.npy", f, &err), RP_OK);
    assert_int_equal(rename(path, moved), 0);
    f = cli_dump_file_begin(&folder, "0001_y.npy", &err);
    assert_non_null(f);
    cli_dump_folder_close(&folder, false);
    (void)fclose(f);
    assert_int_equal(rmdir(moved), 0); /* it is empty */
    assert_int_equal(rmdir(parent), 0);
}

static void file_names(void **state)
{
    (void)state;
    char name[CLI_DUMP_NAME_BYTES], wide[1000];
    cli_dump_file_name(7, "layers.3.attn.out", name);
    assert_string_equal(name, "0007_layers.3.attn.out.npy");
    cli_dump_file_name(12345, "../a b/\xc3\xa9\n", name);
    assert_string_equal(name, "12345_.._a_b____.npy");
    memset(wide, 'x', sizeof wide - 1);
    wide[sizeof wide - 1] = 0;
    cli_dump_file_name(0, wide, name);
    assert_int_equal(strlen(name), CLI_DUMP_NAME_BYTES - 1);
    assert_string_equal(name + strlen(name) - 5, "x.npy");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stats_by_hand),
        cmocka_unit_test(stats_do_not_cancel),
        cmocka_unit_test(differences_by_hand),
        cmocka_unit_test(equal_is_equal),
        cmocka_unit_test(one_sided_is_never_equal),
        cmocka_unit_test(ulps_are_exact),
        cmocka_unit_test(errors_fall_into_bins),
        cmocka_unit_test(rankings_by_hand),
        cmocka_unit_test(cosines_by_hand),
        cmocka_unit_test(good_headers),
        cmocka_unit_test(bad_headers),
        cmocka_unit_test(cut_and_changed),
        cmocka_unit_test(written_and_read),
        cmocka_unit_test(a_vanished_folder),
        cmocka_unit_test(file_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
