"""Stored responses and conversations."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, Integer, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from appliance.storage.tables.base import Base, Tenanted


class StoredResponse(Tenanted, Base):
    """An answer that can be fetched, continued or, while it runs in the background, cancelled.

    ``user`` is the person behind the credential that made it: nobody else of the tenant gets to see it. ``None``:
    a key without a person made it, and the whole tenant may.
    """

    __tablename__ = "responses"
    __table_args__ = (Index(None, "created_us"), Index(None, "status", "lease_expires"), Index(None, "tenant"))

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    user: Mapped[str | None] = mapped_column(String(512))
    created_us: Mapped[int] = mapped_column(BigInteger)
    status: Mapped[str] = mapped_column(String(16))
    """As in the object: ``queued``, ``in_progress``, ``completed``, ``incomplete``, ``failed`` or ``cancelled``."""
    previous_id: Mapped[str | None] = mapped_column(String(64))
    body: Mapped[dict[str, Any]] = mapped_column(JSON)
    """The response object; its ``output`` items are part of it."""
    input: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    request: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """Background only: what was asked."""
    principal: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """Background only: on whose behalf it runs."""
    attempts: Mapped[int] = mapped_column(Integer, default=0)
    lease_expires: Mapped[int] = mapped_column(BigInteger, default=0)
    """Background only: whoever runs it says so until then."""
    context: Mapped[int] = mapped_column(BigInteger, default=0)
    """Characters, as JSON, of its input and of all that it goes on from."""


class ResponseEvents(Tenanted, Base):
    """Events of the stream of a background response that were written together, compressed, one behind the other.

    ``first`` and ``last`` are their sequence numbers; rows of a response leave no gap.
    """

    __tablename__ = "response_events"

    response_id: Mapped[str] = mapped_column(
        String(64), ForeignKey("responses.id", ondelete="CASCADE"), primary_key=True
    )
    first: Mapped[int] = mapped_column(Integer, primary_key=True)
    last: Mapped[int] = mapped_column(Integer)
    events: Mapped[bytes] = mapped_column(LargeBinary)


class Conversation(Tenanted, Base):
    """Items that responses add to."""

    __tablename__ = "conversations"
    __table_args__ = (Index(None, "tenant"),)

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    user: Mapped[str | None] = mapped_column(String(512))
    created_us: Mapped[int] = mapped_column(BigInteger)
    labels: Mapped[dict[str, Any]] = mapped_column("metadata", JSON)


class ConversationItem(Tenanted, Base):
    """One item; ``created_us`` orders the items of a conversation and is unique in it."""

    __tablename__ = "conversation_items"
    __table_args__ = (Index(None, "conversation_id", "created_us"), Index(None, "tenant"))

    conversation_id: Mapped[str] = mapped_column(
        String(64), ForeignKey("conversations.id", ondelete="CASCADE"), primary_key=True
    )
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    created_us: Mapped[int] = mapped_column(BigInteger)
    body: Mapped[dict[str, Any]] = mapped_column(JSON)
