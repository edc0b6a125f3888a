/* Decision scorers from folders: which outputs, how one is recognised, every tensor that is
 * missing, too many or of another shape, temperatures, and Laya's layout. */
#include "tests/alloc_count.h"
#include "tests/model_maker.h"

#include <rankplan/rankplan.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ORACLE   RP_TEST_DATA "/oracles/decision"
#define COUNT(a) (sizeof(a) / sizeof *(a))

/* ---- the checkpoint, to be changed --------------------------------------------------------------
 */

/* The oracle's file in memory: its header as JSON, and where the data starts. */
struct checkpoint {
    unsigned char *bytes;
    size_t n, data;
    json_t *header;
};

static int read_checkpoint(void **state)
{
    static struct checkpoint c;
    FILE *f = fopen(ORACLE "/model.safetensors", "rb");
    uint64_t n_header;
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    c.n = (size_t)ftell(f);
    c.bytes = malloc(c.n);
    assert_non_null(c.bytes);
    rewind(f);
    assert_int_equal(fread(c.bytes, 1, c.n, f), c.n);
    fclose(f);
    memcpy(&n_header, c.bytes, sizeof n_header);
    c.data = sizeof n_header + (size_t)n_header;
    c.header = json_loadb((char *)c.bytes + sizeof n_header, (size_t)n_header, 0, NULL);
    assert_non_null(c.header);
    json_object_del(c.header, "__metadata__");
    *state = &c;
    return 0;
}

static int free_checkpoint(void **state)
{
    struct checkpoint *c = *state;
    json_decref(c->header);
    free(c->bytes);
    return 0;
}

/* Writes the tensors of `header`, whose offsets are those of the oracle's data. */
static void write_checkpoint(const struct checkpoint *c, const struct maker_dir *dir,
                             const json_t *header, const unsigned char *data)
{
    json_t *out = json_object();
    unsigned char *packed = malloc(2 * c->n);
    size_t used = 0;
    const char *name;
    json_t *entry;
    assert_non_null(packed);
    json_object_foreach((json_t *)(uintptr_t)header, name, entry)
    {
        const json_t *at = json_object_get(entry, "data_offsets");
        const size_t begin = (size_t)json_integer_value(json_array_get(at, 0));
        const size_t end = (size_t)json_integer_value(json_array_get(at, 1));
        memcpy(packed + used, data + begin, end - begin);
        json_object_set_new(out, name,
                            json_pack("{s:O, s:O, s:[I,I]}", "dtype",
                                      json_object_get(entry, "dtype"), "shape",
                                      json_object_get(entry, "shape"), "data_offsets",
                                      (json_int_t)used, (json_int_t)(used + end - begin)));
        used += end - begin;
    }
    char *text = json_dumps(out, JSON_COMPACT);
    assert_non_null(text);
    maker_write_st(dir, "model.safetensors", strlen(text), text, packed, used);
    free(text);
    free(packed);
    json_decref(out);
}

static json_t *read_config(void)
{
    json_t *config = json_load_file(ORACLE "/config.json", 0, NULL);
    assert_non_null(config);
    return config;
}

static rp_model *load(const char *folder, unsigned flags)
{
    rp_model_options o;
    rp_model *model;
    rp_error err = {RP_OK, ""};
    rp_model_options_init(&o);
    o.flags = flags;
    if (rp_model_load(folder, &o, &model, &err) != RP_OK)
        fail_msg("%s", err.message);
    return model;
}

static void refuses(const char *folder, rp_status status, const char *part)
{
    rp_model *model = (rp_model *)part;
    rp_error err = {RP_OK, ""};
    const rp_status got = rp_model_load(folder, NULL, &model, &err);
    if (got != status || !strstr(err.message, part))
        fail_msg("%s \"%s\", expected %s \"... %s ...\"", rp_status_name(got), err.message,
                 rp_status_name(status), part);
    assert_ptr_equal(model, part);
}

/* ---- running ------------------------------------------------------------------------------------
 */

static const int32_t ids[] = {1, 9, 4, 30, 4, 40, 2, 1, 7, 4, 2}, cu[] = {0, 7, 11};
static const int32_t markers[] = {2, 4, 2}, mcu[] = {0, 2, 3}, qtypes[] = {2, 1};

static rp_batch two(void)
{
    rp_batch b;
    rp_batch_init(&b);
    b.n_seqs = 2;
    b.ids = ids;
    b.cu = cu;
    b.markers = markers;
    b.mcu = mcu;
    b.qtypes = qtypes;
    return b;
}

static rp_session *run(const rp_model *model)
{
    rp_session_options o;
    rp_session *s;
    const rp_batch b = two();
    rp_error err = {RP_OK, ""};
    rp_session_options_init(&o);
    o.poison = true;
    assert_int_equal(
        rp_session_create(rp_model_graph(model), rp_model_weights(model), &o, &s, NULL), RP_OK);
    if (rp_session_run(s, &b, &err) != RP_OK)
        fail_msg("%s", err.message);
    return s;
}

struct results {
    float logits[3], act[4], pooled[2 * 128];
};

static void take(const rp_session *s, const char *name, size_t rows, size_t width, float *out)
{
    rp_view v;
    assert_int_equal(rp_session_output(s, name, &v, NULL), RP_OK);
    assert_int_equal(v.rows, rows);
    assert_int_equal(v.width, width);
    memcpy(out, v.data, rows * width * sizeof *out);
}

static void results_of(const rp_model *model, struct results *out)
{
    rp_session *s = run(model);
    take(s, "logits", 3, 1, out->logits);
    take(s, "act", 2, 2, out->act);
    rp_session_destroy(s);
}

/* Whether a folder gives what the oracle's does. */
static void same_as_the_oracle(const char *folder)
{
    struct results want, got;
    rp_model *oracle = load(ORACLE, 0), *model = load(folder, 0);
    results_of(oracle, &want);
    results_of(model, &got);
    assert_memory_equal(got.logits, want.logits, sizeof want.logits);
    assert_memory_equal(got.act, want.act, sizeof want.act);
    rp_model_destroy(oracle);
    rp_model_destroy(model);
}

/* ---- outputs ------------------------------------------------------------------------------------
 */

static bool has_step(const rp_session *s, const char *name)
{
    const rp_plan *plan;
    bool has = false;
    assert_int_equal(rp_session_plan((rp_session *)(uintptr_t)s, 11, 2, 3, &plan, NULL), RP_OK);
    for (size_t i = 0; i < rp_plan_n_steps(plan); i++) {
        rp_step_info info;
        assert_int_equal(rp_plan_step(plan, i, &info), RP_OK);
        has = has || strcmp(info.name, name) == 0;
    }
    return has;
}

/* Any combination has those outputs and no others, with the same bits; what they do not need is not
 * run, and its weights take no memory. */
static void outputs_in_any_combination(void **state)
{
    (void)state;
    static const char *const names[] = {"logits", "act", "pooled"};
    static const size_t rows[] = {3, 2, 2}, width[] = {1, 2, 128};
    float want[3][256];
    rp_model *all = load(ORACLE, RP_MODEL_ALL_OUTPUTS);
    rp_session *s = run(all);
    float features[2 * 132], last[11 * 128];
    for (size_t i = 0; i < 3; i++)
        take(s, names[i], rows[i], width[i], want[i]);
    take(s, "features", 2, 132, features);
    take(s, "last", 11, 128, last);
    assert_memory_equal(features, last, 128 * sizeof *last); /* first rows of the sequences */
    assert_memory_equal(features + 132, last + (size_t)cu[1] * 128, 128 * sizeof *last);
    const uint64_t bytes = rp_weights_bytes(rp_model_weights(all));
    rp_session_destroy(s);
    rp_model_destroy(all);
    for (unsigned flags = 0; flags < 16; flags += 2) {
        rp_model *model = load(ORACLE, flags);
        rp_model_info info = {.struct_size = sizeof info};
        const unsigned asked = flags ? flags : RP_MODEL_LOGITS | RP_MODEL_ACT;
        s = run(model);
        for (size_t i = 0; i < 3; i++) {
            float got[256];
            rp_view v;
            if (!(asked & RP_MODEL_LOGITS << i)) {
                assert_int_equal(rp_session_output(s, names[i], &v, NULL), RP_ERR_MISSING);
                continue;
            }
            take(s, names[i], rows[i], width[i], got);
            assert_memory_equal(got, want[i], rows[i] * width[i] * sizeof *got);
        }
        const bool head = asked & (RP_MODEL_LOGITS | RP_MODEL_ACT);
        assert_int_equal(has_step(s, "head.1.attn.qkv"), head);
        assert_int_equal(has_step(s, "act.dense"), (asked & RP_MODEL_ACT) != 0);
        assert_int_equal(has_step(s, "pooled"), (asked & RP_MODEL_POOLED) != 0);
        if (!head)
            assert_true(rp_weights_bytes(rp_model_weights(model)) < bytes / 2);
        rp_model_get_info(model, &info);
        assert_int_equal(info.task, RP_TASK_DECIDE);
        assert_int_equal(info.n_question_types, 3);
        assert_int_equal(info.dimension, asked & RP_MODEL_POOLED ? 128 : 0);
        rp_session_destroy(s);
        rp_model_destroy(model);
    }
}

/* What the library says of memory: the same before and after, and no less than the parameters. */
static void bytes_are_told(void **state)
{
    (void)state;
    rp_model *model = load(ORACLE, 0);
    const rp_bucket bucket = {128, 4, 16};
    rp_plan_sizes before, after;
    rp_plan *plan;
    rp_session_sizes sizes = {.struct_size = sizeof sizes};
    rp_model_info info = {.struct_size = sizeof info};
    rp_model_get_info(model, &info);
    assert_int_equal(rp_plan_measure(rp_model_graph(model), rp_model_weights(model), &bucket, NULL,
                                     &before, NULL),
                     RP_OK);
    assert_int_equal(
        rp_plan_compile(rp_model_graph(model), rp_model_weights(model), &bucket, NULL, &plan, NULL),
        RP_OK);
    rp_plan_get_sizes(plan, &after);
    assert_memory_equal(&before, &after, sizeof before);
    assert_int_equal(
        rp_session_measure(rp_model_graph(model), rp_model_weights(model), NULL, &sizes, NULL),
        RP_OK);
    assert_int_equal(sizes.weights_bytes, rp_weights_bytes(rp_model_weights(model)));
    assert_true(sizes.weights_bytes > 2 * info.n_parameters);
    rp_plan_destroy(plan);
    rp_model_destroy(model);
}

static void other_models_have_no_such_outputs(void **state)
{
    (void)state;
    rp_model_options o;
    rp_model *model;
    rp_error err;
    rp_model_options_init(&o);
    o.flags = RP_MODEL_ACT;
    assert_int_equal(rp_model_load(RP_TEST_DATA "/oracles/bert", &o, &model, &err), RP_ERR_INVALID);
    assert_non_null(
        strstr(err.message, "this is no decision scorer, and only one has the outputs asked for"));
    o.flags = 16;
    assert_int_equal(rp_model_load(ORACLE, &o, &model, &err), RP_ERR_INVALID);
    model = load(RP_TEST_DATA "/oracles/bert", 0);
    assert_null(rp_model_question_type(model, 0));
    assert_true(rp_model_temperature(model, 0, 2) == 1);
    rp_model_destroy(model);
}

static void a_warm_run_allocates_nothing(void **state)
{
    (void)state;
    if (!alloc_count_available())
        skip();
    rp_model *model = load(ORACLE, RP_MODEL_ALL_OUTPUTS);
    rp_session *s = run(model);
    const rp_batch b = two();
    const size_t before = alloc_count();
    assert_int_equal(rp_session_run(s, &b, NULL), RP_OK);
    assert_int_equal(alloc_count(), before);
    rp_session_destroy(s);
    rp_model_destroy(model);
}

/* ---- tensors ------------------------------------------------------------------------------------
 */

/* Without the architecture, by its tensors; then their number says how many layers there are. */
static void recognised_by_its_tensors(void **state)
{
    const struct checkpoint *c = *state;
    struct maker_dir dir;
    json_t *config = read_config();
    maker_dir_create(&dir);
    json_object_set_new(config, "architectures", json_pack("[s]", "ModernBertModel"));
    json_object_del(config, "decision_types");
    json_object_del(config, "decision_head_layers");
    maker_write_json(&dir, "config.json", config);
    write_checkpoint(c, &dir, c->header, c->bytes + c->data);
    same_as_the_oracle(dir.path);
    json_decref(config);
    maker_dir_remove(&dir);
}

static void every_missing_tensor_is_named(void **state)
{
    const struct checkpoint *c = *state;
    struct maker_dir dir;
    const char *name;
    json_t *entry;
    size_t n = 0;
    maker_dir_create(&dir);
    maker_copy_file(ORACLE "/config.json", maker_path(&dir, "config.json"));
    json_object_foreach(c->header, name, entry)
    {
        char message[256];
        json_t *header = json_copy(c->header);
        json_object_del(header, name);
        write_checkpoint(c, &dir, header, c->bytes + c->data);
        snprintf(message, sizeof message, "1 tensor that config.json asks for is missing: %s",
                 name);
        refuses(dir.path, RP_ERR_MISSING, message);
        json_decref(header);
        n++;
    }
    assert_int_equal(n, 56);
    maker_dir_remove(&dir);
}

static void every_wrong_shape_is_named(void **state)
{
    const struct checkpoint *c = *state;
    struct maker_dir dir;
    const char *name;
    json_t *entry;
    maker_dir_create(&dir);
    maker_copy_file(ORACLE "/config.json", maker_path(&dir, "config.json"));
    json_object_foreach(c->header, name, entry)
    {
        char message[256];
        json_t *header = json_deep_copy(c->header);
        json_array_insert_new(json_object_get(json_object_get(header, name), "shape"), 0,
                              json_integer(1));
        write_checkpoint(c, &dir, header, c->bytes + c->data);
        snprintf(message, sizeof message, "tensor \"%s\" is [1, ", name);
        refuses(dir.path, RP_ERR_SHAPE, message);
        json_decref(header);
    }
    maker_dir_remove(&dir);
}

static void every_extra_tensor_is_named(void **state)
{
    const struct checkpoint *c = *state;
    struct maker_dir dir;
    json_t *header = json_deep_copy(c->header);
    json_t *norm = json_object_get(header, "head.layers.0.norm1.bias");
    maker_dir_create(&dir);
    maker_copy_file(ORACLE "/config.json", maker_path(&dir, "config.json"));
    json_object_set(header, "head.layers.2.norm1.bias", norm);
    json_object_set(header, "scorer.4.bias", norm);
    write_checkpoint(c, &dir, header, c->bytes + c->data);
    refuses(dir.path, RP_ERR_FORMAT,
            "2 tensors that this decision scorer does not have: head.layers.2.norm1.bias, "
            "scorer.4.bias");
    json_decref(header);
    maker_dir_remove(&dir);
}

static void wrong_bodies_are_refused(void **state)
{
    const struct checkpoint *c = *state;
    struct maker_dir dir;
    json_t *config = read_config();
    maker_dir_create(&dir);
    write_checkpoint(c, &dir, c->header, c->bytes + c->data);
    json_object_set_new(config, "hidden_size", json_integer(96));
    maker_write_json(&dir, "config.json", config);
    refuses(dir.path, RP_ERR_UNSUPPORTED,
            "key \"hidden_size\" is 96, which a decision scorer's heads of 64 do not divide");
    json_decref(config);
    config = json_load_file(RP_TEST_DATA "/oracles/bert/config.json", 0, NULL);
    json_object_set_new(config, "architectures", json_pack("[s]", "DecisionModel"));
    maker_write_json(&dir, "config.json", config);
    refuses(dir.path, RP_ERR_UNSUPPORTED,
            "model_type \"bert\", but a decision scorer's body is a modernbert");
    json_decref(config);
    maker_dir_remove(&dir);
}

/* ---- temperatures -------------------------------------------------------------------------------
 */

/* The tensor's values, within the range that they are confined to. */
static void temperatures_of_the_checkpoint(void **state)
{
    const struct checkpoint *c = *state;
    static const uint16_t bf16[3] = {0x3dcd, 0x3fc0, 0x7fc0}; /* 0.1, 1.5, NaN */
    struct maker_dir dir;
    unsigned char *data = malloc(c->n - c->data);
    const json_t *at = json_object_get(json_object_get(c->header, "temperature"), "data_offsets");
    assert_non_null(data);
    memcpy(data, c->bytes + c->data, c->n - c->data);
    memcpy(data + json_integer_value(json_array_get(at, 0)), bf16, sizeof bf16);
    maker_dir_create(&dir);
    maker_copy_file(ORACLE "/config.json", maker_path(&dir, "config.json"));
    write_checkpoint(c, &dir, c->header, data);
    rp_model *model = load(dir.path, 0);
    assert_true(rp_model_temperature(model, 0, 2) == 0.5f);
    assert_true(rp_model_temperature(model, 1, 9) == 1.5f);
    assert_true(rp_model_temperature(model, 2, 2) == 1);
    assert_true(rp_model_temperature(model, 3, 2) == 1); /* no such type */
    assert_string_equal(rp_model_question_type(model, 0), "choice");
    assert_string_equal(rp_model_question_type(model, 1), "score");
    assert_string_equal(rp_model_question_type(model, 2), "noul");
    assert_null(rp_model_question_type(model, 3));
    rp_model_destroy(model);
    free(data);
    maker_dir_remove(&dir);
}

static void probabilities_at_a_temperature(void **state)
{
    (void)state;
    float p[3] = {1, 3, 2};
    rp_softmax(p, 3, 2, p);
    const double sum = exp(-1) + 1 + exp(-0.5);
    assert_true(fabs(p[0] - exp(-1) / sum) < 1e-7 && fabs(p[1] - 1 / sum) < 1e-7);
    assert_true(fabs(p[2] - exp(-0.5) / sum) < 1e-7);
    rp_softmax(p, 1, 5, p);
    assert_true(p[0] == 1);
    rp_softmax(NULL, 0, 1, NULL);
}

/* ---- Laya's layout ------------------------------------------------------------------------------
 */

static void write_laya(const struct checkpoint *c, const struct maker_dir *dir, const char *agent)
{
    json_t *config = read_config();
    json_object_del(config, "decision_types");
    json_object_del(config, "decision_head_layers");
    json_object_set_new(config, "architectures", json_pack("[s]", "ModernBertForMaskedLM"));
    maker_mkdir(dir, "encoder");
    maker_write_json(dir, "encoder/config.json", config);
    maker_write_text(dir, "rl_agent_config.json", agent);
    write_checkpoint(c, dir, c->header, c->bytes + c->data);
    json_decref(config);
}

static void layas_folder(void **state)
{
    const struct checkpoint *c = *state;
    struct maker_dir dir;
    maker_dir_create(&dir);
    write_laya(c, &dir,
               "{\"encoder\": \"x\", \"head_layers\": 2, \"max_len\": 100, \"head_max_len\": 50, "
               "\"temperature\": [1.25, 0.01, 7], \"temperature_by_options\": {\"choice:3-5\": 2, "
               "\"choice:11+\": 0.1, \"noul:2\": 1.5}}");
    same_as_the_oracle(dir.path);
    rp_model *model = load(dir.path, 0);
    rp_model_info info = {.struct_size = sizeof info};
    rp_model_get_info(model, &info);
    assert_int_equal(info.max_length, 100);
    assert_string_equal(info.max_length_source, "rl_agent_config.json:max_len");
    static const struct {
        size_t type, n;
        float want;
    } cases[] = {{0, 2, 1.25f}, {0, 3, 2},    {0, 5, 2},    {0, 6, 1.25f}, {0, 10, 1.25f},
                 {0, 11, 0.5f}, {1, 4, 0.5f}, {2, 2, 1.5f}, {2, 1, 1.5f},  {2, 3, 5}};
    for (size_t i = 0; i < COUNT(cases); i++)
        assert_true(rp_model_temperature(model, cases[i].type, cases[i].n) == cases[i].want);
    rp_model_destroy(model);
    maker_dir_remove(&dir);
}

static void wrong_agents_are_named(void **state)
{
    static const struct {
        const char *agent, *part;
        rp_status status;
    } cases[] = {
        {"{}", "rl_agent_config.json: key \"max_len\"", RP_ERR_MISSING},
        {"{\"max_len\": 0}", "key \"max_len\"", RP_ERR_FORMAT},
        {"{\"max_len\": 9}", "key \"head_layers\"", RP_ERR_MISSING},
        {"{\"max_len\": 9, \"head_layers\": 2}", "key \"temperature\" is not a list of 3 numbers",
         RP_ERR_FORMAT},
        {"{\"max_len\": 9, \"head_layers\": 2, \"temperature\": [1, 2]}",
         "key \"temperature\" is not a list of 3 numbers", RP_ERR_FORMAT},
        {"{\"max_len\": 9, \"head_layers\": 2, \"temperature\": [1, 2, \"3\"]}",
         "key \"temperature\" is not a list of 3 numbers", RP_ERR_FORMAT},
        {"{\"max_len\": 9, \"head_layers\": 2, \"temperature\": [1, 2, 3], "
         "\"temperature_by_options\": [1]}",
         "key \"temperature_by_options\" is not an object", RP_ERR_FORMAT},
        {"{\"max_len\": 9, \"head_layers\": 2, \"temperature\": [1, 2, 3], "
         "\"temperature_by_options\": {\"score:6-10\": \"1\"}}",
         "\"score:6-10\" is not a number", RP_ERR_FORMAT},
        {"{\"max_len\": 9, \"head_layers\": 2, \"temperature\": [1, 2, 3], "
         "\"temperature_by_options\": {\"choise:2\": 1}}",
         "has a name that is no type and number of options", RP_ERR_FORMAT},
        {"{\"max_len\": 9, \"head_layers\": 2, \"temperature\": [1, 2, 3], \"decision_types\": 1}",
         "key \"decision_types\" is not known", RP_ERR_UNSUPPORTED},
        {"{\"max_len\": 9, \"head_layers\": 2, \"temperature\": [1, 2, 3], \"head_dim\": 32}",
         "key \"head_dim\" is not known", RP_ERR_UNSUPPORTED},
        {"{\"max_len\": 9, \"head_layers\": 3, \"temperature\": [1, 2, 3]}",
         "head.layers.2.norm1.weight", RP_ERR_MISSING},
        {"{\"max_len\": 9, \"head_layers\": 1, \"temperature\": [1, 2, 3]}",
         "12 tensors that this decision scorer does not have: head.layers.1.", RP_ERR_FORMAT},
    };
    const struct checkpoint *c = *state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct maker_dir dir;
        maker_dir_create(&dir);
        write_laya(c, &dir, cases[i].agent);
        refuses(dir.path, cases[i].status, cases[i].part);
        maker_dir_remove(&dir);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_in_any_combination),
        cmocka_unit_test(bytes_are_told),
        cmocka_unit_test(other_models_have_no_such_outputs),
        cmocka_unit_test(a_warm_run_allocates_nothing),
        cmocka_unit_test(recognised_by_its_tensors),
        cmocka_unit_test(every_missing_tensor_is_named),
        cmocka_unit_test(every_wrong_shape_is_named),
        cmocka_unit_test(every_extra_tensor_is_named),
        cmocka_unit_test(wrong_bodies_are_refused),
        cmocka_unit_test(temperatures_of_the_checkpoint),
        cmocka_unit_test(probabilities_at_a_temperature),
        cmocka_unit_test(layas_folder),
        cmocka_unit_test(wrong_agents_are_named),
    };
    return cmocka_run_group_tests(tests, read_checkpoint, free_checkpoint);
}
