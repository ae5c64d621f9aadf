"""The engine ``openai`` against a scripted upstream on loopback."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import socket
import time
from collections.abc import AsyncIterator

import msgspec
import pytest
from engine_upstream import Exchange, UpstreamServer, choice, event, hello_events, usage
from eventually import until

from appliance.plugin import (
    BadRequest,
    Call,
    ChatRequest,
    ConfigError,
    ContextLengthExceeded,
    EmbeddingRequest,
    EngineError,
    EngineTimeout,
    EngineUnavailable,
    Message,
    ModelSpec,
    RateLimited,
    RequestError,
    RerankRequest,
    ScoreRequest,
    TooLarge,
)
from appliance.testing.contracts.engine import EngineContract, collect, generate, text_of
from appliance_engines.openai import OpenAIEngine, OpenAIOptions, make_engine

KEY = "sk-upstream-secret"


def chat(*, stream: bool = True, model: str = "m", **fields: object) -> Call:
    request = ChatRequest(model=model, messages=[Message(role="user", content="hi")], **fields)
    return Call(id="call", operation="chat", model=model, request=request, stream=stream)


def make(base_url: str, **options: object) -> OpenAIEngine:
    spec = ModelSpec(name="m", where="models[0]", options={"base_url": base_url, "api_key": KEY, **options})
    return make_engine(spec, None)  # type: ignore[arg-type]


@pytest.fixture
async def engine(upstream: UpstreamServer) -> AsyncIterator[OpenAIEngine]:
    engine = make(upstream.base_url, model="upstream-model")
    await engine.start()
    yield engine
    await engine.stop()


class TestOpenAIEngine(EngineContract):
    @pytest.fixture
    async def engine(self, upstream: UpstreamServer) -> AsyncIterator[OpenAIEngine]:
        engine = make(upstream.base_url, model="upstream-model")
        await engine.start()
        yield engine
        await engine.stop()

    @pytest.fixture
    def unstarted_engine(self, upstream: UpstreamServer) -> OpenAIEngine:
        return make(upstream.base_url)


# -- what is sent --------------------------------------------------------------------------------------------


async def test_the_request_has_the_upstreams_model_name_the_key_and_no_nulls(
    engine: OpenAIEngine, upstream: UpstreamServer
) -> None:
    await collect(await engine.generate(chat(stream=False, temperature=0.5, stop=["a"])))
    sent = upstream.exchanges[-1]
    assert sent.path == "/v1/chat/completions"
    assert sent.headers["authorization"] == f"Bearer {KEY}"
    assert sent.body == {
        "model": "upstream-model",
        "messages": [{"role": "user", "content": "hi"}],
        "temperature": 0.5,
        "stop": ["a"],
    }


async def test_streams_always_ask_for_token_counts(engine: OpenAIEngine, upstream: UpstreamServer) -> None:
    await collect(await engine.generate(chat()))
    assert upstream.exchanges[-1].body["stream"] is True
    assert upstream.exchanges[-1].body["stream_options"] == {"include_usage": True}


async def test_what_the_client_wants_kept_is_not_kept_by_the_server_too(
    engine: OpenAIEngine, upstream: UpstreamServer
) -> None:
    await collect(await engine.generate(chat(store=True, metadata={"a": "b"})))
    assert not {"store", "metadata"} & set(upstream.exchanges[-1].body)


async def test_texts_are_ranked_where_the_server_ranks(engine: OpenAIEngine, upstream: UpstreamServer) -> None:
    request = RerankRequest(model="m", query="q", documents=["a", "b"], top_n=1)

    async def ranks(exchange: Exchange) -> None:
        await exchange.json(200, {"model": "upstream-model", "results": [{"index": 1, "relevance_score": 0.5}]})

    upstream.script = ranks
    call = Call(id="call", operation="rerank", model="m", request=request)
    (answer,) = await collect(await engine.generate(call))
    assert answer.body["results"] == [{"index": 1, "relevance_score": 0.5}]
    sent = upstream.exchanges[-1]
    assert (sent.path, sent.body) == ("/v1/rerank", {**msgspec.to_builtins(request), "model": "upstream-model"})


async def test_a_server_that_ranks_nothing_is_the_clients_mistake(
    engine: OpenAIEngine, upstream: UpstreamServer
) -> None:
    async def unknown(exchange: Exchange) -> None:
        await exchange.json(404, {"detail": "Not Found"})

    upstream.script = unknown
    request = ScoreRequest(model="m", text_1="a", text_2="b")
    with pytest.raises(BadRequest, match="ranks no texts") as refused:
        await engine.generate(Call(id="call", operation="score", model="m", request=request))
    assert refused.value.param == "model"


async def test_fields_that_configuration_passes_on_reach_the_body_but_override_nothing(
    engine: OpenAIEngine, upstream: UpstreamServer
) -> None:
    await collect(await engine.generate(chat(extra={"x_new": [1], "model": "other"})))
    sent = upstream.exchanges[-1].body
    assert sent["x_new"] == [1]
    assert sent["model"] == "upstream-model"
    assert "extra" not in sent


async def test_configured_headers_and_the_trace_are_sent(upstream: UpstreamServer) -> None:
    engine = make(upstream.base_url, headers={"x-team": "blue"})
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await collect(await engine.generate(msgspec.structs.replace(chat(), headers={"traceparent": trace})))
    assert upstream.exchanges[-1].headers["x-team"] == "blue"
    assert upstream.exchanges[-1].headers["traceparent"] == trace
    await engine.stop()


async def test_a_trace_header_that_could_smuggle_is_left_out(engine: OpenAIEngine, upstream: UpstreamServer) -> None:
    await collect(await engine.generate(msgspec.structs.replace(chat(), headers={"traceparent": "a\r\nx-evil: 1"})))
    assert "x-evil" not in upstream.exchanges[-1].headers


async def test_embeddings_go_to_their_own_path(engine: OpenAIEngine, upstream: UpstreamServer) -> None:
    async def vectors(exchange: Exchange) -> None:
        await exchange.json(200, {"object": "list", "data": [{"embedding": [0.5], "index": 0}], "model": "up"})

    upstream.script = vectors
    call = Call(id="e", operation="embeddings", model="m", request=EmbeddingRequest(model="m", input=["a"]))
    (chunk,) = await collect(await engine.generate(call))
    assert upstream.exchanges[-1].path == "/v1/embeddings"
    assert upstream.exchanges[-1].body == {"model": "upstream-model", "input": ["a"]}
    assert chunk.body["model"] == "m"
    assert chunk.body["data"][0]["embedding"] == [0.5]


async def test_connections_are_used_again_after_plain_answers_and_whole_streams(
    engine: OpenAIEngine, upstream: UpstreamServer
) -> None:
    for _ in range(3):
        await collect(await engine.generate(chat()))
        await collect(await engine.generate(chat(stream=False)))
    assert upstream.connections == 2


# -- streams as they come ------------------------------------------------------------------------------------


async def play(upstream: UpstreamServer, engine: OpenAIEngine, raw: bytes, size: int | None = None) -> list[dict]:
    """Stream ``raw`` in pieces of ``size`` bytes (default: all at once) and decode the chunks that come out."""

    async def script(exchange: Exchange) -> None:
        await exchange.begin()
        for start in range(0, len(raw), size or len(raw)):
            await exchange.send(raw[start : start + (size or len(raw))])
        await exchange.end()

    upstream.script = script
    return [chunk.body for chunk in await collect(await engine.generate(chat()))]


def texts(bodies: list[dict]) -> list[str]:
    return [body["choices"][0]["delta"]["content"] for body in bodies if body["choices"]]


BASE = {"id": "c", "created": 1, "model": "up"}


def piece(text: str, reason: str | None = None) -> dict:
    return {**BASE, "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason}]}


END = event(piece("", "stop")) + b"data: [DONE]\n\n"


async def test_o03_characters_cut_between_reads_survive(engine: OpenAIEngine, upstream: UpstreamServer) -> None:
    bodies = await play(upstream, engine, event(piece("你好 🙂")) + END, size=1)
    assert texts(bodies) == ["你好 🙂", ""]


@pytest.mark.parametrize("size", [1, 2, 3, 7, None])
@pytest.mark.parametrize("comment", [b": working\n\n", b":\n\n", b": one\n: two\n\n"])
async def test_o05_comments_never_come_out(
    engine: OpenAIEngine, upstream: UpstreamServer, comment: bytes, size: int | None
) -> None:
    bodies = await play(upstream, engine, comment * 3 + event(piece("a")) + comment + event(piece("b")) + END, size)
    assert texts(bodies) == ["a", "b", ""]


@pytest.mark.parametrize("size", [1, 2, 5, None])
async def test_o05_crlf_no_space_two_data_lines_and_other_fields_all_parse(
    engine: OpenAIEngine, upstream: UpstreamServer, size: int | None
) -> None:
    one = json.dumps(piece("a"), indent=0).encode()
    raw = (
        b"".join(b"data: %s\r\n" % line for line in one.split(b"\n"))
        + b"\r\n"
        + event(piece("b")).replace(b"data: ", b"data:").replace(b"\n", b"\r\n")
        + b"event: message\nid: 7\n"
        + event(piece("c"))
        + b"data:\n\n"
        + b"event: ping\n\n"
        + END.replace(b"\n", b"\r\n").replace(b"data: [DONE]", b"data:[DONE]")
    )
    assert texts(await play(upstream, engine, raw, size)) == ["a", "b", "c", ""]


async def test_the_clients_model_name_replaces_the_upstreams_in_every_event(
    engine: OpenAIEngine, upstream: UpstreamServer
) -> None:
    events = [{**piece("a"), "model": name} for name in ("", "up-1", "up-2")]
    raw = b"".join(map(event, events)) + json_spaced(piece("d")) + END
    bodies = await play(upstream, engine, raw)
    assert {body["model"] for body in bodies} == {"m"}


def json_spaced(body: dict) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


async def test_text_that_looks_like_fields_stays_as_it_is(engine: OpenAIEngine, upstream: UpstreamServer) -> None:
    tricky = '"model":"up" "error": {"finish_reason":"stop"} data: [DONE]\n\ndata: x'
    bodies = await play(upstream, engine, event(piece(tricky)) + END)
    assert texts(bodies)[0] == tricky


async def test_what_a_server_adds_for_itself_and_leaves_empty_is_left_out(
    engine: OpenAIEngine, upstream: UpstreamServer
) -> None:
    own = {"token_ids": None, "prompt_text": None, "kv_transfer_params": None}
    tricky = 'say ,"token_ids":null'
    raw = event({**piece(tricky), **own}) + event({**piece("b"), "stop_reason": "END"}) + END
    bodies = await play(upstream, engine, raw)
    assert texts(bodies)[:2] == [tricky, "b"]
    assert not set(own) & set(bodies[0])
    assert bodies[1]["stop_reason"] == "END"


async def test_an_event_whose_error_is_null_is_no_error(engine: OpenAIEngine, upstream: UpstreamServer) -> None:
    bodies = await play(upstream, engine, event({**piece("a"), "error": None}) + END)
    assert texts(bodies) == ["a", ""]


async def test_nothing_after_done_comes_out(engine: OpenAIEngine, upstream: UpstreamServer) -> None:
    assert texts(await play(upstream, engine, event(piece("a")) + END + event(piece("late")))) == ["a", ""]


async def test_events_pass_as_bytes_when_the_names_agree(upstream: UpstreamServer) -> None:
    engine = make(upstream.base_url)
    chunks = await collect(await engine.generate(chat()))
    assert [chunk.event for chunk in chunks] == hello_events(upstream.exchanges[-1])[:-1]
    await engine.stop()


# -- streams that go wrong -----------------------------------------------------------------------------------


async def broken(upstream: UpstreamServer, engine: OpenAIEngine, raw: bytes, *, cut: bool = False) -> list[str]:
    """Stream ``raw`` and end; return the texts before the error, which must come."""

    async def script(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.send(raw)
        exchange.cut() if cut else await exchange.end()

    upstream.script = script
    got: list[str] = []
    generation = await generate(engine, chat())
    try:
        async for chunk in generation:
            got += texts([chunk.body])
    except EngineError as error:
        assert_generic(error)
    else:
        pytest.fail("the stream ended as if it were whole")
    with pytest.raises(StopAsyncIteration):
        await anext(generation)
    return got


def assert_generic(error: RequestError) -> None:
    message = str(error)
    assert "127.0.0.1" not in message
    assert "0x7f" not in message
    assert "/opt/" not in message
    assert KEY not in message
    assert "\n" not in message


async def test_o04_an_error_event_raises_without_the_engines_words(
    engine: OpenAIEngine, upstream: UpstreamServer
) -> None:
    failure = {"error": {"message": "RuntimeError: out of memory at 0x7f00 in /opt/x.py", "code": 500}}
    raw = event(piece("par")) + event(piece("tial")) + json_spaced(failure) + b"data: [DONE]\n\n"
    assert await broken(upstream, engine, raw) == ["par", "tial"]


async def test_o04_a_bare_error_body_in_mid_stream_raises(engine: OpenAIEngine, upstream: UpstreamServer) -> None:
    assert await broken(upstream, engine, event(piece("par")) + b'{"error": {"message": "x"}}\n') == ["par"]


async def test_an_error_given_as_text_raises(engine: OpenAIEngine, upstream: UpstreamServer) -> None:
    assert await broken(upstream, engine, event(piece("a")) + b"data: internal failure\n\n" + END) == ["a"]


@pytest.mark.parametrize("cut", [True, False])
async def test_a_stream_without_done_broke_off(engine: OpenAIEngine, upstream: UpstreamServer, cut: bool) -> None:
    assert await broken(upstream, engine, event(piece("a")) + event(piece("", "stop")), cut=cut) == ["a", ""]


async def test_a_stream_cut_within_an_event_broke_off(engine: OpenAIEngine, upstream: UpstreamServer) -> None:
    assert await broken(upstream, engine, event(piece("a")) + event(piece("🙂"))[:-20]) == ["a"]


async def test_done_without_a_finish_reason_is_no_end(engine: OpenAIEngine, upstream: UpstreamServer) -> None:
    assert await broken(upstream, engine, event(piece("a")) + b"data: [DONE]\n\n") == ["a"]


async def test_an_event_over_the_limit_raises(engine: OpenAIEngine, upstream: UpstreamServer) -> None:
    assert await broken(upstream, engine, event(piece("a")) + b"data: {" + b"x" * (9 * 2**20)) == ["a"]


async def test_the_next_call_works_after_a_broken_stream(engine: OpenAIEngine, upstream: UpstreamServer) -> None:
    script = upstream.script
    await broken(upstream, engine, event(piece("a")))
    upstream.script = script
    assert text_of(await collect(await engine.generate(chat()))) == "Hello there."


# -- refusals ------------------------------------------------------------------------------------------------


async def refused(
    upstream: UpstreamServer, engine: OpenAIEngine, status: int, body: object, **headers: str
) -> RequestError:
    async def script(exchange: Exchange) -> None:
        await exchange.json(status, body, {name.replace("_", "-"): value for name, value in headers.items()})

    upstream.script = script
    errors = []
    for stream in (True, False):
        with pytest.raises(RequestError) as error:
            await generate(engine, chat(stream=stream))
        assert_generic(error.value)
        errors.append(error.value)
    assert [str(error) for error in errors] == [str(errors[0])] * 2
    return errors[0]


async def test_o06_a_bad_parameter_is_400_with_the_upstreams_words(
    engine: OpenAIEngine, upstream: UpstreamServer
) -> None:
    body = {"error": {"message": "top_p must be in (0, 1], got 7.0.", "param": "top_p", "code": 400}}
    error = await refused(upstream, engine, 400, body)
    assert isinstance(error, BadRequest)
    assert str(error) == "top_p must be in (0, 1], got 7.0."
    assert error.param == "top_p"
    assert error.code is None


async def test_o06_a_prompt_over_the_context_has_the_code_for_it(
    engine: OpenAIEngine, upstream: UpstreamServer
) -> None:
    message = "This model's maximum context length is 2048 tokens. However, your prompt contains at least 2049."
    for body in (
        {"error": {"message": message, "param": "input_tokens", "code": 400}},
        {"error": {"message": "too long", "code": "context_length_exceeded"}},
        {"error": {"message": "the request exceeds the available context size", "type": "exceed_context_size_error"}},
    ):
        error = await refused(upstream, engine, 400, body)
        assert isinstance(error, ContextLengthExceeded)
        assert (error.code, error.param) == ("context_length_exceeded", "messages")


@pytest.mark.parametrize(
    ("code", "kind"), [(400, BadRequest), (429, RateLimited), (500, EngineError), (None, EngineError)]
)
async def test_o06_a_refusal_that_comes_as_the_first_event_is_raised_before_the_stream_begins(
    engine: OpenAIEngine, upstream: UpstreamServer, code: int | None, kind: type[RequestError]
) -> None:
    failure = {"error": {"message": "Grammar error: invalid type", "param": "response_format", "code": code}}

    async def script(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.send(b": hello\n\n" + json_spaced(failure) + b"data: [DONE]\n\n")
        await exchange.end()

    upstream.script = script
    with pytest.raises(kind) as error:
        await generate(engine, chat())
    if code == 400:
        assert (str(error.value), error.value.param) == ("Grammar error: invalid type", "response_format")


async def test_a_printed_validation_error_becomes_a_sentence(engine: OpenAIEngine, upstream: UpstreamServer) -> None:
    message = (
        "1 validation error:\n  {'type': 'int_parsing', 'loc': 'body.n', "
        "'msg': 'Input should be a valid integer', 'input': 'my secret prompt'}"
    )
    body = {"error": {"message": message, "type": "Bad Request", "param": "body.n", "code": 400}}
    error = await refused(upstream, engine, 422, body)
    assert (str(error), error.param) == ("Input should be a valid integer", "n")


@pytest.mark.parametrize(
    "message",
    [
        "KeyError: 'x'",
        "failed at 0x7f0012345678",
        "see /opt/vllm/engine.py",
        "Traceback (most recent call last)",
        None,
        7,
    ],
)
async def test_words_about_the_engines_insides_are_replaced(
    engine: OpenAIEngine, upstream: UpstreamServer, message: object
) -> None:
    error = await refused(upstream, engine, 400, {"error": {"message": message}})
    assert str(error) == "the model refused the request; check its fields"


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[1]", b'{"detail":"Not Found"}', b'{"error":"no"}', b"\xff", b"[" * 99999]
)
@pytest.mark.parametrize("status", [400, 500])
async def test_error_bodies_of_any_shape_are_understood_or_ignored(
    engine: OpenAIEngine, upstream: UpstreamServer, body: bytes, status: int
) -> None:
    assert (await refused(upstream, engine, status, body)).status in (400, 502)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_key_is_our_fault_and_names_the_setting(
    engine: OpenAIEngine, upstream: UpstreamServer, status: int
) -> None:
    error = await refused(upstream, engine, status, {"error": {"message": f"Incorrect API key provided: {KEY}"}})
    assert isinstance(error, EngineError)
    assert str(error) == "the upstream refused our key: check models[0].options.api_key"


async def test_a_missing_path_names_the_settings(engine: OpenAIEngine, upstream: UpstreamServer) -> None:
    error = await refused(upstream, engine, 404, {"detail": "Not Found"})
    assert isinstance(error, EngineError)
    assert "models[0].options.model and base_url" in str(error)


@pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), ("soon", 1.0)])
async def test_the_upstreams_rate_limit_says_when_to_come_back(
    engine: OpenAIEngine, upstream: UpstreamServer, header: str, seconds: float
) -> None:
    error = await refused(upstream, engine, 429, {}, retry_after=header)
    assert isinstance(error, RateLimited)
    assert error.retry_after == seconds


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (500, EngineError),
        (502, EngineError),
        (503, EngineUnavailable),
        (504, EngineTimeout),
        (408, EngineTimeout),
        (413, TooLarge),
        (302, EngineError),
        (204, EngineError),
    ],
)
async def test_failures_map_to_their_kinds(
    engine: OpenAIEngine, upstream: UpstreamServer, status: int, kind: type[RequestError]
) -> None:
    error = await refused(upstream, engine, status, b"")
    assert type(error) is kind


async def test_a_plain_answer_that_holds_an_error_is_no_answer(engine: OpenAIEngine, upstream: UpstreamServer) -> None:
    error = await refused(upstream, engine, 200, {"error": {"message": "overloaded"}})
    assert isinstance(error, EngineError)


@pytest.mark.parametrize("body", [b"", b"hello", b"[]"])
async def test_a_plain_answer_that_is_no_object_is_no_answer(
    engine: OpenAIEngine, upstream: UpstreamServer, body: bytes
) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.json(200, body)

    upstream.script = script
    with pytest.raises(EngineError):
        await generate(engine, chat(stream=False))


async def test_a_stream_answered_with_json_is_an_error(engine: OpenAIEngine, upstream: UpstreamServer) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.json(200, piece("all at once"))

    upstream.script = script
    with pytest.raises(EngineError, match="does not stream"):
        await generate(engine, chat())


# -- silence and absence -------------------------------------------------------------------------------------


async def silent(exchange: Exchange) -> None:
    await exchange.wait_for_close()


@pytest.mark.parametrize(("stream", "option"), [(True, "first_byte_timeout"), (False, "timeout")])
async def test_a_silent_upstream_times_out(upstream: UpstreamServer, stream: bool, option: str) -> None:
    upstream.script = silent
    engine = make(upstream.base_url, **{option: 0.1})
    with pytest.raises(EngineTimeout):
        await generate(engine, chat(stream=stream))
    await engine.stop()


async def test_silence_in_mid_stream_times_out(upstream: UpstreamServer) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.send(choice(exchange, "a"))
        await exchange.wait_for_close()

    upstream.script = script
    engine = make(upstream.base_url, idle_timeout=0.5)
    generation = await generate(engine, chat())
    assert texts([(await anext(generation)).body]) == ["a"]
    with pytest.raises(EngineTimeout):
        await anext(generation)
    await engine.stop()


async def test_an_absent_upstream_is_unavailable_and_the_model_not_ready_until_it_is_back(
    upstream: UpstreamServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        engine = make(f"http://127.0.0.1:{taken.getsockname()[1]}/v1")
        with pytest.raises(EngineUnavailable) as error:
            await generate(engine, chat())
    assert error.value.retry_after == 1.0
    assert_generic(error.value)
    assert not engine.ready
    later = time.monotonic() + 5.1
    monkeypatch.setattr("appliance_engines.openai.time.monotonic", lambda: later)
    assert engine.ready
    await engine.stop()


async def test_a_connection_closed_without_an_answer_is_an_engine_error(
    engine: OpenAIEngine, upstream: UpstreamServer
) -> None:
    async def script(exchange: Exchange) -> None:
        exchange.cut()

    upstream.script = script
    with pytest.raises(EngineError, match="without an answer"):
        await generate(engine, chat())


async def test_start_without_the_upstream_only_warns(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        engine = make(f"http://127.0.0.1:{taken.getsockname()[1]}/v1")
        with caplog.at_level(logging.WARNING):
            await engine.start()
    assert "check models[0].options.base_url" in caplog.text
    assert KEY not in caplog.text
    await engine.stop()


async def test_start_warns_of_a_refused_key(upstream: UpstreamServer, caplog: pytest.LogCaptureFixture) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.json(401, {})

    upstream.script = script
    engine = make(upstream.base_url)
    with caplog.at_level(logging.WARNING):
        await engine.start()
    assert "check models[0].options.api_key" in caplog.text
    await engine.stop()


# -- giving up -----------------------------------------------------------------------------------------------


async def endless(exchange: Exchange) -> None:
    await exchange.begin()
    while True:
        await exchange.send(choice(exchange, "x"))
        await asyncio.sleep(0.001)


async def aborted(upstream: UpstreamServer) -> None:
    await until(upstream.aborted.is_set, 1.0)


async def test_o01_closing_in_mid_stream_reaches_the_upstream(engine: OpenAIEngine, upstream: UpstreamServer) -> None:
    upstream.script = endless
    generation = await generate(engine, chat())
    for _ in range(3):
        await anext(generation)
    await generation.aclose()
    await aborted(upstream)


async def test_o01_closing_before_the_first_chunk_reaches_the_upstream(
    engine: OpenAIEngine, upstream: UpstreamServer
) -> None:
    upstream.script = endless
    await (await generate(engine, chat())).aclose()
    await aborted(upstream)


@pytest.mark.parametrize("stream", [True, False])
async def test_o01_cancelling_a_call_that_waits_reaches_the_upstream(
    engine: OpenAIEngine, upstream: UpstreamServer, stream: bool
) -> None:
    began = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        began.set()
        await exchange.wait_for_close()
        upstream.aborted.set()

    upstream.script = script
    task = asyncio.create_task(generate(engine, chat(stream=stream)))
    async with asyncio.timeout(20):
        await began.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await aborted(upstream)


async def test_o01_a_stream_that_is_dropped_unread_reaches_the_upstream(
    engine: OpenAIEngine, upstream: UpstreamServer
) -> None:
    upstream.script = endless
    generation = await generate(engine, chat())
    del generation
    gc.collect()
    await aborted(upstream)


async def test_an_upstream_that_keeps_the_body_open_after_done_does_not_hold_the_client(
    engine: OpenAIEngine, upstream: UpstreamServer
) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.send(choice(exchange, "a", "stop") + usage(exchange) + b"data: [DONE]\n\n")
        await exchange.wait_for_close()
        upstream.aborted.set()

    upstream.script = script
    async with asyncio.timeout(20):
        assert text_of(await collect(await engine.generate(chat()))) == "a"
    await aborted(upstream)


# -- options -------------------------------------------------------------------------------------------------


def test_neither_the_key_nor_headers_show_in_the_options_repr() -> None:
    options = OpenAIOptions(base_url="http://h/v1", api_key=KEY, headers={"x-key": KEY})
    assert KEY not in repr(options)
    assert KEY not in str(options.__rich_repr__())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "base_url"),
        ({"base_url": "ftp://host"}, "models[0].options: the base URL"),
        ({"base_url": "http://user:pw@host"}, "user name"),
        ({"base_url": "http://host", "timeout": 0}, "models[0].options.timeout"),
        ({"base_url": "http://host", "urls": 1}, "urls"),
        ({"base_url": "http://host", "api_key": "a\nb"}, "models[0].options.api_key"),
        ({"base_url": "http://host", "headers": {"x-a": "ü"}}, "models[0].options.headers.x-a"),
    ],
)
def test_bad_options_name_their_place_and_no_secret(options: dict, named: str) -> None:
    with pytest.raises(ConfigError) as error:
        make_engine(ModelSpec(name="m", where="models[0]", options=options), None)  # type: ignore[arg-type]
    assert named in str(error.value)
    assert "a\nb" not in str(error.value)
    assert "pw" not in str(error.value)


def test_extra_args_are_refused() -> None:
    spec = ModelSpec(name="m", where="models[0]", options={"base_url": "http://h"}, extra_args=("--x",))
    with pytest.raises(ConfigError, match=r"models\[0\]\.extra_args"):
        make_engine(spec, None)  # type: ignore[arg-type]
