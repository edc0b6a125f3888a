/* Attention: every kernel of the machine against the contract written as plain loops, bit for bit.
 */
#define _GNU_SOURCE 1
#define RP_V16_SCALAR

#include <stddef.h>

/* The template once more, in plain C, with the shapes of the widest tile and the largest transpose
 * that any kernel has: what only an AVX-512 machine would reach is then tested on all. */
#define ATT_KERNEL attention_widest
#define ATT_NAME   "the template at 12x32, in plain C"
#define ATT_ISA    RP_ISA_SCALAR
#define ATT_ROWS   12
#define ATT_VECS   2
#define ATT_BLOCK  8

static inline void transpose_block(float *to, const float *from, size_t ld)
{
    for (size_t r = 0; r < ATT_BLOCK; r++) {
        for (size_t c = 0; c < ATT_BLOCK; c++)
            to[16 * c + r] = from[ld * r + c];
    }
}

#include "attention/attention_tmpl.h"
#include "tests/kernels.h"

#include <rankplan/machine.h>

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define UNTOUCHED 0x7fc0dead /* a NaN that nobody computes */

/* ---- memory with a guard page on both sides --------------------------------------------- */

struct guarded {
    unsigned char *map;
    size_t map_bytes;
    float *data;
};

/* n floats, filled with NaN, that end (or begin) right at a page that faults. */
static struct guarded guarded_floats(size_t n, bool at_end)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t bytes = n * sizeof(float), room = (bytes + page - 1) / page * page;
    struct guarded g = {.map_bytes = room + 2 * page};
    void *map = mmap(NULL, g.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(map != MAP_FAILED);
    g.map = map;
    assert_int_equal(mprotect(g.map + page, room, PROT_READ | PROT_WRITE), 0);
    memset(g.map + page, 0xff, room);
    g.data = (float *)(void *)(g.map + page + (at_end ? room - bytes : 0));
    return g;
}

static void guarded_free(struct guarded *g)
{
    assert_int_equal(munmap(g->map, g->map_bytes), 0);
}

/* ---- random inputs, the same on every machine ------------------------------------------- */

static uint32_t next(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static float uniform(uint32_t *state)
{
    return (float)next(state) * 0x1p-23f - 1.0f;
}

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

/* ---- the contract ----------------------------------------------------------------------- */

/* Query heads share key heads in groups of neighbours (field case P8). */
static size_t kv_heads_of(const struct rp_attention_args *a)
{
    return a->n_kv_heads ? a->n_kv_heads : a->n_heads;
}

static size_t kv_head_of(const struct rp_attention_args *a, size_t head)
{
    return head / (a->n_heads / kv_heads_of(a));
}

/* Row j of the prefix and the sequence together; row0 is that of the sequence. */
static const float *contract_input(const struct rp_attention_args *a, size_t row0, size_t j)
{
    const size_t row = j < a->n_prefix ? a->prefix_row0 + j : row0 + j - a->n_prefix;
    return a->qkv + row * a->ld;
}

/* The scores of query row i with scale and bias; all count from the prefix, and so does len. */
static void contract_scores(const struct rp_attention_args *a, size_t row0, size_t len, size_t head,
                            size_t i, float *s)
{
    const size_t d = a->head_dim;
    const float *q = contract_input(a, row0, i) + head * d;
    for (size_t j = 0; j < len; j++) {
        const float *k = contract_input(a, row0, j) + (a->n_heads + kv_head_of(a, head)) * d;
        s[j] = 0.0f;
        for (size_t c = 0; c < d; c++)
            s[j] = fmaf(q[c] * a->scale, k[c], s[j]);
        if (a->rel) {
            const long span = (long)a->rel_span, distance = (long)j - (long)i;
            const long clamped = distance < -span ? -span : distance > span ? span : distance;
            s[j] += a->rel[head * (2 * a->rel_span + 1) + (size_t)(clamped + span)];
        }
    }
}

/* The keys that row i sees. */
static size_t first_of(const struct rp_attention_args *a, size_t i)
{
    return a->window && i > a->window ? i - a->window : 0;
}

static size_t end_of(const struct rp_attention_args *a, size_t len, size_t i)
{
    if (a->causal)
        return i + 1;
    return a->window && len - 1 - i > a->window ? i + a->window + 1 : len;
}

/* Row i of the output, len and i without the prefix; s has room for the prefix and len. */
static void contract_row(const struct rp_attention_args *a, size_t row0, size_t len, size_t head,
                         size_t i, float *s, float *out)
{
    const size_t d = a->head_dim, column = (a->n_heads + kv_heads_of(a) + kv_head_of(a, head)) * d;
    const size_t at = a->n_prefix + i, all = a->n_prefix + len;
    const size_t first = first_of(a, at), end = end_of(a, all, at);
    contract_scores(a, row0, all, head, at, s);
    float most = -INFINITY, part[16] = {0};
    for (size_t j = first; j < end; j++)
        most = s[j] > most ? s[j] : most;
    for (size_t j = first; j < end; j++)
        s[j] -= most;
    for (size_t j = first; j < end; j += 16) {
        const size_t n = end - j < 16 ? end - j : 16;
        v_store_n(s + j, v_exp_neg(v_load_n(s + j, n)), n);
    }
    for (size_t j = first; j < end; j++)
        part[j % 16] += s[j];
    for (int half = 8; half; half /= 2) {
        for (int l = 0; l < half; l++)
            part[l] += part[l + half];
    }
    for (size_t c = 0; c < d; c++) {
        float o = 0.0f;
        for (size_t j = first; j < end; j++)
            o = fmaf(s[j], contract_input(a, row0, j)[column + c], o);
        out[c] = o / part[0];
    }
}

/* ---- a batch and its runs --------------------------------------------------------------- */

struct batch {
    struct rp_attention_args args;
    struct guarded qkv, out, rel, scratch;
    size_t rows, row0, len, scratch_floats, out_floats;
};

struct shape {
    size_t len, heads, dim;
    bool rel;
    size_t window, kv_heads; /* 0: as many as heads */
    bool causal;
    size_t prefix;
};

/* One sequence of len rows between a row of NaN before it and, sometimes, one behind it; its prefix
 * between two more. */
static struct batch batch_make_shape(const struct shape *shape, uint32_t *state)
{
    const size_t len = shape->len, heads = shape->heads, dim = shape->dim, prefix = shape->prefix;
    struct batch b = {.row0 = 1 + (prefix ? prefix + 1 : 0), .len = len};
    const bool flush = next(state) % 2;
    const size_t kv_heads = shape->kv_heads ? shape->kv_heads : heads;
    const size_t width = heads * dim, all = width + 2 * kv_heads * dim;
    const size_t pad = next(state) % 3, span = next(state) % (len + 4);
    b.rows = b.row0 + len + (flush ? 0 : 1);
    b.args = (struct rp_attention_args){.ld = all + pad,
                                        .ld_out = width + pad,
                                        .n_heads = heads,
                                        .n_kv_heads = shape->kv_heads,
                                        .head_dim = dim,
                                        .scale = 1.0f / sqrtf((float)dim),
                                        .window = shape->window,
                                        .causal = shape->causal,
                                        .prefix_row0 = prefix ? 1 : 0,
                                        .n_prefix = prefix,
                                        .rel_span = span};
    b.qkv = guarded_floats((b.rows - 1) * b.args.ld + all, flush);
    for (size_t i = 1; i < b.row0 + len; i++) {
        for (size_t c = 0; c < all && !(prefix && i == prefix + 1); c++)
            b.qkv.data[i * b.args.ld + c] = 2.0f * uniform(state);
    }
    b.out_floats = (b.rows - 1) * b.args.ld_out + width;
    b.out = guarded_floats(b.out_floats, flush);
    b.rel = guarded_floats(heads * (2 * span + 1), flush);
    for (size_t i = 0; i < heads * (2 * span + 1); i++)
        b.rel.data[i] = 3.0f * uniform(state);
    size_t bytes;
    assert_true(rp_attention_scratch_bytes(prefix + len, shape->window, shape->causal, dim,
                                           shape->rel, &bytes));
    assert_int_equal(bytes % 64, 0);
    b.scratch_floats = bytes / sizeof(float);
    b.scratch = guarded_floats(b.scratch_floats, true);
    b.args.qkv = b.qkv.data;
    b.args.out = b.out.data;
    b.args.rel = shape->rel ? b.rel.data : NULL;
    return b;
}

static struct batch batch_make_window(size_t len, size_t heads, size_t dim, bool rel, size_t window,
                                      uint32_t *state)
{
    const struct shape shape = {
        .len = len, .heads = heads, .dim = dim, .rel = rel, .window = window};
    return batch_make_shape(&shape, state);
}

static struct batch batch_make(size_t len, size_t heads, size_t dim, bool rel, uint32_t *state)
{
    return batch_make_window(len, heads, dim, rel, 0, state);
}

static void batch_free(struct batch *b)
{
    guarded_free(&b->qkv);
    guarded_free(&b->out);
    guarded_free(&b->rel);
    guarded_free(&b->scratch);
}

static void batch_clear(struct batch *b)
{
    const uint32_t mark = UNTOUCHED;
    for (size_t i = 0; i < b->out_floats; i++)
        memcpy(b->out.data + i, &mark, sizeof mark);
}

/* Query rows [q0, q1) of the heads of a key head, on scratch full of NaN. */
static void batch_run(struct batch *b, const struct rp_attention_kernel *kernel, size_t kv_head,
                      size_t q0, size_t q1)
{
    memset(b->scratch.data, 0xff, b->scratch_floats * sizeof(float));
    kernel->run(&b->args, b->row0, b->len, kv_head, q0, q1, b->scratch.data);
}

static void batch_run_heads(struct batch *b, const struct rp_attention_kernel *kernel)
{
    batch_clear(b);
    for (size_t h = 0; h < kv_heads_of(&b->args); h++)
        batch_run(b, kernel, h, 0, b->len);
}

/* The whole output buffer as the contract has it, margins and all. */
static float *batch_expected(struct batch *b)
{
    float *want = malloc(b->out_floats * sizeof *want),
          *s = malloc((b->args.n_prefix + b->len + 1) * sizeof *s);
    assert_true(want && s);
    batch_clear(b);
    memcpy(want, b->out.data, b->out_floats * sizeof *want);
    for (size_t h = 0; h < b->args.n_heads; h++) {
        for (size_t i = 0; i < b->len; i++)
            contract_row(&b->args, b->row0, b->len, h, i, s,
                         want + (b->row0 + i) * b->args.ld_out + h * b->args.head_dim);
    }
    free(s);
    return want;
}

static void check_bits(const struct batch *b, const float *want, const char *what)
{
    for (size_t i = 0; i < b->out_floats; i++) {
        if (bits_of(b->out.data[i]) != bits_of(want[i]))
            fail_msg("%s: len %zu after %zu, %zu heads (%zu) x %zu, window %zu%s%s: row %zu column "
                     "%zu is %a, not %a",
                     what, b->len, b->args.n_prefix, b->args.n_heads, kv_heads_of(&b->args),
                     b->args.head_dim, b->args.window, b->args.causal ? ", causal" : "",
                     b->args.rel ? ", bias" : "", i / b->args.ld_out, i % b->args.ld_out,
                     (double)b->out.data[i], (double)want[i]);
    }
}

DEFINE_USABLE(struct rp_attention_kernel, &attention_widest, rp_attention_all)

/* ---- tests ------------------------------------------------------------------------------ */

static const size_t lens[] = {1, 2, 3, 15, 16, 17, 31, 33, 64, 65, 100, 127, 128, 129, 200};
static const size_t dims[] = {1, 3, 8, 16, 24, 32, 33, 48, 64, 80, 96, 128};
#define COUNT(a) (sizeof(a) / sizeof *(a))

/* Every row of every head by some split of the query rows. */
static void batch_run_split(struct batch *b, const struct rp_attention_kernel *kernel,
                            uint32_t *state)
{
    batch_clear(b);
    for (size_t h = kv_heads_of(&b->args); h-- > 0;) {
        for (size_t q0 = 0, q1; q0 < b->len; q0 = q1) {
            q1 = q0 + 1 + next(state) % (b->len - q0);
            batch_run(b, kernel, h, q0, q1);
        }
    }
}

/* The fastest kernel does it whole and split, those in plain C one of the two. */
static void check(const struct shape *shape, uint32_t *state)
{
    const struct rp_attention_kernel *kernels[MAX_KERNELS];
    const size_t n = usable(kernels);
    struct batch b = batch_make_shape(shape, state);
    float *want = batch_expected(&b);
    for (size_t k = 0; k < n; k++) {
        const bool split = next(state) % 2, both = kernels[k]->isa != RP_ISA_SCALAR;
        if (split || both) {
            batch_run_split(&b, kernels[k], state);
            check_bits(&b, want, kernels[k]->name);
        }
        if (!split || both) {
            batch_run_heads(&b, kernels[k]);
            check_bits(&b, want, kernels[k]->name);
        }
    }
    free(want);
    batch_free(&b);
}

static void check_window(size_t len, size_t heads, size_t dim, bool rel, size_t window,
                         uint32_t *state)
{
    const struct shape shape = {
        .len = len, .heads = heads, .dim = dim, .rel = rel, .window = window};
    check(&shape, state);
}

static void check_shape(size_t len, size_t heads, size_t dim, bool rel, uint32_t *state)
{
    check_window(len, heads, dim, rel, 0, state);
}

static void test_every_kernel_follows_the_contract(void **unused)
{
    (void)unused;
    uint32_t state = 20251;
    print_message("seed %u\n", state);
    for (size_t l = 0; l < COUNT(lens); l++) {
        for (size_t d = 0; d < COUNT(dims); d++) {
            const size_t heads = 1 + (l + d) % 3;
            if (lens[l] <= 65) {
                check_shape(lens[l], heads, dims[d], false, &state);
                check_shape(lens[l], heads, dims[d], true, &state);
            } else { /* dearer: by turns */
                check_shape(lens[l], dims[d] > 48 ? 1 : heads, dims[d], (l + d / 2) % 2, &state);
            }
        }
    }
}

/* Lengths at which blocks of query rows change their height, and past a chunk of the values. */
static void test_long_rows_follow_the_contract(void **unused)
{
    (void)unused;
    static const size_t shapes[][2] = {{256, 7}, {257, 17}, {330, 40}, {513, 2}, {1025, 3}};
    uint32_t state = 77;
    for (size_t i = 0; i < COUNT(shapes); i++)
        check_shape(shapes[i][0], 1, shapes[i][1], i % 2, &state);
}

/* One query after the other, in any order, to rows of a result that has them in that order; each
 * key and value packed once. */
static void test_single_rows_go_where_they_are_wanted(void **unused)
{
    (void)unused;
    const struct rp_attention_kernel *kernels[MAX_KERNELS];
    const size_t n = usable(kernels);
    uint32_t state = 4;
    for (size_t l = 0; l < 3 * COUNT(lens); l++) {
        const struct shape shape = {.len = lens[l / 3],
                                    .heads = 2,
                                    .dim = dims[l / 3 % COUNT(dims)],
                                    .rel = l % 2,
                                    .causal = l % 3 > 0,
                                    .prefix = l % 3 > 1 ? next(&state) % 40 : 0};
        struct batch b = batch_make_shape(&shape, &state);
        float *want = batch_expected(&b);
        for (size_t k = 0; k < n; k++) {
            struct rp_attention_args args = b.args;
            for (size_t h = 0; h < 2; h++)
                for (size_t i = 0; i < 5; i++) {
                    const size_t at = h * args.head_dim, q = next(&state) % b.len;
                    batch_clear(&b);
                    if (i == 0)
                        memset(b.scratch.data, 0xff, b.scratch_floats * sizeof(float));
                    args.n_packed = i > 0 ? args.n_packed : 0;
                    args.out_row0 = b.row0 + q;
                    kernels[k]->run(&args, b.row0, b.len, h, q, q + 1, b.scratch.data);
                    args.n_packed = rp_attention_packed(&args, b.len, q + 1);
                    assert_true(args.n_packed >= args.n_prefix + q + 1);
                    assert_memory_equal(b.out.data + at, want + (b.row0 + q) * args.ld_out + at,
                                        args.head_dim * sizeof(float));
                    for (size_t c = 0; c < b.out_floats; c++)
                        assert_true((c >= at && c < at + args.head_dim) ||
                                    bits_of(b.out.data[c]) == UNTOUCHED);
                }
        }
        free(want);
        batch_free(&b);
    }
}

static void test_nothing_to_do_touches_nothing(void **unused)
{
    (void)unused;
    const struct rp_attention_kernel *kernels[MAX_KERNELS];
    const size_t n = usable(kernels);
    const struct rp_attention_args none = {.n_heads = 1, .head_dim = 8, .scale = 1};
    for (size_t k = 0; k < n; k++) {
        kernels[k]->run(&none, 0, 0, 0, 0, 0, NULL);
        kernels[k]->run(&none, 5, 9, 0, 3, 3, NULL);
    }
}

/* What every machine must get: made with the scalar kernel, never with the one under test. */
static void test_golden_digests(void **unused)
{
    (void)unused;
    static const struct {
        struct shape shape;
        uint64_t digest;
    } golden[] = {
        {{.len = 1, .heads = 1, .dim = 1}, 0x5b198124e910d5e5},
        {{.len = 7, .heads = 2, .dim = 3, .rel = true}, 0x2a9840c678a7689d},
        {{.len = 128, .heads = 2, .dim = 32}, 0x6894d47771265dac},
        {{.len = 150, .heads = 3, .dim = 64, .rel = true}, 0x2c31d7c172f592cb},
        {{.len = 200, .heads = 1, .dim = 100, .rel = true}, 0xdf1772c85fe239f6},
        {{.len = 150, .heads = 3, .dim = 64, .rel = true, .window = 5}, 0xd1be255121cae7d6},
        {{.len = 400, .heads = 1, .dim = 64, .window = 64}, 0x7a74445d44f2af8b},
        {{.len = 150, .heads = 8, .dim = 32, .kv_heads = 2, .causal = true}, 0xa3499cb3ca62ac83},
        {{.len = 70, .heads = 4, .dim = 128, .kv_heads = 2, .causal = true, .prefix = 100},
         0x8a6d1cc50837717a},
        {{.len = 300,
          .heads = 4,
          .dim = 16,
          .window = 33,
          .kv_heads = 1,
          .causal = true,
          .prefix = 17},
         0x277bca36a20b5c8b},
    };
    const struct rp_attention_kernel *kernels[MAX_KERNELS];
    const size_t n = usable(kernels);
    size_t wrong = 0;
    for (size_t g = 0; g < COUNT(golden); g++) {
        uint32_t state = 4711;
        struct batch b = batch_make_shape(&golden[g].shape, &state);
        for (size_t k = 0; k < n; k++) {
            batch_run_heads(&b, kernels[k]);
            const uint64_t digest = XXH3_64bits(b.out.data, b.out_floats * sizeof *b.out.data);
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

/* The same numbers in double precision, within what the roundings of the contract can add up to:
 *     a score is off by (d + 2) eps sum |q k scale|, once for it and once for the maximum;
 *     a weight by that (its exponential's argument) and a few eps; the sums by len eps. */
static void check_accuracy_of_head(struct batch *b, size_t head)
{
    const struct rp_attention_args *a = &b->args;
    const size_t dim = a->head_dim, all = a->n_prefix + b->len, group = a->n_heads / kv_heads_of(a);
    const size_t key = (a->n_heads + head / group) * dim, value = key + kv_heads_of(a) * dim;
    double *p = malloc(all * sizeof *p);
    assert_non_null(p);
    batch_clear(b);
    batch_run(b, rp_attention_select(rp_isa_detected()), head / group, 0, b->len);
    for (size_t i = a->n_prefix; i < all; i++) {
        const float *q = contract_input(a, b->row0, i) + head * dim;
        const size_t first = first_of(a, i), end = end_of(a, all, i);
        double most = -INFINITY, widest = 0, sum = 0;
        for (size_t j = first; j < end; j++) {
            double magnitude = 0;
            p[j] = 0;
            for (size_t c = 0; c < dim; c++) {
                const double term =
                    (double)q[c] * a->scale * contract_input(a, b->row0, j)[key + c];
                p[j] += term;
                magnitude += fabs(term);
            }
            if (a->rel) {
                const double span = (double)a->rel_span, distance = (double)j - (double)i;
                p[j] += a->rel[(size_t)(fmax(-span, fmin(distance, span)) + span)];
                magnitude += fabs(p[j]);
            }
            most = fmax(most, p[j]);
            widest = fmax(widest, magnitude);
        }
        for (size_t j = first; j < end; j++)
            sum += p[j] = exp(p[j] - most);
        for (size_t c = 0; c < dim; c++) {
            double o = 0, largest = 0;
            for (size_t j = first; j < end; j++) {
                const double v = contract_input(a, b->row0, j)[value + c];
                o += p[j] * v;
                largest = fmax(largest, fabs(v));
            }
            const double bound = 0x1p-24 * largest *
                                 (2 * (double)(dim + 2) * widest + 2 * (double)(end - first) + 16);
            const size_t row = b->row0 + i - a->n_prefix;
            const double got = b->out.data[row * a->ld_out + head * dim + c];
            if (!(fabs(got - o / sum) <= bound))
                fail_msg("len %zu dim %zu head %zu row %zu column %zu: %.9g, not %.9g (bound %g)",
                         b->len, dim, head, i, c, got, o / sum, bound);
        }
    }
    free(p);
}

static void check_accuracy(const struct shape *shape, uint32_t *state)
{
    struct batch b = batch_make_shape(shape, state);
    for (size_t h = 0; h < shape->heads; h++)
        check_accuracy_of_head(&b, h);
    batch_free(&b);
}

static void test_near_to_double_precision(void **unused)
{
    (void)unused;
    uint32_t state = 99;
    for (int rel = 0; rel < 2; rel++) {
        check_accuracy(&(struct shape){.len = 1, .heads = 1, .dim = 8, .rel = rel}, &state);
        check_accuracy(&(struct shape){.len = 33, .heads = 1, .dim = 7, .rel = rel}, &state);
        check_accuracy(&(struct shape){.len = 200, .heads = 1, .dim = 64, .rel = rel}, &state);
        check_accuracy(
            &(struct shape){.len = 200, .heads = 1, .dim = 33, .rel = rel, .causal = true}, &state);
        check_accuracy(
            &(struct shape){
                .len = 130, .heads = 1, .dim = 80, .rel = rel, .window = 20, .causal = true},
            &state);
    }
    for (size_t kv_heads = 1; kv_heads <= 8; kv_heads *= 2) {
        check_accuracy(&(struct shape){.len = 90, .heads = 8, .dim = 16, .kv_heads = kv_heads},
                       &state);
        check_accuracy(&(struct shape){.len = 64,
                                       .heads = 8,
                                       .dim = 128,
                                       .kv_heads = kv_heads,
                                       .causal = true,
                                       .prefix = 37},
                       &state);
        check_accuracy(
            &(struct shape){.len = 64, .heads = 8, .dim = 1, .kv_heads = kv_heads, .causal = true},
            &state);
    }
}

/* Which rows of head 0 are NaN throughout, finite throughout, or neither ('n', 'f', '?'). */
static char row_kind(const struct batch *b, size_t i)
{
    size_t nans = 0, finite = 0;
    for (size_t c = 0; c < b->args.head_dim; c++) {
        const float x = b->out.data[(b->row0 + i) * b->args.ld_out + c];
        nans += isnan(x);
        finite += isfinite(x);
    }
    return nans == b->args.head_dim ? 'n' : finite == b->args.head_dim ? 'f' : '?';
}

static void check_kinds(struct batch *b, size_t only, char there, char elsewhere)
{
    const struct rp_attention_kernel *kernels[MAX_KERNELS];
    const size_t n = usable(kernels);
    for (size_t k = 0; k < n; k++) {
        batch_run_heads(b, kernels[k]);
        for (size_t i = 0; i < b->len; i++)
            assert_int_equal(row_kind(b, i), i == only ? there : elsewhere);
    }
}

static void test_what_is_not_finite_shows(void **unused)
{
    (void)unused;
    static const float bad[] = {NAN, INFINITY};
    uint32_t state = 5;
    for (size_t at = 0; at < 37; at++) {
        for (size_t k = 0; k < COUNT(bad); k++) {
            struct batch b = batch_make(37, 1, 10, false, &state);
            float *row = b.qkv.data + (b.row0 + at) * b.args.ld;
            const float q = row[4], key = row[10 + 4];
            check_kinds(&b, at, 'f', 'f');
            row[4] = bad[k]; /* a query: its own row */
            check_kinds(&b, at, 'n', 'f');
            row[4] = q;
            row[10 + 4] = NAN; /* a key: every row */
            check_kinds(&b, at, 'n', 'n');
            row[10 + 4] = key;
            batch_free(&b);
        }
    }
}

/* A key that a bias of -inf takes away weighs nothing; a row of nothing else has no answer. */
static void test_minus_infinity_weighs_nothing(void **unused)
{
    (void)unused;
    const struct rp_attention_kernel *kernels[MAX_KERNELS];
    const size_t n = usable(kernels);
    uint32_t state = 6;
    struct batch b = batch_make(50, 1, 16, true, &state);
    for (size_t i = 0; i < 2 * b.args.rel_span + 1; i++)
        b.rel.data[i] = i % 3 ? 0.5f : -INFINITY;
    float *want = batch_expected(&b);
    for (size_t k = 0; k < n; k++) {
        batch_run_heads(&b, kernels[k]);
        check_bits(&b, want, kernels[k]->name);
    }
    for (size_t i = 0; i < 2 * b.args.rel_span + 1; i++)
        b.rel.data[i] = -INFINITY;
    check_kinds(&b, 0, 'n', 'n');
    free(want);
    batch_free(&b);
}

/* The lanes past the last key read biases of other rows' distances; those must not count. */
static void test_bias_of_other_distances_does_not_leak(void **unused)
{
    (void)unused;
    uint32_t state = 8;
    struct batch b = batch_make(19, 1, 4, true, &state);
    struct guarded rel = guarded_floats(2 * 18 + 1, true);
    for (size_t i = 0; i < 2 * 18 + 1; i++)
        rel.data[i] = 0.25f;
    b.args.rel = rel.data;
    b.args.rel_span = 18;
    rel.data[18 + 18] = NAN; /* only row 0 has a key 18 further on */
    check_kinds(&b, 0, 'n', 'f');
    rel.data[18 + 18] = 0.25f;
    rel.data[0] = INFINITY; /* only row 18 has one 18 before it */
    check_kinds(&b, 18, 'n', 'f');
    guarded_free(&rel);
    batch_free(&b);
}

/* ---- windows ---------------------------------------------------------------------------- */

/* Windows narrower than a tile is high, wider than the sequence, and around the lanes; sequences
 * around the window, the parts and the blocks. */
static void test_windows_follow_the_contract(void **unused)
{
    (void)unused;
    static const size_t windows[] = {1, 2, 3, 5, 8, 15, 16, 17, 64};
    static const size_t window_lens[] = {1,   2,   3,   4,   6,   15,  16,  17,  18,
                                         33,  63,  64,  65,  66,  67,  129, 130, 191,
                                         192, 193, 200, 224, 256, 257, 288, 385, 400};
    uint32_t state = 31;
    for (size_t l = 0; l < COUNT(window_lens); l++) {
        for (size_t w = 0; w < COUNT(windows); w++) {
            const size_t dim = dims[(l + w) % COUNT(dims)], len = window_lens[l];
            if (len <= 67 || w % 3 == l % 3)
                check_window(len, 1 + w % 2, len > 67 && dim > 64 ? 24 : dim, (l + w) % 2,
                             windows[w], &state);
        }
    }
    check_window(700, 1, 20, true, 200, &state);
    check_window(640, 1, 33, false, 300, &state);
}

/* The window that reaches every key, or more, is none. */
static void test_a_window_over_everything_is_none(void **unused)
{
    (void)unused;
    static const size_t some[] = {1, 2, 17, 70, 300};
    for (size_t l = 0; l < COUNT(some); l++) {
        const size_t len = some[l], wide[] = {len - 1, len, len + 1, 2 * len + 40, SIZE_MAX};
        uint32_t state = 12;
        struct batch full = batch_make(len, 2, 24, l % 2, &state);
        float *want = batch_expected(&full);
        for (size_t w = len == 1; w < COUNT(wide); w++) {
            const struct rp_attention_kernel *kernels[MAX_KERNELS];
            const size_t n = usable(kernels);
            state = 12;
            struct batch b = batch_make_window(len, 2, 24, l % 2, wide[w], &state);
            for (size_t k = 0; k < n; k++) {
                batch_run_heads(&b, kernels[k]);
                check_bits(&b, want, kernels[k]->name);
            }
            batch_free(&b);
        }
        free(want);
        batch_free(&full);
    }
}

/* Spoils the key, the value or both of some rows: who sees one of them is NaN throughout or, for a
 * value, in that column; who does not has the bits that it had, however query rows are cut. */
static void check_unseen(size_t len, size_t window, bool causal, bool rel, uint32_t *state)
{
    enum { DIM = 20, COLUMN = 17 };
    const struct rp_attention_kernel *kernels[MAX_KERNELS];
    const size_t n = usable(kernels);
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int what = 0; what < 6; what++) {
        const struct shape shape = {
            .len = len, .heads = 1, .dim = DIM, .rel = rel, .window = window, .causal = causal};
        struct batch b = batch_make_shape(&shape, state);
        float *want = batch_expected(&b);
        const size_t spoilt[2] = {next(state) % len, next(state) % len};
        for (size_t k = 0; k < 2; k++) {
            float *row = b.qkv.data + (b.row0 + spoilt[k]) * b.args.ld;
            for (size_t c = 0; c < DIM && what < 3; c++)
                row[DIM + c] = what == 0 ? NAN : bad[what];
            row[2 * DIM + COLUMN] = bad[what % 3];
        }
        for (size_t k = 0; k < n; k++) {
            if (k % 2)
                batch_run_heads(&b, kernels[k]);
            else
                batch_run_split(&b, kernels[k], state);
            for (size_t i = 0; i < len; i++) {
                const float *got = b.out.data + (b.row0 + i) * b.args.ld_out;
                bool sees = false;
                for (size_t s = 0; s < 2; s++)
                    sees |=
                        spoilt[s] >= first_of(&b.args, i) && spoilt[s] < end_of(&b.args, len, i);
                for (size_t c = 0; c < DIM && !sees; c++)
                    if (bits_of(got[c]) != bits_of(want[(b.row0 + i) * b.args.ld_out + c]))
                        fail_msg(
                            "%s: len %zu, window %zu%s, spoilt rows %zu and %zu show in row %zu",
                            kernels[k]->name, len, window, causal ? ", causal" : "", spoilt[0],
                            spoilt[1], i);
                if (sees)
                    assert_false(isfinite(got[COLUMN]));
            }
        }
        free(want);
        batch_free(&b);
    }
}

static void test_what_a_row_does_not_see_does_not_come_in(void **unused)
{
    (void)unused;
    static const size_t shapes[][2] = {{6, 1},  {9, 2},   {40, 3},   {40, 7},   {70, 16},
                                       {90, 5}, {200, 1}, {250, 17}, {400, 64}, {500, 33}};
    uint32_t state = 2024;
    for (size_t s = 0; s < COUNT(shapes); s++)
        for (int rel = 0; rel < 2; rel++)
            check_unseen(shapes[s][0], shapes[s][1], false, rel, &state);
}

static void test_what_comes_later_does_not_come_in(void **unused)
{
    (void)unused;
    static const size_t shapes[][2] = {{2, 0},  {6, 1},   {9, 0},   {40, 3},  {40, 0},
                                       {70, 0}, {90, 16}, {130, 0}, {300, 0}, {400, 64}};
    uint32_t state = 2025;
    for (size_t s = 0; s < COUNT(shapes); s++)
        check_unseen(shapes[s][0], shapes[s][1], true, s % 2, &state);
}

/* Field case A2: equal scores, values that name their position, half a window of 2. */
static void test_the_band_is_inclusive_on_both_sides(void **unused)
{
    (void)unused;
    const struct rp_attention_kernel *kernels[MAX_KERNELS];
    const size_t n = usable(kernels);
    static const int from[] = {0, 0, 0, 1, 2, 3}, to[] = {2, 3, 4, 5, 5, 5};
    uint32_t state = 1;
    struct batch b = batch_make_window(6, 1, 6, false, 2, &state);
    for (size_t i = 0; i < 6; i++) {
        float *row = b.qkv.data + (b.row0 + i) * b.args.ld;
        for (size_t c = 0; c < 6; c++) {
            row[c] = row[6 + c] = 1;
            row[12 + c] = c == i;
        }
    }
    for (size_t k = 0; k < n; k++) {
        batch_run_heads(&b, kernels[k]);
        for (int i = 0; i < 6; i++) {
            for (int j = 0; j < 6; j++) {
                const float weight = b.out.data[(b.row0 + (size_t)i) * b.args.ld_out + (size_t)j];
                const bool seen = j >= from[i] && j <= to[i];
                assert_true(weight == (seen ? 1.0f / (float)(to[i] - from[i] + 1) : 0));
            }
        }
    }
    batch_free(&b);
}

/* ---- causal, shared heads, prefixes ------------------------------------------------------ */

/* Every length up to 200, with the rest by turns. */
static void test_causal_rows_follow_the_contract(void **unused)
{
    (void)unused;
    static const size_t windows[] = {0, 0, 1, 3, 0, 15, 16, 0, 17, 64, 0};
    static const size_t heads_of_8[] = {1, 2, 4, 8};
    uint32_t state = 41;
    for (size_t len = 1; len <= 200; len++) {
        const struct shape shape = {.len = len,
                                    .heads = 1 + len % 2,
                                    .dim = dims[len % COUNT(dims)],
                                    .rel = len % 3 == 0,
                                    .window = windows[len % COUNT(windows)],
                                    .causal = true};
        check(&shape, &state);
        const struct shape shared = {.len = len,
                                     .heads = 8,
                                     .dim = 1 + len % 5,
                                     .window = windows[(len + 3) % COUNT(windows)],
                                     .kv_heads = heads_of_8[len % 4],
                                     .causal = len % 5 > 0};
        if (len < 40 || len % 7 == 0)
            check(&shared, &state);
    }
    const struct shape wide[] = {{.len = 300, .heads = 1, .dim = 5, .rel = true, .causal = true},
                                 {.len = 513, .heads = 2, .dim = 16, .kv_heads = 1, .causal = true},
                                 {.len = 700, .heads = 1, .dim = 8, .window = 300, .causal = true}};
    for (size_t i = 0; i < COUNT(wide); i++)
        check(&wide[i], &state);
}

static void test_shared_heads_of_all_dims(void **unused)
{
    (void)unused;
    static const size_t all_dims[] = {1, 16, 32, 33, 64, 80, 128, 256};
    uint32_t state = 43;
    for (size_t d = 0; d < COUNT(all_dims); d++)
        for (size_t kv_heads = 1; kv_heads <= 8; kv_heads *= 2)
            for (int causal = 0; causal < 2; causal++) {
                const struct shape shape = {.len = 1 + next(&state) % 45,
                                            .heads = 8,
                                            .dim = all_dims[d],
                                            .window = causal && d % 2 ? 9 : 0,
                                            .kv_heads = kv_heads,
                                            .causal = causal,
                                            .prefix = causal ? next(&state) % 20 : 0};
                check(&shape, &state);
            }
}

/* Field case P8: values that name their head. */
static void test_neighbours_share_a_head(void **unused)
{
    (void)unused;
    const struct rp_attention_kernel *kernels[MAX_KERNELS];
    const size_t n = usable(kernels);
    static const float wanted[] = {1, 1, 2, 2}; /* not 1, 2, 1, 2 */
    uint32_t state = 1;
    const struct shape shape = {.len = 5, .heads = 4, .dim = 3, .kv_heads = 2};
    struct batch b = batch_make_shape(&shape, &state);
    for (size_t i = 0; i < 5; i++)
        for (size_t c = 0; c < 6; c++)
            b.qkv.data[(b.row0 + i) * b.args.ld + 18 + c] = c < 3 ? 1 : 2;
    for (size_t k = 0; k < n; k++) {
        batch_run_heads(&b, kernels[k]);
        for (size_t i = 0; i < 5; i++)
            for (size_t c = 0; c < 12; c++) {
                const float got = b.out.data[(b.row0 + i) * b.args.ld_out + c];
                assert_true(fabsf(got - wanted[c / 3]) < 1e-6f);
            }
    }
    batch_free(&b);
}

/* The same rows in one piece: `whole` holds all of them, b the last of them behind a prefix. */
static void check_one_piece(const struct batch *whole, struct batch *b,
                            const struct rp_attention_kernel *kernel, uint32_t *state)
{
    const size_t prefix = b->args.n_prefix, width = b->args.n_heads * b->args.head_dim;
    const struct rp_attention_args *a = &whole->args;
    for (size_t j = 0; j < prefix + b->len; j++) {
        const size_t to = j < prefix ? b->args.prefix_row0 + j : b->row0 + j - prefix;
        memcpy(b->qkv.data + to * b->args.ld, a->qkv + (whole->row0 + j) * a->ld,
               (width + 2 * kv_heads_of(a) * a->head_dim) * sizeof(float));
    }
    batch_run_split(b, kernel, state);
    for (size_t i = 0; i < b->len; i++)
        if (memcmp(b->out.data + (b->row0 + i) * b->args.ld_out,
                   whole->out.data + (whole->row0 + prefix + i) * a->ld_out,
                   width * sizeof(float)) != 0)
            fail_msg("%s: row %zu after a prefix of %zu (window %zu) is not that of one piece",
                     kernel->name, i, prefix, b->args.window);
}

static void test_a_prefix_is_as_one_piece(void **unused)
{
    (void)unused;
    static const size_t prefixes[] = {0, 1, 15, 16, 17, 100}, own[] = {1, 2, 16, 31, 70};
    const struct rp_attention_kernel *kernels[MAX_KERNELS];
    const size_t n = usable(kernels);
    uint32_t state = 47;
    for (size_t p = 0; p < COUNT(prefixes); p++)
        for (size_t o = 0; o < COUNT(own); o++) {
            struct shape shape = {.len = prefixes[p] + own[o],
                                  .heads = 4,
                                  .dim = dims[(p + o) % 8],
                                  .window = (p + o) % 3 == 2 ? 20 : 0,
                                  .kv_heads = 2,
                                  .causal = (p + o) % 4 > 0};
            struct batch whole = batch_make_shape(&shape, &state);
            shape.len = own[o];
            shape.prefix = prefixes[p];
            struct batch b = batch_make_shape(&shape, &state);
            for (size_t k = 0; k < n; k++) {
                batch_run_heads(&whole, kernels[k]);
                check_one_piece(&whole, &b, kernels[k], &state);
            }
            batch_free(&whole);
            batch_free(&b);
        }
}

static void check_counts(size_t len, size_t window, bool causal)
{
    const struct rp_attention_args a = {.window = window, .causal = causal};
    uint64_t pairs = 0;
    for (size_t q = 0; q < len; q++) {
        const size_t first = first_of(&a, q), end = end_of(&a, len, q);
        pairs += end - first;
        assert_int_equal(rp_attention_pairs(len, window, causal, 0, q + 1), pairs);
        assert_int_equal(rp_attention_pairs(len, window, causal, q, q + 1), end - first);
        assert_int_equal(rp_attention_keys(len, window, causal, q, q + 1), end - first);
        assert_int_equal(rp_attention_keys(len, window, causal, 0, q + 1), end);
        assert_int_equal(rp_attention_keys(len, window, causal, q / 2, q + 1),
                         end - first_of(&a, q / 2));
    }
    assert_int_equal(rp_attention_keys(len, window, causal, len / 2, len / 2), 0);
}

/* Scratch that knows the window and not the length, and the count of what is seen. */
static void test_sizes_of_windows(void **unused)
{
    (void)unused;
    size_t bytes, most, full;
    for (size_t window = 1; window < 200; window += 9) {
        assert_true(rp_attention_scratch_bytes((size_t)1 << 40, window, false, 64, true, &most));
        assert_true(rp_attention_scratch_bytes(8192, 0, false, 64, true, &full));
        assert_true(most < full / 4);
        size_t before = 0;
        for (size_t len = 0; len < 1000; len++) {
            assert_true(rp_attention_scratch_bytes(len, window, false, 64, true, &bytes));
            assert_true(bytes >= before && bytes <= most);
            before = bytes;
        }
        assert_int_equal(bytes, most);
        /* which is one-sided when causal */
        assert_true(rp_attention_scratch_bytes((size_t)1 << 40, window, true, 64, true, &bytes));
        assert_true(bytes <= most);
    }
    assert_true(rp_attention_scratch_bytes(8192, 0, true, 64, true, &bytes));
    assert_true(bytes <= full);
    assert_true(rp_attention_scratch_bytes(100, SIZE_MAX, false, 64, false, &bytes));
    assert_true(rp_attention_scratch_bytes(100, 0, false, 64, false, &full));
    assert_int_equal(bytes, full);
    for (size_t len = 1; len < 30; len++) {
        for (size_t window = 0; window < 34; window++) {
            check_counts(len, window, false);
            check_counts(len, window, true);
        }
    }
    assert_int_equal(rp_attention_pairs(0, 0, false, 0, 0), 0);
    assert_int_equal(rp_attention_pairs(0, 4, false, 0, 0), 0);
}

/* ---- long sequences on a small stack (field case A4) ------------------------------------ */

struct long_job {
    struct batch *batch;
    const struct rp_attention_kernel *kernel;
    size_t q0, q1;
};

static void *long_thread(void *arg)
{
    const struct long_job *job = arg;
    batch_run(job->batch, job->kernel, 0, job->q0, job->q1);
    return NULL;
}

static void run_on_small_stack(struct long_job *job)
{
    const long least = sysconf(_SC_THREAD_STACK_MIN);
    pthread_attr_t attr;
    pthread_t thread;
    assert_int_equal(pthread_attr_init(&attr), 0);
    assert_int_equal(pthread_attr_setstacksize(&attr, least > 65536 ? (size_t)least : 65536), 0);
    assert_int_equal(pthread_create(&thread, &attr, long_thread, job), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&attr);
}

/* The first and the last query rows: each sees all keys, and no row sees another. */
static void test_8192_and_8193_rows(void **unused)
{
    (void)unused;
    enum { EDGE = 20 };
    const struct rp_attention_kernel *kernels[MAX_KERNELS];
    const size_t n = usable(kernels);
    uint32_t state = 9;
    for (size_t len = 8192; len <= 8193; len++) {
        struct batch b = batch_make(len, 1, 8, len % 2, &state);
        float *s = malloc(len * sizeof *s), *want = malloc(len * 8 * sizeof *want);
        assert_true(s && want);
        for (size_t i = 0; i < len; i = i + 1 == EDGE ? len - EDGE : i + 1)
            contract_row(&b.args, b.row0, len, 0, i, s, want + 8 * i);
        for (size_t k = 0; k < n; k++) {
            batch_clear(&b);
            run_on_small_stack(&(struct long_job){&b, kernels[k], 0, EDGE});
            run_on_small_stack(&(struct long_job){&b, kernels[k], len - EDGE, len});
            for (size_t i = 0; i < len; i = i + 1 == EDGE ? len - EDGE : i + 1)
                assert_memory_equal(b.out.data + (b.row0 + i) * b.args.ld_out, want + 8 * i,
                                    8 * sizeof *want);
        }
        free(want);
        free(s);
        batch_free(&b);
    }
}

/* ---- sizes, shares, buckets ------------------------------------------------------------- */

static void test_scratch_sizes(void **unused)
{
    (void)unused;
    size_t bytes = 0, before = 0;
    for (size_t len = 0; len < 3000; len++) {
        assert_true(rp_attention_scratch_bytes(len, 0, false, 33, len % 2, &bytes));
        assert_int_equal(bytes % 64, 0);
        assert_true(rp_attention_scratch_bytes(len, 0, false, 33, true, &bytes));
        assert_true(bytes >= before); /* what serves a length serves all shorter ones */
        before = bytes;
    }
    /* Past 31 and 32 bits the sizes still are what they are: K and V alone take this. */
    assert_true(rp_attention_scratch_bytes((size_t)1 << 27, 0, false, 64, false, &bytes));
    assert_true(bytes > ((uint64_t)2 << 27) * 64 * 4);
    assert_true(bytes < ((uint64_t)3 << 27) * 64 * 4);
    static const size_t absurd[][2] = {{SIZE_MAX, 1},         {SIZE_MAX - 15, 64},
                                       {1, SIZE_MAX},         {64, SIZE_MAX / 64},
                                       {SIZE_MAX / 4, 1},     {SIZE_MAX / 16, 1},
                                       {SIZE_MAX / 512, 64},  {(size_t)1 << 33, (size_t)1 << 31},
                                       {SIZE_MAX / 2 + 1, 2}, {16, SIZE_MAX / 96}};
    for (size_t i = 0; i < COUNT(absurd); i++) {
        bytes = 4242;
        assert_false(
            rp_attention_scratch_bytes(absurd[i][0], 0, false, absurd[i][1], true, &bytes));
        assert_int_equal(bytes, 4242);
    }
}

static void test_query_rows(void **unused)
{
    (void)unused;
    assert_int_equal(rp_attention_query_rows(0, 12, 4), 0);
    assert_int_equal(rp_attention_query_rows(512, 12, 1), 512);
    assert_int_equal(rp_attention_query_rows(512, 12, 2), 512);      /* six each */
    assert_int_equal(rp_attention_query_rows(512, 12 * 32, 8), 512); /* pairs enough */
    assert_int_equal(rp_attention_query_rows(40, 1, 64), 40);        /* too short to pay */
    assert_true(rp_attention_query_rows(512, 1, 4) <= 132);
    assert_true(rp_attention_query_rows(512, 12, 8) < 512); /* two rounds, the second half empty */
    for (size_t len = 0; len < 700; len += 7) {
        for (size_t pairs = 0; pairs < 40; pairs += 3) {
            for (size_t workers = 0; workers < 40; workers += 3) {
                const size_t rows = rp_attention_query_rows(len, pairs, workers);
                assert_true(rows <= len && (rows > 0 || len == 0));
                assert_true(rows >= 48 || rows == len);
            }
        }
    }
    assert_int_equal(rp_attention_query_rows(100, SIZE_MAX, SIZE_MAX), 100);
    assert_true(rp_attention_query_rows(1000, 1, SIZE_MAX) >= 48);
}

/* Hugging Face's formula, on this machine's single-precision logarithm. */
static int32_t bucket_formula(long distance, int32_t n_buckets, int32_t max_distance)
{
    const int32_t half = n_buckets / 2, exact = half / 2, n = (int32_t)labs(distance);
    const int32_t side = distance > 0 ? half : 0;
    if (n < exact)
        return side + n;
    const float range = (float)log((double)max_distance / exact);
    const int32_t large =
        exact + (int32_t)(logf((float)n / (float)exact) / range * (float)(half - exact));
    return side + (large < half - 1 ? large : half - 1);
}

static void test_buckets_of_mpnet(void **unused)
{
    (void)unused;
    static const int32_t known[][2] = {{-200, 15}, {-128, 15}, {-16, 10}, {-9, 8},  {-8, 8},
                                       {-7, 7},    {-1, 1},    {0, 0},    {1, 17},  {7, 23},
                                       {8, 24},    {16, 26},   {90, 30},  {91, 31}, {127, 31},
                                       {128, 31},  {200, 31}};
    for (size_t i = 0; i < COUNT(known); i++)
        assert_int_equal(rp_attention_rel_bucket(known[i][0], 32, 128), known[i][1]);
    /* 8 * 2^(k/2), rounded up: where the buckets past the exact ones begin */
    static const long begins[] = {8, 12, 16, 23, 32, 46, 64, 91};
    for (long distance = -511; distance <= 511; distance++) {
        int32_t bucket = (int32_t)labs(distance);
        for (size_t i = 0; i < COUNT(begins) && labs(distance) >= 8; i++)
            bucket = labs(distance) >= begins[i] ? 8 + (int32_t)i : bucket;
        assert_int_equal(rp_attention_rel_bucket(distance, 32, 128),
                         bucket + (distance > 0 ? 16 : 0));
        assert_int_equal(bucket_formula(distance, 32, 128), bucket + (distance > 0 ? 16 : 0));
    }
}

static void test_buckets_of_other_tables(void **unused)
{
    (void)unused;
    static const int32_t tables[][2] = {{32, 128}, {64, 256},  {16, 100},
                                        {32, 9},   {40, 1000}, {4, 2}};
    for (size_t i = 0; i < COUNT(tables); i++) {
        for (long distance = -1500; distance <= 1500; distance++)
            assert_int_equal(rp_attention_rel_bucket(distance, tables[i][0], tables[i][1]),
                             bucket_formula(distance, tables[i][0], tables[i][1]));
    }
    assert_int_equal(rp_attention_rel_bucket(INT64_MIN, 32, 128), 15);
    assert_int_equal(rp_attention_rel_bucket(INT64_MAX, 32, 128), 31);
    /* Tables that make no sense still give a bucket that exists. */
    static const int32_t odd[][2] = {{0, 0}, {1, 5},   {2, 1},  {3, 1},
                                     {6, 0}, {32, -1}, {32, 8}, {-4, 3}};
    for (size_t i = 0; i < COUNT(odd); i++) {
        for (long distance = -40; distance <= 40; distance++) {
            const int32_t bucket = rp_attention_rel_bucket(distance, odd[i][0], odd[i][1]);
            assert_true(bucket >= 0 && (bucket < odd[i][0] || bucket == 0));
        }
    }
}

static void test_selection(void **unused)
{
    (void)unused;
    size_t n;
    const struct rp_attention_kernel *const *all = rp_attention_all(&n);
    assert_int_equal(all[0]->isa, RP_ISA_SCALAR);
    assert_ptr_equal(rp_attention_select(RP_ISA_SCALAR), all[0]);
    for (size_t i = 0; i < n; i++)
        assert_ptr_equal(rp_attention_select(all[i]->isa), all[i]);
    assert_ptr_equal(rp_attention_select(UINT32_MAX), all[n - 1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_kernel_follows_the_contract),
        cmocka_unit_test(test_long_rows_follow_the_contract),
        cmocka_unit_test(test_single_rows_go_where_they_are_wanted),
        cmocka_unit_test(test_nothing_to_do_touches_nothing),
        cmocka_unit_test(test_golden_digests),
        cmocka_unit_test(test_near_to_double_precision),
        cmocka_unit_test(test_what_is_not_finite_shows),
        cmocka_unit_test(test_minus_infinity_weighs_nothing),
        cmocka_unit_test(test_bias_of_other_distances_does_not_leak),
        cmocka_unit_test(test_windows_follow_the_contract),
        cmocka_unit_test(test_a_window_over_everything_is_none),
        cmocka_unit_test(test_what_a_row_does_not_see_does_not_come_in),
        cmocka_unit_test(test_the_band_is_inclusive_on_both_sides),
        cmocka_unit_test(test_what_comes_later_does_not_come_in),
        cmocka_unit_test(test_causal_rows_follow_the_contract),
        cmocka_unit_test(test_shared_heads_of_all_dims),
        cmocka_unit_test(test_neighbours_share_a_head),
        cmocka_unit_test(test_a_prefix_is_as_one_piece),
        cmocka_unit_test(test_sizes_of_windows),
        cmocka_unit_test(test_8192_and_8193_rows),
        cmocka_unit_test(test_scratch_sizes),
        cmocka_unit_test(test_query_rows),
        cmocka_unit_test(test_buckets_of_mpnet),
        cmocka_unit_test(test_buckets_of_other_tables),
        cmocka_unit_test(test_selection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
