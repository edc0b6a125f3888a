/* config.json, key by key: one good file per family, and edits of it that must be refused by the
 * key's name, change a value, or be told.  Then what JSON itself may do. */
#include "models/config.h"
#include "models/family.h"
#include "pool/error.h"
#include "tests/model_maker.h"
#include "tests/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Sets key to the JSON text `value` in the family's good config; NULL removes the key. */
static void write_edited(const char *family, const char *key, const char *value)
{
    struct maker_model m = maker_model_default(family);
    m.labels = 3;
    json_t *config = maker_model_config(&m);
    if (value)
        json_object_set_new(config, key, json_loads(value, JSON_DECODE_ANY, NULL));
    else if (key)
        json_object_del(config, key);
    maker_write_json(&dir, "config.json", config);
    json_decref(config);
}

static rp_status configure(struct rp_config *config, union rp_any_body *any, rp_error *err)
{
    const struct rp_family *family;
    *any = (union rp_any_body){0};
    RP_TRY(rp_config_open(dir.path, config, err));
    rp_status s = rp_family_find(config, &family, err);
    if (s == RP_OK)
        s = rp_config_refuse(config, family->reads, err);
    if (s == RP_OK)
        s = family->configure(config, any, err);
    if (s != RP_OK)
        rp_config_close(config);
    return s;
}

/* ---- refused ----------------------------------------------------------------------------------
 */

static const struct {
    const char *family, *key, *value;
    rp_status status;
} refused[] = {
    /* sizes */
    {"bert", "num_attention_heads", "0", RP_ERR_FORMAT},
    {"bert", "num_attention_heads", "-2", RP_ERR_FORMAT},
    {"bert", "num_attention_heads", "7", RP_ERR_FORMAT},
    {"bert", "num_attention_heads", "2.0", RP_ERR_FORMAT},
    {"bert", "num_attention_heads", "\"2\"", RP_ERR_FORMAT},
    {"bert", "num_attention_heads", NULL, RP_ERR_MISSING},
    {"bert", "num_key_value_heads", "0", RP_ERR_FORMAT},
    {"bert", "num_key_value_heads", "1", RP_ERR_UNSUPPORTED},
    {"bert", "num_hidden_layers", "0", RP_ERR_FORMAT},
    {"bert", "num_hidden_layers", "2147483648", RP_ERR_FORMAT},
    {"bert", "num_hidden_layers", "true", RP_ERR_FORMAT},
    {"bert", "hidden_size", "12.5", RP_ERR_FORMAT},
    {"bert", "hidden_size", "-16", RP_ERR_FORMAT},
    {"bert", "hidden_size", "[16]", RP_ERR_FORMAT},
    {"bert", "hidden_size", "null", RP_ERR_MISSING},
    {"bert", "hidden_size", NULL, RP_ERR_MISSING},
    {"bert", "intermediate_size", "0", RP_ERR_FORMAT},
    {"bert", "vocab_size", "1099511627776", RP_ERR_FORMAT},
    {"bert", "vocab_size", NULL, RP_ERR_MISSING},
    {"bert", "max_position_embeddings", "0", RP_ERR_FORMAT},
    {"bert", "type_vocab_size", "-1", RP_ERR_FORMAT},
    {"bert", "head_dim", "0", RP_ERR_FORMAT},
    {"bert", "head_dim", "2147483647", RP_ERR_LIMIT},
    {"bert", "embedding_size", "8", RP_ERR_UNSUPPORTED},
    {"bert", "layer_norm_eps", "0", RP_ERR_FORMAT},
    {"bert", "layer_norm_eps", "-1e-12", RP_ERR_FORMAT},
    {"bert", "layer_norm_eps", "1e-60", RP_ERR_FORMAT},
    {"bert", "layer_norm_eps", "1", RP_ERR_FORMAT},
    {"bert", "layer_norm_eps", "\"1e-12\"", RP_ERR_FORMAT},
    {"bert", "pad_token_id", "-1", RP_ERR_FORMAT},
    {"bert", "pad_token_id", "50", RP_ERR_FORMAT},
    {"roberta", "pad_token_id", "null", RP_ERR_FORMAT},
    {"distilbert", "n_heads", "0", RP_ERR_FORMAT},
    {"distilbert", "n_heads", "3", RP_ERR_FORMAT},
    {"distilbert", "dim", NULL, RP_ERR_MISSING},
    {"distilbert", "n_layers", "-1", RP_ERR_FORMAT},
    {"distilbert", "hidden_dim", "1e3", RP_ERR_FORMAT},
    {"mpnet", "relative_attention_num_buckets", "0", RP_ERR_FORMAT},
    {"mpnet", "relative_attention_num_buckets", "31", RP_ERR_FORMAT},
    {"mpnet", "relative_attention_num_buckets", "512", RP_ERR_FORMAT},
    {"electra", "embedding_size", "0", RP_ERR_FORMAT},
    {"electra", "embedding_size", NULL, RP_ERR_MISSING},
    /* activations */
    {"bert", "hidden_act", "\"foo\"", RP_ERR_UNSUPPORTED},
    {"bert", "hidden_act", "\"gelu_10\"", RP_ERR_UNSUPPORTED},
    {"bert", "hidden_act", "3", RP_ERR_FORMAT},
    {"bert", "hidden_activation", "\"silu\"", RP_ERR_UNSUPPORTED},
    {"bert", "activation_function", "\"silu\"", RP_ERR_UNSUPPORTED},
    {"distilbert", "activation", "\"quick_gelu\"", RP_ERR_UNSUPPORTED},
    /* other computations */
    {"bert", "position_embedding_type", "\"relative_key\"", RP_ERR_UNSUPPORTED},
    {"bert", "position_embedding_type", "\"alibi\"", RP_ERR_UNSUPPORTED},
    {"roberta", "position_embedding_type", "\"relative_key_query\"", RP_ERR_UNSUPPORTED},
    {"bert", "is_decoder", "true", RP_ERR_UNSUPPORTED},
    {"bert", "add_cross_attention", "true", RP_ERR_UNSUPPORTED},
    {"bert", "is_encoder_decoder", "true", RP_ERR_UNSUPPORTED},
    {"bert", "directionality", "\"left\"", RP_ERR_UNSUPPORTED},
    {"bert", "feed_forward_type", "\"geglu\"", RP_ERR_UNSUPPORTED},
    {"bert", "pruned_heads", "{\"0\":[1]}", RP_ERR_UNSUPPORTED},
    {"bert", "quantization_config", "{\"bits\":4}", RP_ERR_UNSUPPORTED},
    {"bert", "auto_map", "{\"AutoModel\":\"x--modeling.Net\"}", RP_ERR_UNSUPPORTED},
    {"bert", "rope_theta", "10000.0", RP_ERR_UNSUPPORTED},
    {"bert", "rope_parameters", "{\"rope_theta\":1}", RP_ERR_UNSUPPORTED},
    {"bert", "sliding_window", "128", RP_ERR_UNSUPPORTED},
    {"bert", "layer_types", "[\"full_attention\"]", RP_ERR_UNSUPPORTED},
    {"bert", "attention_bias", "false", RP_ERR_UNSUPPORTED},
    {"bert", "mlp_bias", "false", RP_ERR_UNSUPPORTED},
    /* what it is */
    {"bert", "model_type", "\"bart\"", RP_ERR_UNSUPPORTED},
    {"bert", "model_type", NULL, RP_ERR_MISSING},
    {"bert", "model_type", "7", RP_ERR_FORMAT},
    {"bert", "architectures", "\"BertModel\"", RP_ERR_FORMAT},
    {"bert", "architectures", "[7]", RP_ERR_FORMAT},
};

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct rp_config config;
        union rp_any_body e;
        rp_error err = {0};
        write_edited(refused[i].family, refused[i].key, refused[i].value);
        const rp_status s = configure(&config, &e, &err);
        if (s != refused[i].status)
            print_error("%s %s = %s: %s %s\n", refused[i].family, refused[i].key, refused[i].value,
                        rp_status_name(s), err.message);
        assert_int_equal(s, refused[i].status);
        assert_says(err.message, "config.json");
        assert_says(err.message, refused[i].key);
        assert_int_equal(configure(&config, &e, NULL), s);
    }
}

/* ---- accepted ---------------------------------------------------------------------------------
 */

static const struct {
    const char *family, *key, *value;
} accepted[] = {
    {"bert", "is_decoder", "false"},
    {"bert", "position_embedding_type", "\"absolute\""},
    {"bert", "position_embedding_type", "null"},
    {"bert", "pruned_heads", "{}"},
    {"bert", "auto_map", "null"},
    {"bert", "rope_scaling", "null"},
    {"bert", "directionality", "\"bidi\""},
    {"bert", "num_key_value_heads", "2"},
    {"bert", "embedding_size", "16"},
    {"bert", "hidden_act", NULL},
    {"bert", "layer_norm_eps", NULL},
    {"bert", "type_vocab_size", NULL},
    {"bert", "pad_token_id", "null"},
    {"bert", "architectures", NULL},
    {"bert", "architectures", "[]"},
    {"distilbert", "sinusoidal_pos_embds", "true"},
    {"mpnet", "pad_token_id", "null"},
    {"mpnet", "relative_attention_num_buckets", NULL},
};

static void test_accepted(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof accepted / sizeof *accepted; i++) {
        struct rp_config config;
        union rp_any_body e;
        struct rp_notes notes = {0};
        rp_error err = {0};
        write_edited(accepted[i].family, accepted[i].key, accepted[i].value);
        const rp_status s = configure(&config, &e, &err);
        if (s != RP_OK)
            print_error("%s %s = %s: %s\n", accepted[i].family, accepted[i].key, accepted[i].value,
                        err.message);
        assert_int_equal(s, RP_OK);
        /* Nothing here is a key that is not known. */
        assert_int_equal(rp_config_note_unknown(&config, &notes, &err), RP_OK);
        assert_int_equal(notes.n, 0);
        rp_config_close(&config);
    }
}

static void test_values(void **state)
{
    (void)state;
    struct rp_config config;
    union rp_any_body e;
    rp_error err;
    write_edited("bert", NULL, NULL);
    assert_int_equal(configure(&config, &e, &err), RP_OK);
    assert_string_equal(config.model_type, "bert");
    assert_string_equal(config.architecture, "BertForSequenceClassification");
    assert_true(e.body.vocab == 50 && e.body.hidden == 16 && e.body.layers == 2 &&
                e.body.heads == 2 && e.body.head_dim == 8);
    assert_true(e.body.intermediate == 24 && e.body.positions == 40 && e.body.types == 2 &&
                e.body.pad == 0);
    assert_true(e.body.first_position == 0 && e.encoder.rel_buckets == 0 &&
                e.encoder.embedding == 16);
    assert_true(e.body.eps == 1e-12f && e.body.activation == RP_ACT_GELU);
    rp_config_close(&config);

    /* A stated head_dim makes any number of heads legal. */
    struct maker_model m = maker_model_default("bert");
    json_t *c = maker_model_config(&m);
    json_object_set_new(c, "num_attention_heads", json_integer(3));
    json_object_set_new(c, "head_dim", json_integer(5));
    maker_write_json(&dir, "config.json", c);
    json_decref(c);
    assert_int_equal(configure(&config, &e, &err), RP_OK);
    assert_true(e.body.heads == 3 && e.body.head_dim == 5);
    rp_config_close(&config);

    write_edited("xlm-roberta", "pad_token_id", "3");
    assert_int_equal(configure(&config, &e, &err), RP_OK);
    assert_true(e.body.pad == 3 && e.body.first_position == 4 && e.body.types == 1);
    rp_config_close(&config);
    write_edited("roberta", "pad_token_id", NULL);
    assert_int_equal(configure(&config, &e, &err), RP_OK);
    assert_true(e.body.pad == 1 && e.body.first_position == 2);
    rp_config_close(&config);

    /* MPNet's positions do not follow the pad. */
    write_edited("mpnet", "pad_token_id", "7");
    assert_int_equal(configure(&config, &e, &err), RP_OK);
    assert_true(e.body.pad == 7 && e.body.first_position == 2 && e.encoder.rel_buckets == 32 &&
                e.body.types == 0);
    rp_config_close(&config);

    write_edited("electra", NULL, NULL);
    assert_int_equal(configure(&config, &e, &err), RP_OK);
    assert_true(e.encoder.embedding == 12 && e.body.hidden == 16);
    rp_config_close(&config);

    write_edited("bert", "pad_token_id", "null");
    assert_int_equal(configure(&config, &e, &err), RP_OK);
    assert_int_equal(e.body.pad, -1);
    rp_config_close(&config);
}

static void test_activations(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        rp_activation activation;
    } names[] = {
        {"\"gelu\"", RP_ACT_GELU},
        {"\"gelu_python\"", RP_ACT_GELU},
        {"\"gelu_new\"", RP_ACT_GELU_TANH},
        {"\"gelu_pytorch_tanh\"", RP_ACT_GELU_TANH},
        {"\"gelu_fast\"", RP_ACT_GELU_TANH},
        {"\"gelu_accurate\"", RP_ACT_GELU_TANH},
        {"\"relu\"", RP_ACT_RELU},
        {"\"silu\"", RP_ACT_SILU},
        {"\"swish\"", RP_ACT_SILU},
        {"\"tanh\"", RP_ACT_TANH},
        {"\"sigmoid\"", RP_ACT_SIGMOID},
        {"\"linear\"", RP_ACT_NONE},
        {"null", RP_ACT_GELU},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct rp_config config;
        union rp_any_body e;
        write_edited("bert", "hidden_act", names[i].name);
        assert_int_equal(configure(&config, &e, NULL), RP_OK);
        assert_int_equal(e.body.activation, names[i].activation);
        rp_config_close(&config);
        write_edited("distilbert", "activation", names[i].name);
        assert_int_equal(configure(&config, &e, NULL), RP_OK);
        assert_int_equal(e.body.activation, names[i].activation);
        rp_config_close(&config);
    }
}

static void test_torch_activations(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int activation; /* -1: refused */
    } names[] = {
        {"torch.nn.modules.linear.Identity", RP_ACT_NONE},
        {"torch.nn.modules.activation.Tanh", RP_ACT_TANH},
        {"torch.nn.modules.activation.ReLU", RP_ACT_RELU},
        {"torch.nn.modules.activation.GELU", RP_ACT_GELU},
        {"torch.nn.modules.activation.Sigmoid", RP_ACT_SIGMOID},
        {"torch.nn.modules.activation.SiLU", RP_ACT_SILU},
        {"torch.nn.Identity", RP_ACT_NONE},
        {"torch.nn.Sigmoid", RP_ACT_SIGMOID},
        {"torch.nn.modules.activation.Identity", -1},
        {"torch.nn.modules.linear.Tanh", -1},
        {"torch.nn.modules.activation.Softmax", -1},
        {"torch.nn.modules.activation.Sigmoid.x", -1},
        {"torch.nn.modules.activation", -1},
        {"torch.nn.modules.", -1},
        {"torch.nn.sigmoid", -1},
        {"Sigmoid", -1},
        {"os.system", -1},
        {"", -1},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        rp_activation a = RP_ACT_GELU_TANH;
        rp_error err;
        const rp_status s = rp_torch_activation("f.json", "k", names[i].name, &a, &err);
        if (names[i].activation >= 0) {
            assert_int_equal(s, RP_OK);
            assert_int_equal(a, names[i].activation);
        } else {
            assert_int_equal(s, RP_ERR_UNSUPPORTED);
            assert_says(err.message, "f.json");
            assert_says(err.message, names[i].name);
        }
    }
}

/* ---- labels, notes ----------------------------------------------------------------------------
 */

static void test_labels(void **state)
{
    (void)state;
    static const struct {
        const char *id2label, *num_labels;
        rp_status status;
        size_t n;
        const char *first; /* name of label 0 */
    } cases[] = {
        {"{\"0\":\"no\",\"1\":\"yes\"}", NULL, RP_OK, 2, "no"},
        {"{\"1\":\"yes\",\"0\":\"no\"}", "2", RP_OK, 2, "no"},
        {NULL, "5", RP_OK, 5, NULL},
        {NULL, NULL, RP_OK, 2, NULL},
        {"null", NULL, RP_OK, 2, NULL},
        {"{\"0\":\"no\"}", "2", RP_ERR_FORMAT, 0, NULL},
        {"{\"0\":\"no\",\"2\":\"yes\"}", NULL, RP_ERR_FORMAT, 0, NULL},
        {"{\"0\":\"no\",\"00\":\"yes\"}", NULL, RP_ERR_FORMAT, 0, NULL},
        {"{\"0\":\"no\",\"x\":\"yes\"}", NULL, RP_ERR_FORMAT, 0, NULL},
        {"{\"0\":\"no\",\"-1\":\"yes\"}", NULL, RP_ERR_FORMAT, 0, NULL},
        {"{\"0\":\"no\",\"\":\"yes\"}", NULL, RP_ERR_FORMAT, 0, NULL},
        {"{\"99999999999999999999999\":\"no\"}", NULL, RP_ERR_FORMAT, 0, NULL},
        {"{\"0\":1}", NULL, RP_ERR_FORMAT, 0, NULL},
        {"{}", NULL, RP_ERR_FORMAT, 0, NULL},
        {"[\"no\"]", NULL, RP_ERR_FORMAT, 0, NULL},
        {NULL, "0", RP_ERR_FORMAT, 0, NULL},
        {NULL, "100000", RP_ERR_FORMAT, 0, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[300];
        struct rp_config config;
        const char **names;
        rp_error err;
        size_t n;
        snprintf(text, sizeof text, "{\"model_type\":\"bert\"%s%s%s%s}",
                 cases[i].id2label ? ",\"id2label\":" : "",
                 cases[i].id2label ? cases[i].id2label : "",
                 cases[i].num_labels ? ",\"num_labels\":" : "",
                 cases[i].num_labels ? cases[i].num_labels : "");
        maker_write_text(&dir, "config.json", text);
        assert_int_equal(rp_config_open(dir.path, &config, &err), RP_OK);
        const rp_status s = rp_config_labels(&config, &n, &names, &err);
        if (s != cases[i].status)
            print_error("%s: %s\n", text, rp_status_name(s));
        assert_int_equal(s, cases[i].status);
        if (s == RP_OK) {
            assert_int_equal(n, cases[i].n);
            assert_true(cases[i].first ? strcmp(names[0], cases[i].first) == 0 : !names[0]);
            free(names);
        } else {
            assert_says(err.message, cases[i].id2label ? "id2label" : "num_labels");
        }
        rp_config_close(&config);
    }
}

static void test_unknown_keys(void **state)
{
    (void)state;
    struct rp_config config;
    union rp_any_body e;
    struct rp_notes notes = {0};
    rp_error err;
    write_edited("bert", "my_own_key", "1");
    assert_int_equal(configure(&config, &e, &err), RP_OK);
    assert_int_equal(rp_config_note_unknown(&config, &notes, &err), RP_OK);
    assert_int_equal(notes.n, 1);
    assert_says(notes.text[0], "my_own_key");
    assert_null(strstr(notes.text[0], "hidden_size"));
    rp_notes_fini(&notes);
    rp_config_close(&config);

    /* Many of them are one note, cut with a count. */
    json_t *c = json_pack("{s:s}", "model_type", "bert");
    for (int i = 0; i < 100; i++) {
        char key[32];
        snprintf(key, sizeof key, "unknown_key_%d", i);
        json_object_set_new(c, key, json_true());
    }
    maker_write_json(&dir, "config.json", c);
    json_decref(c);
    assert_int_equal(rp_config_open(dir.path, &config, &err), RP_OK);
    assert_int_equal(rp_config_note_unknown(&config, &notes, &err), RP_OK);
    assert_int_equal(notes.n, 1);
    assert_says(notes.text[0], "unknown_key_0, unknown_key_1,");
    const char *more = strstr(notes.text[0], "unknown_key_0");
    more = strstr(more, " and ");
    assert_non_null(more);
    size_t listed = 1;
    for (const char *p = notes.text[0]; p < more; p++)
        listed += *p == ',';
    char due[32];
    snprintf(due, sizeof due, " and %zu more", 100 - listed);
    assert_string_equal(more, due);
    rp_notes_fini(&notes);
    rp_config_close(&config);
}

/* ---- the file ---------------------------------------------------------------------------------
 */

static void test_json(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        rp_status status;
        const char *word;
    } cases[] = {
        {"", RP_ERR_FORMAT, "line 1"},
        {"{", RP_ERR_FORMAT, "line 1"},
        {"[]", RP_ERR_FORMAT, "a list"},
        {"7", RP_ERR_FORMAT, "7"},
        {"{\"model_type\":\"bert\"} {}", RP_ERR_FORMAT, "line 1"},
        {"{\"model_type\":\"bert\",\n\"model_type\":\"bert\"}", RP_ERR_FORMAT, "duplicate"},
        {"{\"model_type\":\"bert\",\"x\":NaN}", RP_ERR_FORMAT, "NaN"},
        {"{\"model_type\":\"bert\",\"x\":1e999}", RP_ERR_FORMAT, "1e999"},
        {"{\"model_type\":\"bert\",\"x\":99999999999999999999}", RP_ERR_FORMAT, "integer"},
        {"{\"model_type\":\"b\xc3\x28\"}", RP_ERR_FORMAT, "line 1"},
        {"\xef\xbb\xbf{\"model_type\":\"bert\"}", RP_ERR_FORMAT, "line 1"},
    };
    struct rp_config config;
    rp_error err;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        maker_write_text(&dir, "config.json", cases[i].text);
        assert_int_equal(rp_config_open(dir.path, &config, &err), cases[i].status);
        assert_says(err.message, "config.json");
        assert_says(err.message, cases[i].word);
    }
    assert_int_equal(remove(maker_path(&dir, "config.json")), 0);
    assert_int_equal(rp_config_open(dir.path, &config, &err), RP_ERR_MISSING);
    assert_says(err.message, "config.json");
}

/* Long, deep or crowded: refused before the parser. */
static void test_json_limits(void **state)
{
    (void)state;
    enum { N = 1000000 };
    char *text = malloc(5 * N);
    json_t *root;
    rp_error err;
    assert_non_null(text);
    memset(text, '[', N);
    assert_int_equal(rp_json_parse("f", text, N, 0, &root, &err), RP_ERR_LIMIT);
    assert_says(err.message, "deep");
    for (size_t i = 0; i < RP_JSON_MAX_DEPTH; i++)
        text[RP_JSON_MAX_DEPTH + i] = ']';
    assert_int_equal(rp_json_parse("f", text, 2 * RP_JSON_MAX_DEPTH, 0, &root, &err), RP_OK);
    json_decref(root);
    text[0] = '[';
    for (size_t i = 1; i < 5 * N - 1; i += 2)
        memcpy(text + i, "1,", 2);
    assert_int_equal(rp_json_parse("f", text, 5 * N, 0, &root, &err), RP_ERR_FORMAT);
    memset(text, ',', 5 * N);
    assert_int_equal(rp_json_parse("f", text, 5 * N, 0, &root, &err), RP_ERR_LIMIT);
    assert_says(err.message, "values");
    /* Brackets inside strings are text. */
    memset(text, '[', N);
    text[0] = '"';
    memcpy(text + N - 3, "\\\"\"", 3);
    assert_int_equal(rp_json_parse("f", text, N, 0, &root, &err), RP_OK);
    json_decref(root);
    free(text);
}

static void test_json_real(void **state)
{
    (void)state;
    json_t *root;
    rp_error err;
    static const char text[] = "[1000000000000000019884624838656, 1e-12, 160000.0, 512]";
    assert_int_equal(rp_json_parse("f", text, strlen(text), 0, &root, &err), RP_ERR_FORMAT);
    assert_int_equal(rp_json_parse("f", text, strlen(text), RP_JSON_AS_REAL, &root, &err), RP_OK);
    assert_true(json_real_value(json_array_get(root, 0)) == 1e30);
    assert_true(json_real_value(json_array_get(root, 1)) == 1e-12);
    assert_true(json_real_value(json_array_get(root, 2)) == 160000.0);
    assert_true(json_real_value(json_array_get(root, 3)) == 512.0);
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_accepted),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_activations),
        cmocka_unit_test(test_torch_activations),
        cmocka_unit_test(test_labels),
        cmocka_unit_test(test_unknown_keys),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_json_limits),
        cmocka_unit_test(test_json_real),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
