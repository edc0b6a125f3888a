#!/usr/bin/env bash
# The command as its users see it: what it prints, how it fails, its exit codes.
#
#     tests/cli/run.sh RANKPLAN TREE HAS_TOKENIZER
set -uo pipefail
rankplan=$1
tree=$2
has_tokenizer=$3
example=$tree/examples/models/apt-bert-tiny
oracles=$tree/tests/data/oracles
. "$tree/tests/cli/common.sh"

# ---- usage -----------------------------------------------------------------------------------------
expect 2 "$rankplan"
expect 0 "$rankplan" --help
says out "Exit codes:"
expect 0 "$rankplan" --version
expect 2 "$rankplan" nothing
says err "there is no command 'nothing'"
for command in info embed rerank score plan check digest dump compare quantize compare-precision profile bench; do
    expect 0 "$rankplan" $command --help
    says out "rankplan $command"
done
expect 2 "$rankplan" info
says err "needs a model folder"
expect 2 "$rankplan" info "$example" --query x
says err "info does not take --query"
expect 2 "$rankplan" info "$example" extra
says err "what is 'extra'"
expect 2 "$rankplan" info "$example" --threads
says err "needs a value"
for bad in '--threads 0' '--threads x' '--threads -1' '--precision int9' '--max-length 0' '--max-length 1x'; do
    expect 2 "$rankplan" info "$example" $bad
done
expect 2 "$rankplan" rerank "$example"
says err "needs --query"
expect 2 "$rankplan" plan "$example"
for bad in 1 1, ,1 1,1, 1,1,1,1 a,b; do
    expect 2 "$rankplan" plan "$example" --bucket "$bad"
done
for bad in x 1x 0x5 5x0 ragged:3:9:2 lens: lens:4,, 1x2x3; do
    expect 2 "$rankplan" bench "$example" --shape "$bad"
done
expect 3 "$rankplan" info "$example" --isa mmx
says err "mmx"

# ---- info, plan ------------------------------------------------------------------------------------
expect 0 "$rankplan" info "$example"
says out "cross-encoder"
says out "2 of width 128, 2 heads of 64, intermediate 512"
says out "192 tokens"
says out "activation identity"
expect 3 "$rankplan" info "$work/none"
says err "next:"
mkdir "$work/bin" && echo x >"$work/bin/pytorch_model.bin" && cp "$example/config.json" "$work/bin"
expect 3 "$rankplan" info "$work/bin"
expect 0 "$rankplan" plan "$example" --bucket 128,4
says out "layers.1.ffn.up"
says out "+gelu"
expect 0 "$rankplan" plan "$example" --bucket 128,4 --no-fuse
says out "layers.1.ffn.up.act"
expect 0 "$rankplan" plan "$example" --bucket 128,4
says out "queries=first"
says out "tokens=first"
expect 0 "$rankplan" plan "$example" --bucket 128,4 --no-prune
grep -qE 'queries=|tokens=' "$work/out" && complain "--no-prune left rows out"
expect 0 "$rankplan" plan "$oracles/modernbert" --bucket 16,1
for layer in 0:160000 1:10000 2:10000 3:160000; do
    grep -q "layers\.${layer%:*}\.attn\.rope .*theta=${layer#*:} " "$work/out" || complain "the base of layer $layer"
    windows=$(grep -c "layers\.${layer%:*}\.attn\.core .*window=8 " "$work/out")
    [ "$windows" -eq "$((${layer%:*} % 3 != 0))" ] || complain "the window of layer $layer"
done

# ---- check -----------------------------------------------------------------------------------------
for oracle in "$oracles"/*/; do
    [ -f "$oracle/cases.safetensors" ] || continue
    tol=2e-5
    case $(basename "$oracle") in qwen3_next | qwen3_5 | olmo_hybrid) tol=5e-5 ;; esac
    expect 0 "$rankplan" check "$oracle" --tol $tol
    expect 0 "$rankplan" check "$oracle" --no-fuse --threads 2 --tol $tol
    says out " ok"
done
expect 1 "$rankplan" check "$oracles/bert" --tol 1e-9
says out "FAILS"
expect 0 "$rankplan" check "$example"
if [ -z "${RANKPLAN_TEST_EMULATED-}" ]; then # 149,000 tokens: minutes under an emulator
    expect 0 "$rankplan" check "$example" --cases "$example/ranking.safetensors"
    says out "rankings   200, in the reference's order 200"
    says out "rankplan   recall@1 0.815 MRR 0.8979"
fi
expect 3 "$rankplan" check "$example" --cases "$example/config.json"

# ---- digest: the same bits ---------------------------------------------------------------------------
expect 0 "$rankplan" digest "$oracles/bert" --cases "$oracles/bert/cases.safetensors" --threads 1
cp "$work/out" "$work/digest"
[ "$(wc -l <"$work/digest")" -eq 18 ] || complain "digest has $(wc -l <"$work/digest") lines"
for more in '--threads 2' '--threads 7' '--isa scalar' '--isa max --threads 3'; do
    expect 0 "$rankplan" digest "$oracles/bert" --cases "$oracles/bert/cases.safetensors" $more
    cmp -s "$work/out" "$work/digest" || complain "digest differs with $more"
done
for golden in "$tree"/tests/golden/digest-*.txt; do
    [ -f "$golden" ] || continue
    name=$(basename "$golden" .txt)
    folder=$oracles/${name#digest-}
    [ -d "$folder" ] || folder=$example
    expect 0 "$rankplan" digest "$folder" --cases "$folder/cases.safetensors"
    cmp -s "$work/out" "$golden" || complain "digest of $folder differs from its golden"
done
while read -r name precision hash; do
    folder=$oracles/$name
    [ -d "$folder" ] || folder=$example
    expect 0 "$rankplan" digest "$folder" --cases "$folder/cases.safetensors" --precision "$precision" --no-prune
    says out "whole $hash"
done <"$tree/tests/golden/no-prune.txt"

# ---- int8 --------------------------------------------------------------------------------------------
expect 0 "$rankplan" info "$oracles/bert" --precision int8
says out "in memory, int8"
says out "smoothing     by a run of random ids"
expect 0 "$rankplan" digest "$oracles/bert" --cases "$oracles/bert/cases.safetensors" --precision int8 --threads 1
cp "$work/out" "$work/digest-int8"
for more in '--threads 3' '--isa scalar' '--isa max --threads 2'; do
    expect 0 "$rankplan" digest "$oracles/bert" --cases "$oracles/bert/cases.safetensors" --precision int8 $more
    cmp -s "$work/out" "$work/digest-int8" || complain "the digest of int8 differs with $more"
done
while read -r name precision hash; do
    folder=$oracles/$name
    [ -d "$folder" ] || folder=$example
    expect 0 "$rankplan" digest "$folder" --cases "$folder/cases.safetensors" --precision "$precision"
    says out "whole $hash"
done <"$tree/tests/golden/int8.txt"
expect 0 "$rankplan" plan "$oracles/bert" --bucket 64,2 --precision int8 --keep-fp32 'layers.0.*,*.down'
says out "layers.1.ffn.up.q8"
grep -q 'qgemm *layers.0' "$work/out" && complain "--keep-fp32 kept nothing"
grep -q 'qgemm *layers.1.ffn.down' "$work/out" && complain "--keep-fp32 took only its first pattern"
expect 1 "$rankplan" check "$oracles/bert" --precision int8 # it is not FP32
expect 0 "$rankplan" check "$oracles/bert" --precision int8 --tol 0.1
echo '{"format":"rankplan-int8","version":1,"source":"nothing","weights":{}}' >"$work/empty.json"
expect 3 "$rankplan" info "$oracles/bert" --precision int8 --smoothing "$work/empty.json"
says err "has no smoothing factors there"
expect 3 "$rankplan" info "$oracles/bert" --precision int8 --smoothing "$work/none.json"
expect 2 "$rankplan" quantize "$oracles/bert"
says err "needs --calibrate"

# ---- score -------------------------------------------------------------------------------------------
decision=$oracles/decision
# ask CODE LINE...: one question a line.
ask()
{
    local want=$1
    shift
    printf '%s\n' "$@" >"$work/questions"
    expect "$want" "$rankplan" score "$decision" "$work/questions" $more
}
expect 0 "$rankplan" info "$decision"
says out "decision scorer"
says out "type 2        noul, temperature 1"
one='{"type":"choice","ids":[1,9,2,4,30,31,4,40,2,50,51,2],"markers":[3,6]}'
two='{"type":2,"ids":[1,70,2,4,71,4,72,4,73,2],"markers":[3,5,7]}'
more=
ask 0 "$one" "$two"
cp "$work/out" "$work/scores"
says out '{"index":0,"type":"choice","tokens":12,"truncated":false,"logits":['
says out '{"index":1,"type":"noul","tokens":10,"truncated":false,"logits":['
for more in '--threads 3' '--isa scalar'; do
    ask 0 "$one" "$two"
    cmp -s "$work/out" "$work/scores" || complain "score differs with $more"
done
more=
ask 0 "$two" # alone it is what it was beside the other
sed -n 's/"index":1/"index":0/p' "$work/scores" >"$work/alone"
cmp -s "$work/out" "$work/alone" || complain "a question's scores depend on its mates"
more='--outputs pooled'
ask 0 "$one"
says out '"truncated":false,"pooled":['
grep -q logits "$work/out" && complain "logits that nobody asked for"
more='--outputs act,logits'
ask 0 "$one"
says out '"act_probability":'
for more in '--outputs' '--outputs x' '--outputs logits,' '--outputs logit'; do ask 2 "$one"; done
more='--precision int8'
ask 0 "$one" "$two"
cmp -s "$work/out" "$work/scores" && complain "--precision int8 changes nothing"
more=
# bad LINE TEXT: the second line is wrong, and nothing is printed before that is said.
bad()
{
    ask 3 "$one" "$1"
    says err "$work/questions, line 2: $2"
    [ -s "$work/out" ] && complain "output before the error: $1"
}
bad '{"type":"choice"' "'}' expected"
bad '' "'[' or '{' expected near end of file"
bad '[]' 'not an object'
bad '{"ids":[1],"markers":[]}' 'key "type" is missing'
bad '{"type":"guess","ids":[1]}' 'key "type" is none of "choice", "score", "noul", 0, 1, 2'
bad '{"type":3,"ids":[1]}' 'key "type" is none of'
bad '{"type":0}' 'it needs either "text" or "ids"'
bad '{"type":0,"ids":[1],"text":"a"}' 'it needs either "text" or "ids"'
bad '{"type":0,"text":"a","markers":[0]}' '"markers" go with "ids"'
bad '{"type":0,"ids":[1],"markres":[0]}' 'key "markres" is none of type, text, ids, markers'
bad '{"type":0,"ids":[1,120]}' 'key "ids": number 1 of the list is none from 0 to below 120, the vocabulary'
bad '{"type":0,"ids":[1,-1]}' 'key "ids": number 1 of the list is none from 0'
bad '{"type":0,"ids":[1,2.5]}' 'key "ids": number 1 of the list is none from 0'
bad '{"type":0,"ids":"1"}' 'key "ids" is not a list of numbers'
bad '{"type":0,"ids":[1,2],"markers":[2]}' 'key "markers": number 0 of the list is none from 0 to below 2, its ids'
bad '{"type":0,"ids":[1],"markers":[0,0]}' '2 markers for 1 ids'
bad '{"type":0,"type":1,"ids":[1]}' 'duplicate object key'
bad '{"type":0,"text":5}' 'key "text" is not a string'
bad "{\"type\":0,\"ids\":[$(seq -s, 1 119),$(seq -s, 1 119),$(seq -s, 1 30)]}" '268 ids, and the model takes 256'
ask 0 '{"type":1,"ids":[1,2]}' '{"type":0,"ids":[],"markers":[]}' # no options, no text
says out '"tokens":2,"truncated":false,"logits":[],"probabilities":[],"act":['
: >"$work/questions"
expect 0 "$rankplan" score "$decision" "$work/questions"
[ -s "$work/out" ] && complain "no questions have answers"
expect 3 "$rankplan" score "$oracles/bert" "$work/questions"
says err "this is no decision scorer"
# Before the checkpoint is looked at: one that is incomplete is refused as what it is all the same.
mkdir "$work/bert" && cp "$oracles/bert"/config.json "$work/bert"
sed 's/embeddings\.LayerNorm\.bias/embeddings.LayerNorm.bios/' "$oracles/bert/model.safetensors" >"$work/bert/model.safetensors"
for more in '' '--outputs logits'; do
    expect 3 "$rankplan" score "$work/bert" "$work/questions" $more
    says err "this is no decision scorer"
done
expect 3 "$rankplan" info "$work/bert"
says err "LayerNorm.bias"
expect 3 "$rankplan" score "$decision" "$work/questions" --cache 5
says err "--cache is only for a split encoder"
expect 3 "$rankplan" embed "$decision" "$work/questions" # neither a tokenizer nor vectors
if [ "$has_tokenizer" = ON ]; then
    mkdir "$work/decision" && cp "$decision"/{config.json,model.safetensors} "$work/decision"
    cat >"$work/decision/tokenizer.json" <<'END'
{"version": "1.0", "truncation": null, "padding": null, "normalizer": null,
 "added_tokens": [
  {"id": 1, "content": "[CLS]", "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false},
  {"id": 2, "content": "[SEP]", "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false},
  {"id": 4, "content": "[MASK]", "special": true, "single_word": false, "lstrip": true, "rstrip": false, "normalized": false}],
 "pre_tokenizer": {"type": "Whitespace"}, "decoder": null,
 "post_processor": {"type": "TemplateProcessing",
  "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
  "pair": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
  "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [1], "tokens": ["[CLS]"]}, "[SEP]": {"id": "[SEP]", "ids": [2], "tokens": ["[SEP]"]}}},
 "model": {"type": "WordLevel", "unk_token": "[UNK]",
  "vocab": {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[UNK]": 3, "[MASK]": 4, "who": 9, "the": 30, "boss": 31, "nobody": 40, "late": 50, "again": 51}}}
END
    echo '{"type":"choice","text":"who [SEP] [MASK] the boss [MASK] nobody [SEP] late again"}' >"$work/questions"
    expect 0 "$rankplan" score "$work/decision" "$work/questions"
    sed -n 1p "$work/scores" >"$work/alone"
    cmp -s "$work/out" "$work/alone" || complain "a text and its ids have different scores"
    expect 0 "$rankplan" score "$work/decision" "$work/questions" --max-length 11
    says out '"tokens":11,"truncated":true'
    says err "1 of 1 texts were cut"
    expect 3 "$rankplan" score "$work/decision" "$work/questions" --max-length 6
    says err "line 1: cut to 6 tokens, it has lost options: 1 of 2 are left"
    expect 2 "$rankplan" score "$work/decision" "$work/questions" --max-length 0
    expect 3 "$rankplan" score "$work/decision" "$work/questions" --max-length 257
    says err "above the model's 256"
    expect 0 "$rankplan" score "$work/decision" "$work/questions" --marker '[SEP]'
    says out '"tokens":12,"truncated":false,"logits":['
    expect 3 "$rankplan" score "$work/decision" "$work/questions" --marker '[HERE]'
    says err "[HERE]"
    expect 3 "$rankplan" embed "$work/decision" "$work/questions"
    says err "a decision scorer ranks no texts"
    # Laya's folder: its own two configurations, the tokenizer below.
    mkdir -p "$work/laya/encoder" "$work/laya/tokenizer"
    mv "$work/decision/tokenizer.json" "$work/laya/tokenizer"
    cp "$decision/config.json" "$work/laya/encoder"
    cp "$decision/model.safetensors" "$work/laya"
    echo '{"encoder": "", "head_layers": 2, "max_len": 200, "head_max_len": 64, "temperature": [1, 2, 9],
        "temperature_by_options": {"noul:3-5": 0.75}}' >"$work/laya/rl_agent_config.json"
    expect 0 "$rankplan" score "$work/laya" "$work/questions"
    cmp -s "$work/out" "$work/alone" || complain "Laya's folder has other scores"
    expect 0 "$rankplan" info "$work/laya"
    says out "200 tokens (rl_agent_config.json:max_len)"
    says out "type 1        score, temperature 2"
    says out "type 2        noul, temperature 5"
fi
ask 3 '{"type":0,"text":"[MASK] the boss"}' # a folder without a tokenizer
[ "$has_tokenizer" = ON ] && says err "tokenizer.json"

# ---- bench -----------------------------------------------------------------------------------------
expect 0 "$rankplan" bench "$oracles/bert" --shape lens:3,9,30 --json --threads 2
says out '"texts":3,"tokens":42,"threads":2'

# ---- profile ---------------------------------------------------------------------------------------
bert="$oracles/bert --cases $oracles/bert/cases.safetensors"
expect 0 "$rankplan" profile $bert --threads 2 --trace "$work/trace.json"
says out "layers.1.ffn.up"
says out "of the threads' time waiting for each other"
expect 0 "$rankplan" profile $bert --csv
[ "$(wc -l <"$work/out")" -eq 18 ] || complain "profile --csv has $(wc -l <"$work/out") lines"
expect 0 "$rankplan" profile $bert --json --threads 2
if command -v python3 >/dev/null; then
    expect 0 python3 "$tree/tests/cli/check_profile.py" "$work/trace.json" 2
    "$rankplan" profile $bert --json --threads 1 >"$work/profile.json"
    expect 0 python3 "$tree/tests/cli/check_profile.py" --profile "$work/profile.json"
fi
expect 4 "$rankplan" profile $bert --trace "$work/none/trace.json"
says err "choose another file"

# ---- text ------------------------------------------------------------------------------------------
if [ "$has_tokenizer" = ON ]; then
    printf 'fonts for Thai\nweb server in C\n\n"quoted" \\ and \xc3\xa9\n' >"$work/texts"
    expect 0 "$rankplan" rerank "$example" --query 'web server' "$work/texts"
    [ "$(wc -l <"$work/out")" -eq 4 ] || complain "rerank printed $(wc -l <"$work/out") lines"
    head -n 1 "$work/out" | grep -q '"index":1,' || complain "the web server is not first"
    says out '"text":"\"quoted\" \\ and '
    expect 0 "$rankplan" rerank "$example" --query 'web server' "$work/texts" --top-n 1
    [ "$(wc -l <"$work/out")" -eq 1 ] || complain "--top-n 1 printed more"
    expect 0 "$rankplan" rerank "$example" --query 'web server' "$work/texts" --top-n 0
    [ -s "$work/out" ] && complain "--top-n 0 printed something"
    expect 0 "$rankplan" rerank "$example" --query 'web server' "$work/texts" --max-length 6
    says out '"truncated":true'
    says err "were cut to 6 tokens"
    expect 0 "$rankplan" rerank "$example" --query 'web server' "$work/texts" --max-length 6 --quiet
    [ -s "$work/err" ] && complain "--quiet is not quiet"
    cp "$work/out" "$work/kept"
    expect 0 "$rankplan" rerank "$example" --query 'web server' "$work/texts" --max-length 6 --quiet --no-prefix-reuse
    cmp -s "$work/out" "$work/kept" || complain "--no-prefix-reuse changed a ranking"
    expect 3 "$rankplan" rerank "$example" --query q --instruction i "$work/texts"
    says err "an instruction is part of a generative reranker's prompt"
    expect 2 "$rankplan" digest "$example" --instruction i "$work/texts"
    says err "--instruction goes with --query"
    expect 3 "$rankplan" rerank "$example" --query q --max-length 193 "$work/texts"
    expect 3 "$rankplan" rerank "$example" --query q --max-length 2 "$work/texts"
    expect 3 "$rankplan" rerank "$example" --query q "$work/none"
    printf 'good\nbad \xff\n' >"$work/invalid"
    expect 3 "$rankplan" rerank "$example" --query q "$work/invalid"
    says err "text 1:"
    expect 0 "$rankplan" rerank "$example" --query q /dev/null
    expect 3 "$rankplan" embed "$example" "$work/texts"
    says err "classifier"
    "$rankplan" rerank "$example" --query 'web server' - <"$work/texts" >"$work/piped" 2>/dev/null
    "$rankplan" rerank "$example" --query 'web server' "$work/texts" --threads 1 >"$work/single"
    cmp -s "$work/piped" "$work/single" || complain "standard input and a file differ"
    expect 0 "$rankplan" digest "$example" "$work/texts" --query 'web server'
    says out "whole "
    expect 0 "$rankplan" compare-precision "$example" "$work/texts" --query 'web server'
    says out "Kendall tau"
    says out "layers.1."
    expect 0 "$rankplan" quantize "$example" --calibrate "$work/texts" --query 'web server' -o "$work/smooth.json"
    expect 0 "$rankplan" info "$example" --precision int8 --smoothing "$work/smooth.json"
    says out "smoothing     by 4 texts of texts"
    cp "$work/smooth.json" "$work/again.json"
    expect 0 "$rankplan" quantize "$example" --calibrate "$work/texts" --query 'web server' -o "$work/again.json" --threads 1
    cmp -s "$work/smooth.json" "$work/again.json" || complain "quantize gives other factors with other threads"
    expect 4 "$rankplan" quantize "$example" --calibrate "$work/texts" -o "$work/none/x.json"
    says err "choose another file"
    expect 3 "$rankplan" quantize "$example" --calibrate /dev/null -o "$work/x.json"
    says err "holds no text"
    expect 0 "$rankplan" rerank "$example" --query 'web server' "$work/texts" --precision int8
    head -n 1 "$work/out" | grep -q '"index":1,' || complain "in int8 the web server is not first"
    expect 4 sh -c "'$rankplan' rerank '$example' --query q '$work/texts' >/dev/full"
    says err "could not be written"
else
    expect 3 "$rankplan" rerank "$example" --query q /dev/null
    says err "RANKPLAN_TOKENIZER"
fi

[ $failed -eq 0 ] && echo "the command behaves"
exit $failed
