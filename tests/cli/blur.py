#!/usr/bin/env python3
"""Makes a dump look like another implementation's: every value a little off, more from step to step, and
no hashes: blur.py FOLDER"""
import json
import struct
import sys

folder = sys.argv[1]
index = json.load(open(folder + "/index.json"))
for i, step in enumerate(index["steps"]):
    path = folder + "/" + step["file"]
    data = open(path, "rb").read()
    start = 10 + struct.unpack("<H", data[8:10])[0]
    values = struct.unpack("<%df" % ((len(data) - start) // 4), data[start:])
    off = 5e-7 * 1.5 ** i
    values = [v * (1 + off if k % 2 else 1 - off) for k, v in enumerate(values)]
    open(path, "wb").write(data[:start] + struct.pack("<%df" % len(values), *values))
    step["xxh3"] = None
json.dump(index, open(folder + "/index.json", "w"))
