#!/usr/bin/env bash
# The command under valgrind's memcheck: no read of what was never written, no access outside, no block
# lost.  Sanitizers see the first only where clang's MemorySanitizer instruments every library.
#
#     tests/cli/valgrind.sh RANKPLAN TREE
set -uo pipefail
rankplan=$1
bert=$2/tests/data/oracles/bert
command -v valgrind >/dev/null || {
    echo "skipped: valgrind is not installed (tools/setup-debian.sh --ci does it)"
    exit 77
}
failed=0
for isa in scalar avx2; do
    "$rankplan" info "$bert" --isa $isa >/dev/null 2>&1 || continue
    for command in "check $bert" "digest $bert --cases $bert/cases.safetensors --no-fuse"; do
        valgrind --quiet --error-exitcode=9 --leak-check=full --show-leak-kinds=definite,indirect,possible \
            --errors-for-leak-kinds=definite,indirect,possible \
            "$rankplan" $command --threads 1 --isa $isa >/dev/null || {
            echo "FAILED: exit code $?: $command --isa $isa"
            failed=1
        }
    done
done
[ $failed -eq 0 ] && echo "memcheck has nothing to say"
exit $failed
