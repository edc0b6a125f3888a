/* What compare prints: a table and a summary for eyes, JSON for programs. */
#include "cli/compare.h"

#include <math.h>
#include <string.h>

static const char *verdict_name(const struct cli_pair *p)
{
    static const char *const names[] = {"same", "rows", "within", "OVER", "SHAPE"};
    return p->verdict == CLI_OVER && !p->measured ? "HASH" : names[p->verdict];
}

/* Names come from files: control characters must not reach the terminal. */
static void put_name(const char *s, int width)
{
    int n = 0;
    for (; *s; s++, n++)
        putchar((unsigned char)*s < ' ' || *s == 127 ? '?' : *s);
    for (; n < width; n++)
        putchar(' ');
}

static void put_number(double x, int digits, int width)
{
    char s[CLI_NUMBER_BYTES];
    cli_format_double(s, x, digits);
    printf(width ? "%-*s " : "%*s", width, s);
}

static const char *name_of(const struct cli_comparison *c, size_t pair)
{
    return c->a->steps[c->pairs[pair].a].name;
}

/* The tolerance rounded up to four digits, so that what is printed passes. */
static double rounded_up(double tol)
{
    return tol * 1.001;
}

void cli_print_min_tol(double min_tol)
{
    put_number(rounded_up(min_tol), 4, 0);
    putchar('\n');
}

/* ---- for eyes -----------------------------------------------------------------------------------
 */

static void print_row(const struct cli_comparison *c, const struct cli_pair *p)
{
    const struct cli_run_step *a = &c->a->steps[p->a], *b = &c->b->steps[p->b];
    char text[64];
    printf("%-6s ", verdict_name(p));
    put_name(a->name, 26);
    if (p->verdict == CLI_OTHER_SHAPE) {
        printf("  %zux%zu against %zux%zu\n", a->rows, a->width, b->rows, b->width);
        return;
    }
    snprintf(text, sizeof text, "%zux%zu", p->rows, a->width);
    printf("  %-9s ", text);
    if (p->verdict == CLI_OTHER_ROWS) {
        printf("hashes of %zu and of %zu rows: only the %s tokens' are in both\n", a->rows, b->rows,
               p->tokens);
        return;
    }
    if (!p->measured) {
        puts(p->verdict == CLI_SAME ? "hashes are equal" : "hashes differ");
        return;
    }
    const size_t width = a->width ? a->width : 1;
    snprintf(text, sizeof text, "%zu,%zu", p->d.worst / width, p->d.worst % width);
    put_number(p->d.max_abs, 3, 9);
    printf("%-9s ", p->d.max_abs > 0 ? text : "-");
    put_number(p->d.max_rel, 3, 9);
    put_number(p->d.mean_abs, 3, 9);
    put_number(p->d.cosine, 7, 10);
    put_number(p->d.snr_db, 4, 6);
    snprintf(text, sizeof text, "%u/%u/%u", p->d.ulp[0], p->d.ulp[1], p->d.ulp[2]);
    printf("%-18s %zu", text, p->d.n_over);
    if (p->tokens)
        printf(" (of the %s tokens)", p->tokens);
    if (p->d.n_nan)
        printf(" (%zu NaN on one side)", p->d.n_nan);
    putchar('\n');
}

static void print_missing(const struct cli_comparison *c, int side)
{
    const struct cli_run *run = side == 0 ? c->a : c->b, *other = side == 0 ? c->b : c->a;
    if (c->n_missing[side] == 0)
        return;
    printf("only in %s%s:", run->path, other->partial ? " (the other is partial)" : "");
    for (size_t i = 0; i < c->n_missing[side]; i++) {
        putchar(' ');
        put_name(run->steps[c->missing[side][i]].name, 0);
    }
    putchar('\n');
}

static void print_histogram(const struct cli_comparison *c, size_t pair)
{
    const struct cli_difference *d = &c->pairs[pair].d;
    size_t most = 1;
    for (size_t i = 0; i < CLI_ERROR_BINS; i++)
        if (d->bins[i] > most)
            most = d->bins[i];
    fputs("\nerrors at ", stdout);
    put_name(name_of(c, pair), 0);
    puts(" (each line from its number up):");
    for (size_t i = 0; i < CLI_ERROR_BINS; i++) {
        printf("  %-8s %9zu ", cli_error_bin_name(i), d->bins[i]);
        /* Up to 40; anything at all shows. */
        for (size_t k = 0; k < (d->bins[i] * 40 + most - 1) / most; k++)
            putchar('#');
        putchar('\n');
    }
}

static void print_first(const struct cli_comparison *c, const char *what, size_t pair)
{
    fputs(what, stdout);
    put_name(pair == CLI_NONE ? "none" : name_of(c, pair), 0);
}

/* The step to look at: the jump, or what comes nearest to it. */
static size_t step_of_interest(const struct cli_comparison *c)
{
    if (c->first_jump != CLI_NONE)
        return c->first_jump;
    return c->first_over != CLI_NONE ? c->first_over : c->first_different;
}

static void print_summary(const struct cli_comparison *c)
{
    print_first(c, "\nfirst step that differs            ", c->first_different);
    print_first(c, "\nfirst step over the tolerance      ", c->first_over);
    print_first(c, "\nfirst step that jumps              ", c->first_jump);
    if (c->first_jump != CLI_NONE) {
        const struct cli_pair *p = &c->pairs[c->first_jump];
        fputs(": error ", stdout);
        put_number(p->d.scaled, 3, 0);
        fputs(" of its largest value, its inputs' ", stdout);
        put_number(p->input, 3, 0);
    }
    fputs("\ntolerance that would pass          ", stdout);
    if (c->by_hash)
        puts("unknown: there are hashes, no values");
    else if (isinf(c->min_tol))
        puts("none");
    else
        cli_print_min_tol(c->min_tol);
    if (c->ranked) {
        fputs("order by ", stdout);
        if (c->a->steps[c->pairs[c->ranks_of].a].width != 1)
            fputs("cosine to the first row of ", stdout);
        put_name(name_of(c, c->ranks_of), 0);
        fputs(": Kendall's tau ", stdout);
        put_number(c->ranks.tau, 6, 0);
        printf(", %s first, %zu of the first %zu in common\n",
               c->ranks.same_first ? "the same" : "another", c->ranks.common, c->ranks.top);
    }
}

void cli_print_comparison(const struct cli_comparison *c)
{
    size_t over = 0;
    printf("%-6s %-26s  %-9s %-9s %-9s %-9s %-9s %-10s %-6s %-18s over\n", "", "step", "shape",
           "max abs", "at", "max rel", "mean abs", "cosine", "SNR dB", "ULP p50/p99/max");
    for (size_t i = 0; i < c->n_pairs; i++) {
        print_row(c, &c->pairs[i]);
        over += c->pairs[i].verdict >= CLI_OVER;
    }
    print_missing(c, 0);
    print_missing(c, 1);
    print_summary(c);
    const size_t show = step_of_interest(c);
    if (show != CLI_NONE && c->pairs[show].measured)
        print_histogram(c, show);
    printf("\n%s: %zu of %zu steps over the tolerance of ", c->equal ? "equal" : "DIFFERENT", over,
           c->n_pairs);
    put_number(c->tol, 6, 0);
    if (c->by_hash)
        fputs(" or with other hashes", stdout);
    if (c->n_missing[0] + c->n_missing[1])
        printf(", %zu only on one side", c->n_missing[0] + c->n_missing[1]);
    putchar('\n');
}

/* ---- for programs -------------------------------------------------------------------------------
 */

static void put_string(const char *s)
{
    (void)cli_put_json_string(stdout, s, strlen(s));
}

/* JSON has no infinity: null. */
static void put_value(const char *key, double x)
{
    printf(",\"%s\":", key);
    if (isfinite(x))
        cli_put_double(stdout, x, 9);
    else
        fputs("null", stdout);
}

static void put_pair(const struct cli_comparison *c, const struct cli_pair *p)
{
    const struct cli_run_step *a = &c->a->steps[p->a], *b = &c->b->steps[p->b];
    const struct cli_difference *d = &p->d;
    const size_t width = a->width ? a->width : 1;
    fputs("{\"a\":", stdout);
    put_string(a->name);
    fputs(",\"b\":", stdout);
    put_string(b->name);
    fputs(",\"op\":", stdout);
    put_string(a->op);
    printf(",\"verdict\":\"%s\",\"shape\":[%zu,%zu],\"shape_b\":[%zu,%zu]", verdict_name(p),
           a->rows, a->width, b->rows, b->width);
    if (p->tokens)
        printf(",\"tokens\":\"%s\"", p->tokens);
    if (p->measured) {
        put_value("max_abs", d->max_abs);
        printf(",\"at\":[%zu,%zu]", d->worst / width, d->worst % width);
        put_value("max_rel", d->max_rel);
        put_value("mean_abs", d->mean_abs);
        put_value("cosine", d->cosine);
        put_value("snr_db", d->snr_db);
        printf(",\"ulp_p50\":%u,\"ulp_p99\":%u,\"ulp_max\":%u,\"over\":%zu,\"nan\":%zu", d->ulp[0],
               d->ulp[1], d->ulp[2], d->n_over, d->n_nan);
        put_value("scaled", d->scaled);
        put_value("inputs_scaled", p->input);
        put_value("min_tol", d->min_tol);
        fputs(",\"histogram\":[", stdout);
        for (size_t i = 0; i < CLI_ERROR_BINS; i++)
            printf("%s%zu", i ? "," : "", d->bins[i]);
        putchar(']');
    }
    putchar('}');
}

static void put_first(const struct cli_comparison *c, const char *key, size_t pair)
{
    printf(",\"%s\":", key);
    if (pair == CLI_NONE)
        fputs("null", stdout);
    else
        put_string(name_of(c, pair));
}

static void put_missing(const struct cli_comparison *c, const char *key, int side)
{
    const struct cli_run *run = side == 0 ? c->a : c->b;
    printf(",\"%s\":[", key);
    for (size_t i = 0; i < c->n_missing[side]; i++) {
        if (i)
            putchar(',');
        put_string(run->steps[c->missing[side][i]].name);
    }
    putchar(']');
}

void cli_print_comparison_json(const struct cli_comparison *c)
{
    printf("{\"equal\":%s", c->equal ? "true" : "false");
    put_value("tol", c->tol);
    put_value("min_tol", rounded_up(c->min_tol));
    put_first(c, "first_different", c->first_different);
    put_first(c, "first_over", c->first_over);
    put_first(c, "first_jump", c->first_jump);
    put_missing(c, "only_in_a", 0);
    put_missing(c, "only_in_b", 1);
    if (c->ranked) {
        put_first(c, "ranked", c->ranks_of);
        put_value("tau", c->ranks.tau);
        printf(",\"same_first\":%s,\"top\":%zu,\"common\":%zu",
               c->ranks.same_first ? "true" : "false", c->ranks.top, c->ranks.common);
    }
    fputs(",\"steps\":[\n", stdout);
    for (size_t i = 0; i < c->n_pairs; i++) {
        if (i)
            fputs(",\n", stdout);
        put_pair(c, &c->pairs[i]);
    }
    puts("\n]}");
}
