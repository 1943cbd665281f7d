"""Compares Lode's engine with llama.cpp on the same GGUF files, threads and requests: see tests/bench/engine."""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import random_llama
from server import Server

HERE = Path(__file__).resolve().parent
DEMO = HERE.parent / "models/lode-demo"
CONTEXT, SEQUENCES = 1024, 16
# Words of a prompt and generated tokens, for one client and for several, and the number of requests per
# round. A small model must generate more tokens for meaningful times.
LENGTHS, LONGER = ((96, 48), (32, 32), 1), {"demo": ((96, 512), (32, 256), 5)}
MODELS = ["demo:Q4_K_M", "demo:BF16", "1b:Q4_K_M", "1b:Q8_0", "1b:BF16"]
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    return OPENER.open(request, timeout=600)


def streamed(url, body, prefix=b""):
    """Returns the last record of a stream, and the seconds to its first record."""
    begin, first, last = time.perf_counter(), None, b""
    with post(url, body) as response:
        for line in response:
            if line.startswith(prefix) and line.strip():
                first = first or time.perf_counter() - begin
                last = line
    return json.loads(last[len(prefix) :]), first


def memory(process):
    """Returns the anonymous memory of a process and its descendants, and all their resident memory, in bytes."""
    children = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    own, all_of_it, left = 0, 0, [process]
    while left:
        at = left.pop()
        left += children.get(at, [])
        try:
            status = dict(line.split(":", 1) for line in Path(f"/proc/{at}/status").read_text().splitlines())
        except OSError:
            continue
        kib = lambda key: int(status.get(key, "0 kB").split()[0]) * 1024
        own += kib("RssAnon")
        all_of_it += kib("VmRSS")
    return own, all_of_it


class Generation:
    def __init__(self, prompt, prompt_seconds, tokens, seconds, first):
        self.prompt, self.prompt_seconds, self.tokens, self.seconds, self.first = prompt, prompt_seconds, tokens, seconds, first


class Lode:
    """A server with the model; its worker loads the model on the first request."""

    name = "lode"

    def __init__(self, server):
        self.server = server
        self.address = server.environment["LODE_HOST"]

    def start(self):
        pass

    def generate(self, prompt, count):
        options = {"temperature": 0, "num_predict": count, "num_ctx": CONTEXT}
        body = {"model": "bench/model", "prompt": prompt, "raw": True, "options": options}
        last, first = streamed(self.address + "/api/generate", body)
        seconds = lambda key: last[key] / 1e9
        return Generation(last["prompt_eval_count"], seconds("prompt_eval_duration"), last["eval_count"], seconds("eval_duration"), first)

    def process(self):
        return self.server.process.pid

    def stop(self):
        post(self.address + "/api/generate", {"model": "bench/model", "keep_alive": 0}).close()
        while json.load(OPENER.open(self.address + "/api/ps"))["models"]:
            time.sleep(0.05)


class Llama:
    name = "llama.cpp"

    def __init__(self, file, threads):
        self.command = [sys.executable, HERE / "llama_server.py", file, str(threads), str(SEQUENCES), str(CONTEXT)]

    def start(self):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.child = subprocess.Popen(self.command, **pipes, text=True)
        self.address = self.child.stdout.readline().strip()
        if not self.address:
            raise SystemExit("llama.cpp failed to start")

    def generate(self, prompt, count):
        body = {"prompt": prompt, "n_predict": count, "temperature": 0, "cache_prompt": False, "stream": True}
        last, first = streamed(self.address + "/completion", body, b"data: ")
        timings = last["timings"]
        return Generation(timings["prompt_n"], timings["prompt_ms"] / 1e3, timings["predicted_n"], timings["predicted_ms"] / 1e3, first)

    def process(self):
        return self.child.pid

    def stop(self):
        self.child.stdin.close()
        self.child.wait()


def together(engine, clients, salt, words, count):
    """Sends one request per client concurrently, all different. Returns the responses and the elapsed time."""
    text = (DEMO / "heldout.txt").read_text().split()
    generations = [None] * clients

    def ask(at):
        start = (salt * clients + at) * 61 % (len(text) - words)
        generations[at] = engine.generate(" ".join(text[start : start + words]), count)

    threads = [threading.Thread(target=ask, args=(at,)) for at in range(clients)]
    begin = time.perf_counter()
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    took = time.perf_counter() - begin
    if None in generations:
        raise SystemExit(f"{engine.name} did not respond")
    return generations, took


def measure(engines, label, file, rounds, clients, memory_rate):
    alone, several, times = LONGER.get(label.split()[0], LENGTHS)
    samples = {engine.name: {} for engine in engines}
    for turn in range(rounds):
        for engine in engines[:: 1 if turn % 2 else -1]:
            taken = samples[engine.name]
            take = lambda key, value: taken.setdefault(key, []).append(value)
            begin = time.perf_counter()
            engine.start()
            engine.generate("One word", 1)
            take("cold", time.perf_counter() - begin)
            # Measure only after this second request, because caches may be cold during the first.
            engine.generate("Another word", 1)
            take("warm", statistics.median(engine.generate(f"A word, number {n}", 1).first for n in range(5)))
            for count, time_of_it in ((count, n) for count in clients for n in range(times)):
                lengths = alone if count == 1 else several
                generations, took = together(engine, count, turn * times + time_of_it, *lengths)
                total = lambda key: sum(getattr(generation, key) for generation in generations)
                take(f"prompt {count}", total("prompt") / total("prompt_seconds"))
                take(f"generation {count}", (total("tokens") - count) / max(total("seconds"), 1e-9))
                take(f"whole {count}", total("tokens") / took)
                take(f"first {count}", statistics.median(generation.first for generation in generations))
            own, all_of_it = memory(engine.process())
            take("own", own)
            take("all", all_of_it)
            engine.stop()

    def row(what, key, form, better=max):
        ours, theirs = (statistics.median(samples[engine.name][key]) for engine in engines)
        ratio = ours / theirs if better is max else theirs / ours
        print(f"| {label} | {what} | {form(ours)} | {form(theirs)} | {ratio:.2f} |", flush=True)

    size = file.stat().st_size
    for count in clients:
        if count == 1:
            row("prompt, tokens/s", "prompt 1", "{:.1f}".format)
            row("generation, tokens/s", "generation 1", "{:.1f}".format)
            if size > 256e6:  # smaller files fit into the processor's caches
                row("share of memory bandwidth in generation", "generation 1", lambda v: f"{v * size / memory_rate:.0%}")
        else:
            row(f"{count} clients, generated tokens/s of all", f"whole {count}", "{:.1f}".format)
            row(f"{count} clients, time to the first token, ms", f"first {count}", lambda v: f"{v * 1e3:.0f}", min)
    row("time to the first token, model loaded, ms", "warm", lambda v: f"{v * 1e3:.1f}", min)
    row("time to the first token, with start and loading, s", "cold", "{:.2f}".format, min)
    reading = statistics.median(read_once(file) for _ in range(3))
    row("the same, relative to reading the file once from memory", "cold", lambda v: f"{v / reading:.1f}", min)
    row("anonymous memory, MB", "own", lambda v: f"{v / 1e6:.0f}", min)
    row("memory with the mapped file, MB", "all", lambda v: f"{v / 1e6:.0f}", min)


def read_once(file):
    """Returns the seconds to read a file from the page cache."""
    begin = time.perf_counter()
    with open(file, "rb", buffering=0) as opened:
        buffer = bytearray(1 << 22)
        while opened.readinto(buffer):
            pass
    return time.perf_counter() - begin


def bandwidth(threads):
    """Returns the total memory read rate of several processes in bytes per second. Each reads its own GiB."""
    code = ("import time,sys\nimport numpy as np\na=np.ones(1<<27)\nsys.stdin.readline()\nb=time.perf_counter()\n"
            "for _ in range(3): a.max()\nprint(3*a.nbytes/(time.perf_counter()-b))")
    readers = [subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
               for _ in range(threads)]
    time.sleep(2)
    for reader in readers:
        reader.stdin.write("go\n"), reader.stdin.flush()
    return sum(float(reader.communicate()[0]) for reader in readers)


parser = argparse.ArgumentParser()
parser.add_argument("lode")
parser.add_argument("--rounds", type=int)
parser.add_argument("--clients")
parser.add_argument("--quick", action="store_true")
parser.add_argument("models", nargs="*")
arguments = parser.parse_intermixed_args()
rounds = arguments.rounds or (1 if arguments.quick else 3)
threads = len(os.sched_getaffinity(0))
counts = [int(count) for count in (arguments.clients or ("1,4" if arguments.quick else "1,4,16")).split(",")]
models = arguments.models or (["demo:Q4_K_M", "1b:Q4_K_M"] if arguments.quick else MODELS)
with tempfile.TemporaryDirectory(prefix="lode-bench-", dir=os.environ.get("LODE_BENCH_FOLDER")) as scratch:
    scratch = Path(scratch)
    rate = bandwidth(threads)
    print(f"{threads} threads, memory read at {rate / 1e9:.1f} GB/s, medians of {rounds}")
    print("| model | figure | lode | llama.cpp | lode relative to llama.cpp |\n| --- | --- | --: | --: | --: |", flush=True)
    sources = {"demo": DEMO}
    environment = {"LODE_NUM_PARALLEL": str(SEQUENCES), "LODE_CONTEXT_LENGTH": str(CONTEXT)}
    for model in models:
        shape, kind = model.split(":")
        if shape not in sources:
            sources[shape] = scratch / shape
            random_llama.checkpoint(sources[shape], shape)
        with Server(arguments.lode, below=scratch, worker=True, environment=environment) as server:
            server.run("create", "bench/model", sources[shape], "--quantize", kind)
            server.run("pull", "bench/model", "--to", scratch / "pulled")
            file = next((scratch / "pulled").glob("*.gguf"))
            engines = [Lode(server), Llama(str(file), threads)]
            measure(engines, f"{shape} {kind}", file, rounds, counts, rate)
            shutil.rmtree(scratch / "pulled")
