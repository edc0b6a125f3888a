/* See build.h. */
#include "models/build.h"

#include "ops/ops.h"
#include "plan/weights.h"
#include "pool/error.h"
#include "pool/memory.h"

#include <rankplan/machine.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES 256

struct stretch {
    const struct rp_st_tensor *tensor;
    uint64_t offset, bytes;
    uint64_t at; /* in the run of its part */
};

struct rp_build_part {
    struct rp_build_part *next;
    size_t n;
    struct stretch stretches[];
};

struct rp_build rp_build_init(rp_graph *graph, rp_weights *weights, struct rp_tensors *tensors)
{
    return (struct rp_build){.graph = graph,
                             .weights = weights,
                             .tensors = tensors,
                             .prefix = "",
                             .config = "config.json"};
}

void rp_build_fini(struct rp_build *build)
{
    while (build->parts) {
        struct rp_build_part *next = build->parts->next;
        free(build->parts);
        build->parts = next;
    }
}

void rp_build_fail(struct rp_build *build, rp_status status, const rp_error *why)
{
    if (build->first.status != RP_OK)
        return;
    build->first = *why;
    build->first.status = status;
}

/* ---- finding a tensor -------------------------------------------------------------------------
 */

/* Checkpoints converted from the first TensorFlow release call a norm's weight gamma and its bias
 * beta. */
static bool old_name(const char *name, char out[NAME_BYTES])
{
    static const char *const pairs[][2] = {{"LayerNorm.weight", "LayerNorm.gamma"},
                                           {"LayerNorm.bias", "LayerNorm.beta"}};
    const size_t n = strlen(name);
    for (size_t i = 0; i < 2; i++) {
        const size_t tail = strlen(pairs[i][0]);
        if (n >= tail && strcmp(name + n - tail, pairs[i][0]) == 0)
            return snprintf(out, NAME_BYTES, "%.*s%s", (int)(n - tail), name, pairs[i][1]) <
                   NAME_BYTES;
    }
    return false;
}

/* With the prefix, then without it: heads never have one. */
static struct rp_tensor_entry *find(const struct rp_build *build, const char *name)
{
    char full[NAME_BYTES], old[NAME_BYTES];
    snprintf(full, sizeof full, "%s%s", build->prefix, name);
    struct rp_tensor_entry *e = rp_tensors_find(build->tensors, full);
    if (!e && old_name(full, old))
        e = rp_tensors_find(build->tensors, old);
    if (!e && build->prefix[0])
        e = rp_tensors_find(build->tensors, name);
    return e;
}

void rp_build_use_prefix(struct rp_build *build, const char *prefix, const char *name)
{
    char full[NAME_BYTES];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    build->prefix = rp_tensors_find(build->tensors, full) ? prefix : "";
}

bool rp_build_has(const struct rp_build *build, const char *name)
{
    return find(build, name) != NULL;
}

static bool to_dtype(enum rp_st_type type, rp_dtype *out)
{
    switch (type) {
    case RP_ST_F32: *out = RP_DTYPE_F32; return true;
    case RP_ST_F16: *out = RP_DTYPE_F16; return true;
    case RP_ST_BF16: *out = RP_DTYPE_BF16; return true;
    default: return false;
    }
}

/* Keeps the failure and the tensor's name. */
static void fail_tensor(struct rp_build *build, struct rp_name_list *list,
                        const struct rp_st_tensor *t, rp_status status, const rp_error *why)
{
    rp_name_list_add(list, t->name);
    if (build->first.status == RP_OK)
        build->first_is_listed = true;
    rp_build_fail(build, status, why);
}

/* The tensor with that shape, marked as used; NULL with the reason kept. */
static const struct rp_st_tensor *take(struct rp_build *build, const char *name, size_t rank,
                                       const uint64_t *dims, rp_dtype *dtype)
{
    char shown[RP_SHOWN_BYTES], found[RP_ST_SHAPE_BYTES], due[RP_ST_SHAPE_BYTES];
    rp_error err;
    struct rp_tensor_entry *e = find(build, name);
    if (!e) {
        char full[NAME_BYTES];
        snprintf(full, sizeof full, "%s%s", build->prefix, name);
        rp_name_list_add(&build->missing, full);
        if (!build->missing_from)
            build->missing_from = build->tensors->source;
        return NULL;
    }
    const struct rp_st_tensor *t = e->tensor;
    if (!e->used)
        build->n_parameters += t->n_elements;
    e->used = true;
    if (t->rank != rank || memcmp(t->dims, dims, rank * sizeof *dims) != 0) {
        fail_tensor(build, &build->misshapen, t,
                    rp_fail(&err, RP_ERR_SHAPE, "%s: tensor \"%s\" is %s, but %s makes it %s",
                            t->file->path, rp_show(t->name, shown),
                            rp_st_shape(t->rank, t->dims, found), build->config,
                            rp_st_shape(rank, dims, due)),
                    &err);
        return NULL;
    }
    if (!to_dtype(t->type, dtype)) {
        fail_tensor(build, &build->mistyped, t,
                    rp_fail(&err, RP_ERR_UNSUPPORTED,
                            "%s: tensor \"%s\" is %s; weights may be F32, F16 or BF16",
                            t->file->path, rp_show(t->name, shown), rp_st_type_name(t->type)),
                    &err);
        return NULL;
    }
    return t;
}

/* ---- weights ----------------------------------------------------------------------------------
 */

/* The last stretch that begins at the offset or before it.  Heads can make tens of thousands of
 * them, which are read in blocks. */
static size_t stretch_at(const struct rp_build_part *part, uint64_t offset)
{
    size_t low = 0, high = part->n;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (part->stretches[middle].at <= offset)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The stretches as one run of bytes. */
static rp_status read_run(void *context, uint64_t offset, void *dst, size_t n, rp_error *err)
{
    const struct rp_build_part *part = context;
    for (size_t i = stretch_at(part, offset); i < part->n && n > 0; i++) {
        const struct stretch *s = &part->stretches[i];
        const uint64_t from = offset - s->at;
        if (from >= s->bytes)
            break;
        const size_t take_n = n < s->bytes - from ? n : (size_t)(s->bytes - from);
        RP_TRY(rp_st_read(s->tensor, s->offset + from, dst, take_n, err));
        dst = (char *)dst + take_n;
        n -= take_n;
        offset += take_n;
    }
    return n == 0 ? RP_OK : rp_fail(err, RP_ERR_INVALID, "%zu bytes beyond the joined tensors", n);
}

#define DIFFERENCE_BLOCK 256

/* The first stretch less the second, where there is one, as f32; both are rows of one tensor. */
static rp_status read_difference(void *context, uint64_t offset, void *dst, size_t n, rp_error *err)
{
    const struct rp_build_part *part = context;
    const struct rp_ops *ops = rp_ops_select(RP_ISA_SCALAR);
    float *to = dst;
    rp_dtype dtype = RP_DTYPE_F32;
    to_dtype(part->stretches[0].tensor->type, &dtype);
    const size_t width = dtype == RP_DTYPE_F32 ? 4 : 2;
    uint64_t column = offset / sizeof *to;
    for (size_t left = n / sizeof *to, block; left > 0; left -= block, column += block) {
        float raw[DIFFERENCE_BLOCK], x[2][DIFFERENCE_BLOCK];
        block = left < DIFFERENCE_BLOCK ? left : DIFFERENCE_BLOCK;
        for (size_t i = 0; i < part->n; i++) {
            const struct stretch *s = &part->stretches[i];
            RP_TRY(rp_st_read(s->tensor, s->offset + column * width, raw, block * width, err));
            ops->widen(dtype, raw, x[i], block);
        }
        for (size_t j = 0; j < block; j++)
            *to++ = part->n > 1 ? x[0][j] - x[1][j] : x[0][j];
    }
    return RP_OK;
}

/* Room for n stretches; the build owns it.  NULL with the reason kept. */
static struct rp_build_part *new_part(struct rp_build *build, const char *name, size_t n)
{
    struct rp_build_part *part = NULL;
    size_t bytes;
    rp_error err;
    if (rp_mul_ok(n, sizeof *part->stretches, &bytes) && rp_add_ok(bytes, sizeof *part, &bytes))
        part = calloc(1, bytes);
    if (!part) {
        rp_build_fail(build, rp_fail(&err, RP_ERR_NOMEM, "weight %s: no memory", name), &err);
        return NULL;
    }
    part->next = build->parts;
    build->parts = part;
    return part;
}

/* The weight that another graph of the model has made; -1: none. */
static rp_weight find_made(const struct rp_build *build, const char *name)
{
    const size_t n = build->shares ? rp_weights_count(build->weights) : 0;
    for (size_t i = 0; i < n; i++)
        if (strcmp(rp_weights_entry(build->weights, (rp_weight)i)->name, name) == 0)
            return (rp_weight)i;
    return -1;
}

static rp_weight add(struct rp_build *build, const char *name, uint64_t cols, size_t n_parts,
                     const rp_weight_part *parts)
{
    rp_error err;
    if (!rp_build_is_whole(build))
        return -1;
    rp_weight w = find_made(build, name);
    if (w >= 0)
        return w;
    const rp_status s =
        rp_weights_add(build->weights, name, (size_t)cols, n_parts, parts, &w, &err);
    if (s != RP_OK)
        rp_build_fail(build, s, &err);
    return w;
}

/* How many stretches of rows are asked for, and of how many rows each. */
static uint64_t times_of(const struct rp_build_rows *r)
{
    return r->times > 0 ? r->times : 1;
}

static uint64_t rows_of(const struct rp_build_rows *r)
{
    return r->n > 0 ? r->n : r->rows * (r->inner > 0 ? r->inner : 1);
}

static void add_stretch(struct rp_build_part *part, const struct rp_st_tensor *t, uint64_t offset,
                        uint64_t bytes)
{
    const struct stretch *before = part->n > 0 ? &part->stretches[part->n - 1] : NULL;
    part->stretches[part->n++] =
        (struct stretch){t, offset, bytes, before ? before->at + before->bytes : 0};
}

/* Appends the stretches of the rows, whose tensor is known to have them. */
static void add_stretches(struct rp_build_part *part, const struct rp_st_tensor *t,
                          const struct rp_build_rows *r, uint64_t row_bytes)
{
    for (uint64_t i = 0; i < times_of(r); i++)
        add_stretch(part, t, (r->first + i * r->step) * row_bytes, rows_of(r) * row_bytes);
}

/* False when a tensor is not there or not as it has to be. */
static bool find_parts(struct rp_build *build, const char *name, size_t count,
                       const struct rp_build_rows *rows, uint64_t cols, rp_weight_part *parts)
{
    bool all = true;
    for (size_t i = 0; i < count; i++) {
        const struct rp_build_rows *r = &rows[i];
        const uint64_t dims[3] = {r->rows, r->inner > 0 ? r->inner : cols, cols};
        rp_dtype dtype = RP_DTYPE_F32;
        const struct rp_st_tensor *t = take(build, r->tensor, r->inner > 0 ? 3 : 2, dims, &dtype);
        struct rp_build_part *part = t ? new_part(build, name, (size_t)times_of(r)) : NULL;
        all = all && part;
        if (!part)
            continue;
        add_stretches(part, t, r, cols * rp_st_type_bits(t->type) / 8);
        parts[i] = (rp_weight_part){.rows = (size_t)(rows_of(r) * times_of(r)),
                                    .dtype = dtype,
                                    .read = read_run,
                                    .context = part};
    }
    return all;
}

rp_weight rp_build_stack(struct rp_build *build, const char *name, size_t count,
                         const struct rp_build_rows *rows, uint64_t cols)
{
    rp_weight_part *parts = calloc(count, sizeof *parts);
    rp_weight w = -1;
    rp_error err;
    if (!parts)
        rp_build_fail(build, rp_fail(&err, RP_ERR_NOMEM, "weight %s: no memory", name), &err);
    else if (find_parts(build, name, count, rows, cols, parts))
        w = add(build, name, cols, count, parts);
    free(parts);
    return w;
}

rp_weight rp_build_matrices(struct rp_build *build, const char *name, size_t count,
                            const char *const *tensors, uint64_t rows, uint64_t cols)
{
    struct rp_build_rows list[RP_BUILD_MAX_JOINED];
    for (size_t i = 0; i < count; i++)
        list[i] = (struct rp_build_rows){.tensor = tensors[i], .rows = rows};
    return rp_build_stack(build, name, count, list, cols);
}

rp_weight rp_build_matrix(struct rp_build *build, const char *name, const char *tensor,
                          uint64_t rows, uint64_t cols)
{
    return rp_build_matrices(build, name, 1, &tensor, rows, cols);
}

/* One row made of several tensors is one part; parts of a weight lie under each other.  A part has
 * one type, so theirs must agree. */
rp_weight rp_build_row(struct rp_build *build, const char *name, size_t count,
                       const struct rp_build_rows *elements)
{
    const struct rp_st_tensor *tensors[RP_BUILD_MAX_JOINED];
    rp_dtype dtype = RP_DTYPE_F32, first = RP_DTYPE_F32;
    size_t n_stretches = 0, n_found = 0;
    uint64_t cols = 0;
    rp_error err;
    for (size_t i = 0; i < count; i++) {
        const struct rp_st_tensor *t =
            take(build, elements[i].tensor, 1, &elements[i].rows, &dtype);
        if (t && n_found > 0 && dtype != first) {
            rp_build_fail(build,
                          rp_fail(&err, RP_ERR_UNSUPPORTED,
                                  "%s: tensors \"%s\" and \"%s\" are of two types, %s and %s",
                                  t->file->path, tensors[0]->name, t->name,
                                  rp_st_type_name(tensors[0]->type), rp_st_type_name(t->type)),
                          &err);
            return -1;
        }
        if (!t)
            continue;
        tensors[n_found++] = t;
        first = n_found == 1 ? dtype : first;
        n_stretches += (size_t)times_of(&elements[i]);
        cols += rows_of(&elements[i]) * times_of(&elements[i]);
    }
    struct rp_build_part *part = n_found == count ? new_part(build, name, n_stretches) : NULL;
    if (!part)
        return -1;
    for (size_t i = 0; i < count; i++)
        add_stretches(part, tensors[i], &elements[i], rp_st_type_bits(tensors[i]->type) / 8);
    const rp_weight_part one = {.rows = 1, .dtype = first, .read = read_run, .context = part};
    return add(build, name, cols, 1, &one);
}

rp_weight rp_build_vectors(struct rp_build *build, const char *name, size_t count,
                           const char *const *tensors, uint64_t n)
{
    struct rp_build_rows list[RP_BUILD_MAX_JOINED];
    for (size_t i = 0; i < count; i++)
        list[i] = (struct rp_build_rows){.tensor = tensors[i], .rows = n};
    return rp_build_row(build, name, count, list);
}

rp_weight rp_build_column(struct rp_build *build, const char *name, const char *tensor, uint64_t n)
{
    rp_dtype dtype = RP_DTYPE_F32;
    const struct rp_st_tensor *t = take(build, tensor, 1, &n, &dtype);
    struct rp_build_part *part = t ? new_part(build, name, 1) : NULL;
    if (!part)
        return -1;
    add_stretch(part, t, 0, n * rp_st_type_bits(t->type) / 8);
    const rp_weight_part one = {
        .rows = (size_t)n, .dtype = dtype, .read = read_run, .context = part};
    return add(build, name, 1, 1, &one);
}

rp_weight rp_build_difference(struct rp_build *build, const char *name, const char *tensor,
                              uint64_t rows, uint64_t cols, int64_t plus, int64_t minus)
{
    const uint64_t dims[2] = {rows, cols};
    rp_dtype dtype = RP_DTYPE_F32;
    const struct rp_st_tensor *t = take(build, tensor, 2, dims, &dtype);
    struct rp_build_part *part = t ? new_part(build, name, 2) : NULL;
    if (!part)
        return -1;
    const uint64_t row_bytes = cols * rp_st_type_bits(t->type) / 8;
    add_stretch(part, t, (uint64_t)plus * row_bytes, row_bytes);
    if (minus >= 0)
        add_stretch(part, t, (uint64_t)minus * row_bytes, row_bytes);
    const rp_weight_part one = {.rows = 1, .read = read_difference, .context = part};
    return add(build, name, cols, 1, &one);
}

rp_weight rp_build_vector(struct rp_build *build, const char *name, const char *tensor, uint64_t n)
{
    return rp_build_vectors(build, name, 1, &tensor, n);
}

/* ---- layers -----------------------------------------------------------------------------------
 */

rp_value rp_build_linear_opt(struct rp_build *build, const char *step, const char *tensor,
                             rp_value x, uint64_t in, uint64_t out, bool bias,
                             rp_activation activation, rp_value residual)
{
    char name[NAME_BYTES], from[NAME_BYTES];
    snprintf(name, sizeof name, "%s.weight", step);
    snprintf(from, sizeof from, "%s.weight", tensor);
    const rp_weight w = rp_build_matrix(build, name, from, out, in);
    snprintf(name, sizeof name, "%s.bias", step);
    snprintf(from, sizeof from, "%s.bias", tensor);
    const rp_weight b = bias ? rp_build_vector(build, name, from, out) : -1;
    return rp_graph_gemm(build->graph, step, x, w, b, activation, residual);
}

rp_value rp_build_linear(struct rp_build *build, const char *step, const char *tensor, rp_value x,
                         uint64_t in, uint64_t out, rp_activation activation, rp_value residual)
{
    return rp_build_linear_opt(build, step, tensor, x, in, out, true, activation, residual);
}

rp_value rp_build_norm_opt(struct rp_build *build, const char *step, const char *tensor, rp_value x,
                           uint64_t width, bool bias, float eps)
{
    char name[NAME_BYTES], from[NAME_BYTES];
    snprintf(name, sizeof name, "%s.weight", step);
    snprintf(from, sizeof from, "%s.weight", tensor);
    const rp_weight w = rp_build_vector(build, name, from, width);
    snprintf(name, sizeof name, "%s.bias", step);
    snprintf(from, sizeof from, "%s.bias", tensor);
    const rp_weight b = bias ? rp_build_vector(build, name, from, width) : -1;
    return rp_graph_layer_norm(build->graph, step, x, w, b, eps);
}

rp_value rp_build_norm(struct rp_build *build, const char *step, const char *tensor, rp_value x,
                       uint64_t width, float eps)
{
    return rp_build_norm_opt(build, step, tensor, x, width, true, eps);
}

/* ---- the end ----------------------------------------------------------------------------------
 */

bool rp_build_is_whole(const struct rp_build *build)
{
    return build->first.status == RP_OK && build->missing.n == 0;
}

rp_status rp_build_finish(struct rp_build *build, rp_error *err)
{
    if (build->first.status != RP_OK)
        return rp_fail(err, build->first.status, "%s", build->first.message);
    if (build->missing.n > 0)
        return rp_fail(err, RP_ERR_MISSING, "%s: %zu tensor%s that %s asks for %s missing: %s",
                       build->missing_from, build->missing.n, build->missing.n == 1 ? "" : "s",
                       build->config, build->missing.n == 1 ? "is" : "are",
                       rp_name_list_text(&build->missing));
    return RP_OK;
}

/* Heads of pre-training and buffers, which every reader leaves out. */
static bool is_known_leftover(const char *name)
{
    static const char *const heads[] = {"cls.",
                                        "lm_head.",
                                        "decoder.",
                                        "mtp.",
                                        "model.visual.",
                                        "vocab_transform.",
                                        "vocab_layer_norm.",
                                        "vocab_projector.",
                                        "generator_predictions.",
                                        "generator_lm_head.",
                                        "discriminator_predictions."};
    static const char *const buffers[] = {"position_ids", "token_type_ids", "inv_freq"};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        if (strncmp(name, heads[i], strlen(heads[i])) == 0)
            return true;
    const char *last = strrchr(name, '.');
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        if (strcmp(last ? last + 1 : name, buffers[i]) == 0)
            return true;
    return false;
}

rp_status rp_build_note_unused(const struct rp_tensors *tensors, struct rp_notes *notes,
                               rp_error *err)
{
    struct rp_name_list known = {0}, unknown = {0};
    for (size_t i = 0; i < tensors->n; i++)
        if (!tensors->entries[i].used)
            rp_name_list_add(is_known_leftover(tensors->entries[i].tensor->name) ? &known
                                                                                 : &unknown,
                             tensors->entries[i].tensor->name);
    if (known.n > 0)
        RP_TRY(rp_notes_add(notes, err, "tensors of buffers and heads that are not run: %s",
                            rp_name_list_text(&known)));
    if (unknown.n > 0)
        RP_TRY(
            rp_notes_add(notes, err, "tensors that are not used: %s", rp_name_list_text(&unknown)));
    return RP_OK;
}
