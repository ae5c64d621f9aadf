"""A host of pictures for tests of what messages name by URL, and a network without it."""

from __future__ import annotations

import asyncio
import base64
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

PICTURE = b"\x89PNG\r\n\x1a\n and so on"
APART = ("unshare", "--map-root-user", "--net")
"""Starts a command where there is no network at all, not even a loopback interface that is up."""


def as_data(media_type: str = "image/png", content: bytes = PICTURE) -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def reply(body: bytes = PICTURE, media_type: str = "image/png", status: int = 200, *headers: str) -> bytes:
    given = [f"content-type: {media_type}"] if media_type else []
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}", "connection: close", *given, *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@dataclass
class Host:
    """Answers by path, and keeps which were asked for; while ``gate`` is shut nobody gets an answer."""

    answers: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    waiting: int = 0
    most: int = 0
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    port: int = 0

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
            self.asked.append(path)
            self.waiting += 1
            self.most = max(self.most, self.waiting)
            await self.gate.wait()
            self.waiting -= 1
            writer.write(self.answers.get(path.partition("?")[0], reply(status=404)))
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def hosting() -> AsyncIterator[Host]:
    host = Host()
    host.gate.set()
    async with await asyncio.start_server(host.serve, "127.0.0.1", 0) as server:
        host.port = server.sockets[0].getsockname()[1]
        yield host
        host.gate.set()


def run_apart(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command there; it fails where the kernel gives no user a network apart."""
    return subprocess.run([*APART, *command], capture_output=True, text=True, timeout=30, check=False)
