/* Reading weights into the forms that steps use.
 *
 * Packing goes panel by panel, in parallel: a task reads the 16 rows of its panel (they may lie in
 * several parts: q, k and v under each other), widens them and packs them; the raw and widened rows
 * live in a buffer of the worker.  So a matrix is touched once between the file and its panels.
 */
#include "plan/weights.h"

#include "gemm/gemm.h"
#include "ops/ops.h"
#include "pool/error.h"
#include "pool/memory.h"
#include "pool/pool.h"

#include <rankplan/plan.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct rp_weights {
    struct rp_weight_entry *entries;
    size_t n, cap;
    pthread_mutex_t lock;
};

static size_t dtype_bytes(rp_dtype dtype)
{
    return dtype == RP_DTYPE_F32 ? 4 : 2;
}

rp_status rp_weights_create(rp_weights **out, rp_error *err)
{
    rp_weights *weights = calloc(1, sizeof *weights);
    if (!weights)
        return rp_fail(err, RP_ERR_NOMEM, "no memory for weights");
    if (pthread_mutex_init(&weights->lock, NULL) != 0) {
        free(weights);
        return rp_fail(err, RP_ERR_SYSTEM, "weights: a lock could not be made");
    }
    *out = weights;
    return RP_OK;
}

static void free_factors(struct rp_weight_entry *e)
{
    if (!e->shares)
        free(e->smooth);
    e->smooth = NULL;
    e->shares = false;
}

void rp_weights_destroy(rp_weights *weights)
{
    if (!weights)
        return;
    for (size_t i = 0; i < weights->n; i++) {
        free(weights->entries[i].name);
        free(weights->entries[i].parts);
        free_factors(&weights->entries[i]);
        for (int f = 0; f < RP_FORM_COUNT; f++)
            rp_aligned_free(weights->entries[i].form[f]);
    }
    free(weights->entries);
    pthread_mutex_destroy(&weights->lock);
    free(weights);
}

/* Everything about the parts that can be said without reading them. */
static rp_status check_parts(const char *name, size_t cols, size_t n_parts,
                             const rp_weight_part *parts, size_t *rows, rp_error *err)
{
    *rows = 0;
    if (cols == 0 || n_parts == 0)
        return rp_fail(err, RP_ERR_INVALID,
                       "weight %s: it has %zu columns and %zu parts, and needs both", name, cols,
                       n_parts);
    for (size_t i = 0; i < n_parts; i++) {
        const rp_weight_part *part = &parts[i];
        if (part->rows == 0 || (!part->data && !part->read))
            return rp_fail(err, RP_ERR_INVALID, "weight %s: part %zu has %zu rows and %s", name, i,
                           part->rows, part->data || part->read ? "a source" : "no source");
        if (part->dtype != RP_DTYPE_F32 && part->dtype != RP_DTYPE_F16 &&
            part->dtype != RP_DTYPE_BF16)
            return rp_fail(err, RP_ERR_INVALID, "weight %s: part %zu has no known dtype (%d)", name,
                           i, (int)part->dtype);
        if (!rp_add_ok(*rows, part->rows, rows))
            return rp_fail(err, RP_ERR_LIMIT, "weight %s: its rows wrap", name);
    }
    size_t elements, bytes;
    if (!rp_mul_ok(*rows, cols, &elements) || !rp_mul_ok(elements, 8, &bytes))
        return rp_fail(err, RP_ERR_LIMIT, "weight %s: [%zu, %zu] is too large to address", name,
                       *rows, cols);
    return RP_OK;
}

rp_status rp_weights_add(rp_weights *weights, const char *name, size_t cols, size_t n_parts,
                         const rp_weight_part *parts, rp_weight *out, rp_error *err)
{
    size_t rows;
    RP_TRY(check_parts(name, cols, n_parts, parts, &rows, err));
    if (weights->n == weights->cap) {
        const size_t cap = weights->cap ? weights->cap * 2 : 64;
        if (cap > INT32_MAX)
            return rp_fail(err, RP_ERR_LIMIT, "weight %s: more weights than can be numbered", name);
        void *p = realloc(weights->entries, cap * sizeof *weights->entries);
        if (!p)
            return rp_fail(err, RP_ERR_NOMEM, "weight %s: no memory", name);
        weights->entries = p;
        weights->cap = cap;
    }
    struct rp_weight_entry e = {.name = strdup(name),
                                .rows = rows,
                                .cols = cols,
                                .n_parts = n_parts,
                                .parts = malloc(n_parts * sizeof *parts),
                                .table_dtype = parts[0].dtype};
    if (!e.name || !e.parts) {
        free(e.name);
        free(e.parts);
        return rp_fail(err, RP_ERR_NOMEM, "weight %s: no memory", name);
    }
    memcpy(e.parts, parts, n_parts * sizeof *parts);
    for (size_t i = 1; i < n_parts; i++)
        if (parts[i].dtype != e.table_dtype)
            e.table_dtype = RP_DTYPE_F32;
    weights->entries[weights->n] = e;
    *out = (rp_weight)weights->n++;
    return RP_OK;
}

const struct rp_weight_entry *rp_weights_entry(const rp_weights *weights, rp_weight w)
{
    return w >= 0 && (size_t)w < weights->n ? &weights->entries[w] : NULL;
}

size_t rp_weights_count(const rp_weights *weights)
{
    return weights->n;
}

uint64_t rp_weights_bytes(const rp_weights *weights)
{
    rp_weights *w = (rp_weights *)weights; /* only the lock is touched */
    uint64_t sum = 0;
    pthread_mutex_lock(&w->lock);
    for (size_t i = 0; i < weights->n; i++)
        for (int f = 0; f < RP_FORM_COUNT; f++)
            sum += weights->entries[i].form[f] ? weights->entries[i].bytes[f] : 0;
    pthread_mutex_unlock(&w->lock);
    return sum;
}

/* ---- reading ----------------------------------------------------------------------------------
 */

static rp_status read_part(const struct rp_weight_entry *e, const rp_weight_part *part, size_t row,
                           size_t n_rows, void *dst, rp_error *err)
{
    const size_t row_bytes = e->cols * dtype_bytes(part->dtype);
    if (part->data) {
        memcpy(dst, (const char *)part->data + row * row_bytes, n_rows * row_bytes);
        return RP_OK;
    }
    const rp_status s =
        part->read(part->context, (uint64_t)row * row_bytes, dst, n_rows * row_bytes, err);
    return s == RP_OK ? RP_OK : rp_fail_within(err, s, "weight %s", e->name);
}

/* Calls visit for each stretch of rows [r0, r0+n) that lies in one part. */
struct stretch {
    const rp_weight_part *part;
    size_t row_in_part, row, n_rows;
};

static bool next_stretch(const struct rp_weight_entry *e, size_t row, size_t end, struct stretch *s)
{
    size_t first = 0;
    if (row >= end)
        return false;
    for (size_t i = 0; i < e->n_parts; first += e->parts[i++].rows) {
        const size_t part_end = first + e->parts[i].rows;
        if (row < part_end) {
            *s = (struct stretch){&e->parts[i], row - first, row,
                                  (part_end < end ? part_end : end) - row};
            return true;
        }
    }
    return false;
}

/* Rows [r0, r1) as f32 into dst; raw has room for them in their own type. */
static rp_status read_f32(const struct rp_weight_entry *e, size_t r0, size_t r1, void *raw,
                          float *dst, rp_error *err)
{
    const struct rp_ops *ops = rp_ops_select(RP_ISA_SCALAR);
    struct stretch s;
    for (size_t row = r0; next_stretch(e, row, r1, &s); row += s.n_rows) {
        float *to = dst + (s.row - r0) * e->cols;
        if (s.part->dtype == RP_DTYPE_F32) {
            RP_TRY(read_part(e, s.part, s.row_in_part, s.n_rows, to, err));
            continue;
        }
        RP_TRY(read_part(e, s.part, s.row_in_part, s.n_rows, raw, err));
        ops->widen(s.part->dtype, raw, to, s.n_rows * e->cols);
    }
    return RP_OK;
}

/* ---- forms ------------------------------------------------------------------------------------
 */

struct conversion {
    const struct rp_weight_entry *e;
    enum rp_weight_form form;
    void *dst;
    unsigned char *buffers; /* one per worker: raw rows, then widened rows */
    size_t buffer_bytes, widened_at;
    size_t rows_per_task;
    pthread_mutex_t lock; /* guards first */
    atomic_bool failed;
    rp_error first;
};

/* The rows of a panel out of the packed form, where there is one: then no file is needed any more.
 */
static void unpack_panel(const struct rp_weight_entry *e, size_t r0, size_t r1, float *rows)
{
    const float *panel = (const float *)e->form[RP_FORM_PACKED] + r0 * e->cols;
    for (size_t r = r0; r < r1; r++)
        for (size_t i = 0; i < e->cols; i++)
            rows[(r - r0) * e->cols + i] = panel[i * RP_GEMM_NR + r - r0];
}

/* The 16 rows of a panel, packed. */
static rp_status pack_rows(struct conversion *c, size_t r0, size_t r1, unsigned char *raw,
                           rp_error *err)
{
    const struct rp_weight_entry *e = c->e;
    float *widened = (float *)(void *)(raw + c->widened_at);
    if (c->form == RP_FORM_INT8 && e->form[RP_FORM_PACKED])
        unpack_panel(e, r0, r1, widened);
    else
        RP_TRY(read_f32(e, r0, r1, raw, widened, err));
    if (c->form == RP_FORM_PACKED)
        rp_gemm_pack_panel((float *)c->dst + r0 * e->cols, widened, e->cols, r1 - r0, e->cols);
    else
        rp_qgemm_pack_panel((char *)c->dst + r0 / RP_QGEMM_NR * rp_qgemm_panel_bytes(e->cols),
                            widened, e->cols, r1 - r0, e->cols, e->smooth);
    return RP_OK;
}

static bool is_packed(enum rp_weight_form form)
{
    return form == RP_FORM_PACKED || form == RP_FORM_INT8;
}

/* Whether rows are widened to f32 beside the bytes of the file before they take their form. */
static bool is_rearranged(enum rp_weight_form form)
{
    return is_packed(form) || form == RP_FORM_COLUMNS;
}

/* Column c of the rows goes where column c of the whole is. */
static rp_status transpose_rows(struct conversion *c, size_t r0, size_t r1, unsigned char *raw,
                                rp_error *err)
{
    const struct rp_weight_entry *e = c->e;
    float *widened = (float *)(void *)(raw + c->widened_at), *to = c->dst;
    RP_TRY(read_f32(e, r0, r1, raw, widened, err));
    for (size_t column = 0; column < e->cols; column++)
        for (size_t r = r0; r < r1; r++)
            to[column * e->rows + r] = widened[(r - r0) * e->cols + column];
    return RP_OK;
}

static rp_status convert_rows(struct conversion *c, size_t r0, size_t r1, int worker, rp_error *err)
{
    const struct rp_weight_entry *e = c->e;
    unsigned char *raw = c->buffers + (size_t)worker * c->buffer_bytes;
    if (is_packed(c->form))
        return pack_rows(c, r0, r1, raw, err);
    if (c->form == RP_FORM_COLUMNS)
        return transpose_rows(c, r0, r1, raw, err);
    if (c->form == RP_FORM_VECTOR || e->table_dtype == RP_DTYPE_F32)
        return read_f32(e, r0, r1, raw, (float *)c->dst + r0 * e->cols, err);
    const size_t row_bytes = e->cols * dtype_bytes(e->table_dtype);
    struct stretch s;
    for (size_t row = r0; next_stretch(e, row, r1, &s); row += s.n_rows)
        RP_TRY(
            read_part(e, s.part, s.row_in_part, s.n_rows, (char *)c->dst + row * row_bytes, err));
    return RP_OK;
}

static void convert_task(void *arg, size_t i, int worker)
{
    struct conversion *c = arg;
    if (atomic_load_explicit(&c->failed, memory_order_relaxed))
        return;
    const size_t r0 = i * c->rows_per_task;
    const size_t r1 = r0 + c->rows_per_task < c->e->rows ? r0 + c->rows_per_task : c->e->rows;
    rp_error err = {RP_OK, ""};
    if (convert_rows(c, r0, r1, worker, &err) == RP_OK)
        return;
    pthread_mutex_lock(&c->lock);
    if (!atomic_exchange(&c->failed, true))
        c->first = err;
    pthread_mutex_unlock(&c->lock);
}

rp_status rp_weights_form_bytes(const struct rp_weight_entry *e, enum rp_weight_form form,
                                size_t *bytes, rp_error *err)
{
    size_t elements = 0;
    const bool ok = form == RP_FORM_INT8     ? rp_qgemm_packed_bytes(e->rows, e->cols, &elements)
                    : form == RP_FORM_PACKED ? rp_gemm_packed_floats(e->rows, e->cols, &elements)
                                             : rp_mul_ok(e->rows, e->cols, &elements);
    const size_t width = form == RP_FORM_INT8    ? 1
                         : form == RP_FORM_TABLE ? dtype_bytes(e->table_dtype)
                                                 : sizeof(float);
    if (!ok || !rp_mul_ok(elements, width, bytes))
        return rp_fail(err, RP_ERR_LIMIT, "weight %s: [%zu, %zu] is too large to address", e->name,
                       e->rows, e->cols);
    return RP_OK;
}

/* How many rows a task of a form's conversion takes. */
static size_t task_rows(const struct rp_weight_entry *e, enum rp_weight_form form)
{
    if (is_packed(form))
        return RP_GEMM_NR;
    return e->cols < 65536 ? 65536 / e->cols : 1;
}

static rp_status convert(struct conversion *c, size_t bytes, rp_pool *pool, rp_error *err)
{
    const struct rp_weight_entry *e = c->e;
    const size_t row_floats = c->rows_per_task * e->cols;
    const size_t workers = (size_t)rp_pool_threads(pool);
    c->widened_at = rp_round_up(row_floats * sizeof(float), RP_CACHE_LINE);
    c->buffer_bytes = is_rearranged(c->form) ? 2 * c->widened_at : c->widened_at;
    c->dst = rp_aligned_alloc(bytes);
    c->buffers = rp_aligned_alloc(workers * c->buffer_bytes);
    rp_status status;
    if (!c->dst || !c->buffers)
        status = rp_fail(err, RP_ERR_NOMEM, "weight %s: no memory for %zu bytes", e->name, bytes);
    else
        status = rp_pool_for(pool, (e->rows + c->rows_per_task - 1) / c->rows_per_task,
                             convert_task, c, err);
    if (status == RP_OK && atomic_load(&c->failed)) {
        status = c->first.status;
        if (err)
            *err = c->first;
    }
    rp_aligned_free(c->buffers);
    if (status != RP_OK)
        rp_aligned_free(c->dst);
    return status;
}

static rp_status make_locked(struct rp_weight_entry *e, enum rp_weight_form form, rp_pool *pool,
                             rp_error *err)
{
    if (e->form[form])
        return RP_OK;
    struct conversion c = {.e = e, .form = form, .rows_per_task = task_rows(e, form)};
    size_t bytes = 0;
    RP_TRY(rp_weights_form_bytes(e, form, &bytes, err));
    if (pthread_mutex_init(&c.lock, NULL) != 0)
        return rp_fail(err, RP_ERR_SYSTEM, "weight %s: a lock could not be made", e->name);
    const rp_status status = convert(&c, bytes, pool, err);
    pthread_mutex_destroy(&c.lock);
    RP_TRY(status);
    e->form[form] = c.dst;
    e->bytes[form] = bytes;
    return RP_OK;
}

rp_status rp_weights_make(rp_weights *weights, rp_weight w, enum rp_weight_form form, rp_pool *pool,
                          rp_error *err)
{
    if (!rp_weights_entry(weights, w))
        return rp_fail(err, RP_ERR_INVALID, "there is no weight %d (of %zu)", w, weights->n);
    pthread_mutex_lock(&weights->lock);
    const rp_status status = make_locked(&weights->entries[w], form, pool, err);
    pthread_mutex_unlock(&weights->lock);
    return status;
}

/* ---- INT8 --------------------------------------------------------------------------------------
 */

void rp_weights_drop(rp_weights *weights, rp_weight w, enum rp_weight_form form)
{
    pthread_mutex_lock(&weights->lock);
    struct rp_weight_entry *e = &weights->entries[w];
    rp_aligned_free(e->form[form]);
    e->form[form] = NULL;
    e->bytes[form] = 0;
    pthread_mutex_unlock(&weights->lock);
}

rp_status rp_weights_use_int8(rp_weights *weights, rp_weight w, const float *smooth, rp_error *err)
{
    struct rp_weight_entry *e = &weights->entries[w];
    float *copy = NULL;
    if (smooth) {
        copy = calloc(e->cols, 2 * sizeof *copy);
        if (!copy)
            return rp_fail(err, RP_ERR_NOMEM, "weight %s: no memory for its factors", e->name);
        for (size_t i = 0; i < e->cols; i++) {
            copy[i] = smooth[i];
            copy[e->cols + i] = 1 / smooth[i];
        }
    }
    rp_weights_use_fp32(weights, w);
    e->smooth = copy;
    e->int8 = true;
    return RP_OK;
}

void rp_weights_share_int8(rp_weights *weights, rp_weight w, rp_weight owner)
{
    struct rp_weight_entry *e = &weights->entries[w];
    rp_weights_use_fp32(weights, w);
    e->smooth = weights->entries[owner].smooth;
    e->shares = true;
    e->int8 = true;
}

void rp_weights_use_fp32(rp_weights *weights, rp_weight w)
{
    struct rp_weight_entry *e = &weights->entries[w];
    rp_weights_drop(weights, w, RP_FORM_INT8);
    free_factors(e);
    e->int8 = false;
}

bool rp_weights_int8(const rp_weights *weights, size_t i, const char **name, size_t *n,
                     const float **factors)
{
    for (size_t w = 0; w < weights->n; w++) {
        const struct rp_weight_entry *e = &weights->entries[w];
        if (!e->int8 || e->shares || i-- > 0)
            continue;
        *name = e->name;
        *n = e->cols;
        *factors = e->smooth;
        return true;
    }
    return false;
}
