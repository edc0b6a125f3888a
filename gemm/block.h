/* How rows of A are cut: into blocks that stay in L2, and blocks into register tiles. */
#ifndef RP_GEMM_BLOCK_H
#define RP_GEMM_BLOCK_H

#include <stddef.h>

/* Rows of a block at most; the kernels keep buffers for so many on the stack. */
#define RP_GEMM_ROWS_MAX 192

/* Floats of A in a block: 256 KiB, half of the smallest L2 in use; the other half is for the panels
 * and the lines of C that pass through. */
#define RP_GEMM_BLOCK_FLOATS ((size_t)64 * 1024)

/* Tiles of rows in a block at least: with fewer, weights come from memory too often. */
#define RP_GEMM_TILES_MIN 4

/* Rows of a block: a multiple of mr. */
static inline size_t rp_gemm_block_rows(size_t mr, size_t k)
{
    size_t rows = RP_GEMM_BLOCK_FLOATS / (k + !k);
    if (rows > RP_GEMM_ROWS_MAX)
        rows = RP_GEMM_ROWS_MAX;
    if (rows < RP_GEMM_TILES_MIN * mr)
        rows = RP_GEMM_TILES_MIN * mr;
    return rows / mr * mr;
}

#endif
