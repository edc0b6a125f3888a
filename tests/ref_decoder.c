/* See ref_decoder.h.  Nothing here is fast or shared with what it checks: the delta rule is its
 * recurrence, one token after the other, and every weight is looked up where the checkpoint has it.
 */
#include "tests/ref_decoder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is(const struct maker_model *m, const char *family)
{
    return strcmp(m->family, family) == 0;
}

static bool is_gated(const struct maker_model *m)
{
    return !is(m, "qwen3") && !is(m, "olmo_hybrid");
}

static double *numbers(size_t n)
{
    double *x = calloc(n ? n : 1, sizeof *x);
    if (!x)
        abort();
    return x;
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* Row `row` of a matrix [rows, cols] times x. */
static double product(const struct maker_tensor *w, size_t row, size_t cols, const double *x)
{
    double sum = 0;
    for (size_t i = 0; i < cols; i++)
        sum += x[i] * w->data[row * cols + i];
    return sum;
}

static void rms(double *x, size_t n, const struct maker_tensor *w, double offset, double eps)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (size_t i = 0; i < n; i++)
        x[i] = x[i] / sqrt(sum / (double)n + eps) * (offset + w->data[i]);
}

/* A norm of the family's usual kind. */
static void norm(const struct maker_model *m, const char *name, double *x, size_t n)
{
    rms(x, n, maker_model_find(m, "%s.weight", name), is_gated(m) ? 1 : 0, m->eps);
}

/* ---- attention --------------------------------------------------------------------------------
 */

static void turn(const struct maker_model *m, double *head, size_t position)
{
    const size_t turned = (size_t)(m->decoder.head_dim * m->decoder.part), half = turned / 2;
    for (size_t i = 0; i < half && m->decoder.theta > 0; i++) {
        const double a =
            (double)position * pow(m->decoder.theta, -2.0 * (double)i / (double)turned);
        const double x = head[i], y = head[i + half];
        head[i] = x * cos(a) - y * sin(a);
        head[i + half] = y * cos(a) + x * sin(a);
    }
}

/* With a bias where the model has them. */
static double projected(const struct maker_model *m, int layer, const char *name, size_t row,
                        const double *x)
{
    const struct maker_tensor *w =
        maker_model_find(m, "layers.%d.self_attn.%s.weight", layer, name);
    double y = product(w, row, (size_t)m->hidden, x);
    if (m->decoder.attention_bias)
        y += maker_model_find(m, "layers.%d.self_attn.%s.bias", layer, name)->data[row];
    return y;
}

/* q, k, v of one token, normed and turned; the gates of q's heads. */
static void project(const struct maker_model *m, int layer, size_t t, const double *x, double *q,
                    double *k, double *v, double *gate)
{
    const size_t dim = (size_t)m->decoder.head_dim, heads = (size_t)m->heads;
    const size_t kv = (size_t)m->decoder.kv_heads;
    char name[80];
    for (size_t h = 0; h < heads; h++)
        for (size_t i = 0; i < dim; i++) {
            const size_t row = is_gated(m) ? 2 * h * dim + i : h * dim + i;
            q[h * dim + i] = projected(m, layer, "q_proj", row, x);
            gate[h * dim + i] = is_gated(m) ? projected(m, layer, "q_proj", row + dim, x) : 0;
        }
    for (size_t i = 0; i < kv * dim; i++) {
        k[i] = projected(m, layer, "k_proj", i, x);
        v[i] = projected(m, layer, "v_proj", i, x);
    }
    const size_t wide = is(m, "olmo_hybrid");
    snprintf(name, sizeof name, "layers.%d.self_attn.q_norm", layer);
    for (size_t h = 0; h < (wide ? 1 : heads); h++)
        norm(m, name, q + h * dim, wide ? heads * dim : dim);
    snprintf(name, sizeof name, "layers.%d.self_attn.k_norm", layer);
    for (size_t h = 0; h < (wide ? 1 : kv); h++)
        norm(m, name, k + h * dim, wide ? kv * dim : dim);
    for (size_t h = 0; h < heads; h++)
        turn(m, q + h * dim, t);
    for (size_t h = 0; h < kv; h++)
        turn(m, k + h * dim, t);
}

/* Head h of token t over the keys from `first` to t. */
static void attend(const struct maker_model *m, size_t h, size_t t, size_t first, const double *q,
                   const double *k, const double *v, double *out)
{
    const size_t dim = (size_t)m->decoder.head_dim, kv = (size_t)m->decoder.kv_heads;
    const size_t at = h / ((size_t)m->heads / kv);
    double *p = numbers(t + 1), top = -INFINITY, sum = 0;
    for (size_t j = first; j <= t; j++) {
        for (size_t i = 0; i < dim; i++)
            p[j] += q[i] * k[(j * kv + at) * dim + i];
        p[j] /= sqrt((double)dim);
        top = fmax(top, p[j]);
    }
    for (size_t j = first; j <= t; j++)
        sum += p[j] = exp(p[j] - top);
    for (size_t i = 0; i < dim; i++) {
        out[i] = 0;
        for (size_t j = first; j <= t; j++)
            out[i] += p[j] / sum * v[(j * kv + at) * dim + i];
    }
    free(p);
}

static void attention(const struct maker_model *m, int layer, const double *x, size_t n, double *y)
{
    const size_t dim = (size_t)m->decoder.head_dim, heads = (size_t)m->heads;
    const size_t wide = heads * dim, kv = (size_t)m->decoder.kv_heads * dim;
    const size_t hidden = (size_t)m->hidden, window = (size_t)m->decoder.window;
    const bool slides = m->decoder.types[layer] == 's';
    const struct maker_tensor *o = maker_model_find(m, "layers.%d.self_attn.o_proj.weight", layer);
    double *q = numbers(n * wide), *gate = numbers(n * wide), *a = numbers(wide);
    double *k = numbers(n * kv), *v = numbers(n * kv);
    for (size_t t = 0; t < n; t++)
        project(m, layer, t, x + t * hidden, q + t * wide, k + t * kv, v + t * kv, gate + t * wide);
    for (size_t t = 0; t < n; t++) {
        for (size_t h = 0; h < heads; h++)
            attend(m, h, t, slides && t + 1 > window ? t + 1 - window : 0, q + t * wide + h * dim,
                   k, v, a + h * dim);
        for (size_t i = 0; i < wide && is_gated(m); i++)
            a[i] *= sigmoid(gate[t * wide + i]);
        for (size_t r = 0; r < hidden; r++) {
            y[t * hidden + r] = product(o, r, wide, a);
            if (m->decoder.attention_bias)
                y[t * hidden + r] +=
                    maker_model_find(m, "layers.%d.self_attn.o_proj.bias", layer)->data[r];
        }
    }
    free(q);
    free(gate);
    free(a);
    free(k);
    free(v);
}

/* ---- gated delta nets -------------------------------------------------------------------------
 */

/* Number i of q ('q') or k ('k') of key head h, of v or z of value head h, or b or a of it. */
static double linear_projected(const struct maker_model *m, int layer, char what, size_t h,
                               size_t i, const double *x)
{
    const struct maker_decoder *d = &m->decoder;
    const size_t dk = (size_t)d->key_dim, dv = (size_t)d->value_dim, nk = (size_t)d->key_heads;
    const size_t r = (size_t)(d->value_heads / d->key_heads), group = 2 * dk + 2 * r * dv;
    const char *name = NULL;
    size_t row = 0;
    if (is(m, "qwen3_next")) {
        name = what == 'b' || what == 'a' ? "in_proj_ba" : "in_proj_qkvz";
        switch (what) {
        case 'q': row = h * group + i; break;
        case 'k': row = h * group + dk + i; break;
        case 'v': row = h / r * group + 2 * dk + h % r * dv + i; break;
        case 'z': row = h / r * group + 2 * dk + r * dv + h % r * dv + i; break;
        case 'b': row = h / r * 2 * r + h % r; break;
        case 'a': row = h / r * 2 * r + r + h % r; break;
        }
    } else if (is(m, "olmo_hybrid")) {
        static const char *const names[] = {"q_proj", "k_proj", "v_proj",
                                            "g_proj", "b_proj", "a_proj"};
        name = names[strchr("qkvzba", what) - "qkvzba"];
        row = what == 'q' || what == 'k' ? h * dk + i : what == 'v' || what == 'z' ? h * dv + i : h;
    } else {
        name = what == 'z'   ? "in_proj_z"
               : what == 'b' ? "in_proj_b"
               : what == 'a' ? "in_proj_a"
                             : "in_proj_qkv";
        row = what == 'q'   ? h * dk + i
              : what == 'k' ? (nk + h) * dk + i
              : what == 'v' ? 2 * nk * dk + h * dv + i
              : what == 'z' ? h * dv + i
                            : h;
    }
    return product(maker_model_find(m, "layers.%d.linear_attn.%s.weight", layer, name), row,
                   (size_t)m->hidden, x);
}

/* Channel c of the convolution: q of all heads, k of all heads, v of all heads. */
static const float *conv_weight(const struct maker_model *m, int layer, size_t c)
{
    const size_t q = (size_t)(m->decoder.key_heads * m->decoder.key_dim);
    const size_t kernel = (size_t)m->decoder.kernel;
    if (!m->decoder.published)
        return maker_model_find(m, "layers.%d.linear_attn.conv1d.weight", layer)->data + c * kernel;
    const char *name = c < q ? "q_conv1d" : c < 2 * q ? "k_conv1d" : "v_conv1d";
    return maker_model_find(m, "layers.%d.linear_attn.%s.weight", layer, name)->data +
           (c < q       ? c
            : c < 2 * q ? c - q
                        : c - 2 * q) *
               kernel;
}

/* All channels of all tokens, before the convolution. */
static double *channels_of(const struct maker_model *m, int layer, const double *x, size_t n)
{
    const struct maker_decoder *d = &m->decoder;
    const size_t dk = (size_t)d->key_dim, dv = (size_t)d->value_dim;
    const size_t q = (size_t)d->key_heads * dk, v = (size_t)d->value_heads * dv;
    double *c = numbers(n * (2 * q + v));
    for (size_t t = 0; t < n; t++) {
        double *row = c + t * (2 * q + v);
        const double *in = x + t * (size_t)m->hidden;
        for (size_t i = 0; i < q; i++) {
            row[i] = linear_projected(m, layer, 'q', i / dk, i % dk, in);
            row[q + i] = linear_projected(m, layer, 'k', i / dk, i % dk, in);
        }
        for (size_t i = 0; i < v; i++)
            row[2 * q + i] = linear_projected(m, layer, 'v', i / dv, i % dv, in);
    }
    return c;
}

static double *convolved(const struct maker_model *m, int layer, const double *c, size_t n)
{
    const struct maker_decoder *d = &m->decoder;
    const size_t width = (size_t)(2 * d->key_heads * d->key_dim + d->value_heads * d->value_dim);
    const size_t kernel = (size_t)d->kernel;
    double *y = numbers(n * width);
    for (size_t t = 0; t < n; t++)
        for (size_t j = 0; j < width; j++) {
            const float *w = conv_weight(m, layer, j);
            double sum = 0;
            for (size_t i = 0; i < kernel; i++)
                if (t + 1 + i >= kernel)
                    sum += w[i] * c[(t + 1 + i - kernel) * width + j];
            y[t * width + j] = sum * sigmoid(sum);
        }
    return y;
}

static void unit(const double *x, size_t n, double *y)
{
    double sum = 1e-6;
    for (size_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] / sqrt(sum);
}

/* The state S[key][value] of a head goes on by one token; out is what q reads. */
static void delta(double *state, size_t dk, size_t dv, const double *q, const double *k,
                  const double *v, double decay, double beta, double *out)
{
    for (size_t j = 0; j < dv; j++) {
        double seen = 0;
        for (size_t i = 0; i < dk; i++) {
            state[i * dv + j] *= decay;
            seen += state[i * dv + j] * k[i];
        }
        out[j] = 0;
        for (size_t i = 0; i < dk; i++) {
            state[i * dv + j] += beta * (v[j] - seen) * k[i];
            out[j] += state[i * dv + j] * q[i] / sqrt((double)dk);
        }
    }
}

/* Value head h: o of all its tokens, normed and gated. */
static void delta_head(const struct maker_model *m, int layer, size_t h, const double *x,
                       const double *c, size_t n, double *o)
{
    const struct maker_decoder *d = &m->decoder;
    const size_t dk = (size_t)d->key_dim, dv = (size_t)d->value_dim;
    const size_t q_width = (size_t)d->key_heads * dk, v_width = (size_t)d->value_heads * dv;
    const size_t key = h / (size_t)(d->value_heads / d->key_heads), hidden = (size_t)m->hidden;
    const bool olmo = is(m, "olmo_hybrid");
    const double rate =
        exp((double)maker_model_find(m, "layers.%d.linear_attn.A_log", layer)->data[h]);
    const double dt = (double)maker_model_find(m, "layers.%d.linear_attn.dt_bias", layer)->data[h];
    const struct maker_tensor *w =
        maker_model_find(m, "layers.%d.linear_attn.%s.weight", layer, olmo ? "o_norm" : "norm");
    double *state = numbers(dk * dv), *q = numbers(dk), *k = numbers(dk);
    for (size_t t = 0; t < n; t++) {
        const double *row = c + t * (2 * q_width + v_width), *in = x + t * hidden;
        double *out = o + t * v_width + h * dv;
        const double a = linear_projected(m, layer, 'a', h, 0, in) + dt;
        const double beta = sigmoid(linear_projected(m, layer, 'b', h, 0, in));
        unit(row + key * dk, dk, q);
        unit(row + q_width + key * dk, dk, k);
        delta(state, dk, dv, q, k, row + 2 * q_width + h * dv, exp(-rate * log1p(exp(a))),
              d->twice_beta ? 2 * beta : beta, out);
        rms(out, dv, w, 0, olmo ? 1e-5 : m->eps);
        for (size_t i = 0; i < dv; i++) {
            const double z = linear_projected(m, layer, 'z', h, i, in);
            out[i] *= z * sigmoid(z);
        }
    }
    free(state);
    free(q);
    free(k);
}

static void delta_net(const struct maker_model *m, int layer, const double *x, size_t n, double *y)
{
    const size_t width = (size_t)(m->decoder.value_heads * m->decoder.value_dim);
    const size_t hidden = (size_t)m->hidden;
    const struct maker_tensor *w = maker_model_find(m, "layers.%d.linear_attn.%s.weight", layer,
                                                    is(m, "olmo_hybrid") ? "o_proj" : "out_proj");
    double *raw = channels_of(m, layer, x, n), *c = convolved(m, layer, raw, n);
    double *o = numbers(n * width);
    for (size_t h = 0; h < (size_t)m->decoder.value_heads; h++)
        delta_head(m, layer, h, x, c, n, o);
    for (size_t t = 0; t < n; t++)
        for (size_t r = 0; r < hidden; r++)
            y[t * hidden + r] = product(w, r, width, o + t * width);
    free(raw);
    free(c);
    free(o);
}

/* ---- feed-forward -----------------------------------------------------------------------------
 */

/* y += factor * down(act(gate x) * up x), the rows from `row` of up on. */
static void mlp(const struct maker_model *m, const struct maker_tensor *gate,
                const struct maker_tensor *up, const struct maker_tensor *down, size_t gate_row,
                size_t up_row, size_t down_row, size_t inner, const double *x, double factor,
                double *y)
{
    const size_t hidden = (size_t)m->hidden;
    double *u = numbers(inner);
    for (size_t i = 0; i < inner; i++)
        u[i] = ref_activation(m->activation, product(gate, gate_row + i, hidden, x)) *
               product(up, up_row + i, hidden, x);
    for (size_t r = 0; r < hidden; r++)
        y[r] += factor * product(down, down_row + r, inner, u);
    free(u);
}

static void named_mlp(const struct maker_model *m, const char *name, size_t inner, const double *x,
                      double factor, double *y)
{
    mlp(m, maker_model_find(m, "%s.gate_proj.weight", name),
        maker_model_find(m, "%s.up_proj.weight", name),
        maker_model_find(m, "%s.down_proj.weight", name), 0, 0, 0, inner, x, factor, y);
}

static void expert(const struct maker_model *m, int layer, size_t e, const double *x, double p,
                   double *y)
{
    const size_t inner = (size_t)m->decoder.expert_inner, hidden = (size_t)m->hidden;
    char name[80];
    snprintf(name, sizeof name, "layers.%d.mlp.experts.%zu", layer, e);
    if (!m->decoder.stacked) {
        named_mlp(m, name, inner, x, p, y);
        return;
    }
    const struct maker_tensor *up =
        maker_model_find(m, "layers.%d.mlp.experts.gate_up_proj", layer);
    mlp(m, up, up, maker_model_find(m, "layers.%d.mlp.experts.down_proj", layer), e * 2 * inner,
        (e * 2 + 1) * inner, e * hidden, inner, x, p, y);
}

static void sparse(const struct maker_model *m, int layer, const double *x, double *y)
{
    const struct maker_decoder *d = &m->decoder;
    const size_t n = (size_t)d->experts, hidden = (size_t)m->hidden;
    const struct maker_tensor *router = maker_model_find(m, "layers.%d.mlp.gate.weight", layer);
    double *p = numbers(n), sum = 0, used = 0;
    bool *picked = calloc(n, sizeof *picked);
    char name[80];
    for (size_t e = 0; e < n; e++)
        sum += p[e] = exp(product(router, e, hidden, x));
    for (int i = 0; i < d->used; i++) {
        size_t best = n;
        for (size_t e = 0; e < n; e++)
            if (!picked[e] && (best == n || p[e] > p[best]))
                best = e;
        picked[best] = true;
        used += p[best];
    }
    for (size_t e = 0; e < n; e++)
        if (picked[e])
            expert(m, layer, e, x, p[e] / (d->normalize ? used : sum), y);
    snprintf(name, sizeof name, "layers.%d.mlp.shared_expert", layer);
    const double gate = product(
        maker_model_find(m, "layers.%d.mlp.shared_expert_gate.weight", layer), 0, hidden, x);
    named_mlp(m, name, (size_t)d->shared_inner, x, sigmoid(gate), y);
    free(p);
    free(picked);
}

static void feed_forward(const struct maker_model *m, int layer, const double *x, size_t n,
                         double *y)
{
    const size_t hidden = (size_t)m->hidden;
    char name[80];
    snprintf(name, sizeof name, "layers.%d.mlp", layer);
    memset(y, 0, n * hidden * sizeof *y);
    for (size_t t = 0; t < n; t++)
        if (maker_layer_is_sparse(m, layer))
            sparse(m, layer, x + t * hidden, y + t * hidden);
        else
            named_mlp(m, name, (size_t)m->intermediate, x + t * hidden, 1, y + t * hidden);
}

/* ---- layers -----------------------------------------------------------------------------------
 */

/* h += part(norm(h)), or norm(part(h)) with the norm behind; `half` 0 mixes tokens, 1 does not. */
static void half_layer(const struct maker_model *m, int layer, int half, double *h, size_t n)
{
    static const char *const usual[] = {"input_layernorm", "post_attention_layernorm"};
    static const char *const behind[] = {"post_attention_layernorm", "post_feedforward_layernorm"};
    static const char *const published[] = {"attention_layer_norm", "feedforward_layer_norm"};
    const size_t hidden = (size_t)m->hidden;
    const bool linear = m->decoder.types[layer] == 'l', post = is(m, "olmo_hybrid") && !linear;
    double *x = numbers(n * hidden), *y = numbers(n * hidden);
    char name[80];
    snprintf(name, sizeof name, "layers.%d.%s", layer,
             (post                   ? behind
              : m->decoder.published ? published
                                     : usual)[half]);
    memcpy(x, h, n * hidden * sizeof *x);
    for (size_t t = 0; t < n && !post; t++)
        norm(m, name, x + t * hidden, hidden);
    if (half == 1)
        feed_forward(m, layer, x, n, y);
    else if (linear)
        delta_net(m, layer, x, n, y);
    else
        attention(m, layer, x, n, y);
    for (size_t t = 0; t < n && post; t++)
        norm(m, name, y + t * hidden, hidden);
    for (size_t i = 0; i < n * hidden; i++)
        h[i] += y[i];
    free(x);
    free(y);
}

struct ref_result ref_decode(const struct maker_model *m, const int32_t *ids, size_t n)
{
    const size_t hidden = (size_t)m->hidden, layers = (size_t)m->layers;
    const bool predicts = m->decoder.predicts && !m->labels;
    struct ref_result r = {.n = n,
                           .hidden = hidden,
                           .layers = layers,
                           .labels = (size_t)(predicts ? m->vocab : m->labels),
                           .states = numbers((layers + 1) * n * hidden)};
    const struct maker_tensor *table = maker_model_find(m, "embed_tokens.weight");
    double *h = numbers(n * hidden);
    for (size_t i = 0; i < n * hidden; i++)
        h[i] = table->data[(size_t)ids[i / hidden] * hidden + i % hidden];
    for (size_t i = 0; i <= layers; i++) {
        if (i > 0)
            for (int half = 0; half < 2; half++)
                half_layer(m, (int)i - 1, half, h, n);
        if (i == layers)
            for (size_t t = 0; t < n; t++)
                norm(m, "norm", h + t * hidden, hidden);
        memcpy(r.states + i * n * hidden, h, n * hidden * sizeof *h);
    }
    r.pooler = numbers(hidden);
    r.logits = numbers(r.labels);
    const struct maker_tensor *head = m->labels ? maker_model_find(m, "score.weight")
                                      : predicts && !m->decoder.tied
                                          ? maker_model_find(m, "lm_head.weight")
                                          : table;
    for (size_t i = 0; i < r.labels; i++)
        r.logits[i] = product(head, i, hidden, h + (n - 1) * hidden);
    free(h);
    return r;
}
