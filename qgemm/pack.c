/* Rounding weights to s8 so that no instruction can saturate on them, packing them, and finding
 * lines that fit together.
 *
 * A row's scale is the smallest at which its largest weight is at most 127 steps and the sum of
 * each of its pairs {2j, 2j+1} at most 128 to either side.  (Weights of opposite signs never add
 * up: a pair's products lie between the two.)  Rounding can still lift a pair to 129, when both its
 * weights lie half a step away and their sum was rounded down; then the weight that was lifted more
 * is lowered by one.  So the bound holds by construction, and every weight is within half a step.
 *
 * Everything here is plain IEEE arithmetic in one order: the same weights on every machine.
 */
#include "qgemm/qgemm.h"

#include "pool/memory.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST_WEIGHT 127
#define MOST_PAIR   128
#define LINE_BYTES  64

bool rp_qgemm_packed_bytes(size_t n, size_t k, size_t *out)
{
    size_t columns, bytes;
    if (k > RP_QGEMM_K_MAX || !rp_add_ok(n, RP_QGEMM_NR - 1, &columns) ||
        !rp_mul_ok(columns / RP_QGEMM_NR, rp_qgemm_panel_bytes(k), &bytes))
        return false;
    *out = bytes;
    return true;
}

struct row {
    const float *w, *smooth;
    size_t k;
};

/* Column i, smoothed; 0 past the end. */
static float weight(const struct row *row, size_t i)
{
    if (i >= row->k)
        return 0;
    return row->smooth ? row->w[i] * row->smooth[i] : row->w[i];
}

/* The row's scale; 0 for a row of zeros, NaN for one that is not all numbers.  Never a denormal
 * number, whose few bits would miss what is to be at most 127 steps. */
static float choose_scale(const struct row *row)
{
    float largest = 0, largest_pair = 0, sum = 0;
    for (size_t i = 0; i < row->k; i += 2) {
        const float x = weight(row, i), y = weight(row, i + 1), pair = fabsf(x + y);
        largest = fabsf(x) > largest ? fabsf(x) : largest;
        largest = fabsf(y) > largest ? fabsf(y) : largest;
        largest_pair = pair > largest_pair ? pair : largest_pair;
        sum += 0 * pair; /* NaN once anything was not finite */
    }
    const float by_weight = largest / MOST_WEIGHT, by_pair = largest_pair / MOST_PAIR;
    const float scale = (by_weight > by_pair ? by_weight : by_pair) + sum;
    return largest > 0 && scale < FLT_MIN ? FLT_MIN : scale;
}

/* Rounds columns i and i + 1, and lowers what rounding lifted more if the pair is over the bound.
 */
static void round_pair(const struct row *row, size_t i, float scale, int32_t *out)
{
    float lifted[2];
    for (size_t j = 0; j < 2; j++) {
        const float steps = weight(row, i + j) / scale;
        float rounded = rintf(steps);
        rounded = rounded > MOST_WEIGHT ? MOST_WEIGHT : rounded;
        rounded = rounded < -MOST_WEIGHT ? -MOST_WEIGHT : rounded;
        out[j] = (int32_t)rounded;
        lifted[j] = fabsf(rounded) - fabsf(steps);
    }
    if (abs(out[0] + out[1]) > MOST_PAIR) {
        int32_t *more = &out[lifted[1] > lifted[0]];
        *more += *more < 0 ? 1 : -1;
    }
}

/* Column `column` of the panel, which is all zeros yet, from one row of w. */
static void pack_row(int8_t *panel, size_t column, const struct row *row,
                     struct rp_qgemm_panel_tail *tail)
{
    const float scale = choose_scale(row);
    int32_t sum = 0;
    for (size_t i = 0; scale > 0 && i < row->k; i += 2) {
        int32_t pair[2];
        int8_t *to = panel + i / 4 * 64 + column * 4 + i % 4;
        round_pair(row, i, scale, pair);
        to[0] = (int8_t)pair[0];
        to[1] = (int8_t)pair[1];
        sum += pair[0] + pair[1];
    }
    tail->scale[column] = scale;
    tail->colsum[column] = sum;
}

/* ---- which lines fit together -----------------------------------------------------------------
 *
 * Of weights as models have them one line in ten fits another, so partners are looked for among 128
 * lines, those with the most to carry first: nine tenths of all find one.
 */

#define BLOCK 128 /* lines */

/* A line, and what each of its 32 pairs of weights adds up to: the positive ones, the negative
 * ones. */
struct line {
    uint32_t load; /* of squares, so that one large pair weighs more than two small ones */
    uint8_t sums[64];
};

static void weigh(struct line *out, const int8_t *weights)
{
    out->load = 0;
    for (size_t j = 0; j < 32; j++) {
        const int x = (int)weights[2 * j], y = (int)weights[2 * j + 1];
        const int up = (x > 0 ? x : 0) + (y > 0 ? y : 0), down = up - x - y;
        out->sums[j] = (uint8_t)up;
        out->sums[32 + j] = (uint8_t)down;
        out->load += (uint32_t)(up * up + down * down);
    }
}

static bool fit(const struct line *a, const struct line *b)
{
    size_t j = 0;
    while (j < 64 && a->sums[j] + b->sums[j] <= MOST_PAIR)
        j++;
    return j == 64;
}

/* The n lines by what they carry, the heaviest first. */
static void sort(const struct line *lines, size_t n, uint8_t *order)
{
    for (size_t i = 0; i < n; i++) {
        size_t j = i;
        for (; j > 0 && lines[order[j - 1]].load < lines[i].load; j--)
            order[j] = order[j - 1];
        order[j] = (uint8_t)i;
    }
}

/* The first of the lines order[i..] that is free and fits `line`; n when none does. */
static size_t find_partner(const struct line *lines, const uint8_t *order, const bool *taken,
                           size_t i, size_t n, const struct line *line)
{
    while (i < n && (taken[i] || !fit(line, &lines[order[i]])))
        i++;
    return i;
}

/* Lines [from, end) to `out`: those that fit from the front, *joined on, the others from the back,
 * *alone on. */
static void order_block(const int8_t *weights, size_t from, size_t end, uint16_t *out,
                        size_t *joined, size_t *alone)
{
    struct line lines[BLOCK];
    uint8_t order[BLOCK];
    bool taken[BLOCK] = {false};
    const size_t n = end - from;
    for (size_t i = 0; i < n; i++)
        weigh(&lines[i], weights + (from + i) * LINE_BYTES);
    sort(lines, n, order);
    for (size_t i = 0; i < n; i++) {
        if (taken[i])
            continue;
        const size_t j = find_partner(lines, order, taken, i + 1, n, &lines[order[i]]);
        if (j == n) {
            out[--*alone] = (uint16_t)(from + order[i]);
            continue;
        }
        taken[j] = true;
        out[(*joined)++] = (uint16_t)(from + order[i]);
        out[(*joined)++] = (uint16_t)(from + order[j]);
    }
}

void rp_qgemm_order_lines(void *panel, size_t k)
{
    const size_t n = rp_qgemm_padded(k) / 4;
    struct rp_qgemm_panel_order *order = rp_qgemm_order(panel, k);
    size_t joined = 0, alone = n;
    for (size_t i = 0; i < n; i += BLOCK)
        order_block(panel, i, n - i < BLOCK ? n : i + BLOCK, order->lines, &joined, &alone);
    order->n_joined = (uint16_t)(joined & ~(size_t)3);
    for (size_t i = 0; i < n; i++)
        order->lines[i] = (uint16_t)(4 * order->lines[i]);
}

void rp_qgemm_pack_panel(void *panel, const float *w, size_t ldw, size_t n_rows, size_t k,
                         const float *smooth)
{
    struct rp_qgemm_panel_tail tail;
    memset(&tail, 0, sizeof tail);
    memset(panel, 0, rp_qgemm_panel_bytes(k));
    for (size_t r = 0; r < n_rows; r++) {
        const struct row row = {.w = w + r * ldw, .smooth = smooth, .k = k};
        pack_row(panel, r, &row, &tail);
    }
    memcpy((unsigned char *)panel + rp_qgemm_padded(k) * RP_QGEMM_NR, &tail, sizeof tail);
    rp_qgemm_order_lines(panel, k);
}
