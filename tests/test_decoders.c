/* The decoder families from file to numbers: reference outputs of the oracles, and a reference in
 * double (tests/ref_decoder.c) at sizes, lengths and options that no oracle has.  Then the
 * spellings of one model, its heads, and what loading must refuse or tell. */
#include "models/decoder.h"
#include "pool/error.h"
#include "tests/model_maker.h"
#include "tests/model_run.h"
#include "tests/ref_decoder.h"
#include "tests/scratch.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void random_ids(uint64_t *rng, const struct maker_model *m, int32_t *ids, size_t n)
{
    for (size_t t = 0; t < n; t++)
        ids[t] = (int32_t)(maker_random(rng) % (uint64_t)m->vocab);
}

/* ---- against the reference --------------------------------------------------------------------
 */

/* The model's states and head on one text. */
static void compare_one(const struct maker_model *m, const rp_model *model, const int32_t *ids,
                        size_t n, const char *what)
{
    const int32_t cu[2] = {0, (int32_t)n};
    struct ref_result ref = ref_decode(m, ids, n);
    struct run r = run_model(model, ids, NULL, cu, 1);
    char text[200];
    for (size_t i = 0; i <= ref.layers; i++) {
        snprintf(text, sizeof text, "%s, %zu tokens, hidden state %zu", what, n, i);
        assert_non_null(r.capture.states[i]);
        run_compare(text, r.capture.states[i], ref.states + i * n * ref.hidden, n * ref.hidden);
    }
    snprintf(text, sizeof text, "%s, %zu tokens, head", what, n);
    if (ref.labels > 0) {
        assert_int_equal(run_output(&r, "logits").width, ref.labels);
        run_compare(text, run_output(&r, "logits").data, ref.logits, ref.labels);
    } else {
        assert_memory_equal(run_output(&r, "embedding").data,
                            r.capture.states[ref.layers] + (n - 1) * ref.hidden,
                            ref.hidden * sizeof(float));
    }
    run_end(&r);
    ref_free(&ref);
}

/* What is 0 here is as maker_model_default has it. */
static const struct shape {
    const char *family;
    int hidden, heads, intermediate, layers, labels;
    struct maker_decoder decoder;
    enum maker_dtype dtype;
    bool no_rope, stands_alone /* parameters false */, one_beta, as_is /* normalize false */;
} shapes[] = {
    {"qwen3",
     17,
     4,
     23,
     2,
     0,
     {.types = "ff", .kv_heads = 4, .head_dim = 6},
     MAKER_F32,
     0,
     0,
     0,
     0},
    {"qwen3",
     16,
     6,
     24,
     3,
     1,
     {.types = "fsf", .kv_heads = 3, .head_dim = 4, .window = 5, .attention_bias = true},
     MAKER_F16,
     0,
     1,
     0,
     0},
    {"qwen3",
     20,
     3,
     9,
     2,
     0,
     {.types = "ss", .kv_heads = 1, .head_dim = 10, .window = 40, .predicts = true, .tied = true},
     MAKER_BF16,
     0,
     0,
     0,
     0},
    {"qwen3_next", 16, 4, 24, 3, 0, {.predicts = true}, MAKER_F32, 0, 0, 0, 0},
    {"qwen3_next",
     19,
     2,
     11,
     4,
     2,
     {.types = "lflf",
      .kv_heads = 1,
      .head_dim = 16,
      .part = 0.25,
      .key_heads = 3,
      .value_heads = 9,
      .key_dim = 17,
      .value_dim = 7,
      .kernel = 2,
      .experts = 3,
      .used = 3,
      .expert_inner = 5,
      .shared_inner = 20,
      .dense_layer = 1,
      .stacked = true,
      .attention_bias = true},
     MAKER_BF16,
     0,
     1,
     0,
     0},
    {"qwen3_next",
     24,
     4,
     13,
     3,
     0,
     {.types = "lll",
      .key_heads = 1,
      .value_heads = 2,
      .key_dim = 5,
      .value_dim = 33,
      .kernel = 8,
      .experts = 9,
      .used = 1,
      .expert_inner = 16,
      .shared_inner = 1,
      .sparse_every = 2},
     MAKER_F16,
     0,
     0,
     0,
     1},
    {"qwen3_5_text", 16, 4, 24, 3, 1, {.kv_heads = 4}, MAKER_F32, 0, 0, 0, 0},
    {"qwen3_5_text",
     33,
     5,
     40,
     2,
     0,
     {.types = "fl",
      .kv_heads = 5,
      .head_dim = 12,
      .part = 1,
      .key_heads = 4,
      .value_heads = 4,
      .key_dim = 48,
      .value_dim = 16,
      .kernel = 1},
     MAKER_F16,
     0,
     0,
     0,
     0},
    {"qwen3_5", 16, 4, 24, 3, 3, {.text_part = true}, MAKER_BF16, 0, 0, 0, 0},
    {"olmo_hybrid", 16, 4, 24, 3, 0, {.predicts = true}, MAKER_F32, 0, 0, 0, 0},
    {"olmo_hybrid",
     21,
     6,
     10,
     4,
     0,
     {.types = "flfl",
      .kv_heads = 2,
      .head_dim = 4,
      .key_heads = 2,
      .value_heads = 6,
      .key_dim = 3,
      .value_dim = 20,
      .published = true},
     MAKER_BF16,
     1,
     0,
     1,
     0},
};

static struct maker_model model_of(const struct shape *s, uint64_t seed)
{
    struct maker_model m = maker_model_default(s->family);
    struct maker_decoder *d = &m.decoder;
    const struct maker_decoder *given = &s->decoder;
    const struct {
        int *to, from;
    } sizes[] = {{&d->kv_heads, given->kv_heads},
                 {&d->head_dim, given->head_dim},
                 {&d->window, given->window},
                 {&d->key_heads, given->key_heads},
                 {&d->value_heads, given->value_heads},
                 {&d->key_dim, given->key_dim},
                 {&d->value_dim, given->value_dim},
                 {&d->kernel, given->kernel},
                 {&d->experts, given->experts},
                 {&d->used, given->used},
                 {&d->expert_inner, given->expert_inner},
                 {&d->shared_inner, given->shared_inner},
                 {&d->sparse_every, given->sparse_every},
                 {&d->dense_layer, given->dense_layer}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].from != 0)
            *sizes[i].to = sizes[i].from;
    m.hidden = s->hidden;
    m.heads = s->heads;
    m.intermediate = s->intermediate;
    m.layers = s->layers;
    m.labels = s->labels;
    m.seed = seed;
    d->types = given->types ? given->types : d->types;
    d->part = given->part > 0 ? given->part : d->part;
    d->theta = s->no_rope ? 0 : d->theta;
    d->attention_bias = given->attention_bias;
    d->tied = given->tied;
    d->published = given->published;
    d->stacked = given->stacked;
    d->predicts = given->predicts;
    d->text_part = given->text_part;
    d->parameters = !s->stands_alone;
    d->normalize = !s->as_is;
    d->twice_beta = d->twice_beta && !s->one_beta;
    maker_model_fill(&m);
    return m;
}

/* Around the chunks of the delta rule and the window. */
static void test_reference(void **state)
{
    (void)state;
    static const size_t lengths[] = {1, 2, 5, 6, 31, 33, 64, 65, 130};
    uint64_t rng = 20250607;
    run_worst = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct maker_model m = model_of(&shapes[i], i + 700);
        maker_model_write(&m, &dir,
                          &(struct maker_write_options){.dtype = shapes[i].dtype,
                                                        .prefix = m.labels > 0 ||
                                                                  m.decoder.predicts || i % 2 == 0,
                                                        .shards = i % 3 == 1 ? 2 : 0});
        rp_model *model = run_load(dir.path, RP_MODEL_ALL_OUTPUTS);
        for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
            int32_t ids[130];
            char what[80];
            random_ids(&rng, &m, ids, lengths[k]);
            snprintf(what, sizeof what, "shape %zu (%s)", i, m.family);
            compare_one(&m, model, ids, lengths[k], what);
        }
        rp_model_destroy(model);
        maker_model_free(&m);
        remove(maker_path(&dir, "model.safetensors.index.json"));
    }
    print_message("worst of the shapes: %.3g of the tensor's largest\n", run_worst);
}

/* ---- spellings --------------------------------------------------------------------------------
 */

/* The last token's logits on a fixed text, to the bit. */
static void logits_of(const rp_model *model, size_t n, float *out)
{
    static const int32_t ids[] = {2, 7, 1, 8, 2, 8, 1, 8, 28, 4}, cu[] = {0, 10};
    struct run r = run_model(model, ids, NULL, cu, 1);
    const rp_view v = run_output(&r, "logits");
    assert_true(v.rows == 1 && v.width == n);
    memcpy(out, v.data, n * sizeof *out);
    run_end(&r);
}

static void load_logits(struct maker_model *m, size_t n, float *out)
{
    maker_model_write(m, &dir, &(struct maker_write_options){.prefix = true});
    rp_model *model = run_load(dir.path, 0);
    logits_of(model, n, out);
    rp_model_destroy(model);
}

/* Row `row` of the split model's tensor from row `at` of the fused one's. */
static void take_row(const struct maker_model *split, const struct maker_model *fused, int layer,
                     const char *to, size_t row, const char *from, size_t at)
{
    const size_t h = (size_t)split->hidden;
    memcpy(maker_model_find(split, "layers.%d.linear_attn.%s.weight", layer, to)->data + row * h,
           maker_model_find(fused, "layers.%d.linear_attn.%s.weight", layer, from)->data + at * h,
           h * sizeof(float));
}

/* Field case P8: two key heads, each with two value heads; fused by key head, or apart. */
static void split_projections(const struct maker_model *split, const struct maker_model *fused,
                              int layer)
{
    enum { KEYS = 2, PER_KEY = 2, DK = 6, DV = 5, GROUP = 2 * DK + 2 * PER_KEY * DV };
    for (size_t k = 0; k < KEYS; k++) {
        for (size_t i = 0; i < DK; i++) {
            take_row(split, fused, layer, "in_proj_qkv", k * DK + i, "in_proj_qkvz", k * GROUP + i);
            take_row(split, fused, layer, "in_proj_qkv", (KEYS + k) * DK + i, "in_proj_qkvz",
                     k * GROUP + DK + i);
        }
        for (size_t r = 0; r < PER_KEY; r++) {
            const size_t v = k * PER_KEY + r;
            for (size_t i = 0; i < DV; i++) {
                take_row(split, fused, layer, "in_proj_qkv", 2 * KEYS * DK + v * DV + i,
                         "in_proj_qkvz", k * GROUP + 2 * DK + r * DV + i);
                take_row(split, fused, layer, "in_proj_z", v * DV + i, "in_proj_qkvz",
                         k * GROUP + 2 * DK + (PER_KEY + r) * DV + i);
            }
            take_row(split, fused, layer, "in_proj_b", v, "in_proj_ba", k * 2 * PER_KEY + r);
            take_row(split, fused, layer, "in_proj_a", v, "in_proj_ba",
                     k * 2 * PER_KEY + PER_KEY + r);
        }
    }
}

static void test_packings(void **state)
{
    (void)state;
    struct maker_model fused = maker_model_default("qwen3_next");
    struct maker_model split = maker_model_default("qwen3_5_text");
    float due[2], found[2];
    fused.decoder.experts = 0;
    fused.labels = split.labels = 2;
    maker_model_fill(&fused);
    maker_model_fill(&split);
    for (size_t i = 0; i < split.n_tensors; i++) {
        struct maker_tensor *t = &split.tensors[i];
        if (strstr(t->name, "in_proj"))
            memset(t->data, 0, t->n * sizeof(float));
        else
            memcpy(t->data, maker_model_find(&fused, "%s", t->name)->data, t->n * sizeof(float));
    }
    for (int layer = 0; layer < 2; layer++)
        split_projections(&split, &fused, layer);
    load_logits(&fused, 2, due);
    load_logits(&split, 2, found);
    assert_memory_equal(found, due, sizeof due);
    /* The same as the text part of a model that sees pictures. */
    split.family = "qwen3_5";
    split.decoder.text_part = true;
    load_logits(&split, 2, found);
    assert_memory_equal(found, due, sizeof due);
    maker_model_free(&fused);
    maker_model_free(&split);
}

/* Experts in tensors of their own, or stacked. */
static void test_experts(void **state)
{
    (void)state;
    struct maker_model apart = maker_model_default("qwen3_next"), stacked = apart;
    float due[2], found[2];
    stacked.decoder.stacked = true;
    apart.labels = stacked.labels = 2;
    maker_model_fill(&apart);
    maker_model_fill(&stacked);
    const size_t inner = 9, h = 16, bytes = inner * h * sizeof(float);
    for (size_t i = 0; i < stacked.n_tensors; i++) {
        struct maker_tensor *t = &stacked.tensors[i];
        if (!strstr(t->name, "mlp.experts."))
            memcpy(t->data, maker_model_find(&apart, "%s", t->name)->data, t->n * sizeof(float));
    }
    for (int layer = 0; layer < 3; layer++)
        for (size_t e = 0; e < 5; e++) {
            float *up =
                maker_model_find(&stacked, "layers.%d.mlp.experts.gate_up_proj", layer)->data;
            float *down =
                maker_model_find(&stacked, "layers.%d.mlp.experts.down_proj", layer)->data;
            memcpy(up + 2 * e * inner * h,
                   maker_model_find(&apart, "layers.%d.mlp.experts.%zu.gate_proj.weight", layer, e)
                       ->data,
                   bytes);
            memcpy(up + (2 * e + 1) * inner * h,
                   maker_model_find(&apart, "layers.%d.mlp.experts.%zu.up_proj.weight", layer, e)
                       ->data,
                   bytes);
            memcpy(down + e * inner * h,
                   maker_model_find(&apart, "layers.%d.mlp.experts.%zu.down_proj.weight", layer, e)
                       ->data,
                   bytes);
        }
    load_logits(&apart, 2, due);
    load_logits(&stacked, 2, found);
    assert_memory_equal(found, due, sizeof due);
    maker_model_free(&apart);
    maker_model_free(&stacked);
}

/* ---- heads ------------------------------------------------------------------------------------
 */

/* A language model that answers: tokens 9 and 4 are "yes" and "no". */
static void write_answers(void)
{
    maker_write_text(&dir, "tokenizer.json",
                     "{\"added_tokens\":[{\"id\":49,\"content\":\"<end>\"}],"
                     "\"model\":{\"type\":\"BPE\",\"vocab\":{\"no\":4,\"maybe\":5,\"yes\":9}}}");
}

static void test_answers(void **state)
{
    (void)state;
    static const char *const families[] = {"qwen3", "qwen3_next", "qwen3_5_text", "olmo_hybrid"};
    float all[50], one;
    for (size_t i = 0; i < 4; i++) {
        struct maker_model m = maker_model_default(families[i]);
        m.decoder.predicts = true;
        m.decoder.tied = i % 2 == 0;
        maker_model_fill(&m);
        remove(maker_path(&dir, "tokenizer.json"));
        load_logits(&m, 50, all);
        write_answers();
        maker_model_write(&m, &dir, &(struct maker_write_options){.prefix = true});
        rp_model *model = run_load(dir.path, 0);
        logits_of(model, 1, &one);
        assert_true(fabsf(one - (all[9] - all[4])) < 1e-5f);
        const rp_model_info info = run_info(model);
        assert_int_equal(info.task, RP_TASK_CLASSIFY);
        assert_int_equal(info.n_labels, 1);
        assert_int_equal(info.score_activation, RP_ACT_SIGMOID);
        assert_says(rp_model_note(model, 0), "\"yes\"");
        rp_model_destroy(model);
        maker_model_free(&m);
    }
    remove(maker_path(&dir, "tokenizer.json"));
}

/* config.json says that the head is the table of ids, but there is a head. */
static void test_tied_with_head(void **state)
{
    (void)state;
    struct maker_model m = maker_model_default("qwen3");
    float due[50], found[50];
    m.decoder.predicts = true;
    maker_model_fill(&m);
    load_logits(&m, 50, due);
    m.decoder.tied = true; /* of what is written of config.json; the tensors are made */
    load_logits(&m, 50, found);
    assert_memory_equal(found, due, sizeof due);
    maker_model_free(&m);
}

/* What the modules after the transformer make of what it is said to do. */
static void expect_task(const char *task, rp_status due)
{
    char text[80];
    rp_model *model = NULL;
    rp_error err = {0};
    snprintf(text, sizeof text, "{\"transformer_task\":\"%s\"}", task);
    maker_write_text(&dir, "sentence_bert_config.json", text);
    maker_write_text(&dir, "1_LogitScore/config.json", "{\"true_token_id\":7}");
    const rp_status s = rp_model_load(dir.path, NULL, &model, &err);
    if (s != due)
        print_error("%s: %s\n", task, err.message);
    assert_int_equal(s, due);
    if (s != RP_OK)
        assert_says(err.message, "transformer_task");
    rp_model_destroy(model);
}

/* Answers that LogitScore names; one of them alone. */
static void test_logit_score(void **state)
{
    (void)state;
    static const char modules[] =
        "[{\"idx\":0,\"name\":\"0\",\"path\":\"\",\"type\":\"sentence_transformers.models."
        "Transformer\"},"
        "{\"idx\":1,\"name\":\"1\",\"path\":\"1_LogitScore\",\"type\":"
        "\"sentence_transformers.cross_encoder.modules.logit_score.LogitScore\"}]";
    static const char only_transformer[] =
        "[{\"idx\":0,\"name\":\"0\",\"path\":\"\",\"type\":\"sentence_transformers.models."
        "Transformer\"}]";
    static const char pooling[] =
        "[{\"idx\":0,\"name\":\"0\",\"path\":\"\",\"type\":\"sentence_transformers.models."
        "Transformer\"},"
        "{\"idx\":1,\"name\":\"1\",\"path\":\"1_Pooling\",\"type\":"
        "\"sentence_transformers.models.Pooling\"}]";
    static const struct {
        const char *config;
        int plus, minus; /* plus -1: refused */
        const char *word;
    } cases[] = {
        {"{\"true_token_id\":7,\"false_token_id\":3}", 7, 3, NULL},
        {"{\"true_token_id\":7,\"module_input_name\":\"causal_logits\"}", 7, -1, NULL},
        {"{\"true_token_id\":7,\"false_token_id\":null}", 7, -1, NULL},
        {"{\"true_token_id\":50,\"false_token_id\":3}", -1, 0, "vocab_size"},
        {"{\"true_token_id\":7,\"false_token_id\":50}", -1, 0, "vocab_size"},
        {"{\"true_token_id\":-1}", -1, 0, "true_token_id"},
        {"{\"false_token_id\":1}", -1, 0, "true_token_id"},
        {"{\"true_token_id\":7,\"module_input_name\":\"scores\"}", -1, 0, "module_input_name"},
    };
    struct maker_model m = maker_model_default("qwen3");
    float all[50], one;
    m.decoder.predicts = true;
    maker_model_fill(&m);
    load_logits(&m, 50, all);
    write_answers(); /* says otherwise, and is not asked */
    maker_write_text(&dir, "modules.json", modules);
    maker_mkdir(&dir, "1_LogitScore");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rp_model *model = NULL;
        rp_error err = {0};
        maker_write_text(&dir, "1_LogitScore/config.json", cases[i].config);
        const rp_status s = rp_model_load(dir.path, NULL, &model, &err);
        if (cases[i].plus < 0) {
            assert_int_not_equal(s, RP_OK);
            assert_says(err.message, cases[i].word);
            continue;
        }
        if (s != RP_OK)
            fail_msg("%s: %s", cases[i].config, err.message);
        logits_of(model, 1, &one);
        assert_true(fabsf(one - (all[cases[i].plus] -
                                 (cases[i].minus < 0 ? 0 : all[cases[i].minus]))) < 1e-5f);
        rp_model_destroy(model);
    }
    expect_task("text-generation", RP_OK);
    expect_task("feature-extraction", RP_ERR_UNSUPPORTED);
    expect_task("sequence-classification", RP_ERR_UNSUPPORTED);
    maker_mkdir(&dir, "1_Pooling");
    maker_write_text(&dir, "1_Pooling/config.json",
                     "{\"word_embedding_dimension\":16,\"pooling_mode_lasttoken\":true}");
    maker_write_text(&dir, "modules.json", pooling);
    expect_task("text-generation", RP_ERR_UNSUPPORTED);
    expect_task("feature-extraction", RP_OK);
    remove(maker_path(&dir, "sentence_bert_config.json"));
    /* A folder with modules says what it is by them: without a LogitScore, no language model. */
    rp_model *model;
    rp_error err;
    maker_write_text(&dir, "modules.json", only_transformer);
    assert_int_equal(rp_model_load(dir.path, NULL, &model, &err), RP_OK);
    assert_int_equal(run_info(model).task, RP_TASK_EMBED);
    rp_model_destroy(model);
    maker_write_text(&dir, "modules.json", modules);
    maker_model_free(&m);
    /* An encoder has no vocabulary to answer with. */
    struct maker_model bert = maker_model_default("bert");
    maker_write_text(&dir, "1_LogitScore/config.json", cases[0].config);
    maker_model_fill(&bert);
    maker_model_write(&bert, &dir, &(struct maker_write_options){0});
    assert_int_equal(rp_model_load(dir.path, NULL, &model, &err), RP_ERR_UNSUPPORTED);
    assert_says(err.message, "a bert is not");
    maker_model_free(&bert);
    remove(maker_path(&dir, "modules.json"));
    remove(maker_path(&dir, "tokenizer.json"));
}

static void test_refused_vocabularies(void **state)
{
    (void)state;
    static const struct {
        const char *tokenizer;
        rp_status status;
        const char *word;
    } cases[] = {
        {"{\"model\":{\"vocab\":{\"yes\":1}}}", RP_ERR_MISSING, "\"no\""},
        {"{\"model\":{\"vocab\":{\"no\":1}}}", RP_ERR_MISSING, "\"yes\""},
        {"{\"model\":{\"vocab\":[[\"a\",0],[\"yes\",-1],[\"no\",-2]]}}", RP_OK, NULL},
        {"{\"added_tokens\":[{\"id\":3,\"content\":\"yes\"}],\"model\":{\"vocab\":{\"no\":1}}}",
         RP_OK, NULL},
        {"{\"model\":{\"vocab\":{\"yes\":1,\"no\":-1}}}", RP_ERR_FORMAT, "\"no\""},
        {"{\"model\":{\"vocab\":{\"yes\":1,\"no\":\"2\"}}}", RP_ERR_FORMAT, "\"no\""},
        {"{\"model\":{\"vocab\":{\"yes\":1,\"no\":50}}}", RP_ERR_FORMAT, "vocab_size"},
        {"{\"model\":7}", RP_ERR_MISSING, "\"yes\""},
        {"[]", RP_ERR_FORMAT, "object"},
        {"{", RP_ERR_FORMAT, "tokenizer.json"},
    };
    struct maker_model m = maker_model_default("qwen3");
    m.decoder.predicts = true;
    maker_model_fill(&m);
    maker_model_write(&m, &dir, &(struct maker_write_options){.prefix = true});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rp_model *model = NULL;
        rp_error err = {0};
        maker_write_text(&dir, "tokenizer.json", cases[i].tokenizer);
        const rp_status s = rp_model_load(dir.path, NULL, &model, &err);
        if (s != cases[i].status)
            print_error("%s: %s %s\n", cases[i].tokenizer, rp_status_name(s), err.message);
        assert_int_equal(s, cases[i].status);
        if (cases[i].word)
            assert_says(err.message, cases[i].word);
        rp_model_destroy(model);
    }
    maker_model_free(&m);
    remove(maker_path(&dir, "tokenizer.json"));
}

static void test_missing_tensors(void **state)
{
    (void)state;
    static const char *const families[] = {"qwen3", "qwen3_next", "qwen3_5_text", "olmo_hybrid"};
    size_t dropped = 0;
    for (size_t f = 0; f < 4; f++) {
        struct maker_model m = maker_model_default(families[f]);
        m.decoder.predicts = true;
        m.decoder.attention_bias = true;
        maker_model_fill(&m);
        for (size_t i = 0; i < m.n_tensors; i++, dropped++) {
            rp_model *model;
            rp_error err;
            maker_model_write(
                &m, &dir, &(struct maker_write_options){.drop = m.tensors[i].name, .prefix = true});
            const rp_status s = rp_model_load(dir.path, NULL, &model, &err);
            if (s != RP_ERR_MISSING)
                print_error("%s without %s: %s\n", families[f], m.tensors[i].name,
                            rp_status_name(s));
            assert_int_equal(s, RP_ERR_MISSING);
            assert_says(err.message, m.tensors[i].name);
        }
        maker_model_free(&m);
    }
    print_message("%zu tensors, each missed by name\n", dropped);
}

/* ---- config.json ------------------------------------------------------------------------------
 */

static const struct {
    const char *family, *drop, *set;
    rp_status status;
    const char *word;
} configs[] = {
    {"qwen3", "", "{}", RP_OK, NULL},
    /* the spelling of transformers 4 */
    {"qwen3", "rope_parameters layer_types", "{\"rope_theta\":10000.0,\"rope_scaling\":null}",
     RP_OK, NULL},
    {"qwen3_next", "layer_types", "{\"full_attention_interval\":3}", RP_OK, NULL},
    {"qwen3_5_text", "",
     "{\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":10000.0,"
     "\"partial_rotary_factor\":0.5,\"mrope_interleaved\":true,\"mrope_section\":[11,11,10]},"
     "\"attn_output_gate\":true,\"mamba_ssm_dtype\":\"float32\",\"mlp_only_layers\":[],"
     "\"mtp_num_hidden_layers\":1,\"mtp_use_dedicated_embeddings\":false}",
     RP_OK, NULL},
    {"olmo_hybrid", "", "{\"rope_parameters\":{\"rope_theta\":null}}", RP_OK, NULL},
    {"olmo_hybrid", "", "{\"rope_parameters\":null,\"rope_theta\":null}", RP_OK, NULL},
    {"olmo_hybrid", "", "{\"rope_theta\":null}", RP_OK, NULL}, /* the object's counts */
    {"olmo_hybrid", "", "{\"rope_parameters\":{\"rope_theta\":null,\"rope_type\":\"dynamic\"}}",
     RP_ERR_UNSUPPORTED, "dynamic"},
    {"olmo_hybrid", "", "{\"rope_parameters\":{\"rope_theta\":null,\"surprise\":1}}",
     RP_ERR_UNSUPPORTED, "surprise"},
    {"olmo_hybrid", "", "{\"rope_parameters\":{\"rope_theta\":null},\"rope_theta\":5}",
     RP_ERR_FORMAT, "rope_theta"},
    {"olmo_hybrid", "", "{\"rope_parameters\":{\"rope_theta\":\"5\"}}", RP_ERR_FORMAT,
     "rope_theta"},
    {"olmo_hybrid", "layer_types", "{}", RP_OK, NULL},
    {"qwen3", "rope_parameters", "{}", RP_ERR_MISSING, "rope_theta"},
    {"qwen3", "", "{\"rope_theta\":5}", RP_ERR_FORMAT, "rope_theta"},
    {"qwen3", "", "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}", RP_ERR_UNSUPPORTED,
     "rope_scaling"},
    {"qwen3", "", "{\"partial_rotary_factor\":0.5}", RP_ERR_UNSUPPORTED, "partial_rotary_factor"},
    {"qwen3", "",
     "{\"rope_parameters\":{},\"rope_theta\":5,\"rope_scaling\":{\"type\":\"default\","
     "\"partial_rotary_factor\":0.5}}",
     RP_ERR_UNSUPPORTED, "partial_rotary_factor"},
    {"qwen3", "", "{\"is_causal\":true,\"use_bidirectional_attention\":false}", RP_OK, NULL},
    {"qwen3", "", "{\"is_causal\":false}", RP_ERR_UNSUPPORTED, "is_causal"},
    {"qwen3_next", "", "{\"use_bidirectional_attention\":true}", RP_ERR_UNSUPPORTED,
     "use_bidirectional_attention"},
    {"bert", "", "{\"is_causal\":true}", RP_ERR_UNSUPPORTED, "is_causal"},
    {"bert", "", "{\"is_causal\":false,\"use_bidirectional_attention\":true}", RP_OK, NULL},
    {"qwen3_next", "", "{\"partial_rotary_factor\":0.25}", RP_ERR_FORMAT, "partial_rotary_factor"},
    {"qwen3_next", "", "{\"rope_parameters\":{\"rope_theta\":1e4,\"partial_rotary_factor\":0.1}}",
     RP_ERR_FORMAT, "head_dim"},
    {"qwen3_next", "",
     "{\"rope_parameters\":{\"rope_theta\":1e4,\"partial_rotary_factor\":0.5,"
     "\"rope_type\":\"proportional\"}}",
     RP_ERR_UNSUPPORTED, "proportional"},
    {"qwen3", "", "{\"num_key_value_heads\":3}", RP_ERR_FORMAT, "num_key_value_heads"},
    {"qwen3", "", "{\"head_dim\":7}", RP_ERR_FORMAT, "head_dim"},
    {"qwen3", "", "{\"num_attention_heads\":2147483647}", RP_ERR_LIMIT, "num_attention_heads"},
    {"qwen3", "", "{\"num_key_value_heads\":null,\"num_attention_heads\":2147483647}", RP_ERR_LIMIT,
     "num_attention_heads"},
    {"qwen3", "num_key_value_heads", "{}", RP_ERR_FORMAT, "num_key_value_heads"}, /* 32 */
    {"qwen3_next", "num_key_value_heads", "{}", RP_OK, NULL},                     /* 2 */
    {"qwen3_5_text", "num_key_value_heads", "{}", RP_ERR_SHAPE, "k_proj"},        /* 4 */
    {"olmo_hybrid", "num_key_value_heads", "{}", RP_ERR_SHAPE, "k_proj"},         /* as heads */
    {"qwen3", "head_dim", "{}", RP_ERR_SHAPE, "[512, 16]"},                       /* 128 each */
    {"qwen3", "", "{\"intermediate_size\":2147483647}", RP_ERR_LIMIT, "intermediate_size"},
    {"qwen3", "", "{\"num_hidden_layers\":2147483647,\"layer_types\":null}", RP_ERR_SHAPE,
     "layers"},
    {"qwen3", "", "{\"layer_types\":[\"full_attention\"]}", RP_ERR_FORMAT, "layer_types"},
    {"qwen3", "", "{\"layer_types\":[\"full_attention\",\"full_attention\",\"linear_attention\"]}",
     RP_ERR_UNSUPPORTED, "layer_types"},
    {"qwen3", "", "{\"layer_types\":[\"full_attention\",\"full_attention\",\"sliding_attention\"]}",
     RP_ERR_UNSUPPORTED, "use_sliding_window"},
    {"qwen3", "", "{\"use_sliding_window\":true,\"sliding_window\":null}", RP_ERR_FORMAT,
     "sliding_window"},
    {"qwen3", "", "{\"use_sliding_window\":true,\"sliding_window\":1}", RP_ERR_FORMAT,
     "sliding_window"},
    {"qwen3", "", "{\"use_sliding_window\":false,\"sliding_window\":4096,\"max_window_layers\":28}",
     RP_OK, NULL},
    {"qwen3_next", "", "{\"use_sliding_window\":true}", RP_ERR_UNSUPPORTED, "use_sliding_window"},
    {"qwen3", "", "{\"hidden_act\":\"quick\"}", RP_ERR_UNSUPPORTED, "hidden_act"},
    {"qwen3", "", "{\"hidden_act\":\"gelu\"}", RP_OK, NULL},
    {"qwen3_5_text", "", "{\"hidden_act\":\"gelu\"}", RP_ERR_UNSUPPORTED, "hidden_act"},
    {"qwen3", "", "{\"mlp_bias\":true}", RP_ERR_UNSUPPORTED, "mlp_bias"},
    {"qwen3", "", "{\"mlp_bias\":false,\"is_decoder\":true}", RP_OK, NULL},
    {"qwen3", "", "{\"attention_bias\":true}", RP_ERR_MISSING, "q_proj.bias"},
    {"qwen3", "", "{\"attn_output_gate\":true}", RP_ERR_UNSUPPORTED, "attn_output_gate"},
    {"qwen3_5_text", "", "{\"attn_output_gate\":false}", RP_ERR_UNSUPPORTED, "attn_output_gate"},
    {"qwen3_5_text", "", "{\"num_experts\":4}", RP_ERR_UNSUPPORTED, "num_experts"},
    {"qwen3", "", "{\"quantization_config\":{\"bits\":4}}", RP_ERR_UNSUPPORTED,
     "quantization_config"},
    {"qwen3_next", "", "{\"linear_num_value_heads\":3}", RP_ERR_FORMAT, "linear_num_value_heads"},
    {"qwen3_next", "", "{\"linear_conv_kernel_dim\":9}", RP_ERR_FORMAT, "linear_conv_kernel_dim"},
    {"qwen3_next", "", "{\"linear_key_head_dim\":2147483647}", RP_ERR_LIMIT,
     "linear_num_value_heads"},
    {"qwen3_next", "", "{\"num_experts_per_tok\":6}", RP_ERR_FORMAT, "num_experts_per_tok"},
    {"qwen3_next", "", "{\"num_experts\":4096}", RP_ERR_SHAPE, "mlp.gate.weight"},
    {"qwen3_next", "", "{\"num_experts\":4097}", RP_ERR_LIMIT, "num_experts"},
    {"qwen3_next", "", "{\"mlp_only_layers\":[0,0,0,0]}", RP_ERR_LIMIT, "mlp_only_layers"},
    {"qwen3_next", "", "{\"mlp_only_layers\":[true]}", RP_ERR_FORMAT, "mlp_only_layers"},
    {"qwen3_next", "", "{\"mlp_only_layers\":[0]}", RP_ERR_MISSING,
     "layers.0.mlp.gate_proj.weight"},
    {"qwen3_next", "", "{\"moe_intermediate_size\":2147483647}", RP_ERR_LIMIT,
     "moe_intermediate_size"},
    {"qwen3_next", "", "{\"decoder_sparse_step\":0}", RP_ERR_FORMAT, "decoder_sparse_step"},
    {"olmo_hybrid", "", "{\"linear_allow_neg_eigval\":2}", RP_ERR_FORMAT,
     "linear_allow_neg_eigval"},
    {"qwen3", "", "{\"pad_token_id\":50}", RP_ERR_FORMAT, "pad_token_id"},
    {"qwen3", "", "{\"rms_norm_eps\":0}", RP_ERR_FORMAT, "rms_norm_eps"},
};

static void write_config(const struct maker_model *m, const char *drop, const char *set)
{
    json_t *config = maker_model_config(m), *more = json_loads(set, 0, NULL);
    char names[200];
    assert_non_null(more);
    snprintf(names, sizeof names, "%s", drop);
    for (char *rest = names, *name; (name = strtok_r(rest, " ", &rest));)
        json_object_del(config, name);
    json_object_update(config, more);
    maker_write_json(&dir, "config.json", config);
    json_decref(more);
    json_decref(config);
}

/* What is not refused says nothing of unknown keys, and with other words is the same model. */
static void test_configs(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        struct maker_model m = maker_model_default(configs[i].family);
        rp_model *model = NULL;
        rp_error err = {0};
        maker_model_fill(&m);
        maker_model_write(&m, &dir, &(struct maker_write_options){.prefix = true});
        write_config(&m, configs[i].drop, configs[i].set);
        const rp_status s = rp_model_load(dir.path, NULL, &model, &err);
        if (s != configs[i].status)
            print_error("%s without \"%s\" with %s: %s %s\n", configs[i].family, configs[i].drop,
                        configs[i].set, rp_status_name(s), err.message);
        assert_int_equal(s, configs[i].status);
        if (configs[i].word)
            assert_says(err.message, configs[i].word);
        for (size_t k = 0; s == RP_OK && rp_model_note(model, k); k++)
            assert_null(strstr(rp_model_note(model, k), "not known"));
        rp_model_destroy(model);
        maker_model_free(&m);
    }
}

/* Which of the same words are one model, and which are another: logits to the bit. */
static void test_rotary_words(void **state)
{
    (void)state;
    static const struct {
        const char *family, *drop, *one, *other;
        bool same;
    } cases[] = {
        /* OLMo's base is 10000 unless it is null. */
        {"olmo_hybrid", "rope_parameters", "{\"rope_theta\":10000}", "{\"rope_parameters\":null}",
         true},
        {"olmo_hybrid", "rope_parameters", "{\"rope_theta\":10000}",
         "{\"rope_parameters\":{\"rope_type\":\"default\"}}", true},
        {"olmo_hybrid", "rope_parameters", "{\"rope_theta\":10000}", "{\"rope_theta\":null}",
         false},
        {"olmo_hybrid", "rope_parameters", "{\"rope_theta\":null}",
         "{\"rope_parameters\":{\"rope_theta\":null}}", true},
        {"olmo_hybrid", "layer_types", "{\"full_attention_interval\":2}", "{}", true},
        /* The part stands beside the object or in it. */
        {"qwen3", "rope_parameters",
         "{\"rope_parameters\":{\"rope_theta\":5,\"rope_type\":\"proportional\","
         "\"partial_rotary_factor\":0.5}}",
         "{\"rope_parameters\":{\"rope_theta\":5,\"rope_type\":\"proportional\"},"
         "\"partial_rotary_factor\":0.5}",
         true},
        {"qwen3", "rope_parameters",
         "{\"rope_parameters\":{\"rope_theta\":5,\"rope_type\":\"proportional\"}}",
         "{\"rope_parameters\":{\"rope_theta\":5,\"rope_type\":\"proportional\"},"
         "\"partial_rotary_factor\":0.5}",
         false},
        /* An empty object says nothing. */
        {"qwen3_next", "rope_parameters", "{\"rope_theta\":5,\"partial_rotary_factor\":0.5}",
         "{\"rope_theta\":5,\"rope_parameters\":{},\"rope_scaling\":{\"type\":\"default\","
         "\"partial_rotary_factor\":0.5}}",
         true},
        {"qwen3_next", "rope_parameters", "{\"rope_theta\":5,\"partial_rotary_factor\":0.25}",
         "{\"rope_theta\":5,\"rope_parameters\":{},\"rope_scaling\":{\"type\":\"default\","
         "\"partial_rotary_factor\":0.5}}",
         false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct maker_model m = maker_model_default(cases[i].family);
        float logits[2][2];
        m.labels = 2;
        maker_model_fill(&m);
        maker_model_write(&m, &dir, &(struct maker_write_options){.prefix = true});
        for (int k = 0; k < 2; k++) {
            write_config(&m, cases[i].drop, k == 0 ? cases[i].one : cases[i].other);
            rp_model *model = run_load(dir.path, 0);
            logits_of(model, 2, logits[k]);
            rp_model_destroy(model);
        }
        if ((memcmp(logits[0], logits[1], sizeof logits[0]) == 0) != cases[i].same)
            fail_msg("%s: %s and %s", cases[i].family, cases[i].one, cases[i].other);
        maker_model_free(&m);
    }
}

/* Inside text_config the same rules hold, and keys there that nobody knows are told too. */
static void test_text_config(void **state)
{
    (void)state;
    static const struct {
        const char *key, *value, *outer;
        rp_status status;
        const char *word;
    } cases[] = {
        {"hidden_act", "\"gelu\"", "{}", RP_ERR_UNSUPPORTED, "text_config: key \"hidden_act\""},
        {"model_type", "\"qwen3_5_moe_text\"", "{}", RP_ERR_UNSUPPORTED, "qwen3_5_moe_text"},
        {"auto_map", "{\"a\":\"b\"}", "{}", RP_ERR_UNSUPPORTED, "text_config: key \"auto_map\""},
        {"is_causal", "false", "{}", RP_ERR_UNSUPPORTED, "text_config: key \"is_causal\""},
        {"dtype", "\"bfloat16\"", "{\"is_causal\":false}", RP_ERR_UNSUPPORTED, "is_causal"},
        {"surprise", "1", "{}", RP_OK,
         "text_config: keys that are not known and were ignored: surprise"},
        {"tie_word_embeddings", "true", "{\"tie_word_embeddings\":false}", RP_ERR_FORMAT,
         "tie_word_embeddings"},
        {"dtype", "\"bfloat16\"", "{\"text_config\":[1]}", RP_ERR_FORMAT, "text_config"},
    };
    struct maker_model m = maker_model_default("qwen3_5");
    m.decoder.text_part = true;
    m.labels = 1;
    maker_model_fill(&m);
    maker_model_write(&m, &dir, &(struct maker_write_options){.prefix = true});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *config = maker_model_config(&m), *more = json_loads(cases[i].outer, 0, NULL);
        rp_model *model = NULL;
        rp_error err = {0};
        json_object_set_new(json_object_get(config, "text_config"), cases[i].key,
                            json_loads(cases[i].value, JSON_DECODE_ANY, NULL));
        json_object_update(config, more);
        maker_write_json(&dir, "config.json", config);
        json_decref(config);
        json_decref(more);
        const rp_status s = rp_model_load(dir.path, NULL, &model, &err);
        if (s != cases[i].status)
            print_error("%s: %s\n", cases[i].key, err.message);
        assert_int_equal(s, cases[i].status);
        assert_says(s == RP_OK ? rp_model_note(model, 0) : err.message, cases[i].word);
        rp_model_destroy(model);
    }
    maker_model_free(&m);
}

/* ---- batches and precision --------------------------------------------------------------------
 */

/* Field case G4: a short text beside long ones has the bits that it has alone. */
static void test_short_beside_long(void **state)
{
    (void)state;
    static const char *const families[] = {"qwen3", "qwen3_next", "qwen3_5_text", "olmo_hybrid"};
    static const int32_t cu[] = {0, 40, 43, 44, 140};
    uint64_t rng = 5;
    for (size_t f = 0; f < 4; f++) {
        struct maker_model m = maker_model_default(families[f]);
        int32_t ids[140];
        maker_model_fill(&m);
        maker_model_write(&m, &dir, &(struct maker_write_options){.prefix = true});
        rp_model *model = run_load(dir.path, 0);
        random_ids(&rng, &m, ids, 140);
        struct run all = run_model(model, ids, NULL, cu, 4);
        for (int k = 0; k < 4; k++) {
            const int32_t alone[2] = {0, cu[k + 1] - cu[k]};
            struct run one = run_model(model, ids + cu[k], NULL, alone, 1);
            assert_memory_equal(run_output(&one, "embedding").data,
                                run_output(&all, "embedding").data + 16 * k, 16 * sizeof(float));
            run_end(&one);
        }
        run_end(&all);
        rp_model_destroy(model);
        maker_model_free(&m);
    }
}

/* INT8 for all products of token rows but the routers'.  Far from FP32 would be another model. */
static void test_int8(void **state)
{
    (void)state;
    static const char *const families[] = {"qwen3", "qwen3_next", "qwen3_5_text", "olmo_hybrid"};
    for (size_t f = 0; f < 4; f++) {
        struct maker_model m = maker_model_default(families[f]);
        rp_model_options options;
        rp_model *model = NULL;
        uint64_t rng = 11;
        int32_t ids[60];
        const int32_t cu[2] = {0, 60};
        rp_error err;
        m.hidden = 64;
        m.intermediate = 96;
        maker_model_fill(&m);
        maker_model_write(&m, &dir, &(struct maker_write_options){.prefix = true});
        rp_model_options_init(&options);
        options.flags = RP_MODEL_ALL_OUTPUTS;
        options.precision = RP_PRECISION_INT8;
        if (rp_model_load(dir.path, &options, &model, &err) != RP_OK)
            fail_msg("%s", err.message);
        random_ids(&rng, &m, ids, 60);
        struct ref_result ref = ref_decode(&m, ids, 60);
        struct run r = run_model(model, ids, NULL, cu, 1);
        const double *due = ref.states + (size_t)m.layers * 60 * 64;
        const double cosine = run_cosine(run_output(&r, "last").data, due, 60 * 64);
        print_message("%s: cosine of INT8 %.6f\n", families[f], cosine);
        assert_true(cosine > 0.99);
        assert_true(cosine < 1 - 1e-7); /* it is INT8 */
        run_end(&r);
        ref_free(&ref);
        rp_model_destroy(model);
        maker_model_free(&m);
    }
}

static rp_status load_int8(const char *keep, const char *smoothing, rp_model **out, rp_error *err)
{
    rp_model_options options;
    rp_model_options_init(&options);
    options.flags = RP_MODEL_ALL_OUTPUTS;
    options.precision = RP_PRECISION_INT8;
    options.keep_fp32 = keep;
    options.smoothing = smoothing;
    return rp_model_load(dir.path, &options, out, err);
}

/* Whether the kernels of the layers' routers and experts begin so. */
static void check_kernels(const rp_model *model, const char *router, const char *experts)
{
    struct run r = {0};
    rp_session_options options;
    const rp_plan *plan;
    size_t found = 0;
    rp_session_options_init(&options);
    assert_int_equal(rp_session_create(rp_model_graph(model), rp_model_weights(model), &options,
                                       &r.session, NULL),
                     RP_OK);
    assert_int_equal(rp_session_plan(r.session, 16, 1, 0, &plan, NULL), RP_OK);
    for (size_t k = 0; k < rp_plan_n_steps(plan); k++) {
        rp_step_info step;
        assert_int_equal(rp_plan_step(plan, k, &step), RP_OK);
        const char *due = strstr(step.name, ".ffn.router") ? router : experts;
        if (!strstr(step.name, ".ffn.router") && strcmp(step.kind, "experts") != 0)
            continue;
        if (strncmp(step.kernel, due, strlen(due)) != 0)
            fail_msg("step %s is run by %s", step.name, step.kernel);
        found++;
    }
    assert_true(found >= 4);
    run_end(&r);
}

/* The factors of a loaded model as a file, but for those whose name has `without`. */
static void write_factors(const rp_model *model, const char *path, const char *without)
{
    const char *name;
    const float *factors;
    size_t n;
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("{\"format\":\"rankplan-int8\",\"version\":1,\"source\":\"a test\",\"weights\":{\"\":[]",
          f);
    for (size_t i = 0; rp_weights_int8(rp_model_weights(model), i, &name, &n, &factors); i++) {
        if (without && strstr(name, without))
            continue;
        fprintf(f, ",\n\"%s\":[", name);
        for (size_t j = 0; j < n; j++)
            fprintf(f, "%s%.9g", j ? "," : "", (double)factors[j]);
        fputs("]", f);
    }
    fputs("}}", f);
    assert_int_equal(fclose(f), 0);
}

/* What chooses experts stays FP32, and experts do by name; their factors go through a file, which
 * has those of `up` once a layer. */
static void test_int8_experts(void **state)
{
    (void)state;
    struct maker_model m = maker_model_default("qwen3_next");
    rp_model *model = NULL, *again = NULL;
    rp_error err;
    char path[600];
    uint64_t rng = 12;
    int32_t ids[60];
    const int32_t cu[2] = {0, 60};
    maker_model_fill(&m);
    maker_model_write(&m, &dir, &(struct maker_write_options){.prefix = true});
    snprintf(path, sizeof path, "%s/factors.json", dir.path);
    random_ids(&rng, &m, ids, 60);
    assert_int_equal(load_int8("*.experts", NULL, &model, &err), RP_OK);
    check_kernels(model, "rp_gemm_", "rp_gemm_");
    rp_model_destroy(model);
    assert_int_equal(load_int8(NULL, NULL, &model, &err), RP_OK);
    check_kernels(model, "rp_gemm_", "rp_qgemm_");
    write_factors(model, path, NULL);
    if (load_int8(NULL, path, &again, &err) != RP_OK)
        fail_msg("%s", err.message);
    struct run a = run_model(model, ids, NULL, cu, 1), b = run_model(again, ids, NULL, cu, 1);
    const rp_view x = run_output(&a, "last"), y = run_output(&b, "last");
    assert_memory_equal(x.data, y.data, x.rows * x.width * sizeof(float));
    run_end(&a);
    run_end(&b);
    rp_model_destroy(again);
    static const char *const missing[] = {".experts.0.up", ".experts.2.down"};
    for (size_t i = 0; i < 2; i++) {
        write_factors(model, path, missing[i]);
        assert_int_equal(load_int8(NULL, path, &again, &err), RP_ERR_MISSING);
        assert_non_null(strstr(err.message, missing[i]));
    }
    write_factors(model, path, ".experts.1.up"); /* there is none in it */
    assert_int_equal(load_int8(NULL, path, &again, &err), RP_OK);
    rp_model_destroy(again);
    rp_model_destroy(model);
    assert_int_equal(remove(path), 0);
    maker_model_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_packings),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_tied_with_head),
        cmocka_unit_test(test_logit_score),
        cmocka_unit_test(test_refused_vocabularies),
        cmocka_unit_test(test_missing_tensors),
        cmocka_unit_test(test_configs),
        cmocka_unit_test(test_rotary_words),
        cmocka_unit_test(test_text_config),
        cmocka_unit_test(test_short_beside_long),
        cmocka_unit_test(test_int8),
        cmocka_unit_test(test_int8_experts),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
