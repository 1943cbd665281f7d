"""Tests tool calls with OpenAI's library.

Arguments: the base URL, and a model that calls a weather tool and then reports the result.
"""

import json
import sys

import openai

base, model = sys.argv[1:]
client = openai.OpenAI(base_url=base, api_key="any", max_retries=0)
city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
tools = [{"type": "function", "function": {"name": "look", "description": "The weather.", "parameters": city}}]
question = {"role": "user", "content": "How is the weather in Paris?"}
asked = {"model": model, "tools": tools, "temperature": 0}

# A tool call, its result, and the final response. The model's message is sent back as the library dumps it,
# with nulls.
first = client.chat.completions.create(messages=[question], **asked).choices[0]
(call,) = first.message.tool_calls
assert first.finish_reason == "tool_calls" and first.message.content == "", first
assert call.type == "function" and call.function.name == "look", call
assert json.loads(call.function.arguments) == {"city": "Paris"}, call
result = {"role": "tool", "tool_call_id": call.id, "content": "20 degrees"}
for message in [first.message, first.message.model_dump()]:
    second = client.chat.completions.create(messages=[question, message, result], **asked)
    assert second.choices[0].message.content == "Sunny and warm.", second
    assert second.choices[0].finish_reason == "stop", second

message = second.choices[0].message.model_dump()
assert message["tool_calls"] is None, message
client.chat.completions.create(messages=[question, message, question], **asked)

# The same, streamed.
calls, reasons, usage = {}, [], None
options = {"include_usage": True}
for chunk in client.chat.completions.create(messages=[question], stream=True, stream_options=options, **asked):
    usage = chunk.usage or usage
    for choice in chunk.choices:
        reasons.append(choice.finish_reason)
        for piece in choice.delta.tool_calls or []:
            call = calls.setdefault(piece.index, {"id": piece.id, "name": piece.function.name, "arguments": ""})
            call["arguments"] += piece.function.arguments
assert [call["name"] for call in calls.values()] == ["look"] and calls[0]["id"], calls
assert json.loads(calls[0]["arguments"]) == {"city": "Paris"}, calls
assert reasons[-1] == "tool_calls" and set(reasons[:-1]) <= {None}, reasons
assert usage.completion_tokens > 3, usage

# Without tools, the tool call is plain text.
plain = client.chat.completions.create(messages=[question], model=model, temperature=0).choices[0]
assert plain.message.tool_calls is None and plain.message.content.startswith("<tool_call>"), plain

# Log-probabilities of the completions API.
text = client.completions.create(model=model, prompt=["<told>"], temperature=0, logprobs=1).choices[0]
assert text.text == "Sunny and warm." and text.logprobs.tokens == ["Sunny", " and", " warm", "."], text
assert text.logprobs.text_offset == [0, 5, 9, 14], text
assert [max(top.values()) for top in text.logprobs.top_logprobs] == text.logprobs.token_logprobs, text

# Errors are of the library's types.
def refused(kind, word, **request):
    try:
        client.chat.completions.create(**{"model": model, "messages": [question]} | request)
    except kind as error:
        assert word in str(error), error
    else:
        raise AssertionError(f"{word}: not refused")


refused(openai.NotFoundError, "team/absent", model="team/absent")
refused(openai.BadRequestError, "messages", messages=[])
refused(openai.BadRequestError, "temperature", temperature="hot")
refused(openai.BadRequestError, "from 1 to 32", n=33)
