"""A call by gRPC asked of the app's own routes: headers from metadata, statuses from HTTP's."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NoReturn, TypeAlias, TypeVar
from urllib.parse import unquote

import grpc
from google.protobuf.message import Message

from appliance.plugin import ApplianceError, Asked, BadRequest, EventSplitter, Front, Reply, RequestError, event_data

log = logging.getLogger("appliance.grpc")
Context: TypeAlias = grpc.aio.ServicerContext
_M = TypeVar("_M", bound=Message)
_T = TypeVar("_T")
LARGE = 64 * 1024
"""Bytes of a message that takes milliseconds to translate."""

_STATUS: Mapping[int, grpc.StatusCode] = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    405: grpc.StatusCode.UNIMPLEMENTED,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    409: grpc.StatusCode.ABORTED,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    415: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    502: grpc.StatusCode.UNAVAILABLE,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
    507: grpc.StatusCode.RESOURCE_EXHAUSTED,
}
"""google/rpc/code.proto has the HTTP status of each code; 413 is told as the bad argument it is."""
_OF_TYPE = {"invalid_request_error": grpc.StatusCode.INVALID_ARGUMENT, "server_error": grpc.StatusCode.UNAVAILABLE}
"""For errors within a stream, which have no status of HTTP."""
_TOLD = ("x-request-id", "openai-processing-ms", "retry-after")
_OF_TRANSPORT = ("connection", "content-length", "content-type", "host", "te", "transfer-encoding")


class Reader:
    """Translates messages; large ones in a thread, one at a time, so that others are served meanwhile."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def read(self, translate: Callable[[_M], _T], message: _M) -> _T:
        """What ``translate`` makes of a message. Raises what it raises."""
        if message.ByteSize() < LARGE:
            return translate(message)
        async with self._turn:
            return await asyncio.to_thread(translate, message)


class Failed(Exception):
    """A route answered with an error."""

    def __init__(self, code: grpc.StatusCode, error: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        super().__init__(error.get("message") or "the call failed")
        self.code = code
        told = {f"error-{name}": str(error[name]) for name in ("type", "code", "param") if error.get(name)}
        self.metadata = tuple({**_told(headers), **{name: _ascii(value) for name, value in told.items()}}.items())


def failure(error: ApplianceError) -> Failed:
    """One of our own errors, as a route would tell it."""
    shown = error if isinstance(error, RequestError) else RequestError("the server had an internal error; see its log")
    if shown is not error:
        log.error("a call failed: %s", error, exc_info=error)
    told = {"message": str(shown), "type": shown.type, "code": shown.code, "param": shown.param}
    headers = {} if shown.retry_after is None else {"retry-after": str(math.ceil(shown.retry_after))}
    return Failed(_STATUS.get(shown.status, grpc.StatusCode.INTERNAL), told, headers)


async def abort(context: Context, error: Failed) -> NoReturn:
    """End a call with an error."""
    await context.abort(error.code, str(error), error.metadata)
    raise AssertionError("abort raises")


async def fetch(
    front: Front, context: Context, path: str, fields: dict[str, Any] | None = None, *, tell: bool = True
) -> dict[str, Any]:
    """What a route answers: a POST with ``fields``, a GET without. Raises Failed.

    With ``tell`` the answer's headers go out as initial metadata, of which a call has only one.
    """
    async with _asked(front, context, path, fields) as reply:
        found: dict[str, Any] = json.loads(await reply.read())
        if tell:
            await context.send_initial_metadata(tuple(_told(reply.headers).items()))
        return found


async def events(
    front: Front, context: Context, path: str, fields: dict[str, Any], *, tell: bool = True
) -> AsyncGenerator[dict[str, Any], None]:
    """The events of a streamed answer. Raises Failed, also for an error within the stream. To be closed (aclosing)."""
    splitter = EventSplitter()
    async with _asked(front, context, path, fields | {"stream": True}) as reply:
        if tell:
            await context.send_initial_metadata(tuple(_told(reply.headers).items()))
        async for piece in reply.chunks:
            for event in splitter.feed(piece):
                data = event_data(event)
                if data is None or data == b"[DONE]":
                    continue
                found = json.loads(data)
                if error := found.get("error"):
                    code = _OF_TYPE.get(error.get("type"), grpc.StatusCode.INTERNAL)
                    raise Failed(code, error, reply.headers)
                yield found


def asked_by(context: Context, method: str, path: str, body: bytes = b"") -> Asked:
    """A call as a request, without its transport's own headers.

    Names are compared by TLS here: no web page speaks gRPC, which is what the check of ``Host`` is against.
    """
    headers = [
        (name, value)
        for name, value in context.invocation_metadata() or ()
        if isinstance(value, str) and not name.startswith((":", "grpc-")) and name not in _OF_TRANSPORT
    ]
    headers += [("content-type", "application/json"), ("host", "localhost")]
    return Asked(method, path, headers, body, _address(context.peer()))


@asynccontextmanager
async def _asked(front: Front, context: Context, path: str, fields: dict[str, Any] | None) -> AsyncIterator[Reply]:
    method = "GET" if fields is None else "POST"
    try:
        body = b"" if fields is None else _encoded(fields)
        async with front.ask(asked_by(context, method, path, body)) as reply:
            if reply.status >= 400:
                raise _failed(reply.status, await reply.read(), reply.headers)
            yield reply
    except ApplianceError as error:
        raise failure(error) from None


def _encoded(fields: dict[str, Any]) -> bytes:
    try:
        return json.dumps(fields).encode()
    except RecursionError:
        raise BadRequest("the request is nested too deep; flatten it") from None


def _failed(status: int, body: bytes, headers: Mapping[str, str]) -> Failed:
    error = json.loads(body).get("error", {}) if body else {}
    return Failed(_STATUS.get(status, grpc.StatusCode.INTERNAL), error, headers)


def _told(headers: Mapping[str, str]) -> dict[str, str]:
    """What of an answer's headers is metadata here."""
    return {name: value for name, value in headers.items() if name in _TOLD or name.startswith("x-ratelimit-")}


def _ascii(text: str) -> str:
    """Metadata is printable ASCII (gRPC over HTTP/2, "ASCII-Value")."""
    return "".join(character if " " <= character <= "~" else "?" for character in text)


def _address(peer: str) -> tuple[str, int]:
    """``ipv4:10.0.0.1:5``, ``ipv6:%5B::1%5D:5``: the naming of gRPC's core."""
    kind, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdigit():
        return "127.0.0.1", 0
    return host.strip("[]"), int(port)
