#!/usr/bin/env bash
# Names that the library takes from its users, and names that it owes them: symbols.sh NM READELF LIBRARY
#
#   - every global symbol that our C files define begins with rp_;
#   - every function that the public headers declare is defined, and visible outside a shared library;
#   - nothing else is visible outside it.
# The library may be static or shared. Objects that do not come from C files (the tokenizer's) are not
# looked at: their names are mangled.
set -euo pipefail
nm=$1 readelf=$2 library=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0

# The functions of the public headers: comments away, then each declaration is one record.
cat include/rankplan/*.h | sed 's|/\*.*\*/||' | awk '/\/\*/ { skip = 1 } !skip { print } /\*\// { skip = 0 }' |
    tr '\n' ' ' | tr ';' '\n' | grep RP_API | grep -v '#define RP_API *$' |
    sed -nE 's/.*RP_API[^(]*(RP_CHECKED )?[^(]*\b(rp_[a-z0-9_]+) *\(.*/\2/p' | sort -u > "$work/declared"
[ -s "$work/declared" ] || { echo "symbols: no function found in the public headers"; exit 1; }

case $library in
*.a)
    "$nm" -A -g --defined-only "$library" 2>/dev/null |
        sed -nE 's/^[^:]*:[^:]*\.c\.o: *[0-9a-f]+ [A-Z] (.*)$/\1/p' | sort -u > "$work/global"
    "$readelf" -sW "$library" 2>/dev/null |
        awk '/^File:/ { ours = /\.c\.o\)/ } ours && $5 == "GLOBAL" && $6 == "DEFAULT" && $7 != "UND" { print $8 }' |
        sort -u > "$work/visible"
    ;;
*)
    "$nm" -D -g --defined-only "$library" | awk '{ sub("@.*", "", $NF); print $NF }' | sort -u > "$work/global"
    cp "$work/global" "$work/visible"
    ;;
esac

complain()
{
    [ ! -s "$1" ] || { sed "s/^/    /" "$1"; echo "  ^ $2"; status=1; }
}
grep -v '^rp_' "$work/global" > "$work/foreign" || true
comm -23 "$work/declared" "$work/visible" > "$work/missing"
comm -13 "$work/declared" "$work/visible" > "$work/leaked"
complain "$work/foreign" "global symbols that do not begin with rp_"
complain "$work/missing" "declared in a public header, but not defined and visible"
complain "$work/leaked" "visible outside the library, but in no public header"
echo "symbols: $(wc -l < "$work/global") global, $(wc -l < "$work/declared") public"
[ -s "$work/global" ] && exit "$status"
