"""The audit log of a running app: a bounded queue, and a task that commits what is in it, many events at a time."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from appliance.audit import ORIGIN, AuditEvent
from appliance.config import Config
from appliance.errors import ApplianceError, Unavailable
from appliance.storage import audit
from appliance.storage.database import Database
from appliance.storage.ids import now_us

log = logging.getLogger("appliance.audit")
MAX_WAITING = 20_000
"""Events that may wait for the database; what comes above is counted as lost."""
GROUP = 100
"""Events that one transaction takes: their hashes hold up the event loop for about a millisecond."""
INTERVAL = 0.25
"""Seconds that a noted event waits for company."""
_RETRY_SECONDS = 1.0
_STOP_SECONDS = 20.0


class _Waiting(NamedTuple):
    event: AuditEvent
    time_us: int
    durable: asyncio.Future[None] | None


@dataclass
class AuditLog:
    """An ``Auditor`` over a database, which must be started before and stopped after it."""

    database: Database
    _queue: deque[_Waiting] = field(default_factory=deque)
    _lost: int = 0
    _filled: asyncio.Event = field(default_factory=asyncio.Event)
    _urgent: asyncio.Event = field(default_factory=asyncio.Event)
    _closing: bool = False
    _task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to commit."""
        self._closing = False
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Commit what waits. Idempotent; gives up on a database that does not answer."""
        task, self._task = self._task, None
        if task is None:
            return
        self._closing = True
        self._filled.set()
        self._urgent.set()
        with suppress(TimeoutError):
            await asyncio.wait_for(task, _STOP_SECONDS)
        self._fail([waiting for waiting in self._queue if waiting.durable])
        if lost := sum(waiting.durable is None for waiting in self._queue) + self._lost:
            log.error("%d audit events are lost: the database did not take them before the end", lost)
        self._queue.clear()

    def note(self, event: AuditEvent) -> None:
        """See ``Auditor``."""
        if len(self._queue) >= MAX_WAITING:
            if not self._lost:
                log.error("audit events are being lost: the database takes them too slowly; the log will say how many")
            self._lost += 1
            return
        self._put(event, None)
        if len(self._queue) >= GROUP:
            self._urgent.set()

    async def write(self, event: AuditEvent) -> None:
        """See ``Auditor``."""
        if self._task is None or self._closing or len(self._queue) >= 2 * MAX_WAITING:
            raise _unavailable()
        durable = asyncio.get_running_loop().create_future()
        self._put(event, durable)
        self._urgent.set()
        await durable

    def _put(self, event: AuditEvent, durable: asyncio.Future[None] | None) -> None:
        self._queue.append(_Waiting(_with_origin(event), now_us(), durable))
        self._filled.set()

    async def _run(self) -> None:
        while not self._closing or self._queue:
            await self._filled.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(INTERVAL):
                    await self._urgent.wait()
            await self._commit()

    async def _commit(self) -> None:
        group = [self._queue.popleft() for _ in range(min(GROUP, len(self._queue)))]
        if not self._queue and not self._closing:
            self._filled.clear()
            self._urgent.clear()
        try:
            await self._append(group)
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing noted may go
            await self._put_back(group, error)
        except BaseException:
            self._queue.extendleft(reversed(group))
            raise
        else:
            for waiting in group:
                if waiting.durable and not waiting.durable.done():
                    waiting.durable.set_result(None)

    async def _append(self, group: list[_Waiting]) -> None:
        events, times = [waiting.event for waiting in group], [waiting.time_us for waiting in group]
        lost = self._lost
        if lost:
            events.append(
                AuditEvent(action="audit.lost", outcome="failure", principal="appliance", tenant="", object=str(lost))
            )
            times.append(now_us())
        if events:
            async with self.database.session() as session:
                await audit.append(session, events, times)
        self._lost -= lost

    async def _put_back(self, group: list[_Waiting], error: Exception) -> None:
        """Whoever waits is told; the rest is tried again."""
        log.error("the audit log cannot be written: %s", error, exc_info=not isinstance(error, ApplianceError))
        self._fail([waiting for waiting in group if waiting.durable])
        self._queue.extendleft(reversed([waiting for waiting in group if not waiting.durable]))
        if self._queue:
            self._filled.set()
        await asyncio.sleep(_RETRY_SECONDS)

    def _fail(self, group: list[_Waiting]) -> None:
        for waiting in group:
            if waiting.durable and not waiting.durable.done():
                waiting.durable.set_exception(_unavailable())


async def report(config: Config, events: Sequence[AuditEvent]) -> None:
    """Put what a command did into the log of a configuration, whether the appliance runs or not.

    Raises:
        StartError: the database cannot be opened. Unavailable: it is busy or out of reach.
    """
    async with Database(config.database_url) as database, database.session() as session:
        await audit.append(session, events)


def _with_origin(event: AuditEvent) -> AuditEvent:
    if event.request_id and event.address:
        return event
    origin = ORIGIN.get()
    return msgspec.structs.replace(
        event, request_id=event.request_id or origin.request_id, address=event.address or origin.address
    )


def _unavailable() -> Unavailable:
    return Unavailable("the audit log cannot be written, so nothing was acknowledged; try again", retry_after=1)
