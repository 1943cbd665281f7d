"""Tests credentials with Hugging Face's library.

Arguments: the server's URL, and a token of the account `admin`.
"""

import os
import sys

server, token = sys.argv[1:]
os.environ["HF_ENDPOINT"] = f"{server}/hf"

import huggingface_hub  # noqa: E402  # reads the environment

me = huggingface_hub.HfApi().whoami(token=token)
assert me["name"] == "admin" and me["type"] == "user", me
try:
    huggingface_hub.HfApi().whoami(token="hf_" + "x" * 34)
except Exception as raised:
    assert "Invalid user token" in str(raised), raised
else:
    raise AssertionError("a wrong token was not refused")
