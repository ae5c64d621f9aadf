// The official OpenAI client for JavaScript.

import OpenAI, { toFile } from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import { all, run, url } from "./scenarios.js";

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0, timeout: 20_000 });
const model = "m";
const messages = [{ role: "user", content: "hi" }];
const Sum = z.object({ left: z.number().int(), right: z.number().int() });
const city = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };

run({
  async chat() {
    const { data, request_id, response } = await client.chat.completions.create({ model, messages }).withResponse();
    const took = Number(response.headers.get("openai-processing-ms"));
    return { text: data.choices[0].message.content, request_id, took, usage: data.usage };
  },

  async chatStream() {
    const stream_options = { include_usage: true };
    const chunks = await all(await client.chat.completions.create({ model, messages, stream: true, stream_options }));
    const text = chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");
    return { text, usage: chunks.at(-1).usage, reasons: chunks.map((chunk) => chunk.choices[0]?.finish_reason) };
  },

  async streamHelper() {
    const stream = client.chat.completions.stream({ model, messages });
    const pieces = [];
    stream.on("content", (piece) => pieces.push(piece));
    const answer = await stream.finalChatCompletion();
    return { joined: pieces.join(""), text: answer.choices[0].message.content };
  },

  async runTools() {
    const asked = [];
    const weather = { name: "weather", parameters: city, parse: JSON.parse, function: ({ city }) => asked.push(city) };
    const question = [{ role: "user", content: "How warm is 'Ulm'?" }];
    const runner = client.chat.completions.runTools({
      model,
      messages: question,
      tools: [{ type: "function", function: weather }],
      stream: true,
    });
    return { text: await runner.finalContent(), asked, roles: runner.messages.map((message) => message.role) };
  },

  async parse() {
    const question = [{ role: "user", content: "Add 1 and 2." }];
    const response_format = zodResponseFormat(Sum, "sum");
    const answer = await client.chat.completions.parse({ model, messages: question, response_format });
    return answer.choices[0].message.parsed;
  },

  async completion() {
    const answer = await client.completions.create({ model, prompt: "once" });
    const pieces = await all(await client.completions.create({ model, prompt: "once", stream: true }));
    return [answer.choices[0].text, pieces.map((piece) => piece.choices[0].text).join("")];
  },

  async responses() {
    const made = await client.responses.create({ model, input: "hi", store: true });
    const found = await client.responses.retrieve(made.id);
    const items = await all(client.responses.inputItems.list(made.id));
    const stream = client.responses.stream({ model, input: "more", previous_response_id: made.id });
    const types = (await all(stream)).map((event) => event.type);
    const final = await stream.finalResponse();
    await client.responses.delete(made.id);
    const gone = await client.responses.retrieve(made.id).catch((error) => error.status);
    return {
      texts: [made.output_text, found.output_text, final.output_text],
      items: items.map((item) => item.content[0].text),
      ends: [types[0], types.at(-1)],
      gone,
    };
  },

  async parseResponse() {
    const text = { format: zodTextFormat(Sum, "sum") };
    return (await client.responses.parse({ model, input: "Add 3 and 4.", text })).output_parsed;
  },

  async conversation() {
    const talk = await client.conversations.create({ metadata: { topic: "birds" } });
    await client.responses.create({ model, input: "hi", conversation: talk.id });
    const items = await all(client.conversations.items.list(talk.id, { order: "asc", limit: 1 }));
    return items.map((item) => item.content[0].text);
  },

  async embeddings() {
    const packed = await client.embeddings.create({ model: "words", input: ["a zebrafinch"] });
    const plain = await client.embeddings.create({ model: "words", input: "a zebrafinch", encoding_format: "float" });
    const [one, other] = [packed, plain].map((answer) => answer.data[0].embedding);
    return { length: one.length, apart: Math.max(...one.map((x, i) => Math.abs(x - other[i]))) };
  },

  async models() {
    return (await all(client.models.list())).map((one) => one.id);
  },

  async store() {
    const store = await client.vectorStores.create({ name: "birds" });
    const file = await toFile(Buffer.from("a zebrafinch"), "bird.txt");
    const kept = await client.vectorStores.files.uploadAndPoll(store.id, file, { pollIntervalMs: 20 });
    const files = [await toFile(Buffer.from("an otter"), "otter.txt"), await toFile(Buffer.from("a trout"), "trout.txt")];
    const batch = await client.vectorStores.fileBatches.uploadAndPoll(store.id, { files }, { pollIntervalMs: 20 });
    const hits = await all(client.vectorStores.search(store.id, { query: "zebrafinch", max_num_results: 1 }));
    const content = await (await client.files.content(kept.id)).text();
    const members = await all(client.vectorStores.files.list(store.id, { limit: 1 }));
    const gone = await client.vectorStores.delete(store.id);
    return {
      status: kept.status,
      counts: batch.file_counts,
      hits: hits.map((hit) => hit.filename),
      content,
      members: members.length,
      gone: gone.deleted,
    };
  },

  async upload() {
    const begun = await client.uploads.create({ bytes: 6, filename: "a.txt", mime_type: "text/plain", purpose: "assistants" });
    const parts = [];
    for (const text of ["abc", "def"]) {
      const data = await toFile(Buffer.from(text), "part");
      parts.push((await client.uploads.parts.create(begun.id, { data })).id);
    }
    const done = await client.uploads.complete(begun.id, { part_ids: parts });
    return { status: done.status, content: await (await client.files.content(done.file.id)).text() };
  },

  async errors() {
    const missing = await client.chat.completions.create({ model: "nobody", messages }).catch((error) => error);
    const wrong = await client.chat.completions.create({ model, messages, top_p: 7, stream: true }).catch((error) => error);
    return [missing, wrong].map(({ constructor, status, code, param, requestID }) => ({
      kind: constructor.name,
      status,
      code,
      param,
      named: Boolean(requestID),
    }));
  },
});
