#!/usr/bin/env bash
# The command with a call that fails: for each N until nothing is left to fail, the N-th allocation
# (thread, open, read) of a whole run fails.  Each run ends by itself within its time, either as if
# nothing had been or with exit code 3 or 4 and a message; a signal is a failure of this test.
#
#     tests/faults/cli.sh RANKPLAN PRELOAD TREE HAS_TOKENIZER STEP
#
# STEP: every STEP-th allocation.  Calls from Rust code are left out, since Rust ends the process when
# it has no memory: they are told by nm, and without nm the runs with a tokenizer are.
set -uo pipefail
rankplan=$1
preload=$2
tree=$3
has_tokenizer=$4
step=$5
example=$tree/examples/models/apt-bert-tiny
bert=$tree/tests/data/oracles/bert
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

complain()
{
    echo "FAILED: $*"
    sed 's/^/    err: /' "$work/err" | head -n 4
    failed=1
}

# one KIND N COMMAND...: a run with that failure; its exit code in $code, $work/hit when it happened.
one()
{
    local kind=$1 nth=$2
    shift 2
    rm -f "$work/hit"
    timeout 60 env LD_PRELOAD="$preload" RP_FAULT="$kind" RP_FAULT_NTH="$nth" RP_FAULT_HIT="$work/hit" \
        ${skip:+RP_FAULT_SKIP="$skip"} "$rankplan" "$@" >"$work/out" 2>"$work/err" </dev/null
    code=$?
}

# Times differ anyway. A key that there was no memory to remember may be noted as unknown (models/json.c).
same_output()
{
    case $1 in
        profile | bench) true ;;
        *) cmp -s <(grep -v '^note ' "$work/out") <(grep -v '^note ' "$work/want") ;;
    esac
}

# each KIND STEP COMMAND...: all of them.
each()
{
    local kind=$1 by=$2 n=1 hits=0 refused=0
    shift 2
    while [ $failed -eq 0 ]; do
        one "$kind" $n "$@"
        case $code in
            0) [ ! -f "$work/hit" ] || same_output "$1" ||
                complain "$kind $n: other output with exit code 0: $*" ;;
            3 | 4)
                refused=$((refused + 1))
                grep -q '^rankplan: ..' "$work/err" || complain "$kind $n: exit code $code without a message: $*"
                ;;
            *) complain "$kind $n: exit code $code: $*" ;;
        esac
        [ -f "$work/hit" ] || break
        hits=$((hits + 1))
        n=$((n + by))
    done
    [ "$code" -eq 0 ] || complain "$kind: exit code $code although nothing failed: $*"
    [ $hits -gt 0 ] || complain "$kind: nothing failed: $*"
    echo "$kind: $hits failures in $1, $refused refused"
}

# run COMMAND...: every kind of failure in it.
run()
{
    [ $failed -eq 0 ] || return
    "$rankplan" "$@" >"$work/want" 2>"$work/err" </dev/null || complain "it fails by itself: $*"
    each alloc "$step" "$@"
    each thread 1 "$@"
    each open 1 "$@"
    each read "$(((step + 1) / 2))" "$@"
}

skip=
printf '%s\n' 'fonts for Thai' 'web server in C' >"$work/texts"
cases="$bert/cases.safetensors"
run plan "$bert" --bucket 16,1 --threads 2
run digest "$bert" --cases "$cases" --threads 2
head -n 7 "$tree/tests/data/kime/questions.jsonl" >"$work/questions"
run score "$tree/tests/data/kime" "$work/questions" --threads 2
if [ "$step" -eq 1 ]; then
    run info "$bert" --threads 2
    run check "$bert" --threads 2
    run profile "$bert" --cases "$cases" --json --threads 2
    run bench "$bert" --shape 1x4 --threads 2
else
    run check "$bert" --threads 2
fi
if [ "$has_tokenizer" = ON ] && command -v nm >/dev/null && [ $failed -eq 0 ]; then
    skip=$work/rust
    nm -S --defined-only "$rankplan" | LC_ALL=C awk '
        function number(hex,   i, n) {
            for (i = 1; i <= length(hex); i++)
                n = n * 16 + index("0123456789abcdef", substr(hex, i, 1)) - 1
            return n
        }
        NF == 4 && $3 ~ /[tTwW]/ && $4 ~ /^(_ZN|_R|rp_crate_|__r(ust|dl|g)_)/ {
            printf "%08x %08x\n", number($1), number($1) + number($2)
        }' | LC_ALL=C sort >"$skip"
    run rerank "$example" --query 'web server' --threads 2 "$work/texts"
elif [ "$has_tokenizer" = ON ] && [ $failed -eq 0 ]; then
    echo "not tried: rerank (nm is missing, which tells Rust code from C)"
fi

[ $failed -eq 0 ] && echo "every failure was survived"
exit $failed
