"""Validates the OpenAPI document of the server at the given address, the responses of its worker with the models
team/demo and team/reranker, and the size of the page that shows the document.

Prints the number of operations, and the kilobytes of the page when it is compressed."""

import gzip
import json
import sys
import urllib.request

from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

base = sys.argv[1]


def request(path, body=None):
    data = json.dumps(body).encode() if body else None
    with urllib.request.urlopen(urllib.request.Request(base + path, data), timeout=300) as response:
        return response.headers.get_content_type(), response.read()


document = json.loads(request("/lode/v1/openapi.json")[1])
OpenAPIV31SpecValidator(document).validate()
operations = [operation for item in document["paths"].values() for operation in item.values()]
names = {operation["operationId"] for operation in operations}
assert len(names) == len(operations), "two operations have the same id"



def check(operation, kind, received, is_whole=False):
    """Checks a response. With `is_whole`, it has all fields that the document describes."""
    schema = operation["responses"]["200"]["content"][kind]["schema"]
    components = json.loads(json.dumps(document["components"]))
    for named in components["schemas"].values():
        if "properties" in named:
            # Every field is described.
            named["additionalProperties"] = False
            if is_whole:
                named["required"] = list(named["properties"])
    for record in received.splitlines() if kind == "application/x-ndjson" else [received]:
        Draft202012Validator({**schema, "components": components}).validate(json.loads(record))


TEXT = {"options": {"temperature": 0, "num_predict": 4}, "logprobs": True}
MESSAGES = [{"role": "user", "content": "What is a lode?"}]
RANKING = {"query": "What is a lode?", "documents": ["A vein of ore.", {"text": "A river."}]}
for path, body, is_whole in [
    ("generate", {"prompt": "A lode is", **TEXT}, False),
    ("generate", {"prompt": "A lode is", "stream": False, **TEXT}, False),
    ("chat", {"messages": MESSAGES, **TEXT}, False),
    ("chat", {"messages": MESSAGES, "stream": False, **TEXT}, False),
    ("score", {"windows": [[1, 2, 3]], "top_logprobs": 2}, False),
    ("embed", {"input": ["A lode is a vein of ore.", "A river."]}, True),
    ("embed", {"input": "A lode", "dimensions": 4}, True),
    ("rerank", {"model": "team/reranker", "return_documents": True, **RANKING}, True),
    ("rerank", {"model": "team/reranker", "top_n": 1, **RANKING}, False),
]:
    kind, received = request(f"/lode/v1/{path}", {"model": "team/demo", **body})
    check(document["paths"][f"/lode/v1/{path}"]["post"], kind, received, is_whole)

# Both models are loaded now.
kind, received = request("/lode/v1/ps")
check(document["paths"]["/lode/v1/ps"]["get"], kind, received, is_whole=True)
loaded = {model["name"] for model in json.loads(received)["models"]}
assert loaded == {"team/demo:latest", "team/reranker:latest"}, loaded

size = len(gzip.compress(request("/-/api")[1]))
assert size < 30_000, size
print(len(operations), size // 1000)
