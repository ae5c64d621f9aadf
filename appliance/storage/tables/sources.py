"""Document sources: what was taken from each, and when it was last looked at."""

from __future__ import annotations

from sqlalchemy import BigInteger, ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from appliance.storage.tables.base import Base, Tenanted


class DocumentSource(Tenanted, Base):
    """A source of the configuration, as of its last sync. Times are microseconds."""

    __tablename__ = "document_sources"

    name: Mapped[str] = mapped_column(String(600), primary_key=True)
    store_id: Mapped[str | None] = mapped_column(String(64))
    tried_us: Mapped[int] = mapped_column(BigInteger)
    synced_us: Mapped[int | None] = mapped_column(BigInteger)
    """When it was last listed whole."""
    error: Mapped[str | None] = mapped_column(Text)
    """Why the last sync did not do all that it should have."""


class SourceFile(Tenanted, Base):
    """A document of a source, by its path, object name or URL, and the file that was made of it.

    While a changed document is being indexed ``next_id`` is its new file, and ``file_id`` the one that still answers.
    """

    __tablename__ = "source_files"
    __table_args__ = (Index(None, "file_id"), Index(None, "next_id"))

    source: Mapped[str] = mapped_column(String(600), primary_key=True)
    key: Mapped[str] = mapped_column(String(1024), primary_key=True)
    version: Mapped[str] = mapped_column(Text, default="")
    """What the source says of the content that was taken; empty where it has to be looked at again."""
    sha256: Mapped[str] = mapped_column(String(64), default="")
    settings: Mapped[str] = mapped_column(String(64), default="")
    """A digest of the attributes and the access that its files have."""
    file_id: Mapped[str | None] = mapped_column(String(64), ForeignKey("files.id", ondelete="SET NULL"))
    next_id: Mapped[str | None] = mapped_column(String(64), ForeignKey("files.id", ondelete="SET NULL"))
    error: Mapped[str | None] = mapped_column(Text)
    """Why its newest content is not in the store."""
