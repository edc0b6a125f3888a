/* States of gated delta nets in slots: their sizes, their memory, and the ways in and out.
 *
 * A slot's state is stored as the kernels take it, the value heads of key head 0 first, each
 * [key][value]; so a task finds all that it works on in one piece, whatever the map of heads.
 */
#include "gdn/state.h"

#include "pool/error.h"
#include "pool/fpenv.h"
#include "pool/memory.h"
#include "pool/pool.h"

#include <rankplan/plan.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SLOTS ((size_t)1 << 30)
#define PIECE     256 /* floats on the stack at a time */

void rp_gdn_states_options_init(rp_gdn_states_options *options)
{
    *options = (rp_gdn_states_options){.struct_size = sizeof *options, .isa = RP_ISA_DEFAULT};
}

/* ---- checks ------------------------------------------------------------------------------------
 */

static rp_status check_rule(const rp_gdn *g, rp_error *err)
{
    if (g->n_key_heads < 1 || g->n_value_heads < 1 || g->n_value_heads % g->n_key_heads)
        return rp_fail(err, RP_ERR_INVALID,
                       "%d value heads cannot be shared evenly by %d key heads", g->n_value_heads,
                       g->n_key_heads);
    if (g->key_dim < 1 || g->value_dim < 1)
        return rp_fail(err, RP_ERR_INVALID, "key_dim is %d and value_dim %d, at least 1 each",
                       g->key_dim, g->value_dim);
    if (g->map != RP_GDN_GROUPED && g->map != RP_GDN_TILED)
        return rp_fail(err, RP_ERR_INVALID, "map is %d, which is none", (int)g->map);
    if (g->norm != RP_GDN_NORM_NONE && g->norm != RP_GDN_NORM_ROOT && g->norm != RP_GDN_NORM_MAX)
        return rp_fail(err, RP_ERR_INVALID, "norm is %d, which is none", (int)g->norm);
    if (!(g->scale >= 0) || isinf(g->scale))
        return rp_fail(err, RP_ERR_INVALID, "scale must be finite and not negative");
    if (!rp_gdn_eps_fits(g))
        return rp_fail(err, RP_ERR_INVALID,
                       "a norm needs a finite eps, not denormal and not too small for the scale");
    return RP_OK;
}

static rp_status check_options(const rp_gdn_states_options *o, rp_error *err)
{
    if (o->struct_size != sizeof *o)
        return rp_fail(err, RP_ERR_INVALID,
                       "rp_gdn_states_options has struct_size %zu, expected %zu", o->struct_size,
                       sizeof *o);
    RP_TRY(check_rule(&o->gdn, err));
    if (o->n_slots < 1 || o->n_slots > MAX_SLOTS)
        return rp_fail(err, RP_ERR_INVALID, "n_slots is %zu, expected 1 to %zu", o->n_slots,
                       MAX_SLOTS);
    if (o->dtype != RP_DTYPE_F32 && o->dtype != RP_DTYPE_F16 && o->dtype != RP_DTYPE_BF16)
        return rp_fail(err, RP_ERR_INVALID, "dtype is %d, which is none", (int)o->dtype);
    if (o->conv_channels && (o->conv_kernel < 1 || o->conv_kernel > RP_CONV_MAX_KERNEL))
        return rp_fail(err, RP_ERR_INVALID, "conv_kernel is %zu, expected 1 to %d", o->conv_kernel,
                       RP_CONV_MAX_KERNEL);
    return RP_OK;
}

rp_status rp_gdn_check_slot(const rp_gdn_states *s, int32_t slot, rp_error *err)
{
    if (slot < 0 || (size_t)slot >= s->options.n_slots)
        return rp_fail(err, RP_ERR_INVALID, "slot %d is not one of the %zu", slot,
                       s->options.n_slots);
    return RP_OK;
}

rp_status rp_gdn_check_conv(const rp_gdn_states *s, rp_error *err)
{
    if (s->options.conv_channels == 0)
        return rp_fail(err, RP_ERR_INVALID, "these states were made without a convolution");
    return RP_OK;
}

bool rp_gdn_conv_feeds_rule(const rp_gdn_states *s)
{
    size_t keys, values, channels;
    return rp_mul_ok(s->n_key_heads, s->key_dim, &keys) && rp_mul_ok(keys, 2, &keys) &&
           rp_mul_ok(s->n_value_heads, s->value_dim, &values) &&
           rp_add_ok(keys, values, &channels) && channels == s->options.conv_channels;
}

static rp_status check_pointer(const void *p, const char *what, rp_error *err)
{
    return p ? RP_OK : rp_fail(err, RP_ERR_INVALID, "%s is NULL", what);
}

/* ---- sizes -------------------------------------------------------------------------------------
 */

/* Every number that a slot has fits in memory as f32. */
static rp_status measure_slot(rp_gdn_states *s, rp_error *err)
{
    const rp_gdn *g = &s->options.gdn;
    const size_t most = PTRDIFF_MAX / sizeof(float);
    s->n_key_heads = (size_t)g->n_key_heads;
    s->n_value_heads = (size_t)g->n_value_heads;
    s->key_dim = (size_t)g->key_dim;
    s->value_dim = (size_t)g->value_dim;
    s->per_key = s->n_value_heads / s->n_key_heads;
    if (!rp_mul_ok(s->key_dim, s->value_dim, &s->floats) ||
        !rp_mul_ok(s->floats, s->n_value_heads, &s->floats) || s->floats > most)
        return rp_fail(err, RP_ERR_LIMIT,
                       "state elements: %d heads of %d x %d are past what memory can hold",
                       g->n_value_heads, g->key_dim, g->value_dim);
    s->head_floats = s->floats / s->n_key_heads;
    if (s->options.conv_channels == 0)
        return RP_OK;
    if (!rp_mul_ok(s->options.conv_channels, s->options.conv_kernel - 1, &s->conv_floats) ||
        s->conv_floats > most)
        return rp_fail(
            err, RP_ERR_LIMIT,
            "conv state elements: %zu rows of %zu channels are past what memory can hold",
            s->options.conv_kernel - 1, s->options.conv_channels);
    return RP_OK;
}

/* `floats` more of the scratch, on a cache line of their own; false when that does not fit. */
static bool lay(struct rp_gdn_scratch *at, size_t *where, size_t rows, size_t floats)
{
    size_t bytes;
    *where = at->bytes;
    return rp_mul_ok(rows, floats, &bytes) && rp_mul_ok(bytes, sizeof(float), &bytes) &&
           bytes <= PTRDIFF_MAX - RP_CACHE_LINE &&
           rp_add_ok(at->bytes, rp_round_up(bytes, RP_CACHE_LINE), &at->bytes) &&
           at->bytes <= PTRDIFF_MAX;
}

static bool lay_block(const rp_gdn_states *s, struct rp_gdn_scratch *at)
{
    const size_t kernel = s->options.conv_kernel;
    return lay(at, &at->conv_rows, kernel - 1 + RP_GDN_CHUNK, s->args.ld) &&
           lay(at, &at->conv_w, kernel, s->args.ld) &&
           lay(at, &at->gate_rows, 1 + RP_GDN_CHUNK, 2 * s->per_key) &&
           lay(at, &at->z, RP_GDN_CHUNK, s->value_dim);
}

static rp_status measure_scratch(rp_gdn_states *s, rp_error *err)
{
    struct rp_gdn_scratch *at = &s->at;
    size_t kernel, row;
    const size_t workers = (size_t)rp_pool_threads(s->options.pool);
    const size_t values = s->per_key * s->value_dim; /* no more than the state's floats */
    bool fits = rp_gdn_scratch_bytes(&s->args, &kernel) && kernel <= PTRDIFF_MAX;
    at->bytes = fits ? rp_round_up(kernel, RP_CACHE_LINE) : 0;
    fits = fits && rp_add_ok(2 * s->key_dim, values, &row);
    fits = fits && lay(at, &at->qkv, RP_GDN_CHUNK, row);
    fits = fits && lay(at, &at->gates, RP_GDN_CHUNK, 2 * s->per_key);
    fits = fits && lay(at, &at->out, RP_GDN_CHUNK, values);
    fits = fits && lay(at, &at->state, 1, s->head_floats);
    fits = fits && lay(at, &at->step, 1, s->head_floats);
    fits = fits && (!rp_gdn_conv_feeds_rule(s) || lay_block(s, at));
    if (!fits || !rp_mul_ok(at->bytes, workers, &s->scratch_bytes) ||
        s->scratch_bytes > PTRDIFF_MAX)
        return rp_fail(err, RP_ERR_LIMIT,
                       "scratch: %zu value heads of %zu x %zu, a chunk of rows and %zu threads are "
                       "past what memory can hold",
                       s->per_key, s->key_dim, s->value_dim, workers);
    return RP_OK;
}

/* ---- making ------------------------------------------------------------------------------------
 */

static void choose(rp_gdn_states *s)
{
    const rp_gdn *g = &s->options.gdn;
    s->kernel = rp_gdn_select(s->options.isa);
    s->ops = rp_ops_select(s->options.isa);
    s->args = (struct rp_gdn_args){.ld = 2 * s->key_dim + s->per_key * s->value_dim,
                                   .ld_gates = 2 * s->per_key,
                                   .ld_out = s->per_key * s->value_dim,
                                   .n_key_heads = 1,
                                   .n_value_heads = s->per_key,
                                   .key_dim = s->key_dim,
                                   .value_dim = s->value_dim,
                                   .map = RP_GDN_GROUPED,
                                   .norm = g->norm,
                                   .eps = g->eps,
                                   .scale = g->scale,
                                   .linear_decay = s->options.linear_decay};
}

static rp_status take_memory(rp_gdn_states *s, rp_error *err)
{
    const size_t n = s->options.n_slots;
    const size_t blocks = s->options.in_place ? n + n / 2 : 2 * n;
    RP_TRY(rp_blocks_init(&s->state, "state", n, blocks,
                          s->floats * rp_gdn_number_bytes(s->options.dtype), err));
    RP_TRY(rp_blocks_init(&s->conv, "conv state", n, blocks, s->conv_floats * sizeof(float), err));
    s->scratch = rp_aligned_alloc(s->scratch_bytes);
    s->seqs = rp_aligned_alloc(n * sizeof *s->seqs);
    s->named = rp_aligned_alloc_zero(n * sizeof *s->named);
    if (!s->scratch || !s->seqs || !s->named)
        return rp_fail(err, RP_ERR_NOMEM, "no memory for %zu bytes of scratch", s->scratch_bytes);
    return RP_OK;
}

static rp_status make(rp_gdn_states *s, rp_error *err)
{
    if (s->options.isa == RP_ISA_DEFAULT)
        RP_TRY(rp_isa_default(&s->options.isa, err));
    s->options.isa &= rp_isa_detected();
    RP_TRY(measure_slot(s, err));
    choose(s);
    RP_TRY(measure_scratch(s, err));
    return take_memory(s, err);
}

rp_status rp_gdn_states_create(const rp_gdn_states_options *options, rp_gdn_states **out,
                               rp_error *err)
{
    RP_TRY(check_pointer(options, "options", err));
    RP_TRY(check_pointer(out, "out", err));
    RP_TRY(check_options(options, err));
    rp_gdn_states *s = rp_aligned_alloc_zero(sizeof *s);
    if (!s)
        return rp_fail(err, RP_ERR_NOMEM, "no memory for the states' object");
    s->options = *options;
    const rp_status status = make(s, err);
    if (status != RP_OK) {
        rp_gdn_states_destroy(s);
        return status;
    }
    *out = s;
    return RP_OK;
}

void rp_gdn_states_destroy(rp_gdn_states *s)
{
    if (!s)
        return;
    rp_blocks_fini(&s->state);
    rp_blocks_fini(&s->conv);
    rp_aligned_free(s->scratch);
    rp_aligned_free(s->seqs);
    rp_aligned_free(s->named);
    rp_aligned_free(s);
}

/* ---- slots -------------------------------------------------------------------------------------
 */

rp_status rp_gdn_states_reset(rp_gdn_states *s, int32_t slot, rp_error *err)
{
    RP_TRY(rp_gdn_check_slot(s, slot, err));
    rp_blocks_reset(&s->state, (size_t)slot);
    rp_blocks_reset(&s->conv, (size_t)slot);
    return RP_OK;
}

rp_status rp_gdn_states_fork(rp_gdn_states *s, int32_t from, int32_t to, rp_error *err)
{
    RP_TRY(rp_gdn_check_slot(s, from, err));
    RP_TRY(rp_gdn_check_slot(s, to, err));
    rp_blocks_fork(&s->state, (size_t)from, (size_t)to);
    rp_blocks_fork(&s->conv, (size_t)from, (size_t)to);
    return RP_OK;
}

rp_status rp_gdn_states_memory(rp_gdn_states *s, int32_t slot, rp_gdn_memory *out, rp_error *err)
{
    RP_TRY(rp_gdn_check_slot(s, slot, err));
    RP_TRY(check_pointer(out, "out", err));
    *out = (rp_gdn_memory){.state = rp_blocks_own(&s->state, (size_t)slot),
                           .state_bytes = s->state.bytes,
                           .conv = rp_blocks_own(&s->conv, (size_t)slot),
                           .conv_bytes = s->conv.bytes};
    return RP_OK;
}

uint64_t rp_gdn_states_bytes(const rp_gdn_states *s)
{
    const size_t n = s->options.n_slots;
    const size_t tables = 2 * n * sizeof(int32_t);
    const size_t blocks = sizeof(uint32_t) + sizeof(int32_t);
    return sizeof *s + s->scratch_bytes + n * (sizeof *s->seqs + sizeof *s->named) +
           s->state.memory_bytes + s->conv.memory_bytes +
           (s->state.bytes ? tables + s->state.n_blocks * blocks : 0) +
           (s->conv.bytes ? tables + s->conv.n_blocks * blocks : 0);
}

uint64_t rp_gdn_states_used_bytes(const rp_gdn_states *s)
{
    return rp_blocks_used_bytes(&s->state) + rp_blocks_used_bytes(&s->conv);
}

/* ---- numbers -----------------------------------------------------------------------------------
 */

void rp_gdn_load(const rp_gdn_states *s, const void *stored, size_t at, float *x, size_t n)
{
    if (!stored)
        memset(x, 0, n * sizeof *x);
    else
        s->ops->widen(s->options.dtype,
                      (const char *)stored + at * rp_gdn_number_bytes(s->options.dtype), x, n);
}

/* Whether any of n halves has all bits of the exponent set. */
static bool any_none(const uint16_t *x, size_t n, uint16_t exponent)
{
    uint16_t none[16] = {0}; /* sixteen at a time, which compilers do at once */
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        for (size_t j = 0; j < 16; j++)
            none[j] |= (x[i + j] & exponent) == exponent;
    }
    for (; i < n; i++)
        none[0] |= (x[i] & exponent) == exponent;
    for (size_t j = 1; j < 16; j++)
        none[0] |= none[j];
    return none[0];
}

bool rp_gdn_store(const rp_gdn_states *s, void *stored, size_t at, const float *x, size_t n)
{
    size_t where;
    char *to = (char *)stored + at * rp_gdn_number_bytes(s->options.dtype);
    s->ops->narrow(s->options.dtype, x, to, n);
    if (s->options.dtype == RP_DTYPE_F32)
        return s->ops->nonfinite(x, n, &where);
    return any_none((const uint16_t *)(const void *)to, n,
                    s->options.dtype == RP_DTYPE_F16 ? 0x7c00 : 0x7f80);
}

bool rp_gdn_round(const rp_gdn_states *s, float *x, size_t n)
{
    size_t where;
    uint16_t halves[PIECE];
    for (size_t i = 0; i < n && s->options.dtype != RP_DTYPE_F32; i += PIECE) {
        const size_t some = n - i < PIECE ? n - i : PIECE;
        s->ops->narrow(s->options.dtype, x + i, halves, some);
        s->ops->widen(s->options.dtype, halves, x + i, some);
    }
    return s->ops->nonfinite(x, n, &where);
}

/* Number (key i, value j) of a head in the caller's layout. */
static size_t place(const rp_gdn_states *s, rp_gdn_layout layout, size_t i, size_t j)
{
    return layout == RP_GDN_KEY_VALUE ? i * s->value_dim + j : j * s->key_dim + i;
}

/* Part of a row of the state, between where it is stored and where the caller has it. */
struct piece {
    size_t stored;     /* its first number, within the slot */
    size_t head, i, j; /* the same as the caller counts */
    size_t n;
};

typedef rp_status piece_fn(void *arg, const struct piece *piece);

static rp_status each_piece(const rp_gdn_states *s, piece_fn *fn, void *arg)
{
    struct piece p = {.stored = 0};
    for (size_t h = 0; h < s->n_value_heads; h++) {
        p.head = rp_gdn_head_of(s, h / s->per_key, h % s->per_key);
        for (p.i = 0; p.i < s->key_dim; p.i++) {
            for (p.j = 0; p.j < s->value_dim; p.j += p.n, p.stored += p.n) {
                p.n = s->value_dim - p.j < PIECE ? s->value_dim - p.j : PIECE;
                RP_TRY(fn(arg, &p));
            }
        }
    }
    return RP_OK;
}

struct transfer {
    const rp_gdn_states *states;
    rp_gdn_layout layout;
    const void *from; /* the slot as stored */
    void *to;
    float *out; /* the caller's */
    const float *in;
    rp_error *err;
};

static rp_status get_piece(void *arg, const struct piece *p)
{
    const struct transfer *t = arg;
    const rp_gdn_states *s = t->states;
    float x[PIECE], *head = t->out + p->head * s->key_dim * s->value_dim;
    rp_gdn_load(s, t->from, p->stored, x, p->n);
    for (size_t j = 0; j < p->n; j++)
        head[place(s, t->layout, p->i, p->j + j)] = x[j];
    return RP_OK;
}

static void take_piece(const struct transfer *t, const struct piece *p, float *x)
{
    const rp_gdn_states *s = t->states;
    const float *head = t->in + p->head * s->key_dim * s->value_dim;
    for (size_t j = 0; j < p->n; j++)
        x[j] = head[place(s, t->layout, p->i, p->j + j)];
}

static rp_status check_piece(void *arg, const struct piece *p)
{
    const struct transfer *t = arg;
    float x[PIECE];
    take_piece(t, p, x);
    if (!rp_gdn_round(t->states, x, p->n))
        return RP_OK;
    size_t j = 0;
    while (isfinite(x[j]))
        j++;
    return rp_fail(t->err, RP_ERR_NONFINITE,
                   "value head %zu, key %zu, value %zu of the state is %s", p->head, p->i, p->j + j,
                   isnan(x[j]) ? "NaN" : "infinite");
}

static rp_status set_piece(void *arg, const struct piece *p)
{
    const struct transfer *t = arg;
    float x[PIECE];
    take_piece(t, p, x);
    (void)rp_gdn_store(t->states, t->to, p->stored, x, p->n); /* checked before */
    return RP_OK;
}

static rp_status check_layout(rp_gdn_layout layout, rp_error *err)
{
    if (layout != RP_GDN_KEY_VALUE && layout != RP_GDN_VALUE_KEY)
        return rp_fail(err, RP_ERR_INVALID, "layout is %d, which is none", (int)layout);
    return RP_OK;
}

rp_status rp_gdn_states_get(const rp_gdn_states *s, int32_t slot, rp_gdn_layout layout, float *out,
                            rp_error *err)
{
    RP_TRY(rp_gdn_check_slot(s, slot, err));
    RP_TRY(check_layout(layout, err));
    RP_TRY(check_pointer(out, "out", err));
    struct transfer t = {
        .states = s, .layout = layout, .from = rp_blocks_read(&s->state, (size_t)slot), .out = out};
    const rp_fpenv callers = rp_fpenv_enter();
    const rp_status status = each_piece(s, get_piece, &t);
    rp_fpenv_leave(callers);
    return status;
}

rp_status rp_gdn_states_set(rp_gdn_states *s, int32_t slot, rp_gdn_layout layout, const float *in,
                            rp_error *err)
{
    RP_TRY(rp_gdn_check_slot(s, slot, err));
    RP_TRY(check_layout(layout, err));
    RP_TRY(check_pointer(in, "in", err));
    struct transfer t = {.states = s, .layout = layout, .in = in, .err = err};
    const rp_fpenv callers = rp_fpenv_enter();
    rp_status status = each_piece(s, check_piece, &t);
    if (status == RP_OK) {
        t.to = rp_blocks_begin(&s->state, (size_t)slot, true);
        status = each_piece(s, set_piece, &t);
        rp_blocks_end(&s->state, (size_t)slot, true);
    }
    rp_fpenv_leave(callers);
    return status;
}

rp_status rp_gdn_states_get_conv(const rp_gdn_states *s, int32_t slot, float *out, rp_error *err)
{
    RP_TRY(rp_gdn_check_slot(s, slot, err));
    RP_TRY(rp_gdn_check_conv(s, err));
    RP_TRY(check_pointer(out, "out", err));
    const float *rows = rp_blocks_read(&s->conv, (size_t)slot);
    if (rows)
        memcpy(out, rows, s->conv_floats * sizeof *out);
    else if (s->conv_floats)
        memset(out, 0, s->conv_floats * sizeof *out);
    return RP_OK;
}

rp_status rp_gdn_states_set_conv(rp_gdn_states *s, int32_t slot, const float *in, rp_error *err)
{
    size_t where;
    RP_TRY(rp_gdn_check_slot(s, slot, err));
    RP_TRY(rp_gdn_check_conv(s, err));
    RP_TRY(check_pointer(in, "in", err));
    if (s->conv_floats == 0)
        return RP_OK; /* a kernel of one row keeps none */
    const rp_fpenv callers = rp_fpenv_enter();
    const bool bad = s->ops->nonfinite(in, s->conv_floats, &where);
    rp_fpenv_leave(callers);
    if (bad)
        return rp_fail(err, RP_ERR_NONFINITE, "row %zu, channel %zu of the conv state is %s",
                       where / s->options.conv_channels, where % s->options.conv_channels,
                       isnan(in[where]) ? "NaN" : "infinite");
    memcpy(rp_blocks_begin(&s->conv, (size_t)slot, true), in, s->conv_floats * sizeof *in);
    rp_blocks_end(&s->conv, (size_t)slot, true);
    return RP_OK;
}
