/* What a loaded model has to say beside its results: defaults that were taken, tensors that were
 * not. */
#ifndef RP_MODELS_NOTES_H
#define RP_MODELS_NOTES_H

#include <rankplan/status.h>

#include <stddef.h>

struct rp_notes {
    char **text;
    size_t n, cap;
};

/* Adds a note, cut at the size of an error message.  RP_ERR_NOMEM. */
RP_CHECKED rp_status rp_notes_add(struct rp_notes *notes, rp_error *err, const char *fmt, ...)
    RP_PRINTF(3, 4);

void rp_notes_fini(struct rp_notes *notes);

/* Names from a file are shown in messages, and messages on terminals: control characters become '?'
 * and long names are cut.  Returns `buffer`. */
#define RP_SHOWN_BYTES 112
const char *rp_show(const char *name, char buffer[RP_SHOWN_BYTES]);

/* A list of names for one message: "a, b, c and 5 more". */
struct rp_name_list {
    char text[400];
    size_t length, n, shown;
    size_t room; /* of the text, where it shares a message with others; 0: all of it */
};

void rp_name_list_add(struct rp_name_list *list, const char *name);

/* Completes the text (" and 5 more") and returns it. */
const char *rp_name_list_text(struct rp_name_list *list);

#endif
