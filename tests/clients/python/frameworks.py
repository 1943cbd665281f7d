"""Tests that litellm, LangChain and LlamaIndex chat, stream, call tools, embed and keep to a schema.

Arguments: the server's URL, the demo model, a model that calls a weather tool and then reports the result, and one that
reasons.
"""

import json
import os
import sys
from typing import Literal

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # no requests to the internet
import litellm
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from llama_index.core.base.llms.types import ChatMessage
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

url, demo, weather, _ = sys.argv[1:]
openai = {"base_url": f"{url}/v1", "api_key": "none", "max_retries": 0}
question, answer = "What is 40 plus 41?", "81."
asked = "How is the weather in Paris?"


class City(BaseModel):
    """A city."""

    city: str


class Capital(BaseModel):
    """One of two cities, so that the response is short."""

    city: Literal["Paris", "Rome"]


@tool
def look(city: str) -> str:
    """The weather."""
    return "20 degrees"


def same(left, right):
    assert len(left) == len(right) > 8 and all(abs(a - b) < 1e-6 for a, b in zip(left, right)), (left[:4], right[:4])


# litellm, by the three APIs that it can use.
def with_litellm(model, base, **fields):
    return litellm.completion(model=model, api_base=base, api_key="none", temperature=0, num_retries=0, **fields)


for model, base in [
    (f"openai/{demo}", f"{url}/v1"),
    (f"ollama_chat/{demo}", url),
    (f"anthropic/{demo}", url),
]:
    messages = [{"role": "user", "content": question}]
    response = with_litellm(model, base, messages=messages)
    assert response.choices[0].message.content == answer, (model, response)
    assert response.usage.completion_tokens > 1, (model, response)
    stream = with_litellm(model, base, messages=messages, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == answer, (model, text)

function = {"name": "look", "description": "The weather.", "parameters": City.model_json_schema()}
tools = [{"type": "function", "function": function}]
for model, base in [(f"openai/{weather}", f"{url}/v1"), (f"ollama_chat/{weather}", url), (f"anthropic/{weather}", url)]:
    messages = [{"role": "user", "content": asked}]
    (call,) = with_litellm(model, base, messages=messages, tools=tools).choices[0].message.tool_calls
    assert call.function.name == "look" and json.loads(call.function.arguments) == {"city": "Paris"}, (model, call)

embedded = litellm.embedding(model=f"openai/{demo}", api_base=f"{url}/v1", api_key="none", input=[question])
embedding = embedded.data[0]["embedding"]
try:
    with_litellm("openai/team/absent", f"{url}/v1", messages=messages)
except litellm.NotFoundError as error:
    assert "team/absent" in str(error), error
else:
    raise AssertionError("an absent model answered")

# LangChain.
chats = [
    ChatOpenAI(model=demo, temperature=0, **openai),
    ChatOpenAI(model=demo, temperature=0, use_responses_api=True, **openai),
    ChatOllama(model=demo, temperature=0, base_url=url),
    ChatAnthropic(model=demo, temperature=0, base_url=url, api_key="none", max_tokens=100, max_retries=0),
]
for chat in chats:
    response = chat.invoke(question)
    assert response.text == answer, (chat, response)
    assert response.usage_metadata["output_tokens"] > 1, (chat, response)
    assert "".join(chunk.text for chunk in chat.stream(question)) == answer, chat

chats = [
    ChatOpenAI(model=weather, temperature=0, **openai),
    ChatOllama(model=weather, temperature=0, base_url=url),
    ChatAnthropic(model=weather, temperature=0, base_url=url, api_key="none", max_tokens=100, max_retries=0),
]
for chat in chats:
    messages = [HumanMessage(asked)]
    response = chat.bind_tools([look]).invoke(messages)
    (call,) = response.tool_calls
    assert call["name"] == "look" and call["args"] == {"city": "Paris"}, (chat, response)
    messages += [response, ToolMessage(look.invoke(call["args"]), tool_call_id=call["id"])]
    assert chat.bind_tools([look]).invoke(messages).text == "Sunny and warm.", chat

for chat in [
    ChatOpenAI(model=demo, temperature=0, **openai),
    ChatOllama(model=demo, temperature=0, base_url=url),
]:
    capital = chat.with_structured_output(Capital, method="json_schema").invoke("Name a city.")
    assert isinstance(capital, Capital), (chat, capital)

same(OpenAIEmbeddings(model=demo, check_embedding_ctx_length=False, **openai).embed_query(question), embedding)
same(OllamaEmbeddings(model=demo, base_url=url).embed_query(question), embedding)

# LlamaIndex.
base = {"api_base": f"{url}/v1", "api_key": "none", "max_retries": 0}
model = OpenAILike(model=demo, is_chat_model=True, temperature=0, **base)
messages = [ChatMessage(role="user", content=question)]
assert model.chat(messages).message.content == answer
assert "".join(part.delta for part in model.stream_chat(messages)) == answer
plain = OpenAILike(model=demo, is_chat_model=False, temperature=0, max_tokens=4, **base)
assert plain.complete("Water is").text
same(OpenAILikeEmbedding(model_name=demo, **base).get_query_embedding(question), embedding)
