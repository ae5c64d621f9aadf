"""What happens at the same time: after an acknowledged deletion or change no search shows it any more (R30, B15)."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from reindex_kit import TwoModels, two_models

from appliance.errors import Conflict
from appliance.types import Access, Scope, Search

SEED = int(os.environ.get("HISTORIES_SEED", "30"))
STEPS = int(os.environ.get("HISTORIES_STEPS", "12"))
ALICE = Scope(readers=("*", "group:hr"))
BOB = Scope(readers=("*", "user:bob"))


@dataclass
class Fact:
    """Something that holds from one moment to another: a document must not be shown to somebody."""

    file: str
    scope: Scope
    since: int
    until: float = float("inf")


@dataclass
class History:
    """What was acknowledged, and what searches showed, by the ticks of one clock."""

    clock: itertools.count[int] = field(default_factory=itertools.count)
    hidden: list[Fact] = field(default_factory=list)
    shown: list[tuple[int, int, Scope, set[str]]] = field(default_factory=list)

    def now(self) -> int:
        return next(self.clock)

    def violations(self) -> list[tuple[Fact, tuple[int, int, Scope, set[str]]]]:
        """Searches that showed what was hidden before they began and until after they ended."""
        return [
            (fact, search)
            for fact in self.hidden
            for search in self.shown
            if search[2] == fact.scope and fact.file in search[3]
            if fact.since < search[0] and search[1] < fact.until
        ]


class Writer:
    """Attaches, deletes and shares documents of its own, and notes what is acknowledged."""

    def __init__(self, made: TwoModels, store: str, history: History, chance: random.Random) -> None:
        self._made, self._store, self._history, self._chance = made, store, history, chance
        self.files: list[str] = []
        self._closed: dict[str, Fact] = {}

    async def run(self) -> None:
        for _ in range(STEPS):
            await self._chance.choice(self._steps())()

    def _steps(self) -> list[Callable]:
        return [self.attach, self.attach, self.delete, self.close, self.open] if self.files else [self.attach]

    async def attach(self) -> None:
        file = await self._made.upload("zebrafinch " + " ".join(f"w{self._chance.randint(0, 99)}" for _ in range(150)))
        await self._made.attach(self._store, file)
        if self._chance.random() < 0.6:
            await self._made.settled(self._store, file)
        self.files.append(file)

    async def delete(self) -> None:
        file = self.files.pop(self._chance.randrange(len(self.files)))
        self._closed.pop(file, None)
        await self._made.knowledge.remove_file(self._store, file)
        self._history.hidden += [Fact(file, scope, self._history.now()) for scope in (ALICE, BOB)]

    async def close(self) -> None:
        """For alice alone from the answer on."""
        file = self._chance.choice(self.files)
        await self._made.knowledge.set_access(self._store, file, Access(groups=("hr",)))
        if file not in self._closed:
            self._closed[file] = Fact(file, BOB, self._history.now())
            self._history.hidden.append(self._closed[file])

    async def open(self) -> None:
        file = self._chance.choice(self.files)
        if fact := self._closed.pop(file, None):
            fact.until = self._history.now()  # from when it is asked for it may be seen
        await self._made.knowledge.set_access(self._store, file, Access(public=True))


async def search_on(made: TwoModels, store: str, history: History, done: asyncio.Event) -> None:
    while not done.is_set():
        for scope in (ALICE, BOB):
            began = history.now()
            found = await made.knowledge.search(
                Search(store_ids=(store,), queries=("zebrafinch",), limit=50, ranker="none"), scope
            )
            history.shown.append((began, history.now(), scope, {hit.file_id for hit in found.passages}))


async def change_models(made: TwoModels, store: str, done: asyncio.Event) -> None:
    """Back and forth between two collections all the time."""
    with suppress(Conflict):
        await made.begin(store)
    while not done.is_set():
        with suppress(Conflict):  # it is still being built
            await made.order("rollback", store)
        await asyncio.sleep(0.01)


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_r30_nothing_that_was_deleted_or_taken_away_is_shown_while_all_goes_on_at_once(tmp_path) -> None:
    async with two_models(tmp_path) as made:
        store, history, done = await made.make_store(), History(), asyncio.Event()
        writers = [Writer(made, store, history, random.Random(SEED + number)) for number in range(3)]
        watching = [search_on(made, store, history, done), change_models(made, store, done)]
        background = [asyncio.create_task(work) for work in watching]
        try:
            async with asyncio.timeout(100):
                await asyncio.gather(*(writer.run() for writer in writers))
        finally:
            done.set()
            await asyncio.gather(*background)
        assert history.violations() == []
        assert len(history.hidden) > 10
        assert any(shown for *_, shown in history.shown)
        files = {file for writer in writers for file in writer.files}
        for file in files:
            assert (await made.settled(store, file)).status == "completed"
        search = Search(store_ids=(store,), queries=("zebrafinch",), limit=50)
        assert {hit.file_id for hit in (await made.knowledge.search(search, ALICE)).passages} == files
        await made.whole(store)


def test_the_checker_sees_what_it_should() -> None:
    history = History(hidden=[Fact("a", BOB, 5, until=9)])
    history.shown = [(1, 6, BOB, {"a"}), (6, 7, ALICE, {"a"}), (6, 10, BOB, {"a"}), (6, 8, BOB, {"b"})]
    assert history.violations() == []
    history.shown.append((6, 8, BOB, {"a"}))
    assert len(history.violations()) == 1
