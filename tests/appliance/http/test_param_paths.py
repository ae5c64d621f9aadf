"""An error names a place in the body that was sent, whichever API's words the chat behind it has.

Responses and Anthropic's messages become chats, whose messages and fields lie elsewhere: a bad value is put into every
place of a rich body, and ``param`` must lead there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from bad_values import KINDS
from every_route import CONFIG, HELLO, every_route
from field_effects import TEMPLATE
from inline import engine_plugin

from appliance.plugin import BadRequest, Call
from appliance.testing import Emit, ScriptedEngine

Path = tuple[str | int, ...]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "pattern": "^[A-Z]"}}}
SEARCH = {
    "type": "file_search",
    "vector_store_ids": ["vs_1"],
    "filters": {"type": "and", "filters": [{"type": "eq", "key": "year", "value": 2024}]},
    "ranking_options": {"score_threshold": 0.5, "hybrid_search": {"embedding_weight": 1.0, "text_weight": 1.0}},
}
MESSAGES: dict[str, Any] = {
    "model": "m",
    "max_tokens": 9,
    "system": [{"type": "text", "text": "Be brief."}],
    "messages": [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Ulm"}},
                {"type": "tool_use", "id": "t2", "name": "weather", "input": {"city": "Bonn"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "12"},
                {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": "13"}]},
                {"type": "document", "title": "d", "source": {"type": "text", "media_type": "text/plain", "data": "x"}},
                {"type": "text", "text": "and now?"},
            ],
        },
    ],
    "stop_sequences": ["x"],
    "temperature": 0.5,
    "top_k": 3,
    "top_p": 0.5,
    "tools": [SEARCH, {"name": "weather", "description": "d", "input_schema": PARAMETERS}],
    "tool_choice": {"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": PARAMETERS}},
    "metadata": {"user_id": "ann"},
}
RESPONSE: dict[str, Any] = {
    "model": "m",
    "instructions": "Be brief.",
    "input": [
        {"role": "developer", "content": "Be very brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "12"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "13"}]},
        {"role": "user", "content": "and now?"},
    ],
    "max_output_tokens": 9,
    "temperature": 0.5,
    "top_p": 0.5,
    "top_logprobs": 2,
    "tools": [
        {"type": "function", "name": "clock", "parameters": {"type": "object"}},
        {"type": "function", "name": "weather", "parameters": PARAMETERS},
        SEARCH,
    ],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "weather"}]},
    "parallel_tool_calls": False,
    "text": {"format": {"type": "json_schema", "name": "n", "schema": PARAMETERS}, "verbosity": "low"},
    "reasoning": {"effort": "low"},
    "include": ["file_search_call.results"],
    "metadata": {"k": "v"},
    "user": "ann",
    "safety_identifier": "ann",
    "prompt_cache_key": "p",
    "service_tier": "auto",
    "store": False,
    "prompt": {"id": "tone", "version": "1", "variables": {"tone": "kind"}},
}
BODIES = {"/v1/messages": MESSAGES, "/v1/responses": RESPONSE}
COUNTED = {"/v1/messages/count_tokens": MESSAGES, "/v1/responses/input_tokens": RESPONSE}
DEEP: Any = {}
for _ in range(100):
    DEEP = {"a": DEEP}
BAD = [*KINDS.values(), None, "", {}, [], -1, 2**40, "x" * 5000, DEEP, {"type": "image_url"}, [{"type": "image"}]]
IMAGE = "data:image/png;base64,AAAA"
RESULT = ("messages", 2, "content", 1)
PICTURES = {
    "/v1/messages": {"type": "image", "source": {"type": "url", "url": IMAGE}},
    "/v1/responses": {"type": "input_image", "image_url": IMAGE},
}


class Refusing(ScriptedEngine):
    """An engine that finds fault with a field of the chat that it gets, as engines do."""

    param: str | None = None

    async def generate(self, call: Call) -> Any:
        if self.param is not None:
            raise BadRequest(f"{self.param} is too much for me", param=self.param)
        return await super().generate(call)


@pytest.fixture(scope="module")
def engine():
    return Refusing([Emit("A short answer.")])


@pytest.fixture(scope="module")
def client(tmp_path_factory, engine):
    model = {"name": "m", "engine": "refusing", "inputs": ["file"]}
    config = CONFIG | {"models": [model, *CONFIG["models"][2:]], "prompts": [TEMPLATE]}
    with every_route(tmp_path_factory.mktemp("paths"), config, refusing=engine_plugin(engine, "refusing")) as api:
        SEARCH["vector_store_ids"][:] = [api.client.post("/v1/vector_stores", json={}).json()["id"]]
        yield api.client


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """Every place in a body."""
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from places(item, (*path, key))


def with_value(body: dict[str, Any], path: Path, value: Any) -> dict[str, Any]:
    changed = json.loads(json.dumps(body))
    place: Any = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return changed


def parse(param: str) -> Path:
    """``messages[0].content`` as keys."""
    return tuple(
        int(index) if index else key for key, index in re.findall(r"([^.\[\]]+)(?<!\])(?=[.\[]|$)|\[(\d+)\]", param)
    )


def leads_into(body: dict[str, Any], param: str) -> bool:
    """Whether a path is in the body, or would be one step from it, as that of a field that is missing there."""
    path = parse(param)
    place: Any = body
    for key in path[:-1]:
        try:
            place = place[key]
        except (KeyError, IndexError, TypeError):
            return False
    return bool(path) and (not isinstance(path[-1], int) or (isinstance(place, list) and path[-1] < len(place)))


def complaint(reply: Any, body: dict[str, Any], path: Path) -> str | None:
    """What is wrong with an answer to a body with a bad value at this place; ``None`` if nothing is."""
    shown = f"{path}: {reply.status_code} {reply.text[:300]}"
    if reply.status_code == 200:
        return None
    if reply.status_code not in (400, 404):
        return shown
    param = reply.json()["error"]["param"]
    return None if param is not None and leads_into(body, param) else shown


@pytest.mark.parametrize("path", [*BODIES, *COUNTED])
def test_the_rich_body_is_answered(client, path):
    reply = client.post(path, json=(BODIES | COUNTED)[path])
    assert reply.status_code == 200, reply.text


@pytest.mark.slow
@pytest.mark.parametrize("path", [*BODIES, *COUNTED])
def test_a_bad_value_anywhere_is_named_by_its_place_in_the_body_that_was_sent(client, path):
    body = (BODIES | COUNTED)[path]
    tried = [(place, with_value(body, place, value)) for place in places(body) for value in BAD]
    found = [complaint(client.post(path, json=changed), changed, place) for place, changed in tried]
    assert not [one for one in found if one], "\n".join(one for one in found if one)


@pytest.mark.parametrize(
    ("path", "place", "value", "param"),
    [
        ("/v1/messages", (*RESULT, "content"), [PICTURES["/v1/messages"]], "messages[2].content[1].content[0]"),
        ("/v1/messages", ("messages", 2, "content", 3), PICTURES["/v1/messages"], "messages[2].content[3].type"),
        ("/v1/messages", ("messages", 2, "content", 0, "tool_use_id"), "", "messages[2].content[0].tool_use_id"),
        ("/v1/messages/count_tokens", (*RESULT, "tool_use_id"), "", "messages[2].content[1].tool_use_id"),
        ("/v1/messages", ("tools", 0, "filters", "type"), "nosuch", "tools[0].filters"),
        ("/v1/responses", ("input", 1, "content", 0), PICTURES["/v1/responses"], "input[1].content[0].type"),
        ("/v1/responses", ("input", 5, "call_id"), "", "input[5].call_id"),
        ("/v1/responses", ("tools", 1, "parameters", "properties", "city", "pattern"), "x" * 5000, "tools[1]"),
        ("/v1/responses", ("tools", 2, "vector_store_ids"), [], "tools[2].vector_store_ids"),
    ],
)  # fmt: skip
def test_messages_that_lie_elsewhere_in_the_chat_are_named_where_the_caller_put_them(client, path, place, value, param):
    reply = client.post(path, json=with_value((BODIES | COUNTED)[path], place, value))
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text


@pytest.mark.parametrize(
    ("path", "param", "shown"),
    [
        ("/v1/messages", "messages[5].content", "messages"),
        ("/v1/messages", "max_completion_tokens", "max_tokens"),
        ("/v1/messages", "stop", "stop_sequences"),
        ("/v1/messages", "response_format.json_schema", "output_config.format"),
        ("/v1/messages", "user", "metadata.user_id"),
        ("/v1/messages", "tools[1].function", "tools[1].function"),
        ("/v1/messages", "guided_decoding", None),
        ("/v1/responses", "messages[5].content", "input"),
        ("/v1/responses", "max_tokens", "max_output_tokens"),
        ("/v1/responses", "response_format", "text.format"),
        ("/v1/responses", "verbosity", "text.verbosity"),
        ("/v1/responses", "temperature", "temperature"),
        ("/v1/responses", "guided_decoding", None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_an_engine_refuses_is_named_in_the_words_of_the_caller(
    client, engine, monkeypatch, path, param, shown, stream
):
    monkeypatch.setattr(engine, "param", param)
    reply = client.post(path, json=BODIES[path] | {"stream": stream, "tools": None, "tool_choice": None})
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, shown)
    assert error["message"] == f"{shown or param} is too much for me"


def test_what_a_conversation_holds_already_is_named_as_the_input(client):
    before = {"model": "m", "input": [{"role": "user", "content": "hi"}]}
    first = client.post("/v1/responses", json=before).json()["id"]
    picture = {"role": "user", "content": [PICTURES["/v1/responses"]]}
    conversation = client.post("/v1/conversations", json={"items": [*HELLO, picture]}).json()["id"]
    reply = client.post("/v1/responses", json={"model": "m", "input": "and?", "conversation": conversation})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "input"), reply.text
    gone = client.post(
        "/v1/responses",
        json={"model": "m", "previous_response_id": first, "input": [{"type": "item_reference", "id": "msg_none"}]},
    )
    assert (gone.status_code, gone.json()["error"]["param"]) == (404, "input"), gone.text
