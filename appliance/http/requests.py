"""What HTTP handlers share: reading bodies and paging parameters, and answering."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar, cast

import msgspec
from litestar import Request, Response
from litestar.connection import ASGIConnection
from litestar.types import Receive, Scope

from appliance.errors import BadRequest, NotFound, TooLarge, UnsupportedMedia
from appliance.http.errors import JSON
from appliance.http.room import SMALL_BYTES
from appliance.types import Call
from appliance.wire import from_texts, texts_of

if TYPE_CHECKING:
    from appliance.runtime import Runtime
    from appliance.storage.tenancy import TenantSession
    from appliance.types import Operation, Principal

_T = TypeVar("_T")
HttpRequest: TypeAlias = Request[Any, Any, Any]
Order: TypeAlias = Literal["asc", "desc"]
_encode = msgspec.json.Encoder().encode
_SMALL_DIGITS = len(str(SMALL_BYTES))


def runtime(connection: ASGIConnection[Any, Any, Any, Any]) -> Runtime:
    """The services of the app that a request came in on."""
    return cast("Runtime", connection.app.state.runtime)


def principal(request: HttpRequest) -> Principal:
    """The caller, as the app-wide guard found them."""
    return cast("Principal", request.scope["user"])


def call_of(scope: Scope, operation: Operation, model: str, request: Any, *, stream: bool = False) -> Call:
    """A request as a call, with what the guard found out about it."""
    state = scope["state"]
    return Call(
        id=state["request_id"],
        operation=operation,
        model=model,
        request=request,
        principal=scope["user"],
        stream=stream,
        background=state.get("background", False),
        headers=state["headers"],
    )


def note_readers(request: HttpRequest, readers: Iterable[str]) -> None:
    """Keep for the audit entry who may now see the documents that a request is about, as ``StoredChunk.readers``."""
    request.scope["state"].setdefault("readers", set()).update(readers)


def noted_readers(request: HttpRequest) -> list[str]:
    """All of them, in order."""
    return sorted(request.scope["state"].get("readers", ()))


def any_model(caller: Principal, path: str) -> str:
    """What stands for "some model" where a body has not said which: one of the caller's own, if these are listed."""
    return min(caller.models) if caller.models else path


@asynccontextmanager
async def tenant_session(request: HttpRequest, *, write: bool = True) -> AsyncIterator[TenantSession]:
    """A transaction on what the caller may reach and see: with ``plain_session`` the only way to the database.

    Whoever manages access (``access.manage``) sees every document of the tenant in it.
    """
    caller, services = principal(request), runtime(request)
    readers = await services.pipeline.readers(caller, request.scope["path"])
    async with services.database.tenant(caller.tenant, stores=caller.stores, readers=readers, write=write) as session:
        yield session


def plain_session(request: HttpRequest, *, write: bool = True) -> AbstractAsyncContextManager[TenantSession]:
    """A transaction on what the caller's tenant keeps beside documents, as responses: these have no readers."""
    return runtime(request).database.tenant(principal(request).tenant, write=write)


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response[bytes]:
    """A JSON answer."""
    return Response(_encode(value), status_code=status, media_type=JSON, headers=dict(headers or {}))


async def read_json(request: HttpRequest, decode: Callable[[bytes], _T]) -> _T:
    """Read and decode a JSON body with ``wire.decoder``; the limit is ``server.max_json_bytes``.

    Raises:
        BadRequest, RateLimited, TooLarge, UnsupportedMedia
    """
    headers, limit = request.scope["headers"], runtime(request).config.server.max_json_bytes
    if not may_be_large(request.scope["state"]["headers"]):
        return decode(await read_body(headers, request.receive, limit))
    with runtime(request).room.counted(principal(request).id, limit, request.receive) as counted:
        return decode(await read_body(headers, counted, limit))


def may_be_large(headers: Mapping[str, str]) -> bool:
    """Whether a body may have more than ``SMALL_BYTES``, which come in many pieces and lie in memory meanwhile."""
    return "transfer-encoding" in headers or len(headers.get("content-length", "")) > _SMALL_DIGITS


async def read_body(headers: Iterable[tuple[bytes, bytes]], receive: Receive, limit: int) -> bytes:
    """Read a whole body of at most ``limit`` bytes, counted as they come, whatever length was announced.

    Raises:
        TooLarge: the body is longer. UnsupportedMedia: it is compressed. BadRequest: the client left or broke off.
    """
    for name, value in headers:
        if name == b"content-encoding" and value not in (b"", b"identity"):
            raise UnsupportedMedia("compressed bodies are not taken; send the JSON as it is")
        if name == b"content-length" and value.isdigit() and int(value) > limit:
            raise _too_large(limit)
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message: Any = await receive()
        if message["type"] != "http.request":
            raise BadRequest("the body ended early; send it whole")
        parts.append(message.get("body", b""))
        size, more = size + len(parts[-1]), message.get("more_body", False)
        if size > limit:
            raise _too_large(limit)
    return b"".join(parts)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body is over {limit} bytes (server.max_json_bytes); send less")


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """The paging parameters of list routes; ``after`` and ``before`` are ids of their objects."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 20
    order: Order = "desc"
    after: str | None = None
    before: str | None = None


class OldestFirst(Page, frozen=True, kw_only=True):
    """The same for lists that begin with their oldest object."""

    order: Order = "asc"


def query_of(request: HttpRequest, type_: type[_T]) -> _T:
    """The query parameters as a struct, which also describes them in the OpenAPI document; others are ignored.

    Raises:
        BadRequest: a parameter is of the wrong type or out of its bounds; ``param`` names it.
    """
    names = texts_of(cast("Hashable", type_))
    return from_texts({name: value for name, value in request.query_params.items() if name in names}, type_)


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
    """One page of a list that lies in memory whole, oldest first. Raises NotFound for an unknown cursor."""
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
        raise NotFound(f"{name}: no object of this list has the id {cursor[:64]!r}", param=name)
    return ids.index(cursor)
