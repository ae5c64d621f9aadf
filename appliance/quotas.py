"""How much a tenant may keep: bytes of files, chunks of them in vector stores, and objects of all kinds.

What commits never exceeds a quota, whichever process or replica writes it: the transaction that keeps something more
counts once more as its last step, with what it wrote, while no other one of its tenant does (``confirm``). Before that
there is an early look, so that no model is asked and no file read for what has no room (``check``). Who is refused was
over the quota by what was committed at that moment; nothing is held for what others are just making.

Chunks are known only while a file is indexed. The file's row says how many it holds before they are written, so that
rows tell the truth after a crash too, and files that are indexed at the same time see each other's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sqlalchemy import Select
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.config import Config, LimitsConfig, TenantConfig
from appliance.errors import IngestionError, QuotaExceeded
from appliance.storage import kept, store_files
from appliance.storage.database import Database
from appliance.storage.jobs import Work
from appliance.storage.tenancy import TenantSession


class _Quota(NamedTuple):
    """The setting, what is counted, in words and by which statement, and how to have less."""

    setting: str
    noun: str
    counted: Select[int]
    remedy: str = "delete some"

    def exceeded(self, most: int) -> str:
        return f"your tenant would keep more than {most} {self.noun} ({self.setting}); {self.remedy}"


_OBJECTS = _Quota("max_stored_objects", "objects", kept.OBJECTS)
_BYTES = _Quota("max_stored_bytes", "bytes of files", kept.BYTES)
_CHUNKS = _Quota("max_stored_chunks", "chunks", kept.CHUNKS, "take files out of vector stores")
_USUAL = TenantConfig()


@dataclass(frozen=True)
class Quotas:
    """What each tenant may keep."""

    database: Database
    limits: LimitsConfig
    tenants: Mapping[str, TenantConfig] = field(default_factory=dict)

    @classmethod
    def of(cls, config: Config, database: Database) -> Quotas:
        """As the configuration has it."""
        return cls(database, config.limits, config.auth.tenants)

    async def check(self, tenant: str, *, objects: int = 0, size: int = 0) -> None:
        """Look whether there is room for so many objects and bytes more. Nothing is held. Raises QuotaExceeded."""
        wanted = [(quota, more) for quota, more in ((_OBJECTS, objects), (_BYTES, size)) if more]
        if any(self._most(tenant, quota) is not None for quota, _ in wanted):
            async with self.database.tenant(tenant, write=False) as session:
                for quota, more in wanted:
                    await self._compare(session, tenant, quota, more)

    async def confirm(self, session: TenantSession, *, objects: bool = True, size: bool = False) -> None:
        """Count again, with what this transaction wrote: objects, bytes (``size``), or both.

        The last step of every transaction that keeps more of them. Only the commit may come after it: who has the turn
        waits for nobody, so that no two can wait for each other.

        Raises:
            QuotaExceeded: there would be too many; nothing of the transaction is kept.
        """
        grown = [quota for quota, has in ((_OBJECTS, objects), (_BYTES, size)) if has]
        if any(self._most(session.tenant, quota) is not None for quota in grown):
            await session.flush()
            await kept.take_turn(session, session.tenant)
            for quota in grown:
                await self._compare(session, session.tenant, quota)

    async def _compare(self, session: AsyncSession, tenant: str, quota: _Quota, more: int = 0) -> None:
        most = self._most(tenant, quota)
        if most is not None and await kept.number(session, quota.counted, tenant) + more > most:
            raise QuotaExceeded(quota.exceeded(most))

    async def check_chunks(self, tenant: str, store_id: str | None, file_ids: Iterable[str]) -> None:
        """Look whether files may be put into a vector store: not while the tenant is full, unless they are in it.

        Raises QuotaExceeded.
        """
        most = self._most(tenant, _CHUNKS)
        if most is None:
            return
        async with self.database.tenant(tenant, write=False) as session:
            if await kept.number(session, kept.CHUNKS, tenant) < most:
                return
            for file_id in file_ids:
                if store_id is None or await store_files.find(session, store_id, file_id) is None:
                    raise QuotaExceeded(_CHUNKS.exceeded(most))

    async def hold_chunks(self, work: Work, chunks: int) -> None:
        """Note that a file in a vector store holds so many chunks; call it before they are written.

        A second collection takes the place of the first, so it counts nothing until then.

        Raises:
            IngestionError: its tenant would keep too many.
        """
        most = self._most(work.tenant, _CHUNKS)
        if most is None or work.is_rebuild:
            return
        async with self.database.session() as session:
            await store_files.hold_chunks(session, work, chunks)
            await kept.take_turn(session, work.tenant)
            if await kept.number(session, kept.CHUNKS, work.tenant) > most:
                raise IngestionError(f"{_CHUNKS.exceeded(most)}, then attach this one again")

    def _most(self, tenant: str, quota: _Quota) -> int | None:
        own: int | None = getattr(self.tenants.get(tenant, _USUAL), quota.setting)
        usual: int | None = getattr(self.limits, quota.setting)
        return usual if own is None else own
