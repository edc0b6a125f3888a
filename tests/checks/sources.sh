#!/usr/bin/env bash
# Words that have no place in the source: sources.sh [TREE]
set -euo pipefail
cd "${1:-.}"

library=() programs=() rest=() others=()
while IFS= read -r -d '' file; do
    file=${file#./}
    case $file in
    tests/checks/*) ;; # which must spell out what they forbid
    *.[ch] | *.inc | *.metal)
        case $file in
        pool/* | gemm/* | qgemm/* | ops/* | attention/* | gdn/* | metal/* | plan/* | models/* | text/*)
            library+=("$file") ;;
        serve/* | cli/*) programs+=("$file") ;;
        *) rest+=("$file") ;;
        esac ;;
    *.cmake | *.in | */CMakeLists.txt | CMakeLists.txt | CMakePresets.json | *.sh | *.py | *.rs | *.toml | *.md | .ci/*)
        others+=("$file") ;;
    esac
done < <(find . \( -path './.?*' -not -path './.ci*' -o -path './build*' -o -path ./text/crate/target \) -prune -o -type f -print0)
status=0

# forbid REASON PATTERN FILE...: no line of the files matches the extended regular expression.
forbid()
{
    local reason=$1 pattern=$2 found
    shift 2
    [ $# -gt 0 ] || return 0
    if found=$(grep -nHE -- "$pattern" "$@"); then
        printf '%s\n    ^ %s\n' "$found" "$reason"
        status=1
    fi
}

forbid 'what number a text stands for must not depend on the locale of the process' \
    '\b(strto(d|f|ld)|ato[fil]l?|[fsv]*scanf|wcsto[dfl]+)[[:space:]]*\(' "${library[@]}" "${programs[@]}"
forbid 'the locale belongs to the program' \
    '\b(setlocale|uselocale|newlocale)[[:space:]]*\(' "${library[@]}" "${programs[@]}"
forbid 'a library reports by its status and its rp_error: it neither prints nor ends the process' \
    '\b(v?printf|puts|putchar|perror|exit|_exit|abort)[[:space:]]*\(|\b(stdout|stderr)\b' "${library[@]}"
forbid 'work that is left has an issue: TODO(#12)' \
    '\b(TODO|FIXME|XXX|HACK)\b($|[^(]|\([^#]|\(#[^0-9])' \
    "${library[@]}" "${programs[@]}" "${rest[@]}" "${others[@]}"
forbid 'a path of one machine' \
    '(^|[^[:alnum:]_.$}])/(home|root|Users|work)/' \
    "${library[@]}" "${programs[@]}" "${rest[@]}" "${others[@]}"

echo "sources: $((${#library[@]} + ${#programs[@]} + ${#rest[@]} + ${#others[@]})) files"
[ "${#library[@]}" -gt 0 ] && exit "$status"
