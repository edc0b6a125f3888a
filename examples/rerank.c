/* The smallest program that ranks: load a cross-encoder, score three texts against a query, print
 * them best first.  Runs from the root of the tree. */
#include <rankplan/rankplan.h>

#include <stdio.h>
#include <string.h>

static rp_text_ref text(const char *s)
{
    return (rp_text_ref){.data = s, .length = strlen(s)};
}

int main(void)
{
    const char *folder = "examples/models/apt-bert-tiny";
    const char *tokenizer_file = "examples/models/apt-bert-tiny/tokenizer.json";
    const rp_text_ref documents[] = {
        text("This package contains a screen magnifier for low-vision users."),
        text("A small and fast HTTP server written in C, with TLS and virtual hosts."),
        text("Fonts for the Thai script."),
    };
    const size_t n = sizeof documents / sizeof *documents;
    float scores[3];
    size_t order[3];
    rp_pool *pool = NULL;
    rp_model *model = NULL;
    rp_tokenizer *tokenizer = NULL;
    rp_ranker *ranker = NULL;
    rp_error err = {RP_OK, ""};

    rp_ranker_options options;
    rp_ranker_options_init(&options);

    rp_status status = rp_pool_create(NULL, &pool, &err);
    options.pool = pool;
    if (status == RP_OK)
        status = rp_model_load(folder, NULL, &model, &err);
    if (status == RP_OK)
        status = rp_tokenizer_load(tokenizer_file, &tokenizer, &err);
    if (status == RP_OK)
        status = rp_ranker_create(model, tokenizer, &options, &ranker, &err);
    if (status == RP_OK)
        status = rp_ranker_score(ranker, text("lightweight web server"), n, documents, scores, NULL,
                                 &err);
    if (status == RP_OK) {
        rp_rank(scores, n, order);
        for (size_t i = 0; i < n; i++)
            printf("%8.4f  %s\n", (double)scores[order[i]], documents[order[i]].data);
    } else {
        fprintf(stderr, "%s: %s\n", rp_status_name(status), err.message);
    }

    rp_ranker_destroy(ranker);
    rp_tokenizer_free(tokenizer);
    rp_model_destroy(model);
    rp_pool_destroy(pool);
    /* A build without the tokenizer cannot read texts; that is not this example's failure. */
    return status == RP_OK || !rp_tokenizer_available() ? 0 : 1;
}
