/* How rows of Q are cut into blocks that stay in L2. */
#ifndef RP_QGEMM_BLOCK_H
#define RP_QGEMM_BLOCK_H

#include "qgemm/qgemm.h"

/* Bytes of Q in a block: half of the smallest L2 in use; the other half is for the panels and the
 * lines of C that pass through. */
#define RP_QGEMM_BLOCK_BYTES ((size_t)256 * 1024)

/* Tiles of rows in a block at least: with fewer, weights come from memory too often. */
#define RP_QGEMM_TILES_MIN 4

/* Rows of a block: a multiple of mr. */
static inline size_t rp_qgemm_block_rows(size_t mr, size_t k)
{
    size_t rows = RP_QGEMM_BLOCK_BYTES / rp_qgemm_row_bytes(k);
    if (rows < RP_QGEMM_TILES_MIN * mr)
        rows = RP_QGEMM_TILES_MIN * mr;
    return rows / mr * mr;
}

#endif
