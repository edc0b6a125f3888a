/* See decision.h. */
#include "models/decision.h"

#include "models/file.h"
#include "ops/ops.h"
#include "pool/error.h"
#include "pool/fpenv.h"

#include <rankplan/machine.h>
#include <rankplan/model.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX     "encoder."
#define HEAD_DIM   64
#define ACT_HIDDEN 256
#define ACT_WIDTH  2
#define TORCH_EPS  1e-5f /* of LayerNorm, where nothing else is said */
#define MAX_TYPES  1024

const char *const rp_decision_type_names[RP_DECISION_TYPES] = {"choice", "score", "noul"};
static const char *const option_names[] = {"2", "3-5", "6-10", "11+"};

/* ---- Laya's file ------------------------------------------------------------------------------
 */

rp_status rp_decision_open(struct rp_folder *folder, struct rp_decision *d, rp_error *err)
{
    bool found;
    RP_TRY(rp_file_exists(folder->root, RP_DECISION_AGENT, &found, err));
    if (!found)
        return RP_OK;
    d->agent_path = rp_path_join(folder->root, RP_DECISION_AGENT);
    d->encoder = rp_path_join(folder->root, "encoder");
    if (!d->agent_path || !d->encoder)
        return rp_fail(err, RP_ERR_NOMEM, "no memory for a path");
    RP_TRY(rp_json_open(d->agent_path, 0, &d->agent, err));
    folder->max_length_source = RP_DECISION_AGENT ":max_len";
    return rp_json_whole(&d->agent, "max_len", RP_JSON_REQUIRED, 1, INT32_MAX, &folder->max_length,
                         err);
}

void rp_decision_close(struct rp_decision *d)
{
    rp_json_close(&d->agent);
    free(d->agent_path);
    free(d->encoder);
    free(d->temperatures);
    memset(d, 0, sizeof *d);
}

/* ---- which models -----------------------------------------------------------------------------
 */

bool rp_decision_is(const struct rp_decision *d, const struct rp_config *config,
                    const struct rp_tensors *tensors)
{
    return d->agent.object || strcmp(config->architecture, "DecisionModel") == 0 ||
           (rp_tensors_find(tensors, "type_emb.weight") &&
            rp_tensors_find(tensors, "scorer.1.weight"));
}

/* ---- temperatures -----------------------------------------------------------------------------
 */

/* The range that Laya confines a checkpoint's temperatures to: one near 0 would turn small
 * differences into certainty. */
static float clamp_temperature(double t)
{
    return isfinite(t) ? (float)fmin(fmax(t, 0.5), 5.0) : 1;
}

static rp_status read_list(struct rp_decision *d, rp_error *err)
{
    const json_t *list = rp_json_get(&d->agent, "temperature");
    bool ok = json_is_array(list) && json_array_size(list) == RP_DECISION_TYPES;
    for (size_t i = 0; ok && i < RP_DECISION_TYPES; i++) {
        ok = json_is_number(json_array_get(list, i));
        d->temperatures[i] = clamp_temperature(json_number_value(json_array_get(list, i)));
    }
    return ok ? RP_OK
              : rp_fail(err, RP_ERR_FORMAT, "%s: key \"temperature\" is not a list of %d numbers",
                        d->agent_path, RP_DECISION_TYPES);
}

/* {"choice:3-5": 1.2, ...} */
static rp_status read_by_options(struct rp_decision *d, rp_error *err)
{
    static const char key[] = "temperature_by_options";
    const json_t *object = rp_json_get(&d->agent, key);
    size_t known = 0;
    char name[32];
    if (object && !json_is_object(object))
        return rp_fail(err, RP_ERR_FORMAT, "%s: key \"%s\" is not an object", d->agent_path, key);
    for (size_t t = 0; t < RP_DECISION_TYPES; t++)
        for (size_t k = 0; k < 4; k++) {
            snprintf(name, sizeof name, "%s:%s", rp_decision_type_names[t], option_names[k]);
            const json_t *value = json_object_get(object, name);
            if (value && !json_is_number(value))
                return rp_fail(err, RP_ERR_FORMAT, "%s: key \"%s\": \"%s\" is not a number",
                               d->agent_path, key, name);
            if (value)
                d->by_options[t][k] = clamp_temperature(json_number_value(value));
            known += value != NULL;
        }
    if (known != json_object_size(object))
        return rp_fail(err, RP_ERR_FORMAT,
                       "%s: key \"%s\" has a name that is no type and number of options, such as "
                       "\"choice:3-5\"",
                       d->agent_path, key);
    return RP_OK;
}

/* What nobody read would change what Laya computes; but for where the body is, and how its program
 * cuts texts. */
static rp_status refuse_unknown(const struct rp_decision *d, rp_error *err)
{
    char shown[RP_SHOWN_BYTES];
    const char *key;
    json_t *value;
    json_object_foreach(d->agent.object, key, value)
    {
        if (!json_object_get(d->agent.seen, key) && strcmp(key, "encoder") != 0 &&
            strcmp(key, "head_max_len") != 0)
            return rp_fail(err, RP_ERR_UNSUPPORTED, "%s: key \"%s\" is not known", d->agent_path,
                           rp_show(key, shown));
    }
    return RP_OK;
}

/* The checkpoint's own tensor; what is wrong with it is the build's to say. */
static rp_status read_tensor(struct rp_decision *d, const struct rp_tensors *tensors, rp_error *err)
{
    const struct rp_tensor_entry *e = rp_tensors_find(tensors, "temperature");
    const enum rp_st_type type = e ? e->tensor->type : RP_ST_TYPES;
    const rp_dtype dtype = type == RP_ST_F32   ? RP_DTYPE_F32
                           : type == RP_ST_F16 ? RP_DTYPE_F16
                                               : RP_DTYPE_BF16;
    unsigned char bytes[MAX_TYPES * sizeof(float)];
    if (type > RP_ST_BF16 || e->tensor->n_elements != (uint64_t)d->types)
        return RP_OK;
    RP_TRY(rp_st_read(e->tensor, 0, bytes, (size_t)(e->tensor->end - e->tensor->begin), err));
    rp_ops_select(RP_ISA_SCALAR)->widen(dtype, bytes, d->temperatures, (size_t)d->types);
    for (int64_t i = 0; i < d->types; i++)
        d->temperatures[i] = clamp_temperature((double)d->temperatures[i]);
    return RP_OK;
}

static rp_status read_temperatures(struct rp_decision *d, const struct rp_tensors *tensors,
                                   rp_error *err)
{
    d->temperatures = calloc((size_t)d->types, sizeof *d->temperatures);
    if (!d->temperatures)
        return rp_fail(err, RP_ERR_NOMEM, "no memory for %" PRId64 " temperatures", d->types);
    if (!d->agent.object)
        return read_tensor(d, tensors, err);
    RP_TRY(read_list(d, err));
    return read_by_options(d, err);
}

float rp_decision_temperature(const struct rp_decision *d, size_t type, size_t n_options)
{
    const size_t size = n_options <= 2 ? 0 : n_options <= 5 ? 1 : n_options <= 10 ? 2 : 3;
    if (!d->temperatures || type >= (size_t)d->types)
        return 1;
    if (type < RP_DECISION_TYPES && d->by_options[type][size] > 0)
        return d->by_options[type][size];
    return d->temperatures[type];
}

void rp_softmax(const float *logits, size_t n, float temperature, float *out)
{
    const rp_fpenv callers = rp_fpenv_enter();
    rp_ops_select(RP_ISA_SCALAR)->softmax(logits, n, temperature, out);
    rp_fpenv_leave(callers);
}

/* ---- configuration ----------------------------------------------------------------------------
 */

static int64_t count_layers(const struct rp_tensors *tensors)
{
    char name[64];
    int64_t n = 0;
    do
        snprintf(name, sizeof name, "head.layers.%" PRId64 ".self_attn.in_proj_weight", n);
    while (rp_tensors_find(tensors, name) && ++n);
    return n;
}

static rp_status check_body(const struct rp_config *config, const struct rp_body *body,
                            rp_error *err)
{
    if (strcmp(config->model_type, "modernbert") != 0)
        return rp_fail(err, RP_ERR_UNSUPPORTED,
                       "%s: model_type \"%s\", but a decision scorer's body is a modernbert",
                       config->path, config->model_type);
    if (body->hidden % HEAD_DIM != 0)
        return rp_fail(err, RP_ERR_UNSUPPORTED,
                       "%s: key \"hidden_size\" is %" PRId64
                       ", which a decision scorer's heads of %d do not divide",
                       config->path, body->hidden, HEAD_DIM);
    return RP_OK;
}

rp_status rp_decision_configure(struct rp_decision *d, const struct rp_config *config,
                                const struct rp_tensors *tensors, const struct rp_body *body,
                                rp_error *err)
{
    const struct rp_json *json = d->agent.object ? &d->agent : &config->json;
    const bool laya = d->agent.object != NULL; /* always has the named types, and no others */
    const char *layers = laya ? "head_layers" : "decision_head_layers";
    RP_TRY(check_body(config, body, err));
    d->types = RP_DECISION_TYPES;
    if (!laya)
        RP_TRY(
            rp_json_whole(json, "decision_types", RP_JSON_OPTIONAL, 1, MAX_TYPES, &d->types, err));
    d->layers = count_layers(tensors);
    RP_TRY(rp_json_whole(json, layers, laya ? RP_JSON_REQUIRED : RP_JSON_OPTIONAL, 0,
                         (int64_t)tensors->n, &d->layers, err));
    RP_TRY(read_temperatures(d, tensors, err));
    return laya ? refuse_unknown(d, err) : RP_OK;
}

/* ---- the graph --------------------------------------------------------------------------------
 */

/* Layer N's names: "head.N.attn.qkv" of steps, "head.layers.N.linear1" of tensors. */
struct names {
    int64_t layer;
    char step[96], tensor[96];
};

static const char *step(struct names *n, const char *what)
{
    snprintf(n->step, sizeof n->step, "head.%" PRId64 ".%s", n->layer, what);
    return n->step;
}

static const char *tensor(struct names *n, const char *what)
{
    snprintf(n->tensor, sizeof n->tensor, "head.layers.%" PRId64 ".%s", n->layer, what);
    return n->tensor;
}

static rp_value build_attention(struct rp_build *build, struct names *n, uint64_t hidden,
                                rp_value h)
{
    const rp_attention attention = {
        .n_heads = (int32_t)(hidden / HEAD_DIM), .head_dim = HEAD_DIM, .rel_bias = -1};
    rp_value x =
        rp_build_norm(build, step(n, "attn.norm"), tensor(n, "norm1"), h, hidden, TORCH_EPS);
    const rp_weight w = rp_build_matrix(build, step(n, "attn.qkv.weight"),
                                        tensor(n, "self_attn.in_proj_weight"), 3 * hidden, hidden);
    const rp_weight b = rp_build_vector(build, step(n, "attn.qkv.bias"),
                                        tensor(n, "self_attn.in_proj_bias"), 3 * hidden);
    x = rp_graph_gemm(build->graph, step(n, "attn.qkv"), x, w, b, RP_ACT_NONE, -1);
    x = rp_graph_attention(build->graph, step(n, "attn.core"), x, &attention);
    return rp_build_linear(build, step(n, "attn.out"), tensor(n, "self_attn.out_proj"), x, hidden,
                           hidden, RP_ACT_NONE, h);
}

static rp_value build_layer(struct rp_build *build, struct names *n, uint64_t hidden, rp_value h)
{
    h = build_attention(build, n, hidden, h);
    rp_value x =
        rp_build_norm(build, step(n, "ffn.norm"), tensor(n, "norm2"), h, hidden, TORCH_EPS);
    x = rp_build_linear(build, step(n, "ffn.up"), tensor(n, "linear1"), x, hidden, 4 * hidden,
                        RP_ACT_RELU, -1);
    return rp_build_linear(build, step(n, "ffn.down"), tensor(n, "linear2"), x, 4 * hidden, hidden,
                           RP_ACT_NONE, h);
}

static void build_heads(struct rp_build *build, uint64_t hidden, struct rp_decision_values *out)
{
    rp_value m = rp_graph_gather_markers(build->graph, "markers", out->last);
    m = rp_build_norm(build, "scorer.norm", "scorer.0", m, hidden, TORCH_EPS);
    m = rp_build_linear(build, "scorer.dense", "scorer.1", m, hidden, hidden, RP_ACT_GELU, -1);
    out->logits = rp_build_linear(build, "logits", "scorer.3", m, hidden, 1, RP_ACT_NONE, -1);
    const rp_value first = rp_graph_pool(build->graph, "act.first", out->last, RP_POOL_CLS);
    out->features = rp_graph_act_features(build->graph, "act.features", first, out->logits);
    const rp_value a = rp_build_linear(build, "act.dense", "act_head.0", out->features, hidden + 4,
                                       ACT_HIDDEN, RP_ACT_GELU, -1);
    out->act =
        rp_build_linear(build, "act", "act_head.2", a, ACT_HIDDEN, ACT_WIDTH, RP_ACT_NONE, -1);
}

void rp_decision_build(struct rp_build *build, const struct rp_decision *d,
                       const struct rp_modernbert *m, struct rp_decision_values *out)
{
    const uint64_t hidden = (uint64_t)m->body.hidden;
    build->prefix = PREFIX;
    const rp_value body = rp_modernbert_build(build, m);
    build->prefix = "";
    out->pooled = rp_graph_pool(build->graph, "pooled", body, RP_POOL_MEAN);
    const rp_weight types =
        rp_build_matrix(build, "types.weight", "type_emb.weight", (uint64_t)d->types, hidden);
    out->last = rp_graph_add_types(build->graph, "types", body, types);
    for (int64_t i = 0; i < d->layers && !rp_body_lacks_enough(build); i++) {
        struct names n = {.layer = i};
        out->last = build_layer(build, &n, hidden, out->last);
    }
    build_heads(build, hidden, out);
    (void)rp_build_vector(build, "temperature", "temperature", (uint64_t)d->types);
}

rp_status rp_decision_refuse_extra(const struct rp_tensors *tensors, rp_error *err)
{
    struct rp_name_list extra = {0};
    for (size_t i = 0; i < tensors->n; i++)
        if (!tensors->entries[i].used)
            rp_name_list_add(&extra, tensors->entries[i].tensor->name);
    if (extra.n == 0)
        return RP_OK;
    return rp_fail(err, RP_ERR_FORMAT,
                   "%s: %zu tensor%s that this decision scorer does not have: %s", tensors->source,
                   extra.n, extra.n == 1 ? "" : "s", rp_name_list_text(&extra));
}
