"""``/v1/vector_stores``: create, list, change, delete and search stores."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from litestar import Response
from msgspec import UNSET, UnsetType

from appliance.errors import BadRequest, Conflict, RetrievalUnavailable
from appliance.http.disconnect import ClientWatch
from appliance.http.objects import (
    AttachFile,
    ChunkingStrategy,
    ChunkPlace,
    CreateVectorStore,
    Deleted,
    ExpiresAfter,
    SearchResult,
    SearchResults,
    SearchVectorStore,
    TextContent,
    UpdateVectorStore,
    VectorStoreObject,
)
from appliance.http.requests import (
    HttpRequest,
    Page,
    answer,
    call_of,
    listing,
    note_readers,
    principal,
    query_of,
    read_json,
    runtime,
    tenant_session,
)
from appliance.http.shown import store_object
from appliance.knowledge import stores as into
from appliance.knowledge.api import Knowledge
from appliance.knowledge.chunking import Chunking
from appliance.knowledge.filters import parse_filter
from appliance.knowledge.ranking import parse_ranking
from appliance.knowledge.rewriting import MAX_QUERIES
from appliance.storage import store_files, stores
from appliance.storage.ids import now
from appliance.storage.tables import StoreFile, VectorStore
from appliance.storage.tenancy import TenantSession
from appliance.types import PUBLIC_ACCESS, Access, Call, Passage, Search
from appliance.wire import decoder

if TYPE_CHECKING:
    from appliance.runtime import Runtime

MAX_QUERY_CHARACTERS = 8192
MAX_ACCESS_BYTES = 8192
"""What the names in one ``access`` may take together: vector stores keep them with every chunk."""
_DEFAULT_RESULTS = 10
_PAGE = re.compile(r"page_([0-9]{1,6})")
_SEARCH_PATH = "/v1/vector_stores/{vector_store_id}/search"
_decode_create = decoder(CreateVectorStore)
_decode_update = decoder(UpdateVectorStore)
_decode_search = decoder(SearchVectorStore)


async def create_store(request: HttpRequest) -> Response[bytes]:
    """``POST /v1/vector_stores``, with ``file_ids`` attached in the same transaction."""
    services = runtime(request)
    ingestion = knowledge(request)
    body = await read_json(request, _decode_create)
    chunking = chunking_of(body.chunking_strategy, services)
    access = access_of(body.access, request)
    await services.quotas.check_chunks(principal(request).tenant, None, body.file_ids or ())
    embedder = services.config.embedding_model()
    row = stores.new(
        body.name or "",
        embedder.name if embedder else None,
        description=body.description,
        metadata=body.metadata or {},
        expires_days=body.expires_after.days if body.expires_after else None,
    )
    async with tenant_session(request) as session:
        session.add(row)
        await session.flush()
        for file_id in dict.fromkeys(body.file_ids or []):
            file = await attach(session, row.id, AttachFile(file_id=file_id), chunking, access)
            note_readers(request, file.readers)
        found = await _object(session, row)
        await services.quotas.confirm(session)
    ingestion.wake()
    return answer(found)


async def list_stores(request: HttpRequest) -> Response[bytes]:
    """``GET /v1/vector_stores``."""
    async with tenant_session(request, write=False) as session:
        rows, more = await stores.page(session, query_of(request, Page))
        counts = await stores.counts(session, [row.id for row in rows])
    found = [store_object(row, counts[row.id], now()) for row in rows]
    return answer(listing(found, [row.id for row in rows], has_more=more))


async def get_store(request: HttpRequest) -> Response[bytes]:
    """``GET /v1/vector_stores/{vector_store_id}``."""
    async with tenant_session(request, write=False) as session:
        return answer(await _object(session, await _row(session, request)))


async def update_store(request: HttpRequest) -> Response[bytes]:
    """``POST /v1/vector_stores/{vector_store_id}``."""
    body = await read_json(request, _decode_update)
    async with tenant_session(request) as session:
        row = await _row(session, request)
        if body.name is not UNSET:
            row.name = body.name or ""
        if not isinstance(body.metadata, UnsetType):
            row.labels = body.metadata or {}
        if not isinstance(body.expires_after, UnsetType):
            if stores.has_expired(row):
                raise Conflict(f"vector store {row.id} has expired; make a new one", code="vector_store_expired")
            row.expires_days, row.last_active_at = _days(body.expires_after), now()
        await session.flush()
        return answer(await _object(session, row))


async def delete_store(request: HttpRequest) -> Response[bytes]:
    """``DELETE /v1/vector_stores/{vector_store_id}``: chunks, rows and jobs; the files stay."""
    async with tenant_session(request, write=False) as session:
        row = await _row(session, request)
    await knowledge(request).remove_store(row.id)
    return answer(Deleted(id=row.id, object="vector_store.deleted"))


async def search_store(request: HttpRequest) -> Response[bytes]:
    """``POST /v1/vector_stores/{vector_store_id}/search``."""
    body = await read_json(request, _decode_search)
    queries = _queries(body.query)
    offset = _offset(body.page)
    wanted = Search(
        store_ids=(store_id_of(request),),
        queries=queries,
        offset=offset,
        limit=body.max_num_results or _DEFAULT_RESULTS,
        where=parse_filter(body.filters),
        rewrite=bool(body.rewrite_query),
        **parse_ranking(body.ranking_options).as_search(runtime(request).config.retrieval),
    )
    async with ClientWatch(request.receive):
        found = await runtime(request).pipeline.search(search_call(request, wanted), _SEARCH_PATH)
    places = "chunk" in (body.include or ())
    results = [_result(passage, scores=found.scores, places=places) for passage in found.passages]
    next_page = f"page_{offset + wanted.limit}" if found.more else None
    return answer(
        SearchResults(search_query=list(found.search.queries), data=results, has_more=found.more, next_page=next_page),
        headers=found.headers,
    )


# -- shared with files of stores ---------------------------------------------------------------------------


def knowledge(request: HttpRequest) -> Knowledge:
    """The app's retrieval. Raises RetrievalUnavailable when the configuration has none."""
    services = runtime(request)
    if services.knowledge is None or services.config.retrieval.vector_store is None:
        raise RetrievalUnavailable("retrieval is off; set retrieval.vector_store in the configuration")
    return services.knowledge


def store_id_of(request: HttpRequest) -> str:
    """The store in the path."""
    store_id: str = request.path_params["vector_store_id"]
    return store_id


def search_call(request: HttpRequest, wanted: Search) -> Call:
    """The search as a call, for limits, filters and records; its model is the one that embeds the question."""
    embedder = runtime(request).config.embedding_model()
    return call_of(request.scope, "search", embedder.name if embedder else "", wanted)


def chunking_of(strategy: ChunkingStrategy | None, services: Runtime, where: str = "chunking_strategy") -> Chunking:
    """How a file is to be cut. Raises BadRequest naming the field."""
    retrieval, chunkers = services.config.retrieval, services.plugins.chunkers()
    chunker = (strategy and strategy.chunker) or None
    if chunker is not None and chunker not in chunkers:
        raise BadRequest(
            f"{where}.chunker: no listed plugin provides {chunker}; there are {', '.join(chunkers)}",
            param=f"{where}.chunker",
        )
    if strategy is None or strategy.type == "auto":
        return Chunking(retrieval.chunk_size, retrieval.chunk_overlap, chunker)
    if strategy.static is None:
        raise BadRequest(f"{where}.static is required for type static", param=f"{where}.static")
    size, overlap = strategy.static.max_chunk_size_tokens, strategy.static.chunk_overlap_tokens
    if overlap > size // 2:
        raise BadRequest(
            f"{where}.static.chunk_overlap_tokens: must be at most half of the chunk size ({size // 2}), not {overlap}",
            param=f"{where}.static.chunk_overlap_tokens",
        )
    return Chunking(size, overlap, chunker)


def access_of(given: Access | None, request: HttpRequest, where: str = "access") -> Access:
    """Who is to see a file: as ``given``, or as ``retrieval.default_access`` has it. Raises BadRequest."""
    if given is not None:
        if sum(len(reader.encode()) for reader in given.readers) > MAX_ACCESS_BYTES:
            raise BadRequest(f"{where}: the names may take {MAX_ACCESS_BYTES} bytes; use groups", param=where)
        return given
    owned = runtime(request).config.retrieval.default_access == "owner"
    return Access(users=(principal(request).name,)) if owned else PUBLIC_ACCESS


async def attach(
    session: TenantSession, store_id: str, file: AttachFile, chunking: Chunking, access: Access
) -> StoreFile:
    """Put a file into a store and queue its ingestion. Raises NotFound, Conflict, Forbidden."""
    return await store_files.attach(
        session,
        store_id,
        file.file_id,
        attributes=file.attributes or {},
        chunk_size=chunking.size,
        chunk_overlap=chunking.overlap,
        chunker=chunking.chunker,
        access=access,
    )


async def check_fillable(session: TenantSession, request: HttpRequest) -> None:
    """Whether files can come into the store in the path. Raises NotFound, RetrievalUnavailable, Conflict."""
    ingestion, backend = knowledge(request), runtime(request).config.retrieval.vector_store or ""
    await into.check_fillable(session, store_id_of(request), backend=backend, fingerprints=ingestion.fingerprints)


async def _row(session: TenantSession, request: HttpRequest) -> VectorStore:
    return await stores.get(session, store_id_of(request))


async def _object(session: TenantSession, row: VectorStore) -> VectorStoreObject:
    return store_object(row, (await stores.counts(session, [row.id]))[row.id], now())


def _days(expires_after: ExpiresAfter | None) -> int | None:
    return expires_after.days if expires_after else None


def _offset(page: str | None) -> int:
    if page is None:
        return 0
    match = _PAGE.fullmatch(page)
    if match is None:
        raise BadRequest("page must be the next_page of an earlier answer", param="page")
    return int(match[1])


def _queries(query: str | Sequence[str]) -> tuple[str, ...]:
    queries = (query,) if isinstance(query, str) else tuple(query)
    if not queries or len(queries) > MAX_QUERIES:
        raise BadRequest(f"query must be a text or a list of 1 to {MAX_QUERIES} texts", param="query")
    for text in queries:
        if not text.strip() or len(text) > MAX_QUERY_CHARACTERS:
            raise BadRequest(f"query: each must have 1 to {MAX_QUERY_CHARACTERS} characters", param="query")
    return queries


def _result(passage: Passage, *, scores: bool, places: bool) -> SearchResult:
    chunk = ChunkPlace(id=passage.chunk_id, start=passage.start, end=passage.end)
    return SearchResult(
        file_id=passage.file_id,
        filename=passage.filename,
        score=passage.score if scores else msgspec.UNSET,
        attributes=dict(passage.attributes),
        content=[TextContent(text=passage.text)],
        chunk=chunk if places else msgspec.UNSET,
    )
