"""What a search asks of the database: one statement before the vectors are searched, and one after.

Every search runs them, so they are built once; what differs are their parameters.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import BindParameter, bindparam, func, or_, select

from appliance.storage import stores
from appliance.storage.ids import now
from appliance.storage.tables import File, StoreFile, VectorStore
from appliance.storage.tenancy import TenantSession, shared_with

_STORE_IDS: BindParameter[str] = bindparam("store_ids", expanding=True)
_FILE_IDS: BindParameter[str] = bindparam("file_ids", expanding=True)
_READERS: BindParameter[str] = bindparam("readers", expanding=True)
_NOW: BindParameter[int] = bindparam("now")
_HIDDEN = (
    select(func.coalesce(func.sum(StoreFile.chunks), 0))
    .where(StoreFile.store_id == VectorStore.id, StoreFile.public.is_(False), ~shared_with(_READERS))
    .scalar_subquery()
)
_SEARCHED = select(VectorStore, _HIDDEN).where(VectorStore.id.in_(_STORE_IDS))
# The table, not the entity: who may see a file in this store may, whatever another one that holds it says.
_FILES = File.__table__
_NAMED = (
    select(StoreFile.store_id, StoreFile.file_id, _FILES.c.filename)
    .join(_FILES, _FILES.c.id == StoreFile.file_id)
    .where(StoreFile.status == "completed", StoreFile.removing.is_(False))
    .where(StoreFile.store_id.in_(_STORE_IDS), StoreFile.file_id.in_(_FILE_IDS))
    .where(or_(_FILES.c.expires_at.is_(None), _FILES.c.expires_at > _NOW))
)


async def searched(
    session: TenantSession, store_ids: Collection[str], readers: Collection[str]
) -> tuple[list[VectorStore], int]:
    """The stores, and how many chunks of restricted files in them nobody with these reader terms may see.

    Costs about a microsecond for each restricted file. Raises as ``stores.get_usable``.
    """
    given = {"store_ids": list(store_ids), "readers": list(readers)}
    found = {store.id: (store, hidden) for store, hidden in await session.execute(_SEARCHED, given)}
    rows = [stores.usable(found[store_id][0] if store_id in found else None, store_id) for store_id in store_ids]
    return rows, sum(int(hidden) for _, hidden in found.values())


async def filenames(
    session: TenantSession, store_ids: Collection[str], file_ids: Collection[str]
) -> dict[tuple[str, str], str]:
    """File names by store and file id; only of files that are whole, have not expired and are not being removed."""
    given = {"store_ids": list(store_ids), "file_ids": list(file_ids), "now": now()}
    found = await session.execute(_NAMED, given)
    return {(store_id, file_id): name for store_id, file_id, name in found}
