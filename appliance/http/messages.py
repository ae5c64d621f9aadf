"""``/v1/messages``: Anthropic's API, with its own form of errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec
from litestar.types import Scope

from appliance.anthropic.output import Json, MessageBuilder
from appliance.anthropic.request import OWN_NAMES, MessagesRequest, chat_of, parts_of
from appliance.errors import BadRequest, RequestError
from appliance.http import errors, validate
from appliance.http.hot import Reply, Route
from appliance.http.requests import call_of
from appliance.http.tokens import CountRoute
from appliance.models.inputs import check_parts
from appliance.types import Call
from appliance.wire import ChatRequest

if TYPE_CHECKING:
    from appliance.runtime import Runtime

_encode = msgspec.json.Encoder().encode
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(error: RequestError) -> Json:
    """Anthropic's error object. ``param`` and ``code`` are ours: they tell what the message says."""
    kind = _TYPES.get(error.status, "api_error")
    shown = {"type": kind, "message": str(error), "param": error.param, "code": error.code}
    return {"type": "error", "error": shown}


class MessagesRoute(Route):
    """``POST /v1/messages``."""

    form = errors.ErrorForm(error_body, b"event: error\n", ("x-request-id", "request-id"))
    idempotent = True

    def __init__(self) -> None:
        super().__init__("/v1/messages", MessagesRequest)

    async def serve(self, scope: Scope, body: bytes, runtime: Runtime, reply: Reply) -> None:
        """Answer as a message or as its events."""
        request = self.decode(body)
        if request.max_tokens is None:
            raise BadRequest("max_tokens is required", param="max_tokens", code="missing_required_parameter")
        model = runtime.models.resolve_chat(request.model, scope["user"])
        chat = chat_of(request)
        check_parts(model.name, model.inputs, parts_of(request))
        with validate.in_words_of(MessagesRequest, OWN_NAMES):
            validate.check_chat(chat, runtime.config.limits)
            call = call_of(scope, "chat", request.model, chat, stream=bool(request.stream))
            await self._answer(call, runtime, reply)

    async def _answer(self, call: Call, runtime: Runtime, reply: Reply) -> None:
        builder = MessageBuilder(call.model)
        async with runtime.pipeline.answer(call, self.path) as answer:
            reply.add_headers(answer.headers)
            if call.stream:
                await reply.start_stream()
            await _send(builder.begin(), call, reply)
            async for chunk in answer:
                await _send(builder.feed(chunk.body), call, reply)
        ending = list(builder.finish())
        if call.stream:
            await _send(ending, call, reply)
            await reply.end_stream(b"")
        else:
            await reply.send_json(_encode(builder.message))


async def _send(events: Iterable[Json], call: Call, reply: Reply) -> None:
    """Send the events of a stream; those of a plain answer only have to come about."""
    for event in events:
        if call.stream:
            await reply.send_piece(b"event: %b\ndata: %b\n\n" % (event["type"].encode(), _encode(event)))


class CountTokensRoute(CountRoute):
    """``POST /v1/messages/count_tokens``."""

    form = MessagesRoute.form

    def chat_of(self, body: MessagesRequest, runtime: Runtime) -> ChatRequest:
        """See ``CountRoute``."""
        return chat_of(body)

    def shown(self, count: int) -> dict[str, Any]:
        """Anthropic's form."""
        return {"input_tokens": count}


MESSAGES_ROUTE = MessagesRoute()
COUNT_TOKENS_ROUTE = CountTokensRoute("/v1/messages/count_tokens", MessagesRequest, OWN_NAMES)
