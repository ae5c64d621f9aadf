"""Rows of vector stores. In a tenant's session another tenant's id is as unknown as none at all."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import delete, exists, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.errors import Conflict, NotFound
from appliance.storage import paging
from appliance.storage.ids import new_id, now, now_us
from appliance.storage.placing import here
from appliance.storage.tables import StoreFile, VectorStore
from appliance.storage.tables.documents import DAY_SECONDS
from appliance.storage.tenancy import TenantSession

_PREFIX = "vs_"
_TOUCH_SECONDS = 60
"""A search moves ``last_active_at`` at most this often: it must not cost a disk write each."""


@dataclass
class Counts:
    """What a store holds, counted from its rows."""

    in_progress: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    usage_bytes: int = 0

    @property
    def total(self) -> int:
        """All files."""
        return self.in_progress + self.completed + self.failed + self.cancelled


def new(
    name: str,
    embedder: str | None,
    *,
    description: str | None = None,
    metadata: Mapping[str, str] | None = None,
    expires_days: int | None = None,
) -> VectorStore:
    """A row for a new store, which the model named ``embedder`` will fill; its tenant is the session's."""
    return VectorStore(
        id=new_id(_PREFIX),
        name=name,
        description=description,
        labels=dict(metadata or {}),
        expires_days=expires_days,
        last_active_at=now(),
        embedder=embedder,
        removing=False,
        created_us=now_us(),
    )


async def get(session: TenantSession, store_id: str, *, lock: bool = False) -> VectorStore:
    """One store. ``lock`` keeps others from changing or locking it until the transaction ends. Raises NotFound."""
    return _there(await session.get(VectorStore, store_id, with_for_update=lock or None), store_id)


def _there(found: VectorStore | None, store_id: str) -> VectorStore:
    if found is None:
        raise NotFound(
            f"no vector store has the id {store_id[:64]!r}; GET /v1/vector_stores lists them", param="vector_store_id"
        )
    return found


async def get_usable(session: TenantSession, store_id: str, *, lock: bool = False) -> VectorStore:
    """One store that takes files and answers searches. Raises NotFound; Conflict if it expired or is being deleted."""
    return usable(await get(session, store_id, lock=lock), store_id)


def usable(found: VectorStore | None, store_id: str) -> VectorStore:
    """What was found of that id, if it takes files and answers searches. Raises as ``get_usable``."""
    store = _there(found, store_id)
    if store.removing:
        raise Conflict(f"vector store {store.id} is being deleted; repeat the DELETE if it does not go")
    if has_expired(store):
        raise Conflict(f"vector store {store.id} has expired; make a new one", code="vector_store_expired")
    return store


def has_expired(store: VectorStore) -> bool:
    """Whether it has not been used for as long as it was made to last: nothing brings it back."""
    return store.expires_at is not None and store.expires_at <= now()


async def by_name(session: TenantSession, name: str) -> VectorStore | None:
    """The oldest store of that name."""
    query = select(VectorStore).where(VectorStore.name == name, VectorStore.removing.is_(False))
    return await session.scalar(query.order_by(VectorStore.created_us).limit(1))


async def reached(session: TenantSession, references: Collection[str]) -> frozenset[str]:
    """Those of these ids and names that a store within reach has."""
    query = select(VectorStore).where(
        or_(VectorStore.id.in_(references), VectorStore.name.in_(references)), VectorStore.removing.is_(False)
    )
    found = (await session.scalars(query)).all()
    return frozenset({store.id for store in found} | {store.name for store in found})


async def page(session: TenantSession, wanted: paging.PageRequest) -> tuple[Sequence[VectorStore], bool]:
    """A page of the tenant's stores, and whether more follow."""
    return await paging.fetch(session, select(VectorStore), (VectorStore.created_us, VectorStore.id), wanted)


async def counts(session: TenantSession, store_ids: Collection[str]) -> Mapping[str, Counts]:
    """File counts and bytes of several stores, from the rows themselves, so that they cannot drift."""
    found = {store_id: Counts() for store_id in store_ids}
    query = (
        select(StoreFile.store_id, StoreFile.status, func.count(), func.sum(StoreFile.usage_bytes))
        .where(StoreFile.store_id.in_(found))
        .group_by(StoreFile.store_id, StoreFile.status)
    )
    for store_id, status, number, used in await session.execute(query):
        setattr(found[store_id], status, number)
        found[store_id].usage_bytes += int(used or 0)
    return found


async def touch(session: AsyncSession, store_ids: Collection[str]) -> None:
    """Note that stores were used."""
    await session.execute(
        update(VectorStore)
        .where(VectorStore.id.in_(store_ids), VectorStore.last_active_at < now())
        .values(last_active_at=now())
    )


def is_stale(store: VectorStore) -> bool:
    """Whether ``touch`` is due."""
    return store.last_active_at < now() - _TOUCH_SECONDS


async def claim_embedder(
    session: AsyncSession, store_id: str, *, embedder: str, fingerprint: str, dimensions: int
) -> None:
    """Record what embeds a store, unless something is recorded already."""
    await session.execute(
        update(VectorStore)
        .where(VectorStore.id == store_id, VectorStore.fingerprint.is_(None))
        .values(embedder=embedder, fingerprint=fingerprint, dimensions=dimensions)
    )


async def begin_removal(session: AsyncSession, store_id: str) -> None:
    """From now on nothing is added to the store or found in it."""
    await session.execute(update(VectorStore).where(VectorStore.id == store_id).values(removing=True))


async def remove(session: AsyncSession, store_id: str) -> None:
    """Delete a store's row, and with it those of its files, batches and jobs."""
    await session.execute(delete(VectorStore).where(VectorStore.id == store_id))


async def tenant_of(session: AsyncSession, store_id: str) -> str:
    """Whose a store is, for the worker. Raises NotFound."""
    found = await session.scalar(select(VectorStore.tenant).where(VectorStore.id == store_id))
    if found is None:
        raise NotFound(f"no vector store has the id {store_id[:64]!r}", param="vector_store_id")
    return found


async def expired(session: AsyncSession, backend: str) -> Sequence[str]:
    """Ids of stores that have expired and still hold something, which ``backend`` does."""
    filled = or_(VectorStore.fingerprint.is_not(None), exists().where(StoreFile.store_id == VectorStore.id))
    over = VectorStore.last_active_at + VectorStore.expires_days * DAY_SECONDS <= now()
    query = select(VectorStore.id).where(over, VectorStore.removing.is_(False), filled, here(backend))
    return (await session.scalars(query)).all()


async def forget_embedder(session: AsyncSession, store_id: str) -> None:
    """The store holds no vectors any more."""
    values = {"fingerprint": None, "dimensions": None, "backend": None}
    await session.execute(update(VectorStore).where(VectorStore.id == store_id).values(**values))


async def unserved(session: AsyncSession, fingerprints: Collection[str]) -> int:
    """How many stores hold vectors that none of these embedders made."""
    of_others = VectorStore.fingerprint.is_not(None), VectorStore.fingerprint.not_in(fingerprints)
    query = select(func.count()).select_from(VectorStore).where(*of_others, VectorStore.removing.is_(False))
    return int(await session.scalar(query) or 0)


async def every(session: AsyncSession) -> Sequence[VectorStore]:
    """The stores of all tenants."""
    return (await session.scalars(select(VectorStore))).all()


def is_ours(name: str) -> bool:
    """Whether this could be a store's id, or the name of a collection of one."""
    return name.startswith(_PREFIX)


def store_of(collection: str) -> str:
    """The id of the store that a collection is of, by its name."""
    return _PREFIX + collection.removeprefix(_PREFIX).partition("_")[0]


async def being_removed(session: AsyncSession, backend: str) -> Sequence[str]:
    """Ids of stores whose removal was begun, which ``backend`` holds."""
    query = select(VectorStore.id).where(VectorStore.removing.is_(True), here(backend))
    return (await session.scalars(query)).all()
