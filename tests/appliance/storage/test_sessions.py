"""Browser sessions: how long they last, and what is kept of them."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from appliance.storage import sessions as module
from appliance.storage.database import Database
from appliance.storage.sessions import SessionStore
from appliance.storage.tables.sessions import BrowserSession
from appliance.types import Principal

ALICE = Principal(
    id="user:i|alice",
    user="user:i|alice",
    tenant="acme",
    groups=("g",),
    roles=("user",),
    scopes=frozenset({"inference"}),
    stores=frozenset({"handbook"}),
)


@pytest.fixture
def store(database: Database) -> SessionStore:
    return SessionStore(database, idle=600, lifetime=3600)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    time = [1_000_000]
    monkeypatch.setattr(module, "now", lambda: time[0])
    return time


async def begin(store: SessionStore, subject: str = "alice", sid: str | None = None) -> str:
    return await store.create(ALICE, issuer="i", subject=subject, sid=sid)


async def test_a_session_gives_the_caller_who_signed_in(store: SessionStore) -> None:
    text = await begin(store)
    assert await store.find(text) == ALICE
    assert await store.find(text + "x") is None
    assert await begin(store) != text


async def test_A25_a_session_without_requests_is_over(store: SessionStore, clock: list[int]) -> None:
    text = await begin(store)
    for _ in range(5):
        clock[0] += 599
        assert await store.find(text) == ALICE
    clock[0] += 600
    assert await store.find(text) is None


async def test_A25_a_session_that_is_used_is_over_after_its_lifetime(store: SessionStore, clock: list[int]) -> None:
    text = await begin(store)
    for _ in range(35):
        clock[0] += 100
        assert await store.find(text) == ALICE
    clock[0] += 100
    assert await store.find(text) is None


async def test_sessions_that_are_over_are_forgotten(store: SessionStore, clock: list[int]) -> None:
    await begin(store)
    clock[0] += 600
    await begin(store)
    async with store.database.session(write=False) as session:
        assert len((await session.scalars(select(BrowserSession))).all()) == 1


async def test_the_database_does_not_hold_the_cookie(store: SessionStore) -> None:
    text = await begin(store)
    async with store.database.session(write=False) as session:
        (row,) = (await session.scalars(select(BrowserSession))).all()
    assert all(text not in str(getattr(row, column.key)) for column in BrowserSession.__table__.columns)


async def test_A25_the_issuer_ends_a_persons_sessions_or_one_of_them(store: SessionStore) -> None:
    texts = [await begin(store, *who) for who in (("alice", "1"), ("alice", "2"), ("bob", "3"))]
    await store.end_all("another", subject="alice")
    await store.end_all("i", subject="bob", sid="1")
    assert [await store.find(text) for text in texts] == [ALICE] * 3
    await store.end_all("i", sid="1")
    assert [await store.find(text) for text in texts] == [None, ALICE, ALICE]
    await store.end_all("i", subject="alice")
    assert [await store.find(text) for text in texts] == [None, None, ALICE]
    await store.end(texts[2])
    assert await store.find(texts[2]) is None
