/* Models: a folder in Hugging Face layout, read into a graph and its weights.
 *
 * A folder holds config.json and model.safetensors (or shards with their index); a
 * sentence-transformers folder also modules.json and what it lists.  Files are untrusted: every
 * size is checked; every config key is used, known to be harmless, refused by name, or, when nobody
 * knows it, ignored and listed (rp_model_note); every tensor is used or listed. Nothing is ever
 * downloaded.  Files are read, not mapped, so a file that is cut or changed later cannot hurt a
 * loaded model.
 *
 * Outputs of a model's graph:
 *
 *     "embedding"  embedders: sequences x dimension, pooled, after Dense and Normalize modules
 *     "logits"     classifiers and cross-encoders: sequences x labels.  Language models: sequences
 *                  x 1 (the answer yes less no); without a tokenizer.json x the vocabulary
 *     "scores"     the logits through the model's own activation
 *     "last"       with RP_MODEL_ALL_OUTPUTS: tokens x hidden
 *     "pooler"     with RP_MODEL_ALL_OUTPUTS, where there is one: sequences x hidden
 *
 * and of a decision scorer's (RP_TASK_DECIDE), each only when a flag asks for it; without such a
 * flag the first two:
 *
 *     "logits"     markers x 1: how well each option fits
 *     "act"        sequences x 2: act on the answer, or not
 *     "pooled"     sequences x hidden: the mean of the body's rows, before the question's type; the
 *                  head is not run for it
 *     "features"   with RP_MODEL_ALL_OUTPUTS (and all of the above): see rp_graph_act_features
 *
 * A split encoder (a folder with kime.json) is a decision scorer of several graphs, see rp_part.
 */
#ifndef RANKPLAN_MODEL_H
#define RANKPLAN_MODEL_H

#include <rankplan/graph.h>
#include <rankplan/machine.h>
#include <rankplan/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rp_model rp_model;

typedef enum rp_task {
    RP_TASK_EMBED = 0,    /* a vector per text */
    RP_TASK_CLASSIFY = 1, /* labels per text or pair; with one label a cross-encoder */
    RP_TASK_DECIDE = 2    /* a logit per marked option of a typed question */
} rp_task;

typedef enum rp_similarity {
    RP_SIM_COSINE = 0,
    RP_SIM_DOT = 1,
    RP_SIM_EUCLIDEAN = 2, /* negated distance */
    RP_SIM_MANHATTAN = 3  /* negated distance */
} rp_similarity;

#define RP_MODEL_ALL_OUTPUTS 1u
/* Outputs of a decision scorer, in any combination; of other models RP_ERR_INVALID. */
#define RP_MODEL_LOGITS 2u
#define RP_MODEL_ACT    4u
#define RP_MODEL_POOLED 8u

typedef struct rp_model_options {
    size_t struct_size;     /* sizeof(rp_model_options) */
    unsigned flags;         /* RP_MODEL_... ; default 0 */
    rp_pool *pool;          /* converts weights in parallel; borrowed for the call; may be NULL */
    rp_precision precision; /* of products of token rows, but for those that choose experts, which
                               stay FP32; default RP_PRECISION_FP32.  INT8 runs the model once on
                               random ids, unless there are smoothing factors */
    const char *keep_fp32;  /* INT8: see rp_quantize_options.keep */
    const char *smoothing;  /* INT8: a file of smoothing factors that `rankplan quantize` wrote;
                               NULL: rankplan-int8.json of the folder, if there is one */
} rp_model_options;

RP_API void rp_model_options_init(rp_model_options *options);

/* Loads the model in `folder`: reads, checks and converts everything, so that a loaded model needs
 * no file any more.  options may be NULL.  Allocates. RP_ERR_IO, RP_ERR_FORMAT, RP_ERR_MISSING,
 * RP_ERR_SHAPE, RP_ERR_UNSUPPORTED, RP_ERR_LIMIT, RP_ERR_NOMEM: the message names the file and the
 * key or tensor.  With INT8 also what rp_weights_quantize fails with. */
RP_API RP_CHECKED rp_status rp_model_load(const char *folder, const rp_model_options *options,
                                          rp_model **out, rp_error *err);

/* NULL does nothing.  Sessions made with its graph must be gone. */
RP_API void rp_model_destroy(rp_model *model);

/* Of a split encoder the layers are the state's, and max_length is that of a question. */
typedef struct rp_model_info {
    size_t struct_size;       /* sizeof(rp_model_info), set by the caller */
    const char *family;       /* "bert", "xlm-roberta", ... (model_type) */
    const char *architecture; /* "BertForSequenceClassification" */
    rp_task task;
    size_t n_layers, hidden, n_heads, head_dim, intermediate, vocab_size;
    size_t max_length;              /* tokens, specials included */
    const char *max_length_source;  /* which file and key said so */
    size_t dimension;               /* of the embedding; 0 for classifiers */
    size_t n_labels;                /* 0 for embedders */
    rp_activation score_activation; /* what turns logits into scores */
    const char *pooling;            /* "mean", "cls+max", ...; "" for classifiers */
    int normalized;                 /* the folder ends with a Normalize module */
    rp_similarity similarity;
    uint64_t n_parameters; /* in the tensors that are used */
    size_t n_type_ids;     /* rows of the segment table; 0 or 1: segments are ignored */
    int32_t pad_id;        /* -1: none */
    size_t n_notes;
    rp_precision precision;
    const char *smoothing;   /* INT8: where the smoothing factors are from; else "" */
    size_t n_question_types; /* of a decision scorer; else 0 */
} rp_model_info;

/* Strings belong to the model. */
RP_API void rp_model_get_info(const rp_model *model, rp_model_info *out);

/* The i-th thing that a user might want to know: a tensor that is not used, a default that was
 * taken. NULL when there is no i-th. */
RP_API const char *rp_model_note(const rp_model *model, size_t i);

/* Label i's name; NULL when there is none. */
RP_API const char *rp_model_label(const rp_model *model, size_t i);

/* The name of question type i ("choice", "score", "noul"); NULL when it has none. */
RP_API const char *rp_model_question_type(const rp_model *model, size_t i);

/* What a decision scorer's logits are divided by before the softmax: the question type's
 * temperature, or that of the type with about so many options; within 0.5 and 5.  1 for other
 * models and types that there are none of. */
RP_API float rp_model_temperature(const rp_model *model, size_t question_type, size_t n_options);

/* Probabilities of n logits: softmax(logits / temperature), the same bits on every machine.  out
 * may be logits.  Any thread; does not allocate. */
RP_API void rp_softmax(const float *logits, size_t n, float temperature, float *out);

/* The text that is put before an input by prompt name ("query"); name NULL: the default prompt.
 * NULL when the folder has none of that name. */
RP_API const char *rp_model_prompt(const rp_model *model, const char *name);

/* How a generative reranker reads a pair: a text of its own between two others,
 *
 *     before | instruction_label instruction query_label query document_label document | after
 *
 * each of the three tokenised by itself ("|").  rp_ranker does this. */
typedef struct rp_pair_prompt {
    const char *before;
    const char *instruction_label, *query_label, *document_label;
    const char *after;
    const char *instruction; /* the model's own; a request may have another */
} rp_pair_prompt;

/* The prompt of the model's pairs: Qwen3-Reranker's where the folder's chat template is that one,
 * whatever the model, and where a Qwen language model's folder says nothing better.  *out is NULL
 * where there is none, and the tokenizer's own template joins them.  It belongs to the model.  Any
 * thread; does not allocate.  RP_ERR_UNSUPPORTED: the model answers as a language model, and
 * neither its chat template nor its family has a prompt that is known.  Such a model runs ids, but
 * ranks no texts. */
RP_API RP_CHECKED rp_status rp_model_pair_prompt(const rp_model *model, const rp_pair_prompt **out,
                                                 rp_error *err);

/* For sessions.  Both live as long as the model. */
RP_API const rp_graph *rp_model_graph(const rp_model *model);
RP_API rp_weights *rp_model_weights(const rp_model *model);

/* The graphs of a split encoder, which all use rp_model_weights(): a state is read once, and each
 * question about it reads only what was kept of it.
 *
 *     STATE     a state's ids -> "memory" (tokens x memory_width), "pooled" (sequences x hidden)
 *     MAIN      a question's ids, markers and type, and the memory of its state
 *               (rp_batch.memories) -> "logits" (markers x 1)
 *
 * A question is a header and then options, each beginning at its marker; each option is read by
 * itself, so that their order says nothing but in questions of type 1 (levels of a score).  A state
 * made of segments, such as elements of a page of which few change, is run in two steps, of which
 * the first can be kept:
 *
 *     SEGMENT   a segment's ids -> "low" (tokens x hidden); nothing but the segment bears on it
 *     SEGMENTS  low rows of all segments of the state one after the other (rp_batch.input), in
 *               type_ids the number of each token's segment, at most max_segments - 1 ->
 *               "memory", "pooled", as STATE's, but not the numbers that STATE gives
 *
 * With RP_MODEL_ALL_OUTPUTS all but SEGMENT also have "last" (tokens x hidden). */
typedef enum rp_part {
    RP_PART_MAIN = 0, /* rp_model_graph() */
    RP_PART_STATE = 1,
    RP_PART_SEGMENT = 2,
    RP_PART_SEGMENTS = 3
} rp_part;

/* NULL where the model has none: of other models there is only the main one.  Lives as long as the
 * model.  Any thread; does not allocate. */
RP_API const rp_graph *rp_model_part(const rp_model *model, rp_part part);

/* What kime.json says. */
typedef struct rp_split_info {
    size_t struct_size; /* sizeof(rp_split_info), set by the caller */
    size_t n_state_layers, n_question_layers;
    size_t n_top_layers; /* of the state's, those that SEGMENTS runs */
    size_t memory_width; /* floats of a row: 2 x question layers x heads of keys x 64 */
    size_t max_state_tokens, max_question_tokens;
    size_t max_segments; /* that have numbers; later ones take the last one's */
    size_t max_options;  /* of a question */
    /* The tokens that are put around texts: [CLS_S] state [SEP]; [CLS_Q] header [SEP], then for
     * each option [OPT] option [SEP], or of a noul [NO] ... [SEP] [YES] ... [SEP]. */
    int32_t cls_s_id, cls_q_id, sep_id, opt_id, no_id, yes_id;
} rp_split_info;

/* False, and *out is as it was, where the model is no split encoder.  Any thread; does not
 * allocate. */
RP_API bool rp_model_get_split(const rp_model *model, rp_split_info *out);

/* The step of the graph whose result is hidden state `layer` (0 = after the embeddings, n = after
 * layer n-1), or NULL when there is none; for checks against a reference.  In a plan that is not
 * fused, a step X with a residual has its sum in "X.add".  Of the last one a session computes only
 * the rows that are read (rp_step_info's tokens), unless the model was loaded with
 * RP_MODEL_ALL_OUTPUTS or the session has no_prune. */
RP_API const char *rp_model_hidden_name(const rp_model *model, size_t layer);

/* A tensor of a safetensors file, for reading test cases and reference outputs. */
typedef struct rp_tensor_file rp_tensor_file;
typedef struct rp_tensor {
    const char *name;  /* belongs to the file */
    const char *dtype; /* as written: "F32", "I32", ... */
    size_t rank;
    uint64_t dims[8];
    uint64_t n_elements;
} rp_tensor;

/* Opens and checks a safetensors file (not sharded). */
RP_API RP_CHECKED rp_status rp_tensor_file_open(const char *path, rp_tensor_file **out,
                                                rp_error *err);
RP_API void rp_tensor_file_close(rp_tensor_file *file);
RP_API size_t rp_tensor_file_count(const rp_tensor_file *file);
/* In the order of their data. RP_ERR_INVALID: no such index. */
RP_API RP_CHECKED rp_status rp_tensor_file_get(const rp_tensor_file *file, size_t i,
                                               rp_tensor *out);
/* RP_ERR_MISSING. */
RP_API RP_CHECKED rp_status rp_tensor_file_find(const rp_tensor_file *file, const char *name,
                                                rp_tensor *out, rp_error *err);
/* Reads all elements, converted: floats from F32, F16, BF16 (and integers exactly representable);
 * int32 from I32, I64, U8, BOOL and integral floats; a value that does not fit is RP_ERR_FORMAT. */
RP_API RP_CHECKED rp_status rp_tensor_file_read_f32(const rp_tensor_file *file, const char *name,
                                                    float *out, size_t n, rp_error *err);
RP_API RP_CHECKED rp_status rp_tensor_file_read_i32(const rp_tensor_file *file, const char *name,
                                                    int32_t *out, size_t n, rp_error *err);

#ifdef __cplusplus
}
#endif
#endif
