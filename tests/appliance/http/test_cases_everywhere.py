"""Cases O-02 and O-04 to O-11, O-28 and O-29 on every route that asks a model, not only where somebody met them.

O-08, O-10 and O-11 of bodies are in test_fields.py, O-04 of streams in test_engine_fields.py, forms in test_media.py.
A line of a batch is such a request as well: it gets the same answer, byte for byte.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from engine_upstream import Exchange, UpstreamServer, event, hello_events
from every_route import CONFIG, GENERATING, HELLO, Api, AsTheyCome, every_route, label, template
from inline import Notebook, provides
from loopback import Box, box, http_client, sse_events

from appliance.http.internal import ROUTES, ask
from appliance.http.media import FormRoute
from appliance.http.routes import TABLE, Entry
from appliance.plugin import ANONYMOUS, Call
from appliance.testing import Emit, make_app, serving
from appliance.testing.scripted import words_of
from appliance.testing.scripted_embedder import ScriptedEmbedder

ASKING = [entry for entry in TABLE if entry.action == "models.use"]
FORMS = {entry.path for entry in ASKING if isinstance(entry.handler, FormRoute)}
LONG = "word " * 9_000
JSON = {"content-type": "application/json"}
FILE = ("a.wav", b"RIFF", "audio/wav")
FILE_OF = {path: "file" if "audio" in path else "image" for path in FORMS}


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    with every_route(tmp_path_factory.mktemp("cases")) as api:
        yield api


def entry_of(path: str) -> Entry:
    return next(entry for entry in ASKING if entry.path == path)


def send(api: Api, path: str, fields: Mapping[str, Any]) -> httpx.Response:
    """A good request but for these fields; a field that is ``...`` is left out."""
    body = {name: value for name, value in (api.body(entry_of(path)) | dict(fields)).items() if value is not ...}
    if path not in FORMS:
        return api.client.post(path, json=body)
    file = body.pop("file", FILE)
    return api.client.post(path, data=body, files={FILE_OF[path]: file})


def told(reply: httpx.Response) -> Any:
    """The error, in whichever form the route tells it."""
    assert reply.headers["content-type"] == "application/json", reply.text
    return reply.json()["error"]


# -- O-09 --------------------------------------------------------------------------------------------------------

EMPTY_FILE = {"file": ("a.wav", b"", "audio/wav")}
_TURNS = [({"messages": []}, "messages"), ({"messages": ...}, "messages"), ({"messages": HELLO[:0]}, "messages")]
_SAID_NOTHING = {"messages": [{"role": "user", "content": ""}]}
_INPUT = [({"input": []}, "input"), ({"input": ...}, "input"), ({"input": ""}, None)]
_RANKED = [({"documents": []}, "documents"), ({"query": ...}, "query"), ({"query": "", "documents": [""]}, None)]
_PAIRED = [({"text_2": []}, "text_2"), ({"text_1": []}, "text_1"), ({"text_1": "", "text_2": ""}, None)]
_PROMPT = [({"prompt": ""}, "prompt"), ({"prompt": ...}, "prompt")]
EMPTY: Mapping[str, list[tuple[Mapping[str, Any], str | None]]] = {
    "/v1/chat/completions": [*_TURNS, (_SAID_NOTHING, None)],
    "/v1/completions": [({"prompt": value}, "prompt") for value in ("", [], ["a", ""], [[]], ...)],
    "/v1/responses": _INPUT,
    "/v1/responses/input_tokens": _INPUT,
    "/v1/messages": [*_TURNS, (_SAID_NOTHING, None), ({"messages": [{"role": "user", "content": []}]}, "messages")],
    "/v1/messages/count_tokens": [*_TURNS, (_SAID_NOTHING, None)],
    "/v1/embeddings": [({"input": value}, "input") for value in ("", [], ["ok", ""], [[]], ...)],
    "/v1/moderations": _INPUT,
    **{f"{version}/rerank": _RANKED for version in ("", "/v1", "/v2")},
    **{f"{version}/score": _PAIRED for version in ("", "/v1")},
    "/tokenize": [({"prompt": ""}, None), ({"prompt": ...}, "prompt"), ({"prompt": ..., "messages": []}, "messages")],
    "/detokenize": [({"tokens": []}, None), ({"tokens": ...}, "tokens")],
    "/v1/audio/transcriptions": [(EMPTY_FILE, "file"), ({"model": ...}, "model")],
    "/v1/audio/translations": [(EMPTY_FILE, "file"), ({"model": ...}, "model")],
    "/v1/audio/speech": [({"input": ""}, "input"), ({"input": ...}, "input")],
    "/v1/images/generations": _PROMPT,
    "/v1/images/edits": [*_PROMPT, (EMPTY_FILE, "image")],
    "/v1/images/variations": [(EMPTY_FILE, "image")],
}  # fmt: skip
"""By route: what is empty, and the field that is named; ``None`` where it is legal."""


def test_every_route_that_asks_a_model_is_asked_here():
    assert {entry.path for entry in ASKING} == set(EMPTY)


@pytest.mark.parametrize("path", EMPTY)
def test_O09_what_is_empty_is_400_and_named_or_legal_and_the_server_goes_on(api, path):
    for fields, param in EMPTY[path]:
        reply = send(api, path, fields)
        assert reply.status_code == (200 if param is None else 400), (fields, reply.text)
        assert param is None or told(reply)["param"] == param, (fields, reply.text)
        assert api.client.post("/v1/chat/completions", json=GENERATING["/v1/chat/completions"]).status_code == 200
        assert api.client.get("/readyz").status_code == 200


# -- O-06 --------------------------------------------------------------------------------------------------------

_STREAM = {"stream": True}
REFUSED: Mapping[str, tuple[Mapping[str, Any], tuple[str, Any], Mapping[str, Any] | None]] = {
    "/v1/chat/completions": (_STREAM, ("top_p", 7), {"messages": [{"role": "user", "content": LONG}]}),
    "/v1/completions": (_STREAM, ("top_p", 7), {"prompt": LONG}),
    "/v1/responses": (_STREAM, ("top_p", 7), {"input": LONG}),
    "/v1/messages": (_STREAM, ("top_p", 7), {"messages": [{"role": "user", "content": LONG}]}),
    "/v1/audio/transcriptions": ({"stream": "true"}, ("temperature", "7"), None),
    "/v1/audio/speech": ({"stream_format": "sse"}, ("speed", 7), None),
    "/v1/images/generations": (_STREAM, ("n", 11), None),
    "/v1/images/edits": ({"stream": "true"}, ("n", "11"), None),
}
"""By route: what asks for a stream, a field out of bounds, and a prompt that no model reads."""


def test_every_route_that_streams_is_asked_for_one_here():
    streaming = {entry.path for entry in TABLE if entry.method == "POST" and "text/event-stream" in entry.media}
    assert streaming == set(REFUSED)


def test_a_model_that_a_client_made_up_is_in_no_record_whatever_the_route(tmp_path):
    """Names of any length and number would fill logs, traces and the table of usage, and no limit is asked yet."""
    book = Notebook()
    with every_route(tmp_path, book=provides(recorders=[book])) as api:
        for entry in ASKING:
            reply = send(api, entry.path, {"model": "made up " * 1_000})
            judged_by_the_configured_one = entry.path == "/v1/moderations"
            assert reply.status_code == (200 if judged_by_the_configured_one else 404), entry.path
    assert {record.call.model for record in book.records} <= {"guard", "m"}


@pytest.mark.parametrize("path", REFUSED)
def test_O06_a_stream_that_never_began_is_a_status_and_no_event(api, path):
    stream, (name, value), long = REFUSED[path]
    reply = send(api, path, {**stream, name: value})
    assert (reply.status_code, told(reply)["param"]) == (400, name)
    reply = send(api, path, {**stream, "model": "nobody"})
    assert (reply.status_code, told(reply)["code"]) == (404, "model_not_found")
    if long is not None:
        reply = send(api, path, {**stream, **long})
        assert (reply.status_code, told(reply)["code"]) == (400, "context_length_exceeded")
    assert send(api, path, stream).headers["content-type"].startswith("text/event-stream")


# -- O-10 --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def talkative(tmp_path_factory):
    """The same with everything logged that can be."""
    config = CONFIG | {"plugins": [*CONFIG["plugins"], "access_log"], "observability": {"log_level": "debug"}}
    with every_route(tmp_path_factory.mktemp("talkative"), config) as api:
        yield api


@pytest.mark.parametrize("entry", [pytest.param(entry, id=label(entry)) for entry in TABLE if entry.body])
def test_O10_a_malformed_body_is_400_and_in_no_log_however_much_is_logged(talkative, entry, caplog):
    caplog.set_level(logging.DEBUG, logger="appliance")
    path, headers = talkative.path(entry), {"authorization": "Bearer sk-canary-1"}
    for body in (b'{"model":"canary words",}', b"\xff\xfe{", b"[]", b""):
        reply = talkative.client.request(entry.method, path, content=body, headers=JSON | headers)
        assert reply.status_code == 400, reply.text
        assert set(told(reply)) >= {"message", "type", "param", "code"}
    body = json.dumps(talkative.body(entry) | {"user": "canary words"}).encode()
    as_json = talkative.client.request(entry.method, path, content=body, headers=JSON | headers)
    as_text = talkative.client.request(entry.method, path, content=body, headers={"content-type": "text/plain"})
    assert as_text.status_code == as_json.status_code
    for canary in ("sk-canary-1", "canary words", "Traceback"):
        assert canary not in caplog.text


# -- O-07 --------------------------------------------------------------------------------------------------------

_CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
_PARTS = [{"type": "text", "text": "Be brief."}]


def chat_turns(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """OpenAI's: a text as parts, a turn that only calls a tool, and what the tool gave."""
    called = {"role": "assistant", "tool_calls": [_CALL], **content}
    told = {"role": "tool", "tool_call_id": "call_1", "content": "12 C"}
    return [{"role": "system", "content": _PARTS}, {"role": "user", "content": "weather?"}, called, told]


ITEMS = [
    {"role": "system", "content": [{"type": "input_text", "text": "Be brief."}]},
    {"role": "user", "content": "weather?"},
    {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "call_1", "output": "12 C"},
]
BLOCKS = [
    {"role": "user", "content": "weather?"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "call_1", "name": "weather", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": [*_PARTS[:0]]}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "12 C"}]},
]
SHAPES = [
    *((path, {"messages": chat_turns(content)}) for path in ("/v1/chat/completions", "/tokenize")
      for content in ({"content": None}, {}, {"content": []})),
    *((path, {"input": ITEMS}) for path in ("/v1/responses", "/v1/responses/input_tokens")),
    *((path, {"messages": BLOCKS, "system": _PARTS}) for path in ("/v1/messages", "/v1/messages/count_tokens")),
]  # fmt: skip


@pytest.mark.parametrize(("path", "fields"), SHAPES)
async def test_O07_every_legal_shape_of_content_is_taken_and_read_as_text(tmp_path, path, fields):
    seen: list[str] = []

    async with everything(tmp_path) as b:
        engine = b.plugin.engines["m"]
        tokenize = engine.tokenize

        async def watched(request: Any) -> Any:
            found = await tokenize(request)
            seen.extend(engine._vocabulary)
            return found

        engine.tokenize = watched  # type: ignore[method-assign]
        reply = await b.client.post(path, json={"model": "m", "max_tokens": 5, **fields})
        assert reply.status_code == 200, reply.text
        for diary in engine.diaries:
            seen.extend(words_of(diary.call.request.messages))
    assert {"brief.", "C"} <= set(seen)
    assert not {"None", "null"} & set(seen)
    assert not [word for word in seen if word.startswith(("{", "["))]


# -- O-02 and O-05 -----------------------------------------------------------------------------------------------

_OPTIONS = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_O02_a_stream_ends_with_its_reason_its_usage_and_done_once(api, path):
    reply = send(api, path, _OPTIONS)
    *events, done = sse_events(reply.content)
    assert (done, reply.content.count(b"[DONE]"), reply.content.endswith(b"data: [DONE]\n\n")) == ("[DONE]", 1, True)
    *chunks, ended, usage = [json.loads(event) for event in events]
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in (*chunks, ended))
    assert ended["choices"][0]["finish_reason"] == "stop"
    assert not [chunk for chunk in chunks if chunk["choices"][0]["finish_reason"]]
    assert (usage["choices"], usage["usage"]["total_tokens"]) == ([], usage["usage"]["prompt_tokens"] + 3)
    for name in ("id", "created", "model"):
        assert len({chunk[name] for chunk in (*chunks, ended, usage)}) == 1
    without = [json.loads(event) for event in sse_events(send(api, path, {"stream": True}).content)[:-1]]
    assert all(chunk["choices"] and chunk.get("usage") is None for chunk in without)


@pytest.mark.parametrize(("path", "last"), [("/v1/responses", "response.completed"), ("/v1/messages", "message_stop")])
def test_O02_streams_of_other_forms_end_with_their_own_last_event_and_the_usage_before_it(api, path, last):
    reply = send(api, path, {"stream": True})
    events = [json.loads(event) for event in sse_events(reply.content)]
    assert b"[DONE]" not in reply.content
    assert [event["type"] for event in events].count(last) == 1
    assert events[-1]["type"] == last
    (usage,) = [
        found for event in events[-2:] if (found := event.get("usage") or event.get("response", {}).get("usage"))
    ]
    assert usage["output_tokens"] == 3


def comments(events: list[bytes]) -> list[bytes]:
    """Comments before each event."""
    return [piece for event in events for piece in (b": working\n\n", b":\n\n", event)]


def carriage_returns(events: list[bytes]) -> list[bytes]:
    return [event.replace(b"\n", b"\r\n") for event in comments(events)]


def no_space(events: list[bytes]) -> list[bytes]:
    return [event.replace(b"data: ", b"data:") for event in comments(events)]


def two_lines(events: list[bytes]) -> list[bytes]:
    """JSON may be broken where it holds no text."""
    return [
        event.replace(b'{"id"', b'{\ndata: "id"').replace(b'{"type"', b'{\ndata: "type"') for event in comments(events)
    ]


@asynccontextmanager
async def remote(folder: Path, arrange: Any) -> AsyncIterator[httpx.AsyncClient]:
    """The appliance before a server that sends its events as they are arranged."""

    async def script(exchange: Exchange) -> None:
        if exchange.path == "/v1/models":
            return await exchange.json(200, {"object": "list", "data": []})
        await exchange.begin()
        for piece in arrange(_heard() if "audio" in exchange.path else hello_events(exchange)):
            await exchange.send(piece)
        return await exchange.end()

    upstream = UpstreamServer(script)
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
    upstream.port = server.sockets[0].getsockname()[1]
    model = {"name": "m", "engine": "openai", "tasks": ["transcription"], "options": {"base_url": upstream.base_url}}
    app = make_app({"plugins": ["openai"], "models": [model]}, folder=folder)
    try:
        async with serving(app) as url, http_client(base_url=url, timeout=20) as client:
            yield client
    finally:
        server.close()


def _heard() -> list[bytes]:
    said = [event({"type": "transcript.text.delta", "delta": text}) for text in ("Hello", " there.")]
    return [*said, event({"type": "transcript.text.done", "text": "Hello there."}), b"data: [DONE]\n\n"]


def spoken(body: dict[str, Any]) -> str:
    """The piece of text in one event of any form."""
    choice = (body.get("choices") or [{}])[0]
    delta = body.get("delta", "") if body.get("type", "").endswith(".delta") else ""
    block = body["delta"].get("text", "") if body.get("type") == "content_block_delta" else ""
    return str(choice.get("text") or choice.get("delta", {}).get("content") or block or delta)


@pytest.mark.parametrize("arrange", [comments, carriage_returns, no_space, two_lines])
async def test_O05_what_a_server_says_to_stay_alive_is_nobodys_data_on_any_route(tmp_path, arrange):
    async with remote(tmp_path, arrange) as client:
        for path in (*GENERATING, "/v1/audio/transcriptions"):
            if path in FORMS:
                asked = client.post(path, data={"model": "m", "stream": "true"}, files={"file": FILE})
            else:
                asked = client.post(path, json=GENERATING[path] | {"stream": True})
            events = [found for found in sse_events((await asked).content) if found != "[DONE]"]
            assert "".join(spoken(json.loads(found)) for found in events) == "Hello there.", path
            assert "working" not in "".join(events)


# -- O-28, O-29, and lines of batches ----------------------------------------------------------------------------

MANY = {
    "/v1/embeddings": ("input", {"model": "words"}),
    "/v1/moderations": ("input", {}),
    "/v1/rerank": ("documents", {"model": "order", "query": "a"}),
    "/v1/score": ("text_2", {"model": "order", "text_1": "a"}),
}


@pytest.mark.parametrize("path", MANY)
def test_O29_2049_inputs_are_400_and_40_come_back_in_order(api, path):
    name, fields = MANY[path]
    reply = api.client.post(path, json={**fields, name: ["a"] * 2_049})
    assert (reply.status_code, told(reply)["param"]) == (400, name)
    body = api.client.post(path, json={**fields, name: [f"text {i}" for i in range(40)]}).json()
    rows = body.get("data") or body["results"]
    assert [row.get("index", place) for place, row in enumerate(rows)] == list(range(40))


@asynccontextmanager
async def everything(folder: Path) -> AsyncIterator[Box]:
    """The app of every route, in this loop."""

    def script(call: Call) -> list[Emit]:
        return [Emit("safe" if call.model == "guard" else "hello")]

    config = CONFIG | {"plugins": ["memory", "documents", "tokens"]}
    reranker = provides(rerankers={"as_they_come": lambda spec, context: AsTheyCome()})
    async with box(folder, script, config, scripted_embedder=ScriptedEmbedder(), as_they_come=reranker) as b:
        yield b


ODD = [
    ("/v1/embeddings", {"model": "words", "input": "abc", "encoding_format": format_})
    for format_ in ("base64", "float", None, "hex")
]
LINES = [
    *ODD,
    ("/v1/embeddings", {"model": "words", "input": ["a"] * 2_049}),
    *((path, GENERATING[path] | dict(fields)) for path in sorted(ROUTES) if path in GENERATING
      for fields, _ in EMPTY[path] if ... not in fields.values()),
    *((path, GENERATING[path] | {"top_p": 7}) for path in sorted(ROUTES) if path in GENERATING),
    *((path, GENERATING[path] | {"x_trace": "a", "user": None}) for path in sorted(ROUTES) if path in GENERATING),
    *((path, {}) for path in sorted(ROUTES)),
]  # fmt: skip


async def test_a_line_of_a_batch_gets_the_answer_of_its_route(tmp_path):
    async with everything(tmp_path) as b:
        for i, (path, body) in enumerate(LINES):
            reply = await b.client.post(path, json=body)
            line = await ask(b.runtime, path, json.dumps(body).encode(), ANONYMOUS, f"line-{i}")
            assert line.status == reply.status_code, (path, body, line.body)
            if reply.status_code != 200:
                assert json.loads(line.body) == reply.json()


async def test_O28_a_line_of_a_batch_gets_base64_where_it_asks_for_it(tmp_path):
    async with everything(tmp_path) as b:
        found = []
        for path, body in ODD[:3]:
            answered = await ask(b.runtime, path, json.dumps(body).encode(), ANONYMOUS, "line")
            found.append(json.loads(answered.body)["data"][0]["embedding"])
    encoded, floats, default = found
    assert floats == default
    assert len(base64.b64decode(encoded)) == 4 * len(floats)


def test_the_paths_here_are_those_of_the_table():
    assert {template(entry) for entry in ASKING} == {entry.path for entry in ASKING}


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_reasoning_and_refusals_of_an_engine_reach_the_client_in_every_form(tmp_path, path, stream):
    script = [Emit("Hm, rather not.", part="reasoning_content"), Emit("I refuse.", part="refusal")]
    async with box(tmp_path, script) as b:
        reply = await b.client.post(path, json=GENERATING[path] | {"stream": stream})
    assert reply.status_code == 200, reply.text
    for words in ("Hm, rather not.", "I refuse."):
        assert words in reply.text


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_whether_tools_may_be_called_at_once_reaches_the_engine_from_every_form(tmp_path, path):
    schema = {"type": "object", "properties": {}}
    said = {
        "/v1/chat/completions": {
            "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}],
            "parallel_tool_calls": False,
        },
        "/v1/responses": {
            "tools": [{"type": "function", "name": "f", "parameters": schema}],
            "parallel_tool_calls": False,
        },
        "/v1/messages": {
            "tools": [{"name": "f", "input_schema": schema}],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        },
    }
    async with box(tmp_path) as b:
        reply = await b.client.post(path, json=GENERATING[path] | said[path])
        assert reply.status_code == 200, reply.text
        assert b.engine.diaries[-1].call.request.parallel_tool_calls is False
