/* The object behind rp_gdn_states: slots, what runs on them, and all memory that runs need. */
#ifndef RP_GDN_STATE_H
#define RP_GDN_STATE_H

#include <rankplan/gdn.h>

#include "gdn/blocks.h"
#include "gdn/gdn.h"
#include "ops/ops.h"

/* A sequence of the batch that is running. */
struct rp_gdn_seq {
    size_t slot, row0, n;
    const void *from; /* its state; NULL: zeros */
    void *to;         /* what it becomes; may be `from` */
    /* The same of what it keeps of the convolution, where that runs with the rule. */
    const float *kept_from;
    float *kept_to;
};

/* Where in a worker's scratch what lies, in bytes. */
struct rp_gdn_scratch {
    size_t kernel;          /* the kernel's own */
    size_t qkv, gates, out; /* of a chunk of rows of one key head */
    size_t state, step;     /* of one key head, f32 */
    /* Of gdn/block.c, where the convolution is as wide as q, k and v: the rows that go into it with
     * those before them, its weights, what gates are made of, and the z of a value head. */
    size_t conv_rows, conv_w, gate_rows, z;
    size_t bytes;
};

struct rp_gdn_states {
    rp_gdn_states_options options;
    const struct rp_gdn_kernel *kernel;
    const struct rp_ops *ops;
    size_t n_key_heads, n_value_heads, key_dim, value_dim;
    size_t per_key;     /* value heads of a key head */
    size_t head_floats; /* of the states of a key head's value heads */
    size_t floats;      /* of a slot's state */
    size_t conv_floats;
    struct rp_gdn_args args; /* one key head by itself, its rows packed by gdn/run.c */
    struct rp_blocks state, conv;
    struct rp_gdn_scratch at;
    unsigned char *scratch; /* at.bytes for each worker */
    size_t scratch_bytes;
    struct rp_gdn_seq *seqs; /* n_slots */
    bool *named;             /* n_slots, all false between runs: named by this batch already */
};

/* RP_ERR_INVALID for a slot that there is not. */
RP_CHECKED rp_status rp_gdn_check_slot(const rp_gdn_states *s, int32_t slot, rp_error *err);

/* RP_ERR_INVALID for states without a convolution. */
RP_CHECKED rp_status rp_gdn_check_conv(const rp_gdn_states *s, rp_error *err);

/* Whether its channels are those of q, k and v. */
bool rp_gdn_conv_feeds_rule(const rp_gdn_states *s);

static inline size_t rp_gdn_number_bytes(rp_dtype dtype)
{
    return dtype == RP_DTYPE_F32 ? sizeof(float) : sizeof(uint16_t);
}

/* n numbers from number `at` of a state as it is stored (NULL: zeros), and into one; that is true
 * when any of them is none, or is none any more. */
void rp_gdn_load(const rp_gdn_states *s, const void *stored, size_t at, float *x, size_t n);
bool rp_gdn_store(const rp_gdn_states *s, void *stored, size_t at, const float *x, size_t n);

/* x as it will be read again once stored; true when any of it is then no number. */
bool rp_gdn_round(const rp_gdn_states *s, float *x, size_t n);

/* The number of value head `head` of a key head's, and back. */
static inline size_t rp_gdn_head_of(const rp_gdn_states *s, size_t key_head, size_t i)
{
    return s->options.gdn.map == RP_GDN_TILED ? key_head + i * s->n_key_heads
                                              : key_head * s->per_key + i;
}

#endif
