"""What comes of a line: as OpenAI's files have it, and what it used."""

from __future__ import annotations

import msgspec

from appliance.storage.ids import new_id

_encode = msgspec.json.Encoder().encode


class Answered(msgspec.Struct, frozen=True):
    """What the route answered; ``retry_after`` in seconds, where it said so."""

    status: int
    body: bytes
    retry_after: float | None = None
    again: bool = True
    """False where the route said that another try does no better."""


class TokenCounts(msgspec.Struct, frozen=True):
    """Tokens that answers used."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


class Result(msgspec.Struct, frozen=True):
    """One finished line, ready to be kept."""

    line: int
    ok: bool
    output: bytes
    tokens: TokenCounts = TokenCounts()


class _Details(msgspec.Struct):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    """The usage of chats and texts, and that of responses."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class _Body(msgspec.Struct):
    usage: _Usage | None = None


_body = msgspec.json.Decoder(_Body).decode


def answered(line: int, custom_id: str, request_id: str, reply: Answered) -> Result:
    """A line that its route answered, well or not."""
    ok = reply.status == 200
    body = msgspec.json.format(reply.body, indent=-1)  # an engine may have written it on several lines
    response = {"status_code": reply.status, "request_id": request_id, "body": msgspec.Raw(body)}
    return Result(line, ok, _line(custom_id, response, None), _tokens(reply.body) if ok else TokenCounts())


def expired(line: int, custom_id: str) -> Result:
    """A line for which there was no time."""
    error = {"code": "batch_expired", "message": "the batch was over before this request could be answered"}
    return Result(line, False, _line(custom_id, None, error))


def _line(custom_id: str, response: object, error: object) -> bytes:
    return _encode({"id": new_id("batch_req_"), "custom_id": custom_id, "response": response, "error": error}) + b"\n"


def _tokens(body: bytes) -> TokenCounts:
    usage = _body(body).usage or _Usage()
    before = usage.prompt_tokens_details or usage.input_tokens_details or _Details()
    after = usage.completion_tokens_details or usage.output_tokens_details or _Details()
    return TokenCounts(
        input_tokens=usage.prompt_tokens or usage.input_tokens or 0,
        cached_tokens=before.cached_tokens or 0,
        output_tokens=usage.completion_tokens or usage.output_tokens or 0,
        reasoning_tokens=after.reasoning_tokens or 0,
    )
