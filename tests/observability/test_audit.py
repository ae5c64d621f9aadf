"""The plugin ``audit``: entries reach a collector and a file, in order, and none is lost on the way."""

import asyncio
import hashlib
import json
import threading
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from eventually import eventually
from opentelemetry._logs import SeverityNumber
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from ports import reserved_port

from appliance.plugin import AppContext, AuditEvent, AuditFeed, ConfigError, Unavailable, convert
from appliance.storage import audit as storage
from appliance.testing import make_app, serving
from appliance_observability import audit as plugin
from appliance_observability.audit import AuditSettings, LinesFile, export, targets


@contextmanager
def collector(status=200, port=0):
    """A real OTLP/HTTP receiver; yields its base URL and the log records that it took."""
    received = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            if status == 200:
                for resource in ExportLogsServiceRequest.FromString(body).resource_logs:
                    received.extend(
                        (self.path, resource.resource, log)
                        for scope in resource.scope_logs
                        for log in scope.log_records
                    )
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", received
        finally:
            server.shutdown()
            thread.join(20)


def event(**fields) -> AuditEvent:
    return AuditEvent(**{"action": "keys.create", "outcome": "success", "principal": "key:a", **fields})


def app_with(folder, **settings):
    return make_app({"plugins": ["audit"], "plugin": {"audit": {"interval": 0.05, **settings}}}, folder=folder)


async def write(app, *events) -> None:
    for each in events:
        await app.state.runtime.context.audit.write(each)


def attributes(record) -> dict[str, object]:
    return {each.key: each.value.string_value or each.value.int_value for each in record.attributes}


async def test_entries_reach_a_collector_as_logs_that_can_be_verified(tmp_path) -> None:
    with collector() as (url, received):
        app = app_with(tmp_path, endpoint=url, service_name="box")
        async with serving(app):
            await write(app, event(object="key:1", user="alice", address="10.0.0.1"), event(outcome="denied"))
            await eventually(lambda: len(received) >= 3)
    assert {path for path, _, _ in received} == {"/v1/logs"}
    assert [each.value.string_value for each in received[0][1].attributes if each.key == "service.name"] == ["box"]
    start, made, denied = (record for _, _, record in received[:3])
    assert start.event_name == "appliance.audit.server.start"
    assert (made.severity_number, denied.severity_number) == (SeverityNumber.INFO.value, SeverityNumber.WARN.value)
    shown = attributes(made)
    assert shown["appliance.audit.object"] == "key:1"
    assert (shown["user.id"], shown["client.address"], shown["appliance.audit.seq"]) == ("alice", "10.0.0.1", 2)
    body = json.loads(made.body.string_value)
    claimed = body.pop("hash")
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert hashlib.sha256(canonical.encode()).hexdigest() == claimed == shown["appliance.audit.hash"]
    assert body["previous"] == attributes(start)["appliance.audit.hash"]
    assert storage.time_text(made.time_unix_nano // 1000) == body["time"]


async def test_entries_reach_a_file_as_lines_that_only_its_owner_reads(tmp_path) -> None:
    app = app_with(tmp_path, file="logs/audit.jsonl")
    async with serving(app):
        await write(app, event(object="a\nb"), event(object="c"))
    path = tmp_path / "logs" / "audit.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["object"] for line in lines] == ["", "a\nb", "c"]
    assert path.stat().st_mode & 0o777 == 0o600


async def test_a_file_that_was_moved_away_is_made_anew(tmp_path) -> None:
    app = app_with(tmp_path, file="audit.jsonl")
    path = tmp_path / "audit.jsonl"
    async with serving(app):
        await eventually(path.exists)
        path.rename(tmp_path / "audit.1")
        await write(app, event(object="later"))
        await eventually(lambda: path.exists() and "later" in path.read_text())
    assert "server.start" in (tmp_path / "audit.1").read_text()


async def test_a_restart_goes_on_where_it_stopped(tmp_path) -> None:
    for name in ("first", "second"):
        app = app_with(tmp_path, file="audit.jsonl")
        async with serving(app):
            await write(app, event(object=name))
    numbers = [json.loads(line)["seq"] for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) == 5  # two starts, the stop between them, and what was written


@pytest.mark.slow
async def test_what_is_written_while_the_collector_is_away_comes_when_it_is_back(tmp_path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(plugin, "_LONGEST_PAUSE", 0.1)
    monkeypatch.setattr(plugin, "_SEND_SECONDS", 0.5)
    with reserved_port() as port:
        await _sent_late(tmp_path, port, caplog)


async def _sent_late(tmp_path, port, caplog) -> None:
    app = app_with(tmp_path, endpoint=f"http://127.0.0.1:{port}")
    async with serving(app):
        await write(app, *(event(object=str(i)) for i in range(5)))
        await eventually(lambda: "cannot be sent to otlp" in caplog.text)
        with collector(503, port):
            await write(app, *(event(object=str(i)) for i in range(5, 10)))
        with collector(200, port) as (_, received):
            await eventually(lambda: len(received) >= 11)
    numbers = [attributes(record)["appliance.audit.seq"] for _, _, record in received]
    assert sorted(set(numbers)) == list(range(1, max(numbers) + 1))


class Failing:
    """A target that takes a batch only every other time."""

    name = "failing"

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.tries = 0

    async def send(self, records) -> None:
        self.tries += 1
        if self.tries % 2:
            raise Unavailable("not now")
        self.taken += [record.seq for record in records]

    def close(self) -> None:
        pass


@asynccontextmanager
async def exporting(app, target, feed_name="failing"):
    stopping = asyncio.Event()
    feed = AuditFeed(app.state.runtime.database, feed_name)
    task = asyncio.create_task(export(target, feed, 0.02, stopping))
    try:
        yield
    finally:
        stopping.set()
        await asyncio.wait_for(task, 20)


async def test_a_batch_that_failed_is_sent_again_and_none_is_left_out(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(plugin, "_BATCH", 3)
    monkeypatch.setattr(plugin, "_LONGEST_PAUSE", 0.02)
    app = make_app({}, folder=tmp_path)
    target = Failing()
    async with serving(app):
        async with exporting(app, target):
            await write(app, *(event() for _ in range(10)))
            await eventually(lambda: len(target.taken) >= 11)
        assert target.taken == list(range(1, 12))


async def test_of_two_replicas_one_sends_and_each_entry_goes_once(tmp_path) -> None:
    app = make_app({}, folder=tmp_path)
    lines = [LinesFile(tmp_path / name) for name in ("one", "other")]
    async with serving(app), exporting(app, lines[0]), exporting(app, lines[1]):
        await write(app, *(event() for _ in range(20)))

        async def sent() -> bool:
            texts = [path.read_text() for path in (tmp_path / "one", tmp_path / "other") if path.exists()]
            return sum(text.count("\n") for text in texts) >= 21

        await eventually(sent)
    found = [path.read_text() for path in (tmp_path / "one", tmp_path / "other") if path.exists()]
    numbers = [json.loads(line)["seq"] for text in found for line in text.splitlines()]
    assert sorted(numbers) == list(range(1, 22))


async def test_a_disk_that_fills_in_the_middle_of_a_batch_leaves_no_half_line(tmp_path, monkeypatch) -> None:
    import os

    path = tmp_path / "audit.jsonl"
    path.write_bytes(b"{}\n")
    app = make_app({}, folder=tmp_path)
    async with serving(app):
        await write(app, event())
        records = await AuditFeed(app.state.runtime.database, "file").next(10)
        monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space left"):
            await LinesFile(path).send(records)
        monkeypatch.undo()
    assert path.read_bytes() == b"{}\n"


def test_without_a_target_or_with_one_that_is_no_url_the_start_stops(tmp_path, monkeypatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    context: AppContext = make_app({}, folder=tmp_path).state.runtime.context
    with pytest.raises(ConfigError, match="set endpoint or file"):
        targets(AuditSettings(), context)
    with pytest.raises(ConfigError, match=r"plugin\.audit\.endpoint"):
        targets(AuditSettings(endpoint="collector:4318"), context)
    with pytest.raises(ConfigError, match="interval"):
        convert({"interval": 0}, AuditSettings, "plugin.audit")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "http://127.0.0.1:9/v1/logs")
    (target,) = targets(AuditSettings(), context)
    target.close()
