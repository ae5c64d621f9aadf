"""Embedding models as engines, so that ``/v1/embeddings`` takes the same path as every other call."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import AsyncIterator, Sequence
from typing import Any

from appliance.errors import BadRequest
from appliance.knowledge.api import Knowledge
from appliance.protocols import Generation
from appliance.types import Call, Chunk, Embeddings
from appliance.wire import EmbeddingRequest


class Answered:
    """A generation that is already complete."""

    def __init__(self, body: dict[str, Any]) -> None:
        self._chunks = [Chunk(body=body)]

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        if not self._chunks:
            raise StopAsyncIteration
        return self._chunks.pop()

    async def aclose(self) -> None:
        """Nothing to abort."""


class EmbeddingEngine:
    """Answers embedding calls from the worker's embedders."""

    def __init__(self, name: str, knowledge: Knowledge, lengths: Sequence[int] = ()) -> None:
        """``lengths``: to how many dimensions vectors may be cut."""
        self._name = name
        self._knowledge = knowledge
        self._lengths = lengths

    @property
    def ready(self) -> bool:
        """As ready as the worker is."""
        return self._knowledge.ready

    async def start(self) -> None:
        """The worker starts by itself."""

    async def stop(self) -> None:
        """The worker stops by itself."""

    async def generate(self, call: Call) -> Generation:
        """Embed every input. Raises BadRequest, RetrievalUnavailable."""
        request = call.request
        if not isinstance(request, EmbeddingRequest):
            raise BadRequest(f"model {call.model} makes embeddings; use it with /v1/embeddings", param="model")
        inputs = embedding_inputs(request.input)
        embeddings = await self._knowledge.embed(self._name, inputs)
        return Answered(_answer(call, request, embeddings, self._lengths))


def embedding_inputs(raw: Any) -> list[str | Sequence[int]]:
    """``input`` as a list of texts or token arrays: a string, an array of either, or one array of token ids."""
    if isinstance(raw, str):
        return [raw]
    if raw and all(isinstance(item, int) for item in raw):
        return [raw]
    return list(raw)


def _answer(call: Call, request: EmbeddingRequest, embeddings: Embeddings, lengths: Sequence[int]) -> dict[str, Any]:
    own = embeddings.dimensions
    possible = [own, *(length for length in lengths if length < own)]
    if request.dimensions not in (None, *possible):
        raise BadRequest(
            f"model {call.model} makes vectors of {' or '.join(map(str, possible))} dimensions only; "
            "ask for one of these or leave dimensions out",
            param="dimensions",
        )
    width = own * 4
    rows = [embeddings.vectors[start : start + width] for start in range(0, len(embeddings.vectors), width)]
    if request.dimensions not in (None, own):
        rows = [_cut(row, request.dimensions) for row in rows]
    encode = _base64 if request.encoding_format == "base64" else _floats
    total = sum(embeddings.tokens)
    return {
        "object": "list",
        "data": [{"object": "embedding", "index": i, "embedding": encode(row)} for i, row in enumerate(rows)],
        "model": call.model,
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
