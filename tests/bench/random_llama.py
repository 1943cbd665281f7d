"""Writes checkpoints with random weights and the demo model's vocabulary, for measurements."""

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np

DEMO = Path(__file__).resolve().parents[1] / "models/lode-demo"
CONTEXT = 16384
# The first tokens of the vocabulary are special.
EMBEDDING, SPECIAL_TOKENS = "model.embed_tokens", 3


class Shape(NamedTuple):
    width: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    # Number of experts, and how many of them compute each token. `inner` is the width of one expert.
    experts: int = 0
    used: int = 0


# All have a tied embedding. `1b` is Llama 3.2 1B. `moe` is Qwen3-MoE with 670 million parameters, of which each token
# uses 140 million.
SHAPES = {
    "280m": Shape(2048, 5632, 6, 32, 8, 4096),
    "620m": Shape(1536, 6144, 18, 24, 8, 4096),
    "1b": Shape(2048, 8192, 16, 32, 8, 128256),
    "moe": Shape(1024, 512, 12, 16, 4, 32768, experts=32, used=4),
}


def checkpoint(folder, name):
    """Writes an F16 checkpoint, one tensor at a time."""
    shape = SHAPES[name]
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config(shape)))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / file, folder)
    tensors, table, at = tensor_shapes(shape), {}, 0
    for tensor, dimensions in tensors.items():
        size = 2 * int(np.prod(dimensions))
        table[tensor + ".weight"] = {"dtype": "F16", "shape": dimensions, "data_offsets": [at, at + size]}
        at += size
    text, noise = json.dumps(table).encode(), np.random.default_rng(4)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor, dimensions in tensors.items():
            mean = 1 if len(dimensions) == 1 else 0  # only norms have one dimension
            values = noise.standard_normal(dimensions, dtype=np.float32) * 0.02 + mean
            if tensor == EMBEDDING:
                values[:SPECIAL_TOKENS] = 0  # their logits are never the highest, so no response ends early
            file.write(values.astype(np.float16).tobytes())


def config(shape):
    values = json.loads((DEMO / "config.json").read_text())
    values |= {"hidden_size": shape.width, "intermediate_size": shape.inner, "num_hidden_layers": shape.layers,
               "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
               "head_dim": shape.width // shape.heads, "vocab_size": shape.vocabulary,
               "max_position_embeddings": CONTEXT}
    if shape.experts:
        values |= {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": shape.experts,
                   "num_experts_per_tok": shape.used, "moe_intermediate_size": shape.inner, "norm_topk_prob": True,
                   "decoder_sparse_step": 1, "mlp_only_layers": []}
    return values


def tensor_shapes(shape):
    tensors = {EMBEDDING: (shape.vocabulary, shape.width), "model.norm": (shape.width,)}
    for layer in range(shape.layers):
        tensors |= {f"model.layers.{layer}.{name}": dimensions for name, dimensions in layer_shapes(shape).items()}
    return tensors


def layer_shapes(shape):
    width, head = shape.width, shape.width // shape.heads
    narrow = head * shape.kv_heads
    tensors = {"input_layernorm": (width,), "post_attention_layernorm": (width,), "self_attn.q_proj": (width, width),
               "self_attn.k_proj": (narrow, width), "self_attn.v_proj": (narrow, width),
               "self_attn.o_proj": (width, width)}
    if shape.experts:
        tensors |= {"self_attn.q_norm": (head,), "self_attn.k_norm": (head,), "mlp.gate": (shape.experts, width)}
    blocks = [f"mlp.experts.{expert}" for expert in range(shape.experts)] or ["mlp"]
    for block in blocks:
        tensors |= {f"{block}.gate_proj": (shape.inner, width), f"{block}.up_proj": (shape.inner, width),
                    f"{block}.down_proj": (width, shape.inner)}
    return tensors
