"""How much a tenant may keep: bytes of files, and objects of all kinds.

Looked at before something is made. What comes at the same time is not known to each other, so a quota may be exceeded
by that much. Bytes that are announced count before they come, and all once they are there, before they are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Select, func, select

from appliance.config import Config, LimitsConfig, TenantConfig
from appliance.errors import QuotaExceeded
from appliance.storage.database import Database
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

    async def check(self, tenant: str, new_bytes: int | None = None, *, new_objects: int = 1) -> None:
        """Look whether there is room for so many objects more, and with ``new_bytes`` for so many bytes of a file.

        Raises QuotaExceeded.
        """
        max_bytes, max_objects = self._most(tenant)
        if new_bytes is None:
            max_bytes = None
        if max_bytes is None and max_objects is None:
            return
        async with self.database.tenant(tenant, write=False) as session:
            if max_objects is not None and await _sum(session, _OBJECTS) + new_objects > max_objects:
                raise QuotaExceeded(
                    f"your tenant would keep more than {max_objects} objects (max_stored_objects); delete some"
                )
            if max_bytes is not None and await _sum(session, _BYTES) + max(1, new_bytes or 0) > max_bytes:
                raise QuotaExceeded(
                    f"your tenant would keep more than {max_bytes} bytes of files (max_stored_bytes); delete some"
                )

    def _most(self, tenant: str) -> tuple[int | None, int | None]:
        own = self.tenants.get(tenant, TenantConfig())
        return (
            self.limits.max_stored_bytes if own.max_stored_bytes is None else own.max_stored_bytes,
            self.limits.max_stored_objects if own.max_stored_objects is None else own.max_stored_objects,
        )


async def _sum(session: TenantSession, parts: Iterable[Select[Any]]) -> int:
    return sum([await session.scalar(part) or 0 for part in parts])
