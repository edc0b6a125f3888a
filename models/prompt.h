/* The prompt that a generative reranker reads a pair in, found in its folder.
 *
 * Chat templates are programs (Jinja), and none is run here: the one prompt that is known, that of
 * Qwen3-Reranker, is recognised by its text.  Without its prompt such a model's scores are noise,
 * so a folder that has another one ranks no texts, and says so.
 */
#ifndef RP_MODELS_PROMPT_H
#define RP_MODELS_PROMPT_H

#include "models/folder.h"
#include "models/notes.h"

#include <rankplan/model.h>

struct rp_prompt {
    bool there;
    bool foreign; /* a prompt is needed, and the folder's is not known */
    rp_pair_prompt pair;
};

/* `generative`: the score is made of a language model's logits.  `family` is the model_type. */
RP_CHECKED rp_status rp_prompt_find(const struct rp_folder *folder, const char *family,
                                    bool generative, struct rp_prompt *out, struct rp_notes *notes,
                                    rp_error *err);

#endif
