"""Compares Lode and llama.cpp quantising a whole F16 model: see tests/bench/quantise."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import llama_cpp
import random_llama
from server import Server

ROUNDS = 3

lode, libraries, *types = sys.argv[1:]
llama, cores = llama_cpp.load(libraries), len(os.sched_getaffinity(0))
with tempfile.TemporaryDirectory(prefix="lode-bench-") as scratch:
    scratch = Path(scratch)
    random_llama.checkpoint(scratch / "checkpoint", "280m")
    with Server(lode) as server:
        server.run("create", "bench/f16", scratch / "checkpoint", "--quantize", "F16")
        server.run("pull", "bench/f16", "--to", scratch / "pulled")
    shutil.rmtree(scratch / "checkpoint")
    source = next((scratch / "pulled").glob("*.gguf"))
    print(f"{source.stat().st_size / 1e6:.0f} MB of F16, {cores} threads")
    print("| type | llama.cpp | lode create | lode, nothing sent | ratio |\n| --- | --: | --: | --: | --: |")
    for name in types or ["Q8_0", "Q4_K_M"]:
        rows = []
        for _ in range(ROUNDS):
            with Server(lode) as server:
                create = ["create", "bench/model", source, "--quantize", name]
                rows.append((llama_cpp.quantise(llama, source, scratch / "out.gguf", name, cores), server.run(*create), server.run(*create)))
        theirs, whole, again = map(min, zip(*rows))
        print(f"| {name} | {theirs:.2f} s | {whole:.2f} s | {again:.2f} s | {theirs / whole:.2f} |", flush=True)
