"""The engine ``openai`` against a scripted upstream on loopback."""

from __future__ import annotations

import logging
import socket
import time

import msgspec
import pytest
from engine_upstream import Exchange, UpstreamServer, choice
from openai_engine_kit import KEY, assert_generic, chat, json_spaced, make, piece, texts

from appliance.plugin import (
    BadRequest,
    Call,
    ConfigError,
    ContextLengthExceeded,
    EmbeddingRequest,
    EngineError,
    EngineTimeout,
    EngineUnavailable,
    ModelSpec,
    RateLimited,
    RequestError,
    RerankRequest,
    ScoreRequest,
    TooLarge,
)
from appliance.testing.contracts.engine import EngineContract, collect, generate
from appliance_engines.openai import OpenAIEngine, OpenAIOptions, make_engine


class TestOpenAIEngine(EngineContract):
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
