/* Text into a caller's buffer. */
#include "plan/text.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

struct rp_text rp_text_init(char *buffer, size_t size)
{
    if (size)
        buffer[0] = 0;
    return (struct rp_text){.buffer = buffer, .size = size, .length = 0};
}

static void append(struct rp_text *text, const char *piece, size_t length)
{
    if (text->length < text->size) {
        const size_t room = text->size - text->length - 1;
        const size_t take = length < room ? length : room;
        memcpy(text->buffer + text->length, piece, take);
        text->buffer[text->length + take] = 0;
    }
    text->length += length;
}

void rp_text_add(struct rp_text *text, const char *fmt, ...)
{
    char piece[1024];
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(piece, sizeof piece, fmt, args);
    va_end(args);
    if (n > 0)
        append(text, piece, strlen(piece));
}

/* Whatever stands between the digits and is not part of a number is the locale's decimal point. */
static void add_number(struct rp_text *text, char *piece)
{
    size_t n = 0;
    bool in_point = false;
    for (const char *p = piece; *p; p++) {
        const bool plain = strchr("0123456789+-einfa", *p) != NULL;
        if (plain)
            piece[n++] = *p;
        else if (!in_point)
            piece[n++] = '.';
        in_point = !plain;
    }
    append(text, piece, n);
}

void rp_text_float(struct rp_text *text, float x)
{
    char piece[32];
    snprintf(piece, sizeof piece, "%.9g", (double)x);
    add_number(text, piece);
}

void rp_text_double(struct rp_text *text, double x)
{
    char piece[48];
    snprintf(piece, sizeof piece, "%.17g", x);
    add_number(text, piece);
}
