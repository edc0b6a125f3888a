/* What follows the sums, written once over v16: the zero point, the scales, the bias, the
 * activation and the residual.  A file that includes this has chosen its v16,
 * and says with RP_QGEMM_SHIFT what its sums have had taken off each q.
 *
 * Sums come through a small buffer that is still in L1, as i32 in the bits of floats: v16 has no
 * other loads.
 */
#ifndef RP_QGEMM_FINISH_H
#define RP_QGEMM_FINISH_H

#include "pool/epilogue.h"
#include "qgemm/qgemm.h"

#include <string.h>

/* One 16-column strip of C. */
struct strip {
    const float *sums;
    size_t ld_sums;
    const uint8_t *row; /* the first row's tail, tails row_bytes apart */
    size_t row_bytes;
    const float *panel; /* the panel's tail */
    const float *bias;  /* n_cols, or NULL */
    struct rp_result to;
};

/* Rows [i, i + count), before the activation. */
RP_V16_FN void take_rows(const struct strip *s, size_t i, const size_t count, v16 *x)
{
    const v16 scale = v_load(s->panel);
    const v16i colsum = v_bits(v_load(s->panel + RP_QGEMM_NR));
    const v16 bias = s->bias ? v_load_n(s->bias, s->to.n_cols) : v_zero();
    V_EACH (j, count) {
        struct rp_qgemm_row_tail row;
        memcpy(&row, s->row + (i + j) * s->row_bytes, sizeof row);
        const v16i sum = v_bits(v_load(s->sums + (i + j) * s->ld_sums));
        const v16 acc = vi_to_f(vi_sub(sum, vi_mul(vi_set1(row.zero - RP_QGEMM_SHIFT), colsum)));
        const v16 both = v_mul(v_set1(row.scale), scale);
        x[j] = s->bias ? v_fma(acc, both, bias) : v_mul(acc, both);
    }
}

RP_FINISHES

/* Rows [i, i + h) of C, panels [p, p + n_panels), from `sums`, which has the panels side by side.
 */
static void finish_tile(const struct rp_qgemm_args *g, size_t i, size_t h, size_t p,
                        size_t n_panels, const float *sums, size_t ld_sums)
{
    const size_t row_bytes = rp_qgemm_row_bytes(g->k), padded = rp_qgemm_padded(g->k);
    const char *tail = (const char *)g->packed + padded * RP_QGEMM_NR;
    for (size_t j = 0; j < n_panels; j++) {
        const size_t col = (p + j) * RP_QGEMM_NR;
        const struct strip strip = {
            .sums = sums + j * RP_QGEMM_NR,
            .ld_sums = ld_sums,
            .row = g->q + i * row_bytes + padded,
            .row_bytes = row_bytes,
            .panel = (const float *)(const void *)(tail + (p + j) * rp_qgemm_panel_bytes(g->k)),
            .bias = g->bias ? g->bias + col : NULL,
            .to =
                {
                    .c = g->c + i * g->ldc + col,
                    .ldc = g->ldc,
                    .residual = g->residual ? g->residual + i * g->ld_residual + col : NULL,
                    .ld_residual = g->ld_residual,
                    .multiply = g->multiply,
                    .n_rows = h,
                    .n_cols = g->n - col < RP_QGEMM_NR ? g->n - col : RP_QGEMM_NR,
                },
        };
        finishes[g->activation](&strip);
    }
}

/* The lines of C that a tile is about to be stored to: a few to a page, so that no hardware stream
 * brings them. */
static inline void fetch_rows(const struct rp_qgemm_args *g, size_t i, size_t h, size_t p,
                              size_t n_panels)
{
    for (size_t r = i; r < i + h; r++)
        for (size_t j = p; j < p + n_panels; j++)
            __builtin_prefetch(g->c + r * g->ldc + j * RP_QGEMM_NR, 1, 3);
}

#endif
