"""Spans on their way to a collector: a real HTTP server on loopback that answers as told."""

import base64
import gzip
import logging
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from eventually import eventually
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from appliance.plugin import Call, ChatRequest, ConfigError, Message
from appliance_observability import _sender
from appliance_observability.otel import OtelSettings, Plugin

CALL = Call(
    id="req_1",
    operation="chat",
    model="m",
    request=ChatRequest(model="m", messages=[Message(role="user", content="secret")]),
)


class Collector:
    """``statuses`` are answered one after the other, then 200; ``names`` are the spans of the requests that got 200."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.names: list[str] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                status = collector.statuses.pop(0) if collector.statuses else 200
                collector.took(self, body, status)
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def took(self, asked: BaseHTTPRequestHandler, body: bytes, status: int) -> None:
        self.paths.append(asked.path)
        self.headers.append({name.lower(): value for name, value in asked.headers.items()})
        if asked.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        sent = ExportTraceServiceRequest.FromString(body)
        if status == 200:
            self.names += [s.name for r in sent.resource_spans for scope in r.scope_spans for s in scope.spans]


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join(20)


@pytest.fixture
def quick(monkeypatch):
    """Rounds and pauses of 10 ms."""
    monkeypatch.setattr(_sender, "_INTERVAL", 0.01)


async def test_spans_reach_a_collector_and_stopping_sends_the_rest(monkeypatch, collector):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    plugin = Plugin()
    telemetry = plugin.appliance_telemetry(OtelSettings())
    async with plugin.appliance_lifespan():
        telemetry.start_call(CALL, "/x").end()
    assert (collector.paths, collector.names) == (["/v1/traces"], ["chat m"])
    assert collector.headers[0]["content-type"] == "application/x-protobuf"


async def test_spans_are_sent_while_the_server_runs(quick, collector):
    plugin = Plugin()
    telemetry = plugin.appliance_telemetry(OtelSettings(endpoint=collector.url))
    async with plugin.appliance_lifespan():
        telemetry.start_call(CALL, "/x").end()
        await eventually(lambda: collector.names == ["chat m"])


async def test_headers_and_compression_are_those_of_the_environment(monkeypatch, collector):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic%20abc,x-tenant=one")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "gzip")
    plugin = Plugin()
    telemetry = plugin.appliance_telemetry(OtelSettings(endpoint=collector.url))
    assert "abc" not in repr(telemetry.processor._collector)
    async with plugin.appliance_lifespan():
        telemetry.start_call(CALL, "/x").end()
    assert collector.names == ["chat m"]
    assert (collector.headers[0]["authorization"], collector.headers[0]["x-tenant"]) == ("Basic abc", "one")
    assert collector.headers[0]["content-encoding"] == "gzip"


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_what_a_collector_could_not_take_is_sent_again(quick, collector, caplog, status):
    collector.statuses = [status, status]
    plugin = Plugin()
    telemetry = plugin.appliance_telemetry(OtelSettings(endpoint=collector.url))
    async with plugin.appliance_lifespan():
        telemetry.start_call(CALL, "/x").end()
        await eventually(lambda: collector.names == ["chat m"])
        await eventually(lambda: len(caplog.messages) == 2)
    failing, again = caplog.messages
    assert failing == f"traces do not reach {collector.url} (status {status}); see plugin.otel.endpoint"
    assert again == f"traces reach {collector.url} again; 0 spans were lost"


async def test_what_a_collector_refuses_is_not_sent_again(quick, collector, caplog):
    collector.statuses = [400]
    plugin = Plugin()
    telemetry = plugin.appliance_telemetry(OtelSettings(endpoint=collector.url))
    async with plugin.appliance_lifespan():
        telemetry.start_call(CALL, "/x").end()
        await eventually(lambda: len(collector.paths) == 1 and not telemetry.processor.waiting)
        telemetry.start_step(None, "second", {}).end()
        await eventually(lambda: collector.names == ["second"])
        await eventually(lambda: any("1 spans were lost" in message for message in caplog.messages))


async def test_redirects_are_not_followed(quick, collector):
    collector.statuses = [307]
    plugin = Plugin()
    telemetry = plugin.appliance_telemetry(OtelSettings(endpoint=collector.url))
    async with plugin.appliance_lifespan():
        telemetry.start_call(CALL, "/x").end()
        await eventually(lambda: not telemetry.processor.waiting)
    assert (collector.paths, collector.names) == (["/v1/traces"], [])


async def test_spans_with_the_content_of_requests_wait_up_to_a_number_of_bytes(monkeypatch):
    monkeypatch.setattr(_sender, "MOST_BYTES", 10_000)
    plugin = Plugin()
    telemetry = plugin.appliance_telemetry(OtelSettings(endpoint="http://127.0.0.1:9"))
    async with plugin.appliance_lifespan():
        for _ in range(100):
            telemetry.start_step(None, "x" * 1_000, {}).end()
        assert telemetry.processor.waiting == 10


@pytest.mark.slow
async def test_a_dead_collector_costs_neither_time_nor_memory(caplog):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(1)  # takes connections and never answers
        plugin = Plugin()
        telemetry = plugin.appliance_telemetry(OtelSettings(endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}"))
        begun = time.perf_counter()
        for _ in range(_sender.MOST_WAITING + 3000):
            telemetry.start_call(CALL, "/x").end()
        assert time.perf_counter() - begun < 15  # ten seconds are what one of them would wait for
        assert telemetry.processor.waiting <= _sender.MOST_WAITING
        begun = time.perf_counter()
        async with plugin.appliance_lifespan():
            pass
        assert time.perf_counter() - begun < 20


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "brotli", "OTEL_EXPORTER_OTLP_COMPRESSION: must be none or gzip"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "collector:4318", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: must be an http"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere.pem", "OTEL_EXPORTER_OTLP_CERTIFICATE: there is no file"),
    ],
)
def test_a_variable_that_cannot_be_stops_the_start_with_its_name(monkeypatch, name, value, said):
    if not name.endswith("_ENDPOINT"):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=said):
        Plugin().appliance_telemetry(OtelSettings())


def test_credentials_in_the_url_are_sent_and_not_logged(collector, caplog):
    caplog.set_level(logging.DEBUG)
    plugin = Plugin()
    address = f"http://user:hid%21den@127.0.0.1:{collector.server.server_port}"
    collector.statuses = [400]
    telemetry = plugin.appliance_telemetry(OtelSettings(endpoint=address))
    telemetry.start_call(CALL, "/x").end()
    telemetry.processor.shutdown()
    assert any("traces do not reach" in message for message in caplog.messages)
    assert collector.headers[0]["authorization"] == "Basic " + base64.b64encode(b"user:hid!den").decode()
    assert "hid" not in caplog.text
