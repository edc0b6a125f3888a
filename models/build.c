/* See build.h. */
#include "models/build.h"

#include "pool/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES 256

struct rp_build_part {
    struct rp_build_part *next;
    size_t n;
    const struct rp_st_tensor *tensors[RP_BUILD_MAX_JOINED];
};

struct rp_build rp_build_init(rp_graph *graph, rp_weights *weights, struct rp_tensors *tensors)
{
    return (struct rp_build){.graph = graph, .weights = weights, .tensors = tensors, .prefix = ""};
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
        rp_build_fail(build,
                      rp_fail(&err, RP_ERR_SHAPE,
                              "%s: tensor \"%s\" is %s, but config.json makes it %s", t->file->path,
                              rp_show(t->name, shown), rp_st_shape(t->rank, t->dims, found),
                              rp_st_shape(rank, dims, due)),
                      &err);
        return NULL;
    }
    if (!to_dtype(t->type, dtype)) {
        rp_build_fail(build,
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

static rp_status read_tensor(void *context, uint64_t offset, void *dst, size_t n, rp_error *err)
{
    return rp_st_read(context, offset, dst, n, err);
}

/* The joined vectors as one run of bytes. */
static rp_status read_joined(void *context, uint64_t offset, void *dst, size_t n, rp_error *err)
{
    const struct rp_build_part *part = context;
    for (size_t i = 0; i < part->n && n > 0; i++) {
        const struct rp_st_tensor *t = part->tensors[i];
        const uint64_t bytes = t->end - t->begin;
        if (offset >= bytes) {
            offset -= bytes;
            continue;
        }
        const size_t take_n = n < bytes - offset ? n : (size_t)(bytes - offset);
        RP_TRY(rp_st_read(t, offset, dst, take_n, err));
        dst = (char *)dst + take_n;
        n -= take_n;
        offset = 0;
    }
    return n == 0 ? RP_OK : rp_fail(err, RP_ERR_INVALID, "%zu bytes beyond the joined tensors", n);
}

static rp_weight add(struct rp_build *build, const char *name, uint64_t cols, size_t n_parts,
                     const rp_weight_part *parts)
{
    rp_error err;
    rp_weight w = -1;
    if (!rp_build_is_whole(build))
        return -1;
    const rp_status s =
        rp_weights_add(build->weights, name, (size_t)cols, n_parts, parts, &w, &err);
    if (s != RP_OK)
        rp_build_fail(build, s, &err);
    return w;
}

rp_weight rp_build_matrices(struct rp_build *build, const char *name, size_t count,
                            const char *const *tensors, uint64_t rows, uint64_t cols)
{
    rp_weight_part parts[RP_BUILD_MAX_JOINED];
    const uint64_t dims[2] = {rows, cols};
    bool all = true;
    for (size_t i = 0; i < count; i++) {
        rp_dtype dtype = RP_DTYPE_F32;
        const struct rp_st_tensor *t = take(build, tensors[i], 2, dims, &dtype);
        parts[i] = (rp_weight_part){.rows = (size_t)rows,
                                    .dtype = dtype,
                                    .read = read_tensor,
                                    .context = (void *)(uintptr_t)t};
        all = all && t;
    }
    return all ? add(build, name, cols, count, parts) : -1;
}

rp_weight rp_build_matrix(struct rp_build *build, const char *name, const char *tensor,
                          uint64_t rows, uint64_t cols)
{
    return rp_build_matrices(build, name, 1, &tensor, rows, cols);
}

/* One row made of several tensors is one part with a reader of its own; parts of a weight lie under
 * each other.  A part has one type, so theirs must agree. */
rp_weight rp_build_vectors(struct rp_build *build, const char *name, size_t count,
                           const char *const *tensors, uint64_t n)
{
    struct rp_build_part *part = calloc(1, sizeof *part);
    rp_error err;
    if (!part) {
        rp_build_fail(build, rp_fail(&err, RP_ERR_NOMEM, "weight %s: no memory", name), &err);
        return -1;
    }
    part->next = build->parts;
    build->parts = part;
    rp_dtype dtype = RP_DTYPE_F32, first = RP_DTYPE_F32;
    for (size_t i = 0; i < count; i++) {
        const struct rp_st_tensor *t = take(build, tensors[i], 1, &n, &dtype);
        if (t && part->n > 0 && dtype != first) {
            rp_build_fail(build,
                          rp_fail(&err, RP_ERR_UNSUPPORTED,
                                  "%s: tensors \"%s\" and \"%s\" are of two types, %s and %s",
                                  t->file->path, part->tensors[0]->name, t->name,
                                  rp_st_type_name(part->tensors[0]->type),
                                  rp_st_type_name(t->type)),
                          &err);
            return -1;
        }
        if (t)
            part->tensors[part->n++] = t;
        first = part->n == 1 ? dtype : first;
    }
    const rp_weight_part one = {.rows = 1, .dtype = first, .read = read_joined, .context = part};
    return part->n == count ? add(build, name, n * count, 1, &one) : -1;
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
        return rp_fail(err, RP_ERR_MISSING,
                       "%s: %zu tensor%s that config.json asks for %s missing: %s",
                       build->missing_from, build->missing.n, build->missing.n == 1 ? "" : "s",
                       build->missing.n == 1 ? "is" : "are", rp_name_list_text(&build->missing));
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
