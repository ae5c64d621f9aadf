"""The end of a worker at any of its durable steps: writes of the vector store, and transactions that write."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

from reindex_kit import TwoModels, new_model, old_model

from appliance.errors import RequestError, RetrievalUnavailable
from appliance.knowledge.parsing import ParserPool
from appliance.protocols import VectorStore

WRITES = {"create", "drop", "upsert", "delete_file", "set_attributes", "set_readers", "seal"}


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

    async def stop(self) -> None:
        """Whatever else has ended, what it held is let go."""
        await self._inner.stop()

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


class Shared:
    """Parsing processes that outlive the stack that uses them."""

    def __init__(self, pool: ParserPool) -> None:
        self.parse = pool.parse

    async def stop(self) -> None:
        """Leave them to the next one."""


@asynccontextmanager
async def living(folder: Path, backend: VectorStore, parsers: ParserPool, crash: Crash) -> AsyncIterator[TwoModels]:
    """A stack on what an earlier one left, which ends at the crash; its parsing processes are those of all."""
    models, mortal = {"old": old_model(), "new": new_model()}, cast("VectorStore", Mortal(backend, crash))
    made = TwoModels(folder, models, store="memory", backend=mortal)
    with patch("appliance.knowledge.local.ParserPool", return_value=Shared(parsers)):
        await made.start()
    make_mortal(made, crash)
    try:
        yield made
    finally:
        with suppress(RequestError):
            await made.knowledge.stop()
        await made.database.stop()


@asynccontextmanager
async def parser_pool(folder: Path) -> AsyncIterator[ParserPool]:
    """Parsing processes for many stacks."""
    made = TwoModels(folder, {"old": old_model()}, store="memory", backend=None)
    pool = ParserPool(made.config, names=made.plugins.parser_names(), size=2)
    try:
        yield pool
    finally:
        await pool.stop()
