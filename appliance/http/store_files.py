"""``/v1/vector_stores/{id}/files``: put files into a store, watch their ingestion, take them out."""

from __future__ import annotations

import msgspec
from litestar import Response
from msgspec import UNSET, UnsetType

from appliance.errors import BadRequest, NotFound
from appliance.http.objects import (
    AttachFile,
    Deleted,
    FileContent,
    FileStatus,
    StoreFileObject,
    TextContent,
    UpdateStoreFile,
)
from appliance.http.requests import (
    HttpRequest,
    Page,
    answer,
    listing,
    note_readers,
    principal,
    query_of,
    read_json,
    runtime,
    tenant_session,
)
from appliance.http.shown import store_file_object
from appliance.http.vector_stores import (
    access_of,
    attach,
    check_fillable,
    chunking_of,
    knowledge,
    search_call,
    store_id_of,
)
from appliance.knowledge.augment import scope_of
from appliance.knowledge.filters import Filter, parse_filter
from appliance.storage import searches, store_files
from appliance.storage.tables import StoreFile
from appliance.types import Passage, Search, StoredChunk
from appliance.wire import decoder


class MemberPage(Page, frozen=True, kw_only=True):
    """The parameters of lists of a store's files; ``filter`` is a status.

    ``filters`` is a filter of attributes, as of a search, in JSON (not OpenAI's).
    """

    filter: FileStatus | None = None
    filters: str | None = None


_decode_attach = decoder(AttachFile)
_decode_update = decoder(UpdateStoreFile)


async def attach_file(request: HttpRequest) -> Response[bytes]:
    """``POST .../files``. Attaching a file again answers with what is there."""
    ingestion, services = knowledge(request), runtime(request)
    body = await read_json(request, _decode_attach)
    chunking = chunking_of(body.chunking_strategy, services)
    access = access_of(body.access, request)
    await services.quotas.check_chunks(principal(request).tenant, store_id_of(request), [body.file_id])
    async with tenant_session(request) as session:
        await check_fillable(session, request)
        row = await attach(session, store_id_of(request), body, chunking, access)
        note_readers(request, row.readers)
    ingestion.wake()
    return answer(store_file_object(row, manages=session.sees_all))


async def list_store_files(request: HttpRequest) -> Response[bytes]:
    """``GET .../files``, by ``filter`` of status and ``filters`` of attributes if wanted."""
    page = query_of(request, MemberPage)
    where = attribute_filter(page.filters)
    async with tenant_session(request, write=False) as session:
        rows, more = await store_files.page(session, store_id_of(request), page, status=page.filter, where=where)
    found = [store_file_object(row, manages=session.sees_all) for row in rows]
    return answer(listing(found, [row.file_id for row in rows], has_more=more))


async def get_store_file(request: HttpRequest) -> Response[bytes]:
    """``GET .../files/{file_id}``."""
    return answer(await _shown(request))


async def update_store_file(request: HttpRequest) -> Response[bytes]:
    """``POST .../files/{file_id}``: replace the attributes, or who may see it."""
    ingestion = knowledge(request)
    body = await read_json(request, _decode_update)
    if body.attributes is UNSET and body.access is UNSET:
        raise BadRequest("attributes is required, or access", param="attributes")
    row = await _row(request)
    if not isinstance(body.access, UnsetType):
        await runtime(request).pipeline.authorize(principal(request), "access.manage", request.scope["path"])
        access = access_of(body.access, request)
        await ingestion.set_access(row.store_id, row.file_id, access)
        note_readers(request, access.readers)
    if not isinstance(body.attributes, UnsetType):
        await ingestion.set_attributes(row.store_id, row.file_id, body.attributes or {})
    return answer(await _shown(request))


async def detach_file(request: HttpRequest) -> Response[bytes]:
    """``DELETE .../files/{file_id}``: out of the store; the file itself stays."""
    row = await _row(request)
    await knowledge(request).remove_file(row.store_id, row.file_id)
    return answer(Deleted(id=row.file_id, object="vector_store.file.deleted"))


async def store_file_content(request: HttpRequest) -> Response[bytes]:
    """``GET .../files/{file_id}/content``: the indexed text."""
    row = await _row(request)
    chunks = await knowledge(request).content(row.store_id, row.file_id, scope_of(principal(request)))
    # As searches do it: who may see the file in this store may, whatever another one that holds it says.
    async with tenant_session(request, write=False) as session:
        names = await searches.filenames(session, [row.store_id], [row.file_id])
    filename = names.get((row.store_id, row.file_id))
    if filename is None:
        raise NotFound(f"vector store {row.store_id} holds no file {row.file_id!r} any more", param="file_id")
    call = search_call(request, Search(store_ids=(row.store_id,), queries=()))
    passages = [_passage(chunk, row.store_id, filename) for chunk in chunks]
    shown = await runtime(request).pipeline.filters.passages(call, passages)
    return answer(
        FileContent(
            file_id=row.file_id,
            filename=filename,
            attributes=row.attributes,
            data=[TextContent(text=passage.text) for passage in shown],
        )
    )


def attribute_filter(text: str | None) -> Filter | None:
    """The query parameter ``filters``. Raises BadRequest for what is no JSON, or no filter."""
    try:
        return None if text is None else parse_filter(msgspec.json.decode(text))
    except (msgspec.DecodeError, RecursionError):
        raise BadRequest("filters must be a filter as JSON, URL-encoded", param="filters") from None


async def _shown(request: HttpRequest) -> StoreFileObject:
    async with tenant_session(request, write=False) as session:
        row = await store_files.get(session, store_id_of(request), request.path_params["file_id"])
    return store_file_object(row, manages=session.sees_all)


async def _row(request: HttpRequest) -> StoreFile:
    async with tenant_session(request, write=False) as session:
        return await store_files.get(session, store_id_of(request), request.path_params["file_id"])


def _passage(chunk: StoredChunk, store_id: str, filename: str) -> Passage:
    """A chunk as the filters know them; nobody searched, so it has no score."""
    return Passage(
        chunk_id=chunk.id,
        store_id=store_id,
        file_id=chunk.file_id,
        filename=filename,
        text=chunk.text,
        score=0.0,
        attributes=chunk.attributes,
        start=chunk.start,
        end=chunk.end,
    )
