"""The objects of the files and vector-stores API, as they go over the wire, and their requests."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from appliance.knowledge.filters import Scalar
from appliance.types import Access
from appliance.wire import Key, Label, Metadata

Name = Annotated[str, msgspec.Meta(max_length=256)]
Id = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
Number = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
AttributeMap: TypeAlias = Annotated[dict[Key, Label | bool | Number | float], msgspec.Meta(max_length=16)]
FileIds: TypeAlias = Annotated[list[Id], msgspec.Meta(max_length=500)]
FileStatus: TypeAlias = Literal["in_progress", "completed", "cancelled", "failed"]


# -- requests --------------------------------------------------------------------------------------------


class StaticChunking(msgspec.Struct, kw_only=True):
    """Sizes in tokens: 100 to 4096, overlap at most half."""

    max_chunk_size_tokens: Annotated[int, msgspec.Meta(ge=100, le=4096)]
    chunk_overlap_tokens: Annotated[int, msgspec.Meta(ge=0, le=2048)]


class ChunkingStrategy(msgspec.Struct, kw_only=True):
    """``auto`` takes the appliance's own sizes. ``chunker`` is the name of one (not OpenAI's)."""

    type: Literal["auto", "static"]
    static: StaticChunking | None = None
    chunker: Annotated[str, msgspec.Meta(min_length=1, max_length=64)] | UnsetType | None = UNSET


class ExpiresAfter(msgspec.Struct, kw_only=True):
    """A store expires so many days after it was last used."""

    anchor: Literal["last_active_at"]
    days: Annotated[int, msgspec.Meta(ge=1, le=365)]


class FileExpiresAfter(msgspec.Struct, kw_only=True):
    """A file expires so many seconds after it was made: an hour to thirty days."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, msgspec.Meta(ge=3600, le=2_592_000)]


class CreateUpload(msgspec.Struct, kw_only=True):
    """``POST /v1/uploads``."""

    filename: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
    bytes: Annotated[int, msgspec.Meta(ge=1)]
    mime_type: Annotated[str, msgspec.Meta(max_length=255)]
    purpose: str
    expires_after: FileExpiresAfter | None = None


class CompleteUpload(msgspec.Struct, kw_only=True):
    """``POST /v1/uploads/{id}/complete``: the parts in their order; ``md5`` in hex."""

    part_ids: Annotated[list[Id], msgspec.Meta(min_length=1, max_length=10_000)]
    md5: Annotated[str, msgspec.Meta(pattern="^[0-9a-fA-F]{32}$")] | None = None


class CreateVectorStore(msgspec.Struct, kw_only=True):
    """``POST /v1/vector_stores``."""

    name: Name | None = None
    description: Annotated[str, msgspec.Meta(max_length=4096)] | None = None
    file_ids: FileIds | None = None
    chunking_strategy: ChunkingStrategy | None = None
    access: Access | None = None
    """Who may see ``file_ids`` (not OpenAI's, like all ``access``)."""
    expires_after: ExpiresAfter | None = None
    metadata: Metadata | None = None


class UpdateVectorStore(msgspec.Struct, kw_only=True):
    """``POST /v1/vector_stores/{id}``; what is left out stays, null takes it away."""

    name: Name | UnsetType | None = UNSET
    expires_after: ExpiresAfter | UnsetType | None = UNSET
    metadata: Metadata | UnsetType | None = UNSET


class AttachFile(msgspec.Struct, kw_only=True):
    """``POST /v1/vector_stores/{id}/files``, and one item of ``files`` in a batch."""

    file_id: Id
    attributes: AttributeMap | None = None
    chunking_strategy: ChunkingStrategy | None = None
    access: Access | None = None


class UpdateStoreFile(msgspec.Struct, kw_only=True):
    """``POST /v1/vector_stores/{id}/files/{file_id}``; null takes all attributes away."""

    attributes: AttributeMap | UnsetType | None = UNSET
    access: Access | UnsetType = UNSET


class CreateFileBatch(msgspec.Struct, kw_only=True):
    """``POST /v1/vector_stores/{id}/file_batches``: ``file_ids`` that share settings, or ``files`` with their own."""

    file_ids: FileIds | None = None
    files: Annotated[list[AttachFile], msgspec.Meta(max_length=500)] | None = None
    attributes: AttributeMap | None = None
    chunking_strategy: ChunkingStrategy | None = None
    access: Access | None = None


class SearchVectorStore(msgspec.Struct, kw_only=True):
    """``POST /v1/vector_stores/{id}/search``. ``page`` is the ``next_page`` of an earlier answer (not OpenAI's)."""

    query: str | list[str]
    filters: dict[str, Any] | None = None
    max_num_results: Annotated[int, msgspec.Meta(ge=1, le=50)] | None = None
    ranking_options: dict[str, Any] | None = None
    rewrite_query: bool | None = None
    page: str | None = None
    include: list[Literal["chunk"]] | None = None
    """``chunk``: say of each passage which piece of its file it is (not OpenAI's)."""


# -- answers ---------------------------------------------------------------------------------------------


class FileObject(msgspec.Struct, kw_only=True):
    """An uploaded file."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: Literal["uploaded", "processed", "error"] = "processed"
    status_details: str | None = None
    expires_at: int | None = None


class UploadObject(msgspec.Struct, kw_only=True):
    """A file that comes in parts; ``file`` is there once it is completed."""

    id: str
    object: Literal["upload"] = "upload"
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: Literal["pending", "completed", "cancelled", "expired"]
    expires_at: int
    file: FileObject | None = None


class UploadPartObject(msgspec.Struct, kw_only=True):
    """A part of an upload."""

    id: str
    object: Literal["upload.part"] = "upload.part"
    created_at: int
    upload_id: str


class FileCounts(msgspec.Struct, kw_only=True):
    """Files by status."""

    in_progress: int
    completed: int
    failed: int
    cancelled: int
    total: int


class VectorStoreObject(msgspec.Struct, kw_only=True):
    """A vector store. ``usage_bytes`` counts stored text and vectors."""

    id: str
    object: Literal["vector_store"] = "vector_store"
    created_at: int
    name: str
    description: str | UnsetType = UNSET
    usage_bytes: int
    file_counts: FileCounts
    status: Literal["expired", "in_progress", "completed"]
    expires_after: ExpiresAfter | None
    expires_at: int | None
    last_active_at: int
    metadata: dict[str, str]


class LastError(msgspec.Struct, kw_only=True):
    """Why a file could not be indexed."""

    code: str
    message: str


class StoreFileObject(msgspec.Struct, kw_only=True):
    """A file in a vector store."""

    id: str
    object: Literal["vector_store.file"] = "vector_store.file"
    created_at: int
    vector_store_id: str
    usage_bytes: int
    status: FileStatus
    last_error: LastError | None
    attributes: dict[str, Scalar]
    chunking_strategy: ChunkingStrategy
    notes: list[str] | UnsetType = UNSET
    """What the parser remarked, as pages without text (not OpenAI's)."""
    access: Access | UnsetType = UNSET
    """Who may see it, where that is not simply everybody; only for those who manage it (not OpenAI's)."""


class FileBatchObject(msgspec.Struct, kw_only=True):
    """Files attached by one request."""

    id: str
    object: Literal["vector_store.files_batch"] = "vector_store.files_batch"
    created_at: int
    vector_store_id: str
    status: FileStatus
    file_counts: FileCounts


class TextContent(msgspec.Struct, kw_only=True):
    """A piece of text."""

    type: Literal["text"] = "text"
    text: str


class ChunkPlace(msgspec.Struct, kw_only=True):
    """A piece of a file: ``start`` and ``end`` are characters of its text, the end excluded."""

    id: str
    start: int
    end: int


class SearchResult(msgspec.Struct, kw_only=True):
    """A passage that a search found; ``score`` is from 0 to 1, left out where the caller may not see it."""

    file_id: str
    filename: str
    score: float | UnsetType = UNSET
    attributes: dict[str, Scalar]
    content: list[TextContent]
    chunk: ChunkPlace | UnsetType = UNSET
    """There if ``include`` asks for it (not OpenAI's)."""


class SearchResults(msgspec.Struct, kw_only=True):
    """All passages, best first."""

    object: Literal["vector_store.search_results.page"] = "vector_store.search_results.page"
    search_query: list[str]
    data: list[SearchResult]
    has_more: bool = False
    next_page: str | None = None


class FileContent(msgspec.Struct, kw_only=True):
    """The indexed text of a file, chunk by chunk."""

    object: Literal["vector_store.file_content.page"] = "vector_store.file_content.page"
    file_id: str
    filename: str
    attributes: dict[str, Scalar]
    data: list[TextContent]
    has_more: bool = False
    next_page: str | None = None


class Deleted(msgspec.Struct, kw_only=True):
    """The answer to a deletion."""

    id: str
    object: str
    deleted: bool = True
