"""Claims of background work in which tenants take turns.

First comes who has the fewest that run, so that nobody waits for all that another has asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from sqlalchemy import Select, func, select

from appliance.storage.ids import now
from appliance.storage.tables.batches import Batch
from appliance.storage.tables.responses import StoredResponse

_Row = TypeVar("_Row", Batch, StoredResponse)


def in_turns(table: type[_Row], unfinished: Sequence[str], most: int) -> Select[_Row]:
    """What nobody works on, in the order in which it is to be claimed; at most ``most`` of one tenant run at once."""
    at = now()
    wanted = table.status.in_(unfinished)
    free = (wanted, table.lease_expires <= at)
    running = (
        select(table.tenant, func.count().label("number"))
        .where(wanted, table.lease_expires > at)
        .group_by(table.tenant)
        .subquery()
    )
    turn = func.row_number().over(partition_by=table.tenant, order_by=table.created_us)
    waiting = (
        select(table.id, (turn + func.coalesce(running.c.number, 0)).label("place"))
        .outerjoin(running, running.c.tenant == table.tenant)
        .where(*free)
        .subquery()
    )
    # What is free is asked twice: only the outer condition is looked at again when a row is locked.
    query = select(table).join(waiting, waiting.c.id == table.id).where(*free, waiting.c.place <= most)
    return query.order_by(waiting.c.place, table.created_us)
