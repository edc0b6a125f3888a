/* The split encoder (family "kime-v1"): a state is read once, and any number of questions are then
 * asked about what was kept of it.
 *
 *     s = norm(tok[state id])                                 state.embeddings.tok, .norm
 *     for each state layer, as ModernBERT's                   state.layers.N.*
 *     s = norm(s)                                             state.final_norm
 *     memory = s [K_0 V_0 K_1 V_1 ...]^T                      memory; a pair for each question
 * layer pooled = mean of s, of unit length                      pooled
 *
 *     q = norm(tok[question id]) + type_emb[question type]    question.embeddings.tok, .norm, types
 *     for each question layer:
 *         q = q + attention(norm(q)) Wo^T                     question.layers.N.attn.*
 *         q = q + attention(norm(q) Wq^T, K_N, V_N) Wo^T      question.layers.N.cross.*
 *         q = q + W2 (gelu(a) b),  a,b = W1 norm(q)           question.layers.N.ffn.*
 *     q = norm(q)                                             question.final_norm
 *     m = q[marker] + ord_emb(where the marker stands)        markers, ordinal; of score questions
 *     logit = Wb gelu(Wa norm(m)) + bias[question type]       scorer.norm, .dense, .out, logits
 *
 * A question is a header and options, each of which begins with its marker: options do not see each
 * other but for their markers, and each counts its positions on from the header, so their order
 * says nothing.
 *
 * A state may also be made of segments.  The layers below the top segment_top_layers run on each
 * segment by itself, so what they give can be kept; then each token gets the embedding of its
 * segment's number, and the top layers run over all of them.
 *
 * All of it is described by kime.json.  The same weights serve four graphs (rp_part).
 */
#ifndef RP_MODELS_SPLIT_H
#define RP_MODELS_SPLIT_H

#include "models/modernbert.h"

#include <rankplan/model.h>

#define RP_SPLIT_FILE       "kime.json"
#define RP_SPLIT_FAMILY     "kime-v1"
#define RP_SPLIT_MAX_LAYERS 64 /* of the question tower: the memory has one weight for all */
#define RP_SPLIT_N_PARTS    4

struct rp_split {
    struct rp_json json; /* object NULL: this is no such model */
    char *path;
    const char *id;              /* belongs to json */
    struct rp_modernbert towers; /* sizes of both; window and bases of the state's */
    int64_t question_layers, kv_heads;
    rp_split_info info;
};

/* Opens kime.json if the folder has one and it is not Laya's, whose own files say more. */
RP_CHECKED rp_status rp_split_open(const char *folder, struct rp_split *split, rp_error *err);
void rp_split_close(struct rp_split *split);

/* Reads all of it.  RP_ERR_MISSING, RP_ERR_FORMAT, RP_ERR_LIMIT name the key; RP_ERR_UNSUPPORTED:
 * another family or GELU, or a key that nobody knows. */
RP_CHECKED rp_status rp_split_configure(struct rp_split *split, rp_error *err);

/* Builds the graphs, by rp_part, on the build's weights.  `all`: also "last" of questions and whole
 * states.  Failures go to the build. */
void rp_split_build(struct rp_build *build, const struct rp_split *split,
                    rp_graph *const graphs[RP_SPLIT_N_PARTS], bool all);

/* Refuses tensors that are missing, of another shape or type, or of no use: one message counts all
 * kinds and names a few of each.  RP_ERR_MISSING, RP_ERR_SHAPE, RP_ERR_UNSUPPORTED, RP_ERR_FORMAT:
 * the first of these that there is one of.  RP_ERR_SHAPE, too: more layers than tensors. */
RP_CHECKED rp_status rp_split_check_tensors(struct rp_build *build, rp_error *err);

#endif
