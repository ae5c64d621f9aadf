"""``/v1/uploads``: files that come in parts, since they are large. The parts are put together on the disk."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Sequence

from litestar import Response

from appliance.errors import BadRequest, InfectedFile, NotFound
from appliance.http.files import check_purpose, check_reach, kept_seconds
from appliance.http.forms import label
from appliance.http.objects import CompleteUpload, CreateUpload
from appliance.http.requests import HttpRequest, answer, principal, read_json, runtime, tenant_session
from appliance.http.shown import part_object, upload_object
from appliance.http.uploads import Upload
from appliance.storage import files, uploads
from appliance.storage.blobs import BlobStore, BlobWriter
from appliance.storage.ids import new_id, now, now_us
from appliance.storage.tables import File
from appliance.storage.tables.uploads import PendingUpload, UploadPart
from appliance.wire import decoder

MAX_PART_BYTES = 64 * 2**20
_READ_BYTES = 1 << 20
_decode_create = decoder(CreateUpload)
_decode_complete = decoder(CompleteUpload)


async def create_upload(request: HttpRequest) -> Response[bytes]:
    """``POST /v1/uploads``."""
    body = await read_json(request, _decode_create)
    limit = runtime(request).config.server.max_file_bytes
    if body.bytes > limit:
        raise BadRequest(f"bytes must be at most {limit} (server.max_file_bytes); split the file", param="bytes")
    purpose = check_purpose(body.purpose)
    await check_reach(request, purpose, "files.write")
    row = PendingUpload(
        id=new_id("upload_"),
        user=principal(request).user,
        filename=label(body.filename),
        media_type=body.mime_type or None,
        purpose=purpose,
        bytes=body.bytes,
        status="pending",
        file_seconds=kept_seconds(purpose, body.expires_after),
        created_us=now_us(),
        expires_at=now() + uploads.LIFETIME,
    )
    async with tenant_session(request) as session:
        session.add(row)
        await runtime(request).quotas.confirm(session)
    return answer(upload_object(row))


async def add_part(request: HttpRequest) -> Response[bytes]:
    """``POST /v1/uploads/{upload_id}/parts``. When it answers, the part is on the disk."""
    uploads.check_pending(await _row(request))
    services, part_id = runtime(request), new_id("part_")
    blobs = services.blobs
    with blobs.writer() as writer:
        form = Upload(writer, MAX_PART_BYTES, name="data", too_large="a part; send several")
        await form.read(request.scope["headers"], request.receive)
        try:
            await writer.commit(part_id, scan=False)  # a part may hold half of what a scanner looks for
            async with tenant_session(request) as session:
                row = await uploads.add_part(session, _id(request), principal(request).user, part_id, writer.size)
                await services.quotas.confirm(session, objects=False, size=True)
        except BaseException:
            writer.discard()
            blobs.remove(part_id)
            raise
    return answer(part_object(row))


async def complete_upload(request: HttpRequest) -> Response[bytes]:
    """``POST /v1/uploads/{upload_id}/complete``; completing it again changes nothing.

    Of an infected file the parts go too: the upload is cancelled.
    """
    body = await read_json(request, _decode_complete)
    try:
        return await _complete(request, body)
    except InfectedFile:
        await _cancel(request)
        raise
    except (NotFound, FileNotFoundError):
        if (await _row(request)).status == "pending":
            raise
    return await _complete(request, body)  # somebody else ended it meanwhile, and the parts are gone


async def _complete(request: HttpRequest, body: CompleteUpload) -> Response[bytes]:
    row = await _row(request)
    if row.status == "completed":
        return answer(upload_object(row, await _file(request, row)))
    uploads.check_pending(row)
    async with tenant_session(request, write=False) as session:
        parts = await uploads.parts(session, row.id, body.part_ids)
    _check_size(row, parts)
    blobs, file_id = runtime(request).blobs, new_id("file-")
    with blobs.writer() as writer:
        await _join(blobs, parts, writer, body.md5)
        try:
            await writer.commit(file_id, row.filename)
            made, part_ids = await _finish(request, file_id, writer)
        except BaseException:
            writer.discard()
            blobs.remove(file_id)
            raise
    if made.file_id != file_id:  # somebody else completed it meanwhile
        await asyncio.to_thread(blobs.remove, file_id)
    await _remove(blobs, part_ids)
    return answer(upload_object(made, await _file(request, made)))


async def cancel_upload(request: HttpRequest) -> Response[bytes]:
    """``POST /v1/uploads/{upload_id}/cancel``: its parts are deleted. Cancelling it again changes nothing."""
    await _row(request)
    return answer(upload_object(await _cancel(request)))


async def _cancel(request: HttpRequest) -> PendingUpload:
    async with tenant_session(request) as session:
        row = await uploads.get(session, _id(request), principal(request).user, lock=True)
        if row.status == "cancelled":
            return row
        uploads.check_pending(row)
        part_ids = await uploads.end(session, row, "cancelled")
    await _remove(runtime(request).blobs, part_ids)
    return row


def _id(request: HttpRequest) -> str:
    found: str = request.path_params["upload_id"]
    return found


async def _row(request: HttpRequest) -> PendingUpload:
    """The upload of the path, for who may make files of all kinds or those of batches. Raises NotFound, Forbidden."""
    try:
        async with tenant_session(request, write=False) as session:
            row = await uploads.get(session, _id(request), principal(request).user)
    except NotFound:
        await check_reach(request, None, "files.write")
        raise
    await check_reach(request, row.purpose, "files.write")
    return row


async def _file(request: HttpRequest, row: PendingUpload) -> File | None:
    async with tenant_session(request, write=False) as session:
        return await session.get(File, row.file_id) if row.file_id else None


def _check_size(upload: PendingUpload, parts: Sequence[UploadPart]) -> None:
    if len({part.id for part in parts}) < len(parts):
        raise BadRequest("part_ids names a part twice; name each once, in order", param="part_ids")
    size = sum(part.bytes for part in parts)
    if size != upload.bytes:
        raise BadRequest(
            f"the parts hold {size} bytes and {upload.bytes} were announced; name all parts", param="part_ids"
        )


async def _join(blobs: BlobStore, parts: Sequence[UploadPart], writer: BlobWriter, md5: str | None) -> None:
    """Write the parts one after the other. Raises BadRequest for a wrong checksum, Conflict if the upload is over."""
    digest = hashlib.md5(usedforsecurity=False)
    for part in parts:
        with blobs.path(part.id).open("rb") as source:
            while data := await asyncio.to_thread(source.read, _READ_BYTES):
                await asyncio.to_thread(digest.update, data)
                await writer.write(data)
    if md5 is not None and digest.hexdigest() != md5.lower():
        raise BadRequest(f"md5: the parts have {digest.hexdigest()}; send those that differ again", param="md5")


async def _finish(request: HttpRequest, file_id: str, writer: BlobWriter) -> tuple[PendingUpload, Sequence[str]]:
    """Make the file's row and end the upload, unless that has been done; the parts that may go.

    The file takes the place of the upload and of its parts, so no quota is asked.
    """
    user = principal(request).user
    async with tenant_session(request) as session:
        row = await uploads.get(session, _id(request), user, lock=True)
        if row.status == "completed":
            return row, ()
        uploads.check_pending(row)
        session.add(
            files.new(
                file_id,
                row.filename,
                row.purpose,
                size=writer.size,
                sha256=writer.sha256,
                media_type=row.media_type,
                user=user,
                kept_seconds=row.file_seconds,
            )
        )
        return row, await uploads.end(session, row, "completed", file_id)


async def _remove(blobs: BlobStore, part_ids: Iterable[str]) -> None:
    for part_id in part_ids:
        await asyncio.to_thread(blobs.remove, part_id)
