/* What ModernBERT's config.json may say, in the spelling of transformers 4 and of transformers 5,
 * and what every kind of rotary positions comes to.  The models themselves are in test_families.c.
 */
#include "models/family.h"
#include "pool/error.h"
#include "tests/model_maker.h"
#include "tests/scratch.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* The next word of *p; false at the end. */
static bool next_word(const char **p, char word[64])
{
    *p += strspn(*p, " ");
    const size_t n = strcspn(*p, " ");
    assert_true(n < 64);
    memcpy(word, *p, n);
    word[n] = 0;
    *p += n;
    return n > 0;
}

/* A good config.json of six layers with heads of 16, without the keys of `drop` (names between
 * spaces), and then with those of the JSON object `set`. */
static void write_config(const char *drop, const char *set)
{
    struct maker_model m = maker_model_default("modernbert");
    char name[64];
    m.hidden = 32;
    m.layers = 6;
    m.positions = 2048;
    json_t *config = maker_model_config(&m);
    for (const char *p = drop; next_word(&p, name);)
        json_object_del(config, name);
    json_t *more = json_loads(set, 0, NULL);
    assert_non_null(more);
    json_object_update(config, more);
    maker_write_json(&dir, "config.json", config);
    json_decref(more);
    json_decref(config);
}

static rp_status configure(struct rp_config *config, struct rp_modernbert *m, rp_error *err)
{
    const struct rp_family *family;
    union rp_any_body any = {0};
    RP_TRY(rp_config_open(dir.path, config, err));
    rp_status s = rp_family_find(config, &family, err);
    if (s == RP_OK)
        s = rp_config_refuse(config, family->reads, err);
    if (s == RP_OK)
        s = family->configure(config, &any, err);
    if (s != RP_OK)
        rp_config_close(config);
    *m = any.modernbert;
    return s;
}

/* ---- spellings --------------------------------------------------------------------------------
 */

#define OLD    "local_attention global_attn_every_n_layers global_rope_theta local_rope_theta "
#define THETAS "global_rope_theta local_rope_theta "
#define BOTH(full, sliding)                                                                        \
    "\"rope_parameters\":{\"full_attention\":" full ",\"sliding_attention\":" sliding "}"
#define PLAIN(theta) "{\"rope_type\":\"default\",\"rope_theta\":" theta "}"

static const struct {
    const char *drop, *set;
    const char *types; /* of the six layers */
    double theta[2];
    int window;
} spellings[] = {
    /* Those of field case P4. */
    {OLD,
     "{\"global_attn_every_n_layers\":3,\"global_rope_theta\":160000.0,"
     "\"local_rope_theta\":10000.0,\"local_attention\":128}",
     "fssfss",
     {160000, 10000},
     64},
    {OLD,
     "{\"layer_types\":[\"full_attention\",\"sliding_attention\",\"sliding_attention\","
     "\"full_attention\",\"sliding_attention\",\"sliding_attention\"],"
     "\"local_attention\":128," BOTH(PLAIN("160000.0"), PLAIN("10000.0")) "}",
     "fssfss",
     {160000, 10000},
     64},
    /* Nothing said. */
    {OLD, "{}", "fssfss", {160000, 10000}, 64},
    {OLD, "{\"rope_scaling\":{},\"rope_parameters\":null}", "fssfss", {160000, 10000}, 64},
    /* Other numbers; integers are numbers too. */
    {OLD,
     "{\"global_attn_every_n_layers\":2,\"global_rope_theta\":500000,\"local_rope_theta\":20000,"
     "\"local_attention\":2}",
     "fsfsfs",
     {500000, 20000},
     1},
    {"", "{\"global_attn_every_n_layers\":1}", "ffffff", {160000, 10000}, 3},
    {"", "{\"global_attn_every_n_layers\":7}", "fsssss", {160000, 10000}, 3},
    /* An odd window is rounded down. */
    {"", "{\"local_attention\":7}", "fssfss", {160000, 10000}, 3},
    {"", "{\"local_attention\":2147483647}", "fssfss", {160000, 10000}, 1073741823},
    /* No base of its own is the global one. */
    {"", "{\"local_rope_theta\":null}", "fssfss", {160000, 160000}, 3},
    /* layer_types decides, whatever the older key beside it says. */
    {"",
     "{\"layer_types\":[\"sliding_attention\",\"full_attention\",\"full_attention\","
     "\"sliding_attention\",\"full_attention\",\"sliding_attention\"]}",
     "sffsfs",
     {160000, 10000},
     3},
    /* Both spellings, of one mind. */
    {"", "{" BOTH(PLAIN("160000"), PLAIN("10000")) "}", "fssfss", {160000, 10000}, 3},
    /* No layer is sliding, and nothing is said of those. */
    {OLD,
     "{\"global_attn_every_n_layers\":1,\"rope_parameters\":{\"full_attention\":{"
     "\"rope_theta\":5000,\"type\":\"default\"}}}",
     "ffffff",
     {5000, 10000},
     64},
};

static void test_spellings(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        struct rp_config config;
        struct rp_modernbert m;
        rp_error err;
        struct rp_notes notes = {0};
        write_config(spellings[i].drop, spellings[i].set);
        if (configure(&config, &m, &err) != RP_OK)
            fail_msg("spelling %zu: %s", i, err.message);
        for (int k = 0; k < 6; k++)
            assert_int_equal(rp_modernbert_layer_type(&m, k) == RP_MODERNBERT_FULL,
                             spellings[i].types[k] == 'f');
        for (int k = 0; k < 2; k++) {
            assert_int_equal(m.rope[k].type, RP_ROPE_DEFAULT);
            assert_true(m.rope[k].theta == spellings[i].theta[k]);
        }
        assert_int_equal(m.window, spellings[i].window);
        assert_int_equal(rp_config_note_unknown(&config, &notes, &err), RP_OK);
        assert_int_equal(notes.n, 0);
        rp_config_close(&config);
    }
}

static void test_values(void **state)
{
    (void)state;
    struct rp_config config;
    struct rp_modernbert m;
    write_config(
        "norm_bias attention_bias mlp_bias classifier_bias classifier_pooling pad_token_id "
        "classifier_activation hidden_activation norm_eps",
        "{}");
    assert_int_equal(configure(&config, &m, NULL), RP_OK);
    assert_true(!m.norm_bias && !m.attention_bias && !m.mlp_bias && !m.classifier_bias);
    assert_true(m.body.eps == 1e-5f && m.body.activation == RP_ACT_GELU);
    assert_true(m.classifier_pooling == RP_POOL_CLS && m.classifier_activation == RP_ACT_GELU);
    assert_true(m.body.hidden == 32 && m.body.layers == 6 && m.body.heads == 2);
    assert_true(m.body.head_dim == 16 && m.body.intermediate == 24 && m.body.positions == 2048);
    assert_true(m.body.types == 0 && m.body.first_position == 0);
    assert_int_equal(m.body.pad, -1); /* 50283, but the vocabulary is smaller */
    rp_config_close(&config);
    write_config("pad_token_id", "{\"vocab_size\":50368,\"norm_bias\":true,\"mlp_bias\":true,"
                                 "\"attention_bias\":true,\"classifier_bias\":true,"
                                 "\"classifier_pooling\":\"mean\",\"norm_eps\":1e-6,"
                                 "\"layer_norm_eps\":0.5,\"hidden_act\":\"relu\","
                                 "\"hidden_activation\":\"silu\",\"head_dim\":16,"
                                 "\"classifier_activation\":\"gelu_new\"}");
    assert_int_equal(configure(&config, &m, NULL), RP_OK);
    assert_true(m.norm_bias && m.attention_bias && m.mlp_bias && m.classifier_bias);
    assert_true(m.body.eps == 1e-6f && m.body.activation == RP_ACT_SILU);
    assert_true(m.classifier_pooling == RP_POOL_MEAN);
    assert_true(m.classifier_activation == RP_ACT_GELU_TANH);
    assert_int_equal(m.body.pad, 50283);
    rp_config_close(&config);
}

/* ---- refused ----------------------------------------------------------------------------------
 */

static const struct {
    const char *drop, *set;
    rp_status status;
    const char *words[2];
} refused[] = {
    /* sizes */
    {"", "{\"num_attention_heads\":0}", RP_ERR_FORMAT, {"num_attention_heads"}},
    {"", "{\"num_attention_heads\":7}", RP_ERR_FORMAT, {"num_attention_heads", "7"}},
    {"", "{\"num_attention_heads\":32}", RP_ERR_FORMAT, {"num_attention_heads", "pairs"}},
    {"", "{\"head_dim\":8}", RP_ERR_UNSUPPORTED, {"head_dim", "8"}},
    {"", "{\"num_key_value_heads\":1}", RP_ERR_UNSUPPORTED, {"num_key_value_heads"}},
    {"", "{\"vocab_size\":1099511627776}", RP_ERR_FORMAT, {"vocab_size"}},
    {"hidden_size", "{}", RP_ERR_MISSING, {"hidden_size"}},
    {"intermediate_size", "{}", RP_ERR_MISSING, {"intermediate_size"}},
    {"max_position_embeddings", "{}", RP_ERR_MISSING, {"max_position_embeddings"}},
    {"", "{\"pad_token_id\":50}", RP_ERR_FORMAT, {"pad_token_id"}},
    {"", "{\"norm_eps\":0}", RP_ERR_FORMAT, {"norm_eps"}},
    {"norm_eps", "{\"layer_norm_eps\":1e-5}", RP_ERR_UNSUPPORTED, {"layer_norm_eps", "norm_eps"}},
    /* what is computed */
    {"", "{\"norm_bias\":1}", RP_ERR_FORMAT, {"norm_bias"}},
    {"", "{\"attention_bias\":\"no\"}", RP_ERR_FORMAT, {"attention_bias"}},
    {"", "{\"hidden_activation\":\"quick_gelu\"}", RP_ERR_UNSUPPORTED, {"hidden_activation"}},
    {"hidden_activation",
     "{\"hidden_act\":\"gelu\"}",
     RP_ERR_UNSUPPORTED,
     {"hidden_act", "hidden_activation"}},
    {"", "{\"classifier_activation\":\"selu\"}", RP_ERR_UNSUPPORTED, {"classifier_activation"}},
    {"", "{\"classifier_pooling\":\"max\"}", RP_ERR_UNSUPPORTED, {"classifier_pooling", "max"}},
    {"", "{\"classifier_pooling\":0}", RP_ERR_FORMAT, {"classifier_pooling"}},
    {"", "{\"is_decoder\":true}", RP_ERR_UNSUPPORTED, {"is_decoder"}},
    {"",
     "{\"position_embedding_type\":\"rotary\"}",
     RP_ERR_UNSUPPORTED,
     {"position_embedding_type"}},
    {"", "{\"auto_map\":{\"AutoModel\":\"x\"}}", RP_ERR_UNSUPPORTED, {"auto_map"}},
    /* windows and layers */
    {"", "{\"local_attention\":0}", RP_ERR_FORMAT, {"local_attention"}},
    {"", "{\"local_attention\":1}", RP_ERR_FORMAT, {"local_attention"}},
    {"", "{\"local_attention\":-1}", RP_ERR_FORMAT, {"local_attention"}},
    {"", "{\"local_attention\":64.5}", RP_ERR_FORMAT, {"local_attention"}},
    {"", "{\"local_attention\":[64,64]}", RP_ERR_FORMAT, {"local_attention"}},
    {"", "{\"global_attn_every_n_layers\":0}", RP_ERR_FORMAT, {"global_attn_every_n_layers"}},
    {"", "{\"global_attn_every_n_layers\":-1}", RP_ERR_FORMAT, {"global_attn_every_n_layers"}},
    {"", "{\"layer_types\":[]}", RP_ERR_FORMAT, {"layer_types", "6"}},
    {"", "{\"layer_types\":[\"full_attention\"]}", RP_ERR_FORMAT, {"layer_types", "6"}},
    {"", "{\"layer_types\":\"full_attention\"}", RP_ERR_FORMAT, {"layer_types"}},
    {"",
     "{\"layer_types\":[\"full_attention\",\"full_attention\",\"full_attention\","
     "\"full_attention\",\"full_attention\",\"chunked_attention\"]}",
     RP_ERR_UNSUPPORTED,
     {"layer_types", "chunked_attention"}},
    {"",
     "{\"layer_types\":[\"full_attention\",7,\"full_attention\","
     "\"full_attention\",\"full_attention\",\"full_attention\"]}",
     RP_ERR_UNSUPPORTED,
     {"layer_types", "7"}},
    {"", "{\"sliding_window\":64}", RP_ERR_UNSUPPORTED, {"sliding_window", "local_attention"}},
    /* half a spelling, two of them, none that is known */
    {"local_rope_theta", "{}", RP_ERR_MISSING, {"local_rope_theta", "global_rope_theta"}},
    {"global_rope_theta", "{}", RP_ERR_MISSING, {"global_rope_theta", "local_rope_theta"}},
    {"", "{\"global_rope_theta\":null}", RP_ERR_MISSING, {"global_rope_theta"}},
    {"", "{\"local_rope_theta\":-1}", RP_ERR_FORMAT, {"local_rope_theta", "-1"}},
    {"", "{\"global_rope_theta\":0}", RP_ERR_FORMAT, {"global_rope_theta", "0"}},
    {"", "{\"global_rope_theta\":\"160000\"}", RP_ERR_FORMAT, {"global_rope_theta"}},
    {"", "{\"rope_theta\":10000}", RP_ERR_UNSUPPORTED, {"rope_theta", "rope_parameters"}},
    {"", "{\"partial_rotary_factor\":0.5}", RP_ERR_UNSUPPORTED, {"partial_rotary_factor"}},
    {THETAS,
     "{\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":10000}}",
     RP_ERR_UNSUPPORTED,
     {"rope_parameters", "rope_type"}},
    {THETAS, "{\"rope_parameters\":[]}", RP_ERR_FORMAT, {"rope_parameters", "object"}},
    {THETAS, "{\"rope_parameters\":{}}", RP_ERR_MISSING, {"rope_parameters", "full_attention"}},
    {THETAS,
     "{\"rope_parameters\":{\"full_attention\":" PLAIN("160000") "}}",
     RP_ERR_MISSING,
     {"rope_parameters", "sliding_attention"}},
    {THETAS,
     "{\"rope_parameters\":{\"sliding_attention\":" PLAIN("160000") "}}",
     RP_ERR_MISSING,
     {"rope_parameters", "full_attention"}},
    {THETAS,
     "{" BOTH(PLAIN("160000"), "null") "}",
     RP_ERR_FORMAT,
     {"rope_parameters", "sliding_attention"}},
    {THETAS,
     "{" BOTH(PLAIN("160000"), "{\"rope_type\":\"default\"}") "}",
     RP_ERR_MISSING,
     {"rope_parameters.sliding_attention", "rope_theta"}},
    {"",
     "{" BOTH(PLAIN("160000"), PLAIN("9999")) "}",
     RP_ERR_FORMAT,
     {"rope_parameters.sliding_attention", "older"}},
    {"",
     "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}," BOTH(PLAIN("160000"),
                                                                  PLAIN("10000")) "}",
     RP_ERR_UNSUPPORTED,
     {"rope_scaling", "rope_parameters"}},
    {"", "{\"rope_scaling\":7}", RP_ERR_FORMAT, {"rope_scaling", "object"}},
    {"", "{\"rope_scaling\":{\"factor\":2}}", RP_ERR_UNSUPPORTED, {"rope_scaling", "factor"}},
    {"",
     "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2,\"rope_theta\":5}}",
     RP_ERR_UNSUPPORTED,
     {"rope_scaling", "rope_theta"}},
};

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct rp_config config;
        struct rp_modernbert m;
        rp_error err = {0};
        write_config(refused[i].drop, refused[i].set);
        const rp_status s = configure(&config, &m, &err);
        if (s != refused[i].status)
            print_error("without \"%s\", with %s: %s %s\n", refused[i].drop, refused[i].set,
                        rp_status_name(s), err.message);
        assert_int_equal(s, refused[i].status);
        assert_says(err.message, "config.json");
        for (int k = 0; k < 2 && refused[i].words[k]; k++)
            assert_says(err.message, refused[i].words[k]);
        assert_int_equal(configure(&config, &m, NULL), s);
    }
}

/* ---- rotary positions -------------------------------------------------------------------------
 */

#define PAIRS 8 /* of heads of 16 */

/* Frequencies and scales by the formulas of transformers 5.17 in double, from a program apart. */
static const struct {
    const char *parameters; /* of the full layers, without theta */
    double theta, scale, inv_freq[PAIRS];
} frequencies[] = {
    {"\"rope_type\":\"default\"",
     10000,
     1,
     {1, 0.31622776601683794, 0.1, 0.031622776601683791, 0.01, 0.0031622776601683794, 0.001,
      0.00031622776601683794}},
    {"\"partial_rotary_factor\":1.0", 1, 1, {1, 1, 1, 1, 1, 1, 1, 1}},
    {"\"rope_type\":\"linear\",\"factor\":4",
     10000,
     1,
     {0.25, 0.07905694150420949, 0.025, 0.007905694150420948, 0.0025, 0.0007905694150420948,
      0.00025, 7.905694150420948e-05}},
    {"\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4",
     500000,
     1,
     {1.0, 0.19392274474868576, 0.03760603093086393, 0.003840582813253346, 0.00017677669529663688,
      3.428102195952591e-05, 6.647869871181235e-06, 1.2891731721515574e-06}},
    {"\"rope_type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":512",
     10000,
     1.138629436111989,
     {1.0, 0.2569350598886808, 0.0625, 0.01383496476323666, 0.0025, 0.0007905694150420948, 0.00025,
      7.905694150420948e-05}},
    /* factor null: 2048 / 512 */
    {"\"rope_type\":\"yarn\",\"factor\":null,\"original_max_position_embeddings\":512,"
     "\"mscale\":0.7,\"mscale_all_dim\":1.4,\"truncate\":true",
     10000,
     0.9187319887286866,
     {1.0, 0.2569350598886808, 0.0625, 0.01383496476323666, 0.0025, 0.0007905694150420948, 0.00025,
      7.905694150420948e-05}},
    {"\"rope_type\":\"yarn\",\"factor\":8,\"original_max_position_embeddings\":64,"
     "\"beta_fast\":16,\"beta_slow\":2,\"attention_factor\":1.25",
     160000,
     1.25,
     {1.0, 0.12577882373436317, 0.00625, 0.0013975424859373686, 0.0003125, 6.987712429686843e-05,
      1.5625e-05, 3.4938562148434215e-06}},
    {"\"rope_type\":\"yarn\",\"factor\":2,\"original_max_position_embeddings\":4",
     10000,
     1.0693147180559945,
     {1.0, 0.15811388300841897, 0.05, 0.015811388300841896, 0.005, 0.0015811388300841897, 0.0005,
      0.00015811388300841897}},
    {"\"rope_type\":\"longrope\",\"factor\":32,\"original_max_position_embeddings\":4096,"
     "\"short_factor\":[1,1.25,1.5,2,3,4,6,8],\"long_factor\":[1,2,3,4,5,6,7,8]",
     10000,
     1.1902380714238083,
     {1.0, 0.25298221281347033, 0.06666666666666667, 0.015811388300841896, 0.0033333333333333335,
      0.0007905694150420948, 0.00016666666666666666, 3.952847075210474e-05}},
    {"\"rope_type\":\"longrope\",\"short_factor\":[1,1,1,1,1,1,1,2],"
     "\"long_factor\":[1,2,3,4,5,6,7,8]",
     10000,
     1,
     {1, 0.31622776601683794, 0.1, 0.031622776601683791, 0.01, 0.0031622776601683794, 0.001,
      0.00015811388300841897}},
    {"\"rope_type\":\"proportional\",\"factor\":2,\"partial_rotary_factor\":0.7",
     10000,
     1,
     {0.5, 0.15811388300841897, 0.05, 0.015811388300841896, 0.005, 0, 0, 0}},
    {"\"rope_type\":\"proportional\",\"partial_rotary_factor\":0", 10000, 1, {0}},
};

static void check_frequencies(size_t i, const struct rp_rope_config *rope)
{
    double found[PAIRS];
    rp_rope_frequencies(rope, 2 * PAIRS, found);
    assert_true(rope->theta == frequencies[i].theta);
    assert_true(fabs(rope->scale - frequencies[i].scale) <= 1e-14);
    for (int k = 0; k < PAIRS; k++)
        if (!(fabs(found[k] - frequencies[i].inv_freq[k]) <= 1e-13 * frequencies[i].inv_freq[k]))
            fail_msg("rope %zu, pair %d: %.17g, expected %.17g", i, k, found[k],
                     frequencies[i].inv_freq[k]);
}

static void test_frequencies(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof frequencies / sizeof *frequencies; i++) {
        struct rp_config config;
        struct rp_modernbert m;
        rp_error err;
        char set[600];
        snprintf(set, sizeof set,
                 "{\"rope_parameters\":{\"full_attention\":{\"rope_theta\":%.1f,%s},"
                 "\"sliding_attention\":" PLAIN("77.0") "}}",
                 frequencies[i].theta, frequencies[i].parameters);
        write_config(THETAS, set);
        if (configure(&config, &m, &err) != RP_OK)
            fail_msg("rope %zu: %s", i, err.message);
        check_frequencies(i, &m.rope[RP_MODERNBERT_FULL]);
        assert_true(m.rope[RP_MODERNBERT_SLIDING].theta == 77);
        assert_int_equal(m.rope[RP_MODERNBERT_SLIDING].type, RP_ROPE_DEFAULT);
        rp_config_close(&config);

        /* The older spelling: one scaling of both types of layer. */
        snprintf(set, sizeof set,
                 "{\"global_rope_theta\":%.1f,\"local_rope_theta\":null,\"rope_scaling\":{%s}}",
                 frequencies[i].theta, frequencies[i].parameters);
        write_config("", set);
        if (configure(&config, &m, &err) != RP_OK)
            fail_msg("rope %zu: %s", i, err.message);
        check_frequencies(i, &m.rope[RP_MODERNBERT_FULL]);
        check_frequencies(i, &m.rope[RP_MODERNBERT_SLIDING]);
        rp_config_close(&config);
    }
}

#define FACTORS "\"long_factor\":[1,2,3,4,5,6,7,8],\"short_factor\":"

static const struct {
    const char *parameters;
    rp_status status;
    const char *word;
} refused_ropes[] = {
    {"\"rope_type\":\"dynamic\",\"factor\":2", RP_ERR_UNSUPPORTED, "dynamic"},
    {"\"rope_type\":\"mrope\"", RP_ERR_UNSUPPORTED, "mrope"},
    {"\"type\":\"su\"", RP_ERR_UNSUPPORTED, "su"},
    {"\"rope_type\":7", RP_ERR_FORMAT, "rope_type"},
    {"\"factor\":2", RP_ERR_UNSUPPORTED, "factor"},
    {"\"rope_type\":\"default\",\"mrope_section\":[1]", RP_ERR_UNSUPPORTED, "mrope_section"},
    {"\"partial_rotary_factor\":0.5", RP_ERR_UNSUPPORTED, "partial_rotary_factor"},
    {"\"rope_type\":\"linear\"", RP_ERR_MISSING, "factor"},
    {"\"rope_type\":\"linear\",\"factor\":0", RP_ERR_FORMAT, "factor"},
    {"\"rope_type\":\"linear\",\"factor\":-2", RP_ERR_FORMAT, "factor"},
    {"\"rope_type\":\"linear\",\"factor\":1e300", RP_ERR_FORMAT, "factor"},
    {"\"rope_type\":\"linear\",\"factor\":\"2\"", RP_ERR_FORMAT, "factor"},
    {"\"rope_type\":\"linear\",\"factor\":2,\"beta_fast\":1", RP_ERR_UNSUPPORTED, "beta_fast"},
    {"\"rope_type\":\"llama3\",\"factor\":2,\"low_freq_factor\":1", RP_ERR_MISSING,
     "high_freq_factor"},
    {"\"rope_type\":\"llama3\",\"factor\":2,\"low_freq_factor\":4,\"high_freq_factor\":4",
     RP_ERR_FORMAT, "high_freq_factor"},
    {"\"rope_type\":\"yarn\"", RP_ERR_MISSING, "factor"},
    {"\"rope_type\":\"yarn\",\"factor\":4,\"truncate\":false", RP_ERR_UNSUPPORTED, "truncate"},
    {"\"rope_type\":\"yarn\",\"factor\":4,\"beta_fast\":0", RP_ERR_FORMAT, "beta_fast"},
    {"\"rope_type\":\"yarn\",\"factor\":4,\"attention_factor\":-1", RP_ERR_FORMAT,
     "attention_factor"},
    {"\"rope_type\":\"yarn\",\"factor\":4,\"original_max_position_embeddings\":0", RP_ERR_FORMAT,
     "original_max_position_embeddings"},
    {"\"rope_type\":\"longrope\",\"original_max_position_embeddings\":1024," FACTORS
     "[1,2,3,4,5,6,7,8]",
     RP_ERR_UNSUPPORTED, "longrope"},
    {"\"rope_type\":\"longrope\"," FACTORS "[1,2,3,4,5,6,7]", RP_ERR_FORMAT, "short_factor"},
    {"\"rope_type\":\"longrope\"," FACTORS "[1,2,3,4,5,6,7,0]", RP_ERR_FORMAT, "short_factor"},
    {"\"rope_type\":\"longrope\"," FACTORS "null", RP_ERR_MISSING, "short_factor"},
    {"\"rope_type\":\"proportional\",\"partial_rotary_factor\":1.5", RP_ERR_UNSUPPORTED,
     "partial_rotary_factor"},
};

static void test_refused_ropes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused_ropes / sizeof *refused_ropes; i++) {
        struct rp_config config;
        struct rp_modernbert m;
        rp_error err = {0};
        char set[600];
        snprintf(set, sizeof set,
                 "{\"rope_parameters\":{\"full_attention\":" PLAIN(
                     "160000.0") ",\"sliding_attention\":{\"rope_theta\":10000,%s}}}",
                 refused_ropes[i].parameters);
        write_config(THETAS, set);
        const rp_status s = configure(&config, &m, &err);
        if (s != refused_ropes[i].status)
            print_error("%s: %s %s\n", refused_ropes[i].parameters, rp_status_name(s), err.message);
        assert_int_equal(s, refused_ropes[i].status);
        assert_says(err.message, "config.json: rope_parameters.sliding_attention");
        assert_says(err.message, refused_ropes[i].word);
    }
    /* yarn needs a base above 1. */
    struct rp_config config;
    struct rp_modernbert m;
    rp_error err = {0};
    write_config(
        THETAS, "{" BOTH("{\"rope_theta\":1,\"rope_type\":\"yarn\",\"factor\":2}", PLAIN("1")) "}");
    assert_int_equal(configure(&config, &m, &err), RP_ERR_FORMAT);
    assert_says(err.message, "rope_parameters.full_attention: key \"rope_theta\"");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spellings),     cmocka_unit_test(test_values),
        cmocka_unit_test(test_refused),       cmocka_unit_test(test_frequencies),
        cmocka_unit_test(test_refused_ropes),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
