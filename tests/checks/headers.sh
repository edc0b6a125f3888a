#!/usr/bin/env bash
# Public headers stand on their own: headers.sh COMPILER LANGUAGE STANDARD
#
# Each compiles alone, twice in a row, without a warning, and rankplan.h includes all the others.
set -euo pipefail
compiler=$1 language=$2 standard=$3

status=0 count=0
for header in include/rankplan/*.h; do
    name=${header#include/}
    printf '#include <%s>\n#include <%s>\n' "$name" "$name" |
        "$compiler" -x "$language" -std="$standard" -fsyntax-only -I include \
            -Wall -Wextra -Wpedantic -Wundef -Werror - || { echo "headers: $name fails as $standard"; status=1; }
    if [ "$name" != rankplan/rankplan.h ] && ! grep -qF "#include <$name>" include/rankplan/rankplan.h; then
        echo "headers: rankplan.h does not include $name"
        status=1
    fi
    count=$((count + 1))
done
echo "headers: $count headers as $standard"
[ "$count" -gt 0 ] && exit "$status"
