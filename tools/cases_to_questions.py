"""Lines for `rankplan score` from a cases.safetensors: cases_to_questions.py CASES > questions.jsonl

Needs ids, cu, markers, mcu and qtype as I32.
"""
import json
import struct
import sys


def read(path):
    data = open(path, "rb").read()
    (n,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + n])
    tensors = {}
    for name in ("ids", "cu", "markers", "mcu", "qtype"):
        entry = header[name]
        begin, end = (8 + n + at for at in entry["data_offsets"])
        if entry["dtype"] != "I32":
            sys.exit(f"{path}: {name} is {entry['dtype']}, expected I32")
        tensors[name] = struct.unpack(f"<{(end - begin) // 4}i", data[begin:end])
    return tensors


def main():
    t = read(sys.argv[1])
    for s, qtype in enumerate(t["qtype"]):
        ids = t["ids"][t["cu"][s] : t["cu"][s + 1]]
        markers = t["markers"][t["mcu"][s] : t["mcu"][s + 1]]
        print(json.dumps({"type": qtype, "ids": ids, "markers": markers}))


main()
