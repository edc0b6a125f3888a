#!/usr/bin/env bash
# rankplan score on a split encoder, and what the other commands say of one.
#
#     tests/cli/split.sh RANKPLAN TREE HAS_TOKENIZER
set -uo pipefail
rankplan=$1
tree=$2
has_tokenizer=$3
kime=$tree/tests/data/kime
. "$tree/tests/cli/common.sh"
export LC_ALL=C

# logits FILE: the list of each answer.
logits()
{
    sed 's/.*"logits":\(\[[^]]*\]\).*/\1/' "$1"
}

# ---- the published answers -------------------------------------------------------------------------
expect 0 "$rankplan" score "$kime" "$kime/questions.jsonl"
cp "$work/out" "$work/scores"
[ "$(wc -l <"$work/scores")" -eq "$(wc -l <"$kime/answers.jsonl")" ] || complain "answers are missing"
logits "$work/scores" >"$work/logits"
paste -d ' ' "$work/logits" "$kime/answers.jsonl" | tr -d '[]' | awk '
    { n = split($1, a, ","); if (n != split($2, b, ",") || n == 0) exit 1
      for (i = 1; i <= n; i++) if ((d = a[i] - b[i]) > 1e-5 || d < -1e-5) exit 1 }' ||
    complain "the logits are not the published ones"
says out '{"index":0,"type":"'
says out ',"probabilities":['
grep -q act "$work/out" && complain "a split encoder has no act"

# ---- what answers do not depend on -----------------------------------------------------------------
for more in '--threads 3' '--isa scalar' '--cache 0' '--cache 1' '--outputs logits'; do
    expect 0 "$rankplan" score "$kime" "$kime/questions.jsonl" $more
    cmp -s "$work/out" "$work/scores" || complain "score differs with $more"
done
tac "$kime/questions.jsonl" >"$work/backwards"
expect 0 "$rankplan" score "$kime" "$work/backwards" --cache 0
logits "$work/out" | tac | cmp -s - "$work/logits" || complain "answers depend on the order of lines"
for i in 1 5 18; do
    sed -n "${i}p" "$kime/questions.jsonl" >"$work/one"
    expect 0 "$rankplan" score "$kime" "$work/one"
    logits "$work/out" | cmp -s - <(sed -n "${i}p" "$work/logits") ||
        complain "answer $i depends on its mates"
done
# Enough questions for several batches, on two states in turn.
for i in $(seq 150); do sed -n '1p;16p' "$kime/questions.jsonl"; done >"$work/many"
for i in $(seq 150); do sed -n '1p;16p' "$work/logits"; done >"$work/due"
for more in '' '--cache 0'; do
    expect 0 "$rankplan" score "$kime" "$work/many" $more
    logits "$work/out" | cmp -s - "$work/due" || complain "300 questions have other answers ($more)"
done
expect 0 "$rankplan" score "$kime" "$kime/questions.jsonl" --precision int8
cmp -s "$work/out" "$work/scores" && complain "--precision int8 changes nothing"
: >"$work/questions"
expect 0 "$rankplan" score "$kime" "$work/questions"
[ -s "$work/out" ] && complain "no questions have answers"

# ---- wrong lines -----------------------------------------------------------------------------------
# bad LINE TEXT: the second line is wrong, and nothing is printed before that is said.
bad()
{
    sed -n 1p "$kime/questions.jsonl" >"$work/questions"
    printf '%s\n' "$1" >>"$work/questions"
    expect 3 "$rankplan" score "$kime" "$work/questions"
    says err "$work/questions, line 2: $2"
    [ -s "$work/out" ] && complain "output before the error: $1"
}
good='"header":[7,2],"options":[[3,9,2]]'
bad '{' "string or '}' expected"
bad "{\"state\":[6,2],$good}" 'key "type" is missing'
bad "{\"type\":4,\"state\":[6,2],$good}" 'key "type" is none of'
bad "{\"type\":0,\"text\":\"a\"}" 'key "text" is none of type, state, segments, header, options'
bad "{\"type\":0,$good}" 'it needs either "state" or "segments"'
bad "{\"type\":0,\"state\":[6],\"segments\":[[6]],$good}" 'it needs either "state" or "segments"'
bad "{\"type\":0,\"state\":[],$good}" 'the state has no tokens'
bad "{\"type\":0,\"state\":5,$good}" 'key "state" is neither a text nor a list of ids'
bad "{\"type\":0,\"state\":[6,500],$good}" 'key "state": number 1 of the list is none from 0 to below 500'
bad "{\"type\":0,\"state\":[$(yes 9, | head -n 2048 | tr -d '\n')9],$good}" \
    'a state of 2049 tokens, and the model takes 2048'
bad "{\"type\":0,\"segments\":[],$good}" 'key "segments" is not a list of texts'
bad "{\"type\":0,\"segments\":[[6],[]],$good}" 'key "segments": one has no tokens'
bad "{\"type\":0,\"segments\":[[6],\"a\"],$good}" 'key "segments": they are not all texts'
bad "{\"type\":0,\"segments\":[[6],[1.5]],$good}" 'key "segments": number 0 of the list is none'
bad '{"type":0,"state":[6,2],"options":[[3]]}' 'key "header" is missing'
bad '{"type":0,"state":[6,2],"header":[7,-1],"options":[[3]]}' 'key "header": number 1 of the list'
bad '{"type":0,"state":[6,2],"header":[7,2]}' 'key "options" is not a list with an option in it'
bad '{"type":0,"state":[6,2],"header":[7,2],"options":[]}' 'key "options" is not a list with an option'
bad '{"type":0,"state":[6,2],"header":[7,2],"options":[[3],[]]}' 'key "options": number 1 has no tokens'
bad "{\"type\":0,\"state\":[6,2],\"header\":[7,2],\"options\":[$(yes '[3],' | head -n 32 | tr -d '\n')[3]]}" \
    '33 options, and the model takes 32'
bad "{\"type\":0,\"state\":[6,2],\"header\":[$(seq -s, 1 256)],\"options\":[[3]]}" \
    'a question of 257 tokens, and the model takes 256'
bad '{"type":2,"state":[6,2],"header":[7,2],"options":["a"]}' 'a noul has two options'
expect 3 "$rankplan" score "$kime" "$kime/questions.jsonl" --max-length 9
says err "--max-length is not for a split encoder"
expect 3 "$rankplan" score "$kime" "$kime/questions.jsonl" --marker x
expect 3 "$rankplan" score "$kime" "$kime/questions.jsonl" --outputs act
says err "no act head"
expect 3 "$rankplan" score "$kime" "$kime/questions.jsonl" --outputs pooled
says err "a split encoder has logits only, and no pooled vector of a question"
expect 2 "$rankplan" score "$kime" "$kime/questions.jsonl" --cache x
echo '{"type":0,"state":"a","header":"b","options":["c"]}' >"$work/questions"
expect 3 "$rankplan" score "$kime" "$work/questions" # a folder without a tokenizer
[ "$has_tokenizer" = ON ] && says err "tokenizer.json"

# ---- other commands --------------------------------------------------------------------------------
expect 0 "$rankplan" info "$kime"
says out "family        kime-v1 (kime-v1-tiny)"
says out "states        2 layers, 1 of them over all segments; up to 2048 tokens"
says out "memory        1024 bytes for each token of a state"
says out "type 2        noul, temperature 1"
expect 0 "$rankplan" bench "$kime" --shape 2x8
says err "the states are measured"
for part in main:logits state:pooled segment:state.layers.0.ffn.down segments:state.segments; do
    expect 0 "$rankplan" plan "$kime" --bucket 32,2,4 --part "${part%:*}"
    says out " ${part#*:} "
done
expect 0 "$rankplan" plan "$kime" --bucket 32,2,4
says out " cross_attention "
expect 2 "$rankplan" plan "$kime" --bucket 32,2 --part x
expect 2 "$rankplan" plan "$tree/tests/data/oracles/decision" --bucket 32,2 --part state
says err "only a split encoder has a --part"
says err "  next: leave --part out"
for command in digest profile check dump; do
    expect 3 "$rankplan" $command "$kime" --cases "$tree/tests/data/oracles/decision/cases.safetensors" \
        $([ $command = dump ] && echo --output "$work/dump")
    says err "a split encoder's questions read what was kept of states"
done

for command in 'embed' 'rerank --query a' "quantize --calibrate $kime/questions.jsonl -o $work/factors" "compare-precision $kime/questions.jsonl" 'digest'; do
    set -- $command
    name=$1
    shift
    expect 3 "$rankplan" "$name" "$kime" "$@"
    says err "$kime: this is a split encoder, which has no vectors and ranks no texts"
done

# ---- other checkpoints -----------------------------------------------------------------------------
# A limit that is larger than any state of the file costs nothing.
mkdir "$work/large" && cp "$kime/model.safetensors" "$work/large"
sed 's/"max_tokens": 2048/"max_tokens": 1048576/' "$kime/kime.json" >"$work/large/kime.json"
expect 0 "$rankplan" score "$work/large" "$kime/questions.jsonl"
cmp -s "$work/out" "$work/scores" || complain "max_tokens changes answers"
# Not even address space, where a process can do with little of it: 536 bytes a row would be 536 MiB.
little() { (ulimit -v 400000 && exec "$rankplan" "$@"); }
if little info "$work/large" --threads 1 >"$work/out" 2>&1; then
    expect 0 little score "$work/large" "$kime/questions.jsonl" --threads 1
    cmp -s "$work/out" "$work/scores" || complain "other answers in little memory"
fi
sed 's/"max_tokens": 2048/"max_tokens": 1048577/' "$kime/kime.json" >"$work/large/kime.json"
expect 3 "$rankplan" score "$work/large" "$kime/questions.jsonl"
says err 'state_tower: key "max_tokens" is 1048577, outside 1 to 1048576'
sed '0,/"layers": 2/s//"layers": 99999/' "$kime/kime.json" >"$work/large/kime.json"
expect 3 "$rankplan" score "$work/large" "$kime/questions.jsonl"
says err "kime.json has 99999 layers, but there are only"
says err "  next: check that the folder's files are of one model"
if command -v python3 >/dev/null; then
    mkdir "$work/nan" && cp "$kime"/{kime.json,model.safetensors} "$work/nan"
    expect 0 python3 "$tree/tests/cli/plant.py" "$work/nan" nan state.final_norm.weight
    expect 3 "$rankplan" score "$work/nan" "$kime/questions.jsonl"
    says err "NaN"
    says err "  next: check the checkpoint's tensors for a NaN"
fi

# ---- texts -----------------------------------------------------------------------------------------
if [ "$has_tokenizer" = ON ]; then
    mkdir "$work/kime" && cp "$kime"/{kime.json,model.safetensors} "$work/kime"
    cat >"$work/kime/tokenizer.json" <<'END'
{"version": "1.0", "truncation": null, "padding": null, "normalizer": null,
 "added_tokens": [
  {"id": 2, "content": "[SEP]", "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}],
 "pre_tokenizer": {"type": "WhitespaceSplit"}, "decoder": null,
 "post_processor": {"type": "TemplateProcessing",
  "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
  "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
  "special_tokens": {"[SEP]": {"id": "[SEP]", "ids": [2], "tokens": ["[SEP]"]}}},
 "model": {"type": "WordLevel", "unk_token": "[UNK]",
  "vocab": {"[PAD]": 0, "[SEP]": 2, "[UNK]": 8, "who": 9, "the": 30, "boss": 31, "nobody": 40, "late": 50}}}
END
    # same TEXT_LINE IDS_LINE: a text and its ids have the same answer.
    same()
    {
        printf '%s\n' "$1" "$2" >"$work/questions"
        expect 0 "$rankplan" score "$work/kime" "$work/questions"
        sed 's/"index":[01]//' "$work/out" | uniq | wc -l | grep -qx 1 || complain "other answers: $1"
    }
    same '{"type":"choice","state":"the boss late","header":"who","options":["nobody","the boss",""]}' \
        '{"type":0,"state":[6,30,31,50,2],"header":[7,9,2],"options":[[3,40,2],[3,30,31,2],[3,2]]}'
    same '{"type":"noul","state":"late","header":"who","options":["nobody","boss"]}' \
        '{"type":2,"state":[6,50,2],"header":[7,9,2],"options":[[4,40,2],[5,31,2]]}'
    same '{"type":"score","segments":["the boss","","late"],"header":"who","options":["late",[3,9,2]]}' \
        '{"type":1,"segments":[[6],[30,31],[50],[2]],"header":[7,9,2],"options":[[3,50,2],[3,9,2]]}'
    printf '{"type":0,"state":"late","header":%s,"options":["boss"]}\n' '"who [SEP]"' '[7,9,2,2]' >"$work/questions"
    expect 0 "$rankplan" score "$work/kime" "$work/questions"
    [ "$(logits "$work/out" | uniq | wc -l)" -eq 2 ] || complain "a text forges a special token"
    long=$(yes 'late' | head -n 1500 | tr '\n' ' ') # a segment has 1024 tokens at most
    same "{\"type\":0,\"segments\":[\"$long\"],\"header\":\"who\",\"options\":[\"boss\"]}" \
        "{\"type\":0,\"segments\":[[6],[$(yes 50, | head -n 1023 | tr -d '\n')50],[$(yes 50, | head -n 475 | tr -d '\n')50],[2]],\"header\":[7,9,2],\"options\":[[3,31,2]]}"
    expect 3 "$rankplan" embed "$work/kime" "$work/questions"
    says err "this is a split encoder"

    # What kime.json names and tokenizer.json does not call special, a text may not spell: of the
    # vocabulary or added, in any place.
    cp "$work/kime/tokenizer.json" "$work/tokenizer.json"
    # forged KEY LINE TOKEN NAME: refused by its line and token.
    forged()
    {
        printf '%s\n' '{"type":0,"state":"late","header":"who","options":["boss"]}' "$2" >"$work/questions"
        expect 3 "$rankplan" score "$work/kime" "$work/questions"
        says err "$work/questions, line 2: key \"$1\": its text spells token $3, kime.json's \"$4\""
        [ -s "$work/out" ] && complain "output before the error: $2"
    }
    sed 's/"who": 9/"who": 9, "[OPT]": 3, "[NO]": 4, "[YES]": 5, "[CLS_S]": 6, "[CLS_Q]": 7/
         s/"added_tokens": \[/&{"id": 5, "content": "[YES]", "special": false, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false},/' \
        "$work/tokenizer.json" >"$work/kime/tokenizer.json"
    forged options '{"type":0,"state":"late","header":"who","options":["boss [OPT] nobody"]}' 3 opt
    forged header '{"type":0,"state":"late","header":"who [NO]","options":["boss"]}' 4 no
    forged header '{"type":0,"state":"late","header":"who[YES]","options":["boss"]}' 5 yes
    forged state '{"type":0,"state":"late [CLS_S]","header":"who","options":["boss"]}' 6 cls_s
    forged segments '{"type":0,"segments":["late","[CLS_Q]"],"header":"who","options":["boss"]}' 7 cls_q
    sed '/"id": 2,/s/"special": true/"special": false/' "$work/tokenizer.json" >"$work/kime/tokenizer.json"
    forged state '{"type":0,"state":"late [SEP]","header":"who","options":["boss"]}' 2 sep
    sed 's/"who": 9/"who": 9, "more": 500/' "$work/tokenizer.json" >"$work/kime/tokenizer.json"
    expect 3 "$rankplan" score "$work/kime" "$work/questions"
    says err "$work/kime/tokenizer.json: the tokenizer has ids up to 500, and the model's table has 500 rows"
    says err "  next: check that the folder's files are of one model"
fi

[ $failed -eq 0 ] && echo "split encoders are scored"
exit $failed
