"""The servers that tests/bench/engine compares. All have the same interface:

    start(settings)            starts the program and waits until it accepts requests
    generate(prompt, count)    generates up to `count` tokens greedily, streamed, and returns a Response
    stop()
    version, describe()        the version, and the instruction sets of the last start
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import llama_build

HERE = Path(__file__).resolve().parent
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
MODEL = "bench/model"
CHILDREN = []
READY_SECONDS, REQUEST_SECONDS = 120, 3600


class Settings(NamedTuple):
    """What a server is started for: concurrent sequences, and tokens of context of each."""

    sequences: int
    context: int


class Response(NamedTuple):
    # Computed tokens of the prompt, without reused ones, and the seconds that the server reports for them.
    prompt: int
    prompt_seconds: float
    tokens: int
    seconds: float
    # Seconds until the first token, as the client measures them.
    first: float
    text: str


class Lode:
    """`lode serve` with its local worker, at an instruction level. The worker loads the model on the first request."""

    def __init__(self, store, level):
        self.store, self.level, self.name = store, level, store.name
        self.version = store.version

    def start(self, settings):
        self.settings = settings
        environment = {"LODE_NUM_PARALLEL": str(settings.sequences), "LODE_CONTEXT_LENGTH": str(settings.context)}
        if self.level != "auto":
            environment["LODE_CPU"] = self.level
        self.store.serve(environment)

    def generate(self, prompt, count):
        options = {"temperature": 0, "num_predict": count, "num_ctx": self.settings.context}
        body = {"model": MODEL, "prompt": prompt, "raw": True, "options": options}
        records, first = stream(self.store.address + "/api/generate", body)
        last = records[-1]
        computed = last["prompt_eval_count"] - last.get("prompt_cached_count", 0)
        text = "".join(record["response"] for record in records)
        return Response(computed, last["prompt_eval_duration"] / 1e9, last["eval_count"], last["eval_duration"] / 1e9,
                        first, text)

    def describe(self):
        found = re.findall(r'device="([^"]*)"', self.store.log.read_text())
        found = found[-1] if found else f"LODE_CPU={self.level}"
        return found if self.level in ("auto", *re.findall(r"[\w-]+", found)) else f"{found}: ignores LODE_CPU"

    @property
    def process(self):
        return self.store.process.pid

    def stop(self):
        self.store.stop()


class Store:
    """The data folder of one build of Lode, with one model, and the server that runs on it."""

    def __init__(self, name, program, scratch):
        self.name, self.program, self.folder = name, program, scratch / name
        self.version = output([program, "--version"])
        self.log, self.process = scratch / f"{name}.log", None

    def serve(self, environment):
        port = free_port()
        self.address = f"http://127.0.0.1:{port}"
        self.folder.mkdir(exist_ok=True)
        folders = {"HOME": str(self.folder), "TMPDIR": str(self.folder)}
        self.environment = {**os.environ, "LODE_HOST": self.address, "NO_PROXY": "*", **folders, **environment}
        command = [self.program, "serve", "--listen", f"127.0.0.1:{port}", "--data", self.folder / "data"]
        self.process = spawn(command, self.log, self.environment)
        wait_until_ready(self.process, self.address + "/readyz", self.log)

    def create(self, source, kind=None):
        """Replaces the model by a checkpoint in a quantisation, or by a GGUF file."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.serve({})
        self.run("create", MODEL, source, *(["--quantize", kind] if kind else []))

    def blobs(self):
        return list((self.folder / "data/blobs/sha256").iterdir())

    def run(self, *arguments):
        command = [self.program, *map(str, arguments)]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"error: {self.name} {' '.join(command[1:])}: {done.stderr}")

    def stop(self):
        terminate(self.process)


class LlamaServer:
    """llama.cpp's own server, built for this processor at an instruction level."""

    name = "llama.cpp"

    def __init__(self, level, programs, threads, scratch):
        self.level, self.programs, self.threads, self.file = level, programs, threads, None
        self.version = f"of {llama_build.PACKAGE} {llama_build.VERSION}, ggml {programs.ggml_version()}"
        self.log = scratch / "llama.log"

    def command(self, settings, port):
        # As tools/server/README.md of llama.cpp describes for several concurrent clients: a slot for each sequence,
        # where --ctx-size is the sum over all slots (--parallel without --kv-unified gives each its own share). These
        # defaults are kept: continuous batching, flash attention if supported (auto), weights mapped from the file and
        # repacked for the processor, batches of 2048 and 512 tokens, F16 keys and values.
        #
        # Other defaults would slow llama.cpp down in this load, so they are changed:
        #   --no-warmup         it starts earlier; the first two requests of every start are not in the other figures
        #   --fit off           no second pass over the model's metadata to fit it into the memory of a GPU
        #   --cache-ram 0       no copies of idle sequences (8 GiB by default), which no prompt here can reuse
        #   --no-cache-prompt   every prompt is computed (the prompts of one start share no beginning in any program)
        return [self.programs.folder / "llama-server", "--model", self.file, "--host", "127.0.0.1",
                "--port", str(port), "--threads", str(self.threads), "--threads-batch", str(self.threads),
                "--parallel", str(settings.sequences), "--ctx-size", str(settings.sequences * settings.context),
                "--no-webui", "--no-warmup", "--fit", "off", "--cache-ram", "0", "--no-cache-prompt"]

    def start(self, settings):
        port = free_port()
        self.address = f"http://127.0.0.1:{port}"
        self.child = spawn(self.command(settings, port), self.log, self.programs.environment())
        wait_until_ready(self.child, self.address + "/health", self.log)

    def generate(self, prompt, count):
        return completion(self.address, prompt, count)

    def describe(self):
        """Returns the names of the instruction sets. Only a detailed log has them, so this starts the program again."""
        command = [*self.command(Settings(1, 512), free_port()), "--verbosity", "4"]
        child = spawn(command, self.log, self.programs.environment())
        try:
            found = wait_for_line(child, self.log, r"system_info:.*\| *(CPU :.*)")
        finally:
            terminate(child)
        names = llama_build.features(found)
        llama_build.check(self.level, names)
        return " ".join(names)

    @property
    def process(self):
        return self.child.pid

    def stop(self):
        terminate(self.child)


class LlamaWheel:
    """llama.cpp's server in the PyPI package xllamacpp, which is built for AVX2. Its start includes Python's."""

    name, level = "wheel", None

    def __init__(self, threads, scratch):
        self.threads, self.file, self.log = threads, None, scratch / "wheel.log"
        self.version = f"xllamacpp {version('xllamacpp')}"

    def start(self, settings):
        command = [sys.executable, HERE / "llama_server.py", self.file, str(self.threads), *map(str, settings)]
        with open(self.log, "w") as log:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
            self.child = subprocess.Popen(command, **pipes, text=True)
        CHILDREN.append(self.child)
        self.system_info = self.child.stdout.readline()
        self.address = self.child.stdout.readline().strip()
        if not self.address:
            raise SystemExit(f"{last_lines(self.log)}\nerror: llama.cpp of xllamacpp failed to start")

    def generate(self, prompt, count):
        return completion(self.address, prompt, count)

    def describe(self):
        return " ".join(llama_build.features(self.system_info))

    @property
    def process(self):
        return self.child.pid

    def stop(self):
        self.child.stdin.close()
        self.child.wait()
        self.child.stdout.close()


def completion(address, prompt, count):
    """Generates with llama.cpp's own API. One candidate is the cheapest of its greedy samplers."""
    sampling = {"temperature": 0, "samplers": ["top_k"], "top_k": 1}
    body = {"prompt": prompt, "n_predict": count, "cache_prompt": False, "stream": True, **sampling}
    records, first = stream(address + "/completion", body, b"data: ")
    timings = records[-1]["timings"]
    return Response(timings["prompt_n"], timings["prompt_ms"] / 1e3, timings["predicted_n"],
                    timings["predicted_ms"] / 1e3, first, "".join(record["content"] for record in records))


def stream(url, body, prefix=b""):
    """Returns the records of a streamed response, and the seconds until its first record."""
    begin, first, lines = time.perf_counter(), None, []
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with OPENER.open(request, timeout=REQUEST_SECONDS) as response:
        for line in response:
            if line.startswith(prefix) and line.strip():
                first = first or time.perf_counter() - begin
                lines.append(line)
    return [json.loads(line[len(prefix):]) for line in lines], first


def output(command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def spawn(command, log, environment):
    with open(log, "w") as file:
        child = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                                 env=environment)
    CHILDREN.append(child)
    return child


def wait_until_ready(child, url, log):
    """Waits until a server returns success. It returns 503 while it loads."""
    for _ in attempts(child, log):
        try:
            OPENER.open(url, timeout=10).close()
            return
        except OSError:
            pass


def wait_for_line(child, log, pattern):
    for _ in attempts(child, log):
        found = re.search(pattern, log.read_text(errors="replace"))
        if found:
            return found[1]


def attempts(child, log):
    """Yields every few milliseconds, until the program ends or the time is over, which is an error."""
    end = time.monotonic() + READY_SECONDS
    while time.monotonic() < end and child.poll() is None:
        yield
        time.sleep(0.005)
    terminate(child)
    raise SystemExit(f"{last_lines(log)}\nerror: {child.args[0]} failed to start")


def last_lines(log):
    return "\n".join(log.read_text(errors="replace").splitlines()[-20:])


def terminate_all():
    for child in CHILDREN:
        if child.poll() is None:
            terminate(child)


def terminate(child):
    child.terminate()
    try:
        child.wait(60)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
