"""Calls and answers for tests of filters, admitters and recorders."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from appliance.types import ANONYMOUS, Call, Chunk, Principal
from appliance.wire import ChatRequest, Message


def chat_call(
    *, stream: bool = True, n: int | None = None, text: str = "Hello", principal: Principal = ANONYMOUS
) -> Call:
    """A chat call for the model ``m``."""
    request = ChatRequest(model="m", messages=[Message(role="user", content=text)], stream=stream, n=n)
    return Call(id="req_test", operation="chat", model="m", request=request, principal=principal, stream=stream)


def delta(text: str | None = None, *, index: int = 0, finish: str | None = None, **fields: Any) -> Chunk:
    """One chunk of a streamed chat; ``fields`` go into the delta."""
    content = {} if text is None else {"content": text}
    return _chunk({"index": index, "delta": {**content, **fields}, "logprobs": None, "finish_reason": finish})


def message(text: str | None, *, finish: str = "stop", **fields: Any) -> Chunk:
    """A plain chat answer with one choice; ``fields`` go into the message."""
    body = {"role": "assistant", "content": text, **fields}
    choice = {"index": 0, "message": body, "logprobs": None, "finish_reason": finish}
    return _chunk(choice, object="chat.completion", usage=_usage())


def usage() -> Chunk:
    """The last chunk of a stream."""
    return Chunk(body={**_head("chat.completion.chunk"), "choices": [], "usage": _usage()})


def stream_of(pieces: Iterable[str], finish: str = "stop") -> list[Chunk]:
    """A whole streamed chat with one choice."""
    return [delta("", role="assistant"), *(delta(piece) for piece in pieces), delta(finish=finish), usage()]


async def chunks_of(chunks: Iterable[Chunk]) -> AsyncIterator[Chunk]:
    """The chunks, one after the other."""
    for chunk in chunks:
        yield chunk


def text_of(chunks: Iterable[Chunk], *, index: int = 0, field: str = "content") -> str:
    """What a client reads in one choice, plain or streamed."""
    parts = [choice.get("delta") or choice.get("message") or choice for choice in choices_of(chunks, index)]
    return "".join(part.get(field) or "" for part in parts)


def finishes_of(chunks: Iterable[Chunk], *, index: int = 0) -> list[str]:
    """The finish reasons of one choice; a good answer has one."""
    return [choice["finish_reason"] for choice in choices_of(chunks, index) if choice.get("finish_reason")]


def choices_of(chunks: Iterable[Chunk], index: int = 0) -> Sequence[dict[str, Any]]:
    """Every appearance of one choice."""
    return [c for chunk in chunks for c in chunk.body.get("choices", []) if c.get("index", 0) == index]


def _chunk(choice: dict[str, Any], object: str = "chat.completion.chunk", **fields: Any) -> Chunk:  # noqa: A002
    return Chunk(body={**_head(object), "choices": [choice], **fields})


def _head(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-test", "object": kind, "created": 1, "model": "m"}


def _usage() -> dict[str, int]:
    return {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
