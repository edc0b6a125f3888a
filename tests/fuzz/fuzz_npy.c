/* A .npy file: refused with a message, or sizes that are exactly those of the file. */
#include "cli/npy.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct cli_npy_header h;
    rp_error err;
    const size_t n = size < CLI_NPY_HEADER_BYTES ? size : CLI_NPY_HEADER_BYTES;
    if (cli_npy_parse("x.npy", data, n, size, &h, &err) != RP_OK) {
        FUZZ_CHECK(strncmp(err.message, "x.npy: ", 7) == 0);
        return 0;
    }
    FUZZ_CHECK(h.data <= size && (size - h.data) % 4 == 0);
    FUZZ_CHECK(h.width == 0 || h.rows == (size - h.data) / 4 / h.width);
    return 0;
}
