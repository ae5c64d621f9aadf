"""Uploads that come in parts."""

from __future__ import annotations

from sqlalchemy import BigInteger, ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from appliance.storage.tables.base import Base, Tenanted


class PendingUpload(Tenanted, Base):
    """A file that comes in parts. ``user`` as in ``StoredResponse``; times are whole seconds."""

    __tablename__ = "uploads"
    __table_args__ = (Index(None, "status", "expires_at"), Index(None, "tenant"))

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    user: Mapped[str | None] = mapped_column(String(512))
    filename: Mapped[str] = mapped_column(String(255))
    media_type: Mapped[str | None] = mapped_column(String(255))
    purpose: Mapped[str] = mapped_column(String(64))
    bytes: Mapped[int] = mapped_column(BigInteger)
    """How long the file will be."""
    status: Mapped[str] = mapped_column(String(16))
    """``pending``, ``completed`` or ``cancelled``; a pending one whose time is over has expired."""
    file_seconds: Mapped[int | None] = mapped_column(BigInteger)
    """How long the finished file is kept; ``None`` for ever."""
    file_id: Mapped[str | None] = mapped_column(String(64))
    created_us: Mapped[int] = mapped_column(BigInteger)
    expires_at: Mapped[int] = mapped_column(BigInteger)


class UploadPart(Tenanted, Base):
    """One part; its bytes lie in the blob store under the same id until the upload is over."""

    __tablename__ = "upload_parts"
    __table_args__ = (Index(None, "tenant"),)

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    upload_id: Mapped[str] = mapped_column(String(64), ForeignKey("uploads.id", ondelete="CASCADE"), index=True)
    bytes: Mapped[int] = mapped_column(BigInteger)
    created_us: Mapped[int] = mapped_column(BigInteger)
