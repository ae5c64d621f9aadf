"""A change of the model survives the end of the worker at any step: nothing is lost or doubled (R16)."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from eventually import until
from reindex_kit import TwoModels, new_model, old_model

from appliance.errors import Conflict, RequestError, RetrievalUnavailable
from appliance.knowledge.parsing import ParserPool
from appliance.protocols import VectorStore
from appliance.types import Scope, Search
from appliance_retrieval.memory import MemoryStore

WRITES = {"create", "drop", "upsert", "delete_file", "set_attributes", "set_readers", "seal"}
SEED = 5
SAMPLE = 6


class Crash:
    """The end of a process at one of its durable steps: afterwards nothing that it does has an effect."""

    def __init__(self, step: int, *, done: bool) -> None:
        """Before the step with this number has an effect, or right after it (``done``)."""
        self.step, self.done = step, done
        self.steps = 0
        self.over = False

    def check(self) -> None:
        if self.over:
            raise RetrievalUnavailable("the process has ended")

    def begin(self) -> int:
        self.check()
        self.steps += 1
        if self.steps == self.step and not self.done:
            self.end()
        return self.steps

    def after(self, number: int) -> None:
        if number == self.step and self.done:
            self.end()

    def end(self) -> None:
        self.over = True
        self.check()


class Mortal:
    """A vector store whose writes count as steps."""

    def __init__(self, inner: VectorStore, crash: Crash) -> None:
        self._inner, self._crash = inner, crash

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        async def call(*args: object, **options: object) -> object:
            if name not in WRITES:
                self._crash.check()
                return await method(*args, **options)
            number = self._crash.begin()
            answer = await method(*args, **options)
            self._crash.after(number)
            return answer

        return call


def make_mortal(made: TwoModels, crash: Crash) -> None:
    """Every transaction that writes is a step too."""
    original = made.database.session

    @asynccontextmanager
    async def session(*, write: bool = True) -> AsyncIterator[Any]:
        crash.check()
        number = crash.begin() if write else 0
        async with original(write=write) as opened:
            yield opened
        crash.after(number)

    made.database.session = session  # type: ignore[method-assign]


@asynccontextmanager
async def living(folder: Path, backend: MemoryStore, parsers: ParserPool, crash: Crash) -> AsyncIterator[TwoModels]:
    """A stack on what an earlier one left, which ends at the crash; its parsing processes are those of all."""
    made = TwoModels(folder, {"old": old_model(), "new": new_model()}, store="memory", backend=Mortal(backend, crash))
    await made.start()
    await made.knowledge._ingestor._indexer.parsers.stop()
    made.knowledge._ingestor._indexer.parsers = parsers
    make_mortal(made, crash)
    try:
        yield made
    finally:
        with suppress(RequestError):
            await made.knowledge.stop()
        await made.database.stop()


async def change(made: TwoModels, store: str, gone: str, late: str) -> None:
    """Everything that is to happen; each step may be repeated after a crash."""
    with suppress(Conflict):  # it was switched already
        await made.begin(store)
    await made.attach(store, late)
    await made.knowledge.remove_file(store, gone)
    await made.settled(store, late)
    await made.served_by(store, "new")
    with suppress(Conflict):  # it was finished already
        await made.order("finish", store)


async def crash_at(folder: Path, parsers: ParserPool, step: int, *, done: bool) -> bool:
    """Run the change with a crash, then again without; whether the crash came at all."""
    backend = MemoryStore()
    never = Crash(0, done=False)
    async with living(folder, backend, parsers, never) as made:
        store = await made.make_store()
        gone, kept = [await made.add(store, f"zebrafinch{i} sings " * 60) for i in range(2)]
        late = await made.upload("zebrafinch late sings")
    crash = Crash(step, done=done)
    async with living(folder, backend, parsers, crash) as made:
        with suppress(RequestError):
            await change(made, store, gone, late)
            return False
        await until(lambda: crash.over)
    async with living(folder, backend, parsers, never) as made:
        await change(made, store, gone, late)
        search = Search(store_ids=(store,), queries=("sings",), limit=50)
        found = (await made.knowledge.search(search, Scope())).passages
        assert {hit.file_id for hit in found} == {kept, late}
        assert len({hit.chunk_id for hit in found}) == len(found)
        assert await backend.collections() == [f"{store}_1"]
        await made.whole(store)
        status = await made.status(store)
        assert (status.embedder, status.reindex) == ("new", None)
    return True


@pytest.fixture
async def parsers(tmp_path) -> AsyncIterator[ParserPool]:
    made = TwoModels(tmp_path / "parsers", {"old": old_model()}, store="memory", backend=None)
    pool = ParserPool(made.config, names=made.plugins.parser_names(), size=2)
    try:
        yield pool
    finally:
        await pool.stop()


async def test_r16_a_worker_that_ends_while_a_model_changes_loses_and_doubles_nothing(tmp_path, parsers) -> None:
    chance = random.Random(SEED)
    for number in range(SAMPLE):
        step, done = chance.randint(1, 25), chance.random() < 0.5
        assert await crash_at(tmp_path / str(number), parsers, step, done=done), step


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_r16_so_it_is_at_every_step(tmp_path, parsers) -> None:
    step = 1
    while await crash_at(tmp_path / f"{step}a", parsers, step, done=False):
        # Where a run is slow, notes of its progress are steps too, so the last ones are not there each time.
        assert await crash_at(tmp_path / f"{step}b", parsers, step, done=True) or step > 25
        step += 1
    assert step > 25
