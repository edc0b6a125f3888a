/* The gated delta rule over the rows of a sequence.
 *
 * A value head has a state S[i][j] (key i, value j).  A token with the key k, query q, value v,
 * decay a and rate beta does:  S *= a;  d = beta (v - S^T k);  S += k d^T;  out = S^T q.
 *
 * Rows are taken in chunks, so that all of this is products of matrices.  The contract
 * (docs/numerics.md), for one chunk of rows t = 0, 1, ... of one value head, with S as the chunk
 * before has left it:
 *
 *     k_t     = x * (1 / n(x)) of the row's key x;  q_t = x * (scale / n(x)) of its query;
 *               n(x) = 1, sqrt(sum16(x x) + eps) or max(sqrt(sum16(x x)), eps), as norm says
 *     a_t     = exp(g_t), or g_t itself
 *     R[t][u] = R[t-1][u] * a_t,  R[t][t] = 1;  A_t = A_{t-1} * a_t,  A_{-1} = 1
 *     G[t][u] = chain over i of fma(k_t[i], k_u[i]),   H[t][u] = the same of q_t and k_u
 *     P[t][j] = chain over i of fma(k_t[i], S[i][j]),  O[t][j] = the same of q_t and S
 *     x       = A_t * P[t][j],  x = fma(R[t][u] * G[t][u], d_u[j], x) for u ascending below t
 *     d_t[j]  = beta_t * (v_t[j] - x)
 *     y       = A_t * O[t][j],  y = fma(R[t][u] * H[t][u], d_u[j], y) for u ascending up to t
 *     out_t[j] = y
 *     S[i][j] becomes A_last * S[i][j], then fma(R[last][t] * k_t[i], d_t[j]) for t ascending
 *
 * Ratios of decays are products and never quotients: a strong decay goes to 0, not to a NaN.  A row
 * reads nothing of the rows behind it, so a chunk that is not full yet gives its rows the bits that
 * they have in a full one.  Where chunks begin is part of the contract, and so is their length.
 *
 * A head whose squares sum past FLT_MAX is normed to zeros: its factor is 1 / inf, as it is in
 * single precision elsewhere.
 *
 * What is not finite in a row shows in its own output and in those of the rows behind it.
 */
#ifndef RP_GDN_GDN_H
#define RP_GDN_GDN_H

#include <rankplan/graph.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The rows of a chunk, for every instruction set. */
#define RP_GDN_CHUNK 32

/* Rows of the batch, in order. */
struct rp_gdn_rows {
    size_t row0, n;
    bool silent; /* they change the state, and nothing is written for them */
};

struct rp_gdn_args {
    /* Row 0 of the batch: q of all key heads, k of all key heads, v of all value heads. */
    const float *qkv;
    size_t ld;
    /* Column h: the log decay of value head h (with linear_decay its factor);
     * column n_value_heads + h: its beta. */
    const float *gates;
    size_t ld_gates;
    float *out; /* columns h * value_dim; apart from qkv and gates */
    size_t ld_out;
    size_t n_key_heads, n_value_heads; /* at least 1 each; the second a multiple of the first */
    size_t key_dim, value_dim;         /* at least 1 each */
    rp_gdn_map map;
    rp_gdn_norm norm;
    float eps;
    float scale; /* 0: 1 / sqrt(key_dim) */
    bool linear_decay;
};

struct rp_gdn_kernel {
    const char *name; /* e.g. rp_gdn_f32_6x16__avx2 */
    uint32_t isa;
    /* The rows of `pieces`, one after the other, in chunks of RP_GDN_CHUNK counted from the first
     * row, whatever piece it is in, for the value heads of one key head.  Their value columns side
     * by side are r * value_dim, r = n_value_heads / n_key_heads; done are the columns [c0, c1) of
     * those, c0 and c1 multiples of 16 or r * value_dim itself.  Any split of the columns gives the
     * same bits.
     *
     * state: [r][key_dim][value_dim], r in the order of the value heads; of it the columns [c0, c1)
     * are read and written, and nothing else.  Two calls may share a state when their columns are
     * apart.  Without rows nothing is read or written.
     *
     * scratch: aligned to 64, rp_gdn_scratch_bytes(); what it holds does not matter.  Does not
     * allocate; needs less than 8 KiB of stack.  Any number of threads at once, each with a scratch
     * of its own. */
    void (*run)(const struct rp_gdn_args *args, const struct rp_gdn_rows *pieces, size_t n_pieces,
                size_t key_head, size_t c0, size_t c1, float *state, void *scratch);
};

const struct rp_gdn_kernel *rp_gdn_select(uint32_t isa);

/* All kernels of this build, slowest first, whether this machine can run them or not. */
const struct rp_gdn_kernel *const *rp_gdn_all(size_t *n);

/* Bytes of scratch that a call of run needs (a multiple of 64), whatever its rows and columns: the
 * dims and numbers of heads of `shape` count, nothing else of it is looked at.  False when a number
 * is 0, heads do not divide, or the size does not fit 64 bits.  Covers every ISA. */
bool rp_gdn_scratch_bytes(const struct rp_gdn_args *shape, size_t *out);

/* Whether a head of zeros is normed to zeros, and not to 0 * inf = NaN: eps finite and not
 * denormal (denormals may be read as 0), and so large that the factors 1 / n and scale / n of such
 * a head are finite.  True without a norm. */
bool rp_gdn_eps_fits(const rp_gdn *options);

/* The columns [c0, c1) of a key head's states, as of run, as runs of n floats from number `at` on;
 * a head that is whole is one. */
typedef void rp_gdn_span_fn(void *context, size_t at, size_t n);
void rp_gdn_each_span(size_t key_dim, size_t value_dim, size_t c0, size_t c1, rp_gdn_span_fn *fn,
                      void *context);

/* How many value columns of a key head a task takes: all of them, so that products of keys are made
 * once; fewer, but a multiple of `step`, where `units` sequences with a key head each leave some of
 * the workers idle.  The last task of a key head has those that are left. */
size_t rp_gdn_columns_of_task(size_t columns, size_t step, size_t units, size_t workers);

/* The value head that is number r of a key head's. */
static inline size_t rp_gdn_value_head(const struct rp_gdn_args *args, size_t key_head, size_t r)
{
    return args->map == RP_GDN_TILED ? key_head + r * args->n_key_heads
                                     : key_head * (args->n_value_heads / args->n_key_heads) + r;
}

#endif
