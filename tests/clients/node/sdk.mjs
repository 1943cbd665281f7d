// Tests OpenAI's and Anthropic's packages.
//
// Arguments: the server's URL, the demo model, a model that calls a weather tool and then reports the result, and a
// model that reasons.
import assert from "node:assert/strict";

import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const [server, demo, weather, reasoner] = process.argv.slice(2);
const openai = new OpenAI({ baseURL: `${server}/v1`, apiKey: "any", maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: server, apiKey: "any", maxRetries: 0 });
const sum = "What is 40 plus 41?";
const question = { role: "user", content: "How is the weather in Paris?" };
const city = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };

// Chat completions, with several choices.
const chat = await openai.chat.completions.create({
  model: demo, messages: [{ role: "user", content: sum }], temperature: 0, n: 2,
});
assert.deepEqual(chat.choices.map((choice) => choice.message.content), ["81.", "81."]);

// Responses, streamed, with a function call.
const stream = openai.responses.stream({ model: demo, input: sum, temperature: 0 });
let text = "";
stream.on("response.output_text.delta", (event) => (text += event.delta));
const response = await stream.finalResponse();
assert.equal(text, "81.");
assert.equal(response.output_text, "81.");
const functions = [{ type: "function", name: "look", parameters: city, strict: false }];
const first = await openai.responses.create({ model: weather, input: [question], tools: functions, temperature: 0 });
assert.deepEqual(JSON.parse(first.output[0].arguments), { city: "Paris" });
const output = { type: "function_call_output", call_id: first.output[0].call_id, output: "20 degrees" };
const second = await openai.responses.create({
  model: weather, input: [question, ...first.output, output], tools: functions, temperature: 0,
});
assert.equal(second.output_text, "Sunny and warm.");
await assert.rejects(
  openai.responses.create({ model: demo, input: sum, previous_response_id: response.id }),
  (error) => error instanceof OpenAI.BadRequestError && error.param === "previous_response_id",
);

// Messages, streamed, with a tool and with reasoning.
const plain = { model: demo, max_tokens: 50, messages: [{ role: "user", content: sum }], temperature: 0 };
const message = await anthropic.messages.stream(plain).finalMessage();
assert.equal(message.content[0].text, "81.");
const counted = await anthropic.messages.countTokens({ model: demo, messages: plain.messages });
assert.ok(counted.input_tokens > 5);
const tools = [{ name: "look", input_schema: city }];
const asked = { model: weather, max_tokens: 100, tools, temperature: 0 };
const called = await anthropic.messages.stream({ ...asked, messages: [question] }).finalMessage();
assert.equal(called.stop_reason, "tool_use");
assert.deepEqual(called.content[0].input, { city: "Paris" });
const result = { type: "tool_result", tool_use_id: called.content[0].id, content: "20 degrees" };
const turns = [question, { role: "assistant", content: called.content }, { role: "user", content: [result] }];
const told = await anthropic.messages.create({ ...asked, messages: turns });
assert.equal(told.content[0].text, "Sunny and warm.");
const thinking = { type: "enabled", budget_tokens: 1024 };
const thought = await anthropic.messages
  .stream({ model: reasoner, max_tokens: 2048, messages: [question], thinking, temperature: 0 })
  .finalMessage();
assert.deepEqual(thought.content.map((block) => block.type), ["thinking", "text"]);
await assert.rejects(
  anthropic.messages.create({ ...plain, model: "team/absent" }),
  (error) => error instanceof Anthropic.NotFoundError && error.error.type === "error",
);
