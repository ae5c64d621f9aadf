"""API keys."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from appliance.storage.tables.base import Base, Tenanted


class ApiKey(Tenanted, Base):
    """A caller's key; only digests are kept. ``models`` and ``stores`` are ``None`` for all.

    After a rotation the secret before it works until ``previous_until``. Callers are looked up in a session of no
    tenant, before anybody knows whose key it is.
    """

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String(255))
    user_id: Mapped[str | None] = mapped_column(String(255))
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    roles: Mapped[list[str]] = mapped_column(JSON)
    scopes: Mapped[list[str]] = mapped_column(JSON)
    models: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    stores: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    allowance: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    created_at: Mapped[int] = mapped_column(BigInteger)
    expires_at: Mapped[int | None] = mapped_column(BigInteger)
    revoked_at: Mapped[int | None] = mapped_column(BigInteger)
    rotations: Mapped[int] = mapped_column(Integer)
    rotated_at: Mapped[int | None] = mapped_column(BigInteger)
    previous_digest: Mapped[str | None] = mapped_column(String(64))
    previous_until: Mapped[int | None] = mapped_column(BigInteger)
