#!/usr/bin/env bash
# Makes the golden digests anew: the hash of every step of the reference checkpoints and the example model.
# Only after a change of the numeric contract that is meant, and written down in docs/numerics.md.
#
#     tests/golden/update.sh RANKPLAN
set -euo pipefail
rankplan=$(realpath "$1")
cd "$(dirname "$0")/../.."
for folder in tests/data/oracles/*/ examples/models/apt-bert-tiny/; do
    [ -f "$folder/cases.safetensors" ] || continue
    "$rankplan" digest "$folder" --cases "$folder/cases.safetensors" \
        >"tests/golden/digest-$(basename "$folder").txt"
    hash=$("$rankplan" digest "$folder" --cases "$folder/cases.safetensors" --precision int8 |
        sed -n 's/^whole //p')
    echo "$(basename "$folder") int8 $hash"
    for precision in fp32 int8; do
        hash=$("$rankplan" digest "$folder" --cases "$folder/cases.safetensors" --no-prune --precision $precision |
            sed -n 's/^whole //p')
        echo "$(basename "$folder") $precision $hash" >&3
    done
done >tests/golden/int8.txt 3>tests/golden/no-prune.txt
