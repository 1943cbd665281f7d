"""Validates the OpenAPI document of the server at the given address, the responses of its worker, and the size of the
page that shows the document.

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

TEXT = {"options": {"temperature": 0, "num_predict": 4}, "logprobs": True}
MESSAGES = [{"role": "user", "content": "What is a lode?"}]
for path, body in [
    ("generate", {"prompt": "A lode is", **TEXT}),
    ("generate", {"prompt": "A lode is", "stream": False, **TEXT}),
    ("chat", {"messages": MESSAGES, **TEXT}),
    ("chat", {"messages": MESSAGES, "stream": False, **TEXT}),
    ("score", {"windows": [[1, 2, 3]], "top_logprobs": 2}),
]:
    operation = document["paths"][f"/lode/v1/{path}"]["post"]
    kind, received = request(f"/lode/v1/{path}", {"model": "team/demo", **body})
    schema = operation["responses"]["200"]["content"][kind]["schema"]
    named = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    # Every field is described.
    checked = {**named, "additionalProperties": False, "components": document["components"]}
    for record in received.splitlines() if kind == "application/x-ndjson" else [received]:
        Draft202012Validator(checked).validate(json.loads(record))

size = len(gzip.compress(request("/-/api")[1]))
assert size < 30_000, size
print(len(operations), size // 1000)
