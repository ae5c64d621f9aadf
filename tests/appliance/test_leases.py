"""The loop that takes up stored work: nothing ends it, and nothing that comes is overlooked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
from eventually import eventually
from sqlalchemy.ext.asyncio import AsyncSession

from appliance import leases
from appliance.errors import Unavailable
from appliance.leases import LeasedWork
from appliance.storage.database import Database


class Job:
    id = "job-1"


class Jobs(LeasedWork[Job]):
    """One job at most, which runs until it is cancelled; ``on_look`` is called at each look."""

    def __init__(self, database: Database, on_look: Callable[[int], object], *, there: bool = False) -> None:
        super().__init__(database, 1)
        self.looks, self._on_look, self._there = 0, on_look, there

    async def due(self, session: AsyncSession) -> bool:
        self.looks += 1
        self._on_look(self.looks)
        return self._there

    async def claim(self, session: AsyncSession, limit: int) -> Sequence[Job]:
        self._there = False
        return [Job()]

    async def renew(self, session: AsyncSession, ids: Sequence[str]) -> set[str]:
        return set(ids)

    async def let_go(self, session: AsyncSession, ids: Sequence[str]) -> None:
        raise Unavailable("the database is out of reach")

    async def run(self, row: Job) -> None:
        await asyncio.Event().wait()


@pytest.fixture
async def database(tmp_path) -> AsyncIterator[Database]:
    async with Database(f"sqlite+aiosqlite:///{tmp_path}/a.db") as database:
        yield database


async def test_a_fault_that_nobody_foresaw_is_logged_and_the_next_look_comes(database, monkeypatch, caplog) -> None:
    monkeypatch.setattr(leases, "POLL_SECONDS", 0.01)

    def fail_once(look: int) -> None:
        if look == 1:
            raise ZeroDivisionError

    jobs = Jobs(database, fail_once)
    jobs.start()
    await eventually(lambda: jobs.looks > 1)
    await jobs.stop()
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.exc_info is not None


async def test_what_comes_during_a_look_is_seen_at_once(database, monkeypatch) -> None:
    monkeypatch.setattr(leases, "POLL_SECONDS", 3600)
    jobs = Jobs(database, lambda look: jobs.wake() if look == 1 else None)
    jobs.start()
    await eventually(lambda: jobs.looks == 2)
    await jobs.stop()


async def test_a_database_that_is_away_holds_no_stop_up(database, caplog) -> None:
    begun = asyncio.Event()
    jobs = Jobs(database, lambda _: begun.set(), there=True)
    jobs.start()
    await eventually(lambda: jobs._running)
    await jobs.stop()
    assert "only when its lease is over: the database is out of reach" in caplog.text
