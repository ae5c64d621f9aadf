"""Rows of files and vector stores as the API shows them."""

from __future__ import annotations

from typing import Any, cast

from msgspec import UNSET

from appliance.http.objects import (
    ChunkingStrategy,
    ExpiresAfter,
    FileBatchObject,
    FileCounts,
    FileObject,
    FileStatus,
    LastError,
    StaticChunking,
    StoreFileObject,
    UploadObject,
    UploadPartObject,
    VectorStoreObject,
)
from appliance.storage.stores import Counts
from appliance.storage.tables import File, FileBatch, StoreFile, VectorStore
from appliance.storage.tables.uploads import PendingUpload, UploadPart
from appliance.storage.uploads import status_of
from appliance.types import Access


def file_object(row: File) -> FileObject:
    """An uploaded file as the API shows it."""
    return FileObject(
        id=row.id,
        bytes=row.bytes,
        created_at=row.created_us // 10**6,
        filename=row.filename,
        purpose=row.purpose,
        expires_at=row.expires_at,
    )


def upload_object(row: PendingUpload, file: File | None = None) -> UploadObject:
    """An upload as the API shows it."""
    return UploadObject(
        id=row.id,
        bytes=row.bytes,
        created_at=row.created_us // 10**6,
        filename=row.filename,
        purpose=row.purpose,
        status=cast("Any", status_of(row)),
        expires_at=row.expires_at,
        file=file_object(file) if file else None,
    )


def part_object(row: UploadPart) -> UploadPartObject:
    """A part as the API shows it."""
    return UploadPartObject(id=row.id, created_at=row.created_us // 10**6, upload_id=row.upload_id)


def store_object(row: VectorStore, counts: Counts, now: int) -> VectorStoreObject:
    """A vector store as the API shows it."""
    expired = row.expires_at is not None and row.expires_at <= now
    return VectorStoreObject(
        id=row.id,
        created_at=row.created_us // 10**6,
        name=row.name,
        description=row.description or UNSET,
        usage_bytes=counts.usage_bytes,
        file_counts=file_counts(counts),
        status="expired" if expired else "in_progress" if counts.in_progress else "completed",
        expires_after=ExpiresAfter(anchor="last_active_at", days=row.expires_days) if row.expires_days else None,
        expires_at=row.expires_at,
        last_active_at=row.last_active_at,
        metadata=row.labels,
    )


def file_counts(counts: Counts) -> FileCounts:
    """Counts as the API shows them."""
    return FileCounts(
        in_progress=counts.in_progress,
        completed=counts.completed,
        failed=counts.failed,
        cancelled=counts.cancelled,
        total=counts.total,
    )


def store_file_object(row: StoreFile, *, manages: bool) -> StoreFileObject:
    """A file in a vector store as the API shows it, with ``access`` to whoever ``manages`` it."""
    error = LastError(code=row.error_code, message=row.error_message or "") if row.error_code else None
    sizes = StaticChunking(max_chunk_size_tokens=row.chunk_size, chunk_overlap_tokens=row.chunk_overlap)
    return StoreFileObject(
        id=row.file_id,
        created_at=row.created_us // 10**6,
        vector_store_id=row.store_id,
        usage_bytes=row.usage_bytes,
        status=cast("FileStatus", row.status),
        last_error=error,
        attributes=row.attributes,
        chunking_strategy=ChunkingStrategy(type="static", static=sizes, chunker=row.chunker or UNSET),
        notes=row.notes or UNSET,
        access=_access(row) if manages and row.readers != ("*",) else UNSET,
    )


def _access(row: StoreFile) -> Access:
    users, groups = ([r.removeprefix(kind) for r in row.readers if r.startswith(kind)] for kind in ("user:", "group:"))
    return Access(users=tuple(users), groups=tuple(groups), public=row.public)


def file_batch_object(row: FileBatch, counts: Counts) -> FileBatchObject:
    """A file batch as the API shows it."""
    return FileBatchObject(
        id=row.id,
        created_at=row.created_us // 10**6,
        vector_store_id=row.store_id,
        status=_batch_status(row, counts),
        file_counts=file_counts(counts),
    )


def _batch_status(row: FileBatch, counts: Counts) -> FileStatus:
    if counts.in_progress:
        return "in_progress"
    if row.cancelled:
        return "cancelled"
    return "failed" if counts.failed and counts.failed == counts.total else "completed"
