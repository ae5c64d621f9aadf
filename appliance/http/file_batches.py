"""``/v1/vector_stores/{id}/file_batches``: many files at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from litestar import Response

from appliance.errors import BadRequest
from appliance.http.objects import AttachFile, CreateFileBatch
from appliance.http.requests import (
    HttpRequest,
    answer,
    listing,
    note_readers,
    principal,
    query_of,
    read_json,
    runtime,
    tenant_session,
)
from appliance.http.shown import file_batch_object, store_file_object
from appliance.http.store_files import MemberPage, attribute_filter
from appliance.http.vector_stores import (
    access_of,
    attach,
    check_fillable,
    chunking_of,
    knowledge,
    store_id_of,
)
from appliance.knowledge.chunking import Chunking
from appliance.storage import batches, store_files
from appliance.types import Access
from appliance.wire import decoder

if TYPE_CHECKING:
    from appliance.runtime import Runtime

_decode = decoder(CreateFileBatch)


async def create_batch(request: HttpRequest) -> Response[bytes]:
    """``POST .../file_batches``: all files or, if one is unknown, none."""
    ingestion, store_id = knowledge(request), store_id_of(request)
    body = await read_json(request, _decode)
    services = runtime(request)
    wanted = _files(body, services)
    accesses = _accesses(body, request)
    await services.quotas.check_chunks(principal(request).tenant, store_id, wanted)
    async with tenant_session(request) as session:
        await check_fillable(session, request)
        for file, chunking in wanted.values():
            row = await attach(session, store_id, file, chunking, accesses[file.file_id])
            note_readers(request, row.readers)
        batch = batches.add(session, store_id, list(wanted))
        await session.flush()
        found = file_batch_object(batch, await batches.counts(session, batch))
    ingestion.wake()
    return answer(found)


async def get_batch(request: HttpRequest) -> Response[bytes]:
    """``GET .../file_batches/{batch_id}``."""
    async with tenant_session(request, write=False) as session:
        batch = await batches.get(session, store_id_of(request), _batch_id(request))
        return answer(file_batch_object(batch, await batches.counts(session, batch)))


async def cancel_batch(request: HttpRequest) -> Response[bytes]:
    """``POST .../file_batches/{batch_id}/cancel``: ends what is not done; what is done stays."""
    ingestion, store_id = knowledge(request), store_id_of(request)
    async with tenant_session(request) as session:
        batch = await batches.get(session, store_id, _batch_id(request))
        batch.cancelled = True
        await store_files.cancel(session, store_id, batch.file_ids)
        await session.flush()
        found = file_batch_object(batch, await batches.counts(session, batch))
    ingestion.wake()
    return answer(found)


async def list_batch_files(request: HttpRequest) -> Response[bytes]:
    """``GET .../file_batches/{batch_id}/files``."""
    store_id, page = store_id_of(request), query_of(request, MemberPage)
    where = attribute_filter(page.filters)
    async with tenant_session(request, write=False) as session:
        batch = await batches.get(session, store_id, _batch_id(request))
        rows, more = await store_files.page(
            session, store_id, page, status=page.filter, among=batch.file_ids, where=where
        )
    found = [store_file_object(row, manages=session.sees_all) for row in rows]
    return answer(listing(found, [row.file_id for row in rows], has_more=more))


def _files(body: CreateFileBatch, services: Runtime) -> dict[str, tuple[AttachFile, Chunking]]:
    """Each file once, with how it is to be cut. Raises BadRequest."""
    if (body.file_ids is None) == (body.files is None):
        raise BadRequest("give either file_ids or files", param="file_ids")
    shared = chunking_of(body.chunking_strategy, services)
    wanted: dict[str, tuple[AttachFile, Chunking]] = {}
    for file_id in body.file_ids or []:
        wanted[file_id] = AttachFile(file_id=file_id, attributes=body.attributes), shared
    for i, file in enumerate(body.files or []):
        wanted.setdefault(
            file.file_id, (file, chunking_of(file.chunking_strategy, services, f"files[{i}].chunking_strategy"))
        )
    if not wanted:
        raise BadRequest(
            "the batch names no file; give at least one", param="files" if body.file_ids is None else "file_ids"
        )
    return wanted


def _accesses(body: CreateFileBatch, request: HttpRequest) -> dict[str, Access]:
    """Who is to see each file. Raises BadRequest."""
    shared = access_of(body.access, request)
    found = dict.fromkeys(body.file_ids or [], shared)
    for i, file in enumerate(body.files or []):
        found.setdefault(file.file_id, access_of(file.access or shared, request, f"files[{i}].access"))
    return found


def _batch_id(request: HttpRequest) -> str:
    batch_id: str = request.path_params["batch_id"]
    return batch_id
