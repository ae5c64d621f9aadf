"""The audit log for exporters: entries in order, from where the last one stopped, also over restarts and replicas."""

from __future__ import annotations

import secrets

from appliance.storage import audit
from appliance.storage.audit import AuditQuery, AuditRecord
from appliance.storage.database import Database

LEASE_SECONDS = 60
"""How long one replica may take for a batch before another takes over."""


class AuditFeed:
    """What one exporter reads. Of several replicas with an exporter of this name one is served, the others wait.

    An entry comes again unless it was told ``sent``; so each is exported at least once.
    """

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        self._name = name
        self._owner = secrets.token_hex(8)
        self._seen = -1
        """The log's end when nothing was left to send: while it stays there, nothing is written."""

    async def next(self, limit: int) -> list[AuditRecord]:
        """The next entries; none while there are none, or while another replica exports. Raises Unavailable."""
        async with self._database.session(write=False) as session:
            end = (await audit.head(session)).seq
        if end == self._seen:
            return []
        async with self._database.session() as session:
            sent = await audit.claim_export(session, self._name, self._owner, LEASE_SECONDS)
        if sent is None:
            return []
        async with self._database.session(write=False) as session:
            found = await audit.page(session, AuditQuery(), after=sent, limit=limit)
        if not found:
            self._seen = end
        return found

    async def sent(self, record: AuditRecord) -> None:
        """This entry and all before it need not come again. Raises Unavailable."""
        async with self._database.session() as session:
            await audit.advance_export(session, self._name, self._owner, record.seq)

    async def release(self) -> None:
        """Let another replica go on at once. Raises Unavailable."""
        async with self._database.session() as session:
            await audit.release_export(session, self._name, self._owner)
