/* Folders of sentence-transformers: modules, pooling in both spellings, Dense with all it may have,
 * prompts, lengths; each from files to numbers, computed again here from the reference encoder's
 * last hidden state. */
#include "models/file.h"
#include "models/folder.h"
#include "tests/model_maker.h"
#include "tests/ref_encoder.h"

#include <rankplan/model.h>
#include <rankplan/plan.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define HIDDEN 16
#define TOKENS 7

static struct maker_dir dir;
static struct maker_model base;
static const int32_t ids[TOKENS] = {2, 9, 30, 41, 7, 7, 3};

static int set_up(void **state)
{
    (void)state;
    base = maker_model_default("bert");
    maker_model_fill(&base);
    maker_dir_create(&dir);
    maker_model_write(&base, &dir, &(struct maker_write_options){0});
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    maker_dir_remove(&dir);
    maker_model_free(&base);
    return 0;
}

/* Each test begins with the bare model alone. */
static int clean(void **state)
{
    static const char *const files[] = {"modules.json",
                                        "config_sentence_transformers.json",
                                        "sentence_bert_config.json",
                                        "sentence_roberta_config.json",
                                        "tokenizer_config.json",
                                        "1_Pooling/config.json",
                                        "1_Pooling",
                                        "2_Dense/config.json",
                                        "2_Dense/model.safetensors",
                                        "2_Dense/pytorch_model.bin",
                                        "2_Dense",
                                        "3_LayerNorm/config.json",
                                        "3_LayerNorm/model.safetensors",
                                        "3_LayerNorm"};
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        remove(maker_path(&dir, files[i]));
    return 0;
}

#define OLD         "sentence_transformers.models."
#define TRANSFORMER "{\"idx\":0,\"name\":\"0\",\"path\":\"\",\"type\":\"" OLD "Transformer\"}"
#define POOLING     ",{\"idx\":1,\"name\":\"1\",\"path\":\"1_Pooling\",\"type\":\"" OLD "Pooling\"}"
#define DENSE       ",{\"idx\":2,\"name\":\"2\",\"path\":\"2_Dense\",\"type\":\"" OLD "Dense\"}"
#define LAYER_NORM                                                                                 \
    ",{\"idx\":3,\"name\":\"3\",\"path\":\"3_LayerNorm\",\"type\":\"" OLD "LayerNorm\"}"
#define NORMALIZE                                                                                  \
    ",{\"idx\":4,\"name\":\"4\",\"path\":\"4_Normalize\",\"type\":\"" OLD "Normalize\"}"
#define DROPOUT ",{\"idx\":5,\"name\":\"5\",\"path\":\"5_Dropout\",\"type\":\"" OLD "Dropout\"}"

static void write_modules(const char *modules)
{
    maker_write_text(&dir, "modules.json", modules);
}

static void write_pooling(const char *config)
{
    if (access(maker_path(&dir, "1_Pooling"), F_OK) != 0)
        maker_mkdir(&dir, "1_Pooling");
    maker_write_text(&dir, "1_Pooling/config.json", config);
}

static rp_model *load(void)
{
    rp_model *model = NULL;
    rp_error err;
    if (rp_model_load(dir.path, NULL, &model, &err) != RP_OK)
        fail_msg("%s", err.message);
    return model;
}

static rp_model_info info_of(const rp_model *model)
{
    rp_model_info info = {.struct_size = sizeof info};
    rp_model_get_info(model, &info);
    return info;
}

static bool has_note(const rp_model *model, const char *word)
{
    for (size_t i = 0; rp_model_note(model, i); i++)
        if (strstr(rp_model_note(model, i), word))
            return true;
    return false;
}

/* The result of the model for `ids`, of that width. */
static void run(const rp_model *model, const char *name, size_t width, float *out)
{
    static const int32_t cu[2] = {0, TOKENS};
    rp_session *session;
    rp_batch batch;
    rp_error err;
    rp_view v;
    assert_int_equal(
        rp_session_create(rp_model_graph(model), rp_model_weights(model), NULL, &session, &err),
        RP_OK);
    rp_batch_init(&batch);
    batch.n_seqs = 1;
    batch.ids = ids;
    batch.cu = cu;
    if (rp_session_run(session, &batch, &err) != RP_OK ||
        rp_session_output(session, name, &v, &err) != RP_OK)
        fail_msg("%s", err.message);
    assert_int_equal(v.width, width);
    assert_int_equal(v.rows, 1);
    memcpy(out, v.data, width * sizeof *out);
    rp_session_destroy(session);
}

/* ---- the same in double -----------------------------------------------------------------------
 */

static void pool(const double *x, const char *mode, double *y)
{
    for (size_t i = 0; i < HIDDEN; i++) {
        double sum = 0, weighted = 0, top = -INFINITY, weights = 0;
        for (size_t t = 0; t < TOKENS; t++) {
            sum += x[t * HIDDEN + i];
            weighted += (double)(t + 1) * x[t * HIDDEN + i];
            weights += (double)(t + 1);
            top = fmax(top, x[t * HIDDEN + i]);
        }
        y[i] = strcmp(mode, "cls") == 0             ? x[i]
               : strcmp(mode, "max") == 0           ? top
               : strcmp(mode, "mean") == 0          ? sum / TOKENS
               : strcmp(mode, "mean_sqrt_len") == 0 ? sum / sqrt(TOKENS)
               : strcmp(mode, "weighted_mean") == 0 ? weighted / weights
                                                    : x[(TOKENS - 1) * HIDDEN + i];
    }
}

/* "cls+max" as rp_model_info spells it; the number of values. */
static size_t pool_all(const char *modes, double *y)
{
    struct ref_result ref = ref_encode(&base, ids, NULL, TOKENS);
    const double *last = ref.states + (size_t)base.layers * TOKENS * HIDDEN;
    size_t n = 0;
    for (const char *p = modes; *p;) {
        char mode[32];
        const size_t length = strcspn(p, "+");
        snprintf(mode, sizeof mode, "%.*s", (int)length, p);
        pool(last, mode, y + n);
        n += HIDDEN;
        p += length + (p[length] == '+');
    }
    ref_free(&ref);
    return n;
}

static void assert_close(const float *found, const double *due, size_t n)
{
    double top = 0;
    for (size_t i = 0; i < n; i++)
        top = fmax(top, fabs(due[i]));
    for (size_t i = 0; i < n; i++)
        if (!(fabs(found[i] - due[i]) <= 2e-5 * top))
            fail_msg("element %zu is %.9g, expected %.9g", i, (double)found[i], due[i]);
}

/* ---- pooling ----------------------------------------------------------------------------------
 */

static void test_pooling_modes(void **state)
{
    (void)state;
    static const struct {
        const char *config, *modes;
    } cases[] = {
        {"{\"word_embedding_dimension\":16,\"pooling_mode_cls_token\":true}", "cls"},
        {"{\"word_embedding_dimension\":16,\"pooling_mode_max_tokens\":true}", "max"},
        {"{\"word_embedding_dimension\":16,\"pooling_mode_mean_tokens\":true}", "mean"},
        {"{\"word_embedding_dimension\":16,\"pooling_mode_mean_sqrt_len_tokens\":true}",
         "mean_sqrt_len"},
        {"{\"word_embedding_dimension\":16,\"pooling_mode_weightedmean_tokens\":true}",
         "weighted_mean"},
        {"{\"word_embedding_dimension\":16,\"pooling_mode_lasttoken\":true}", "last"},
        {"{\"pooling_mode_mean_tokens\":true,\"pooling_mode_cls_token\":true}", "cls+mean"},
        {"{\"pooling_mode_lasttoken\":true,\"pooling_mode_mean_tokens\":true,"
         "\"pooling_mode_max_tokens\":true,\"pooling_mode_cls_token\":true,"
         "\"pooling_mode_weightedmean_tokens\":true,\"pooling_mode_mean_sqrt_len_tokens\":true}",
         "cls+max+mean+mean_sqrt_len+weighted_mean+last"},
        {"{\"pooling_mode_cls_token\":false,\"pooling_mode_mean_tokens\":false}", "mean"},
        {"{}", "mean"},
        {"{\"embedding_dimension\":16,\"pooling_mode\":\"cls\",\"include_prompt\":true}", "cls"},
        {"{\"embedding_dimension\":16,\"pooling_mode\":\"mean_sqrt_len_tokens\"}", "mean_sqrt_len"},
        {"{\"embedding_dimension\":16,\"pooling_mode\":\"weightedmean\"}", "weighted_mean"},
        {"{\"embedding_dimension\":16,\"pooling_mode\":\"lasttoken\"}", "last"},
        {"{\"embedding_dimension\":16,\"pooling_mode\":[\"max\",\"cls\"]}", "max+cls"},
        /* The new key is the one that counts, as in the reference. */
        {"{\"pooling_mode\":\"max\",\"pooling_mode_cls_token\":true}", "max"},
    };
    write_modules("[" TRANSFORMER POOLING "]");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float found[6 * HIDDEN];
        double due[6 * HIDDEN];
        write_pooling(cases[i].config);
        rp_model *model = load();
        const size_t n = pool_all(cases[i].modes, due);
        assert_string_equal(info_of(model).pooling, cases[i].modes);
        assert_int_equal(info_of(model).dimension, n);
        assert_int_equal(info_of(model).normalized, 0);
        assert_int_equal(info_of(model).task, RP_TASK_EMBED);
        run(model, "embedding", n, found);
        assert_close(found, due, n);
        rp_model_destroy(model);
    }
}

/* Texts that end with the pad's own id (Qwen's EOS is its pad): the pooled row is the last one all
 * the same, told by length and never by id. */
static void test_last_token_is_told_by_length(void **state)
{
    (void)state;
    rp_model_options o;
    rp_model *model;
    rp_session *session;
    rp_view last, pooled;
    rp_batch b;
    write_modules("[" TRANSFORMER POOLING "]");
    write_pooling("{\"pooling_mode_lasttoken\":true}");
    rp_model_options_init(&o);
    o.flags = RP_MODEL_ALL_OUTPUTS;
    assert_int_equal(rp_model_load(dir.path, &o, &model, NULL), RP_OK);
    const int32_t pad = info_of(model).pad_id;
    assert_true(pad >= 0);
    const int32_t padded[] = {5, pad, 6, pad, 7, 8, pad, pad, 4}, cu[] = {0, 2, 7, 8, 9};
    rp_batch_init(&b);
    b.n_seqs = 4;
    b.ids = padded;
    b.cu = cu;
    assert_int_equal(
        rp_session_create(rp_model_graph(model), rp_model_weights(model), NULL, &session, NULL),
        RP_OK);
    assert_int_equal(rp_session_run(session, &b, NULL), RP_OK);
    assert_int_equal(rp_session_output(session, "last", &last, NULL), RP_OK);
    assert_int_equal(rp_session_output(session, "embedding", &pooled, NULL), RP_OK);
    for (size_t s = 0; s < 4; s++)
        assert_memory_equal(pooled.data + s * pooled.width,
                            last.data + (size_t)(cu[s + 1] - 1) * last.width,
                            last.width * sizeof(float));
    rp_session_destroy(session);
    rp_model_destroy(model);
}

static void test_pooling_refused(void **state)
{
    (void)state;
    static const struct {
        const char *config;
        rp_status status;
        const char *word;
    } cases[] = {
        {"{\"pooling_mode\":\"median\"}", RP_ERR_UNSUPPORTED, "median"},
        {"{\"pooling_mode\":7}", RP_ERR_UNSUPPORTED, "7"},
        {"{\"pooling_mode\":[\"cls\",\"cls\"]}", RP_ERR_UNSUPPORTED, "twice"},
        {"{\"pooling_mode\":[\"cls\",3]}", RP_ERR_UNSUPPORTED, "3"},
        {"{\"pooling_mode_median_tokens\":true}", RP_ERR_UNSUPPORTED, "pooling_mode_median_tokens"},
        {"{\"pooling_mode_cls_token\":1}", RP_ERR_FORMAT, "pooling_mode_cls_token"},
        {"{\"word_embedding_dimension\":17}", RP_ERR_SHAPE, "17"},
        {"{\"word_embedding_dimension\":0}", RP_ERR_FORMAT, "word_embedding_dimension"},
        {"[]", RP_ERR_FORMAT, "1_Pooling/config.json"},
    };
    write_modules("[" TRANSFORMER POOLING "]");
    rp_model *model;
    rp_error err;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_pooling(cases[i].config);
        const rp_status s = rp_model_load(dir.path, NULL, &model, &err);
        if (s != cases[i].status)
            print_error("%s: %s\n", cases[i].config, err.message);
        assert_int_equal(s, cases[i].status);
        assert_says(err.message, cases[i].word);
        assert_says(err.message, "1_Pooling");
    }
    remove(maker_path(&dir, "1_Pooling/config.json"));
    assert_int_equal(rp_model_load(dir.path, NULL, &model, &err), RP_ERR_MISSING);
    assert_says(err.message, "1_Pooling/config.json");
    /* Leaving a prompt out of the pooling matters only where there are prompts. */
    write_pooling("{\"include_prompt\":false}");
    rp_model_destroy(load());
    maker_write_text(&dir, "config_sentence_transformers.json",
                     "{\"prompts\":{\"q\":\"query: \"}}");
    assert_int_equal(rp_model_load(dir.path, NULL, &model, &err), RP_ERR_UNSUPPORTED);
    assert_says(err.message, "include_prompt");
}

/* No modules: the documented default, told. */
static void test_bare_folder(void **state)
{
    (void)state;
    float found[HIDDEN];
    double due[HIDDEN];
    rp_model *model = load();
    const rp_model_info info = info_of(model);
    assert_string_equal(info.pooling, "mean");
    assert_int_equal(info.normalized, 0);
    assert_int_equal(info.similarity, RP_SIM_COSINE);
    assert_true(has_note(model, "does not say how to pool"));
    run(model, "embedding", pool_all("mean", due), found);
    assert_close(found, due, HIDDEN);
    rp_model_destroy(model);
    write_modules("[" TRANSFORMER POOLING "]");
    write_pooling("{\"pooling_mode_mean_tokens\":true}");
    model = load();
    assert_false(has_note(model, "pool"));
    rp_model_destroy(model);
}

/* ---- what follows the pooling -----------------------------------------------------------------
 */

/* 2_Dense of that configuration, its weights made from the seed; biases and residual as asked. */
static struct maker_model write_dense(const char *config, int in, int out, bool bias, bool residual)
{
    uint64_t rng = 77;
    json_t *header = json_object();
    float data[64 * 64 * 2 + 64];
    size_t n = 0;
    struct maker_model m = {0};
    m.tensors = calloc(3, sizeof *m.tensors);
    const struct {
        const char *name;
        int rows, cols;
        bool wanted;
    } list[] = {{"linear.weight", out, in, true},
                {"linear.bias", 0, out, bias},
                {"residual.weight", out, in, residual}};
    for (size_t i = 0; i < 3; i++) {
        if (!list[i].wanted)
            continue;
        struct maker_tensor *t = &m.tensors[m.n_tensors++];
        snprintf(t->name, sizeof t->name, "%s", list[i].name);
        t->n = (size_t)(list[i].rows ? list[i].rows : 1) * (size_t)list[i].cols;
        t->data = malloc(t->n * sizeof *t->data);
        for (size_t k = 0; k < t->n; k++)
            t->data[k] = data[n + k] = 0.5f * maker_random_float(&rng);
        json_t *shape = list[i].rows ? json_pack("[i,i]", list[i].rows, list[i].cols)
                                     : json_pack("[i]", list[i].cols);
        json_object_set_new(header, t->name,
                            json_pack("{s:s,s:o,s:[I,I]}", "dtype", "F32", "shape", shape,
                                      "data_offsets", (json_int_t)(n * 4),
                                      (json_int_t)((n + t->n) * 4)));
        n += t->n;
    }
    if (access(maker_path(&dir, "2_Dense"), F_OK) != 0)
        maker_mkdir(&dir, "2_Dense");
    char *text = json_dumps(header, 0);
    maker_write_st(&dir, "2_Dense/model.safetensors", strlen(text), text, data, n * 4);
    free(text);
    json_decref(header);
    maker_write_text(&dir, "2_Dense/config.json", config);
    return m;
}

/* act(W x + b) + (R x or x or nothing) */
static void dense(const struct maker_model *m, const double *x, int in, int out, const char *act,
                  bool bias, int residual, double *y)
{
    const float *w = maker_model_find(m, "linear.weight")->data;
    for (int o = 0; o < out; o++) {
        double sum = bias ? maker_model_find(m, "linear.bias")->data[o] : 0;
        for (int i = 0; i < in; i++)
            sum += w[o * in + i] * x[i];
        y[o] = ref_activation(act, sum) + (residual == 1 ? x[o] : 0);
        for (int i = 0; i < in && residual == 2; i++)
            y[o] += maker_model_find(m, "residual.weight")->data[o * in + i] * x[i];
    }
}

#define DENSE_CONFIG(out, more) "{\"in_features\":16,\"out_features\":" out more "}"
#define ACT                     ",\"activation_function\":\"torch.nn.modules."

static void test_dense(void **state)
{
    (void)state;
    static const struct {
        const char *config;
        int out;
        const char *act;
        bool bias;
        int residual; /* 1: the input itself, 2: through a matrix */
    } cases[] = {
        {DENSE_CONFIG("5", ACT "activation.Tanh\",\"bias\":true"), 5, "tanh", true, 0},
        {DENSE_CONFIG("5", ",\"bias\":false" ACT "linear.Identity\""), 5, "none", false, 0},
        {DENSE_CONFIG("7", ACT "activation.ReLU\""), 7, "relu", true, 0},
        {DENSE_CONFIG("7", ACT "activation.GELU\""), 7, "gelu", true, 0},
        {DENSE_CONFIG("7", ""), 7, "tanh", true, 0},
        {DENSE_CONFIG("16", ",\"use_residual\":true" ACT "activation.ReLU\""), 16, "relu", true, 1},
        {DENSE_CONFIG("6", ",\"use_residual\":true" ACT "activation.Tanh\""), 6, "tanh", true, 2},
        {DENSE_CONFIG("6", ",\"use_residual\":true,\"module_input_name\":\"sentence_embedding\","
                           "\"module_output_name\":null" ACT "activation.Tanh\""),
         6, "tanh", true, 2},
    };
    write_modules("[" TRANSFORMER POOLING DENSE "]");
    write_pooling("{\"pooling_mode_mean_tokens\":true}");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float found[HIDDEN];
        double pooled[HIDDEN], due[HIDDEN];
        struct maker_model m = write_dense(cases[i].config, HIDDEN, cases[i].out, cases[i].bias,
                                           cases[i].residual == 2);
        rp_model *model = load();
        assert_int_equal(info_of(model).dimension, cases[i].out);
        pool_all("mean", pooled);
        dense(&m, pooled, HIDDEN, cases[i].out, cases[i].act, cases[i].bias, cases[i].residual,
              due);
        run(model, "embedding", (size_t)cases[i].out, found);
        assert_close(found, due, (size_t)cases[i].out);
        rp_model_destroy(model);
        maker_model_free(&m);
    }
}

static void test_dense_refused(void **state)
{
    (void)state;
    static const struct {
        const char *config;
        rp_status status;
        const char *word;
    } cases[] = {
        {"{\"in_features\":15,\"out_features\":5}", RP_ERR_SHAPE, "in_features is 15"},
        {"{\"in_features\":16,\"out_features\":6}", RP_ERR_SHAPE, "linear.weight"},
        {"{\"in_features\":16,\"out_features\":0}", RP_ERR_FORMAT, "out_features"},
        {"{\"in_features\":16}", RP_ERR_MISSING, "out_features"},
        {"{\"in_features\":16,\"out_features\":5,\"use_residual\":true}", RP_ERR_MISSING,
         "residual.weight"},
        {"{\"in_features\":16,\"out_features\":5,\"bias\":3}", RP_ERR_FORMAT, "bias"},
        {DENSE_CONFIG("5", ",\"activation_function\":\"mine.Act\""), RP_ERR_UNSUPPORTED,
         "mine.Act"},
        {DENSE_CONFIG("5", ",\"module_input_name\":\"token_embeddings\""), RP_ERR_UNSUPPORTED,
         "token_embeddings"},
        {DENSE_CONFIG("5", ",\"module_output_name\":\"other\""), RP_ERR_UNSUPPORTED, "other"},
    };
    write_modules("[" TRANSFORMER POOLING DENSE "]");
    write_pooling("{\"pooling_mode_mean_tokens\":true}");
    rp_model *model;
    rp_error err;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct maker_model m = write_dense(cases[i].config, HIDDEN, 5, true, false);
        const rp_status s = rp_model_load(dir.path, NULL, &model, &err);
        if (s != cases[i].status)
            print_error("%s: %s\n", cases[i].config, err.message);
        assert_int_equal(s, cases[i].status);
        assert_says(err.message, cases[i].word);
        assert_says(err.message, "2_Dense");
        maker_model_free(&m);
    }
    remove(maker_path(&dir, "2_Dense/model.safetensors"));
    maker_write_text(&dir, "2_Dense/config.json", DENSE_CONFIG("5", ""));
    maker_write_text(&dir, "2_Dense/pytorch_model.bin", "");
    assert_int_equal(rp_model_load(dir.path, NULL, &model, &err), RP_ERR_UNSUPPORTED);
    assert_says(err.message, "pytorch_model.bin");
}

static void write_layer_norm(const float *w, const float *b, int n)
{
    float data[64];
    char header[300];
    memcpy(data, w, (size_t)n * 4);
    memcpy(data + n, b, (size_t)n * 4);
    maker_mkdir(&dir, "3_LayerNorm");
    snprintf(header, sizeof header,
             "{\"norm.weight\":{\"dtype\":\"F32\",\"shape\":[%d],\"data_offsets\":[0,%d]},"
             "\"norm.bias\":{\"dtype\":\"F32\",\"shape\":[%d],\"data_offsets\":[%d,%d]}}",
             n, 4 * n, n, 4 * n, 8 * n);
    maker_write_st(&dir, "3_LayerNorm/model.safetensors", strlen(header), header, data,
                   8 * (size_t)n);
    snprintf(header, sizeof header, "{\"dimension\":%d}", n);
    maker_write_text(&dir, "3_LayerNorm/config.json", header);
}

/* Pooling, Dense, LayerNorm, Normalize, Dropout, one after the other. */
static void test_whole_chain(void **state)
{
    (void)state;
    const float w[5] = {1, 2, -1, 0.5f, 1.5f}, b[5] = {0, 0.25f, 1, -1, 0.5f};
    double pooled[HIDDEN], y[5], mean = 0, var = 0, length = 0;
    float found[5];
    write_modules("[" TRANSFORMER POOLING DENSE LAYER_NORM NORMALIZE DROPOUT "]");
    write_pooling("{\"pooling_mode_cls_token\":true}");
    write_layer_norm(w, b, 5);
    struct maker_model m =
        write_dense(DENSE_CONFIG("5", ACT "linear.Identity\""), HIDDEN, 5, true, false);
    pool_all("cls", pooled);
    dense(&m, pooled, HIDDEN, 5, "none", true, 0, y);
    for (int i = 0; i < 5; i++)
        mean += y[i] / 5;
    for (int i = 0; i < 5; i++)
        var += (y[i] - mean) * (y[i] - mean) / 5;
    for (int i = 0; i < 5; i++) {
        y[i] = (y[i] - mean) / sqrt(var + 1e-5) * w[i] + b[i];
        length += y[i] * y[i];
    }
    for (int i = 0; i < 5; i++)
        y[i] /= sqrt(length);
    rp_model *model = load();
    assert_int_equal(info_of(model).normalized, 1);
    run(model, "embedding", 5, found);
    assert_close(found, y, 5);
    /* The body's tensors but the unused ones, and the modules' own. */
    uint64_t parameters = 16 * 5 + 5 + 5 + 5;
    for (size_t i = 0; i < base.n_tensors; i++)
        parameters += base.tensors[i].n;
    assert_int_equal(info_of(model).n_parameters, parameters);
    rp_model_destroy(model);
    maker_model_free(&m);
}

/* A cross-encoder made of modules: what ends in "scores" has labels and an activation. */
static void test_modular_cross_encoder(void **state)
{
    (void)state;
    double pooled[HIDDEN], due[1];
    float logits[1], scores[1];
    write_modules("[" TRANSFORMER POOLING DENSE "]");
    write_pooling("{\"pooling_mode_mean_tokens\":true}");
    struct maker_model m =
        write_dense(DENSE_CONFIG("1", ",\"module_output_name\":\"scores\"" ACT "linear.Identity\""),
                    HIDDEN, 1, true, false);
    rp_model *model = load();
    const rp_model_info info = info_of(model);
    assert_int_equal(info.task, RP_TASK_CLASSIFY);
    assert_int_equal(info.n_labels, 1);
    assert_int_equal(info.dimension, 0);
    assert_int_equal(info.score_activation, RP_ACT_SIGMOID);
    assert_null(rp_model_label(model, 0));
    pool_all("mean", pooled);
    dense(&m, pooled, HIDDEN, 1, "none", true, 0, due);
    run(model, "logits", 1, logits);
    run(model, "scores", 1, scores);
    assert_close(logits, due, 1);
    due[0] = 1 / (1 + exp(-due[0]));
    assert_close(scores, due, 1);
    rp_model_destroy(model);
    rp_error err;
    write_modules("[" TRANSFORMER POOLING DENSE NORMALIZE "]");
    assert_int_equal(rp_model_load(dir.path, NULL, &model, &err), RP_ERR_UNSUPPORTED);
    assert_says(err.message, "not the last");
    maker_model_free(&m);
}

/* The same chains behind a pre-norm body: the modules know of a body only its last rows. */
static void test_modules_behind_modernbert(void **state)
{
    const struct maker_model bert = base;
    double due[HIDDEN], length = 0;
    float found[HIDDEN];
    base = maker_model_default("modernbert");
    maker_model_fill(&base);
    maker_model_write(&base, &dir, &(struct maker_write_options){0});
    test_modular_cross_encoder(state);
    test_whole_chain(state);
    write_modules("[" TRANSFORMER POOLING NORMALIZE "]");
    write_pooling("{\"pooling_mode_mean_tokens\":true}");
    rp_model *model = load();
    pool_all("mean", due);
    for (int i = 0; i < HIDDEN; i++)
        length += due[i] * due[i];
    for (int i = 0; i < HIDDEN; i++)
        due[i] /= sqrt(length);
    run(model, "embedding", HIDDEN, found);
    assert_close(found, due, HIDDEN);
    rp_model_destroy(model);
    maker_model_free(&base);
    base = bert;
    maker_model_write(&base, &dir, &(struct maker_write_options){0});
}

/* ---- modules.json -----------------------------------------------------------------------------
 */

static void test_module_spellings(void **state)
{
    (void)state;
    static const char *const spellings[] = {
        "[" TRANSFORMER POOLING NORMALIZE "]",
        "[{\"path\":\"\",\"type\":\"sentence_transformers.base.modules.transformer.Transformer\"},"
        "{\"path\":\"1_Pooling\","
        "\"type\":\"sentence_transformers.sentence_transformer.modules.pooling.Pooling\"},"
        "{\"path\":\"2_Normalize\",\"type\":\"sentence_transformers.base.modules.normalize."
        "Normalize\"}]",
    };
    float a[HIDDEN], b[HIDDEN];
    write_pooling("{\"pooling_mode_mean_tokens\":true}");
    for (size_t i = 0; i < 2; i++) {
        write_modules(spellings[i]);
        rp_model *model = load();
        assert_int_equal(info_of(model).normalized, 1);
        run(model, "embedding", HIDDEN, i ? b : a);
        rp_model_destroy(model);
    }
    assert_memory_equal(a, b, sizeof a);
}

static void test_modules_refused(void **state)
{
    (void)state;
    static const struct {
        const char *modules;
        rp_status status;
        const char *word;
    } cases[] = {
        {"{}", RP_ERR_FORMAT, "list"},
        {"[]", RP_ERR_FORMAT, "list"},
        {"[7]", RP_ERR_FORMAT, "entry 0"},
        {"[{\"path\":\"\"}]", RP_ERR_MISSING, "type"},
        {"[{\"type\":7}]", RP_ERR_FORMAT, "type"},
        {"[" TRANSFORMER ",{\"path\":\"../x\",\"type\":\"" OLD "Pooling\"}]", RP_ERR_FORMAT,
         "../x"},
        {"[" TRANSFORMER ",{\"path\":\"/etc\",\"type\":\"" OLD "Pooling\"}]", RP_ERR_FORMAT,
         "/etc"},
        {"[" TRANSFORMER ",{\"path\":\"a/../..\",\"type\":\"" OLD "Pooling\"}]", RP_ERR_FORMAT,
         "a/../.."},
        {"[{\"path\":\"..\",\"type\":\"" OLD "Transformer\"}]", RP_ERR_FORMAT, "\"..\""},
        {"[" TRANSFORMER ",{\"path\":\"x\",\"type\":\"" OLD "LSTM\"}]", RP_ERR_UNSUPPORTED, "LSTM"},
        {"[" TRANSFORMER ",{\"path\":\"x\",\"type\":\"mine.Pooling\"}]", RP_ERR_UNSUPPORTED,
         "mine.Pooling"},
        {"[" TRANSFORMER ",{\"path\":\"x\",\"type\":\"Pooling\"}]", RP_ERR_UNSUPPORTED, "Pooling"},
        {"[" TRANSFORMER "," TRANSFORMER "]", RP_ERR_UNSUPPORTED, "module 1"},
        {"[{\"path\":\"1_Pooling\",\"type\":\"" OLD "Pooling\"}]", RP_ERR_UNSUPPORTED, "module 0"},
        {"[" TRANSFORMER NORMALIZE POOLING "]", RP_ERR_UNSUPPORTED, "before the Pooling"},
        {"[" TRANSFORMER POOLING POOLING "]", RP_ERR_UNSUPPORTED, "second Pooling"},
        {"[" TRANSFORMER POOLING NORMALIZE NORMALIZE NORMALIZE NORMALIZE NORMALIZE NORMALIZE
             NORMALIZE NORMALIZE NORMALIZE NORMALIZE NORMALIZE NORMALIZE NORMALIZE NORMALIZE
                 NORMALIZE "]",
         RP_ERR_LIMIT, "17 modules"},
    };
    rp_model *model;
    rp_error err;
    write_pooling("{\"pooling_mode_mean_tokens\":true}");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_modules(cases[i].modules);
        const rp_status s = rp_model_load(dir.path, NULL, &model, &err);
        if (s != cases[i].status)
            print_error("%s: %s\n", cases[i].modules, err.message);
        assert_int_equal(s, cases[i].status);
        assert_says(err.message, cases[i].word);
        assert_says(err.message, "modules.json");
    }
}

/* The transformer in a folder of its own, as the first releases wrote it. */
static void test_transformer_folder(void **state)
{
    (void)state;
    struct maker_dir outer, inner;
    rp_model *model;
    rp_error err;
    maker_dir_create(&outer);
    maker_mkdir(&outer, "0_Transformer");
    snprintf(inner.path, sizeof inner.path, "%.200s/0_Transformer", outer.path);
    maker_model_write(&base, &inner, &(struct maker_write_options){.prefix = true});
    maker_write_text(&inner, "sentence_bert_config.json", "{\"max_seq_length\":11}");
    maker_write_text(&outer, "modules.json",
                     "[{\"path\":\"0_Transformer\",\"type\":\"" OLD "Transformer\"}]");
    assert_int_equal(rp_model_load(outer.path, NULL, &model, &err), RP_OK);
    assert_int_equal(info_of(model).max_length, 11);
    assert_string_equal(info_of(model).pooling, "mean");
    rp_model_destroy(model);
    maker_dir_remove(&outer);
}

/* A pooling folder around a checkpoint with a classifier is an embedder; alone it is a classifier.
 */
static void test_task(void **state)
{
    (void)state;
    static const struct {
        const char *modules, *settings;
        int labels;
        rp_task task;
    } cases[] = {
        {NULL, "{}", 2, RP_TASK_CLASSIFY},
        {NULL, "{}", 0, RP_TASK_EMBED},
        {"[" TRANSFORMER POOLING "]", "{}", 2, RP_TASK_EMBED},
        {"[" TRANSFORMER "]", "{}", 2, RP_TASK_CLASSIFY},
        {"[" TRANSFORMER "]", "{\"transformer_task\":\"sequence-classification\"}", 2,
         RP_TASK_CLASSIFY},
        {NULL, "{\"transformer_task\":\"feature-extraction\"}", 2, RP_TASK_EMBED},
    };
    struct maker_dir d;
    rp_model *model;
    rp_error err;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct maker_model m = maker_model_default("bert");
        m.labels = cases[i].labels;
        maker_model_fill(&m);
        maker_dir_create(&d);
        maker_model_write(&m, &d, &(struct maker_write_options){.prefix = m.labels > 0});
        maker_mkdir(&d, "1_Pooling");
        maker_write_text(&d, "1_Pooling/config.json", "{\"pooling_mode_mean_tokens\":true}");
        maker_write_text(&d, "sentence_bert_config.json", cases[i].settings);
        if (cases[i].modules)
            maker_write_text(&d, "modules.json", cases[i].modules);
        if (rp_model_load(d.path, NULL, &model, &err) != RP_OK)
            fail_msg("case %zu: %s", i, err.message);
        assert_int_equal(info_of(model).task, cases[i].task);
        if (cases[i].task == RP_TASK_EMBED && cases[i].labels)
            assert_true(has_note(model, "classifier.weight"));
        rp_model_destroy(model);
        maker_dir_remove(&d);
        maker_model_free(&m);
    }
    maker_write_text(&dir, "sentence_bert_config.json", "{\"transformer_task\":\"fill-mask\"}");
    assert_int_equal(rp_model_load(dir.path, NULL, &model, &err), RP_ERR_UNSUPPORTED);
    assert_says(err.message, "fill-mask");
}

/* ---- settings ---------------------------------------------------------------------------------
 */

static void test_max_length(void **state)
{
    (void)state;
    static const struct {
        const char *bert, *tokenizer;
        size_t length; /* 0: refused */
        const char *source;
    } cases[] = {
        {NULL, NULL, 40, "config.json:max_position_embeddings"},
        {"{\"max_seq_length\":17}", "{\"model_max_length\":9}", 17,
         "sentence_bert_config.json:max_seq_length"},
        {"{\"max_seq_length\":null}", "{\"model_max_length\":9}", 9,
         "tokenizer_config.json:model_max_length"},
        {"{}", "{\"model_max_length\":9}", 9, "tokenizer_config.json:model_max_length"},
        {NULL, "{\"model_max_length\":1000000000000000019884624838656}", 40,
         "config.json:max_position_embeddings"},
        {NULL, "{\"model_max_length\":1e30}", 40, "config.json:max_position_embeddings"},
        {NULL, "{\"other\":[1,2,{\"a\":\"b\"}]}", 40, "config.json:max_position_embeddings"},
        {NULL, "{\"model_max_length\":1000}", 40, "config.json:max_position_embeddings"},
        {"{\"max_seq_length\":41}", NULL, 40, "config.json:max_position_embeddings"},
        {"{\"max_seq_length\":40}", NULL, 40, "sentence_bert_config.json:max_seq_length"},
        {"{\"max_seq_length\":0}", NULL, 0, "max_seq_length"},
        {"{\"max_seq_length\":-1}", NULL, 0, "max_seq_length"},
        {"{\"max_seq_length\":\"17\"}", NULL, 0, "max_seq_length"},
        {NULL, "{\"model_max_length\":-5}", 0, "model_max_length"},
        {NULL, "{\"model_max_length\":5.5}", 0, "model_max_length"},
        {NULL, "{\"model_max_length\":\"5\"}", 0, "model_max_length"},
        {NULL, "{", 0, "tokenizer_config.json"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rp_model *model = NULL;
        rp_error err;
        clean(NULL);
        if (cases[i].bert)
            maker_write_text(&dir, "sentence_bert_config.json", cases[i].bert);
        if (cases[i].tokenizer)
            maker_write_text(&dir, "tokenizer_config.json", cases[i].tokenizer);
        const rp_status s = rp_model_load(dir.path, NULL, &model, &err);
        if (cases[i].length == 0) {
            assert_int_equal(s, RP_ERR_FORMAT);
            assert_says(err.message, cases[i].source);
            continue;
        }
        if (s != RP_OK)
            fail_msg("case %zu: %s", i, err.message);
        assert_int_equal(info_of(model).max_length, cases[i].length);
        assert_string_equal(info_of(model).max_length_source, cases[i].source);
        /* A length that the positions cut is told. */
        const bool cut = cases[i].length == 40 && i >= 7 && i <= 8;
        assert_int_equal(has_note(model, "positions allow"), cut);
        rp_model_destroy(model);
    }
    /* Other classes wrote the file under other names. */
    clean(NULL);
    maker_write_text(&dir, "sentence_roberta_config.json",
                     "{\"max_seq_length\":12,\"do_lower_case\":true}");
    rp_model *model = load();
    assert_int_equal(info_of(model).max_length, 12);
    assert_string_equal(info_of(model).max_length_source,
                        "sentence_roberta_config.json:max_seq_length");
    assert_true(has_note(model, "lower case"));
    rp_model_destroy(model);
}

static void test_prompts(void **state)
{
    (void)state;
    maker_write_text(&dir, "config_sentence_transformers.json",
                     "{\"prompts\":{\"query\":\"query: \",\"document\":\"\"},"
                     "\"default_prompt_name\":\"query\",\"similarity_fn_name\":\"dot\"}");
    rp_model *model = load();
    assert_string_equal(rp_model_prompt(model, "query"), "query: ");
    assert_string_equal(rp_model_prompt(model, "document"), "");
    assert_string_equal(rp_model_prompt(model, NULL), "query: ");
    assert_null(rp_model_prompt(model, "other"));
    assert_int_equal(info_of(model).similarity, RP_SIM_DOT);
    rp_model_destroy(model);
    maker_write_text(&dir, "config_sentence_transformers.json",
                     "{\"prompts\":{\"query\":\"query: \"},\"default_prompt_name\":null,"
                     "\"similarity_fn_name\":null}");
    model = load();
    assert_null(rp_model_prompt(model, NULL));
    assert_int_equal(info_of(model).similarity, RP_SIM_COSINE);
    rp_model_destroy(model);
}

static void test_settings_refused(void **state)
{
    (void)state;
    static const struct {
        const char *settings;
        rp_status status;
        const char *word;
    } cases[] = {
        {"{\"prompts\":{\"query\":7}}", RP_ERR_FORMAT, "\"query\""},
        {"{\"prompts\":[]}", RP_ERR_FORMAT, "prompts"},
        {"{\"default_prompt_name\":\"query\"}", RP_ERR_FORMAT, "\"query\""},
        {"{\"prompts\":{\"a\":\"b\"},\"default_prompt_name\":\"query\"}", RP_ERR_FORMAT,
         "\"query\""},
        {"{\"similarity_fn_name\":\"jaccard\"}", RP_ERR_UNSUPPORTED, "jaccard"},
        {"{\"similarity_fn_name\":7}", RP_ERR_FORMAT, "similarity_fn_name"},
        {"[]", RP_ERR_FORMAT, "object"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rp_model *model;
        rp_error err;
        maker_write_text(&dir, "config_sentence_transformers.json", cases[i].settings);
        assert_int_equal(rp_model_load(dir.path, NULL, &model, &err), cases[i].status);
        assert_says(err.message, cases[i].word);
        assert_says(err.message, "config_sentence_transformers.json");
    }
    static const struct {
        const char *name;
        rp_similarity similarity;
    } known[] = {{"cosine", RP_SIM_COSINE},
                 {"dot", RP_SIM_DOT},
                 {"euclidean", RP_SIM_EUCLIDEAN},
                 {"manhattan", RP_SIM_MANHATTAN}};
    for (size_t i = 0; i < 4; i++) {
        char text[100];
        snprintf(text, sizeof text, "{\"similarity_fn_name\":\"%s\"}", known[i].name);
        maker_write_text(&dir, "config_sentence_transformers.json", text);
        rp_model *model = load();
        assert_int_equal(info_of(model).similarity, known[i].similarity);
        rp_model_destroy(model);
    }
}

static void test_paths(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool deep, stays;
    } cases[] = {
        {"a", false, true},    {"a/b", false, false}, {"a/b", true, true},
        {"", true, true},      {"..", true, false},   {"../a", true, false},
        {"a/..", true, false}, {"/a", true, false},   {"a/../b", true, false},
        {"...", true, true},   {"..a", true, true},   {"a..", false, true},
        {"a\\b", true, false}, {"./a", true, true},   {"a//..", true, false},
        {"/", true, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (rp_path_stays(cases[i].name, cases[i].deep) != cases[i].stays)
            fail_msg("\"%s\", %d", cases[i].name, cases[i].deep);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup(f, clean)
    const struct CMUnitTest tests[] = {
        TEST(test_pooling_modes),
        TEST(test_last_token_is_told_by_length),
        TEST(test_pooling_refused),
        TEST(test_bare_folder),
        TEST(test_dense),
        TEST(test_dense_refused),
        TEST(test_whole_chain),
        TEST(test_modular_cross_encoder),
        TEST(test_modules_behind_modernbert),
        TEST(test_module_spellings),
        TEST(test_modules_refused),
        TEST(test_transformer_folder),
        TEST(test_task),
        TEST(test_max_length),
        TEST(test_prompts),
        TEST(test_settings_refused),
        TEST(test_paths),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
