/* The gated delta block as one call: to the bit the separate calls one after the other, near a
 * recurrence in double, and a call that fails leaves all that slots hold as it was. */
#define _GNU_SOURCE 1
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <rankplan/rankplan.h>

#include "gdn/state.h"
#include "ops/ops.h"
#include "tests/alloc_count.h"
#include "tests/floats.h"
#include "tests/toy.h"

#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

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

/* ---- a block and its rows ----------------------------------------------------------------------
 */

enum { Q, K, V, Z, B, A, N_PARTS };
enum { GAP = 3, MAX_SLOTS = 8, QKVZ = N_PARTS, BA, N_INPUTS };

struct form {
    rp_gdn gdn;
    size_t kernel, n;
    bool packed, linear_rate, bare; /* without biases and weight of the norm */
    bool ba_apart;                  /* though the rest is packed */
    rp_dtype dtype;                 /* of the rows */
    const rp_dtype *dtypes;         /* of each input, where they differ; NULL: they do not */
    float beta_scale;
    rp_activation conv_activation, gate_activation;
    size_t parts; /* of a key head's value heads in test_one_row_each; 0: not cut */
};

/* The rows twice: as floats, a part beside the other, and as the call gets them, in memory that
 * ends at a page which faults. */
struct net {
    struct form form;
    const struct rp_ops *ops;
    size_t heads, per_key, dk, dv, keys, values, channels, wide;
    size_t first[N_PARTS], width[N_PARTS]; /* columns of the floats */
    float *x;                              /* [n][wide] */
    void *inputs[N_INPUTS];
    size_t ld[N_INPUTS], bytes[N_INPUTS];
    float *conv_w, *conv_b, *a_log, *dt_bias, *norm_w, *out;
};

static float *guarded(uint64_t *seed, size_t n)
{
    float *x = guard_alloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = random_float(seed, 1.0f);
    return x;
}

static size_t head_of(const struct net *net, size_t key_head, size_t i)
{
    return net->form.gdn.map == RP_GDN_TILED ? key_head + i * (size_t)net->form.gdn.n_key_heads
                                             : key_head * net->per_key + i;
}

/* Where the call finds a part. */
static int input_of(const struct form *form, int part)
{
    if (part <= Z)
        return form->packed ? QKVZ : part;
    return form->packed && !form->ba_apart ? BA : part;
}

static rp_dtype dtype_of(const struct net *net, int input)
{
    return net->form.dtypes ? net->form.dtypes[input] : net->form.dtype;
}

static size_t size_of(const struct net *net, int input)
{
    return dtype_of(net, input) == RP_DTYPE_F32 ? sizeof(float) : sizeof(uint16_t);
}

/* n numbers of part `part` to where they stand among an input's. */
static void put(struct net *net, int input, size_t row, size_t column, int part, size_t from,
                size_t n)
{
    const size_t size = size_of(net, input);
    char *to = (char *)net->inputs[input] + (row * net->ld[input] + column) * size;
    net->ops->narrow(dtype_of(net, input), net->x + row * net->wide + net->first[part] + from, to,
                     n);
}

static void put_row(struct net *net, size_t row)
{
    for (int part = 0; part < N_PARTS; part++) {
        if (input_of(&net->form, part) == part)
            put(net, part, row, 0, part, 0, net->width[part]);
    }
    const size_t dk = net->dk, dv = net->dv;
    for (size_t h = 0, at = 0, gates = 0; net->form.packed && h < net->keys / dk; h++) {
        put(net, QKVZ, row, at, Q, h * dk, dk);
        put(net, QKVZ, row, at + dk, K, h * dk, dk);
        at += 2 * dk;
        for (int part = V; part <= Z; part++) {
            for (size_t i = 0; i < net->per_key; i++, at += dv)
                put(net, QKVZ, row, at, part, head_of(net, h, i) * dv, dv);
        }
        for (int part = B; part <= A && !net->form.ba_apart; part++) {
            for (size_t i = 0; i < net->per_key; i++)
                put(net, BA, row, gates++, part, head_of(net, h, i), 1);
        }
    }
}

/* Numbers that the part's input can hold. */
static void fill(struct net *net, size_t row, int part, uint64_t *seed)
{
    const rp_dtype dtype = dtype_of(net, input_of(&net->form, part));
    float *x = net->x + row * net->wide + net->first[part];
    for (size_t i = 0; i < net->width[part]; i++) {
        uint16_t half;
        x[i] = random_float(seed, 2.0f);
        if (dtype != RP_DTYPE_F32) {
            net->ops->narrow(dtype, &x[i], &half, 1);
            net->ops->widen(dtype, &half, &x[i], 1);
        }
    }
}

static void make_rows(struct net *net, uint64_t *seed)
{
    const size_t widths[N_INPUTS] = {net->keys,
                                     net->keys,
                                     net->values,
                                     net->values,
                                     net->heads,
                                     net->heads,
                                     net->channels + net->values,
                                     2 * net->heads};
    const size_t n = net->form.n;
    for (int part = 0; part < N_PARTS; part++) {
        const int i = input_of(&net->form, part);
        net->width[part] = widths[part];
        net->first[part] = part ? net->first[part - 1] + net->width[part - 1] : 0;
        if (net->inputs[i])
            continue;
        net->ld[i] = widths[i] + GAP;
        net->bytes[i] = ((n - 1) * net->ld[i] + widths[i]) * size_of(net, i);
        net->inputs[i] = guard_alloc(net->bytes[i]);
        memset(net->inputs[i], 0xff, net->bytes[i]); /* NaN in the gaps */
    }
    net->x = malloc(n * net->wide * sizeof *net->x);
    assert_non_null(net->x);
    for (size_t row = 0; row < n; row++) {
        for (int part = 0; part < N_PARTS; part++)
            fill(net, row, part, seed);
        put_row(net, row);
    }
}

static struct net make_net(const struct form *form, uint64_t seed)
{
    struct net net = {.form = *form, .ops = rp_ops_select(rp_isa_detected())};
    const rp_gdn *g = &form->gdn;
    net.heads = (size_t)g->n_value_heads;
    net.per_key = net.heads / (size_t)g->n_key_heads;
    net.dk = (size_t)g->key_dim;
    net.dv = (size_t)g->value_dim;
    net.keys = (size_t)g->n_key_heads * net.dk;
    net.values = net.heads * net.dv;
    net.channels = 2 * net.keys + net.values;
    net.wide = net.channels + net.values + 2 * net.heads;
    make_rows(&net, &seed);
    net.conv_w = guarded(&seed, net.channels * form->kernel);
    net.conv_b = guarded(&seed, net.channels);
    net.a_log = guarded(&seed, net.heads);
    net.dt_bias = guarded(&seed, net.heads);
    net.norm_w = guarded(&seed, net.dv);
    net.out = guarded(&seed, form->n * (net.values + GAP));
    for (size_t h = 0; h < net.heads && form->linear_rate; h++)
        net.a_log[h] = -expf(net.a_log[h]);
    return net;
}

static void free_net(struct net *net)
{
    for (int i = 0; i < N_INPUTS; i++) {
        if (net->inputs[i])
            guard_free(net->inputs[i], net->bytes[i]);
    }
    free(net->x);
    guard_free(net->conv_w, net->channels * net->form.kernel * sizeof(float));
    guard_free(net->conv_b, net->channels * sizeof(float));
    guard_free(net->a_log, net->heads * sizeof(float));
    guard_free(net->dt_bias, net->heads * sizeof(float));
    guard_free(net->norm_w, net->dv * sizeof(float));
    guard_free(net->out, net->form.n * (net->values + GAP) * sizeof(float));
}

static rp_gdn_block block_of(const struct net *net)
{
    rp_gdn_block b;
    rp_gdn_block_init(&b);
    b.conv_w = net->conv_w;
    b.conv_b = net->form.bare ? NULL : net->conv_b;
    b.a_log = net->a_log;
    b.dt_bias = net->form.bare ? NULL : net->dt_bias;
    b.norm_w = net->form.bare ? NULL : net->norm_w;
    b.linear_rate = net->form.linear_rate;
    b.beta_scale = net->form.beta_scale;
    b.conv_activation = net->form.conv_activation;
    b.gate_activation = net->form.gate_activation;
    return b;
}

static rp_gdn_projection projection(const struct net *net, int input, size_t row0)
{
    if (!net->inputs[input])
        return (rp_gdn_projection){0};
    return (rp_gdn_projection){(const char *)net->inputs[input] +
                                   row0 * net->ld[input] * size_of(net, input),
                               net->ld[input], dtype_of(net, input)};
}

static rp_gdn_block_batch batch_of(const struct net *net, size_t row0, size_t n_seqs,
                                   const int32_t *slots, const int32_t *cu)
{
    rp_gdn_block_batch b;
    rp_gdn_block_batch_init(&b);
    b.n_seqs = n_seqs;
    b.slots = slots;
    b.cu = cu;
    b.q = projection(net, Q, row0);
    b.k = projection(net, K, row0);
    b.v = projection(net, V, row0);
    b.z = projection(net, Z, row0);
    b.b = projection(net, B, row0);
    b.a = projection(net, A, row0);
    b.qkvz = projection(net, QKVZ, row0);
    b.ba = projection(net, BA, row0);
    b.out = net->out + row0 * (net->values + GAP);
    b.ld_out = net->values + GAP;
    return b;
}

static void run_call(rp_gdn_states *s, const struct net *net, size_t row0, size_t n, int32_t slot)
{
    const int32_t cu[] = {0, (int32_t)n};
    const rp_gdn_block block = block_of(net);
    const rp_gdn_block_batch b = batch_of(net, row0, 1, &slot, cu);
    MUST(rp_gdn_run_block(s, &block, &b, ERR));
}

/* ---- the same by separate calls ----------------------------------------------------------------
 */

static void convolve(rp_gdn_states *s, const struct net *net, const float *x, size_t n,
                     int32_t slot, float *out)
{
    const rp_gdn_block block = block_of(net);
    const int32_t cu[] = {0, (int32_t)n};
    rp_gdn_conv_batch conv;
    rp_gdn_conv_batch_init(&conv);
    conv.n_seqs = 1;
    conv.slots = &slot;
    conv.cu = cu;
    conv.x = (rp_gdn_input){x, net->wide};
    conv.w = block.conv_w;
    conv.b = block.conv_b;
    conv.activation = block.conv_activation;
    conv.out = out;
    conv.ld_out = net->channels;
    MUST(rp_gdn_conv(s, &conv, ERR));
}

static void run_rule(rp_gdn_states *s, const struct net *net, const float *qkv, const float *gates,
                     size_t n, int32_t slot, float *out)
{
    const int32_t cu[] = {0, (int32_t)n};
    rp_gdn_batch b;
    rp_gdn_batch_init(&b);
    b.n_seqs = 1;
    b.slots = &slot;
    b.cu = cu;
    b.q = (rp_gdn_input){qkv, net->channels};
    b.k = (rp_gdn_input){qkv + net->keys, net->channels};
    b.v = (rp_gdn_input){qkv + 2 * net->keys, net->channels};
    b.decay = (rp_gdn_input){gates, 2 * net->heads};
    b.beta = (rp_gdn_input){gates + net->heads, 2 * net->heads};
    b.out = out;
    b.ld_out = net->values;
    MUST(rp_gdn_run(s, &b, ERR));
}

/* Out of the floats, into `out` as net->out lies. */
static void run_apart(rp_gdn_states *s, const struct net *net, size_t row0, size_t n, int32_t slot,
                      float *out)
{
    const rp_gdn_block block = block_of(net);
    const float *x = net->x + row0 * net->wide;
    float *qkv = malloc(n * (net->channels + net->values + 2 * net->heads) * sizeof *qkv);
    assert_non_null(qkv);
    float *rule = qkv + n * net->channels, *gates = rule + n * net->values;
    const struct rp_ops_gdn_gates g = {.n_heads = net->heads,
                                       .a_column = net->first[A],
                                       .b_column = net->first[B],
                                       .a_log = block.a_log,
                                       .dt_bias = block.dt_bias,
                                       .linear_rate = block.linear_rate,
                                       .beta_scale = block.beta_scale > 0 ? block.beta_scale : 1};
    const struct rp_ops_rms_norm norm = {
        .w = block.norm_w, .eps = block.norm_eps, .n_heads = net->heads, .head_dim = net->dv};
    convolve(s, net, x, n, slot, qkv);
    net->ops->gdn_gates(&g, x, net->wide, gates, 2 * net->heads, n);
    run_rule(s, net, qkv, gates, n, slot, rule);
    net->ops->gated_norm(&norm, block.gate_activation, x + net->first[Z], net->wide, rule,
                         net->values, net->values, out + row0 * (net->values + GAP),
                         net->values + GAP, n);
    free(qkv);
}

/* ---- what slots hold ---------------------------------------------------------------------------
 */

static rp_gdn_states_options options_of(const struct net *net)
{
    rp_gdn_states_options o;
    rp_gdn_states_options_init(&o);
    o.gdn = net->form.gdn;
    o.n_slots = MAX_SLOTS;
    o.conv_channels = net->channels;
    o.conv_kernel = net->form.kernel;
    return o;
}

static rp_gdn_states *states_of(const rp_gdn_states_options *o)
{
    rp_gdn_states *s = NULL;
    MUST(rp_gdn_states_create(o, &s, ERR));
    return s;
}

static size_t state_floats(const struct net *net)
{
    return net->heads * net->dk * net->dv;
}

static size_t kept_floats(const struct net *net)
{
    return (net->form.kernel - 1) * net->channels;
}

/* The state, then what is kept of the convolution. */
static float *held_by(const rp_gdn_states *s, const struct net *net, int32_t slot)
{
    float *x = malloc((state_floats(net) + kept_floats(net) + 1) * sizeof *x);
    assert_non_null(x);
    MUST(rp_gdn_states_get(s, slot, RP_GDN_KEY_VALUE, x, ERR));
    MUST(rp_gdn_states_get_conv(s, slot, x + state_floats(net), ERR));
    return x;
}

static void assert_holds(const rp_gdn_states *s, const struct net *net, int32_t slot,
                         const float *want)
{
    float *x = held_by(s, net, slot);
    assert_memory_equal(x, want, (state_floats(net) + kept_floats(net)) * sizeof *x);
    free(x);
}

static void set_random(rp_gdn_states *s, const struct net *net, int32_t slot, uint64_t seed)
{
    float *x = malloc((state_floats(net) + kept_floats(net) + 1) * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < state_floats(net) + kept_floats(net); i++)
        x[i] = random_float(&seed, 0.2f);
    MUST(rp_gdn_states_set(s, slot, RP_GDN_KEY_VALUE, x, ERR));
    MUST(rp_gdn_states_set_conv(s, slot, x + state_floats(net), ERR));
    free(x);
}

/* ---- the bits of the separate calls ------------------------------------------------------------
 */

static const int32_t ragged[] = {0, 1, 1, 40, 105, 107};
static const int32_t ragged_slots[] = {6, 2, 0, 3, 5};
enum { RAGGED = 5, RAGGED_ROWS = 107 };

struct where {
    int threads;
    bool in_place;
    bool linear_decay; /* of the states, which says nothing here */
    rp_dtype dtype;    /* of the states */
    uint32_t isa;
};

static bool out_is(const struct net *net, const float *want, size_t n)
{
    for (size_t r = 0; r < n; r++) {
        const size_t at = r * (net->values + GAP);
        if (memcmp(net->out + at, want + at, net->values * sizeof *want) != 0)
            return false;
    }
    return true;
}

/* A ragged batch in one call, against each of its sequences by separate calls on one thread, from
 * states that are not zeros, twice; gaps of rows, other slots and the allocator are left alone. */
static void check_bits(const struct form *form, const struct where *where)
{
    struct net net = make_net(form, 9);
    rp_pool *pool = toy_pool(where->threads);
    rp_gdn_states_options o = options_of(&net);
    o.dtype = where->dtype;
    rp_gdn_states *apart = states_of(&o);
    o.pool = pool;
    o.in_place = where->in_place;
    o.linear_decay = where->linear_decay;
    o.isa = where->isa;
    rp_gdn_states *s = states_of(&o);
    for (int32_t i = 0; i < RAGGED; i++) {
        set_random(s, &net, ragged_slots[i], (uint64_t)i);
        set_random(apart, &net, i, (uint64_t)i);
    }
    set_random(s, &net, 1, 1234);
    float *other = held_by(s, &net, 1), *want = malloc(form->n * (net.values + GAP) * sizeof *want);
    assert_non_null(want);
    memcpy(want, net.out, form->n * (net.values + GAP) * sizeof *want);
    const rp_gdn_block block = block_of(&net);
    const rp_gdn_block_batch b = batch_of(&net, 0, RAGGED, ragged_slots, ragged);
    for (int round = 0; round < 2; round++) {
        for (int32_t i = 0; i < RAGGED; i++) {
            if (ragged[i + 1] > ragged[i])
                run_apart(apart, &net, (size_t)ragged[i], (size_t)(ragged[i + 1] - ragged[i]), i,
                          want);
        }
        const size_t count = alloc_count();
        MUST(rp_gdn_run_block(s, &block, &b, ERR));
        if (alloc_count_available())
            assert_int_equal(alloc_count(), count);
        assert_memory_equal(net.out, want, form->n * (net.values + GAP) * sizeof *want);
    }
    for (int32_t i = 0; i < RAGGED; i++) {
        float *held = held_by(apart, &net, i);
        assert_holds(s, &net, ragged_slots[i], held);
        free(held);
    }
    assert_holds(s, &net, 1, other);
    free(other);
    free(want);
    rp_gdn_states_destroy(s);
    rp_gdn_states_destroy(apart);
    rp_pool_destroy(pool);
    free_net(&net);
}

static const struct form forms[] = {
    {.gdn = {2, 4, 24, 20, RP_GDN_GROUPED, RP_GDN_NORM_ROOT, 1e-6f, 0},
     .kernel = 4,
     .packed = true,
     .conv_activation = RP_ACT_SILU,
     .gate_activation = RP_ACT_SILU},
    {.gdn = {2, 6, 16, 48, RP_GDN_TILED, RP_GDN_NORM_MAX, 1e-6f, 1},
     .kernel = 8,
     .packed = true,
     .linear_rate = true,
     .dtype = RP_DTYPE_F16,
     .beta_scale = 2,
     .conv_activation = RP_ACT_SILU,
     .gate_activation = RP_ACT_SIGMOID},
    {.gdn = {1, 4, 33, 32, RP_GDN_TILED, RP_GDN_NORM_ROOT, 1e-3f, 0},
     .kernel = 2,
     .linear_rate = true,
     .dtype = RP_DTYPE_BF16,
     .conv_activation = RP_ACT_SILU,
     .gate_activation = RP_ACT_SILU},
    {.gdn = {3, 3, 7, 17, RP_GDN_GROUPED, RP_GDN_NORM_ROOT, 1e-6f, 0},
     .kernel = 1,
     .bare = true,
     .conv_activation = RP_ACT_NONE,
     .gate_activation = RP_ACT_SILU},
    {.gdn = {1, 2, 128, 128, RP_GDN_GROUPED, RP_GDN_NORM_ROOT, 1e-6f, 0},
     .kernel = 4,
     .packed = true,
     .bare = true,
     .dtype = RP_DTYPE_F16,
     .conv_activation = RP_ACT_SILU,
     .gate_activation = RP_ACT_SILU,
     .parts = 2},
    {.gdn = {2, 4, 64, 16, RP_GDN_TILED, RP_GDN_NORM_ROOT, 1e-6f, 0},
     .kernel = 4,
     .dtypes = (const rp_dtype[N_INPUTS]){[Z] = RP_DTYPE_F16, [B] = RP_DTYPE_BF16},
     .conv_activation = RP_ACT_SILU,
     .gate_activation = RP_ACT_SILU},
    {.gdn = {1, 8, 128, 48, RP_GDN_TILED, RP_GDN_NORM_ROOT, 1e-6f, 0},
     .kernel = 4,
     .conv_activation = RP_ACT_SILU,
     .gate_activation = RP_ACT_SILU,
     .parts = 3},
    /* A cut every four heads: their 80 columns are the first that end with a vector. */
    {.gdn = {1, 12, 128, 20, RP_GDN_GROUPED, RP_GDN_NORM_ROOT, 1e-6f, 0},
     .kernel = 4,
     .packed = true,
     .dtypes = (const rp_dtype[N_INPUTS]){[QKVZ] = RP_DTYPE_BF16, [BA] = RP_DTYPE_F32},
     .conv_activation = RP_ACT_SILU,
     .gate_activation = RP_ACT_SILU,
     .parts = 2},
    {.gdn = {2, 4, 17, 9, RP_GDN_TILED, RP_GDN_NORM_ROOT, 1e-6f, 0},
     .kernel = 3,
     .packed = true,
     .ba_apart = true,
     .conv_activation = RP_ACT_SILU,
     .gate_activation = RP_ACT_SILU},
};

static void test_bits_of_the_separate_calls(void **state)
{
    (void)state;
    static const struct where places[] = {
        {.threads = 1, .isa = RP_ISA_DEFAULT},
        {.threads = 2, .in_place = true, .linear_decay = true, .isa = RP_ISA_SCALAR},
        {.threads = 3, .dtype = RP_DTYPE_BF16, .isa = RP_ISA_DEFAULT},
        {.threads = 7,
         .in_place = true,
         .dtype = RP_DTYPE_F16,
         .isa = RP_ISA_SCALAR | RP_ISA_AVX2}};
    for (size_t i = 0; i < COUNT(forms); i++) {
        struct form form = forms[i];
        form.n = RAGGED_ROWS;
        for (size_t j = 0; j < COUNT(places); j++)
            check_bits(&form, &places[j]);
    }
}

/* A kernel that counts its calls, each of which is a task where there is one chunk of rows. */
static atomic_size_t tasks_run;
static const struct rp_gdn_kernel *counted;

static void run_counted(const struct rp_gdn_args *args, const struct rp_gdn_rows *pieces, size_t n,
                        size_t key_head, size_t c0, size_t c1, float *state, void *scratch)
{
    tasks_run++;
    counted->run(args, pieces, n, key_head, c0, c1, state, scratch);
}

static void count_tasks(rp_gdn_states *s, struct rp_gdn_kernel *kernel)
{
    counted = s->kernel;
    *kernel = *counted;
    kernel->run = run_counted;
    s->kernel = kernel;
}

/* One row a sequence, on more threads than there are key heads: value heads are shared out, where
 * there are enough of them. */
static void test_one_row_each(void **state)
{
    (void)state;
    static const int32_t slots[] = {4, 1, 7, 0};
    for (size_t i = 0; i < COUNT(forms); i++) {
        struct form form = forms[i];
        form.n = 4;
        struct net net = make_net(&form, 3);
        rp_pool *pool = toy_pool(7);
        rp_gdn_states_options o = options_of(&net);
        rp_gdn_states *apart = states_of(&o);
        o.pool = pool;
        rp_gdn_states *s = states_of(&o);
        struct rp_gdn_kernel kernel;
        count_tasks(s, &kernel);
        float *want = calloc(4 * (net.values + GAP), sizeof *want);
        assert_non_null(want);
        const rp_gdn_block block = block_of(&net);
        const rp_gdn_block_batch b = batch_of(&net, 0, 4, slots, NULL);
        for (int round = 0; round < 3; round++) {
            for (size_t r = 0; r < 4; r++)
                run_apart(apart, &net, r, 1, slots[r], want);
            tasks_run = 0;
            MUST(rp_gdn_run_block(s, &block, &b, ERR));
            assert_true(out_is(&net, want, 4));
            assert_int_equal(tasks_run,
                             4 * (size_t)form.gdn.n_key_heads * (form.parts ? form.parts : 1));
        }
        free(want);
        rp_gdn_states_destroy(s);
        rp_gdn_states_destroy(apart);
        rp_pool_destroy(pool);
        free_net(&net);
    }
}

/* ---- in double ---------------------------------------------------------------------------------
 */

static double silu(double x)
{
    return x / (1 + exp(-x));
}

/* Channels [c, c + n) of a row behind the convolution, which began with zeros. */
static void exact_conv(const struct net *net, size_t row, size_t c, size_t n, double *to)
{
    const size_t kernel = net->form.kernel;
    for (size_t i = 0; i < n; i++) {
        double sum = net->form.bare ? 0 : (double)net->conv_b[c + i];
        for (size_t j = 0; j < kernel; j++) {
            if (row + j + 1 >= kernel)
                sum += (double)net->conv_w[(c + i) * kernel + j] *
                       (double)net->x[(row + j + 1 - kernel) * net->wide + c + i];
        }
        to[i] = silu(sum);
    }
}

static void unit(double *x, size_t n, double scale)
{
    double sum = 1e-6;
    for (size_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (size_t i = 0; i < n; i++)
        x[i] *= scale / sqrt(sum);
}

struct exact {
    double q[128], k[128], v[128], out[128], s[128 * 128];
};

static void exact_rule(const struct net *net, struct exact *e, double decay, double beta)
{
    const size_t dk = net->dk, dv = net->dv;
    for (size_t j = 0; j < dv; j++) {
        double seen = 0;
        e->out[j] = 0;
        for (size_t i = 0; i < dk; i++)
            seen += e->k[i] * (e->s[i * dv + j] *= decay);
        for (size_t i = 0; i < dk; i++)
            e->out[j] += e->q[i] * (e->s[i * dv + j] += e->k[i] * beta * (e->v[j] - seen));
    }
}

static void exact_row(const struct net *net, struct exact *e, size_t row, size_t key_head,
                      size_t head)
{
    const float *x = net->x + row * net->wide;
    const size_t dk = net->dk, dv = net->dv;
    const double a =
        (double)x[net->first[A] + head] + (net->form.bare ? 0 : (double)net->dt_bias[head]);
    const double rate = (double)net->a_log[head];
    double squares = 0;
    exact_conv(net, row, key_head * dk, dk, e->q);
    exact_conv(net, row, net->keys + key_head * dk, dk, e->k);
    exact_conv(net, row, 2 * net->keys + head * dv, dv, e->v);
    unit(e->q, dk, 1 / sqrt((double)dk));
    unit(e->k, dk, 1);
    exact_rule(net, e, exp((net->form.linear_rate ? rate : -exp(rate)) * log1p(exp(a))),
               1 / (1 + exp(-(double)x[net->first[B] + head])));
    for (size_t j = 0; j < dv; j++)
        squares += e->out[j] * e->out[j];
    for (size_t j = 0; j < dv; j++)
        e->out[j] *= (net->form.bare ? 1 : (double)net->norm_w[j]) /
                     sqrt(squares / (double)dv + 1e-6) *
                     silu((double)x[net->first[Z] + head * dv + j]);
}

/* Largest differences of net->out and of the slot's state from the recurrence in double. */
static void measure(const struct net *net, const rp_gdn_states *s, int32_t slot, double *out_error,
                    double *state_error)
{
    static struct exact e;
    float *held = held_by(s, net, slot);
    const size_t head_floats = net->dk * net->dv;
    *out_error = *state_error = 0;
    for (size_t h = 0; h < net->keys / net->dk; h++) {
        for (size_t i = 0; i < net->per_key; i++) {
            const size_t head = head_of(net, h, i);
            memset(e.s, 0, sizeof e.s);
            for (size_t row = 0; row < net->form.n; row++) {
                const float *out = net->out + row * (net->values + GAP) + head * net->dv;
                exact_row(net, &e, row, h, head);
                for (size_t j = 0; j < net->dv; j++)
                    *out_error = fmax(*out_error, fabs(e.out[j] - (double)out[j]));
            }
            for (size_t j = 0; j < head_floats; j++)
                *state_error =
                    fmax(*state_error, fabs(e.s[j] - (double)held[head * head_floats + j]));
        }
    }
    free(held);
}

/* Largest difference of what two slots hold. */
static double between(const rp_gdn_states *s, const struct net *net, int32_t a, int32_t b)
{
    float *x = held_by(s, net, a), *y = held_by(s, net, b);
    double most = 0;
    for (size_t i = 0; i < state_floats(net) + kept_floats(net); i++)
        most = fmax(most, fabs((double)x[i] - (double)y[i]));
    free(x);
    free(y);
    return most;
}

/* All rows at once and the same cut in two are both near the recurrence, and near each other. */
static void check_exact(struct form form, size_t n, size_t cut)
{
    form.n = n;
    struct net net = make_net(&form, n);
    const rp_gdn_states_options o = options_of(&net);
    rp_gdn_states *s = states_of(&o);
    double out_error[2], state_error[2];
    run_call(s, &net, 0, n, 0);
    measure(&net, s, 0, &out_error[0], &state_error[0]);
    run_call(s, &net, 0, cut, 1);
    run_call(s, &net, cut, n - cut, 1);
    measure(&net, s, 1, &out_error[1], &state_error[1]);
    for (int i = 0; i < 2; i++) {
        if (!(out_error[i] < 2e-5 && state_error[i] < 2e-6))
            fail_msg("%d/%d heads of %d x %d, map %d, dtype %d, %zu rows%s: out is %g off, the "
                     "state %g",
                     form.gdn.n_key_heads, form.gdn.n_value_heads, form.gdn.key_dim,
                     form.gdn.value_dim, (int)form.gdn.map, (int)form.dtype, n,
                     i ? ", cut in two" : "", out_error[i], state_error[i]);
    }
    assert_true(between(s, &net, 0, 1) < 2e-6);
    rp_gdn_states_destroy(s);
    free_net(&net);
}

static void test_near_a_recurrence_in_double(void **state)
{
    (void)state;
    static const struct {
        int32_t hk, hv, dk, dv;
        size_t n, cut;
    } shapes[] = {{16, 32, 128, 128, 4, 3},
                  {2, 4, 32, 32, 145, 73},
                  {2, 4, 128, 128, 145, 73},
                  {2, 2, 128, 128, 145, 73}};
    for (size_t i = 0; i < COUNT(shapes); i++) {
        for (int which = 0; which < (i == 0 ? 4 : 2); which++) {
            struct form form = forms[0];
            form.gdn.n_key_heads = shapes[i].hk;
            form.gdn.n_value_heads = shapes[i].hv;
            form.gdn.key_dim = shapes[i].dk;
            form.gdn.value_dim = shapes[i].dv;
            form.gdn.map = which % 2 ? RP_GDN_TILED : RP_GDN_GROUPED;
            form.linear_rate = (which / 2 + i) % 2;
            form.dtype = (which + i) % 2 ? RP_DTYPE_F16 : RP_DTYPE_F32;
            check_exact(form, shapes[i].n, shapes[i].cut);
        }
    }
}

/* ---- what is refused ---------------------------------------------------------------------------
 */

struct refusal {
    rp_gdn_states *s;
    struct net *net;
    rp_gdn_block block;
    rp_gdn_block_batch batch;
    float *held[MAX_SLOTS];
};

static void refuse(struct refusal *f, rp_status want, const char *words)
{
    rp_error err = {RP_OK, ""};
    const uint64_t used = rp_gdn_states_used_bytes(f->s);
    assert_int_equal(rp_gdn_run_block(f->s, &f->block, &f->batch, &err), want);
    if (!strstr(err.message, words))
        fail_msg("\"%s\" lacks \"%s\"", err.message, words);
    assert_int_equal(rp_gdn_states_used_bytes(f->s), used);
    for (int32_t slot = 0; slot < MAX_SLOTS; slot++)
        assert_holds(f->s, f->net, slot, f->held[slot]);
}

#define REFUSE(change, status, words)                                                              \
    do {                                                                                           \
        const rp_gdn_block block_was_ = f->block;                                                  \
        const rp_gdn_block_batch batch_was_ = f->batch;                                            \
        rp_gdn_block *const w = &f->block;                                                         \
        rp_gdn_block_batch *const b = &f->batch;                                                   \
        (void)w, (void)b;                                                                          \
        change;                                                                                    \
        refuse(f, status, words);                                                                  \
        f->block = block_was_;                                                                     \
        f->batch = batch_was_;                                                                     \
    } while (0)

static void check_refused_batches(struct refusal *f)
{
    static const int32_t twice[] = {3, 5, 3}, outside[] = {3, 0, MAX_SLOTS},
                         back[] = {0, 40, 2, 50};
    static const rp_gdn_projection none = {NULL, 0, RP_DTYPE_F32};
    const bool packed = f->net->form.packed;
    REFUSE(w->struct_size--, RP_ERR_INVALID, "rp_gdn_block has struct_size");
    REFUSE(w->conv_w = NULL, RP_ERR_INVALID, "conv_w has no data");
    REFUSE(w->a_log = NULL, RP_ERR_INVALID, "a_log has no data");
    REFUSE(w->conv_activation = (rp_activation)99, RP_ERR_INVALID, "conv_activation is 99");
    REFUSE(w->gate_activation = (rp_activation)-1, RP_ERR_INVALID, "gate_activation is -1");
    REFUSE(w->norm_eps = -1, RP_ERR_INVALID, "norm_eps");
    REFUSE(w->norm_eps = INFINITY, RP_ERR_INVALID, "norm_eps");
    REFUSE(w->beta_scale = NAN, RP_ERR_INVALID, "beta_scale");
    REFUSE(b->struct_size = 0, RP_ERR_INVALID, "rp_gdn_block_batch has struct_size");
    REFUSE(b->slots = NULL, RP_ERR_INVALID, "no slots");
    REFUSE(b->slots = twice, RP_ERR_INVALID, "slot 3 is named twice");
    REFUSE(b->slots = outside, RP_ERR_INVALID, "slot 8 is not one of the 8");
    REFUSE(b->cu = back, RP_ERR_INVALID, "cu goes from 40 down to 2 at sequence 1");
    REFUSE(b->out = NULL, RP_ERR_INVALID, "out has no data");
    REFUSE(b->ld_out = f->net->values - 1, RP_ERR_INVALID, "out: rows of");
    REFUSE(b->ld_out = (size_t)1 << 58, RP_ERR_LIMIT, "out elements: 50 rows");
    if (packed) {
        REFUSE(b->qkvz = none, RP_ERR_INVALID, "q has no data");
        REFUSE(b->ba = none, RP_ERR_INVALID, "b has no data");
        REFUSE(b->z = b->qkvz, RP_ERR_INVALID, "qkvz and z both have data");
        REFUSE(b->a = b->ba, RP_ERR_INVALID, "ba and a both have data");
        REFUSE(b->qkvz.dtype = (rp_dtype)3, RP_ERR_INVALID, "the dtype of qkvz is 3");
        REFUSE(b->qkvz.ld = 5, RP_ERR_INVALID, "qkvz: rows of");
        REFUSE(b->qkvz.ld = (size_t)1 << 59, RP_ERR_LIMIT,
               "qkvz elements: 50 rows, 576460752303423488");
        REFUSE((b->ba.dtype = RP_DTYPE_F16, b->ba.ld = SIZE_MAX), RP_ERR_LIMIT,
               "halves apart, are past what memory can hold");
    } else {
        REFUSE(b->v = none, RP_ERR_INVALID, "v has no data");
        REFUSE(b->a = none, RP_ERR_INVALID, "a has no data");
        REFUSE(b->ba = b->b, RP_ERR_INVALID, "ba and b both have data");
        REFUSE(b->z.ld = 1, RP_ERR_INVALID, "z: rows of");
        REFUSE(b->k.ld = (size_t)1 << 60, RP_ERR_LIMIT, "k elements: 50 rows");
    }
}

/* One number of one input after the other is none, among halves and floats, in the middle. */
static void check_refused_numbers(struct refusal *f)
{
    static const char *const names[] = {"q, row 33, column 2",    "k, row 33, column 2",
                                        "v, row 33, column 2",    "z, row 33, column 2",
                                        "b, row 33, column 2",    "a, row 33, column 2",
                                        "qkvz, row 33, column 2", "ba, row 33, column 2"};
    for (int i = 0; i < N_INPUTS; i++) {
        if (!f->net->inputs[i])
            continue;
        const size_t size = size_of(f->net, i);
        char *at = (char *)f->net->inputs[i] + (33 * f->net->ld[i] + 2) * size;
        char was[sizeof(float)];
        const float bad = i % 2 ? -INFINITY : NAN;
        memcpy(was, at, size);
        f->net->ops->narrow(dtype_of(f->net, i), &bad, at, 1);
        refuse(f, RP_ERR_NONFINITE, names[i]);
        assert_false(memcmp(at, was, size) == 0);
        memcpy(at, was, size);
    }
}

/* Finite inputs, but what they make is none: in the convolution, in the norm, in a state. */
static void check_overflow(struct refusal *f)
{
    struct net *net = f->net;
    float was = net->conv_w[7];
    char words[80];
    snprintf(words, sizeof words, "the convolution's row 0, channel %zu is none",
             7 / net->form.kernel);
    net->conv_w[7] = NAN;
    refuse(f, RP_ERR_NONFINITE, words);
    net->conv_w[7] = was;
    was = net->norm_w[1];
    net->norm_w[1] = INFINITY;
    refuse(f, RP_ERR_NONFINITE, "out, row 0, column 1 is");
    net->norm_w[1] = was;
    was = net->a_log[1];
    net->a_log[1] = NAN;
    refuse(f, RP_ERR_NONFINITE, "out, row 0, column");
    net->a_log[1] = was;
}

/* In the middle of a batch of three sequences.  The slots of two of them share what they hold, each
 * with one that is not in the batch; the third holds zeros. */
static void check_refusals(const struct form *form, bool in_place, int threads)
{
    static const int32_t slots[] = {3, 0, 5}, cu[] = {0, 2, 40, 50};
    struct net net = make_net(form, 4);
    rp_pool *pool = toy_pool(threads);
    rp_gdn_states_options o = options_of(&net);
    o.in_place = in_place;
    o.pool = pool;
    struct refusal f = {.s = states_of(&o), .net = &net, .block = block_of(&net)};
    f.batch = batch_of(&net, 0, 3, slots, cu);
    for (int32_t i = 0; i < 4; i++) {
        set_random(f.s, &net, i, (uint64_t)i);
        MUST(rp_gdn_states_fork(f.s, i, i + 4, ERR));
    }
    MUST(rp_gdn_states_reset(f.s, 5, ERR));
    for (int32_t i = 0; i < MAX_SLOTS; i++)
        f.held[i] = held_by(f.s, &net, i);
    check_refused_batches(&f);
    check_refused_numbers(&f);
    if (!in_place)
        check_overflow(&f);
    /* And the same batch as it is does run. */
    MUST(rp_gdn_run_block(f.s, &f.block, &f.batch, ERR));
    for (int32_t i = 0; i < MAX_SLOTS; i++) {
        float *now = held_by(f.s, &net, i);
        const bool ran = i == 3 || i == 0 || i == 5;
        assert_int_equal(
            memcmp(now, f.held[i], (state_floats(&net) + kept_floats(&net)) * sizeof *now) != 0,
            ran);
        free(now);
        free(f.held[i]);
    }
    rp_gdn_states_destroy(f.s);
    rp_pool_destroy(pool);
    free_net(&net);
}

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct form form = forms[i];
        form.n = 50;
        check_refusals(&form, false, 1 + (int)i);
        check_refusals(&form, true, 3);
    }
}

/* Finite inputs overflow in the convolution, in the norm, in a state of f16: named by the first row
 * and channel, row and column, by the slot. */
static void test_overflow_is_named(void **state)
{
    (void)state;
    static const int32_t slots[] = {3, 6};
    struct form form = forms[0];
    form.n = 40;
    form.conv_activation = RP_ACT_NONE;
    struct net net = make_net(&form, 4);
    const int32_t cu[] = {0, 3, 40};
    rp_gdn_states_options o = options_of(&net);
    o.dtype = RP_DTYPE_F16;
    o.pool = toy_pool(3);
    struct refusal f = {.s = states_of(&o), .net = &net, .block = block_of(&net)};
    for (int32_t i = 0; i < MAX_SLOTS; i++) {
        set_random(f.s, &net, i, (uint64_t)i);
        f.held[i] = held_by(f.s, &net, i);
    }
    f.batch = batch_of(&net, 0, 2, slots, cu);
    const size_t v = 2 * net.keys + 21; /* of the second value head, whose key head is the first */
    net.x[36 * net.wide + v] = 3e38f;
    net.x[38 * net.wide + v + 1] = 3e38f;
    net.conv_w[v * form.kernel + 1] = 2; /* two rows later */
    net.conv_w[(v + 1) * form.kernel + 3] = 2;
    put_row(&net, 36);
    put_row(&net, 38);
    char words[80];
    snprintf(words, sizeof words, "the convolution's row 38, channel %zu is none", v);
    refuse(&f, RP_ERR_NONFINITE, words);
    net.x[36 * net.wide + v] = net.x[38 * net.wide + v + 1] = 1e6f;
    put_row(&net, 36);
    put_row(&net, 38);
    refuse(&f, RP_ERR_NONFINITE, "the state of slot 6 has grown past");
    net.x[36 * net.wide + v] = net.x[38 * net.wide + v + 1] = 1;
    put_row(&net, 36);
    net.x[38 * net.wide + net.first[Z] + 21] = 3e38f;
    net.norm_w[1] = 1e4f;
    put_row(&net, 38);
    refuse(&f, RP_ERR_NONFINITE, "out, row 38, column 21 is infinite");
    for (int32_t i = 0; i < MAX_SLOTS; i++)
        free(f.held[i]);
    rp_gdn_states_destroy(f.s);
    rp_pool_destroy(o.pool);
    free_net(&net);
}

/* In place a state is written over before what the rows make of it is known; what is kept of the
 * convolution is not. */
static void check_overflow_in_place(rp_dtype dtype, float v, float norm, const char *words)
{
    struct form form = forms[0];
    form.n = 40;
    struct net net = make_net(&form, 4);
    rp_gdn_states_options o = options_of(&net);
    o.in_place = true;
    o.dtype = dtype;
    o.pool = toy_pool(2);
    rp_gdn_states *s = states_of(&o);
    const int32_t slot = 3, cu[] = {0, 40};
    set_random(s, &net, slot, 1);
    float *before = held_by(s, &net, slot);
    net.norm_w[2] = norm;
    net.x[38 * net.wide + net.first[V] + 1] = v;
    net.conv_w[(net.first[V] + 1) * form.kernel + form.kernel - 1] = 1;
    put_row(&net, 38);
    const rp_gdn_block block = block_of(&net);
    const rp_gdn_block_batch b = batch_of(&net, 0, 1, &slot, cu);
    rp_error err;
    assert_int_equal(rp_gdn_run_block(s, &block, &b, &err), RP_ERR_NONFINITE);
    assert_string_equal(err.message, words);
    float *after = held_by(s, &net, slot);
    assert_memory_equal(after + state_floats(&net), before + state_floats(&net),
                        kept_floats(&net) * sizeof *after);
    free(before);
    free(after);
    rp_gdn_states_destroy(s);
    rp_pool_destroy(o.pool);
    free_net(&net);
}

static void test_overflow_in_place(void **state)
{
    (void)state;
    check_overflow_in_place(RP_DTYPE_F32, 1, NAN, "out, row 0, column 2 is NaN");
    check_overflow_in_place(RP_DTYPE_F16, 1e7f, 1,
                            "the state of slot 3 has grown past the largest number of its type");
}

/* With an eps of 0 the norm of a head of zeros is none, and the call says so. */
static void test_norm_of_zeros(void **state)
{
    (void)state;
    struct form form = forms[3];
    form.n = 1;
    struct net net = make_net(&form, 4);
    memset(net.x, 0, net.wide * sizeof *net.x);
    put_row(&net, 0);
    const rp_gdn_states_options o = options_of(&net);
    rp_gdn_states *s = states_of(&o);
    const int32_t slot = 0;
    rp_gdn_block block = block_of(&net);
    const rp_gdn_block_batch b = batch_of(&net, 0, 1, &slot, NULL);
    rp_error err;
    MUST(rp_gdn_run_block(s, &block, &b, ERR));
    block.norm_eps = 0;
    assert_int_equal(rp_gdn_run_block(s, &block, &b, &err), RP_ERR_NONFINITE);
    assert_string_equal(err.message, "out, row 0, column 0 is NaN");
    rp_gdn_states_destroy(s);
    free_net(&net);
}

static void test_refused_states(void **state)
{
    (void)state;
    struct form form = forms[0];
    form.n = 1;
    struct net net = make_net(&form, 4);
    const rp_gdn_block block = block_of(&net);
    const int32_t slot = 0;
    const rp_gdn_block_batch b = batch_of(&net, 0, 1, &slot, NULL);
    rp_gdn_states_options o = options_of(&net);
    rp_error err;
    o.conv_channels--;
    rp_gdn_states *s = states_of(&o);
    assert_int_equal(rp_gdn_run_block(s, &block, &b, &err), RP_ERR_INVALID);
    assert_string_equal(err.message, "conv_channels is 175, expected all numbers of q, k and v");
    rp_gdn_states_destroy(s);
    o.conv_channels = 0;
    s = states_of(&o);
    assert_int_equal(rp_gdn_run_block(s, &block, &b, &err), RP_ERR_INVALID);
    assert_string_equal(err.message, "these states were made without a convolution");
    rp_gdn_states_destroy(s);
    o = options_of(&net);
    s = states_of(&o);
    assert_int_equal(rp_gdn_run_block(s, NULL, &b, &err), RP_ERR_INVALID);
    assert_string_equal(err.message, "block is NULL");
    assert_int_equal(rp_gdn_run_block(s, &block, NULL, &err), RP_ERR_INVALID);
    assert_string_equal(err.message, "batch is NULL");
    rp_gdn_block_batch empty;
    rp_gdn_block_batch_init(&empty);
    MUST(rp_gdn_run_block(s, &block, &empty, ERR));
    static const int32_t none[] = {0, 0};
    empty.n_seqs = 1;
    empty.slots = &slot;
    empty.cu = none; /* finished sequences have no data either */
    MUST(rp_gdn_run_block(s, &block, &empty, ERR));
    assert_int_equal(rp_gdn_states_used_bytes(s), 0);
    rp_gdn_states_destroy(s);
    free_net(&net);
}

/* ---- memory ------------------------------------------------------------------------------------
 */

enum { SENTINELS = 16, BLOCKS = 2 };

/* Numbers behind what a slot holds, of each block that it comes to be in. */
struct tails {
    float *at[BLOCKS];
    size_t n;
};

static void check_tail(struct tails *t, float *at)
{
    size_t i = 0;
    while (i < t->n && t->at[i] != at)
        i++;
    if (i == t->n) {
        assert_true(t->n < BLOCKS);
        t->at[t->n++] = at;
        for (size_t j = 0; j < SENTINELS; j++)
            at[j] = 4711;
    }
    for (size_t j = 0; j < SENTINELS; j++)
        assert_true(at[j] == 4711);
}

/* Nobody writes behind a state or behind the rows that are kept, wherever they come to lie. */
static void test_sentinels_survive(void **state)
{
    (void)state;
    for (int in_place = 0; in_place < 2; in_place++) {
        struct form form = forms[0];
        form.n = 145;
        struct net net = make_net(&form, 4);
        rp_gdn_states_options o = options_of(&net);
        o.n_slots = 1 + (size_t)in_place;
        o.in_place = in_place;
        rp_gdn_states *s = states_of(&o);
        struct tails states = {.n = 0}, kept = {.n = 0};
        static const size_t cuts[] = {0, 1, 73, 74, 106, 145};
        for (size_t i = 0; i + 1 < COUNT(cuts); i++) {
            rp_gdn_memory m;
            run_call(s, &net, cuts[i], cuts[i + 1] - cuts[i], 0);
            MUST(rp_gdn_states_memory(s, 0, &m, ERR));
            check_tail(&states, (float *)m.state + state_floats(&net));
            check_tail(&kept, (float *)m.conv + kept_floats(&net));
        }
        assert_int_equal(states.n, in_place ? 1 : 2);
        assert_int_equal(kept.n, 1);
        rp_gdn_states_destroy(s);
        free_net(&net);
    }
}

/* A fork and its parent go their own ways, in state and convolution. */
static void test_forks(void **state)
{
    (void)state;
    struct form form = forms[1];
    form.n = 40;
    struct net net = make_net(&form, 4);
    const rp_gdn_states_options o = options_of(&net);
    rp_gdn_states *s = states_of(&o);
    run_call(s, &net, 0, 32, 0);
    float *parent = held_by(s, &net, 0);
    MUST(rp_gdn_states_fork(s, 0, 1, ERR));
    run_call(s, &net, 32, 8, 1);
    assert_holds(s, &net, 0, parent);
    run_call(s, &net, 0, 40, 2); /* 32 rows are a whole chunk: a cut there moves no bit */
    float *whole = held_by(s, &net, 2);
    assert_holds(s, &net, 1, whole);
    free(parent);
    free(whole);
    rp_gdn_states_destroy(s);
    free_net(&net);
}

/* Both mates of each fork in one batch, beside a slot that nobody shares: as many blocks as states
 * that are run in place can need. */
static void test_mates_in_place(void **state)
{
    (void)state;
    static const int32_t slots[] = {1, 4, 0, 3, 2}, cu[] = {0, 7, 40, 41, 74, 80};
    enum { N = COUNT(slots) };
    struct form form = forms[0];
    form.n = 80;
    struct net net = make_net(&form, 4);
    rp_gdn_states_options o = options_of(&net);
    o.n_slots = N;
    rp_gdn_states *apart = states_of(&o);
    o.in_place = true;
    rp_gdn_states *s = states_of(&o);
    float *want = calloc(form.n * (net.values + GAP), sizeof *want);
    assert_non_null(want);
    const rp_gdn_block block = block_of(&net);
    const rp_gdn_block_batch b = batch_of(&net, 0, N, slots, cu);
    for (int32_t i = 0; i < N; i += 2) {
        set_random(s, &net, i, (uint64_t)i);
        set_random(apart, &net, i, (uint64_t)i);
    }
    for (int round = 0; round < 2; round++) {
        for (int32_t i = 0; i + 1 < N; i += 2) {
            MUST(rp_gdn_states_fork(s, i + round, i + 1 - round, ERR));
            MUST(rp_gdn_states_fork(apart, i + round, i + 1 - round, ERR));
        }
        for (size_t i = 0; i < N; i++)
            run_apart(apart, &net, (size_t)cu[i], (size_t)(cu[i + 1] - cu[i]), slots[i], want);
        MUST(rp_gdn_run_block(s, &block, &b, ERR));
        assert_true(out_is(&net, want, form.n));
        for (int32_t i = 0; i < N; i++) {
            float *held = held_by(apart, &net, i);
            assert_holds(s, &net, i, held);
            free(held);
        }
    }
    free(want);
    rp_gdn_states_destroy(s);
    rp_gdn_states_destroy(apart);
    free_net(&net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits_of_the_separate_calls),
        cmocka_unit_test(test_one_row_each),
        cmocka_unit_test(test_near_a_recurrence_in_double),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_overflow_is_named),
        cmocka_unit_test(test_overflow_in_place),
        cmocka_unit_test(test_norm_of_zeros),
        cmocka_unit_test(test_refused_states),
        cmocka_unit_test(test_sentinels_survive),
        cmocka_unit_test(test_forks),
        cmocka_unit_test(test_mates_in_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
