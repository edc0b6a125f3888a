# What the tests of the command share, to be sourced: a folder $work, $failed, expect, complain, says.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# expect CODE COMMAND...: runs it, keeps its output in $work/out and $work/err.
expect()
{
    local want=$1
    shift
    "$@" >"$work/out" 2>"$work/err" </dev/null
    local got=$?
    [ "$got" -eq "$want" ] || complain "exit code $got, expected $want: $*"
}

complain()
{
    echo "FAILED (line ${BASH_LINENO[-2]}): $*"
    sed 's/^/    out: /' "$work/out" | head -n 5
    sed 's/^/    err: /' "$work/err" | head -n 5
    failed=1
}

# says FILE TEXT: the file has a line with that text.
says()
{
    grep -qF -- "$2" "$work/$1" || complain "$1 does not say: $2"
}
