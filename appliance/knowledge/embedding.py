"""Embedding in batches: splits what is too large, waits when the backend is busy, keeps order."""

from __future__ import annotations

import asyncio
import math
from array import array
from collections.abc import Sequence
from typing import TypeAlias

from appliance.errors import BadRequest, RateLimited, RetrievalUnavailable, Unavailable
from appliance.protocols import Embedder, SizesBatches
from appliance.types import Embeddings

DEFAULT_BATCH = 64
MAX_WAIT = 30.0
"""Seconds that one batch waits for a busy backend before the caller is told."""

Input: TypeAlias = str | Sequence[int]


class BatchingEmbedder:
    """Wraps an embedder so that any number of inputs may be asked for at once."""

    def __init__(self, name: str, embedder: Embedder) -> None:
        self.name = name
        self.embedder = embedder
        self._limit = max(1, embedder.batch_size) if isinstance(embedder, SizesBatches) else DEFAULT_BATCH

    async def embed(self, inputs: Sequence[Input], *, bulk: bool = False) -> Embeddings:
        """Embed all inputs; row *i* belongs to input *i*.

        Raises:
            BadRequest: an input is refused.
            RetrievalUnavailable: the backend is busy or out of reach for longer than ``MAX_WAIT``; nothing is lost
                by asking again. Or it answers with something else than a vector for each input.
        """
        parts: list[Embeddings] = []
        done = 0
        while done < len(inputs):
            batch = inputs[done : done + self._limit]
            parts.append(await self._batch(batch, bulk))
            done += len(batch)
        return _joined(parts, self.embedder.dimensions)

    async def _batch(self, inputs: Sequence[Input], bulk: bool) -> Embeddings:
        """One call; a batch that is refused is halved, since the refusal may be about its size."""
        try:
            return await self._patient(inputs, bulk)
        except BadRequest:
            if len(inputs) == 1:
                raise
        half = (len(inputs) + 1) // 2
        parts = [await self._batch(part, bulk) for part in (inputs[:half], inputs[half:])]
        self._limit = min(self._limit, half)  # both halves passed: it was the size
        return _joined(parts, self.embedder.dimensions)

    async def _patient(self, inputs: Sequence[Input], bulk: bool) -> Embeddings:
        waited = 0.0
        while True:
            try:
                found = await self.embedder.embed(inputs, bulk=bulk)
            except (RateLimited, Unavailable) as error:
                pause = max(0.05, error.retry_after or 1.0)
                waited += pause
                if waited > MAX_WAIT:
                    raise RetrievalUnavailable(
                        f"embedding model {self.name} is busy; try again", retry_after=pause
                    ) from error
                await asyncio.sleep(pause)
            else:
                return _checked(found, len(inputs), self.name)


def _checked(found: Embeddings, inputs: int, name: str) -> Embeddings:
    """Too few rows would shift every later vector onto the wrong text, and what is no number is near to nothing."""
    if len(found.vectors) != inputs * found.dimensions * 4 or len(found.tokens) != inputs:
        raise RetrievalUnavailable(
            f"embedding model {name} answered with the wrong number of vectors; check its backend"
        )
    if not math.isfinite(sum(array("f", found.vectors))):  # sums of doubles: finite floats cannot exceed them
        raise RetrievalUnavailable(
            f"embedding model {name} answered with vectors that hold NaN or infinity; check its backend"
        )
    return found


def _joined(parts: Sequence[Embeddings], dimensions: int) -> Embeddings:
    if len(parts) == 1:
        return parts[0]
    return Embeddings(
        b"".join(part.vectors for part in parts), dimensions, tuple(token for part in parts for token in part.tokens)
    )
