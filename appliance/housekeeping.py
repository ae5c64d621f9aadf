"""Deletes what is over: expired files, uploads never completed, bytes without a row, old answers."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence

from appliance.errors import ApplianceError
from appliance.knowledge.api import Knowledge
from appliance.knowledge.removal import remove_file
from appliance.knowledge.tasks import tried
from appliance.storage import completions, files, idempotency, responses, uploads
from appliance.storage.blobs import BlobStore
from appliance.storage.database import Database
from appliance.storage.ids import now_us
from appliance.storage.sweep import sweep_blobs
from appliance.types import Scope
from appliance.wording import counted

log = logging.getLogger("appliance")
INTERVAL = 60.0
_FIRST = 5.0
"""Seconds to the first round: a start has enough to do with what callers wait for."""
_EVERY = 60
"""Rounds between two looks at all blobs."""
_GROUP = 100
_DAY_US = 86_400 * 1_000_000


class Housekeeper:
    """Goes round once a minute. Several may do so at once: what one has deleted, the others do not find."""

    def __init__(
        self, database: Database, blobs: BlobStore, knowledge: Knowledge | None, keep_responses_days: int | None
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._knowledge = knowledge
        self._keep_responses_days = keep_responses_days
        self._loop: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to go round."""
        self._loop = asyncio.create_task(self._go_round())

    async def stop(self) -> None:
        """Idempotent."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
            self._loop = None

    async def _go_round(self) -> None:
        await asyncio.sleep(_FIRST)
        for rounds in itertools.count():
            await self.tidy()
            if rounds % _EVERY == 0:
                await tried("tidying up", self._sweep_blobs(), log)
            await asyncio.sleep(INTERVAL)

    async def tidy(self) -> None:
        """One round. A chore that fails is done in the next; the others do not wait for it."""
        for chore in (self._remove_files, self._remove_uploads, self._forget_answers, self._forget_responses):
            await tried("tidying up", chore(), log)

    async def _remove_files(self) -> None:
        """All whose time is over; those that cannot go yet keep no other, and are told of in one line."""
        last = ""
        failed: list[tuple[str, Exception]] = []
        while found := await self._expired(last):
            for tenant, file_id in found:
                try:
                    await remove_file(self._database, self._knowledge, self._blobs, Scope(tenant), file_id)
                except Exception as error:  # noqa: BLE001 - whatever it is, the next round tries again
                    failed.append((file_id, error))
            last = found[-1][1]
        if failed:
            first, why = failed[0]
            trace = None if isinstance(why, ApplianceError) else why
            log.warning("%s cannot go yet; %s: %s", counted(len(failed), "expired file"), first, why, exc_info=trace)

    async def _expired(self, last: str) -> Sequence[tuple[str, str]]:
        async with self._database.session(write=False) as session:
            return await files.expired(session, last, _GROUP)

    async def _remove_uploads(self) -> None:
        async with self._database.session() as session:
            parts = await uploads.sweep(session)
        for part_id in parts:
            await asyncio.to_thread(self._blobs.remove, part_id)

    async def _forget_answers(self) -> None:
        async with self._database.session() as session:
            await idempotency.prune(session)

    async def _forget_responses(self) -> None:
        if self._keep_responses_days is not None:
            async with self._database.session() as session:
                before = now_us() - self._keep_responses_days * _DAY_US
                await responses.prune(session, before)
                await completions.prune(session, before)

    async def _sweep_blobs(self) -> None:
        await sweep_blobs(self._database, self._blobs)
