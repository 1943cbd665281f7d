"""Compares one thread of each block quantiser: see tests/bench/quantise."""

import array
import ctypes
import glob
import random
import subprocess
import sys
import tempfile
import time

TYPES = {"Q8_0": 8, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q2_K": 10, "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14,
         "IQ4_NL": 20, "IQ4_XS": 23}
program, venv = sys.argv[1:]
random.seed(4)
values = array.array("f", (random.gauss(0, 0.02) for _ in range(1 << 20)))

with tempfile.NamedTemporaryFile() as file:
    values.tofile(file)
    file.flush()
    lines = subprocess.check_output([program, file.name, *TYPES], text=True).splitlines()
ours = {name: float(rate) for name, rate in (line.split() for line in lines)}

ggml = ctypes.CDLL(glob.glob(f"{venv}/lib/python3*/site-packages/xllamacpp/xllamacpp.abi3.so")[0])
quantise = ggml.ggml_quantize_chunk
quantise.restype = ctypes.c_size_t
quantise.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_int64] * 3 + [ctypes.c_void_p]
source = (ctypes.c_float * len(values)).from_buffer(values)
out = ctypes.create_string_buffer(4 * len(values))

print("| type | lode | ggml | ratio |\n| --- | --: | --: | --: |")
for name, number in TYPES.items():
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        quantise(number, source, out, 0, len(values) // 4096, 4096, None)
        best = min(best, time.perf_counter() - start)
    theirs = len(values) / best / 1e6
    print(f"| {name} | {ours[name]:.0f} | {theirs:.1f} | {ours[name] / theirs:.1f} |")
