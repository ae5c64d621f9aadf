"""Cases O-07 to O-11 and O-28: bodies that must be taken, and bodies that must be refused, never with a 5xx."""

from __future__ import annotations

import asyncio
import json
import logging
from urllib.parse import quote

import httpx
import msgspec
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inline import Keys, Notebook, provides
from loopback import HELLO, assert_openai_error, build_app, connection, served_in_thread, text_of

from appliance.plugin import Principal
from appliance.testing import Emit
from appliance.wire import ChatRequest, CompletionRequest, EmbeddingRequest, message_text

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


# -- what must be taken ------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [{"content": None}, {}], ids=["null", "left out"])
async def test_o07_an_assistant_turn_with_only_tool_calls_and_text_parts_are_taken(box, content):
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "tool_calls": [call], **content},
        {"role": "tool", "tool_call_id": "call_1", "content": "12 C"},
    ]
    async with box() as b:
        response = await b.chat(messages=messages)
        assert response.status_code == 200
        seen = b.engine.diaries[0].call.request.messages
    assert [message_text(message) for message in seen] == ["Be brief.", "weather?", "", "12 C"]
    encoded = msgspec.json.encode(seen)
    assert b"null" not in encoded
    assert b"None" not in encoded


async def test_o07_the_official_client_can_send_an_answer_back_as_it_came(box):
    async with box() as b:
        first = await b.openai.chat.completions.create(model="m", messages=HELLO)
        history = [*HELLO, first.choices[0].message.model_dump(), {"role": "user", "content": "and?"}]
        second = await b.openai.chat.completions.create(model="m", messages=history)
    assert second.choices[0].message.content == "hello"


async def test_o08_unknown_fields_are_ignored_and_do_not_reach_the_engine(box):
    async with box() as b:
        message = {"role": "user", "content": "hi", "opts": {"visible": False}}
        response = await b.chat(messages=[message], x_trace="abc", extra={"secret_flag": 1}, folder=[1])
        assert response.status_code == 200
        sent = msgspec.json.encode(b.engine.diaries[0].call.request)
    for word in (b"x_trace", b"opts", b"secret_flag", b"folder"):
        assert word not in sent


@pytest.mark.parametrize("extra", ["text", 5, [1], {"a": 1}, None])
async def test_o08_a_field_named_extra_is_unknown_like_any_other(box, extra):
    async with box() as b:
        assert (await b.chat(extra=extra)).status_code == 200
        assert b.engine.diaries[0].call.request.extra is None


async def test_o08_unknown_fields_named_in_the_configuration_reach_the_engine(box):
    config = {"models": [{"name": "m", "engine": "scripted", "pass_fields": ["x_trace"]}]}
    async with box(None, config) as b:
        response = await b.chat(x_trace={"id": 7}, x_other=1, extra={"x": 1})
        assert response.status_code == 200
        assert b.engine.diaries[0].call.request.extra == {"x_trace": {"id": 7}}


async def test_o08_null_means_the_default_for_every_optional_field(box):
    async with box() as b:
        for type_, path, needed in (
            (ChatRequest, CHAT, {"model": "m", "messages": HELLO}),
            (CompletionRequest, COMPLETIONS, {"model": "m", "prompt": "hi"}),
        ):
            names = [f.encode_name for f in msgspec.structs.fields(type_) if f.encode_name not in needed]
            response = await b.client.post(path, json=dict.fromkeys(names) | needed)
            assert response.status_code == 200, response.text


FIELDS = {
    "frequency_penalty": 0.5, "presence_penalty": -0.5, "temperature": 0, "top_p": 0.9, "n": 2, "seed": 7,
    "stop": ["a", "b"], "max_tokens": 5, "max_completion_tokens": 6, "logit_bias": {"50": -100}, "user": "u",
    "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "weather"}}, "parallel_tool_calls": False,
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
    "logprobs": True, "top_logprobs": 3, "modalities": ["text"], "prediction": {"type": "content", "content": "x"},
    "reasoning_effort": "low", "verbosity": "low", "service_tier": "auto", "store": False, "metadata": {"a": "b"},
    "prompt_cache_key": "k", "safety_identifier": "s", "top_k": 4, "min_p": 0.1, "repetition_penalty": 1.1,
    "min_tokens": 1, "ignore_eos": True, "stop_token_ids": [1, 2], "structured_outputs": {"choice": ["a"]},
    "cache_salt": "mine",
    "functions": [{"name": "f"}], "function_call": "auto", "audio": {"voice": "x"},
}  # fmt: skip


async def test_every_standard_field_reaches_the_engine_unchanged(box):
    async with box() as b:
        assert (await b.chat(stream=True, stream_options={"include_usage": True}, **FIELDS)).status_code == 200
        sent = msgspec.to_builtins(b.engine.diaries[0].call.request)
    assert {name: sent[name] for name in FIELDS} == FIELDS
    refused = {"moderation", "web_search_options"}
    unsent = {f.encode_name for f in msgspec.structs.fields(ChatRequest)} - set(sent) - {"extra"} - refused
    assert not unsent, "this test leaves a field out"


async def test_every_completion_field_reaches_the_engine_unchanged(box):
    fields = {"echo": True, "best_of": 3, "logprobs": 2, "suffix": "end", "n": 2}
    async with box() as b:
        response = await b.client.post(COMPLETIONS, json={"model": "m", "prompt": ["a", "b"], **fields})
        assert response.status_code == 200
        sent = msgspec.to_builtins(b.engine.diaries[0].call.request)
    assert sent == {"model": "m", "prompt": ["a", "b"], **fields}


@pytest.mark.parametrize("prompt", ["hi", ["a", "b"], [1, 2, 3], [[1], [2, 3]]], ids=["text", "texts", "ids", "arrays"])
async def test_every_shape_of_prompt_is_taken(box, prompt):
    async with box() as b:
        assert (await b.client.post(COMPLETIONS, json={"model": "m", "prompt": prompt})).status_code == 200
        assert b.engine.diaries[0].call.request.prompt == prompt


# -- O-09: empty prompts -----------------------------------------------------------------------------------

EMPTY = [
    (COMPLETIONS, {"model": "m", "prompt": ""}, 400, "prompt"),
    (COMPLETIONS, {"model": "m", "prompt": []}, 400, "prompt"),
    (COMPLETIONS, {"model": "m", "prompt": ["a", ""]}, 400, "prompt"),
    (COMPLETIONS, {"model": "m"}, 400, "prompt"),
    (CHAT, {"model": "m", "messages": []}, 400, "messages"),
    (CHAT, {"model": "m", "messages": [{"role": "user", "content": ""}]}, 200, None),
    (CHAT, {"model": "m"}, 400, "messages"),
    (CHAT, {"model": "m", "messages": None}, 400, "messages"),
    (EMBEDDINGS, {"model": "m", "input": ""}, 400, "input"),
    (EMBEDDINGS, {"model": "m", "input": []}, 400, "input"),
    (EMBEDDINGS, {"model": "m", "input": ["ok", ""]}, 400, "input"),
    (EMBEDDINGS, {"model": "m", "input": [[]]}, 400, "input"),
    (EMBEDDINGS, {"model": "m", "input": [1, -1]}, 400, "input"),
    (EMBEDDINGS, {"model": "m"}, 400, "input"),
]


async def test_o09_an_empty_prompt_is_refused_and_the_server_goes_on(box):
    async with box() as b:
        for path, body, status, param in EMPTY:
            response = await b.client.post(path, json=body)
            if status == 200:
                assert response.status_code == 200
            else:
                assert_openai_error(response, status, param)
            assert (await b.chat()).status_code == 200
            assert (await b.client.get("/readyz")).status_code == 200


# -- O-10: bodies that are no JSON ---------------------------------------------------------------------------

MALFORMED = [b'{"model":"m",}', b"\xff\xfe{", b"[]", b"", b"null", b'"text"', b"{", b"{" * 100_000, b'{"model":"\xff"}',
             b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}', b'{"model":"m","seed":1e999}',
             b'{"model":"m","n":' + b"9" * 5000 + b"}"]  # fmt: skip


@pytest.mark.parametrize("level", ["debug", "warning"])
async def test_o10_a_malformed_body_is_400_whatever_is_logged(box, level, caplog):
    caplog.set_level(logging.DEBUG if level == "debug" else logging.WARNING)
    async with box(None, {"observability": {"log_level": level}, "plugins": ["access_log"]}) as b:
        for path in (CHAT, COMPLETIONS, EMBEDDINGS):
            for body in MALFORMED:
                error = assert_openai_error(await b.post(path, body, {"authorization": "Bearer sk-canary-1"}), 400)
                assert error["type"] == "invalid_request_error"
        text = json.dumps({"model": "m", "messages": [{"role": "user", "content": "canary words"}]}).encode()
        response = await b.post(CHAT, text, {"content-type": "text/plain", "authorization": "Bearer sk-canary-1"})
        assert response.status_code == 200
    assert "sk-canary-1" not in caplog.text
    assert "canary words" not in caplog.text
    assert "Traceback" not in caplog.text


async def test_a_compressed_body_is_415(box):
    async with box() as b:
        assert_openai_error(await b.post(CHAT, b"x", {"content-encoding": "gzip"}), 415)


# -- O-11: size ---------------------------------------------------------------------------------------------


async def test_o11_a_json_body_of_12_mb_is_413(box):
    async with box() as b:
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 12_000_000}]}).encode()
        assert_openai_error(await b.post(CHAT, body), 413)
        assert (await b.chat()).status_code == 200


async def test_o11_a_chunked_body_that_never_ends_is_413_at_the_limit(box):
    async with box(None, {"server": {"max_json_bytes": 100_000}}) as b, connection(b.url) as (reader, writer):
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(20):
            writer.write(b"2710\r\n" + b" " * 10_000 + b"\r\n")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
        assert head.startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("length", [b"content-length: 8000000", b"transfer-encoding: chunked"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, EMBEDDINGS, "/v1/responses", "/v1/messages", "/v1/moderations"])
async def test_c2_nothing_large_is_read_of_somebody_who_may_use_no_model(box, path, length):
    keys = Keys({"good": Principal(id="k", roles=("auditor",))})
    async with box(None, {"plugins": ["rbac"]}, keys=provides(authenticators=[keys])) as b:
        head = b"POST %b HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer good\r\n%b\r\n\r\n"
        async with connection(b.url) as (reader, writer):
            writer.write(head % (path.encode(), length))
            assert (await asyncio.wait_for(reader.readuntil(b"\r\n"), 20)).startswith(b"HTTP/1.1 403 ")


async def test_o11_the_limit_is_what_the_configuration_says(box):
    async with box(None, {"server": {"max_json_bytes": 300}}) as b:
        assert (await b.chat()).status_code == 200
        assert_openai_error(await b.chat(user="x" * 300), 413)


async def test_a_client_that_breaks_off_its_body_harms_nobody(box, caplog):
    async with box() as b:
        async with connection(b.url) as (_, writer):
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n{")
            await writer.drain()
        assert (await b.chat()).status_code == 200
    assert not [record for record in caplog.records if record.name != "appliance.stalls"], "a machine may stand still"


# -- fields: one shared app, so that hundreds of requests are quick ---------------------------------------------


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    app, _ = build_app(tmp_path_factory.mktemp("shared"), [Emit("hello")])
    with served_in_thread(app) as url, httpx.Client(base_url=url, timeout=20) as client:
        yield client


GOOD = {
    CHAT: {"model": "m", "messages": HELLO},
    COMPLETIONS: {"model": "m", "prompt": "hi"},
    EMBEDDINGS: {"model": "m", "input": "hi"},
}
BAD_FIELDS = [
    (CHAT, "model", 5, "model"),
    (CHAT, "messages", "hi", "messages"),
    (CHAT, "messages", [5], "messages[0]"),
    (CHAT, "messages", [{"role": "user"}], "messages[0].content"),
    (CHAT, "messages", [{"role": "user", "content": None}], "messages[0].content"),
    (CHAT, "messages", [{"role": "assistant", "content": None}], "messages[0].content"),
    (CHAT, "messages", [{"content": "x"}], "messages[0].role"),
    (CHAT, "messages", [{"role": "king", "content": "x"}], "messages[0].role"),
    (CHAT, "messages", [{"role": "user", "content": 5}], "messages[0].content"),
    (CHAT, "messages", [{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0].type"),
    (CHAT, "messages", [{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
    (CHAT, "messages", [*HELLO, {"role": "assistant", "tool_calls": "x"}], "messages[1].tool_calls"),
    (CHAT, "messages", HELLO * 2049, "messages"),
    (CHAT, "n", 0, "n"),
    (CHAT, "n", 17, "n"),
    (CHAT, "n", 2**31, "n"),
    (CHAT, "n", "2", "n"),
    (CHAT, "n", 1.5, "n"),
    (CHAT, "n", True, "n"),
    (CHAT, "temperature", 2.1, "temperature"),
    (CHAT, "temperature", -1, "temperature"),
    (CHAT, "temperature", "hot", "temperature"),
    (CHAT, "top_p", 7, "top_p"),
    (CHAT, "frequency_penalty", 3, "frequency_penalty"),
    (CHAT, "presence_penalty", -3, "presence_penalty"),
    (CHAT, "stop", 5, "stop"),
    (CHAT, "stop", ["a"] * 17, "stop"),
    (CHAT, "stop", ["a", 5], "stop[1]"),
    (CHAT, "stream", "yes", "stream"),
    (CHAT, "stream_options", {"include_usage": True}, "stream_options"),
    (CHAT, "stream_options", 5, "stream_options"),
    (CHAT, "max_tokens", 0, "max_tokens"),
    (CHAT, "max_tokens", 2**63, "max_tokens"),
    (CHAT, "max_completion_tokens", -1, "max_completion_tokens"),
    (CHAT, "seed", 2**64, "seed"),
    (CHAT, "logit_bias", {"5": "x"}, None),
    (CHAT, "logprobs", 3, "logprobs"),
    (CHAT, "top_logprobs", 3, "top_logprobs"),
    (CHAT, "top_logprobs", 21, "top_logprobs"),
    (CHAT, "tools", {}, "tools"),
    (CHAT, "tools", [{"type": "magic"}], "tools[0].type"),
    (CHAT, "tools", [{}], "tools[0].type"),
    (CHAT, "tools", [TOOL, {"type": "function", "function": {}}], "tools[1].function"),
    (CHAT, "tools", [TOOL] * 129, "tools"),
    (CHAT, "tool_choice", 5, "tool_choice"),
    (CHAT, "response_format", "json", "response_format"),
    (CHAT, "metadata", [], "metadata"),
    (CHAT, "metadata", {str(i): "x" for i in range(17)}, "metadata"),
    (CHAT, "user", 5, "user"),
    (COMPLETIONS, "prompt", 5, "prompt"),
    (COMPLETIONS, "prompt", {"a": 1}, "prompt"),
    (COMPLETIONS, "prompt", [1, "a"], "prompt"),
    (COMPLETIONS, "prompt", [[1], []], "prompt"),
    (COMPLETIONS, "prompt", [-1], "prompt"),
    (COMPLETIONS, "prompt", [[2**40]], "prompt"),
    (COMPLETIONS, "best_of", 0, "best_of"),
    (COMPLETIONS, "best_of", 99, "best_of"),
    (COMPLETIONS, "logprobs", True, "logprobs"),
    (COMPLETIONS, "echo", "yes", "echo"),
    (EMBEDDINGS, "input", 5, "input"),
    (EMBEDDINGS, "input", ["a", 5], "input"),
    (EMBEDDINGS, "input", ["a"] * 2049, "input"),
    (EMBEDDINGS, "encoding_format", "hex", "encoding_format"),
    (EMBEDDINGS, "dimensions", 0, "dimensions"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "field", "value", "param"), BAD_FIELDS, ids=lambda v: str(v)[:30])
def test_a_bad_field_is_400_and_named(shared, path, field, value, param):
    assert_openai_error(shared.post(path, json=GOOD[path] | {field: value}), 400, param)


@pytest.mark.parametrize("path", GOOD)
def test_a_missing_model_is_400_and_an_unknown_one_404(shared, path):
    without = {name: value for name, value in GOOD[path].items() if name != "model"}
    assert assert_openai_error(shared.post(path, json=without), 400, "model")["code"] == "missing_required_parameter"
    error = assert_openai_error(shared.post(path, json=GOOD[path] | {"model": "sk-canary"}), 404, "model")
    assert error["code"] == "model_not_found"
    assert "canary" not in error["message"]


def nested(depth: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    return opening * depth + closing * depth


FREE_FORM = [
    (CHAT, b'"tools":%s'),
    (CHAT, b'"tools":[{"type":"function","function":{"name":"f","parameters":%s}}]'),
    (CHAT, b'"tool_choice":{"x":%s}'),
    (CHAT, b'"response_format":{"x":%s}'),
    (CHAT, b'"functions":[{"x":%s}]'),
    (CHAT, b'"function_call":{"x":%s}'),
    (CHAT, b'"structured_outputs":{"json":%s}'),
    (CHAT, b'"audio":{"x":%s}'),
    (CHAT, b'"prediction":{"x":%s}'),
    (CHAT, b'"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"x":%s}}]}]'),
    (COMPLETIONS, b'"structured_outputs":{"json":%s}'),
    (EMBEDDINGS, b'"input":%s'),
]
UNKNOWN = [(path, b'"no_such_field":%s') for path in GOOD]


def with_raw(path: str, field: bytes) -> bytes:
    return json.dumps(GOOD[path]).encode()[:-1] + b"," + field + b"}"


@pytest.mark.parametrize(("path", "field"), [*FREE_FORM, *UNKNOWN], ids=lambda v: str(v)[:40])
@pytest.mark.parametrize("brackets", [(b"[", b"]"), (b'{"a":', b"}")], ids=["arrays", "objects"])
def test_json_nested_100_000_deep_is_400(shared, path, field, brackets):
    opening, closing = brackets
    deep = opening * 100_000 + b"1" + closing * 100_000
    assert_openai_error(shared.post(path, content=with_raw(path, field % deep)), 400)


@pytest.mark.parametrize(("path", "field"), FREE_FORM[1:-1], ids=lambda v: str(v)[:40])
def test_free_form_json_may_be_64_deep_and_no_deeper(shared, path, field):
    assert shared.post(path, content=with_raw(path, field % nested(55))).status_code == 200
    assert_openai_error(shared.post(path, content=with_raw(path, field % nested(65))), 400)


@pytest.fixture(scope="module")
def direct(tmp_path_factory):
    """``direct(path, body)`` asks the app without a socket between: properties need many requests."""
    app, _ = build_app(tmp_path_factory.mktemp("direct"), [Emit("hello")])
    transport = httpx.ASGITransport(app, raise_app_exceptions=True)
    with asyncio.Runner() as runner:
        client = httpx.AsyncClient(transport=transport, base_url="http://localhost")
        started, over = asyncio.Event(), asyncio.Event()

        async def run() -> None:  # one task: what it begins ends in it
            async with app.lifespan():
                started.set()
                await over.wait()

        running = runner.get_loop().create_task(run())
        runner.run(started.wait())
        yield lambda path, body: runner.run(client.post(path, content=json.dumps(body).encode()))
        over.set()
        runner.run(asyncio.wait_for(running, 20))
        runner.run(client.aclose())


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
TYPES = {CHAT: ChatRequest, COMPLETIONS: CompletionRequest, EMBEDDINGS: EmbeddingRequest}
NAMES = [(path, f.encode_name) for path, type_ in TYPES.items() for f in msgspec.structs.fields(type_)]


@pytest.mark.parametrize(("path", "field"), NAMES)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=JSON_VALUES)
def test_no_value_of_any_field_gives_a_5xx(direct, path, field, value):
    response = direct(path, GOOD[path] | {field: value})
    if response.status_code == 200:
        return
    assert response.status_code in (400, 404), response.text
    assert_openai_error(response, response.status_code)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(messages=st.lists(st.fixed_dictionaries({}, optional={
    "role": st.sampled_from(["user", "assistant", "tool", "system"]) | JSON_VALUES, "content": JSON_VALUES,
    "tool_calls": JSON_VALUES, "name": JSON_VALUES, "tool_call_id": JSON_VALUES}), max_size=3))  # fmt: skip
def test_no_shape_of_messages_gives_a_5xx(direct, messages):
    response = direct(CHAT, {"model": "m", "messages": messages})
    assert response.status_code in (200, 400), response.text


@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_other_methods_on_a_hot_route_are_405(shared, path, method):
    allowed = ["POST", "GET", "HEAD"] if path == CHAT else ["POST"]
    if method in allowed:
        return
    response = shared.request(method, path)
    assert response.status_code == 405
    assert response.headers["allow"] == ", ".join(allowed)
    if method != "HEAD":
        assert_openai_error(response, 405)


def test_an_unknown_path_is_an_openai_404(shared):
    assert assert_openai_error(shared.get("/v1/no/such/path"), 404)["code"] == "unknown_url"
    assert_openai_error(shared.post("/livez"), 405)


@pytest.mark.parametrize("name", ["Qwen/Qwen3-0.6B", "a/b/c", "smollm2:135m", "größe 1"])
async def test_a_model_is_found_by_id_with_and_without_escapes(box, name):
    """LiteLLM#37271: an id with a slash was a 404, encoded or not."""
    async with box(None, {"models": [{"name": name, "engine": "scripted"}]}) as b:
        for path in (quote(name), quote(name, safe="")):
            assert (await b.client.get(f"/v1/models/{path}")).json()["id"] == name
            assert_openai_error(await b.client.get(f"/v1/models/{path}/x"), 404)
        assert [model.id async for model in b.openai.models.list()] == [name]
        assert (await b.openai.models.retrieve(name)).id == name
        assert (await b.openai.chat.completions.create(model=name, messages=HELLO)).model == name


@pytest.mark.parametrize("given", ["x" * 129, "a b", "a\tb", "{}", "ü".encode("latin-1").decode("latin-1")])
def test_a_request_id_that_does_not_belong_in_a_log_is_replaced(shared, given):
    response = shared.get("/livez", headers={"x-request-id": given.encode("latin-1")})
    assert response.headers["x-request-id"].startswith("req_")


# -- O-09, O-28: embeddings -----------------------------------------------------------------------------------


async def test_a_chat_model_makes_no_embeddings(box):
    async with box() as b:
        error = assert_openai_error(await b.client.post(EMBEDDINGS, json=GOOD[EMBEDDINGS]), 400)
        assert (error["param"], "answers chats" in error["message"]) == ("model", True)


async def test_refused_requests_are_recorded_as_refused(box):
    notebook = Notebook()
    config = {"models": [{"name": "m", "engine": "scripted", "options": {"max_context": 1}}]}
    async with box(None, config, notes=provides(recorders=[notebook])) as b:
        await b.chat(messages=[{"role": "user", "content": "one two"}])
    assert [(r.outcome, r.status, r.error_type) for r in notebook.records] == [
        ("refused", 400, "ContextLengthExceeded")
    ]


async def test_the_official_client_raises_its_own_errors(box):
    async with box() as b:
        with pytest.raises(openai.NotFoundError):
            await b.openai.chat.completions.create(model="other", messages=HELLO)
        with pytest.raises(openai.BadRequestError) as caught:
            await b.openai.chat.completions.create(model="m", messages=HELLO, top_p=7)
        assert caught.value.param == "top_p"


async def test_two_choices_of_a_plain_answer_come_together(box):
    async with box() as b:
        answer = await b.openai.chat.completions.create(model="m", messages=HELLO, n=2)
        streamed = await b.chat(n=2, stream=True)
    assert [choice.message.content for choice in answer.choices] == ["hello", "hello"]
    assert [text_of(streamed.content, i) for i in (0, 1)] == ["hello", "hello"]
