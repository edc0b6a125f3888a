#!/usr/bin/env bash
# Installs a build, moves it, and builds a program against it in both ways that users have:
# run.sh CMAKE CC BUILD MODEL with-tokenizer|without-tokenizer
set -euo pipefail
cmake=$1 cc=$2 build=$3 model=$4 tokenizer=$5
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$cmake" --install "$build" --prefix "$work/first" > "$work/log" || { cat "$work/log"; exit 1; }
# No file may remember where it was installed.
mv "$work/first" "$work/moved"
libdir=$(dirname "$(find "$work/moved" -name rankplan.pc -printf '%h\n')")

echo "-- find_package"
"$cmake" -G Ninja -S "$here" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$work/moved" \
    -DCMAKE_C_COMPILER="$cc" > "$work/log" || { cat "$work/log"; exit 1; }
"$cmake" --build "$work/cmake" > "$work/log" || { cat "$work/log"; exit 1; }
"$work/cmake/consumer" "$model" "$tokenizer"

echo "-- pkg-config"
export PKG_CONFIG_PATH=$libdir/pkgconfig
static=
[ -e "$libdir/librankplan.so" ] || static=--static
# shellcheck disable=SC2046 # flags are words
"$cc" "$here/main.c" -o "$work/consumer" $(pkg-config $static --cflags --libs rankplan) -Wl,-rpath,"$libdir"
"$work/consumer" "$model" "$tokenizer"

if [ -x "$work/moved/bin/rankplan" ]; then
    echo "-- the command"
    LD_LIBRARY_PATH=$libdir "$work/moved/bin/rankplan" --version
fi
