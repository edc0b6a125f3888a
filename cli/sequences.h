/* Distinct sequences of numbers, each kept once and known by its index: the texts that questions
 * are asked about, of which a file names the same ones again and again. */
#ifndef RP_CLI_SEQUENCES_H
#define RP_CLI_SEQUENCES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cli_sequence {
    uint64_t hash;
    size_t first, n; /* of the data */
};

/* Starts as zeros. */
struct cli_sequences {
    int32_t *data;
    size_t n_data, cap_data;
    struct cli_sequence *items;
    size_t n, cap;
    size_t *slots; /* an item's index + 1; 0: free */
    size_t n_slots;
};

/* Appends a number to the sequence that is being read, which begins where the data ended after the
 * last cli_sequences_end.  False: no memory. */
bool cli_sequences_add(struct cli_sequences *s, int32_t x);

/* Ends that sequence, which began at `first` of the data.  *index is that of the same one if there
 * was one before.  False: no memory. */
bool cli_sequences_end(struct cli_sequences *s, size_t first, size_t *index);

void cli_sequences_free(struct cli_sequences *s);

/* Room for n more elements of `size` bytes behind `used` ones; NULL, and the old memory still
 * there, when there is none. */
void *cli_grow(void *p, size_t used, size_t n, size_t size, size_t *cap);

#endif
