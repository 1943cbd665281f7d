"""llama.cpp's complete quantiser, from the libraries in an npm package: see tests/bench/quantise."""

import ctypes
import glob
import os
import time
from pathlib import Path

# The values of llama.cpp's llama_ftype.
TYPES = {"F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K_S": 11, "Q3_K_M": 12, "Q3_K_L": 13,
         "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_S": 16, "Q5_K_M": 17, "Q6_K": 18}


class Parameters(ctypes.Structure):
    """llama_model_quantize_params; only its first fields are used."""

    _fields_ = [("nthread", ctypes.c_int32), ("ftype", ctypes.c_int32), ("rest", ctypes.c_uint8 * 248)]


def load(folder):
    for name in ["libggml-base.so", *(Path(path).name for path in glob.glob(f"{folder}/libggml.v*.so"))]:
        ctypes.CDLL(f"{folder}/{name}", mode=ctypes.RTLD_GLOBAL)
    llama = ctypes.CDLL(glob.glob(f"{folder}/libllama.v*.so")[0], mode=ctypes.RTLD_GLOBAL)
    llama.llama_model_quantize_default_params.restype = Parameters
    llama.llama_model_quantize.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(Parameters)]
    llama.llama_model_quantize.restype = ctypes.c_uint32
    return llama


def quantise(llama, source, out, name, threads, keep=False):
    """Runs llama.cpp's quantiser without its output, and returns the seconds."""
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
        raise SystemExit("llama.cpp failed to quantise the model")
    if not keep:
        out.unlink()
    return took
