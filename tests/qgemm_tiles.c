/* qgemm/amx.c on tiles of plain C: what the instructions do, after Intel's SDM, with the faults
 * that they would raise as assertions. */
#define RP_V16_SCALAR
#define RP_QGEMM_AMX_PLAIN
#define RP_QGEMM_NAME test_qgemm_u8_32x32__tiles

#include "qgemm/qgemm.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

rp_qgemm_run_fn test_qgemm_u8_32x32__tiles_run;
rp_qgemm_peak_fn test_qgemm_u8_32x32__tiles_peak;

static struct {
    bool configured;
    uint16_t row_bytes[8];
    uint8_t n_rows[8];
    uint8_t bytes[8][16][64];
} unit;

static void require(bool ok)
{
    if (!ok)
        abort();
}

/* The layout of the instruction's 64 bytes. */
static void plain_configure(const void *config)
{
    const uint8_t *bytes = config;
    require(bytes[0] == 1 && bytes[1] == 0);
    for (int i = 2; i < 16; i++)
        require(bytes[i] == 0);
    memset(&unit, 0, sizeof unit);
    unit.configured = true;
    for (int t = 0; t < 8; t++) {
        memcpy(&unit.row_bytes[t], bytes + 16 + 2 * t, 2);
        unit.n_rows[t] = bytes[48 + t];
        require(unit.row_bytes[t] <= 64 && unit.n_rows[t] <= 16);
        require(unit.row_bytes[t] && unit.n_rows[t]);
    }
}

static void plain_zero(int t)
{
    require(unit.configured);
    memset(unit.bytes[t], 0, sizeof unit.bytes[t]);
}

static void plain_load(int t, const void *from, size_t stride)
{
    plain_zero(t);
    for (size_t r = 0; r < unit.n_rows[t]; r++)
        memcpy(unit.bytes[t][r], (const char *)from + r * stride, unit.row_bytes[t]);
}

static void plain_store(int t, void *to, size_t stride)
{
    require(unit.configured);
    for (size_t r = 0; r < unit.n_rows[t]; r++)
        memcpy((char *)to + r * stride, unit.bytes[t][r], unit.row_bytes[t]);
}

static void plain_dot(int c, int a, int b)
{
    require(unit.configured);
    require(unit.n_rows[c] == unit.n_rows[a]);
    require(unit.row_bytes[c] == unit.row_bytes[b]);
    require(unit.row_bytes[a] / 4 == unit.n_rows[b]);
    for (size_t m = 0; m < unit.n_rows[c]; m++) {
        for (size_t n = 0; n < unit.row_bytes[c] / 4u; n++) {
            int32_t sum;
            memcpy(&sum, &unit.bytes[c][m][4 * n], 4);
            for (size_t k = 0; k < unit.row_bytes[a]; k++)
                sum += unit.bytes[a][m][k] * (int8_t)unit.bytes[b][k / 4][4 * n + k % 4];
            memcpy(&unit.bytes[c][m][4 * n], &sum, 4);
        }
    }
}

#define AMX_CONFIGURE(config)   plain_configure(config)
#define AMX_RELEASE()           unit.configured = false
#define AMX_ZERO(t)             plain_zero(t)
#define AMX_LOAD(t, p, stride)  plain_load(t, p, stride)
#define AMX_STORE(t, p, stride) plain_store(t, p, stride)
#define AMX_DOT(c, a, b)        plain_dot(c, a, b)
#include "qgemm/amx.c"
