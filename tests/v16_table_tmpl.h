/* One table of tests/v16_table.h; the file that includes this has defined RP_V16_<SET> and
 * V16_NAME. */
#include "pool/vmath.h"
#include "tests/v16_table.h"

#include <rankplan/machine.h>

/* The bytes of blocks n and n + 1 as digits of a number.  What is out of the operation's domain is
 * taken down to it; NaNs stay. */
static v16 as_bytes(v16 a, v16 b, v16 c, v16 d, int n)
{
    const v16 in[4] = {a, b, c, d}, most = v_set1(0x1p30f);
    v16 kept[4];
    uint8_t bytes[64];
    float y[16];
    for (int i = 0; i < 4; i++)
        kept[i] = v_max(v_neg(most), v_min(most, in[i]));
    v_store_u8(bytes, kept[0], kept[1], kept[2], kept[3]);
    for (int l = 0; l < 16; l++)
        y[l] = (float)(bytes[16 * n + l] << 8 | bytes[16 * n + 16 + l]);
    return v_load(y);
}

/* A number around 0..255, many of them half-way between two integers. */
static v16 small(v16 a)
{
    return v_add(v_mul(vi_to_f(vi_and(v_bits(a), vi_set1(1023))), v_set1(0.5f)), v_set1(-100.0f));
}

#define OPERATIONS(X)                                                                              \
    X(add, v_add(a, b))                                                                            \
    X(sub, v_sub(a, b))                                                                            \
    X(mul, v_mul(a, b))                                                                            \
    X(div, v_div(a, b))                                                                            \
    X(sqrt, v_sqrt(a))                                                                             \
    X(fma, v_fma(a, b, c))                                                                         \
    X(fnma, v_fnma(a, b, c))                                                                       \
    X(max, v_max(a, b))                                                                            \
    X(min, v_min(a, b))                                                                            \
    X(sel_lt, v_sel_lt(a, b, c, d))                                                                \
    X(sel_le, v_sel_le(a, b, c, d))                                                                \
    X(sel_nan, v_sel_nan(a, c, d))                                                                 \
    X(abs, v_abs(a))                                                                               \
    X(neg, v_neg(a))                                                                               \
    X(xor_sign, v_xor_sign(a, b))                                                                  \
    X(swap_pairs, v_swap_pairs(a))                                                                 \
    X(set1, v_add(v_set1(-0.0f), a))                                                               \
    X(zero, v_add(v_zero(), a))                                                                    \
    X(vi_set1, v_from_bits(vi_xor(vi_set1(0x00400001), v_bits(a))))                                \
    X(vi_add, v_from_bits(vi_add(v_bits(a), v_bits(b))))                                           \
    X(vi_sub, v_from_bits(vi_sub(v_bits(a), v_bits(b))))                                           \
    X(vi_mul, v_from_bits(vi_mul(v_bits(a), v_bits(b))))                                           \
    X(vi_and, v_from_bits(vi_and(v_bits(a), v_bits(b))))                                           \
    X(vi_or, v_from_bits(vi_or(v_bits(a), v_bits(b))))                                             \
    X(vi_xor, v_from_bits(vi_xor(v_bits(a), v_bits(b))))                                           \
    X(vi_shl_1, v_from_bits(vi_shl(v_bits(a), 1)))                                                 \
    X(vi_shl_23, v_from_bits(vi_shl(v_bits(a), 23)))                                               \
    X(vi_shl_31, v_from_bits(vi_shl(v_bits(a), 31)))                                               \
    X(vi_shr_1, v_from_bits(vi_shr(v_bits(a), 1)))                                                 \
    X(vi_shr_31, v_from_bits(vi_shr(v_bits(a), 31)))                                               \
    X(vi_sar_1, v_from_bits(vi_sar(v_bits(a), 1)))                                                 \
    X(vi_sar_31, v_from_bits(vi_sar(v_bits(a), 31)))                                               \
    X(vi_to_f, vi_to_f(v_bits(a)))                                                                 \
    X(v_to_i, v_from_bits(v_to_i(vi_to_f(vi_sar(v_bits(a), 2)))))                                  \
    X(store_u8_0, as_bytes(a, b, c, d, 0))                                                         \
    X(store_u8_2, as_bytes(a, b, c, d, 2))                                                         \
    X(store_u8_small_0, as_bytes(small(a), small(b), small(c), small(d), 0))                       \
    X(store_u8_small_2, as_bytes(small(a), small(b), small(c), small(d), 2))                       \
    X(sum, v_set1(v_sum(a)))                                                                       \
    X(hmax, v_set1(v_hmax(a)))

#define FUNCTIONS(X)                                                                               \
    X(exp, v_exp(a))                                                                               \
    X(exp_neg, v_exp_neg(v_min(v_zero(), a)))                                                      \
    X(log1p, v_log1p(v_min(v_set1(0x1.fffffep+127f), v_abs(a))))                                   \
    X(softplus, v_softplus(a))                                                                     \
    X(log, v_log(v_max(v_set1(0x1p-126f), v_min(v_set1(0x1.fffffep+127f), v_abs(a)))))             \
    X(erf, v_erf(a))                                                                               \
    X(tanh, v_tanh(a))                                                                             \
    X(sigmoid, v_sigmoid(a))                                                                       \
    X(relu, v_relu(a))                                                                             \
    X(gelu, v_gelu(a))                                                                             \
    X(gelu_tanh, v_gelu_tanh(a))                                                                   \
    X(silu, v_silu(a))

#define DEFINE(name, expression)                                                                   \
    static void run_##name(const float *pa, const float *pb, const float *pc, const float *pd,     \
                           float *y)                                                               \
    {                                                                                              \
        v16 a = v_load(pa), b = v_load(pb), c = v_load(pc), d = v_load(pd);                        \
        (void)a, (void)b, (void)c, (void)d;                                                        \
        v_store(y, expression);                                                                    \
    }
OPERATIONS(DEFINE)
FUNCTIONS(DEFINE)

#define ENTRY(name, expression) {#name, run_##name},
static const struct v16_case operations[] = {OPERATIONS(ENTRY){NULL, NULL}};
static const struct v16_case functions[] = {FUNCTIONS(ENTRY){NULL, NULL}};

static void copy_n(const float *from, float *to, size_t n)
{
    v_store_n(to, v_load_n(from, n), n);
}

static void load_n(const float *from, float *y, size_t n)
{
    v_store(y, v_load_n(from, n));
}

static void load_f16(const uint16_t *from, float *y, size_t n)
{
    v_store(y, v_load_f16(from, n));
}

static void load_bf16(const uint16_t *from, float *y, size_t n)
{
    v_store(y, v_load_bf16(from, n));
}

#define TABLE_OF(set)    TABLE_JOIN(set)
#define TABLE_JOIN(set)  v16_table__##set
#define STRING_OF(set)   STRING_JOIN(set)
#define STRING_JOIN(set) #set

extern const struct v16_table TABLE_OF(V16_NAME);
const struct v16_table TABLE_OF(V16_NAME) = {
    .name = STRING_OF(V16_NAME),
    .isa = V16_ISA,
    .operations = operations,
    .functions = functions,
    .copy_n = copy_n,
    .load_n = load_n,
    .load_f16 = load_f16,
    .load_bf16 = load_bf16,
};
