/* The plan: steps over slots, and the two ways in which they run.
 *
 * A slot is where the value of a step lives.  Steps that work row by row (products, norms,
 * activations) and follow each other form a segment; a segment can run in two ways that give the
 * same bits:
 *
 *     by step    every step over all rows, workers meeting after each: what observers see, and how
 *                few rows are spread over many workers (by columns)
 *     by chunk   a worker takes a block of rows through all steps of the segment, so that its
 *                values stay in that worker's cache, and workers meet once at the end
 *
 *     tokens:  [embed norm qkv] | attention | [out norm up down norm qkv] | attention | [out ...]
 *              segment 0          alone       segment 2                     alone       segment 4
 *
 * Segments of sequences and markers (heads, and what is read of a last layer) run by step in either
 * way: their rows are few, and a worker alone would have to stream all their weights.
 *
 * Both have a layout of their own over the same arena.  By step, slots follow their live ranges
 * exactly.  By chunk, a slot made and used up inside one segment needs no room in the arena: it
 * lives in the worker's scratch, for the rows of the chunk; and one that crosses a segment's border
 * stays apart from every other slot of that segment, since different chunks are at different steps
 * at the same time.
 */
#ifndef RP_PLAN_PLAN_H
#define RP_PLAN_PLAN_H

#include <rankplan/plan.h>

#include "attention/attention.h"
#include "gdn/gdn.h"
#include "gemm/gemm.h"
#include "ops/ops.h"
#include "plan/graph.h"
#include "plan/weights.h"
#include "qgemm/qgemm.h"

/* Which rows a value has: one for each row of its op, or one for each of the tokens that something
 * reads, the others not being computed (plan/prune.c). */
enum rp_read { RP_READ_ALL, RP_READ_FIRST, RP_READ_LAST, RP_READ_MARKED, RP_READS };

enum rp_mode { RP_BY_STEP, RP_BY_CHUNK, RP_MODES };

struct rp_slot {
    rp_rows rows;
    size_t width;
    size_t first, last;        /* steps during which it is alive, by its uses */
    bool is_output;            /* alive to the end */
    bool in_chunk;             /* by chunk: lives in the worker's scratch */
    bool typed;                /* rows of tokens that depend on the question type */
    uint64_t offset[RP_MODES]; /* bytes into the arena, or into the chunk's scratch when in_chunk */
};

/* Embedding tables are indexed by one of a few arrays; each distinct one is made once a run. */
#define RP_PLAN_MAX_INDICES   8
#define RP_POSITION_IN_OPTION 1 /* parameter of RP_INDEX_POSITION: as rp_rope.options says */
struct rp_plan_index {
    rp_index kind;
    int32_t parameter;
    size_t least_entries;   /* of all tables that it indexes */
    const char *table_name; /* the table with that many; belongs to the plan */
};

/* Cosines and sines for the positions of the bucket, shared by the ropes of equal options. */
struct rp_plan_rope {
    size_t node; /* the first op with these options */
    float *table;
};

/* What a step has of one expert. */
struct rp_expert {
    const void *up, *down; /* packed */
    const float *factors;  /* INT8: of the columns that `down` multiplies; NULL for all 1 */
};

struct rp_step {
    enum rp_op op;
    const char *name; /* belongs to the plan */
    const char *kernel;
    rp_rows rows;
    enum rp_read
        read; /* RP_READ_ALL too where the op itself turns tokens into fewer rows (pooling) */
    size_t width;
    int32_t out; /* slots */
    int32_t in[RP_NODE_MAX_INPUTS];
    size_t n_in;
    size_t node;   /* index of the op that it was lowered from */
    bool joins;    /* runs together with the step before it where nobody looks (plan/joins.c) */
    bool weighted; /* an RMS norm that has a weight, also in a dry run, which loads none */
    union {
        struct {
            size_t n;
            size_t index[RP_EMBED_MAX_TABLES]; /* into the plan's indices */
            const void *rows[RP_EMBED_MAX_TABLES];
            rp_dtype dtype[RP_EMBED_MAX_TABLES];
        } embed;
        struct {
            const float *w, *b;
            float eps;
        } norm;
        struct {
            const void *packed;
            const float *bias;
            size_t k;
            rp_activation activation;
        } gemm; /* and of a qgemm */
        struct {
            const float *factors; /* of columns; NULL for all 1 */
            size_t k;
        } quantize;
        struct {
            size_t n_heads, n_kv_heads, head_dim;
            float scale;
            float *rel; /* owned by the plan; NULL for none */
            size_t rel_span;
            size_t window; /* 0: none */
            bool causal, options;
        } attention;
        struct {
            size_t n_heads, n_kv_heads, head_dim;
            float scale;
            size_t memory_width, key_column, value_column, max_memory;
        } cross;
        struct {
            struct rp_ops_rope turn; /* its table belongs to the plan */
            size_t index;            /* of positions, into the plan's indices */
            double theta;            /* 0: the frequencies were given */
        } rope;
        struct rp_ops_rms_norm rms_norm;
        struct {
            struct rp_ops_rms_norm norm; /* of a gated norm */
            rp_activation activation;
            size_t first_column;
            bool one;
        } gate;
        struct rp_ops_gdn_gates gdn_gates;
        struct {
            struct rp_expert *each; /* owned by the plan; NULL in a dry run */
            size_t n_experts, n_used, inner;
            bool normalize;
            bool int8; /* its first input is rows that a step before it rounded */
            rp_activation activation;
        } experts;
        struct rp_ops_conv conv;
        struct rp_gdn_args gdn;   /* without its rows */
        rp_activation activation; /* and of a glu */
        rp_pooling pooling;
        enum rp_read gather; /* of the tokens' rows, or rows that are these already */
        int32_t qtype;       /* of ordinal features */
    } p;
    uint64_t flops_per_row; /* attention of either kind: per row and key */
    uint64_t bytes_per_row, bytes_fixed;
};

struct rp_segment {
    size_t first, end; /* steps */
    rp_rows rows;
    bool by_row;       /* every step works row by row; else it is one step */
    bool chunked;      /* and by chunk it runs so: its rows are tokens */
    size_t chunk_rows; /* most rows of a chunk */
    uint64_t flops_per_row;
};

struct rp_plan_output {
    const char *name;
    int32_t slot;
};

struct rp_plan {
    rp_bucket bucket;
    uint32_t isa;
    const struct rp_gemm_kernel *gemm;
    const struct rp_qgemm_kernel *qgemm;
    const struct rp_ops *ops;
    const struct rp_attention_kernel *attention;
    const struct rp_gdn_kernel *gdn;
    struct rp_step *steps;
    size_t n_steps;
    struct rp_slot *slots;
    size_t n_slots;
    struct rp_segment *segments;
    size_t n_segments;
    struct rp_plan_output *outputs;
    size_t n_outputs;
    struct rp_plan_index indices[RP_PLAN_MAX_INDICES];
    size_t n_indices;
    struct rp_plan_rope *ropes;
    size_t n_ropes;
    uint64_t arena_bytes, scratch_bytes; /* scratch: per worker */
    uint64_t
        step_scratch; /* where that of a step which works by row begins, behind chunks' values */
    size_t attention_query_rows; /* least query rows of an attention task */
    bool sees_typed;             /* rows see others before them that are typed */
    char *names;                 /* the strings of steps, outputs and tables */
    size_t names_bytes;
    uint64_t own_bytes;     /* of the plan itself: this struct, the arrays, names and tables */
    uint64_t making_bytes;  /* needed on top while it is made */
    uint64_t weights_bytes; /* of the forms of weights that its steps use */
};

size_t rp_bucket_rows(const rp_bucket *bucket, rp_rows rows);

/* plan/compile.c: lowers without converting a weight, only to be measured: the plan cannot run. */
RP_CHECKED rp_status rp_plan_dry_run(const rp_graph *graph, const rp_weights *weights,
                                     const rp_bucket *bucket, const rp_plan_options *options,
                                     rp_plan **out, rp_error *err);

/* plan/op.c: what every op is. */
struct rp_shape {
    rp_rows rows;
    size_t width;
};

struct rp_lowering {
    const rp_graph *graph;
    const rp_weights *weights;
    rp_weights *make; /* NULL: a dry run, no weight is converted */
    rp_pool *pool;    /* for converting */
    bool no_fuse, no_prune;
    size_t max_memory;       /* 0: as the ops say */
    struct rp_shape *shapes; /* of each node */
    bool *needed;            /* nodes that an output depends on */
    unsigned char *reads;    /* of each node, for which rows it is computed: RP_READ_BIT()s */
    bool prunes;             /* there is a node that is not computed for all */
    int32_t *slots;          /* [RP_READS][n_nodes]: their slots, -1 before they are lowered */
    enum rp_read read;       /* of the node that is being lowered, */
    int32_t *slot_of;        /* and the slots of what it may take as input */
    bool *counted;           /* forms of weights that are in weights_bytes, RP_FORM_COUNT each */
    rp_plan *plan;
    size_t names_used;
};

/* Checks node i and fills in its shape. */
RP_CHECKED rp_status rp_op_check(struct rp_lowering *l, size_t i, rp_error *err);

/* Appends the step or steps of node i to the plan, as l->read says, and steps that gather what it
 * reads.  There is room for RP_LOWERED_STEPS, and for a gather of each value at each read. */
#define RP_LOWERED_STEPS 4
#define RP_SUFFIX_BYTES  16 /* of a step's name, behind that of its node, with the final 0 */
RP_CHECKED rp_status rp_op_lower(struct rp_lowering *l, size_t i, rp_error *err);

/* plan/prune.c: fills in l->reads of the nodes that are needed. */
#define RP_READ_BIT(read) (1u << (read))
void rp_prune(struct rp_lowering *l);

/* Which rows of its input a node reads. */
enum rp_read rp_node_read(const struct rp_node *node);
rp_rows rp_read_rows(enum rp_read read);

/* "first", "last", "marked"; NULL for all. */
const char *rp_read_name(enum rp_read read);

/* Whether the node is computed for rows that are read alone. */
static inline bool rp_pruned(const struct rp_lowering *l, size_t i)
{
    return !(l->reads[i] & RP_READ_BIT(RP_READ_ALL));
}

bool rp_op_by_row(enum rp_op op);

/* Floating-point operations of a gated delta net's rows [from, end), counted from a row where a
 * chunk begins; rows before `from` that share its chunk change the state and have no output.  Two
 * for each multiply-add of the recurrence by chunks (gdn/gdn.h). */
uint64_t rp_gdn_flops(const struct rp_gdn_args *shape, size_t from, size_t end);

/* Columns of a key head's values side by side. */
size_t rp_gdn_columns(const struct rp_gdn_args *shape);

/* Bytes that a worker needs for it: the kernel's, a state, and the one that children start from.
 * False when they wrap. */
bool rp_gdn_step_scratch(const struct rp_gdn_args *shape, size_t *out);

/* Whether a rope's positions are those of a question's options. */
static inline bool rp_rope_has_options(const rp_plan *plan, const struct rp_step *step)
{
    return plan->indices[step->p.rope.index].parameter == RP_POSITION_IN_OPTION;
}

/* plan/parents.c: finds what depends on question types. */
void rp_plan_find_typed(rp_plan *plan);

/* plan/joins.c: finds the steps that run together with the one before them. */
void rp_plan_find_joins(rp_plan *plan);

/* Whether the slot's value is one that steps running together never make as a whole. */
bool rp_slot_is_passed_by(const rp_plan *plan, const struct rp_slot *slot);

/* Panels of a product that the step which joins it takes at least: its tasks' columns are multiples
 * of so many. */
size_t rp_join_unit(const struct rp_step *step);

/* Attention of either kind: its work is counted per pair of a row and a key. */
static inline bool rp_op_attends(enum rp_op op)
{
    return op == RP_OP_ATTENTION || op == RP_OP_CROSS_ATTENTION;
}

/* A product with packed panels, whose columns can be shared out. */
static inline bool rp_op_multiplies(enum rp_op op)
{
    return op == RP_OP_GEMM || op == RP_OP_QGEMM;
}

/* plan/experts.c: scratch of a mixture of experts, of which a call may have so many rows; false
 * when it wraps.  It works on RP_EXPERTS_ROWS at once: as many as a chunk has at most. */
#define RP_EXPERTS_ROWS ((size_t)192)
bool rp_experts_scratch_bytes(const struct rp_step *step, size_t rows, size_t *out);

/* Of rows that a weight multiplies when a model is calibrated: the sums of the |cubes| of each
 * column, and how many rows. */
struct rp_cubes {
    double *columns;
    size_t rows;
};

/* For calibrating: adds to cubes[down[e]], of each expert e, the rows that its `down` multiplies,
 * one after the other.  x and logits: rows as the step reads them; the step is in FP32.  The sums
 * do not depend on the pool.  RP_ERR_NOMEM, and what a pool fails with. */
RP_CHECKED rp_status rp_experts_add_cubes(const struct rp_step *step, const rp_plan *plan,
                                          const float *x, const float *logits, size_t rows,
                                          rp_pool *pool, const rp_weight *down,
                                          struct rp_cubes *cubes, rp_error *err);

/* plan/calibrate.c: adds rows side by side, of as many columns as the cubes have. */
void rp_cubes_add(struct rp_cubes *cubes, const float *x, size_t rows, size_t width);

/* plan/arrange.c: live ranges, steps that join others, segments, both layouts, arena and scratch
 * sizes. */
RP_CHECKED rp_status rp_plan_arrange(rp_plan *plan, bool no_fuse, rp_error *err);

/* What arranging takes while it lasts. */
size_t rp_plan_arrange_bytes(const rp_plan *plan);

#endif
