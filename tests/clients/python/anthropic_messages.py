"""Tests the Messages API with Anthropic's library.

Arguments: the server's URL, the demo model, a model that calls a weather tool and then reports the result, and a
model that reasons.
"""

import sys

import anthropic

server, demo, weather, reasoner = sys.argv[1:]
client = anthropic.Anthropic(base_url=server, api_key="any", max_retries=0)
# The library has no parameter for the temperature.
greedy = {"extra_body": {"temperature": 0}}
question = {"role": "user", "content": "How is the weather in Paris?"}
city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
tools = [{"name": "look", "description": "The weather.", "input_schema": city}]
asked = {"model": weather, "max_tokens": 100, "tools": tools} | greedy

# A message, streamed and not; its tokens.
sum_ = {"role": "user", "content": "What is 40 plus 41?"}
plain = {"model": demo, "max_tokens": 50, "messages": [sum_]} | greedy
message = client.messages.create(**plain)
assert [block.text for block in message.content] == ["81."], message
assert message.stop_reason == "end_turn" and message._request_id, message
counted = client.messages.count_tokens(model=demo, messages=[sum_])
usage = message.usage
assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens > 5, counted
with client.messages.stream(**plain) as stream:
    assert "".join(stream.text_stream) == "81."
    final = stream.get_final_message()
assert final.content[0].text == "81." and final.stop_reason == "end_turn", final
assert final.usage.output_tokens == usage.output_tokens, final

# A tool call, its result, and the final response. The message is sent back as the library has it.
first = client.messages.create(messages=[question], **asked)
(call,) = first.content
assert first.stop_reason == "tool_use" and call.type == "tool_use", first
assert call.name == "look" and call.input == {"city": "Paris"}, call
result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "20 degrees"}]}
second = client.messages.create(messages=[question, {"role": "assistant", "content": first.content}, result], **asked)
assert second.content[0].text == "Sunny and warm." and second.stop_reason == "end_turn", second

# The same call, streamed.
with client.messages.stream(messages=[question], **asked) as stream:
    kinds = [event.type for event in stream]
    final = stream.get_final_message()
assert final.content[0].input == {"city": "Paris"} and final.stop_reason == "tool_use", final
assert kinds[0] == "message_start" and kinds[-1] == "message_stop", kinds
assert "input_json" in kinds, kinds

# Reasoning, if the request wants it.
thinking = {"type": "enabled", "budget_tokens": 1024}
thought = {"model": reasoner, "max_tokens": 2048, "messages": [question], "thinking": thinking} | greedy
reply = client.messages.create(**thought)
assert [block.type for block in reply.content] == ["thinking", "text"], reply
assert reply.content[0].thinking == "Look first." and reply.content[1].text == "Sunny.", reply
with client.messages.stream(**thought) as stream:
    final = stream.get_final_message()
assert [block.type for block in final.content] == ["thinking", "text"], final
assert final.content[0].thinking == "Look first.", final
turns = [question, {"role": "assistant", "content": final.content}, question]
client.messages.create(**(thought | {"messages": turns}))

# A stop sequence, and a limit.
stopped = client.messages.create(**(plain | {"stop_sequences": ["1"]}))
assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == "1", stopped
assert client.messages.create(**(plain | {"max_tokens": 1})).stop_reason == "max_tokens"

# Structured output.
schema = {"type": "object", "properties": {"level": {"enum": ["low", "high"]}}, "required": ["level"]}
schema["additionalProperties"] = False
formatted = client.messages.create(output_config={"format": {"type": "json_schema", "schema": schema}}, **plain)
assert formatted.content[0].text.replace(" ", "").replace("\n", "") in ('{"level":"low"}', '{"level":"high"}'), formatted


# Errors are of the library's types.
def refused(kind, word, **request):
    try:
        client.messages.create(**(plain | request))
    except kind as error:
        assert word in str(error) and error.body["type"] == "error" and error.request_id, error
    else:
        raise AssertionError(f"{word}: not refused")


refused(anthropic.NotFoundError, "team/absent", model="team/absent")
refused(anthropic.BadRequestError, "messages", messages=[])
refused(anthropic.BadRequestError, "container", container="c")
refused(anthropic.BadRequestError, "surprise", extra_body={"surprise": 1})
refused(anthropic.BadRequestError, "does not support thinking", thinking={"type": "enabled", "budget_tokens": 10})
refused(anthropic.BadRequestError, "web_search", tools=[{"type": "web_search_20250305", "name": "web_search"}])
