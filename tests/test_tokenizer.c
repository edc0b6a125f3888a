/* The tokenizer: goldens of the reference (tests/tools/make_tokenizer_goldens.py), properties over
 * random texts, and what must be refused. */
#include <rankplan/tokenizer.h>

#include "text/join.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define MAX_IDS 1024

/* Heads of small files that are written in place. */
#define MODEL_HEAD                                                                                 \
    "{\"version\":\"1.0\",\"added_tokens\":[],\"model\":{\"type\":\"BPE\",\"dropout\":"
#define TEMPLATE_HEAD                                                                              \
    "{\"version\":\"1.0\",\"added_tokens\":[],\"pre_tokenizer\":{\"type\":\"WhitespaceSplit\"},"   \
    "\"model\":{\"type\":\"WordLevel\",\"vocab\":"                                                 \
    "{\"[UNK]\":0},\"unk_token\":\"[UNK]\"},\"post_processor\":{\"type\":\"TemplateProcessing\","
#define PIECE(id) "{\"Sequence\":{\"id\":\"" id "\",\"type_id\":0}}"

/* ---- fixtures ---- */

static rp_tokenizer *load(const char *path)
{
    rp_tokenizer *tok = NULL;
    rp_error err;

    if (rp_tokenizer_load(path, &tok, &err) != RP_OK)
        fail_msg("%s", err.message);
    return tok;
}

static rp_tokenizer *load_fixture(const char *name)
{
    char path[512];

    snprintf(path, sizeof(path), RP_TEST_DATA "/tokenizer/%s.json", name);
    if (strcmp(name, "apt-bert-tiny") == 0)
        snprintf(path, sizeof(path), RP_MODELS_DIR "/%s/tokenizer.json", name);
    return load(path);
}

static char *read_fixture(const char *name, size_t *n)
{
    char path[512];
    snprintf(path, sizeof(path), RP_TEST_DATA "/tokenizer/%s", name);
    FILE *const file = fopen(path, "rb");
    char *const bytes = malloc(1 << 20);

    assert_non_null(file);
    assert_non_null(bytes);
    *n = fread(bytes, 1, (1 << 20) - 1, file);
    assert_true(*n > 0 && *n < (1 << 20) - 1);
    bytes[*n] = 0;
    fclose(file);
    return bytes;
}

struct golden {
    char first[4096], second[4096];
    size_t n_first, n_second;
    bool pair, refused;
    rp_encode_options options;
    int32_t ids[MAX_IDS], type_ids[MAX_IDS];
    size_t n;
};

static size_t unescape(const char *in, char *out)
{
    size_t n = 0;
    while (*in) {
        unsigned byte = (unsigned char)*in++;
        if (byte == '\\') {
            assert_int_equal(sscanf(in, "x%2x", &byte), 1);
            in += 3;
        }
        out[n++] = (char)byte;
    }
    return n;
}

static size_t read_numbers(char *field, int32_t *out)
{
    size_t n = 0;
    for (char *p = field; *p; n++) {
        assert_true(n < MAX_IDS);
        out[n] = (int32_t)strtol(p, &p, 10);
        p += *p == ' ';
    }
    return n;
}

static void read_golden(char *line, struct golden *g)
{
    static const char *const strategies[] = {"longest_first", "only_first", "only_second"};
    char *field[9];

    for (int i = 0; i < 9; i++) {
        field[i] = line;
        line += strcspn(line, "\t");
        assert_true(i == 8 || *line == '\t');
        if (*line)
            *line++ = 0;
    }
    g->n_first = unescape(field[0], g->first);
    g->pair = strcmp(field[1], "\\0") != 0;
    g->n_second = g->pair ? unescape(field[1], g->second) : 0;
    rp_encode_options_init(&g->options);
    g->options.max_length = strtoul(field[2], NULL, 10);
    int strategy = 0;
    while (strcmp(field[3], strategies[strategy]) != 0)
        assert_true(++strategy < 3);
    g->options.truncation = (rp_truncation)strategy;
    g->options.side = strcmp(field[4], "left") == 0 ? RP_TRUNCATE_LEFT : RP_TRUNCATE_RIGHT;
    g->options.add_special = field[5][0] == '1';
    g->options.special_as_text = field[6][0] == '1';
    g->refused = strcmp(field[7], "error") == 0;
    g->n = g->refused ? 0 : read_numbers(field[7], g->ids);
    if (!g->refused)
        assert_int_equal(read_numbers(field[8], g->type_ids), g->n);
}

struct goldens {
    struct golden *items;
    size_t n;
};

static struct goldens read_goldens(const char *name)
{
    char file[64];
    snprintf(file, sizeof(file), "%s.golden", name);
    size_t n;
    char *const bytes = read_fixture(file, &n);
    struct goldens all = {calloc(400, sizeof(struct golden)), 0};

    assert_non_null(all.items);
    for (char *line = bytes, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        assert_true(all.n < 400);
        read_golden(line, &all.items[all.n++]);
    }
    free(bytes);
    assert_true(all.n > 30);
    return all;
}

static rp_status encode(const rp_tokenizer *tok, const struct golden *g, rp_encoding *out,
                        rp_error *err)
{
    if (g->pair)
        return rp_tokenizer_encode_pair(tok, g->first, g->n_first, g->second, g->n_second,
                                        &g->options, out, err);
    return rp_tokenizer_encode(tok, g->first, g->n_first, &g->options, out, err);
}

static rp_status encode_by_parts(const rp_tokenizer *tok, const struct golden *g, rp_encoding *out,
                                 rp_error *err)
{
    rp_text_part *first = NULL, *second = NULL;

    assert_int_equal(rp_tokenizer_part(tok, g->first, g->n_first, &g->options, &first, err), RP_OK);
    if (g->pair)
        assert_int_equal(rp_tokenizer_part(tok, g->second, g->n_second, &g->options, &second, err),
                         RP_OK);
    const rp_status status = rp_tokenizer_join(tok, first, second, &g->options, out, err);
    if (status == RP_OK)
        assert_true(out->n_first <= rp_text_part_length(first) &&
                    out->n_second <= rp_text_part_length(second));
    rp_text_part_free(first);
    rp_text_part_free(second);
    return status;
}

static bool same_ids(const rp_encoding *out, const struct golden *g)
{
    return out->n == g->n && memcmp(out->ids, g->ids, g->n * sizeof(*g->ids)) == 0 &&
           memcmp(out->type_ids, g->type_ids, g->n * sizeof(*g->ids)) == 0;
}

static void expect_golden(rp_status status, const rp_encoding *out, const struct golden *g,
                          size_t line, const rp_error *err)
{
    if (g->refused) {
        if (status != RP_ERR_INVALID && status != RP_ERR_LIMIT)
            fail_msg("line %zu: expected a refusal but found %s", line, rp_status_name(status));
        return;
    }
    if (status != RP_OK)
        fail_msg("line %zu: %s", line, err->message);
    if (!same_ids(out, g))
        fail_msg("line %zu: ids or type ids differ: %zu tokens, expected %zu, first id %d", line,
                 out->n, g->n, out->n ? (int)out->ids[0] : -1);
}

/* ---- goldens ---- */

/* Each line by both ways, into two encodings that serve for the whole file. */
static void test_golden(void **state)
{
    const char *const name = *state;
    struct goldens all = read_goldens(name);
    rp_tokenizer *const tok = load_fixture(name);
    rp_encoding whole = {0}, parts = {0};
    rp_error err;

    for (size_t i = 0; i < all.n; i++) {
        const struct golden *const g = &all.items[i];
        expect_golden(encode(tok, g, &whole, &err), &whole, g, i + 1, &err);
        expect_golden(encode_by_parts(tok, g, &parts, &err), &parts, g, i + 1, &err);
        if (g->refused)
            continue;
        struct golden full = *g;
        full.options.max_length = 0;
        assert_int_equal(encode(tok, &full, &parts, &err), RP_OK);
        assert_int_equal(whole.full_n, parts.n);
        assert_int_equal(whole.truncated, whole.n < parts.n);
        const size_t max = g->options.max_length;
        assert_int_equal(whole.n, max > 0 && max < parts.n ? max : parts.n);
        assert_int_equal(whole.n_first + whole.n_second,
                         parts.n_first + parts.n_second - (whole.full_n - whole.n));
    }
    rp_encoding_free(&whole);
    rp_encoding_free(&parts);
    rp_tokenizer_free(tok);
    free(all.items);
}

/* Field case T2: what is kept of (A, B) under max, in numbers. */
static void test_longest_first(void **state)
{
    static const size_t rows[][5] = {
        {260, 500, 512, 254, 255}, {200, 500, 512, 200, 309}, {500, 20, 512, 489, 20},
        {500, 500, 512, 254, 255}, {6, 3, 8, 3, 2},           {3, 6, 8, 2, 3},
        {4, 4, 8, 2, 3},           {7, 7, 10, 3, 4},          {5, 5, 4, 0, 1},
        {10, 0, 8, 5, 0},          {0, 10, 8, 0, 5},          {7, 5, 3, 0, 0},
    };
    rp_tokenizer *const tok = load_fixture("bert");
    rp_encoding out = {0};
    rp_encode_options options;
    char a[1000], b[1000];

    (void)state;
    rp_encode_options_init(&options);
    for (size_t i = 0; i < 500; i++) {
        memcpy(a + 2 * i, "a ", 2);
        memcpy(b + 2 * i, "b ", 2);
    }
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const size_t *const r = rows[i];
        options.max_length = r[2];
        assert_int_equal(
            rp_tokenizer_encode_pair(tok, a, 2 * r[0], b, 2 * r[1], &options, &out, NULL), RP_OK);
        assert_int_equal(out.n_first, r[3]);
        assert_int_equal(out.n_second, r[4]);
        assert_int_equal(out.n, r[3] + r[4] + 3);
        assert_int_equal(out.full_n, r[0] + r[1] + 3);
        assert_true(out.truncated);
        assert_int_equal(out.ids[out.n - 1], 3);
        assert_int_equal(out.type_ids[out.n - 1], 1);
    }
    rp_encoding_free(&out);
    rp_tokenizer_free(tok);
}

/* The closed form against the loop it stands for, over all small lengths. */
static void test_longest_first_is_the_loop(void **state)
{
    rp_encode_options options;

    (void)state;
    rp_encode_options_init(&options);
    for (size_t a = 0; a < 14; a++)
        for (size_t b = 0; b < 14; b++)
            for (size_t room = 1; room < 30; room++) {
                size_t first = a, second = b, kept_first, kept_second;
                while (first + second > room)
                    if (first > second || (first == second && a <= b))
                        first--;
                    else
                        second--;
                options.max_length = room + 3;
                assert_int_equal(
                    rp_join_kept(a, b, true, 3, &options, &kept_first, &kept_second, NULL), RP_OK);
                assert_int_equal(kept_first, first);
                assert_int_equal(kept_second, second);
            }
}

/* Field case T3: the closing special token survives, and left cuts keep the end of the text. */
static void test_closing_token(void **state)
{
    static const struct {
        const char *name;
        int32_t last;
    } rows[] = {{"bert", 3}, {"qwen", 151643}, {"xlmr", 2}, {"roberta", 302}};
    char text[20 * 4];
    rp_encode_options options;

    (void)state;
    rp_encode_options_init(&options);
    options.max_length = 8;
    for (size_t i = 0; i < 20; i++)
        memcpy(text + 4 * i, "cat ", 4);
    for (size_t i = 0; i < 4; i++) {
        rp_tokenizer *const tok = load_fixture(rows[i].name);
        rp_encoding out = {0};
        assert_int_equal(rp_tokenizer_encode(tok, text, sizeof(text), &options, &out, NULL), RP_OK);
        assert_int_equal(out.n, 8);
        assert_int_equal(out.ids[7], rows[i].last);
        rp_encoding_free(&out);
        rp_tokenizer_free(tok);
    }
}

/* Field case T4: each piece of the split is one token of the fixture. */
static void test_split_pieces(void **state)
{
    static const struct {
        const char *text, *pieces[5];
    } rows[] = {
        {"a   b", {"a", "ĠĠ", "Ġb"}},  {"a   ", {"a", "ĠĠĠ"}},         {"   ", {"ĠĠĠ"}},
        {"a \n b", {"a", "ĠĊ", "Ġb"}}, {"a  1", {"a", "Ġ", "Ġ", "1"}}, {"a\t\tb", {"a", "ĉ", "ĉb"}},
    };
    rp_tokenizer *const tok = load_fixture("qwen");
    rp_encoding out = {0};
    rp_encode_options options;

    (void)state;
    rp_encode_options_init(&options);
    options.add_special = false;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const char *const text = rows[i].text;
        size_t n = 0;
        assert_int_equal(rp_tokenizer_encode(tok, text, strlen(text), &options, &out, NULL), RP_OK);
        for (int32_t id; rows[i].pieces[n]; n++) {
            assert_int_equal(rp_tokenizer_token_to_id(tok, rows[i].pieces[n], &id, NULL), RP_OK);
            assert_true(n < out.n && out.ids[n] == id);
        }
        assert_int_equal(out.n, n);
    }
    rp_encoding_free(&out);
    rp_tokenizer_free(tok);
}

static void expect_ids(const rp_tokenizer *tok, const char *text, bool special_as_text,
                       const int32_t *ids, size_t n)
{
    rp_encoding out = {0};
    rp_encode_options options;

    rp_encode_options_init(&options);
    options.special_as_text = special_as_text;
    assert_int_equal(rp_tokenizer_encode(tok, text, strlen(text), &options, &out, NULL), RP_OK);
    assert_int_equal(out.n, n);
    assert_memory_equal(out.ids, ids, n * sizeof(*ids));
    rp_encoding_free(&out);
}

static int32_t id_of(const rp_tokenizer *tok, const char *token)
{
    int32_t id;
    assert_int_equal(rp_tokenizer_token_to_id(tok, token, &id, NULL), RP_OK);
    return id;
}

/* Field case T7.  The reference's own switch is not enough for Unigram, whose model reads "</s>" as
 * the piece that it is in the vocabulary; ours spells it. */
static void test_special_spelling(void **state)
{
    rp_tokenizer *const bert = load_fixture("bert");
    rp_tokenizer *const xlmr = load_fixture("xlmr");

    (void)state;
    expect_ids(bert, "a [SEP] b", false, (int32_t[]){2, 17, 3, 18, 3}, 5);
    expect_ids(bert, "a[SEP]b", false, (int32_t[]){2, 17, 3, 18, 3}, 5);
    expect_ids(bert, "a [sep] b", false, (int32_t[]){2, 17, 5, 7, 6, 18, 3}, 7);
    expect_ids(bert, "a [SEP] b", true, (int32_t[]){2, 17, 5, 7, 6, 18, 3}, 7);
    expect_ids(bert, "a[SEP]b", true, (int32_t[]){2, 17, 5, 7, 6, 18, 3}, 7);

    const int32_t a = id_of(xlmr, "▁a"), b = id_of(xlmr, "▁b"), space = id_of(xlmr, "▁");
    const int32_t less = id_of(xlmr, "<"), slash = id_of(xlmr, "/"), s = id_of(xlmr, "s");
    const int32_t greater = id_of(xlmr, ">");
    expect_ids(xlmr, "a </s> b", false, (int32_t[]){0, a, space, 2, b, 2}, 6);
    expect_ids(xlmr, "a </s> b", true, (int32_t[]){0, a, space, less, slash, s, greater, b, 2}, 9);

    rp_tokenizer_free(bert);
    rp_tokenizer_free(xlmr);
}

/* Two </s> between the texts of XLM-R, all type ids 0; a template may hold several ids in one
 * piece. */
static void test_templates(void **state)
{
    rp_tokenizer *const xlmr = load_fixture("xlmr");
    rp_tokenizer *const plain = load_fixture("plain");
    rp_encoding out = {0};

    (void)state;
    const int32_t the = id_of(xlmr, "▁the"), a = id_of(xlmr, "▁a");
    const int32_t expected[] = {0, the, 2, 2, a, 2}, zeros[6] = {0};
    assert_int_equal(rp_tokenizer_encode_pair(xlmr, "the", 3, "a", 1, NULL, &out, NULL), RP_OK);
    assert_int_equal(out.n, 6);
    assert_memory_equal(out.ids, expected, sizeof(expected));
    assert_memory_equal(out.type_ids, zeros, sizeof(zeros));
    assert_int_equal(rp_tokenizer_n_special(xlmr, false), 2);
    assert_int_equal(rp_tokenizer_n_special(xlmr, true), 4);

    assert_int_equal(rp_tokenizer_n_special(plain, true), 0);
    assert_int_equal(rp_tokenizer_encode_pair(plain, "a", 1, "b", 1, NULL, &out, NULL), RP_OK);
    assert_int_equal(out.n, 2);
    assert_int_equal(out.type_ids[1], 1);
    rp_encoding_free(&out);
    rp_tokenizer_free(xlmr);
    rp_tokenizer_free(plain);
}

/* One piece of several ids, and a template that puts the second text first. */
static void test_odd_template(void **state)
{
    const char *const json = TEMPLATE_HEAD
        "\"single\":[" PIECE("A") "],\"pair\":[{\"Sequence\":{\"id\":\"B\",\"type_id\":3}},"
                                  "{\"SpecialToken\":{\"id\":\"[X]\",\"type_id\":2}}," PIECE(
                                      "A") "],"
                                           "\"special_tokens\":{\"[X]\":{\"id\":\"[X]\",\"ids\":[8,"
                                           "9],\"tokens\":[\"y\",\"z\"]}}}}";
    const int32_t ids[] = {0, 8, 9, 0, 0}, types[] = {3, 2, 2, 0, 0};
    rp_tokenizer *tok = NULL;
    rp_encoding out = {0};
    rp_encode_options options;

    (void)state;
    assert_int_equal(rp_tokenizer_parse(json, strlen(json), &tok, NULL), RP_OK);
    assert_int_equal(rp_tokenizer_id_limit(tok), 10);
    rp_encode_options_init(&options);
    options.max_length = 5;
    options.truncation = RP_TRUNCATE_ONLY_FIRST;
    rp_text_part *first = NULL, *second = NULL;
    assert_int_equal(rp_tokenizer_part(tok, "p p p", 5, NULL, &first, NULL), RP_OK);
    assert_int_equal(rp_tokenizer_part(tok, "q", 1, NULL, &second, NULL), RP_OK);
    assert_int_equal(rp_text_part_length(first), 3);
    assert_int_equal(rp_tokenizer_join(tok, first, second, &options, &out, NULL), RP_OK);
    assert_int_equal(out.n, 5);
    assert_int_equal(out.full_n, 6);
    assert_memory_equal(out.ids, ids, sizeof(ids));
    assert_memory_equal(out.type_ids, types, sizeof(types));
    rp_text_part_free(first);
    rp_text_part_free(second);
    rp_encoding_free(&out);
    rp_tokenizer_free(tok);
}

/* ---- properties ---- */

struct shared {
    const rp_tokenizer *tok;
    const struct goldens *all;
    size_t n_wrong;
};

static void *encode_all(void *argument)
{
    struct shared *const shared = argument;
    rp_encoding out = {0};
    rp_error err;

    for (size_t round = 0; round < 5; round++)
        for (size_t i = 0; i < shared->all->n; i++) {
            const struct golden *const g = &shared->all->items[i];
            const bool done = encode(shared->tok, g, &out, &err) == RP_OK;
            shared->n_wrong += done == g->refused || (done && !same_ids(&out, g));
        }
    rp_encoding_free(&out);
    return NULL;
}

static void test_threads(void **state)
{
    static const char *const names[] = {"bert", "qwen", "xlmr"};

    (void)state;
    for (size_t k = 0; k < 3; k++) {
        struct goldens all = read_goldens(names[k]);
        rp_tokenizer *const tok = load_fixture(names[k]);
        struct shared shared[4];
        pthread_t threads[4];
        for (size_t i = 0; i < 4; i++) {
            shared[i] = (struct shared){tok, &all, 0};
            assert_int_equal(pthread_create(&threads[i], NULL, encode_all, &shared[i]), 0);
        }
        for (size_t i = 0; i < 4; i++) {
            assert_int_equal(pthread_join(threads[i], NULL), 0);
            assert_int_equal(shared[i].n_wrong, 0);
        }
        rp_tokenizer_free(tok);
        free(all.items);
    }
}

static uint64_t next_random(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

static size_t random_text(uint64_t *seed, char *out)
{
    static const char *const pieces[] = {"a",  "b",  "cat ", "the ", "7",     " ",
                                         "  ", "\t", "\n",   "é",    "大",    "🙂",
                                         "\0", "ﬁ",  "İ",    ".",    "[SEP]", "</s>"};
    const size_t n_pieces = next_random(seed) % 40;
    size_t n = 0;

    for (size_t i = 0; i < n_pieces; i++) {
        const char *const piece = pieces[next_random(seed) % (sizeof(pieces) / sizeof(pieces[0]))];
        const size_t n_piece = piece[0] ? strlen(piece) : 1;
        memcpy(out + n, piece, n_piece);
        n += n_piece;
    }
    return n;
}

static void random_record(uint64_t *seed, struct golden *g)
{
    memset(g, 0, sizeof(*g));
    g->n_first = random_text(seed, g->first);
    g->n_second = random_text(seed, g->second);
    g->pair = next_random(seed) % 4 != 0;
    rp_encode_options_init(&g->options);
    g->options.max_length = next_random(seed) % 60;
    g->options.truncation = (rp_truncation)(next_random(seed) % 3);
    g->options.side = (rp_truncation_side)(next_random(seed) % 2);
    g->options.add_special = next_random(seed) % 4 != 0;
    g->options.special_as_text = next_random(seed) % 4 == 0;
}

static void expect_same_encoding(const rp_encoding *a, const rp_encoding *b)
{
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->full_n, b->full_n);
    assert_int_equal(a->n_first, b->n_first);
    assert_int_equal(a->n_second, b->n_second);
    assert_int_equal(a->truncated, b->truncated);
    if (a->n > 0) {
        assert_memory_equal(a->ids, b->ids, a->n * sizeof(*a->ids));
        assert_memory_equal(a->type_ids, b->type_ids, a->n * sizeof(*a->ids));
    }
}

/* Parts joined equal the pair; the length is min(max, full); literal texts forge nothing. */
static void test_random_texts(void **state)
{
    const char *const name = *state;
    rp_tokenizer *const tok = load_fixture(name);
    rp_encoding whole = {0}, parts = {0};
    uint64_t seed = (uint64_t)time(NULL) | 1;
    struct golden g;
    rp_error err;

    print_message("%s: seed %llu\n", name, (unsigned long long)seed);
    for (size_t i = 0; i < 400; i++) {
        random_record(&seed, &g);
        const rp_status status = encode(tok, &g, &whole, &err);
        assert_int_equal(encode_by_parts(tok, &g, &parts, &err), status);
        if (status != RP_OK) {
            assert_true(status == RP_ERR_INVALID || status == RP_ERR_LIMIT);
            continue;
        }
        expect_same_encoding(&whole, &parts);
        const size_t max = g.options.max_length;
        assert_int_equal(whole.n, max > 0 && max < whole.full_n ? max : whole.full_n);
        size_t n_special = 0; /* ids of [CLS], [SEP], <s>, </s> in the two fixtures used */
        for (size_t k = 0; k < whole.n; k++)
            n_special += whole.ids[k] == 2 || whole.ids[k] == (strcmp(name, "bert") ? 0 : 3);
        if (g.options.special_as_text)
            assert_int_equal(n_special,
                             g.options.add_special ? rp_tokenizer_n_special(tok, g.pair) : 0);
    }
    rp_encoding_free(&whole);
    rp_encoding_free(&parts);
    rp_tokenizer_free(tok);
}

static void test_reuse(void **state)
{
    rp_tokenizer *const tok = load_fixture("bert");
    rp_encoding out = {0};

    (void)state;
    assert_int_equal(rp_tokenizer_encode(tok, "a b a b a b", 11, NULL, &out, NULL), RP_OK);
    const rp_encoding before = out;
    assert_int_equal(before.n, 8);
    assert_int_equal(rp_tokenizer_encode(tok, "a b", 3, NULL, &out, NULL), RP_OK);
    assert_ptr_equal(out.ids, before.ids);
    assert_ptr_equal(out.type_ids, before.type_ids);
    assert_int_equal(out.n, 4);
    assert_int_equal(out.full_n, 4);
    assert_false(out.truncated);

    /* A failure leaves all of it alone. */
    const rp_encoding kept = out;
    rp_encode_options options;
    rp_encode_options_init(&options);
    options.max_length = 1;
    assert_int_equal(rp_tokenizer_encode(tok, "a b a", 5, &options, &out, NULL), RP_ERR_INVALID);
    assert_int_equal(rp_tokenizer_encode(tok, "\xff", 1, NULL, &out, NULL), RP_ERR_INVALID);
    assert_memory_equal(&out, &kept, sizeof(out));
    rp_encoding_free(&out);
    assert_null(out.ids);
    rp_encoding_free(NULL);
    rp_tokenizer_free(tok);
}

/* A part may outlive the handle, and belongs to one handle only. */
static void test_parts(void **state)
{
    rp_tokenizer *const tok = load_fixture("bert");
    rp_tokenizer *const other = load_fixture("bert");
    rp_text_part *part = NULL;
    rp_encoding out = {0};
    rp_error err;

    (void)state;
    assert_int_equal(rp_tokenizer_part(tok, "a b", 3, NULL, &part, NULL), RP_OK);
    assert_int_equal(rp_text_part_length(part), 2);
    assert_int_equal(rp_tokenizer_join(other, part, NULL, NULL, &out, &err), RP_ERR_INVALID);
    assert_non_null(strstr(err.message, "another tokenizer"));
    assert_int_equal(rp_tokenizer_join(tok, NULL, part, NULL, &out, NULL), RP_ERR_INVALID);
    rp_tokenizer_free(tok);
    rp_tokenizer_free(other);
    rp_text_part_free(part);
    rp_text_part_free(NULL);
    assert_int_equal(rp_text_part_length(NULL), 0);
}

static void test_lookup(void **state)
{
    rp_tokenizer *const tok = load_fixture("qwen");
    const int32_t ids[] = {id_of(tok, "a"), id_of(tok, "Ġ"), 151643, id_of(tok, "Ġthe")};
    char *text;
    size_t n;
    int32_t id = 7;
    rp_error err;

    (void)state;
    /* 256 bytes, 14 merges, one special token far above them. */
    assert_int_equal(rp_tokenizer_vocab_size(tok), 271);
    assert_int_equal(rp_tokenizer_id_limit(tok), 151644);
    assert_int_equal(rp_tokenizer_decode(tok, ids, 4, false, &text, &n, NULL), RP_OK);
    assert_string_equal(text, "a <|endoftext|> the");
    assert_int_equal(n, strlen(text));
    free(text);
    assert_int_equal(rp_tokenizer_decode(tok, ids, 4, true, &text, NULL, NULL), RP_OK);
    assert_string_equal(text, "a  the");
    free(text);
    assert_int_equal(rp_tokenizer_decode(tok, NULL, 0, true, &text, NULL, NULL), RP_OK);
    assert_string_equal(text, "");
    free(text);

    const int32_t bad[][2] = {{0, 271}, {0, -1}, {0, INT32_MAX}};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(rp_tokenizer_decode(tok, bad[i], 2, true, &text, NULL, &err),
                         RP_ERR_INVALID);
        assert_non_null(strstr(err.message, "at position 1"));
    }
    assert_int_equal(rp_tokenizer_token_to_id(tok, "no such", &id, &err), RP_ERR_MISSING);
    assert_non_null(strstr(err.message, "no such"));
    assert_int_equal(id, 7);
    rp_tokenizer_free(tok);
}

/* ---- refusals ---- */

static void test_invalid_utf8(void **state)
{
    static const struct {
        const char *text;
        size_t n, offset;
    } rows[] = {
        {"\xff", 1, 0},
        {"ab\xc3", 3, 2},
        {"a\xc0\x80z", 4, 1},
        {"\xed\xa0\x80", 3, 0},
        {"caf\xc3\xa9\xe5\xa4", 7, 5},
        {"\xf4\x90\x80\x80", 4, 0},
        {"a\x80", 2, 1},
    };
    rp_tokenizer *const tok = load_fixture("bert");
    rp_encoding out = {0};
    rp_error err;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char expected[64];
        snprintf(expected, sizeof(expected), "invalid UTF-8 at byte %zu of %zu", rows[i].offset,
                 rows[i].n);
        assert_int_equal(rp_tokenizer_encode(tok, rows[i].text, rows[i].n, NULL, &out, &err),
                         RP_ERR_INVALID);
        assert_non_null(strstr(err.message, expected));
        assert_int_equal(
            rp_tokenizer_encode_pair(tok, "a", 1, rows[i].text, rows[i].n, NULL, &out, &err),
            RP_ERR_INVALID);
        assert_non_null(strstr(err.message, "second text"));
        assert_int_equal(err.status, RP_ERR_INVALID);
    }
    assert_null(out.ids);
    rp_tokenizer_free(tok);
}

static void test_odd_texts(void **state)
{
    rp_tokenizer *const tok = load_fixture("bert");
    rp_encoding out = {0};
    rp_error err;

    (void)state;
    assert_int_equal(rp_tokenizer_encode(tok, NULL, 0, NULL, &out, &err), RP_OK);
    assert_int_equal(out.n, 2);
    assert_int_equal(rp_tokenizer_encode(tok, "a\0b", 3, NULL, &out, &err), RP_OK);
    assert_int_equal(out.full_n, out.n);
    assert_int_equal(rp_tokenizer_encode(tok, NULL, 1, NULL, &out, &err), RP_ERR_INVALID);
    assert_int_equal(rp_tokenizer_encode(NULL, "a", 1, NULL, &out, &err), RP_ERR_INVALID);
    assert_int_equal(rp_tokenizer_encode(tok, "a", 1, NULL, NULL, &err), RP_ERR_INVALID);
    assert_int_equal(rp_tokenizer_encode(tok, "", RP_TEXT_MAX_BYTES + 1, NULL, &out, &err),
                     RP_ERR_LIMIT);

    /* One word as long as a small book. */
    const size_t n = 200000;
    char *const word = malloc(n);
    assert_non_null(word);
    memset(word, 'a', n);
    assert_int_equal(rp_tokenizer_encode(tok, word, n, NULL, &out, &err), RP_OK);
    assert_int_equal(out.n, 3);
    assert_int_equal(out.ids[1], 1);
    free(word);
    rp_encoding_free(&out);
    rp_tokenizer_free(tok);
}

static void expect_refused(const rp_tokenizer *tok, const rp_encode_options *options, bool pair,
                           rp_status expected, const char *words)
{
    rp_encoding out = {0};
    rp_error err;
    const rp_status status =
        pair ? rp_tokenizer_encode_pair(tok, "a a", 3, "b b b", 5, options, &out, &err)
             : rp_tokenizer_encode(tok, "a a a a", 7, options, &out, &err);

    assert_int_equal(status, expected);
    if (!strstr(err.message, words))
        fail_msg("expected \"%s\" in \"%s\"", words, err.message);
}

static void test_options(void **state)
{
    rp_tokenizer *const tok = load_fixture("bert");
    rp_encode_options good, bad;

    (void)state;
    rp_encode_options_init(&good);
    bad = good;
    bad.struct_size = 0;
    expect_refused(tok, &bad, false, RP_ERR_INVALID, "struct_size");
    bad = good;
    bad.truncation = (rp_truncation)3;
    expect_refused(tok, &bad, false, RP_ERR_INVALID, "truncation 3");
    bad = good;
    bad.side = (rp_truncation_side)2;
    expect_refused(tok, &bad, false, RP_ERR_INVALID, "side 2");
    bad = good;
    bad.max_length = 2;
    expect_refused(tok, &bad, true, RP_ERR_INVALID,
                   "max_length 2 is below the 3 special tokens of the pair template");
    bad.max_length = 1;
    expect_refused(tok, &bad, false, RP_ERR_INVALID, "the 2 special tokens of the single");
    bad.max_length = 6;
    bad.truncation = RP_TRUNCATE_ONLY_FIRST;
    expect_refused(tok, &bad, true, RP_ERR_LIMIT, "2 tokens must go, but the first text");
    bad.max_length = 5;
    bad.truncation = RP_TRUNCATE_ONLY_SECOND;
    expect_refused(tok, &bad, true, RP_ERR_LIMIT, "3 tokens must go, but the second text");
    expect_refused(tok, &bad, false, RP_ERR_INVALID, "only_second with a single text");
    rp_tokenizer_free(tok);
}

static void expect_no_load(const char *json, size_t n, rp_status expected, const char *words)
{
    rp_tokenizer *tok = NULL;
    rp_error err = {RP_OK, ""};

    assert_int_equal(rp_tokenizer_parse(json, n, &tok, &err), expected);
    assert_null(tok);
    if (!strstr(err.message, words))
        fail_msg("expected \"%s\" in \"%s\"", words, err.message);
}

static void test_load_failures(void **state)
{
    rp_tokenizer *tok = NULL;
    rp_error err;

    (void)state;
    assert_int_equal(rp_tokenizer_load(RP_TEST_DATA "/tokenizer/absent.json", &tok, &err),
                     RP_ERR_MISSING);
    assert_non_null(strstr(err.message, "absent.json"));
    assert_int_equal(rp_tokenizer_load(RP_TEST_DATA "/tokenizer", &tok, &err), RP_ERR_IO);
    assert_int_equal(rp_tokenizer_load(RP_TEST_DATA "/tokenizer/bert.golden", &tok, &err),
                     RP_ERR_FORMAT);
    assert_non_null(strstr(err.message, "bert.golden"));
    assert_non_null(strstr(err.message, "line 1 column"));
    /* A pipe in the file's place, which nobody writes to: refused, not waited for. */
    char pipe[] = "/tmp/rankplan-pipe-XXXXXX";
    assert_non_null(mkdtemp(pipe));
    char inside[sizeof pipe + 16];
    snprintf(inside, sizeof inside, "%s/tokenizer.json", pipe);
    assert_int_equal(mkfifo(inside, 0600), 0);
    assert_int_equal(rp_tokenizer_load(inside, &tok, &err), RP_ERR_IO);
    assert_non_null(strstr(err.message, "not a regular file"));
    assert_true(unlink(inside) == 0 && rmdir(pipe) == 0);
    assert_int_equal(rp_tokenizer_load(NULL, &tok, &err), RP_ERR_INVALID);
    assert_null(tok);
    expect_no_load("", 0, RP_ERR_FORMAT, "EOF");
    expect_no_load("{}", 2, RP_ERR_FORMAT, "");
    expect_no_load("[1, 2]", 6, RP_ERR_FORMAT, "");
    rp_tokenizer_free(NULL);
}

/* Files that parse but ask for what cannot be had, as edits of a good one. */
static void test_refused_files(void **state)
{
    static const struct {
        const char *json;
        rp_status status;
        const char *words;
    } rows[] = {
        {MODEL_HEAD "0.1,\"vocab\":{\"a\":0},\"merges\":[]}}", RP_ERR_UNSUPPORTED,
         "dropout is 0.1"},
        {MODEL_HEAD "null,\"vocab\":{\"a\":4294967295},\"merges\":[]}}", RP_ERR_FORMAT,
         "id 4294967295"},
        {MODEL_HEAD "null,\"vocab\":{\"a\":2147483647},\"merges\":[]}}", RP_ERR_FORMAT,
         "id 2147483647"},
        {MODEL_HEAD "null,\"vocab\":{},\"merges\":[]}}", RP_ERR_FORMAT, "empty"},
        {TEMPLATE_HEAD "\"single\":[],\"pair\":[],\"special_tokens\":{}}}", RP_ERR_UNSUPPORTED,
         "first text 0 times"},
        {TEMPLATE_HEAD
         "\"single\":[" PIECE("A") "," PIECE("A") "],\"pair\":[],\"special_tokens\":{}}}",
         RP_ERR_UNSUPPORTED, "first text 2 times"},
        {TEMPLATE_HEAD "\"single\":[" PIECE("B") "],\"pair\":[],\"special_tokens\":{}}}",
         RP_ERR_UNSUPPORTED, "post_processor"},
        {TEMPLATE_HEAD
         "\"single\":[" PIECE("A") ",{\"SpecialToken\":{\"id\":\"[X]\",\"type_id\":0}}],"
                                   "\"pair\":[],\"special_tokens\":{}}}",
         RP_ERR_UNSUPPORTED, "post_processor"},
        {TEMPLATE_HEAD "\"single\":[" PIECE(
             "A") ",{\"SpecialToken\":{\"id\":\"[X]\",\"type_id\":0}}],"
                  "\"pair\":[],\"special_tokens\":{\"[X]\":{\"id\":\"[X]\",\"ids\":[4294967294],"
                  "\"tokens\":[\"[X]\"]}}}}",
         RP_ERR_UNSUPPORTED, "post_processor"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        expect_no_load(rows[i].json, strlen(rows[i].json), rows[i].status, rows[i].words);

    /* A template for single texts only: pairs, and they alone, are refused. */
    const char *const single = TEMPLATE_HEAD
        "\"single\":[" PIECE("A") "],\"pair\":[" PIECE("A") "],\"special_tokens\":{}}}";
    rp_tokenizer *tok = NULL;
    assert_int_equal(rp_tokenizer_parse(single, strlen(single), &tok, NULL), RP_OK);
    expect_refused(tok, NULL, true, RP_ERR_UNSUPPORTED, "the second 0 times");
    assert_int_equal(rp_tokenizer_n_special(tok, true), 0);
    rp_encoding out = {0};
    assert_int_equal(rp_tokenizer_encode(tok, "a", 1, NULL, &out, NULL), RP_OK);
    rp_encoding_free(&out);
    rp_tokenizer_free(tok);
}

/* Cut and damaged files: a status, never a crash; what still loads still works. */
static void test_damaged_files(void **state)
{
    const char *const name = *state;
    char file[64];
    snprintf(file, sizeof(file), "%s.json", name);
    size_t n;
    char *const json = read_fixture(file, &n);
    uint64_t seed = (uint64_t)time(NULL) | 1;
    rp_tokenizer *tok;

    for (size_t cut = 0; cut + 3 < n; cut += 37)
        assert_int_equal(rp_tokenizer_parse(json, cut, &tok, NULL), RP_ERR_FORMAT);
    print_message("%s: seed %llu\n", name, (unsigned long long)seed);
    for (size_t i = 0; i < 300; i++) {
        const size_t at = next_random(&seed) % n;
        const char kept = json[at];
        json[at] = (char)next_random(&seed);
        rp_encoding out = {0};
        if (rp_tokenizer_parse(json, n, &tok, NULL) == RP_OK) {
            if (rp_tokenizer_encode_pair(tok, "a </s> 1", 8, "the 大", 7, NULL, &out, NULL) ==
                RP_OK)
                assert_int_equal(out.n, out.full_n);
            rp_tokenizer_free(tok);
        }
        rp_encoding_free(&out);
        json[at] = kept;
    }
    free(json);
}

/* ---- a build without the tokenizer ---- */

static void test_unavailable(void **state)
{
    rp_tokenizer *tok = NULL;
    rp_text_part *part = NULL;
    rp_encoding out = {0};
    rp_error err;
    int32_t id;
    char *text;

    (void)state;
    assert_int_equal(rp_tokenizer_load("tokenizer.json", &tok, &err), RP_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "-DRANKPLAN_TOKENIZER=ON"));
    assert_int_equal(rp_tokenizer_parse("{}", 2, &tok, NULL), RP_ERR_UNSUPPORTED);
    assert_int_equal(rp_tokenizer_encode(tok, "a", 1, NULL, &out, NULL), RP_ERR_UNSUPPORTED);
    assert_int_equal(rp_tokenizer_encode_pair(tok, "a", 1, "b", 1, NULL, &out, NULL),
                     RP_ERR_UNSUPPORTED);
    assert_int_equal(rp_tokenizer_part(tok, "a", 1, NULL, &part, NULL), RP_ERR_UNSUPPORTED);
    assert_int_equal(rp_tokenizer_join(tok, part, NULL, NULL, &out, NULL), RP_ERR_UNSUPPORTED);
    assert_int_equal(rp_tokenizer_token_to_id(tok, "a", &id, NULL), RP_ERR_UNSUPPORTED);
    assert_int_equal(rp_tokenizer_decode(tok, NULL, 0, true, &text, NULL, NULL),
                     RP_ERR_UNSUPPORTED);
    assert_int_equal(rp_tokenizer_vocab_size(tok) + rp_tokenizer_id_limit(tok), 0);
    assert_int_equal(rp_tokenizer_n_special(tok, true), 0);
    rp_text_part_free(part);
    rp_encoding_free(&out);
    rp_tokenizer_free(tok);
}

#define GOLDEN(name)                                                                               \
    {                                                                                              \
        "golden " name, test_golden, NULL, NULL, name                                              \
    }
#define RANDOM(name)                                                                               \
    {                                                                                              \
        "random " name, test_random_texts, NULL, NULL, name                                        \
    }
#define DAMAGED(name)                                                                              \
    {                                                                                              \
        "damaged " name, test_damaged_files, NULL, NULL, name                                      \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        GOLDEN("accents_lower_null"),
        GOLDEN("accents_lower_keep"),
        GOLDEN("accents_cased_null"),
        GOLDEN("accents_cased_strip"),
        GOLDEN("bert"),
        GOLDEN("qwen"),
        GOLDEN("roberta"),
        GOLDEN("xlmr"),
        GOLDEN("plain"),
        GOLDEN("apt-bert-tiny"),
        cmocka_unit_test(test_longest_first),
        cmocka_unit_test(test_longest_first_is_the_loop),
        cmocka_unit_test(test_closing_token),
        cmocka_unit_test(test_split_pieces),
        cmocka_unit_test(test_special_spelling),
        cmocka_unit_test(test_templates),
        cmocka_unit_test(test_odd_template),
        cmocka_unit_test(test_threads),
        RANDOM("bert"),
        RANDOM("xlmr"),
        cmocka_unit_test(test_reuse),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_lookup),
        cmocka_unit_test(test_invalid_utf8),
        cmocka_unit_test(test_odd_texts),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_load_failures),
        cmocka_unit_test(test_refused_files),
        DAMAGED("bert"),
        DAMAGED("qwen"),
        DAMAGED("xlmr"),
    };
    const struct CMUnitTest unavailable[] = {
        cmocka_unit_test(test_unavailable),
        cmocka_unit_test(test_longest_first_is_the_loop),
    };

    if (!rp_tokenizer_available())
        return cmocka_run_group_tests(unavailable, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
