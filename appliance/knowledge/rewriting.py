"""A chat model turns what somebody asked into what a search should look for, or into several such.

For searches that ask for it (``rewrite_query``), and for chats, where the turns before the question say what its words
stand for: "and how much does it cost?" becomes a question that can be searched for by itself (conversational query
rewriting: Vakulenko et al., "Question Rewriting for Conversational Question Answering", WSDM 2021).

It is a chat inside the caller's own, with the caller's rights and limits. Where the model cannot be had, is slow, or
says nothing of use, the question is searched as it is: an aid must not cost anybody their answer.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from appliance.config import RetrievalConfig
from appliance.types import Call, Chunk, Search
from appliance.wire import ChatRequest, Message, message_text

log = logging.getLogger("appliance.retrieval")
Ask: TypeAlias = Callable[[Call], AbstractAsyncContextManager[AsyncIterable[Chunk]]]
"""Has a call answered as a part of another one."""
MAX_QUERIES = 16
"""Of one search."""
_MAX_TOKENS, _MAX_CHARACTERS = 96, 1024
"""Of one query that a model writes."""
_EARLIER_TURNS, _TURN_CHARACTERS = 6, 600
"""What is read of a conversation: a question seldom refers further back, and an answer begins with what it is about."""
_ONE = (
    "Rewrite the user's text as one query for a search engine: the subject with its important words and names, without "
    "greetings, instructions or filler. Answer with the query alone, in the language of the text."
)
_SEVERAL = (
    "Write {count} different queries for a search engine that would find documents answering the user's text: other "
    "words for the same, and its parts by themselves. Answer with the queries alone, one a line, in the language of "
    "the text."
)
_CONVERSATION = (
    " The text is the last message of a conversation. A query must be understood without the rest: where the message"
    " says it, that, they or leaves something out, write the name or the subject that the conversation gives for it."
)
_LIST_MARK = re.compile(r"^(?:[-*\u2022]|\d{1,2}[.)])\s+")


@dataclass(frozen=True)
class Rewriter:
    """Rewrites searches by one model. ``count`` queries are made of each; ``seconds`` is how long that may take."""

    model: str
    count: int = 1
    seconds: float = 5.0

    async def rewritten(self, call: Call, search: Search, ask: Ask) -> Search:
        """The search with its queries as the model puts them; as they are where it has none in time.

        With a count above 1 each query comes with that many others for the same, up to 16 in all.
        """
        earlier = earlier_turns(call.request) if isinstance(call.request, ChatRequest) else []
        said = await asyncio.gather(*(self._heard(call, query, earlier, ask) for query in search.queries))
        return msgspec.structs.replace(search, queries=self._queries(search.queries, said))

    def _queries(self, asked: Sequence[str], said: Sequence[str]) -> tuple[str, ...]:
        if self.count == 1:
            return tuple(_one_line(text) or query for query, text in zip(asked, said, strict=True))
        found = [line for text in said for line in _lines(text)[: self.count]]
        return tuple(dict.fromkeys([*asked, *found]))[:MAX_QUERIES]

    async def _heard(self, call: Call, query: str, earlier: Sequence[str], ask: Ask) -> str:
        """What the model says in time, or nothing."""
        try:
            async with asyncio.timeout(self.seconds):
                return await self._said(call, query, earlier, ask)
        except Exception as error:  # noqa: BLE001  whatever is wrong with the model, the question can be searched for
            name = type(error).__name__
            log.warning("call %s: a query is searched as asked, not as %s puts it: %s", call.id, self.model, name)
            return ""

    async def _said(self, call: Call, query: str, earlier: Sequence[str], ask: Ask) -> str:
        task = _ONE if self.count == 1 else _SEVERAL.format(count=self.count)
        text = query
        if earlier:
            task += _CONVERSATION
            text = "\n".join(("Conversation:", *earlier, "", f"Last message: {query}"))
        request = ChatRequest(
            model=self.model,
            messages=[Message(role="system", content=task), Message(role="user", content=text)],
            max_completion_tokens=self.count * _MAX_TOKENS,
            temperature=0.0,
        )
        inner = Call(
            id=call.id,
            operation="chat",
            model=self.model,
            request=request,
            principal=call.principal,
            within=call.operation,
            headers=call.headers,
        )
        async with ask(inner) as answer:
            bodies = [chunk.body async for chunk in answer]
        return (bodies[-1]["choices"][0]["message"].get("content") or "") if bodies else ""


def rewriter_of(config: RetrievalConfig) -> Rewriter | None:
    """As the configuration has it; ``None`` where it names no model."""
    if config.rewrite_model is None:
        return None
    return Rewriter(config.rewrite_model, config.rewrite_queries, config.rewrite_timeout)


def earlier_turns(request: ChatRequest) -> list[str]:
    """What user and assistant said before the last question, the newest turns, each shortened to one line."""
    asked = [i for i, message in enumerate(request.messages) if message.role == "user"]
    before = request.messages[: asked[-1]] if asked else []
    turns = [(message.role, message_text(message)) for message in before if message.role in ("user", "assistant")]
    told = [(role, " ".join(text[:_TURN_CHARACTERS].split())) for role, text in turns]
    return [f"{role}: {text}" for role, text in told if text][-_EARLIER_TURNS:]


def _one_line(text: str) -> str:
    """A text as a query; empty if it is none."""
    line = _LIST_MARK.sub("", " ".join(text.split())).strip(" \"'")
    return line if len(line) <= _MAX_CHARACTERS else ""


def _lines(text: str) -> list[str]:
    return [line for line in map(_one_line, text.splitlines()) if line]
