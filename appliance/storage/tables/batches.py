"""Batches of requests, and what came of their lines so far."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Boolean, ForeignKey, Index, Integer, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from appliance.storage.tables.base import Base, Tenanted

UNFINISHED = ("validating", "in_progress", "finalizing", "cancelling")
"""The statuses in which somebody works on a batch, or will."""


class Batch(Tenanted, Base):
    """A file of requests to be answered. ``user`` as in ``StoredResponse``; times are whole seconds."""

    __tablename__ = "batches"
    __table_args__ = (
        Index(None, "tenant", "created_us"),
        Index(None, "status", "lease_expires"),
        Index(None, "input_file_id"),
    )

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    user: Mapped[str | None] = mapped_column(String(512))
    created_us: Mapped[int] = mapped_column(BigInteger)
    status: Mapped[str] = mapped_column(String(16))
    """As in the object: ``validating``, ``failed``, ``in_progress``, ``finalizing``, ``completed``, ``expired``,
    ``cancelling`` or ``cancelled``."""
    endpoint: Mapped[str] = mapped_column(String(64))
    model: Mapped[str | None] = mapped_column(String(255))
    input_file_id: Mapped[str] = mapped_column(String(64))
    output_file_id: Mapped[str | None] = mapped_column(String(64))
    error_file_id: Mapped[str | None] = mapped_column(String(64))
    labels: Mapped[dict[str, Any] | None] = mapped_column("metadata", JSON(none_as_null=True))
    errors: Mapped[list[dict[str, Any]] | None] = mapped_column(JSON(none_as_null=True))
    """Why the file was refused."""
    times: Mapped[dict[str, int]] = mapped_column(JSON)
    """``in_progress_at`` and its like, by name."""
    expires_at: Mapped[int] = mapped_column(BigInteger)
    output_seconds: Mapped[int | None] = mapped_column(BigInteger)
    """How long the files that it makes are kept; ``None`` for ever."""
    total: Mapped[int] = mapped_column(Integer, default=0)
    completed: Mapped[int] = mapped_column(Integer, default=0)
    failed: Mapped[int] = mapped_column(Integer, default=0)
    input_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    cached_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    output_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    reasoning_tokens: Mapped[int] = mapped_column(BigInteger, default=0)
    principal: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """On whose behalf it runs; gone when it is over."""
    owner: Mapped[str | None] = mapped_column(String(64))
    """Which process works on it."""
    lease_expires: Mapped[int] = mapped_column(BigInteger, default=0)
    """The owner says that it lives until then."""


class BatchResult(Tenanted, Base):
    """What came of one line; the rows go when the batch's files are written."""

    __tablename__ = "batch_results"

    batch_id: Mapped[str] = mapped_column(String(64), ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True)
    line: Mapped[int] = mapped_column(Integer, primary_key=True)
    ok: Mapped[bool] = mapped_column(Boolean)
    """Whether it goes into the output file; else into the error file."""
    output: Mapped[bytes] = mapped_column(LargeBinary)
    """The line to be written, as JSON."""
