import asyncio

import pytest
from eventually import eventually
from loopback import http_client
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode
from traces_kit import Traces

from appliance.plugin import (
    BadRequest,
    Call,
    ChatRequest,
    CompletionRequest,
    ConfigError,
    EngineError,
    Message,
    Telemetry,
    convert,
)
from appliance.testing import Emit, Fail, ScriptedPlugin, Wait, make_app, serving
from appliance_observability.otel import OtelSettings, Plugin

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE_ID}-{PARENT_ID}-01"


def call(**fields) -> Call:
    request = ChatRequest(
        model="m", messages=[Message(role="user", content="secret")], max_tokens=5, temperature=0.0, seed=7
    )
    return Call(**{"id": "req_1", "operation": "chat", "model": "m", "request": request, "stream": True, **fields})


@pytest.fixture
def traces():
    return Traces()


@pytest.fixture
def telemetry(traces):
    return traces.telemetry


def test_it_is_telemetry(telemetry):
    assert isinstance(telemetry, Telemetry)


def test_a_call_is_a_server_span_with_the_genai_names(telemetry, traces):
    span = telemetry.start_call(call(), "/v1/chat/completions")
    span.set("gen_ai.usage.output_tokens", 3)
    span.end()
    (finished,) = traces.spans
    assert (finished.name, finished.kind) == ("chat m", SpanKind.SERVER)
    assert finished.attributes["gen_ai.operation.name"] == "chat"
    assert finished.attributes["gen_ai.request.model"] == "m"
    assert finished.attributes["gen_ai.request.max_tokens"] == 5
    assert finished.attributes["gen_ai.request.temperature"] == 0.0
    assert finished.attributes["gen_ai.request.seed"] == 7
    assert finished.attributes["gen_ai.usage.output_tokens"] == 3
    assert finished.attributes["http.route"] == "/v1/chat/completions"
    assert finished.resource.attributes["service.name"] == "appliance"


def test_completions_are_text_completion(telemetry, traces):
    request = CompletionRequest(model="m", prompt="secret")
    telemetry.start_call(call(operation="completion", request=request), "/v1/completions").end()
    assert traces.spans[0].name == "text_completion m"


def test_o36_the_callers_trace_is_continued_and_handed_on(telemetry, traces):
    span = telemetry.start_call(call(headers={"traceparent": TRACEPARENT, "tracestate": "a=b"}), "/x")
    step = telemetry.start_step(span, "retrieval", {"gen_ai.retrieval.top_k": 5})
    headers = telemetry.headers(step)
    step.end()
    span.end()
    child, server = traces.spans
    assert f"{server.context.trace_id:032x}" == TRACE_ID
    assert f"{server.parent.span_id:016x}" == PARENT_ID
    assert child.parent.span_id == server.context.span_id
    assert child.attributes["gen_ai.retrieval.top_k"] == 5
    assert headers == {"traceparent": f"00-{TRACE_ID}-{child.context.span_id:016x}-01", "tracestate": "a=b"}


@pytest.mark.parametrize("header", ["", "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "00-ü", "x" * 10_000])
def test_a_broken_traceparent_starts_a_new_trace(telemetry, traces, header):
    telemetry.start_call(call(headers={"traceparent": header}), "/x").end()
    assert traces.spans[0].parent is None


def test_calls_do_not_become_children_of_each_other(telemetry, traces):
    spans = [telemetry.start_call(call(), "/x") for _ in range(3)]
    for span in spans:
        span.end()
    assert len({span.context.trace_id for span in traces.spans}) == 3


def test_errors_are_named_and_only_our_own_words_are_kept(telemetry, traces):
    for error in (EngineError("the engine broke off"), ValueError("secret"), BadRequest("bad field")):
        span = telemetry.start_call(call(), "/x")
        span.fail(error)
        span.end()
    engine, foreign, refused = traces.spans
    assert engine.status.status_code is foreign.status.status_code is StatusCode.ERROR
    assert engine.status.description == "the engine broke off"
    assert foreign.status.description is None
    assert foreign.attributes["error.type"] == "ValueError"
    assert refused.status.status_code is StatusCode.UNSET
    assert refused.attributes["error.type"] == "BadRequest"
    assert all(not span.events for span in traces.spans)


def test_o36_a_call_that_was_dropped_is_cancelled_and_no_error(telemetry, traces):
    span = telemetry.start_call(call(), "/x")
    span.fail(asyncio.CancelledError())
    span.end()
    span.end()
    (finished,) = traces.spans
    assert finished.attributes["appliance.cancelled"] is True
    assert finished.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize("capture", [False, True])
def test_o36_prompts_appear_only_if_switched_on(capture):
    traces = Traces(capture_content=capture)
    telemetry = traces.telemetry
    telemetry.start_call(call(), "/x").end()
    telemetry.start_call(call(request=CompletionRequest(model="m", prompt="secret")), "/x").end()
    for span in traces.spans:
        assert ("secret" in str(dict(span.attributes))) is capture


def test_nothing_global_is_touched(telemetry):
    before = trace.get_tracer_provider()
    other = Traces(service_name="other")
    telemetry.start_call(call(), "/x").end()
    assert trace.get_tracer_provider() is before
    assert other.spans == ()


def test_sampling_zero_records_nothing():
    traces = Traces(sample_ratio=0)
    telemetry = traces.telemetry
    span = telemetry.start_call(call(), "/x")
    telemetry.start_step(span, "retrieval", {}).end()
    span.end()
    assert traces.spans == ()


def test_without_an_endpoint_nothing_is_traced(monkeypatch):
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    assert Plugin().appliance_telemetry(OtelSettings()) is None


def test_an_endpoint_that_is_no_url_stops_the_start():
    with pytest.raises(ConfigError, match=r"plugin\.otel\.endpoint"):
        Plugin().appliance_telemetry(OtelSettings(endpoint="collector:4318"))
    with pytest.raises(ConfigError, match="sample_ratio"):
        convert({"sample_ratio": 2}, OtelSettings, "plugin.otel")


CONFIG = {"models": [{"name": "m", "engine": "scripted"}]}
BODY = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}


async def spans_of(traces: Traces):
    """All of a call, whose own span ends last."""
    return await eventually(lambda: traces.spans if any(s.kind is SpanKind.SERVER for s in traces.spans) else None)


async def test_o36_one_server_span_reaches_to_the_last_byte_and_none_is_made_for_a_chunk(traces):
    script = [Emit("one "), Wait(0.3), Emit("two "), Wait(0.3), Emit("three")]
    app = make_app(CONFIG, {"scripted": ScriptedPlugin(script), "traces": traces})
    async with serving(app) as url, http_client(base_url=url) as client:
        reply = await client.post("/v1/chat/completions", json=BODY, headers={"traceparent": TRACEPARENT})
        assert "three" in reply.text
        spans = await spans_of(traces)
    (server,) = [span for span in spans if span.kind is SpanKind.SERVER]
    assert (server.end_time - server.start_time) / 1e9 >= 0.6
    assert f"{server.context.trace_id:032x}" == TRACE_ID
    assert server.attributes["gen_ai.usage.output_tokens"] == 3
    assert server.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert len(spans) <= 3
    assert all(server.start_time <= span.start_time <= span.end_time <= server.end_time for span in spans)


async def test_o36_a_dropped_stream_ends_its_span_at_the_drop(traces):
    app = make_app(CONFIG, {"scripted": ScriptedPlugin([Emit("one "), Wait(30), Emit("two")]), "traces": traces})
    async with serving(app) as url, http_client(base_url=url) as client:
        async with client.stream("POST", "/v1/chat/completions", json=BODY) as reply:
            async for line in reply.aiter_lines():
                if "one" in line:
                    break
        (server,) = [span for span in await spans_of(traces) if span.kind is SpanKind.SERVER]
    assert server.attributes["appliance.cancelled"] is True
    assert (server.end_time - server.start_time) / 1e9 < 20


async def test_o36_a_stream_that_fails_in_the_middle_is_an_error_though_http_was_200(traces):
    app = make_app(CONFIG, {"scripted": ScriptedPlugin([Emit("one "), Fail()]), "traces": traces})
    async with serving(app) as url, http_client(base_url=url) as client:
        assert (await client.post("/v1/chat/completions", json=BODY)).status_code == 200
        (server,) = [span for span in await spans_of(traces) if span.kind is SpanKind.SERVER]
    assert server.status.status_code is StatusCode.ERROR
    assert server.attributes["error.type"] == "EngineError"
