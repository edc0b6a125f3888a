#!/usr/bin/env bash
# From a fresh Debian 12 to ranked texts: installs what is missing, builds the preset `release`, and lets
# the example model rank package descriptions against a query.
#
#     tools/demo.sh [query]
set -euo pipefail
cd "$(dirname "$0")/.."

tools/setup-debian.sh
cmake --preset release
cmake --build --preset release --target rankplan-cli

query=${1:-tool to compress files}
set -x
build/release/rankplan rerank examples/models/apt-bert-tiny --query "$query" <<'TEXTS'
gzip is the standard GNU file compression utility. It reduces the size of the named files using Lempel-Ziv coding.
A multi-track audio editor that records, cuts, copies and mixes sounds, with effects such as echo and fade.
This package contains the fonts of the DejaVu family in TrueType format.
XZ Utils provides general-purpose data compression with a high ratio, and a command line like that of gzip.
A server for the Network Time Protocol that keeps the clock of a computer in step with others.
TEXTS
