"""``/v1/files``: upload, list, download and delete documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from litestar import Response
from litestar.response import Stream

from appliance.errors import BadRequest, NotFound
from appliance.http.objects import Deleted, FileExpiresAfter
from appliance.http.requests import HttpRequest, Page, answer, listing, principal, query_of, runtime, tenant_session
from appliance.http.shown import file_object
from appliance.http.uploads import Upload
from appliance.knowledge.augment import scope_of
from appliance.knowledge.removal import remove_file
from appliance.storage import files
from appliance.storage.blobs import read_pieces
from appliance.storage.ids import new_id
from appliance.storage.tables import File

PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")
BATCH_PURPOSES = ("batch", "batch_output")
"""Of the files that permissions of batches reach."""
MAX_FILES_PAGE = 10_000
BATCH_FILE_SECONDS = 30 * 86_400


class FilePage(Page, frozen=True, kw_only=True):
    """The parameters of the list."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_FILES_PAGE)] = MAX_FILES_PAGE
    purpose: str | None = None


async def upload_file(request: HttpRequest) -> Response[bytes]:
    """``POST /v1/files``. When it answers, the bytes and the row are on the disk."""
    services = runtime(request)
    file_id = new_id("file-")
    with services.blobs.writer() as writer:
        form = Upload(writer, services.config.server.max_file_bytes)
        await form.read(request.scope["headers"], request.receive)
        purpose = check_purpose(form.fields.get("purpose"))
        await check_reach(request, purpose, "files.write")
        kept = kept_seconds(purpose, _expiry(form.fields))
        try:
            await writer.commit(file_id, form.filename or "")
            row = files.new(
                file_id,
                form.filename or "",
                purpose,
                size=writer.size,
                sha256=writer.sha256,
                media_type=form.media_type,
                user=principal(request).user,
                kept_seconds=kept,
            )
            async with tenant_session(request) as session:
                session.add(row)
                await services.quotas.confirm(session, size=True)
        except BaseException:
            writer.discard()
            services.blobs.remove(file_id)
            raise
    return answer(file_object(row))


async def list_files(request: HttpRequest) -> Response[bytes]:
    """``GET /v1/files``."""
    wanted = query_of(request, FilePage)
    async with tenant_session(request, write=False) as session:
        rows, more = await files.page(session, wanted, wanted.purpose, principal(request).user)
    return answer(listing([file_object(row) for row in rows], [row.id for row in rows], has_more=more))


async def get_file(request: HttpRequest) -> Response[bytes]:
    """``GET /v1/files/{file_id}``."""
    return answer(file_object(await _row(request, "files.read")))


async def download_file(request: HttpRequest) -> Stream:
    """``GET /v1/files/{file_id}/content``: the bytes as they were uploaded, never to be rendered by a browser.

    Nor does a page of another origin get to draw or play them (``Cross-Origin-Resource-Policy``, WHATWG Fetch 3.7).
    """
    row = await _row(request, "files.read")
    path = runtime(request).blobs.path(row.id)
    if not path.exists():
        raise NotFound(f"the bytes of file {row.id} are gone; upload it again", param="file_id")
    headers = {
        "content-length": str(row.bytes),
        "content-disposition": f"attachment; filename*=UTF-8''{quote(row.filename, safe='')}",
        "x-content-type-options": "nosniff",
        "content-security-policy": "sandbox; default-src 'none'",
        "cross-origin-resource-policy": "same-origin",
    }
    return Stream(read_pieces(path), media_type="application/octet-stream", headers=headers)


async def delete_file(request: HttpRequest) -> Response[bytes]:
    """``DELETE /v1/files/{file_id}``: out of every vector store first, then the row, then the bytes."""
    row, services = await _row(request, "files.write"), runtime(request)
    scope = scope_of(principal(request))
    await remove_file(services.database, services.knowledge, services.blobs, scope, row.id)
    return answer(Deleted(id=row.id, object="file"))


async def _row(request: HttpRequest, action: str) -> File:
    """The file of the path, for who may do this to all files or to those of batches. Raises NotFound, Forbidden."""
    try:
        async with tenant_session(request, write=False) as session:
            row = await files.get(session, request.path_params["file_id"], principal(request).user)
    except NotFound:
        await check_reach(request, None, action)  # whoever may see no other file learns of none
        raise
    await check_reach(request, row.purpose, action)
    return row


async def check_reach(request: HttpRequest, purpose: str | None, action: str) -> None:
    """Whoever was let in by a permission of batches gets at their files alone. Raises Forbidden for others."""
    if purpose not in BATCH_PURPOSES:
        await runtime(request).pipeline.authorize(principal(request), action, request.scope["path"])


def check_purpose(purpose: str | None) -> str:
    """The purpose of a new file. Raises BadRequest."""
    if purpose is None:
        raise BadRequest("purpose is required; send assistants", param="purpose", code="missing_required_parameter")
    if purpose not in PURPOSES:
        raise BadRequest(f"purpose must be one of {', '.join(PURPOSES)}", param="purpose")
    return purpose


def kept_seconds(purpose: str, wanted: FileExpiresAfter | None) -> int | None:
    """How long a file is kept; OpenAI's default is thirty days for batches and for ever otherwise."""
    if wanted is not None:
        return wanted.seconds
    return BATCH_FILE_SECONDS if purpose == "batch" else None


def _expiry(fields: Mapping[str, str]) -> FileExpiresAfter | None:
    """``expires_after`` as a form has it: ``expires_after[anchor]`` and ``expires_after[seconds]``."""
    given: dict[str, Any] = {name: fields[name] for name in fields if name.startswith("expires_after")}
    if not given:
        return None
    for name in given:
        if name not in ("expires_after[anchor]", "expires_after[seconds]"):
            raise BadRequest("send expires_after as expires_after[anchor] and expires_after[seconds]", param=name[:64])
    for name, wanted in (("expires_after[anchor]", "created_at"), ("expires_after[seconds]", "a whole number")):
        if name not in given:
            raise BadRequest(f"{name} is required; send {wanted}", param=name, code="missing_required_parameter")
    if given["expires_after[anchor]"] != "created_at":
        raise BadRequest("expires_after[anchor] must be created_at", param="expires_after[anchor]")
    seconds = given["expires_after[seconds]"]
    if not (seconds.isascii() and seconds.isdigit() and len(seconds) < 9 and 3600 <= int(seconds) <= 2_592_000):
        raise BadRequest(
            "expires_after[seconds] must be a whole number from 3600 to 2592000", param="expires_after[seconds]"
        )
    return FileExpiresAfter(anchor="created_at", seconds=int(seconds))
