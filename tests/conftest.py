"""Shared by all tests: an app on loopback, an OpenID provider, and the rule that no test leaves a task behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import loopback
import oidc as oidc_provider
import pytest
from postgres import Postgres


@pytest.fixture
def box(tmp_path: Path) -> Callable[..., AbstractAsyncContextManager[loopback.Box]]:
    """``async with box(script, config, name=plugin, ...) as b``: a served app; see ``loopback.Box``."""
    return partial(loopback.box, tmp_path)


@pytest.fixture(scope="session")
def oidc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[oidc_provider.OidcProvider]:
    """A real OpenID provider for all tests. One that stops it, or counts its requests, uses ``oidc.started``."""
    with oidc_provider.started(tmp_path_factory.mktemp("oidc")) as provider:
        yield provider


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server; ``postgres.database()`` gives the URL of an empty database."""
    with Postgres() as server:
        yield server


@pytest.fixture(autouse=True)
async def no_leaked_tasks() -> AsyncIterator[None]:
    """Every task that a test or its app started has ended soon after it."""
    yield
    mine = asyncio.current_task()
    for _ in range(100):
        left = [task for task in asyncio.all_tasks() if task is not mine]
        if not left:
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"left running: {left}")
