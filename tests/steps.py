"""A plugin that takes part in every step of a request, notes each, and does there what a test says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from inline import GeneratorEngine, delta, engine_plugin, provides

from appliance.config import RetrievalConfig
from appliance.knowledge.augment import Retriever
from appliance.plugin import Call, CallRecord, Chunk, Passage, Principal, Scope
from appliance.types import Findings, Search

OWN_MODEL = {"models": [{"name": "m", "engine": "own"}]}
SEARCHING = {"tools": [{"type": "file_search", "vector_store_ids": ["vs_1"]}]}
PASSAGE = Passage(
    chunk_id="c1",
    store_id="vs_1",
    file_id="file_1",
    filename="facts.txt",
    text="The sky is green.",
    score=1.0,
    matched=True,
)
ORDER = [
    "authenticate", "authorize", "admit", "filter input", "retrieve", "filter passages", "generate", "filter output",
    "release", "record", "call finished",
]  # fmt: skip


class Steps:
    """``seen`` are the steps in order; ``act["admit"] = function`` runs an async function there."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.act: dict[str, Callable[[], Awaitable[Any]]] = {}
        self.records: list[CallRecord] = []
        self.held = 0
        self.enabled = True

    def plugins(self) -> dict[str, object]:
        """The plugins, to be passed to ``box``."""

        async def finished(record: CallRecord) -> None:
            await self._at("call finished")

        mine = provides(
            authenticators=[self], authorizers=[self], admitters=[self], input_filters=[self], output_filters=[self],
            recorders=[self], on_call_finished=finished,
        )  # fmt: skip
        return {"own": engine_plugin(GeneratorEngine(self._play, self._accept)), "steps": mine}

    def retriever(self) -> Retriever:
        """Finds ``PASSAGE`` in every store."""
        return Retriever(self, self, RetrievalConfig())  # type: ignore[arg-type]

    async def _at(self, step: str) -> None:
        self.seen.append(step)
        if step in self.act:
            await self.act[step]()

    async def authenticate(self, headers: Mapping[str, str]) -> Principal | None:
        await self._at("authenticate")
        return Principal(id="alice")

    async def authorize(self, principal: Principal, action: str, resource: str) -> None:
        if action == "models.use":  # what is asked later depends on the request
            await self._at("authorize")

    @asynccontextmanager
    async def admit(self, call: Call) -> AsyncIterator[None]:
        await self._at("admit")
        self.held += 1
        try:
            yield
        finally:
            self.held -= 1
            self.seen.append("release")

    async def filter_input(self, call: Call) -> Call:
        await self._at("filter input")
        return call

    async def filter_passages(self, call: Call, passages: Sequence[Passage]) -> Sequence[Passage]:
        await self._at("filter passages")
        return passages

    async def resolve(self, tenant: str, references: Sequence[str]) -> tuple[str, ...]:
        return tuple(references)

    async def search(self, search: Search, scope: Scope) -> Findings:
        await self._at("retrieve")
        return Findings(passages=[PASSAGE])

    async def _accept(self, call: Call) -> None:
        await self._at("generate")

    async def _play(self, call: Call) -> AsyncIterator[Chunk]:
        if call.stream:
            yield delta("It is green [1].")
            yield delta("", "stop")
        else:
            message = {"role": "assistant", "content": "It is green [1]."}
            yield Chunk(body={"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    async def filter_output(self, call: Call, chunks: AsyncIterator[Chunk]) -> AsyncIterator[Chunk]:
        await self._at("filter output")
        async for chunk in chunks:
            yield chunk

    async def record(self, record: CallRecord) -> None:
        await self._at("record")
        self.records.append(record)
