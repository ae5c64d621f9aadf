"""Works on background responses: a queue in the database, so that a restart or another replica goes on with them.

A response is held by a lease. One whose holder died is begun again from the start, ``MAX_ATTEMPTS`` times at most;
nothing of an unfinished answer was ever shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from functools import partial

import msgspec

from appliance.errors import ApplianceError
from appliance.http.errors import as_request_error
from appliance.responses.output import Json, ResponseBuilder
from appliance.responses.request import ResponsesRequest
from appliance.responses.service import Responses
from appliance.storage import responses
from appliance.storage.database import Database
from appliance.storage.ids import now_us
from appliance.storage.tables.responses import StoredResponse
from appliance.types import Principal

log = logging.getLogger("appliance.responses")
CONCURRENT = 16
_POLL_SECONDS = 2.0
_DAY_US = 86_400 * 1_000_000
_PRUNE_EVERY = 1800
"""Polls between two looks for responses that are too old."""


class BackgroundResponses:
    """Runs queued responses of this database, and forgets old ones."""

    def __init__(self, service: Responses, database: Database, keep_days: int | None) -> None:
        self._service = service
        self._database = database
        self._keep_days = keep_days
        self._running: dict[str, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look for work."""
        self._loop = asyncio.create_task(self._work())

    async def stop(self) -> None:
        """Stop, and let go of what is running: it is begun again by whoever comes next. Idempotent."""
        tasks = [task for task in (self._loop, *self._running.values()) if task is not None]
        ids = list(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._loop = None
        if ids:
            async with self._database.session() as session:
                await responses.let_go(session, ids)

    def wake(self) -> None:
        """There is something new."""
        self._wake.set()

    def cancel(self, response_id: str) -> None:
        """Stop working on one, if it is this process that does; others notice within two seconds."""
        if task := self._running.get(response_id):
            task.cancel()

    async def _work(self) -> None:
        polls = 0
        while True:
            try:
                await self._renew()
                await self._begin()
                if polls % _PRUNE_EVERY == 0:
                    await self._prune()
            except ApplianceError as error:
                log.warning("background responses wait: %s", error)
            polls += 1
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), _POLL_SECONDS)

    async def _renew(self) -> None:
        if not self._running:
            return
        async with self._database.session() as session:
            wanted = await responses.renew(session, list(self._running))
        for response_id in self._running.keys() - wanted:
            self.cancel(response_id)

    async def _begin(self) -> None:
        free = CONCURRENT - len(self._running)
        async with self._database.session(write=False) as session:
            due = free > 0 and await responses.due(session)
        if not due:
            return
        async with self._database.session() as session:
            rows = await responses.claim(session, free)
        for row in rows:
            if row.id not in self._running:
                task = asyncio.create_task(self._run(row))
                self._running[row.id] = task
                task.add_done_callback(partial(self._ended, row.id))

    def _ended(self, response_id: str, _: asyncio.Task[None]) -> None:
        del self._running[response_id]

    async def _prune(self) -> None:
        if self._keep_days is not None:
            async with self._database.session() as session:
                await responses.prune(session, now_us() - self._keep_days * _DAY_US)

    async def _run(self, row: StoredResponse) -> None:
        request = msgspec.convert(row.request, ResponsesRequest)
        principal = msgspec.convert(row.principal, Principal)
        builder = ResponseBuilder({**row.body, "output": []})
        try:
            if row.attempts > responses.MAX_ATTEMPTS:
                raise ApplianceError("the server stopped again and again while it worked on this response")
            prepared = await self._service.prepare(request, principal, row.id, row.input)
            builder = prepared.builder
            builder.response |= {"created_at": row.body["created_at"], "status": "in_progress"}
            async with self._database.session() as session:
                await responses.progress(session, row.id, builder.response)
            await self._service.generate(prepared, self._service.call(prepared, row.id, {}), _unheard)
        except Exception as error:  # noqa: BLE001 - whatever it is, the response says that it failed
            log.warning(
                "background response %s failed: %s",
                row.id,
                error if isinstance(error, ApplianceError) else type(error).__name__,
            )
            builder.fail(as_request_error(error))
            async with self._database.session() as session:
                await responses.end(session, row.id, builder.response)


async def _unheard(events: Iterable[Json]) -> None:
    for _ in events:
        pass
