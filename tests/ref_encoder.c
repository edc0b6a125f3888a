/* See ref_encoder.h.  Nothing here is fast or shared with what it checks. */
#include "tests/ref_encoder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is(const struct maker_model *m, const char *family)
{
    return strcmp(m->family, family) == 0;
}

double ref_activation(const char *name, double x)
{
    if (strcmp(name, "gelu") == 0)
        return x / 2 * (1 + erf(x / sqrt(2.0)));
    if (strcmp(name, "gelu_new") == 0)
        return x / 2 * (1 + tanh(sqrt(2 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
    if (strcmp(name, "relu") == 0)
        return x > 0 ? x : 0;
    if (strcmp(name, "silu") == 0)
        return x / (1 + exp(-x));
    if (strcmp(name, "tanh") == 0)
        return tanh(x);
    if (strcmp(name, "none") == 0)
        return x;
    abort();
}

/* By what the model's options say, not by what is there. */
static bool has_bias(const struct maker_model *m, const char *name)
{
    const struct maker_modernbert *b = &m->modernbert;
    if (!is(m, "modernbert"))
        return true;
    return strstr(name, "norm")   ? b->norm_bias
           : strstr(name, "attn") ? b->attention_bias
           : strstr(name, "mlp")  ? b->mlp_bias
           : strstr(name, "head") ? b->classifier_bias
                                  : true;
}

/* y = act(x W^T + b), rows of x. */
static void linear(const struct maker_model *m, const char *name, const char *activation,
                   const double *x, size_t n, size_t in, double *y, size_t out)
{
    const struct maker_tensor *w = maker_model_find(m, "%s.weight", name);
    const struct maker_tensor *b = has_bias(m, name) ? maker_model_find(m, "%s.bias", name) : NULL;
    for (size_t r = 0; r < n; r++)
        for (size_t o = 0; o < out; o++) {
            double sum = b ? b->data[o] : 0;
            for (size_t i = 0; i < in; i++)
                sum += x[r * in + i] * w->data[o * in + i];
            y[r * out + o] = ref_activation(activation, sum);
        }
}

static void norm(const struct maker_model *m, const char *name, double *x, size_t n, size_t width)
{
    const struct maker_tensor *w = maker_model_find(m, "%s.weight", name);
    const struct maker_tensor *b = has_bias(m, name) ? maker_model_find(m, "%s.bias", name) : NULL;
    for (size_t r = 0; r < n; r++, x += width) {
        double mean = 0, var = 0;
        for (size_t i = 0; i < width; i++)
            mean += x[i] / (double)width;
        for (size_t i = 0; i < width; i++)
            var += (x[i] - mean) * (x[i] - mean) / (double)width;
        for (size_t i = 0; i < width; i++)
            x[i] = (x[i] - mean) / sqrt(var + m->eps) * w->data[i] + (b ? b->data[i] : 0);
    }
}

/* T5's bidirectional buckets of a distance key - query, written from the paper's code by cases. */
static int bucket(int distance, int buckets)
{
    const int half = buckets / 2, exact = half / 2, far = abs(distance);
    int b = far;
    if (far >= exact) {
        b = exact + (int)(log((double)far / exact) / log(128.0 / exact) * (half - exact));
        b = b < half - 1 ? b : half - 1;
    }
    return b + (distance > 0 ? half : 0);
}

static void attend(const struct maker_model *m, const double *q, const double *k, const double *v,
                   size_t n, double *out)
{
    const size_t heads = (size_t)m->heads, width = (size_t)m->hidden, dim = width / heads;
    const struct maker_tensor *rel =
        m->rel_buckets ? maker_model_find(m, "encoder.relative_attention_bias.weight") : NULL;
    double *p = malloc(n * sizeof *p);
    for (size_t h = 0; h < heads; h++)
        for (size_t i = 0; i < n; i++) {
            double top = -INFINITY, sum = 0;
            for (size_t j = 0; j < n; j++) {
                double dot = 0;
                for (size_t d = 0; d < dim; d++)
                    dot += q[i * width + h * dim + d] * k[j * width + h * dim + d];
                p[j] = dot / sqrt((double)dim);
                if (rel)
                    p[j] += rel->data[(size_t)bucket((int)j - (int)i, m->rel_buckets) * heads + h];
                top = p[j] > top ? p[j] : top;
            }
            for (size_t j = 0; j < n; j++)
                sum += p[j] = exp(p[j] - top);
            for (size_t d = 0; d < dim; d++) {
                double x = 0;
                for (size_t j = 0; j < n; j++)
                    x += p[j] / sum * v[j * width + h * dim + d];
                out[i * width + h * dim + d] = x;
            }
        }
    free(p);
}

static void embed(const struct maker_model *m, const int32_t *ids, const int32_t *types, size_t n,
                  double *x)
{
    const size_t width = (size_t)(m->embedding ? m->embedding : m->hidden);
    const bool counts_pads = is(m, "roberta") || is(m, "xlm-roberta") || is(m, "mpnet");
    const int pad = is(m, "mpnet") ? 1 : m->pad;
    const struct maker_tensor *word = maker_model_find(m, "embeddings.word_embeddings.weight");
    const struct maker_tensor *pos = maker_model_find(m, "embeddings.position_embeddings.weight");
    const struct maker_tensor *type =
        m->types ? maker_model_find(m, "embeddings.token_type_embeddings.weight") : NULL;
    int seen = 0;
    for (size_t t = 0; t < n; t++) {
        size_t p = t;
        if (counts_pads)
            p = (size_t)(ids[t] == pad ? pad : pad + ++seen);
        for (size_t i = 0; i < width; i++) {
            x[t * width + i] =
                (double)word->data[(size_t)ids[t] * width + i] + pos->data[p * width + i];
            if (type)
                x[t * width + i] += type->data[(size_t)(types ? types[t] : 0) * width + i];
        }
    }
    norm(m, "embeddings.LayerNorm", x, n, width);
}

static const char *const *layer_names(const struct maker_model *m)
{
    static const char *const bert[] = {"encoder.layer.%d.attention.self.query",
                                       "encoder.layer.%d.attention.self.key",
                                       "encoder.layer.%d.attention.self.value",
                                       "encoder.layer.%d.attention.output.dense",
                                       "encoder.layer.%d.attention.output.LayerNorm",
                                       "encoder.layer.%d.intermediate.dense",
                                       "encoder.layer.%d.output.dense",
                                       "encoder.layer.%d.output.LayerNorm"};
    static const char *const distilbert[] = {
        "transformer.layer.%d.attention.q_lin", "transformer.layer.%d.attention.k_lin",
        "transformer.layer.%d.attention.v_lin", "transformer.layer.%d.attention.out_lin",
        "transformer.layer.%d.sa_layer_norm",   "transformer.layer.%d.ffn.lin1",
        "transformer.layer.%d.ffn.lin2",        "transformer.layer.%d.output_layer_norm"};
    static const char *const mpnet[] = {
        "encoder.layer.%d.attention.attn.q",    "encoder.layer.%d.attention.attn.k",
        "encoder.layer.%d.attention.attn.v",    "encoder.layer.%d.attention.attn.o",
        "encoder.layer.%d.attention.LayerNorm", "encoder.layer.%d.intermediate.dense",
        "encoder.layer.%d.output.dense",        "encoder.layer.%d.output.LayerNorm"};
    return is(m, "distilbert") ? distilbert : is(m, "mpnet") ? mpnet : bert;
}

/* "encoder.layer.%d.x" with the number in its place. */
static void numbered(const char *pattern, int layer, char out[128])
{
    const char *hole = strstr(pattern, "%d");
    snprintf(out, 128, "%.*s%d%s", (int)(hole - pattern), pattern, layer, hole + 2);
}

static void layer(const struct maker_model *m, int index, const double *x, size_t n, double *y)
{
    const size_t hidden = (size_t)m->hidden, ffn = (size_t)m->intermediate;
    char names[8][128];
    double *qkv[3], *a = calloc(n * hidden, sizeof *a), *f = calloc(n * ffn, sizeof *f);
    for (int i = 0; i < 8; i++)
        numbered(layer_names(m)[i], index, names[i]);
    for (int i = 0; i < 3; i++) {
        qkv[i] = calloc(n * hidden, sizeof *qkv[i]);
        linear(m, names[i], "none", x, n, hidden, qkv[i], hidden);
    }
    attend(m, qkv[0], qkv[1], qkv[2], n, a);
    linear(m, names[3], "none", a, n, hidden, y, hidden);
    for (size_t i = 0; i < n * hidden; i++)
        y[i] += x[i];
    norm(m, names[4], y, n, hidden);
    memcpy(a, y, n * hidden * sizeof *a);
    linear(m, names[5], m->activation, a, n, hidden, f, ffn);
    linear(m, names[6], "none", f, n, ffn, y, hidden);
    for (size_t i = 0; i < n * hidden; i++)
        y[i] += a[i];
    norm(m, names[7], y, n, hidden);
    for (int i = 0; i < 3; i++)
        free(qkv[i]);
    free(a);
    free(f);
}

/* ---- ModernBERT -------------------------------------------------------------------------------
 */

/* The pair (a, b), dims i and i + dim/2 of a head, is a complex number times e^(i angle). */
static void turn(const struct maker_model *m, bool full, double *x, size_t n)
{
    const struct maker_modernbert *b = &m->modernbert;
    const size_t width = (size_t)m->hidden, dim = width / (size_t)m->heads;
    const double *given = b->inv_freq[full ? 0 : 1];
    const double scale = b->rope_scale != 0 ? b->rope_scale : 1;
    for (size_t t = 0; t < n; t++)
        for (size_t c = 0; c < width; c++) {
            const size_t i = c % dim;
            if (i >= dim / 2)
                continue;
            const double f =
                given ? given[i] : pow(b->theta[full ? 0 : 1], -2.0 * (double)i / (double)dim);
            const double angle = (double)t * f;
            double *p = x + t * width + c, *q = p + dim / 2;
            const double a = *p, d = *q;
            *p = scale * (a * cos(angle) - d * sin(angle));
            *q = scale * (d * cos(angle) + a * sin(angle));
        }
}

/* Softmax over the keys that a query sees: all, or those at most `half` away. */
static void attend_near(const struct maker_model *m, const double *const qkv[3], size_t n,
                        size_t half, double *out)
{
    const size_t heads = (size_t)m->heads, width = (size_t)m->hidden, dim = width / heads;
    for (size_t h = 0; h < heads; h++)
        for (size_t i = 0; i < n; i++) {
            double sum = 0, top = -INFINITY;
            double *to = out + i * width + h * dim;
            for (int pass = 0; pass < 2; pass++)
                for (size_t j = 0; j < n; j++) {
                    double dot = 0;
                    if ((j > i ? j - i : i - j) > half)
                        continue;
                    for (size_t d = 0; d < dim; d++)
                        dot += qkv[0][i * width + h * dim + d] * qkv[1][j * width + h * dim + d];
                    dot /= sqrt((double)dim);
                    if (pass == 0) {
                        top = dot > top ? dot : top;
                        continue;
                    }
                    sum += exp(dot - top);
                    for (size_t d = 0; d < dim; d++)
                        to[d] += exp(dot - top) * qkv[2][j * width + h * dim + d];
                }
            for (size_t d = 0; d < dim; d++)
                to[d] /= sum;
        }
}

static void add_attention(const struct maker_model *m, int index, size_t n, double *x)
{
    const size_t hidden = (size_t)m->hidden;
    const int whole = m->modernbert.local_attention ? m->modernbert.local_attention : 128;
    const bool full = maker_layer_is_full(m, index);
    char name[3][64];
    double *h = calloc(n * hidden, sizeof *h), *a = calloc(n * hidden, sizeof *a);
    double *all = calloc(3 * n * hidden, sizeof *all), *part[3];
    snprintf(name[0], 64, "layers.%d.attn_norm", index);
    snprintf(name[1], 64, "layers.%d.attn.Wqkv", index);
    snprintf(name[2], 64, "layers.%d.attn.Wo", index);
    memcpy(h, x, n * hidden * sizeof *h);
    if (index > 0)
        norm(m, name[0], h, n, hidden);
    linear(m, name[1], "none", h, n, hidden, all, 3 * hidden);
    for (size_t k = 0; k < 3; k++) {
        part[k] = calloc(n * hidden, sizeof *part[k]);
        for (size_t t = 0; t < n; t++)
            memcpy(part[k] + t * hidden, all + (3 * t + k) * hidden, hidden * sizeof *all);
        if (k < 2)
            turn(m, full, part[k], n);
    }
    attend_near(m, (const double *const[]){part[0], part[1], part[2]}, n,
                full ? n : (size_t)(whole / 2), a);
    linear(m, name[2], "none", a, n, hidden, h, hidden);
    for (size_t i = 0; i < n * hidden; i++)
        x[i] += h[i];
    for (size_t k = 0; k < 3; k++)
        free(part[k]);
    free(all);
    free(a);
    free(h);
}

static void add_ffn(const struct maker_model *m, int index, size_t n, double *x)
{
    const size_t hidden = (size_t)m->hidden, ffn = (size_t)m->intermediate;
    char name[3][64];
    double *h = calloc(n * hidden, sizeof *h), *up = calloc(2 * n * ffn, sizeof *up);
    double *f = calloc(n * ffn, sizeof *f);
    snprintf(name[0], 64, "layers.%d.mlp_norm", index);
    snprintf(name[1], 64, "layers.%d.mlp.Wi", index);
    snprintf(name[2], 64, "layers.%d.mlp.Wo", index);
    memcpy(h, x, n * hidden * sizeof *h);
    norm(m, name[0], h, n, hidden);
    linear(m, name[1], "none", h, n, hidden, up, 2 * ffn);
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < ffn; i++)
            f[t * ffn + i] =
                ref_activation(m->activation, up[2 * t * ffn + i]) * up[(2 * t + 1) * ffn + i];
    linear(m, name[2], "none", f, n, ffn, h, hidden);
    for (size_t i = 0; i < n * hidden; i++)
        x[i] += h[i];
    free(f);
    free(up);
    free(h);
}

static void modernbert_head(const struct maker_model *m, const double *last, struct ref_result *r)
{
    const size_t h = r->hidden;
    double *x = calloc(h, sizeof *x), *y = calloc(h, sizeof *y);
    const size_t rows = strcmp(m->modernbert.pooling, "mean") == 0 ? r->n : 1;
    for (size_t t = 0; t < rows; t++)
        for (size_t i = 0; i < h; i++)
            x[i] += last[t * h + i] / (double)rows;
    linear(m, "head.dense", m->modernbert.classifier_activation, x, 1, h, y, h);
    norm(m, "head.norm", y, 1, h);
    linear(m, "classifier", "none", y, 1, h, r->logits, r->labels);
    free(y);
    free(x);
}

/* The last state is the one after the final norm. */
static void modernbert(const struct maker_model *m, const int32_t *ids, struct ref_result *r)
{
    const size_t hidden = r->hidden, size = r->n * hidden;
    const struct maker_tensor *tok = maker_model_find(m, "embeddings.tok_embeddings.weight");
    for (size_t t = 0; t < r->n; t++)
        for (size_t i = 0; i < hidden; i++)
            r->states[t * hidden + i] = tok->data[(size_t)ids[t] * hidden + i];
    norm(m, "embeddings.norm", r->states, r->n, hidden);
    for (size_t k = 0; k < r->layers; k++) {
        double *x = r->states + (k + 1) * size;
        memcpy(x, x - size, size * sizeof *x);
        add_attention(m, (int)k, r->n, x);
        add_ffn(m, (int)k, r->n, x);
    }
    double *last = r->states + r->layers * size;
    norm(m, "final_norm", last, r->n, hidden);
    if (m->labels)
        modernbert_head(m, last, r);
}

/* -----------------------------------------------------------------------------------------------
 */

static void heads(const struct maker_model *m, const double *first, struct ref_result *r)
{
    const size_t h = r->hidden;
    if (m->pooler || (m->labels && is(m, "bert")))
        linear(m, "pooler.dense", "tanh", first, 1, h, r->pooler, h);
    if (!m->labels)
        return;
    if (is(m, "bert")) {
        linear(m, "classifier", "none", r->pooler, 1, h, r->logits, r->labels);
        return;
    }
    double *x = calloc(h, sizeof *x);
    if (is(m, "distilbert")) {
        linear(m, "pre_classifier", "relu", first, 1, h, x, h);
        linear(m, "classifier", "none", x, 1, h, r->logits, r->labels);
    } else {
        linear(m, "classifier.dense", is(m, "electra") ? "gelu" : "tanh", first, 1, h, x, h);
        linear(m, "classifier.out_proj", "none", x, 1, h, r->logits, r->labels);
    }
    free(x);
}

struct ref_result ref_encode(const struct maker_model *m, const int32_t *ids, const int32_t *types,
                             size_t n)
{
    const size_t hidden = (size_t)m->hidden, layers = (size_t)m->layers;
    struct ref_result r = {.n = n, .hidden = hidden, .layers = layers, .labels = (size_t)m->labels};
    r.states = calloc((layers + 1) * n * hidden + 1, sizeof(double));
    r.pooler = calloc(hidden, sizeof(double));
    r.logits = calloc(r.labels + 1, sizeof(double));
    if (is(m, "modernbert")) {
        modernbert(m, ids, &r);
        return r;
    }
    if (m->embedding && m->embedding != m->hidden) {
        const size_t e = (size_t)m->embedding;
        double *x = calloc(n * e, sizeof *x);
        embed(m, ids, types, n, x);
        linear(m, "embeddings_project", "none", x, n, e, r.states, hidden);
        free(x);
    } else {
        embed(m, ids, types, n, r.states);
    }
    for (size_t i = 0; i < layers; i++)
        layer(m, (int)i, r.states + i * n * hidden, n, r.states + (i + 1) * n * hidden);
    heads(m, r.states + layers * n * hidden, &r);
    return r;
}

void ref_free(struct ref_result *r)
{
    free(r->states);
    free(r->pooler);
    free(r->logits);
}
