#!/usr/bin/env python3
"""Holds a dump to what it says of itself: check_dump.py FOLDER DIGEST

Every step of the digest is there under its name, with its hash; every file has the shape that the index
says, and the statistics are those of its values.
"""
import json
import math
import os
import struct
import sys

folder, digest = sys.argv[1:]
index = json.load(open(folder + "/index.json"))
lines = [line.split() for line in open(digest).read().splitlines()]
steps = index["steps"]
assert [(str(s["step"]), s["tensor"], s["op"], "%dx%d" % tuple(s["shape"]), s["xxh3"]) +
        ((s["tokens"],) if "tokens" in s else ()) for s in steps] == \
    [tuple(line) for line in lines if line[0] != "whole"], "the index is not the digest"
assert sorted(os.listdir(folder)) == sorted([s["file"] for s in steps] + ["index.json"]), os.listdir(folder)
assert index["plan"] == [s["tensor"] for s in steps]
rows = {"tokens": len(index["ids"]), "seqs": len(index["cu"]) - 1, "markers": len(index.get("markers", []))}
for s in steps:
    assert s["shape"][0] == rows[s["rows"]] and (s["rows"] != "tokens" or "tokens" not in s), s
made = set()
for s in steps:
    assert set(s["inputs"]) <= made, s
    made.add(s["tensor"])
    data = open(folder + "/" + s["file"], "rb").read()
    assert data[:8] == b"\x93NUMPY\x01\x00"
    (length,) = struct.unpack("<H", data[8:10])
    assert (10 + length) % 64 == 0 and data[9 + length] == ord("\n")
    head = eval(data[10:10 + length].decode(), {"__builtins__": {}})
    assert head == {"descr": "<f4", "fortran_order": False, "shape": tuple(s["shape"])}, head
    rows, width = s["shape"]
    values = struct.unpack("<%df" % (rows * width), data[10 + length:])
    finite = [v for v in values if math.isfinite(v)]
    mean = math.fsum(finite) / len(finite)
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in finite) / len(finite))
    assert (s["min"], s["max"]) == (min(finite), max(finite)), s
    assert s["absmax"] == max(abs(v) for v in finite), s
    assert abs(s["mean"] - mean) <= 1e-12 * s["absmax"] and abs(s["std"] - std) <= 1e-12 * s["absmax"], s
    assert s["nan"] == sum(map(math.isnan, values)) and s["inf"] == sum(map(math.isinf, values)), s
print("%d steps" % len(steps))
