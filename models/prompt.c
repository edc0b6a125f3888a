/* Which prompt a folder means:
 *
 *     its chat template is Qwen3-Reranker's                 that one, whatever the architecture
 *     generative, no modules (as Qwen publishes it; the     Qwen3-Reranker's, for its families
 *       chat template is then the base model's)
 *     generative, with modules, another chat template       not known
 *     else                                                  none: the tokenizer joins pairs
 *
 * A folder with modules is sentence-transformers', which asks the chat template for the prompt and
 * gives the default prompt to it as the instruction.
 */
#include "models/prompt.h"

#include "models/file.h"
#include "models/json.h"
#include "pool/error.h"

#include <stdlib.h>
#include <string.h>

#define MAX_TEMPLATE_BYTES ((uint64_t)1 << 20)

#define TASK                                                                                       \
    "Judge whether the Document meets the requirements based on the Query and the Instruct "       \
    "provided. Note that the answer can only be \"yes\" or \"no\"."

/* Source: the model card of Qwen/Qwen3-Reranker-0.6B. */
static const rp_pair_prompt qwen3 = {
    .before = "<|im_start|>system\n" TASK "<|im_end|>\n<|im_start|>user\n",
    .instruction_label = "<Instruct>: ",
    .query_label = "\n<Query>: ",
    .document_label = "\n<Document>: ",
    .after = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    .instruction = "Given a web search query, retrieve relevant passages that answer the query",
};

enum chat { CHAT_NONE, CHAT_OTHER, CHAT_QWEN3 };

/* Line ends are written as such, or as \n in a string of the template. */
static enum chat recognise(const char *text)
{
    if (strstr(text, TASK) &&
        (strstr(text, "<think>\n\n</think>\n\n") || strstr(text, "<think>\\n\\n</think>\\n\\n")))
        return CHAT_QWEN3;
    return CHAT_OTHER;
}

static rp_status read_jinja(const char *path, enum chat *out, rp_error *err)
{
    int fd;
    uint64_t size;
    RP_TRY(rp_file_open(path, &fd, &size, err));
    rp_status s = RP_OK;
    char *text = NULL;
    if (size > MAX_TEMPLATE_BYTES)
        s = rp_fail(err, RP_ERR_LIMIT, "%s: over %llu bytes, the most that is read", path,
                    (unsigned long long)MAX_TEMPLATE_BYTES);
    else if (!(text = calloc((size_t)size + 1, 1)))
        s = rp_fail(err, RP_ERR_NOMEM, "%s: no memory", path);
    else
        s = rp_file_read(fd, path, 0, text, (size_t)size, err);
    rp_file_close(fd);
    if (s == RP_OK)
        *out = recognise(text);
    free(text);
    return s;
}

/* One template, or a list of {name, template}. */
static rp_status read_tokenizer_config(const char *path, enum chat *out, rp_error *err)
{
    struct rp_json json;
    RP_TRY(rp_json_open(path, RP_JSON_AS_REAL, &json, err));
    const json_t *said = rp_json_get(&json, "chat_template"), *entry;
    size_t i;
    if (json_is_string(said))
        *out = recognise(json_string_value(said));
    json_array_foreach(said, i, entry)
    {
        const json_t *text = json_object_get(entry, "template");
        if (*out != CHAT_QWEN3 && json_is_string(text))
            *out = recognise(json_string_value(text));
    }
    rp_json_close(&json);
    return RP_OK;
}

/* chat_template.jinja, else tokenizer_config.json's key, as transformers does. */
static rp_status read_chat(const struct rp_folder *folder, enum chat *out, rp_error *err)
{
    static const char *const names[] = {"chat_template.jinja", "tokenizer_config.json"};
    *out = CHAT_NONE;
    for (size_t i = 0; i < 2 && *out == CHAT_NONE; i++) {
        bool there;
        RP_TRY(rp_file_exists(folder->transformer, names[i], &there, err));
        if (!there)
            continue;
        char *path = rp_path_join(folder->transformer, names[i]);
        if (!path)
            return rp_fail(err, RP_ERR_NOMEM, "%s: no memory", folder->transformer);
        const rp_status s =
            i == 0 ? read_jinja(path, out, err) : read_tokenizer_config(path, out, err);
        free(path);
        RP_TRY(s);
    }
    return RP_OK;
}

/* The text of the folder's default prompt, or NULL. */
static const char *default_prompt(const struct rp_folder *folder)
{
    for (size_t i = 0; folder->default_prompt && i < folder->n_prompts; i++)
        if (strcmp(folder->prompt_names[i], folder->default_prompt) == 0)
            return folder->prompt_texts[i];
    return NULL;
}

rp_status rp_prompt_find(const struct rp_folder *folder, const char *family, bool generative,
                         struct rp_prompt *out, struct rp_notes *notes, rp_error *err)
{
    enum chat chat;
    *out = (struct rp_prompt){.pair = qwen3};
    RP_TRY(read_chat(folder, &chat, err));
    const bool published = generative && strncmp(family, "qwen3", 5) == 0 &&
                           (chat == CHAT_NONE || !folder->has_modules);
    out->there = chat == CHAT_QWEN3 || published;
    out->foreign = generative && !out->there;
    if (out->there && default_prompt(folder))
        out->pair.instruction = default_prompt(folder);
    if (chat == CHAT_QWEN3 || !published)
        return RP_OK;
    return rp_notes_add(notes, err,
                        "the folder does not say what prompt its pairs are read in: that of "
                        "Qwen3-Reranker is taken");
}
