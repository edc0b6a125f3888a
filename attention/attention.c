/* Attention, the parts without instructions of their own: sizes, shares of work, buckets. */
#include "attention/internal.h"
#include "pool/memory.h"

#include <math.h>
#include <time.h>

/* Floats that the scores of a block should take at most. */
#define SCORES_BUDGET 8192

/* The next part: `floats`, rounded up to whole lines, behind what is there already. */
static bool place(size_t floats, size_t *offset, size_t *total)
{
    size_t padded;
    *offset = *total;
    if (!rp_add_ok(floats, 15, &padded))
        return false;
    return rp_add_ok(*total, padded & ~(size_t)15, total);
}

/* The most keys that some rows of a sequence see, from a multiple of 16 on. */
static size_t keys_in_view(const struct rp_attention_layout *at, size_t max_len, size_t rows)
{
    size_t keys;
    const bool ok = at->windowed && rp_add_ok(at->before, at->after, &keys) &&
                    rp_add_ok(keys, rows + 15, &keys);
    return ok && keys < max_len ? keys : max_len;
}

/* Who sees what, and how many rows are worked on together. */
static void lay_out_rows(struct rp_attention_layout *at, size_t max_len, size_t window, bool causal)
{
    at->windowed = window > 0 && max_len > 0 && window < max_len - 1;
    at->before = at->windowed ? window : max_len;
    at->after = causal ? 0 : at->before;
    at->rows = at->windowed ? RP_ATTENTION_WINDOW_ROWS : max_len;
    at->block = at->windowed || causal ? RP_ATTENTION_WINDOW_BLOCK : RP_ATTENTION_MAX_BLOCK;
}

bool rp_attention_lay_out(size_t max_len, size_t window, bool causal, size_t head_dim, bool has_rel,
                          struct rp_attention_layout *out)
{
    struct rp_attention_layout at = {0};
    size_t padded, keys, values, queries, scores, products, rel = 0;
    lay_out_rows(&at, max_len, window, causal);
    const size_t n = keys_in_view(&at, max_len, at.rows);
    const size_t in_block = keys_in_view(&at, max_len, at.block);
    if (!rp_add_ok(n, 31, &padded) || !rp_add_ok(head_dim, 31, &at.padded_dim))
        return false;
    padded = rp_round_up(n, 16);
    at.padded_dim = rp_round_up(head_dim, 16);
    at.ld_scores = rp_round_up(in_block, 16) | 16;
    at.ld_products = at.padded_dim;

    const size_t fitting = SCORES_BUDGET / at.ld_scores / 6 * 6;
    if (fitting < at.block)
        at.block = fitting < RP_ATTENTION_MIN_BLOCK ? RP_ATTENTION_MIN_BLOCK : fitting;
    if (!rp_mul_ok(padded, head_dim, &keys) || !rp_mul_ok(n, at.padded_dim, &values) ||
        !rp_mul_ok(RP_ATTENTION_MAX_BLOCK, head_dim, &queries) ||
        !rp_mul_ok(RP_ATTENTION_MAX_BLOCK, at.ld_products, &products) ||
        !rp_mul_ok(RP_ATTENTION_MIN_BLOCK, at.ld_scores, &scores))
        return false;
    if (scores < SCORES_BUDGET)
        scores = SCORES_BUDGET;
    if (has_rel && (!rp_mul_ok(n, 2, &rel) || !rp_add_ok(rel, 16, &rel)))
        return false;
    if (!place(keys, &at.keys, &at.total) || !place(values, &at.values, &at.total) ||
        !place(queries, &at.queries, &at.total) || !place(scores, &at.scores, &at.total) ||
        !place(products, &at.products, &at.total) || !place(rel, &at.rel, &at.total))
        return false;
    *out = at;
    return true;
}

bool rp_attention_scratch_bytes(size_t max_len, size_t window, bool causal, size_t head_dim,
                                bool has_rel, size_t *out)
{
    struct rp_attention_layout at;
    size_t bytes;
    if (!rp_attention_lay_out(max_len, window, causal, head_dim, has_rel, &at) ||
        !rp_mul_ok(at.total, sizeof(float), &bytes))
        return false;
    *out = bytes;
    return true;
}

/* 1 + 2 + ... + n; 0 for what is less than 1. */
static uint64_t sum_to(int64_t n)
{
    return n > 0 ? (uint64_t)n * ((uint64_t)n + 1) / 2 : 0;
}

/* Of the rows before q: each sees itself and `before` and `after` keys to its sides, less those
 * that would lie before the first key and past the last. */
static uint64_t pairs_of_rows(size_t len, size_t before, size_t after, size_t q)
{
    const int64_t b = (int64_t)before, a = (int64_t)after, n = (int64_t)q;
    return (uint64_t)n * (uint64_t)(b + a + 1) - (sum_to(b) - sum_to(b - n)) -
           sum_to(n + a - (int64_t)len);
}

uint64_t rp_attention_pairs(size_t len, size_t window, bool causal, size_t q0, size_t q1)
{
    const size_t before = window == 0 || window > len ? len : window;
    const size_t after = causal ? 0 : before;
    return pairs_of_rows(len, before, after, q1) - pairs_of_rows(len, before, after, q0);
}

size_t rp_attention_keys(size_t len, size_t window, bool causal, size_t q0, size_t q1)
{
    const size_t before = window == 0 || window > len ? len : window;
    const size_t after = causal ? 0 : before;
    if (q0 >= q1)
        return 0;
    return (after < len - q1 ? q1 + after : len) - (q0 > before ? q0 - before : 0);
}

uint64_t rp_attention_option_pairs(const int32_t *markers, size_t n_markers, size_t len, size_t q0,
                                   size_t q1)
{
    uint64_t pairs = 0;
    for (size_t g = 0; g <= n_markers; g++) {
        const struct rp_attention_group in = rp_attention_group(markers, n_markers, len, g);
        const size_t first = in.first > q0 ? in.first : q0, end = in.end < q1 ? in.end : q1;
        pairs += first < end ? (uint64_t)(end - first) * in.keys : 0;
    }
    return pairs;
}

/* The header and the markers once, then of each group what no other one sees. */
size_t rp_attention_option_keys(const int32_t *markers, size_t n_markers, size_t len, size_t q0,
                                size_t q1)
{
    const size_t shared = rp_attention_group(markers, n_markers, len, 0).keys;
    size_t keys = q0 < q1 ? shared : 0;
    for (size_t g = 1; g <= n_markers; g++) {
        const struct rp_attention_group in = rp_attention_group(markers, n_markers, len, g);
        if (in.first < q1 && q0 < in.end && q0 < q1)
            keys += in.keys - shared;
    }
    return keys;
}

size_t rp_attention_packed(const struct rp_attention_args *args, size_t len, size_t q1)
{
    if (args->memory)
        return args->n_memory;
    if (args->options)
        return rp_attention_group(args->markers, args->n_markers, len, 0).keys;
    if (args->window)
        return 0;
    const size_t seen = args->n_prefix + (args->causal ? q1 : len);
    return seen > args->n_packed ? seen : args->n_packed;
}

uint64_t rp_attention_lap(uint64_t *stage_ns, enum rp_attention_stage stage, uint64_t began)
{
    if (!stage_ns)
        return 0;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    const uint64_t now = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    if (stage < RP_ATTENTION_N_STAGES)
        stage_ns[stage] += now - began;
    return now;
}

/* Every part of a split packs the keys and values again, which costs about as much as six query
 * rows do (with a window too: both then concern the keys of a window); with 48 rows and more that
 * stays near an eighth.  A pair is split only while that shares
 * the work out better: tasks go round in rounds of `workers`, and the last round is seldom full. */
size_t rp_attention_query_rows(size_t len, size_t pairs, size_t workers)
{
    const size_t least = 2 * RP_ATTENTION_MAX_BLOCK;
    if (pairs == 0 || workers <= 1 || pairs / 8 >= workers || len <= least)
        return len;
    size_t rows = len;
    double best = INFINITY;
    for (size_t parts = 1; parts <= len / least && (parts - 1) / 8 < workers; parts++) {
        const size_t even = ((len + parts - 1) / parts + 5) / 6 * 6;
        const size_t share = even < len ? even : len;
        const double rounds = ceil((double)pairs * (double)parts / (double)workers);
        const double time = rounds * ((double)share + 6);
        if (time < 0.97 * best) {
            best = time;
            rows = share;
        }
    }
    return rows;
}

/* As Hugging Face's MPNet computes it, in single precision from the logarithm on:
 *
 *     exact + trunc(log(n / exact) / log(max_distance / exact) * (half - exact)),  at most half - 1
 *
 * The single-precision logarithms of different machines differ in their last bit, and on the edge
 * of a bucket that would decide.  Here the logarithm is taken in double and rounded once, which is
 * the correctly rounded one wherever the double is good to a few units in its last place. */
int32_t rp_attention_rel_bucket(int64_t distance, int32_t n_buckets, int32_t max_distance)
{
    const int32_t half = n_buckets / 2, exact = half / 2;
    const int32_t side = distance > 0 ? half : 0;
    const uint64_t n = distance < 0 ? -(uint64_t)distance : (uint64_t)distance;
    if (half < 1)
        return 0;
    if (n < (uint64_t)exact)
        return side + (int32_t)n;
    if (exact < 1 || max_distance <= exact || n >= (uint64_t)max_distance)
        return side + half - 1;
    const float ratio = (float)n / (float)exact;
    const float range = (float)log((double)max_distance / exact);
    const float steps = (float)log((double)ratio) / range * (float)(half - exact);
    const int32_t bucket = exact + (int32_t)steps;
    return side + (bucket < half - 1 ? bucket : half - 1);
}
