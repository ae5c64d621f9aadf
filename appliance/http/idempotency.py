# pyright: reportAttributeAccessIssue=false
# Where python-multipart is installed too, its folder of the same name hides this module from type checkers.
"""``Idempotency-Key``: a write that is sent again gets the answer that the first one got, and is not done twice.

Kept are answers of success, for 24 hours; what failed may be sent again under the same key. A key is its caller's.
Keys are as in Stripe's API and the draft of the header (draft-ietf-httpapi-idempotency-key-header).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import wraps
from typing import Any, cast

import msgspec
from litestar import Response
from multipart import parse_options_header  # type: ignore[import-untyped]

from appliance.errors import ApplianceError, BadRequest, TooLarge
from appliance.http.errors import JSON
from appliance.http.requests import HttpRequest, principal, runtime
from appliance.storage import idempotency
from appliance.storage.database import Database
from appliance.storage.tables.idempotency import KeptAnswer
from appliance.types import Principal

log = logging.getLogger("appliance.http")
Handler = Callable[[HttpRequest], Awaitable[Response[Any]]]
HEADER = "idempotency-key"
REPLAYED = "idempotent-replayed"
"""This header of an answer says that it is one from before."""
MAX_KEY = 255
_OVERHEAD = 1 << 20
"""Bytes of a form that are not the file."""


class Outcome(msgspec.Struct, frozen=True):
    """An answer of success, as JSON unless the headers say otherwise. ``keep=False``: nothing of it is to be kept."""

    body: bytes
    headers: Mapping[str, str] = {}
    keep: bool = True


Work = Callable[[], Awaitable[Outcome]]


def idempotent(handler: Handler) -> Handler:
    """The same handler, which takes ``Idempotency-Key``."""

    @wraps(handler)
    async def answered(request: HttpRequest) -> Response[Any]:
        key = request.scope["state"]["headers"].get(HEADER)
        if key is None:
            return await handler(request)
        digest = _BodyDigest(request)

        async def work() -> Outcome:
            response = await handler(request)
            return Outcome(response.content, dict(response.headers))

        found = await once(runtime(request).database, principal(request), key, digest.whole, work)
        return Response(found.body, status_code=200, media_type=JSON, headers=dict(found.headers))

    return answered


async def once(
    database: Database,
    caller: Principal,
    key: str,
    fingerprint: Callable[[], Awaitable[str]],
    work: Work,
) -> Outcome:
    """What ``work`` gives, or gave to an equal request before.

    ``fingerprint`` is asked when the request has been read.

    Raises:
        BadRequest: the key is none, or was used for another request. Conflict: the first one is not over yet.
    """
    if not (0 < len(key) <= MAX_KEY and key.isascii() and key.isprintable()):
        raise BadRequest(f"Idempotency-Key must be 1 to {MAX_KEY} printable ASCII characters", param=HEADER)
    kept_id = idempotency.row_id(caller.tenant, caller.id, key)
    async with database.tenant(caller.tenant) as session:
        row = await idempotency.claim(session, kept_id)
    if row.body is not None:
        if await fingerprint() != row.fingerprint:
            raise BadRequest(
                "this Idempotency-Key was used for another request; choose a new one for each",
                param=HEADER,
                code="idempotency_key_reused",
            )
        return Outcome(row.body, {**row.headers, REPLAYED: "true"})
    try:
        async with _renewed(database, caller.tenant, row):
            outcome = await work()
            found = await fingerprint()
    except BaseException:
        await asyncio.shield(_let_go(database, caller.tenant, row))
        raise
    if outcome.keep:
        await _keep(database, caller.tenant, row, found, outcome)
    else:
        await _let_go(database, caller.tenant, row)
    return outcome


async def _keep(database: Database, tenant: str, row: KeptAnswer, fingerprint: str, outcome: Outcome) -> None:
    """The work is done, so its answer goes out even if it cannot be kept."""
    try:
        async with database.tenant(tenant) as session:
            await idempotency.keep(session, row, fingerprint, dict(outcome.headers), outcome.body)
    except ApplianceError as error:
        log.warning("an answer could not be kept for its Idempotency-Key: %s", error)


async def _let_go(database: Database, tenant: str, row: KeptAnswer) -> None:
    """If that fails, the claim runs out."""
    with suppress(ApplianceError):
        async with database.tenant(tenant) as session:
            await idempotency.let_go(session, row)


@asynccontextmanager
async def _renewed(database: Database, tenant: str, row: KeptAnswer) -> AsyncIterator[None]:
    """Hold the claim for as long as the block takes."""

    async def renew() -> None:
        while True:
            await asyncio.sleep(idempotency.LEASE_SECONDS / 3)
            try:
                async with database.tenant(tenant) as session:
                    await idempotency.renew(session, row)
            except Exception as error:  # the work goes on, and the next try comes soon
                trace = None if isinstance(error, ApplianceError) else error
                log.warning("the claim of an Idempotency-Key is not renewed yet: %s", error, exc_info=trace)

    task = asyncio.create_task(renew())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def fingerprint_of(method: str, path: str, query: bytes, body: bytes) -> str:
    """The fingerprint of a request whose body is at hand."""
    return _begun(method, path, query, body).hexdigest()


def _begun(method: str, path: str, query: bytes, body: bytes = b"") -> hashlib._Hash:
    parts = method.encode(), path.encode("utf-8", "surrogatepass"), query
    return hashlib.sha256(b"".join(b"%d:%b" % (len(part), part) for part in parts) + body)


class _BodyDigest:
    """The fingerprint of a request, taken while a handler reads its body.

    A form's boundary is left out: a client that sends the same form again makes up another.
    """

    def __init__(self, request: HttpRequest) -> None:
        scope = cast("Any", request.scope)
        self._digest = _begun(scope["method"], scope["path"], scope["query_string"])
        self._limit = runtime(request).config.server.max_file_bytes + _OVERHEAD
        _, options = parse_options_header(request.scope["state"]["headers"].get("content-type", ""))
        self._boundary = options.get("boundary", "").encode("latin-1")
        self._receive = request.receive
        self._tail = b""
        self._size = 0
        self._over = False
        request.receive = self._watched

    async def _watched(self) -> Any:
        message: Any = await self._receive()
        data = message.get("body", b"")
        self._over = not message.get("more_body", False)
        self._size += len(data)
        if self._boundary:
            data = (self._tail + data).replace(self._boundary, b"")
            end = len(data) if self._over else max(0, len(data) - len(self._boundary) + 1)
            self._tail, data = data[end:], data[:end]
        self._digest.update(data)
        return message

    async def whole(self) -> str:
        """Read what the handler left of the body, and give the fingerprint. Raises TooLarge."""
        while not self._over:
            await self._watched()
            if self._size > self._limit:
                raise TooLarge(f"the body is over {self._limit} bytes (server.max_file_bytes); send less")
        return self._digest.hexdigest()
