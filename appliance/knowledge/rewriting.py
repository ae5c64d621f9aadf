"""``rewrite_query``: a chat model turns what somebody asked into what a search should look for, or into several such.

It is an ordinary chat on the caller's behalf, with the caller's rights and limits. Where it cannot be had, the query is
searched as it is: the answer says what was searched for.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from appliance.errors import RequestError
from appliance.types import Call
from appliance.wire import ChatRequest, Message

if TYPE_CHECKING:
    from appliance.runtime import Runtime

_TEMPLATE = "/v1/chat/completions"
_MAX_TOKENS, _MAX_CHARACTERS = 96, 1024
_TASK = (
    "Rewrite the user's text as one query for a search engine: the subject with its important words and names, without "
    "greetings, instructions or filler. Answer with the query alone, in the language of the text."
)
_SEVERAL = (
    "Write {count} different queries for a search engine that would find documents answering the user's text: other "
    "words for the same, and its parts by themselves. Answer with the queries alone, one a line, in the language of "
    "the text."
)
_LIST_MARK = re.compile(r"^(?:[-*\u2022]|\d{1,2}[.)])\s+")
MAX_QUERIES = 16
"""Of one search."""


async def rewritten(queries: Sequence[str], call: Call, services: Runtime) -> tuple[str, ...]:
    """The queries as ``retrieval.rewrite_model`` puts them; as they are where none is configured.

    With ``retrieval.rewrite_queries`` above 1 each comes with that many others for the same, up to 16 in all.
    """
    count = services.config.retrieval.rewrite_queries
    if services.config.retrieval.rewrite_model is None:
        return tuple(queries)
    if count == 1:
        return tuple(await asyncio.gather(*(_rewritten(query, call, services) for query in queries)))
    found = await asyncio.gather(*(_several(query, count, call, services) for query in queries))
    return tuple(dict.fromkeys([*queries, *(one for several in found for one in several)]))[:MAX_QUERIES]


async def _rewritten(query: str, call: Call, services: Runtime) -> str:
    text = " ".join((await _said(_TASK, query, 1, call, services)).split())
    return text if 0 < len(text) <= _MAX_CHARACTERS else query


async def _several(query: str, count: int, call: Call, services: Runtime) -> list[str]:
    text = await _said(_SEVERAL.format(count=count), query, count, call, services)
    lines = (_LIST_MARK.sub("", " ".join(line.split())) for line in text.splitlines())
    return [line for line in lines if 0 < len(line) <= _MAX_CHARACTERS][:count]


async def _said(task: str, query: str, count: int, call: Call, services: Runtime) -> str:
    """What the model answers, at most ``count`` queries; nothing where it cannot be had."""
    model = services.config.retrieval.rewrite_model or ""
    messages = [Message(role="system", content=task), Message(role="user", content=query)]
    request = ChatRequest(model=model, messages=messages, max_completion_tokens=count * _MAX_TOKENS, temperature=0.0)
    asked = msgspec.structs.replace(call, operation="chat", model=model, request=request)
    try:
        async with services.pipeline.answer(asked, _TEMPLATE) as answer:
            bodies = [chunk.body async for chunk in answer]
    except RequestError:
        return ""
    return (bodies[-1]["choices"][0]["message"].get("content") or "") if bodies else ""
