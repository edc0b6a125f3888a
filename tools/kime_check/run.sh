#!/usr/bin/env bash
# rankplan's logits and act against those of the published kime crates, on one checkpoint.
#
#     tools/kime_check/run.sh [RANKPLAN [MODEL [TOLERANCE]]]
#
# MODEL has a cases.safetensors, whose questions are run.  Needs python3, and cargo with access to the
# crates.
set -euo pipefail
tree=$(cd "$(dirname "$0")/../.." && pwd)
rankplan=${1:-$tree/build/release/rankplan}
model=${2:-$tree/tests/data/oracles/decision}
tolerance=${3:-1e-5}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 "$tree/tools/cases_to_questions.py" "$model/cases.safetensors" >"$work/questions"
"$rankplan" score "$model" "$work/questions" >"$work/scores"
CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$tree/build/kime_check} \
    cargo run --quiet --release --locked --manifest-path "$tree/tools/kime_check/Cargo.toml" -- \
    "$model" "$work/questions" "$work/scores" "$tolerance"
