// The official JavaScript client: chat, streams and leaving them, helpers that parse, tools, responses, errors.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const [url, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "What is the capital of France?" }];
const greedy = { model, messages, temperature: 0, max_tokens: 40 };
const City = z.object({ name: z.string().max(20), is_large: z.boolean() });
const weather = {
  type: "function",
  function: {
    name: "weather",
    parameters: {
      type: "object",
      properties: { city: { type: "string", maxLength: 20 } },
      required: ["city"],
      additionalProperties: false,
    },
  },
};

test("models", async () => {
  const names = [];
  for await (const entry of client.models.list()) names.push(entry.id);
  assert.deepEqual(names, [model]);
});

test("a streamed chat is the same text", async () => {
  const whole = await client.chat.completions.create(greedy);
  assert.match(whole.choices[0].message.content, /Paris/);
  const stream = await client.chat.completions.create({
    ...greedy,
    stream: true,
    stream_options: { include_usage: true },
  });
  let text = "";
  let usage;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
});

test("leaving a stream", async () => {
  const stream = await client.chat.completions.create({ ...greedy, max_tokens: 2000, ignore_eos: true, stream: true });
  let num_chunks = 0;
  for await (const chunk of stream) {
    assert.equal(chunk.object, "chat.completion.chunk");
    if (++num_chunks === 3) stream.controller.abort();
  }
  assert.ok(num_chunks < 20);
});

test("answers parsed by a schema", async () => {
  const question = [{ role: "user", content: "Describe Oslo." }];
  const response_format = zodResponseFormat(City, "city");
  const answer = await client.chat.completions.parse({ ...greedy, messages: question, max_tokens: 100, response_format });
  City.parse(answer.choices[0].message.parsed);
});

test("a function that is run", async () => {
  const asked = { ...greedy, tools: [weather], tool_choice: "required", parallel_tool_calls: false };
  const whole = await client.chat.completions.create(asked);
  assert.equal(whole.choices[0].finish_reason, "tool_calls");
  const [call] = whole.choices[0].message.tool_calls;
  assert.ok("city" in JSON.parse(call.function.arguments));
  const streamed = await client.chat.completions.stream(asked).finalMessage();
  assert.equal(streamed.tool_calls[0].function.arguments, call.function.arguments);
  const result = { role: "tool", tool_call_id: call.id, content: "Rain." };
  const followed = [...messages, whole.choices[0].message, result];
  await client.chat.completions.create({ ...greedy, messages: followed, tools: [weather], max_tokens: 8 });
});

test("responses", async () => {
  const asked = { model, input: messages[0].content, temperature: 0, max_output_tokens: 40 };
  const whole = await client.responses.create(asked);
  assert.match(whole.output_text, /Paris/);
  let text = "";
  for await (const event of await client.responses.create({ ...asked, stream: true })) {
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  assert.equal(text, whole.output_text);
});

test("errors", async () => {
  await assert.rejects(client.chat.completions.create({ ...greedy, model: "no-such-model" }), (error) => {
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.equal(error.code, "model_not_found");
    return true;
  });
  await assert.rejects(client.chat.completions.create({ ...greedy, top_p: 7 }), OpenAI.BadRequestError);
});
