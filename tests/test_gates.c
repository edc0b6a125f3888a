/* RMS norms, gates and the gates of a delta net: every table against plain loops that are the
 * contract, over widths, with rows that end at a guard page and gaps that must stay; errors against
 * double precision; the cases that people reported. */
#include "ops/ops.h"
#include "qgemm/qgemm.h"
#include "tests/floats.h"
#include "tests/ops_tables.h"

#include <rankplan/machine.h>

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SEED          UINT64_C(0x67617465)
#define ROWS          6 /* four are normed side by side, then two alone */
#define GAP           3 /* floats between rows */
#define CANARY        0x7fabcdefu
#define N_ACTIVATIONS 7
#define COUNT(a)      (sizeof(a) / sizeof *(a))

static const size_t widths[] = {1, 2, 3, 15, 16, 17, 31, 33, 64, 80, 128, 1000, 4096};

/* ---- rows ---------------------------------------------------------------------------------------
 */

/* ROWS rows that end at a guard page. */
struct rows {
    size_t width, ld, floats;
    float *p;
};

static struct rows rows_of(size_t width)
{
    struct rows m = {.width = width, .ld = width + GAP};
    m.floats = (ROWS - 1) * m.ld + width;
    m.p = guard_alloc(m.floats * sizeof(float));
    for (size_t i = 0; i < m.floats; i++)
        m.p[i] = float_of(CANARY);
    return m;
}

static void rows_free(struct rows *m)
{
    guard_free(m->p, m->floats * sizeof(float));
}

static struct rows random_rows(size_t width, bool special, float scale, uint64_t *random)
{
    struct rows m = rows_of(width);
    for (size_t r = 0; r < ROWS; r++)
        for (size_t c = 0; c < width; c++)
            m.p[r * m.ld + c] = special ? random_special(random) : random_float(random, scale);
    return m;
}

static struct rows copy_rows(const struct rows *from)
{
    struct rows m = rows_of(from->width);
    memcpy(m.p, from->p, m.floats * sizeof(float));
    return m;
}

/* Equal within rows, and nothing written between them. */
static void check_rows(const struct rows *got, const struct rows *want, const char *what,
                       const char *table)
{
    for (size_t i = 0; i < got->floats; i++) {
        const bool inside = i % got->ld < got->width;
        if (inside ? !float_same(got->p[i], want->p[i]) : float_bits(got->p[i]) != CANARY)
            fail_msg("%s %s width %zu seed %llu, row %zu column %zu: %a, not %a", table, what,
                     got->width, (unsigned long long)SEED, i / got->ld, i % got->ld, got->p[i],
                     inside ? want->p[i] : float_of(CANARY));
    }
}

static float *random_vector(size_t n, float scale, uint64_t *random)
{
    float *v = guard_alloc(n * sizeof *v);
    for (size_t i = 0; i < n; i++)
        v[i] = random_float(random, scale);
    return v;
}

/* ---- RMS norm -----------------------------------------------------------------------------------
 */

static float sum16_of_squares(const float *x, size_t n)
{
    float lane[16] = {0};
    for (size_t i = 0; i < n; i++)
        lane[i % 16] = fmaf(x[i], x[i], lane[i % 16]);
    for (size_t half = 8; half > 0; half /= 2)
        for (size_t i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

static void norm_head(const struct rp_ops_rms_norm *norm, const float *x, float *y)
{
    const float mean = sum16_of_squares(x, norm->head_dim) / (float)norm->head_dim;
    const float scale = 1.0f / sqrtf(mean + norm->eps);
    for (size_t i = 0; i < norm->head_dim; i++) {
        const float v = x[i] * scale;
        y[i] = !norm->w ? v : v * (norm->offset ? 1.0f + norm->w[i] : norm->w[i]);
    }
}

static struct rows norm_plainly(const struct rp_ops_rms_norm *norm, const struct rows *x)
{
    struct rows y = copy_rows(x);
    for (size_t r = 0; r < ROWS; r++)
        for (size_t h = 0; h < norm->n_heads; h++) {
            const size_t at = r * x->ld + norm->first_column + h * norm->head_dim;
            norm_head(norm, x->p + at, y.p + at);
        }
    return y;
}

/* In a place of its own, and where x is. */
static void check_norm(const struct rp_ops_rms_norm *norm, const struct rows *x, uint64_t *digest)
{
    struct rows want = norm_plainly(norm, x);
    for (size_t t = 0; t < n_tables; t++) {
        struct rows y = rows_of(x->width), same = copy_rows(x);
        tables[t]->rms_norm(norm, x->p, x->ld, x->width, y.p, y.ld, ROWS);
        check_rows(&y, &want, "rms_norm", tables[t]->name);
        tables[t]->rms_norm(norm, same.p, same.ld, x->width, same.p, same.ld, ROWS);
        check_rows(&same, &want, "rms_norm in place", tables[t]->name);
        rows_free(&y);
        rows_free(&same);
    }
    for (size_t r = 0; r < ROWS; r++)
        *digest = float_digest(want.p + r * want.ld, want.width, *digest);
    rows_free(&want);
}

static void check_digest(uint64_t digest, uint64_t golden)
{
    if (digest != golden)
        fail_msg("digest of all results %#llx, not %#llx", (unsigned long long)digest,
                 (unsigned long long)golden);
}

static void rms_norms_are_the_contract(void **state)
{
    (void)state;
    uint64_t random = SEED, digest = 0;
    for (size_t k = 0; k < COUNT(widths); k++)
        for (int kind = 0; kind < 6; kind++) {
            const size_t dim = widths[k];
            float *w = random_vector(dim, 1, &random);
            struct rp_ops_rms_norm norm = {.w = kind % 3 ? w : NULL,
                                           .offset = kind % 3 == 2,
                                           .eps = kind < 3 ? 1e-6f : 0,
                                           .n_heads = 1,
                                           .head_dim = dim};
            struct rows x = random_rows(dim, kind == 4, 4, &random);
            check_norm(&norm, &x, &digest);
            rows_free(&x);
            for (size_t heads = 1; heads <= 5 && dim < 1000; heads += 2) {
                norm.n_heads = heads;
                norm.first_column = kind;
                x = random_rows(norm.first_column + heads * dim + 2 * (size_t)(kind % 2), false, 4,
                                &random);
                check_norm(&norm, &x, &digest);
                rows_free(&x);
            }
            guard_free(w, dim * sizeof *w);
        }
    check_digest(digest, UINT64_C(0x866ceb36e7419cad));
}

/* Measured: 2.5e-7 of the result. */
static void rms_norm_is_accurate(void **state)
{
    (void)state;
    uint64_t random = SEED;
    for (size_t k = 0; k < COUNT(widths); k++)
        for (size_t t = 0; t < n_tables; t++) {
            const size_t n = widths[k];
            double squares = 0;
            float *w = random_vector(n, 1, &random);
            const struct rp_ops_rms_norm norm = {
                .w = w, .offset = true, .eps = 1e-6f, .n_heads = 1, .head_dim = n};
            struct rows x = random_rows(n, false, 3, &random), y = rows_of(n);
            tables[t]->rms_norm(&norm, x.p, x.ld, n, y.p, y.ld, ROWS);
            for (size_t i = 0; i < n; i++)
                squares += (double)x.p[i] * x.p[i];
            for (size_t i = 0; i < n; i++) {
                const double exact =
                    x.p[i] / sqrt(squares / (double)n + (double)1e-6f) * (1.0 + (double)w[i]);
                assert_true(fabs(y.p[i] - exact) <= 4e-7 * fabs(exact) + 1e-9);
            }
            guard_free(w, n * sizeof *w);
            rows_free(&x);
            rows_free(&y);
        }
}

/* A norm whose stored weight is an offset from one, one whose weight is plain, and no weight. */
static void offset_norm_of_the_report(void **state)
{
    (void)state;
    const float x[] = {3, 4}, zeros[] = {0, 0}, ones[] = {1, 1};
    static const struct {
        bool offset;
        float factor;
    } cases[] = {{true, 1}, {false, 0}};
    for (size_t t = 0; t < n_tables; t++) {
        float y[2];
        for (size_t k = 0; k < COUNT(cases); k++) {
            const struct rp_ops_rms_norm norm = {
                .w = zeros, .offset = cases[k].offset, .n_heads = 1, .head_dim = 2};
            tables[t]->rms_norm(&norm, x, 2, 2, y, 2, 1);
            assert_true(fabsf(y[0] - 0.84852814f * cases[k].factor) <= 6e-8f);
            assert_true(fabsf(y[1] - 1.13137085f * cases[k].factor) <= 1.2e-7f);
        }
        const struct rp_ops_rms_norm plain = {.w = ones, .n_heads = 1, .head_dim = 2};
        const float gate[] = {1, -2};
        tables[t]->rms_norm(&plain, x, 2, 2, y, 2, 1);
        assert_true(fabsf(y[0] - 0.84852814f) <= 6e-8f && fabsf(y[1] - 1.13137085f) <= 1.2e-7f);
        tables[t]->gated_norm(&plain, RP_ACT_SILU, gate, 2, x, 2, 2, y, 2, 1);
        assert_true(fabs(y[0] - 0.848528137 * 0.731058579) <= 2e-7);
        assert_true(fabs(y[1] - 1.131370850 * -0.238405844) <= 2e-7);
    }
}

static void a_nan_spoils_its_own_head_only(void **state)
{
    (void)state;
    for (size_t t = 0; t < n_tables; t++)
        for (size_t at = 0; at < 12; at++) {
            float x[12], y[12];
            const struct rp_ops_rms_norm norm = {
                .eps = 1e-6f, .n_heads = 2, .head_dim = 5, .first_column = 1};
            for (size_t i = 0; i < 12; i++)
                x[i] = i == at ? NAN : (float)i;
            tables[t]->rms_norm(&norm, x, 12, 12, y, 12, 1);
            for (size_t i = 0; i < 12; i++) {
                const size_t head = i == 0 ? 10 : i == 11 ? 11 : (i - 1) / 5;
                const size_t bad = at == 0 ? 10 : at == 11 ? 11 : (at - 1) / 5;
                assert_int_equal(!!isnan(y[i]), head == bad);
            }
        }
}

/* ---- gates --------------------------------------------------------------------------------------
 */

static float activate(rp_activation which, float x)
{
    float y;
    tables[0]->activation(which, &x, 1, 1, &y, 1, 1);
    return y;
}

static void gates_are_the_contract(void **state)
{
    (void)state;
    uint64_t random = SEED, digest = 0;
    for (size_t k = 0; k < COUNT(widths); k++)
        for (int a = 0; a < N_ACTIVATIONS; a++)
            for (int one = 0; one < 2; one++) {
                const size_t n = widths[k], first = 2;
                struct rows x = random_rows(n, a == 3, 4, &random), want = rows_of(n);
                struct rows gate = random_rows(first + (one ? 1 : n), a == 4, 4, &random);
                for (size_t r = 0; r < ROWS; r++)
                    for (size_t c = 0; c < n; c++)
                        want.p[r * x.ld + c] =
                            x.p[r * x.ld + c] *
                            activate((rp_activation)a, gate.p[r * gate.ld + first + (one ? 0 : c)]);
                for (size_t t = 0; t < n_tables; t++) {
                    struct rows y = rows_of(n), same = copy_rows(&x);
                    tables[t]->gate((rp_activation)a, gate.p + first, gate.ld, one, x.p, x.ld, n,
                                    y.p, y.ld, ROWS);
                    check_rows(&y, &want, "gate", tables[t]->name);
                    tables[t]->gate((rp_activation)a, gate.p + first, gate.ld, one, same.p, same.ld,
                                    n, same.p, same.ld, ROWS);
                    check_rows(&same, &want, "gate in place", tables[t]->name);
                    rows_free(&y);
                    rows_free(&same);
                }
                for (size_t r = 0; r < ROWS; r++)
                    digest = float_digest(want.p + r * want.ld, n, digest);
                rows_free(&x);
                rows_free(&gate);
                rows_free(&want);
            }
    check_digest(digest, UINT64_C(0xe7d13337d58fa7e6));
}

/* The norm times its weight first, then times the gate. */
static void gated_norms_are_the_contract(void **state)
{
    (void)state;
    uint64_t random = SEED, digest = 0;
    for (size_t k = 0; k < COUNT(widths); k++)
        for (size_t heads = 1; heads <= 5 && widths[k] <= 128; heads += 2) {
            const size_t dim = widths[k], n = heads * dim;
            const rp_activation act = (rp_activation)(k % N_ACTIVATIONS);
            float *w = random_vector(dim, 1, &random);
            const struct rp_ops_rms_norm norm = {
                .w = w, .eps = 1e-6f, .n_heads = heads, .head_dim = dim};
            struct rows x = random_rows(n, false, 4, &random);
            struct rows gate = random_rows(n, false, 4, &random), want = norm_plainly(&norm, &x);
            for (size_t i = 0; i < want.floats; i++)
                if (i % want.ld < n)
                    want.p[i] *= activate(act, gate.p[i]);
            for (size_t t = 0; t < n_tables; t++) {
                struct rows y = rows_of(n);
                tables[t]->gated_norm(&norm, act, gate.p, gate.ld, x.p, x.ld, n, y.p, y.ld, ROWS);
                check_rows(&y, &want, "gated_norm", tables[t]->name);
                rows_free(&y);
            }
            for (size_t r = 0; r < ROWS; r++)
                digest = float_digest(want.p + r * want.ld, n, digest);
            rows_free(&x);
            rows_free(&gate);
            rows_free(&want);
            guard_free(w, dim * sizeof *w);
        }
    check_digest(digest, UINT64_C(0x8518d05a94e2c4f7));
}

static void scaled_rows_are_added_by_fma(void **state)
{
    (void)state;
    uint64_t random = SEED;
    for (size_t k = 0; k < COUNT(widths); k++)
        for (size_t t = 0; t < n_tables; t++) {
            const size_t n = widths[k];
            float *x = random_vector(n, 2, &random), *y = random_vector(n, 2, &random);
            float *want = random_vector(n, 2, &random);
            for (size_t i = 0; i < n; i++)
                want[i] = fmaf(x[i], 0.3f, y[i]);
            tables[t]->add_scaled(0.3f, x, n, y);
            assert_memory_equal(y, want, n * sizeof *y);
            guard_free(x, n * sizeof *x);
            guard_free(y, n * sizeof *y);
            guard_free(want, n * sizeof *want);
        }
}

/* ---- gates of a delta net -----------------------------------------------------------------------
 */

static double softplus(double x)
{
    return (x > 0 ? x : 0) + log1p(exp(-fabs(x)));
}

static void check_gates(const struct rp_ops_gdn_gates *g, const struct rows *x,
                        const struct rows *y)
{
    for (size_t r = 0; r < ROWS; r++)
        for (size_t h = 0; h < g->n_heads; h++) {
            const float *row = x->p + r * x->ld;
            const float sum = row[g->a_column + h] + (g->dt_bias ? g->dt_bias[h] : 0);
            const double rate = g->linear_rate ? g->a_log[h] : -exp((double)g->a_log[h]);
            const double log_decay = rate * softplus((double)sum);
            const double beta = g->beta_scale / (1 + exp(-(double)row[g->b_column + h]));
            const float *got = y->p + r * y->ld;
            assert_true(fabs(got[h] - log_decay) <= 4e-7 * fabs(log_decay));
            assert_true(fabs(got[g->n_heads + h] - beta) <= 3e-7 * fabs(beta));
        }
}

static void delta_net_gates_are_accurate(void **state)
{
    (void)state;
    static const size_t heads[] = {1, 3, 15, 16, 17, 32, 80};
    uint64_t random = SEED, digest = 0;
    for (size_t k = 0; k < COUNT(heads); k++)
        for (int kind = 0; kind < 4; kind++) {
            const size_t n = heads[k];
            float *a_log = random_vector(n, 3, &random), *bias = random_vector(n, 4, &random);
            const struct rp_ops_gdn_gates g = {.n_heads = n,
                                               .a_column = kind % 2 ? n + 2 : 1,
                                               .b_column = kind % 2 ? 1 : n + 2,
                                               .a_log = a_log,
                                               .dt_bias = kind == 2 ? NULL : bias,
                                               .linear_rate = kind == 3,
                                               .beta_scale = kind == 1 ? 2 : 1};
            struct rows x = random_rows(2 * n + 2, false, 12, &random), want = rows_of(2 * n);
            tables[0]->gdn_gates(&g, x.p, x.ld, want.p, want.ld, ROWS);
            check_gates(&g, &x, &want);
            for (size_t t = 0; t < n_tables; t++) {
                struct rows y = rows_of(2 * n);
                tables[t]->gdn_gates(&g, x.p, x.ld, y.p, y.ld, ROWS);
                check_rows(&y, &want, "gdn_gates", tables[t]->name);
                rows_free(&y);
            }
            for (size_t r = 0; r < ROWS; r++)
                digest = float_digest(want.p + r * want.ld, 2 * n, digest);
            rows_free(&x);
            rows_free(&want);
            guard_free(a_log, n * sizeof *a_log);
            guard_free(bias, n * sizeof *bias);
        }
    check_digest(digest, UINT64_C(0xc318b7659df8774b));
}

static float log_decay(const struct rp_ops *ops, float a_log, float a, bool linear)
{
    const float zero = 0, x[] = {a, 0};
    const struct rp_ops_gdn_gates g = {.n_heads = 1,
                                       .b_column = 1,
                                       .a_log = &a_log,
                                       .dt_bias = &zero,
                                       .linear_rate = linear,
                                       .beta_scale = 1};
    float y[2];
    ops->gdn_gates(&g, x, 2, y, 2, 1);
    assert_true(y[1] == 0.5f);
    return y[0];
}

/* The rate overflows where softplus vanishes, and the other way round. */
static void delta_net_gates_of_the_report(void **state)
{
    (void)state;
    for (size_t t = 0; t < n_tables; t++) {
        const struct rp_ops *ops = tables[t];
        assert_true(log_decay(ops, 100, -200, false) == 0);
        assert_true(fabsf(log_decay(ops, 0, 0, false) - -0.69314718f) <= 6e-8f);
        assert_true(log_decay(ops, 0, 200, false) == -200);
        assert_true(fabsf(log_decay(ops, -100, 0, false)) < 1e-40f);
        assert_true(log_decay(ops, -200, 200, false) == 0);
        assert_true(log_decay(ops, -200, INFINITY, false) == 0);
        assert_true(log_decay(ops, 100, 200, false) == -FLT_MAX);
        assert_true(log_decay(ops, INFINITY, 5, false) == -FLT_MAX);
        assert_true(log_decay(ops, INFINITY, -INFINITY, false) == 0);
        assert_true(log_decay(ops, -INFINITY, 3, true) == -FLT_MAX);
        assert_true(log_decay(ops, -2, 200, true) == -400);
        assert_true(isnan(log_decay(ops, NAN, 0, false)) && isnan(log_decay(ops, 0, NAN, false)));
    }
}

/* ---- with quantize ------------------------------------------------------------------------------
 */

static void normed_and_quantized_at_once(void **state)
{
    (void)state;
    uint64_t random = SEED;
    for (size_t k = 0; k < COUNT(widths); k++)
        for (int kind = 0; kind < 8; kind++)
            for (size_t t = 0; t < n_tables; t++) {
                const size_t n = widths[k], bytes = ROWS * rp_qgemm_row_bytes(n);
                float *w = random_vector(n, 1, &random), *f = random_vector(n, 1, &random);
                const float *factors = kind & 1 ? f : NULL;
                const bool keep = kind & 2;
                const struct rp_ops_rms_norm norm = {
                    .w = w, .offset = kind & 4, .eps = 1e-6f, .n_heads = 1, .head_dim = n};
                struct rows x = random_rows(n, false, 4, &random), want = rows_of(n);
                struct rows y = rows_of(n);
                uint8_t *q_want = guard_alloc(bytes), *q = guard_alloc(bytes);
                tables[0]->rms_norm(&norm, x.p, x.ld, n, want.p, want.ld, ROWS);
                tables[0]->quantize(want.p, want.ld, factors, n, q_want, ROWS);
                tables[t]->rms_norm_quantize(&norm, x.p, x.ld, y.p, y.ld, keep, factors, q, ROWS);
                assert_memory_equal(q, q_want, bytes);
                if (keep)
                    check_rows(&y, &want, "rms_norm_quantize", tables[t]->name);
                rows_free(&x);
                rows_free(&y);
                rows_free(&want);
                guard_free(w, n * sizeof *w);
                guard_free(f, n * sizeof *f);
                guard_free(q, bytes);
                guard_free(q_want, bytes);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rms_norms_are_the_contract),
        cmocka_unit_test(rms_norm_is_accurate),
        cmocka_unit_test(offset_norm_of_the_report),
        cmocka_unit_test(a_nan_spoils_its_own_head_only),
        cmocka_unit_test(gates_are_the_contract),
        cmocka_unit_test(gated_norms_are_the_contract),
        cmocka_unit_test(scaled_rows_are_added_by_fma),
        cmocka_unit_test(delta_net_gates_are_accurate),
        cmocka_unit_test(delta_net_gates_of_the_report),
        cmocka_unit_test(normed_and_quantized_at_once),
    };
    return cmocka_run_group_tests(tests, find_tables, NULL);
}
