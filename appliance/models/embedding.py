"""Embedding models as engines, so that ``/v1/embeddings`` takes the same path as every other call."""

from __future__ import annotations

import asyncio
import base64
import math
import struct
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from appliance.errors import BadRequest
from appliance.knowledge.api import Knowledge
from appliance.protocols import Generation
from appliance.types import Call, Chunk, Embeddings
from appliance.wire import EmbeddingRequest

_LARGE = 64 * 1024
"""Bytes of vectors that take a thread a millisecond to write down; more would hold up everybody else."""
_encode = msgspec.json.Encoder().encode


class Answered:
    """A generation that is already complete."""

    def __init__(self, body: dict[str, Any], payload: bytes | None = None) -> None:
        """``payload`` is the same as JSON, where that is there already."""
        self._chunks = [Chunk(body=body, payload=payload)]

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        if not self._chunks:
            raise StopAsyncIteration
        return self._chunks.pop()

    async def aclose(self) -> None:
        """Nothing to abort."""


class WorkerEngine:
    """What the models that run in the worker have in common."""

    def __init__(self, name: str, knowledge: Knowledge) -> None:
        self._name = name
        self._knowledge = knowledge

    @property
    def ready(self) -> bool:
        """As ready as the worker is."""
        return self._knowledge.ready

    async def start(self) -> None:
        """The worker starts by itself."""

    async def stop(self) -> None:
        """The worker stops by itself."""


class EmbeddingEngine(WorkerEngine):
    """Answers embedding calls from the worker's embedders."""

    def __init__(self, name: str, knowledge: Knowledge, lengths: Sequence[int] = ()) -> None:
        """``lengths``: to how many dimensions vectors may be cut."""
        super().__init__(name, knowledge)
        self._lengths = lengths
        self._own: int | None = None
        """The length of the model's vectors, once one was seen."""

    async def generate(self, call: Call) -> Generation:
        """Embed every input. Raises BadRequest, RetrievalUnavailable."""
        request = call.request
        if not isinstance(request, EmbeddingRequest):
            raise BadRequest(f"model {call.model} makes embeddings; use it with /v1/embeddings", param="model")
        if self._own is not None:
            self._check_length(call, request.dimensions, self._own)
        embeddings = await self._knowledge.embed(self._name, embedding_inputs(request.input))
        self._own = embeddings.dimensions
        self._check_length(call, request.dimensions, self._own)
        if len(embeddings.vectors) < _LARGE:
            return Answered(_answer(request, embeddings))
        return Answered(*await asyncio.to_thread(_large_answer, request, embeddings))

    def _check_length(self, call: Call, wanted: int | None, own: int) -> None:
        possible = [own, *(length for length in self._lengths if length < own)]
        if wanted not in (None, *possible):
            raise BadRequest(
                f"model {call.model} makes vectors of {' or '.join(map(str, possible))} dimensions only; "
                "ask for one of these or leave dimensions out",
                param="dimensions",
            )


def embedding_inputs(raw: Any) -> list[str | Sequence[int]]:
    """``input`` as a list of texts or token arrays: a string, an array of either, or one array of token ids."""
    if isinstance(raw, str):
        return [raw]
    if raw and all(isinstance(item, int) for item in raw):
        return [raw]
    return list(raw)


def _large_answer(request: EmbeddingRequest, embeddings: Embeddings) -> tuple[dict[str, Any], bytes]:
    """The answer and its JSON, written row by row: other threads, the event loop's too, can run between two."""
    body = _answer(request, embeddings)
    return body, _encode({**body, "data": [msgspec.Raw(_encode(row)) for row in body["data"]]})


def _answer(request: EmbeddingRequest, embeddings: Embeddings) -> dict[str, Any]:
    width = embeddings.dimensions * 4
    rows = [embeddings.vectors[start : start + width] for start in range(0, len(embeddings.vectors), width)]
    if request.dimensions not in (None, embeddings.dimensions):
        rows = [_cut(row, request.dimensions) for row in rows]
    encode = _base64 if request.encoding_format == "base64" else _floats
    total = sum(embeddings.tokens)
    return {
        "object": "list",
        "data": [{"object": "embedding", "index": i, "embedding": encode(row)} for i, row in enumerate(rows)],
        "model": request.model,
        "usage": {"prompt_tokens": total, "total_tokens": total},
    }


def _cut(row: bytes, length: int) -> bytes:
    """The beginning of a vector, at length 1 again (Kusupati et al., 2022: Matryoshka representation learning)."""
    kept = _floats(row[: length * 4])
    norm = math.hypot(*kept) or 1.0
    return struct.pack(f"<{length}f", *(value / norm for value in kept))


def _base64(row: bytes) -> str:
    return base64.b64encode(row).decode("ascii")


def _floats(row: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(row) // 4}f", row))
