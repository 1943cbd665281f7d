"""A whole model from F16 to blocks, by Lode and by llama.cpp: see tests/bench/quantise."""

import ctypes
import glob
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from server import Server

# The numbers of llama.cpp's llama_ftype.
TYPES = {"F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K_S": 11, "Q3_K_M": 12, "Q3_K_L": 13,
         "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_S": 16, "Q5_K_M": 17, "Q6_K": 18}
ROUNDS = 3
WIDTH, INNER, LAYERS, HEADS, KV_HEADS, VOCAB = 2048, 5632, 6, 32, 8, 4096
DEMO = Path(__file__).resolve().parents[1] / "models/lode-demo"


class Parameters(ctypes.Structure):
    """llama_model_quantize_params: only how it begins matters here."""

    _fields_ = [("nthread", ctypes.c_int32), ("ftype", ctypes.c_int32), ("rest", ctypes.c_uint8 * 248)]


def load(folder):
    for name in ["libggml-base.so", *(Path(path).name for path in glob.glob(f"{folder}/libggml.v*.so"))]:
        ctypes.CDLL(f"{folder}/{name}", mode=ctypes.RTLD_GLOBAL)
    llama = ctypes.CDLL(glob.glob(f"{folder}/libllama.v*.so")[0], mode=ctypes.RTLD_GLOBAL)
    llama.llama_model_quantize_default_params.restype = Parameters
    llama.llama_model_quantize.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(Parameters)]
    llama.llama_model_quantize.restype = ctypes.c_uint32
    return llama


def checkpoint(folder):
    """Random weights in the shape of a llama, with the demo model's vocabulary."""
    folder.mkdir()
    config = json.loads((DEMO / "config.json").read_text())
    config |= {"hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
               "num_key_value_heads": KV_HEADS, "head_dim": WIDTH // HEADS}
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / name, folder)
    narrow = WIDTH // HEADS * KV_HEADS
    shapes = {"model.embed_tokens": (VOCAB, WIDTH), "model.norm": (WIDTH,)}
    for layer in range(LAYERS):
        block = f"model.layers.{layer}"
        shapes |= {f"{block}.input_layernorm": (WIDTH,), f"{block}.post_attention_layernorm": (WIDTH,),
                   f"{block}.self_attn.q_proj": (WIDTH, WIDTH), f"{block}.self_attn.k_proj": (narrow, WIDTH),
                   f"{block}.self_attn.v_proj": (narrow, WIDTH), f"{block}.self_attn.o_proj": (WIDTH, WIDTH),
                   f"{block}.mlp.gate_proj": (INNER, WIDTH), f"{block}.mlp.up_proj": (INNER, WIDTH),
                   f"{block}.mlp.down_proj": (WIDTH, INNER)}
    noise, table, at = np.random.default_rng(4), {}, 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        table[name + ".weight"] = {"dtype": "F16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(table).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in shapes.values():
            file.write((noise.standard_normal(shape, dtype=np.float32) * 0.02).astype(np.float16).tobytes())


def theirs(llama, source, out, name, threads):
    """Seconds of llama.cpp's whole quantiser, which talks much."""
    parameters = llama.llama_model_quantize_default_params()
    parameters.nthread, parameters.ftype = threads, TYPES[name]
    talk, silent = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 2)
    start = time.perf_counter()
    failed = llama.llama_model_quantize(str(source).encode(), str(out).encode(), ctypes.byref(parameters))
    took = time.perf_counter() - start
    os.dup2(talk, 2)
    os.close(talk), os.close(silent)
    if failed:
        raise SystemExit("llama.cpp did not quantise it")
    out.unlink()
    return took


lode, libraries, *types = sys.argv[1:]
llama, cores = load(libraries), len(os.sched_getaffinity(0))
with tempfile.TemporaryDirectory(prefix="lode-bench-") as scratch:
    scratch = Path(scratch)
    checkpoint(scratch / "checkpoint")
    with Server(lode) as server:
        server.run("create", "bench/f16", scratch / "checkpoint", "--quantize", "F16")
        server.run("pull", "bench/f16", "--to", scratch / "pulled")
    shutil.rmtree(scratch / "checkpoint")
    source = next((scratch / "pulled").glob("*.gguf"))
    print(f"{source.stat().st_size / 1e6:.0f} MB of F16, {cores} threads")
    print("| type | llama.cpp | lode create | lode, nothing sent | times |\n| --- | --: | --: | --: | --: |")
    for name in types or ["Q8_0", "Q4_K_M"]:
        rows = []
        for _ in range(ROUNDS):
            with Server(lode) as server:
                create = ["create", "bench/model", source, "--quantize", name]
                rows.append((theirs(llama, source, scratch / "out.gguf", name, cores), server.run(*create), server.run(*create)))
        llama_cpp, whole, again = map(min, zip(*rows))
        print(f"| {name} | {llama_cpp:.2f} s | {whole:.2f} s | {again:.2f} s | {llama_cpp / whole:.2f} |", flush=True)
