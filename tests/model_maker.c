/* See model_maker.h. */
#include "tests/model_maker.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* A helper that cannot do its work ends the test program: there is nothing to assert about. */
static void must(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "model_maker: %s\n", what);
        abort();
    }
}

/* ---- folders ----------------------------------------------------------------------------------
 */

void maker_dir_create(struct maker_dir *dir)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(dir->path, sizeof dir->path, "%s/rankplan-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    must(mkdtemp(dir->path) != NULL, dir->path);
}

static void remove_tree(const char *path)
{
    struct stat st;
    if (lstat(path, &st) != 0)
        return;
    DIR *d = S_ISDIR(st.st_mode) ? opendir(path) : NULL;
    if (!d) {
        remove(path);
        return;
    }
    for (struct dirent *e; (e = readdir(d));) {
        char inner[1024];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        snprintf(inner, sizeof inner, "%s/%s", path, e->d_name);
        remove_tree(inner);
    }
    closedir(d);
    rmdir(path);
}

void maker_dir_remove(struct maker_dir *dir)
{
    remove_tree(dir->path);
}

const char *maker_path(const struct maker_dir *dir, const char *name)
{
    static char paths[8][512];
    static size_t next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", dir->path, name);
    return path;
}

static void write_file(const char *path, const void *a, size_t n_a, const void *b, size_t n_b,
                       const void *c, size_t n_c)
{
    FILE *f = fopen(path, "wb");
    must(f != NULL, path);
    must(fwrite(a, 1, n_a, f) == n_a && fwrite(b, 1, n_b, f) == n_b && fwrite(c, 1, n_c, f) == n_c,
         path);
    must(fclose(f) == 0, path);
}

void maker_write(const struct maker_dir *dir, const char *name, const void *bytes, size_t n)
{
    write_file(maker_path(dir, name), bytes, n, "", 0, "", 0);
}

void maker_write_text(const struct maker_dir *dir, const char *name, const char *text)
{
    maker_write(dir, name, text, strlen(text));
}

void maker_write_json(const struct maker_dir *dir, const char *name, const json_t *value)
{
    char *text = json_dumps(value, JSON_INDENT(2) | JSON_ENCODE_ANY);
    must(text != NULL, name);
    maker_write_text(dir, name, text);
    free(text);
}

void maker_mkdir(const struct maker_dir *dir, const char *name)
{
    must(mkdir(maker_path(dir, name), 0777) == 0, name);
}

void maker_copy_file(const char *from, const char *to)
{
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    char buffer[4096];
    must(in && out, from);
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, in)) > 0;)
        must(fwrite(buffer, 1, n, out) == n, to);
    fclose(in);
    must(fclose(out) == 0, to);
}

/* ---- numbers ----------------------------------------------------------------------------------
 */

uint64_t maker_random(uint64_t *state)
{
    /* splitmix64 */
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

float maker_random_float(uint64_t *state)
{
    return (float)((double)(maker_random(state) >> 40) * 0x1p-23 - 1.0);
}

static uint16_t to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static float from_bf16(uint16_t h)
{
    const uint32_t bits = (uint32_t)h << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Halves of the sizes that weights have (2^-24 to 65504): by arithmetic, rounding to even. */
static uint16_t to_f16(float x)
{
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    const double a = fabs((double)x);
    int e;
    if (a == 0)
        return sign;
    frexp(a, &e); /* a = m 2^e, 1/2 <= m < 1 */
    const int shift = e - 1 < -14 ? -24 : e - 1 - 10;
    const uint32_t m = (uint32_t)nearbyint(ldexp(a, -shift)); /* 10 bits and the hidden one */
    return (uint16_t)(sign | (shift == -24 ? m : ((uint32_t)(e - 1 + 14) << 10) + m));
}

static float from_f16(uint16_t h)
{
    const int e = h >> 10 & 31;
    const double m = e ? 1024 + (h & 1023) : h & 1023;
    return (float)((h & 0x8000 ? -1 : 1) * ldexp(m, (e ? e : 1) - 25));
}

/* ---- safetensors ------------------------------------------------------------------------------
 */

void maker_write_st(const struct maker_dir *dir, const char *name, uint64_t header_bytes,
                    const char *header, const void *data, size_t n_data)
{
    write_file(maker_path(dir, name), &header_bytes, sizeof header_bytes, header, strlen(header),
               data, n_data);
}

static size_t dtype_bytes(enum maker_dtype dtype)
{
    return dtype == MAKER_F32 ? 4 : 2;
}

/* Appends one tensor's entry and bytes. */
static void add_entry(json_t *header, unsigned char **data, size_t *n_data, const char *name,
                      struct maker_tensor *t, enum maker_dtype dtype)
{
    static const char *const names[] = {"F32", "F16", "BF16"};
    const size_t width = dtype_bytes(dtype), begin = *n_data;
    json_t *shape = json_array();
    for (size_t i = 0; i < t->rank; i++)
        json_array_append_new(shape, json_integer((json_int_t)t->dims[i]));
    *n_data += t->n * width;
    *data = realloc(*data, *n_data + 1);
    must(*data != NULL, "memory");
    for (size_t i = 0; i < t->n; i++) {
        unsigned char *to = *data + begin + i * width;
        const uint16_t half = dtype == MAKER_F16 ? to_f16(t->data[i]) : to_bf16(t->data[i]);
        if (dtype == MAKER_F32) {
            memcpy(to, &t->data[i], 4);
            continue;
        }
        memcpy(to, &half, 2);
        t->data[i] = dtype == MAKER_F16 ? from_f16(half) : from_bf16(half);
    }
    json_object_set_new(header, name,
                        json_pack("{s:s,s:o,s:[I,I]}", "dtype", names[dtype], "shape", shape,
                                  "data_offsets", (json_int_t)begin, (json_int_t)*n_data));
}

static void write_header(const struct maker_dir *dir, const char *file, json_t *header,
                         unsigned char *data, size_t n_data)
{
    json_object_set_new(header, "__metadata__", json_pack("{s:s}", "format", "pt"));
    char *text = json_dumps(header, JSON_COMPACT);
    must(text != NULL, file);
    maker_write_st(dir, file, strlen(text), text, data, n_data);
    free(text);
    free(data);
    json_decref(header);
}

void maker_write_tensors(const struct maker_dir *dir, const char *name,
                         struct maker_tensor *tensors, size_t n, enum maker_dtype dtype)
{
    json_t *header = json_object();
    unsigned char *data = NULL;
    size_t n_data = 0;
    for (size_t i = 0; i < n; i++)
        add_entry(header, &data, &n_data, tensors[i].name, &tensors[i], dtype);
    write_header(dir, name, header, data, n_data);
}

/* ---- models -----------------------------------------------------------------------------------
 */

static bool is(const struct maker_model *m, const char *family)
{
    return strcmp(m->family, family) == 0;
}

bool maker_is_decoder(const struct maker_model *m)
{
    return strncmp(m->family, "qwen3", 5) == 0 || is(m, "olmo_hybrid");
}

static struct maker_model default_decoder(struct maker_model m)
{
    m.layers = 3;
    m.heads = 4;
    m.types = 0;
    m.pad = -1;
    m.positions = 400;
    m.activation = "silu";
    m.eps = 1e-6;
    m.decoder = (struct maker_decoder){.kv_heads = 2,
                                       .head_dim = 8,
                                       .types = is(&m, "qwen3") ? "fff" : "llf",
                                       .theta = 10000,
                                       .part = is(&m, "qwen3") || is(&m, "olmo_hybrid") ? 1 : 0.5,
                                       .parameters = true,
                                       .key_heads = 2,
                                       .value_heads = 4,
                                       .key_dim = 6,
                                       .value_dim = 5,
                                       .kernel = 4,
                                       .twice_beta = is(&m, "olmo_hybrid"),
                                       .sparse_every = 1,
                                       .dense_layer = -1,
                                       .normalize = true};
    if (is(&m, "qwen3_next")) {
        m.decoder.experts = 5;
        m.decoder.used = 2;
        m.decoder.expert_inner = 9;
        m.decoder.shared_inner = 7;
    }
    return m;
}

struct maker_model maker_model_default(const char *family)
{
    struct maker_model m = {.family = family,
                            .vocab = 50,
                            .hidden = 16,
                            .layers = 2,
                            .heads = 2,
                            .intermediate = 24,
                            .positions = 40,
                            .types = 2,
                            .pad = 0,
                            .activation = "gelu",
                            .eps = 1e-12,
                            .seed = 1};
    if (strcmp(family, "roberta") == 0 || strcmp(family, "xlm-roberta") == 0) {
        m.types = 1;
        m.pad = 1;
    } else if (strcmp(family, "distilbert") == 0) {
        m.types = 0;
    } else if (strcmp(family, "mpnet") == 0) {
        m.types = 0;
        m.pad = 1;
        m.rel_buckets = 32;
    } else if (strcmp(family, "electra") == 0) {
        m.embedding = 12;
    } else if (strcmp(family, "modernbert") == 0) {
        m.types = 0;
        m.layers = 4;
        m.eps = 1e-5;
        m.modernbert = (struct maker_modernbert){.local_attention = 6,
                                                 .every = 3,
                                                 .theta = {160000, 10000},
                                                 .pooling = "cls",
                                                 .classifier_activation = "gelu"};
    }
    return maker_is_decoder(&m) ? default_decoder(m) : m;
}

const char *maker_prefix(const struct maker_model *m)
{
    return is(m, "bert")         ? "bert."
           : is(m, "distilbert") ? "distilbert."
           : is(m, "mpnet")      ? "mpnet."
           : is(m, "electra")    ? "electra."
           : is(m, "modernbert") ? "model."
           : maker_is_decoder(m) ? (m->decoder.text_part ? "model.language_model." : "model.")
                                 : "roberta.";
}

/* One tensor; rows 0 makes a vector.  Norm weights lie around 1, everything else around 0. */
static void add(struct maker_model *m, uint64_t *rng, int rows, int cols, float around, float scale,
                const char *fmt, ...) __attribute__((format(printf, 7, 8)));
static void add(struct maker_model *m, uint64_t *rng, int rows, int cols, float around, float scale,
                const char *fmt, ...)
{
    m->tensors = realloc(m->tensors, (m->n_tensors + 1) * sizeof *m->tensors);
    must(m->tensors != NULL, "memory");
    struct maker_tensor *t = &m->tensors[m->n_tensors++];
    memset(t, 0, sizeof *t);
    va_list args;
    va_start(args, fmt);
    vsnprintf(t->name, sizeof t->name, fmt, args);
    va_end(args);
    t->rank = rows ? 2 : 1;
    t->dims[0] = (uint64_t)(rows ? rows : cols);
    t->dims[1] = (uint64_t)(rows ? cols : 0);
    t->n = (size_t)(rows ? rows : 1) * (size_t)cols;
    t->data = malloc(t->n * sizeof *t->data);
    must(t->data != NULL, "memory");
    for (size_t i = 0; i < t->n; i++)
        t->data[i] = around + scale * maker_random_float(rng);
}

static void add_linear_opt(struct maker_model *m, uint64_t *rng, int out, int in, bool bias,
                           const char *name)
{
    const float scale = 1.5f / sqrtf((float)in);
    add(m, rng, out, in, 0, scale, "%s.weight", name);
    if (bias)
        add(m, rng, 0, out, 0, 0.3f, "%s.bias", name);
}

static void add_linear(struct maker_model *m, uint64_t *rng, int out, int in, const char *name)
{
    add_linear_opt(m, rng, out, in, true, name);
}

static void add_norm_opt(struct maker_model *m, uint64_t *rng, int n, bool bias, const char *name)
{
    add(m, rng, 0, n, 1, 0.4f, "%s.weight", name);
    if (bias)
        add(m, rng, 0, n, 0, 0.3f, "%s.bias", name);
}

static void add_norm(struct maker_model *m, uint64_t *rng, int n, const char *name)
{
    add_norm_opt(m, rng, n, true, name);
}

static void add_layer(struct maker_model *m, uint64_t *rng, int i)
{
    static const char *const bert[] = {"attention.self.query",
                                       "attention.self.key",
                                       "attention.self.value",
                                       "attention.output.dense",
                                       "attention.output.LayerNorm",
                                       "intermediate.dense",
                                       "output.dense",
                                       "output.LayerNorm"};
    static const char *const distilbert[] = {
        "attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin",
        "sa_layer_norm",   "ffn.lin1",        "ffn.lin2",        "output_layer_norm"};
    static const char *const mpnet[] = {
        "attention.attn.q",    "attention.attn.k",   "attention.attn.v", "attention.attn.o",
        "attention.LayerNorm", "intermediate.dense", "output.dense",     "output.LayerNorm"};
    const char *const *names = is(m, "distilbert") ? distilbert : is(m, "mpnet") ? mpnet : bert;
    const char *base = is(m, "distilbert") ? "transformer.layer" : "encoder.layer";
    char name[8][100];
    for (int k = 0; k < 8; k++)
        snprintf(name[k], sizeof name[k], "%s.%d.%s", base, i, names[k]);
    for (int k = 0; k < 4; k++)
        add_linear(m, rng, m->hidden, m->hidden, name[k]);
    add_norm(m, rng, m->hidden, name[4]);
    add_linear(m, rng, m->intermediate, m->hidden, name[5]);
    add_linear(m, rng, m->hidden, m->intermediate, name[6]);
    add_norm(m, rng, m->hidden, name[7]);
}

static void add_heads(struct maker_model *m, uint64_t *rng)
{
    const int h = m->hidden;
    if (m->pooler || (m->labels && is(m, "bert")))
        add_linear(m, rng, h, h, "pooler.dense");
    if (!m->labels)
        return;
    if (is(m, "bert")) {
        add_linear(m, rng, m->labels, h, "classifier");
    } else if (is(m, "distilbert")) {
        add_linear(m, rng, h, h, "pre_classifier");
        add_linear(m, rng, m->labels, h, "classifier");
    } else {
        add_linear(m, rng, h, h, "classifier.dense");
        add_linear(m, rng, m->labels, h, "classifier.out_proj");
    }
}

bool maker_layer_is_full(const struct maker_model *m, int layer)
{
    const struct maker_modernbert *b = &m->modernbert;
    return b->types ? b->types[layer] == 'f' : layer % (b->every ? b->every : 3) == 0;
}

bool maker_layer_is_sparse(const struct maker_model *m, int layer)
{
    const struct maker_decoder *d = &m->decoder;
    return d->experts > 0 && layer != d->dense_layer && (layer + 1) % d->sparse_every == 0;
}

/* Rows [a, b, cols]. */
static void add_cube(struct maker_model *m, uint64_t *rng, int a, int b, int cols, float scale,
                     const char *name)
{
    add(m, rng, a * b, cols, 0, scale, "%s", name);
    struct maker_tensor *t = &m->tensors[m->n_tensors - 1];
    t->rank = 3;
    t->dims[0] = (uint64_t)a;
    t->dims[1] = (uint64_t)b;
    t->dims[2] = (uint64_t)cols;
}

/* A norm's weight, or what it differs from one by. */
static void add_factor(struct maker_model *m, uint64_t *rng, int n, const char *name)
{
    const bool offset = is(m, "qwen3_next") || strncmp(m->family, "qwen3_5", 7) == 0;
    add(m, rng, 0, n, offset ? 0 : 1, 0.4f, "%s.weight", name);
}

static void add_gdn(struct maker_model *m, uint64_t *rng, const char *layer)
{
    const struct maker_decoder *d = &m->decoder;
    const int q = d->key_heads * d->key_dim, v = d->value_heads * d->value_dim, h = m->hidden;
    const int n = d->value_heads;
    const bool olmo = is(m, "olmo_hybrid");
    const struct {
        const char *name;
        int rows;
    } next[] = {{"in_proj_qkvz", 2 * q + 2 * v}, {"in_proj_ba", 2 * n}, {"out_proj", 0}},
      split[] = {{"in_proj_qkv", 2 * q + v},
                 {"in_proj_z", v},
                 {"in_proj_b", n},
                 {"in_proj_a", n},
                 {"out_proj", 0}},
      separate[] = {{"q_proj", q}, {"k_proj", q}, {"v_proj", v}, {"g_proj", v},
                    {"b_proj", n}, {"a_proj", n}, {"o_proj", 0}};
    const size_t count = is(m, "qwen3_next") ? 3 : olmo ? 7 : 5;
    char name[100];
    for (size_t i = 0; i < count; i++) {
        const char *tensor = is(m, "qwen3_next") ? next[i].name
                             : olmo              ? separate[i].name
                                                 : split[i].name;
        const int rows = is(m, "qwen3_next") ? next[i].rows
                         : olmo              ? separate[i].rows
                                             : split[i].rows;
        snprintf(name, sizeof name, "%slinear_attn.%s", layer, tensor);
        add_linear_opt(m, rng, rows ? rows : h, rows ? h : v, false, name);
    }
    static const char *const convs[] = {"q_conv1d", "k_conv1d", "v_conv1d"};
    for (int i = 0; i < (d->published ? 3 : 1); i++) {
        snprintf(name, sizeof name, "%slinear_attn.%s.weight", layer,
                 d->published ? convs[i] : "conv1d");
        add_cube(m, rng, !d->published ? 2 * q + v : i < 2 ? q : v, 1, d->kernel, 0.7f, name);
    }
    add(m, rng, 0, n, 0, 1, "%slinear_attn.A_log", layer);
    add(m, rng, 0, n, 0, 1, "%slinear_attn.dt_bias", layer);
    add(m, rng, 0, d->value_dim, 1, 0.4f, "%slinear_attn.%s.weight", layer,
        olmo ? "o_norm" : "norm");
}

static void add_attention(struct maker_model *m, uint64_t *rng, const char *layer)
{
    const struct maker_decoder *d = &m->decoder;
    const bool gated = !is(m, "qwen3") && !is(m, "olmo_hybrid"), wide = is(m, "olmo_hybrid");
    const int q = m->heads * d->head_dim, kv = d->kv_heads * d->head_dim;
    const struct {
        const char *name;
        int out, in;
    } parts[] = {{"q_proj", gated ? 2 * q : q, m->hidden},
                 {"k_proj", kv, m->hidden},
                 {"v_proj", kv, m->hidden},
                 {"o_proj", m->hidden, q}};
    char name[100];
    for (size_t i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "%sself_attn.%s", layer, parts[i].name);
        add_linear_opt(m, rng, parts[i].out, parts[i].in, d->attention_bias, name);
    }
    snprintf(name, sizeof name, "%sself_attn.q_norm", layer);
    add_factor(m, rng, wide ? q : d->head_dim, name);
    snprintf(name, sizeof name, "%sself_attn.k_norm", layer);
    add_factor(m, rng, wide ? kv : d->head_dim, name);
}

static void add_mlp(struct maker_model *m, uint64_t *rng, int inner, const char *prefix)
{
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    char name[100];
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s.%s", prefix, names[i]);
        add_linear_opt(m, rng, i < 2 ? inner : m->hidden, i < 2 ? m->hidden : inner, false, name);
    }
}

static void add_experts(struct maker_model *m, uint64_t *rng, const char *layer)
{
    const struct maker_decoder *d = &m->decoder;
    const int h = m->hidden, inner = d->expert_inner;
    char name[100];
    snprintf(name, sizeof name, "%smlp.gate", layer);
    add_linear_opt(m, rng, d->experts, h, false, name);
    snprintf(name, sizeof name, "%smlp.shared_expert_gate", layer);
    add_linear_opt(m, rng, 1, h, false, name);
    snprintf(name, sizeof name, "%smlp.shared_expert", layer);
    add_mlp(m, rng, d->shared_inner, name);
    for (int e = 0; e < d->experts && !d->stacked; e++) {
        snprintf(name, sizeof name, "%smlp.experts.%d", layer, e);
        add_mlp(m, rng, inner, name);
    }
    if (!d->stacked)
        return;
    snprintf(name, sizeof name, "%smlp.experts.gate_up_proj", layer);
    add_cube(m, rng, d->experts, 2 * inner, h, 1.5f / sqrtf((float)h), name);
    snprintf(name, sizeof name, "%smlp.experts.down_proj", layer);
    add_cube(m, rng, d->experts, h, inner, 1.5f / sqrtf((float)inner), name);
}

static void fill_decoder(struct maker_model *m)
{
    const struct maker_decoder *d = &m->decoder;
    const int h = m->hidden;
    uint64_t rng = m->seed;
    char layer[40], name[100];
    add(m, &rng, m->vocab, h, 0, 1, "embed_tokens.weight");
    for (int i = 0; i < m->layers; i++) {
        const bool linear = d->types[i] == 'l', post = is(m, "olmo_hybrid") && !linear;
        const char *norms[2] = {"input_layernorm", "post_attention_layernorm"};
        if (post) {
            norms[0] = "post_attention_layernorm";
            norms[1] = "post_feedforward_layernorm";
        } else if (d->published) {
            norms[0] = "attention_layer_norm";
            norms[1] = "feedforward_layer_norm";
        }
        snprintf(layer, sizeof layer, "layers.%d.", i);
        for (int k = 0; k < 2; k++) {
            snprintf(name, sizeof name, "%s%s", layer, norms[k]);
            add_factor(m, &rng, h, name);
        }
        if (linear)
            add_gdn(m, &rng, layer);
        else
            add_attention(m, &rng, layer);
        snprintf(name, sizeof name, "%smlp", layer);
        if (maker_layer_is_sparse(m, i))
            add_experts(m, &rng, layer);
        else
            add_mlp(m, &rng, m->intermediate, name);
    }
    add_factor(m, &rng, h, "norm");
    if (m->labels)
        add_linear_opt(m, &rng, m->labels, h, false, "score");
    else if (d->predicts && !d->tied)
        add_linear_opt(m, &rng, m->vocab, h, false, "lm_head");
}

static void fill_modernbert(struct maker_model *m)
{
    const struct maker_modernbert *b = &m->modernbert;
    const int h = m->hidden;
    uint64_t rng = m->seed;
    add(m, &rng, m->vocab, h, 0, 1, "embeddings.tok_embeddings.weight");
    add_norm_opt(m, &rng, h, b->norm_bias, "embeddings.norm");
    for (int i = 0; i < m->layers; i++) {
        static const char *const parts[] = {"attn_norm", "attn.Wqkv", "attn.Wo",
                                            "mlp_norm",  "mlp.Wi",    "mlp.Wo"};
        char name[6][64];
        for (int k = 0; k < 6; k++)
            snprintf(name[k], sizeof name[k], "layers.%d.%s", i, parts[k]);
        if (i > 0)
            add_norm_opt(m, &rng, h, b->norm_bias, name[0]);
        add_linear_opt(m, &rng, 3 * h, h, b->attention_bias, name[1]);
        add_linear_opt(m, &rng, h, h, b->attention_bias, name[2]);
        add_norm_opt(m, &rng, h, b->norm_bias, name[3]);
        add_linear_opt(m, &rng, 2 * m->intermediate, h, b->mlp_bias, name[4]);
        add_linear_opt(m, &rng, h, m->intermediate, b->mlp_bias, name[5]);
    }
    add_norm_opt(m, &rng, h, b->norm_bias, "final_norm");
    if (!m->labels)
        return;
    add_linear_opt(m, &rng, h, h, b->classifier_bias, "head.dense");
    add_norm_opt(m, &rng, h, b->norm_bias, "head.norm");
    add_linear(m, &rng, m->labels, h, "classifier");
}

void maker_model_fill(struct maker_model *m)
{
    if (is(m, "modernbert")) {
        fill_modernbert(m);
        return;
    }
    if (maker_is_decoder(m)) {
        fill_decoder(m);
        return;
    }
    uint64_t rng = m->seed;
    const int e = m->embedding ? m->embedding : m->hidden;
    add(m, &rng, m->vocab, e, 0, 1, "embeddings.word_embeddings.weight");
    add(m, &rng, m->positions, e, 0, 1, "embeddings.position_embeddings.weight");
    if (m->types)
        add(m, &rng, m->types, e, 0, 1, "embeddings.token_type_embeddings.weight");
    add_norm(m, &rng, e, "embeddings.LayerNorm");
    if (e != m->hidden)
        add_linear(m, &rng, m->hidden, e, "embeddings_project");
    if (m->rel_buckets)
        add(m, &rng, m->rel_buckets, m->heads, 0, 1, "encoder.relative_attention_bias.weight");
    for (int i = 0; i < m->layers; i++)
        add_layer(m, &rng, i);
    add_heads(m, &rng);
}

void maker_model_free(struct maker_model *m)
{
    for (size_t i = 0; i < m->n_tensors; i++)
        free(m->tensors[i].data);
    free(m->tensors);
    m->tensors = NULL;
    m->n_tensors = 0;
}

struct maker_tensor *maker_model_find(const struct maker_model *m, const char *fmt, ...)
{
    char name[128];
    va_list args;
    va_start(args, fmt);
    vsnprintf(name, sizeof name, fmt, args);
    va_end(args);
    for (size_t i = 0; i < m->n_tensors; i++)
        if (strcmp(m->tensors[i].name, name) == 0)
            return &m->tensors[i];
    must(false, name);
    return NULL;
}

static const char *class_name(const struct maker_model *m)
{
    return is(m, "bert")          ? "Bert"
           : is(m, "roberta")     ? "Roberta"
           : is(m, "xlm-roberta") ? "XLMRoberta"
           : is(m, "distilbert")  ? "DistilBert"
           : is(m, "mpnet")       ? "MPNet"
           : is(m, "modernbert")  ? "ModernBert"
           : is(m, "qwen3")       ? "Qwen3"
           : is(m, "qwen3_next")  ? "Qwen3Next"
           : is(m, "olmo_hybrid") ? "OlmoHybrid"
           : maker_is_decoder(m)  ? "Qwen3_5"
                                  : "Electra";
}

static void add_modernbert_keys(const struct maker_model *m, json_t *c)
{
    const struct maker_modernbert *b = &m->modernbert;
    json_object_set_new(c, "norm_bias", json_boolean(b->norm_bias));
    json_object_set_new(c, "attention_bias", json_boolean(b->attention_bias));
    json_object_set_new(c, "mlp_bias", json_boolean(b->mlp_bias));
    json_object_set_new(c, "classifier_bias", json_boolean(b->classifier_bias));
    json_object_set_new(c, "classifier_pooling", json_string(b->pooling));
    json_object_set_new(c, "classifier_activation", json_string(b->classifier_activation));
    if (b->local_attention)
        json_object_set_new(c, "local_attention", json_integer(b->local_attention));
    if (b->every && !b->parameters)
        json_object_set_new(c, "global_attn_every_n_layers", json_integer(b->every));
    if (b->types || b->parameters) {
        json_t *types = json_array();
        for (int i = 0; i < m->layers; i++)
            json_array_append_new(
                types,
                json_string(maker_layer_is_full(m, i) ? "full_attention" : "sliding_attention"));
        json_object_set_new(c, "layer_types", types);
    }
    if (b->parameters) {
        json_object_set_new(c, "rope_parameters",
                            json_pack("{s:{s:s,s:f},s:{s:s,s:f}}", "full_attention", "rope_type",
                                      "default", "rope_theta", b->theta[0], "sliding_attention",
                                      "rope_type", "default", "rope_theta", b->theta[1]));
    } else {
        json_object_set_new(c, "global_rope_theta", json_real(b->theta[0]));
        json_object_set_new(c, "local_rope_theta", json_real(b->theta[1]));
    }
}

static void add_layer_types(const struct maker_model *m, json_t *c)
{
    json_t *types = json_array();
    for (int i = 0; i < m->layers; i++)
        json_array_append_new(types,
                              json_string(m->decoder.types[i] == 'f'   ? "full_attention"
                                          : m->decoder.types[i] == 's' ? "sliding_attention"
                                                                       : "linear_attention"));
    json_object_set_new(c, "layer_types", types);
}

static void add_expert_keys(const struct maker_decoder *d, json_t *c)
{
    json_object_set_new(c, "num_experts", json_integer(d->experts));
    if (d->experts == 0)
        return;
    json_object_set_new(c, "num_experts_per_tok", json_integer(d->used));
    json_object_set_new(c, "moe_intermediate_size", json_integer(d->expert_inner));
    json_object_set_new(c, "shared_expert_intermediate_size", json_integer(d->shared_inner));
    json_object_set_new(c, "decoder_sparse_step", json_integer(d->sparse_every));
    json_object_set_new(c, "norm_topk_prob", json_boolean(d->normalize));
    if (d->dense_layer >= 0)
        json_object_set_new(c, "mlp_only_layers", json_pack("[i]", d->dense_layer));
}

static void add_rope_keys(const struct maker_model *m, json_t *c)
{
    const struct maker_decoder *d = &m->decoder;
    const bool partial = !is(m, "qwen3") && !is(m, "olmo_hybrid");
    json_t *to = c;
    if (d->theta == 0) {
        json_object_set_new(c, "rope_parameters", json_pack("{s:n}", "rope_theta"));
        return;
    }
    if (d->parameters) {
        to = json_pack("{s:s}", "rope_type", "default");
        json_object_set_new(c, "rope_parameters", to);
    }
    json_object_set_new(to, "rope_theta", json_real(d->theta));
    if (partial)
        json_object_set_new(to, "partial_rotary_factor", json_real(d->part));
}

static void add_decoder_keys(const struct maker_model *m, json_t *c)
{
    const struct maker_decoder *d = &m->decoder;
    json_object_set_new(c, "rms_norm_eps", json_real(m->eps));
    json_object_set_new(c, "num_key_value_heads", json_integer(d->kv_heads));
    json_object_set_new(c, "head_dim", json_integer(d->head_dim));
    json_object_set_new(c, "attention_bias", json_boolean(d->attention_bias));
    json_object_set_new(c, "tie_word_embeddings", json_boolean(d->tied));
    add_layer_types(m, c);
    add_rope_keys(m, c);
    if (d->window > 0) {
        json_object_set_new(c, "use_sliding_window", json_true());
        json_object_set_new(c, "sliding_window", json_integer(d->window));
    }
    if (is(m, "qwen3"))
        return;
    json_object_set_new(c, "linear_num_key_heads", json_integer(d->key_heads));
    json_object_set_new(c, "linear_num_value_heads", json_integer(d->value_heads));
    json_object_set_new(c, "linear_key_head_dim", json_integer(d->key_dim));
    json_object_set_new(c, "linear_value_head_dim", json_integer(d->value_dim));
    json_object_set_new(c, "linear_conv_kernel_dim", json_integer(d->kernel));
    if (is(m, "olmo_hybrid"))
        json_object_set_new(c, "linear_allow_neg_eigval", json_boolean(d->twice_beta));
    if (is(m, "qwen3_next"))
        add_expert_keys(d, c);
}

/* The text's keys go inside; what says which model it is stays outside. */
static json_t *with_text_config(json_t *c)
{
    json_t *outer = json_pack("{s:s,s:O}", "model_type", "qwen3_5", "architectures",
                              json_object_get(c, "architectures"));
    must(outer != NULL, "config");
    if (json_object_get(c, "id2label"))
        json_object_set(outer, "id2label", json_object_get(c, "id2label"));
    json_object_del(c, "id2label");
    json_object_del(c, "architectures");
    json_object_set_new(c, "model_type", json_string("qwen3_5_text"));
    json_object_set_new(outer, "vision_config", json_pack("{s:i}", "depth", 27));
    json_object_set_new(outer, "image_token_id", json_integer(3));
    json_object_set_new(outer, "text_config", c);
    return outer;
}

json_t *maker_model_config(const struct maker_model *m)
{
    const bool distil = is(m, "distilbert"), modern = is(m, "modernbert");
    char architecture[64];
    snprintf(architecture, sizeof architecture, "%s%s", class_name(m),
             m->labels             ? "ForSequenceClassification"
             : m->decoder.predicts ? "ForCausalLM"
                                   : "Model");
    json_t *c = json_pack("{s:s,s:[s],s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:s}", "model_type", m->family,
                          "architectures", architecture, "vocab_size", m->vocab,
                          distil ? "dim" : "hidden_size", m->hidden,
                          distil ? "n_layers" : "num_hidden_layers", m->layers,
                          distil ? "n_heads" : "num_attention_heads", m->heads,
                          distil ? "hidden_dim" : "intermediate_size", m->intermediate,
                          "max_position_embeddings", m->positions, "pad_token_id", m->pad,
                          distil   ? "activation"
                          : modern ? "hidden_activation"
                                   : "hidden_act",
                          m->activation);
    must(c != NULL, "config");
    if (modern)
        add_modernbert_keys(m, c);
    if (maker_is_decoder(m)) {
        add_decoder_keys(m, c);
        json_object_set_new(c, "pad_token_id", m->pad < 0 ? json_null() : json_integer(m->pad));
    } else if (!distil)
        json_object_set_new(c, modern ? "norm_eps" : "layer_norm_eps", json_real(m->eps));
    if (!distil && !modern && !is(m, "mpnet") && !maker_is_decoder(m))
        json_object_set_new(c, "type_vocab_size", json_integer(m->types));
    if (is(m, "electra"))
        json_object_set_new(c, "embedding_size",
                            json_integer(m->embedding ? m->embedding : m->hidden));
    if (is(m, "mpnet"))
        json_object_set_new(c, "relative_attention_num_buckets", json_integer(m->rel_buckets));
    if (m->labels) {
        json_t *map = json_object();
        for (int i = 0; i < m->labels; i++) {
            char key[16], label[32];
            snprintf(key, sizeof key, "%d", i);
            snprintf(label, sizeof label, "LABEL_%d", i);
            json_object_set_new(map, key, json_string(label));
        }
        json_object_set_new(c, "id2label", map);
    }
    return m->decoder.text_part ? with_text_config(c) : c;
}

/* The name that a checkpoint gives to a tensor of the model. */
static void stored_name(const struct maker_model *m, const struct maker_write_options *o,
                        const char *name, char out[160])
{
    const bool head = strncmp(name, "classifier", 10) == 0 || strncmp(name, "head.", 5) == 0 ||
                      strncmp(name, "pre_classifier", 14) == 0 || strncmp(name, "score", 5) == 0 ||
                      strncmp(name, "lm_head", 7) == 0;
    char stem[128];
    snprintf(stem, sizeof stem, "%s", name);
    if (o->gamma_beta) {
        char *w = strstr(stem, "LayerNorm.weight"), *b = strstr(stem, "LayerNorm.bias");
        if (w)
            strcpy(w, "LayerNorm.gamma");
        if (b)
            strcpy(b, "LayerNorm.beta");
    }
    snprintf(out, 160, "%s%s", o->prefix && !head ? maker_prefix(m) : "", stem);
}

static void add_leftovers(json_t *header, unsigned char **data, size_t *n_data)
{
    static const char *const names[] = {"cls.predictions.bias", "cls.seq_relationship.weight",
                                        "something.else.weight"};
    float values[4] = {1, 2, 3, 4};
    for (size_t i = 0; i < 3; i++) {
        struct maker_tensor t = {.rank = 1, .dims = {4}, .n = 4, .data = values};
        add_entry(header, data, n_data, names[i], &t, MAKER_F32);
    }
    const int64_t ids[3] = {0, 1, 2};
    *data = realloc(*data, *n_data + sizeof ids);
    must(*data != NULL, "memory");
    memcpy(*data + *n_data, ids, sizeof ids);
    json_object_set_new(header, "embeddings.position_ids",
                        json_pack("{s:s,s:[i,i],s:[I,I]}", "dtype", "I64", "shape", 1, 3,
                                  "data_offsets", (json_int_t)*n_data,
                                  (json_int_t)(*n_data + sizeof ids)));
    *n_data += sizeof ids;
}

void maker_model_write(struct maker_model *m, const struct maker_dir *dir,
                       const struct maker_write_options *options)
{
    const int shards = options->shards ? options->shards : 1;
    json_t *map = json_object(), *config = maker_model_config(m);
    for (int s = 0; s < shards; s++) {
        json_t *header = json_object();
        unsigned char *data = NULL;
        size_t n_data = 0;
        char file[64], name[160];
        snprintf(file, sizeof file, "model-%05d-of-%05d.safetensors", s + 1, shards);
        for (size_t i = 0; i < m->n_tensors; i++) {
            struct maker_tensor *t = &m->tensors[i];
            if ((int)(i * (size_t)shards / m->n_tensors) != s ||
                (options->drop && strcmp(options->drop, t->name) == 0))
                continue;
            stored_name(m, options, t->name, name);
            add_entry(header, &data, &n_data, name, t, options->dtype);
            json_object_set_new(map, name, json_string(file));
        }
        if (options->leftovers && s == 0)
            add_leftovers(header, &data, &n_data);
        write_header(dir, options->shards ? file : "model.safetensors", header, data, n_data);
    }
    json_t *index = json_pack("{s:{s:i},s:o}", "metadata", "total_size", 1, "weight_map", map);
    if (options->shards)
        maker_write_json(dir, "model.safetensors.index.json", index);
    maker_write_json(dir, "config.json", config);
    json_decref(index);
    json_decref(config);
}

void assert_says(const char *text, const char *word)
{
    if (!text || !strstr(text, word))
        print_error("\"%s\" is not in \"%s\"\n", word, text ? text : "(none)");
    assert_true(text && strstr(text, word));
}
