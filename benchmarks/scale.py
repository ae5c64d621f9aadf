"""100,000 chunks in Milvus Lite: how fast they go in, what a search takes alone and beside ingestion, and what
memory.

The embedder costs nothing, so the figures are those of the appliance and of Milvus Lite. Searches ask for ten
results, one after the other, over HTTP. Minutes; ``--chunks`` asks for fewer.
"""

from __future__ import annotations

import argparse
import http.client
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import _free
from benchmarks._documents import Loaded, load, retrieval_config, retrieval_server
from benchmarks._serving import Served, cpu_seconds, machine, rss_bytes
from benchmarks._text import Text
from benchmarks.search import CHUNK_TOKENS, FREE_WORDS, made_up, post

_MIB = 2**20


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chunks", type=int, default=100_000, help="[100000]")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long is searched, each time [30]")
    options = parser.parse_args(arguments)
    print(machine())
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        _free.install(Path(name))
        config = retrieval_config(Path(name), models=[{"name": "words", "embedder": "free"}])
        config["plugins"] = ["free", "milvus", "documents", "tokens"]
        config["retrieval"]["embedder"] = "words"
        with retrieval_server(config, Path(name)) as served:
            _measure(served, options)
    return 0


def _measure(served: Served, options: argparse.Namespace) -> None:
    worker = _worker_of(served.pid)
    before = cpu_seconds(worker)
    loaded = _load(served, made_up(options.chunks, FREE_WORDS))
    used = cpu_seconds(worker) - before
    chunks = options.chunks
    print("\n| chunks | in s | chunks/s | chunks per CPU second of the worker | worker MiB |\n|--:|--:|--:|--:|--:|")
    print(
        f"| {chunks:,} | {loaded.seconds:.0f} | {chunks / loaded.seconds:,.0f} | {chunks / used:,.0f} | "
        f"{rss_bytes(worker) / _MIB:,.0f} |",
        flush=True,
    )
    print("\n| searches | number | p50 ms | p95 ms | p99 ms |\n|---|--:|--:|--:|--:|")
    _row("alone", _searches(served, loaded.store, _for(options.seconds)))
    more = made_up(max(1_000, options.chunks // 20), FREE_WORDS, seed=1)
    ingestion = threading.Thread(target=_load, args=(served, more, loaded.store))
    ingestion.start()
    _row("beside ingestion", _searches(served, loaded.store, ingestion.is_alive))
    ingestion.join()


def _for(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() < end


def _load(served: Served, documents: dict[str, str], store: str | None = None) -> Loaded:
    from openai import OpenAI

    client = OpenAI(base_url=f"{served.url}/v1", api_key="none", timeout=120)
    strategy = {"type": "static", "static": {"max_chunk_size_tokens": CHUNK_TOKENS, "chunk_overlap_tokens": 0}}
    return load(client, "chunks", documents, strategy=strategy, store=store)


def _searches(served: Served, store: str, go_on: Callable[[], bool]) -> list[float]:
    """Seconds of each search while ``go_on`` says so."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=120)
    text, times = Text(1), []
    while go_on() or len(times) < 2:
        began = time.perf_counter()
        post(connection, f"/v1/vector_stores/{store}/search", {"query": text.question()}).read()
        times.append(time.perf_counter() - began)
    return times


def _row(name: str, seconds: Sequence[float]) -> None:
    cuts: list[Any] = statistics.quantiles(seconds, n=100)
    figures = " | ".join(f"{cuts[at - 1] * 1e3:,.0f}" for at in (50, 95, 99))
    print(f"| {name} | {len(seconds)} | {figures} |", flush=True)


def _worker_of(pid: int) -> int:
    """The worker's process: the descendant that runs its module."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes()
            if b"appliance.knowledge.worker" in command and _descends(int(path.name), pid):
                return int(path.name)
        except OSError:
            continue
    raise SystemExit("error: the server has no worker")


def _descends(pid: int, ancestor: int) -> bool:
    """Whether ``pid`` was started by ``ancestor``, with a guard between them, and is no guard itself."""
    command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    if b"appliance.knowledge.worker" not in command or b"-m" not in command[:4]:
        return False
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return parent == ancestor or int(Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1]) == ancestor


if __name__ == "__main__":
    sys.exit(main())
