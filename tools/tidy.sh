#!/usr/bin/env bash
# clang-tidy over the library, the command and the examples: tools/tidy.sh BUILD, a build made with clang
# (it is read for how each file is compiled). The checks and their reasons are in .clang-tidy.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1

sed -nE 's/^ *"file": "(.*)"$/\1/p' "$build/compile_commands.json" |
    grep -vE '/(tests|bench)/' | sort -u |
    xargs -n 4 -P "$(nproc)" clang-tidy -p "$build" --quiet
