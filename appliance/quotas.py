"""How much a tenant may keep: bytes of files, chunks of them in vector stores, and objects of all kinds.

Room is held before something is made, and until it is there, so that what comes to one server at the same time never
exceeds a quota together; other replicas do not see it, and responses look for room without holding it. Bytes that are
announced count before they come, and all once they are there, before they are kept.

Chunks are known only while a file is indexed. The file's row says how many it holds before they are written, so that
rows tell the truth after a crash too, and files that are indexed at the same time see each other's. One worker never
exceeds the quota; each further one, on another machine, by one group of chunks (``indexing.WRITE_CHUNKS``) at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Select, func, select

from appliance.config import Config, LimitsConfig, TenantConfig
from appliance.errors import IngestionError, QuotaExceeded
from appliance.storage import store_files
from appliance.storage.database import Database
from appliance.storage.jobs import Work
from appliance.storage.tables import File, VectorStore
from appliance.storage.tables.batches import Batch
from appliance.storage.tables.completions import StoredCompletion
from appliance.storage.tables.responses import Conversation, ConversationItem, StoredResponse
from appliance.storage.tables.uploads import PendingUpload, UploadPart
from appliance.storage.tenancy import TenantSession

_OBJECTS = (
    *(
        select(func.count()).select_from(table)
        for table in (File, VectorStore, StoredResponse, StoredCompletion, Conversation, ConversationItem, Batch)
    ),
    select(func.count()).select_from(PendingUpload).where(PendingUpload.status == "pending"),
)
_BYTES = tuple(select(func.sum(table.bytes)) for table in (File, UploadPart))


@dataclass
class _Held:
    """What is being made for one tenant now. The lock is held while somebody looks and takes."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    objects: int = 0
    size: int = 0


@dataclass(frozen=True)
class Quotas:
    """What each tenant may keep."""

    database: Database
    limits: LimitsConfig
    tenants: Mapping[str, TenantConfig] = field(default_factory=dict)
    _held: dict[str, _Held] = field(default_factory=dict)

    @classmethod
    def of(cls, config: Config, database: Database) -> Quotas:
        """As the configuration has it."""
        return cls(database, config.limits, config.auth.tenants)

    @asynccontextmanager
    async def reserving(self, tenant: str) -> AsyncIterator[Reservation]:
        """Around the making of something: what is reserved inside counts for others until it is there, or given up."""
        held = self._of(tenant)
        reserved = Reservation(self, tenant, held)
        try:
            yield reserved
        finally:
            held.objects -= reserved.objects
            held.size -= reserved.size

    async def check(self, tenant: str, *, new_objects: int = 1) -> None:
        """Look whether there is room for so many objects more. Raises QuotaExceeded."""
        async with self.reserving(tenant) as reserved:
            await reserved.hold(objects=new_objects)

    async def look(self, tenant: str, objects: int, size: int) -> None:
        """Compare with what is kept: so many objects more, and bytes if there are any. Raises QuotaExceeded."""
        max_bytes, max_objects = self._most(tenant)
        if not size:
            max_bytes = None
        if max_bytes is None and max_objects is None:
            return
        async with self.database.tenant(tenant, write=False) as session:
            if max_objects is not None and await _sum(session, _OBJECTS) + objects > max_objects:
                raise QuotaExceeded(
                    f"your tenant would keep more than {max_objects} objects (max_stored_objects); delete some"
                )
            if max_bytes is not None and await _sum(session, _BYTES) + size > max_bytes:
                raise QuotaExceeded(
                    f"your tenant would keep more than {max_bytes} bytes of files (max_stored_bytes); delete some"
                )

    async def check_chunks(self, tenant: str, store_id: str | None, file_ids: Iterable[str]) -> None:
        """Look whether files may be put into a vector store: not while the tenant is full, unless they are in it.

        Raises QuotaExceeded.
        """
        most = self._most_chunks(tenant)
        if most is None:
            return
        async with self.database.tenant(tenant, write=False) as session:
            if await store_files.chunks_of(session, tenant) < most:
                return
            for file_id in file_ids:
                if store_id is None or await store_files.find(session, store_id, file_id) is None:
                    raise QuotaExceeded(_too_many_chunks(most))

    async def hold_chunks(self, work: Work, chunks: int) -> None:
        """Note that a file in a vector store holds so many chunks; call it before they are written.

        A second collection takes the place of the first, so it counts nothing until then.

        Raises:
            IngestionError: its tenant would keep too many.
        """
        most = self._most_chunks(work.tenant)
        if most is None or work.is_rebuild:
            return
        # PostgreSQL would let two files look at once, and both find room.
        async with self._of(work.tenant).lock, self.database.session() as session:
            if await store_files.hold_chunks(session, work, chunks) > most:
                raise IngestionError(f"{_too_many_chunks(most)}, then attach this one again")

    def _of(self, tenant: str) -> _Held:
        return self._held.setdefault(tenant, _Held())

    def _most(self, tenant: str) -> tuple[int | None, int | None]:
        own = self.tenants.get(tenant, TenantConfig())
        return (
            self.limits.max_stored_bytes if own.max_stored_bytes is None else own.max_stored_bytes,
            self.limits.max_stored_objects if own.max_stored_objects is None else own.max_stored_objects,
        )

    def _most_chunks(self, tenant: str) -> int | None:
        own = self.tenants.get(tenant, TenantConfig())
        return self.limits.max_stored_chunks if own.max_stored_chunks is None else own.max_stored_chunks


@dataclass
class Reservation:
    """What one request makes: objects, and bytes of a file."""

    _quotas: Quotas
    _tenant: str
    _held: _Held
    objects: int = 0
    size: int = 0

    async def hold(self, *, objects: int = 0, size: int = 0) -> None:
        """Have room for so many in all; what is held already counts towards it. Raises QuotaExceeded."""
        more, larger = max(0, objects - self.objects), max(0, size - self.size)
        held = self._held
        async with held.lock:
            # What others hold is read first: whatever they finish meanwhile is counted twice, and nothing never.
            await self._quotas.look(self._tenant, held.objects + more, held.size + larger if size else 0)
            held.objects += more
            held.size += larger
            self.objects += more
            self.size += larger


def _too_many_chunks(most: int) -> str:
    return f"your tenant would keep more than {most} chunks (max_stored_chunks); take files out of vector stores"


async def _sum(session: TenantSession, parts: Iterable[Select[Any]]) -> int:
    return sum([await session.scalar(part) or 0 for part in parts])
