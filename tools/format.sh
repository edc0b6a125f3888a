#!/usr/bin/env bash
# Formats all C files; with --check only says which ones are not formatted. clang-format 14 decides.
set -euo pipefail
cd "$(dirname "$0")/.."

mode=(-i)
[ "${1-}" != --check ] || mode=(--dry-run -Werror)

find . \( -path './.?*' -o -path './build*' -o -path ./text/crate \) -prune -o -name '*.[ch]' -print0 |
    xargs -0 -n 16 -P "$(nproc)" clang-format "${mode[@]}"
