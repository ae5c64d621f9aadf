"""Usage by day, and the batches of it that were booked."""

from __future__ import annotations

from sqlalchemy import BigInteger, String
from sqlalchemy.orm import Mapped, mapped_column

from appliance.storage.tables.base import Base, Tenanted


class UsageDay(Tenanted, Base):
    """What one caller used of one model in one way on one day (UTC). An empty text stands for none."""

    __tablename__ = "usage_days"

    day: Mapped[str] = mapped_column(String(10), primary_key=True)
    """ISO date, as ``2026-11-30``; it sorts as text."""
    tenant: Mapped[str] = mapped_column(String(255), primary_key=True)
    user_id: Mapped[str] = mapped_column(String(255), primary_key=True)
    key_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    model: Mapped[str] = mapped_column(String(255), primary_key=True)
    operation: Mapped[str] = mapped_column(String(32), primary_key=True)
    requests: Mapped[int] = mapped_column(BigInteger)
    errors: Mapped[int] = mapped_column(BigInteger)
    aborted: Mapped[int] = mapped_column(BigInteger)
    input_tokens: Mapped[int] = mapped_column(BigInteger)
    cached_tokens: Mapped[int] = mapped_column(BigInteger)
    output_tokens: Mapped[int] = mapped_column(BigInteger)
    retrieved_tokens: Mapped[int] = mapped_column(BigInteger)
    retrieved_passages: Mapped[int] = mapped_column(BigInteger)
    cost: Mapped[int] = mapped_column(BigInteger)
    """In units of ``appliance.pricing``."""


class UsageBatch(Base):
    """A batch of calls that the days hold already; the row goes once nobody can offer the batch again."""

    __tablename__ = "usage_batches"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    booked_at: Mapped[int] = mapped_column(BigInteger)
