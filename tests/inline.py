"""Small plugins for tests, and ``provides`` that makes a plugin of objects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from appliance.plugin import Call, CallRecord, Chunk, Passage, Principal, RateLimited, Unauthenticated, hookimpl


class _Plugin:
    """A bare object: pluggy wants plugins that can be hashed."""


def provides(**hooks: object) -> object:
    """A plugin: ``provides(recorders=[r])`` implements ``appliance_recorders``; a function is the hook itself."""
    plugin = _Plugin()
    for name, value in hooks.items():
        function = value if callable(value) and not isinstance(value, type) else _giving(value)
        setattr(plugin, f"appliance_{name}", hookimpl(function))
    return plugin


def _giving(value: object) -> Callable[[], object]:
    return lambda: value


@dataclass
class Slots:
    """An admitter with a limit that counts what it gave out."""

    limit: int = 1
    held: int = 0
    given: int = 0

    @asynccontextmanager
    async def admit(self, call: Call) -> AsyncIterator[None]:
        if self.held >= self.limit:
            raise RateLimited("busy; try again", retry_after=1)
        self.held += 1
        self.given += 1
        try:
            yield
        finally:
            await asyncio.sleep(0)
            self.held -= 1


@dataclass
class Notebook:
    """A recorder that keeps the records; ``pause`` seconds each."""

    records: list[CallRecord] = field(default_factory=list)
    pause: float = 0
    begun: int = 0

    async def record(self, record: CallRecord) -> None:
        self.begun += 1
        await asyncio.sleep(self.pause)
        self.records.append(record)


@dataclass
class Span:
    """A span that remembers."""

    name: str
    values: dict[str, Any] = field(default_factory=dict)
    error: BaseException | None = None
    ended: int = 0

    def set(self, key: str, value: Any) -> None:
        self.values[key] = value

    def fail(self, error: BaseException) -> None:
        self.error = error

    def end(self) -> None:
        self.ended += 1


@dataclass
class Spans:
    """Telemetry that keeps its spans."""

    spans: list[Span] = field(default_factory=list)

    def start_call(self, call: Call, template: str) -> Span:
        self.spans.append(Span(template))
        return self.spans[-1]

    def start_step(self, parent: Any, name: str, attributes: Mapping[str, str | int | float]) -> Span:
        self.spans.append(Span(name, dict(attributes)))
        return self.spans[-1]

    def headers(self, span: Any) -> Mapping[str, str]:
        return {}


@dataclass
class Keys:
    """An authenticator that knows some bearer keys."""

    keys: Mapping[str, Principal] = field(default_factory=lambda: {"good": Principal(id="alice", tenant="a")})
    enabled: bool = True

    async def authenticate(self, headers: Mapping[str, str]) -> Principal | None:
        given = headers.get("authorization", "")
        if not given.startswith("Bearer "):
            return None
        if given[7:] not in self.keys:
            raise Unauthenticated
        return self.keys[given[7:]]


class Everything:
    """An authorizer for callers that may do everything."""

    async def authorize(self, principal: Principal, action: str, resource: str) -> None:
        """Never refuses."""


@dataclass
class InputHook:
    """An input filter from a function on the call."""

    change: Callable[[Call], Call] = lambda call: call

    async def filter_input(self, call: Call) -> Call:
        return self.change(call)

    async def filter_passages(self, call: Call, passages: Sequence[Passage]) -> Sequence[Passage]:
        return passages


@dataclass
class OutputHook:
    """An output filter that lets everything through and calls a function for each chunk."""

    seen: Callable[[Chunk], object] = lambda chunk: None

    async def filter_output(self, call: Call, chunks: AsyncIterator[Chunk]) -> AsyncIterator[Chunk]:
        async for chunk in chunks:
            self.seen(chunk)
            yield chunk


class GeneratorEngine:
    """An engine whose answers are async generators made by a function; runs nothing else."""

    def __init__(
        self, play: Callable[[Call], AsyncIterator[Chunk]], accept: Callable[[Call], Awaitable[None]] | None = None
    ):
        self._play = play
        self._accept = accept
        self.ready = False

    async def start(self) -> None:
        self.ready = True

    async def stop(self) -> None:
        self.ready = False

    async def generate(self, call: Call) -> Any:
        if self._accept is not None:
            await self._accept(call)
        return self._play(call)


def engine_plugin(engine: object, kind: str = "own") -> object:
    """A plugin with one engine under a kind."""
    return provides(engines={kind: lambda spec, context: engine})


def delta(text: str, reason: str | None = None) -> Chunk:
    """A chat chunk."""
    return Chunk(body={"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
                       "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason}]})  # fmt: skip
