/* A program that uses an installed rankplan: consumer MODEL with-tokenizer|without-tokenizer
 *
 * It scores the first reference case of a cross-encoder from its ids, and looks at whether the
 * tokenizer is there or, as announced, is not.  So everything that a link can forget is reached.
 */
#include <rankplan/rankplan.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TOKENS 4096
#define MAX_CASES  256

static rp_error err;

static void must(rp_status status)
{
    if (status == RP_OK)
        return;
    fprintf(stderr, "consumer: %s: %s\n", rp_status_name(status), err.message);
    exit(1);
}

static size_t read_i32(const rp_tensor_file *file, const char *name, int32_t *out, size_t capacity)
{
    rp_tensor tensor;
    must(rp_tensor_file_find(file, name, &tensor, &err));
    if (tensor.n_elements > capacity) {
        fprintf(stderr, "consumer: more %s than expected\n", name);
        exit(1);
    }
    must(rp_tensor_file_read_i32(file, name, out, (size_t)tensor.n_elements, &err));
    return (size_t)tensor.n_elements;
}

/* The reference's own score of a case against ours. */
static void score(const char *folder)
{
    static int32_t ids[MAX_TOKENS], types[MAX_TOKENS], cu[MAX_CASES + 1];
    static float logits[MAX_CASES];
    char path[4096];
    rp_tensor_file *file;
    rp_model *model;
    rp_session *session;
    rp_batch batch;
    rp_view view;

    snprintf(path, sizeof path, "%s/cases.safetensors", folder);
    must(rp_tensor_file_open(path, &file, &err));
    read_i32(file, "ids", ids, MAX_TOKENS);
    read_i32(file, "type_ids", types, MAX_TOKENS);
    const size_t n = read_i32(file, "cu", cu, MAX_CASES + 1) - 1;
    must(rp_tensor_file_read_f32(file, "logits", logits, n, &err));
    rp_tensor_file_close(file);

    must(rp_model_load(folder, NULL, &model, &err));
    must(rp_session_create(rp_model_graph(model), rp_model_weights(model), NULL, &session, &err));
    rp_batch_init(&batch);
    batch.n_seqs = n;
    batch.ids = ids;
    batch.cu = cu;
    batch.type_ids = types;
    must(rp_session_run(session, &batch, &err));
    must(rp_session_output(session, "logits", &view, &err));
    for (size_t i = 0; i < n; i++) {
        if (!(fabsf(view.data[i * view.width] - logits[i]) < 1e-4F)) {
            fprintf(stderr, "consumer: case %zu scores %.6f, expected %.6f\n", i,
                    (double)view.data[i * view.width], (double)logits[i]);
            exit(1);
        }
    }
    printf("%zu cases scored, the first %.6f\n", n, (double)view.data[0]);
    rp_session_destroy(session);
    rp_model_destroy(model);
}

static void tokenize(const char *folder, int expected)
{
    char path[4096];
    rp_tokenizer *tokenizer;

    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    const rp_status status = rp_tokenizer_load(path, &tokenizer, &err);
    if (!expected && status == RP_ERR_UNSUPPORTED)
        return;
    must(status);
    if (!expected) {
        fprintf(stderr, "consumer: there is a tokenizer\n");
        exit(1);
    }
    printf("%zu tokens in the vocabulary\n", rp_tokenizer_vocab_size(tokenizer));
    rp_tokenizer_free(tokenizer);
}

int main(int argc, char **argv)
{
    char version[32];

    if (argc != 3)
        return 2;
    snprintf(version, sizeof version, "%d.%d.%d", RANKPLAN_VERSION_MAJOR, RANKPLAN_VERSION_MINOR,
             RANKPLAN_VERSION_PATCH);
    if (strcmp(version, rp_version()) != 0) {
        fprintf(stderr, "consumer: headers %s, library %s\n", version, rp_version());
        return 1;
    }
    score(argv[1]);
    tokenize(argv[1], strcmp(argv[2], "with-tokenizer") == 0);
    return 0;
}
