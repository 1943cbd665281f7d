"""llama.cpp's HTTP server from the xllamacpp package, with one GGUF file: see tests/bench/engine.

Arguments: FILE THREADS SEQUENCES CONTEXT, where CONTEXT is per sequence. Prints the instruction sets of its build and
its address, and serves until standard input ends. The parameters are those of the server that is built from source:
see LlamaServer in inference_servers.py.
"""

import os
import sys

import xllamacpp

file, threads, sequences, context = sys.argv[1], *map(int, sys.argv[2:])
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
params = xllamacpp.CommonParams()
params.model.path = file
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
params.n_parallel, params.n_ctx = sequences, sequences * context
params.n_gpu_layers = 0
params.warmup = params.fit_params = params.cache_prompt = False
params.cache_ram_mib = 0
params.hostnames, params.port = ["127.0.0.1"], 0
print(xllamacpp.get_system_info().replace("\n", " "), file=out, flush=True)
server = xllamacpp.Server(params)
print(server.listening_address, file=out, flush=True)
sys.stdin.read()
os._exit(0)
