#!/usr/bin/env bash
# Trained models that are too large for the source tree: a folder for each in MODELS, with the reference's
# logits of some pairs (cases.safetensors) and of 200 rankings (ranking.safetensors). What is asked of each
# that the library has the family of:
#   - FP32: the pairs' logits within 2e-5, every ranking in the reference's order;
#   - INT8: recall@1 and MRR within 0.005 of the reference's, which is one of 200 rankings;
#   - text in gives a score for each text, the right one first where the reference mostly finds it, and
#     the same scores without what texts share (--no-prefix-reuse).
# Skipped (exit code 77) without MODELS, or when none of them can be run.
#
#     tests/cli/models.sh RANKPLAN TREE HAS_TOKENIZER MODELS
set -uo pipefail
rankplan=$1
tree=$2
has_tokenizer=$3
models=$4
. "$tree/tests/cli/common.sh"

# number WHO WORD: the number behind WORD in the last output's line of WHO.
number()
{
    sed -n "s/^$1 .*$2 \([0-9.]*\).*/\1/p" "$work/out"
}

# near WORD: rankplan's number is at least that of the reference less 0.005.
near()
{
    awk -v ours="$(number rankplan "$1")" -v due="$(number reference "$1")" \
        'BEGIN { exit !(due > 0 && ours >= due - 0.005001) }' || complain "$1 of int8 is too low for $model"
}

checked=0
for model in "${models:-/nonexistent}"/*/; do
    [ -f "$model/ranking.safetensors" ] || continue
    "$rankplan" info "$model" >"$work/out" 2>"$work/err" || { cat "$work/err"; continue; }
    checked=$((checked + 1))
    expect 0 "$rankplan" check "$model"
    expect 0 "$rankplan" check "$model" --cases "$model/ranking.safetensors"
    says out "rankings   200, in the reference's order 200"
    expect 0 "$rankplan" check "$model" --cases "$model/ranking.safetensors" --precision int8 --tol 1
    near recall@1
    near MRR
    good=$(awk -v recall="$(number reference recall@1)" 'BEGIN { print (recall > 0.5) }')
    if [ "$has_tokenizer" = ON ]; then
        printf '%s\n' 'small web server' 'library of fonts' 'editor for pictures' >"$work/texts"
        expect 0 "$rankplan" rerank "$model" --query 'web server' "$work/texts"
        [ "$(wc -l <"$work/out")" -eq 3 ] || complain "rerank gave $(wc -l <"$work/out") scores"
        [ "$good" -eq 0 ] || head -n 1 "$work/out" | grep -q 'small web server' || complain "another text is the best"
        cp "$work/out" "$work/shared"
        expect 0 "$rankplan" rerank "$model" --query 'web server' "$work/texts" --no-prefix-reuse
        cmp -s "$work/out" "$work/shared" || complain "scores differ without prefix reuse"
    fi
    echo "$(basename "$model") checked"
done
[ "$checked" -gt 0 ] || exit 77
exit "$failed"
