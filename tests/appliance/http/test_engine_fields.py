"""What clients may not say to an engine, on every route that asks one, and how streams tell that an engine died."""

from __future__ import annotations

import json
import time

import msgspec
import pytest
from every_route import GENERATING, label
from loopback import assert_openai_error, raw_answer, request_bytes, sse_events

from appliance.http.constraints import expanded, may_be_empty
from appliance.http.media import MediaRoute
from appliance.http.routes import TABLE
from appliance.testing import Emit, Fail

ENGINE_FIELDS = {
    "chat_template": "{{ 7 * 7 }}", "chat_template_kwargs": {"enable_thinking": True}, "prompt_embeds": "AAAA",
    "add_generation_prompt": False, "continue_final_message": True, "documents": [{"text": "a"}],
    "mm_processor_kwargs": {"a": 1}, "allowed_token_ids": [10**9], "bad_words": ["a"],
    "logits_processors": ["os.system"],
    "guided_json": {}, "guided_regex": "(a+)+b", "guided_grammar": "root ::= x", "guided_decoding_backend": "outlines",
    "kv_transfer_params": {"remote_host": "10.0.0.7"}, "vllm_xargs": {"a": 1}, "priority": -5, "request_id": "mine",
    "truncate_prompt_tokens": 1, "prompt_logprobs": 5, "skip_special_tokens": False, "return_token_ids": True,
    "add_special_tokens": True, "data_parallel_rank": 0, "lora_request": {"path": "/etc"}, "use_beam_search": True,
}  # fmt: skip
"""Of vLLM and its kin; each is a door to memory, files, templates or other people's requests."""
PARTS = ("prompt_embeds", "image_embeds", "audio_embeds", "tensor", "image_pil")
STREAMING = [
    entry
    for entry in TABLE
    if entry.body and "text/event-stream" in entry.media and not isinstance(entry.handler, MediaRoute)
]
"""Those of sound and pictures have tests of their own (test_media.py)."""
CHATS = ("/v1/chat/completions", "/v1/responses", "/v1/messages")


def test_every_route_that_streams_has_a_request_here():
    assert {entry.path for entry in STREAMING} == set(GENERATING)


@pytest.mark.parametrize("path", GENERATING)
async def test_C6_C9_engine_fields_of_a_client_never_reach_the_engine(box, path):
    async with box() as b:
        for name, value in ENGINE_FIELDS.items():
            seen = len(b.engine.diaries)
            reply = await b.client.post(path, json=GENERATING[path] | {name: value})
            assert reply.status_code in (200, 400), (name, reply.text)
            sent = msgspec.json.encode([diary.call.request for diary in b.engine.diaries[seen:]])
            assert f'"{name}"'.encode() not in sent, name


@pytest.mark.parametrize("part", PARTS)
async def test_C9_tensors_as_parts_of_a_message_are_400_on_every_chat_route(box, part):
    content = [{"type": part, part: {"data": "AAAA"}, "prompt_embeds": "AAAA"}]
    async with box() as b:
        for path in CHATS:
            turn = [{"role": "user", "content": content}]
            given = {"input": turn} if path.endswith("responses") else {"messages": turn}
            reply = await b.client.post(path, json=GENERATING[path] | given)
            assert reply.status_code == 400, (path, reply.text)
        assert not b.engine.diaries


LARGE = {
    "json": {"enum": ["x" * 1000] * 300},
    "regex": "a" * 5000,
    "grammar": "root ::= x\n" * 30_000,
    "choice": ["x" * 1000] * 300,
    "whitespace_pattern": " ?" * 3000,
}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("kind", LARGE)
async def test_C7_constraints_that_would_take_long_to_compile_are_400(box, path, kind):
    async with box() as b:
        reply = await b.client.post(path, json=GENERATING[path] | {"structured_outputs": {kind: LARGE[kind]}})
        assert_openai_error(reply, 400, "structured_outputs")
        assert not b.engine.diaries


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("name", ["_backend", "backend", "_backend_was_auto", "x" * 1000])
async def test_C7_a_client_never_chooses_what_compiles_its_grammar(box, path, name):
    async with box() as b:
        body = {"structured_outputs": {"regex": "a", name: "outlines"}}
        reply = await b.client.post(path, json=GENERATING[path] | body)
        error = assert_openai_error(reply, 400)
        assert error["param"].startswith("structured_outputs.")
        assert len(error["message"]) < 300
        assert not b.engine.diaries


@pytest.mark.parametrize("schema", [{"pattern": "(a+)+b" * 1000}, {"enum": ["x" * 1000] * 300}])
async def test_C7_schemas_have_bounds_on_every_chat_route(box, schema):
    schema = {"type": "object", "properties": {"a": {"type": "string", **schema}}}
    format_ = {"name": "a", "schema": schema}
    forms = {
        "/v1/chat/completions": {"response_format": {"type": "json_schema", "json_schema": format_}},
        "/v1/responses": {"text": {"format": {"type": "json_schema", **format_}}},
        "/v1/messages": {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
    }
    named = {"/v1/chat/completions": "response_format", "/v1/responses": "text.format"}
    async with box() as b:
        for path, given in forms.items():
            reply = await b.client.post(path, json=GENERATING[path] | given)
            assert reply.status_code == 400, (path, reply.text)
            error = reply.json()["error"]
            assert error["param"] == named.get(path, "output_config.format")
            assert error["message"].startswith(error["param"])
        assert not b.engine.diaries


@pytest.mark.parametrize(
    ("pattern", "length"),
    [
        ("abc", 3), ("a{3}", 3), ("a{2,5}b", 6), ("a{7,}", 7), ("(ab){3}c", 7), ("((a{9}){9}){9}", 729),
        ("[a{9}]{4}", 4), (r"\(a{3}", 4), (r"\\{3}", 3), ("(a|b{4}){2}", 12), ("a)b{3}", 5),
        ("((a{3}", 3), ("{4}", 0), ("a{x}", 4), ("x{" + "9" * 40 + "}", 999_999_999),
        ("(" * 2000 + "a" + "){2}" * 2000, 2**2000),
        # However an engine lets a count be spelled.
        ("a{00000000099}", 99), ("a{ 99 }", 99), ("a{9 9}", 99), ("a{,99}", 99), ("a{ 2 , 0099 }", 99), ("a{}", 1),
        ("a{,}", 1), ("a{1,2,3}", 3), ("(a{9})?{9}", 82), ("(a{9})*{9}+{9}", 731),
        # However an engine reads brackets.
        ("([])]a{9}){9}", 90), ("([^])]a{9}){9}", 90), ("([a[b])]c{9}){9}", 90), ("([[:alpha:]]{9}){9}", 90),
        ("[^^]{9}", 9), ("[(]a{99}", 100), ("[a{99}", 100),
    ],
)  # fmt: skip
def test_C7_the_counts_of_a_regular_expression_are_multiplied(pattern, length):
    assert min(expanded(pattern), 10**9) == min(length, 10**9)


EVIL = [
    "((a{1,100}){1,100}){1,100}", "a{60000}", "(" * 500 + "a" + "){2}" * 500, "(?:[a-z]{0,300}x){200}",
    "a{00000060000}", "a{ 60000 }", "a{,60000}", "([])]a{300}){300}", "(a{300})?{300}",
]  # fmt: skip


@pytest.mark.parametrize("pattern", EVIL)
async def test_C7_regular_expressions_that_are_long_once_they_are_written_out_are_400(box, pattern):
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}
    async with box() as b:
        reply = await b.chat(response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}})
        assert "counts multiplied" in assert_openai_error(reply, 400, "response_format")["message"]
        assert_openai_error(await b.chat(structured_outputs={"regex": pattern}), 400, "structured_outputs")
        assert not b.engine.diaries
        assert (await b.chat(structured_outputs={"regex": "[a-z]{1,63}(\\.[a-z]{1,63}){1,4}"})).status_code == 200


@pytest.mark.parametrize(
    "pattern", ["(?x)#[\n(a{99999}){9}#]", "(?ix:a)", "(?s-x)a", "(?#[)a{99999}(?#])", "(?x)a{9#\n9}"]
)
async def test_C7_regular_expressions_with_comments_which_could_hide_what_is_counted_are_400(box, pattern):
    async with box() as b:
        for constraint in ({"regex": pattern}, {"json": {"type": "string", "pattern": pattern}}):
            error = assert_openai_error(await b.chat(structured_outputs=constraint), 400, "structured_outputs")
            assert "comment or the flag x" in error["message"]
        assert not b.engine.diaries
        for fine in (r"\(?x{2}", "(?:x)", "(?=x)x", "(?P<xs>x)", "a # b"):
            assert (await b.chat(structured_outputs={"regex": fine})).status_code == 200, fine


@pytest.mark.parametrize(
    ("pattern", "parts"),
    [
        ("abc", 0), ("a?b*c+", 2), ("(a|b)", 0), ("(a|)(|b)(?:|c)(?P<n>|d)e|", 5), (r"\?\*\|", 0), ("[?*|]", 0),
        ("[?]*", 1), ("(?:a)(?=b)", 0), ("a+?", 0), ("a*?", 1), ("a{0,5}b{,5}c{ 0 }d{00}", 4), ("a{1,5}b{5}", 0),
        ("a{1,5}?", 0),
    ],
)  # fmt: skip
def test_C7_the_parts_of_a_regular_expression_that_may_match_nothing_are_counted(pattern, parts):
    assert may_be_empty(pattern) == parts


@pytest.mark.parametrize("pattern", ["[a-z ]?" * 64, "[a-z ]*" * 64, "([a-z]|)" * 64, "([a-z]{0,9})" * 64])
async def test_C7_expressions_that_may_skip_part_after_part_are_400(box, pattern):
    fine = {"anyOf": [{"type": "string", "pattern": "(ab?c*|d?)?" * 4} for _ in range(20)]}
    async with box() as b:
        for constraint in ({"regex": pattern}, {"json": {"type": "string", "pattern": pattern}}):
            error = assert_openai_error(await b.chat(structured_outputs=constraint), 400, "structured_outputs")
            assert "may match nothing" in error["message"]
        several = {"anyOf": [{"type": "string", "pattern": pattern[: len(pattern) // 2]} for _ in range(20)]}
        assert_openai_error(await b.chat(structured_outputs={"json": several}), 400, "structured_outputs")
        assert not b.engine.diaries
        assert (await b.chat(structured_outputs={"json": fine})).status_code == 200


def test_C7_C12_counting_takes_a_time_that_grows_with_the_length_alone():
    times = []
    for factor in (1, 8):
        patterns = [
            part * (500 * factor)
            for part in ("[", "(", "{1", "a{1,9}", "\\", "([{1,2}])", "{ ", " ", "{9 ", "[]", "[[", "(?")
        ]
        patterns.append("{" + " " * (2000 * factor))
        began = time.process_time()
        for pattern in patterns * 3:
            expanded(pattern)
            may_be_empty(pattern)
        times.append(time.process_time() - began)
    assert times[1] < 40 * times[0] + 0.05


def properties(number, **more):
    return {"type": "object", "properties": {f"p{i}": {"type": "boolean"} for i in range(number)}, **more}


EXPLODING = {
    "many": properties(513),
    "counted": properties(100, maxProperties=70),
    "from": properties(100, minProperties=50.0),
    "several": {"anyOf": [properties(60, minProperties=20, maxProperties=40) for _ in range(10)]},
}


@pytest.mark.parametrize("name", EXPLODING)
async def test_C7_schemas_of_too_many_or_counted_properties_are_400(box, name):
    schema = {"type": "array", "items": EXPLODING[name]}
    async with box() as b:
        reply = await b.chat(response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}})
        assert "ropert" in assert_openai_error(reply, 400, "response_format")["message"]
        tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
        assert_openai_error(await b.chat(tools=[tool]), 400, "tools[0]")
        assert not b.engine.diaries
        fine = {"items": [properties(512), properties(30, minProperties=1, maxProperties=20), {"properties": 5}]}
        reply = await b.chat(response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": fine}})
        assert reply.status_code == 200, reply.text


AS_TEXT = {
    "pattern": {"type": "string", "pattern": EVIL[0]},
    "properties": EXPLODING["many"],
    "depth": {"a": json.loads("[" * 100 + "]" * 100)},
}


@pytest.mark.parametrize("kind", ["json", "structural_tag"])
@pytest.mark.parametrize("name", AS_TEXT)
async def test_C7_a_schema_as_a_text_has_the_same_bounds(box, kind, name):
    async with box() as b:
        given = {kind: json.dumps({"schema": AS_TEXT[name]})}
        assert_openai_error(await b.chat(structured_outputs=given), 400, "structured_outputs")
        for text in ("{", "[" * 100_000, '"\\ud800"', ""):
            reply = await b.chat(structured_outputs={kind: text})
            assert "must be JSON" in assert_openai_error(reply, 400, "structured_outputs")["message"]
        assert not b.engine.diaries
        given = {kind: json.dumps({"type": "string", "pattern": "[a-z]{1,63}"})}
        assert (await b.chat(structured_outputs=given)).status_code == 200


LARGE_SCHEMAS = [
    {"properties": {"a": {"type": "string", "pattern": "(a+)+b" * 1000}}},
    {"properties": {"a": {"enum": ["x" * 1000] * 300}}},
    {"patternProperties": {"(a+)+b" * 1000: {}}},
]


@pytest.mark.parametrize("schema", LARGE_SCHEMAS, ids=["pattern", "size", "pattern of names"])
async def test_C7_schemas_of_tools_have_the_same_bounds_on_every_chat_route(box, schema):
    schema = {"type": "object", **schema}
    forms = {
        "/v1/chat/completions": {"function": {"name": "f", "parameters": schema}, "type": "function"},
        "/v1/responses": {"type": "function", "name": "f", "parameters": schema},
        "/v1/messages": {"name": "f", "input_schema": schema},
    }
    async with box() as b:
        for path, tool in forms.items():
            reply = await b.client.post(path, json=GENERATING[path] | {"tools": [tool]})
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tools[0]"), path
        functions = [{"name": "f", "parameters": schema}]
        assert_openai_error(await b.chat(functions=functions), 400, "functions[0]")
        assert not b.engine.diaries


async def test_C7_C14_regular_expressions_are_bounded_together_before_one_is_looked_at(box):
    schemas = [{"properties": {f"p{i}": {"pattern": "a{1}" * 1000} for i in range(6)}} for _ in range(3)]
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}} for schema in schemas]
    async with box() as b:
        assert (await b.chat(tools=tools[:2])).status_code == 200
        assert "65536 characters" in assert_openai_error(await b.chat(tools=tools), 400, "tools[2]")["message"]


async def test_too_many_tokens_are_refused_in_the_words_of_each_route(box):
    fields = {"/v1/chat/completions": "max_completion_tokens", "/v1/responses": "max_output_tokens"}
    async with box(config={"limits": {"max_completion_tokens": 50}}) as b:
        for path in CHATS:
            name = fields.get(path, "max_tokens")
            reply = await b.client.post(path, json=GENERATING[path] | {name: 51})
            assert reply.status_code == 400, (path, reply.text)
            assert reply.json()["error"]["param"] == name


@pytest.mark.parametrize("value", [{"x": 1}, {"-1": 1}, {"1.5": 1}, {"9" * 50: 1}, {"5": 101}, {"5": -101}, {"": 1}])
async def test_B11_what_is_no_token_id_or_no_bias_is_400(box, value):
    async with box() as b:
        assert_openai_error(await b.chat(logit_bias=value), 400)
        assert_openai_error(await b.chat(stop_token_ids=[-1]), 400)
        assert_openai_error(await b.chat(stop_token_ids=[2**31]), 400)
        assert (await b.chat(logit_bias={"5": 100, "6": -100}, stop_token_ids=[0])).status_code == 200


@pytest.mark.parametrize("entry", STREAMING, ids=label)
@pytest.mark.parametrize("said", [0, 1, 5])
async def test_R5_an_engine_that_dies_in_a_stream_ends_it_with_an_error_of_the_routes_own_form(box, entry, said):
    script = [*[Emit("word ") for _ in range(said)], Fail("CUDA error at 0x7f00 in /usr/lib/engine.so")]
    body = GENERATING[entry.path] | {"stream": True}
    async with box(script) as b:
        status, _, raw = await raw_answer(b.url, request_bytes(entry.path, body))
        b.engine.script = [Emit("next")]
        assert (await b.client.post(entry.path, json=GENERATING[entry.path])).status_code == 200
    if status != 200:
        assert (status >= 500, said) == (True, 0)
        return
    *_, last = [json.loads(event) for event in sse_events(raw)]
    assert "error" in last or last["type"] == "response.failed"
    for word in (b"[DONE]", b'"stop"', b"message_stop", b"response.completed", b"0x7f", b"/usr/lib", b"end_turn"):
        assert word not in raw


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_allowed_tools_that_name_none_of_the_tools_leave_the_engine_without_the_field(box, path):
    plain = path.endswith("responses")
    function, wanted = {"name": "clock", "parameters": {"type": "object"}}, [{"type": "function", "name": "other"}]
    tool = {"type": "function", **function} if plain else {"type": "function", "function": function}
    narrowed = {"mode": "required", "tools": wanted}
    choice = {"type": "allowed_tools", **(narrowed if plain else {"allowed_tools": narrowed})}
    async with box([Emit("a")]) as b:
        reply = await b.client.post(path, json=GENERATING[path] | {"tools": [tool], "tool_choice": choice})
        assert reply.status_code == 200, reply.text
        (diary,) = b.engine.diaries
        assert not {"tools", "tool_choice"} & msgspec.to_builtins(diary.call.request).keys()
