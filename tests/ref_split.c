/* See ref_split.h.  Nothing here is fast or shared with what it checks. */
#include "tests/ref_split.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIM 64

/* ---- checkpoints ------------------------------------------------------------------------------
 */

struct split_maker split_maker_default(void)
{
    return (struct split_maker){.heads = 2,
                                .inter = 48,
                                .vocab = 60,
                                .layers = 4,
                                .every = 3,
                                .window = 6,
                                .top = 2,
                                .max_segments = 4,
                                .question_layers = 2,
                                .kv_heads = 1,
                                .theta = {160000, 10000},
                                .eps = 1e-5,
                                .seed = 11};
}

int split_maker_width(const struct split_maker *m)
{
    return m->heads * DIM;
}

int split_maker_memory_width(const struct split_maker *m)
{
    return 2 * m->question_layers * m->kv_heads * DIM;
}

static void add(struct split_maker *m, uint64_t *rng, int rows, int cols, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
static void add(struct split_maker *m, uint64_t *rng, int rows, int cols, const char *fmt, ...)
{
    m->tensors = realloc(m->tensors, (m->n_tensors + 1) * sizeof *m->tensors);
    struct maker_tensor *t = m->tensors ? &m->tensors[m->n_tensors++] : NULL;
    if (!t)
        abort();
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
    if (!t->data)
        abort();
    const float around = strstr(t->name, "norm") ? 1 : 0;
    const float scale = rows ? 1.5f / sqrtf((float)cols) : 0.4f;
    for (size_t i = 0; i < t->n; i++)
        t->data[i] = around + scale * maker_random_float(rng);
}

static void add_layer(struct split_maker *m, uint64_t *rng, const char *layer, bool first)
{
    const int d = split_maker_width(m);
    if (!first)
        add(m, rng, 0, d, "%s.attn_norm.weight", layer);
    add(m, rng, 3 * d, d, "%s.attn.Wqkv.weight", layer);
    add(m, rng, d, d, "%s.attn.Wo.weight", layer);
    add(m, rng, 0, d, "%s.mlp_norm.weight", layer);
    add(m, rng, 2 * m->inter, d, "%s.mlp.Wi.weight", layer);
    add(m, rng, d, m->inter, "%s.mlp.Wo.weight", layer);
}

void split_maker_fill(struct split_maker *m)
{
    const int d = split_maker_width(m), kv = m->kv_heads * DIM;
    uint64_t rng = m->seed;
    char layer[64];
    add(m, &rng, m->vocab, d, "state.embeddings.tok_embeddings.weight");
    add(m, &rng, 0, d, "state.embeddings.norm.weight");
    for (int i = 0; i < m->layers; i++) {
        snprintf(layer, sizeof layer, "state.layers.%d", i);
        add_layer(m, &rng, layer, i == 0);
    }
    add(m, &rng, 0, d, "state.final_norm.weight");
    add(m, &rng, m->max_segments, d, "state.segment_emb.weight");
    add(m, &rng, 3, d, "type_emb.weight");
    for (int i = 0; i < m->question_layers; i++) {
        snprintf(layer, sizeof layer, "question.layers.%d", i);
        add_layer(m, &rng, layer, false);
        add(m, &rng, 0, d, "%s.cross_norm.weight", layer);
        add(m, &rng, d, d, "%s.cross.Wq.weight", layer);
        add(m, &rng, kv, d, "%s.cross.Wk.weight", layer);
        add(m, &rng, kv, d, "%s.cross.Wv.weight", layer);
        add(m, &rng, d, d, "%s.cross.Wo.weight", layer);
    }
    add(m, &rng, 0, d, "question.final_norm.weight");
    add(m, &rng, d, 4, "ord_emb.weight");
    add(m, &rng, 0, d, "scorer.norm.weight");
    add(m, &rng, d, d, "scorer.Wa.weight");
    add(m, &rng, 1, d, "scorer.Wb.weight");
    add(m, &rng, 0, 3, "scorer.type_bias");
}

void split_maker_free(struct split_maker *m)
{
    for (size_t i = 0; i < m->n_tensors; i++)
        free(m->tensors[i].data);
    free(m->tensors);
    m->tensors = NULL;
    m->n_tensors = 0;
}

struct maker_tensor *split_maker_find(const struct split_maker *m, const char *fmt, ...)
{
    char name[128];
    va_list args;
    va_start(args, fmt);
    vsnprintf(name, sizeof name, fmt, args);
    va_end(args);
    for (size_t i = 0; i < m->n_tensors; i++)
        if (strcmp(m->tensors[i].name, name) == 0)
            return &m->tensors[i];
    fprintf(stderr, "ref_split: no tensor %s\n", name);
    abort();
}

json_t *split_maker_config(const struct split_maker *m)
{
    return json_pack(
        "{s:s,s:s,s:s,s:s, s:{s:s,s:i,s:i,s:i,s:{s:i,s:i,s:i,s:i,s:i}}, s:{s:i,s:i,s:i,s:i,s:i},"
        " s:{s:i,s:i,s:i,s:f,s:f,s:i,s:i,s:i}, s:{s:i,s:i,s:i,s:i}, s:s,s:f}",
        "format", "kime/1", "family", "kime-v1", "id", "kime-v1-tiny", "version", "0.0.0",
        "tokenizer", "kind", "bpe-bytelevel", "cls", 1, "sep", 2, "pad", 0, "specials", "opt", 3,
        "no", 4, "yes", 5, "cls_s", 6, "cls_q", 7, "dims", "d", split_maker_width(m), "heads",
        m->heads, "head_dim", DIM, "inter", m->inter, "vocab", m->vocab, "state_tower", "layers",
        m->layers, "global_every", m->every, "window", m->window, "rope_theta_global", m->theta[0],
        "rope_theta_local", m->theta[1], "segment_top_layers", m->top, "max_tokens", 256,
        "max_segments", m->max_segments, "question_tower", "layers", m->question_layers, "kv_heads",
        m->kv_heads, "max_options_per_chunk", 8, "max_tokens", 64, "gelu", "erf", "norm_eps",
        m->eps);
}

void split_maker_write(struct split_maker *m, const struct maker_dir *dir, enum maker_dtype dtype)
{
    json_t *config = split_maker_config(m);
    if (!config)
        abort();
    maker_write_json(dir, "kime.json", config);
    json_decref(config);
    maker_write_tensors(dir, "model.safetensors", m->tensors, m->n_tensors, dtype);
}

/* ---- rows -------------------------------------------------------------------------------------
 */

static double *zeros(size_t n)
{
    double *p = calloc(n ? n : 1, sizeof *p);
    if (!p)
        abort();
    return p;
}

static double *copied(const double *x, size_t n)
{
    double *p = zeros(n);
    memcpy(p, x, n * sizeof *p);
    return p;
}

/* x W^T, to be freed. */
static double *linear(const struct split_maker *m, const char *name, const double *x, size_t n)
{
    const struct maker_tensor *w = split_maker_find(m, "%s", name);
    const size_t out = (size_t)w->dims[0], in = (size_t)w->dims[1];
    double *y = zeros(n * out);
    for (size_t r = 0; r < n; r++)
        for (size_t o = 0; o < out; o++)
            for (size_t i = 0; i < in; i++)
                y[r * out + o] += x[r * in + i] * (double)w->data[o * in + i];
    return y;
}

static void norm(const struct split_maker *m, const char *name, double *x, size_t n)
{
    const struct maker_tensor *w = split_maker_find(m, "%s", name);
    for (size_t r = 0; r < n; r++, x += w->n) {
        double mean = 0, var = 0;
        for (size_t i = 0; i < w->n; i++)
            mean += x[i] / (double)w->n;
        for (size_t i = 0; i < w->n; i++)
            var += (x[i] - mean) * (x[i] - mean) / (double)w->n;
        for (size_t i = 0; i < w->n; i++)
            x[i] = (x[i] - mean) / sqrt(var + m->eps) * (double)w->data[i];
    }
}

/* x += what f gives; f is freed. */
static void add_to(double *x, double *f, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] += f[i];
    free(f);
}

static double gelu(double x)
{
    return x / 2 * (1 + erf(x / sqrt(2.0)));
}

static double *embed(const struct split_maker *m, const int32_t *ids, size_t n)
{
    const size_t d = (size_t)split_maker_width(m);
    const struct maker_tensor *tok = split_maker_find(m, "state.embeddings.tok_embeddings.weight");
    double *x = zeros(n * d);
    for (size_t r = 0; r < n; r++)
        for (size_t i = 0; i < d; i++)
            x[r * d + i] = (double)tok->data[(size_t)ids[r] * d + i];
    norm(m, "state.embeddings.norm.weight", x, n);
    return x;
}

/* Row number `table_row` of a table to each of n rows. */
static void add_row(const struct maker_tensor *table, size_t row, double *x, size_t n)
{
    const size_t d = (size_t)table->dims[1];
    for (size_t r = 0; r < n; r++)
        for (size_t i = 0; i < d; i++)
            x[r * d + i] += (double)table->data[row * d + i];
}

/* ---- attention --------------------------------------------------------------------------------
 */

/* Heads of q and k in a row of q, k, v; the pair (i, i + 32) turns. */
static void turn(double *row, size_t n_heads, size_t position, double theta)
{
    for (size_t h = 0; h < n_heads; h++)
        for (size_t i = 0; i < DIM / 2; i++) {
            const double a = (double)position * pow(theta, -2.0 * (double)i / DIM);
            double *x = row + h * DIM + i, *y = x + DIM / 2;
            const double turned = *x * cos(a) - *y * sin(a);
            *y = *y * cos(a) + *x * sin(a);
            *x = turned;
        }
}

/* One head of one row: over the keys j < n with sees[j] (NULL: all), which lie `stride` apart. */
static void attend(const double *q, const double *k, const double *v, size_t n, size_t stride,
                   const bool *sees, double *out)
{
    double *p = zeros(n), top = -INFINITY, sum = 0;
    for (size_t j = 0; j < n; j++) {
        for (size_t i = 0; i < DIM; i++)
            p[j] += q[i] * k[j * stride + i] / 8;
        if (!sees || sees[j])
            top = fmax(top, p[j]);
    }
    for (size_t j = 0; j < n; j++)
        sum += p[j] = !sees || sees[j] ? exp(p[j] - top) : 0;
    for (size_t j = 0; j < n; j++)
        for (size_t i = 0; i < DIM; i++)
            out[i] += p[j] / sum * v[j * stride + i];
    free(p);
}

/* Who sees whom (n x n), and where everybody is. */
struct view {
    bool *sees;
    size_t *position;
    double theta;
};

/* x += attention of norm(x). */
static void self_attention(const struct split_maker *m, const char *layer, const struct view *view,
                           double *x, size_t n)
{
    const size_t d = (size_t)split_maker_width(m), heads = (size_t)m->heads;
    char name[128];
    double *h = copied(x, n * d), *a = zeros(n * d);
    if (strcmp(layer, "state.layers.0") != 0) {
        snprintf(name, sizeof name, "%s.attn_norm.weight", layer);
        norm(m, name, h, n);
    }
    snprintf(name, sizeof name, "%s.attn.Wqkv.weight", layer);
    double *qkv = linear(m, name, h, n);
    for (size_t r = 0; r < n; r++)
        turn(qkv + r * 3 * d, 2 * heads, view->position[r], view->theta);
    for (size_t r = 0; r < n; r++)
        for (size_t i = 0; i < heads; i++)
            attend(qkv + r * 3 * d + i * DIM, qkv + d + i * DIM, qkv + 2 * d + i * DIM, n, 3 * d,
                   view->sees + r * n, a + r * d + i * DIM);
    snprintf(name, sizeof name, "%s.attn.Wo.weight", layer);
    add_to(x, linear(m, name, a, n), n * d);
    free(h);
    free(a);
    free(qkv);
}

static void cross_attention(const struct split_maker *m, int index, const struct ref_memory *memory,
                            double *x, size_t n)
{
    const size_t d = (size_t)split_maker_width(m), heads = (size_t)m->heads;
    const size_t kv = (size_t)m->kv_heads * DIM, stride = (size_t)split_maker_memory_width(m);
    char name[128];
    double *h = copied(x, n * d), *a = zeros(n * d);
    snprintf(name, sizeof name, "question.layers.%d.cross_norm.weight", index);
    norm(m, name, h, n);
    snprintf(name, sizeof name, "question.layers.%d.cross.Wq.weight", index);
    double *q = linear(m, name, h, n);
    const double *k = memory->rows + 2 * (size_t)index * kv, *v = k + kv;
    for (size_t r = 0; r < n; r++)
        for (size_t i = 0; i < heads; i++) {
            const size_t shared = i / (heads / (size_t)m->kv_heads) * DIM;
            attend(q + r * d + i * DIM, k + shared, v + shared, memory->n, stride, NULL,
                   a + r * d + i * DIM);
        }
    snprintf(name, sizeof name, "question.layers.%d.cross.Wo.weight", index);
    add_to(x, linear(m, name, a, n), n * d);
    free(h);
    free(a);
    free(q);
}

static void feed_forward(const struct split_maker *m, const char *layer, double *x, size_t n)
{
    const size_t d = (size_t)split_maker_width(m), inter = (size_t)m->inter;
    char name[128];
    double *h = copied(x, n * d), *g = zeros(n * inter);
    snprintf(name, sizeof name, "%s.mlp_norm.weight", layer);
    norm(m, name, h, n);
    snprintf(name, sizeof name, "%s.mlp.Wi.weight", layer);
    double *u = linear(m, name, h, n);
    for (size_t r = 0; r < n; r++)
        for (size_t i = 0; i < inter; i++)
            g[r * inter + i] = gelu(u[r * 2 * inter + i]) * u[r * 2 * inter + inter + i];
    snprintf(name, sizeof name, "%s.mlp.Wo.weight", layer);
    add_to(x, linear(m, name, g, n), n * d);
    free(h);
    free(g);
    free(u);
}

/* ---- states -----------------------------------------------------------------------------------
 */

static void state_layers(const struct split_maker *m, int first, int end, double *x, size_t n)
{
    struct view view = {calloc(n * n, 1), calloc(n, sizeof *view.position), 0};
    for (int l = first; l < end; l++) {
        const bool full = l % (m->every ? m->every : 1) == 0;
        char layer[64];
        for (size_t a = 0; a < n; a++)
            for (size_t b = 0; b < n; b++) {
                const size_t apart = a > b ? a - b : b - a;
                view.sees[a * n + b] = full || apart <= (size_t)m->window / 2;
                view.position[a] = a;
            }
        view.theta = m->theta[!full];
        snprintf(layer, sizeof layer, "state.layers.%d", l);
        self_attention(m, layer, &view, x, n);
        feed_forward(m, layer, x, n);
    }
    free(view.sees);
    free(view.position);
}

/* Frees x. */
static struct ref_memory keep(const struct split_maker *m, double *x, size_t n)
{
    const size_t d = (size_t)split_maker_width(m), kv = (size_t)m->kv_heads * DIM;
    const size_t width = (size_t)split_maker_memory_width(m);
    struct ref_memory memory = {n, zeros(n * width), zeros(d)};
    double length = 0;
    norm(m, "state.final_norm.weight", x, n);
    for (size_t part = 0; part < 2 * (size_t)m->question_layers; part++) {
        char name[128];
        snprintf(name, sizeof name, "question.layers.%zu.cross.%s.weight", part / 2,
                 part % 2 ? "Wv" : "Wk");
        double *y = linear(m, name, x, n);
        for (size_t r = 0; r < n; r++)
            memcpy(memory.rows + r * width + part * kv, y + r * kv, kv * sizeof *y);
        free(y);
    }
    for (size_t i = 0; i < d; i++) {
        for (size_t r = 0; r < n; r++)
            memory.pooled[i] += x[r * d + i] / (double)n;
        length += memory.pooled[i] * memory.pooled[i];
    }
    for (size_t i = 0; i < d; i++)
        memory.pooled[i] /= sqrt(length);
    free(x);
    return memory;
}

struct ref_memory ref_state(const struct split_maker *m, const int32_t *ids, size_t n)
{
    double *x = embed(m, ids, n);
    state_layers(m, 0, m->layers, x, n);
    return keep(m, x, n);
}

struct ref_memory ref_segments(const struct split_maker *m, const int32_t *ids,
                               const size_t *lengths, size_t n_segments)
{
    const size_t d = (size_t)split_maker_width(m);
    const struct maker_tensor *numbers = split_maker_find(m, "state.segment_emb.weight");
    size_t n = 0, at = 0;
    for (size_t s = 0; s < n_segments; s++)
        n += lengths[s];
    double *x = zeros(n * d);
    for (size_t s = 0; s < n_segments; s++) {
        double *low = embed(m, ids + at, lengths[s]);
        state_layers(m, 0, m->layers - m->top, low, lengths[s]);
        const size_t last = (size_t)m->max_segments - 1;
        add_row(numbers, s < last ? s : last, low, lengths[s]);
        memcpy(x + at * d, low, lengths[s] * d * sizeof *x);
        free(low);
        at += lengths[s];
    }
    state_layers(m, m->layers - m->top, m->layers, x, n);
    return keep(m, x, n);
}

void ref_memory_free(struct ref_memory *memory)
{
    free(memory->rows);
    free(memory->pooled);
    memset(memory, 0, sizeof *memory);
}

/* ---- questions --------------------------------------------------------------------------------
 */

/* Option k + 1 from marker k on, and before the first one the header, 0. */
static struct view question_view(const struct split_maker *m, size_t n, const int32_t *markers,
                                 size_t n_markers)
{
    struct view view = {calloc(n * n, 1), calloc(n, sizeof *view.position), m->theta[0]};
    size_t *option = calloc(n, sizeof *option);
    for (size_t r = 0; r < n; r++)
        for (size_t k = 0; k < n_markers; k++)
            option[r] += r >= (size_t)markers[k];
    for (size_t a = 0; a < n; a++) {
        const size_t header = n_markers ? (size_t)markers[0] : n;
        view.position[a] = option[a] ? header + a - (size_t)markers[option[a] - 1] : a;
        for (size_t b = 0; b < n; b++) {
            const bool marker = option[b] && b == (size_t)markers[option[b] - 1];
            view.sees[a * n + b] = !option[b] || marker || option[a] == option[b];
        }
    }
    free(option);
    return view;
}

/* Where level i of k stands, to its row. */
static void add_level(const struct split_maker *m, size_t i, size_t k, double *row)
{
    const struct maker_tensor *w = split_maker_find(m, "ord_emb.weight");
    const double x = k > 1 ? (double)i / (double)(k - 1) : 0, a = acos(-1.0) * x;
    const double features[4] = {x, x * x, sin(a), cos(a)};
    for (size_t j = 0; j < (size_t)w->dims[0]; j++)
        for (size_t c = 0; c < 4; c++)
            row[j] += (double)w->data[j * 4 + c] * features[c];
}

void ref_question(const struct split_maker *m, const struct ref_memory *memory, int type,
                  const int32_t *ids, size_t n, const int32_t *markers, size_t n_markers,
                  double *logits)
{
    const size_t d = (size_t)split_maker_width(m);
    struct view view = question_view(m, n, markers, n_markers);
    double *x = embed(m, ids, n), *rows = zeros(n_markers * d);
    add_row(split_maker_find(m, "type_emb.weight"), (size_t)type, x, n);
    for (int l = 0; l < m->question_layers; l++) {
        char layer[64];
        snprintf(layer, sizeof layer, "question.layers.%d", l);
        self_attention(m, layer, &view, x, n);
        cross_attention(m, l, memory, x, n);
        feed_forward(m, layer, x, n);
    }
    norm(m, "question.final_norm.weight", x, n);
    for (size_t k = 0; k < n_markers; k++) {
        memcpy(rows + k * d, x + (size_t)markers[k] * d, d * sizeof *rows);
        if (type == 1)
            add_level(m, k, n_markers, rows + k * d);
    }
    norm(m, "scorer.norm.weight", rows, n_markers);
    double *a = linear(m, "scorer.Wa.weight", rows, n_markers);
    for (size_t i = 0; i < n_markers * d; i++)
        a[i] = gelu(a[i]);
    double *z = linear(m, "scorer.Wb.weight", a, n_markers);
    for (size_t k = 0; k < n_markers; k++)
        logits[k] = z[k] + (double)split_maker_find(m, "scorer.type_bias")->data[type];
    free(view.sees);
    free(view.position);
    free(x);
    free(rows);
    free(a);
    free(z);
}
