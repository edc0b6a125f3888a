/* The gated delta rule: every kernel of the machine against the contract written as plain loops,
 * bit for bit, and the contract against the recurrence in double precision, closed forms and the
 * oracles.
 */
#define _GNU_SOURCE 1
#define RP_V16_SCALAR

#include <stddef.h>

/* The template once more, in plain C, with the widest tile and the largest transpose that any
 * kernel has: what only an AVX-512 machine would reach is then tested on all. */
#define GDN_KERNEL gdn_widest
#define GDN_NAME   "the template at 8x32, in plain C"
#define GDN_ISA    RP_ISA_SCALAR
#define GDN_ROWS   8
#define GDN_VECS   2
#define GDN_BLOCK  8

static inline void transpose_block(float *to, const float *from, size_t ld)
{
    for (size_t r = 0; r < GDN_BLOCK; r++) {
        for (size_t c = 0; c < GDN_BLOCK; c++)
            to[16 * c + r] = from[ld * r + c];
    }
}

#include "gdn/gdn_tmpl.h"
#include "tests/floats.h"
#include "tests/kernels.h"

#include <rankplan/machine.h>
#include <rankplan/model.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define UNTOUCHED 0x7fc0dead /* a NaN that nobody computes */
#define COUNT(a)  (sizeof(a) / sizeof *(a))

static void *need(void *p)
{
    assert_non_null(p);
    return p;
}

/* ---- a batch ---------------------------------------------------------------------------- */

/* One sequence of len rows that lies in the batch from row0 on.  All memory ends at a page that
 * faults. */
struct batch {
    struct rp_gdn_args args;
    size_t len, row0, width_in, width_out;
    size_t in_floats, gate_floats, out_floats, state_floats; /* the states of all value heads */
    size_t scratch_bytes;
    float *qkv, *gates, *out, *state, *start;
    void *scratch;
};

struct shape {
    size_t n_key, n_value, dk, dv;
};

static float *guarded(size_t floats)
{
    return guard_alloc(floats * sizeof(float));
}

/* Decays around exp(-rate); keys and queries of length about 1 with a norm or without. */
static struct batch batch_make(size_t len, struct shape s, rp_gdn_map map, rp_gdn_norm norm,
                               float rate, uint64_t *seed)
{
    struct batch b = {.len = len, .row0 = 1 + (size_t)(random_next(seed) % 2)};
    const size_t heads = s.n_value / s.n_key, pad = (size_t)(random_next(seed) % 3);
    b.width_in = 2 * s.n_key * s.dk + s.n_value * s.dv;
    b.width_out = s.n_value * s.dv;
    b.args = (struct rp_gdn_args){
        .ld = b.width_in + pad,
        .ld_gates = 2 * s.n_value + pad,
        .ld_out = b.width_out + pad,
        .n_key_heads = s.n_key,
        .n_value_heads = s.n_value,
        .key_dim = s.dk,
        .value_dim = s.dv,
        .map = map,
        .norm = norm,
        .eps = 1e-6f,
    };
    b.in_floats = (b.row0 + len - 1) * b.args.ld + b.width_in;
    b.gate_floats = (b.row0 + len - 1) * b.args.ld_gates + 2 * s.n_value;
    b.out_floats = (b.row0 + len - 1) * b.args.ld_out + b.width_out;
    b.state_floats = s.n_key * heads * s.dk * s.dv;
    assert_true(rp_gdn_scratch_bytes(&b.args, &b.scratch_bytes));
    assert_int_equal(b.scratch_bytes % 64, 0);
    b.args.qkv = b.qkv = guarded(b.in_floats);
    b.args.gates = b.gates = guarded(b.gate_floats);
    b.args.out = b.out = guarded(b.out_floats);
    b.state = guarded(b.state_floats);
    b.start = guarded(b.state_floats);
    b.scratch = guard_alloc(b.scratch_bytes);
    const float size = norm == RP_GDN_NORM_NONE ? 1.7f / sqrtf((float)s.dk) : 1.0f;
    for (size_t i = 0; i < b.in_floats; i++)
        b.qkv[i] = NAN; /* rows before the sequence, and columns past the last */
    for (size_t i = 0; i < b.gate_floats; i++)
        b.gates[i] = NAN;
    for (size_t t = 0; t < len; t++) {
        float *row = b.qkv + (b.row0 + t) * b.args.ld,
              *g = b.gates + (b.row0 + t) * b.args.ld_gates;
        for (size_t i = 0; i < b.width_in; i++)
            row[i] = random_float(seed, i < 2 * s.n_key * s.dk ? size : 1.0f);
        for (size_t h = 0; h < s.n_value; h++) {
            g[h] = -rate * (0.5f + random_float(seed, 0.5f));
            g[s.n_value + h] = 0.5f + random_float(seed, 0.5f);
        }
    }
    for (size_t i = 0; i < b.state_floats; i++)
        b.start[i] = random_float(seed, 0.5f);
    return b;
}

static void batch_free(struct batch *b)
{
    guard_free(b->qkv, b->in_floats * sizeof(float));
    guard_free(b->gates, b->gate_floats * sizeof(float));
    guard_free(b->out, b->out_floats * sizeof(float));
    guard_free(b->state, b->state_floats * sizeof(float));
    guard_free(b->start, b->state_floats * sizeof(float));
    guard_free(b->scratch, b->scratch_bytes);
}

static size_t state_of_key_head(const struct batch *b)
{
    return b->state_floats / b->args.n_key_heads;
}

static size_t columns_of_key_head(const struct batch *b)
{
    return b->args.n_value_heads / b->args.n_key_heads * b->args.value_dim;
}

static float *row_out(const struct batch *b, size_t t)
{
    return b->out + (b->row0 + t) * b->args.ld_out;
}

static float *row_in(const struct batch *b, size_t t)
{
    return b->qkv + (b->row0 + t) * b->args.ld;
}

static float *row_gates(const struct batch *b, size_t t)
{
    return b->gates + (b->row0 + t) * b->args.ld_gates;
}

/* States as they were at the start, outputs untouched, scratch full of NaN. */
static void batch_reset(struct batch *b)
{
    for (size_t i = 0; i < b->out_floats; i++)
        b->out[i] = float_of(UNTOUCHED);
    memcpy(b->state, b->start, b->state_floats * sizeof(float));
    memset(b->scratch, 0xff, b->scratch_bytes);
}

/* Some rows, on scratch as it is. */
static void run_pieces(struct batch *b, const struct rp_gdn_kernel *kernel,
                       const struct rp_gdn_rows *pieces, size_t n)
{
    for (size_t h = 0; h < b->args.n_key_heads; h++)
        kernel->run(&b->args, pieces, n, h, 0, columns_of_key_head(b),
                    b->state + h * state_of_key_head(b), b->scratch);
}

static void run_rows(struct batch *b, const struct rp_gdn_kernel *kernel, size_t from, size_t to)
{
    const struct rp_gdn_rows rows = {.row0 = b->row0 + from, .n = to - from};
    run_pieces(b, kernel, &rows, 1);
}

static void run_whole(struct batch *b, const struct rp_gdn_kernel *kernel)
{
    batch_reset(b);
    run_rows(b, kernel, 0, b->len);
}

DEFINE_USABLE(struct rp_gdn_kernel, &gdn_widest, rp_gdn_all)

static const struct rp_gdn_kernel *fastest(void)
{
    return rp_gdn_select(rp_isa_detected());
}

/* Outputs and states at once, so that one comparison sees all. */
static float *copy_results(const struct batch *b)
{
    float *all = need(malloc((b->out_floats + b->state_floats) * sizeof *all));
    memcpy(all, b->out, b->out_floats * sizeof *all);
    memcpy(all + b->out_floats, b->state, b->state_floats * sizeof *all);
    return all;
}

static void describe(const struct batch *b, const char *what, const char *where, size_t i,
                     double found, double due)
{
    fail_msg("%s: %zu rows, heads %zu/%zu of %zu/%zu, map %d, norm %d: %s %zu is %.9g, not %.9g",
             what, b->len, b->args.n_key_heads, b->args.n_value_heads, b->args.key_dim,
             b->args.value_dim, (int)b->args.map, (int)b->args.norm, where, i, found, due);
}

static void check_bits(const struct batch *b, const float *want, const char *what)
{
    for (size_t i = 0; i < b->out_floats; i++) {
        if (float_bits(b->out[i]) != float_bits(want[i]))
            describe(b, what, "output", i, (double)b->out[i], (double)want[i]);
    }
    want += b->out_floats;
    for (size_t i = 0; i < b->state_floats; i++) {
        if (float_bits(b->state[i]) != float_bits(want[i]))
            describe(b, what, "state", i, (double)b->state[i], (double)want[i]);
    }
}

/* Nowhere further from what is due than `bound` times the largest number that is due. */
static void check_near(const struct batch *b, const float *found, const double *want, size_t n,
                       double bound, const char *what)
{
    double largest = 0;
    for (size_t i = 0; i < n; i++)
        largest = isfinite(want[i]) ? fmax(largest, fabs(want[i])) : largest;
    for (size_t i = 0; i < n; i++) {
        const bool untouched = isnan(want[i]) && float_bits(found[i]) == UNTOUCHED;
        if (!untouched && !(fabs((double)found[i] - want[i]) <= bound * largest))
            describe(b, what, "number", i, (double)found[i], want[i]);
    }
}

static void check_results_near(const struct batch *b, const float *want, double bound,
                               const char *what)
{
    double *due = need(malloc((b->out_floats + b->state_floats) * sizeof *due));
    for (size_t i = 0; i < b->out_floats + b->state_floats; i++)
        due[i] = (double)want[i];
    check_near(b, b->out, due, b->out_floats, bound, what);
    check_near(b, b->state, due + b->out_floats, b->state_floats, bound, what);
    free(due);
}

/* ---- the contract ----------------------------------------------------------------------- */

static void contract_norm(const struct rp_gdn_args *a, const float *x, float scale, float *to)
{
    float part[16] = {0};
    for (size_t i = 0; i < a->key_dim; i++)
        part[i % 16] = fmaf(x[i], x[i], part[i % 16]);
    for (int half = 8; half; half /= 2) {
        for (int l = 0; l < half; l++)
            part[l] += part[l + half];
    }
    if (a->norm == RP_GDN_NORM_ROOT)
        scale /= sqrtf(part[0] + a->eps);
    if (a->norm == RP_GDN_NORM_MAX)
        scale /= sqrtf(part[0]) > a->eps ? sqrtf(part[0]) : a->eps;
    for (size_t i = 0; i < a->key_dim; i++)
        to[i] = x[i] * scale;
}

/* The deltas and outputs of row t of a chunk, for one column j of one value head. */
struct contract {
    size_t n, dk, dv;
    float *q, *k; /* [n][dk] */
    float a[RP_GDN_CHUNK], A[RP_GDN_CHUNK];
    float R[RP_GDN_CHUNK][RP_GDN_CHUNK]; /* [t][u] */
    float G[RP_GDN_CHUNK][RP_GDN_CHUNK], H[RP_GDN_CHUNK][RP_GDN_CHUNK];
    float d[RP_GDN_CHUNK];
};

static float contract_chain(const float *x, const float *y, size_t n, size_t stride)
{
    float sum = 0;
    for (size_t i = 0; i < n; i++)
        sum = fmaf(x[i], y[i * stride], sum);
    return sum;
}

static void contract_column(struct contract *c, const struct batch *b, size_t row, size_t head,
                            size_t j, float *state)
{
    const struct rp_gdn_args *a = &b->args;
    const size_t column = 2 * a->n_key_heads * c->dk + head * c->dv + j;
    for (size_t t = 0; t < c->n; t++) {
        const float *gates = b->gates + (row + t) * a->ld_gates;
        float x = c->A[t] * contract_chain(c->k + t * c->dk, state + j, c->dk, c->dv);
        for (size_t u = 0; u < t; u++)
            x = fmaf(c->R[t][u] * c->G[t][u], c->d[u], x);
        c->d[t] = gates[a->n_value_heads + head] * (b->qkv[(row + t) * a->ld + column] - x);
        float y = c->A[t] * contract_chain(c->q + t * c->dk, state + j, c->dk, c->dv);
        for (size_t u = 0; u <= t; u++)
            y = fmaf(c->R[t][u] * c->H[t][u], c->d[u], y);
        b->out[(row + t) * a->ld_out + head * c->dv + j] = y;
    }
    for (size_t i = 0; i < c->dk; i++) {
        float *s = state + i * c->dv + j;
        *s *= c->A[c->n - 1];
        for (size_t t = 0; t < c->n; t++)
            *s = fmaf(c->R[c->n - 1][t] * c->k[t * c->dk + i], c->d[t], *s);
    }
}

static void contract_decays(struct contract *c, const struct batch *b, size_t row, size_t head)
{
    for (size_t t = 0; t < c->n; t++) {
        const float g = b->gates[(row + t) * b->args.ld_gates + head];
        float lanes[16] = {g};
        v_store(lanes, v_exp(v_load(lanes)));
        c->a[t] = b->args.linear_decay ? g : lanes[0];
        c->A[t] = (t ? c->A[t - 1] : 1.0f) * c->a[t];
        for (size_t u = 0; u < t; u++)
            c->R[t][u] = c->R[t - 1][u] * c->a[t];
        c->R[t][t] = 1;
    }
}

/* The chunk [t0, t0 + n) of a value head, number r of its key head. */
static void contract_chunk(struct contract *c, struct batch *b, size_t t0, size_t n,
                           size_t key_head, size_t r)
{
    const struct rp_gdn_args *a = &b->args;
    const size_t row = b->row0 + t0, head = rp_gdn_value_head(a, key_head, r);
    const float scale = a->scale != 0 ? a->scale : 1.0f / sqrtf((float)a->key_dim);
    c->n = n;
    for (size_t t = 0; t < n; t++) {
        const float *q = b->qkv + (row + t) * a->ld + key_head * c->dk;
        contract_norm(a, q, scale, c->q + t * c->dk);
        contract_norm(a, q + a->n_key_heads * c->dk, 1, c->k + t * c->dk);
        for (size_t u = 0; u <= t; u++) {
            c->G[t][u] = contract_chain(c->k + t * c->dk, c->k + u * c->dk, c->dk, 1);
            c->H[t][u] = contract_chain(c->q + t * c->dk, c->k + u * c->dk, c->dk, 1);
        }
    }
    contract_decays(c, b, row, head);
    float *state = b->state + key_head * state_of_key_head(b) + r * c->dk * c->dv;
    for (size_t j = 0; j < c->dv; j++)
        contract_column(c, b, row, head, j, state);
}

/* What a whole run is due to give; freed by the caller. */
static float *contract_results(struct batch *b)
{
    struct contract *c = need(malloc(sizeof *c));
    c->dk = b->args.key_dim;
    c->dv = b->args.value_dim;
    c->q = need(malloc(RP_GDN_CHUNK * c->dk * sizeof(float)));
    c->k = need(malloc(RP_GDN_CHUNK * c->dk * sizeof(float)));
    batch_reset(b);
    for (size_t h = 0; h < b->args.n_key_heads; h++)
        for (size_t r = 0; r < b->args.n_value_heads / b->args.n_key_heads; r++)
            for (size_t t = 0; t < b->len; t += RP_GDN_CHUNK)
                contract_chunk(c, b, t, b->len - t < RP_GDN_CHUNK ? b->len - t : RP_GDN_CHUNK, h,
                               r);
    free(c->q);
    free(c->k);
    free(c);
    return copy_results(b);
}

/* ---- the recurrence in double precision -------------------------------------------------- */

static void exact_norm(const struct rp_gdn_args *a, const float *x, double scale, double *to)
{
    double squares = 0, divisor = 1;
    for (size_t i = 0; i < a->key_dim; i++)
        squares += (double)x[i] * (double)x[i];
    if (a->norm == RP_GDN_NORM_ROOT)
        divisor = sqrt(squares + (double)a->eps);
    if (a->norm == RP_GDN_NORM_MAX)
        divisor = fmax(sqrt(squares), (double)a->eps);
    for (size_t i = 0; i < a->key_dim; i++)
        to[i] = (double)x[i] / divisor * scale;
}

/* A token of a value head. */
static void exact_token(const struct batch *b, size_t t, size_t key_head, size_t head, double *k,
                        double *q, double *state, double *out)
{
    const struct rp_gdn_args *a = &b->args;
    const size_t dk = a->key_dim, dv = a->value_dim;
    const float *row = row_in(b, t), *gates = row_gates(b, t);
    const double scale = a->scale != 0 ? (double)a->scale : 1 / sqrt((double)dk);
    const double decay = a->linear_decay ? (double)gates[head] : exp((double)gates[head]);
    exact_norm(a, row + key_head * dk, scale, q);
    exact_norm(a, row + (a->n_key_heads + key_head) * dk, 1, k);
    for (size_t j = 0; j < dv; j++) {
        double seen = 0;
        for (size_t i = 0; i < dk; i++)
            seen += k[i] * (state[i * dv + j] *= decay);
        const double value = (double)row[2 * a->n_key_heads * dk + head * dv + j];
        const double d = (double)gates[a->n_value_heads + head] * (value - seen);
        out[j] = 0;
        for (size_t i = 0; i < dk; i++)
            out[j] += q[i] * (state[i * dv + j] += k[i] * d);
    }
}

/* As contract_results. */
static double *exact_results(const struct batch *b)
{
    const size_t dk = b->args.key_dim, dv = b->args.value_dim;
    const size_t heads = b->args.n_value_heads / b->args.n_key_heads;
    double *all = need(malloc((b->out_floats + b->state_floats) * sizeof *all));
    double *k = need(malloc(dk * sizeof *k)), *q = need(malloc(dk * sizeof *q));
    for (size_t i = 0; i < b->out_floats; i++)
        all[i] = NAN;
    for (size_t i = 0; i < b->state_floats; i++)
        all[b->out_floats + i] = (double)b->start[i];
    for (size_t h = 0; h < b->args.n_key_heads; h++)
        for (size_t r = 0; r < heads; r++)
            for (size_t t = 0; t < b->len; t++) {
                const size_t head = rp_gdn_value_head(&b->args, h, r);
                exact_token(b, t, h, head, k, q, all + b->out_floats + (h * heads + r) * dk * dv,
                            all + (b->row0 + t) * b->args.ld_out + head * dv);
            }
    free(k);
    free(q);
    return all;
}

static void check_exact(const struct batch *b, double bound, const char *what)
{
    double *due = exact_results(b);
    check_near(b, b->out, due, b->out_floats, bound, what);
    check_near(b, b->state, due + b->out_floats, b->state_floats, bound, what);
    free(due);
}

/* ---- every kernel ----------------------------------------------------------------------- */

/* The whole of it cut into calls of columns, last first. */
static void run_columns(struct batch *b, const struct rp_gdn_kernel *kernel, uint64_t *seed)
{
    const struct rp_gdn_rows rows = {.row0 = b->row0, .n = b->len};
    const size_t all = columns_of_key_head(b);
    batch_reset(b);
    for (size_t h = 0; h < b->args.n_key_heads; h++) {
        for (size_t c1 = all, c0; c1 > 0; c1 = c0) {
            c0 = (size_t)(random_next(seed) % ((c1 + 15) / 16)) * 16;
            kernel->run(&b->args, &rows, 1, h, c0, c1, b->state + h * state_of_key_head(b),
                        b->scratch);
        }
    }
}

/* The whole of it in pieces, some of them empty. */
static void run_in_pieces(struct batch *b, const struct rp_gdn_kernel *kernel, uint64_t *seed)
{
    enum { MOST = 6 };
    struct rp_gdn_rows pieces[MOST + 1];
    size_t n = 0, t = 0;
    while (n < MOST && t < b->len) {
        const size_t rows = (size_t)(random_next(seed) % (b->len - t + 1));
        pieces[n++] = (struct rp_gdn_rows){.row0 = b->row0 + t, .n = rows};
        t += rows;
    }
    pieces[n++] = (struct rp_gdn_rows){.row0 = b->row0 + t, .n = b->len - t};
    batch_reset(b);
    run_pieces(b, kernel, pieces, n);
}

/* Whole, by columns and in pieces; kernels in plain C, which are slow, one of the three by turns.
 */
static void check_batch(struct batch *b, uint64_t *seed)
{
    const struct rp_gdn_kernel *kernels[MAX_KERNELS];
    const size_t n = usable(kernels);
    float *want = contract_results(b);
    for (size_t k = 0; k < n; k++) {
        const size_t turn = (size_t)(random_next(seed) % 3);
        for (size_t way = 0; way < 3; way++) {
            if (kernels[k]->isa == RP_ISA_SCALAR && way != turn)
                continue;
            if (way == 0)
                run_whole(b, kernels[k]);
            else if (way == 1)
                run_columns(b, kernels[k], seed);
            else
                run_in_pieces(b, kernels[k], seed);
            check_bits(b, want, kernels[k]->name);
        }
    }
    free(want);
}

static const size_t lens[] = {1, 2, 3, 5, 6, 7, 13, 15, 16, 17, 22, 31, 32, 33, 37, 63, 64, 65, 70};
static const size_t dims[] = {1, 3, 7, 8, 16, 33, 48, 64, 128};
static const struct shape heads[] = {{1, 1, 0, 0}, {2, 2, 0, 0}, {1, 3, 0, 0}, {2, 4, 0, 0}};

static void test_every_kernel_follows_the_contract(void **unused)
{
    (void)unused;
    uint64_t seed = 20261;
    size_t turn_of = 0;
    for (size_t l = 0; l < COUNT(lens); l++) {
        for (size_t d = 0; d < COUNT(dims); d++, turn_of++) {
            struct shape s = heads[turn_of % COUNT(heads)];
            s.dk = dims[d];
            s.dv = dims[(d + l) % COUNT(dims)];
            if (s.dk * s.dv > 4096)
                s.n_key = s.n_value = 1;
            struct batch b = batch_make(lens[l], s, turn_of % 2, turn_of % 3, 0.3f, &seed);
            b.args.linear_decay = turn_of % 5 == 4;
            for (size_t t = 0; t < b.len && b.args.linear_decay; t++)
                for (size_t h = 0; h < s.n_value; h++)
                    row_gates(&b, t)[h] = 1 + row_gates(&b, t)[h];
            b.args.scale = turn_of % 4 == 3 ? 0.7f : 0;
            check_batch(&b, &seed);
            batch_free(&b);
        }
    }
}

/* Rows that nobody asked the output of change the state alone. */
static void test_silent_rows(void **unused)
{
    (void)unused;
    uint64_t seed = 3;
    const struct rp_gdn_kernel *kernels[MAX_KERNELS];
    const size_t n = usable(kernels);
    for (size_t len = 1; len < 80; len += len < 40 ? 3 : 11) {
        struct batch b = batch_make(len, (struct shape){1, 2, 24, 20}, 0, 1, 0.1f, &seed);
        float *want = contract_results(&b);
        const size_t loud = (size_t)(random_next(&seed) % (len + 1));
        for (size_t t = 0; t < loud; t++) {
            for (size_t c = 0; c < b.width_out; c++)
                want[(b.row0 + t) * b.args.ld_out + c] = float_of(UNTOUCHED);
        }
        const struct rp_gdn_rows pieces[] = {
            {.row0 = b.row0, .n = loud, .silent = true},
            {.row0 = b.row0 + loud, .n = len - loud},
        };
        for (size_t k = 0; k < n; k++) {
            batch_reset(&b);
            run_pieces(&b, kernels[k], pieces, 2);
            check_bits(&b, want, kernels[k]->name);
        }
        free(want);
        batch_free(&b);
    }
}

/* What every machine must get: made with the scalar kernel. */
static void test_golden_digests(void **unused)
{
    (void)unused;
    static const struct {
        size_t len;
        struct shape shape;
        uint64_t digest;
    } golden[] = {
        {1, {2, 4, 33, 20}, 0x7816173ce32dddc9},
        {70, {1, 3, 48, 64}, 0x045f5a8824594b89},
        {100, {1, 1, 128, 128}, 0x08af915a1d61c91b},
    };
    const struct rp_gdn_kernel *kernels[MAX_KERNELS];
    const size_t n = usable(kernels);
    size_t wrong = 0;
    for (size_t g = 0; g < COUNT(golden); g++) {
        uint64_t seed = 4711;
        struct batch b = batch_make(golden[g].len, golden[g].shape, g % 2, g % 3, 0.1f, &seed);
        for (size_t k = 0; k < n; k++) {
            run_whole(&b, kernels[k]);
            const uint64_t digest =
                float_digest(b.state, b.state_floats, float_digest(b.out, b.out_floats, 0));
            if (digest != golden[g].digest) {
                print_error("%s: golden %zu is 0x%016llx\n", kernels[k]->name, g,
                            (unsigned long long)digest);
                wrong++;
            }
        }
        batch_free(&b);
    }
    assert_int_equal(wrong, 0);
}

static void test_nothing_to_do_touches_nothing(void **unused)
{
    (void)unused;
    const struct rp_gdn_kernel *kernels[MAX_KERNELS];
    const size_t n = usable(kernels);
    const struct rp_gdn_args none = {
        .n_key_heads = 1, .n_value_heads = 1, .key_dim = 8, .value_dim = 8};
    const struct rp_gdn_rows empty[] = {{.row0 = 4}, {.row0 = 9}}, row = {.row0 = 0, .n = 1};
    for (size_t k = 0; k < n; k++) {
        kernels[k]->run(&none, NULL, 0, 0, 0, 8, NULL, NULL);
        kernels[k]->run(&none, empty, 2, 0, 0, 8, NULL, NULL);
        kernels[k]->run(&none, &row, 1, 0, 8, 8, NULL, NULL);
    }
}

/* ---- cuts of the sequence ---------------------------------------------------------------- */

/* A row's bits are those of the shortest sequence that ends with it. */
static void test_rows_behind_move_no_bit(void **unused)
{
    (void)unused;
    uint64_t seed = 11;
    struct batch b = batch_make(70, (struct shape){1, 2, 20, 18}, 0, 1, 0.1f, &seed);
    run_whole(&b, fastest());
    float *want = copy_results(&b);
    for (size_t len = 1; len < b.len; len++) {
        batch_reset(&b);
        run_rows(&b, fastest(), 0, len);
        assert_memory_equal(row_out(&b, len - 1), want + (b.row0 + len - 1) * b.args.ld_out,
                            b.width_out * sizeof(float));
        float *const spoilt = row_in(&b, len);
        const float kept = spoilt[3];
        spoilt[3] = NAN;
        batch_reset(&b);
        run_rows(&b, fastest(), 0, b.len);
        assert_memory_equal(b.out, want,
                            ((b.row0 + len - 1) * b.args.ld_out + b.width_out) * sizeof(float));
        spoilt[3] = kept;
    }
    free(want);
    batch_free(&b);
}

static const size_t cut_lens[] = {1, 2, 31, 32, 33, 63, 64, 65, 145, 257};

static void test_split_at_every_place(void **unused)
{
    (void)unused;
    uint64_t seed = 5;
    for (size_t l = 0; l < COUNT(cut_lens); l++) {
        struct batch b = batch_make(cut_lens[l], (struct shape){1, 2, 16, 16}, 0, 1, 0.05f, &seed);
        run_whole(&b, fastest());
        float *want = copy_results(&b);
        for (size_t t = 0; t <= b.len; t++) {
            batch_reset(&b);
            run_rows(&b, fastest(), 0, t);
            run_rows(&b, fastest(), t, b.len);
            if (t % RP_GDN_CHUNK == 0)
                check_bits(&b, want, "split between chunks");
            else
                check_results_near(&b, want, 1e-5, "split within a chunk");
        }
        free(want);
        batch_free(&b);
    }
}

static void test_chunks_are_steps(void **unused)
{
    (void)unused;
    uint64_t seed = 6;
    static const struct shape shapes[] = {{1, 1, 16, 16}, {2, 4, 128, 128}, {1, 3, 96, 64}};
    for (size_t l = 0; l < COUNT(cut_lens); l++) {
        struct batch b = batch_make(cut_lens[l], shapes[l % COUNT(shapes)], l % 2, 1, 0.05f, &seed);
        run_whole(&b, fastest());
        float *want = copy_results(&b);
        check_exact(&b, 1e-5, "chunks");
        batch_reset(&b);
        for (size_t t = 0; t < b.len; t++)
            run_rows(&b, fastest(), t, t + 1);
        check_results_near(&b, want, 1e-5, "steps");
        check_exact(&b, 1e-5, "steps");
        free(want);
        batch_free(&b);
    }
}

/* ---- closed forms and extremes (field cases G1, G5, G7) ------------------------------------ */

/* Every key e0, every query e0, beta 1: a row gets back what it has just stored. */
static void check_one_slot(size_t len, float g, bool steps)
{
    uint64_t seed = 9;
    struct batch b = batch_make(len, (struct shape){1, 1, 5, 7}, 0, 0, 1, &seed);
    for (size_t t = 0; t < len; t++) {
        for (size_t i = 0; i < 10; i++)
            row_in(&b, t)[i] = i % 5 == 0;
        row_gates(&b, t)[0] = g;
        row_gates(&b, t)[1] = 1;
    }
    memset(b.start, 0, b.state_floats * sizeof(float));
    batch_reset(&b);
    for (size_t t = 0; t < len && steps; t++)
        run_rows(&b, fastest(), t, t + 1);
    if (!steps)
        run_rows(&b, fastest(), 0, len);
    for (size_t t = 0; t < len; t++)
        for (size_t j = 0; j < 7; j++) {
            const float v = row_in(&b, t)[10 + j];
            assert_true(fabsf(row_out(&b, t)[j] - v / sqrtf(5)) <= 1e-6f);
            if (t + 1 == len)
                assert_true(fabsf(b.state[j] - v) <= 1e-6f);
        }
    for (size_t i = 7; i < b.state_floats; i++)
        assert_true(b.state[i] == 0);
    batch_free(&b);
}

static void test_one_slot_gives_back_its_last_value(void **unused)
{
    (void)unused;
    static const float g[] = {-2, -50, -1e-3f, 0, -90, -104, -1e30f, -INFINITY};
    for (size_t i = 0; i < COUNT(g); i++)
        for (size_t len = 1; len <= 130; len += len < 70 ? 1 : 13)
            check_one_slot(len, g[i], len % 2);
    for (size_t i = 0; i < COUNT(g); i++) {
        check_one_slot(130, g[i], false);
        check_one_slot(130, g[i], true);
    }
}

/* Keys e0 ... e3, one after the other, and always the query e0: the first value, decayed. */
static void test_a_slot_decays(void **unused)
{
    (void)unused;
    static const float decay[] = {0.5f, 0.5f, 0.25f, 0.5f};
    static const float due[] = {0.5f, 1, 0.25f, 0.5f, 0.0625f, 0.125f, 0.03125f, 0.0625f};
    for (int steps = 0; steps < 2; steps++) {
        uint64_t seed = 1;
        struct batch b = batch_make(4, (struct shape){1, 1, 4, 2}, 0, 0, 1, &seed);
        for (size_t t = 0; t < 4; t++) {
            for (size_t i = 0; i < 4; i++) {
                row_in(&b, t)[i] = i == 0;
                row_in(&b, t)[4 + i] = i == t;
            }
            row_in(&b, t)[8] = (float)(2 * t + 1);
            row_in(&b, t)[9] = (float)(2 * t + 2);
            row_gates(&b, t)[0] = logf(decay[t]);
            row_gates(&b, t)[1] = 1;
        }
        memset(b.start, 0, b.state_floats * sizeof(float));
        batch_reset(&b);
        for (size_t t = 0; t < 4 && steps; t++)
            run_rows(&b, fastest(), t, t + 1);
        if (!steps)
            run_rows(&b, fastest(), 0, 4);
        for (size_t t = 0; t < 4; t++)
            for (size_t j = 0; j < 2; j++)
                assert_true(fabsf(row_out(&b, t)[j] - due[2 * t + j]) <= 1e-6f);
        batch_free(&b);
    }
}

/* Only the last key of a row is changed, or only the last value: it must show. */
static void test_tails_of_dims_count(void **unused)
{
    (void)unused;
    uint64_t seed = 15;
    for (size_t i = 0; i < COUNT(dims); i++)
        for (size_t j = 0; j < COUNT(dims); j++) {
            struct batch b = batch_make(3 + 30 * (j % 2), (struct shape){1, 1, dims[i], dims[j]}, 0,
                                        0, 0.1f, &seed);
            const size_t columns[] = {dims[i] - 1, 2 * dims[i] - 1, 2 * dims[i] + dims[j] - 1};
            run_whole(&b, fastest());
            check_exact(&b, 1e-5, "dims");
            for (size_t c = 0; c < COUNT(columns); c++) {
                float *const at = row_in(&b, 1) + columns[c];
                const float kept = *at, was = row_out(&b, 1)[dims[j] - 1];
                *at += 0.5f;
                run_whole(&b, fastest());
                assert_true(row_out(&b, 1)[dims[j] - 1] != was);
                check_exact(&b, 1e-5, "dims, a tail changed");
                *at = kept;
                run_whole(&b, fastest());
            }
            batch_free(&b);
        }
}

static double error_of(const struct batch *b, const double *due, size_t from, size_t to)
{
    double worst = 0, largest = 0;
    for (size_t t = from; t < to; t++)
        for (size_t c = 0; c < b->width_out; c++) {
            const double want = due[(b->row0 + t) * b->args.ld_out + c];
            worst = fmax(worst, fabs((double)row_out(b, t)[c] - want));
            largest = fmax(largest, fabs(want));
        }
    return worst / largest;
}

/* The error of the last rows is that of the first ones, from decays that forget in ten rows to some
 * that keep thousands. */
static void test_error_is_flat_in_length(void **unused)
{
    (void)unused;
    static const size_t long_lens[] = {63, 64, 65, 127, 128, 129, 511, 2048, 16384};
    static const float rates[] = {0.1f, 1e-3f, 1e-5f};
    uint64_t seed = 21;
    for (size_t r = 0; r < COUNT(rates); r++)
        for (size_t l = 0; l < COUNT(long_lens); l++) {
            const size_t len = long_lens[l];
            struct batch b = batch_make(len, (struct shape){1, 1, 32, 16}, 0, 1, rates[r], &seed);
            double *due = exact_results(&b);
            for (int steps = 0; steps < 2; steps++) {
                batch_reset(&b);
                for (size_t t = 0; t < len && steps; t++)
                    run_rows(&b, fastest(), t, t + 1);
                if (!steps)
                    run_rows(&b, fastest(), 0, len);
                const double all = error_of(&b, due, 0, len);
                const double end = error_of(&b, due, len - len / 8, len);
                if (!(all <= 3e-6 && end <= 2e-6))
                    fail_msg("rate %g, %zu rows, %s: error %g, at the end %g", (double)rates[r],
                             len, steps ? "steps" : "chunks", all, end);
            }
            free(due);
            batch_free(&b);
        }
}

/* One gate or row at its extreme, everything else as usual. */
static void test_extremes_of_gates_and_rows(void **unused)
{
    (void)unused;
    enum { LEN = 67 };
    const struct shape s = {1, 2, 24, 20};
    for (int what = 0; what < 8; what++) {
        uint64_t seed = 30;
        struct batch b = batch_make(LEN, s, 0, what % 2 ? 2 : 1, 0.1f, &seed);
        for (size_t t = 0; t < LEN; t++) {
            float *row = row_in(&b, t), *g = row_gates(&b, t);
            const bool here = t % 3 == 1 || t > 40;
            if (what < 3 && here)
                g[0] = what == 0 ? -90 : what == 1 ? -200 : 0;
            if (what == 3 || what == 4)
                g[2] = g[3] = (float)(what - 3); /* beta 0, 1 */
            if (what == 5 && here)
                memset(row + s.dk, 0, s.dk * sizeof *row); /* keys of 0 */
            if (what == 6 && here)
                memset(row, 0, b.width_in * sizeof *row);
            if (what == 7 && here)
                memset(row, 0, s.dk * sizeof *row); /* queries of 0 */
        }
        check_batch(&b, &seed);
        run_whole(&b, fastest());
        check_exact(&b, 1e-5, "extremes");
        batch_free(&b);
    }
}

/* ---- what is not finite ------------------------------------------------------------------- */

static size_t count_nans(const float *x, size_t n)
{
    size_t nans = 0;
    for (size_t i = 0; i < n; i++)
        nans += isnan(x[i]);
    return nans;
}

/* A NaN in row `at` shows in its output; before it nothing shows, and behind it where it went into
 * the state. */
static void test_nan_shows_in_its_row(void **unused)
{
    (void)unused;
    enum { LEN = 37, DK = 10, DV = 12 };
    const struct rp_gdn_kernel *kernels[MAX_KERNELS];
    const size_t n = usable(kernels);
    for (size_t at = 0; at < LEN; at++)
        for (int what = 0; what < 5; what++) {
            uint64_t seed = 8;
            struct batch b = batch_make(LEN, (struct shape){1, 1, DK, DV}, 0, 1, 0.1f, &seed);
            if (what < 3)
                row_in(&b, at)[what == 0 ? 4 : what == 1 ? DK + 4 : 2 * DK + 4] = NAN;
            else
                row_gates(&b, at)[what - 3] = NAN;
            for (size_t k = 0; k < n; k++) {
                run_whole(&b, kernels[k]);
                for (size_t t = 0; t < LEN; t++) {
                    const size_t nans = count_nans(row_out(&b, t), DV);
                    const size_t due = t < at || (what == 0 && t > at) ? 0 : what == 2 ? 1 : DV;
                    if (nans != due)
                        fail_msg("%s: NaN number %d in row %zu: row %zu has %zu, not %zu",
                                 kernels[k]->name, what, at, t, nans, due);
                }
                const size_t due = what == 0 ? 0 : what == 2 ? DK : DK * DV;
                assert_int_equal(count_nans(b.state, b.state_floats), due);
            }
            batch_free(&b);
        }
}

/* ---- sizes -------------------------------------------------------------------------------- */

static void test_scratch_sizes(void **unused)
{
    (void)unused;
    struct rp_gdn_args a = {
        .n_key_heads = 16, .n_value_heads = 32, .key_dim = 128, .value_dim = 128};
    size_t bytes;
    assert_true(rp_gdn_scratch_bytes(&a, &bytes));
    assert_true(bytes < (size_t)1 << 19);
    static const size_t bad[][4] = {
        {0, 1, 1, 1},        {1, 0, 1, 1},          {1, 1, 0, 1},
        {1, 1, 1, 0},        {2, 3, 1, 1},          {1, 1, SIZE_MAX, 1},
        {1, 1, 1, SIZE_MAX}, {1, SIZE_MAX, 16, 16}, {1, 1, (size_t)1 << 32, (size_t)1 << 32},
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        a.n_key_heads = bad[i][0];
        a.n_value_heads = bad[i][1];
        a.key_dim = bad[i][2];
        a.value_dim = bad[i][3];
        assert_false(rp_gdn_scratch_bytes(&a, &bytes));
    }
}

/* ---- oracles ------------------------------------------------------------------------------ */

static float *read_tensor(const rp_tensor_file *file, const char *name, uint64_t *dims_of)
{
    rp_tensor tensor;
    rp_error err;
    if (rp_tensor_file_find(file, name, &tensor, &err) != RP_OK)
        fail_msg("%s", err.message);
    float *values = need(malloc(tensor.n_elements * sizeof *values));
    assert_int_equal(rp_tensor_file_read_f32(file, name, values, (size_t)tensor.n_elements, &err),
                     RP_OK);
    memcpy(dims_of, tensor.dims, sizeof tensor.dims);
    return values;
}

/* A tensor [rows][n] to columns of something that has a row stride of ld. */
static void place_tensor(const rp_tensor_file *file, const char *name, float *to, size_t rows,
                         size_t n, size_t ld)
{
    uint64_t dims_of[8];
    float *values = read_tensor(file, name, dims_of);
    for (size_t t = 0; t < rows; t++)
        memcpy(to + t * ld, values + t * n, n * sizeof *to);
    free(values);
}

/* The state of the oracle is by value head, ours by key head; r of a key head is that value head.
 */
static void place_state(const struct batch *b, const rp_tensor_file *file, const char *name,
                        float *to)
{
    uint64_t dims_of[8];
    float *values = read_tensor(file, name, dims_of);
    const size_t size = b->args.key_dim * b->args.value_dim;
    for (size_t h = 0; h < b->args.n_key_heads; h++)
        for (size_t r = 0; r < b->args.n_value_heads / b->args.n_key_heads; r++, to += size)
            memcpy(to, values + rp_gdn_value_head(&b->args, h, r) * size, size * sizeof *to);
    free(values);
}

/* In one call and row by row; kernels in plain C one of the two. */
static void check_oracle(const rp_tensor_file *file, const char *path, rp_gdn_map map)
{
    static const char *const maps[] = {"grouped", "tiled"};
    uint64_t q[8], v[8], seed = 1;
    char name[32];
    free(read_tensor(file, "q", q));
    free(read_tensor(file, "v", v));
    const struct shape s = {(size_t)q[1], (size_t)v[1], (size_t)q[2], (size_t)v[2]};
    struct batch b = batch_make((size_t)q[0], s, map, RP_GDN_NORM_NONE, 1, &seed);
    const size_t width = s.n_key * s.dk, ld = b.args.ld;
    place_tensor(file, "q", row_in(&b, 0), b.len, width, ld);
    place_tensor(file, "k", row_in(&b, 0) + width, b.len, width, ld);
    place_tensor(file, "v", row_in(&b, 0) + 2 * width, b.len, b.width_out, ld);
    place_tensor(file, "g", row_gates(&b, 0), b.len, s.n_value, b.args.ld_gates);
    place_tensor(file, "beta", row_gates(&b, 0) + s.n_value, b.len, s.n_value, b.args.ld_gates);
    place_state(&b, file, "state0_kv", b.start);

    batch_reset(&b); /* what is due, put where results go */
    snprintf(name, sizeof name, "out.%s", maps[map]);
    place_tensor(file, name, row_out(&b, 0), b.len, b.width_out, b.args.ld_out);
    snprintf(name, sizeof name, "state_kv.%s", maps[map]);
    place_state(&b, file, name, b.state);
    float *want = copy_results(&b);

    const struct rp_gdn_kernel *kernels[MAX_KERNELS];
    const size_t n = usable(kernels);
    for (size_t k = 0; k < n; k++) {
        const bool steps = (b.len + k) % 2, both = kernels[k]->isa != RP_ISA_SCALAR;
        if (!steps || both) {
            run_whole(&b, kernels[k]);
            check_results_near(&b, want, 2e-5, path);
        }
        if (!steps && !both)
            continue;
        batch_reset(&b);
        for (size_t t = 0; t < b.len; t++)
            run_rows(&b, kernels[k], t, t + 1);
        check_results_near(&b, want, 2e-5, path);
    }
    free(want);
    batch_free(&b);
}

static void test_oracles(void **unused)
{
    (void)unused;
    for (int i = 0; i < 10; i++) {
        char path[512];
        rp_tensor_file *file;
        rp_error err;
        snprintf(path, sizeof path, "%s/gdn/core/case%d.safetensors", RP_TEST_DATA, i);
        if (rp_tensor_file_open(path, &file, &err) != RP_OK)
            fail_msg("%s", err.message);
        check_oracle(file, path, RP_GDN_GROUPED);
        check_oracle(file, path, RP_GDN_TILED);
        rp_tensor_file_close(file);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_kernel_follows_the_contract),
        cmocka_unit_test(test_silent_rows),
        cmocka_unit_test(test_golden_digests),
        cmocka_unit_test(test_nothing_to_do_touches_nothing),
        cmocka_unit_test(test_rows_behind_move_no_bit),
        cmocka_unit_test(test_split_at_every_place),
        cmocka_unit_test(test_chunks_are_steps),
        cmocka_unit_test(test_one_slot_gives_back_its_last_value),
        cmocka_unit_test(test_a_slot_decays),
        cmocka_unit_test(test_tails_of_dims_count),
        cmocka_unit_test(test_error_is_flat_in_length),
        cmocka_unit_test(test_extremes_of_gates_and_rows),
        cmocka_unit_test(test_nan_shows_in_its_row),
        cmocka_unit_test(test_scratch_sizes),
        cmocka_unit_test(test_oracles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
