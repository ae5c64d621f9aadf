"""Sessions: how long they last, what is kept of them, and how they count as a credential."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pytest
from sqlalchemy import select

from appliance.plugin import Forbidden, Principal, SessionStore, Unauthenticated
from appliance.storage import sessions as module
from appliance.storage.database import Database
from appliance.storage.tables.sessions import BrowserSession
from appliance.testing.contracts.authenticator import AuthenticatorContract
from appliance_auth.login.cookies import CookieJar
from appliance_auth.login.sessions import BrowserSessions

ALICE = Principal(id="user:i|alice", user="user:i|alice", tenant="acme", groups=("g",), roles=("user",))
ORIGIN = "https://appliance.example"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SessionStore]:
    database = Database(f"sqlite+aiosqlite:///{tmp_path / 'appliance.db'}")
    await database.start()
    yield SessionStore(database, idle=600, lifetime=3600)
    await database.stop()


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


async def test_the_database_tells_nobody_the_cookie(store: SessionStore, tmp_path: Path) -> None:
    text = await begin(store)
    await store.database.stop()
    assert all(text.encode() not in path.read_bytes() for path in tmp_path.iterdir())


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


class TestBrowserSessions(AuthenticatorContract):
    """A session is an authenticator like all others."""

    @pytest.fixture
    def authenticator(self, store: SessionStore) -> BrowserSessions:
        return BrowserSessions(store, CookieJar(secure=True), ORIGIN)

    @pytest.fixture
    async def good_headers(self, store: SessionStore) -> Mapping[str, str]:
        return {":method": "GET", "cookie": f"a=b; __Host-appliance_session={await begin(store)}; c=d"}

    @pytest.fixture
    async def bad_headers(self, store: SessionStore) -> Sequence[Mapping[str, str]]:
        ended = await begin(store)
        await store.end(ended)
        values = (ended, "x", "x" * 10_000, "'; DROP TABLE browser_sessions; --", "ü")
        return [{":method": "GET", "cookie": f"__Host-appliance_session={value}"} for value in values]

    async def test_an_unknown_method_counts_as_one_that_changes_something(
        self, authenticator: BrowserSessions, good_headers: Mapping[str, str]
    ) -> None:
        for method in ("POST", "PUT", "PATCH", "DELETE", "get", "QUERY", ""):
            with pytest.raises(Forbidden):
                await authenticator.authenticate({**good_headers, ":method": method})
            assert await authenticator.authenticate({**good_headers, ":method": method, "origin": ORIGIN}) == ALICE

    async def test_the_cookie_of_another_name_is_no_session(
        self, authenticator: BrowserSessions, good_headers: Mapping[str, str]
    ) -> None:
        cookie = good_headers["cookie"].replace("__Host-", "")
        assert await authenticator.authenticate({":method": "GET", "cookie": cookie}) is None

    async def test_a_session_that_is_over_says_where_to_begin_again(
        self, authenticator: BrowserSessions, bad_headers: Sequence[Mapping[str, str]]
    ) -> None:
        with pytest.raises(Unauthenticated, match="/auth/login"):
            await authenticator.authenticate(bad_headers[0])
