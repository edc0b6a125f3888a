#!/usr/bin/env python3
"""Plants a fault in the checkpoint of a folder, in place: plant.py FOLDER FAULT TENSOR...

    sign TENSOR        the sign of the tensor's first value
    nan TENSOR         its first value is a NaN (bf16, f32)
    heads N TENSOR...  the rows of heads 0 and 1, of N, change places

TENSOR is the end of a name that only one tensor has.
"""
import json
import struct
import sys

folder, fault, *rest = sys.argv[1:]
path = folder + "/model.safetensors"
data = bytearray(open(path, "rb").read())
(length,) = struct.unpack("<Q", data[:8])
header = json.loads(data[8:8 + length])


def find(end):
    (name,) = [n for n in header if n.endswith(end)]
    tensor = header[name]
    start, stop = (8 + length + x for x in tensor["data_offsets"])
    return tensor, start, stop


if fault == "heads":
    for end in rest[1:]:
        tensor, start, stop = find(end)
        size = (stop - start) // int(rest[0])
        first, second = data[start:start + size], data[start + size:start + 2 * size]
        data[start:start + 2 * size] = second + first
else:
    tensor, start, stop = find(rest[0])
    size = {"F32": 4, "BF16": 2, "F16": 2}[tensor["dtype"]]
    if fault == "sign":
        data[start + size - 1] ^= 0x80
    elif fault == "nan" and tensor["dtype"] == "BF16":
        data[start:start + 2] = b"\xc0\x7f"
    elif fault == "nan" and tensor["dtype"] == "F32":
        data[start:start + 4] = b"\x00\x00\xc0\x7f"
    else:
        sys.exit("what is " + fault)
open(path, "wb").write(data)
