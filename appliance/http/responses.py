"""``/v1/responses``: make, fetch, cancel and delete responses."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from litestar import Response
from litestar.types import Scope

from appliance.errors import BadRequest
from appliance.http import errors, idempotency
from appliance.http.disconnect import ClientGone
from appliance.http.hot import Reply, Route
from appliance.http.objects import Deleted
from appliance.http.requests import HttpRequest, Page, answer, item_page, principal, query_of, runtime
from appliance.http.tokens import CountRoute, counting
from appliance.responses.items import read_input
from appliance.responses.output import Json
from appliance.responses.request import ResponsesRequest, chat_of
from appliance.responses.service import PATH, Prepared, Responses, unheard
from appliance.storage import responses
from appliance.storage.tables.responses import StoredResponse
from appliance.types import Call
from appliance.wire import TokenizeRequest

if TYPE_CHECKING:
    from appliance.runtime import Runtime

_encode = msgspec.json.Encoder().encode


class ResponsesRoute(Route):
    """``POST /v1/responses``."""

    idempotent = True

    def __init__(self) -> None:
        super().__init__(PATH, ResponsesRequest)

    async def serve(self, scope: Scope, body: bytes, runtime: Runtime, reply: Reply) -> None:
        """Answer at once, as a stream, or with the promise to work on it. A stream is not kept for its key."""
        request, key = self.decode(body), scope["state"]["headers"].get(idempotency.HEADER)
        work = partial(self._make, request, scope, runtime, reply)
        if request.stream and not request.background:
            prepared = await runtime.responses.prepare(request, scope["user"])
            await _stream(runtime.responses, prepared, _call(prepared, scope, runtime), reply)
            return
        if key is None:
            made = await work()
        else:
            made = await idempotency.once(runtime.database, scope["user"], key, partial(_fingerprint, body), work)
        reply.add_headers(made.headers)
        await reply.send_json(made.body)

    async def _make(
        self, request: ResponsesRequest, scope: Scope, runtime: Runtime, reply: Reply
    ) -> idempotency.Outcome:
        service = runtime.responses
        prepared = await service.prepare(request, scope["user"])
        if request.background:
            await service.enqueue(prepared)
            runtime.background.wake()
        else:
            await service.generate(prepared, _call(prepared, scope, runtime), unheard, reply.add_headers)
        return idempotency.Outcome(_encode(prepared.response), keep=request.stored)


def _call(prepared: Prepared, scope: Scope, runtime: Runtime) -> Call:
    state = scope["state"]
    background = state.get("background", False)
    return runtime.responses.call(prepared, state["request_id"], state["headers"], background=background)


async def _fingerprint(body: bytes) -> str:
    return idempotency.digest_of("POST", PATH, b"", body)


async def _stream(service: Responses, prepared: Prepared, call: Call, reply: Reply) -> None:
    """The events; once the first is out, an error is the event ``response.failed``."""

    async def send(events: Iterable[Json]) -> None:
        if not reply.started:
            await reply.start_stream()
        for event in events:
            await reply.send_piece(_event(event))

    try:
        await service.generate(prepared, call, send, reply.add_headers)
    except ClientGone:
        raise
    except Exception as error:
        if not reply.started:
            raise
        errors.log_unexpected(error, call.id)
        await reply.send_piece(_event(prepared.builder.fail(errors.as_request_error(error))))
    await reply.end_stream(b"")


def _event(event: Json) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), _encode(event))


class ResponseQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of one response; what it holds was said when it was made, so ``include`` is not read."""

    stream: bool = False


async def get_response(request: HttpRequest) -> Response[bytes]:
    """``GET /v1/responses/{response_id}``."""
    if query_of(request, ResponseQuery).stream:
        raise BadRequest("stream: a stored response is not streamed again; leave it out", param="stream")
    return answer((await _row(request)).body)


async def delete_response(request: HttpRequest) -> Response[bytes]:
    """``DELETE /v1/responses/{response_id}``."""
    response_id: str = request.path_params["response_id"]
    async with runtime(request).database.tenant(principal(request).tenant) as session:
        await responses.remove(session, response_id, principal(request).user)
    runtime(request).background.cancel(response_id)
    return answer(Deleted(id=response_id, object="response"))


async def cancel_response(request: HttpRequest) -> Response[bytes]:
    """``POST /v1/responses/{response_id}/cancel``: background ones only; again changes nothing."""
    async with runtime(request).database.tenant(principal(request).tenant) as session:
        row = await responses.get(session, request.path_params["response_id"], principal(request).user, lock=True)
        if not row.body["background"]:
            raise BadRequest(
                "only background responses can be cancelled; close the connection of others", param="response_id"
            )
        if row.status in responses.UNFINISHED:
            row.status = "cancelled"
            row.body = {**row.body, "status": "cancelled"}
    runtime(request).background.cancel(row.id)
    return answer(row.body)


async def list_input_items(request: HttpRequest) -> Response[bytes]:
    """``GET /v1/responses/{response_id}/input_items``: what the request itself brought, newest first by default."""
    row = await _row(request)
    return answer(item_page(row.input, query_of(request, Page)))


async def _row(request: HttpRequest) -> StoredResponse:
    async with runtime(request).database.tenant(principal(request).tenant, write=False) as session:
        return await responses.get(session, request.path_params["response_id"], principal(request).user)


class InputTokensRoute(CountRoute):
    """``POST /v1/responses/input_tokens``: of the input alone, without what it continues."""

    def request_of(self, body: ResponsesRequest, runtime: Runtime) -> TokenizeRequest:
        """The prompt of the chat that it would be."""
        items = read_input(body.input)
        if not items:
            raise BadRequest("input must hold at least one item", param="input")
        if body.previous_response_id or body.conversation:
            raise BadRequest("tokens are counted of the input alone; send all of it", param="previous_response_id")
        return counting(chat_of(body, items))

    def shown(self, count: int) -> dict[str, Any]:
        """OpenAI's form."""
        return {"object": "response.input_tokens", "input_tokens": count}


RESPONSES_ROUTE = ResponsesRoute()
INPUT_TOKENS_ROUTE = InputTokensRoute("/v1/responses/input_tokens", ResponsesRequest)
