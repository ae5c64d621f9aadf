"""Makes responses: gathers what was said before, has the pipeline answer, and keeps the outcome."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from appliance.config import LimitsConfig, PromptConfig
from appliance.errors import BadRequest, NotFound
from appliance.http import validate
from appliance.models.inputs import check_parts
from appliance.quotas import Quotas
from appliance.responses.events import encoded
from appliance.responses.items import parts_of, read_input
from appliance.responses.output import Json, ResponseBuilder, new_response
from appliance.responses.prompts import fill
from appliance.responses.request import OWN_NAMES, ResponsesRequest, chat_of, check
from appliance.storage import conversations, response_events, responses
from appliance.storage.database import Database
from appliance.storage.ids import new_id, now_us
from appliance.storage.tables.responses import StoredResponse
from appliance.storage.tenancy import TenantSession
from appliance.types import Call, Principal
from appliance.wire import ChatRequest, Message

if TYPE_CHECKING:
    from appliance.models.registry import Models
    from appliance.pipeline import Pipeline

PATH = "/v1/responses"
_encode = msgspec.json.Encoder().encode
Send = Callable[[Iterable[Json]], Awaitable[None]]
"""Takes events as they come about; must go through all of them."""
Keep = Callable[["Prepared", list[Json]], Awaitable[None]]
"""Keeps the outcome; gets the last events too, which are not sent yet."""


async def unheard(events: Iterable[Json]) -> None:
    """A ``Send`` for answers that nobody streams: the events only come about."""
    for _ in events:
        pass


class Given(NamedTuple):
    """What a request says, read once: its template may be another by the time that the answer is made."""

    input: list[Json]
    """The items, and references to items of what it goes on from."""
    instructions: Sequence[Message] = ()
    """Of its template."""


@dataclass(frozen=True)
class Prepared:
    """A request that was checked, with everything that it builds on."""

    request: ResponsesRequest
    principal: Principal
    input: list[Json]
    chat: ChatRequest
    """Of the new input alone, and not checked, where it goes on from something."""
    builder: ResponseBuilder
    extent: int | None
    """How long what it goes on from is, in characters; ``None``: it goes on from nothing."""
    given: Given

    @property
    def response(self) -> Json:
        """The response object as it stands."""
        return self.builder.response


@dataclass(frozen=True)
class Responses:
    """The service behind ``/v1/responses``."""

    pipeline: Pipeline
    models: Models
    database: Database
    limits: LimitsConfig
    quotas: Quotas
    prompts: Sequence[PromptConfig] = ()

    async def prepare(
        self,
        request: ResponsesRequest,
        principal: Principal,
        response_id: str | None = None,
        given: Given | None = None,
    ) -> Prepared:
        """Check a request; what it goes on from is read by ``generate``. ``given``: what it says, if read before.

        Raises:
            BadRequest: naming the field. NotFound: what it continues is not there for this caller.
            Forbidden: the caller may not use the model, go on from what is stored, or store the answer.
            QuotaExceeded: there is no room to store it.
        """
        check(request)
        model = self.models.resolve_chat(request.model, principal)
        await self._authorize(request, principal)
        given = given or self._read(request)
        check_parts(model.name, model.inputs, parts_of(given.input))
        own = [item for item in given.input if item["type"] != "item_reference"]
        if response_id is None:
            spoken = 0 if request.conversation_id is None else len(own) + 1  # an answer is one item at least
            await self.quotas.check(principal.tenant, objects=int(request.stored) + spoken)
        extent = await self._extent(request, principal)
        whole = extent is None
        chat = self._chat(request, given) if whole else self._capped(chat_of(request, own, given.instructions))
        status = "queued" if request.background else "in_progress"
        builder = ResponseBuilder(new_response(request, response_id or new_id("resp_"), status), request.include or ())
        return Prepared(request, principal, own, chat, builder, extent, given)

    def _chat(self, request: ResponsesRequest, given: Given, before: Sequence[Json] = ()) -> ChatRequest:
        """The whole chat, checked. Raises BadRequest, NotFound."""
        items = _resolved(before, given.input)
        if not items:
            raise BadRequest("input must hold at least one item", param="input")
        if len(items) > self.limits.max_messages:
            raise BadRequest(
                f"input and what it continues hold more than {self.limits.max_messages} items (limits.max_messages)",
                param="input",
            )
        chat = chat_of(request, items, given.instructions)
        with validate.in_words_of(ResponsesRequest, OWN_NAMES):
            validate.check_chat(chat, self.limits)
        return self._capped(chat)

    def _read(self, request: ResponsesRequest) -> Given:
        """The template's items, then its own; ``prompt`` names its version from now on. Raises BadRequest, NotFound."""
        filled = fill(request.prompt, self.prompts)
        request.prompt = filled.reference
        return Given([*read_input(filled.input), *read_input(request.input)], filled.instructions)

    def _capped(self, chat: ChatRequest) -> ChatRequest:
        validate.cap_tokens(chat, self.limits)
        return chat

    async def _authorize(self, request: ResponsesRequest, principal: Principal) -> None:
        """Before anything is read or kept. An answer that nobody asked to keep is not, where the caller may not."""
        authorize = self.pipeline.authorize
        await authorize(principal, "models.use", request.model)
        if request.previous_response_id is not None or request.conversation_id is not None:
            await authorize(principal, "responses.read", PATH)
        if request.store or request.background or request.conversation_id is not None:
            await authorize(principal, "responses.write", PATH)
        elif request.stored:
            request.store = await self.pipeline.may(principal, "responses.write", PATH)

    async def _extent(self, request: ResponsesRequest, principal: Principal) -> int | None:
        """How long what it goes on from is, in characters, without reading it; ``None``: it goes on from nothing."""
        if request.previous_response_id is None and request.conversation_id is None:
            return None
        async with self.database.tenant(principal.tenant, write=False) as session:
            if request.previous_response_id is not None:
                return await responses.extent(session, request.previous_response_id, principal.user)
            return await conversations.extent(session, request.conversation_id or "", principal.user)

    async def _complete(self, prepared: Prepared, call: Call) -> Call:
        """The call with what was said before, which is read once it is admitted."""
        before = await self._before(prepared.request, prepared.principal)
        return msgspec.structs.replace(call, request=self._chat(prepared.request, prepared.given, before))

    async def _before(self, request: ResponsesRequest, principal: Principal) -> list[Json]:
        async with self.database.tenant(principal.tenant, write=False) as session:
            if request.previous_response_id is not None:
                return await responses.turns(session, request.previous_response_id, principal.user)
            found = await conversations.get(session, request.conversation_id or "", principal.user)
            return await conversations.items(session, found.id)

    async def generate(
        self,
        prepared: Prepared,
        call: Call,
        send: Send,
        add_headers: Callable[[Mapping[str, str]], None] | None = None,
        keep: Keep | None = None,
    ) -> None:
        """Have it answered; the last event is sent when everything is kept and given back.

        ``add_headers`` gets what admitters want the reply to have, before the first event. ``keep`` keeps the outcome
        elsewhere than among the finished responses.

        Raises:
            RequestError: before the first event or in between; then nothing was kept.
        """
        builder = prepared.builder
        with validate.in_words_of(ResponsesRequest, OWN_NAMES):
            await self._answer(prepared, call, send, add_headers)
        number, ending = builder.number, list(builder.finish())
        try:
            await (keep or self._keep)(prepared, ending)
        except BaseException:
            builder.number = number  # nobody gets to see that ending, and numbers leave no gap
            raise
        await send(ending)

    async def _answer(
        self, prepared: Prepared, call: Call, send: Send, add_headers: Callable[[Mapping[str, str]], None] | None
    ) -> None:
        builder = prepared.builder
        complete = None if prepared.extent is None else partial(self._complete, prepared)
        async with self.pipeline.answer(call, PATH, complete) as answer:
            if add_headers is not None:
                add_headers(answer.headers)
            await send(builder.begin(answer.call.passages, answer.call.queries, scores=answer.scores))
            async for chunk in answer:
                await send(builder.feed(chunk.body))

    def call(
        self, prepared: Prepared, request_id: str, headers: Mapping[str, str], *, background: bool = False
    ) -> Call:
        """The call that answers it; ``background``: nobody waits for it."""
        return Call(
            id=request_id,
            operation="chat",
            model=prepared.request.model,
            request=prepared.chat,
            principal=prepared.principal,
            stream=bool(prepared.request.stream),
            background=background,
            headers=headers,
            unread=prepared.extent or 0,
        )

    async def enqueue(self, prepared: Prepared) -> None:
        """Keep a background request, to be worked on by whoever is free.

        Raises:
            RateLimited: there are too many. QuotaExceeded: others took the room meanwhile.
            NotFound: it refers to an item that is not in what it goes on from.
        """
        if len(prepared.input) < len(prepared.given.input):  # references are not kept, so they are looked at now
            _resolved(await self._before(prepared.request, prepared.principal), prepared.given.input)
        row = _row(prepared)
        template = msgspec.to_builtins(prepared.given.instructions)
        row.request = {**msgspec.to_builtins(prepared.request), "template": template}
        row.principal = msgspec.to_builtins(prepared.principal)
        async with self.database.tenant(prepared.principal.tenant) as session:
            await responses.enqueue(session, row)
            if prepared.request.stream:
                response_events.add(session, row.id, 0, [encoded(event) for event in prepared.builder.queued()])
            await self.quotas.confirm(session)

    async def _keep(self, prepared: Prepared, _: list[Json]) -> None:
        """Store the response and add to its conversation, in one transaction. Raises QuotaExceeded."""
        request = prepared.request
        if request.stored or request.conversation_id:
            async with self.database.tenant(prepared.principal.tenant) as session:
                if request.stored:
                    session.add(_row(prepared))
                await self.converse(session, prepared)
                await self.quotas.confirm(session)

    async def converse(self, session: TenantSession, prepared: Prepared) -> None:
        """Add what was asked and answered to its conversation, if it belongs to one."""
        if prepared.request.conversation_id is not None:
            found = await conversations.get(
                session, prepared.request.conversation_id, prepared.principal.user, lock=True
            )
            await conversations.append(session, found, [*prepared.input, *prepared.response["output"]])


def _resolved(before: Sequence[Json], new: list[Json]) -> list[Json]:
    """All items in order; references stand for items that came before. Raises NotFound."""
    known = {item["id"]: item for item in before if "id" in item}
    items = list(before)
    for item in new:
        if item["type"] != "item_reference":
            items.append(item)
        elif item["id"] not in known:
            raise NotFound(f"input: no item has the id {item['id'][:64]!r} in what this continues", param="input")
    return items


def _row(prepared: Prepared) -> StoredResponse:
    return StoredResponse(
        id=prepared.response["id"],
        user=prepared.principal.user,
        created_us=now_us(),
        status=prepared.response["status"],
        previous_id=prepared.request.previous_response_id,
        body=prepared.response,
        input=prepared.input,
        context=(prepared.extent or 0) + len(_encode(prepared.input)),
    )
