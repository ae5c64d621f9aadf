"""Sessions in which one tenant's rows are all there is.

The condition is added here, below every query, so that no caller can forget it: to the entities of a statement, to
those it joins, to its subqueries, to ``get``, and to updates and deletes. New rows are stamped. What cannot be
narrowed (SQL as text, statements on bare tables, inserts and updates by values) is refused. In the same way a session
can be kept to some vector stores, and to the documents that somebody may see.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any

from sqlalchemy import BindParameter, ColumnElement, Exists, event, exists, or_, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute, ORMExecuteState, Session, UOWTransaction, with_loader_criteria
from sqlalchemy.sql.base import ExecutableOption

from appliance.errors import Forbidden
from appliance.storage.tables import File, FileBatch, FileReader, StoreFile, Tenanted, VectorStore

_HELD = StoreFile.metadata.tables[StoreFile.__tablename__].alias("held")
"""As a bare table, to which no condition is added: also stores out of reach count as holding a file."""
WHOLE_TENANT = {"appliance_whole_tenant": True}
"""Execution options of a statement that names its tenant itself, and is to see all of it: nothing is added to it."""
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
    if state.is_select and state.execution_options.keys() >= WHOLE_TENANT.keys():
        return
    by_values = state.is_insert or (state.is_update and isinstance(state.parameters, list))
    if not state.is_orm_statement or state.is_from_statement or by_values:
        raise RuntimeError(_REFUSED)
    info = state.session.info
    options = _own(info["tenant"]), *_reachable(info["stores"]), *_shown(info["readers"])
    state.statement = state.statement.options(*options)


# The criteria are functions: each is called for every table that it holds for, also under another name, and what it
# closes over becomes a bound parameter. They are kept, since making those of a search anew took a tenth of its time.
_kept = lru_cache(maxsize=1024)


@_kept
def _own(tenant: str) -> ExecutableOption:
    return _criterion(Tenanted, lambda table: table.tenant == tenant)


@_kept
def _reachable(stores: frozenset[str] | None) -> list[ExecutableOption]:
    """For callers who may reach some vector stores only: those, and what is in them; files also that are in none."""
    if stores is None:
        return []
    names = sorted(stores)
    inside = select(VectorStore.id).where(or_(VectorStore.id.in_(names), VectorStore.name.in_(names))).scalar_subquery()
    return [
        _criterion(File, lambda table: or_(~_held(table), _held(table).where(_HELD.c.store_id.in_(inside)))),
        _criterion(VectorStore, lambda table: or_(table.id.in_(names), table.name.in_(names))),
        _criterion(StoreFile, lambda table: table.store_id.in_(inside)),
        _criterion(FileBatch, lambda table: table.store_id.in_(inside)),
    ]


def _held(table: Any) -> Exists:
    return exists().where(_HELD.c.file_id == table.id)


@_kept
def _shown(readers: frozenset[str] | None) -> list[ExecutableOption]:
    """For callers who may see some documents only: those that name one of their ``readers``."""
    if readers is None:
        return []
    names = sorted(readers)
    whole = _criterion(StoreFile, lambda table: or_(table.public, _shared(table, names)))
    named = _criterion(StoreFile, lambda table: _shared(table, names))
    free = _criterion(File, lambda table: or_(table.restricted.is_(False), _shared_anywhere(table, names)))
    return [whole if "*" in readers else named, free]


def _shared_anywhere(table: Any, names: Collection[str]) -> Exists:
    return exists().where(FileReader.file_id == table.id, _is_one_of(names))


def _shared(table: Any, names: Collection[str] | BindParameter[Any]) -> Exists:
    return exists().where(FileReader.store_id == table.store_id, FileReader.file_id == table.file_id, _is_one_of(names))


def _is_one_of(names: Collection[str] | BindParameter[Any]) -> ColumnElement[bool]:
    """Whether a reader's name is one of these. As the name alone, SQLite would look up each of them for each file.

    Of 20,000 files and 500 groups that took 4 seconds, where reading the files' own readers takes 20 ms.
    """
    return FileReader.reader.concat("").in_(names)


def seen_by(user: str | None, maker: InstrumentedAttribute[str | None]) -> ColumnElement[bool]:
    """Whether a row is this user's, or nobody's by name; ``maker`` is the column that says whose."""
    return or_(maker.is_(None), maker == user)


def shared_with(readers: BindParameter[Any]) -> ColumnElement[bool]:
    """Whether a ``StoreFile`` names somebody with one of these reader terms."""
    return _shared(StoreFile, readers)


def _criterion(entity: type[Any], function: Callable[[Any], Any]) -> ExecutableOption:
    return with_loader_criteria(entity, function, include_aliases=True)


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
