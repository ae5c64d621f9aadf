"""Files, vector stores and ingestion jobs.

Every row belongs to a tenant; times are whole seconds, ``created_us`` microseconds (it orders pages).
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import Mapped, mapped_column, relationship

from appliance.storage.tables.base import Base, Tenanted

DAY_SECONDS = 86_400


def collection_name(store_id: str, generation: int) -> str:
    """What vector stores call a collection: the store's id, with the number behind it from the second one on."""
    return f"{store_id}_{generation}" if generation else store_id


class File(Tenanted, Base):
    """An uploaded file; its bytes lie in the blob store under the same id.

    ``user`` is the person whose file it is: nobody else of the tenant gets to see it. ``None``: the tenant may.
    """

    __tablename__ = "files"
    __table_args__ = (Index(None, "tenant", "created_us"), Index(None, "expires_at"))

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    filename: Mapped[str] = mapped_column(String(255))
    """A label only: never part of a path."""
    purpose: Mapped[str] = mapped_column(String(64))
    media_type: Mapped[str | None] = mapped_column(String(255))
    bytes: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64))
    created_us: Mapped[int] = mapped_column(BigInteger)
    user: Mapped[str | None] = mapped_column(String(512))
    expires_at: Mapped[int | None] = mapped_column(BigInteger)
    """From when on it is gone, in seconds; ``None`` for never."""
    restricted: Mapped[bool] = mapped_column(Boolean, default=False)
    """Set once a vector store holds it for some readers only: then nobody else gets the file by itself either."""


class VectorStore(Tenanted, Base):
    """A vector store. What embeds it is recorded by the first ingestion and kept from then on."""

    __tablename__ = "vector_stores"
    __table_args__ = (Index(None, "tenant", "created_us"),)

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String(256))
    description: Mapped[str | None] = mapped_column(Text)
    labels: Mapped[dict[str, Any]] = mapped_column("metadata", JSON)
    expires_days: Mapped[int | None] = mapped_column(Integer)
    last_active_at: Mapped[int] = mapped_column(BigInteger)
    embedder: Mapped[str | None] = mapped_column(String(255))
    fingerprint: Mapped[str | None] = mapped_column(String(255))
    dimensions: Mapped[int | None] = mapped_column(Integer)
    metric: Mapped[str] = mapped_column(String(16), default="cosine")
    backend: Mapped[str | None] = mapped_column(String(64))
    """The ``retrieval.vector_store`` that holds its vectors, of both collections; ``None`` before there are any."""
    generation: Mapped[int] = mapped_column(Integer, default=0)
    """The number of the collection that is searched."""
    generations: Mapped[int] = mapped_column(Integer, default=0)
    """The highest number that a collection of this store ever had; none gets it again."""
    removing: Mapped[bool] = mapped_column(Boolean, default=False)
    """Set when a delete has begun: nothing is added or searched any more."""
    created_us: Mapped[int] = mapped_column(BigInteger)

    @property
    def collection(self) -> str:
        """The name of the collection that is searched."""
        return collection_name(self.id, self.generation)

    @property
    def expires_at(self) -> int | None:
        """When the store stops answering, in seconds; ``None`` for never."""
        return None if self.expires_days is None else self.last_active_at + self.expires_days * DAY_SECONDS


class StoreFile(Tenanted, Base):
    """A file in a vector store. ``version`` tells one attachment from a later one of the same file."""

    __tablename__ = "vector_store_files"
    __table_args__ = (
        Index(None, "store_id", "created_us"),
        Index(None, "store_id", "public"),
        Index(None, "file_id"),
        Index(None, "tenant", "chunks"),
    )

    store_id: Mapped[str] = mapped_column(
        String(64), ForeignKey("vector_stores.id", ondelete="CASCADE"), primary_key=True
    )
    file_id: Mapped[str] = mapped_column(String(64), ForeignKey("files.id"), primary_key=True)
    version: Mapped[int] = mapped_column(BigInteger)
    status: Mapped[str] = mapped_column(String(16), default="in_progress")
    """``in_progress``, ``completed``, ``cancelled`` or ``failed``."""
    error_code: Mapped[str | None] = mapped_column(String(32))
    error_message: Mapped[str | None] = mapped_column(Text)
    attributes: Mapped[dict[str, Any]] = mapped_column(JSON)
    chunk_size: Mapped[int] = mapped_column(Integer)
    chunk_overlap: Mapped[int] = mapped_column(Integer)
    chunker: Mapped[str | None] = mapped_column(String(64))
    """The chunker that the client chose; ``None`` for the configured one."""
    chunks: Mapped[int] = mapped_column(Integer, default=0)
    """Where a quota counts them, also what a file that is being indexed has so far."""
    usage_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    notes: Mapped[list[str]] = mapped_column(JSON, default=list)
    """What the parser remarked, such as pages without text."""
    removing: Mapped[bool] = mapped_column(Boolean, default=False)
    """Set when a removal has begun: searches no longer show the file."""
    stale: Mapped[bool] = mapped_column(Boolean, default=False)
    """Set while its chunks do not have its attributes and readers yet."""
    public: Mapped[bool] = mapped_column(Boolean, default=True)
    """Whether everybody of the tenant may see it; else those of ``shares``."""
    created_us: Mapped[int] = mapped_column(BigInteger)
    shares: Mapped[list[FileReader]] = relationship(
        lazy="selectin", cascade="all, delete-orphan", passive_deletes=True, order_by="FileReader.reader"
    )

    @property
    def readers(self) -> tuple[str, ...]:
        """Who may see it, as its chunks say."""
        return (*(("*",) if self.public else ()), *sorted(share.reader for share in self.shares))


class FileReader(Tenanted, Base):
    """Somebody who may see a file in a vector store: ``user:NAME`` or ``group:NAME``."""

    __tablename__ = "file_readers"
    __table_args__ = (
        ForeignKeyConstraint(
            ["store_id", "file_id"], ["vector_store_files.store_id", "vector_store_files.file_id"], ondelete="CASCADE"
        ),
        Index(None, "file_id", "reader"),
    )

    store_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    file_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    reader: Mapped[str] = mapped_column(String(1024), primary_key=True)


class FileBatch(Tenanted, Base):
    """Files attached to a vector store by one request."""

    __tablename__ = "file_batches"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    store_id: Mapped[str] = mapped_column(String(64), ForeignKey("vector_stores.id", ondelete="CASCADE"), index=True)
    file_ids: Mapped[list[str]] = mapped_column(JSON)
    cancelled: Mapped[bool] = mapped_column(Boolean, default=False)
    created_us: Mapped[int] = mapped_column(BigInteger)


class Job(Tenanted, Base):
    """An ingestion to be done. The row goes when it is done; a worker holds it by a lease that runs out."""

    __tablename__ = "jobs"
    __table_args__ = (
        UniqueConstraint("store_id", "file_id"),
        ForeignKeyConstraint(
            ["store_id", "file_id"],
            ["vector_store_files.store_id", "vector_store_files.file_id"],
            ondelete="CASCADE",
        ),
        Index(None, "not_before", "attempts"),
    )

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    store_id: Mapped[str] = mapped_column(String(64))
    file_id: Mapped[str] = mapped_column(String(64))
    version: Mapped[int] = mapped_column(BigInteger)
    attempts: Mapped[int] = mapped_column(Integer, default=0)
    not_before: Mapped[int] = mapped_column(BigInteger, default=0)
    """Not to be claimed before this time (back-off)."""
    owner: Mapped[str | None] = mapped_column(String(64))
    lease_expires: Mapped[int] = mapped_column(BigInteger, default=0)
    stage: Mapped[str | None] = mapped_column(String(16))
    """What the worker does with it, once that takes more than a moment; as are the following."""
    percent: Mapped[int] = mapped_column(Integer, default=0)
    pages: Mapped[int] = mapped_column(Integer, default=0)
    begun: Mapped[int] = mapped_column(BigInteger, default=0)
    """When this attempt began, in seconds."""


class Reindex(Tenanted, Base):
    """A second collection of a vector store, by another embedder: being built, or kept so that one can go back.

    A switch exchanges it with the store's own, in one transaction; from then on this row describes the other one.
    """

    __tablename__ = "reindexes"

    store_id: Mapped[str] = mapped_column(
        String(64), ForeignKey("vector_stores.id", ondelete="CASCADE"), primary_key=True
    )
    generation: Mapped[int] = mapped_column(Integer)
    embedder: Mapped[str] = mapped_column(String(255))
    fingerprint: Mapped[str] = mapped_column(String(255))
    dimensions: Mapped[int] = mapped_column(Integer)
    status: Mapped[str] = mapped_column(String(16))
    """``building``, ``kept`` or ``dropping``."""
    skip_failed: Mapped[bool] = mapped_column(Boolean, default=False)
    """Switch although some files could not be indexed again; they fail then."""
    keep_seconds: Mapped[int] = mapped_column(BigInteger)
    kept_until: Mapped[int | None] = mapped_column(BigInteger)
    """When it goes, in seconds; ``None`` for one that has never been searched."""
    started_us: Mapped[int] = mapped_column(BigInteger)

    @property
    def collection(self) -> str:
        """The name of this second collection."""
        return collection_name(self.store_id, self.generation)


class RebuiltFile(Tenanted, Base):
    """A file in a store's second collection: to be done again, whole (``done``), or failed."""

    __tablename__ = "rebuilt_files"
    __table_args__ = (
        ForeignKeyConstraint(
            ["store_id", "file_id"], ["vector_store_files.store_id", "vector_store_files.file_id"], ondelete="CASCADE"
        ),
    )

    store_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    file_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    generation: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    attempts: Mapped[int] = mapped_column(Integer, default=0)
    not_before: Mapped[int] = mapped_column(BigInteger, default=0)
    done: Mapped[bool] = mapped_column(Boolean, default=False)
    chunks: Mapped[int] = mapped_column(Integer, default=0)
    usage_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    error_code: Mapped[str | None] = mapped_column(String(32))
    error_message: Mapped[str | None] = mapped_column(Text)
