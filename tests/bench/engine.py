"""Compares Lode's engine with llama.cpp on the same GGUF files, threads and requests: see tests/bench/engine."""

import argparse
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Callable, NamedTuple

import llama_build
import machine
import random_llama
from inference_servers import LlamaServer, LlamaWheel, Lode, Settings, Store, terminate_all

DEMO = Path(__file__).resolve().parents[1] / "models/lode-demo"
TEXT = (DEMO / "heldout.txt").read_text().split()
# Tokens of the demo model's tokenizer, measured on TEXT.
TOKENS_PER_WORD = 1.25
SEQUENCES, SHORT, LONG = 16, 1024, 8704
# Tokens of a prompt, for one client, for several, and for one with a long context.
ALONE, SHARED, LONGER, LONGEST = 512, 50, 4096, 8192
# Types that `lode create --quantize` does not write.
QUANTISED_BY_LLAMA = ("IQ", "TQ", "MXFP4")
# Types of tensor blobs, which llama.cpp does not read.
OF_TENSORS = ("int4", "int8", "nvfp4", "mxfp4", "mxfp8")


class Case(NamedTuple):
    """A model in a quantisation, and its figures."""

    shape: str
    kind: str
    clients: list
    contexts: list

    @property
    def is_of_tensors(self):
        return self.kind in OF_TENSORS


class Figure(NamedTuple):
    label: str
    form: Callable
    better: Callable = max

    def ratio(self, ours, theirs):
        over, under = (ours, theirs) if self.better is max else (theirs, ours)
        return over / under if under else float("nan")


class Lengths(NamedTuple):
    """Generated tokens for one client and for several, and how often each is measured in a round."""

    alone: int = 32
    shared: int = 32
    alone_times: int = 3
    shared_times: int = 1


# A small model must generate more tokens for meaningful times.
LENGTHS = {"demo": Lengths(256, 256, 5, 5)}
FULL = ["1b:Q4_K_M", "1b:Q8_0", "1b:BF16"]
FULL_ALONE = ["1b:Q4_0", "1b:Q6_K", "1b:IQ4_XS", "1b:MXFP4", "1b:F16", "demo:Q4_K_M", "620m:Q4_K_M", "moe:Q4_K_M"]
DEFAULT = ["demo:Q4_K_M", "1b:Q4_K_M", "1b:Q8_0"]
QUICK = ["demo:Q4_K_M", "1b:Q4_K_M"]

# The forms of figures.
rate, seconds, percent = "{:.1f}".format, "{:.2f}".format, "{:.0%}".format


def milliseconds(value):
    return f"{value * 1e3:.1f}" if value < 0.1 else f"{value * 1e3:.0f}"


def megabytes(value):
    return f"{value / 1e6:.0f}"


class Samples:
    """The measured values of every figure and program, at one level. The values with the same index in the lists of two
    programs were measured one after the other."""

    def __init__(self):
        self.figures = {}

    def add(self, figure, engine, value):
        self.figures.setdefault(figure, {}).setdefault(engine, []).append(value)

    def median(self, figure, engine):
        return statistics.median(self.figures[figure][engine])

    def ratio(self, figure, engine, other):
        """Returns how much better an engine is than another, with the lowest and highest ratio."""
        values = self.figures[figure]
        ratios = [figure.ratio(*pair) for pair in zip(values[engine], values[other], strict=True)]
        text = f"{statistics.median(ratios):.2f}"
        return text if len(ratios) == 1 else f"{text} ({min(ratios):.2f} to {max(ratios):.2f})"


class Prompts:
    """Prompts of one start of a server. No two share a beginning that a server could reuse."""

    def __init__(self, turn):
        self.number = 1000 * turn

    def next(self, tokens):
        self.number += 1
        words = max(round(tokens / TOKENS_PER_WORD), 1)
        start = self.number * 61 % (len(TEXT) - words)
        return " ".join([f"{self.number})", *TEXT[start : start + words]])


class Run:
    """The measurements of one program in one round."""

    def __init__(self, engine, turn, samples, lengths):
        self.engine, self.samples, self.lengths = engine, samples, lengths
        self.prompts = Prompts(turn)

    def take(self, label, form, value, better=max):
        self.samples.add(Figure(label, form, better), self.engine, value)

    def start(self, settings):
        """Starts the program. Returns the seconds until the first token, with start and loading."""
        begin = time.perf_counter()
        self.engine.start(settings)
        self.engine.generate(self.prompts.next(4), 1)
        took = time.perf_counter() - begin
        # Measure only after a second request, because caches may be cold during the first.
        self.engine.generate(self.prompts.next(4), 1)
        return took

    def cold_start(self, settings, reading):
        cold = self.start(settings)
        self.take("time to the first token, with start and loading, s", seconds, cold, min)
        label = "the same, relative to reading the file once from memory"
        self.take(label, rate, cold / reading, min)

    def first_token(self):
        first = self.engine.generate(self.prompts.next(4), 1).first
        self.take("time to the first token, model loaded, ms", milliseconds, first, min)

    def alone(self, size, bandwidth):
        response = self.engine.generate(self.prompts.next(ALONE), self.lengths.alone)
        self.take(f"prompt of {ALONE} tokens, tokens/s", rate, response.prompt / response.prompt_seconds)
        self.generation(f"after {ALONE} tokens", response, size, bandwidth)

    def generation(self, where, response, size, bandwidth):
        # The time of the first token is part of the prompt's.
        speed = (response.tokens - 1) / max(response.seconds, 1e-9)
        self.take(f"generation {where}, tokens/s", rate, speed)
        if size:
            self.take("memory read before it, GB/s", rate, bandwidth / 1e9)
            share = speed * size / bandwidth
            self.take(f"share of memory bandwidth, generation {where}", percent, share)

    def several(self, clients):
        """Sends one request per client concurrently."""
        prompts = [self.prompts.next(SHARED) for _ in range(clients)]
        responses = [None] * clients

        def ask(at):
            responses[at] = self.engine.generate(prompts[at], self.lengths.shared)

        threads = [threading.Thread(target=ask, args=(at,)) for at in range(clients)]
        begin = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.perf_counter() - begin
        if None in responses:
            raise SystemExit(f"error: {self.engine.name} failed to respond")
        tokens = sum(response.tokens for response in responses)
        first = statistics.median(response.first for response in responses)
        self.take(f"{clients} clients, generated tokens/s of all", rate, tokens / took)
        self.take(f"{clients} clients, time to the first token, ms", milliseconds, first, min)

    def longer(self):
        response = self.engine.generate(self.prompts.next(LONGER), 1)
        self.take(f"prompt of {LONGER:,} tokens, tokens/s", rate, response.prompt / response.prompt_seconds)
        self.take(f"prompt of {LONGER:,} tokens, time to the first token, ms", milliseconds, response.first, min)

    def longest(self, size, bandwidth):
        response = self.engine.generate(self.prompts.next(LONGEST), self.lengths.alone)
        self.take(f"prompt of {LONGEST:,} tokens, tokens/s", rate, response.prompt / response.prompt_seconds)
        self.generation(f"after {LONGEST:,} tokens", response, size, bandwidth)

    def stop(self, settings):
        own, resident = machine.memory(self.engine.process)
        sequences = "1 sequence" if settings.sequences == 1 else f"{settings.sequences} sequences"
        where = f"with {sequences} of {settings.context:,}"
        self.take(f"anonymous memory {where}, MB", megabytes, own, min)
        self.take(f"memory with the mapped file {where}, MB", megabytes, resident, min)
        self.engine.stop()


class Round:
    """One round of all programs at a level. All are started, then each measurement is made with one program after the
    other, in alternating order: on a shared machine, the memory bandwidth can change by half from minute to minute."""

    def __init__(self, case, engines, turn, samples, lengths):
        self.case, self.lengths = case, lengths
        self.runs = [Run(engine, turn, samples, lengths) for engine in engines]

    def each(self, measurement, *arguments, times=1):
        for _ in range(times):
            for run in self.runs:
                measurement(run, *arguments)
            self.runs.reverse()

    def alone(self, measurement, size, times):
        for _ in range(times):
            self.each(measurement, size, machine.bandwidth(machine.threads()) if size else None)

    def short(self, size, reading):
        settings = Settings(SEQUENCES, SHORT)
        self.each(Run.cold_start, settings, reading)
        self.each(Run.first_token, times=5)
        for count in self.case.clients:
            if count == 1:
                self.alone(Run.alone, size, self.lengths.alone_times)
            elif count <= SEQUENCES:
                self.each(Run.several, count, times=self.lengths.shared_times)
        self.each(Run.stop, settings)
        for count in self.case.clients:
            if count > SEQUENCES:
                settings = Settings(count, SHORT)
                self.each(Run.start, settings)
                self.each(Run.several, count, times=self.lengths.shared_times)
                self.each(Run.stop, settings)

    def long(self, size):
        settings = Settings(1, LONG)
        self.each(Run.start, settings)
        self.each(Run.longer)
        self.alone(Run.longest, size, 1)
        self.each(Run.stop, settings)


class Comparison:
    """The programs to compare, and the folder of their files."""

    def __init__(self, arguments, scratch):
        self.arguments, self.scratch = arguments, scratch
        self.rounds = arguments.rounds or (1 if arguments.quick else 3)
        self.threads = machine.threads()
        self.levels = llama_build.levels(arguments.levels)
        self.stores = [Store(name, program, scratch) for name, program in builds(arguments)]
        programs = {level: llama_build.programs(level) for level in self.levels}
        self.llamas = {level: LlamaServer(level, programs[level], self.threads, scratch) for level in self.levels}
        self.wheels = [LlamaWheel(self.threads, scratch)] if arguments.wheel else []
        self.lodes = {level: [Lode(store, level) for store in self.stores] for level in self.levels}
        self.busy = machine.busy_share()
        self.bandwidth = machine.bandwidth(self.threads)
        self.checkpoints, self.is_first = {"demo": DEMO}, True
        self.results = []

    def engines(self, case, level):
        others = [] if case.is_of_tensors else [self.llamas[level], *self.wheels]
        return [*self.lodes[level], *others]

    def measure(self, case):
        files = self.prepare_tensors(case) if case.is_of_tensors else [self.prepare(case)]
        self.describe(case)
        # Smaller files fit into the processor's caches, and of a mixture of experts only a part is read.
        size = sum(file.stat().st_size for file in files)
        size = size if size > 256e6 and case.shape != "moe" else None
        reading = statistics.median(sum(map(machine.read_once, files)) for _ in range(3))
        lengths = LENGTHS.get(case.shape, Lengths())
        samples = {level: Samples() for level in self.levels}
        for turn in range(self.rounds):
            for level in self.levels:
                one = Round(case, self.engines(case, level), turn, samples[level], lengths)
                if "short" in case.contexts:
                    one.short(size, reading)
                if "long" in case.contexts and case.shape != "demo":  # it is trained on 2,048 tokens
                    one.long(size)
        for level in self.levels:
            self.print_rows(case, level, samples[level])
        shutil.rmtree(self.scratch / "pulled", ignore_errors=True)

    def checkpoint(self, shape):
        if shape not in self.checkpoints:
            self.checkpoints[shape] = self.scratch / shape
            random_llama.checkpoint(self.checkpoints[shape], shape)
        return self.checkpoints[shape]

    def prepare_tensors(self, case):
        """Imports the checkpoint into every store. Returns the blobs."""
        for store in self.stores:
            store.create(self.checkpoint(case.shape), case.kind)
            store.stop()
        return self.stores[0].blobs()

    def prepare(self, case):
        """Writes the model's GGUF file and imports it into every store."""
        first, *others = self.stores
        file, by_llama = self.scratch / "pulled" / "model.gguf", case.kind.startswith(QUANTISED_BY_LLAMA)
        first.create(self.checkpoint(case.shape), "F16" if by_llama else case.kind)
        first.run("pull", "bench/model", "--to", file.parent)
        first.stop()
        pulled = list(file.parent.glob("*.gguf"))
        if len(pulled) != 1:
            raise SystemExit(f"error: `lode create --quantize {case.kind}` does not write a GGUF file")
        pulled[0].rename(file)
        if by_llama:
            floats = file.rename(file.with_name("floats"))
            self.llamas[self.levels[0]].programs.quantise(floats, file, case.kind)
            floats.unlink()
        for store in self.stores if by_llama else others:
            store.create(file)
            store.stop()
        for llama in [*self.llamas.values(), *self.wheels]:
            llama.file = file
        return file

    def describe(self, case):
        """Sends the same prompt to every program, and prints their versions and instruction sets once."""
        counts, descriptions = {}, {}
        prompt = Prompts(0).next(SHARED)
        for engine in dict.fromkeys(engine for level in self.levels for engine in self.engines(case, level)):
            engine.start(Settings(1, SHORT))
            response = engine.generate(prompt, 16)
            engine.stop()
            counts[engine] = response.prompt
            descriptions[engine] = engine.describe() if self.is_first else None
            if self.arguments.show_text:
                print(f"{engine.name} {case.shape} {case.kind}: {response.prompt} tokens, {response.text!r}")
        if len(set(counts.values())) > 1:
            different = ", ".join(f"{engine.name} {count}" for engine, count in counts.items())
            raise SystemExit(f"error: the programs split the same prompt into different numbers of tokens: {different}")
        if self.is_first:
            self.print_head(descriptions)
        self.is_first = False

    def print_head(self, descriptions):
        rounds = f"medians of {self.rounds} rounds" if self.rounds > 1 else "one round"
        read = f"memory read at {self.bandwidth / 1e9:.1f} GB/s"
        print(f"- {machine.processor()}, {self.threads} threads, {read}, {rounds}")
        if self.busy > 0.1:
            print(f"- **not valid: other programs used {self.busy:.0%} of the processors at the start**")
        for name in dict.fromkeys(engine.name for engine in descriptions):
            same = [engine for engine in descriptions if engine.name == name]
            print(f"- {name}: {same[0].version}")
            for engine in same:
                print(f"  - {engine.level or 'every level'}: {descriptions[engine]}")
        names = [*(store.name for store in self.stores), "llama.cpp", *(wheel.name for wheel in self.wheels)]
        columns = ["model", "level", "figure", *names, *(f"{names[0]} / {name}" for name in names[1:])]
        print(f"\n| {' | '.join(columns)} |\n| --- | --- | --- |{' --: |' * (2 * len(names) - 1)}", flush=True)

    def print_rows(self, case, level, samples):
        engines, missing = self.engines(case, level), [""] * (1 + len(self.wheels)) if case.is_of_tensors else []
        for figure in samples.figures:
            values = [figure.form(samples.median(figure, engine)) for engine in engines]
            ratios = [samples.ratio(figure, engines[0], other) for other in engines[1:]]
            cells = [f"{case.shape} {case.kind}", level, figure.label, *values, *missing, *ratios, *missing]
            print(f"| {' | '.join(cells)} |", flush=True)
            self.keep(case, level, figure, samples)

    def keep(self, case, level, figure, samples):
        """Adds the values of a row to the file with all samples."""
        if not self.arguments.json:
            return
        values = {engine.name: values for engine, values in samples.figures[figure].items()}
        self.results.append({"model": f"{case.shape}:{case.kind}", "level": level, "figure": figure.label,
                             "values": values})
        Path(self.arguments.json).write_text(json.dumps(self.results))


def builds(arguments):
    """Returns the names and programs of the builds of Lode."""
    named = [text.partition("=") for text in arguments.other]
    for name, _, program in named:
        if not name.replace("-", "").isalnum() or not os.access(program, os.X_OK):
            raise SystemExit(f"error: --lode needs NAME=PROGRAM with a program, not `{name}={program}`")
    found = [("lode", arguments.program), *((name, os.path.realpath(program)) for name, _, program in named)]
    if len(dict(found)) < len(found) or {"llama.cpp", "wheel"} & dict(found).keys():
        raise SystemExit("error: every --lode needs a name of its own, other than lode, llama.cpp and wheel")
    return found


def cases(arguments):
    clients = [int(count) for count in arguments.clients.split(",")] if arguments.clients else None
    contexts = arguments.context.split(",") if arguments.context else None
    if set(contexts or []) - {"short", "long"}:
        raise SystemExit("error: --context is short, long, or short,long")
    default = [1, 4] if arguments.quick else [1, 4, 16]
    if arguments.full:
        many, both = clients or [1, 4, 16, 64], contexts or ["short", "long"]
        full = [case(model, many, both) for model in arguments.models or FULL]
        alone = [] if arguments.models else FULL_ALONE
        return full + [case(model, clients or [1], contexts or ["short"]) for model in alone]
    models = arguments.models or (QUICK if arguments.quick else DEFAULT)
    return [case(model, clients or default, contexts or ["short"]) for model in models]


def case(model, clients, contexts):
    shape, _, kind = model.partition(":")
    if not kind or shape not in ["demo", *random_llama.SHAPES]:
        raise SystemExit(f"error: `{model}` is not MODEL:TYPE with demo, {', '.join(random_llama.SHAPES)}")
    return Case(shape, kind, clients, contexts)


def parse():
    parser = argparse.ArgumentParser(prog="tests/bench/engine", add_help=False)
    parser.add_argument("program")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--clients")
    parser.add_argument("--levels", default="auto")
    parser.add_argument("--context")
    parser.add_argument("--lode", dest="other", action="append", default=[])
    parser.add_argument("--no-wheel", dest="wheel", action="store_false")
    parser.add_argument("--show-text", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("models", nargs="*")
    return parser.parse_intermixed_args()


def main():
    arguments = parse()
    chosen = cases(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="lode-bench-", dir=os.environ.get("LODE_BENCH_FOLDER")) as scratch:
        try:
            comparison = Comparison(arguments, Path(scratch))
            for one in chosen:
                comparison.measure(one)
        finally:
            terminate_all()


if __name__ == "__main__":
    sys.exit(main())
