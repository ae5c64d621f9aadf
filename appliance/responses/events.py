"""The stream of a background response: written down while it comes about, and read from there by whoever listens.

A listener sees an event only after it is in the database, so a stream that broke off can be gone on with, on any
replica, from the last event that was seen. In the process that works on the response listeners are woken; others
look every second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

import msgspec

from appliance.errors import ApplianceError
from appliance.storage import response_events
from appliance.storage.database import Database
from appliance.storage.response_events import NotWanted
from appliance.storage.tables.responses import StoredResponse
from appliance.storage.tenancy import TenantSession

log = logging.getLogger("appliance.responses")
Json = dict[str, Any]
GATHER_SECONDS = 0.2
"""Events that come within this time after others are written together: each write waits for the disk."""
POLL_SECONDS = 1.0
_encode = msgspec.json.Encoder().encode


def encoded(event: Json) -> bytes:
    """An event as it goes over the wire."""
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), _encode(event))


class News:
    """Wakes the listeners of this process when there is something new about a response."""

    def __init__(self) -> None:
        self._listeners: dict[str, set[asyncio.Event]] = {}

    def tell(self, response_id: str) -> None:
        """There are new events, or it is over."""
        for fresh in self._listeners.get(response_id, ()):
            fresh.set()

    @contextmanager
    def listen(self, response_id: str) -> Iterator[asyncio.Event]:
        """An event that is set when there is something new."""
        fresh = asyncio.Event()
        listeners = self._listeners.setdefault(response_id, set())
        listeners.add(fresh)
        try:
            yield fresh
        finally:
            listeners.discard(fresh)
            if not listeners:
                self._listeners.pop(response_id, None)


class EventLog:
    """Writes down the events of one response on which this process works; ``async with`` bounds its task.

    ``number`` is the sequence number of the next event to be written.
    """

    def __init__(self, database: Database, row: StoredResponse, number: int, news: News) -> None:
        self._database = database
        self._row = row
        self._number = number
        self._news = news
        self._pending: list[bytes] = []
        self._fresh = asyncio.Event()
        self._closed = asyncio.Event()

    async def __aenter__(self) -> EventLog:
        self._task = asyncio.create_task(self._write())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def send(self, events: Iterable[Json]) -> None:
        """Take events; they are written within moments. Raises NotWanted once nobody wants them any more."""
        if self._task.done():
            self._task.result()
        before = len(self._pending)
        self._pending += map(encoded, events)
        if len(self._pending) > before:
            self._fresh.set()

    async def close(self) -> None:
        """Write nothing more but by ``finish``. Raises NotWanted."""
        self._closed.set()
        self._fresh.set()
        await self._task

    async def finish(self, session: TenantSession, ending: Iterable[Json]) -> None:
        """Write the rest in the transaction that ends the response. Raises NotWanted."""
        await response_events.check_wanted(session, self._row.id, self._row.attempts)
        rest = [*self._pending, *map(encoded, ending)]
        response_events.add(session, self._row.id, self._number, rest)

    async def _write(self) -> None:
        while not self._closed.is_set():
            await self._fresh.wait()
            self._fresh.clear()
            if self._closed.is_set():
                return
            try:
                await self._flush()
            except NotWanted:
                raise
            except ApplianceError as error:
                log.warning("events of response %s wait: %s", self._row.id, error)
                self._fresh.set()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), GATHER_SECONDS)

    async def _flush(self) -> None:
        events = list(self._pending)
        if not events:
            return
        async with self._database.tenant(self._row.tenant) as session:
            await response_events.check_wanted(session, self._row.id, self._row.attempts)
            response_events.add(session, self._row.id, self._number, events)
        del self._pending[: len(events)]
        self._number += len(events)
        self._news.tell(self._row.id)


async def follow(
    database: Database, news: News, tenant: str, response_id: str, seen: int = -1
) -> AsyncGenerator[list[bytes], None]:
    """The events behind ``seen``, a sequence number, as they are written, until the response is over.

    Raises Unavailable while the database is away.
    """
    with news.listen(response_id) as fresh:
        while True:
            fresh.clear()
            async with database.tenant(tenant, write=False) as session:
                over = await response_events.is_over(session, response_id)
                events = await response_events.after(session, response_id, seen)
            if events:
                yield events
                seen += len(events)
            elif over:
                return
            else:
                with suppress(TimeoutError):
                    await asyncio.wait_for(fresh.wait(), POLL_SECONDS)
