/* Gated delta nets outside of graphs: results against a recurrence in double, slots, forks, steps,
 * what is refused, and that whatever fails changes no state. */
#define _GNU_SOURCE 1
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <rankplan/rankplan.h>

#include "gdn/gdn.h"
#include "gdn/state.h"
#include "ops/ops.h"
#include "pool/fault.h"
#include "pool/pool.h"
#include "tests/alloc_count.h"
#include "tests/floats.h"
#include "tests/toy.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SLOTS 8

static void must(rp_status status, const rp_error *err)
{
    if (status != RP_OK)
        fail_msg("%s: %s", rp_status_name(status), err->message);
}

#define MUST(call)                                                                                 \
    do {                                                                                           \
        rp_error must_err_ = {RP_OK, ""};                                                          \
        const rp_status must_status_ = (call);                                                     \
        must(must_status_, &must_err_);                                                            \
    } while (0)
#define ERR (&must_err_)

static float *floats(size_t n)
{
    float *p = calloc(n ? n : 1, sizeof *p);
    assert_non_null(p);
    return p;
}

/* ---- rows to run -------------------------------------------------------------------------------
 */

/* Rows of a batch, with unit keys and queries as trained nets have them, and gaps between rows. */
struct rows {
    rp_gdn gdn;
    bool linear_decay;
    size_t n, keys, values, heads; /* floats of a row of q or k, of v, of the gates */
    float *q, *k, *v, *decay, *beta, *out;
};

enum { GAP = 3 };

static void unit(float *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(x[i] / sqrt(sum));
}

static float *random_rows(uint64_t *seed, size_t n, size_t width)
{
    float *x = floats(n * (width + GAP));
    for (size_t i = 0; i < n * (width + GAP); i++)
        x[i] = i % (width + GAP) < width ? random_float(seed, 1.0f) : NAN;
    return x;
}

static struct rows make_rows(rp_gdn gdn, bool linear_decay, size_t n, uint64_t seed)
{
    struct rows r = {.gdn = gdn, .linear_decay = linear_decay, .n = n};
    const size_t dk = (size_t)gdn.key_dim;
    r.heads = (size_t)gdn.n_value_heads;
    r.keys = (size_t)gdn.n_key_heads * dk;
    r.values = r.heads * (size_t)gdn.value_dim;
    r.q = random_rows(&seed, n, r.keys);
    r.k = random_rows(&seed, n, r.keys);
    r.v = random_rows(&seed, n, r.values);
    r.decay = random_rows(&seed, n, r.heads);
    r.beta = random_rows(&seed, n, r.heads);
    r.out = floats(n * (r.values + GAP));
    for (size_t t = 0; t < n; t++) {
        for (size_t h = 0; h < (size_t)gdn.n_key_heads; h++) {
            unit(r.q + t * (r.keys + GAP) + h * dk, dk);
            unit(r.k + t * (r.keys + GAP) + h * dk, dk);
        }
        for (size_t h = 0; h < r.heads; h++) {
            float *g = r.decay + t * (r.heads + GAP) + h, *b = r.beta + t * (r.heads + GAP) + h;
            *b = 0.5f + 0.5f * *b;
            *g = 0.9f + 0.1f * *g;
            *g = linear_decay ? *g : logf(*g);
        }
    }
    return r;
}

static void free_rows(struct rows *r)
{
    free(r->q);
    free(r->k);
    free(r->v);
    free(r->decay);
    free(r->beta);
    free(r->out);
}

/* Rows [row0, row0 + ...) as cu says. */
static rp_gdn_batch batch_of(const struct rows *r, size_t row0, size_t n_seqs, const int32_t *slots,
                             const int32_t *cu)
{
    rp_gdn_batch b;
    rp_gdn_batch_init(&b);
    b.n_seqs = n_seqs;
    b.slots = slots;
    b.cu = cu;
    b.q = (rp_gdn_input){r->q + row0 * (r->keys + GAP), r->keys + GAP};
    b.k = (rp_gdn_input){r->k + row0 * (r->keys + GAP), r->keys + GAP};
    b.v = (rp_gdn_input){r->v + row0 * (r->values + GAP), r->values + GAP};
    b.decay = (rp_gdn_input){r->decay + row0 * (r->heads + GAP), r->heads + GAP};
    b.beta = (rp_gdn_input){r->beta + row0 * (r->heads + GAP), r->heads + GAP};
    b.out = r->out + row0 * (r->values + GAP);
    b.ld_out = r->values + GAP;
    return b;
}

static void run_some(rp_gdn_states *s, const struct rows *r, size_t row0, size_t n, int32_t slot)
{
    const int32_t cu[] = {0, (int32_t)n};
    const rp_gdn_batch b = batch_of(r, row0, 1, &slot, cu);
    MUST(rp_gdn_run(s, &b, ERR));
}

static const rp_gdn small = {.n_key_heads = 2, .n_value_heads = 4, .key_dim = 24, .value_dim = 20};

static rp_gdn_states_options options_of(const struct rows *r)
{
    rp_gdn_states_options o;
    rp_gdn_states_options_init(&o);
    o.gdn = r->gdn;
    o.linear_decay = r->linear_decay;
    o.n_slots = MAX_SLOTS;
    return o;
}

static rp_gdn_states *states_of(const rp_gdn_states_options *o)
{
    rp_gdn_states *s = NULL;
    MUST(rp_gdn_states_create(o, &s, ERR));
    return s;
}

static size_t state_floats(const rp_gdn *g)
{
    return (size_t)g->n_value_heads * (size_t)g->key_dim * (size_t)g->value_dim;
}

static float *state_of(const rp_gdn_states *s, const rp_gdn *g, int32_t slot)
{
    float *x = floats(state_floats(g));
    MUST(rp_gdn_states_get(s, slot, RP_GDN_KEY_VALUE, x, ERR));
    return x;
}

static void assert_state(const rp_gdn_states *s, const rp_gdn *g, int32_t slot, const float *want)
{
    float *x = state_of(s, g, slot);
    assert_memory_equal(x, want, state_floats(g) * sizeof *x);
    free(x);
}

static void set_random(rp_gdn_states *s, const rp_gdn *g, int32_t slot, uint64_t seed)
{
    float *x = floats(state_floats(g));
    for (size_t i = 0; i < state_floats(g); i++)
        x[i] = random_float(&seed, 0.2f);
    MUST(rp_gdn_states_set(s, slot, RP_GDN_KEY_VALUE, x, ERR));
    free(x);
}

/* ---- the recurrence in double ------------------------------------------------------------------
 */

static double norm_of(const rp_gdn *g, const float *x)
{
    double sum = 0;
    for (int32_t i = 0; i < g->key_dim; i++)
        sum += (double)x[i] * x[i];
    if (g->norm == RP_GDN_NORM_ROOT)
        return sqrt(sum + (double)g->eps);
    return g->norm == RP_GDN_NORM_MAX ? fmax(sqrt(sum), (double)g->eps) : 1.0;
}

/* One row of one value head: S is [key][value]. */
static void reference_row(const struct rows *r, size_t t, size_t head, double *s, double *out)
{
    const rp_gdn *g = &r->gdn;
    const size_t dk = (size_t)g->key_dim, dv = (size_t)g->value_dim, nk = (size_t)g->n_key_heads;
    const size_t kh = g->map == RP_GDN_TILED ? head % nk : head / (r->heads / nk);
    const float *q = r->q + t * (r->keys + GAP) + kh * dk,
                *k = r->k + t * (r->keys + GAP) + kh * dk;
    const float *v = r->v + t * (r->values + GAP) + head * dv;
    const double decay = r->decay[t * (r->heads + GAP) + head];
    const double a = r->linear_decay ? decay : exp(decay),
                 beta = r->beta[t * (r->heads + GAP) + head];
    const double scale = g->scale != 0 ? (double)g->scale : 1 / sqrt((double)dk);
    const double nq = norm_of(g, q), nkk = norm_of(g, k);
    for (size_t j = 0; j < dv; j++) {
        double p = 0, o = 0;
        for (size_t i = 0; i < dk; i++) {
            s[i * dv + j] *= a;
            p += s[i * dv + j] * k[i] / nkk;
        }
        for (size_t i = 0; i < dk; i++) {
            s[i * dv + j] += k[i] / nkk * beta * (v[j] - p);
            o += s[i * dv + j] * q[i] / nq * scale;
        }
        out[j] = o;
    }
}

/* Largest differences of outputs and of the state behind rows [row0, row0 + n), from state0. */
static void compare(const struct rows *r, size_t row0, size_t n, const float *state0,
                    const float *state1, double *out_error, double *state_error)
{
    const size_t dv = (size_t)r->gdn.value_dim, head = (size_t)r->gdn.key_dim * dv;
    double *s = calloc(head, sizeof *s), *out = calloc(dv, sizeof *out);
    assert_true(s && out);
    for (size_t h = 0; h < r->heads; h++) {
        for (size_t i = 0; i < head; i++)
            s[i] = state0[h * head + i];
        for (size_t t = row0; t < row0 + n; t++) {
            reference_row(r, t, h, s, out);
            for (size_t j = 0; j < dv; j++)
                *out_error =
                    fmax(*out_error, fabs(out[j] - r->out[t * (r->values + GAP) + h * dv + j]));
        }
        for (size_t i = 0; i < head; i++)
            *state_error = fmax(*state_error, fabs(s[i] - state1[h * head + i]));
    }
    free(s);
    free(out);
}

/* ---- results -----------------------------------------------------------------------------------
 */

/* n_seqs sequences of len rows each, in one call or row by row, within `bound` of the recurrence.
 */
static void check_shape(rp_gdn gdn, bool linear, size_t n_seqs, size_t len, bool by_row,
                        double bound)
{
    struct rows r = make_rows(gdn, linear, n_seqs * len, 1 + len);
    const rp_gdn_states_options o = options_of(&r);
    rp_gdn_states *s = states_of(&o);
    int32_t slots[MAX_SLOTS], cu[MAX_SLOTS + 1];
    float *before[MAX_SLOTS];
    for (size_t i = 0; i <= n_seqs; i++)
        cu[i] = (int32_t)(i * len);
    for (size_t i = 0; i < n_seqs; i++) {
        slots[i] = (int32_t)((3 * i + 5) % MAX_SLOTS);
        set_random(s, &gdn, slots[i], 77 + i);
        before[i] = state_of(s, &gdn, slots[i]);
    }
    const rp_gdn_batch b = batch_of(&r, 0, n_seqs, slots, cu);
    if (!by_row)
        MUST(rp_gdn_run(s, &b, ERR));
    for (size_t t = 0; by_row && t < n_seqs * len; t++)
        run_some(s, &r, t, 1, slots[t / len]);
    double out_error = 0, state_error = 0;
    for (size_t i = 0; i < n_seqs; i++) {
        float *after = state_of(s, &gdn, slots[i]);
        compare(&r, i * len, len, before[i], after, &out_error, &state_error);
        free(after);
        free(before[i]);
    }
    if (!(out_error < bound && state_error < bound))
        fail_msg("%d/%d heads of %d x %d, %zu rows: out %g, state %g off", gdn.n_key_heads,
                 gdn.n_value_heads, gdn.key_dim, gdn.value_dim, len, out_error, state_error);
    rp_gdn_states_destroy(s);
    free_rows(&r);
}

static void test_shapes(void **state)
{
    (void)state;
    static const struct {
        size_t b, t;
        int32_t hk, hv, dk, dv;
    } shapes[] = {{1, 1, 2, 4, 128, 128},   {1, 9, 2, 4, 128, 64},    {1, 3, 16, 32, 128, 128},
                  {2, 5, 1, 2, 64, 48},     {1, 4, 4, 4, 32, 17},     {3, 70, 2, 6, 33, 7},
                  {1, 40, 1, 1, 1, 1},      {2, 33, 3, 3, 7, 16 + 1}, {1, 145, 2, 4, 32, 32},
                  {1, 145, 2, 4, 128, 128}, {1, 145, 2, 2, 128, 128}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const bool one_map = shapes[i].hk == 1 || shapes[i].hk == shapes[i].hv;
        for (int map = one_map; map <= RP_GDN_TILED; map++) {
            const rp_gdn g = {.n_key_heads = shapes[i].hk,
                              .n_value_heads = shapes[i].hv,
                              .key_dim = shapes[i].dk,
                              .value_dim = shapes[i].dv,
                              .map = (rp_gdn_map)map,
                              .scale = 1};
            check_shape(g, true, shapes[i].b, shapes[i].t, false, 2e-5);
            if (shapes[i].t < 100 || shapes[i].dk < 100) /* what is left out is slow on plain C */
                check_shape(g, true, shapes[i].b, shapes[i].t, true, 2e-5);
        }
    }
}

static void test_conventions(void **state)
{
    (void)state;
    rp_gdn g = small;
    for (int norm = RP_GDN_NORM_NONE; norm <= RP_GDN_NORM_MAX; norm++) {
        g.norm = (rp_gdn_norm)norm;
        g.eps = 0.25f; /* large enough to tell the two norms apart */
        for (int which = 0; which < 3; which++) {
            g.scale = (float)which;
            check_shape(g, false, 1, 50, false, 2e-5);
            check_shape(g, false, 1, 5, true, 2e-5);
        }
    }
}

/* k_t = e_t, q = e_0: what the first row stored, seen through the decays. */
static void test_closed_form(void **state)
{
    (void)state;
    const rp_gdn g = {.n_key_heads = 1, .n_value_heads = 1, .key_dim = 4, .value_dim = 2};
    struct rows r = make_rows(g, true, 4, 1);
    static const float decays[] = {0.5f, 0.5f, 0.25f, 0.5f};
    static const float want[] = {0.5f, 1, 0.25f, 0.5f, 0.0625f, 0.125f, 0.03125f, 0.0625f};
    for (size_t t = 0; t < 4; t++) {
        for (size_t i = 0; i < 4; i++) {
            r.q[t * (r.keys + GAP) + i] = i == 0;
            r.k[t * (r.keys + GAP) + i] = i == t;
        }
        for (size_t j = 0; j < 2; j++)
            r.v[t * (r.values + GAP) + j] = (float)(2 * t + j + 1);
        r.decay[t * (1 + GAP)] = decays[t];
        r.beta[t * (1 + GAP)] = 1;
    }
    const rp_gdn_states_options o = options_of(&r);
    rp_gdn_states *s = states_of(&o);
    run_some(s, &r, 0, 4, 0);
    for (size_t t = 0; t < 4; t++)
        assert_memory_equal(r.out + t * (r.values + GAP), want + 2 * t, 2 * sizeof *want);
    rp_gdn_states_destroy(s);
    free_rows(&r);
}

static double largest(const float *a, const float *b, size_t n)
{
    double most = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isnan(a[i]) || !isnan(b[i]))
            most = fmax(most, isnan(a[i]) || isnan(b[i]) ? INFINITY : fabs((double)a[i] - b[i]));
    }
    return most;
}

/* A sequence cut into two calls, anywhere, is the sequence. */
static void test_cuts(void **state)
{
    (void)state;
    static const size_t lengths[] = {1, 2, 4, 31, 32, 33, 63, 64, 65, 145, 257};
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
        const size_t n = lengths[l], step = n > 70 ? 24 : n > 4 ? 7 : 1;
        struct rows r = make_rows(small, false, n, n);
        const rp_gdn_states_options o = options_of(&r);
        rp_gdn_states *s = states_of(&o);
        run_some(s, &r, 0, n, 0);
        float *whole = state_of(s, &small, 0);
        float *out = floats(n * (r.values + GAP));
        memcpy(out, r.out, n * (r.values + GAP) * sizeof *out);
        for (size_t cut = 1; cut < n; cut += n == 145 && cut == 49 ? 73 - 49 : step) {
            MUST(rp_gdn_states_reset(s, 1, ERR));
            run_some(s, &r, 0, cut, 1);
            run_some(s, &r, cut, n - cut, 1);
            float *parts = state_of(s, &small, 1);
            assert_true(largest(whole, parts, state_floats(&small)) < 1e-5);
            assert_true(largest(out, r.out, n * (r.values + GAP)) < 1e-5);
            free(parts);
        }
        free(whole);
        free(out);
        rp_gdn_states_destroy(s);
        free_rows(&r);
    }
}

/* ---- slots and bits ----------------------------------------------------------------------------
 */

static const int32_t ragged[] = {0, 1, 1, 40, 105, 107};
static const int32_t ragged_slots[] = {6, 2, 0, 3, 5};
enum { RAGGED = 5, RAGGED_ROWS = 107 };

/* Outputs and states of the ragged batch, each sequence by a call of its own. */
static float *alone(const struct rows *r, float **states)
{
    const rp_gdn_states_options o = options_of(r);
    rp_gdn_states *s = states_of(&o);
    for (size_t i = 0; i < RAGGED; i++) {
        set_random(s, &r->gdn, (int32_t)i, i);
        if (ragged[i + 1] > ragged[i])
            run_some(s, r, (size_t)ragged[i], (size_t)(ragged[i + 1] - ragged[i]), (int32_t)i);
        states[i] = state_of(s, &r->gdn, (int32_t)i);
    }
    float *out = floats(RAGGED_ROWS * (r->values + GAP));
    memcpy(out, r->out, RAGGED_ROWS * (r->values + GAP) * sizeof *out);
    rp_gdn_states_destroy(s);
    return out;
}

/* The batch at once gives the same bits, whatever slots and threads, and leaves other slots (and
 * those of sequences without rows) as they were. */
static void check_bits(struct rows *r, const float *out, float *const *states, int threads,
                       bool in_place)
{
    const rp_gdn *gdn = &r->gdn;
    rp_pool *pool = toy_pool(threads);
    rp_gdn_states_options o = options_of(r);
    o.pool = pool;
    o.in_place = in_place;
    rp_gdn_states *s = states_of(&o);
    for (size_t i = 0; i < RAGGED; i++)
        set_random(s, gdn, ragged_slots[i], i);
    set_random(s, gdn, 1, 1234);
    float *other = state_of(s, gdn, 1);
    const rp_gdn_batch b = batch_of(r, 0, RAGGED, ragged_slots, ragged);
    memset(r->out, 0, RAGGED_ROWS * (r->values + GAP) * sizeof *out);
    const size_t count = alloc_count();
    MUST(rp_gdn_run(s, &b, ERR));
    if (alloc_count_available())
        assert_int_equal(alloc_count(), count);
    assert_memory_equal(out, r->out, RAGGED_ROWS * (r->values + GAP) * sizeof *out);
    for (size_t i = 0; i < RAGGED; i++)
        assert_state(s, gdn, ragged_slots[i], states[i]);
    assert_state(s, gdn, 1, other);
    free(other);
    rp_gdn_states_destroy(s);
    rp_pool_destroy(pool);
}

static void test_bits(void **state)
{
    (void)state;
    static const rp_gdn shapes[] = {
        {.n_key_heads = 2, .n_value_heads = 4, .key_dim = 24, .value_dim = 20},
        {.n_key_heads = 1, .n_value_heads = 2, .key_dim = 64, .value_dim = 120},
        {.n_key_heads = 2,
         .n_value_heads = 6,
         .key_dim = 48,
         .value_dim = 40,
         .map = RP_GDN_TILED}};
    static const int threads[] = {1, 2, 3, 7};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct rows r = make_rows(shapes[i], false, RAGGED_ROWS, 9);
        float *states[RAGGED], *out = alone(&r, states);
        for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
            check_bits(&r, out, states, threads[t], false);
            check_bits(&r, out, states, threads[t], true);
        }
        for (size_t j = 0; j < RAGGED; j++)
            free(states[j]);
        free(out);
        free_rows(&r);
    }
}

/* One row for each of all slots is what decoding does: without cu. */
static void test_one_row_each(void **state)
{
    (void)state;
    static const int32_t slots[] = {4, 1, 7, 0};
    struct rows r = make_rows(small, false, 4, 3);
    const rp_gdn_states_options o = options_of(&r);
    rp_gdn_states *s = states_of(&o);
    rp_gdn_batch b = batch_of(&r, 0, 4, slots, NULL);
    MUST(rp_gdn_run(s, &b, ERR));
    float *out = floats(4 * (r.values + GAP));
    memcpy(out, r.out, 4 * (r.values + GAP) * sizeof *out);
    for (size_t i = 0; i < 4; i++) {
        MUST(rp_gdn_states_reset(s, 2, ERR));
        run_some(s, &r, i, 1, 2);
        float *one = state_of(s, &small, 2);
        assert_state(s, &small, slots[i], one);
        free(one);
    }
    assert_memory_equal(out, r.out, 4 * (r.values + GAP) * sizeof *out);
    free(out);
    rp_gdn_states_destroy(s);
    free_rows(&r);
}

/* The state after each row is what the slot holds when its rows end there, in either layout. */
static void check_steps(rp_gdn gdn, rp_dtype dtype, int threads)
{
    enum { N = RP_GDN_CHUNK + 3 };
    struct rows r = make_rows(gdn, false, N, 21);
    rp_pool *pool = toy_pool(threads);
    rp_gdn_states_options o = options_of(&r);
    o.dtype = dtype;
    o.pool = pool;
    rp_gdn_states *s = states_of(&o);
    const size_t n = state_floats(&gdn), dk = (size_t)gdn.key_dim, dv = (size_t)gdn.value_dim;
    float *steps = floats(N * n + 16), *turned = floats(N * n + 16);
    for (size_t i = 0; i < 16; i++)
        steps[N * n + i] = turned[N * n + i] = 1234;
    for (int32_t slot = 0; slot < 4; slot++)
        set_random(s, &gdn, slot, 5);
    run_some(s, &r, 0, N, 0);
    float *out = floats(N * (r.values + GAP)), *last = state_of(s, &gdn, 0);
    memcpy(out, r.out, N * (r.values + GAP) * sizeof *out);
    for (int32_t layout = RP_GDN_KEY_VALUE; layout <= RP_GDN_VALUE_KEY; layout++) {
        const int32_t slot = 1 + layout, cu[] = {0, N};
        rp_gdn_batch b = batch_of(&r, 0, 1, &slot, cu);
        b.steps = layout == RP_GDN_KEY_VALUE ? steps : turned;
        b.steps_layout = (rp_gdn_layout)layout;
        MUST(rp_gdn_run(s, &b, ERR));
        assert_memory_equal(out, r.out, N * (r.values + GAP) * sizeof *out);
        assert_state(s, &gdn, slot, last);
    }
    for (size_t t = 0; t < N; t++) {
        MUST(rp_gdn_states_fork(s, 3, 4, ERR));
        run_some(s, &r, 0, t + 1, 4);
        assert_state(s, &gdn, 4, steps + t * n);
        for (size_t i = 0; i < n; i++) {
            const size_t h = i / (dk * dv), k = i / dv % dk, v = i % dv;
            assert_true(steps[t * n + i] == turned[t * n + (h * dv + v) * dk + k]);
        }
    }
    for (size_t i = 0; i < 16; i++)
        assert_true(steps[N * n + i] == 1234 && turned[N * n + i] == 1234);
    free(out);
    free(last);
    free(steps);
    free(turned);
    rp_gdn_states_destroy(s);
    rp_pool_destroy(pool);
    free_rows(&r);
}

static void test_steps(void **state)
{
    (void)state;
    rp_gdn tiled = small;
    tiled.map = RP_GDN_TILED;
    const rp_gdn wide = {.n_key_heads = 1, .n_value_heads = 1, .key_dim = 64, .value_dim = 72};
    check_steps(small, RP_DTYPE_F32, 1);
    check_steps(tiled, RP_DTYPE_F32, 3);
    check_steps(wide, RP_DTYPE_F32, 3);
    check_steps(tiled, RP_DTYPE_BF16, 2);
    check_steps(small, RP_DTYPE_F16, 1);
}

/* ---- forks and memory --------------------------------------------------------------------------
 */

/* A fork takes no memory until one of both goes on; then each has its own, whichever it was. */
static void check_fork(bool in_place, bool run_the_fork)
{
    struct rows r = make_rows(small, false, 12, 4);
    rp_gdn_states_options o = options_of(&r);
    o.in_place = in_place;
    rp_gdn_states *s = states_of(&o);
    const size_t bytes = state_floats(&small) * sizeof(float);
    assert_int_equal(rp_gdn_states_used_bytes(s), 0);
    run_some(s, &r, 0, 5, 0);
    assert_int_equal(rp_gdn_states_used_bytes(s), bytes);
    float *first = state_of(s, &small, 0);
    for (int32_t to = 1; to < MAX_SLOTS; to++)
        MUST(rp_gdn_states_fork(s, 0, to, ERR));
    assert_int_equal(rp_gdn_states_used_bytes(s), bytes);
    const int32_t runs = run_the_fork ? 3 : 0;
    run_some(s, &r, 5, 7, runs);
    assert_int_equal(rp_gdn_states_used_bytes(s), 2 * bytes);
    float *second = state_of(s, &small, runs);
    assert_memory_not_equal(first, second, bytes);
    for (int32_t slot = 0; slot < MAX_SLOTS; slot++)
        assert_state(s, &small, slot, slot == runs ? second : first);

    MUST(rp_gdn_states_fork(s, runs, 2, ERR)); /* over one that shares */
    MUST(rp_gdn_states_fork(s, 2, 2, ERR));
    assert_state(s, &small, 2, second);
    assert_int_equal(rp_gdn_states_used_bytes(s), 2 * bytes);
    for (int32_t slot = 0; slot < MAX_SLOTS; slot++)
        MUST(rp_gdn_states_reset(s, slot, ERR));
    assert_int_equal(rp_gdn_states_used_bytes(s), 0);
    memset(second, 0, bytes);
    assert_state(s, &small, runs, second);
    MUST(rp_gdn_states_fork(s, 0, 1, ERR)); /* zeros are forked too */
    run_some(s, &r, 0, 5, 1);
    assert_state(s, &small, 1, first);
    assert_state(s, &small, 0, second);
    free(first);
    free(second);
    rp_gdn_states_destroy(s);
    free_rows(&r);
}

static void test_forks(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++)
        check_fork(i & 1, i & 2);
}

/* Any forks, runs, resets and settings in any order: memory is enough, and each slot holds what it
 * would hold had it never shared anything. */
static void check_random_life(bool in_place, size_t n_slots)
{
    struct rows r = make_rows(small, false, 2 * MAX_SLOTS, 4);
    rp_gdn_states_options o = options_of(&r), plain = o;
    o.in_place = in_place;
    o.n_slots = n_slots;
    plain.n_slots = 1;
    rp_gdn_states *s = states_of(&o), *single = states_of(&plain);
    const size_t n = state_floats(&small);
    float *model[MAX_SLOTS];
    for (size_t i = 0; i < n_slots; i++)
        model[i] = floats(n);
    uint64_t seed = n_slots;
    for (int round = 0; round < 120; round++) {
        const size_t a = random_next(&seed) % n_slots, b = random_next(&seed) % n_slots;
        int32_t slots[MAX_SLOTS], cu[MAX_SLOTS + 1] = {0};
        switch (random_next(&seed) % 6) {
        case 0:
            MUST(rp_gdn_states_reset(s, (int32_t)a, ERR));
            memset(model[a], 0, n * sizeof(float));
            break;
        case 1:
        case 2:
            MUST(rp_gdn_states_fork(s, (int32_t)a, (int32_t)b, ERR));
            memmove(model[b], model[a], n * sizeof(float));
            break;
        case 3:
            set_random(s, &small, (int32_t)a, seed);
            free(model[a]);
            model[a] = state_of(s, &small, (int32_t)a);
            break;
        default: /* all slots from number a on, around, two rows each or none */
            for (size_t i = 0; i < n_slots; i++) {
                slots[i] = (int32_t)((a + i) % n_slots);
                cu[i + 1] = cu[i] + (i % 3 == 1 && n_slots > 3 ? 0 : 2);
            }
            const rp_gdn_batch batch = batch_of(&r, 0, n_slots, slots, cu);
            MUST(rp_gdn_run(s, &batch, ERR));
            for (size_t i = 0; i < n_slots; i++) {
                if (cu[i + 1] == cu[i])
                    continue;
                float *m = model[slots[i]];
                MUST(rp_gdn_states_set(single, 0, RP_GDN_KEY_VALUE, m, ERR));
                run_some(single, &r, (size_t)cu[i], 2, 0);
                MUST(rp_gdn_states_get(single, 0, RP_GDN_KEY_VALUE, m, ERR));
            }
        }
        for (size_t i = 0; i < n_slots; i++)
            assert_state(s, &small, (int32_t)i, model[i]);
    }
    for (size_t i = 0; i < n_slots; i++)
        free(model[i]);
    rp_gdn_states_destroy(s);
    rp_gdn_states_destroy(single);
    free_rows(&r);
}

static void test_random_lives(void **state)
{
    (void)state;
    for (size_t n = 1; n <= MAX_SLOTS; n += n < 4 ? 1 : 4) {
        check_random_life(false, n);
        check_random_life(true, n);
    }
}

static void test_get_and_set(void **state)
{
    (void)state;
    for (int map = RP_GDN_GROUPED; map <= RP_GDN_TILED; map++) {
        rp_gdn g = {.n_key_heads = 2, .n_value_heads = 6, .key_dim = 3, .value_dim = 300};
        g.map = (rp_gdn_map)map;
        const struct rows r = {.gdn = g};
        const rp_gdn_states_options o = options_of(&r);
        rp_gdn_states *s = states_of(&o);
        const size_t n = state_floats(&g);
        float *a = floats(n), *b = floats(n);
        for (size_t i = 0; i < n; i++)
            a[i] = (float)i;
        MUST(rp_gdn_states_set(s, 1, RP_GDN_VALUE_KEY, a, ERR));
        MUST(rp_gdn_states_get(s, 1, RP_GDN_KEY_VALUE, b, ERR));
        for (size_t h = 0, i = 0; h < 6; h++) {
            for (size_t k = 0; k < 3; k++) {
                for (size_t v = 0; v < 300; v++, i++)
                    assert_true(b[i] == a[(h * 300 + v) * 3 + k]);
            }
        }
        /* In memory: value heads key head by key head. */
        rp_gdn_memory m;
        MUST(rp_gdn_states_memory(s, 1, &m, ERR));
        for (size_t i = 0; i < n; i++) {
            const size_t at = i / 900, head = map == RP_GDN_TILED ? at / 3 + 2 * (at % 3) : at;
            assert_true(((float *)m.state)[i] == b[head * 900 + i % 900]);
        }
        MUST(rp_gdn_states_set(s, 2, RP_GDN_KEY_VALUE, b, ERR));
        MUST(rp_gdn_states_get(s, 2, RP_GDN_VALUE_KEY, b, ERR));
        assert_memory_equal(a, b, n * sizeof *a);
        free(a);
        free(b);
        rp_gdn_states_destroy(s);
    }
}

/* What a device gets: whole pages, the slot's alone, and what it writes counts. */
static void test_memory(void **state)
{
    (void)state;
    struct rows r = make_rows(small, false, 6, 4);
    rp_gdn_states_options o = options_of(&r);
    o.conv_channels = 10;
    o.conv_kernel = 4;
    rp_gdn_states *s = states_of(&o);
    const size_t n = state_floats(&small);
    rp_gdn_memory m, other;
    MUST(rp_gdn_states_memory(s, 5, &m, ERR));
    assert_int_equal(m.state_bytes, n * sizeof(float));
    assert_int_equal(m.conv_bytes, 30 * sizeof(float));
    for (size_t i = 0; i < n; i++)
        assert_true(((float *)m.state)[i] == 0);
    for (int i = 0; i < 30; i++)
        ((float *)m.conv)[i] = (float)i;
    run_some(s, &r, 0, 6, 5);
    MUST(rp_gdn_states_fork(s, 5, 6, ERR));
    MUST(rp_gdn_states_memory(s, 6, &m, ERR));
    MUST(rp_gdn_states_memory(s, 5, &other, ERR));
    assert_ptr_not_equal(m.state, other.state);
    assert_ptr_not_equal(m.conv, other.conv);
    assert_int_equal((uintptr_t)m.state % 16384, 0);
    assert_int_equal((uintptr_t)m.conv % 16384, 0);
    assert_memory_equal(m.state, other.state, m.state_bytes);
    assert_memory_equal(m.conv, other.conv, m.conv_bytes);

    /* What lies behind the state up to the end of its last page is nobody's. */
    float *tail = (float *)m.state + n;
    for (int i = 0; i < 16; i++)
        tail[i] = 4711;
    float *before = state_of(s, &small, 5);
    ((float *)m.state)[0] = 17;
    run_some(s, &r, 0, 6, 5);
    for (int i = 0; i < 16; i++)
        assert_true(tail[i] == 4711);
    float *x = state_of(s, &small, 6);
    assert_true(x[0] == 17);
    assert_memory_equal(x + 1, before + 1, (n - 1) * sizeof *x);
    free(x);
    free(before);
    rp_gdn_states_destroy(s);
    free_rows(&r);
}

static void test_conv_rows(void **state)
{
    (void)state;
    const struct rows r = {.gdn = small};
    rp_gdn_states_options o = options_of(&r);
    rp_gdn_states *s = states_of(&o);
    float in[30], out[30];
    for (int i = 0; i < 30; i++)
        in[i] = (float)i + 0.5f;
    rp_error err;
    assert_int_equal(rp_gdn_states_set_conv(s, 0, in, &err), RP_ERR_INVALID);
    assert_string_equal(err.message, "these states were made without a convolution");
    assert_int_equal(rp_gdn_states_get_conv(s, 0, out, &err), RP_ERR_INVALID);
    rp_gdn_states_destroy(s);
    o.conv_channels = 10;
    o.conv_kernel = 4;
    s = states_of(&o);
    MUST(rp_gdn_states_get_conv(s, 3, out, ERR));
    for (int i = 0; i < 30; i++)
        assert_true(out[i] == 0);
    MUST(rp_gdn_states_set_conv(s, 3, in, ERR));
    MUST(rp_gdn_states_fork(s, 3, 4, ERR));
    assert_int_equal(rp_gdn_states_used_bytes(s), sizeof in);
    in[29] = INFINITY;
    assert_int_equal(rp_gdn_states_set_conv(s, 3, NULL, &err), RP_ERR_INVALID);
    assert_int_equal(rp_gdn_states_get_conv(s, 3, NULL, &err), RP_ERR_INVALID);
    assert_int_equal(rp_gdn_states_set_conv(s, 3, in, &err), RP_ERR_NONFINITE);
    assert_string_equal(err.message, "row 2, channel 9 of the conv state is infinite");
    in[29] = 3;
    MUST(rp_gdn_states_set_conv(s, 3, in, ERR));
    MUST(rp_gdn_states_get_conv(s, 3, out, ERR));
    assert_memory_equal(in, out, sizeof in);
    MUST(rp_gdn_states_get_conv(s, 4, out, ERR));
    assert_true(out[29] == 29.5f && out[0] == 0.5f);
    rp_gdn_states_destroy(s);
}

/* ---- the convolution ---------------------------------------------------------------------------
 */

enum {
    CONV_ROWS = 71,
    CHANNELS = 293 /* not few, and no multiple of 16 */,
    CONV_LD = CHANNELS + GAP
};

struct conv_rows {
    float x[CONV_ROWS * CONV_LD], w[8 * CHANNELS], b[CHANNELS], out[CONV_ROWS * CONV_LD];
};

static struct conv_rows *make_conv(uint64_t seed)
{
    struct conv_rows *c = malloc(sizeof *c);
    assert_non_null(c);
    for (size_t i = 0; i < CONV_ROWS * CONV_LD; i++)
        c->x[i] = i % CONV_LD < CHANNELS ? random_float(&seed, 1.0f) : NAN;
    for (size_t i = 0; i < 8 * CHANNELS; i++)
        c->w[i] = random_float(&seed, 0.5f);
    for (size_t i = 0; i < CHANNELS; i++)
        c->b[i] = random_float(&seed, 0.5f);
    memset(c->out, 0, sizeof c->out);
    return c;
}

static rp_gdn_conv_batch conv_batch(struct conv_rows *c, size_t row0, size_t n_seqs,
                                    const int32_t *slots, const int32_t *cu)
{
    rp_gdn_conv_batch b;
    rp_gdn_conv_batch_init(&b);
    b.n_seqs = n_seqs;
    b.slots = slots;
    b.cu = cu;
    b.x = (rp_gdn_input){c->x + row0 * CONV_LD, CONV_LD};
    b.w = c->w;
    b.b = c->b;
    b.out = c->out + row0 * CONV_LD;
    b.ld_out = CONV_LD;
    return b;
}

static rp_gdn_states *conv_states(size_t kernel, bool in_place, rp_pool *pool)
{
    const struct rows r = {.gdn = small};
    rp_gdn_states_options o = options_of(&r);
    o.conv_channels = CHANNELS;
    o.conv_kernel = kernel;
    o.in_place = in_place;
    o.pool = pool;
    return states_of(&o);
}

static void run_conv(rp_gdn_states *s, struct conv_rows *c, size_t row0, size_t n, int32_t slot)
{
    const int32_t cu[] = {0, (int32_t)n};
    const rp_gdn_conv_batch b = conv_batch(c, row0, 1, &slot, cu);
    MUST(rp_gdn_conv(s, &b, ERR));
}

/* Every kernel size against sums in double, the slot's rows before the sequence's own; then cut at
 * every place: the same bits. */
static void check_conv(size_t kernel, bool in_place)
{
    struct conv_rows *c = make_conv(kernel);
    float before[7 * CHANNELS], kept[7 * CHANNELS], again[7 * CHANNELS];
    const size_t n_kept = (kernel - 1) * CHANNELS;
    uint64_t seed = 77;
    for (size_t i = 0; i < n_kept; i++)
        before[i] = random_float(&seed, 1.0f);
    rp_gdn_states *s = conv_states(kernel, in_place, NULL);
    MUST(rp_gdn_states_set_conv(s, 2, before, ERR));
    MUST(rp_gdn_states_fork(s, 2, 1, ERR));
    run_conv(s, c, 0, CONV_ROWS, 1);
    for (size_t t = 0; t < CONV_ROWS; t++) {
        for (size_t ch = 0; ch < CHANNELS; ch++) {
            double sum = (double)c->b[ch];
            for (size_t i = 0; i < kernel; i++) {
                const size_t at = t + i; /* among the kept rows and those of x */
                const float x = at < kernel - 1 ? before[at * CHANNELS + ch]
                                                : c->x[(at - kernel + 1) * CONV_LD + ch];
                sum += (double)c->w[ch * kernel + i] * (double)x;
            }
            const double want = sum / (1 + exp(-sum));
            assert_true(fabs(want - (double)c->out[t * CONV_LD + ch]) < 1e-6);
        }
    }
    MUST(rp_gdn_states_get_conv(s, 1, kept, ERR));
    for (size_t i = 0; i < n_kept; i++)
        assert_true(kept[i] ==
                    c->x[(CONV_ROWS - kernel + 1 + i / CHANNELS) * CONV_LD + i % CHANNELS]);
    float *out = floats(CONV_ROWS * CONV_LD);
    memcpy(out, c->out, sizeof c->out);
    for (size_t cut = 1; cut < CONV_ROWS; cut += cut < 10 ? 1 : 20) {
        MUST(rp_gdn_states_fork(s, 2, 3, ERR));
        run_conv(s, c, 0, cut, 3);
        run_conv(s, c, cut, CONV_ROWS - cut, 3);
        assert_memory_equal(out, c->out, sizeof c->out);
        MUST(rp_gdn_states_get_conv(s, 3, again, ERR));
        assert_memory_equal(kept, again, n_kept * sizeof *kept);
    }
    MUST(rp_gdn_states_get_conv(s, 2, again, ERR)); /* what was forked is as it was */
    assert_memory_equal(before, again, n_kept * sizeof *kept);
    free(out);
    free(c);
    rp_gdn_states_destroy(s);
}

static void test_conv(void **state)
{
    (void)state;
    for (size_t kernel = 1; kernel <= 8; kernel++) {
        check_conv(kernel, false);
        check_conv(kernel, true);
    }
}

/* A ragged batch on several threads has the bits that each sequence has alone. */
static void test_conv_batch(void **state)
{
    (void)state;
    static const int32_t cu[] = {0, 1, 1, 3, 69, 71}, slots[] = {6, 2, 0, 3, 5};
    for (int threads = 1; threads < 5; threads++) {
        struct conv_rows *c = make_conv(5);
        rp_pool *pool = toy_pool(threads);
        rp_gdn_states *s = conv_states(4, threads % 2, pool);
        float kept[5][3 * CHANNELS], again[3 * CHANNELS];
        for (size_t i = 0; i < 5; i++) {
            if (cu[i + 1] > cu[i])
                run_conv(s, c, (size_t)cu[i], (size_t)(cu[i + 1] - cu[i]), slots[i]);
            MUST(rp_gdn_states_get_conv(s, slots[i], kept[i], ERR));
            MUST(rp_gdn_states_reset(s, slots[i], ERR));
        }
        float *out = floats(CONV_ROWS * CONV_LD);
        memcpy(out, c->out, sizeof c->out);
        memset(c->out, 0, sizeof c->out);
        const rp_gdn_conv_batch b = conv_batch(c, 0, 5, slots, cu);
        const size_t count = alloc_count();
        MUST(rp_gdn_conv(s, &b, ERR));
        if (alloc_count_available())
            assert_int_equal(alloc_count(), count);
        assert_memory_equal(out, c->out, sizeof c->out);
        for (size_t i = 0; i < 5; i++) {
            MUST(rp_gdn_states_get_conv(s, slots[i], again, ERR));
            assert_memory_equal(kept[i], again, sizeof again);
        }
        free(out);
        free(c);
        rp_gdn_states_destroy(s);
        rp_pool_destroy(pool);
    }
}

static void refuse_conv(rp_gdn_states *s, const rp_gdn_conv_batch *b, rp_status want,
                        const char *words, const float *kept)
{
    float now[3 * CHANNELS];
    rp_error err = {RP_OK, ""};
    assert_int_equal(rp_gdn_conv(s, b, &err), want);
    if (!strstr(err.message, words))
        fail_msg("\"%s\" lacks \"%s\"", err.message, words);
    if (kept) {
        MUST(rp_gdn_states_get_conv(s, 3, now, ERR));
        assert_memory_equal(now, kept, sizeof now);
    }
}

static void test_refused_conv(void **state)
{
    (void)state;
    static const int32_t cu[] = {0, 5, 71}, slots[] = {6, 3}, twice[] = {3, 3};
    static const int32_t outside[] = {3, -1}, back[] = {0, 5, 4};
    for (int in_place = 0; in_place < 2; in_place++) {
        struct conv_rows *c = make_conv(5);
        float kept[3 * CHANNELS];
        rp_gdn_states *s = conv_states(4, in_place, NULL);
        run_conv(s, c, 0, 9, 3);
        MUST(rp_gdn_states_get_conv(s, 3, kept, ERR));
        const rp_gdn_conv_batch good = conv_batch(c, 0, 2, slots, cu);
        rp_gdn_conv_batch b;
#define REFUSE(change, status, words)                                                              \
    do {                                                                                           \
        b = good;                                                                                  \
        change;                                                                                    \
        refuse_conv(s, &b, status, words, kept);                                                   \
    } while (0)
        REFUSE(b.struct_size = 3, RP_ERR_INVALID, "struct_size");
        REFUSE(b.slots = twice, RP_ERR_INVALID, "slot 3 is named twice");
        REFUSE(b.slots = outside, RP_ERR_INVALID, "slot -1 is not one of the 8");
        REFUSE(b.cu = back, RP_ERR_INVALID, "cu goes from 5 down to 4 at sequence 1");
        REFUSE(b.w = NULL, RP_ERR_INVALID, "w has no data");
        REFUSE(b.x.data = NULL, RP_ERR_INVALID, "x has no data");
        REFUSE(b.ld_out = 292, RP_ERR_INVALID, "out: rows of 293 floats overlap");
        REFUSE(b.x.ld = (size_t)1 << 60, RP_ERR_LIMIT, "x elements: 71 rows");
        REFUSE(b.activation = (rp_activation)7, RP_ERR_INVALID, "activation is 7");
        REFUSE(c->x[70 * CONV_LD + 36] = NAN, RP_ERR_NONFINITE, "x, row 70, column 36 is NaN");
        c->x[70 * CONV_LD + 36] = 3e38f;
        c->w[36 * 4 + 3] = 1e10f;
        refuse_conv(s, &good, RP_ERR_NONFINITE, "out, row ", kept);
        c->x[70 * CONV_LD + 36] = 1;
        c->w[36 * 4 + 3] = 1;
        MUST(rp_gdn_conv(s, &good, ERR));
#undef REFUSE
        rp_gdn_states_destroy(s);
        const struct rows r = {.gdn = small};
        const rp_gdn_states_options o = options_of(&r);
        s = states_of(&o);
        refuse_conv(s, &good, RP_ERR_INVALID, "without a convolution", NULL);
        rp_gdn_states_destroy(s);
        free(c);
    }
}

/* ---- halves ------------------------------------------------------------------------------------
 */

/* The nearest number of a half type by looking at both that may be it, in double. */
static bool nearest(const struct rp_ops *ops, rp_dtype dtype, float x, uint16_t y)
{
    float near[3];
    const uint16_t bits[3] = {y, (uint16_t)(y - 1), (uint16_t)(y + 1)};
    ops->widen(dtype, bits, near, 3);
    if (isnan(x))
        return isnan(near[0]);
    if ((signbit(x) != 0) != (y >> 15))
        return false;
    /* The step past the largest number counts as infinity does. */
    const double past = dtype == RP_DTYPE_F16 ? 65536.0 : 0x1p128;
    double d[3];
    for (int i = 0; i < 3; i++) {
        const double wide = isinf(near[i]) ? copysign(past, (double)near[i]) : (double)near[i];
        d[i] = isnan(near[i]) || (bits[i] >> 15) != (y >> 15) ? INFINITY : fabs(wide - (double)x);
    }
    if (isinf(x))
        return isinf(near[0]);
    for (int i = 1; i < 3; i++) {
        if (d[i] < d[0] || (d[i] == d[0] && (y & 1)))
            return isinf(near[0]) && fabs((double)x) >= past;
    }
    return true;
}

static void test_narrow(void **state)
{
    (void)state;
    uint32_t isa;
    size_t n_ops;
    MUST(rp_isa_default(&isa, ERR));
    const struct rp_ops *const *all = rp_ops_all(&n_ops);
    for (size_t t = 0; t < n_ops; t++) {
        const struct rp_ops *ops = all[t];
        if (ops->isa & ~isa)
            continue;
        for (int dtype = RP_DTYPE_F16; dtype <= RP_DTYPE_BF16; dtype++) {
            /* Each half, and floats around the middle of it and the next one. */
            for (uint32_t h = 0; h < 0x10000; h++) {
                const uint16_t half = (uint16_t)h;
                float x[18];
                uint16_t y[19];
                ops->widen((rp_dtype)dtype, &half, x, 1);
                if (isnan(x[0]))
                    continue;
                const uint32_t bits = float_bits(x[0]), shift = dtype == RP_DTYPE_F16 ? 13 : 16;
                for (uint32_t i = 1; i < 18; i++)
                    x[i] = float_of(bits + (i < 9 ? i - 1 : (1u << (shift - 1)) + i - 13));
                y[18] = 0xbeef;
                ops->narrow((rp_dtype)dtype, x, y, 18);
                assert_int_equal(y[0], half);
                assert_int_equal(y[18], 0xbeef);
                for (size_t i = 1; i < 18; i++) {
                    if (!nearest(ops, (rp_dtype)dtype, x[i], y[i]))
                        fail_msg("%s: %a is not %04x (dtype %d)", ops->name, (double)x[i], y[i],
                                 dtype);
                }
            }
            uint64_t seed = 6;
            for (int i = 0; i < 20000; i++) {
                const float x = random_special(&seed);
                uint16_t y;
                ops->narrow((rp_dtype)dtype, &x, &y, 1);
                if (!nearest(ops, (rp_dtype)dtype, x, y))
                    fail_msg("%s: %a is not %04x (dtype %d)", ops->name, (double)x, y, dtype);
            }
        }
    }
}

/* A state stored in halves is the f32 run's, rounded once. */
static void test_halves(void **state)
{
    (void)state;
    const size_t n = state_floats(&small);
    const struct rp_ops *ops = rp_ops_select(RP_ISA_SCALAR);
    for (int dtype = RP_DTYPE_F16; dtype <= RP_DTYPE_BF16; dtype++) {
        for (int in_place = 0; in_place < 2; in_place++) {
            struct rows r = make_rows(small, false, 40, 4);
            rp_gdn_states_options o = options_of(&r), half = o;
            half.dtype = (rp_dtype)dtype;
            half.in_place = in_place;
            rp_gdn_states *a = states_of(&o), *b = states_of(&half);
            for (size_t row = 0; row < 40; row += 20) {
                run_some(b, &r, row, 20, 0);
                float *out = floats(40 * (r.values + GAP));
                memcpy(out, r.out, 40 * (r.values + GAP) * sizeof *out);
                run_some(a, &r, row, 20, 0);
                assert_memory_equal(out, r.out, 40 * (r.values + GAP) * sizeof *out);
                uint16_t *halves = calloc(n, sizeof *halves);
                float *x = state_of(a, &small, 0);
                ops->narrow((rp_dtype)dtype, x, halves, n);
                ops->widen((rp_dtype)dtype, halves, x, n);
                assert_state(b, &small, 0, x);
                MUST(rp_gdn_states_set(a, 0, RP_GDN_KEY_VALUE, x, ERR));
                free(x);
                free(halves);
                free(out);
            }
            assert_int_equal(rp_gdn_states_used_bytes(b), 2 * n);
            rp_gdn_states_destroy(a);
            rp_gdn_states_destroy(b);
            free_rows(&r);
        }
    }
}

/* ---- what is refused ---------------------------------------------------------------------------
 */

static void refuse_options(const rp_gdn_states_options *o, rp_status want, const char *words)
{
    rp_gdn_states *s = NULL;
    rp_error err = {RP_OK, ""};
    assert_int_equal(rp_gdn_states_create(o, &s, &err), want);
    assert_null(s);
    if (!strstr(err.message, words))
        fail_msg("\"%s\" lacks \"%s\"", err.message, words);
}

static void test_refused_options(void **state)
{
    (void)state;
    const struct rows r = {.gdn = small};
    rp_gdn_states_options good = options_of(&r), o;
#define REFUSE(change, status, words)                                                              \
    do {                                                                                           \
        o = good;                                                                                  \
        change;                                                                                    \
        refuse_options(&o, status, words);                                                         \
    } while (0)
    REFUSE(o.struct_size--, RP_ERR_INVALID, "struct_size");
    REFUSE(o.gdn.n_value_heads = 9, RP_ERR_INVALID,
           "9 value heads cannot be shared evenly by 2 key heads");
    REFUSE(o.gdn.n_value_heads = 1, RP_ERR_INVALID, "1 value heads");
    REFUSE(o.gdn.n_key_heads = 0, RP_ERR_INVALID, "0 key heads");
    REFUSE(o.gdn.n_value_heads = -4, RP_ERR_INVALID, "-4 value heads");
    REFUSE(o.gdn.key_dim = 0, RP_ERR_INVALID, "key_dim is 0");
    REFUSE(o.gdn.value_dim = -1, RP_ERR_INVALID, "value_dim -1");
    REFUSE(o.gdn.map = (rp_gdn_map)2, RP_ERR_INVALID, "map is 2");
    REFUSE(o.gdn.norm = (rp_gdn_norm)3, RP_ERR_INVALID, "norm is 3");
    REFUSE(o.gdn.norm = RP_GDN_NORM_ROOT, RP_ERR_INVALID, "eps");
    REFUSE((o.gdn.norm = RP_GDN_NORM_MAX, o.gdn.eps = 1e-38f), RP_ERR_INVALID, "denormal");
    REFUSE((o.gdn.norm = RP_GDN_NORM_MAX, o.gdn.eps = INFINITY), RP_ERR_INVALID, "eps");
    REFUSE((o.gdn.norm = RP_GDN_NORM_MAX, o.gdn.eps = 1e-20f, o.gdn.scale = 1e20f), RP_ERR_INVALID,
           "too small for the scale");
    REFUSE((o.gdn.norm = RP_GDN_NORM_ROOT, o.gdn.eps = 1e-30f, o.gdn.scale = 1e30f), RP_ERR_INVALID,
           "too small for the scale");
    REFUSE(o.gdn.scale = -1, RP_ERR_INVALID, "scale");
    REFUSE(o.gdn.scale = NAN, RP_ERR_INVALID, "scale");
    REFUSE(o.n_slots = 0, RP_ERR_INVALID, "n_slots is 0");
    REFUSE(o.n_slots = ((size_t)1 << 30) + 1, RP_ERR_INVALID, "n_slots");
    REFUSE(o.dtype = (rp_dtype)3, RP_ERR_INVALID, "dtype is 3");
    REFUSE(o.conv_channels = 4, RP_ERR_INVALID, "conv_kernel is 0, expected 1 to 8");
    REFUSE((o.conv_channels = 4, o.conv_kernel = 9), RP_ERR_INVALID, "conv_kernel is 9");
    REFUSE(o.gdn.key_dim = o.gdn.value_dim = INT32_MAX, RP_ERR_LIMIT,
           "state elements: 4 heads of 2147483647 x 2147483647 are past what memory can hold");
    REFUSE((o.conv_channels = SIZE_MAX / 2, o.conv_kernel = 4), RP_ERR_LIMIT,
           "conv state elements");
    REFUSE((o.gdn.key_dim = 1 << 26, o.gdn.value_dim = 1 << 24, o.n_slots = 1 << 20), RP_ERR_LIMIT,
           "past what memory can hold");
#undef REFUSE
    rp_gdn_states *s = NULL;
    rp_error err;
    assert_int_equal(rp_gdn_states_create(NULL, &s, &err), RP_ERR_INVALID);
    assert_string_equal(err.message, "options is NULL");
    assert_int_equal(rp_gdn_states_create(&good, NULL, &err), RP_ERR_INVALID);
}

struct refusal {
    rp_gdn_states *s;
    const struct rows *r;
    float *states[MAX_SLOTS];
};

static void refuse_batch(struct refusal *f, const rp_gdn_batch *b, rp_status want,
                         const char *words)
{
    rp_error err = {RP_OK, ""};
    const uint64_t used = rp_gdn_states_used_bytes(f->s);
    assert_int_equal(rp_gdn_run(f->s, b, &err), want);
    if (!strstr(err.message, words))
        fail_msg("\"%s\" lacks \"%s\"", err.message, words);
    assert_int_equal(rp_gdn_states_used_bytes(f->s), used);
    for (int32_t slot = 0; slot < MAX_SLOTS; slot++)
        assert_state(f->s, &f->r->gdn, slot, f->states[slot]);
}

static void check_refused_batches(struct refusal *f)
{
    static const int32_t slots[] = {3, 0, 5}, twice[] = {3, 5, 3}, outside[] = {3, MAX_SLOTS, 1};
    static const int32_t below[] = {0, -1, 1}, cu[] = {0, 2, 40, 50};
    static const int32_t late[] = {1, 2, 40, 50}, back[] = {0, 40, 2, 50};
    static const int32_t huge[] = {0, 2, 40, INT32_MAX};
    const rp_gdn_batch good = batch_of(f->r, 0, 3, slots, cu);
    rp_gdn_batch b;
#define REFUSE(change, status, words)                                                              \
    do {                                                                                           \
        b = good;                                                                                  \
        change;                                                                                    \
        refuse_batch(f, &b, status, words);                                                        \
    } while (0)
    REFUSE(b.struct_size = 0, RP_ERR_INVALID, "struct_size");
    REFUSE(b.slots = NULL, RP_ERR_INVALID, "no slots");
    REFUSE(b.slots = twice, RP_ERR_INVALID, "slot 3 is named twice");
    REFUSE(b.slots = outside, RP_ERR_INVALID, "slot 8 is not one of the 8");
    REFUSE(b.slots = below, RP_ERR_INVALID, "slot -1 is not one of the 8");
    REFUSE(b.cu = late, RP_ERR_INVALID, "cu begins with 1");
    REFUSE(b.cu = back, RP_ERR_INVALID, "cu goes from 40 down to 2 at sequence 1");
    REFUSE(b.q.data = NULL, RP_ERR_INVALID, "q has no data");
    REFUSE(b.out = NULL, RP_ERR_INVALID, "out has no data");
    REFUSE(b.k.ld = 47, RP_ERR_INVALID, "k: rows of 48 floats overlap each other, being 47 apart");
    REFUSE(b.decay.ld = 3, RP_ERR_INVALID, "decay: rows of 4 floats");
    REFUSE(b.beta.ld = 0, RP_ERR_INVALID, "beta: rows of 4 floats");
    REFUSE(b.ld_out = 79, RP_ERR_INVALID, "out: rows of 80 floats");
    REFUSE(b.v.ld = (size_t)1 << 58, RP_ERR_LIMIT,
           "v elements: 50 rows, 288230376151711744 floats");
    REFUSE(b.v.ld = SIZE_MAX, RP_ERR_LIMIT, "v elements");
    REFUSE((b.cu = huge, b.q.ld = (size_t)1 << 32), RP_ERR_LIMIT, "q elements: 2147483647 rows");
    REFUSE(b.steps_layout = (rp_gdn_layout)2, RP_ERR_INVALID, "steps_layout is 2");
#undef REFUSE
}

static void check_refused_numbers(struct refusal *f)
{
    static const int32_t slots[] = {3, 0, 5}, cu[] = {0, 2, 40, 50};
    const struct rows *r = f->r;
    const rp_gdn_batch b = batch_of(r, 0, 3, slots, cu);
    const struct {
        float *at;
        float bad;
        const char *words;
    } numbers[] = {{r->q + 49 * (r->keys + GAP) + 47, NAN, "q, row 49, column 47 is NaN"},
                   {r->k + 33 * (r->keys + GAP), INFINITY, "k, row 33, column 0 is infinite"},
                   {r->v + 1 * (r->values + GAP) + 79, NAN, "v, row 1, column 79 is NaN"},
                   {r->decay + 3 * (r->heads + GAP) + 2, INFINITY, "decay, row 3, column 2"},
                   {r->decay + 3 * (r->heads + GAP) + 2, NAN, "decay, row 3, column 2 is NaN"},
                   {r->beta + 0 * (r->heads + GAP) + 3, -INFINITY, "beta, row 0, column 3"}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const float was = *numbers[i].at;
        *numbers[i].at = numbers[i].bad;
        refuse_batch(f, &b, RP_ERR_NONFINITE, numbers[i].words);
        *numbers[i].at = was;
    }
}

/* Finite inputs whose products are not: the states are as they were all the same. */
static void check_overflow(struct refusal *f)
{
    static const int32_t slots[] = {3, 0, 5}, cu[] = {0, 2, 40, 50};
    const struct rows *r = f->r;
    const rp_gdn_batch b = batch_of(r, 0, 3, slots, cu);
    float *k = r->k + 45 * (r->keys + GAP) + 24, was = *k;
    *k = 1e38f;
    refuse_batch(f, &b, RP_ERR_NONFINITE, "out, row 4");
    *k = was;
    /* A state alone that overflows in the very last row, seen by no output: k has it, q has not. */
    float *k1 = r->k + 49 * (r->keys + GAP), *q1 = r->q + 49 * (r->keys + GAP);
    float *v = r->v + 49 * (r->values + GAP), *beta = r->beta + 49 * (r->heads + GAP);
    float k_was[24], q_was[24], v_was = *v, beta_was = *beta;
    memcpy(k_was, k1, sizeof k_was);
    memcpy(q_was, q1, sizeof q_was);
    memset(k1, 0, sizeof k_was);
    memset(q1, 0, sizeof q_was);
    k1[0] = 1e10f;
    q1[1] = 1;
    *v = 1e30f;
    *beta = 1;
    refuse_batch(f, &b, RP_ERR_NONFINITE, "the state of slot 5 has grown past");
    memcpy(k1, k_was, sizeof k_was);
    memcpy(q1, q_was, sizeof q_was);
    *v = v_was;
    *beta = beta_was;
}

static void run_inside(void *arg, struct rp_worker *worker)
{
    struct refusal *f = arg;
    static const int32_t slots[] = {3, 0, 5}, cu[] = {0, 2, 40, 50};
    const rp_gdn_batch b = batch_of(f->r, 0, 3, slots, cu);
    if (worker->index == 0)
        refuse_batch(f, &b, RP_ERR_INVALID, "");
}

static void test_refused_batches(void **state)
{
    (void)state;
    for (int in_place = 0; in_place < 2; in_place++) {
        struct rows r = make_rows(small, false, 50, 4);
        rp_pool *pool = toy_pool(2);
        rp_gdn_states_options o = options_of(&r);
        o.in_place = in_place;
        o.pool = pool;
        struct refusal f = {.s = states_of(&o), .r = &r};
        for (int32_t i = 0; i < MAX_SLOTS; i++) {
            if (i < 4)
                set_random(f.s, &small, i, (uint64_t)i);
            else
                MUST(rp_gdn_states_fork(f.s, i - 4, i, ERR));
            f.states[i] = state_of(f.s, &small, i);
        }
        /* Of the slots that run, 5 has no memory, 3 its own and 0 shares. */
        for (int32_t i = 5; i < 8; i += 2) {
            MUST(rp_gdn_states_reset(f.s, i, ERR));
            memset(f.states[i], 0, state_floats(&small) * sizeof(float));
        }
        check_refused_batches(&f);
        check_refused_numbers(&f);
        if (!in_place)
            check_overflow(&f);
        MUST(rp_pool_region(pool, 0, run_inside, &f, ERR));
        for (int32_t i = 0; i < MAX_SLOTS; i++)
            free(f.states[i]);
        rp_gdn_states_destroy(f.s);
        rp_pool_destroy(pool);
        free_rows(&r);
    }
}

static void test_refused_slots(void **state)
{
    (void)state;
    const struct rows r = {.gdn = small};
    rp_gdn_states_options o = options_of(&r);
    o.dtype = RP_DTYPE_F16;
    rp_gdn_states *s = states_of(&o);
    float *x = floats(state_floats(&small));
    rp_gdn_memory m;
    rp_error err;
    assert_int_equal(rp_gdn_states_reset(s, 8, &err), RP_ERR_INVALID);
    assert_int_equal(rp_gdn_states_fork(s, 8, 0, &err), RP_ERR_INVALID);
    assert_int_equal(rp_gdn_states_fork(s, 0, -1, &err), RP_ERR_INVALID);
    assert_int_equal(rp_gdn_states_get(s, 8, RP_GDN_KEY_VALUE, x, &err), RP_ERR_INVALID);
    assert_int_equal(rp_gdn_states_get(s, 0, (rp_gdn_layout)2, x, &err), RP_ERR_INVALID);
    assert_int_equal(rp_gdn_states_set(s, -1, RP_GDN_KEY_VALUE, x, &err), RP_ERR_INVALID);
    assert_int_equal(rp_gdn_states_set(s, 0, (rp_gdn_layout)-1, x, &err), RP_ERR_INVALID);
    assert_int_equal(rp_gdn_states_get_conv(s, 8, x, &err), RP_ERR_INVALID);
    assert_int_equal(rp_gdn_states_set_conv(s, 8, x, &err), RP_ERR_INVALID);
    assert_int_equal(rp_gdn_states_memory(s, 8, &m, &err), RP_ERR_INVALID);
    assert_string_equal(err.message, "slot 8 is not one of the 8");
    assert_int_equal(rp_gdn_states_memory(s, 7, NULL, &err), RP_ERR_INVALID);
    assert_int_equal(rp_gdn_states_get(s, 7, RP_GDN_KEY_VALUE, NULL, &err), RP_ERR_INVALID);
    assert_string_equal(err.message, "out is NULL");
    assert_int_equal(rp_gdn_states_set(s, 7, RP_GDN_KEY_VALUE, NULL, &err), RP_ERR_INVALID);
    assert_string_equal(err.message, "in is NULL");
    assert_int_equal(rp_gdn_run(s, NULL, &err), RP_ERR_INVALID);
    assert_int_equal(rp_gdn_conv(s, NULL, &err), RP_ERR_INVALID);
    assert_string_equal(err.message, "batch is NULL");
    x[23 * 20 + 3] = 65519;
    MUST(rp_gdn_states_set(s, 2, RP_GDN_KEY_VALUE, x, ERR));
    x[23 * 20 + 3] = 65520; /* rounds to infinity */
    assert_int_equal(rp_gdn_states_set(s, 2, RP_GDN_KEY_VALUE, x, &err), RP_ERR_NONFINITE);
    assert_string_equal(err.message, "value head 0, key 23, value 3 of the state is infinite");
    x[23 * 20 + 3] = 65504;
    assert_state(s, &small, 2, x);
    free(x);
    rp_gdn_states_destroy(s);
}

/* A run whose new state is past what f16 can hold fails, and the old one stays. */
static void test_half_overflow(void **state)
{
    (void)state;
    struct rows r = make_rows(small, false, 2, 4);
    for (size_t i = 0; i < r.values; i++)
        r.v[r.values + GAP + i] = 1e7f;
    rp_gdn_states_options o = options_of(&r);
    o.dtype = RP_DTYPE_F16;
    rp_gdn_states *s = states_of(&o);
    run_some(s, &r, 0, 1, 0);
    float *before = state_of(s, &small, 0);
    const int32_t slot = 0;
    const rp_gdn_batch b = batch_of(&r, 1, 1, &slot, NULL);
    rp_error err;
    assert_int_equal(rp_gdn_run(s, &b, &err), RP_ERR_NONFINITE);
    assert_string_equal(err.message,
                        "the state of slot 0 has grown past the largest number of its type");
    assert_state(s, &small, 0, before);
    free(before);
    rp_gdn_states_destroy(s);
    free_rows(&r);
}

/* Of several states that overflow the message names the first in the batch, on any threads. */
static void test_names_overflow(void **state)
{
    (void)state;
    static const int32_t slots[] = {4, 6, 2, 1};
    struct rows r = make_rows(small, false, 4, 4);
    for (size_t row = 1; row < 4; row++) {
        for (size_t i = 0; i < r.values; i++)
            r.v[row * (r.values + GAP) + i] = 1e7f;
    }
    for (int threads = 1; threads < 4; threads++) {
        rp_pool *pool = toy_pool(threads);
        rp_gdn_states_options o = options_of(&r);
        o.dtype = RP_DTYPE_F16;
        o.pool = pool;
        rp_gdn_states *s = states_of(&o);
        const rp_gdn_batch b = batch_of(&r, 0, 4, slots, NULL);
        rp_error err;
        assert_int_equal(rp_gdn_run(s, &b, &err), RP_ERR_NONFINITE);
        assert_non_null(strstr(err.message, "slot 6 has grown past"));
        rp_gdn_states_destroy(s);
        rp_pool_destroy(pool);
    }
    free_rows(&r);
}

/* Instruction sets that the machine has not are never used, whatever the mask says. */
static void test_isa(void **state)
{
    (void)state;
    struct rows r = make_rows(small, false, 40, 4);
    rp_gdn_states_options o = options_of(&r);
    o.isa = RP_ISA_DEFAULT ^ 0x40000000u;
    rp_gdn_states *s = states_of(&o);
    assert_int_equal(s->options.isa, rp_isa_detected());
    run_some(s, &r, 0, 40, 0);
    rp_gdn_states_destroy(s);
    free_rows(&r);
}

/* A key and a query of zeros stay zeros at the least eps, and a head too large for its squares
 * becomes zeros: no NaN, and nothing is written. */
static void test_norm_ends(void **state)
{
    (void)state;
    for (int norm = RP_GDN_NORM_ROOT; norm <= RP_GDN_NORM_MAX; norm++) {
        for (int large = 0; large < 2; large++) {
            struct rows r = make_rows(small, false, 3, 4);
            for (size_t row = 0; row < 3; row++) {
                for (size_t i = 0; i < r.keys; i++) {
                    r.k[row * (r.keys + GAP) + i] = large ? 1e30f : 0;
                    r.q[row * (r.keys + GAP) + i] = large ? -1e30f : 0;
                }
            }
            r.gdn.norm = (rp_gdn_norm)norm;
            r.gdn.eps = FLT_MIN;
            const rp_gdn_states_options o = options_of(&r);
            rp_gdn_states *s = states_of(&o);
            run_some(s, &r, 0, 3, 0);
            run_some(s, &r, 0, 1, 0);
            float *x = state_of(s, &small, 0);
            for (size_t i = 0; i < state_floats(&small); i++)
                assert_true(x[i] == 0);
            for (size_t i = 0; i < r.values; i++)
                assert_true(r.out[i] == 0);
            free(x);
            rp_gdn_states_destroy(s);
            free_rows(&r);
        }
    }
}

/* A decay of exp(-inf) forgets everything, and is no error. */
static void test_forgets(void **state)
{
    (void)state;
    struct rows r = make_rows(small, false, 3, 4);
    const rp_gdn_states_options o = options_of(&r);
    rp_gdn_states *s = states_of(&o);
    run_some(s, &r, 1, 2, 0);
    for (size_t h = 0; h < r.heads; h++)
        r.decay[r.heads + GAP + h] = -INFINITY;
    set_random(s, &small, 1, 6);
    run_some(s, &r, 0, 1, 1);
    run_some(s, &r, 1, 2, 1);
    float *fresh = state_of(s, &small, 0), *after = state_of(s, &small, 1);
    assert_true(largest(fresh, after, state_floats(&small)) == 0);
    free(fresh);
    free(after);
    rp_gdn_states_destroy(s);
    free_rows(&r);
}

static void test_nothing_to_do(void **state)
{
    (void)state;
    const struct rows r = {.gdn = small};
    const rp_gdn_states_options o = options_of(&r);
    rp_gdn_states *s = states_of(&o);
    rp_gdn_batch b;
    rp_gdn_batch_init(&b);
    MUST(rp_gdn_run(s, &b, ERR));
    static const int32_t slots[] = {1, 2}, cu[] = {0, 0, 0};
    b.n_seqs = 2;
    b.slots = slots;
    b.cu = cu;
    MUST(rp_gdn_run(s, &b, ERR)); /* finished sequences have no data either */
    assert_int_equal(rp_gdn_states_used_bytes(s), 0);
    rp_gdn_states_destroy(s);
    rp_gdn_states_destroy(NULL);
}

static void test_no_memory(void **state)
{
    (void)state;
    const struct rows r = {.gdn = small};
    rp_gdn_states_options o = options_of(&r);
    o.conv_channels = 8;
    o.conv_kernel = 4;
    for (long n = 1;; n++) {
        rp_gdn_states *s = NULL;
        rp_error err = {RP_OK, ""};
        rp_fault_arm(RP_FAULT_ALLOC, n);
        const rp_status status = rp_gdn_states_create(&o, &s, &err);
        if (!rp_fault_disarm(RP_FAULT_ALLOC)) {
            assert_int_equal(status, RP_OK);
            assert_true(n > 10);
            assert_true(rp_gdn_states_bytes(s) > 16 * state_floats(&small) * sizeof(float));
            rp_gdn_states_destroy(s);
            break;
        }
        assert_int_equal(status, RP_ERR_NOMEM);
        assert_null(s);
        assert_true(err.message[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_conventions),
        cmocka_unit_test(test_closed_form),
        cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_one_row_each),
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_forks),
        cmocka_unit_test(test_random_lives),
        cmocka_unit_test(test_get_and_set),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_conv_rows),
        cmocka_unit_test(test_narrow),
        cmocka_unit_test(test_halves),
        cmocka_unit_test(test_refused_options),
        cmocka_unit_test(test_refused_batches),
        cmocka_unit_test(test_refused_slots),
        cmocka_unit_test(test_half_overflow),
        cmocka_unit_test(test_forgets),
        cmocka_unit_test(test_names_overflow),
        cmocka_unit_test(test_isa),
        cmocka_unit_test(test_norm_ends),
        cmocka_unit_test(test_nothing_to_do),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_conv),
        cmocka_unit_test(test_conv_batch),
        cmocka_unit_test(test_refused_conv),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
