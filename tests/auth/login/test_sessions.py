"""Sessions as a credential."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pytest

from appliance.plugin import Forbidden, Principal, SessionStore, Unauthenticated
from appliance.storage.database import Database
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


async def begin(store: SessionStore) -> str:
    return await store.create(ALICE, issuer="i", subject="alice")


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
