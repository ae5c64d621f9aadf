"""Forms of 25 MiB from callers that may not send them cost the server no memory: it is looked at in the process."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from loopback import connection
from served import Served

CONFIG = """
plugins: [scripted, limits]
models:
  - {name: m, engine: scripted, tasks: [transcription]}
plugin:
  limits: {key: {requests_per_day: 1}, tenant: {requests_per_day: 1}}
"""
CALLERS = 16
FORM = 24 * 2**20
ROOM = 100 * 2**20
"""Bytes that the server may grow by; the forms have four times as many together."""
HEAD = (
    b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n'
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
)
END = b"\r\n--x--\r\n"
PIECE = b"s" * 2**20


def peak(pid: int) -> int:
    """The most memory that a process ever had, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024


def request() -> bytes:
    length = len(HEAD) + FORM + len(END)
    return (
        b"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        b"content-type: multipart/form-data; boundary=x\r\ncontent-length: %d\r\n\r\n" % length
    )


async def all_but_the_end(writer: asyncio.StreamWriter) -> None:
    writer.write(request() + HEAD)
    for _ in range(FORM // len(PIECE)):
        writer.write(PIECE)
        await writer.drain()


@pytest.mark.slow
async def test_callers_over_their_limit_that_send_25_mib_cost_no_memory(tmp_path: Path) -> None:
    config = tmp_path / "appliance.yaml"
    config.write_text(CONFIG)
    with Served(config) as served:
        before = peak(served.process.pid)
        async with asyncio.timeout(120), AsyncExitStack() as stack:
            ends = [await stack.enter_async_context(connection(served.url)) for _ in range(CALLERS)]
            await asyncio.gather(*(all_but_the_end(writer) for _, writer in ends))
            for _, writer in ends:
                writer.write(END)
            answers = await asyncio.gather(*(reader.read() for reader, _ in ends))
        statuses = [answer.split()[1] for answer in answers]
        assert sorted(statuses) == [b"200", *[b"429"] * (CALLERS - 1)]
        assert peak(served.process.pid) - before < ROOM
