"""Compares Lode's GGUF files with llama.cpp's of the same weights, tensor by tensor: see tests/bench/quantise."""

import sys
import tempfile
from pathlib import Path

import llama_cpp
from gguf import GGUFReader
from server import Server

TESTS = Path(__file__).resolve().parents[1]
MODELS = ["models/lode-demo", "fixtures/arch/mixtral", "fixtures/arch/gemma3"]


def tensors(path):
    return {tensor.name: (tensor.tensor_type.name, tensor.data.tobytes()) for tensor in GGUFReader(path).tensors}


lode, libraries, *types = sys.argv[1:]
llama = llama_cpp.load(libraries)
print("| model | type | tensors | with another type | with other bytes |\n| --- | --- | --: | --: | --: |")
with tempfile.TemporaryDirectory(prefix="lode-bench-") as scratch, Server(lode) as server:
    scratch = Path(scratch)
    for model in MODELS:
        def made(name):
            server.run("create", "bench/model", TESTS / model, "--quantize", name)
            server.run("pull", "bench/model", "--to", scratch / model / name)
            return scratch / model / name / f"model-{name}.gguf"

        floats = made("F32")
        for name in types or [name for name in llama_cpp.TYPES if name != "F16"]:
            ours, out = tensors(made(name)), scratch / "theirs.gguf"
            llama_cpp.quantise(llama, floats, out, name, 1, keep=True)
            theirs = tensors(out)
            assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
            types_differ = sum(ours[tensor][0] != theirs[tensor][0] for tensor in ours)
            bytes_differ = sum(ours[tensor][1] != theirs[tensor][1] for tensor in ours)
            print(f"| {Path(model).name} | {name} | {len(ours)} | {types_differ} | {bytes_differ} |", flush=True)
