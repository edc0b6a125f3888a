/* A model folder as sentence-transformers lays it out, or as plain transformers does.
 *
 *     modules.json                         which modules follow each other, and in which folders
 *     config_sentence_transformers.json    prompts, similarity, a cross-encoder's activation
 *     [0_Transformer/]config.json          with model.safetensors, tokenizer_config.json and
 *                                          sentence_bert_config.json: the transformer
 *     N_Pooling/config.json                how token rows become one row
 *     N_Dense/, N_LayerNorm/, N_Normalize/ what happens to that row
 *
 * Without modules.json the folder itself is the transformer.  No path may lead out of the folder.
 */
#ifndef RP_MODELS_FOLDER_H
#define RP_MODELS_FOLDER_H

#include "models/notes.h"

#include <rankplan/graph.h>
#include <rankplan/model.h>

#define RP_FOLDER_MAX_MODULES 16
#define RP_FOLDER_MAX_MODES   6

enum rp_module_kind {
    RP_MODULE_TRANSFORMER,
    RP_MODULE_POOLING,
    RP_MODULE_DENSE,
    RP_MODULE_LAYER_NORM,
    RP_MODULE_NORMALIZE,
    RP_MODULE_DROPOUT,     /* does nothing once trained */
    RP_MODULE_LOGIT_SCORE, /* a language model's answer as a score; the only one then */
};

struct rp_module {
    enum rp_module_kind kind;
    char *folder; /* of its files */
    /* Pooling */
    int64_t width; /* also LayerNorm's */
    rp_pooling modes[RP_FOLDER_MAX_MODES];
    size_t n_modes;
    bool include_prompt;
    /* Dense */
    int64_t in, out;
    bool bias, residual;
    rp_activation activation;
    bool to_scores; /* its output is the cross-encoder's scores */
    /* LogitScore: the ids of the two answers; -1: there is no second one. */
    int64_t yes, no;
};

enum rp_folder_task {
    RP_FOLDER_UNSAID,
    RP_FOLDER_EMBEDS,
    RP_FOLDER_CLASSIFIES,
    RP_FOLDER_GENERATES
};

struct rp_folder {
    char *root;
    char *transformer; /* folder of config.json and the weights */
    bool has_modules;
    struct rp_module modules[RP_FOLDER_MAX_MODULES]; /* those after the transformer */
    size_t n_modules;
    enum rp_folder_task task; /* what transformer_task says */
    int64_t max_length;       /* tokens; 0: not said */
    const char *max_length_source;
    rp_similarity similarity;
    char *activation_fn; /* config_sentence_transformers.json's; NULL: not said */
    char **prompt_names, **prompt_texts;
    size_t n_prompts;
    char *default_prompt; /* a name; NULL: none */
};

/* Reads everything but config.json and the weights. */
RP_CHECKED rp_status rp_folder_open(const char *path, struct rp_notes *notes, struct rp_folder *out,
                                    rp_error *err);
void rp_folder_close(struct rp_folder *folder);

/* "mean", "cls+max". */
#define RP_POOLING_TEXT_BYTES 96
const char *rp_folder_pooling_name(rp_pooling mode);
void rp_folder_pooling_text(const struct rp_module *pooling, char text[RP_POOLING_TEXT_BYTES]);

#endif
