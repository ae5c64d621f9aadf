"""What an OpenAI-compatible server's refusals mean to our own callers.

A 4xx that the caller can mend keeps the server's words. Everything else becomes a message of ours, so that no address,
path, key or exception class of an engine reaches a client.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, get_args

import msgspec

from appliance.plugin import (
    BadRequest,
    Call,
    ContextLengthExceeded,
    EngineError,
    EngineTimeout,
    EngineUnavailable,
    MediaTask,
    RateLimited,
    RequestError,
    TooLarge,
    UpstreamTimeout,
)

__all__ = ["Refusal", "broken", "error_object", "refusal"]

_MAX_MESSAGE = 400
_MEDIA = get_args(MediaTask)
_CONTEXT = re.compile(
    r"maximum context length|maximum model length|context.(length|window|size)|prompt is too long", re.IGNORECASE
)
_INTERNALS = re.compile(
    r"0x[0-9a-f]{4,}|Traceback|File \"|\b[A-Z]\w*(?:Error|Exception)\b"
    r"|(?<!\w)/(?:home|root|usr|opt|var|tmp|etc|data|mnt|srv|app|workspace)/|\b\d{1,3}(?:\.\d{1,3}){3}\b"
)
_VALIDATION = re.compile(r"'msg': (['\"])(.+?)\1")
"""vLLM answers a body it cannot validate with a printed Python dict; this is the sentence in it."""

Refusal: TypeAlias = Callable[[int, Mapping[str, str], bytes, Call], RequestError]


def refusal(where: str) -> Refusal:
    """A function from (status, headers, body, call) to our error; ``where`` is the model's YAML path, for fixes."""

    def to_error(status: int, headers: Mapping[str, str], body: bytes, call: Call) -> RequestError:
        if status in (400, 422):
            return _bad_request(error_object(body) or {}, call)
        if status in (401, 403):
            return EngineError(f"the upstream refused our key: check {where}.options.api_key")
        if status in (404, 405, 501) and call.operation in ("rerank", "score"):
            return BadRequest(f"model {call.model} ranks no texts; ask one that does", param="model")
        if status in (404, 405, 501) and call.operation in _MEDIA:
            return EngineError(
                f"the upstream does no {call.operation}: check {where}.tasks, options.model and base_url"
            )
        if status in (404, 405):
            return EngineError(f"the upstream has no such model or path: check {where}.options.model and base_url")
        if status == 413:
            return TooLarge("the request is larger than the model's server takes; send less")
        if status == 429:
            return RateLimited(
                "the model's server is over its rate limit; try again later", retry_after=_seconds(headers)
            )
        return _failure(status, headers, where)

    return to_error


def error_object(body: bytes) -> dict[str, Any] | None:
    """The error a JSON body reports, whichever dialect it speaks; None when it reports none."""
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(decoded, dict):
        return None
    error = decoded.get("error")
    if error is None and decoded.get("object") == "error":
        return decoded
    if error is None and "detail" in decoded:
        error = decoded["detail"]
    return error if isinstance(error, dict) else {"message": str(error)} if error else None


def broken(error: Exception) -> RequestError:
    """What it means to a caller that the connection failed once the answer had begun."""
    if isinstance(error, UpstreamTimeout):
        return EngineTimeout("the model stopped in the middle of its answer; try again")
    return EngineError("the model's answer broke off; try again")


def _bad_request(error: Mapping[str, Any], call: Call) -> RequestError:
    message = _clean(error.get("message"))
    if error.get("code") == "context_length_exceeded" or _CONTEXT.search(message):
        return ContextLengthExceeded(message, param=_prompt_field(call))
    param = error.get("param")
    code = error.get("code")
    return BadRequest(
        message,
        param=param.removeprefix("body.") if isinstance(param, str) else None,
        code=code if isinstance(code, str) else None,
    )


def _clean(message: object) -> str:
    text = message if isinstance(message, str) else ""
    found = _VALIDATION.search(text)
    line = " ".join((found[2] if found else text).split())
    if not line or _INTERNALS.search(line):
        return "the model refused the request; check its fields"
    return line if len(line) <= _MAX_MESSAGE else line[: _MAX_MESSAGE - 3] + "..."


def _prompt_field(call: Call) -> str:
    return {"chat": "messages", "completion": "prompt"}.get(call.operation, "input")


def _failure(status: int, headers: Mapping[str, str], where: str) -> RequestError:
    if status == 503:
        return EngineUnavailable("the model is not ready; try again", retry_after=_seconds(headers))
    if status in (408, 504):
        return EngineTimeout("the model's server gave up waiting for the answer; try again or ask for less")
    if status < 400:
        return EngineError(
            f"the upstream answered with status {status} instead of an answer: check {where}.options.base_url"
        )
    return EngineError("the model failed to answer; try again")


def _seconds(headers: Mapping[str, str]) -> float:
    value = headers.get("retry-after", "")
    return float(value) if value.isdigit() else 1.0
