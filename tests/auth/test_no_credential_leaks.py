"""A real server at debug level, with traces, metrics and an access log: no credential gets out (cases O-17, A2, G1)."""

from __future__ import annotations

import gzip
import hashlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
import yaml
from served import Served

pytestmark = pytest.mark.slow
CANARY = "sk-canary-1111"
UPSTREAM = "upstream-canary-2222"
PROMPT = "prompt-canary-3333"
BODY = {"model": "m", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 5}


@contextmanager
def http_server() -> Iterator[tuple[str, list[bytes]]]:
    """A server that says ``{}`` to everything, and the bodies that it got. Leaving it frees the port."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            bodies.append(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        do_POST = do_GET

        def log_message(self, *args: object) -> None:
            """Silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", bodies
        server.shutdown()
        thread.join(10)


def config_of(upstream: str, collector: str) -> dict[str, object]:
    return {
        "plugins": ["openai", "api_keys", "rbac", "limits", "otel", "prometheus", "access_log"],
        "models": [
            {"name": "m", "engine": "openai", "options": {"base_url": f"{upstream}/v1", "api_key": UPSTREAM}},
        ],
        "observability": {"log_level": "debug"},
        "plugin": {
            "api_keys": {"refresh": 0},
            "limits": {"key": {"requests_per_minute": 2}},
            "otel": {"endpoint": collector},
            "prometheus": {"public": True},
        },
    }


def create_key(config) -> str:
    command = [sys.executable, "-m", "appliance", "keys", "create", "--admin", "--config", str(config)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


def shown(reply: httpx.Response) -> bytes:
    """All that a client sees of an answer."""
    head = "\n".join(f"{name}: {value}" for name, value in reply.headers.items())
    return f"{reply.status_code}\n{head}\n".encode() + reply.content


def calls(client: httpx.Client, key: str) -> list[httpx.Response]:
    """Wrong credentials in every place, a typo, a quota that is used up, a backend that is gone, a refused action."""
    typo = key[:-1] + ("a" if key[-1] != "a" else "b")
    replies = []
    for wrong in (CANARY, typo, f"{key}x", f"{key} {key}"):
        for header in ("authorization", "api-key", "x-api-key"):
            sent = {header: f"Bearer {wrong}" if header == "authorization" else wrong}
            replies += [
                client.get("/v1/models", headers=sent),
                client.post("/v1/chat/completions", headers=sent, json=BODY),
            ]
    for wrong in (CANARY, key, typo):
        replies += [client.get(f"/v1/models?access_token={wrong}"), client.get(f"/v1/models?api_key={wrong}")]
        replies.append(client.get(f"/v1/{wrong}", headers={"x-api-key": wrong}))
    good = {"authorization": f"Bearer {key}"}
    replies += [client.post("/v1/chat/completions", headers=good, json=BODY) for _ in range(6)]
    replies.append(client.post("/v1/chat/completions", headers=good, json={**BODY, "stream": True}))
    replies += [
        client.get(path, headers=good) for path in ("/v1/models", "/readyz", "/v1/audit/events", "/openapi.json")
    ]
    return replies


def test_O17_no_credential_gets_into_answers_logs_metrics_or_spans(tmp_path):
    config = tmp_path / "appliance.yaml"
    with http_server() as (collector, spans), ExitStack() as stack:
        with http_server() as (upstream, _):
            config.write_text(yaml.safe_dump(config_of(upstream, collector)))
            key = create_key(config)
            served = stack.enter_context(Served(config))
        with httpx.Client(base_url=served.url, timeout=30) as client:  # the backend is gone now
            replies = calls(client, key)
            metrics = client.get("/metrics")
    assert {reply.status_code for reply in replies} >= {200, 400, 401, 429, 503}
    refused = {reply.content for reply in replies if reply.status_code == 401}
    assert len(refused) == 1
    sinks = {
        "answers": b"\n".join(map(shown, replies)),
        "log": served.output.encode(),
        "metrics": shown(metrics),
        "spans": b"\n".join(spans),
    }
    assert b"appliance.access" in sinks["log"]
    assert b"appliance_requests_total" in sinks["metrics"]
    assert b"/v1/chat/completions" in sinks["spans"]
    typo = key[:-1] + ("a" if key[-1] != "a" else "b")
    secret = key.rpartition("-")[2]
    secrets = [CANARY, key, secret, typo, typo.rpartition("-")[2], UPSTREAM, PROMPT]
    secrets += [hashlib.sha256(text.encode()).hexdigest() for text in (CANARY, key, typo, UPSTREAM)]
    for name, text in sinks.items():
        found = [secret for secret in secrets if secret.encode() in text]
        assert found == [], name
    assert key.split("-")[2].encode() in sinks["log"]  # the short id may be there, and is
