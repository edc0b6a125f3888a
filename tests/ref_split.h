/* The split encoder of models/split.h once more: a maker of tiny random checkpoints, and the
 * forward in double and in plain loops from the formulas of the published family, which loaded
 * models are held against. */
#ifndef RP_TESTS_REF_SPLIT_H
#define RP_TESTS_REF_SPLIT_H

#include "tests/model_maker.h"

struct split_maker {
    int heads, inter, vocab; /* heads of 64 */
    int layers, every, window, top, max_segments;
    int question_layers, kv_heads;
    double theta[2], eps; /* bases of full and of sliding layers */
    uint64_t seed;
    struct maker_tensor *tensors;
    size_t n_tensors;
};

/* Small, and with layers of every kind. */
struct split_maker split_maker_default(void);
void split_maker_fill(struct split_maker *m);
void split_maker_free(struct split_maker *m);
int split_maker_width(const struct split_maker *m);
int split_maker_memory_width(const struct split_maker *m);
/* The tensor of that name; the test fails when there is none. */
struct maker_tensor *split_maker_find(const struct split_maker *m, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* kime.json; to be changed and freed by the caller. */
json_t *split_maker_config(const struct split_maker *m);
/* Both files; values are rounded to dtype in the model too. */
void split_maker_write(struct split_maker *m, const struct maker_dir *dir, enum maker_dtype dtype);

struct ref_memory {
    size_t n;
    double *rows;   /* n x memory width: K_0, V_0, K_1, ... */
    double *pooled; /* width */
};

/* A whole state: ids of one text.  In segments: n_segments of lengths[i] ids, one after the other.
 */
struct ref_memory ref_state(const struct split_maker *m, const int32_t *ids, size_t n);
struct ref_memory ref_segments(const struct split_maker *m, const int32_t *ids,
                               const size_t *lengths, size_t n_segments);
void ref_memory_free(struct ref_memory *memory);

/* logits: one for each marker. */
void ref_question(const struct split_maker *m, const struct ref_memory *memory, int type,
                  const int32_t *ids, size_t n, const int32_t *markers, size_t n_markers,
                  double *logits);

#endif
