"""The parts of tests/gpu/run that use whole models, through a server on each device."""

import contextlib
import json
import random
import shutil
import struct
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import server

TESTS = Path(__file__).resolve().parent.parent
DEMO = TESTS / "models/lode-demo"
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
# Where the two largest logits are nearer than this, another order of additions may change the id.
MARGIN = 1e-3
# The end of a sequence in the vocabulary of the fixtures, which the reference does not stop at.
END = 2
# Kernels are compiled at the first start.
START_SECONDS = 180
# Width, feed-forward width, layers, heads, heads of keys and values, vocabulary: Llama 3.2 1B and Llama 3.1 8B.
SHAPES = {"1b": (2048, 8192, 16, 32, 8, 128256), "8b": (4096, 14336, 32, 32, 8, 128256)}
SHORT, GENERATED = 64, 256
# The first tokens of the demo model's vocabulary are special.
EMBEDDING, SPECIAL_TOKENS = "model.embed_tokens", 3


def synthetic(text):
    """The shape and the type of `SHAPE:TYPE`."""
    shape, _, kind = text.partition(":")
    if shape not in SHAPES or not kind:
        raise ValueError(f"`{text}`: expected SHAPE:TYPE, where SHAPE is one of {', '.join(SHAPES)}")
    return shape, kind


def exact_level():
    """The instruction level whose products do not round the activations of BF16 weights."""
    info = Path("/proc/cpuinfo")
    flags = info.read_text().split() if info.exists() else []
    return "avx512-vnni" if {"avx512_bf16", "avx512_vnni"} <= set(flags) else "auto"


def serve(args, environment, device, scratch, **more):
    variables = {**environment, "LODE_DEVICE": device, **more}
    return server.Server(args.lode.resolve(), scratch, True, variables, START_SECONDS)


def post(at, path, body):
    request = urllib.request.Request(at.environment["LODE_HOST"] + path, json.dumps(body).encode(),
                                     {"content-type": "application/json"})
    try:
        with OPENER.open(request, timeout=START_SECONDS) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        raise OSError(f"{path} of {body['model']}: status {error.code}: {error.read().decode(errors='replace')}") from error


def generate(at, model, prompt, count, raw=True):
    options = {"temperature": 0, "num_predict": count}
    return post(at, "/api/generate", {"model": model, "prompt": prompt, "raw": raw, "stream": False, "options": options})


def fixtures():
    """Name, files, and the known cases of each small model."""
    for folder in sorted(path for path in (TESTS / "fixtures/arch").iterdir() if path.is_dir()):
        yield f"arch/{folder.name}", folder, json.loads((folder / "expected.json").read_text())["cases"]
    for file in sorted((TESTS / "fixtures/gguf").glob("*.gguf")):
        yield f"gguf/{file.stem}", file, json.loads(file.with_suffix(".expected.json").read_text())["cases"]


def certain(case):
    """The known ids up to the first whose order may change, or that ends the text."""
    known = case["greedy"]
    margins = case.get("greedy_margin", [1] * len(known))
    stops = (at for at, (token, margin) in enumerate(zip(known, margins)) if token == END or margin <= MARGIN)
    return known[:next(stops, len(known))]


def difference(found, prompt, known):
    """Why the ids of a response are not the known ones; `None` if they are."""
    if found[:len(prompt)] != prompt:
        return f"the prompt has the ids {found[:len(prompt)]}, expected {prompt}"
    generated = found[len(prompt):][:len(known)]
    return None if generated == known else f"generated {generated}, expected {known}"


def compare(args, environment):
    """Compares the ids of both devices with each other and with the reference. A CPU rounds activations for packed
    weights, so that GGUF files are compared with the reference only."""
    problems, cases, count = [], 0, 0
    with tempfile.TemporaryDirectory(prefix="lode-gpu-") as scratch, contextlib.ExitStack() as servers:
        exact = {"LODE_KV_CACHE_TYPE": "f32", "LODE_CPU": exact_level()}
        gpu = servers.enter_context(serve(args, environment, args.device, scratch, **exact))
        cpu = servers.enter_context(serve(args, environment, "cpu", scratch, **exact))
        for name, files, known in fixtures():
            is_exact = name.startswith("arch/")
            devices = [("gpu", gpu)] + ([("cpu", cpu)] if is_exact else [])
            if not is_exact and args.device == "cpu":
                continue
            count += 1
            for _, device in devices:
                device.run("create", name, files)
            for case in known:
                cases += 1
                wanted = certain(case)
                for device, at in devices:
                    found = generate(at, name, case["prompt"], max(1, len(wanted)))["context"]
                    if problem := difference(found, case["token_ids"], wanted):
                        problems.append(f"{name} on {device}: {problem}")
        for device in (gpu, cpu):
            device.run("create", "demo", DEMO)
        count += 1
        for case in json.loads((DEMO / "expected.json").read_text())["cases"]:
            cases += 1
            ids = [generate(at, "demo", case["user"], 48, raw=False)["context"] for at in (gpu, cpu)]
            if problem := difference(ids[0], case["prompt_ids"], ids[1][len(case["prompt_ids"]):]):
                problems.append(f"demo: {problem} as on the CPU")
    return {"models": count, "cases": cases, "different": len(problems)}, problems


def tensor_shapes(shape):
    width, inner, layers, heads, kv_heads, vocabulary = SHAPES[shape]
    narrow = width // heads * kv_heads
    yield EMBEDDING, (vocabulary, width)
    yield "model.norm", (width,)
    for layer in range(layers):
        for name, dimensions in {
            "input_layernorm": (width,), "post_attention_layernorm": (width,),
            "self_attn.q_proj": (width, width), "self_attn.k_proj": (narrow, width),
            "self_attn.v_proj": (narrow, width), "self_attn.o_proj": (width, width),
            "mlp.gate_proj": (inner, width), "mlp.up_proj": (inner, width), "mlp.down_proj": (width, inner),
        }.items():
            yield f"model.layers.{layer}.{name}", dimensions


def write_checkpoint(folder, shape):
    """Writes a BF16 checkpoint. Its weights repeat one block of random numbers, because Python needs minutes for as many
    random numbers as a model has weights. Returns the number of bytes that a token reads."""
    width, inner, layers, heads, kv_heads, vocabulary = SHAPES[shape]
    folder.mkdir()
    config = json.loads((DEMO / "config.json").read_text())
    config |= {"hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers, "head_dim": width // heads,
               "num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": vocabulary}
    (folder / "config.json").write_text(json.dumps(config))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / file, folder)
    noise = random.Random(4)
    # The upper half of a float is its BF16. A prime number of weights, so that no two rows are equal.
    block = b"".join(struct.pack("<f", noise.gauss(0, 0.02))[2:] for _ in range(1_000_003))
    one = struct.pack("<f", 1.0)[2:]
    table, at = {}, 0
    for name, dimensions in tensor_shapes(shape):
        size = 2 * dimensions[0] * (dimensions[1] if len(dimensions) == 2 else 1)
        table[f"{name}.weight"] = {"dtype": "BF16", "shape": dimensions, "data_offsets": [at, at + size]}
        at += size
    header = json.dumps(table).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for name, dimensions in tensor_shapes(shape):
            first, last = table[f"{name}.weight"]["data_offsets"]
            if len(dimensions) == 1:
                file.write(one * ((last - first) // 2))
                continue
            # The logits of these tokens are zero, so that no response ends early.
            special = 2 * SPECIAL_TOKENS * width if name == EMBEDDING else 0
            file.write(bytes(special))
            for begin in range(special, last - first, len(block)):
                file.write(block[:last - first - begin])
    return at


def speed_of(at, model):
    """Tokens per second after a short prompt. The first request loads the model and compiles its kernels."""
    text = (DEMO / "heldout.txt").read_text().split()
    generate(at, model, " ".join(text[:SHORT]), 4)
    done = generate(at, model, " ".join(text[SHORT:2 * SHORT]), GENERATED)
    long = generate(at, model, " ".join(text[2 * SHORT:2 * SHORT + 800]), 1)
    return {
        "tokens_per_second": (done["eval_count"] - 1) / done["eval_duration"] * 1e9,
        "prompt_tokens_per_second": long["prompt_eval_count"] / long["prompt_eval_duration"] * 1e9,
    }


def weight_bytes(at, model):
    """The size of a stored model, nearly all of which a token reads: the models here have one matrix for the embedding and the head."""
    with OPENER.open(at.environment["LODE_HOST"] + "/api/tags") as response:
        tags = json.load(response)["models"]
    return next((tag["size"] for tag in tags if tag["name"].split(":")[0] == model), None)


def measure(args, environment, end):
    """The speed of the demo model and of models with random weights. Stops early if the time is over."""
    measured, problems = [], []
    alone = {"LODE_CONTEXT_LENGTH": "2048", "LODE_NUM_PARALLEL": "1"}
    with tempfile.TemporaryDirectory(prefix="lode-gpu-") as scratch:
        with serve(args, environment, args.device, scratch, **alone) as at:
            jobs = [("demo", DEMO, "BF16")]
            for shape, kind in args.speed:
                folder = Path(scratch) / shape
                jobs.append((f"random-{shape}-{kind.lower()}", folder, kind))
            for model, folder, kind in jobs:
                # Writing, importing and loading a model take a minute at most.
                if time.monotonic() + 60 > end:
                    problems.append(f"{model} was not measured: not enough time")
                    continue
                if not folder.exists():
                    write_checkpoint(folder, folder.name)
                quantise = [] if kind == "BF16" else ["--quantize", kind]
                at.run("create", model, folder, *quantise)
                speed = speed_of(at, model)
                measured.append({"model": model, "kind": kind, "weight_bytes": weight_bytes(at, model), **speed})
    return measured, problems
