"""Memory of open streams: thousands of clients whose answers have begun and are silent, then the same again.

The engine answers every chat with the head of a stream and one chunk, and says no more. While they are open
``/livez`` is asked. With ``--inside`` the engine is in the server's process: a stream is one open file there, not two.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks._serving import (
    SERVER_PLUGINS,
    Served,
    create_key,
    free_port,
    get_status,
    machine,
    rss_bytes,
    server_config,
    serving,
    sink_command,
    started,
    write_config,
)

_KIB = 1024
_AT_ONCE = 200
"""Connections being opened at a time."""
_INSIDE: dict[str, Any] = {
    "plugins": ["scripted", *SERVER_PLUGINS],
    "models": [{"name": "fake-model", "engine": "scripted", "options": {"reply": "", "hold": True}}],
}
_BODY = json.dumps({"model": "fake-model", "stream": True, "messages": [{"role": "user", "content": "hi"}]}).encode()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print memory a stream, growth in the second round, and how fast the server answered meanwhile."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.idle_streams", description=__doc__)
    parser.add_argument("--streams", type=int, default=10_000, help="as far as open files allow [10000]")
    parser.add_argument("--inside", action="store_true", help="an engine in the server's own process")
    options = parser.parse_args(arguments)
    count = min(options.streams, _possible(1 if options.inside else 2))
    if count < options.streams:
        print(f"open files are limited here (ulimit -Hn): {count} streams instead of {options.streams}")
    return asyncio.run(_measure(count, inside=options.inside))


def _possible(files: int) -> int:
    """Streams of so many open files in the server; the soft limit of this process and its children becomes the hard."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return (hard - 200) // files


async def _measure(count: int, *, inside: bool) -> int:
    with tempfile.TemporaryDirectory(prefix="bench-") as name, ExitStack() as running:
        folder, engine, spans = Path(name), free_port(), free_port()
        config = server_config(
            folder,
            upstream=f"http://127.0.0.1:{engine}",
            spans=f"http://127.0.0.1:{spans}",
            options={"idle_timeout": 3600},
        )
        path = write_config(config | _INSIDE if inside else config, folder)
        key = create_key(path)
        if not inside:
            silent = [sys.executable, str(Path(__file__).with_name("_silent.py")), str(engine)]
            running.enter_context(started(silent, folder / "engine.log"))
        running.enter_context(started(sink_command(spans), folder / "sink.log"))
        await _rounds(running.enter_context(serving(path)), key, count)
    return 0


async def _rounds(served: Served, key: str, count: int) -> None:
    first = await _streams(served, key, 1)
    await _close(first)
    idle = rss_bytes(served.pid)
    print(machine())
    print("| round | streams | KiB a stream | MiB while open | MiB after | /livez p50 / p99 ms while open |")
    print("|---|--:|--:|--:|--:|--:|")
    for round_ in (1, 2):
        streams = await _streams(served, key, count)
        times = await asyncio.to_thread(_probe, served.port)
        full = rss_bytes(served.pid)
        each = (full - idle) / count / _KIB
        await _close(streams)
        await asyncio.sleep(3)
        print(
            f"| {round_} | {count:,} | {each:.1f} | {full / _KIB**2:.0f} | {rss_bytes(served.pid) / _KIB**2:.0f} | "
            f"{statistics.median(times) * 1e3:.1f} / {statistics.quantiles(times, n=100)[98] * 1e3:.1f} |",
            flush=True,
        )


async def _streams(served: Served, key: str, count: int) -> list[asyncio.StreamWriter]:
    turn = asyncio.Semaphore(_AT_ONCE)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(_BODY)}\r\n\r\n"
    ).encode()

    async def open_one() -> asyncio.StreamWriter:
        async with turn:
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=4096)
            writer.write(head + _BODY)
            answer = await asyncio.wait_for(reader.readuntil(b"\n\n"), 60)
            if not answer.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"error: the server answered {answer[:200]!r}; see {served.log}")
            return writer

    return await asyncio.gather(*(open_one() for _ in range(count)))


async def _close(writers: Sequence[asyncio.StreamWriter]) -> None:
    for writer in writers:
        writer.transport.abort()
    await asyncio.sleep(0.5)


def _probe(port: int, seconds: float = 5.0) -> list[float]:
    """Seconds that ``/livez`` took, asked again and again, each time on a new connection."""
    times = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        if get_status(port, "/livez") != 200:
            raise SystemExit("error: /livez failed")
        times.append(time.monotonic() - began)
        time.sleep(0.02)
    return times


if __name__ == "__main__":
    sys.exit(main())
