"""Takes up work that is stored in the database, so that a restart or another replica goes on with it.

Whoever works on a row holds it by a lease, and says every few seconds that it lives. A row whose holder died is free
when its lease runs out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from sqlalchemy.ext.asyncio import AsyncSession

from appliance.errors import ApplianceError
from appliance.storage.database import Database

log = logging.getLogger("appliance")
POLL_SECONDS = 2.0


class Row(Protocol):
    """A row of work."""

    id: Any


_R = TypeVar("_R", bound=Row)


class LeasedWork(ABC, Generic[_R]):
    """Runs due rows of one kind, so many at once."""

    def __init__(self, database: Database, concurrent: int) -> None:
        self._database = database
        self._concurrent = concurrent
        self._running: dict[str, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look for work."""
        self._loop = asyncio.create_task(self._work())

    async def stop(self) -> None:
        """Stop, and let go of what is running: whoever comes next takes it up. Idempotent."""
        tasks = [task for task in (self._loop, *self._running.values()) if task is not None]
        ids = list(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._loop = None
        if not ids:
            return
        try:
            async with self._database.session() as session:
                await self.let_go(session, ids)
        except ApplianceError as error:
            log.warning("work that was begun is taken up again only when its lease is over: %s", error)

    def wake(self) -> None:
        """There is something new."""
        self._wake.set()

    def cancel(self, row_id: str) -> None:
        """Stop working on one, if it is this process that does; others notice within ``POLL_SECONDS``."""
        if task := self._running.get(row_id):
            task.cancel()

    @abstractmethod
    async def due(self, session: AsyncSession) -> bool:
        """Whether a claim would find something; a read, so that idling writes nothing."""

    @abstractmethod
    async def claim(self, session: AsyncSession, limit: int) -> Sequence[_R]:
        """Take rows that nobody holds; their lease starts now."""

    @abstractmethod
    async def renew(self, session: AsyncSession, ids: Sequence[str]) -> set[str]:
        """Extend the leases of these; return those that are still wanted."""

    @abstractmethod
    async def let_go(self, session: AsyncSession, ids: Sequence[str]) -> None:
        """Make these due at once."""

    @abstractmethod
    async def run(self, row: _R) -> None:
        """Do the work. Raises nothing but for faults of ours; then the row is taken up again when its lease is over."""

    async def _work(self) -> None:
        while True:
            self._wake.clear()  # before it looks: what comes meanwhile is seen in the next round
            try:
                await self._renew()
                await self._begin()
            except ApplianceError as error:
                log.warning("stored work waits: %s", error)
            except Exception:
                log.exception("looking for stored work failed and is tried again")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), POLL_SECONDS)

    async def _renew(self) -> None:
        if not self._running:
            return
        async with self._database.session() as session:
            wanted = await self.renew(session, list(self._running))
        for row_id in self._running.keys() - wanted:
            self.cancel(row_id)

    async def _begin(self) -> None:
        free = self._concurrent - len(self._running)
        async with self._database.session(write=False) as session:
            due = free > 0 and await self.due(session)
        if not due:
            return
        async with self._database.session() as session:
            rows = await self.claim(session, free)
        for row in rows:
            if row.id not in self._running:
                task = asyncio.create_task(self.run(row))
                self._running[row.id] = task
                task.add_done_callback(partial(self._ended, row.id))

    def _ended(self, row_id: str, task: asyncio.Task[None]) -> None:
        del self._running[row_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("work on %s failed", row_id, exc_info=error)
