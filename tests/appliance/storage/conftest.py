"""Storage tests run on both databases."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from postgres import Postgres

from appliance.storage.database import Database


@pytest.fixture(params=["sqlite", "postgresql"])
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Makes the URL of an empty database, another one each time, on SQLite and on PostgreSQL."""
    if request.param == "postgresql":
        server: Postgres = request.getfixturevalue("postgres")
        return server.database
    made = iter(range(1000))
    return lambda: f"sqlite+aiosqlite:///{tmp_path / f'db{next(made)}' / 'appliance.db'}"


@pytest.fixture
def url(new_url: Callable[[], str]) -> str:
    """The URL of an empty database."""
    return new_url()


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    """A started database."""
    made = Database(url)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def several(url: str) -> AsyncIterator[list[Database]]:
    """Four processes' connections to one database."""
    databases = [Database(url) for _ in range(4)]
    for database in databases:
        await database.start()
    yield databases
    for database in databases:
        await database.stop()
