"""Pages of rows, newest first unless asked otherwise, with ids as cursors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from sqlalchemy import Select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from appliance.errors import NotFound

_T = TypeVar("_T")
Order = tuple[InstrumentedAttribute[int], InstrumentedAttribute[str]]
"""What a list is sorted by: the time of creation, then the id."""


class PageRequest(Protocol):
    """The paging parameters of a list route (``appliance.http.requests.Page``)."""

    @property
    def limit(self) -> int:
        """Most rows wanted."""
        ...

    @property
    def order(self) -> str:
        """``asc`` or ``desc``."""
        ...

    @property
    def after(self) -> str | None:
        """Id of the row before the page."""
        ...

    @property
    def before(self) -> str | None:
        """Id of the row after the page."""
        ...


async def fetch(session: AsyncSession, query: Select[_T], order: Order, page: PageRequest) -> tuple[Sequence[_T], bool]:
    """One page of ``query``, and whether more rows follow in the direction of travel.

    ``query`` must already hold the parent; the cursors are looked up inside it, so that an id from elsewhere tells
    nothing. Raises NotFound for a cursor that is not in the list.
    """
    forward = page.order == "asc"
    for name, cursor, past in (("after", page.after, forward), ("before", page.before, not forward)):
        if cursor is not None:
            place = await _place(session, query, order, cursor, name)
            query = query.where(tuple_(*order) > place if past else tuple_(*order) < place)
    # A page before a cursor is the one that touches it, so it is read backwards and turned round.
    backwards = page.before is not None and page.after is None
    ascending = forward != backwards
    ordered = query.order_by(*(column.asc() if ascending else column.desc() for column in order))
    rows: list[_T] = list((await session.scalars(ordered.limit(page.limit + 1))).all())
    found = rows[: page.limit]
    return (found[::-1] if backwards else found), len(rows) > page.limit


async def _place(session: AsyncSession, query: Select[Any], order: Order, cursor: str, name: str) -> Any:
    found = (await session.execute(query.with_only_columns(*order).where(order[1] == cursor))).first()
    if found is None:
        raise NotFound(f"{name}: no object of this list has the id {cursor[:64]!r}", param=name)
    return tuple_(*found)
