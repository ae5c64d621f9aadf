"""Ingestion survives the end of the worker at every step, with each vector store: nothing is lost or doubled (R16).

What was acknowledged before the end is there after it, without anybody asking again.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from crash_kit import Crash, living, parser_pool
from eventually import until
from pinecone_standin import KEY, PineconeStandIn
from reindex_kit import TwoModels
from sqlalchemy import select

from appliance.config import parse
from appliance.context import AppContext
from appliance.errors import NotFound, RequestError
from appliance.knowledge.parsing import ParserPool
from appliance.plugins import Plugins
from appliance.protocols import Inventory, VectorStore
from appliance.storage.tables import Job, StoreFile
from appliance.types import Access, Scope

pytestmark = pytest.mark.timeout(300)
EVERY_STEP = bool(os.environ.get("EVERY_STEP"))
"""Also of the vector stores that take seconds for each; else a sample of theirs."""
SEED, SAMPLE, STEPS = 16, 4, 10
RESUMED_SECONDS = 30
BOB = Scope(readers=("*", "user:bob"))
NEVER = Crash(0, done=False)


@asynccontextmanager
async def opened(folder: Path, name: str, **settings: Any) -> AsyncIterator[VectorStore]:
    """A vector store by its plugin, which outlives the stacks that use it."""
    folder.mkdir()
    config = {"plugins": [name], "plugin": {name: settings} if settings else {}}
    parsed = parse(msgspec.json.encode(config).decode(), folder=folder)
    plugins = Plugins(parsed)
    context = AppContext(config=parsed, database=None)  # type: ignore[arg-type]
    plugins.bind(context)
    yield plugins.vector_stores()[name](context)


@pytest.fixture
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[VectorStore]:
    folder = tmp_path / "vectors"
    if request.param == "pgvector":
        url = request.getfixturevalue("pgvector_server").database().replace("+asyncpg", "")
        async with opened(folder, "pgvector", url=url) as store:
            yield store
    elif request.param == "pinecone":
        async with PineconeStandIn().serving() as url, opened(folder, "pinecone", api_key=KEY, url=url) as store:
            yield store
    else:
        async with opened(folder, request.param) as store:
            yield store


@pytest.fixture
async def parsers(tmp_path: Path) -> AsyncIterator[ParserPool]:
    async with parser_pool(tmp_path / "parsers") as pool:
        yield pool


@dataclass
class Files:
    """A store with files of three chunks each, and what is to happen to them."""

    store: str
    kept: str
    gone: str
    closed: str
    late: str

    def steps(self, made: TwoModels) -> dict[str, Any]:
        """Each is acknowledged once it returns, and may be repeated."""
        return {
            "attached": lambda: made.attach(self.store, self.late),
            "removed": lambda: self._removed(made),
            "closed": lambda: made.knowledge.set_access(self.store, self.closed, Access(groups=("hr",))),
            "completed": lambda: made.settled(self.store, self.late),
        }

    async def _removed(self, made: TwoModels) -> None:
        with suppress(NotFound):
            await made.knowledge.remove_file(self.store, self.gone)


def text_of(name: str) -> str:
    return " ".join(f"{name}{i}" for i in range(250))


async def prepared(made: TwoModels) -> Files:
    store = await made.make_store()
    kept, gone, closed = [await made.add(store, text_of(name)) for name in ("kept", "gone", "closed")]
    return Files(store, kept, gone, closed, late=await made.upload(text_of("late")))


async def crash_at(folder: Path, backend: VectorStore, parsers: ParserPool, step: int, *, done: bool) -> bool:
    """Work with a crash, and look what there is afterwards; whether the crash came at all."""
    async with living(folder, backend, parsers, NEVER) as made:
        files = await prepared(made)
    crash, acknowledged = Crash(step, done=done), []
    async with living(folder, backend, parsers, crash) as made:
        with suppress(RequestError):
            for name, act in files.steps(made).items():
                await act()
                acknowledged.append(name)
        if len(acknowledged) < 4:
            await until(lambda: crash.over)
    async with living(folder, backend, parsers, NEVER) as made:
        await holds(made, backend, files, set(acknowledged))
        for act in files.steps(made).values():
            await act()
        await holds(made, backend, files, set(files.steps(made)))
        await made.whole(files.store)
        await backend.drop(files.store)
    return crash.over


async def holds(made: TwoModels, backend: VectorStore, files: Files, acknowledged: set[str]) -> None:
    """The oracle: every chunk id that must be there is, once, and no other, for those who may see it."""
    if "attached" in acknowledged:
        assert (await made.settled(files.store, files.late, RESUMED_SECONDS)).status == "completed"
    await until(lambda: idle(made))
    async with made.database.session(write=False) as session:
        rows = {row.file_id: row for row in (await session.scalars(select(StoreFile))).all()}
    expected = {files.kept, files.closed}
    expected |= {files.late} if "attached" in acknowledged else {files.late} & rows.keys()
    expected |= set() if "removed" in acknowledged else {files.gone} & rows.keys()
    assert rows.keys() == expected
    ids: list[str] = []
    for file, row in rows.items():
        assert (row.status, row.chunks) == ("completed", 3)
        chunks = await backend.chunks(files.store, file, scope=Scope(readers=("*", "group:hr")))
        assert [chunk.id for chunk in chunks] == [f"{file}:{row.version}:{i}" for i in range(3)]
        ids += [chunk.id for chunk in chunks]
    assert await backend.count(files.store) == len(ids)
    assert isinstance(backend, Inventory)
    assert sorted(await backend.chunk_ids(files.store)) == sorted(ids)
    if "closed" in acknowledged:
        assert await backend.chunks(files.store, files.closed, scope=BOB) == []


async def idle(made: TwoModels) -> bool:
    async with made.database.session(write=False) as session:
        return not (await session.scalars(select(Job))).all()


def all_steps() -> Iterator[tuple[int, bool]]:
    """Before each has an effect, and after it."""
    return ((step, done) for step in itertools.count(1) for done in (False, True))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["memory", "milvus", "pgvector", "pinecone"], indirect=True)
async def test_r16_a_worker_that_ends_at_any_step_of_ingestion_loses_and_doubles_nothing(
    tmp_path: Path, backend: VectorStore, parsers: ParserPool, request: pytest.FixtureRequest
) -> None:
    every = EVERY_STEP or request.node.callspec.params["backend"] == "memory"
    sample = random.Random(SEED).sample(list(itertools.islice(all_steps(), 2 * STEPS)), SAMPLE)
    for step, done in all_steps() if every else sample:
        came = await crash_at(tmp_path / f"{step}{done}", backend, parsers, step, done=done)
        if not came:
            assert every
            assert step > STEPS
            break
