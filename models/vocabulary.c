/* See vocabulary.h. */
#include "models/vocabulary.h"

#include "models/file.h"
#include "models/json.h"
#include "pool/error.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* NULL when there is none; of several the last counts, as if they were added one by one. */
static const json_t *find_added(const json_t *root, const char *word)
{
    const json_t *found = NULL, *entry;
    size_t i;
    json_array_foreach(json_object_get(root, "added_tokens"), i, entry)
    {
        const char *content = json_string_value(json_object_get(entry, "content"));
        if (content && strcmp(content, word) == 0)
            found = json_object_get(entry, "id");
    }
    return found;
}

/* Unigram models have a list of [token, score]; -1 when the word is not in it. */
static int64_t find_listed(const json_t *list, const char *word)
{
    const json_t *pair;
    size_t i;
    json_array_foreach(list, i, pair)
    {
        const char *token = json_string_value(json_array_get(pair, 0));
        if (token && strcmp(token, word) == 0)
            return (int64_t)i;
    }
    return -1;
}

static rp_status find_word(const char *path, const json_t *root, const char *word, int64_t *id,
                           rp_error *err)
{
    const json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    const json_t *found = find_added(root, word);
    if (!found)
        found = json_object_get(vocab, word);
    if (!found && json_is_array(vocab) && (*id = find_listed(vocab, word)) >= 0)
        return RP_OK;
    if (!found)
        return rp_fail(err, RP_ERR_MISSING,
                       "%s: the vocabulary has no token \"%s\", which this model is to answer with",
                       path, word);
    if (!json_is_integer(found) || json_integer_value(found) < 0 ||
        json_integer_value(found) > INT32_MAX)
        return rp_fail(err, RP_ERR_FORMAT, "%s: the id of \"%s\" is no whole number from 0 on",
                       path, word);
    *id = json_integer_value(found);
    return RP_OK;
}

rp_status rp_vocabulary_find(const char *folder, size_t n, const char *const *words, int64_t *ids,
                             rp_error *err)
{
    char *path = rp_path_join(folder, "tokenizer.json");
    json_t *root = NULL;
    rp_status s = path ? rp_json_read(path, 0, &root, err)
                       : rp_fail(err, RP_ERR_NOMEM, "%s: no memory", folder);
    if (s == RP_OK && !json_is_object(root))
        s = rp_fail(err, RP_ERR_FORMAT, "%s: an object is due", path);
    for (size_t i = 0; i < n && s == RP_OK; i++)
        s = find_word(path, root, words[i], &ids[i], err);
    json_decref(root);
    free(path);
    return s;
}
