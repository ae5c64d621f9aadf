"""A server that plays an OpenAI-compatible upstream on loopback, byte by byte where a test wants it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, TypeAlias

from multipart import MultipartParser, parse_options_header

CREATED = 1_700_000_000


@dataclass
class Exchange:
    """One request as it came in, and the means to answer it."""

    path: str
    headers: dict[str, str]
    body: Any
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def json(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        """A whole answer."""
        data = json.dumps(body).encode() if not isinstance(body, bytes) else body
        lines = {"Content-Type": "application/json", "Content-Length": str(len(data)), **(headers or {})}
        await self._write(_head(status, lines) + data)

    async def data(self, data: bytes, content_type: str) -> None:
        """A whole answer that is no JSON."""
        await self._write(_head(200, {"Content-Type": content_type, "Content-Length": str(len(data))}) + data)

    @property
    def form(self) -> list[tuple[str, str | bytes]]:
        """The parts of a form in their order: texts, and the bytes of files."""
        _, options = parse_options_header(self.headers["content-type"])
        parts = list(MultipartParser(BytesIO(self.body), options["boundary"]))
        return [(part.name, part.raw if part.filename else part.value) for part in parts]

    async def begin(self, content_type: str = "text/event-stream; charset=utf-8") -> None:
        """The head of a stream."""
        await self._write(_head(200, {"Content-Type": content_type, "Transfer-Encoding": "chunked"}))

    async def send(self, data: bytes) -> None:
        """A piece of a stream, as one HTTP chunk."""
        await self._write(b"%x\r\n%s\r\n" % (len(data), data))

    async def end(self) -> None:
        """The end of a stream's body."""
        await self._write(b"0\r\n\r\n")

    def cut(self) -> None:
        """Close the connection, whatever is due."""
        self.writer.close()

    async def wait_for_close(self) -> None:
        """Until the client closes the connection."""
        await self.reader.read(1)

    async def _write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()


Script: TypeAlias = Callable[[Exchange], Awaitable[None]]


@dataclass
class UpstreamServer:
    """Answers with ``script``; keeps every exchange and counts connections."""

    script: Script
    exchanges: list[Exchange] = field(default_factory=list)
    connections: int = 0
    aborted: asyncio.Event = field(default_factory=asyncio.Event)
    port: int = 0

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while not writer.is_closing():
                exchange = await _read_request(reader, writer)
                self.exchanges.append(exchange)
                await self.script(exchange)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.aborted.set()
        finally:
            writer.close()


async def hello(exchange: Exchange) -> None:
    """Answer as a well-behaved server."""
    if exchange.path == "/v1/models":
        await exchange.json(200, {"object": "list", "data": []})
    elif len(str(exchange.body)) > 100_000:
        await exchange.json(
            400, {"error": {"message": "This model's maximum context length is 8 tokens.", "code": None}}
        )
    elif exchange.body.get("stream"):
        await exchange.begin()
        for event in hello_events(exchange):
            await exchange.send(event)
        await exchange.end()
    else:
        await exchange.json(200, _answer(exchange))


async def heard_by_vllm(exchange: Exchange) -> None:
    """A transcript as vLLM gives it: billed by the second, and streamed in chunks as of a chat."""
    fields = dict(exchange.form)
    if fields.get("stream") != "true":
        await exchange.json(200, {"text": "Good day.", "usage": {"type": "duration", "seconds": 2}})
        return
    head = {"id": "trsc-1", "object": "transcription.chunk", "created": CREATED, "model": fields["model"]}
    await exchange.begin()
    for text, reason in (("Good", None), (" day.", "stop")):
        delta = {"delta": {"content": text}, "finish_reason": reason, "stop_reason": None}
        await exchange.send(event({**head, "choices": [delta], "usage": None}))
    if fields.get("stream_include_usage") == "true":
        counts = {"prompt_tokens": 7, "completion_tokens": 4, "total_tokens": 11}
        await exchange.send(event({**head, "choices": [], "usage": counts}))
    await exchange.send(b"data: [DONE]\n\n")
    await exchange.end()


def hello_events(exchange: Exchange) -> list[bytes]:
    said = (("", None), ("Hello", None), (" there.", None), ("", "stop"))
    pieces = [choice(exchange, text, reason, i) for i in range(_choices(exchange)) for text, reason in said]
    return [*pieces, usage(exchange), b"data: [DONE]\n\n"]


def _choices(exchange: Exchange) -> int:
    """``n`` for each prompt."""
    prompt = exchange.body.get("prompt")
    return (exchange.body.get("n") or 1) * (len(prompt) if isinstance(prompt, list) else 1)


def choice(exchange: Exchange, text: str, reason: str | None = None, index: int = 0) -> bytes:
    """One event with a piece of text."""
    chat = exchange.path.endswith("/chat/completions")
    piece = {"delta": {"content": text}} if chat else {"text": text}
    return event({**_base(exchange), "choices": [{"index": index, **piece, "finish_reason": reason}]})


def usage(exchange: Exchange) -> bytes:
    """The last event of a stream."""
    counts = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    return event({**_base(exchange), "choices": [], "usage": counts})


def event(body: Any) -> bytes:
    return b"data: " + json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def _base(exchange: Exchange) -> dict[str, Any]:
    return {"id": f"chatcmpl-{id(exchange)}", "created": CREATED, "model": exchange.body["model"]}


def _answer(exchange: Exchange) -> dict[str, Any]:
    chat = exchange.path.endswith("/chat/completions")
    text = {"message": {"role": "assistant", "content": "Hello there."}} if chat else {"text": "Hello there."}
    return {
        **_base(exchange),
        "object": "chat.completion" if chat else "text_completion",
        "choices": [{"index": i, **text, "finish_reason": "stop"} for i in range(_choices(exchange))],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }


def _head(status: int, headers: dict[str, str]) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode()


async def _read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Exchange:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    decoded = json.loads(body) if body and headers.get("content-type") == "application/json" else body or None
    return Exchange(first.split()[1], headers, decoded, reader, writer)
