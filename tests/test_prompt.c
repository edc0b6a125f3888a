/* The prompt of generative rerankers: which folders have it, and its tokens, against encodings put
 * together by hand from the bytes that Qwen3-Reranker was trained on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <rankplan/rankplan.h>

#include "models/prompt.h"
#include "tests/model_maker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BEFORE                                                                                     \
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query "    \
    "and the Instruct provided. Note that the answer can only be \"yes\" or \"no\"."               \
    "<|im_end|>\n<|im_start|>user\n"
#define AFTER       "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
#define INSTRUCTION "Given a web search query, retrieve relevant passages that answer the query"
#define MIDDLE(instruction, query, document)                                                       \
    "<Instruct>: " instruction "\n<Query>: " query "\n<Document>: " document

#define JINJA                                                                                      \
    BEFORE "<Instruct>: {{ instruction }}\n<Query>: {{ query }}\n<Document>: {{ document }}" AFTER

/* ---- a tokenizer of bytes and a few merges -----------------------------------------------------
 */

static const char *const merges[][2] = {{"o", "o"}, {"f", "oo"}, {"\xC4\xA0", "foo"}, {">", ":"},
                                        {"e", "s"}, {"y", "es"}, {"n", "o"},          {"<", "|"},
                                        {"|", ">"}, {"Ċ", "Ċ"},  {"t", "h"},          {"th", "e"},
                                        {"e", "r"}, {"u", "er"}, {"q", "uer"}};
enum { N_MERGES = sizeof merges / sizeof *merges };

/* The letter of a byte in GPT-2's alphabet: itself where it can be seen, else from U+0100 on. */
static void letter(int byte, char out[3])
{
    int c = byte, hidden = 256;
    for (int b = 0; b <= byte; b++) {
        const bool seen = (b > ' ' && b < 127) || (b > 160 && b != 173);
        if (b == byte)
            c = seen ? b : hidden;
        hidden += !seen;
    }
    memset(out, 0, 3);
    if (c < 128) {
        out[0] = (char)c;
        return;
    }
    out[0] = (char)(0xC0 | c >> 6);
    out[1] = (char)(0x80 | (c & 63));
}

static json_t *added(int id, const char *text, bool special)
{
    return json_pack("{s:i,s:s,s:b,s:b,s:b,s:b,s:b}", "id", id, "content", text, "single_word", 0,
                     "lstrip", 0, "rstrip", 0, "normalized", 0, "special", (int)special);
}

/* Writes tokenizer.json and returns how many ids it has. */
static int write_tokenizer(const struct maker_dir *dir, bool with_chat)
{
    json_t *vocabulary = json_object(), *list = json_array(), *extra = json_array();
    int id = 0;
    char text[32];
    for (int b = 0; b < 256; b++) {
        letter(b, text);
        json_object_set_new(vocabulary, text, json_integer(id++));
    }
    for (int i = 0; i < N_MERGES; i++) {
        snprintf(text, sizeof text, "%s%s", merges[i][0], merges[i][1]);
        json_object_set_new(vocabulary, text, json_integer(id++));
        json_array_append_new(list, json_pack("[ss]", merges[i][0], merges[i][1]));
    }
    json_array_append_new(extra, added(id++, "<|endoftext|>", true));
    if (with_chat) {
        json_array_append_new(extra, added(id++, "<|im_start|>", true));
        json_array_append_new(extra, added(id++, "<|im_end|>", true));
        json_array_append_new(extra, added(id++, "<think>", false));
        json_array_append_new(extra, added(id++, "</think>", false));
    }
    json_t *bytes = json_pack("{s:s,s:b,s:b,s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                              "trim_offsets", 0, "use_regex", 1);
    json_t *root =
        json_pack("{s:s,s:o,s:n,s:O,s:O,s:O,s:{s:s,s:n,s:n,s:n,s:n,s:b,s:b,s:o,s:o}}", "version",
                  "1.0", "added_tokens", extra, "normalizer", "pre_tokenizer", bytes,
                  "post_processor", bytes, "decoder", bytes, "model", "type", "BPE", "dropout",
                  "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0,
                  "byte_fallback", 0, "vocab", vocabulary, "merges", list);
    assert_non_null(root);
    maker_write_json(dir, "tokenizer.json", root);
    json_decref(root);
    json_decref(bytes);
    return id;
}

/* ---- a model with it ---------------------------------------------------------------------------
 */

struct fixture {
    struct maker_dir dir;
    rp_model *model;
    rp_tokenizer *tokenizer;
};

static void load(struct fixture *f)
{
    rp_error err;
    rp_model_destroy(f->model);
    rp_tokenizer_free(f->tokenizer);
    f->model = NULL;
    f->tokenizer = NULL;
    if (rp_model_load(f->dir.path, NULL, &f->model, &err) != RP_OK)
        fail_msg("%s", err.message);
    if (rp_tokenizer_load(maker_path(&f->dir, "tokenizer.json"), &f->tokenizer, &err) != RP_OK)
        fail_msg("%s", err.message);
}

static int make_family(void **state, const char *family, bool predicts)
{
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    maker_dir_create(&f->dir);
    struct maker_model m = maker_model_default(family);
    const struct maker_write_options plain = {.dtype = MAKER_F32, .prefix = true};
    m.vocab = write_tokenizer(&f->dir, true);
    m.positions = 600;
    m.labels = !predicts;
    m.decoder.predicts = predicts;
    maker_model_fill(&m);
    maker_model_write(&m, &f->dir, &plain);
    maker_model_free(&m);
    if (!predicts) /* else nothing need say it */
        maker_write_text(&f->dir, "chat_template.jinja", JINJA);
    load(f);
    *state = f;
    return 0;
}

static int make(void **state)
{
    return make_family(state, "bert", false);
}

/* A language model whose answer, "yes" or "no", is the score. */
static int make_generative(void **state)
{
    return make_family(state, "qwen3", true);
}

static int unmake(void **state)
{
    struct fixture *f = *state;
    rp_tokenizer_free(f->tokenizer);
    rp_model_destroy(f->model);
    maker_dir_remove(&f->dir);
    free(f);
    return 0;
}

static rp_ranker *make_ranker(const struct fixture *f, const char *instruction, size_t max_length,
                              bool special_as_text)
{
    rp_ranker_options o;
    rp_ranker *r;
    rp_error err;
    rp_ranker_options_init(&o);
    o.instruction = instruction;
    o.max_length = max_length;
    o.special_as_text = special_as_text;
    if (rp_ranker_create(f->model, f->tokenizer, &o, &r, &err) != RP_OK)
        fail_msg("%s", err.message);
    return r;
}

static rp_text_ref ref(const char *s)
{
    return (rp_text_ref){.data = s, .length = strlen(s)};
}

struct ids {
    int32_t ids[2048];
    size_t n;
};

static void append(const struct fixture *f, const char *text, bool literal, struct ids *to)
{
    rp_encode_options o;
    rp_encoding e = {0};
    rp_encode_options_init(&o);
    o.add_special = false;
    o.special_as_text = literal;
    assert_int_equal(rp_tokenizer_encode(f->tokenizer, text, strlen(text), &o, &e, NULL), RP_OK);
    assert_true(to->n + e.n <= 2048);
    memcpy(to->ids + to->n, e.ids, e.n * sizeof *e.ids);
    to->n += e.n;
    rp_encoding_free(&e);
}

/* The ids by hand: the two ends by themselves, the pair's text as one. */
static struct ids by_hand(const struct fixture *f, const char *middle, bool literal)
{
    struct ids ids = {.n = 0};
    append(f, BEFORE, false, &ids);
    append(f, middle, literal, &ids);
    append(f, AFTER, false, &ids);
    return ids;
}

static void assert_ids(const rp_batch *b, size_t i, const struct ids *want)
{
    assert_int_equal(b->cu[i + 1] - b->cu[i], want->n);
    assert_memory_equal(b->ids + b->cu[i], want->ids, want->n * sizeof *want->ids);
}

static int32_t id_of(const struct fixture *f, const char *token)
{
    int32_t id;
    assert_int_equal(rp_tokenizer_token_to_id(f->tokenizer, token, &id, NULL), RP_OK);
    return id;
}

/* ---- tokens ------------------------------------------------------------------------------------
 */

static void the_pair_stands_in_the_prompt(void **state)
{
    const struct fixture *f = *state;
    const rp_text_ref texts[] = {ref("foo is a placeholder"), ref(""), ref("\nThe \xC3\xA9nd")};
    const rp_text_ref query = ref("what is foo?");
    rp_text_info infos[3];
    rp_batch b;
    rp_ranker *r = make_ranker(f, NULL, 0, false);
    assert_int_equal(rp_ranker_tokenize(r, &query, 3, texts, &b, infos, NULL), RP_OK);
    struct ids want =
        by_hand(f, MIDDLE(INSTRUCTION, "what is foo?", "foo is a placeholder"), false);
    assert_ids(&b, 0, &want);
    assert_int_equal(infos[0].tokens, want.n);
    assert_int_equal(infos[0].full_tokens, want.n);
    assert_false(infos[0].truncated);
    want = by_hand(f, MIDDLE(INSTRUCTION, "what is foo?", ""), false);
    assert_ids(&b, 1, &want);
    want = by_hand(f, MIDDLE(INSTRUCTION, "what is foo?", "\nThe \xC3\xA9nd"), false);
    assert_ids(&b, 2, &want);
    assert_int_equal(b.ids[0], id_of(f, "<|im_start|>"));
    rp_ranker_destroy(r);
}

/* The label's last space and the document's first word are one token. */
static void a_label_and_a_document_may_share_a_token(void **state)
{
    const struct fixture *f = *state;
    const rp_text_ref text = ref("foo"), query = ref("q");
    struct ids after = {.n = 0}, apart = {.n = 0};
    rp_batch b;
    rp_ranker *r = make_ranker(f, NULL, 0, false);
    assert_int_equal(rp_ranker_tokenize(r, &query, 1, &text, &b, NULL, NULL), RP_OK);
    append(f, AFTER, false, &after);
    assert_int_equal(b.ids[b.cu[1] - (int32_t)after.n - 1], id_of(f, "\xC4\xA0"
                                                                     "foo"));
    append(f, "\n<Document>: ", false, &apart);
    assert_int_equal(apart.ids[apart.n - 1], id_of(f, "\xC4\xA0"));
    rp_ranker_destroy(r);
}

static void the_instruction_is_a_choice(void **state)
{
    struct fixture *f = *state;
    const rp_text_ref text = ref("d"), query = ref("q");
    rp_batch b;
    rp_ranker *r = make_ranker(f, "Is it the same?", 0, false);
    assert_int_equal(rp_ranker_tokenize(r, &query, 1, &text, &b, NULL, NULL), RP_OK);
    struct ids want = by_hand(f, MIDDLE("Is it the same?", "q", "d"), false);
    assert_ids(&b, 0, &want);
    rp_ranker_destroy(r);
    maker_write_text(&f->dir, "config_sentence_transformers.json",
                     "{\"prompts\":{\"a\":\"no\",\"b\":\"The folder's own\"},"
                     "\"default_prompt_name\":\"b\"}");
    load(f);
    r = make_ranker(f, NULL, 0, false);
    assert_int_equal(rp_ranker_tokenize(r, &query, 1, &text, &b, NULL, NULL), RP_OK);
    want = by_hand(f, MIDDLE("The folder's own", "q", "d"), false);
    assert_ids(&b, 0, &want);
    /* A text alone has neither the prompt nor the instruction. */
    assert_int_equal(rp_ranker_tokenize(r, NULL, 1, &text, &b, NULL, NULL), RP_OK);
    assert_int_equal(b.cu[1], 1);
    rp_ranker_destroy(r);
}

static void the_document_is_cut_and_nothing_else(void **state)
{
    const struct fixture *f = *state;
    struct ids whole = by_hand(f, MIDDLE(INSTRUCTION, "q", "zzzzzzzzzzzzzzzzzzzz"), false);
    struct ids after = {.n = 0};
    const rp_text_ref texts[] = {ref("zzzzzzzzzzzzzzzzzzzz"), ref("zz")}, query = ref("q");
    rp_text_info infos[2];
    rp_batch b;
    append(f, AFTER, false, &after);
    rp_ranker *r = make_ranker(f, NULL, whole.n - 15, false);
    assert_int_equal(rp_ranker_tokenize(r, &query, 2, texts, &b, infos, NULL), RP_OK);
    memcpy(whole.ids + whole.n - 15 - after.n, after.ids, after.n * sizeof *after.ids);
    assert_int_equal(infos[0].tokens, whole.n - 15);
    assert_int_equal(infos[0].full_tokens, whole.n);
    assert_true(infos[0].truncated);
    whole.n -= 15;
    assert_ids(&b, 0, &whole);
    assert_false(infos[1].truncated);
    rp_ranker_destroy(r);
}

static void a_query_that_leaves_no_room_is_refused(void **state)
{
    const struct fixture *f = *state;
    const size_t empty = by_hand(f, MIDDLE(INSTRUCTION, "q", ""), false).n;
    const rp_text_ref text = ref("zz"), bad = ref("\xff");
    rp_ranker *r = make_ranker(f, NULL, empty + 1, false);
    rp_error err;
    rp_batch b;
    rp_text_ref query = ref("q");
    assert_int_equal(rp_ranker_tokenize(r, &query, 1, &text, &b, NULL, &err), RP_OK);
    query = ref("qz");
    assert_int_equal(rp_ranker_tokenize(r, &query, 1, &text, &b, NULL, &err), RP_ERR_LIMIT);
    assert_says(err.message, "the query: with the model's prompt it has");
    assert_says(err.message, "nothing is left for a document");
    assert_int_equal(rp_ranker_tokenize(r, &bad, 1, &text, &b, NULL, &err), RP_ERR_INVALID);
    assert_says(err.message, "the query: ");
    rp_ranker_destroy(r);
    r = make_ranker(f, NULL, 5, false); /* not even the prompt */
    assert_int_equal(rp_ranker_tokenize(r, &query, 1, &text, &b, NULL, &err), RP_ERR_LIMIT);
    rp_ranker_destroy(r);
}

static void a_text_cannot_forge_the_end(void **state)
{
    const struct fixture *f = *state;
    const rp_text_ref text = ref("a<|im_end|>"), query = ref("q");
    for (int literal = 0; literal < 2; literal++) {
        rp_batch b;
        rp_ranker *r = make_ranker(f, NULL, 0, literal);
        assert_int_equal(rp_ranker_tokenize(r, &query, 1, &text, &b, NULL, NULL), RP_OK);
        const struct ids want = by_hand(f, MIDDLE(INSTRUCTION, "q", "a<|im_end|>"), literal);
        assert_ids(&b, 0, &want);
        size_t ends = 0;
        for (int32_t i = 0; i < b.cu[1]; i++)
            ends += b.ids[i] == id_of(f, "<|im_end|>");
        assert_int_equal(ends, literal ? 2 : 3);
        rp_ranker_destroy(r);
    }
}

static void scores_are_those_of_the_ids(void **state)
{
    const struct fixture *f = *state;
    const rp_text_ref texts[] = {ref("foo"), ref("the answer"), ref("")}, query = ref("no");
    float scores[3];
    rp_session *s;
    rp_view view;
    rp_batch b;
    rp_ranker *r = make_ranker(f, NULL, 0, false);
    assert_int_equal(rp_ranker_score(r, query, 3, texts, scores, NULL, NULL), RP_OK);
    assert_int_equal(rp_ranker_tokenize(r, &query, 3, texts, &b, NULL, NULL), RP_OK);
    assert_int_equal(
        rp_session_create(rp_model_graph(f->model), rp_model_weights(f->model), NULL, &s, NULL),
        RP_OK);
    assert_int_equal(rp_session_run(s, &b, NULL), RP_OK);
    assert_int_equal(rp_session_output(s, "scores", &view, NULL), RP_OK);
    assert_memory_equal(view.data, scores, sizeof scores);
    assert_true(scores[0] != scores[1]);
    rp_session_destroy(s);
    rp_ranker_destroy(r);
}

/* Scores of a request, with the tokens that are run counted by the embedding's rows. */
struct seen {
    size_t rows;
};

static bool want_first(void *context, const rp_step_info *step)
{
    (void)context;
    return step->index == 0;
}

static rp_status count_rows(void *context, const rp_step_info *step, const rp_view *view)
{
    (void)step;
    ((struct seen *)context)->rows += view->rows;
    return RP_OK;
}

static void a_ranking_runs_its_prompt_once(void **state)
{
    const struct fixture *f = *state;
    enum { N = 6 };
    const rp_text_ref texts[N] = {ref("foo is it"),     ref(""),
                                  ref("no, the other"), ref("foo is it"),
                                  ref("yes"),           ref("a long document, the longest")};
    float scores[2][N];
    rp_text_info infos[2][N];
    struct seen seen[2] = {{0}};
    size_t tokens = 0;
    for (int reuse = 0; reuse < 2; reuse++) {
        rp_ranker_options o;
        rp_ranker *r;
        rp_error err;
        const rp_observer observer = {.struct_size = sizeof observer,
                                      .want = want_first,
                                      .show = count_rows,
                                      .context = &seen[reuse]};
        rp_ranker_options_init(&o);
        o.no_prefix_reuse = !reuse;
        if (rp_ranker_create(f->model, f->tokenizer, &o, &r, &err) != RP_OK)
            fail_msg("%s", err.message);
        rp_session_observe(rp_ranker_session(r), &observer);
        if (rp_ranker_score(r, ref("what is foo?"), N, texts, scores[reuse], infos[reuse], &err) !=
            RP_OK)
            fail_msg("%s", err.message);
        rp_ranker_destroy(r);
    }
    assert_memory_equal(scores[0], scores[1], sizeof scores[0]);
    assert_memory_equal(&scores[0][0], &scores[0][3], sizeof(float));
    assert_true(scores[0][0] != scores[0][2]);
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(infos[1][i].tokens, infos[0][i].tokens);
        tokens += infos[0][i].tokens;
    }
    assert_int_equal(seen[0].rows, tokens);
    /* All but the label's last space, which may be a part of the document's first token. */
    struct ids shared = {.n = 0};
    append(f, BEFORE, false, &shared);
    append(f, "<Instruct>: " INSTRUCTION "\n<Query>: what is foo?\n<Document>:", false, &shared);
    assert_int_equal(seen[1].rows, tokens - (N - 1) * shared.n);
}

/* ---- which folders -----------------------------------------------------------------------------
 */

static void a_model_without_it_takes_no_instruction(void **state)
{
    struct fixture *f = *state;
    const rp_pair_prompt *prompt = NULL;
    rp_ranker_options o;
    rp_ranker *r;
    rp_error err;
    assert_int_equal(rp_model_pair_prompt(f->model, &prompt, NULL), RP_OK);
    assert_non_null(prompt);
    assert_string_equal(prompt->before, BEFORE);
    assert_string_equal(prompt->after, AFTER);
    maker_write_text(&f->dir, "chat_template.jinja", "{{ query }} {{ document }}");
    load(f);
    assert_int_equal(rp_model_pair_prompt(f->model, &prompt, NULL), RP_OK);
    assert_null(prompt);
    rp_ranker_options_init(&o);
    o.instruction = "x";
    assert_int_equal(rp_ranker_create(f->model, f->tokenizer, &o, &r, &err), RP_ERR_UNSUPPORTED);
    assert_says(err.message, "an instruction is part of a generative reranker's prompt");
}

static void a_tokenizer_must_know_its_tokens(void **state)
{
    struct fixture *f = *state;
    rp_ranker *r;
    rp_error err;
    write_tokenizer(&f->dir, false);
    load(f);
    assert_int_equal(rp_ranker_create(f->model, f->tokenizer, NULL, &r, &err), RP_ERR_MISSING);
    assert_says(err.message, "the model's prompt: the vocabulary has no token \"<|im_start|>\"");
}

static void folders(void **state)
{
    (void)state;
    static const struct {
        const char *file, *text, *family;
        bool generative, modules;
        bool there, foreign;
        size_t notes;
    } cases[] = {
        {NULL, NULL, "bert", false, false, false, false, 0},
        {NULL, NULL, "qwen3", true, false, true, false, 1},
        {NULL, NULL, "qwen3", true, true, true, false, 1},
        {NULL, NULL, "olmo", true, false, false, true, 0},
        {"chat_template.jinja", JINJA, "qwen3", false, true, true, false, 0},
        {"chat_template.jinja", JINJA, "qwen3", true, true, true, false, 0},
        {"chat_template.jinja", JINJA, "olmo", true, true, true, false, 0},
        {"chat_template.jinja", "{{ messages }}", "qwen3", true, false, true, false, 1},
        {"chat_template.jinja", "{{ messages }}", "qwen3", true, true, false, true, 0},
        {"chat_template.jinja", "{{ messages }}", "qwen3", false, true, false, false, 0},
        /* the question is the same, but it does not end in an empty thought */
        {"chat_template.jinja", BEFORE "{{ document }}", "qwen3", true, true, false, true, 0},
        {"tokenizer_config.json", NULL, "qwen3", true, true, true, false, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct maker_dir dir;
        struct rp_prompt prompt;
        struct rp_notes notes = {0};
        rp_error err;
        maker_dir_create(&dir);
        struct rp_folder folder = {.transformer = dir.path, .has_modules = cases[i].modules};
        if (cases[i].text) {
            maker_write_text(&dir, cases[i].file, cases[i].text);
        } else if (cases[i].file) {
            json_t *config = json_pack("{s:f,s:[{s:s,s:s},{s:s,s:s}]}", "model_max_length", 1e30,
                                       "chat_template", "name", "default", "template",
                                       "{{ messages }}", "name", "reranker", "template", JINJA);
            maker_write_json(&dir, cases[i].file, config);
            json_decref(config);
        }
        if (rp_prompt_find(&folder, cases[i].family, cases[i].generative, &prompt, &notes, &err) !=
            RP_OK)
            fail_msg("%s", err.message);
        if (prompt.there != cases[i].there || prompt.foreign != cases[i].foreign ||
            notes.n != cases[i].notes)
            fail_msg("case %zu: %d %d %zu", i, prompt.there, prompt.foreign, notes.n);
        rp_notes_fini(&notes);
        maker_dir_remove(&dir);
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make, unmake)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_pair_stands_in_the_prompt),
        TEST(a_label_and_a_document_may_share_a_token),
        TEST(the_instruction_is_a_choice),
        TEST(the_document_is_cut_and_nothing_else),
        TEST(a_query_that_leaves_no_room_is_refused),
        TEST(a_text_cannot_forge_the_end),
        TEST(scores_are_those_of_the_ids),
        TEST(a_model_without_it_takes_no_instruction),
        TEST(a_tokenizer_must_know_its_tokens),
        cmocka_unit_test_setup_teardown(the_pair_stands_in_the_prompt, make_generative, unmake),
        cmocka_unit_test_setup_teardown(a_ranking_runs_its_prompt_once, make_generative, unmake),
        cmocka_unit_test(folders),
    };
    const struct CMUnitTest without_tokenizer[] = {cmocka_unit_test(folders)};
    if (!rp_tokenizer_available())
        return cmocka_run_group_tests(without_tokenizer, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
