"""``/v1/files``: upload, list, download and delete documents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

from litestar import Response
from litestar.response import Stream
from sqlalchemy.exc import IntegrityError

from appliance.errors import BadRequest, Conflict, NotFound, RetrievalUnavailable
from appliance.http.objects import Deleted, file_object
from appliance.http.requests import HttpRequest, answer, listing, page_of, runtime, tenant_session
from appliance.http.uploads import Upload
from appliance.storage import files
from appliance.storage.ids import new_id, now_us
from appliance.storage.tables import File

PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")
MAX_FILES_PAGE = 10_000
_READ_BYTES = 1 << 20
_DELETE_TRIES = 5


async def upload_file(request: HttpRequest) -> Response[bytes]:
    """``POST /v1/files``. When it answers, the bytes and the row are on the disk."""
    services = runtime(request)
    file_id = new_id("file-")
    with services.blobs.writer() as writer:
        form = Upload(writer, services.config.server.max_file_bytes)
        await form.read(request.scope["headers"], request.receive)
        row = File(
            id=file_id,
            filename=form.filename or "",
            purpose=_purpose(form.fields),
            media_type=form.media_type,
            bytes=writer.size,
            sha256="",
            created_us=now_us(),
        )
        try:
            await writer.commit(file_id)
            row.sha256 = writer.sha256
            async with tenant_session(request) as session:
                session.add(row)
        except BaseException:
            writer.discard()
            services.blobs.remove(file_id)
            raise
    return answer(file_object(row))


async def list_files(request: HttpRequest) -> Response[bytes]:
    """``GET /v1/files``."""
    wanted = page_of(request, MAX_FILES_PAGE)
    async with tenant_session(request, write=False) as session:
        rows, more = await files.page(session, wanted, request.query_params.get("purpose"))
    return answer(listing([file_object(row) for row in rows], [row.id for row in rows], has_more=more))


async def get_file(request: HttpRequest) -> Response[bytes]:
    """``GET /v1/files/{file_id}``."""
    return answer(file_object(await _row(request)))


async def download_file(request: HttpRequest) -> Stream:
    """``GET /v1/files/{file_id}/content``: the bytes as they were uploaded, never to be rendered by a browser."""
    row = await _row(request)
    path = runtime(request).blobs.path(row.id)
    if not path.exists():
        raise NotFound(f"the bytes of file {row.id} are gone; upload it again", param="file_id")
    headers = {
        "content-length": str(row.bytes),
        "content-disposition": f"attachment; filename*=UTF-8''{quote(row.filename, safe='')}",
        "x-content-type-options": "nosniff",
        "content-security-policy": "sandbox; default-src 'none'",
    }
    return Stream(_read(path), media_type="application/octet-stream", headers=headers)


async def delete_file(request: HttpRequest) -> Response[bytes]:
    """``DELETE /v1/files/{file_id}``: out of every vector store first, then the row, then the bytes."""
    row = await _row(request)
    await _detach(request, row.id)
    await asyncio.to_thread(runtime(request).blobs.remove, row.id)
    return answer(Deleted(id=row.id, object="file"))


async def _detach(request: HttpRequest, file_id: str) -> None:
    """Take a file out of its stores and delete its row; again if it was attached meanwhile."""
    ingestion = runtime(request).knowledge
    for _ in range(_DELETE_TRIES):
        async with tenant_session(request, write=False) as session:
            store_ids = await files.stores_of(session, file_id)
        if store_ids and ingestion is None:
            raise RetrievalUnavailable("the file is in a vector store and retrieval is off; set retrieval.vector_store")
        for store_id in store_ids:
            if ingestion is not None:
                await ingestion.remove_file(store_id, file_id)
        try:
            async with tenant_session(request) as session:
                await files.remove(session, file_id)
        except IntegrityError:
            continue
        return
    raise Conflict(
        f"file {file_id} is in a vector store that you may not reach, or is being attached again and again; take it "
        "out of the store first, or delete it when that is over"
    )


async def _row(request: HttpRequest) -> File:
    async with tenant_session(request, write=False) as session:
        return await files.get(session, request.path_params["file_id"])


def _purpose(fields: dict[str, str]) -> str:
    if any(name.startswith("expires_after") for name in fields):
        raise BadRequest("expires_after is not supported for files; delete the file instead", param="expires_after")
    purpose = fields.get("purpose")
    if purpose is None:
        raise BadRequest("purpose is required; send assistants", param="purpose", code="missing_required_parameter")
    if purpose not in PURPOSES:
        raise BadRequest(f"purpose must be one of {', '.join(PURPOSES)}", param="purpose")
    return purpose


async def _read(path: Path) -> AsyncIterator[bytes]:
    file = await asyncio.to_thread(path.open, "rb")
    try:
        while data := await asyncio.to_thread(file.read, _READ_BYTES):
            yield data
    finally:
        file.close()
