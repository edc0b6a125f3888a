/* Every family from file to numbers: against reference outputs of the oracles, and against a
 * reference written here in double (tests/ref_encoder.c) at sizes that no oracle has.  Then what
 * loading must refuse or tell. */
#include "models/encoder.h"
#include "plan/weights.h"
#include "tests/model_maker.h"
#include "tests/model_run.h"
#include "tests/ref_encoder.h"
#include "tests/scratch.h"

#include <rankplan/model.h>
#include <rankplan/plan.h>

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- oracles ----------------------------------------------------------------------------------
 */

struct cases {
    rp_tensor_file *file;
    int32_t *ids, *types, *cu;
    size_t n, n_seqs;
};

static int32_t *read_ints(const rp_tensor_file *file, const char *name, size_t *n)
{
    rp_tensor t;
    rp_error err;
    if (rp_tensor_file_find(file, name, &t, &err) != RP_OK)
        return NULL;
    *n = (size_t)t.n_elements;
    int32_t *values = malloc(*n * sizeof *values);
    assert_non_null(values);
    assert_int_equal(rp_tensor_file_read_i32(file, name, values, *n, &err), RP_OK);
    return values;
}

static void compare_with_file(const struct cases *c, const char *folder, const char *name,
                              const float *found, size_t rows, size_t width)
{
    rp_tensor t;
    rp_error err;
    char what[64];
    if (rp_tensor_file_find(c->file, name, &t, &err) != RP_OK)
        fail_msg("%s", err.message);
    assert_int_equal(t.n_elements, rows * width);
    float *values = malloc(rows * width * sizeof *values);
    double *due = malloc(rows * width * sizeof *due);
    assert_true(values && due);
    assert_int_equal(rp_tensor_file_read_f32(c->file, name, values, rows * width, &err), RP_OK);
    for (size_t i = 0; i < rows * width; i++)
        due[i] = values[i];
    snprintf(what, sizeof what, "%s: %s", folder, name);
    run_compare(what, found, due, rows * width);
    free(values);
    free(due);
}

/* Each state and output that the oracle has. */
static void check_oracle(const char *folder, const char *outputs)
{
    char path[400], cases_path[500];
    struct cases c = {0};
    rp_error err;
    size_t n_cu = 0, n_types;
    snprintf(path, sizeof path, "%s/oracles/%s", RP_TEST_DATA, folder);
    snprintf(cases_path, sizeof cases_path, "%s/cases.safetensors", path);
    assert_int_equal(rp_tensor_file_open(cases_path, &c.file, &err), RP_OK);
    c.ids = read_ints(c.file, "ids", &c.n);
    c.cu = read_ints(c.file, "cu", &n_cu);
    c.types = read_ints(c.file, "type_ids", &n_types);
    c.n_seqs = n_cu - 1;
    rp_model *model = run_load(path, RP_MODEL_ALL_OUTPUTS);
    const size_t hidden = run_info(model).hidden;
    struct run r = run_model(model, c.ids, c.types, c.cu, c.n_seqs);
    assert_int_equal(r.capture.n_states, run_info(model).n_layers + 1);
    for (size_t i = 0; i < r.capture.n_states; i++) {
        char name[32];
        snprintf(name, sizeof name, "hidden.%zu", i);
        assert_non_null(r.capture.states[i]);
        compare_with_file(&c, folder, name, r.capture.states[i], c.n, hidden);
    }
    if (strstr(outputs, "last"))
        compare_with_file(&c, folder, "last", run_output(&r, "last").data, c.n, hidden);
    if (strstr(outputs, "pooler"))
        compare_with_file(&c, folder, "pooler", run_output(&r, "pooler").data, c.n_seqs, hidden);
    if (strstr(outputs, "logits"))
        compare_with_file(&c, folder, "logits", run_output(&r, "logits").data, c.n_seqs,
                          run_output(&r, "logits").width);
    run_end(&r);
    rp_model_destroy(model);
    rp_tensor_file_close(c.file);
    free(c.ids);
    free(c.types);
    free(c.cu);
}

static void test_oracles(void **state)
{
    (void)state;
    /* Random weights of hybrids now and then make a row that is nearly nothing, whose norm is not.
     */
    static const char *const hybrids[] = {"qwen3_next", "qwen3_5", "olmo_hybrid"};
    static const char *const oracles[][2] = {
        {"bert", "last pooler"},
        {"bert_bf16", "last pooler"},
        {"bert_f16", "last pooler"},
        {"bert_head32", "last pooler"},
        {"bert_cross_encoder", "logits"},
        {"bert_classifier3", "logits"},
        {"xlm_roberta", "last pooler"},
        {"xlm_roberta_reranker", "logits"},
        {"distilbert", "last"},
        {"mpnet", "last pooler"},
        {"electra_cross_encoder", "logits"},
        {"modernbert", "last"},
        {"modernbert_reranker_cls", "logits"},
        {"modernbert_reranker_mean", "logits"},
        {"qwen3_embedding", "last"},
        {"qwen3_reranker", "logits"},
    };
    run_worst = 0;
    for (size_t i = 0; i < sizeof oracles / sizeof *oracles; i++)
        check_oracle(oracles[i][0], oracles[i][1]);
    run_tolerance = 5e-5;
    for (size_t i = 0; i < sizeof hybrids / sizeof *hybrids; i++)
        check_oracle(hybrids[i], "logits");
    run_tolerance = 2e-5;
    print_message("worst of the oracles: %.3g of the tensor's largest\n", run_worst);
}

/* ---- against the reference --------------------------------------------------------------------
 */

/* The model's states and head on one text. */
static void compare_one(const struct maker_model *m, const rp_model *model, const int32_t *ids,
                        const int32_t *types, size_t n, const char *what)
{
    const int32_t cu[2] = {0, (int32_t)n};
    struct ref_result ref = ref_encode(m, ids, types, n);
    struct run r = run_model(model, ids, types, cu, 1);
    char text[200];
    for (size_t i = 0; i <= ref.layers; i++) {
        snprintf(text, sizeof text, "%s, %zu tokens, hidden state %zu", what, n, i);
        run_compare(text, r.capture.states[i], ref.states + i * n * ref.hidden, n * ref.hidden);
    }
    snprintf(text, sizeof text, "%s, %zu tokens, head", what, n);
    if (m->labels)
        run_compare(text, run_output(&r, "logits").data, ref.logits, ref.labels);
    if (m->pooler)
        run_compare(text, run_output(&r, "pooler").data, ref.pooler, ref.hidden);
    run_end(&r);
    ref_free(&ref);
}

static const struct shape {
    const char *family;
    int hidden, heads, intermediate, layers, labels, embedding, types, pad, rel_buckets;
    bool pooler;
    const char *activation;
    enum maker_dtype dtype;
} shapes[] = {
    {"bert", 15, 3, 17, 2, 0, 0, 2, 0, 0, true, "gelu", MAKER_F32},
    {"bert", 33, 1, 5, 1, 1, 0, 2, 0, 0, false, "gelu_new", MAKER_F16},
    {"bert", 24, 24, 31, 3, 4, 0, 3, 0, 0, false, "relu", MAKER_BF16},
    {"bert", 40, 2, 64, 1, 0, 0, 1, 0, 0, false, "silu", MAKER_F32},
    {"roberta", 21, 7, 19, 2, 2, 0, 1, 3, 0, false, "gelu", MAKER_F32},
    {"xlm-roberta", 30, 5, 40, 2, 0, 0, 1, 1, 0, true, "tanh", MAKER_F16},
    {"distilbert", 22, 2, 9, 2, 3, 0, 0, 0, 0, false, "gelu", MAKER_F32},
    {"distilbert", 16, 4, 33, 1, 0, 0, 0, 0, 0, false, "relu", MAKER_BF16},
    {"mpnet", 27, 3, 14, 2, 0, 0, 0, 1, 32, true, "gelu", MAKER_F32},
    {"mpnet", 20, 5, 21, 1, 2, 0, 0, 1, 16, false, "gelu", MAKER_F32},
    {"electra", 18, 6, 23, 2, 1, 7, 2, 0, 0, false, "gelu", MAKER_F32},
    {"electra", 34, 2, 12, 1, 2, 34, 2, 0, 0, false, "gelu", MAKER_F16},
};

static struct maker_model model_of(const struct shape *s, uint64_t seed)
{
    struct maker_model m = maker_model_default(s->family);
    m.hidden = s->hidden;
    m.heads = s->heads;
    m.intermediate = s->intermediate;
    m.layers = s->layers;
    m.labels = s->labels;
    m.embedding = s->embedding;
    m.types = s->types;
    m.pad = s->pad;
    m.rel_buckets = s->rel_buckets;
    m.pooler = s->pooler;
    m.activation = s->activation;
    m.positions = 180;
    m.seed = seed;
    maker_model_fill(&m);
    return m;
}

static void test_reference(void **state)
{
    (void)state;
    static const size_t lengths[] = {1, 2, 3, 16, 17, 33, 70, 150};
    uint64_t rng = 20240607;
    run_worst = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct maker_model m = model_of(&shapes[i], i + 100);
        maker_model_write(&m, &dir,
                          &(struct maker_write_options){.dtype = shapes[i].dtype,
                                                        .prefix = m.labels > 0,
                                                        .shards = i % 3 == 1 ? 2 : 0});
        rp_model *model = run_load(dir.path, RP_MODEL_ALL_OUTPUTS);
        for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
            int32_t ids[150], types[150];
            char what[80];
            /* Pads in the middle of a text count too. */
            for (size_t t = 0; t < lengths[k]; t++) {
                ids[t] = (int32_t)(maker_random(&rng) % (uint64_t)m.vocab);
                types[t] = m.types ? (int32_t)(maker_random(&rng) % (uint64_t)m.types) : 0;
            }
            snprintf(what, sizeof what, "shape %zu (%s, seed %zu)", i, m.family, i + 100);
            compare_one(&m, model, ids, m.types > 1 ? types : NULL, lengths[k], what);
        }
        rp_model_destroy(model);
        maker_model_free(&m);
        remove(maker_path(&dir, "model.safetensors.index.json"));
    }
    print_message("worst of the shapes: %.3g of the tensor's largest\n", run_worst);
}

/* ---- spellings --------------------------------------------------------------------------------
 */

/* The bits of the embedding of one text. */
static void embedding_of(const rp_model *model, float out[16])
{
    static const int32_t ids[] = {2, 7, 1, 8, 2, 8}, types[] = {0, 0, 0, 1, 1, 1}, cu[] = {0, 6};
    struct run r = run_model(model, ids, types, cu, 1);
    const rp_view v = run_output(&r, "embedding");
    assert_int_equal(v.rows, 1);
    assert_int_equal(v.width, 16);
    memcpy(out, v.data, 16 * sizeof *out);
    run_end(&r);
}

static void test_spellings(void **state)
{
    (void)state;
    struct maker_model m = maker_model_default("bert");
    maker_model_fill(&m);
    float first[16], found[16];
    for (int way = 0; way < 16; way++) {
        const struct maker_write_options o = {.prefix = way & 1,
                                              .gamma_beta = way & 2,
                                              .leftovers = way & 4,
                                              .shards = way & 8 ? 3 : 0};
        maker_model_write(&m, &dir, &o);
        rp_model *model = run_load(dir.path, 0);
        embedding_of(model, way ? found : first);
        if (way)
            assert_memory_equal(found, first, sizeof first);
        size_t told = 0, unknown = 0;
        for (size_t i = 0; rp_model_note(model, i); i++) {
            told += strstr(rp_model_note(model, i), "cls.predictions.bias") &&
                    strstr(rp_model_note(model, i), "position_ids");
            unknown += strstr(rp_model_note(model, i), "something.else.weight") != NULL;
            assert_null(strstr(rp_model_note(model, i), "encoder.layer"));
        }
        assert_int_equal(told, way & 4 ? 1 : 0);
        assert_int_equal(unknown, way & 4 ? 1 : 0);
        rp_model_destroy(model);
        remove(maker_path(&dir, "model.safetensors.index.json"));
    }
    maker_model_free(&m);
}

static void test_missing_tensors(void **state)
{
    (void)state;
    static const char *const families[] = {"bert",  "roberta", "distilbert",
                                           "mpnet", "electra", "modernbert"};
    size_t dropped = 0;
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        struct maker_model m = maker_model_default(families[f]);
        m.labels = 2;
        m.modernbert.norm_bias = m.modernbert.attention_bias = true;
        m.modernbert.mlp_bias = m.modernbert.classifier_bias = true;
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
            assert_says(err.message, "model.safetensors");
        }
        maker_model_free(&m);
    }
    print_message("%zu tensors, each missed by name\n", dropped);
}

/* ---- config against tensors -------------------------------------------------------------------
 */

static void test_config_against_tensors(void **state)
{
    (void)state;
    static const struct {
        const char *key, *value;
        rp_status status;
        const char *words[2];
    } cases[] = {
        {"num_hidden_layers", "2147483647", RP_ERR_SHAPE, {"2147483647 layers"}},
        {"num_hidden_layers",
         "3",
         RP_ERR_MISSING,
         {"encoder.layer.2.attention.self.query.weight", "more"}},
        {"num_hidden_layers",
         "30",
         RP_ERR_MISSING,
         {"encoder.layer.2.attention.self.query.weight", "more"}},
        {"vocab_size", "51", RP_ERR_SHAPE, {"word_embeddings", "[50, 16]"}},
        {"vocab_size", "2147483647", RP_ERR_SHAPE, {"word_embeddings", "[2147483647, 16]"}},
        {"hidden_size", "18", RP_ERR_SHAPE, {"word_embeddings", "[50, 18]"}},
        {"head_dim", "7", RP_ERR_SHAPE, {"self.query.weight", "[14, 16]"}},
        {"intermediate_size", "25", RP_ERR_SHAPE, {"intermediate.dense.weight", "[25, 16]"}},
        {"max_position_embeddings", "41", RP_ERR_SHAPE, {"position_embeddings", "[40, 16]"}},
        {"type_vocab_size", "3", RP_ERR_SHAPE, {"token_type_embeddings", "[2, 16]"}},
        {"id2label", "{\"0\":\"x\"}", RP_ERR_SHAPE, {"classifier.weight", "[2, 16]"}},
        {"architectures", "[\"BertModel\"]", RP_OK, {0}},
        {"num_hidden_layers", "1", RP_OK, {0}},
        {"num_attention_heads", "4", RP_OK, {0}},
    };
    struct maker_model m = maker_model_default("bert");
    m.labels = 2;
    maker_model_fill(&m);
    maker_model_write(&m, &dir, &(struct maker_write_options){.prefix = true});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *config = maker_model_config(&m);
        rp_model *model = NULL;
        rp_error err = {0};
        json_object_set_new(config, cases[i].key,
                            json_loads(cases[i].value, JSON_DECODE_ANY, NULL));
        maker_write_json(&dir, "config.json", config);
        json_decref(config);
        const rp_status s = rp_model_load(dir.path, NULL, &model, &err);
        if (s != cases[i].status)
            print_error("%s = %s: %s\n", cases[i].key, cases[i].value, err.message);
        assert_int_equal(s, cases[i].status);
        for (size_t k = 0; k < 2 && cases[i].words[k]; k++)
            assert_says(err.message, cases[i].words[k]);
        if (s == RP_OK && strcmp(cases[i].key, "num_hidden_layers") == 0)
            assert_says(rp_model_note(model, 0), "bert.encoder.layer.1.");
        rp_model_destroy(model);
    }
    maker_model_free(&m);
}

static void test_element_types(void **state)
{
    (void)state;
    static const char header[] =
        "{\"embeddings.word_embeddings.weight\":{\"dtype\":\"F64\",\"shape\":[50,16],"
        "\"data_offsets\":[0,6400]}}";
    static const char zeros[6400];
    struct maker_model m = maker_model_default("bert");
    json_t *config = maker_model_config(&m);
    rp_model *model;
    rp_error err;
    maker_write_json(&dir, "config.json", config);
    json_object_set_new(config, "num_hidden_layers", json_integer(1));
    maker_write_json(&dir, "config.json", config);
    json_decref(config);
    maker_write_st(&dir, "model.safetensors", sizeof header - 1, header, zeros, sizeof zeros);
    assert_int_equal(rp_model_load(dir.path, NULL, &model, &err), RP_ERR_UNSUPPORTED);
    assert_says(err.message, "word_embeddings");
    assert_says(err.message, "F64");
}

/* ---- the parts of a cross-encoder -------------------------------------------------------------
 */

/* The head alone, with numbers worked by hand: tanh(1) + tanh(-2) + 0.5. */
static void test_head_by_hand(void **state)
{
    (void)state;
    static const char header[] =
        "{\"table\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]},"
        "\"pooler.dense.weight\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[8,24]},"
        "\"pooler.dense.bias\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[24,32]},"
        "\"classifier.weight\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[32,40]},"
        "\"classifier.bias\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[40,44]}}";
    const float data[11] = {1, -2, 1, 0, 0, 1, 0, 0, 1, 1, 0.5f};
    const struct rp_head head = {"pooler", "pooler.dense", RP_ACT_TANH, "classifier", "classifier"};
    const struct rp_encoder e = {.body = {.hidden = 2}};
    struct rp_notes notes = {0};
    struct rp_tensors *tensors;
    rp_graph *graph;
    rp_weights *weights;
    rp_session *session;
    rp_batch batch;
    rp_view v;
    maker_write_st(&dir, "model.safetensors", sizeof header - 1, header, data, sizeof data);
    remove(maker_path(&dir, "model.safetensors.index.json"));
    assert_int_equal(rp_tensors_open(dir.path, &notes, &tensors, NULL), RP_OK);
    assert_int_equal(rp_graph_create(&graph, NULL), RP_OK);
    assert_int_equal(rp_weights_create(&weights, NULL), RP_OK);
    struct rp_build build = rp_build_init(graph, weights, tensors);
    const rp_embed_table table = {rp_build_matrix(&build, "table", "table", 1, 2), RP_INDEX_IDS, 0};
    const rp_value x = rp_graph_embed(graph, "x", 1, &table);
    rp_graph_output(graph, "y", rp_encoder_head(&build, &e, &head, x, 1, NULL), RP_ROWS_SEQS, 1);
    assert_int_equal(rp_build_finish(&build, NULL), RP_OK);
    assert_int_equal(build.n_parameters, 11);
    assert_int_equal(rp_session_create(graph, weights, NULL, &session, NULL), RP_OK);
    rp_batch_init(&batch);
    batch.n_seqs = 1;
    batch.ids = (const int32_t[]){0};
    batch.cu = (const int32_t[]){0, 1};
    assert_int_equal(rp_session_run(session, &batch, NULL), RP_OK);
    assert_int_equal(rp_session_output(session, "y", &v, NULL), RP_OK);
    assert_true(fabs(v.data[0] - 0.29756657587994795) < 1e-6);
    rp_session_destroy(session);
    rp_build_fini(&build);
    rp_tensors_close(tensors);
    rp_weights_destroy(weights);
    rp_graph_destroy(graph);
}

/* Vectors put one after the other read as one, from any byte to any other. */
static void test_joined_vectors(void **state)
{
    (void)state;
    static const char header[] =
        "{\"c\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},"
        "\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[12,24]},"
        "\"b\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[24,36]}}";
    static const char *const names[] = {"a", "b", "c"};
    const float data[9] = {7, 8, 9, 1, 2, 3, 4, 5, 6}, due[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    struct rp_notes notes = {0};
    struct rp_tensors *tensors;
    rp_weights *weights;
    char found[36];
    maker_write_st(&dir, "model.safetensors", sizeof header - 1, header, data, sizeof data);
    assert_int_equal(rp_tensors_open(dir.path, &notes, &tensors, NULL), RP_OK);
    assert_int_equal(rp_weights_create(&weights, NULL), RP_OK);
    struct rp_build build = rp_build_init(NULL, weights, tensors);
    const rp_weight w = rp_build_vectors(&build, "w", 3, names, 3);
    assert_int_equal(build.first.status, RP_OK);
    const struct rp_weight_entry *e = rp_weights_entry(weights, w);
    assert_true(e->rows == 1 && e->cols == 9 && e->n_parts == 1);
    const rp_weight_part *part = &e->parts[0];
    for (size_t from = 0; from < 36; from++)
        for (size_t to = from; to <= 36; to++) {
            assert_int_equal(part->read(part->context, from, found, to - from, NULL), RP_OK);
            assert_memory_equal(found, (const char *)due + from, to - from);
        }
    assert_int_equal(part->read(part->context, 30, found, 7, NULL), RP_ERR_INVALID);
    rp_build_fini(&build);
    rp_tensors_close(tensors);
    rp_weights_destroy(weights);
}

/* Segments reach the table: the pair scores as the reference says, and not as with one segment. */
static void test_segments(void **state)
{
    (void)state;
    static const int32_t ids[] = {2, 11, 12, 3, 13, 3}, types[] = {0, 0, 0, 0, 1, 1}, cu[] = {0, 6};
    struct maker_model m = maker_model_default("bert");
    m.labels = 1;
    maker_model_fill(&m);
    struct maker_tensor *table = maker_model_find(&m, "embeddings.token_type_embeddings.weight");
    for (size_t i = 16; i < 32; i++)
        table->data[i] *= 50;
    maker_model_write(&m, &dir, &(struct maker_write_options){.prefix = true});
    rp_model *model = run_load(dir.path, 0);
    compare_one(&m, model, ids, types, 6, "two segments");
    compare_one(&m, model, ids, NULL, 6, "one segment");
    struct run a = run_model(model, ids, types, cu, 1), b = run_model(model, ids, NULL, cu, 1);
    assert_true(fabsf(run_output(&a, "logits").data[0] - run_output(&b, "logits").data[0]) > 1e-3f);
    run_end(&a);
    run_end(&b);
    rp_model_destroy(model);
    maker_model_free(&m);
}

/* The activation of scores: who says it, and in which order they are asked. */
static void test_score_activation(void **state)
{
    (void)state;
    static const struct {
        int labels;
        const char *config, *settings; /* JSON; NULL: none */
        int activation;                /* -1: refused */
    } cases[] = {
        {1, NULL, NULL, RP_ACT_SIGMOID},
        {3, NULL, NULL, RP_ACT_NONE},
        {1, "{\"sentence_transformers\":{\"activation_fn\":\"torch.nn.modules.linear.Identity\"}}",
         NULL, RP_ACT_NONE},
        {3,
         "{\"sentence_transformers\":{\"activation_fn\":\"torch.nn.modules.activation.Sigmoid\"}}",
         NULL, RP_ACT_SIGMOID},
        {1, "{\"sbert_ce_default_activation_function\":\"torch.nn.modules.linear.Identity\"}", NULL,
         RP_ACT_NONE},
        {1,
         "{\"sentence_transformers\":{\"activation_fn\":\"torch.nn.modules.activation.Tanh\"},"
         "\"sbert_ce_default_activation_function\":\"torch.nn.modules.linear.Identity\"}",
         NULL, RP_ACT_TANH},
        {1, "{\"sentence_transformers\":{\"version\":\"5.0\"}}", NULL, RP_ACT_SIGMOID},
        {1, "{\"sentence_transformers\":{\"activation_fn\":null}}", NULL, RP_ACT_SIGMOID},
        {1, "{\"sentence_transformers\":{\"activation_fn\":\"torch.nn.modules.activation.Tanh\"}}",
         "{\"activation_fn\":\"torch.nn.modules.activation.ReLU\"}", RP_ACT_RELU},
        {3,
         "{\"sentence_transformers\":{\"activation_fn\":\"torch.nn.modules.activation.Softmax\"}}",
         NULL, -1},
        {1, "{\"sbert_ce_default_activation_function\":\"evil.module.Thing\"}", NULL, -1},
        {1, NULL, "{\"activation_fn\":\"evil.module.Thing\"}", -1},
        {1, "{\"sentence_transformers\":7}", NULL, -1},
    };
    static const int32_t ids[] = {2, 7, 3}, cu[] = {0, 3};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct maker_model m = maker_model_default("bert");
        rp_model *model = NULL;
        rp_error err;
        m.labels = cases[i].labels;
        maker_model_fill(&m);
        maker_model_write(&m, &dir, &(struct maker_write_options){.prefix = true});
        json_t *config = maker_model_config(&m);
        if (cases[i].config) {
            json_t *more = json_loads(cases[i].config, 0, NULL);
            assert_non_null(more);
            json_object_update(config, more);
            json_decref(more);
        }
        maker_write_json(&dir, "config.json", config);
        json_decref(config);
        remove(maker_path(&dir, "config_sentence_transformers.json"));
        if (cases[i].settings)
            maker_write_text(&dir, "config_sentence_transformers.json", cases[i].settings);
        const rp_status s = rp_model_load(dir.path, NULL, &model, &err);
        if (cases[i].activation < 0) {
            assert_true(s == RP_ERR_UNSUPPORTED || s == RP_ERR_FORMAT);
            assert_says(err.message, "json: key \"");
        } else {
            assert_int_equal(s, RP_OK);
            const rp_model_info info = run_info(model);
            assert_int_equal(info.score_activation, cases[i].activation);
            assert_int_equal(info.task, RP_TASK_CLASSIFY);
            assert_int_equal(info.n_labels, cases[i].labels);
            struct run r = run_model(model, ids, NULL, cu, 1);
            const rp_view logits = run_output(&r, "logits"), scores = run_output(&r, "scores");
            assert_int_equal(scores.width, cases[i].labels);
            for (size_t k = 0; k < scores.width; k++) {
                const double x = logits.data[k];
                const double due = cases[i].activation == RP_ACT_SIGMOID ? 1 / (1 + exp(-x))
                                   : cases[i].activation == RP_ACT_TANH  ? tanh(x)
                                   : cases[i].activation == RP_ACT_RELU  ? fmax(x, 0)
                                                                         : x;
                assert_true(fabs(scores.data[k] - due) < 1e-6);
            }
            run_end(&r);
        }
        rp_model_destroy(model);
        maker_model_free(&m);
    }
    remove(maker_path(&dir, "config_sentence_transformers.json"));
}

/* ---- ModernBERT -------------------------------------------------------------------------------
 */

static const struct modern_shape {
    int hidden, heads, intermediate, layers, labels;
    struct maker_modernbert modernbert; /* what is not set here is the default model's */
    const char *activation;
    enum maker_dtype dtype;
} modern_shapes[] = {
    /* windows of 1, 2, 3, 8 and 32 to either side; the default of 64 */
    {16, 2, 24, 4, 0, {.local_attention = 2, .every = 3}, "gelu", MAKER_F32},
    {12, 3, 7, 5, 0, {.local_attention = 4, .every = 2, .norm_bias = true}, "gelu", MAKER_F16},
    {30, 1, 19, 3, 1, {.local_attention = 7, .every = 3, .pooling = "mean"}, "gelu_new", MAKER_F32},
    {24,
     6,
     33,
     3,
     3,
     {.local_attention = 16, .types = "sfs", .attention_bias = true, .mlp_bias = true},
     "silu",
     MAKER_BF16},
    {34,
     17,
     16,
     2,
     2,
     {.local_attention = 64,
      .types = "ss",
      .parameters = true,
      .theta = {5, 700},
      .pooling = "mean",
      .classifier_bias = true,
      .norm_bias = true,
      .classifier_activation = "silu"},
     "relu",
     MAKER_F32},
    {20, 2, 1, 7, 0, {.every = 3}, "gelu", MAKER_F16},
    {16, 1, 40, 3, 1, {.local_attention = 6, .every = 1}, "tanh", MAKER_F32},
    {48,
     2,
     21,
     1,
     4,
     {.local_attention = 2, .types = "f", .parameters = true, .classifier_activation = "relu"},
     "gelu",
     MAKER_F32},
};

static struct maker_model modern_model_of(const struct modern_shape *s, uint64_t seed)
{
    struct maker_model m = maker_model_default("modernbert");
    const struct maker_modernbert given = m.modernbert;
    m.hidden = s->hidden;
    m.heads = s->heads;
    m.intermediate = s->intermediate;
    m.layers = s->layers;
    m.labels = s->labels;
    m.activation = s->activation;
    m.modernbert = s->modernbert;
    if (m.modernbert.theta[0] == 0)
        memcpy(m.modernbert.theta, given.theta, sizeof given.theta);
    if (!m.modernbert.pooling)
        m.modernbert.pooling = given.pooling;
    if (!m.modernbert.classifier_activation)
        m.modernbert.classifier_activation = given.classifier_activation;
    m.positions = 300;
    m.seed = seed;
    maker_model_fill(&m);
    return m;
}

static void random_ids(uint64_t *rng, int vocab, int32_t *ids, size_t n)
{
    for (size_t t = 0; t < n; t++)
        ids[t] = (int32_t)(maker_random(rng) % (uint64_t)vocab);
}

static void test_modernbert(void **state)
{
    (void)state;
    uint64_t rng = 20241218;
    run_worst = 0;
    for (size_t i = 0; i < sizeof modern_shapes / sizeof *modern_shapes; i++) {
        struct maker_model m = modern_model_of(&modern_shapes[i], i + 300);
        maker_model_write(&m, &dir,
                          &(struct maker_write_options){.dtype = modern_shapes[i].dtype,
                                                        .prefix = i % 3 != 0,
                                                        .shards = i % 3 == 1 ? 2 : 0});
        rp_model *model = run_load(dir.path, RP_MODEL_ALL_OUTPUTS);
        assert_int_equal(run_info(model).max_length, 300);
        assert_string_equal(run_info(model).max_length_source,
                            "config.json:max_position_embeddings");
        assert_int_equal(run_info(model).head_dim, m.hidden / m.heads);
        /* Around the window: its edge, one side and both sides filled, one more. */
        const int whole = m.modernbert.local_attention ? m.modernbert.local_attention : 128;
        const size_t half = (size_t)whole / 2;
        const size_t lengths[] = {
            1,  half, half + 1, half + 2, 2 * half, 2 * half + 1, 2 * half + 2, 4 * half + 3,
            17, 70};
        for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
            int32_t ids[300];
            char what[80];
            random_ids(&rng, m.vocab, ids, lengths[k]);
            snprintf(what, sizeof what, "ModernBERT shape %zu", i);
            compare_one(&m, model, ids, NULL, lengths[k], what);
        }
        rp_model_destroy(model);
        maker_model_free(&m);
        remove(maker_path(&dir, "model.safetensors.index.json"));
    }
    print_message("worst of the shapes: %.3g of the tensor's largest\n", run_worst);
}

/* Texts of as many tokens as the published models take, and one more: there is no table of
 * positions that ends, and a window makes them cheap. */
static void test_modernbert_long(void **state)
{
    (void)state;
    static int32_t ids[8193];
    struct maker_model m = maker_model_default("modernbert");
    uint64_t rng = 3;
    m.hidden = 8;
    m.heads = 1;
    m.layers = 2;
    m.modernbert.types = "ss";
    m.modernbert.local_attention = 128;
    m.positions = 8192;
    maker_model_fill(&m);
    maker_model_write(&m, &dir, &(struct maker_write_options){0});
    rp_model *model = run_load(dir.path, RP_MODEL_ALL_OUTPUTS);
    assert_int_equal(run_info(model).max_length, 8192);
    random_ids(&rng, m.vocab, ids, 8193);
    compare_one(&m, model, ids, NULL, 8192, "a long text");
    compare_one(&m, model, ids, NULL, 8193, "a longer text");
    rp_model_destroy(model);
    maker_model_free(&m);
}

/* Scaled frequencies and a factor on cosines and sines reach the layers they are meant for: the
 * numbers are those that test_modernbert.c has for this yarn. */
static void test_modernbert_scaled_rope(void **state)
{
    (void)state;
    static const double yarn[] = {1.0,    0.2569350598886808,    0.0625,  0.01383496476323666,
                                  0.0025, 0.0007905694150420948, 0.00025, 7.905694150420948e-05};
    static const char parameters[] =
        "{\"sliding_attention\":{\"rope_type\":\"yarn\",\"rope_theta\":10000.0,\"factor\":4,"
        "\"original_max_position_embeddings\":512},"
        "\"full_attention\":{\"rope_type\":\"yarn\",\"rope_theta\":160000.0,\"factor\":1.0,"
        "\"attention_factor\":1.138629436111989}}";
    struct maker_model m = maker_model_default("modernbert");
    uint64_t rng = 5;
    int32_t ids[40];
    m.hidden = 32;
    m.positions = 2048;
    m.modernbert.rope_scale = 1.138629436111989;
    m.modernbert.inv_freq[1] = yarn; /* with a factor of 1 those of the full layers are theta's */
    maker_model_fill(&m);
    maker_model_write(&m, &dir, &(struct maker_write_options){0});
    json_t *config = maker_model_config(&m), *object = json_loads(parameters, 0, NULL);
    assert_non_null(object);
    json_object_set_new(config, "rope_parameters", object);
    json_object_del(config, "global_rope_theta");
    json_object_del(config, "local_rope_theta");
    maker_write_json(&dir, "config.json", config);
    json_decref(config);
    rp_model *model = run_load(dir.path, RP_MODEL_ALL_OUTPUTS);
    random_ids(&rng, m.vocab, ids, 40);
    compare_one(&m, model, ids, NULL, 40, "yarn");
    rp_model_destroy(model);
    maker_model_free(&m);
}

/* The line of the graph's text that holds `what`. */
static void graph_line(const rp_model *model, const char *what, char line[400])
{
    static char text[20000];
    const size_t n =
        rp_graph_text(rp_model_graph(model), rp_model_weights(model), text, sizeof text);
    assert_true(n < sizeof text);
    const char *at = strstr(text, what);
    assert_non_null(at);
    while (at > text && at[-1] != '\n')
        at--;
    snprintf(line, 400, "%.*s", (int)strcspn(at, "\n"), at);
}

/* Field case P4: the spellings of transformers 4 and 5 are one model, bit for bit, and its graph
 * says which layer has which base and window. */
static void test_modernbert_spellings(void **state)
{
    (void)state;
    float first[16], found[16];
    for (int way = 0; way < 4; way++) {
        struct maker_model m = maker_model_default("modernbert");
        m.layers = 6;
        m.modernbert.local_attention = 128;
        m.modernbert.parameters = way & 1;
        maker_model_fill(&m);
        maker_model_write(&m, &dir, &(struct maker_write_options){.prefix = way & 2});
        rp_model *model = run_load(dir.path, 0);
        embedding_of(model, way ? found : first);
        if (way)
            assert_memory_equal(found, first, sizeof first);
        for (int k = 0; k < 6; k++) {
            char name[40], line[400];
            snprintf(name, sizeof name, "layers.%d.attn.rope", k);
            graph_line(model, name, line);
            assert_says(line, k % 3 == 0 ? "theta=160000" : "theta=10000");
            snprintf(name, sizeof name, "layers.%d.attn.core", k);
            graph_line(model, name, line);
            if (k % 3 == 0)
                assert_null(strstr(line, "window"));
            else
                assert_says(line, "window=64");
        }
        rp_model_destroy(model);
        maker_model_free(&m);
    }
}

/* Tensors that a configuration does not ask for are told by name, and change nothing. */
static void test_modernbert_extra_tensors(void **state)
{
    (void)state;
    static const char *const extra[] = {"layers.1.attn.Wqkv.bias", "layers.0.mlp.Wo.bias",
                                        "final_norm.bias", "head.dense.weight", "classifier.bias"};
    struct maker_model m = maker_model_default("modernbert");
    float due[16], found[16];
    m.labels = 2;
    m.modernbert.attention_bias = m.modernbert.mlp_bias = m.modernbert.norm_bias = true;
    maker_model_fill(&m);
    for (size_t i = 0; i < m.n_tensors; i++)
        if (strstr(m.tensors[i].name, ".bias"))
            memset(m.tensors[i].data, 0, m.tensors[i].n * sizeof(float));
    m.labels = 0; /* written as the bare model, with its head left over */
    maker_model_write(&m, &dir, &(struct maker_write_options){0});
    rp_model *model = run_load(dir.path, 0);
    embedding_of(model, due);
    rp_model_destroy(model);
    m.modernbert.attention_bias = m.modernbert.mlp_bias = m.modernbert.norm_bias = false;
    maker_model_write(&m, &dir, &(struct maker_write_options){0});
    model = run_load(dir.path, 0);
    embedding_of(model, found);
    assert_memory_equal(found, due, sizeof due);
    const char *note = NULL;
    for (size_t i = 0; rp_model_note(model, i); i++)
        if (strstr(rp_model_note(model, i), "not used"))
            note = rp_model_note(model, i);
    assert_says(note, "head.dense.weight");
    assert_says(note, "final_norm.bias");
    for (size_t i = 0; i < sizeof extra / sizeof *extra; i++)
        assert_true(strstr(note, extra[i]) || strstr(note, " more"));
    rp_model_destroy(model);
    maker_model_free(&m);
}

static void test_modernbert_config_against_tensors(void **state)
{
    (void)state;
    static const struct {
        const char *key, *value;
        rp_status status;
        const char *words[2];
    } cases[] = {
        {"num_hidden_layers", "2147483647", RP_ERR_SHAPE, {"2147483647 layers"}},
        {"num_hidden_layers", "5", RP_ERR_MISSING, {"layers.4.attn_norm.weight"}},
        {"vocab_size", "51", RP_ERR_SHAPE, {"tok_embeddings", "[51, 16]"}},
        {"hidden_size", "1073741824", RP_ERR_LIMIT, {"wide"}},
        {"hidden_size", "32", RP_ERR_SHAPE, {"tok_embeddings", "[50, 32]"}},
        {"intermediate_size", "25", RP_ERR_SHAPE, {"layers.0.mlp.Wi.weight", "[50, 16]"}},
        {"intermediate_size", "2147483647", RP_ERR_SHAPE, {"mlp.Wi.weight", "[4294967294, 16]"}},
        {"attention_bias", "true", RP_ERR_MISSING, {"layers.0.attn.Wqkv.bias"}},
        {"mlp_bias", "true", RP_ERR_MISSING, {"layers.3.mlp.Wo.bias"}},
        {"norm_bias", "true", RP_ERR_MISSING, {"embeddings.norm.bias", "head.norm.bias"}},
        {"classifier_bias", "true", RP_ERR_MISSING, {"head.dense.bias"}},
        {"id2label", "{\"0\":\"x\"}", RP_ERR_SHAPE, {"classifier.weight", "[2, 16]"}},
        {"num_attention_heads", "8", RP_OK, {0}},
        {"local_attention", "2147483647", RP_OK, {0}},
        {"max_position_embeddings", "2147483647", RP_OK, {0}},
    };
    struct maker_model m = maker_model_default("modernbert");
    m.labels = 2;
    maker_model_fill(&m);
    maker_model_write(&m, &dir, &(struct maker_write_options){.prefix = true});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *config = maker_model_config(&m);
        rp_model *model = NULL;
        rp_error err;
        json_object_set_new(config, cases[i].key,
                            json_loads(cases[i].value, JSON_DECODE_ANY, NULL));
        maker_write_json(&dir, "config.json", config);
        json_decref(config);
        const rp_status s = rp_model_load(dir.path, NULL, &model, &err);
        if (s != cases[i].status)
            print_error("%s %s: %s\n", cases[i].key, cases[i].value, err.message);
        assert_int_equal(s, cases[i].status);
        for (int k = 0; k < 2 && cases[i].words[k]; k++)
            assert_says(err.message, cases[i].words[k]);
        rp_model_destroy(model);
    }
    maker_model_free(&m);
}

/* Field case A1: a short text beside a long one, of more tokens than the window is wide, has the
 * bits that it has alone; and there are numbers in every step. */
static void test_modernbert_short_beside_long(void **state)
{
    (void)state;
    static const struct {
        int local;
        size_t lengths[3];
    } cases[] = {{4, {1, 6, 6}},       {4, {6, 1, 3}},      {128, {1, 200, 64}},
                 {128, {128, 1, 129}}, {128, {224, 2, 65}}, {128, {256, 1, 257}},
                 {128, {288, 63, 66}}};
    uint64_t rng = 7;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct maker_model m = maker_model_default("modernbert");
        m.modernbert.local_attention = cases[i].local;
        m.positions = 300;
        maker_model_fill(&m);
        maker_model_write(&m, &dir, &(struct maker_write_options){0});
        rp_model *model = run_load(dir.path, RP_MODEL_ALL_OUTPUTS);
        int32_t ids[900], cu[4] = {0};
        for (int k = 0; k < 3; k++)
            cu[k + 1] = cu[k] + (int32_t)cases[i].lengths[k];
        random_ids(&rng, m.vocab, ids, (size_t)cu[3]);
        struct run all = run_model(model, ids, NULL, cu, 3);
        for (size_t layer = 0; layer < all.capture.n_states; layer++)
            for (size_t t = 0; t < (size_t)cu[3] * 16; t++)
                assert_true(isfinite(all.capture.states[layer][t]));
        for (int k = 0; k < 3; k++) {
            const int32_t alone[2] = {0, cu[k + 1] - cu[k]};
            struct run one = run_model(model, ids + cu[k], NULL, alone, 1);
            assert_memory_equal(run_output(&one, "embedding").data,
                                run_output(&all, "embedding").data + 16 * k, 16 * sizeof(float));
            for (size_t layer = 0; layer < one.capture.n_states; layer++)
                assert_memory_equal(one.capture.states[layer],
                                    all.capture.states[layer] + 16 * cu[k],
                                    16 * (size_t)alone[1] * sizeof(float));
            run_end(&one);
        }
        run_end(&all);
        rp_model_destroy(model);
        maker_model_free(&m);
    }
}

/* INT8 for the body's products; the head stays as it is.  Far from FP32 would be another model. */
static void test_modernbert_int8(void **state)
{
    (void)state;
    struct maker_model m = maker_model_default("modernbert");
    rp_model_options options;
    rp_model *model = NULL;
    uint64_t rng = 11;
    int32_t ids[60];
    const int32_t cu[2] = {0, 60};
    rp_error err;
    m.hidden = 64;
    m.intermediate = 96;
    m.labels = 3;
    m.positions = 300;
    maker_model_fill(&m);
    maker_model_write(&m, &dir, &(struct maker_write_options){.prefix = true});
    rp_model_options_init(&options);
    options.flags = RP_MODEL_ALL_OUTPUTS;
    options.precision = RP_PRECISION_INT8;
    if (rp_model_load(dir.path, &options, &model, &err) != RP_OK)
        fail_msg("%s", err.message);
    random_ids(&rng, m.vocab, ids, 60);
    struct ref_result ref = ref_encode(&m, ids, NULL, 60);
    struct run r = run_model(model, ids, NULL, cu, 1);
    const double *due = ref.states + 4 * 60 * 64;
    const double cosine = run_cosine(run_output(&r, "last").data, due, 60 * 64);
    assert_true(cosine > 0.999);
    assert_true(cosine < 1 - 1e-7); /* it is INT8 */
    assert_int_equal(run_info(model).precision, RP_PRECISION_INT8);
    run_end(&r);
    ref_free(&ref);
    rp_model_destroy(model);
    maker_model_free(&m);
}

/* ---- lengths ----------------------------------------------------------------------------------
 */

/* Positions from pad + 1: the table ends a text earlier, and never is read beyond. */
static void test_length_limits(void **state)
{
    (void)state;
    static const struct {
        const char *family;
        int pad;
        size_t limit;
    } cases[] = {{"bert", 0, 40},        {"distilbert", 0, 40}, {"roberta", 1, 38},
                 {"xlm-roberta", 3, 36}, {"mpnet", 1, 38},      {"electra", 0, 40}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct maker_model m = maker_model_default(cases[i].family);
        m.pad = cases[i].pad;
        maker_model_fill(&m);
        maker_model_write(&m, &dir, &(struct maker_write_options){0});
        rp_model *model = run_load(dir.path, 0);
        const rp_model_info info = run_info(model);
        assert_int_equal(info.max_length, cases[i].limit);
        assert_string_equal(info.max_length_source, "config.json:max_position_embeddings");
        assert_int_equal(info.pad_id, cases[i].pad);
        for (size_t n = cases[i].limit - 1; n <= cases[i].limit + 1; n++) {
            int32_t ids[64];
            const int32_t cu[2] = {0, (int32_t)n};
            struct run r;
            rp_error err;
            for (size_t t = 0; t < n; t++)
                ids[t] = 10;
            const rp_status s = run_try(&r, model, ids, NULL, cu, 1, &err);
            assert_int_equal(s, n <= cases[i].limit ? RP_OK : RP_ERR_INVALID);
            if (s != RP_OK)
                assert_says(err.message, "position");
            run_end(&r);
        }
        rp_model_destroy(model);
        maker_model_free(&m);
    }
}

/* ---- the loaded model -------------------------------------------------------------------------
 */

static size_t open_files(void)
{
    size_t n = 0;
    DIR *d = opendir("/proc/self/fd");
    if (!d)
        return 0;
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* A loaded model needs no file. */
static void test_files_are_closed(void **state)
{
    (void)state;
    struct maker_model m = maker_model_default("bert");
    maker_model_fill(&m);
    maker_model_write(&m, &dir, &(struct maker_write_options){.shards = 3});
    const size_t before = open_files();
    float a[16], b[16];
    rp_model *model = run_load(dir.path, 0);
    assert_int_equal(open_files(), before);
    embedding_of(model, a);
    assert_int_equal(truncate(maker_path(&dir, "model-00002-of-00003.safetensors"), 0), 0);
    embedding_of(model, b);
    assert_memory_equal(a, b, sizeof a);
    rp_model_destroy(model);
    rp_error err;
    assert_int_equal(rp_model_load(dir.path, NULL, &model, &err), RP_ERR_FORMAT);
    assert_int_equal(open_files(), before);
    remove(maker_path(&dir, "model.safetensors.index.json"));
    maker_model_free(&m);
}

static void test_info(void **state)
{
    (void)state;
    struct maker_model m = maker_model_default("bert");
    m.labels = 2;
    maker_model_fill(&m);
    maker_model_write(&m, &dir, &(struct maker_write_options){.prefix = true});
    rp_model *model = run_load(dir.path, 0);
    const rp_model_info info = run_info(model);
    uint64_t parameters = 0;
    for (size_t i = 0; i < m.n_tensors; i++)
        parameters += m.tensors[i].n;
    assert_string_equal(info.family, "bert");
    assert_string_equal(info.architecture, "BertForSequenceClassification");
    assert_int_equal(info.n_layers, 2);
    assert_int_equal(info.hidden, 16);
    assert_int_equal(info.n_heads, 2);
    assert_int_equal(info.head_dim, 8);
    assert_int_equal(info.intermediate, 24);
    assert_int_equal(info.vocab_size, 50);
    assert_int_equal(info.dimension, 0);
    assert_int_equal(info.n_type_ids, 2);
    assert_int_equal(info.n_parameters, parameters);
    assert_string_equal(info.pooling, "");
    assert_int_equal(info.n_notes, 0);
    assert_null(rp_model_note(model, 0));
    assert_string_equal(rp_model_label(model, 1), "LABEL_1");
    assert_null(rp_model_label(model, 2));
    assert_null(rp_model_prompt(model, NULL));
    assert_null(rp_model_prompt(model, "query"));
    assert_string_equal(rp_model_hidden_name(model, 0), "embeddings.norm");
    assert_string_equal(rp_model_hidden_name(model, 2), "layers.1.ffn.norm");
    assert_null(rp_model_hidden_name(model, 3));
    /* A caller built against an older, shorter struct. */
    rp_model_info old = {.struct_size = offsetof(rp_model_info, task)};
    old.n_layers = 77;
    rp_model_get_info(model, &old);
    assert_string_equal(old.family, "bert");
    assert_int_equal(old.n_layers, 77);
    rp_model_destroy(model);
    rp_model_destroy(NULL);

    rp_model_options options;
    rp_error err;
    rp_model_options_init(&options);
    options.flags = 2;
    assert_int_equal(rp_model_load(dir.path, &options, &model, &err), RP_ERR_INVALID);
    assert_int_equal(rp_model_load(NULL, NULL, &model, &err), RP_ERR_INVALID);
    assert_int_equal(rp_model_load(maker_path(&dir, "nowhere"), NULL, &model, &err),
                     RP_ERR_MISSING);
    assert_says(err.message, "nowhere/config.json");
    maker_model_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_oracles),
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_spellings),
        cmocka_unit_test(test_missing_tensors),
        cmocka_unit_test(test_config_against_tensors),
        cmocka_unit_test(test_element_types),
        cmocka_unit_test(test_head_by_hand),
        cmocka_unit_test(test_joined_vectors),
        cmocka_unit_test(test_segments),
        cmocka_unit_test(test_score_activation),
        cmocka_unit_test(test_modernbert),
        cmocka_unit_test(test_modernbert_long),
        cmocka_unit_test(test_modernbert_scaled_rope),
        cmocka_unit_test(test_modernbert_spellings),
        cmocka_unit_test(test_modernbert_extra_tensors),
        cmocka_unit_test(test_modernbert_config_against_tensors),
        cmocka_unit_test(test_modernbert_short_beside_long),
        cmocka_unit_test(test_modernbert_int8),
        cmocka_unit_test(test_length_limits),
        cmocka_unit_test(test_files_are_closed),
        cmocka_unit_test(test_info),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
