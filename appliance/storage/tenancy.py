"""Sessions in which one tenant's rows are all there is.

The condition is added here, below every query, so that no caller can forget it: to the entities of a statement, to
those it joins, to its subqueries, to ``get``, and to updates and deletes. New rows are stamped. What cannot be
narrowed (SQL as text, statements on bare tables, inserts and updates by values) is refused. In the same way a session
can be kept to some vector stores, and to the documents that somebody may see.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, event, exists, false, or_, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import ORMExecuteState, Session, UOWTransaction, with_loader_criteria
from sqlalchemy.sql.base import ExecutableOption

from appliance.errors import Forbidden
from appliance.storage.tables import File, FileBatch, FileReader, StoreFile, Tenanted, VectorStore

_HELD = StoreFile.metadata.tables[StoreFile.__tablename__].alias("held")
"""As a bare table, to which no condition is added: also stores out of reach count as holding a file."""
_REFUSED = "only ORM statements run in a tenant's session; this one cannot be kept to the tenant"


class _NarrowedSession(Session):
    """The synchronous half, which the listeners below are bound to."""

    def connection(self, *args: Any, **kwargs: Any) -> Any:
        """Refused: a connection knows no tenant."""
        raise RuntimeError(_REFUSED)


class TenantSession(AsyncSession):
    """A session of ``Database.tenant``. Functions that take one rely on it: they name no tenant in their queries."""

    sync_session_class = _NarrowedSession

    @property
    def tenant(self) -> str:
        """Whose rows it sees."""
        return str(self.info["tenant"])

    @property
    def sees_all(self) -> bool:
        """Whether it is kept to no readers' documents."""
        return self.info["readers"] is None


@event.listens_for(_NarrowedSession, "do_orm_execute")
def _narrow(state: ORMExecuteState) -> None:
    by_values = state.is_insert or (state.is_update and isinstance(state.parameters, list))
    if not state.is_orm_statement or state.is_from_statement or by_values:
        raise RuntimeError(_REFUSED)
    info = state.session.info
    options = _own(info["tenant"]), *_reachable(info["stores"]), *_shown(info["readers"])
    state.statement = state.statement.options(*options)


def _own(tenant: str) -> ExecutableOption:
    # A function, since the criterion is made anew for each table; its closure becomes a bound parameter.
    return with_loader_criteria(Tenanted, lambda table: table.tenant == tenant, include_aliases=True)


def _reachable(stores: frozenset[str] | None) -> list[ExecutableOption]:
    """For callers who may reach some vector stores only: those, and what is in them; files also that are in none."""
    if stores is None:
        return []
    wanted = _named(stores)
    inside = select(VectorStore.id).where(wanted).scalar_subquery()
    held = exists().where(_HELD.c.file_id == File.id)
    return [
        with_loader_criteria(File, or_(~held, held.where(_HELD.c.store_id.in_(inside))), include_aliases=True),
        with_loader_criteria(VectorStore, wanted, include_aliases=True),
        with_loader_criteria(StoreFile, StoreFile.store_id.in_(inside), include_aliases=True),
        with_loader_criteria(FileBatch, FileBatch.store_id.in_(inside), include_aliases=True),
    ]


def _shown(readers: frozenset[str] | None) -> list[ExecutableOption]:
    """For callers who may see some documents only: those that name one of their ``readers``."""
    if readers is None:
        return []
    shared = exists().where(FileReader.file_id == File.id, FileReader.reader.in_(readers))
    return [
        with_loader_criteria(StoreFile, shown_to(readers), include_aliases=True),
        with_loader_criteria(File, or_(File.restricted.is_(False), shared), include_aliases=True),
    ]


def shown_to(readers: Collection[str]) -> ColumnElement[bool]:
    """Whether a ``StoreFile`` may be seen by somebody with these reader terms."""
    shared = exists().where(
        FileReader.store_id == StoreFile.store_id,
        FileReader.file_id == StoreFile.file_id,
        FileReader.reader.in_(readers),
    )
    return or_(StoreFile.public if "*" in readers else false(), shared)


def _named(stores: frozenset[str]) -> ColumnElement[bool]:
    return or_(VectorStore.id.in_(stores), VectorStore.name.in_(stores))


@event.listens_for(_NarrowedSession, "before_flush")
def _stamp(session: Session, _: UOWTransaction, __: object) -> None:
    tenant, stores = session.info["tenant"], session.info["stores"]
    for row in session.new:
        if isinstance(row, Tenanted) and row.tenant is None:
            row.tenant = tenant
        if isinstance(row, VectorStore) and stores is not None and not {row.id, row.name} & stores:
            raise Forbidden("you may reach certain vector stores only; give the new one the name of one of them")
    for row in (*session.new, *session.dirty, *session.deleted):
        if isinstance(row, Tenanted) and row.tenant != tenant:
            raise RuntimeError(f"a row of another tenant must not be written in a session of {tenant}")
