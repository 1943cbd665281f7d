"""Compares a GGUF file, read by the gguf package, with a safetensors file of the same tensors decoded to float32.

usage: same_tensors.py MODEL.gguf TENSORS.safetensors
"""

import json
import struct
import sys

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize


def read_safetensors(path):
    data = open(path, "rb").read()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    for name, entry in header.items():
        assert entry["dtype"] == "F32", (name, entry)
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        yield name, np.frombuffer(data[begin:end], "<f4").reshape(entry["shape"])


theirs = {tensor.name: tensor for tensor in GGUFReader(sys.argv[1]).tensors}
ours = dict(read_safetensors(sys.argv[2]))
assert ours.keys() == theirs.keys(), (ours.keys(), theirs.keys())
for name, values in ours.items():
    tensor = theirs[name]
    assert list(values.shape) == [int(dim) for dim in reversed(tensor.shape)], (name, values.shape, tensor.shape)
    expect = dequantize(tensor.data, tensor.tensor_type).reshape(values.shape)
    assert np.array_equal(values, expect.astype(np.float32)), (name, tensor.tensor_type.name, np.abs(values - expect).max())
print(len(ours), "tensors are equal")
