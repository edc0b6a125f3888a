/* Plain C: what every other kernel is held to. */
#define RP_V16_SCALAR
#include "pool/epilogue.h"
#include "qgemm/kernels.h"

#include <string.h>

/* Line by line, so that all sixteen sums grow together. */
static void dots(const uint8_t *q, const int8_t *panel, size_t k, int32_t sums[RP_QGEMM_NR])
{
    for (size_t line = 0; line < rp_qgemm_padded(k) / 4; line++, q += 4, panel += 64)
        for (size_t j = 0; j < RP_QGEMM_NR; j++)
            sums[j] += q[0] * panel[4 * j] + q[1] * panel[4 * j + 1] + q[2] * panel[4 * j + 2] +
                       q[3] * panel[4 * j + 3];
}

static void run_panel(const struct rp_qgemm_args *g, size_t m, size_t p)
{
    const uint8_t *q = g->q + m * rp_qgemm_row_bytes(g->k);
    const int8_t *panel = (const int8_t *)g->packed + p * rp_qgemm_panel_bytes(g->k);
    struct rp_qgemm_row_tail row;
    struct rp_qgemm_panel_tail tail;
    memcpy(&row, q + rp_qgemm_padded(g->k), sizeof row);
    memcpy(&tail, panel + rp_qgemm_padded(g->k) * RP_QGEMM_NR, sizeof tail);
    const size_t left = g->n - p * RP_QGEMM_NR, n = left < RP_QGEMM_NR ? left : RP_QGEMM_NR;
    float out[RP_QGEMM_NR] = {0};
    int32_t sums[RP_QGEMM_NR] = {0};
    dots(q, panel, g->k, sums);
    for (size_t j = 0; j < n; j++) {
        const int32_t acc = sums[j] - row.zero * tail.colsum[j];
        const float scale = row.scale * tail.scale[j];
        out[j] =
            g->bias ? fmaf((float)acc, scale, g->bias[p * RP_QGEMM_NR + j]) : (float)acc * scale;
    }
    v16 x = v_activate(g->activation, v_load(out));
    v_store_result(g->c + m * g->ldc + p * RP_QGEMM_NR, x,
                   g->residual ? g->residual + m * g->ld_residual + p * RP_QGEMM_NR : NULL,
                   g->multiply, n);
}

void rp_qgemm_u8_4x16__scalar_run(const struct rp_qgemm_args *args, size_t m0, size_t m1, size_t p0,
                                  size_t p1)
{
    for (size_t m = m0; m < m1; m++)
        for (size_t p = p0; p < p1; p++)
            run_panel(args, m, p);
}

/* There are no registers to speak of: sixteen columns' products, in L1. */
size_t rp_qgemm_u8_4x16__scalar_peak(size_t rounds, void *sink)
{
    enum { K = 64 };
    int8_t panel[K * RP_QGEMM_NR];
    uint8_t q[K];
    int32_t sums[RP_QGEMM_NR] = {0};
    memcpy(q, sink, K);
    memset(panel, 1, sizeof panel);
    for (size_t r = 0; r < rounds; r++) {
        __asm__ volatile("" : : "r"(q), "r"(panel) : "memory");
        memset(sums, 0, sizeof sums);
        dots(q, panel, K, sums);
    }
    memcpy(sink, sums, sizeof sums);
    return rounds * K * RP_QGEMM_NR;
}
