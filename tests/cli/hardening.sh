#!/usr/bin/env bash
# The command in a shell that is not kind to it: streams that are closed, full or left by their reader,
# files that are none, names of every sort.  Each time it ends by itself, with the exit code that --help
# states and a message; nothing is ever written where it does not belong.
#
#     tests/cli/hardening.sh RANKPLAN TREE HAS_TOKENIZER
set -uo pipefail
rankplan=$1
tree=$2
has_tokenizer=$3
example=$tree/examples/models/apt-bert-tiny
bert=$tree/tests/data/oracles/bert
cases="--cases $bert/cases.safetensors"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
export LC_ALL=C # bytes are bytes to grep
limit="timeout --foreground ${RANKPLAN_TEST_SECONDS:-60}"

complain()
{
    echo "FAILED: $*"
    sed 's/^/    err: /' "$work/err" | head -n 3 | cut -c 1-200
    failed=1
}

# expect CODE COMMAND...: its standard error in $work/err; one message at least when it fails.
expect()
{
    local want=$1
    shift
    $limit "$@" 2>"$work/err"
    local got=$?
    [ "$got" -eq "$want" ] || complain "exit code $got, expected $want: ${*:0:200}"
    [ "$want" -eq 0 ] || grep -q '^rankplan: ..' "$work/err" || complain "no message: ${*:0:200}"
}

says()
{
    grep -qF -- "$1" "$work/err" || complain "no word of: $1"
}

# A folder of links to the files of another, so that one of them can be something else.
model_like()
{
    rm -rf "$work/model"
    mkdir "$work/model"
    ln -s "$1"/* "$work/model"
    rm -f "$work/model/${2-}"
}

printf '%s\n' 'fonts for Thai' 'web server in C' >"$work/texts"
for i in $(seq 4000); do echo "package number $i"; done >"$work/many"
all_commands=("info $bert" "plan $bert --bucket 16,1" "check $bert" "digest $bert $cases" "profile $bert $cases"
    "profile $bert $cases --json" "profile $bert $cases --csv" "bench $bert --shape 1x4" "--help" "--version" "info --help")
if [ "$has_tokenizer" = ON ]; then
    all_commands+=("rerank $example --query q $work/texts")
    # An embedder with a tokenizer: the oracle's weights, and a vocabulary of a few words.
    mkdir "$work/embedder"
    ln -s "$bert"/config.json "$bert"/model.safetensors "$work/embedder"
    cat >"$work/embedder/tokenizer.json" <<-'END'
	{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,
	 "pre_tokenizer":{"type":"Whitespace"},"post_processor":null,"decoder":null,
	 "model":{"type":"WordLevel","vocab":{"[UNK]":0,"package":1,"number":2,"web":3},"unk_token":"[UNK]"}}
	END
    all_commands+=("embed $work/embedder $work/texts" "embed $work/embedder $work/texts --format npy")
fi

# ---- output that cannot be written -----------------------------------------------------------------
for command in "${all_commands[@]}"; do
    expect 0 "$rankplan" $command >"$work/out"
    [ -s "$work/out" ] || complain "nothing printed: $command"
    expect 4 "$rankplan" $command >/dev/full
    says "could not be written"
    expect 4 "$rankplan" $command >&-
    says "could not be written"
done
expect 4 "$rankplan" profile $bert $cases --trace /dev/full >"$work/out"
says "/dev/full"
# A message that cannot be written changes nothing about the code.
$limit "$rankplan" info "$work/none" 2>/dev/full
[ $? -eq 3 ] || complain "a full standard error changes the exit code"
$limit "$rankplan" info "$work/none" 2>&-
[ $? -eq 3 ] || complain "a closed standard error changes the exit code"
$limit "$rankplan" check "$bert" <&- >&- 2>&-
[ $? -eq 4 ] || complain "exit code with all streams closed"

if [ "$has_tokenizer" = ON ]; then
    # A reader that leaves: a failed write and its message, no signal's death.
    for command in "embed $work/embedder" "rerank $example --query q"; do
        $limit "$rankplan" $command "$work/many" 2>"$work/err" | head -n 1 >"$work/out"
        code=${PIPESTATUS[0]}
        [ "$code" -eq 4 ] || complain "exit code $code when the reader leaves: $command"
        says "could not be written"
        [ "$(wc -l <"$work/out")" -eq 1 ] || complain "the reader got no line: $command"
    done
    expect 3 "$rankplan" rerank "$example" --query q <&-
    says "standard input"

    # With standard output closed, no file may get its number: what is printed would end up in it.
    mkfifo "$work/slow"
    "$rankplan" rerank "$example" --query q "$work/slow" <&- >&- 2>&- &
    pid=$!
    exec 9<>"$work/slow"
    for i in $(seq 200); do
        ls -l /proc/$pid/fd 2>/dev/null | grep -q /slow && break
        sleep 0.05
    done
    if [ -d /proc/$pid/fd ]; then
        for fd in 0 1 2; do
            [ "$(readlink /proc/$pid/fd/$fd)" = /dev/null ] ||
                complain "descriptor $fd is $(readlink /proc/$pid/fd/$fd)"
        done
    fi
    echo text >&9
    exec 9>&-
    wait $pid
    [ $? -eq 4 ] || complain "exit code of the command with all streams closed"
fi

# ---- files that are none ---------------------------------------------------------------------------
for name in config.json model.safetensors; do
    model_like "$bert" $name
    expect 3 "$rankplan" info "$work/model"
    says $name
    : >"$work/model/$name"
    expect 3 "$rankplan" info "$work/model"
    says $name
    rm "$work/model/$name"
    mkfifo "$work/model/$name"
    expect 3 "$rankplan" info "$work/model"
    says "not a regular file"
    rm "$work/model/$name"
    mkdir "$work/model/$name"
    expect 3 "$rankplan" info "$work/model"
    rmdir "$work/model/$name"
    ln -s "$name" "$work/model/$name" # a link to itself
    expect 3 "$rankplan" info "$work/model"
    says "symbolic links"
done
model_like "$bert" cases.safetensors
expect 3 "$rankplan" check "$work/model"
mkfifo "$work/model/cases.safetensors"
expect 3 "$rankplan" check "$work/model"
says "not a regular file"
for file in "$work" /dev/null "$work/none" "$bert/config.json"; do
    expect 3 "$rankplan" check "$bert" --cases "$file"
done
expect 3 "$rankplan" info "$bert/config.json"
expect 3 "$rankplan" info /dev/null
expect 3 "$rankplan" info ""
says "empty"
if [ "$has_tokenizer" = ON ]; then
    model_like "$example" tokenizer.json
    expect 3 "$rankplan" rerank "$work/model" --query q "$work/texts"
    says tokenizer.json
    mkfifo "$work/model/tokenizer.json"
    expect 3 "$rankplan" rerank "$work/model" --query q "$work/texts"
    says "not a regular file"
    rm "$work/model/tokenizer.json"
    : >"$work/model/tokenizer.json"
    expect 3 "$rankplan" rerank "$work/model" --query q "$work/texts"
    expect 3 "$rankplan" rerank "$example" --query q "$work"
    says "directory"
    expect 3 "$rankplan" rerank "$example" --query q ""
fi
# Root reads everything, so the question is asked as somebody else.
cp -r "$bert" "$work/private"
chmod 000 "$work/private/model.safetensors"
chmod 755 "$work"
if [ "$(id -u)" -ne 0 ]; then
    expect 3 "$rankplan" info "$work/private"
    says "Permission denied"
elif command -v setpriv >/dev/null && setpriv --reuid 65534 --clear-groups "$rankplan" --version >/dev/null 2>&1; then
    expect 3 setpriv --reuid 65534 --clear-groups "$rankplan" info "$work/private"
    says "Permission denied"
else
    echo "not tried: a file without permissions (this is root, and setpriv cannot step down)"
fi

# ---- processors that may be used -----------------------------------------------------------------
if command -v taskset >/dev/null && taskset -c 0 true 2>/dev/null; then
    expect 0 taskset -c 0 "$rankplan" info "$bert" >"$work/out"
    grep -q '^threads  *1 (processors that may be used: 1)' "$work/out" || complain "taskset is not heard"
    expect 0 taskset -c 0 "$rankplan" info "$bert" --threads 3 >"$work/out"
    grep -q '^threads  *3 (processors that may be used: 1)' "$work/out" || complain "--threads is not heard"
fi

# ---- names -----------------------------------------------------------------------------------------
odd=$work/$'a b\nc "d" \\e %s \xff'
cp -r "$bert" "$odd"
expect 0 "$rankplan" check "$odd" >"$work/out"
expect 0 "$rankplan" digest "$odd" --cases "$odd/cases.safetensors" >"$work/out"
expect 3 "$rankplan" info "$odd/none"
for n in 255 256 4095 4096 100000; do
    long=$(head -c $n /dev/zero | tr '\0' x)
    expect 3 "$rankplan" info "$long"
    expect 3 "$rankplan" check "$bert" --cases "$long"
    expect 4 "$rankplan" profile $bert $cases --trace "$long/x" >"$work/out"
    expect 2 "$rankplan" "$long"
    expect 2 "$rankplan" info "$bert" "--$long"
    expect 3 "$rankplan" info "$bert" --isa "$long"
done
expect 3 "$rankplan" info $'\xff\xfe\x01'
expect 2 "$rankplan" $'\xff'
expect 2 "$rankplan" plan "$bert" --bucket $'\xff,1'
if [ "$has_tokenizer" = ON ]; then
    expect 3 "$rankplan" rerank "$example" --query $'\xff' "$work/texts"
    says "UTF-8"
    expect 3 "$rankplan" rerank "$(head -c 4090 /dev/zero | tr '\0' x)" --query q "$work/texts"
    printf 'a\0b "\\/\b\f\t\x01\x1f\x7f \xc3\xa9\r\n' >"$work/escapes"
    expect 0 "$rankplan" rerank "$example" --query q "$work/escapes" >"$work/out"
    grep -qF '"text":"a\u0000b \"\\/\b\f\t\u0001\u001F'$'\x7f'' é"}' "$work/out" ||
        complain "strings are not escaped: $(cat "$work/out")"
fi

[ $failed -eq 0 ] && echo "the command holds out"
exit $failed
