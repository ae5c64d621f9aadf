"""``rewrite_query``: a chat model turns what somebody asked into what a search should look for.

It is an ordinary chat on the caller's behalf, with the caller's rights and limits. Where it cannot be had, the query is
searched as it is: the answer says what was searched for.
"""

from __future__ import annotations

import asyncio
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


async def rewritten(queries: Sequence[str], call: Call, services: Runtime) -> tuple[str, ...]:
    """The queries as ``retrieval.rewrite_model`` puts them; as they are where none is configured."""
    model = services.config.retrieval.rewrite_model
    if model is None:
        return tuple(queries)
    return tuple(await asyncio.gather(*(_rewritten(query, model, call, services) for query in queries)))


async def _rewritten(query: str, model: str, call: Call, services: Runtime) -> str:
    messages = [Message(role="system", content=_TASK), Message(role="user", content=query)]
    request = ChatRequest(model=model, messages=messages, max_completion_tokens=_MAX_TOKENS, temperature=0.0)
    asked = msgspec.structs.replace(call, operation="chat", model=model, request=request)
    try:
        async with services.pipeline.answer(asked, _TEMPLATE) as answer:
            bodies = [chunk.body async for chunk in answer]
    except RequestError:
        return query
    text = " ".join((bodies[-1]["choices"][0]["message"].get("content") or "").split()) if bodies else ""
    return text if 0 < len(text) <= _MAX_CHARACTERS else query
