"""Tells how far the ingestion of a file is, where it takes more than a moment."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from types import TracebackType

from appliance.errors import ApplianceError
from appliance.storage import progress
from appliance.storage.database import Database
from appliance.storage.jobs import Work

INTERVAL = 1.0
"""Seconds between two notes; a file that is done sooner makes none."""


class Progress:
    """Notes its fields in the job's row, every second, while it is entered. That it cannot hurts nobody."""

    def __init__(self, database: Database, work: Work) -> None:
        self.stage = "parsing"
        self.percent = 0
        self.pages = self.characters = 0
        """Of the whole file, as soon as it is parsed."""
        self._database, self._work = database, work
        self._begun = int(time.time())
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Progress:
        if self._work.job_id is not None:
            self._task = asyncio.create_task(self._run(self._work.job_id), name=f"progress {self._work.file_id}")
        return self

    async def __aexit__(
        self, type_: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def indexed(self, end: int) -> None:
        """The text is indexed up to there."""
        self.stage, self.percent = "indexing", 100 * end // max(self.characters, 1)

    async def _run(self, job_id: int) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            with suppress(ApplianceError):
                async with self._database.session() as session:
                    await progress.note(
                        session, job_id, stage=self.stage, percent=self.percent, pages=self.pages, begun=self._begun
                    )
