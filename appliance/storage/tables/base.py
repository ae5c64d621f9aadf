"""What all tables share."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, MetaData, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

_NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    """Base of all tables; constraint names are fixed, so that migrations can name them on any database."""

    metadata = MetaData(naming_convention=_NAMES)
    type_annotation_map = {dict[str, Any]: JSON, list[str]: JSON}  # noqa: RUF012 - SQLAlchemy's declared form


class Tenanted:
    """Mixin of the tables whose rows belong to a tenant: ``Database.tenant`` keeps each tenant to its own rows."""

    tenant: Mapped[str] = mapped_column(String(255))
