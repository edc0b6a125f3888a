/* From the last hidden state to a vector: the modules of a sentence-transformers folder as ops. */
#ifndef RP_MODELS_CHAIN_H
#define RP_MODELS_CHAIN_H

#include "models/build.h"
#include "models/folder.h"

/* The tensors of the modules' own files; open until the weights are prepared. */
struct rp_chain {
    struct rp_tensors *files[RP_FOLDER_MAX_MODULES];
    uint64_t width; /* of the result */
    bool normalized;
    bool scores; /* the result is a cross-encoder's logits */
};

/* Appends the modules to the graph.  `width` is that of `last`.  Failures of a single weight go to
 * the build; files that cannot be opened and widths that do not fit are returned. */
RP_CHECKED rp_status rp_chain_build(struct rp_build *build, const struct rp_folder *folder,
                                    uint64_t width, rp_value last, struct rp_notes *notes,
                                    struct rp_chain *chain, rp_value *out, rp_error *err);
void rp_chain_close(struct rp_chain *chain);

#endif
