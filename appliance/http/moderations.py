"""``/v1/moderations``: texts and images judged by a guard model (``filters.moderation_model``), and by filters."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec
from litestar.types import Scope

from appliance.config import LimitsConfig
from appliance.errors import BadRequest, EngineError, NotFound
from appliance.http.chat import only
from appliance.http.hot import Reply, Route
from appliance.http.requests import any_model, call_of
from appliance.http.validate import check_part, in_words_of
from appliance.moderation import result, verdict
from appliance.storage.ids import new_id
from appliance.wire import ChatRequest, ContentPart, Message, ModerationRequest, message_text

if TYPE_CHECKING:
    from appliance.filtering import Filters
    from appliance.pipeline import Ask
    from appliance.runtime import Runtime
    from appliance.types import Call

PATH = "/v1/moderations"
_VERDICT_TOKENS = 64
_OWN_NAMES = {"messages": "input"}
"""The fields here by those of the chats that a guard model is asked in."""
_encode = msgspec.json.Encoder().encode


class Moderations(msgspec.Struct, kw_only=True):
    """The answer."""

    id: str
    model: str
    results: list[dict[str, Any]]


class ModerationRoute(Route):
    """Judges each text by itself, and all parts of a list of parts together. No filter changes or blocks anything."""

    def __init__(self) -> None:
        super().__init__(PATH, ModerationRequest)

    async def serve(self, scope: Scope, body: bytes, runtime: Runtime, reply: Reply) -> None:
        """Ask whoever judges here for every input, one after the other."""
        request = self.decode(body)
        inputs = _inputs(request, runtime.config.limits)
        guard = runtime.config.filters.moderation_model
        filters = runtime.pipeline.filters
        name = guard or ", ".join(plugin for plugin, _ in filters.moderators)
        if guard is None:
            await runtime.pipeline.authorize(scope["user"], "models.use", any_model(scope["user"], PATH))
        if not name:
            raise NotFound(
                "nothing moderates here; set filters.moderation_model to a guard model, or list a filter that judges",
                param="model",
            )
        if guard is None:
            _check_texts_only(request)
        call = call_of(scope, "moderation", name, request)
        if guard is None:
            async with runtime.pipeline.work_without_model(call, PATH) as headers:
                found = [await _judged(filters, call, content, None) for content in inputs]
        else:
            with in_words_of(ModerationRequest, _OWN_NAMES):
                async with runtime.pipeline.chats(call, PATH) as (ask, headers):
                    found = [await _judged(filters, call, content, ask) for content in inputs]
        reply.add_headers(headers)
        await reply.send_json(_encode(Moderations(id=new_id("modr-"), model=name, results=found)))


def _inputs(request: ModerationRequest, limits: LimitsConfig) -> list[str | list[ContentPart]]:
    """What is judged: each text, or all the parts. Raises BadRequest."""
    given = [request.input] if isinstance(request.input, str) else request.input
    if not given:
        raise BadRequest("input must hold at least one text", param="input")
    if len(given) > limits.max_embedding_inputs:
        raise BadRequest(
            f"input holds more than {limits.max_embedding_inputs} entries (limits.max_embedding_inputs)", param="input"
        )
    texts = [item for item in given if isinstance(item, str)]
    parts = [item for item in given if not isinstance(item, str)]
    if texts and parts:
        raise BadRequest("input must hold texts or parts, not both", param="input")
    for i, part in enumerate(parts):
        check_part(part, f"input[{i}]", ("text", "image_url"))
    return [parts] if parts else [*texts]


def _check_texts_only(request: ModerationRequest) -> None:
    """Filters read texts; an image that nobody looked at must not pass for one that was. Raises BadRequest."""
    for i, item in enumerate(request.input):
        if not isinstance(item, str) and item.type != "text":
            raise BadRequest("nothing here judges images; leave the part out", param=f"input[{i}].type")


async def _judged(filters: Filters, call: Call, content: str | list[ContentPart], ask: Ask | None) -> dict[str, Any]:
    """The result for one input."""
    judgements = [verdict(await _asked(ask, call.model, content))] if ask is not None else []
    text = message_text(Message(role="user", content=content))
    return result([*judgements, *await filters.judge(call, text)], _kinds(content))


async def _asked(ask: Ask, model: str, content: str | list[ContentPart]) -> str:
    """The guard model's words on one input."""
    message = Message(role="user", content=content)
    chat = ChatRequest(model=model, messages=[message], temperature=0, max_tokens=_VERDICT_TOKENS)
    async with aclosing(ask(chat)) as chunks:
        answer = (await only(chunks)).body
    try:
        return str(answer["choices"][0]["message"]["content"] or "")
    except (KeyError, IndexError, TypeError) as error:
        raise EngineError("the moderation model gave no answer; try again") from error


def _kinds(content: str | list[ContentPart]) -> set[str]:
    if isinstance(content, str):
        return {"text"}
    return {"text" if part.type == "text" else "image" for part in content}


MODERATION_ROUTE = ModerationRoute()
