"""Indexing one file: parse, cut into chunks, embed in batches, write to the vector store.

The next group is cut while one is embedded, and embedded while the one before is written, so that the embedder, the
slowest of them, does not wait for the others.

Nothing here is final: chunks count only once they are sealed and the file's row says ``completed``. Every run
begins by deleting what an earlier one left, and makes the same chunk ids again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from appliance.errors import BadRequest, Conflict, IngestionError, InvalidFile, RetrievalUnavailable
from appliance.knowledge.embedding import BatchingEmbedder
from appliance.knowledge.parsing import ParserPool
from appliance.knowledge.progress import Progress
from appliance.protocols import Chunker, VectorStore
from appliance.quotas import Quotas
from appliance.storage import stores
from appliance.storage.blobs import BlobStore
from appliance.storage.database import Database
from appliance.storage.jobs import Work
from appliance.types import Document, Span, StoredChunk

WRITE_CHUNKS = 256
"""Chunks embedded and written at a time: what a cancellation waits for. Memory holds three such groups of a file."""
SECTION_CHARACTERS = 500_000
"""Texts are cut into tokens and chunks so much at a time: a token takes some 120 bytes, and making them keeps searches
waiting."""
_T = TypeVar("_T")
_Group: TypeAlias = tuple[Sequence[StoredChunk], bytes]
"""Chunks and their vectors."""


@dataclass
class Written:
    """What a run wrote; not sealed yet."""

    work: Work
    chunks: int
    usage_bytes: int
    notes: tuple[str, ...]
    attributes: Mapping[str, Any]
    readers: tuple[str, ...]


@dataclass
class Indexer:
    """Indexes files into one vector-store backend."""

    database: Database
    blobs: BlobStore
    backend: VectorStore
    embedders: Mapping[str, BatchingEmbedder]
    default: BatchingEmbedder
    chunkers: Mapping[str, Chunker]
    chunker: str
    """The name of the one that cuts where a file names none."""
    parsers: ParserPool
    quotas: Quotas

    async def index(self, work: Work) -> Written:
        """Write a file's chunks.

        Raises:
            IngestionError: the file cannot be indexed; trying again would not help.
            RequestError: a part is out of reach or out of space; try again later.
        """
        async with Progress(self.database, work) as progress:
            return await self._index(work, progress)

    async def _index(self, work: Work, progress: Progress) -> Written:
        document = await self._parse(self.blobs.path(work.file_id), work)
        progress.pages, progress.characters = document.pages, len(document.text)
        embedder = self._embedder(work)
        await self._prepare(work, embedder)
        written = Written(work, 0, 0, document.notes, work.attributes, work.readers)
        async with aclosing(one_ahead(self._embedded(document, embedder, work))) as groups:
            async for group, vectors in groups:
                await uninterrupted(self.backend.upsert(work.collection, group, vectors))
                written.chunks += len(group)
                written.usage_bytes += len(vectors) + sum(len(chunk.text.encode()) for chunk in group)
                progress.indexed(group[-1].end)
        if written.chunks == 0:
            raise InvalidFile("the file holds no text; upload one with text in it")
        return written

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
        if work.replaced:
            raise RetrievalUnavailable("its store is being indexed by another model first", retry_after=30)
        raise IngestionError(
            f"the store holds vectors of {work.embedder}, and the configured embedding model is {self.default.name}; "
            f"index it by that one (POST /v1/vector_stores/{work.store_id}/reindex, or 'appliance stores reindex "
            f"{work.store_id} --embedder {self.default.name}') or configure the old model again, then attach the file "
            "again"
        )

    async def _embedded(
        self, document: Document, embedder: BatchingEmbedder, work: Work
    ) -> AsyncGenerator[_Group, None]:
        """Groups of chunks with their vectors."""
        async with aclosing(one_ahead(self._cut(document, embedder, work))) as groups:
            async for group in groups:
                await self.quotas.hold_chunks(work, group[-1].position + 1)
                try:
                    rows = await embedder.embed([chunk.searchable for chunk in group], bulk=True)
                except BadRequest as error:
                    raise IngestionError(f"the embedding model refused a piece of the file: {error}") from error
                yield group, rows.vectors

    async def _cut(
        self, document: Document, embedder: BatchingEmbedder, work: Work
    ) -> AsyncGenerator[Sequence[StoredChunk], None]:
        """Groups of chunks, in the order of the text."""
        text, start, count = document.text, 0, 0
        while start < len(text):
            end = section_end(text, start)
            section = document.part(start, end)
            spans = await asyncio.to_thread(self._split, section, embedder, work)
            if end < len(text) and len(spans) > 1 and spans[-1].start > 0:  # it may go on in the next section
                spans, end = spans[:-1], start + spans[-1].start
            for first in range(0, len(spans), WRITE_CHUNKS):
                group = spans[first : first + WRITE_CHUNKS]
                yield [_chunk(work, section, span, count + i, start) for i, span in enumerate(group)]
                count += len(group)
            start = end

    def _split(self, document: Document, embedder: BatchingEmbedder, work: Work) -> Sequence[Span]:
        """Runs in a thread. Raises IngestionError for a chunker that is not there any more."""
        chunker = self.chunkers.get(work.chunker or self.chunker)
        if chunker is None:
            raise IngestionError(
                f"no listed plugin provides the chunker {work.chunker}; list one that does, or attach the file anew"
            )
        tokens = embedder.embedder.token_spans(document.text)
        return chunker.split(document, size=work.chunk_size, overlap=work.chunk_overlap, spans=tokens)

    async def _prepare(self, work: Work, embedder: BatchingEmbedder) -> None:
        dimensions = embedder.embedder.dimensions
        try:
            await uninterrupted(self.backend.create(work.collection, dimensions))
        except Conflict as error:
            raise IngestionError(str(error)) from error
        if work.fingerprint is None:
            async with self.database.session() as session:
                await stores.claim_embedder(
                    session,
                    work.store_id,
                    embedder=embedder.name,
                    fingerprint=embedder.embedder.fingerprint,
                    dimensions=dimensions,
                )
        await uninterrupted(self.backend.delete_file(work.collection, work.file_id))


def section_end(text: str, start: int, limit: int = SECTION_CHARACTERS) -> int:
    """Where a section that begins at ``start`` ends: behind a paragraph, line or word, or where the text does."""
    if len(text) - start <= limit:
        return len(text)
    ends = (text.rfind(mark, start + limit // 2, start + limit) for mark in ("\n\n", "\n", " "))
    return next((found + 1 for found in ends if found > 0), start + limit)


def _chunk(work: Work, section: Document, span: Span, position: int, offset: int) -> StoredChunk:
    return StoredChunk(
        id=chunk_id(work.file_id, work.version, position, work.generation),
        file_id=work.file_id,
        position=position,
        text=section.text[span.start : span.end],
        start=offset + span.start,
        end=offset + span.end,
        tenant=work.tenant,
        readers=work.readers,
        attributes=work.attributes,
        context=span.context,
    )


def chunk_id(file_id: str, version: int, position: int, generation: int = 0) -> str:
    """The id of a chunk: written twice it is the same, and it tells which version of which file it is of.

    Another embedder cuts files elsewhere, so the number of the store's collection goes with the version.
    """
    return f"{file_id}:{version}-{generation}:{position}" if generation else f"{file_id}:{version}:{position}"


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


async def one_ahead(items: AsyncGenerator[_T, None]) -> AsyncGenerator[_T, None]:
    """The same items, each made while the one before is used. Close it: nothing is made behind its end."""
    task = asyncio.ensure_future(anext(items, None))
    try:
        while (item := await task) is not None:
            task = asyncio.ensure_future(anext(items, None))
            yield item
    finally:
        task.cancel()
        try:
            await asyncio.wait({task})
        finally:
            if task.done():  # else this was cancelled twice, and the first time ends the items by themselves
                if not task.cancelled():
                    task.exception()  # what was made in vain may fail in vain
                await items.aclose()
