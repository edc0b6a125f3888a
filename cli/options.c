/* The command line: one table of options, one list of commands, getopt_long. */
#include "cli/cli.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const char common_options[] =
    "threads isa precision keep-fp32 smoothing max-length quiet help ";
/* Of commands that run no model. */
static const char path_options[] = "quiet help ";

static const char common_help[] =
    "Common options:\n"
    "  --threads N       threads to use (default: all that this process may use)\n"
    "  --isa LEVEL       use nothing above scalar, avx2, avx512, neon, ... (default: max; also "
    "the\n"
    "                    environment variable RANKPLAN_ISA).  It never changes a result.\n"
    "  --precision P     fp32 (default) or int8\n"
    "  --keep-fp32 NAMES with int8: products whose steps match stay in fp32, e.g. "
    "'layers.0.*,*.down'\n"
    "  --smoothing FILE  with int8: factors that `rankplan quantize` wrote (default: "
    "MODEL/rankplan-int8.json,\n"
    "                    or from a run of random ids)\n"
    "  --max-length N    cut texts to N tokens (default: what the model's files say)\n"
    "  --quiet           no notes and no progress on standard error\n"
    "  --help            this text\n";

static const char path_help[] = "Common options:\n"
                                "  --quiet           no notes on standard error\n"
                                "  --help            this text\n";

static const char exit_help[] =
    "Exit codes: 0 done; 1 check, compare: over the tolerance; 2 wrong "
    "command line; 3 wrong model,\n"
    "file or text; 4 memory, threads, or an output that cannot be written.\n";

const struct cli_command cli_commands[] = {
    {"info", "MODEL", "what is in a model folder, and what this machine offers", "",
     "Prints the family, sizes, limits, pooling and head of the model in the folder MODEL, notes "
     "about\n"
     "what was assumed or is unused, and the instruction sets and threads of this machine.\n\n"
     "  rankplan info examples/models/apt-bert-tiny\n",
     CLI_TAKES_MODEL, cli_info},
    {"embed", "MODEL [FILE|-]", "a vector for each line of text", "format prompt ",
     "Reads a text a line and prints a vector for each.\n\n"
     "  --format jsonl    a line each: {\"index\",\"tokens\",\"truncated\",\"embedding\"} "
     "(default)\n"
     "  --format npy      one NumPy array of f32, lines x dimension\n"
     "  --prompt NAME     the model's prompt of that name before each text (default: its own "
     "default)\n\n"
     "  echo 'a text' | rankplan embed MODEL\n"
     "  rankplan embed MODEL texts.txt --format npy > vectors.npy\n",
     CLI_TAKES_MODEL_AND_FILE, cli_embed},
    {"rerank", "MODEL --query Q [FILE|-]", "lines of text in the order of their fit to a query",
     "query instruction no-prefix-reuse top-n ",
     "Reads a document a line and prints {\"index\",\"score\",\"truncated\",\"text\"} for each, "
     "best first: a\n"
     "cross-encoder's score, or the similarity of the vectors when MODEL is an embedder.\n\n"
     "  --query Q         the query\n"
     "  --instruction I   what a generative reranker is to judge by (default: the model's own)\n"
     "  --no-prefix-reuse run the prompt and the query again for each line: slower, same scores\n"
     "  --top-n N         only the best N\n\n"
     "  rankplan rerank examples/models/apt-bert-tiny --query 'web server' packages.txt --top-n "
     "5\n",
     CLI_TAKES_MODEL_AND_FILE, cli_rerank},
    {"score", "MODEL [FILE|-]", "a probability for each option of a question",
     "outputs marker cache ",
     "Reads a question a line for a decision scorer, as JSON, and prints a line for each:\n\n"
     "  {\"type\":\"choice\",\"text\":\"choice question: Who should handle this?[SEP][MASK] "
     "billing[MASK] sales[SEP]...\"}\n"
     "  {\"type\":0,\"ids\":[...],\"markers\":[5,9]}\n\n"
     "type is choice, score, noul or a number.  In a text the tokenizer's mask token stands before "
     "each option;\n"
     "with ids, markers are the positions of it.  Printed are {\"index\",\"type\",\"tokens\","
     "\"truncated\",\"logits\",\n"
     "\"probabilities\",\"act\",\"act_probability\"}: logits of the options in their order, their "
     "softmax at the type's\n"
     "temperature, and whether to act on the answer.\n\n"
     "  --outputs LIST    some of logits,act,pooled (default logits,act); pooled is the mean of "
     "the "
     "body's rows\n"
     "  --marker TOKEN    what marks an option in a text (default [MASK], or <mask>)\n\n"
     "Of a split encoder (a folder with kime.json) a line has what it is about by itself:\n\n"
     "  {\"type\":\"choice\",\"state\":\"...\",\"header\":\"choose: "
     "who?\",\"options\":[\"billing\","
     "\"sales\"]}\n\n"
     "each a text or a list of ids; or \"segments\":[...] instead of the state.  Equal states are "
     "read\nonce, while they are kept.\n"
     "Printed are "
     "{\"index\",\"type\",\"state_tokens\",\"tokens\",\"logits\",\"probabilities\"}.\n\n"
     "  --cache MIB       memory for states that are kept for later lines, and as much for "
     "segments "
     "(default 512);\n"
     "                    what one question needs is kept for it in any case\n\n"
     "  rankplan score MODEL questions.jsonl\n",
     CLI_TAKES_MODEL_AND_FILE, cli_score},
    {"plan", "MODEL --bucket T,S[,M]", "the plan for a bucket, as text",
     "bucket no-fuse no-prune part ",
     "Prints the steps that MODEL becomes for batches of up to T tokens in S sequences (with M "
     "markers).\n\n"
     "  --bucket T,S[,M]  the bucket\n"
     "  --no-fuse         every activation and residual as a step of its own, no two steps "
     "together\n"
     "  --no-prune        also the rows that nothing reads\n"
     "  --part NAME       of a split encoder: main (questions), state, segment, segments\n\n"
     "  rankplan plan MODEL --bucket 128,1\n",
     CLI_TAKES_MODEL, cli_plan},
    {"check", "MODEL [--cases FILE]", "compare with reference outputs",
     "cases tol no-fuse no-prune ",
     "Runs the token ids of a cases.safetensors and compares every tensor there (hidden.N, last, "
     "pooler,\n"
     "logits) with the model's own: max abs error, and that error over the tensor's largest value. "
     " A file\n"
     "with `group` is a set of rankings: their order, recall@1 and MRR are printed.\n\n"
     "  --cases FILE      default: MODEL/cases.safetensors\n"
     "  --tol X           largest relative error that passes (default 2e-5)\n"
     "  --no-fuse         without fused steps\n"
     "  --no-prune        also the rows that nothing reads\n\n"
     "  rankplan check examples/models/apt-bert-tiny\n",
     CLI_TAKES_MODEL, cli_check},
    {"digest", "MODEL [FILE|-]", "a hash of every step's result",
     "query instruction cases no-fuse no-prune ",
     "Runs the lines of text as one batch and prints for each step: index, name, kind, rows x "
     "width, XXH3 of\n"
     "the result; last the hash of them all.  Equal on every machine, so two runs compare with "
     "diff.\n\n"
     "  --query Q         each line as a pair with this query before it\n"
     "  --instruction I   with --query: what a generative reranker is to judge by\n"
     "  --cases FILE      the ids of a cases.safetensors instead of text\n"
     "  --no-fuse         without fused steps (which have hashes of their own)\n"
     "  --no-prune        also the rows that nothing reads\n\n"
     "  rankplan digest MODEL texts.txt > here.txt; diff here.txt there.txt\n",
     CLI_TAKES_MODEL_AND_FILE, cli_digest},
    {"dump", "MODEL [FILE|-] -o DIR", "every step's result as a .npy file",
     "output filter stats-only query instruction cases no-fuse no-prune ",
     "Runs the lines of text as one batch and writes the result of each step into the folder DIR, "
     "as\n"
     "0007_layers.0.ffn.down.npy (f32, the rows that the batch has) and index.json (hash, shape, "
     "inputs,\n"
     "statistics).  DIR is made; or it is empty, or holds an older dump, which goes.\n\n"
     "  -o, --output DIR  the folder\n"
     "  --filter GLOB     only the steps whose name fits, e.g. 'layers.3.*'\n"
     "  --stats-only      the index alone\n"
     "  --query Q         each line as a pair with this query before it\n"
     "  --instruction I   with --query: what a generative reranker is to judge by\n"
     "  --cases FILE      the ids of a cases.safetensors instead of text\n"
     "  --no-fuse         without fused steps\n"
     "  --no-prune        also the rows that nothing reads\n\n"
     "  rankplan dump MODEL texts.txt -o here\n",
     CLI_TAKES_MODEL_AND_FILE, cli_dump},
    {"compare", "A B", "where two runs differ", "tol map min-tol partial json ",
     "A and B are folders of rankplan dump (or of tools/hf_dump.py), or files that rankplan digest "
     "printed.\n"
     "Prints a line for each step of both: max abs error and where, max relative, mean abs, "
     "cosine, SNR, ULP,\n"
     "values over the tolerance.  Then the first step that differs, the first over the tolerance, "
     "and the first\n"
     "whose error is more than 10 times that of its inputs.  B is the reference.\n\n"
     "  --tol X           a value passes when |a - b| <= X + X |b| (default 1e-5)\n"
     "  --map FILE        JSON: {\"name in A\": \"name in B\"}\n"
     "  --partial         steps that only one of them has are no difference\n"
     "  --min-tol         print only the tolerance that would pass\n"
     "  --json            the same for programs\n\n"
     "  rankplan compare here there\n",
     CLI_TAKES_TWO_PATHS, cli_compare},
    {"quantize", "MODEL --calibrate FILE -o OUT", "smoothing factors for int8 from your texts",
     "calibrate output query instruction ",
     "Runs the lines of a file in FP32 and writes the smoothing factors that they give.  int8 "
     "takes "
     "them from\n"
     "MODEL/rankplan-int8.json, or from --smoothing; without a file it runs random ids once at "
     "load.\n\n"
     "  --calibrate FILE  a text a line; some hundred are plenty\n"
     "  -o, --output OUT  the file\n"
     "  --query Q         each line as a pair with this query before it\n"
     "  --instruction I   with --query: what a generative reranker is to judge by\n\n"
     "  rankplan quantize MODEL --calibrate texts.txt -o MODEL/rankplan-int8.json\n",
     CLI_TAKES_MODEL, cli_quantize},
    {"compare-precision", "MODEL [FILE|-]", "what int8 costs on your texts",
     "query instruction json ",
     "Runs a text a line in FP32 and in INT8 and prints how far the results are apart: cosines of "
     "vectors, the\n"
     "largest change of a similarity (with --query: of a score), how far rankings agree (each text "
     "as query for\n"
     "the others, or the one query), and the steps that lose most.\n\n"
     "  --query Q         scores of (query, line)\n"
     "  --instruction I   with --query: what a generative reranker is to judge by\n"
     "  --json            the same for programs, all steps\n\n"
     "  rankplan compare-precision MODEL texts.txt\n",
     CLI_TAKES_MODEL_AND_FILE, cli_compare_precision},
    {"profile", "MODEL [FILE|-]", "where the milliseconds go",
     "query instruction cases json csv trace no-fuse no-prune ",
     "Runs the lines of text as one batch 20 times and prints for each step, and each kind of "
     "step, its time, its\n"
     "share of all threads' time, its speed and its share of this machine's peak, the largest "
     "first.\n\n"
     "  --query Q         each line as a pair with this query before it\n"
     "  --instruction I   with --query: what a generative reranker is to judge by\n"
     "  --cases FILE      the ids of a cases.safetensors instead of text\n"
     "  --json, --csv     the same for programs\n"
     "  --trace FILE      also a timeline, a track per thread, that Perfetto and chrome://tracing "
     "open\n"
     "  --no-fuse         without fused steps\n"
     "  --no-prune        also the rows that nothing reads\n\n"
     "  rankplan profile MODEL texts.txt --threads 2 --trace trace.json\n",
     CLI_TAKES_MODEL_AND_FILE, cli_profile},
    {"bench", "MODEL --shape SHAPE", "how long a batch takes", "shape json no-fuse no-prune ",
     "Times batches of random ids (the seed is fixed), tokenising left out.\n\n"
     "  --shape BxS            B texts of S tokens\n"
     "  --shape ragged:N:LO:HI N texts of LO to HI tokens\n"
     "  --shape lens:A,B,...   texts of exactly these lengths\n"
     "  --json                 one line of JSON\n"
     "  --no-fuse              without fused steps\n"
     "  --no-prune             also the rows that nothing reads\n\n"
     "  rankplan bench MODEL --shape 1x128 --threads 1\n",
     CLI_TAKES_MODEL, cli_bench},
};
const size_t cli_n_commands = sizeof cli_commands / sizeof *cli_commands;

enum {
    OPT_THREADS = 1000,
    OPT_ISA,
    OPT_PRECISION,
    OPT_KEEP_FP32,
    OPT_SMOOTHING,
    OPT_CALIBRATE,
    OPT_MAX_LENGTH,
    OPT_QUIET,
    OPT_HELP,
    OPT_FORMAT,
    OPT_QUERY,
    OPT_INSTRUCTION,
    OPT_NO_PREFIX_REUSE,
    OPT_TOP_N,
    OPT_BUCKET,
    OPT_CASES,
    OPT_TOL,
    OPT_SHAPE,
    OPT_JSON,
    OPT_PROMPT,
    OPT_NO_FUSE,
    OPT_NO_PRUNE,
    OPT_CSV,
    OPT_TRACE,
    OPT_FILTER,
    OPT_STATS_ONLY,
    OPT_MAP,
    OPT_MIN_TOL,
    OPT_PARTIAL,
    OPT_OUTPUTS,
    OPT_MARKER,
    OPT_CACHE,
    OPT_PART,
    OPT_OUTPUT = 'o'
};

static const char short_options[] = ":o:";

static const struct option long_options[] = {
    {"threads", required_argument, NULL, OPT_THREADS},
    {"isa", required_argument, NULL, OPT_ISA},
    {"precision", required_argument, NULL, OPT_PRECISION},
    {"keep-fp32", required_argument, NULL, OPT_KEEP_FP32},
    {"smoothing", required_argument, NULL, OPT_SMOOTHING},
    {"calibrate", required_argument, NULL, OPT_CALIBRATE},
    {"max-length", required_argument, NULL, OPT_MAX_LENGTH},
    {"quiet", no_argument, NULL, OPT_QUIET},
    {"help", no_argument, NULL, OPT_HELP},
    {"format", required_argument, NULL, OPT_FORMAT},
    {"query", required_argument, NULL, OPT_QUERY},
    {"instruction", required_argument, NULL, OPT_INSTRUCTION},
    {"no-prefix-reuse", no_argument, NULL, OPT_NO_PREFIX_REUSE},
    {"top-n", required_argument, NULL, OPT_TOP_N},
    {"bucket", required_argument, NULL, OPT_BUCKET},
    {"cases", required_argument, NULL, OPT_CASES},
    {"tol", required_argument, NULL, OPT_TOL},
    {"shape", required_argument, NULL, OPT_SHAPE},
    {"json", no_argument, NULL, OPT_JSON},
    {"prompt", required_argument, NULL, OPT_PROMPT},
    {"no-fuse", no_argument, NULL, OPT_NO_FUSE},
    {"no-prune", no_argument, NULL, OPT_NO_PRUNE},
    {"csv", no_argument, NULL, OPT_CSV},
    {"trace", required_argument, NULL, OPT_TRACE},
    {"output", required_argument, NULL, OPT_OUTPUT},
    {"filter", required_argument, NULL, OPT_FILTER},
    {"stats-only", no_argument, NULL, OPT_STATS_ONLY},
    {"map", required_argument, NULL, OPT_MAP},
    {"min-tol", no_argument, NULL, OPT_MIN_TOL},
    {"partial", no_argument, NULL, OPT_PARTIAL},
    {"outputs", required_argument, NULL, OPT_OUTPUTS},
    {"marker", required_argument, NULL, OPT_MARKER},
    {"cache", required_argument, NULL, OPT_CACHE},
    {"part", required_argument, NULL, OPT_PART},
    {NULL, 0, NULL, 0},
};

static const char *option_name(int value)
{
    for (const struct option *o = long_options; o->name; o++)
        if (o->val == value)
            return o->name;
    return "?";
}

/* ---- values ------------------------------------------------------------------------------------
 */

/* A whole number; false for anything else, also for signs, spaces and numbers above `most`. */
static bool parse_count(const char *s, char stop, size_t most, size_t *out, const char **rest)
{
    size_t n = 0;
    const char *p = s;
    for (; *p >= '0' && *p <= '9'; p++) {
        const size_t digit = (size_t)(*p - '0');
        if (n > (most - digit) / 10)
            return false;
        n = n * 10 + digit;
    }
    if (p == s || (*p != 0 && *p != stop))
        return false;
    *out = n;
    *rest = *p ? p + 1 : p;
    return true;
}

static bool whole(const char *s, size_t most, size_t *out)
{
    const char *rest;
    return parse_count(s, 0, most, out, &rest);
}

static bool parse_bucket(const char *s, rp_bucket *out)
{
    const char *rest = s;
    out->markers = 0;
    if (!parse_count(rest, ',', INT_MAX, &out->tokens, &rest) || !*rest ||
        !parse_count(rest, ',', INT_MAX, &out->seqs, &rest))
        return false;
    if (rest[-1] != ',')
        return true;
    return parse_count(rest, 0, INT_MAX, &out->markers, &rest);
}

/* A decimal number with a point, whatever the locale: digits [. digits] [e[+-]digits]. */
static bool parse_decimal(const char *s, double *out)
{
    double value = 0, scale = 1;
    size_t exponent = 0;
    bool any = false, negative = false;
    for (; *s >= '0' && *s <= '9'; s++, any = true)
        value = value * 10 + (*s - '0');
    if (*s == '.')
        for (s++; *s >= '0' && *s <= '9'; s++, any = true)
            value += (*s - '0') * (scale /= 10);
    if (any && (*s == 'e' || *s == 'E')) {
        s++;
        negative = *s == '-';
        if (*s == '-' || *s == '+')
            s++;
        if (!whole(s, 300, &exponent))
            return false;
        s += strlen(s);
    }
    *out = value * pow(10, negative ? -(double)exponent : (double)exponent);
    return any && *s == 0;
}

static bool parse_precision(const char *s, rp_precision *out)
{
    const char *name;
    for (int i = 0; (name = cli_precision_name((rp_precision)i)); i++) {
        *out = (rp_precision)i;
        if (strcmp(s, name) == 0)
            return true;
    }
    return false;
}

static bool parse_part(const char *s, rp_part *out)
{
    static const char *const names[] = {"main", "state", "segment", "segments"};
    for (int i = 0; i < 4; i++)
        if (strcmp(s, names[i]) == 0) {
            *out = (rp_part)i;
            return true;
        }
    return false;
}

static int bad_value(int option, const char *value, const char *expected)
{
    return cli_complain(CLI_USAGE, "--%s %s: expected %s", option_name(option), value, expected);
}

static int set_option(struct cli_options *o, int option, const char *value)
{
    size_t n;
    switch (option) {
    case OPT_THREADS:
        if (!whole(value, 4096, &n) || n == 0)
            return bad_value(option, value, "a number from 1 to 4096");
        o->threads = (int)n;
        return CLI_OK;
    case OPT_ISA: o->isa = value; return CLI_OK;
    case OPT_PRECISION:
        return parse_precision(value, &o->precision) ? CLI_OK
                                                     : bad_value(option, value, "fp32 or int8");
    case OPT_KEEP_FP32: o->keep_fp32 = value; return CLI_OK;
    case OPT_SMOOTHING: o->smoothing = value; return CLI_OK;
    case OPT_CALIBRATE: o->calibrate = value; return CLI_OK;
    case OPT_MAX_LENGTH:
        if (!whole(value, INT_MAX, &o->max_length) || o->max_length == 0)
            return bad_value(option, value, "a number of tokens, at least 1");
        return CLI_OK;
    case OPT_QUIET: o->quiet = true; return CLI_OK;
    case OPT_FORMAT:
        o->format = value;
        if (strcmp(value, "jsonl") != 0 && strcmp(value, "npy") != 0)
            return bad_value(option, value, "jsonl or npy");
        return CLI_OK;
    case OPT_QUERY: o->query = value; return CLI_OK;
    case OPT_INSTRUCTION: o->instruction = value; return CLI_OK;
    case OPT_NO_PREFIX_REUSE: o->no_prefix_reuse = true; return CLI_OK;
    case OPT_TOP_N:
        return whole(value, SIZE_MAX, &o->top_n) ? CLI_OK : bad_value(option, value, "a number");
    case OPT_BUCKET:
        o->has_bucket = true;
        return parse_bucket(value, &o->bucket)
                   ? CLI_OK
                   : bad_value(option, value, "TOKENS,SEQUENCES or TOKENS,SEQUENCES,MARKERS");
    case OPT_CASES: o->cases = value; return CLI_OK;
    case OPT_TOL:
        return parse_decimal(value, &o->tol) ? CLI_OK
                                             : bad_value(option, value, "a number such as 2e-5");
    case OPT_SHAPE: o->shape = value; return CLI_OK;
    case OPT_JSON: o->json = true; return CLI_OK;
    case OPT_PROMPT: o->prompt = value; return CLI_OK;
    case OPT_NO_FUSE: o->no_fuse = true; return CLI_OK;
    case OPT_NO_PRUNE: o->no_prune = true; return CLI_OK;
    case OPT_CSV: o->csv = true; return CLI_OK;
    case OPT_TRACE: o->trace = value; return CLI_OK;
    case OPT_OUTPUT: o->output = value; return CLI_OK;
    case OPT_FILTER: o->filter = value; return CLI_OK;
    case OPT_STATS_ONLY: o->stats_only = true; return CLI_OK;
    case OPT_MAP: o->map = value; return CLI_OK;
    case OPT_MIN_TOL: o->min_tol = true; return CLI_OK;
    case OPT_PARTIAL: o->partial = true; return CLI_OK;
    case OPT_OUTPUTS: o->outputs = value; return CLI_OK;
    case OPT_MARKER: o->marker = value; return CLI_OK;
    case OPT_PART:
        return parse_part(value, &o->part)
                   ? CLI_OK
                   : bad_value(option, value, "main, state, segment or segments");
    case OPT_CACHE:
        o->has_cache = true;
        return whole(value, (size_t)1 << 24, &o->cache_mib)
                   ? CLI_OK
                   : bad_value(option, value, "a number of MiB, at most 16777216");
    default: return CLI_USAGE;
    }
}

/* ---- help --------------------------------------------------------------------------------------
 */

static void print_overview(FILE *f)
{
    fputs("rankplan runs ranking models on CPUs, with the same bits on every machine.\n\n", f);
    for (size_t i = 0; i < cli_n_commands; i++)
        fprintf(f, "  rankplan %-8s%-26s %s\n", cli_commands[i].name, cli_commands[i].arguments,
                cli_commands[i].summary);
    fprintf(f,
            "\n  rankplan COMMAND --help    options and examples\n"
            "  rankplan --version\n\n%s\n%s",
            common_help, exit_help);
}

static void print_help(const struct cli_command *c)
{
    const char *common = c->takes == CLI_TAKES_TWO_PATHS ? path_help : common_help;
    printf("rankplan %s %s\n\n%s\n%s\n%s", c->name, c->arguments, c->help, common, exit_help);
}

static const struct cli_command *find_command(const char *name)
{
    for (size_t i = 0; i < cli_n_commands; i++)
        if (strcmp(cli_commands[i].name, name) == 0)
            return &cli_commands[i];
    return NULL;
}

static bool takes(const struct cli_command *c, const char *name)
{
    const size_t n = strlen(name);
    const char *common = c->takes == CLI_TAKES_TWO_PATHS ? path_options : common_options;
    const char *lists[] = {common, c->options};
    for (size_t i = 0; i < 2; i++)
        for (const char *p = lists[i]; (p = strstr(p, name)); p += n)
            if ((p == lists[i] || p[-1] == ' ') && p[n] == ' ')
                return true;
    return false;
}

/* ---- parsing -----------------------------------------------------------------------------------
 */

static int parse_options(int argc, char **argv, struct cli *cli, const struct cli_command *c,
                         bool *help)
{
    int option;
    opterr = 0;
    optind = 2;
    while ((option = getopt_long(argc, argv, short_options, long_options, NULL)) != -1) {
        if (option == OPT_HELP) {
            *help = true;
            return CLI_OK;
        }
        if (option == ':')
            return cli_complain(CLI_USAGE, "%s needs a value; see rankplan %s --help",
                                argv[optind - 1], c->name);
        if (option == '?')
            return cli_complain(CLI_USAGE, "%s does not take %s; see rankplan %s --help", c->name,
                                argv[optind - 1], c->name);
        if (!takes(c, option_name(option)))
            return cli_complain(CLI_USAGE, "%s does not take --%s; see rankplan %s --help", c->name,
                                option_name(option), c->name);
        const int code = set_option(&cli->o, option, optarg);
        if (code != CLI_OK)
            return code;
    }
    return CLI_OK;
}

static int take_arguments(int argc, char **argv, struct cli *cli, const struct cli_command *c)
{
    if (c->takes == CLI_TAKES_TWO_PATHS) {
        if (argc - optind < 2)
            return cli_complain(CLI_USAGE, "%s needs two paths; see rankplan %s --help", c->name,
                                c->name);
        cli->paths[0] = argv[optind++];
        cli->paths[1] = argv[optind++];
    } else if (optind == argc) {
        return cli_complain(CLI_USAGE, "%s needs a model folder; see rankplan %s --help", c->name,
                            c->name);
    } else {
        cli->model = argv[optind++];
        if (optind < argc && c->takes == CLI_TAKES_MODEL_AND_FILE)
            cli->file = argv[optind++];
    }
    if (optind < argc)
        return cli_complain(CLI_USAGE, "%s: what is '%s'?  See rankplan %s --help", c->name,
                            argv[optind], c->name);
    return CLI_OK;
}

int cli_parse(int argc, char **argv, struct cli *cli, const struct cli_command **command)
{
    *command = NULL;
    cli->o.top_n = SIZE_MAX;
    cli->o.tol = -1;
    cli->o.cache_mib = 512;
    if (argc < 2) {
        print_overview(stderr);
        return CLI_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_overview(stdout);
        return CLI_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("rankplan %s\n", rp_version());
        return CLI_OK;
    }
    const struct cli_command *c = find_command(argv[1]);
    if (!c)
        return cli_complain(CLI_USAGE, "there is no command '%s'; see rankplan --help", argv[1]);
    bool help = false;
    int code = parse_options(argc, argv, cli, c, &help);
    if (code == CLI_OK && help) {
        print_help(c);
        return CLI_OK;
    }
    if (code == CLI_OK)
        code = take_arguments(argc, argv, cli, c);
    if (code == CLI_OK && cli->o.instruction && !cli->o.query)
        code = cli_complain(CLI_USAGE, "--instruction goes with --query; see rankplan %s --help",
                            c->name);
    if (code == CLI_OK)
        *command = c;
    return code;
}
