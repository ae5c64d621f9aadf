"""R30 as a property: whatever is made, deleted and broken off, a quota holds, and nobody is refused for nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from postgres import Postgres
from sqlalchemy import func, select

from appliance.config import LimitsConfig
from appliance.errors import QuotaExceeded, Unavailable
from appliance.quotas import Quotas
from appliance.storage import files, kept
from appliance.storage.database import Database
from appliance.storage.ids import new_id
from appliance.storage.tenancy import WHOLE_TENANT, TenantSession

LIMITS = LimitsConfig(max_stored_objects=4, max_stored_bytes=100)
REPLICAS = 2
OPEN = 3
replicas = st.integers(0, REPLICAS - 1)
sizes = st.integers(1, 60)
picks = st.integers(0, 100)


class Died(Exception):
    """A process's end in the middle of a transaction."""


@dataclass
class Writing:
    """A transaction that has written a file, and neither counted nor committed."""

    quotas: Quotas
    session: TenantSession
    held: AsyncExitStack
    file_id: str
    size: int


class Tenant(RuleBasedStateMachine):
    """Files of one tenant, kept beside the database as a dictionary of their sizes."""

    url: str

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.tenant = new_id("tenant")
        self.each = [Quotas(Database(self.url), LIMITS) for _ in range(REPLICAS)]
        for quotas in self.each:
            self.runner.run(quotas.database.start())
        self.kept: dict[str, int] = {}

    def fits(self, size: int) -> bool:
        return len(self.kept) < 4 and sum(self.kept.values()) + size <= 100

    def picked(self, pick: int) -> str:
        return sorted(self.kept)[pick % len(self.kept)]

    @asynccontextmanager
    async def writing(self, replica: int, size: int) -> AsyncIterator[tuple[TenantSession, str]]:
        """A transaction that keeps a file more."""
        row = files.new(new_id("file-"), "a", "assistants", size=size, sha256="")
        async with self.each[replica].database.tenant(self.tenant) as session:
            session.add(row)
            await session.flush()
            yield session, row.id

    async def made(self, replica: int, size: int, *, dies: bool = False) -> str | None:
        """The id of a file that was kept; ``None``: it was refused."""
        try:
            async with self.writing(replica, size) as (session, file_id):
                await self.each[replica].confirm(session, size=True)
                if dies:
                    raise Died
        except QuotaExceeded:
            return None
        return file_id

    @rule(replica=replicas, size=sizes)
    def create(self, replica: int, size: int) -> None:
        file_id = self.runner.run(self.made(replica, size))
        assert (file_id is not None) == self.fits(size)
        if file_id is not None:
            self.kept[file_id] = size

    @rule(replica=replicas, size=sizes)
    def fail_after_the_count(self, replica: int, size: int) -> None:
        try:
            assert self.runner.run(self.made(replica, size, dies=True)) is None
            assert not self.fits(size)
        except Died:
            assert self.fits(size)

    @rule(replica=replicas, size=sizes)
    def look(self, replica: int, size: int) -> None:
        try:
            self.runner.run(self.each[replica].check(self.tenant, objects=1, size=size))
            assert self.fits(size)
        except QuotaExceeded:
            assert not self.fits(size)

    @precondition(lambda self: self.kept)
    @rule(replica=replicas, pick=picks)
    def delete(self, replica: int, pick: int) -> None:
        file_id = self.picked(pick)
        self.runner.run(self.deleted(replica, file_id))
        del self.kept[file_id]

    async def deleted(self, replica: int, file_id: str) -> None:
        async with self.each[replica].database.tenant(self.tenant) as session:
            await files.remove(session, file_id)

    @invariant()
    def what_is_kept_is_what_was_acknowledged_and_within_the_quota(self) -> None:
        assert self.runner.run(self.rows()) == (len(self.kept), sum(self.kept.values()))
        assert len(self.kept) <= 4
        assert sum(self.kept.values()) <= 100

    async def rows(self) -> tuple[int, int]:
        async with self.each[0].database.session(write=False) as session:
            found = [await kept.number(session, what, self.tenant) for what in (kept.OBJECTS, kept.BYTES)]
        return found[0], found[1]

    def teardown(self) -> None:
        for quotas in self.each:
            self.runner.run(quotas.database.stop())
        self.runner.close()


class Overlapping(Tenant):
    """On PostgreSQL several transactions write at the same time, and processes end in the middle of theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[Writing] = []

    @precondition(lambda self: len(self.open) < OPEN)
    @rule(replica=replicas, size=sizes)
    def begin(self, replica: int, size: int) -> None:
        self.open.append(self.runner.run(self.begun(replica, size)))

    async def begun(self, replica: int, size: int) -> Writing:
        held = AsyncExitStack()
        session, file_id = await held.enter_async_context(self.writing(replica, size))
        return Writing(self.each[replica], session, held, file_id, size)

    def taken(self, pick: int) -> Writing:
        return self.open.pop(pick % len(self.open))

    @precondition(lambda self: self.open)
    @rule(pick=picks)
    def commit(self, pick: int) -> None:
        writing = self.taken(pick)
        kept = self.runner.run(self.committed(writing))
        assert kept == self.fits(writing.size), "what others have only begun does not count"
        if kept:
            self.kept[writing.file_id] = writing.size

    async def committed(self, writing: Writing) -> bool:
        try:
            async with writing.held:
                await writing.quotas.confirm(writing.session, size=True)
        except QuotaExceeded:
            return False
        return True

    @precondition(lambda self: self.open)
    @rule(pick=picks, counts=st.booleans())
    def crash(self, pick: int, *, counts: bool) -> None:
        self.runner.run(self.crashed(self.taken(pick), counts=counts))

    async def crashed(self, writing: Writing, *, counts: bool) -> None:
        """The connection is gone between the count and the commit: the turn is given back, and nothing is kept."""
        try:
            async with writing.held:
                if counts:
                    await writing.quotas.confirm(writing.session, size=True)
                number = await writing.session.scalar(select(func.pg_backend_pid()), execution_options=WHOLE_TENANT)
                async with self.each[0].database.session() as other:
                    await other.execute(select(func.pg_terminate_backend(number, 5000)))
        except (QuotaExceeded, Unavailable):
            return
        raise AssertionError("its commit must not succeed")

    def teardown(self) -> None:
        try:
            while self.open:
                self.runner.run(self.crashed(self.open.pop(), counts=False))
        finally:
            super().teardown()


def run(machine: type[Tenant], examples: int) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=20, deadline=None))


def test_r30_d6_a_quota_holds_whatever_happens_on_sqlite(tmp_path) -> None:
    class OnSqlite(Tenant):
        url = f"sqlite+aiosqlite:///{tmp_path / 'appliance.db'}"

    run(OnSqlite, 15)


@pytest.mark.slow
def test_r30_d6_a_quota_holds_whatever_overlaps_and_crashes_on_postgresql(postgres: Postgres) -> None:
    class OnPostgres(Overlapping):
        url = postgres.database()

    run(OnPostgres, 20)
