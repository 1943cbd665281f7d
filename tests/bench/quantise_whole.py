"""A whole model from F16 to blocks, by Lode and by llama.cpp: see tests/bench/quantise."""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import llama_cpp
import numpy as np
from server import Server

ROUNDS = 3
WIDTH, INNER, LAYERS, HEADS, KV_HEADS, VOCAB = 2048, 5632, 6, 32, 8, 4096
DEMO = Path(__file__).resolve().parents[1] / "models/lode-demo"


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


lode, libraries, *types = sys.argv[1:]
llama, cores = llama_cpp.load(libraries), len(os.sched_getaffinity(0))
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
                rows.append((llama_cpp.quantise(llama, source, scratch / "out.gguf", name, cores), server.run(*create), server.run(*create)))
        theirs, whole, again = map(min, zip(*rows))
        print(f"| {name} | {theirs:.2f} s | {whole:.2f} s | {again:.2f} s | {theirs / whole:.2f} |", flush=True)
