"""Asks the appliance by LlamaIndex as a user's program does, and prints what came back as JSON.

Usage: python ask.py URL CHAT_MODEL EMBEDDING_MODEL QUESTION
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from llama_index.core import Document, VectorStoreIndex
from llama_index.core.llms import ChatMessage
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel


class Sum(BaseModel):
    """Two numbers."""

    left: int
    right: int


def warmth(city: str) -> str:
    """How warm it is."""
    return f"12 degrees in {city}"


def texts(llm: OpenAILike, question: str) -> dict[str, Any]:
    """The same question in every form that gives text."""
    messages = [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content=question)]
    answer = llm.chat(messages)
    pieces = [piece.delta or "" for piece in llm.stream_chat(messages)]

    async def asynchronous() -> list[str]:
        plain = await llm.achat(messages)
        streamed = [piece.delta or "" async for piece in await llm.astream_chat(messages)]
        return [str(plain.message.content), "".join(streamed)]

    return {
        "chat": answer.message.content,
        "usage": answer.additional_kwargs,
        "stream": "".join(pieces),
        "pieces": len(pieces),
        "asynchronous": asyncio.run(asynchronous()),
        "complete": llm.complete(question).text,
    }


def tools(llm: OpenAILike) -> dict[str, Any]:
    """A tool's call, its arguments, and a structured answer."""
    tool = FunctionTool.from_defaults(warmth)
    answer = llm.chat_with_tools([tool], user_msg="How warm is 'Ulm'?")
    (call,) = llm.get_tool_calls_from_response(answer)
    done = llm.predict_and_call([tool], user_msg="How warm is 'Ulm'?")
    parsed = llm.as_structured_llm(Sum).complete("Add 1 and 2.").raw
    return {"name": call.tool_name, "arguments": call.tool_kwargs, "done": str(done), "parsed": parsed.model_dump()}


def retrieval(llm: OpenAILike, embedder: OpenAILikeEmbedding) -> dict[str, Any]:
    """An index of LlamaIndex's own, embedded by the appliance and answered by it."""
    documents = [Document(text=text) for text in ("The zebrafinch sings at dawn.", "Otters swim in rivers.")]
    splitter = SentenceSplitter(tokenizer=str.split)
    index = VectorStoreIndex.from_documents(documents, embed_model=embedder, transformations=[splitter])
    answer = index.as_query_engine(llm=llm, similarity_top_k=1).query("When does the zebrafinch sing?")
    return {"source": answer.source_nodes[0].text, "answer": str(answer)}


def main(url: str, chat_model: str, embedding_model: str, question: str) -> None:
    """Ask everything that the model can do."""
    options = {"api_base": f"{url}/v1", "api_key": "none", "max_retries": 0, "timeout": 60}
    llm = OpenAILike(model=chat_model, is_chat_model=True, context_window=4096, max_tokens=24, temperature=0, **options)
    embedder = OpenAILikeEmbedding(model_name=embedding_model, **options)
    found = {
        "texts": texts(llm, question),
        "vectors": [len(vector) for vector in embedder.get_text_embedding_batch(["a zebrafinch", "an otter"])],
        "retrieval": retrieval(llm, embedder),
    }
    # A model made for examples, not for tools, has no part in this.
    if chat_model == "m":
        able = OpenAILike(
            model=chat_model, is_chat_model=True, is_function_calling_model=True, context_window=4096, **options
        )
        found["tools"] = tools(able)
        found["completion"] = OpenAILike(model=chat_model, is_chat_model=False, **options).complete(question).text
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
