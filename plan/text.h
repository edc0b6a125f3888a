/* Text into a caller's buffer, snprintf's way: what does not fit is counted but not written. */
#ifndef RP_PLAN_TEXT_H
#define RP_PLAN_TEXT_H

#include <rankplan/status.h>

#include <stddef.h>

struct rp_text {
    char *buffer;
    size_t size, length;
};

struct rp_text rp_text_init(char *buffer, size_t size);

/* No floating-point conversions: those would follow the host program's locale. */
void rp_text_add(struct rp_text *text, const char *fmt, ...) RP_PRINTF(2, 3);

/* A number as %.9g writes it in the C locale, whatever the host program's locale is. */
void rp_text_float(struct rp_text *text, float x);

/* The same for a double, as %.17g. */
void rp_text_double(struct rp_text *text, double x);

#endif
