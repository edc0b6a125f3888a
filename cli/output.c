/* Writing numbers, strings and .npy headers.  printf's numbers follow the locale, these never do.
 */
#include "cli/cli.h"

#include <string.h>

void cli_format_double(char out[CLI_NUMBER_BYTES], double x, int digits)
{
    /* Keeps what belongs to a number and makes one '.' of whatever else stands inside it. */
    char piece[CLI_NUMBER_BYTES];
    bool in_point = false;
    size_t n = 0;
    snprintf(piece, sizeof piece, "%.*g", digits, x);
    for (const char *s = piece; *s; s++) {
        const bool plain = strchr("0123456789+-einfa", *s) != NULL;
        if (plain)
            out[n++] = *s;
        else if (!in_point)
            out[n++] = '.';
        in_point = !plain;
    }
    out[n] = 0;
}

void cli_put_float(FILE *f, float x)
{
    cli_put_double(f, (double)x, 9);
}

void cli_put_double(FILE *f, double x, int digits)
{
    char piece[CLI_NUMBER_BYTES];
    cli_format_double(piece, x, digits);
    fputs(piece, f);
}

void cli_put_json_string(FILE *f, const char *s, size_t n)
{
    static const char names[] = "\b\t\n\f\r\"\\", letters[] = "btnfr\"\\";
    putc('"', f);
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)s[i];
        const char *name = c ? strchr(names, c) : NULL;
        if (name)
            fprintf(f, "\\%c", letters[name - names]);
        else if (c < 0x20)
            fprintf(f, "\\u%04X", c);
        else
            putc(c, f);
    }
    putc('"', f);
}

void cli_put_npy_header(FILE *f, size_t rows, size_t columns)
{
    /* Magic, version, length and dictionary together are a multiple of 64 bytes and end with a
     * newline. */
    char dict[128];
    const int n =
        snprintf(dict, sizeof dict,
                 "{'descr': '<f4', 'fortran_order': False, 'shape': (%zu, %zu), }", rows, columns);
    const size_t total = ((size_t)n + 10 + 1 + 63) / 64 * 64;
    const size_t length = total - 10;
    fwrite("\x93NUMPY\x01\x00", 1, 8, f);
    putc((int)(length & 0xff), f);
    putc((int)(length >> 8), f);
    fputs(dict, f);
    for (size_t i = (size_t)n; i + 1 < length; i++)
        putc(' ', f);
    putc('\n', f);
}

void cli_put_floats(const char *key, const float *x, size_t n)
{
    printf(",\"%s\":[", key);
    for (size_t i = 0; i < n; i++) {
        if (i)
            putchar(',');
        cli_put_float(stdout, x[i]);
    }
    putchar(']');
}
