"""What a flood of one tenant does to another's time to first token, with and without turns between tenants.

Both ask for streams over real HTTP, with API keys. The engine is scripted: a word each 50 ms, six words an answer, and
as many answers at once as it is asked for; so what is measured is the queue, not the engine. The flood keeps ten times
as many requests open as there are places. Time to first token is the quiet tenant's, one request after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from benchmarks._serving import Served, create_key, machine, serving, write_config

PLACES = 8
FLOOD = 10 * PLACES
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
CASES: Mapping[str, tuple[bool, str, int]] = {
    "nobody else": (False, "quiet", 1),
    "a flood, in one queue with it": (True, "flood", 0),
    "a flood, tenants take turns": (True, "quiet", 0),
    "a flood, tenants take turns, one place reserved": (True, "quiet", 1),
}
"""Whether there is a flood, the quiet caller's tenant, and ``reserved``."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print the table; 1 if the flood more than doubles the p95, turns and reserved place or not."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fair_queue",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--requests", type=int, default=40, help="of the quiet tenant in each case [40]")
    options = parser.parse_args(arguments)
    print(machine())
    print("\n| the quiet tenant beside | p50 ms | p95 ms | p95 / alone |\n|---|--:|--:|--:|")
    alone = 0.0
    for name, case in CASES.items():
        p50, p95 = measure(*case, requests=options.requests)
        alone = alone or p95
        print(f"| {name} | {p50 * 1000:.0f} | {p95 * 1000:.0f} | {p95 / alone:.1f} |", flush=True)
    return int(p95 > 2 * alone)


def measure(flooded: bool, tenant: str, reserved: int, *, requests: int) -> tuple[float, float]:
    """p50 and p95 of the time to first token, in seconds."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        config = write_config(config_of(Path(folder), reserved), Path(folder))
        keys = [create_key(config, "--tenant", name, "--role", "user") for name in ("flood", tenant)]
        with serving(config) as served:
            times = asyncio.run(first_tokens(served, keys[0] if flooded else None, keys[1], requests))
    return statistics.median(times), statistics.quantiles(times, n=20)[-1]


def config_of(folder: Path, reserved: int) -> dict[str, Any]:
    """A guarded server in front of a scripted engine."""
    reply = "six words are said here slowly"
    return {
        "data_dir": str(folder / "data"),
        "plugins": ["scripted", "api_keys", "rbac", "fair_queue"],
        "models": [{"name": "m", "engine": "scripted", "options": {"reply": reply, "delay": 0.05}}],
        "plugin": {"fair_queue": {"max_running": PLACES - reserved, "reserved": reserved}},
    }


async def first_tokens(served: Served, flood_key: str | None, key: str, requests: int) -> list[float]:
    """The quiet tenant's times, while the flood goes on."""
    limits = httpx.Limits(max_connections=FLOOD + 1)
    async with httpx.AsyncClient(base_url=served.url, timeout=120, limits=limits) as client:
        flood = [asyncio.create_task(ask_for_ever(client, flood_key)) for _ in range(FLOOD if flood_key else 0)]
        await asyncio.sleep(1.0 if flood else 0.0)  # until the queue is as long as it gets
        try:
            return [await first_token(client, key) for _ in range(requests)]
        finally:
            for task in flood:
                task.cancel()
            await asyncio.gather(*flood, return_exceptions=True)


async def ask_for_ever(client: httpx.AsyncClient, key: str) -> None:
    """One client of the flood."""
    while True:
        await first_token(client, key)


async def first_token(client: httpx.AsyncClient, key: str) -> float:
    """Seconds from the request to its first word; the answer is read to its end."""
    begun, seen = time.perf_counter(), 0.0
    headers = {"authorization": f"Bearer {key}"}
    async with client.stream("POST", "/v1/chat/completions", json=BODY, headers=headers) as reply:
        if reply.status_code != 200:
            raise SystemExit(f"error: a request failed with {reply.status_code}")
        async for line in reply.aiter_lines():
            if not seen and "six" in line:
                seen = time.perf_counter() - begun
    return seen


if __name__ == "__main__":
    sys.exit(main())
