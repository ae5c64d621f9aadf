"""Works on background responses.

One whose holder died is begun again from the start, ``MAX_ATTEMPTS`` times at most, if nothing of its answer was ever
shown. One that had begun to stream fails instead: what clients saw cannot be taken back.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.errors import RequestError
from appliance.http.errors import as_request_error, log_unexpected
from appliance.leases import LeasedWork
from appliance.responses.events import EventLog, News
from appliance.responses.output import Json, ResponseBuilder
from appliance.responses.request import QueuedRequest
from appliance.responses.service import Given, Prepared, Responses, unheard
from appliance.storage import response_events, responses
from appliance.storage.database import Database
from appliance.storage.response_events import NotWanted
from appliance.storage.tables.responses import StoredResponse
from appliance.types import stored_principal

log = logging.getLogger("appliance.responses")
CONCURRENT = 16
_BEGUN = 2
"""The sequence number of the first event that work on a response makes; ``created`` and ``queued`` come before."""


class BackgroundResponses(LeasedWork[StoredResponse]):
    """Runs queued responses of this database."""

    def __init__(self, service: Responses, database: Database) -> None:
        super().__init__(database, CONCURRENT)
        self._service = service
        self.news = News()

    def cancel(self, row_id: str) -> None:
        """See ``LeasedWork``; listeners learn of it at once."""
        super().cancel(row_id)
        self.news.tell(row_id)

    async def due(self, session: AsyncSession) -> bool:
        """See ``LeasedWork``."""
        return await responses.due(session)

    async def claim(self, session: AsyncSession, limit: int) -> Sequence[StoredResponse]:
        """See ``LeasedWork``."""
        return await responses.claim(session, limit)

    async def renew(self, session: AsyncSession, ids: Sequence[str]) -> set[str]:
        """See ``LeasedWork``."""
        return await responses.renew(session, ids)

    async def let_go(self, session: AsyncSession, ids: Sequence[str]) -> None:
        """See ``LeasedWork``."""
        await responses.let_go(session, ids)

    async def run(self, row: StoredResponse) -> None:
        """Answer one."""
        async with self._database.session(write=False) as session:
            last = await response_events.last(session, row.id)
        builder = ResponseBuilder({**row.body, "output": []})
        async with AsyncExitStack() as held:
            events = None
            if last is not None:
                builder.number = last + 1
                events = await held.enter_async_context(EventLog(self._database, row, last + 1, self.news))
            try:
                await self._answer_or_fail(row, builder, events)
            except NotWanted as error:
                log.info("%s; it is left", error)
        self.news.tell(row.id)

    async def _answer_or_fail(self, row: StoredResponse, builder: ResponseBuilder, events: EventLog | None) -> None:
        try:
            await self._answer(row, builder, events)
        except NotWanted:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the response says that it failed
            if isinstance(error, RequestError):
                log.warning("background response %s failed: %s", row.id, error)
            log_unexpected(error, row.id)
            ending = [builder.fail(as_request_error(error))]
            await self._end(row.tenant, builder.response, ending, events)

    async def _answer(self, row: StoredResponse, builder: ResponseBuilder, events: EventLog | None) -> None:
        if builder.number > _BEGUN:
            raise RequestError("the server stopped while it streamed this response; ask again")
        if row.attempts > responses.MAX_ATTEMPTS:
            raise RequestError("the server stopped again and again while it worked on this response")
        request, principal = msgspec.convert(row.request, QueuedRequest), stored_principal(row.principal)
        prepared = await self._service.prepare(request, principal, row.id, Given(row.input, request.template))
        builder.include = prepared.builder.include
        builder.response = prepared.response | {"created_at": row.body["created_at"], "status": "in_progress"}
        prepared = replace(prepared, builder=builder)
        async with self._database.session() as session:
            await responses.progress(session, row.id, builder.response)
        call = self._service.call(prepared, row.id, {}, background=True)
        send = events.send if events else unheard
        await self._service.generate(prepared, call, send, keep=partial(self._keep, events))

    async def _keep(self, events: EventLog | None, prepared: Prepared, ending: list[Json]) -> None:
        await self._end(prepared.principal.tenant, prepared.response, ending, events, prepared)

    async def _end(
        self,
        tenant: str,
        response: Json,
        ending: list[Json],
        events: EventLog | None,
        prepared: Prepared | None = None,
    ) -> None:
        """Keep how it ended, its last events, and what it adds to its conversation, in one transaction."""
        if events is not None:
            await events.close()
        async with self._database.tenant(tenant) as session:
            if events is not None:
                await events.finish(session, ending)
            kept = await responses.end(session, response["id"], response)
            if kept and prepared is not None and prepared.request.conversation_id is not None:
                await self._service.converse(session, prepared)
                await self._service.quotas.confirm(session)
