"""What HTTP handlers share: reading bodies and paging parameters, and answering."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast

import msgspec
from litestar import Request, Response
from litestar.connection import ASGIConnection
from litestar.types import Receive

from appliance.errors import BadRequest, TooLarge, UnsupportedMedia
from appliance.http.errors import JSON

if TYPE_CHECKING:
    from appliance.runtime import Runtime
    from appliance.storage.tenancy import TenantSession
    from appliance.types import Principal

_T = TypeVar("_T")
HttpRequest: TypeAlias = Request[Any, Any, Any]
_encode = msgspec.json.Encoder().encode


def runtime(connection: ASGIConnection[Any, Any, Any, Any]) -> Runtime:
    """The services of the app that a request came in on."""
    return cast("Runtime", connection.app.state.runtime)


def principal(request: HttpRequest) -> Principal:
    """The caller, as the app-wide guard found them."""
    return cast("Principal", request.scope["user"])


@asynccontextmanager
async def tenant_session(request: HttpRequest, *, write: bool = True) -> AsyncIterator[TenantSession]:
    """A transaction on what the caller may reach and see; the only way for a handler to the database.

    Whoever manages access (``access.manage``) sees every document of the tenant in it.
    """
    caller, services = principal(request), runtime(request)
    readers = await services.pipeline.readers(caller, request.scope["path"])
    async with services.database.tenant(caller.tenant, stores=caller.stores, readers=readers, write=write) as session:
        yield session


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response[bytes]:
    """A JSON answer."""
    return Response(_encode(value), status_code=status, media_type=JSON, headers=dict(headers or {}))


async def read_json(request: HttpRequest, decode: Callable[[bytes], _T]) -> _T:
    """Read and decode a JSON body with ``wire.decoder``; the limit is ``server.max_json_bytes``.

    Raises:
        BadRequest, TooLarge, UnsupportedMedia
    """
    headers = request.scope["headers"]
    return decode(await read_body(headers, request.receive, runtime(request).config.server.max_json_bytes))


async def read_body(headers: Iterable[tuple[bytes, bytes]], receive: Receive, limit: int) -> bytes:
    """Read a whole body of at most ``limit`` bytes, counted as they come, whatever length was announced.

    Raises:
        TooLarge: the body is longer. UnsupportedMedia: it is compressed. BadRequest: the client left or broke off.
    """
    for name, value in headers:
        if name == b"content-encoding" and value not in (b"", b"identity"):
            raise UnsupportedMedia("compressed bodies are not taken; send the JSON as it is")
        if name == b"content-length" and value.isdigit() and int(value) > limit:
            raise TooLarge(f"the body is over {limit} bytes (server.max_json_bytes); send less")
    message: Any = await receive()
    body: bytes = message.get("body", b"")
    if message["type"] == "http.request" and not message.get("more_body"):
        return _within(body, limit)
    parts = [body]
    size = len(body)
    while message["type"] == "http.request" and message.get("more_body"):
        message = await receive()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise TooLarge(f"the body is over {limit} bytes (server.max_json_bytes); send less")
    if message["type"] != "http.request":
        raise BadRequest("the body ended early; send it whole")
    return _within(b"".join(parts), limit)


def _within(body: bytes, limit: int) -> bytes:
    if len(body) > limit:
        raise TooLarge(f"the body is over {limit} bytes (server.max_json_bytes); send less")
    return body


class Page(msgspec.Struct, frozen=True):
    """The paging parameters of list routes."""

    limit: int = 20
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None
    before: str | None = None


def page_of(request: HttpRequest, maximum: int = 100, *, default: int = 20, order: str = "desc") -> Page:
    """Read ``limit``, ``order``, ``after`` and ``before``. Raises BadRequest naming the parameter."""
    query = request.query_params
    raw_limit, order = query.get("limit", str(default)), query.get("order", order)
    if (
        not raw_limit.isascii()
        or not raw_limit.isdigit()
        or not 1 <= int(raw_limit[:6]) <= maximum
        or len(raw_limit) > 6
    ):
        raise BadRequest(f"limit must be a whole number from 1 to {maximum}", param="limit")
    if order not in ("asc", "desc"):
        raise BadRequest("order must be asc or desc", param="order")
    return Page(int(raw_limit), order, query.get("after"), query.get("before"))  # type: ignore[arg-type]


def listing(items: list[Any], ids: list[str], *, has_more: bool) -> dict[str, Any]:
    """OpenAI's list object; ``ids`` are the ids of ``items``."""
    return {
        "object": "list",
        "data": items,
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
        "has_more": has_more,
    }


def item_page(items: Sequence[Mapping[str, Any]], page: Page) -> dict[str, Any]:
    """One page of a list that lies in memory whole, oldest first. Raises BadRequest for an unknown cursor."""
    ordered = list(items) if page.order == "asc" else list(reversed(items))
    ids = [item["id"] for item in ordered]
    first = _place(ids, page.after, "after") + 1 if page.after is not None else 0
    last = _place(ids, page.before, "before") if page.before is not None else len(ids)
    start = first if page.before is None or page.after is not None else max(first, last - page.limit)
    stop = min(last, start + page.limit)
    more = stop < len(ids) if page.before is None else start > first
    return listing(ordered[start:stop], ids[start:stop], has_more=more)


def _place(ids: Sequence[str], cursor: str, name: str) -> int:
    if cursor not in ids:
        raise BadRequest(f"{name}: no object of this list has the id {cursor[:64]!r}", param=name)
    return ids.index(cursor)
