"""What limits cost a request: from admission to settlement, in memory and on a Redis server of its own. In process.

python -m benchmarks.limits [--calls N]
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from appliance.config import Config, ModelConfig, PriceConfig
from appliance.plugin import Allowance, Call, CallRecord, Principal, Usage
from appliance.testing.answers import chat_call
from appliance_plugins.limits.admitter import Costing, Limits
from appliance_plugins.limits.ledger import Ledger, MemoryLedger
from appliance_plugins.limits.lines import Clock, Lines
from appliance_plugins.limits.shared import RedisLedger

_RATES = Allowance(requests_per_minute=10**9, max_concurrent=10**6)
_ALL = Allowance(
    requests_per_minute=10**9,
    requests_per_day=10**9,
    tokens_per_minute=10**12,
    tokens_per_day=10**12,
    spend_per_day=10**6,
    spend_per_month=10**6,
    max_concurrent=10**6,
)
CASES: Mapping[str, Mapping[str, Any]] = {
    "nothing limited": {},
    "requests and places of a key": {"key": _RATES},
    "all seven limits of a key": {"key": _ALL},
    "all seven, of key, user and tenant": {"key": _ALL, "user": _ALL, "tenant": _ALL},
}
_TOGETHER = 16


def main(arguments: list[str] | None = None) -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.limits", description=__doc__)
    parser.add_argument("--calls", type=int, default=5_000, help="calls of each figure")
    calls = parser.parse_args(arguments).calls
    print("| limits | ledger | CPU us/request | us one by one, p50 | p99 |\n|---|---|--:|--:|--:|", flush=True)
    for name, settings in CASES.items():
        clock = Clock()
        _print(name, "memory", asyncio.run(_measure(MemoryLedger(clock), clock, settings, calls)))
    with redis_server() as url:
        for name, settings in list(CASES.items())[1:]:
            _print(name, "Redis", asyncio.run(_on_redis(url, settings, calls)))
    return 0


def _print(name: str, ledger: str, figures: tuple[float, float, float]) -> None:
    print(f"| {name} | {ledger} | {' | '.join(f'{figure:.0f}' for figure in figures)} |", flush=True)


@contextmanager
def redis_server() -> Iterator[str]:
    """The URL of a server that ends with the benchmark. Needs ``redis-server`` (``make test-deps``)."""
    binary = shutil.which("redis-server")
    if binary is None:
        sys.exit("redis-server is not installed; run make test-deps")
    with tempfile.TemporaryDirectory(prefix="appliance-bench-") as folder:
        socket = Path(folder) / "redis.sock"
        command = [binary, "--port", "0", "--unixsocket", str(socket), "--save", ""]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=folder) as server:
            try:
                while not socket.exists():
                    time.sleep(0.01)
                yield f"unix://{socket}"
            finally:
                server.terminate()


async def _on_redis(url: str, settings: Mapping[str, Any], calls: int) -> tuple[float, float, float]:
    async with RedisLedger(url, timeout=5) as ledger:
        return await _measure(ledger, Clock(), settings, calls)


async def _measure(ledger: Ledger, clock: Clock, settings: Mapping[str, Any], calls: int) -> tuple[float, float, float]:
    """CPU of this process a request with 16 at once; latency of one at a time, median and 99th percentile. In us."""
    kinds: dict[str, Any] = {"max_concurrent": None, "key": None, "user": None, "tenant": None}
    lines = Lines(**{**kinds, **settings}, users={}, tenants={}, clock=clock)
    model = ModelConfig(name="m", engine="openai", price=PriceConfig(input=0.2, output=0.8))
    admitter = Limits(lines, Costing(Config(models=(model,)), 1024), ledger, clock)
    call = chat_call(text="What is the capital of France? " * 20, principal=Principal(id="key:1", user="ann"))
    call.request.max_completion_tokens = 256
    await _many(admitter, call, 200)
    began = time.process_time()
    await asyncio.gather(*(_many(admitter, call, calls // _TOGETHER) for _ in range(_TOGETHER)))
    cpu = (time.process_time() - began) / (calls // _TOGETHER * _TOGETHER)
    took = [await _one(admitter, call) for _ in range(calls)]
    return cpu * 1e6, statistics.median(took) * 1e6, statistics.quantiles(took, n=100)[98] * 1e6


async def _many(admitter: Limits, call: Call, count: int) -> None:
    for _ in range(count):
        await _one(admitter, call)


async def _one(admitter: Limits, call: Call) -> float:
    """Seconds that admission and settlement took."""
    began = time.perf_counter()
    lease = admitter.admit(call)
    record = CallRecord(call=call)
    if follow := getattr(lease, "follow", None):
        follow(record)
    async with lease:
        record.usage = Usage(160, 40)
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
