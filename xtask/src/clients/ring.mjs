// npm's openai and Vercel's ai against a ring: node ring.mjs URL. Ends with a hash of all said.
import { createHash } from "node:crypto";
import { strict as assert } from "node:assert";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const URL = process.argv[2];
// Packages lie where this was started.
const require = createRequire(`${process.cwd()}/package.json`);
const load = async (name) => import(pathToFileURL(require.resolve(name)));
const { default: OpenAI } = await load("openai");
const { generateText, streamText, Output, tool, jsonSchema } = await load("ai");
const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");

const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: "unused", maxRetries: 0 });
const MODEL = (await client.models.list()).data[0].id;
const provider = createOpenAICompatible({
  name: "baton", baseURL: `${URL}/v1`, apiKey: "unused",
  supportsStructuredOutputs: true, includeUsage: true,
});
const model = provider(MODEL);
const messages = [{ role: "user", content: "Name a sea and say how deep it is." }];
const ask = { model: MODEL, messages, seed: 3, max_tokens: 40, temperature: 1 };
const schema = {
  type: "object", properties: { name: { enum: ["North", "Red"] }, deep: { type: "boolean" } },
  required: ["name", "deep"], additionalProperties: false,
};
const format = { type: "json_schema", json_schema: { name: "sea", schema, strict: true } };
const dive = { name: "dive", parameters: schema };
const said = [];
const quiet = { model, maxRetries: 0, seed: 3, temperature: 1, maxOutputTokens: 200 };

const tests = {
  async chatIsItsStream() {
    const whole = (await client.chat.completions.create(ask)).choices[0].message.content;
    let streamed = "";
    for await (const chunk of await client.chat.completions.create({ ...ask, stream: true })) {
      streamed += chunk.choices[0]?.delta.content ?? "";
    }
    assert.equal(streamed, whole);
    said.push(whole);
  },
  async tools() {
    const tools = [{ type: "function", function: dive }];
    const body = { ...ask, max_tokens: 200, tools, tool_choice: "required",
      parallel_tool_calls: false };
    const whole = await client.chat.completions.create(body);
    const call = whole.choices[0].message.tool_calls[0];
    assert.ok(["North", "Red"].includes(JSON.parse(call.function.arguments).name));
    const final = await client.chat.completions.stream(body).finalChatCompletion();
    const streamed = final.choices[0].message.tool_calls[0].function.arguments;
    assert.equal(streamed, call.function.arguments);
    said.push(streamed);
  },
  async structuredOutput() {
    const body = { ...ask, max_tokens: 200, response_format: format };
    const reply = await client.chat.completions.parse(body);
    const sea = reply.choices[0].message.parsed;
    assert.equal(typeof sea.deep, "boolean");
    said.push(JSON.stringify(sea));
  },
  async responses() {
    const first = await client.responses.create({ model: MODEL, input: "Hello",
      max_output_tokens: 20 });
    let streamed = "";
    for await (const event of client.responses.stream({ model: MODEL, input: "And then?",
      previous_response_id: first.id, max_output_tokens: 20 })) {
      if (event.type === "response.output_text.delta") streamed += event.delta;
    }
    const kept = await client.responses.retrieve(first.id);
    assert.equal(kept.output_text ?? kept.output[0].content[0].text, first.output_text);
    await client.responses.delete(first.id);
    await assert.rejects(client.responses.retrieve(first.id), { status: 404 });
    said.push(first.output_text, streamed);
  },
  async errors() {
    const wrong = client.chat.completions.create({ ...ask, temperature: 9 });
    await assert.rejects(wrong, { status: 400, param: "temperature" });
  },
  async aiTextIsItsStream() {
    const whole = await generateText({ ...quiet, maxOutputTokens: 40, messages });
    const stream = streamText({ ...quiet, maxOutputTokens: 40, messages });
    let streamed = "";
    for await (const part of stream.textStream) streamed += part;
    assert.equal(streamed, whole.text);
    assert.equal((await stream.usage).outputTokens, whole.usage.outputTokens);
    assert.equal(whole.text, said[0], "the same request through both packages");
    said.push(whole.text);
  },
  async aiTools() {
    const tools = { dive: tool({ description: "Dives.", inputSchema: jsonSchema(schema) }) };
    const { toolCalls } = await generateText({ ...quiet, messages, tools,
      toolChoice: "required", providerOptions: { baton: { parallel_tool_calls: false } } });
    assert.ok(["North", "Red"].includes(toolCalls[0].input.name));
    said.push(JSON.stringify(toolCalls[0].input));
  },
  async aiStructuredOutput() {
    const output = Output.object({ schema: jsonSchema(schema) });
    const reply = await generateText({ ...quiet, messages, output });
    assert.equal(typeof reply.output.deep, "boolean");
    said.push(JSON.stringify(reply.output));
  },
};
for (const [name, test] of Object.entries(tests)) {
  await test().catch((error) => {
    console.error(`${name}:`, error);
    process.exit(1);
  });
}
const hash = createHash("sha256").update(JSON.stringify(said)).digest("hex").slice(0, 16);
console.log(`node: ${Object.keys(tests).length} passed, said ${hash}`);
