/* A gated delta net by itself, outside of any graph: a memory that lives across calls.
 *
 * Three notes are stored under three keys in one call, as a prompt is.  The memory is forked, which
 * copies nothing; then one of both goes on alone, one token a call: the second note is rewritten.
 * Asked for the same three keys, the two memories answer each for itself. */
#include <rankplan/rankplan.h>

#include <stdio.h>

enum { KEY = 8, VALUE = 4, NOTES = 3 };

/* A token that stores `value` under key number `key`; without a value one that asks for it. */
struct token {
    float q[KEY], k[KEY], v[VALUE], decay, beta;
};

static struct token store(int key, float value)
{
    struct token t = {.beta = 1}; /* decay: the logarithm of the factor, so 0 forgets nothing */
    t.k[key] = 1;
    for (int j = 0; j < VALUE; j++)
        t.v[j] = value + (float)j;
    return t;
}

static struct token ask(int key)
{
    struct token t = {.q = {0}};
    t.q[key] = 1;
    return t;
}

/* Runs n tokens, and n more if there are two sequences: those of slots[0], then those of slots[1].
 */
static rp_status run(rp_gdn_states *memory, size_t n_slots, const int32_t *slots, int32_t n,
                     const struct token *tokens, float *answers, rp_error *err)
{
    const size_t ld = sizeof *tokens / sizeof(float); /* from a token's floats to the next one's */
    const int32_t cu[] = {0, n, 2 * n};
    rp_gdn_batch batch;
    rp_gdn_batch_init(&batch);
    batch.n_seqs = n_slots;
    batch.slots = slots;
    batch.cu = cu;
    batch.q = (rp_gdn_input){tokens->q, ld};
    batch.k = (rp_gdn_input){tokens->k, ld};
    batch.v = (rp_gdn_input){tokens->v, ld};
    batch.decay = (rp_gdn_input){&tokens->decay, ld};
    batch.beta = (rp_gdn_input){&tokens->beta, ld};
    batch.out = answers;
    batch.ld_out = VALUE;
    return rp_gdn_run(memory, &batch, err);
}

static void print(const char *whose, const float *answers)
{
    for (int key = 0; key < NOTES; key++, answers += VALUE)
        printf("%s, key %d: %g %g %g %g\n", whose, key, (double)answers[0], (double)answers[1],
               (double)answers[2], (double)answers[3]);
}

int main(void)
{
    const int32_t slots[] = {0, 1};
    const struct token prompt[] = {store(0, 10), store(1, 20), store(2, 30)}, change = store(1, 50);
    const struct token questions[] = {ask(0), ask(1), ask(2), ask(0), ask(1), ask(2)};
    float answers[2 * NOTES * VALUE];
    rp_pool *pool = NULL;
    rp_gdn_states *memory = NULL;
    rp_error err = {RP_OK, ""};

    rp_gdn_states_options options;
    rp_gdn_states_options_init(&options);
    options.n_slots = 2;
    options.gdn =
        (rp_gdn){.n_key_heads = 1, .n_value_heads = 1, .key_dim = KEY, .value_dim = VALUE};
    options.gdn.scale = 1; /* and not 1/sqrt(key_dim) */

    rp_status status = rp_pool_create(NULL, &pool, &err);
    options.pool = pool;
    if (status == RP_OK)
        status = rp_gdn_states_create(&options, &memory, &err);
    if (status == RP_OK)
        status = run(memory, 1, &slots[0], NOTES, prompt, answers, &err);
    if (status == RP_OK)
        status = rp_gdn_states_fork(memory, 0, 1, &err);
    if (status == RP_OK)
        status = run(memory, 1, &slots[1], 1, &change, answers, &err);
    if (status == RP_OK)
        status = run(memory, 2, slots, NOTES, questions, answers, &err);
    int expected = 0;
    if (status == RP_OK) {
        expected = answers[1 * VALUE] == 20 && answers[(NOTES + 1) * VALUE] == 50;
        print("slot 0", answers);
        print("slot 1", answers + NOTES * VALUE);
    } else {
        fprintf(stderr, "%s: %s\n", rp_status_name(status), err.message);
    }

    rp_gdn_states_destroy(memory);
    rp_pool_destroy(pool);
    return expected ? 0 : 1;
}
