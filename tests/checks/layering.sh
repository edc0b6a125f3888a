#!/usr/bin/env bash
# Arrows between folders go one way: layering.sh [TREE]
#
#   include <- pool <- gemm, qgemm <- ops <- attention, gdn <- metal <- plan <- models <- text
#
# A folder includes only itself and what stands to its left; siblings do not see each other. serve, cli,
# python and examples use <rankplan/...> and their own folder alone. tests and bench may see all.
# Includes start at the root and name the folder. Public headers include each other and C's standard
# headers, nothing else.
set -euo pipefail
cd "${1:-.}"

find . \( -path './.?*' -o -path './build*' -o -path ./text/crate -o -path ./tests -o -path ./bench \) -prune \
    -o -type f \( -name '*.[chm]' -o -name '*.inc' -o -name '*.metal' -o -name '*.cc' -o -name '*.cpp' \) -print |
    sort | sed 's|^\./||' | xargs -r awk '
BEGIN {
    sees["include"] = ""
    sees["pool"] = ""
    sees["gemm"] = sees["qgemm"] = "pool"
    sees["ops"] = "pool gemm qgemm"
    sees["attention"] = sees["gdn"] = sees["ops"] " ops"
    sees["metal"] = sees["attention"] " attention gdn"
    sees["plan"] = sees["metal"] " metal"
    sees["models"] = sees["plan"] " plan"
    sees["text"] = sees["models"] " models"
    sees["serve"] = sees["cli"] = sees["python"] = sees["examples"] = ""
    n = split("assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal " \
              "stdalign stdarg stdatomic stdbool stddef stdint stdio stdlib stdnoreturn string time", c, " ")
    for (i = 1; i <= n; i++)
        standard[c[i] ".h"] = 1
}
function complain(why) {
    printf "%s:%d: %s: %s\n", FILENAME, FNR, why, $0
    bad++
}
FNR == 1 {
    files++
    folder = FILENAME
    sub("/.*", "", folder)
    if (!(folder in sees)) {
        printf "%s: folder \"%s\" has no place in the layering\n", FILENAME, folder
        bad++
        nextfile
    }
}
/^[ \t]*#[ \t]*include[ \t]*"/ {
    split($0, part, "\"")
    path = part[2]
    if (path !~ "/" || path ~ /(^|\/)\.\.?\//)
        complain("includes start at the root of the tree")
    else {
        to = path
        sub("/.*", "", to)
        if (to == "rankplan")
            complain("public headers are included with < >")
        else if (folder == "include")
            complain("a public header includes a private one")
        else if (to != folder && !((" " sees[folder] " ") ~ (" " to " ")))
            complain(folder " may not see " to)
    }
}
/^[ \t]*#[ \t]*include[ \t]*</ {
    split($0, part, /[<>]/)
    path = part[2]
    if (folder == "include" && path !~ /^rankplan\// && !(path in standard))
        complain("a public header needs more than the C library")
    if (path == "jansson.h" && (" include pool gemm qgemm ops attention gdn metal plan ") ~ (" " folder " "))
        complain("JSON is read in models/ and to its right")
}
END {
    printf "layering: %d files, %d violations\n", files, bad
    exit bad > 0 || files == 0
}'
