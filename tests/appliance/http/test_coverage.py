"""Every entry of tests/fates.py is tried: a field that is sent as it should be meets its fate.

The document shows the same entries (tests/coverage_table.py, tests/meta/test_coverage_doc.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import msgspec
import pytest
from bad_values import smallest
from coverage_table import SHOWN, route
from every_route import CONFIG, HELLO, Api, every_route
from fates import COVERAGE, Fate
from field_effects import EFFECTS, PROMPT, TEMPLATE
from inline import engine_plugin
from msgspec import UNSET, inspect

from appliance.http.routes import TABLE, Entry
from appliance.media.requests import Attachment
from appliance.plugin import Call, Chunk, DetokenizeRequest, TokenizeRequest, Tokens
from appliance.testing import Emit, ScriptedEngine
from appliance.testing.scripted_media import PNG

ENTRIES = {route(entry): entry for entry in TABLE}
SOUND, PICTURE = ("a.wav", b"RIFF....WAVE", "audio/wav"), ("a.png", PNG, "image/png")
FILES: Mapping[str, dict[str, Any]] = {
    "POST /v1/audio/transcriptions": {"file": SOUND},
    "POST /v1/audio/translations": {"file": SOUND},
    "POST /v1/images/edits": {"image": PICTURE},
    "POST /v1/images/variations": {"image": PICTURE},
    "POST /v1/files": {"file": ("a.txt", b"Apples are red.")},
    "POST /v1/uploads/{upload_id}/parts": {"data": ("a.txt", b"Apple")},
}
"""The files of each form."""
FORMS: Mapping[str, dict[str, Any]] = {
    "POST /v1/audio/transcriptions": {"model": "m"},
    "POST /v1/audio/translations": {"model": "m"},
    "POST /v1/images/edits": {"model": "m", "prompt": "a red dot"},
    "POST /v1/images/variations": {"model": "m"},
    "POST /v1/files": {"purpose": "assistants"},
    "POST /v1/uploads/{upload_id}/parts": {},
}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
RESPONSE_FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}
TOOL = {"name": "f", "input_schema": {"type": "object"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
CHAT, TEXT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
WINDOW = {"anchor": "created_at", "seconds": 3600}
STATIC = {"type": "static", "static": {"max_chunk_size_tokens": 200, "chunk_overlap_tokens": 50}}
GOOD: Mapping[str, Any] = {
    "model": "m", "messages": HELLO, "stop": ["x", "y"], "logit_bias": {"5": 10.0}, "temperature": 0.25,
    "top_p": 0.5, "min_p": 0.25,
    "functions": [{"name": "f", "parameters": {}}], "function_call": {"name": "f"}, "tools": [FUNCTION],
    "tool_choice": "auto", "response_format": {"type": "json_object"}, "audio": {"voice": "alloy", "format": "wav"},
    "prediction": {"type": "content", "content": "hi"}, "structured_outputs": {"regex": "a+"}, "metadata": {"k": "v"},
    "frequency_penalty": 0.5, "presence_penalty": -0.5, "stream_options": {"include_usage": True}, "input": "hello",
    "encoding_format": "base64", "documents": ["a", {"text": "b"}], "dimensions": 8,
    "truncation": "disabled", "text_1": "hi", "text_2": ["a", "b"],
    "items": HELLO, "chat_template_kwargs": {"enable_thinking": False}, "tokens": [0], "voice": {"id": "v"},
    "name": "n", "attributes": {"year": 2024}, "access": {"public": True}, "chunking_strategy": STATIC,
    "expires_after": {"anchor": "last_active_at", "days": 7}, "query": "apples", "purpose": "assistants",
    "filters": {"type": "eq", "key": "year", "value": 2024}, "ranking_options": {"score_threshold": 0.1},
    "completion_window": "24h", "endpoint": "/v1/embeddings", "output_expires_after": WINDOW, "filename": "b.txt",
    "bytes": 7, "mime_type": "text/plain", "limit": 1, "order": "asc", "filter": "completed",
    "timestamp_granularities[]": ["word"], "include[]": ["logprobs"], "known_speaker_names[]": ["ann"],
    "known_speaker_references[]": ["data:,a"],
    "languages[]": ["en"], "keywords[]": ["apple"], "speed": 1.5, "output_compression": 50, "n": 2, "max_tokens": 9,
    "max_completion_tokens": 9, "max_output_tokens": 9, "expires_after[anchor]": "created_at",
    "expires_after[seconds]": "3600", "file_ids": lambda api: [api.known["file_id"]], "size": "256x256",
    "file_id": lambda api: api.known["file_id"], "files": lambda api: [{"file_id": api.known["file_id"]}],
    "previous_response_id": lambda api: api.known["response_id"],
    "conversation": lambda api: api.known["conversation_id"],
    "input_file_id": lambda api: api.upload("batch", b'{"custom_id": "a"}\n'),
}  # fmt: skip
"""A value for each field that is not the smallest of its type; a function gets the ``Api``."""
SPECIAL: Mapping[tuple[str, str], Any] = {
    (f"POST {RESPONSES}", "tools"): [RESPONSE_FUNCTION],
    (f"POST {RESPONSES}/input_tokens", "tools"): [RESPONSE_FUNCTION],
    (f"POST {RESPONSES}", "include"): ["file_search_call.results"],
    (f"POST {RESPONSES}/input_tokens", "include"): ["file_search_call.results"],
    (f"POST {RESPONSES}", "top_logprobs"): 3,
    (f"POST {RESPONSES}", "prompt"): PROMPT,
    (f"POST {RESPONSES}/input_tokens", "prompt"): PROMPT,
    (f"POST {RESPONSES}", "text"): {"format": {"type": "json_object"}},
    (f"POST {RESPONSES}", "reasoning"): {"effort": "low"},
    (f"POST {RESPONSES}", "stream_options"): {"include_obfuscation": True},
    (f"POST {MESSAGES}", "tools"): [TOOL],
    (f"POST {MESSAGES}/count_tokens", "tools"): [TOOL],
    (f"POST {MESSAGES}", "tool_choice"): {"type": "auto"},
    (f"POST {MESSAGES}/count_tokens", "tool_choice"): {"type": "auto"},
    (f"POST {MESSAGES}", "metadata"): {"user_id": "ann"},
    (f"POST {MESSAGES}", "output_config"): {"format": {"type": "json_schema", "schema": SCHEMA}},
    (f"POST {MESSAGES}", "thinking"): {"type": "enabled", "budget_tokens": 1024},
    (f"POST {TEXT}", "prompt"): "other words",
    (f"POST {TEXT}", "logprobs"): 3,
    ("POST /tokenize", "prompt"): "other words",
    ("POST /tokenize", "add_generation_prompt"): False,
    ("GET /v1/files", "purpose"): "assistants",
    ("POST /v1/uploads", "expires_after"): WINDOW,
    ("POST /v1/audio/transcriptions", "response_format"): "verbose_json",
    ("POST /v1/audio/translations", "response_format"): "verbose_json",
    ("POST /v1/audio/transcriptions", "chunking_strategy"): "auto",
    ("POST /v1/audio/speech", "response_format"): "wav",
    ("POST /v1/audio/speech", "input"): "other words",
    ("POST /v1/images/generations", "response_format"): "b64_json",
    ("POST /v1/images/edits", "response_format"): "b64_json",
    ("POST /v1/images/variations", "response_format"): "b64_json",
    ("POST /v1/images/generations", "prompt"): "a blue dot",
    ("POST /v1/images/edits", "prompt"): "a blue dot",
    ("GET /v1/audit/events", "since"): "2026-01-01T00:00:00Z",
    ("GET /v1/audit/events", "until"): "2026-01-01T00:00:00Z",
    ("GET /v1/audit/events", "action"): "files.create",
    ("GET /v1/audit/events", "outcome"): "success",
}
WITH: Mapping[str, dict[str, Any]] = {
    "stream_options": {"stream": True},
    "partial_images": {"stream": True},
    "tool_choice": {"tools": [FUNCTION]},
}
"""What a field makes no sense without."""
SPECIAL_WITH: Mapping[tuple[str, str], dict[str, Any]] = {
    (f"POST {CHAT}", "top_logprobs"): {"logprobs": True},
    (f"POST {CHAT}", "metadata"): {"store": True},
    ("POST /v1/audio/transcriptions", "timestamp_granularities[]"): {"response_format": "verbose_json"},
    (f"POST {RESPONSES}", "tool_choice"): {"tools": [RESPONSE_FUNCTION]},
    (f"POST {RESPONSES}", "parallel_tool_calls"): {"tools": [RESPONSE_FUNCTION]},
    (f"POST {RESPONSES}/input_tokens", "tool_choice"): {"tools": [RESPONSE_FUNCTION]},
    (f"POST {MESSAGES}", "tool_choice"): {"tools": [TOOL]},
    (f"POST {MESSAGES}/count_tokens", "tool_choice"): {"tools": [TOOL]},
    ("POST /tokenize", "continue_final_message"): {"add_generation_prompt": False, "messages": HELLO, "prompt": None},
    ("POST /tokenize", "messages"): {"prompt": None},
    ("POST /tokenize", "tools"): {"messages": HELLO, "prompt": None},
    ("POST /v1/files", "expires_after[anchor]"): {"expires_after[seconds]": "3600"},
    ("POST /v1/files", "expires_after[seconds]"): {"expires_after[anchor]": "created_at"},
    ("POST /v1/vector_stores/{vector_store_id}/file_batches", "files"): {"file_ids": None},
    ("POST /v1/vector_stores", "chunking_strategy"): {"file_ids": []},
}
TRANSLATED: Mapping[tuple[str, str], tuple[str, Any]] = {
    (f"POST {RESPONSES}", "max_output_tokens"): ("max_completion_tokens", 9),
    (f"POST {RESPONSES}", "text"): ("response_format", {"type": "json_object"}),
    (f"POST {RESPONSES}", "reasoning"): ("reasoning_effort", "low"),
    (f"POST {MESSAGES}", "max_tokens"): ("max_completion_tokens", 9),
    (f"POST {MESSAGES}", "stop_sequences"): ("stop", ["x"]),
    (f"POST {MESSAGES}", "metadata"): ("user", "ann"),
    (f"POST {MESSAGES}", "output_config"): (
        "response_format",
        {"type": "json_schema", "json_schema": {"name": "output", "schema": SCHEMA, "strict": True}},
    ),
}
"""As what the engine gets a field that has another name or form there."""


class Recorder(ScriptedEngine):
    """An engine that answers everything, and notes what it was asked."""

    def __init__(self) -> None:
        super().__init__([Emit("A short answer.")])
        self.asked: list[Any] = []

    async def generate(self, call: Call) -> Any:
        self.asked.append(call.request)
        answer = _ANSWERS.get(call.operation)
        return _Once(answer) if answer else await super().generate(call)

    async def produce(self, call: Call) -> Any:
        self.asked.append(call.request)
        return await super().produce(call)

    async def tokenize(self, request: TokenizeRequest) -> Tokens:
        self.asked.append(request)
        return await super().tokenize(request)

    async def detokenize(self, request: DetokenizeRequest) -> str:
        self.asked.append(request)
        return "words"


class _Once:
    """One answer."""

    def __init__(self, body: dict[str, Any]) -> None:
        self._bodies = [body]

    def __aiter__(self) -> _Once:
        return self

    async def __anext__(self) -> Chunk:
        if not self._bodies:
            raise StopAsyncIteration
        return Chunk(body=self._bodies.pop())

    async def aclose(self) -> None:
        """Nothing is open."""


_ANSWERS: Mapping[str, dict[str, Any]] = {
    "embeddings": {
        "object": "list",
        "model": "m",
        "data": [{"object": "embedding", "index": 0, "embedding": [0.0]}],
        "usage": {"prompt_tokens": 1, "total_tokens": 1},
    },
    "rerank": {"results": [{"index": 0, "relevance_score": 0.5}]},
    "score": {"data": [{"index": 0, "score": 0.5}, {"index": 1, "score": 0.5}]},
}


class Tried(Api):
    """The app with the engine that notes."""

    def __init__(self, client: httpx.Client, engine: Recorder) -> None:
        super().__init__(client)
        self.engine = engine

    def objects(self) -> Mapping[str, str]:
        """With more than one object in each list."""
        known = dict(super().objects())
        files, store = [known["file_id"], self.upload("assistants", b"Pears are green.")], known["vector_store_id"]
        asked = [*HELLO, {"role": "assistant", "content": "hello"}, *HELLO]
        known["file_batch_id"] = self._make(f"/v1/vector_stores/{store}/file_batches", file_ids=files)
        known["completion_id"] = self._make(CHAT, model="m", store=True, messages=asked)
        return known

    def upload(self, purpose: str, text: bytes) -> str:
        return self._upload(purpose, text)

    def send(self, name: str, fields: Mapping[str, Any]) -> httpx.Response:
        """The good request of a route with some fields more; ``None`` leaves one out."""
        entry = ENTRIES[name]
        if entry.form:
            return self._send_form(name, entry, fields)
        if not entry.body:
            return self.client.request(entry.method, self.path(entry), params=_as_query(fields))
        body = self.body(entry) | self._fresh(name) | dict(fields)
        return self.client.request(
            entry.method, self.path(entry), json={key: value for key, value in body.items() if value is not None}
        )

    def _fresh(self, name: str) -> dict[str, Any]:
        """What a good request must have anew each time, and the model that notes."""
        if name == "POST /v1/batches":
            return {"input_file_id": self.upload("batch", b"{}\n")}
        if name == "POST /v1/vector_stores/{vector_store_id}/files":
            return {"file_id": self.upload("assistants", b"Pears are green.")}
        return {"model": "m"} if "model" in COVERAGE[name] else {}

    def _send_form(self, name: str, entry: Entry, fields: Mapping[str, Any]) -> httpx.Response:
        files = dict(FILES[name])
        data = {**FORMS[name], **{key: value for key, value in fields.items() if not isinstance(value, tuple)}}
        files |= {key: value for key, value in fields.items() if isinstance(value, tuple)}
        if "image[]" in files:
            del files["image"]
        texts = {
            key: [str(v) for v in value] if isinstance(value, list) else _text(value) for key, value in data.items()
        }
        return self.client.post(self.path(entry), data=texts, files=files)


def _as_query(fields: Mapping[str, Any]) -> dict[str, str]:
    """A mapping is ``name[key]``."""
    flat = {
        f"{name}[{key}]": v for name, value in fields.items() if isinstance(value, dict) for key, v in value.items()
    }
    return {**flat, **{name: _text(value) for name, value in fields.items() if not isinstance(value, dict)}}


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    engine = Recorder()
    model = {
        "name": "m",
        "engine": "noting",
        "pass_fields": ["chat_template_kwargs"],
        "tasks": [*("transcription", "translation", "speech"), *("image_generation", "image_edit", "image_variation")],
    }
    config = CONFIG | {"models": [model, *CONFIG["models"][2:]], "prompts": [TEMPLATE]}
    with every_route(tmp_path_factory.mktemp("coverage"), config, noting=engine_plugin(engine, "noting")) as served:
        tried = Tried(served.client, engine)
        assert tried.known
        yield tried


def cases(fate: Fate) -> list[Any]:
    return [
        pytest.param(name, field, id=f"{name} {field}")
        for name, fields in COVERAGE.items()
        for field, found in fields.items()
        if found is fate and (name, field) not in SHOWN
    ]


def type_of(name: str, field: str) -> inspect.Type | None:
    """The type of a field that the route reads."""
    entry = ENTRIES[name]
    type_ = entry.body or entry.form or entry.query
    fields = inspect.type_info(type_).fields if type_ else ()  # type: ignore[attr-defined]
    return next((found.type for found in fields if found.encode_name == field), None)


def good(api: Tried, name: str, field: str) -> Any:
    """A value that the field should be sent with."""
    if field in ("after", "before"):
        return api.send(name, {}).json()["data"][0]["id"]
    if name in FORMS and field in ("file", "data", "image", "image[]", "mask"):
        return PICTURE if "images" in name else next(iter(FILES[name].values()))
    value = SPECIAL.get((name, field), GOOD.get(field, UNSET))
    if isinstance(value, Callable):  # type: ignore[arg-type]
        return value(api)
    if value is not UNSET:
        return value
    type_ = type_of(name, field)
    return {"any": ["thing"]} if type_ is None else smallest(type_)


def asked_with(api: Tried, name: str, field: str) -> dict[str, Any]:
    """The fields of a request that tries one."""
    given = {"stop_sequences": ["x"]}.get(field, good(api, name, field))
    more = SPECIAL_WITH.get((name, field), WITH.get(field, {}))
    if "api" in more:
        more = {}
    return {**more, field: given}


def seen(request: Any, name: str) -> Any:
    """What the engine got in a field, as plain values."""
    fields = {field.encode_name: field.name for field in msgspec.structs.fields(request)}
    value = getattr(request, fields.get(name, name))
    return value if isinstance(value, Attachment) or value is UNSET else msgspec.to_builtins(value)


@pytest.mark.parametrize(("name", "field"), cases(Fate.ENGINE))
def test_a_field_for_the_engine_reaches_it(api, name, field):
    given = asked_with(api, name, field)
    reply = api.send(name, given)
    assert reply.status_code == 200, reply.text
    wire, expected = TRANSLATED.get((name, field), (field, given[field]))
    assert seen(api.engine.asked[-1], wire) == expected
    if field not in api.body(ENTRIES[name]) and field not in FORMS.get(name, {}):
        api.send(name, {})
        assert seen(api.engine.asked[-1], wire) != expected


@pytest.mark.parametrize(("name", "field"), cases(Fate.HERE))
def test_a_field_that_is_done_here_has_its_effect(api, name, field):
    given = asked_with(api, name, field)
    reply = api.send(name, given)
    assert reply.status_code == 200, reply.text
    EFFECTS[name, field](api)


def test_every_field_that_is_done_here_has_an_effect_that_is_seen():
    done = {(name, field) for name, fields in COVERAGE.items() for field, fate in fields.items() if fate is Fate.HERE}
    assert EFFECTS.keys() | (SHOWN.keys() & done) == done
    assert not EFFECTS.keys() & SHOWN.keys()


@pytest.mark.parametrize(("name", "field"), cases(Fate.STORED))
def test_a_field_that_is_stored_is_shown_again(api, name, field):
    given = asked_with(api, name, field)
    reply = api.send(name, given)
    assert reply.status_code == 200, reply.text
    made = reply.json()
    if name == f"POST {CHAT}":
        made = api.client.get(f"{CHAT}/{made['id']}").json()
    assert made[field] == given[field]


@pytest.mark.parametrize(("name", "field"), cases(Fate.IGNORED))
def test_a_field_that_is_ignored_changes_nothing(api, name, field):
    given = asked_with(api, name, field)
    plain = api.send(name, {key: value for key, value in given.items() if key != field})
    before = list(api.engine.asked)
    reply = api.send(name, given)
    assert (plain.status_code, reply.status_code) == (200, 200), reply.text
    after = api.engine.asked[len(before) :]
    if after and name not in FORMS:
        assert [msgspec.to_builtins(request) for request in after] == [msgspec.to_builtins(before[-1])]
    elif not after:
        assert plain.json().keys() == reply.json().keys()


@pytest.mark.parametrize(("name", "field"), cases(Fate.REFUSED))
def test_a_field_that_is_refused_is_named(api, name, field):
    asked = len(api.engine.asked)
    reply = api.send(name, asked_with(api, name, field))
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, field), reply.text
    assert len(api.engine.asked) == asked
