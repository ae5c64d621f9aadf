"""Neighbours: what stands around a passage in its file comes with it, so that small chunks are found and more is read.

Neighbours are read with the scope of the search, so nobody sees more than by a search of their own. A chunk comes once:
one that is a passage of its own, or stands beside a better one, is left out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from appliance.knowledge.tasks import task_group
from appliance.protocols import VectorStore
from appliance.types import Passage, Scope, StoredChunk


@dataclass(frozen=True)
class Neighborhood:
    """Reads neighbours from the collections of some stores, by store id."""

    backend: VectorStore
    collections: Mapping[str, str]
    scope: Scope

    async def surround(
        self, passages: Sequence[Passage], chunks: Mapping[str, StoredChunk], reach: int
    ) -> list[Passage]:
        """The passages, each with up to ``reach`` chunks before it and behind it; ``chunks`` are theirs, by id."""
        async with task_group() as group:
            windows = [group.create_task(self._window(p, chunks[p.chunk_id], reach)) for p in passages]
        taken = {passage.chunk_id for passage in passages}
        surrounded: list[Passage] = []
        for passage, window in zip(passages, windows, strict=True):
            before, after = _sides(window.result(), chunks[passage.chunk_id], taken)
            taken.update(chunk.id for chunk in (*before, *after))
            surrounded.append(_surrounded(passage, chunks[passage.chunk_id], before, after))
        return surrounded

    async def _window(self, passage: Passage, chunk: StoredChunk, reach: int) -> Sequence[StoredChunk]:
        """The chunks around, it among them; nothing where the file was indexed anew since it was found."""
        first = max(0, chunk.position - reach)
        window = await self.backend.chunks(
            self.collections[passage.store_id],
            passage.file_id,
            scope=self.scope,
            offset=first,
            limit=chunk.position - first + reach + 1,
        )
        return window if any(each.id == chunk.id for each in window) else ()


def _sides(
    window: Sequence[StoredChunk], chunk: StoredChunk, taken: set[str]
) -> tuple[list[StoredChunk], list[StoredChunk]]:
    """Those right before it and right behind it, in order, up to the first that is taken."""
    at = {each.position: each for each in window}
    before = _run((at.get(position) for position in range(chunk.position - 1, -1, -1)), taken)
    after = _run((at.get(position) for position in range(chunk.position + 1, chunk.position + len(window))), taken)
    return before[::-1], after


def _run(chunks: Iterable[StoredChunk | None], taken: set[str]) -> list[StoredChunk]:
    run: list[StoredChunk] = []
    for chunk in chunks:
        if chunk is None or chunk.id in taken:
            break
        run.append(chunk)
    return run


def _surrounded(
    passage: Passage, chunk: StoredChunk, before: Sequence[StoredChunk], after: Sequence[StoredChunk]
) -> Passage:
    return replace(
        passage,
        before=_text(before, 0, chunk.start),
        after=_text(after, chunk.end, sys.maxsize),
        neighbor_ids=tuple(each.id for each in (*before, *after)),
    )


def _text(chunks: Sequence[StoredChunk], start: int, end: int) -> str:
    """The text of consecutive chunks from ``start`` to ``end`` of the document; what two share comes once."""
    parts: list[str] = []
    for chunk in chunks:
        part = chunk.text[max(0, start - chunk.start) : max(0, end - chunk.start)]
        if part:
            parts.append(f"\n{part}" if parts and chunk.start > start else part)
        start = max(start, chunk.end)
    return "".join(parts)
