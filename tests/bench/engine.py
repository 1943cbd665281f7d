"""Lode's engine and llama.cpp on the same GGUF files, threads and requests, in turn: see tests/bench/engine."""

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
PROMPT_WORDS, GENERATED, CONTEXT, SEQUENCES = 96, 48, 1024, 16
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with OPENER.open(request, timeout=600) as answer:
        return json.load(answer)


def memory(process):
    """Bytes that a process and its children hold for themselves, and all that they have resident."""
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


class Lode:
    name = "lode"

    def __init__(self, lode, file):
        environment = {"LODE_NUM_PARALLEL": str(SEQUENCES), "LODE_CONTEXT_LENGTH": str(CONTEXT)}
        self.server = Server(lode, worker=True, environment=environment)
        self.server.run("create", "bench/model", file)

    def generate(self, prompt, count):
        """Tokens and seconds of the prompt, and of the answer."""
        options = {"temperature": 0, "num_predict": count, "num_ctx": CONTEXT}
        body = {"model": "bench/model", "prompt": prompt, "raw": True, "stream": False, "options": options}
        answer = post(self.server.environment["LODE_HOST"] + "/api/generate", body)
        seconds = lambda key: answer[key] / 1e9
        return (answer["prompt_eval_count"], seconds("prompt_eval_duration"), answer["eval_count"], seconds("eval_duration"))

    def process(self):
        return self.server.process.pid

    def stop(self):
        self.server.__exit__()


class Llama:
    name = "llama.cpp"

    def __init__(self, file, threads):
        command = [sys.executable, HERE / "llama_server.py", file, str(threads), str(SEQUENCES), str(CONTEXT)]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.address = self.child.stdout.readline().strip()
        if not self.address:
            raise SystemExit("llama.cpp did not start")

    def generate(self, prompt, count):
        body = {"prompt": prompt, "n_predict": count, "temperature": 0, "cache_prompt": False, "ignore_eos": False}
        timings = post(self.address + "/completion", body)["timings"]
        return (timings["prompt_n"], timings["prompt_ms"] / 1e3, timings["predicted_n"], timings["predicted_ms"] / 1e3)

    def process(self):
        return self.child.pid

    def stop(self):
        self.child.stdin.close()
        self.child.wait()


def together(engine, clients, salt):
    """One request of each client at once: tokens a second of the prompts and the answers where there is one client; of both, all
    answers' tokens a second of the whole time where there are more."""
    words = (DEMO / "heldout.txt").read_text().split()
    results = [None] * clients

    def ask(at):
        start = (salt * clients + at) * 61 % (len(words) - PROMPT_WORDS)
        results[at] = engine.generate(" ".join(words[start : start + PROMPT_WORDS]), GENERATED)

    threads = [threading.Thread(target=ask, args=(at,)) for at in range(clients)]
    start = time.perf_counter()
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    took = time.perf_counter() - start
    if None in results:
        raise SystemExit(f"{engine.name} did not answer")
    (prompt, prompt_seconds, answer, answer_seconds) = map(sum, zip(*results))
    return prompt / prompt_seconds, (answer - clients) / max(answer_seconds, 1e-9), answer / took


def measure(lode, label, file, threads, rounds, clients):
    size = file.stat().st_size
    starts = {"lode": lambda: Lode(lode, file), "llama.cpp": lambda: Llama(str(file), threads)}
    samples = {name: {"first": [], "warm": [], "own": [], "all": []} for name in starts}
    for turn in range(rounds):
        for name in list(starts)[:: 1 if turn % 2 else -1]:
            engine = starts[name]()
            taken = samples[name]
            begin = time.perf_counter()
            engine.generate("One word", 1)
            taken["first"].append(time.perf_counter() - begin)
            begin = time.perf_counter()
            engine.generate("Another word", 1)
            taken["warm"].append(time.perf_counter() - begin)
            for count in clients:
                prompt, answer, whole = together(engine, count, turn)
                taken.setdefault(f"prompt {count}", []).append(prompt)
                taken.setdefault(f"answer {count}", []).append(answer)
                taken.setdefault(f"whole {count}", []).append(whole)
            own, all_of_it = memory(engine.process())
            taken["own"].append(own)
            taken["all"].append(all_of_it)
            engine.stop()
    middle = lambda name, key: statistics.median(samples[name][key])

    def row(what, key, form, better=max):
        ours, theirs = middle("lode", key), middle("llama.cpp", key)
        ratio = ours / theirs if better is max else theirs / ours
        print(f"| {label} | {what} | {form(ours)} | {form(theirs)} | {ratio:.2f} |", flush=True)

    for count in clients:
        if count == 1:
            row("prompt, tokens/s", "prompt 1", "{:.1f}".format)
            row("answer, tokens/s", "answer 1", "{:.1f}".format)
        else:
            row(f"{count} at once, answer tokens/s of the whole time", f"whole {count}", "{:.1f}".format)
    row("to the first token, warm, ms", "warm", lambda v: f"{v * 1e3:.0f}", min)
    row("memory of its own, MB", "own", lambda v: f"{v / 1e6:.0f}", min)
    row("memory with the mapped file, MB", "all", lambda v: f"{v / 1e6:.0f}", min)
    rate = middle("lode", "answer 1") * size / 1e9 if "answer 1" in samples["lode"] else None
    load = middle("lode", "first")
    print(f"  {label}: {size / 1e6:.0f} MB" + (f", read at {rate:.1f} GB/s by answers" if rate else "")
          + f"; lode's first token with loading {load:.2f} s", file=sys.stderr, flush=True)


def bandwidth(threads):
    """Bytes a second that so many processes read from memory together, each a GiB of its own."""
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
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--clients", default="1,4,16")
parser.add_argument("models", nargs="*", default=["demo:Q4_K_M", "demo:BF16", "1b:Q4_K_M", "1b:Q8_0", "1b:BF16"])
arguments = parser.parse_intermixed_args()
threads = len(os.sched_getaffinity(0))
counts = [int(count) for count in arguments.clients.split(",")]
with tempfile.TemporaryDirectory(prefix="lode-bench-", dir=os.environ.get("LODE_BENCH_FOLDER")) as scratch:
    scratch = Path(scratch)
    print(f"{threads} threads, memory read at {bandwidth(threads) / 1e9:.1f} GB/s, medians of {arguments.rounds}")
    print("| model | what | lode | llama.cpp | lode against it |\n| --- | --- | --: | --: | --: |", flush=True)
    sources = {}
    for model in arguments.models:
        shape, kind = model.split(":")
        with Server(arguments.lode, below=scratch) as server:
            if shape not in sources:
                sources[shape] = DEMO
                if shape != "demo":
                    sources[shape] = scratch / shape
                    random_llama.checkpoint(sources[shape], shape)
            server.run("create", "bench/model", sources[shape], "--quantize", kind)
            server.run("pull", "bench/model", "--to", scratch / "pulled")
        file = next((scratch / "pulled").glob("*.gguf"))
        measure(arguments.lode, f"{shape} {kind}", file, threads, arguments.rounds, counts)
        shutil.rmtree(scratch / "pulled")
