"""The audit log over HTTP: handlers that report what they did, and ``/v1/audit/events``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Annotated, Any, Literal

import msgspec
from litestar import Response

from appliance.audit import Details, Verdict
from appliance.errors import BadRequest
from appliance.http.errors import as_request_error
from appliance.http.requests import (
    HttpRequest,
    Page,
    answer,
    listing,
    noted_readers,
    principal,
    query_of,
    runtime,
    tenant_session,
)
from appliance.storage import audit
from appliance.storage.ids import time_of

Handler = Callable[[HttpRequest], Awaitable[Response[Any]]]
_MAX_PAGE = 1000
_MAX_SEQ = 2**53
_MOST_READERS = 100


class EventPage(Page, frozen=True, kw_only=True):
    """The parameters of the log; times as ``2026-11-30T09:00:00Z``, ``after`` and ``before`` are numbers of entries."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=_MAX_PAGE)] = 20
    principal: str | None = None
    user: str | None = None
    action: str | None = None
    object: str | None = None
    file: str | None = None
    outcome: Verdict | None = None
    since: str | None = None
    until: str | None = None


class _Made(msgspec.Struct, frozen=True):
    id: str = ""


_made = msgspec.json.Decoder(_Made).decode


def reporting(handler: Handler, action: str) -> Handler:
    """The same handler, which answers once the audit log holds what it did; failures are noted."""

    @wraps(handler)
    async def reported(request: HttpRequest) -> Response[Any]:
        trail, caller = runtime(request).pipeline.trail, principal(request)
        named, store = _named(request), request.path_params.get("vector_store_id")
        try:
            response = await handler(request)
        except Exception as error:
            trail.failed(caller, action, named or store or "", as_request_error(error))
            raise
        if request.method != "HEAD":  # which shows and changes nothing
            object_ = named or _made(response.content).id
            details: Details = {"store": store} if store and store != object_ else {}
            await trail.done(caller, action, object_, {**details, **_readers(request)})
        return response

    return reported


def _readers(request: HttpRequest) -> Details:
    found = noted_readers(request)
    if len(found) <= _MOST_READERS:
        return {"readers": found} if found else {}
    return {"readers": found[:_MOST_READERS], "more_readers": len(found) - _MOST_READERS}


def _named(request: HttpRequest) -> str | None:
    """The innermost object that the path names; a store is in its own answer, as what was made is."""
    path = request.path_params
    return path.get("file_id") or path.get("batch_id") or path.get("upload_id")


async def list_events(request: HttpRequest) -> Response[bytes]:
    """``GET /v1/audit/events``: the entries of the caller's tenant, newest first."""
    page = query_of(request, EventPage)
    wanted = _query(page)
    after, before = _seq(page.after, "after"), _seq(page.before, "before")
    forward = page.order == "asc"
    # As everywhere: a page before a cursor is the one that touches it, so it is read backwards and turned round.
    backwards = before is not None and after is None
    above, below = (after, before) if forward else (before, after)
    order: Literal["asc", "desc"] = "asc" if forward != backwards else "desc"
    async with tenant_session(request, write=False) as session:
        found = await audit.page(session, wanted, after=above, before=below, limit=page.limit + 1, order=order)
    shown = found[: page.limit][:: -1 if backwards else 1]
    ids = [str(record.seq) for record in shown]
    return answer(listing(shown, ids, has_more=len(found) > page.limit))


def _query(page: EventPage) -> audit.AuditQuery:
    return audit.AuditQuery(
        principal=page.principal,
        user=page.user,
        action=page.action,
        object=page.object,
        file=page.file,
        outcome=page.outcome,
        since=_time(page.since, "since"),
        until=_time(page.until, "until"),
    )


def _seq(text: str | None, name: str) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 16 and int(text) < _MAX_SEQ):
        raise BadRequest(f"{name} must be the number of an entry", param=name)
    return int(text)


def _time(text: str | None, name: str) -> int | None:
    try:
        return None if text is None else time_of(text)
    except ValueError:
        raise BadRequest(f"{name} must be a time such as 2026-11-30T09:00:00Z", param=name) from None
