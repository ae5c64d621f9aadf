"""``/v1/responses``: make, fetch, cancel and delete responses."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from litestar import Response
from litestar.response import Stream
from litestar.types import Scope

from appliance.errors import ApplianceError, BadRequest
from appliance.http import errors, idempotency
from appliance.http.disconnect import ClientGone
from appliance.http.hot import EVENT_STREAM, KeptReply, Reply, Route
from appliance.http.objects import Deleted
from appliance.http.requests import HttpRequest, Page, answer, item_page, plain_session, principal, query_of, runtime
from appliance.http.tokens import CountRoute
from appliance.responses.events import encoded, follow
from appliance.responses.items import read_input
from appliance.responses.output import Json
from appliance.responses.prompts import fill
from appliance.responses.replay import replay
from appliance.responses.request import OWN_NAMES, ResponsesRequest, chat_of
from appliance.responses.service import PATH, Prepared, Responses, unheard
from appliance.storage import response_events, responses
from appliance.storage.tables.responses import StoredResponse
from appliance.types import Call, Principal
from appliance.wire import ChatRequest

if TYPE_CHECKING:
    from appliance.runtime import Runtime

_encode = msgspec.json.Encoder().encode


class ResponsesRoute(Route):
    """``POST /v1/responses``."""

    idempotent = True

    def __init__(self) -> None:
        super().__init__(PATH, ResponsesRequest)

    async def serve(self, scope: Scope, body: bytes, runtime: Runtime, reply: Reply) -> None:
        """Answer at once, as a stream, or with the promise to work on it."""
        request, service = self.decode(body), runtime.responses
        prepared = await service.prepare(request, scope["user"])
        if not request.stored:
            reply.forget()
        if request.background:
            await _enqueue(prepared, runtime)
        elif request.stream:
            await _stream(service, prepared, _call(prepared, scope, runtime), reply)
            return
        else:
            await service.generate(prepared, _call(prepared, scope, runtime), unheard, reply.add_headers)
        if request.stream:
            await _stream_background(prepared.response["id"], scope, runtime, reply)
        else:
            await reply.send_json(_encode(prepared.response))

    async def serve_once(self, key: str, scope: Scope, body: bytes, runtime: Runtime, reply: KeptReply) -> None:
        """A background response is made once, whoever breaks off its stream: the key stands for the response."""
        request = self.decode(body)
        if not (request.background and request.stream):
            await super().serve_once(key, scope, body, runtime, reply)
            return

        async def work() -> idempotency.Outcome:
            prepared = await runtime.responses.prepare(request, scope["user"])
            await _enqueue(prepared, runtime)
            return idempotency.Outcome(_encode(prepared.response))

        made = await self.once(key, scope, body, runtime, work)
        reply.add_headers(made.headers)
        await _stream_background(msgspec.json.decode(made.body)["id"], scope, runtime, reply)
        await reply.finish(reply.outcome)


async def _enqueue(prepared: Prepared, runtime: Runtime) -> None:
    await runtime.responses.enqueue(prepared)
    runtime.background.wake()


def _call(prepared: Prepared, scope: Scope, runtime: Runtime) -> Call:
    state = scope["state"]
    background = state.get("background", False)
    return runtime.responses.call(prepared, state["request_id"], state["headers"], background=background)


async def _stream(service: Responses, prepared: Prepared, call: Call, reply: Reply) -> None:
    """The events; once the first is out, an error is the event ``response.failed``."""

    async def send(events: Iterable[Json]) -> None:
        if not reply.started:
            await reply.start_stream()
        for event in events:
            await reply.send_piece(encoded(event))

    try:
        await service.generate(prepared, call, send, reply.add_headers)
    except ClientGone:
        raise
    except Exception as error:
        if not reply.started:
            raise
        errors.log_unexpected(error, call.id)
        reply.forget()
        await reply.send_piece(encoded(prepared.builder.fail(errors.as_request_error(error))))
    await reply.end_stream(b"")


async def _stream_background(response_id: str, scope: Scope, runtime: Runtime, reply: Reply) -> None:
    """The events as they are written down; a client that leaves can go on with ``GET``, and the work goes on anyway."""
    await reply.start_stream()
    async with aclosing(_followed(runtime, scope["user"], response_id)) as pieces:
        async for piece in pieces:
            await reply.send_piece(piece)
    await reply.end_stream(b"")


async def _followed(
    runtime: Runtime, caller: Principal, response_id: str, seen: int = -1
) -> AsyncGenerator[bytes, None]:
    """The events behind ``seen``. What goes wrong is an event too; its number is the one to go on from."""
    try:
        found = follow(runtime.database, runtime.background.news, caller.tenant, response_id, seen)
        async with aclosing(found) as groups:
            async for events in groups:
                seen += len(events)
                yield b"".join(events)
    except ApplianceError as error:
        errors.log_unexpected(error, response_id)
        shown = errors.as_request_error(error)
        told = {"code": shown.code, "message": str(shown), "param": shown.param, "sequence_number": max(0, seen)}
        yield encoded({"type": "error", **told})


class ResponseQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of one response; what it holds was said when it was made, so ``include`` is not read."""

    stream: bool = False
    starting_after: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None


async def get_response(request: HttpRequest) -> Response[Any]:
    """``GET /v1/responses/{response_id}``, as an object or as the events behind ``starting_after``."""
    wanted = query_of(request, ResponseQuery)
    async with plain_session(request, write=False) as session:
        row = await responses.get(session, request.path_params["response_id"], principal(request).user)
        written = wanted.stream and await response_events.last(session, row.id) is not None
    if not wanted.stream:
        if wanted.starting_after is not None:
            raise BadRequest("starting_after needs stream to be true", param="starting_after")
        return answer(row.body)
    pieces = _again(request, row, wanted.starting_after, written=written)
    return Stream(pieces, media_type=EVENT_STREAM, headers={"cache-control": "no-cache", "x-accel-buffering": "no"})


def _again(
    request: HttpRequest, row: StoredResponse, seen: int | None, *, written: bool
) -> AsyncIterable[bytes] | list[bytes]:
    """The events of a response: as they were written down, or made from what was stored.

    Raises:
        BadRequest: it has no stream to go on with. RateLimited: too many listen to it already.
    """
    if request.method == "HEAD":
        return []
    if written:
        runtime(request).background.news.check_room(row.id)
        return _followed(runtime(request), principal(request), row.id, -1 if seen is None else seen)
    if row.status in responses.UNFINISHED:
        raise BadRequest(
            f"stream: this response was made without it and is {row.status}; ask again without stream", param="stream"
        )
    if seen is not None:
        raise BadRequest(
            "starting_after: only a response of background and stream is gone on with; leave it out to see all again",
            param="starting_after",
        )
    return [encoded(event) for event in replay(row.body)]


async def delete_response(request: HttpRequest) -> Response[bytes]:
    """``DELETE /v1/responses/{response_id}``."""
    response_id: str = request.path_params["response_id"]
    async with plain_session(request) as session:
        await responses.remove(session, response_id, principal(request).user)
    runtime(request).background.cancel(response_id)
    return answer(Deleted(id=response_id, object="response"))


async def cancel_response(request: HttpRequest) -> Response[bytes]:
    """``POST /v1/responses/{response_id}/cancel``: background ones only; again changes nothing."""
    async with plain_session(request) as session:
        row = await responses.get(session, request.path_params["response_id"], principal(request).user, lock=True)
        if not row.body["background"]:
            raise BadRequest(
                "only background responses can be cancelled; close the connection of others", param="response_id"
            )
        if row.status in responses.UNFINISHED:
            row.status = "cancelled"
            row.body = {**row.body, "status": "cancelled"}
            row.request = row.principal = None  # as at every other end
    runtime(request).background.cancel(row.id)
    return answer(row.body)


async def list_input_items(request: HttpRequest) -> Response[bytes]:
    """``GET /v1/responses/{response_id}/input_items``: what the request itself brought, newest first by default."""
    row = await _row(request)
    return answer(item_page(row.input, query_of(request, Page)))


async def _row(request: HttpRequest) -> StoredResponse:
    async with plain_session(request, write=False) as session:
        return await responses.get(session, request.path_params["response_id"], principal(request).user)


class InputTokensRoute(CountRoute):
    """``POST /v1/responses/input_tokens``: of the input alone, without what it continues."""

    def chat_of(self, body: ResponsesRequest, runtime: Runtime) -> ChatRequest:
        """See ``CountRoute``."""
        prompt = fill(body.prompt, runtime.config.prompts)
        items = [*read_input(prompt.input), *read_input(body.input)]
        if not items:
            raise BadRequest("input must hold at least one item", param="input")
        for name in ("previous_response_id", "conversation"):
            if getattr(body, name):
                raise BadRequest("tokens are counted of the input alone; send all of it as input", param=name)
        return chat_of(body, items, prompt.instructions)

    def shown(self, count: int) -> dict[str, Any]:
        """OpenAI's form."""
        return {"object": "response.input_tokens", "input_tokens": count}


RESPONSES_ROUTE = ResponsesRoute()
INPUT_TOKENS_ROUTE = InputTokensRoute("/v1/responses/input_tokens", ResponsesRequest, OWN_NAMES)
