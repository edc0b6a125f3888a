#!/usr/bin/env bash
# dump and compare as their users see them: planted faults are named at their step, files that cannot be
# written or believed end in a message.
#
#     tests/cli/compare.sh RANKPLAN TREE
set -uo pipefail
rankplan=$1
tree=$2
oracles=$tree/tests/data/oracles
. "$tree/tests/cli/common.sh"
trap 'mountpoint -q "$work/small" 2>/dev/null && umount "$work/small"; rm -rf "$work"' EXIT

# dump OUT MODEL OPTION...: a dump of a folder's own cases.
dump()
{
    local out=$1 model=$2
    shift 2
    "$rankplan" dump "$model" --cases "$model/cases.safetensors" -o "$out" "$@"
}

# ---- usage -----------------------------------------------------------------------------------------
bert=$oracles/bert
cross=$oracles/bert_cross_encoder
for command in dump compare; do
    expect 0 "$rankplan" $command --help
    says out "rankplan $command"
done
expect 2 "$rankplan" dump "$bert"
says err "dump needs --output"
expect 2 "$rankplan" compare "$bert"
says err "compare needs two paths"
expect 2 "$rankplan" compare a b c
says err "what is 'c'"
expect 2 "$rankplan" compare a b --threads 2
says err "compare does not take --threads"
expect 2 "$rankplan" digest "$bert" -o x
says err "digest does not take --output"
expect 2 "$rankplan" dump "$bert" -o
says err "needs a value"
expect 2 dump "$work/x" "$bert" --filter 'no.such.*'
says err "fits none of the 17 steps"
[ -e "$work/x" ] && complain "a folder was made for nothing"

# ---- what a dump holds -----------------------------------------------------------------------------
for oracle in "$oracles"/*/; do
    name=$(basename "$oracle")
    expect 0 dump "$work/$name" "$oracle" --threads 2
    [ -s "$work/out" ] && complain "dump printed something"
    expect 0 dump "$work/$name-parts" "$oracle" --no-fuse
    expect 0 dump "$work/$name-whole" "$oracle" --no-prune
    "$rankplan" digest "$oracle" --cases "$oracle/cases.safetensors" >"$work/$name.digest"
    if command -v python3 >/dev/null; then
        expect 0 python3 "$tree/tests/cli/check_dump.py" "$work/$name" "$work/$name.digest"
    fi
    # The same from a digest, and fused or not: bit for bit.
    expect 0 "$rankplan" compare "$work/$name" "$work/$name.digest"
    says out "first step that differs            none"
    expect 0 "$rankplan" compare "$work/$name" "$work/$name-parts"
    says out "first step that differs            none"
    expect 0 "$rankplan" compare "$work/$name-parts" "$work/$name"
    says out "first step that differs            none"
    grep -q "only in" "$work/out" && complain "parts of fused steps are no difference"
    # With all rows, or with those that are read.
    for pair in "$name $name-whole" "$name-whole $name" "$name-parts $name-whole" "$name-whole $name.digest"; do
        read -r a b <<<"$pair"
        expect 0 "$rankplan" compare "$work/$a" "$work/$b"
        says out "first step that differs            none"
        grep -q "only in" "$work/out" && complain "rows that are read are no difference"
    done
done
expect 0 "$rankplan" compare "$work/bert_cross_encoder" "$work/bert_cross_encoder-whole"
says out "layers.1.ffn.up             5x96 "
says out "(of the first tokens)"
grep -q '"pruned": true' "$work/bert_cross_encoder/index.json" || complain "the index does not say that it is pruned"
expect 0 "$rankplan" compare "$work/bert_cross_encoder-whole" "$work/bert_cross_encoder.digest"
says out "hashes of 113 and of 5 rows: only the first tokens' are in both"
# A fault in a row that both have is seen, one in the row behind it is not there to be.
for row in 1 2; do
    cp -r "$work/bert_cross_encoder-whole" "$work/row-$row"
    sed -i 's/"xxh3": "[0-9a-f]*"/"xxh3": null/' "$work/row-$row/index.json"
    printf '\x7e' | dd of="$work/row-$row/0013_layers.1.ffn.up.npy" bs=1 seek=$((128 + row * 96 * 4 + 3)) \
        conv=notrunc 2>"$work/err" || complain "no fault was planted"
    expect $((row == 1)) "$rankplan" compare "$work/row-$row" "$work/bert_cross_encoder"
done
expect 1 "$rankplan" compare "$work/row-1" "$work/bert_cross_encoder"
says out "first step over the tolerance      layers.1.ffn.up"
says out " 1,0 "
# Which token a row is of the index says, and it is not believed.
for change in 's/"cu": \[0,1,/"cu": [0,-1,/' 's/"cu": \[0,1,/"cu": [0,9,/' 's/"cu": \[0,1,/"cu": [0,/' \
    's/"cu": \[0,/"cu": ["x",/' 's/"cu": \[[0-9,]*\]/"cu": null/' 's/"tokens": "first"/"tokens": "marked"/'; do
    rm -rf "$work/bad" && cp -r "$work/bert_cross_encoder" "$work/bad" && sed -i "$change" "$work/bad/index.json"
    sed "$change;s/\"tokens\": \"[a-z]*\", //" "$work/bert_cross_encoder-whole/index.json" >"$work/row-2/index.json"
    expect 3 "$rankplan" compare "$work/bad" "$work/row-2"
    says err "its 5 rows are not those of the"
done
sed -i 's/"tokens": "[a-z]*"/"tokens": "second"/' "$work/bad/index.json"
expect 3 "$rankplan" compare "$work/bad" "$work/bert_cross_encoder"
says err 'key "tokens" is absent or not what it should be'
rm -rf "$work/bad"
[ -f "$work/bert/0009_layers.1.attn.qkv.npy" ] || complain "the file of step 9 has another name"
for more in '--threads 7' '--isa scalar --threads 1'; do
    expect 0 dump "$work/again" "$bert" $more
    for file in "$work"/bert/*.npy; do
        cmp -s "$file" "$work/again/$(basename "$file")" || complain "$file differs with $more"
    done
    for side in bert again; do
        sed 's/"kernel": "[^"]*"//' "$work/$side/index.json" >"$work/$side.index"
    done
    cmp -s "$work/bert.index" "$work/again.index" || complain "the index differs with $more"
done

# Only some steps, or none of their values.
expect 0 dump "$work/some" "$bert" --filter 'layers.1.*'
[ "$(ls "$work/some" | wc -l)" -eq 8 ] || complain "--filter wrote $(ls "$work/some" | wc -l) files"
expect 0 "$rankplan" compare "$work/some" "$work/bert"
says out "(the other is partial): embeddings.sum"
expect 0 "$rankplan" compare "$work/bert" "$work/some"
# Steps that one side should have and has not are a difference, whichever it is.
cp -r "$work/some" "$work/less" && sed -i 's/"partial": true/"partial": false/' "$work/less/index.json"
expect 1 "$rankplan" compare "$work/less" "$work/bert"
expect 1 "$rankplan" compare "$work/bert" "$work/less"
says out "DIFFERENT: 0 of 7 steps over the tolerance of 1e-05, 10 only on one side"
expect 0 "$rankplan" compare "$work/bert" "$work/less" --partial
expect 0 dump "$work/stats" "$bert" --stats-only
[ "$(ls "$work/stats")" = index.json ] || complain "--stats-only wrote files"
expect 0 "$rankplan" compare "$work/stats" "$work/bert"
says out "hashes are equal"

# ---- folders ---------------------------------------------------------------------------------------
expect 0 dump "$work/again" "$bert" --no-fuse
expect 0 dump "$work/again" "$bert"
[ "$(ls -A "$work/again" | wc -l)" -eq 18 ] || complain "files of the older dump were left"
echo mine >"$work/again/notes.txt"
expect 0 dump "$work/again" "$bert" --stats-only
[ "$(cat "$work/again/notes.txt")" = mine ] || complain "a foreign file is gone"
mkdir "$work/foreign" && echo mine >"$work/foreign/0001_mine.npy" && echo '{}' >"$work/foreign/index.json"
expect 4 dump "$work/foreign" "$bert"
says err "it holds files that are no dump"
[ "$(cat "$work/foreign/0001_mine.npy" "$work/foreign/index.json")" = $'mine\n{}' ] ||
    complain "a foreign folder was changed"
# What an index lists is removed only where it has the name of a step's file.
mkdir "$work/trap" && echo mine >"$work/outside.npy" && echo mine >"$work/trap/letter"
cat >"$work/trap/index.json" <<'END'
{"format": "rankplan dump", "version": 1, "steps": [{"file": "../outside.npy"}, {"file": "letter"},
 {"file": "0000_/../../outside.npy"}]}
END
expect 0 dump "$work/trap" "$bert"
[ -f "$work/outside.npy" ] && [ -f "$work/trap/letter" ] || complain "an index made dump remove a file"

# ---- files that cannot be written -------------------------------------------------------------------
# fails FOLDER: a message with the file and what to do next, exit code 4, and no index.
fails()
{
    says err "next:"
    [ -e "$1/index.json" ] && complain "a dump that failed has an index"
    expect 3 "$rankplan" compare "$1" "$work/bert"
}
echo >"$work/file"
expect 4 dump "$work/file" "$bert"
says err "$work/file: Not a directory"
expect 4 dump "$work/none/deeper" "$bert"
says err "$work/none/deeper: the folder cannot be made"
expect 4 sh -c "ulimit -f 16; exec '$rankplan' dump '$bert' --cases '$bert/cases.safetensors' -o '$work/limit'"
says err "$work/limit/0000_embeddings.sum.npy: it cannot be written: File too large"
[ -e "$work/limit" ] && complain "files of a dump that failed were left"
mkdir "$work/blocked"
expect 0 dump "$work/blocked" "$bert"
rm "$work/blocked/0003_layers.0.attn.core.npy" && mkdir "$work/blocked/0003_layers.0.attn.core.npy"
expect 4 dump "$work/blocked" "$bert"
says err "0003_layers.0.attn.core.npy: it cannot be written: Is a directory"
fails "$work/blocked"
[ "$(ls -A "$work/blocked")" = 0003_layers.0.attn.core.npy ] || complain "files were left"
mkdir "$work/closed" && chmod 555 "$work/closed"
if [ "$(id -u)" -ne 0 ]; then
    expect 4 dump "$work/closed" "$bert"
    says err "0000_embeddings.sum.npy: it cannot be written: Permission denied"
    fails "$work/closed"
elif setpriv --reuid 65534 --clear-groups "$rankplan" --version >/dev/null 2>&1 &&
    setpriv --reuid 65534 --clear-groups cat "$bert/cases.safetensors" >/dev/null 2>&1; then
    chmod 755 "$work"
    expect 4 setpriv --reuid 65534 --clear-groups "$rankplan" dump "$bert" \
        --cases "$bert/cases.safetensors" -o "$work/closed"
    says err "it cannot be written: Permission denied"
else
    echo "not tried: a folder without permissions (this is root, and others may not see the tree)"
fi
mkdir "$work/small"
if [ "$(id -u)" -eq 0 ] && mount -t tmpfs -o size=128k tmpfs "$work/small" 2>/dev/null; then
    expect 4 dump "$work/small/dump" "$bert"
    says err "it cannot be written: No space left on device"
    fails "$work/small/dump"
    [ -z "$(ls -A "$work/small")" ] || complain "a full disk stays full: $(ls -A "$work/small")"
    umount "$work/small"
fi

# ---- planted faults --------------------------------------------------------------------------------
# first WHAT STEP: the summary names the step.
first()
{
    grep -qE "^first step (that )?$1 +$2($|:)" "$work/out" || complain "the first step that $1 is not $2"
}
# plant NAME FAULT...: a copy of the cross-encoder with a fault; its dump and digest.
plant()
{
    local name=$1
    shift
    cp -r "$cross" "$work/$name.model"
    expect 0 python3 "$tree/tests/cli/plant.py" "$work/$name.model" "$@"
    expect 0 dump "$work/$name" "$work/$name.model"
    expect 0 dump "$work/$name-parts" "$work/$name.model" --no-fuse
    "$rankplan" digest "$work/$name.model" --cases "$cross/cases.safetensors" >"$work/$name.digest"
}
# named NAME STEP [PART]: by every way of comparing with the whole model. PART: the last part of STEP,
# where that is what shows it in a run without fused steps.
named()
{
    local a step=$2
    for a in "$work/$1" "$work/$1-parts"; do
        expect 1 "$rankplan" compare "$a" "$work/bert_cross_encoder"
        first differs "$step"
        first 'over the tolerance' "$step"
        first jumps "$step"
        says out "errors at $step "
        step=${3:-$2}
    done
    expect 1 "$rankplan" compare "$work/$1.digest" "$work/bert_cross_encoder.digest"
    first differs "$2"
    expect 1 "$rankplan" compare "$work/bert_cross_encoder" "$work/$1.digest"
    first differs "$2"
    expect 1 "$rankplan" compare "$work/$1.digest" "$work/bert_cross_encoder"
    first differs "$2"
}
if command -v python3 >/dev/null; then
    plant weight sign encoder.layer.1.attention.self.query.weight
    named weight layers.1.attn.qkv
    plant down sign encoder.layer.0.output.dense.weight
    named down layers.0.ffn.down layers.0.ffn.down.add
    plant norm sign encoder.layer.1.attention.output.LayerNorm.bias
    named norm layers.1.attn.norm
    plant heads heads 2 encoder.layer.1.attention.self.{query,key}.{weight,bias}
    named heads layers.1.attn.qkv
    plant pooler sign pooler.dense.weight
    named pooler pooler pooler.act
    says out "hashes differ"
    # Where both have parts, the product itself is the first.
    expect 1 "$rankplan" compare "$work/down-parts" "$work/bert_cross_encoder-parts"
    first differs layers.0.ffn.down

    # Where everything differs a little, the step that does not follow from its inputs is the one.
    cp -r "$work/bert_cross_encoder" "$work/blurred"
    expect 0 python3 "$tree/tests/cli/blur.py" "$work/blurred"
    for a in heads heads-parts; do
        expect 1 "$rankplan" compare "$work/$a" "$work/blurred" --tol 0.01
        first differs embeddings.sum
        first 'over the tolerance' layers.1.attn.qkv
        first jumps layers.1.attn.qkv
        expect 1 "$rankplan" compare "$work/blurred" "$work/$a" --tol 1e-6
        first 'over the tolerance' layers.0.attn.core
        first jumps layers.1.attn.qkv
    done
    expect 0 "$rankplan" compare "$work/bert_cross_encoder" "$work/blurred" --tol 0.01
    first jumps none

    # The least tolerance that passes does pass, and hardly less does not.
    tol=$("$rankplan" compare "$work/weight" "$work/bert_cross_encoder" --min-tol)
    expect 0 "$rankplan" compare "$work/weight" "$work/bert_cross_encoder" --tol "$tol"
    says out "equal: 0 of 21 steps"
    first differs layers.1.attn.qkv
    expect 1 "$rankplan" compare "$work/weight" "$work/bert_cross_encoder" \
        --tol "$(python3 -c "print($tol * 0.99)")"
    expect 1 "$rankplan" compare "$work/heads" "$work/bert_cross_encoder" --json
    cp "$work/out" "$work/json"
    expect 0 python3 -c "
import json
r = json.load(open('$work/json'))
assert not r['equal'] and r['first_over'] == 'layers.1.attn.qkv' and len(r['steps']) == 21
assert r['steps'][9]['inputs_scaled'] == 0 and sum(r['steps'][9]['histogram']) == 113 * 192
assert r['ranked'] == 'scores' and r['top'] == 5 and -1 <= r['tau'] <= 1 and r['tol'] == 1e-5
"
    # A NaN: the run fails, its dump is there all the same, and no tolerance hides it.
    cp -r "$cross" "$work/nan.model"
    expect 0 python3 "$tree/tests/cli/plant.py" "$work/nan.model" nan encoder.layer.1.output.dense.weight
    expect 3 dump "$work/nan" "$work/nan.model"
    says err "is NaN"
    expect 1 "$rankplan" compare "$work/nan" "$work/bert_cross_encoder" --tol 1e30
    first 'over the tolerance' layers.1.ffn.down
    says out "(5 NaN on one side)"
    says out "tolerance that would pass          none"
    expect 1 "$rankplan" compare "$work/bert_cross_encoder" "$work/nan" --tol 1e30
    first jumps layers.1.ffn.down
    expect 0 "$rankplan" compare "$work/nan" "$work/nan"
fi

# ---- maps and steps of one side ----------------------------------------------------------------------
sed 's/layers\.\([01]\)\./h.\1./g' "$work/bert/index.json" >"$work/index.tmp"
cp -r "$work/bert" "$work/renamed" && mv "$work/index.tmp" "$work/renamed/index.json"
sed -i 's/"file": "\([0-9]*\)_h\./"file": "\1_layers./' "$work/renamed/index.json"
expect 1 "$rankplan" compare "$work/renamed" "$work/bert"
says out "only in $work/renamed: h.0.attn.qkv"
expect 0 "$rankplan" compare "$work/renamed" "$work/bert" --partial
{
    printf '{"h.0.attn.qkv": "layers.0.attn.qkv"'
    for step in attn.core attn.out attn.norm ffn.up ffn.down ffn.norm; do
        printf ', "h.0.%s": "layers.0.%s", "h.1.%s": "layers.1.%s"' $step $step $step $step
    done
    printf ', "h.1.attn.qkv": "layers.1.attn.qkv"}'
} >"$work/map.json"
expect 0 "$rankplan" compare "$work/renamed" "$work/bert" --map "$work/map.json"
says out "equal: 0 of 17 steps"
grep -q "only in" "$work/out" && complain "mapped steps are listed as missing"
echo '{"h.0.attn.qkv": "no.such"}' >"$work/map.json"
expect 3 "$rankplan" compare "$work/renamed" "$work/bert" --map "$work/map.json"
says err "has no step no.such"
echo '{"h.0.attn.qkv": "pool.mean"}' >"$work/map.json"
expect 3 "$rankplan" compare "$work/renamed" "$work/bert" --map "$work/map.json"
says err "two steps of"
for bad in '[1]' '{' '{"embeddings.sum": 1}'; do
    echo "$bad" >"$work/map.json"
    expect 3 "$rankplan" compare "$work/bert" "$work/bert" --map "$work/map.json"
done
expect 3 "$rankplan" compare "$work/bert" "$work/bert" --map "$work/none"

# ---- what is not to be believed ----------------------------------------------------------------------
# hostile TEXT SED: an index changed by a sed script is refused with that text.
hostile()
{
    rm -rf "$work/bad" && cp -r "$work/bert" "$work/bad"
    sed -i "$2" "$work/bad/index.json"
    cmp -s "$work/bad/index.json" "$work/bert/index.json" && complain "nothing was changed: $2"
    expect 3 "$rankplan" compare "$work/bad" "$work/bert"
    says err "$1"
}
cp "$work/bert/0000_embeddings.sum.npy" "$work/outside.npy"
hostile 'key "file"' 's|"file": "0000|"file": "../bert/0000|'
hostile 'key "file"' "s|\"0000_embeddings.sum.npy\"|\"$work/outside.npy\"|"
hostile 'key "file"' 's|"0000_embeddings.sum.npy"|".."|'
hostile 'key "file"' 's|"0000_embeddings.sum.npy"|17|'
hostile 'key "shape"' 's|\[113, 64\]|[4611686018427387904, 4]|'
hostile 'key "shape"' 's|\[113, 64\]|[-113, -64]|'
hostile 'key "shape"' 's|\[113, 64\]|[113, 64, 1]|'
hostile 'key "shape"' 's|\[113, 64\]|[113.0, 64]|'
hostile 'key "dtype"' 's|"f32"|"f16"|'
hostile 'key "xxh3"' 's|"xxh3": "|"xxh3": "x|'
hostile 'key "xxh3"' 's|"xxh3": "[^"]*"|"xxh3": 1|'
hostile 'key "tensor"' 's|"tensor": "embeddings.sum"|"tensor": ""|'
hostile 'key "inputs"' 's|"inputs": \["embeddings.sum"\]|"inputs": [0]|'
hostile 'has the step embeddings.norm twice' 's|"tensor": "embeddings.sum"|"tensor": "embeddings.norm"|'
hostile 'has the hash of' 's|"xxh3": "[^"]*"|"xxh3": "0123456789abcdef"|'
hostile 'a dump of version 2' 's|"version": 1|"version": 2|'
hostile 'not the index of a dump' 's|rankplan dump|another dump|'
hostile 'key "steps"' 's|"steps": \[|"steps": 3, "other": [|'
hostile 'key "plan"' 's|"plan": \[|"plan": [1,|'
hostile 'index.json: line' '$d'
hostile 'ran different inputs: key "ids"' 's|"ids": \[[0-9]*|"ids": [1|'
hostile 'No such file' 's|0004_|9999_|'
# Another shape is a difference; one that is not the file's is a lie.
rm -rf "$work/bad" && cp -r "$work/bert" "$work/bad"
sed -i 's|\[113, 64\]|[64, 113]|' "$work/bad/index.json"
expect 1 "$rankplan" compare "$work/bad" "$work/bert"
says out "64x113 against 113x64"
expect 3 "$rankplan" compare "$work/bad" "$work/bad"
says err "it is 113 x 64, and the index says 64 x 113"
# A name may say anything, and only a name is printed.
rm -rf "$work/bad" && cp -r "$work/bert" "$work/bad"
sed -i 's|"tensor": "pool.mean"|"tensor": "\\u001b[31mpool"|' "$work/bad/index.json"
expect 1 "$rankplan" compare "$work/bad" "$work/bert"
says out "?[31mpool"
# npy NAME TEXT COMMAND...: a file that the command spoils, whose hash nobody gives, is refused.
npy()
{
    local text=$1
    shift
    rm -rf "$work/bad" && cp -r "$work/bert" "$work/bad"
    sed -i 's|"xxh3": "[^"]*"|"xxh3": null|' "$work/bad/index.json"
    file=$work/bad/0002_layers.0.attn.qkv.npy "$@"
    expect 3 "$rankplan" compare "$work/bad" "$work/bert"
    says err "$text"
    says err "0002_layers.0.attn.qkv.npy"
}
npy 'bytes of values, expected' sh -c 'truncate -s -1 "$file"'
npy 'bytes of values, expected' sh -c 'echo >>"$file"'
npy 'its header is' truncate -s 60 "$work/bad/0002_layers.0.attn.qkv.npy"
npy 'not a .npy file' sh -c 'echo x >"$file"'
npy "its values are '<f8'" sed -i '1s/<f4/<f8/' "$work/bad/0002_layers.0.attn.qkv.npy"
npy "Fortran's order" sed -i "1s/'fortran_order': False/'fortran_order': True /" "$work/bad/0002_layers.0.attn.qkv.npy"
npy 'it is not a file' sh -c 'rm "$file"; mkdir "$file"'
npy 'it is not a file' sh -c 'rm "$file"; mkfifo "$file"'
npy 'No such file' sh -c 'rm "$file"'

# ---- Hugging Face ----------------------------------------------------------------------------------
# tests/data/hf holds what transformers computed for two oracles (tools/hf_dump.py).
for name in bert xlm_roberta_reranker; do
    cases="--cases $oracles/$name/cases.safetensors"
    expect 0 "$rankplan" dump "$oracles/$name" $cases -o "$work/hf-$name"
    expect 0 "$rankplan" compare "$work/hf-$name" "$tree/tests/data/hf/$name" --tol 1e-4
    says out "over the tolerance of 0.0001"
    expect 0 "$rankplan" dump "$oracles/$name" $cases -o "$work/hf-$name" --no-fuse
    expect 0 "$rankplan" compare "$work/hf-$name" "$tree/tests/data/hf/$name" --tol 1e-4
    expect 1 "$rankplan" compare "$work/hf-$name" "$tree/tests/data/hf/$name" --tol 1e-9
done

# ---- int8 --------------------------------------------------------------------------------------------
cases="--cases $oracles/bert/cases.safetensors"
expect 0 "$rankplan" dump "$oracles/bert" $cases --precision int8 -o "$work/int8"
says_file()
{
    grep -qF -- "$2" "$1" || complain "$1 does not say: $2"
}
says_file "$work/int8/index.json" '"dtype": "q8"'
says_file "$work/int8/index.json" '"precision": "int8"'
expect 0 "$rankplan" dump "$oracles/bert" $cases --precision int8 -o "$work/int8-3" --threads 3 --isa scalar
expect 0 "$rankplan" compare "$work/int8" "$work/int8-3"
"$rankplan" digest "$oracles/bert" $cases --precision int8 >"$work/int8.digest"
expect 0 "$rankplan" compare "$work/int8" "$work/int8.digest"
expect 1 "$rankplan" compare "$work/int8" "$work/bert" --partial
says out "layers.0.attn.qkv"

# ---- digests ---------------------------------------------------------------------------------------
digest=$work/bert.digest
# damaged TEXT SED
damaged()
{
    sed "$2" "$digest" >"$work/damaged"
    expect 3 "$rankplan" compare "$work/damaged" "$digest"
    says err "$1"
}
damaged 'the hash of the whole' '$d'
damaged 'line 5: not a line' '5d' # a step less
damaged 'the hash of the whole' '17d' # the last step
damaged 'line 1: not a line' '1s/ embed / embed more /'
damaged 'line 2: not a line' '2s/^1/7/'
damaged 'line 3: not a line' '3s/113x192/113x/'
damaged 'line 3: not a line' '3s/113x192/99999999999x192/'
damaged 'the hash of the whole' '4s/.$/g/;4s/g$/0/;5s/.$/0/;6s/.$/0/'
damaged 'it is empty' 'd'
head -c 100000 /dev/zero >"$work/zeros"
expect 3 "$rankplan" compare "$work/zeros" "$digest"
expect 3 "$rankplan" compare "$work/none" "$digest"
says err "$work/none: No such file"
expect 3 "$rankplan" compare "$work/nothing-here" "$work/bert"
mkdir "$work/empty"
expect 3 "$rankplan" compare "$work/empty" "$work/bert"
says err "there is no index.json"
expect 0 "$rankplan" compare "$work/bert/index.json" "$digest"
expect 4 sh -c "'$rankplan' compare '$work/bert' '$work/bert' >/dev/full"

[ $failed -eq 0 ] && echo "dumps and comparisons behave"
exit $failed
