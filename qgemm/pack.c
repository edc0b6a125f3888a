/* Rounding weights to s8 so that no instruction can saturate on them, and packing them.
 *
 * A row's scale is the smallest at which its largest weight is at most 127 steps and each of its
 * groups (pairs or quads) at most 128.  Rounding can still lift a group above that, by half a step
 * a weight; then the weight that was lifted most is lowered by one, until the group fits.  So the
 * bound holds by construction, and costs a step of one weight where it bites.
 *
 * Everything here is plain IEEE arithmetic in one order: the same weights on every machine.
 */
#include "qgemm/qgemm.h"

#include "pool/memory.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define MOST_WEIGHT 127
#define MOST_GROUP  128
#define GROUP_MAX   4

bool rp_qgemm_packed_bytes(size_t n, size_t k, size_t *out)
{
    size_t columns, bytes;
    if (k > RP_QGEMM_K_MAX || !rp_add_ok(n, RP_QGEMM_NR - 1, &columns) ||
        !rp_mul_ok(columns / RP_QGEMM_NR, rp_qgemm_panel_bytes(k), &bytes))
        return false;
    *out = bytes;
    return true;
}

/* The columns of group g: pairs are {2g, 2g+1}; quads are {0, 1, 4, 5} and {2, 3, 6, 7} of an
 * aligned eight. */
static size_t group_columns(enum rp_qgemm_bound bound, size_t g, size_t *columns)
{
    if (bound == RP_QGEMM_PAIRS) {
        columns[0] = 2 * g;
        columns[1] = 2 * g + 1;
        return 2;
    }
    const size_t first = g / 2 * 8 + g % 2 * 2;
    columns[0] = first;
    columns[1] = first + 1;
    columns[2] = first + 4;
    columns[3] = first + 5;
    return 4;
}

struct row {
    const float *w, *smooth;
    size_t k;
    enum rp_qgemm_bound bound;
};

/* Column i, smoothed; 0 past the end. */
static float weight(const struct row *row, size_t i)
{
    if (i >= row->k)
        return 0;
    return row->smooth ? row->w[i] * row->smooth[i] : row->w[i];
}

static size_t n_groups(const struct row *row)
{
    return rp_qgemm_padded(row->k) / (row->bound == RP_QGEMM_PAIRS ? 2 : 4);
}

/* The row's scale; 0 for a row of zeros, NaN for one that is not all numbers.  Never a denormal
 * number, whose few bits would miss what is to be at most 127 steps. */
static float choose_scale(const struct row *row)
{
    float largest = 0, largest_group = 0, sum = 0;
    for (size_t g = 0; g < n_groups(row); g++) {
        size_t columns[GROUP_MAX];
        const size_t n = group_columns(row->bound, g, columns);
        float group = 0;
        for (size_t j = 0; j < n; j++) {
            const float x = fabsf(weight(row, columns[j]));
            largest = x > largest ? x : largest;
            group += x;
        }
        largest_group = group > largest_group ? group : largest_group;
        sum += 0 * group; /* NaN once anything was not finite */
    }
    const float by_weight = largest / MOST_WEIGHT, by_group = largest_group / MOST_GROUP;
    const float scale = (by_weight > by_group ? by_weight : by_group) + sum;
    return largest > 0 && scale < FLT_MIN ? FLT_MIN : scale;
}

/* Rounds a group, and lowers what rounding lifted most until the group is within the bound. */
static void round_group(const struct row *row, size_t g, float scale, int32_t *out)
{
    size_t columns[GROUP_MAX];
    float lifted[GROUP_MAX];
    int32_t sum = 0;
    const size_t n = group_columns(row->bound, g, columns);
    for (size_t j = 0; j < n; j++) {
        const float steps = weight(row, columns[j]) / scale;
        float rounded = rintf(steps);
        rounded = rounded > MOST_WEIGHT ? MOST_WEIGHT : rounded;
        rounded = rounded < -MOST_WEIGHT ? -MOST_WEIGHT : rounded;
        out[columns[j]] = (int32_t)rounded;
        lifted[j] = fabsf(rounded) - fabsf(steps);
        sum += out[columns[j]] < 0 ? -out[columns[j]] : out[columns[j]];
    }
    for (; sum > MOST_GROUP; sum--) {
        size_t most = n;
        for (size_t j = 0; j < n; j++)
            if (out[columns[j]] != 0 && (most == n || lifted[j] > lifted[most]))
                most = j;
        out[columns[most]] += out[columns[most]] < 0 ? 1 : -1;
        lifted[most] -= 1;
    }
}

/* Column `column` of the panel from one row of w. */
static void pack_row(int8_t *panel, size_t column, const struct row *row,
                     struct rp_qgemm_panel_tail *tail)
{
    const float scale = choose_scale(row);
    const size_t step = row->bound == RP_QGEMM_PAIRS ? 1 : 2; /* groups that fill whole eights */
    int32_t sum = 0;
    tail->scale[column] = scale;
    for (size_t first = 0; first < rp_qgemm_padded(row->k); first += 8) {
        int32_t eight[8] = {0};
        const struct row part = {.w = row->w + first,
                                 .smooth = row->smooth ? row->smooth + first : NULL,
                                 .k = row->k > first ? row->k - first : 0,
                                 .bound = row->bound};
        for (size_t g = 0; scale > 0 && g < 4 / step; g++)
            round_group(&part, g, scale, eight);
        for (size_t i = 0; i < 8; i++) {
            const size_t line = (first + i) / 4;
            panel[line * 64 + column * 4 + i % 4] = (int8_t)eight[i];
            sum += eight[i];
        }
    }
    tail->colsum[column] = sum;
}

void rp_qgemm_pack_panel(void *panel, const float *w, size_t ldw, size_t n_rows, size_t k,
                         const float *smooth, enum rp_qgemm_bound bound)
{
    struct rp_qgemm_panel_tail tail;
    memset(&tail, 0, sizeof tail);
    memset(panel, 0, rp_qgemm_panel_bytes(k));
    for (size_t r = 0; r < n_rows; r++) {
        const struct row row = {.w = w + r * ldw, .smooth = smooth, .k = k, .bound = bound};
        pack_row(panel, r, &row, &tail);
    }
    memcpy((unsigned char *)panel + rp_qgemm_padded(k) * RP_QGEMM_NR, &tail, sizeof tail);
}
