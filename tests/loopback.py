"""An app on a loopback port for tests, and clients that see its raw bytes."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from litestar import Litestar
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from appliance.runtime import Runtime
from appliance.testing import Emit, ScriptedEngine, ScriptedPlugin, make_app, serving
from appliance.testing.scripted import Script

MODEL = {"models": [{"name": "m", "engine": "scripted"}]}
HELLO = [{"role": "user", "content": "hi"}]
NOBODY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Trusts no authority: to read all of the world's takes a client 18 ms, and tests speak to loopback alone."""
http_client = partial(httpx.AsyncClient, verify=NOBODY)


def openai_client(base_url: str, **options: Any) -> AsyncOpenAI:
    """The official client of an app; ``options`` as its own, but for a key that nobody asks for and no retries."""
    usual = {"api_key": "none", "max_retries": 0, "http_client": DefaultAsyncHttpxClient(verify=NOBODY)}
    return AsyncOpenAI(base_url=base_url, **usual | options)


@dataclass
class Box:
    """A served app with what tests ask of it."""

    url: str
    app: Litestar
    plugin: ScriptedPlugin
    client: httpx.AsyncClient
    openai: AsyncOpenAI

    @property
    def runtime(self) -> Runtime:
        runtime: Runtime = self.app.state.runtime
        return runtime

    @property
    def engine(self) -> ScriptedEngine:
        return self.plugin.engine

    async def chat(self, **fields: Any) -> httpx.Response:
        """A chat request; fields override the usual ones."""
        return await self.client.post("/v1/chat/completions", json={"model": "m", "messages": HELLO} | fields)

    async def post(self, path: str, content: bytes, headers: Mapping[str, str] | None = None) -> httpx.Response:
        """A request with these very bytes."""
        return await self.client.post(
            path, content=content, headers={"content-type": "application/json"} | dict(headers or {})
        )


def build_app(
    folder: Path, script: Script | None = None, config: Mapping[str, Any] | None = None, **plugins: object
) -> tuple[Litestar, ScriptedPlugin]:
    """An app with one scripted model ``m`` and these plugins, in the order given."""
    scripted = ScriptedPlugin(script if script is not None else [Emit("hello")])
    app = make_app(MODEL | dict(config or {}), plugins={"scripted": scripted, **plugins}, folder=folder)
    return app, scripted


@asynccontextmanager
async def box(
    folder: Path, script: Script | None = None, config: Mapping[str, Any] | None = None, **plugins: object
) -> AsyncIterator[Box]:
    """Serve such an app on loopback."""
    app, scripted = build_app(folder, script, config, **plugins)
    async with (
        serving(app) as url,
        http_client(base_url=url, timeout=20) as client,
        openai_client(f"{url}/v1", timeout=20) as openai,
    ):
        yield Box(url, app, scripted, client, openai)


@contextmanager
def served_in_thread(app: Litestar) -> Iterator[str]:
    """The same for synchronous tests that share an app: it runs on a loop of its own."""
    ready, over = threading.Event(), threading.Event()
    urls: list[str] = []

    async def serve() -> None:
        async with serving(app) as url:
            urls.append(url)
            ready.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    for _ in range(300):
        if ready.wait(0.1) or not thread.is_alive():
            break
    assert ready.is_set(), "the app did not start"
    try:
        yield urls[0]
    finally:
        over.set()
        thread.join(30)


@asynccontextmanager
async def connection(url: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A raw connection; leaving it closes the socket at once."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


def request_bytes(path: str, body: object, *, method: str = "POST", headers: Mapping[str, str] | None = None) -> bytes:
    """A whole HTTP/1.1 request; a body that is not bytes is sent as JSON."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [
        f"{method} {path} HTTP/1.1",
        "host: localhost",
        "content-type: application/json",
        f"content-length: {len(raw)}",
    ]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + raw


async def raw_answer(url: str, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send bytes, read until the server closes: status, lower-cased headers and the body with its chunking undone."""
    async with asyncio.timeout(20), connection(url) as (reader, writer):
        writer.write(request.replace(b"\r\n", b"\r\nconnection: close\r\n", 1))
        return parse_answer(await reader.read())


def parse_answer(raw: bytes) -> tuple[int, dict[str, str], bytes]:
    """An HTTP/1.1 answer taken apart."""
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        body = _unchunked(body)
    return int(first.split()[1]), headers, body


def _unchunked(body: bytes) -> bytes:
    parts = []
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16)
        parts.append(rest[:length])
        body = rest[length + 2 :]
    return b"".join(parts)


def sse_events(raw: bytes) -> list[str]:
    """The data of each event, by the letter of WHATWG HTML's event stream interpretation."""
    text = raw.decode("utf-8").removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    events: list[str] = []
    data: list[str] = []
    for line in text.split("\n")[:-1] if text.endswith("\n") else text.split("\n"):
        if line == "":
            if data:
                events.append("\n".join(data))
            data = []
            continue
        name, _, value = line.partition(":")
        if name == "data":
            data.append(value.removeprefix(" "))
    return events


def chunks_of(raw: bytes) -> list[dict[str, Any]]:
    """The decoded events of a stream but for ``[DONE]``."""
    return [json.loads(event) for event in sse_events(raw) if event != "[DONE]"]


def text_of(raw: bytes, choice: int = 0) -> str:
    """A streamed chat's text, of one choice."""
    return "".join(
        c["delta"].get("content") or ""
        for chunk in chunks_of(raw)
        for c in chunk.get("choices", [])
        if c["index"] == choice
    )


def assert_openai_error(response: httpx.Response, status: int, param: str | None = None) -> dict[str, Any]:
    """Check status and shape of an error; its ``error`` object."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert "\n" not in error["message"]
    if param is not None:
        assert error["param"] == param, error
    return error
