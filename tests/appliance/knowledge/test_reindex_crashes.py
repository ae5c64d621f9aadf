"""A change of the model survives the end of the worker at any step: nothing is lost or doubled (R16)."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from crash_kit import Crash, living, parser_pool
from eventually import until
from reindex_kit import TwoModels

from appliance.errors import Conflict, RequestError
from appliance.knowledge.parsing import ParserPool
from appliance.types import Scope, Search
from appliance_retrieval.memory import MemoryStore

SEED = 5
SAMPLE = 6


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
    async with parser_pool(tmp_path / "parsers") as pool:
        yield pool


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
