/* The recurrent half of a hybrid layer, outside of any graph: a prompt in one call, then token by
 * token, as a program does that has its own projections.
 *
 * The projections here are made-up numbers, packed by key head as Qwen3-Next packs them.  Another
 * slot gets all tokens at once: both ways must end with the same answer. */
#include <rankplan/rankplan.h>

#include <math.h>
#include <stdint.h>
#include <stdio.h>

enum {
    KEY_HEADS = 2,
    VALUE_HEADS = 4,
    DIM = 16, /* of keys and of values */
    KERNEL = 4,
    PROMPT = 40,
    TOKENS = 45,
    CHANNELS = 2 * KEY_HEADS * DIM + VALUE_HEADS * DIM, /* q, k and v */
    QKVZ = CHANNELS + VALUE_HEADS * DIM,
    BA = 2 * VALUE_HEADS,
    OUT = VALUE_HEADS * DIM
};

static float conv_w[CHANNELS * KERNEL], a_log[VALUE_HEADS], dt_bias[VALUE_HEADS], norm_w[DIM];
static float qkvz[TOKENS * QKVZ], ba[TOKENS * BA];

static void make_up(float *x, size_t n)
{
    static uint32_t state = 1;
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525 + 1013904223;
        x[i] = (float)(state >> 8) / (1 << 23) - 1;
    }
}

/* Tokens [first, first + n) of a slot's sequence. */
static rp_status run(rp_gdn_states *states, const rp_gdn_block *block, int32_t slot, int32_t first,
                     int32_t n, float *out, rp_error *err)
{
    const int32_t cu[] = {0, n};
    rp_gdn_block_batch batch;
    rp_gdn_block_batch_init(&batch);
    batch.n_seqs = 1;
    batch.slots = &slot;
    batch.cu = cu;
    batch.qkvz = (rp_gdn_projection){qkvz + first * QKVZ, QKVZ, RP_DTYPE_F32};
    batch.ba = (rp_gdn_projection){ba + first * BA, BA, RP_DTYPE_F32};
    batch.out = out;
    batch.ld_out = OUT;
    return rp_gdn_run_block(states, block, &batch, err);
}

int main(void)
{
    static float out[TOKENS * OUT], whole[TOKENS * OUT];
    rp_pool *pool = NULL;
    rp_gdn_states *states = NULL;
    rp_error err = {RP_OK, ""};

    make_up(qkvz, TOKENS * QKVZ);
    make_up(ba, TOKENS * BA);
    make_up(conv_w, CHANNELS * KERNEL);
    make_up(a_log, VALUE_HEADS);
    make_up(dt_bias, VALUE_HEADS);
    make_up(norm_w, DIM);
    rp_gdn_block block;
    rp_gdn_block_init(&block);
    block.conv_w = conv_w;
    block.a_log = a_log;
    block.dt_bias = dt_bias;
    block.norm_w = norm_w;

    rp_gdn_states_options options;
    rp_gdn_states_options_init(&options);
    options.n_slots = 2;
    options.gdn = (rp_gdn){.n_key_heads = KEY_HEADS,
                           .n_value_heads = VALUE_HEADS,
                           .key_dim = DIM,
                           .value_dim = DIM,
                           .norm = RP_GDN_NORM_ROOT,
                           .eps = 1e-6f};
    options.conv_channels = CHANNELS;
    options.conv_kernel = KERNEL;

    rp_status status = rp_pool_create(NULL, &pool, &err);
    options.pool = pool;
    if (status == RP_OK)
        status = rp_gdn_states_create(&options, &states, &err);
    if (status == RP_OK)
        status = run(states, &block, 0, 0, PROMPT, out, &err);
    for (int32_t t = PROMPT; t < TOKENS && status == RP_OK; t++)
        status = run(states, &block, 0, t, 1, out + t * OUT, &err);
    if (status == RP_OK)
        status = run(states, &block, 1, 0, TOKENS, whole, &err);
    float off = 0;
    if (status == RP_OK) {
        for (int i = 0; i < TOKENS * OUT; i++)
            off = fmaxf(off, fabsf(out[i] - whole[i]));
        printf("last token: %g %g %g ...\n", (double)out[(TOKENS - 1) * OUT],
               (double)out[(TOKENS - 1) * OUT + 1], (double)out[(TOKENS - 1) * OUT + 2]);
        printf("one by one and all at once are %.1g apart\n", (double)off);
    } else {
        fprintf(stderr, "%s: %s\n", rp_status_name(status), err.message);
    }

    rp_gdn_states_destroy(states);
    rp_pool_destroy(pool);
    return status == RP_OK && off < 1e-4f ? 0 : 1;
}
