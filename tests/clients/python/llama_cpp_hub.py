"""Fetches a GGUF as llama.cpp's programs do with `-hf`, by the code that they use.

Arguments: the repository, and the GGUF file that it has. HF_ENDPOINT and HF_HOME are set.
"""

import ctypes
import pathlib
import sys

import xllamacpp
import xllamacpp.xllamacpp as library

repository, gguf = sys.argv[1:]
# xllamacpp has no function for this. Its library exports `common_params_parse(int, char **, common_params &, ...)`, and
# `CommonParams` holds a `common_params` behind the two words of every Python object.
OBJECT_HEADER = 16
PARSE = "_Z19common_params_parseiPPcR13common_params13llama_examplePFviS0_E"
SERVER_EXAMPLE = 4

params = xllamacpp.CommonParams()
arguments = [b"llama-server", b"-hf", repository.encode()]
parse = getattr(ctypes.CDLL(library.__file__), PARSE)
parse.restype = ctypes.c_bool
argv = (ctypes.c_char_p * len(arguments))(*arguments)
assert parse(len(arguments), argv, ctypes.c_void_p(id(params) + OBJECT_HEADER), SERVER_EXAMPLE, None)
path = pathlib.Path(params.model.path)
assert path.read_bytes() == pathlib.Path(gguf).read_bytes(), path
