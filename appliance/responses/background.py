"""Works on background responses.

One whose holder died is begun again from the start, ``MAX_ATTEMPTS`` times at most; nothing of an unfinished answer
was ever shown.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from appliance.errors import ApplianceError
from appliance.http.errors import as_request_error
from appliance.leases import LeasedWork
from appliance.responses.output import ResponseBuilder
from appliance.responses.request import ResponsesRequest
from appliance.responses.service import Responses, unheard
from appliance.storage import responses
from appliance.storage.database import Database
from appliance.storage.tables.responses import StoredResponse
from appliance.types import stored_principal

log = logging.getLogger("appliance.responses")
CONCURRENT = 16


class BackgroundResponses(LeasedWork[StoredResponse]):
    """Runs queued responses of this database."""

    def __init__(self, service: Responses, database: Database) -> None:
        super().__init__(database, CONCURRENT)
        self._service = service

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
        request = msgspec.convert(row.request, ResponsesRequest)
        principal = stored_principal(row.principal)
        builder = ResponseBuilder({**row.body, "output": []})
        try:
            if row.attempts > responses.MAX_ATTEMPTS:
                raise ApplianceError("the server stopped again and again while it worked on this response")
            prepared = await self._service.prepare(request, principal, row.id, row.input)
            builder = prepared.builder
            builder.response |= {"created_at": row.body["created_at"], "status": "in_progress"}
            async with self._database.session() as session:
                await responses.progress(session, row.id, builder.response)
            await self._service.generate(prepared, self._service.call(prepared, row.id, {}, background=True), unheard)
        except Exception as error:  # noqa: BLE001 - whatever it is, the response says that it failed
            log.warning(
                "background response %s failed: %s",
                row.id,
                error if isinstance(error, ApplianceError) else type(error).__name__,
            )
            builder.fail(as_request_error(error))
            async with self._database.session() as session:
                await responses.end(session, row.id, builder.response)
