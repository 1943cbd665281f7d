"""Tests credentials with OpenAI's, ollama's and Hugging Face's libraries.

Arguments: the server's URL, and a token of the account `admin`.
"""

import os
import sys

server, token = sys.argv[1:]
os.environ["HF_ENDPOINT"] = f"{server}/hf"
os.environ["OLLAMA_API_KEY"] = token

import huggingface_hub  # noqa: E402  # reads the environment
import ollama  # noqa: E402
import openai  # noqa: E402


def refused(call, error, text):
    """Fails unless the call raises this error, whose message has the text."""
    try:
        call()
    except error as raised:
        assert text in str(raised), raised
        return
    raise AssertionError(f"{call} was not refused")


openai.OpenAI(base_url=f"{server}/v1", api_key=token, max_retries=0).models.list()
wrong = openai.OpenAI(base_url=f"{server}/v1", api_key="hf_wrong", max_retries=0)
refused(lambda: wrong.models.list(), openai.AuthenticationError, "the token is invalid, expired or revoked")

ollama.Client(host=server).list()
wrong = ollama.Client(host=server, headers={"Authorization": "Bearer hf_wrong"})
refused(lambda: wrong.list(), ollama.ResponseError, "unauthorized")

me = huggingface_hub.HfApi().whoami(token=token)
assert me["name"] == "admin" and me["type"] == "user", me
refused(lambda: huggingface_hub.HfApi().whoami(token="hf_" + "x" * 34), Exception, "Invalid user token")
