/* before | instruction, query, document | after: the two ends are tokenised once, the middle as one
 * text for each document, since the last word of a label and the first of a document may share a
 * token ("<Document>:" and " foot"). */
#include "text/prompt.h"

#include "pool/error.h"

#include <stdlib.h>
#include <string.h>

/* A prompt begins with a special token; a tokenizer that does not know it would spell it out. */
static rp_status check_begin(const rp_tokenizer *tokenizer, const struct rp_prompt_ids *p,
                             rp_error *err)
{
    char token[32] = "";
    int32_t id;
    const char *end = strchr(p->form->before, '>');
    const size_t n = end ? (size_t)(end - p->form->before) + 1 : 0;
    if (n >= sizeof token)
        return RP_OK;
    memcpy(token, p->form->before, n);
    const rp_status status = rp_tokenizer_token_to_id(tokenizer, token, &id, err);
    if (status != RP_OK)
        return rp_fail_within(err, status, "the model's prompt");
    if (p->before.n == 0 || p->before.ids[0] != id)
        return rp_fail(err, RP_ERR_MISSING,
                       "the model's prompt: \"%s\" is no special token of the tokenizer", token);
    return RP_OK;
}

static rp_status encode(const rp_tokenizer *tokenizer, const char *text, rp_encoding *out,
                        rp_error *err)
{
    rp_encode_options options;
    rp_encode_options_init(&options);
    options.add_special = false;
    return rp_tokenizer_encode(tokenizer, text, strlen(text), &options, out, err);
}

static rp_status prepare(const rp_model *model, const rp_tokenizer *tokenizer,
                         const char *instruction, struct rp_prompt_ids *p, rp_error *err)
{
    RP_TRY(rp_model_pair_prompt(model, &p->form, err));
    if (!p->form)
        return instruction ? rp_fail(err, RP_ERR_UNSUPPORTED,
                                     "an instruction is part of a generative reranker's prompt, "
                                     "and this model has none")
                           : RP_OK;
    p->instruction = strdup(instruction ? instruction : p->form->instruction);
    if (!p->instruction)
        return rp_fail(err, RP_ERR_NOMEM, "no memory for an instruction");
    rp_encoding alone = {0};
    const rp_status status = encode(tokenizer, p->instruction, &alone, err);
    rp_encoding_free(&alone);
    if (status != RP_OK)
        return rp_fail_within(err, status, "the instruction");
    RP_TRY(encode(tokenizer, p->form->before, &p->before, err));
    RP_TRY(encode(tokenizer, p->form->after, &p->after, err));
    return check_begin(tokenizer, p, err);
}

rp_status rp_prompt_prepare(const rp_model *model, const rp_tokenizer *tokenizer,
                            const char *instruction, struct rp_prompt_ids *out, rp_error *err)
{
    *out = (struct rp_prompt_ids){0};
    const rp_status status = prepare(model, tokenizer, instruction, out, err);
    if (status != RP_OK)
        rp_prompt_free(out);
    return status;
}

void rp_prompt_free(struct rp_prompt_ids *prompt)
{
    free(prompt->instruction);
    rp_encoding_free(&prompt->before);
    rp_encoding_free(&prompt->after);
    *prompt = (struct rp_prompt_ids){0};
}

size_t rp_prompt_n_around(const struct rp_prompt_ids *prompt)
{
    return prompt->before.n + prompt->after.n;
}

rp_status rp_prompt_head(const struct rp_prompt_ids *prompt, rp_text_ref query, char **made,
                         rp_text_ref *out, rp_error *err)
{
    const rp_pair_prompt *form = prompt->form;
    const rp_text_ref pieces[] = {
        {form->instruction_label, strlen(form->instruction_label)},
        {prompt->instruction, strlen(prompt->instruction)},
        {form->query_label, strlen(form->query_label)},
        query,
        {form->document_label, strlen(form->document_label)},
    };
    if (query.length > RP_TEXT_MAX_BYTES)
        return rp_fail(err, RP_ERR_LIMIT, "text: %zu bytes, at most %zu are tokenised",
                       query.length, RP_TEXT_MAX_BYTES);
    size_t n = 0;
    for (size_t i = 0; i < 5; i++)
        n += pieces[i].length;
    char *p = malloc(n);
    if (!p)
        return rp_fail(err, RP_ERR_NOMEM, "no memory for a text of %zu bytes", n);
    *made = p;
    *out = (rp_text_ref){.data = p, .length = n};
    for (size_t i = 0; i < 5; p += pieces[i++].length)
        if (pieces[i].length)
            memcpy(p, pieces[i].data, pieces[i].length);
    return RP_OK;
}
