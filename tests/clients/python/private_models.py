"""Runs models of a server with accounts, with OpenAI's and ollama's libraries.

Arguments: the server's URL, and tokens of an account that may read `alice/private`, and of one that may not.
Everyone may read `alice/public`.
"""

import os
import sys

server, reader, stranger = sys.argv[1:]
os.environ["OLLAMA_API_KEY"] = reader

import ollama  # noqa: E402  # reads the environment
import openai  # noqa: E402

PRIVATE, PUBLIC, MISSING = "alice/private", "alice/public", "alice/missing"
MESSAGES = [{"role": "user", "content": "What is 40 plus 41?"}]
EXPECTED = "81."
INVALID = "the token is invalid, expired or revoked"


class OpenAi:
    """OpenAI's library with a token, or with none."""

    def __init__(self, token):
        # The library wants a key even if no request has it.
        self.client = openai.OpenAI(base_url=f"{server}/v1", api_key=token or "none", max_retries=0)
        self.more = {} if token else {"extra_headers": {"Authorization": openai.Omit()}}

    def chat(self, model):
        asked = {"model": model, "messages": MESSAGES, "temperature": 0, "max_tokens": 8} | self.more
        text = self.client.chat.completions.create(**asked).choices[0].message.content
        pieces = self.client.chat.completions.create(stream=True, **asked)
        streamed = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
        assert streamed == text, streamed
        return text

    def embed(self, model):
        return self.client.embeddings.create(model=model, input="one", **self.more)

    def list(self):
        return [model.id for model in self.client.models.list(**self.more)]


class Ollama:
    """ollama's library with a token, with none, or with the one in the environment."""

    def __init__(self, token=None, **headers):
        headers |= {"Authorization": f"Bearer {token}"} if token else {}
        self.client = ollama.Client(host=server, headers=headers)

    def chat(self, model):
        options = {"temperature": 0, "num_predict": 8}
        text = self.client.chat(model, messages=MESSAGES, options=options).message.content
        generated = self.client.generate(model, prompt=MESSAGES[0]["content"], options=options).response
        assert generated == text, generated
        return text

    def embed(self, model):
        return self.client.embed(model, "one")

    def list(self):
        return [model.model for model in self.client.list().models]


def refused(call, kind, message, **fields):
    """Fails unless the call raises exactly this error, with this message and these fields."""
    try:
        call()
    except (openai.APIError, ollama.ResponseError) as raised:
        assert type(raised) is kind and str(raised) == message, repr(raised)
        found = {name: getattr(raised, name) for name in fields}
        assert found == fields, found
        return
    raise AssertionError(f"no `{message}`")


# 1. A reader, also with the token in ollama's variable.
from_environment = Ollama()
for client in [OpenAi(reader), Ollama(reader), from_environment]:
    for model in [PRIVATE, PUBLIC]:
        assert client.chat(model) == EXPECTED
        client.embed(model)
    assert {f"{PRIVATE}:latest", f"{PUBLIC}:latest"} <= set(client.list()), client.list()
del os.environ["OLLAMA_API_KEY"]

# 2. A reader may not change anything.
reading = Ollama(reader).client
for change, access in [
    (lambda: reading.create("alice/new", from_=PRIVATE), "write"),
    (lambda: reading.copy(PRIVATE, "alice/new"), "write"),
    (lambda: reading.delete(PRIVATE), "maintain"),
]:
    message = f"not allowed: the token or key is limited; it needs one with the access `{access}`"
    refused(change, ollama.ResponseError, f"{message} (status code: 403)", status_code=403)

# 3. A stranger: what is private looks missing.
for model in [PRIVATE, MISSING]:
    missing = f"model '{model}' not found"
    for call in [OpenAi(stranger).chat, OpenAi(stranger).embed]:
        refused(lambda: call(model), openai.NotFoundError, f"Error code: 404 - {missing}", type="not_found_error")
    for call in [Ollama(stranger).chat, Ollama(stranger).embed]:
        refused(lambda: call(model), ollama.ResponseError, f"{missing} (status code: 404)", error=missing)

# 4. Without credentials: public models only.
for model in [PRIVATE, MISSING]:
    for call in [OpenAi(None).chat, OpenAi(None).embed]:
        message = "Error code: 401 - authentication is required"
        refused(lambda: call(model), openai.AuthenticationError, message, code="invalid_api_key")
    for call in [Ollama().chat, Ollama().embed]:
        refused(lambda: call(model), ollama.ResponseError, "unauthorized (status code: 401)", error="unauthorized")
for client in [OpenAi(stranger), Ollama(stranger), OpenAi(None), Ollama()]:
    assert client.chat(PUBLIC) == EXPECTED
    assert client.list() == [f"{PUBLIC}:latest"], client.list()

# 5. A wrong token is refused everywhere.
for model in [PRIVATE, PUBLIC]:
    for wrong in ["hf_wrong", reader[:-1]]:
        message = f"Error code: 401 - {INVALID}"
        refused(lambda: OpenAi(wrong).chat(model), openai.AuthenticationError, message, code="invalid_api_key")
        refused(lambda: Ollama(wrong).chat(model), ollama.ResponseError, "unauthorized (status code: 401)")
wrong = OpenAi("hf_wrong")
refused(wrong.list, openai.AuthenticationError, f"Error code: 401 - {INVALID}", type="invalid_request_error")
refused(Ollama("hf_wrong").list, ollama.ResponseError, "unauthorized (status code: 401)", status_code=401)
