#!/usr/bin/env bash
# From a fresh Debian 12 to a passed test suite: installs what is missing, builds the preset `dev`, and
# runs its tests. The slow ones (label `long`) only with --long.
#
#     tools/test.sh [--long] [argument of ctest ...]
set -euo pipefail
cd "$(dirname "$0")/.."

which=(-LE long)
if [ "${1-}" = --long ]; then
    which=()
    shift
fi

tools/setup-debian.sh
cmake --preset dev
cmake --build --preset dev
ctest --preset dev -j "$(nproc)" "${which[@]}" "$@"
