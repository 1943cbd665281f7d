"""Prints the likeliest next ids at each position of some texts, with llama.cpp from the xllamacpp package.

Standard input: lines `{"path", "windows", "top"}`. Standard output: for each line a JSON array. For each window, it contains
the likeliest ids after each proper prefix, as pairs of id and log-probability.
"""

import json
import os
import sys

import xllamacpp

# llama.cpp also writes to standard output, so send its output to standard error.
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
for line in sys.stdin:
    asked = json.loads(line)
    params = xllamacpp.CommonParams()
    params.model.path = asked["path"]
    params.n_ctx = max(map(len, asked["windows"])) + 8
    params.n_parallel = 1
    params.warmup = False
    # One thread, because llama.cpp's spinning threads are slow while other programs run.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    server = xllamacpp.Server(params)
    how = {"max_tokens": 1, "temperature": 0, "logprobs": asked["top"], "cache_prompt": True}
    windows = []
    for ids in asked["windows"]:
        places = []
        for end in range(1, len(ids)):
            response = server.handle_completions(how | {"prompt": ids[:end]})
            top = response["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
            places.append([[chance["id"], chance["logprob"]] for chance in top])
        windows.append(places)
    print(json.dumps(windows), file=out, flush=True)
    del server
# Exit without waiting for llama.cpp's threads.
os._exit(0)
