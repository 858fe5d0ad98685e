// Vercel's AI SDK through @ai-sdk/openai-compatible: text, streams, objects, tools, errors.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateObject, generateText, stepCountIs, streamObject, streamText, tool } from "ai";
import { z } from "zod";

const [url, name] = process.argv.slice(2);
const provider = createOpenAICompatible({
  name: "pageloom",
  baseURL: `${url}/v1`,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const greedy = { model: provider(name), temperature: 0, maxRetries: 0 };
const prompt = "What is the capital of France?";
const schema = z.object({ name: z.string().max(20), is_large: z.boolean() });
const weather = tool({
  description: "The weather in a city.",
  inputSchema: z.object({ city: z.string().max(20) }),
  execute: async ({ city }) => `Rain in ${city}.`,
});

test("text, streamed and not", async () => {
  const asked = { ...greedy, system: "Be brief.", prompt, maxOutputTokens: 40 };
  const whole = await generateText(asked);
  assert.match(whole.text, /Paris/);
  assert.equal(whole.finishReason, "stop");
  const streamed = streamText(asked);
  let text = "";
  for await (const piece of streamed.textStream) text += piece;
  assert.equal(text, whole.text);
  assert.equal((await streamed.usage).outputTokens, whole.usage.outputTokens);
  assert.ok(whole.usage.outputTokens > 0);
});

test("objects, streamed and not", async () => {
  const asked = { ...greedy, schema, prompt: "Describe Oslo.", maxOutputTokens: 100 };
  const whole = await generateObject(asked);
  schema.parse(whole.object);
  const streamed = streamObject(asked);
  let last;
  for await (const part of streamed.partialObjectStream) last = part;
  assert.deepEqual(last, whole.object);
});

test("a tool that is called and its result", async () => {
  const asked = { ...greedy, tools: { weather }, prompt: "How is the weather in Oslo?", maxOutputTokens: 60 };
  const forced = await generateText({ ...asked, toolChoice: { type: "tool", toolName: "weather" } });
  assert.equal(forced.finishReason, "tool-calls");
  assert.equal(forced.toolCalls[0].toolName, "weather");
  assert.match(forced.toolResults[0].output, /^Rain in /);
  const streamed = streamText({ ...asked, toolChoice: "required" });
  const kinds = [];
  for await (const part of streamed.fullStream) kinds.push(part.type);
  assert.ok(kinds.includes("tool-input-delta"));
  assert.ok(kinds.includes("tool-call"));
  const messages = [{ role: "user", content: asked.prompt }, ...forced.response.messages];
  const { prompt: _, ...rest } = asked;
  const after = await generateText({ ...rest, messages, stopWhen: stepCountIs(1), maxOutputTokens: 16 });
  assert.ok(after.usage.inputTokens > forced.usage.inputTokens);
});

test("errors", async () => {
  const unknown = provider("no-such-model");
  await assert.rejects(generateText({ ...greedy, model: unknown, prompt }), (error) => {
    assert.ok(APICallError.isInstance(error));
    assert.equal(error.statusCode, 404);
    assert.match(error.message, /no-such-model/);
    return true;
  });
});
