/* Notes, and names made fit for messages. */
#include "models/notes.h"

#include "pool/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

rp_status rp_notes_add(struct rp_notes *notes, rp_error *err, const char *fmt, ...)
{
    char text[RP_ERROR_MESSAGE_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (notes->n == notes->cap) {
        const size_t cap = notes->cap ? notes->cap * 2 : 8;
        char **p = realloc(notes->text, cap * sizeof *p);
        if (!p)
            return rp_fail(err, RP_ERR_NOMEM, "no memory for a note");
        notes->text = p;
        notes->cap = cap;
    }
    char *copy = strdup(text);
    if (!copy)
        return rp_fail(err, RP_ERR_NOMEM, "no memory for a note");
    notes->text[notes->n++] = copy;
    return RP_OK;
}

void rp_notes_fini(struct rp_notes *notes)
{
    for (size_t i = 0; i < notes->n; i++)
        free(notes->text[i]);
    free(notes->text);
    *notes = (struct rp_notes){0};
}

const char *rp_show(const char *name, char buffer[RP_SHOWN_BYTES])
{
    const size_t room = RP_SHOWN_BYTES - sizeof "...";
    size_t n = strlen(name), cut = n;
    if (n > room) {
        cut = room;
        while (cut > 0 && ((unsigned char)name[cut] & 0xc0) == 0x80)
            cut--; /* not in the middle of a UTF-8 character */
    }
    for (size_t i = 0; i < cut; i++)
        buffer[i] = (unsigned char)name[i] < 0x20 || name[i] == 0x7f ? '?' : name[i];
    strcpy(buffer + cut, cut < n ? "..." : "");
    return buffer;
}

void rp_name_list_add(struct rp_name_list *list, const char *name)
{
    char shown[RP_SHOWN_BYTES];
    rp_show(name, shown);
    const size_t tail = sizeof " and 18446744073709551615 more";
    const size_t need = strlen(shown) + sizeof ", ";
    const size_t room = list->room > 0 && list->shown > 0 ? list->room : sizeof list->text;
    list->n++;
    if (list->shown + 1 != list->n || list->length + need + tail > room)
        return;
    list->length += (size_t)snprintf(list->text + list->length, sizeof list->text - list->length,
                                     "%s%s", list->shown ? ", " : "", shown);
    list->shown++;
}

const char *rp_name_list_text(struct rp_name_list *list)
{
    if (list->n > list->shown)
        snprintf(list->text + list->length, sizeof list->text - list->length, " and %zu more",
                 list->n - list->shown);
    return list->text;
}
