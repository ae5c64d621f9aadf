"""Browser sessions."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from appliance.storage.tables.base import Base


class BrowserSession(Base):
    """Somebody signed in with a browser; of the cookie only its digest is kept. Times are seconds since 1970."""

    __tablename__ = "browser_sessions"
    __table_args__ = (Index(None, "issuer", "subject"),)

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    issuer: Mapped[str] = mapped_column(String(512))
    subject: Mapped[str] = mapped_column(String(255))
    sid: Mapped[str | None] = mapped_column(String(255))
    """The session at the identity provider, which it names when that one ends."""
    principal: Mapped[dict[str, Any]] = mapped_column(JSON)
    created_at: Mapped[int] = mapped_column(BigInteger)
    seen_at: Mapped[int] = mapped_column(BigInteger)
    expires_at: Mapped[int] = mapped_column(BigInteger, index=True)
