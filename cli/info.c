/* rankplan info: what a model folder holds, and what this machine offers. */
#include "cli/cli.h"

static void print_question_types(const struct cli_model *m)
{
    for (size_t k = 0; k < m->info.n_question_types; k++) {
        const char *name = rp_model_question_type(m->model, k);
        printf("type %zu        %s, temperature ", k, name ? name : "without a name");
        cli_put_float(stdout, rp_model_temperature(m->model, k, 2));
        putchar('\n');
    }
}

static void print_split(const struct cli_model *m)
{
    rp_split_info s = {.struct_size = sizeof s};
    if (!rp_model_get_split(m->model, &s))
        return;
    printf("states        %zu layers, %zu of them over all segments; up to %zu tokens\n",
           s.n_state_layers, s.n_top_layers, s.max_state_tokens);
    printf("questions     %zu layers, up to %zu options in %zu tokens\n", s.n_question_layers,
           s.max_options, s.max_question_tokens);
    printf("memory        %zu bytes for each token of a state\n", s.memory_width * sizeof(float));
}

/* A chat template that is not known is no failure here: such a model runs ids. */
static void print_prompt(const struct cli_model *m)
{
    const rp_pair_prompt *prompt = NULL;
    rp_error err;
    if (rp_model_pair_prompt(m->model, &prompt, &err) != RP_OK)
        printf("prompt        not known: it ranks no texts (%s)\n", err.message);
    else if (prompt)
        printf("prompt        Qwen3-Reranker's; instruction: %s\n", prompt->instruction);
}

static void print_model(const struct cli_model *m)
{
    static const char *const activations[] = {"identity", "gelu", "gelu_tanh", "relu",
                                              "silu",     "tanh", "sigmoid"};
    static const char *const similarities[] = {"cosine", "dot", "euclidean", "manhattan"};
    const rp_model_info *i = &m->info;
    printf("family        %s (%s)\n", i->family, i->architecture);
    printf("task          %s\n", i->task == RP_TASK_EMBED    ? "embedding"
                                 : i->task == RP_TASK_DECIDE ? "decision scorer"
                                 : i->n_labels == 1          ? "cross-encoder"
                                                             : "classifier");
    printf("layers        %zu of width %zu, %zu heads of %zu, intermediate %zu\n", i->n_layers,
           i->hidden, i->n_heads, i->head_dim, i->intermediate);
    printf("vocabulary    %zu\n", i->vocab_size);
    printf("max length    %zu tokens (%s)\n", i->max_length, i->max_length_source);
    if (i->task == RP_TASK_EMBED)
        printf("embedding     %zu, pooling %s, %s, similarity %s\n", i->dimension, i->pooling,
               i->normalized ? "normalised" : "not normalised", similarities[i->similarity]);
    else if (i->task == RP_TASK_DECIDE)
        print_question_types(m);
    else
        printf("labels        %zu, activation %s\n", i->n_labels, activations[i->score_activation]);
    for (size_t k = 0; i->task == RP_TASK_CLASSIFY && rp_model_label(m->model, k); k++)
        printf("label %zu       %s\n", k, rp_model_label(m->model, k));
    print_split(m);
    print_prompt(m);
    printf("parameters    %llu\n", (unsigned long long)i->n_parameters);
    printf("weights       %llu bytes in memory, %s\n",
           (unsigned long long)rp_weights_bytes(rp_model_weights(m->model)),
           cli_precision_name(i->precision));
    if (i->precision != RP_PRECISION_FP32)
        printf("smoothing     by %s\n", i->smoothing);
    for (size_t k = 0; rp_model_note(m->model, k); k++)
        printf("note          %s\n", rp_model_note(m->model, k));
}

int cli_info(struct cli *cli)
{
    struct cli_model model;
    const rp_status status = cli_open_model(cli, 0, &model);
    if (status != RP_OK)
        return cli_fail(cli, status);
    print_model(&model);
    printf("instructions  %s (this machine: %s)\n", rp_isa_name(cli->isa),
           rp_isa_name(rp_isa_detected()));
    printf("threads       %d (processors that may be used: %d)\n", rp_pool_threads(cli->pool),
           rp_cpu_count());
    printf("rankplan      %s, tokenizer %s\n", rp_version(),
           rp_tokenizer_available() ? "built in" : "not built in");
    cli_close_model(&model);
    return CLI_OK;
}
