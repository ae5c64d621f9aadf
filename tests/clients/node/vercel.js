// The Vercel AI SDK, with its provider for OpenAI-compatible servers and its provider for OpenAI itself.

import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import OpenAI, { toFile } from "openai";
import { embedMany, generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { all, run, url } from "./scenarios.js";

globalThis.AI_SDK_LOG_WARNINGS = false;
const baseURL = `${url}/v1`;
const compatible = createOpenAICompatible({
  name: "appliance",
  baseURL,
  apiKey: "none",
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const openai = createOpenAI({ baseURL, apiKey: "none" });
const models = { compatible: compatible("m"), chat: openai.chat("m"), responses: openai.responses("m") };
const schema = z.object({ left: z.number().int(), right: z.number().int() });
const maxRetries = 0;

function each(scenario) {
  return async () => {
    const said = {};
    for (const [name, model] of Object.entries(models)) said[name] = await scenario(model);
    return said;
  };
}

run({
  generate: each(async (model) => {
    const { text, finishReason, usage } = await generateText({ model, prompt: "hi", system: "Be brief.", maxRetries });
    return { text, finishReason, tokens: [usage.inputTokens, usage.outputTokens] };
  }),

  stream: each(async (model) => {
    const answer = streamText({ model, prompt: "hi", maxRetries });
    const pieces = await all(answer.textStream);
    const usage = await answer.usage;
    return { pieces, finishReason: await answer.finishReason, tokens: [usage.inputTokens, usage.outputTokens] };
  }),

  tools: each(async (model) => {
    const asked = [];
    const weather = tool({
      description: "How warm it is",
      inputSchema: z.object({ city: z.string() }),
      execute: async ({ city }) => {
        asked.push(city);
        return { celsius: 12 };
      },
    });
    const options = { model, tools: { weather }, stopWhen: stepCountIs(3), prompt: "How warm is 'Ulm'?", maxRetries };
    const plain = await generateText(options);
    const streamed = streamText(options);
    const text = (await all(streamed.textStream)).join("");
    return { asked, texts: [plain.text, text], steps: [plain.steps.length, (await streamed.steps).length] };
  }),

  object: each(async (model) => {
    const options = { model, output: Output.object({ schema }), prompt: "Add 1 and 2.", maxRetries };
    const plain = await generateText(options);
    const streamed = streamText(options);
    const partial = await all(streamed.partialOutputStream);
    return [plain.output, partial.at(-1)];
  }),

  reasoning: async () => {
    const { text, reasoningText } = await generateText({ model: models.compatible, prompt: "think", maxRetries });
    const answer = streamText({ model: models.compatible, prompt: "think", maxRetries });
    await answer.consumeStream();
    return { text, plain: reasoningText, streamed: await answer.reasoningText };
  },

  citations: async () => {
    const client = new OpenAI({ baseURL, apiKey: "none", maxRetries });
    const store = await client.vectorStores.create({ name: "birds" });
    const file = await toFile(Buffer.from("The zebrafinch sings at dawn."), "birds.txt");
    await client.vectorStores.files.uploadAndPoll(store.id, file, { pollIntervalMs: 20 });
    const tools = { file_search: openai.tools.fileSearch({ vectorStoreIds: [store.id] }) };
    const options = { model: models.responses, tools, prompt: "zebrafinch", maxRetries };
    const plain = await generateText(options);
    const streamed = streamText(options);
    await streamed.consumeStream();
    await client.vectorStores.delete(store.id);
    const titles = (sources) => sources.map((source) => source.title);
    return { text: plain.text, plain: titles(plain.sources), streamed: titles(await streamed.sources) };
  },

  embed: async () => {
    const values = ["a zebrafinch", "an otter"];
    const found = [];
    for (const model of [compatible.embeddingModel("words"), openai.embedding("words")]) {
      const { embeddings, usage } = await embedMany({ model, values, maxRetries });
      found.push({ lengths: embeddings.map((one) => one.length), tokens: usage.tokens });
    }
    return found;
  },

  error: each(async (model) => {
    const missing = await generateText({ model, prompt: "hi", topP: 7, maxRetries }).catch((error) => error);
    return { kind: missing.name, status: missing.statusCode, message: missing.message };
  }),
});
