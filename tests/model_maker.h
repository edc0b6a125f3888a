/* Tiny model folders for tests: temporary folders, safetensors files written byte by byte, and
 * whole models with random weights.  Knows the checkpoint formats on its own, not through models/.
 */
#ifndef RP_TESTS_MODEL_MAKER_H
#define RP_TESTS_MODEL_MAKER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- folders ----------------------------------------------------------------------------------
 */

struct maker_dir {
    char path[256];
};

void maker_dir_create(struct maker_dir *dir);
void maker_dir_remove(struct maker_dir *dir); /* with everything in it */

/* PATH/name, in one of a few static buffers. */
const char *maker_path(const struct maker_dir *dir, const char *name);

void maker_write(const struct maker_dir *dir, const char *name, const void *bytes, size_t n);
void maker_write_text(const struct maker_dir *dir, const char *name, const char *text);
void maker_write_json(const struct maker_dir *dir, const char *name, const json_t *value);
void maker_mkdir(const struct maker_dir *dir, const char *name);
void maker_copy_file(const char *from, const char *to);

/* ---- safetensors ------------------------------------------------------------------------------
 */

/* A file of that header and data, whatever they say; header_bytes is what the file announces. */
void maker_write_st(const struct maker_dir *dir, const char *name, uint64_t header_bytes,
                    const char *header, const void *data, size_t n_data);

/* Tensors in memory, as f32. */
struct maker_tensor {
    char name[128];
    size_t rank;
    uint64_t dims[3];
    size_t n;
    float *data;
};

enum maker_dtype { MAKER_F32, MAKER_F16, MAKER_BF16 };

/* All of them in one file; values are rounded to dtype in memory too. */
void maker_write_tensors(const struct maker_dir *dir, const char *name,
                         struct maker_tensor *tensors, size_t n, enum maker_dtype dtype);

/* ---- models -----------------------------------------------------------------------------------
 */

/* What only ModernBERT has. */
struct maker_modernbert {
    int local_attention, every; /* 0: the config does not say it, which means 128 and 3 */
    const char *types;          /* a letter for each layer, f(ull) or s(liding); NULL: by `every` */
    double theta[2];            /* full, sliding */
    bool parameters;            /* says it as layer_types and rope_parameters */
    bool norm_bias, attention_bias, mlp_bias, classifier_bias;
    const char *pooling, *classifier_activation;
    /* For the reference alone: frequencies that are not theta's, of either type of layer. */
    const double *inv_freq[2];
    double rope_scale; /* of cosines and sines; 0: 1 */
};

/* What only decoders have. */
struct maker_decoder {
    int kv_heads, head_dim;
    const char *types;  /* a letter for each layer: f(ull), s(liding), l(inear) */
    double theta, part; /* theta 0: no rotary positions; part of a head that is turned */
    bool parameters;    /* says it as rope_parameters */
    int window;         /* of sliding layers, as config.json counts it; 0: none */
    bool attention_bias, tied;
    /* Linear layers. */
    int key_heads, value_heads, key_dim, value_dim, kernel;
    bool twice_beta;
    bool published; /* OLMo: names of the published checkpoint */
    /* Experts; 0: none. */
    int experts, used, expert_inner, shared_inner, sparse_every;
    int dense_layer; /* mlp_only_layers has it; -1: nothing */
    bool normalize, stacked;
    bool predicts;  /* ForCausalLM */
    bool text_part; /* qwen3_5: text_config, and tensors under model.language_model. */
};

struct maker_model {
    /* Set by the caller. */
    const char *family; /* model_type */
    int vocab, hidden, layers, heads, intermediate, positions;
    int embedding; /* ELECTRA's; 0: hidden */
    int types;     /* 0: none */
    int labels;    /* 0: the bare model */
    int pad;
    int rel_buckets;
    bool pooler; /* a bare model with a pooler */
    const char *activation;
    double eps;
    struct maker_modernbert modernbert;
    struct maker_decoder decoder;
    uint64_t seed;
    /* Made. */
    struct maker_tensor *tensors;
    size_t n_tensors;
};

/* A small model of a family with everything set; change what the test is about, then fill. */
struct maker_model maker_model_default(const char *family);

/* Makes all tensors, with random values that keep activations of order one. */
void maker_model_fill(struct maker_model *m);
void maker_model_free(struct maker_model *m);

/* The tensor of that name without the family's prefix; the test fails when there is none. */
struct maker_tensor *maker_model_find(const struct maker_model *m, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

bool maker_is_decoder(const struct maker_model *m);

/* Decoders: whether a layer has experts. */
bool maker_layer_is_sparse(const struct maker_model *m, int layer);

/* ModernBERT: whether a layer sees the whole text. */
bool maker_layer_is_full(const struct maker_model *m, int layer);

/* Names as the checkpoint of a model with a head has them. */
const char *maker_prefix(const struct maker_model *m);

/* config.json; to be changed and freed by the caller. */
json_t *maker_model_config(const struct maker_model *m);

struct maker_write_options {
    enum maker_dtype dtype;
    bool prefix;      /* "bert." before the body's names */
    bool gamma_beta;  /* old names of norms */
    bool leftovers;   /* position_ids and a pre-training head as well */
    int shards;       /* 0: one file */
    const char *drop; /* the first tensor of that name is left out; NULL: none */
};

/* model.safetensors (or shards with index) and config.json.  Values are rounded to dtype in the
 * model too, so that a reference sees what the file holds. */
void maker_model_write(struct maker_model *m, const struct maker_dir *dir,
                       const struct maker_write_options *options);

/* Random numbers: a generator that is the same everywhere. */
uint64_t maker_random(uint64_t *state);
float maker_random_float(uint64_t *state); /* in [-1, 1) */

/* Fails when there is no text (usually an error's), or it does not have the word; shows both. */
void assert_says(const char *text, const char *word);

#endif
