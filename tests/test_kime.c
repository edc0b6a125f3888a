/* The split encoder: its graphs against the forward in double, what its results may depend on, and
 * what of a folder is refused. */
#include "tests/floats.h"
#include "tests/model_run.h"
#include "tests/ref_split.h"
#include "tests/toy.h"

#include <rankplan/machine.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_IDS     64
#define MAX_MARKERS 8
#define COUNT(a)    (sizeof(a) / sizeof *(a))

struct folder {
    struct maker_dir dir;
    struct split_maker m;
    rp_model *model;
    rp_split_info split;
};

static struct folder make_folder(struct split_maker m, enum maker_dtype dtype)
{
    struct folder f = {.m = m, .split = {.struct_size = sizeof f.split}};
    split_maker_fill(&f.m);
    maker_dir_create(&f.dir);
    split_maker_write(&f.m, &f.dir, dtype);
    f.model = run_load(f.dir.path, 0);
    assert_true(rp_model_get_split(f.model, &f.split));
    return f;
}

static void free_folder(struct folder *f)
{
    rp_model_destroy(f->model);
    maker_dir_remove(&f->dir);
    split_maker_free(&f->m);
}

/* How a session is to run. */
struct how {
    rp_pool *pool;
    bool scalar, no_fuse, no_prune;
};

static rp_session *open_part(const rp_model *model, rp_part part, struct how how)
{
    rp_session_options o;
    rp_session *session;
    rp_error err;
    rp_session_options_init(&o);
    o.pool = how.pool;
    o.isa = how.scalar ? RP_ISA_SCALAR : o.isa;
    o.no_fuse = how.no_fuse;
    o.no_prune = how.no_prune;
    o.poison = true;
    if (rp_session_create(rp_model_part(model, part), rp_model_weights(model), &o, &session,
                          &err) != RP_OK)
        fail_msg("%s", err.message);
    return session;
}

static void run_ok(rp_session *session, const rp_batch *batch)
{
    rp_error err;
    if (rp_session_run(session, batch, &err) != RP_OK)
        fail_msg("%s", err.message);
}

static float *take_output(const rp_session *session, const char *name, size_t *rows)
{
    rp_view v;
    assert_int_equal(rp_session_output(session, name, &v, NULL), RP_OK);
    float *copy = malloc((v.rows * v.width + 1) * sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, v.data, v.rows * v.width * sizeof *copy);
    if (rows)
        *rows = v.rows;
    return copy;
}

static void random_ids(const struct split_maker *m, uint64_t *rng, int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)(8 + maker_random(rng) % (uint64_t)(m->vocab - 8));
}

/* ---- states -----------------------------------------------------------------------------------
 */

/* What one graph has kept of all states of a batch. */
struct kept {
    float *memory, *pooled;
    size_t rows;
};

static struct kept keep_states(const rp_model *model, struct how how, const int32_t *ids,
                               const int32_t *cu, size_t n)
{
    rp_session *session = open_part(model, RP_PART_STATE, how);
    struct kept kept;
    rp_batch b;
    rp_batch_init(&b);
    b.n_seqs = n;
    b.ids = ids;
    b.cu = cu;
    run_ok(session, &b);
    kept.memory = take_output(session, "memory", &kept.rows);
    kept.pooled = take_output(session, "pooled", NULL);
    rp_session_destroy(session);
    return kept;
}

/* Low rows of segments, one after the other. */
static float *run_low(const rp_model *model, const int32_t *ids, const int32_t *cu, size_t n)
{
    rp_session *session = open_part(model, RP_PART_SEGMENT, (struct how){0});
    rp_batch b;
    rp_batch_init(&b);
    b.n_seqs = n;
    b.ids = ids;
    b.cu = cu;
    run_ok(session, &b);
    float *low = take_output(session, "low", NULL);
    rp_session_destroy(session);
    return low;
}

/* One state of the low rows of segments. */
static struct kept keep_segments(const struct folder *f, const float *low, const int32_t *cu,
                                 size_t n)
{
    rp_session *session = open_part(f->model, RP_PART_SEGMENTS, (struct how){0});
    const int32_t whole[] = {0, cu[n]};
    int32_t numbers[MAX_IDS];
    struct kept kept;
    rp_batch b;
    for (size_t s = 0; s < n; s++)
        for (int32_t i = cu[s]; i < cu[s + 1]; i++)
            numbers[i] = (int32_t)(s < f->split.max_segments ? s : f->split.max_segments - 1);
    rp_batch_init(&b);
    b.n_seqs = 1;
    b.cu = whole;
    b.input = low;
    b.type_ids = numbers;
    run_ok(session, &b);
    kept.memory = take_output(session, "memory", &kept.rows);
    kept.pooled = take_output(session, "pooled", NULL);
    rp_session_destroy(session);
    return kept;
}

static void free_kept(struct kept *kept)
{
    free(kept->memory);
    free(kept->pooled);
}

static void compare_kept(const struct folder *f, const char *what, const float *memory,
                         const float *pooled, const struct ref_memory *due)
{
    char text[64];
    snprintf(text, sizeof text, "memory of %s", what);
    run_compare(text, memory, due->rows, due->n * f->split.memory_width);
    snprintf(text, sizeof text, "pooled of %s", what);
    run_compare(text, pooled, due->pooled, (size_t)split_maker_width(&f->m));
}

static const int32_t state_cu[] = {0, 1, 18, 20, 60};

static void states_are_as_in_double(void **state)
{
    (void)state;
    struct folder f = make_folder(split_maker_default(), MAKER_F32);
    const size_t d = (size_t)split_maker_width(&f.m);
    uint64_t rng = 5;
    int32_t ids[60];
    random_ids(&f.m, &rng, ids, 60);
    struct kept kept = keep_states(f.model, (struct how){0}, ids, state_cu, 4);
    assert_int_equal(kept.rows, 60);
    for (size_t s = 0; s < 4; s++) {
        const int32_t at = state_cu[s];
        struct ref_memory due = ref_state(&f.m, ids + at, (size_t)(state_cu[s + 1] - at));
        char what[32];
        snprintf(what, sizeof what, "state %zu", s);
        compare_kept(&f, what, kept.memory + (size_t)at * f.split.memory_width, kept.pooled + s * d,
                     &due);
        ref_memory_free(&due);
    }
    free_kept(&kept);
    free_folder(&f);
}

/* With all outputs there also are the rows that a memory and logits are made of. */
static void last_rows_when_asked_for(void **state)
{
    (void)state;
    static const rp_part parts[] = {RP_PART_MAIN, RP_PART_STATE, RP_PART_SEGMENTS};
    struct folder f = make_folder(split_maker_default(), MAKER_F32);
    const size_t d = (size_t)split_maker_width(&f.m);
    rp_model *all = run_load(f.dir.path, RP_MODEL_ALL_OUTPUTS);
    const int32_t ids[] = {9, 10, 11}, cu[] = {0, 3};
    const float rows[3 * 128] = {1};
    const rp_memory memory = {rows, 0};
    rp_batch b;
    rp_batch_init(&b);
    b.n_seqs = 1;
    b.ids = ids;
    b.cu = cu;
    b.input = rows;
    b.memories = &memory;
    for (size_t i = 0; i < COUNT(parts); i++) {
        rp_session *session = open_part(all, parts[i], (struct how){0});
        size_t n;
        run_ok(session, &b);
        float *last = take_output(session, "last", &n);
        assert_int_equal(n, 3);
        if (parts[i] == RP_PART_STATE) {
            float *pooled = take_output(session, "pooled", NULL);
            double mean[128], length = 0;
            for (size_t c = 0; c < d; c++) {
                mean[c] = ((double)last[c] + (double)last[d + c] + (double)last[2 * d + c]) / 3;
                length += mean[c] * mean[c];
            }
            for (size_t c = 0; c < d; c++)
                assert_true(fabs(pooled[c] - mean[c] / sqrt(length)) < 1e-6);
            free(pooled);
        }
        free(last);
        rp_session_destroy(session);
    }
    rp_model_destroy(all);
    free_folder(&f);
}

/* Six segments, two more than have numbers; also with no layer or every layer on top. */
static void segments_are_as_in_double(void **state)
{
    (void)state;
    static const int tops[] = {2, 0, 4, 3};
    const int32_t cu[] = {0, 1, 10, 12, 13, 30, 31};
    for (size_t t = 0; t < COUNT(tops); t++) {
        struct split_maker m = split_maker_default();
        size_t lengths[6];
        uint64_t rng = 6;
        int32_t ids[31];
        m.top = tops[t];
        struct folder f = make_folder(m, MAKER_F32);
        random_ids(&f.m, &rng, ids, 31);
        for (size_t s = 0; s < 6; s++)
            lengths[s] = (size_t)(cu[s + 1] - cu[s]);
        float *low = run_low(f.model, ids, cu, 6);
        struct kept kept = keep_segments(&f, low, cu, 6);
        struct ref_memory due = ref_segments(&f.m, ids, lengths, 6);
        assert_int_equal(kept.rows, 31);
        compare_kept(&f, "segments", kept.memory, kept.pooled, &due);
        ref_memory_free(&due);
        free_kept(&kept);
        free(low);
        free_folder(&f);
    }
}

/* Low rows that were kept of other runs are those of this one, and so is all that follows. */
static void kept_segments_are_the_same(void **state)
{
    (void)state;
    struct folder f = make_folder(split_maker_default(), MAKER_F32);
    const size_t d = (size_t)split_maker_width(&f.m);
    const int32_t cu[] = {0, 1, 10, 12, 30};
    uint64_t rng = 7;
    int32_t ids[30];
    random_ids(&f.m, &rng, ids, 30);
    float *low = run_low(f.model, ids, cu, 4);
    for (size_t s = 0; s < 4; s++) {
        const int32_t alone[] = {0, cu[s + 1] - cu[s]};
        float *one = run_low(f.model, ids + cu[s], alone, 1);
        assert_memory_equal(one, low + (size_t)cu[s] * d, (size_t)alone[1] * d * sizeof *one);
        free(one);
    }
    free(low);
    free_folder(&f);
}

/* ---- questions --------------------------------------------------------------------------------
 */

struct question {
    int type;
    size_t n, n_markers;
    int32_t ids[MAX_IDS], markers[MAX_MARKERS];
};

/* Appends an option of n tokens behind its marker. */
static void add_option(const struct split_maker *m, uint64_t *rng, struct question *q, size_t n)
{
    q->markers[q->n_markers++] = (int32_t)q->n;
    q->ids[q->n++] = 3;
    random_ids(m, rng, q->ids + q->n, n);
    q->n += n;
}

static struct question make_question(const struct split_maker *m, uint64_t *rng, int type,
                                     size_t header, size_t options)
{
    struct question q = {.type = type, .n = header};
    random_ids(m, rng, q.ids, header);
    for (size_t i = 0; i < options; i++)
        add_option(m, rng, &q, maker_random(rng) % 5);
    return q;
}

/* Logits of questions as one batch, question i on memories[i]; to be freed. */
static float *ask(const rp_model *model, struct how how, const struct question *q, size_t n,
                  const rp_memory *memories)
{
    rp_session *session = open_part(model, RP_PART_MAIN, how);
    int32_t *ids = calloc(n, sizeof q->ids), *markers = calloc(n, sizeof q->markers);
    int32_t *cu = calloc(n + 1, sizeof *cu), *mcu = calloc(n + 1, sizeof *mcu);
    int32_t *types = calloc(n, sizeof *types);
    rp_batch b;
    assert_true(ids && markers && cu && mcu && types);
    for (size_t i = 0; i < n; i++) {
        memcpy(ids + cu[i], q[i].ids, q[i].n * sizeof *ids);
        memcpy(markers + mcu[i], q[i].markers, q[i].n_markers * sizeof *markers);
        cu[i + 1] = cu[i] + (int32_t)q[i].n;
        mcu[i + 1] = mcu[i] + (int32_t)q[i].n_markers;
        types[i] = q[i].type;
    }
    rp_batch_init(&b);
    b.n_seqs = n;
    b.ids = ids;
    b.cu = cu;
    b.markers = markers;
    b.mcu = mcu;
    b.qtypes = types;
    b.memories = memories;
    run_ok(session, &b);
    float *logits = take_output(session, "logits", NULL);
    rp_session_destroy(session);
    free(ids);
    free(markers);
    free(cu);
    free(mcu);
    free(types);
    return logits;
}

/* Questions on the memories of the reference's two states, as floats. */
#define N_QUESTIONS 7
struct asked {
    struct ref_memory due[2];
    float *rows[2];
    rp_memory memories[N_QUESTIONS];
    struct question q[N_QUESTIONS];
};

static struct asked make_asked(const struct folder *f)
{
    static const int types[N_QUESTIONS] = {0, 1, 2, 1, 0, 1, 0};
    static const size_t headers[N_QUESTIONS] = {5, 1, 9, 3, 0, 4, 4};
    static const size_t options[N_QUESTIONS] = {3, 5, 2, 1, 2, 0, 6};
    static const size_t lengths[2] = {18, 3};
    struct asked a;
    uint64_t rng = 8;
    for (size_t s = 0; s < 2; s++) {
        int32_t ids[18];
        random_ids(&f->m, &rng, ids, lengths[s]);
        a.due[s] = ref_state(&f->m, ids, lengths[s]);
        const size_t n = lengths[s] * f->split.memory_width;
        a.rows[s] = malloc(n * sizeof **a.rows);
        for (size_t i = 0; i < n; i++)
            a.rows[s][i] = (float)a.due[s].rows[i];
    }
    for (size_t i = 0; i < N_QUESTIONS; i++) {
        const size_t s = i > 3;
        a.q[i] = make_question(&f->m, &rng, types[i], headers[i], options[i]);
        a.memories[i] = (rp_memory){a.rows[s], lengths[s]};
    }
    return a;
}

static void free_asked(struct asked *a)
{
    for (size_t s = 0; s < 2; s++) {
        ref_memory_free(&a->due[s]);
        free(a->rows[s]);
    }
}

static void questions_are_as_in_double(void **state)
{
    (void)state;
    static const int bases[] = {160000, 500}; /* the reference's one base, and another */
    for (size_t k = 0; k < COUNT(bases); k++) {
        struct split_maker m = split_maker_default();
        m.theta[0] = bases[k];
        m.kv_heads = k ? 2 : 1;
        struct folder f = make_folder(m, k ? MAKER_BF16 : MAKER_F32);
        struct asked a = make_asked(&f);
        float *logits = ask(f.model, (struct how){0}, a.q, N_QUESTIONS, a.memories), *at = logits;
        for (size_t i = 0; i < N_QUESTIONS; at += a.q[i++].n_markers) {
            const struct question *q = &a.q[i];
            double due[MAX_MARKERS];
            char what[32];
            ref_question(&f.m, &a.due[i > 3], q->type, q->ids, q->n, q->markers, q->n_markers, due);
            snprintf(what, sizeof what, "question %zu", i);
            run_compare(what, at, due, q->n_markers);
        }
        free(logits);
        free_asked(&a);
        free_folder(&f);
    }
}

/* Neither on batch mates, nor on threads, instructions, or how the plan is made. */
static void answers_depend_on_nothing_else(void **state)
{
    (void)state;
    struct folder f = make_folder(split_maker_default(), MAKER_F32);
    struct asked a = make_asked(&f);
    rp_pool *pool = toy_pool(3);
    const struct how ways[] = {{.pool = pool},
                               {.scalar = true},
                               {.no_fuse = true, .pool = pool},
                               {.no_prune = true},
                               {.no_fuse = true, .no_prune = true}};
    int32_t ids[60];
    uint64_t rng = 9;
    random_ids(&f.m, &rng, ids, 60);
    struct kept kept = keep_states(f.model, (struct how){0}, ids, state_cu, 4);
    float *all = ask(f.model, (struct how){0}, a.q, N_QUESTIONS, a.memories), *at = all;
    for (size_t i = 0; i < N_QUESTIONS; at += a.q[i++].n_markers) {
        float *one = ask(f.model, (struct how){0}, &a.q[i], 1, &a.memories[i]);
        assert_memory_equal(one, at, a.q[i].n_markers * sizeof *one);
        free(one);
    }
    for (size_t w = 0; w < COUNT(ways); w++) {
        float *other = ask(f.model, ways[w], a.q, N_QUESTIONS, a.memories);
        assert_memory_equal(other, all, (size_t)(at - all) * sizeof *other);
        free(other);
        struct kept again = keep_states(f.model, ways[w], ids, state_cu, 4);
        assert_memory_equal(again.memory, kept.memory,
                            kept.rows * f.split.memory_width * sizeof *kept.memory);
        free_kept(&again);
    }
    free(all);
    free_kept(&kept);
    rp_pool_destroy(pool);
    free_asked(&a);
    free_folder(&f);
}

/* The question with options in another order: the i-th is from[i] of the other. */
static struct question reordered(const struct question *q, const size_t *from)
{
    struct question out = {.type = q->type, .n = (size_t)q->markers[0]};
    memcpy(out.ids, q->ids, out.n * sizeof *out.ids);
    for (size_t i = 0; i < q->n_markers; i++) {
        const size_t begin = (size_t)q->markers[from[i]];
        const size_t end = from[i] + 1 < q->n_markers ? (size_t)q->markers[from[i] + 1] : q->n;
        out.markers[out.n_markers++] = (int32_t)out.n;
        memcpy(out.ids + out.n, q->ids + begin, (end - begin) * sizeof *out.ids);
        out.n += end - begin;
    }
    return out;
}

/* Where options stand says nothing but for levels.  Sums are in the order of the options, so bits
 * may differ; the numbers may not. */
static void order_of_options_says_nothing(void **state)
{
    (void)state;
    static const size_t from[] = {3, 0, 2, 1};
    struct folder f = make_folder(split_maker_default(), MAKER_F32);
    struct asked a = make_asked(&f);
    uint64_t rng = 10;
    for (int type = 0; type < 3; type++) {
        const struct question q = make_question(&f.m, &rng, type, 5, 4);
        const struct question other = reordered(&q, from);
        float *x = ask(f.model, (struct how){0}, &q, 1, a.memories);
        float *y = ask(f.model, (struct how){0}, &other, 1, a.memories);
        double apart = 0;
        for (size_t i = 0; i < 4; i++)
            apart = fmax(apart, fabs((double)(y[i] - x[from[i]])));
        assert_true(type == 1 ? apart > 1e-3 : apart < 1e-5);
        free(x);
        free(y);
    }
    free_asked(&a);
    free_folder(&f);
}

/* ---- folders ----------------------------------------------------------------------------------
 */

static void what_a_folder_says(void **state)
{
    (void)state;
    struct folder f = make_folder(split_maker_default(), MAKER_F16);
    const rp_model_info info = run_info(f.model);
    assert_string_equal(info.family, "kime-v1");
    assert_string_equal(info.architecture, "kime-v1-tiny");
    assert_int_equal(info.task, RP_TASK_DECIDE);
    assert_int_equal(info.n_layers, 4);
    assert_int_equal(info.hidden, 128);
    assert_int_equal(info.max_length, 64);
    assert_int_equal(info.n_question_types, 3);
    assert_int_equal(info.n_notes, 0);
    uint64_t n = 0;
    for (size_t i = 0; i < f.m.n_tensors; i++)
        n += f.m.tensors[i].n;
    assert_int_equal(info.n_parameters, n);
    assert_string_equal(rp_model_question_type(f.model, 2), "noul");
    assert_true(rp_model_temperature(f.model, 1, 4) == 1);
    assert_int_equal(f.split.memory_width, split_maker_memory_width(&f.m));
    assert_int_equal(f.split.n_question_layers, 2);
    assert_int_equal(f.split.n_top_layers, 2);
    assert_int_equal(f.split.max_state_tokens, 256);
    assert_int_equal(f.split.max_segments, 4);
    assert_int_equal(f.split.max_options, 8);
    const int32_t specials[] = {f.split.sep_id, f.split.opt_id,   f.split.no_id,
                                f.split.yes_id, f.split.cls_s_id, f.split.cls_q_id};
    for (int32_t i = 0; i < 6; i++)
        assert_int_equal(specials[i], i + 2);
    assert_ptr_equal(rp_model_part(f.model, RP_PART_MAIN), rp_model_graph(f.model));
    assert_null(rp_model_part(f.model, (rp_part)4));
    free_folder(&f);
}

/* Another model has neither parts nor what kime.json says. */
static void other_models_have_no_parts(void **state)
{
    (void)state;
    rp_model *model = run_load(RP_TEST_DATA "/oracles/decision", 0);
    rp_split_info info = {.struct_size = sizeof info};
    assert_false(rp_model_get_split(model, &info));
    assert_ptr_equal(rp_model_part(model, RP_PART_MAIN), rp_model_graph(model));
    assert_null(rp_model_part(model, RP_PART_STATE));
    rp_model_destroy(model);
}

/* The weights that graphs share are there once: all in their files' bytes, but for the panels'
 * padding. */
static void weights_are_shared(void **state)
{
    (void)state;
    struct folder f = make_folder(split_maker_default(), MAKER_F32);
    const rp_model_info info = run_info(f.model);
    assert_true(rp_weights_bytes(rp_model_weights(f.model)) < info.n_parameters * 4 * 11 / 10);
    free_folder(&f);
}

/* Near the forward in double, and not it. */
static void expect_near(const float *found, const double *due, size_t n)
{
    const double cosine = run_cosine(found, due, n);
    if (!(cosine > 0.99 && cosine < 0.9999999))
        fail_msg("a cosine of %.9f", cosine);
}

static rp_model *load_int8(const char *path)
{
    rp_model_options o;
    rp_model *model;
    rp_error err;
    rp_model_options_init(&o);
    o.precision = RP_PRECISION_INT8;
    if (rp_model_load(path, &o, &model, &err) != RP_OK)
        fail_msg("%s", err.message);
    return model;
}

static bool has_int8(const rp_model *model, const char *wanted)
{
    const char *name;
    const float *factors;
    size_t n;
    for (size_t i = 0; rp_weights_int8(rp_model_weights(model), i, &name, &n, &factors); i++)
        if (strcmp(name, wanted) == 0)
            return factors != NULL;
    return false;
}

/* Both towers, with factors of each; heads stay as they are. */
static void both_towers_in_int8(void **state)
{
    (void)state;
    struct folder f = make_folder(split_maker_default(), MAKER_F32);
    struct asked a = make_asked(&f);
    rp_model *model = load_int8(f.dir.path), *again = load_int8(f.dir.path);
    uint64_t rng = 12;
    int32_t ids[60];
    random_ids(&f.m, &rng, ids, 60);
    assert_true(has_int8(model, "memory.weight") &&
                has_int8(model, "state.layers.3.ffn.up.weight"));
    assert_true(has_int8(model, "question.layers.1.cross.q.weight"));
    assert_false(has_int8(model, "scorer.dense.weight"));
    struct kept kept = keep_states(model, (struct how){0}, ids, state_cu, 4);
    for (size_t s = 0; s < 4; s++) {
        const size_t at = (size_t)state_cu[s], n = (size_t)state_cu[s + 1] - at;
        struct ref_memory due = ref_state(&f.m, ids + at, n);
        expect_near(kept.memory + at * f.split.memory_width, due.rows, n * f.split.memory_width);
        ref_memory_free(&due);
    }
    float *x = ask(model, (struct how){0}, a.q, N_QUESTIONS, a.memories), *at = x;
    float *y = ask(again, (struct how){.scalar = true}, a.q, N_QUESTIONS, a.memories);
    double due[N_QUESTIONS * MAX_MARKERS];
    for (size_t i = 0; i < N_QUESTIONS; at += a.q[i++].n_markers) {
        const struct question *q = &a.q[i];
        ref_question(&f.m, &a.due[i > 3], q->type, q->ids, q->n, q->markers, q->n_markers,
                     due + (at - x));
    }
    expect_near(x, due, (size_t)(at - x));
    assert_memory_equal(x, y, (size_t)(at - x) * sizeof *x);
    free(x);
    free(y);
    free_kept(&kept);
    rp_model_destroy(model);
    rp_model_destroy(again);
    free_asked(&a);
    free_folder(&f);
}

/* States that are shorter than those that INT8 would be calibrated on, down to one token. */
static void short_states_in_int8(void **state)
{
    (void)state;
    static const int most[] = {1, 2, 31, 32};
    struct folder f = make_folder(split_maker_default(), MAKER_F32);
    for (size_t i = 0; i < COUNT(most); i++) {
        json_t *config = split_maker_config(&f.m);
        json_object_set_new(json_object_get(config, "state_tower"), "max_tokens",
                            json_integer(most[i]));
        maker_write_json(&f.dir, "kime.json", config);
        json_decref(config);
        rp_model *model = load_int8(f.dir.path);
        assert_true(has_int8(model, "question.layers.1.cross.q.weight"));
        rp_model_destroy(model);
    }
    free_folder(&f);
}

/* ---- what is refused --------------------------------------------------------------------------
 */

static void expect_refusal(const char *path, unsigned flags, rp_status status, const char *word)
{
    rp_model_options o;
    rp_model *model;
    rp_error err;
    rp_model_options_init(&o);
    o.flags = flags;
    const rp_status found = rp_model_load(path, &o, &model, &err);
    if (found == RP_OK)
        fail_msg("loaded, and should say %s", word);
    assert_says(err.message, word);
    assert_int_equal(found, status);
}

static const struct {
    const char *section, *key; /* section NULL: the file's own */
    const char *value;         /* JSON; NULL: the key is taken away */
    rp_status status;
    const char *says;
} wrong_values[] = {
    {NULL, "family", "\"laya\"", RP_ERR_UNSUPPORTED, "not \"kime-v1\""},
    {NULL, "family", NULL, RP_ERR_MISSING, "\"family\" is missing"},
    {NULL, "format", "\"kime/2\"", RP_ERR_UNSUPPORTED, "kime/1"},
    {NULL, "gelu", "\"tanh\"", RP_ERR_UNSUPPORTED, "not \"erf\""},
    {NULL, "id", NULL, RP_ERR_MISSING, "\"id\""},
    {NULL, "norm_eps", "0", RP_ERR_FORMAT, "norm_eps"},
    {NULL, "temperature", "2", RP_ERR_UNSUPPORTED, "\"temperature\" is not known"},
    {NULL, "dims", NULL, RP_ERR_MISSING, "\"dims\""},
    {NULL, "tokenizer", "3", RP_ERR_FORMAT, "not an object"},
    {"dims", "d", "255", RP_ERR_FORMAT, "2 heads of 64"},
    {"dims", "head_dim", "32", RP_ERR_FORMAT, "\"head_dim\" is 32"},
    {"dims", "heads", "3", RP_ERR_FORMAT, "3 heads"},
    {"dims", "inter", "1.5", RP_ERR_FORMAT, "whole number"},
    {"dims", "vocab", "7", RP_ERR_FORMAT, "\"cls_q\" is 7"},
    {"dims", "depth", "7", RP_ERR_UNSUPPORTED, "dims: key \"depth\""},
    {"tokenizer", "sep", "60", RP_ERR_FORMAT, "has 60 tokens"},
    {"tokenizer", "pad", NULL, RP_ERR_MISSING, "\"pad\""},
    {"tokenizer", "specials", "{\"opt\":3}", RP_ERR_MISSING, "specials: key \"no\""},
    {"tokenizer", "merges", "[]", RP_ERR_UNSUPPORTED, "\"merges\""},
    {"state_tower", "layers", "0", RP_ERR_FORMAT, "\"layers\" is 0"},
    {"state_tower", "layers", "1000000", RP_ERR_SHAPE,
     "kime.json has 1000000 layers, but there are only "},
    {"state_tower", "global_every", "-1", RP_ERR_FORMAT, "global_every"},
    {"state_tower", "window", "1", RP_ERR_UNSUPPORTED, "itself alone"},
    {"state_tower", "rope_theta_local", "0.5", RP_ERR_FORMAT, "rope_theta_local"},
    {"state_tower", "segment_top_layers", "5", RP_ERR_FORMAT, "of 4 layers"},
    {"state_tower", "max_segments", "0", RP_ERR_FORMAT, "max_segments"},
    {"state_tower", "max_tokens", "1048577", RP_ERR_FORMAT,
     "state_tower: key \"max_tokens\" is 1048577, outside 1 to 1048576"},
    {"state_tower", "dropout", "0.1", RP_ERR_UNSUPPORTED, "\"dropout\""},
    {"question_tower", "kv_heads", "3", RP_ERR_FORMAT, "does not divide 2"},
    {"question_tower", "layers", "65", RP_ERR_FORMAT, "outside 1 to 64"},
    {"question_tower", "max_tokens", NULL, RP_ERR_MISSING, "max_tokens"},
    {"question_tower", "window", "3", RP_ERR_UNSUPPORTED, "\"window\""},
};

static void wrong_kime_json_is_named(void **state)
{
    (void)state;
    struct folder f = make_folder(split_maker_default(), MAKER_F32);
    for (size_t i = 0; i < COUNT(wrong_values); i++) {
        json_t *config = split_maker_config(&f.m);
        json_t *in =
            wrong_values[i].section ? json_object_get(config, wrong_values[i].section) : config;
        if (wrong_values[i].value)
            json_object_set_new(in, wrong_values[i].key,
                                json_loads(wrong_values[i].value, JSON_DECODE_ANY, NULL));
        else
            json_object_del(in, wrong_values[i].key);
        maker_write_json(&f.dir, "kime.json", config);
        json_decref(config);
        expect_refusal(f.dir.path, 0, wrong_values[i].status, wrong_values[i].says);
    }
    free_folder(&f);
}

static void wrong_flags_are_named(void **state)
{
    (void)state;
    struct folder f = make_folder(split_maker_default(), MAKER_F32);
    expect_refusal(f.dir.path, RP_MODEL_ACT, RP_ERR_INVALID, "no act head");
    expect_refusal(f.dir.path, RP_MODEL_POOLED, RP_ERR_INVALID, "logits only");
    rp_model *model = run_load(f.dir.path, RP_MODEL_LOGITS);
    rp_model_destroy(model);
    free_folder(&f);
}

/* Every kind of wrong tensor, alone and all together. */
static void wrong_tensors_are_named(void **state)
{
    (void)state;
    struct folder f = make_folder(split_maker_default(), MAKER_F32);
    struct maker_tensor *ord = split_maker_find(&f.m, "ord_emb.weight");
    struct maker_tensor *key = split_maker_find(&f.m, "question.layers.1.cross.Wk.weight");
    struct maker_tensor *first = split_maker_find(&f.m, "state.layers.1.attn_norm.weight");
    strcpy(key->name, "question.layers.1.cross.Wx.weight");
    maker_write_tensors(&f.dir, "model.safetensors", f.m.tensors, f.m.n_tensors, MAKER_F32);
    expect_refusal(f.dir.path, 0, RP_ERR_MISSING,
                   "1 missing, 1 that this model does not have; missing: "
                   "question.layers.1.cross.Wk.weight; not of this model: "
                   "question.layers.1.cross.Wx.weight");
    strcpy(key->name, "question.layers.1.cross.Wk.weight");
    ord->dims[0] /= 2;
    ord->dims[1] *= 2;
    maker_write_tensors(&f.dir, "model.safetensors", f.m.tensors, f.m.n_tensors, MAKER_F32);
    expect_refusal(f.dir.path, 0, RP_ERR_SHAPE,
                   "\"ord_emb.weight\" is [64, 8], but kime.json makes it [128, 4]");
    strcpy(first->name, "state.layers.0.attn_norm.weight");
    maker_write_tensors(&f.dir, "model.safetensors", f.m.tensors, f.m.n_tensors, MAKER_F32);
    expect_refusal(
        f.dir.path, 0, RP_ERR_MISSING,
        "1 missing, 1 of another shape than kime.json makes them, 1 that this model does "
        "not have; missing: state.layers.1.attn_norm.weight; of another shape: "
        "ord_emb.weight; not of this model: state.layers.0.attn_norm.weight");
    free_folder(&f);
}

static size_t read_file(const char *path, char *out, size_t room)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    const size_t n = fread(out, 1, room, f);
    fclose(f);
    assert_true(n > 0 && n < room);
    return n;
}

/* Makes a tensor of the folder one of whole numbers. */
static void make_int32(const struct maker_dir *dir, const char *tensor)
{
    char *bytes = malloc(4 << 20), quoted[100];
    assert_non_null(bytes);
    const size_t n = read_file(maker_path(dir, "model.safetensors"), bytes, 4 << 20);
    snprintf(quoted, sizeof quoted, "\"%s\"", tensor);
    bytes[n] = 0;
    char *at = strstr(bytes + 8, quoted);
    at = at ? strstr(at, "\"F32\"") : NULL;
    assert_non_null(at);
    at[1] = 'I';
    maker_write(dir, "model.safetensors", bytes, n);
    free(bytes);
}

/* Of a type that weights do not have: alone with that type, and beside other kinds. */
static void wrong_types_are_named(void **state)
{
    (void)state;
    struct folder f = make_folder(split_maker_default(), MAKER_F32);
    struct maker_tensor *key = split_maker_find(&f.m, "question.layers.1.cross.Wk.weight");
    make_int32(&f.dir, "ord_emb.weight");
    expect_refusal(f.dir.path, 0, RP_ERR_UNSUPPORTED,
                   "\"ord_emb.weight\" is I32; weights may be F32, F16 or BF16");
    strcpy(key->name, "question.layers.1.cross.Wx.weight");
    maker_write_tensors(&f.dir, "model.safetensors", f.m.tensors, f.m.n_tensors, MAKER_F32);
    make_int32(&f.dir, "ord_emb.weight");
    expect_refusal(f.dir.path, 0, RP_ERR_MISSING,
                   "1 missing, 1 neither F32, F16 nor BF16, 1 that this model does not have; "
                   "missing: question.layers.1.cross.Wk.weight; of another type: ord_emb.weight; "
                   "not of this model: question.layers.1.cross.Wx.weight");
    free_folder(&f);
}

/* Counts of all kinds stand before names, of which there are a few. */
static void many_wrong_tensors_are_counted(void **state)
{
    (void)state;
    struct folder f = make_folder(split_maker_default(), MAKER_F32);
    for (size_t i = 0; i < f.m.n_tensors; i++)
        if (strncmp(f.m.tensors[i].name, "question.", 9) == 0)
            f.m.tensors[i].name[0] = 'x';
    maker_write_tensors(&f.dir, "model.safetensors", f.m.tensors, f.m.n_tensors, MAKER_F32);
    expect_refusal(f.dir.path, 0, RP_ERR_MISSING,
                   "23 missing, 23 that this model does not have; missing: "
                   "question.layers.0.cross.Wk.weight, question.layers.0.cross.Wv.weight and 21 "
                   "more; not of this model: x");
    free_folder(&f);
}

/* ---- damaged files ----------------------------------------------------------------------------
 */

/* A few bytes changed to others that files like this have. */
static void damage(uint64_t *rng, char *text, size_t first, size_t n)
{
    static const char bytes[] = "0123456789-.eE{}[],:\"ankx \0";
    for (uint64_t i = 1 + maker_random(rng) % 2; i > 0; i--)
        text[first + maker_random(rng) % n] = bytes[maker_random(rng) % (sizeof bytes - 1)];
}

/* Loaded all the same, or refused with a reason; never anything else. */
static void load_damaged(const struct maker_dir *dir, size_t *refused)
{
    rp_model *model = NULL;
    rp_error err = {0};
    if (rp_model_load(dir->path, NULL, &model, &err) == RP_OK) {
        rp_model_destroy(model);
        return;
    }
    assert_true(err.message[0] != 0);
    ++*refused;
}

static void damaged_files_are_refused_or_read(void **state)
{
    (void)state;
    static char whole[1 << 20], text[1 << 20];
    static const char *const names[] = {"kime.json", "model.safetensors"};
    struct maker_dir dir;
    uint64_t rng = 13;
    maker_dir_create(&dir);
    for (size_t k = 0; k < 2; k++)
        maker_copy_file(k ? RP_TEST_DATA "/kime/model.safetensors" : RP_TEST_DATA "/kime/kime.json",
                        maker_path(&dir, names[k]));
    for (size_t k = 0; k < 2; k++) {
        const size_t n = read_file(maker_path(&dir, names[k]), whole, sizeof whole);
        const size_t header = k ? 2000 : n; /* names and shapes, not what the numbers are */
        size_t refused = 0;
        for (int i = 0; i < 100; i++) {
            memcpy(text, whole, n);
            damage(&rng, text, 0, header);
            maker_write(&dir, names[k], text, n);
            load_damaged(&dir, &refused);
        }
        assert_true(refused > 50);
        maker_write(&dir, names[k], whole, n);
    }
    rp_model_destroy(run_load(dir.path, 0));
    maker_dir_remove(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_are_as_in_double),
        cmocka_unit_test(last_rows_when_asked_for),
        cmocka_unit_test(segments_are_as_in_double),
        cmocka_unit_test(kept_segments_are_the_same),
        cmocka_unit_test(questions_are_as_in_double),
        cmocka_unit_test(answers_depend_on_nothing_else),
        cmocka_unit_test(order_of_options_says_nothing),
        cmocka_unit_test(what_a_folder_says),
        cmocka_unit_test(other_models_have_no_parts),
        cmocka_unit_test(weights_are_shared),
        cmocka_unit_test(both_towers_in_int8),
        cmocka_unit_test(short_states_in_int8),
        cmocka_unit_test(wrong_kime_json_is_named),
        cmocka_unit_test(wrong_flags_are_named),
        cmocka_unit_test(wrong_tensors_are_named),
        cmocka_unit_test(wrong_types_are_named),
        cmocka_unit_test(many_wrong_tensors_are_counted),
        cmocka_unit_test(damaged_files_are_refused_or_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
