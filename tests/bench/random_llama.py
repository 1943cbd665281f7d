"""Writes Llama checkpoints with random weights and the demo model's vocabulary, for measurements."""

import json
import shutil
from pathlib import Path

import numpy as np

DEMO = Path(__file__).resolve().parents[1] / "models/lode-demo"
# Width, inner width, layers, heads, KV heads, vocabulary. `1b` is Llama 3.2 1B, which has a tied embedding.
SHAPES = {"280m": (2048, 5632, 6, 32, 8, 4096), "1b": (2048, 8192, 16, 32, 8, 128256)}


def checkpoint(folder, name):
    """Writes an F16 checkpoint, one tensor at a time."""
    width, inner, layers, heads, kv_heads, vocabulary = SHAPES[name]
    folder.mkdir()
    config = json.loads((DEMO / "config.json").read_text())
    config |= {"hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
               "num_key_value_heads": kv_heads, "head_dim": width // heads, "vocab_size": vocabulary}
    (folder / "config.json").write_text(json.dumps(config))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / file, folder)
    narrow = width // heads * kv_heads
    shapes = {"model.embed_tokens": (vocabulary, width), "model.norm": (width,)}
    for layer in range(layers):
        block = f"model.layers.{layer}"
        shapes |= {f"{block}.input_layernorm": (width,), f"{block}.post_attention_layernorm": (width,),
                   f"{block}.self_attn.q_proj": (width, width), f"{block}.self_attn.k_proj": (narrow, width),
                   f"{block}.self_attn.v_proj": (narrow, width), f"{block}.self_attn.o_proj": (width, width),
                   f"{block}.mlp.gate_proj": (inner, width), f"{block}.mlp.up_proj": (inner, width),
                   f"{block}.mlp.down_proj": (width, inner)}
    noise, table, at = np.random.default_rng(4), {}, 0
    for tensor, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        table[tensor + ".weight"] = {"dtype": "F16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(table).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in shapes.values():
            file.write((noise.standard_normal(shape, dtype=np.float32) * 0.02).astype(np.float16).tobytes())
