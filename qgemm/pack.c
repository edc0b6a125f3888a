/* Rounding weights to s8 so that no instruction can saturate on them, and packing them.
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
}
