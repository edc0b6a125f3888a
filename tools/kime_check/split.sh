#!/usr/bin/env bash
# rankplan's answers of a split encoder against those of the published kime crates, on one checkpoint
# of random weights.
#
#     tools/kime_check/split.sh [RANKPLAN [TOLERANCE]]
#
# Needs cargo with access to the crates.
set -euo pipefail
tree=$(cd "$(dirname "$0")/../.." && pwd)
rankplan=${1:-$tree/build/release/rankplan}
tolerance=${2:-1e-5}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
kime_split()
{
    CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$tree/build/kime_check} \
        cargo run --quiet --release --locked --manifest-path "$tree/tools/kime_check/Cargo.toml" \
        --bin kime_split -- "$@"
}
kime_split make "$work/model"
"$rankplan" score "$work/model" "$work/model/questions.jsonl" >"$work/scores"
kime_split check "$work/model" "$work/scores" "$tolerance"
