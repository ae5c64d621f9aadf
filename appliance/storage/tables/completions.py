"""Stored chat completions."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from appliance.storage.tables.base import Base, Tenanted


class StoredCompletion(Tenanted, Base):
    """A chat's answer that was kept because the client asked for it. ``user`` as in ``StoredResponse``."""

    __tablename__ = "chat_completions"
    __table_args__ = (Index(None, "tenant", "created_us"), Index(None, "created_us"))

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    user: Mapped[str | None] = mapped_column(String(512))
    created_us: Mapped[int] = mapped_column(BigInteger)
    model: Mapped[str] = mapped_column(String(255))
    body: Mapped[dict[str, Any]] = mapped_column(JSON)
    """The completion object, without its metadata."""
    messages: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    """What was asked, as the client sent it."""
    labels: Mapped[dict[str, Any]] = mapped_column("metadata", JSON)


class CompletionLabel(Tenanted, Base):
    """One entry of a completion's metadata once more, so that lists can be filtered by it."""

    __tablename__ = "chat_completion_metadata"
    __table_args__ = (Index(None, "key", "value"),)

    completion_id: Mapped[str] = mapped_column(
        String(64), ForeignKey("chat_completions.id", ondelete="CASCADE"), primary_key=True
    )
    key: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[str] = mapped_column(String(512))
