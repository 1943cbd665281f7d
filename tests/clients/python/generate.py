"""Generates text from GGUF files with llama.cpp, from the xllamacpp package.

Standard input: lines `{"path", "chat"}` or `{"path", "prompt"}`. Standard output: the greedily generated text for each line,
as a JSON string.
"""

import json
import os
import sys

import xllamacpp

COUNT = 12
# llama.cpp also writes to standard output, so send its output to standard error.
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
for line in sys.stdin:
    asked = json.loads(line)
    params = xllamacpp.CommonParams()
    params.model.path = asked["path"]
    params.n_ctx = 256
    params.n_parallel = 1
    params.warmup = False
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    server = xllamacpp.Server(params)
    how = {"max_tokens": COUNT, "temperature": 0}
    if "chat" in asked:
        messages = [{"role": "user", "content": asked["chat"]}]
        response = server.handle_chat_completions(how | {"messages": messages})
        text = response["choices"][0]["message"]["content"]
    else:
        text = server.handle_completions(how | {"prompt": asked["prompt"]})["choices"][0]["text"]
    print(json.dumps(text), file=out, flush=True)
    del server
# Exit without waiting for llama.cpp's threads.
os._exit(0)
