"""Indexing one file: parse, cut into chunks, embed in batches, write to the vector store.

Nothing here is final: chunks count only once they are sealed and the file's row says ``completed``. Every run
begins by deleting what an earlier one left, and makes the same chunk ids again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from appliance.errors import BadRequest, Conflict, IngestionError, InvalidFile
from appliance.knowledge.embedding import BatchingEmbedder
from appliance.knowledge.parsing import ParserPool
from appliance.protocols import Chunker, VectorStore
from appliance.storage import stores
from appliance.storage.blobs import BlobStore
from appliance.storage.database import Database
from appliance.storage.jobs import Work
from appliance.types import Document, Span, StoredChunk

WRITE_CHUNKS = 256
"""Chunks embedded and written at a time: what a cancellation waits for, and what memory holds."""
_T = TypeVar("_T")


@dataclass
class Written:
    """What a run wrote; not sealed yet."""

    work: Work
    chunks: int
    usage_bytes: int
    notes: tuple[str, ...]
    attributes: Mapping[str, Any]


@dataclass
class Indexer:
    """Indexes files into one vector-store backend."""

    database: Database
    blobs: BlobStore
    backend: VectorStore
    embedders: Mapping[str, BatchingEmbedder]
    default: BatchingEmbedder
    chunker: Chunker
    parsers: ParserPool

    async def index(self, work: Work) -> Written:
        """Write a file's chunks.

        Raises:
            IngestionError: the file cannot be indexed; trying again would not help.
            RequestError: a part is out of reach or out of space; try again later.
        """
        document = await self._parse(self.blobs.path(work.file_id), work)
        embedder = self._embedder(work)
        spans = await self._split(document, embedder, work)
        await self._prepare(work, embedder)
        used = 0
        for start in range(0, len(spans), WRITE_CHUNKS):
            used += await self._write(work, embedder, document, spans[start : start + WRITE_CHUNKS], start)
        return Written(work, len(spans), used, document.notes, work.attributes)

    async def _parse(self, path: Path, work: Work) -> Document:
        if not path.exists():
            raise IngestionError("the file's bytes are gone from data_dir; upload it again")
        return await self.parsers.parse(path, work.filename, work.media_type)

    def _embedder(self, work: Work) -> BatchingEmbedder:
        """The one the store was begun with; for a new store the one it was made for."""
        named = self.embedders.get(work.embedder or "", self.default)
        if work.fingerprint is None:
            return named
        for candidate in (named, *self.embedders.values()):
            if candidate.embedder.fingerprint == work.fingerprint:
                return candidate
        raise IngestionError(
            f"the store holds vectors of {work.embedder}, and the configured embedding model is {self.default.name}; "
            "run 'appliance stores reindex' or configure the old model again"
        )

    async def _split(self, document: Document, embedder: BatchingEmbedder, work: Work) -> Sequence[Span]:
        def split() -> Sequence[Span]:
            tokens = embedder.embedder.token_spans(document.text)
            return self.chunker.split(document, size=work.chunk_size, overlap=work.chunk_overlap, spans=tokens)

        spans = await asyncio.to_thread(split)
        if not spans:
            raise InvalidFile("the file holds no text; upload one with text in it")
        return spans

    async def _prepare(self, work: Work, embedder: BatchingEmbedder) -> None:
        dimensions = embedder.embedder.dimensions
        try:
            await uninterrupted(self.backend.create(work.store_id, dimensions))
        except Conflict as error:
            raise IngestionError(str(error)) from error
        async with self.database.session() as session:
            await stores.claim_embedder(
                session,
                work.store_id,
                embedder=embedder.name,
                fingerprint=embedder.embedder.fingerprint,
                dimensions=dimensions,
            )
        await uninterrupted(self.backend.delete_file(work.store_id, work.file_id))

    async def _write(
        self, work: Work, embedder: BatchingEmbedder, document: Document, spans: Sequence[Span], first: int
    ) -> int:
        """Embed and write one group of chunks; returns the bytes it takes."""
        chunks = [_chunk(work, document, span, first + i) for i, span in enumerate(spans)]
        try:
            rows = await embedder.embed([chunk.text for chunk in chunks], bulk=True)
        except BadRequest as error:
            raise IngestionError(f"the embedding model refused a piece of the file: {error}") from error
        await uninterrupted(self.backend.upsert(work.store_id, chunks, rows.vectors))
        return len(rows.vectors) + sum(len(chunk.text.encode()) for chunk in chunks)


def _chunk(work: Work, document: Document, span: Span, position: int) -> StoredChunk:
    return StoredChunk(
        id=f"{work.file_id}:{work.version}:{position}",
        file_id=work.file_id,
        position=position,
        text=document.text[span.start : span.end],
        start=span.start,
        end=span.end,
        tenant=work.tenant,
        attributes=work.attributes,
    )


async def uninterrupted(awaitable: Awaitable[_T]) -> _T:
    """Await to the end even when cancelled, then be cancelled: a write must not go on behind a removal."""
    task = asyncio.ensure_future(awaitable)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # whoever cancelled does not care how it ended
        raise
