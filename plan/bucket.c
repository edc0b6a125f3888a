/* Buckets: the default table, and the choice of the smallest one that holds a batch. */
#include <rankplan/plan.h>

bool rp_bucket_default(size_t i, size_t max_tokens, rp_bucket *out)
{
    size_t tokens = 16;
    for (; i > 0; i--) {
        if (tokens >= max_tokens)
            return false;
        tokens *= 2;
    }
    if (tokens > max_tokens)
        tokens = max_tokens;
    if (tokens == 0)
        return false;
    *out = (rp_bucket){.tokens = tokens, .seqs = (tokens + 1) / 2, .markers = tokens};
    return true;
}

static bool less(const rp_bucket *a, const rp_bucket *b)
{
    if (a->tokens != b->tokens)
        return a->tokens < b->tokens;
    if (a->seqs != b->seqs)
        return a->seqs < b->seqs;
    return a->markers < b->markers;
}

size_t rp_bucket_pick(const rp_bucket *table, size_t n, size_t tokens, size_t seqs, size_t markers)
{
    size_t best = n;
    for (size_t i = 0; i < n; i++) {
        const bool holds =
            table[i].tokens >= tokens && table[i].seqs >= seqs && table[i].markers >= markers;
        if (holds && (best == n || less(&table[i], &table[best])))
            best = i;
    }
    return best;
}
