"""Which vector store of the configuration (``retrieval.vector_store``) holds the vectors of a store."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.storage.tables import VectorStore


def here(backend: str) -> ColumnElement[bool]:
    """Stores that ``backend`` holds, or that hold nothing yet."""
    return or_(VectorStore.backend.is_(None), VectorStore.backend == backend)


def is_here(store: VectorStore, backend: str) -> bool:
    """As ``here``, of one store."""
    return store.backend in (None, backend)


def told(store_id: str, holder: str | None, backend: str) -> str:
    """What whoever asks for a store that is elsewhere is to do."""
    return (
        f"the vectors of vector store {store_id} are in {holder}, and retrieval.vector_store is {backend}; set that "
        f"back, or have its files indexed again: POST /v1/vector_stores/{store_id}/reindex, or for all stores "
        "'appliance stores reconcile --repair'"
    )


async def adopt(session: AsyncSession, backend: str) -> None:
    """Stores from before this was noted are where they were looked for until now."""
    unknown = VectorStore.backend.is_(None), VectorStore.fingerprint.is_not(None)
    await session.execute(update(VectorStore).where(*unknown).values(backend=backend))


async def claim(session: AsyncSession, store_id: str, backend: str) -> None:
    """The store gets its first collection there, unless it has one."""
    mine = VectorStore.id == store_id, VectorStore.backend.is_(None)
    await session.execute(update(VectorStore).where(*mine).values(backend=backend))


async def elsewhere(session: AsyncSession, backend: str) -> Sequence[VectorStore]:
    """Stores of all tenants that another one holds."""
    return (await session.scalars(select(VectorStore).where(~here(backend)).order_by(VectorStore.id))).all()


async def count_elsewhere(session: AsyncSession, backend: str) -> int:
    """How many there are."""
    return int(await session.scalar(select(func.count()).select_from(VectorStore).where(~here(backend))) or 0)
