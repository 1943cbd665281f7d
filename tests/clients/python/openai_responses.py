"""Tests the Responses API with OpenAI's library, and several choices, biases, echoes and lists of prompts.

Arguments: the base URL, the demo model, a model that calls a weather tool and then reports the result, and a model
that reasons.
"""

import json
import sys

import openai
from pydantic import BaseModel

base, demo, weather, reasoner = sys.argv[1:]
client = openai.OpenAI(base_url=base, api_key="any", max_retries=0)
question = {"role": "user", "content": "How is the weather in Paris?"}
city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
tools = [{"type": "function", "name": "look", "description": "The weather.", "parameters": city, "strict": True}]
plain = {"model": demo, "input": "What is 40 plus 41?", "temperature": 0, "max_output_tokens": 50}

# A response, streamed and not.
response = client.responses.create(**plain)
assert response.output_text == "81." and response.status == "completed", response
with client.responses.stream(**plain) as stream:
    numbers = [event.sequence_number for event in stream if hasattr(event, "sequence_number")]
    final = stream.get_final_response()
assert final.output_text == "81." and numbers == sorted(numbers), final
assert final.usage.output_tokens == response.usage.output_tokens, final
counted = client.responses.input_tokens.count(model=demo, input=plain["input"])
assert counted.input_tokens == response.usage.input_tokens, counted

# A function call, its output, and the final response. The items are sent back as the library has them.
asked = {"model": weather, "tools": tools, "temperature": 0}
first = client.responses.create(input=[question], **asked)
(call,) = first.output
assert call.type == "function_call" and call.name == "look", call
assert json.loads(call.arguments) == {"city": "Paris"}, call
output = {"type": "function_call_output", "call_id": call.call_id, "output": "20 degrees"}
second = client.responses.create(input=[question, *first.output, output], **asked)
assert second.output_text == "Sunny and warm.", second
with client.responses.stream(input=[question], **asked) as stream:
    kinds = [event.type for event in stream]
    (call,) = stream.get_final_response().output
assert call.parsed_arguments == {"city": "Paris"}, call
assert kinds[0] == "response.created" and kinds[-1] == "response.completed", kinds
assert "response.function_call_arguments.done" in kinds, kinds

# Reasoning is an item.
thought = {"model": reasoner, "input": [question], "reasoning": {"effort": "low"}, "temperature": 0}
reply = client.responses.create(include=["reasoning.encrypted_content"], **thought)
assert [item.type for item in reply.output] == ["reasoning", "message"], reply
assert reply.output[0].content[0].text == "Look first." and reply.output_text == "Sunny.", reply
assert reply.usage.output_tokens_details.reasoning_tokens > 0, reply
client.responses.create(**(thought | {"input": [question, *reply.output, question]}))
with client.responses.stream(**thought) as stream:
    text = "".join(event.delta for event in stream if event.type == "response.reasoning_text.delta")
assert text == "Look first.", text


class Level(BaseModel):
    level: bool


parsed = client.responses.parse(text_format=Level, **plain)
assert isinstance(parsed.output_parsed.level, bool), parsed


# Errors are of the library's types.
def refused(kind, word, call=client.responses.create, **request):
    try:
        call(**request)
    except kind as error:
        assert word in str(error), error
    else:
        raise AssertionError(f"{word}: not refused")


refused(openai.NotFoundError, "team/absent", **(plain | {"model": "team/absent"}))
refused(openai.NotFoundError, "stores no responses", call=client.responses.retrieve, response_id=response.id)
refused(openai.BadRequestError, "previous_response_id", previous_response_id=response.id, **plain)
refused(openai.BadRequestError, "web_search", tools=[{"type": "web_search"}], **plain)

# Several choices, lists of prompts, ids, echoes and biases.
chat = {"model": demo, "messages": [{"role": "user", "content": plain["input"]}], "temperature": 0, "max_tokens": 20}
several = client.chat.completions.create(n=3, **chat)
assert [choice.index for choice in several.choices] == [0, 1, 2], several
assert {choice.message.content for choice in several.choices} == {"81."}, several
texts, usage = {}, None
for chunk in client.chat.completions.create(n=3, stream=True, stream_options={"include_usage": True}, **chat):
    usage = chunk.usage or usage
    for choice in chunk.choices:
        texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
assert texts == {0: "81.", 1: "81.", 2: "81."}, texts
assert usage == several.usage or usage.completion_tokens == several.usage.completion_tokens, usage
sampled = client.completions.create(model=demo, prompt="In the beginning", n=2, seed=7, max_tokens=16).choices
alone = [client.completions.create(model=demo, prompt="In the beginning", seed=seed, max_tokens=16).choices[0] for seed in (7, 8)]
assert [choice.text for choice in sampled] == [choice.text for choice in alone], sampled
candidates = [client.completions.create(model=demo, prompt="In the beginning", seed=seed, max_tokens=16, logprobs=0) for seed in (7, 8, 9)]
mean = lambda choice: sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs)
ranked = sorted((candidate.choices[0] for candidate in candidates), key=mean, reverse=True)
best = client.completions.create(model=demo, prompt="In the beginning", n=2, best_of=3, seed=7, max_tokens=16)
assert [choice.text for choice in best.choices] == [choice.text for choice in ranked[:2]], (best, ranked)
assert best.choices[0].logprobs is None, best
assert best.usage.completion_tokens == sum(candidate.usage.completion_tokens for candidate in candidates), best
listed = client.completions.create(model=demo, prompt=["Water", "Fire"], n=2, echo=True, max_tokens=4, temperature=0).choices
assert [choice.index for choice in listed] == [0, 1, 2, 3], listed
assert all(choice.text.startswith(start) for choice, start in zip(listed, ["Water", "Water", "Fire", "Fire"])), listed
banned = client.completions.create(model=demo, prompt="Water", max_tokens=1, temperature=0, logit_bias={"281": 100}, logprobs=1)
ids = client.completions.create(model=demo, prompt=[281, 281], echo=True, max_tokens=1, temperature=0, logit_bias={"281": 100})
token = banned.choices[0].text
assert ids.choices[0].text == token * 3, (ids, token)

# The log-probabilities of a prompt, as evaluations compute them: those of the same tokens when they are generated.
generated = client.completions.create(model=demo, prompt="In the beginning", max_tokens=8, temperature=0, logprobs=2).choices[0]
whole = "In the beginning" + generated.text
scored = client.completions.create(model=demo, prompt=whole, max_tokens=0, echo=True, logprobs=2).choices[0]
assert scored.text == whole and scored.finish_reason == "length", scored
logprobs = scored.logprobs
assert "".join(logprobs.tokens) == whole and logprobs.text_offset[0] == 0, logprobs
assert logprobs.token_logprobs[0] is None and logprobs.top_logprobs[0] is None, logprobs
assert logprobs.tokens[-8:] == generated.logprobs.tokens, (logprobs, generated)
for found, known in zip(logprobs.token_logprobs[-8:], generated.logprobs.token_logprobs):
    assert abs(found - known) < 1e-2, (found, known)
assert all(max(top, key=top.get) == token for token, top in zip(logprobs.tokens[-8:], logprobs.top_logprobs[-8:])), logprobs
pieces = client.completions.create(model=demo, prompt=whole, max_tokens=1, temperature=0, echo=True, logprobs=0, stream=True)
streamed = [choice for piece in pieces for choice in piece.choices]
assert "".join(choice.text for choice in streamed).startswith(whole), streamed
tokens = [token for choice in streamed if choice.logprobs for token in choice.logprobs.tokens]
assert tokens[:-1] == logprobs.tokens, (tokens, logprobs)
refused(openai.BadRequestError, "outside the model's vocabulary", call=client.completions.create, model=demo, prompt=[4096], max_tokens=1)
