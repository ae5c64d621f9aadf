"""Answers that are kept to be given again."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from appliance.storage.tables.base import Base, Tenanted


class KeptAnswer(Tenanted, Base):
    """The answer to a request that carried an ``Idempotency-Key``; empty while it is being worked on."""

    __tablename__ = "idempotency_keys"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    """A digest of the tenant and the caller, and one of the key."""
    fingerprint: Mapped[str | None] = mapped_column(String(64))
    """A digest of the request: method, path, query and body."""
    headers: Mapped[dict[str, Any]] = mapped_column(JSON, default=dict)
    body: Mapped[bytes | None] = mapped_column(LargeBinary)
    owner: Mapped[str] = mapped_column(String(64))
    """The request that works on it."""
    lease_expires: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[int] = mapped_column(BigInteger, index=True)
