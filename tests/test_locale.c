/* A host program with a decimal comma: numbers are read and written as ever, and the locale stays
 * the host's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <rankplan/rankplan.h>

#include "plan/text.h"
#include "tests/toy.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A locale with a decimal comma: an installed one, or one made here from the system's sources. */
static bool enter_comma_locale(void)
{
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "nl_NL.UTF-8"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (setlocale(LC_ALL, names[i]) && strcmp(localeconv()->decimal_point, ",") == 0)
            return true;
    char folder[] = "/tmp/rankplan-locale-XXXXXX", command[256];
    if (!mkdtemp(folder))
        return false;
    snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 >/dev/null 2>&1",
             folder);
    const bool made = system(command) == 0;
    setenv("LOCPATH", folder, 1);
    const bool entered = made && setlocale(LC_ALL, "de_DE.UTF-8") != NULL;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command) != 0)
        print_message("%s was left behind\n", folder);
    return entered && strcmp(localeconv()->decimal_point, ",") == 0;
}

static uint64_t digest_of_model(void)
{
    rp_model *model;
    rp_session *s;
    rp_error err;
    uint64_t hashes[64];
    const int32_t ids[] = {101, 2000, 2001, 102}, cu[] = {0, 4};
    rp_batch b;
    rp_digest d = {.struct_size = sizeof d, .capacity = 64, .hashes = hashes};
    if (rp_model_load(RP_MODELS_DIR "/apt-bert-tiny", NULL, &model, &err) != RP_OK)
        fail_msg("%s", err.message);
    assert_int_equal(
        rp_session_create(rp_model_graph(model), rp_model_weights(model), NULL, &s, &err), RP_OK);
    rp_batch_init(&b);
    b.n_seqs = 1;
    b.ids = ids;
    b.cu = cu;
    assert_int_equal(rp_session_digest(s, &b, &d, &err), RP_OK);
    rp_session_destroy(s);
    rp_model_destroy(model);
    return d.whole;
}

static void numbers_do_not_follow_the_locale(void **state)
{
    (void)state;
    char before[65536], after[65536], number[32];
    struct toy_options o;
    struct toy toy;
    toy_options_init(&o);
    toy_make(&toy, &o);
    const uint64_t want = digest_of_model();
    rp_graph_text(toy.graph, toy.weights, before, sizeof before);
    if (!enter_comma_locale()) {
        toy_free(&toy);
        print_message("no locale with a decimal comma here (package locales has them)\n");
        skip();
    }
    snprintf(number, sizeof number, "%.1f", 0.5);
    assert_string_equal(number, "0,5"); /* the trap is set */
    assert_int_equal(digest_of_model(), want);
    rp_graph_text(toy.graph, toy.weights, after, sizeof after);
    assert_string_equal(after, before);
    assert_non_null(strstr(after, "eps=9.99999975e-06"));
    struct rp_text t = rp_text_init(number, sizeof number);
    rp_text_float(&t, -1234.5f);
    assert_string_equal(number, "-1234.5");
    assert_string_equal(localeconv()->decimal_point, ",");
    toy_free(&toy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(numbers_do_not_follow_the_locale)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
