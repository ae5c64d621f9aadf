"""The stream of a background response: written down while it comes about, and read from there by whoever listens.

A listener sees an event only after it is in the database, so a stream that broke off can be gone on with, on any
replica, from the last event that was seen. In the process that works on the response listeners are woken; others
look every second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

import msgspec

from appliance.errors import ApplianceError, RateLimited
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
MAX_LISTENERS = 32
"""Streams of one response in one process: each costs looks into the database."""
_encode = msgspec.json.Encoder().encode


def encoded(event: Json) -> bytes:
    """An event as it goes over the wire."""
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), _encode(event))


class Listener:
    """One who waits for what is new about a response."""

    def __init__(self) -> None:
        self._fresh = asyncio.Event()
        self._first, self._events = 0, list[bytes]()

    def tell(self, first: int, events: list[bytes]) -> None:
        """Hand over events that were written, the first with its number; none where something else is new.

        Of a listener who is slow only the last are kept: the others are in the database.
        """
        self._first, self._events = first, events
        self._fresh.set()

    async def next(self, seen: int) -> list[bytes]:
        """Wait for the events right behind ``seen``; none: the database has to be looked at."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._fresh.wait(), POLL_SECONDS)
        self._fresh.clear()
        events, self._events = self._events, []
        return events if self._first == seen + 1 else []


class News:
    """Wakes the listeners of this process when there is something new about a response."""

    def __init__(self) -> None:
        self._listeners: dict[str, set[Listener]] = {}

    def tell(self, response_id: str, first: int = 0, events: Sequence[bytes] = ()) -> None:
        """These events were written, or it is over."""
        for listener in self._listeners.get(response_id, ()):
            listener.tell(first, list(events))

    def check_room(self, response_id: str) -> None:
        """Raises RateLimited: too many listen already."""
        if len(self._listeners.get(response_id, ())) >= MAX_LISTENERS:
            raise RateLimited(f"{MAX_LISTENERS} streams of this response are open; close one of them", retry_after=1)

    @contextmanager
    def listen(self, response_id: str) -> Iterator[Listener]:
        """Be told what is new. Raises RateLimited: too many listen already."""
        self.check_room(response_id)
        listeners = self._listeners.setdefault(response_id, set())
        listener = Listener()
        listeners.add(listener)
        try:
            yield listener
        finally:
            listeners.discard(listener)
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
        self._news.tell(self._row.id, self._number, events)
        self._number += len(events)


async def follow(
    database: Database, news: News, tenant: str, response_id: str, seen: int = -1
) -> AsyncGenerator[list[bytes], None]:
    """The events behind ``seen``, a sequence number, as they are written, until the response is over.

    What this process writes comes without looking into the database.

    Raises:
        RateLimited: too many listen already. Unavailable: the database is away.
    """
    with news.listen(response_id) as listener:
        while True:
            async with database.tenant(tenant, write=False) as session:
                over = await response_events.is_over(session, response_id)
                events = await response_events.after(session, response_id, seen)
            if events:
                yield events
                seen += len(events)
                continue
            if over:
                return
            while events := await listener.next(seen):
                yield events
                seen += len(events)
