/* Safetensors files, good and bad: each rule of the format has a file here that breaks it and
 * nothing else, and the error must name the tensor.  Then shards and their index, and conversions
 * of single values. */
#include "models/file.h"
#include "models/safetensors.h"
#include "models/tensors.h"
#include "tests/model_maker.h"
#include "tests/scratch.h"

#include <rankplan/model.h>

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

/* Fails with that status and a message that holds each of the words (NULL ends them). */
static void assert_fails(rp_status found, rp_status due, const rp_error *err,
                         const char *const words[4])
{
    if (found != due)
        print_error("found %s (%s), expected %s\n", rp_status_name(found),
                    found ? err->message : "", rp_status_name(due));
    assert_int_equal(found, due);
    assert_int_equal(err->status, due);
    for (size_t i = 0; i < 4 && words[i]; i++) {
        if (!strstr(err->message, words[i]))
            print_error("\"%s\" is not in \"%s\"\n", words[i], err->message);
        assert_non_null(strstr(err->message, words[i]));
    }
}

/* ---- headers ----------------------------------------------------------------------------------
 */

#define A(dtype, shape, offsets)                                                                   \
    "\"a\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define B(dtype, shape, offsets)                                                                   \
    "\"b\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static const struct header_case {
    const char *header;
    size_t data_bytes;
    rp_status status;
    const char *words[4];
} header_cases[] = {
    /* good ones */
    {"{}", 0, RP_OK, {0}},
    {"{" A("F32", "[2]", "[0,8]") "}", 8, RP_OK, {0}},
    {"{" A("F32", "[2]", "[0,8]") "}      ", 8, RP_OK, {0}},
    {"{" A("F32", "[]", "[0,4]") "}", 4, RP_OK, {0}},
    {"{" A("F32", "[3,0,2]", "[0,0]") "}", 0, RP_OK, {0}},
    {"{" B("F32", "[2]", "[4,12]") "," A("F32", "[1]", "[0,4]") "}", 12, RP_OK, {0}},
    {"{" A("F32", "[1]", "[0,4]") "," B("F32", "[0]", "[4,4]") "}", 4, RP_OK, {0}},
    {"{" A("F32", "[1]", "[0,4]") "," B("F32", "[0]", "[0,0]") "}", 4, RP_OK, {0}},
    {"{\"__metadata__\":{\"format\":\"pt\"}," A("U8", "[3]", "[0,3]") "}", 3, RP_OK, {0}},
    {"{" A("F4", "[4]", "[0,2]") "," B("F6_E2M3", "[4]", "[2,5]") "}", 5, RP_OK, {0}},
    {"{" A("F8_E4M3FNUZ", "[1]", "[0,1]") "," B("C64", "[1]", "[1,9]") "}", 9, RP_OK, {0}},
    {"{" A("F32", "[1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, RP_OK, {0}},
    /* not a header */
    {"[]", 0, RP_ERR_FORMAT, {"'{'"}},
    {" {}", 0, RP_ERR_FORMAT, {"'{'"}},
    {"", 0, RP_ERR_FORMAT, {"'{'"}},
    {"{" A("F32", "[2]", "[0,8]"), 8, RP_ERR_FORMAT, {"line 1"}},
    {"{" A("F32", "[2]", "[0,8]") "} x", 8, RP_ERR_FORMAT, {"line 1"}},
    {"{\"a\xff\":{}}", 0, RP_ERR_FORMAT, {"byte 0xff"}},
    {"{\"a\\u0000\":{}}", 0, RP_ERR_FORMAT, {"line 1"}},
    {"{\"a\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
     0,
     RP_ERR_LIMIT,
     {"deep"}},
    /* double keys */
    {"{" A("F32", "[1]", "[0,4]") "," A("F32", "[1]", "[4,8]") "}",
     8,
     RP_ERR_FORMAT,
     {"duplicate", "\"a\""}},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
     4,
     RP_ERR_FORMAT,
     {"duplicate", "dtype"}},
    /* metadata */
    {"{\"__metadata__\":{\"n\":1}}", 0, RP_ERR_FORMAT, {"__metadata__", "\"n\""}},
    {"{\"__metadata__\":[]}", 0, RP_ERR_FORMAT, {"__metadata__"}},
    /* dtype */
    {"{" A("F31", "[1]", "[0,4]") "}", 4, RP_ERR_FORMAT, {"\"a\"", "F31"}},
    {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, RP_ERR_FORMAT, {"\"a\"", "dtype"}},
    {"{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}",
     4,
     RP_ERR_FORMAT,
     {"\"a\"", "dtype"}},
    {"{\"a\":4}", 0, RP_ERR_FORMAT, {"\"a\"", "object"}},
    /* shape */
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, RP_ERR_FORMAT, {"\"a\"", "shape"}},
    {"{" A("F32", "[-1]", "[0,4]") "}", 4, RP_ERR_FORMAT, {"\"a\"", "-1"}},
    {"{" A("F32", "[1.0]", "[0,4]") "}", 4, RP_ERR_FORMAT, {"\"a\"", "1.0"}},
    {"{" A("F32", "[\"1\"]", "[0,4]") "}", 4, RP_ERR_FORMAT, {"\"a\"", "\"1\""}},
    {"{" A("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, RP_ERR_LIMIT, {"\"a\"", "9 dimensions"}},
    {"{" A("F32", "[8589934592,8589934592]", "[0,4]") "}", 4, RP_ERR_FORMAT, {"\"a\"", "elements"}},
    {"{" A("F32", "[4611686018427387904]", "[0,0]") "}", 0, RP_ERR_FORMAT, {"\"a\"", "bits"}},
    {"{" A("F64", "[288230376151711744]", "[0,0]") "}", 0, RP_ERR_FORMAT, {"\"a\"", "bits"}},
    {"{" A("F4", "[3]", "[0,2]") "}", 2, RP_ERR_FORMAT, {"\"a\"", "whole number of bytes"}},
    {"{" A("F32", "[1000,1000]", "[0,4]") "}", 4, RP_ERR_FORMAT, {"\"a\"", "4000000", "hold 4"}},
    {"{" A("F32", "[1]", "[0,8]") "}", 8, RP_ERR_FORMAT, {"\"a\"", "takes 4", "hold 8"}},
    /* offsets */
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, RP_ERR_FORMAT, {"\"a\"", "data_offsets"}},
    {"{" A("F32", "[1]", "[0]") "}", 4, RP_ERR_FORMAT, {"\"a\"", "data_offsets"}},
    {"{" A("F32", "[1]", "[0,4,8]") "}", 4, RP_ERR_FORMAT, {"\"a\"", "data_offsets"}},
    {"{" A("F32", "[1]", "[8,4]") "}", 8, RP_ERR_FORMAT, {"\"a\"", "backwards"}},
    {"{" A("F32", "[1]", "[-8,-4]") "}", 8, RP_ERR_FORMAT, {"\"a\"", "-8"}},
    {"{" A("F32", "[1]", "[0,9223372036854775808]") "}", 8, RP_ERR_FORMAT, {"integer"}},
    {"{" A("F32", "[1]", "[9223372036854775803,9223372036854775807]") "}",
     8,
     RP_ERR_FORMAT,
     {"\"a\"", "past"}},
    {"{" A("F32", "[1]", "[0.0,4.0]") "}", 4, RP_ERR_FORMAT, {"\"a\"", "0.0"}},
    {"{" A("F32", "[3]", "[0,12]") "}", 8, RP_ERR_FORMAT, {"\"a\"", "4 bytes past"}},
    /* the whole */
    {"{" A("F32", "[2]", "[0,8]") "," B("F32", "[2]", "[0,8]") "}",
     8,
     RP_ERR_FORMAT,
     {"\"b\"", "inside", "\"a\""}},
    {"{" A("F32", "[2]", "[0,8]") "," B("F32", "[2]", "[4,12]") "}",
     12,
     RP_ERR_FORMAT,
     {"\"b\"", "inside", "\"a\""}},
    {"{" A("F32", "[1]", "[0,4]") "," B("F32", "[1]", "[8,12]") "}",
     12,
     RP_ERR_FORMAT,
     {"\"b\"", "begins at byte 8", "end at 4"}},
    {"{" A("F32", "[1]", "[4,8]") "}", 8, RP_ERR_FORMAT, {"\"a\"", "begins at byte 4"}},
    {"{" A("F32", "[1]", "[0,4]") "}", 20, RP_ERR_FORMAT, {"\"a\"", "16 bytes"}},
    {"{}", 4, RP_ERR_FORMAT, {"4 bytes", "no tensor"}},
};

static void test_headers(void **state)
{
    (void)state;
    const unsigned char data[64] = {0};
    for (size_t i = 0; i < sizeof header_cases / sizeof *header_cases; i++) {
        const struct header_case *c = &header_cases[i];
        struct rp_st_file *file = NULL;
        rp_error err = {0};
        maker_write_st(&dir, "h", strlen(c->header), c->header, data, c->data_bytes);
        const rp_status s = rp_st_open(maker_path(&dir, "h"), &file, &err);
        if (s != c->status)
            print_error("case %zu: %s\n", i, c->header);
        if (c->status == RP_OK) {
            assert_int_equal(s, RP_OK);
            rp_st_close(file);
            assert_int_equal(rp_st_open(maker_path(&dir, "h"), &file, NULL), RP_OK);
            rp_st_close(file);
            continue;
        }
        assert_null(file);
        assert_fails(s, c->status, &err, c->words);
        assert_non_null(strstr(err.message, dir.path));
        assert_int_equal(rp_st_open(maker_path(&dir, "h"), &file, NULL), c->status);
    }
}

static void test_announced_length(void **state)
{
    (void)state;
    static const struct {
        uint64_t announced;
        rp_status status;
        const char *words[4];
    } cases[] = {
        {0, RP_ERR_FORMAT, {"'{'"}},
        {3, RP_ERR_FORMAT, {"3 bytes", "only 2"}},
        {100000000, RP_ERR_FORMAT, {"only 2"}},
        {100000001, RP_ERR_LIMIT, {"100000001", "limit"}},
        {(uint64_t)1 << 63, RP_ERR_LIMIT, {"limit"}},
        {UINT64_MAX, RP_ERR_LIMIT, {"limit"}},
        {UINT64_MAX - 7, RP_ERR_LIMIT, {"limit"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rp_st_file *file;
        rp_error err;
        maker_write_st(&dir, "n", cases[i].announced, "{}", "", 0);
        const rp_status s = rp_st_open(maker_path(&dir, "n"), &file, &err);
        assert_fails(s, cases[i].status, &err, cases[i].words);
    }
    for (size_t n = 0; n < 8; n++) {
        struct rp_st_file *file;
        rp_error err;
        maker_write(&dir, "n", "\0\0\0\0\0\0\0", n);
        assert_fails(rp_st_open(maker_path(&dir, "n"), &file, &err), RP_ERR_FORMAT, &err,
                     (const char *const[4]){"too few"});
    }
}

static void test_not_a_file(void **state)
{
    (void)state;
    struct rp_st_file *file;
    rp_error err;
    maker_mkdir(&dir, "folder");
    assert_int_equal(mkfifo(maker_path(&dir, "pipe"), 0600), 0);
    assert_fails(rp_st_open(maker_path(&dir, "folder"), &file, &err), RP_ERR_IO, &err,
                 (const char *const[4]){"regular"});
    assert_fails(rp_st_open(maker_path(&dir, "pipe"), &file, &err), RP_ERR_IO, &err,
                 (const char *const[4]){"regular"});
    assert_fails(rp_st_open(maker_path(&dir, "none"), &file, &err), RP_ERR_MISSING, &err,
                 (const char *const[4]){"none"});
}

/* Names go to terminals. */
static void test_names_are_shown_tamely(void **state)
{
    (void)state;
    struct rp_st_file *file;
    rp_error err;
    char header[1000], name[600];
    static const char evil[] = "{\"\\u001b[31m\\n\":4}";
    maker_write_st(&dir, "e", strlen(evil), evil, "", 0);
    assert_fails(rp_st_open(maker_path(&dir, "e"), &file, &err), RP_ERR_FORMAT, &err,
                 (const char *const[4]){"?[31m?"});
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    snprintf(header, sizeof header, "{\"%s\":4}", name);
    maker_write_st(&dir, "e", strlen(header), header, "", 0);
    assert_fails(rp_st_open(maker_path(&dir, "e"), &file, &err), RP_ERR_FORMAT, &err,
                 (const char *const[4]){"...\"", "object"});
}

/* What is put in the place of each byte of a good header: itself with one bit flipped, and what
 * JSON and the format are made of. */
static const char others[] = "0123456789-.e\"[]{},: FUI";

#define WAYS (8 + (int)sizeof others - 1)

static char changed_byte(char byte, int way)
{
    return way < 8 ? (char)(byte ^ 1 << way) : others[way - 8];
}

/* The tensors of an opened file share out its data. */
static void assert_covered(const struct rp_st_file *file, const unsigned char *data, size_t n)
{
    unsigned char back[64];
    uint64_t covered = 0;
    for (size_t i = 0; i < file->n; i++) {
        const struct rp_st_tensor *t = &file->tensors[i];
        assert_int_equal(t->begin, covered);
        assert_true(t->end >= t->begin && t->end <= n);
        assert_int_equal(rp_st_read(t, 0, back + t->begin, (size_t)(t->end - t->begin), NULL),
                         RP_OK);
        covered = t->end;
    }
    assert_int_equal(covered, n);
    assert_memory_equal(back, data, n);
}

/* Every change of one byte: refused, or the tensors still share out the same data. */
static void test_every_byte_changed(void **state)
{
    (void)state;
    static const char good[] = "{\"__metadata__\":{\"k\":\"v\"}," A("F32", "[2,2]", "[0,16]") "," B(
        "BF16", "[3]",
        "[16,22]") ",\"c\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[22,24]}}";
    unsigned char data[24];
    char header[sizeof good];
    size_t loaded = 0, refused = 0;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 7 + 1);
    for (size_t at = 0; at < sizeof good - 1; at++)
        for (int way = 0; way < WAYS; way++) {
            struct rp_st_file *file;
            memcpy(header, good, sizeof good);
            header[at] = changed_byte(good[at], way);
            maker_write_st(&dir, "f", sizeof good - 1, header, data, sizeof data);
            if (rp_st_open(maker_path(&dir, "f"), &file, NULL) != RP_OK) {
                refused++;
                continue;
            }
            loaded++;
            assert_covered(file, data, sizeof data);
            rp_st_close(file);
        }
    print_message("%zu changes refused, %zu harmless\n", refused, loaded);
    assert_true(refused > 20 * (sizeof good - 1) && loaded > 0);
}

/* Cut while open: a short read with a name, no signal. */
static void test_cut_after_open(void **state)
{
    (void)state;
    static const char header[] = "{" A("F32", "[2]", "[0,8]") "," B("F32", "[2]", "[8,16]") "}";
    const float data[4] = {1, 2, 3, 4};
    float back[2];
    struct rp_st_file *file;
    rp_error err;
    maker_write_st(&dir, "cut", sizeof header - 1, header, data, sizeof data);
    assert_int_equal(rp_st_open(maker_path(&dir, "cut"), &file, &err), RP_OK);
    const struct rp_st_tensor *b = rp_st_find(file, "b");
    assert_non_null(b);
    assert_null(rp_st_find(file, "c"));
    assert_int_equal(rp_st_read(b, 0, back, sizeof back, &err), RP_OK);
    assert_true(back[0] == 3 && back[1] == 4);
    assert_int_equal(rp_st_read(b, 4, back, 8, &err), RP_ERR_INVALID);
    assert_int_equal(rp_st_read(b, UINT64_MAX, back, 8, &err), RP_ERR_INVALID);
    assert_int_equal(truncate(maker_path(&dir, "cut"), 8 + (off_t)sizeof header - 1 + 13), 0);
    assert_fails(rp_st_read(b, 0, back, sizeof back, &err), RP_ERR_IO, &err,
                 (const char *const[4]){"\"b\"", "3 bytes before the end", "cut"});
    rp_st_close(file);
}

/* ---- shards -----------------------------------------------------------------------------------
 */

/* Two shards of one tensor each, and an index. */
static void write_shards(const char *index)
{
    static const char a[] = "{" A("F32", "[2]", "[0,8]") "}",
                      b[] = "{" B("F32", "[2]", "[0,8]") "}";
    const float data[4] = {1, 2, 3, 4};
    maker_write_st(&dir, "s1", sizeof a - 1, a, data, 8);
    maker_write_st(&dir, "s2", sizeof b - 1, b, data + 2, 8);
    maker_write_text(&dir, "model.safetensors.index.json", index);
}

static rp_status open_set(struct rp_tensors **out, rp_error *err, size_t *n_notes)
{
    struct rp_notes notes = {0};
    const rp_status s = rp_tensors_open(dir.path, &notes, out, err);
    *n_notes = notes.n;
    rp_notes_fini(&notes);
    return s;
}

static void test_shards(void **state)
{
    (void)state;
    static const char good[] = "{\"metadata\":{\"total_size\":16},"
                               "\"weight_map\":{\"b\":\"s2\",\"a\":\"s1\"}}";
    struct rp_tensors *set;
    rp_error err;
    size_t notes;
    float back[2];
    write_shards(good);
    /* The index comes first, also when a single file is there. */
    maker_write_text(&dir, "model.safetensors", "rubbish");
    assert_int_equal(open_set(&set, &err, &notes), RP_OK);
    assert_int_equal(notes, 0);
    assert_int_equal(set->n, 2);
    assert_string_equal(set->entries[0].tensor->name, "a");
    assert_null(rp_tensors_find(set, "c"));
    assert_int_equal(rp_st_read(rp_tensors_find(set, "b")->tensor, 0, back, 8, &err), RP_OK);
    assert_true(back[0] == 3 && back[1] == 4);
    rp_tensors_close(set);

    /* As download caches lay it out: a symbolic link to a blob elsewhere. */
    struct maker_dir blobs;
    maker_dir_create(&blobs);
    maker_copy_file(maker_path(&dir, "s2"), maker_path(&blobs, "blob"));
    assert_int_equal(remove(maker_path(&dir, "s2")), 0);
    assert_int_equal(symlink(maker_path(&blobs, "blob"), maker_path(&dir, "s2")), 0);
    assert_int_equal(open_set(&set, &err, &notes), RP_OK);
    rp_tensors_close(set);
    maker_dir_remove(&blobs);
    assert_fails(open_set(&set, &err, &notes), RP_ERR_MISSING, &err, (const char *const[4]){"s2"});
    assert_int_equal(remove(maker_path(&dir, "s2")), 0);

    remove(maker_path(&dir, "model.safetensors"));
}

static void test_unmapped_tensor_is_noted(void **state)
{
    (void)state;
    static const char two[] = "{" A("F32", "[2]", "[0,8]") "," B("F32", "[2]", "[8,16]") "}";
    const float data[4] = {1, 2, 3, 4};
    struct rp_tensors *set;
    struct rp_notes notes = {0};
    rp_error err;
    write_shards("{\"weight_map\":{\"a\":\"s1\"}}");
    maker_write_st(&dir, "s1", sizeof two - 1, two, data, sizeof data);
    assert_int_equal(rp_tensors_open(dir.path, &notes, &set, &err), RP_OK);
    assert_int_equal(notes.n, 1);
    assert_non_null(strstr(notes.text[0], "b"));
    assert_int_equal(set->n, 1);
    rp_notes_fini(&notes);
    rp_tensors_close(set);
}

static void test_bad_indices(void **state)
{
    (void)state;
    static const struct {
        const char *index;
        rp_status status;
        const char *words[4];
    } cases[] = {
        {"{\"weight_map\":{\"a\":\"../other/model.safetensors\"}}", RP_ERR_FORMAT, {"../other"}},
        {"{\"weight_map\":{\"a\":\"/tmp/x.safetensors\"}}", RP_ERR_FORMAT, {"/tmp/x"}},
        {"{\"weight_map\":{\"a\":\"a/../../x\"}}", RP_ERR_FORMAT, {"a/../../x"}},
        {"{\"weight_map\":{\"a\":\"sub/x\"}}", RP_ERR_FORMAT, {"sub/x"}},
        {"{\"weight_map\":{\"a\":\"..\\\\x\"}}", RP_ERR_FORMAT, {"x"}},
        {"{\"weight_map\":{\"a\":\"..\"}}", RP_ERR_FORMAT, {"\"..\""}},
        {"{\"weight_map\":{\"a\":\".\"}}", RP_ERR_FORMAT, {"\".\""}},
        {"{\"weight_map\":{\"a\":\"\"}}", RP_ERR_FORMAT, {"shard \"\""}},
        {"{\"weight_map\":{\"a\":7}}", RP_ERR_FORMAT, {"\"a\""}},
        {"{\"weight_map\":{\"a\":\"s2\"}}", RP_ERR_MISSING, {"\"a\"", "\"s2\""}},
        {"{\"weight_map\":{\"a\":\"s1\",\"x\":\"s3\"}}", RP_ERR_MISSING, {"s3"}},
        {"{\"weight_map\":{\"a\":\"s1\",\"a\":\"s2\"}}", RP_ERR_FORMAT, {"duplicate"}},
        {"{\"weight_map\":{}}", RP_ERR_FORMAT, {"weight_map"}},
        {"{\"weight_map\":[]}", RP_ERR_FORMAT, {"weight_map"}},
        {"{}", RP_ERR_FORMAT, {"weight_map"}},
        {"[]", RP_ERR_FORMAT, {"object"}},
        {"", RP_ERR_FORMAT, {"index.json"}},
    };
    /* A model that would load, in the place that the first case points to. */
    static const char a[] = "{" A("F32", "[2]", "[0,8]") "}";
    struct maker_dir other;
    maker_dir_create(&other);
    char index[400];
    maker_write_st(&other, "x", sizeof a - 1, a, "12345678", 8);
    snprintf(index, sizeof index, "{\"weight_map\":{\"a\":\"../%s/x\"}}",
             strrchr(other.path, '/') + 1);
    struct rp_tensors *set;
    rp_error err;
    size_t notes;
    write_shards(index);
    assert_fails(open_set(&set, &err, &notes), RP_ERR_FORMAT, &err,
                 (const char *const[4]){"not the name of a file in the folder"});
    snprintf(index, sizeof index, "{\"weight_map\":{\"a\":\"%s/x\"}}", other.path);
    write_shards(index);
    assert_fails(open_set(&set, &err, &notes), RP_ERR_FORMAT, &err,
                 (const char *const[4]){"not the name of a file in the folder"});
    maker_dir_remove(&other);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_shards(cases[i].index);
        assert_fails(open_set(&set, &err, &notes), cases[i].status, &err, cases[i].words);
    }
}

static void test_cut_shards(void **state)
{
    (void)state;
    static const char good[] = "{\"weight_map\":{\"b\":\"s2\",\"a\":\"s1\"}}";
    struct rp_tensors *set;
    struct stat st;
    rp_error err;
    size_t notes;
    write_shards(good);
    assert_int_equal(stat(maker_path(&dir, "s2"), &st), 0);
    const off_t sizes[] = {st.st_size - 1, st.st_size / 2, 9, 8, 7, 0};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        write_shards(good);
        assert_int_equal(truncate(maker_path(&dir, "s2"), sizes[i]), 0);
        assert_fails(open_set(&set, &err, &notes), RP_ERR_FORMAT, &err,
                     (const char *const[4]){"\"s2\"", "bytes"});
    }
    write_shards(good);
    assert_int_equal(remove(maker_path(&dir, "s2")), 0);
    assert_fails(open_set(&set, &err, &notes), RP_ERR_MISSING, &err,
                 (const char *const[4]){"\"s2\"", "No such file"});
}

static void test_nothing_to_open(void **state)
{
    (void)state;
    struct maker_dir empty;
    struct rp_notes notes = {0};
    struct rp_tensors *set;
    rp_error err;
    maker_dir_create(&empty);
    assert_fails(rp_tensors_open(empty.path, &notes, &set, &err), RP_ERR_MISSING, &err,
                 (const char *const[4]){"model.safetensors", "index.json"});
    maker_write_text(&empty, "pytorch_model.bin", "");
    assert_fails(rp_tensors_open(empty.path, &notes, &set, &err), RP_ERR_UNSUPPORTED, &err,
                 (const char *const[4]){"pytorch_model.bin", "safe_serialization"});
    maker_dir_remove(&empty);
}

/* ---- values -----------------------------------------------------------------------------------
 */

static void write_values(const char *dtype, size_t n, const void *data, size_t bytes)
{
    char header[200];
    snprintf(header, sizeof header,
             "{\"a\":{\"dtype\":\"%s\",\"shape\":[%zu],\"data_offsets\":[0,%zu]}}", dtype, n,
             bytes);
    maker_write_st(&dir, "v", strlen(header), header, data, bytes);
}

/* One value as float and as int32; the statuses of both readings. */
static void read_value(const char *dtype, const void *data, size_t bytes, rp_status as_f32,
                       float f32, rp_status as_i32, int32_t i32)
{
    rp_tensor_file *file;
    rp_error err;
    float x = -77;
    int32_t i = -77;
    write_values(dtype, 1, data, bytes);
    assert_int_equal(rp_tensor_file_open(maker_path(&dir, "v"), &file, &err), RP_OK);
    assert_int_equal(rp_tensor_file_read_f32(file, "a", &x, 1, &err), as_f32);
    if (as_f32 == RP_OK)
        assert_memory_equal(&x, &f32, sizeof x);
    else
        assert_non_null(strstr(err.message, "\"a\""));
    assert_int_equal(rp_tensor_file_read_i32(file, "a", &i, 1, &err), as_i32);
    if (as_i32 == RP_OK)
        assert_int_equal(i, i32);
    else
        assert_non_null(strstr(err.message, "\"a\""));
    rp_tensor_file_close(file);
}

static void test_values(void **state)
{
    (void)state;
#define VALUE(dtype, type, value, ...) read_value(dtype, &(type){value}, sizeof(type), __VA_ARGS__)
    VALUE("F32", float, 1.5f, RP_OK, 1.5f, RP_ERR_FORMAT, 0);
    VALUE("F32", float, -3.0f, RP_OK, -3.0f, RP_OK, -3);
    VALUE("F32", float, -0.0f, RP_OK, -0.0f, RP_OK, 0);
    VALUE("F32", float, 2147483648.0f, RP_OK, 2147483648.0f, RP_ERR_FORMAT, 0);
    VALUE("F32", float, -2147483648.0f, RP_OK, -2147483648.0f, RP_OK, INT32_MIN);
    VALUE("F32", float, 1e30f, RP_OK, 1e30f, RP_ERR_FORMAT, 0);
    VALUE("F32", float, 1e-40f, RP_OK, 1e-40f, RP_ERR_FORMAT, 0);
    VALUE("F32", float, NAN, RP_OK, NAN, RP_ERR_FORMAT, 0);
    VALUE("F32", float, -INFINITY, RP_OK, -INFINITY, RP_ERR_FORMAT, 0);
    VALUE("F16", uint16_t, 0x0001, RP_OK, 0x1p-24f, RP_ERR_FORMAT, 0);
    VALUE("F16", uint16_t, 0x7bff, RP_OK, 65504.0f, RP_OK, 65504);
    VALUE("BF16", uint16_t, 0x0001, RP_OK, 0x1p-133f, RP_ERR_FORMAT, 0);
    VALUE("BF16", uint16_t, 0xc000, RP_OK, -2.0f, RP_OK, -2);
    VALUE("BOOL", uint8_t, 1, RP_OK, 1.0f, RP_OK, 1);
    VALUE("U8", uint8_t, 255, RP_OK, 255.0f, RP_OK, 255);
    VALUE("I8", int8_t, -128, RP_OK, -128.0f, RP_OK, -128);
    VALUE("U16", uint16_t, 65535, RP_OK, 65535.0f, RP_OK, 65535);
    VALUE("I16", int16_t, -32768, RP_OK, -32768.0f, RP_OK, -32768);
    VALUE("U32", uint32_t, 4294967295u, RP_ERR_FORMAT, 0, RP_ERR_FORMAT, 0);
    VALUE("U32", uint32_t, 4294967040u, RP_OK, 4294967040.0f, RP_ERR_FORMAT, 0);
    VALUE("I32", int32_t, 16777217, RP_ERR_FORMAT, 0, RP_OK, 16777217);
    VALUE("I64", int64_t, -16777216, RP_OK, -16777216.0f, RP_OK, -16777216);
    VALUE("I64", int64_t, INT64_MAX, RP_ERR_FORMAT, 0, RP_ERR_FORMAT, 0);
    VALUE("I64", int64_t, INT64_MIN, RP_OK, -0x1p63f, RP_ERR_FORMAT, 0);
    VALUE("U64", uint64_t, UINT64_MAX, RP_ERR_FORMAT, 0, RP_ERR_FORMAT, 0);
    VALUE("U64", uint64_t, 7, RP_OK, 7.0f, RP_OK, 7);
    VALUE("F64", double, 1.0, RP_ERR_UNSUPPORTED, 0, RP_ERR_UNSUPPORTED, 0);
    VALUE("F8_E4M3", uint8_t, 1, RP_ERR_UNSUPPORTED, 0, RP_ERR_UNSUPPORTED, 0);
    VALUE("C64", uint64_t, 1, RP_ERR_UNSUPPORTED, 0, RP_ERR_UNSUPPORTED, 0);
#undef VALUE
}

/* What a half stands for, built from its bits without any arithmetic on floats. */
static uint32_t half_bits(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t e = h >> 10 & 31, m = h & 1023;
    if (e == 31)
        return sign | 0x7f800000 | m << 13;
    if (e == 0 && m == 0)
        return sign;
    if (e == 0)
        for (e = 1; !(m & 1024); e--) /* wraps below 1, which the sum below undoes */
            m <<= 1;
    return sign | ((e + 127 - 15) << 23) | (m & 1023) << 13;
}

static bool is_nan_bits(uint32_t bits)
{
    return (bits & 0x7fffffff) > 0x7f800000;
}

static void check_all_halves(const char *dtype)
{
    static uint16_t halves[65536];
    static float out[65536];
    const bool bf16 = dtype[0] == 'B';
    rp_tensor_file *file;
    rp_error err;
    for (uint32_t h = 0; h < 65536; h++)
        halves[h] = (uint16_t)h;
    write_values(dtype, 65536, halves, sizeof halves);
    assert_int_equal(rp_tensor_file_open(maker_path(&dir, "v"), &file, &err), RP_OK);
    assert_int_equal(rp_tensor_file_read_f32(file, "a", out, 65536, &err), RP_OK);
    for (uint32_t h = 0; h < 65536; h++) {
        const uint32_t due = bf16 ? h << 16 : half_bits((uint16_t)h);
        uint32_t bits;
        memcpy(&bits, &out[h], sizeof bits);
        if (is_nan_bits(due) ? !is_nan_bits(bits) : bits != due)
            fail_msg("%s 0x%04x is 0x%08x, expected 0x%08x", dtype, h, bits, due);
    }
    rp_tensor_file_close(file);
}

static void test_all_halves(void **state)
{
    (void)state;
    check_all_halves("F16");
    check_all_halves("BF16");
#if defined(__SSE2__)
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040); /* flush results and operands */
    check_all_halves("F16");
    check_all_halves("BF16");
    read_value("F32", &(uint32_t){1}, 4, RP_OK, 0x1p-149f, RP_ERR_FORMAT, 0);
    _mm_setcsr(before);
#endif
}

static void test_tensor_file(void **state)
{
    (void)state;
    static const char header[] =
        "{" B("I32", "[2]", "[4,12]") "," A("F32", "[1,1]", "[0,4]") ",\"__metadata__\":{}}";
    const int32_t data[3] = {0, 5, -6};
    rp_tensor_file *file;
    rp_tensor t;
    rp_error err;
    int32_t back[2];
    maker_write_st(&dir, "t", sizeof header - 1, header, data, sizeof data);
    assert_int_equal(rp_tensor_file_open(maker_path(&dir, "t"), &file, &err), RP_OK);
    assert_int_equal(rp_tensor_file_count(file), 2);
    assert_int_equal(rp_tensor_file_get(file, 0, &t), RP_OK);
    assert_string_equal(t.name, "a");
    assert_int_equal(rp_tensor_file_get(file, 1, &t), RP_OK);
    assert_string_equal(t.name, "b");
    assert_string_equal(t.dtype, "I32");
    assert_int_equal(t.rank, 1);
    assert_int_equal(t.dims[0], 2);
    assert_int_equal(t.n_elements, 2);
    assert_int_equal(rp_tensor_file_get(file, 2, &t), RP_ERR_INVALID);
    assert_int_equal(rp_tensor_file_find(file, "a", &t, &err), RP_OK);
    assert_int_equal(t.rank, 2);
    assert_fails(rp_tensor_file_find(file, "c", &t, &err), RP_ERR_MISSING, &err,
                 (const char *const[4]){"\"c\""});
    assert_int_equal(rp_tensor_file_read_i32(file, "b", back, 2, &err), RP_OK);
    assert_true(back[0] == 5 && back[1] == -6);
    assert_fails(rp_tensor_file_read_i32(file, "b", back, 1, &err), RP_ERR_SHAPE, &err,
                 (const char *const[4]){"2 elements", "not 1"});
    assert_int_equal(rp_tensor_file_read_i32(file, "c", back, 1, &err), RP_ERR_MISSING);
    rp_tensor_file_close(file);
    rp_tensor_file_close(NULL);
    assert_int_equal(rp_tensor_file_open(NULL, &file, &err), RP_ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_headers),
        cmocka_unit_test(test_announced_length),
        cmocka_unit_test(test_not_a_file),
        cmocka_unit_test(test_names_are_shown_tamely),
        cmocka_unit_test(test_every_byte_changed),
        cmocka_unit_test(test_cut_after_open),
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_unmapped_tensor_is_noted),
        cmocka_unit_test(test_bad_indices),
        cmocka_unit_test(test_cut_shards),
        cmocka_unit_test(test_nothing_to_open),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_all_halves),
        cmocka_unit_test(test_tensor_file),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
