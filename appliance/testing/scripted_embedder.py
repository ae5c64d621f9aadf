"""A scripted embedder: deterministic vectors from words, without a model; can be strict, busy or hold calls on purpose.

As a plugin object: ``make_app(config, plugins={"scripted_embedder": ScriptedEmbedder()})`` with a model
``{"name": "words", "embedder": "scripted_embedder"}``. Texts that share words have similar vectors.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from appliance.context import AppContext
from appliance.errors import BadRequest, RateLimited
from appliance.hookspecs import hookimpl
from appliance.protocols import Embedder, EmbedderFactory
from appliance.types import Embeddings, ModelSpec

_LOOK_SECONDS = 0.005
_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(eq=False)
class ScriptedEmbedder:
    """Plugin and embedder in one.

    Calls with more than ``max_batch`` inputs are refused (400). The calls whose numbers (from 0) are in ``busy`` answer
    429 with ``retry_after`` seconds. ``calls`` notes the size of every call as it comes.

    While ``hold_from`` is set, calls from that number on wait until ``release()``, so that a test meets work under way
    for as long as it likes: ``until len(calls) > hold_from`` one of them is held. Both may be changed from any thread.
    """

    dimensions: int = 64
    fingerprint: str = "scripted"
    max_tokens: int = 100_000
    max_batch: int | None = None
    batch_size: int = 64
    busy: set[int] = field(default_factory=set)
    retry_after: float = 0.1
    hold_from: int | None = None
    calls: list[int] = field(default_factory=list)

    @hookimpl
    def appliance_embedders(self) -> Mapping[str, EmbedderFactory]:
        """Provide this object as ``scripted_embedder``."""
        return {"scripted_embedder": self._make}

    def _make(self, spec: ModelSpec, context: AppContext) -> Embedder:
        return self

    async def start(self) -> None:
        """Nothing to load."""

    async def stop(self) -> None:
        """Nothing to release."""

    async def embed(self, inputs: Sequence[str | Sequence[int]], *, bulk: bool = False) -> Embeddings:
        """One unit vector an input. Raises BadRequest or RateLimited as scripted."""
        number = len(self.calls)
        self.calls.append(len(inputs))
        while self._holds(number):
            await asyncio.sleep(_LOOK_SECONDS)
        if number in self.busy:
            raise RateLimited("busy, as scripted", retry_after=self.retry_after)
        if self.max_batch is not None and len(inputs) > self.max_batch:
            raise BadRequest(f"at most {self.max_batch} inputs at once", param="input")
        if not all(inputs):
            raise BadRequest("an input is empty", param="input")
        rows = b"".join(self.vector(item) for item in inputs)
        return Embeddings(rows, self.dimensions, tuple(len(_words(item)) for item in inputs))

    def release(self) -> None:
        """Let the calls that are held go on, and hold no more."""
        self.hold_from = None

    def _holds(self, number: int) -> bool:
        first = self.hold_from
        return first is not None and number >= first

    def token_spans(self, text: str) -> Sequence[tuple[int, int]]:
        """Words and punctuation marks."""
        return [match.span() for match in _WORD.finditer(text)]

    def vector(self, item: str | Sequence[int]) -> bytes:
        """The vector of one input: its words, hashed into ``dimensions`` buckets."""
        buckets = [0.0] * self.dimensions
        for word in _words(item):
            digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
            buckets[int.from_bytes(digest[:4], "little") % self.dimensions] += 1.0 if digest[4] & 1 else -1.0
        norm = sum(x * x for x in buckets) ** 0.5
        if norm == 0:
            buckets[0], norm = 1.0, 1.0
        return struct.pack(f"<{self.dimensions}f", *(x / norm for x in buckets))


def _words(item: str | Sequence[int]) -> list[str]:
    return _WORD.findall(item.lower()) if isinstance(item, str) else [str(token) for token in item]


scripted_embedder = ScriptedEmbedder()
"""For configurations that load plugins by name."""
